// Where a thread's quantized values are in memory.
#pragma once

#include "common/memory.hpp"
#include "common/quantized_types.hpp"
#include "common/swizzle.hpp"
#include "common/types.hpp"

namespace hipgemm {

// Chunks of 16 bytes in a row of `length` values; all their bits may be more than 2^32.
HIPGEMM_DEVICE u32 count_chunks(u32 length, u32 bits) {
  return length / 64 * (bits / 2) + (length % 64 * bits + kChunkBytes * 8 - 1) / (kChunkBytes * 8);
}

// Those of a row of `length` from value `first` on. Chunks exist as a whole if they have any of the
// row's values.
template <class Element>
class QuantizedRow {
 public:
  HIPGEMM_DEVICE QuantizedRow(u64 row, u32 first, u32 length) {
    const u32 all = count_chunks(length, Element::kBits) * (kChunkBytes / kPieceBytes);
    const u32 before = first / kValuesOf<Element> * kPieces;
    address_ = row + static_cast<u64>(before) * kPieceBytes;
    pieces_ = all - smaller(all, before);
  }

  // Those of the row `offset` bytes away.
  HIPGEMM_DEVICE void store(u64 offset, Packed<Element> packed) const {
    for_each_piece([&](u32 i)
                       HIPGEMM_INLINE { *piece(offset, i) = {packed[2 * i], packed[2 * i + 1]}; });
  }
  HIPGEMM_DEVICE Packed<Element> load(u64 offset) const {
    Packed<Element> packed(0);
    for_each_piece([&](u32 i) HIPGEMM_INLINE {
      const u32x2 loaded = *piece(offset, i);
      packed[2 * i] = loaded.x;
      packed[2 * i + 1] = loaded.y;
    });
    return packed;
  }

 private:
  static constexpr u32 kPieces = kPiecesOf<Element>;
  // Those that exist. Usually all do: then the compiler joins the accesses.
  template <class F>
  HIPGEMM_DEVICE void for_each_piece(F f) const {
    if (pieces_ >= kPieces) {
#pragma unroll
      for (u32 i = 0; i < kPieces; i++) f(i);
    } else {
#pragma unroll
      for (u32 i = 0; i + 1 < kPieces; i++)
        if (i < pieces_) f(i);
    }
  }
  HIPGEMM_DEVICE auto piece(u64 offset, u32 i) const {
    return global<u32x2>(address_ + offset + i * kPieceBytes);
  }

  u64 address_;
  u32 pieces_;  // of these values and those after them
};

}  // namespace hipgemm
