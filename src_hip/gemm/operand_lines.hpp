// Fetching and reading K-major rows of 6 bits by whole cache lines.
#pragma once

#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/operands.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// A row of a K tile has 96 bytes, so most K tiles begin or end inside a cache line that the next
// one needs as well. To ask for each line once, lines are fetched, and each K tile is read from the
// lines where it is. Four K tiles are three lines.
//
// LDS has room for two lines and a half of each row: five half lines. They suffice, since half a
// line is free when it was read. The six halves of a group of four tiles lie in slots
//   1 2  3 4  0 1   and those of the next group in   3 2  1 0  4 3
// so that both halves of a line are neighbours, which one DMA fills, and the slots are free by then
// (line_ring.hpp). Groups alternate: the second order is the first one, mirrored.
//   LDS: operand > part > block of 8 rows > slot > row.
template <class T, class Operand>
struct LineTraits {
  static_assert(Operand::kElementBits == 6 && T::kK == 128 && T::kFragmentRows == 32, "");
  static constexpr u32 kTileBytes = Operand::kRowBytes, kHalf = 64, kLine = 2 * kHalf;
  static constexpr u32 kChunks = kHalf / kChunkBytes;  // of half a line
  static constexpr u32 kBlockRows = kDmaBytes / kLine, kSlots = 5;
  static constexpr u32 kSlotBytes = kBlockRows * kHalf, kBlockBytes = kSlots * kSlotBytes;
  static constexpr u32 kDmas = Operand::kPartRows / (kBlockRows * T::kWaves);
  static_assert(kDmas * kBlockRows * T::kWaves == Operand::kPartRows, "whole DMAs of each wave");
  static constexpr u32 kPartBytes = Operand::kPartRows / kBlockRows * kBlockBytes;
  static constexpr u32 part_offset(u32 part) {
    return ((Operand::kBlockOffset ? T::kParts : 0) + part) * kPartBytes;
  }
  static constexpr HIPGEMM_BOTH u32 row_offset(u32 row) {
    return row / kBlockRows * kBlockBytes + row % kBlockRows * kHalf;
  }
  // Four rows span the banks. In a phase of a read are four times four, whose number divided by
  // four is 0, 3, 5, 6, or 1, 2, 4, 7. Rows that are 8 apart, for two DMAs, have the same order.
  static HIPGEMM_DEVICE u32 swizzled(u32 row, u32 chunk) {
    return chunk ^ (row >> 2 & 1) ^ (row >> 3 & 2);
  }

  // mirrored: 0, or all bits. half: of a group. line: where its first slot is, or its second.
  static HIPGEMM_DEVICE u32 half_offset(u32 half, u32 mirrored) {
    return either((half + 1) % kSlots * kSlotBytes, (kSlots - 1) * kSlotBytes, mirrored);
  }
  static HIPGEMM_DEVICE u32 line_offset(u32 line, u32 mirrored) {
    return either((2 * line + 1) % kSlots * kSlotBytes, (kSlots - 2) * kSlotBytes, mirrored);
  }

 private:
  static HIPGEMM_DEVICE u32 either(u32 offset, u32 last, u32 mirrored) {
    return offset + (mirrored & (last - 2 * offset));
  }
};

template <class T, class Operand>
  requires(T::kWholeLines)
class Fetcher<T, Operand, Major::k, Staging::dma> {
  using Lines = LineTraits<T, Operand>;

 public:
  // As that of whole K tiles (operand_k_major.hpp). The first tile's group is mirrored.
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32 k, const KRange& range,
                         const ThreadPosition<T>& position) {
    const u64 pitch = static_cast<u64>(ld) * 6 / 8;
    const u32 chunks = ((k - range.origin * T::kK) * 3 + 63) / 64;
    base_ = matrix + first_row * pitch + range.origin * Lines::kTileBytes;
    bytes_ = (rows - 1) * static_cast<u32>(pitch) + chunks * kChunkBytes;
    const u32 half = 1 - position.lane / (kWaveLanes / 2);
    const u32 row = position.wave * (Lines::kDmas * Lines::kBlockRows) +
                    position.lane / Lines::kChunks % Lines::kBlockRows;
    chunk_ = half * Lines::kChunks + Lines::swizzled(row, position.lane % Lines::kChunks);
    for (u32 part = 0; part < T::kParts; part++)
      lane_offset_[part] =
          Operand::tile_row(part, row) * static_cast<u32>(pitch) + chunk_ * kChunkBytes;
    distance_ = (Operand::tile_row(0, Lines::kBlockRows) - Operand::tile_row(0, 0)) *
                static_cast<u32>(pitch);
  }

  // to: the line's place in this wave's first block of the part. k_offset: bytes from the start of
  // the row.
  template <u32 kPart, u32 kDma>
  HIPGEMM_DEVICE void fetch(Index<kPart>, Index<kDma>, LdsByte* to, u32 k_offset) const {
    dma<0>(make_buffer(base_, bytes_), to + kDma * Lines::kBlockBytes, lane_offset_[kPart],
           k_offset + kDma * distance_);
  }

  // Before the first line of a group: the halves of a line change places, `by` so many bytes.
  template <u32 kPart>
  HIPGEMM_DEVICE void mirror(Index<kPart>, u32 by) {
    lane_offset_[kPart] += by;
  }

  // A K tile, of which only the first `valid` elements along K exist, at the end of a mirrored
  // line.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_ragged(Index<kPart>, LdsByte* to, u32 k_tile, u32 valid) const {
    const Buffer buffer = make_buffer(base_, bytes_);
    constexpr u32 kBefore = Lines::kLine - Lines::kTileBytes;
    const u32 chunk = chunk_ - kBefore / kChunkBytes;
    const bool inside = static_cast<int>(chunk) >= 0 && Operand::chunk_element(chunk) < valid;
    const u32 at = lane_offset_[kPart] + k_tile * Lines::kTileBytes - kBefore;
    for (u32 d = 0; d < Lines::kDmas; d++)
      dma<0>(buffer, to + d * Lines::kBlockBytes, inside ? at : kDmaOutOfRange, d * distance_);
  }

  // Disabled unless all bits are set, as that of whole K tiles.
  HIPGEMM_DEVICE void keep_if(u32 all_bits) { bytes_ &= all_bits; }

 private:
  u64 base_;
  u32 bytes_;
  u32 lane_offset_[T::kParts];  // of the first DMA
  u32 chunk_;                   // of the line
  u32 distance_;                // in memory, of the rows of two DMAs
};

