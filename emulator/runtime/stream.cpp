#include "runtime/stream.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <unordered_map>

#include "runtime/device.hpp"
#include "runtime/options.hpp"

namespace rt {

// What a thread lost and has not been told, for each device; guarded by the lock of the queues. It
// makes sure that a thread hears of its own failure even if another one synchronized first.
struct Mailbox {
  std::unordered_map<Device*, Report> reports;
  std::unordered_map<Device*, Report> told;  // the last; what it took with it is known to be lost
};

namespace {

constexpr uint64_t kLongQueue = 1024;  // then the older half may run

// One lock for all queues: cross-stream dependencies stay simple, and work runs outside it.
std::mutex& lock_of_queues() {
  static std::mutex* const mutex = new std::mutex;  // workers may outlive exit handlers
  return *mutex;
}

std::atomic<uint64_t> next_id{1};

const std::shared_ptr<Mailbox>& own_mailbox() {
  thread_local const auto mailbox = std::make_shared<Mailbox>();
  return mailbox;
}

thread_local bool in_host_function = false;

// A thread that waits runs the work itself if nobody else does, which saves two thread switches.
// Work that depends on another stream does the same there; beyond this depth the workers take over.
constexpr int kMaxDepth = 32;
thread_local int wait_depth = 0;

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

Stream::Stream(Device& device, Kind kind, unsigned flags, int priority)
    : device(device), kind(kind), flags(flags), priority(priority), id(next_id++) {
  if (!options().late) released_ = UINT64_MAX;
}

Marker Stream::enqueue(Work work) {
  const std::lock_guard lock(lock_of_queues());
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
  queue_.push_back({std::move(work), device.queues.epoch, own_mailbox()});
  ++last_;
  if (released_ >= last_) start_worker();
  if (queue_.size() > kLongQueue) release(last_ - kLongQueue / 2);
  return {shared_from_this(), last_};
}

Marker Stream::tail() {
  const std::lock_guard lock(lock_of_queues());
  return {shared_from_this(), last_};
}

void Stream::release(uint64_t ticket) {
  if (released_ >= ticket) return;
  released_ = ticket;
  start_worker();
}

void Stream::start_worker() {
  if (!has_worker_) {
    // Detached: at process exit a worker may sit in a kernel, and nobody can wait for that.
    std::thread([self = shared_from_this()] { self->loop(); }).detach();
    has_worker_ = true;
  }
  changed_.notify_all();
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

void Stream::run_oldest(std::unique_lock<std::mutex>& lock) {
  Item item = std::move(queue_.front());
  queue_.pop_front();
  running_ = true;
  const Report report = run(item, lock);
  if (report) {
    if (!report_ && report != device.queues.last_fault) report_ = report;
    if (item.owner->told[&device] != report) item.owner->reports.try_emplace(&device, report);
  }
  running_ = false;
  ++done_;
  changed_.notify_all();
}

// Runs one item with the lock released. What went wrong, if anything.
Report Stream::run(Item& item, std::unique_lock<std::mutex>& lock) {
  Queues& queues = device.queues;
  lock.unlock();
  for (const Marker& marker : item.work.after) wait(marker);
  lock.lock();
  Report report;
  if (!item.work.always) {
    report = queues.fault ? queues.fault : item.epoch != queues.epoch ? queues.last_fault : nullptr;
  }
  lock.unlock();
  std::optional<Failure> failure;
  try {
    if (!report) failure = item.work.run();
  } catch (const std::exception& error) {
    failure = Failure{{hipErrorUnknown, error.what()}};
  }
  item.work = {};  // what it holds (memory snapshots, modules) goes before anyone is told
  lock.lock();
  if (failure) {
    report = std::make_shared<const Error>(std::move(failure->error));
    if (failure->fatal && !queues.fault) queues.fault = report;
  }
  return report;
}

void Stream::close() {
  const Marker last = tail();
  wait(last);
  const std::lock_guard lock(lock_of_queues());
  closing_ = true;
  changed_.notify_all();
}

void wait(const Marker& marker) {
  if (!marker.stream) return;
  if (in_host_function) {
    fail(hipErrorIllegalState, "a host function in a stream must not call what waits for streams");
  }
  Stream& stream = *marker.stream;
  std::unique_lock lock(lock_of_queues());
  while (stream.done_ < marker.ticket) {
    if (!stream.running_ && wait_depth < kMaxDepth) {
      ++wait_depth;
      stream.run_oldest(lock);
      --wait_depth;
    } else {
      stream.release(marker.ticket);
      const uint64_t seen = stream.done_;
      stream.changed_.wait(lock, [&] { return stream.done_ != seen; });
    }
  }
}

bool poll(const Marker& marker) {
  if (!marker.stream) return true;
  const std::lock_guard lock(lock_of_queues());
  marker.stream->release(marker.ticket);
  return marker.stream->done_ >= marker.ticket;
}

Report peek_report(Stream& stream) {
  const std::lock_guard lock(lock_of_queues());
  return stream.report_;
}

Report take_report(Stream& stream) {
  const std::lock_guard lock(lock_of_queues());
  Queues& queues = stream.device.queues;
  auto& mail = own_mailbox()->reports;
  const auto own = mail.find(&stream.device);
  const Report report = own != mail.end() ? own->second : stream.report_;
  if (!report) return nullptr;
  if (own != mail.end()) mail.erase(own);
  own_mailbox()->told[&stream.device] = report;
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
