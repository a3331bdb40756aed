// VOP3P: packed operations.
#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

// ---- pairs of f32 -------------------------------------------------------------------------------

// Sources are register pairs. For each half of the result, op_sel and op_sel_hi say which register
// of each pair is read, neg_lo and neg_hi whether it is negated.
// Inst: x as for other vector operations; imm: op_sel, op_sel_hi, neg_lo, neg_hi, three bits each.
template <class F>
const Inst* run_pair(Wave& w, const Inst* i) {
  alignas(64) uint32_t result[2][kLanes];
  const uint16_t at[3] = {i->a, i->b, i->c};
  for (int half = 0; half < 2; ++half) {
    alignas(64) uint32_t buffer[3][2][kLanes];
    Rows rows;
    rows.d = result[half];
    for (int n = 0; n < 3; ++n) {
      const int pick = i->imm >> (3 * half + n) & 1, negate = i->imm >> (6 + 3 * half + n) & 1;
      if (i->x & (kScalar0 << n))
        spread(buffer[n][0], w.s[at[n] + pick]), rows.src[n] = buffer[n][0];
      else
        rows.src[n] = w.reg(at[n] + pick);
      if (negate) rows.src[n] = modify_row(rows.src[n], false, false, true, buffer[n]);
    }
    LoopOf<F>::run(rows);
  }
  blend(w.reg(i->d), result[0], w.exec());
  blend(w.reg(i->d + 1), result[1], w.exec());
  return i + 1;
}
void lower_pair(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  const OpInfo& op = info(d.op);
  uint16_t* const at[] = {&i.a, &i.b, &i.c};
  for (int n = 0; n < 3 && op.src[n]; ++n) {
    if (Lowering::is_vgpr(d.src[n])) {
      *at[n] = l.vector(d.src[n], 2);
    } else {
      // A constant is the same in both halves.
      *at[n] = l.scalar(d.src[n], d.src[n] < 128 ? OperandType{'b', {}, 64, 1, 2}
                                                 : OperandType{'f', {}, 32, 1, 1});
      i.x |= kScalar0 << n;
    }
  }
  i.fn = s.handler;
  i.d = l.vector(d.dst, 2);
  int sel = d.op_sel, sel_hi = d.op_sel_hi;
  for (int n = 0; n < 3; ++n)
    if ((i.x & (kScalar0 << n)) && d.src[n] >= 128) sel &= ~(1 << n), sel_hi &= ~(1 << n);
  i.imm = sel | sel_hi << 3 | d.neg << 6 | d.neg_hi << 9;
  if (d.clamp) l.fail("clamp of packed f32 is not emulated yet");
}
template <class F>
void pair(Semantics& t, Op op, F) {
  set(t, op, lower_pair, run_pair<F>);
}

}  // namespace

void add_vop3p(Semantics& t) {
  pair(t, Op::v_pk_fma_f32, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  pair(t, Op::v_pk_mul_f32, [](float a, float b) { return a * b; });
  pair(t, Op::v_pk_add_f32, [](float a, float b) { return a + b; });
}

}  // namespace emu::EMU_NS
