// Sums down the columns of each group of rows, in a fixed order.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/tile_load.hpp"

// dst (float32, contiguous): a row for each group (groups.hpp), 0 for an empty one.
// clang-format off
#define HIPGEMM_SumGroupsArgs(X)                                                                  \
  X(ptr, src) X(ptr, dst) X(ptr, offsets) X(i64, src_row_stride) X(i64, src_col_stride)           \
  X(u32, rows) X(u32, cols) X(u32, groups) X(u32, in_type)
#define HIPGEMM_GradientSumGroupsArgs(X) HIPGEMM_SumGroupsArgs(X) HIPGEMM_GradientArgs(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SumGroupsArgs);
HIPGEMM_STRUCT(GradientSumGroupsArgs);

// The sum of every kStep-th row of a column from `first` on, up to `end` and to
// kRun of them.
template <u32 kRun, u32 kStep>
HIPGEMM_DEVICE f32 sum_of_run(const Matrix& from, u32 type, u32 first, u32 end, u32 col) {
  f32 sum = 0.0f;
  with_type(type, [&]<class From>(From) HIPGEMM_INLINE {
    const u64 src = from.address + col * static_cast<u64>(from.col_stride);
    f32 x[kRun];
#pragma unroll
    for (u32 i = 0; i < kRun; i++) {
      const u64 row = smaller(first + i * kStep, end - 1);
      x[i] = From::widen(*global<typename From::Bits>(src + row * from.row_stride));
    }
#pragma unroll
    for (u32 i = 0; i < kRun; i++) sum += first + i * kStep < end ? x[i] : 0.0f;
  });
  return sum;
}
template <u32 kRun, u32 kStep>
HIPGEMM_DEVICE f32 sum_of_run(const Gradient& from, u32, u32 first, u32 end, u32 col) {
  f32 sum = 0.0f;
#pragma unroll 1
  for (u32 begin = 0; begin < kRun; begin += 8) {
    const u32 row = first + begin * kStep;
    Values<8> x;
    from.read_down(row, kStep, end - 1, col, x);
#pragma unroll
    for (u32 i = 0; i < 8; i++) sum += row + i * kStep < end ? x[i / 4][i % 4] : 0.0f;
  }
  return sum;
}

// A thread adds up every kLines-th row of a column, 16 of them before it adds these to the others:
// rounding errors then grow with a 64th of the rows.
template <u32 kThreads, u32 kGroups, u32 kCols, class Args>
HIPGEMM_DEVICE void sum_groups(const Args& args) {
  static_assert(kGroups == 1, "");
  constexpr u32 kLines = kThreads / kCols, kRun = 16;
  static __shared__ f32 lds[kLines][kCols];
  const u32 across = (args.cols + kCols - 1) / kCols, group = workgroup_index() / across;
  const u32 line = thread_index() / kCols, place = thread_index() % kCols;
  const u32 col = (workgroup_index() - group * across) * kCols + place;
  const GroupSlot at = Groups(args.offsets, args.groups, args.rows).rows(group);
  f32 total = 0.0f;
#pragma unroll 1
  for (u32 first = at.begin + line; first < at.end; first += kRun * kLines)
    total += sum_of_run<kRun, kLines>(source_of(args), args.in_type, first, at.end,
                                      smaller(col, args.cols - 1));
  lds[line][place] = total;
  sync_workgroup();
  if (line != 0 || col >= args.cols) return;
#pragma unroll
  for (u32 i = 1; i < kLines; i++) total += lds[i][place];
  global<f32>(address_of(args.dst) + group * static_cast<u64>(args.cols) * sizeof(f32))[col] =
      total;
}

}  // namespace hipgemm
