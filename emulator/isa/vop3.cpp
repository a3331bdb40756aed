// VOP3: vector operations with up to three sources.
#include <cmath>

#include "isa/arithmetic.hpp"

namespace emu::EMU_NS {
namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using i16 = int16_t;
using u32 = uint32_t;
using i32 = int32_t;
using u64 = uint64_t;
using i64 = int64_t;

// ---- lanes and scalars --------------------------------------------------------------------------

const Inst* readlane(Wave& w, const Inst* i) {
  w.s[i->d] = w.reg(i->a)[w.s[i->b] & 63];
  return i + 1;
}
void lower_readlane(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.vector(d.src[0]);
  i.b = l.scalar(d.src[1]);
  i.d = l.scalar_dst(d.dst);
}
const Inst* writelane(Wave& w, const Inst* i) {
  w.reg(i->d)[w.s[i->b] & 63] = w.s[i->a];
  return i + 1;
}
void lower_writelane(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.scalar(d.src[0]);
  i.b = l.scalar(d.src[1]);
  i.d = l.vector(d.dst);
}

// ---- bits ---------------------------------------------------------------------------------------

// Any function of three bits, given by its truth table.
void bitop3(const Rows& rows) {
  u32* const d = rows.d;
  const u32 *const a = rows.src[0], *const b = rows.src[1], *const c = rows.src[2];
  u32 on[8];
  for (int n = 0; n < 8; ++n) on[n] = rows.control >> n & 1 ? ~0u : 0;
  EMU_LANES {
    const u32 x = a[l], y = b[l], z = c[l];
    d[l] = (~x & ~y & ~z & on[0]) | (~x & ~y & z & on[1]) | (~x & y & ~z & on[2]) |
           (~x & y & z & on[3]) | (x & ~y & ~z & on[4]) | (x & ~y & z & on[5]) |
           (x & y & ~z & on[6]) | (x & y & z & on[7]);
  }
}

EMU_INLINE u32 field_mask(u32 width) { return (1u << (width & 31)) - 1; }
EMU_INLINE i32 extract_signed(i32 a, u32 offset, u32 width) {
  const u32 w = width & 31, left = 32 - w;
  const u32 field = static_cast<u32>(a >> (offset & 31)) & field_mask(w);
  return w == 0 ? 0 : static_cast<i32>(field << left) >> left;
}

// One byte of v_perm_b32.
EMU_INLINE u32 pick_byte(u64 data, u32 select) {
  const u32 byte = static_cast<u32>(data >> (8 * (select & 7))) & 0xff;
  const u32 sign = static_cast<u32>(data >> (16 * (select & 3) + 15)) & 1 ? 0xff : 0;
  return select >= 13 ? 0xff : select == 12 ? 0 : select >= 8 ? sign : byte;
}
EMU_INLINE u32 permute(u32 a, u32 b, u32 c) {
  const u64 data = static_cast<u64>(a) << 32 | b;
  return pick_byte(data, c & 0xff) | pick_byte(data, c >> 8 & 0xff) << 8 |
         pick_byte(data, c >> 16 & 0xff) << 16 | pick_byte(data, c >> 24) << 24;
}

EMU_INLINE u32 bit_count(u32 x) {
  x = x - (x >> 1 & 0x55555555);
  x = (x & 0x33333333) + (x >> 2 & 0x33333333);
  return ((x + (x >> 4)) & 0x0f0f0f0f) * 0x01010101 >> 24;
}

// ---- sums of absolute differences ---------------------------------------------------------------

EMU_INLINE u32 absolute_difference(u32 a, u32 b) { return a > b ? a - b : b - a; }
// Of bytes; kMasked leaves out those whose reference (b) is zero.
template <bool kMasked>
EMU_INLINE u32 sad_bytes(u32 a, u32 b) {
  u32 sum = 0;
  for (int n = 0; n < 32; n += 8) {
    const u32 x = a >> n & 0xff, y = b >> n & 0xff;
    sum += kMasked && y == 0 ? 0 : absolute_difference(x, y);
  }
  return sum;
}
template <bool kMasked>
EMU_INLINE u64 sad_four(u64 a, u32 b, u64 c) {
  u64 r = 0;
  for (int n = 0; n < 4; ++n) {
    const u32 sum = sad_bytes<kMasked>(static_cast<u32>(a >> (8 * n)), b);
    r |= static_cast<u64>(static_cast<u16>((c >> (16 * n)) + sum)) << (16 * n);
  }
  return r;
}
const Inst* mqsad_u32(Wave& w, const Inst* i) {
  alignas(64) u32 result[4][kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const auto value = [&](int n, u16 at, int row) {
      return i->x >> n & 1 ? w.s[at + row] : w.reg(at)[row * kLanes + l];
    };
    const u64 a = value(0, i->a, 0) | static_cast<u64>(value(0, i->a, 1)) << 32;
    const u32 b = value(1, i->b, 0);
    for (int n = 0; n < 4; ++n) {
      const u32 sum = sad_bytes<true>(static_cast<u32>(a >> (8 * n)), b), c = value(2, i->c, n);
      result[n][l] = i->imm && c + sum < c ? ~0u : c + sum;
    }
  }
  for (int n = 0; n < 4; ++n) blend(w.reg(i->d) + n * kLanes, result[n], w.exec());
  return i + 1;
}
void lower_mqsad_u32(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  uint16_t* const at[] = {&i.a, &i.b, &i.c};
  static constexpr int kWidths[] = {2, 1, 4};
  for (int n = 0; n < 3; ++n) {
    if (Lowering::is_vgpr(d.src[n])) {
      *at[n] = l.vector(d.src[n], kWidths[n]);
    } else {
      *at[n] = l.scalar(d.src[n], kWidths[n]);
      i.x |= 1 << n;
    }
  }
  i.d = l.vector(d.dst, 4);
  i.imm = d.clamp;
}

// ---- division -----------------------------------------------------------------------------------

// The division macro: div_scale keeps the operands of Newton's iteration away from denormals and
// infinities, div_fmas takes the scale back out of the quotient, div_fixup handles special cases.
template <class T>
struct Division;
template <>
struct Division<float> {
  static constexpr int kMantissa = 23, kExponents = 255, kScale = 64, kFar = 96, kTiny = 23;
  static constexpr int kUnderflow = -150, kMiddle = 127;
  static constexpr u32 kNan = 0xffc00000;
};
template <>
struct Division<double> {
  static constexpr int kMantissa = 52, kExponents = 2047, kScale = 128, kFar = 768, kTiny = 53;
  static constexpr int kUnderflow = -1075, kMiddle = 1023;
  static constexpr u64 kNan = u64{0xfff8} << 48;
};

template <class T>
EMU_INLINE int exponent_field(T x) {
  return static_cast<int>(as<typename FloatBits<T>::Unsigned>(x) >> Division<T>::kMantissa &
                          Division<T>::kExponents);
}
template <class T>
EMU_INLINE bool is_denormal(T x) {
  return exponent_field(x) == 0 && x != 0;
}
template <class T>
EMU_INLINE T power_of_two(int n) {
  using U = typename FloatBits<T>::Unsigned;
  return as<T>(static_cast<U>(Division<T>::kMiddle + n) << Division<T>::kMantissa);
}

template <class T>
struct Scaled {
  T value;
  bool post;
};

template <class T>
EMU_INLINE Scaled<T> div_scale(T a, T denominator, T numerator) {
  using D = Division<T>;
  using U = typename FloatBits<T>::Unsigned;
  if (numerator == 0 || denominator == 0) return {as<T>(U{D::kNan}), false};
  const T up = a * power_of_two<T>(D::kScale), down = a * power_of_two<T>(-D::kScale);
  const T reciprocal = T{1} / denominator, quotient = numerator / denominator;
  const bool small_quotient = is_denormal(quotient) || quotient == 0;
  if (exponent_field(numerator) - exponent_field(denominator) >= D::kFar)
    return {a == denominator ? up : a, true};
  if (is_denormal(denominator)) return {up, false};
  if (is_denormal(reciprocal) && small_quotient) return {a == denominator ? down : a, true};
  if (is_denormal(reciprocal)) return {down, false};
  if (small_quotient) return {a == numerator ? up : a, true};
  if (exponent_field(numerator) <= D::kTiny) return {up, false};
  return {a, false};
}

// A sum with its rounding error moved into the last bit (rounding to odd), so that rounding once
// more later gives what rounding once would have given.
EMU_INLINE double to_odd(double sum, double error) {
  const u64 bits = as<u64>(sum);
  const bool away = (error > 0) == (sum > 0);
  return error != 0 && error == error && !(bits & 1) ? as<double>(away ? bits + 1 : bits - 1) : sum;
}
// a·b + c for what div_fmas scales; `product` is a·b, `low` its rounding error.
EMU_INLINE double sum_to_odd(double product, double low, double c) {
  const double sum = product + c, part = sum - product;
  const double error = (product - (sum - part)) + (c - part);
  return to_odd(sum, error + low);
}

// A large quotient was made smaller, a small one larger. (The ISA text says 2^32, which does not
// give back what v_div_scale took.)
EMU_INLINE float div_fmas(float a, float b, float c, bool post) {
  const int n = exponent_field(c) > 127 ? 64 : -64;
  const double exact = sum_to_odd(double{a} * double{b}, 0, double{c});
  return post ? static_cast<float>(exact * power_of_two<double>(n)) : __builtin_fmaf(a, b, c);
}
EMU_INLINE double div_fmas(double a, double b, double c, bool post) {
  const double product = a * b, exact = sum_to_odd(product, __builtin_fma(a, b, -product), c);
  const double power = power_of_two<double>(exponent_field(c) > 1023 ? 128 : -128);
  const double rounded = __builtin_fma(a, b, c), scaled = rounded * power;
  return !post ? rounded : exponent_field(scaled) ? scaled : exact * power;
}

template <class T>
EMU_INLINE T div_fixup(T quotient, T denominator, T numerator) {
  using D = Division<T>;
  using U = typename FloatBits<T>::Unsigned;
  constexpr U kSign = U{1} << (sizeof(T) * 8 - 1);
  const U d = as<U>(denominator), n = as<U>(numerator), sign = (d ^ n) & kSign;
  const U abs_d = d & ~kSign, abs_n = n & ~kSign, infinity = FloatBits<T>::kInfinity;
  if (abs_n > infinity) return as<T>(n | FloatBits<T>::kQuiet);
  if (abs_d > infinity) return as<T>(d | FloatBits<T>::kQuiet);
  if ((abs_d == 0 && abs_n == 0) || (abs_d == infinity && abs_n == infinity))
    return as<T>(U{D::kNan});
  if (abs_d == 0 || abs_n == infinity) return as<T>(sign | infinity);
  if (abs_d == infinity || abs_n == 0) return as<T>(sign);
  const int exponents = exponent_field(numerator) - exponent_field(denominator);
  if (exponents < D::kUnderflow) return as<T>(sign);
  if (exponents > D::kMiddle + 1) return as<T>(sign | infinity);
  return as<T>(sign | (as<U>(quotient) & ~kSign));
}
// For f16, whose values are all normal as floats, only the special cases matter.
EMU_INLINE Half div_fixup_half(Half q, Half d, Half n) {
  const u32 x = as<u32>(d.f), y = as<u32>(n.f), sign = (x ^ y) & 0x80000000;
  const u32 abs_d = x & 0x7fffffff, abs_n = y & 0x7fffffff;
  const u32 r = abs_n > 0x7f800000                           ? y | 0x00400000
                : abs_d > 0x7f800000                         ? x | 0x00400000
                : abs_d == 0 && abs_n == 0                   ? 0xffc00000
                : abs_d == 0x7f800000 && abs_n == 0x7f800000 ? 0xffc00000
                : abs_d == 0 || abs_n == 0x7f800000          ? sign | 0x7f800000
                : abs_d == 0x7f800000 || abs_n == 0          ? sign
                                                             : sign | (as<u32>(q.f) & 0x7fffffff);
  return {as<float>(r)};
}

// A 53-bit piece of 2/pi for the reduction of a large argument.
double trig_preop(double x, u32 piece) {
  static constexpr u32 kTwoOverPi[] = {
      0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab,
      0xdebbc561, 0xb7246e3a, 0x424dd2e0, 0x06492eea, 0x09d1921c, 0xfe1deb1c, 0xb129a73e,
      0xe88235f5, 0x2ebb4484, 0xe99c7026, 0xb45f7e41, 0x3991d639, 0x835339f4, 0x9c845f8b,
      0xbdf9283b, 0x1ff897ff, 0xde05980f, 0xef2f118b, 0x5a0a6d1f, 0x6d367ecf, 0x27cb09b7,
      0x4f463f66, 0x9e5fea2d, 0x7527bac7, 0xebe5f17b, 0x3d0739f7, 0x8a5292ea, 0x6bfb5fb1,
      0x1f8d5d08, 0x56033046, 0xfc7b6bab};
  const int exponent = static_cast<int>(as<u64>(x) >> 52 & 0x7ff);
  const int shift = static_cast<int>(piece & 31) * 53 + (exponent > 1077 ? exponent - 1077 : 0);
  u64 bits = 0;
  for (int n = 0; n < 53; ++n) {
    const int at = shift + n;
    bits = bits << 1 | (at < 1201 ? kTwoOverPi[at / 32] >> (31 - at % 32) & 1 : 0);
  }
  return std::ldexp(static_cast<double>(bits), -53 - shift + (exponent >= 1968 ? 128 : 0));
}

// ---- cube maps ----------------------------------------------------------------------------------

struct Cube {
  float id, s, t, axis;
};
EMU_INLINE Cube cube(float x, float y, float z) {
  const float ax = std::fabs(x), ay = std::fabs(y), az = std::fabs(z);
  if (az >= ax && az >= ay) return {z < 0 ? 5.f : 4.f, z < 0 ? -x : x, -y, 2 * z};
  if (ay >= ax) return {y < 0 ? 3.f : 2.f, x, y < 0 ? -z : z, 2 * y};
  return {x < 0 ? 1.f : 0.f, x < 0 ? z : -z, -y, 2 * x};
}

// -------------------------------------------------------------------------------------------------

EMU_INLINE i32 low24(i32 x) { return static_cast<i32>(static_cast<u32>(x) << 8) >> 8; }
EMU_INLINE u32 low24(u32 x) { return x & 0xffffff; }

EMU_INLINE Half multiply_then_add(Half a, Half b, Half c, Mode mode) {
  return {half_to_float(float_to_half(a.f * b.f, mode.fp16_overflow())) + c.f};
}

template <class T>
EMU_INLINE T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
EMU_INLINE T larger(T a, T b) {
  return a > b ? a : b;
}

template <i32 kLow, i32 kHigh>
EMU_INLINE u32 shift_and_pack(i32 a, i32 b, u32 shift) {
  const auto part = [&](i32 x) {
    const i32 y = x >> (shift & 31);
    return static_cast<u32>(y < kLow ? kLow : y > kHigh ? kHigh : y) & 0xff;
  };
  return part(a) | part(b) << 8;
}

void add_integers(Semantics& t) {
  vector(t, Op::v_mul_lo_u32, [](u32 a, u32 b) { return a * b; });
  vector(t, Op::v_mul_hi_u32, [](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); });
  vector(t, Op::v_mul_hi_i32, [](i32 a, i32 b) { return static_cast<i32>(i64{a} * b >> 32); });
  vector(t, Op::v_add_lshl_u32, [](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); });
  vector(t, Op::v_lshl_add_u32, [](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; });
  vector(t, Op::v_add3_u32, [](u32 a, u32 b, u32 c) { return a + b + c; });
  vector(t, Op::v_xad_u32, [](u32 a, u32 b, u32 c) { return (a ^ b) + c; });
  // Shift counts above 4 are not supported by the hardware and count as none.
  vector(t, Op::v_lshl_add_u64,
         [](u64 a, u32 b, u64 c) { return (a << ((b & 7) <= 4 ? b & 7 : 0)) + c; });
  vector(
      t, Op::v_add_i32,
      [](i32 a, i32 b) { return static_cast<i32>(static_cast<u32>(a) + static_cast<u32>(b)); },
      [](i32 a, i32 b) { return saturated<i32>(i64{a} + b); });
  vector(
      t, Op::v_sub_i32,
      [](i32 a, i32 b) { return static_cast<i32>(static_cast<u32>(a) - static_cast<u32>(b)); },
      [](i32 a, i32 b) { return saturated<i32>(i64{a} - b); });
  vector(
      t, Op::v_add_i16, [](i16 a, i16 b) { return static_cast<i16>(a + b); },
      [](i16 a, i16 b) { return saturated<i16>(a + b); });
  vector(
      t, Op::v_sub_i16, [](i16 a, i16 b) { return static_cast<i16>(a - b); },
      [](i16 a, i16 b) { return saturated<i16>(a - b); });

  vector(
      t, Op::v_mad_i32_i24,
      [](i32 a, i32 b, i32 c) { return static_cast<i32>(i64{low24(a)} * low24(b) + c); },
      [](i32 a, i32 b, i32 c) { return saturated<i32>(i64{low24(a)} * low24(b) + c); });
  vector(
      t, Op::v_mad_u32_u24, [](u32 a, u32 b, u32 c) { return low24(a) * low24(b) + c; },
      [](u32 a, u32 b, u32 c) { return saturated<u32>(u64{low24(a)} * low24(b) + c); });
  vector(
      t, Op::v_mad_u32_u16, [](u16 a, u16 b, u32 c) { return u32{a} * b + c; },
      [](u16 a, u16 b, u32 c) { return saturated<u32>(u64{a} * b + c); });
  vector(
      t, Op::v_mad_i32_i16, [](i16 a, i16 b, i32 c) { return static_cast<i32>(i64{a} * b + c); },
      [](i16 a, i16 b, i32 c) { return saturated<i32>(i64{a} * b + c); });
  const auto mad_u16 = [](u16 a, u16 b, u16 c) { return static_cast<u16>(u32{a} * b + c); };
  const auto mad_u16_sat = [](u16 a, u16 b, u16 c) { return saturated<u16>(u64{a} * b + c); };
  const auto mad_i16 = [](i16 a, i16 b, i16 c) { return static_cast<i16>(a * b + c); };
  const auto mad_i16_sat = [](i16 a, i16 b, i16 c) { return saturated<i16>(a * b + c); };
  vector(t, Op::v_mad_u16, mad_u16, mad_u16_sat);
  vector(t, Op::v_mad_legacy_u16, mad_u16, mad_u16_sat);
  vector(t, Op::v_mad_i16, mad_i16, mad_i16_sat);
  vector(t, Op::v_mad_legacy_i16, mad_i16, mad_i16_sat);
  vector(t, Op::v_mad_u64_u32, [](u32 a, u32 b, u64 c) {
    const u64 r = u64{a} * b + c;
    return WideCarry{r, r < c};
  });
  vector(t, Op::v_mad_i64_i32, [](i32 a, i32 b, i64 c) {
    const i64 product = i64{a} * b;
    const u64 r = static_cast<u64>(product) + static_cast<u64>(c);
    // Bit 64 of the 65-bit sum.
    const bool top = (product < 0) ^ (c < 0) ^ (r < static_cast<u64>(c));
    return WideCarry{r, top};
  });

