// The end of a product for rows of it in LDS, where any thread can take any values: what the
// epilogue does not do in registers. The kernels of a unit share this code.
#pragma once

#include "common/element_types.hpp"
#include "common/functions.hpp"
#include "common/lane_reduce.hpp"
#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/scaled_sum.hpp"
#include "common/types.hpp"
#include "quantize/amax_scaling.hpp"
#include "quantize/quantized_row.hpp"

namespace hipgemm {

// The number of a row may be marked: it belongs to no group, so C is 0 there, or stays what it is.
inline constexpr u32 kNoRow = ~0u, kOutside = 1u << 31;

// Rows of `columns` floats, then the number of each row in C, or kNoRow. In a row, even quads come
// before odd ones: lanes that take eight columns each use different banks. So do lanes with the
// same column of 16 rows, by 16 more bytes per row.
struct TileRows {
  static constexpr HIPGEMM_BOTH u32 pitch_of(u32 columns) { return columns * sizeof(f32) + 16; }
  static constexpr u32 bytes_of(u32 columns) { return pitch_of(columns) + sizeof(u32); }
  template <class E>
  using Lds = __attribute__((address_space(3))) E;

  LdsByte* first;
  u32 count, columns;

  HIPGEMM_DEVICE Lds<u32>& row(u32 slot) const {
    return *(Lds<u32>*)(first + count * pitch_of(columns) + slot * sizeof(u32));
  }
  HIPGEMM_DEVICE Lds<f32>& value(u32 slot, u32 column) const {
    return *(Lds<f32>*)(quad_at(slot, column) + column % 4 * sizeof(f32));
  }
  HIPGEMM_DEVICE Lds<f32x4>& quad(u32 slot, u32 column) const {
    return *(Lds<f32x4>*)quad_at(slot, column);
  }

 private:
  HIPGEMM_DEVICE LdsByte* quad_at(u32 slot, u32 column) const {
    const u32 quad = column / 4, place = quad / 2 + quad % 2 * (columns / 8);
    return first + slot * pitch_of(columns) + place * sizeof(f32x4);
  }
};

inline constexpr u32 kFinished = 8;  // consecutive values that a thread takes at a time
using Finished = Values<kFinished>;

// Where eight values are in LDS: four, and four.
struct Eight {
  const TileRows& rows;
  u32 slot, first, second;

  HIPGEMM_DEVICE void get(Finished& x) const {
    x[0] = rows.quad(slot, first);
    x[1] = rows.quad(slot, second);
  }
  HIPGEMM_DEVICE void put(const Finished& x) const {
    rows.quad(slot, first) = x[0];
    rows.quad(slot, second) = x[1];
  }
  HIPGEMM_DEVICE auto& value(u32 i) const {
    return rows.value(slot, i < 4 ? first + i : second + i - 4);
  }
};

// The first `count` of eight elements in memory: at once if all exist and are at a dword-aligned
// address, else one by one by way of LDS, for shorter code.
HIPGEMM_DEVICE bool is_wide(u64 address, u32 count) {
  constexpr u32 kAlignment = HIPGEMM_MATRIX_KERNELS ? 4 : 16;
  return address % kAlignment == 0 && count >= kFinished;
}
HIPGEMM_DEVICE void load_eight(u64 address, Format type, u32 count, const Eight& lds,
                               Finished& out) {
  if (!is_wide(address, count)) {
    lds.put({});
#pragma unroll 1
    for (u32 i = 0; i < smaller(count, kFinished); i++)
      lds.value(i) = load_element(address + i * element_bytes(type), type);
    return lds.get(out);
  }
  const u32x4 first = *global<u32x4>(address);
  if (type == Format::f32) {
    out[0] = __builtin_bit_cast(f32x4, first);
    out[1] = *global<f32x4>(address + 16);
    return;
  }
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    const f32x2 two =
        type == Format::bf16 ? FromBf16::widen_word(first[i]) : FromF16::widen_word(first[i]);
    out[i / 2][i % 2 * 2] = two.x;
    out[i / 2][i % 2 * 2 + 1] = two.y;
  }
}
HIPGEMM_DEVICE void store_eight(u64 address, Format type, u32 count, const Eight& lds,
                                const Finished& x) {
  if (!is_wide(address, count)) {
    lds.put(x);
#pragma unroll 1
    for (u32 i = 0; i < smaller(count, kFinished); i++)
      store_element(address + i * element_bytes(type), type, lds.value(i));
    return;
  }
  if (type == Format::f32) {
    *global<f32x4>(address) = x[0];
    *global<f32x4>(address + 16) = x[1];
    return;
  }
  u32x4 packed;
#pragma unroll
  for (u32 i = 0; i < 4; i++) {
    const f32x2 two = {x[i / 2][i % 2 * 2], x[i / 2][i % 2 * 2 + 1]};
    packed[i] = type == Format::bf16 ? OutBf16::pack(two) : OutF16::pack(two);
  }
  *global<u32x4>(address) = packed;
}

