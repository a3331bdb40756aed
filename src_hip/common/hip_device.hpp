// The HIP dialect the kernels are written in: the language and the compiler's builtins, no header.
// Code that only computes (tile_order.hpp, swizzle.hpp) also compiles for the host, where tests
// call it.
#pragma once

#define HIPGEMM_INLINE \
  __attribute__((always_inline))  // lambdas too: a call would need a stack in memory
#if defined(__HIP__) || defined(__CUDA__)
// hipcc defines these; a bare clang has only the attributes.
#if !defined(__device__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define HIPGEMM_DEVICE __device__ inline HIPGEMM_INLINE
#define HIPGEMM_BOTH __attribute__((host, device)) inline __attribute__((always_inline))
// No fused multiply-add but where the code says so, here and in all headers after this one.
#pragma clang fp contract(off)
#else
#define HIPGEMM_BOTH inline
#endif

// Whether there are instructions for OCP's formats of 8, 6 and 4 bits. gfx942 has fp8 instructions
// of the same names, for formats of its own. With HIPGEMM_GENERIC_CASTS none are used, for
// comparison.
#if defined(__gfx950__) && !defined(HIPGEMM_GENERIC_CASTS)
#define HIPGEMM_LOW_PRECISION_CASTS 1
#else
#define HIPGEMM_LOW_PRECISION_CASTS 0
#endif

// Whether there are instructions that convert pairs of floats to OCP's formats of 8 bits.
#if defined(__NVPTX__) && !defined(HIPGEMM_GENERIC_CASTS)
#define HIPGEMM_PAIR_CASTS 1
#else
#define HIPGEMM_PAIR_CASTS 0
#endif

// Whether passes have code of their own for each type of 16 bits, and for whole rows. Elsewhere one
// code serves all, which takes half the time to compile: there 16 bits are widened when loaded.
#if defined(__gfx950__) || defined(__gfx942__) || defined(__NVPTX__)
#define HIPGEMM_SPECIAL_PASSES 1
#else
#define HIPGEMM_SPECIAL_PASSES 0
#endif

// Functions that are called, since their code is long and used often. They get their arguments in
// vector registers; those that are the same for all threads belong in scalar ones. They are static
// and their calls no tail calls, so that the compiler sees all calls, and no function saves
// registers in memory. So none of them calls another one.
#define HIPGEMM_SHARED __device__ __attribute__((noinline, not_tail_called)) static

// Whether there are GEMM kernels by matrix instructions.
#if defined(__gfx950__) || defined(__gfx942__)
#define HIPGEMM_MATRIX_KERNELS 1
#else
#define HIPGEMM_MATRIX_KERNELS 0
#endif

// The number of threads is exact, so that the register limit follows from waves_per_simd
// alone, a minimum of waves. Were it the maximum too, registers would be allocated, unused, until
// no more waves fit. Passes elsewhere: the compiler decides on registers. (The second argument of
// clang's launch bounds means blocks per CU.)
#if HIPGEMM_MATRIX_KERNELS
#define HIPGEMM_PRODUCT(threads, waves_per_simd)                                      \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads), \
                                       amdgpu_waves_per_eu(waves_per_simd))) void
#endif
#if defined(__gfx950__)
#define HIPGEMM_KERNEL HIPGEMM_PRODUCT
#elif defined(__AMDGCN__)
#define HIPGEMM_KERNEL(threads, waves_per_simd) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#else  // as many threads per multiprocessor as those waves are per CU: 4 SIMDs, 64 lanes
#define HIPGEMM_KERNEL(threads, waves_per_simd) \
  extern "C" __global__                         \
      __attribute__((launch_bounds(threads, waves_per_simd * 256 / (threads)))) void
#endif

