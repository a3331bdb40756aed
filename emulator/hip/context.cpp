// Contexts of the driver API: each device has its primary one, which is the device itself.
#include "hip/api.hpp"

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

HIP_API hipError_t hipDevicePrimaryCtxRetain(hipCtx_t* result, hipDevice_t id) {
  return api("hipDevicePrimaryCtxRetain", [&] {
    need(result, "pctx");
    *result = context(rt::device(id));
  });
}

HIP_API hipError_t hipDevicePrimaryCtxRelease(hipDevice_t id) {
  return api("hipDevicePrimaryCtxRelease", [&] { rt::device(id); });
}
