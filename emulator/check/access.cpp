#include "check/access.hpp"

#include <cstring>
#include <string_view>

#include "isa/data_format.hpp"

namespace emu::check {
namespace {

AccessPart& add(Access& out, Space space, const MemoryShape& shape, uint64_t lanes) {
  AccessPart& part = out.part[out.count++];
  part.space = space;
  part.loads = shape.loads;
  part.stores = shape.stores;
  part.bytes = shape.bytes;
  part.whole = true;
  part.first_row = 0;
  part.lanes = lanes;
  std::memset(part.good, part.bytes, sizeof part.good);
  return part;
}

// Lanes of which not all bytes are in range; `room` is how many follow a lane's address.
template <class F>
void clip(AccessPart& part, uint64_t lanes, F room, bool indivisible = false) {
  const uint64_t element = part.bytes < 4 ? part.bytes : 4;
  for (lanes &= part.lanes; lanes; lanes &= lanes - 1) {
    const int l = __builtin_ctzll(lanes);
    const uint64_t left = room(l) & ~(element - 1);
    if (left < part.bytes) part.good[l] = static_cast<uint8_t>(left), part.whole = false;
    if (!left || (left < part.bytes && (indivisible || (part.loads && part.stores))))  // atomics
      part.good[l] = 0, part.lanes &= ~(uint64_t{1} << l);
  }
}

// The rule of the machine: a dword is in range if offset, soffset and its end fit into num_records;
// with an index and a stride, if the index does.
void buffer(const Decoded& d, const MemoryShape& shape, const Pending& p, Access& out) {
  AccessPart& part = add(out, Space::global, shape, p.exec);
  if (shape.typed) {
    const bool own = info(d.op).family == Family::MTBUF;
    part.bytes = data_format(own ? d.dfmt : data_code(p.rsrc[3])).bytes;
    std::memset(part.good, part.bytes, sizeof part.good);
  }
  const uint64_t base = p.rsrc[0] | (p.rsrc[1] & 0xffffull) << 32;
  const uint64_t records = p.rsrc[2];
  const uint64_t stride14 = p.rsrc[1] >> 16 & 0x3fff;
  const bool swizzle = p.rsrc[1] >> 31, add_tid = p.rsrc[3] >> 23 & 1;
  const uint32_t format = p.rsrc[3] >> 15 & 15;
  const bool lane_index = add_tid && (swizzle || !d.idxen);
  const uint64_t stride = stride14 | (lane_index ? uint64_t{format} << 14 : 0);
  const uint64_t group = 8u << (p.rsrc[3] >> 21 & 3);
  const int bytes = part.bytes, element = bytes < 4 ? bytes : 4;
  const uint64_t align = bytes >= 4 ? ~uint64_t{3} : ~uint64_t{0};
  const uint32_t* const offsets = p.addr[d.idxen ? 1 : 0];
  if (!format && !add_tid) part.lanes = 0;
  if (!d.idxen && !add_tid) {
    uint64_t outside = 0;
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t at =
          uint64_t{(d.offen ? offsets[l] : 0) + static_cast<uint32_t>(d.offset)} + p.soffset;
      part.address[l] = ((base & align) + at) & align;
      outside |= static_cast<uint64_t>(at + bytes > records) << l;
    }
    const auto room = [&](int l) -> uint64_t {
      const uint64_t at =
          uint64_t{(d.offen ? offsets[l] : 0) + static_cast<uint32_t>(d.offset)} + p.soffset;
      return at >= records ? 0 : records - at;
    };
    clip(part, outside, room, shape.typed);
    return;
  }
  for (int l = 0; l < kLanes; ++l) {
    if (!(part.lanes >> l & 1)) continue;
    uint32_t index = d.idxen ? p.addr[0][l] : 0;
    const uint32_t offset = (d.offen ? offsets[l] : 0) + static_cast<uint32_t>(d.offset);
    uint64_t good = bytes;
    if (!(add_tid && !d.idxen)) {
      if (d.idxen && stride14) {
        if (index >= records) good = 0;
      } else {
        const uint64_t begin = uint64_t{offset} + p.soffset;
        const uint64_t room = begin >= records ? 0 : (records - begin) & ~uint64_t(element - 1);
        if (room < good) good = room;
        const bool indivisible = shape.typed || (part.stores && part.loads);
        if (indivisible && good < static_cast<uint64_t>(bytes)) good = 0;
      }
    }
    if (lane_index) index += l;
    const uint64_t at = swizzle && add_tid ? (index / group * stride + offset / 4 * 4) * group +
                                                 index % group * 4 + offset % 4
                                           : index * stride + offset;
    part.address[l] = ((base & align) + at + p.soffset) & align;
    part.good[l] = static_cast<uint8_t>(good);
    part.whole &= good == static_cast<uint64_t>(bytes);
    if (!good) part.lanes &= ~(uint64_t{1} << l);
  }
}

void global(const Decoded& d, const MemoryShape& shape, const Pending& p, Access& out) {
  AccessPart& part = add(out, Space::global, shape, p.exec);
  const bool wide = d.sbase == kNoOperand;
  for (int l = 0; l < kLanes; ++l)
    part.address[l] = p.base + static_cast<int64_t>(d.offset) + p.addr[0][l] +
                      (wide ? uint64_t{p.addr[1][l]} << 32 : 0);
}

// Lanes of a FLAT instruction may go to different spaces.
void flat(const Decoded& d, const MemoryShape& shape, const Pending& p, Access& out) {
  global(d, shape, p, out);
  uint64_t shared = 0, own = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t aperture = out.part[0].address[l] & ~uint64_t{0xffffffff};
    shared |= static_cast<uint64_t>(aperture == kSharedAperture) << l;
    own |= static_cast<uint64_t>(aperture == kPrivateAperture) << l;
  }
  const auto split = [&](Space space, uint64_t lanes) {
    if (!(lanes & p.exec)) return;
    AccessPart& part = add(out, space, shape, lanes & p.exec);
    for (int l = 0; l < kLanes; ++l) part.address[l] = out.part[0].address[l] & 0xffffffff;
  };
  split(Space::lds, shared);
  split(Space::scratch, own);
  out.part[0].lanes &= ~(shared | own);
}

