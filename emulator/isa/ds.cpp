// DS: LDS loads, stores, atomics and transposing loads, and the lane permutations that go through
// the same unit.
#include "isa/atomics.hpp"
#include "isa/memory.hpp"

namespace emu::EMU_NS {
namespace {

// Inst: d destination, a address register, b and c data registers, imm offset, y second offset.

EMU_INLINE bool enter(Wave& w, const Inst* i, Pending*& p, uint8_t& slot) {
  if (!enter_ds(w, i, p, slot)) return false;
  snapshot<1>(p->addr, w.reg(i->a));
  return true;
}
void lower_address(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.offset;
  i.a = l.vector(d.addr);
  if (d.gds) l.fail("there is no GDS");
}
// Offsets of the two-address forms count elements, or 64 of them.
EMU_INLINE void scale_offsets(const Decoded& d, int unit, Inst& i) {
  i.imm = d.offset * unit;
  i.y = static_cast<uint16_t>(d.offset1 * unit);
}

// ---- loads and stores ---------------------------------------------------------------------------

const Inst* issue_load(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  return enter(w, i, p, slot) ? leave_ds(w, i, slot) : nullptr;
}

template <Width kWidth>
bool land_load(Wave& w, const Pending& p) {
  Reach r;
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, bytes_of(kWidth), false, r);
  load_rows<kWidth>(w.reg(p.inst->d), p.exec, r);
  return true;
}
template <Width kWidth>
void lower_load(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  i.land = land_load<kWidth>;
  i.d = l.vector(d.dst, dwords_of(kWidth));
}
template <Width kWidth>
void load(Semantics& t, Op op) {
  set(t, op, lower_load<kWidth>, issue_load);
}

template <Width kWidth>
bool land_load2(Wave& w, const Pending& p) {
  Reach r;
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, bytes_of(kWidth), false, r);
  load_rows<kWidth>(w.reg(p.inst->d), p.exec, r);
  reach_lds(w, p.addr[0], p.inst->y, p.exec, bytes_of(kWidth), false, r);
  load_rows<kWidth>(w.reg(p.inst->d + dwords_of(kWidth)), p.exec, r);
  return true;
}
template <Width kWidth, int kStride>
void lower_load2(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  scale_offsets(d, bytes_of(kWidth) * kStride, i);
  i.land = land_load2<kWidth>;
  i.d = l.vector(d.dst, 2 * dwords_of(kWidth));
}
template <Width kWidth, int kStride>
void load2(Semantics& t, Op op) {
  set(t, op, lower_load2<kWidth, kStride>, issue_load);
}

template <Width kWidth>
const Inst* issue_store(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter(w, i, p, slot)) return nullptr;
  snapshot_data<kWidth>(p->data, w.reg(i->b));
  return leave_ds(w, i, slot);
}
template <Width kWidth>
bool land_store(Wave& w, const Pending& p) {
  Reach r;
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, bytes_of(kWidth), true, r);
  store_rows<kWidth>(p.data[0], r);
  return true;
}
template <Width kWidth>
void lower_store(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  i.land = land_store<kWidth>;
  i.b = l.vector(d.data0, dwords_of(kWidth));
}
template <Width kWidth>
void store(Semantics& t, Op op) {
  set(t, op, lower_store<kWidth>, issue_store<kWidth>);
}

