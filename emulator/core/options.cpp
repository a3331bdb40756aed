#include "core/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>
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

// One of three names; behind the third, "random", a seed may follow. 0 if unset.
int choice(const char* name, const char* const (&names)[3], uint64_t& seed) {
  const char* text = std::getenv(name);
  if (!text || !*text) return 0;
  const std::string_view wanted = text, random = names[2];
  for (int k = 0; k < 3; ++k)
    if (wanted == names[k]) return k;
  if (wanted.starts_with(random) && wanted[random.size()] == ':') {
    const char* const digits = text + random.size() + 1;
    char* end = nullptr;
    seed = std::strtoull(digits, &end, 10);
    if (end != digits && !*end) return 2;
  }
  const std::string expected = std::string(names[0]) + ", " + names[1] + ", random or random:SEED";
  ignored(name, text, expected.c_str());
  return 0;
}

}  // namespace

Options read_options() {
  Options o;
  static const char* const modes[] = {"late", "early", "random"};
  o.memory = static_cast<MemoryMode>(choice("HIPGEMM_EMULATOR_MEMORY", modes, o.memory_seed));
  static const char* const orders[] = {"forward", "reverse", "random"};
  o.waves = static_cast<WaveOrder>(choice("HIPGEMM_EMULATOR_WAVES", orders, o.wave_seed));
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  o.threads = static_cast<unsigned>(number("HIPGEMM_EMULATOR_THREADS", cores, 1, 1024));
  o.budget = number("HIPGEMM_EMULATOR_BUDGET", 20'000'000'000, 1, UINT64_MAX);
  if (const char* c = std::getenv("HIPGEMM_EMULATOR_CPU")) o.cpu = c;
  return o;
}

}  // namespace emu
