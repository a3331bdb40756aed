// A tile of a matrix of any type and layout, and each thread's values of it.
#pragma once

#include "common/element.hpp"
#include "common/memory.hpp"
#include "common/narrow.hpp"
#include "common/types.hpp"

namespace hipgemm {

struct Matrix {
  u64 address;
  i64 row_stride, col_stride;  // bytes
  u32 rows, cols;
};

inline constexpr u32 kBandTiles = 32;  // tiles, one below the other: Tile::of

// A tile, and which of its values a thread takes, along rows or down columns. A line is a row, or a
// column then. In a turn a thread has kValues that follow each other in a line; kBlockThreads
// neighbours have a block of it, which shares a scale. A round is as many turns as these threads
// are, so that each of them can see to one block.
template <u32 kRows_, u32 kCols_, u32 kValues_, u32 kThreadValues = 32>
struct Tile {
  static constexpr u32 kRows = kRows_, kCols = kCols_, kValues = kValues_;
  static constexpr u32 kThreads = kRows * kCols / kThreadValues, kTurns = kThreadValues / kValues;
  static constexpr u32 kRowThreads = kCols / kValues, kColThreads = kRows / kValues;
  static constexpr u32 kBlockThreads = kBlockValues / kValues, kRounds = kTurns / kBlockThreads;
  static_assert(kTurns % kBlockThreads == 0, "each of a block's threads sees to one of its scales");

  // Whether this is the tile of a row of instances.def.
  static constexpr bool is(u32 threads, u32 rows, u32 cols) {
    return threads == kThreads && rows == kRows && cols == kCols;
  }

  // Room for all values of 16 bits, or for half of those of 32.
  static constexpr u32 kLdsRowChunks = kCols * 2 / 16;
  using Lds = u32x4[kRows * kLdsRowChunks];

  u32 first_row, first_col;

  // The tiles of a matrix in order: row by row or, with a kBand, in bands of so many tiles one
  // below the other, column by column through each band. Workgroups that run at about the same
  // time then write long pieces down columns, and few of them share a row.
  template <u32 kBand = 1>
  static HIPGEMM_DEVICE Tile of(u32 index, u32 rows, u32 cols) {
    const u32 across = (cols + kCols - 1) / kCols, down = (rows + kRows - 1) / kRows;
    if constexpr (kBand == 1) return {index / across * kRows, index % across * kCols};
    const u32 band = index / (across * kBand), at = index - band * (across * kBand);
    const u32 height = smaller(kBand, down - band * kBand);
    u32 row = at % kBand, col = at / kBand;
    if (height != kBand) {  // the last one
      row = at % height;
      col = at / height;
    }
    return {(band * kBand + row) * kRows, col * kCols};
  }

  static HIPGEMM_DEVICE u32 thread() { return thread_index(); }

  // Along rows: where a turn's values begin. Rows of one thread are kRowStep apart, so that
  // neighbouring rows are loaded and stored together, and scales lie together in GEMM order.
  static constexpr u32 kRowStep = 16 / kTurns;
  static HIPGEMM_DEVICE u32 row_in_tile(u32 turn) {
    const u32 line = thread() / kRowThreads;
    return line / kRowStep * 16 + line % kRowStep + turn * kRowStep;
  }
  HIPGEMM_DEVICE u32 row(u32 turn) const { return first_row + row_in_tile(turn); }
  HIPGEMM_DEVICE u32 col() const { return first_col + thread() % kRowThreads * kValues; }

  // Down columns: where this thread's values begin.
  HIPGEMM_DEVICE u32 row() const { return first_row + thread() % kColThreads * kValues; }
};

// Of kernels that go one way only, along rows or down columns.
using OneWayTile = Tile<64, 128, 8>;

// The values of a tile, zero outside the matrix, in registers: as threads take rows and, once
// turned, as they take columns.
template <class From, class T_>
class ValueTile {
 public:
  using T = T_;
  static constexpr u32 kValues = T::kValues;
  const T at;

  HIPGEMM_DEVICE ValueTile(typename T::Lds& lds, const T& at) : at(at), lds_(lds) {}

