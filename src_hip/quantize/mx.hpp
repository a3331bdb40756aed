// The MX quantizers: a scale for each block of 32 values, along rows, down columns, or both.
#pragma once

#include "common/kargs.hpp"
#include "common/lane_reduce.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "quantize/block_scales.hpp"
#include "quantize/quantized_row.hpp"
#include "quantize/rounding.hpp"
#include "quantize/tile_transpose.hpp"

// row_*: blocks along rows; col_*: down columns, stored transposed. Data, logical scales, scales in
// GEMM order; each of the last two may be null, and a direction whose data is null is not computed.
// scale_pitch: bytes between blocks. in_type, element: Format. rule: ScaleRule.
// clang-format off
#define HIPGEMM_QuantizeMxArgs(X)                                                                 \
  X(ptr, src) X(ptr, row_data) X(ptr, row_scale) X(ptr, row_gemm_scale) X(ptr, col_data)          \
  X(ptr, col_scale) X(ptr, col_gemm_scale) X(i64, src_row_stride) X(i64, src_col_stride)          \
  X(i64, row_pitch) X(i64, row_scale_pitch) X(i64, col_pitch) X(i64, col_scale_pitch)             \
  X(u32, rows) X(u32, cols) X(u32, in_type) X(u32, element) X(u32, rule) X(u32, hadamard)
#define HIPGEMM_GradientMxArgs(X) HIPGEMM_QuantizeMxArgs(X) HIPGEMM_GradientArgs(X)

// With random numbers: stochastic rounding by a seed, random signs by another one. *_inner: Randomly.
#define HIPGEMM_RandomMxArgs(X)                                                                   \
  HIPGEMM_QuantizeMxArgs(X) X(u32, stochastic) X(u32, seed_low) X(u32, seed_high)                 \
  X(u32, has_signs) X(u32, signs_low) X(u32, signs_high) X(u32, row_inner) X(u32, col_inner)
#define HIPGEMM_RandomGradientMxArgs(X) HIPGEMM_RandomMxArgs(X) HIPGEMM_GradientArgs(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(QuantizeMxArgs);
HIPGEMM_STRUCT(GradientMxArgs);
HIPGEMM_STRUCT(RandomMxArgs);
HIPGEMM_STRUCT(RandomGradientMxArgs);

// The result of one direction: a matrix of `rows` rows of k values, blocks along k. Its logical
// scales are stored block by block, rows contiguous, as a workgroup makes them: scattered bytes
// would cost a transaction each.
struct BlockedOutput {
  void *data, *scale, *gemm_scale;
  i64 pitch, scale_pitch;
  u32 rows, k;

  // The scale of the block that begins at or before value `first` of a row.
  template <class Element>
  HIPGEMM_DEVICE void store_scale(u32 row, u32 first, u32 byte) const {
    const bool exists = row < rows && first / kBlockValues * kBlockValues < k;
    if (exists && scale)
      global<u8>(address_of(scale) + first / kBlockValues * static_cast<u64>(scale_pitch))[row] =
          static_cast<u8>(byte);
    if (gemm_scale)
      store_gemm_scale<Element::kBits == 4 ? kLongTileSteps : 1>(row, first,
                                                                 exists ? byte : kNeutralScale);
  }

 private:
  // Padding is written as well: rows up to 16, steps up to a K tile, and iteration 0 if it is
  // unused (scale_layout.hpp).
  template <u32 kTileSteps>
  HIPGEMM_DEVICE void store_gemm_scale(u32 row, u32 first, u32 byte) const {
    const u32 step_rows = (rows + kScaleRows - 1) / kScaleRows * kScaleRows;
    const u32 step = first / kStepElements, block = first % kStepElements / kScaleBlock;
    if (row >= step_rows || step >= count_k_tiles(k, kTileSteps * kStepElements) * kTileSteps)
      return;
    const u32 iteration = scale_iteration(step, k, kTileSteps);
    const auto at = [&](u32 i) {
      return global<u8>(address_of(gemm_scale) + scale_offset(row, i, block, step_rows));
    };
    *at(iteration) = static_cast<u8>(byte);
    if (iteration == 1 && step_of_iteration(0, k, kTileSteps) == kNoStep) *at(0) = kNeutralScale;
  }
};

