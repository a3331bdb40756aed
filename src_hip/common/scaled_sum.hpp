// The end of a product: its sum times all factors, plus the bias.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// A float32 number, significand * 2^exponent: the significand's magnitude is in [1/2, 1), or the
// number is 0, Inf or NaN, and the exponent 0.
struct Factor {
  f32 significand;
  int exponent;

  static HIPGEMM_DEVICE Factor of(f32 x) { return {significand_of(x), exponent_of(x)}; }
  HIPGEMM_DEVICE Factor operator*(Factor by) const {
    return {significand * by.significand, exponent + by.exponent};
  }
};
inline constexpr Factor kNoScales{1.0f, 0};

// sum * scales * alpha * col_scale + bias, where scales is the product of both operands' scales.
// Each product is rounded to float32's 24 bits, but exponents have no limits: only the result can
// overflow or underflow. The last product and the bias are rounded once, as by fma.
HIPGEMM_DEVICE f32 scaled_sum(f32 sum, Factor scales, Factor alpha, Factor col_scale, f32 bias) {
  const Factor product = Factor::of(sum) * scales * alpha;
  const int exponent = product.exponent + col_scale.exponent;
  // In two factors, neither of which overflows or underflows unless their product is far beyond it.
  constexpr int kMost = 64;
  const int second = exponent < -kMost ? -kMost : exponent > kMost ? kMost : exponent;
  return __builtin_fmaf(times_power_of_two(product.significand, exponent - second),
                        times_power_of_two(col_scale.significand, second), bias);
}

}  // namespace hipgemm
