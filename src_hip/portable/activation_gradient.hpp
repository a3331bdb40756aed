// The gradient through an activation: dy times its derivative at t, rounded once.
#pragma once

#include "common/element_types.hpp"
#include "common/functions.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/gradient.hpp"
#include "quantize/load_row.hpp"
#include "quantize/store_row.hpp"
#include "quantize/thread_map.hpp"

// src: dy, rows x cols. aux: t, and dst: its gradient, of the same shape, or with twice the columns
// with a GLU; their rows are contiguous. Types: Format. activation, glu: activations.def.
// clang-format off
#define HIPGEMM_ActivationGradientArgs(X)                                                         \
  X(ptr, src) X(ptr, aux) X(ptr, dst) X(i64, src_row_stride) X(i64, src_col_stride)               \
  X(i64, aux_pitch) X(i64, dst_pitch) X(u32, rows) X(u32, cols) X(u32, in_type) X(u32, aux_type)  \
  X(u32, out_type) X(u32, activation) X(u32, glu)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(ActivationGradientArgs);

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void activation_gradient(const ActivationGradientArgs& args) {
  using Map = ThreadMap<kRows, kCols, 8, kRows * kCols / kThreads>;
  const Map at = Map::of(workgroup_index(), args.rows, args.cols);
  const u32 first = at.col(), count = args.cols - smaller(first, args.cols);
  const auto in_type = static_cast<Format>(args.in_type), type = static_cast<Format>(args.out_type);
  const auto aux_type = static_cast<Format>(args.aux_type);
  const auto layout = static_cast<GluLayout>(args.glu);
  const u64 element = element_bytes(type), aux_element = element_bytes(aux_type);
  if (count == 0) return;
#pragma unroll 1
  for (u32 i = 0; i < Map::kIterations; i++) {
    const u64 row = at.row(i);
    if (row >= args.rows) return;
    const u64 aux = address_of(args.aux) + row * args.aux_pitch;
    const u64 dst = address_of(args.dst) + row * args.dst_pitch;
    Values<8> dy, t, up;
    u32x4 parts[2];
    const u64 src = address_of(args.src) + row * args.src_row_stride + first * args.src_col_stride;
    if (in_type == Format::f32)
      load_bits<u32>(src, args.src_col_stride, count, parts);
    else
      load_bits<u16>(src, args.src_col_stride, count, parts);
    widen_parts(parts, in_type, dy);
    if (layout == GluLayout::interleaved) {
      const u64 from = aux + 2 * first * aux_element;
      Values<8> low, high;
      load_values(from, 2 * smaller(count, 4), aux_type, low);
      load_values(from + 8 * aux_element, 2 * (count - smaller(count, 4)), aux_type, high);
      t[0] = {low[0].x, low[0].z, low[1].x, low[1].z};
      t[1] = {high[0].x, high[0].z, high[1].x, high[1].z};
      up[0] = {low[0].y, low[0].w, low[1].y, low[1].w};
      up[1] = {high[0].y, high[0].w, high[1].y, high[1].w};
    } else {
      load_values(aux + first * aux_element, count, aux_type, t);
      up[0] = up[1] = f32x4(0.0f);
      if (layout == GluLayout::halves)
        load_values(aux + (first + static_cast<u64>(args.cols)) * aux_element, count, aux_type, up);
    }
    times_derivatives(static_cast<Activation>(args.activation), layout != GluLayout::none, dy, t,
                      up);
    if (layout == GluLayout::interleaved) {
      Values<16> both;
#pragma unroll
      for (u32 v = 0; v < 4; v++)
        both[v] = {t[v / 2][v % 2 * 2], up[v / 2][v % 2 * 2], t[v / 2][v % 2 * 2 + 1],
                   up[v / 2][v % 2 * 2 + 1]};
      const u64 to = dst + 2 * first * element;
      const bool aligned = to % 16 == 0;
      store_values<16>(to, type, both, 2 * smaller(count, 8), aligned,
                       aligned && args.cols % 32 == 0);
      continue;
    }
    store_chunk(dst + first * element, type, t, count, args.cols);
    if (layout == GluLayout::halves)
      store_chunk(dst + (first + static_cast<u64>(args.cols)) * element, type, up, count,
                  args.cols);
  }
}

}  // namespace hipgemm
