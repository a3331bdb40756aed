// Fetching operands through registers, where there is no DMA of 16 bytes into LDS. Both majors are
// stored K-major, and read as operand_k_major.hpp does.
#pragma once

#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/operands.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

HIPGEMM_DEVICE void store_lds(LdsByte* to, u32x4 chunk) {
  *(__attribute__((address_space(3))) u32x4*)to = chunk;
}

// K-major: a thread takes chunks of K, eight threads a row.
template <class T, class Operand>
class Fetcher<T, Operand, Major::k, Staging::registers> {
 public:
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32 k, const KRange& range,
                         const ThreadPosition<T>& position) {
    const u64 pitch = static_cast<u64>(ld) * kElementBytes;
    const u32 left = k - range.origin * T::kK;
    base_ = matrix + first_row * pitch + range.origin * Operand::kRowBytes;
    bytes_ = (rows - 1) * static_cast<u32>(pitch) +
             (left + kChunkElements - 1) / kChunkElements * kChunkBytes;
    const u32 thread = position.wave * kWaveLanes + position.lane;
    chunk_ = thread % kRowChunks;
    for (u32 i = 0; i < kLoads; i++) {
      const u32 row = i * kLoadRows + thread / kRowChunks;
      from_[i] = Operand::tile_row(0, row) * static_cast<u32>(pitch) + chunk_ * kChunkBytes;
    }
    to_ = DmaBlock<T, Operand>::lds_offset(
        Operand::lds_offset(thread / kRowChunks, chunk_ * kChunkBytes));
    // One value: else the compiler keeps its summands in registers as well.
    asm("" : "+v"(to_));
  }

  // k_offset: bytes from the start of the row. Disabled, it reads nothing from memory.
  HIPGEMM_DEVICE void fetch(u32 k_offset, bool disabled) {
    const Buffer buffer = make_buffer(base_, disabled ? 0 : bytes_);
    for (u32 i = 0; i < kLoads; i++)
      held_[i] = __builtin_amdgcn_raw_buffer_load_b128(buffer, from_[i], k_offset, 0);
  }

  // The same for any K tile, of which only the first `valid` elements along K exist.
  HIPGEMM_DEVICE void fetch_ragged(u32 k_tile, u32 valid) {
    const Buffer buffer = make_buffer(base_, bytes_);
    for (u32 i = 0; i < kLoads; i++)
      held_[i] = __builtin_amdgcn_raw_buffer_load_b128(
          buffer,
          chunk_ * kChunkElements < valid ? from_[i] + k_tile * Operand::kRowBytes : kOutOfRange, 0,
          0);
  }

  HIPGEMM_DEVICE void store(LdsByte* block) const {
    for (u32 i = 0; i < kLoads; i++) {
      u32x4 chunk = held_[i];
      if constexpr (requires { T::Mfma::replaced(0); })
        for (u32 word = 0; word < 4; word++) chunk[word] = T::Mfma::replaced(chunk[word]);
      store_lds(block + (to_ ^ staged_chunk(i * kLoadRows, 0) * kChunkBytes) +
                    i * (kLoadRows * Operand::kLdsRowBytes),
                chunk);
    }
  }

 private:
  static constexpr u32 kElementBytes = Operand::kElementBits / 8;
  static constexpr u32 kChunkElements = kChunkBytes / kElementBytes;
  static constexpr u32 kRowChunks = Operand::kRowChunks;
  static constexpr u32 kLoads = Operand::kPartRows * kRowChunks / T::kThreads;
  static_assert(kLoads * T::kThreads == Operand::kPartRows * kRowChunks, "whole loads");
  static constexpr u32 kLoadRows = T::kThreads / kRowChunks;
  static_assert(kLoadRows % 8 == 0,
                "rows that far apart differ in one bit of the swizzle, or none");

  u64 base_;
  u32 bytes_, chunk_;
  u32 from_[kLoads], to_;
  u32x4 held_[kLoads];
};

