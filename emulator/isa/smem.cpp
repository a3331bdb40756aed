// SMEM: scalar loads. The SGPRs change when the wait forces it, in any order before that.
#include "isa/exec.hpp"

namespace emu::EMU_NS {
namespace {

// Inst: d destination, a base (two SGPRs, or a descriptor of four), b offset register, imm offset.
template <int kDwords, bool kBuffer>
bool land(Wave& w, const Pending& p) {
  const Inst* i = p.inst;
  uint64_t address = p.base;
  int wanted = kDwords;
  if constexpr (kBuffer) {
    // Range in bytes: records times stride, or bytes if there is no stride.
    const uint64_t stride = p.rsrc[1] >> 16 & 0x3fff;
    const uint64_t size = p.rsrc[2] * (stride ? stride : 1);
    const uint64_t offset = p.soffset & ~3u;
    wanted = offset >= size
                 ? 0
                 : static_cast<int>((size - offset) / 4 < kDwords ? (size - offset) / 4 : kDwords);
    for (int k = wanted; k < kDwords; ++k) w.s[i->d + k] = 0;
  }
  address &= ~uint64_t{3};
  if (wanted == 0) return true;
  const uint64_t end = address + uint64_t(wanted) * 4;
  if (!w.covers(address, end) && !find_memory(w, address, end))
    return fault_address(w, i, -1, address, wanted * 4, false), false;
  std::memcpy(w.s + i->d, reinterpret_cast<const void*>(address), size_t(wanted) * 4);
  return true;
}

template <int kDwords, bool kBuffer>
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
  return leave_smem(w, i, slot);
}

template <int kDwords, bool kBuffer>
void lower(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.land = land<kDwords, kBuffer>;
  i.a = l.scalar(d.sbase, kBuffer ? 4 : 2);
  i.b = d.soffset == kNoOperand ? uint16_t{kSlotZero} : l.scalar(d.soffset);
  i.imm = d.offset;
  i.d = l.scalar_dst(d.dst, kDwords);
}

template <int kDwords, bool kBuffer>
void add(Semantics& t, Op op) {
  set(t, op, lower<kDwords, kBuffer>, issue<kDwords, kBuffer>);
}

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

const Inst* next(Wave&, const Inst* i) { return i + 1; }
void lower_plain(Lowering&, const Decoded&, const Semantic& s, Inst& i) { i.fn = s.handler; }

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
  set(t, Op::s_memtime, lower_time<24>, issue_time);     // shader clocks at 2.4 GHz
  set(t, Op::s_memrealtime, lower_time<1>, issue_time);  // 100 MHz
  // There is no cache to invalidate or write back.
  for (Op op : {Op::s_dcache_inv, Op::s_dcache_wb, Op::s_dcache_inv_vol, Op::s_dcache_wb_vol})
    set(t, op, lower_plain, next);
}

}  // namespace emu::EMU_NS
