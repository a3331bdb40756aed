// Devices: choosing one, what it is, peers.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "hip/api.hpp"
#include "hip/properties.hpp"
#include "runtime/options.hpp"

namespace {

using hip::api;
using hip::fail;
using hip::need;
using rt::device;
using rt::runtime;

int count() { return static_cast<int>(runtime().devices.size()); }

// Device n sits on bus n+1 of PCI domain 0, whatever number visibility gives it.
int bus(int id) { return device(id).physical + 1; }

std::string pci_text(int id) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "0000:%02x:00.0", static_cast<unsigned>(bus(id)));
  return buffer;
}

hipUUID uuid(int id) {
  hipUUID result;
  std::memcpy(result.bytes, rt::uuid_of(device(id).physical).data(), sizeof result.bytes);
  return result;
}

std::string arch_name() {
  const std::string& arch = rt::options().arch;
  return arch.find(':') == std::string::npos ? arch + ":sramecc+:xnack-" : arch;
}

hipDeviceProp_tR0600 properties(int id) {
  hipDeviceProp_tR0600 p{};
  std::snprintf(p.name, sizeof p.name, "%s", hip::kDeviceName);
  std::snprintf(p.gcnArchName, sizeof p.gcnArchName, "%s", arch_name().c_str());
  p.uuid = uuid(id);
  p.totalGlobalMem = rt::options().device_bytes;
  p.sharedMemPerBlock = p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin =
      p.maxSharedMemoryPerMultiProcessor = hip::kLdsBytes;
  p.regsPerBlock = p.regsPerMultiprocessor = hip::kRegistersPerBlock;
  p.warpSize = hip::kWaveSize;
  p.memPitch = hip::kMaxPitch;
  p.maxThreadsPerBlock = hip::kMaxThreads;
  for (int i = 0; i < 3; ++i) {
    p.maxThreadsDim[i] = hip::kMaxThreads;
    p.maxGridSize[i] = static_cast<int>(hip::kMaxGrid[i]);
  }
  p.clockRate = hip::kClockKhz;
  p.clockInstructionRate = hip::kWallClockKhz;
  p.totalConstMem = 0x7fffffff;
  p.major = hip::kMajor;
  p.minor = hip::kMinor;
  p.textureAlignment = hip::kTextureAlign;
  p.texturePitchAlignment = hip::kPitchAlign;
  p.multiProcessorCount = hip::kComputeUnits;
  p.maxThreadsPerMultiProcessor = hip::kMaxThreadsPerCu;
  p.maxBlocksPerMultiProcessor = hip::kWavesPerCu;
  p.memoryClockRate = hip::kMemoryClockKhz;
  p.memoryBusWidth = hip::kMemoryBusBits;
  p.l2CacheSize = hip::kL2Bytes;
  p.pciBusID = bus(id);
  p.asyncEngineCount = 8;
  p.canMapHostMemory = p.concurrentKernels = p.unifiedAddressing = p.ECCEnabled = 1;
  p.managedMemory = p.hostRegisterSupported = p.memoryPoolsSupported = 1;
  p.streamPrioritiesSupported = p.canUseHostPointerForRegisteredMem = 1;
  p.globalL1CacheSupported = p.localL1CacheSupported = p.isLargeBar = 1;
  p.arch.features = 0x7ffff & ~(1u << 14) & ~(1u << 16) & 0x1ffff;  // no surfaces, no nested launch
  return p;
}

