#include "isa/memory.hpp"

#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

EMU_INLINE void void_lanes(Reach& r) {
  r.uniform = false;
  r.partial_count = 0;
  std::memset(r.spare, 0, sizeof r.spare);
  for (int l = 0; l < kLanes; ++l) r.at[l] = r.spare[l];
}

// Points lane l at [address, address + bytes), once it is known to lie in an allocation.
EMU_INLINE bool global_lane(Wave& w, const Inst* i, int l, uint64_t address, int bytes, bool store,
                            Reach& r) {
  if (!w.covers(address, address + bytes) && !find_memory(w, address, address + bytes))
    return fault_address(w, i, l, address, bytes, store), false;
  r.at[l] = reinterpret_cast<uint8_t*>(address);
  return true;
}

// A lane of which only the first `good` bytes exist; the rest reads as zero.
EMU_INLINE void partial_lane(int l, uint8_t* address, int good, bool store, Reach& r) {
  if (store)
    r.partial[r.partial_count++] = {static_cast<uint8_t>(l), static_cast<uint8_t>(good), address};
  else
    std::memcpy(r.spare[l], address, good);
}

// The scratch address of byte `offset` of lane l: dwords of neighbouring lanes lie side by side.
EMU_INLINE uint8_t* scratch_byte(const Wave& w, int l, uint32_t offset) {
  return w.scratch + (size_t{offset / 4} * kLanes + l) * 4 + offset % 4;
}

// Scratch is interleaved, so loads are gathered into `spare`; stores are written from it byte by
// byte, as partial lanes of one dword (or less) each would not fit the list.
EMU_INLINE bool scratch_lane(Wave& w, const Inst* i, int l, uint64_t offset, int bytes, bool store,
                             const Pending& p, Reach& r) {
  if (offset + bytes > w.scratch_bytes)
    return fault(w, i, FaultKind::illegal_address, "scratch access beyond the private segment"),
           false;
  for (int b = 0; b < bytes; ++b) {
    uint8_t* const at = scratch_byte(w, l, static_cast<uint32_t>(offset) + b);
    if (store)
      *at = static_cast<uint8_t>(p.data[b / 4][l] >> (8 * (b % 4)));
    else
      r.spare[l][b] = *at;
  }
  return true;
}

}  // namespace

void blend_rows(uint32_t* d, const uint32_t* from, uint64_t mask, int n) {
  for (int j = 0; j < n; ++j) blend(d + j * kLanes, from + j * kLanes, mask);
}

// ---- buffers ------------------------------------------------------------------------------------

// Inst: imm offset, x flags. Pending: rsrc, soffset, addr[0] index or offset, addr[1] offset.
// An element (dword) is in range if byte offset + soffset + its end does not exceed num_records;
// with an index and a stride, if the index is below num_records. The low address bits are ignored.
bool reach_buffer(Wave& w, const Pending& p, int bytes, bool store, Reach& r) {
  const Inst* const i = p.inst;
  const uint64_t base = p.rsrc[0] | (p.rsrc[1] & 0xffffull) << 32;
  const uint64_t records = p.rsrc[2];
  const bool idxen = i->x & 1, offen = i->x & 2;
  const bool add_tid = p.rsrc[3] >> 23 & 1;
  const uint32_t format = p.rsrc[3] >> 15 & 15;
  const uint64_t align = bytes >= 4 ? ~uint64_t{3} : ~uint64_t{0};
  const uint32_t* const offsets = p.addr[idxen ? 1 : 0];
  const auto instruction_offset = static_cast<uint32_t>(i->imm);

  r.partial_count = 0;
  if (!idxen && !add_tid && format && offen && p.exec == kAllLanes) {
    uint32_t low = ~0u, high = 0;
    for (int l = 0; l < kLanes; ++l) {
      const uint32_t o = offsets[l] + instruction_offset;
      r.offset[l] = o & static_cast<uint32_t>(align);
      low = o < low ? o : low;
      high = o > high ? o : high;
    }
    const uint64_t start = (base & align) + p.soffset;
    if (uint64_t{high} + p.soffset + bytes <= records && !(start & ~align)) {
      if (w.covers(start + (low & align), start + high + bytes) ||
          find_memory(w, start + (low & align), start + high + bytes)) {
        r.uniform = true;
        r.base = reinterpret_cast<uint8_t*>(start);
        return true;
      }
    }
  }

  void_lanes(r);
  if (!format && !add_tid) return true;  // an unbound resource: reads zero, drops stores
  const bool swizzle = p.rsrc[1] >> 31;
  const bool lane_index = add_tid && (swizzle || !idxen);
  const uint64_t stride = (p.rsrc[1] >> 16 & 0x3fff) | (lane_index ? uint64_t{format} << 14 : 0);
  const uint64_t group = 8u << (p.rsrc[3] >> 21 & 3);
  const int element = bytes < 4 ? bytes : 4;
  for (int l = 0; l < kLanes; ++l) {
    if (!(p.exec >> l & 1)) continue;
    uint32_t index = idxen ? p.addr[0][l] : 0;
    const uint32_t offset = (offen ? offsets[l] : 0) + instruction_offset;
    uint64_t good = bytes;
    if (add_tid && !idxen) {
      // a private buffer: no range
    } else if (idxen && (p.rsrc[1] >> 16 & 0x3fff)) {
      if (index >= records) good = 0;
    } else {
      const uint64_t begin = uint64_t{offset} + p.soffset;
      const uint64_t room = begin >= records ? 0 : (records - begin) / element * element;
      if (room < good) good = room;
      if ((i->x & 4) && good < static_cast<uint64_t>(bytes)) good = 0;  // kWhole
    }
    if (good == 0) continue;
    if (lane_index) index += l;
    uint64_t at;
    if (swizzle && add_tid)
      at = (index / group * stride + offset / 4 * 4) * group + index % group * 4 + offset % 4;
    else
      at = index * stride + offset;
    const uint64_t address = ((base & align) + at + p.soffset) & align;
    if (swizzle && add_tid && bytes > 4) {
      // Consecutive dwords of a lane are `group` dwords apart: never contiguous.
      return fault(w, i, FaultKind::illegal_instruction,
                   "multi-dword access through a swizzled buffer is not emulated"),
             false;
    }
    if (!global_lane(w, i, l, address, static_cast<int>(good), store, r)) return false;
    if (good < static_cast<uint64_t>(bytes)) {
      uint8_t* const to = r.at[l];
      r.at[l] = r.spare[l];
      partial_lane(l, to, static_cast<int>(good), store, r);
    }
  }
  return true;
}

