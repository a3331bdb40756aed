// The epilogue, from accumulators to C: scale, add the bias, round once, store what is inside C.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/scaled_sum.hpp"
#include "common/types.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/tile_descriptor.hpp"

namespace hipgemm {

template <class T, class Args>
class Epilogue {
 public:
  HIPGEMM_DEVICE Epilogue(const Args& args, const TileDescriptor<T>& tile,
                          const ThreadPosition<T>& position)
      : args_(args),
        tile_(tile),
        area_(tile.area),
        position_(position),
        lane_column_(OperandB<T>::lane_column(position)) {}

  HIPGEMM_DEVICE void run(Accumulators<T>& acc) {
    scale(acc);
    switch (static_cast<Format>(args_.out_type)) {
      case Format::bf16:
        finish<OutBf16, FromBf16>(acc);
        break;
      case Format::f16:
        finish<OutF16, FromF16>(acc);
        break;
      case Format::f32:
        finish<OutF32, FromF32>(acc);
        break;
      default:
        break;
    }
  }

 private:
  // Quads of the lane's columns: see Accumulators::quad.
  static constexpr u32 kQuads = T::kLaneColumns / 4;

  // The first column in the tile of a quad.
  HIPGEMM_DEVICE u32 column_of(u32 quad) const {
    return lane_column_ + OperandB<T>::quad_column(quad);
  }

  // f(row in the tile, at): at(quad) is a quad of the lane's accumulators in that row.
  template <class F>
  HIPGEMM_DEVICE void for_each_row(Accumulators<T>& acc, F f) const {
    for (u32 part = 0; part < T::kParts; part++)
      for (u32 i = 0; i < T::A::kFragments; i++) {
        const u32 row = OperandA<T>::tile_row(
            part, (position_.wave_m * T::A::kFragments + i) * T::kFragmentRows +
                      position_.lane % T::kFragmentRows);
        f(row, [&](u32 quad) -> f32x4& { return acc.quad(part, i, quad); });
      }
  }

  HIPGEMM_DEVICE void scale(Accumulators<T>& acc) {
    const f32 alpha = args_.alpha_ptr ? load_scalar(args_.alpha_ptr) : args_.alpha;
    f32x4 scale[kQuads], bias[kQuads];
    load_col_scale(scale);
    load_bias(bias);
    u32 rare = __builtin_amdgcn_ballot_w64(!in_range(acc, alpha)) != 0;
    if (rare) scale_each(acc, alpha, scale, bias);
    // Opaque: the compiler would make it one branch, in which acc is live before and after.
    asm volatile("" : "+v"(rare));
    if (uniform(rare)) return;
    if constexpr (T::kScaling == Scaling::floats)
      if (has_scales()) scale_operands(acc);
    for_each_row(acc, [&](u32, auto at) {
      for (u32 q = 0; q < kQuads; q++)
        at(q) = __builtin_elementwise_fma(at(q) * f32x4(alpha), scale[q], bias[q]);
    });
  }

  // The scales of A and B themselves, by their product.
  HIPGEMM_DEVICE void scale_operands(Accumulators<T>& acc) {
    f32x4 column[kQuads];
    for (u32 q = 0; q < kQuads; q++) column[q] = column_scales(q);
    for_each_row(acc, [&](u32 row, auto at) {
      const f32 scale = row_scale(row);
      for (u32 q = 0; q < kQuads; q++) at(q) *= f32x4(scale) * column[q];
    });
  }

  // A split of K has none.
  HIPGEMM_DEVICE bool has_scales() const {
    return T::Mfma::kScalesA ? tile_.a_scale != 0 : tile_.b_scale != 0;
  }

  // Whether no product but the last can overflow or underflow in float32. Sums of fp8 elements are
  // 0 or in [2^-32, 2^63), so limits for the factors suffice. Other sums may be anything: then only
  // one factor will do. A split of K has no factors.
  HIPGEMM_DEVICE bool in_range(Accumulators<T>& acc, f32 alpha) const {
    const bool one_factor = !args_.col_scale || alpha == 1.0f;
    if constexpr (T::kScaling == Scaling::floats && !T::Mfma::kScalesA) {
      return has_scales() ? !args_.col_scale && alpha == 1.0f : one_factor;
    } else if constexpr (T::kScaling == Scaling::floats) {
      if (!has_scales()) return true;
      constexpr int kLeast = -35, kGreatest = 20;
      int least = 0, greatest = 0;
      const auto take = [&](f32 x) {
        const int exponent = exponent_of(x);
        least = exponent < least ? exponent : least;
        greatest = exponent > greatest ? exponent : greatest;
      };
      for_each_row(acc, [&](u32 row, auto) { take(row_scale(row)); });
      for (u32 q = 0; q < kQuads; q++)
        for (u32 e = 0; e < 4; e++) take(column_scales(q)[e]);
      const int exponent = exponent_of(alpha);
      return least >= kLeast && greatest <= kGreatest &&
             (one_factor || (exponent >= -kGreatest && exponent <= kGreatest));
    }
    return one_factor;
  }

