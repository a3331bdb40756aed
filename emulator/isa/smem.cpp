// SMEM: scalar loads, stores and atomics. They take effect when the wait forces it, in any order
// before that.
#include "isa/atomics.hpp"
#include "isa/exec.hpp"

namespace emu::EMU_NS {
namespace {

// How many of an access's dwords the descriptor lets through.
template <bool kBuffer>
EMU_INLINE int in_range(const Pending& p, int dwords) {
  if constexpr (!kBuffer) return dwords;
  // Range in bytes: records times stride, or bytes if there is no stride.
  const uint64_t stride = p.rsrc[1] >> 16 & 0x3fff;
  const uint64_t size = p.rsrc[2] * (stride ? stride : 1);
  const uint64_t offset = p.soffset & ~3u;
  if (offset >= size) return 0;
  return (size - offset) / 4 < uint64_t(dwords) ? static_cast<int>((size - offset) / 4) : dwords;
}

// The memory of `dwords` dwords; null after a fault.
EMU_INLINE uint32_t* reach(Wave& w, const Pending& p, int dwords, bool store) {
  const uint64_t address = p.base & ~uint64_t{3}, end = address + uint64_t(dwords) * 4;
  if (!w.covers(address, end) && !find_memory(w, address, end))
    return fault_address(w, p.inst, -1, address, dwords * 4, store), nullptr;
  return reinterpret_cast<uint32_t*>(address);
}

// Inst: d data, a base (two SGPRs, or a descriptor of four), b offset register, imm offset.
template <int kDwords, bool kBuffer>
bool land(Wave& w, const Pending& p) {
  const Inst* i = p.inst;
  const int wanted = in_range<kBuffer>(p, kDwords);
  for (int k = wanted; k < kDwords; ++k) w.s[i->d + k] = 0;
  if (wanted == 0) return true;
  const uint32_t* const from = reach(w, p, wanted, false);
  if (!from) return false;
  std::memcpy(w.s + i->d, from, size_t(wanted) * 4);
  return true;
}

template <int kDwords, bool kBuffer>
bool land_store(Wave& w, const Pending& p) {
  const int wanted = in_range<kBuffer>(p, kDwords);
  if (wanted == 0) return true;
  uint32_t* const to = reach(w, p, wanted, true);
  if (!to) return false;
  std::memcpy(to, p.data[0], size_t(wanted) * 4);
  return true;
}

// Inst::x: the old value returns to the data's registers.
template <class A, bool kBuffer>
bool land_atomic(Wave& w, const Pending& p) {
  using T = typename A::Type;
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  constexpr int n = sizeof(T) / 4;
  Bits before = 0;
  if (in_range<kBuffer>(p, n) == n) {
    uint32_t* const at = reach(w, p, n, true);
    if (!at) return false;
    if (reinterpret_cast<uint64_t>(at) % sizeof(T))
      return fault(w, p.inst, FaultKind::illegal_address, "misaligned atomic"), false;
    auto* const memory = reinterpret_cast<Bits*>(at);
    T operand[2] = {};
    std::memcpy(operand, p.data[0], sizeof(T) * (A::kTwoOperands ? 2 : 1));
    before = __atomic_load_n(memory, __ATOMIC_RELAXED);
    Bits after;
    do after = as<Bits>(A::apply(as<T>(before), operand[0], operand[1]));
    while (!__atomic_compare_exchange_n(memory, &before, after, true, __ATOMIC_SEQ_CST,
                                        __ATOMIC_RELAXED));
  }
  if (p.inst->x) std::memcpy(w.s + p.inst->d, &before, sizeof before);
  return true;
}

template <int kDwords, bool kBuffer, bool kData = false>
const Inst* issue(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter_smem(w, i, kDwords == 1 ? 1 : 2, p, slot)) return nullptr;
  const uint32_t offset = w.s[i->b];
  if constexpr (kBuffer) {
    std::memcpy(p->rsrc, w.s + i->a, 16);
    p->soffset = offset + static_cast<uint32_t>(i->imm);
    p->base = (w.s64(i->a) & 0xffffffffffff) + p->soffset;
  } else {
    p->base = w.s64(i->a) + offset + static_cast<int64_t>(i->imm);
  }
  if constexpr (kData) std::memcpy(p->data[0], w.s + i->d, kDwords * 4);
  return leave_smem(w, i, slot);
}

template <int kDwords, bool kBuffer, Landing kLand>
void lower(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.land = kLand;
  i.a = l.scalar(d.sbase, kBuffer ? 4 : 2);
  i.b = d.soffset == kNoOperand ? uint16_t{kSlotZero} : l.scalar(d.soffset);
  i.imm = d.offset;
  i.d = l.scalar_dst(d.data0 == kNoOperand ? d.dst : d.data0, kDwords);
  i.x = d.sc0;
}

template <int kDwords, bool kBuffer>
void add(Semantics& t, Op op) {
  set(t, op, lower<kDwords, kBuffer, land<kDwords, kBuffer>>, issue<kDwords, kBuffer>);
}
template <int kDwords, bool kBuffer>
void add_store(Semantics& t, Op op) {
  set(t, op, lower<kDwords, kBuffer, land_store<kDwords, kBuffer>>, issue<kDwords, kBuffer, true>);
}
template <bool kBuffer>
struct Add {
  template <class A>
  static void atomic(Semantics& t, Op op) {
    constexpr int n = A::kDataRows;
    set(t, op, lower<n, kBuffer, land_atomic<A, kBuffer>>, issue<n, kBuffer, true>);
  }
};

// Clocks return through the same queue; their value is that of the issue.
bool land_time(Wave& w, const Pending& p) {
  w.set64(p.inst->d, p.base);
  return true;
}
const Inst* issue_time(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!enter_smem(w, i, 2, p, slot)) return nullptr;
  p->base = read_clock() * static_cast<uint64_t>(i->imm) / 10;
  return leave_smem(w, i, slot);
}
template <int kTenths>
void lower_time(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.land = land_time;
  i.imm = kTenths;
  i.d = l.scalar_dst(d.dst, 2);
}

}  // namespace