// Two data operands, one after the other in Pending::data.
template <int kRows>
const Inst* issue_two(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter(w, i, p, slot)) return nullptr;
  snapshot<kRows>(p->data, w.reg(i->b));
  snapshot<kRows>(p->data + kRows, w.reg(i->c));
  return leave_ds(w, i, slot);
}
template <Width kWidth>
bool land_store2(Wave& w, const Pending& p) {
  Reach r;
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, bytes_of(kWidth), true, r);
  store_rows<kWidth>(p.data[0], r);
  reach_lds(w, p.addr[0], p.inst->y, p.exec, bytes_of(kWidth), true, r);
  store_rows<kWidth>(p.data[dwords_of(kWidth)], r);
  return true;
}
template <Width kWidth, int kStride>
void lower_store2(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  scale_offsets(d, bytes_of(kWidth) * kStride, i);
  i.land = land_store2<kWidth>;
  i.b = l.vector(d.data0, dwords_of(kWidth));
  i.c = l.vector(d.data1, dwords_of(kWidth));
}
template <Width kWidth, int kStride>
void store2(Semantics& t, Op op) {
  set(t, op, lower_store2<kWidth, kStride>, issue_two<dwords_of(kWidth)>);
}

// ---- exchanges of two, and special cases --------------------------------------------------------

template <Width kWidth>
bool land_exchange2(Wave& w, const Pending& p) {
  constexpr int n = dwords_of(kWidth);
  alignas(64) uint32_t old[2 * n][kLanes] = {};
  Reach first, second;
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, bytes_of(kWidth), true,
            first);
  reach_lds(w, p.addr[0], p.inst->y, p.exec, bytes_of(kWidth), true, second);
  load_rows<kWidth>(old[0], kAllLanes, first);
  load_rows<kWidth>(old[n], kAllLanes, second);
  store_rows<kWidth>(p.data[0], first);
  store_rows<kWidth>(p.data[n], second);
  blend_rows(w.reg(p.inst->d), old[0], p.exec, 2 * n);
  return true;
}
template <Width kWidth, int kStride>
void lower_exchange2(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_store2<kWidth, kStride>(l, d, s, i);
  i.land = land_exchange2<kWidth>;
  i.d = l.vector(d.dst, 2 * dwords_of(kWidth));
}

// Each half is written, without its top bit, if that bit is set.
bool land_conditional_exchange(Wave& w, const Pending& p) {
  uint32_t* const d = w.reg(p.inst->d);
  for (int l = 0; l < kLanes; ++l) {
    if (!(p.exec >> l & 1)) continue;
    const uint32_t at = (p.addr[0][l] + static_cast<uint32_t>(p.inst->imm)) & 0xfff8;
    for (int half = 0; half < 2; ++half) {
      uint32_t old = 0;
      const uint32_t data = p.data[half][l];
      if (uint64_t{at} + 4 * half + 4 <= w.lds_bytes) {
        std::memcpy(&old, w.lds + at + 4 * half, 4);
        const uint32_t now = data & 0x7fffffff;
        if (data >> 31) std::memcpy(w.lds + at + 4 * half, &now, 4);
      }
      d[half * kLanes + l] = old;
    }
  }
  return true;
}
void lower_conditional_exchange(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  i.land = land_conditional_exchange;
  i.b = l.vector(d.data0, 2);
  i.d = l.vector(d.dst, 2);
}

// The address is M0 plus the offset plus four times the lane.
template <bool kStore>
const Inst* issue_addtid(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter_ds(w, i, p, slot)) return nullptr;
  for (uint32_t l = 0; l < kLanes; ++l) p->addr[0][l] = (w.s[kSlotM0] & 0xffff) + 4 * l;
  if constexpr (kStore) snapshot<1>(p->data, w.reg(i->b));
  return leave_ds(w, i, slot);
}
template <bool kStore>
void lower_addtid(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.offset;
  i.land = kStore ? land_store<Width::b32> : land_load<Width::b32>;
  if (d.gds) l.fail("there is no GDS");
  (kStore ? i.b : i.d) = l.vector(kStore ? d.data0 : d.dst);
}

