// VOP3P: packed operations, dot products, mixed-precision multiply-add, accumulation registers.
#include "isa/arithmetic.hpp"

namespace emu::EMU_NS {
namespace {

using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using i64 = int64_t;

void add_packed_integers(Semantics& t) {
  packed(
      t, Op::v_pk_mad_i16, [](i16 a, i16 b, i16 c) { return static_cast<i16>(a * b + c); },
      [](i16 a, i16 b, i16 c) { return saturated<i16>(a * b + c); });
  packed(
      t, Op::v_pk_mad_u16, [](u16 a, u16 b, u16 c) { return static_cast<u16>(u32{a} * b + c); },
      [](u16 a, u16 b, u16 c) { return saturated<u16>(u32{a} * b + c); });
  packed(
      t, Op::v_pk_mul_lo_u16, [](u16 a, u16 b) { return static_cast<u16>(u32{a} * b); },
      [](u16 a, u16 b) { return saturated<u16>(u32{a} * b); });
  packed(
      t, Op::v_pk_add_i16, [](i16 a, i16 b) { return static_cast<i16>(a + b); },
      [](i16 a, i16 b) { return saturated<i16>(a + b); });
  packed(
      t, Op::v_pk_sub_i16, [](i16 a, i16 b) { return static_cast<i16>(a - b); },
      [](i16 a, i16 b) { return saturated<i16>(a - b); });
  packed(
      t, Op::v_pk_add_u16, [](u16 a, u16 b) { return static_cast<u16>(a + b); },
      [](u16 a, u16 b) { return saturated<u16>(a + b); });
  packed(
      t, Op::v_pk_sub_u16, [](u16 a, u16 b) { return static_cast<u16>(a - b); },
      [](u16 a, u16 b) { return saturated<u16>(a - b); });
  packed(t, Op::v_pk_lshlrev_b16, [](u16 a, u16 b) { return static_cast<u16>(b << (a & 15)); });
  packed(t, Op::v_pk_lshrrev_b16, [](u16 a, u16 b) { return static_cast<u16>(b >> (a & 15)); });
  packed(t, Op::v_pk_ashrrev_i16, [](u16 a, i16 b) { return static_cast<i16>(b >> (a & 15)); });
  packed(t, Op::v_pk_max_i16, [](i16 a, i16 b) { return a > b ? a : b; });
  packed(t, Op::v_pk_min_i16, [](i16 a, i16 b) { return a < b ? a : b; });
  packed(t, Op::v_pk_max_u16, [](u16 a, u16 b) { return a > b ? a : b; });
  packed(t, Op::v_pk_min_u16, [](u16 a, u16 b) { return a < b ? a : b; });
}

void add_packed_floats(Semantics& t) {
  packed(t, Op::v_pk_fma_f16, [](Half a, Half b, Half c) { return Half{fma_half(a.f, b.f, c.f)}; });
  packed(t, Op::v_pk_add_f16, [](Half a, Half b) { return Half{a.f + b.f}; });
  packed(t, Op::v_pk_mul_f16, [](Half a, Half b) { return Half{a.f * b.f}; });
  packed(t, Op::v_pk_min_f16, [](Half a, Half b, Mode m) { return half_min(a, b, m); });
  packed(t, Op::v_pk_max_f16, [](Half a, Half b, Mode m) { return half_max(a, b, m); });
  packed(t, Op::v_pk_minimum3_f16, [](Half a, Half b, Half c) {
    return Half{minimum_or_maximum<false>(minimum_or_maximum<false>(a.f, b.f), c.f)};
  });
  packed(t, Op::v_pk_maximum3_f16, [](Half a, Half b, Half c) {
    return Half{minimum_or_maximum<true>(minimum_or_maximum<true>(a.f, b.f), c.f)};
  });
  packed32(t, Op::v_pk_fma_f32, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  packed32(t, Op::v_pk_mul_f32, [](float a, float b) { return a * b; });
  packed32(t, Op::v_pk_add_f32, [](float a, float b) { return a + b; });
}

void add_dot_products(Semantics& t) {
  dot(t, Op::v_dot2_f32_f16, [](u32 a, u32 b, float c) { return dot2_half(a, b, c); });
  dot(t, Op::v_dot2_f32_bf16, [](u32 a, u32 b, float c) { return dot2_bf16(a, b, c); });
#define EMU_DOT(op, bits, is_signed, T)                                                          \
  dot(                                                                                           \
      t, Op::op,                                                                                 \
      [](u32 a, u32 b, T c) { return static_cast<T>(dot_integers<bits, is_signed>(a, b) + c); }, \
      [](u32 a, u32 b, T c) { return saturated<T>(dot_integers<bits, is_signed>(a, b) + c); });
  EMU_DOT(v_dot2_i32_i16, 16, true, i32)
  EMU_DOT(v_dot4_i32_i8, 8, true, i32)
  EMU_DOT(v_dot8_i32_i4, 4, true, i32)
  EMU_DOT(v_dot2_u32_u16, 16, false, u32)
  EMU_DOT(v_dot4_u32_u8, 8, false, u32)
  EMU_DOT(v_dot8_u32_u4, 4, false, u32)
#undef EMU_DOT
}

// Two dwords, each picked by op_sel from a pair: the low result from the first source, the high one
// from the second.
const Inst* pk_mov(Wave& w, const Inst* i) {
  alignas(64) uint32_t low[kLanes], high[kLanes];
  if (i->x & 1)
    spread(low, w.s[i->a]);
  else
    std::memcpy(low, w.reg(i->a), sizeof low);
  if (i->x & 2)
    spread(high, w.s[i->b]);
  else
    std::memcpy(high, w.reg(i->b), sizeof high);
  blend(w.reg(i->d), low, w.exec());
  blend(w.reg(i->d) + kLanes, high, w.exec());
  return i + 1;
}
void lower_pk_mov(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  if (d.neg || d.neg_hi || d.clamp) return l.fail("modifiers of v_pk_mov_b32");
  i.fn = s.handler;
  uint16_t* const at[] = {&i.a, &i.b};
  for (int n = 0; n < 2; ++n) {
    const uint16_t select = d.op_sel >> n & 1;
    if (Lowering::is_vgpr(d.src[n])) {
      *at[n] = l.vector(d.src[n], 2) + select;
    } else {
      *at[n] = l.scalar(d.src[n], 2) + select;
      i.x |= 1 << n;
    }
  }
  i.d = l.vector(d.dst, 2);
}

}  // namespace

void add_vop3p(Semantics& t) {
  add_packed_integers(t);
  add_packed_floats(t);
  add_dot_products(t);
  mix(t, Op::v_fma_mix_f32, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  const auto to_half = [](float a, float b, float c) { return Half{__builtin_fmaf(a, b, c)}; };
  mix(t, Op::v_fma_mixlo_f16, to_half);
  mix(t, Op::v_fma_mixhi_f16, to_half);
  set(t, Op::v_pk_mov_b32, lower_pk_mov, pk_mov);
  vector(t, Op::v_accvgpr_read_b32, [](u32 a) { return a; });
  vector(t, Op::v_accvgpr_write_b32, [](u32 a) { return a; });
}

}  // namespace emu::EMU_NS
