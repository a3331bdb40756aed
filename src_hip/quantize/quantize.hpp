// Quantizers: a workgroup takes a tile, a thread some turns (value_tile.hpp) of its rows, its
// columns, or both.
#pragma once

#include "common/element.hpp"
#include "common/join_lanes.hpp"
#include "common/kargs.hpp"
#include "common/memory.hpp"
#include "common/narrow.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "quantize/scale_pack.hpp"
#include "quantize/value_tile.hpp"

namespace hipgemm {

HIPGEMM_DEVICE u64 address_of(const void* p) { return reinterpret_cast<u64>(p); }

template <class Args>
HIPGEMM_DEVICE Matrix source_of(const Args& args) {
  return {address_of(args.src), args.src_row_stride, args.src_col_stride, args.rows, args.cols};
}

// Of the turns of a round, each of a block's threads sees to one: what this one found there.
template <class T>
struct OwnTurn {
  u32 value = 0;
  static HIPGEMM_DEVICE u32 own() { return T::thread() % T::kBlockThreads; }
  HIPGEMM_DEVICE void take(u32 turn, u32 found) { value = own() == turn ? found : value; }
};

// ---- one scale for a tensor or a row

// The greatest magnitudes of a tile. They raise floats in memory, compared as bits: with step 0 one
// for all, with step 1 one for each row.
class TileAmax {
 public:
  using Lds = u32[OneWayTile::kThreads / OneWayTile::kRowThreads];

  template <class T>
  HIPGEMM_DEVICE explicit TileAmax(const T& tile) {
#pragma unroll
    for (u32 turn = 0; turn < OneWayTile::kTurns; turn++) most_[turn] = tile.row_greatest(turn);
  }

  HIPGEMM_DEVICE void store(void* into, u32 step, const OneWayTile& tile, u32 rows,
                            Lds& lds) const {
    constexpr u32 kLine = OneWayTile::kRowThreads;
    static_assert(kLine == 16, "threads of a row, and rows of one turn");
    const u32 thread = OneWayTile::thread();
    if (step) {
      OwnTurn<OneWayTile> row_most;
#pragma unroll
      for (u32 turn = 0; turn < OneWayTile::kTurns; turn++)
        row_most.take(turn, join_lanes<kLine>(most_[turn], larger));
      const u32 row = tile.row(thread % OneWayTile::kTurns);
      if (thread % kLine < OneWayTile::kTurns && row < rows)
        atomic_max_in_device(global<u32>(address_of(into)) + row, row_most.value);
      return;
    }
    const u32 mine = larger(larger(most_[0], most_[1]), larger(most_[2], most_[3]));
    lds[thread / kLine] = join_lanes<kLine>(mine, larger);
    sync_workgroup();
    const u32 all = join_lanes<kLine>(lds[thread % kLine], larger);
    if (thread == 0) atomic_max_in_device(global<u32>(address_of(into)), all);
  }