// Adds or subtracts the number of active lanes; all of them get the old value.
template <int kSign>
bool land_count(Wave& w, const Pending& p) {
  uint32_t old = 0;
  const auto at = static_cast<uint32_t>(p.inst->imm);
  if (uint64_t{at} + 4 <= w.lds_bytes) {
    std::memcpy(&old, w.lds + at, 4);
    const uint32_t now = old + static_cast<uint32_t>(kSign * std::popcount(p.exec));
    std::memcpy(w.lds + at, &now, 4);
  }
  alignas(64) uint32_t row[kLanes];
  for (int l = 0; l < kLanes; ++l) row[l] = old;
  blend_rows(w.reg(p.inst->d), row, p.exec, 1);
  return true;
}
const Inst* issue_count(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  return enter_ds(w, i, p, slot) ? leave_ds(w, i, slot) : nullptr;
}
template <int kSign>
void lower_count(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.offset;
  i.land = land_count<kSign>;
  i.d = l.vector(d.dst);
  if (d.gds) l.fail("there is no GDS");
}

// ---- atomics ------------------------------------------------------------------------------------

// LDS belongs to one workgroup, but the code is shared with global memory.
template <class A, bool kReturn>
bool land_atomic(Wave& w, const Pending& p) {
  Reach r;
  constexpr int size = sizeof(typename A::Type);
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, size, true, r);
  for (int l = 0; l < kLanes; ++l)
    if ((p.exec >> l & 1) && r.offset[l] % size)
      return fault(w, p.inst, FaultKind::illegal_address, "misaligned LDS atomic"), false;
  apply_atomic<A>(w, p, kReturn, r);
  return true;
}
template <int kRows>
const Inst* issue_one(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter(w, i, p, slot)) return nullptr;
  snapshot<kRows>(p->data, w.reg(i->b));
  return leave_ds(w, i, slot);
}
template <class A, bool kReturn>
void lower_atomic(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  constexpr int rows = sizeof(typename A::Type) / 4;
  lower_address(l, d, s, i);
  i.land = land_atomic<A, kReturn>;
  i.b = l.vector(d.data0, rows);
  if constexpr (A::kTwoOperands) i.c = l.vector(d.data1, rows);
  if constexpr (kReturn) i.d = l.vector(d.dst, rows);
}
template <class A>
void atomic(Semantics& t, Op op, Op returning) {
  constexpr int rows = sizeof(typename A::Type) / 4;
  const Handler issue = A::kTwoOperands ? issue_two<rows> : issue_one<rows>;
  set(t, op, lower_atomic<A, false>, issue);
  set(t, returning, lower_atomic<A, true>, issue);
}
template <class A>
void exchange(Semantics& t, Op returning) {
  constexpr int rows = sizeof(typename A::Type) / 4;
  set(t, returning, lower_atomic<A, true>, A::kTwoOperands ? issue_two<rows> : issue_one<rows>);
}

// ---- transposing loads --------------------------------------------------------------------------

// Sixteen lanes' memory rows form a tile, and each lane receives a column of it.
template <Width kWidth>
EMU_INLINE bool load_tile(Wave& w, const Pending& p, uint32_t* raw) {
  if (p.exec != kAllLanes)
    return fault(w, p.inst, FaultKind::illegal_instruction,
                 "a transposing LDS load needs all lanes active"),
           false;
  Reach r;
  reach_lds(w, p.addr[0], static_cast<uint32_t>(p.inst->imm), p.exec, bytes_of(kWidth), false, r);
  load_rows<kWidth>(raw, kAllLanes, r);
  return true;
}

// Elements of 8 or 16 bits: the tile is as wide as two or four lanes, so with the lanes' memory
// side by side, element e of the sixteen columns lies side by side too.
template <class Unit>
bool land_transpose(Wave& w, const Pending& p) {
  constexpr int bits = sizeof(Unit) * 8, elements = 64 / bits;
  alignas(64) uint32_t raw[2 * kLanes], out[2 * kLanes] = {};
  alignas(64) Unit tile[kLanes * elements];
  if (!load_tile<Width::b64>(w, p, raw)) return false;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t two[2] = {raw[l], raw[kLanes + l]};
    std::memcpy(tile + l * elements, two, 8);
  }
  for (int e = 0; e < elements; ++e)
    for (int group = 0; group < kLanes; group += 16)
      for (int j = 0; j < 16; ++j)
        out[e * bits / 32 * kLanes + group + j] |= uint32_t{tile[group * elements + 16 * e + j]}
                                                   << (e * bits % 32);
  std::memcpy(w.reg(p.inst->d), out, sizeof out);
  return true;
}

