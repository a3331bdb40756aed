// Fetching and reading an operand that is contiguous along K.
#pragma once

#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/sides.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// Rows past the operand's end read as zero, since their offset lies past the buffer; the end of a
// row is not the buffer's, so the last, ragged K tile masks its lanes itself.
template <class T, class Side>
class Fetcher<T, Side, Contiguous::along_k> : DmaBlock<T, Side> {
 public:
  // rows: valid rows of this tile (at least 1); ld and k in elements. The last chunk of K is read
  // as a whole: where K ends inside it, the rows are padded with zeros.
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32 k, const KRange& range,
                         const Place<T>& place) {
    constexpr u32 kBits = T::kElementBits;
    const u64 pitch = static_cast<u64>(ld) * kBits / 8;
    const u32 chunks = (k - range.origin * T::kK + T::kChunkElements - 1) / T::kChunkElements;
    base_ = matrix + first_row * pitch + range.origin * kRowBytes - kBias;
    bytes_ = (rows - 1) * static_cast<u32>(pitch) + chunks * kChunkBytes + kBias;
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
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Side::kDmas>([&]<u32 d>() {
      dma<instruction_offset(d)>(buffer, block + group_offset(d),
                                 chunk_[d] * T::kChunkElements < valid
                                     ? lane_offset_[kPart][d] + k_tile * kRowBytes
                                     : kDmaOutOfRange,
                                 0);
    });
  }

  // To the K tile after the last fetched one, which k_offset does.
  HIPGEMM_DEVICE void next() {}

  // Fetches nothing from here on, but writes zeros and counts as usual.
  HIPGEMM_DEVICE void detach_if(bool off) { bytes_ = off ? 0 : bytes_; }

  // This part is fetched `bytes` further along K than k_offset says.
  HIPGEMM_DEVICE void advance(u32 part, u32 bytes) {
    for (u32 d = 0; d < Side::kDmas; d++) lane_offset_[part][d] += bytes;
  }

 private:
  using Block = DmaBlock<T, Side>;
  using Block::group_offset;
  using Block::instruction_offset;
  using Block::kBias;

  u64 base_;
  u32 bytes_;
  u32 lane_offset_[T::kParts][Side::kDmas];
  u32 chunk_[Side::kDmas];
};

template <class T, class Side>
class Reader<T, Side, Contiguous::along_k> {
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
    return DmaBlock<T, Side>::lds_offset(row * kRowBytes);
  }

  LdsByte* address_[T::kStages][T::kColumns];
};

}  // namespace hipgemm
