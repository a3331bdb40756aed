// MX quantizer down columns, with blocks that begin anew at each group of rows.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/narrow.hpp"
#include "common/scale_layout.hpp"
#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "quantize/quantize.hpp"
#include "quantize/value_tile.hpp"

namespace hipgemm {

// Codes go out as they came in, row by row: products read them there, whatever the offsets.
// A tile of them, turned in LDS from the columns of threads.
class CodesInLds {
 public:
  HIPGEMM_DEVICE explicit CodesInLds(OneWayTile::Lds& lds) : lds_((LdsByte*)lds) {}

  // Of neighbouring columns and eight rows each.
  template <u32 kColumns>
  HIPGEMM_DEVICE void write(u32 row, u32 col, const Codes (&codes)[kColumns]) const {
    static_assert(kColumns == 1 || kColumns == 2, "");
#pragma unroll
    for (u32 i = 0; i < OneWayTile::kValues; i++) {
      const auto code = [&](u32 c) { return codes[c][i / 4] >> i % 4 * 8 & 0xff; };
      LdsByte* const at = place(row + i, col / kChunkBytes) + col % kChunkBytes;
      if constexpr (kColumns == 1)
        *at = static_cast<u8>(code(0));
      else
        *(__attribute__((address_space(3))) u16*)at = static_cast<u16>(code(0) | code(1) << 8);
    }
  }
  // Columns to whole chunks.
  HIPGEMM_DEVICE void store(u64 first, u64 pitch, u32 rows, u32 cols) const {
    const u32 thread = OneWayTile::thread();
    const u32 chunk = thread % kChunks;
#pragma unroll
    for (u32 row = thread / kChunks; row < OneWayTile::kRows; row += OneWayTile::kThreads / kChunks)
      if (row < rows && chunk * kChunkBytes < cols)
        *global<u32x4>(first + row * pitch + chunk * kChunkBytes) =
            *(const __attribute__((address_space(3))) u32x4*)place(row, chunk);
  }

 private:
  static constexpr u32 kChunks = OneWayTile::kCols / kChunkBytes;
  // Chunks of a row trade places by the number of the eight rows it is in, as in ValueTile.
  HIPGEMM_DEVICE LdsByte* place(u32 row, u32 chunk) const {
    return lds_ + row * OneWayTile::kCols +
           (chunk ^ row / OneWayTile::kValues % kChunks) * kChunkBytes;
  }

  LdsByte* lds_;
};

// The tile's codes into LDS, where its values were. Each thread of a quad gets the scale of a turn.
template <class Element, class V>
HIPGEMM_DEVICE u32 quantize_col_blocks(V& tile, ScaleRule rule, const CodesInLds& to) {
  RoundScales<Element, OneWayTile> scales;
#pragma unroll
  for (u32 turn = 0; turn < OneWayTile::kTurns; turn++) scales.take(turn, tile.col_greatest(turn));
  scales.settle(rule);
  sync_workgroup();  // everyone has read what the codes replace
  Codes codes[OneWayTile::kTurns / V::kWordValues][V::kWordValues];
  unrolled<OneWayTile::kTurns>([&]<u32 turn>() HIPGEMM_INLINE {
    Values<8> x;
    tile.read_col(turn, x);
    codes[turn / V::kWordValues][turn % V::kWordValues] =
        quantize_by<Element, 8>(scales.template up<turn>(), x);
  });
#pragma unroll
  for (u32 word = 0; word < OneWayTile::kTurns / V::kWordValues; word++)
    to.write(OneWayTile::thread() % OneWayTile::kColThreads * OneWayTile::kValues,
             tile.col_in_tile(word * V::kWordValues), codes[word]);
  sync_workgroup();
  return scales.own_byte();
}

// The scales of a group of k rows once more, in the order of products across K (scale_layout.hpp).
struct AcrossScales {
  u64 units;  // of the group
  u32 step_rows, k;

