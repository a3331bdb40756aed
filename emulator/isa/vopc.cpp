// VOPC: comparisons. The result is a lane mask; the v_cmpx forms write it to EXEC too.
#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

// What v_cmp_class tests: bit of the mask for a value of E exponent and M mantissa bits.
template <int E, int M, class T>
EMU_INLINE uint32_t class_bit(T bits) {
  constexpr T kMantissa = (T{1} << M) - 1, kExponent = (T{1} << E) - 1;
  const bool negative = bits >> (E + M) & 1;
  const T exponent = bits >> M & kExponent, mantissa = bits & kMantissa;
  if (exponent == kExponent)
    return mantissa == 0 ? (negative ? 2 : 9) : (mantissa >> (M - 1) ? 1 : 0);
  if (exponent) return negative ? 3 : 8;
  return mantissa ? (negative ? 4 : 7) : (negative ? 5 : 6);
}

}  // namespace

#define EMU_COMPARE(name, T, condition)                                    \
  vector(t, Op::v_cmp_##name, [](T a, T b) -> bool { return condition; }); \
  vector(t, Op::v_cmpx_##name, [](T a, T b) -> bool { return condition; });

#define EMU_COMPARE_INTEGERS(type, T)                                           \
  EMU_COMPARE(f_##type, T, (static_cast<void>(a), static_cast<void>(b), false)) \
  EMU_COMPARE(lt_##type, T, a < b)                                              \
  EMU_COMPARE(eq_##type, T, a == b)                                             \
  EMU_COMPARE(le_##type, T, a <= b)                                             \
  EMU_COMPARE(gt_##type, T, a > b)                                              \
  EMU_COMPARE(ne_##type, T, a != b)                                             \
  EMU_COMPARE(ge_##type, T, a >= b)                                             \
  EMU_COMPARE(t_##type, T, (static_cast<void>(a), static_cast<void>(b), true))

#define EMU_COMPARE_FLOATS(type, T, x, y)                                       \
  EMU_COMPARE(f_##type, T, (static_cast<void>(a), static_cast<void>(b), false)) \
  EMU_COMPARE(lt_##type, T, x < y)                                              \
  EMU_COMPARE(eq_##type, T, x == y)                                             \
  EMU_COMPARE(le_##type, T, x <= y)                                             \
  EMU_COMPARE(gt_##type, T, x > y)                                              \
  EMU_COMPARE(lg_##type, T, x<y || x> y)                                        \
  EMU_COMPARE(ge_##type, T, x >= y)                                             \
  EMU_COMPARE(o_##type, T, x == x && y == y)                                    \
  EMU_COMPARE(u_##type, T, x != x || y != y)                                    \
  EMU_COMPARE(nge_##type, T, !(x >= y))                                         \
  EMU_COMPARE(nlg_##type, T, !(x < y || x > y))                                 \
  EMU_COMPARE(ngt_##type, T, !(x > y))                                          \
  EMU_COMPARE(nle_##type, T, !(x <= y))                                         \
  EMU_COMPARE(neq_##type, T, !(x == y))                                         \
  EMU_COMPARE(nlt_##type, T, !(x < y))                                          \
  EMU_COMPARE(tru_##type, T, (static_cast<void>(a), static_cast<void>(b), true))

#define EMU_COMPARE_CLASS(type, Value, E, M, Mask)                             \
  vector(t, Op::v_cmp_class_##type,                                            \
         [](Value a, Mask b) -> bool { return b >> class_bit<E, M>(a) & 1; }); \
  vector(t, Op::v_cmpx_class_##type,                                           \
         [](Value a, Mask b) -> bool { return b >> class_bit<E, M>(a) & 1; });

void add_vopc(Semantics& t) {
  EMU_COMPARE_INTEGERS(i16, int16_t)
  EMU_COMPARE_INTEGERS(u16, uint16_t)
  EMU_COMPARE_INTEGERS(i32, int32_t)
  EMU_COMPARE_INTEGERS(u32, uint32_t)
  EMU_COMPARE_INTEGERS(i64, int64_t)
  EMU_COMPARE_INTEGERS(u64, uint64_t)
  EMU_COMPARE_FLOATS(f16, Half, a.f, b.f)
  EMU_COMPARE_FLOATS(f32, float, a, b)
  EMU_COMPARE_FLOATS(f64, double, a, b)
  EMU_COMPARE_CLASS(f16, uint16_t, 5, 10, uint16_t)
  EMU_COMPARE_CLASS(f32, uint32_t, 8, 23, uint32_t)
  EMU_COMPARE_CLASS(f64, uint64_t, 11, 52, uint32_t)
}

}  // namespace emu::EMU_NS
