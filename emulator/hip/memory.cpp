// Allocation: device, pinned and managed memory; what a pointer is.
#include "core/mutant.hpp"
#include "hip/copy.hpp"
#include "hip/properties.hpp"
#include "runtime/graph.hpp"
#include "runtime/options.hpp"

namespace {

using hip::address_of;
using hip::api;
using hip::fail;
using hip::need;
using rt::Block;
using rt::runtime;
using Kind = emu::Allocation::Kind;

void allocate(void** result, size_t bytes, Kind kind, unsigned flags = 0, bool managed = false) {
  need(result, "ptr");
  *result = nullptr;
  rt::refuse_unsafe("allocating memory");
  const int device = rt::current_device().id;
  if (!bytes) return;  // HIP gives a null pointer and no error
  *result = reinterpret_cast<void*>(
      runtime().allocator.allocate({bytes, device, kind, managed, flags, 0}).base);
}

void allocate_pinned(void** result, size_t bytes, unsigned flags) {
  constexpr unsigned kKnown = hipHostMallocPortable | hipHostMallocMapped |
                              hipHostMallocWriteCombined | 8 | hipHostMallocNumaUser |
                              hipHostMallocCoherent | hipHostMallocNonCoherent;
  if (flags & ~kKnown) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
  if ((flags & hipHostMallocCoherent) && (flags & hipHostMallocNonCoherent)) {
    fail(hipErrorInvalidValue, "flags ask for coherent and non-coherent memory at once");
  }
  allocate(result, bytes, Kind::pinned, flags);
}

// Freeing waits for all work that may still use the memory. It does not report that work's
// failures, so that clean-up after an error succeeds; the next synchronizing call does.
void free_memory(void* pointer, bool pinned) {
  if (!pointer) return;
  rt::refuse_unsafe("freeing memory");
  const Block block = runtime().allocator.find_base(address_of(pointer));
  const bool wrong = block.source != Block::Source::ours || block.kind == Kind::code ||
                     (pinned && block.kind != Kind::pinned) ||
                     (!pinned && block.kind == Kind::pinned && !block.managed);
  if (wrong) {
    fail(hipErrorInvalidValue, rt::hex(pointer), " was not allocated by the matching call: ",
         runtime().allocator.describe(block.base, block.device));
  }
  for (const auto& device : runtime().devices) {
    const bool may_use = device->id == block.device || block.kind == Kind::pinned ||
                         runtime().allocator.peer(device->id, block.device);
    if (may_use) rt::drain(*device);
  }
  runtime().allocator.free(block.base);
}

Block known(const void* pointer, const char* what) {
  const auto block = runtime().allocator.find(address_of(pointer));
  if (!block) {
    fail(hipErrorInvalidValue, what, ": ", rt::hex(pointer), ": ",
         runtime().allocator.describe(address_of(pointer), rt::current_device().id));
  }
  return *block;
}

void check_managed(const void* pointer, size_t bytes) {
  need(pointer, "dev_ptr");
  const auto block = runtime().allocator.check(address_of(pointer), bytes, "dev_ptr");
  if (!block || !block->managed) {
    fail(hipErrorInvalidValue, "dev_ptr: ", rt::hex(pointer), " is not managed memory");
  }
}

hipMemoryType type_of(const Block& block) {
  if (block.managed) return hipMemoryTypeManaged;
  return block.kind == Kind::pinned ? hipMemoryTypeHost : hipMemoryTypeDevice;
}

}  // namespace

HIP_API hipError_t hipMalloc(void** pointer, size_t bytes) {
  return api("hipMalloc", [&] { allocate(pointer, bytes, Kind::device); });
}

HIP_API hipError_t hipMallocManaged(void** pointer, size_t bytes, unsigned flags) {
  return api("hipMallocManaged", [&] {
    if (flags != 1 && flags != 2) {
      fail(hipErrorInvalidValue, "flags must be hipMemAttachGlobal or hipMemAttachHost; got ",
           flags);
    }
    if (!bytes) fail(hipErrorInvalidValue, "size must be positive");
    allocate(pointer, bytes, Kind::pinned, flags, true);
  });
}

HIP_API hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
  return api("hipHostMalloc", [&] { allocate_pinned(pointer, bytes, flags); });
}
HIP_API hipError_t hipFree(void* pointer) {
  return api("hipFree", [&] { free_memory(pointer, false); });
}
HIP_API hipError_t hipHostFree(void* pointer) {
  return api("hipHostFree", [&] { free_memory(pointer, true); });
}
HIP_API hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return api("hipHostRegister", [&] {
    need(pointer, "hostPtr");
    if (!bytes) fail(hipErrorInvalidValue, "sizeBytes must be positive");
    if (flags & ~0xfu) fail(hipErrorInvalidValue, "unknown flags ", rt::hex(flags));
    const int device = rt::current_device().id;
    // A device access to unmapped memory would kill the process, so check before it is allowed.
    if (!rt::host_mapped(address_of(pointer), bytes)) {
      fail(hipErrorInvalidValue, bytes, " bytes at ", rt::hex(pointer), " are not all mapped");
    }
    runtime().allocator.register_host(address_of(pointer), bytes, device, flags);
  });
}

