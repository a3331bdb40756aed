// Schedules: the order in which a workgroup fetches, reads and multiplies along K.
#pragma once

#include "common/types.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/dma.hpp"
#include "gemm/scales.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// How many K tiles follow the current one, as far as its fetches depend on it.
enum class Remaining { two_or_more, one, none };

// Where a K tile begins in the rows of the operands, in bytes.
template <class T>
struct KOffset {
  u32 a, other;  // of B, unless its rows have as many bytes

  static HIPGEMM_DEVICE KOffset of(u32 tile) { return KOffset{0, 0} + tile; }
  HIPGEMM_DEVICE u32 b() const { return kSame ? a : other; }
  HIPGEMM_DEVICE KOffset operator+(u32 tiles) const {
    return {a + tiles * T::A::kMemoryRowBytes, kSame ? 0 : other + tiles * T::B::kMemoryRowBytes};
  }

 private:
  static constexpr bool kSame = T::A::kMemoryRowBytes == T::B::kMemoryRowBytes;
};

// What a schedule works on: the tiles of a range of K, in the order of iterations (tile_order.hpp).
// Only tile 0 may be ragged, so no later one needs masks. The last tile is always in stage 1.
template <class T>
struct Pipeline {
  using A = Reader<T, OperandA<T>>;
  using B = Reader<T, OperandB<T>>;

  Fetcher<T, OperandA<T>> fetch_a;
  Fetcher<T, OperandB<T>> fetch_b;
  A read_a;
  B read_b;
  ScalesOf<T> scales;
  MultipliersOf<T> multipliers;
  LdsByte* blocks;  // this wave's block of stage 0, part 0
  u32 wave;
  u32 tiles;
  u32 first_tile;        // in K
  u32 first_valid;       // elements along K that the first tile has
  KOffset<T> k_offset;   // of the tile after the current one
  bool extreme = false;  // whether this wave fetched what is_extreme

  // The tile after the current one becomes the current one.
  HIPGEMM_DEVICE void next_tile() { k_offset = k_offset + 1; }

  HIPGEMM_DEVICE void begin_scales() {
    if constexpr (T::kScaling == Scaling::blocks) scales.begin(tiles);
    if constexpr (T::Mfma::kHasMultipliers) multipliers.begin();
  }
  // At the start of a tile. A unit of scales is one tile or two, and the last tile ends one.
  template <Remaining kRemaining, u32 kStage>
  HIPGEMM_DEVICE void advance_scales(Static<kRemaining>, Index<kStage>) {
    if constexpr (T::kScaling == Scaling::blocks)
      if constexpr (T::kScaleSteps == kUnitSteps || kStage == 0)
        scales.advance(kStatic<unit_loads(kRemaining, kStage) != 0>);
    if constexpr (T::Mfma::kHasMultipliers)
      multipliers.advance(kStatic<kRemaining != Remaining::none>);
  }
  // Loads of scales in a tile: each unit, and each tile, begins with the loads of the next.
  static constexpr u32 scale_loads(Remaining after, u32 stage) {
    return unit_loads(after, stage) + (after != Remaining::none ? MultipliersOf<T>::kLoads : 0);
  }
  static constexpr u32 unit_loads(Remaining after, u32 stage) {
    if constexpr (T::kScaling == Scaling::blocks) {
      const bool next = T::kScaleSteps == kUnitSteps
                            ? after != Remaining::none
                            : stage == 0 && after == Remaining::two_or_more;
      return next ? ScalesOf<T>::kLoads : 0;
    }
    return 0;
  }
  template <u32 kStage, u32 kPartA, u32 kPartB>
  HIPGEMM_DEVICE void multiply(Index<kStage>, Index<kPartA> part_a, Index<kPartB> part_b,
                               Accumulators<T>& acc, const typename A::Fragments& a,
                               const typename B::Fragments& b) const {
    if constexpr (T::kScaling == Scaling::blocks || T::Mfma::kHasMultipliers)
      acc.multiply(part_a, part_b, kIndex < T::kScaleSteps == kUnitSteps ? 0 : kStage >, a, b,
                   scales, multipliers);
    else
      acc.multiply(part_a, part_b, a, b);
  }

  HIPGEMM_DEVICE LdsByte* block(u32 stage, u32 part) const {
    return blocks + stage * T::kStageBytes + part * T::kPartBytes;
  }
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_first_a(Index<kPart> part, u32 stage) const {
    fetch_a.fetch_ragged(part, block(stage, kPart), first_tile, first_valid);
  }
  template <u32 kPart>
  HIPGEMM_DEVICE void fetch_first_b(Index<kPart> part, u32 stage) const {
    fetch_b.fetch_ragged(part, block(stage, kPart), first_tile, first_valid);
  }
};

