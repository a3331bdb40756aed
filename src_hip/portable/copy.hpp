// Strided copy of a matrix of plain elements: transposes, gathers strides, pads with zeros.
#pragma once

#include "common/hip_device.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"

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

// One thread's way through a tile of one matrix. A wave's lanes lie along the axis of the smaller
// stride; the workgroup's waves take turns along the other.
template <class Element, u32 kSide, u32 kThreads>
class TileWalk {
 public:
  static constexpr u32 kTurns = kSide * kSide / kThreads;
  static_assert(kSide % kWaveLanes == 0, "a wave stays in one line of a tile");

  HIPGEMM_DEVICE TileWalk(void* matrix, i64 row_stride, i64 column_stride, u32 row0, u32 column0,
                          u32 rows, u32 columns) {
    const u64 by_row = row_stride, by_column = column_stride;
    along_rows_ = magnitude(column_stride) <= magnitude(row_stride);
    const u32 thread = thread_index();
    fast_ = thread % kSide;
    slow_ = uniform(thread / kSide);
    const u32 row = row0 + (along_rows_ ? slow_ : fast_);
    const u32 column = column0 + (along_rows_ ? fast_ : slow_);
    address_ = reinterpret_cast<u64>(matrix) + row * by_row + column * by_column;
    step_ = kLines * (along_rows_ ? by_row : by_column);
    const u32 rows_left = rows - smaller(row0, rows);
    const u32 columns_left = columns - smaller(column0, columns);
    turns_end_ = along_rows_ ? rows_left : columns_left;
    inside_ = fast_ < (along_rows_ ? columns_left : rows_left);
  }

  HIPGEMM_DEVICE bool along_rows() const { return along_rows_; }
  HIPGEMM_DEVICE u32 row(u32 turn) const { return along_rows_ ? slow(turn) : fast_; }
  HIPGEMM_DEVICE u32 column(u32 turn) const { return along_rows_ ? fast_ : slow(turn); }

  // Zero outside the matrix.
  HIPGEMM_DEVICE u32 load(u32 turn) const {
    return inside_ && slow(turn) < turns_end_ ? *at(turn) : 0;
  }
  HIPGEMM_DEVICE void store(u32 turn, u32 value) const {
    if (inside_ && slow(turn) < turns_end_) *at(turn) = static_cast<Element>(value);
  }

 private:
  using Global = __attribute__((address_space(1))) Element;
  static constexpr u32 kLines = kThreads / kSide;  // at once

  static HIPGEMM_DEVICE u64 magnitude(i64 x) { return x < 0 ? -static_cast<u64>(x) : x; }
  HIPGEMM_DEVICE u32 slow(u32 turn) const { return slow_ + turn * kLines; }
  HIPGEMM_DEVICE Global* at(u32 turn) const { return (Global*)(address_ + turn * step_); }

  u64 address_, step_;
  u32 fast_, slow_, turns_end_;
  bool along_rows_, inside_;
};

// A workgroup moves one tile. Where source and destination want their lanes along different axes,
// the tile is turned in LDS.
template <u32 kThreads, u32 kSide, u32 kColumns, int kBytes>
HIPGEMM_DEVICE void copy(const CopyArgs& args) {
  static_assert(kSide == kColumns, "a square tile");
  using Walk = TileWalk<typename Unsigned<kBytes>::Type, kSide, kThreads>;
  // A dword per element and an odd pitch: no bank conflicts along either axis.
  static __shared__ u32 lds[kSide][kSide + 1];

  const u32 tiles_n = (args.pad_cols + kSide - 1) / kSide;
  const u32 tile = workgroup_index();
  const u32 row = tile / tiles_n * kSide, column = tile % tiles_n * kSide;
  const Walk from(args.src, args.src_row_stride, args.src_col_stride, row, column, args.rows,
                  args.cols);
  const Walk to(args.dst, args.dst_row_stride, args.dst_col_stride, row, column, args.rows,
                args.pad_cols);

  u32 value[Walk::kTurns];
#pragma unroll
  for (u32 i = 0; i < Walk::kTurns; i++) value[i] = from.load(i);
  if (from.along_rows() != to.along_rows()) {
#pragma unroll
    for (u32 i = 0; i < Walk::kTurns; i++) lds[from.row(i)][from.column(i)] = value[i];
    sync_workgroup();
#pragma unroll
    for (u32 i = 0; i < Walk::kTurns; i++) value[i] = lds[to.row(i)][to.column(i)];
  }
#pragma unroll
  for (u32 i = 0; i < Walk::kTurns; i++) to.store(i, value[i]);
}

}  // namespace hipgemm
