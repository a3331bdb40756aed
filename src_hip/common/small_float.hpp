// Conversions between float32 and floats of 8, 6 and 4 bits, by arithmetic that any machine has.
#pragma once

#include "common/element_types.hpp"
#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A small float in the highest bits of a word: its fields, moved to those of float32, give its
// value but for the exponent's bias, which a multiplication corrects, also of subnormals. Machines
// differ in the bits of a NaN, so those are set below.
template <u32 kBits, u32 kMantissaBits, u32 kBias>
HIPGEMM_DEVICE f32 widen_highest(u32 word) {
  constexpr u32 kBiases = 127 - kBias, kShift = 9 - kBits + kMantissaBits;
  constexpr u32 kMagnitude = ((1u << (kBits - 1)) - 1) << (23 - kMantissaBits);
  const f32 unbiased = __builtin_bit_cast(f32, (127 + kBiases) << 23);
  const int moved = static_cast<int>(word) >> kShift;  // with copies of the sign above
  return __builtin_bit_cast(f32, static_cast<u32>(moved) & (0x80000000u | kMagnitude)) * unbiased;
}
HIPGEMM_DEVICE f32 nan_like(f32 x) { return __builtin_copysignf(__builtin_nanf(""), x); }
struct FromE4m3 {
  using Bits = u8;
  static constexpr u32 kBits = 8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = widen_highest<8, 3, 7>(bits << 24);
    return __builtin_fabsf(x) > 448 ? nan_like(x) : x;
  }
};
struct FromE5m2 {
  using Bits = u8;
  static constexpr u32 kBits = 8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = FromF16::widen(bits << 8);  // the upper half of an f16
    return (bits & 0x7f) > 0x7c ? nan_like(x) : x;
  }
};
struct FromE2m1 {
  using Bits = u8;  // the low half of it
  static constexpr u32 kBits = 4;
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return widen_highest<4, 1, 1>(bits << 28); }
};
template <u32 kMantissaBits, u32 kBias>
struct From6Bits {
  static constexpr u32 kBits = 6;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    return widen_highest<6, kMantissaBits, kBias>(bits << 26);
  }
};
using FromE2m3 = From6Bits<3, 1>;
using FromE3m2 = From6Bits<2, 3>;

// To nearest even, 8 bits. |x| must not exceed the format's largest value, but x may be NaN, which
// becomes all ones.
template <u32 kMantissaBits, u32 kBias>
struct To8Bits {
  static HIPGEMM_DEVICE u32 round(f32 x) {
    constexpr u32 kDropped = 23 - kMantissaBits;
    constexpr u32 kLeastNormal = (128 - kBias) << 23;
    const u32 bits = __builtin_bit_cast(u32, x);
    const u32 magnitude = bits & 0x7fffffff;
    const u32 rounded = magnitude + (1u << (kDropped - 1)) - 1 + (magnitude >> kDropped & 1);
    const u32 normal = (rounded >> kDropped) - ((127 - kBias) << kMantissaBits);
    // The last bit of this float is the spacing of subnormals: adding it rounds to multiples of
    // that.
    constexpr u32 kSteps = kLeastNormal + (kDropped << 23);
    const u32 subnormal = __builtin_bit_cast(u32, __builtin_bit_cast(f32, magnitude) +
                                                      __builtin_bit_cast(f32, kSteps)) -
                          kSteps;
    constexpr u32 kInfinity = 0x7f800000;
    const u32 encoded = magnitude > kInfinity      ? 0x7f
                        : magnitude < kLeastNormal ? subnormal
                                                   : normal;
    return encoded | bits >> 31 << 7;
  }
};
using ToE4m3 = To8Bits<3, 7>;
using ToE5m2 = To8Bits<2, 15>;

// Four values, the first in the low bits.
template <class To>
HIPGEMM_DEVICE u32 pack_four(f32x4 x) {
  u32 packed = 0;
#pragma unroll
  for (u32 e = 0; e < 4; e++) {
    const f32 value = x[e];
    packed |= To::round(value) << e * 8;
  }
  return packed;
}

// To nearest even, 6 bits, but for the sign. x, not negative, may be so large that the next power
// of two after the format's largest value is the nearest: 32, one more than the largest code.
template <u32 kMantissaBits, u32 kBias>
struct To6Bits {
  static HIPGEMM_DEVICE u32 round(f32 x) {
    constexpr u32 kDropped = 23 - kMantissaBits, kLeastNormal = (128 - kBias) << 23;
    constexpr u32 kLarger = kDropped << 23;
    // 2^exponent; one exponent for all subnormals.
    const u32 power = larger(__builtin_bit_cast(u32, x), kLeastNormal) & 0x7f800000u;
    // The last bit of this float is the spacing of codes: adding it rounds to multiples of that.
    const u32 sum =
        __builtin_bit_cast(u32, x + __builtin_bit_cast(f32, power + kLarger)) - kLarger - power;
    return sum + ((power - kLeastNormal) >> kDropped);
  }
};
using ToE2m3 = To6Bits<3, 1>;
using ToE3m2 = To6Bits<2, 3>;

// Four codes of 6 bits, each in a byte, without gaps.
HIPGEMM_DEVICE u32 close_up(u32 bytes) {
  const u32 pairs = (bytes & 0x003f003fu) | (bytes >> 2 & 0x0fc00fc0u);
  return (pairs & 0xfffu) | (pairs >> 4 & 0xfff000u);
}

// Eight values times the multiplier to e2m1, the first in the low bits. Magnitudes 0 to 4 are 1/2
// apart, 4 to 6 are 1 apart, 6 and 7 are 2 apart (as encodings). Adding a float whose last bit is
// the spacing rounds to multiples of it. Each of the three sums is the encoding where its spacing
// applies, and not less than it elsewhere: the smallest of them is the encoding. Values up to 8,
// the largest there may be, can give 8, which becomes 7.
HIPGEMM_DEVICE u32 pack_e2m1(f32x4 low, f32x4 high, f32 multiplier) {
  constexpr f32 kHalves = 0x1p22f;  // floats from here on are 1/2 apart
  constexpr u32 kBits = 4, kBase = __builtin_bit_cast(u32, kHalves);
  u32 packed = 0, bits[8];
#pragma unroll
  for (u32 e = 0; e < 8; e++) {
    const f32 x = e < 4 ? low[e] : high[e - 4];
    const auto rounded = [x](f32 multiplier, f32 from) HIPGEMM_INLINE {
      return __builtin_bit_cast(u32, __builtin_fmaf(__builtin_fabsf(x), multiplier, from));
    };
    bits[e] = __builtin_bit_cast(u32, x);
    const u32 halves = rounded(multiplier, kHalves), ones = rounded(multiplier / 2, kHalves + 1),
              twos = rounded(multiplier / 4, kHalves + 2);
    packed += (smaller(smaller(halves, ones), twos) - kBase) << e * kBits;
  }
  packed -= (packed & 0x88888888u) >> 3;
  constexpr u32 kSigns = 0x80808080u;
  const u32 even = high_bytes(bits[0], bits[2], bits[4], bits[6]);
  const u32 odd = high_bytes(bits[1], bits[3], bits[5], bits[7]);
  return packed | (odd & kSigns) | (even & kSigns) >> kBits;
}
template <class From>
HIPGEMM_DEVICE f32x4 unpack_four(u32 packed) {
  f32x4 x;
#pragma unroll
  for (u32 e = 0; e < 4; e++)
    x[e] = From::widen(packed >> e * From::kBits & ((1u << From::kBits) - 1));
  return x;
}

}  // namespace hipgemm
