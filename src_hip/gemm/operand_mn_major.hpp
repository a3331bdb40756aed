// Fetching and reading an MN-major operand: rows at the same k are contiguous.
#pragma once

#include "common/lanes.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/operands.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

inline constexpr u32 kSegmentRows = 16;

// The LDS layout of a part. A slice is all of the part's rows at one k, a segment the 16 rows of it
// that one fragment takes. A transposing read takes one segment of several slices in each phase of
// 32 lanes, and these must not share banks: such slices are contiguous, a run, and their segments
// are swizzled, so that the read is free of conflicts.
template <u32 kRows, u32 kElementBytes>
struct SliceMap {
  static_assert((kRows & (kRows - 1)) == 0 && kRows % kSegmentRows == 0, "fields of an address");
  static constexpr u32 kSliceBytes = kRows * kElementBytes;
  static constexpr u32 kSegments = kRows / kSegmentRows;
  static constexpr u32 kSegmentBytes = kSegmentRows * kElementBytes;
  static constexpr u32 kReadBytes = 8;  // by one lane
  static constexpr u32 kPieces = kSegmentBytes / kReadBytes;
  static constexpr u32 kGroupSlices = kSegmentRows / kPieces;  // read by 16 lanes
  static constexpr u32 kRunSlices = 2 * kGroupSlices;
  static constexpr u32 kRunBytes = kRunSlices * kSliceBytes;

  // As in a K-major operand, each lane group takes a chunk of K for a fragment: by two reads, one
  // for each half. A run holds the same half of two groups, g and g + 1.
  static constexpr HIPGEMM_DEVICE u32 run(u32 column, u32 group, u32 half) {
    return (column * 2 + group / 2) * 2 + half;
  }
  static constexpr HIPGEMM_DEVICE u32 k_of(u32 run, u32 i) {
    const u32 chunk = run / 2 * 2 + i / kGroupSlices, half = run % 2;
    return (chunk * 2 + half) * kGroupSlices + i % kGroupSlices;
  }
  // Its own inverse.
  static constexpr HIPGEMM_DEVICE u32 swizzled_segment(u32 i, u32 slot) {
    return slot ^ (i * smaller(kSegments, kRunSlices) / kRunSlices);
  }
  static constexpr HIPGEMM_DEVICE u32 offset_in_run(u32 i, u32 slot) {
    return i * kSliceBytes + swizzled_segment(i, slot) * kSegmentBytes;
  }

  // Every phase of every read accesses each bank once.
  static consteval bool free_of_conflicts() {
    for (u32 slot = 0; slot < kSegments; slot++) {
      u64 banks = 0;
      for (u32 i = 0; i < kRunSlices; i++)
        for (u32 dword = 0; dword < kSegmentBytes / 4; dword++)
          banks |= 1ull << (offset_in_run(i, slot) / 4 + dword) % 64;
      if (banks + 1 != 0) return false;
    }
    return true;
  }
  static_assert(kRunSlices * kSegmentBytes == 256 && free_of_conflicts());
};

template <class T, class Operand>
using SlicesOf = SliceMap<Operand::kPartRows, Operand::kElementBits / 8>;

