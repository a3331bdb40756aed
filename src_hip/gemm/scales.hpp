// MX scales in GEMM order, loaded into registers.
#pragma once

#include "common/memory.hpp"
#include "common/scale_layout.hpp"
#include "common/types.hpp"
#include "gemm/accumulators.hpp"
#include "gemm/traits.hpp"

namespace hipgemm {

// Which scales of a unit a lane loads for one operand: those of its fragments in all parts, for a
// block of each step. Loads are as wide as these are contiguous, which depends on the operand's
// major axis.
template <class T, class Operand, Major = Operand::kMajor>
struct ScaleLoads {
  static constexpr u32 kLoads = 1;
  static constexpr u32 kLoadStride = 0;
  static constexpr u32 kAlignedRows = kScaleRows;
  static HIPGEMM_DEVICE u32 position(const ThreadPosition<T>& position) {
    const u32 row = Operand::wave_index(position) * (Operand::kFragments * T::kFragmentRows) +
                    position.lane % T::kFragmentRows;
    return scale_position(Operand::tile_row(0, row));
  }
};
template <class T, class Operand>
struct ScaleLoads<T, Operand, Major::mn> {
  static constexpr u32 kFragmentsPerLoad =
      smaller(Operand::kFragments, kMnScaleRows / T::kFragmentRows);
  static constexpr u32 kLoads = Operand::kFragments * T::kParts / kFragmentsPerLoad;
  static constexpr u32 kAlignedRows = kMnScaleRows;
  static constexpr u32 kLoadStride = Operand::kFragments > kFragmentsPerLoad
                                         ? kMnScaleRows
                                         : Operand::kPartRows;  // rows between loads
  static_assert(kLoads == 1 || (kLoadStride % kMnScaleRows == 0 &&
                                Operand::kPartRows == kLoads / T::kParts * kLoadStride),
                "loads at constant distances");
  static HIPGEMM_DEVICE u32 position(const ThreadPosition<T>& position) {
    const u32 first = Operand::wave_index(position) * (Operand::kFragments * T::kFragmentRows);
    return mn_scale_position(first + position.lane % T::kFragmentRows);
  }
};

// The scales of one operand. The lane of a fragment's row and block holds, for each of its
// fragments in all parts, the bytes of the current unit, and those of the next one in flight. Where
// a step takes two instructions it has two blocks.
template <class T, class Operand>
class ScaleReader {
 public:
  using Loads = ScaleLoads<T, Operand>;
  static constexpr u32 kBlocks = T::kStepMfmas;
  static constexpr u32 kLoads = Loads::kLoads * kBlocks;
  static constexpr u32 kLoadWords =
      Operand::kFragments * T::kParts * kUnitSteps / 4 / Loads::kLoads;
  struct Words {
    Vector<u32, kLoadWords> load[kBlocks][Loads::kLoads];
  };
  Words current, next;

  // step_rows: see scale_layout.hpp. first_row, rows: of this tile. unit: the first one.
  HIPGEMM_DEVICE ScaleReader(u64 scales, u32 step_rows, u32 first_row, u32 rows, u32 k, u32 unit,
                             const ThreadPosition<T>& position) {
    unit_bytes_ = step_rows * kUnitRowBytes;
    base_ =
        scales + static_cast<u64>(first_row) * kUnitSteps + static_cast<u64>(unit) * unit_bytes_;
    // Rows past the operand's end use another row's scales, or 0; their products are not stored.
    const u32 positions =
        (rows + Loads::kAlignedRows - 1) / Loads::kAlignedRows * Loads::kAlignedRows;
    bytes_ = k ? ((kStepBlocks - 1) * step_rows + positions) * kUnitSteps : 0;
    offset_ = (position.lane / T::kFragmentRows * kBlocks * step_rows + Loads::position(position)) *
              kUnitSteps;
  }

  HIPGEMM_DEVICE void load(Words& into) const {
    const Buffer from = make_buffer(base_, bytes_);
    for (u32 i = 0; i < kLoads; i++) {
      const u32 block = i / Loads::kLoads, load = i % Loads::kLoads;
      const u32 at =
          offset_ + block * (unit_bytes_ / kStepBlocks) + load * Loads::kLoadStride * kUnitSteps;
      auto& words = into.load[block][load];
      if constexpr (sizeof(words) == 16)
        words = __builtin_amdgcn_raw_buffer_load_b128(from, at, 0, 0);
      else if constexpr (sizeof(words) == 8)
        words = __builtin_amdgcn_raw_buffer_load_b64(from, at, 0, 0);
      else
        words = __builtin_amdgcn_raw_buffer_load_b32(from, at, 0, 0);
    }
  }
  HIPGEMM_DEVICE void advance_if(bool on) { base_ += on ? unit_bytes_ : 0; }

