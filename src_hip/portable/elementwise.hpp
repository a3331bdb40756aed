// Conversion, sum, product or quotient of matrices, rounded once.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"
#include "quantize/store_row.hpp"
#include "quantize/thread_map.hpp"
#include "quantize/tile_load.hpp"

// dst = src (operation 0), src + other (1), src * other (2) or src / other (3), each for so many
// matrices. Strides are bytes, and 0 where a matrix is broadcast; rows of dst are contiguous.
// other: null for a scalar. Types: Format.
// clang-format off
#define HIPGEMM_ElementwiseArgs(X)                                                                \
  X(ptr, src) X(ptr, other) X(ptr, dst) X(i64, src_stride) X(i64, src_row_stride)                 \
  X(i64, src_col_stride) X(i64, other_stride) X(i64, other_row_stride) X(i64, other_col_stride)   \
  X(i64, dst_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, in_type)                  \
  X(u32, other_type) X(u32, out_type) X(u32, operation) X(f32, scalar)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(ElementwiseArgs);

// An operand: what a thread reads of a row. Strides are bytes, and 0 where it is broadcast.
struct ElementwiseOperand {
  u64 address;  // of the thread's first value in row 0
  i64 row_stride, col_stride;
  Format type;

  HIPGEMM_DEVICE u64 at(u64 row) const { return address + row * row_stride; }
  // Whether rows can be read 16 bytes at a time.
  HIPGEMM_DEVICE bool is_wide() const {
    return col_stride == element_bytes(type) && ((address | row_stride) & 15) == 0;
  }
  // The first `count` of a row's values in any layout, then zeros.
  HIPGEMM_DEVICE void load(u64 row, u32 count, Values<8>& x) const {
    if (col_stride == 0) {
      const f32 value = count ? load_element(at(row), type) : 0.0f;
      for (f32x4& four : x) four = f32x4(value);
      return;
    }
    u32x4 parts[2];
    if (type == Format::f32)
      load_bits<u32>(at(row), col_stride, count, parts);
    else
      load_bits<u16>(at(row), col_stride, count, parts);
    widen_parts(parts, type, x);
  }
};

// kDivides: the code for that is long, and seldom needed.
template <bool kDivides>
HIPGEMM_DEVICE void combine(u32 operation, Values<8>& x, const Values<8>& y) {
#pragma unroll
  for (u32 half = 0; half < 2; half++) {
    if (operation == 1) x[half] = x[half] + y[half];
    if (operation == 2) x[half] = x[half] * y[half];
    if (kDivides && operation == 3) x[half] = x[half] / y[half];
  }
}

// The second operand: a scalar, one row for all, or a matrix.
enum class Second { scalar, row, matrix };

// Whole chunks of aligned rows, both operands of a type: without branches, so that 64 bytes of each
// are in flight before the first is used.
template <class From, Second kSecond, class Map>
HIPGEMM_DEVICE void elementwise_wide(const ElementwiseArgs& args, const ElementwiseOperand& src,
                                     const ElementwiseOperand& other, u64 dst, u32 first_row) {
  constexpr u32 kParts = sizeof(typename From::Bits) / 2, kRows = 4 / kParts;
  const auto type = static_cast<Format>(args.out_type);
  const auto load = [](const ElementwiseOperand& from, u32 row, u32x4(&parts)[kParts])
                        HIPGEMM_INLINE {
#pragma unroll
                          for (u32 i = 0; i < kParts; i++)
                            parts[i] = *global<u32x4>(from.at(row) + i * 16);
                        };
  if (first_row >= args.rows) return;
  u32x4 x[kRows][kParts], y[kRows][kParts];
  if constexpr (kSecond == Second::row) load(other, 0, y[0]);
#pragma unroll 1
  for (u32 begin = 0; begin < Map::kIterations; begin += kRows) {
    const auto row = [&](u32 i) HIPGEMM_INLINE { return first_row + (begin + i) * Map::kRowStep; };
#pragma unroll
    for (u32 i = 0; i < kRows; i++) {
      const u32 existing = smaller(row(i), args.rows - 1);
      load(src, existing, x[i]);
      if constexpr (kSecond == Second::matrix) load(other, existing, y[i]);
    }
#pragma unroll
    for (u32 i = 0; i < kRows; i++) {
      Values<8> values, more;
      for (f32x4& four : more) four = f32x4(args.scalar);
      widen_parts<From>(x[i], values);
      if constexpr (kSecond != Second::scalar)
        widen_parts<From>(y[kSecond == Second::row ? 0 : i], more);
      combine<false>(args.operation, values, more);
      if (row(i) < args.rows)
        store_values<8>(dst + row(i) * args.dst_pitch, type, values, 8, true, true);
    }
  }
}

// A thread's rows one after the other: they share the values of a row that is broadcast.
template <class Map>
HIPGEMM_DEVICE void elementwise_any(const ElementwiseArgs& args, const ElementwiseOperand& src,
                                    const ElementwiseOperand& other, u64 dst, u32 first_row,
                                    u32 count) {
  Values<8> y;
  for (f32x4& four : y) four = f32x4(args.scalar);
#pragma unroll 1
  for (u32 i = 0; i < Map::kIterations; i++) {
    const u32 row = first_row + i * Map::kRowStep;
    if (row >= args.rows) return;
    Values<8> x;
    src.load(row, count, x);
    if (args.other && (i == 0 || other.row_stride != 0)) other.load(row, count, y);
    combine<true>(args.operation, x, y);
    store_chunk(dst + row * args.dst_pitch, static_cast<Format>(args.out_type), x, count,
                args.cols);
  }
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void elementwise(const ElementwiseArgs& args) {
  using Map = ThreadMap<kRows, kCols, 8, kRows * kCols / kThreads>;
  const u32 tiles = (args.rows + kRows - 1) / kRows * ((args.cols + kCols - 1) / kCols);
  const u64 matrix = workgroup_index() / tiles;
  const Map at = Map::of(workgroup_index() % tiles, args.rows, args.cols);
  const u32 first = at.col(), count = args.cols - smaller(first, args.cols);
  const auto operand = [&](void* p, i64 stride, i64 row_stride, i64 col_stride,
                           u32 type) HIPGEMM_INLINE {
    return ElementwiseOperand{address_of(p) + matrix * stride + first * col_stride, row_stride,
                              col_stride, static_cast<Format>(type)};
  };
  const auto src =
      operand(args.src, args.src_stride, args.src_row_stride, args.src_col_stride, args.in_type);
  const auto other = operand(args.other, args.other_stride, args.other_row_stride,
                             args.other_col_stride, args.other_type);
  const auto type = static_cast<Format>(args.out_type);
  const u64 dst = address_of(args.dst) + matrix * args.dst_stride +
                  first * static_cast<u64>(element_bytes(type));
  const bool wide = args.operation != 3 && at.first_col + kCols <= args.cols && src.is_wide() &&
                    ((dst | args.dst_pitch) & 15) == 0 &&
                    (!args.other || (other.is_wide() && other.type == src.type));
  if (!uniform(wide)) return elementwise_any<Map>(args, src, other, dst, at.row(0), count);
  with_type(args.in_type, [&]<class From>(From) HIPGEMM_INLINE {
    const auto run = [&]<Second kSecond>(Static<kSecond>) HIPGEMM_INLINE {
      elementwise_wide<From, kSecond, Map>(args, src, other, dst, at.row(0));
    };
    if (!args.other)
      run(kStatic<Second::scalar>);
    else if (other.row_stride == 0)
      run(kStatic<Second::row>);
    else
      run(kStatic<Second::matrix>);
  });
}

}  // namespace hipgemm
