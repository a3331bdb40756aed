// Every constant that follows from a format, a tile and a schedule.
#pragma once

#include "common/scale_layout.hpp"
#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/mfma.hpp"

namespace hipgemm {

// How operands come into LDS: by DMA, or through registers, where there is no DMA of 16 bytes.
// Elements of 8 bits and fewer are widened there to those that the matrix instruction takes.
enum class Staging { dma, registers, widened };

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
template <class Layout_>
inline constexpr bool kIsNt = Layout_::kA == Major::k && Layout_::kB == Major::k;

// A row of a K tile of one operand: in memory, and in LDS, where a lane reads its share of it.
template <u32 kElementBits_, u32 kK_, u32 kFragmentRows_, u32 kSteps, bool kHasRuns,
          Staging kStaging>
struct RowTraits {
  static constexpr u32 kK = kK_;
  static constexpr u32 kElementBits = kElementBits_;
  static constexpr u32 kFragmentRows = kFragmentRows_;
  static constexpr u32 kLaneGroups = kWaveLanes / kFragmentRows;
  static constexpr u32 kRowBytes = kK * kElementBits / 8;
  static constexpr u32 kDataChunks = kRowBytes / kChunkBytes;
  static_assert(kDataChunks * kChunkBytes == kRowBytes, "a DMA fetches 16 bytes per lane");
  // 6-bit rows have 6 chunks, and LDS keeps 8 for them: then a DMA fills whole rows, and as many
  // DMAs as for 8 bits fill a tile. (DMAs of 12 bytes per lane would leave gaps of 4 bytes; and
  // ds_read_b96 takes 16 clocks, while three ds_read_b64 take 12 for twice as many bytes.)
  static constexpr u32 kRowChunks = kDataChunks <= 4 ? 4 : kDataChunks <= 8 ? 8 : 16;
  static constexpr u32 kLdsRowBytes = kRowChunks * kChunkBytes;

  // The lane groups of a fragment split a row: a lane's share is one run of bytes (kIsRun), or one
  // chunk in each read, of which the lane groups take four consecutive ones. 6-bit elements are
  // always a run, of 24 bytes in three reads. In fragments of 32 rows, a lane's shares of two
  // instructions are consecutive.
  static constexpr bool kIsRun = kHasRuns || kElementBits == 6;
  // 6 bits and 32 rows: a read of 8 bytes serves 32 rows at once, so half of them must have these
  // in the second half of a chunk. A lane's 48 bytes of two instructions are 24 + 24: a chunk and
  // 8 bytes, 8 bytes and a chunk. Rows 0..15 have the three chunks of memory, so the second one's
  // halves are the two 8 bytes; rows 16..31 have two chunks, 8..23 and 24..39, instead of it.
  static constexpr bool kIsSplit = kElementBits == 6 && kFragmentRows == 32;
  static constexpr HIPGEMM_BOTH bool is_upper(u32 row) { return row / 16 % 2 != 0; }
  static constexpr u32 kReadBytes = kElementBits == 6 ? 8 : kChunkBytes;
  static constexpr u32 kReads = kIsSplit ? 2 * kSteps : kRowBytes / (kLaneGroups * kReadBytes);
  static constexpr u32 kFragmentReads = kReads / kSteps;
  static_assert(kIsSplit ? kSteps == 2 && kRowBytes == kLaneGroups * 48
                         : kFragmentReads * kSteps * kLaneGroups * kReadBytes == kRowBytes,
                "whole reads");
  static constexpr HIPGEMM_BOTH u32 read_bytes(u32 read) {
    return kIsSplit && read % 2 == 0 ? kChunkBytes : kReadBytes;
  }
  static constexpr HIPGEMM_BOTH u32 read_offset(u32 row, u32 group, u32 read) {
    if constexpr (kIsSplit) {
      const u32 halves[] = {is_upper(row) ? 24u : 16u, is_upper(row) ? 48u : 24u};
      return group * 4 * kChunkBytes + (read % 2 ? halves[read / 2] : read * kChunkBytes);
    }
    constexpr u32 kTogether = kIsRun ? kReads : kFragmentRows == 32 ? 2 : 1;
    return ((read / kTogether * kLaneGroups + group) * kTogether + read % kTogether) * kReadBytes;
  }
  static constexpr HIPGEMM_BOTH u32 swizzled(u32 row, u32 chunk) {
    if constexpr (kStaging == Staging::registers) return staged_chunk(row, chunk);
    return swizzled_chunk<kRowChunks, kFragmentRows == 32 ? 0 : kHasRuns ? kReads : 1>(row, chunk);
  }
  static constexpr HIPGEMM_BOTH u32 lds_offset(u32 row, u32 byte) {
    return row * kLdsRowBytes + swizzled(row, byte / kChunkBytes) * kChunkBytes +
           byte % kChunkBytes;
  }
  // What a chunk of a row in LDS holds: whether nothing; the chunk of memory with the bytes that
  // are read; by how many bytes it begins after that one.
  static constexpr HIPGEMM_BOTH bool is_spare(u32 row, u32 chunk) {
    if constexpr (kIsSplit) return chunk % 4 == 3 && !is_upper(row);
    return kDataChunks < kRowChunks && chunk >= kDataChunks;
  }
  static constexpr HIPGEMM_BOTH u32 memory_chunk(u32 chunk) {
    if constexpr (kIsSplit) return chunk / 4 * 3 + (chunk % 4 == 3 ? 1 : chunk % 4);
    return chunk;
  }
  static constexpr HIPGEMM_BOTH u32 memory_shift(u32 row, u32 chunk) {
    if constexpr (kIsSplit) {
      if (chunk % 4 == 1 && is_upper(row)) return 0 - kChunkBytes / 2;
      if (chunk % 4 == 3) return kChunkBytes / 2;
    }
    return 0;
  }
  // The first element of a chunk of memory, or the one that ends in it.
  static constexpr HIPGEMM_BOTH u32 chunk_element(u32 chunk) {
    return kElementBits == 6 ? chunk * 64 / 3 : chunk * (kChunkBytes * 8 / kElementBits);
  }