  // The current word that holds a fragment's bytes for a block.
  HIPGEMM_DEVICE u32 word(u32 fragment, u32 block) const {
    return current.load[block][fragment / 2 / kLoadWords][fragment / 2 % kLoadWords];
  }

 private:
  u64 base_;
  u32 unit_bytes_, bytes_, offset_;
};

// An operand without scales.
template <class T>
struct NoScaleReader {
  static constexpr u32 kLoads = 0;
  struct Words {
  } current, next;
  HIPGEMM_DEVICE NoScaleReader(u64, u32, u32, u32, u32, u32, const ThreadPosition<T>&) {}
  HIPGEMM_DEVICE void load(Words&) const {}
  HIPGEMM_DEVICE void advance_if(bool) {}
};

template <bool kScales, class T, class Operand>
struct ScaleReaderOf {
  using Type = ScaleReader<T, Operand>;
};
template <class T, class Operand>
struct ScaleReaderOf<false, T, Operand> {
  using Type = NoScaleReader<T>;
};

template <class T, class Operand>
struct MultiplierRows;

// What is left of float scales without their exponents, a float for each row and K tile, or these
// scales. They come in the order of the K loop's tiles; those of the current tile, and those of the
// next one in flight.
template <class T, class Operand>
class MultiplierReader {
 public:
  using Rows = MultiplierRows<T, Operand>;
  static constexpr u32 kLoads = Rows::kLoads;

  // Those of a K tile begin at `first`, this lane's at `position`. step: floats from tile to tile.
  // index: of the first tile, in the order of the loop.
  HIPGEMM_DEVICE MultiplierReader(u64 first, u32 step, u32 position, u32 index)
      : base_(first + static_cast<u64>(index) * step * sizeof(f32)),
        step_(step),
        offset_(position * sizeof(f32)) {}
  // Past the operand's end it reads others' multipliers, or the padding after all of them; such
  // products are not stored.
  HIPGEMM_DEVICE void load() {
    const Buffer from = make_buffer(base_, kAnyBytes);
    base_ += step_ * sizeof(f32);
    for (u32 i = 0; i < kLoads; i++) next_[i] = Rows::load(from, offset_, i);
  }
  HIPGEMM_DEVICE void advance() {
    for (u32 i = 0; i < kLoads; i++) current_[i] = next_[i];
    // Packed operations read a pair of registers for one number, and would wait for a load to the
    // other one.
    if constexpr (sizeof(typename Rows::Load) == sizeof(f32) && kLoads % 2 == 0)
      for (u32 i = 0; i < kLoads; i += 2) {
        f32x2 pair = {current_[i], current_[i + 1]};
        asm("" : "+v"(pair));
        current_[i] = pair.x;
        current_[i + 1] = pair.y;
      }
  }
  HIPGEMM_DEVICE const auto& operator[](u32 i) const { return current_[i]; }

 private:
  static constexpr u32 kAnyBytes = 1u << 30;
  u64 base_;
  u32 step_, offset_;
  typename Rows::Load current_[kLoads], next_[kLoads];
};

// Which rows of A a lane multiplies, and which columns of B: those of C that it holds.
template <class T>
struct MultiplierRows<T, OperandA<T>> {
  using Load = f32;
  static constexpr u32 kLoads = T::A::kFragments * T::kParts;
  static HIPGEMM_DEVICE u32 first(const ThreadPosition<T>& position) {
    const u32 first = position.wave_m * (T::A::kFragments * T::kFragmentRows);
    return row(first + position.lane % T::kFragmentRows, 0);
  }
  static HIPGEMM_DEVICE f32 load(Buffer from, u32 offset, u32 i) {
    const u32 at = row(i % T::A::kFragments * T::kFragmentRows, i / T::A::kFragments) * sizeof(f32);
    return __builtin_bit_cast(f32, __builtin_amdgcn_raw_buffer_load_b32(from, offset + at, 0, 0));
  }

