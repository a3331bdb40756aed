// Which rows, columns and LDS bytes belong to which wave, lane and operand.
#pragma once

#include "common/scale_layout.hpp"
#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/order.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// The place of a wave and a lane in the workgroup.
template <class T>
struct Place {
  u32 wave, lane, wave_m, wave_n;

  HIPGEMM_DEVICE Place() : Place(__builtin_amdgcn_workitem_id_x()) {}

  // The same, worked out anew: the compiler does not keep it in registers meanwhile.
  static HIPGEMM_DEVICE Place again() {
    u32 thread = __builtin_amdgcn_workitem_id_x();
    asm volatile("" : "+v"(thread));
    return Place(thread);
  }

 private:
  explicit HIPGEMM_DEVICE Place(u32 thread) {
    wave = uniform(thread / kWaveLanes);
    lane = thread % kWaveLanes;
    wave_m = wave / T::kWavesN;
    wave_n = wave % T::kWavesN;
  }
};

// The part of C that a workgroup computes; rows and columns as far as they lie inside C.
template <class T>
struct TileArea {
  u32 row, column, rows, columns;
};
template <class T>
HIPGEMM_DEVICE TileArea<T> tile_area(TilePosition tile, u32 m, u32 n) {
  const u32 row = tile.m * T::kM, column = tile.n * T::kN;
  return {row, column, smaller(m - row, T::kM), smaller(n - column, T::kN)};
}

// Operand A of T; wave_m picks the rows. Rows of the parts are tile rows, unless there are block
// scales along K: then a lane's fragments are rows whose scales are neighbours, over both parts.
template <class T>
struct SideA : T::A {
  static constexpr u32 kBlockOffset = 0;
  static HIPGEMM_DEVICE u32 tile_row(u32 part, u32 row) {
    if constexpr (T::kScaling != Scaling::blocks || !T::A::kAlongK)
      return part * T::A::kPartRows + row;
    constexpr u32 kWaveRows = T::A::kFragments * kFragmentRows;
    const u32 wave = row / kWaveRows, fragment = row % kWaveRows / kFragmentRows,
              i = row % kFragmentRows;
    return scale_position(wave * (kWaveRows * T::kParts) + i * (T::A::kFragments * T::kParts) +
                          part * T::A::kFragments + fragment);
  }
  static HIPGEMM_DEVICE u32 wave_along(const Place<T>& place) { return place.wave_m; }
};

// Operand B of T. The instruction is given B's fragment first, so it computes C transposed and
// lane group g holds fragment rows 4g .. 4g+3 of every fragment: a quad of columns of C.
//
// Along K, dealing out the tile's columns by lane group first makes quads neighbours: a lane ends
// with kLaneColumns of them in one row of C. Across K, transposing reads want the 16 columns of a
// fragment together, so lane groups exchange quads of every two fragments afterwards
// (Accumulators::join_quads): even groups get those of the first, odd ones of the second, and each
// has 8 neighbours.
template <class T>
struct SideB : T::B {
  static constexpr u32 kBlockOffset = T::A::kDmas * kDmaBytes;
  static HIPGEMM_DEVICE u32 tile_row(u32 part, u32 row) {
    if constexpr (!T::B::kAlongK) return part * T::B::kPartRows + row;
    constexpr u32 kWaveRows = T::B::kFragments * kFragmentRows;
    static_assert(T::kScaling != Scaling::blocks || T::kLaneColumns <= kScaleRows,
                  "columns four apart have neighbouring scales within groups of 16");
    const u32 wave = row / kWaveRows, fragment = row % kWaveRows / kFragmentRows,
              i = row % kFragmentRows;
    return wave * (kWaveRows * T::kParts) + i / 4 * T::kLaneColumns +
           4 * (part * T::B::kFragments + fragment) + i % 4;
  }
  static HIPGEMM_DEVICE u32 wave_along(const Place<T>& place) { return place.wave_n; }

  // Column of the tile at which a quad of the lane begins, the fragments counted over both parts:
  // lane_column() + quad_column(quad).
  static HIPGEMM_DEVICE u32 lane_column(const Place<T>& place) {
    const u32 group = place.lane / kFragmentRows;
    if constexpr (T::B::kAlongK)
      return (place.wave_n * 4 + group) * T::kLaneColumns;
    else
      return place.wave_n * (T::B::kFragments * kFragmentRows) +
             group % 2 * (fragment_column(1) - fragment_column(0)) + group / 2 * 8;
  }
  static constexpr HIPGEMM_DEVICE u32 quad_column(u32 quad) {
    return T::B::kAlongK ? 4 * quad : fragment_column(quad & ~1u) + quad % 2 * 4;
  }

 private:
  static constexpr HIPGEMM_DEVICE u32 fragment_column(u32 fragment) {
    return fragment / T::B::kFragments * T::B::kPartRows +
           fragment % T::B::kFragments * kFragmentRows;
  }
};

// The bytes of an operand in the LDS block of one wave, and the DMAs that fill them.
template <class T, class Side>
struct DmaBlock {
  static constexpr u32 kBytes = Side::kDmas * kDmaBytes;
  // Of byte `at` of the operand's part, all waves' shares in a row.
  static constexpr HIPGEMM_DEVICE u32 lds_offset(u32 at) {
    return at / kBytes * T::kBlockBytes + Side::kBlockOffset + at % kBytes;
  }

  // The LDS block in groups of DMAs that one M0 reaches; the compiler sets M0 once per group.
  static constexpr u32 kGroupBytes = smaller(T::kBlockBytes, kMaxDmaOffset + 1);
  static constexpr u32 block_offset(u32 d) { return Side::kBlockOffset + d * kDmaBytes; }
  static constexpr u32 instruction_offset(u32 d) { return block_offset(d) % kGroupBytes; }
  static constexpr u32 group_offset(u32 d) { return block_offset(d) - instruction_offset(d); }
  // The instruction's offset, meant for LDS, moves the global address as well. The lane offset
  // takes it back; the buffer starts early by the most that can be taken back, so that no lane
  // offset is negative.
  static constexpr u32 kBias = kGroupBytes - kDmaBytes;
};

// Global memory to LDS.
template <class T, class Side, Contiguous = Side::kContiguous>
class Fetcher;

// LDS to registers.
template <class T, class Side, Contiguous = Side::kContiguous>
class Reader;

}  // namespace hipgemm
