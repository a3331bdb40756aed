// MX scales of the blocks of a pass (thread_map.hpp), each computed by the thread that owns it.
#pragma once

#include "common/lane_reduce.hpp"
#include "common/quantized_types.hpp"
#include "common/types.hpp"
#include "quantize/thread_map.hpp"

namespace hipgemm {

template <class Element, class Map>
class PassScales {
 public:
  HIPGEMM_DEVICE void take(u32 iteration, u32 amax) {
    amax_.take(iteration, reduce_lanes<Map::kBlockThreads>(amax, larger));
  }
  HIPGEMM_DEVICE void compute(ScaleRule rule) {
    owned_ = BlockScale::of<Element>(amax_.value, rule);
  }
  HIPGEMM_DEVICE u32 owned_byte() const { return owned_.byte; }
  template <u32 kIteration>
  HIPGEMM_DEVICE f32 multiplier(Index<kIteration>) const {
    if constexpr (Map::kBlockThreads == 1) {
      return owned_.multiplier;
    } else {
      const u32 bits = __builtin_bit_cast(u32, owned_.multiplier);
      return __builtin_bit_cast(f32, of_lane<Map::kBlockThreads, kIteration>(bits));
    }
  }

 private:
  OwnedIteration<Map> amax_;
  BlockScale owned_;
};

}  // namespace hipgemm
