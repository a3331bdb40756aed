// The gradient before an activation, formed as it is read: dy times the
// derivative at t, or at gates and ups.
#pragma once

#include "common/element_types.hpp"
#include "common/functions.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/load_row.hpp"

// After arguments that describe dy, whose rows and columns are the gradient's.
// aux: t in bfloat16; its rows are contiguous and aligned, and have a multiple
// of 8 values, gates as well as ups. factors: floats by which columns of the gradient are
// multiplied, or null. activation, glu: activations.def.
// clang-format off
#define HIPGEMM_GradientArgs(X) \
  X(ptr, aux) X(ptr, factors) X(i64, aux_pitch) X(u32, activation) X(u32, glu)
// clang-format on

namespace hipgemm {

// Replaces t, or gates and ups, by dy times the derivatives. Four at a time,
// for shorter code; with one half, the first four, to the place of the last.
HIPGEMM_DEVICE void times_derivatives(Activation kind, bool gated, Values<8>& dy, Values<8>& t,
                                      Values<8>& up, u32 halves = 2) {
#pragma unroll 1
  for (u32 half = 0; half < halves; half++) {
    f32x4 dt(0.0f), dup(0.0f);
    if (gated)
      with_glu(kind, [&](auto f) HIPGEMM_INLINE {
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
          const GluDerivatives by = f.derivatives(t[0][i], up[0][i]);
          dt[i] = dy[0][i] * by.gate;
          dup[i] = dy[0][i] * by.up;
        }
      });
    else
      with_activation(kind, [&](auto f) HIPGEMM_INLINE {
#pragma unroll
        for (u32 i = 0; i < 4; i++) dt[i] = dy[0][i] * f.derivative(t[0][i]);
      });
    dy[0] = dy[1];
    t[0] = t[1];
    up[0] = up[1];
    t[1] = dt;
    up[1] = dup;
  }
}

struct Gradient {
  u64 dy, aux, factors;
  i64 row_stride, col_stride, aux_pitch;  // of dy, bytes
  u32 rows, cols;                         // of the gradient
  Format type;                            // of dy
  Activation activation;
  GluLayout layout;

  HIPGEMM_DEVICE void move_rows(u32 count) {
    dy += count * static_cast<u64>(row_stride);
    aux += count * static_cast<u64>(aux_pitch);
  }

  // Eight values of a row from a multiple of 8 on.
  HIPGEMM_DEVICE void read(u32 row, u32 col, Values<8>& x) const {
    const u64 from = aux + row * static_cast<u64>(aux_pitch);
    Values<8> dys, t, up;
    for (u32 i = 0; i < 2; i++) up[i] = f32x4(0.0f);
    if (layout == GluLayout::interleaved) {
      Values<8> both;
      load_bf16(from, col, both);
      load_dy(row, col / 2, 4, dys);
      t[0] = {both[0].x, both[0].z, both[1].x, both[1].z};
      up[0] = {both[0].y, both[0].w, both[1].y, both[1].w};
      t[1] = up[1];
    } else {
      const u32 half = layout == GluLayout::halves ? cols / 2 : cols;
      const u32 at = col < half ? col : col - half;
      load_dy(row, at, 8, dys);
      load_bf16(from, at, t);
      if (layout == GluLayout::halves) load_bf16(from, at + half, up);
    }
    times_derivatives(activation, layout != GluLayout::none, dys, t, up,
                      layout == GluLayout::interleaved ? 1 : 2);
    if (layout == GluLayout::interleaved) {
      x[0] = {t[1].x, up[1].x, t[1].y, up[1].y};
      x[1] = {t[1].z, up[1].z, t[1].w, up[1].w};
    } else {
      const bool of_up = layout == GluLayout::halves && col >= cols / 2;
      choose(of_up, up, t, x);
    }
    if (factors == 0) return;
#pragma unroll
    for (u32 e = 0; e < 8; e++) x[e / 4][e % 4] *= global<f32>(factors)[col + e];
  }

  // Of a column, eight rows `step` apart; for those after `last`, its value.
  HIPGEMM_DEVICE void read_down(u32 row, u32 step, u32 last, u32 col, Values<8>& x) const {
    const bool gated = layout != GluLayout::none, halves = layout == GluLayout::halves;
    const u32 half = cols / 2;
    const u32 pair = !gated ? col : halves ? (col < half ? col : col - half) : col / 2;
    const u32 first = layout == GluLayout::interleaved ? 2 * pair : pair;
    const u32 second = halves ? pair + half : first + 1;
    Values<8> dys, t, up;
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      const u64 at = smaller(row + i * step, last);
      const u64 from = aux + at * aux_pitch;
      dys[i / 4][i % 4] = load_element(dy + at * row_stride + pair * col_stride, type);
      t[i / 4][i % 4] = FromBf16::widen(global<u16>(from)[first]);
      up[i / 4][i % 4] = gated ? FromBf16::widen(global<u16>(from)[second]) : 0.0f;
    }
    times_derivatives(activation, gated, dys, t, up);
    const bool of_up = gated && col == second;
    choose(of_up, up, t, x);
    if (factors == 0) return;
    for (f32x4& four : x) four *= f32x4(global<f32>(factors)[col]);
  }

 private:
  static HIPGEMM_DEVICE void choose(bool first, const Values<8>& a, const Values<8>& b,
                                    Values<8>& x) {
#pragma unroll
    for (u32 i = 0; i < 8; i++) {
      const f32 one = a[i / 4][i % 4], other = b[i / 4][i % 4];  // not their addresses
      x[i / 4][i % 4] = first ? one : other;
    }
  }
  static HIPGEMM_DEVICE void load_bf16(u64 row, u32 col, Values<8>& x) {
    const u32x4 parts[1] = {*global<u32x4>(row + col * sizeof(u16))};
    widen_parts<FromBf16>(parts, x);
  }
  HIPGEMM_DEVICE void load_dy(u32 row, u32 col, u32 count, Values<8>& x) const {
    const u64 from = dy + row * row_stride + col * col_stride;
    u32x4 parts[2] = {u32x4(0), u32x4(0)};
    if (count == 4 && type != Format::f32 && col_stride == sizeof(u16) && from % 8 == 0)
      parts[0].xy = *global<u32x2>(from);
    else if (type == Format::f32)
      load_bits<u32>(from, col_stride, count, parts);
    else
      load_bits<u16>(from, col_stride, count, parts);
    widen_parts(parts, type, x);
  }
};

// Of a tile whose rows are those of the gradient, or its columns.
struct GradientOfRows : Gradient {
  bool transposed;
};

}  // namespace hipgemm
