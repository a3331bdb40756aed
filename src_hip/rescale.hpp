// Rounds a matrix to another type, times or over a float for each row and each column.
#pragma once

#include "dequantize.hpp"
#include "kargs.hpp"
#include "memory.hpp"
#include "types.hpp"
#include "value_tile.hpp"

namespace hipgemm {

#pragma clang fp contract(off)

// The factors of a tile's columns, or ones where there are none.
HIPGEMM_DEVICE void load_column_factors(const RescaleArgs& args, u32 first_col,
                                        f32x4 (&lds)[ValueTile::kCols / 4]) {
  const u32 thread = ValueTile::thread(), col = first_col + thread;
  if (thread >= ValueTile::kCols) return;
  f32 factor = 1;
  if (args.col_factor && col < args.cols)
    factor = global<f32>(reinterpret_cast<u64>(args.col_factor))[col];
  reinterpret_cast<f32*>(lds)[thread] = factor;
}

template <u32 kThreads>
HIPGEMM_DEVICE void rescale(const RescaleArgs& args) {
  static_assert(kThreads == ValueTile::kThreads, "a thread takes 32 values of the tile");
  static __shared__ ValueTile::Lds lds;
  static __shared__ f32x4 factors[ValueTile::kCols / 4];
  const u32 across = (args.cols + ValueTile::kCols - 1) / ValueTile::kCols;
  const u32 at = workgroup_index();
  ValueTile tile(lds, at / across, at % across);
  load_column_factors(args, tile.first_col(), factors);
  tile.load({reinterpret_cast<u64>(args.src), args.src_row_stride, args.src_col_stride, args.rows,
             args.cols},
            static_cast<ElementType>(args.in_type));  // ends with a barrier
  Values x;
  tile.read_row_block(x);
  const u32 row = tile.row(), block = ValueTile::row_block();
  const u32 col = tile.first_col() + block * kValues;
  if (row >= args.rows || col >= args.cols) return;

  const f32 by_row =
      args.row_factor ? global<f32>(reinterpret_cast<u64>(args.row_factor))[row] : 1.0f;
#pragma unroll
  for (u32 i = 0; i < kValues / 4; i++) {
    const f32x4 factor = factors[block * (kValues / 4) + i] * f32x4(by_row);
    x[i] = args.divide ? x[i] / factor : x[i] * factor;
  }

  store_row(args, row, col, x);
}

}  // namespace hipgemm
