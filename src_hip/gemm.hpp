// C = A * B^T, one output tile per workgroup.
#pragma once

#include "epilogue.hpp"
#include "kargs.hpp"
#include "schedule.hpp"
#include "tile.hpp"
#include "traits.hpp"

namespace hipgemm {

template <class T, class Args>
HIPGEMM_DEVICE ScalesOf<T> scales_of(const Args& args, const TileArea<T>& area,
                                     const Place<T>& place) {
  if constexpr (T::kScaling == Scaling::blocks)
    return {{args.a_scale, args.a_scale_step, area.row, args.k, place},
            {args.b_scale, args.b_scale_step, area.column, args.k, place}};
  else
    return {};
}

template <class T, class Args>
HIPGEMM_DEVICE void gemm(const Args& args) {
  static __shared__ __attribute__((aligned(1024))) u8 lds[T::kLdsBytes];
  LdsByte* const stages = (LdsByte*)lds;

  const Place<T> place;
  const TileArea<T> area(__builtin_amdgcn_workgroup_id_x(), args.m, args.n);
  const u32 k_tiles = count_k_tiles(args.k, T::kK);
  Pipeline<T> pipeline{
      .fetch_a = {args.a, args.lda, area.row, area.rows, args.k, place},
      .fetch_b = {args.b, args.ldb, area.column, area.columns, args.k, place},
      .read_a = {stages, place},
      .read_b = {stages, place},
      .scales = scales_of(args, area, place),
      .blocks = stages + place.wave * T::kBlockBytes,
      .wave = place.wave,
      .tiles = k_tiles,
      .ragged_chunks = (args.k - (k_tiles - 1) * T::kK) * T::kElementBits / (8 * kChunkBytes),
  };
  Accumulators<T> acc;
  run_k_loop(pipeline, acc);
  Epilogue<T, Args>(args, area, place).run(acc);
}

}  // namespace hipgemm
