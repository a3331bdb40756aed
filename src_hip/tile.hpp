// The verbs of a tile: fetch (global to LDS), read (LDS to registers), multiply.
#pragma once

#include "dma.hpp"
#include "order.hpp"
#include "scale_layout.hpp"
#include "swizzle.hpp"
#include "traits.hpp"
#include "types.hpp"

namespace hipgemm {

// The place of a wave and a lane in the workgroup.
template <class T>
struct Place {
  u32 wave, lane, wave_m, wave_n;

  HIPGEMM_DEVICE Place() {
    const u32 thread = __builtin_amdgcn_workitem_id_x();
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

// Operand A of T; wave_m picks the rows. LDS rows are tile rows, unless there are block scales:
// then a lane's fragments are the rows whose scales are neighbours, over both parts.
template <class T>
struct SideA : T::A {
  static constexpr u32 kBlockOffset = 0;
  static HIPGEMM_DEVICE u32 tile_row(u32 part, u32 row) {
    if constexpr (T::kScaling != Scaling::blocks) return part * T::A::kPartRows + row;
    constexpr u32 kWaveRows = T::A::kFragments * kFragmentRows;
    const u32 wave = row / kWaveRows, fragment = row % kWaveRows / kFragmentRows,
              i = row % kFragmentRows;
    return scale_position(wave * (kWaveRows * T::kParts) + i * (T::A::kFragments * T::kParts) +
                          part * T::A::kFragments + fragment);
  }
  static HIPGEMM_DEVICE u32 wave_along(const Place<T>& place) { return place.wave_m; }
};

// Operand B of T. The instruction is given B's fragment first, so it computes C transposed and
// lane group g holds fragment rows 4g .. 4g+3 of every fragment. Dealing out the tile's columns by
// lane group first makes them neighbours: a lane ends with kLaneColumns of them in one row of C.
template <class T>
struct SideB : T::B {
  static constexpr u32 kBlockOffset = T::A::kDmas * kDmaBytes;
  static HIPGEMM_DEVICE u32 tile_row(u32 part, u32 row) {
    constexpr u32 kWaveRows = T::B::kFragments * kFragmentRows;
    static_assert(T::kScaling != Scaling::blocks || T::kLaneColumns <= kScaleRows,
                  "columns four apart have neighbouring scales within groups of 16");
    const u32 wave = row / kWaveRows, fragment = row % kWaveRows / kFragmentRows,
              i = row % kFragmentRows;
    return wave * (kWaveRows * T::kParts) + i / 4 * T::kLaneColumns +
           4 * (part * T::B::kFragments + fragment) + i % 4;
  }
  static HIPGEMM_DEVICE u32 wave_along(const Place<T>& place) { return place.wave_n; }
};

// Global memory to LDS. Rows past the operand's end read as zero, since their offset lies past the
// buffer; the end of a row is not the buffer's, so the last, ragged K tile masks its lanes itself.
template <class T, class Side>
class Fetcher {
 public:
  // rows: valid rows of this tile (at least 1), ld and k in elements, k a multiple of a chunk.
  // Fetches count K from K tile `origin` on.
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32 k, u32 origin,
                         const Place<T>& place) {
    constexpr u32 kBits = T::kElementBits;
    const u64 pitch = static_cast<u64>(ld) * kBits / 8;
    base_ = matrix + first_row * pitch + origin * kRowBytes - kBias;
    bytes_ = (rows - 1) * static_cast<u32>(pitch) + (k - origin * T::kK) * kBits / 8 + kBias;
    const u32 slot = place.lane % kRowChunks;
    for (u32 d = 0; d < Side::kDmas; d++) {
      const u32 row =
          place.wave * Side::kBlockRows + d * Side::kRowsPerDma + place.lane / kRowChunks;
      chunk_[d] = swizzled_chunk(row, slot);
      for (u32 part = 0; part < T::kParts; part++)
        lane_offset_[part][d] = Side::tile_row(part, row) * static_cast<u32>(pitch) +
                                chunk_[d] * kChunkBytes + kBias - instruction_offset(d);
    }
  }

  // `block`: this wave's block of the part and stage. `k_offset`: bytes from the row's start.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch(LdsByte* block, u32 k_offset) const {
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Side::kDmas>([&]<u32 d>() {
      dma<instruction_offset(d)>(buffer, block + group_offset(d), lane_offset_[kPart][d], k_offset);
    });
  }

