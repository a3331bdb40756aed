// Kernel arguments, in order. These lists are the only place that knows them: the kernels'
// parameters, the structs below and the manifest all come from here.
#pragma once

// X(type, name) joined by S; types: ptr, i64, u32, f32.
//   c = round(a * b^T * alpha * col_scale[n] + bias[n])
// alpha_ptr, when not null, points to the float to use instead of alpha; col_scale and bias may be
// null. ld* count elements; out_type and bias_type are ElementType.
// clang-format off
#define HIPGEMM_GEMM_ARGS(X, S)                                                      \
  X(ptr, a) S X(ptr, b) S X(ptr, c) S X(ptr, alpha_ptr) S X(ptr, col_scale) S X(ptr, bias) S \
  X(i64, lda) S X(i64, ldb) S X(i64, ldc) S X(u32, m) S X(u32, n) S X(u32, k) S      \
  X(f32, alpha) S X(u32, out_type) S X(u32, bias_type)

// Strides are bytes and may be negative. Columns cols .. pad_cols - 1 of dst are set to zero.
#define HIPGEMM_COPY_ARGS(X, S)                                                      \
  X(ptr, src) S X(ptr, dst) S X(i64, src_row_stride) S X(i64, src_col_stride) S      \
  X(i64, dst_row_stride) S X(i64, dst_col_stride) S X(u32, rows) S X(u32, cols) S    \
  X(u32, pad_cols)
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
struct CopyArgs {
  HIPGEMM_COPY_ARGS(HIPGEMM_DECLARE, ;);
};

}  // namespace hipgemm
#endif
