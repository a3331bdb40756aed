// The matrix instructions: one struct each, with its lane layout.
#pragma once

#include "common/hip_device.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"

namespace hipgemm {

// D(16,16) += A(16,32) * B(32,16) in 4 passes (16 clocks). gfx942 takes 8, by two instructions,
// each of four of a lane's eight elements.
//   A, B: lane l holds row (column) l % 16, k = 8 * (l / 16) + element: one 16-byte chunk of K.
//   C, D: lane l, register r holds row 4 * (l / 16) + r, column l % 16.
template <class Element>
struct Mfma16x16x32 {
  static constexpr u32 kRows = 16;         // of A, and columns of B; lanes l / kRows split K
  static constexpr bool kHasRuns = false;  // whether a lane's elements of a row are consecutive
  static constexpr u32 kK = 32, kBitsA = 16, kBitsB = 16;
  static constexpr Scaling kScaling = Scaling::none;
  static constexpr bool kScalesA = true;  // unless it has no scaling
  static constexpr bool kHasMultipliers = false;
  using FragmentA = Vector<Element, 8>;
  using FragmentB = FragmentA;
  using Accumulator = f32x4;

#if defined(__gfx950__)
  static HIPGEMM_DEVICE Accumulator multiply(bf16x8 a, bf16x8 b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
  }
  static HIPGEMM_DEVICE Accumulator multiply(f16x8 a, f16x8 b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
  }
#else
  static HIPGEMM_DEVICE Accumulator multiply(bf16x8 a, bf16x8 b, Accumulator c) {
    const auto x = __builtin_bit_cast(Vector<short, 8>, a), y = __builtin_bit_cast(decltype(x), b);
    c = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.lo, y.lo, c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(x.hi, y.hi, c, 0, 0, 0);
  }
  static HIPGEMM_DEVICE Accumulator multiply(f16x8 a, f16x8 b, Accumulator c) {
    c = __builtin_amdgcn_mfma_f32_16x16x16f16(a.lo, b.lo, c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x16f16(a.hi, b.hi, c, 0, 0, 0);
  }
#endif
};

// Elements of 6 and 4 bits in the registers of 8-bit ones.
HIPGEMM_DEVICE i32x8 widen(i32x8 x) { return x; }
HIPGEMM_DEVICE i32x8 widen(Vector<int, 6> x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, -1, -1);
}
HIPGEMM_DEVICE i32x8 widen(Vector<int, 4> x) {
  return __builtin_shufflevector(x, x, 0, 1, 2, 3, -1, -1, -1, -1);
}

// D(16,16) += A(16,128) * B(128,16) in 8 passes, or 4 if no format has 8 bits. B comes first: the
// kernels compute C transposed.
//   A, B: lane l holds row (column) l % 16. 8 bits: k = 16 * (l / 16) + element for the first 16,
//   and 64 more for the last 16: one chunk of each half. 6 and 4 bits: k = 32 * (l / 16) + element.
//   Scales: the byte of lane l is for row l % 16 and k = 32 * (l / 16) .. + 31, whatever the
//   format. C, D: as above.
template <MfmaFormat kA, MfmaFormat kB, Scaling kScaling_>
struct Mfma16x16x128 {
  static constexpr u32 kRows = 16;
  static constexpr bool kHasRuns = false, kScalesA = true, kHasMultipliers = false;
  static constexpr u32 kK = 128, kBitsA = bits_of(kA), kBitsB = bits_of(kB);
  static constexpr Scaling kScaling = kScaling_;
  using FragmentA = Vector<int, kBitsA>;  // 32 elements
  using FragmentB = Vector<int, kBitsB>;
  using Accumulator = f32x4;

  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, FragmentA a, Accumulator c) {
    // The compiler selects the instruction without scales where both are literal zeros.
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
        widen(b), widen(a), c, static_cast<int>(kB), static_cast<int>(kA), 0, 0, 0, 0);
  }
  // Each scale is a byte of a word, which must be in a vector register.
  template <u32 kByteB, u32 kByteA>
  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, FragmentA a, Accumulator c, Index<kByteB>,
                                             u32 word_b, Index<kByteA>, u32 word_a) {
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
        widen(b), widen(a), c, static_cast<int>(kB), static_cast<int>(kA), kByteB, word_b, kByteA,
        word_a);
  }
};

// D(32,32) += A(32,64) * B(64,32) of 6 or 4 bits, in 8 passes; B comes first, as above. For as many
// products it takes half as many instructions of twice the time.
//   A, B: lane l holds row (column) l % 32, k = 32 * (l / 32) + element, and the scale of these 32.
//   C, D: lane l, register r holds row 8 * (r / 4) + 4 * (l / 32) + r % 4, column l % 32.
template <MfmaFormat kA, MfmaFormat kB, Scaling kScaling_>
struct Mfma32x32x64 {
  static constexpr u32 kRows = 32;
  static constexpr bool kHasRuns = false, kScalesA = true, kHasMultipliers = false;
  static constexpr u32 kK = 64, kBitsA = bits_of(kA), kBitsB = bits_of(kB);
  static_assert(kBitsA < 8 && kBitsB < 8, "a lane's 8-bit elements are two chunks of K");
  static constexpr Scaling kScaling = kScaling_;
  using FragmentA = Vector<int, kBitsA>;
  using FragmentB = Vector<int, kBitsB>;
  using Accumulator = Vector<f32, 16>;

