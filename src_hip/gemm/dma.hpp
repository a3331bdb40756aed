// The global-to-LDS DMA of gfx950, and waits named for what they wait for.
#pragma once

#include "common/hip_device.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// 16 bytes per lane into LDS, in lane order from lds + kOffset on; kOffset is added to the global
// address as well. Out-of-range lanes write zeros.
inline constexpr u32 kDmaBytes = kWaveLanes * 16;
inline constexpr u32 kMaxDmaOffset = 4095;  // 12 bits
// kOutOfRange for DMAs, whose buffers begin a little before the operand and so may end past 2^31.
inline constexpr u32 kDmaOutOfRange = 0xc0000000u;
template <u32 kOffset>
HIPGEMM_DEVICE void dma(Buffer from, LdsByte* lds, u32 lane_offset, u32 wave_offset) {
  static_assert(kOffset <= kMaxDmaOffset, "the instruction has 12 bits");
  __builtin_amdgcn_raw_ptr_buffer_load_lds(from, lds, 16, lane_offset, wave_offset, kOffset, 0);
}

// Until at most kInFlight of this wave's vector-memory operations are still to land. They land in
// the order of issue. The builtin, unlike inline assembly, lets the compiler count too.
template <u32 kInFlight>
HIPGEMM_DEVICE void wait_dma() {
  static_assert(kInFlight < 64, "vmcnt has 6 bits");
  constexpr u32 kOthersIdle = 0x0f70;
  __builtin_amdgcn_s_waitcnt(kOthersIdle | (kInFlight & 15) | (kInFlight >> 4) << 14);
}

// Until every LDS read of this wave has arrived.
HIPGEMM_DEVICE void wait_lds() { __builtin_amdgcn_s_waitcnt(0xc07f); }

// No instruction moves across.
HIPGEMM_DEVICE void pin() { __builtin_amdgcn_sched_barrier(0); }

// A barrier that leaves DMA in flight, which a fence would wait for.
HIPGEMM_DEVICE void barrier() {
  pin();
  __builtin_amdgcn_s_barrier();
  pin();
}

}  // namespace hipgemm
