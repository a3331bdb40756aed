// Powers of 2 of many values: what softmax computes most of.
#pragma once

#include "common/functions.hpp"
#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// power * 2^n, both normal numbers, where rounded == n + kRound. Without instructions for that the
// exponent is added as a field: it makes 2^128 less an ulp of the one NaN that arithmetic has
// there.
HIPGEMM_DEVICE f32 times_power(f32 power, f32 rounded) {
  const u32 n = __builtin_bit_cast(u32, rounded) - __builtin_bit_cast(u32, kRound);
#if defined(__AMDGCN__)
  return times_power_of_two(power, static_cast<int>(n));
#else
  return __builtin_bit_cast(f32, __builtin_bit_cast(u32, power) + (n << 23));
#endif
}

// 2^(x + 64) to 1 ulp, for x <= 0: so far up, none that counts is subnormal. Not less than 2^-88,
// which is 0 without those 64. For NaN: NaN, or a number above 2^127.
HIPGEMM_DEVICE f32x4 exp2_up(f32x4 x) {
  constexpr f32 kUp = 0x1p64f;
  for (u32 i = 0; i < 4; i++) x[i] = at_least(-152.0f, x[i]);
  const f32x4 rounded = x + f32x4(kRound), rest = x - (rounded - f32x4(kRound));
  f32x4 power = polynomial(rest, kUp, kUp * 0.693147182f, kUp * 0.240226477f, kUp * 0.0555033237f,
                           kUp * 0.00961843785f, kUp * 0.00133988750f, kUp * 0.000153533547f);
  for (u32 i = 0; i < 4; i++) power[i] = times_power(power[i], rounded[i]);
  return power;
}

}  // namespace hipgemm
