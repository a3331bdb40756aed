// The amax of a tensor or of each row.
#pragma once

#include "common/kargs.hpp"
#include "common/types.hpp"
#include "quantize/tile_amax.hpp"
#include "quantize/tile_load.hpp"

// amax is max-accumulated: with step 0 one float for all, with step 1 one for each row. in_type:
// Format.
// clang-format off
#define HIPGEMM_AmaxArgs(X)                                                                       \
  X(ptr, src) X(ptr, amax) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows)             \
  X(u32, cols) X(u32, amax_step) X(u32, in_type)
#define HIPGEMM_GradientAmaxArgs(X) HIPGEMM_AmaxArgs(X) HIPGEMM_GradientArgs(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(AmaxArgs);
HIPGEMM_STRUCT(GradientAmaxArgs);

template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void amax(const Args& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  static __shared__ TileAmax<OneWayMap>::Lds amax_lds;
  // In bands: few tiles of a row run at the same time, so most find a greater amax already there.
  const auto at = OneWayMap::of(kIndex<kBandTiles>, workgroup_index(), args.rows, args.cols);
  TileOfAny<LoadedTile>::load(
      args.in_type, source_of(args), lds, at, [&](auto& tile) HIPGEMM_INLINE {
        TileAmax<OneWayMap>(tile).store(args.amax, args.amax_step, tile.at, args.rows, amax_lds);
      });
}

}  // namespace hipgemm
