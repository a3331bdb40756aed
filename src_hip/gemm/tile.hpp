// The verbs of a tile: fetch (global to LDS), read (LDS to registers), multiply.
#pragma once

#include "common/lanes.hpp"
#include "common/types.hpp"
#include "gemm/k_contiguous.hpp"
#include "gemm/k_strided.hpp"
#include "gemm/sides.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// C's tile in registers: [part of A][part of B][fragment of A][fragment of B].
template <class T>
struct Accumulators {
  typename T::Accumulator at[T::kParts][T::kParts][T::A::kFragments][T::B::kFragments] = {};

  template <u32 kPartA, u32 kPartB>
  HIPGEMM_DEVICE void multiply(const typename Reader<T, SideA<T>>::Fragments& a,
                               const typename Reader<T, SideB<T>>::Fragments& b) {
    for (u32 step = 0; step < T::kSteps; step++)
      for (u32 i = 0; i < T::A::kFragments; i++)
        for (u32 j = 0; j < T::B::kFragments; j++) {
          auto& c = at[kPartA][kPartB][i][j];
          c = T::Mfma::multiply(b[j][step], a[i][step], c);
        }
  }

  // With block scales, of which those of this tile are steps kFirstStep, .. of the unit.
  template <u32 kPartA, u32 kPartB, u32 kFirstStep, class Scales>
  HIPGEMM_DEVICE void multiply(const typename Reader<T, SideA<T>>::Fragments& a,
                               const typename Reader<T, SideB<T>>::Fragments& b,
                               const Scales& scales) {
    unrolled<T::kSteps>([&]<u32 kStep>() {
      unrolled<T::A::kFragments>([&]<u32 i>() {
        unrolled<T::B::kFragments>([&]<u32 j>() {
          constexpr u32 kA = kPartA * T::A::kFragments + i, kB = kPartB * T::B::kFragments + j;
          auto& c = at[kPartA][kPartB][i][j];
          c = T::Mfma::template multiply<Scales::byte(kB, kFirstStep + kStep),
                                         Scales::byte(kA, kFirstStep + kStep)>(
              b[j][kStep], a[i][kStep], c, scales.b.word(kB), scales.a.word(kA));
        });
      });
    });
  }

  // Lane groups exchange quads, see SideB: each ends with neighbours, and quads 2v and 2v + 1 are
  // those that SideB::quad_column says.
  HIPGEMM_DEVICE void join_quads() {
    constexpr u32 kB = T::B::kFragments;
    for (auto& part : at)
      for (u32 i = 0; i < T::A::kFragments; i++)
        for (u32 q = 0; q < kB * T::kParts; q += 2)
          exchange_rows(part[q / kB][i][q % kB], part[(q + 1) / kB][i][(q + 1) % kB]);
  }

  // These are wanted now: the compiler would else move the products that nothing but the epilogue
  // uses there, beyond barriers, with the fragments in registers all the while.
  template <u32 kPartA, u32 kPartB>
  HIPGEMM_DEVICE void settle() {
    for (auto& row : at[kPartA][kPartB])
      for (auto& c : row) asm volatile("" : "+v"(c));
  }
};

}  // namespace hipgemm