// MN-major: a thread takes a chunk of K of two or four rows, which are contiguous in memory, and
// transposes them. Eight threads take four times as many rows, of two chunks.
template <class T, class Operand>
class Fetcher<T, Operand, Major::mn, Staging::registers> {
 public:
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32, const KRange& range,
                         const ThreadPosition<T>& position) {
    pitch_ = static_cast<u64>(ld) * kElementBytes;
    second_ = range.second;
    base_ = matrix + first_row * kElementBytes +
            static_cast<u64>(range.origin + second_) * T::kK * pitch_;
    row_bytes_ = rows * kElementBytes;
    const u32 thread = position.wave * kWaveLanes + position.lane;
    constexpr u32 kOctets = Operand::kPartRows / kRows / 4;  // of threads, for two chunks
    const u32 row = (thread / 8 % kOctets * 4 + thread % 4) * kRows;
    chunk_ = thread / 8 / kOctets * 2 + thread / 4 % 2;
    const u32 row_byte = Operand::tile_row(0, row) * kElementBytes;
    from_ = row_byte < row_bytes_ ? chunk_ * (kChunkElements * static_cast<u32>(pitch_)) + row_byte
                                  : kDmaOutOfRange;
    for (u32 i = 0; i < kRows; i++)
      to_[i] = DmaBlock<T, Operand>::lds_offset(Operand::lds_offset(row + i, chunk_ * kChunkBytes));
  }

  // The K tile that earlier fetches have advanced to, from the range's second on.
  HIPGEMM_DEVICE void fetch(u32, bool disabled) {
    // All slices of the tile exist: only masked lanes are out of range.
    const Buffer buffer = make_buffer(base_, disabled ? 0 : kDmaOutOfRange);
    for (u32 i = 0; i < kChunkElements; i++) load(buffer, from_, i);
    base_ += T::kK * pitch_;
  }

  // The same for any K tile, of which only the first `valid` elements along K exist.
  HIPGEMM_DEVICE void fetch_ragged(u32 k_tile, u32 valid) {
    const u64 tile_bytes = T::kK * pitch_;
    const u32 last = (valid - 1) * static_cast<u32>(pitch_);
    const Buffer buffer = make_buffer(base_ + (k_tile - static_cast<u64>(second_)) * tile_bytes,
                                      valid ? last + (row_bytes_ + 3) / 4 * 4 : 0);
    for (u32 i = 0; i < kChunkElements; i++)
      load(buffer, chunk_ * kChunkElements + i < valid ? from_ : kDmaOutOfRange, i);
  }

  HIPGEMM_DEVICE void store(LdsByte* block) const {
    constexpr u32 kLow = 0x05040100, kHigh = 0x07060302;  // halves of two words
    for (u32 i = 0; i < kRows; i++) {
      u32x4 chunk;
      for (u32 word = 0; word < 4; word++)
        chunk[word] = __builtin_amdgcn_perm(held_[2 * word + 1][i / 2], held_[2 * word][i / 2],
                                            i % 2 ? kHigh : kLow);
      store_lds(block + to_[i], chunk);
    }
  }

 private:
  static constexpr u32 kElementBytes = Operand::kElementBits / 8;
  static constexpr u32 kChunkElements = kChunkBytes / kElementBytes;
  static constexpr u32 kRows = Operand::kPartRows * Operand::kRowChunks / T::kThreads;
  static_assert(kElementBytes == 2 && (kRows == 2 || kRows == 4) &&
                    kRows * T::kThreads == Operand::kPartRows * Operand::kRowChunks,
                "one chunk of a few rows for each thread");

  HIPGEMM_DEVICE void load(Buffer buffer, u32 from, u32 i) {
    const u32 slice = i * static_cast<u32>(pitch_);
    if constexpr (kRows == 4)
      held_[i] = __builtin_amdgcn_raw_buffer_load_b64(buffer, from, slice, 0);
    else
      held_[i] = __builtin_amdgcn_raw_buffer_load_b32(buffer, from, slice, 0);
  }

  u64 base_, pitch_;
  u32 second_, row_bytes_, chunk_, from_;
  u32 to_[kRows];
  Vector<u32, kRows / 2> held_[kChunkElements];
};

}  // namespace hipgemm
