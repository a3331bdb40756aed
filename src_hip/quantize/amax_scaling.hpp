// How fp8 values are scaled by their amax.
#pragma once

#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/rounding.hpp"
#include "quantize/thread_map.hpp"

namespace hipgemm {

template <class Element>
struct AmaxScaling;
template <class Element, class Rounding>
HIPGEMM_SHARED u32 called_quantize_one(f32 value, AmaxScaling<Element> scaling, Rounding rounding,
                                       u32 row, u32 at);

// How the values of a tensor, a row or a block are quantized.
template <class Element>
struct AmaxScaling {
  f32 amax;        // plus eps
  f32 multiplier;  // of each value; NaN where a product is not enough: quantize_each

  static HIPGEMM_DEVICE AmaxScaling of(f32 amax, f32 eps) {
    const f32 total = amax + eps, scale = total / Element::kMax;
    const bool tiny = total < 0x1p-100f && scale != 0;  // kMax / total might overflow
    const bool nonfinite = max_magnitude(0, total) >= kInfinity;
    // Where the scale is 0, all values become zeros with their signs.
    return {total, tiny || nonfinite ? __builtin_nanf("")
                   : scale == 0      ? 0.0f
                                     : Element::kMax / total};
  }
  // That of the thread that owns an iteration's row.
  template <u32 kIteration>
  HIPGEMM_DEVICE AmaxScaling of_iteration(Index<kIteration>) const {
    const auto from = [](f32 x) HIPGEMM_INLINE {
      const u32 bits = __builtin_bit_cast(u32, x);
      return __builtin_bit_cast(f32, of_lane<OneWayMap::kRowThreads, kIteration>(bits));
    };
    return {from(amax), from(multiplier)};
  }
  // If the amax is NaN or infinite, so is the scale, and all values become NaN.
  HIPGEMM_DEVICE bool is_nonfinite() const { return max_magnitude(0, amax) >= kInfinity; }

  HIPGEMM_DEVICE f32 scale() const {
    const f32 scale = amax / Element::kMax;
    return is_nonfinite() ? __builtin_nanf("") : scale == 0 ? 1.0f : scale;
  }

  // Values of a row from value `first` on.
  template <class Rounding>
  HIPGEMM_DEVICE Packed<Element> quantize(const Values<8>& x, const Rounding& rounding, u32 row,
                                          u32 first) const {
    Values<8> scaled;
    bool no_nan = true;
    for (u32 i = 0; i < 2; i++) {
      scaled[i] = x[i] * f32x4(multiplier);
      for (u32 e = 0; e < 4; e++) no_nan &= scaled[i][e] == scaled[i][e];
    }
    return no_nan ? rounding.template pack<Element, 8>(scaled, 1.0f, row, first)
                  : quantize_each(x, rounding, row, first);
  }

  // A NaN keeps its sign, which a product or a conversion keeps on some machines only.
  template <class Rounding>
  HIPGEMM_DEVICE u32 quantize_one(f32 value, const Rounding& rounding, u32 row, u32 at) const {
    const f32 scaled = multiplier == multiplier ? value * multiplier : value / amax * Element::kMax;
    const u32 sign = value == value ? 0 : __builtin_bit_cast(u32, value) >> 24 & 0x80;
    const u32 bits = rounding.template pack_one<Element>(scaled, row, at);
    return scaled == scaled ? bits : 0x7f | sign;
  }

 private:
  // One by one: this is rare. (NVIDIA GPUs pass structures to functions in memory.)
  template <class Rounding>
  HIPGEMM_DEVICE Packed<Element> quantize_each(const Values<8>& x, const Rounding& rounding,
                                               u32 row, u32 first) const {
    if (is_nonfinite()) return Packed<Element>(0x7f7f7f7f);
    Packed<Element> packed = 0;
#pragma unroll 1
    for (u32 at = 0; at < 8; at++) {
      f32 value = x[0][0];
#pragma unroll
      for (u32 i = 1; i < 8; i++) value = at == i ? x[i / 4][i % 4] : value;
      u32 code;
      if constexpr (Rounding::kCalls && !HIPGEMM_PAIR_CASTS)
        code = called_quantize_one(value, *this, rounding, row, first + at);
      else
        code = quantize_one(value, rounding, row, first + at);
      const u32 byte = code << at % 4 * 8;
      packed |= Packed<Element>{at < 4 ? byte : 0, at < 4 ? 0 : byte};
    }
    return packed;
  }
};

template <class Element, class Rounding>
HIPGEMM_SHARED u32 called_quantize_one(f32 value, AmaxScaling<Element> scaling, Rounding rounding,
                                       u32 row, u32 at) {
  return scaling.quantize_one(value, rounding, row, at);
}

}  // namespace hipgemm
