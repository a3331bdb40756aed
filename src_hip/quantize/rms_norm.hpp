// RMS norm of rows, after the sum with a residual: rounded, or quantized.
#pragma once

#include "common/kargs.hpp"
#include "common/types.hpp"
#include "quantize/fp8.hpp"
#include "quantize/load_row.hpp"
#include "quantize/mx.hpp"
#include "quantize/row_chunks.hpp"
#include "quantize/row_threads.hpp"

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

// A row of a matrix whose rows follow each other.
HIPGEMM_DEVICE RowMemory dense_row(u64 matrix, u32 row, u32 cols, Format type) {
  return {matrix + row * (cols * static_cast<u64>(element_bytes(type))), cols, type};
}

// Whether there is a loop for each type of the weight: fewer instructions, more code.
#if defined(__NVPTX__)
inline constexpr bool kUnswitches = true;
#else
inline constexpr bool kUnswitches = false;
#endif

// What becomes of normalized values. take(row, first, chunk) of all threads, where first(step) is
// the first of a step in the row, and chunk(step, x) computes them; finish() at the end.
template <class Threads, class Args>
struct Output {
  static constexpr bool kKnowsWeight = false;  // in a loop of its own for each type
  const Args& args;
  const Threads& threads;

  HIPGEMM_DEVICE bool exists(u32 row) const { return row < args.rows; }
  HIPGEMM_DEVICE Format format() const { return format_of(args.formats, Operand::dst); }
  HIPGEMM_DEVICE u64 quantized(const void* dst, u32 row, u32 bits) const {
    return address_of(dst) +
           row * (opaque(count_chunks(args.cols, bits)) * static_cast<u64>(kChunkBytes));
  }
};

template <class Threads>
struct RoundedOutput : Output<Threads, RmsNormArgs> {
  static constexpr bool kKnowsWeight = kUnswitches;
  template <RowKind kKind, class First, class Chunk>
  HIPGEMM_DEVICE void take(u32 row, First first, Chunk chunk) {
    if (!this->exists(row)) return;
    const auto to = dense_row(address_of(this->args.dst), row, this->args.cols, this->format());
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) {
      Values<8> x;
      chunk(step, x);
      store_row_chunk<kKind>(to, first(step), x);
    }
  }
  HIPGEMM_DEVICE void finish() {}
};

template <class Threads>
struct Fp8Output : Output<Threads, RmsNormFp8Args> {
  void* next = in_vector(this->args.next);  // of scalar registers there are too few
  u32 amax = 0;

  template <RowKind kKind, class First, class Chunk>
  HIPGEMM_DEVICE void take(u32 row, First first, Chunk chunk) {
    if (this->format() == Format::fp8_e5m2)
      take_as<E5m2>(row, first, chunk);
    else
      take_as<E4m3>(row, first, chunk);
  }
  HIPGEMM_DEVICE void finish() {
    amax = reduce_lanes<Threads::kGroup>(amax, larger);
    if (thread_index() % Threads::kGroup == 0)
      atomic_max_in_device(global<u32>(address_of(next)), amax);
  }

 private:
  template <class Element, class First, class Chunk>
  HIPGEMM_DEVICE void take_as(u32 row, First first, Chunk chunk) {
    const auto& args = this->args;
    const auto scaling = AmaxScaling<Element>::of(load_scalar(args.amax), args.amax_eps);
    if (row == 0 && thread_index() == 0) *global<f32>(address_of(args.scale)) = scaling.scale();
    if (!this->exists(row)) return;
    const u32 cols = opaque_uniform(args.cols);
    const u64 to = this->quantized(args.dst, row, Element::kBits);
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) {
      Values<8> x;
      chunk(step, x);
      amax = larger(amax, values_amax<8>(x));
      const u32 at = first(step);
      QuantizedRow<Element>(to, at, cols).store(0, scaling.quantize(x, ToNearest(), row, at));
    }
  }
};

