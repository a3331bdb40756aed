// Kernel arguments, in order. These lists are the only place that knows them: the kernels'
// parameters, the structs below and the manifest all come from here.
#pragma once

// X(type, name) joined by S; types: ptr, i64, u32, f32.
//   c = round(a * b^T * alpha * col_scale[n] + bias[n]) for each entry of a batch
// alpha_ptr, when not null, points to the float to use instead of alpha; col_scale and bias may be
// null. ld* count elements; out_type and bias_type are ElementType.
// Entry outer * batch_inner + inner of the batch begins outer * *_outer + inner * *_inner bytes on.
// With more than one split, split s is a product over the turns (order.hpp) s * split_tiles, .. of
// K, stored split_stride bytes behind that of split s - 1; split_tiles is even.
// clang-format off
#define HIPGEMM_GEMM_ARGS(X, S)                                                      \
  X(ptr, a) S X(ptr, b) S X(ptr, c) S X(ptr, alpha_ptr) S X(ptr, col_scale) S X(ptr, bias) S \
  X(i64, lda) S X(i64, ldb) S X(i64, ldc) S X(i64, a_outer) S X(i64, a_inner) S      \
  X(i64, b_outer) S X(i64, b_inner) S X(i64, c_outer) S X(i64, c_inner) S            \
  X(i64, split_stride) S X(u32, m) S X(u32, n) S X(u32, k) S X(u32, batch_inner) S   \
  X(u32, splits) S X(u32, split_tiles) S X(f32, alpha) S X(u32, out_type) S          \
  X(u32, bias_type)

// After these, for operands of few bits: c = round(a * b^T * (a_scale * b_scale) * alpha * col_scale[n] + bias[n]).
// Floats: step 0 is one for all rows (columns), 1 is one for each; null scales are 1. Blocks: scales
// in GEMM order (scale_layout.hpp), step rows from block to block.
#define HIPGEMM_SCALE_ARGS(X, S)                                                     \
  X(ptr, a_scale) S X(ptr, b_scale) S X(u32, a_scale_step) S X(u32, b_scale_step) S  \
  X(i64, a_scale_outer) S X(i64, a_scale_inner) S X(i64, b_scale_outer) S            \
  X(i64, b_scale_inner)

// What many splits of one product left at src, float32, becomes c as above. src_ld counts elements.
#define HIPGEMM_SPLIT_REDUCE_ARGS(X, S)                                              \
  X(ptr, src) S X(ptr, dst) S X(ptr, alpha_ptr) S X(ptr, col_scale) S X(ptr, bias) S \
  X(ptr, a_scale) S X(ptr, b_scale) S X(i64, src_ld) S X(i64, split_stride) S        \
  X(i64, src_batch) S X(i64, ldc) S X(i64, c_outer) S X(i64, c_inner) S              \
  X(i64, a_scale_outer) S X(i64, a_scale_inner) S X(i64, b_scale_outer) S            \
  X(i64, b_scale_inner) S X(u32, m) S X(u32, n) S X(u32, batch_inner) S              \
  X(u32, splits) S X(u32, a_scale_step) S X(u32, b_scale_step) S X(f32, alpha) S     \
  X(u32, out_type) S X(u32, bias_type)

// The portable product. All strides are bytes and may be negative; a_k and b_k are from pair to pair of
// packed numbers. Scales: floats for fp8 formats (null is 1), logical e8m0 bytes for MX formats. Formats:
// PlainFormat.
#define HIPGEMM_PLAIN_ARGS(X, S)                                                     \
  X(ptr, a) S X(ptr, b) S X(ptr, c) S X(ptr, alpha_ptr) S X(ptr, col_scale) S X(ptr, bias) S \
  X(ptr, a_scale) S X(ptr, b_scale) S                                                \
  X(i64, a_row) S X(i64, a_k) S X(i64, a_outer) S X(i64, a_inner) S                  \
  X(i64, b_col) S X(i64, b_k) S X(i64, b_outer) S X(i64, b_inner) S                  \
  X(i64, c_row) S X(i64, c_col) S X(i64, c_outer) S X(i64, c_inner) S                \
  X(i64, a_scale_row) S X(i64, a_scale_block) S X(i64, a_scale_outer) S X(i64, a_scale_inner) S \
  X(i64, b_scale_col) S X(i64, b_scale_block) S X(i64, b_scale_outer) S X(i64, b_scale_inner) S \
  X(u32, m) S X(u32, n) S X(u32, k) S X(u32, batch_inner) S X(u32, batches) S X(f32, alpha) S \
  X(u32, a_format) S X(u32, b_format) S X(u32, out_type) S X(u32, bias_type)

