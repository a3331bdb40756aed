// C = A * B, one output tile per workgroup.
#pragma once

#include "common/kargs.hpp"
#include "common/stages.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/epilogue.hpp"
#include "gemm/line_ring.hpp"
#include "gemm/schedule.hpp"
#include "gemm/tile_descriptor.hpp"
#include "gemm/traits.hpp"

//   c = round(a * b^T * alpha * col_scale[n] + bias[n]) for each entry of a batch
// alpha_ptr, when not null, points to the float to use instead of alpha; col_scale and bias may be
// null. ld* count elements; out_type and bias_type are Format. Before the rounding come the stages,
// if any.
// Entry outer * batch_inner + inner of the batch begins at outer * *_outer + inner * *_inner bytes.
// With more than one split, split s is the product over the iterations (tile_order.hpp) from
// s * split_tiles on, stored split_stride bytes after that of split s - 1; split_tiles is even.
// clang-format off
#define HIPGEMM_GemmArgs(X)                                                                       \
  X(ptr, a) X(ptr, b) X(ptr, c) X(ptr, alpha_ptr) X(ptr, col_scale) X(ptr, bias) X(i64, lda)      \
  X(i64, ldb) X(i64, ldc) X(i64, a_outer) X(i64, a_inner) X(i64, b_outer) X(i64, b_inner)         \
  X(i64, c_outer) X(i64, c_inner) X(i64, split_stride) X(u32, m) X(u32, n) X(u32, k)              \
  X(u32, batch_inner) X(u32, splits) X(u32, split_tiles) X(f32, alpha) X(u32, out_type)           \
  X(u32, bias_type) HIPGEMM_STAGES(X)

// After these, for scaled operands: c = round(a * b^T * (a_scale * b_scale) * alpha * col_scale[n] + bias[n]).
// Floats: with step 0 one for all rows (columns), with step 1 one for each; null is 1. Blocks: scales
// in GEMM order (scale_layout.hpp); step: rows between blocks.
#define HIPGEMM_GEMM_SCALES(X)                                                                    \
  X(ptr, a_scale) X(ptr, b_scale) X(u32, a_scale_step) X(u32, b_scale_step)                       \
  X(i64, a_scale_outer) X(i64, a_scale_inner) X(i64, b_scale_outer) X(i64, b_scale_inner)
#define HIPGEMM_ScaledGemmArgs(X) HIPGEMM_GemmArgs(X) HIPGEMM_GEMM_SCALES(X)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(GemmArgs);
HIPGEMM_STRUCT(ScaledGemmArgs);

template <class T, class Args>
HIPGEMM_DEVICE ScalesOf<T> scales_of(const Args& args, const TileDescriptor<T>& tile,
                                     const ThreadPosition<T>& position) {
  if constexpr (T::kScaling == Scaling::blocks && T::kStaging == Staging::dma) {
    // An odd number of steps leaves the first half of unit 0 unused.
    const u32 unit = (tile.range.first_index * T::kScaleSteps + kUnitSteps - 1) / kUnitSteps;
    const TileArea<T>& at = tile.area;
    return {{tile.a_scale, args.a_scale_step, at.row, at.rows, tile.k, unit, position},
            {tile.b_scale, args.b_scale_step, at.column, at.columns, tile.k, unit, position}};
  } else {
    return {};
  }
}

template <class T, class Args>
HIPGEMM_DEVICE MultipliersOf<T> multipliers_of(const Args& args, const TileDescriptor<T>& tile,
                                               const ThreadPosition<T>& position) {
  if constexpr (T::Mfma::kHasMultipliers) {
    const u32 index = tile.range.first_index;
    const TileArea<T>& at = tile.area;
    const u32 row = MultiplierRows<T, OperandA<T>>::first(position),
              column = MultiplierRows<T, OperandB<T>>::first(position);
    if constexpr (T::kScaling == Scaling::multipliers) {
      static_assert(T::kLaneColumns <= kBlockPositions, "");
      const u32 of = multiplier_position(at.column + column, args.n, args.b_scale_step);
      return {{}, {tile.b_scale, args.b_scale_step, of, index}};
    } else {
      const auto first = [&](u64 scales, u32 step, u32 row) HIPGEMM_INLINE {
        return scales + multipliers_offset(tile.k, step) + row * sizeof(f32);
      };
      return {
          {first(tile.a_scale, args.a_scale_step, at.row), args.a_scale_step, row, index},
          {first(tile.b_scale, args.b_scale_step, at.column), args.b_scale_step, column, index}};
    }
  } else {
    return {};
  }
}