  // This is rare. Quad by quad, each with the operands' scales loaded again, it needs few
  // registers.
  HIPGEMM_DEVICE void scale_each(Accumulators<T>& acc, f32 alpha, const f32x4 (&scale)[kQuads],
                                 const f32x4 (&bias)[kQuads]) {
    for (u32 q = 0; q < kQuads; q++) {
      u32 none = 0;
      asm volatile("" : "+v"(none));
      f32x4 column;
      if constexpr (T::kScaling == Scaling::floats) column = column_scales(q);
      for_each_row(acc, [&](u32 row, auto at) {
        Factor of_row = kNoScales;
        if constexpr (T::kScaling == Scaling::floats) of_row = Factor::of(row_scale(row + none));
        for (u32 e = 0; e < 4; e++) {
          Factor scales = kNoScales;
          if constexpr (T::kScaling == Scaling::floats) scales = of_row * Factor::of(column[e]);
          at(q)[e] =
              scaled_sum(at(q)[e], scales, Factor::of(alpha), Factor::of(scale[q][e]), bias[q][e]);
        }
        sched_barrier();
      });
    }
  }

  // Float scales of a row of A, and of a quad's columns of B.
  HIPGEMM_DEVICE f32 row_scale(u32 row) const {
    if constexpr (!T::Mfma::kScalesA) return 1.0f;
    return load_scale(scales_from(tile_.a_scale, args_.a_scale_step, area_.row, area_.rows),
                      row * args_.a_scale_step);
  }
  HIPGEMM_DEVICE f32x4 column_scales(u32 quad) const {
    const Buffer from = scales_from(tile_.b_scale, args_.b_scale_step, area_.column, area_.columns);
    f32x4 scales;
    for (u32 e = 0; e < 4; e++)
      scales[e] = load_scale(from, (column_of(quad) + e) * args_.b_scale_step);
    return scales;
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
    const auto type = static_cast<Format>(args_.bias_type);
    const u32 bytes = type == Format::f32 ? 4 : 2;
    const Buffer from =
        make_buffer(reinterpret_cast<u64>(args_.bias) + static_cast<u64>(area_.column) * bytes,
                    area_.columns * bytes);
    if (type == Format::f32) {
      for (u32 q = 0; q < kQuads; q++)
        out[q] = __builtin_bit_cast(
            f32x4, __builtin_amdgcn_raw_buffer_load_b128(from, column_of(q) * 4, 0, 0));
      return;
    }
    // Two-byte elements may have any even address, and wider loads need dword alignment.
    for (u32 q = 0; q < kQuads; q++)
      for (u32 e = 0; e < 4; e++) {
        const u16 bits = __builtin_amdgcn_raw_buffer_load_b16(from, (column_of(q) + e) * 2, 0, 0);
        out[q][e] = type == Format::bf16 ? __builtin_bit_cast(f32, static_cast<u32>(bits) << 16)
                                         : static_cast<f32>(__builtin_bit_cast(f16, bits));
      }
  }

  template <class Out, class From>
  HIPGEMM_DEVICE void finish(Accumulators<T>& acc) {
    if (tile_.accumulate)  // a constant false in all kernels but grouped_wgrad
      store<Out, AddTo<From>>(acc);
    else
      store<Out, Overwrite>(acc);
  }

  // Whether the result replaces what C holds, or is added to it.
  struct Overwrite {
    static constexpr bool kReads = false;
  };
  template <class From>
  struct AddTo {
    static constexpr bool kReads = true;
    using Bits = typename From::Bits;
    static HIPGEMM_DEVICE f32 widen(u32 bits) { return From::widen(bits); }
  };

