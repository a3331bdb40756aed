// Rounds a matrix to another type, times or over a float for each row and each column.
#pragma once

#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/dequantize.hpp"
#include "quantize/value_tile.hpp"

namespace hipgemm {

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void rescale(const RescaleArgs& args) {
  static_assert(OneWayTile::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayTile::Lds lds;
  const auto at = OneWayTile::of(workgroup_index(), args.rows, args.cols);
  const auto factor_at = [](const void* factors, u32 i, u32 count) {
    return factors && i < count ? global<f32>(reinterpret_cast<u64>(factors))[i] : 1.0f;
  };
  Values<8> by_col;
#pragma unroll
  for (u32 i = 0; i < 8; i++)
    by_col[i / 4][i % 4] = factor_at(args.col_factor, at.col() + i, args.cols);
  with_type(args.in_type, [&]<class From>() HIPGEMM_INLINE {
    ValueTile<From, OneWayTile> tile(lds, at);
    tile.load({reinterpret_cast<u64>(args.src), args.src_row_stride, args.src_col_stride, args.rows,
               args.cols});
#pragma unroll
    for (u32 turn = 0; turn < OneWayTile::kTurns; turn++) {
      Values<8> x;
      tile.read_row(turn, x);
      const f32 by_row = factor_at(args.row_factor, at.row(turn), args.rows);
      for (u32 i = 0; i < 2; i++) {
        const f32x4 factor = by_col[i] * f32x4(by_row);
        x[i] = args.divide ? x[i] / factor : x[i] * factor;
      }
      store_row(args, at, turn, x);
    }
  });
}

}  // namespace hipgemm
