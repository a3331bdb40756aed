// Picks the CPU level whose instruction semantics run here.
#include <span>
#include <string>
#include <string_view>

#include "core/environment.hpp"
#include "core/launch.hpp"
#include "core/lowering.hpp"
#include "core/options.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace emu {
namespace {

constexpr const char* kVariable = "HIPGEMM_EMULATOR_CPU";

struct Chosen {
  Semantics semantics;
  std::string fault;
};
const Chosen& chosen();

}  // namespace

#if defined(__x86_64__)
// Null is a level that this library was built without (LEVELS of the Makefile).
namespace isa_v2 {
[[gnu::weak]] void install(Semantics&, const Arch&);
}
namespace isa_v3 {
[[gnu::weak]] void install(Semantics&, const Arch&);
}
namespace isa_v4 {
[[gnu::weak]] void install(Semantics&, const Arch&);
}
namespace {

struct Level {
  const char* name;
  void (*install)(Semantics&, const Arch&);
};
const Level kLevels[] = {{"v2", isa_v2::install}, {"v3", isa_v3::install}, {"v4", isa_v4::install}};

// How many of kLevels this CPU has: what -march=x86-64-v3 and -v4 may use, and the operating system
// saves.
int levels_of_cpu() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 1;
  const unsigned need1 = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
  if ((c & need1) != need1) return 1;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 6) != 6) return 1;
  unsigned b7, c7, d7, a8, b8, c8, d8;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 1;
  if (!__get_cpuid(0x80000001, &a8, &b8, &c8, &d8) || !(c8 & (1u << 5))) return 1;  // LZCNT
  const unsigned need7 = bit_AVX2 | bit_BMI | bit_BMI2;
  if ((b7 & need7) != need7) return 1;
  const unsigned need4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  return (b7 & need4) == need4 && (low & 0xe6) == 0xe6 ? 3 : 2;
}

const Chosen& chosen() {
  static const Chosen instance = [] {
    Chosen c;
    const Level* best = nullptr;
    const Level* asked = nullptr;
    std::string usable;
    const std::string_view forced = variable(kVariable);
    for (const Level& level : std::span(kLevels).first(levels_of_cpu())) {
      if (!level.install) continue;
      best = &level;
      if (forced == level.name) asked = &level;
      usable += std::string(usable.empty() ? "" : ", ") + level.name;
    }
    if (!best) {
      c.fault = "this emulator was built for other CPUs; run: make emulator";
      return c;
    }
    if (!forced.empty() && !asked)
      c.fault = wrong_value(kVariable, forced,
                            usable + ", which this CPU has and the emulator was built for");
    const Level& level = asked ? *asked : *best;
    level.install(c.semantics, arch());
    c.semantics.level = level.name;
    return c;
  }();
  return instance;
}

}  // namespace
#else
namespace isa_base {
void install(Semantics&, const Arch&);
}

namespace {

const Chosen& chosen() {
  static const Chosen instance = [] {
    Chosen c;
    const std::string_view forced = variable(kVariable);
    if (!forced.empty() && forced != "base") c.fault = wrong_value(kVariable, forced, "base");
    isa_base::install(c.semantics, arch());
    c.semantics.level = "base";
    return c;
  }();
  return instance;
}

}  // namespace
#endif

const Semantics& semantics() { return chosen().semantics; }

const std::string& cpu_fault() { return chosen().fault; }

const char* cpu_level() { return semantics().level; }

}  // namespace emu
