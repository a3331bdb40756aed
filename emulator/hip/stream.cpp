// Streams and host functions in them.
#include "hip/api.hpp"
#include "runtime/graph.hpp"

namespace hip {

std::shared_ptr<rt::Stream> stream_of(hipStream_t handle) {
  if (!handle || handle == kLegacy) return rt::current_device().queues.null;
  if (handle == kPerThread) return rt::per_thread_stream(rt::current_device());
  if (auto stream = rt::runtime().streams.get(handle)) return stream;
  fail(hipErrorInvalidHandle, "stream ", rt::hex(handle), " does not exist");
}

void throw_report(const rt::Report& report) {
  if (report) throw rt::Error(*report);
}

void synchronize(rt::Stream& stream) {
  rt::refuse_in_capture(stream, "waiting for the stream");
  rt::wait(stream.tail());
  throw_report(rt::take_report(stream));
}

}  // namespace hip

namespace {

using hip::api;
using hip::fail;
using hip::need;
using hip::stream_of;
using rt::runtime;
using rt::Stream;

constexpr int kLeastPriority = 1, kGreatestPriority = -1;

void create(hipStream_t* handle, unsigned flags, int priority) {
  need(handle, "stream");
  if (flags & ~hipStreamNonBlocking) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
  priority = std::max(kGreatestPriority, std::min(kLeastPriority, priority));
  const auto kind =
      flags & hipStreamNonBlocking ? Stream::Kind::non_blocking : Stream::Kind::blocking;
  auto stream = std::make_shared<Stream>(rt::current_device(), kind, flags, priority);
  Stream* const added = runtime().streams.add(stream);
  try {
    rt::add_stream(stream);
  } catch (...) {
    runtime().streams.remove(added);
    throw;
  }
  *handle = reinterpret_cast<hipStream_t>(added);
}

}  // namespace

HIP_API hipError_t hipStreamCreate(hipStream_t* stream) {
  return api("hipStreamCreate", [&] { create(stream, 0, 0); });
}

HIP_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned flags) {
  return api("hipStreamCreateWithFlags", [&] { create(stream, flags, 0); });
}

HIP_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned flags, int priority) {
  return api("hipStreamCreateWithPriority", [&] { create(stream, flags, priority); });
}

HIP_API hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api("hipDeviceGetStreamPriorityRange", [&] {
    if (least) *least = kLeastPriority;
    if (greatest) *greatest = kGreatestPriority;
  });
}

HIP_API hipError_t hipStreamDestroy(hipStream_t handle) {
  return api("hipStreamDestroy", [&] {
    auto stream = runtime().streams.get(handle);
    if (!stream) fail(hipErrorInvalidHandle, "stream ", rt::hex(handle), " does not exist");
    stream->close();
    if (!runtime().streams.remove(handle))
      fail(hipErrorInvalidHandle, "stream ", rt::hex(handle), " does not exist");
    rt::remove_stream(stream);
  });
}

HIP_API hipError_t hipStreamSynchronize(hipStream_t handle) {
  return api("hipStreamSynchronize", [&] { hip::synchronize(*stream_of(handle)); });
}

HIP_API hipError_t hipStreamQuery(hipStream_t handle) {
  return api("hipStreamQuery", [&] {
    const auto stream = stream_of(handle);
    rt::refuse_in_capture(*stream, "querying the stream");
    if (!rt::poll(stream->tail())) return hipErrorNotReady;
    hip::throw_report(rt::take_report(*stream));
    return hipSuccess;
  });
}

HIP_API hipError_t hipStreamGetFlags(hipStream_t handle, unsigned* flags) {
  return api("hipStreamGetFlags", [&] {
    need(flags, "flags");
    *flags = stream_of(handle)->flags;
  });
}

HIP_API hipError_t hipStreamGetPriority(hipStream_t handle, int* priority) {
  return api("hipStreamGetPriority", [&] {
    need(priority, "priority");
    *priority = stream_of(handle)->priority;
  });
}

HIP_API hipError_t hipStreamGetDevice(hipStream_t handle, int* device) {
  return api("hipStreamGetDevice", [&] {
    need(device, "device");
    *device = stream_of(handle)->device.id;
  });
}

HIP_API hipError_t hipLaunchHostFunc(hipStream_t handle, hipHostFn_t function, void* data) {
  return api("hipLaunchHostFunc", [&] {
    need(reinterpret_cast<void*>(function), "fn");
    stream_of(handle)->enqueue({[=]() -> std::optional<rt::Failure> {
                                  const rt::InHostFunction mark;
                                  function(data);
                                  return std::nullopt;
                                },
                                {}});
  });
}