// The scales of whole rows, until there are those of kSets sets. The rows are their contiguous
// axis: the few of one set in each block would cost as much as a cache line.
template <class Threads>
struct StagedScales {
  static constexpr u32 kSets = 16, kPad = 4;  // other banks for neighbouring blocks
  using Lds = u8[Threads::kThreads * (kSets + kPad)];
  u32 sets = 0, first_row = 0;

  HIPGEMM_DEVICE static Lds& lds() {
    static __shared__ Lds bytes;
    return bytes;
  }
  HIPGEMM_DEVICE static u32 index(const Threads& threads, u32 block, u32 row) {
    return block * (kSets * threads.rows() + kPad) + row;
  }
  // A thread's block of its row.
  HIPGEMM_DEVICE void take(const Threads& threads, u32 row, u32 block, u32 byte) {
    if (sets == 0) first_row = uniform(row - threads.row());
    lds()[index(threads, block, sets * threads.rows() + threads.row())] = static_cast<u8>(byte);
    sets++;
  }
  // store(row, block, byte) for all, neighbouring threads those of neighbouring rows.
  template <class Store>
  HIPGEMM_DEVICE void flush(const Threads& threads, Store store) {
    sync_workgroup();
    u32 shift = 0;  // of as many sets or a few more
    while (1u << shift < sets) shift++;
    const u32 rows = threads.rows() << shift, more = opaque_uniform(threads.shift);
#pragma unroll 1
    for (u32 i = thread_index(); i < Threads::kThreads << shift; i += Threads::kThreads) {
      const u32 row = i & (rows - 1), block = (i >> shift << more) / Threads::kThreads;
      if (row < sets * threads.rows())
        store(first_row + row, block, lds()[index(threads, block, row)]);
    }
    sync_workgroup();
    sets = 0;
  }
};

// k8Bits: to elements of 8 bits, else to smaller ones.
template <class Threads, bool k8Bits>
struct MxOutput : Output<Threads, RmsNormMxArgs> {
  static constexpr bool kKnowsWeight = kUnswitches && k8Bits;
  // In vector registers: of scalar ones there are too few.
  void *data = in_vector(this->args.dst), *scale = in_vector(this->args.scale);
  u32 rule = opaque(this->args.rule);
  void* gemm_scale = in_vector(this->args.gemm_scale);
  StagedScales<Threads> staged{};