void add_smem(Semantics& t) {
  add<1, false>(t, Op::s_load_dword);
  add<2, false>(t, Op::s_load_dwordx2);
  add<4, false>(t, Op::s_load_dwordx4);
  add<8, false>(t, Op::s_load_dwordx8);
  add<16, false>(t, Op::s_load_dwordx16);
  add<1, true>(t, Op::s_buffer_load_dword);
  add<2, true>(t, Op::s_buffer_load_dwordx2);
  add<4, true>(t, Op::s_buffer_load_dwordx4);
  add<8, true>(t, Op::s_buffer_load_dwordx8);
  add<16, true>(t, Op::s_buffer_load_dwordx16);
  add_store<1, false>(t, Op::s_store_dword);
  add_store<2, false>(t, Op::s_store_dwordx2);
  add_store<4, false>(t, Op::s_store_dwordx4);
  add_store<1, true>(t, Op::s_buffer_store_dword);
  add_store<2, true>(t, Op::s_buffer_store_dwordx2);
  add_store<4, true>(t, Op::s_buffer_store_dwordx4);
  EMU_INTEGER_ATOMICS(Add<false>, t, s)
  EMU_INTEGER_ATOMICS(Add<true>, t, s_buffer)
  set(t, Op::s_memtime, lower_time<24>, issue_time);     // shader clocks at 2.4 GHz
  set(t, Op::s_memrealtime, lower_time<1>, issue_time);  // 100 MHz
  // There is no cache to invalidate, write back or fill.
  for (Op op : {Op::s_dcache_inv, Op::s_dcache_wb, Op::s_dcache_inv_vol, Op::s_dcache_wb_vol,
                Op::s_atc_probe, Op::s_atc_probe_buffer})
    set(t, op, lower_plain, next);
}

}  // namespace emu::EMU_NS
