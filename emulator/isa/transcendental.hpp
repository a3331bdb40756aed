// exp2, log2, sin and cos of one lane's value, in double precision so that the rounded result is
// within the instruction's error, with plain arithmetic so that all CPU levels give the same bits.
#pragma once

#include "isa/arithmetic.hpp"

namespace emu::EMU_NS {

EMU_INLINE double polynomial(double x, double c) {
  (void)x;
  return c;
}
// c0 + c1·x + c2·x² …
template <class... C>
EMU_INLINE double polynomial(double x, double c0, C... c) {
  return c0 + x * polynomial(x, c...);
}

EMU_INLINE double exp2_of(double x) {
  const double limited = x < -1100 ? -1100 : x > 1100 ? 1100 : x;
  const double n = nearest(limited), t = (limited - n) * 0.6931471805599453;
  const double p = polynomial(t, 1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720,
                              1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800);
  // In two steps: 2^n itself may be out of range.
  const auto whole = static_cast<int32_t>(n), half = whole / 2;
  const double a = as<double>(static_cast<uint64_t>(1023 + half) << 52);
  const double b = as<double>(static_cast<uint64_t>(1023 + whole - half) << 52);
  return x == x ? p * a * b : x;
}

// Logarithm of a normal number; the caller handles other values.
EMU_INLINE double log2_of(double x) {
  const uint64_t bits = as<uint64_t>(x);
  // Mantissa in [sqrt(1/2), sqrt(2)).
  const uint64_t shifted = bits - 0x3fe6a09e667f3bcd;
  const auto exponent = static_cast<int32_t>(static_cast<int64_t>(shifted) >> 52);
  const double m = as<double>(bits - (shifted & 0xfff0000000000000));
  const double s = (m - 1) / (m + 1), q = s * s;
  const double sum = polynomial(q, 1.0, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13,
                                1.0 / 15, 1.0 / 17);
  return exponent + s * sum * 2.8853900817779268;  // 2/ln 2
}

// sin(2πx) for |x| ≤ 1/4.
EMU_INLINE double sin_turns(double x) {
  const double t = x * 6.283185307179586, q = t * t;
  return t * polynomial(q, 1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
                        1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000,
                        -1.0 / 121645100408832000);
}

EMU_INLINE double fraction_of_turn(double x) {
  // Beyond 2^51 there is no fraction.
  const double magnitude = x < 0 ? -x : x;
  return magnitude < 0x1p51 ? x - nearest(x) : magnitude < 0x1p1023 ? 0.0 : x - x;
}

EMU_INLINE double sin_of_turns(double x) {
  const double f = fraction_of_turn(x);
  const double folded = f > 0.25 ? 0.5 - f : f < -0.25 ? -0.5 - f : f;
  return x == 0 ? x : folded == 0 ? 0.0 : sin_turns(folded);
}

EMU_INLINE double cos_of_turns(double x) {
  const double f = fraction_of_turn(x);
  return sin_turns(0.25 - (f < 0 ? -f : f));
}

}  // namespace emu::EMU_NS