// Products of groups of rows (groups.hpp). Matrices of one group each, b or c, lie group_stride bytes
// apart. status: an OffsetFault, for offsets that are wrong.
//   matmul: m rows of a and c; k and n as above.
//   wgrad: m and n of each c, from k rows in all of a and b. accumulate: add to what c holds.
#define HIPGEMM_GROUPED_ARGS(X, S)                                                   \
  X(ptr, a) S X(ptr, b) S X(ptr, c) S X(ptr, offsets) S X(ptr, status) S             \
  X(i64, lda) S X(i64, ldb) S X(i64, ldc) S X(i64, group_stride) S X(u32, m) S       \
  X(u32, n) S X(u32, k) S X(u32, groups) S X(u32, out_type) S X(u32, accumulate)
// After these, as above; those of b, one set for each group, scale_group_stride bytes apart.
#define HIPGEMM_GROUPED_SCALE_ARGS(X, S)                                             \
  X(ptr, a_scale) S X(ptr, b_scale) S X(u32, a_scale_step) S X(u32, b_scale_step) S  \
  X(i64, scale_group_stride)

// Strides are bytes and may be negative. Columns cols .. pad_cols - 1 of dst are set to zero.
#define HIPGEMM_COPY_ARGS(X, S)                                                      \
  X(ptr, src) S X(ptr, dst) S X(i64, src_row_stride) S X(i64, src_col_stride) S      \
  X(i64, dst_row_stride) S X(i64, dst_col_stride) S X(u32, rows) S X(u32, cols) S    \
  X(u32, pad_cols)

// Logical scales to GEMM order (scale_layout.hpp). step: rows padded to 16; bits of the numbers.
#define HIPGEMM_MX_GEMM_SCALE_ARGS(X, S)                                             \
  X(ptr, src) S X(ptr, dst) S X(i64, src_row_stride) S X(i64, src_col_stride) S      \
  X(u32, rows) S X(u32, k) S X(u32, step) S X(u32, bits)

// Scales of blocks down columns, a row of them for each block, to the order of products across K, unit
// by unit of each group of rows (groups.hpp). by_group: blocks begin anew with each group.
#define HIPGEMM_MX_GROUP_SCALE_ARGS(X, S)                                            \
  X(ptr, src) S X(ptr, dst) S X(ptr, offsets) S X(ptr, status) S                     \
  X(i64, src_row_stride) S X(i64, src_col_stride) S X(u32, rows) S X(u32, cols) S    \
  X(u32, groups) S X(u32, by_group)

// Logical scales to words of four along K, rows side by side.
#define HIPGEMM_PACK_MX_SCALES_ARGS(X, S)                                            \
  X(ptr, src) S X(ptr, dst) S X(i64, src_row_stride) S X(i64, src_col_stride) S      \
  X(u32, rows) S X(u32, blocks)

// in_type, out_type: ElementType. element: Narrow. Floats of amax, scale, next: step 0 is one for all,
// 1 is one for each row. amax and next are max-accumulated.
#define HIPGEMM_AMAX_ARGS(X, S)                                                      \
  X(ptr, src) S X(ptr, amax) S X(i64, src_row_stride) S X(i64, src_col_stride) S     \
  X(u32, rows) S X(u32, cols) S X(u32, amax_step) S X(u32, in_type)
#define HIPGEMM_QUANTIZE_FP8_ARGS(X, S)                                              \
  X(ptr, src) S X(ptr, dst) S X(ptr, amax) S X(ptr, scale) S X(ptr, next) S          \
  X(i64, src_row_stride) S X(i64, src_col_stride) S X(i64, dst_pitch) S X(u32, rows) S \
  X(u32, cols) S X(u32, amax_step) S X(f32, eps) S X(u32, in_type) S X(u32, element)

// row_*: blocks along rows; col_*: down columns, stored transposed. Data, logical scales, scales in
// GEMM order; each of the last two may be null, and a direction whose data is null is not wanted.
// scale_pitch: bytes from block to block. rule: ScaleRule.
#define HIPGEMM_QUANTIZE_MX_ARGS(X, S)                                               \
  X(ptr, src) S X(ptr, row_data) S X(ptr, row_scale) S X(ptr, row_gemm_scale) S      \
  X(ptr, col_data) S X(ptr, col_scale) S X(ptr, col_gemm_scale) S                    \
  X(i64, src_row_stride) S X(i64, src_col_stride) S X(i64, row_pitch) S              \
  X(i64, row_scale_pitch) S X(i64, col_pitch) S X(i64, col_scale_pitch) S            \
  X(u32, rows) S X(u32, cols) S X(u32, in_type) S X(u32, element) S X(u32, rule) S   \
  X(u32, hadamard)

// Blocks down columns, in groups of rows (groups.hpp); codes stay in rows. status: an
// OffsetFault, for offsets that are wrong.
#define HIPGEMM_QUANTIZE_GROUPS_ARGS(X, S)                                           \
  X(ptr, src) S X(ptr, data) S X(ptr, scale) S X(ptr, gemm_scale) S X(ptr, offsets) S \
  X(ptr, status) S X(i64, src_row_stride) S X(i64, src_col_stride) S X(i64, data_pitch) S             \
  X(i64, scale_pitch) S X(u32, rows) S X(u32, cols) S X(u32, groups) S               \
  X(u32, in_type) S X(u32, element) S X(u32, rule)

