// Logical MX scales packed into words, the public layout.
#pragma once

#include "common/kargs.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "quantize/logical_scales.hpp"

// Words of four scales along K, rows contiguous.
// clang-format off
#define HIPGEMM_ScalePackArgs(X)                                                                  \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows)              \
  X(u32, blocks)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(ScalePackArgs);

// Word (k / 128, row) has the four scales of 128 elements.
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
