// The matrix instructions: one struct each, with its lane layout.
#pragma once

#include "hip_device.hpp"
#include "types.hpp"

namespace hipgemm {

// All of them are 16 x 16: in published measurements on gfx950 they beat the 32 x 32 ones.
inline constexpr u32 kFragmentRows = 16;

// D(16,16) += A(16,32) * B(32,16) in 4 passes (16 clocks).
//   A, B: lane l holds row (column) l % 16, k = 8 * (l / 16) + element: one 16-byte chunk of K.
//   C, D: lane l, register r holds row 4 * (l / 16) + r, column l % 16.
struct Mfma16x16x32Bf16 {
  static constexpr u32 kLaneGroups = 4;  // lanes l / 16 share a row and split K between them
  static constexpr u32 kElementBits = 16;
  using Fragment = bf16x8;
  using Accumulator = f32x4;

  static HIPGEMM_DEVICE Accumulator multiply(Fragment a, Fragment b, Accumulator c) {
    return __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
  }
};

}  // namespace hipgemm
