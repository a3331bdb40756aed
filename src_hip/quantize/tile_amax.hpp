// The amax of a tile or of its rows.
#pragma once

#include "common/lane_reduce.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"
#include "quantize/thread_map.hpp"

namespace hipgemm {

template <class Map>
class TileAmax {
 public:
  static constexpr u32 kRowThreads = Map::kRowThreads, kRows = Map::kThreads / kRowThreads;
  using Lds = u32[kRows];  // of the rows of one iteration

  template <class Tile>
  HIPGEMM_DEVICE explicit TileAmax(const Tile& tile) {
#pragma unroll
    for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
      amax_[iteration] = tile.row_amax(iteration);
  }

  // Of the row of the iteration that the thread owns.
  HIPGEMM_DEVICE u32 of_owned_row() const {
    OwnedIteration<Map> row_amax;
#pragma unroll
    for (u32 iteration = 0; iteration < Map::kIterations; iteration++)
      row_amax.take(iteration, reduce_lanes<kRowThreads>(amax_[iteration], larger));
    return row_amax.value;
  }

  // Of the tile, for all threads.
  HIPGEMM_DEVICE u32 of_tile(Lds& lds) const {
    static_assert(kRowThreads == 16 && kRows % kRowThreads == 0 && Map::kIterations == 4, "");
    const u32 thread = Map::thread();
    const u32 mine = larger(larger(amax_[0], amax_[1]), larger(amax_[2], amax_[3]));
    lds[thread / kRowThreads] = reduce_lanes<kRowThreads>(mine, larger);
    sync_workgroup();
    u32 all = lds[thread % kRowThreads];
#pragma unroll
    for (u32 row = kRowThreads; row < kRows; row += kRowThreads)
      all = larger(all, lds[row + thread % kRowThreads]);
    return reduce_lanes<kRowThreads>(all, larger);
  }

  // Into floats in memory, compared as bits: with step 0 one for all, with step 1 one for each row.
  HIPGEMM_DEVICE void store(void* into, u32 step, const Map& at, u32 rows, Lds& lds) const {
    const u32 thread = Map::thread();
    if (step) {
      const u32 row_amax = of_owned_row(), row = at.row(thread % Map::kIterations);
      if (thread % kRowThreads < Map::kIterations && row < rows)
        atomic_max_in_device(global<u32>(address_of(into)) + row, row_amax);
      return;
    }
    const u32 all = of_tile(lds);
    if (thread == 0) atomic_max_in_device(global<u32>(address_of(into)), all);
  }

 private:
  u32 amax_[Map::kIterations];
};

}  // namespace hipgemm
