// Every constant that follows from a format, a tile and a schedule.
#pragma once

#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/mfma.hpp"

namespace hipgemm {

// Which way an operand's elements are neighbours in memory: the K of one row, or the rows (of A;
// columns of B) at one k.
enum class Contiguous { along_k, across_k };

// Named as BLAS does: n is (M, K) or (K, N), t its transpose, all of them row by row.
template <Contiguous kA_, Contiguous kB_>
struct Layout {
  static constexpr Contiguous kA = kA_, kB = kB_;
};
using Layout_nn = Layout<Contiguous::along_k, Contiguous::across_k>;
using Layout_nt = Layout<Contiguous::along_k, Contiguous::along_k>;
using Layout_tn = Layout<Contiguous::across_k, Contiguous::across_k>;
using Layout_tt = Layout<Contiguous::across_k, Contiguous::along_k>;

// One operand's share: kTileRows rows (of A; columns of B) in kParts equal parts. To fetch a part,
// all waves of the workgroup split it; to multiply, kWavesAlong of them do.
template <u32 kTileRows, u32 kParts, u32 kWavesAlong, u32 kWavesInGroup, Contiguous kContiguous_>
struct OperandTraits {
  static constexpr Contiguous kContiguous = kContiguous_;
  static constexpr bool kAlongK = kContiguous == Contiguous::along_k;
  static constexpr u32 kPartRows = kTileRows / kParts;
  // A DMA fills 8 rows. Every wave fetches the same number of them, whichever rows it uses itself.
  // Across K it fills other lines, but as many bytes.
  static constexpr u32 kRowsPerDma = kDmaBytes / kRowBytes;
  static constexpr u32 kDmas = kPartRows / (kRowsPerDma * kWavesInGroup);
  static constexpr u32 kBlockRows = kDmas * kRowsPerDma;
  static_assert(kDmas * kRowsPerDma * kWavesInGroup == kPartRows, "whole DMAs per wave");
  // Fragments that one wave multiplies, per part.
  static constexpr u32 kFragments = kPartRows / (kFragmentRows * kWavesAlong);
  static_assert(kFragments * kFragmentRows * kWavesAlong == kPartRows, "whole fragments per wave");
  static_assert(!kAlongK || kFragmentRows % kBlockRows == 0 || kBlockRows % kFragmentRows == 0,
                "every fragment begins at the same place of a block");
  static_assert(!kAlongK || kBlockRows <= kFragmentRows ||
                    (kFragments * kFragmentRows) % kBlockRows == 0,
                "a wave's rows start at a block, so that fragments lie at constant distances");
};

template <class Mfma_, class Schedule_, u32 kM_, u32 kN_, u32 kK_, u32 kWavesM_, u32 kWavesN_,
          class Layout_ = Layout_nt>
struct GemmTraits {
  using Mfma = Mfma_;
  using Schedule = Schedule_;
  using Fragment = typename Mfma::Fragment;
  using Accumulator = typename Mfma::Accumulator;

  static constexpr u32 kM = kM_, kN = kN_, kK = kK_;
  static constexpr u32 kWavesM = kWavesM_, kWavesN = kWavesN_;
  static constexpr u32 kWaves = kWavesM * kWavesN;
  static constexpr u32 kThreads = kWaves * kWaveLanes;
  static_assert(kThreads <= 1024, "the largest workgroup");

  static constexpr Scaling kScaling = Mfma::kScaling;
  static constexpr u32 kElementBits = Mfma::kElementBits;
  static_assert(kK * kElementBits == kRowBytes * 8, "a K tile is one row of swizzled chunks");
  // Of a chunk, and what a K that is contiguous is rounded up to.
  static constexpr u32 kChunkElements = kChunkBytes * 8 / kElementBits;

  // The four lane groups of a fragment read take four neighbouring chunks, so a row is two columns
  // of four chunks. A fragment is one chunk (bf16, fp4) or one of each column (fp8).
  static constexpr u32 kColumns = kRowChunks / Mfma::kLaneGroups;
  static constexpr u32 kFragmentChunks = sizeof(Fragment) / kChunkBytes;
  static constexpr u32 kSteps = kColumns / kFragmentChunks;
  static_assert(kSteps * kFragmentChunks == kColumns && kColumns == 2,
                "fragments take whole columns, and there are two");

  static constexpr u32 kParts = Schedule::kParts;
  using A = OperandTraits<kM, kParts, kWavesM, kWaves, Layout_::kA>;
  using B = OperandTraits<kN, kParts, kWavesN, kWaves, Layout_::kB>;
  static_assert(kScaling != Scaling::blocks || A::kAlongK == B::kAlongK,
                "scales of both operands come in the same units");

  // LDS: stage > part > block of one wave > its rows of A, then its rows of B. Side by side, the
  // DMAs of a block are within reach of one M0 by the instruction's offset.
  static constexpr u32 kStages = Schedule::kStages;
  static constexpr u32 kBlockBytes = (A::kDmas + B::kDmas) * kDmaBytes;
  static constexpr u32 kPartBytes = kBlockBytes * kWaves;
  static constexpr u32 kStageBytes = kPartBytes * kParts;
  static constexpr u32 kLdsBytes = kStageBytes * kStages;
  static_assert(kStageBytes <= 65536, "ds_read offsets have 16 bits: one address per stage");
  static_assert(kLdsBytes <= 160 * 1024, "the LDS of a CU");

  // Columns of C that a lane holds in one row, in runs of at least 8: see SideB in tile.hpp.
  static constexpr u32 kLaneColumns = 4 * B::kFragments * kParts;
  static_assert(kLaneColumns % 8 == 0, "whole 16-byte stores of two-byte elements");
};

}  // namespace hipgemm
