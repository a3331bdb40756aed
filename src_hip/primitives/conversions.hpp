// Primitives: gfx950's conversions from and to formats of 8, 6 and 4 bits. A scale is the last word
// that a thread reads.
#pragma once

#include "primitives/arguments.hpp"

namespace hipgemm {

// ---- to float32 and bf16 ------------------------------------------------------------------------

template <u32 kThreads>
HIPGEMM_DEVICE void primitive_cvt_scalef32_pk_f32_fp4(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 2>(args);
  Vector<u32, 8> y;
  unrolled<4>([&]<u32 byte>(Index<byte>) HIPGEMM_INLINE {
    const f32x2 two = __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(x[0], as_float(x[1]), byte);
    y[byte * 2] = as_bits(two.x);
    y[byte * 2 + 1] = as_bits(two.y);
  });
  write_words<kThreads>(args, y);
}
#define HIPGEMM_TO_BF16(name, builtin, kWordsOut)                             \
  template <u32 kThreads>                                                     \
  HIPGEMM_DEVICE void primitive_##name(const PrimitiveArgs& args) {           \
    const auto x = read_words<kThreads, 2>(args);                             \
    Vector<u32, kWordsOut> y;                                                 \
    unrolled<kWordsOut>([&]<u32 part>(Index<part>) HIPGEMM_INLINE {           \
      y[part] = __builtin_bit_cast(u32, builtin(x[0], as_float(x[1]), part)); \
    });                                                                       \
    write_words<kThreads>(args, y);                                           \
  }
HIPGEMM_TO_BF16(cvt_scalef32_pk_bf16_fp4, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4, 4)
HIPGEMM_TO_BF16(cvt_scalef32_pk_bf16_fp8, __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8, 2)
HIPGEMM_TO_BF16(cvt_scalef32_pk_bf16_bf8, __builtin_amdgcn_cvt_scalef32_pk_bf16_bf8, 2)
#define HIPGEMM_FROM_6BIT(name, builtin, kWordsOut)                               \
  template <u32 kThreads>                                                         \
  HIPGEMM_DEVICE void primitive_##name(const PrimitiveArgs& args) {               \
    const auto x = read_words<kThreads, 7>(args);                                 \
    const Vector<u32, 6> codes = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5); \
    const auto wide = builtin(codes, as_float(x[6]));                             \
    using Words = Vector<u32, kWordsOut>;                                         \
    write_words<kThreads>(args, __builtin_bit_cast(Words, wide));                 \
  }
HIPGEMM_FROM_6BIT(cvt_scalef32_pk32_f32_fp6, __builtin_amdgcn_cvt_scalef32_pk32_f32_fp6, 32)
HIPGEMM_FROM_6BIT(cvt_scalef32_pk32_f32_bf6, __builtin_amdgcn_cvt_scalef32_pk32_f32_bf6, 32)
HIPGEMM_FROM_6BIT(cvt_scalef32_pk32_bf16_fp6, __builtin_amdgcn_cvt_scalef32_pk32_bf16_fp6, 16)
HIPGEMM_FROM_6BIT(cvt_scalef32_pk32_bf16_bf6, __builtin_amdgcn_cvt_scalef32_pk32_bf16_bf6, 16)

// ---- from float32 -------------------------------------------------------------------------------

template <u32 kThreads>
HIPGEMM_DEVICE void primitive_cvt_scalef32_pk_fp4_f32(const PrimitiveArgs& args) {
  const auto x = read_words<kThreads, 9>(args);
  u32 code = 0;
  unrolled<4>([&]<u32 byte>(Index<byte>) HIPGEMM_INLINE {
    code = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(
        code, as_float(x[byte * 2]), as_float(x[byte * 2 + 1]), as_float(x[8]), byte);
  });
  write_words<kThreads>(args, Vector<u32, 1>(code));
}
// Values with even indices, and with odd ones.
#define HIPGEMM_TO_6BIT(name, builtin)                               \
  template <u32 kThreads>                                            \
  HIPGEMM_DEVICE void primitive_##name(const PrimitiveArgs& args) {  \
    const auto x = read_words<kThreads, 33>(args);                   \
    Vector<f32, 16> even, odd;                                       \
    unrolled<16>([&]<u32 i>(Index<i>) HIPGEMM_INLINE {               \
      even[i] = as_float(x[2 * i]);                                  \
      odd[i] = as_float(x[2 * i + 1]);                               \
    });                                                              \
    const auto codes = builtin(even, odd, as_float(x[32]));          \
    write_words<kThreads>(args, __builtin_bit_cast(Vector6, codes)); \
  }
using Vector6 = Vector<u32, 6>;
HIPGEMM_TO_6BIT(cvt_scalef32_2xpk16_fp6_f32, __builtin_amdgcn_cvt_scalef32_2xpk16_fp6_f32)
HIPGEMM_TO_6BIT(cvt_scalef32_2xpk16_bf6_f32, __builtin_amdgcn_cvt_scalef32_2xpk16_bf6_f32)

// ---- stochastic, which no kernel uses -----------------------------------------------------------

// A float and a random word, to each byte of a word that is all ones.
#define HIPGEMM_STOCHASTIC(name, builtin)                                                    \
  template <u32 kThreads>                                                                    \
  HIPGEMM_DEVICE void primitive_##name(const PrimitiveArgs& args) {                          \
    const auto x = read_words<kThreads, 2>(args);                                            \
    Vector<u32, 4> y;                                                                        \
    unrolled<4>([&]<u32 byte>(Index<byte>)                                                   \
                    HIPGEMM_INLINE { y[byte] = builtin(as_float(x[0]), x[1], ~0u, byte); }); \
    write_words<kThreads>(args, y);                                                          \
  }
HIPGEMM_STOCHASTIC(cvt_sr_fp8_f32, __builtin_amdgcn_cvt_sr_fp8_f32)
HIPGEMM_STOCHASTIC(cvt_sr_bf8_f32, __builtin_amdgcn_cvt_sr_bf8_f32)
#undef HIPGEMM_TO_BF16
#undef HIPGEMM_FROM_6BIT
#undef HIPGEMM_TO_6BIT
#undef HIPGEMM_STOCHASTIC

}  // namespace hipgemm
