// A thread's values of a tile, rounded and stored in rows of any type.
#pragma once

#include "common/element_types.hpp"
#include "common/lane_reduce.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"

namespace hipgemm {

// The first `count` of a thread's values. whole: all values of the tile exist, and rows are
// aligned. Threads with more than 16 bytes each are then transposed, in groups of up to four, so
// that neighbours store contiguous 16 bytes. kTogether: either all threads of a wave or none are
// here.
template <class Out, u32 kValues, bool kTogether>
HIPGEMM_DEVICE void store_values(u64 address, const Values<kValues>& x, u32 count, bool aligned,
                                 bool whole) {
  constexpr u32 kWide = 16 / Out::kBytes, kPieces = kValues / kWide, kGroup = smaller(kPieces, 4);
  u32x4 groups[kPieces / kGroup][kGroup];
#pragma unroll
  for (u32 v = 0; v < kPieces; v++) {
    u32x4& piece = groups[v / kGroup][v % kGroup];
    if constexpr (Out::kBytes == 4)
      piece = __builtin_bit_cast(u32x4, x[v]);
    else
      piece = {Out::pack(x[2 * v].xy), Out::pack(x[2 * v].zw), Out::pack(x[2 * v + 1].xy),
               Out::pack(x[2 * v + 1].zw)};
  }
  if (whole) {
    const u32 lane = (kTogether ? thread_index() : opaque(thread_index())) % kGroup;
    const u64 transposed = address - lane * (kPieces * 16) + lane * 16;
#pragma unroll
    for (u32 group = 0; group < kPieces / kGroup; group++) {
      transpose_lanes<kGroup, u32x4, kTogether>(groups[group]);
#pragma unroll
      for (u32 v = 0; v < kGroup; v++)
        *global<u32x4>(transposed + group * (kGroup * 16) + v * (kPieces * 16)) = groups[group][v];
    }
    return;
  }
#pragma unroll
  for (u32 v = 0; v < kPieces; v++) {
    const u32x4 piece = groups[v / kGroup][v % kGroup];
    if (aligned && (v + 1) * kWide <= count) {
      *global<u32x4>(address + v * 16) = piece;
      continue;
    }
    // A loop, for shorter code: the next value is the first one left.
    const u32 end = smaller(count, (v + 1) * kWide);
    u32x4 left = piece;
#pragma unroll 1
    for (u32 at = v * kWide; at < end; at++) {
      if constexpr (Out::kBytes == 4) {
        global<u32>(address)[at] = left.x;
        left = left.yzwx;
      } else {
        global<u16>(address)[at] = static_cast<u16>(left.x);
        left = left >> 16 | left.yzwx << 16;
      }
    }
  }
}

template <u32 kValues, bool kTogether = false>
HIPGEMM_DEVICE void store_values(u64 address, Format type, const Values<kValues>& x, u32 count,
                                 bool aligned, bool whole) {
  switch (type) {
    case Format::bf16:
      store_values<OutBf16, kValues, kTogether>(address, x, count, aligned, whole);
      break;
    case Format::f16:
      store_values<OutF16, kValues, kTogether>(address, x, count, aligned, whole);
      break;
    case Format::f32:
      store_values<OutF32, kValues, kTogether>(address, x, count, aligned, whole);
      break;
    default:
      break;
  }
}

// The first `count` of 8 values of a row of `length`, of which neighbouring threads have the next.
HIPGEMM_DEVICE void store_chunk(u64 address, Format type, const Values<8>& x, u32 count,
                                u32 length) {
  const bool aligned = address % 16 == 0;
  if (count != 0) store_values<8>(address, type, x, count, aligned, aligned && length % 16 == 0);
}

// An iteration's values inside the matrix, in the type of dst. For all threads of a workgroup.
template <class Map, class Args>
HIPGEMM_DEVICE void store_row(const Args& args, const Map& at, u32 iteration,
                              const Values<Map::kValues>& x) {
  const u32 row = at.row(iteration), first = at.col();
  const bool aligned = ((reinterpret_cast<u64>(args.dst) | args.dst_pitch) & 15) == 0;
  const bool whole =
      aligned && at.first_row + Map::kRows <= args.rows && at.first_col + Map::kCols <= args.cols;
  const u32 count = row < args.rows && first < args.cols ? args.cols - first : 0;
  const auto type = static_cast<Format>(args.out_type);
  const u64 to = reinterpret_cast<u64>(args.dst) + row * static_cast<u64>(args.dst_pitch) +
                 static_cast<u64>(first) * element_bytes(type);
  store_values<Map::kValues, true>(to, type, x, count, aligned, whole);
}

}  // namespace hipgemm
