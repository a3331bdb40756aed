// Fetching operands of 8, 6 and 4 bits through registers: stored to LDS as bfloat16, block scales
// applied. Both majors are stored K-major, and read as operand_k_major.hpp does.
#pragma once

#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "gemm/dma.hpp"
#include "gemm/operand_staged.hpp"
#include "gemm/operands.hpp"
#include "gemm/traits.hpp"
#include "gemm/widen.hpp"

namespace hipgemm {

// Where the block scales of a tile of rows are, iteration by iteration (scale_layout.hpp). Without
// block scales all of them are 1.
template <class T>
class ScaleCursor {
 public:
  HIPGEMM_DEVICE ScaleCursor() {}
  // rows: of this tile, from first_row on; rows past the operand's end use another row's scales, or
  // 0.
  HIPGEMM_DEVICE ScaleCursor(u64 scales, u32 step_rows, u32 first_row, u32 rows, u32 k,
                             const KRange& range)
      : base_(scales + static_cast<u64>(first_row) * kUnitSteps),
        step_rows_(step_rows),
        iteration_(range.first_index + count_k_tiles(k, T::kK) % 2),
        rows_(k ? rows : 0) {}

  // Of a row's position and a block.
  HIPGEMM_DEVICE u32 offset(u32 position, u32 block) const {
    return (block * step_rows_ + position) * kUnitSteps;
  }
  // Rows are padded to multiples of `kAligned`.
  template <u32 kAligned>
  HIPGEMM_DEVICE Buffer next(bool disabled) {
    const u32 at = iteration_++, step = at % kUnitSteps;
    const u32 positions = (rows_ + kAligned - 1) / kAligned * kAligned;
    const bool none = disabled || rows_ == 0;
    return make_buffer(
        base_ + static_cast<u64>(at / kUnitSteps) * (step_rows_ * kUnitRowBytes) + step,
        none ? 0 : ((kStepBlocks - 1) * step_rows_ + positions) * kUnitSteps - step);
  }

 private:
  u64 base_;
  u32 step_rows_, iteration_, rows_;
};

HIPGEMM_DEVICE u32 load_scale_byte(Buffer from, u32 offset) {
  return static_cast<u8>(__builtin_amdgcn_raw_buffer_load_b8(from, offset, 0, 0));
}

// K-major: a thread takes blocks of 32 elements; eight lanes take eight rows.
template <class T, class Operand>
class Fetcher<T, Operand, Major::k, Staging::widened> {
 public:
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32 k, const KRange& range,
                         const ThreadPosition<T>& position)
      : widen_{Operand::second()} {
    const u64 pitch = static_cast<u64>(ld) * kBits / 8;
    base_ = matrix + first_row * pitch + range.origin * Operand::kMemoryRowBytes;
    bytes_ = (rows - 1) * static_cast<u32>(pitch) + padded(k - range.origin * T::kK);
    const u32 thread = position.wave * kWaveLanes + position.lane;
    block_ = thread / 8 % kBlocks;
    for (u32 i = 0; i < kUnits; i++) {
      const u32 row = Operand::tile_row(0, first_of(thread) + i * kUnitRows);
      from_[i] = row * static_cast<u32>(pitch) + block_ * kBlockBytes;
    }
    to_ = DmaBlock<T, Operand>::lds_offset(
        Operand::lds_offset(first_of(thread), block_ * kScaleBlock * sizeof(bf16)));
    asm("" : "+v"(to_));  // one value: else the compiler keeps its summands in registers as well
    for (u32& scale : scale_) scale = kNeutralScale;
  }

  HIPGEMM_DEVICE void begin_scales(const ScaleCursor<T>& cursor,
                                   const ThreadPosition<T>& position) {
    scales_ = cursor;
    const u32 thread = position.wave * kWaveLanes + position.lane;
    for (u32 i = 0; i < kUnits; i++) {
      const u32 row = Operand::tile_row(0, first_of(thread) + i * kUnitRows);
      scale_from_[i] = cursor.offset(scale_position(row), block_);
    }
  }