  template <class Out, class Onto>
  HIPGEMM_DEVICE void store(Accumulators<T>& acc) {
    constexpr u32 kVector = 16 / Out::kBytes;
    const Buffer to = stored_rows<Out>();
    for_each_piece<Out, Onto::kReads>(
        acc,
        [&](auto at, u32 v, u32 at_byte) {
          f32x4 quads[kVector / 4];
          for (u32 q = 0; q < kVector / 4; q++) quads[q] = at(v * (kVector / 4) + q);
          if constexpr (Onto::kReads) {
            const auto old =
                __builtin_bit_cast(Vector<typename Onto::Bits, kVector>,
                                   __builtin_amdgcn_raw_buffer_load_b128(to, at_byte, 0, 0));
            for (u32 e = 0; e < kVector; e++) quads[e / 4][e % 4] += Onto::widen(old[e]);
          }
          __builtin_amdgcn_raw_buffer_store_b128(pack<Out>(quads), to, at_byte, 0, 0);
        },
        [&](auto at, u32 c, u32 at_byte) {
          const f32x4 quad = at(c / 4);
          f32 x = quad[c % 4];
          if constexpr (Out::kBytes == 4) {
            if constexpr (Onto::kReads)
              x += Onto::widen(__builtin_amdgcn_raw_buffer_load_b32(to, at_byte, 0, 0));
            __builtin_amdgcn_raw_buffer_store_b32(__builtin_bit_cast(u32, x), to, at_byte, 0, 0);
          } else {
            if constexpr (Onto::kReads)
              x += Onto::widen(__builtin_amdgcn_raw_buffer_load_b16(to, at_byte, 0, 0));
            __builtin_amdgcn_raw_buffer_store_b16(static_cast<u16>(Out::pack({x, x})), to, at_byte,
                                                  0, 0);
          }
        });
  }

  // The tile's rows of C that are to be stored. Rows skipped at its top have negative
  // offsets, which are out of range as well.
  template <class Out>
  HIPGEMM_DEVICE Buffer stored_rows() const {
    const u64 pitch = static_cast<u64>(args_.ldc) * Out::kBytes;
    return make_buffer(
        tile_.c + (area_.row + tile_.skipped) * pitch +
            static_cast<u64>(area_.column) * Out::kBytes,
        (area_.rows - tile_.skipped - 1) * static_cast<u32>(pitch) + area_.columns * Out::kBytes);
  }

  // The lane's elements of C: wide(the row's accumulators, v, offset) for its v-th 16 bytes of a
  // row, narrow(the same, c, offset) for its c-th column. Wide accesses need dword-aligned
  // addresses, and all their columns inside C; the others are narrow. Where C is read as well,
  // registers suffice for a few rows at a time.
  template <class Out, bool kReads, class Wide, class Narrow>
  HIPGEMM_DEVICE void for_each_piece(Accumulators<T>& acc, Wide wide, Narrow narrow) {
    constexpr u32 kVector = 16 / Out::kBytes;  // elements of one access
    constexpr u32 kVectors = T::kLaneColumns / kVector;
    const auto vector_column = [&](u32 v) { return column_of(v * kVector / 4); };
    const u64 pitch = static_cast<u64>(args_.ldc) * Out::kBytes;
    const u32 row_bytes = static_cast<u32>(pitch);
    constexpr u32 kRowsAtOnce = 2;
    u32 rows = 0;
    const auto next_row = [&] {
      if (kReads && ++rows % kRowsAtOnce == 0) sched_barrier();
    };
    const bool aligned = (tile_.c % 4 | pitch % 4) == 0;
    const auto is_wide = [&](u32 v) {
      return aligned && vector_column(v) + kVector <= area_.columns;
    };
    if (aligned) {
      u32 offset[kVectors];
      for (u32 v = 0; v < kVectors; v++)
        offset[v] = is_wide(v) ? vector_column(v) * Out::kBytes : kOutOfRange;
      for_each_row(acc, [&](u32 row, auto at) {
        for (u32 v = 0; v < kVectors; v++)
          wide(at, v, (row - tile_.skipped) * row_bytes + offset[v]);
        next_row();
      });
    }
    if (!aligned || area_.columns % kVector != 0) {
      u32 offset[T::kLaneColumns];
      for (u32 c = 0; c < T::kLaneColumns; c++)
        offset[c] = !is_wide(c / kVector) && column_of(c / 4) + c % 4 < area_.columns
                        ? (column_of(c / 4) + c % 4) * Out::kBytes
                        : kOutOfRange;
      for_each_row(acc, [&](u32 row, auto at) {
        for (u32 c = 0; c < T::kLaneColumns; c++)
          narrow(at, c, (row - tile_.skipped) * row_bytes + offset[c]);
        next_row();
      });
    }
  }

  // 16 bytes of a row.
  template <class Out, u32 N>
  static HIPGEMM_DEVICE u32x4 pack(const f32x4 (&quads)[N]) {
    if constexpr (Out::kBytes == 4) {
      return __builtin_bit_cast(u32x4, quads[0]);
    } else {
      const f32x4 low = quads[0], high = quads[1];
      return {Out::pack(low.xy), Out::pack(low.zw), Out::pack(high.xy), Out::pack(high.zw)};
    }
  }

  const Args& args_;
  const TileDescriptor<T>& tile_;
  const TileArea<T>& area_;
  const ThreadPosition<T>& position_;
  const u32 lane_column_;
};

}  // namespace hipgemm