// Iterates over the tiles. The last two are peeled: no fetch in the loop needs a condition, and
// each tile is one basic block, so that the compiler moves no MFMA out of it.
template <class T>
HIPGEMM_DEVICE void run_k_loop(Pipeline<T>& p, Accumulators<T>& acc) {
  auto run = T::Schedule::run(p, acc);
  run.begin();
  if (p.tiles > 1) {
    const u32 end = (p.k_offset + (p.tiles - 2)).a;
    if (p.tiles % 2 == 1) {
      run.tile(kStatic<Remaining::two_or_more>, kIndex<1>);
      p.next_tile();
    }
#pragma clang loop unroll(disable)
    while (p.k_offset.a < end) {
      run.tile(kStatic<Remaining::two_or_more>, kIndex<0>);
      p.next_tile();
      run.tile(kStatic<Remaining::two_or_more>, kIndex<1>);
      p.next_tile();
    }
    run.tile(kStatic<Remaining::one>, kIndex<0>);
  }
  run.tile(kStatic<Remaining::none>, kIndex<1>);
  run.end();
}

// The same with one stage in LDS. Stages are those in registers, and the last tile is peeled, and
// the one before it if it is in the first of two.
template <class T>
  requires(T::kStages == 1)
HIPGEMM_DEVICE void run_k_loop(Pipeline<T>& p, Accumulators<T>& acc) {
  static_assert(T::kHeld <= 2, "");
  auto run = T::Schedule::run(p, acc);
  run.begin();
  u32 left = p.tiles - 1;
#pragma clang loop unroll(disable)
  for (; left >= T::kHeld; left -= T::kHeld)
    unrolled<T::kHeld>([&]<u32 kStage>(Index<kStage> stage) HIPGEMM_INLINE {
      run.tile(kStatic<Remaining::one>, stage);
      p.next_tile();
    });
  if constexpr (T::kHeld == 2)
    if (left != 0) {
      run.tile(kStatic<Remaining::one>, kIndex<0>);
      p.next_tile();
    }
  run.tile(kStatic<Remaining::none>, kIndex<0>);
  run.end();
}

// Fetch the next tile while multiplying this one. One barrier per tile.
struct DoubleBuffer {
  static constexpr u32 kParts = 1, kStages = 2;
  static constexpr Staging kStaging = Staging::dma;

  template <class T>
  struct Run {
    Pipeline<T>& p;
    Accumulators<T>& acc;

    HIPGEMM_DEVICE void begin() {
      p.begin_scales();
      p.fetch_first_a(kIndex<0>, p.tiles % 2);
      p.fetch_first_b(kIndex<0>, p.tiles % 2);
    }

    template <Remaining kRemaining, u32 kStage>
    HIPGEMM_DEVICE void tile(Static<kRemaining> remaining, Index<kStage> stage) {
      // After the barrier all waves' parts of this tile are in LDS, and all waves have read the one
      // before.
      wait_dma<0>();
      barrier();
      p.advance_scales(remaining, stage);
      if constexpr (kRemaining != Remaining::none) {
        p.fetch_a.fetch(kIndex<0>, p.block(1 - kStage, 0), p.k_offset.a);
        p.fetch_b.fetch(kIndex<0>, p.block(1 - kStage, 0), p.k_offset.b());
        if constexpr (kRemaining == Remaining::two_or_more) {
          p.fetch_a.next();
          p.fetch_b.next();
        }
      }
      typename Pipeline<T>::A::Fragments a;
      typename Pipeline<T>::B::Fragments b;
      p.read_a.read(stage, kIndex<0>, a);
      p.read_b.read(stage, kIndex<0>, b);
      p.multiply(stage, kIndex<0>, kIndex<0>, acc, a, b);
      if constexpr (kRemaining == Remaining::none) acc.keep_live(kIndex<0>, kIndex<0>);
      sched_barrier();
    }

    HIPGEMM_DEVICE void end() {}
  };

  template <class T>
  static HIPGEMM_DEVICE Run<T> run(Pipeline<T>& p, Accumulators<T>& acc) {
    return {p, acc};
  }
};