// The LDS of a workgroup.
template <class T>
HIPGEMM_DEVICE LdsByte* tile_lds() {
  static __shared__ __attribute__((aligned(1024))) u8 lds[T::kLdsBytes];
  return (LdsByte*)lds;
}

// Whether x holds in any wave of the workgroup. LDS must be free: after the K loop.
template <class T>
HIPGEMM_DEVICE bool in_any_wave(bool x, LdsByte* lds) {
  using Words = __attribute__((address_space(3))) u32;
  const auto words = (Words*)lds;
  const u32 thread = thread_index();
  sync_workgroup();
  words[thread / kWaveLanes] = x;
  sync_workgroup();
  return any_lane(words[thread % T::kWaves] != 0);
}

template <class T, class Args>
HIPGEMM_DEVICE void compute(const Args& args, const TileDescriptor<T>& made,
                            const ThreadPosition<T>& position) {
  const TileDescriptor<T> tile = T::kStaging == Staging::registers ? uniform(made) : made;
  LdsByte* const stages = tile_lds<T>();

  const TileArea<T>& area = tile.area;
  const KRange& range = tile.range;
  Pipeline<T> pipeline{
      .fetch_a = {tile.a, args.lda, area.row, area.rows, tile.k, range, position},
      .fetch_b = {tile.b, args.ldb, area.column, area.columns, tile.k, range, position},
      .read_a = {stages, position},
      .read_b = {stages, position},
      .scales = scales_of(args, tile, position),
      .multipliers = multipliers_of(args, tile, position),
      .blocks = stages + (T::kStaging == Staging::dma ? position.wave * T::kBlockBytes : 0),
      .wave = position.wave,
      .tiles = range.tiles,
      .first_tile = range.first,
      .first_valid = smaller(tile.k - (range.origin + range.first) * T::kK, T::kK),
      .k_offset = KOffset<T>::of(range.second),
  };
  if constexpr (T::kScaling == Scaling::blocks && T::kStaging == Staging::registers) {
    if constexpr (T::Mfma::kScalesA)
      pipeline.fetch_a.begin_scales(
          {tile.a_scale, args.a_scale_step, area.row, area.rows, tile.k, range}, position);
    pipeline.fetch_b.begin_scales(
        {tile.b_scale, args.b_scale_step, area.column, area.columns, tile.k, range}, position);
  }
  u32 source = 0;
  if constexpr (kMayBeExtreme<T>)
    source = TileSource{tile.a, tile.b, tile.a_scale, tile.b_scale, tile.k, range}.in_lanes();
  Accumulators<T> acc;
  run_k_loop(pipeline, acc);
  if constexpr (requires { T::Mfma::kSumFactor; }) acc.multiply_by(T::Mfma::kSumFactor);
  if constexpr (!T::B::kReadsKMajor) acc.interleave_quads();
  u32 extreme = 0;
  if constexpr (kMayBeExtreme<T>) extreme = in_any_wave<T>(pipeline.extreme, stages);
  Epilogue<T, Args>(tile, ThreadPosition<T>::recomputed(), stages).run(acc, extreme, source);
}

template <class T, class Args>
HIPGEMM_DEVICE void gemm(const Args& args) {
  compute<T>(args, dense_tile<T>(args, __builtin_amdgcn_workgroup_id_x()), ThreadPosition<T>());
}

}  // namespace hipgemm
