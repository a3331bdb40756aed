// A tile of float32 values in LDS, from a matrix of any type and layout.
#pragma once

#include "memory.hpp"
#include "narrow.hpp"
#include "types.hpp"

namespace hipgemm {

template <class E>
using Global = __attribute__((address_space(1))) E;
template <class E>
HIPGEMM_DEVICE Global<E>* global(u64 address) {
  return reinterpret_cast<Global<E>*>(address);
}

// Types that can be widened.
struct FromBf16 {
  using Bits = u16;
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return __builtin_bit_cast(f32, bits << 16); }
};
struct FromF16 {
  using Bits = u16;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    return static_cast<f32>(__builtin_bit_cast(f16, static_cast<u16>(bits)));
  }
};
struct FromF32 {
  using Bits = u32;
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return __builtin_bit_cast(f32, bits); }
};

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
  using Lds = f32x4[kRows * kCols / 4];

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
  static HIPGEMM_DEVICE u32 thread() { return __builtin_amdgcn_workitem_id_x(); }
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
  // Four values of a row lie together. Exchanging these fours within blocks keeps the banks busy
  // when lanes read the same four of neighbouring blocks and rows.
  static HIPGEMM_DEVICE u32 place(u32 row, u32 four) {
    const u32 block = four / (kValues / 4);
    return row * (kCols / 4) + (four ^ (((row ^ row >> 3) & 3) * 2 + block / 2));
  }

  template <class From>
  HIPGEMM_DEVICE void load_as(const Matrix& from) {
    constexpr u32 kBytes = sizeof(typename From::Bits);
    if (from.col_stride == kBytes && ((from.address | from.row_stride) & 15) == 0)
      load_wide<From>(from);
    else if (magnitude(from.col_stride) <= magnitude(from.row_stride))
      load_single<From, true>(from);
    else
      load_single<From, false>(from);
  }

  // 16 bytes at once.
  template <class From>
  HIPGEMM_DEVICE void load_wide(const Matrix& from) {
    using Bits = typename From::Bits;
    constexpr u32 kWide = 16 / sizeof(Bits);  // values of one load
    constexpr u32 kRowLoads = kCols / kWide;
    constexpr u32 kLoads = kRows * kRowLoads / kThreads;
    Vector<Bits, kWide> loaded[kLoads];
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      const u32 at = i * kThreads + thread();
      const u32 row = row0_ + at / kRowLoads, col = col0_ + at % kRowLoads * kWide;
      loaded[i] = {};
      const u64 address = from.address + row * static_cast<u64>(from.row_stride) +
                          static_cast<u64>(col) * sizeof(Bits);
      if (row < from.rows) {
        if (col + kWide <= from.cols)
          loaded[i] = *global<Vector<Bits, kWide>>(address);
        else if (col < from.cols)
          for (u32 e = 0; e < kWide - 1; e++)
            if (col + e < from.cols) loaded[i][e] = global<Bits>(address)[e];
      }
    }
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      const u32 at = i * kThreads + thread();
#pragma unroll
      for (u32 four = 0; four < kWide / 4; four++) {
        f32x4 x;
        for (u32 e = 0; e < 4; e++) x[e] = From::widen(loaded[i][four * 4 + e]);
        lds_[place(at / kRowLoads, at % kRowLoads * (kWide / 4) + four)] = x;
      }
    }
  }

  // One value at once, lanes along the smaller stride.
  template <class From, bool kAlongRows>
  HIPGEMM_DEVICE void load_single(const Matrix& from) {
    using Bits = typename From::Bits;
    constexpr u32 kLine = kAlongRows ? kCols : kRows;
    constexpr u32 kLoads = kRows * kCols / kThreads;
    u32 loaded[kLoads];
    const u32 fast = thread() % kLine, slow = thread() / kLine;
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      const u32 turn = slow + i * (kThreads / kLine);
      const u32 row = row0_ + (kAlongRows ? turn : fast), col = col0_ + (kAlongRows ? fast : turn);
      loaded[i] = 0;
      if (row < from.rows && col < from.cols)
        loaded[i] = *global<Bits>(from.address + row * static_cast<u64>(from.row_stride) +
                                  col * static_cast<u64>(from.col_stride));
    }
#pragma unroll
    for (u32 i = 0; i < kLoads; i++) {
      const u32 turn = slow + i * (kThreads / kLine);
      const u32 row = kAlongRows ? turn : fast, col = kAlongRows ? fast : turn;
      reinterpret_cast<f32*>(&lds_[place(row, col / 4)])[col % 4] = From::widen(loaded[i]);
    }
  }

  static HIPGEMM_DEVICE u64 magnitude(i64 x) { return x < 0 ? -static_cast<u64>(x) : x; }

  Lds& lds_;
  u32 row0_, col0_;
};

}  // namespace hipgemm
