// From accumulators to C: scale, add the bias, round once, store what lies inside C.
#pragma once

#include "element.hpp"
#include "kargs.hpp"
#include "memory.hpp"
#include "tile.hpp"
#include "types.hpp"
#include "work.hpp"

namespace hipgemm {

template <class T, class Args>
class Epilogue {
 public:
  HIPGEMM_DEVICE Epilogue(const Args& args, const Work<T>& work, const Place<T>& place)
      : args_(args),
        work_(work),
        area_(work.area),
        place_(place),
        lane_column_(SideB<T>::lane_column(place)) {}

  HIPGEMM_DEVICE void run(Accumulators<T>& acc) {
    scale(acc);
    switch (static_cast<ElementType>(args_.out_type)) {
      case ElementType::bf16:
        store<OutBf16>(acc);
        break;
      case ElementType::f16:
        store<OutF16>(acc);
        break;
      case ElementType::f32:
        store<OutF32>(acc);
        break;
    }
  }

 private:
  // A quad of the lane's columns: fragment q of the wave, over both parts.
  static constexpr u32 kQuads = T::kLaneColumns / 4;

  // The column of the tile at which a quad of the lane begins.
  HIPGEMM_DEVICE u32 column_of(u32 quad) const {
    return lane_column_ + SideB<T>::quad_column(quad);
  }

  // f(row of the tile, the lane's accumulators of that row, quad by quad).
  template <class F>
  HIPGEMM_DEVICE void for_each_row(Accumulators<T>& acc, F f) {
    for (u32 part = 0; part < T::kParts; part++)
      for (u32 i = 0; i < T::A::kFragments; i++) {
        const u32 row =
            SideA<T>::tile_row(part, (place_.wave_m * T::A::kFragments + i) * kFragmentRows +
                                         place_.lane % kFragmentRows);
        f(row, [&](u32 quad) -> f32x4& {
          return acc.at[part][quad / T::B::kFragments][i][quad % T::B::kFragments];
        });
      }
  }

  HIPGEMM_DEVICE void scale(Accumulators<T>& acc) {
    const f32 alpha = args_.alpha_ptr ? load_scalar(args_.alpha_ptr) : args_.alpha;
    f32x4 scale[kQuads], bias[kQuads];
    load_col_scale(scale);
    load_bias(bias);
    if constexpr (T::kScaling == Scaling::floats)
      if (work_.a_scale) scale_operands(acc);
    for_each_row(acc, [&](u32, auto at) {
      for (u32 q = 0; q < kQuads; q++)
        at(q) = __builtin_elementwise_fma(at(q) * f32x4(alpha), scale[q], bias[q]);
    });
  }

  // The scales of A and B themselves, by their product.
  HIPGEMM_DEVICE void scale_operands(Accumulators<T>& acc) {
    const Buffer rows = scales_from(work_.a_scale, args_.a_scale_step, area_.row, area_.rows);
    const Buffer columns =
        scales_from(work_.b_scale, args_.b_scale_step, area_.column, area_.columns);
    f32x4 column[kQuads];
    for (u32 q = 0; q < kQuads; q++)
      for (u32 e = 0; e < 4; e++)
        column[q][e] = load_scale(columns, (column_of(q) + e) * args_.b_scale_step);
    for_each_row(acc, [&](u32 row, auto at) {
      const f32 scale = load_scale(rows, row * args_.a_scale_step);
      for (u32 q = 0; q < kQuads; q++) at(q) *= f32x4(scale) * column[q];
    });
  }
  // One float (step 0), or one for each row of the tile.
  static HIPGEMM_DEVICE Buffer scales_from(u64 scales, u32 step, u32 first, u32 rows) {
    return make_buffer(scales + static_cast<u64>(first) * step * 4, step ? rows * 4 : 4);
  }
  static HIPGEMM_DEVICE f32 load_scale(Buffer from, u32 at) {
    return __builtin_bit_cast(f32, __builtin_amdgcn_raw_buffer_load_b32(from, at * 4, 0, 0));
  }

  HIPGEMM_DEVICE void load_col_scale(f32x4 (&out)[kQuads]) {
    if (!args_.col_scale) {
      for (f32x4& x : out) x = f32x4(1.0f);
      return;
    }
    const Buffer from =
        make_buffer(reinterpret_cast<u64>(args_.col_scale) + static_cast<u64>(area_.column) * 4,
                    area_.columns * 4);
    for (u32 q = 0; q < kQuads; q++)
      out[q] = __builtin_bit_cast(
          f32x4, __builtin_amdgcn_raw_buffer_load_b128(from, column_of(q) * 4, 0, 0));
  }

