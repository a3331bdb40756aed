// Picks the CPU level whose instruction semantics run here.
#include <cstdio>
#include <cstring>

#include "core/launch.hpp"
#include "core/lowering.hpp"
#include "core/options.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace emu {

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

}  // namespace

const Semantics& semantics() {
  static const Semantics chosen = [] {
    int level = best_level();
    const std::string wanted = read_options().cpu;
    const char* const forced = wanted.c_str();
    if (forced[0] == 'v' && forced[1] >= '2' && forced[1] <= '4' && !forced[2]) {
      if (forced[1] - '0' <= level)
        level = forced[1] - '0';
      else
        std::fprintf(stderr, "hipgemm emulator: this CPU has level v%d only, not %s\n", level,
                     forced);
    } else if (*forced) {
      std::fprintf(stderr,
                   "hipgemm emulator: HIPGEMM_EMULATOR_CPU=%s ignored, expected v2, v3, v4\n",
                   forced);
    }
    Semantics s;
    if (level == 4)
      isa_v4::install(s), s.level = "v4";
    else if (level == 3)
      isa_v3::install(s), s.level = "v3";
    else
      isa_v2::install(s), s.level = "v2";
    return s;
  }();
  return chosen;
}
#else
namespace isa_base {
void install(Semantics&);
}

const Semantics& semantics() {
  static const Semantics chosen = [] {
    Semantics s;
    isa_base::install(s);
    s.level = "base";
    return s;
  }();
  return chosen;
}
#endif

const char* cpu_level() { return semantics().level; }

}  // namespace emu
