// Primitives of architectures with matrix kernels: LDS, priority, stores, scans of a wave.
#pragma once

#include "common/groups.hpp"
#include "primitives/arguments.hpp"

namespace hipgemm {

// All of LDS: each word is written once and read by another thread.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_lds_size(const PrimitiveArgs& args) {
#if defined(__gfx950__)
  constexpr u32 kBytes = 160 * 1024;
#else
  constexpr u32 kBytes = 64 * 1024;
#endif
  constexpr u32 kWords = kBytes / 4;
  static __shared__ u32 lds[kWords];
#pragma unroll 1
  for (u32 i = thread_index(); i < kWords; i += kThreads) lds[i] = i ^ args.n;
  sync_workgroup();
  u32 wrong = 0;
#pragma unroll 1
  for (u32 i = thread_index(); i < kWords; i += kThreads)
    wrong += lds[kWords - 1 - i] != ((kWords - 1 - i) ^ args.n);
  write_words<kThreads>(args, Vector<u32, 1>(wrong));
}

// Waves of different priority that wait for each other.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_s_setprio(const PrimitiveArgs& args) {
  static __shared__ u32 lds[kThreads];
  u32 x = read_words<kThreads, 1>(args)[0];
  const bool first = thread_index() < kThreads / 2;
#pragma unroll 1
  for (u32 i = 0; i < args.n; i++) {
    if (uniform(first)) __builtin_amdgcn_s_setprio(1);
    lds[thread_index()] = x;
    sync_workgroup();
    x = lds[(thread_index() + kThreads / 2) % kThreads] * 3 + 1;
    __builtin_amdgcn_s_setprio(0);
    sync_workgroup();
  }
  write_words<kThreads>(args, Vector<u32, 1>(x));
}

// Stores of 16 bytes to a buffer of n bytes, of which a thread has one offset.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_buffer_stores(const PrimitiveArgs& args) {
  const u32 offset = global<u32>(address_of(args.in))[thread_index()];
  const u32 x = thread_index() * 0x01010101u + 1;
  __builtin_amdgcn_raw_buffer_store_b128(u32x4(x), make_buffer(address_of(args.out), args.n),
                                         offset, 0, 0);
}
// 16 bytes from and to any address that is a multiple of 4, which rows may begin at.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_unaligned_rows(const PrimitiveArgs& args) {
  const u32 at = thread_index() * (args.n + 16) + args.n;
  *global<u32x4>(address_of(args.out) + at) = *global<u32x4>(address_of(args.in) + at);
}

// Votes and scans of a wave: the blocks of 32 in all groups before that of the workgroup's index,
// and the group of its slot of 64 rows. in: n + 1 offsets.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_wave_scan(const PrimitiveArgs& args) {
  const Groups groups(args.in, args.n, 1u << 20);
  const u32 blocks = groups.count_blocks_before<32>(workgroup_index());
  write_words<kThreads>(args, u32x2{blocks, groups.find<64>(workgroup_index()).group});
}

}  // namespace hipgemm