  // k_offset: bytes from the start of the row. Disabled, it reads nothing from memory.
  HIPGEMM_DEVICE void fetch(u32 k_offset, bool disabled) {
    load(k_offset, disabled ? 0 : bytes_, T::kK, disabled);
  }
  // The same for any K tile, of which only the first `valid` elements along K exist.
  HIPGEMM_DEVICE void fetch_ragged(u32 k_tile, u32 valid) {
    load(k_tile * Operand::kMemoryRowBytes, bytes_, valid, false);
  }

  // Whether what is fetched has a block, of any lane, that is not to be widened with its scale.
  HIPGEMM_DEVICE bool is_extreme() const {
    u32 most = 0;
    for (u32 i = 0; i < kUnits; i++) most = larger(most, above_least(scale_[i]));
    if (!any_lane(most > kMostAboveLeast)) [[likely]]
      return false;
    u32 found = 0;
    for (u32 i = 0; i < kUnits; i++) {
      u32 codes = 0;
      for (u32 w = 0; w < kBlockBytes / 4; w++) codes |= word(i, w);
      found |= is_extreme_scale(scale_[i]) ? codes & kMagnitudes : 0;
    }
    return any_lane(found != 0);
  }

  HIPGEMM_DEVICE void store(LdsByte* lds) const {
    for (u32 i = 0; i < kUnits; i++) {
      const u32 exponent = widen_.exponent_of(scale_[i]), nan = nan_of_scale(scale_[i]);
      for (u32 chunk = 0; chunk < kBlockChunks; chunk++) {
        u32x4 wide;
        for (u32 pair = 0; pair < 4; pair++) {
          const u32 at = chunk * 8 + pair * 2;
          wide[pair] = pack_bf16(element(i, at, exponent), element(i, at + 1, exponent), nan);
        }
        store_lds(lds + (to_ ^ chunk * kChunkBytes) + i * (kUnitRows * Operand::kLdsRowBytes),
                  wide);
      }
    }
  }

 private:
  static constexpr u32 kBits = Operand::kMemoryBits;
  static constexpr u32 kBlocks = T::kK / kScaleBlock;  // of a row
  static constexpr u32 kBlockBytes = kScaleBlock * kBits / 8;
  static constexpr u32 kBlockChunks = kScaleBlock * sizeof(bf16) / kChunkBytes;
  static constexpr u32 kLoadBytes =
      kBits == 6 ? 8 : 16;  // no load begins within a padded row's end
  static constexpr u32 kLoads = kBlockBytes / kLoadBytes;
  static constexpr u32 kUnits = Operand::kPartRows * kBlocks / T::kThreads;
  static_assert(kUnits * T::kThreads == Operand::kPartRows * kBlocks, "whole blocks");
  static constexpr u32 kUnitRows = T::kThreads / kBlocks;
  static constexpr u32 kMagnitudes = kBits == 8 ? 0x7f7f7f7f : ~0u;  // zeros may have signs
  static_assert(kUnitRows % kSegmentRows == 0, "rows that far apart have the same swizzle");

  static HIPGEMM_DEVICE u32 first_of(u32 thread) { return thread / 8 / kBlocks * 8 + thread % 8; }
  // The bytes of so many elements, in whole chunks.
  static HIPGEMM_DEVICE u32 padded(u32 elements) {
    return (elements * kBits + 127) / 128 * kChunkBytes;
  }

  HIPGEMM_DEVICE void load(u32 k_offset, u32 bytes, u32 valid, bool disabled) {
    const Buffer buffer = make_buffer(base_, bytes);
    for (u32 i = 0; i < kUnits; i++)
      for (u32 l = 0; l < kLoads; l++) {
        const bool exists = block_ * kBlockBytes + l * kLoadBytes < padded(valid);
        const u32 at = exists ? from_[i] + l * kLoadBytes : kOutOfRange;
        if constexpr (kLoadBytes == 16)
          held_[i][l] = __builtin_amdgcn_raw_buffer_load_b128(buffer, at, k_offset, 0);
        else
          held_[i][l] = __builtin_amdgcn_raw_buffer_load_b64(buffer, at, k_offset, 0);
      }
    if constexpr (T::kScaling == Scaling::blocks) {
      const Buffer scales = scales_.template next<kScaleRows>(disabled);
      for (u32 i = 0; i < kUnits; i++) scale_[i] = load_scale_byte(scales, scale_from_[i]);
    }
  }

