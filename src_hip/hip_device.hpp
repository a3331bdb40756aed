// The HIP dialect the kernels are written in: the language and the compiler's builtins, no header.
// Code that only computes (order.hpp, swizzle.hpp) also compiles for the host, where tests call it.
#pragma once

#if defined(__HIP__) || defined(__CUDA__)
// hipcc brings these along; a bare clang has only the attributes.
#if !defined(__device__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#endif
#define HIPGEMM_DEVICE __device__ inline __attribute__((always_inline))
#define HIPGEMM_BOTH __attribute__((host, device)) inline __attribute__((always_inline))
#else
#define HIPGEMM_BOTH inline
#endif

// Whether there are instructions for OCP's formats of 8 and 4 bits. gfx942 has fp8 ones of the same
// names, for formats of its own. HIPGEMM_GENERIC_CASTS does without, for comparison.
#if defined(__gfx950__) && !defined(HIPGEMM_GENERIC_CASTS)
#define HIPGEMM_NARROW_CASTS 1
#else
#define HIPGEMM_NARROW_CASTS 0
#endif

// Whether there are the matrix instructions and the DMA that the tiled products are made of.
#if defined(__gfx950__)
#define HIPGEMM_MATRIX_KERNELS 1
#else
#define HIPGEMM_MATRIX_KERNELS 0
#endif

// The number of threads is exact, so that on gfx950 the register budget follows from waves_per_simd
// alone; elsewhere the compiler weighs registers itself. (clang's own launch bounds mean blocks per
// CU in their second argument.)
#if HIPGEMM_MATRIX_KERNELS
#define HIPGEMM_KERNEL(threads, waves_per_simd)                                       \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads), \
                                       amdgpu_waves_per_eu(waves_per_simd, waves_per_simd))) void
#else
#define HIPGEMM_KERNEL(threads, waves_per_simd) \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads))) void
#endif

#if defined(__AMDGCN__)
namespace hipgemm {

// The last word of a raw buffer's descriptor: untyped, no swizzle, offsets checked in bytes.
#if defined(__GFX9__)
inline constexpr int kRawBuffer = 0x00020000;
#else
inline constexpr int kRawBuffer = 0x31004000;
#endif

// This thread in its workgroup, and this workgroup in the grid.
HIPGEMM_DEVICE unsigned thread_index() { return __builtin_amdgcn_workitem_id_x(); }
HIPGEMM_DEVICE unsigned workgroup_index() { return __builtin_amdgcn_workgroup_id_x(); }

// x * 2^exponent, rounded once.
HIPGEMM_DEVICE float times_power_of_two(float x, int exponent) {
  return __builtin_amdgcn_ldexpf(x, exponent);
}

}  // namespace hipgemm
#endif