// Elements of 4 or 6 bits: each lane's memory is a row of sixteen of them.
template <int kBits>
bool land_transpose_narrow(Wave& w, const Pending& p) {
  constexpr int dwords = 16 * kBits / 32;
  alignas(64) uint32_t raw[dwords * kLanes], out[dwords * kLanes] = {};
  if (!load_tile<dwords == 2 ? Width::b64 : Width::b96>(w, p, raw)) return false;
  for (int e = 0; e < 16; ++e)
    for (int l = 0; l < kLanes; ++l) {
      const int from = (l & 48) + e, bit = (l & 15) * kBits, to = e * kBits;
      uint64_t two = raw[bit / 32 * kLanes + from];
      if (bit / 32 + 1 < dwords) two |= uint64_t{raw[(bit / 32 + 1) * kLanes + from]} << 32;
      const uint64_t moved = (two >> bit % 32 & ((1u << kBits) - 1)) << to % 32;
      out[to / 32 * kLanes + l] |= static_cast<uint32_t>(moved);
      if (to / 32 + 1 < dwords)
        out[(to / 32 + 1) * kLanes + l] |= static_cast<uint32_t>(moved >> 32);
    }
  std::memcpy(w.reg(p.inst->d), out, sizeof out);
  return true;
}
template <Landing kLand, int kDwords>
void lower_transpose(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  i.land = kLand;
  i.d = l.vector(d.dst, kDwords);
}

// ---- lane permutations --------------------------------------------------------------------------

// They read their registers at issue and complete through the queue like a load.
const Inst* issue_permutation(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter(w, i, p, slot)) return nullptr;
  snapshot<1>(p->data, w.reg(i->b));
  return leave_ds(w, i, slot);
}
bool land_bpermute(Wave& w, const Pending& p) {
  alignas(64) uint32_t row[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t from = (p.addr[0][l] + static_cast<uint32_t>(p.inst->imm)) / 4 % kLanes;
    row[l] = p.exec >> from & 1 ? p.data[0][from] : 0;
  }
  blend_rows(w.reg(p.inst->d), row, p.exec, 1);
  return true;
}
bool land_permute(Wave& w, const Pending& p) {
  alignas(64) uint32_t row[kLanes] = {};
  for (int l = 0; l < kLanes; ++l)  // of several sources the highest lane wins
    if (p.exec >> l & 1)
      row[(p.addr[0][l] + static_cast<uint32_t>(p.inst->imm)) / 4 % kLanes] = p.data[0][l];
  blend_rows(w.reg(p.inst->d), row, p.exec, 1);
  return true;
}
template <Landing kLand>
void lower_permutation(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  i.land = kLand;
  i.b = l.vector(d.data0);
  i.d = l.vector(d.dst);
}

