// Random numbers: the counter-based generator Philox4x32-10. Each word is a function of a seed and
// an index alone, so results do not depend on the launch or the machine.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

struct PhiloxKey {
  u32 low, high;  // of a seed
};

// Four words for each counter. The rounds are a loop: instructions are many where they are inlined.
template <u32 kCounters>
HIPGEMM_DEVICE void philox(const u64 (&counters)[kCounters], PhiloxKey key,
                           u32x4 (&words)[kCounters]) {
#pragma unroll
  for (u32 i = 0; i < kCounters; i++)
    words[i] = {static_cast<u32>(counters[i]), static_cast<u32>(counters[i] >> 32), 0, 0};
#pragma unroll 1
  for (u32 round = 0; round < 10; round++) {
#pragma unroll
    for (u32x4& x : words) {
      const u64 first = static_cast<u64>(x.x) * 0xD2511F53u;
      const u64 second = static_cast<u64>(x.z) * 0xCD9E8D57u;
      x = {static_cast<u32>(second >> 32) ^ x.y ^ key.low, static_cast<u32>(second),
           static_cast<u32>(first >> 32) ^ x.w ^ key.high, static_cast<u32>(first)};
    }
    key.low += 0x9E3779B9u;
    key.high += 0xBB67AE85u;
  }
}

// The signs of kCount values from a multiple of 4 on: bit i is set for a negative one.
template <u32 kCount>
HIPGEMM_DEVICE u32 random_signs(u32 first, PhiloxKey key) {
  u64 counters[kCount / 4];
  u32x4 words[kCount / 4];
#pragma unroll
  for (u32 i = 0; i < kCount / 4; i++) counters[i] = first / 4 + i;
  philox(counters, key, words);
  u32 signs = 0;
#pragma unroll
  for (u32 i = 0; i < kCount; i++) signs |= words[i / 4][i % 4] >> 31 << i;
  return signs;
}

}  // namespace hipgemm
