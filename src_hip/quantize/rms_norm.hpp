// RMS norm of rows, after the sum with a residual: rounded, or quantized.
#pragma once

#include "common/kargs.hpp"
#include "common/types.hpp"
#include "quantize/fp8.hpp"
#include "quantize/load_row.hpp"
#include "quantize/mx.hpp"
#include "quantize/row_threads.hpp"
#include "quantize/store_row.hpp"

// All rows are contiguous; those of dst and sum follow each other, if quantized at multiples of 16
// bytes. With two sources, their sum is stored too. A workgroup takes `sets` times as many rows as
// it has in registers at a time. formats: of src, residual, weight, sum and dst, 5 bits each. fp8
// is scaled by amax, and next max-accumulated; MX by rule (ScaleRule), with scales as in mx.hpp.
// row_shift: RowThreads.
// clang-format off
#define HIPGEMM_RmsNormArgs(X)                                                                    \
  X(ptr, src) X(ptr, residual) X(ptr, weight) X(ptr, dst) X(ptr, sum) X(i64, src_pitch)           \
  X(i64, residual_pitch) X(u32, rows) X(u32, cols) X(u32, row_shift) X(u32, sets) X(f32, eps)   \
  X(u32, formats)
#define HIPGEMM_RmsNormFp8Args(X)                                                                 \
  HIPGEMM_RmsNormArgs(X) X(ptr, amax) X(ptr, scale) X(ptr, next) X(f32, amax_eps)
#define HIPGEMM_RmsNormMxArgs(X) HIPGEMM_RmsNormArgs(X) X(ptr, scale) X(ptr, gemm_scale) X(u32, rule)
// clang-format on

namespace hipgemm {

HIPGEMM_STRUCT(RmsNormArgs);
HIPGEMM_STRUCT(RmsNormFp8Args);
HIPGEMM_STRUCT(RmsNormMxArgs);

// Those of the argument `formats`. In one number, and decoded where they are needed: each would
// take a scalar register.
enum class Operand : u32 { src, residual, weight, sum, dst };
HIPGEMM_DEVICE Format format_of(u32 formats, Operand which) {
  return static_cast<Format>(opaque_uniform(formats) >> static_cast<u32>(which) * 5 & 31);
}

HIPGEMM_DEVICE u32 count_sources(u32 formats) { return 1 + (opaque_uniform(formats) >> 25); }

// The values of a thread in a row: a chunk of 8 in each step.
template <class Threads>
using RowValuesOf = Values<8>[Threads::kSteps];

// f(the first value of a step, how many of its chunk exist in a row of `cols`, the chunk).
template <class Threads, class F>
HIPGEMM_DEVICE void for_each_chunk(const Threads& threads, u32 block, u32 cols,
                                   RowValuesOf<Threads>& x, F f) {
#pragma unroll
  for (u32 step = 0; step < Threads::kSteps; step++) {
    const u32 first = threads.first(block, step);
    f(first, cols - smaller(first, cols), x[step]);
  }
}

template <class Threads>
HIPGEMM_DEVICE void store_rounded(const Threads& threads, u32 block, u32 cols, u64 row, Format type,
                                  RowValuesOf<Threads>& x) {
  for_each_chunk(threads, block, cols, x,
                 [&](u32 first, u32 count, Values<8>& chunk) HIPGEMM_INLINE {
                   store_chunk(row + first * static_cast<u64>(element_bytes(type)), type, chunk,
                               count, opaque_uniform(cols));
                 });
}

// What becomes of normalized values. take(row, block, x) of all threads; finish() at the end.
template <class Threads, class Args>
struct Output {
  const Args& args;
  const Threads& threads;

