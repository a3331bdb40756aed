// Sums down the columns of a matrix, in a fixed order: one for each 64 rows.
#pragma once

#include "common/kargs.hpp"
#include "common/lane_reduce.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/tile_transpose.hpp"

// Each row of dst (float32, contiguous) is the sum of 64 rows of src.
// clang-format off
#define HIPGEMM_SumRowsArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows)              \
  X(u32, cols) X(u32, in_type)
#define HIPGEMM_GradientSumRowsArgs(X) HIPGEMM_SumRowsArgs(X) HIPGEMM_GradientArgs(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SumRowsArgs);
HIPGEMM_STRUCT(GradientSumRowsArgs);

template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void sum_rows(const Args& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  const auto at = OneWayMap::of(workgroup_index(), args.rows, args.cols);
  TileOfAny<TransposedTile>::load(
      args.in_type, source_of(args), lds, at, [&](auto& tile) HIPGEMM_INLINE {
        tile.begin_transpose();
        tile.finish_transpose();
        const u64 sums = reinterpret_cast<u64>(args.dst) + tile.at.first_row / OneWayMap::kRows *
                                                               static_cast<u64>(args.cols) *
                                                               sizeof(f32);
#pragma unroll
        for (u32 iteration = 0; iteration < OneWayMap::kIterations; iteration++) {
          Values<8> x;
          tile.read_col(iteration, x);
          const f32x4 four = x[0] + x[1];
          // Neighbouring lanes have the column's other rows.
          const f32 sum = reduce_lanes<OneWayMap::kColThreads>(
              (four.x + four.y) + (four.z + four.w),
              [](f32 a, f32 b) HIPGEMM_INLINE { return a + b; });
          const u32 col = tile.col(iteration);
          if (OneWayMap::thread() % OneWayMap::kColThreads == 0 && col < args.cols)
            global<f32>(sums)[col] = sum;
        }
      });
}

}  // namespace hipgemm
