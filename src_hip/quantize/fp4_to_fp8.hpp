// fp4 values to fp8: every value of e2m1 is one of e4m3, so mxfp4 becomes mxfp8 with the same
// scales.
#pragma once

#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/quantized_tile.hpp"

// Packed e2m1 to e4m3.
// clang-format off
#define HIPGEMM_Fp4ToFp8Args(X)                                                                   \
  X(ptr, src) X(ptr, dst) X(i64, src_pitch) X(i64, dst_pitch) X(u32, rows) X(u32, cols)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(Fp4ToFp8Args);

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void fp4_to_fp8(const Fp4ToFp8Args& args) {
  using Map = QuantizedMap<E2m1>;
  static_assert(Map::is(kThreads, kRows, kCols), "");
  const Map at = Map::of(workgroup_index(), args.rows, args.cols);
  const QuantizedTile<E2m1> from(args.src, args.src_pitch, at, args.rows, args.cols);
#pragma unroll
  for (u32 i = 0; i < Map::kIterations; i++) {
    Values<16> x;
    unpack<E2m1, 16>(from.packed[i], x);
    if (at.row(i) >= args.rows || at.col() >= args.cols) continue;
    const Packed low = pack<E4m3, 8>({x[0], x[1]}), high = pack<E4m3, 8>({x[2], x[3]});
    *global<u32x4>(reinterpret_cast<u64>(args.dst) + at.row(i) * static_cast<u64>(args.dst_pitch) +
                   at.col()) = {low.x, low.y, high.x, high.y};
  }
}

}  // namespace hipgemm
