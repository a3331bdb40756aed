// Devices: choosing one, what it is, peers.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "api.hpp"

namespace bridge {
namespace {

std::vector<cuda::Context>& contexts() {
  static std::vector<cuda::Context> all(devices().ids.size());
  return all;
}

}  // namespace

const Devices& devices() {
  static const Devices found = [] {
    Devices d;
    int count = 0;
    check(cuda::driver().device_count(&count));
    d.ids.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i)
      check(cuda::driver().device_get(&d.ids[static_cast<size_t>(i)], i));
    return d;
  }();
  return found;
}

void check_device(int device) {
  if (device < 0 || static_cast<size_t>(device) >= devices().ids.size())
    fail(hipErrorInvalidDevice,
         "device " + std::to_string(device) + " of " + std::to_string(devices().ids.size()));
}
int current_device() {
  cuda::Context current = nullptr;
  check(cuda::driver().context_get(&current));
  if (!current) return 0;
  cuda::Device found = 0;
  check(cuda::driver().context_device(&found));
  const auto& ids = devices().ids;
  return static_cast<int>(std::find(ids.begin(), ids.end(), found) - ids.begin());
}
void set_current_device(int device) { check(cuda::driver().context_set(context(device))); }
void need_context() {
  cuda::Context current = nullptr;
  check(cuda::driver().context_get(&current));
  if (!current) set_current_device(0);
}

// The primary context, which the CUDA runtime of other libraries uses as well.
cuda::Context context(int device) {
  static std::mutex mutex;
  check_device(device);
  const std::lock_guard lock(mutex);
  cuda::Context& found = contexts()[static_cast<size_t>(device)];
  if (!found)
    check(cuda::driver().context_retain(&found, devices().ids[static_cast<size_t>(device)]));
  return found;
}

}  // namespace bridge

namespace {

using bridge::api;
using bridge::check;
using bridge::check_device;
using bridge::need;
using cuda::driver;

// Numbers of CUdevice_attribute.
enum Attribute : int {
  kThreadsPerBlock = 1,
  kBlockX = 2,
  kGridX = 5,
  kSharedPerBlock = 8,
  kConstant = 9,
  kWarp = 10,
  kMaxPitch = 11,
  kRegistersPerBlock = 12,
  kClock = 13,
  kTextureAlign = 14,
  kProcessors = 16,
  kIntegrated = 18,
  kMapHost = 19,
  kConcurrent = 31,
  kEcc = 32,
  kPciBus = 33,
  kPciDevice = 34,
  kMemoryClock = 36,
  kMemoryBus = 37,
  kL2 = 38,
  kThreadsPerProcessor = 39,
  kAsyncEngines = 40,
  kUnified = 41,
  kPciDomain = 50,
  kMajor = 75,
  kMinor = 76,
  kPriorities = 78,
  kSharedPerProcessor = 81,
  kRegistersPerProcessor = 82,
  kManaged = 83,
  kCooperative = 95,
  kSharedOptin = 97,
  kBlocksPerProcessor = 106,
  kMemoryPools = 115,
};

cuda::Device id(int device) {
  check_device(device);
  return bridge::devices().ids[static_cast<size_t>(device)];
}
int attribute(int device, int which) {
  int value = 0;
  check(driver().device_attribute(&value, which, id(device)));
  return value;
}

// The target that kernels are built for. The "a" is of Hopper: features that later chips lack.
std::string arch_name(int device) {
  const int major = attribute(device, kMajor), minor = attribute(device, kMinor);
  return "sm_" + std::to_string(10 * major + minor) + (major == 9 ? "a" : "");
}

hipDeviceProp_tR0600 properties(int device) {
  hipDeviceProp_tR0600 p{};
  const auto get = [&](int which) { return attribute(device, which); };
  const auto size = [&](int which) { return static_cast<size_t>(attribute(device, which)); };
  check(driver().device_name(p.name, sizeof p.name, id(device)));
  check(driver().device_uuid(p.uuid.bytes, id(device)));
  check(driver().device_bytes(&p.totalGlobalMem, id(device)));
  std::snprintf(p.gcnArchName, sizeof p.gcnArchName, "%s", arch_name(device).c_str());
  p.major = get(kMajor);
  p.minor = get(kMinor);
  p.sharedMemPerBlock = size(kSharedPerBlock);
  p.sharedMemPerBlockOptin = size(kSharedOptin);
  p.sharedMemPerMultiprocessor = p.maxSharedMemoryPerMultiProcessor = size(kSharedPerProcessor);
  p.regsPerBlock = get(kRegistersPerBlock);
  p.regsPerMultiprocessor = get(kRegistersPerProcessor);
  p.warpSize = get(kWarp);
  p.memPitch = size(kMaxPitch);
  p.maxThreadsPerBlock = get(kThreadsPerBlock);
  p.maxThreadsPerMultiProcessor = get(kThreadsPerProcessor);
  p.maxBlocksPerMultiProcessor = get(kBlocksPerProcessor);
  for (int i = 0; i < 3; ++i) {
    p.maxThreadsDim[i] = get(kBlockX + i);
    p.maxGridSize[i] = get(kGridX + i);
  }
  p.clockRate = get(kClock);
  p.memoryClockRate = get(kMemoryClock);
  p.memoryBusWidth = get(kMemoryBus);
  p.totalConstMem = size(kConstant);
  p.textureAlignment = size(kTextureAlign);
  p.multiProcessorCount = get(kProcessors);
  p.l2CacheSize = get(kL2);
  p.integrated = get(kIntegrated);
  p.canMapHostMemory = get(kMapHost);
  p.concurrentKernels = get(kConcurrent);
  p.ECCEnabled = get(kEcc);
  p.pciBusID = get(kPciBus);
  p.pciDeviceID = get(kPciDevice);
  p.pciDomainID = get(kPciDomain);
  p.asyncEngineCount = get(kAsyncEngines);
  p.unifiedAddressing = get(kUnified);
  p.streamPrioritiesSupported = get(kPriorities);
  p.managedMemory = get(kManaged);
  p.cooperativeLaunch = get(kCooperative);
  p.memoryPoolsSupported = get(kMemoryPools);
  p.hostRegisterSupported = 1;
  return p;
}

}  // namespace

