// Errors that are returned to the caller, and the text that explains the last one.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>

#include "hip/hip_types.hpp"

namespace rt {

// Thrown anywhere below the C API, which returns the code and stores the text as the report.
struct Error {
  hipError_t code;
  std::string message;
};

template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

template <class... Parts>
[[noreturn]] void fail(hipError_t code, const Parts&... parts) {
  throw Error{code, text(parts...)};
}

std::string hex(uint64_t value);
inline std::string hex(const void* pointer) { return hex(reinterpret_cast<uint64_t>(pointer)); }
const char* error_name(hipError_t code);

// Remembers an error of an API function as this thread's last one (hipGetLastError), with a report
// of both where there is memory for it, and prints the report when HIPGEMM_EMULATOR_VERBOSE is set.
// Returns the code.
hipError_t record_error(hipError_t code, const char* function, const char* what) noexcept;
hipError_t last_error(bool reset) noexcept;
// Of this thread's last failed call; valid until the thread's next failing call. "" if none.
const char* last_report() noexcept;

}  // namespace rt