// ---- global, flat, scratch ----------------------------------------------------------------------

// Inst: imm offset. Pending: base is the SGPR base and addr[0] a 32-bit offset, or (x & 1) addr[0]
// and addr[1] are the halves of a 64-bit address.
bool reach_global(Wave& w, const Pending& p, int bytes, bool store, Reach& r) {
  const Inst* const i = p.inst;
  alignas(64) uint64_t address[kLanes];
  r.partial_count = 0;
  const uint64_t base = p.base + static_cast<int64_t>(i->imm);
  if (i->x & 1) {
    for (int l = 0; l < kLanes; ++l)
      address[l] = (p.addr[0][l] | uint64_t{p.addr[1][l]} << 32) + base;
  } else {
    for (int l = 0; l < kLanes; ++l) address[l] = p.addr[0][l] + base;
  }
  if (p.exec == kAllLanes) {
    uint64_t low = ~uint64_t{0}, high = 0;
    for (int l = 0; l < kLanes; ++l) {
      low = address[l] < low ? address[l] : low;
      high = address[l] > high ? address[l] : high;
    }
    if (high + bytes > high && (w.covers(low, high + bytes) || find_memory(w, low, high + bytes))) {
      r.uniform = false;
      for (int l = 0; l < kLanes; ++l) r.at[l] = reinterpret_cast<uint8_t*>(address[l]);
      return true;
    }
  }
  void_lanes(r);
  for (int l = 0; l < kLanes; ++l)
    if ((p.exec >> l & 1) && !global_lane(w, i, l, address[l], bytes, store, r)) return false;
  return true;
}

// Flat addresses in an aperture are LDS or scratch offsets.
bool reach_flat(Wave& w, const Pending& p, int bytes, bool store, Reach& r) {
  const Inst* const i = p.inst;
  uint32_t top = 0;
  for (int l = 0; l < kLanes; ++l) top |= p.addr[1][l];
  if (!(top >> 16)) return reach_global(w, p, bytes, store, r);
  void_lanes(r);
  for (int l = 0; l < kLanes; ++l) {
    if (!(p.exec >> l & 1)) continue;
    const uint64_t address =
        (p.addr[0][l] | uint64_t{p.addr[1][l]} << 32) + static_cast<int64_t>(i->imm);
    const uint64_t offset = address & 0xffffffff;
    if (address - offset == kSharedAperture) {
      if (offset + bytes <= w.lds_bytes) r.at[l] = w.lds + offset;
    } else if (address - offset == kPrivateAperture) {
      if (i->x & 4) return fault(w, i, FaultKind::illegal_address, "atomic on scratch"), false;
      if (!scratch_lane(w, i, l, offset, bytes, store, p, r)) return false;
    } else if (!global_lane(w, i, l, address, bytes, store, r)) {
      return false;
    }
  }
  return true;
}

// Inst: imm offset; x & 1: there is a vector offset. Pending: soffset the SGPR offset.
bool reach_scratch(Wave& w, const Pending& p, int bytes, bool store, Reach& r) {
  const Inst* const i = p.inst;
  void_lanes(r);
  for (int l = 0; l < kLanes; ++l) {
    if (!(p.exec >> l & 1)) continue;
    const uint32_t offset =
        (i->x & 1 ? p.addr[0][l] : 0) + p.soffset + static_cast<uint32_t>(i->imm);
    if (!scratch_lane(w, i, l, offset, bytes, store, p, r)) return false;
  }
  return true;
}

// ---- LDS ----------------------------------------------------------------------------------------

// Dwords outside the workgroup's allocation read as zero and discard stores.
void reach_lds(Wave& w, const uint32_t* address, uint32_t offset, uint64_t exec, int bytes,
               bool store, Reach& r) {
  r.partial_count = 0;
  uint32_t high = 0;
  for (int l = 0; l < kLanes; ++l) {
    r.offset[l] = address[l] + offset;
    high = r.offset[l] > high ? r.offset[l] : high;
  }
  if ((exec == kAllLanes || !store) && uint64_t{high} + bytes <= w.lds_bytes) {
    r.uniform = true;
    r.base = w.lds;
    return;
  }
  void_lanes(r);
  const int element = bytes < 4 ? bytes : 4;
  for (int l = 0; l < kLanes; ++l) {
    if (!(exec >> l & 1)) continue;
    const uint64_t begin = r.offset[l];
    if (begin >= w.lds_bytes) continue;
    uint64_t good = (w.lds_bytes - begin) / element * element;
    uint8_t* const at = w.lds + begin;
    if (good >= static_cast<uint64_t>(bytes))
      r.at[l] = at;
    else if (good)
      partial_lane(l, at, static_cast<int>(good), store, r);
  }
}

}  // namespace emu::EMU_NS
