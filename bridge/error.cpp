// Errors: the last one of each thread, names and texts.
#include <mutex>

#include "api.hpp"

namespace {

thread_local hipError_t last = hipSuccess;
std::mutex report_mutex;
std::string last_report;
thread_local std::string returned_report;

struct Row {
  hipError_t code;
  const char* name;
  const char* text;
};
constexpr Row kRows[] = {
#define X(name, value, text) {name, #name, text},
#include "hip/errors.def"
#undef X
};
const Row* find(hipError_t code) {
  for (const Row& row : kRows)
    if (row.code == code) return &row;
  return nullptr;
}

}  // namespace

namespace bridge {

void fail(hipError_t code, std::string message) { throw Error{code, std::move(message)}; }

hipError_t record(const char* function, hipError_t code, const char* what) noexcept {
  last = code;
  const std::lock_guard lock(report_mutex);
  try {
    last_report = std::string(function) + ": " + what;
  } catch (const std::bad_alloc&) {  // the code alone
    last_report.clear();
  }
  return code;
}

hipError_t check(cuda::Result result) {
  if (result == 0) return hipSuccess;
  if (result == hipErrorNotReady) return last = hipErrorNotReady;
  const char *name = nullptr, *text = nullptr;
  cuda::driver().error_name(result, &name);
  cuda::driver().error_string(result, &text);
  const auto code = static_cast<hipError_t>(result);
  fail(find(code) ? code : hipErrorUnknown,
       std::string(name ? name : "unknown error") + (text ? std::string(" (") + text + ")" : ""));
}

}  // namespace bridge

HIP_API hipError_t hipGetLastError() {
  const hipError_t error = last;
  last = hipSuccess;
  return error;
}
HIP_API hipError_t hipPeekAtLastError() { return last; }
HIP_API const char* hipGetErrorName(hipError_t code) {
  const Row* row = find(code);
  return row ? row->name : "hipErrorUnknown";
}
HIP_API const char* hipGetErrorString(hipError_t code) {
  const Row* row = find(code);
  return row ? row->text : "unknown error";
}
HIP_API hipError_t hipDrvGetErrorName(hipError_t code, const char** name) {
  if (!name) return hipErrorInvalidValue;
  *name = hipGetErrorName(code);
  return hipSuccess;
}
HIP_API hipError_t hipDrvGetErrorString(hipError_t code, const char** text) {
  if (!text) return hipErrorInvalidValue;
  *text = hipGetErrorString(code);
  return hipSuccess;
}

// The CUDA driver's text of the last error, for the exception.
HIP_API const char* hipgemm_bridge_last_report() {
  const std::lock_guard lock(report_mutex);
  try {
    returned_report = last_report;
  } catch (const std::bad_alloc&) {
    returned_report.clear();
  }
  return returned_report.c_str();
}
