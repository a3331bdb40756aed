// Softmax of rows: e^(x * scale) over its sum, each row's maximum subtracted first.
#pragma once

#include "common/functions.hpp"
#include "common/kargs.hpp"
#include "common/types.hpp"
#include "quantize/row_chunks.hpp"
#include "quantize/row_threads.hpp"

// Rows of src and dst are contiguous, both of the type (Format). causal: row i of each matrix of
// matrix_rows rows has no columns beyond i + cols - matrix_rows. row_shift: RowThreads.
// clang-format off
#define HIPGEMM_SoftmaxArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(i64, src_pitch) X(i64, dst_pitch) X(u32, rows) X(u32, cols)           \
  X(u32, matrix_rows) X(u32, row_shift) X(f32, scale) X(u32, causal) X(u32, type)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SoftmaxArgs);

inline constexpr f32 kInf = __builtin_inff();

// f(a value, its index in the row) for all values of a thread.
template <class Threads, class F>
HIPGEMM_DEVICE void for_each_value(const Threads& threads, u32 block, RowChunks<Threads>& x, F f) {
#pragma unroll
  for (u32 step = 0; step < Threads::kSteps; step++) {
    const u32 first = threads.first(block, step);
#pragma unroll
    for (u32 e = 0; e < 8; e++) x[step][e / 4][e % 4] = f(x[step][e / 4][e % 4], first + e);
  }
}

// Each thread subtracts the maximum of its own values; then one reduction of maxima and one of sums
// do for the row. kWhole: all rows are whole (RowMemory), and their values fit the registers.
template <bool kWhole, class Threads>
HIPGEMM_DEVICE void softmax_rows(const SoftmaxArgs& args, const Threads& threads,
                                 typename Threads::Lds (&lds)[2]) {
  const u32 row = workgroup_index() * threads.rows() + threads.row();
  const u32 cols = row < args.rows ? args.cols : 0;
  const u32 hidden = args.causal ? args.matrix_rows - 1 - row % args.matrix_rows : 0;
  const u32 visible = cols - smaller(hidden, cols);
  const auto type = static_cast<Format>(args.type);
  const RowMemory src{address_of(args.src) + row * static_cast<u64>(args.src_pitch), visible, type};
  const RowMemory dst{address_of(args.dst) + row * static_cast<u64>(args.dst_pitch), cols, type};
  const u32 blocks = kWhole ? 1 : threads.blocks(args.cols);
  // Values that do not exist, or are hidden, become -Inf, which adds nothing to any sum.
  const bool hides = args.causal || args.cols % threads.values() != 0;
  const f32 scale = args.scale == 0 ? 1.0f : __builtin_fabsf(args.scale);
  f32 greatest = -kInf, sum = 0, factor = 0;
#pragma unroll 1
  for (u32 load = 0; load < (blocks == 1 ? 1 : 2 * blocks); load++) {
    const u32 block = load < blocks ? load : load - blocks;
    RowChunks<Threads> x;
    if constexpr (kWhole)
      load_chunks(threads, block, src, x);
    else
      sum_of_rows(threads, block, 1, [&](bool) HIPGEMM_INLINE { return src; }, x);
    if (args.scale <= 0)  // x * scale == (-x) * -scale
      for_each_value(threads, block, x, [&](f32 value, u32) HIPGEMM_INLINE {
        return args.scale < 0 ? -value : value * 0.0f;
      });
    if (hides)
      for_each_value(threads, block, x, [&](f32 value, u32 at) HIPGEMM_INLINE {
        return at < visible ? value : -kInf;
      });
    f32 most = greatest;
    for_each_value(threads, block, x, [&](f32 value, u32) HIPGEMM_INLINE {
      most = __builtin_fmaxf(most, value);
      return value;
    });
    if (load < blocks) {
      if (most != greatest) sum *= exp_nonpositive(greatest * scale - most * scale);
      greatest = most;
    }
    const f32 base = greatest == -kInf ? 0.0f : greatest * scale;
    f32x4 sums(0.0f);
#pragma unroll
    for (u32 i = 0; i < 2 * Threads::kSteps; i++) {
      f32x4& four = x[i / 2][i % 2];
      four = exp_nonpositive(__builtin_elementwise_fma(four, f32x4(scale), f32x4(-base)));
      sums += four;
    }
    sum += (sums.x + sums.y) + (sums.z + sums.w);
    if (load + 1 == blocks) {
      const f32 of_row = threads.max(greatest, lds[0]);
      // NaN if all values are -Inf.
      const f32 power = exp_nonpositive(greatest * scale - of_row * scale);
      const f32 total = threads.sum(sum * power, lds[1]);
      factor = (blocks == 1 ? power : 1.0f) / total;
      greatest = of_row;
    }
    if (blocks != 1 && load < blocks) continue;
#pragma unroll
    for (u32 i = 0; i < 2 * Threads::kSteps; i++) x[i / 2][i % 2] *= f32x4(factor);
    store_chunks<kWhole ? RowKind::whole : RowKind::any>(threads, block, dst, x);
  }
}

template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void softmax(const SoftmaxArgs& args) {
  using Threads = RowThreads<kThreads, kValues>;
  static __shared__ typename Threads::Lds lds[2];
  const Threads threads{args.row_shift};
  const u64 places = address_of(args.src) | args.src_pitch | address_of(args.dst) | args.dst_pitch;
  if (threads.blocks(args.cols) == 1 && args.cols % 8 == 0 && places % 16 == 0)
    softmax_rows<true>(args, threads, lds);
  else
    softmax_rows<false>(args, threads, lds);
}

}  // namespace hipgemm