 private:
  u32 most_[OneWayTile::kTurns];
};

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void amax(const AmaxArgs& args) {
  static_assert(OneWayTile::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayTile::Lds lds;
  static __shared__ TileAmax::Lds greatest_lds;
  with_type(args.in_type, [&]<class From>() HIPGEMM_INLINE {
    // In bands: few tiles of a row run together, so most find that they need not raise it.
    ValueTile<From, OneWayTile> tile(
        lds, OneWayTile::of<kBandTiles>(workgroup_index(), args.rows, args.cols));
    tile.load(source_of(args));
    TileAmax(tile).store(args.amax, args.amax_step, tile.at, args.rows, greatest_lds);
  });
}

// How numbers of a tensor or a row become codes.
struct AmaxScaling {
  f32 total;
  f32 up;  // codes are products with it; NaN where that is not enough: quantize_each

  template <class Element>
  static HIPGEMM_DEVICE AmaxScaling of(f32 amax, f32 eps) {
    const f32 total = amax + eps, scale = total / Element::kMax;
    const bool tiny = total < 0x1p-100f && scale != 0;  // kMax / total might overflow
    const bool lost = greater_magnitude(0, total) >= kInfinity;
    // Where the scale is 0, nothing is left but signs.
    return {total, tiny || lost ? __builtin_nanf("") : scale == 0 ? 0.0f : Element::kMax / total};
  }
  // Of the thread that saw to a turn's row.
  template <u32 kTurn>
  HIPGEMM_DEVICE AmaxScaling of_turn() const {
    const auto from = [](f32 x) HIPGEMM_INLINE {
      const u32 bits = __builtin_bit_cast(u32, x);
      return __builtin_bit_cast(f32, of_lane<OneWayTile::kRowThreads, kTurn>(bits));
    };
    return {from(total), from(up)};
  }
  // An amax that is NaN or infinite leaves nothing, visibly.
  HIPGEMM_DEVICE bool lost() const { return greater_magnitude(0, total) >= kInfinity; }

  template <class Element>
  HIPGEMM_DEVICE f32 scale() const {
    const f32 scale = total / Element::kMax;
    return lost() ? __builtin_nanf("") : scale == 0 ? 1.0f : scale;
  }

  template <class Element>
  HIPGEMM_DEVICE Codes quantize(const Values<8>& x) const {
    Values<8> scaled;
    bool all_numbers = true;
    for (u32 i = 0; i < 2; i++) {
      scaled[i] = x[i] * f32x4(up);
      for (u32 e = 0; e < 4; e++) all_numbers &= scaled[i][e] == scaled[i][e];
    }
    return all_numbers ? pack<Element, 8>(scaled) : quantize_each<Element>(x);
  }

 private:
  // One by one: this is rare. A NaN keeps its sign; machines differ in what is left of it in a
  // product or a code.
  template <class Element>
  HIPGEMM_DEVICE Codes quantize_each(const Values<8>& x) const {
    if (lost()) return Codes(0x7f7f7f7f);
    Codes codes = 0;
#pragma unroll 1
    for (u32 at = 0; at < 8; at++) {
      f32 value = x[0][0];
#pragma unroll
      for (u32 i = 1; i < 8; i++) value = at == i ? x[i / 4][i % 4] : value;
      const f32 scaled = up == up ? value * up : value / total * Element::kMax;
      const u32 sign = value == value ? 0 : __builtin_bit_cast(u32, value) >> 24 & 0x80;
      const u32 code = pack<Element, 8>({f32x4(scaled), f32x4(scaled)}).x & 0xff;
      const u32 kept = (scaled == scaled ? code : 0x7f | sign) << at % 4 * 8;
      codes |= Codes{at < 4 ? kept : 0, at < 4 ? 0 : kept};
    }
    return codes;
  }
};

template <class Element, class T>
HIPGEMM_DEVICE void quantize_fp8_tile(const QuantizeFp8Args& args, const T& tile) {
  // Of the 16 threads of a row in each turn, the first four see to the amax of one turn each.
  const u32 own_row = tile.at.row(OneWayTile::thread() % OneWayTile::kTurns);
  f32 amax = 0;
  if (!args.amax_step)
    amax = load_scalar(args.amax);
  else if (OneWayTile::thread() % OneWayTile::kRowThreads < OneWayTile::kTurns &&
           own_row < args.rows)
    amax = global<f32>(address_of(args.amax))[own_row];
  const auto scaling = AmaxScaling::of<Element>(amax, args.eps);
  const u32 col = tile.at.col(), row = tile.at.row(0);
  const u64 pitch = args.dst_pitch;
  const CodeLine<Element> to(address_of(args.dst) + row * pitch, col, args.cols);
  unrolled<OneWayTile::kTurns>([&]<u32 turn>() HIPGEMM_INLINE {
    Values<8> x;
    tile.read_row(turn, x);
    const auto of_row = args.amax_step ? scaling.template of_turn<turn>() : scaling;
    const Codes codes = of_row.template quantize<Element>(x);
    constexpr u32 kDown = turn * OneWayTile::kRowStep;
    if (to.exists && row + kDown < args.rows) *global<Codes>(to.address + kDown * pitch) = codes;
  });
  const u32 scales = args.amax_step ? args.rows : 1;
  if (col < OneWayTile::kTurns * OneWayTile::kValues && tile.at.first_col == 0 && own_row < scales)
    global<f32>(address_of(args.scale))[own_row] = scaling.template scale<Element>();
}

template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_fp8(const QuantizeFp8Args& args) {
  static_assert(OneWayTile::is(kThreads, kRows, kCols), "");
  static __shared__ OneWayTile::Lds lds;
  static __shared__ TileAmax::Lds greatest_lds;
  with_type(args.in_type, [&]<class From>() HIPGEMM_INLINE {
    ValueTile<From, OneWayTile> tile(lds, OneWayTile::of(workgroup_index(), args.rows, args.cols));
    tile.load(source_of(args));
    if (args.next)
      TileAmax(tile).store(args.next, args.amax_step, tile.at, args.rows, greatest_lds);
    if (static_cast<Format>(args.element) == Format::fp8_e5m2)
      quantize_fp8_tile<E5m2>(args, tile);
    else
      quantize_fp8_tile<E4m3>(args, tile);
  });
}

// ---- one scale for 32 values

// Where the result of one direction goes. A line is a row of it, K runs along the blocks. Scales
// lie block by block, lines side by side, as a workgroup makes them: bytes far apart would cost a
// transaction each.
struct BlockedOutput {
  void *data, *scale, *gemm_scale;
  i64 pitch, scale_pitch;
  u32 lines, k;

  // Of the block that a thread sees to.
  template <class Element>
  HIPGEMM_DEVICE void store_scale(u32 line, u32 first, u32 byte) const {
    const bool exists = line < lines && first / kBlockValues * kBlockValues < k;
    if (exists && scale)
      global<u8>(address_of(scale) + first / kBlockValues * static_cast<u64>(scale_pitch))[line] =
          static_cast<u8>(byte);
    if (gemm_scale)
      store_gemm_scale<Element::kBits == 4 ? 2 : 1>(line, first, exists ? byte : kNeutralScale);
  }

 private:
  // Padding is written as well: rows up to 16, steps up to a tile of K, and the first place if no
  // step has it. `turn` is the place of a step in the order of the K loop here (scale_layout.hpp).
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

// The scales of a block's turns of a round, each worked out by one of its threads.
template <class Element, class T>
class RoundScales {
 public:
  HIPGEMM_DEVICE void take(u32 turn, u32 greatest) {
    most_.take(turn, join_lanes<T::kBlockThreads>(greatest, larger));
  }
  HIPGEMM_DEVICE void settle(ScaleRule rule) { own_ = BlockScale::of<Element>(most_.value, rule); }
  HIPGEMM_DEVICE u32 own_byte() const { return own_.byte; }
  template <u32 kTurn>
  HIPGEMM_DEVICE f32 up() const {
    const u32 bits = __builtin_bit_cast(u32, own_.up);
    return __builtin_bit_cast(f32, of_lane<T::kBlockThreads, kTurn>(bits));
  }

 private:
  OwnTurn<T> most_;
  BlockScale own_;
};

// A thread's turns along rows, or down columns, in the same words.
template <class V>
struct RowTurns {
  const V& tile;
  HIPGEMM_DEVICE u32 first() const { return tile.at.col(); }
  HIPGEMM_DEVICE u32 line(u32 turn) const { return tile.at.row(turn); }
  static constexpr u32 down(u32 turn) { return turn * V::T::kRowStep; }
  HIPGEMM_DEVICE u32 most(u32 turn) const { return tile.row_greatest(turn); }
  HIPGEMM_DEVICE void read(u32 turn, Values<V::kValues>& x) const { tile.read_row(turn, x); }
};
template <class V>
struct ColTurns {
  const V& tile;
  HIPGEMM_DEVICE u32 first() const { return tile.at.row(); }
  HIPGEMM_DEVICE u32 line(u32 turn) const { return tile.col(turn); }
  static constexpr u32 down(u32 turn) { return V::cols_on(turn); }
  HIPGEMM_DEVICE u32 most(u32 turn) const { return tile.col_greatest(turn); }
  HIPGEMM_DEVICE void read(u32 turn, Values<V::kValues>& x) const { tile.read_col(turn, x); }
};

// The Hadamard transform of a turn's values, but for its factor. That is a power of two, which the
// caller's scale takes in; values so small that the product with it may be rounded get it here, as
// the rule has it. Returns the greatest magnitude of the block, transformed.
template <class T>
HIPGEMM_DEVICE u32 transform(Values<16>& x, f32& factor) {
  hadamard_sums(x);
  const u32 most = join_lanes<T::kBlockThreads>(greatest<16>(x), larger);
  factor = kHadamardFactor;
  if (most < __builtin_bit_cast(u32, 0x1p-100f)) {
    scale_values(x, kHadamardFactor);
    factor = 1;
  }
  return __builtin_bit_cast(u32, __builtin_bit_cast(f32, most) * kHadamardFactor);
}

template <class Element, class V, u32 kFirstTurn, class Turns>
HIPGEMM_DEVICE void quantize_round(const Turns& turns, const BlockedOutput& out, ScaleRule rule,
                                   bool transforms) {
  using T = typename V::T;
  const u32 first = turns.first(), line = turns.line(0);
  const u64 pitch = out.pitch;
  const CodeLine<Element> to(address_of(out.data) + line * pitch, first, out.k);
  const auto store = [&](u32 turn, Codes codes) HIPGEMM_INLINE {
    const u32 down = Turns::down(kFirstTurn + turn);
    if (to.exists && line + down < out.lines) *global<Codes>(to.address + down * pitch) = codes;
  };
  const auto store_scale = [&](u32 byte) HIPGEMM_INLINE {
    out.store_scale<Element>(turns.line(kFirstTurn + OwnTurn<T>::own()), first, byte);
  };
  if constexpr (Element::kBits == 4) {
    if (transforms) {  // one turn after the other, for the sake of registers
      OwnTurn<T> bytes;
#pragma unroll
      for (u32 turn = 0; turn < T::kBlockThreads; turn++) {
        Values<16> x;
        f32 factor;
        turns.read(kFirstTurn + turn, x);
        const auto scale = BlockScale::of<Element>(transform<T>(x, factor), rule);
        store(turn, quantize_by<Element, 16>(scale.up * factor, x));
        bytes.take(turn, scale.byte);
      }
      return store_scale(bytes.value);
    }
  }
  RoundScales<Element, T> scales;
#pragma unroll
  for (u32 turn = 0; turn < T::kBlockThreads; turn++)
    scales.take(turn, turns.most(kFirstTurn + turn));
  scales.settle(rule);
  unrolled<T::kBlockThreads>([&]<u32 turn>() HIPGEMM_INLINE {
    Values<V::kValues> x;
    turns.read(kFirstTurn + turn, x);
    store(turn, quantize_by<Element, V::kValues>(scales.template up<turn>(), x));
  });
  store_scale(scales.own_byte());
}
template <class Element, class V, class Turns>
HIPGEMM_DEVICE void quantize_turns(const Turns& turns, const BlockedOutput& out, ScaleRule rule,
                                   bool transforms) {
  unrolled<V::T::kRounds>([&]<u32 round>() HIPGEMM_INLINE {
    quantize_round<Element, V, round * V::T::kBlockThreads>(turns, out, rule, transforms);
  });
}

template <class Element, class V>
HIPGEMM_DEVICE void quantize_mx(const QuantizeMxArgs& args, V& tile) {
  const auto rule = static_cast<ScaleRule>(args.rule);
  if (args.row_data)
    quantize_turns<Element, V>(RowTurns<V>{tile},
                               {args.row_data, args.row_scale, args.row_gemm_scale, args.row_pitch,
                                args.row_scale_pitch, args.rows, args.cols},
                               rule, args.hadamard);
  if (!args.col_data) return;
  tile.finish_transpose();
  quantize_turns<Element, V>(ColTurns<V>{tile},
                             {args.col_data, args.col_scale, args.col_gemm_scale, args.col_pitch,
                              args.col_scale_pitch, args.cols, args.rows},
                             rule, args.hadamard);
}

// f(the values of this workgroup's tile). Along K the grid covers whole units of scales.
template <class From, class T, u32 kBand, class F>
HIPGEMM_DEVICE void with_mx_tile(const QuantizeMxArgs& args, typename T::Lds& lds, F f) {
  const auto covered = [](u32 k) HIPGEMM_INLINE {
    return (k + kUnitNumbers - 1) / kUnitNumbers * kUnitNumbers;
  };
  const u32 cols = args.row_data ? covered(args.cols) : args.cols;
  const T at = args.col_data ? T::template of<kBand>(workgroup_index(), covered(args.rows), cols)
                             : T::of(workgroup_index(), args.rows, cols);
  ValueTile<From, T> tile(lds, at);
  tile.load(source_of(args));
  if (args.col_data) tile.begin_transpose();
  f(tile);
}

// Whole lines of 128 bytes of codes, either way.
template <class From, class T>
HIPGEMM_DEVICE void quantize_mxfp8_as(const QuantizeMxArgs& args, typename T::Lds& lds) {
  with_mx_tile<From, T, kBandTiles>(args, lds, [&](auto& tile) HIPGEMM_INLINE {
    if (static_cast<Format>(args.element) == Format::mxfp8_e5m2)
      quantize_mx<E5m2>(args, tile);
    else
      quantize_mx<E4m3>(args, tile);
  });
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp8(const QuantizeMxArgs& args) {
  using T = Tile<128, 128, kValuesOf<E4m3>>;
  static_assert(T::is(kThreads, kRows, kCols), "");
  static __shared__ T::Lds lds;
  with_16bit_type(args.in_type,
                  [&]<class From>() HIPGEMM_INLINE { quantize_mxfp8_as<From, T>(args, lds); });
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp8_f32(const QuantizeMxArgs& args) {
  using T = Tile<128, 128, kValuesOf<E4m3>>;
  static_assert(T::is(kThreads, kRows, kCols), "");
  static __shared__ T::Lds lds;
  quantize_mxfp8_as<FromF32, T>(args, lds);
}

// Arithmetic takes longer than memory here: small workgroups, and more values for a thread's work
// on addresses, as far as registers go.
template <class From, class T>
HIPGEMM_DEVICE void quantize_mxfp4_as(const QuantizeMxArgs& args, typename T::Lds& lds) {
  with_mx_tile<From, T, 1>(args, lds,
                           [&](auto& tile) HIPGEMM_INLINE { quantize_mx<E2m1>(args, tile); });
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp4(const QuantizeMxArgs& args) {
  using T = Tile<64, 128, kValuesOf<E2m1>, 64>;
  static_assert(T::is(kThreads, kRows, kCols), "");
  static __shared__ T::Lds lds;
  with_16bit_type(args.in_type,
                  [&]<class From>() HIPGEMM_INLINE { quantize_mxfp4_as<From, T>(args, lds); });
}
template <u32 kThreads, u32 kRows, u32 kCols>
HIPGEMM_DEVICE void quantize_mxfp4_f32(const QuantizeMxArgs& args) {
  using T = Tile<64, 128, kValuesOf<E2m1>>;
  static_assert(T::is(kThreads, kRows, kCols), "");
  static __shared__ T::Lds lds;
  quantize_mxfp4_as<FromF32, T>(args, lds);
}

}  // namespace hipgemm