  // The lanes that a phase of a read serves at once access each of the 64 banks once. Phases of
  // ds_read_b128 are lanes 0..3, 12..15, 20..27 and 4..11, 16..19, 28..31, of ds_read_b64 0..31;
  // and 32 more. gfx942 has 32 banks, and phases of ds_read_b128 are lanes 0..3, 20..23 and 4..7,
  // 16..19, then 8 and 32 more.
  static constexpr u32 kBanks = kStaging == Staging::registers ? 32 : 64;
  static constexpr u32 phase_of(u32 lane, u32 bytes) {
    const u32 quad = lane / 4 % 8;
    if (kBanks == 32) return lane / 32 * 4 + (quad < 4 ? quad : quad ^ 5);
    const bool first = quad == 0 || quad == 3 || quad == 5 || quad == 6;
    return bytes == 8 ? lane / 32 : lane / 32 * 2 + !first;
  }
  static consteval bool free_of_conflicts() {
    for (u32 read = 0; read < kReads; read++)
      for (u32 phase = 0; phase < kWaveLanes * read_bytes(read) / (4 * kBanks); phase++) {
        u64 banks = 0;
        for (u32 lane = 0; lane < kWaveLanes; lane++) {
          if (phase_of(lane, read_bytes(read)) != phase) continue;
          const u32 row = lane % kFragmentRows, group = lane / kFragmentRows;
          const u32 at = lds_offset(row, read_offset(row, group, read));
          for (u32 dword = 0; dword < read_bytes(read) / 4; dword++)
            banks |= 1ull << (at / 4 + dword) % kBanks;
        }
        if (banks != ~0ull >> (64 - kBanks)) return false;
      }
    return true;
  }
  static_assert(free_of_conflicts());
};

// One operand of a tile: kTileRows rows (of A; columns of B) in kParts equal parts. A part is in
// kBlocks blocks of LDS; kOperandWaves waves split it to multiply. By DMA, all waves of the
// workgroup split it to fetch it, each its block.
template <class Row, class Fragment_, u32 kTileRows, u32 kParts, u32 kOperandWaves, u32 kBlocks,
          Staging kStaging_, Major kMajor_, u32 kMemoryBits_>
struct OperandTraits : Row {
  static constexpr Staging kStaging = kStaging_;
  static constexpr u32 kMemoryBits = kMemoryBits_, kMemoryRowBytes = Row::kK * kMemoryBits / 8;
  using Fragment = Fragment_;
  using Row::kFragmentRows;
  static constexpr Major kMajor = kMajor_;
  static constexpr bool kIsKMajor = kMajor == Major::k;
  static_assert(kIsKMajor || Row::kElementBits >= 8, "transposing reads of bytes and wider");
  // Registers are stored to LDS K-major.
  static constexpr Major kLdsMajor = kStaging == Staging::dma ? kMajor : Major::k;
  static constexpr bool kReadsKMajor = kLdsMajor == Major::k;
  static constexpr u32 kPartRows = kTileRows / kParts;
  // Every wave fetches the same number of rows, whichever it multiplies itself. MN-major, a DMA
  // fills the same number of bytes.
  static constexpr u32 kRowsPerDma = kDmaBytes / Row::kLdsRowBytes;
  static constexpr u32 kDmas = kPartRows / (kRowsPerDma * kBlocks);
  static constexpr u32 kBlockRows = kDmas * kRowsPerDma;
  static_assert(kDmas * kRowsPerDma * kBlocks == kPartRows, "whole DMAs per wave");
  // Fragments that one wave multiplies, per part.
  static constexpr u32 kFragments = kPartRows / (kFragmentRows * kOperandWaves);
  static_assert(kFragments * kFragmentRows * kOperandWaves == kPartRows,
                "whole fragments per wave");
  static_assert(!kIsKMajor || kFragmentRows % kBlockRows == 0 || kBlockRows % kFragmentRows == 0,
                "every fragment begins at the same place of a block");
  static_assert(!kIsKMajor || kBlocks == 1 || kBlockRows <= kFragmentRows ||
                    (kFragments * kFragmentRows) % kBlockRows == 0,
                "a wave's rows start at a block, so that fragments lie at constant distances");
};

// Bits of elements in memory, where those of the matrix instruction are others.
template <class Mfma>
struct MemoryBits {
  static constexpr u32 kA = Mfma::kBitsA, kB = Mfma::kBitsB;
};
template <class Mfma>
  requires requires { Mfma::kMemoryBitsA; }
struct MemoryBits<Mfma> {
  static constexpr u32 kA = Mfma::kMemoryBitsA, kB = Mfma::kMemoryBitsB;
};

template <class Mfma_, class Schedule_, u32 kM_, u32 kN_, u32 kK_, u32 kWavesM_, u32 kWavesN_,
          class Layout_ = Layout_nt>
struct GemmTraits {
  using Mfma = Mfma_;
  using Schedule = Schedule_;
  using Accumulator = typename Mfma::Accumulator;

