#include "core/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace emu {
namespace {

// A value that does not make sense is told and ignored: a launch is no place to fail.
void ignored(const char* name, const char* value, const char* wanted) {
  std::fprintf(stderr, "hipgemm emulator: %s=%s ignored, expected %s\n", name, value, wanted);
}

uint64_t number(const char* name, uint64_t fallback, uint64_t least, uint64_t most) {
  const char* text = std::getenv(name);
  if (!text || !*text) return fallback;
  char* end = nullptr;
  const unsigned long long value = std::strtoull(text, &end, 10);
  if (*end || *text == '-' || value < least) {
    ignored(name, text, "a positive number");
    return fallback;
  }
  return value > most ? most : value;
}

}  // namespace

Options read_options() {
  Options o;
  if (const char* m = std::getenv("HIPGEMM_EMULATOR_MEMORY"); m && *m) {
    if (!std::strcmp(m, "early"))
      o.late = false;
    else if (std::strcmp(m, "late"))
      ignored("HIPGEMM_EMULATOR_MEMORY", m, "late or early");
  }
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  o.threads = static_cast<unsigned>(number("HIPGEMM_EMULATOR_THREADS", cores, 1, 1024));
  o.budget = number("HIPGEMM_EMULATOR_BUDGET", 20'000'000'000, 1, UINT64_MAX);
  if (const char* c = std::getenv("HIPGEMM_EMULATOR_CPU")) o.cpu = c;
  return o;
}

}  // namespace emu
