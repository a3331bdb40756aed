// The MX quantizer down columns, with new blocks at each group of rows.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/scale_layout.hpp"
#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "quantize/block_scales.hpp"
#include "quantize/rounding.hpp"
#include "quantize/tile_transpose.hpp"

// Blocks down columns, in groups of rows (groups.hpp); the result keeps the layout of src. in_type,
// element: Format. rule: ScaleRule. status: an OffsetFault, for wrong offsets.
// clang-format off
#define HIPGEMM_QuantizeGroupsArgs(X)                                                             \
  X(ptr, src) X(ptr, data) X(ptr, scale) X(ptr, gemm_scale) X(ptr, offsets) X(ptr, status)        \
  X(i64, src_row_stride) X(i64, src_col_stride) X(i64, data_pitch) X(i64, scale_pitch)            \
  X(u32, rows) X(u32, cols) X(u32, groups) X(u32, in_type) X(u32, element) X(u32, rule)
#define HIPGEMM_GradientGroupsArgs(X) HIPGEMM_QuantizeGroupsArgs(X) HIPGEMM_GradientArgs(X)

// With stochastic rounding.
#define HIPGEMM_RandomGroupsArgs(X)                                                               \
  HIPGEMM_QuantizeGroupsArgs(X) X(u32, seed_low) X(u32, seed_high)
#define HIPGEMM_RandomGradientGroupsArgs(X) HIPGEMM_RandomGroupsArgs(X) HIPGEMM_GradientArgs(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(QuantizeGroupsArgs);
HIPGEMM_STRUCT(GradientGroupsArgs);
HIPGEMM_STRUCT(RandomGroupsArgs);
HIPGEMM_STRUCT(RandomGradientGroupsArgs);

// The result is stored row by row, as products read it, whatever the offsets. Threads have columns:
// a tile of it is transposed in LDS.
class QuantizedInLds {
 public:
  HIPGEMM_DEVICE explicit QuantizedInLds(OneWayMap::Lds& lds) : lds_((LdsByte*)lds) {}

  // Eight rows of neighbouring columns.
  template <u32 kColumns, class Packed>
  HIPGEMM_DEVICE void write(u32 row, u32 col, const Packed (&packed)[kColumns]) const {
    static_assert(kColumns == 1 || kColumns == 2, "");
#pragma unroll
    for (u32 i = 0; i < OneWayMap::kValues; i++) {
      const auto byte = [&](u32 c) { return packed[c][i / 4] >> i % 4 * 8 & 0xff; };
      LdsByte* const at = chunk_at(row + i, col / kChunkBytes) + col % kChunkBytes;
      if constexpr (kColumns == 1)
        *at = static_cast<u8>(byte(0));
      else
        *(__attribute__((address_space(3))) u16*)at = static_cast<u16>(byte(0) | byte(1) << 8);
    }
  }
  // Columns are stored in whole chunks.
  HIPGEMM_DEVICE void store(u64 first, u64 pitch, u32 rows, u32 cols) const {
    const u32 thread = OneWayMap::thread();
    const u32 chunk = thread % kChunks;
#pragma unroll
    for (u32 row = thread / kChunks; row < OneWayMap::kRows; row += OneWayMap::kThreads / kChunks)
      if (row < rows && chunk * kChunkBytes < cols)
        *global<u32x4>(first + row * pitch + chunk * kChunkBytes) =
            *(const __attribute__((address_space(3))) u32x4*)chunk_at(row, chunk);
  }

 private:
  static constexpr u32 kChunks = OneWayMap::kCols / kChunkBytes;
  // Chunks of a row are swizzled by the index of its eight rows, as in LoadedTile.
  HIPGEMM_DEVICE LdsByte* chunk_at(u32 row, u32 chunk) const {
    return lds_ + row * OneWayMap::kCols +
           (chunk ^ row / OneWayMap::kValues % kChunks) * kChunkBytes;
  }

  LdsByte* lds_;
};

// Replaces the tile's values in LDS by quantized ones. Returns the scale that the thread owns.
// first: the source's row of the thread's first values.
template <class Element, class Tile, class Rounding>
HIPGEMM_DEVICE u32 quantize_col_blocks(Tile& tile, ScaleRule rule, const QuantizedInLds& to,
                                       const Rounding& rounding, u32 first) {
  PassScales<Element, OneWayMap> scales;
#pragma unroll
  for (u32 i = 0; i < OneWayMap::kIterations; i++) scales.take(i, tile.col_amax(i));
  scales.compute(rule);
  sync_workgroup();  // all threads have read the values
  Packed<Element> packed[OneWayMap::kIterations / Tile::kWordValues][Tile::kWordValues];
  unrolled<OneWayMap::kIterations>([&]<u32 i>(Index<i> iteration) HIPGEMM_INLINE {
    Values<8> x;
    tile.read_col(i, x);
    const f32 multiplier = scales.multiplier(iteration);
    packed[i / Tile::kWordValues][i % Tile::kWordValues] = nan_by<Element>(
        multiplier, rounding.template pack<Element, 8>(x, multiplier, tile.col(i), first));
  });
#pragma unroll
  for (u32 word = 0; word < OneWayMap::kIterations / Tile::kWordValues; word++)
    to.write(OneWayMap::thread() % OneWayMap::kColThreads * OneWayMap::kValues,
             tile.col_in_tile(word * Tile::kWordValues), packed[word]);
  sync_workgroup();
  return scales.owned_byte();
}

// The scales of a group of k rows in the order of MN-major operands (scale_layout.hpp).
struct MnScales {
  u64 units;  // of the group
  u32 step_rows, k;