// The lane that lane l reads, as the 16-bit pattern says.
EMU_INLINE uint32_t swizzle_source(uint32_t l, uint32_t pattern) {
  const uint32_t low = l & 31, upper = l & 32;
  if (pattern >= 0xe000) {  // FFT
    const uint32_t mask = pattern & 31;
    uint32_t j = 0;
    for (int b = 0; b < 5; ++b) j |= (low >> b & 1) << (4 - b);
    return (j >> std::popcount(mask)) | (l & mask) | upper;
  }
  if (pattern >= 0xc000) {  // rotate
    const uint32_t mask = pattern & 31, by = pattern >> 5 & 31;
    const uint32_t moved = pattern & 0x400 ? low - by : low + by;
    return ((low & mask) | (moved & ~mask & 31)) | upper;
  }
  if (pattern & 0x8000) return (l & ~3u) + (pattern >> (2 * (l & 3)) & 3);
  const uint32_t keep = pattern & 31, set = pattern >> 5 & 31, flip = pattern >> 10 & 31;
  return (((low & keep) | set) ^ flip) | upper;
}
bool land_swizzle(Wave& w, const Pending& p) {
  alignas(64) uint32_t row[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t from = swizzle_source(l, static_cast<uint32_t>(p.inst->imm) & 0xffff);
    row[l] = p.exec >> from & 1 ? p.addr[0][from] : 0;
  }
  blend_rows(w.reg(p.inst->d), row, p.exec, 1);
  return true;
}
void lower_swizzle(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_address(l, d, s, i);
  i.land = land_swizzle;
  i.d = l.vector(d.dst);
}

}  // namespace

