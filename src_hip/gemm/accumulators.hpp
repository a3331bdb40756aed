// The accumulators of a tile of C, and the matrix instructions on them.
#pragma once

#include "common/lanes.hpp"
#include "common/types.hpp"
#include "gemm/operand_k_major.hpp"
#include "gemm/operand_lines.hpp"
#include "gemm/operand_mn_major.hpp"
#include "gemm/operand_staged.hpp"
#include "gemm/operand_widened.hpp"
#include "gemm/operands.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// C's tile in registers: [part of A][part of B][fragment of A][fragment of B].
template <class T>
struct Accumulators {
  typename T::Accumulator at[T::kParts][T::kParts][T::A::kFragments][T::B::kFragments] = {};

  // By the steps from `first` to before `end`.
  template <u32 kPartA, u32 kPartB>
  HIPGEMM_DEVICE void multiply(Index<kPartA>, Index<kPartB>,
                               const typename Reader<T, OperandA<T>>::Fragments& a,
                               const typename Reader<T, OperandB<T>>::Fragments& b, u32 first = 0,
                               u32 end = T::kSteps) {
    for (u32 step = first; step < end; step++)
      for (u32 i = 0; i < T::A::kFragments; i++)
        for (u32 j = 0; j < T::B::kFragments; j++) {
          auto& c = at[kPartA][kPartB][i][j];
          c = T::Mfma::multiply(b[j][step], a[i][step], c);
        }
  }

  // With block scales: this tile's are those of the unit's steps from kFirstStep on. Multipliers
  // are applied after several instructions: the compiler would do it after each, and wait for it.
  template <u32 kPartA, u32 kPartB, u32 kFirstStep, class Scales, class Multipliers>
  HIPGEMM_DEVICE void multiply(Index<kPartA>, Index<kPartB>, Index<kFirstStep>,
                               const typename Reader<T, OperandA<T>>::Fragments& a,
                               const typename Reader<T, OperandB<T>>::Fragments& b,
                               const Scales& scales, const Multipliers& multipliers) {
    if constexpr (!T::Mfma::kScalesA) {
      // B outside: the compiler widens a fragment once.
      unrolled<T::B::kFragments>([&]<u32 j>(Index<j>) {
        constexpr u32 kB = kPartB * T::B::kFragments + j;
        const auto product = [&](u32 i, typename T::Accumulator sum) HIPGEMM_INLINE {
          if constexpr (T::Mfma::kHasMultipliers)
            return T::Mfma::multiply(b[j][0], a[i][0], sum);
          else
            return T::Mfma::multiply(b[j][0], a[i][0], sum, kIndex<Scales::byte(kB, kFirstStep)>,
                                     scales.b.word(kB, 0));
        };
        auto& c = at[kPartA][kPartB];
        if constexpr (T::Mfma::kHasMultipliers) {
          typename T::Accumulator sum[T::A::kFragments];
          for (u32 i = 0; i < T::A::kFragments; i++) sum[i] = product(i, {});
          sched_barrier();
          for (u32 i = 0; i < T::A::kFragments; i++)
            c[i][j] = __builtin_elementwise_fma(sum[i], multipliers.b[kB], c[i][j]);
        } else {
          for (u32 i = 0; i < T::A::kFragments; i++) c[i][j] = product(i, c[i][j]);
        }
      });
    } else {
      constexpr bool kMultiplied = T::Mfma::kHasMultipliers;  // before they are added
      constexpr u32 kAcross = T::B::kFragments, kProducts = T::A::kFragments * kAcross;
      typename T::Accumulator sum[T::A::kFragments][kAcross];
      auto& c = at[kPartA][kPartB];
      unrolled<(kMultiplied ? 1 : T::kSteps) * kProducts>([&]<u32 n>(Index<n>) HIPGEMM_INLINE {
        constexpr u32 kStep = n / kProducts, i = n % kProducts / kAcross, j = n % kAcross;
        constexpr u32 kA = kPartA * T::A::kFragments + i, kB = kPartB * kAcross + j;
        constexpr u32 kScaleStep = kFirstStep + kStep / T::kStepMfmas,
                      kMfma = kStep % T::kStepMfmas;
        typename T::Accumulator from = {};
        if constexpr (!kMultiplied) from = c[i][j];
        (kMultiplied ? sum : c)[i][j] =
            T::Mfma::multiply(b[j][kStep], a[i][kStep], from, kIndex<Scales::byte(kB, kScaleStep)>,
                              scales.b.word(kB, kMfma), kIndex<Scales::byte(kA, kScaleStep)>,
                              scales.a.word(kA, kMfma));
      });
      if constexpr (kMultiplied) {
        sched_barrier();
        for (u32 i = 0; i < T::A::kFragments; i++)
          for (u32 j = 0; j < kAcross; j++) {
            const f32x4 factor = f32x4(multipliers.a[kPartA * T::A::kFragments + i]) *
                                 multipliers.b[kPartB * kAcross + j];
            c[i][j] = __builtin_elementwise_fma(sum[i][j], factor, c[i][j]);
          }
      }
    }
  }

  // Adds the sums over a block times what its scales are without their exponents.
  template <class Multipliers>
  HIPGEMM_DEVICE void add(const Accumulators& block, const Multipliers& multipliers) {
    for (u32 i = 0; i < T::A::kFragments; i++)
      for (u32 j = 0; j < T::B::kFragments; j++) {
        f32x4 factor = multipliers.b[j];
        if constexpr (T::Mfma::kScalesA) factor *= f32x4(multipliers.a[i]);
        auto& c = at[0][0][i][j];
        c = __builtin_elementwise_fma(block.at[0][0][i][j], factor, c);
      }
  }

  HIPGEMM_DEVICE void multiply_by(f32 factor) {
    for (auto& part_a : at)
      for (auto& part : part_a)
        for (auto& row : part)
          for (auto& c : row) c *= factor;
  }

  // A quad of the lane's columns, in the row of a fragment of A.
  HIPGEMM_DEVICE f32x4& quad(u32 part, u32 i, u32 quad) {
    constexpr u32 kB = T::B::kFragments;
    const u32 fragment = quad % (kB * T::kParts);
    auto& c = at[part][fragment / kB][i][fragment % kB];
    if constexpr (T::kFragmentQuads == 1)
      return c;
    else
      return reinterpret_cast<f32x4*>(&c)[quad / (kB * T::kParts)];
  }

  // Lane groups exchange quads (see OperandB): afterwards quads 2v and 2v + 1 of a lane are
  // contiguous, at the columns of OperandB::quad_column.
  HIPGEMM_DEVICE void interleave_quads() {
    constexpr u32 kB = T::B::kFragments;
    for (auto& part : at)
      for (u32 i = 0; i < T::A::kFragments; i++)
        for (u32 q = 0; q < kB * T::kParts; q += 2)
          swap_lane_rows(part[q / kB][i][q % kB], part[(q + 1) / kB][i][(q + 1) % kB]);
  }

  // The compiler must compute these here: it would else move products that only the epilogue uses
  // past barriers, and keep their fragments in registers until then.
  template <u32 kPartA, u32 kPartB>
  HIPGEMM_DEVICE void keep_live(Index<kPartA>, Index<kPartB>) {
    for (auto& row : at[kPartA][kPartB])
      for (auto& c : row) asm volatile("" : "+v"(c));
  }
};

}  // namespace hipgemm
