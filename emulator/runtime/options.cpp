#include "runtime/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace rt {
namespace {

// A value that is not understood is said on stderr and ignored: a library cannot refuse to load.
void ignore(const char* name, const char* value, const char* required) {
  std::fprintf(stderr, "hipgemm emulator: %s must be %s; got '%s' (ignored)\n", name, required,
               value);
}

Options read_options() {
  Options result;
  if (const char* value = std::getenv("HIPGEMM_EMULATOR_DEVICES")) {
    char* end = nullptr;
    const long count = std::strtol(value, &end, 10);
    if (end != value && *end == 0 && count >= 0 && count <= 64) {
      result.devices = static_cast<int>(count);
    } else {
      ignore("HIPGEMM_EMULATOR_DEVICES", value, "a number from 0 to 64");
    }
  }
  if (const char* value = std::getenv("HIPGEMM_EMULATOR_ARCH")) {
    if (*value && std::strlen(value) < 200) result.arch = value;
  }
  if (const char* value = std::getenv("HIPGEMM_EMULATOR_ASYNC")) {
    if (!std::strcmp(value, "eager")) {
      result.late = false;
    } else if (std::strcmp(value, "late")) {
      ignore("HIPGEMM_EMULATOR_ASYNC", value, "late or eager");
    }
  }
  const char* verbose = std::getenv("HIPGEMM_EMULATOR_VERBOSE");
  result.verbose = verbose && *verbose && std::strcmp(verbose, "0");
  return result;
}

}  // namespace

const Options& options() {
  static const Options* const instance = new Options(read_options());  // outlives exit handlers
  return *instance;
}

}  // namespace rt
