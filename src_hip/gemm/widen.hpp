// Elements of 8, 6 and 4 bits as bfloat16, for matrix instructions that do not take them.
#pragma once

#include "common/hip_device.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"

namespace hipgemm {

// What differs between the two elements of 8 bits, or of 6: in a scalar register, see WidenedMfma.
template <u32 kBits>
struct Widening {
  u32 second;  // 0 for e4m3, e2m3 and e2m1; 1 for e5m2 and e3m2

  // An element in the highest bits of x, times 2^exponent: see exponent_of. Its bits, moved to the
  // place of exponent and mantissa in float32, are a float that is too small by a power of two.
  HIPGEMM_DEVICE f32 element(u32 x, u32 exponent) const {
    const u32 left = kBits == 4 ? 22 : 20 + second;
    const u32 mask = 1u << 31 | ((1u << (kBits - 1)) - 1) << left;
    const u32 bits = static_cast<u32>(static_cast<int>(x) >> (32 - kBits)) << left & mask;
    return times_power_of_two(__builtin_bit_cast(f32, bits), static_cast<int>(exponent));
  }
  HIPGEMM_DEVICE u32 exponent_of(u32 scale) const {
    constexpr u32 kBias = kBits == 8 ? 7 : 1, kMore = kBits == 8 ? 8 : kBits == 6 ? 2 : 0;
    return scale - kBias - kMore * second;
  }

  // The codes of a word of 8-bit elements that are Inf or NaN: bit 7 of their bytes.
  HIPGEMM_DEVICE u32 specials(u32 word) const {
    return (word & 0x7f7f7f7f) + (second ? 0x04040404 : 0x01010101);
  }
  // Their exponent, once they are floats: they keep a mantissa that says which of the two it is.
  static HIPGEMM_DEVICE f32 with_special(f32 x, u32 specials, u32 byte) {
    const u32 mask = static_cast<int>(specials << (24 - 8 * byte)) >> 31;
    return __builtin_bit_cast(f32, __builtin_bit_cast(u32, x) | (mask & 0x7f800000));
  }
};

// Two floats that bfloat16 has. nan: 0, or what makes all of them NaN.
HIPGEMM_DEVICE u32 pack_bf16(f32 low, f32 high, u32 nan) {
  return __builtin_amdgcn_perm(__builtin_bit_cast(u32, high), __builtin_bit_cast(u32, low),
                               0x07060302) |
         nan;
}
HIPGEMM_DEVICE u32 nan_of_scale(u32 scale) { return scale == kNanScale ? 0x7fc07fc0 : 0; }

// Scales with which every element of every format is a normal bfloat16.
inline constexpr u32 kLeastScale = 20, kGreatestScale = 230;
HIPGEMM_DEVICE u32 above_least(u32 scale) { return scale - kLeastScale; }  // wraps below it
inline constexpr u32 kMostAboveLeast = kGreatestScale - kLeastScale;
HIPGEMM_DEVICE bool is_extreme_scale(u32 scale) {
  return above_least(scale) > kMostAboveLeast && scale != kNanScale;
}
HIPGEMM_DEVICE bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }

}  // namespace hipgemm