// The factors of a product that the epilogue could not apply in registers: see scaled_sum.
struct RowFactors {
  u64 a_scale, b_scale, col_scale, bias;  // of the first row and column; 0: none
  u32 a_step, b_step;
  f32 alpha;
  Format bias_type;

  // To four values, of which `count` exist.
  HIPGEMM_DEVICE void apply(u32 row, u32 column, u32 count, f32x4& x) const {
    Factor of_row = kNoScales;
    if (a_scale) of_row = Factor::of(factor(a_scale, row * a_step));
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
      if (i >= count) continue;
      Factor scales = of_row;
      if (b_scale) scales = scales * Factor::of(factor(b_scale, (column + i) * b_step));
      const f32 scale = col_scale ? factor(col_scale, column + i) : 1.0f;
      f32 added = -0.0f;  // x + -0.0 is x, even for -0.0
      if (bias)
        added = load_element(bias + (column + i) * static_cast<u64>(element_bytes(bias_type)),
                             bias_type);
      x[i] = scaled_sum(x[i], scales, Factor::of(alpha), Factor::of(scale), added);
    }
  }

 private:
  static HIPGEMM_DEVICE f32 factor(u64 from, u64 at) { return *global<f32>(from + at * 4); }
};

HIPGEMM_DEVICE bool is_quantized(Format type) { return type >= Format::fp8_e4m3; }

// A matrix with rows of C's, from its first column on.
struct RowMatrix {
  u64 address;  // 0: none
  u64 pitch;    // bytes
  Format type;

  HIPGEMM_DEVICE u64 at(u32 row, u32 column) const {
    return address + row * pitch + column * static_cast<u64>(element_bytes(type));
  }
};

// What to do with rows of a tile.
struct Finish {
  RowMatrix c, aux, residual;
  u64 out_scale;
  u32 first_column, columns;  // of the product: the tile's first, and how many exist from there on
  u32 all_columns;            // of the product
  u32 accumulate;
  u32 threads;
  bool first_entry;  // of the batch
};

// Applies factors to values of the product.
HIPGEMM_DEVICE void scale_rows(const TileRows& rows, const RowFactors& factors, u32 first_column,
                               u32 columns, u32 threads) {
  const u32 quads = rows.columns / 4, log_quads = __builtin_ctz(quads);
#pragma unroll 1
  for (u32 at = thread_index(); at < rows.count << log_quads; at += threads) {
    const u32 slot = at >> log_quads, column = (at & (quads - 1)) * 4, row = rows.row(slot);
    if (row == kNoRow || column >= columns) continue;
    f32x4 x = rows.quad(slot, column);
    factors.apply(row, first_column + column, columns - column, x);
    rows.quad(slot, column) = x;
  }
}

// Four values after activation; with a GLU those of four gates and ups.
HIPGEMM_DEVICE f32x4 activated(Activation kind, bool gated, f32x4 t, f32x4 up) {
  if (kind == Activation::swiglu_oss) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) t[i] = SwigluOss::of(t[i], up[i]);
    return t;
  }
  with_activation(kind, [&](auto f) HIPGEMM_INLINE {
#pragma unroll
    for (u32 i = 0; i < 4; i++) t[i] = f.of(t[i]);
  });
  return gated ? t * up : t;
}

