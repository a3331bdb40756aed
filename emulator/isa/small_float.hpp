// f16, bf16, fp8, fp6 and fp4 on one lane's values, branch-free so that loops over lanes vectorise.
//
// Rounding to f16 is done by an addition that pushes the surplus bits out, so it follows the host's
// rounding direction, which vector.cpp sets when MODE asks for another one than nearest even.
#pragma once

#include "isa/exec.hpp"

namespace emu::EMU_NS {

EMU_INLINE bool is_nan(float x) { return (as<uint32_t>(x) & 0x7fffffff) > 0x7f800000; }

// ---- 16 bits ------------------------------------------------------------------------------------

EMU_INLINE float half_to_float(uint32_t h) {
  const uint32_t em = h & 0x7fff, sign = (h & 0x8000) << 16;
  const uint32_t subnormal = as<uint32_t>(static_cast<float>(static_cast<int32_t>(em)) * 0x1p-24f);
  const uint32_t normal = (em << 13) + (112u << 23);
  const uint32_t special = em << 13 | 0x7f800000;
  return as<float>((em < 0x400 ? subnormal : em < 0x7c00 ? normal : special) | sign);
}

// `clamp`: MODE.FP16_OVFL, finite overflow gives the largest number.
EMU_INLINE uint32_t float_to_half(float x, bool clamp) {
  const uint32_t bits = as<uint32_t>(x), sign = bits & 0x80000000, a = bits & 0x7fffffff;
  const uint32_t capped = a < 0x48000000 ? a : 0x48000000;  // 2^17: overflows all the same
  const uint32_t exponent = capped & 0x7f800000, least = 113u << 23;
  const float push = as<float>(((exponent > least ? exponent : least) + (13u << 23)) | sign);
  const float rounded = (as<float>(capped | sign) + push) - push;
  const uint32_t r = as<uint32_t>(rounded) & 0x7fffffff;
  const uint32_t normal = (r - (112u << 23)) >> 13;
  const uint32_t subnormal = as<uint32_t>(as<float>(r) + 0.5f) - 0x3f000000;
  const uint32_t finite = r >= least ? normal : subnormal;
  // 2^16·2^112 overflows to infinity or stays finite as the rounding direction says.
  const uint32_t scaled = as<uint32_t>(as<float>(r | sign) * 0x1p112f) & 0x7fffffff;
  const uint32_t over = clamp || scaled != 0x7f800000 ? 0x7bff : 0x7c00;
  const uint32_t nan = 0x7e00 | (a >> 13 & 0x1ff);
  const uint32_t h = a > 0x7f800000    ? nan
                     : a == 0x7f800000 ? 0x7c00
                     : r > 0x477fe000  ? over
                                       : finite;
  return h | sign >> 16;
}

// Towards zero, whatever the mode.
EMU_INLINE uint32_t float_to_half_rtz(float x) {
  const uint32_t bits = as<uint32_t>(x), sign = bits & 0x80000000, a = bits & 0x7fffffff;
  const uint32_t normal = (a - (112u << 23)) >> 13;
  const float tiny = as<float>(a < (113u << 23) ? a : 0);
  const auto subnormal = static_cast<uint32_t>(static_cast<int32_t>(tiny * 0x1p24f));
  const uint32_t h = a > 0x7f800000    ? 0x7e00 | (a >> 13 & 0x1ff)
                     : a == 0x7f800000 ? 0x7c00
                     : a >= 0x47800000 ? 0x7bff
                     : a >= 113u << 23 ? normal
                                       : subnormal;
  return h | sign >> 16;
}

// Nearest even.
EMU_INLINE uint32_t float_to_bf16(float x) {
  const uint32_t u = as<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return (u & 0x7fffffff) > 0x7f800000 ? u >> 16 | 0x40 : rounded;
}

EMU_INLINE float bf16_to_float(uint32_t b) { return as<float>(b << 16); }

// a·b + c for f16 values held as floats, rounded once when converted to f16: the sum's error goes
// into its last bit (rounding to odd), which affects the second rounding.
EMU_INLINE float fma_half(float a, float b, float c) {
  const float p = a * b;  // exact: 22 bits
  const float s = p + c;
  const float t = s - p;
  const float error = (p - (s - t)) + (c - t);
  const uint32_t bits = as<uint32_t>(s);
  const uint32_t e = as<uint32_t>(error), magnitude = e & 0x7fffffff;
  const uint32_t inexact = magnitude - 1 < 0x7f800000 ? ~bits & 1 : 0;  // neither 0 nor NaN
  // To the odd neighbour that lies where the error points.
  const uint32_t toward_zero = (e ^ bits) >> 31;
  return as<float>(bits + inexact - 2 * (inexact & toward_zero));
}

// ---- 8, 6 and 4 bits ----------------------------------------------------------------------------

struct Fp8 {  // E4M3, OCP: no infinity
  static constexpr int kMantissa = 3, kBias = 7, kBits = 8;
  static constexpr uint32_t kMax = 0x7e, kOverflow = 0x7f, kNan = 0x7f;
};
struct Bf8 {  // E5M2
  static constexpr int kMantissa = 2, kBias = 15, kBits = 8;
  static constexpr uint32_t kMax = 0x7b, kOverflow = 0x7c, kNan = 0x7f;
};
// FNUZ, of gfx942: no infinity, no negative zero, whose code is the one NaN.
struct Fp8Fnuz {
  static constexpr int kMantissa = 3, kBias = 8, kBits = 8;
  static constexpr uint32_t kMax = 0x7f, kOverflow = 0x80, kNan = 0x80;
};
struct Bf8Fnuz {
  static constexpr int kMantissa = 2, kBias = 16, kBits = 8;
  static constexpr uint32_t kMax = 0x7f, kOverflow = 0x80, kNan = 0x80;
};
template <class S>
inline constexpr bool kFnuz = S::kOverflow == 0x80;
// These have neither infinity nor NaN: everything beyond saturates, NaN too.
struct Fp6 {  // E2M3
  static constexpr int kMantissa = 3, kBias = 1, kBits = 6;
  static constexpr uint32_t kMax = 0x1f, kOverflow = 0x1f, kNan = 0x1f;
};
struct Bf6 {  // E3M2
  static constexpr int kMantissa = 2, kBias = 3, kBits = 6;
  static constexpr uint32_t kMax = 0x1f, kOverflow = 0x1f, kNan = 0x1f;
};
struct Fp4 {  // E2M1
  static constexpr int kMantissa = 1, kBias = 1, kBits = 4;
  static constexpr uint32_t kMax = 7, kOverflow = 7, kNan = 7;
};

// An E8M0 scale: the exponent field of a float, 2^(field − 127), or NaN for 255.
EMU_INLINE int scale_exponent(float scale) {
  return static_cast<int>(as<uint32_t>(scale) >> 23 & 0xff) - 127;
}
inline constexpr int kNanScale = 128;

// x / 2^scale to format S. Nearest even; or stochastic: the top bits of `seed` are added below the
// last bit that is kept, then the rest is cut off. `clamp`: MODE.FP16_OVFL.
template <class S, bool kStochastic = false>
EMU_INLINE uint32_t narrow(float x, int scale, bool clamp, uint32_t seed = 0) {
  constexpr int kM = S::kMantissa, kLeast = 1 - S::kBias;
  const uint32_t bits = as<uint32_t>(x), a = bits & 0x7fffffff;
  const bool small = a < 0x00800000;
  const uint32_t n = small ? as<uint32_t>(static_cast<float>(static_cast<int32_t>(a))) : a;
  const int e = static_cast<int>(n >> 23) - (small ? 127 + 149 : 127) - scale;
  uint32_t m = (n & 0x7fffff) | 0x800000;
  const int up = e > kLeast ? e : kLeast;
  const int wanted = 23 - kM + (up - e);
  const int shift = wanted < 27 ? wanted : 27;
  if constexpr (kStochastic)
    m += seed >> (9 + kM);
  else
    m += (1u << (shift - 1)) - 1 + (m >> shift & 1);
  const uint32_t code = (static_cast<uint32_t>(up - kLeast) << kM) + (m >> shift);
  const uint32_t over = clamp ? S::kMax : S::kOverflow;
  const uint32_t r = a > 0x7f800000 || scale == kNanScale ? S::kNan
                     : a == 0x7f800000                    ? over
                     : code > S::kMax                     ? over
                     : a == 0                             ? 0
                                                          : code;
  const uint32_t sign = (bits >> 31) << (S::kBits - 1);
  if constexpr (kFnuz<S>) return (r & 0x7f) == 0 ? r : r | sign;
  return r | sign;
}

// code · 2^scale.
template <class S>
EMU_INLINE float widen(uint32_t code, int scale = 0) {
  constexpr int kM = S::kMantissa;
  constexpr uint32_t kMagnitude = (1u << (S::kBits - 1)) - 1;
  const uint32_t em = code & kMagnitude, sign = (code >> (S::kBits - 1) & 1) << 31;
  const uint32_t normal = (em << (23 - kM)) + ((127u - S::kBias) << 23);
  constexpr float kStep = std::bit_cast<float>((127u + 1 - S::kBias - kM) << 23);
  const uint32_t subnormal = as<uint32_t>(static_cast<float>(static_cast<int32_t>(em)) * kStep);
  uint32_t bits = em >> kM == 0 ? subnormal : normal;
  if constexpr (kFnuz<S>) {
    if (code == S::kNan) bits = 0x7fc00000;
  } else if constexpr (S::kBits == 8) {
    if (em == S::kNan || (S::kOverflow != S::kNan && em > S::kOverflow)) bits = 0x7fc00000;
    if (S::kOverflow != S::kNan && em == S::kOverflow) bits = 0x7f800000;
  }
  const float value = as<float>(bits | sign);
  const double power = as<double>(static_cast<uint64_t>(1023 + scale) << 52);
  const auto scaled = static_cast<float>(value * power);
  return scale == kNanScale ? as<float>(0x7fc00000 | sign) : scaled;
}

}  // namespace emu::EMU_NS
