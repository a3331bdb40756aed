#include "isa/lanes.hpp"

namespace emu::EMU_NS {

// Sources in the order of the lambda's parameters; a mask operand (v_cndmask, v_addc) must be the
// third; the destination, where it is read, comes after the explicit sources.
void lower_vector(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  const OpInfo& op = info(d.op);
  if (d.dpp || d.sdwa) return l.fail("DPP and SDWA forms are not emulated yet");
  const bool saturate = d.clamp && s.clamped;
  i.wide = reinterpret_cast<uint64_t>(saturate ? s.clamped : s.loop);
  uint16_t* const at[] = {&i.a, &i.b, &i.c};
  int n = 0;
  for (; n < 3 && op.src[n]; ++n) {
    const OperandType& type = op.src[n];
    if (type.dwords == 2 && type.kind == 'b' && n == 2 && op.has(kReadsVcc)) {
      i.c = l.scalar(d.src[n], 2);
      i.x |= kMask2;
      continue;
    }
    if (type.dwords == 2) i.x |= kWide0 << n;
    if (Lowering::is_vgpr(d.src[n])) {
      *at[n] = l.vector(d.src[n], type.dwords);
    } else {
      *at[n] = l.scalar(d.src[n], type);
      i.x |= kScalar0 << n;
    }
  }
  if (op.has(kReadsDst)) {
    if (n > 2) return l.fail("too many sources");
    *at[n] = l.vector(d.dst, op.dst.dwords);
    if (op.dst.dwords == 2) i.x |= kWide0 << n;
  }
  if (d.format == Family::VOPC || op.family == Family::VOPC) {
    i.x |= kMaskDst;
    i.y = l.scalar_dst(d.dst, 2);
    if (op.has(kWritesExec)) i.x |= kExecDst;
  } else {
    i.x |= kValueDst;
    i.d = l.vector(d.dst, op.dst.dwords);
    if (op.dst.dwords == 2) i.x |= kWideDst;
    if (op.dst2) {
      i.x |= kMaskDst;
      i.y = l.scalar_dst(d.dst2, 2);
    }
  }
  i.imm = d.abs | d.neg << 3 | d.omod << 6 | (d.clamp && !saturate ? kModifierClamp : 0);
  if (i.imm & ~63 && !(op.dst.kind == 'f' && op.dst.bits == 32))
    return l.fail("output modifiers are emulated for f32 results only");
  if (d.op_sel) return l.fail("op_sel is not emulated here");
  i.fn = i.imm ? run_vector<true> : run_vector<false>;
}

}  // namespace emu::EMU_NS