  HIPGEMM_DEVICE bool exists(u32 row) const { return row < args.rows; }
  HIPGEMM_DEVICE Format format() const { return format_of(args.formats, Operand::dst); }
  // A row of dst.
  HIPGEMM_DEVICE u64 rounded(u32 row) const {
    return address_of(args.dst) + row * (args.cols * static_cast<u64>(element_bytes(format())));
  }
  HIPGEMM_DEVICE u64 quantized(const void* dst, u32 row, u32 bits) const {
    return address_of(dst) +
           row * (opaque(count_chunks(args.cols, bits)) * static_cast<u64>(kChunkBytes));
  }
};

template <class Threads>
struct RoundedOutput : Output<Threads, RmsNormArgs> {
  HIPGEMM_DEVICE void take(u32 row, u32 block, RowValuesOf<Threads>& x) {
    if (this->exists(row))
      store_rounded(this->threads, block, this->args.cols, this->rounded(row), this->format(), x);
  }
  HIPGEMM_DEVICE void finish() {}
};

template <class Threads>
struct Fp8Output : Output<Threads, RmsNormFp8Args> {
  u32 amax = 0;

  HIPGEMM_DEVICE void take(u32 row, u32 block, RowValuesOf<Threads>& x) {
    if (this->format() == Format::fp8_e5m2)
      take_as<E5m2>(row, block, x);
    else
      take_as<E4m3>(row, block, x);
  }
  HIPGEMM_DEVICE void finish() {
    amax = reduce_lanes<Threads::kGroup>(amax, larger);
    if (thread_index() % Threads::kGroup == 0)
      atomic_max_in_device(global<u32>(address_of(this->args.next)), amax);
  }

 private:
  template <class Element>
  HIPGEMM_DEVICE void take_as(u32 row, u32 block, RowValuesOf<Threads>& x) {
    const auto& args = this->args;
    const auto scaling = AmaxScaling<Element>::of(load_scalar(args.amax), args.amax_eps);
    if (row == 0 && thread_index() == 0) *global<f32>(address_of(args.scale)) = scaling.scale();
    if (!this->exists(row)) return;
    const u32 cols = opaque_uniform(args.cols);
    const u64 to = this->quantized(args.dst, row, Element::kBits);
    // A loop, for shorter code: the next chunk is the first one left.
#pragma unroll 1
    for (u32 step = 0; step < Threads::kSteps; step++) {
      const u32 first = this->threads.first(block, step);
      amax = larger(amax, values_amax<8>(x[0]));
      QuantizedRow<Element>(to, first, cols)
          .store(0, scaling.quantize(x[0], ToNearest(), row, first));
#pragma unroll
      for (u32 i = 0; i + 1 < Threads::kSteps; i++)
        for (u32 half = 0; half < 2; half++) x[i][half] = x[i + 1][half];
    }
  }
};

template <class Threads>
struct MxOutput : Output<Threads, RmsNormMxArgs> {
  // In vector registers: of scalar ones there are too few.
  void *data = in_vector(this->args.dst), *scale = in_vector(this->args.scale);
  void* gemm_scale = in_vector(this->args.gemm_scale);