int attribute(int attribute, int id) {
  const hipDeviceProp_tR0600 p = properties(id);
  const auto clamp = [](uint64_t value) {
    return static_cast<int>(std::min<uint64_t>(value, 0x7fffffff));
  };
  switch (attribute) {
    case 0:
      return p.ECCEnabled;
    case 1:
      return p.accessPolicyMaxWindowSize;
    case 2:
      return p.asyncEngineCount;
    case 3:
      return p.canMapHostMemory;
    case 4:
      return p.canUseHostPointerForRegisteredMem;
    case 5:
      return p.clockRate;
    case 6:
      return p.computeMode;
    case 7:
      return p.computePreemptionSupported;
    case 8:
      return p.concurrentKernels;
    case 9:
      return p.concurrentManagedAccess;
    case 10:
      return p.cooperativeLaunch;
    case 11:
      return p.cooperativeMultiDeviceLaunch;
    case 12:
      return p.deviceOverlap;
    case 13:
      return p.directManagedMemAccessFromHost;
    case 14:
      return p.globalL1CacheSupported;
    case 15:
      return p.hostNativeAtomicSupported;
    case 16:
      return p.integrated;
    case 17:
      return p.isMultiGpuBoard;
    case 18:
      return p.kernelExecTimeoutEnabled;
    case 19:
      return p.l2CacheSize;
    case 20:
      return p.localL1CacheSupported;
    case 22:
      return 0;  // LUID device node mask
    case 23:
      return p.major;
    case 24:
      return p.managedMemory;
    case 25:
      return p.maxBlocksPerMultiProcessor;
    case 26:
    case 27:
    case 28:
      return p.maxThreadsDim[attribute - 26];
    case 29:
    case 30:
    case 31:
      return p.maxGridSize[attribute - 29];
    case 55:
      return p.maxThreadsDim[0];
    case 56:
      return p.maxThreadsPerBlock;
    case 57:
      return p.maxThreadsPerMultiProcessor;
    case 58:
      return clamp(p.memPitch);
    case 59:
      return p.memoryBusWidth;
    case 60:
      return p.memoryClockRate;
    case 61:
      return p.minor;
    case 62:
      return p.multiGpuBoardGroupID;
    case 63:
      return p.multiProcessorCount;
    case 65:
      return p.pageableMemoryAccess;
    case 66:
      return p.pageableMemoryAccessUsesHostPageTables;
    case 67:
      return p.pciBusID;
    case 68:
      return p.pciDeviceID;
    case 69:
      return p.pciDomainID;
    case 70:
      return p.persistingL2CacheMaxSize;
    case 71:
      return p.regsPerBlock;
    case 72:
      return p.regsPerMultiprocessor;
    case 73:
      return clamp(p.reservedSharedMemPerBlock);
    case 74:
      return clamp(p.sharedMemPerBlock);
    case 75:
      return clamp(p.sharedMemPerBlockOptin);
    case 76:
      return clamp(p.sharedMemPerMultiprocessor);
    case 77:
      return p.singleToDoublePrecisionPerfRatio;
    case 78:
      return p.streamPrioritiesSupported;
    case 79:
      return clamp(p.surfaceAlignment);
    case 80:
      return p.tccDriver;
    case 81:
      return clamp(p.textureAlignment);
    case 82:
      return clamp(p.texturePitchAlignment);
    case 83:
      return clamp(p.totalConstMem);
    case 84:
      return clamp(p.totalGlobalMem);
    case 85:
      return p.unifiedAddressing;
    case 87:
      return p.warpSize;
    case 88:
      return p.memoryPoolsSupported;
    case 89:
      return 0;  // virtual memory management
    case 90:
      return p.hostRegisterSupported;
    case 91:
      return static_cast<int>(p.memoryPoolSupportedHandleTypes);
    case 92:
      return 0;  // NUMA node
    case 93:
    case 94:
    case 95:
      return 0;  // dma-buf, RDMA with VMM, fabric handles
    case 10000:
      return p.clockInstructionRate;
    case 10002:
      return clamp(p.maxSharedMemoryPerMultiProcessor);
    case 10007:
    case 10008:
    case 10009:
    case 10010:
      return 0;  // multi-device cooperation
    case 10011:
      return p.isLargeBar;
    case 10012:
      return p.asicRevision;
    case 10013:
      return 0;  // hipStreamWaitValue
    case 10014:
      return 0;  // images
    case 10015:
      return hip::kComputeUnits;
    case 10016:
      return 1;  // fine-grained memory
    case 10017:
      return hip::kWallClockKhz;
    case 10018:
      return hip::kXccs;
    case 10019:
      return 512;
    case 10020:
      return 0x75a3;
    case 10021:
    case 10022:
      return 0;
  }
  if (attribute >= 32 && attribute <= 54) return 0;  // surfaces and textures: none
  fail(hipErrorInvalidValue, "attribute ", attribute, " is unknown");
}

}  // namespace

HIP_API hipError_t hipInit(unsigned flags) {
  return api("hipInit", [&] {
    if (flags) fail(hipErrorInvalidValue, "flags must be 0; got ", flags);
    device(0);
  });
}

HIP_API hipError_t hipRuntimeGetVersion(int* version) {
  return api("hipRuntimeGetVersion", [&] {
    need(version, "version");
    *version = hip::kVersion;
  });
}

HIP_API hipError_t hipDriverGetVersion(int* version) {
  return api("hipDriverGetVersion", [&] {
    need(version, "version");
    *version = hip::kVersion;
  });
}

HIP_API hipError_t hipGetDeviceCount(int* result) {
  return api("hipGetDeviceCount", [&] {
    need(result, "count");
    *result = count();
    if (!*result) device(0);  // throws hipErrorNoDevice
  });
}

