// The schedule of operands that are fetched by whole cache lines.
#pragma once

#include "common/types.hpp"
#include "gemm/operand_lines.hpp"
#include "gemm/schedule.hpp"

namespace hipgemm {

// PingPong's steps, in which lines are fetched instead of K tiles (operand_lines.hpp). Four K tiles
// are three lines of each part: the second, third and first of the next four are fetched in this
// order, each of B0, A0, B1 and A1, and their DMAs are spread over the sixteen steps; the first two
// lines, which are needed soon, as early as they may. What a DMA overwrites was read two steps
// before or earlier: then all waves have that data in registers. The waits count what follows the
// DMAs that they are for.
//
// The first K tile, which may be ragged, is the last of four. So all others are at their place in
// the lines of memory, if the second one begins a line; else more lines are touched, to the same
// result.
struct LineRing {
  static constexpr u32 kParts = 2, kStages = 2;
  static constexpr Staging kStaging = Staging::dma;
  static constexpr bool kWholeLines = true;
  static constexpr u32 kPhases = 4;

  static constexpr u32 kLdsBytes = 160 * 1024;
  static constexpr u32 kWaveBytes = 5 * 1024;  // two blocks of a part

  template <class T>
  struct Run {
    using LinesA = LineTraits<T, OperandA<T>>;
    using LinesB = LineTraits<T, OperandB<T>>;
    static_assert(LinesB::part_offset(kParts) == kLdsBytes &&
                      LinesA::kDmas * LinesA::kBlockBytes == kWaveBytes,
                  "");

    Pipeline<T>& p;
    Accumulators<T>& acc;
    typename Pipeline<T>::B::Fragments b0[2] = {};  // B0 of even tiles, of odd ones
    u32 left = 0;                                   // tiles to do
    u32 read_mirrored = ~0u, fetch_mirrored = ~0u;  // the groups of lines to read and to fetch
    u32 to_mirror = 0;                              // bytes in memory, last
    u32 line_offset = 0, end = 0;  // in the rows, in bytes: of the line to fetch, of the last tile
    u32 exists = 0;                // all bits, if the line is before the end

    HIPGEMM_DEVICE bool lags() const { return p.wave >= T::kWaves / 2; }

    HIPGEMM_DEVICE void begin() {
      left = p.tiles;
      to_mirror = thread_index() % kWaveLanes < kWaveLanes / 2 ? LinesA::kHalf : 0 - LinesA::kHalf;
      line_offset = p.k_offset.a;
      end = line_offset + (left - 1) * LinesA::kTileBytes;
      const auto ragged = [&](auto& fetch, LdsByte* to, auto part) HIPGEMM_INLINE {
        fetch.fetch_ragged(part, to + LinesA::line_offset(2, ~0u), p.first_tile, p.first_valid);
      };
      p.begin_scales();
      ragged(p.fetch_b, part_b<0>(), kIndex<0>);
      ragged(p.fetch_a, part_a<0>(), kIndex<0>);
      ragged(p.fetch_b, part_b<1>(), kIndex<1>);
      ragged(p.fetch_a, part_a<1>(), kIndex<1>);
      look();
      fetch<(kLines - 1) * kLineDmas, before(kFirstStep)>();
    }

    // The last tile is in stage 1. (Tiles after the loop, or a second exit from it, would need more
    // registers.)
    template <u32 kTiles>  // modulo four
    HIPGEMM_DEVICE void loop(Index<kTiles>) {
      constexpr u32 kStage = kTiles % 2;  // of the first tile
      read_first();
      tile<3, kStage, true>();
      if constexpr (kTiles == 2 || kTiles == 0) tile<0, 1>();
      if constexpr (kTiles == 3) tile<0, 0>(), tile<1, 1>();
      if constexpr (kTiles == 0) tile<1, 0>(), tile<2, 1>();
      constexpr u32 kNext = (kTiles + 3) % kPhases;
#pragma clang loop unroll(disable)
      while (left != 0) {
        tile<kNext, 0>();
        tile<(kNext + 1) % kPhases, 1>();
        tile<(kNext + 2) % kPhases, 0>();
        tile<(kNext + 3) % kPhases, 1>();
      }
    }

