// MUBUF: loads, stores and atomics through a buffer descriptor, and loads that go to LDS.
#include "isa/atomics.hpp"
#include "isa/buffer.hpp"

namespace emu::EMU_NS {
namespace {

// With both an index and an offset, the offset is in the second register. With an offset alone,
// reach_buffer looks in addr[0].
template <Width kWidth>
bool land_load(Wave& w, const Pending& p) {
  Reach r;
  if (!reach_buffer(w, p, bytes_of(kWidth), false, r)) return false;
  load_rows<kWidth>(w.reg(p.inst->d), p.exec, r);
  return true;
}
template <Width kWidth>
bool land_lds(Wave& w, const Pending& p) {
  Reach r;
  if (!reach_buffer(w, p, bytes_of(kWidth), false, r)) return false;
  load_to_lds<kWidth>(w, uint64_t{p.m0 & 0x3ffff} + static_cast<uint32_t>(p.inst->imm), p.exec, r);
  return true;
}
template <Width kWidth>
bool land_store(Wave& w, const Pending& p) {
  Reach r;
  if (!reach_buffer(w, p, bytes_of(kWidth), true, r)) return false;
  store_rows<kWidth>(p.data[0], r);
  return true;
}

const Inst* issue_load(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  return issue_buffer(w, i, slot, p) ? leave_vm(w, i, slot) : nullptr;
}
const Inst* issue_lds(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!issue_buffer(w, i, slot, p)) return nullptr;
  p->m0 = w.s[kSlotM0];
  return leave_vm(w, i, slot);
}
template <Width kWidth>
const Inst* issue_store(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!issue_buffer(w, i, slot, p)) return nullptr;
  snapshot_data<kWidth>(p->data, w.reg(i->d));
  return leave_vm(w, i, slot);
}
template <int kRows>
const Inst* issue_atomic(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!issue_buffer(w, i, slot, p)) return nullptr;
  snapshot<kRows>(p->data, w.reg(i->d));
  return leave_vm(w, i, slot);
}

template <Width kWidth>
void lower_load(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_buffer(l, d, s, i);
  if (d.lds) {
    i.fn = issue_lds;
    i.land = land_lds<kWidth>;
    if (kWidth == Width::b64) l.fail("no such load to LDS");
  } else {
    i.land = land_load<kWidth>;
    i.d = l.vector(d.dst, dwords_of(kWidth));
  }
}
template <Width kWidth>
void lower_store(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_buffer(l, d, s, i);
  i.land = land_store<kWidth>;
  i.d = l.vector(d.data0, dwords_of(kWidth));
}

template <Width kWidth>
void load(Semantics& t, Op op) {
  set(t, op, lower_load<kWidth>, issue_load);
}
template <Width kWidth>
void store(Semantics& t, Op op) {
  set(t, op, lower_store<kWidth>, issue_store<kWidth>);
}

// ---- atomics ------------------------------------------------------------------------------------

template <class A>
bool land_atomic(Wave& w, const Pending& p) {
  Reach r;
  if (!reach_buffer(w, p, sizeof(typename A::Type), true, r)) return false;
  apply_atomic<A>(w, p, p.inst->x & kReturns, r);
  return true;
}
template <class A>
void lower_atomic(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_buffer(l, d, s, i);
  i.land = land_atomic<A>;
  i.x |= kWhole | (d.sc0 ? kReturns : 0);
  i.d = l.vector(d.data0, A::kDataRows);
}
struct Add {
  template <class A>
  EMU_INLINE void atomic(Semantics& t, Op op) {
    set(t, op, lower_atomic<A>, issue_atomic<A::kDataRows>);
  }
};

}  // namespace

void add_buffer(Semantics& t) {
  load<Width::u8>(t, Op::buffer_load_ubyte);
  load<Width::i8>(t, Op::buffer_load_sbyte);
  load<Width::u16>(t, Op::buffer_load_ushort);
  load<Width::i16>(t, Op::buffer_load_sshort);
  load<Width::b32>(t, Op::buffer_load_dword);
  load<Width::b64>(t, Op::buffer_load_dwordx2);
  load<Width::b96>(t, Op::buffer_load_dwordx3);
  load<Width::b128>(t, Op::buffer_load_dwordx4);
  load<Width::u8_lo>(t, Op::buffer_load_ubyte_d16);
  load<Width::u8_hi>(t, Op::buffer_load_ubyte_d16_hi);
  load<Width::i8_lo>(t, Op::buffer_load_sbyte_d16);
  load<Width::i8_hi>(t, Op::buffer_load_sbyte_d16_hi);
  load<Width::b16_lo>(t, Op::buffer_load_short_d16);
  load<Width::b16_hi>(t, Op::buffer_load_short_d16_hi);
  store<Width::u8>(t, Op::buffer_store_byte);
  store<Width::u8_hi>(t, Op::buffer_store_byte_d16_hi);
  store<Width::u16>(t, Op::buffer_store_short);
  store<Width::b16_hi>(t, Op::buffer_store_short_d16_hi);
  store<Width::b32>(t, Op::buffer_store_dword);
  store<Width::b64>(t, Op::buffer_store_dwordx2);
  store<Width::b96>(t, Op::buffer_store_dwordx3);
  store<Width::b128>(t, Op::buffer_store_dwordx4);
  EMU_INTEGER_ATOMICS(Add, t, buffer)
  EMU_FLOAT_ATOMICS(Add, t, buffer)
  // There is no cache to write back or invalidate.
  set(t, Op::buffer_wbl2, lower_plain, next);
  set(t, Op::buffer_inv, lower_plain, next);
}

}  // namespace emu::EMU_NS
