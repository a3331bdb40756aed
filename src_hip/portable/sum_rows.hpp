// Sums down the columns of a matrix, in a fixed order: each 64 rows become one.
#pragma once

#include "common/join_lanes.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/value_tile.hpp"

namespace hipgemm {

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void sum_rows(const SumRowsArgs& args) {
  static_assert(OneWayTile::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayTile::Lds lds;
  with_type(args.in_type, [&]<class From>() HIPGEMM_INLINE {
    ValueTile<From, OneWayTile> tile(lds, OneWayTile::of(workgroup_index(), args.rows, args.cols));
    tile.load({reinterpret_cast<u64>(args.src), args.src_row_stride, args.src_col_stride, args.rows,
               args.cols});
    tile.begin_transpose();
    tile.finish_transpose();
    const u64 line = reinterpret_cast<u64>(args.dst) + tile.at.first_row / OneWayTile::kRows *
                                                           static_cast<u64>(args.cols) *
                                                           sizeof(f32);
#pragma unroll
    for (u32 turn = 0; turn < OneWayTile::kTurns; turn++) {
      Values<8> x;
      tile.read_col(turn, x);
      const f32x4 four = x[0] + x[1];
      // The column's other rows are with the neighbours.
      const f32 sum = join_lanes<OneWayTile::kColThreads>(
          (four.x + four.y) + (four.z + four.w), [](f32 a, f32 b) HIPGEMM_INLINE { return a + b; });
      const u32 col = tile.col(turn);
      if (OneWayTile::thread() % OneWayTile::kColThreads == 0 && col < args.cols)
        global<f32>(line)[col] = sum;
    }
  });
}

}  // namespace hipgemm
