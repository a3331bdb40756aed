// Contexts of the driver API: each device has one, its primary context, which is the device.
#include "hip/api.hpp"
#include "hip/properties.hpp"

namespace {

using hip::api;
using hip::fail;
using hip::need;

thread_local std::vector<int> pushed;  // devices that were current before hipCtxPushCurrent

hipCtx_t context(rt::Device& device) { return reinterpret_cast<hipCtx_t>(&device); }

int device_of(hipCtx_t handle) {
  for (const auto& device : rt::runtime().devices) {
    if (context(*device) == handle) return device->id;
  }
  fail(hipErrorInvalidContext, "context ", rt::hex(handle), " does not exist");
}

}  // namespace

HIP_API hipError_t hipCtxCreate(hipCtx_t* result, unsigned, hipDevice_t id) {
  return api("hipCtxCreate", [&] {
    need(result, "ctx");
    rt::Device& device = rt::device(id);
    pushed.push_back(rt::current_device().id);
    rt::set_current_device(id);
    *result = context(device);
  });
}

HIP_API hipError_t hipCtxDestroy(hipCtx_t handle) {
  return api("hipCtxDestroy", [&] {
    const int id = device_of(handle);
    if (id == rt::current_device().id && !pushed.empty()) {
      rt::set_current_device(pushed.back());
      pushed.pop_back();
    }
  });
}

HIP_API hipError_t hipCtxPushCurrent(hipCtx_t handle) {
  return api("hipCtxPushCurrent", [&] {
    const int id = device_of(handle);
    pushed.push_back(rt::current_device().id);
    rt::set_current_device(id);
  });
}

HIP_API hipError_t hipCtxPopCurrent(hipCtx_t* result) {
  return api("hipCtxPopCurrent", [&] {
    if (pushed.empty()) fail(hipErrorInvalidContext, "no context was pushed");
    if (result) *result = context(rt::current_device());
    rt::set_current_device(pushed.back());
    pushed.pop_back();
  });
}

HIP_API hipError_t hipCtxSetCurrent(hipCtx_t handle) {
  return api("hipCtxSetCurrent", [&] {
    if (handle) rt::set_current_device(device_of(handle));
  });
}

HIP_API hipError_t hipCtxGetCurrent(hipCtx_t* result) {
  return api("hipCtxGetCurrent", [&] {
    need(result, "ctx");
    *result = context(rt::current_device());
  });
}

HIP_API hipError_t hipCtxGetDevice(hipDevice_t* id) {
  return api("hipCtxGetDevice", [&] {
    need(id, "device");
    *id = rt::current_device().id;
  });
}

HIP_API hipError_t hipCtxGetApiVersion(hipCtx_t handle, unsigned* version) {
  return api("hipCtxGetApiVersion", [&] {
    need(version, "apiVersion");
    if (handle) device_of(handle);
    *version = 4;
  });
}

HIP_API hipError_t hipCtxGetFlags(unsigned* flags) {
  return api("hipCtxGetFlags", [&] {
    need(flags, "flags");
    *flags = rt::current_device().flags;
  });
}

HIP_API hipError_t hipCtxSynchronize() {
  return api("hipCtxSynchronize",
             [&] { hip::throw_report(rt::drain_and_report(rt::current_device())); });
}

HIP_API hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* result, hipDevice_t id) {
  return api("hipDevicePrimaryCtxRetain", [&] {
    need(result, "pctx");
    *result = context(rt::device(id));
  });
}

HIP_API hipError_t hipDevicePrimaryCtxRelease(hipDevice_t id) {
  return api("hipDevicePrimaryCtxRelease", [&] { rt::device(id); });
}

HIP_API hipError_t hipDevicePrimaryCtxGetState(hipDevice_t id, unsigned* flags, int* active) {
  return api("hipDevicePrimaryCtxGetState", [&] {
    const rt::Device& device = rt::device(id);
    if (flags) *flags = device.flags;
    if (active) *active = 1;
  });
}

HIP_API hipError_t hipDevicePrimaryCtxSetFlags(hipDevice_t id, unsigned flags) {
  return api("hipDevicePrimaryCtxSetFlags", [&] { rt::device(id).flags = flags; });
}
