// Numbers of 8 and 4 bits to float32 and back by arithmetic that any machine has.
#pragma once

#include "element.hpp"
#include "hip_device.hpp"
#include "types.hpp"

namespace hipgemm {

// Their fields lie in the order of f16's. In f16's places they are the number but for the bias of
// the exponent, subnormal or not. Machines differ in what they make of NaN, so that is said here.
HIPGEMM_DEVICE f32 nan_like(f32 x) { return __builtin_copysignf(__builtin_nanf(""), x); }
struct FromE4m3 {
  using Bits = u8;
  static constexpr u32 kBits = 8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = FromF16::widen((bits & 0x80) << 8 | (bits & 0x7f) << 7) * 0x1p8f;
    return (bits & 0x7f) == 0x7f ? nan_like(x) : x;
  }
};
struct FromE5m2 {
  using Bits = u8;
  static constexpr u32 kBits = 8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = FromF16::widen(bits << 8);
    return (bits & 0x7f) > 0x7c ? nan_like(x) : x;
  }
};
struct FromE2m1 {
  using Bits = u8;  // the low half of it
  static constexpr u32 kBits = 4;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    return FromF16::widen((bits & 8) << 12 | (bits & 7) << 9) * 0x1p14f;
  }
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
using ToE2m1 = ToSmallFloat<4, 1, 1>;

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
template <class From>
HIPGEMM_DEVICE f32x4 unpack_codes(u32 codes) {
  f32x4 x;
#pragma unroll
  for (u32 e = 0; e < 4; e++)
    x[e] = From::widen(codes >> e * From::kBits & ((1u << From::kBits) - 1));
  return x;
}

}  // namespace hipgemm
