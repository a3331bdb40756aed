// A tile of quantized values, loaded into registers row by row.
#pragma once

#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/quantized_row.hpp"
#include "quantize/thread_map.hpp"

namespace hipgemm {

template <class Element>
using QuantizedMap = ThreadMap<64, 128, kValuesOf<Element>>;

// A thread's values of all iterations, zero outside the matrix. Rows are padded to whole chunks.
template <class Element>
struct QuantizedTile {
  using Map = QuantizedMap<Element>;
  Packed<Element> packed[Map::kIterations];

  HIPGEMM_DEVICE QuantizedTile(const void* data, i64 pitch, const Map& at, u32 rows, u32 cols) {
    const QuantizedRow<Element> from(
        reinterpret_cast<u64>(data) + at.row(0) * static_cast<u64>(pitch), at.col(), cols);
#pragma unroll
    for (u32 i = 0; i < Map::kIterations; i++) {
      packed[i] = Packed<Element>(0);
      if (at.row(i) < rows) packed[i] = from.load(i * Map::kRowStep * static_cast<u64>(pitch));
    }
  }
};

}  // namespace hipgemm
