// Operations that several vector families share.
#pragma once

#include <limits>

#include "isa/lanes.hpp"

namespace emu::EMU_NS {

// ---- saturation ---------------------------------------------------------------------------------

// A sum, difference or product, computed wide, to the nearest value of T.
template <class T, class Wide>
EMU_INLINE T saturated(Wide x) {
  constexpr auto kLow = static_cast<Wide>(std::numeric_limits<T>::min());
  constexpr auto kHigh = static_cast<Wide>(std::numeric_limits<T>::max());
  return static_cast<T>(x < kLow ? kLow : x > kHigh ? kHigh : x);
}

// ---- float to integer ---------------------------------------------------------------------------

// Towards zero; out of range saturates, NaN gives zero.
template <class T>
EMU_INLINE T to_integer(double x) {
  constexpr bool kSigned = std::is_signed_v<T>;
  constexpr int kBits = sizeof(T) * 8;
  constexpr double kHigh = static_cast<double>((uint64_t{1} << (kBits - kSigned)) - 1);
  constexpr double kLow = kSigned ? -kHigh - 1 : 0.0;
  const double low = x > kLow ? x : kLow;
  const double inside = low < kHigh ? low : kHigh;
  const auto r = static_cast<T>(static_cast<int64_t>(inside));
  return x == x ? r : T{0};
}

// Nearest integer of |x| < 2^51.
EMU_INLINE double nearest(double x) { return (x + 0x1.8p52) - 0x1.8p52; }
// The same for 0 <= x < 2^52.
EMU_INLINE double nearest_positive(double x) { return (x + 0x1p52) - 0x1p52; }

EMU_INLINE int16_t to_snorm(float x) {
  const float c = x < -1 ? -1.f : x > 1 ? 1.f : x;
  return x == x ? static_cast<int16_t>(nearest(double{c} * 32767)) : int16_t{0};
}
EMU_INLINE uint16_t to_unorm(float x) {
  const float c = x < 0 ? 0.f : x > 1 ? 1.f : x;
  return x == x ? static_cast<uint16_t>(nearest(double{c} * 65535)) : uint16_t{0};
}

// ---- minimum and maximum ------------------------------------------------------------------------

template <class T>
struct FloatBits;
template <>
struct FloatBits<float> {
  using Unsigned = uint32_t;
  using Signed = int32_t;
  static constexpr uint32_t kInfinity = 0x7f800000, kQuiet = 0x00400000;
};
template <>
struct FloatBits<double> {
  using Unsigned = uint64_t;
  using Signed = int64_t;
  static constexpr uint64_t kInfinity = uint64_t{0x7ff} << 52, kQuiet = uint64_t{1} << 51;
};

// On the bits: minus zero is below zero; a NaN loses against a number, but a signalling one wins,
// made quiet, when IEEE rules are on.
template <class T, bool kMax>
EMU_INLINE T min_or_max(T a, T b, Mode mode) {
  using B = FloatBits<T>;
  using U = typename B::Unsigned;
  using S = typename B::Signed;
  constexpr int kTop = sizeof(T) * 8 - 1;
  const U x = as<U>(a), y = as<U>(b), clear = ~(U{1} << kTop);
  const S order_x =
      static_cast<S>(x) ^ static_cast<S>(static_cast<U>(static_cast<S>(x) >> kTop) >> 1);
  const S order_y =
      static_cast<S>(y) ^ static_cast<S>(static_cast<U>(static_cast<S>(y) >> kTop) >> 1);
  const bool nan_x = (x & clear) > B::kInfinity, nan_y = (y & clear) > B::kInfinity;
  U r = (kMax ? order_x > order_y : order_x < order_y) ? x : y;
  r = nan_y ? x : r;
  r = nan_x ? y : r;
  if (mode.ieee()) {
    r = nan_y && !(y & B::kQuiet) ? y | B::kQuiet : r;
    r = nan_x && !(x & B::kQuiet) ? x | B::kQuiet : r;
  }
  return as<T>(r);
}
template <class T>
EMU_INLINE T float_min(T a, T b, Mode mode) {
  return min_or_max<T, false>(a, b, mode);
}
template <class T>
EMU_INLINE T float_max(T a, T b, Mode mode) {
  return min_or_max<T, true>(a, b, mode);
}
// f16 values as floats: every f16 bit pattern has its float, signalling NaNs too.
EMU_INLINE Half half_min(Half a, Half b, Mode mode) { return {float_min(a.f, b.f, mode)}; }
EMU_INLINE Half half_max(Half a, Half b, Mode mode) { return {float_max(a.f, b.f, mode)}; }

// IEEE 754-2019 minimum and maximum: any NaN wins.
template <bool kMax>
EMU_INLINE float minimum_or_maximum(float a, float b) {
  const uint32_t x = as<uint32_t>(a), y = as<uint32_t>(b);
  const float r = min_or_max<float, kMax>(a, b, Mode{0});
  uint32_t bits = as<uint32_t>(r);
  bits = (y & 0x7fffffff) > 0x7f800000 ? y | 0x00400000 : bits;
  bits = (x & 0x7fffffff) > 0x7f800000 ? x | 0x00400000 : bits;
  return as<float>(bits);
}

EMU_INLINE float median_float(float a, float b, float c, Mode mode) {
  const Mode plain{0};
  const float bc = float_max(b, c, plain), ac = float_max(a, c, plain), ab = float_max(a, b, plain);
  const float most = float_max(ab, c, plain);
  const float least = float_min(float_min(a, b, mode), c, mode);
  const float middle = most == a ? bc : most == b ? ac : ab;
  return is_nan(a) || is_nan(b) || is_nan(c) ? least : middle;
}

// ---- dot products -------------------------------------------------------------------------------

EMU_INLINE float flush_denormal(float x) {
  return (as<uint32_t>(x) & 0x7f800000) ? x : as<float>(as<uint32_t>(x) & 0x80000000);
}
// Accumulates onto c: one fused step per product. Denormals are flushed, in and out.
EMU_INLINE float dot2_half(uint32_t a, uint32_t b, float c) {
  const float first =
      __builtin_fmaf(half_to_float(a & 0xffff), half_to_float(b & 0xffff), flush_denormal(c));
  return flush_denormal(__builtin_fmaf(half_to_float(a >> 16), half_to_float(b >> 16), first));
}
EMU_INLINE float dot2_bf16_onto(uint32_t a, uint32_t b, float c) {
  const float first = __builtin_fmaf(as<float>(a << 16), as<float>(b << 16), flush_denormal(c));
  return flush_denormal(
      __builtin_fmaf(as<float>(a & 0xffff0000), as<float>(b & 0xffff0000), first));
}
// The products first, then c.
EMU_INLINE float dot2_bf16(uint32_t a, uint32_t b, float c) {
  const float low = as<float>(a << 16) * as<float>(b << 16);
  const float sum = __builtin_fmaf(as<float>(a & 0xffff0000), as<float>(b & 0xffff0000), low);
  return flush_denormal(sum + flush_denormal(c));
}
// Sum of products of kBits wide fields, exact.
template <int kBits, bool kSigned>
EMU_INLINE int64_t dot_integers(uint32_t a, uint32_t b) {
  int64_t sum = 0;
  for (int n = 0; n < 32 / kBits; ++n) {
    const int left = 32 - kBits * (n + 1);
    if constexpr (kSigned)
      sum += int64_t{static_cast<int32_t>(a << left) >> (32 - kBits)} *
             (static_cast<int32_t>(b << left) >> (32 - kBits));
    else
      sum += int64_t{a << left >> (32 - kBits)} * (b << left >> (32 - kBits));
  }
  return sum;
}

// ---- scaling by powers of two -------------------------------------------------------------------

// x·2^n for x that came from a float or an f16: exact.
EMU_INLINE double scale_by(float x, int32_t n) {
  const int32_t limited = n < -400 ? -400 : n > 400 ? 400 : n;
  return x * as<double>(static_cast<uint64_t>(1023 + limited) << 52);
}

}  // namespace emu::EMU_NS
