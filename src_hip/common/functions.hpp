// The exponential function, and activations with their derivatives. Only sums, products, fma,
// comparisons and powers of two: any machine gives the same bits.
#pragma once

#include "common/hip_device.hpp"
#include "common/types.hpp"

namespace hipgemm {

// c + x * (next + x * ..), by fma. T: f32, or a vector of them.
template <class T>
HIPGEMM_DEVICE T polynomial(T, f32 c) {
  return T(c);
}
template <class T, class... Next>
HIPGEMM_DEVICE T polynomial(T x, f32 c, Next... next) {
  return __builtin_elementwise_fma(x, polynomial(x, next...), T(c));
}

// For exp_nonpositive: x, not less than the limit, and x * 2^n for x of about 1; of a float, or of
// each of a vector. n + kRound == rounded.
inline constexpr f32 kLeastExponent = -104.0f;  // e^x rounds to 0
inline constexpr f32 kRound = 0x1.8p23f;        // floats there are 1 apart
HIPGEMM_DEVICE f32 within_exponents(f32 x) { return at_least(kLeastExponent, x); }
HIPGEMM_DEVICE f32x4 within_exponents(f32x4 x) {
  for (u32 i = 0; i < 4; i++) x[i] = within_exponents(x[i]);
  return x;
}
HIPGEMM_DEVICE f32 times_rounded_power(f32 x, f32 rounded) {
  const u32 exponent = __builtin_bit_cast(u32, rounded) - __builtin_bit_cast(u32, kRound);
  return times_small_power_of_two(x, static_cast<int>(exponent));
}
HIPGEMM_DEVICE f32x4 times_rounded_power(f32x4 x, f32x4 rounded) {
  for (u32 i = 0; i < 4; i++) x[i] = times_rounded_power(x[i], rounded[i]);
  return x;
}

// e^x to 1 ulp, for x <= 0 or just above. The result may be subnormal. NaN for NaN.
template <class T>
HIPGEMM_DEVICE T exp_nonpositive(T x) {
  constexpr f32 kInverseLn2 = 1.44269502f, kLn2 = 0.693147182f, kLn2Rest = -1.90465421e-9f;
  x = within_exponents(x);
  const T rounded = __builtin_elementwise_fma(x, T(kInverseLn2), T(kRound));
  const T n = rounded - T(kRound);
  const T rest =
      __builtin_elementwise_fma(n, T(-kLn2Rest), __builtin_elementwise_fma(n, T(-kLn2), x));
  const T power = polynomial(rest, 1.0f, 1.0f, 0.49999994f, 0.166665196f, 0.0416683927f,
                             0.00836878084f, 0.00138144672f);
  return times_rounded_power(power, rounded);
}

// 1 / x to 1 ulp, for x in [1, 2]: a polynomial with a relative error of 1/99, and two steps of
// Newton's method, which square it.
HIPGEMM_DEVICE f32 reciprocal_1_to_2(f32 x) {
  f32 y = polynomial(x, 210 / 99.0f, -144 / 99.0f, 32 / 99.0f);
  for (u32 i = 0; i < 2; i++) y = __builtin_fmaf(y, __builtin_fmaf(-x, y, 1.0f), y);
  return y;
}

// 1 / (1 + e^-x), and its derivative.
struct Sigmoid {
  f32 value, derivative;

  static HIPGEMM_DEVICE Sigmoid of(f32 x) {
    const f32 e = exp_nonpositive(-__builtin_fabsf(x));
    const f32 inverse = reciprocal_1_to_2(1.0f + e), other = e * inverse;
    return {x < 0 ? other : inverse, other * inverse};
  }
};

// t where the other factor of a term of a derivative is not 0 yet: t might be too large for a
// product with it.
HIPGEMM_DEVICE f32 where_curved(f32 t) { return clamped(t, -128.0f, 128.0f); }

// Activations: functions of t, and their derivatives. To 4 ulp of the greater of |t| and the
// result, and exactly t or 0 where that is nearest. NaN for NaN; of -Inf, where the limit is 0, NaN
// too, but the derivatives have their limits.
struct Identity {
  static HIPGEMM_DEVICE f32 of(f32 t) { return t; }
  static HIPGEMM_DEVICE f32 derivative(f32) { return 1.0f; }
};

struct Relu {
  static HIPGEMM_DEVICE f32 of(f32 t) { return t <= 0 ? 0.0f : t; }
  static HIPGEMM_DEVICE f32 derivative(f32 t) { return t <= 0 ? 0.0f : t > 0 ? 1.0f : t; }
};

// t * Phi(t), the distribution function of the normal distribution.
struct Gelu {
  static HIPGEMM_DEVICE f32 of(f32 t) { return t * distribution(t); }
  static HIPGEMM_DEVICE f32 derivative(f32 t) {
    constexpr f32 kDensity0 = 0.398942280f;  // 1 / sqrt(2 pi)
    const f32 density = kDensity0 * exp_nonpositive(-0.5f * t * t);
    return __builtin_fmaf(where_curved(t), density, distribution(t));
  }

