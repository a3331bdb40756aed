// Fetching and reading an operand that is contiguous across K: neighbours are rows at the same k.
#pragma once

#include "common/lanes.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/sides.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// How a part lies in LDS. A line is all of the part's rows at one k, a slot a fragment's share of
// it. A transposing read takes one slot of several lines, which share the 64 banks in its phases of
// 32 lanes: those lines are made neighbours, a run, and exchange slots so that they take turns.
template <u32 kRows, u32 kElementBytes>
struct LineMap {
  static_assert((kRows & (kRows - 1)) == 0 && kRows % kFragmentRows == 0, "fields of an address");
  static constexpr u32 kLineBytes = kRows * kElementBytes;
  static constexpr u32 kSlots = kRows / kFragmentRows;
  static constexpr u32 kSlotBytes = kFragmentRows * kElementBytes;
  static constexpr u32 kReadBytes = 8;  // of a lane
  static constexpr u32 kPieces = kSlotBytes / kReadBytes;
  static constexpr u32 kGroupLines = kFragmentRows / kPieces;  // that 16 lanes read
  static constexpr u32 kRunLines = 2 * kGroupLines;
  static constexpr u32 kRunBytes = kRunLines * kLineBytes;

  // A fragment takes as much of K from each lane group as it does along K, a chunk's worth, by two
  // reads, one for each half. A run holds the same half of two groups, g and g + 1.
  static constexpr HIPGEMM_DEVICE u32 run(u32 column, u32 group, u32 half) {
    return (column * 2 + group / 2) * 2 + half;
  }
  static constexpr HIPGEMM_DEVICE u32 k_of(u32 run, u32 i) {
    const u32 chunk = run / 2 * 2 + i / kGroupLines, half = run % 2;
    return (chunk * 2 + half) * kGroupLines + i % kGroupLines;
  }
  // Its own inverse.
  static constexpr HIPGEMM_DEVICE u32 swizzled_slot(u32 i, u32 slot) {
    return slot ^ (i * smaller(kSlots, kRunLines) / kRunLines);
  }
  static constexpr HIPGEMM_DEVICE u32 offset_in_run(u32 i, u32 slot) {
    return i * kLineBytes + swizzled_slot(i, slot) * kSlotBytes;
  }

  // Every phase of every read meets each bank once.
  static consteval bool free_of_conflicts() {
    for (u32 slot = 0; slot < kSlots; slot++) {
      u64 banks = 0;
      for (u32 i = 0; i < kRunLines; i++)
        for (u32 dword = 0; dword < kSlotBytes / 4; dword++)
          banks |= 1ull << (offset_in_run(i, slot) / 4 + dword) % 64;
      if (banks + 1 != 0) return false;
    }
    return true;
  }
  static_assert(kRunLines * kSlotBytes == 256 && free_of_conflicts());
};

template <class T, class Side>
using LinesOf = LineMap<Side::kPartRows, T::kElementBits / 8>;

