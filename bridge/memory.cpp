// Allocations, copies, fills, and attributes of pointers.
#include "api.hpp"

namespace {

using bridge::address;
using bridge::api;
using bridge::check;
using bridge::context;
using bridge::fail;
using bridge::need;
using bridge::stream_of;
using cuda::driver;

// Numbers of CUpointer_attribute.
enum PointerAttribute : int {
  kType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kManaged = 8,
  kOrdinal = 9,
};

// Whether the driver knows an address, and its kind.
bool is_device(const void* pointer) {
  unsigned type = 0;
  return driver().pointer_attribute(&type, kType, address(pointer)) == 0 &&
         type == static_cast<unsigned>(cuda::MemoryType::device);
}

cuda::Copy2D rows(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
                  size_t height, hipMemcpyKind kind) {
  const bool from_device = kind == hipMemcpyDefault
                               ? is_device(src)
                               : kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice;
  const bool to_device = kind == hipMemcpyDefault
                             ? is_device(dst)
                             : kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice;
  cuda::Copy2D c{};
  if (from_device) {
    c.src_type = cuda::MemoryType::device;
    c.src_device = address(src);
  } else {
    c.src_type = cuda::MemoryType::host;
    c.src_host = src;
  }
  if (to_device) {
    c.dst_type = cuda::MemoryType::device;
    c.dst_device = address(dst);
  } else {
    c.dst_type = cuda::MemoryType::host;
    c.dst_host = dst;
  }
  c.src_pitch = src_pitch;
  c.dst_pitch = dst_pitch;
  c.width = width;
  c.height = height;
  return c;
}

}  // namespace

HIP_API hipError_t hipMalloc(void** pointer, size_t bytes) {
  return api("hipMalloc", [&] {
    need(pointer, "ptr");
    cuda::Pointer made = 0;
    if (bytes) check(driver().allocate(&made, bytes));
    *pointer = reinterpret_cast<void*>(made);
  });
}
HIP_API hipError_t hipFree(void* pointer) {
  return api("hipFree", [&] {
    if (pointer) check(driver().release(address(pointer)));
  });
}
HIP_API hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  return api("hipMallocAsync", [&] {
    need(pointer, "ptr");
    cuda::Pointer made = 0;
    if (bytes) check(driver().allocate_async(&made, bytes, stream_of(stream)));
    *pointer = reinterpret_cast<void*>(made);
  });
}
HIP_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream) {
  return api("hipFreeAsync", [&] {
    if (pointer) check(driver().release_async(address(pointer), stream_of(stream)));
  });
}
HIP_API hipError_t hipHostMalloc(void** pointer, size_t bytes, unsigned flags) {
  return api("hipHostMalloc", [&] {
    need(pointer, "ptr");
    constexpr unsigned kKnownToBoth =
        hipHostMallocPortable | hipHostMallocMapped | hipHostMallocWriteCombined;
    *pointer = nullptr;
    if (bytes) check(driver().allocate_host(pointer, bytes, flags & kKnownToBoth));
  });
}
HIP_API hipError_t hipHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return hipHostMalloc(pointer, bytes, flags);
}
HIP_API hipError_t hipHostFree(void* pointer) {
  return api("hipHostFree", [&] {
    if (pointer) check(driver().release_host(pointer));
  });
}
HIP_API hipError_t hipHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return api("hipHostRegister", [&] { check(driver().register_host(pointer, bytes, flags & 3)); });
}
HIP_API hipError_t hipHostUnregister(void* pointer) {
  return api("hipHostUnregister", [&] { check(driver().unregister_host(pointer)); });
}
HIP_API hipError_t hipHostGetDevicePointer(void** result, void* pointer, unsigned flags) {
  return api("hipHostGetDevicePointer", [&] {
    need(result, "devPtr");
    cuda::Pointer found = 0;
    check(driver().host_device_pointer(&found, pointer, flags));
    *result = reinterpret_cast<void*>(found);
  });
}
HIP_API hipError_t hipMemGetInfo(size_t* free, size_t* total) {
  return api("hipMemGetInfo", [&] { check(driver().memory_info(free, total)); });
}
HIP_API hipError_t hipMemGetAddressRange(hipDeviceptr_t* base, size_t* size,
                                         hipDeviceptr_t pointer) {
  return api("hipMemGetAddressRange", [&] {
    cuda::Pointer found = 0;
    check(driver().address_range(&found, size, address(pointer)));
    if (base) *base = reinterpret_cast<void*>(found);
  });
}
HIP_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* result, const void* pointer) {
  return api("hipPointerGetAttributes", [&] {
    need(result, "attributes");
    *result = {};
    unsigned type = 0;
    if (driver().pointer_attribute(&type, kType, address(pointer)) != 0) {
      result->type = hipMemoryTypeUnregistered;
      result->device = -2;
      return;
    }
    result->type = type == static_cast<unsigned>(cuda::MemoryType::device) ? hipMemoryTypeDevice
                                                                           : hipMemoryTypeHost;
    driver().pointer_attribute(&result->device, kOrdinal, address(pointer));
    driver().pointer_attribute(&result->devicePointer, kDevicePointer, address(pointer));
    if (result->type == hipMemoryTypeHost)
      driver().pointer_attribute(&result->hostPointer, kHostPointer, address(pointer));
    unsigned managed = 0;
    driver().pointer_attribute(&managed, kManaged, address(pointer));
    if (managed) {
      result->isManaged = 1;
      result->type = hipMemoryTypeManaged;
    }
  });
}

