// Memory by address.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

using LdsByte = __attribute__((address_space(3))) u8;

inline constexpr u32 kWaveLanes = 64;  // at most: RDNA's waves have half of it

template <class E>
using Global = __attribute__((address_space(1))) E;
template <class E>
HIPGEMM_DEVICE Global<E>* global(u64 address) {
  return reinterpret_cast<Global<E>*>(address);
}

HIPGEMM_DEVICE u64 address_of(const void* p) { return reinterpret_cast<u64>(p); }

// A value that is the same for all threads.
HIPGEMM_DEVICE f32 load_scalar(const void* p) { return *(Constant<f32>*)p; }

// An offset no buffer reaches: loads there give 0, stores are dropped. A tile spans less than 2^31
// bytes (the host checks it), so a tile-relative offset may be added without wrapping.
inline constexpr u32 kOutOfRange = 0x80000000u;

}  // namespace hipgemm
