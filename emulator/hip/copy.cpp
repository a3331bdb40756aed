#include "hip/copy.hpp"

#include <cstring>

#include "core/definedness.hpp"
#include "core/mutant.hpp"
#include "runtime/graph.hpp"

namespace hip {
namespace {

using rt::Block;
using rt::Failure;

// Copies from pageable memory larger than this complete during the call.
constexpr size_t kMostStaged = size_t{64} << 20;

// Bytes from the first to the last that the region covers.
uint64_t extent(const Region& region, const CopyShape& shape, const char* what) {
  unsigned __int128 total = shape.width;
  total += static_cast<unsigned __int128>(region.pitch) * (shape.rows - 1);
  if (total >> 63) fail(hipErrorInvalidValue, what, ": the region exceeds the address space");
  return static_cast<uint64_t>(total);
}

// Whether we may touch the memory ourselves. The caller's own memory, registered or not, may have
// been unmapped by other code.
bool is_ours(const std::optional<Block>& block) {
  return block && block->source == Block::Source::ours;
}

void need_device(const std::optional<Block>& block, uint64_t address, const char* what) {
  if (!block) {
    fail(hipErrorInvalidValue, what, ": ", rt::hex(address),
         " is host memory that HIP does not know, where the kind of copy says device memory");
  }
}

// False if the caller's side is not accessible.
bool copy_rows(const Region& to, bool to_ours, const Region& from, bool from_ours,
               const CopyShape& shape) {
  const rt::Rows target{to.address, shape.width, shape.rows, to.pitch};
  if (to_ours && from_ours) {
    for (size_t row = 0; row < shape.rows; ++row) {
      std::memmove(reinterpret_cast<void*>(to.address + row * to.pitch),
                   reinterpret_cast<const void*>(from.address + row * from.pitch), shape.width);
    }
    return true;
  }
  if (to_ours) return rt::read_host(target, from.address, from.pitch);
  if (from_ours) {
    return rt::write_host({from.address, shape.width, shape.rows, from.pitch}, to.address,
                          to.pitch);
  }
  return rt::copy_host(target, from.address, from.pitch);
}

// Reports a copy to the uninit check: memory that is not ours counts as written.
void tell_copied(const Region& to, const Region& from, const CopyShape& shape, bool from_ours) {
  for (size_t row = 0; row < shape.rows; ++row) {
    const uint64_t at = to.address + row * to.pitch;
    if (from_ours) {
      emu::definedness::copied(at, from.address + row * from.pitch, shape.width);
    } else {
      emu::definedness::written(at, shape.width);
    }
  }
}

// A block that existed at the call may have been freed when the work runs.
std::optional<Failure> check_again(uint64_t address, uint64_t bytes, const char* what) {
  try {
    if (rt::runtime().allocator.check(address, bytes, what)) return std::nullopt;
    return Failure{{hipErrorIllegalAddress,
                    rt::text(what, ": ", rt::hex(address), " was freed before the copy ran")}};
  } catch (const rt::Error& error) {
    return Failure{{hipErrorIllegalAddress, error.message + ", when the copy ran"}};
  }
}

// A call that waits reports its own failure itself: on a stream shared by threads it would
// otherwise reach any of them.
void submit(const std::shared_ptr<rt::Stream>& stream, rt::Work work, Wait wait) {
  if (wait == Wait::no) {
    stream->enqueue(std::move(work));
    return;
  }
  const auto own = std::make_shared<std::optional<Failure>>();  // outlives a wait that fails
  work.run = [own, run = std::move(work.run)]() -> std::optional<Failure> {
    *own = run();
    return std::nullopt;
  };
  rt::wait(stream->enqueue(std::move(work)));
  throw_report(rt::take_report(*stream));
  if (*own) throw(*own)->error;
}

// A copy that is checked: what runs.
struct Prepared {
  std::optional<Block> to_block, from_block;
  uint64_t to_bytes, from_bytes;