    // After the end of this workgroup another one may have its LDS.
    HIPGEMM_DEVICE void end_loop() {
      wait_dma<0>();
      if (!lags()) barrier();
    }

   private:
    // B0, then A0 of the first tile are in LDS. Not in begin(): the compiler would keep b0 until
    // the end of what another number of tiles takes.
    HIPGEMM_DEVICE void read_first() {
      constexpr u32 kLater = before(kFirstStep) - (kLines - 1) * kLineDmas;
      p.read_a.place(kIndex<3>, read_mirrored);
      p.read_b.place(kIndex<3>, read_mirrored);
      wait_dma<kLater + 3 * LinesA::kDmas>();
      barrier();
      p.read_b.read(kIndex<0>, b0[1]);
      wait_dma<kLater + 2 * LinesA::kDmas>();
      wait_lds();
      barrier();
      if (lags()) barrier();
    }

    template <u32 kPhase, u32 kStage, bool kFirst = false>
    HIPGEMM_DEVICE void tile() {
      constexpr u32 kOdd = kPhase % 2;
      typename Pipeline<T>::A::Fragments a;
      typename Pipeline<T>::B::Fragments b1;

      left--;
      if constexpr (kStage == 0) p.scales.advance(kStatic<true>, left > 1);
      p.read_a.place(kIndex<kPhase>, read_mirrored);
      p.read_a.read(kIndex<0>, a);
      fetch_in<kPhase, 0>();
      compute<kPhase, kStage, kFirst, 0, 0, 0>(a, b0[kOdd]);

      p.read_b.read(kIndex<1>, b1);
      fetch_in<kPhase, 1>();
      compute<kPhase, kStage, kFirst, 1, 0, 1>(a, b1);

      p.read_a.read(kIndex<1>, a);
      fetch_in<kPhase, 2>();
      compute<kPhase, kStage, kFirst, 2, 1, 1>(a, b1);

      if constexpr (kPhase == 3) read_mirrored = ~read_mirrored;
      p.read_b.place(kIndex<(kPhase + 1) % kPhases>, read_mirrored);
      p.read_b.read(kIndex<0>, b0[1 - kOdd]);
      fetch_in<kPhase, 3>();
      compute<kPhase, kStage, kFirst, 3, 1, 0>(a, b0[kOdd]);
    }

    template <u32 kPhase, u32 kStage, bool kFirst, u32 kStep, u32 kPartA, u32 kPartB>
    HIPGEMM_DEVICE void compute(const typename Pipeline<T>::A::Fragments& a,
                                const typename Pipeline<T>::B::Fragments& b) {
      wait_dma<in_flight(kPhase, kStage, kFirst, kStep)>();
      barrier();
      __builtin_amdgcn_s_setprio(1);
      p.multiply(kIndex<kStage>, kIndex<kPartA>, kIndex<kPartB>, acc, a, b);
      __builtin_amdgcn_s_setprio(0);
      // B0 of the next tile, which no product of this step waits for.
      if constexpr (kStep == 3) wait_lds();
      barrier();
    }

    // This wave's first block of a part.
    template <u32 kPart>
    HIPGEMM_DEVICE LdsByte* part_a() const {
      return p.blocks + LinesA::part_offset(kPart);
    }
    template <u32 kPart>
    HIPGEMM_DEVICE LdsByte* part_b() const {
      return p.blocks + LinesB::part_offset(kPart);
    }
    // DMAs of the order from `kBegin` to before `kEnd`. Each line is that of B0, A0, B1, A1.
    template <u32 kBegin, u32 kEnd>
    HIPGEMM_DEVICE void fetch() {
      if constexpr (kBegin < kEnd) {
        constexpr u32 kLine = kBegin / kLineDmas, kAt = kBegin % kLineDmas;
        constexpr u32 kPart = kAt / (2 * LinesA::kDmas), kDma = kAt % LinesA::kDmas;
        if constexpr (kLine == 2 && kAt == 0) {
          fetch_mirrored = ~fetch_mirrored;
          to_mirror = 0 - to_mirror;
        }
        const auto one = [&](auto& from, LdsByte* to) HIPGEMM_INLINE {
          if constexpr (kLine == 2 && kDma == 0) from.mirror(kIndex<kPart>, to_mirror);
          if constexpr (kAt / LinesA::kDmas < 2 && kDma == 0) from.keep_if(exists);
          from.fetch(kIndex<kPart>, kIndex<kDma>,
                     to + LinesA::line_offset((kLine + 1) % kLines, fetch_mirrored), line_offset);
        };
        if constexpr (kAt / LinesA::kDmas % 2 == 0)
          one(p.fetch_b, part_b<kPart>());
        else
          one(p.fetch_a, part_a<kPart>());
        if constexpr (kAt == kLineDmas - 1) next_line();
        fetch<kBegin + 1, kEnd>();
      }
    }
    template <u32 kPhase, u32 kStep>
    HIPGEMM_DEVICE void fetch_in() {
      constexpr u32 kBegin = before(4 * kPhase + kStep);
      fetch<kBegin, kBegin + issued(4 * kPhase + kStep)>();
    }
    HIPGEMM_DEVICE void next_line() {
      line_offset += LinesA::kLine;
      look();
    }
    // Arithmetic: the compiler would keep a condition in vector registers.
    HIPGEMM_DEVICE void look() { exists = static_cast<int>(line_offset - end) >> 31; }

