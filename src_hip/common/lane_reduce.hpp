// Reductions and transposes among neighbouring lanes.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// The reduction over 1, 2, 4, 8 or 16 neighbouring lanes. All get the result, with the same bits if
// combine(a, b) is combine(b, a).
template <u32 kLanes, class T, class Combine>
HIPGEMM_DEVICE T reduce_lanes(T x, Combine combine) {
  static_assert(sizeof(T) == 4 && kLanes >= 1 && kLanes <= 16, "");
  const auto of = [](u32 bits) { return __builtin_bit_cast(T, bits); };
  if constexpr (kLanes > 1) x = combine(x, of(of_neighbours<1>(__builtin_bit_cast(u32, x))));
  if constexpr (kLanes > 2) x = combine(x, of(of_neighbours<2>(__builtin_bit_cast(u32, x))));
  if constexpr (kLanes > 4) x = combine(x, of(of_neighbours<4>(__builtin_bit_cast(u32, x))));
  if constexpr (kLanes > 8) x = combine(x, of(of_neighbours<8>(__builtin_bit_cast(u32, x))));
  return x;
}

// A transpose: N neighbouring lanes have N pieces each, and the i-th gets piece i of all, in order.
// kTogether: all lanes of the wave are at this place of the code.
template <u32 N, class Piece, bool kTogether = false>
HIPGEMM_DEVICE void transpose_lanes(Piece (&pieces)[N]) {
  static_assert(N == 1 || N == 2 || N == 4, "within four lanes");
  unrolled<N == 4 ? 2 : N - 1>([&]<u32 bit>(Index<bit>) HIPGEMM_INLINE {
    constexpr u32 kAway = 1 << bit;
    const bool upper = thread_index() & kAway;
#pragma unroll
    for (u32 low = 0; low < N; low++) {
      if (low & kAway) continue;
      Piece &a = pieces[low], &b = pieces[low | kAway];
      Piece sent = upper ? a : b;
      for (u32 word = 0; word < sizeof(Piece) / 4; word++)
        sent[word] = kTogether ? of_neighbours<kAway>(sent[word]) : of_partner<kAway>(sent[word]);
      (upper ? a : b) = sent;
    }
  });
}

}  // namespace hipgemm