// A thread's values along rows, and down columns, with the same members: the first value in a row
// of the result, that row, its distance from the first iteration's, amax and values of an
// iteration.
template <class Tile>
struct RowValues {
  const Tile& tile;
  HIPGEMM_DEVICE u32 first() const { return tile.at.col(); }
  HIPGEMM_DEVICE u32 row(u32 iteration) const { return tile.at.row(iteration); }
  static constexpr u32 rows_from_first(u32 iteration) { return iteration * Tile::Map::kRowStep; }
  HIPGEMM_DEVICE u32 amax(u32 iteration) const { return tile.row_amax(iteration); }
  HIPGEMM_DEVICE void read(u32 iteration, Values<Tile::kValues>& x) const {
    tile.read_row(iteration, x);
  }
};
template <class Tile>
struct ColumnValues {
  const Tile& tile;
  HIPGEMM_DEVICE u32 first() const { return tile.at.row(); }
  HIPGEMM_DEVICE u32 row(u32 iteration) const { return tile.col(iteration); }
  static constexpr u32 rows_from_first(u32 iteration) { return Tile::cols_from_first(iteration); }
  HIPGEMM_DEVICE u32 amax(u32 iteration) const { return tile.col_amax(iteration); }
  HIPGEMM_DEVICE void read(u32 iteration, Values<Tile::kValues>& x) const {
    tile.read_col(iteration, x);
  }
};

// An iteration's values after the Hadamard transform, without a factor. That is a power of two,
// which the caller multiplies into the scale; values so small that the product may be rounded are
// multiplied here. Where sums overflow, smaller values are transformed. Returns the amax of the
// transformed block.
template <class Map, class TileValues, class Rounding>
HIPGEMM_DEVICE u32 read_transformed(const TileValues& values, u32 iteration,
                                    const Rounding& rounding, Values<16>& x, f32& factor) {
  values.read(iteration, x);
  rounding.change_signs(x);
  hadamard_sums(x);
  u32 amax = values_amax<16>(x);
  factor = kHadamardFactor;
  if (amax >= kInfinity) {
    values.read(iteration, x);
    rounding.change_signs(x);
    scale_values(x, kHadamardDown);
    hadamard_sums(x);
    amax = values_amax<16>(x);
    factor = kHadamardFactor / kHadamardDown;
  }
  const u32 transformed = __builtin_bit_cast(u32, __builtin_bit_cast(f32, amax) * factor);
  if (amax < __builtin_bit_cast(u32, 0x1p-100f)) {
    scale_values(x, kHadamardFactor);
    factor = 1;
  }
  return reduce_lanes<Map::kBlockThreads>(transformed, larger);
}