  // Four neighbours have four blocks of 32 values, one in each step; each takes one of them.
  HIPGEMM_DEVICE void take(u32 row, u32 block, RowValuesOf<Threads>& x) {
    constexpr u32 kNeighbours = kBlockValues / 8;
    static_assert(kNeighbours == Threads::kSteps, "");
    const auto& args = this->args;
    Values<kBlockValues> mine;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      u32x4 pieces[kNeighbours];
      for (u32 i = 0; i < kNeighbours; i++) pieces[i] = __builtin_bit_cast(u32x4, x[i][half]);
      transpose_lanes(pieces);
      for (u32 i = 0; i < kNeighbours; i++)
        mine[2 * i + half] = __builtin_bit_cast(f32x4, pieces[i]);
    }
    const u32 step = opaque(thread_index()) % kNeighbours;
    const u32 first = this->threads.first(block, step) / kBlockValues * kBlockValues;
    u32 words[8] = {}, byte = 0, bits = 0;
    switch (this->format()) {
#define SCALED_FORMAT(name, code, element_bits, element, block) \
  case Format::name:                                            \
    if constexpr ((block) != 0) {                               \
      byte = pack_block<element>(mine, words);                  \
      bits = element_bits;                                      \
    }                                                           \
    break;
#include "common/formats.def"
      default:
        break;
    }
    const u32 rows = opaque_uniform(args.rows), cols = opaque_uniform(args.cols);
    const BlockedOutput out{data, scale, gemm_scale, 0, rows, rows, cols};
    if (bits == 4)
      out.store_scale<E2m1>(row, first, byte);
    else
      out.store_scale<E4m3>(row, first, byte);
    if (!this->exists(row)) return;
    // 16 bytes at a time, or 8 of 24.
    const u64 to = this->quantized(data, row, bits);
    const u64 end = to + count_chunks(cols, bits) * static_cast<u64>(kChunkBytes);
    const u64 begin = to + first / kBlockValues * static_cast<u64>(bits * 4);
    const auto store = [&]<u32 kWords>(Index<kWords>, u32 at) HIPGEMM_INLINE {
      Vector<u32, kWords> piece;
      for (u32 i = 0; i < kWords; i++) piece[i] = words[at + i];
      if (begin + at * 4 < end) *global<Vector<u32, kWords>>(begin + at * 4) = piece;
    };
    if (bits == 6) {
      for (u32 at = 0; at < 6; at += 2) store(kIndex<2>, at);
      return;
    }
    store(kIndex<4>, 0);
    if (bits == 8) store(kIndex<4>, 4);
  }
  HIPGEMM_DEVICE void finish() {}

 private:
  // Returns the scale byte. Without instructions for the casts a loop, for shorter code: the next
  // values are the first ones left, and the words rotate.
  template <class Element>
  HIPGEMM_DEVICE u32 pack_block(Values<kBlockValues>& x, u32 (&words)[8]) const {
    constexpr u32 kPart = kValuesOf<Element>, kParts = kBlockValues / kPart;
    constexpr u32 kWords = kPart * Element::kBits / 32;
    constexpr u32 kUnrolled = HIPGEMM_LOW_PRECISION_CASTS ? kParts : 1;
    const auto scaling = BlockScale::of<Element>(
        values_amax<kBlockValues>(x), static_cast<ScaleRule>(opaque_uniform(this->args.rule)));
#pragma unroll kUnrolled
    for (u32 part = 0; part < kParts; part++) {
      Values<kPart> some;
      for (u32 i = 0; i < kPart / 4; i++) some[i] = x[i];
#pragma unroll
      for (u32 i = 0; i + kPart / 4 < kBlockValues / 4; i++) x[i] = x[i + kPart / 4];
#pragma unroll
      for (u32 i = 0; i + kWords < kParts * kWords; i++) words[i] = words[i + kWords];
      const auto packed =
          nan_by<Element>(scaling.multiplier, pack<Element, kPart>(some, scaling.multiplier));
      for (u32 i = 0; i < kWords; i++) words[(kParts - 1) * kWords + i] = packed[i];
    }
    return scaling.byte;
  }
};

