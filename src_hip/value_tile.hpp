// A tile of float32 values in LDS, from a matrix of any type and layout.
#pragma once

#include "element.hpp"
#include "memory.hpp"
#include "narrow.hpp"
#include "types.hpp"

namespace hipgemm {

struct Matrix {
  u64 address;
  i64 row_stride, col_stride;  // bytes
  u32 rows, cols;
};

// 64 x 128 values, zero outside the matrix: one step of the matrix instruction along the columns.
// Threads then take blocks of 32, along rows or down columns.
class ValueTile {
 public:
  static constexpr u32 kRows = 64, kCols = 128, kThreads = 256;
  static constexpr u32 kRowBlocks = kCols / kValues, kColBlocks = kRows / kValues;
  static_assert(kRows * kRowBlocks == kThreads && kCols * kColBlocks == kThreads,
                "each thread takes one block, either way");
  static constexpr u32 kPitch = kCols / 4 + 1;  // in fours; odd, for the sake of columns
  using Lds = f32x4[kRows * kPitch];

  HIPGEMM_DEVICE ValueTile(Lds& lds, u32 tile_row, u32 tile_col)
      : lds_(lds), row0_(tile_row * kRows), col0_(tile_col * kCols) {}

  HIPGEMM_DEVICE void load(const Matrix& from, ElementType type) {
    switch (type) {
      case ElementType::bf16:
        load_as<FromBf16>(from);
        break;
      case ElementType::f16:
        load_as<FromF16>(from);
        break;
      case ElementType::f32:
        load_as<FromF32>(from);
        break;
    }
    sync_workgroup();
  }

  // The thread's row and block along it, and the same down columns; row and column of the matrix.
  static HIPGEMM_DEVICE u32 thread() { return thread_index(); }
  static HIPGEMM_DEVICE u32 row_block() { return thread() % kRowBlocks; }
  static HIPGEMM_DEVICE u32 col_block() { return thread() / kCols; }
  HIPGEMM_DEVICE u32 row() const { return row0_ + thread() / kRowBlocks; }
  HIPGEMM_DEVICE u32 col() const { return col0_ + thread() % kCols; }
  HIPGEMM_DEVICE u32 first_row() const { return row0_; }
  HIPGEMM_DEVICE u32 first_col() const { return col0_; }

  HIPGEMM_DEVICE void read_row_block(Values& out) const {
#pragma unroll
    for (u32 i = 0; i < kValues / 4; i++)
      out[i] = lds_[place(thread() / kRowBlocks, row_block() * (kValues / 4) + i)];
  }
  HIPGEMM_DEVICE void read_col_block(Values& out) const {
    const u32 col = thread() % kCols;
#pragma unroll
    for (u32 i = 0; i < kValues; i++)
      out[i / 4][i % 4] = lds_[place(col_block() * kValues + i, col / 4)][col % 4];
  }

 private:
  // Four values of a row lie together. Every other pair of blocks has its fours exchanged, which
  // spreads the same four of four neighbouring blocks and rows over all banks.
  static HIPGEMM_DEVICE u32 place(u32 row, u32 four) {
    const u32 block = four / (kValues / 4);
    return row * kPitch + (four ^ block / 2 * 4);
  }

  template <class From>
  HIPGEMM_DEVICE void load_as(const Matrix& from) {
    constexpr u32 kBytes = sizeof(typename From::Bits);
    const bool aligned = ((from.address | from.row_stride) & 15) == 0;
    const bool near = static_cast<u64>(from.row_stride) < kOutOfRange / kRows;
    if (from.col_stride == kBytes && aligned && near)
      load_wide<From>(from);
    else if (magnitude(from.col_stride) <= magnitude(from.row_stride))
      load_single<From, true>(from);
    else
      load_single<From, false>(from);
  }

