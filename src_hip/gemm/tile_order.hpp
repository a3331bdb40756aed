// Which output tile a workgroup computes, and in which order it iterates over K.
#pragma once

#include "common/hip_device.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"

namespace hipgemm {

struct TilePosition {
  u32 m, n;  // in tiles
};

// The dispatcher hands workgroup i to XCD i % kXcds, and each XCD has an L2 of its own. Tiles that
// share operands should use the same L2, so consecutive tiles go to the same XCD, in runs of kRun;
// the runs are short enough that all XCDs advance through the matrix together and share the
// memory-side cache. Consecutive tiles follow columns of kGroupRows tiles: a run covers about a
// square, which needs the fewest operand bytes. Small products of a batch share a run.
inline constexpr u32 kXcds = 8;
inline constexpr u32 kGroupRows = 8;
inline constexpr u32 kRun = kGroupRows * kGroupRows;

// The swizzled index of a workgroup in a grid of `count` (< 2^32) workgroups; bijective.
HIPGEMM_BOTH constexpr u32 swizzled_workgroup(u32 workgroup, u32 count) {
  // Within a span of kXcds runs (the last one may be short) every XCD owns one run; when the span
  // does not divide evenly, the first XCDs get one workgroup more, as the dispatcher does.
  const u32 start = workgroup / (kXcds * kRun) * (kXcds * kRun);
  const u32 span = smaller(count - start, kXcds * kRun);
  const u32 xcd = workgroup % kXcds, index = (workgroup - start) / kXcds;
  const u32 share = span / kXcds, extra = span % kXcds;
  return start + xcd * share + smaller(xcd, extra) + index;
}

// Bijective from 0 <= index < tiles_m * tiles_n onto the tiles.
HIPGEMM_BOTH constexpr TilePosition tile_at(u32 index, u32 tiles_m, u32 tiles_n) {
  const u32 group = index / (kGroupRows * tiles_n);
  const u32 in_group = index - group * (kGroupRows * tiles_n);
  const u32 rows = smaller(tiles_m - group * kGroupRows, kGroupRows);
  const u32 column = in_group / rows;
  return {group * kGroupRows + in_group - column * rows, column};
}

// For a grid that is the tiles of one matrix.
HIPGEMM_BOTH constexpr TilePosition tile_of_workgroup(u32 workgroup, u32 tiles_m, u32 tiles_n) {
  return tile_at(swizzled_workgroup(workgroup, tiles_m * tiles_n), tiles_m, tiles_n);
}

// The K loop starts with the last tile of K, which may be ragged, so that no later one needs masks;
// all others follow from the first on. The number of iterations is even: with an odd number of
// tiles iteration 0 is unused. So any even iteration may begin a split of K, and each split ends in
// the same stage of LDS and at the end of a unit of scales (scale_layout.hpp).
HIPGEMM_BOTH constexpr u32 count_iterations(u32 k_tiles) { return (k_tiles + 1) & ~1u; }

// The K tiles of a range of iterations.
struct KRange {
  u32 tiles;
  u32 origin;       // the K tile from which the next two are counted, so that they are not negative
  u32 first;        // the first tile of the range
  u32 second;       // the second one; the others follow it
  u32 first_index;  // of the first tile in the order of the loop
};

// Iterations begin (even) to end - 1.
HIPGEMM_BOTH constexpr KRange k_range(u32 k_tiles, u32 begin, u32 end) {
  const u32 unused = k_tiles % 2;
  if (begin == 0) return {end - unused, 0, k_tiles - 1, 0, 0};
  return {end - begin, begin - unused - 1, 0, 1, begin - unused};
}
HIPGEMM_BOTH constexpr KRange whole_k(u32 k_tiles) {
  return k_range(k_tiles, 0, count_iterations(k_tiles));
}

}  // namespace hipgemm