HIP_API hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind,
                                  hipStream_t stream) {
  return api("hipMemcpyAsync", [&] {
    if (bytes) check(driver().copy_async(address(dst), address(src), bytes, stream_of(stream)));
  });
}
HIP_API hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind) {
  return api("hipMemcpy", [&] {
    if (bytes) check(driver().copy(address(dst), address(src), bytes));
  });
}
HIP_API hipError_t hipMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                                    size_t width, size_t height, hipMemcpyKind kind,
                                    hipStream_t stream) {
  return api("hipMemcpy2DAsync", [&] {
    if (width == 0 || height == 0) return;
    if (width > dst_pitch || width > src_pitch)
      fail(hipErrorInvalidPitchValue, "rows are wider than their pitch");
    const cuda::Copy2D copy = rows(dst, dst_pitch, src, src_pitch, width, height, kind);
    check(driver().copy_2d_async(&copy, stream_of(stream)));
  });
}
HIP_API hipError_t hipMemcpy2D(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                               size_t width, size_t height, hipMemcpyKind kind) {
  return api("hipMemcpy2D", [&] {
    if (width == 0 || height == 0) return;
    const cuda::Copy2D copy = rows(dst, dst_pitch, src, src_pitch, width, height, kind);
    check(driver().copy_2d(&copy));
  });
}
HIP_API hipError_t hipMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device,
                                      size_t bytes, hipStream_t stream) {
  return api("hipMemcpyPeerAsync", [&] {
    const cuda::Context to = context(dst_device), from = context(src_device);
    if (bytes)
      check(
          driver().copy_peer_async(address(dst), to, address(src), from, bytes, stream_of(stream)));
  });
}
HIP_API hipError_t hipMemcpyPeer(void* dst, int dst_device, const void* src, int src_device,
                                 size_t bytes) {
  return api("hipMemcpyPeer", [&] {
    const cuda::Context to = context(dst_device), from = context(src_device);
    if (bytes) check(driver().copy_peer(address(dst), to, address(src), from, bytes));
  });
}

HIP_API hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream) {
  return api("hipMemsetAsync", [&] {
    if (bytes)
      check(driver().set_8(address(dst), static_cast<unsigned char>(value), bytes,
                           stream_of(stream)));
  });
}
HIP_API hipError_t hipMemset(void* dst, int value, size_t bytes) {
  const hipError_t error = hipMemsetAsync(dst, value, bytes, nullptr);
  return error ? error : api("hipMemset", [] { check(driver().stream_synchronize(nullptr)); });
}
HIP_API hipError_t hipMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height,
                                    hipStream_t stream) {
  return api("hipMemset2DAsync", [&] {
    if (width && height)
      check(driver().set_rows_8(address(dst), pitch, static_cast<unsigned char>(value), width,
                                height, stream_of(stream)));
  });
}
HIP_API hipError_t hipMemsetD8Async(void* dst, unsigned char value, size_t n, hipStream_t stream) {
  return api("hipMemsetD8Async", [&] {
    if (n) check(driver().set_8(address(dst), value, n, stream_of(stream)));
  });
}
HIP_API hipError_t hipMemsetD16Async(void* dst, unsigned short value, size_t n,
                                     hipStream_t stream) {
  return api("hipMemsetD16Async", [&] {
    if (n) check(driver().set_16(address(dst), value, n, stream_of(stream)));
  });
}
HIP_API hipError_t hipMemsetD32Async(void* dst, int value, size_t n, hipStream_t stream) {
  return api("hipMemsetD32Async", [&] {
    if (n) check(driver().set_32(address(dst), static_cast<unsigned>(value), n, stream_of(stream)));
  });
}