  // The same for any K tile, of which only the first `valid` numbers along K exist.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_ragged(LdsByte* block, u32 k_tile, u32 valid) const {
    constexpr u32 kChunkNumbers = kChunkBytes * 8 / T::kElementBits;
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Side::kDmas>([&]<u32 d>() {
      dma<instruction_offset(d)>(buffer, block + group_offset(d),
                                 chunk_[d] * kChunkNumbers < valid
                                     ? lane_offset_[kPart][d] + k_tile * kRowBytes
                                     : kOutOfRange,
                                 0);
    });
  }

  // Fetches nothing from here on, but writes zeros and counts as usual.
  HIPGEMM_DEVICE void detach_if(bool off) { bytes_ = off ? 0 : bytes_; }

  // This part is fetched `bytes` further along K than k_offset says.
  HIPGEMM_DEVICE void advance(u32 part, u32 bytes) {
    for (u32 d = 0; d < Side::kDmas; d++) lane_offset_[part][d] += bytes;
  }

 private:
  // The LDS block in groups of DMAs that one M0 reaches; the compiler sets M0 once per group.
  static constexpr u32 kGroupBytes = smaller(T::kBlockBytes, kMaxDmaOffset + 1);
  static constexpr u32 block_offset(u32 d) { return Side::kBlockOffset + d * kDmaBytes; }
  static constexpr u32 instruction_offset(u32 d) { return block_offset(d) % kGroupBytes; }
  static constexpr u32 group_offset(u32 d) { return block_offset(d) - instruction_offset(d); }
  // The instruction's offset, meant for LDS, moves the global address as well. The lane offset
  // takes it back; the buffer starts early by the most that can be taken back, so that no lane
  // offset is negative.
  static constexpr u32 kBias = kGroupBytes - kDmaBytes;

  u64 base_;
  u32 bytes_;
  u32 lane_offset_[T::kParts][Side::kDmas];
  u32 chunk_[Side::kDmas];
};

// LDS to registers.
template <class T, class Side>
class Reader {
 public:
  using Fragments = typename T::Fragment[Side::kFragments][T::kSteps];

  HIPGEMM_DEVICE Reader(LdsByte* lds, const Place<T>& place) {
    const u32 row =
        Side::wave_along(place) * (Side::kFragments * kFragmentRows) + place.lane % kFragmentRows;
    for (u32 stage = 0; stage < T::kStages; stage++)
      for (u32 column = 0; column < T::kColumns; column++) {
        const u32 chunk = column * T::Mfma::kLaneGroups + place.lane / kFragmentRows;
        address_[stage][column] = lds + stage * T::kStageBytes + row_offset(row) +
                                  swizzled_chunk(row, chunk) * kChunkBytes;
        // As a whole, or the compiler keeps its summands in registers besides.
        asm("" : "+v"(address_[stage][column]));
      }
  }

  template <u32 kStage, u32 kPart>
  HIPGEMM_DEVICE void read(Fragments& out) const {
    for (u32 f = 0; f < Side::kFragments; f++)
      for (u32 step = 0; step < T::kSteps; step++) {
        struct {
          u32x4 chunk[T::kFragmentChunks];
        } bits;
        for (u32 c = 0; c < T::kFragmentChunks; c++)
          bits.chunk[c] = *reinterpret_cast<const Lds16*>(
              address_[kStage][step * T::kFragmentChunks + c] + kPart * T::kPartBytes +
              (row_offset(f * kFragmentRows) - row_offset(0)));
        out[f][step] = __builtin_bit_cast(typename T::Fragment, bits);
      }
  }

  // The same from a stage known only at run time.
  template <u32 kPart>
  HIPGEMM_DEVICE void read(u32 stage, Fragments& out) const {
    Reader at = *this;
    for (u32 column = 0; column < T::kColumns; column++)
      at.address_[0][column] = address_[0][column] + stage * T::kStageBytes;
    at.template read<0, kPart>(out);
  }

 private:
  using Lds16 = __attribute__((address_space(3))) u32x4;

  static constexpr HIPGEMM_DEVICE u32 row_offset(u32 row) {
    return row / Side::kBlockRows * T::kBlockBytes + Side::kBlockOffset +
           row % Side::kBlockRows * kRowBytes;
  }

  LdsByte* address_[T::kStages][T::kColumns];
};

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

  // These are wanted now: the compiler would else move the products that nothing but the epilogue
  // uses there, beyond barriers, with the fragments in registers all the while.
  template <u32 kPartA, u32 kPartB>
  HIPGEMM_DEVICE void settle() {
    for (auto& row : at[kPartA][kPartB])
      for (auto& c : row) asm volatile("" : "+v"(c));
  }
};

}  // namespace hipgemm
