// MFMA: D = C + A B on blocks of outputs. EXEC is ignored, denormals are kept.
//
// Operands are converted to float once per instruction. The order of summation is the same on every
// CPU: within 32 values of k, products of even k and of odd k are accumulated in two chains of
// fused multiply-adds that start from zero, and the sum of the two is added to C; then the next 32.
// (This is the order of AMX tile instructions.) Scales are those of 32 values of k, too.
// Any NaN becomes the one quiet NaN, since CPUs differ in which NaN they pass on.
#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

// ---- vectors of floats
// --------------------------------------------------

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
  using Floats = float __attribute__((vector_size(16)));
  using Doubles = double __attribute__((vector_size(32)));
  using Bits = int64_t __attribute__((vector_size(32)));
  Floats x;
  EMU_INLINE Vector zero() { return {Floats{}}; }
  EMU_INLINE Vector load(const float* p) {
    Vector v;
    std::memcpy(&v.x, p, sizeof v.x);
    return v;
  }
  EMU_INLINE Vector load_bits(const uint32_t* p) {
    Vector v;
    std::memcpy(&v.x, p, sizeof v.x);
    return v;
  }
  EMU_INLINE Vector broadcast(float f) { return {Floats{f, f, f, f}}; }
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  EMU_INLINE Vector fma(Vector a, Vector b, Vector c) {
    for (int n = 0; n < 4; ++n) c.x[n] = __builtin_fmaf(a.x[n], b.x[n], c.x[n]);
    return c;
  }
#else
  // The product is exact in double; the sum is rounded to odd there, so that rounding it to float
  // is the only rounding.
  EMU_INLINE Vector fma(Vector a, Vector b, Vector c) {
    const Doubles addend = __builtin_convertvector(c.x, Doubles);
    const Doubles product =
        __builtin_convertvector(a.x, Doubles) * __builtin_convertvector(b.x, Doubles);
    const Doubles sum = product + addend, back = sum - product;
    const Doubles error = (product - (sum - back)) + (addend - back);
    Bits bits;
    std::memcpy(&bits, &sum, sizeof bits);
    const Bits inexact = (error != 0) & ((bits & 1) == 0) & ((bits >> 52 & 2047) != 2047);
    const Bits inward = (error > 0) ^ (sum > 0);  // -1 where the exact sum is nearer to zero
    bits += inexact & (1 + 2 * inward);
    Doubles odd;
    std::memcpy(&odd, &bits, sizeof odd);
    return {__builtin_convertvector(odd, Floats)};
  }
#endif
  EMU_INLINE Vector add(Vector a, Vector b) { return {a.x + b.x}; }
  EMU_INLINE void store(uint32_t* p, Vector v) {
    for (int n = 0; n < 4; ++n) p[n] = is_nan(v.x[n]) ? 0x7fc00000 : as<uint32_t>(v.x[n]);
  }
};
#endif

// ---- the product --------------------------------------------------------------------------------

// Registers and lanes of outputs: offset of row m of block `block`, whose columns are neighbours.
// kHeight: rows that lie in consecutive registers (4; 1 for f64).
template <int kSize, int kBlocks, int kHeight = 4>
EMU_INLINE int output_at(int block, int m) {
  constexpr int rows_in_register = kSize * kSize / kHeight;  // lanes a row group takes
  constexpr int blocks_abreast = rows_in_register >= kLanes ? 1 : kLanes / rows_in_register;
  constexpr int rows_abreast = kLanes / blocks_abreast / kSize;
  constexpr int groups = kSize / (kHeight * rows_abreast);
  const int item =
      m % kHeight + kHeight * (m / (kHeight * rows_abreast) + groups * (block / blocks_abreast));
  return item * kLanes +
         kSize * (m / kHeight % rows_abreast + rows_abreast * (block % blocks_abreast));
}

// a[k][m] and b[k][n], rows of kPitch floats; c and d are registers, c may be a buffer like them.
// Out of line, as is unpack(): many instructions share it.
template <int kSize, int kDepth, int kPitch, int kBlocks>
[[gnu::noinline]] void multiply(const float* a, const float* b, int block, const uint32_t* c,
                                uint32_t* d) {
  constexpr int rows = Vector::kRows < kSize ? Vector::kRows : kSize;
  constexpr int chunk = kDepth < 32 ? kDepth : 32;
  for (int n = 0; n < kSize; n += Vector::kWidth) {
    for (int m = 0; m < kSize; m += rows) {
      Vector sum[rows];
      for (int r = 0; r < rows; ++r)
        sum[r] = Vector::load_bits(c + output_at<kSize, kBlocks>(block, m + r) + n);
      for (int start = 0; start < kDepth; start += chunk) {
        Vector even[rows], odd[rows];
        for (int r = 0; r < rows; ++r) even[r] = odd[r] = Vector::zero();
        for (int k = start; k < start + chunk; k += 2) {
          const float* const a0 = a + k * kPitch + m;
          const Vector b0 = Vector::load(b + k * kPitch + n);
#if defined(__clang__)
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 8
#endif
          for (int r = 0; r < rows; ++r)
            even[r] = Vector::fma(Vector::broadcast(a0[r]), b0, even[r]);
          if constexpr (kDepth > 1) {
            const float* const a1 = a0 + kPitch;
            const Vector b1 = Vector::load(b + (k + 1) * kPitch + n);
#if defined(__clang__)
#pragma clang loop unroll(full)
#else
#pragma GCC unroll 8
#endif
            for (int r = 0; r < rows; ++r)
              odd[r] = Vector::fma(Vector::broadcast(a1[r]), b1, odd[r]);
          }
        }
        for (int r = 0; r < rows; ++r) sum[r] = Vector::add(sum[r], Vector::add(even[r], odd[r]));
      }
      for (int r = 0; r < rows; ++r)
        Vector::store(d + output_at<kSize, kBlocks>(block, m + r) + n, sum[r]);
    }
  }
}

