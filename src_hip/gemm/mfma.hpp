// The matrix instructions: one struct each, with its lane layout.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// All of them are 16 x 16: in published measurements on gfx950 they beat the 32 x 32 ones.
inline constexpr u32 kFragmentRows = 16;

// D(16,16) += A(16,32) * B(32,16) in 4 passes (16 clocks).
//   A, B: lane l holds row (column) l % 16, k = 8 * (l / 16) + element: one 16-byte chunk of K.
//   C, D: lane l, register r holds row 4 * (l / 16) + r, column l % 16.
template <class Element>
struct Mfma16x16x32 {
  static constexpr u32 kLaneGroups = 4;  // lanes l / 16 share a row and split K between them
  static constexpr u32 kElementBits = 16;
  static constexpr Scaling kScaling = Scaling::none;
  using Fragment = Vector<Element, 8>;
  using Accumulator = f32x4;

  static HIPGEMM_DEVICE Accumulator multiply(bf16x8 a, bf16x8 b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
  }
  static HIPGEMM_DEVICE Accumulator multiply(f16x8 a, f16x8 b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_f16(a, b, c, 0, 0, 0);
  }
};

// D(16,16) += A(16,128) * B(128,16) in 8 passes, or 4 if both formats have 4 bits. A number of
// format kB is multiplied by one of kA: the kernels give B first.
//   A, B: lane l holds row (column) l % 16. 8 bits: k = 16 * (l / 16) + element for the first 16,
//   and 64 more for the others: one chunk of each half. 4 bits: k = 32 * (l / 16) + element: one
//   chunk. Scales: the byte of lane l is for row l % 16 and k = 32 * (l / 16) .. + 31, whatever the
//   format. C, D: as above.
template <Narrow kA, Narrow kB, Scaling kScaling_>
struct Mfma16x16x128 {
  static_assert((kA == Narrow::E2m1) == (kB == Narrow::E2m1), "rows of both have as many bytes");
  static constexpr u32 kLaneGroups = 4;
  static constexpr u32 kElementBits = kA == Narrow::E2m1 ? 4 : 8;
  static constexpr Scaling kScaling = kScaling_;
  using Fragment = Vector<int, kElementBits>;  // 32 numbers
  using Accumulator = f32x4;

  static HIPGEMM_DEVICE Accumulator multiply(Fragment b, Fragment a, Accumulator c) {
    // Literal zeros for scales select the instruction without scales.
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
        widen(b), widen(a), c, static_cast<int>(kB), static_cast<int>(kA), 0, 0, 0, 0);
  }
  // Scales as bytes of words. They must be in vector registers.
  template <u32 kByteB, u32 kByteA>
  static HIPGEMM_DEVICE Accumulator multiply(Fragment b, Fragment a, Accumulator c, u32 word_b,
                                             u32 word_a) {
    return __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(
        widen(b), widen(a), c, static_cast<int>(kB), static_cast<int>(kA), kByteB, word_b, kByteA,
        word_a);
  }

 private:
  static HIPGEMM_DEVICE i32x8 widen(Fragment x) {
    if constexpr (kElementBits == 4)
      return __builtin_shufflevector(x, x, 0, 1, 2, 3, -1, -1, -1, -1);
    else
      return x;
  }
};

// The matrix instruction for operands of two formats: both the same without scales, or any with.
template <Format>
struct ScaledFormat;
#define SCALED_FORMAT(name, code, bits, element, block)                              \
  template <>                                                                        \
  struct ScaledFormat<Format::name> {                                                \
    static constexpr Narrow kNarrow = Narrow::element;                               \
    static constexpr Scaling kScaling = (block) ? Scaling::blocks : Scaling::floats; \
  };
#include "common/formats.def"

template <Format kA, Format kB>
struct MfmaFor {
  using A = ScaledFormat<kA>;
  using B = ScaledFormat<kB>;
  static_assert(A::kScaling == B::kScaling, "scales of both are applied at the same time");
  using Type = Mfma16x16x128<A::kNarrow, B::kNarrow, A::kScaling>;
};
template <>
struct MfmaFor<Format::bf16, Format::bf16> {
  using Type = Mfma16x16x32<bf16>;
};
template <>
struct MfmaFor<Format::f16, Format::f16> {
  using Type = Mfma16x16x32<f16>;
};

}  // namespace hipgemm