// One K tile in LDS. Registers hold the next one, which is stored as soon as all waves have read
// the current one; half of the products are left then. So a load has the time of one K tile, or, if
// registers hold the next two (T::kHeld), of two. Where no tile is left, a disabled fetch takes its
// place.
struct SingleBuffer {
  static constexpr u32 kParts = 1, kStages = 1;
  static constexpr Staging kStaging = Staging::registers;

  template <class T>
  struct Run {
    Pipeline<T>& p;
    Accumulators<T>& acc;
    u32 k_end = 0;                        // k_offset.a past the last tile
    Fetcher<T, OperandA<T>> a[T::kHeld];  // each with the registers of a tile
    Fetcher<T, OperandB<T>> b[T::kHeld];

    HIPGEMM_DEVICE void begin() {
      k_end = (p.k_offset + (p.tiles - 1)).a;
      a[0].fetch_ragged(p.first_tile, p.first_valid);
      b[0].fetch_ragged(p.first_tile, p.first_valid);
      store(0);
      for (u32 stage = 0; stage < T::kHeld; stage++) {
        fetch(stage);
        p.next_tile();  // in the end k_offset is that of the next fetch
      }
      if constexpr (T::Mfma::kHasMultipliers) p.multipliers.begin();
      lds_barrier();
    }

    template <Remaining kRemaining, u32 kStage>
    HIPGEMM_DEVICE void tile(Static<kRemaining>, Index<kStage>) {
      constexpr u32 kHalf = T::kSteps / 2;
      typename Pipeline<T>::A::Fragments read_a;
      typename Pipeline<T>::B::Fragments read_b;
      Accumulators<T> block;  // the sum over a block, without scales
      auto& sum = T::Mfma::kHasMultipliers ? block : acc;
      if constexpr (T::Mfma::kHasMultipliers)
        p.multipliers.advance(kStatic<kRemaining != Remaining::none>);
      p.read_a.read(kIndex<0>, kIndex<0>, read_a);
      p.read_b.read(kIndex<0>, kIndex<0>, read_b);
      sum.multiply(kIndex<0>, kIndex<0>, read_a, read_b, 0, kHalf);
      if constexpr (kRemaining != Remaining::none) {
        lds_barrier();
        store(kStage);
        fetch(kStage);
      }
      sum.multiply(kIndex<0>, kIndex<0>, read_a, read_b, kHalf, T::kSteps);
      if constexpr (T::Mfma::kHasMultipliers) acc.add(block, p.multipliers);
      if constexpr (kRemaining != Remaining::none)
        lds_barrier();
      else
        acc.keep_live(kIndex<0>, kIndex<0>);
      sched_barrier();
    }

    HIPGEMM_DEVICE void end() {}

   private:
    HIPGEMM_DEVICE void fetch(u32 stage) {
      const bool past = p.k_offset.a >= k_end;
      a[stage].fetch(p.k_offset.a, past);
      b[stage].fetch(p.k_offset.b(), past);
    }
    HIPGEMM_DEVICE void store(u32 stage) {
      if constexpr (T::kScaling == Scaling::blocks) {
        if constexpr (T::Mfma::kScalesA) p.extreme |= a[stage].is_extreme();
        p.extreme |= b[stage].is_extreme();
      }
      a[stage].store(p.block(0, 0));
      b[stage].store(p.block(0, 0));
    }
  };

  template <class T>
  static HIPGEMM_DEVICE Run<T> run(Pipeline<T>& p, Accumulators<T>& acc) {
    if constexpr (T::kHeld == 1)
      return {p, acc, 0, {p.fetch_a}, {p.fetch_b}};
    else
      return {p, acc, 0, {p.fetch_a, p.fetch_a}, {p.fetch_b, p.fetch_b}};
  }
};

// A ring of stages. A product with few rows is limited by memory, so a workgroup keeps kStages_ - 1
// tiles in flight. Where no tile is left, a disabled fetch takes its place: every wait is the same.
template <u32 kStages_>
struct Ring {
  static constexpr u32 kParts = 1, kStages = kStages_;
  static constexpr Staging kStaging = Staging::dma;

  template <class T>
  struct Run {
    Pipeline<T>& p;
    Accumulators<T>& acc;
    u32 stage = 0;  // of the current tile
    u32 k_end = 0;  // k_offset.a past the last tile

    HIPGEMM_DEVICE void begin() {
      k_end = (p.k_offset + (p.tiles - 1)).a;
      p.begin_scales();
      p.fetch_first_a(kIndex<0>, 0);
      p.fetch_first_b(kIndex<0>, 0);
      unrolled<kStages - 2>([&]<u32 i>(Index<i>) { fetch(1 + i, p.k_offset + i, 0); });
      p.fetch_a.advance(0, kAhead);
      p.fetch_b.advance(0, kAhead);
    }