  std::function<std::optional<Failure>()> work(
      const rt::Device& device, const Region& to, const Region& from, const CopyShape& shape,
      const std::shared_ptr<std::vector<uint8_t>>& staged = nullptr) const;
};

std::function<std::optional<Failure>()> Prepared::work(
    const rt::Device& device, const Region& to, const Region& from, const CopyShape& shape,
    const std::shared_ptr<std::vector<uint8_t>>& staged) const {
  return [=, *this, device = &device]() -> std::optional<Failure> {
    const auto keep_mapped = device->memory.snapshot();
    if (to_block) {
      if (auto failure = check_again(to.address, to_bytes, "dst")) return failure;
    }
    if (from_block) {
      if (auto failure = check_again(from.address, from_bytes, "src")) return failure;
    }
    if (!copy_rows(to, is_ours(to_block), from, staged || is_ours(from_block), shape)) {
      return Failure{
          {hipErrorInvalidValue, rt::text("host memory of the copy is not accessible: dst ",
                                          rt::hex(to.address), " (", to_bytes, " bytes), src ",
                                          rt::hex(from.address), " (", from_bytes, " bytes)")}};
    }
    if (emu::definedness::followed() && is_ours(to_block)) {
      tell_copied(to, from, shape, is_ours(from_block));
    }
    return std::nullopt;
  };
}

Prepared prepare(const Region& to, const Region& from, const CopyShape& shape, hipMemcpyKind kind) {
  need(reinterpret_cast<void*>(to.address), "dst");
  need(reinterpret_cast<void*>(from.address), "src");
  const uint64_t to_bytes = extent(to, shape, "dst"), from_bytes = extent(from, shape, "src");
  const rt::Allocator& allocator = rt::runtime().allocator;
  const auto to_block = allocator.check(to.address, to_bytes, "dst");
  const auto from_block = allocator.check(from.address, from_bytes, "src");
  const bool both = kind == hipMemcpyDeviceToDevice || kind == hipMemcpyDeviceToDeviceNoCU;
  if (both || kind == hipMemcpyHostToDevice) need_device(to_block, to.address, "dst");
  if (both || kind == hipMemcpyDeviceToHost) need_device(from_block, from.address, "src");
  return {to_block, from_block, to_bytes, from_bytes};
}

void need_kind(hipMemcpyKind kind) {
  const bool known = (kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) ||
                     kind == hipMemcpyDeviceToDeviceNoCU;
  if (!known) fail(hipErrorInvalidMemcpyDirection, "kind ", int{kind}, " is unknown");
}

}  // namespace

std::function<std::optional<Failure>()> copy_work(const rt::Device& device, const Region& to,
                                                  const Region& from, const CopyShape& shape,
                                                  hipMemcpyKind kind) {
  need_kind(kind);
  if (!shape.width || !shape.rows) return [] { return std::nullopt; };
  return prepare(to, from, shape, kind).work(device, to, from, shape);
}

void copy(const std::shared_ptr<rt::Stream>& stream, Region to, Region from, CopyShape shape,
          hipMemcpyKind kind, Wait wait) {
  need_kind(kind);
  const bool captured = rt::capture_of(*stream) != nullptr;
  if (wait == Wait::yes) rt::refuse_unsafe("a copy that waits");
  if (shape.width && shape.rows) {
    const Prepared prepared = prepare(to, from, shape, kind);
    // Copies from and to the caller's pageable memory do not use it after the call returns: what
    // is read from it is read now, if it is small enough to store, and what is written to it is
    // waited for. In a graph, it is used at each launch.
    std::shared_ptr<std::vector<uint8_t>> staged;
    if (wait == Wait::no && !prepared.to_block && !captured) wait = Wait::yes;
    if (wait == Wait::no && !prepared.from_block && !captured) {
      if (shape.width * shape.rows > kMostStaged) {
        wait = Wait::yes;
      } else {
        staged = std::make_shared<std::vector<uint8_t>>(shape.width * shape.rows);
        const Region to_staged{address_of(staged->data()), shape.width};
        if (!copy_rows(to_staged, true, from, false, shape)) {
          fail(hipErrorInvalidValue, "host memory of the copy is not accessible: src ",
               rt::hex(from.address), " (", prepared.from_bytes, " bytes)");
        }
        from = to_staged;
      }
    }
    submit(stream, {prepared.work(stream->device, to, from, shape, staged), {}}, wait);
  } else if (wait == Wait::yes) {
    synchronize(*stream);
  }
}

std::function<std::optional<Failure>()> fill_work(const rt::Device& device, const Region& to,
                                                  const CopyShape& shape, uint32_t value,
                                                  size_t value_bytes) {
  if (!shape.width || !shape.rows) return [] { return std::nullopt; };
  need(reinterpret_cast<void*>(to.address), "dst");
  if (to.address % value_bytes) {
    fail(hipErrorInvalidValue, "dst must be aligned to ", value_bytes, " bytes; got ",
         rt::hex(to.address));
  }
  const uint64_t bytes = extent(to, shape, "dst");
  need_device(rt::runtime().allocator.check(to.address, bytes, "dst"), to.address, "dst");
  return [=, device = &device]() -> std::optional<Failure> {
    const auto keep_mapped = device->memory.snapshot();
    if (auto failure = check_again(to.address, bytes, "dst")) return failure;
    for (size_t row = 0; row < shape.rows; ++row) {
      auto* at = reinterpret_cast<uint8_t*>(to.address + row * to.pitch);
      if (value_bytes == 1) {
        std::memset(at, static_cast<int>(value), shape.width);
      } else {
        for (size_t i = 0; i < shape.width; i += value_bytes)
          std::memcpy(at + i, &value, value_bytes);
      }
      emu::definedness::written(reinterpret_cast<uint64_t>(at), shape.width);
    }
    return std::nullopt;
  };
}

void fill(const std::shared_ptr<rt::Stream>& stream, Region to, CopyShape shape, uint32_t value,
          size_t value_bytes, Wait wait) {
  if (wait == Wait::yes) rt::refuse_unsafe("a memset that waits");
  if (!shape.width || !shape.rows) return;
  submit(stream, {fill_work(stream->device, to, shape, value, value_bytes), {}}, wait);
}

}  // namespace hip

