// C = A * B, one output tile per workgroup.
#pragma once

#include "common/kargs.hpp"
#include "gemm/epilogue.hpp"
#include "gemm/schedule.hpp"
#include "gemm/tile.hpp"
#include "gemm/traits.hpp"
#include "gemm/work.hpp"

namespace hipgemm {

template <class T, class Args>
HIPGEMM_DEVICE ScalesOf<T> scales_of(const Args& args, const Work<T>& work, const Place<T>& place) {
  if constexpr (T::kScaling == Scaling::blocks) {
    // An odd number of steps leaves the first half of unit 0 unused.
    const u32 unit = (work.range.place * T::kSteps + kUnitSteps - 1) / kUnitSteps;
    const TileArea<T>& at = work.area;
    return {{work.a_scale, args.a_scale_step, at.row, at.rows, work.k, unit, place},
            {work.b_scale, args.b_scale_step, at.column, at.columns, work.k, unit, place}};
  } else {
    return {};
  }
}

template <class T, class Args>
HIPGEMM_DEVICE void compute(const Args& args, const Work<T>& work, const Place<T>& place) {
  static __shared__ __attribute__((aligned(1024))) u8 lds[T::kLdsBytes];
  LdsByte* const stages = (LdsByte*)lds;

  const TileArea<T>& area = work.area;
  const KRange& range = work.range;
  Pipeline<T> pipeline{
      .fetch_a = {work.a, args.lda, area.row, area.rows, work.k, range, place},
      .fetch_b = {work.b, args.ldb, area.column, area.columns, work.k, range, place},
      .read_a = {stages, place},
      .read_b = {stages, place},
      .scales = scales_of(args, work, place),
      .blocks = stages + place.wave * T::kBlockBytes,
      .wave = place.wave,
      .tiles = range.tiles,
      .first_tile = range.first,
      .first_valid = smaller(work.k - (range.origin + range.first) * T::kK, T::kK),
      .k_offset = range.second * kRowBytes,
  };
  Accumulators<T> acc;
  run_k_loop(pipeline, acc);
  if constexpr (!T::B::kAlongK) acc.join_quads();
  Epilogue<T, Args>(args, work, Place<T>::again()).run(acc);
}

template <class T, class Args>
HIPGEMM_DEVICE void gemm(const Args& args) {
  compute<T>(args, dense_work<T>(args, __builtin_amdgcn_workgroup_id_x()), Place<T>());
}

}  // namespace hipgemm
