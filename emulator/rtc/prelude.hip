// What hiprtc declares before a program: the little that kernels without headers need. One string
// of C++, included by hiprtc.cpp.
R"(
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
namespace hiprtc_detail {
struct ThreadIndex {
  __device__ unsigned get_x() const { return __builtin_amdgcn_workitem_id_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workitem_id_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workitem_id_z(); }
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
};
struct BlockIndex {
  __device__ unsigned get_x() const { return __builtin_amdgcn_workgroup_id_x(); }
  __device__ unsigned get_y() const { return __builtin_amdgcn_workgroup_id_y(); }
  __device__ unsigned get_z() const { return __builtin_amdgcn_workgroup_id_z(); }
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
};
// The hidden arguments of code objects of version 5: numbers of groups, then sizes of one.
template <int kAt, class T>
struct Size {
  template <int kDimension>
  __device__ unsigned get() const {
    typedef __attribute__((address_space(4))) const char* Hidden;
    return *(__attribute__((address_space(4))) const T*)((Hidden)__builtin_amdgcn_implicitarg_ptr() +
                                                         kAt + sizeof(T) * kDimension);
  }
  __device__ unsigned get_x() const { return get<0>(); }
  __device__ unsigned get_y() const { return get<1>(); }
  __device__ unsigned get_z() const { return get<2>(); }
  __declspec(property(get = get_x)) unsigned x;
  __declspec(property(get = get_y)) unsigned y;
  __declspec(property(get = get_z)) unsigned z;
};
}  // namespace hiprtc_detail
static const __device__ __attribute__((unused)) hiprtc_detail::ThreadIndex threadIdx{};
static const __device__ __attribute__((unused)) hiprtc_detail::BlockIndex blockIdx{};
static const __device__ __attribute__((unused)) hiprtc_detail::Size<0, unsigned> gridDim{};
static const __device__ __attribute__((unused)) hiprtc_detail::Size<12, unsigned short> blockDim{};
__device__ __forceinline__ void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
__device__ __forceinline__ float sqrtf(float x) { return __builtin_sqrtf(x); }
__device__ __forceinline__ float fabsf(float x) { return __builtin_fabsf(x); }
template <class T>
__device__ __forceinline__ T atomicAdd(T* at, T value) {
  return __hip_atomic_fetch_add(at, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}
// Prints nothing: there is no device printf.
template <class... T>
__device__ __forceinline__ int printf(const char*, T...) { return 0; }
#line 1
)"
