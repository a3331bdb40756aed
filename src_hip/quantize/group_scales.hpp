// MX scales of groups of rows, from the order of blocks to the one that products across K read.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "quantize/scale_pack.hpp"

namespace hipgemm {

// Each thread writes a word of a unit: two rows, two turns. Grid: slots of kUnitNumbers rows, times
// the words of one. Blocks are counted group by group, or from the first row of all.
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE void mx_group_scale(const GroupScaleArgs& args) {
  static_assert(kThreads == kWords, "");
  const u32 step_rows = (args.cols + kAcrossScaleRows - 1) / kAcrossScaleRows * kAcrossScaleRows;
  const u32 line_words = step_rows * kUnitSteps / 4, words = line_words * kStepBlocks;
  const u32 across = (words + kThreads - 1) / kThreads;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x(), slot = workgroup / across;
  const u32 word = workgroup % across * kThreads + __builtin_amdgcn_workitem_id_x();
  const Groups groups(args.offsets, args.groups, args.rows);
  if (workgroup == 0 && __builtin_amdgcn_workitem_id_x() < kWaveLanes)
    groups.check(args.status, args.by_group ? 1 : kScaleBlock);

  const GroupSlot at = groups.find<kUnitNumbers>(slot);
  const u32 k = at.end - at.begin;
  if (at.group == args.groups || k == 0 || at.turn > (k - 1) / kUnitNumbers) return;
  const u32 first =
      args.by_group ? groups.count_blocks_before<kScaleBlock>(at.group) : at.begin / kScaleBlock;
  if (word >= words) return;
  const u32 block = word / line_words, position = word % line_words * 2;
  const u32 blocks = (k + kScaleBlock - 1) / kScaleBlock;
  const LogicalScales from{
      reinterpret_cast<const u8*>(args.src) + first * static_cast<u64>(args.src_row_stride),
      args.src_row_stride, args.src_col_stride, blocks, args.cols};
  u32 value = 0;
#pragma unroll
  for (u32 byte = 0; byte < 4; byte++) {
    const u32 step = step_of_turn(at.turn * kUnitSteps + byte % kUnitSteps, k, 1);
    const u32 scale = step == kNoStep ? kNeutralScale
                                      : from.at(step * kStepBlocks + block,
                                                across_scale_row(position + byte / kUnitSteps));
    value |= scale << byte * 8;
  }
  store_word(reinterpret_cast<void*>(reinterpret_cast<u64>(args.dst) +
                                     slot * static_cast<u64>(step_rows * kUnitRowBytes)),
             word, value);
}

}  // namespace hipgemm
