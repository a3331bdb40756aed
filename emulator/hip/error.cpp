// Error codes: names, texts, and the last one of a thread.
#include "hip/api.hpp"

namespace {

const char* error_text(hipError_t code) {
  switch (code) {
#define X(name, value, text) \
  case name:                 \
    return text;
#include "hip/errors.def"
#undef X
  }
  return nullptr;
}

}  // namespace

HIP_API const char* hipGetErrorName(hipError_t error) {
  const char* name = rt::error_name(error);
  return name ? name : "hipErrorUnknown";
}

HIP_API const char* hipGetErrorString(hipError_t error) {
  const char* text = error_text(error);
  return text ? text : "unknown error";
}

HIP_API hipError_t hipDrvGetErrorName(hipError_t error, const char** name) {
  return hip::api("hipDrvGetErrorName", [&] {
    hip::need(name, "errorString");
    *name = rt::error_name(error);
    if (!*name) hip::fail(hipErrorInvalidValue, "there is no error code ", int{error});
  });
}

HIP_API hipError_t hipDrvGetErrorString(hipError_t error, const char** text) {
  return hip::api("hipDrvGetErrorString", [&] {
    hip::need(text, "errorString");
    *text = error_text(error);
    if (!*text) hip::fail(hipErrorInvalidValue, "there is no error code ", int{error});
  });
}

HIP_API hipError_t hipGetLastError() { return rt::last_error(true); }
HIP_API hipError_t hipPeekAtLastError() { return rt::last_error(false); }
