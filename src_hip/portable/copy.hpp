// The strided copy of a matrix of plain elements: transposes, gathers strides, pads with zeros.
#pragma once

#include "common/hip_device.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"

// Strides are bytes and may be negative. Columns cols .. pad_cols - 1 of dst are set to zero.
// clang-format off
#define HIPGEMM_CopyArgs(X)                                                                       \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(i64, dst_row_stride)    \
  X(i64, dst_col_stride) X(u32, rows) X(u32, cols) X(u32, pad_cols)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(CopyArgs);

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

// One thread's elements of a tile. A wave's lanes are along the axis of the smaller stride; the
// workgroup's waves alternate along the other.
template <class Element, u32 kSide, u32 kThreads>
class CopyTile {
 public:
  static constexpr u32 kIterations = kSide * kSide / kThreads;
  static_assert(kSide % kWaveLanes == 0, "a wave stays in one row or column of a tile");

  HIPGEMM_DEVICE CopyTile(void* matrix, i64 row_stride, i64 column_stride, u32 row0, u32 column0,
                          u32 rows, u32 columns) {
    const u64 by_row = row_stride, by_column = column_stride;
    along_rows_ = magnitude(column_stride) <= magnitude(row_stride);
    const u32 thread = thread_index();
    fast_ = thread % kSide;
    slow_ = uniform(thread / kSide);
    const u32 row = row0 + (along_rows_ ? slow_ : fast_);
    const u32 column = column0 + (along_rows_ ? fast_ : slow_);
    address_ = reinterpret_cast<u64>(matrix) + row * by_row + column * by_column;
    step_ = kSlowStep * (along_rows_ ? by_row : by_column);
    const u32 rows_left = rows - smaller(row0, rows);
    const u32 columns_left = columns - smaller(column0, columns);
    iterations_end_ = along_rows_ ? rows_left : columns_left;
    inside_ = fast_ < (along_rows_ ? columns_left : rows_left);
  }

  HIPGEMM_DEVICE bool along_rows() const { return along_rows_; }
  HIPGEMM_DEVICE u32 row(u32 iteration) const { return along_rows_ ? slow(iteration) : fast_; }
  HIPGEMM_DEVICE u32 column(u32 iteration) const { return along_rows_ ? fast_ : slow(iteration); }

  // Zero outside the matrix.
  HIPGEMM_DEVICE u32 load(u32 iteration) const {
    return inside_ && slow(iteration) < iterations_end_ ? *at(iteration) : 0;
  }
  HIPGEMM_DEVICE void store(u32 iteration, u32 value) const {
    if (inside_ && slow(iteration) < iterations_end_) *at(iteration) = static_cast<Element>(value);
  }

 private:
  using Global = __attribute__((address_space(1))) Element;
  static constexpr u32 kSlowStep = kThreads / kSide;  // between iterations

  HIPGEMM_DEVICE u32 slow(u32 iteration) const { return slow_ + iteration * kSlowStep; }
  HIPGEMM_DEVICE Global* at(u32 iteration) const { return (Global*)(address_ + iteration * step_); }

  u64 address_, step_;
  u32 fast_, slow_, iterations_end_;
  bool along_rows_, inside_;
};

// A workgroup copies one tile. Where the smaller strides of source and destination are along
// different axes, the tile is transposed in LDS.
template <u32 kThreads, u32 kSide, u32 kColumns, int kBytes>
HIPGEMM_DEVICE void copy(const CopyArgs& args) {
  static_assert(kSide == kColumns, "a square tile");
  using Tile = CopyTile<typename Unsigned<kBytes>::Type, kSide, kThreads>;
  // A dword per element and an odd pitch: no bank conflicts along either axis.
  static __shared__ u32 lds[kSide][kSide + 1];

  const u32 tiles_n = (args.pad_cols + kSide - 1) / kSide;
  const u32 tile = workgroup_index();
  const u32 row = tile / tiles_n * kSide, column = tile % tiles_n * kSide;
  const Tile from(args.src, args.src_row_stride, args.src_col_stride, row, column, args.rows,
                  args.cols);
  const Tile to(args.dst, args.dst_row_stride, args.dst_col_stride, row, column, args.rows,
                args.pad_cols);

  u32 value[Tile::kIterations];
#pragma unroll
  for (u32 i = 0; i < Tile::kIterations; i++) value[i] = from.load(i);
  if (from.along_rows() != to.along_rows()) {
#pragma unroll
    for (u32 i = 0; i < Tile::kIterations; i++) lds[from.row(i)][from.column(i)] = value[i];
    sync_workgroup();
#pragma unroll
    for (u32 i = 0; i < Tile::kIterations; i++) value[i] = lds[to.row(i)][to.column(i)];
  }
#pragma unroll
  for (u32 i = 0; i < Tile::kIterations; i++) to.store(i, value[i]);
}

}  // namespace hipgemm
