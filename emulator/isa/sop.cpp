// SOP1, SOP2, SOPC, SOPK: the scalar ALU.
#include "isa/scalar.hpp"

namespace emu::EMU_NS {
namespace {

using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

// ---- helpers ------------------------------------------------------------------------------------

EMU_INLINE u64 low_bits(u32 n) { return n >= 64 ? ~u64{0} : (u64{1} << n) - 1; }

// exec = f(source, exec); the old exec is the result.
EMU_INLINE u64 save_exec(Wave& w, u64 now) {
  const u64 old = w.exec();
  w.set64(kSlotExec, scc(w, now));
  return old;
}
// exec = f(source, exec), which is also the result.
EMU_INLINE u64 write_exec(Wave& w, u64 now) {
  w.set64(kSlotExec, scc(w, now));
  return now;
}

EMU_INLINE u32 whole_quads(u64 x, u64& out) {
  out = 0;
  for (int q = 0; q < 16; ++q)
    if (x >> (4 * q) & 15) out |= u64{15} << (4 * q);
  return out != 0;
}

// One bit per group of four.
EMU_INLINE u64 quad_mask(u64 x) {
  u64 out = 0;
  for (int q = 0; q < 16; ++q) out |= static_cast<u64>((x >> (4 * q) & 15) != 0) << q;
  return out;
}

EMU_INLINE u64 replicate(u32 x) {
  u64 out = 0;
  for (int b = 0; b < 32; ++b) out |= static_cast<u64>(x >> b & 1) * 3 << (2 * b);
  return out;
}

template <class T>
EMU_INLINE T reverse(T x) {
  T out = 0;
  for (size_t b = 0; b < sizeof(T) * 8; ++b) out |= (x >> b & 1) << (sizeof(T) * 8 - 1 - b);
  return out;
}

// Leading bits equal to the sign, -1 if all are.
template <class T>
EMU_INLINE u32 sign_run(T x) {
  const T flipped = x < 0 ? ~x : x;
  if (flipped == 0) return ~0u;
  return std::countl_zero(static_cast<std::make_unsigned_t<T>>(flipped));
}

// ---- indexed SGPR access ------------------------------------------------------------------------

// s_movrel: M0 is added to a register number; a result outside the SGPRs faults.
template <int kDwords, bool kSource>
const Inst* move_relative(Wave& w, const Inst* i) {
  const u64 at = u64{kSource ? i->a : i->d} + w.s[kSlotM0];
  if (at + kDwords > 108)
    return fault(w, i, FaultKind::launch_failure, "M0 indexes beyond the scalar registers");
  for (int k = 0; k < kDwords; ++k) w.s[(kSource ? i->d : at) + k] = w.s[(kSource ? at : i->a) + k];
  return i + 1;
}
template <int kDwords, bool kSource>
void lower_move_relative(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.scalar(d.src[0], kDwords);
  i.d = l.scalar_dst(d.dst, kDwords);
}
template <int kDwords, bool kSource>
void relative(Semantics& t, Op op) {
  set(t, op, lower_move_relative<kDwords, kSource>, move_relative<kDwords, kSource>);
}

// s_set_gpr_idx_on: M0 takes the index and, in bits 12 to 15, the operands it applies to.
EMU_INLINE void set_index(Wave& w, u32 mask, u32 value) {
  w.s[kSlotM0] = (w.s[kSlotM0] & ~mask) | (value & mask);
}
const Inst* index_on(Wave& w, const Inst* i) {
  set_index(w, 0xf0ff, (w.s[i->a] & 0xff) | static_cast<u32>(i->imm) << 12);
  w.mode |= kModeGprIndex;
  return i + 1;
}
void lower_index_on(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.imm;
  i.a = l.scalar(d.src[0]);
}

// ---- SOPK ---------------------------------------------------------------------------------------

// The immediate is a constant of source b; the destination register is the other operand.
template <class F>
void lower_immediate(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  const Operand reg = d.dst != kNoOperand ? d.dst : d.src[0];
  i.a = l.scalar(reg);
  i.b = l.constant(static_cast<u32>(d.imm));
  i.d = l.scalar_dst(reg);
}
template <class F>
void immediate(Semantics& t, Op op, F) {
  set(t, op, lower_immediate<F>, ScalarOp<F>::run);
}
// Unsigned comparisons take the immediate zero-extended.
template <class F>
void lower_unsigned(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_immediate<F>(l, d, s, i);
  i.b = l.constant(static_cast<u32>(d.imm) & 0xffff);
}
template <class F>
void immediate_unsigned(Semantics& t, Op op, F) {
  set(t, op, lower_unsigned<F>, ScalarOp<F>::run);
}

// ---- hardware registers -------------------------------------------------------------------------

EMU_INLINE u32 read_hardware(const Wave& w, u32 id) {
  switch (id) {
    case 1:
      return w.mode;
    case 2:
      return w.scc | (w.exec() == 0) << 9 | (w.vcc() == 0) << 10 | 1u << 16;  // STATUS
    case 4:
      return w.index & 3;  // HW_ID: only the SIMD part of it is emulated
    case 5:
      return w.vgprs / 8 - 1;
    default:
      return 0;  // TRAPSTS, LDS_ALLOC, XCC_ID: nothing pending, first of its kind
  }
}

const Inst* getreg(Wave& w, const Inst* i) {
  const u32 id = i->imm & 63, offset = i->imm >> 6 & 31, size = (i->imm >> 11 & 31) + 1;
  w.s[i->d] = static_cast<u32>(read_hardware(w, id) >> offset & low_bits(size));
  return i + 1;
}
void lower_getreg(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.imm & 0xffff;
  i.d = l.scalar_dst(d.dst);
}

const Inst* setreg(Wave& w, const Inst* i) {
  const u32 id = i->imm & 63, offset = i->imm >> 6 & 31, size = (i->imm >> 11 & 31) + 1;
  const auto mask = static_cast<u32>(low_bits(size) << offset);
  if (id == 1) w.mode = (w.mode & ~mask) | (w.s[i->a] << offset & mask);
  return i + 1;
}
void lower_setreg(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.imm = d.imm & 0xffff;
  if ((i.imm & 63) != 1 && (i.imm & 63) != 3)
    l.fail("only MODE and TRAPSTS can be written by s_setreg here");
  i.a = d.op == Op::s_setreg_imm32_b32 ? l.constant(d.literal) : l.scalar(d.src[0]);
}

void add_sop1(Semantics& t) {
  scalar(t, Op::s_mov_b32, [](Wave&, u32 a) { return a; });
  scalar(t, Op::s_mov_b64, [](Wave&, u64 a) { return a; });
  scalar(t, Op::s_not_b32, [](Wave& w, u32 a) { return scc(w, ~a); });
  scalar(t, Op::s_not_b64, [](Wave& w, u64 a) { return scc(w, ~a); });
  scalar(t, Op::s_wqm_b32, [](Wave& w, u32 a) {
    u64 out;
    w.scc = whole_quads(a, out);
    return static_cast<u32>(out);
  });
  scalar(t, Op::s_wqm_b64, [](Wave& w, u64 a) {
    u64 out;
    w.scc = whole_quads(a, out);
    return out;
  });
  scalar(t, Op::s_brev_b32, [](Wave&, u32 a) { return reverse(a); });
  scalar(t, Op::s_brev_b64, [](Wave&, u64 a) { return reverse(a); });
  scalar(t, Op::s_bcnt0_i32_b32, [](Wave& w, u32 a) { return scc(w, u32(std::popcount(~a))); });
  scalar(t, Op::s_bcnt0_i32_b64, [](Wave& w, u64 a) { return scc(w, u32(std::popcount(~a))); });
  scalar(t, Op::s_bcnt1_i32_b32, [](Wave& w, u32 a) { return scc(w, u32(std::popcount(a))); });
  scalar(t, Op::s_bcnt1_i32_b64, [](Wave& w, u64 a) { return scc(w, u32(std::popcount(a))); });
  scalar(t, Op::s_ff0_i32_b32, [](Wave&, u32 a) { return ~a ? u32(std::countr_one(a)) : ~0u; });
  scalar(t, Op::s_ff0_i32_b64, [](Wave&, u64 a) { return ~a ? u32(std::countr_one(a)) : ~0u; });
  scalar(t, Op::s_ff1_i32_b32, [](Wave&, u32 a) { return a ? u32(std::countr_zero(a)) : ~0u; });
  scalar(t, Op::s_ff1_i32_b64, [](Wave&, u64 a) { return a ? u32(std::countr_zero(a)) : ~0u; });
  scalar(t, Op::s_flbit_i32_b32, [](Wave&, u32 a) { return a ? u32(std::countl_zero(a)) : ~0u; });
  scalar(t, Op::s_flbit_i32_b64, [](Wave&, u64 a) { return a ? u32(std::countl_zero(a)) : ~0u; });
  scalar(t, Op::s_flbit_i32, [](Wave&, i32 a) { return sign_run(a); });
  scalar(t, Op::s_flbit_i32_i64, [](Wave&, i64 a) { return sign_run(a); });
  scalar(t, Op::s_sext_i32_i8, [](Wave&, u32 a) { return i32{static_cast<int8_t>(a)}; });
  scalar(t, Op::s_sext_i32_i16, [](Wave&, u32 a) { return i32{static_cast<int16_t>(a)}; });
  scalar(t, Op::s_abs_i32, [](Wave& w, i32 a) { return scc(w, a < 0 ? 0u - u32(a) : u32(a)); });
  scalar(t, Op::s_quadmask_b32,
         [](Wave& w, u32 a) { return scc(w, static_cast<u32>(quad_mask(a))); });
  scalar(t, Op::s_quadmask_b64, [](Wave& w, u64 a) { return scc(w, quad_mask(a)); });
  scalar(t, Op::s_bitreplicate_b64_b32, [](Wave&, u32 a) { return replicate(a); });

  scalar(t, Op::s_and_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, a & w.exec()); });
  scalar(t, Op::s_or_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, a | w.exec()); });
  scalar(t, Op::s_xor_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, a ^ w.exec()); });
  scalar(t, Op::s_andn2_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, a & ~w.exec()); });
  scalar(t, Op::s_orn2_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, a | ~w.exec()); });
  scalar(t, Op::s_nand_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, ~(a & w.exec())); });
  scalar(t, Op::s_nor_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, ~(a | w.exec())); });
  scalar(t, Op::s_xnor_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, ~(a ^ w.exec())); });
  scalar(t, Op::s_andn1_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, ~a & w.exec()); });
  scalar(t, Op::s_orn1_saveexec_b64, [](Wave& w, u64 a) { return save_exec(w, ~a | w.exec()); });
  scalar(t, Op::s_andn1_wrexec_b64, [](Wave& w, u64 a) { return write_exec(w, ~a & w.exec()); });
  scalar(t, Op::s_andn2_wrexec_b64, [](Wave& w, u64 a) { return write_exec(w, a & ~w.exec()); });

  relative<1, true>(t, Op::s_movrels_b32);
  relative<2, true>(t, Op::s_movrels_b64);
  relative<1, false>(t, Op::s_movreld_b32);
  relative<2, false>(t, Op::s_movreld_b64);

  // These read or write only part of the destination.
  set(t, Op::s_cmov_b32, ScalarOp<decltype([](Wave&, u32 a) { return a; })>::lower,
      [](Wave& w, const Inst* i) {
        if (w.scc) w.s[i->d] = w.s[i->a];
        return i + 1;
      });
  set(t, Op::s_cmov_b64, ScalarOp<decltype([](Wave&, u64 a) { return a; })>::lower,
      [](Wave& w, const Inst* i) {
        if (w.scc) w.set64(i->d, w.s64(i->a));
        return i + 1;
      });
  set(t, Op::s_bitset0_b32, ScalarOp<decltype([](Wave&, u32 a) { return a; })>::lower,
      [](Wave& w, const Inst* i) {
        w.s[i->d] &= ~(1u << (w.s[i->a] & 31));
        return i + 1;
      });
  set(t, Op::s_bitset1_b32, ScalarOp<decltype([](Wave&, u32 a) { return a; })>::lower,
      [](Wave& w, const Inst* i) {
        w.s[i->d] |= 1u << (w.s[i->a] & 31);
        return i + 1;
      });
  using From32To64 = ScalarOp<decltype([](Wave&, u32 a) { return u64{a}; })>;
  set(t, Op::s_bitset0_b64, From32To64::lower, [](Wave& w, const Inst* i) {
    w.set64(i->d, w.s64(i->d) & ~(u64{1} << (w.s[i->a] & 63)));
    return i + 1;
  });
  set(t, Op::s_bitset1_b64, From32To64::lower, [](Wave& w, const Inst* i) {
    w.set64(i->d, w.s64(i->d) | u64{1} << (w.s[i->a] & 63));
    return i + 1;
  });
}

