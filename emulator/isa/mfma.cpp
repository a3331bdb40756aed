// MFMA: D = C + A B on blocks of 16x16 or 32x32 outputs. EXEC is ignored, denormals are kept.
//
// Operands are converted to float once per instruction. The order of summation is the same on every
// CPU: products of even k and of odd k are accumulated in two chains of fused multiply-adds that
// start from zero; the result is C + (even + odd). (It is what one AMX tile instruction does.)
// Any NaN becomes the one quiet NaN, since CPUs differ in which NaN they pass on.
#include "isa/atomics.hpp"
#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

// ---- fused multiply-add -------------------------------------------------------------------------

// Without FMA instructions: the product is exact in double; the sum is rounded to odd there, so
// that rounding it to float is the only rounding.
EMU_INLINE float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  const double product = static_cast<double>(a) * b, sum = product + c;
  const double back = sum - product;
  const double error = (product - (sum - back)) + (c - back);
  auto bits = as<uint64_t>(sum);
  const bool finite = (bits >> 52 & 2047) != 2047;
  if (finite && error != 0 && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
  return static_cast<float>(as<double>(bits));
#endif
}

#if defined(__AVX512F__)
struct Vector {
  static constexpr int kWidth = 16, kRows = 8;
  __m512 x;
  EMU_INLINE Vector zero() { return {_mm512_setzero_ps()}; }
  EMU_INLINE Vector load(const float* p) { return {_mm512_loadu_ps(p)}; }
  EMU_INLINE Vector load_bits(const uint32_t* p) { return {_mm512_loadu_ps(p)}; }
  EMU_INLINE Vector broadcast(float f) { return {_mm512_set1_ps(f)}; }
  EMU_INLINE Vector fma(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.x, b.x, c.x)}; }
  EMU_INLINE Vector add(Vector a, Vector b) { return {_mm512_add_ps(a.x, b.x)}; }
  EMU_INLINE void store(uint32_t* p, Vector v) {
    const __mmask16 nan = _mm512_cmp_ps_mask(v.x, v.x, _CMP_UNORD_Q);
    _mm512_storeu_si512(
        p, _mm512_mask_mov_epi32(_mm512_castps_si512(v.x), nan, _mm512_set1_epi32(0x7fc00000)));
  }
};
#elif defined(__AVX2__)
struct Vector {
  static constexpr int kWidth = 8, kRows = 4;
  __m256 x;
  EMU_INLINE Vector zero() { return {_mm256_setzero_ps()}; }
  EMU_INLINE Vector load(const float* p) { return {_mm256_loadu_ps(p)}; }
  EMU_INLINE Vector load_bits(const uint32_t* p) {
    return {_mm256_loadu_ps(reinterpret_cast<const float*>(p))};  // intrinsics may alias
  }
  EMU_INLINE Vector broadcast(float f) { return {_mm256_set1_ps(f)}; }
  EMU_INLINE Vector fma(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.x, b.x, c.x)}; }
  EMU_INLINE Vector add(Vector a, Vector b) { return {_mm256_add_ps(a.x, b.x)}; }
  EMU_INLINE void store(uint32_t* p, Vector v) {
    const __m256 nan = _mm256_cmp_ps(v.x, v.x, _CMP_UNORD_Q);
    const __m256 quiet = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_storeu_ps(reinterpret_cast<float*>(p), _mm256_blendv_ps(v.x, quiet, nan));
  }
};
#else
struct Vector {
  static constexpr int kWidth = 4, kRows = 4;
  float x[4];
  EMU_INLINE Vector zero() { return {}; }
  EMU_INLINE Vector load(const float* p) { return {{p[0], p[1], p[2], p[3]}}; }
  EMU_INLINE Vector load_bits(const uint32_t* p) {
    return {{as<float>(p[0]), as<float>(p[1]), as<float>(p[2]), as<float>(p[3])}};
  }
  EMU_INLINE Vector broadcast(float f) { return {{f, f, f, f}}; }
  EMU_INLINE Vector fma(Vector a, Vector b, Vector c) {
    for (int n = 0; n < 4; ++n) c.x[n] = fused(a.x[n], b.x[n], c.x[n]);
    return c;
  }
  EMU_INLINE Vector add(Vector a, Vector b) {
    for (int n = 0; n < 4; ++n) a.x[n] += b.x[n];
    return a;
  }
  EMU_INLINE void store(uint32_t* p, Vector v) {
    for (int n = 0; n < 4; ++n) p[n] = is_nan(v.x[n]) ? 0x7fc00000 : as<uint32_t>(v.x[n]);
  }
};
#endif

// ---- the product --------------------------------------------------------------------------------

// Where row m of a block's output lies in the registers: 16 or 32 neighbouring lanes.
template <int kSize>
EMU_INLINE int output_at(int m) {
  return kSize == 16 ? m % 4 * kLanes + m / 4 * 16 : (m / 8 * 4 + m % 4) * kLanes + m % 8 / 4 * 32;
}

