// The XOR swizzle of 16-byte chunks in LDS.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

inline constexpr u32 kChunkBytes = 16;  // of one lane in a DMA

// The rows of a K tile have 4, 8 or 16 chunks in LDS. A read of a fragment takes the same chunks of
// 16 rows, which lie in few banks; swizzling chunks by the row spreads each phase of the read over
// all banks (free_of_conflicts in gemm/traits.hpp). A DMA writes LDS in lane order, so the global
// address is swizzled; the swizzle is its own inverse.
//   kDistance: in chunks, between what the lane groups 0 and 1 read, and 2 and 3; 0 for groups of
//   32 lanes, which have phases of their own.
// A phase takes rows of which bits 2 and 3 are equal for one lane group, and those of which they
// differ for the other. Both together meet all banks if the swizzle of the latter rows stays among
// these when the distance is added, so these bits are not at the place of the distance.
template <u32 kRowChunks, u32 kDistance>
HIPGEMM_BOTH constexpr u32 swizzled_chunk(u32 row, u32 chunk) {
  static_assert(kRowChunks == 4 || kRowChunks == 8 || kRowChunks == 16, "");
  const auto bit = [row](u32 i) { return row >> i & 1; };
  if (kRowChunks == 4 && kDistance == 0) return chunk ^ (row >> 2 & 3);  // four rows span the banks
  if (kRowChunks == 4) return chunk ^ bit(3) << 1;
  if (kRowChunks == 8 && kDistance <= 1) return chunk ^ (row >> 1 & 7);  // two rows do
  if (kRowChunks == 8) return chunk ^ (bit(3) << 2 | bit(1) << 1 | bit(2));
  return chunk ^ ((row & 3) << 2 | (row >> 2 & 3));
}

// The swizzle where there are 32 banks, whose rows of 8 or 16 chunks all begin at the same bank.
// Eight lanes are served at once. They read a chunk of rows 0..3 and its neighbour of rows 4..7, or
// so of rows 8..15. They write 8 chunks of a row, or two neighbours of four rows that lie 2 or 4
// apart (operand_staged.hpp).
HIPGEMM_BOTH constexpr u32 staged_chunk(u32 row, u32 chunk) {
  return chunk ^ (row & 7) ^ (row >> 2 & 2);
}

}  // namespace hipgemm
