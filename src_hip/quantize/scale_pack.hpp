// Logical MX scales, a byte for each row and block, into the layouts that others read.
#pragma once

#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"

namespace hipgemm {

// 2^0: harmless beside data that is zero.
inline constexpr u32 kNeutralScale = 127;

struct LogicalScales {
  const void* src;
  i64 row_stride, col_stride;
  u32 rows, blocks;

  HIPGEMM_DEVICE u32 at(u32 row, u32 block) const {
    if (row >= rows || block >= blocks) return kNeutralScale;
    return *reinterpret_cast<const __attribute__((address_space(1))) u8*>(
        reinterpret_cast<u64>(src) + row * static_cast<u64>(row_stride) +
        block * static_cast<u64>(col_stride));
  }
};

HIPGEMM_DEVICE u32 global_thread(u32 threads) {
  return workgroup_index() * threads + thread_index();
}
HIPGEMM_DEVICE void store_word(void* dst, u32 word, u32 value) {
  reinterpret_cast<__attribute__((address_space(1))) u32*>(reinterpret_cast<u64>(dst))[word] =
      value;
}

// Each thread writes one word of the GEMM order: two rows, two turns.
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE void mx_gemm_scale(const ScaleOrderArgs& args) {
  static_assert(kThreads == kWords, "");
  const u32 word = global_thread(kThreads);
  const u32 line_words = args.step * kUnitSteps / 4;
  const u32 line = word / line_words, position = word % line_words * 2;
  const u32 unit = line / kStepBlocks, block = line % kStepBlocks;
  const u32 units = count_k_tiles(args.k, kStepNumbers * kUnitSteps);
  if (unit >= units) return;
  const LogicalScales from{args.src, args.src_row_stride, args.src_col_stride, args.rows,
                           (args.k + kScaleBlock - 1) / kScaleBlock};
  const u32 tile_steps = args.bits == 4 ? 2 : 1;
  u32 value = 0;
#pragma unroll
  for (u32 byte = 0; byte < 4; byte++) {
    const u32 step = step_of_turn(unit * kUnitSteps + byte % kUnitSteps, args.k, tile_steps);
    const u32 scale = step == kNoStep ? kNeutralScale
                                      : from.at(scale_position(position + byte / kUnitSteps),
                                                step * kStepBlocks + block);
    value |= scale << byte * 8;
  }
  store_word(args.dst, word, value);
}

// The public packing: word (k / 128, row) holds the four scales of 128 numbers.
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE void pack_mx_scales(const ScalePackArgs& args) {
  static_assert(kThreads == kWords, "");
  const u32 word = global_thread(kThreads);
  const u32 group = word / args.rows, row = word % args.rows;
  if (group >= (args.blocks + kStepBlocks - 1) / kStepBlocks) return;
  const LogicalScales from{args.src, args.src_row_stride, args.src_col_stride, args.rows,
                           args.blocks};
  u32 value = 0;
#pragma unroll
  for (u32 i = 0; i < kStepBlocks; i++) value |= from.at(row, group * kStepBlocks + i) << i * 8;
  store_word(args.dst, word, value);
}

}  // namespace hipgemm
