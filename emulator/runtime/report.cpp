#include "runtime/report.hpp"

#include <cstdio>

#include "runtime/options.hpp"

namespace rt {
namespace {

struct ErrorSlot {
  hipError_t error = hipSuccess;
  std::string report;
};
thread_local ErrorSlot error_slot;

// Names come from files that may be damaged; a report is always printable ASCII.
std::string printable(const std::string& report) {
  std::string result;
  for (const char c : report) {
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      char buffer[8];
      std::snprintf(buffer, sizeof buffer, "\\x%02x", static_cast<unsigned char>(c));
      result += c == '\n' ? "\n" : buffer;
    }
  }
  return result;
}

}  // namespace

std::string hex(uint64_t value) {
  char buffer[20];
  std::snprintf(buffer, sizeof buffer, "0x%llx", static_cast<unsigned long long>(value));
  return buffer;
}

const char* error_name(hipError_t code) {
  switch (code) {
#define X(name, value, text) \
  case name:                 \
    return #name;
#include "hip/errors.def"
#undef X
  }
  return nullptr;
}

hipError_t record_error(hipError_t code, const char* function, const char* what) noexcept {
  error_slot.error = code;
  try {
    error_slot.report = printable(std::string(function) + (*what ? ": " : "") + what);
    if (options().verbose) std::fprintf(stderr, "hipgemm emulator: %s\n", last_report());
  } catch (...) {  // out of memory for the text: the code alone
    error_slot.report.clear();
  }
  return code;
}

hipError_t last_error(bool reset) noexcept {
  const hipError_t error = error_slot.error;
  if (reset) error_slot.error = hipSuccess;
  return error;
}

const char* last_report() noexcept { return error_slot.report.c_str(); }

}  // namespace rt