void add_sop2(Semantics& t) {
  scalar(t, Op::s_add_u32, [](Wave& w, u32 a, u32 b) {
    const u32 r = a + b;
    w.scc = r < a;
    return r;
  });
  scalar(t, Op::s_sub_u32, [](Wave& w, u32 a, u32 b) {
    w.scc = b > a;
    return a - b;
  });
  scalar(t, Op::s_add_i32, [](Wave& w, u32 a, u32 b) {
    const u32 r = a + b;
    w.scc = (~(a ^ b) & (a ^ r)) >> 31;
    return r;
  });
  scalar(t, Op::s_sub_i32, [](Wave& w, u32 a, u32 b) {
    const u32 r = a - b;
    w.scc = ((a ^ b) & (a ^ r)) >> 31;
    return r;
  });
  scalar(t, Op::s_addc_u32, [](Wave& w, u32 a, u32 b) {
    const u64 r = u64{a} + b + w.scc;
    w.scc = static_cast<u32>(r >> 32);
    return static_cast<u32>(r);
  });
  scalar(t, Op::s_subb_u32, [](Wave& w, u32 a, u32 b) {
    const u64 r = u64{a} - b - w.scc;
    w.scc = static_cast<u32>(r >> 32) & 1;
    return static_cast<u32>(r);
  });
  scalar(t, Op::s_min_i32, [](Wave& w, i32 a, i32 b) { return w.scc = a < b, a < b ? a : b; });
  scalar(t, Op::s_min_u32, [](Wave& w, u32 a, u32 b) { return w.scc = a < b, a < b ? a : b; });
  scalar(t, Op::s_max_i32, [](Wave& w, i32 a, i32 b) { return w.scc = a > b, a > b ? a : b; });
  scalar(t, Op::s_max_u32, [](Wave& w, u32 a, u32 b) { return w.scc = a > b, a > b ? a : b; });
  scalar(t, Op::s_cselect_b32, [](Wave& w, u32 a, u32 b) { return w.scc ? a : b; });
  scalar(t, Op::s_cselect_b64, [](Wave& w, u64 a, u64 b) { return w.scc ? a : b; });
  scalar(t, Op::s_and_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a & b); });
  scalar(t, Op::s_and_b64, [](Wave& w, u64 a, u64 b) { return scc(w, a & b); });
  scalar(t, Op::s_or_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a | b); });
  scalar(t, Op::s_or_b64, [](Wave& w, u64 a, u64 b) { return scc(w, a | b); });
  scalar(t, Op::s_xor_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a ^ b); });
  scalar(t, Op::s_xor_b64, [](Wave& w, u64 a, u64 b) { return scc(w, a ^ b); });
  scalar(t, Op::s_andn2_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a & ~b); });
  scalar(t, Op::s_andn2_b64, [](Wave& w, u64 a, u64 b) { return scc(w, a & ~b); });
  scalar(t, Op::s_orn2_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a | ~b); });
  scalar(t, Op::s_orn2_b64, [](Wave& w, u64 a, u64 b) { return scc(w, a | ~b); });
  scalar(t, Op::s_nand_b32, [](Wave& w, u32 a, u32 b) { return scc(w, ~(a & b)); });
  scalar(t, Op::s_nand_b64, [](Wave& w, u64 a, u64 b) { return scc(w, ~(a & b)); });
  scalar(t, Op::s_nor_b32, [](Wave& w, u32 a, u32 b) { return scc(w, ~(a | b)); });
  scalar(t, Op::s_nor_b64, [](Wave& w, u64 a, u64 b) { return scc(w, ~(a | b)); });
  scalar(t, Op::s_xnor_b32, [](Wave& w, u32 a, u32 b) { return scc(w, ~(a ^ b)); });
  scalar(t, Op::s_xnor_b64, [](Wave& w, u64 a, u64 b) { return scc(w, ~(a ^ b)); });
  scalar(t, Op::s_lshl_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a << (b & 31)); });
  scalar(t, Op::s_lshl_b64, [](Wave& w, u64 a, u32 b) { return scc(w, a << (b & 63)); });
  scalar(t, Op::s_lshr_b32, [](Wave& w, u32 a, u32 b) { return scc(w, a >> (b & 31)); });
  scalar(t, Op::s_lshr_b64, [](Wave& w, u64 a, u32 b) { return scc(w, a >> (b & 63)); });
  scalar(t, Op::s_ashr_i32, [](Wave& w, i32 a, u32 b) { return scc(w, a >> (b & 31)); });
  scalar(t, Op::s_ashr_i64, [](Wave& w, i64 a, u32 b) { return scc(w, a >> (b & 63)); });
  scalar(t, Op::s_bfm_b32,
         [](Wave&, u32 a, u32 b) { return static_cast<u32>(low_bits(a & 31)) << (b & 31); });
  scalar(t, Op::s_bfm_b64, [](Wave&, u32 a, u32 b) { return low_bits(a & 63) << (b & 63); });
  scalar(t, Op::s_mul_i32, [](Wave&, u32 a, u32 b) { return a * b; });
  scalar(t, Op::s_mul_hi_u32,
         [](Wave&, u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); });
  scalar(t, Op::s_mul_hi_i32,
         [](Wave&, i32 a, i32 b) { return static_cast<u32>(i64{a} * b >> 32); });
  // Bit fields: offset in bits 0 up, width in bits 16-22 of the second source.
  scalar(t, Op::s_bfe_u32, [](Wave& w, u32 a, u32 b) {
    return scc(w, static_cast<u32>(a >> (b & 31) & low_bits(b >> 16 & 127)));
  });
  scalar(t, Op::s_bfe_u64,
         [](Wave& w, u64 a, u32 b) { return scc(w, a >> (b & 63) & low_bits(b >> 16 & 127)); });
  scalar(t, Op::s_bfe_i32, [](Wave& w, i32 a, u32 b) {
    const u32 width = b >> 16 & 127, offset = b & 31;
    if (width == 0) return scc(w, i32{0});
    const i64 field = i64{a} >> offset;
    return scc(w, width >= 32 ? i32(field) : i32(u32(field) << (32 - width)) >> (32 - width));
  });
  scalar(t, Op::s_bfe_i64, [](Wave& w, i64 a, u32 b) {
    const u32 width = b >> 16 & 127, offset = b & 63;
    if (width == 0) return scc(w, i64{0});
    const i64 field = a >> offset;
    return scc(w, width >= 64 ? field : i64(u64(field) << (64 - width)) >> (64 - width));
  });
  scalar(t, Op::s_absdiff_i32, [](Wave& w, i32 a, i32 b) {
    const u32 r = a > b ? u32(a) - u32(b) : u32(b) - u32(a);
    return scc(w, r);
  });
  scalar(t, Op::s_lshl1_add_u32, [](Wave& w, u32 a, u32 b) {
    const u64 r = (u64{a} << 1) + b;
    return w.scc = r > 0xffffffff, static_cast<u32>(r);
  });
  scalar(t, Op::s_lshl2_add_u32, [](Wave& w, u32 a, u32 b) {
    const u64 r = (u64{a} << 2) + b;
    return w.scc = r > 0xffffffff, static_cast<u32>(r);
  });
  scalar(t, Op::s_lshl3_add_u32, [](Wave& w, u32 a, u32 b) {
    const u64 r = (u64{a} << 3) + b;
    return w.scc = r > 0xffffffff, static_cast<u32>(r);
  });
  scalar(t, Op::s_lshl4_add_u32, [](Wave& w, u32 a, u32 b) {
    const u64 r = (u64{a} << 4) + b;
    return w.scc = r > 0xffffffff, static_cast<u32>(r);
  });
  scalar(t, Op::s_pack_ll_b32_b16, [](Wave&, u32 a, u32 b) { return (a & 0xffff) | b << 16; });
  scalar(t, Op::s_pack_lh_b32_b16,
         [](Wave&, u32 a, u32 b) { return (a & 0xffff) | (b & 0xffff0000); });
  scalar(t, Op::s_pack_hh_b32_b16, [](Wave&, u32 a, u32 b) { return a >> 16 | (b & 0xffff0000); });
}

