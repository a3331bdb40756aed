// What public kernels need of HIP's headers, to compile their device code without ROCm
// (public_kernels.py). Functions that no GEMM calls are only declared.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define HIP_BOUNDS_1(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define HIP_BOUNDS_2(threads, waves) \
  HIP_BOUNDS_1(threads) __attribute__((amdgpu_waves_per_eu(waves)))
#define HIP_BOUNDS(one, two, name, ...) name
#define __launch_bounds__(...) HIP_BOUNDS(__VA_ARGS__, HIP_BOUNDS_2, HIP_BOUNDS_1, )(__VA_ARGS__)
#define HIP_BOTH __host__ __device__

// ---- vectors ----

template <typename T, unsigned n>
struct HIP_vector_type;
template <typename T>
struct HIP_vector_type<T, 1> {
  T x;
};
template <typename T>
struct alignas(2 * sizeof(T)) HIP_vector_type<T, 2> {
  T x, y;
  HIP_vector_type() = default;
  HIP_BOTH constexpr HIP_vector_type(T a, T b) : x(a), y(b) {}
};
template <typename T>
struct alignas(4 * sizeof(T)) HIP_vector_type<T, 4> {
  T x, y, z, w;
  HIP_vector_type() = default;
  HIP_BOTH constexpr HIP_vector_type(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
};
using float2 = HIP_vector_type<float, 2>;
using float4 = HIP_vector_type<float, 4>;
using int2 = HIP_vector_type<int, 2>;
using int4 = HIP_vector_type<int, 4>;
HIP_BOTH inline float2 make_float2(float x, float y) { return {x, y}; }
HIP_BOTH inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#define HIP_OPERATOR(op) HIP_BOTH float2 operator op(float2, float2);
HIP_OPERATOR(+)
HIP_OPERATOR(-)
HIP_OPERATOR(*)
HIP_OPERATOR(/)

// ---- small floats ----

struct __hip_bfloat16 {
  unsigned short bits;
  __hip_bfloat16() = default;
  HIP_BOTH __hip_bfloat16(float f);
  HIP_BOTH operator float() const;
};
struct __hip_bfloat162 {
  __hip_bfloat16 x, y;
};
struct __half {
  _Float16 bits;
  __half() = default;
  HIP_BOTH __half(float f);
  HIP_BOTH operator float() const;
};
struct __half2 {
  __half x, y;
};
template <typename Bits, typename Float>
struct HipFp8 {
  Bits bits;
  HipFp8() = default;
  HIP_BOTH explicit HipFp8(Float);
  HIP_BOTH operator Float() const;
};
struct __hip_fp8_e4m3 : HipFp8<unsigned char, float> {
  using HipFp8::HipFp8;
};
struct __hip_fp8x2_e4m3 : HipFp8<unsigned short, float2> {
  using HipFp8::HipFp8;
};
struct __hip_fp8x4_e4m3 : HipFp8<unsigned, float4> {
  using HipFp8::HipFp8;
};
HIP_BOTH float __bfloat162float(__hip_bfloat16);
HIP_BOTH float2 __bfloat1622float2(__hip_bfloat162);
HIP_BOTH __hip_bfloat16 __float2bfloat16(float);
HIP_BOTH __hip_bfloat162 __float22bfloat162_rn(float2);
HIP_BOTH float __half2float(__half);
HIP_BOTH float2 __half22float2(__half2);
HIP_BOTH __half __float2half(float);
HIP_BOTH __half2 __float22half2_rn(float2);
#define HIP_UNARY(h, h2)                          \
  __device__ __hip_bfloat16 h(__hip_bfloat16);    \
  __device__ __half h(__half);                    \
  __device__ __hip_bfloat162 h2(__hip_bfloat162); \
  __device__ __half2 h2(__half2);
HIP_UNARY(hexp, h2exp)
HIP_UNARY(hexp2, h2exp2)
HIP_UNARY(hlog, h2log)
HIP_UNARY(hlog2, h2log2)
HIP_UNARY(__habs, __habs2)
#define HIP_BINARY(h, h2)                                          \
  __device__ __hip_bfloat16 h(__hip_bfloat16, __hip_bfloat16);     \
  __device__ __half h(__half, __half);                             \
  __device__ __hip_bfloat162 h2(__hip_bfloat162, __hip_bfloat162); \
  __device__ __half2 h2(__half2, __half2);
HIP_BINARY(__hadd, __hadd2)
HIP_BINARY(__hsub, __hsub2)
HIP_BINARY(__hmul, __hmul2)
HIP_BINARY(__hdiv, __h2div)
HIP_BINARY(__hmax, __hmax2)
HIP_BINARY(__hmin, __hmin2)
HIP_BOTH __hip_bfloat16 __ushort_as_bfloat16(unsigned short);
HIP_BOTH unsigned short __bfloat16_as_ushort(__hip_bfloat16);
HIP_BOTH __half __ushort_as_half(unsigned short);
HIP_BOTH unsigned short __half_as_ushort(__half);
HIP_BOTH float __uint_as_float(unsigned);
HIP_BOTH unsigned __float_as_uint(float);
__device__ float __expf(float);
__device__ float __logf(float);
__device__ float __log2f(float);
__device__ float fabsf(float);
template <typename T>
HIP_BOTH constexpr T min(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
HIP_BOTH constexpr T max(T a, T b) {
  return a > b ? a : b;
}
template <typename T>
__device__ T __shfl(T, int, int = 64);
template <typename T>
__device__ T __shfl_down(T, int, int = 64);
template <typename Mask, typename T>
__device__ T __shfl_down_sync(Mask, T, int, int = 64);

// ---- launches ----

struct dim3 {
  unsigned x, y, z;
  HIP_BOTH constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
#define HIP_INDEX(name, of_x, of_y)                           \
  struct name##_of {                                          \
    struct {                                                  \
      __device__ operator unsigned() const { return of_x(); } \
    } x;                                                      \
    struct {                                                  \
      __device__ operator unsigned() const { return of_y(); } \
    } y;                                                      \
    struct {                                                  \
      __device__ operator unsigned() const { return 0; }      \
    } z;                                                      \
  };                                                          \
  extern const __device__ name##_of name;
HIP_INDEX(threadIdx, __builtin_amdgcn_workitem_id_x, __builtin_amdgcn_workitem_id_y)
HIP_INDEX(blockIdx, __builtin_amdgcn_workgroup_id_x, __builtin_amdgcn_workgroup_id_y)
HIP_INDEX(blockDim, __builtin_amdgcn_workgroup_size_x, __builtin_amdgcn_workgroup_size_y)
#define HIP_GRID(axis) \
  (__builtin_amdgcn_grid_size_##axis() / __builtin_amdgcn_workgroup_size_##axis())
#define HIP_GRID_X() HIP_GRID(x)
#define HIP_GRID_Y() HIP_GRID(y)
HIP_INDEX(gridDim, HIP_GRID_X, HIP_GRID_Y)

using hipStream_t = void*;
enum hipError_t { hipSuccess };
enum hipFuncAttribute { hipFuncAttributeMaxDynamicSharedMemorySize };
hipError_t hipFuncSetAttribute(const void*, hipFuncAttribute, int);
const char* hipGetErrorString(hipError_t);
extern "C" hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t);
extern "C" unsigned __hipPushCallConfiguration(dim3, dim3, size_t = 0, hipStream_t = nullptr);

// Bindings to Python are left out.
#define PYBIND11_MODULE(name, module) \
  template <typename Module>          \
  void bind_##name(Module& module)
namespace py {
template <auto function, typename... Arguments>
void bind_function(Arguments...);
}
