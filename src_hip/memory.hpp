// Buffers, the global-to-LDS DMA, and waits named for what they wait for.
#pragma once

#include "hip_device.hpp"
#include "types.hpp"

namespace hipgemm {

using LdsByte = __attribute__((address_space(3))) u8;

inline constexpr u32 kWaveLanes = 64;

template <class E>
using Global = __attribute__((address_space(1))) E;
template <class E>
HIPGEMM_DEVICE Global<E>* global(u64 address) {
  return reinterpret_cast<Global<E>*>(address);
}

// An offset no buffer reaches: loads there give 0, stores are dropped. A tile spans less than 2^31
// bytes (the host sees to that), so a tile-relative offset may even be added without wrapping.
inline constexpr u32 kOutOfRange = 0x80000000u;

// A raw buffer: an access is in range when its offset lies below `bytes`. Whether the scalar offset
// takes part in that check is documented one way and observed another; nothing here depends on it.
using Buffer = __amdgpu_buffer_rsrc_t;
HIPGEMM_DEVICE Buffer make_buffer(u64 address, u32 bytes) {
  constexpr int kRawDwords = 0x00020000;  // word 3: untyped, no swizzle
  return __builtin_amdgcn_make_buffer_rsrc(reinterpret_cast<void*>(address), 0, bytes, kRawDwords);
}

// 16 bytes per lane into LDS, in lane order from lds + kOffset on; kOffset is added to the global
// address as well. Out-of-range lanes write zeros.
inline constexpr u32 kDmaBytes = kWaveLanes * 16;
inline constexpr u32 kMaxDmaOffset = 4095;  // 12 bits
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

// The ordinary barrier: memory accesses of all waves before it are seen by all after it.
HIPGEMM_DEVICE void sync_workgroup() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The value is the same in all lanes: keep it in a scalar register.
HIPGEMM_DEVICE u32 uniform(u32 x) { return __builtin_amdgcn_readfirstlane(x); }

}  // namespace hipgemm