// Data and dst are contiguous along the blocks. format: QuantizedFormat.
#define HIPGEMM_DEQUANTIZE_ARGS(X, S)                                                \
  X(ptr, data) S X(ptr, scale) S X(ptr, dst) S X(i64, data_pitch) S X(i64, scale_row_stride) S \
  X(i64, scale_col_stride) S X(i64, dst_pitch) S X(u32, rows) S X(u32, cols) S       \
  X(u32, format) S X(u32, out_type) S X(u32, hadamard)

// dst = round(src * factors), or / factors; either list of factors may be null. Rows of dst are contiguous.
#define HIPGEMM_RESCALE_ARGS(X, S)                                                   \
  X(ptr, src) S X(ptr, dst) S X(ptr, row_factor) S X(ptr, col_factor) S              \
  X(i64, src_row_stride) S X(i64, src_col_stride) S X(i64, dst_pitch) S X(u32, rows) S \
  X(u32, cols) S X(u32, in_type) S X(u32, out_type) S X(u32, divide)

// Each row of dst (float32, contiguous) is the sum of 64 rows of src.
#define HIPGEMM_SUM_ROWS_ARGS(X, S)                                                  \
  X(ptr, src) S X(ptr, dst) S X(i64, src_row_stride) S X(i64, src_col_stride) S      \
  X(u32, rows) S X(u32, cols) S X(u32, in_type)

// Packed fp4 codes to e4m3 codes of the same numbers.
#define HIPGEMM_FP4_TO_FP8_ARGS(X, S)                                                \
  X(ptr, src) S X(ptr, dst) S X(i64, src_pitch) S X(i64, dst_pitch) S X(u32, rows) S \
  X(u32, cols)
// clang-format on

#if !defined(HIPGEMM_LISTS_ONLY)
#include "types.hpp"

namespace hipgemm {

using ptr = void*;

#define HIPGEMM_COMMA ,
#define HIPGEMM_DECLARE(type, name) type name
#define HIPGEMM_NAME(type, name) name
struct GemmArgs {
  HIPGEMM_GEMM_ARGS(HIPGEMM_DECLARE, ;);
};
// With nothing but scales for an epilogue.
struct BareArgs {
  static constexpr ptr alpha_ptr = nullptr, col_scale = nullptr, bias = nullptr;
  static constexpr f32 alpha = 1.0f;
  static constexpr u32 bias_type = 0;
};
struct GroupedArgs : BareArgs {
  HIPGEMM_GROUPED_ARGS(HIPGEMM_DECLARE, ;);
};
struct ScaledGroupedArgs : BareArgs {
  HIPGEMM_GROUPED_ARGS(HIPGEMM_DECLARE, ;);
  HIPGEMM_GROUPED_SCALE_ARGS(HIPGEMM_DECLARE, ;);
};
struct ScaledGemmArgs {
  HIPGEMM_GEMM_ARGS(HIPGEMM_DECLARE, ;);
  HIPGEMM_SCALE_ARGS(HIPGEMM_DECLARE, ;);
};
struct SplitReduceArgs {
  HIPGEMM_SPLIT_REDUCE_ARGS(HIPGEMM_DECLARE, ;);
};
struct PlainArgs {
  HIPGEMM_PLAIN_ARGS(HIPGEMM_DECLARE, ;);
};
struct CopyArgs {
  HIPGEMM_COPY_ARGS(HIPGEMM_DECLARE, ;);
};
struct ScaleOrderArgs {
  HIPGEMM_MX_GEMM_SCALE_ARGS(HIPGEMM_DECLARE, ;);
};
struct GroupScaleArgs {
  HIPGEMM_MX_GROUP_SCALE_ARGS(HIPGEMM_DECLARE, ;);
};
struct ScalePackArgs {
  HIPGEMM_PACK_MX_SCALES_ARGS(HIPGEMM_DECLARE, ;);
};
struct AmaxArgs {
  HIPGEMM_AMAX_ARGS(HIPGEMM_DECLARE, ;);
};
struct QuantizeFp8Args {
  HIPGEMM_QUANTIZE_FP8_ARGS(HIPGEMM_DECLARE, ;);
};
struct QuantizeMxArgs {
  HIPGEMM_QUANTIZE_MX_ARGS(HIPGEMM_DECLARE, ;);
};
struct QuantizeGroupsArgs {
  HIPGEMM_QUANTIZE_GROUPS_ARGS(HIPGEMM_DECLARE, ;);
};
struct Fp4ToFp8Args {
  HIPGEMM_FP4_TO_FP8_ARGS(HIPGEMM_DECLARE, ;);
};
struct DequantizeArgs {
  HIPGEMM_DEQUANTIZE_ARGS(HIPGEMM_DECLARE, ;);
};
struct RescaleArgs {
  HIPGEMM_RESCALE_ARGS(HIPGEMM_DECLARE, ;);
};
struct SumRowsArgs {
  HIPGEMM_SUM_ROWS_ARGS(HIPGEMM_DECLARE, ;);
};

}  // namespace hipgemm
#endif
