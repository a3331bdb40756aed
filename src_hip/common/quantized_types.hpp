// Quantized values: conversions between float32 and formats of 8, 6 and 4 bits, and the rules for
// block scales.
#pragma once

#include "common/hip_device.hpp"
#include "common/lane_reduce.hpp"
#include "common/small_float.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A thread has as few consecutive values as fill pieces of 8 bytes when quantized: three pieces of
// 6-bit values, a block, and one of others. Neighbouring threads have the other values of a block,
// which shares a scale.
inline constexpr u32 kBlockValues = 32;
inline constexpr u32 kFp8Block = 128;  // elements along K of a block of fp8, if it has blocks
inline constexpr u32 kPieceBytes = 8;
template <class Element>
inline constexpr u32 kPiecesOf = Element::kBits % 3 == 0 ? 3 : 1;
template <class Element>
inline constexpr u32 kValuesOf = kPiecesOf<Element> * kPieceBytes * 8 / Element::kBits;
template <u32 kValues>
using Values = f32x4[kValues / 4];
template <class Element>
using Packed = Vector<u32, kPiecesOf<Element> * kPieceBytes / 4>;

#if HIPGEMM_PAIR_CASTS
// A NaN may lose its sign.
HIPGEMM_DEVICE f32x4 widen_halves(u32 low, u32 high) {
  return {widen_half_of_any_nan(low), widen_half_of_any_nan(low >> 16), widen_half_of_any_nan(high),
          widen_half_of_any_nan(high >> 16)};
}
#endif

// pack() rounds to nearest even. Where kSaturates is false, values must not exceed kMax.
struct E4m3 {
  static constexpr u32 kBits = 8, kMantissaBits = 3, kMaxExponent = 8;
  static constexpr f32 kMax = 448.0f;
#if HIPGEMM_LOW_PRECISION_CASTS
  static constexpr bool kSaturates = false;
  static HIPGEMM_DEVICE u32 pack(f32x4 x) {
    const u32 low = __builtin_amdgcn_cvt_pk_fp8_f32(x.x, x.y, 0, false);
    return __builtin_amdgcn_cvt_pk_fp8_f32(x.z, x.w, low, true);
  }
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) {
    const f32x2 low = __builtin_amdgcn_cvt_pk_f32_fp8(x, false);
    const f32x2 high = __builtin_amdgcn_cvt_pk_f32_fp8(x, true);
    return {low.x, low.y, high.x, high.y};
  }
#else
#if HIPGEMM_PAIR_CASTS
  static constexpr bool kSaturates = true;
  static HIPGEMM_DEVICE u32 pack(f32x4 x) {
    return pair_to_e4m3(x.x, x.y) | pair_to_e4m3(x.z, x.w) << 16;
  }
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) {
    return widen_halves(pair_from_e4m3(x), pair_from_e4m3(x >> 16));
  }
#else
  static constexpr bool kSaturates = false;
  static HIPGEMM_DEVICE u32 pack(f32x4 x) { return pack_four<ToE4m3>(x); }
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) { return unpack_four<FromE4m3>(x); }
#endif
#endif
};

struct E5m2 {
  static constexpr u32 kBits = 8, kMantissaBits = 2, kMaxExponent = 15;
  static constexpr f32 kMax = 57344.0f;
#if HIPGEMM_LOW_PRECISION_CASTS
  static constexpr bool kSaturates = false;
  static HIPGEMM_DEVICE u32 pack(f32x4 x) {
    const u32 low = __builtin_amdgcn_cvt_pk_bf8_f32(x.x, x.y, 0, false);
    return __builtin_amdgcn_cvt_pk_bf8_f32(x.z, x.w, low, true);
  }
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) {
    const f32x2 low = __builtin_amdgcn_cvt_pk_f32_bf8(x, false);
    const f32x2 high = __builtin_amdgcn_cvt_pk_f32_bf8(x, true);
    return {low.x, low.y, high.x, high.y};
  }
#else
#if HIPGEMM_PAIR_CASTS
  static constexpr bool kSaturates = true;
  static HIPGEMM_DEVICE u32 pack(f32x4 x) {
    return pair_to_e5m2(x.x, x.y) | pair_to_e5m2(x.z, x.w) << 16;
  }
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) {
    return widen_halves(pair_from_e5m2(x), pair_from_e5m2(x >> 16));
  }
