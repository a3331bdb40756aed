// Where a thread's quantized values are in memory.
#pragma once

#include "common/quantized_types.hpp"
#include "common/types.hpp"

namespace hipgemm {

// Those of a row of `length` from value `first` on. Chunks of 16 bytes exist as a whole if they
// have any of the row's values.
template <class Element>
struct QuantizedRow {
  static constexpr u32 kPerChunk = 128 / Element::kBits;
  u64 address;
  bool exists;

  HIPGEMM_DEVICE QuantizedRow(u64 row, u32 first, u32 length)
      : address(row + first / (8 / Element::kBits)),  // first * kBits may exceed 2^32
        exists(first / kPerChunk * kPerChunk < length) {}
};

}  // namespace hipgemm
