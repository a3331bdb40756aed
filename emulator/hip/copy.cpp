#include "hip/copy.hpp"

#include <cstring>

#include "core/definedness.hpp"

namespace hip {
namespace {

using rt::Block;
using rt::Failure;

// Larger copies from pageable memory than this one run to their end at the call.
constexpr size_t kMostStaged = size_t{64} << 20;

// Bytes from the first to the last that the region covers.
uint64_t extent(const Region& region, const CopyShape& shape, const char* what) {
  unsigned __int128 total = shape.width;
  total += static_cast<unsigned __int128>(region.pitch) * (shape.rows - 1);
  total += static_cast<unsigned __int128>(region.layer_pitch) * (shape.layers - 1);
  if (total >> 63) fail(hipErrorInvalidValue, what, ": the region exceeds the address space");
  return static_cast<uint64_t>(total);
}

// Whether we may touch the memory ourselves. The caller's own memory, registered or not, may have
// been unmapped behind our back.
bool is_ours(const std::optional<Block>& block) {
  return block && block->source == Block::Source::ours;
}

void need_device(const std::optional<Block>& block, uint64_t address, const char* what) {
  if (!block) {
    fail(hipErrorInvalidValue, what, ": ", rt::hex(address),
         " is host memory that HIP does not know, where the kind of copy says device memory");
  }
}

// One layer. False if the caller's side is not accessible.
bool copy_layer(uint64_t to, bool to_ours, uint64_t from, bool from_ours, const Region& to_region,
                const Region& from_region, const CopyShape& shape) {
  const rt::Rows target{to, shape.width, shape.rows, to_region.pitch};
  if (to_ours && from_ours) {
    for (size_t row = 0; row < shape.rows; ++row) {
      std::memmove(reinterpret_cast<void*>(to + row * to_region.pitch),
                   reinterpret_cast<const void*>(from + row * from_region.pitch), shape.width);
    }
    return true;
  }
  if (to_ours) return rt::read_host(target, from, from_region.pitch);
  if (from_ours) {
    return rt::write_host({from, shape.width, shape.rows, from_region.pitch}, to, to_region.pitch);
  }
  return rt::copy_host(target, from, from_region.pitch);
}

// What the uninit check hears of a copy: memory that is not ours counts as written.
void tell_copied(const Region& to, const Region& from, const CopyShape& shape, bool from_ours) {
  for (size_t layer = 0; layer < shape.layers; ++layer) {
    for (size_t row = 0; row < shape.rows; ++row) {
      const uint64_t at = to.address + layer * to.layer_pitch + row * to.pitch;
      const uint64_t source = from.address + layer * from.layer_pitch + row * from.pitch;
      if (from_ours) {
        emu::definedness::copied(at, source, shape.width);
      } else {
        emu::definedness::written(at, shape.width);
      }
    }
  }
}

// A block that was there at the call may be gone when the work runs.
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

}  // namespace

void copy(const std::shared_ptr<rt::Stream>& stream, Region to, Region from, CopyShape shape,
          hipMemcpyKind kind, Wait wait) {
  const bool known_kind = (kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) ||
                          kind == hipMemcpyDeviceToDeviceNoCU;
  if (!known_kind) fail(hipErrorInvalidMemcpyDirection, "kind ", int{kind}, " is unknown");
  const bool empty = !shape.width || !shape.rows || !shape.layers;
  if (!empty) {
    need(reinterpret_cast<void*>(to.address), "dst");
    need(reinterpret_cast<void*>(from.address), "src");
    const uint64_t to_bytes = extent(to, shape, "dst"), from_bytes = extent(from, shape, "src");
    const rt::Allocator& allocator = rt::runtime().allocator;
    const auto to_block = allocator.check(to.address, to_bytes, "dst");
    const auto from_block = allocator.check(from.address, from_bytes, "src");
    const bool both = kind == hipMemcpyDeviceToDevice || kind == hipMemcpyDeviceToDeviceNoCU;
    if (both || kind == hipMemcpyHostToDevice) need_device(to_block, to.address, "dst");
    if (both || kind == hipMemcpyDeviceToHost) need_device(from_block, from.address, "src");
    // Copies from and to the caller's pageable memory are done with it when the call returns: what
    // is read from it is read now, if it is not too much to keep, and what is written to it is
    // waited for.
    std::shared_ptr<std::vector<uint8_t>> staged;
    if (wait == Wait::no && !to_block) wait = Wait::yes;
    if (wait == Wait::no && !from_block) {
      const size_t row_bytes = shape.width * shape.rows;
      if (row_bytes * shape.layers > kMostStaged) {
        wait = Wait::yes;
      } else {
        staged = std::make_shared<std::vector<uint8_t>>(row_bytes * shape.layers);
        const Region to_staged{address_of(staged->data()), shape.width, row_bytes};
        for (size_t layer = 0; layer < shape.layers; ++layer) {
          if (!copy_layer(to_staged.address + layer * row_bytes, true,
                          from.address + layer * from.layer_pitch, false, to_staged, from, shape)) {
            fail(hipErrorInvalidValue, "host memory of the copy is not accessible: src ",
                 rt::hex(from.address), " (", from_bytes, " bytes)");
          }
        }
        from = to_staged;
      }
    }
    rt::Work work;
    work.run = [=, device = &stream->device]() -> std::optional<Failure> {
      const auto keep_mapped = device->memory.snapshot();
      if (to_block) {
        if (auto failure = check_again(to.address, to_bytes, "dst")) return failure;
      }
      if (from_block) {
        if (auto failure = check_again(from.address, from_bytes, "src")) return failure;
      }
      for (size_t layer = 0; layer < shape.layers; ++layer) {
        if (!copy_layer(to.address + layer * to.layer_pitch, is_ours(to_block),
                        from.address + layer * from.layer_pitch, staged || is_ours(from_block), to,
                        from, shape)) {
          return Failure{
              {hipErrorInvalidValue, rt::text("host memory of the copy is not accessible: dst ",
                                              rt::hex(to.address), " (", to_bytes, " bytes), src ",
                                              rt::hex(from.address), " (", from_bytes, " bytes)")}};
        }
      }
      if (emu::definedness::followed() && is_ours(to_block)) {
        tell_copied(to, from, shape, is_ours(from_block));
      }
      return std::nullopt;
    };
    submit(stream, std::move(work), wait);
  } else if (wait == Wait::yes) {
    synchronize(*stream);
  }
}

void fill(const std::shared_ptr<rt::Stream>& stream, Region to, CopyShape shape, uint32_t value,
          size_t value_bytes, Wait wait) {
  if (!shape.width || !shape.rows || !shape.layers) return;
  need(reinterpret_cast<void*>(to.address), "dst");
  if (to.address % value_bytes) {
    fail(hipErrorInvalidValue, "dst must be aligned to ", value_bytes, " bytes; got ",
         rt::hex(to.address));
  }
  const uint64_t bytes = extent(to, shape, "dst");
  need_device(rt::runtime().allocator.check(to.address, bytes, "dst"), to.address, "dst");
  rt::Work work;
  work.run = [=, device = &stream->device]() -> std::optional<Failure> {
    const auto keep_mapped = device->memory.snapshot();
    if (auto failure = check_again(to.address, bytes, "dst")) return failure;
    for (size_t layer = 0; layer < shape.layers; ++layer) {
      for (size_t row = 0; row < shape.rows; ++row) {
        auto* at = reinterpret_cast<uint8_t*>(to.address + layer * to.layer_pitch + row * to.pitch);
        if (value_bytes == 1) {
          std::memset(at, static_cast<int>(value), shape.width);
        } else {
          for (size_t i = 0; i < shape.width; i += value_bytes)
            std::memcpy(at + i, &value, value_bytes);
        }
        emu::definedness::written(reinterpret_cast<uint64_t>(at), shape.width);
      }
    }
    return std::nullopt;
  };
  submit(stream, std::move(work), wait);
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

void copy3(hipStream_t stream, const hipMemcpy3DParms* p, Wait wait) {
  need(p, "p");
  if (p->srcArray || p->dstArray) fail(hipErrorNotSupported, "arrays are not emulated");
  const hipExtent& e = p->extent;
  const auto region = [&](const hipPitchedPtr& base, const hipPos& pos, const char* what) {
    const size_t rows = base.ysize ? base.ysize : e.height;
    if (e.width && (pos.x + e.width > base.pitch || pos.y + e.height > rows)) {
      fail(hipErrorInvalidValue, what, ": position and extent leave the pitch of ", base.pitch,
           " bytes or the ", rows, " rows");
    }
    return hip::Region{address_of(base.ptr) + pos.x + base.pitch * (pos.y + rows * pos.z),
                       base.pitch, base.pitch * rows};
  };
  hip::copy(stream_of(stream), region(p->dstPtr, p->dstPos, "dst"),
            region(p->srcPtr, p->srcPos, "src"), {e.width, e.height, e.depth}, p->kind, wait);
}

void copy_param(hipStream_t stream, const hip_Memcpy2D* p, Wait wait) {
  need(p, "pCopy");
  const auto base = [](hipMemoryType type, const void* host, const void* device, const char* what) {
    if (type == hipMemoryTypeHost) return address_of(host);
    if (type == hipMemoryTypeDevice || type == hipMemoryTypeUnified) return address_of(device);
    fail(hipErrorInvalidValue, what, ": memory type ", int{type}, " is not emulated");
  };
  const uint64_t from = base(p->srcMemoryType, p->srcHost, p->srcDevice, "src");
  const uint64_t to = base(p->dstMemoryType, p->dstHost, p->dstDevice, "dst");
  const size_t from_pitch = p->srcPitch ? p->srcPitch : p->WidthInBytes;
  const size_t to_pitch = p->dstPitch ? p->dstPitch : p->WidthInBytes;
  copy2(stream, reinterpret_cast<void*>(to + p->dstXInBytes + p->dstY * to_pitch), to_pitch,
        reinterpret_cast<const void*>(from + p->srcXInBytes + p->srcY * from_pitch), from_pitch,
        p->WidthInBytes, p->Height, hipMemcpyDefault, wait);
}

void fill1(hipStream_t stream, void* to, uint32_t value, size_t value_bytes, size_t count,
           Wait wait) {
  if (count > SIZE_MAX / value_bytes) fail(hipErrorInvalidValue, "count ", count, " is too large");
  hip::fill(stream_of(stream), {address_of(to)}, {count * value_bytes}, value, value_bytes, wait);
}

void fill2(hipStream_t stream, void* to, size_t pitch, uint32_t value, size_t value_bytes,
           size_t width, size_t height, Wait wait) {
  const size_t bytes = width * value_bytes;
  if (width > SIZE_MAX / value_bytes || (height > 1 && bytes > pitch)) {
    fail(hipErrorInvalidValue, "width ", width, " must not exceed the pitch ", pitch);
  }
  hip::fill(stream_of(stream), {address_of(to), pitch}, {bytes, height}, value, value_bytes, wait);
}

void fill3(hipStream_t stream, const hipPitchedPtr& to, int value, const hipExtent& e, Wait wait) {
  if (e.width > to.pitch || (to.ysize && e.height > to.ysize)) {
    fail(hipErrorInvalidValue, "the extent exceeds the pitched memory");
  }
  const size_t rows = to.ysize ? to.ysize : e.height;
  hip::fill(stream_of(stream), {address_of(to.ptr), to.pitch, to.pitch * rows},
            {e.width, e.height, e.depth}, static_cast<uint32_t>(value), 1, wait);
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
  copy1(stream, to, from, bytes, hipMemcpyDeviceToDevice, wait);
}

}  // namespace

HIP_API hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind kind) {
  return api("hipMemcpy", [&] { copy1(nullptr, dst, src, bytes, kind, Wait::yes); });
}
HIP_API hipError_t hipMemcpyWithStream(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                                       hipStream_t stream) {
  return api("hipMemcpyWithStream", [&] { copy1(stream, dst, src, bytes, kind, Wait::yes); });
}
HIP_API hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                                  hipStream_t stream) {
  return api("hipMemcpyAsync", [&] { copy1(stream, dst, src, bytes, kind, Wait::no); });
}
HIP_API hipError_t hipMemcpyHtoD(hipDeviceptr_t dst, const void* src, size_t bytes) {
  return api("hipMemcpyHtoD",
             [&] { copy1(nullptr, dst, src, bytes, hipMemcpyHostToDevice, Wait::yes); });
}
HIP_API hipError_t hipMemcpyDtoH(void* dst, hipDeviceptr_t src, size_t bytes) {
  return api("hipMemcpyDtoH",
             [&] { copy1(nullptr, dst, src, bytes, hipMemcpyDeviceToHost, Wait::yes); });
}
HIP_API hipError_t hipMemcpyDtoD(hipDeviceptr_t dst, hipDeviceptr_t src, size_t bytes) {
  return api("hipMemcpyDtoD",
             [&] { copy1(nullptr, dst, src, bytes, hipMemcpyDeviceToDevice, Wait::yes); });
}
HIP_API hipError_t hipMemcpyHtoDAsync(hipDeviceptr_t dst, const void* src, size_t bytes,
                                      hipStream_t stream) {
  return api("hipMemcpyHtoDAsync",
             [&] { copy1(stream, dst, src, bytes, hipMemcpyHostToDevice, Wait::no); });
}
HIP_API hipError_t hipMemcpyDtoHAsync(void* dst, hipDeviceptr_t src, size_t bytes,
                                      hipStream_t stream) {
  return api("hipMemcpyDtoHAsync",
             [&] { copy1(stream, dst, src, bytes, hipMemcpyDeviceToHost, Wait::no); });
}
HIP_API hipError_t hipMemcpyDtoDAsync(hipDeviceptr_t dst, hipDeviceptr_t src, size_t bytes,
                                      hipStream_t stream) {
  return api("hipMemcpyDtoDAsync",
             [&] { copy1(stream, dst, src, bytes, hipMemcpyDeviceToDevice, Wait::no); });
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
HIP_API hipError_t hipMemcpyParam2D(const hip_Memcpy2D* p) {
  return api("hipMemcpyParam2D", [&] { copy_param(nullptr, p, Wait::yes); });
}
HIP_API hipError_t hipDrvMemcpy2DUnaligned(const hip_Memcpy2D* p) {
  return api("hipDrvMemcpy2DUnaligned", [&] { copy_param(nullptr, p, Wait::yes); });
}
HIP_API hipError_t hipMemcpyParam2DAsync(const hip_Memcpy2D* p, hipStream_t stream) {
  return api("hipMemcpyParam2DAsync", [&] { copy_param(stream, p, Wait::no); });
}
HIP_API hipError_t hipMemcpy3D(const hipMemcpy3DParms* p) {
  return api("hipMemcpy3D", [&] { copy3(nullptr, p, Wait::yes); });
}
HIP_API hipError_t hipMemcpy3DAsync(const hipMemcpy3DParms* p, hipStream_t stream) {
  return api("hipMemcpy3DAsync", [&] { copy3(stream, p, Wait::no); });
}

HIP_API hipError_t hipMemset(void* dst, int value, size_t bytes) {
  return api("hipMemset",
             [&] { fill1(nullptr, dst, static_cast<uint32_t>(value), 1, bytes, Wait::yes); });
}
HIP_API hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream) {
  return api("hipMemsetAsync",
             [&] { fill1(stream, dst, static_cast<uint32_t>(value), 1, bytes, Wait::no); });
}
HIP_API hipError_t hipMemsetD8(hipDeviceptr_t dst, unsigned char value, size_t count) {
  return api("hipMemsetD8", [&] { fill1(nullptr, dst, value, 1, count, Wait::yes); });
}
HIP_API hipError_t hipMemsetD8Async(hipDeviceptr_t dst, unsigned char value, size_t count,
                                    hipStream_t stream) {
  return api("hipMemsetD8Async", [&] { fill1(stream, dst, value, 1, count, Wait::no); });
}
HIP_API hipError_t hipMemsetD16(hipDeviceptr_t dst, unsigned short value, size_t count) {
  return api("hipMemsetD16", [&] { fill1(nullptr, dst, value, 2, count, Wait::yes); });
}
HIP_API hipError_t hipMemsetD16Async(hipDeviceptr_t dst, unsigned short value, size_t count,
                                     hipStream_t stream) {
  return api("hipMemsetD16Async", [&] { fill1(stream, dst, value, 2, count, Wait::no); });
}
HIP_API hipError_t hipMemsetD32(hipDeviceptr_t dst, int value, size_t count) {
  return api("hipMemsetD32",
             [&] { fill1(nullptr, dst, static_cast<uint32_t>(value), 4, count, Wait::yes); });
}
HIP_API hipError_t hipMemsetD32Async(hipDeviceptr_t dst, int value, size_t count,
                                     hipStream_t stream) {
  return api("hipMemsetD32Async",
             [&] { fill1(stream, dst, static_cast<uint32_t>(value), 4, count, Wait::no); });
}
HIP_API hipError_t hipMemset2D(void* dst, size_t pitch, int value, size_t width, size_t height) {
  return api("hipMemset2D", [&] {
    fill2(nullptr, dst, pitch, static_cast<uint32_t>(value), 1, width, height, Wait::yes);
  });
}
HIP_API hipError_t hipMemset2DAsync(void* dst, size_t pitch, int value, size_t width, size_t height,
                                    hipStream_t stream) {
  return api("hipMemset2DAsync", [&] {
    fill2(stream, dst, pitch, static_cast<uint32_t>(value), 1, width, height, Wait::no);
  });
}
HIP_API hipError_t hipMemset3D(hipPitchedPtr dst, int value, hipExtent extent) {
  return api("hipMemset3D", [&] { fill3(nullptr, dst, value, extent, Wait::yes); });
}
HIP_API hipError_t hipMemset3DAsync(hipPitchedPtr dst, int value, hipExtent extent,
                                    hipStream_t stream) {
  return api("hipMemset3DAsync", [&] { fill3(stream, dst, value, extent, Wait::no); });
}
// Width counts elements here, in the driver API's manner.
HIP_API hipError_t hipMemsetD2D8(hipDeviceptr_t dst, size_t pitch, unsigned char value,
                                 size_t width, size_t height) {
  return api("hipMemsetD2D8",
             [&] { fill2(nullptr, dst, pitch, value, 1, width, height, Wait::yes); });
}
HIP_API hipError_t hipMemsetD2D16(hipDeviceptr_t dst, size_t pitch, unsigned short value,
                                  size_t width, size_t height) {
  return api("hipMemsetD2D16",
             [&] { fill2(nullptr, dst, pitch, value, 2, width, height, Wait::yes); });
}
HIP_API hipError_t hipMemsetD2D32(hipDeviceptr_t dst, size_t pitch, unsigned value, size_t width,
                                  size_t height) {
  return api("hipMemsetD2D32",
             [&] { fill2(nullptr, dst, pitch, value, 4, width, height, Wait::yes); });
}
HIP_API hipError_t hipMemsetD2D8Async(hipDeviceptr_t dst, size_t pitch, unsigned char value,
                                      size_t width, size_t height, hipStream_t stream) {
  return api("hipMemsetD2D8Async",
             [&] { fill2(stream, dst, pitch, value, 1, width, height, Wait::no); });
}
HIP_API hipError_t hipMemsetD2D16Async(hipDeviceptr_t dst, size_t pitch, unsigned short value,
                                       size_t width, size_t height, hipStream_t stream) {
  return api("hipMemsetD2D16Async",
             [&] { fill2(stream, dst, pitch, value, 2, width, height, Wait::no); });
}
HIP_API hipError_t hipMemsetD2D32Async(hipDeviceptr_t dst, size_t pitch, unsigned value,
                                       size_t width, size_t height, hipStream_t stream) {
  return api("hipMemsetD2D32Async",
             [&] { fill2(stream, dst, pitch, value, 4, width, height, Wait::no); });
}