#define EMU_ORDER(suffix, T)                                                               \
  vector(t, Op::v_min3_##suffix, [](T a, T b, T c) { return smaller(smaller(a, b), c); }); \
  vector(t, Op::v_max3_##suffix, [](T a, T b, T c) { return larger(larger(a, b), c); });   \
  vector(t, Op::v_med3_##suffix,                                                           \
         [](T a, T b, T c) { return larger(smaller(a, b), smaller(larger(a, b), c)); });
  EMU_ORDER(i32, i32)
  EMU_ORDER(u32, u32)
  EMU_ORDER(i16, i16)
  EMU_ORDER(u16, u16)
#undef EMU_ORDER

  vector(
      t, Op::v_sad_u8, [](u32 a, u32 b, u32 c) { return sad_bytes<false>(a, b) + c; },
      [](u32 a, u32 b, u32 c) { return saturated<u32>(u64{sad_bytes<false>(a, b)} + c); });
  vector(
      t, Op::v_sad_hi_u8, [](u32 a, u32 b, u32 c) { return (sad_bytes<false>(a, b) << 16) + c; },
      [](u32 a, u32 b, u32 c) { return saturated<u32>((u64{sad_bytes<false>(a, b)} << 16) + c); });
  vector(
      t, Op::v_msad_u8, [](u32 a, u32 b, u32 c) { return sad_bytes<true>(a, b) + c; },
      [](u32 a, u32 b, u32 c) { return saturated<u32>(u64{sad_bytes<true>(a, b)} + c); });
  vector(
      t, Op::v_sad_u16,
      [](u32 a, u32 b, u32 c) {
        return absolute_difference(a & 0xffff, b & 0xffff) + absolute_difference(a >> 16, b >> 16) +
               c;
      },
      [](u32 a, u32 b, u32 c) {
        return saturated<u32>(u64{absolute_difference(a & 0xffff, b & 0xffff)} +
                              absolute_difference(a >> 16, b >> 16) + c);
      });
  vector(
      t, Op::v_sad_u32, [](u32 a, u32 b, u32 c) { return absolute_difference(a, b) + c; },
      [](u32 a, u32 b, u32 c) { return saturated<u32>(u64{absolute_difference(a, b)} + c); });
  vector(t, Op::v_qsad_pk_u16_u8, [](u64 a, u32 b, u64 c) { return sad_four<false>(a, b, c); });
  vector(t, Op::v_mqsad_pk_u16_u8, [](u64 a, u32 b, u64 c) { return sad_four<true>(a, b, c); });
  set(t, Op::v_mqsad_u32_u8, lower_mqsad_u32, mqsad_u32);
}

void add_bits(Semantics& t) {
  vector(t, Op::v_or3_b32, [](u32 a, u32 b, u32 c) { return a | b | c; });
  vector(t, Op::v_and_or_b32, [](u32 a, u32 b, u32 c) { return (a & b) | c; });
  vector(t, Op::v_lshl_or_b32, [](u32 a, u32 b, u32 c) { return (a << (b & 31)) | c; });
  vector(t, Op::v_bfe_u32, [](u32 a, u32 b, u32 c) { return a >> (b & 31) & field_mask(c); });
  vector(t, Op::v_bfe_i32, [](i32 a, u32 b, u32 c) { return extract_signed(a, b, c); });
  vector(t, Op::v_bfi_b32, [](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); });
  vector(t, Op::v_bfm_b32, [](u32 a, u32 b) { return field_mask(a) << (b & 31); });
  vector(t, Op::v_alignbit_b32, [](u32 a, u32 b, u32 c) {
    return static_cast<u32>((static_cast<u64>(a) << 32 | b) >> (c & 31));
  });
  vector(t, Op::v_alignbyte_b32, [](u32 a, u32 b, u32 c) {
    return static_cast<u32>((static_cast<u64>(a) << 32 | b) >> (8 * (c & 3)));
  });
  vector(t, Op::v_perm_b32, [](u32 a, u32 b, u32 c) { return permute(a, b, c); });
  vector(t, Op::v_lerp_u8, [](u32 a, u32 b, u32 c) {
    u32 r = 0;
    for (int n = 0; n < 32; n += 8)
      r |= ((a >> n & 0xff) + (b >> n & 0xff) + (c >> n & 1)) >> 1 << n;
    return r;
  });
  set_loop(t, Op::v_bitop3_b32, lower_vector, &bitop3);
  set_loop(t, Op::v_bitop3_b16, lower_vector, &bitop3);
  vector(t, Op::v_ashr_pk_i8_i32,
         [](i32 a, i32 b, u32 c) { return shift_and_pack<-128, 127>(a, b, c); });
  vector(t, Op::v_ashr_pk_u8_i32,
         [](i32 a, i32 b, u32 c) { return shift_and_pack<0, 255>(a, b, c); });
  vector(t, Op::v_bcnt_u32_b32, [](u32 a, u32 b) { return bit_count(a) + b; });
  vector(t, Op::v_mbcnt_lo_u32_b32, [](u32 a, u32 b, LaneId lane) {
    return bit_count(a & (lane.i < 32 ? (1u << (lane.i & 31)) - 1 : ~0u)) + b;
  });
  vector(t, Op::v_mbcnt_hi_u32_b32, [](u32 a, u32 b, LaneId lane) {
    return bit_count(a & (lane.i < 32 ? 0 : (1u << (lane.i & 31)) - 1)) + b;
  });
  vector(t, Op::v_lshlrev_b64, [](u32 a, u64 b) { return b << (a & 63); });
  vector(t, Op::v_lshrrev_b64, [](u32 a, u64 b) { return b >> (a & 63); });
  vector(t, Op::v_ashrrev_i64, [](u32 a, i64 b) { return b >> (a & 63); });
  set(t, Op::v_readlane_b32, lower_readlane, readlane);
  set(t, Op::v_writelane_b32, lower_writelane, writelane);
}

