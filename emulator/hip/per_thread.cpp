// The _spt variants, which programs built for per-thread default streams call: the null stream
// stands for the calling thread's own stream.
#include "hip/api.hpp"

extern "C" {
hipError_t hipMemcpyWithStream(void*, const void*, size_t, hipMemcpyKind, hipStream_t);
hipError_t hipMemcpyAsync(void*, const void*, size_t, hipMemcpyKind, hipStream_t);
hipError_t hipMemcpy2DAsync(void*, size_t, const void*, size_t, size_t, size_t, hipMemcpyKind,
                            hipStream_t);
hipError_t hipMemsetAsync(void*, int, size_t, hipStream_t);
hipError_t hipStreamSynchronize(hipStream_t);
hipError_t hipStreamQuery(hipStream_t);
hipError_t hipStreamWaitEvent(hipStream_t, hipEvent_t, unsigned);
hipError_t hipStreamGetFlags(hipStream_t, unsigned*);
hipError_t hipStreamGetPriority(hipStream_t, int*);
hipError_t hipStreamAddCallback(hipStream_t, hipStreamCallback_t, void*, unsigned);
hipError_t hipLaunchHostFunc(hipStream_t, hipHostFn_t, void*);
hipError_t hipEventRecord(hipEvent_t, hipStream_t);
hipError_t hipLaunchKernel(const void*, dim3, dim3, void**, size_t, hipStream_t);
}

namespace {

hipStream_t own(hipStream_t stream) { return stream ? stream : hip::kPerThread; }

// The blocking calls: the asynchronous one, then a wait.
hipError_t wait_after(hipError_t error) {
  return error == hipSuccess ? hipStreamSynchronize(hip::kPerThread) : error;
}

}  // namespace

HIP_API hipError_t hipMemcpy_spt(void* dst, const void* src, size_t bytes, hipMemcpyKind kind) {
  return hipMemcpyWithStream(dst, src, bytes, kind, hip::kPerThread);
}
HIP_API hipError_t hipMemcpyAsync_spt(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                                      hipStream_t stream) {
  return hipMemcpyAsync(dst, src, bytes, kind, own(stream));
}
HIP_API hipError_t hipMemcpy2D_spt(void* dst, size_t dpitch, const void* src, size_t spitch,
                                   size_t width, size_t height, hipMemcpyKind kind) {
  return wait_after(
      hipMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, hip::kPerThread));
}
HIP_API hipError_t hipMemcpy2DAsync_spt(void* dst, size_t dpitch, const void* src, size_t spitch,
                                        size_t width, size_t height, hipMemcpyKind kind,
                                        hipStream_t stream) {
  return hipMemcpy2DAsync(dst, dpitch, src, spitch, width, height, kind, own(stream));
}
HIP_API hipError_t hipMemset_spt(void* dst, int value, size_t bytes) {
  return wait_after(hipMemsetAsync(dst, value, bytes, hip::kPerThread));
}
HIP_API hipError_t hipMemsetAsync_spt(void* dst, int value, size_t bytes, hipStream_t stream) {
  return hipMemsetAsync(dst, value, bytes, own(stream));
}
HIP_API hipError_t hipStreamSynchronize_spt(hipStream_t stream) {
  return hipStreamSynchronize(own(stream));
}
HIP_API hipError_t hipStreamQuery_spt(hipStream_t stream) { return hipStreamQuery(own(stream)); }
HIP_API hipError_t hipStreamWaitEvent_spt(hipStream_t stream, hipEvent_t event, unsigned flags) {
  return hipStreamWaitEvent(own(stream), event, flags);
}
HIP_API hipError_t hipStreamGetFlags_spt(hipStream_t stream, unsigned* flags) {
  return hipStreamGetFlags(own(stream), flags);
}
HIP_API hipError_t hipStreamGetPriority_spt(hipStream_t stream, int* priority) {
  return hipStreamGetPriority(own(stream), priority);
}
HIP_API hipError_t hipStreamAddCallback_spt(hipStream_t stream, hipStreamCallback_t callback,
                                            void* data, unsigned flags) {
  return hipStreamAddCallback(own(stream), callback, data, flags);
}
HIP_API hipError_t hipLaunchHostFunc_spt(hipStream_t stream, hipHostFn_t function, void* data) {
  return hipLaunchHostFunc(own(stream), function, data);
}
HIP_API hipError_t hipEventRecord_spt(hipEvent_t event, hipStream_t stream) {
  return hipEventRecord(event, own(stream));
}
HIP_API hipError_t hipLaunchKernel_spt(const void* function, dim3 grid, dim3 block, void** params,
                                       size_t lds, hipStream_t stream) {
  return hipLaunchKernel(function, grid, block, params, lds, own(stream));
}
