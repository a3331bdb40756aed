// Whole rows in registers: how the threads of a workgroup share them, and reductions over a row.
#pragma once

#include "common/hip_device.hpp"
#include "common/lane_reduce.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"

namespace hipgemm {

// A row has 2^shift threads, 16 or more. A thread has kSteps chunks of 8 values, the chunks of a
// step one after the other. A longer row is several blocks of so many values, which are loaded once
// more for a second pass. Sums depend on nothing but the row's length and values.
template <u32 kThreads_, u32 kValues>
struct RowThreads {
  static constexpr u32 kThreads = kThreads_;
  static constexpr u32 kChunk = 8, kSteps = kValues / kThreads / kChunk, kGroup = 16;
  static_assert(kValues == kThreads * kSteps * kChunk, "");
  using Lds = f32[kThreads / kGroup];
  u32 shift;

  HIPGEMM_DEVICE u32 rows() const { return kThreads >> opaque_uniform(shift); }
  HIPGEMM_DEVICE u32 row() const { return opaque(thread_index()) >> shift; }
  HIPGEMM_DEVICE u32 values() const { return (kSteps * kChunk) << shift; }  // of a block
  HIPGEMM_DEVICE u32 blocks(u32 length) const {
    return larger(1, length / values() + (length % values() != 0));
  }
  // The first value of a step of a block.
  HIPGEMM_DEVICE u32 first(u32 block, u32 step) const {
    const u32 by = opaque_uniform(shift), index = opaque(thread_index()) & ((1u << by) - 1);
    return (((block * kSteps + step) << by) + index) * kChunk;
  }

  // All threads of a row, or more of them.
  HIPGEMM_DEVICE void sync_row() const {
#if defined(__NVPTX__)
    if (rows() < 16) {  // there are 16 barriers, the first one for all threads
      const u32 barrier = row() + 1, threads = 1u << shift;
      asm volatile("bar.sync %0, %1;" : : "r"(barrier), "r"(threads) : "memory");
      return;
    }
#endif
    sync_workgroup();
  }

  // Of all values x of a row; all threads of the workgroup take part. lds: not that of the
  // reduction before, which may still be read.
  template <class Combine>
  HIPGEMM_DEVICE f32 reduce(f32 x, f32 identity, Lds& lds, Combine combine) const {
    x = reduce_lanes<kGroup>(x, combine);
    const u32 lane = opaque(thread_index()) % kGroup,
              groups = (1u << opaque_uniform(shift)) / kGroup;
    const u32 mine = row() * groups;
    if (lane == 0) lds[thread_index() / kGroup] = x;
    sync_row();
    x = lane < groups ? lds[mine + lane] : identity;
#pragma unroll
    for (u32 more = kGroup; more < kThreads / kGroup; more += kGroup)
      if (groups > more) x = combine(x, lds[mine + more + lane]);
    return reduce_lanes<kGroup>(x, combine);
  }
  HIPGEMM_DEVICE f32 sum(f32 x, Lds& lds) const {
    return reduce(x, 0.0f, lds, [](f32 a, f32 b) HIPGEMM_INLINE { return a + b; });
  }
  HIPGEMM_DEVICE f32 max(f32 x, Lds& lds) const {
    return reduce(x, -__builtin_inff(), lds,
                  [](f32 a, f32 b) HIPGEMM_INLINE { return __builtin_fmaxf(a, b); });
  }
};

}  // namespace hipgemm
