#include "core/options.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

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

struct Choice {
  int value = 0;
  uint64_t seed = 1;
};

// One of the names; behind "random" a seed may follow.
std::optional<Choice> parse(std::string_view text, std::span<const std::string_view> names) {
  for (size_t k = 0; k < names.size(); ++k)
    if (text == names[k]) return Choice{static_cast<int>(k), 1};
  constexpr std::string_view kRandom = "random:";
  if (!text.starts_with(kRandom)) return {};
  const char* const end = text.data() + text.size();
  Choice c{2, 0};
  const auto parsed = std::from_chars(text.data() + kRandom.size(), end, c.seed);
  return parsed.ptr == end && parsed.ec == std::errc() ? std::optional(c) : std::nullopt;
}

// A choice that the environment makes, or a function of the library for the launches that follow.
class Mode {
 public:
  // "random" is the third name.
  Mode(const char* variable, std::initializer_list<std::string_view> names)
      : variable_(variable), names_(names) {}

  Choice get() {
    {
      std::lock_guard lock(mutex_);
      if (forced_) return *forced_;
    }
    const char* text = std::getenv(variable_);
    if (!text || !*text) return {};
    if (const auto c = parse(text, names_)) return *c;
    std::string expected;
    for (const auto name : names_) expected += std::string(name) + ", ";
    ignored(variable_, text, (expected + "or random:SEED").c_str());
    return {};
  }
  // Null leaves it to the environment. False if the text makes no sense.
  bool force(const char* text) {
    const auto c = text ? parse(text, names_) : std::nullopt;
    if (text && !c) return false;
    std::lock_guard lock(mutex_);
    forced_ = c;
    return true;
  }

 private:
  const char* const variable_;
  const std::vector<std::string_view> names_;
  std::mutex mutex_;
  std::optional<Choice> forced_;
};

Mode& memory_mode() {
  static Mode& m =
      *new Mode("HIPGEMM_EMULATOR_MEMORY", {"late", "early", "random", "late-vm", "late-lgkm"});
  return m;
}
Mode& wave_mode() {
  static Mode& m =
      *new Mode("HIPGEMM_EMULATOR_WAVES", {"forward", "reverse", "random", "lockstep"});
  return m;
}

}  // namespace

Options read_options() {
  Options o;
  const Choice memory = memory_mode().get(), waves = wave_mode().get();
  o.memory = static_cast<MemoryMode>(memory.value);
  o.memory_seed = memory.seed;
  o.waves = static_cast<WaveOrder>(waves.value);
  o.wave_seed = waves.seed;
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  o.threads = static_cast<unsigned>(number("HIPGEMM_EMULATOR_THREADS", cores, 1, 1024));
  o.budget = number("HIPGEMM_EMULATOR_BUDGET", 20'000'000'000, 1, UINT64_MAX);
  if (const char* c = std::getenv("HIPGEMM_EMULATOR_CPU")) o.cpu = c;
  return o;
}

uint64_t nth_workgroup(const Options& options, uint64_t n, uint64_t count) {
  if (options.waves == WaveOrder::reverse) return count - 1 - n;
  if (options.waves != WaveOrder::random || count < 2) return n;
  // Steps that can be undone, so no two meet, on as many bits as it takes; numbers that are too
  // large are sent on.
  const int bits = std::bit_width(count - 1);
  const uint64_t mask = ~uint64_t{0} >> (64 - bits);
  do {
    uint64_t seed = options.wave_seed;
    for (int round = 0; round < 3; ++round) {
      n = (n * (next_random(seed) | 1) + next_random(seed)) & mask;
      n ^= n >> (bits + 1) / 2;
    }
  } while (n >= count);
  return n;
}

}  // namespace emu

// As HIPGEMM_EMULATOR_MEMORY and HIPGEMM_EMULATOR_WAVES, for the launches that run from now on;
// null leaves it to these. Non-zero, and no change, if the text makes no sense.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_set_memory(
    const char* text) {
  return emu::memory_mode().force(text) ? 0 : 1;
}
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_set_waves(const char* text) {
  return emu::wave_mode().force(text) ? 0 : 1;
}
