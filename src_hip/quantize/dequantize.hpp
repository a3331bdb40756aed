// Codes and scales back to numbers, and codes to wider codes.
#pragma once

#include "common/element.hpp"
#include "common/join_lanes.hpp"
#include "common/kargs.hpp"
#include "common/narrow.hpp"
#include "common/types.hpp"
#include "quantize/value_tile.hpp"

namespace hipgemm {

// A thread's values rounded and stored, of which `count` exist. `whole`: all of the tile's do, and
// lines are aligned. Threads of more than 16 bytes each then trade, so that neighbours store
// neighbouring 16 bytes.
template <class Out, u32 kValues>
HIPGEMM_DEVICE void store_values(u64 address, const Values<kValues>& x, u32 count, bool aligned,
                                 bool whole) {
  constexpr u32 kWide = 16 / Out::kBytes, kPieces = kValues / kWide;
  u32x4 pieces[kPieces];
#pragma unroll
  for (u32 v = 0; v < kPieces; v++) {
    if constexpr (Out::kBytes == 4)
      pieces[v] = __builtin_bit_cast(u32x4, x[v]);
    else
      pieces[v] = {Out::pack(x[2 * v].xy), Out::pack(x[2 * v].zw), Out::pack(x[2 * v + 1].xy),
                   Out::pack(x[2 * v + 1].zw)};
  }
  if (whole) {
    exchange(pieces);
    const u32 own = thread_index() % kPieces;
    const u64 together = address - own * (kPieces * 16) + own * 16;
#pragma unroll
    for (u32 v = 0; v < kPieces; v++) *global<u32x4>(together + v * (kPieces * 16)) = pieces[v];
    return;
  }
#pragma unroll
  for (u32 v = 0; v < kPieces; v++) {
    if (aligned && (v + 1) * kWide <= count) {
      *global<u32x4>(address + v * 16) = pieces[v];
      continue;
    }
#pragma unroll
    for (u32 e = 0; e < kWide; e++) {
      if (v * kWide + e >= count) continue;
      if constexpr (Out::kBytes == 4)
        global<u32>(address)[v * kWide + e] = pieces[v][e];
      else
        global<u16>(address)[v * kWide + e] = static_cast<u16>(pieces[v][e / 2] >> e % 2 * 16);
    }
  }
}

// A turn's values in the type of dst, as far as they exist.
template <class T, class Args>
HIPGEMM_DEVICE void store_row(const Args& args, const T& tile, u32 turn,
                              const Values<T::kValues>& x) {
  const u32 row = tile.row(turn), first = tile.col();
  const bool aligned = ((reinterpret_cast<u64>(args.dst) | args.dst_pitch) & 15) == 0;
  const bool whole =
      aligned && tile.first_row + T::kRows <= args.rows && tile.first_col + T::kCols <= args.cols;
  const u32 count = row < args.rows && first < args.cols ? args.cols - first : 0;
  const auto type = static_cast<Format>(args.out_type);
  const u64 to = reinterpret_cast<u64>(args.dst) + row * static_cast<u64>(args.dst_pitch) +
                 static_cast<u64>(first) * element_bytes(type);
  switch (type) {
    case Format::bf16:
      store_values<OutBf16, T::kValues>(to, x, count, aligned, whole);
      break;
    case Format::f16:
      store_values<OutF16, T::kValues>(to, x, count, aligned, whole);
      break;
    case Format::f32:
      store_values<OutF32, T::kValues>(to, x, count, aligned, whole);
      break;
    default:
      break;
  }
}

template <class Element>
using CodeTile = Tile<64, 128, kValuesOf<Element>>;

// The codes of all turns of a thread, in rows of whole chunks: zero where there is no number.
template <class Element>
struct CodeRows {
  using T = CodeTile<Element>;
  Codes turns[T::kTurns];

  HIPGEMM_DEVICE CodeRows(const void* data, i64 pitch, const T& tile, u32 rows, u32 cols) {
    const CodeLine<Element> from(
        reinterpret_cast<u64>(data) + tile.row(0) * static_cast<u64>(pitch), tile.col(), cols);
#pragma unroll
    for (u32 turn = 0; turn < T::kTurns; turn++) {
      turns[turn] = Codes(0);
      if (from.exists && tile.row(turn) < rows)
        turns[turn] = *global<Codes>(from.address + turn * T::kRowStep * static_cast<u64>(pitch));
    }
  }
};

// Every number of e2m1 is one of e4m3: mxfp4 becomes mxfp8 under the same scales.
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void fp4_to_fp8(const Fp4ToFp8Args& args) {
  using T = CodeTile<E2m1>;
  static_assert(T::is(kThreads, kRows, kCols), "");
  const T tile = T::of(workgroup_index(), args.rows, args.cols);
  const CodeRows<E2m1> from(args.src, args.src_pitch, tile, args.rows, args.cols);
#pragma unroll
  for (u32 turn = 0; turn < T::kTurns; turn++) {
    Values<16> x;
    unpack<E2m1, 16>(from.turns[turn], x);
    if (tile.row(turn) >= args.rows || tile.col() >= args.cols) continue;
    const Codes low = pack<E4m3, 8>({x[0], x[1]}), high = pack<E4m3, 8>({x[2], x[3]});
    *global<u32x4>(reinterpret_cast<u64>(args.dst) +
                   tile.row(turn) * static_cast<u64>(args.dst_pitch) +
                   tile.col()) = {low.x, low.y, high.x, high.y};
  }
}

template <class Element, bool kBlocks>
HIPGEMM_DEVICE void dequantize_as(const DequantizeArgs& args) {
  using T = CodeTile<Element>;
  const T tile = T::of(workgroup_index(), args.rows, args.cols);
  const CodeRows<Element> from(args.data, args.data_pitch, tile, args.rows, args.cols);
  f32 scales[T::kTurns];
#pragma unroll
  for (u32 turn = 0; turn < T::kTurns; turn++) {
    const u32 row = smaller(tile.row(turn), args.rows - 1);
    const u64 line =
        reinterpret_cast<u64>(args.scale) + row * static_cast<u64>(args.scale_row_stride);
    if constexpr (kBlocks) {
      const u32 block = smaller(tile.col(), args.cols - 1) / kBlockValues;
      const u32 byte = *global<u8>(line + block * static_cast<u64>(args.scale_col_stride));
      scales[turn] = byte == kNanScale ? __builtin_nanf("") : power_of_two(byte);
    } else {
      scales[turn] = *global<f32>(line);
    }
  }
#pragma unroll
  for (u32 turn = 0; turn < T::kTurns; turn++) {
    Values<T::kValues> x;
    unpack<Element, T::kValues>(from.turns[turn], x);
    for (f32x4& four : x) four *= f32x4(scales[turn]);
    if constexpr (Element::kBits == 4)
      if (args.hadamard) {
        hadamard_sums(x);
        scale_values(x, kHadamardFactor);
      }
    store_row(args, tile, turn, x);
  }
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void dequantize(const DequantizeArgs& args) {
  static_assert(CodeTile<E4m3>::is(kThreads, kRows, kCols), "");
  static_assert(CodeTile<E2m1>::is(kThreads, kRows, kCols), "");
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
