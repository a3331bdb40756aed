// The fp8 quantizers: one scale for a tensor, for each row or for each block.
#pragma once

#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/amax_scaling.hpp"
#include "quantize/quantized_row.hpp"
#include "quantize/rounding.hpp"
#include "quantize/tile_amax.hpp"
#include "quantize/tile_load.hpp"

// Floats of amax, scale, next: with step 0 one for all, with step 1 one for each row. next is
// max-accumulated. in_type, element: Format.
// clang-format off
#define HIPGEMM_QuantizeFp8Args(X)                                                                \
  X(ptr, src) X(ptr, dst) X(ptr, amax) X(ptr, scale) X(ptr, next) X(i64, src_row_stride)          \
  X(i64, src_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, amax_step)            \
  X(f32, eps) X(u32, in_type) X(u32, element)
// Blocks have block_rows rows (1 or all of a tile) and a tile's columns. Matrices of matrix_rows
// rows follow each other; blocks end with each. Strides of scale and amax are bytes.
#define HIPGEMM_QuantizeFp8BlocksArgs(X)                                                          \
  X(ptr, src) X(ptr, dst) X(ptr, amax) X(ptr, scale) X(i64, src_row_stride) X(i64, src_col_stride)\
  X(i64, dst_pitch) X(i64, scale_row_stride) X(i64, scale_col_stride) X(u32, rows) X(u32, cols)   \
  X(u32, matrix_rows) X(u32, block_rows) X(f32, eps) X(u32, in_type) X(u32, element)

#define HIPGEMM_GradientFp8Args(X) HIPGEMM_QuantizeFp8Args(X) HIPGEMM_GradientArgs(X)
// transposed: the gradient's columns are the rows of all the above.
#define HIPGEMM_GradientFp8BlocksArgs(X)                                                          \
  HIPGEMM_QuantizeFp8BlocksArgs(X) HIPGEMM_GradientArgs(X) X(u32, transposed)

// With stochastic rounding. inner: Randomly.
#define HIPGEMM_RandomFp8Args(X)                                                                  \
  HIPGEMM_QuantizeFp8Args(X) X(u32, seed_low) X(u32, seed_high) X(u32, inner)
#define HIPGEMM_RandomFp8BlocksArgs(X)                                                            \
  HIPGEMM_QuantizeFp8BlocksArgs(X) X(u32, seed_low) X(u32, seed_high)
#define HIPGEMM_RandomGradientFp8Args(X) HIPGEMM_RandomFp8Args(X) HIPGEMM_GradientArgs(X)
#define HIPGEMM_RandomGradientFp8BlocksArgs(X)                                                    \
  HIPGEMM_RandomFp8BlocksArgs(X) HIPGEMM_GradientArgs(X) X(u32, transposed)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(QuantizeFp8Args);
HIPGEMM_STRUCT(QuantizeFp8BlocksArgs);
HIPGEMM_STRUCT(GradientFp8Args);
HIPGEMM_STRUCT(GradientFp8BlocksArgs);
HIPGEMM_STRUCT(RandomFp8Args);
HIPGEMM_STRUCT(RandomFp8BlocksArgs);
HIPGEMM_STRUCT(RandomGradientFp8Args);
HIPGEMM_STRUCT(RandomGradientFp8BlocksArgs);

template <class Args>
HIPGEMM_DEVICE auto rounding_of(const Args& args) {
  if constexpr (!kIsRandom<Args>)
    return ToNearestByCalls();
  else if constexpr (requires { args.inner; })
    return Randomly{1, args.cols, args.inner, {args.seed_low, args.seed_high}};
  else
    return Randomly{1, args.cols, 1, {args.seed_low, args.seed_high}};
}

// Quantizes a tile. by_row: of each iteration's row, as the thread that owns the iteration says.
template <class Element, class Tile, class Args>
HIPGEMM_DEVICE void store_fp8_tile(const Args& args, const Tile& tile, u32 rows,
                                   const AmaxScaling<Element>& scaling, bool by_row) {
  using Map = typename Tile::Map;
  const u32 row = tile.at.row(0);
  const u64 pitch = args.dst_pitch;
  const QuantizedRow<Element> to(address_of(args.dst) + row * pitch, tile.at.col(), args.cols);
  unrolled<Map::kIterations>([&]<u32 i>(Index<i> iteration) HIPGEMM_INLINE {
    Values<8> x;
    tile.read_row(i, x);
    const auto of_row = by_row ? scaling.of_iteration(iteration) : scaling;
    constexpr u32 kDown = i * Map::kRowStep;
    const auto packed = of_row.quantize(x, rounding_of(args), row + kDown, tile.at.col());
    if (row + kDown < rows) to.store(kDown * pitch, packed);
  });
}

template <class Element, class Args, class Tile>
HIPGEMM_DEVICE void quantize_fp8_tile(const Args& args, const Tile& tile) {
  // Of the 16 threads of a row in each iteration, the first four own the amax of one iteration
  // each.
  const u32 owned_row = tile.at.row(OneWayMap::thread() % OneWayMap::kIterations);
  f32 amax = 0;
  if (!args.amax_step)
    amax = load_scalar(args.amax);
  else if (OneWayMap::thread() % OneWayMap::kRowThreads < OneWayMap::kIterations &&
           owned_row < args.rows)
    amax = global<f32>(address_of(args.amax))[owned_row];
  const auto scaling = AmaxScaling<Element>::of(amax, args.eps);
  store_fp8_tile(args, tile, args.rows, scaling, args.amax_step != 0);
  const u32 scales = args.amax_step ? args.rows : 1;
  if (tile.at.col() < OneWayMap::kIterations * OneWayMap::kValues && tile.at.first_col == 0 &&
      owned_row < scales)
    global<f32>(address_of(args.scale))[owned_row] = scaling.scale();
}