template <template <class> class Output, u32 kThreads, u32 kValues, class Args>
HIPGEMM_DEVICE void rms_norm_rows(const Args& args) {
  using Threads = RowThreads<kThreads>;
  static_assert(kValues == kThreads * Threads::kSteps * Threads::kChunk, "");
  static __shared__ typename Threads::Lds lds;
  static __shared__ u32x4 shared_weight[kValues * 2 / 16];
  const Threads threads{args.row_shift};
  const u32 blocks = threads.blocks(args.cols);

  // The rows of a workgroup share the weight in LDS, if it fits there.
  const auto weight_type = format_of(args.formats, Operand::weight);
  const u32 weight_bytes = element_bytes(weight_type), weight_parts = weight_bytes / 2;
  const bool shares = args.cols <= sizeof(shared_weight) / weight_bytes;
  const auto load_weight = [&](u32 first, u32x4(&parts)[2]) HIPGEMM_INLINE {
    load_parts(address_of(args.weight) + first * static_cast<u64>(weight_bytes),
               args.cols - smaller(first, args.cols), weight_type, parts);
  };
  if (shares) {
#pragma unroll 1
    for (u32 chunk = thread_index(); chunk * 8 < args.cols; chunk += kThreads) {
      u32x4 parts[2];
      load_weight(chunk * 8, parts);
      for (u32 i = 0; i < 2; i++)
        if (i < weight_parts) shared_weight[chunk * weight_parts + i] = parts[i];
    }
    sync_workgroup();
  }

  Output<Threads> out{{args, threads}};
  u32 row = workgroup_index() * args.sets * threads.rows() + threads.row();
#pragma unroll 1
  for (u32 set = 0; set < args.sets; set++, row += threads.rows()) {
    const u32 cols = row < args.rows ? args.cols : 0;
    f32 squares = 0, factor = 0;
    u32 load = 0;
#pragma unroll 1
    do {  // at least once, as the loop over sources: a condition before it would need registers
      const u32 block = load < blocks ? load : load - blocks;
      RowValuesOf<Threads> x;
      for (Values<8>& chunk : x)
        for (f32x4& four : chunk) four = f32x4(-0.0f);  // -0.0 + x is x, even for -0.0
      u32 source = 0;
#pragma unroll 1
      do {
        const auto type = format_of(args.formats, source ? Operand::residual : Operand::src);
        const u64 from =
            source ? address_of(args.residual) + row * static_cast<u64>(args.residual_pitch)
                   : address_of(args.src) + row * static_cast<u64>(args.src_pitch);
        for_each_chunk(
            threads, block, cols, x, [&](u32 first, u32 count, Values<8>& chunk) HIPGEMM_INLINE {
              Values<8> more;
              load_values(from + first * static_cast<u64>(element_bytes(type)), count, type, more);
              for (u32 i = 0; i < 2; i++) chunk[i] += more[i];
            });
      } while (++source < count_sources(args.formats));
      if (load < blocks) {
        for (const Values<8>& chunk : x) {
          const f32x4 four = chunk[0] * chunk[0] + chunk[1] * chunk[1];
          squares += (four.x + four.y) + (four.z + four.w);
        }
        if (count_sources(args.formats) == 2 && cols != 0) {
          const auto type = format_of(args.formats, Operand::sum);
          const u64 row_bytes = args.cols * static_cast<u64>(element_bytes(type));
          store_rounded(threads, block, args.cols, address_of(args.sum) + row * row_bytes, type, x);
        }
      }
      if (load + 1 == blocks) {
        const f32 mean = threads.sum(squares, lds) / static_cast<f32>(args.cols);
        factor = 1.0f / __builtin_sqrtf(mean + args.eps);
      }
      if (opaque_uniform(blocks) != 1 && load < blocks) continue;
      for_each_chunk(
          threads, block, cols, x, [&](u32 first, u32 count, Values<8>& chunk) HIPGEMM_INLINE {
            if (count == 0) return;
            u32x4 parts[2];
            Values<8> weight;
            if (shares)
              for (u32 i = 0; i < 2; i++)
                parts[i] = shared_weight[first / 8 * weight_parts + smaller(i, weight_parts - 1)];
            else
              load_weight(first, parts);
            widen_parts(parts, weight_type, weight);
            for (u32 i = 0; i < 2; i++) chunk[i] = chunk[i] * f32x4(factor) * weight[i];
          });
      out.take(row, block, x);
    } while (++load < (blocks == 1 ? 1 : 2 * blocks));
  }
  out.finish();
}

template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm(const RmsNormArgs& args) {
  rms_norm_rows<RoundedOutput, kThreads, kValues>(args);
}
template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm_fp8(const RmsNormFp8Args& args) {
  rms_norm_rows<Fp8Output, kThreads, kValues>(args);
}
template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm_mx(const RmsNormMxArgs& args) {
  rms_norm_rows<MxOutput, kThreads, kValues>(args);
}

}  // namespace hipgemm
