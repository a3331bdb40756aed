// Fetching and reading a K-major operand.
#pragma once

#include "common/swizzle.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/operands.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// Rows past the operand's end read as zero, since their offset lies past the buffer; the buffer
// does not end where a row does, so the last, ragged K tile masks its lanes itself.
template <class T, class Operand>
class Fetcher<T, Operand, Major::k, Staging::dma> : DmaBlock<T, Operand> {
 public:
  // rows: valid rows of this tile (at least 1); ld and k in elements. The last chunk of K is read
  // as a whole: where K ends inside it, the rows are padded with zeros.
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32 k, const KRange& range,
                         const ThreadPosition<T>& position) {
    constexpr u32 kBits = Operand::kElementBits;
    const u64 pitch = static_cast<u64>(ld) * kBits / 8;
    const u32 chunks = chunks_of(k - range.origin * T::kK);
    base_ = matrix + first_row * pitch + range.origin * kRowBytes - kBias;
    bytes_ = (rows - 1) * static_cast<u32>(pitch) + chunks * kChunkBytes + kBias;
    const u32 slot = position.lane % kRowChunks;
    for (u32 d = 0; d < Operand::kDmas; d++) {
      const u32 row = position.wave * Operand::kBlockRows + d * Operand::kRowsPerDma +
                      position.lane / kRowChunks;
      const u32 chunk = Operand::swizzled(row, slot);
      chunk_[d] = Operand::memory_chunk(chunk);
      const bool none = Operand::is_spare(row, chunk);
      if (none) chunk_[d] = kNoChunk;
      for (u32 part = 0; part < T::kParts; part++) {
        lane_offset_[part][d] = Operand::tile_row(part, row) * static_cast<u32>(pitch) +
                                chunk_[d] * kChunkBytes + Operand::memory_shift(row, chunk) +
                                kBias - instruction_offset(d);
        if (none) lane_offset_[part][d] = kDmaOutOfRange;
      }
    }
  }

  // block: this wave's block of the part and stage. k_offset: bytes from the start of the row.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch(Index<kPart>, LdsByte* block, u32 k_offset) const {
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Operand::kDmas>([&]<u32 d>(Index<d>) {
      dma<instruction_offset(d)>(buffer, block + group_offset(d), lane_offset_[kPart][d], k_offset);
    });
  }

  // The same for any K tile, of which only the first `valid` elements along K exist.
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_ragged(Index<kPart>, LdsByte* block, u32 k_tile, u32 valid) const {
    const Buffer buffer = make_buffer(base_, bytes_);
    unrolled<Operand::kDmas>([&]<u32 d>(Index<d>) {
      dma<instruction_offset(d)>(buffer, block + group_offset(d),
                                 Operand::chunk_element(chunk_[d]) < valid
                                     ? lane_offset_[kPart][d] + k_tile * kRowBytes
                                     : kDmaOutOfRange,
                                 0);
    });
  }

  // To the next K tile: k_offset says which that is.
  HIPGEMM_DEVICE void next() {}

  // Disabled, it reads nothing more from memory; it writes zeros, and waits count it as before.
  HIPGEMM_DEVICE void disable_if(bool off) { bytes_ = off ? 0 : bytes_; }

  // This part is fetched so many tiles further along K than k_offset says.
  HIPGEMM_DEVICE void advance(u32 part, u32 tiles) {
    for (u32 d = 0; d < Operand::kDmas; d++) lane_offset_[part][d] += tiles * kRowBytes;
  }

 private:
  using Block = DmaBlock<T, Operand>;
  using Block::group_offset;
  using Block::instruction_offset;
  using Block::kBias;
  static constexpr u32 kRowBytes = Operand::kRowBytes, kRowChunks = Operand::kRowChunks;
  static constexpr u32 kNoChunk = 1u << 20;  // past any K tile

  // The chunks that hold so many elements of a row.
  static HIPGEMM_DEVICE u32 chunks_of(u32 elements) {
    if constexpr (Operand::kElementBits == 6) return (elements * 3 + 63) / 64;
    constexpr u32 kChunkElements = kChunkBytes * 8 / Operand::kElementBits;
    return (elements + kChunkElements - 1) / kChunkElements;
  }

  u64 base_;
  u32 bytes_;
  u32 lane_offset_[T::kParts][Operand::kDmas];
  u32 chunk_[Operand::kDmas];
};

