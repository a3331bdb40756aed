// Conversion, sum, product or quotient of matrices, rounded once.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"
#include "quantize/store_row.hpp"
#include "quantize/thread_map.hpp"

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

// Values of a row `stride` bytes apart, which is 0 if they are all the same.
HIPGEMM_DEVICE void load_broadcast(u64 address, i64 stride, u32 count, Format type, Values<8>& x) {
  if (stride == 0) {
    const f32 value = count ? load_element(address, type) : 0.0f;
    for (f32x4& four : x) four = f32x4(value);
    return;
  }
  u32x4 parts[2];
  if (type == Format::f32)
    load_bits<u32>(address, stride, count, parts);
  else
    load_bits<u16>(address, stride, count, parts);
  widen_parts(parts, type, x);
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void elementwise(const ElementwiseArgs& args) {
  using Map = ThreadMap<kRows, kCols, 8, kRows * kCols / kThreads>;
  const u32 tiles = (args.rows + kRows - 1) / kRows * ((args.cols + kCols - 1) / kCols);
  const u64 matrix = workgroup_index() / tiles;
  const Map at = Map::of(workgroup_index() % tiles, args.rows, args.cols);
  const u32 first = at.col(), count = args.cols - smaller(first, args.cols);
  const auto in_type = static_cast<Format>(args.in_type), type = static_cast<Format>(args.out_type);
  Values<8> y;
  for (f32x4& four : y) four = f32x4(args.scalar);
  // A thread's rows one after the other: they share the values of a row that is broadcast.
#pragma unroll 1
  for (u32 i = 0; i < Map::kIterations; i++) {
    const u64 row = at.row(i);
    if (row >= args.rows) return;
    Values<8> x;
    load_broadcast(address_of(args.src) + matrix * args.src_stride + row * args.src_row_stride +
                       first * args.src_col_stride,
                   args.src_col_stride, count, in_type, x);
    if (args.other && (i == 0 || args.other_row_stride != 0))
      load_broadcast(address_of(args.other) + matrix * args.other_stride +
                         row * args.other_row_stride + first * args.other_col_stride,
                     args.other_col_stride, count, static_cast<Format>(args.other_type), y);
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      if (args.operation == 1) x[half] = x[half] + y[half];
      if (args.operation == 2) x[half] = x[half] * y[half];
      if (args.operation == 3) x[half] = x[half] / y[half];
    }
    store_chunk(address_of(args.dst) + matrix * args.dst_stride + row * args.dst_pitch +
                    first * static_cast<u64>(element_bytes(type)),
                type, x, count, args.cols);
  }
}

}  // namespace hipgemm
