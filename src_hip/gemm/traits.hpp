// Every constant that follows from a format, a tile and a schedule.
#pragma once

#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/mfma.hpp"

namespace hipgemm {

// Which axis of an operand is contiguous in memory: K, or M (for B: N).
enum class Major { k, mn };

// Named as in BLAS: n is (M, K) or (K, N), t its transpose, all of them row-major.
template <Major kA_, Major kB_>
struct Layout {
  static constexpr Major kA = kA_, kB = kB_;
};
using Layout_nn = Layout<Major::k, Major::mn>;
using Layout_nt = Layout<Major::k, Major::k>;
using Layout_tn = Layout<Major::mn, Major::mn>;
using Layout_tt = Layout<Major::mn, Major::k>;

// One operand of a tile: kTileRows rows (of A; columns of B) in kParts equal parts. All waves of
// the workgroup split a part to fetch it; kOperandWaves of them split it to multiply.
template <u32 kTileRows, u32 kParts, u32 kOperandWaves, u32 kWorkgroupWaves, Major kMajor_>
struct OperandTraits {
  static constexpr Major kMajor = kMajor_;
  static constexpr bool kIsKMajor = kMajor == Major::k;
  static constexpr u32 kPartRows = kTileRows / kParts;
  // A DMA fills 8 rows. Every wave fetches the same number of rows, whichever it multiplies itself.
  // MN-major, a DMA fills the same number of bytes.
  static constexpr u32 kRowsPerDma = kDmaBytes / kRowBytes;
  static constexpr u32 kDmas = kPartRows / (kRowsPerDma * kWorkgroupWaves);
  static constexpr u32 kBlockRows = kDmas * kRowsPerDma;
  static_assert(kDmas * kRowsPerDma * kWorkgroupWaves == kPartRows, "whole DMAs per wave");
  // Fragments that one wave multiplies, per part.
  static constexpr u32 kFragments = kPartRows / (kFragmentRows * kOperandWaves);
  static_assert(kFragments * kFragmentRows * kOperandWaves == kPartRows,
                "whole fragments per wave");
  static_assert(!kIsKMajor || kFragmentRows % kBlockRows == 0 || kBlockRows % kFragmentRows == 0,
                "every fragment begins at the same place of a block");
  static_assert(!kIsKMajor || kBlockRows <= kFragmentRows ||
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
  // Elements of a chunk. Where K is contiguous it is rounded up to a multiple of this.
  static constexpr u32 kChunkElements = kChunkBytes * 8 / kElementBits;

  // The four lane groups of a fragment read four consecutive chunks, so a row is two columns of
  // four chunks. A fragment is one chunk (bf16, fp4) or one of each column (fp8).
  static constexpr u32 kColumns = kRowChunks / Mfma::kLaneGroups;
  static constexpr u32 kFragmentChunks = sizeof(Fragment) / kChunkBytes;
  static constexpr u32 kSteps = kColumns / kFragmentChunks;
  static_assert(kSteps * kFragmentChunks == kColumns && kColumns == 2,
                "fragments take whole columns, and there are two");

  static constexpr u32 kParts = Schedule::kParts;
  using A = OperandTraits<kM, kParts, kWavesM, kWaves, Layout_::kA>;
  using B = OperandTraits<kN, kParts, kWavesN, kWaves, Layout_::kB>;
  static_assert(kScaling != Scaling::blocks || A::kIsKMajor == B::kIsKMajor,
                "scales of both operands come in the same units");

  // LDS: stage > part > block of one wave > its rows of A, then its rows of B. The DMAs of
  // a block are contiguous, so the instruction's offset reaches all of them from one M0.
  static constexpr u32 kStages = Schedule::kStages;
  static constexpr u32 kBlockBytes = (A::kDmas + B::kDmas) * kDmaBytes;
  static constexpr u32 kPartBytes = kBlockBytes * kWaves;
  static constexpr u32 kStageBytes = kPartBytes * kParts;
  static constexpr u32 kLdsBytes = kStageBytes * kStages;
  static_assert(kStageBytes <= 65536, "ds_read offsets have 16 bits: one address per stage");
  static_assert(kLdsBytes <= 160 * 1024, "the LDS of a CU");

  // Columns of C that a lane holds in one row, at least 8 consecutive ones: see OperandB in
  // operands.hpp.
  static constexpr u32 kLaneColumns = 4 * B::kFragments * kParts;
  static_assert(kLaneColumns % 8 == 0, "whole 16-byte stores of two-byte elements");
};

}  // namespace hipgemm
