// The epilogue, from accumulators to C: scale, add the bias, round once, store what is inside C.
#pragma once

#include "common/element_types.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/extreme_blocks.hpp"
#include "gemm/finish_tile.hpp"
#include "gemm/tile_descriptor.hpp"

namespace hipgemm {

template <class T>
inline constexpr bool kMayBeExtreme =
    T::kScaling == Scaling::blocks && T::kStaging == Staging::registers;

template <class T, class Args>
class Epilogue {
 public:
  HIPGEMM_DEVICE Epilogue(const TileDescriptor<T>& tile, const ThreadPosition<T>& position,
                          LdsByte* lds)
      : args_(kernel_arguments()),
        tile_(tile),
        area_(tile.area),
        position_(position),
        lds_(lds),
        lane_column_(OperandB<T>::lane_column(position)),
        now_(args_) {}

  // extreme: whether the sums are to be computed again, from `source`: see extreme_blocks.hpp.
  HIPGEMM_DEVICE void run(Accumulators<T>& acc, u32 extreme, u32 source) {
    const f32 alpha = now_.alpha_ptr ? load_scalar(now_.alpha_ptr) : now_.alpha;
    u32 unscaled = __builtin_amdgcn_ballot_w64(!in_range(alpha)) != 0;
    if constexpr (kMayBeExtreme<T>) unscaled |= extreme;
    // Opaque: the compiler would make each of these one branch with the next, in which acc is live
    // before and after.
    asm volatile("" : "+v"(unscaled));
    if (!uniform(unscaled)) scale(acc, alpha);
    u32 in_rows = unscaled | now_.staged | !stores_whole_vectors();
    asm volatile("" : "+v"(in_rows));
    if (uniform(in_rows)) return finish_in_rows(acc, uniform(unscaled), extreme, source);
    switch (static_cast<Format>(now_.out_type)) {
      case Format::bf16:
        store<OutBf16>(acc);
        break;
      case Format::f16:
        store<OutF16>(acc);
        break;
      case Format::f32:
        store<OutF32>(acc);
        break;
      default:
        break;
    }
  }

 private:
  // Read again, so that the compiler does not keep them in registers through the K loop.
  static HIPGEMM_DEVICE Constant<Args>* kernel_arguments() {
    auto at = (Constant<Args>*)__builtin_amdgcn_kernarg_segment_ptr();
    asm volatile("" : "+s"(at));
    return at;
  }

  // The arguments that every tile needs, loaded at once: the compiler would load each where it is
  // used, and wait for each.
  struct Needed {
    const void* alpha_ptr;
    const void* col_scale;
    const void* bias;
    i64 ldc;
    f32 alpha;
    u32 out_type, staged;
    u32 a_scale_step = 0, b_scale_step = 0;

    explicit HIPGEMM_DEVICE Needed(Constant<Args>* from)
        : alpha_ptr(from->alpha_ptr),
          col_scale(from->col_scale),
          bias(from->bias),
          ldc(from->ldc),
          alpha(from->alpha),
          out_type(from->out_type),
          staged(from->staged) {
      if constexpr (T::kScaling == Scaling::floats) {
        a_scale_step = from->a_scale_step;
        b_scale_step = from->b_scale_step;
      }
      // Others lack scalar registers.
      if constexpr (T::kStaging == Staging::dma && !T::Mfma::kHasMultipliers)
        asm volatile(""
                     : "+s"(alpha_ptr), "+s"(col_scale), "+s"(bias), "+s"(ldc), "+s"(alpha),
                       "+s"(out_type), "+s"(staged), "+s"(a_scale_step), "+s"(b_scale_step));
    }
  };

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