template <class Element, class Tile, u32 kFirstIteration, class TileValues, class Rounding>
HIPGEMM_DEVICE void quantize_pass(const TileValues& values, const BlockedOutput& out,
                                  ScaleRule rule, bool transforms, const Rounding& rounding) {
  using Map = typename Tile::Map;
  const u32 first = values.first(), row = values.row(0);
  const u64 pitch = out.pitch;
  const QuantizedRow<Element> to(address_of(out.data) + row * pitch, first, out.k);
  const auto store = [&](u32 iteration, f32 multiplier,
                         const Values<Tile::kValues>& x) HIPGEMM_INLINE {
    const u32 down = TileValues::rows_from_first(kFirstIteration + iteration);
    const auto packed =
        rounding.template pack<Element, Tile::kValues>(x, multiplier, row + down, first);
    if (row + down < out.rows) to.store(down * pitch, nan_by<Element>(multiplier, packed));
  };
  const auto store_scale = [&](u32 byte) HIPGEMM_INLINE {
    out.store_scale<Element>(values.row(kFirstIteration + OwnedIteration<Map>::index()), first,
                             byte);
  };
  if constexpr (Element::kBits == 4) {
    if (transforms) {  // one iteration after the other, to need fewer registers
      OwnedIteration<Map> bytes;
#pragma unroll
      for (u32 iteration = 0; iteration < Map::kBlockThreads; iteration++) {
        Values<16> x;
        f32 factor;
        const u32 amax =
            read_transformed<Map>(values, kFirstIteration + iteration, rounding, x, factor);
        const auto scale = BlockScale::of<Element>(amax, rule);
        store(iteration, scale.multiplier * factor, x);
        bytes.take(iteration, scale.byte);
      }
      return store_scale(bytes.value);
    }
  }
  PassScales<Element, Map> scales;
#pragma unroll
  for (u32 iteration = 0; iteration < Map::kBlockThreads; iteration++)
    scales.take(iteration, values.amax(kFirstIteration + iteration));
  scales.compute(rule);
  unrolled<Map::kBlockThreads>([&]<u32 i>(Index<i> iteration) HIPGEMM_INLINE {
    Values<Tile::kValues> x;
    values.read(kFirstIteration + i, x);
    store(i, scales.multiplier(iteration), x);
  });
  store_scale(scales.owned_byte());
}
template <class Element, class Tile, class TileValues, class Rounding>
HIPGEMM_DEVICE void quantize_values(const TileValues& values, const BlockedOutput& out,
                                    ScaleRule rule, bool transforms, const Rounding& rounding) {
  using Map = typename Tile::Map;
  unrolled<Map::kPasses>([&]<u32 pass>(Index<pass>) HIPGEMM_INLINE {
    quantize_pass<Element, Tile, pass * Map::kBlockThreads>(values, out, rule, transforms,
                                                            rounding);
  });
}

// The rounding of values along rows, or down columns, from value `first` on.
template <class Element, class Args>
HIPGEMM_DEVICE auto rounding_of(const Args& args, bool down, u32 first) {
  if constexpr (!kIsRandom<Args>) {
    return ToNearestByCalls();
  } else {
    Randomly made{args.stochastic,
                  down ? args.rows : args.cols,
                  down ? args.col_inner : args.row_inner,
                  {args.seed_low, args.seed_high}};
    if constexpr (Element::kBits == 4)
      if (args.has_signs) {
        made.has_signs = 1;
        made.signs = random_signs<16>(first, {args.signs_low, args.signs_high});
      }
    return made;
  }
}

template <class Element, class Args, class Tile>
HIPGEMM_DEVICE void quantize_mx(const Args& args, Tile& tile) {
  const auto rule = static_cast<ScaleRule>(args.rule);
  if (args.row_data)
    quantize_values<Element, Tile>(RowValues<Tile>{tile},
                                   {args.row_data, args.row_scale, args.row_gemm_scale,
                                    args.row_pitch, args.row_scale_pitch, args.rows, args.cols},
                                   rule, args.hadamard,
                                   rounding_of<Element>(args, false, tile.at.col()));
  if (!args.col_data) return;
  tile.finish_transpose();
  quantize_values<Element, Tile>(ColumnValues<Tile>{tile},
                                 {args.col_data, args.col_scale, args.col_gemm_scale,
                                  args.col_pitch, args.col_scale_pitch, args.cols, args.rows},
                                 rule, args.hadamard,
                                 rounding_of<Element>(args, true, tile.at.row()));
}

// This workgroup's tile. Along K the grid covers whole units of scales.
template <class Map, u32 kBand, class Args>
HIPGEMM_DEVICE Map mx_tile(const Args& args) {
  const auto covered = [](u32 k) HIPGEMM_INLINE {
    return (k + kUnitElements - 1) / kUnitElements * kUnitElements;
  };
  const u32 cols = args.row_data ? covered(args.cols) : args.cols;
  return args.col_data ? Map::of(kIndex<kBand>, workgroup_index(), covered(args.rows), cols)
                       : Map::of(workgroup_index(), args.rows, cols);
}