  // The scale of a column and a block, or padding.
  HIPGEMM_DEVICE void store(u32 col, u32 block, u32 byte) const {
    store_at(col, block % kStepBlocks, scale_iteration(block / kStepBlocks, k, 1), byte);
  }
  HIPGEMM_DEVICE void store_at(u32 col, u32 block, u32 iteration, u32 byte) const {
    if (col >= step_rows) return;
    const u32 block_row = iteration / kUnitSteps * kStepBlocks + block;
    const u64 at = block_row * static_cast<u64>(step_rows) + mn_scale_position(col);
    *global<u8>(units + at * kUnitSteps + iteration % kUnitSteps) = static_cast<u8>(byte);
  }
};

inline constexpr u32 kTileBlocks = OneWayMap::kRows / kBlockValues;

// What belongs to no block: the rest of the last step, and iteration 0 if it is unused. The last
// and the first tile of the group store them.
HIPGEMM_DEVICE void store_padding(const MnScales& to, u32 col, u32 block, u32 first_block) {
  static_assert(kStepBlocks == 2 * kTileBlocks, "a tile is a step or half of one");
  const u32 steps = count_k_tiles(to.k, kStepElements), next_block = first_block + kTileBlocks;
  if (next_block * kScaleBlock >= to.k && next_block < steps * kStepBlocks)
    to.store(col, next_block + block, kNeutralScale);
  if (first_block == 0 && steps % kUnitSteps != 0) {
    to.store_at(col, block, 0, kNeutralScale);
    to.store_at(col, block + kTileBlocks, 0, kNeutralScale);
  }
}

// Of elements that are a row apart, from any row on: k, which no index needs, is not a multiple
// of 4.
template <class Args>
HIPGEMM_DEVICE auto rounding_of(const Args& args) {
  if constexpr (kIsRandom<Args>)
    return Randomly{1, 1, args.cols, {args.seed_low, args.seed_high}};
  else
    return ToNearestByCalls();
}

// Grid: slots of the groups, and columns of tiles in each.
template <class Args>
HIPGEMM_DEVICE void quantize_groups(const Args& args, OneWayMap::Lds& lds) {
  const u32 workgroup = workgroup_index(), thread = OneWayMap::thread();
  const u32 across = (args.cols + OneWayMap::kCols - 1) / OneWayMap::kCols;
  const Groups groups(args.offsets, args.groups, args.rows);
  if (workgroup == 0 && thread < kWaveLanes) groups.check(args.status, 1);

  const GroupSlot slot = groups.find<OneWayMap::kRows>(workgroup / across);
  if (slot.index >= (slot.end - slot.begin + OneWayMap::kRows - 1) / OneWayMap::kRows) return;
  const u32 row = slot.begin + slot.index * OneWayMap::kRows;
  const u32 rows = smaller(slot.end - row, OneWayMap::kRows);
  // Rows of no group become zero: no values are loaded for them.
  const bool exists = slot.group < args.groups;
  const u32 first_block = slot.index * kTileBlocks;  // of the tile, in the group
  const u32 tile_block = thread % OneWayMap::kColThreads / OneWayMap::kBlockThreads;
  const u32 blocks_before = groups.count_blocks_before<kBlockValues>(slot.group);

  const OneWayMap at{0, workgroup % across * OneWayMap::kCols};
  const QuantizedInLds quantized(lds);
  u32 byte = 0, col = 0;
  auto from = source_of(args);
  if constexpr (kReadsGradient<Args>) from.factors = 0;  // layers of groups have none
  from.move_rows(row);
  from.rows = exists ? rows : 0;
  TileOfAny<TransposedTile>::load(args.in_type, from, lds, at, [&](auto& tile) HIPGEMM_INLINE {
    tile.begin_transpose();
    tile.finish_transpose();
    const auto rule = static_cast<ScaleRule>(args.rule);
    const auto rounding = rounding_of(args);
    const u32 first = row + tile.at.row();
    byte = static_cast<Format>(args.element) == Format::mxfp8_e5m2
               ? quantize_col_blocks<E5m2>(tile, rule, quantized, rounding, first)
               : quantize_col_blocks<E4m3>(tile, rule, quantized, rounding, first);
    col = tile.col(thread % OneWayMap::kIterations);
  });
  quantized.store(address_of(args.data) + row * static_cast<u64>(args.data_pitch) + at.first_col,
                  args.data_pitch, rows, args.cols - at.first_col);
  if (!exists) return;
  const u32 block = first_block + tile_block;
  const bool in_group = block * kBlockValues < slot.end - slot.begin, in_columns = col < args.cols;
  if (in_group && in_columns)
    global<u8>(address_of(args.scale) +
               (blocks_before + block) * static_cast<u64>(args.scale_pitch))[col] =
        static_cast<u8>(byte);
  const u32 step_rows = (args.cols + kMnScaleRows - 1) / kMnScaleRows * kMnScaleRows;
  const u64 unit = first_slot(slot.begin, slot.group, kUnitElements);
  const MnScales mn_scales{address_of(args.gemm_scale) + unit * (step_rows * kUnitRowBytes),
                           step_rows, slot.end - slot.begin};
  mn_scales.store(col, block, in_group && in_columns ? byte : kNeutralScale);
  store_padding(mn_scales, col, tile_block, first_block);
}
template <u32 kThreads, u32 kRows, u32 kCols, class Args>
HIPGEMM_DEVICE void quantize_mxfp8_groups(const Args& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  quantize_groups(args, lds);
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp8_groups_random(const RandomGroupsArgs& args) {
  static_assert(OneWayMap::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayMap::Lds lds;
  quantize_groups(args, lds);
}

}  // namespace hipgemm