  // 16 bytes at once where rows lie so; else value by value, and through LDS to their threads.
  HIPGEMM_DEVICE void load(const Matrix& from) {
    const bool aligned = ((from.address | from.row_stride) & 15) == 0;
    const bool near = static_cast<u64>(from.row_stride) < kOutOfRange / T::kRows;
    if (from.col_stride == kBytes && aligned && near) return load_wide(from);
    lds_is_used_ = true;
#pragma unroll
    for (u32 half = 0; half < kHalves; half++) {
      if (half != 0) sync_workgroup();
      if (magnitude(from.col_stride) <= magnitude(from.row_stride))
        load_single<true>(from, half);
      else
        load_single<false>(from, half);
      sync_workgroup();
      each_part(half, [](u32x4& part, u32x4& chunk) HIPGEMM_INLINE { part = chunk; });
    }
  }

  // From rows to columns through LDS, in two steps: what is done with rows goes in between.
  HIPGEMM_DEVICE void begin_transpose() {
    if (lds_is_used_) sync_workgroup();
    put(0);
  }
  HIPGEMM_DEVICE void finish_transpose() {
#pragma unroll
    for (u32 half = 0; half < kHalves; half++) {
      if (half != 0) {
        sync_workgroup();
        put(half);
      }
      sync_workgroup();
#pragma unroll
      for (u32 word = 0; word < kHalfWords; word++)
#pragma unroll
        for (u32 i = 0; i < kValues; i++) {
          const u32 place = word_in_half(word);
          const u32x4& four = chunk(T::thread() % T::kColThreads * kValues, i, place / 4);
          cols_[half * kHalfWords + word][i] = reinterpret_cast<const u32*>(&four)[place % 4];
        }
    }
  }

  // A turn's values of a row, and their greatest magnitude as bits of a float.
  HIPGEMM_DEVICE void read_row(u32 turn, Values<kValues>& out) const {
#pragma unroll
    for (u32 word = 0; word < kValues / kWordValues; word++) {
      const auto values = From::widen_word(loaded_[turn][word / 4][word % 4]);
#pragma unroll
      for (u32 e = 0; e < kWordValues; e++) {
        const u32 i = word * kWordValues + e;
        out[i / 4][i % 4] = values[e];
      }
    }
  }
  HIPGEMM_DEVICE u32 row_greatest(u32 turn) const {
    u32 most = 0;
#pragma unroll
    for (u32 word = 0; word < kValues / kWordValues; word++)
      most = From::greater(most, From::magnitudes(loaded_[turn][word / 4][word % 4]));
    return larger(bits_of(most, 0), bits_of(most, kWordValues - 1));
  }

  // The same of a column, and where it is. A word has kWordValues columns of one row.
  static constexpr u32 kBytes = sizeof(typename From::Bits), kWordValues = 4 / kBytes;
  HIPGEMM_DEVICE void read_col(u32 turn, Values<kValues>& out) const {
#pragma unroll
    for (u32 i = 0; i < kValues; i++)
      out[i / 4][i % 4] = From::widen_word(cols_[turn / kWordValues][i])[turn % kWordValues];
  }
  HIPGEMM_DEVICE u32 col_greatest(u32 turn) const {
    u32 most = 0;
#pragma unroll
    for (u32 i = 0; i < kValues; i++)
      most = From::greater(most, From::magnitudes(cols_[turn / kWordValues][i]));
    return bits_of(most, turn % kWordValues);
  }
  // How far a turn's column is from the first turn's, and where it is.
  static constexpr u32 cols_on(u32 turn) {
    const u32 word = turn / kWordValues;
    return word / kHalfWords * kHalfCols + word % kHalfWords * 4 * kWordValues + turn % kWordValues;
  }
  static HIPGEMM_DEVICE u32 col_in_tile(u32 turn) {
    return word_in_half(0) * kWordValues + cols_on(turn);
  }
  HIPGEMM_DEVICE u32 col(u32 turn) const { return at.first_col + col_in_tile(turn); }

 private:
  using Bits = typename From::Bits;
  // A part is 16 bytes of a turn. LDS has room for half of the columns, if not all.
  static constexpr u32 kParts = kValues * kBytes / 16, kPartValues = 16 / kBytes;
  static constexpr u32 kHalves = T::kCols * kBytes / 16 / T::kLdsRowChunks;
  static constexpr u32 kHalfCols = T::kCols / kHalves, kHalfThreads = T::kRowThreads / kHalves;
  static constexpr u32 kHalfWords = T::kTurns / kWordValues / kHalves;

