// Stream-ordered allocation. Memory is there as soon as the call returns; it goes when the stream
// reaches the free. A pool keeps nothing back, so that a use after free is always noticed.
#include "hip/copy.hpp"

namespace {

using hip::address_of;
using hip::api;
using hip::fail;
using hip::need;
using rt::Failure;
using rt::Pool;
using rt::runtime;
using Kind = emu::Allocation::Kind;

hipMemPool_t handle_of(const std::shared_ptr<Pool>& pool) {
  return reinterpret_cast<hipMemPool_t>(pool.get());
}

std::shared_ptr<Pool> pool_of(hipMemPool_t handle) {
  if (auto pool = runtime().pools.get(handle)) return pool;
  fail(hipErrorInvalidValue, "memory pool ", rt::hex(handle), " does not exist");
}

void allocate(void** result, size_t bytes, const std::shared_ptr<Pool>& pool, hipStream_t stream) {
  need(result, "dev_ptr");
  *result = nullptr;
  hip::stream_of(stream);
  if (!bytes) return;
  *result = reinterpret_cast<void*>(
      runtime()
          .allocator.allocate({bytes, pool->device, Kind::device, false, 0, address_of(pool.get())})
          .base);
  const uint64_t used = pool->used += bytes;
  uint64_t high = pool->high;
  while (used > high && !pool->high.compare_exchange_weak(high, used)) {
  }
}

std::shared_ptr<Pool> current_pool(rt::Device& device) {
  const std::lock_guard lock(runtime().mutex);
  return device.pool;
}

}  // namespace

HIP_API hipError_t hipMallocAsync(void** pointer, size_t bytes, hipStream_t stream) {
  return api("hipMallocAsync", [&] {
    allocate(pointer, bytes, current_pool(hip::stream_of(stream)->device), stream);
  });
}

HIP_API hipError_t hipMallocFromPoolAsync(void** pointer, size_t bytes, hipMemPool_t pool,
                                          hipStream_t stream) {
  return api("hipMallocFromPoolAsync", [&] { allocate(pointer, bytes, pool_of(pool), stream); });
}

HIP_API hipError_t hipFreeAsync(void* pointer, hipStream_t stream_handle) {
  return api("hipFreeAsync", [&] {
    const auto stream = hip::stream_of(stream_handle);
    if (!pointer) fail(hipErrorInvalidValue, "dev_ptr must not be null");
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

HIP_API hipError_t hipDeviceGetDefaultMemPool(hipMemPool_t* pool, int device) {
  return api("hipDeviceGetDefaultMemPool", [&] {
    need(pool, "mem_pool");
    *pool = handle_of(rt::device(device).default_pool);
  });
}

HIP_API hipError_t hipDeviceGetMemPool(hipMemPool_t* pool, int device) {
  return api("hipDeviceGetMemPool", [&] {
    need(pool, "mem_pool");
    *pool = handle_of(current_pool(rt::device(device)));
  });
}

HIP_API hipError_t hipDeviceSetMemPool(int id, hipMemPool_t handle) {
  return api("hipDeviceSetMemPool", [&] {
    rt::Device& device = rt::device(id);
    auto pool = pool_of(handle);
    if (pool->device != id) {
      fail(hipErrorInvalidValue, "the pool is of device ", pool->device, ", not of device ", id);
    }
    const std::lock_guard lock(runtime().mutex);
    device.pool = std::move(pool);
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
    const auto pool = pool_of(handle);
    rt::Device& device = rt::device(pool->device);
    if (pool == device.default_pool)
      fail(hipErrorInvalidValue, "the default pool cannot be destroyed");
    {
      const std::lock_guard lock(runtime().mutex);
      if (device.pool == pool) device.pool = device.default_pool;
    }
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
      case 1:
      case 2:
      case 3:
        *static_cast<int*>(value) = pool->reuse[attribute];
        break;
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
      case 1:
      case 2:
      case 3:
        pool->reuse[attribute] = *static_cast<int*>(value);
        break;
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

HIP_API hipError_t hipMemPoolSetAccess(hipMemPool_t handle, const hipMemAccessDesc* list,
                                       size_t count) {
  return api("hipMemPoolSetAccess", [&] {
    const auto pool = pool_of(handle);
    if (count) need(list, "desc_list");
    for (size_t i = 0; i < count; ++i) {
      if (list[i].location.type != 1)
        fail(hipErrorInvalidValue, "location ", i, " is not a device");
      const int device = rt::device(list[i].location.id).id;
      if (device == pool->device) continue;
      runtime().allocator.set_peer(device, pool->device, list[i].flags != 0);
    }
  });
}

HIP_API hipError_t hipMemPoolGetAccess(int* flags, hipMemPool_t handle, hipMemLocation* location) {
  return api("hipMemPoolGetAccess", [&] {
    need(flags, "flags");
    need(location, "location");
    const auto pool = pool_of(handle);
    const int device = rt::device(location->id).id;
    *flags = device == pool->device || runtime().allocator.peer(device, pool->device) ? 3 : 0;
  });
}