// Lanes past the edge of C fetch nothing. K needs no padding: the ragged tile masks slices past the
// end. Only the dword with the operand's last element may extend past its end.
template <class T, class Operand>
class Fetcher<T, Operand, Major::mn, Staging::dma> : DmaBlock<T, Operand> {
 public:
  // rows: valid rows of this tile (at least 1); ld in elements, from k to k.
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32, const KRange& range,
                         const ThreadPosition<T>& position) {
    pitch_ = static_cast<u64>(ld) * kElementBytes;
    second_ = range.second;
    base_ = matrix + first_row * kElementBytes - kBias +
            static_cast<u64>(range.origin + second_) * T::kK * pitch_;
    row_bytes_ = rows * kElementBytes;
    for (u32 d = 0; d < Operand::kDmas; d++) {
      const u32 at = position.wave * Block::kBytes + d * kDmaBytes + position.lane * kChunkBytes;
      const u32 run = at / Slices::kRunBytes, i = at / Slices::kSliceBytes % Slices::kRunSlices,
                in_slice = at % Slices::kSliceBytes;
      const u32 in_row =
          Slices::swizzled_segment(i, in_slice / Slices::kSegmentBytes) * Slices::kSegmentBytes +
          in_slice % Slices::kSegmentBytes;
      k_[d] = Slices::k_of(run, i);
      for (u32 part = 0; part < T::kParts; part++) {
        const u32 row_byte = part * Slices::kSliceBytes + in_row;
        lane_offset_[part][d] = row_byte < row_bytes_ ? k_[d] * static_cast<u32>(pitch_) +
                                                            row_byte + kBias - instruction_offset(d)
                                                      : kDmaOutOfRange;
      }
    }
  }

  // The K tile that next() has advanced to, from the range's second on.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch(Index<kPart>, LdsByte* block, u32) const {
    // All slices of the tile exist: only masked lanes are out of range.
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Operand::kDmas>([&]<u32 d>(Index<d>) {
      dma<instruction_offset(d)>(buffer, block + group_offset(d), lane_offset_[kPart][d], 0);
    });
  }

  // The same for any K tile, of which only the first `valid` elements along K exist.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_ragged(Index<kPart>, LdsByte* block, u32 k_tile, u32 valid) const {
    const u64 tile_bytes = T::kK * pitch_;
    const u32 last_slice = (valid - 1) * static_cast<u32>(pitch_);
    const Buffer buffer = make_buffer(base_ + (k_tile - static_cast<u64>(second_)) * tile_bytes,
                                      valid ? last_slice + (row_bytes_ + 3) / 4 * 4 + kBias : 0);
    unrolled<Operand::kDmas>([&]<u32 d>(Index<d>) {
      dma<instruction_offset(d)>(buffer, block + group_offset(d),
                                 k_[d] < valid ? lane_offset_[kPart][d] : kDmaOutOfRange, 0);
    });
  }

  // The base has 64 bits: an operand may be larger than 32-bit offsets reach.
  HIPGEMM_DEVICE void next() { base_ += T::kK * pitch_; }

  // Disabled, it reads nothing more from memory; it writes zeros, and waits count it as before.
  HIPGEMM_DEVICE void disable_if(bool off) { bytes_ = off ? 0 : bytes_; }

  HIPGEMM_DEVICE void advance(u32, u32) {}

 private:
  using Block = DmaBlock<T, Operand>;
  using Block::group_offset;
  using Block::instruction_offset;
  using Block::kBias;
  using Slices = SlicesOf<T, Operand>;
  static constexpr u32 kElementBytes = Operand::kElementBits / 8;

  u64 base_, pitch_;
  u32 bytes_ = kDmaOutOfRange;
  u32 second_, row_bytes_;
  u32 lane_offset_[T::kParts][Operand::kDmas];
  u32 k_[Operand::kDmas];
};

template <class T, class Operand>
class Reader<T, Operand, Major::mn> {
 public:
  using Fragments = typename Operand::Fragment[Operand::kFragments][T::kSteps];

  HIPGEMM_DEVICE Reader(LdsByte* lds, const ThreadPosition<T>& position) {
    static_assert(T::kFragmentRows == kSegmentRows);
    const u32 group = position.lane / kSegmentRows, lane = position.lane % kSegmentRows;
    const u32 i = group % 2 * Slices::kGroupSlices + lane / Slices::kPieces;
    for (u32 f = 0; f < Operand::kFragments; f++) {
      const u32 slot = Operand::wave_index(position) * Operand::kFragments + f;
      const u32 at = Slices::run(0, group, 0) * Slices::kRunBytes + Slices::offset_in_run(i, slot) +
                     lane % Slices::kPieces * Slices::kReadBytes;
      for (u32 stage = 0; stage < T::kStages; stage++) {
        address_[stage][f] = lds + stage * T::kStageBytes + Block::lds_offset(at);
        // One value: else the compiler keeps its summands in registers as well.
        asm("" : "+v"(address_[stage][f]));
      }
    }
  }

  template <u32 kStage, u32 kPart>
  HIPGEMM_DEVICE void read(Index<kStage>, Index<kPart>, Fragments& out) const {
    for (u32 f = 0; f < Operand::kFragments; f++)
      for (u32 step = 0; step < T::kSteps; step++) {
        struct {
          u32x2 half[Operand::kFragmentReads * 2];
        } bits;
        for (u32 h = 0; h < Operand::kFragmentReads * 2; h++)
          bits.half[h] = read_transposed<Operand::kElementBits>(
              address_[kStage][f] + kPart * T::kPartBytes +
              run_offset(Slices::run(step * Operand::kFragmentReads + h / 2, 0, h % 2)));
        out[f][step] = __builtin_bit_cast(typename Operand::Fragment, bits);
      }
  }

  // The same for a stage known only at run time.
  template <u32 kPart>
  HIPGEMM_DEVICE void read(u32 stage, Index<kPart> part, Fragments& out) const {
    Reader at = *this;
    for (u32 f = 0; f < Operand::kFragments; f++)
      at.address_[0][f] = address_[0][f] + stage * T::kStageBytes;
    at.read(kIndex<0>, part, out);
  }

 private:
  using Block = DmaBlock<T, Operand>;
  using Slices = SlicesOf<T, Operand>;

  static constexpr HIPGEMM_DEVICE u32 run_offset(u32 run) {
    static_assert((Block::kBytes & (Block::kBytes - 1)) == 0,
                  "a lane's offset within its run and the run's add up, in blocks as well");
    return Block::lds_offset(run * Slices::kRunBytes) - Block::lds_offset(0);
  }

  LdsByte* address_[T::kStages][Operand::kFragments];
};

}  // namespace hipgemm
