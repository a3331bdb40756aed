// The CUDA driver, opened at run time: the functions that this library uses, without headers of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cuda {

// Declared here, as the driver's binary interface has them: no CUDA toolkit is needed.
using Result = int;  // CUresult; HIP's codes have the same values where both know an error
using Device = int;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using Pointer = unsigned long long;  // CUdeviceptr
using HostFunction = void (*)(void*);

enum class MemoryType : int { host = 1, device = 2, unified = 4 };

struct Copy2D {
  size_t src_x, src_y;
  MemoryType src_type;
  const void* src_host;
  Pointer src_device;
  void* src_array;
  size_t src_pitch;
  size_t dst_x, dst_y;
  MemoryType dst_type;
  void* dst_host;
  Pointer dst_device;
  void* dst_array;
  size_t dst_pitch;
  size_t width, height;
};
static_assert(sizeof(Copy2D) == 128);

// X(result of the lookup, name in the library, parameters)
#define CUDA_FUNCTIONS(X)                                                                       \
  X(init, "cuInit", (unsigned))                                                                 \
  X(driver_version, "cuDriverGetVersion", (int*))                                               \
  X(error_name, "cuGetErrorName", (Result, const char**))                                       \
  X(error_string, "cuGetErrorString", (Result, const char**))                                   \
  X(device_count, "cuDeviceGetCount", (int*))                                                   \
  X(device_get, "cuDeviceGet", (Device*, int))                                                  \
  X(device_name, "cuDeviceGetName", (char*, int, Device))                                       \
  X(device_uuid, "cuDeviceGetUuid_v2", (char*, Device))                                         \
  X(device_bytes, "cuDeviceTotalMem_v2", (size_t*, Device))                                     \
  X(device_attribute, "cuDeviceGetAttribute", (int*, int, Device))                              \
  X(device_can_access_peer, "cuDeviceCanAccessPeer", (int*, Device, Device))                    \
  X(context_retain, "cuDevicePrimaryCtxRetain", (Context*, Device))                             \
  X(context_reset, "cuDevicePrimaryCtxReset_v2", (Device))                                      \
  X(context_set, "cuCtxSetCurrent", (Context))                                                  \
  X(context_get, "cuCtxGetCurrent", (Context*))                                                 \
  X(context_device, "cuCtxGetDevice", (Device*))                                                \
  X(context_synchronize, "cuCtxSynchronize", ())                                                \
  X(context_priorities, "cuCtxGetStreamPriorityRange", (int*, int*))                            \
  X(enable_peer, "cuCtxEnablePeerAccess", (Context, unsigned))                                  \
  X(disable_peer, "cuCtxDisablePeerAccess", (Context))                                          \
  X(memory_info, "cuMemGetInfo_v2", (size_t*, size_t*))                                         \
  X(allocate, "cuMemAlloc_v2", (Pointer*, size_t))                                              \
  X(release, "cuMemFree_v2", (Pointer))                                                         \
  X(allocate_async, "cuMemAllocAsync", (Pointer*, size_t, Stream))                              \
  X(release_async, "cuMemFreeAsync", (Pointer, Stream))                                         \
  X(allocate_host, "cuMemHostAlloc", (void**, size_t, unsigned))                                \
  X(release_host, "cuMemFreeHost", (void*))                                                     \
  X(register_host, "cuMemHostRegister_v2", (void*, size_t, unsigned))                           \
  X(unregister_host, "cuMemHostUnregister", (void*))                                            \
  X(host_device_pointer, "cuMemHostGetDevicePointer_v2", (Pointer*, void*, unsigned))           \
  X(address_range, "cuMemGetAddressRange_v2", (Pointer*, size_t*, Pointer))                     \
  X(pointer_attribute, "cuPointerGetAttribute", (void*, int, Pointer))                          \
  X(copy, "cuMemcpy", (Pointer, Pointer, size_t))                                               \
  X(copy_async, "cuMemcpyAsync", (Pointer, Pointer, size_t, Stream))                            \
  X(copy_peer, "cuMemcpyPeer", (Pointer, Context, Pointer, Context, size_t))                    \
  X(copy_peer_async, "cuMemcpyPeerAsync", (Pointer, Context, Pointer, Context, size_t, Stream)) \
  X(copy_2d, "cuMemcpy2DUnaligned_v2", (const Copy2D*))                                         \
  X(copy_2d_async, "cuMemcpy2DAsync_v2", (const Copy2D*, Stream))                               \
  X(set_8, "cuMemsetD8Async", (Pointer, unsigned char, size_t, Stream))                         \
  X(set_16, "cuMemsetD16Async", (Pointer, unsigned short, size_t, Stream))                      \
  X(set_32, "cuMemsetD32Async", (Pointer, unsigned, size_t, Stream))                            \
  X(set_rows_8, "cuMemsetD2D8Async", (Pointer, size_t, unsigned char, size_t, size_t, Stream))  \
  X(stream_create, "cuStreamCreateWithPriority", (Stream*, unsigned, int))                      \
  X(stream_flags, "cuStreamGetFlags", (Stream, unsigned*))                                      \
  X(stream_priority, "cuStreamGetPriority", (Stream, int*))                                     \
  X(stream_context, "cuStreamGetCtx", (Stream, Context*))                                       \
  X(stream_query, "cuStreamQuery", (Stream))                                                    \
  X(stream_synchronize, "cuStreamSynchronize", (Stream))                                        \
  X(stream_wait, "cuStreamWaitEvent", (Stream, Event, unsigned))                                \
  X(launch_host, "cuLaunchHostFunc", (Stream, HostFunction, void*))                             \
  X(event_create, "cuEventCreate", (Event*, unsigned))                                          \
  X(event_destroy, "cuEventDestroy_v2", (Event))                                                \
  X(event_record, "cuEventRecord", (Event, Stream))                                             \
  X(event_query, "cuEventQuery", (Event))                                                       \
  X(event_synchronize, "cuEventSynchronize", (Event))                                           \
  X(event_elapsed, "cuEventElapsedTime", (float*, Event, Event))                                \
  X(module_load, "cuModuleLoadDataEx", (Module*, const void*, unsigned, int*, void**))          \
  X(module_unload, "cuModuleUnload", (Module))                                                  \
  X(module_function, "cuModuleGetFunction", (Function*, Module, const char*))                   \
  X(module_global, "cuModuleGetGlobal_v2", (Pointer*, size_t*, Module, const char*))            \
  X(function_attribute, "cuFuncGetAttribute", (int*, int, Function))                            \
  X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int*, Function, int, size_t))    \
  X(capture_begin, "cuStreamBeginCapture_v2", (Stream, int))                                    \
  X(capture_end, "cuStreamEndCapture", (Stream, Graph*))                                        \
  X(graph_destroy, "cuGraphDestroy", (Graph))                                                   \
  X(graph_instantiate, "cuGraphInstantiateWithFlags", (GraphExec*, Graph, unsigned long long))  \
  X(graph_launch, "cuGraphLaunch", (GraphExec, Stream))                                         \
  X(graph_exec_destroy, "cuGraphExecDestroy", (GraphExec))                                      \
  X(launch, "cuLaunchKernel",                                                                   \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream,    \
     void**, void**))

struct Driver {
#define X(name, symbol, parameters) Result(*name) parameters = nullptr;
  CUDA_FUNCTIONS(X)
#undef X
  std::string problem;  // why there is none; empty if all is well
};

// The driver, opened and initialised at the first call.
const Driver& driver();

}  // namespace cuda
