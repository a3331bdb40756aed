// Logical MX scales of groups of rows to the order of MN-major operands.
#pragma once

#include "common/groups.hpp"
#include "common/kargs.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "quantize/logical_scales.hpp"

// Scales of blocks down columns, a row of them for each block, to the order of MN-major operands
// (scale_layout.hpp), unit by unit of each group of rows (groups.hpp). by_group: new blocks begin
// with each group. status: an OffsetFault, for wrong offsets.
// clang-format off
#define HIPGEMM_GroupScaleArgs(X)                                                                 \
  X(ptr, src) X(ptr, dst) X(ptr, offsets) X(ptr, status) X(i64, src_row_stride)                   \
  X(i64, src_col_stride) X(u32, rows) X(u32, cols) X(u32, groups) X(u32, by_group)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(GroupScaleArgs);

// Each thread writes a word of a unit: two rows, two steps. Grid: slots of kUnitElements rows,
// times the words of one. Blocks are counted group by group, or from the first row of all.
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE void mx_group_scale(const GroupScaleArgs& args) {
  static_assert(kThreads == kWords, "");
  const u32 step_rows = (args.cols + kMnScaleRows - 1) / kMnScaleRows * kMnScaleRows;
  const u32 row_words = step_rows * kUnitSteps / 4, words = row_words * kStepBlocks;
  const u32 across = (words + kThreads - 1) / kThreads;
  const u32 workgroup = __builtin_amdgcn_workgroup_id_x(), index = workgroup / across;
  const u32 word = workgroup % across * kThreads + __builtin_amdgcn_workitem_id_x();
  const Groups groups(args.offsets, args.groups, args.rows);
  if (workgroup == 0 && __builtin_amdgcn_workitem_id_x() < kWaveLanes)
    groups.check(args.status, args.by_group ? 1 : kScaleBlock);

  const GroupSlot slot = groups.find<kUnitElements>(index);
  const u32 k = slot.end - slot.begin;
  if (slot.group == args.groups || k == 0 || slot.index > (k - 1) / kUnitElements) return;
  const u32 first = args.by_group ? groups.count_blocks_before<kScaleBlock>(slot.group)
                                  : slot.begin / kScaleBlock;
  if (word >= words) return;
  const u32 block = word / row_words, position = word % row_words * 2;
  const u32 blocks = (k + kScaleBlock - 1) / kScaleBlock;
  const LogicalScales from{
      reinterpret_cast<const u8*>(args.src) + first * static_cast<u64>(args.src_row_stride),
      args.src_row_stride, args.src_col_stride, blocks, args.cols};
  u32 value = 0;
#pragma unroll
  for (u32 byte = 0; byte < 4; byte++) {
    const u32 step = step_of_iteration(slot.index * kUnitSteps + byte % kUnitSteps, k, 1);
    const u32 scale = step == kNoStep ? kNeutralScale
                                      : from.at(step * kStepBlocks + block,
                                                mn_scale_row(position + byte / kUnitSteps));
    value |= scale << byte * 8;
  }
  store_word(reinterpret_cast<void*>(reinterpret_cast<u64>(args.dst) +
                                     index * static_cast<u64>(step_rows * kUnitRowBytes)),
             word, value);
}

}  // namespace hipgemm
