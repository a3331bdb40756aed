// Instructions of gfx950 that move data between lanes.
#pragma once

#include "common/hip_device.hpp"
#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// 8 bytes per lane out of LDS, transposed among each 16 lanes: they read 64 / kBits slices of 16
// elements, consecutive lanes consecutive bytes, and lane j gets element j of all slices. The
// builtins have no alias information, so clang would wait for all DMA in flight first; a restricted
// pointer says that nothing else writes there.
template <u32 kBits>
HIPGEMM_DEVICE u32x2 read_transposed(LdsByte* __restrict from) {
  if constexpr (kBits == 16) {
    using Lds = __attribute__((address_space(3))) Vector<short, 4>;
    return __builtin_bit_cast(u32x2, __builtin_amdgcn_ds_read_tr16_b64_v4i16((Lds*)from));
  } else {
    static_assert(kBits == 8, "elements of one byte or two");
    using Lds = __attribute__((address_space(3))) Vector<int, 2>;
    return __builtin_bit_cast(u32x2, __builtin_amdgcn_ds_read_tr8_b64_v2i32((Lds*)from));
  }
}

// Swaps b of the first and a of the second of each two neighbouring groups of 16 lanes.
HIPGEMM_DEVICE void swap_lane_rows(f32x4& a, f32x4& b) {
  u32x4 x = __builtin_bit_cast(u32x4, a), y = __builtin_bit_cast(u32x4, b);
  for (u32 e = 0; e < 4; e++) {
    const auto swapped = __builtin_amdgcn_permlane16_swap(x[e], y[e], false, false);
    x[e] = swapped[0];
    y[e] = swapped[1];
  }
  a = __builtin_bit_cast(f32x4, x);
  b = __builtin_bit_cast(f32x4, y);
}

}  // namespace hipgemm