  // Which word of a row in LDS a thread takes down columns. kColThreads neighbours take the same
  // one, the next ones the next of its chunk; after a chunk's four words come those two chunks on.
  static HIPGEMM_DEVICE u32 word_in_half(u32 word) {
    u32 chunk = T::thread() / (T::kColThreads * 4) * kHalfWords + word;
    if constexpr (kHalfWords == 1) chunk = (chunk & ~3u) | (chunk & 1) << 1 | (chunk >> 1 & 1);
    return chunk * 4 + T::thread() / T::kColThreads % 4;
  }

  // A chunk, 16 bytes of a row in LDS. Rows are whole turns of all banks long, so threads that read
  // down columns would meet in the same ones; therefore chunks trade places (XOR) by a number of
  // the thread that a row is for. A wave reads four words of a chunk in kColThreads rows and, where
  // these are fewer than 16, of chunks two apart: no two of the first eight numbers differ in 2
  // alone. `down`: a constant number of rows from `row` on, with which it shares no bits.
  HIPGEMM_DEVICE u32x4& chunk(u32 row, u32 down, u32 at) const {
    const auto exchange = [](u32 thread) HIPGEMM_INLINE {
      return (thread ^ (thread & 2) << 2) & (T::kLdsRowChunks - 1);
    };
    const u32 moved = at ^ exchange(row / kValues);
    return lds_[row * T::kLdsRowChunks + (moved ^ exchange(down / kValues)) +
                down * T::kLdsRowChunks];
  }

  // f(part, its chunk) if this thread's values are in this half.
  template <class F>
  HIPGEMM_DEVICE void each_part(u32 half, F f) {
    if (T::thread() % T::kRowThreads / kHalfThreads != half) return;
#pragma unroll
    for (u32 turn = 0; turn < T::kTurns; turn++)
#pragma unroll
      for (u32 part = 0; part < kParts; part++)
        f(loaded_[turn][part],
          chunk(T::row_in_tile(0), turn * T::kRowStep, T::thread() % kHalfThreads * kParts + part));
  }
  HIPGEMM_DEVICE void put(u32 half) {
    each_part(half, [](u32x4& part, u32x4& chunk) HIPGEMM_INLINE { chunk = part; });
  }

  // The bits of one of the values that a word has.
  static HIPGEMM_DEVICE u32 bits_of(u32 word, u32 e) {
    const f32 value = From::widen_word(word)[e];
    return __builtin_bit_cast(u32, value);
  }

  HIPGEMM_DEVICE void load_wide(const Matrix& from) {
    const u32 rows = smaller(from.rows - smaller(at.first_row, from.rows), T::kRows);
    const u32 cols = smaller(from.cols - smaller(at.first_col, from.cols), T::kCols);
    const u32 stride = static_cast<u32>(from.row_stride);
    const u32 col = T::thread() % T::kRowThreads * kValues;
    const u64 first = from.address + at.first_row * static_cast<u64>(stride) +
                      static_cast<u64>(at.first_col) * kBytes;
    if (rows == T::kRows && cols == T::kCols) {
      const u32 own = T::row_in_tile(0) * stride + col * kBytes;
#pragma unroll
      for (u32 turn = 0; turn < T::kTurns; turn++)
#pragma unroll
        for (u32 part = 0; part < kParts; part++)
          loaded_[turn][part] =
              *global<u32x4>(first + turn * T::kRowStep * stride + own + part * 16);
      return;
    }
    // No branches: what does not exist lies outside the buffer and reads as zero.
    const Buffer buffer = make_buffer(
        first, rows == 0 ? 0 : (rows - 1) * stride + cols * kBytes);  // strides may be 0
    const auto offset = [&](u32 row, u32 col, u32 count) HIPGEMM_INLINE {
      return row < rows && col + count <= cols ? row * stride + col * kBytes : kOutOfRange;
    };
#pragma unroll
    for (u32 turn = 0; turn < T::kTurns; turn++)
#pragma unroll
      for (u32 part = 0; part < kParts; part++)
        loaded_[turn][part] = load_buffer<u32x4>(
            buffer, offset(T::row_in_tile(turn), col + part * kPartValues, kPartValues));
    if (cols % kPartValues == 0) return;
    // The last values of a row are no whole part.
#pragma unroll
    for (u32 part = 0; part < kParts; part++) {
      const u32 first = col + part * kPartValues;
      if (first >= cols || first + kPartValues <= cols) continue;
#pragma unroll
      for (u32 turn = 0; turn < T::kTurns; turn++)
#pragma unroll
        for (u32 e = 0; e < kPartValues; e++)
          loaded_[turn][part][e / kWordValues] |=
              load_buffer<Bits>(buffer, offset(T::row_in_tile(turn), first + e, 1))
              << e % kWordValues * 16;
    }
  }