void scratch(const Decoded& d, const MemoryShape& shape, const Pending& p, Access& out) {
  AccessPart& part = add(out, Space::scratch, shape, p.exec);
  for (int l = 0; l < kLanes; ++l)
    part.address[l] =
        (d.addr != kNoOperand ? p.addr[0][l] : 0) + p.soffset + static_cast<uint32_t>(d.offset);
}

void clip_to_lds(const Wave& w, AccessPart& part) {
  uint64_t outside = 0;
  for (int l = 0; l < kLanes; ++l)
    outside |= static_cast<uint64_t>(part.address[l] + part.bytes > w.lds_bytes) << l;
  clip(part, outside, [&](int l) -> uint64_t {
    return part.address[l] >= w.lds_bytes ? 0 : w.lds_bytes - part.address[l];
  });
}

void local(const Wave& w, const Decoded& d, const MemoryShape& shape, const Pending& p,
           Access& out) {
  AccessPart& part = add(out, Space::lds, shape, p.exec);
  for (int l = 0; l < kLanes; ++l)
    part.address[l] = shape.counter
                          ? static_cast<uint32_t>(d.offset)
                          : uint32_t{p.addr[0][l] + static_cast<uint32_t>(d.offset * shape.unit)};
  if (shape.counter) part.lanes = p.exec & -p.exec;
  if (info(d.op).has(kTwoOffsets)) {
    AccessPart& second = add(out, Space::lds, shape, p.exec);
    second.first_row = static_cast<uint8_t>(part.bytes / 4);
    for (int l = 0; l < kLanes; ++l)
      second.address[l] = uint32_t{p.addr[0][l] + static_cast<uint32_t>(d.offset1 * shape.unit)};
    clip_to_lds(w, second);
  }
  clip_to_lds(w, part);
}

// The LDS side of a load that goes there.
void dma(const Wave& w, const Decoded& d, const Pending& p, Access& out) {
  AccessPart& to = out.part[out.count++];
  const int size = (out.part[0].bytes + 3) / 4 * 4, stride = size > 4 ? 16 : 4;
  to.space = Space::lds;
  to.loads = false, to.stores = true;
  to.bytes = static_cast<uint8_t>(size);
  to.whole = true;
  to.first_row = 0;
  to.lanes = p.exec;
  const uint32_t mask = info(d.op).family == Family::MUBUF ? 0x3ffff : 0x3fffc;
  const uint64_t start = uint64_t{p.m0 & mask} + static_cast<int64_t>(d.offset);
  for (int l = 0; l < kLanes; ++l) {
    to.address[l] = start + uint64_t(stride) * l;
    to.good[l] = to.bytes;
    if (to.address[l] + size > w.lds_bytes) to.lanes &= ~(uint64_t{1} << l);
  }
}