EMU_INLINE float fused(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return Vector::fma(Vector::broadcast(a), Vector::broadcast(b), Vector::broadcast(c)).x[0];
#endif
}

EMU_INLINE uint32_t canonical(float x) { return is_nan(x) ? 0x7fc00000 : as<uint32_t>(x); }

// The same for blocks narrower than a vector.
template <int kSize, int kDepth, int kPitch, int kBlocks>
EMU_INLINE void multiply_narrow(const float* a, const float* b, int block, const uint32_t* c,
                                uint32_t* d) {
  constexpr int chunk = kDepth < 32 ? kDepth : 32;
  for (int m = 0; m < kSize; ++m)
    for (int n = 0; n < kSize; ++n) {
      const int at = output_at<kSize, kBlocks>(block, m) + n;
      float sum = as<float>(c[at]);
      for (int start = 0; start < kDepth; start += chunk) {
        float chain[2] = {};
        for (int k = start; k < start + chunk; ++k)
          chain[k & 1] = fused(a[k * kPitch + m], b[k * kPitch + n], chain[k & 1]);
        sum += chain[0] + chain[1];
      }
      d[at] = canonical(sum);
    }
}

// ---- operands -----------------------------------------------------------------------------------

// As many lanes at a time as a vector of this CPU level holds. (Left to itself, the compiler does
// not vectorise the selections.)
#if defined(__AVX512F__)
constexpr int kAbreast = 16;
#elif defined(__AVX2__)
constexpr int kAbreast = 8;
#else
constexpr int kAbreast = 4;
#endif
typedef uint32_t Bits __attribute__((vector_size(4 * kAbreast)));
typedef int32_t Ints __attribute__((vector_size(4 * kAbreast)));
typedef float Floats __attribute__((vector_size(4 * kAbreast)));

// Element formats: bits, and the values of bit patterns, with zeros above them.
struct AsBf16 {
  static constexpr int kBits = 16;
  EMU_INLINE void value(const Bits& x, Floats& out) { out = (Floats)(x << 16); }
};
struct AsF32 {
  static constexpr int kBits = 32;
  EMU_INLINE void value(const Bits& x, Floats& out) { out = (Floats)x; }
};
// The low 13 bits are cut off, as AMD's references do (Tensile's XFloat32). NaN stays NaN.
struct AsXf32 {
  static constexpr int kBits = 32;
  EMU_INLINE void value(const Bits& x, Floats& out) {
    const Bits kept = x & 0xffffe000u;
    out = (Floats)((x & 0x7fffffff) > 0x7f800000 ? kept | 0x00400000u : kept);
  }
};
struct AsI8 {
  static constexpr int kBits = 8;
  EMU_INLINE void value(const Bits& x, Floats& out) {
    out = __builtin_convertvector((Ints)(x << 24) >> 24, Floats);
  }
};
// Small floats: S says how many bits are mantissa, and the bias.
template <class S>
struct AsSmall {
  static constexpr int kBits = S::kBits;
  EMU_INLINE void value(const Bits& x, Floats& out) {
    constexpr int mantissa = S::kMantissa;
    constexpr uint32_t mask = (1u << (kBits - 1)) - 1, top = 0x7f800000;
    constexpr float unit =
        std::bit_cast<float>(static_cast<uint32_t>(127 + 1 - S::kBias - mantissa) << 23);
    const Bits magnitude = x & mask, sign = x >> (kBits - 1) << 31;
    const Bits shifted = magnitude << (23 - mantissa);
    const Bits normal = shifted + (static_cast<uint32_t>(127 - S::kBias) << 23);
    const Bits small = (Bits)(__builtin_convertvector((Ints)magnitude, Floats) * unit);
    Bits r = magnitude < (1u << mantissa) ? small : normal;
    if constexpr (kFnuz<S>)
      r = x == 0x80 ? Bits{} + 0x7fc00000 : r;
    else if constexpr (kBits == 8 && mantissa == 3)  // no infinity, one NaN
      r = magnitude == mask ? Bits{} + 0x7fc00000 : r;
    else if constexpr (kBits >= 8)
      r = magnitude >= S::kOverflow ? shifted | top : r;
    out = (Floats)(r | sign);
  }
};
struct Half {
  static constexpr int kMantissa = 10, kBias = 15, kBits = 16;
  static constexpr uint32_t kOverflow = 0x7c00;
};
using AsF16 = AsSmall<Half>;

