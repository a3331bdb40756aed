// The element types of kernel arguments: widened to float32, and rounded from it.
#pragma once

#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A word holds two values of 16 bits, or one of 32. Magnitudes of the same type compare as
// their bits do, NaN above infinity above all finite values, two at a time.
struct From16Bits {
  using Bits = u16;
  static HIPGEMM_DEVICE u32 magnitudes(u32 word) { return word & 0x7fff7fffu; }
  static HIPGEMM_DEVICE u32 max_magnitudes(u32 a, u32 b) {
    using Pair = Vector<u16, 2>;
    return __builtin_bit_cast(
        u32, __builtin_elementwise_max(__builtin_bit_cast(Pair, a), __builtin_bit_cast(Pair, b)));
  }
};
struct FromBf16 : From16Bits {
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return __builtin_bit_cast(f32, bits << 16); }
  static HIPGEMM_DEVICE f32x2 widen_word(u32 word) {
    return {widen(word), __builtin_bit_cast(f32, word & 0xffff0000u)};
  }
};
struct FromF16 : From16Bits {
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return widen_half(static_cast<u16>(bits)); }
  static HIPGEMM_DEVICE f32x2 widen_word(u32 word) { return {widen(word), widen(word >> 16)}; }
};
struct FromF32 {
  using Bits = u32;
  static HIPGEMM_DEVICE u32 magnitudes(u32 word) { return word & 0x7fffffffu; }
  static HIPGEMM_DEVICE u32 max_magnitudes(u32 a, u32 b) { return larger(a, b); }
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return __builtin_bit_cast(f32, bits); }
  static HIPGEMM_DEVICE Vector<f32, 1> widen_word(u32 word) { return widen(word); }
};

// How an output type is rounded and packed: two values make kBytes / 2 dwords.
struct OutBf16 {
  static constexpr u32 kBytes = 2;
  static HIPGEMM_DEVICE u32 pack(f32x2 x) {
    return __builtin_bit_cast(u32, __builtin_convertvector(x, bf16x2));
  }
};
struct OutF16 {
  static constexpr u32 kBytes = 2;
  static HIPGEMM_DEVICE u32 pack(f32x2 x) {
    return __builtin_bit_cast(u32, __builtin_convertvector(x, f16x2));
  }
};
struct OutF32 {
  static constexpr u32 kBytes = 4;
};

// One element, at any address.
HIPGEMM_DEVICE f32 load_element(u64 address, Format type) {
  if (type == Format::f32) return *global<f32>(address);
  const u32 bits = *global<u16>(address);
  return type == Format::bf16 ? FromBf16::widen(bits) : FromF16::widen(bits);
}
HIPGEMM_DEVICE void store_element(u64 address, Format type, f32 x) {
  if (type == Format::f32)
    *global<f32>(address) = x;
  else
    *global<u16>(address) =
        static_cast<u16>(type == Format::bf16 ? OutBf16::pack({x, x}) : OutF16::pack({x, x}));
}
HIPGEMM_BOTH constexpr u32 element_bytes(Format type) { return type == Format::f32 ? 4 : 2; }
#define FORMAT(name, code, bits) static_assert(element_bytes(Format::name) * 8 == (bits), "");
#include "common/formats.def"

}  // namespace hipgemm
