// Softmax of rows: e^(x * scale) over its sum, each row's maximum subtracted first.
#pragma once

#include "common/functions.hpp"
#include "common/kargs.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"
#include "quantize/row_threads.hpp"
#include "quantize/store_row.hpp"

// Rows of src and dst are contiguous, both of the type (Format). causal: row i of each matrix of
// matrix_rows rows has no columns beyond i + cols - matrix_rows. row_shift: RowThreads.
// clang-format off
#define HIPGEMM_SoftmaxArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(i64, src_pitch) X(i64, dst_pitch) X(u32, rows) X(u32, cols)           \
  X(u32, matrix_rows) X(u32, row_shift) X(f32, scale) X(u32, causal) X(u32, type)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SoftmaxArgs);

// Each thread subtracts the maximum of its own values; then one reduction of maxima and one of sums
// do for the row.
template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void softmax(const SoftmaxArgs& args) {
  using Threads = RowThreads<kThreads>;
  static_assert(kValues == kThreads * Threads::kSteps * Threads::kChunk, "");
  static __shared__ typename Threads::Lds lds;
  constexpr f32 kNone = -__builtin_inff();
  const Threads threads{args.row_shift};
  const u32 row = workgroup_index() * threads.rows() + threads.row();
  const u32 cols = row < args.rows ? args.cols : 0;
  const u32 hidden = args.causal ? args.matrix_rows - 1 - row % args.matrix_rows : 0;
  const u32 visible = cols - smaller(hidden, cols);
  const auto type = static_cast<Format>(args.type);
  const u32 bytes = element_bytes(type);
  const u64 src = address_of(args.src) + row * static_cast<u64>(args.src_pitch);
  const u64 dst = address_of(args.dst) + row * static_cast<u64>(args.dst_pitch);
  const u32 blocks = threads.blocks(args.cols), loads = blocks == 1 ? 1 : 2 * blocks;

  f32 greatest = kNone, sum = 0, factor = 0;
#pragma unroll 1
  for (u32 load = 0; load < loads; load++) {
    const u32 block = load < blocks ? load : load - blocks;
    Values<8> x[Threads::kSteps];
    f32 most = greatest;
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) {
      const u32 first = threads.first(block, step), count = visible - smaller(first, visible);
      load_values(src + first * static_cast<u64>(bytes), count, type, x[step]);
#pragma unroll
      for (u32 e = 0; e < 8; e++)
        most = __builtin_fmaxf(most, e < count ? x[step][e / 4][e % 4] * args.scale : kNone);
    }
    if (load < blocks) {
      if (most != greatest) sum *= exp_nonpositive(greatest - most);
      greatest = most;
    }
    const f32 base = greatest == kNone ? 0.0f : greatest;
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) {
      // Not `count`: those comparisons would be kept in scalar registers.
      const int left = static_cast<int>(visible) - static_cast<int>(threads.first(block, step));
#pragma unroll
      for (int e = 0; e < 8; e++) {
        const f32 scaled = __builtin_fmaf(x[step][e / 4][e % 4], args.scale, -base);
        const f32 power = e < left ? exp_nonpositive(scaled) : 0.0f;
        x[step][e / 4][e % 4] = power;
        sum += power;
      }
    }
    if (load + 1 == blocks) {
      const f32 of_row = threads.max(greatest, lds);
      const f32 power = exp_nonpositive(greatest - of_row);  // NaN if all values are -Inf
      const f32 total = threads.sum(sum * power, lds);
      factor = (blocks == 1 ? power : 1.0f) / total;
      greatest = of_row;
    }
    if (blocks != 1 && load < blocks) continue;
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) {
      const u32 first = threads.first(block, step);
      for (f32x4& four : x[step]) four *= f32x4(factor);
      store_chunk(dst + first * static_cast<u64>(bytes), type, x[step], cols - smaller(first, cols),
                  args.cols);
    }
  }
}

}  // namespace hipgemm
