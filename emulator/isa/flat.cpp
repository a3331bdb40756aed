// FLAT, GLOBAL and SCRATCH: loads, stores and atomics by address, and global loads that go to LDS.
#include "isa/atomics.hpp"
#include "isa/memory.hpp"

namespace emu::EMU_NS {
namespace {

// Inst: d destination, a address registers, b data registers, c SGPR base or offset, imm offset.
enum : uint16_t {
  kVector64 = 1,  // FLAT, GLOBAL: the address is two registers; SCRATCH: there is a vector offset
  kScalarBase = 2,
  kAtomicOp = 4,
  kReturns = 8,
};

enum class Space { flat, global, scratch };

template <Space kSpace>
EMU_INLINE bool reach(Wave& w, const Pending& p, int bytes, bool store, Reach& r) {
  if constexpr (kSpace == Space::flat) return reach_flat(w, p, bytes, store, r);
  if constexpr (kSpace == Space::global) return reach_global(w, p, bytes, store, r);
  return reach_scratch(w, p, bytes, store, r);
}

template <Space kSpace>
EMU_INLINE bool enter(Wave& w, const Inst* i, Pending*& p, uint8_t& slot) {
  if (!(kSpace == Space::flat ? enter_flat(w, i, p, slot) : enter_vm(w, i, p, slot))) return false;
  if constexpr (kSpace == Space::scratch) {
    p->soffset = i->x & kScalarBase ? w.s[i->c] : 0;
    if (i->x & kVector64) snapshot<1>(p->addr, w.reg(i->a));
  } else {
    p->base = i->x & kScalarBase ? w.s64(i->c) : 0;
    snapshot<1>(p->addr, w.reg(i->a));
    if (i->x & kVector64) snapshot<1>(p->addr + 1, w.reg(i->a + 1));
  }
  return true;
}
template <Space kSpace>
EMU_INLINE const Inst* leave(Wave& w, const Inst* i, uint8_t slot) {
  return kSpace == Space::flat ? leave_flat(w, i, slot) : leave_vm(w, i, slot);
}

template <Space kSpace>
void lower_common(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.offset;
  const bool saddr = d.sbase != kNoOperand;
  if constexpr (kSpace == Space::scratch) {
    if (saddr) i.c = l.scalar(d.sbase), i.x |= kScalarBase;
    if (d.addr != kNoOperand) i.a = l.vector(d.addr), i.x |= kVector64;
  } else if (saddr) {
    i.c = l.scalar(d.sbase, 2);
    i.a = l.vector(d.addr);
    i.x |= kScalarBase;
  } else {
    i.a = l.vector(d.addr, 2);
    i.x |= kVector64;
  }
}

template <Space kSpace, Width kWidth>
bool land_load(Wave& w, const Pending& p) {
  Reach r;
  if (!reach<kSpace>(w, p, bytes_of(kWidth), false, r)) return false;
  load_rows<kWidth>(w.reg(p.inst->d), p.exec, r);
  return true;
}
template <Space kSpace, Width kWidth>
bool land_store(Wave& w, const Pending& p) {
  Reach r;
  if (!reach<kSpace>(w, p, bytes_of(kWidth), true, r)) return false;
  if constexpr (kSpace != Space::scratch) store_rows<kWidth>(p.data[0], r);
  return true;
}
template <Space kSpace, Width kWidth>
bool land_lds(Wave& w, const Pending& p) {
  Reach r;
  if (!reach<kSpace>(w, p, bytes_of(kWidth), false, r)) return false;
  load_to_lds<kWidth>(w, uint64_t{p.m0 & 0x3fffc} + static_cast<int64_t>(p.inst->imm), p.exec, r);
  return true;
}

template <Space kSpace>
const Inst* issue_load(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  return enter<kSpace>(w, i, p, slot) ? leave<kSpace>(w, i, slot) : nullptr;
}
template <Space kSpace>
const Inst* issue_lds(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter<kSpace>(w, i, p, slot)) return nullptr;
  p->m0 = w.s[kSlotM0];
  return leave<kSpace>(w, i, slot);
}
template <Space kSpace, Width kWidth>
const Inst* issue_store(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter<kSpace>(w, i, p, slot)) return nullptr;
  snapshot_data<kWidth>(p->data, w.reg(i->b));
  return leave<kSpace>(w, i, slot);
}

template <Space kSpace, Width kWidth>
void lower_load(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_common<kSpace>(l, d, s, i);
  i.land = land_load<kSpace, kWidth>;
  i.d = l.vector(d.dst, dwords_of(kWidth));
}
template <Space kSpace, Width kWidth>
void lower_store(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_common<kSpace>(l, d, s, i);
  i.land = land_store<kSpace, kWidth>;
  i.b = l.vector(d.data0, dwords_of(kWidth));
}
template <Space kSpace, Width kWidth>
void lower_lds(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_common<kSpace>(l, d, s, i);
  i.land = land_lds<kSpace, kWidth>;
}

template <Space kSpace, Width kWidth>
void load(Semantics& t, Op op) {
  set(t, op, lower_load<kSpace, kWidth>, issue_load<kSpace>);
}
template <Space kSpace, Width kWidth>
void store(Semantics& t, Op op) {
  set(t, op, lower_store<kSpace, kWidth>, issue_store<kSpace, kWidth>);
}
template <Space kSpace, Width kWidth>
void load_lds(Semantics& t, Op op) {
  set(t, op, lower_lds<kSpace, kWidth>, issue_lds<kSpace>);
}