  HIPGEMM_DEVICE void scale(Accumulators<T>& acc, f32 alpha) {
    f32x4 scale[kQuads], bias[kQuads];
    load_col_scale(scale);
    load_bias(bias);
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
  // one factor will do. A split of K has no factors. All waves look at all scales of the tile: they
  // must agree.
  HIPGEMM_DEVICE bool in_range(f32 alpha) const {
    const bool one_factor = !now_.col_scale || alpha == 1.0f;
    if constexpr (T::kScaling == Scaling::floats && !T::Mfma::kScalesA) {
      return has_scales() ? !now_.col_scale && alpha == 1.0f : one_factor;
    } else if constexpr (T::kScaling == Scaling::floats) {
      if (!has_scales()) return true;
      constexpr int kLeast = -35, kGreatest = 20;
      int least = 0, greatest = 0;
      const auto take = [&](f32 x) {
        const int exponent = exponent_of(x);
        least = exponent < least ? exponent : least;
        greatest = exponent > greatest ? exponent : greatest;
      };
      const u32 lane = position_.lane;
      for (u32 i = 0; i < T::kM; i += kWaveLanes) take(row_scale(i + lane));
      for (u32 i = 0; i < T::kN; i += kWaveLanes)
        take(load_scale(column_scales(), (i + lane) * now_.b_scale_step));
      const int exponent = exponent_of(alpha);
      return least >= kLeast && greatest <= kGreatest &&
             (one_factor || (exponent >= -kGreatest && exponent <= kGreatest));
    }
    return one_factor;
  }

  // Float scales of a row of A, and of a quad's columns of B.
  HIPGEMM_DEVICE f32 row_scale(u32 row) const {
    if constexpr (!T::Mfma::kScalesA) return 1.0f;
    return load_scale(scales_from(tile_.a_scale, now_.a_scale_step, area_.row, area_.rows),
                      row * now_.a_scale_step);
  }
  HIPGEMM_DEVICE Buffer column_scales() const {
    return scales_from(tile_.b_scale, now_.b_scale_step, area_.column, area_.columns);
  }
  HIPGEMM_DEVICE f32x4 column_scales(u32 quad) const {
    f32x4 scales;
    for (u32 e = 0; e < 4; e++)
      scales[e] = load_scale(column_scales(), (column_of(quad) + e) * now_.b_scale_step);
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
    if (!now_.col_scale) {
      for (f32x4& x : out) x = f32x4(1.0f);
      return;
    }
    const Buffer from =
        make_buffer(reinterpret_cast<u64>(now_.col_scale) + static_cast<u64>(area_.column) * 4,
                    area_.columns * 4);
    for (u32 q = 0; q < kQuads; q++)
      out[q] = __builtin_bit_cast(
          f32x4, __builtin_amdgcn_raw_buffer_load_b128(from, column_of(q) * 4, 0, 0));
  }

  HIPGEMM_DEVICE u64 bias() const {
    const u64 first = reinterpret_cast<u64>(now_.bias);
    if constexpr (requires { args_->bias_outer; })
      return first ? first + tile_.outer * static_cast<u64>(args_->bias_outer) : 0;
    return first;
  }
  HIPGEMM_DEVICE void load_bias(f32x4 (&out)[kQuads]) {
    if (!now_.bias) {
      for (f32x4& x : out) x = f32x4(-0.0f);  // x + -0.0 is x, even for -0.0
      return;
    }
    const auto type = static_cast<Format>(args_->bias_type);
    const u32 bytes = type == Format::f32 ? 4 : 2;
    const Buffer from =
        make_buffer(bias() + static_cast<u64>(area_.column) * bytes, area_.columns * bytes);
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

  // Whether rows consist of whole vectors of 16 bytes, at dword-aligned addresses.
  HIPGEMM_DEVICE bool stores_whole_vectors() const {
    const u32 bytes = element_bytes(static_cast<Format>(now_.out_type));
    const u64 pitch = static_cast<u64>(now_.ldc) * bytes;
    return (tile_.c % 4 | pitch % 4 | area_.columns * bytes % 16) == 0;
  }

  template <class Out>
  HIPGEMM_DEVICE void store(Accumulators<T>& acc) {
    constexpr u32 kVector = 16 / Out::kBytes;  // elements of one access
    constexpr u32 kVectors = T::kLaneColumns / kVector;
    const Buffer to = stored_rows<Out>();
    const u32 row_bytes = static_cast<u32>(now_.ldc) * Out::kBytes;
    u32 offset[kVectors];
    for (u32 v = 0; v < kVectors; v++) {
      const u32 column = column_of(v * kVector / 4);
      offset[v] = column < area_.columns ? column * Out::kBytes : kOutOfRange;
    }
    for_each_row(acc, [&](u32 row, auto at) {
      for (u32 v = 0; v < kVectors; v++) {
        f32x4 quads[kVector / 4];
        for (u32 q = 0; q < kVector / 4; q++) quads[q] = at(v * (kVector / 4) + q);
        __builtin_amdgcn_raw_buffer_store_b128(pack<Out>(quads), to,
                                               (row - tile_.skipped) * row_bytes + offset[v], 0, 0);
      }
    });
  }

  // The tile's rows of C that are to be stored. Rows skipped at its top have negative
  // offsets, which are out of range as well.
  template <class Out>
  HIPGEMM_DEVICE Buffer stored_rows() const {
    const u64 pitch = static_cast<u64>(now_.ldc) * Out::kBytes;
    return make_buffer(
        tile_.c + (area_.row + tile_.skipped) * pitch +
            static_cast<u64>(area_.column) * Out::kBytes,
        (area_.rows - tile_.skipped - 1) * static_cast<u32>(pitch) + area_.columns * Out::kBytes);
  }

  // Everything else (finish_rows.hpp), a few rows of all waves at a time: in LDS, whose use for
  // operands is over.
  HIPGEMM_DEVICE void finish_in_rows(Accumulators<T>& acc, u32 unscaled, u32 extreme,
                                     u32 source) const {
    constexpr u32 kFragments = T::kParts * T::A::kFragments;
    constexpr u32 kRows = T::kWavesM * T::kFragmentRows;  // of a fragment of each wave
    constexpr u32 kAtOnce = smaller(T::kLdsBytes / (kRows * TileRows::bytes_of(T::kN)), kFragments);
    static_assert(kAtOnce > 0, "LDS has room for the rows of a fragment of each wave");
    wait_dma<0>();  // those past the last tile, which fetch nothing, still write zeros
    unrolled<(kFragments + kAtOnce - 1) / kAtOnce>([&]<u32 piece>(Index<piece>) HIPGEMM_INLINE {
      constexpr u32 kFirst = piece * kAtOnce, kEnd = smaller(kFirst + kAtOnce, kFragments);
      const TileRows rows{lds_, (kEnd - kFirst) * kRows, T::kN};
      sync_workgroup();  // LDS is not read any more
      unrolled<kEnd - kFirst>([&]<u32 i>(Index<i>) HIPGEMM_INLINE {
        constexpr u32 kPart = (kFirst + i) / T::A::kFragments;
        constexpr u32 kFragment = (kFirst + i) % T::A::kFragments;
        const u32 in_wave = position_.lane % T::kFragmentRows;
        const u32 slot = (i * T::kWavesM + position_.wave_m) * T::kFragmentRows + in_wave;
        const u32 row = OperandA<T>::tile_row(
            kPart, (position_.wave_m * T::A::kFragments + kFragment) * T::kFragmentRows + in_wave);
        const bool stored = row >= tile_.skipped && row < area_.rows;
        rows.row(slot) = stored ? area_.row + row : kNoRow;
        for (u32 q = 0; q < kQuads; q++)
          rows.quad(slot, column_of(q)) = acc.quad(kPart, kFragment, q);
      });
      if constexpr (kMayBeExtreme<T>)
        if (extreme) {
          static_assert(T::kK == kStepElements, "");
          const auto from = TileSource::from_lanes(source);
          const KRange& range = from.range;
          sync_workgroup();
          multiply_blocks<Args>(args_, lds_, rows.count, T::kN, T::kThreads, from.a, from.b,
                                from.a_scale, from.b_scale, from.k, range.tiles, range.origin,
                                range.first, range.second, range.first_index, area_.column,
                                area_.columns,
                                pair_form(T::kMemoryA, T::kMemoryB, !T::A::kIsKMajor,
                                          !T::B::kIsKMajor, T::Mfma::kHasMultipliers),
                                T::Mfma::elements());
        }
      if (unscaled) {
        constexpr bool kHasFloats = T::kScaling == Scaling::floats;
        sync_workgroup();
        scale_tile_rows<Args>(args_, lds_, rows.count, T::kN, T::kThreads, bias(),
                              kHasFloats ? tile_.a_scale : 0, kHasFloats ? tile_.b_scale : 0,
                              area_.column, area_.columns);
      }
      finish_tile<Args>(
          args_, rows,
          {tile_.c, tile_.outer, tile_.inner, area_.column, area_.columns, T::kThreads});
    });
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

  Constant<Args>* const args_;
  const TileDescriptor<T>& tile_;
  const TileArea<T>& area_;
  const ThreadPosition<T>& position_;
  LdsByte* const lds_;
  const u32 lane_column_;
  const Needed now_;
};

}  // namespace hipgemm
