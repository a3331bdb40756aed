#include "hip/event.hpp"

#include "core/mutant.hpp"

namespace hip {

std::shared_ptr<rt::Event> event_of(hipEvent_t handle) {
  if (auto event = rt::runtime().events.get(handle)) return event;
  fail(hipErrorInvalidHandle, "event ", rt::hex(handle), " does not exist");
}

std::shared_ptr<rt::Event::Record> ended(const rt::Event& event) {
  auto record = event.last();
  if (record && record->capture)
    fail(hipErrorCapturedEvent, "the event was recorded during the capture of a graph");
  return record;
}

void record_event(hipEvent_t handle, const std::shared_ptr<rt::Stream>& stream) {
  const auto event = event_of(handle);
  if (event->device != stream->device.id) {
    fail(hipErrorInvalidHandle, "the event belongs to device ", event->device,
         ", the stream to device ", stream->device.id);
  }
  auto record = std::make_shared<rt::Event::Record>();
  if ((record->capture = rt::capture_of(*stream))) {
    record->nodes = rt::capture_ends(*stream);
    event->set(std::move(record));
    return;
  }
  record->marker = stream->enqueue({[record]() -> std::optional<rt::Failure> {
                                      record->time = std::chrono::steady_clock::now();
                                      return std::nullopt;
                                    },
                                    {},
                                    true});
  event->set(std::move(record));
}

}  // namespace hip

namespace {

using hip::api;
using hip::ended;
using hip::event_of;
using hip::fail;
using hip::need;
using hip::stream_of;

void create(hipEvent_t* handle, unsigned flags) {
  need(handle, "event");
  constexpr unsigned kKnown = hipEventBlockingSync | hipEventDisableTiming | hipEventInterprocess |
                              hipEventReleaseToDevice | hipEventReleaseToSystem | 0x20000000u;
  if (flags & ~kKnown) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
  if ((flags & hipEventInterprocess) && !(flags & hipEventDisableTiming)) {
    fail(hipErrorInvalidValue, "an interprocess event must have timing disabled");
  }
  auto event = std::make_shared<rt::Event>(rt::current_device().id, flags);
  *handle = reinterpret_cast<hipEvent_t>(rt::runtime().events.add(std::move(event)));
}

}  // namespace

HIP_API hipError_t hipEventCreate(hipEvent_t* event) {
  return api("hipEventCreate", [&] { create(event, 0); });
}

HIP_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned flags) {
  return api("hipEventCreateWithFlags", [&] { create(event, flags); });
}

HIP_API hipError_t hipEventDestroy(hipEvent_t event) {
  return api("hipEventDestroy", [&] {
    if (!rt::runtime().events.remove(event)) {
      fail(hipErrorInvalidHandle, "event ", rt::hex(event), " does not exist");
    }
  });
}

HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  return api("hipEventRecord", [&] { hip::record_event(event, stream_of(stream)); });
}

HIP_API hipError_t hipEventSynchronize(hipEvent_t handle) {
  return api("hipEventSynchronize", [&] {
    const auto record = ended(*event_of(handle));
    if (!record) return;  // never recorded counts as reached
    rt::wait(record->marker);
    hip::throw_report(rt::take_report(*record->marker.stream));
  });
}

HIP_API hipError_t hipEventQuery(hipEvent_t handle) {
  return api("hipEventQuery", [&] {
    const auto record = ended(*event_of(handle));
    if (!record) return hipSuccess;
    if (!rt::poll(record->marker)) return hipErrorNotReady;
    hip::throw_report(rt::take_report(*record->marker.stream));
    return hipSuccess;
  });
}

HIP_API hipError_t hipEventElapsedTime(float* milliseconds, hipEvent_t start, hipEvent_t stop) {
  return api("hipEventElapsedTime", [&] {
    need(milliseconds, "ms");
    const auto from = event_of(start), to = event_of(stop);
    if ((from->flags | to->flags) & hipEventDisableTiming) {
      fail(hipErrorInvalidHandle, "an event was created without timing");
    }
    if (from->device != to->device)
      fail(hipErrorInvalidHandle, "the events are of different devices");
    const auto first = ended(*from), last = ended(*to);
    if (!first || !last) fail(hipErrorInvalidHandle, "an event was never recorded");
    if (!rt::poll(first->marker) || !rt::poll(last->marker)) return hipErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(last->time - first->time).count();
    return hipSuccess;
  });
}

HIP_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned flags) {
  return api("hipStreamWaitEvent", [&] {
    const auto waiter = stream_of(stream);
    if (flags > 1) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
    const auto record = event_of(event)->last();
    if (!record) return;
    if (record->capture) return rt::join_capture(*waiter, record->capture, record->nodes);
    if (rt::capture_of(*waiter)) {
      fail(hipErrorStreamCaptureIsolation,
           "a stream in a capture must not wait for work outside of it");
    }
    if (emu::is_mutant("stream_order")) return;
    if (record->marker.stream == waiter) return;  // a stream need not wait for itself
    waiter->enqueue(
        {[]() -> std::optional<rt::Failure> { return std::nullopt; }, {record->marker}, true});
  });
}
