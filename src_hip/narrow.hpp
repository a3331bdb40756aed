// Casts between float32 and the formats of 8 and 4 bits, and the rules for block scales.
#pragma once

#include "hip_device.hpp"
#include "small_float.hpp"
#include "types.hpp"

namespace hipgemm {

// Values share scales in blocks of this many; here always a thread's.
inline constexpr u32 kValues = 32;
inline constexpr u32 kSign = 0x80000000u;

// The signs of four numbers, where four codes of 8 bits have them.
HIPGEMM_DEVICE u32 sign_bytes(f32x4 x) {
  const u32x4 bits = __builtin_bit_cast(u32x4, x);
  return (bits.x & kSign) >> 24 | (bits.y & kSign) >> 16 | (bits.z & kSign) >> 8 | (bits.w & kSign);
}

struct E4m3 {
  static constexpr u32 kBits = 8, kMantissaBits = 3, kMaxExponent = 8;
  static constexpr f32 kMax = 448.0f;
#if HIPGEMM_NARROW_CASTS
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
  static HIPGEMM_DEVICE u32 pack(f32x4 x) {
    return pair_to_e4m3(x.x, x.y) | pair_to_e4m3(x.z, x.w) << 16 | sign_bytes(x);
  }
#else
  static HIPGEMM_DEVICE u32 pack(f32x4 x) { return pack_codes<ToE4m3>(x); }
#endif
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) { return unpack_codes<FromE4m3>(x); }
#endif
};

struct E5m2 {
  static constexpr u32 kBits = 8, kMantissaBits = 2, kMaxExponent = 15;
  static constexpr f32 kMax = 57344.0f;
#if HIPGEMM_NARROW_CASTS
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
  static HIPGEMM_DEVICE u32 pack(f32x4 x) {
    return pair_to_e5m2(x.x, x.y) | pair_to_e5m2(x.z, x.w) << 16 | sign_bytes(x);
  }
#else
  static HIPGEMM_DEVICE u32 pack(f32x4 x) { return pack_codes<ToE5m2>(x); }
#endif
  static HIPGEMM_DEVICE f32x4 unpack(u32 x) { return unpack_codes<FromE5m2>(x); }
#endif
};

// The first number is the low half of a byte.
struct E2m1 {
  static constexpr u32 kBits = 4, kMantissaBits = 1, kMaxExponent = 2;
  static constexpr f32 kMax = 6.0f;
#if HIPGEMM_NARROW_CASTS
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
  static HIPGEMM_DEVICE u32 pack(f32x4 low, f32x4 high) {
    return pack_codes<ToE2m1>(low) | pack_codes<ToE2m1>(high) << 16;
  }
  static HIPGEMM_DEVICE void unpack(u32 x, f32x4& low, f32x4& high) {
    low = unpack_codes<FromE2m1>(x);
    high = unpack_codes<FromE2m1>(x >> 16);
  }
#endif
};

// A thread's values, and their codes.
using Values = f32x4[kValues / 4];
template <class Element>
using Codes = u32x4[kValues * Element::kBits / 128];

template <class Element>
HIPGEMM_DEVICE void pack(const Values& x, Codes<Element>& out) {
  constexpr u32 kPerWord = 32 / Element::kBits;
#pragma unroll
  for (u32 w = 0; w < kValues / kPerWord; w++) {
    if constexpr (Element::kBits == 4)
      out[w / 4][w % 4] = Element::pack(x[2 * w], x[2 * w + 1]);
    else
      out[w / 4][w % 4] = Element::pack(x[w]);
  }
}

template <class Element>
HIPGEMM_DEVICE void unpack(const Codes<Element>& codes, Values& out) {
  constexpr u32 kPerWord = 32 / Element::kBits;
#pragma unroll
  for (u32 w = 0; w < kValues / kPerWord; w++) {
    if constexpr (Element::kBits == 4)
      Element::unpack(codes[w / 4][w % 4], out[2 * w], out[2 * w + 1]);
    else
      out[w] = Element::unpack(codes[w / 4][w % 4]);
  }
}

template <class Element>
HIPGEMM_DEVICE f32x4 clip(f32x4 x) {
  for (u32 e = 0; e < 4; e++) x[e] = clamped(x[e], -Element::kMax, Element::kMax);
  return x;
}

inline constexpr u32 kMagnitude = 0x7fffffffu;
inline constexpr u32 kInfinity = 0x7f800000u;

// The greatest magnitude, as bits: NaN above infinity above all numbers.
HIPGEMM_DEVICE u32 greatest(const Values& x) {
  u32 most = 0;
#pragma unroll
  for (u32 i = 0; i < kValues; i++) {
    const f32 value = x[i / 4][i % 4];  // clang would cast a vector's first element in its stead
    const u32 bits = __builtin_bit_cast(u32, value) & kMagnitude;
    most = bits > most ? bits : most;
  }
  return most;
}

enum class ScaleRule : u32 { unit = 0, floor = 1, rceil = 2, even = 3 };

// The scale byte of a block from the bits of its greatest magnitude, which is finite. Exponents are
// taken from the bits: a subnormal counts as 2^-127, and is clamped to that anyway.
template <class Element>
HIPGEMM_DEVICE u32 scale_byte(u32 most, ScaleRule rule) {
  constexpr u32 kFraction = (1u << 23) - 1;
  constexpr u32 kTop = __builtin_bit_cast(u32, Element::kMax) & kFraction;
  if (most == 0) return Element::kBits == 4 ? 127 : 0;
  const u32 rounded = rule == ScaleRule::even ? most + (1u << (22 - Element::kMantissaBits)) : most;
  int byte = static_cast<int>(rounded >> 23);
  if (rule != ScaleRule::unit) byte -= Element::kMaxExponent;
  if (rule == ScaleRule::rceil) byte += (most & kFraction) > kTop;
  return byte < 0 ? 0 : byte > 254 ? 254 : byte;
}

// 2^(byte - 127); not for the byte of NaN.
HIPGEMM_DEVICE f32 power_of_two(u32 byte) {
  return __builtin_bit_cast(f32, byte == 0 ? 1u << 22 : byte << 23);
}

inline constexpr u32 kNanScale = 255;

// Quantizes a block and returns its scale byte. A NaN or an infinity makes all of it NaN.
template <class Element>
HIPGEMM_DEVICE u32 quantize_block(Values& x, ScaleRule rule, Codes<Element>& out) {
  const u32 most = greatest(x);
  const bool lost = most >= kInfinity;
  const u32 byte = scale_byte<Element>(lost ? 0 : most, rule);
  const f32 up = power_of_two(254 - byte);
  for (f32x4& four : x) four = clip<Element>(four * f32x4(up));
  pack<Element>(x, out);
  if (lost)
    for (u32x4& word : out) word = u32x4(Element::kBits == 4 ? 0 : 0x7f7f7f7f);
  return lost ? kNanScale : byte;
}

// Sylvester's 16-point Walsh-Hadamard transform of each 16 values, orthonormal: its own inverse.
HIPGEMM_DEVICE void hadamard(Values& x) {
#pragma unroll
  for (u32 stride = 1; stride < 16; stride *= 2)
#pragma unroll
    for (u32 i = 0; i < kValues; i++) {
      if (i & stride) continue;
      const u32 j = i + stride;
      const f32 a = x[i / 4][i % 4], b = x[j / 4][j % 4];
      x[i / 4][i % 4] = a + b;
      x[j / 4][j % 4] = a - b;
    }
  for (f32x4& four : x) four *= f32x4(0.25f);
}

}  // namespace hipgemm
