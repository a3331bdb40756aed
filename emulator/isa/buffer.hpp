// Common to the instructions that take a buffer descriptor.
#pragma once

#include "isa/memory.hpp"

namespace emu::EMU_NS {

// Inst: d data register, a address register, b descriptor, c soffset, imm offset. x: kWhole where
// an access that is not all in range is none, kReturns for atomics that return the old value.
enum : uint16_t { kIdxen = 1, kOffen = 2, kWhole = 4, kReturns = 8 };

EMU_INLINE const Inst* issue_buffer(Wave& w, const Inst* i, uint8_t& slot, Pending*& p) {
  if (!enter_vm(w, i, p, slot)) return nullptr;
  std::memcpy(p->rsrc, w.s + i->b, 16);
  p->soffset = w.s[i->c];
  if (i->x & (kIdxen | kOffen)) snapshot<1>(p->addr, w.reg(i->a));
  if ((i->x & (kIdxen | kOffen)) == (kIdxen | kOffen)) snapshot<1>(p->addr + 1, w.reg(i->a + 1));
  return i;
}

EMU_INLINE void lower_buffer(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.b = l.scalar(d.sbase, 4);
  i.c = d.soffset == kNoOperand ? uint16_t{kSlotZero} : l.scalar(d.soffset);
  i.imm = d.offset;
  i.x = static_cast<uint16_t>((d.idxen ? kIdxen : 0) | (d.offen ? kOffen : 0));
  if (d.idxen || d.offen) i.a = l.vector(d.addr, d.idxen && d.offen ? 2 : 1);
}

}  // namespace emu::EMU_NS