 private:
  static HIPGEMM_DEVICE f32 distribution(f32 t) {
    // log(Phi(-a)) + a^2 / 2. Beyond kMost, where Phi(-a) is 1e-9, it is taken as constant.
    constexpr f32 kMost = 6.0f;
    const f32 a = __builtin_fabsf(t);
    const f32 correction =
        polynomial(a < kMost ? a : kMost, -0.693147123f, -0.797887504f, 0.181719869f,
                   -0.0364466012f, 0.00498089474f, -0.000154483976f, -0.000110334018f,
                   2.63069833e-05f, -2.65598555e-06f, 1.05660256e-07f);
    const f32 tail = exp_nonpositive(__builtin_fmaf(-0.5f * a, a, correction));
    return t < 0 ? tail : 1.0f - tail;
  }
};

// t * (1 + tanh(sqrt(2 / pi) * (t + 0.044715 t^3))) / 2.
struct GeluTanh {
  static HIPGEMM_DEVICE f32 of(f32 t) { return t * Sigmoid::of(twice_argument(t)).value; }
  static HIPGEMM_DEVICE f32 derivative(f32 t) {
    const Sigmoid s = Sigmoid::of(twice_argument(t));
    const f32 at = where_curved(t), slope = __builtin_fmaf(3 * kCubic * at, at, kLinear);
    return __builtin_fmaf(at * slope, s.derivative, s.value);
  }

 private:
  static constexpr f32 kLinear = 1.59576912f, kCubic = 0.0713548163f;
  static HIPGEMM_DEVICE f32 twice_argument(f32 t) {
    return t * __builtin_fmaf(kCubic * t, t, kLinear);
  }
};

// t / (1 + e^-t).
struct Silu {
  static HIPGEMM_DEVICE f32 of(f32 t) { return t * Sigmoid::of(t).value; }
  static HIPGEMM_DEVICE f32 derivative(f32 t) {
    const Sigmoid s = Sigmoid::of(t);
    return __builtin_fmaf(where_curved(t), s.derivative, s.value);
  }
};

// The derivatives of a function of gate and up.
struct GluDerivatives {
  f32 gate, up;
};

// Gated by an activation.
template <class Activation>
struct Glu {
  static HIPGEMM_DEVICE f32 of(f32 gate, f32 up) { return Activation::of(gate) * up; }
  static HIPGEMM_DEVICE GluDerivatives derivatives(f32 gate, f32 up) {
    return {Activation::derivative(gate) * up, Activation::of(gate)};
  }
};

// gate * sigmoid(1.702 gate) * (up + 1), of clamped gate and up: the rule of gpt-oss.
struct SwigluOss {
  static HIPGEMM_DEVICE f32 of(f32 gate, f32 up) {
    return gated(below(gate)) * (within(up) + 1.0f);
  }
  static HIPGEMM_DEVICE GluDerivatives derivatives(f32 gate, f32 up) {
    const f32 x = below(gate);
    const Sigmoid s = Sigmoid::of(kSlope * x);
    const f32 by_gate = __builtin_fmaf(kSlope * where_curved(x), s.derivative, s.value);
    return {gate > kLimit ? 0.0f : by_gate * (within(up) + 1.0f),
            up > kLimit || up < -kLimit ? 0.0f : gated(x)};
  }

 private:
  static constexpr f32 kSlope = 1.702f, kLimit = 7.0f;
  static HIPGEMM_DEVICE f32 below(f32 x) { return x > kLimit ? kLimit : x; }
  static HIPGEMM_DEVICE f32 within(f32 x) { return x < -kLimit ? -kLimit : below(x); }
  static HIPGEMM_DEVICE f32 gated(f32 x) { return x * Sigmoid::of(kSlope * x).value; }
};

enum class Activation : u32 {
#define ACTIVATION(name, code, ...) name = code,
#define GLU_ACTIVATION(name, code, ...) name = code,
#include "common/activations.def"
};

enum class GluLayout : u32 {
  none,
#define GLU(name, code) name = code,
#include "common/activations.def"
};

// f(its struct()) for an activation, but for those of GLUs alone.
template <class F>
HIPGEMM_DEVICE void with_activation(Activation activation, F f) {
  switch (activation) {
#define ACTIVATION(name, code, functions) \
  case Activation::name:                  \
    return f(functions());
#include "common/activations.def"
    default:
      return;
  }
}
// f(its struct()) for the function of gate and up of any activation.
template <class F>
HIPGEMM_DEVICE void with_glu(Activation activation, F f) {
  switch (activation) {
#define ACTIVATION(name, code, functions) \
  case Activation::name:                  \
    return f(Glu<functions>());
#define GLU_ACTIVATION(name, code, functions) \
  case Activation::name:                      \
    return f(functions());
#include "common/activations.def"
  }
}

}  // namespace hipgemm
