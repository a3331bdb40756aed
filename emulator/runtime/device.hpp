// All of the emulated machine: devices, their streams, and the handles of callers.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/launch.hpp"
#include "runtime/allocator.hpp"
#include "runtime/launch_log.hpp"
#include "runtime/stream.hpp"

namespace rt {

struct Pool {
  int device = 0;
  std::atomic<uint64_t> used{0}, high{0}, release_threshold{0};
};

struct Device {
  Device(int id, int physical, const Allocator& allocator);

  const int id;
  const int physical;  // its number without hidden devices, which determines bus and UUID
  const DeviceMemory memory;
  Queues queues;
};

// Objects that the caller has handles of. A handle that was never returned, or was destroyed, is an
// error, not undefined behaviour.
template <class T>
class Handles {
 public:
  T* add(std::shared_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    T* handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  std::shared_ptr<T> get(const void* handle) const {
    const std::lock_guard lock(mutex_);
    const auto it = objects_.find(handle);
    return it == objects_.end() ? nullptr : it->second;
  }
  std::shared_ptr<T> remove(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto it = objects_.find(handle);
    if (it == objects_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(it->second);
    objects_.erase(it);
    return object;
  }
  std::vector<std::shared_ptr<T>> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<T>> result;
    for (const auto& [handle, object] : objects_) result.push_back(object);
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const void*, std::shared_ptr<T>> objects_;
};

struct Event;
struct Graph;
class Executable;
struct Node;
struct Module;
struct Function;

struct Runtime {
  Runtime();

  Allocator allocator;
  std::vector<std::unique_ptr<Device>> devices;
  Handles<Stream> streams;
  Handles<Event> events;
  Handles<Module> modules;
  Handles<Function> functions;
  Handles<Pool> pools;
  Handles<Graph> graphs;
  Handles<Node> nodes;
  Handles<Executable> executables;
  LaunchLog launches;
};

// Made at first use and never destroyed: worker threads may still run at process exit.
Runtime& runtime();
// The runtime does not survive fork(): its threads do not exist in the child.
bool forked();

Device& device(int id);    // throws Error
Device& current_device();  // this thread's
void set_current_device(int id);
std::shared_ptr<Stream> per_thread_stream(Device& device);  // this thread's

}  // namespace rt
