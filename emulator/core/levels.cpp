// Picks the CPU level whose instruction semantics run here.
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
namespace isa_v2 {
void install(Semantics&);
}
namespace isa_v3 {
void install(Semantics&);
}
namespace isa_v4 {
void install(Semantics&);
}
namespace {

// What -march=x86-64-v3 and -v4 may use, and the operating system saves.
int best_level() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return 2;
  const unsigned need1 = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
  if ((c & need1) != need1) return 2;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & 6) != 6) return 2;
  unsigned b7, c7, d7, a8, b8, c8, d8;
  if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7)) return 2;
  if (!__get_cpuid(0x80000001, &a8, &b8, &c8, &d8) || !(c8 & (1u << 5))) return 2;  // LZCNT
  const unsigned need7 = bit_AVX2 | bit_BMI | bit_BMI2;
  if ((b7 & need7) != need7) return 2;
  const unsigned need4 = bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  return (b7 & need4) == need4 && (low & 0xe6) == 0xe6 ? 4 : 3;
}

const Chosen& chosen() {
  static const Chosen instance = [] {
    Chosen c;
    const int best = best_level();
    int level = best;
    if (const std::string_view forced = variable(kVariable); !forced.empty()) {
      level = forced.size() == 2 && forced[0] == 'v' ? forced[1] - '0' : 0;
      if (level < 2 || level > best) {
        const std::string wanted = "v2" + (best > 2 ? " to v" + std::to_string(best) : "");
        c.fault = wrong_value(kVariable, forced, wanted + ", which this CPU has");
        level = best;
      }
    }
    Semantics& s = c.semantics;
    if (level == 4)
      isa_v4::install(s), s.level = "v4";
    else if (level == 3)
      isa_v3::install(s), s.level = "v3";
    else
      isa_v2::install(s), s.level = "v2";
    return c;
  }();
  return instance;
}

}  // namespace
#else
namespace isa_base {
void install(Semantics&);
}

namespace {

const Chosen& chosen() {
  static const Chosen instance = [] {
    Chosen c;
    const std::string_view forced = variable(kVariable);
    if (!forced.empty() && forced != "base") c.fault = wrong_value(kVariable, forced, "base");
    isa_base::install(c.semantics);
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
