// Kernel arguments, in order. These lists are the only place that knows them: the kernels'
// parameters, the structs below and the manifest all come from here. instances.def names the list
// of each kernel.
#pragma once

// X(type, name) for each argument; types: ptr, i64, u32, f32.
//   c = round(a * b^T * alpha * col_scale[n] + bias[n]) for each entry of a batch
// alpha_ptr, when not null, points to the float to use instead of alpha; col_scale and bias may be
// null. ld* count elements; out_type and bias_type are Format.
// Entry outer * batch_inner + inner of the batch begins outer * *_outer + inner * *_inner bytes on.
// With more than one split, split s is a product over the turns (order.hpp) s * split_tiles, .. of
// K, stored split_stride bytes behind that of split s - 1; split_tiles is even.
// clang-format off
#define HIPGEMM_GemmArgs(X)                                                                       \
  X(ptr, a) X(ptr, b) X(ptr, c) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(i64, lda)      \
  X(i64, ldb) X(i64, ldc) X(i64, a_outer) X(i64, a_inner) X(i64, b_outer) X(i64, b_inner)         \
  X(i64, c_outer) X(i64, c_inner) X(i64, split_stride) X(u32, m) X(u32, n) X(u32, k)              \
  X(u32, batch_inner) X(u32, splits) X(u32, split_tiles) X(f32, alpha) X(u32, out_type)           \
  X(u32, bias_type)

// After these, for operands of few bits: c = round(a * b^T * (a_scale * b_scale) * alpha * col_scale[n] + bias[n]).
// Floats: step 0 is one for all rows (columns), 1 is one for each; null scales are 1. Blocks: scales
// in GEMM order (scale_layout.hpp), step rows from block to block.
#define HIPGEMM_GEMM_SCALES(X)                                                                    \
  X(ptr, a_scale) X(ptr, b_scale) X(u32, a_scale_step) X(u32, b_scale_step)                       \
  X(i64, a_scale_outer) X(i64, a_scale_inner) X(i64, b_scale_outer) X(i64, b_scale_inner)
#define HIPGEMM_ScaledGemmArgs(X) HIPGEMM_GemmArgs(X) HIPGEMM_GEMM_SCALES(X)

// What many splits of one product left at src, float32, becomes c as above. src_ld counts elements.
#define HIPGEMM_SplitReduceArgs(X)                                                                \
  X(ptr, src) X(ptr, dst) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(ptr, a_scale)        \
  X(ptr, b_scale) X(i64, src_ld) X(i64, split_stride) X(i64, src_batch) X(i64, ldc)               \
  X(i64, c_outer) X(i64, c_inner) X(i64, a_scale_outer) X(i64, a_scale_inner)                     \
  X(i64, b_scale_outer) X(i64, b_scale_inner) X(u32, m) X(u32, n) X(u32, batch_inner)             \
  X(u32, splits) X(u32, a_scale_step) X(u32, b_scale_step) X(f32, alpha) X(u32, out_type)         \
  X(u32, bias_type)

// The portable product. All strides are bytes and may be negative; a_k and b_k are from pair to pair of
// packed numbers. Scales: floats for fp8 formats (null is 1), logical e8m0 bytes for MX formats.
#define HIPGEMM_PlainArgs(X)                                                                      \
  X(ptr, a) X(ptr, b) X(ptr, c) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(ptr, a_scale)  \
  X(ptr, b_scale) X(i64, a_row) X(i64, a_k) X(i64, a_outer) X(i64, a_inner) X(i64, b_col)         \
  X(i64, b_k) X(i64, b_outer) X(i64, b_inner) X(i64, c_row) X(i64, c_col) X(i64, c_outer)         \
  X(i64, c_inner) X(i64, a_scale_row) X(i64, a_scale_block) X(i64, a_scale_outer)                 \
  X(i64, a_scale_inner) X(i64, b_scale_col) X(i64, b_scale_block) X(i64, b_scale_outer)           \
  X(i64, b_scale_inner) X(u32, m) X(u32, n) X(u32, k) X(u32, batch_inner) X(u32, batches)         \
  X(f32, alpha) X(u32, a_format) X(u32, b_format) X(u32, out_type) X(u32, bias_type)

