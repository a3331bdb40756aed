// The map of operands: rows, columns and LDS bytes of each wave and lane.
#pragma once

#include "common/scale_layout.hpp"
#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/tile_order.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// The position of a thread in the workgroup.
template <class T>
struct ThreadPosition {
  u32 wave, lane, wave_m, wave_n;

  HIPGEMM_DEVICE ThreadPosition() : ThreadPosition(__builtin_amdgcn_workitem_id_x()) {}

  // The same, recomputed, so that the compiler does not keep it in registers through the K loop.
  static HIPGEMM_DEVICE ThreadPosition recomputed() {
    u32 thread = __builtin_amdgcn_workitem_id_x();
    asm volatile("" : "+v"(thread));
    return ThreadPosition(thread);
  }

 private:
  explicit HIPGEMM_DEVICE ThreadPosition(u32 thread) {
    wave = uniform(thread / kWaveLanes);
    lane = thread % kWaveLanes;
    wave_m = wave / T::kWavesN;
    wave_n = wave % T::kWavesN;
  }
};

// The part of C that a workgroup computes; rows and columns that lie inside C.
template <class T>
struct TileArea {
  u32 row, column, rows, columns;
};
template <class T>
HIPGEMM_DEVICE TileArea<T> tile_area(TilePosition tile, u32 m, u32 n) {
  const u32 row = tile.m * T::kM, column = tile.n * T::kN;
  return {row, column, smaller(m - row, T::kM), smaller(n - column, T::kN)};
}

// Operand A of T; wave_m selects the rows. Rows of the parts are tile rows, unless there are block
// scales along K: then a lane's fragments, over both parts, are rows whose scales are contiguous.
template <class T>
struct OperandA : T::A {
  static constexpr u32 kBlockOffset = 0;
  static HIPGEMM_DEVICE u32 second() { return T::Mfma::elements() & 1; }
  static HIPGEMM_DEVICE u32 tile_row(u32 part, u32 row) {
    if constexpr (T::kScaling != Scaling::blocks || !T::A::kIsKMajor || T::kStaging != Staging::dma)
      return part * T::A::kPartRows + row;
    constexpr u32 kWaveRows = T::A::kFragments * T::kFragmentRows;
    const u32 wave = row / kWaveRows, fragment = row % kWaveRows / T::kFragmentRows,
              i = row % T::kFragmentRows;
    return scale_position(wave * (kWaveRows * T::kParts) + i * (T::A::kFragments * T::kParts) +
                          part * T::A::kFragments + fragment);
  }
  static HIPGEMM_DEVICE u32 wave_index(const ThreadPosition<T>& position) {
    return position.wave_m;
  }
};

// Operand B of T. B's fragment is the instruction's first operand, so it computes C transposed and
// lane group g holds fragment rows 4g .. 4g+3 of every fragment: a quad of columns of C. Fragments
// of 32 rows have four quads for each of two groups.
// K-major: the tile's columns are interleaved by lane group first, so that quads are contiguous and
// a lane holds kLaneColumns consecutive columns in one row of C. MN-major: a transposing read takes
// 16 consecutive columns for a fragment, so lane groups exchange quads of every two fragments
// afterwards (Accumulators::interleave_quads): even groups get those of the first, odd ones of the
// second, and each holds 8 consecutive columns.
template <class T>
struct OperandB : T::B {
  static HIPGEMM_DEVICE u32 second() { return T::Mfma::elements() >> 8 & 1; }
  static constexpr u32 kBlockOffset = T::A::kDmas * kDmaBytes;
  static HIPGEMM_DEVICE u32 tile_row(u32 part, u32 row) {
    if constexpr (!T::B::kReadsKMajor) return part * T::B::kPartRows + row;
    constexpr u32 kFragments = T::B::kFragments * T::kParts,
                  kWaveRows = T::B::kFragments * T::kFragmentRows;
    static_assert(T::kScaling != Scaling::blocks || 4 * kFragments <= kScaleRows,
                  "columns four apart have contiguous scales within groups of 16");
    const u32 wave = row / kWaveRows, fragment = row % kWaveRows / T::kFragmentRows,
              i = row % T::kFragmentRows, group = i / 4 % T::kLaneGroups,
              quad = i / (4 * T::kLaneGroups) * kFragments + part * T::B::kFragments + fragment;
    return wave * (kWaveRows * T::kParts) + group * T::kLaneColumns + 4 * quad + i % 4;
  }
  static HIPGEMM_DEVICE u32 wave_index(const ThreadPosition<T>& position) {
    return position.wave_n;
  }

