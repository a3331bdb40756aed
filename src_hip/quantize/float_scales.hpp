// Float scales of blocks of 128 along K to GEMM order: exponents and multipliers.
#pragma once

#include "common/kargs.hpp"
#include "common/quantized_types.hpp"
#include "common/scale_layout.hpp"
#include "common/scaled_sum.hpp"
#include "common/types.hpp"
#include "quantize/logical_scales.hpp"

// From floats, or e8m0 bytes, src[row / row_block][K tile] to the order of scale_layout.hpp, of
// K-major or MN-major operands. step: rows padded to 16, or 64. whole: without exponents, for the
// product with an operand that has no scales: they would apply to its elements, whose products may
// underflow. Then rows are positions.
// clang-format off
#define HIPGEMM_FloatScaleArgs(X)                                                                 \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows) X(u32, k)    \
  X(u32, step) X(u32, row_block) X(u32, e8m0) X(u32, whole) X(u32, mn_major)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(FloatScaleArgs);

// Each thread takes one row in one step. The rest of a scale is in [3/4, 3/2), so that with those
// of both operands the sum of a block is at most about twice as large or small as with its scales.
template <u32 kThreads, u32 kScales>
HIPGEMM_DEVICE void gemm_float_scale(const FloatScaleArgs& args) {
  static_assert(kThreads == kScales, "");
  const u32 thread = global_thread(kThreads);
  const u32 iteration = thread / args.step, row = thread % args.step;
  const u32 tiles = count_k_tiles(args.k, kStepElements), unused = tiles % kUnitSteps;
  if (iteration >= tiles + unused) return;
  const u64 dst = reinterpret_cast<u64>(args.dst);
  const u32 step = step_of_iteration(iteration, args.k, 1);
  u32 byte = kNeutralScale;
  if (step != kNoStep) {
    f32 rest = 1.0f;
    if (row < args.rows && args.k != 0) {
      const u64 src = reinterpret_cast<u64>(args.src) +
                      row / args.row_block * static_cast<u64>(args.src_row_stride) +
                      step * static_cast<u64>(args.src_col_stride);
      if (args.e8m0)
        rest = *global<u8>(src) == kNanScale ? __builtin_nanf("") : power_of_two(*global<u8>(src));
      else
        rest = *global<f32>(src);
    }
    const u32 bits = __builtin_bit_cast(u32, rest) & 0x7fffffffu;
    if (bits != 0 && bits < 0x7f800000u && args.whole == 0) {
      byte = smaller((bits + (1u << 22)) >> 23, 254);
      rest = times_power_of_two(rest, static_cast<int>(kNeutralScale) - static_cast<int>(byte));
    }
    const u64 index = iteration - unused;
    const u64 first = args.whole ? dst : dst + multipliers_offset(args.k, args.step);
    *global<f32>(first + (index * args.step + row) * sizeof(f32)) = rest;
  }
  if (args.whole) return;
  const u32 position = args.mn_major ? mn_scale_position(row) : scale_position(row);
  for (u32 block = 0; block < kStepBlocks; block++)
    *global<u8>(dst + scale_index(position, iteration, block, args.step)) = static_cast<u8>(byte);
}

}  // namespace hipgemm
