// The last step of a product with split K: adds up the splits and applies the epilogue.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/scaled_sum.hpp"
#include "common/types.hpp"

// What the splits of a product left at src, float32, becomes c as in dense.hpp. src_ld counts
// elements.
// clang-format off
#define HIPGEMM_SplitReduceArgs(X)                                                                \
  X(ptr, src) X(ptr, dst) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(ptr, a_scale)        \
  X(ptr, b_scale) X(i64, src_ld) X(i64, split_stride) X(i64, src_batch) X(i64, ldc)               \
  X(i64, c_outer) X(i64, c_inner) X(i64, a_scale_outer) X(i64, a_scale_inner)                     \
  X(i64, b_scale_outer) X(i64, b_scale_inner) X(u32, m) X(u32, n) X(u32, batch_inner)             \
  X(u32, splits) X(u32, a_scale_step) X(u32, b_scale_step) X(f32, alpha) X(u32, out_type)         \
  X(u32, bias_type)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SplitReduceArgs);

// One thread for each element, so that a few rows occupy many CUs. The splits are added in order,
// in float32: the result does not depend on which was finished first.
template <u32 kThreads, u32 kRows, u32 kColumns>
HIPGEMM_DEVICE void split_reduce(const SplitReduceArgs& args) {
  static_assert(kThreads == kRows * kColumns, "");
  const u32 across = (args.n + kColumns - 1) / kColumns, down = (args.m + kRows - 1) / kRows;
  const u32 tile = workgroup_index(), thread = thread_index();
  const u32 tile_row = tile / across, batch = tile_row / down;
  const u32 row = (tile_row - batch * down) * kRows + thread / kColumns;
  const u32 column = (tile - tile_row * across) * kColumns + thread % kColumns;
  if (row >= args.m || column >= args.n) return;

  const u64 src = reinterpret_cast<u64>(args.src) + batch * static_cast<u64>(args.src_batch) +
                  (row * static_cast<u64>(args.src_ld) + column) * sizeof(f32);
  f32 sum = *global<f32>(src);
#pragma unroll 8
  for (u32 split = 1; split < args.splits; split++)
    sum += *global<f32>(src + split * static_cast<u64>(args.split_stride));

  const u32 outer = batch / args.batch_inner, inner = batch - outer * args.batch_inner;
  const auto entry = [&](void* first, i64 outer_bytes, i64 inner_bytes) {
    return reinterpret_cast<u64>(first) + outer * static_cast<u64>(outer_bytes) +
           inner * static_cast<u64>(inner_bytes);
  };
  const auto factor = [](u64 from, u32 at) { return *global<f32>(from + at * sizeof(f32)); };
  Factor scales = kNoScales;
  if (args.a_scale) {
    const u64 rows = entry(args.a_scale, args.a_scale_outer, args.a_scale_inner);
    scales = scales * Factor::of(factor(rows, row * args.a_scale_step));
  }
  if (args.b_scale) {
    const u64 columns = entry(args.b_scale, args.b_scale_outer, args.b_scale_inner);
    scales = scales * Factor::of(factor(columns, column * args.b_scale_step));
  }
  const f32 alpha = args.alpha_ptr ? factor(reinterpret_cast<u64>(args.alpha_ptr), 0) : args.alpha;
  f32 scale = 1.0f, bias = -0.0f;  // x + -0.0 is x, even for -0.0
  if (args.col_scale) scale = factor(reinterpret_cast<u64>(args.col_scale), column);
  const auto bias_type = static_cast<Format>(args.bias_type);
  if (args.bias)
    bias = load_element(
        reinterpret_cast<u64>(args.bias) + static_cast<u64>(column) * element_bytes(bias_type),
        bias_type);

  const auto type = static_cast<Format>(args.out_type);
  store_element(entry(args.dst, args.c_outer, args.c_inner) +
                    (row * static_cast<u64>(args.ldc) + column) * element_bytes(type),
                type, scaled_sum(sum, scales, Factor::of(alpha), Factor::of(scale), bias));
}

}  // namespace hipgemm