HIP_API hipError_t hipInit(unsigned) {
  return api("hipInit", [] { bridge::devices(); }, false);
}
HIP_API hipError_t hipDriverGetVersion(int* version) {
  return api(
      "hipDriverGetVersion",
      [&] {
        need(version, "version");
        check(driver().driver_version(version));
      },
      false);
}
HIP_API hipError_t hipRuntimeGetVersion(int* version) {
  return api(
      "hipRuntimeGetVersion",
      [&] {
        need(version, "version");
        *version = 70200000;  // the version of HIP that this library implements
      },
      false);
}
HIP_API hipError_t hipGetDeviceCount(int* count) {
  if (count) *count = 0;
  return api(
      "hipGetDeviceCount",
      [&] {
        need(count, "count");
        *count = static_cast<int>(bridge::devices().ids.size());
        if (*count == 0) bridge::fail(hipErrorNoDevice, "the CUDA driver reports none");
      },
      false);
}
HIP_API hipError_t hipGetDevice(int* device) {
  return api(
      "hipGetDevice",
      [&] {
        need(device, "device");
        *device = bridge::current_device();
      },
      false);
}
HIP_API hipError_t hipSetDevice(int device) {
  return api("hipSetDevice", [&] { bridge::set_current_device(device); }, false);
}
HIP_API hipError_t hipDeviceGet(hipDevice_t* device, int ordinal) {
  return api(
      "hipDeviceGet",
      [&] {
        need(device, "device");
        check_device(ordinal);
        *device = ordinal;
      },
      false);
}
HIP_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* result, int device) {
  return api(
      "hipGetDeviceProperties",
      [&] {
        need(result, "prop");
        *result = properties(device);
      },
      false);
}
HIP_API hipError_t hipDeviceGetName(char* name, int length, hipDevice_t device) {
  return api(
      "hipDeviceGetName",
      [&] {
        need(name, "name");
        check(driver().device_name(name, length, id(device)));
      },
      false);
}
HIP_API hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device) {
  return api(
      "hipDeviceTotalMem",
      [&] {
        need(bytes, "bytes");
        check(driver().device_bytes(bytes, id(device)));
      },
      false);
}
HIP_API hipError_t hipDeviceGetPCIBusId(char* text, int length, int device) {
  return api(
      "hipDeviceGetPCIBusId",
      [&] {
        need(text, "pciBusId");
        std::snprintf(text, static_cast<size_t>(length), "%04x:%02x:%02x.0",
                      static_cast<unsigned>(attribute(device, kPciDomain)),
                      static_cast<unsigned>(attribute(device, kPciBus)),
                      static_cast<unsigned>(attribute(device, kPciDevice)));
      },
      false);
}
HIP_API hipError_t hipDeviceSynchronize() {
  return api("hipDeviceSynchronize", [] { check(driver().context_synchronize()); });
}
HIP_API hipError_t hipDeviceReset() {
  return api("hipDeviceReset", [] { check(driver().context_reset(id(bridge::current_device()))); });
}
HIP_API hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return api("hipDeviceGetStreamPriorityRange",
             [&] { check(driver().context_priorities(least, greatest)); });
}
HIP_API hipError_t hipDeviceCanAccessPeer(int* can, int device, int peer) {
  return api(
      "hipDeviceCanAccessPeer",
      [&] {
        need(can, "canAccessPeer");
        *can = 0;
        if (device != peer) check(driver().device_can_access_peer(can, id(device), id(peer)));
      },
      false);
}
HIP_API hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  // Context by context, which is device by device here.
  return api("hipDeviceEnablePeerAccess",
             [&] { check(driver().enable_peer(bridge::context(peer), flags)); });
}
HIP_API hipError_t hipDeviceDisablePeerAccess(int peer) {
  return api("hipDeviceDisablePeerAccess",
             [&] { check(driver().disable_peer(bridge::context(peer))); });
}
