// Common to all exported functions: a current context, errors as codes, handles looked up.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "driver.hpp"
#include "hip/hip_types.hpp"

#define HIP_API extern "C" __attribute__((visibility("default")))

namespace bridge {

struct Error {
  hipError_t code;
  std::string message;
};

[[noreturn]] void fail(hipError_t code, std::string message);
inline void need(const void* pointer, const char* what) {
  if (!pointer) fail(hipErrorInvalidValue, std::string(what) + " must not be null");
}

// Remembers an error for hipGetLastError and, where there is memory for it, for the report.
hipError_t record(const char* function, hipError_t code, const char* what) noexcept;
// Throws unless the driver succeeded; not ready is not an error.
hipError_t check(cuda::Result result);

// Devices are opened at their first use. Each thread's current one is that of the driver's current
// context, so that other users of CUDA in this process use the same device.
struct Devices {
  std::vector<cuda::Device> ids;
};
const Devices& devices();
int current_device();
void set_current_device(int device);
void need_context();  // the first device's, where a thread has none
cuda::Context context(int device);
void check_device(int device);

// Runs the body of an API function, with the current device's context.
template <class Body>
hipError_t api(const char* function, Body&& body, bool with_context = true) noexcept {
  try {
    if (!cuda::driver().problem.empty()) fail(hipErrorNoDevice, cuda::driver().problem);
    if (with_context) need_context();
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return hipSuccess;
    } else {
      return body();
    }
  } catch (const Error& error) {
    return record(function, error.code, error.message.c_str());
  } catch (const std::bad_alloc&) {
    return record(function, hipErrorOutOfMemory, "the host is out of memory");
  } catch (const std::exception& error) {
    return record(function, hipErrorUnknown, error.what());
  }
}

// A stream by its handle: the driver may crash on a destroyed one, HIP returns an error.
cuda::Stream stream_of(hipStream_t handle);
inline cuda::Pointer address(const void* pointer) {
  return reinterpret_cast<cuda::Pointer>(pointer);
}

}  // namespace bridge
