// Quantizers, and the way back. A workgroup takes a tile, a thread 32 values of it.
#pragma once

#include "element.hpp"
#include "kargs.hpp"
#include "memory.hpp"
#include "narrow.hpp"
#include "scale_layout.hpp"
#include "scale_pack.hpp"
#include "types.hpp"
#include "value_tile.hpp"

namespace hipgemm {

// Values are rounded where the rules say so, and nowhere else.
#pragma clang fp contract(off)

struct TileAt {
  u32 row, col;
  HIPGEMM_DEVICE explicit TileAt(u32 covered_cols) {
    const u32 across = (covered_cols + ValueTile::kCols - 1) / ValueTile::kCols;
    const u32 tile = workgroup_index();
    row = tile / across;
    col = tile % across;
  }
};

HIPGEMM_DEVICE u64 address_of(const void* p) { return reinterpret_cast<u64>(p); }

// ---- one scale for a tensor or a row

// Max-accumulates magnitudes into floats, as bits: step 0 into one, 1 into one of each row. First
// in LDS: one atomic operation of the workgroup for each float.
HIPGEMM_DEVICE void accumulate_greatest(void* into, u32 step, const Values& x,
                                        const ValueTile& tile, u32 rows,
                                        u32 (&most)[ValueTile::kRows]) {
  const u32 thread = ValueTile::thread();
  if (thread < ValueTile::kRows) most[thread] = 0;
  sync_workgroup();
  atomic_max_in_workgroup(&most[step ? thread / ValueTile::kRowBlocks : 0], greatest(x));
  sync_workgroup();
  const u32 row = tile.first_row() + thread;
  if (thread < (step ? ValueTile::kRows : 1) && row < rows)
    atomic_max_in_device(global<u32>(address_of(into)) + (step ? row : 0), most[thread]);
}

template <u32 kThreads>
HIPGEMM_DEVICE void amax(const AmaxArgs& args) {
  static_assert(kThreads == ValueTile::kThreads, "");
  static __shared__ ValueTile::Lds lds;
  static __shared__ u32 most[ValueTile::kRows];
  const TileAt at(args.cols);
  ValueTile tile(lds, at.row, at.col);
  tile.load({address_of(args.src), args.src_row_stride, args.src_col_stride, args.rows, args.cols},
            static_cast<ElementType>(args.in_type));
  Values x;
  tile.read_row_block(x);
  accumulate_greatest(args.amax, args.amax_step, x, tile, args.rows, most);
}

template <class Element>
HIPGEMM_DEVICE f32 quantize_by_amax(Values& x, f32 amax, f32 eps, Codes<Element>& out) {
  const f32 total = amax + eps;
  const f32 scale = total / Element::kMax;
  // Nothing of such a tensor is left but signs.
  const bool vanished = scale == 0;
  const bool tiny = total < 0x1p-100f && !vanished;  // kMax / total might overflow
  const f32 up = vanished ? 0.0f : Element::kMax / total;
#pragma unroll
  for (u32 i = 0; i < kValues / 4; i++) {
    const f32x4 scaled = tiny ? x[i] / f32x4(total) * f32x4(Element::kMax) : x[i] * f32x4(up);
    const f32x4 clipped = clip<Element>(scaled);
    // A NaN of x is kept as it is: machines differ in the sign that a product of it has.
    for (u32 e = 0; e < 4; e++)
      x[i][e] = scaled[e] == scaled[e] ? clipped[e] : x[i][e] == x[i][e] ? scaled[e] : x[i][e];
  }
  pack<Element>(x, out);
  // An amax that is NaN or infinite leaves nothing, visibly.
  if ((__builtin_bit_cast(u32, total) & kMagnitude) >= kInfinity) {
    for (u32x4& word : out) word = u32x4(0x7f7f7f7f);
    return __builtin_nanf("");
  }
  return vanished ? 1.0f : scale;
}

// Of the four threads of a row one loads.
HIPGEMM_DEVICE f32 load_amax(const QuantizeFp8Args& args, u32 row) {
  if (!args.amax_step) return load_scalar(args.amax);
  static_assert(ValueTile::kRowBlocks == 4, "threads of a row are a quad");
  f32 amax = 0;
  if (ValueTile::row_block() == 0 && row < args.rows)
    amax = global<f32>(address_of(args.amax))[row];
  return __builtin_bit_cast(f32, first_of_quad(__builtin_bit_cast(u32, amax)));
}

template <class Element>
HIPGEMM_DEVICE void quantize_fp8_tile(const QuantizeFp8Args& args, const ValueTile& tile,
                                      Values& x) {
  const u32 row = tile.row();
  Codes<Element> codes;
  const f32 scale = quantize_by_amax<Element>(x, load_amax(args, row), args.eps, codes);
  if (row >= args.rows) return;
  const u32 col = tile.first_col() + ValueTile::row_block() * kValues;
  store_codes<Element>(address_of(args.dst) + row * static_cast<u64>(args.dst_pitch), col,
                       args.cols, codes);
  if (col == 0 && (args.amax_step || row == 0))
    global<f32>(address_of(args.scale))[args.amax_step ? row : 0] = scale;
}

template <u32 kThreads>
HIPGEMM_DEVICE void quantize_fp8(const QuantizeFp8Args& args) {
  static __shared__ ValueTile::Lds lds;
  static __shared__ u32 most[ValueTile::kRows];
  const TileAt at(args.cols);
  ValueTile tile(lds, at.row, at.col);
  tile.load({address_of(args.src), args.src_row_stride, args.src_col_stride, args.rows, args.cols},
            static_cast<ElementType>(args.in_type));
  Values x;
  tile.read_row_block(x);
  if (args.next) accumulate_greatest(args.next, args.amax_step, x, tile, args.rows, most);
  if (args.element == static_cast<u32>(Narrow::e5m2))
    quantize_fp8_tile<E5m2>(args, tile, x);
  else
    quantize_fp8_tile<E4m3>(args, tile, x);
}

// ---- one scale for 32 values

// Where the result of one direction goes. A line is a row of it, K runs along the blocks.
struct BlockedOutput {
  void *data, *scale, *gemm_scale;
  i64 pitch, scale_pitch;
  u32 lines, k;

