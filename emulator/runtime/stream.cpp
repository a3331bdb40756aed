#include "runtime/stream.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "runtime/device.hpp"
#include "runtime/graph.hpp"
#include "runtime/options.hpp"

namespace rt {

// The failures of a thread's work that are not reported yet, for each device; guarded by the lock
// of the queues. With it a thread gets the report of its own failure, even if another one
// synchronized first.
struct Mailbox {
  std::array<Report, kMaxDevices> reports;   // by device
  std::array<Report, kMaxDevices> reported;  // the last; the work that it ended is lost
};

namespace {

constexpr uint64_t kLongQueue = 1024;  // then the older half may run

// One lock for all queues: cross-stream dependencies stay simple, and work runs outside it.
std::mutex& lock_of_queues() {
  static std::mutex* const mutex = new std::mutex;  // workers may outlive exit handlers
  return *mutex;
}

const std::shared_ptr<Mailbox>& own_mailbox() {
  thread_local const auto mailbox = std::make_shared<Mailbox>();
  return mailbox;
}

thread_local bool in_host_function = false;

// A thread that waits runs the work itself if no other thread does, which saves two thread
// switches. Work that depends on another stream does the same there; beyond this depth the workers
// run it.
constexpr int kMaxDepth = 32;
thread_local int wait_depth = 0;

thread_local Deadline::Time thread_deadline = Deadline::Time::max();

template <class Each>
void for_each_stream(Queues& queues, Each&& each) {
  each(*queues.null);
  for (const auto& stream : queues.streams) each(*stream);
}

std::vector<std::shared_ptr<Stream>> all_streams(Device& device) {
  const std::lock_guard lock(lock_of_queues());
  std::vector<std::shared_ptr<Stream>> result{device.queues.null};
  result.insert(result.end(), device.queues.streams.begin(), device.queues.streams.end());
  return result;
}

}  // namespace

Deadline::Deadline(unsigned milliseconds) : outer_(thread_deadline) {
  thread_deadline =
      std::min(outer_, std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds));
}
Deadline::~Deadline() { thread_deadline = outer_; }
Deadline::Time deadline() { return thread_deadline; }

Stream::Stream(Device& device, Kind kind, unsigned flags, int priority)
    : device(device), kind(kind), flags(flags), priority(priority) {
  if (!options().late) released_ = UINT64_MAX;
}

std::unique_lock<std::mutex> lock_queues() { return std::unique_lock(lock_of_queues()); }

Marker Stream::enqueue(Work work) {
  if (kind == Kind::null) refuse_in_capture(*this, "work in the default stream");
  const std::lock_guard lock(lock_of_queues());
  if (capture) {
    if (capture->broken)
      fail(hipErrorStreamCaptureInvalidated, "the capture has failed by an earlier call");
    std::vector<Node*>& ends = capture->ends[this];
    ends = {capture->graph->add(std::move(work.run), ends)};
    return {};
  }
  // The null stream waits for every blocking stream, and they for it.
  const auto follow = [&](const std::shared_ptr<Stream>& other) {
    if (other.get() != this && other->done_ < other->last_) {
      work.after.push_back({other, other->last_});
    }
  };
  if (kind == Kind::null) {
    for (const auto& other : device.queues.streams) {
      if (other->kind != Kind::non_blocking) follow(other);
    }
  } else if (kind != Kind::non_blocking) {
    follow(device.queues.null);
  }
  auto report = std::make_shared<Error>();
  if (released_ > last_) start_worker();  // first: without it nothing is queued
  queue_.push_back({std::move(work), device.queues.epoch, own_mailbox(), std::move(report)});
  ++last_;
  if (released_ >= last_) changed_.notify_all();  // else no worker has anything to do yet
  if (queue_.size() > kLongQueue) {
    try {
      release(last_ - kLongQueue / 2);
    } catch (const std::exception&) {  // it runs at the next wait
    }
  }
  return {shared_from_this(), last_};
}

Marker Stream::tail() {
  const std::lock_guard lock(lock_of_queues());
  return {shared_from_this(), last_};
}

void Stream::release(uint64_t ticket) {
  if (released_ >= ticket) return;
  start_worker();
  released_ = ticket;
  changed_.notify_all();
}

void Stream::start_worker() {
  if (!has_worker_) {
    // Detached: at process exit a worker may execute a kernel, and no thread can wait for that.
    std::thread([self = shared_from_this()] { self->loop(); }).detach();
    has_worker_ = true;
  }
}

void Stream::loop() {
  std::unique_lock lock(lock_of_queues());
  while (true) {
    changed_.wait(lock,
                  [&] { return !running_ && (queue_.empty() ? closing_ : done_ < released_); });
    if (queue_.empty()) return;
    run_oldest(lock);
  }
}

// What f returns, or the failure for what it throws.
template <class F>
std::optional<Failure> attempt(F&& f) noexcept {
  try {
    return f();
  } catch (Error& error) {
    return Failure{std::move(error)};
  } catch (const std::bad_alloc&) {
    return Failure{{hipErrorOutOfMemory, "no host memory"}};  // short, so that no allocation
  } catch (const std::system_error&) {
    return Failure{{hipErrorOutOfMemory, "no host thread"}};
  } catch (...) {
    return Failure{{hipErrorUnknown, {}}};
  }
}