  template <u32 kByteB, u32 kByteA>
  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, FragmentA a, Accumulator c, Index<kByteB>,
                                             u32 word_b, Index<kByteA>, u32 word_a) {
    return __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(
        widen(b), widen(a), c, static_cast<int>(kB), static_cast<int>(kA), kByteB, word_b, kByteA,
        word_a);
  }
};

// bfloat16 A and quantized B. D(16,16) += A(16,128) * B(128,16) by four instructions of 32 along K;
// elements of B, times their scale, are converted to bfloat16 in registers: exactly, but for values
// that bfloat16 does not have, at both ends of its range.
//   A, B: lane l holds row (column) l % 16, k = 32 * (l / 16) + element, and the scale of these 32.
//   C, D: as above.
template <MfmaFormat kB, Scaling kScaling_>
struct WeightMfma {
  static constexpr u32 kRows = 16;
  static constexpr bool kHasRuns = true, kScalesA = false, kHasMultipliers = false;
  static constexpr u32 kK = 128, kBitsA = 16, kBitsB = bits_of(kB);
  static constexpr Scaling kScaling = kScaling_;
  struct FragmentA {
    bf16x8 step[4];
  };
  using FragmentB = Vector<int, kBitsB>;
  using Accumulator = f32x4;

  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, const FragmentA& a, Accumulator c) {
    return multiply(b, a, c, 1.0f);
  }
  // The scale is a byte of a word.
  template <u32 kByte>
  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, const FragmentA& a, Accumulator c,
                                             Index<kByte>, u32 word) {
    return multiply(b, a, c, __builtin_bit_cast(f32, (word >> kByte * 8 & 255) << 23));
  }

 private:
  // The exponent of `scale` counts.
  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, const FragmentA& a, Accumulator c,
                                             f32 scale) {
    const Widened wide = widen(b, scale);
    for (u32 s = 0; s < 4; s++)
      c = __builtin_amdgcn_mfma_f32_16x16x32_bf16(wide.step[s], a.step[s], c, 0, 0, 0);
    return c;
  }

  using Widened = FragmentA;
  static HIPGEMM_DEVICE Widened widen(FragmentB b, f32 scale) {
    if constexpr (kBitsB == 6) {
      using Codes = Vector<u32, 6>;
      const auto wide = kB == MfmaFormat::E2m3
                            ? __builtin_amdgcn_cvt_scalef32_pk32_bf16_fp6(Codes(b), scale)
                            : __builtin_amdgcn_cvt_scalef32_pk32_bf16_bf6(Codes(b), scale);
      return __builtin_bit_cast(Widened, wide);
    } else {
      struct {
        bf16x2 pair[16];
      } wide;
      unrolled<16>([&]<u32 i>(Index<i>) {
        const u32 word = b[i * kBitsB / 16];
        if constexpr (kB == MfmaFormat::E2m1)
          wide.pair[i] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(word, scale, i % 4);
        else if constexpr (kB == MfmaFormat::E4m3)
          wide.pair[i] = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(word, scale, i % 2);
        else
          wide.pair[i] = __builtin_amdgcn_cvt_scalef32_pk_bf16_bf8(word, scale, i % 2);
      });
      return __builtin_bit_cast(Widened, wide);
    }
  }
};

// Float scales of blocks of 128 along K: the instruction applies their exponents, like MX scales,
// so no product of two scales leaves float32's range if that with the sum does not. Its result, the
// sum over one block, is then multiplied by the rest (multipliers, in scales.hpp). Where only b has
// scales, the multipliers are these.
template <class Mfma>
struct BlockMfma : Mfma {
  static constexpr bool kHasMultipliers = true;
};

// The matrix instruction for two formats: without scales both are the same, with scales any pair.
// Those of 6 and 4 bits have two shapes, of 16 and of 32 rows.
template <Format>
struct ScaledFormat;
#define SCALED_FORMAT(name, code, bits, element, block)                              \
  template <>                                                                        \
  struct ScaledFormat<Format::name> {                                                \
    static constexpr MfmaFormat kMfmaFormat = MfmaFormat::element;                   \
    static constexpr Scaling kScaling = (block) ? Scaling::blocks : Scaling::floats; \
    static constexpr u32 kBlock = block;                                             \
  };
#define BLOCK_FORMAT SCALED_FORMAT
#include "common/formats.def"
template <>
struct ScaledFormat<Format::bf16> {
  static constexpr MfmaFormat kMfmaFormat = MfmaFormat{};
  static constexpr u32 kBlock = 0;
};