    template <Remaining kRemaining, u32 kStage>
    HIPGEMM_DEVICE void tile(Static<kRemaining> remaining, Index<kStage> parity) {
      // After the barrier all waves' parts of this tile are in LDS, and all waves have read the one
      // before, which the next fetch overwrites.
      wait_dma<(kStages - 2) * (T::A::kDmas + T::B::kDmas)>();
      barrier();
      p.advance_scales(remaining, parity);
      if constexpr (kRemaining != Remaining::none)
        fetch(stage == 0 ? kStages - 1 : stage - 1, p.k_offset, kAhead);
      typename Pipeline<T>::A::Fragments a;
      typename Pipeline<T>::B::Fragments b;
      p.read_a.read(stage, kIndex<0>, a);
      p.read_b.read(stage, kIndex<0>, b);
      p.multiply(parity, kIndex<0>, kIndex<0>, acc, a, b);
      if constexpr (kRemaining == Remaining::none) acc.keep_live(kIndex<0>, kIndex<0>);
      sched_barrier();
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }

    // After the end of this workgroup another one may have its LDS.
    HIPGEMM_DEVICE void end() { wait_dma<0>(); }

   private:
    static constexpr u32 kAhead = kStages - 2;

    // ahead: how many tiles further along K the fetchers are than k_offset.
    HIPGEMM_DEVICE void fetch(u32 to, const KOffset<T>& k_offset, u32 ahead) {
      const bool past = (k_offset + ahead).a >= k_end;
      p.fetch_a.disable_if(past);
      p.fetch_b.disable_if(past);
      p.fetch_a.fetch(kIndex<0>, p.block(to, 0), k_offset.a);
      p.fetch_b.fetch(kIndex<0>, p.block(to, 0), k_offset.b());
      p.fetch_a.next();
      p.fetch_b.next();
    }
  };

  template <class T>
  static HIPGEMM_DEVICE Run<T> run(Pipeline<T>& p, Accumulators<T>& acc) {
    return {p, acc};
  }
};
using Ring4 = Ring<4>;
using Ring5 = Ring<5>;

// Two groups of waves, one of each on every SIMD, half a step apart: while one multiplies, the
// other fetches and reads. A and B come in two parts each and C in four quadrants, so a tile takes
// four steps, each a memory phase and a compute phase with a barrier after both:
//
//   step  fetch               read        multiply
//   0     B1 of tile s+1      A0 of s     A0 * B0
//   1     A1 of tile s+1      B1 of s     A0 * B1
//   2     B0 of tile s+2      A1 of s     A1 * B1
//   3     A0 of tile s+2      B0 of s+1   A1 * B0
//
// Each part is read five steps after its fetch was issued. The wait in between leaves the fetches
// of the last four steps in flight; it comes one barrier before the read, which also takes what the
// other waves fetched. A fetch follows the last read of what it overwrites by at least three steps:
// the read's data has then been multiplied and a barrier has passed in every wave, half a step of
// lag included.
struct PingPong {
  static constexpr u32 kParts = 2, kStages = 2;
  static constexpr Staging kStaging = Staging::dma;

  template <class T>
  struct Run {
    Pipeline<T>& p;
    Accumulators<T>& acc;
    typename Pipeline<T>::B::Fragments b0[2] = {};  // B0 of the tile in stage 0, stage 1

    HIPGEMM_DEVICE bool lags() const { return p.wave >= T::kWaves / 2; }

    HIPGEMM_DEVICE void begin() {
      const u32 stage = p.tiles % 2 == 1 ? 1 : 0;
      p.begin_scales();
      p.fetch_first_b(kIndex<0>, stage);
      p.fetch_first_a(kIndex<0>, stage);
      p.fetch_first_b(kIndex<1>, stage);
      p.fetch_first_a(kIndex<1>, stage);
      // Tile 1's first part; without a tile 1 a disabled fetch takes its place.
      Fetcher<T, OperandA<T>> next_a = p.fetch_a;
      Fetcher<T, OperandB<T>> next_b = p.fetch_b;
      next_a.disable_if(p.tiles == 1);
      next_b.disable_if(p.tiles == 1);
      next_b.fetch(kIndex<0>, p.block(1 - stage, 0), p.k_offset.b());
      next_a.fetch(kIndex<0>, p.block(1 - stage, 0), p.k_offset.a);
      p.fetch_a.advance(0, 1);
      p.fetch_b.advance(0, 1);

      // B0, then A0 of tile 0 are in LDS.
      wait_dma<3 * T::A::kDmas + 2 * T::B::kDmas>();
      barrier();
      p.read_b.read(stage, kIndex<0>, b0[0]);
      for (u32 f = 0; f < T::B::kFragments; f++)
        for (u32 step = 0; step < T::kSteps; step++) b0[1][f][step] = b0[0][f][step];
      wait_dma<2 * T::A::kDmas + 2 * T::B::kDmas>();
      wait_lds();  // else the compiler puts this wait into the loop
      barrier();
      if (lags()) barrier();
    }

