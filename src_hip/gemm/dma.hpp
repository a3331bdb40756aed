// The global-to-LDS DMA of gfx950, waits and barriers.
#pragma once

#include "common/hip_device.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// 16 bytes per lane into LDS, in lane order from lds + kOffset on; kOffset is added to the global
// address as well. Out-of-range lanes write zeros.
inline constexpr u32 kDmaBytes = kWaveLanes * 16;
inline constexpr u32 kMaxDmaOffset = 4095;  // 12 bits
// kOutOfRange for DMAs: their buffers begin a little before the operand, so they may end past 2^31.
inline constexpr u32 kDmaOutOfRange = 0xc0000000u;
#if defined(__gfx950__)
template <u32 kOffset>
HIPGEMM_DEVICE void dma(Buffer from, LdsByte* lds, u32 lane_offset, u32 wave_offset) {
  static_assert(kOffset <= kMaxDmaOffset, "the instruction has 12 bits");
  __builtin_amdgcn_raw_ptr_buffer_load_lds(from, lds, 16, lane_offset, wave_offset, kOffset, 0);
}
#endif

// Waits until at most kInFlight of this wave's vector-memory operations are in flight; they
// complete in the order of issue. The compiler counts the builtin, but not inline assembly, in its
// own waits.
template <u32 kInFlight>
HIPGEMM_DEVICE void wait_dma() {
  static_assert(kInFlight < 64, "vmcnt has 6 bits");
  constexpr u32 kOthersIdle = 0x0f70;
  __builtin_amdgcn_s_waitcnt(kOthersIdle | (kInFlight & 15) | (kInFlight >> 4) << 14);
}

// Waits until every LDS read of this wave is complete.
HIPGEMM_DEVICE void wait_lds() { __builtin_amdgcn_s_waitcnt(0xc07f); }

// The compiler moves no instruction across it.
HIPGEMM_DEVICE void sched_barrier() { __builtin_amdgcn_sched_barrier(0); }

// A barrier after which LDS is as all waves' reads and writes before it have left it.
HIPGEMM_DEVICE void lds_barrier() {
  asm volatile("" ::: "memory");
  sched_barrier();
  wait_lds();
  __builtin_amdgcn_s_barrier();
  sched_barrier();
  asm volatile("" ::: "memory");
}

// A barrier without a fence, which would wait for all DMA in flight.
HIPGEMM_DEVICE void barrier() {
  sched_barrier();
  __builtin_amdgcn_s_barrier();
  sched_barrier();
}

}  // namespace hipgemm
