#include "runtime/device.hpp"

#include <pthread.h>

#include "runtime/options.hpp"

namespace rt {
namespace {

std::atomic<bool> is_forked{false};

struct ThreadState {
  int device = 0;
  std::unordered_map<int, std::shared_ptr<Stream>> streams;
  ~ThreadState() {
    if (is_forked) return;
    for (auto& [id, stream] : streams) {
      try {
        if (stream) remove_stream(stream);
      } catch (...) {  // a thread that ends cannot report it
      }
    }
  }
};
thread_local ThreadState thread_state;

}  // namespace

Device::Device(int id, int physical, const Allocator& allocator)
    : id(id), physical(physical), memory(allocator, id) {
  queues.null = std::make_shared<Stream>(*this, Stream::Kind::null, 0, 0);
}

Runtime::Runtime() {
  for (const int physical : options().devices) {
    const auto id = static_cast<int>(devices.size());
    devices.push_back(std::make_unique<Device>(id, physical, allocator));
  }
}

Runtime& runtime() {
  static Runtime* const instance = [] {
    if (const std::string& error = options().error; !error.empty())
      fail(hipErrorInvalidValue, error);
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
    return new Runtime;
  }();
  return *instance;
}

bool forked() { return is_forked; }

Device& device(int id) {
  Runtime& all = runtime();
  if (all.devices.empty()) {
    const std::string& hidden_by = options().hidden_by;
    fail(hipErrorNoDevice, "there is no device (",
         hidden_by.empty() ? "HIPGEMM_EMULATOR_DEVICES=0" : hidden_by, ")");
  }
  if (id < 0 || id >= static_cast<int>(all.devices.size())) {
    fail(hipErrorInvalidDevice, "device must be in 0..", all.devices.size() - 1, "; got ", id);
  }
  return *all.devices[id];
}

Device& current_device() { return device(thread_state.device); }

void set_current_device(int id) { thread_state.device = device(id).id; }

std::shared_ptr<Stream> per_thread_stream(Device& device) {
  auto& stream = thread_state.streams[device.id];
  if (!stream) {
    auto made = std::make_shared<Stream>(device, Stream::Kind::per_thread, 0, 0);
    add_stream(made);
    stream = std::move(made);
  }
  return stream;
}

}  // namespace rt
