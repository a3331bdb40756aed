// Numbers of 8 and 4 bits to float32 by arithmetic that any machine has.
#pragma once

#include "element.hpp"
#include "hip_device.hpp"
#include "types.hpp"

namespace hipgemm {

// Their fields lie in the order of f16's. In f16's places they are the number but for the bias of
// the exponent, subnormal or not.
struct FromE4m3 {
  using Bits = u8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    const f32 x = FromF16::widen((bits & 0x80) << 8 | (bits & 0x7f) << 7) * 0x1p8f;
    return (bits & 0x7f) == 0x7f ? __builtin_nanf("") : x;
  }
};
struct FromE5m2 {
  using Bits = u8;
  static HIPGEMM_DEVICE f32 widen(u32 bits) { return FromF16::widen(bits << 8); }
};
struct FromE2m1 {
  using Bits = u8;  // the low half of it
  static HIPGEMM_DEVICE f32 widen(u32 bits) {
    return FromF16::widen((bits & 8) << 12 | (bits & 7) << 9) * 0x1p14f;
  }
};

}  // namespace hipgemm
