// Primitives of architectures with matrix kernels, or of gfx950: LDS, DMA, transposing reads,
// waits, priority, stores, scans.
#pragma once

#include "common/lanes.hpp"
#include "gemm/dma.hpp"
#include "primitives/arguments.hpp"

namespace hipgemm {

// The words of each thread through LDS, then a transposing read.
template <u32 kThreads, u32 kWords, class Read>
HIPGEMM_DEVICE void read_from_lds(const PrimitiveArgs& args, Read read) {
  static __shared__ __attribute__((aligned(16))) u32 lds[kThreads * kWords];
  const auto x = read_words<kThreads, kWords>(args);
#pragma unroll
  for (u32 i = 0; i < kWords; i++) lds[thread_index() * kWords + i] = x[i];
  sync_workgroup();
  Vector<u32, kWords> y = read((LdsByte*)lds + thread_index() * kWords * 4);
  write_words<kThreads>(args, y);
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_ds_read_b64_tr_b16(const PrimitiveArgs& args) {
  read_from_lds<kThreads, 2>(args,
                             [](LdsByte* at) HIPGEMM_INLINE { return read_transposed<16>(at); });
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_ds_read_b64_tr_b8(const PrimitiveArgs& args) {
  read_from_lds<kThreads, 2>(args,
                             [](LdsByte* at) HIPGEMM_INLINE { return read_transposed<8>(at); });
}
// 12 bytes of each 16.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_ds_read_b96_tr_b6(const PrimitiveArgs& args) {
  read_from_lds<kThreads, 4>(args, [](LdsByte* at) HIPGEMM_INLINE {
    using Three = Vector<int, 3>;
    using Lds = __attribute__((address_space(3))) Three;
    const Three x = __builtin_amdgcn_ds_read_tr6_b96_v3i32((Lds*)at);
    return u32x4{static_cast<u32>(x[0]), static_cast<u32>(x[1]), static_cast<u32>(x[2]), 0};
  });
}

// in: an offset for each thread, then data. A DMA to kInto in LDS, which was all ones: all of it is
// written out. n: bytes of data in range; the offset that all lanes have is 16 for each wave.
inline constexpr u32 kDmaLds = 4096;
template <u32 kThreads, u32 kInto, u32 kOffset>
HIPGEMM_DEVICE void dma_once(const PrimitiveArgs& args) {
  static __shared__ __attribute__((aligned(1024))) u32 lds[kDmaLds / 4];
#pragma unroll
  for (u32 i = 0; i < kDmaLds / 4; i += kThreads) lds[i + thread_index()] = ~0u;
  sync_workgroup();
  const u32 offset = global<u32>(address_of(args.in))[thread_index()];
  const Buffer from = make_buffer(address_of(args.in) + kThreads * 4, args.n);
  dma<kOffset>(from, (LdsByte*)lds + kInto, offset, 16);
  wait_dma<0>();
  sync_workgroup();
#pragma unroll
  for (u32 i = 0; i < kDmaLds / 4; i += kThreads)
    global<u32>(address_of(args.out))[i + thread_index()] = lds[i + thread_index()];
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_lds_dma(const PrimitiveArgs& args) {
  dma_once<kThreads, 0, 0>(args);
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_lds_dma_m0(const PrimitiveArgs& args) {
  dma_once<kThreads, 2048, 0>(args);
}
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_lds_dma_offset(const PrimitiveArgs& args) {
  dma_once<kThreads, 0, 1024>(args);
}

// in: 64 KiB for each workgroup, of which it takes kilobytes far apart, and one load into
// registers. After a wait for all but the newest operations, the oldest of those before is
// complete.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_vmcnt(const PrimitiveArgs& args) {
  constexpr u32 kDmas = 8, kStride = 8192, kLoadAfter = 3;
  static __shared__ __attribute__((aligned(1024))) u32 lds[kDmas * kDmaBytes / 4];
  LdsByte* const stage = (LdsByte*)lds;
#pragma unroll
  for (u32 i = 0; i < kDmas * kDmaBytes / 4; i += kThreads) lds[i + thread_index()] = ~0u;
  sync_workgroup();
  const Buffer from =
      make_buffer(address_of(args.in) + workgroup_index() * (kDmas * kStride), kDmas * kStride);
  u32 loaded = 0, found[kDmas];
  unrolled<kDmas>([&]<u32 s>(Index<s>) HIPGEMM_INLINE {
    dma<0>(from, stage + s * kDmaBytes, thread_index() * 16, s * kStride);
    sched_barrier();
    if constexpr (s == kLoadAfter) loaded = load_buffer<u32>(from, thread_index() * 16 + 4);
    sched_barrier();
  });
  unrolled<kDmas>([&]<u32 s>(Index<s>) HIPGEMM_INLINE {
    wait_dma<kDmas - 1 - s + (s <= kLoadAfter)>();
    // The compiler does not wait before it, nor moves it.
    asm volatile("ds_read_b32 %0, %1\n\ts_waitcnt lgkmcnt(0)"
                 : "=v"(found[s])
                 : "v"((u32)stage + s * kDmaBytes + thread_index() * 16)
                 : "memory");
    sched_barrier();
  });
  Vector<u32, kDmas + 1> y;
#pragma unroll
  for (u32 s = 0; s < kDmas; s++) y[s] = found[s];
  y[kDmas] = loaded;
  write_words<kThreads>(args, y);
}

// The second word of the first of each two rows of 16 lanes is swapped with the first of the next.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_permlane16_swap(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 8>(args);
  const u32x4 low = x.lo, high = x.hi;  // bit_cast of x.hi itself takes x.lo
  f32x4 a = __builtin_bit_cast(f32x4, low), b = __builtin_bit_cast(f32x4, high);
  swap_lane_rows(a, b);
  Vector<u32, 8> y;
  y.lo = __builtin_bit_cast(u32x4, a);
  y.hi = __builtin_bit_cast(u32x4, b);
  write_words<kThreads>(args, y);
}

}  // namespace hipgemm