template <class T, class Operand>
class Reader<T, Operand, Major::k> {
 public:
  using Fragments = typename Operand::Fragment[Operand::kFragments][T::kSteps];

  HIPGEMM_DEVICE Reader(LdsByte* lds, const ThreadPosition<T>& position) {
    const u32 row = Operand::wave_index(position) * (Operand::kFragments * T::kFragmentRows) +
                    position.lane % T::kFragmentRows;
    for (u32 stage = 0; stage < T::kStages; stage++)
      for (u32 read = 0; read < kReads; read++) {
        const u32 byte = Operand::read_offset(row, position.lane / T::kFragmentRows, read);
        address_[stage][read] = lds + stage * T::kStageBytes + row_offset(row) +
                                (Operand::lds_offset(row, byte) - row * Operand::kLdsRowBytes);
        // One value: else the compiler keeps its summands in registers as well.
        asm("" : "+v"(address_[stage][read]));
      }
  }

  template <u32 kStage, u32 kPart>
  HIPGEMM_DEVICE void read(Index<kStage>, Index<kPart>, Fragments& out) const {
    for (u32 f = 0; f < Operand::kFragments; f++)
      for (u32 step = 0; step < T::kSteps; step++) {
        const auto at = [&](u32 r) HIPGEMM_INLINE {
          return address_[kStage][step * Operand::kFragmentReads + r] + kPart * T::kPartBytes +
                 (row_offset(f * T::kFragmentRows) - row_offset(0));
        };
        if constexpr (Operand::kIsSplit) {
          const auto chunk = load<kChunkBytes>(at(0));
          const auto rest = load<8>(at(1));
          if (step % 2 == 0)
            out[f][step] = {chunk.x, chunk.y, chunk.z, chunk.w, rest.x, rest.y};
          else
            out[f][step] = {rest.x, rest.y, chunk.x, chunk.y, chunk.z, chunk.w};
        } else {
          struct {
            Vector<int, Operand::kReadBytes / 4> read[Operand::kFragmentReads];
          } bits;
          for (u32 r = 0; r < Operand::kFragmentReads; r++)
            bits.read[r] = load<Operand::kReadBytes>(at(r));
          if constexpr (Operand::kElementBits == 6) {
            const auto& r = bits.read;  // a vector of 6 is larger than its elements
            out[f][step] = {r[0].x, r[0].y, r[1].x, r[1].y, r[2].x, r[2].y};
          } else {
            out[f][step] = __builtin_bit_cast(typename Operand::Fragment, bits);
          }
        }
      }
  }

  // The same for a stage known only at run time.
  template <u32 kPart>
  HIPGEMM_DEVICE void read(u32 stage, Index<kPart> part, Fragments& out) const {
    Reader at = *this;
    for (u32 read = 0; read < kReads; read++)
      at.address_[0][read] = address_[0][read] + stage * T::kStageBytes;
    at.read(kIndex<0>, part, out);
  }

 private:
  static constexpr u32 kReads = Operand::kReads;
  // Volatile: the compiler would join reads of 8 bytes of two fragments into one instruction, whose
  // results it would have to move.
  template <u32 kBytes>
  static HIPGEMM_DEVICE Vector<int, kBytes / 4> load(const LdsByte* at) {
    using Lds = __attribute__((address_space(3))) Vector<int, kBytes / 4>;
    if constexpr (kBytes == 8)
      return *reinterpret_cast<const volatile Lds*>(at);
    else
      return *reinterpret_cast<const Lds*>(at);
  }

  static constexpr HIPGEMM_DEVICE u32 row_offset(u32 row) {
    return DmaBlock<T, Operand>::lds_offset(row * Operand::kLdsRowBytes);
  }

  LdsByte* address_[T::kStages][kReads];
};

}  // namespace hipgemm