void scalar(const MemoryShape& shape, const Pending& p, Access& out) {
  AccessPart& part = add(out, Space::global, shape, 1);
  part.address[0] = p.base & ~uint64_t{3};
  if (shape.descriptor) {
    const uint64_t stride = p.rsrc[1] >> 16 & 0x3fff;
    const uint64_t size = p.rsrc[2] * (stride ? stride : 1), offset = p.soffset & ~3u;
    const uint64_t room = offset >= size ? 0 : (size - offset) / 4 * 4;
    if (room < part.bytes) part.good[0] = static_cast<uint8_t>(room), part.whole = false;
    if (!room) part.lanes = 0;
  }
}

bool has(const Decoded& d, std::string_view part) {
  return std::string_view(info(d.op).name).find(part) != std::string_view::npos;
}

int bytes_per_lane(const Decoded& d) {
  const OpInfo& op = info(d.op);
  const bool transposes = has(d, "_tr_");
  for (const char* suffix : {"_ubyte", "_sbyte", "_byte", "_u8", "_i8", "_b8"})
    if (has(d, suffix) && !transposes) return 1;
  for (const char* suffix : {"_ushort", "_sshort", "_short", "_u16", "_i16", "_b16"})
    if (has(d, suffix) && !transposes) return 2;
  if (op.has(kLds) && !op.dst) return has(d, "dwordx4") ? 16 : has(d, "dwordx3") ? 12 : 4;
  const OperandType& t = op.src[0] ? op.src[0] : op.dst;
  const bool halves = (op.has(kAtomic) && has(d, "cmpswap"))  // old and new value
                      || (op.has(kTwoOffsets) && !op.src[0]);
  return t.dwords * 4 / (halves ? 2 : 1);
}

}  // namespace

MemoryShape memory_shape(const Decoded& d) {
  const OpInfo& op = info(d.op);
  MemoryShape s;
  switch (op.family) {
    case Family::SMEM:
      if (d.sbase == kNoOperand) return s;
      s.descriptor = has(d, "buffer");
      break;
    case Family::MUBUF:
    case Family::MTBUF:
      if (d.sbase == kNoOperand) return s;
      s.to_lds = d.lds;
      s.typed = has(d, "_format_");
      break;
    case Family::FLAT:
      break;
    case Family::GLOBAL:
    case Family::SCRATCH:
      s.to_lds = op.has(kLds);
      break;
    case Family::DS:
      if (d.op == Op::ds_bpermute_b32 || d.op == Op::ds_permute_b32 || d.op == Op::ds_swizzle_b32 ||
          (!op.dst && !op.src[0]) || op.has(kGws))
        return s;
      s.counter = d.op == Op::ds_append || d.op == Op::ds_consume;
      break;
    default:
      return s;
  }
  s.bytes = static_cast<uint8_t>(bytes_per_lane(d));
  const bool plain_store =
      op.has(kStore) || (op.family == Family::DS && op.src[0] && !op.has(kAtomic));
  s.loads = !plain_store;
  s.stores = plain_store || op.has(kAtomic) || s.counter;
  if (op.has(kTwoOffsets)) s.unit = static_cast<uint16_t>(s.bytes * (has(d, "st64") ? 64 : 1));
  return s;
}

void find_access(const Wave& w, const Decoded& d, const MemoryShape& shape, const Pending& p,
                 Access& out) {
  out.count = 0;
  switch (info(d.op).family) {
    case Family::SMEM:
      scalar(shape, p, out);
      break;
    case Family::MUBUF:
    case Family::MTBUF:
      buffer(d, shape, p, out);
      break;
    case Family::FLAT:
      flat(d, shape, p, out);
      break;
    case Family::GLOBAL:
      global(d, shape, p, out);
      break;
    case Family::SCRATCH:
      scratch(d, shape, p, out);
      break;
    default:
      local(w, d, shape, p, out);
  }
  if (shape.to_lds) dma(w, d, p, out);
}

}  // namespace emu::check