void add_floats(Semantics& t) {
  vector(t, Op::v_fma_f32, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  vector(t, Op::v_fma_f64, [](double a, double b, double c) { return __builtin_fma(a, b, c); });
  vector(t, Op::v_add_f64, [](double a, double b) { return a + b; });
  vector(t, Op::v_mul_f64, [](double a, double b) { return a * b; });
  vector(t, Op::v_min_f64, [](double a, double b, Mode m) { return float_min(a, b, m); });
  vector(t, Op::v_max_f64, [](double a, double b, Mode m) { return float_max(a, b, m); });
  vector(t, Op::v_ldexp_f64, [](double a, i32 b) { return std::ldexp(a, b); });
  vector(t, Op::v_ldexp_f32, [](float a, i32 b) { return static_cast<float>(scale_by(a, b)); });
  vector(t, Op::v_mul_legacy_f32, [](float a, float b) { return a == 0 || b == 0 ? 0.f : a * b; });
  vector(t, Op::v_min3_f32,
         [](float a, float b, float c, Mode m) { return float_min(float_min(a, b, m), c, m); });
  vector(t, Op::v_max3_f32,
         [](float a, float b, float c, Mode m) { return float_max(float_max(a, b, m), c, m); });
  vector(t, Op::v_med3_f32,
         [](float a, float b, float c, Mode m) { return median_float(a, b, c, m); });
  vector(t, Op::v_minimum3_f32, [](float a, float b, float c) {
    return minimum_or_maximum<false>(minimum_or_maximum<false>(a, b), c);
  });
  vector(t, Op::v_maximum3_f32, [](float a, float b, float c) {
    return minimum_or_maximum<true>(minimum_or_maximum<true>(a, b), c);
  });

  const auto fma_f16 = [](Half a, Half b, Half c) { return Half{fma_half(a.f, b.f, c.f)}; };
  vector(t, Op::v_fma_f16, fma_f16);
  vector(t, Op::v_fma_legacy_f16, fma_f16);
  const auto mad_f16 = [](Half a, Half b, Half c, Mode m) { return multiply_then_add(a, b, c, m); };
  vector(t, Op::v_mad_f16, mad_f16);
  vector(t, Op::v_mad_legacy_f16, mad_f16);
  vector(t, Op::v_min3_f16,
         [](Half a, Half b, Half c, Mode m) { return half_min(half_min(a, b, m), c, m); });
  vector(t, Op::v_max3_f16,
         [](Half a, Half b, Half c, Mode m) { return half_max(half_max(a, b, m), c, m); });
  vector(t, Op::v_med3_f16,
         [](Half a, Half b, Half c, Mode m) { return Half{median_float(a.f, b.f, c.f, m)}; });
  vector(t, Op::v_pack_b32_f16, [](u16 a, u16 b) { return u32{a} | u32{b} << 16; });

  vector(t, Op::v_cubeid_f32, [](float a, float b, float c) { return cube(a, b, c).id; });
  vector(t, Op::v_cubesc_f32, [](float a, float b, float c) { return cube(a, b, c).s; });
  vector(t, Op::v_cubetc_f32, [](float a, float b, float c) { return cube(a, b, c).t; });
  vector(t, Op::v_cubema_f32, [](float a, float b, float c) { return cube(a, b, c).axis; });
}

void add_division(Semantics& t) {
  vector(t, Op::v_div_scale_f32, [](float a, float b, float c) {
    const auto r = div_scale(a, b, c);
    return Carry{as<u32>(r.value), r.post};
  });
  vector(t, Op::v_div_scale_f64, [](double a, double b, double c) {
    const auto r = div_scale(a, b, c);
    return WideCarry{as<u64>(r.value), r.post};
  });
  vector(t, Op::v_div_fmas_f32,
         [](float a, float b, float c, bool post) { return div_fmas(a, b, c, post); });
  vector(t, Op::v_div_fmas_f64,
         [](double a, double b, double c, bool post) { return div_fmas(a, b, c, post); });
  vector(t, Op::v_div_fixup_f32, [](float a, float b, float c) { return div_fixup(a, b, c); });
  vector(t, Op::v_div_fixup_f64, [](double a, double b, double c) { return div_fixup(a, b, c); });
  vector(t, Op::v_div_fixup_f16, [](Half a, Half b, Half c) { return div_fixup_half(a, b, c); });
  vector(t, Op::v_div_fixup_legacy_f16,
         [](Half a, Half b, Half c) { return div_fixup_half(a, b, c); });
  vector(t, Op::v_trig_preop_f64, [](double a, u32 b) { return trig_preop(a, b); });
}

void add_conversions(Semantics& t) {
  // These two round to nearest even, and the third towards zero, whatever the mode.
  vector(t, Op::v_cvt_pk_f16_f32, [](float a, float b, Mode m) {
    return float_to_half(a, m.fp16_overflow()) | float_to_half(b, m.fp16_overflow()) << 16;
  });
  vector(t, Op::v_cvt_pk_bf16_f32,
         [](float a, float b) { return float_to_bf16(a) | float_to_bf16(b) << 16; });
  vector(t, Op::v_cvt_pkrtz_f16_f32,
         [](float a, float b) { return float_to_half_rtz(a) | float_to_half_rtz(b) << 16; });
  vector(t, Op::v_cvt_pknorm_i16_f32, [](float a, float b) {
    return static_cast<u16>(to_snorm(a)) | static_cast<u32>(static_cast<u16>(to_snorm(b))) << 16;
  });
  vector(t, Op::v_cvt_pknorm_u16_f32,
         [](float a, float b) { return to_unorm(a) | u32{to_unorm(b)} << 16; });
  vector(t, Op::v_cvt_pknorm_i16_f16, [](Half a, Half b) {
    return static_cast<u16>(to_snorm(a.f)) | static_cast<u32>(static_cast<u16>(to_snorm(b.f)))
                                                 << 16;
  });
  vector(t, Op::v_cvt_pknorm_u16_f16,
         [](Half a, Half b) { return to_unorm(a.f) | u32{to_unorm(b.f)} << 16; });
  vector(t, Op::v_cvt_pk_u16_u32,
         [](u32 a, u32 b) { return u32{saturated<u16>(a)} | u32{saturated<u16>(b)} << 16; });
  vector(t, Op::v_cvt_pk_i16_i32, [](i32 a, i32 b) {
    return u32{static_cast<u16>(saturated<i16>(a))} | u32{static_cast<u16>(saturated<i16>(b))}
                                                          << 16;
  });
  const auto put_byte = [](float a, u32 b, u32 c) {
    const u32 shift = 8 * (b & 3);
    return (c & ~(0xffu << shift)) | u32{to_integer<u8>(a)} << shift;
  };
  vector(t, Op::v_cvt_pk_u8_f32, put_byte);
  vector(t, Op::v_cvt_pkaccum_u8_f32, put_byte);
}

}  // namespace

void add_vop3(Semantics& t) {
  add_integers(t);
  add_bits(t);
  add_floats(t);
  add_division(t);
  add_conversions(t);
}

}  // namespace emu::EMU_NS
