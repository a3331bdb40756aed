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

// The number of threads is exact, so that the register budget follows from waves_per_simd alone.
// (clang's own launch bounds mean blocks per CU in their second argument.)
#define HIPGEMM_KERNEL(threads, waves_per_simd)                                       \
  extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads), \
                                       amdgpu_waves_per_eu(waves_per_simd, waves_per_simd))) void

#if defined(__AMDGCN__)
namespace hipgemm {

// This thread in its workgroup, this workgroup in the grid, and the workgroups of the grid.
HIPGEMM_DEVICE unsigned thread_index() { return __builtin_amdgcn_workitem_id_x(); }
HIPGEMM_DEVICE unsigned workgroup_index() { return __builtin_amdgcn_workgroup_id_x(); }
HIPGEMM_DEVICE unsigned workgroup_count() {
  return *(const __attribute__((address_space(4))) unsigned*)__builtin_amdgcn_implicitarg_ptr();
}

// x * 2^exponent, rounded once.
HIPGEMM_DEVICE float times_power_of_two(float x, int exponent) {
  return __builtin_amdgcn_ldexpf(x, exponent);
}

}  // namespace hipgemm
#endif
