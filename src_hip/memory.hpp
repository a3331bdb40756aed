// Global memory by address and by buffer, and what a workgroup's threads share.
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

// Kernel-wide values, read through the scalar cache.
HIPGEMM_DEVICE f32 load_scalar(const void* p) {
  return *(const __attribute__((address_space(4))) f32*)p;
}

// An offset no buffer reaches: loads there give 0, stores are dropped. A tile spans less than 2^31
// bytes (the host sees to that), so a tile-relative offset may even be added without wrapping.
inline constexpr u32 kOutOfRange = 0x80000000u;

// A raw buffer: an access is in range when its offset lies below `bytes`. Whether the scalar offset
// takes part in that check is documented one way and observed another; nothing here depends on it.
using Buffer = __amdgpu_buffer_rsrc_t;
HIPGEMM_DEVICE Buffer make_buffer(u64 address, u32 bytes) {
  return __builtin_amdgcn_make_buffer_rsrc(reinterpret_cast<void*>(address), 0, bytes, kRawBuffer);
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