    template <Remaining kRemaining, u32 kStage>
    HIPGEMM_DEVICE void tile(Static<kRemaining> remaining, Index<kStage> stage) {
      constexpr bool kNext = kRemaining != Remaining::none,
                     kNextButOne = kRemaining == Remaining::two_or_more;
      typename Pipeline<T>::A::Fragments a;
      typename Pipeline<T>::B::Fragments b1;

      // The fetch of a tile's part 1 is its last: next() follows it.
      p.advance_scales(remaining, stage);
      if constexpr (kNext) p.fetch_b.fetch(kIndex<1>, p.block(1 - kStage, 1), p.k_offset.b());
      if constexpr (kNextButOne) p.fetch_b.next();
      p.read_a.read(stage, kIndex<0>, a);
      compute<kRemaining, kStage, 0, 0, 0>(a, b0[kStage]);

      if constexpr (kNext) p.fetch_a.fetch(kIndex<1>, p.block(1 - kStage, 1), p.k_offset.a);
      if constexpr (kNextButOne) p.fetch_a.next();
      p.read_b.read(stage, kIndex<1>, b1);
      compute<kRemaining, kStage, 1, 0, 1>(a, b1);

      if constexpr (kNextButOne) p.fetch_b.fetch(kIndex<0>, p.block(kStage, 0), p.k_offset.b());
      p.read_a.read(stage, kIndex<1>, a);
      compute<kRemaining, kStage, 2, 1, 1>(a, b1);

      if constexpr (kNextButOne) p.fetch_a.fetch(kIndex<0>, p.block(kStage, 0), p.k_offset.a);
      if constexpr (kNext) p.read_b.read(kIndex<1 - kStage>, kIndex<0>, b0[1 - kStage]);
      compute<kRemaining, kStage, 3, 1, 0>(a, b0[kStage]);
    }

    HIPGEMM_DEVICE void end() {
      if (!lags()) barrier();
    }

   private:
    template <Remaining kRemaining, u32 kStage, int kStep, u32 kPartA, u32 kPartB>
    HIPGEMM_DEVICE void compute(const typename Pipeline<T>::A::Fragments& a,
                                const typename Pipeline<T>::B::Fragments& b) {
      wait_dma<in_flight(kRemaining, kStage, kStep)>();
      barrier();
      // Priority keeps the compute phase on the matrix pipe; it also keeps MFMAs in their phase.
      __builtin_amdgcn_s_setprio(1);
      p.multiply(kIndex<kStage>, kIndex<kPartA>, kIndex<kPartB>, acc, a, b);
      if constexpr (kRemaining == Remaining::none) acc.keep_live(kIndex<kPartA>, kIndex<kPartB>);
      __builtin_amdgcn_s_setprio(0);
      barrier();
    }

    // DMAs that one wave issues in a step.
    static constexpr u32 issued(Remaining after, int step) {
      if (after == Remaining::none || (after == Remaining::one && step >= 2)) return 0;
      return step % 2 == 0 ? T::B::kDmas : T::A::kDmas;
    }
    // In flight at the end of a step: what this step and the three before it, perhaps of the
    // previous tile, have issued. Scales are loaded before step 0's fetch, for the next tile.
    static constexpr u32 in_flight(Remaining after, u32 stage, int step) {
      const Remaining before = after == Remaining::none ? Remaining::one : Remaining::two_or_more;
      u32 sum = step < 3 ? Pipeline<T>::scale_loads(after, stage) : 0;
      for (int back = 0; back < 4; back++)
        sum += step >= back ? issued(after, step - back) : issued(before, step - back + 4);
      return sum;
    }
  };

  template <class T>
  static HIPGEMM_DEVICE Run<T> run(Pipeline<T>& p, Accumulators<T>& acc) {
    return {p, acc};
  }
};

}  // namespace hipgemm