// out[k][lane % kPitch]: lane l holds, for one row and block, the values k = n * (l / kPitch) to
// n - 1 further, n = kRegisters * 32 / bits. With two chunks (8-bit operands of f8f6f4), the first
// half of them from n/2 * (l / kPitch), the second half as much beyond the middle of K.
template <int kPitch, int kRegisters, class Element, bool kTwoChunks>
[[gnu::noinline]] void unpack(float* out, const uint32_t* v) {
  constexpr int bits = Element::kBits, n = kRegisters * 32 / bits;
  constexpr uint32_t mask = bits == 32 ? ~0u : (1u << (bits % 32)) - 1;
  for (int e = 0; e < n; ++e) {
    const int low = e * bits / 32, shift = e * bits % 32;
    for (int lane = 0; lane < kLanes; lane += kAbreast) {
      const int g = lane / kPitch;
      const int k = !kTwoChunks ? n * g + e
                    : e < n / 2 ? n / 2 * g + e
                                : n / 2 * (kLanes / kPitch) + n / 2 * g + e - n / 2;
      Bits x;
      std::memcpy(&x, v + low * kLanes + lane, sizeof x);
      x >>= shift;
      if constexpr (32 % bits != 0)
        if (shift + bits > 32) {
          Bits next;
          std::memcpy(&next, v + (low + 1) * kLanes + lane, sizeof next);
          x |= next << (32 - shift);
        }
      Floats y;
      Element::value(x & mask, y);
      std::memcpy(out + k * kPitch + lane % kPitch, &y, sizeof y);
    }
  }
}

// Inst: d, a, b registers; c register, or constant if (x & kConstantC). y: lane broadcasts, cbsz in
// bits 0-2, abid 3-6, blgp 7-9.
// kCopyC: C and D overlap without being the same.
enum : uint16_t { kConstantC = 1, kCopyC = 2 };

// Registers as the broadcast fields rearrange them.
template <int kRegisters>
EMU_INLINE const uint32_t* rearranged(Wave& w, const Inst* i, uint16_t at, bool is_b,
                                      uint32_t* buffer) {
  const uint32_t* const v = w.reg(at);
  const uint32_t cbsz = i->y & 7, abid = i->y >> 3 & 15, blgp = i->y >> 7 & 7;
  if (!(is_b ? blgp : cbsz)) return v;
  for (uint32_t l = 0; l < kLanes; ++l) {
    uint32_t from;
    if (!is_b)
      from = l % (kLanes >> cbsz) + (kLanes >> cbsz) * abid;
    else if (blgp < 3)
      from = l % 32 + (blgp - 1) * 32;
    else if (blgp == 3)
      from = l + 16;
    else
      from = l % 16 + (blgp - 4) * 16;
    for (int r = 0; r < kRegisters; ++r) buffer[r * kLanes + l] = v[r * kLanes + from % kLanes];
  }
  return buffer;
}

// C, spread out in the buffer if it is a constant.
template <int kRegisters>
EMU_INLINE const uint32_t* addend(Wave& w, const Inst* i, uint32_t* buffer) {
  if (!i->x) return w.reg(i->c);
  if (i->x & kCopyC)
    return static_cast<uint32_t*>(std::memcpy(buffer, w.reg(i->c), kRegisters * kLanes * 4));
  for (int k = 0; k < kRegisters * kLanes; ++k) buffer[k] = w.s[i->c];
  return buffer;
}

// MODE.FP16_OVFL: a result that overflowed is the largest number instead. Infinities that come from
// infinite operands stay.
void limit(const uint32_t* c, const float* a, int a_count, const float* b, int b_count, uint32_t* d,
           int outputs) {
  const auto infinite = [](uint32_t x) { return (x & 0x7fffffff) == 0x7f800000; };
  for (int k = 0; k < a_count; ++k)
    if (infinite(as<uint32_t>(a[k]))) return;
  for (int k = 0; k < b_count; ++k)
    if (infinite(as<uint32_t>(b[k]))) return;
  for (int k = 0; k < outputs; ++k)
    if (infinite(d[k]) && !infinite(c[k])) d[k] -= 1;
}

template <int kSize, int kBlocks>
constexpr int kOutputs = kSize * kSize * kBlocks / kLanes;  // registers of C and D

template <int kRegisters, int kOut>
void lower_operands(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.vector(d.src[0], kRegisters);
  i.b = l.vector(d.src[1], kRegisters);
  if (Lowering::is_vgpr(d.src[2])) {
    i.c = l.vector(d.src[2], kOut);
  } else {
    OperandType type = info(d.op).src[2];
    type.elements = 1;
    type.dwords = type.bits / 32;
    i.c = l.scalar(d.src[2], type);
    i.x |= kConstantC;
  }
  i.d = l.vector(d.dst, kOut);
  if (!i.x && i.c != i.d && i.c < i.d + kOut && i.d < i.c + kOut) i.x |= kCopyC;
  i.y = static_cast<uint16_t>(d.cbsz | d.abid << 3 | d.blgp << 7);
  if (d.cbsz > 4 || d.abid >= 1 << d.cbsz) l.fail("no such MFMA broadcast");
}

// ---- floats of 16 and 32 bits, and the old 8-bit forms ------------------------------------------