// f(slot, its row, whether it belongs to no group, first value, of so many that exist) for each
// `kValues` values of C in the rows that a thread takes.
template <u32 kValues, class F>
HIPGEMM_DEVICE void for_each_run(const TileRows& rows, const Finish& to, bool gated, F f) {
  const u32 log_runs = __builtin_ctz(rows.columns / kValues) - gated, runs = 1u << log_runs;
#pragma unroll 1
  for (u32 at = thread_index(); at < rows.count << log_runs; at += to.threads) {
    const u32 slot = at >> log_runs, first = (at & (runs - 1)) * kValues;
    const u32 columns = to.columns >> gated;
    const u32 row = rows.row(slot);
    const bool outside = row != kNoRow && row >= kOutside;
    f(slot, outside ? row - kOutside : row, outside, first, columns - smaller(first, columns));
  }
}

// aux, and the activation: each eight values of the product in LDS become as many of C there, or
// four with a GLU.
template <class Args>
HIPGEMM_DEVICE void activate_values(Args& args, const TileRows& rows, const Finish& to) {
  const auto kind = static_cast<Activation>(args.activation);
  const auto layout = static_cast<GluLayout>(args.glu);
  const bool gated = layout != GluLayout::none;
  for_each_run<kFinished>(
      rows, to, false, [&](u32 slot, u32 row, bool outside, u32 column, u32 left) HIPGEMM_INLINE {
        if (row == kNoRow || left == 0) return;
        const Eight lds{rows, slot, column, column + 4};
        Finished t;
        lds.get(t);
        if (to.aux.address && !outside) {
          const u32 first = to.first_column + column;
          if (layout == GluLayout::halves) {  // gates and ups alternate here
#pragma unroll 1
            for (u32 i = 0; i < smaller(left, kFinished); i++)
              store_element(to.aux.at(row, (first + i) / 2 + (i % 2 ? to.all_columns / 2 : 0)),
                            to.aux.type, lds.value(i));
          } else {
            store_eight(to.aux.at(row, first), to.aux.type, left, lds, t);
          }
        }
        if (kind == Activation::none && !gated) return;
        f32x4 up(0.0f);
        if (gated) {
          up = f32x4{t[0].y, t[0].w, t[1].y, t[1].w};
          t[0] = f32x4{t[0].x, t[0].z, t[1].x, t[1].z};
        }
#pragma unroll 1  // for shorter code
        for (u32 at = 0; at < (gated ? 4 : kFinished); at += 4) {
          rows.quad(slot, column + at) = activated(kind, gated, t[0], up);
          t[0] = t[1];
        }
      });
}

// Where the four values from value `at` of C on are in a row in LDS: with a GLU the first four of
// each eight columns are used.
HIPGEMM_DEVICE u32 column_of_value(u32 at, bool gated) { return at << gated; }

// All stages after the activation but the quantization, for which values are put back, 0 where none
// exist.
template <class Args>
HIPGEMM_DEVICE void finish_values(Args& args, const TileRows& rows, const Finish& to) {
  const bool gated = args.glu != 0, quantized = is_quantized(to.c.type);
  for_each_run<kFinished>(rows, to, gated,
                          [&](u32 slot, u32 row, bool outside, u32 first, u32 left) HIPGEMM_INLINE {
                            if (row == kNoRow || (left == 0 && !quantized)) return;
                            const Eight lds{rows, slot, column_of_value(first, gated),
                                            column_of_value(first + 4, gated)};
                            const u32 column = (to.first_column >> gated) + first;
                            Finished y, more;
                            lds.get(y);
                            const auto add = [&](const RowMatrix& from) HIPGEMM_INLINE {
                              load_eight(from.at(row, column), from.type, left, lds, more);
                              for (u32 i = 0; i < 2; i++) y[i] += more[i];
                            };
                            if (to.residual.address && !outside) add(to.residual);
                            if (outside) y[0] = y[1] = f32x4(0.0f);
                            if (quantized) {
                              for (u32 i = 0; i < kFinished; i++)
                                y[i / 4][i % 4] = i < left ? y[i / 4][i % 4] : 0.0f;
                              return lds.put(y);
                            }
                            if (to.accumulate) {
                              if (outside) return;
                              add(to.c);
                            }
                            store_eight(to.c.at(row, column), to.c.type, left, lds, y);
                          });
}

