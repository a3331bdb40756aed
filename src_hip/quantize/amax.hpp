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
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(AmaxArgs);

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void amax(const AmaxArgs& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  static __shared__ TileAmax<OneWayMap>::Lds amax_lds;
  with_type(args.in_type, [&]<class From>(From) HIPGEMM_INLINE {
    // In bands: few tiles of a row run at the same time, so most find a greater amax already there.
    LoadedTile<From, OneWayMap> tile(
        lds, OneWayMap::of(kIndex<kBandTiles>, workgroup_index(), args.rows, args.cols));
    tile.load(source_of(args));
    TileAmax<OneWayMap>(tile).store(args.amax, args.amax_step, tile.at, args.rows, amax_lds);
  });
}

}  // namespace hipgemm