// Products of groups of rows (groups.hpp). Matrices of one group each, b or c, lie group_stride bytes
// apart. status: an OffsetFault, for offsets that are wrong.
//   matmul: m rows of a and c; k and n as above.
//   wgrad: m and n of each c, from k rows in all of a and b. accumulate: add to what c holds.
#define HIPGEMM_GroupedArgs(X)                                                                    \
  X(ptr, a) X(ptr, b) X(ptr, c) X(ptr, offsets) X(ptr, status) X(i64, lda) X(i64, ldb)            \
  X(i64, ldc) X(i64, group_stride) X(u32, m) X(u32, n) X(u32, k) X(u32, groups) X(u32, out_type)  \
  X(u32, accumulate)
// After these, as above; those of b, one set for each group, scale_group_stride bytes apart.
#define HIPGEMM_GROUPED_SCALES(X)                                                                 \
  X(ptr, a_scale) X(ptr, b_scale) X(u32, a_scale_step) X(u32, b_scale_step)                       \
  X(i64, scale_group_stride)
#define HIPGEMM_ScaledGroupedArgs(X) HIPGEMM_GroupedArgs(X) HIPGEMM_GROUPED_SCALES(X)

// Strides are bytes and may be negative. Columns cols .. pad_cols - 1 of dst are set to zero.
#define HIPGEMM_CopyArgs(X)                                                                       \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(i64, dst_row_stride)    \
  X(i64, dst_col_stride) X(u32, rows) X(u32, cols) X(u32, pad_cols)

// Logical scales to GEMM order (scale_layout.hpp). step: rows padded to 16; bits of the numbers.
#define HIPGEMM_ScaleOrderArgs(X)                                                                 \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows) X(u32, k)    \
  X(u32, step) X(u32, bits)

// Scales of blocks down columns, a row of them for each block, to the order of products across K, unit
// by unit of each group of rows (groups.hpp). by_group: blocks begin anew with each group.
#define HIPGEMM_GroupScaleArgs(X)                                                                 \
  X(ptr, src) X(ptr, dst) X(ptr, offsets) X(ptr, status) X(i64, src_row_stride)                   \
  X(i64, src_col_stride) X(u32, rows) X(u32, cols) X(u32, groups) X(u32, by_group)

// Logical scales to words of four along K, rows side by side.
#define HIPGEMM_ScalePackArgs(X)                                                                  \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows)              \
  X(u32, blocks)

// in_type, out_type, element: Format. Floats of amax, scale, next: step 0 is one for all,
// 1 is one for each row. amax and next are max-accumulated.
#define HIPGEMM_AmaxArgs(X)                                                                       \
  X(ptr, src) X(ptr, amax) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows)             \
  X(u32, cols) X(u32, amax_step) X(u32, in_type)
#define HIPGEMM_QuantizeFp8Args(X)                                                                \
  X(ptr, src) X(ptr, dst) X(ptr, amax) X(ptr, scale) X(ptr, next) X(i64, src_row_stride)          \
  X(i64, src_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, amax_step)            \
  X(f32, eps) X(u32, in_type) X(u32, element)

// row_*: blocks along rows; col_*: down columns, stored transposed. Data, logical scales, scales in
// GEMM order; each of the last two may be null, and a direction whose data is null is not wanted.
// scale_pitch: bytes from block to block. rule: ScaleRule.
#define HIPGEMM_QuantizeMxArgs(X)                                                                 \
  X(ptr, src) X(ptr, row_data) X(ptr, row_scale) X(ptr, row_gemm_scale) X(ptr, col_data)          \
  X(ptr, col_scale) X(ptr, col_gemm_scale) X(i64, src_row_stride) X(i64, src_col_stride)          \
  X(i64, row_pitch) X(i64, row_scale_pitch) X(i64, col_pitch) X(i64, col_scale_pitch)             \
  X(u32, rows) X(u32, cols) X(u32, in_type) X(u32, element) X(u32, rule) X(u32, hadamard)

// Blocks down columns, in groups of rows (groups.hpp); codes stay in rows. status: an
// OffsetFault, for offsets that are wrong.
#define HIPGEMM_QuantizeGroupsArgs(X)                                                             \
  X(ptr, src) X(ptr, data) X(ptr, scale) X(ptr, gemm_scale) X(ptr, offsets) X(ptr, status)        \
  X(i64, src_row_stride) X(i64, src_col_stride) X(i64, data_pitch) X(i64, scale_pitch)            \
  X(u32, rows) X(u32, cols) X(u32, groups) X(u32, in_type) X(u32, element) X(u32, rule)