#if defined(__AMDGCN__)
namespace hipgemm {

// This thread in its workgroup, and this workgroup in the grid.
HIPGEMM_DEVICE unsigned thread_index() { return __builtin_amdgcn_workitem_id_x(); }
HIPGEMM_DEVICE unsigned workgroup_index() { return __builtin_amdgcn_workgroup_id_x(); }

// The usual barrier: memory accesses before it are visible to all waves after it.
HIPGEMM_DEVICE void sync_workgroup() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The value is the same in all lanes: keep it in a scalar register.
HIPGEMM_DEVICE unsigned uniform(unsigned x) { return __builtin_amdgcn_readfirstlane(x); }

// The value of lane `which` of each 2, 4 or 16.
template <unsigned kLanes, unsigned which>
HIPGEMM_DEVICE unsigned of_lane(unsigned x) {
  static_assert(which < kLanes && (kLanes == 2 || kLanes == 4 || kLanes == 16), "");
  constexpr int kRowBroadcast = 0x150 + which, kQuad = which * 0b01010101;
  constexpr int kControl = kLanes == 16 ? kRowBroadcast : kLanes == 4 ? kQuad : kQuad | 0b10100000;
  return __builtin_amdgcn_mov_dpp(x, kControl, 15, 15, true);
}

// The value of another lane. 1: the neighbour; 2: the lane two away, in the neighbouring pair; 4,
// 8: a lane of the neighbouring four or eight, which one depends on the machine.
template <unsigned kAway>
HIPGEMM_DEVICE unsigned of_neighbours(unsigned x) {
  static_assert(kAway == 1 || kAway == 2 || kAway == 4 || kAway == 8, "within 16 lanes");
  constexpr int kHalfMirror = 0x141, kMirror = 0x140;
  constexpr int kControl = kAway == 1   ? 0b10110001
                           : kAway == 2 ? 0b01001110
                           : kAway == 4 ? kHalfMirror
                                        : kMirror;
  return __builtin_amdgcn_mov_dpp(x, kControl, 15, 15, true);
}
// The same where only the two lanes must be at this place of the code, not all of the wave.
template <unsigned kAway>
HIPGEMM_DEVICE unsigned of_partner(unsigned x) {
  return of_neighbours<kAway>(x);
}

// x * 2^exponent, rounded once.
HIPGEMM_DEVICE float times_power_of_two(float x, int exponent) {
  return __builtin_amdgcn_ldexpf(x, exponent);
}
// The same, for x from 1/2 to 2 and exponents from -180 to 30. NaN for NaN.
HIPGEMM_DEVICE float times_small_power_of_two(float x, int exponent) {
  return __builtin_amdgcn_ldexpf(x, exponent);
}

// x == significand_of(x) * 2^exponent_of(x), the significand's magnitude in [1/2, 1). For 0, Inf
// and NaN: x itself and 0.
HIPGEMM_DEVICE float significand_of(float x) { return __builtin_amdgcn_frexp_mantf(x); }
HIPGEMM_DEVICE int exponent_of(float x) { return __builtin_amdgcn_frexp_expf(x); }

// x, or `least` if that is greater. NaN for NaN.
HIPGEMM_DEVICE float at_least(float least, float x) {
#if defined(__gfx950__)
  return __builtin_elementwise_maximum(x, least);
#else
  return x < least ? least : x;
#endif
}

// x clamped; for a NaN either limit.
HIPGEMM_DEVICE float clamped(float x, float low, float high) {
  return __builtin_amdgcn_fmed3f(x, low, high);
}

// The larger magnitude, as bits: NaN above infinity above all finite values.
HIPGEMM_DEVICE unsigned max_magnitude(unsigned amax, float x) {
  const unsigned bits = __builtin_bit_cast(unsigned, x) & 0x7fffffffu;
  return bits > amax ? bits : amax;
}

// The highest bytes of four words, the first's lowest.
HIPGEMM_DEVICE unsigned high_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
  return a >> 24 | b >> 24 << 8 | c >> 24 << 16 | d >> 24 << 24;
}

// f16 to float32. A NaN keeps its sign.
HIPGEMM_DEVICE float widen_half(unsigned short bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, bits));
}

// Memory that is not written while the kernel runs, read through the scalar cache.
template <class E>
using Constant = const __attribute__((address_space(4))) E;

// A raw buffer: an access is in range if its offset is less than `bytes`. Documents and hardware
// disagree on whether the check includes the scalar offset; nothing here depends on it.
using Buffer = __amdgpu_buffer_rsrc_t;
HIPGEMM_DEVICE Buffer make_buffer(unsigned long long address, unsigned bytes) {
#if defined(__GFX9__)
  constexpr int kRaw = 0x00020000;  // word 3: untyped, no swizzle
#else
  constexpr int kRaw = 0x31004000;  // the same, and that offsets are checked in bytes
#endif
  return __builtin_amdgcn_make_buffer_rsrc(reinterpret_cast<void*>(address), 0, bytes, kRaw);
}

