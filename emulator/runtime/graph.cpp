#include "runtime/graph.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/device.hpp"
#include "runtime/event.hpp"

namespace rt {
namespace {

std::vector<std::shared_ptr<Capture>>& captures() {  // guarded by the lock of the queues
  static auto* const all = new std::vector<std::shared_ptr<Capture>>;
  return *all;
}

[[noreturn]] void break_capture(Capture& capture, hipError_t code, const char* what,
                                const char* why) {
  capture.broken = true;
  fail(code, what, " ", why);
}

constexpr const char* kDuring = "is not allowed during the capture of a graph";

// Everything that must have run before the nodes, and these.
std::set<const Node*> ancestors(const std::vector<Node*>& nodes) {
  std::set<const Node*> found;
  std::vector<const Node*> open(nodes.begin(), nodes.end());
  while (!open.empty()) {
    const Node* const node = open.back();
    open.pop_back();
    if (found.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return found;
}

}  // namespace

Node* Graph::add(std::function<std::optional<Failure>()> run, std::vector<Node*> after) {
  nodes.push_back(std::make_shared<Node>(Node{std::move(run), std::move(after), nullptr}));
  return nodes.back().get();
}

// Of the nodes that may run next, the one that was added last: what does not wait for another
// branch, but should, runs before it.
Executable::Executable(const Graph& graph) : device(graph.device) {
  std::set<const Node*> done;
  std::vector<std::shared_ptr<Node>> open = graph.nodes;
  while (!open.empty()) {
    const auto next = std::find_if(open.rbegin(), open.rend(), [&](const auto& node) {
      return std::all_of(node->after.begin(), node->after.end(),
                         [&](const Node* before) { return done.count(before); });
    });
    if (next == open.rend()) fail(hipErrorInvalidValue, "a node of the graph waits for itself");
    done.insert(next->get());
    order_.push_back(*next);
    open.erase(std::next(next).base());
  }
}

void Executable::launch(Stream& stream) {
  struct Run {
    std::vector<std::shared_ptr<Node>> order;
    std::vector<std::shared_ptr<Event::Record>> records;  // of the nodes that record an event
    size_t next = 0;
  };
  const auto run = std::make_shared<Run>(Run{order_, {}, 0});
  for (const auto& node : order_)
    run->records.push_back(node->event ? std::make_shared<Event::Record>() : nullptr);
  Work work{[run]() -> std::optional<Failure> {
              while (run->next < run->order.size()) {
                if (auto failure = run->order[run->next]->run()) return failure;
                if (const auto& record = run->records[run->next])
                  record->time = std::chrono::steady_clock::now();
                ++run->next;
              }
              return std::nullopt;
            },
            {}};
  if (last_.stream && last_.stream.get() != &stream) work.after.push_back(last_);
  last_ = stream.enqueue(std::move(work));
  for (size_t i = 0; i < order_.size(); ++i) {
    if (const auto& record = run->records[i]) {
      record->marker = last_;
      order_[i]->event->set(record);
    }
  }
}

Capture::Capture(Stream& origin, CaptureMode mode)
    : mode(mode),
      thread(std::this_thread::get_id()),
      origin(&origin),
      graph(std::make_shared<Graph>(origin.device.id)) {
  ends[&origin];
}

void begin_capture(Stream& stream, CaptureMode mode) {
  if (stream.kind == Stream::Kind::null)
    fail(hipErrorStreamCaptureUnsupported, "the default stream cannot be captured");
  const auto lock = lock_queues();
  if (stream.capture) fail(hipErrorIllegalState, "the stream is in a capture already");
  const auto capture = std::make_shared<Capture>(stream, mode);
  captures().push_back(capture);
  stream.capture = capture;
}

std::shared_ptr<Graph> end_capture(Stream& stream) {
  const auto lock = lock_queues();
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) fail(hipErrorIllegalState, "the stream is in no capture");
  if (capture->origin != &stream)
    fail(hipErrorStreamCaptureUnmatched, "the capture began in another stream");
  if (capture->mode != CaptureMode::relaxed && capture->thread != std::this_thread::get_id())
    fail(hipErrorStreamCaptureWrongThread, "the capture began in another thread");
  const auto joined = ancestors(capture->ends[&stream]);
  bool all = true;
  for (const auto& [other, nodes] : capture->ends) {
    for (const Node* node : nodes) all = all && joined.count(node);
    other->capture.reset();
  }
  std::erase(captures(), capture);
  if (capture->broken)
    fail(hipErrorStreamCaptureInvalidated, "a call that captures do not allow was made");
  if (!all) {
    fail(hipErrorStreamCaptureUnjoined,
         "another stream has work in the capture that the first stream does not wait for");
  }
  return capture->graph;
}

std::shared_ptr<Capture> capture_of(Stream& stream) {
  const auto lock = lock_queues();
  return stream.capture;
}

std::vector<Node*> capture_ends(Stream& stream) {
  const auto lock = lock_queues();
  return stream.capture ? stream.capture->ends[&stream] : std::vector<Node*>{};
}

void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture,
                  const std::vector<Node*>& nodes) {
  const auto lock = lock_queues();
  const auto& all = captures();
  if (std::find(all.begin(), all.end(), capture) == all.end())
    fail(hipErrorCapturedEvent, "the event was recorded in a capture that has ended");
  if (stream.kind == Stream::Kind::null)
    break_capture(*capture, hipErrorStreamCaptureImplicit, "the default stream", kDuring);
  if (stream.capture && stream.capture != capture)
    break_capture(*capture, hipErrorStreamCaptureMerge, "waiting for the event of another capture",
                  kDuring);
  stream.capture = capture;
  std::vector<Node*>& ends = capture->ends[&stream];
  for (Node* node : nodes)
    if (std::find(ends.begin(), ends.end(), node) == ends.end()) ends.push_back(node);
}

void refuse_in_capture(Stream& stream, const char* what) {
  const auto lock = lock_queues();
  if (stream.capture)
    break_capture(*stream.capture, hipErrorStreamCaptureUnsupported, what, kDuring);
  if (stream.kind != Stream::Kind::null) return;
  for (const auto& capture : captures()) {  // the default stream waits for blocking streams
    for (const auto& [other, nodes] : capture->ends) {
      if (&other->device == &stream.device && other->kind == Stream::Kind::blocking)
        break_capture(*capture, hipErrorStreamCaptureImplicit, what, kDuring);
    }
  }
}

void refuse_in_capture(Device& device, const char* what) {
  const auto lock = lock_queues();
  for (const auto& capture : captures()) {
    for (const auto& [stream, nodes] : capture->ends) {
      if (&stream->device == &device)
        break_capture(*capture, hipErrorStreamCaptureUnsupported, what, kDuring);
    }
  }
}

void refuse_unsafe(const char* what) {
  const auto lock = lock_queues();
  for (const auto& capture : captures()) {
    const bool own = capture->thread == std::this_thread::get_id();
    if (capture->mode == CaptureMode::global ||
        (capture->mode == CaptureMode::thread_local_ && own))
      break_capture(*capture, hipErrorStreamCaptureUnsupported, what, kDuring);
  }
}

}  // namespace rt
