// Quantized values, with their scales, back to any element type.
#pragma once

#include "common/kargs.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/quantized_tile.hpp"
#include "quantize/store_row.hpp"

// Rows of data and dst are contiguous along the blocks. format, out_type: Format.
// clang-format off
#define HIPGEMM_DequantizeArgs(X)                                                                 \
  X(ptr, data) X(ptr, scale) X(ptr, dst) X(i64, data_pitch) X(i64, scale_row_stride)              \
  X(i64, scale_col_stride) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, format)             \
  X(u32, out_type) X(u32, hadamard)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(DequantizeArgs);

template <class Element, bool kBlocks>
HIPGEMM_DEVICE void dequantize_as(const DequantizeArgs& args) {
  using Map = QuantizedMap<Element>;
  const Map at = Map::of(workgroup_index(), args.rows, args.cols);
  const QuantizedTile<Element> from(args.data, args.data_pitch, at, args.rows, args.cols);
  f32 scales[Map::kIterations];
#pragma unroll
  for (u32 i = 0; i < Map::kIterations; i++) {
    const u32 row = smaller(at.row(i), args.rows - 1);
    const u64 row_scales =
        reinterpret_cast<u64>(args.scale) + row * static_cast<u64>(args.scale_row_stride);
    if constexpr (kBlocks) {
      const u32 block = smaller(at.col(), args.cols - 1) / kBlockValues;
      const u32 byte = *global<u8>(row_scales + block * static_cast<u64>(args.scale_col_stride));
      scales[i] = byte == kNanScale ? __builtin_nanf("") : power_of_two(byte);
    } else {
      scales[i] = *global<f32>(row_scales);
    }
  }
#pragma unroll
  for (u32 i = 0; i < Map::kIterations; i++) {
    Values<Map::kValues> x;
    unpack<Element, Map::kValues>(from.packed[i], x);
    if constexpr (Element::kBits == 4)
      if (args.hadamard) {  // of the elements, which is exact
        hadamard_sums(x);
        scale_values(x, kHadamardFactor);
      }
    for (f32x4& four : x) four *= f32x4(scales[i]);
    store_row(args, at, i, x);
  }
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void dequantize(const DequantizeArgs& args) {
  static_assert(QuantizedMap<E4m3>::is(kThreads, kRows, kCols), "");
  static_assert(QuantizedMap<E2m1>::is(kThreads, kRows, kCols), "");
  static_assert(QuantizedMap<E2m3>::is(kThreads, kRows, kCols), "");
  switch (static_cast<Format>(args.format)) {
#define SCALED_FORMAT(name, code, bits, element, block) \
  case Format::name:                                    \
    return dequantize_as<element, (block) != 0>(args);
#include "common/formats.def"
    default:
      return;
  }
}

}  // namespace hipgemm
