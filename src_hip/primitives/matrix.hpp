// Primitives: matrix instructions, with the layouts of gemm/mfma.hpp.
#pragma once

#include "gemm/mfma.hpp"
#include "primitives/arguments.hpp"

namespace hipgemm {

// in: a thread's words of a, of b, of c, and of the scales of a and b. out: those of the result.
inline constexpr u32 kMatrixWords = 8 + 8 + 16 + 4;
template <class Mfma, u32 kThreads>
struct MatrixOperands {
  typename Mfma::FragmentA a;
  typename Mfma::FragmentB b;
  typename Mfma::Accumulator c;
  u32 scale_a, scale_b;

  HIPGEMM_DEVICE explicit MatrixOperands(const PrimitiveArgs& args) {
    const auto x = read_words<kThreads, kMatrixWords>(args);
    load(x, 0, a);
    load(x, 8, b);
    load(x, 16, c);
    scale_a = x[32];
    scale_b = x[33];
  }
  HIPGEMM_DEVICE void store(const PrimitiveArgs& args) const {
    using Words = Vector<u32, sizeof(c) / 4>;
    write_words<kThreads>(args, __builtin_bit_cast(Words, c));
  }

 private:
  template <class T>
  static HIPGEMM_DEVICE void load(const Vector<u32, kMatrixWords>& x, u32 first, T& to) {
    Vector<u32, sizeof(T) / 4> words;
#pragma unroll
    for (u32 i = 0; i < sizeof(T) / 4; i++) words[i] = x[first + i];
    to = __builtin_bit_cast(T, words);
  }
};

template <class Mfma, u32 kThreads>
HIPGEMM_DEVICE void multiply_once(const PrimitiveArgs& args) {
  MatrixOperands<Mfma, kThreads> x(args);
  if constexpr (Mfma::kScaling == Scaling::blocks)
    x.c = Mfma::multiply(x.b, x.a, x.c, kIndex<0>, x.scale_b, kIndex<0>, x.scale_a);
  else
    x.c = Mfma::multiply(x.b, x.a, x.c);
  x.store(args);
}
#define HIPGEMM_MULTIPLY_ONCE(name, ...)                            \
  template <u32 kThreads>                                           \
  HIPGEMM_DEVICE void primitive_##name(const PrimitiveArgs& args) { \
    multiply_once<__VA_ARGS__, kThreads>(args);                     \
  }
HIPGEMM_MULTIPLY_ONCE(mfma_bf16, Mfma16x16x32<bf16>)
HIPGEMM_MULTIPLY_ONCE(mfma_f16, Mfma16x16x32<f16>)
template <MfmaFormat kA, MfmaFormat kB = kA>
using Unscaled = Mfma16x16x128<kA, kB, Scaling::floats>;
template <MfmaFormat kA, MfmaFormat kB = kA>
using Scaled = Mfma16x16x128<kA, kB, Scaling::blocks>;
template <MfmaFormat kA, MfmaFormat kB = kA>
using Scaled32 = Mfma32x32x64<kA, kB, Scaling::blocks>;
HIPGEMM_MULTIPLY_ONCE(mfma_e4m3, Unscaled<MfmaFormat::E4m3>)
HIPGEMM_MULTIPLY_ONCE(mfma_e5m2, Unscaled<MfmaFormat::E5m2>)
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e4m3, Scaled<MfmaFormat::E4m3>)
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e5m2, Scaled<MfmaFormat::E5m2>)
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e2m3, Scaled<MfmaFormat::E2m3>)
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e3m2, Scaled<MfmaFormat::E3m2>)
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e2m1, Scaled<MfmaFormat::E2m1>)
// Pairs of formats with other layouts of a and b, so a K index that is wrong in both shows.
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e4m3_e2m1, Scaled<MfmaFormat::E4m3, MfmaFormat::E2m1>)
HIPGEMM_MULTIPLY_ONCE(mfma_scale_e2m3_e5m2, Scaled<MfmaFormat::E2m3, MfmaFormat::E5m2>)
HIPGEMM_MULTIPLY_ONCE(mfma32_scale_e2m3, Scaled32<MfmaFormat::E2m3>)
HIPGEMM_MULTIPLY_ONCE(mfma32_scale_e3m2, Scaled32<MfmaFormat::E3m2>)
HIPGEMM_MULTIPLY_ONCE(mfma32_scale_e2m1, Scaled32<MfmaFormat::E2m1>)
#undef HIPGEMM_MULTIPLY_ONCE

#if defined(__gfx942__)
// gfx942's own format: codes of e4m3 but for those of -0 and NaN, and the factor of the sum.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_mfma_fnuz(const PrimitiveArgs& args) {
  using Mfma = FnuzMfma;
  MatrixOperands<Mfma, kThreads> x(args);
  const auto replaced = [](u32x4 codes) HIPGEMM_INLINE {
#pragma unroll
    for (u32 i = 0; i < 4; i++) codes[i] = Mfma::replaced(codes[i]);
    return codes;
  };
  x.a = __builtin_bit_cast(Mfma::FragmentA, replaced(__builtin_bit_cast(u32x4, x.a)));
  x.b = __builtin_bit_cast(Mfma::FragmentB, replaced(__builtin_bit_cast(u32x4, x.b)));
  x.c = Mfma::multiply(x.b, x.a, x.c / Mfma::kSumFactor) * Mfma::kSumFactor;
  x.store(args);
}
#endif

// Each byte of the words of scales, once for a and once for b: four products are added.
template <u32 kThreads>
HIPGEMM_DEVICE void primitive_mfma_scale_bytes(const PrimitiveArgs& args) {
  using Mfma = Scaled<MfmaFormat::E4m3>;
  MatrixOperands<Mfma, kThreads> x(args);
  unrolled<4>([&]<u32 byte>(Index<byte>) HIPGEMM_INLINE {
    x.c = Mfma::multiply(x.b, x.a, x.c, kIndex<(byte + 1) % 4>, x.scale_b, kIndex<byte>, x.scale_a);
  });
  x.store(args);
}

}  // namespace hipgemm