// A lane's share of a row is three chunks, for two instructions.
template <class T, class Operand>
  requires(T::kWholeLines)
class Reader<T, Operand, Major::k> {
  using Lines = LineTraits<T, Operand>;
  using Share = Vector<int, 12>;

 public:
  class Fragments {
   public:
    struct Row {
      Share share;
      HIPGEMM_DEVICE Vector<int, 6> operator[](u32 step) const {
        const Share x = share;
        return step == 0 ? __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5)
                         : __builtin_shufflevector(x, x, 6, 7, 8, 9, 10, 11);
      }
    };
    HIPGEMM_DEVICE const Row& operator[](u32 f) const { return rows_[f]; }
    HIPGEMM_DEVICE Row& operator[](u32 f) { return rows_[f]; }

   private:
    Row rows_[Operand::kFragments];
  };

  HIPGEMM_DEVICE Reader(LdsByte* lds, const ThreadPosition<T>& position) {
    const u32 row = Operand::wave_index(position) * (Operand::kFragments * T::kFragmentRows) +
                    position.lane % T::kFragmentRows;
    const u32 group = position.lane / T::kFragmentRows;
    second_ = 0 - group;
    for (u32 i = 0; i < Lines::kChunks; i++) {
      const u32 chunk = Lines::swizzled(row, (kReads * group + i) % Lines::kChunks);
      chunk_[i] = lds + Lines::part_offset(0) + Lines::row_offset(row) + chunk * kChunkBytes;
      asm("" : "+v"(chunk_[i]));  // one value: see operand_k_major.hpp
    }
  }

  // The next reads are of this tile of a group.
  template <u32 kTile>
  HIPGEMM_DEVICE void place(Index<kTile>, u32 mirrored) {
    constexpr u32 kFirst = kTile * 2 * kReads, kHalf = kFirst / Lines::kChunks;
    const u32 here = Lines::half_offset(kHalf, mirrored),
              next = Lines::half_offset(kHalf + 1, mirrored);
    const u32 either = here + (second_ & (next - here));
    for (u32 r = 0; r < kReads; r++) {
      const u32 i = kFirst % Lines::kChunks + r;  // what lane group 0 reads
      address_[r] = chunk_[i % Lines::kChunks] + (i == 0                ? here
                                                  : i == Lines::kChunks ? next
                                                                        : either);
    }
  }

  template <u32 kPart>
  HIPGEMM_DEVICE void read(Index<kPart>, Fragments& out) const {
    using Lds = __attribute__((address_space(3))) Vector<int, 4>;
    for (u32 f = 0; f < Operand::kFragments; f++) {
      Vector<int, 4> chunk[kReads];
      for (u32 r = 0; r < kReads; r++)
        chunk[r] = *reinterpret_cast<const Lds*>(address_[r] + kPart * Lines::kPartBytes +
                                                 Lines::row_offset(f * T::kFragmentRows));
      const auto both = __builtin_shufflevector(chunk[0], chunk[1], 0, 1, 2, 3, 4, 5, 6, 7);
      const auto last = __builtin_shufflevector(chunk[2], chunk[2], 0, 1, 2, 3, -1, -1, -1, -1);
      out[f].share = __builtin_shufflevector(both, last, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    }
  }

 private:
  static constexpr u32 kReads = 3;
  u32 second_;  // all bits of lane group 1
  LdsByte* chunk_[Lines::kChunks];
  LdsByte* address_[kReads];
};

}  // namespace hipgemm