template <int kSize, int kBlocks, int kRegisters, class A, class B>
const Inst* run(Wave& w, const Inst* i) {
  constexpr int pitch = kSize * kBlocks;
  constexpr int depth = kRegisters * 32 / A::kBits * (kLanes / pitch);
  constexpr int outputs = kOutputs<kSize, kBlocks>;
  alignas(64) float a[depth * pitch], b[depth * pitch];
  alignas(64) uint32_t c_buffer[outputs * kLanes], other[kRegisters * kLanes];
  if (i->y) {
    unpack<pitch, kRegisters, A, false>(a, rearranged<kRegisters>(w, i, i->a, false, other));
    unpack<pitch, kRegisters, B, false>(b, rearranged<kRegisters>(w, i, i->b, true, other));
  } else {
    unpack<pitch, kRegisters, A, false>(a, w.reg(i->a));
    unpack<pitch, kRegisters, B, false>(b, w.reg(i->b));
  }
  if constexpr (std::is_same_v<A, AsF32>)  // the only form that obeys MODE's denormal bits
    if (!(w.mode & kModeDenormF32 & 0x10))
      for (int k = 0; k < depth * pitch; ++k) {
        a[k] = as<uint32_t>(a[k]) & 0x7f800000 ? a[k] : 0.f;
        b[k] = as<uint32_t>(b[k]) & 0x7f800000 ? b[k] : 0.f;
      }
  const uint32_t* c = addend<outputs>(w, i, c_buffer);
  const bool limited = w.mode & kModeFp16Overflow;
  if (limited && c != c_buffer)
    c = static_cast<uint32_t*>(std::memcpy(c_buffer, c, sizeof c_buffer));
  for (int block = 0; block < kBlocks; ++block) {
    const float *const a_block = a + block * kSize, *const b_block = b + block * kSize;
    if constexpr (kSize >= 16)
      multiply<kSize, depth, pitch, kBlocks>(a_block, b_block, block, c, w.reg(i->d));
    else
      multiply_narrow<kSize, depth, pitch, kBlocks>(a_block, b_block, block, c, w.reg(i->d));
  }
  if (limited) limit(c, a, depth * pitch, b, depth * pitch, w.reg(i->d), outputs * kLanes);
  return i + 1;
}

template <int kSize, int kBlocks, int kRegisters, class A, class B = A>
void add(Semantics& t, Op op) {
  set(t, op, lower_operands<kRegisters, kOutputs<kSize, kBlocks>>,
      run<kSize, kBlocks, kRegisters, A, B>);
}

// ---- 8-bit integers -----------------------------------------------------------------------------

// The products are added as floats, which is exact: 128 * 128 * 64 < 2^24.
void add_integers(const Wave& w, const uint32_t* c, const uint32_t* sum, uint32_t* d, int outputs) {
  const bool saturate = w.mode & kModeFp16Overflow;
  for (int k = 0; k < outputs; ++k) {
    const auto product = static_cast<int32_t>(as<float>(sum[k]));
    const uint32_t wrapped = c[k] + static_cast<uint32_t>(product);
    const bool overflow = (~(c[k] ^ static_cast<uint32_t>(product)) & (c[k] ^ wrapped)) >> 31;
    d[k] = saturate && overflow ? (c[k] >> 31 ? 0x80000000 : 0x7fffffff) : wrapped;
  }
}

template <int kSize, int kBlocks, int kRegisters>
const Inst* run_i8(Wave& w, const Inst* i) {
  constexpr int pitch = kSize * kBlocks, depth = kRegisters * 4 * (kLanes / pitch);
  constexpr int outputs = kOutputs<kSize, kBlocks>;
  alignas(64) float a[depth * pitch], b[depth * pitch];
  alignas(64) uint32_t c_buffer[outputs * kLanes], other[kRegisters * kLanes];
  alignas(64) uint32_t sum[outputs * kLanes] = {};
  unpack<pitch, kRegisters, AsI8, false>(a, rearranged<kRegisters>(w, i, i->a, false, other));
  unpack<pitch, kRegisters, AsI8, false>(b, rearranged<kRegisters>(w, i, i->b, true, other));
  for (int block = 0; block < kBlocks; ++block) {
    const float *const a_block = a + block * kSize, *const b_block = b + block * kSize;
    if constexpr (kSize >= 16)
      multiply<kSize, depth, pitch, kBlocks>(a_block, b_block, block, sum, sum);
    else
      multiply_narrow<kSize, depth, pitch, kBlocks>(a_block, b_block, block, sum, sum);
  }
  add_integers(w, addend<outputs>(w, i, c_buffer), sum, w.reg(i->d), outputs * kLanes);
  return i + 1;
}

template <int kSize, int kBlocks, int kRegisters>
void add_i8(Semantics& t, Op op) {
  set(t, op, lower_operands<kRegisters, kOutputs<kSize, kBlocks>>,
      run_i8<kSize, kBlocks, kRegisters>);
}

// ---- sparse -------------------------------------------------------------------------------------