template <class Args>
HIPGEMM_DEVICE void quantize_fp8_any(const Args& args, OneWayMap::Lds& lds,
                                     TileAmax<OneWayMap>::Lds& amax_lds) {
  const auto at = OneWayMap::of(workgroup_index(), args.rows, args.cols);
  TileOfAny<LoadedTile>::load(
      args.in_type, source_of(args), lds, at, [&](auto& tile) HIPGEMM_INLINE {
        if (args.next)
          TileAmax<OneWayMap>(tile).store(args.next, args.amax_step, tile.at, args.rows, amax_lds);
        if (static_cast<Format>(args.element) == Format::fp8_e5m2)
          quantize_fp8_tile<E5m2>(args, tile);
        else
          quantize_fp8_tile<E4m3>(args, tile);
      });
}
template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void quantize_fp8(const Args& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  static __shared__ TileAmax<OneWayMap>::Lds amax_lds;
  quantize_fp8_any(args, lds, amax_lds);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_fp8_random(const RandomFp8Args& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  static __shared__ TileAmax<OneWayMap>::Lds amax_lds;
  quantize_fp8_any(args, lds, amax_lds);
}

using BlockMap =
    ThreadMap<kFp8Block, kFp8Block, 8>;  // a tile is one block, or as many as it has rows

template <class Element, class Args, class Tile>
HIPGEMM_DEVICE void quantize_fp8_block_tile(const Args& args, const Tile& tile, u32 rows,
                                            u32 block_row, u32 amax, bool by_row) {
  const auto scaling = AmaxScaling<Element>::of(__builtin_bit_cast(f32, amax), args.eps);
  store_fp8_tile(args, tile, rows, scaling, by_row);
  const u32 thread = BlockMap::thread(), owned = thread % BlockMap::kRowThreads;
  if (by_row ? owned >= BlockMap::kIterations || block_row >= rows : thread != 0) return;
  const u64 at = block_row * static_cast<u64>(args.scale_row_stride) +
                 tile.at.first_col / BlockMap::kCols * static_cast<u64>(args.scale_col_stride);
  *global<f32>(address_of(args.scale) + at) = scaling.scale();
  *global<u32>(address_of(args.amax) + at) = amax;
}

// The source's rows before `rows`.
template <class Args>
HIPGEMM_DEVICE auto rows_of(const Args& args, u32 rows) {
  auto from = source_of(args);
  from.rows = rows;
  if constexpr (!kReadsGradient<Args>) {
    return from;
  } else {
    if (args.transposed) {
      from.rows = args.cols;
      from.cols = rows;
    }
    return GradientOfRows{from, args.transposed != 0};
  }
}

template <class Args>
HIPGEMM_DEVICE void quantize_fp8_any_blocks(const Args& args, BlockMap::Lds& lds,
                                            TileAmax<BlockMap>::Lds& amax_lds) {
  constexpr u32 kRows = BlockMap::kRows, kCols = BlockMap::kCols;
  const u32 down = (args.matrix_rows + kRows - 1) / kRows, across = (args.cols + kCols - 1) / kCols;
  const u32 matrix = workgroup_index() / (down * across);
  BlockMap at = BlockMap::of(workgroup_index() % (down * across), args.matrix_rows, args.cols);
  const bool by_row = args.block_rows == 1;
  const u32 block_row =
      by_row ? matrix * args.matrix_rows + at.row(BlockMap::thread() % BlockMap::kIterations)
             : matrix * down + at.first_row / kRows;
  at.first_row += matrix * args.matrix_rows;
  const u32 rows = smaller(args.rows, (matrix + 1) * args.matrix_rows);
  TileOfAny<LoadedTile>::load(
      args.in_type, rows_of(args, rows), lds, at, [&](auto& tile) HIPGEMM_INLINE {
        const TileAmax<BlockMap> tile_amax(tile);
        const u32 amax = by_row ? tile_amax.of_owned_row() : tile_amax.of_tile(amax_lds);
        if (static_cast<Format>(args.element) == Format::fp8_e5m2)
          quantize_fp8_block_tile<E5m2>(args, tile, rows, block_row, amax, by_row);
        else
          quantize_fp8_block_tile<E4m3>(args, tile, rows, block_row, amax, by_row);
      });
}
template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void quantize_fp8_blocks(const Args& args) {
  static_assert(BlockMap::is(kThreads, kRows, kCols), "");
  static __shared__ BlockMap::Lds lds;
  static __shared__ TileAmax<BlockMap>::Lds amax_lds;
  quantize_fp8_any_blocks(args, lds, amax_lds);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_fp8_blocks_random(const RandomFp8BlocksArgs& args) {
  static_assert(BlockMap::is(kThreads, kRows, kCols), "");
  static __shared__ BlockMap::Lds lds;
  static __shared__ TileAmax<BlockMap>::Lds amax_lds;
  quantize_fp8_any_blocks(args, lds, amax_lds);
}

}  // namespace hipgemm