#else
  static constexpr bool kSaturates = false;
  static HIPGEMM_DEVICE u32 pack(f32x4 x) { return pack_four<ToE5m2>(x); }
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) { return unpack_four<FromE5m2>(x); }
#endif
#endif
};

// The first value is in the low half of a byte.
struct E2m1 {
  static constexpr u32 kBits = 4, kMantissaBits = 1, kMaxExponent = 2;
  static constexpr f32 kMax = 6.0f;
#if HIPGEMM_LOW_PRECISION_CASTS
  static constexpr bool kSaturates = false;
  static HIPGEMM_DEVICE u32 pack(f32x4 low, f32x4 high) {
    u32 word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(0, low.x, low.y, 1.0f, 0);
    word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, low.z, low.w, 1.0f, 1);
    word = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, high.x, high.y, 1.0f, 2);
    return __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(word, high.z, high.w, 1.0f, 3);
  }
  static HIPGEMM_DEVICE void unpack(u32 x, f32x4& low, f32x4& high) {
    const f32x2 a = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x, 1.0f, 0);
    const f32x2 b = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x, 1.0f, 1);
    const f32x2 c = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x, 1.0f, 2);
    const f32x2 d = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x, 1.0f, 3);
    low = {a.x, a.y, b.x, b.y};
    high = {c.x, c.y, d.x, d.y};
  }
#else
  static HIPGEMM_DEVICE void unpack(u32 x, f32x4& low, f32x4& high) {
    low = unpack_four<FromE2m1>(x);
    high = unpack_four<FromE2m1>(x >> 16);
  }
#endif
};

// Value i has bits 6i to 6i + 5. The instructions take 32 values, those with even and with odd
// indices apart, and a scale of which they use the exponent alone; they saturate.
struct E2m3 {
  static constexpr u32 kBits = 6, kMantissaBits = 3, kMaxExponent = 2;
  static constexpr f32 kMax = 7.5f;
#if HIPGEMM_LOW_PRECISION_CASTS
  static HIPGEMM_DEVICE Vector<u32, 6> pack(Vector<f32, 16> even, Vector<f32, 16> odd, f32 scale) {
    return __builtin_amdgcn_cvt_scalef32_2xpk16_fp6_f32(even, odd, scale);
  }
  static HIPGEMM_DEVICE Vector<f32, 32> unpack(Vector<u32, 6> x) {
    return __builtin_amdgcn_cvt_scalef32_pk32_f32_fp6(x, 1.0f);
  }
#else
  using From = FromE2m3;
  using To = ToE2m3;
  // With as many bits of mantissa: magnitudes have the same codes if they are so much smaller.
  using Wide = E4m3;
  static constexpr f32 kToWide = 0x1p-6f;
#endif
};

struct E3m2 {
  static constexpr u32 kBits = 6, kMantissaBits = 2, kMaxExponent = 4;
  static constexpr f32 kMax = 28.0f;
#if HIPGEMM_LOW_PRECISION_CASTS
  static HIPGEMM_DEVICE Vector<u32, 6> pack(Vector<f32, 16> even, Vector<f32, 16> odd, f32 scale) {
    return __builtin_amdgcn_cvt_scalef32_2xpk16_bf6_f32(even, odd, scale);
  }
  static HIPGEMM_DEVICE Vector<f32, 32> unpack(Vector<u32, 6> x) {
    return __builtin_amdgcn_cvt_scalef32_pk32_f32_bf6(x, 1.0f);
  }
#else
  using From = FromE3m2;
  using To = ToE3m2;
  using Wide = E5m2;
  static constexpr f32 kToWide = 0x1p-12f;
#endif
};

#define SCALED_FORMAT(name, code, bits, element, block) \
  static_assert(element::kBits == (bits) && ((block) == 0 || (block) == kBlockValues), "");
#include "common/formats.def"

#if !HIPGEMM_LOW_PRECISION_CASTS
// 16 values of 6 bits, each times the multiplier.
template <class Element>
HIPGEMM_DEVICE Vector<u32, 3> pack_half_of_6bit(f32x4 a, f32x4 b, f32x4 c, f32x4 d,
                                                f32 multiplier) {
  const f32x4 x[4] = {a, b, c, d};
  u32 four[4];
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
#if HIPGEMM_PAIR_CASTS
    const u32 bytes = Element::Wide::pack(x[i] * f32x4(multiplier * Element::kToWide));
    u32 codes = bytes & 0x3f3f3f3fu;
    const u32 signs = bytes;
#else
    u32 codes = 0, bits[4];
#pragma unroll
    for (u32 e = 0; e < 4; e++) {
      const f32 value = x[i][e];
      bits[e] = __builtin_bit_cast(u32, value);
      codes |= Element::To::round(__builtin_fabsf(value * multiplier)) << e * 8;
    }
    const u32 signs = high_bytes(bits[0], bits[1], bits[2], bits[3]);
#endif
    codes -= codes >> 5 & 0x01010101u;  // 32 becomes 31
    four[i] = close_up(codes | (signs >> 2 & 0x20202020u));
  }
  return {four[0] | four[1] << 24, four[1] >> 8 | four[2] << 16, four[2] >> 16 | four[3] << 8};
}
#endif