// a[k][m], b[k][n]; c and d are registers, c may be a buffer of that shape.
template <int kSize, int kDepth>
EMU_INLINE void multiply(const float* a, const float* b, const uint32_t* c, uint32_t* d) {
  constexpr int rows = Vector::kRows;
  for (int n = 0; n < kSize; n += Vector::kWidth) {
    for (int m = 0; m < kSize; m += rows) {
      Vector even[rows], odd[rows];
      for (int r = 0; r < rows; ++r) even[r] = odd[r] = Vector::zero();
      for (int k = 0; k < kDepth; k += 2) {
        const Vector b0 = Vector::load(b + k * kSize + n);
        const Vector b1 = Vector::load(b + (k + 1) * kSize + n);
        const float* const a0 = a + k * kSize + m;
        const float* const a1 = a + (k + 1) * kSize + m;
#if defined(__clang__)
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 8
#endif
        for (int r = 0; r < rows; ++r) {
          even[r] = Vector::fma(Vector::broadcast(a0[r]), b0, even[r]);
          odd[r] = Vector::fma(Vector::broadcast(a1[r]), b1, odd[r]);
        }
      }
      for (int r = 0; r < rows; ++r) {
        const int at = output_at<kSize>(m + r) + n;
        const Vector old = Vector::load_bits(c + at);
        Vector::store(d + at, Vector::add(old, Vector::add(even[r], odd[r])));
      }
    }
  }
}

// ---- operands -----------------------------------------------------------------------------------

// The two 16-bit elements of each dword in `row`, as float.
struct Bf16 {
  EMU_INLINE float low(uint32_t x) { return as<float>(x << 16); }
  EMU_INLINE float high(uint32_t x) { return as<float>(x & 0xffff0000); }
};
struct F16 {
  EMU_INLINE float low(uint32_t x) { return from_f16(x & 0xffff); }
  EMU_INLINE float high(uint32_t x) { return from_f16(x >> 16); }
};

// out[k][m]: lane l of register r holds row l % size, k = per_lane * (l / size) + 2r and the next.
template <int kSize, int kRegisters, class Element>
EMU_INLINE void unpack16(float* out, const uint32_t* v) {
  for (int r = 0; r < kRegisters; ++r)
    for (int g = 0; g < kLanes / kSize; ++g) {
      const uint32_t* const from = v + r * kLanes + g * kSize;
      float* const even = out + (2 * kRegisters * g + 2 * r) * kSize;
      for (int l = 0; l < kSize; ++l) {
        even[l] = Element::low(from[l]);
        even[kSize + l] = Element::high(from[l]);
      }
    }
}

template <int kSize>
constexpr int kOutputs = kSize * kSize / kLanes;  // registers of C and D

// Inst: d, a, b registers, c register or (x & 1) constant.
template <int kSize, int kRegisters, class Element>
const Inst* run16(Wave& w, const Inst* i) {
  constexpr int depth = kRegisters * 2 * (kLanes / kSize);
  alignas(64) float a[depth * kSize], b[depth * kSize];
  unpack16<kSize, kRegisters, Element>(a, w.reg(i->a));
  unpack16<kSize, kRegisters, Element>(b, w.reg(i->b));
  ++w.mfma;
  if (i->x & 1) {
    alignas(64) uint32_t c[kOutputs<kSize> * kLanes];
    for (uint32_t& x : c) x = w.s[i->c];
    multiply<kSize, depth>(a, b, c, w.reg(i->d));
  } else {
    multiply<kSize, depth>(a, b, w.reg(i->c), w.reg(i->d));
  }
  return i + 1;
}

template <int kSize, int kRegisters>
void lower(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.vector(d.src[0], kRegisters);
  i.b = l.vector(d.src[1], kRegisters);
  if (Lowering::is_vgpr(d.src[2])) {
    i.c = l.vector(d.src[2], kOutputs<kSize>);
  } else {
    i.c = l.scalar(d.src[2], info(d.op).dst.kind == 'f' ? OperandType{'f', {}, 32, 1, 1}
                                                        : OperandType{'i', {}, 32, 1, 1});
    i.x = 1;
  }
  i.d = l.vector(d.dst, kOutputs<kSize>);
  if (d.cbsz || d.abid || d.blgp) l.fail("broadcast modifiers of MFMA are not emulated here");
}

template <int kSize, int kRegisters, class Element>
void add16(Semantics& t, Op op) {
  set(t, op, lower<kSize, kRegisters>, run16<kSize, kRegisters, Element>);
}

}  // namespace

void add_mfma(Semantics& t) {
  add16<16, 4, Bf16>(t, Op::v_mfma_f32_16x16x32_bf16);
  add16<32, 4, Bf16>(t, Op::v_mfma_f32_32x32x16_bf16);
  add16<16, 4, F16>(t, Op::v_mfma_f32_16x16x32_f16);
  add16<32, 4, F16>(t, Op::v_mfma_f32_32x32x16_f16);
  add16<16, 2, Bf16>(t, Op::v_mfma_f32_16x16x16_bf16);
  add16<32, 2, Bf16>(t, Op::v_mfma_f32_32x32x8_bf16);
  add16<16, 2, F16>(t, Op::v_mfma_f32_16x16x16_f16);
  add16<32, 2, F16>(t, Op::v_mfma_f32_32x32x8_f16);
}

}  // namespace emu::EMU_NS
