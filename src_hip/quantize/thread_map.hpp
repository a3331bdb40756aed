// The thread map: which values of a tile each thread has.
#pragma once

#include "common/quantized_types.hpp"
#include "common/types.hpp"

namespace hipgemm {

inline constexpr u32 kBandTiles = 32;  // tiles of a band: ThreadMap::of

// A tile, whose values threads take along rows or down columns. In each iteration a thread has
// kValues consecutive values of a row (or a column). kBlockThreads neighbours have a block of it,
// which shares a scale. A pass is as many iterations as these threads are, so that each of them
// owns one of the pass's blocks.
template <u32 kRows_, u32 kCols_, u32 kValues_, u32 kThreadValues = 32>
struct ThreadMap {
  static constexpr u32 kRows = kRows_, kCols = kCols_, kValues = kValues_;
  static constexpr u32 kThreads = kRows * kCols / kThreadValues;
  static constexpr u32 kIterations = kThreadValues / kValues;
  static constexpr u32 kRowThreads = kCols / kValues, kColThreads = kRows / kValues;
  static constexpr u32 kBlockThreads = kBlockValues / kValues;
  static constexpr u32 kPasses = kIterations / kBlockThreads;
  static_assert(kIterations % kBlockThreads == 0, "each of a block's threads owns a block");

  // Whether this is the tile of a row of instances.def.
  static constexpr bool is(u32 threads, u32 rows, u32 cols) {
    return threads == kThreads && rows == kRows && cols == kCols;
  }

  // LDS for all values of 16 bits, or for half of those of 32.
  static constexpr u32 kLdsRowChunks = kCols * 2 / 16;
  using Lds = u32x4[kRows * kLdsRowChunks];

  u32 first_row, first_col;

  // The tiles of a matrix in order: row by row or, with a kBand, in bands of so many rows of tiles,
  // column by column through each band. Workgroups that run at about the same time then write long
  // contiguous pieces of columns, and few of them share a row.
  static HIPGEMM_DEVICE ThreadMap of(u32 index, u32 rows, u32 cols) {
    return of(kIndex<1>, index, rows, cols);
  }
  template <u32 kBand>
  static HIPGEMM_DEVICE ThreadMap of(Index<kBand>, u32 index, u32 rows, u32 cols) {
    const u32 across = (cols + kCols - 1) / kCols, down = (rows + kRows - 1) / kRows;
    if constexpr (kBand == 1) return {index / across * kRows, index % across * kCols};
    const u32 band = index / (across * kBand), at = index - band * (across * kBand);
    const u32 height = smaller(kBand, down - band * kBand);
    u32 row = at % kBand, col = at / kBand;
    if (height != kBand) {  // the last band
      row = at % height;
      col = at / height;
    }
    return {(band * kBand + row) * kRows, col * kCols};
  }

  static HIPGEMM_DEVICE u32 thread() { return thread_index(); }

  // Along rows: the row of an iteration and the first column. Rows of one thread are kRowStep
  // apart: neighbouring rows are loaded and stored together, and their scales are contiguous in
  // GEMM order.
  static constexpr u32 kRowStep = 16 / kIterations;
  static HIPGEMM_DEVICE u32 row_in_tile(u32 iteration) {
    const u32 row = thread() / kRowThreads;
    return row / kRowStep * 16 + row % kRowStep + iteration * kRowStep;
  }
  HIPGEMM_DEVICE u32 row(u32 iteration) const { return first_row + row_in_tile(iteration); }
  HIPGEMM_DEVICE u32 col() const { return first_col + thread() % kRowThreads * kValues; }

  // Down columns: the first row.
  HIPGEMM_DEVICE u32 row() const { return first_row + thread() % kColThreads * kValues; }
};

// Of kernels that take values along rows only, or down columns only.
using OneWayMap = ThreadMap<64, 128, 8>;

// Each thread of a block owns one iteration of a pass, and keeps its value.
template <class Map>
struct OwnedIteration {
  u32 value = 0;
  static HIPGEMM_DEVICE u32 index() { return Map::thread() % Map::kBlockThreads; }
  HIPGEMM_DEVICE void take(u32 iteration, u32 x) { value = index() == iteration ? x : value; }
};

}  // namespace hipgemm
