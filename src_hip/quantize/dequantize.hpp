// Quantized values, with their scales, back to any element type.
#pragma once

#include "common/kargs.hpp"
#include "common/philox.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/quantized_tile.hpp"
#include "quantize/store_row.hpp"

// Rows of data and dst are contiguous along the blocks. format, out_type: Format. Scales of fp8:
// one for each block_rows rows of matrices of matrix_rows rows, and kFp8Block columns; of one byte
// if e8m0. signs_start: the first column's index among the signs, a multiple of 4.
// clang-format off
#define HIPGEMM_DequantizeArgs(X)                                                                 \
  X(ptr, data) X(ptr, scale) X(ptr, dst) X(i64, data_pitch) X(i64, scale_row_stride)              \
  X(i64, scale_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, format)             \
  X(u32, out_type) X(u32, hadamard) X(u32, matrix_rows) X(u32, block_rows) X(u32, e8m0) \
  X(u32, has_signs) X(u32, signs_low) X(u32, signs_high) X(u32, signs_start)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(DequantizeArgs);

// mx: scales of MX blocks.
template <class Element>
HIPGEMM_DEVICE void dequantize_as(const DequantizeArgs& args, bool mx) {
  using Map = QuantizedMap<Element>;
  const Map at = Map::of(workgroup_index(), args.rows, args.cols);
  const QuantizedTile<Element> from(args.data, args.data_pitch, at, args.rows, args.cols);
  const auto blocks_of = [&](u32 rows) HIPGEMM_INLINE {
    return (rows + args.block_rows - 1) / args.block_rows;
  };
  u32 signs = 0;
  if constexpr (Element::kBits == 4)
    if (args.has_signs)
      signs = random_signs<16>(args.signs_start + at.col(), {args.signs_low, args.signs_high});
  const auto address_of_scale = [&](u32 i) HIPGEMM_INLINE {
    u32 row = smaller(at.row(i), args.rows - 1);
    if (!mx && args.block_rows != 1)
      row = row / args.matrix_rows * blocks_of(args.matrix_rows) +
            row % args.matrix_rows / args.block_rows;
    const u32 block = smaller(at.col(), args.cols - 1) / (mx ? kBlockValues : kFp8Block);
    return reinterpret_cast<u64>(args.scale) + row * static_cast<u64>(args.scale_row_stride) +
           block * static_cast<u64>(args.scale_col_stride);
  };
  // All loads, then what uses them.
  const bool of_bytes = mx || args.e8m0;
  u32 loaded[Map::kIterations];
  if (of_bytes)
#pragma unroll
    for (u32 i = 0; i < Map::kIterations; i++) loaded[i] = *global<u8>(address_of_scale(i));
  else
#pragma unroll
    for (u32 i = 0; i < Map::kIterations; i++) loaded[i] = *global<u32>(address_of_scale(i));
#pragma unroll
  for (u32 i = 0; i < Map::kIterations; i++) {
    Values<Map::kValues> x;
    unpack<Element, Map::kValues>(from.packed[i], x);
    if constexpr (Element::kBits == 4)
      if (args.hadamard) {  // of the elements, which is exact
        hadamard_sums(x);
        scale_values(x, kHadamardFactor);
        if (args.has_signs) change_signs(x, signs);
      }
    const f32 scale = !of_bytes                ? __builtin_bit_cast(f32, loaded[i])
                      : loaded[i] == kNanScale ? __builtin_nanf("")
                                               : power_of_two(loaded[i]);
    for (f32x4& four : x) four *= f32x4(scale);
    store_row(args, at, i, x);
  }
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void dequantize(const DequantizeArgs& args) {
  static_assert(QuantizedMap<E4m3>::is(kThreads, kRows, kCols), "");
  static_assert(QuantizedMap<E2m1>::is(kThreads, kRows, kCols), "");
  static_assert(QuantizedMap<E2m3>::is(kThreads, kRows, kCols), "");
  auto element = MfmaFormat::E4m3;
  bool mx = false;
  switch (static_cast<Format>(args.format)) {
#define SCALED_FORMAT(name, code, bits, element_, block) \
  case Format::name:                                     \
    element = MfmaFormat::element_;                      \
    mx = (block) != 0;                                   \
    break;
#include "common/formats.def"
    default:
      return;
  }
  switch (element) {
#define ELEMENT(name, code, bits) \
  case MfmaFormat::name:          \
    return dequantize_as<name>(args, mx);
#include "common/formats.def"
  }
}

}  // namespace hipgemm