  // The first column in the tile of a quad of the lane, fragments counted over both parts, is
  // lane_column() + quad_column(quad); before lane groups exchange quads it is own_column() +
  // own_quad_column(quad).
  static HIPGEMM_DEVICE u32 lane_column(const ThreadPosition<T>& position) {
    const u32 group = position.lane / T::kFragmentRows;
    if constexpr (T::B::kReadsKMajor)
      return (position.wave_n * T::kLaneGroups + group) * T::kLaneColumns;
    else
      return position.wave_n * (T::B::kFragments * T::kFragmentRows) +
             group % 2 * (fragment_column(1) - fragment_column(0)) + group / 2 * 8;
  }
  static constexpr HIPGEMM_DEVICE u32 quad_column(u32 quad) {
    return T::B::kReadsKMajor ? 4 * quad : fragment_column(quad & ~1u) + quad % 2 * 4;
  }
  static HIPGEMM_DEVICE u32 own_column(const ThreadPosition<T>& position) {
    if constexpr (T::B::kReadsKMajor) return lane_column(position);
    return position.wave_n * (T::B::kFragments * T::kFragmentRows) +
           position.lane / T::kFragmentRows * 4;
  }
  static constexpr HIPGEMM_DEVICE u32 own_quad_column(u32 quad) {
    return T::B::kReadsKMajor ? 4 * quad : fragment_column(quad);
  }

 private:
  static constexpr HIPGEMM_DEVICE u32 fragment_column(u32 fragment) {
    return fragment / T::B::kFragments * T::B::kPartRows +
           fragment % T::B::kFragments * T::kFragmentRows;
  }
};

// The bytes of an operand in the LDS block of one wave, and the DMAs that fill them.
template <class T, class Operand>
struct DmaBlock {
  static constexpr u32 kBytes = Operand::kDmas * kDmaBytes;
  // LDS offset of byte `at` of the operand's part, in which all waves' bytes follow each other.
  static constexpr HIPGEMM_DEVICE u32 lds_offset(u32 at) {
    return at / kBytes * T::kBlockBytes + Operand::kBlockOffset + at % kBytes;
  }

  // The LDS block in groups of DMAs that one M0 reaches; the compiler sets M0 once per group.
  static constexpr u32 kGroupBytes = smaller(T::kBlockBytes, kMaxDmaOffset + 1);
  static constexpr u32 block_offset(u32 d) { return Operand::kBlockOffset + d * kDmaBytes; }
  static constexpr u32 instruction_offset(u32 d) { return block_offset(d) % kGroupBytes; }
  static constexpr u32 group_offset(u32 d) { return block_offset(d) - instruction_offset(d); }
  // The instruction's offset is meant for LDS, but is added to the global address as well. The lane
  // offset subtracts it; the buffer starts early by the largest such offset, so that no lane offset
  // is negative.
  static constexpr u32 kBias = kGroupBytes - kDmaBytes;
};

// Global memory to LDS.
template <class T, class Operand, Major = Operand::kMajor, Staging = Operand::kStaging>
class Fetcher;

// LDS to registers.
template <class T, class Operand, Major = Operand::kLdsMajor>
class Reader;

}  // namespace hipgemm