// smfmac: A has two of each four values of k. Lane l holds pairs of A, and for each pair the four
// values of B from which its two indices choose: two bits each, in c. Which k these are makes no
// difference: a lane's values of A meet those of the same group of lanes of B.
// y: the first bit of the indices.
template <int kSize, int kRegisters, class A, class B>
const Inst* run_sparse(Wave& w, const Inst* i) {
  constexpr int items = kRegisters * 32 / A::kBits, outputs = kOutputs<kSize, 1>;
  constexpr bool integers = std::is_same_v<A, AsI8>;
  alignas(64) float a[items * kLanes], b[2 * items * kLanes];
  alignas(64) uint32_t c[outputs * kLanes], sum[outputs * kLanes] = {};
  unpack<kLanes, kRegisters, A, false>(a, w.reg(i->a));
  unpack<kLanes, 2 * kRegisters, B, false>(b, w.reg(i->b));
  uint32_t* const d = w.reg(i->d);
  std::memcpy(c, d, sizeof c);
  if constexpr (!integers) std::memcpy(sum, c, sizeof c);
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t index = w.reg(i->c)[l] >> i->y;
    for (int e = 0; e < items; e += 2)
      if ((index >> 2 * e & 3) >= (index >> (2 * e + 2) & 3))
        return fault(w, i, FaultKind::launch_failure,
                     "the two indices of a pair of values of A do not ascend");
  }
  for (int m = 0; m < kSize; ++m)
    for (int n = 0; n < kSize; ++n) {
      uint32_t& out = sum[output_at<kSize, 1>(0, m) + n];
      float chain[2] = {};
      int k = 0;
      for (int group = 0; group < kLanes; group += kSize) {
        const uint32_t index = w.reg(i->c)[group + m] >> i->y;
        for (int e = 0; e < items; ++e) {
          const int from = 4 * (e / 2) + static_cast<int>(index >> 2 * e & 3);
          chain[e & 1] =
              fused(a[e * kLanes + group + m], b[from * kLanes + group + n], chain[e & 1]);
          if (++k % 32) continue;
          out = canonical(as<float>(out) + (chain[0] + chain[1]));
          chain[0] = chain[1] = 0;
        }
      }
      if (k % 32) out = canonical(as<float>(out) + (chain[0] + chain[1]));
    }
  if constexpr (integers) {
    add_integers(w, c, sum, d, outputs * kLanes);
    return i + 1;
  }
  std::memcpy(d, sum, sizeof sum);
  if (w.mode & kModeFp16Overflow)
    limit(c, a, items * kLanes, b, 2 * items * kLanes, d, outputs * kLanes);
  return i + 1;
}

// Indices take 2 bits per value of A. Where a register holds several sets of them, abid says which
// one is used, or cbsz that it is the first.
template <int kOut, int kRegisters, int kBits>
void lower_sparse(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  constexpr int width = 2 * kRegisters * 32 / kBits, sets = 32 / width;
  i.fn = s.handler;
  i.a = l.vector(d.src[0], kRegisters);
  i.b = l.vector(d.src[1], 2 * kRegisters);
  i.c = l.vector(d.src[2]);
  i.d = l.vector(d.dst, kOut);
  i.y = static_cast<uint16_t>(d.cbsz & 3 ? 0 : d.abid % sets * width);
}

template <int kSize, int kRegisters, class A, class B = A>
void add_sparse(Semantics& t, Op op) {
  set(t, op, lower_sparse<kOutputs<kSize, 1>, kRegisters, A::kBits>,
      run_sparse<kSize, kRegisters, A, B>);
}

// ---- f64 ----------------------------------------------------------------------------------------

// One chain of fused multiply-adds that starts from C. Inst::y: A, B, C are negated.
template <int kSize, int kBlocks>
const Inst* run_f64(Wave& w, const Inst* i) {
  constexpr int pitch = kSize * kBlocks, depth = kLanes / pitch;
  constexpr int outputs = kOutputs<kSize, kBlocks>;
  const auto read = [&](uint16_t at, int l, bool negate) {
    const uint32_t* const v = w.reg(at);
    const uint64_t bits = v[l] | uint64_t{v[l + kLanes]} << 32;
    return as<double>(bits ^ uint64_t{negate} << 63);
  };
  const bool negate_c = i->y & 4;
  double result[outputs * kLanes];
  for (int block = 0; block < kBlocks; ++block)
    for (int m = 0; m < kSize; ++m)
      for (int n = 0; n < kSize; ++n) {
        const int at = output_at<kSize, kBlocks, 1>(block, m) + n;
        const int item = at / kLanes, lane = at % kLanes;
        double sum = i->x & kConstantC
                         ? as<double>(w.s64(i->c) ^ uint64_t{negate_c} << 63)
                         : read(static_cast<uint16_t>(i->c + 2 * item), lane, negate_c);
        for (int k = 0; k < depth; ++k)
          sum = __builtin_fma(read(i->a, m + kSize * (block + kBlocks * k), i->y & 1),
                              read(i->b, n + kSize * (block + kBlocks * k), i->y & 2), sum);
        result[at] = sum;
      }
  for (int at = 0; at < outputs * kLanes; ++at) {
    const uint64_t bits =
        result[at] != result[at] ? uint64_t{0x7ff8} << 48 : as<uint64_t>(result[at]);
    uint32_t* const d = w.reg(i->d + 2 * (at / kLanes)) + at % kLanes;
    d[0] = static_cast<uint32_t>(bits);
    d[kLanes] = static_cast<uint32_t>(bits >> 32);
  }
  return i + 1;
}
template <int kSize, int kBlocks>
void lower_f64(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  Decoded plain = d;
  plain.cbsz = plain.abid = plain.blgp = 0;
  lower_operands<2, 2 * kOutputs<kSize, kBlocks>>(l, plain, s, i);
  i.y = d.neg;  // the decoder moves the bits of blgp there
}

