#include "runtime/stream.hpp"

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/device.hpp"
#include "runtime/options.hpp"

namespace rt {
namespace {

constexpr uint64_t kLongQueue = 1024;  // then the older half may run

// One lock for all queues: cross-stream dependencies stay simple, and work runs outside it.
std::mutex& lock_of_queues() {
  static std::mutex* const mutex = new std::mutex;  // workers may outlive exit handlers
  return *mutex;
}

std::atomic<uint64_t> next_id{1};

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
  if (!has_worker_) {
    // Detached: at process exit a worker may sit in a kernel, and nobody can wait for that.
    std::thread([self = shared_from_this()] { self->loop(); }).detach();
    has_worker_ = true;
  }
  queue_.push_back({std::move(work), device.queues.epoch});
  ++last_;
  if (queue_.size() > kLongQueue) released_ = std::max(released_, last_ - kLongQueue / 2);
  changed_.notify_all();
  return {shared_from_this(), last_};
}

Marker Stream::tail() {
  const std::lock_guard lock(lock_of_queues());
  return {shared_from_this(), last_};
}

void Stream::release(uint64_t ticket) {
  if (released_ >= ticket) return;
  released_ = ticket;
  changed_.notify_all();
}

void Stream::loop() {
  std::unique_lock lock(lock_of_queues());
  while (true) {
    changed_.wait(lock, [&] {
      return queue_.empty() ? closing_ : done_ < released_;
    });
    if (queue_.empty()) return;
    Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    for (const Marker& marker : item.work.after) wait(marker);
    lock.lock();
    Queues& queues = device.queues;
    std::optional<Failure> failure;
    std::shared_ptr<const Error> dropped;
    if (!item.work.always) {
      if (queues.fault) {
        dropped = queues.fault;
      } else if (item.epoch != queues.epoch) {
        dropped = queues.last_fault;
      }
    }
    if (!dropped) {
      lock.unlock();
      failure = item.work.run();
      item.work = {};  // what it holds (memory snapshots, modules) goes before anyone is told
      lock.lock();
    }
    if (failure) {
      dropped = std::make_shared<const Error>(std::move(failure->error));
      if (failure->fatal && !queues.fault) queues.fault = dropped;
    }
    if (dropped && !failure_) failure_ = dropped;
    ++done_;
    changed_.notify_all();
  }
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
  Stream& stream = *marker.stream;
  std::unique_lock lock(lock_of_queues());
  stream.release(marker.ticket);
  stream.changed_.wait(lock, [&] { return stream.done_ >= marker.ticket; });
}

bool poll(const Marker& marker) {
  if (!marker.stream) return true;
  const std::lock_guard lock(lock_of_queues());
  marker.stream->release(marker.ticket);
  return marker.stream->done_ >= marker.ticket;
}

std::shared_ptr<const Error> peek_failure(Stream& stream) {
  const std::lock_guard lock(lock_of_queues());
  return stream.failure_;
}

std::shared_ptr<const Error> take_failure(Stream& stream) {
  const std::lock_guard lock(lock_of_queues());
  std::shared_ptr<const Error> failure = std::move(stream.failure_);
  stream.failure_.reset();
  Queues& queues = stream.device.queues;
  if (failure && failure == queues.fault) {
    queues.last_fault = std::move(queues.fault);
    queues.fault.reset();
    ++queues.epoch;
  }
  return failure;
}

void set_failure(Stream& stream, std::shared_ptr<const Error> error) {
  const std::lock_guard lock(lock_of_queues());
  if (!stream.failure_) stream.failure_ = std::move(error);
}

void add_stream(const std::shared_ptr<Stream>& stream) {
  const std::lock_guard lock(lock_of_queues());
  stream->device.queues.streams.insert(stream);
}

void remove_stream(const std::shared_ptr<Stream>& stream) {
  stream->close();
  if (auto failure = peek_failure(*stream)) set_failure(*stream->device.queues.null, failure);
  const std::lock_guard lock(lock_of_queues());
  stream->device.queues.streams.erase(stream);
}

void drain(Device& device) {
  for (const auto& stream : all_streams(device)) wait(stream->tail());
}

std::shared_ptr<const Error> drain_and_report(Device& device) {
  drain(device);
  std::shared_ptr<const Error> first;
  for (const auto& stream : all_streams(device)) {
    auto failure = take_failure(*stream);
    if (!first) first = std::move(failure);
  }
  return first;
}

bool idle(Device& device) {
  for (const auto& stream : all_streams(device)) {
    if (!poll(stream->tail())) return false;
  }
  return true;
}

}  // namespace rt