namespace {

using hip::address_of;
using hip::api;
using hip::fail;
using hip::need;
using hip::stream_of;
using hip::Wait;

void copy1(hipStream_t stream, void* to, const void* from, size_t bytes, hipMemcpyKind kind,
           Wait wait) {
  hip::copy(stream_of(stream), {address_of(to)}, {address_of(from)}, {bytes}, kind, wait);
}

void copy2(hipStream_t stream, void* to, size_t to_pitch, const void* from, size_t from_pitch,
           size_t width, size_t height, hipMemcpyKind kind, Wait wait) {
  if (width && height && (width > to_pitch || width > from_pitch)) {
    fail(hipErrorInvalidPitchValue, "width ", width, " must not exceed dpitch ", to_pitch,
         " or spitch ", from_pitch);
  }
  hip::copy(stream_of(stream), {address_of(to), to_pitch}, {address_of(from), from_pitch},
            {width, height}, kind, wait);
}

void fill1(hipStream_t stream, void* to, uint32_t value, size_t value_bytes, size_t count,
           Wait wait) {
  if (count > SIZE_MAX / value_bytes) fail(hipErrorInvalidValue, "count ", count, " is too large");
  hip::fill(stream_of(stream), {address_of(to)}, {count * value_bytes}, value, value_bytes, wait);
}

void fill2(hipStream_t stream, void* to, size_t pitch, int value, size_t width, size_t height,
           Wait wait) {
  if (height > 1 && width > pitch) {
    fail(hipErrorInvalidValue, "width ", width, " must not exceed the pitch ", pitch);
  }
  hip::fill(stream_of(stream), {address_of(to), pitch}, {width, height},
            static_cast<uint32_t>(value), 1, wait);
}

void copy_peer(hipStream_t stream, void* to, int to_device, const void* from, int from_device,
               size_t bytes, Wait wait) {
  const auto need_on = [](const void* at, int device, const char* what) {
    rt::device(device);
    const auto block = rt::runtime().allocator.find(address_of(at));
    if (block && block->kind == emu::Allocation::Kind::device && block->device != device) {
      fail(hipErrorInvalidValue, what, ": ", rt::hex(at), " is memory of device ", block->device,
           ", not of device ", device);
    }
  };
  need_on(to, to_device, "dst");
  need_on(from, from_device, "src");
  if (emu::is_mutant("peer_access")) bytes /= 2;
  copy1(stream, to, from, bytes, hipMemcpyDeviceToDevice, wait);
}

}  // namespace

