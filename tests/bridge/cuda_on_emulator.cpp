// A libcuda.so.1 whose machine is the emulator: so the bridge runs where there is no NVIDIA GPU.
// It is as strict as CUDA's own where the bridge could rely on less: functions need a current
// context, and a launch an argument block that ends as CUDA's does. PTX it cannot run: in its place
// it loads the code object of HIPGEMM_TEST_CODE, whose kernels have the same names and arguments.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "driver.hpp"
#include "hip/hip_types.hpp"

using namespace cuda;

// Every function under the name that the bridge looks for, with the type that it takes it for.
#define X(name, symbol, parameters) \
  extern "C" __attribute__((visibility("default"))) Result fake_##name parameters __asm__(symbol);
CUDA_FUNCTIONS(X)
#undef X

namespace {

void* library() {
  static void* const found = [] {
    const char* path = std::getenv("HIPGEMM_TEST_MACHINE");
    void* opened = dlopen(path ? path : "", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (!opened) std::fprintf(stderr, "cuda_on_emulator: %s\n", dlerror());
    return opened;
  }();
  return found;
}

template <class... A>
Result hip(const char* name, A... arguments) {
  auto* function = reinterpret_cast<hipError_t (*)(A...)>(dlsym(library(), name));
  if (!function) {
    std::fprintf(stderr, "cuda_on_emulator: no %s\n", name);
    return hipErrorNotSupported;
  }
  return static_cast<Result>(function(arguments...));
}

thread_local int current = -1;  // device of the current context
int places[64];                 // whose addresses are contexts
Context context_of(int device) { return reinterpret_cast<Context>(&places[device]); }
int device_of(Context context) {
  return static_cast<int>(reinterpret_cast<int*>(context) - places);
}
constexpr Result kInvalidContext = 201;
#define NEED_CONTEXT \
  if (current < 0) return kInvalidContext

void* at(Pointer p) { return reinterpret_cast<void*>(p); }
hipStream_t as_hip(Stream s) { return reinterpret_cast<hipStream_t>(s); }
hipEvent_t as_hip(Event e) { return reinterpret_cast<hipEvent_t>(e); }

}  // namespace

Result fake_init(unsigned) { return library() ? hip("hipInit", 0u) : hipErrorNoDevice; }
Result fake_driver_version(int* version) {
  *version = 13000;
  return 0;
}
Result fake_error_name(Result error, const char** name) {
  return hip("hipDrvGetErrorName", error, name);
}
Result fake_error_string(Result error, const char** text) {
  return hip("hipDrvGetErrorString", error, text);
}
Result fake_device_count(int* count) { return hip("hipGetDeviceCount", count); }
Result fake_device_get(Device* device, int i) {
  *device = i;
  return 0;
}
Result fake_device_name(char* name, int length, Device) {
  std::snprintf(name, static_cast<size_t>(length), "an emulated device");
  return 0;
}
Result fake_device_uuid(char* uuid, Device device) {
  std::memset(uuid, device, 16);
  return 0;
}
Result fake_device_bytes(size_t* bytes, Device device) {
  return hip("hipDeviceTotalMem", bytes, device);
}
Result fake_device_attribute(int* value, int which, Device) {
  constexpr int kMajor = 75, kMinor = 76;
  *value = which == kMajor ? 9 : which == kMinor ? 0 : 1024;
  return 0;
}
Result fake_device_can_access_peer(int* can, Device a, Device b) {
  return hip("hipDeviceCanAccessPeer", can, a, b);
}

Result fake_context_retain(Context* context, Device device) {
  *context = context_of(device);
  return 0;
}
Result fake_context_reset(Device) { return hipErrorNotSupported; }
Result fake_context_set(Context context) {
  current = context ? device_of(context) : -1;
  return context ? hip("hipSetDevice", current) : 0;
}
Result fake_context_get(Context* context) {
  *context = current < 0 ? nullptr : context_of(current);
  return 0;
}
Result fake_context_device(Device* device) {
  NEED_CONTEXT;
  *device = current;
  return 0;
}
Result fake_context_synchronize() {
  NEED_CONTEXT;
  return hip("hipDeviceSynchronize");
}
Result fake_context_priorities(int* least, int* greatest) {
  NEED_CONTEXT;
  return hip("hipDeviceGetStreamPriorityRange", least, greatest);
}
Result fake_enable_peer(Context peer, unsigned flags) {
  NEED_CONTEXT;
  return hip("hipDeviceEnablePeerAccess", device_of(peer), flags);
}
Result fake_disable_peer(Context peer) {
  NEED_CONTEXT;
  return hip("hipDeviceDisablePeerAccess", device_of(peer));
}

Result fake_memory_info(size_t* free, size_t* total) {
  NEED_CONTEXT;
  return hip("hipMemGetInfo", free, total);
}
Result fake_allocate(Pointer* made, size_t bytes) {
  NEED_CONTEXT;
  return hip("hipMalloc", reinterpret_cast<void**>(made), bytes);
}
Result fake_release(Pointer p) {
  NEED_CONTEXT;
  return hip("hipFree", at(p));
}
Result fake_allocate_async(Pointer* made, size_t bytes, Stream stream) {
  NEED_CONTEXT;
  return hip("hipMallocAsync", reinterpret_cast<void**>(made), bytes, as_hip(stream));
}
Result fake_release_async(Pointer p, Stream stream) {
  NEED_CONTEXT;
  return hip("hipFreeAsync", at(p), as_hip(stream));
}
Result fake_allocate_host(void** made, size_t bytes, unsigned flags) {
  NEED_CONTEXT;
  return hip("hipHostMalloc", made, bytes, flags);
}
Result fake_release_host(void* p) {
  NEED_CONTEXT;
  return hip("hipHostFree", p);
}
Result fake_register_host(void* p, size_t bytes, unsigned flags) {
  NEED_CONTEXT;
  return hip("hipHostRegister", p, bytes, flags);
}
Result fake_unregister_host(void* p) { return hip("hipHostUnregister", p); }
Result fake_host_device_pointer(Pointer* found, void* p, unsigned flags) {
  return hip("hipHostGetDevicePointer", reinterpret_cast<void**>(found), p, flags);
}
Result fake_address_range(Pointer* base, size_t* size, Pointer p) {
  return hip("hipMemGetAddressRange", reinterpret_cast<void**>(base), size, at(p));
}
Result fake_pointer_attribute(void* value, int which, Pointer p) {
  constexpr Result kInvalidValue = 1;
  hipPointerAttribute_t found{};
  if (hip("hipPointerGetAttributes", &found, static_cast<const void*>(at(p))) != 0 ||
      found.type == hipMemoryTypeUnregistered)
    return kInvalidValue;
  switch (which) {
    case 2:
      *static_cast<MemoryType*>(value) =
          found.type == hipMemoryTypeHost ? MemoryType::host : MemoryType::device;
      return 0;
    case 3:
      *static_cast<void**>(value) = found.devicePointer;
      return 0;
    case 4:
      *static_cast<void**>(value) = found.hostPointer;
      return 0;
    case 8:
      *static_cast<unsigned*>(value) = 0;
      return 0;
    case 9:
      *static_cast<int*>(value) = found.device;
      return 0;
    default:
      return kInvalidValue;
  }
}

Result fake_copy(Pointer to, Pointer from, size_t bytes) {
  NEED_CONTEXT;
  return hip("hipMemcpy", at(to), static_cast<const void*>(at(from)), bytes, hipMemcpyDefault);
}
Result fake_copy_async(Pointer to, Pointer from, size_t bytes, Stream stream) {
  NEED_CONTEXT;
  return hip("hipMemcpyAsync", at(to), static_cast<const void*>(at(from)), bytes, hipMemcpyDefault,
             as_hip(stream));
}
Result fake_copy_peer(Pointer to, Context there, Pointer from, Context here, size_t bytes) {
  NEED_CONTEXT;
  return hip("hipMemcpyPeer", at(to), device_of(there), static_cast<const void*>(at(from)),
             device_of(here), bytes);
}
Result fake_copy_peer_async(Pointer to, Context there, Pointer from, Context here, size_t bytes,
                            Stream stream) {
  NEED_CONTEXT;
  return hip("hipMemcpyPeerAsync", at(to), device_of(there), static_cast<const void*>(at(from)),
             device_of(here), bytes, as_hip(stream));
}
Result fake_copy_2d_async(const Copy2D* c, Stream stream) {
  NEED_CONTEXT;
  const bool from_host = c->src_type == MemoryType::host, to_host = c->dst_type == MemoryType::host;
  const auto kind = static_cast<hipMemcpyKind>(from_host ? (to_host ? 0 : 1) : to_host ? 2 : 3);
  return hip("hipMemcpy2DAsync", to_host ? c->dst_host : at(c->dst_device), c->dst_pitch,
             from_host ? c->src_host : static_cast<const void*>(at(c->src_device)), c->src_pitch,
             c->width, c->height, kind, as_hip(stream));
}
Result fake_copy_2d(const Copy2D* c) {
  const Result error = fake_copy_2d_async(c, nullptr);
  return error ? error : hip("hipStreamSynchronize", hipStream_t{});
}
Result fake_set_8(Pointer to, unsigned char value, size_t n, Stream stream) {
  NEED_CONTEXT;
  return hip("hipMemsetD8Async", at(to), value, n, as_hip(stream));
}
Result fake_set_16(Pointer to, unsigned short value, size_t n, Stream stream) {
  NEED_CONTEXT;
  return hip("hipMemsetD16Async", at(to), value, n, as_hip(stream));
}
Result fake_set_32(Pointer to, unsigned value, size_t n, Stream stream) {
  NEED_CONTEXT;
  return hip("hipMemsetD32Async", at(to), static_cast<int>(value), n, as_hip(stream));
}
Result fake_set_rows_8(Pointer to, size_t pitch, unsigned char value, size_t width, size_t height,
                       Stream stream) {
  NEED_CONTEXT;
  return hip("hipMemset2DAsync", at(to), pitch, static_cast<int>(value), width, height,
             as_hip(stream));
}

Result fake_stream_create(Stream* made, unsigned flags, int priority) {
  NEED_CONTEXT;
  return hip("hipStreamCreateWithPriority", reinterpret_cast<hipStream_t*>(made), flags, priority);
}
Result fake_stream_flags(Stream stream, unsigned* flags) {
  return hip("hipStreamGetFlags", as_hip(stream), flags);
}
Result fake_stream_priority(Stream stream, int* priority) {
  return hip("hipStreamGetPriority", as_hip(stream), priority);
}
Result fake_stream_context(Stream stream, Context* context) {
  int device = 0;
  const Result error = hip("hipStreamGetDevice", as_hip(stream), &device);
  *context = context_of(device);
  return error;
}
Result fake_stream_query(Stream stream) { return hip("hipStreamQuery", as_hip(stream)); }
Result fake_stream_synchronize(Stream stream) {
  return hip("hipStreamSynchronize", as_hip(stream));
}
Result fake_stream_wait(Stream stream, Event event, unsigned flags) {
  return hip("hipStreamWaitEvent", as_hip(stream), as_hip(event), flags);
}
Result fake_launch_host(Stream stream, HostFunction function, void* data) {
  return hip("hipLaunchHostFunc", as_hip(stream), function, data);
}

Result fake_event_create(Event* made, unsigned flags) {
  NEED_CONTEXT;
  return hip("hipEventCreateWithFlags", reinterpret_cast<hipEvent_t*>(made), flags);
}
Result fake_event_destroy(Event event) { return hip("hipEventDestroy", as_hip(event)); }
Result fake_event_record(Event event, Stream stream) {
  return hip("hipEventRecord", as_hip(event), as_hip(stream));
}
Result fake_event_query(Event event) { return hip("hipEventQuery", as_hip(event)); }
Result fake_event_synchronize(Event event) { return hip("hipEventSynchronize", as_hip(event)); }
Result fake_event_elapsed(float* milliseconds, Event start, Event stop) {
  return hip("hipEventElapsedTime", milliseconds, as_hip(start), as_hip(stop));
}

Result fake_module_load(Module* made, const void* image, unsigned, int*, void**) {
  NEED_CONTEXT;
  const char* path = std::getenv("HIPGEMM_TEST_CODE");
  if (!path || !std::strstr(static_cast<const char*>(image), ".target sm_90a")) return 200;
  std::ifstream file(path, std::ios::binary);
  const std::string code{std::istreambuf_iterator<char>(file), {}};
  return hip("hipModuleLoadData", reinterpret_cast<hipModule_t*>(made),
             static_cast<const void*>(code.data()));
}
Result fake_module_unload(Module module) {
  return hip("hipModuleUnload", reinterpret_cast<hipModule_t>(module));
}
Result fake_module_function(Function* found, Module module, const char* name) {
  return hip("hipModuleGetFunction", reinterpret_cast<hipFunction_t*>(found),
             reinterpret_cast<hipModule_t>(module), name);
}
Result fake_module_global(Pointer* found, size_t* bytes, Module module, const char* name) {
  return hip("hipModuleGetGlobal", reinterpret_cast<void**>(found), bytes,
             reinterpret_cast<hipModule_t>(module), name);
}
Result fake_function_attribute(int* value, int which, Function function) {
  return hip("hipFuncGetAttribute", value, which, reinterpret_cast<hipFunction_t>(function));
}
Result fake_occupancy(int* blocks, Function, int, size_t) {
  *blocks = 1;
  return 0;
}
Result fake_launch(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                   unsigned by, unsigned bz, unsigned shared, Stream stream, void** parameters,
                   void** extra) {
  NEED_CONTEXT;
  std::vector<void*> list;
  if (extra) {
    constexpr size_t kMost = 8;  // an end that is not CUDA's would be run over
    size_t n = 0;
    while (n < kMost && extra[n]) n += 2;
    if (n == kMost) return hipErrorInvalidValue;
    list.assign(extra, extra + n);
    list.push_back(reinterpret_cast<void*>(3));
  }
  return hip("hipModuleLaunchKernel", reinterpret_cast<hipFunction_t>(function), gx, gy, gz, bx, by,
             bz, shared, as_hip(stream), parameters, extra ? list.data() : nullptr);
}

Result fake_capture_begin(Stream stream, int mode) {
  NEED_CONTEXT;
  return hip("hipStreamBeginCapture", as_hip(stream), static_cast<hipStreamCaptureMode>(mode));
}
Result fake_capture_end(Stream stream, Graph* graph) {
  return hip("hipStreamEndCapture", as_hip(stream), reinterpret_cast<hipGraph_t*>(graph));
}
Result fake_graph_destroy(Graph graph) {
  return hip("hipGraphDestroy", reinterpret_cast<hipGraph_t>(graph));
}
Result fake_graph_instantiate(GraphExec* made, Graph graph, unsigned long long flags) {
  if (flags) return hipErrorInvalidValue;
  return hip("hipGraphInstantiate", reinterpret_cast<hipGraphExec_t*>(made),
             reinterpret_cast<hipGraph_t>(graph), static_cast<hipGraphNode_t*>(nullptr),
             static_cast<char*>(nullptr), size_t{0});
}
Result fake_graph_launch(GraphExec executable, Stream stream) {
  NEED_CONTEXT;
  return hip("hipGraphLaunch", reinterpret_cast<hipGraphExec_t>(executable), as_hip(stream));
}
Result fake_graph_exec_destroy(GraphExec executable) {
  return hip("hipGraphExecDestroy", reinterpret_cast<hipGraphExec_t>(executable));
}
