#include "core/options.hpp"

#include <algorithm>
#include <bit>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "core/environment.hpp"
#include "core/mutant.hpp"

namespace emu {
namespace {

uint64_t number(const char* name, uint64_t fallback, uint64_t most, std::string& error) {
  const std::string_view text = variable(name);
  if (text.empty()) return fallback;
  const auto value = whole_number(text);
  if (!value || !*value) {
    error = wrong_value(name, text, "a positive number");
    return fallback;
  }
  return std::min(*value, most);
}

struct Choice {
  int value = 0;
  uint64_t seed = 1;
};

// One of the names; a seed may follow "random".
std::optional<Choice> parse(std::string_view text, std::span<const std::string_view> names) {
  for (size_t k = 0; k < names.size(); ++k)
    if (text == names[k]) return Choice{static_cast<int>(k), 1};
  constexpr std::string_view kRandom = "random:";
  if (!text.starts_with(kRandom)) return {};
  const auto seed = whole_number(text.substr(kRandom.size()));
  return seed ? std::optional(Choice{2, *seed}) : std::nullopt;
}

// A choice by the environment, or by a function of the library for later launches.
class Mode {
 public:
  // "random" is the third name.
  Mode(const char* variable, std::initializer_list<std::string_view> names)
      : variable_(variable), names_(names) {}

  Choice get(std::string& error) {
    {
      std::lock_guard lock(mutex_);
      if (forced_) return *forced_;
    }
    const std::string_view text = variable(variable_);
    if (text.empty()) return {};
    if (const auto c = parse(text, names_)) return *c;
    std::string wanted;
    for (const auto name : names_) wanted += std::string(name) + ", ";
    error = wrong_value(variable_, text, wanted + "or random:SEED");
    return {};
  }
  // Null: by the environment. False if the text is invalid.
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
  const Choice memory = memory_mode().get(o.error), waves = wave_mode().get(o.error);
  o.memory = static_cast<MemoryMode>(memory.value);
  o.memory_seed = memory.seed;
  o.waves = static_cast<WaveOrder>(waves.value);
  o.wave_seed = waves.seed;
  static const unsigned cores = std::max(1u, std::thread::hardware_concurrency());
  o.threads = static_cast<unsigned>(number("HIPGEMM_EMULATOR_THREADS", cores, 1024, o.error));
  o.findings = number("HIPGEMM_EMULATOR_FINDINGS", 1, 1'000'000, o.error);
  o.budget = number("HIPGEMM_EMULATOR_BUDGET", 20'000'000'000, UINT64_MAX, o.error);
  if (o.error.empty()) o.error = cpu_fault();
  if (o.error.empty()) o.error = mutant_fault();
  return o;
}

uint64_t nth_workgroup(const Options& options, uint64_t n, uint64_t count) {
  if (options.waves == WaveOrder::reverse) return count - 1 - n;
  if (options.waves != WaveOrder::random || count < 2) return n;
  // Steps that can be undone, so no two meet, on as many bits as it takes; numbers that are too
  // large are mixed again.
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
// null leaves it to these. Non-zero, and no change, if the text is invalid.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_set_memory(
    const char* text) {
  return emu::memory_mode().force(text) ? 0 : 1;
}
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_set_waves(const char* text) {
  return emu::wave_mode().force(text) ? 0 : 1;
}