HIP_API hipError_t hipSetDevice(int id) {
  return api("hipSetDevice", [&] { rt::set_current_device(id); });
}

HIP_API hipError_t hipSetValidDevices(int* ids, int length) {
  return api("hipSetValidDevices", [&] {
    if (length < 0) fail(hipErrorInvalidValue, "length must not be negative; got ", length);
    if (length) need(ids, "device_arr");
    for (int i = 0; i < length; ++i) device(ids[i]);
  });
}

HIP_API hipError_t hipGetDevice(int* id) {
  return api("hipGetDevice", [&] {
    need(id, "deviceId");
    *id = rt::current_device().id;
  });
}

HIP_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* result, int id) {
  return api("hipGetDeviceProperties", [&] {
    need(result, "prop");
    *result = properties(device(id).id);
  });
}

HIP_API hipError_t hipChooseDeviceR0600(int* id, const hipDeviceProp_tR0600* wanted) {
  return api("hipChooseDevice", [&] {
    need(id, "device");
    need(wanted, "prop");
    *id = device(0).id;  // they are all alike
  });
}

HIP_API hipError_t hipDeviceGetAttribute(int* value, int attr, int id) {
  return api("hipDeviceGetAttribute", [&] {
    need(value, "pi");
    *value = attribute(attr, device(id).id);
  });
}

HIP_API hipError_t hipDeviceGet(int* result, int ordinal) {
  return api("hipDeviceGet", [&] {
    need(result, "device");
    *result = device(ordinal).id;
  });
}

HIP_API hipError_t hipDeviceComputeCapability(int* major, int* minor, int id) {
  return api("hipDeviceComputeCapability", [&] {
    need(major, "major");
    need(minor, "minor");
    device(id);
    *major = hip::kMajor;
    *minor = hip::kMinor;
  });
}

HIP_API hipError_t hipDeviceGetName(char* name, int length, int id) {
  return api("hipDeviceGetName", [&] {
    need(name, "name");
    if (length <= 0) fail(hipErrorInvalidValue, "len must be positive; got ", length);
    device(id);
    std::snprintf(name, static_cast<size_t>(length), "%s", hip::kDeviceName);
  });
}

HIP_API hipError_t hipDeviceGetUuid(hipUUID* result, int id) {
  return api("hipDeviceGetUuid", [&] {
    need(result, "uuid");
    *result = uuid(device(id).id);
  });
}

HIP_API hipError_t hipDeviceGetPCIBusId(char* result, int length, int id) {
  return api("hipDeviceGetPCIBusId", [&] {
    need(result, "pciBusId");
    const std::string bus_id = pci_text(device(id).id);
    if (length <= static_cast<int>(bus_id.size())) {
      fail(hipErrorInvalidValue, "len must be at least ", bus_id.size() + 1, "; got ", length);
    }
    std::memcpy(result, bus_id.c_str(), bus_id.size() + 1);
  });
}

HIP_API hipError_t hipDeviceGetByPCIBusId(int* id, const char* bus_id) {
  return api("hipDeviceGetByPCIBusId", [&] {
    need(id, "device");
    need(bus_id, "pciBusId");
    for (int i = 0; i < count(); ++i) {
      if (pci_text(i) == bus_id) {
        *id = i;
        return;
      }
    }
    fail(hipErrorInvalidDevice, "no device at PCI address '", bus_id, "'");
  });
}

HIP_API hipError_t hipDeviceTotalMem(size_t* bytes, int id) {
  return api("hipDeviceTotalMem", [&] {
    need(bytes, "bytes");
    device(id);
    *bytes = rt::options().device_bytes;
  });
}

HIP_API hipError_t hipDeviceSynchronize() {
  return api("hipDeviceSynchronize",
             [&] { hip::throw_report(rt::drain_and_report(rt::current_device())); });
}

// Memory, streams and settings of the device go; modules stay (they belong to the process).
HIP_API hipError_t hipDeviceReset() {
  return api("hipDeviceReset", [&] {
    rt::Device& current = rt::current_device();
    rt::drain_and_report(current);
    for (const auto& stream : runtime().streams.all()) {
      if (&stream->device != &current) continue;
      runtime().streams.remove(stream.get());
      rt::remove_stream(stream);
    }
    for (const rt::Block& block : runtime().allocator.blocks_of(current.id)) {
      if (block.kind == emu::Allocation::Kind::code) continue;
      if (block.source == rt::Block::Source::registered) {
        runtime().allocator.unregister_host(block.base);
      } else {
        runtime().allocator.free(block.base);
      }
    }
    for (int owner = 0; owner < count(); ++owner) {
      runtime().allocator.set_peer(current.id, owner, false);
    }
    current.flags = 0;
  });
}