  template <RowKind kKind, class First, class Chunk>
  HIPGEMM_DEVICE void take(u32 row, First first, Chunk chunk) {
    RowChunks<Threads> x;
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) chunk(step, x[step]);
    switch (this->format()) {
#define SCALED_FORMAT(name, code, bits, element, values)    \
  case Format::name:                                        \
    if constexpr ((values) != 0 && ((bits) == 8) == k8Bits) \
      take_as<kKind, element>(row, first, x);               \
    break;
#include "common/formats.def"
      default:
        break;
    }
  }
  HIPGEMM_DEVICE void finish() {
    if (staged.sets == 0) return;
    if (bits_of(this->format()) == E2m1::kBits)
      store_staged<E2m1>();
    else
      store_staged<E4m3>();  // as all others
  }

 private:
  // Four neighbours have four blocks of 32 values, one in each step; each owns one of them.
  static constexpr u32 kBlockThreads = kBlockValues / Threads::kChunk;
  static_assert(Threads::kSteps <= kBlockThreads, "");
  struct Map {
    static constexpr u32 kBlockThreads = MxOutput::kBlockThreads;
    static HIPGEMM_DEVICE u32 thread() { return opaque(thread_index()); }
  };

  template <RowKind kKind, class Element, class First>
  HIPGEMM_DEVICE void take_as(u32 row, First first, RowChunks<Threads>& x) {
    const u32 owned = first(OwnedIteration<Map>::index()) / kBlockValues * kBlockValues;
    const u64 to = this->quantized(data, row, Element::kBits);
    u32 byte;
    if constexpr (kValuesOf<Element> == Threads::kChunk)
      byte = store_chunks_of_blocks<kKind, Element>(row, first, x, to);
    else
      byte = store_block<Element>(row, owned, x, to);
    if constexpr (kKind == RowKind::any) return store_scale<Element>(row, owned, byte);
    staged.take(this->threads, row, owned / kBlockValues, byte);
    if (staged.sets == staged.kSets) store_staged<Element>();
  }
  template <class Element>
  HIPGEMM_DEVICE void store_scale(u32 row, u32 first, u32 byte) const {
    const u32 rows = opaque_uniform(this->args.rows), cols = opaque_uniform(this->args.cols);
    BlockedOutput{data, scale, gemm_scale, 0, rows, rows, cols}.store_scale<Element>(row, first,
                                                                                     byte);
  }
  template <class Element>
  HIPGEMM_DEVICE void store_staged() {
    staged.flush(this->threads, [&](u32 row, u32 block, u32 byte) HIPGEMM_INLINE {
      store_scale<Element>(row, block * kBlockValues, byte);
    });
  }

  // A thread's own chunks, by scales that neighbours share. Returns the scale of its block.
  template <RowKind kKind, class Element, class First>
  HIPGEMM_DEVICE u32 store_chunks_of_blocks(u32 row, First first, RowChunks<Threads>& x, u64 to) {
    const u32 cols = opaque_uniform(this->args.cols);
    const u32 end = this->exists(row) ? (cols + kChunkBytes - 1) / kChunkBytes * kChunkBytes : 0;
    PassScales<Element, Map> scales;
#pragma unroll
    for (u32 step = 0; step < Threads::kSteps; step++) scales.take(step, values_amax<8>(x[step]));
    scales.compute(static_cast<ScaleRule>(uniform(rule)));
    unrolled<Threads::kSteps>([&]<u32 i>(Index<i> step) HIPGEMM_INLINE {
      const f32 multiplier = scales.multiplier(step);
      auto packed = pack<Element, 8>(x[i], multiplier);
      if constexpr (!HIPGEMM_PAIR_CASTS)  // they make the same NaN
        packed = nan_by<Element>(multiplier, packed);
      const u32 at = first(i);
      if constexpr (kKind != RowKind::any) {  // chunks exist as a whole or not at all
        if (at < end) *global<u32x2>(to + at) = packed;
      } else if (this->exists(row)) {
        QuantizedRow<Element>(to, at, cols).store(0, packed);
      }
    });
    return scales.owned_byte();
  }

  // The block that a thread owns, after its neighbours' values have come. Returns its scale.
  template <class Element>
  HIPGEMM_DEVICE u32 store_block(u32 row, u32 first, RowChunks<Threads>& x, u64 to) {
    Values<kBlockValues> mine;
#pragma unroll
    for (u32 half = 0; half < 2; half++) {
      u32x4 pieces[kBlockThreads];
      for (u32 i = 0; i < kBlockThreads; i++) pieces[i] = __builtin_bit_cast(u32x4, x[i][half]);
      transpose_lanes(pieces);
      for (u32 i = 0; i < kBlockThreads; i++)
        mine[2 * i + half] = __builtin_bit_cast(f32x4, pieces[i]);
    }
    u32 words[8] = {};
    const u32 byte = pack_block<Element>(mine, words);
    if (!this->exists(row)) return byte;
    // 16 bytes at a time, or 8 of 24.
    const u64 end = to + count_chunks(opaque_uniform(this->args.cols), Element::kBits) *
                             static_cast<u64>(kChunkBytes);
    const u64 begin = to + first / kBlockValues * static_cast<u64>(Element::kBits * 4);
    constexpr u32 kWords = Element::kBits == 6 ? 2 : 4;
#pragma unroll
    for (u32 at = 0; at < Element::kBits; at += kWords) {
      Vector<u32, kWords> piece;
      for (u32 i = 0; i < kWords; i++) piece[i] = words[at + i];
      if (begin + at * 4 < end) *global<Vector<u32, kWords>>(begin + at * 4) = piece;
    }
    return byte;
  }

  // Returns the scale byte. Without instructions for the casts a loop, for shorter code: the next
  // values are the first ones left, and the words rotate.
  template <class Element>
  HIPGEMM_DEVICE u32 pack_block(Values<kBlockValues>& x, u32 (&words)[8]) const {
    constexpr u32 kPart = kValuesOf<Element>, kParts = kBlockValues / kPart;
    constexpr u32 kWords = kPart * Element::kBits / 32;
    constexpr u32 kUnrolled = HIPGEMM_LOW_PRECISION_CASTS ? kParts : 1;
    const auto scaling = BlockScale::of<Element>(values_amax<kBlockValues>(x),
                                                 static_cast<ScaleRule>(uniform(rule)));
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

struct AnyType {};

// The weight, which the rows of a workgroup share in LDS if it fits there: chunks of 16 bytes, the
// second ones of float32 after all first ones, so that neighbours use other banks.
template <u32 kThreads, u32 kParts>
class Weight {
 public:
  using Lds = u32x4[kParts];

  HIPGEMM_DEVICE Weight(const void* weight, u32 formats, u32 length, Lds& lds)
      : address_(address_of(in_vector(const_cast<void*>(weight)))),
        formats_(formats),
        length_(length),
        lds_(lds) {}

  HIPGEMM_DEVICE bool is_shared() const { return length_ <= sizeof(Lds) / element_bytes(type()); }
  HIPGEMM_DEVICE void share() const {
#pragma unroll 1
    for (u32 chunk = thread_index(); chunk * 8 < length_; chunk += kThreads) {
      u32x4 parts[2];
      load(chunk * 8, parts);
      for (u32 i = 0; i < 2; i++)
        if (i < parts_of_chunk()) lds_[i * chunks() + chunk] = parts[i];
    }
    sync_workgroup();
  }
  // Of a chunk.
  HIPGEMM_DEVICE void read(u32 first, Values<8>& weight) const {
    if (is_shared()) return read_shared(AnyType(), first, weight);
    u32x4 parts[2];
    load(first, parts);
    widen_parts(parts, type(), weight);
  }
  HIPGEMM_DEVICE void read_shared(AnyType, u32 first, Values<8>& weight) const {
    u32x4 parts[2] = {lds_[first / 8], u32x4(0)};
    if (type() == Format::f32) parts[1] = lds_[chunks() + first / 8];
    widen_parts(parts, type(), weight);
  }
  template <class From>
  HIPGEMM_DEVICE void read_shared(From, u32 first, Values<8>& weight) const {
    u32x4 parts[sizeof(typename From::Bits) / 2] = {lds_[first / 8]};
    if constexpr (sizeof(parts) == 32) parts[1] = lds_[chunks() + first / 8];
    widen_parts<From>(parts, weight);
  }
  HIPGEMM_DEVICE Format type() const { return format_of(formats_, Operand::weight); }

 private:
  HIPGEMM_DEVICE u32 chunks() const { return (opaque_uniform(length_) + 7) / 8; }
  HIPGEMM_DEVICE u32 parts_of_chunk() const { return element_bytes(type()) / 2; }
  HIPGEMM_DEVICE void load(u32 first, u32x4 (&parts)[2]) const {
    load_parts(address_ + first * static_cast<u64>(element_bytes(type())),
               length_ - smaller(first, length_), type(), parts);
  }

  u64 address_;
  u32 formats_, length_;
  Lds& lds_;
};

HIPGEMM_DEVICE f32 sum_of_squares(const Values<8>& x) {
  const f32x4 four = x[0] * x[0] + x[1] * x[1];
  return (four.x + four.y) + (four.z + four.w);
}

// Rows, by the number of threads that share each.
template <class Threads, class Args, class Weight>
struct RmsNormRows {
  const Args& args;
  const Threads& threads;
  const Weight& weight;
  typename Threads::Lds (&lds)[2];

  HIPGEMM_DEVICE u32 first_row() const {
    return workgroup_index() * args.sets * threads.rows() + threads.row();
  }
  HIPGEMM_DEVICE bool has_residual() const { return opaque_uniform(args.formats) >> 25 != 0; }
  HIPGEMM_DEVICE Format src_format() const { return format_of(args.formats, Operand::src); }

  // By which the values of a row are multiplied.
  HIPGEMM_DEVICE f32 factor(f32 squares, u32 set) const {
    const f32 mean = threads.sum(squares, lds[set % 2]) / static_cast<f32>(opaque(args.cols));
    return 1.0f / __builtin_sqrtf(mean + args.eps);
  }
  template <class ReadWeight>
  HIPGEMM_DEVICE void normalize(u32 first, f32 factor, Values<8>& x, ReadWeight read) const {
    if (first >= args.cols) return;  // zeros
    Values<8> by;
    read(first, by);
    for (u32 i = 0; i < 2; i++) x[i] = x[i] * f32x4(factor) * by[i];
  }

  // Unless kKind is any, the values of a row fit the registers.
  template <RowKind kKind, class Out>
  HIPGEMM_DEVICE void run(Out& out) const {
    constexpr bool kWhole = kKind != RowKind::any;
    const u32 blocks = kWhole ? 1 : threads.blocks(args.cols);
    u32 row = first_row();
#pragma unroll 1
    for (u32 set = 0; set < args.sets; set++, row += threads.rows()) {
      f32 squares = 0, by = 0;
#pragma unroll 1
      for (u32 load = 0; load < (blocks == 1 ? 1 : 2 * blocks); load++) {
        const u32 block = load < blocks ? load : load - blocks;
        RowChunks<Threads> x;
        const auto source = [&](bool second) HIPGEMM_INLINE {
          const u64 matrix = address_of(second ? args.residual : args.src);
          const u64 pitch = second ? args.residual_pitch : args.src_pitch;
          return RowMemory{matrix + row * pitch, row < args.rows ? args.cols : 0,
                           second ? format_of(args.formats, Operand::residual) : src_format()};
        };
        if constexpr (kWhole) {
          load_chunks(threads, block, source(false), x);
          if (has_residual()) add_chunks(threads, block, source(true), x);
        } else {
          sum_of_rows(threads, block, has_residual() ? 2 : 1, source, x);
        }
        if (load < blocks) {
#pragma unroll
          for (const Values<8>& chunk : x) squares += sum_of_squares(chunk);
          if (has_residual() && row < args.rows)
            store_chunks<kKind>(threads, block,
                                dense_row(address_of(args.sum), row, args.cols,
                                          format_of(args.formats, Operand::sum)),
                                x);
        }
        if (load + 1 == blocks) by = factor(squares, set);
        if (blocks != 1 && load < blocks) continue;
        const auto first = [&](u32 step) HIPGEMM_INLINE { return threads.first(block, step); };
        out.template take<kKind>(row, first, [&](u32 step, Values<8>& values) HIPGEMM_INLINE {
          for (u32 i = 0; i < 2; i++) values[i] = x[step][i];
          normalize(first(step), by, values,
                    [&](u32 at, Values<8>& w) HIPGEMM_INLINE { weight.read(at, w); });
        });
      }
    }
  }

  // The same for whole rows of bfloat16, without residual, by a weight in LDS. A thread keeps their
  // bits, in half as many registers as their values.
  template <class WeightType, class Out>
  HIPGEMM_DEVICE void run_bf16(Out& out) const {
    const u32 begin = threads.first(0, 0), step_values = threads.first(0, 1) - begin;
    const auto first = [&](u32 step) HIPGEMM_INLINE { return opaque(begin) + step * step_values; };
    u32 row = first_row();
#pragma unroll 1
    for (u32 set = 0; set < args.sets; set++, row += threads.rows()) {
      ChunkBits<Threads> bits;
      load_chunk_bits<Threads>(address_of(args.src) + row * static_cast<u64>(args.src_pitch),
                               opaque(begin) * 2, step_values * 2,
                               row < args.rows ? args.cols * 2 : 0, bits);
      const u32 next = row + threads.rows();
      prefetch_chunks<Threads>(address_of(args.src) + next * static_cast<u64>(args.src_pitch),
                               begin * 2, step_values * 2,
                               set + 1 < args.sets && next < args.rows ? args.cols * 2 : 0);
      const auto widen = [&](u32 step, Values<8>& x) HIPGEMM_INLINE {
        const u32x4 parts[1] = {bits[step]};
        widen_parts<FromBf16>(parts, x);
      };
      f32 squares = 0;
#pragma unroll
      for (u32 step = 0; step < Threads::kSteps; step++) {
        Values<8> x;
        widen(step, x);
        squares += sum_of_squares(x);
      }
      const f32 by = factor(squares, set);
      out.template take<RowKind::bf16>(row, first, [&](u32 step, Values<8>& x) HIPGEMM_INLINE {
        widen(step, x);
        normalize(first(step), by, x, [&](u32 at, Values<8>& w) HIPGEMM_INLINE {
          weight.read_shared(WeightType(), at, w);
        });
      });
    }
  }
};

template <class Threads>
using Mxfp8Output = MxOutput<Threads, true>;
template <class Threads>
using SmallMxOutput = MxOutput<Threads, false>;

// Chunks of LDS for the weight of as many 16-bit elements, if there is so much besides what else is
// there.
#if defined(__gfx950__)
inline constexpr u32 kMostWeightParts = 65536 / 16;
#else
inline constexpr u32 kMostWeightParts = 32768 / 16;
#endif
HIPGEMM_BOTH constexpr u32 weight_parts(u32 values) {
  const u32 parts = values * 2 / 16;
  return parts <= kMostWeightParts ? parts : 1;
}

template <template <class> class Output, u32 kThreads, u32 kValues, class Args>
HIPGEMM_DEVICE void rms_norm_with(const Args& args) {
  using Threads = RowThreads<kThreads, kValues>;
  constexpr u32 kParts = weight_parts(kValues);
  using SharedWeight = Weight<kThreads, kParts>;
  static __shared__ typename Threads::Lds lds[2];
  static __shared__ typename SharedWeight::Lds weight_lds;
  const Threads threads{args.row_shift};
  const SharedWeight weight(args.weight, args.formats, args.cols, weight_lds);
  if (weight.is_shared()) weight.share();
  Output<Threads> out{{args, threads}};
  const u64 places = address_of(args.src) | args.src_pitch | address_of(args.residual) |
                     args.residual_pitch | address_of(args.sum) | address_of(args.dst);
  const RmsNormRows<Threads, Args, SharedWeight> rows{args, threads, weight, lds};
  if (!HIPGEMM_SPECIAL_PASSES || threads.blocks(args.cols) != 1 || args.cols % 8 != 0 ||
      places % 16 != 0)
    rows.template run<RowKind::any>(out);
  else if (kParts > 1 && rows.src_format() == Format::bf16 && !rows.has_residual() &&
           weight.is_shared()) {
    if constexpr (Output<Threads>::kKnowsWeight)
      with_type(static_cast<u32>(weight.type()), [&]<class WeightType>(WeightType) HIPGEMM_INLINE {
        rows.template run_bf16<WeightType>(out);
      });
    else
      rows.template run_bf16<AnyType>(out);
  } else {
    rows.template run<RowKind::whole>(out);
  }
  out.finish();
}

template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm(const RmsNormArgs& args) {
  rms_norm_with<RoundedOutput, kThreads, kValues>(args);
}
template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm_fp8(const RmsNormFp8Args& args) {
  rms_norm_with<Fp8Output, kThreads, kValues>(args);
}
template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm_mx(const RmsNormMxArgs& args) {
  rms_norm_with<SmallMxOutput, kThreads, kValues>(args);
}
template <u32 kThreads, u32 kValues>
HIPGEMM_DEVICE void rms_norm_mxfp8(const RmsNormMxArgs& args) {
  rms_norm_with<Mxfp8Output, kThreads, kValues>(args);
}

}  // namespace hipgemm
