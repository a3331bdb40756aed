// A loaded tile, transposed through LDS: threads have its values along rows, then down columns.
#pragma once

#include "common/types.hpp"
#include "quantize/tile_load.hpp"

namespace hipgemm {

template <class From, class Map_>
class TransposedTile : public LoadedTile<From, Map_> {
  using Base = LoadedTile<From, Map_>;
  using Base::for_each_part;
  using Base::kHalfCols;
  using Base::kHalves;

 public:
  using Map = Map_;
  using Base::kValues;
  using Base::kWordValues;

  HIPGEMM_DEVICE explicit TransposedTile(const TileBits<typename From::Bits, Map>& loaded)
      : Base(loaded) {}

  // In two steps: work on rows goes in between.
  HIPGEMM_DEVICE void begin_transpose() {
    if (Base::lds_is_used()) sync_workgroup();
    put(0);
  }
  HIPGEMM_DEVICE void finish_transpose() {
#pragma unroll
    for (u32 half = 0; half < kHalves; half++) {
      if (half != 0) {
        sync_workgroup();
        put(half);
      }
      sync_workgroup();
#pragma unroll
      for (u32 word = 0; word < kHalfWords; word++)
#pragma unroll
        for (u32 i = 0; i < kValues; i++) {
          const u32 index = word_in_half(word);
          const u32x4& four = Base::chunk(Map::thread() % Map::kColThreads * kValues, i, index / 4);
          cols_[half * kHalfWords + word][i] = reinterpret_cast<const u32*>(&four)[index % 4];
        }
    }
  }

  // An iteration's values, and their amax as bits of a float. A word has kWordValues columns of one
  // row.
  HIPGEMM_DEVICE void read_col(u32 iteration, Values<kValues>& out) const {
#pragma unroll
    for (u32 i = 0; i < kValues; i++)
      out[i / 4][i % 4] =
          From::widen_word(cols_[iteration / kWordValues][i])[iteration % kWordValues];
  }
  HIPGEMM_DEVICE u32 col_amax(u32 iteration) const {
    u32 amax = 0;
#pragma unroll
    for (u32 i = 0; i < kValues; i++)
      amax = From::max_magnitudes(amax, From::magnitudes(cols_[iteration / kWordValues][i]));
    return Base::bits_of(amax, iteration % kWordValues);
  }

  // The column of an iteration, and how far it is from the first iteration's.
  static constexpr u32 cols_from_first(u32 iteration) {
    const u32 word = iteration / kWordValues;
    return word / kHalfWords * kHalfCols + word % kHalfWords * kWordDistance * kWordValues +
           iteration % kWordValues;
  }
  static HIPGEMM_DEVICE u32 col_in_tile(u32 iteration) {
    return word_in_half(0) * kWordValues + cols_from_first(iteration);
  }
  HIPGEMM_DEVICE u32 col(u32 iteration) const {
    return Base::at.first_col + col_in_tile(iteration);
  }

 private:
  static constexpr u32 kHalfWords = Map::kIterations / kWordValues / kHalves;

  // The word of a row in LDS that a thread takes down columns. kColThreads neighbours take the same
  // one, the next ones the next of the row; further words are as far apart as possible. With 8
  // values per thread, after a chunk's four words come those two chunks on.
  static constexpr u32 kWordDistance = Map::kValues == 8 ? 4 : Map::kLdsRowChunks / kHalfWords * 4;
  static HIPGEMM_DEVICE u32 word_in_half(u32 word) {
    if constexpr (Map::kValues == 8) {
      u32 chunk = Map::thread() / (Map::kColThreads * 4) * kHalfWords + word;
      if constexpr (kHalfWords == 1) chunk = (chunk & ~3u) | (chunk & 1) << 1 | (chunk >> 1 & 1);
      return chunk * 4 + Map::thread() / Map::kColThreads % 4;
    }
    return Map::thread() / Map::kColThreads + word * kWordDistance;
  }

  HIPGEMM_DEVICE void put(u32 half) {
    for_each_part(half, [](u32x4& part, u32x4& chunk) HIPGEMM_INLINE { chunk = part; });
  }

  u32 cols_[Map::kIterations / kWordValues][kValues];
};

}  // namespace hipgemm