// ---- f8f6f4 -------------------------------------------------------------------------------------

constexpr int kFormats = 5;
constexpr int registers_of(int format) { return format < 2 ? 8 : format < 4 ? 6 : 4; }

template <int kSize>
EMU_INLINE void unpack_format(int format, float* out, const uint32_t* v) {
  switch (format) {
    case 0:
      return unpack<kSize, 8, AsSmall<Fp8>, true>(out, v);
    case 1:
      return unpack<kSize, 8, AsSmall<Bf8>, true>(out, v);
    case 2:
      return unpack<kSize, 6, AsSmall<Fp6>, false>(out, v);
    case 3:
      return unpack<kSize, 6, AsSmall<Bf6>, false>(out, v);
    default:
      return unpack<kSize, 4, AsSmall<Fp4>, false>(out, v);
  }
}

// Inst::wide of the scaled forms. From bit 0: scale A (register or slot), from 16: scale B; then
// two bits each: which byte; then one bit each: it is a scalar.
struct ScaleRegister {
  uint16_t at;
  int byte;
  bool scalar;
};
EMU_INLINE ScaleRegister scale_register(uint64_t wide, int which) {
  return {static_cast<uint16_t>(wide >> 16 * which), static_cast<int>(wide >> (32 + 2 * which) & 3),
          static_cast<bool>(wide >> (36 + which) & 1)};
}

// One biased exponent per lane. The hardware reads a scalar as a float's exponent field.
EMU_INLINE void read_scales(Wave& w, const ScaleRegister& s, uint32_t* exponent) {
  if (s.scalar)
    spread(exponent, w.s[s.at] >> 23 & 255);
  else
    for (int l = 0; l < kLanes; ++l) exponent[l] = w.reg(s.at)[l] >> (8 * s.byte) & 255;
}

// Multiplies each 32 rows of x[k][m] by their scales, exponent[block of 32][m]. That gives the
// result of scaling the sums as long as nothing leaves the range of float: exponents of at most 40
// either way. False if there are others, unless they are of zeros (as beyond the edge of a matrix).
template <int kSize>
[[gnu::noinline]] bool scale_operand(float* x, const uint32_t* exponent) {
  constexpr int blocks = kLanes / kSize;
  alignas(64) float scale[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    uint32_t e = exponent[l];
    if (e - 87 > 80 && e != 255) {
      uint32_t any = 0;
      for (int k = 0; k < 32; ++k)
        any |= as<uint32_t>(x[(l / kSize * 32 + k) * kSize + l % kSize]) << 1;
      if (any) return false;
      e = 127;
    }
    scale[l] = as<float>(e == 255 ? 0x7fc00000 : e << 23);
  }
  for (int block = 0; block < blocks; ++block)
    for (int k = block * 32; k < block * 32 + 32; ++k)
      for (int m = 0; m < kSize; ++m) x[k * kSize + m] *= scale[block * kSize + m];
  return true;
}

// Otherwise the sums of each 32 values of k are scaled, in double and so without error.
template <int kSize>
[[gnu::noinline]] void multiply_and_scale(const float* a, const float* b,
                                          const uint32_t* exponent_a, const uint32_t* exponent_b,
                                          const uint32_t* c, uint32_t* d) {
  constexpr int outputs = kOutputs<kSize, 1> * kLanes;
  alignas(64) uint32_t sum[outputs], nothing[outputs], part[outputs];
  std::memcpy(sum, c, sizeof sum);
  for (uint32_t& x : nothing) x = 0x80000000;  // -0: added to anything, it is no change
  const auto power = [](uint32_t e) {
    return as<double>(static_cast<uint64_t>(e + 1023 - 127) << 52);
  };
  for (int block = 0; block < kLanes / kSize; ++block) {
    multiply<kSize, 32, kSize, 1>(a + block * 32 * kSize, b + block * 32 * kSize, 0, nothing, part);
    for (int m = 0; m < kSize; ++m)
      for (int n = 0; n < kSize; ++n) {
        const int at = output_at<kSize, 1>(0, m) + n;
        const uint32_t ea = exponent_a[block * kSize + m], eb = exponent_b[block * kSize + n];
        const auto scaled = static_cast<float>(as<float>(part[at]) * power(ea) * power(eb));
        const bool nan = ea == 255 || eb == 255;
        sum[at] = canonical(as<float>(sum[at]) + (nan ? as<float>(0x7fc00000u) : scaled));
      }
  }
  std::memcpy(d, sum, sizeof sum);
}

