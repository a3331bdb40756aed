// Conversions from and to 8-, 6- and 4-bit floats, scaled and not, of VOP1 and VOP3.
//
// A scale is the exponent field of a float: narrowing divides by 2^(field − 127), widening
// multiplies. Stochastic rounding takes the seed's top bits; of several elements each further one
// takes the seed's successor (v_prng_b32).
#include "isa/arithmetic.hpp"

namespace emu::EMU_NS {
namespace {

using u16 = uint16_t;
using u32 = uint32_t;

EMU_INLINE u32 next_seed(u32 x) { return x << 1 ^ (x >> 31 ? 197u : 0u); }

// `value` in place of the byte or word number `at` of `old`.
EMU_INLINE u32 with_byte(u32 old, u32 value, u32 at) {
  const u32 shift = 8 * (at & 3);
  return (old & ~(0xffu << shift)) | value << shift;
}
EMU_INLINE u32 with_half(u32 old, u32 value, bool high) {
  return high ? (old & 0xffff) | value << 16 : (old & 0xffff0000) | value;
}
// op_sel's uses: bit 3 a half of the destination, bits 3:2 a byte of it, bit 0 a half of the
// source, bits 1:0 a byte of it. (Of bits 1:0 the low one is op_sel[0].)
EMU_INLINE bool to_high(Control c) { return c.bits >> 3 & 1; }
EMU_INLINE u32 to_byte(Control c) { return c.bits >> 2 & 3; }
EMU_INLINE u32 from_half(u32 x, Control c) { return c.bits & 1 ? x >> 16 : x & 0xffff; }
EMU_INLINE u32 from_byte(u32 x, Control c) { return x >> (8 * (c.bits & 3)) & 0xff; }

template <class S>
EMU_INLINE u32 narrow_two(float a, float b, float scale, Mode m) {
  const int e = scale_exponent(scale);
  return narrow<S>(a, e, m.fp16_overflow()) | narrow<S>(b, e, m.fp16_overflow()) << S::kBits;
}
template <class S>
EMU_INLINE u32 narrow_two_stochastic(float a, float b, u32 seed, float scale, Mode m) {
  const int e = scale_exponent(scale);
  return narrow<S, true>(a, e, m.fp16_overflow(), seed) |
         narrow<S, true>(b, e, m.fp16_overflow(), next_seed(seed)) << S::kBits;
}
template <class S>
EMU_INLINE u32 narrow_stochastic(float a, u32 seed, float scale, Mode m) {
  return narrow<S, true>(a, scale_exponent(scale), m.fp16_overflow(), seed);
}
template <class S>
EMU_INLINE Pair widen_two(u32 codes, float scale) {
  const int e = scale_exponent(scale);
  constexpr u32 kMask = (1u << S::kBits) - 1;
  return {as<u32>(widen<S>(codes & kMask, e)), as<u32>(widen<S>(codes >> S::kBits & kMask, e))};
}
// The same to f16, which a scale of 2^60 overflows as well as a larger one, and without overflowing
// the float in between.
EMU_INLINE float scale_for_half(float scale) {
  const u32 field = as<u32>(scale) & 0x7f800000, most = (127u + 60) << 23;
  return as<float>(field == 0x7f800000 || field < most ? field : most);
}
EMU_INLINE u32 to_halves(Pair p, Mode m) {
  return float_to_half(as<float>(p.low), m.fp16_overflow()) |
         float_to_half(as<float>(p.high), m.fp16_overflow()) << 16;
}
EMU_INLINE u32 to_bf16s(Pair p) {
  return float_to_bf16(as<float>(p.low)) | float_to_bf16(as<float>(p.high)) << 16;
}
EMU_INLINE float low_half(u32 x) { return half_to_float(x & 0xffff); }
EMU_INLINE float high_half(u32 x) { return half_to_float(x >> 16); }
EMU_INLINE float low_bf16(u32 x) { return as<float>(x << 16); }
EMU_INLINE float high_bf16(u32 x) { return as<float>(x & 0xffff0000); }

// ---- 8 bits -------------------------------------------------------------------------------------

// v_cvt_sr_f16 and _bf16: the seed's low bits below what is kept, then cut off.
EMU_INLINE u32 half_stochastic(float x, u32 seed, Mode m) {
  const u32 bits = as<u32>(x), a = bits & 0x7fffffff;
  if (a >= 0x7f800000) return float_to_half(x, m.fp16_overflow());
  const u32 sum = a + (seed >> 19);  // 13 bits are dropped
  const float moved = as<float>((sum < 0x7f7fffff ? sum : 0x7f7fffff) | (bits & 0x80000000));
  const u32 h = float_to_half_rtz(moved);
  const bool over = (as<u32>(moved) & 0x7fffffff) >= 0x47800000;
  return over && !m.fp16_overflow() ? (h & 0x8000) | 0x7c00 : h;
}
EMU_INLINE u32 bf16_stochastic(float x, u32 seed) {
  const u32 bits = as<u32>(x);
  if ((bits & 0x7fffffff) >= 0x7f800000) return float_to_bf16(x);
  return (bits + (seed >> 16)) >> 16;
}

template <class S>
void add_8bit(Semantics& t, Op unpack, Op unpack_two, Op pack, Op stochastic) {
  vector(t, unpack, [](u32 a) { return widen<S>(a & 0xff); });
  vector(t, unpack_two,
         [](u32 a) { return Pair{as<u32>(widen<S>(a & 0xff)), as<u32>(widen<S>(a >> 8 & 0xff))}; });
  vector(t, pack, [](float a, float b, u32 old, Control c, Mode m) {
    return with_half(old, narrow_two<S>(a, b, 1.f, m), to_high(c));
  });
  vector(t, stochastic, [](float a, u32 seed, u32 old, Control c, Mode m) {
    return with_byte(old, narrow_stochastic<S>(a, seed, 1.f, m), to_byte(c));
  });
}

template <class S>
void add_8bit_scaled(Semantics& t, const Op (&ops)[11]) {
  // Narrowing: two floats, two f16, two bf16; then one of each with stochastic rounding.
  vector(t, ops[0], [](float a, float b, float scale, u32 old, Control c, Mode m) {
    return with_half(old, narrow_two<S>(a, b, scale, m), to_high(c));
  });
  vector(t, ops[1], [](u32 a, float scale, u32 old, Control c, Mode m) {
    return with_half(old, narrow_two<S>(low_half(a), high_half(a), scale, m), to_high(c));
  });
  vector(t, ops[2], [](u32 a, float scale, u32 old, Control c, Mode m) {
    return with_half(old, narrow_two<S>(low_bf16(a), high_bf16(a), scale, m), to_high(c));
  });
  vector(t, ops[3], [](float a, u32 seed, float scale, u32 old, Control c, Mode m) {
    return with_byte(old, narrow_stochastic<S>(a, seed, scale, m), to_byte(c));
  });
  vector(t, ops[4], [](Half a, u32 seed, float scale, u32 old, Control c, Mode m) {
    return with_byte(old, narrow_stochastic<S>(a.f, seed, scale, m), to_byte(c));
  });
  vector(t, ops[5], [](BFloat a, u32 seed, float scale, u32 old, Control c, Mode m) {
    return with_byte(old, narrow_stochastic<S>(a.f, seed, scale, m), to_byte(c));
  });
  // Widening: two to floats, to f16, to bf16; one to float, to f16.
  vector(t, ops[6],
         [](u32 a, float scale, Control c) { return widen_two<S>(from_half(a, c), scale); });
  vector(t, ops[7], [](u32 a, float scale, Control c, Mode m) {
    return to_halves(widen_two<S>(from_half(a, c), scale_for_half(scale)), m);
  });
  vector(t, ops[8], [](u32 a, float scale, Control c) {
    return to_bf16s(widen_two<S>(from_half(a, c), scale));
  });
  vector(t, ops[9], [](u32 a, float scale, Control c) {
    return widen<S>(from_byte(a, c), scale_exponent(scale));
  });
  vector(t, ops[10], [](u32 a, float scale, u32 old, Control c, Mode m) {
    const float x = widen<S>(from_byte(a, c), scale_exponent(scale_for_half(scale)));
    return with_half(old, float_to_half(x, m.fp16_overflow()), to_high(c));
  });
}

// ---- 4 bits -------------------------------------------------------------------------------------

void add_fp4(Semantics& t) {
  vector(t, Op::v_cvt_scalef32_pk_fp4_f32,
         [](float a, float b, float scale, u32 old, Control c, Mode m) {
           return with_byte(old, narrow_two<Fp4>(a, b, scale, m), to_byte(c));
         });
  vector(t, Op::v_cvt_scalef32_pk_fp4_f16, [](u32 a, float scale, u32 old, Control c, Mode m) {
    return with_byte(old, narrow_two<Fp4>(low_half(a), high_half(a), scale, m), to_byte(c));
  });
  vector(t, Op::v_cvt_scalef32_pk_fp4_bf16, [](u32 a, float scale, u32 old, Control c, Mode m) {
    return with_byte(old, narrow_two<Fp4>(low_bf16(a), high_bf16(a), scale, m), to_byte(c));
  });
  vector(t, Op::v_cvt_scalef32_sr_pk_fp4_f32,
         [](Pair a, u32 seed, float scale, u32 old, Control c, Mode m) {
           const u32 two =
               narrow_two_stochastic<Fp4>(as<float>(a.low), as<float>(a.high), seed, scale, m);
           return with_byte(old, two, to_byte(c));
         });
  vector(t, Op::v_cvt_scalef32_sr_pk_fp4_f16,
         [](u32 a, u32 seed, float scale, u32 old, Control c, Mode m) {
           const u32 two = narrow_two_stochastic<Fp4>(low_half(a), high_half(a), seed, scale, m);
           return with_byte(old, two, to_byte(c));
         });
  vector(t, Op::v_cvt_scalef32_sr_pk_fp4_bf16,
         [](u32 a, u32 seed, float scale, u32 old, Control c, Mode m) {
           const u32 two = narrow_two_stochastic<Fp4>(low_bf16(a), high_bf16(a), seed, scale, m);
           return with_byte(old, two, to_byte(c));
         });
  vector(t, Op::v_cvt_scalef32_pk_f32_fp4,
         [](u32 a, float scale, Control c) { return widen_two<Fp4>(from_byte(a, c), scale); });
  vector(t, Op::v_cvt_scalef32_pk_f16_fp4, [](u32 a, float scale, Control c, Mode m) {
    return to_halves(widen_two<Fp4>(from_byte(a, c), scale_for_half(scale)), m);
  });
  vector(t, Op::v_cvt_scalef32_pk_bf16_fp4, [](u32 a, float scale, Control c) {
    return to_bf16s(widen_two<Fp4>(from_byte(a, c), scale));
  });
}

// ---- 32 elements of 6 bits ----------------------------------------------------------------------

using Row = uint32_t[kLanes];

struct F32 {
  static constexpr int kRows = 32;
};
struct F16 {
  static constexpr int kRows = 16;
};
struct B16 {
  static constexpr int kRows = 16;
};

// Element n of a tuple of registers.
template <class T>
EMU_INLINE float element(const uint32_t* tuple, int n, int l) {
  if constexpr (std::is_same_v<T, F32>) return as<float>(tuple[n * kLanes + l]);
  const uint32_t word = tuple[n / 2 * kLanes + l] >> (n % 2 * 16) & 0xffff;
  return std::is_same_v<T, F16> ? half_to_float(word) : bf16_to_float(word);
}

EMU_INLINE const uint32_t* operand_row(Wave& w, const Inst* i, int n, uint16_t at, Row& buffer) {
  if (!(i->x >> n & 1)) return w.reg(at);
  spread(buffer, w.s[at]);
  return buffer;
}

EMU_INLINE void put_code(Row* out, int n, int l, uint32_t code) {
  const int bit = 6 * n, word = bit / 32, shift = bit % 32;
  out[word][l] |= code << shift;
  if (shift > 26) out[word + 1][l] |= code >> (32 - shift);
}

// a: values, b: seed of the stochastic form; c: scale.
template <class S, class T, bool kStochastic>
const Inst* narrow_32(Wave& w, const Inst* i) {
  alignas(64) Row buffer[2];
  alignas(64) Row out[6] = {};
  const uint32_t* const values = w.reg(i->a);
  const uint32_t* const seeds = operand_row(w, i, 1, i->b, buffer[0]);
  const uint32_t* const scales = operand_row(w, i, 2, i->c, buffer[1]);
  for (int l = 0; l < kLanes; ++l) {
    const int e = scale_exponent(as<float>(scales[l]));
    uint32_t seed = seeds[l];
    for (int n = 0; n < 32; ++n) {
      put_code(out, n, l, narrow<S, kStochastic>(element<T>(values, n, l), e, true, seed));
      seed = next_seed(seed);
    }
  }
  for (int r = 0; r < 6; ++r) blend(w.reg(i->d) + r * kLanes, out[r], w.exec());
  return i + 1;
}

// Two tuples of 16 floats, interleaved.
template <class S>
const Inst* narrow_2x16(Wave& w, const Inst* i) {
  alignas(64) Row buffer;
  alignas(64) Row out[6] = {};
  const uint32_t *const a = w.reg(i->a), *const b = w.reg(i->b);
  const uint32_t* const scales = operand_row(w, i, 2, i->c, buffer);
  for (int l = 0; l < kLanes; ++l) {
    const int e = scale_exponent(as<float>(scales[l]));
    for (int n = 0; n < 16; ++n) {
      put_code(out, 2 * n, l, narrow<S>(element<F32>(a, n, l), e, true));
      put_code(out, 2 * n + 1, l, narrow<S>(element<F32>(b, n, l), e, true));
    }
  }
  for (int r = 0; r < 6; ++r) blend(w.reg(i->d) + r * kLanes, out[r], w.exec());
  return i + 1;
}

template <class S, class T>
const Inst* widen_32(Wave& w, const Inst* i) {
  alignas(64) Row buffer;
  alignas(64) Row out[T::kRows] = {};
  const uint32_t* const codes = w.reg(i->a);
  const uint32_t* const scales = operand_row(w, i, 2, i->c, buffer);
  const bool overflow = w.mode & kModeFp16Overflow;
  alignas(64) int exponents[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    const float scale = as<float>(scales[l]);
    exponents[l] = scale_exponent(std::is_same_v<T, F16> ? scale_for_half(scale) : scale);
  }
  for (int n = 0; n < 32; ++n) {  // lanes inside: the compiler makes vector instructions of them
    const int bit = 6 * n, word = bit / 32, shift = bit % 32;
    const uint32_t* const low = codes + word * kLanes;
    // The rest of a code that begins in bits 27 to 31; of others no bit of this is left.
    const uint32_t* const high = shift > 26 ? low + kLanes : low;
    const int up = shift > 26 ? 32 - shift : 6;
    for (int l = 0; l < kLanes; ++l) {
      const float x = widen<S>((low[l] >> shift | high[l] << up) & 63, exponents[l]);
      if constexpr (std::is_same_v<T, F32>)
        out[n][l] = as<uint32_t>(x);
      else if constexpr (std::is_same_v<T, F16>)
        out[n / 2][l] |= float_to_half(x, overflow) << (n % 2 * 16);
      else
        out[n / 2][l] |= float_to_bf16(x) << (n % 2 * 16);
    }
  }
  for (int r = 0; r < T::kRows; ++r) blend(w.reg(i->d) + r * kLanes, out[r], w.exec());
  return i + 1;
}

void lower_32(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  const OpInfo& op = info(d.op);
  i.fn = s.handler;
  i.a = l.vector(d.src[0], op.src[0].dwords);
  const auto small = [&](int n, int place) -> uint16_t {
    if (Lowering::is_vgpr(d.src[n])) return l.vector(d.src[n]);
    i.x |= 1 << place;
    // A constant scale is a float.
    OperandType type = op.src[n];
    if (place == 2) type.kind = 'f';
    return l.scalar(d.src[n], type);
  };
  const int count = op.src[2] ? 3 : 2;
  i.c = small(count - 1, 2);
  if (count == 3)
    i.b = op.src[1].dwords > 1 ? l.vector(d.src[1], op.src[1].dwords) : small(1, 1);
  else
    i.b = i.a;
  i.d = l.vector(d.dst, op.dst.dwords);
}

template <class S>
void add_6bit(Semantics& t, const Op (&ops)[9]) {
  set(t, ops[0], lower_32, narrow_2x16<S>);
  set(t, ops[1], lower_32, narrow_32<S, F16, false>);
  set(t, ops[2], lower_32, narrow_32<S, B16, false>);
  set(t, ops[3], lower_32, narrow_32<S, F32, true>);
  set(t, ops[4], lower_32, narrow_32<S, F16, true>);
  set(t, ops[5], lower_32, narrow_32<S, B16, true>);
  set(t, ops[6], lower_32, widen_32<S, F32>);
  set(t, ops[7], lower_32, widen_32<S, F16>);
  set(t, ops[8], lower_32, widen_32<S, B16>);
}

}  // namespace

#define EMU_OPS_8BIT(x)                                                \
  {Op::v_cvt_scalef32_pk_##x##_f32,  Op::v_cvt_scalef32_pk_##x##_f16,  \
   Op::v_cvt_scalef32_pk_##x##_bf16, Op::v_cvt_scalef32_sr_##x##_f32,  \
   Op::v_cvt_scalef32_sr_##x##_f16,  Op::v_cvt_scalef32_sr_##x##_bf16, \
   Op::v_cvt_scalef32_pk_f32_##x,    Op::v_cvt_scalef32_pk_f16_##x,    \
   Op::v_cvt_scalef32_pk_bf16_##x,   Op::v_cvt_scalef32_f32_##x,       \
   Op::v_cvt_scalef32_f16_##x}
#define EMU_OPS_6BIT(x)                                                         \
  {Op::v_cvt_scalef32_2xpk16_##x##_f32,  Op::v_cvt_scalef32_pk32_##x##_f16,     \
   Op::v_cvt_scalef32_pk32_##x##_bf16,   Op::v_cvt_scalef32_sr_pk32_##x##_f32,  \
   Op::v_cvt_scalef32_sr_pk32_##x##_f16, Op::v_cvt_scalef32_sr_pk32_##x##_bf16, \
   Op::v_cvt_scalef32_pk32_f32_##x,      Op::v_cvt_scalef32_pk32_f16_##x,       \
   Op::v_cvt_scalef32_pk32_bf16_##x}

void add_convert(Semantics& t, const Arch& of) {
  (of.fnuz ? add_8bit<Fp8Fnuz> : add_8bit<Fp8>)(t, Op::v_cvt_f32_fp8, Op::v_cvt_pk_f32_fp8,
                                                Op::v_cvt_pk_fp8_f32, Op::v_cvt_sr_fp8_f32);
  (of.fnuz ? add_8bit<Bf8Fnuz> : add_8bit<Bf8>)(t, Op::v_cvt_f32_bf8, Op::v_cvt_pk_f32_bf8,
                                                Op::v_cvt_pk_bf8_f32, Op::v_cvt_sr_bf8_f32);
  vector(t, Op::v_cvt_sr_f16_f32, [](float a, u32 seed, u32 old, Control c, Mode m) {
    return with_half(old, half_stochastic(a, seed, m), to_high(c));
  });
  vector(t, Op::v_cvt_sr_bf16_f32, [](float a, u32 seed, u32 old, Control c) {
    return with_half(old, bf16_stochastic(a, seed), to_high(c));
  });
  add_8bit_scaled<Fp8>(t, EMU_OPS_8BIT(fp8));
  add_8bit_scaled<Bf8>(t, EMU_OPS_8BIT(bf8));
  add_fp4(t);
  add_6bit<Fp6>(t, EMU_OPS_6BIT(fp6));
  add_6bit<Bf6>(t, EMU_OPS_6BIT(bf6));
}

}  // namespace emu::EMU_NS
