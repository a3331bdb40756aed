// Powers of 2 of many values: what softmax computes most of.
#pragma once

#include "common/functions.hpp"
#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// How powers of 2 are kept until their sum is known, and the product with a factor that follows
// from it. Exponents are not greater than 0. No power that counts is subnormal meanwhile.
#if defined(__NVPTX__)
// As their square roots, to 2 ulp, which are less than 2^-75 where the power is 0. By the
// instruction.
struct KeptPowers {
  static constexpr f32 kOfExponent = 0.5f;  // of() takes so much of it
  static constexpr f32 kDown = 1.0f;        // makes 2^0 of the power of 0

  static HIPGEMM_DEVICE f32x4 of(f32x4 x) {
    for (u32 i = 0; i < 4; i++) x[i] = __nvvm_ex2_approx_ftz_f(x[i]);
    return x;
  }
  static HIPGEMM_DEVICE f32x4 added(f32x4 sums, f32x4 kept) {
    return __builtin_elementwise_fma(kept, kept, sums);
  }
  static HIPGEMM_DEVICE f32x4 times(f32x4 kept, f32 factor) {
    return kept * (kept * f32x4(factor));
  }
};
#else
// 2^64 times as large, to 1 ulp, and not less than 2^-88, which is 0 without those 64. For NaN:
// NaN, or a number above 2^127. AMD's instruction takes as long as this polynomial.
struct KeptPowers {
  static constexpr f32 kOfExponent = 1.0f, kUp = 0x1p64f, kDown = 0x1p-64f;

  static HIPGEMM_DEVICE f32x4 of(f32x4 x) {
    for (u32 i = 0; i < 4; i++) x[i] = at_least(-152.0f, x[i]);
    const f32x4 rounded = x + f32x4(kRound), rest = x - (rounded - f32x4(kRound));
    f32x4 power = polynomial(rest, kUp, kUp * 0.693147182f, kUp * 0.240226477f, kUp * 0.0555033237f,
                             kUp * 0.00961843785f, kUp * 0.00133988750f, kUp * 0.000153533547f);
    for (u32 i = 0; i < 4; i++) {
      const f32 integer = rounded[i];
      const u32 n = __builtin_bit_cast(u32, integer) - __builtin_bit_cast(u32, kRound);
      power[i] = times_power_of_two(power[i], static_cast<int>(n));
    }
    return power;
  }
  static HIPGEMM_DEVICE f32x4 added(f32x4 sums, f32x4 kept) { return sums + kept; }
  static HIPGEMM_DEVICE f32x4 times(f32x4 kept, f32 factor) { return kept * f32x4(factor); }
};
#endif

}  // namespace hipgemm