template <int kSize, bool kScaled>
const Inst* run_small(Wave& w, const Inst* i) {
  constexpr int depth = 2048 / kSize;
  constexpr int outputs = kOutputs<kSize, 1>;
  alignas(64) float a[depth * kSize], b[depth * kSize];
  alignas(64) uint32_t c_buffer[outputs * kLanes];
  unpack_format<kSize>(i->imm & 7, a, w.reg(i->a));
  unpack_format<kSize>(i->imm >> 3 & 7, b, w.reg(i->b));
  const uint32_t* c = addend<outputs>(w, i, c_buffer);
  uint32_t* const d = w.reg(i->d);
  const bool limited = w.mode & kModeFp16Overflow;
  if (limited && c != c_buffer)
    c = static_cast<uint32_t*>(std::memcpy(c_buffer, c, sizeof c_buffer));

  bool beforehand = true;
  alignas(64) uint32_t exponent_a[kLanes], exponent_b[kLanes];
  if constexpr (kScaled) {
    read_scales(w, scale_register(i->wide, 0), exponent_a);
    read_scales(w, scale_register(i->wide, 1), exponent_b);
    beforehand = scale_operand<kSize>(a, exponent_a);
    if (beforehand && !scale_operand<kSize>(b, exponent_b)) {
      unpack_format<kSize>(i->imm & 7, a, w.reg(i->a));
      beforehand = false;
    }
  }
  if (beforehand)
    multiply<kSize, depth, kSize, 1>(a, b, 0, c, d);
  else
    multiply_and_scale<kSize>(a, b, exponent_a, exponent_b, c, d);
  if (limited) limit(c, a, depth * kSize, b, depth * kSize, d, outputs * kLanes);
  return i + 1;
}

template <int kSize, bool kScaled>
void lower_small(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  if (d.cbsz >= kFormats || d.blgp >= kFormats) return l.fail("no such matrix format");
  i.imm = d.cbsz | d.blgp << 3;
  i.fn = s.handler;
  Decoded plain = d;
  plain.cbsz = plain.abid = plain.blgp = 0;
  lower_operands<4, kOutputs<kSize, 1>>(l, plain, s, i);
  i.a = l.vector(d.src[0], registers_of(d.cbsz));
  i.b = l.vector(d.src[1], registers_of(d.blgp));
  if constexpr (kScaled) {
    i.wide = 0;
    for (int side = 0; side < 2; ++side) {
      const Operand o = d.src[3 + side];
      const bool scalar = !Lowering::is_vgpr(o);
      const uint64_t at = scalar ? l.scalar(o, OperandType{'f', {}, 32, 1, 1}) : l.vector(o);
      const uint64_t byte = (d.op_sel >> side & 1) | (d.op_sel_hi >> side & 1) << 1;
      i.wide |= at << (16 * side) | byte << (32 + 2 * side) | uint64_t{scalar} << (36 + side);
    }
  }
}

template <class F, class B>
void add_8bit(Semantics& t) {
  add<16, 1, 2, F, F>(t, Op::v_mfma_f32_16x16x32_fp8_fp8);
  add<16, 1, 2, F, B>(t, Op::v_mfma_f32_16x16x32_fp8_bf8);
  add<16, 1, 2, B, F>(t, Op::v_mfma_f32_16x16x32_bf8_fp8);
  add<16, 1, 2, B, B>(t, Op::v_mfma_f32_16x16x32_bf8_bf8);
  add<32, 1, 2, F, F>(t, Op::v_mfma_f32_32x32x16_fp8_fp8);
  add<32, 1, 2, F, B>(t, Op::v_mfma_f32_32x32x16_fp8_bf8);
  add<32, 1, 2, B, F>(t, Op::v_mfma_f32_32x32x16_bf8_fp8);
  add<32, 1, 2, B, B>(t, Op::v_mfma_f32_32x32x16_bf8_bf8);
  add_sparse<16, 2, F, F>(t, Op::v_smfmac_f32_16x16x64_fp8_fp8);
  add_sparse<16, 2, F, B>(t, Op::v_smfmac_f32_16x16x64_fp8_bf8);
  add_sparse<16, 2, B, F>(t, Op::v_smfmac_f32_16x16x64_bf8_fp8);
  add_sparse<16, 2, B, B>(t, Op::v_smfmac_f32_16x16x64_bf8_bf8);
  add_sparse<32, 2, F, F>(t, Op::v_smfmac_f32_32x32x32_fp8_fp8);
  add_sparse<32, 2, F, B>(t, Op::v_smfmac_f32_32x32x32_fp8_bf8);
  add_sparse<32, 2, B, F>(t, Op::v_smfmac_f32_32x32x32_bf8_fp8);
  add_sparse<32, 2, B, B>(t, Op::v_smfmac_f32_32x32x32_bf8_bf8);
  add_sparse<16, 4, F, F>(t, Op::v_smfmac_f32_16x16x128_fp8_fp8);
  add_sparse<16, 4, F, B>(t, Op::v_smfmac_f32_16x16x128_fp8_bf8);
  add_sparse<16, 4, B, F>(t, Op::v_smfmac_f32_16x16x128_bf8_fp8);
  add_sparse<16, 4, B, B>(t, Op::v_smfmac_f32_16x16x128_bf8_bf8);
  add_sparse<32, 4, F, F>(t, Op::v_smfmac_f32_32x32x64_fp8_fp8);
  add_sparse<32, 4, F, B>(t, Op::v_smfmac_f32_32x32x64_fp8_bf8);
  add_sparse<32, 4, B, F>(t, Op::v_smfmac_f32_32x32x64_bf8_fp8);
  add_sparse<32, 4, B, B>(t, Op::v_smfmac_f32_32x32x64_bf8_bf8);
}

}  // namespace

