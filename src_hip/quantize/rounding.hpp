// How the quantizers round values: to nearest, or by random numbers, which may change signs too.
// Kernels for the one and the other have the same code but for this: random numbers need registers.
#pragma once

#include "common/philox.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"

namespace hipgemm {

struct ToNearest {
  static constexpr bool kCalls = false;
  template <class Element, u32 kValues>
  HIPGEMM_DEVICE Packed<Element> pack(const Values<kValues>& x, f32 multiplier, u32, u32) const {
    return hipgemm::pack<Element, kValues>(x, multiplier);
  }
  // The code of 8 bits of one value.
  template <class Element>
  HIPGEMM_DEVICE u32 pack_one(f32 x, u32, u32) const {
    return pack_four_8bit<Element>(f32x4(x)) & 0xff;
  }
  HIPGEMM_DEVICE void change_signs(Values<16>&) const {}
};

// The same where the code is used often, and conversions that are long are functions.
#if HIPGEMM_LOW_PRECISION_CASTS || HIPGEMM_PAIR_CASTS
struct ToNearestByCalls : ToNearest {
  static constexpr bool kCalls = true;
};
#else
template <class Element>
HIPGEMM_SHARED u32x2 called_pack_8bit(f32x4 low, f32x4 high, f32 multiplier) {
  return pack_8bit<Element>(low, high, multiplier);
}
template <class Element>
HIPGEMM_SHARED Vector<u32, 3> called_pack_half_of_6bit(f32x4 a, f32x4 b, f32x4 c, f32x4 d,
                                                       f32 multiplier) {
  return pack_half_of_6bit<Element>(a, b, c, d, multiplier);
}
template <class = void>
HIPGEMM_SHARED u32 called_pack_e2m1(f32x4 low, f32x4 high, f32 multiplier) {
  return pack_e2m1(low, high, multiplier);
}
struct ToNearestByCalls : ToNearest {
  static constexpr bool kCalls = true;
  template <class Element, u32 kValues>
  HIPGEMM_DEVICE Packed<Element> pack(const Values<kValues>& x, f32 by, u32, u32) const {
    if constexpr (Element::kBits == 8) {
      return called_pack_8bit<Element>(x[0], x[1], by);
    } else if constexpr (Element::kBits == 4) {
      return {called_pack_e2m1(x[0], x[1], by), called_pack_e2m1(x[2], x[3], by)};
    } else {
      const auto low = called_pack_half_of_6bit<Element>(x[0], x[1], x[2], x[3], by);
      const auto high = called_pack_half_of_6bit<Element>(x[4], x[5], x[6], x[7], by);
      return {low[0], low[1], low[2], high[0], high[1], high[2]};
    }
  }
};
#endif

// The code of a value between two neighbours: by a random word, that of the greater magnitude with
// the probability of its distance from the smaller one, relative to theirs.
template <class Element>
HIPGEMM_DEVICE u32 round_stochastic(f32 x, u32 word) {
  constexpr u32 kDropped = 23 - Element::kMantissaBits;
  constexpr u32 kBias = (1u << (Element::kBits - 2 - Element::kMantissaBits)) - 1;
  constexpr u32 kLeastNormal = (128 - kBias) << 23, kBinade = 1u << 23;
  const f32 magnitude = __builtin_fminf(__builtin_fabsf(x), Element::kMax);
  // In steps of the last bit of a float; below the least normal number, of those that it has.
  const f32 shifted = magnitude + __builtin_bit_cast(f32, kLeastNormal);
  const u32 steps =
      larger(__builtin_bit_cast(u32, magnitude) + kBinade, __builtin_bit_cast(u32, shifted));
  const u32 code = (steps - kLeastNormal + (word >> (32 - kDropped))) >> kDropped;
  return code | __builtin_bit_cast(u32, x) >> 31 << (Element::kBits - 1);
}

HIPGEMM_DEVICE u32 chosen(u32x4 words, u64 index) {
  const u32 low = index & 1 ? words.y : words.x, high = index & 1 ? words.w : words.z;
  return index & 2 ? high : low;
}
// The words of four values, `inner` elements apart.
HIPGEMM_DEVICE u32x4 random_words(u64 index, u32 inner, u32 k, PhiloxKey seed) {
  if (inner == 1 && k % 4 == 0) {  // they are those of one counter
    const u64 counter[1] = {index / 4};
    u32x4 words[1];
    philox(counter, seed, words);
    return words[0];
  }
  u64 counters[4];
  u32x4 words[4], found;
#pragma unroll
  for (u32 e = 0; e < 4; e++) counters[e] = (index + e * static_cast<u64>(inner)) / 4;
  philox(counters, seed, words);
#pragma unroll
  for (u32 e = 0; e < 4; e++) found[e] = chosen(words[e], index + e * static_cast<u64>(inner));
  return found;
}
template <class Element>
HIPGEMM_SHARED u32 stochastic_codes(f32x4 x, u64 index, u32 inner, u32 k, u32 seed_low,
                                    u32 seed_high) {
  const u32x4 words =
      random_words(index, uniform(inner), uniform(k), {uniform(seed_low), uniform(seed_high)});
  u32 codes = 0;
#pragma unroll
  for (u32 e = 0; e < 4; e++)
    codes |= round_stochastic<Element>(x[e], words[e]) << e * Element::kBits;
  return codes;
}

// By the word of each element's index, in C order of the source. Value j of row r of the result has
// the index (r / inner * k + j) * inner + r % inner; `inner` elements lie between neighbours.
struct Randomly {
  static constexpr bool kCalls = true;
  u32 stochastic, k, inner;
  PhiloxKey seed;
  u32 has_signs = 0, signs = 0;  // of this thread's values of a row

