// Softmax of rows: e^(x * scale) over its sum, each row's maximum subtracted first.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/types.hpp"
#include "portable/exp2.hpp"
#include "quantize/row_chunks.hpp"
#include "quantize/row_threads.hpp"

// Rows of src and dst are contiguous, both of the type (Format). causal: row i of each matrix of
// matrix_rows rows has no columns beyond i + cols - matrix_rows. A workgroup takes `sets` times as
// many rows as it has in registers at a time. row_shift: RowThreads.
// clang-format off
#define HIPGEMM_SoftmaxArgs(X)                                                                    \
  X(ptr, src) X(ptr, dst) X(i64, src_pitch) X(i64, dst_pitch) X(u32, rows) X(u32, cols)           \
  X(u32, matrix_rows) X(u32, row_shift) X(u32, sets) X(f32, scale) X(u32, causal) X(u32, type)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(SoftmaxArgs);

inline constexpr f32 kInf = __builtin_inff();
// Whether whole rows of bfloat16 have code of their own, with fewer instructions.
#if defined(__NVPTX__)
inline constexpr bool kKnowsBf16 = true;
#else
inline constexpr bool kKnowsBf16 = false;
#endif

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

// Values less the greatest one, times the scale, as exponents of 2.
struct Exponents {
  f32 scale, half_greatest;

  // scale: not negative. Halves, so that no difference overflows.
  static HIPGEMM_DEVICE Exponents below(f32 greatest, f32 scale) {
    constexpr f32 kTwiceLog2E = 2.88539008f * KeptPowers::kOfExponent, kMost = 3.40282347e+38f;
    return {__builtin_fminf(scale * kTwiceLog2E, kMost), 0.5f * greatest};
  }
  HIPGEMM_DEVICE f32x4 kept_powers(f32x4 x) const {
    return KeptPowers::of(__builtin_elementwise_fma(x, f32x4(0.5f), f32x4(-half_greatest)) *
                          f32x4(scale));
  }
  // 2^exponent.
  HIPGEMM_DEVICE f32 power(f32 x) const {
    return KeptPowers::times(kept_powers(f32x4(x)), KeptPowers::kDown).x;
  }
};

// A row in one block: its maximum, exponentials, and their sum. A longer one: each thread subtracts
// the maximum of its own values; then one reduction of maxima and one of sums do for the row, whose
// exponentials are computed once more.
template <bool kWhole, class Threads, class Load, class Store>
HIPGEMM_DEVICE void softmax_row(const SoftmaxArgs& args, const Threads& threads,
                                typename Threads::Lds (&lds)[2], u32 row, Load load_row,
                                Store store_row) {
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
    load_row(block, src, x);
    if (args.scale <= 0)  // x * scale == (-x) * -scale
      for_each_value(threads, block, x, [&](f32 value, u32) HIPGEMM_INLINE {
        return args.scale < 0 ? -value : value * 0.0f;
      });
    if (hides)
      for_each_value(threads, block, x, [&](f32 value, u32 at) HIPGEMM_INLINE {
        return at < visible ? value : -kInf;
      });
    if (load < blocks) {
      f32 most = greatest;
      for_each_value(threads, block, x, [&](f32 value, u32) HIPGEMM_INLINE {
        most = __builtin_fmaxf(most, value);
        return value;
      });
      if (blocks == 1) most = threads.max(most, lds[0]);
      if (load != 0 && most != greatest) sum *= Exponents::below(most, scale).power(greatest);
      greatest = most;
    }
    const bool partial = load < blocks && blocks != 1;
    const auto exponents = Exponents::below(greatest == -kInf ? 0.0f : greatest, scale);
    f32x4 sums(0.0f);
#pragma unroll
    for (u32 i = 0; i < 2 * Threads::kSteps; i++) {
      f32x4& four = x[i / 2][i % 2];
      four = exponents.kept_powers(four);
      sums = KeptPowers::added(sums, four);
    }
    if (load < blocks) {
      sum += (sums.x + sums.y) + (sums.z + sums.w);
      if (!(sum < 0x1p100f)) sum = __builtin_nanf("");  // as it is with a NaN or +Inf (KeptPowers)
    }
    if (load + 1 == blocks) {
      if (blocks != 1) {
        const f32 of_row = threads.max(greatest, lds[0]);
        sum *= Exponents::below(of_row, scale).power(greatest);
        greatest = of_row;
      }
      const f32 total = threads.sum(sum, lds[1]);
      factor = greatest == -kInf ? __builtin_nanf("") : 1.0f / total;
    }
    if (partial) continue;
#pragma unroll
    for (u32 i = 0; i < 2 * Threads::kSteps; i++)
      x[i / 2][i % 2] = KeptPowers::times(x[i / 2][i % 2], factor);
    store_row(block, dst, x);
  }
}

template <RowKind kKind, class Threads>
HIPGEMM_DEVICE void softmax_rows(const SoftmaxArgs& args, const Threads& threads,
                                 typename Threads::Lds (&lds)[2]) {
  const u32 begin = threads.first(0, 0), step_values = threads.first(0, 1) - begin;
  const auto load = [&](u32 block, const RowMemory& src, RowChunks<Threads>& x) HIPGEMM_INLINE {
    if constexpr (kKind == RowKind::whole) {
      load_chunks(threads, block, src, x);
    } else if constexpr (kKind == RowKind::any) {
      sum_of_rows(threads, block, 1, [&](bool) HIPGEMM_INLINE { return src; }, x);
    } else {
      ChunkBits<Threads> bits;
      load_chunk_bits<Threads>(src.address, opaque(begin) * 2, step_values * 2, src.length * 2,
                               bits);
#pragma unroll
      for (u32 step = 0; step < Threads::kSteps; step++) {
        const u32x4 parts[1] = {bits[step]};
        widen_parts<FromBf16>(parts, x[step]);
      }
    }
  };
  const auto store = [&](u32 block, const RowMemory& dst, RowChunks<Threads>& x) HIPGEMM_INLINE {
    if constexpr (kKind != RowKind::bf16) return store_chunks<kKind>(threads, block, dst, x);
    const u32 from = opaque(begin);
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++)
      store_row_chunk<kKind>(dst, from + step * step_values, x[step]);
  };
  u32 row = workgroup_index() * args.sets * threads.rows() + threads.row();
#pragma unroll 1
  for (u32 set = 0; set < args.sets; set++, row += threads.rows())
    softmax_row<kKind != RowKind::any>(args, threads, lds, row, load, store);
}

template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void softmax(const SoftmaxArgs& args) {
  using Threads = RowThreads<kThreads, kValues>;
  static __shared__ typename Threads::Lds lds[2];
  const Threads threads{args.row_shift};
  const u64 places = address_of(args.src) | args.src_pitch | address_of(args.dst) | args.dst_pitch;
  if (threads.blocks(args.cols) != 1 || args.cols % 8 != 0 || places % 16 != 0)
    softmax_rows<RowKind::any>(args, threads, lds);
  else if (kKnowsBf16 && static_cast<Format>(args.type) == Format::bf16)
    softmax_rows<RowKind::bf16>(args, threads, lds);
  else
    softmax_rows<RowKind::whole>(args, threads, lds);
}

}  // namespace hipgemm
