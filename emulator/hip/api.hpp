// Common to all exported functions: errors become a code and a report, nothing is thrown
// to the caller, and handles are looked up before use.
#pragma once

#include <exception>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>

#include "hip/hip_types.hpp"
#include "runtime/device.hpp"
#include "runtime/report.hpp"

#define HIP_API extern "C" __attribute__((visibility("default")))

namespace hip {

using rt::fail;

// Runs the body of the API function `name`. The body returns nothing, or hipErrorNotReady.
template <class Body>
hipError_t api(const char* name, Body&& body) noexcept {
  try {
    if (rt::forked()) {
      fail(hipErrorNotInitialized, "HIP was in use before fork(); a forked child cannot use it");
    }
    if constexpr (std::is_void_v<decltype(body())>) {
      body();
      return hipSuccess;
    } else {
      return body();
    }
  } catch (const rt::Error& error) {
    return rt::record_error(error.code, name, error.message.c_str());
  } catch (const std::bad_alloc&) {
    return rt::record_error(hipErrorOutOfMemory, name, "the host is out of memory");
  } catch (const std::system_error& error) {  // a thread that cannot start
    return rt::record_error(hipErrorOutOfMemory, name, error.what());
  } catch (const std::exception& error) {
    return rt::record_error(hipErrorUnknown, name, error.what());
  } catch (...) {
    return rt::record_error(hipErrorUnknown, name, "");
  }
}

// Runs the body of a function without an error code: returns `otherwise` if it fails.
template <class T, class Body>
T plain(T otherwise, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    return otherwise;
  }
}

inline void need(const void* pointer, const char* what) {
  if (!pointer) fail(hipErrorInvalidValue, what, " must not be null");
}

// Null, the two special handles, or one from hipStreamCreate.
std::shared_ptr<rt::Stream> stream_of(hipStream_t handle);
inline const hipStream_t kLegacy = reinterpret_cast<hipStream_t>(1);     // the null stream
inline const hipStream_t kPerThread = reinterpret_cast<hipStream_t>(2);  // the calling thread's own

// Waits for the stream and throws its pending error.
void synchronize(rt::Stream& stream);
void throw_report(const rt::Report& report);

}  // namespace hip