// ---- atomics ------------------------------------------------------------------------------------

// What does not depend on the operation is no template of it: there are 32, and compilers take
// their time.
template <Space kSpace>
bool reach_atomic(Wave& w, const Pending& p, int size, Reach& r) {
  if (!reach<kSpace>(w, p, size, true, r)) return false;
  for (int l = 0; l < kLanes; ++l)
    if ((p.exec >> l & 1) && reinterpret_cast<uintptr_t>(r.at[l]) % size)
      return fault(w, p.inst, FaultKind::illegal_address, "misaligned atomic"), false;
  return true;
}
template <Space kSpace, class A>
bool land_atomic(Wave& w, const Pending& p) {
  Reach r;
  if (!reach_atomic<kSpace>(w, p, sizeof(typename A::Type), r)) return false;
  apply_atomic<A>(w, p, p.inst->x & kReturns, r);
  return true;
}
template <Space kSpace, int kRows>
const Inst* issue_atomic(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter<kSpace>(w, i, p, slot)) return nullptr;
  snapshot<kRows>(p->data, w.reg(i->b));
  return leave<kSpace>(w, i, slot);
}
template <Space kSpace, int kRows, int kResultRows>
void lower_operands(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_common<kSpace>(l, d, s, i);
  i.x |= kAtomicOp | (d.sc0 ? kReturns : 0);
  i.b = l.vector(d.data0, kRows);
  if (d.sc0) i.d = l.vector(d.dst, kResultRows);
}
template <Space kSpace, class A>
void lower_atomic(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_operands<kSpace, A::kDataRows, sizeof(typename A::Type) / 4>(l, d, s, i);
  i.land = land_atomic<kSpace, A>;
}
template <Space kSpace>
struct Add {
  template <class A>
  EMU_INLINE void atomic(Semantics& t, Op op) {
    set(t, op, lower_atomic<kSpace, A>, issue_atomic<kSpace, A::kDataRows>);
  }
};
using AddFlat = Add<Space::flat>;
using AddGlobal = Add<Space::global>;

}  // namespace

#define EMU_LOADS_AND_STORES(space)                                      \
  load<Space::space, Width::u8>(t, Op::space##_load_ubyte);              \
  load<Space::space, Width::i8>(t, Op::space##_load_sbyte);              \
  load<Space::space, Width::u16>(t, Op::space##_load_ushort);            \
  load<Space::space, Width::i16>(t, Op::space##_load_sshort);            \
  load<Space::space, Width::b32>(t, Op::space##_load_dword);             \
  load<Space::space, Width::b64>(t, Op::space##_load_dwordx2);           \
  load<Space::space, Width::b96>(t, Op::space##_load_dwordx3);           \
  load<Space::space, Width::b128>(t, Op::space##_load_dwordx4);          \
  load<Space::space, Width::u8_lo>(t, Op::space##_load_ubyte_d16);       \
  load<Space::space, Width::u8_hi>(t, Op::space##_load_ubyte_d16_hi);    \
  load<Space::space, Width::i8_lo>(t, Op::space##_load_sbyte_d16);       \
  load<Space::space, Width::i8_hi>(t, Op::space##_load_sbyte_d16_hi);    \
  load<Space::space, Width::b16_lo>(t, Op::space##_load_short_d16);      \
  load<Space::space, Width::b16_hi>(t, Op::space##_load_short_d16_hi);   \
  store<Space::space, Width::u8>(t, Op::space##_store_byte);             \
  store<Space::space, Width::u8_hi>(t, Op::space##_store_byte_d16_hi);   \
  store<Space::space, Width::u16>(t, Op::space##_store_short);           \
  store<Space::space, Width::b16_hi>(t, Op::space##_store_short_d16_hi); \
  store<Space::space, Width::b32>(t, Op::space##_store_dword);           \
  store<Space::space, Width::b64>(t, Op::space##_store_dwordx2);         \
  store<Space::space, Width::b96>(t, Op::space##_store_dwordx3);         \
  store<Space::space, Width::b128>(t, Op::space##_store_dwordx4);

#define EMU_LDS_LOADS(space)                                          \
  load_lds<Space::space, Width::u8>(t, Op::space##_load_lds_ubyte);   \
  load_lds<Space::space, Width::i8>(t, Op::space##_load_lds_sbyte);   \
  load_lds<Space::space, Width::u16>(t, Op::space##_load_lds_ushort); \
  load_lds<Space::space, Width::i16>(t, Op::space##_load_lds_sshort); \
  load_lds<Space::space, Width::b32>(t, Op::space##_load_lds_dword);

void add_flat(Semantics& t) {
  EMU_LOADS_AND_STORES(flat)
  EMU_LOADS_AND_STORES(global)
  EMU_LOADS_AND_STORES(scratch)
  EMU_LDS_LOADS(global)
  EMU_LDS_LOADS(scratch)
  load_lds<Space::global, Width::b96>(t, Op::global_load_lds_dwordx3);
  load_lds<Space::global, Width::b128>(t, Op::global_load_lds_dwordx4);
  EMU_INTEGER_ATOMICS(AddFlat, t, flat)
  EMU_FLOAT_ATOMICS(AddFlat, t, flat)
  EMU_INTEGER_ATOMICS(AddGlobal, t, global)
  EMU_FLOAT_ATOMICS(AddGlobal, t, global)
}

}  // namespace emu::EMU_NS
