// The XOR swizzle of 16-byte chunks in LDS.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

inline constexpr u32 kChunkBytes = 16;  // of one lane in a DMA

// The rows of a K tile have 8 chunks in LDS, or 4. A fragment read takes the same chunks of 16
// rows, which lie in few banks; swizzling chunks by the row spreads each phase of the read over all
// banks (free_of_conflicts in gemm/traits.hpp). A DMA writes LDS in lane order, so the global
// address is swizzled; the swizzle is its own inverse.
template <u32 kRowChunks>
HIPGEMM_BOTH constexpr u32 swizzled_chunk(u32 row, u32 chunk) {
  static_assert(kRowChunks == 8 || kRowChunks == 4, "");
  // 8 chunks: two rows span the 64 banks. 4 chunks: four rows do, and the lanes of a phase are rows
  // 0..3 and 12..15 of one chunk and rows 4..11 of the next one.
  return chunk ^ (kRowChunks == 8 ? row >> 1 & 7 : row >> 2 & 2);
}

}  // namespace hipgemm