template <u32 kValues>
HIPGEMM_DEVICE void read_run(const TileRows& rows, bool gated, u32 slot, u32 first,
                             Values<kValues>& x) {
#pragma unroll
  for (u32 i = 0; i < kValues / 4; i++)
    x[i] = rows.quad(slot, column_of_value(first + i * 4, gated));
}

template <class Element, class Args>
HIPGEMM_DEVICE void quantize_blocks(Args& args, const TileRows& rows, const Finish& to) {
  constexpr u32 kValues = kValuesOf<Element>, kThreads = kBlockValues / kValues;
  const bool gated = args.glu != 0;
  const auto rule = static_cast<ScaleRule>(args.scale_rule);
  for_each_run<kValues>(
      rows, to, gated, [&](u32 slot, u32 row, bool, u32 first, u32 left) HIPGEMM_INLINE {
        Values<kValues> x;
        read_run<kValues>(rows, gated, slot, first, x);
        // All threads of a block take part.
        const u32 amax = reduce_lanes<kThreads>(values_amax<kValues>(x), larger);
        const auto scale = BlockScale::of<Element>(amax, rule);
        const auto packed =
            nan_by<Element>(scale.multiplier, pack<Element, kValues>(x, scale.multiplier));
        if (row == kNoRow) return;
        const u32 column = (to.first_column >> gated) + first;
        QuantizedRow<Element>(to.c.address + row * to.c.pitch, column, to.all_columns >> gated)
            .store(0, packed);
        if (first % kBlockValues == 0 && left != 0)
          *global<u8>(to.out_scale + row * static_cast<u64>(args.out_scale_row) +
                      column / kBlockValues * static_cast<u64>(args.out_scale_block)) =
              static_cast<u8>(scale.byte);
      });
}

template <class Element, class Args>
HIPGEMM_DEVICE void quantize_fp8_rows(Args& args, const TileRows& rows, const Finish& to) {
  const bool gated = args.glu != 0;
  const auto scaling = AmaxScaling<Element>::of(load_scalar(args.out_amax), args.eps);
  u32 amax = 0;
  for_each_run<kFinished>(
      rows, to, gated, [&](u32 slot, u32 row, bool, u32 first, u32) HIPGEMM_INLINE {
        if (row == kNoRow) return;
        Finished x;
        read_run<kFinished>(rows, gated, slot, first, x);
        amax = larger(amax, values_amax<kFinished>(x));
        const u32 column = (to.first_column >> gated) + first;
        QuantizedRow<Element>(to.c.address + row * to.c.pitch, column, to.all_columns >> gated)
            .store(0, scaling.quantize(x, ToNearest(), row, column));
        if (to.first_entry && row == 0 && column == 0) *global<f32>(to.out_scale) = scaling.scale();
      });
  amax = reduce_lanes<16>(amax, larger);
  if (args.next_amax && thread_index() % 16 == 0)
    atomic_max_in_device(global<u32>(address_of(args.next_amax)), amax);
}

// After finish_values. The workgroup does not use LDS until all threads return.
template <class Args>
HIPGEMM_DEVICE void quantize_rows(Args& args, const TileRows& rows, const Finish& to) {
  switch (to.c.type) {
    case Format::fp8_e4m3:
      return quantize_fp8_rows<E4m3>(args, rows, to);
    case Format::fp8_e5m2:
      return quantize_fp8_rows<E5m2>(args, rows, to);
    case Format::mxfp8_e4m3:
      return quantize_blocks<E4m3>(args, rows, to);
    case Format::mxfp8_e5m2:
      return quantize_blocks<E5m2>(args, rows, to);
    case Format::mxfp6_e2m3:
      return quantize_blocks<E2m3>(args, rows, to);
    case Format::mxfp6_e3m2:
      return quantize_blocks<E3m2>(args, rows, to);
    case Format::mxfp4_e2m1:
      return quantize_blocks<E2m1>(args, rows, to);
    default:
      return;
  }
}

}  // namespace hipgemm