  // One value at once into LDS, lanes along the smaller stride. No branches: what does not exist is
  // read from the last row or column, and dropped.
  template <bool kAlongRows>
  HIPGEMM_DEVICE void load_single(const Matrix& from, u32 half) {
    constexpr u32 kLine = kAlongRows ? kHalfCols : T::kRows;
    constexpr u32 kLoads = T::kRows * kHalfCols / T::kThreads, kTogether = 8;
    const u32 first_col = at.first_col + half * kHalfCols;
    const u32 fast = T::thread() % kLine, slow = T::thread() / kLine;
    const auto line = [&](u32 i) HIPGEMM_INLINE { return slow + i * (T::kThreads / kLine); };
    const bool none = at.first_row >= from.rows || first_col >= from.cols;
#pragma unroll 1
    for (u32 begin = 0; begin < kLoads; begin += kTogether) {
      Bits loaded[kTogether] = {};
#pragma unroll
      for (u32 i = 0; i < kTogether; i++) {
        const u32 row = at.first_row + (kAlongRows ? line(begin + i) : fast);
        const u32 col = first_col + (kAlongRows ? fast : line(begin + i));
        if (none) continue;
        loaded[i] = *global<Bits>(from.address +
                                  smaller(row, from.rows - 1) * static_cast<u64>(from.row_stride) +
                                  smaller(col, from.cols - 1) * static_cast<u64>(from.col_stride));
        if (row >= from.rows || col >= from.cols) loaded[i] = 0;
      }
#pragma unroll
      for (u32 i = 0; i < kTogether; i++) {
        const u32 row = kAlongRows ? line(begin + i) : fast;
        const u32 col = kAlongRows ? fast : line(begin + i);
        reinterpret_cast<Bits*>(&chunk(row, 0, col / kPartValues))[col % kPartValues] = loaded[i];
      }
    }
  }

  static HIPGEMM_DEVICE u64 magnitude(i64 x) { return x < 0 ? -static_cast<u64>(x) : x; }

  typename T::Lds& lds_;
  bool lds_is_used_ = false;
  u32x4 loaded_[T::kTurns][kParts];
  u32 cols_[T::kTurns / kWordValues][kValues];
};

// f.operator()<From>() for the type of a matrix, of 16 bits or of any.
template <class F>
HIPGEMM_DEVICE void with_16bit_type(u32 type, F f) {
  if (static_cast<Format>(type) == Format::bf16)
    f.template operator()<FromBf16>();
  else
    f.template operator()<FromF16>();
}
template <class F>
HIPGEMM_DEVICE void with_type(u32 type, F f) {
  if (static_cast<Format>(type) == Format::f32)
    f.template operator()<FromF32>();
  else
    with_16bit_type(type, f);
}

// Where a thread has codes in a line of them: those of the values from `first` on, of `length`.
// Chunks of 16 bytes exist whole if they hold any.
template <class Element>
struct CodeLine {
  static constexpr u32 kPerChunk = 128 / Element::kBits;
  u64 address;
  bool exists;

  HIPGEMM_DEVICE CodeLine(u64 line, u32 first, u32 length)
      : address(line + first / (8 / Element::kBits)),  // first * kBits may pass 2^32
        exists(first / kPerChunk * kPerChunk < length) {}
};

}  // namespace hipgemm
