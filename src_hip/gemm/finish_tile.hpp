// The end of a product in the kernel that computes it, for rows of a tile in LDS: functions that
// the kernels of a unit share.
#pragma once

#include "common/memory.hpp"
#include "common/types.hpp"
#include "gemm/finish_rows.hpp"

namespace hipgemm {

template <class Args>
HIPGEMM_DEVICE Constant<Args>& uniform_arguments(Constant<Args>* args) {
  return *(Constant<Args>*)uniform_address(reinterpret_cast<u64>(args));
}

// What differs between tiles.
struct TileEnd {
  u64 c;
  u32 outer, inner;  // of the batch
  u32 first_column, columns;
  u32 threads;
};

template <class Args>
HIPGEMM_DEVICE Finish finish_of(Constant<Args>& args, u64 c, u32 outer, u32 inner, u32 first_column,
                                u32 columns, u32 threads) {
  const u32 out = uniform(outer), in = uniform(inner);
  const auto entry = [&](const void* first, i64 outer_bytes, i64 inner_bytes) {
    return first ? reinterpret_cast<u64>(first) + out * static_cast<u64>(outer_bytes) +
                       in * static_cast<u64>(inner_bytes)
                 : 0;
  };
  const auto rows_of = [](u64 address, i64 ld, u32 type) -> RowMatrix {
    const auto format = static_cast<Format>(type);
    return {address, static_cast<u64>(ld) * element_bytes(format), format};
  };
  Finish to{
      .c = rows_of(uniform_address(c), args.ldc, args.out_type),
      .aux = rows_of(entry(args.aux, args.aux_outer, args.aux_inner), args.ldaux, args.aux_type),
      .residual = rows_of(entry(args.residual, args.residual_outer, args.residual_inner),
                          args.ldresidual, args.residual_type),
      .out_scale = entry(args.out_scale, args.out_scale_outer, args.out_scale_inner),
      .first_column = uniform(first_column),
      .columns = uniform(columns),
      .all_columns = args.n,
      .accumulate = args.accumulate,
      .threads = uniform(threads),
      .first_entry = (out | in) == 0,
  };
  if (args.out_pitch) to.c.pitch = args.out_pitch;
  return to;
}

#define HIPGEMM_TILE_PARAMETERS                                                               \
  Constant<Args>*args_in, LdsByte *lds, u32 count, u32 across, u32 threads, u64 c, u32 outer, \
      u32 inner, u32 first_column, u32 columns
template <class Args>
HIPGEMM_SHARED void activate_tile(HIPGEMM_TILE_PARAMETERS) {
  auto& args = uniform_arguments<Args>(args_in);
  activate_values(args, {lds, uniform(count), uniform(across)},
                  finish_of<Args>(args, c, outer, inner, first_column, columns, threads));
}

template <class Args>
HIPGEMM_SHARED void finish_tile_values(HIPGEMM_TILE_PARAMETERS) {
  auto& args = uniform_arguments<Args>(args_in);
  finish_values(args, {lds, uniform(count), uniform(across)},
                finish_of<Args>(args, c, outer, inner, first_column, columns, threads));
}

template <class Args>
HIPGEMM_SHARED void quantize_tile(HIPGEMM_TILE_PARAMETERS) {
  auto& args = uniform_arguments<Args>(args_in);
  quantize_rows(args, {lds, uniform(count), uniform(across)},
                finish_of<Args>(args, c, outer, inner, first_column, columns, threads));
}

#undef HIPGEMM_TILE_PARAMETERS

// Each workgroup of `threads` threads has written the rows, and does not use LDS until all threads
// return.
template <class Args>
HIPGEMM_DEVICE void finish_tile(Constant<Args>* args, const TileRows& rows, const TileEnd& at) {
#define HIPGEMM_TILE                                                                \
  args, rows.first, rows.count, rows.columns, at.threads, at.c, at.outer, at.inner, \
      at.first_column, at.columns
  if (args->activation || args->glu || args->aux) {
    sync_workgroup();
    activate_tile<Args>(HIPGEMM_TILE);
  }
  sync_workgroup();
  finish_tile_values<Args>(HIPGEMM_TILE);
  if (is_quantized(static_cast<Format>(args->out_type))) {
    sync_workgroup();
    quantize_tile<Args>(HIPGEMM_TILE);
  }
#undef HIPGEMM_TILE
}

// C in rows that belong to no group: 0 and the scale of zeros, or what it was if it accumulates.
template <class Args>
HIPGEMM_SHARED void finish_zeros(Constant<Args>* args_in, u32 threads_in, u32 first_row,
                                 u32 rows_in, u32 first_column, u32 columns_in) {
  auto& args = uniform_arguments<Args>(args_in);
  if (args.accumulate) return;
  const u32 gated = args.glu != 0, threads = uniform(threads_in);
  const u32 row = uniform(first_row), rows = uniform(rows_in);
  const u32 column = uniform(first_column) >> gated, columns = uniform(columns_in) >> gated;
  const auto type = static_cast<Format>(args.out_type);
  const u32 bits = bits_of(type);
  const bool quantized = is_quantized(type);
  const u64 pitch = quantized ? args.out_pitch : static_cast<u64>(args.ldc) * bits / 8;
  // The last tile of quantized rows also has the padding to 16 bytes.
  const u64 begin = column * static_cast<u64>(bits) / 8;
  const bool padded = quantized && column + columns == args.n >> gated;
  const u32 bytes = padded ? (columns * bits + 127) / 128 * 16 : columns * bits / 8;
  for (u32 at = thread_index(); at < rows * (bytes / 2); at += threads) {
    const u32 i = at / (bytes / 2), byte = at % (bytes / 2) * 2;
    *global<u16>(address_of(args.c) + (row + i) * pitch + begin + byte) = 0;
  }
  if (!quantized) return;
  if (type == Format::fp8_e4m3 || type == Format::fp8_e5m2) {
    const f32 amax = load_scalar(args.out_amax);
    if (row == 0 && column == 0 && thread_index() == 0)
      *global<f32>(address_of(args.out_scale)) =
          type == Format::fp8_e4m3 ? AmaxScaling<E4m3>::of(amax, args.eps).scale()
                                   : AmaxScaling<E5m2>::of(amax, args.eps).scale();
    return;
  }
  const u32 blocks = (columns + kBlockValues - 1) / kBlockValues;
  for (u32 at = thread_index(); at < rows * blocks; at += threads)
    *global<u8>(address_of(args.out_scale) +
                (row + at / blocks) * static_cast<u64>(args.out_scale_row) +
                (column / kBlockValues + at % blocks) * static_cast<u64>(args.out_scale_block)) =
        bits < 8 ? scale_byte<E2m1>(0, ScaleRule::unit) : scale_byte<E4m3>(0, ScaleRule::unit);
}

// Applies all factors of a product. a_scale, b_scale: addresses, if operands have float scales.
template <class Args>
HIPGEMM_SHARED void scale_tile_rows(Constant<Args>* args_in, LdsByte* lds, u32 count, u32 across,
                                    u32 threads, u64 bias, u64 a_scale, u64 b_scale,
                                    u32 first_column, u32 columns) {
  auto& args = uniform_arguments<Args>(args_in);
  RowFactors factors{uniform_address(a_scale),
                     uniform_address(b_scale),
                     address_of(args.col_scale),
                     uniform_address(bias),
                     0,
                     0,
                     args.alpha_ptr ? load_scalar(args.alpha_ptr) : args.alpha,
                     static_cast<Format>(args.bias_type)};
  if constexpr (requires { args.a_scale_step; }) {
    factors.a_step = args.a_scale_step;
    factors.b_step = args.b_scale_step;
  }
  scale_rows({lds, uniform(count), uniform(across)}, factors, uniform(first_column),
             uniform(columns), uniform(threads));
}

}  // namespace hipgemm
