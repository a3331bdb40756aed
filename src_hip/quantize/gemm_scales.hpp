// Logical MX scales to GEMM order.
#pragma once

#include "common/kargs.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "quantize/logical_scales.hpp"

// To GEMM order (scale_layout.hpp). step: rows padded to 16; k_tile: elements of a K tile.
// row_block, col_block: rows, and blocks of 32, that share a byte.
// clang-format off
#define HIPGEMM_ScaleOrderArgs(X)                                                                 \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows) X(u32, k)    \
  X(u32, step) X(u32, k_tile) X(u32, row_block) X(u32, col_block)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(ScaleOrderArgs);

// Each thread writes one word: two rows, two steps.
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE void mx_gemm_scale(const ScaleOrderArgs& args) {
  static_assert(kThreads == kWords, "");
  const u32 word = global_thread(kThreads);
  const u32 row_words = args.step * kUnitSteps / 4;
  const u32 block_row = word / row_words, position = word % row_words * 2;
  const u32 unit = block_row / kStepBlocks, block = block_row % kStepBlocks;
  const u32 units = count_k_tiles(args.k, kStepElements * kUnitSteps);
  if (unit >= units) return;
  const LogicalScales from{args.src,
                           args.src_row_stride,
                           args.src_col_stride,
                           args.rows,
                           (args.k + kScaleBlock - 1) / kScaleBlock,
                           args.row_block,
                           args.col_block};
  const u32 tile_steps = args.k_tile / kStepElements;
  u32 value = 0;
#pragma unroll
  for (u32 byte = 0; byte < 4; byte++) {
    const u32 step = step_of_iteration(unit * kUnitSteps + byte % kUnitSteps, args.k, tile_steps);
    const u32 scale = step == kNoStep ? kNeutralScale
                                      : from.at(scale_position(position + byte / kUnitSteps),
                                                step * kStepBlocks + block);
    value |= scale << byte * 8;
  }
  store_word(args.dst, word, value);
}

}  // namespace hipgemm