// To an element, or to `Other` where the argument says `kOther`.
template <class Element, class Other, Format kOther, class Args, class Tile>
HIPGEMM_DEVICE void quantize_to(const Args& args, Tile& tile) {
  if constexpr (!__is_same(Element, Other))
    if (static_cast<Format>(args.element) == kOther) return quantize_mx<Other>(args, tile);
  quantize_mx<Element>(args, tile);
}

template <class Sources, class Map, class Element, class Other, Format kOther, u32 kBand,
          u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void quantize_mx_kernel(const Args& args) {
  static_assert(Map::is(kThreads, kRows, kCols), "");
  static __shared__ typename Map::Lds lds;
  Sources::load(args.in_type, source_of(args), lds, mx_tile<Map, kBand>(args),
                [&](auto& tile) HIPGEMM_INLINE {
                  if (args.col_data) tile.begin_transpose();
                  quantize_to<Element, Other, kOther>(args, tile);
                });
}

// Tiles of 128 x 128: whole 128-byte lines in both directions.
template <class Sources, u32... kSizes, class Args>
HIPGEMM_DEVICE void quantize_mxfp8_as(const Args& args) {
  using Map = ThreadMap<128, 128, kValuesOf<E4m3>>;
  quantize_mx_kernel<Sources, Map, E4m3, E5m2, Format::mxfp8_e5m2, kBandTiles, kSizes...>(args);
}
// A thread has whole blocks. Tiles are as for mxfp8; 64 rows would make threads that read down
// columns use the same banks.
template <class Sources, u32... kSizes, class Args>
HIPGEMM_DEVICE void quantize_mxfp6_as(const Args& args) {
  using Map = ThreadMap<128, 128, kValuesOf<E2m3>, 64>;
  quantize_mx_kernel<Sources, Map, E2m3, E3m2, Format::mxfp6_e3m2, kBandTiles, kSizes...>(args);
}
// Arithmetic takes longer than memory here: small workgroups, and as many values per thread as
// registers allow, so that address arithmetic weighs less.
using MapOfMany = ThreadMap<64, 128, kValuesOf<E2m1>, 64>;
template <class Sources, class Map, u32... kSizes, class Args>
HIPGEMM_DEVICE void quantize_mxfp4_as(const Args& args) {
  quantize_mx_kernel<Sources, Map, E2m1, E2m1, Format::mxfp4_e2m1, 1, kSizes...>(args);
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp8(const QuantizeMxArgs& args) {
  quantize_mxfp8_as<TileOf16Bits<TransposedTile>, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void quantize_mxfp8_f32(const Args& args) {
  quantize_mxfp8_as<TileOf<TransposedTile, FromF32>, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp8_random(const RandomMxArgs& args) {
  quantize_mxfp8_as<TileOfAny<TransposedTile>, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp6(const QuantizeMxArgs& args) {
  quantize_mxfp6_as<TileOf16Bits<TransposedTile>, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp6_f32(const QuantizeMxArgs& args) {
  quantize_mxfp6_as<TileOf<TransposedTile, FromF32>, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp6_random(const RandomMxArgs& args) {
  quantize_mxfp6_as<TileOfAny<TransposedTile>, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp4(const QuantizeMxArgs& args) {
  quantize_mxfp4_as<TileOf<TransposedTile, FromBf16>, MapOfMany, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp4_f16(const QuantizeMxArgs& args) {
  quantize_mxfp4_as<TileOf<TransposedTile, FromF16>, MapOfMany, kThreads, kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void quantize_mxfp4_f32(const Args& args) {
  quantize_mxfp4_as<TileOf<TransposedTile, FromF32>, ThreadMap<64, 128, kValuesOf<E2m1>>, kThreads,
                    kRows, kCols>(args);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp4_random(const RandomMxArgs& args) {
  quantize_mxfp4_as<TileOfAny<TransposedTile>, ThreadMap<64, 128, kValuesOf<E2m1>>, kThreads, kRows,
                    kCols>(args);
}

}  // namespace hipgemm
