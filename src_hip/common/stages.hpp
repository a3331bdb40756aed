// What follows a product and its bias, as arguments of kernels.
#pragma once

#include "common/kargs.hpp"

// staged: whether there is anything of these; all other arguments are 0 if not. In order: aux gets
// the values as they are; activation, glu (activations.def); residual is added, and what C holds
// if it is to accumulate; quantized C: out_type is its format. ld* count elements, *_outer and
// *_inner are bytes between entries of the batch.
//   C in an MX format: rows out_pitch bytes apart, scales out_scale_row bytes between rows and
//   out_scale_block between blocks of a row, by scale_rule.
//   C in fp8: scaled by the float out_amax plus eps, out_scale gets the scale, and next_amax is
//   max-accumulated.
// clang-format off
#define HIPGEMM_STAGES(X)                                                                         \
  X(ptr, aux) X(ptr, residual) X(ptr, out_scale) X(ptr, out_amax) X(ptr, next_amax)               \
  X(i64, ldaux) X(i64, aux_outer) X(i64, aux_inner) X(i64, ldresidual) X(i64, residual_outer)     \
  X(i64, residual_inner) X(i64, out_pitch) X(i64, out_scale_row) X(i64, out_scale_block)          \
  X(i64, out_scale_outer) X(i64, out_scale_inner) X(u32, staged) X(u32, activation) X(u32, glu)   \
  X(u32, aux_type) X(u32, residual_type) X(u32, accumulate) X(u32, scale_rule) X(f32, eps)
// clang-format on
