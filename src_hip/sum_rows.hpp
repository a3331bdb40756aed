// Sums down the columns of a matrix, in a fixed order: each 64 rows become one.
#pragma once

#include "kargs.hpp"
#include "memory.hpp"
#include "types.hpp"
#include "value_tile.hpp"

namespace hipgemm {

template <u32 kThreads>
HIPGEMM_DEVICE void sum_rows(const SumRowsArgs& args) {
  static_assert(kThreads == ValueTile::kThreads && ValueTile::kColBlocks == 2,
                "two threads share a column of the tile");
  static __shared__ ValueTile::Lds lds;
  static __shared__ f32 lower[ValueTile::kCols];
  const u32 across = (args.cols + ValueTile::kCols - 1) / ValueTile::kCols;
  const u32 at = workgroup_index();
  ValueTile tile(lds, at / across, at % across);
  tile.load({reinterpret_cast<u64>(args.src), args.src_row_stride, args.src_col_stride, args.rows,
             args.cols},
            static_cast<ElementType>(args.in_type));
  Values x;
  tile.read_col_block(x);
  f32x4 sums = x[0];
#pragma unroll
  for (u32 i = 1; i < kValues / 4; i++) sums += x[i];
  const f32 sum = (sums.x + sums.y) + (sums.z + sums.w);
  const u32 column = ValueTile::thread() % ValueTile::kCols;
  const bool upper = ValueTile::col_block() == 0;
  if (!upper) lower[column] = sum;
  sync_workgroup();
  if (upper && tile.col() < args.cols)
    global<f32>(reinterpret_cast<u64>(args.dst) +
                at / across * static_cast<u64>(args.cols) * 4)[tile.col()] = sum + lower[column];
}

}  // namespace hipgemm
