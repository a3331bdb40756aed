// Codes and scales back to numbers, and codes to wider codes.
#pragma once

#include "element.hpp"
#include "kargs.hpp"
#include "narrow.hpp"
#include "types.hpp"
#include "value_tile.hpp"

namespace hipgemm {

#pragma clang fp contract(off)

enum class QuantizedFormat : u32 { fp8_e4m3, fp8_e5m2, mxfp8_e4m3, mxfp8_e5m2, mxfp4_e2m1 };

// A thread's values, of which `count` exist, rounded and stored: 16 bytes at once where that fits.
template <class Out>
HIPGEMM_DEVICE void store_values(u64 address, const Values& x, u32 count, bool aligned) {
  constexpr u32 kWide = 16 / Out::kBytes;
#pragma unroll
  for (u32 v = 0; v < kValues / kWide; v++) {
    u32x4 bits;
    if constexpr (Out::kBytes == 4) {
      bits = __builtin_bit_cast(u32x4, x[v]);
    } else {
      const f32x4 low = x[2 * v], high = x[2 * v + 1];
      bits = {Out::pack(low.xy), Out::pack(low.zw), Out::pack(high.xy), Out::pack(high.zw)};
    }
    if (aligned && (v + 1) * kWide <= count) {
      *global<u32x4>(address + v * 16) = bits;
    } else {
#pragma unroll
      for (u32 e = 0; e < kWide; e++) {
        if (v * kWide + e >= count) continue;
        if constexpr (Out::kBytes == 4)
          global<u32>(address)[v * kWide + e] = bits[e];
        else
          global<u16>(address)[v * kWide + e] = static_cast<u16>(bits[e / 2] >> e % 2 * 16);
      }
    }
  }
}

// Values from (row, first) on, in the type of dst.
template <class Args>
HIPGEMM_DEVICE void store_row(const Args& args, u32 row, u32 first, const Values& x) {
  const u32 count = args.cols - first;
  const auto type = static_cast<ElementType>(args.out_type);
  const u64 to = reinterpret_cast<u64>(args.dst) + row * static_cast<u64>(args.dst_pitch) +
                 static_cast<u64>(first) * element_bytes(type);
  const bool aligned = ((reinterpret_cast<u64>(args.dst) | args.dst_pitch) & 15) == 0;
  switch (type) {
    case ElementType::bf16:
      store_values<OutBf16>(to, x, count, aligned);
      break;
    case ElementType::f16:
      store_values<OutF16>(to, x, count, aligned);
      break;
    case ElementType::f32:
      store_values<OutF32>(to, x, count, aligned);
      break;
  }
}

template <class Element>
HIPGEMM_DEVICE void load_values(u64 line, u32 first, u32 length, Values& out) {
  constexpr u32 kPerChunk = 128 / Element::kBits;
  Codes<Element> codes;
#pragma unroll
  for (u32 c = 0; c < kValues / kPerChunk; c++) {
    codes[c] = u32x4(0);
    if (first + c * kPerChunk < length)
      codes[c] = *global<u32x4>(line + (first + c * kPerChunk) * Element::kBits / 8);
  }
  unpack<Element>(codes, out);
}

// A thread's place in an array of which each workgroup takes a tile.
struct BlockPlace {
  u32 row, first;

  HIPGEMM_DEVICE explicit BlockPlace(u32 cols) {
    const u32 across = (cols + ValueTile::kCols - 1) / ValueTile::kCols;
    const u32 tile = workgroup_index();
    row = tile / across * ValueTile::kRows + ValueTile::thread() / ValueTile::kRowBlocks;
    first = tile % across * ValueTile::kCols + ValueTile::row_block() * kValues;
  }
};

// Every number of e2m1 is one of e4m3: mxfp4 becomes mxfp8 under the same scales.
template <u32 kThreads>
HIPGEMM_DEVICE void fp4_to_fp8(const Fp4ToFp8Args& args) {
  const auto [row, first] = BlockPlace(args.cols);
  if (row >= args.rows || first >= args.cols) return;
  Values x;
  load_values<E2m1>(reinterpret_cast<u64>(args.src) + row * static_cast<u64>(args.src_pitch), first,
                    args.cols, x);
  Codes<E4m3> codes;
  pack<E4m3>(x, codes);
  store_codes<E4m3>(reinterpret_cast<u64>(args.dst) + row * static_cast<u64>(args.dst_pitch), first,
                    args.cols, codes);
}

template <u32 kThreads>
HIPGEMM_DEVICE void dequantize(const DequantizeArgs& args) {
  const auto [row, first] = BlockPlace(args.cols);
  if (row >= args.rows || first >= args.cols) return;

  const auto format = static_cast<QuantizedFormat>(args.format);
  const u64 line = reinterpret_cast<u64>(args.data) + row * static_cast<u64>(args.data_pitch);
  const u64 scale_line =
      reinterpret_cast<u64>(args.scale) + row * static_cast<u64>(args.scale_row_stride);
  Values x;
  if (format == QuantizedFormat::mxfp4_e2m1)
    load_values<E2m1>(line, first, args.cols, x);
  else if (format == QuantizedFormat::fp8_e5m2 || format == QuantizedFormat::mxfp8_e5m2)
    load_values<E5m2>(line, first, args.cols, x);
  else
    load_values<E4m3>(line, first, args.cols, x);

  f32 scale;
  if (format == QuantizedFormat::fp8_e4m3 || format == QuantizedFormat::fp8_e5m2) {
    scale = *global<f32>(scale_line);
  } else {
    const u32 byte =
        *global<u8>(scale_line + first / kValues * static_cast<u64>(args.scale_col_stride));
    scale = byte == kNanScale ? __builtin_nanf("") : power_of_two(byte);
  }
  for (f32x4& four : x) four *= f32x4(scale);
  if (args.hadamard) hadamard(x);

  store_row(args, row, first, x);
}

}  // namespace hipgemm