// Runs one item with the lock released. False if the deadline came before its end: it stays.
bool Stream::run_oldest(std::unique_lock<std::mutex>& lock) noexcept {
  Item& item = queue_.front();  // its address is stable when others are queued after it
  Queues& queues = device.queues;
  running_ = true;
  lock.unlock();
  std::optional<Failure> failure = attempt([&]() -> std::optional<Failure> {
    for (const Marker& marker : item.work.after)
      if (!wait_until_deadline(marker)) return Failure{{}, false, true};
    return std::nullopt;
  });
  lock.lock();
  Report report;
  if (!failure && !item.work.always) {
    report = queues.fault ? queues.fault : item.epoch != queues.epoch ? queues.last_fault : nullptr;
  }
  lock.unlock();
  if (!failure && !report) failure = attempt(item.work.run);
  if (failure && failure->unfinished) {
    lock.lock();
    running_ = false;
    changed_.notify_all();
    return false;
  }
  item.work =
      {};  // what it holds (memory snapshots, modules) is released before waiting threads continue
  lock.lock();
  if (failure) {
    *item.report = std::move(failure->error);
    report = item.report;
    if (failure->fatal && !queues.fault) queues.fault = report;
  }
  if (report) {
    if (!report_ && report != queues.last_fault) report_ = report;
    Mailbox& mail = *item.owner;
    if (mail.reported[device.id] != report && !mail.reports[device.id])
      mail.reports[device.id] = report;
  }
  queue_.pop_front();
  running_ = false;
  ++done_;
  changed_.notify_all();
  return true;
}

void Stream::close() {
  const Marker last = tail();
  wait(last);
  const std::lock_guard lock(lock_of_queues());
  closing_ = true;
  changed_.notify_all();
}

bool wait_until_deadline(const Marker& marker) {
  if (!marker.stream) return true;
  if (in_host_function) {
    fail(hipErrorIllegalState, "a host function in a stream must not call what waits for streams");
  }
  Stream& stream = *marker.stream;
  std::unique_lock lock(lock_of_queues());
  const auto in_time = [] {
    return thread_deadline == Deadline::Time::max() ||
           std::chrono::steady_clock::now() < thread_deadline;
  };
  while (stream.done_ < marker.ticket) {
    if (!stream.running_ && wait_depth < kMaxDepth) {
      ++wait_depth;
      stream.run_oldest(lock);
      --wait_depth;
      if (stream.done_ < marker.ticket && !in_time()) return false;
      continue;
    }
    try {
      stream.release(marker.ticket);
    } catch (const std::exception&) {  // the thread that runs it now may run the rest too
      if (wait_depth >= kMaxDepth) throw;
    }
    const uint64_t seen = stream.done_;
    const auto changed = [&] {
      return stream.done_ != seen || (!stream.running_ && wait_depth < kMaxDepth);
    };
    if (thread_deadline == Deadline::Time::max())
      stream.changed_.wait(lock, changed);
    else if (!stream.changed_.wait_until(lock, thread_deadline, changed))
      return false;
  }
  return true;
}

void wait(const Marker& marker) {
  struct Restore {
    const Deadline::Time outer;
    ~Restore() { thread_deadline = outer; }
  } const restore{std::exchange(thread_deadline, Deadline::Time::max())};
  wait_until_deadline(marker);
}

bool poll(const Marker& marker) {
  if (!marker.stream) return true;
  const std::lock_guard lock(lock_of_queues());
  marker.stream->release(marker.ticket);
  return marker.stream->done_ >= marker.ticket;
}

Report take_report(Stream& stream) {
  const std::lock_guard lock(lock_of_queues());
  Queues& queues = stream.device.queues;
  Mailbox& mail = *own_mailbox();
  Report& own = mail.reports[stream.device.id];
  const Report report = own ? own : stream.report_;
  if (!report) return nullptr;
  own.reset();
  mail.reported[stream.device.id] = report;
  for_each_stream(queues, [&](Stream& other) {
    if (other.report_ == report) other.report_.reset();
  });
  if (report == queues.fault) {
    queues.last_fault = std::move(queues.fault);
    queues.fault.reset();
    ++queues.epoch;
  }
  return report;
}

void add_stream(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(lock_of_queues());
  stream->device.queues.streams.insert(stream);
}

void remove_stream(const std::shared_ptr<Stream>& stream) {
  stream->close();
  const std::lock_guard lock(lock_of_queues());
  Queues& queues = stream->device.queues;
  if (!queues.null->report_) queues.null->report_ = stream->report_;
  queues.streams.erase(stream);
}

bool drain_until_deadline(Device& device) {
  for (const auto& stream : all_streams(device))
    if (!wait_until_deadline(stream->tail())) return false;
  return true;
}

void drain(Device& device) {
  for (const auto& stream : all_streams(device)) wait(stream->tail());
}

Report drain_and_report(Device& device) {
  drain(device);
  Report first;
  for (const auto& stream : all_streams(device)) {
    Report report = take_report(*stream);
    if (!first) first = std::move(report);
  }
  return first;
}

bool idle(Device& device) {
  for (const auto& stream : all_streams(device)) {
    if (!poll(stream->tail())) return false;
  }
  return true;
}

InHostFunction::InHostFunction() { in_host_function = true; }
InHostFunction::~InHostFunction() { in_host_function = false; }

}  // namespace rt
