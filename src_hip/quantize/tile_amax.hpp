// The amax of a tile or of its rows, max-accumulated into memory.
#pragma once

#include "common/lane_reduce.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/thread_map.hpp"

namespace hipgemm {

// Floats in memory, compared as bits: with step 0 one for all, with step 1 one for each row.
class TileAmax {
 public:
  using Lds = u32[OneWayMap::kThreads / OneWayMap::kRowThreads];

  template <class Tile>
  HIPGEMM_DEVICE explicit TileAmax(const Tile& tile) {
#pragma unroll
    for (u32 iteration = 0; iteration < OneWayMap::kIterations; iteration++)
      amax_[iteration] = tile.row_amax(iteration);
  }

  HIPGEMM_DEVICE void store(void* into, u32 step, const OneWayMap& at, u32 rows, Lds& lds) const {
    constexpr u32 kRowThreads = OneWayMap::kRowThreads;
    static_assert(kRowThreads == 16, "threads of a row, and rows of one iteration");
    const u32 thread = OneWayMap::thread();
    if (step) {
      OwnedIteration<OneWayMap> row_amax;
#pragma unroll
      for (u32 iteration = 0; iteration < OneWayMap::kIterations; iteration++)
        row_amax.take(iteration, reduce_lanes<kRowThreads>(amax_[iteration], larger));
      const u32 row = at.row(thread % OneWayMap::kIterations);
      if (thread % kRowThreads < OneWayMap::kIterations && row < rows)
        atomic_max_in_device(global<u32>(address_of(into)) + row, row_amax.value);
      return;
    }
    const u32 mine = larger(larger(amax_[0], amax_[1]), larger(amax_[2], amax_[3]));
    lds[thread / kRowThreads] = reduce_lanes<kRowThreads>(mine, larger);
    sync_workgroup();
    const u32 all = reduce_lanes<kRowThreads>(lds[thread % kRowThreads], larger);
    if (thread == 0) atomic_max_in_device(global<u32>(address_of(into)), all);
  }

 private:
  u32 amax_[OneWayMap::kIterations];
};

}  // namespace hipgemm