// Lanes past the edge of C fetch nothing. K needs no padding: the ragged tile masks its lines. Only
// the dword with the operand's last element may reach past its end.
template <class T, class Side>
class Fetcher<T, Side, Contiguous::across_k> : DmaBlock<T, Side> {
 public:
  // rows: valid rows of this tile (at least 1); ld in elements, from k to k.
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32, const KRange& range,
                         const Place<T>& place) {
    pitch_ = static_cast<u64>(ld) * kElementBytes;
    second_ = range.second;
    base_ = matrix + first_row * kElementBytes - kBias +
            static_cast<u64>(range.origin + second_) * T::kK * pitch_;
    row_bytes_ = rows * kElementBytes;
    for (u32 d = 0; d < Side::kDmas; d++) {
      const u32 at = place.wave * Block::kBytes + d * kDmaBytes + place.lane * kChunkBytes;
      const u32 run = at / Lines::kRunBytes, i = at / Lines::kLineBytes % Lines::kRunLines,
                in_line = at % Lines::kLineBytes;
      const u32 in_row = Lines::swizzled_slot(i, in_line / Lines::kSlotBytes) * Lines::kSlotBytes +
                         in_line % Lines::kSlotBytes;
      k_[d] = Lines::k_of(run, i);
      for (u32 part = 0; part < T::kParts; part++) {
        const u32 row_byte = part * Lines::kLineBytes + in_row;
        lane_offset_[part][d] = row_byte < row_bytes_ ? k_[d] * static_cast<u32>(pitch_) +
                                                            row_byte + kBias - instruction_offset(d)
                                                      : kDmaOutOfRange;
      }
    }
  }

  // The K tile that next() has come to, from the range's second on.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch(LdsByte* block, u32) const {
    // Whole lines, of which this operand has more: only masked lanes are out of range.
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Side::kDmas>([&]<u32 d>() {
      dma<instruction_offset(d)>(buffer, block + group_offset(d), lane_offset_[kPart][d], 0);
    });
  }

  // The same for any K tile, of which only the first `valid` numbers along K exist.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_ragged(LdsByte* block, u32 k_tile, u32 valid) const {
    const u64 tile_bytes = T::kK * pitch_;
    const u32 last_line = (valid - 1) * static_cast<u32>(pitch_);
    const Buffer buffer = make_buffer(base_ + (k_tile - static_cast<u64>(second_)) * tile_bytes,
                                      valid ? last_line + (row_bytes_ + 3) / 4 * 4 + kBias : 0);
    unrolled<Side::kDmas>([&]<u32 d>() {
      dma<instruction_offset(d)>(buffer, block + group_offset(d),
                                 k_[d] < valid ? lane_offset_[kPart][d] : kDmaOutOfRange, 0);
    });
  }

  // A 64-bit base, since K may reach beyond what offsets can count.
  HIPGEMM_DEVICE void next() { base_ += T::kK * pitch_; }

  // Fetches nothing from here on, but writes zeros and counts as usual.
  HIPGEMM_DEVICE void detach_if(bool off) { bytes_ = off ? 0 : bytes_; }

  HIPGEMM_DEVICE void advance(u32, u32) {}

 private:
  using Block = DmaBlock<T, Side>;
  using Block::group_offset;
  using Block::instruction_offset;
  using Block::kBias;
  using Lines = LinesOf<T, Side>;
  static constexpr u32 kElementBytes = T::kElementBits / 8;

  u64 base_, pitch_;
  u32 bytes_ = kDmaOutOfRange;
  u32 second_, row_bytes_;
  u32 lane_offset_[T::kParts][Side::kDmas];
  u32 k_[Side::kDmas];
};

template <class T, class Side>
class Reader<T, Side, Contiguous::across_k> {
 public:
  using Fragments = typename T::Fragment[Side::kFragments][T::kSteps];

  HIPGEMM_DEVICE Reader(LdsByte* lds, const Place<T>& place) {
    const u32 group = place.lane / kFragmentRows, lane = place.lane % kFragmentRows;
    const u32 i = group % 2 * Lines::kGroupLines + lane / Lines::kPieces;
    for (u32 f = 0; f < Side::kFragments; f++) {
      const u32 slot = Side::wave_along(place) * Side::kFragments + f;
      const u32 at = Lines::run(0, group, 0) * Lines::kRunBytes + Lines::offset_in_run(i, slot) +
                     lane % Lines::kPieces * Lines::kReadBytes;
      for (u32 stage = 0; stage < T::kStages; stage++) {
        address_[stage][f] = lds + stage * T::kStageBytes + Block::lds_offset(at);
        // As a whole, or the compiler keeps its summands in registers besides.
        asm("" : "+v"(address_[stage][f]));
      }
    }
  }

  template <u32 kStage, u32 kPart>
  HIPGEMM_DEVICE void read(Fragments& out) const {
    for (u32 f = 0; f < Side::kFragments; f++)
      for (u32 step = 0; step < T::kSteps; step++) {
        struct {
          u32x2 half[T::kFragmentChunks * 2];
        } bits;
        for (u32 h = 0; h < T::kFragmentChunks * 2; h++)
          bits.half[h] = read_transposed<T::kElementBits>(
              address_[kStage][f] + kPart * T::kPartBytes +
              run_offset(Lines::run(step * T::kFragmentChunks + h / 2, 0, h % 2)));
        out[f][step] = __builtin_bit_cast(typename T::Fragment, bits);
      }
  }

  // The same from a stage known only at run time.
  template <u32 kPart>
  HIPGEMM_DEVICE void read(u32 stage, Fragments& out) const {
    Reader at = *this;
    for (u32 f = 0; f < Side::kFragments; f++)
      at.address_[0][f] = address_[0][f] + stage * T::kStageBytes;
    at.template read<0, kPart>(out);
  }

 private:
  using Block = DmaBlock<T, Side>;
  using Lines = LinesOf<T, Side>;

  static constexpr HIPGEMM_DEVICE u32 run_offset(u32 run) {
    static_assert((Block::kBytes & (Block::kBytes - 1)) == 0,
                  "a lane's offset within its run and the run's add up, in blocks as well");
    return Block::lds_offset(run * Lines::kRunBytes) - Block::lds_offset(0);
  }

  LdsByte* address_[T::kStages][Side::kFragments];
};

}  // namespace hipgemm
