// Events: a position in a stream, and the time it was reached.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/graph.hpp"

namespace rt {

struct Event {
  struct Record {
    Marker marker;
    std::chrono::steady_clock::time_point time;  // valid once the marker is reached
    std::shared_ptr<Capture> capture;            // if it was recorded during one: after these
    std::vector<Node*> nodes;
  };

  Event(int device, unsigned flags) : device(device), flags(flags) {}

  std::shared_ptr<Record> last() const {
    const std::lock_guard lock(mutex_);
    return record_;
  }
  void set(std::shared_ptr<Record> record) {
    const std::lock_guard lock(mutex_);
    record_ = std::move(record);
  }

  const int device;
  const unsigned flags;

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<Record> record_;
};

}  // namespace rt