    // Steps of a group of tiles are counted from its first tile's. DMAs that one wave issues in a
    // step, and those of the order before it. The order begins four steps before the group, with
    // the second line; a line may be fetched from a step on in which two steps have passed since
    // the last read of what it overwrites.
    static constexpr u32 kLines = 3, kLineDmas = 2 * kParts * LinesA::kDmas;
    static constexpr u32 kSteps = 4 * kPhases, kFirstStep = kSteps - 4, kOrderStep = kSteps - 3;
    static constexpr u32 issued(u32 step) {
      return (step + kSteps - kOrderStep) % kSteps < kSteps / 2 ? 2 : 1;
    }
    static constexpr u32 before(u32 step) {
      u32 sum = 0;
      for (u32 at = kOrderStep; at % kSteps != step % kSteps; at++) sum += issued(at);
      return sum;
    }
    static constexpr bool is_in_order() {
      u32 sum = 0;
      for (u32 i = 0; i < kSteps; i++) {
        if (sum > i * LinesA::kDmas) return false;
        sum += issued(kOrderStep + i);
      }
      return sum == kLines * kLineDmas;
    }
    // In flight at the end of a step: what follows the line that the next step reads last. Before
    // the first tile no scales are loaded.
    static constexpr u32 in_flight(u32 phase, u32 stage, bool first, u32 step) {
      static_assert(is_in_order());
      const u32 tile = 2 * kPhases + phase;  // a later one, so that no number is negative
      const u32 read = step < 2 ? tile : tile + 1, part = (step + 2) % 4;  // of the order
      const u32 of = read % kPhases == 3 ? 1 : read % kPhases == 0 ? 2 : read % kPhases - 1;
      // From this step back, until the line's last DMA is found.
      u32 sum = 0, at = 4 * tile + step;
      for (;; at--) {
        u32 last = before(at) + issued(at);
        for (u32 i = 0; i < issued(at); i++, sum++)
          if (--last == of * kLineDmas + part * LinesA::kDmas + LinesA::kDmas - 1) return sum;
        const bool loads = (stage + at / 4 + tile) % 2 == 0 && (!first || at / 4 == tile);
        if (at % 4 == 0 && loads) sum += ScalesOf<T>::kLoads;
      }
    }
  };

  template <class T>
  static HIPGEMM_DEVICE Run<T> run(Pipeline<T>& p, Accumulators<T>& acc) {
    return {p, acc};
  }
};

template <class T>
  requires(T::Schedule::kWholeLines)
HIPGEMM_DEVICE void run_k_loop(Pipeline<T>& p, Accumulators<T>& acc) {
  auto run = T::Schedule::run(p, acc);
  run.begin();
  switch (p.tiles % LineRing::kPhases) {
    case 1:
      run.loop(kIndex<1>);
      break;
    case 2:
      run.loop(kIndex<2>);
      break;
    case 3:
      run.loop(kIndex<3>);
      break;
    default:
      run.loop(kIndex<0>);
      break;
  }
  run.end_loop();
}

}  // namespace hipgemm