HIP_API hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind kind) {
  return api("hipMemcpy", [&] { copy1(nullptr, dst, src, bytes, kind, Wait::yes); });
}
HIP_API hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                                  hipStream_t stream) {
  return api("hipMemcpyAsync", [&] { copy1(stream, dst, src, bytes, kind, Wait::no); });
}
HIP_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t dst, const void* src, size_t bytes,
                                      hipStream_t stream) {
  return api("hipMemcpyHtoDAsync",
             [&] { copy1(stream, dst, src, bytes, hipMemcpyHostToDevice, Wait::no); });
}
HIP_API hipError_t hipMemcpyPeer(void* dst, int dst_device, const void* src, int src_device,
                                 size_t bytes) {
  return api("hipMemcpyPeer",
             [&] { copy_peer(nullptr, dst, dst_device, src, src_device, bytes, Wait::yes); });
}
HIP_API hipError_t hipMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device,
                                      size_t bytes, hipStream_t stream) {
  return api("hipMemcpyPeerAsync",
             [&] { copy_peer(stream, dst, dst_device, src, src_device, bytes, Wait::no); });
}
HIP_API hipError_t hipMemcpy2D(void* dst, size_t dpitch, const void* src, size_t spitch,
                               size_t width, size_t height, hipMemcpyKind kind) {
  return api("hipMemcpy2D",
             [&] { copy2(nullptr, dst, dpitch, src, spitch, width, height, kind, Wait::yes); });
}
HIP_API hipError_t hipMemcpy2DAsync(void* dst, size_t dpitch, const void* src, size_t spitch,
                                    size_t width, size_t height, hipMemcpyKind kind,
                                    hipStream_t stream) {
  return api("hipMemcpy2DAsync",
             [&] { copy2(stream, dst, dpitch, src, spitch, width, height, kind, Wait::no); });
}
HIP_API hipError_t hipMemset(void* dst, int value, size_t bytes) {
  return api("hipMemset",
             [&] { fill1(nullptr, dst, static_cast<uint32_t>(value), 1, bytes, Wait::yes); });
}
HIP_API hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream) {
  return api("hipMemsetAsync",
             [&] { fill1(stream, dst, static_cast<uint32_t>(value), 1, bytes, Wait::no); });
}
HIP_API hipError_t hipMemsetD8Async(hipDeviceptr_t dst, unsigned char value, size_t count,
                                    hipStream_t stream) {
  return api("hipMemsetD8Async", [&] { fill1(stream, dst, value, 1, count, Wait::no); });
}
HIP_API hipError_t hipMemsetD16Async(hipDeviceptr_t dst, unsigned short value, size_t count,
                                     hipStream_t stream) {
  return api("hipMemsetD16Async", [&] { fill1(stream, dst, value, 2, count, Wait::no); });
}
HIP_API hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, size_t count,
                                     hipStream_t stream) {
  return api("hipMemsetD32Async",
             [&] { fill1(stream, dst, static_cast<uint32_t>(value), 4, count, Wait::no); });
}
HIP_API hipError_t hipMemset2D(void* dst, size_t pitch, int value, size_t width, size_t height) {
  return api("hipMemset2D", [&] { fill2(nullptr, dst, pitch, value, width, height, Wait::yes); });
}
HIP_API hipError_t hipMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height,
                                    hipStream_t stream) {
  return api("hipMemset2DAsync",
             [&] { fill2(stream, dst, pitch, value, width, height, Wait::no); });
}