  // Of a row, from value `first` on, a multiple of 4.
  template <class Element, u32 kValues>
  HIPGEMM_DEVICE Packed<Element> pack(const Values<kValues>& x, f32 multiplier, u32 row,
                                      u32 first) const {
    if constexpr (Element::kBits == 4)  // the others have no signs, only stochastic rounding
      if (!stochastic) return ToNearestByCalls().pack<Element, kValues>(x, multiplier, row, first);
    constexpr u32 kFourBits = 4 * Element::kBits, kFours = kValues / 4;
    constexpr u32 kWords = kValues * Element::kBits / 32;
    const u64 index = index_of(row, first);
    Values<kValues> left;
#pragma unroll
    for (u32 i = 0; i < kFours; i++) left[i] = x[i];
    Packed<Element> packed(0);
    // A loop, for shorter code: the next four values are the first ones left, and their codes come
    // in from above.
#pragma unroll 1
    for (u32 four = 0; four < kFours; four++) {
      const u32 codes = stochastic_codes<Element>(left[0] * f32x4(multiplier),
                                                  index + four * 4 * static_cast<u64>(inner), inner,
                                                  k, seed.low, seed.high);
#pragma unroll
      for (u32 i = 0; i + 1 < kFours; i++) left[i] = left[i + 1];
#pragma unroll
      for (u32 i = 0; i < kWords; i++) {
        const u32 above = i + 1 < kWords ? packed[i + 1] : codes;
        packed[i] =
            kFourBits == 32 ? above : packed[i] >> kFourBits % 32 | above << (32 - kFourBits) % 32;
      }
    }
    return packed;
  }
  template <class Element>
  HIPGEMM_DEVICE u32 pack_one(f32 x, u32 row, u32 at) const {
    const u64 index = index_of(row, at), counter[1] = {index / 4};
    u32x4 words[1];
    philox(counter, seed, words);
    return round_stochastic<Element>(x, chosen(words[0], index));
  }
  // Of values that are transformed next.
  HIPGEMM_DEVICE void change_signs(Values<16>& x) const {
    if (has_signs) hipgemm::change_signs(x, signs);
  }

 private:
  HIPGEMM_DEVICE u64 index_of(u32 row, u32 at) const {
    return (static_cast<u64>(row / inner) * k + at) * inner + row % inner;
  }
};

}  // namespace hipgemm