void add_sopc(Semantics& t) {
  scalar(t, Op::s_cmp_eq_i32, [](Wave& w, i32 a, i32 b) { w.scc = a == b; });
  scalar(t, Op::s_cmp_lg_i32, [](Wave& w, i32 a, i32 b) { w.scc = a != b; });
  scalar(t, Op::s_cmp_gt_i32, [](Wave& w, i32 a, i32 b) { w.scc = a > b; });
  scalar(t, Op::s_cmp_ge_i32, [](Wave& w, i32 a, i32 b) { w.scc = a >= b; });
  scalar(t, Op::s_cmp_lt_i32, [](Wave& w, i32 a, i32 b) { w.scc = a < b; });
  scalar(t, Op::s_cmp_le_i32, [](Wave& w, i32 a, i32 b) { w.scc = a <= b; });
  scalar(t, Op::s_cmp_eq_u32, [](Wave& w, u32 a, u32 b) { w.scc = a == b; });
  scalar(t, Op::s_cmp_lg_u32, [](Wave& w, u32 a, u32 b) { w.scc = a != b; });
  scalar(t, Op::s_cmp_gt_u32, [](Wave& w, u32 a, u32 b) { w.scc = a > b; });
  scalar(t, Op::s_cmp_ge_u32, [](Wave& w, u32 a, u32 b) { w.scc = a >= b; });
  scalar(t, Op::s_cmp_lt_u32, [](Wave& w, u32 a, u32 b) { w.scc = a < b; });
  scalar(t, Op::s_cmp_le_u32, [](Wave& w, u32 a, u32 b) { w.scc = a <= b; });
  scalar(t, Op::s_cmp_eq_u64, [](Wave& w, u64 a, u64 b) { w.scc = a == b; });
  scalar(t, Op::s_cmp_lg_u64, [](Wave& w, u64 a, u64 b) { w.scc = a != b; });
  scalar(t, Op::s_bitcmp0_b32, [](Wave& w, u32 a, u32 b) { w.scc = !(a >> (b & 31) & 1); });
  scalar(t, Op::s_bitcmp1_b32, [](Wave& w, u32 a, u32 b) { w.scc = a >> (b & 31) & 1; });
  scalar(t, Op::s_bitcmp0_b64, [](Wave& w, u64 a, u32 b) { w.scc = !(a >> (b & 63) & 1); });
  scalar(t, Op::s_bitcmp1_b64, [](Wave& w, u64 a, u32 b) { w.scc = a >> (b & 63) & 1; });
}

