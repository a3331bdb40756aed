// Streams, events and host functions.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "api.hpp"

namespace {

using bridge::api;
using bridge::check;
using bridge::fail;
using bridge::need;
using cuda::driver;

struct StreamInfo {
  unsigned flags;
  int device;
  int priority;
  friend bool operator==(const StreamInfo&, const StreamInfo&) = default;
};
std::mutex mutex;
std::map<hipStream_t, StreamInfo> streams;
// Streams that were destroyed, the earliest first. The driver caches them, for the next that are
// like them: so a handle in here is invalid, and never one of another library.
std::deque<std::pair<hipStream_t, StreamInfo>> parked;
std::set<hipEvent_t> events;

// 0: the null stream; 1 and 2 mean the same to both runtimes, legacy and per thread.
bool is_default(hipStream_t handle) { return reinterpret_cast<uintptr_t>(handle) <= 2; }

[[noreturn]] void fail_unknown() {
  fail(hipErrorInvalidHandle, "no such stream; was it destroyed?");
}

// The driver dereferences handles unchecked; so none that points to no memory is passed on.
bool is_mapped(const void* address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto at = reinterpret_cast<uintptr_t>(address);
  unsigned char resident = 0;
  return at % alignof(void*) == 0 &&
         mincore(reinterpret_cast<void*>(at & ~(page - 1)), page, &resident) == 0;
}

// A stream that another library has made.
StreamInfo foreign(hipStream_t handle) {
  const auto stream = reinterpret_cast<cuda::Stream>(handle);
  StreamInfo found{};
  cuda::Context owner = nullptr, before = nullptr;
  if (!is_mapped(handle) || driver().stream_flags(stream, &found.flags) != 0 ||
      driver().stream_context(stream, &owner) != 0)
    fail_unknown();
  check(driver().stream_priority(stream, &found.priority));
  check(driver().context_get(&before));
  check(driver().context_set(owner));
  found.device = bridge::current_device();
  check(driver().context_set(before));
  return found;
}

StreamInfo info(hipStream_t handle) {
  if (is_default(handle)) return {0, bridge::current_device(), 0};
  {
    const std::lock_guard lock(mutex);
    const auto found = streams.find(handle);
    if (found != streams.end()) return found->second;
    for (const auto& [gone, _] : parked)
      if (gone == handle) fail_unknown();
  }
  return foreign(handle);
}

cuda::Event event_of(hipEvent_t handle) {
  const std::lock_guard lock(mutex);
  if (!events.count(handle)) fail(hipErrorInvalidHandle, "no such event; was it destroyed?");
  return reinterpret_cast<cuda::Event>(handle);
}

}  // namespace

namespace bridge {

cuda::Stream stream_of(hipStream_t handle) {
  if (!is_default(handle)) info(handle);
  return reinterpret_cast<cuda::Stream>(handle);
}

}  // namespace bridge

using bridge::stream_of;

HIP_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
  return api("hipStreamCreate", [&] {
    need(stream, "stream");
    const StreamInfo wanted{flags, bridge::current_device(), priority};
    const std::lock_guard lock(mutex);
    const auto idle = std::find_if(parked.begin(), parked.end(), [&](const auto& entry) {
      return entry.second == wanted &&
             driver().stream_query(reinterpret_cast<cuda::Stream>(entry.first)) == 0;
    });
    if (idle != parked.end()) {
      *stream = idle->first;
      streams[*stream] = wanted;
      parked.erase(idle);
      return;
    }
    std::map<hipStream_t, StreamInfo> one{{nullptr, wanted}};  // memory first, then the stream
    auto entry = one.extract(one.begin());
    cuda::Stream made = nullptr;
    check(driver().stream_create(&made, flags, priority));
    entry.key() = *stream = reinterpret_cast<hipStream_t>(made);
    streams.erase(*stream);
    streams.insert(std::move(entry));
  });
}
HIP_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return hipStreamCreateWithPriority(stream, flags, 0);
}
HIP_API hipError_t hipStreamCreate(hipStream_t* stream) {
  return hipStreamCreateWithPriority(stream, hipStreamDefault, 0);
}
HIP_API hipError_t hipStreamDestroy(hipStream_t stream) {
  return api("hipStreamDestroy", [&] {
    if (is_default(stream)) fail(hipErrorInvalidHandle, "a default stream cannot be destroyed");
    const std::lock_guard lock(mutex);
    const auto found = streams.find(stream);
    if (found == streams.end()) fail_unknown();  // nor may another library's be destroyed
    parked.push_back(*found);
    streams.erase(found);
  });
}
HIP_API hipError_t hipStreamQuery(hipStream_t stream) {
  return api("hipStreamQuery", [&] { return check(driver().stream_query(stream_of(stream))); });
}
HIP_API hipError_t hipStreamSynchronize(hipStream_t stream) {
  return api("hipStreamSynchronize",
             [&] { check(driver().stream_synchronize(stream_of(stream))); });
}
HIP_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned) {
  return api("hipStreamWaitEvent",
             [&] { check(driver().stream_wait(stream_of(stream), event_of(event), 0)); });
}
HIP_API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned* flags) {
  return api("hipStreamGetFlags", [&] {
    need(flags, "flags");
    *flags = info(stream).flags;
  });
}
HIP_API hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  return api("hipStreamGetPriority", [&] {
    need(priority, "priority");
    *priority = info(stream).priority;
  });
}
HIP_API hipError_t hipStreamGetDevice(hipStream_t stream, hipDevice_t* device) {
  return api("hipStreamGetDevice", [&] {
    need(device, "device");
    *device = info(stream).device;
  });
}
HIP_API hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t function, void* data) {
  return api("hipLaunchHostFunc", [&] {
    need(reinterpret_cast<const void*>(function), "fn");
    check(driver().launch_host(stream_of(stream), function, data));
  });
}

HIP_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return api("hipEventCreateWithFlags", [&] {
    need(event, "event");
    constexpr unsigned kKnownToBoth =
        hipEventBlockingSync | hipEventDisableTiming | hipEventInterprocess;
    cuda::Event made = nullptr;
    check(driver().event_create(&made, flags & kKnownToBoth));
    *event = reinterpret_cast<hipEvent_t>(made);
    const std::lock_guard lock(mutex);
    try {
      events.insert(*event);
    } catch (const std::bad_alloc&) {
      driver().event_destroy(made);
      throw;
    }
  });
}
HIP_API hipError_t hipEventCreate(hipEvent_t* event) {
  return hipEventCreateWithFlags(event, hipEventDefault);
}
HIP_API hipError_t hipEventDestroy(hipEvent_t event) {
  return api("hipEventDestroy", [&] {
    const cuda::Event found = event_of(event);
    {
      const std::lock_guard lock(mutex);
      events.erase(event);
    }
    check(driver().event_destroy(found));
  });
}
HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return api("hipEventRecord",
             [&] { check(driver().event_record(event_of(event), stream_of(stream))); });
}
HIP_API hipError_t hipEventQuery(hipEvent_t event) {
  return api("hipEventQuery", [&] { return check(driver().event_query(event_of(event))); });
}
HIP_API hipError_t hipEventSynchronize(hipEvent_t event) {
  return api("hipEventSynchronize", [&] { check(driver().event_synchronize(event_of(event))); });
}
HIP_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return api("hipEventElapsedTime", [&] {
    need(milliseconds, "ms");
    return check(driver().event_elapsed(milliseconds, event_of(start), event_of(stop)));
  });
}