  HIPGEMM_DEVICE u32 word(u32 i, u32 w) const {
    constexpr u32 kWords = kLoadBytes / 4;
    return held_[i][w / kWords][w % kWords];
  }
  HIPGEMM_DEVICE f32 element(u32 i, u32 at, u32 exponent) const {
    const u32 bit = at * kBits, w = bit / 32, end = bit % 32 + kBits;
    const u32 code = end <= 32 ? word(i, w) << (32 - end)
                               : __builtin_amdgcn_alignbit(word(i, w + 1), word(i, w), end - 32);
    const f32 x = widen_.element(code, exponent);
    if constexpr (kBits == 8)
      return widen_.with_special(x, widen_.specials(word(i, w)), at % 4);
    else
      return x;
  }

  u64 base_;
  Widening<kBits> widen_;
  ScaleCursor<T> scales_;
  u32 bytes_, block_, to_;
  u32 from_[kUnits], scale_from_[kUnits] = {}, scale_[kUnits];
  Vector<u32, kLoadBytes / 4> held_[kUnits][kLoads];
};

// MN-major, of 8 bits: a thread takes chunks of K of four rows, which are contiguous in memory, and
// transposes them. Eight threads take four times as many rows, of two chunks.
template <class T, class Operand>
class Fetcher<T, Operand, Major::mn, Staging::widened> {
 public:
  HIPGEMM_DEVICE Fetcher(u64 matrix, i64 ld, u32 first_row, u32 rows, u32, const KRange& range,
                         const ThreadPosition<T>& position)
      : widen_{Operand::second()} {
    static_assert(Operand::kMemoryBits == 8);
    pitch_ = static_cast<u64>(ld);
    second_ = range.second;
    base_ = matrix + first_row + static_cast<u64>(range.origin + second_) * T::kK * pitch_;
    rows_ = rows;
    for (u32 i = 0; i < kUnits; i++) {
      const u32 row = row_of(position), column = Operand::tile_row(0, row);
      chunk_[i] = chunk_of(position, i);
      from_[i] = column < rows ? chunk_[i] * (kChunkElements * static_cast<u32>(pitch_)) + column
                               : kDmaOutOfRange;
      for (u32 r = 0; r < kRows; r++)
        to_[i][r] =
            DmaBlock<T, Operand>::lds_offset(Operand::lds_offset(row + r, chunk_[i] * kChunkBytes));
      for (u32& scale : scale_[i]) scale = kNeutralScale;
    }
  }

  HIPGEMM_DEVICE void begin_scales(const ScaleCursor<T>& cursor,
                                   const ThreadPosition<T>& position) {
    scales_ = cursor;
    const u32 column = Operand::tile_row(0, row_of(position));
    for (u32 i = 0; i < kUnits; i++)
      scale_from_[i] = cursor.offset(mn_scale_position(column), chunk_[i] * 8 / kScaleBlock);
  }

  HIPGEMM_DEVICE void fetch(u32, bool disabled) {
    // All slices of the tile exist: only masked lanes are out of range.
    load(make_buffer(base_, disabled ? 0 : kDmaOutOfRange), T::kK, disabled);
    base_ += T::kK * pitch_;
  }
  HIPGEMM_DEVICE void fetch_ragged(u32 k_tile, u32 valid) {
    const u32 last = (valid - 1) * static_cast<u32>(pitch_);
    load(make_buffer(base_ + (k_tile - static_cast<u64>(second_)) * (T::kK * pitch_),
                     valid ? last + (rows_ + 3) / 4 * 4 : 0),
         valid, false);
  }