  HIPGEMM_DEVICE void load_bias(f32x4 (&out)[kQuads]) {
    if (!args_.bias) {
      for (f32x4& x : out) x = f32x4(-0.0f);  // x + -0.0 is x, even for -0.0
      return;
    }
    const auto type = static_cast<ElementType>(args_.bias_type);
    const u32 bytes = type == ElementType::f32 ? 4 : 2;
    const Buffer from =
        make_buffer(reinterpret_cast<u64>(args_.bias) + static_cast<u64>(area_.column) * bytes,
                    area_.columns * bytes);
    if (type == ElementType::f32) {
      for (u32 q = 0; q < kQuads; q++)
        out[q] = __builtin_bit_cast(
            f32x4, __builtin_amdgcn_raw_buffer_load_b128(from, column_of(q) * 4, 0, 0));
      return;
    }
    // Two-byte elements may begin anywhere, and wider loads need whole dwords.
    for (u32 q = 0; q < kQuads; q++)
      for (u32 e = 0; e < 4; e++) {
        const u16 bits = __builtin_amdgcn_raw_buffer_load_b16(from, (column_of(q) + e) * 2, 0, 0);
        out[q][e] = type == ElementType::bf16
                        ? __builtin_bit_cast(f32, static_cast<u32>(bits) << 16)
                        : static_cast<f32>(__builtin_bit_cast(f16, bits));
      }
  }

  template <class Out>
  HIPGEMM_DEVICE void store(Accumulators<T>& acc) {
    constexpr u32 kVector = 16 / Out::kBytes;  // elements of one store
    constexpr u32 kVectors = T::kLaneColumns / kVector;
    const auto vector_column = [&](u32 v) { return column_of(v * kVector / 4); };
    const u64 pitch = static_cast<u64>(args_.ldc) * Out::kBytes;
    const u64 base = work_.c + area_.row * pitch + static_cast<u64>(area_.column) * Out::kBytes;
    const u32 row_bytes = static_cast<u32>(pitch);
    const Buffer to = make_buffer(base, (area_.rows - 1) * row_bytes + area_.columns * Out::kBytes);

    // Wide stores need addresses of whole dwords, and all their columns inside C. What they leave
    // goes element by element.
    const bool aligned = (work_.c % 4 | pitch % 4) == 0;
    const auto is_wide = [&](u32 v) {
      return aligned && vector_column(v) + kVector <= area_.columns;
    };
    if (aligned) {
      u32 offset[kVectors];
      for (u32 v = 0; v < kVectors; v++)
        offset[v] = is_wide(v) ? vector_column(v) * Out::kBytes : kOutOfRange;
      for_each_row(acc, [&](u32 row, auto at) {
        for (u32 v = 0; v < kVectors; v++)
          __builtin_amdgcn_raw_buffer_store_b128(pack<Out>(at, v), to, row * row_bytes + offset[v],
                                                 0, 0);
      });
    }
    if (!aligned || area_.columns % kVector != 0) {
      u32 offset[T::kLaneColumns];
      for (u32 c = 0; c < T::kLaneColumns; c++)
        offset[c] = !is_wide(c / kVector) && column_of(c / 4) + c % 4 < area_.columns
                        ? (column_of(c / 4) + c % 4) * Out::kBytes
                        : kOutOfRange;
      for_each_row(acc, [&](u32 row, auto at) {
        for (u32 c = 0; c < T::kLaneColumns; c++) {
          const u32 at_byte = row * row_bytes + offset[c];
          const u32x4 bits = pack<Out>(at, c / kVector);
          const u32 e = c % kVector;
          if constexpr (Out::kBytes == 4)
            __builtin_amdgcn_raw_buffer_store_b32(bits[e], to, at_byte, 0, 0);
          else
            __builtin_amdgcn_raw_buffer_store_b16(static_cast<u16>(bits[e / 2] >> (e % 2 * 16)), to,
                                                  at_byte, 0, 0);
        }
      });
    }
  }

  // The lane's v-th 16 bytes of a row.
  template <class Out, class At>
  static HIPGEMM_DEVICE u32x4 pack(At at, u32 v) {
    if constexpr (Out::kBytes == 4) {
      return __builtin_bit_cast(u32x4, at(v));
    } else {
      const f32x4 low = at(2 * v), high = at(2 * v + 1);
      return {Out::pack(low.xy), Out::pack(low.zw), Out::pack(high.xy), Out::pack(high.zw)};
    }
  }

  const Args& args_;
  const Work<T>& work_;
  const TileArea<T>& area_;
  const Place<T>& place_;
  const u32 lane_column_;
};

}  // namespace hipgemm
