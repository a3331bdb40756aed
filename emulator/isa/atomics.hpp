// The read-modify-write operations that memory (buffer, global, flat) and LDS have in common.
#pragma once

#include "isa/memory.hpp"

namespace emu::EMU_NS {

// An operation: how a value in memory changes, given one or two data values.
template <class T, class F, bool kTwo = false>
struct Atomic {
  using Type = T;
  static constexpr int kDataRows = static_cast<int>(sizeof(T) / 4) * (kTwo ? 2 : 1);
  static constexpr bool kTwoOperands = kTwo;
  EMU_INLINE T apply(T old, T data, T data2) { return F{}(old, data, data2); }
};

// Data rows are in p.data: the first operand's, then the second's.
template <class A>
EMU_INLINE void apply_atomic(Wave& w, const Pending& p, bool returns, const Reach& r) {
  constexpr int n = sizeof(typename A::Type) / 4;
  atomic_rows<typename A::Type>(returns ? w.reg(p.inst->d) : nullptr, p.data[0],
                                A::kTwoOperands ? p.data[n] : p.data[0], p.exec, r,
                                [](auto old, auto a, auto b) { return A::apply(old, a, b); });
}

// ---- floating point -----------------------------------------------------------------------------

EMU_INLINE float quiet(float x) { return as<float>(as<uint32_t>(x) | 0x00400000); }
EMU_INLINE double quiet(double x) { return as<double>(as<uint64_t>(x) | uint64_t{1} << 51); }
template <class T>
EMU_INLINE bool is_nan(T x) {
  return x != x;
}
template <class T>
EMU_INLINE bool is_signalling(T x) {
  if constexpr (sizeof(T) == 4)
    return is_nan(x) && !(as<uint32_t>(x) & 0x00400000);
  else
    return is_nan(x) && !(as<uint64_t>(x) >> 51 & 1);
}

template <class T>
EMU_INLINE bool sign_bit(T x) {
  if constexpr (sizeof(T) == 4)
    return as<uint32_t>(x) >> 31;
  else
    return as<uint64_t>(x) >> 63;
}

// If either input is NaN the first NaN is the result, made quiet.
template <class T>
EMU_INLINE T float_add(T a, T b) {
  if (is_nan(a)) return quiet(a);
  if (is_nan(b)) return quiet(b);
  return a + b;
}
// Order of the float atomics: -inf .. -0, +0 .. inf; a quiet NaN loses.
template <class T>
EMU_INLINE T float_min(T a, T b) {
  if (is_signalling(a)) return quiet(a);
  if (is_signalling(b)) return quiet(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  if (a == b) return sign_bit(a) ? a : b;
  return a < b ? a : b;
}
template <class T>
EMU_INLINE T float_max(T a, T b) {
  if (is_signalling(a)) return quiet(a);
  if (is_signalling(b)) return quiet(b);
  if (is_nan(a)) return b;
  if (is_nan(b)) return a;
  if (a == b) return sign_bit(a) ? b : a;
  return a > b ? a : b;
}
EMU_INLINE float flush(float x) {
  return (as<uint32_t>(x) & 0x7f800000) ? x : as<float>(as<uint32_t>(x) & 0x80000000);
}

EMU_INLINE float from_bf16(uint32_t bits) { return as<float>(bits << 16); }
EMU_INLINE uint32_t to_bf16(float x) {
  const uint32_t u = as<uint32_t>(x);
  if (is_nan(x)) return u >> 16 | 0x40;
  return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// Half precision in integer arithmetic: the baseline CPU level has no conversion instructions.
EMU_INLINE float from_f16(uint32_t h) {
  const uint32_t sign = (h & 0x8000) << 16, mantissa = h & 0x3ff;
  int exponent = h >> 10 & 31;
  if (exponent == 31) return as<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return as<float>(as<uint32_t>(magnitude) | sign);
  }
  return as<float>(sign | static_cast<uint32_t>(exponent + 112) << 23 | mantissa << 13);
}
EMU_INLINE uint32_t to_f16(float x) {
  const uint32_t u = as<uint32_t>(x), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00 | (magnitude >> 13 & 0x1ff);
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // rounds beyond 65504
  if (magnitude < 0x38800000) {                       // denormal or zero: let the adder round
    const float shifted = as<float>(magnitude) + 0.5f;
    return sign | (as<uint32_t>(shifted) - 0x3f000000);
  }
  return sign | ((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

template <class Up, class Down>
EMU_INLINE uint32_t packed_add(uint32_t a, uint32_t b, Up up, Down down) {
  const uint32_t low = down(float_add(up(a & 0xffff), up(b & 0xffff)));
  const uint32_t high = down(float_add(up(a >> 16), up(b >> 16)));
  return low | high << 16;
}

// ---- the operations -----------------------------------------------------------------------------

#define EMU_ATOMIC(name, T, body)                               \
  struct name##Body {                                           \
    EMU_MEMBER T operator()(T m, T a, T) const { return body; } \
  };                                                            \
  using name = Atomic<T, name##Body>;
#define EMU_ATOMIC2(name, T, body)                                \
  struct name##Body {                                             \
    EMU_MEMBER T operator()(T m, T a, T b) const { return body; } \
  };                                                              \
  using name = Atomic<T, name##Body, true>;
#define EMU_ATOMIC_INTEGERS(U, S, bits)                                               \
  EMU_ATOMIC(Swap##bits, U, (static_cast<void>(m), a))                                \
  EMU_ATOMIC(Add##bits, U, m + a)                                                     \
  EMU_ATOMIC(Sub##bits, U, m - a)                                                     \
  EMU_ATOMIC(ReverseSub##bits, U, a - m)                                              \
  EMU_ATOMIC(SignedMin##bits, S, a < m ? a : m)                                       \
  EMU_ATOMIC(UnsignedMin##bits, U, a < m ? a : m)                                     \
  EMU_ATOMIC(SignedMax##bits, S, a > m ? a : m)                                       \
  EMU_ATOMIC(UnsignedMax##bits, U, a > m ? a : m)                                     \
  EMU_ATOMIC(And##bits, U, m& a)                                                      \
  EMU_ATOMIC(Or##bits, U, m | a)                                                      \
  EMU_ATOMIC(Xor##bits, U, m ^ a)                                                     \
  EMU_ATOMIC(Inc##bits, U, m >= a ? U{0} : m + 1)                                     \
  EMU_ATOMIC(Dec##bits, U, m == 0 || m > a ? a : m - 1)                               \
  /* memory: data is the new value, data2 the comparison; LDS: the other way round */ \
  EMU_ATOMIC2(CompareSwap##bits, U, m == b ? a : m)                                   \
  EMU_ATOMIC2(CompareStore##bits, U, m == a ? b : m)                                  \
  EMU_ATOMIC2(MaskOr##bits, U, (m & ~a) | b)

EMU_ATOMIC_INTEGERS(uint32_t, int32_t, 32)
EMU_ATOMIC_INTEGERS(uint64_t, int64_t, 64)
EMU_ATOMIC(AddF32, float, float_add(m, a))
EMU_ATOMIC(AddFlushF32, float, flush(float_add(flush(m), flush(a))))  // as the L2 cache does it
EMU_ATOMIC(MinF32, float, float_min(m, a))
EMU_ATOMIC(MaxF32, float, float_max(m, a))
EMU_ATOMIC2(CompareStoreF32, float, m == a ? b : m)
EMU_ATOMIC(AddF64, double, float_add(m, a))
EMU_ATOMIC(MinF64, double, float_min(m, a))
EMU_ATOMIC(MaxF64, double, float_max(m, a))
EMU_ATOMIC2(CompareStoreF64, double, m == a ? b : m)
EMU_ATOMIC(PackedAddF16, uint32_t, packed_add(m, a, from_f16, to_f16))
EMU_ATOMIC(PackedAddBf16, uint32_t, packed_add(m, a, from_bf16, to_bf16))
EMU_ATOMIC2(Wrap32, uint32_t, m >= a ? m - a : m + b)

#define EMU_INTEGER_ATOMICS(Add, t, space)                      \
  Add::atomic<Swap32>(t, Op::space##_atomic_swap);              \
  Add::atomic<CompareSwap32>(t, Op::space##_atomic_cmpswap);    \
  Add::atomic<Add32>(t, Op::space##_atomic_add);                \
  Add::atomic<Sub32>(t, Op::space##_atomic_sub);                \
  Add::atomic<SignedMin32>(t, Op::space##_atomic_smin);         \
  Add::atomic<UnsignedMin32>(t, Op::space##_atomic_umin);       \
  Add::atomic<SignedMax32>(t, Op::space##_atomic_smax);         \
  Add::atomic<UnsignedMax32>(t, Op::space##_atomic_umax);       \
  Add::atomic<And32>(t, Op::space##_atomic_and);                \
  Add::atomic<Or32>(t, Op::space##_atomic_or);                  \
  Add::atomic<Xor32>(t, Op::space##_atomic_xor);                \
  Add::atomic<Inc32>(t, Op::space##_atomic_inc);                \
  Add::atomic<Dec32>(t, Op::space##_atomic_dec);                \
  Add::atomic<Swap64>(t, Op::space##_atomic_swap_x2);           \
  Add::atomic<CompareSwap64>(t, Op::space##_atomic_cmpswap_x2); \
  Add::atomic<Add64>(t, Op::space##_atomic_add_x2);             \
  Add::atomic<Sub64>(t, Op::space##_atomic_sub_x2);             \
  Add::atomic<SignedMin64>(t, Op::space##_atomic_smin_x2);      \
  Add::atomic<UnsignedMin64>(t, Op::space##_atomic_umin_x2);    \
  Add::atomic<SignedMax64>(t, Op::space##_atomic_smax_x2);      \
  Add::atomic<UnsignedMax64>(t, Op::space##_atomic_umax_x2);    \
  Add::atomic<And64>(t, Op::space##_atomic_and_x2);             \
  Add::atomic<Or64>(t, Op::space##_atomic_or_x2);               \
  Add::atomic<Xor64>(t, Op::space##_atomic_xor_x2);             \
  Add::atomic<Inc64>(t, Op::space##_atomic_inc_x2);             \
  Add::atomic<Dec64>(t, Op::space##_atomic_dec_x2);
#define EMU_FLOAT_ATOMICS(Add, t, space)                         \
  Add::atomic<AddFlushF32>(t, Op::space##_atomic_add_f32);       \
  Add::atomic<PackedAddF16>(t, Op::space##_atomic_pk_add_f16);   \
  Add::atomic<PackedAddBf16>(t, Op::space##_atomic_pk_add_bf16); \
  Add::atomic<AddF64>(t, Op::space##_atomic_add_f64);            \
  Add::atomic<MinF64>(t, Op::space##_atomic_min_f64);            \
  Add::atomic<MaxF64>(t, Op::space##_atomic_max_f64);

}  // namespace emu::EMU_NS
