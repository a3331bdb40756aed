// How a wave takes MX scales in GEMM order into registers.
#pragma once

#include "memory.hpp"
#include "scale_layout.hpp"
#include "tile.hpp"
#include "traits.hpp"
#include "types.hpp"

namespace hipgemm {

// The scales of one operand. The lane of a fragment's row and block holds, for each of its
// fragments in all parts, the bytes of the current unit, and those of the next one on their way.
template <class T, class Side>
class ScaleReader {
 public:
  static constexpr u32 kWords = Side::kFragments * T::kParts * kUnitSteps / 4;
  using Words = Vector<u32, kWords>;
  Words current, next;

  // step_rows: see scale_layout.hpp. first_row: of this tile. unit: the first one.
  HIPGEMM_DEVICE ScaleReader(u64 scales, u32 step_rows, u32 first_row, u32 k, u32 unit,
                             const Place<T>& place) {
    unit_bytes_ = step_rows * kUnitSteps * kStepBlocks;
    base_ =
        scales + static_cast<u64>(first_row) * kUnitSteps + static_cast<u64>(unit) * unit_bytes_;
    // Rows past the operand's end get another row's scales, or 0; their products are not stored.
    bytes_ = k ? unit_bytes_ - first_row * kUnitSteps : 0;
    const u32 row =
        Side::wave_along(place) * (Side::kFragments * kFragmentRows) + place.lane % kFragmentRows;
    offset_ = (place.lane / kFragmentRows * step_rows + scale_position(Side::tile_row(0, row))) *
              kUnitSteps;
  }

  HIPGEMM_DEVICE void load(Words& into) const {
    const Buffer from = make_buffer(base_, bytes_);
    if constexpr (kWords == 4)
      into = __builtin_amdgcn_raw_buffer_load_b128(from, offset_, 0, 0);
    else if constexpr (kWords == 2)
      into = __builtin_amdgcn_raw_buffer_load_b64(from, offset_, 0, 0);
    else
      into = __builtin_amdgcn_raw_buffer_load_b32(from, offset_, 0, 0);
  }
  HIPGEMM_DEVICE void advance_if(bool on) { base_ += on ? unit_bytes_ : 0; }

  // The current word with a fragment's bytes.
  HIPGEMM_DEVICE u32 word(u32 fragment) const { return current[fragment / 2]; }

 private:
  u64 base_;
  u32 unit_bytes_, bytes_, offset_;
};

// The scales of both operands.
template <class T>
struct BlockScales {
  static constexpr u32 kLoads = 2;  // per unit

  ScaleReader<T, SideA<T>> a;
  ScaleReader<T, SideB<T>> b;

  // The byte of a fragment's word that is for a step of the unit.
  static constexpr u32 byte(u32 fragment, u32 step) { return fragment % 2 * kUnitSteps + step; }

  // Unit 0 becomes current. With an odd number of steps the loop starts in its middle, so the next
  // one follows at once, if there is one; else unit 0 is the next as well, for the first tile to
  // take.
  HIPGEMM_DEVICE void begin(u32 tiles) {
    a.load(a.current);
    b.load(b.current);
    const bool middle = T::kSteps < kUnitSteps && tiles % 2 == 1 && tiles > 1;
    a.advance_if(middle);
    b.advance_if(middle);
    a.load(a.next);
    b.load(b.next);
    pin();  // before all fetches: their first wait then covers these loads
  }
  // At the start of a unit. Waits count on the place of these loads among the fetches.
  template <bool kLoadNext>
  HIPGEMM_DEVICE void turn() {
    a.current = a.next;
    b.current = b.next;
    if constexpr (kLoadNext) {
      a.advance_if(true);
      b.advance_if(true);
      a.load(a.next);
      b.load(b.next);
    }
    pin();
  }
};

struct NoScales {};
template <class T, Scaling = T::kScaling>
struct ScalesByFormat {
  using Type = NoScales;
};
template <class T>
struct ScalesByFormat<T, Scaling::blocks> {
  using Type = BlockScales<T>;
};
template <class T>
using ScalesOf = typename ScalesByFormat<T>::Type;

}  // namespace hipgemm
