// Rounds a matrix to another type, multiplied or divided by a float for each row and each column.
#pragma once

#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/store_row.hpp"
#include "quantize/tile_load.hpp"

// dst = round(src * factors), or / factors; either list of factors may be null. Rows of dst are
// contiguous.
// clang-format off
#define HIPGEMM_RescaleArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(ptr, row_factor) X(ptr, col_factor) X(i64, src_row_stride)            \
  X(i64, src_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, in_type)              \
  X(u32, out_type) X(u32, divide)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(RescaleArgs);

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void rescale(const RescaleArgs& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  const auto at = OneWayMap::of(workgroup_index(), args.rows, args.cols);
  const auto factor_at = [](const void* factors, u32 i, u32 count) {
    return factors && i < count ? global<f32>(reinterpret_cast<u64>(factors))[i] : 1.0f;
  };
  Values<8> by_col;
#pragma unroll
  for (u32 i = 0; i < 8; i++)
    by_col[i / 4][i % 4] = factor_at(args.col_factor, at.col() + i, args.cols);
  with_type(args.in_type, [&]<class From>(From) HIPGEMM_INLINE {
    LoadedTile<From, OneWayMap> tile(lds, at);
    tile.load({reinterpret_cast<u64>(args.src), args.src_row_stride, args.src_col_stride, args.rows,
               args.cols});
#pragma unroll
    for (u32 iteration = 0; iteration < OneWayMap::kIterations; iteration++) {
      Values<8> x;
      tile.read_row(iteration, x);
      const f32 by_row = factor_at(args.row_factor, at.row(iteration), args.rows);
      for (u32 i = 0; i < 2; i++) {
        const f32x4 factor = by_col[i] * f32x4(by_row);
        x[i] = args.divide ? x[i] / factor : x[i] * factor;
      }
      store_row(args, at, iteration, x);
    }
  });
}

}  // namespace hipgemm