// Data and dst are contiguous along the blocks. format: Format.
#define HIPGEMM_DequantizeArgs(X)                                                                 \
  X(ptr, data) X(ptr, scale) X(ptr, dst) X(i64, data_pitch) X(i64, scale_row_stride)              \
  X(i64, scale_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, format)             \
  X(u32, out_type) X(u32, hadamard)

// dst = round(src * factors), or / factors; either list of factors may be null. Rows of dst are contiguous.
#define HIPGEMM_RescaleArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(ptr, row_factor) X(ptr, col_factor) X(i64, src_row_stride)            \
  X(i64, src_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, in_type)              \
  X(u32, out_type) X(u32, divide)

// Each row of dst (float32, contiguous) is the sum of 64 rows of src.
#define HIPGEMM_SumRowsArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride) X(u32, rows)              \
  X(u32, cols) X(u32, in_type)

// Packed fp4 codes to e4m3 codes of the same numbers.
#define HIPGEMM_Fp4ToFp8Args(X)                                                                   \
  X(ptr, src) X(ptr, dst) X(i64, src_pitch) X(i64, dst_pitch) X(u32, rows) X(u32, cols)
// clang-format on

#if !defined(HIPGEMM_LISTS_ONLY)
#include "common/types.hpp"

namespace hipgemm {

using ptr = void*;

// Of a list: a kernel's parameters, and their names for its struct.
#define HIPGEMM_PARAMETER(type, name) , type name
#define HIPGEMM_ALL_BUT_FIRST(first, ...) __VA_ARGS__
#define HIPGEMM_BEHIND_COMMA(...) HIPGEMM_ALL_BUT_FIRST(__VA_ARGS__)
#define HIPGEMM_PARAMETERS(Args) HIPGEMM_BEHIND_COMMA(HIPGEMM_##Args(HIPGEMM_PARAMETER))
#define HIPGEMM_NAME(type, name) name,
#define HIPGEMM_NAMES(Args) HIPGEMM_##Args(HIPGEMM_NAME)

#define HIPGEMM_MEMBER(type, name) type name;
#define HIPGEMM_MEMBERS(Args) HIPGEMM_##Args(HIPGEMM_MEMBER)
#define HIPGEMM_STRUCT(Args) \
  struct Args {              \
    HIPGEMM_MEMBERS(Args)    \
  }

HIPGEMM_STRUCT(GemmArgs);
HIPGEMM_STRUCT(ScaledGemmArgs);

// With nothing but scales for an epilogue.
#define HIPGEMM_BARE_STRUCT(Args)                                                  \
  struct Args {                                                                    \
    static constexpr ptr alpha_ptr = nullptr, col_scale = nullptr, bias = nullptr; \
    static constexpr f32 alpha = 1.0f;                                             \
    static constexpr u32 bias_type = 0;                                            \
    HIPGEMM_MEMBERS(Args)                                                          \
  }
HIPGEMM_BARE_STRUCT(GroupedArgs);
HIPGEMM_BARE_STRUCT(ScaledGroupedArgs);

HIPGEMM_STRUCT(SplitReduceArgs);
HIPGEMM_STRUCT(PlainArgs);
HIPGEMM_STRUCT(CopyArgs);
HIPGEMM_STRUCT(ScaleOrderArgs);
HIPGEMM_STRUCT(GroupScaleArgs);
HIPGEMM_STRUCT(ScalePackArgs);
HIPGEMM_STRUCT(AmaxArgs);
HIPGEMM_STRUCT(QuantizeFp8Args);
HIPGEMM_STRUCT(QuantizeMxArgs);
HIPGEMM_STRUCT(QuantizeGroupsArgs);
HIPGEMM_STRUCT(DequantizeArgs);
HIPGEMM_STRUCT(Fp4ToFp8Args);
HIPGEMM_STRUCT(RescaleArgs);
HIPGEMM_STRUCT(SumRowsArgs);

}  // namespace hipgemm
#endif