// Operands of 8 bits and fewer, widened to bfloat16 on the way to LDS, and bfloat16 as it is.
template <Format kA, Format kB>
struct WidenedMfma : Mfma16x16x32<bf16> {
  using A = ScaledFormat<kA>;
  using B = ScaledFormat<kB>;
  static constexpr u32 kMemoryBitsA = kA == Format::bf16 ? 16 : bits_of(A::kMfmaFormat),
                       kMemoryBitsB = bits_of(B::kMfmaFormat);
  static constexpr bool kScalesA = kA != Format::bf16;
  static constexpr bool kHasMultipliers = B::kBlock == kStepElements;
  static constexpr Scaling kScaling =
      kHasMultipliers && !kScalesA ? Scaling::multipliers : B::kScaling;
  static_assert(!kScalesA || A::kBlock == B::kBlock, "scales of both are applied at the same time");

  // The elements of both operands, in one scalar number: so kernels for other elements of as many
  // bits are alike but for it (tools/instances.py: _named_formats).
  static HIPGEMM_DEVICE u32 elements() {
    u32 both;
    asm("/*elements*/ s_mov_b32 %0, %1"
        : "=s"(both)
        : "i"(static_cast<u32>(A::kMfmaFormat) | static_cast<u32>(B::kMfmaFormat) << 8));
    return both;
  }
};

// e4m3 by the instruction for gfx942's own format (FNUZ), in which the same bits mean half as much,
// but for those of -0 and NaN: they are replaced on the way to LDS. D(16,16) += A(16,64) * B(64,16)
// by two instructions of 4 passes, each of 8 of a lane's 16 bytes; C, D: as above.
struct FnuzMfma {
  static constexpr u32 kRows = 16;
  static constexpr bool kHasRuns = false, kScalesA = true, kHasMultipliers = false;
  static constexpr u32 kK = 64, kBitsA = 8, kBitsB = 8;
  static constexpr Scaling kScaling = Scaling::floats;
  using FragmentA = Vector<long, 2>;
  using FragmentB = FragmentA;
  using Accumulator = f32x4;
  static constexpr f32 kSumFactor = 4.0f;  // of accumulators

#if defined(__gfx942__)
  static HIPGEMM_DEVICE Accumulator multiply(FragmentB b, FragmentA a, Accumulator c) {
    c = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(b.x, a.x, c, 0, 0, 0);
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(b.y, a.y, c, 0, 0, 0);
  }
#endif
  // Four codes: -0 becomes 0, and NaN the only one, 0x80.
  static HIPGEMM_DEVICE u32 replaced(u32 codes) {
    constexpr u32 kOnes = 0x01010101, kSigns = 0x80 * kOnes;
    const u32 magnitudes = codes & ~kSigns;
    const u32 nans = (magnitudes + kOnes) >> 7 & kOnes;
    const u32 nonzero = magnitudes + ~kSigns;  // bit 7
    return (codes & nonzero & kSigns) | (magnitudes + nans);
  }
};

template <class Float, class Power, bool kIsFloat>
struct Either {
  using Type = Power;
};
template <class Float, class Power>
struct Either<Float, Power, true> {
  using Type = Float;
};
#if defined(__gfx950__)
template <Format kA, Format kB, u32 kRows = 16, bool kIsNt = false>
struct MfmaFor {
  using A = ScaledFormat<kA>;
  using B = ScaledFormat<kB>;
  static_assert(A::kBlock == B::kBlock, "scales of both are applied at the same time");
  using Mfma = Mfma16x16x128<A::kMfmaFormat, B::kMfmaFormat, A::kScaling>;
  using Type = typename Either<BlockMfma<Mfma>, Mfma, A::kBlock == kStepElements>::Type;
};
template <Format kA, Format kB, bool kIsNt>
struct MfmaFor<kA, kB, 32, kIsNt> {
  using A = ScaledFormat<kA>;
  using B = ScaledFormat<kB>;
  static_assert(A::kBlock == B::kBlock && A::kBlock == kScaleBlock, "MX formats");
  using Type = Mfma32x32x64<A::kMfmaFormat, B::kMfmaFormat, A::kScaling>;
};
template <Format kB, bool kIsNt>
struct MfmaFor<Format::bf16, kB, 16, kIsNt> {
  using B = ScaledFormat<kB>;
  static constexpr bool kHasBlocks = B::kBlock == kStepElements;
  using Mfma = WeightMfma<B::kMfmaFormat, kHasBlocks ? Scaling::multipliers : B::kScaling>;
  using Type = typename Either<BlockMfma<Mfma>, Mfma, kHasBlocks>::Type;
};
#else
template <Format kA, Format kB, u32 kRows = 16, bool kIsNt = false>
struct MfmaFor {
  using Type = WidenedMfma<kA, kB>;
};
template <>
struct MfmaFor<Format::fp8_e4m3, Format::fp8_e4m3, 16, true> {
  using Type = FnuzMfma;
};
#endif
template <bool kIsNt>
struct MfmaFor<Format::bf16, Format::bf16, 16, kIsNt> {
  using Type = Mfma16x16x32<bf16>;
};
template <bool kIsNt>
struct MfmaFor<Format::f16, Format::f16, 16, kIsNt> {
  using Type = Mfma16x16x32<f16>;
};

}  // namespace hipgemm