// 32 values of 6 bits, each times the multiplier, a power of two or NaN. Products are less than the
// next power of two after kMax.
template <class Element>
HIPGEMM_DEVICE Packed<Element> pack_6bit(const Values<32>& x, f32 multiplier) {
#if HIPGEMM_LOW_PRECISION_CASTS
  Vector<f32, 16> even, odd;
#pragma unroll
  for (u32 i = 0; i < 16; i++) {
    even[i] = x[i / 2][i % 2 * 2];
    odd[i] = x[i / 2][i % 2 * 2 + 1];
  }
  // 2^-127, a subnormal, becomes 2^127 too.
  constexpr u32 kInverses = (254u << 23) + (1u << 22);
  const f32 inverse = __builtin_bit_cast(f32, kInverses - __builtin_bit_cast(u32, multiplier));
  return Element::pack(even, odd, inverse);
#else
  const auto low = pack_half_of_6bit<Element>(x[0], x[1], x[2], x[3], multiplier);
  const auto high = pack_half_of_6bit<Element>(x[4], x[5], x[6], x[7], multiplier);
  return {low[0], low[1], low[2], high[0], high[1], high[2]};
#endif
}
template <class Element>
HIPGEMM_DEVICE void unpack_6bit(Packed<Element> packed, Values<32>& out) {
#if HIPGEMM_LOW_PRECISION_CASTS
  const Vector<f32, 32> x = Element::unpack(packed);
#pragma unroll
  for (u32 i = 0; i < 32; i++) out[i / 4][i % 4] = x[i];
#else
#pragma unroll
  for (u32 i = 0; i < 32; i++) {
    const u32 word = 6 * i / 32, shift = 6 * i % 32;
    u32 code = packed[word] >> shift;
    if (shift > 32 - 6) code |= packed[word + 1] << (32 - shift);  // its last bits
    out[i / 4][i % 4] = Element::From::widen(code & 63);
  }
#endif
}

// 4 or 8 values of 8 bits; these each times the multiplier.
template <class Element>
HIPGEMM_DEVICE u32 pack_four_8bit(f32x4 x) {
  if constexpr (!Element::kSaturates)
    for (u32 e = 0; e < 4; e++) x[e] = clamped(x[e], -Element::kMax, Element::kMax);
  return Element::pack(x);
}
template <class Element>
HIPGEMM_DEVICE u32x2 pack_8bit(f32x4 low, f32x4 high, f32 multiplier) {
  return {pack_four_8bit<Element>(low * f32x4(multiplier)),
          pack_four_8bit<Element>(high * f32x4(multiplier))};
}

// Quantizes values, each times the multiplier.
template <class Element, u32 kValues>
HIPGEMM_DEVICE Packed<Element> pack(const Values<kValues>& x, f32 multiplier = 1.0f) {
  static_assert(kValues == kValuesOf<Element>, "");
  if constexpr (Element::kBits == 6) {
    return pack_6bit<Element>(x, multiplier);
  } else if constexpr (Element::kBits == 4 && !HIPGEMM_LOW_PRECISION_CASTS) {
    return {pack_e2m1(x[0], x[1], multiplier), pack_e2m1(x[2], x[3], multiplier)};
  } else if constexpr (Element::kBits == 4) {
    const auto scaled = [&](u32 i) HIPGEMM_INLINE {
      f32x4 four = x[i] * f32x4(multiplier);
      for (u32 e = 0; e < 4; e++) four[e] = clamped(four[e], -Element::kMax, Element::kMax);
      return four;
    };
    return {Element::pack(scaled(0), scaled(1)), Element::pack(scaled(2), scaled(3))};
  } else {
    return pack_8bit<Element>(x[0], x[1], multiplier);
  }
}