  static constexpr u32 kM = kM_, kN = kN_, kK = kK_;
  static constexpr u32 kWavesM = kWavesM_, kWavesN = kWavesN_;
  static constexpr u32 kWaves = kWavesM * kWavesN;
  static constexpr u32 kThreads = kWaves * kWaveLanes;
  static_assert(kThreads <= 1024, "the largest workgroup");

  static constexpr Scaling kScaling = Mfma::kScaling;
  // Matrix instructions along K.
  static constexpr u32 kSteps = kK / Mfma::kK;
  static_assert(kSteps * Mfma::kK == kK && kK <= kUnitElements, "whole instructions");
  static constexpr u32 kFragmentRows = Mfma::kRows, kLaneGroups = kWaveLanes / kFragmentRows;
  // With block scales: steps of them (scale_layout.hpp), and the instructions that each takes.
  static constexpr u32 kScaleSteps = kK / kStepElements, kStepMfmas = kStepElements / Mfma::kK;

  static constexpr u32 kParts = Schedule::kParts;
  static constexpr Staging kStaging = Schedule::kStaging;
  static constexpr u32 kBlocks = kStaging == Staging::dma ? kWaves : 1;
  template <u32 kElementBits>
  using Row = RowTraits<kElementBits, kK, kFragmentRows, kSteps, Mfma::kHasRuns, kStaging>;
  static constexpr u32 kMemoryA = MemoryBits<Mfma>::kA, kMemoryB = MemoryBits<Mfma>::kB;
  static constexpr Staging staging_of(bool widened) {
    return widened ? Staging::widened : kStaging;
  }
  using A = OperandTraits<Row<Mfma::kBitsA>, typename Mfma::FragmentA, kM, kParts, kWavesM, kBlocks,
                          staging_of(kMemoryA != Mfma::kBitsA), Layout_::kA, kMemoryA>;
  using B = OperandTraits<Row<Mfma::kBitsB>, typename Mfma::FragmentB, kN, kParts, kWavesN, kBlocks,
                          staging_of(kMemoryB != Mfma::kBitsB), Layout_::kB, kMemoryB>;
  static_assert(kScaling != Scaling::blocks || A::kIsKMajor == B::kIsKMajor ||
                    Mfma::kHasMultipliers,
                "MX scales of MN-major operands come in units of groups of rows along K");

  // K tiles in registers on their way to LDS: two in tiles of few products, whose time is less than
  // that of a load.
  static constexpr u32 kHeld =
      kM <= 64 && kIsNt<Layout_> && kMemoryA == Mfma::kBitsA && kMemoryB == Mfma::kBitsB ? 2 : 1;

  // LDS: stage > part > block, by DMA of one wave > its rows of A, then its rows of B. The DMAs of
  // a block are contiguous, so the instruction's offset reaches all of them from one M0.
  static constexpr u32 kStages = Schedule::kStages;
  static constexpr bool kWholeLines = requires { Schedule::kWholeLines; };
  static constexpr u32 kBlockBytes = [] {
    if constexpr (kWholeLines) return Schedule::kWaveBytes;
    return (A::kDmas + B::kDmas) * kDmaBytes;
  }();
  static constexpr u32 kPartBytes = kBlockBytes * kBlocks;
  static constexpr u32 kStageBytes = kPartBytes * kParts;
  static constexpr u32 kLdsBytes = [] {
    if constexpr (kWholeLines) return Schedule::kLdsBytes;
    return kStageBytes * kStages;
  }();
  static_assert(
      (kParts - 1) * kPartBytes + kPartBytes / smaller(kWavesM, kWavesN) <= 65536,
      "ds_read offsets have 16 bits: one address per stage, from a wave's rows of part 0");
  static_assert(kLdsBytes <= (kStaging == Staging::dma ? 160 : 64) * 1024, "the LDS of a CU");

  // Columns of C that a lane holds in one row, at least 8 consecutive ones: see OperandB in
  // operands.hpp. They are quads, of which each fragment has as many.
  static constexpr u32 kFragmentQuads = kFragmentRows / kLaneGroups / 4;
  static constexpr u32 kLaneColumns = 4 * kFragmentQuads * B::kFragments * kParts;
  static_assert(kLaneColumns % 8 == 0, "whole 16-byte stores of two-byte elements");
};

}  // namespace hipgemm
