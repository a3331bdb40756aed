// VOP1: vector operations with one source.
#include <cmath>

#include "isa/arithmetic.hpp"
#include "isa/transcendental.hpp"

namespace emu::EMU_NS {
namespace {

using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;

// The first active lane's value, or lane 0's if there is none.
const Inst* readfirstlane(Wave& w, const Inst* i) {
  const u64 exec = w.exec();
  w.s[i->d] = w.reg(i->a)[exec ? std::countr_zero(exec) : 0];
  return i + 1;
}
void lower_readfirstlane(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.vector(d.src[0]);
  i.d = l.scalar_dst(d.dst);
}

const Inst* nothing(Wave&, const Inst* i) { return i + 1; }
void lower_nothing(Lowering&, const Decoded&, const Semantic& s, Inst& i) { i.fn = s.handler; }

void lower_two_registers(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  if (d.dpp) return l.fail("a DPP form that the hardware does not have");
  i.fn = s.handler;
  i.a = l.vector(d.src[0]);
  i.d = l.vector(d.dst);
  i.imm = d.imm | d.bound_ctrl << 1;  // of the permlane swaps: fi, bound_ctrl
}

const Inst* swap(Wave& w, const Inst* i) {
  uint32_t *const a = w.reg(i->a), *const d = w.reg(i->d);
  const u64 exec = w.exec();
  alignas(64) uint32_t old[kLanes];
  std::memcpy(old, d, sizeof old);
  blend(d, a, exec);
  blend(a, old, exec);
  return i + 1;
}

// Rows of kRow lanes: the upper row of each pair in vdst is swapped with the lower one in src.
// An active lane whose partner is inactive gets the partner's value with fi, else 0 with
// bound_ctrl, else it keeps its own, as in DPP.
template <int kRow>
const Inst* permlane_swap(Wave& w, const Inst* i) {
  uint32_t *const a = w.reg(i->a), *const d = w.reg(i->d);
  const u64 exec = w.exec();
  const bool fetches = i->imm & 1, zero = i->imm & 2;
  for (int l = 0; l < kLanes; ++l) {
    if (l & kRow) continue;
    const bool low = exec >> l & 1, high = exec >> (l + kRow) & 1;
    const uint32_t from_d = high || fetches ? d[l + kRow] : 0;
    const uint32_t from_a = low || fetches ? a[l] : 0;
    if (low && (high || fetches || zero)) a[l] = from_d;
    if (high && (low || fetches || zero)) d[l + kRow] = from_a;
  }
  return i + 1;
}

EMU_INLINE u32 reverse_bits(u32 x) {
  x = (x & 0x55555555) << 1 | (x >> 1 & 0x55555555);
  x = (x & 0x33333333) << 2 | (x >> 2 & 0x33333333);
  x = (x & 0x0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f);
  return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
}

// Rounding to integers with plain arithmetic, since some levels have no instructions for it.
EMU_INLINE double truncated(double x) {
  const double a = x < 0 ? -x : x;
  if (!(a < 0x1p52)) return x;
  double r = nearest_positive(a);
  if (r > a) r -= 1;
  return as<double>(as<u64>(r) | (as<u64>(x) & (u64{1} << 63)));
}
EMU_INLINE double rounded_down(double x) {
  const double t = truncated(x);
  return t > x ? t - 1 : t;
}
EMU_INLINE double rounded_up(double x) {
  const double t = truncated(x);
  const double r = t < x ? t + 1 : t;
  return r == 0 ? as<double>(as<u64>(x) & (u64{1} << 63)) : r;
}
EMU_INLINE double rounded_even(double x) {
  const double a = x < 0 ? -x : x;
  if (!(a < 0x1p52)) return x;
  return as<double>(as<u64>(nearest_positive(a)) | (as<u64>(x) & (u64{1} << 63)));
}
EMU_INLINE double fraction(double x, double below_one) {
  const double f = x - rounded_down(x);
  return f != f ? f : f < below_one ? f : below_one;
}

EMU_INLINE float log2_float(float x) {
  if (x != x) return x;
  if (x == 0) return -INFINITY;
  if (x < 0) return as<float>(0xffc00000u);
  if (x == INFINITY) return x;
  return static_cast<float>(log2_of(x));
}

// Exponent by frexp's convention, and mantissa in [1/2, 1); denormals included.
EMU_INLINE i32 frexp_exponent(double x) {
  const u64 bits = as<u64>(x) & ~(u64{1} << 63);
  if (bits >= u64{0x7ff} << 52 || bits == 0) return 0;
  if (bits >> 52) return static_cast<i32>(bits >> 52) - 1022;
  return -1074 + (64 - std::countl_zero(bits));
}
EMU_INLINE double frexp_mantissa(double x) {
  const u64 bits = as<u64>(x), sign = bits & (u64{1} << 63), a = bits ^ sign;
  if (a >= u64{0x7ff} << 52 || a == 0) return x;
  const int shift = a >> 52 ? 0 : std::countl_zero(a) - 11;
  const u64 mantissa = (a << shift) & ((u64{1} << 52) - 1);
  return as<double>(sign | u64{1022} << 52 | mantissa);
}

EMU_INLINE i32 leading_same_bits(i32 x) {
  const u32 flipped = static_cast<u32>(x < 0 ? ~x : x);
  return flipped == 0 ? -1 : std::countl_zero(flipped);
}

void add_integers(Semantics& t) {
  vector(t, Op::v_mov_b32, [](u32 a) { return a; });
  vector(t, Op::v_mov_b64, [](u64 a) { return a; });
  vector(t, Op::v_not_b32, [](u32 a) { return ~a; });
  vector(t, Op::v_bfrev_b32, [](u32 a) { return reverse_bits(a); });
  vector(t, Op::v_ffbh_u32, [](u32 a) { return a ? std::countl_zero(a) : -1; });
  vector(t, Op::v_ffbl_b32, [](u32 a) { return a ? std::countr_zero(a) : -1; });
  vector(t, Op::v_ffbh_i32, [](i32 a) { return leading_same_bits(a); });
  vector(t, Op::v_prng_b32, [](u32 a) { return a << 1 ^ (a >> 31 ? 197u : 0u); });
  vector(t, Op::v_sat_pk_u8_i16, [](u32 a) {
    const auto saturate = [](i32 x) { return static_cast<u32>(x < 0 ? 0 : x > 255 ? 255 : x); };
    return saturate(static_cast<i16>(a)) | saturate(static_cast<i16>(a >> 16)) << 8;
  });
  set(t, Op::v_readfirstlane_b32, lower_readfirstlane, readfirstlane);
  set(t, Op::v_nop, lower_nothing, nothing);
  set(t, Op::v_clrexcp, lower_nothing, nothing);
  set(t, Op::v_swap_b32, lower_two_registers, swap);
  set(t, Op::v_permlane16_swap_b32, lower_two_registers, permlane_swap<16>);
  set(t, Op::v_permlane32_swap_b32, lower_two_registers, permlane_swap<32>);
  vector(t, Op::v_accvgpr_mov_b32, [](u32 a) { return a; });
}

void add_conversions(Semantics& t) {
  vector(t, Op::v_cvt_i32_f64, [](double a) { return to_integer<i32>(a); });
  vector(t, Op::v_cvt_u32_f64, [](double a) { return to_integer<u32>(a); });
  vector(t, Op::v_cvt_i32_f32, [](float a) { return to_integer<i32>(a); });
  vector(t, Op::v_cvt_u32_f32, [](float a) { return to_integer<u32>(a); });
  vector(t, Op::v_cvt_i16_f16, [](Half a) { return to_integer<i16>(a.f); });
  vector(t, Op::v_cvt_u16_f16, [](Half a) { return to_integer<u16>(a.f); });
  vector(t, Op::v_cvt_f64_i32, [](i32 a) { return static_cast<double>(a); });
  vector(t, Op::v_cvt_f64_u32, [](u32 a) { return static_cast<double>(a); });
  vector(t, Op::v_cvt_f32_i32, [](i32 a) { return static_cast<float>(a); });
  vector(t, Op::v_cvt_f32_u32, [](u32 a) { return static_cast<float>(a); });
  vector(t, Op::v_cvt_f16_i16, [](i16 a) { return Half{static_cast<float>(a)}; });
  vector(t, Op::v_cvt_f16_u16, [](u16 a) { return Half{static_cast<float>(a)}; });
  vector(t, Op::v_cvt_f32_f16, [](Half a) { return a.f; });
  vector(t, Op::v_cvt_f16_f32, [](float a) { return Half{a}; });
  vector(t, Op::v_cvt_f32_bf16, [](BFloat a) { return a.f; });
  vector(t, Op::v_cvt_f32_f64, [](double a) { return static_cast<float>(a); });
  vector(t, Op::v_cvt_f64_f32, [](float a) { return static_cast<double>(a); });
  vector(t, Op::v_cvt_rpi_i32_f32,
         [](float a) { return to_integer<i32>(rounded_down(double{a} + 0.5)); });
  vector(t, Op::v_cvt_flr_i32_f32, [](float a) { return to_integer<i32>(rounded_down(a)); });
  vector(t, Op::v_cvt_off_f32_i4,
         [](u32 a) { return static_cast<float>(static_cast<i32>(a << 28) >> 28) * 0.0625f; });
  vector(t, Op::v_cvt_f32_ubyte0, [](u32 a) { return static_cast<float>(a & 0xff); });
  vector(t, Op::v_cvt_f32_ubyte1, [](u32 a) { return static_cast<float>(a >> 8 & 0xff); });
  vector(t, Op::v_cvt_f32_ubyte2, [](u32 a) { return static_cast<float>(a >> 16 & 0xff); });
  vector(t, Op::v_cvt_f32_ubyte3, [](u32 a) { return static_cast<float>(a >> 24); });
  vector(t, Op::v_cvt_norm_i16_f16, [](Half a) { return to_snorm(a.f); });
  vector(t, Op::v_cvt_norm_u16_f16, [](Half a) { return to_unorm(a.f); });
}

void add_rounding(Semantics& t) {
  vector(t, Op::v_trunc_f64, [](double a) { return truncated(a); });
  vector(t, Op::v_ceil_f64, [](double a) { return rounded_up(a); });
  vector(t, Op::v_rndne_f64, [](double a) { return rounded_even(a); });
  vector(t, Op::v_floor_f64, [](double a) { return rounded_down(a); });
  vector(t, Op::v_trunc_f32, [](float a) { return static_cast<float>(truncated(a)); });
  vector(t, Op::v_ceil_f32, [](float a) { return static_cast<float>(rounded_up(a)); });
  vector(t, Op::v_rndne_f32, [](float a) { return static_cast<float>(rounded_even(a)); });
  vector(t, Op::v_floor_f32, [](float a) { return static_cast<float>(rounded_down(a)); });
  vector(t, Op::v_trunc_f16, [](Half a) { return Half{static_cast<float>(truncated(a.f))}; });
  vector(t, Op::v_ceil_f16, [](Half a) { return Half{static_cast<float>(rounded_up(a.f))}; });
  vector(t, Op::v_rndne_f16, [](Half a) { return Half{static_cast<float>(rounded_even(a.f))}; });
  vector(t, Op::v_floor_f16, [](Half a) { return Half{static_cast<float>(rounded_down(a.f))}; });
  vector(t, Op::v_fract_f64, [](double a) { return fraction(a, 0x1.fffffffffffffp-1); });
  vector(t, Op::v_fract_f32, [](float a) {
    const auto f = static_cast<float>(fraction(a, 0x1.fffffep-1));
    return f > 0x1.fffffep-1f ? 0x1.fffffep-1f : f;
  });
  vector(t, Op::v_fract_f16,
         [](Half a) { return Half{static_cast<float>(fraction(a.f, 0x1.ffcp-1))}; });
  vector(t, Op::v_frexp_exp_i32_f64, [](double a) { return frexp_exponent(a); });
  vector(t, Op::v_frexp_exp_i32_f32, [](float a) { return frexp_exponent(a); });
  vector(t, Op::v_frexp_exp_i16_f16, [](Half a) { return static_cast<i16>(frexp_exponent(a.f)); });
  vector(t, Op::v_frexp_mant_f64, [](double a) { return frexp_mantissa(a); });
  vector(t, Op::v_frexp_mant_f32, [](float a) { return static_cast<float>(frexp_mantissa(a)); });
  vector(t, Op::v_frexp_mant_f16,
         [](Half a) { return Half{static_cast<float>(frexp_mantissa(a.f))}; });
}

// The f32 ones flush denormals, in and out, regardless of MODE; those of f16 and f64 do not.
void add_transcendentals(Semantics& t) {
  const auto exp_f32 = [](float a) {
    return flush_denormal(static_cast<float>(exp2_of(flush_denormal(a))));
  };
  const auto log_f32 = [](float a) { return log2_float(flush_denormal(a)); };
  const auto rcp_f32 = [](float a) { return flush_denormal(1.f / flush_denormal(a)); };
  vector(t, Op::v_exp_f32, exp_f32);
  vector(t, Op::v_exp_legacy_f32, exp_f32);
  vector(t, Op::v_log_f32, log_f32);
  vector(t, Op::v_log_legacy_f32, log_f32);
  vector(t, Op::v_rcp_f32, rcp_f32);
  vector(t, Op::v_rcp_iflag_f32, rcp_f32);
  vector(t, Op::v_rsq_f32, [](float a) {
    return static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(flush_denormal(a))));
  });
  vector(t, Op::v_sqrt_f32, [](float a) { return __builtin_sqrtf(flush_denormal(a)); });
  vector(t, Op::v_sin_f32, [](float a) { return static_cast<float>(sin_of_turns(a)); });
  vector(t, Op::v_cos_f32, [](float a) { return static_cast<float>(cos_of_turns(a)); });
  vector(t, Op::v_rcp_f64, [](double a) { return 1.0 / a; });
  vector(t, Op::v_rsq_f64, [](double a) { return 1.0 / __builtin_sqrt(a); });
  vector(t, Op::v_sqrt_f64, [](double a) { return __builtin_sqrt(a); });
  vector(t, Op::v_rcp_f16, [](Half a) { return Half{1.f / a.f}; });
  vector(t, Op::v_sqrt_f16, [](Half a) { return Half{__builtin_sqrtf(a.f)}; });
  vector(t, Op::v_rsq_f16, [](Half a) {
    return Half{static_cast<float>(1.0 / __builtin_sqrt(static_cast<double>(a.f)))};
  });
  vector(t, Op::v_log_f16, [](Half a) { return Half{log2_float(a.f)}; });
  vector(t, Op::v_exp_f16, [](Half a) { return Half{static_cast<float>(exp2_of(a.f))}; });
  vector(t, Op::v_sin_f16, [](Half a) { return Half{static_cast<float>(sin_of_turns(a.f))}; });
  vector(t, Op::v_cos_f16, [](Half a) { return Half{static_cast<float>(cos_of_turns(a.f))}; });
}

}  // namespace

void add_vop1(Semantics& t) {
  add_integers(t);
  add_conversions(t);
  add_rounding(t);
  add_transcendentals(t);
}

}  // namespace emu::EMU_NS