  // 16 bytes at once. No branches: what does not exist lies outside the buffer and reads as zero.
  template <class From>
  HIPGEMM_DEVICE void load_wide(const Matrix& from) {
    using Bits = typename From::Bits;
    constexpr u32 kWide = 16 / sizeof(Bits);  // values of one load
    constexpr u32 kRowLoads = kCols / kWide;
    constexpr u32 kLoads = kRows * kRowLoads / kThreads;
    const u32 rows = smaller(from.rows - smaller(row0_, from.rows), kRows);
    const u32 cols = smaller(from.cols - smaller(col0_, from.cols), kCols);
    const u32 stride = static_cast<u32>(from.row_stride);
    const Buffer buffer = make_buffer(
        from.address + row0_ * static_cast<u64>(stride) + static_cast<u64>(col0_) * sizeof(Bits),
        rows == 0 ? 0 : (rows - 1) * stride + cols * sizeof(Bits));  // the stride may be 0
    const auto offset = [&](u32 row, u32 col, u32 count) {
      return row < rows && col + count <= cols ? row * stride + col * sizeof(Bits) : kOutOfRange;
    };
    u32x4 loaded[kLoads];
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      const u32 at = i * kThreads + thread();
      loaded[i] = load_buffer<u32x4>(buffer, offset(at / kRowLoads, at % kRowLoads * kWide, kWide));
    }
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      const u32 at = i * kThreads + thread();
      const auto bits = __builtin_bit_cast(Vector<Bits, kWide>, loaded[i]);
#pragma unroll
      for (u32 four = 0; four < kWide / 4; four++) {
        f32x4 x;
        for (u32 e = 0; e < 4; e++) x[e] = From::widen(bits[four * 4 + e]);
        lds_[place(at / kRowLoads, at % kRowLoads * (kWide / 4) + four)] = x;
      }
    }
    if (cols % kWide != 0) {
      // The last values of a row are no whole load: one thread for each row.
      sync_workgroup();
      const u32 row = thread(), col = cols / kWide * kWide;
      if (row < kRows)
#pragma unroll
        for (u32 e = 0; e < kWide; e++)
          value(row, col + e) = From::widen(load_buffer<Bits>(buffer, offset(row, col + e, 1)));
    }
  }

  // One value at once, lanes along the smaller stride. No branches: what does not exist is read
  // from the last row or column, and dropped.
  template <class From, bool kAlongRows>
  HIPGEMM_DEVICE void load_single(const Matrix& from) {
    using Bits = typename From::Bits;
    constexpr u32 kLine = kAlongRows ? kCols : kRows;
    constexpr u32 kLoads = kRows * kCols / kThreads;
    const u32 fast = thread() % kLine, slow = thread() / kLine;
    const auto row = [&](u32 i) { return kAlongRows ? slow + i * (kThreads / kLine) : fast; };
    const auto col = [&](u32 i) { return kAlongRows ? fast : slow + i * (kThreads / kLine); };
    u32 loaded[kLoads] = {};
    if (row0_ < from.rows && col0_ < from.cols)
#pragma unroll
      for (u32 i = 0; i < kLoads; i++)
        loaded[i] = *global<Bits>(
            from.address +
            smaller(row0_ + row(i), from.rows - 1) * static_cast<u64>(from.row_stride) +
            smaller(col0_ + col(i), from.cols - 1) * static_cast<u64>(from.col_stride));
#pragma unroll
    for (u32 i = 0; i < kLoads; i++)
      value(row(i), col(i)) =
          row0_ + row(i) < from.rows && col0_ + col(i) < from.cols ? From::widen(loaded[i]) : 0.0f;
  }

  HIPGEMM_DEVICE f32& value(u32 row, u32 col) {
    return reinterpret_cast<f32*>(&lds_[place(row, col / 4)])[col % 4];
  }

  static HIPGEMM_DEVICE u64 magnitude(i64 x) { return x < 0 ? -static_cast<u64>(x) : x; }

  Lds& lds_;
  u32 row0_, col0_;
};

// Codes of a thread, of which the first lies at `first` along an axis of `length`: whole chunks, as
// far as they hold any number. The rest of the last chunk is zero.
template <class Element>
HIPGEMM_DEVICE void store_codes(u64 line, u32 first, u32 length, const Codes<Element>& codes) {
  constexpr u32 kPerChunk = 128 / Element::kBits;
#pragma unroll
  for (u32 c = 0; c < kValues / kPerChunk; c++)
    if (first + c * kPerChunk < length)
      *global<u32x4>(line + (first + c * kPerChunk) * Element::kBits / 8) = codes[c];
}

}  // namespace hipgemm
