// Eight consecutive values of a row of any type.
#pragma once

#include "common/element_types.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"

namespace hipgemm {

// x, unknown to the compiler: what depends on it is computed where it is needed. Else comparisons
// of all loads and stores would be made once, and kept in more scalar registers than there are.
HIPGEMM_DEVICE u32 opaque(u32 x) {
#if defined(__AMDGCN__)
  asm volatile("" : "+v"(x));
#else
  asm volatile("" : "+r"(x));
#endif
  return x;
}
// The same, for an x that all threads have.
HIPGEMM_DEVICE u32 opaque_uniform(u32 x) { return uniform(opaque(x)); }
HIPGEMM_DEVICE void* in_vector(void* x) {
  const u64 address = address_of(x);
  return reinterpret_cast<void*>(static_cast<u64>(opaque(address >> 32)) << 32 |
                                 opaque(static_cast<u32>(address)));
}

// The first `count` of 8 values that are `stride` bytes apart, as they are in memory; then zeros.
template <class Bits>
HIPGEMM_DEVICE void load_bits(u64 address, i64 stride, u32 count, u32x4 (&parts)[2]) {
  constexpr u32 kWordValues = 4 / sizeof(Bits), kParts = 2 / kWordValues;
  if (count >= 8 && stride == sizeof(Bits) && address % 16 == 0) {
#pragma unroll
    for (u32 i = 0; i < kParts; i++) parts[i] = *global<u32x4>(address + i * 16);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < kParts; i++) parts[i] = u32x4(0);
  if (count == 0) return;
  // No branches, so that all are loaded at once: what does not exist is read from the last one.
  u32 loaded[8];
  const u32 end = opaque(count);
#pragma unroll
  for (u32 e = 0; e < 8; e++)
    loaded[e] = *global<Bits>(address + smaller(e, end - 1) * static_cast<u64>(stride));
#pragma unroll
  for (u32 e = 0; e < 8; e++)
    parts[e / kWordValues / 4][e / kWordValues % 4] |= (e < end ? loaded[e] : 0)
                                                       << e % kWordValues * 16;
}

// Contiguous values, zero from `count` on: their bits, in one part for 16 bits or two.
HIPGEMM_DEVICE void load_parts(u64 address, u32 count, Format type, u32x4 (&parts)[2]) {
  if (type == Format::f32)
    load_bits<u32>(address, sizeof(u32), count, parts);
  else
    load_bits<u16>(address, sizeof(u16), count, parts);
}
// From: one of element_types.hpp.
template <class From, u32 kParts>
HIPGEMM_DEVICE void widen_parts(const u32x4 (&parts)[kParts], Values<8>& x) {
  constexpr u32 kWordValues = 4 / sizeof(typename From::Bits);
  static_assert(kParts * kWordValues >= 2, "");
#pragma unroll
  for (u32 word = 0; word < 8 / kWordValues; word++) {
    const auto values = From::widen_word(parts[word / 4][word % 4]);
#pragma unroll
    for (u32 e = 0; e < kWordValues; e++) {
      const u32 i = word * kWordValues + e;
      x[i / 4][i % 4] = values[e];
    }
  }
}
HIPGEMM_DEVICE void widen_parts(const u32x4 (&parts)[2], Format type, Values<8>& x) {
  if (type == Format::f32) return widen_parts<FromF32>(parts, x);
#pragma unroll
  for (u32 word = 0; word < 4; word++) {
    const f32x2 two = type == Format::bf16 ? FromBf16::widen_word(parts[0][word])
                                           : FromF16::widen_word(parts[0][word]);
    x[word / 2][word % 2 * 2] = two.x;
    x[word / 2][word % 2 * 2 + 1] = two.y;
  }
}
HIPGEMM_DEVICE void load_values(u64 address, u32 count, Format type, Values<8>& x) {
  u32x4 parts[2];
  load_parts(address, count, type, parts);
  widen_parts(parts, type, x);
}

}  // namespace hipgemm