 private:
  static constexpr HIPGEMM_DEVICE u32 row(u32 row, u32 part) {
    return OperandA<T>::tile_row(part, row);
  }
};
template <class T>
struct MultiplierRows<T, OperandB<T>> {
  using Load = f32x4;
  static constexpr u32 kLoads = T::kLaneColumns / 4;
  static HIPGEMM_DEVICE u32 first(const ThreadPosition<T>& position) {
    return OperandB<T>::own_column(position);
  }
  static HIPGEMM_DEVICE f32x4 load(Buffer from, u32 offset, u32 i) {
    const u32 at = OperandB<T>::own_quad_column(i) * sizeof(f32);
    return __builtin_bit_cast(f32x4,
                              __builtin_amdgcn_raw_buffer_load_b128(from, offset + at, 0, 0));
  }
};

template <class T>
struct NoMultiplierReader {
  static constexpr u32 kLoads = 0;
  HIPGEMM_DEVICE void load() const {}
  HIPGEMM_DEVICE void advance() const {}
};
template <bool kScales, class T, class Operand>
struct MultiplierReaderOf {
  using Type = MultiplierReader<T, Operand>;
};
template <class T, class Operand>
struct MultiplierReaderOf<false, T, Operand> {
  using Type = NoMultiplierReader<T>;
};

template <class T>
struct Multipliers {
  typename MultiplierReaderOf<T::Mfma::kScalesA, T, OperandA<T>>::Type a;
  MultiplierReader<T, OperandB<T>> b;
  static constexpr u32 kLoads = decltype(a)::kLoads + decltype(b)::kLoads;  // per K tile

  HIPGEMM_DEVICE void begin() {
    a.load();
    b.load();
    sched_barrier();
  }
  // At the start of a tile.
  template <bool kLoadNext>
  HIPGEMM_DEVICE void advance(Static<kLoadNext>) {
    a.advance();
    b.advance();
    if constexpr (kLoadNext) {
      a.load();
      b.load();
    }
    sched_barrier();
  }
};
struct NoMultipliers {
  static constexpr u32 kLoads = 0;
};

template <class T, bool = T::Mfma::kHasMultipliers>
struct MultipliersByFormat {
  using Type = NoMultipliers;
};
template <class T>
struct MultipliersByFormat<T, true> {
  using Type = Multipliers<T>;
};
template <class T>
using MultipliersOf = typename MultipliersByFormat<T>::Type;

// The scales of both operands, or of B.
template <class T>
struct BlockScales {
  typename ScaleReaderOf<T::Mfma::kScalesA, T, OperandA<T>>::Type a;
  ScaleReader<T, OperandB<T>> b;

  static constexpr u32 kLoads = decltype(a)::kLoads + decltype(b)::kLoads;  // per unit

  // The byte of a fragment's word for a step of the unit.
  static constexpr u32 byte(u32 fragment, u32 step) { return fragment % 2 * kUnitSteps + step; }

  // Unit 0 becomes current. With an odd number of steps the loop starts in the middle of it, so the
  // next unit is needed at once, if there is one; else `next` is unit 0 too, which the first tile
  // makes current.
  HIPGEMM_DEVICE void begin(u32 tiles) {
    a.load(a.current);
    b.load(b.current);
    const bool middle = T::kScaleSteps < kUnitSteps && tiles % 2 == 1 && tiles > 1;
    a.advance_if(middle);
    b.advance_if(middle);
    a.load(a.next);
    b.load(b.next);
    sched_barrier();  // before all fetches, so that their first wait includes these loads
  }
  // At the start of a unit. Waits count on the position of these loads among the fetches.
  // Where there is no next unit, the loads may take the same one again.
  template <bool kLoadNext>
  HIPGEMM_DEVICE void advance(Static<kLoadNext>, bool exists = true) {
    a.current = a.next;
    b.current = b.next;
    if constexpr (kLoadNext) {
      a.advance_if(exists);
      b.advance_if(exists);
      a.load(a.next);
      b.load(b.next);
    }
    sched_barrier();
  }
};

struct NoScales {};
template <class T, Scaling = T::kScaling, Staging = T::kStaging>
struct ScalesByFormat {
  using Type = NoScales;
};
template <class T>
struct ScalesByFormat<T, Scaling::blocks, Staging::dma> {
  using Type = BlockScales<T>;
};
template <class T>
using ScalesOf = typename ScalesByFormat<T>::Type;

}  // namespace hipgemm
