// Strided copy of a matrix of plain elements: transposes, gathers strides, pads with zeros.
#pragma once

#include "hip_device.hpp"
#include "kargs.hpp"
#include "types.hpp"

namespace hipgemm {

template <int kBytes>
struct Unsigned;
template <>
struct Unsigned<1> {
  using Type = u8;
};
template <>
struct Unsigned<2> {
  using Type = u16;
};
template <>
struct Unsigned<4> {
  using Type = u32;
};

HIPGEMM_DEVICE u64 magnitude(i64 x) { return x < 0 ? -static_cast<u64>(x) : x; }

// A workgroup moves one tile. Lanes run along the axis whose stride is the smaller, on each side;
// where the two sides disagree the tile is turned in LDS.
template <int kBytes, u32 kTileRows, u32 kTileColumns, u32 kThreads>
HIPGEMM_DEVICE void copy_strided(const CopyArgs& args) {
  using Element = typename Unsigned<kBytes>::Type;
  using Global = __attribute__((address_space(1))) Element;
  constexpr u32 kPerThread = kTileRows * kTileColumns / kThreads;
  // A dword per element and an odd pitch: no bank conflicts along either axis.
  static __shared__ u32 lds[kTileRows][kTileColumns + 1];

  const u32 thread = __builtin_amdgcn_workitem_id_x();
  const u32 tiles_n = (args.pad_cols + kTileColumns - 1) / kTileColumns;
  const u32 tile = __builtin_amdgcn_workgroup_id_x();
  const u32 row0 = tile / tiles_n * kTileRows, column0 = tile % tiles_n * kTileColumns;

  const bool read_along_rows = magnitude(args.src_col_stride) <= magnitude(args.src_row_stride);
  const bool write_along_rows = magnitude(args.dst_col_stride) <= magnitude(args.dst_row_stride);
  struct Spot {
    u32 row, column;
  };
  const auto spot = [&](u32 i, bool along_rows) {
    const u32 slow = (thread + i * kThreads) / 64, fast = thread % 64;
    return along_rows ? Spot{slow, fast} : Spot{fast, slow};
  };
  const auto load = [&](Spot s) -> u32 {
    const u32 row = row0 + s.row, column = column0 + s.column;
    if (row >= args.rows || column >= args.cols) return 0;
    return *(const Global*)(reinterpret_cast<u64>(args.src) + row * args.src_row_stride +
                            column * args.src_col_stride);
  };
  const auto store = [&](Spot s, u32 value) {
    const u32 row = row0 + s.row, column = column0 + s.column;
    if (row >= args.rows || column >= args.pad_cols) return;
    *(Global*)(reinterpret_cast<u64>(args.dst) + row * args.dst_row_stride +
               column * args.dst_col_stride) = static_cast<Element>(value);
  };

  u32 value[kPerThread];
#pragma unroll
  for (u32 i = 0; i < kPerThread; i++) value[i] = load(spot(i, read_along_rows));
  if (read_along_rows != write_along_rows) {
#pragma unroll
    for (u32 i = 0; i < kPerThread; i++) {
      const Spot s = spot(i, read_along_rows);
      lds[s.row][s.column] = value[i];
    }
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
#pragma unroll
    for (u32 i = 0; i < kPerThread; i++) {
      const Spot s = spot(i, write_along_rows);
      value[i] = lds[s.row][s.column];
    }
  }
#pragma unroll
  for (u32 i = 0; i < kPerThread; i++) store(spot(i, write_along_rows), value[i]);
}

}  // namespace hipgemm
