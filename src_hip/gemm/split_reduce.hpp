// The last step of a product with split K, or with stages that its kernel does not have: adds up
// the splits, if there are several, and applies the epilogue.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/scaled_sum.hpp"
#include "common/stages.hpp"
#include "common/types.hpp"
#include "gemm/finish_rows.hpp"

// What the splits of a product left at src, float32, becomes c as in dense.hpp. src_ld counts
// elements. row_end, if not null, points to the number of rows that belong to groups.
// clang-format off
#define HIPGEMM_SplitReduceArgs(X)                                                                \
  X(ptr, src) X(ptr, dst) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(ptr, a_scale)        \
  X(ptr, b_scale) X(ptr, row_end) X(i64, src_ld) X(i64, split_stride) X(i64, src_batch)           \
  X(i64, ldc)                                                                                     \
  X(i64, c_outer) X(i64, c_inner) X(i64, a_scale_outer) X(i64, a_scale_inner)                     \
  X(i64, b_scale_outer) X(i64, b_scale_inner) X(u32, m) X(u32, n) X(u32, batch_inner)             \
  X(u32, splits) X(u32, a_scale_step) X(u32, b_scale_step) X(f32, alpha) X(u32, out_type)         \
  X(u32, bias_type) HIPGEMM_STAGES(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SplitReduceArgs);

// One thread for each element, so that a few rows occupy many CUs. The splits are added in order,
// in float32: the result does not depend on which was finished first.
template <u32 kThreads, u32 kRows, u32 kColumns>
HIPGEMM_DEVICE void split_reduce(const SplitReduceArgs& args) {
  static_assert(kThreads == kRows * kColumns, "");
  static __shared__ __attribute__((aligned(16))) u8 lds[kRows * TileRows::bytes_of(kColumns)];
  const u32 across = (args.n + kColumns - 1) / kColumns, down = (args.m + kRows - 1) / kRows;
  const u32 tile = workgroup_index(), thread = thread_index();
  const u32 tile_row = tile / across, batch = tile_row / down;
  const u32 row = (tile_row - batch * down) * kRows + thread / kColumns;
  const u32 first_column = (tile - tile_row * across) * kColumns;
  const u32 at = first_column + thread % kColumns;
  const bool exists = row < args.m && at < args.n;
  // The columns of gate and up alternate from here on.
  const bool halves = static_cast<GluLayout>(args.glu) == GluLayout::halves;
  const u32 column = halves ? at / 2 + (at % 2 ? args.n / 2 : 0) : at;

  const u32 outer = batch / args.batch_inner, inner = batch - outer * args.batch_inner;
  const auto entry = [&](const void* first, i64 outer_bytes, i64 inner_bytes) HIPGEMM_INLINE {
    return first ? reinterpret_cast<u64>(first) + outer * static_cast<u64>(outer_bytes) +
                       inner * static_cast<u64>(inner_bytes)
                 : 0;
  };
  const auto factor = [](u64 from, u32 i)
                          HIPGEMM_INLINE { return *global<f32>(from + i * sizeof(f32)); };
  f32 value = 0;
  if (exists) {
    const u64 src = reinterpret_cast<u64>(args.src) + batch * static_cast<u64>(args.src_batch) +
                    (row * static_cast<u64>(args.src_ld) + column) * sizeof(f32);
    f32 sum = *global<f32>(src);
#pragma unroll 8
    for (u32 split = 1; split < args.splits; split++)
      sum += *global<f32>(src + split * static_cast<u64>(args.split_stride));
    Factor scales = kNoScales;
    if (args.a_scale) {
      const u64 rows = entry(args.a_scale, args.a_scale_outer, args.a_scale_inner);
      scales = scales * Factor::of(factor(rows, row * args.a_scale_step));
    }
    if (args.b_scale) {
      const u64 columns = entry(args.b_scale, args.b_scale_outer, args.b_scale_inner);
      scales = scales * Factor::of(factor(columns, column * args.b_scale_step));
    }
    const f32 alpha =
        args.alpha_ptr ? factor(reinterpret_cast<u64>(args.alpha_ptr), 0) : args.alpha;
    f32 scale = 1.0f, bias = -0.0f;  // x + -0.0 is x, even for -0.0
    if (args.col_scale) scale = factor(reinterpret_cast<u64>(args.col_scale), column);
    const auto bias_type = static_cast<Format>(args.bias_type);
    if (args.bias)
      bias = load_element(
          reinterpret_cast<u64>(args.bias) + static_cast<u64>(column) * element_bytes(bias_type),
          bias_type);
    value = scaled_sum(sum, scales, Factor::of(alpha), Factor::of(scale), bias);
  }
  const auto type = static_cast<Format>(args.out_type);
  const u64 dst = entry(args.dst, args.c_outer, args.c_inner);
  if (!args.staged) {
    if (exists)
      store_element(dst + (row * static_cast<u64>(args.ldc) + column) * element_bytes(type), type,
                    value);
    return;
  }
  const TileRows rows{(LdsByte*)lds, kRows, kColumns};
  const u32 slot = thread / kColumns;
  rows.value(slot, thread % kColumns) = value;
  if (thread % kColumns == 0) {
    const bool outside = args.row_end && row >= *global<u32>(address_of(args.row_end));
    rows.row(slot) = row < args.m ? row | (outside ? kOutside : 0) : kNoRow;
  }
  sync_workgroup();
  const auto rows_of = [](u64 address, i64 ld, u32 type) HIPGEMM_INLINE -> RowMatrix {
    const auto format = static_cast<Format>(type);
    return {address, static_cast<u64>(ld) * element_bytes(format), format};
  };
  Finish to{
      .c = rows_of(dst, args.ldc, args.out_type),
      .aux = rows_of(entry(args.aux, args.aux_outer, args.aux_inner), args.ldaux, args.aux_type),
      .residual = rows_of(entry(args.residual, args.residual_outer, args.residual_inner),
                          args.ldresidual, args.residual_type),
      .out_scale = entry(args.out_scale, args.out_scale_outer, args.out_scale_inner),
      .first_column = first_column,
      .columns = smaller(args.n - first_column, kColumns),
      .all_columns = args.n,
      .accumulate = args.accumulate,
      .threads = kThreads,
      .first_entry = batch == 0,
  };
  if (args.out_pitch) to.c.pitch = args.out_pitch;
  activate_values(args, rows, to);
  sync_workgroup();
  finish_values(args, rows, to);
  if (!is_quantized(type)) return;
  sync_workgroup();
  quantize_rows(args, rows, to);
}

}  // namespace hipgemm