void add_index_mode(Semantics& t) {
  set(t, Op::s_set_gpr_idx_on, lower_index_on, index_on);
  scalar(t, Op::s_set_gpr_idx_idx, [](Wave& w, u32 a) { set_index(w, 0xff, a); });
  scalar(t, Op::s_setvskip, [](Wave& w, u32 a, u32 b) {
    w.mode = a >> (b & 31) & 1 ? w.mode | kModeVskip : w.mode & ~kModeVskip;
  });
  const auto lower = [](Lowering&, const Decoded& d, const Semantic& s, Inst& i) {
    i.fn = s.handler;
    i.imm = d.imm;
  };
  set(t, Op::s_set_gpr_idx_off, lower, [](Wave& w, const Inst* i) {
    w.mode &= ~kModeGprIndex;
    return i + 1;
  });
  set(t, Op::s_set_gpr_idx_mode, lower, [](Wave& w, const Inst* i) {
    set_index(w, 0xf000, static_cast<u32>(i->imm) << 12);
    return i + 1;
  });
}

void add_sopk(Semantics& t) {
  immediate(t, Op::s_movk_i32, [](Wave&, u32, u32 k) { return k; });
  immediate(t, Op::s_cmovk_i32, [](Wave& w, u32 a, u32 k) { return w.scc ? k : a; });
  immediate(t, Op::s_addk_i32, [](Wave& w, u32 a, u32 k) {
    const u32 r = a + k;
    w.scc = (~(a ^ k) & (a ^ r)) >> 31;
    return r;
  });
  immediate(t, Op::s_mulk_i32, [](Wave&, u32 a, u32 k) { return a * k; });
  immediate(t, Op::s_cmpk_eq_i32, [](Wave& w, i32 a, i32 k) { w.scc = a == k; });
  immediate(t, Op::s_cmpk_lg_i32, [](Wave& w, i32 a, i32 k) { w.scc = a != k; });
  immediate(t, Op::s_cmpk_gt_i32, [](Wave& w, i32 a, i32 k) { w.scc = a > k; });
  immediate(t, Op::s_cmpk_ge_i32, [](Wave& w, i32 a, i32 k) { w.scc = a >= k; });
  immediate(t, Op::s_cmpk_lt_i32, [](Wave& w, i32 a, i32 k) { w.scc = a < k; });
  immediate(t, Op::s_cmpk_le_i32, [](Wave& w, i32 a, i32 k) { w.scc = a <= k; });
  immediate_unsigned(t, Op::s_cmpk_eq_u32, [](Wave& w, u32 a, u32 k) { w.scc = a == k; });
  immediate_unsigned(t, Op::s_cmpk_lg_u32, [](Wave& w, u32 a, u32 k) { w.scc = a != k; });
  immediate_unsigned(t, Op::s_cmpk_gt_u32, [](Wave& w, u32 a, u32 k) { w.scc = a > k; });
  immediate_unsigned(t, Op::s_cmpk_ge_u32, [](Wave& w, u32 a, u32 k) { w.scc = a >= k; });
  immediate_unsigned(t, Op::s_cmpk_lt_u32, [](Wave& w, u32 a, u32 k) { w.scc = a < k; });
  immediate_unsigned(t, Op::s_cmpk_le_u32, [](Wave& w, u32 a, u32 k) { w.scc = a <= k; });
  set(t, Op::s_getreg_b32, lower_getreg, getreg);
  set(t, Op::s_setreg_b32, lower_setreg, setreg);
  set(t, Op::s_setreg_imm32_b32, lower_setreg, setreg);
}

}  // namespace

void add_sop(Semantics& t) {
  add_sop1(t);
  add_sop2(t);
  add_sopc(t);
  add_sopk(t);
  add_index_mode(t);
}

}  // namespace emu::EMU_NS