// 2, 4 or 16 bytes, or zero out of range.
template <class T>
HIPGEMM_DEVICE T load_buffer(Buffer from, unsigned offset) {
  if constexpr (sizeof(T) == 2)
    return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b16(from, offset, 0, 0));
  else if constexpr (sizeof(T) == 4)
    return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b32(from, offset, 0, 0));
  else
    return __builtin_bit_cast(T, __builtin_amdgcn_raw_buffer_load_b128(from, offset, 0, 0));
}

}  // namespace hipgemm
#elif defined(__NVPTX__)
namespace hipgemm {

HIPGEMM_DEVICE unsigned thread_index() { return __nvvm_read_ptx_sreg_tid_x(); }
HIPGEMM_DEVICE unsigned workgroup_index() { return __nvvm_read_ptx_sreg_ctaid_x(); }
HIPGEMM_DEVICE void sync_workgroup() { __syncthreads(); }
HIPGEMM_DEVICE unsigned uniform(unsigned x) { return x; }
template <unsigned kLanes, unsigned which>
HIPGEMM_DEVICE unsigned of_lane(unsigned x) {
  return __nvvm_shfl_sync_idx_i32(~0u, x, which, (32 - kLanes) << 8 | 31);
}
template <unsigned kAway>
HIPGEMM_DEVICE unsigned of_neighbours(unsigned x) {
  return __nvvm_shfl_sync_bfly_i32(~0u, x, kAway, 31);
}
template <unsigned kAway>
HIPGEMM_DEVICE unsigned of_partner(unsigned x) {
  const unsigned lane = thread_index() % 32;
  return __nvvm_shfl_sync_bfly_i32(1u << lane | 1u << (lane ^ kAway), x, kAway, 31);
}
HIPGEMM_DEVICE float times_power_of_two(float x, int exponent) {
  return __builtin_ldexpf(x, exponent);
}
HIPGEMM_DEVICE float times_small_power_of_two(float x, int exponent) {
  constexpr unsigned kBias = 127, kUp = 64;  // the first product is exact
  return x * __builtin_bit_cast(float, (exponent + kBias + kUp) << 23) * 0x1p-64f;
}
HIPGEMM_DEVICE int exponent_of(float x) {
  constexpr unsigned kInfinity = 0x7f800000;
  constexpr int kBias = 126, kUp = 32;
  const float magnitude = __builtin_fabsf(x);
  const bool subnormal = magnitude < 0x1p-126f;
  const unsigned bits = __builtin_bit_cast(unsigned, subnormal ? magnitude * 0x1p32f : magnitude);
  if (bits == 0 || bits >= kInfinity) return 0;
  return static_cast<int>(bits >> 23) - kBias - (subnormal ? kUp : 0);
}
HIPGEMM_DEVICE float significand_of(float x) { return times_power_of_two(x, -exponent_of(x)); }
HIPGEMM_DEVICE float at_least(float least, float x) {
  return __builtin_elementwise_maximum(x, least);
}
HIPGEMM_DEVICE float clamped(float x, float low, float high) {
  return __builtin_fminf(__builtin_fmaxf(x, low), high);
}
HIPGEMM_DEVICE unsigned max_magnitude(unsigned amax, float x) {
  const float a = __builtin_bit_cast(float, amax);
  return __builtin_bit_cast(unsigned, __nvvm_fmax_nan_f(a, __builtin_fabsf(x)));
}
HIPGEMM_DEVICE float widen_half(unsigned short bits) {
  const float x = static_cast<float>(__builtin_bit_cast(_Float16, bits));
  const unsigned nan = 0x7fc00000u | (bits & 0x8000u) << 16;  // the conversion drops its sign
  return x == x ? x : __builtin_bit_cast(float, nan);
}
HIPGEMM_DEVICE unsigned high_bytes(unsigned a, unsigned b, unsigned c, unsigned d) {
  return __nvvm_prmt(__nvvm_prmt(a, b, 0x73), __nvvm_prmt(c, d, 0x73), 0x5410);
}
// Two encodings, the first in the low byte. A NaN loses its sign.
HIPGEMM_DEVICE unsigned pair_to_e4m3(float first, float second) {
  return static_cast<unsigned short>(__nvvm_ff_to_e4m3x2_rn(second, first));
}
HIPGEMM_DEVICE unsigned pair_to_e5m2(float first, float second) {
  return static_cast<unsigned short>(__nvvm_ff_to_e5m2x2_rn(second, first));
}
// The same back, to f16, which has all their values.
HIPGEMM_DEVICE unsigned pair_from_e4m3(unsigned pair) {
  return __builtin_bit_cast(unsigned, __nvvm_e4m3x2_to_f16x2_rn(static_cast<short>(pair)));
}
HIPGEMM_DEVICE unsigned pair_from_e5m2(unsigned pair) { return __nvvm_prmt(pair, 0, 0x1404); }
HIPGEMM_DEVICE float widen_half_of_any_nan(unsigned bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<unsigned short>(bits)));
}
template <class E>
using Constant = const __attribute__((address_space(1))) E;

struct Buffer {
  unsigned long long address;
  unsigned bytes;
};
HIPGEMM_DEVICE Buffer make_buffer(unsigned long long address, unsigned bytes) {
  return {address, bytes};
}
template <class T>
HIPGEMM_DEVICE T load_buffer(Buffer from, unsigned offset) {
  using Global = const __attribute__((address_space(1))) T;
  return offset < from.bytes ? *reinterpret_cast<Global*>(from.address + offset) : T{};
}

}  // namespace hipgemm
#endif

#if defined(__AMDGCN__) || defined(__NVPTX__)
namespace hipgemm {

HIPGEMM_DEVICE unsigned long long uniform_address(unsigned long long x) {
  return uniform(static_cast<unsigned>(x >> 32)) * (1ull << 32) | uniform(static_cast<unsigned>(x));
}

// The atomic maximum over all threads of the device. Most values do not change it, and a load costs
// less than an atomic operation.
template <class P>
HIPGEMM_DEVICE void atomic_max_in_device(P at, unsigned x) {
  if (x > __scoped_atomic_load_n(at, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE))
    __scoped_atomic_fetch_max(at, x, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
}

}  // namespace hipgemm
#endif
