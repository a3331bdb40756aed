// Numbers of 8 and 4 bits to float32 and back by arithmetic that any machine has.
#pragma once

#include "common/element.hpp"
#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// Put in the places of float32's, their fields are the number but for the exponent's bias, which a
// product takes off, from subnormal numbers too. Machines differ in the bits of a NaN, so those are
// set below.
template <u32 kMantissaBits, u32 kBias>
HIPGEMM_DEVICE f32 widen_fields(u32 sign, u32 magnitude) {
  constexpr u32 kBiases = 127 - kBias;
  const f32 unbiased = __builtin_bit_cast(f32, (127 + kBiases) << 23);
  return __builtin_bit_cast(f32, sign << 31 | magnitude << (23 - kMantissaBits)) * unbiased;
}
HIPGEMM_DEVICE f32 nan_like(f32 x) { return __builtin_copysignf(__builtin_nanf(""), x); }
struct FromE4m3 {
  using Bits = u8;
  static constexpr u32 kBits = 8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = widen_fields<3, 7>(bits >> 7, bits & 0x7f);
    return (bits & 0x7f) == 0x7f ? nan_like(x) : x;
  }
};
struct FromE5m2 {
  using Bits = u8;
  static constexpr u32 kBits = 8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = FromF16::widen(bits << 8);  // the upper half of such a number
    return (bits & 0x7f) > 0x7c ? nan_like(x) : x;
  }
};
struct FromE2m1 {
  using Bits = u8;  // the low half of it
  static constexpr u32 kBits = 4;
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return widen_fields<1, 1>(bits >> 3, bits & 7); }
};

// To nearest even. |x| must not be above the format's greatest number, but x may be NaN, which
// becomes the code of all ones.
template <u32 kBits_, u32 kMantissaBits, u32 kBias>
struct ToSmallFloat {
  static constexpr u32 kBits = kBits_;
  static HIPGEMM_DEVICE u32 round(f32 x) {
    constexpr u32 kDropped = 23 - kMantissaBits;
    constexpr u32 kLeastNormal = (128 - kBias) << 23;
    const u32 bits = __builtin_bit_cast(u32, x);
    const u32 magnitude = bits & 0x7fffffff;
    const u32 rounded = magnitude + (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
    const u32 normal = (rounded >> kDropped) - ((127 - kBias) << kMantissaBits);
    // The last bit of this float is one step of the subnormal numbers: adding it rounds to steps.
    constexpr u32 kSteps = kLeastNormal + (kDropped << 23);
    const u32 subnormal = __builtin_bit_cast(u32, __builtin_bit_cast(f32, magnitude) +
                                                      __builtin_bit_cast(f32, kSteps)) -
                          kSteps;
    constexpr u32 kCodes = (1u << (kBits - 1)) - 1, kInfinity = 0x7f800000;
    const u32 code = magnitude > kInfinity ? kCodes : magnitude < kLeastNormal ? subnormal : normal;
    return code | bits >> 31 << (kBits - 1);
  }
};
using ToE4m3 = ToSmallFloat<8, 3, 7>;
using ToE5m2 = ToSmallFloat<8, 2, 15>;

// Four numbers, the first in the low bits.
template <class To>
HIPGEMM_DEVICE u32 pack_codes(f32x4 x) {
  u32 codes = 0;
#pragma unroll
  for (u32 e = 0; e < 4; e++) {
    const f32 value = x[e];
    codes |= To::round(value) << e * To::kBits;
  }
  return codes;
}

// Eight numbers times `up` to e2m1, the first in the low bits. Codes 0 to 4 stand for numbers 1/2
// apart, 4 to 6 for numbers 1 apart, 6 and 7 for numbers 2 apart. Adding a float whose last bit is
// worth one such step rounds to steps. Each of the three sums gives the code where its step is the
// right one, and no less than the code elsewhere: the least of them is the code. A number up to 8,
// the most there may be, can give 8, which becomes 7.
HIPGEMM_DEVICE u32 pack_e2m1(f32x4 low, f32x4 high, f32 up) {
  constexpr f32 kHalves = 0x1p22f;  // floats from here on lie 1/2 apart
  constexpr u32 kBits = 4, kBase = __builtin_bit_cast(u32, kHalves);
  u32 codes = 0, bits[8];
#pragma unroll
  for (u32 e = 0; e < 8; e++) {
    const f32 x = e < 4 ? low[e] : high[e - 4];
    const auto rounded = [x](f32 up, f32 from) HIPGEMM_INLINE {
      return __builtin_bit_cast(u32, __builtin_fmaf(__builtin_fabsf(x), up, from));
    };
    bits[e] = __builtin_bit_cast(u32, x);
    const u32 halves = rounded(up, kHalves), ones = rounded(up / 2, kHalves + 1),
              twos = rounded(up / 4, kHalves + 2);
    codes += (smaller(smaller(halves, ones), twos) - kBase) << e * kBits;
  }
  codes -= (codes & 0x88888888u) >> 3;
  constexpr u32 kSigns = 0x80808080u;
  const u32 even = high_bytes(bits[0], bits[2], bits[4], bits[6]);
  const u32 odd = high_bytes(bits[1], bits[3], bits[5], bits[7]);
  return codes | (odd & kSigns) | (even & kSigns) >> kBits;
}
template <class From>
HIPGEMM_DEVICE f32x4 unpack_codes(u32 codes) {
  f32x4 x;
#pragma unroll
  for (u32 e = 0; e < 4; e++)
    x[e] = From::widen(codes >> e * From::kBits & ((1u << From::kBits) - 1));
  return x;
}

}  // namespace hipgemm