void add_mfma(Semantics& t, const Arch& of) {
  add<16, 1, 4, AsBf16>(t, Op::v_mfma_f32_16x16x32_bf16);
  add<32, 1, 4, AsBf16>(t, Op::v_mfma_f32_32x32x16_bf16);
  add<16, 1, 2, AsBf16>(t, Op::v_mfma_f32_16x16x16_bf16);
  add<32, 1, 2, AsBf16>(t, Op::v_mfma_f32_32x32x8_bf16);
  add<32, 2, 2, AsBf16>(t, Op::v_mfma_f32_32x32x4_2b_bf16);
  add<16, 4, 2, AsBf16>(t, Op::v_mfma_f32_16x16x4_4b_bf16);
  add<4, 16, 2, AsBf16>(t, Op::v_mfma_f32_4x4x4_16b_bf16);
  add<16, 1, 4, AsF16>(t, Op::v_mfma_f32_16x16x32_f16);
  add<32, 1, 4, AsF16>(t, Op::v_mfma_f32_32x32x16_f16);
  add<16, 1, 2, AsF16>(t, Op::v_mfma_f32_16x16x16_f16);
  add<32, 1, 2, AsF16>(t, Op::v_mfma_f32_32x32x8_f16);
  add<32, 2, 2, AsF16>(t, Op::v_mfma_f32_32x32x4_2b_f16);
  add<16, 4, 2, AsF16>(t, Op::v_mfma_f32_16x16x4_4b_f16);
  add<4, 16, 2, AsF16>(t, Op::v_mfma_f32_4x4x4_16b_f16);
  add<16, 1, 1, AsF32>(t, Op::v_mfma_f32_16x16x4_f32);
  add<32, 1, 1, AsF32>(t, Op::v_mfma_f32_32x32x2_f32);
  add<32, 2, 1, AsF32>(t, Op::v_mfma_f32_32x32x1_2b_f32);
  add<16, 4, 1, AsF32>(t, Op::v_mfma_f32_16x16x1_4b_f32);
  add<4, 16, 1, AsF32>(t, Op::v_mfma_f32_4x4x1_16b_f32);

  add<16, 1, 2, AsXf32>(t, Op::v_mfma_f32_16x16x8_xf32);
  add<32, 1, 2, AsXf32>(t, Op::v_mfma_f32_32x32x4_xf32);

  if (of.fnuz)
    add_8bit<AsSmall<Fp8Fnuz>, AsSmall<Bf8Fnuz>>(t);
  else
    add_8bit<AsSmall<Fp8>, AsSmall<Bf8>>(t);

  set(t, Op::v_mfma_f32_16x16x128_f8f6f4, lower_small<16, false>, run_small<16, false>);
  set(t, Op::v_mfma_f32_32x32x64_f8f6f4, lower_small<32, false>, run_small<32, false>);
  set(t, Op::v_mfma_scale_f32_16x16x128_f8f6f4, lower_small<16, true>, run_small<16, true>);
  set(t, Op::v_mfma_scale_f32_32x32x64_f8f6f4, lower_small<32, true>, run_small<32, true>);

  add_i8<16, 1, 4>(t, Op::v_mfma_i32_16x16x64_i8);
  add_i8<32, 1, 4>(t, Op::v_mfma_i32_32x32x32_i8);
  add_i8<16, 1, 2>(t, Op::v_mfma_i32_16x16x32_i8);
  add_i8<32, 1, 2>(t, Op::v_mfma_i32_32x32x16_i8);
  add_i8<32, 2, 1>(t, Op::v_mfma_i32_32x32x4_2b_i8);
  add_i8<16, 4, 1>(t, Op::v_mfma_i32_16x16x4_4b_i8);
  add_i8<4, 16, 1>(t, Op::v_mfma_i32_4x4x4_16b_i8);

  add_sparse<16, 2, AsF16>(t, Op::v_smfmac_f32_16x16x32_f16);
  add_sparse<32, 2, AsF16>(t, Op::v_smfmac_f32_32x32x16_f16);
  add_sparse<16, 4, AsF16>(t, Op::v_smfmac_f32_16x16x64_f16);
  add_sparse<32, 4, AsF16>(t, Op::v_smfmac_f32_32x32x32_f16);
  add_sparse<16, 2, AsBf16>(t, Op::v_smfmac_f32_16x16x32_bf16);
  add_sparse<32, 2, AsBf16>(t, Op::v_smfmac_f32_32x32x16_bf16);
  add_sparse<16, 4, AsBf16>(t, Op::v_smfmac_f32_16x16x64_bf16);
  add_sparse<32, 4, AsBf16>(t, Op::v_smfmac_f32_32x32x32_bf16);
  add_sparse<16, 2, AsI8>(t, Op::v_smfmac_i32_16x16x64_i8);
  add_sparse<32, 2, AsI8>(t, Op::v_smfmac_i32_32x32x32_i8);
  add_sparse<16, 4, AsI8>(t, Op::v_smfmac_i32_16x16x128_i8);
  add_sparse<32, 4, AsI8>(t, Op::v_smfmac_i32_32x32x64_i8);

  set(t, Op::v_mfma_f64_16x16x4_f64, lower_f64<16, 1>, run_f64<16, 1>);
  set(t, Op::v_mfma_f64_4x4x4_4b_f64, lower_f64<4, 4>, run_f64<4, 4>);
}

}  // namespace emu::EMU_NS
