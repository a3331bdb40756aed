// The XOR swizzle of 16-byte chunks in LDS.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

inline constexpr u32 kChunkBytes = 16;  // of one lane in a DMA and in ds_read_b128
inline constexpr u32 kRowBytes = 128;   // one row of a K tile
inline constexpr u32 kRowChunks = kRowBytes / kChunkBytes;

// Rows are 128 bytes apart, so two of them span the 64 banks and a fragment read, which takes the
// same chunk of 16 rows, would use four banks only. Swizzling chunks by the row pair spreads each
// of ds_read_b128's 16-lane phases over all banks. A DMA writes LDS in lane order, so the global
// address is swizzled; the swizzle is its own inverse.
HIPGEMM_BOTH constexpr u32 swizzled_chunk(u32 row, u32 chunk) {
  return chunk ^ ((row >> 1) & (kRowChunks - 1));
}

}  // namespace hipgemm