void add_ds(Semantics& t) {
  load<Width::u8>(t, Op::ds_read_u8);
  load<Width::i8>(t, Op::ds_read_i8);
  load<Width::u16>(t, Op::ds_read_u16);
  load<Width::i16>(t, Op::ds_read_i16);
  load<Width::b32>(t, Op::ds_read_b32);
  load<Width::b64>(t, Op::ds_read_b64);
  load<Width::b96>(t, Op::ds_read_b96);
  load<Width::b128>(t, Op::ds_read_b128);
  load<Width::u8_lo>(t, Op::ds_read_u8_d16);
  load<Width::u8_hi>(t, Op::ds_read_u8_d16_hi);
  load<Width::i8_lo>(t, Op::ds_read_i8_d16);
  load<Width::i8_hi>(t, Op::ds_read_i8_d16_hi);
  load<Width::b16_lo>(t, Op::ds_read_u16_d16);
  load<Width::b16_hi>(t, Op::ds_read_u16_d16_hi);
  load2<Width::b32, 1>(t, Op::ds_read2_b32);
  load2<Width::b32, 64>(t, Op::ds_read2st64_b32);
  load2<Width::b64, 1>(t, Op::ds_read2_b64);
  load2<Width::b64, 64>(t, Op::ds_read2st64_b64);
  store<Width::u8>(t, Op::ds_write_b8);
  store<Width::u8_hi>(t, Op::ds_write_b8_d16_hi);
  store<Width::u16>(t, Op::ds_write_b16);
  store<Width::b16_hi>(t, Op::ds_write_b16_d16_hi);
  store<Width::b32>(t, Op::ds_write_b32);
  store<Width::b64>(t, Op::ds_write_b64);
  store<Width::b96>(t, Op::ds_write_b96);
  store<Width::b128>(t, Op::ds_write_b128);
  store2<Width::b32, 1>(t, Op::ds_write2_b32);
  store2<Width::b32, 64>(t, Op::ds_write2st64_b32);
  store2<Width::b64, 1>(t, Op::ds_write2_b64);
  store2<Width::b64, 64>(t, Op::ds_write2st64_b64);

  set(t, Op::ds_wrxchg2_rtn_b32, lower_exchange2<Width::b32, 1>, issue_two<1>);
  set(t, Op::ds_wrxchg2st64_rtn_b32, lower_exchange2<Width::b32, 64>, issue_two<1>);
  set(t, Op::ds_wrxchg2_rtn_b64, lower_exchange2<Width::b64, 1>, issue_two<2>);
  set(t, Op::ds_wrxchg2st64_rtn_b64, lower_exchange2<Width::b64, 64>, issue_two<2>);
  set(t, Op::ds_condxchg32_rtn_b64, lower_conditional_exchange, issue_one<2>);
  set(t, Op::ds_write_addtid_b32, lower_addtid<true>, issue_addtid<true>);
  set(t, Op::ds_read_addtid_b32, lower_addtid<false>, issue_addtid<false>);
  set(t, Op::ds_append, lower_count<1>, issue_count);
  set(t, Op::ds_consume, lower_count<-1>, issue_count);
  set(t, Op::ds_nop, lower_plain, next);

#define EMU_DS_INTEGERS(bits)                                                     \
  atomic<Add##bits>(t, Op::ds_add_u##bits, Op::ds_add_rtn_u##bits);               \
  atomic<Sub##bits>(t, Op::ds_sub_u##bits, Op::ds_sub_rtn_u##bits);               \
  atomic<ReverseSub##bits>(t, Op::ds_rsub_u##bits, Op::ds_rsub_rtn_u##bits);      \
  atomic<Inc##bits>(t, Op::ds_inc_u##bits, Op::ds_inc_rtn_u##bits);               \
  atomic<Dec##bits>(t, Op::ds_dec_u##bits, Op::ds_dec_rtn_u##bits);               \
  atomic<SignedMin##bits>(t, Op::ds_min_i##bits, Op::ds_min_rtn_i##bits);         \
  atomic<SignedMax##bits>(t, Op::ds_max_i##bits, Op::ds_max_rtn_i##bits);         \
  atomic<UnsignedMin##bits>(t, Op::ds_min_u##bits, Op::ds_min_rtn_u##bits);       \
  atomic<UnsignedMax##bits>(t, Op::ds_max_u##bits, Op::ds_max_rtn_u##bits);       \
  atomic<And##bits>(t, Op::ds_and_b##bits, Op::ds_and_rtn_b##bits);               \
  atomic<Or##bits>(t, Op::ds_or_b##bits, Op::ds_or_rtn_b##bits);                  \
  atomic<Xor##bits>(t, Op::ds_xor_b##bits, Op::ds_xor_rtn_b##bits);               \
  atomic<MaskOr##bits>(t, Op::ds_mskor_b##bits, Op::ds_mskor_rtn_b##bits);        \
  atomic<CompareStore##bits>(t, Op::ds_cmpst_b##bits, Op::ds_cmpst_rtn_b##bits);  \
  atomic<CompareStoreF##bits>(t, Op::ds_cmpst_f##bits, Op::ds_cmpst_rtn_f##bits); \
  atomic<MinF##bits>(t, Op::ds_min_f##bits, Op::ds_min_rtn_f##bits);              \
  atomic<MaxF##bits>(t, Op::ds_max_f##bits, Op::ds_max_rtn_f##bits);              \
  atomic<AddF##bits>(t, Op::ds_add_f##bits, Op::ds_add_rtn_f##bits);              \
  exchange<Swap##bits>(t, Op::ds_wrxchg_rtn_b##bits);
  EMU_DS_INTEGERS(32)
  EMU_DS_INTEGERS(64)
  atomic<PackedAddF16>(t, Op::ds_pk_add_f16, Op::ds_pk_add_rtn_f16);
  atomic<PackedAddBf16>(t, Op::ds_pk_add_bf16, Op::ds_pk_add_rtn_bf16);
  exchange<Wrap32>(t, Op::ds_wrap_rtn_b32);

  set(t, Op::ds_read_b64_tr_b16, lower_transpose<land_transpose<uint16_t>, 2>, issue_load);
  set(t, Op::ds_read_b64_tr_b8, lower_transpose<land_transpose<uint8_t>, 2>, issue_load);
  set(t, Op::ds_read_b64_tr_b4, lower_transpose<land_transpose_narrow<4>, 2>, issue_load);
  set(t, Op::ds_read_b96_tr_b6, lower_transpose<land_transpose_narrow<6>, 3>, issue_load);

  set(t, Op::ds_bpermute_b32, lower_permutation<land_bpermute>, issue_permutation);
  set(t, Op::ds_permute_b32, lower_permutation<land_permute>, issue_permutation);
  set(t, Op::ds_swizzle_b32, lower_swizzle, issue_load);
}

}  // namespace emu::EMU_NS
