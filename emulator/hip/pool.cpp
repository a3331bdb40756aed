// Stream-ordered allocation. Memory exists as soon as the call returns, until the stream
// reaches the free. A pool caches nothing, so that a use after free is always detected.
#include "hip/copy.hpp"
#include "runtime/graph.hpp"

namespace {

using hip::address_of;
using hip::api;
using hip::fail;
using hip::need;
using rt::Failure;
using rt::Pool;
using rt::runtime;
using Kind = emu::Allocation::Kind;

std::shared_ptr<Pool> pool_of(hipMemPool_t handle) {
  if (auto pool = runtime().pools.get(handle)) return pool;
  fail(hipErrorInvalidValue, "memory pool ", rt::hex(handle), " does not exist");
}

// `pool` may be null: memory of the stream's device that no pool counts.
void allocate(void** result, size_t bytes, Pool* pool, hipStream_t stream) {
  need(result, "dev_ptr");
  *result = nullptr;
  const int device = pool ? pool->device : hip::stream_of(stream)->device.id;
  if (rt::capture_of(*hip::stream_of(stream)))
    fail(hipErrorNotSupported, "memory that a graph allocates is not emulated");
  if (!bytes) return;
  *result = reinterpret_cast<void*>(
      runtime().allocator.allocate({bytes, device, Kind::device, false, 0, address_of(pool)}).base);
  if (!pool) return;
  const uint64_t used = pool->used += bytes;
  uint64_t high = pool->high;
  while (used > high && !pool->high.compare_exchange_weak(high, used)) {
  }
}

}  // namespace

HIP_API hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  return api("hipMallocAsync", [&] { allocate(pointer, bytes, nullptr, stream); });
}

HIP_API hipError_t hipMallocFromPoolAsync(void** pointer, size_t bytes, hipMemPool_t pool,
                                          hipStream_t stream) {
  return api("hipMallocFromPoolAsync",
             [&] { allocate(pointer, bytes, pool_of(pool).get(), stream); });
}

HIP_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream_handle) {
  return api("hipFreeAsync", [&] {
    const auto stream = hip::stream_of(stream_handle);
    if (!pointer) fail(hipErrorInvalidValue, "dev_ptr must not be null");
    if (rt::capture_of(*stream))
      fail(hipErrorNotSupported, "memory that a graph frees is not emulated");
    const rt::Block block = runtime().allocator.find_base(address_of(pointer));
    if (block.kind != Kind::device || block.source != rt::Block::Source::ours) {
      fail(hipErrorInvalidValue, rt::hex(pointer),
           " is not device memory from hipMalloc or hipMallocAsync");
    }
    stream->enqueue(
        {[block]() -> std::optional<Failure> {
           try {
             const rt::Block now = runtime().allocator.find_base(block.base);
             if (now.serial != block.serial) {
               return Failure{{hipErrorInvalidValue, "hipFreeAsync: memory was freed twice"}};
             }
             runtime().allocator.free(block.base);
           } catch (const rt::Error& error) {
             return Failure{{error.code, "hipFreeAsync: " + error.message}};
           }
           if (const auto pool = runtime().pools.get(reinterpret_cast<void*>(block.pool))) {
             pool->used -= block.bytes;
           }
           return std::nullopt;
         },
         {},
         true});
  });
}

HIP_API hipError_t hipMemPoolCreate(hipMemPool_t* result, const hipMemPoolProps* properties) {
  return api("hipMemPoolCreate", [&] {
    need(result, "mem_pool");
    need(properties, "pool_props");
    if (properties->allocType != 1 || properties->location.type != 1) {
      fail(hipErrorInvalidValue, "a pool must be of pinned type and located on a device; got type ",
           properties->allocType, ", location type ", properties->location.type);
    }
    if (properties->handleTypes) fail(hipErrorNotSupported, "pools cannot be exported");
    auto pool = std::make_shared<Pool>();
    pool->device = rt::device(properties->location.id).id;
    *result = reinterpret_cast<hipMemPool_t>(runtime().pools.add(std::move(pool)));
  });
}

HIP_API hipError_t hipMemPoolDestroy(hipMemPool_t handle) {
  return api("hipMemPoolDestroy", [&] {
    pool_of(handle);
    runtime().pools.remove(handle);
  });
}

HIP_API hipError_t hipMemPoolTrimTo(hipMemPool_t handle, size_t) {
  return api("hipMemPoolTrimTo", [&] { pool_of(handle); });
}

HIP_API hipError_t hipMemPoolGetAttribute(hipMemPool_t handle, int attribute, void* value) {
  return api("hipMemPoolGetAttribute", [&] {
    need(value, "value");
    const auto pool = pool_of(handle);
    switch (attribute) {
      case 4:
        *static_cast<uint64_t*>(value) = pool->release_threshold;
        break;
      case 5:
      case 7:
        *static_cast<uint64_t*>(value) = pool->used;
        break;
      case 6:
      case 8:
        *static_cast<uint64_t*>(value) = pool->high;
        break;
      default:
        fail(hipErrorInvalidValue, "attribute ", attribute, " is unknown");
    }
  });
}

HIP_API hipError_t hipMemPoolSetAttribute(hipMemPool_t handle, int attribute, void* value) {
  return api("hipMemPoolSetAttribute", [&] {
    need(value, "value");
    const auto pool = pool_of(handle);
    switch (attribute) {
      case 4:
        pool->release_threshold = *static_cast<uint64_t*>(value);
        break;
      case 6:
      case 8:
        if (*static_cast<uint64_t*>(value))
          fail(hipErrorInvalidValue, "a high mark can only be set to 0");
        pool->high = pool->used.load();
        break;
      default:
        fail(hipErrorInvalidValue, "attribute ", attribute, " cannot be set");
    }
  });
}