  HIPGEMM_DEVICE bool is_extreme() const {
    u32 most = 0;
    for (u32 i = 0; i < kUnits; i++)
      for (u32 r = 0; r < kRows; r++) most = larger(most, above_least(scale_[i][r]));
    if (!any_lane(most > kMostAboveLeast)) [[likely]]
      return false;
    u32 found = 0;
    for (u32 i = 0; i < kUnits; i++) {
      u32 codes = 0;
      for (u32 j = 0; j < kChunkElements; j++) codes |= held_[i][j];
      for (u32 r = 0; r < kRows; r++)
        found |= is_extreme_scale(scale_[i][r]) ? codes >> 8 * r & 0x7f : 0;
    }
    return any_lane(found != 0);
  }

  HIPGEMM_DEVICE void store(LdsByte* lds) const {
    for (u32 i = 0; i < kUnits; i++)
      for (u32 r = 0; r < kRows; r++) {
        const u32 exponent = widen_.exponent_of(scale_[i][r]), nan = nan_of_scale(scale_[i][r]);
        u32x4 wide;
        for (u32 pair = 0; pair < 4; pair++)
          wide[pair] = pack_bf16(element(i, pair * 2, r, exponent),
                                 element(i, pair * 2 + 1, r, exponent), nan);
        store_lds(lds + to_[i][r], wide);
      }
  }

 private:
  static constexpr u32 kRows = 4, kChunkElements = 8;
  static constexpr u32 kUnits = Operand::kPartRows * Operand::kRowChunks / (kRows * T::kThreads);
  static_assert(kUnits * kRows * T::kThreads == Operand::kPartRows * Operand::kRowChunks);
  static constexpr u32 kOctets = Operand::kPartRows / kRows / 4;  // of threads, for two chunks

  static HIPGEMM_DEVICE u32 thread_of(const ThreadPosition<T>& position) {
    return position.wave * kWaveLanes + position.lane;
  }
  static HIPGEMM_DEVICE u32 row_of(const ThreadPosition<T>& position) {
    const u32 thread = thread_of(position);
    return (thread / 8 % kOctets * 4 + thread % 4) * kRows;
  }
  static HIPGEMM_DEVICE u32 chunk_of(const ThreadPosition<T>& position, u32 i) {
    const u32 thread = thread_of(position);
    return (thread / 8 + i * (T::kThreads / 8)) / kOctets * 2 + thread / 4 % 2;
  }

  HIPGEMM_DEVICE void load(Buffer buffer, u32 valid, bool disabled) {
    for (u32 i = 0; i < kUnits; i++)
      for (u32 j = 0; j < kChunkElements; j++)
        held_[i][j] = __builtin_amdgcn_raw_buffer_load_b32(
            buffer, chunk_[i] * kChunkElements + j < valid ? from_[i] : kDmaOutOfRange,
            j * static_cast<u32>(pitch_), 0);
    if constexpr (T::kScaling == Scaling::blocks) {
      const Buffer scales = scales_.template next<kMnScaleRows>(disabled);
      for (u32 i = 0; i < kUnits; i++)
        for (u32 r = 0; r < kRows; r++)  // rows one apart are positions four apart
          scale_[i][r] = load_scale_byte(scales, scale_from_[i] + r * 4 * kUnitSteps);
    }
  }
  HIPGEMM_DEVICE f32 element(u32 i, u32 j, u32 row, u32 exponent) const {
    const u32 word = held_[i][j];
    return widen_.with_special(widen_.element(word << (24 - 8 * row), exponent),
                               widen_.specials(word), row);
  }

  u64 base_, pitch_;
  Widening<8> widen_;
  ScaleCursor<T> scales_;
  u32 second_, rows_;
  u32 chunk_[kUnits], from_[kUnits], to_[kUnits][kRows];
  u32 scale_from_[kUnits] = {}, scale_[kUnits][kRows];
  u32 held_[kUnits][kChunkElements];
};

}  // namespace hipgemm