HIP_API hipError_t hipHostUnregister(void* pointer) {
  return api("hipHostUnregister", [&] {
    need(pointer, "hostPtr");
    for (const auto& device : runtime().devices) rt::drain(*device);
    runtime().allocator.unregister_host(address_of(pointer));
  });
}

HIP_API hipError_t hipHostGetDevicePointer(void** result, void* pointer, unsigned flags) {
  return api("hipHostGetDevicePointer", [&] {
    need(result, "devPtr");
    need(pointer, "hstPtr");
    if (flags) fail(hipErrorInvalidValue, "flags must be 0; got ", flags);
    if (known(pointer, "hstPtr").kind != Kind::pinned) {
      fail(hipErrorInvalidValue, rt::hex(pointer), " is not pinned host memory");
    }
    *result = pointer;
    if (emu::is_mutant("pinned_flags"))  // a copy that neither side sees of the other
      allocate(result, known(pointer, "hstPtr").bytes, Kind::device);
  });
}

HIP_API hipError_t hipMemGetInfo(size_t* available, size_t* total) {
  return api("hipMemGetInfo", [&] {
    const int device = rt::current_device().id;
    if (available) *available = runtime().allocator.available(device);
    if (total) *total = rt::options().device_bytes;
  });
}

HIP_API hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* bytes,
                                         hipDeviceptr_t pointer) {
  return api("hipMemGetAddressRange", [&] {
    const auto block = runtime().allocator.find(address_of(pointer));
    if (!block) {
      fail(hipErrorNotFound, rt::hex(pointer), ": ",
           runtime().allocator.describe(address_of(pointer), rt::current_device().id));
    }
    if (base) *base = reinterpret_cast<void*>(block->base);
    if (bytes) *bytes = block->bytes;
  });
}

HIP_API hipError_t hipMemPrefetchAsync(const void* pointer, size_t bytes, int device,
                                       hipStream_t stream) {
  return api("hipMemPrefetchAsync", [&] {
    check_managed(pointer, bytes);
    if (device != -1) rt::device(device);  // -1: the host
    hip::stream_of(stream);
  });
}

// A pointer that HIP does not know is no error: it is unregistered host memory.
HIP_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* result, const void* pointer) {
  return api("hipPointerGetAttributes", [&] {
    need(result, "attributes");
    need(pointer, "ptr");
    *result = {hipMemoryTypeUnregistered, -2, nullptr, nullptr, 0, 0};
    const auto block = runtime().allocator.find(address_of(pointer));
    if (!block) return;
    void* const address = const_cast<void*>(pointer);
    result->type = type_of(*block);
    result->device = block->device;
    result->devicePointer = address;
    result->hostPointer = block->kind == Kind::pinned ? address : nullptr;
    result->isManaged = block->managed;
    result->allocationFlags = block->flags;
  });
}

HIP_API hipError_t hipPointerGetAttribute(void* data, int attribute, hipDeviceptr_t pointer) {
  return api("hipPointerGetAttribute", [&] {
    need(data, "data");
    need(pointer, "ptr");
    const Block block = known(pointer, "ptr");
    switch (attribute) {
      case 1:
        *static_cast<void**>(data) = runtime().devices[block.device].get();
        break;
      case 2:
        *static_cast<unsigned*>(data) = type_of(block);
        break;
      case 3:
        *static_cast<void**>(data) = pointer;
        break;
      case 4:
        if (block.kind != Kind::pinned)
          fail(hipErrorInvalidValue, "device memory has no host pointer");
        *static_cast<void**>(data) = pointer;
        break;
      case 7:
        *static_cast<uint64_t*>(data) = block.serial;
        break;
      case 8:
        *static_cast<bool*>(data) = block.managed;
        break;
      case 9:
        *static_cast<int*>(data) = block.device;
        break;
      case 11:
        *static_cast<uint64_t*>(data) = block.base;
        break;
      case 12:
        *static_cast<uint64_t*>(data) = block.bytes;
        break;
      case 13:
        *static_cast<bool*>(data) = true;
        break;
      default:
        fail(hipErrorNotSupported, "attribute ", attribute, " is not emulated");
    }
  });
}
