// The last step of a product whose K was split: add up the splits and finish as the epilogue does.
#pragma once

#include "common/element.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A thread takes one element, so that even a few rows fill many CUs. The splits are added in order,
// in float32: the result does not depend on which finished first.
template <u32 kThreads, u32 kRows, u32 kColumns>
HIPGEMM_DEVICE void split_reduce(const SplitReduceArgs& args) {
  static_assert(kThreads == kRows * kColumns, "");
  const u32 across = (args.n + kColumns - 1) / kColumns, down = (args.m + kRows - 1) / kRows;
  const u32 tile = workgroup_index(), thread = thread_index();
  const u32 line = tile / across, batch = line / down;
  const u32 row = (line - batch * down) * kRows + thread / kColumns;
  const u32 column = (tile - line * across) * kColumns + thread % kColumns;
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
  if (args.a_scale) {
    const u64 rows = entry(args.a_scale, args.a_scale_outer, args.a_scale_inner);
    const u64 columns = entry(args.b_scale, args.b_scale_outer, args.b_scale_inner);
    sum *= factor(rows, row * args.a_scale_step) * factor(columns, column * args.b_scale_step);
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
                type, __builtin_elementwise_fma(sum * alpha, scale, bias));
}

}  // namespace hipgemm
