// MX quantizer down columns, with blocks that begin anew at each group of rows.
#pragma once

#include "groups.hpp"
#include "kargs.hpp"
#include "memory.hpp"
#include "narrow.hpp"
#include "quantize.hpp"
#include "scale_layout.hpp"
#include "swizzle.hpp"
#include "types.hpp"
#include "value_tile.hpp"

namespace hipgemm {

#pragma clang fp contract(off)

// Codes go out as they came in, row by row: products read them there, whatever the offsets.
// A tile of them, turned from the columns of threads in LDS.
class CodeTile {
 public:
  static constexpr u32 kPitch = ValueTile::kCols + kChunkBytes;
  static_assert(ValueTile::kRows * kPitch <= sizeof(ValueTile::Lds), "fits where values were");

  HIPGEMM_DEVICE explicit CodeTile(ValueTile::Lds& lds) : lds_((LdsByte*)lds) {}

  template <class Element>
  HIPGEMM_DEVICE void write_col_block(const Codes<Element>& codes) const {
    const u32 thread = ValueTile::thread();
    LdsByte* const column =
        lds_ + ValueTile::col_block() * kValues * kPitch + thread % ValueTile::kCols;
#pragma unroll
    for (u32 i = 0; i < kValues; i++)
      column[i * kPitch] = static_cast<u8>(codes[i / 16][i / 4 % 4] >> i % 4 * 8);
  }
  // Columns to whole chunks.
  HIPGEMM_DEVICE void store(u64 first, u64 pitch, u32 rows, u32 cols) const {
    constexpr u32 kRowThreads = ValueTile::kCols / kChunkBytes;
    const u32 thread = ValueTile::thread();
    const u32 col = thread % kRowThreads * kChunkBytes;
#pragma unroll
    for (u32 row = thread / kRowThreads; row < ValueTile::kRows;
         row += ValueTile::kThreads / kRowThreads)
      if (row < rows && col < cols)
        *global<u32x4>(first + row * pitch + col) =
            *(const __attribute__((address_space(3))) u32x4*)(lds_ + row * kPitch + col);
  }

 private:
  LdsByte* lds_;
};

template <class Element>
HIPGEMM_DEVICE u32 quantize_col_block(const ValueTile& tile, ScaleRule rule,
                                      const CodeTile& codes) {
  Values x;
  Codes<Element> made;
  tile.read_col_block(x);
  sync_workgroup();
  const u32 byte = quantize_block<Element>(x, rule, made);
  codes.write_col_block<Element>(made);
  sync_workgroup();
  return byte;
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

// What no block has: the rest of the last step, and a turn that is no step's. By the last and the
// first tile of the group.
HIPGEMM_DEVICE void store_padding(const AcrossScales& to, const ValueTile& tile, u32 first_block) {
  static_assert(kStepBlocks == 2 * ValueTile::kColBlocks, "a tile is a step or half of one");
  const u32 block = ValueTile::col_block(), steps = count_k_tiles(to.k, kStepNumbers);
  const u32 behind = first_block + ValueTile::kColBlocks;
  if (behind * kScaleBlock >= to.k && behind < steps * kStepBlocks)
    to.store(tile.col(), behind + block, kNeutralScale);
  if (first_block == 0 && steps % kUnitSteps != 0) {
    to.store_turn(tile.col(), block, 0, kNeutralScale);
    to.store_turn(tile.col(), block + ValueTile::kColBlocks, 0, kNeutralScale);
  }
}

// Grid: slots of the groups, and columns of tiles in each.
template <u32 kThreads>
HIPGEMM_DEVICE void quantize_mxfp8_groups(const QuantizeGroupsArgs& args) {
  static_assert(kThreads == ValueTile::kThreads, "");
  static __shared__ ValueTile::Lds lds;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x();
  const u32 across = (args.cols + ValueTile::kCols - 1) / ValueTile::kCols;
  const Groups groups(args.offsets, args.groups, args.rows);
  if (workgroup == 0 && ValueTile::thread() < kWaveLanes) groups.check(args.status, 1);

  const GroupSlot at = groups.find<ValueTile::kRows>(workgroup / across);
  if (at.turn >= (at.end - at.begin + ValueTile::kRows - 1) / ValueTile::kRows) return;
  const u32 row = at.begin + at.turn * ValueTile::kRows;
  const u32 rows = smaller(at.end - row, ValueTile::kRows);
  // Rows of no group are made zero, from no values.
  const bool exists = at.group < args.groups;
  ValueTile tile(lds, 0, workgroup % across);
  tile.load({address_of(args.src) + row * static_cast<u64>(args.src_row_stride),
             args.src_row_stride, args.src_col_stride, exists ? rows : 0, args.cols},
            static_cast<ElementType>(args.in_type));
  const u32 first_block = at.turn * ValueTile::kColBlocks;  // of the tile, in the group
  const u32 block = first_block + ValueTile::col_block();
  const u32 blocks_before = groups.count_blocks_before<kValues>(at.group);

  const CodeTile codes(lds);
  const auto rule = static_cast<ScaleRule>(args.rule);
  const u32 byte = args.element == static_cast<u32>(Narrow::e5m2)
                       ? quantize_col_block<E5m2>(tile, rule, codes)
                       : quantize_col_block<E4m3>(tile, rule, codes);
  codes.store(address_of(args.data) + row * static_cast<u64>(args.data_pitch) + tile.first_col(),
              args.data_pitch, rows, args.cols - tile.first_col());
  if (!exists) return;
  const bool in_group = block * kValues < at.end - at.begin, in_columns = tile.col() < args.cols;
  if (in_group && in_columns)
    global<u8>(address_of(args.scale) +
               (blocks_before + block) * static_cast<u64>(args.scale_pitch))[tile.col()] =
        static_cast<u8>(byte);
  const u32 step_rows = (args.cols + kAcrossScaleRows - 1) / kAcrossScaleRows * kAcrossScaleRows;
  const u64 unit = first_slot(at.begin, at.group, kUnitNumbers);
  const AcrossScales across_k{address_of(args.gemm_scale) + unit * (step_rows * kUnitRowBytes),
                              step_rows, at.end - at.begin};
  across_k.store(tile.col(), block, in_group && in_columns ? byte : kNeutralScale);
  store_padding(across_k, tile, first_block);
}

}  // namespace hipgemm