HIP_API hipError_t hipGetDeviceFlags(unsigned* flags) {
  return api("hipGetDeviceFlags", [&] {
    need(flags, "flags");
    *flags = rt::current_device().flags;
  });
}

HIP_API hipError_t hipSetDeviceFlags(unsigned flags) {
  return api("hipSetDeviceFlags", [&] {
    if (flags & ~0x1fu) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
    rt::current_device().flags = flags;
  });
}

HIP_API hipError_t hipDeviceGetLimit(size_t* value, int limit) {
  return api("hipDeviceGetLimit", [&] {
    need(value, "pValue");
    const rt::Device& current = rt::current_device();
    if (limit == 0) {
      *value = current.stack_limit;
    } else if (limit == 2) {
      *value = current.heap_limit;
    } else {
      fail(hipErrorUnsupportedLimit, "limit ", limit, " is not supported");
    }
  });
}

HIP_API hipError_t hipDeviceSetLimit(int limit, size_t value) {
  return api("hipDeviceSetLimit", [&] {
    rt::Device& current = rt::current_device();
    if (limit == 0) {
      current.stack_limit = value;
    } else if (limit == 2) {
      current.heap_limit = value;
    } else {
      fail(hipErrorUnsupportedLimit, "limit ", limit, " is not supported");
    }
  });
}

HIP_API hipError_t hipDeviceGetCacheConfig(int* config) {
  return api("hipDeviceGetCacheConfig", [&] {
    need(config, "cacheConfig");
    *config = 0;
  });
}
// LDS and L1 are separate on AMD GPUs: the hint is accepted and has no effect.
HIP_API hipError_t hipDeviceSetCacheConfig(int) {
  return api("hipDeviceSetCacheConfig", [] { rt::current_device(); });
}
HIP_API hipError_t hipDeviceGetSharedMemConfig(int* config) {
  return api("hipDeviceGetSharedMemConfig", [&] {
    need(config, "pConfig");
    *config = 1;  // banks of four bytes
  });
}
HIP_API hipError_t hipDeviceSetSharedMemConfig(int) {
  return api("hipDeviceSetSharedMemConfig", [] { rt::current_device(); });
}

HIP_API hipError_t hipDeviceCanAccessPeer(int* can, int id, int peer) {
  return api("hipDeviceCanAccessPeer", [&] {
    need(can, "canAccessPeer");
    *can = &device(id) != &device(peer);
  });
}

HIP_API hipError_t hipDeviceEnablePeerAccess(int peer, unsigned flags) {
  return api("hipDeviceEnablePeerAccess", [&] {
    const int current = rt::current_device().id;
    if (flags) fail(hipErrorInvalidValue, "flags must be 0; got ", flags);
    if (device(peer).id == current) {
      fail(hipErrorInvalidDevice, "device ", peer, " is the current one");
    }
    if (runtime().allocator.peer(current, peer)) {
      fail(hipErrorPeerAccessAlreadyEnabled, "from device ", current, " to ", peer);
    }
    runtime().allocator.set_peer(current, peer, true);
  });
}

HIP_API hipError_t hipDeviceDisablePeerAccess(int peer) {
  return api("hipDeviceDisablePeerAccess", [&] {
    const int current = rt::current_device().id;
    device(peer);
    if (!runtime().allocator.peer(current, peer)) {
      fail(hipErrorPeerAccessNotEnabled, "from device ", current, " to ", peer);
    }
    rt::drain(rt::current_device());  // work that was queued under the old rule
    runtime().allocator.set_peer(current, peer, false);
  });
}

HIP_API hipError_t hipDeviceGetP2PAttribute(int* value, int attr, int from, int to) {
  return api("hipDeviceGetP2PAttribute", [&] {
    need(value, "value");
    if (&device(from) == &device(to)) {
      fail(hipErrorInvalidDevice, "source and destination are the same device ", from);
    }
    if (attr < 0 || attr > 3) fail(hipErrorInvalidValue, "attribute ", attr, " is unknown");
    *value = attr == 1 || attr == 2;  // access and native atomics; rank 0; no arrays
  });
}

HIP_API hipError_t hipExtGetLinkTypeAndHopCount(int from, int to, uint32_t* type, uint32_t* hops) {
  return api("hipExtGetLinkTypeAndHopCount", [&] {
    need(type, "linktype");
    need(hops, "hopcount");
    if (&device(from) == &device(to)) {
      fail(hipErrorInvalidValue, "source and destination are the same device ", from);
    }
    *type = 4;  // XGMI
    *hops = 1;
  });
}
