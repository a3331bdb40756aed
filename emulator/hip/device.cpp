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

// Device n is on bus n+1 of PCI domain 0, independent of its number after renumbering.
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

hipDeviceProp_tR0600 properties(int id) {
  const emu::Arch& arch = emu::arch();
  hipDeviceProp_tR0600 p{};
  std::snprintf(p.name, sizeof p.name, "%s", hip::device_name().c_str());
  std::snprintf(p.gcnArchName, sizeof p.gcnArchName, "%s", hip::target().c_str());
  p.uuid = uuid(id);
  p.totalGlobalMem = rt::options().device_bytes;
  p.sharedMemPerBlock = p.sharedMemPerMultiprocessor = p.sharedMemPerBlockOptin =
      p.maxSharedMemoryPerMultiProcessor = arch.lds_bytes;
  p.regsPerBlock = p.regsPerMultiprocessor = hip::kRegistersPerBlock;
  p.warpSize = hip::kWaveSize;
  p.memPitch = hip::kMaxPitch;
  p.maxThreadsPerBlock = hip::kMaxThreads;
  for (int i = 0; i < 3; ++i) {
    p.maxThreadsDim[i] = hip::kMaxThreads;
    p.maxGridSize[i] = static_cast<int>(hip::kMaxGrid[i]);
  }
  p.clockRate = arch.clock_khz;
  p.clockInstructionRate = hip::kWallClockKhz;
  p.totalConstMem = 0x7fffffff;
  p.major = arch.major;
  p.minor = arch.minor;
  p.textureAlignment = hip::kTextureAlign;
  p.texturePitchAlignment = hip::kPitchAlign;
  p.multiProcessorCount = arch.compute_units;
  p.maxThreadsPerMultiProcessor = hip::kMaxThreadsPerCu;
  p.maxBlocksPerMultiProcessor = hip::kWavesPerCu;
  p.memoryClockRate = arch.memory_clock_khz;
  p.memoryBusWidth = arch.memory_bus_bits;
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

struct Attribute {
  int number;  // hipDeviceAttribute_t
  uint64_t value;
  template <class T>
  Attribute(int number, T value) : number(number), value(static_cast<uint64_t>(value)) {}
};

int attribute(int attribute, int id) {
  const hipDeviceProp_tR0600 p = properties(id);
  const Attribute values[] = {{0, p.ECCEnabled},
                              {2, p.asyncEngineCount},
                              {3, p.canMapHostMemory},
                              {4, p.canUseHostPointerForRegisteredMem},
                              {5, p.clockRate},
                              {8, p.concurrentKernels},
                              {14, p.globalL1CacheSupported},
                              {19, p.l2CacheSize},
                              {20, p.localL1CacheSupported},
                              {23, p.major},
                              {24, p.managedMemory},
                              {25, p.maxBlocksPerMultiProcessor},
                              {26, p.maxThreadsDim[0]},
                              {27, p.maxThreadsDim[1]},
                              {28, p.maxThreadsDim[2]},
                              {29, p.maxGridSize[0]},
                              {30, p.maxGridSize[1]},
                              {31, p.maxGridSize[2]},
                              {55, p.maxThreadsDim[0]},
                              {56, p.maxThreadsPerBlock},
                              {57, p.maxThreadsPerMultiProcessor},
                              {58, p.memPitch},
                              {59, p.memoryBusWidth},
                              {60, p.memoryClockRate},
                              {61, p.minor},
                              {63, p.multiProcessorCount},
                              {67, p.pciBusID},
                              {71, p.regsPerBlock},
                              {72, p.regsPerMultiprocessor},
                              {74, p.sharedMemPerBlock},
                              {75, p.sharedMemPerBlockOptin},
                              {76, p.sharedMemPerMultiprocessor},
                              {78, p.streamPrioritiesSupported},
                              {81, p.textureAlignment},
                              {82, p.texturePitchAlignment},
                              {83, p.totalConstMem},
                              {84, p.totalGlobalMem},
                              {85, p.unifiedAddressing},
                              {87, p.warpSize},
                              {88, p.memoryPoolsSupported},
                              {90, p.hostRegisterSupported},
                              {10000, p.clockInstructionRate},
                              {10002, p.maxSharedMemoryPerMultiProcessor},
                              {10011, p.isLargeBar},
                              {10015, p.multiProcessorCount},
                              {10016, 1},
                              {10017, hip::kWallClockKhz},
                              {10018, emu::arch().xccs},
                              {10019, 512},
                              {10020, emu::arch().pci_device}};
  for (const Attribute& known : values) {
    if (known.number == attribute)
      return static_cast<int>(std::min<uint64_t>(known.value, 0x7fffffff));
  }
  // Features that the device does not have, such as textures, virtual memory, cooperative launches.
  const bool absent =
      (attribute >= 0 && attribute <= 95) || (attribute >= 10007 && attribute <= 10022);
  if (absent && attribute != 21 && attribute != 64 && attribute != 86) return 0;
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

HIP_API hipError_t hipDeviceGetName(char* name, int length, int id) {
  return api("hipDeviceGetName", [&] {
    need(name, "name");
    if (length <= 0) fail(hipErrorInvalidValue, "len must be positive; got ", length);
    device(id);
    std::snprintf(name, static_cast<size_t>(length), "%s", hip::device_name().c_str());
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

HIP_API hipError_t hipDeviceTotalMem(size_t* bytes, int id) {
  return api("hipDeviceTotalMem", [&] {
    need(bytes, "bytes");
    device(id);
    *bytes = rt::options().device_bytes;
  });
}

HIP_API hipError_t hipDeviceSynchronize() {
  return api("hipDeviceSynchronize", [&] {
    rt::refuse_in_capture(rt::current_device(), "waiting for the device");
    hip::throw_report(rt::drain_and_report(rt::current_device()));
  });
}

// Frees memory and streams of the device; modules stay loaded (they belong to the process).
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
  });
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