  // Of a column and a block; padding in its place.
  HIPGEMM_DEVICE void store(u32 col, u32 block, u32 byte) const {
    store_turn(col, block % kStepBlocks, scale_turn(block / kStepBlocks, k, 1), byte);
  }
  HIPGEMM_DEVICE void store_turn(u32 col, u32 block, u32 turn, u32 byte) const {
    if (col >= step_rows) return;
    const u32 line = turn / kUnitSteps * kStepBlocks + block;
    const u64 at = line * static_cast<u64>(step_rows) + across_scale_position(col);
    *global<u8>(units + at * kUnitSteps + turn % kUnitSteps) = static_cast<u8>(byte);
  }
};

inline constexpr u32 kTileBlocks = OneWayTile::kRows / kBlockValues;

// What no block has: the rest of the last step, and a turn that is no step's. By the last and the
// first tile of the group.
HIPGEMM_DEVICE void store_padding(const AcrossScales& to, u32 col, u32 block, u32 first_block) {
  static_assert(kStepBlocks == 2 * kTileBlocks, "a tile is a step or half of one");
  const u32 steps = count_k_tiles(to.k, kStepNumbers), behind = first_block + kTileBlocks;
  if (behind * kScaleBlock >= to.k && behind < steps * kStepBlocks)
    to.store(col, behind + block, kNeutralScale);
  if (first_block == 0 && steps % kUnitSteps != 0) {
    to.store_turn(col, block, 0, kNeutralScale);
    to.store_turn(col, block + kTileBlocks, 0, kNeutralScale);
  }
}

// Grid: slots of the groups, and columns of tiles in each.
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp8_groups(const QuantizeGroupsArgs& args) {
  static_assert(OneWayTile::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayTile::Lds lds;
  const u32 workgroup = workgroup_index(), thread = OneWayTile::thread();
  const u32 across = (args.cols + OneWayTile::kCols - 1) / OneWayTile::kCols;
  const Groups groups(args.offsets, args.groups, args.rows);
  if (workgroup == 0 && thread < kWaveLanes) groups.check(args.status, 1);

  const GroupSlot at = groups.find<OneWayTile::kRows>(workgroup / across);
  if (at.turn >= (at.end - at.begin + OneWayTile::kRows - 1) / OneWayTile::kRows) return;
  const u32 row = at.begin + at.turn * OneWayTile::kRows;
  const u32 rows = smaller(at.end - row, OneWayTile::kRows);
  // Rows of no group are made zero, from no values.
  const bool exists = at.group < args.groups;
  const u32 first_block = at.turn * kTileBlocks;  // of the tile, in the group
  const u32 tile_block = thread % OneWayTile::kColThreads / OneWayTile::kBlockThreads;
  const u32 blocks_before = groups.count_blocks_before<kBlockValues>(at.group);

  const OneWayTile place{0, workgroup % across * OneWayTile::kCols};
  const CodesInLds codes(lds);
  u32 byte = 0, col = 0;
  with_type(args.in_type, [&]<class From>() HIPGEMM_INLINE {
    ValueTile<From, OneWayTile> tile(lds, place);
    tile.load({address_of(args.src) + row * static_cast<u64>(args.src_row_stride),
               args.src_row_stride, args.src_col_stride, exists ? rows : 0, args.cols});
    tile.begin_transpose();
    tile.finish_transpose();
    const auto rule = static_cast<ScaleRule>(args.rule);
    byte = static_cast<Format>(args.element) == Format::mxfp8_e5m2
               ? quantize_col_blocks<E5m2>(tile, rule, codes)
               : quantize_col_blocks<E4m3>(tile, rule, codes);
    col = tile.col(thread % OneWayTile::kTurns);
  });
  codes.store(address_of(args.data) + row * static_cast<u64>(args.data_pitch) + place.first_col,
              args.data_pitch, rows, args.cols - place.first_col);
  if (!exists) return;
  const u32 block = first_block + tile_block;
  const bool in_group = block * kBlockValues < at.end - at.begin, in_columns = col < args.cols;
  if (in_group && in_columns)
    global<u8>(address_of(args.scale) +
               (blocks_before + block) * static_cast<u64>(args.scale_pitch))[col] =
        static_cast<u8>(byte);
  const u32 step_rows = (args.cols + kAcrossScaleRows - 1) / kAcrossScaleRows * kAcrossScaleRows;
  const u64 unit = first_slot(at.begin, at.group, kUnitNumbers);
  const AcrossScales across_k{address_of(args.gemm_scale) + unit * (step_rows * kUnitRowBytes),
                              step_rows, at.end - at.begin};
  across_k.store(col, block, in_group && in_columns ? byte : kNeutralScale);
  store_padding(across_k, col, tile_block, first_block);
}

}  // namespace hipgemm
