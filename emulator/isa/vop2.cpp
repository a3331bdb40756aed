// VOP2: vector operations with two sources.
#include "isa/arithmetic.hpp"

namespace emu::EMU_NS {
namespace {

using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

EMU_INLINE i32 low24(i32 x) { return static_cast<i32>(static_cast<u32>(x) << 8) >> 8; }
EMU_INLINE u32 low24(u32 x) { return x & 0xffffff; }

// Rounded after the product and again after the sum.
EMU_INLINE Half multiply_then_add(Half a, Half b, Half c, Mode mode) {
  const float product = half_to_float(float_to_half(a.f * b.f, mode.fp16_overflow()));
  return {product + c.f};
}

void add_floats(Semantics& t) {
  vector(t, Op::v_add_f32, [](float a, float b) { return a + b; });
  vector(t, Op::v_sub_f32, [](float a, float b) { return a - b; });
  vector(t, Op::v_subrev_f32, [](float a, float b) { return b - a; });
  vector(t, Op::v_mul_f32, [](float a, float b) { return a * b; });
  vector(t, Op::v_min_f32, [](float a, float b, Mode m) { return float_min(a, b, m); });
  vector(t, Op::v_max_f32, [](float a, float b, Mode m) { return float_max(a, b, m); });
  const auto fma = [](float a, float b, float c) { return __builtin_fmaf(a, b, c); };
  vector(t, Op::v_fmac_f32, fma);
  vector(t, Op::v_fmaak_f32, fma);
  vector(t, Op::v_fmamk_f32, fma);
  vector(t, Op::v_fmac_f64, [](double a, double b, double c) { return __builtin_fma(a, b, c); });
  vector(t, Op::v_add_f16, [](Half a, Half b) { return Half{a.f + b.f}; });
  vector(t, Op::v_sub_f16, [](Half a, Half b) { return Half{a.f - b.f}; });
  vector(t, Op::v_subrev_f16, [](Half a, Half b) { return Half{b.f - a.f}; });
  vector(t, Op::v_mul_f16, [](Half a, Half b) { return Half{a.f * b.f}; });
  vector(t, Op::v_min_f16, [](Half a, Half b, Mode m) { return half_min(a, b, m); });
  vector(t, Op::v_max_f16, [](Half a, Half b, Mode m) { return half_max(a, b, m); });
  const auto mad = [](Half a, Half b, Half c, Mode m) { return multiply_then_add(a, b, c, m); };
  vector(t, Op::v_mac_f16, mad);
  vector(t, Op::v_madak_f16, mad);
  vector(t, Op::v_madmk_f16, mad);
  vector(t, Op::v_ldexp_f16,
         [](Half a, i16 b) { return Half{static_cast<float>(scale_by(a.f, b))}; });
  packed(t, Op::v_pk_fmac_f16,
         [](Half a, Half b, Half c) { return Half{fma_half(a.f, b.f, c.f)}; });
}

void add_integers32(Semantics& t) {
  vector(t, Op::v_cndmask_b32, [](u32 a, u32 b, bool m) { return m ? b : a; });
  vector(
      t, Op::v_add_u32, [](u32 a, u32 b) { return a + b; },
      [](u32 a, u32 b) { return saturated<u32>(u64{a} + b); });
  vector(
      t, Op::v_sub_u32, [](u32 a, u32 b) { return a - b; },
      [](u32 a, u32 b) { return a < b ? 0 : a - b; });
  vector(
      t, Op::v_subrev_u32, [](u32 a, u32 b) { return b - a; },
      [](u32 a, u32 b) { return b < a ? 0 : b - a; });
  vector(t, Op::v_and_b32, [](u32 a, u32 b) { return a & b; });
  vector(t, Op::v_or_b32, [](u32 a, u32 b) { return a | b; });
  vector(t, Op::v_xor_b32, [](u32 a, u32 b) { return a ^ b; });
  vector(t, Op::v_xnor_b32, [](u32 a, u32 b) { return ~(a ^ b); });
  vector(t, Op::v_lshlrev_b32, [](u32 a, u32 b) { return b << (a & 31); });
  vector(t, Op::v_lshrrev_b32, [](u32 a, u32 b) { return b >> (a & 31); });
  vector(t, Op::v_ashrrev_i32, [](u32 a, i32 b) { return b >> (a & 31); });
  vector(t, Op::v_min_u32, [](u32 a, u32 b) { return a < b ? a : b; });
  vector(t, Op::v_max_u32, [](u32 a, u32 b) { return a > b ? a : b; });
  vector(t, Op::v_min_i32, [](i32 a, i32 b) { return a < b ? a : b; });
  vector(t, Op::v_max_i32, [](i32 a, i32 b) { return a > b ? a : b; });
  vector(
      t, Op::v_mul_i32_i24, [](i32 a, i32 b) { return static_cast<i32>(i64{low24(a)} * low24(b)); },
      [](i32 a, i32 b) { return saturated<i32>(i64{low24(a)} * low24(b)); });
  vector(t, Op::v_mul_hi_i32_i24,
         [](i32 a, i32 b) { return static_cast<i32>(i64{low24(a)} * low24(b) >> 32); });
  vector(
      t, Op::v_mul_u32_u24, [](u32 a, u32 b) { return low24(a) * low24(b); },
      [](u32 a, u32 b) { return saturated<u32>(u64{low24(a)} * low24(b)); });
  vector(t, Op::v_mul_hi_u32_u24,
         [](u32 a, u32 b) { return static_cast<u32>(u64{low24(a)} * low24(b) >> 32); });

  vector(
      t, Op::v_add_co_u32, [](u32 a, u32 b) { return Carry{a + b, a + b < a}; },
      [](u32 a, u32 b) { return Carry{a + b < a ? ~0u : a + b, a + b < a}; });
  vector(
      t, Op::v_sub_co_u32, [](u32 a, u32 b) { return Carry{a - b, a < b}; },
      [](u32 a, u32 b) { return Carry{a < b ? 0 : a - b, a < b}; });
  vector(
      t, Op::v_subrev_co_u32, [](u32 a, u32 b) { return Carry{b - a, b < a}; },
      [](u32 a, u32 b) { return Carry{b < a ? 0 : b - a, b < a}; });
  vector(
      t, Op::v_addc_co_u32,
      [](u32 a, u32 b, bool c) {
        const u64 r = u64{a} + b + c;
        return Carry{static_cast<u32>(r), r >> 32 != 0};
      },
      [](u32 a, u32 b, bool c) {
        const u64 r = u64{a} + b + c;
        return Carry{saturated<u32>(r), r >> 32 != 0};
      });
  vector(
      t, Op::v_subb_co_u32, [](u32 a, u32 b, bool c) { return Carry{a - b - c, u64{b} + c > a}; },
      [](u32 a, u32 b, bool c) {
        const bool borrow = u64{b} + c > a;
        return Carry{borrow ? 0 : a - b - c, borrow};
      });
  vector(
      t, Op::v_subbrev_co_u32,
      [](u32 a, u32 b, bool c) { return Carry{b - a - c, u64{a} + c > b}; },
      [](u32 a, u32 b, bool c) {
        const bool borrow = u64{a} + c > b;
        return Carry{borrow ? 0 : b - a - c, borrow};
      });
}

void add_integers16(Semantics& t) {
  vector(
      t, Op::v_add_u16, [](u16 a, u16 b) { return static_cast<u16>(a + b); },
      [](u16 a, u16 b) { return saturated<u16>(a + b); });
  vector(
      t, Op::v_sub_u16, [](u16 a, u16 b) { return static_cast<u16>(a - b); },
      [](u16 a, u16 b) { return saturated<u16>(a - b); });
  vector(
      t, Op::v_subrev_u16, [](u16 a, u16 b) { return static_cast<u16>(b - a); },
      [](u16 a, u16 b) { return saturated<u16>(b - a); });
  vector(
      t, Op::v_mul_lo_u16, [](u16 a, u16 b) { return static_cast<u16>(u32{a} * b); },
      [](u16 a, u16 b) { return saturated<u16>(u32{a} * b); });
  vector(t, Op::v_lshlrev_b16, [](u16 a, u16 b) { return static_cast<u16>(b << (a & 15)); });
  vector(t, Op::v_lshrrev_b16, [](u16 a, u16 b) { return static_cast<u16>(b >> (a & 15)); });
  vector(t, Op::v_ashrrev_i16, [](u16 a, i16 b) { return static_cast<i16>(b >> (a & 15)); });
  vector(t, Op::v_min_u16, [](u16 a, u16 b) { return a < b ? a : b; });
  vector(t, Op::v_max_u16, [](u16 a, u16 b) { return a > b ? a : b; });
  vector(t, Op::v_min_i16, [](i16 a, i16 b) { return a < b ? a : b; });
  vector(t, Op::v_max_i16, [](i16 a, i16 b) { return a > b ? a : b; });
}

void add_dot_accumulates(Semantics& t) {
  dot(t, Op::v_dot2c_f32_f16, [](u32 a, u32 b, float c) { return dot2_half(a, b, c); });
  dot(t, Op::v_dot2c_f32_bf16, [](u32 a, u32 b, float c) { return dot2_bf16_onto(a, b, c); });
  dot(
      t, Op::v_dot2c_i32_i16,
      [](u32 a, u32 b, i32 c) { return static_cast<i32>(dot_integers<16, true>(a, b) + c); },
      [](u32 a, u32 b, i32 c) { return saturated<i32>(dot_integers<16, true>(a, b) + c); });
  dot(
      t, Op::v_dot4c_i32_i8,
      [](u32 a, u32 b, i32 c) { return static_cast<i32>(dot_integers<8, true>(a, b) + c); },
      [](u32 a, u32 b, i32 c) { return saturated<i32>(dot_integers<8, true>(a, b) + c); });
  dot(
      t, Op::v_dot8c_i32_i4,
      [](u32 a, u32 b, i32 c) { return static_cast<i32>(dot_integers<4, true>(a, b) + c); },
      [](u32 a, u32 b, i32 c) { return saturated<i32>(dot_integers<4, true>(a, b) + c); });
}

}  // namespace

void add_vop2(Semantics& t) {
  add_floats(t);
  add_integers32(t);
  add_integers16(t);
  add_dot_accumulates(t);
}

}  // namespace emu::EMU_NS