template <class Element, u32 kValues>
HIPGEMM_DEVICE void unpack(Packed<Element> packed, Values<kValues>& out) {
  static_assert(kValues == kValuesOf<Element>, "");
  if constexpr (Element::kBits == 6) {
    unpack_6bit<Element>(packed, out);
  } else if constexpr (Element::kBits == 4) {
    Element::unpack(packed.x, out[0], out[1]);
    Element::unpack(packed.y, out[2], out[3]);
  } else {
    out[0] = Element::unpack(packed.x);
    out[1] = Element::unpack(packed.y);
  }
}

inline constexpr u32 kInfinity = 0x7f800000u;

// The amax of a thread's values, as bits: NaN above infinity above all finite values.
template <u32 kValues>
HIPGEMM_DEVICE u32 values_amax(const Values<kValues>& x) {
  u32 amax = 0;
  for (f32x4 four : x)
    for (u32 e = 0; e < 4; e++) amax = max_magnitude(amax, four[e]);
  return amax;
}

enum class ScaleRule : u32 {
#define SCALE_RULE(name, code) name = code,
#include "common/formats.def"
};

// The scale byte of a block from the bits of its amax, which is finite. Exponents are taken from
// the bits: a subnormal counts as 2^-127, to which it would be clamped anyway.
template <class Element>
HIPGEMM_DEVICE u32 scale_byte(u32 amax, ScaleRule rule) {
  constexpr u32 kFraction = (1u << 23) - 1;
  constexpr u32 kTop = __builtin_bit_cast(u32, Element::kMax) & kFraction;
  if (amax == 0) return Element::kBits < 8 ? 127 : 0;
  const u32 rounded = rule == ScaleRule::even ? amax + (1u << (22 - Element::kMantissaBits)) : amax;
  int byte = static_cast<int>(rounded >> 23);
  if (rule != ScaleRule::unit) byte -= Element::kMaxExponent;
  if (rule == ScaleRule::rceil) byte += (amax & kFraction) > kTop;
  return byte < 0 ? 0 : byte > 254 ? 254 : byte;
}

// 2^(byte - 127), for any byte but that of NaN.
HIPGEMM_DEVICE f32 power_of_two(u32 byte) {
  return __builtin_bit_cast(f32, byte == 0 ? 1u << 22 : byte << 23);
}

inline constexpr u32 kNanScale = 255;

// A block's scale byte, and the multiplier of its values. If one of them is NaN or infinite, all of
// the block becomes NaN.
struct BlockScale {
  u32 byte;
  f32 multiplier;

  template <class Element>
  static HIPGEMM_DEVICE BlockScale of(u32 amax, ScaleRule rule) {
    if (amax >= kInfinity) return {kNanScale, __builtin_nanf("")};
    const u32 byte = scale_byte<Element>(amax, rule);
    return {byte, power_of_two(254 - byte)};
  }
};
// Packed values, unless their multiplier is that of a block of NaN.
template <class Element>
HIPGEMM_DEVICE Packed<Element> nan_by(f32 multiplier, Packed<Element> packed) {
  return multiplier == multiplier ? packed : Packed<Element>(Element::kBits < 8 ? 0 : 0x7f7f7f7f);
}

// Sylvester's 16-point Walsh-Hadamard transform without its factor, with which it is orthonormal
// and its own inverse.
inline constexpr f32 kHadamardFactor = 0.25f;
inline constexpr f32 kHadamardDown = 0x1p-4f;  // no sum of 16 floats times this overflows
HIPGEMM_DEVICE void hadamard_sums(Values<16>& x) {
#pragma unroll
  for (u32 stride = 1; stride < 16; stride *= 2)
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
      if (i & stride) continue;
      const u32 j = i + stride;
      const f32 a = x[i / 4][i % 4], b = x[j / 4][j % 4];
      x[i / 4][i % 4] = a + b;
      x[j / 4][j % 4] = a - b;
    }
}
HIPGEMM_DEVICE void scale_values(Values<16>& x, f32 factor) {
  for (f32x4& four : x) four *= f32x4(factor);
}
// Bit i of signs: whether value i gets the other sign.
HIPGEMM_DEVICE void change_signs(Values<16>& x, u32 signs) {
#pragma unroll
  for (u32 i = 0; i < 16; i++) {
    const f32 value = x[i / 4][i % 4];
    const u32 sign = signs << (31 - i) & 0x80000000u;
    x[i / 4][i % 4] = __builtin_bit_cast(f32, __builtin_bit_cast(u32, value) ^ sign);
  }
}

}  // namespace hipgemm