  // `line`, and the block that begins at `first`.
  template <class Element>
  HIPGEMM_DEVICE void store(u32 line, u32 first, u32 byte, const Codes<Element>& codes) const {
    const bool exists = line < lines && first < k;
    if (exists) {
      store_codes<Element>(address_of(data) + line * static_cast<u64>(pitch), first, k, codes);
      if (scale)
        global<u8>(address_of(scale) + line * static_cast<u64>(scale_pitch))[first / kValues] =
            static_cast<u8>(byte);
    }
    if (gemm_scale)
      store_gemm_scale<Element::kBits == 4 ? 2 : 1>(line, first, exists ? byte : kNeutralScale);
  }

 private:
  // Padding is written as well: rows up to 16, steps up to a tile, and a turn that no step has.
  template <u32 kTileSteps>
  HIPGEMM_DEVICE void store_gemm_scale(u32 line, u32 first, u32 byte) const {
    const u32 step_rows = (lines + kScaleRows - 1) / kScaleRows * kScaleRows;
    const u32 step = first / kStepNumbers, block = first % kStepNumbers / kScaleBlock;
    if (line >= step_rows || step >= count_k_tiles(k, kTileSteps * kStepNumbers) * kTileSteps)
      return;
    const u32 turn = scale_turn(step, k, kTileSteps);
    const auto at = [&](u32 t) {
      return global<u8>(address_of(gemm_scale) + scale_offset(line, t, block, step_rows));
    };
    *at(turn) = static_cast<u8>(byte);
    if (turn == 1 && step_of_turn(0, k, kTileSteps) == kNoStep) *at(0) = kNeutralScale;
  }
};

template <class Element>
HIPGEMM_DEVICE void quantize_mx_tile(const QuantizeMxArgs& args, const ValueTile& tile) {
  const auto rule = static_cast<ScaleRule>(args.rule);
  Values x;
  Codes<Element> codes;
  if (args.row_data) {
    const BlockedOutput out{args.row_data,  args.row_scale,       args.row_gemm_scale,
                            args.row_pitch, args.row_scale_pitch, args.rows,
                            args.cols};
    tile.read_row_block(x);
    if (args.hadamard) hadamard(x);
    const u32 byte = quantize_block<Element>(x, rule, codes);
    out.store<Element>(tile.row(), tile.first_col() + ValueTile::row_block() * kValues, byte,
                       codes);
  }
  if (args.col_data) {
    const BlockedOutput out{args.col_data,  args.col_scale,       args.col_gemm_scale,
                            args.col_pitch, args.col_scale_pitch, args.cols,
                            args.rows};
    tile.read_col_block(x);
    if (args.hadamard) hadamard(x);
    const u32 byte = quantize_block<Element>(x, rule, codes);
    out.store<Element>(tile.col(), tile.first_row() + ValueTile::col_block() * kValues, byte,
                       codes);
  }
}

// The tile of this workgroup. Along K the grid covers whole units of scales.
HIPGEMM_DEVICE ValueTile load_mx_tile(const QuantizeMxArgs& args, ValueTile::Lds& lds) {
  constexpr u32 kUnit = kStepNumbers * kUnitSteps;
  const TileAt at(args.row_data ? (args.cols + kUnit - 1) / kUnit * kUnit : args.cols);
  ValueTile tile(lds, at.row, at.col);
  tile.load({address_of(args.src), args.src_row_stride, args.src_col_stride, args.rows, args.cols},
            static_cast<ElementType>(args.in_type));
  return tile;
}

template <u32 kThreads>
HIPGEMM_DEVICE void quantize_mxfp8(const QuantizeMxArgs& args) {
  static __shared__ ValueTile::Lds lds;
  const ValueTile tile = load_mx_tile(args, lds);
  if (args.element == static_cast<u32>(Narrow::e5m2))
    quantize_mx_tile<E5m2>(args, tile);
  else
    quantize_mx_tile<E4m3>(args, tile);
}

template <u32 kThreads>
HIPGEMM_DEVICE void quantize_mxfp4(const QuantizeMxArgs& args) {
  static __shared__ ValueTile::Lds lds;
  quantize_mx_tile<E2m1>(args, load_mx_tile(args, lds));
}

}  // namespace hipgemm
