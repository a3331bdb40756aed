// The framework of vector ALU semantics. An operation is a lambda over one lane's values; `vector`
// makes it a loop over 64 lanes, which the compiler vectorises:
//
//   vector(t, Op::v_add_u32, [](uint32_t a, uint32_t b) { return a + b; });
//
// Parameter and result types say how registers are read and written:
// * uint32_t, int32_t, float: one register; uint64_t, int64_t, double, Pair: two;
// * uint16_t, int16_t, Half, BFloat: the low half of one, and a result clears the high half;
// * bool: as a parameter one lane of a mask operand (carry in, selector), as the result a mask;
// * WithCarry: a value and a mask;
// * Mode, Control, LaneId: no operands but the MODE register, op_sel or the truth table, the lane.
// An operation that reads its destination (v_fmac) takes it as its last parameter. A second lambda
// is used instead when the clamp bit is set: integer saturation.
//
// Operand kinds, EXEC, source modifiers (abs, neg), DPP, SDWA, op_sel, omod, clamp and unusual
// rounding and denormal modes are handled in lanes.cpp, around the loop: a source that is not a
// plain register is first copied to a buffer.
#pragma once

#include "isa/small_float.hpp"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace emu::EMU_NS {

struct Half {
  float f;
};
struct BFloat {
  float f;
};
struct Pair {
  uint32_t low, high;
};
struct Mode {
  uint32_t bits;
  EMU_MEMBER bool ieee() const { return bits & kModeIeee; }
  EMU_MEMBER bool fp16_overflow() const { return bits & kModeFp16Overflow; }
};
struct Control {
  uint32_t bits;
};
struct LaneId {
  uint32_t i;
};

template <class T>
struct WithCarry {
  T value;
  bool carry;
};
using Carry = WithCarry<uint32_t>;
using WideCarry = WithCarry<uint64_t>;

// What a loop works on: rows of 64 dwords; two rows for 64-bit values.
struct Rows {
  uint32_t* d;
  const uint32_t* src[4];
  uint32_t* mask_out;  // one dword per lane, 0 or 1
  uint32_t control;    // Inst::y, where it is not a mask's slot
  uint32_t mode;
};
using Loop = void (*)(const Rows&);

template <class T>
inline constexpr bool is_operand =
    !std::is_same_v<T, Mode> && !std::is_same_v<T, Control> && !std::is_same_v<T, LaneId>;

template <class T>
EMU_INLINE T load_lane(const Rows& rows, const uint32_t* row, int l) {
  if constexpr (std::is_same_v<T, Mode>)
    return {rows.mode};
  else if constexpr (std::is_same_v<T, Control>)
    return {rows.control};
  else if constexpr (std::is_same_v<T, LaneId>)
    return {static_cast<uint32_t>(l)};
  else if constexpr (std::is_same_v<T, bool>)
    return row[l] != 0;
  else if constexpr (std::is_same_v<T, Half>)
    return {half_to_float(row[l])};
  else if constexpr (std::is_same_v<T, BFloat>)
    return {bf16_to_float(row[l])};
  else if constexpr (std::is_same_v<T, Pair>)
    return {row[l], row[l + kLanes]};
  else if constexpr (sizeof(T) == 2)
    return static_cast<T>(row[l]);
  else if constexpr (sizeof(T) == 8)
    return as<T>(row[l] | static_cast<uint64_t>(row[l + kLanes]) << 32);
  else
    return as<T>(row[l]);
}

template <class T>
EMU_INLINE void store_lane(const Rows& rows, uint32_t* row, int l, T x) {
  if constexpr (std::is_same_v<T, Half>) {
    row[l] = float_to_half(x.f, rows.mode & kModeFp16Overflow);
  } else if constexpr (std::is_same_v<T, BFloat>) {
    row[l] = float_to_bf16(x.f);
  } else if constexpr (std::is_same_v<T, Pair>) {
    row[l] = x.low;
    row[l + kLanes] = x.high;
  } else if constexpr (sizeof(T) == 2) {
    row[l] = static_cast<uint16_t>(x);
  } else if constexpr (sizeof(T) == 8) {
    const auto bits = as<uint64_t>(x);
    row[l] = static_cast<uint32_t>(bits);
    row[l + kLanes] = static_cast<uint32_t>(bits >> 32);
  } else {
    row[l] = as<uint32_t>(x);
  }
}

// No lane accesses another lane's values, so the loop may be vectorised even if operands overlap.
#if defined(__clang__)
// A few operations, v_ldexp_f64 for one, call a function for each lane.
#pragma clang diagnostic ignored "-Wpass-failed"
#define EMU_LANES _Pragma("clang loop vectorize(assume_safety)") for (int l = 0; l < kLanes; ++l)
#else
#define EMU_LANES _Pragma("GCC ivdep") for (int l = 0; l < kLanes; ++l)
#endif

template <class F, class Signature = decltype(+F{})>
struct LoopOf;
template <class F, class R, class... A>
struct LoopOf<F, R (*)(A...)> {
  // Parameter I's index among the sources.
  template <size_t I>
  static constexpr size_t place() {
    constexpr bool operands[] = {is_operand<A>...};
    size_t n = 0;
    for (size_t i = 0; i < I; ++i) n += operands[i];
    return n < 4 ? n : 0;
  }
  template <size_t... I>
  EMU_INLINE void go(const Rows& in, std::index_sequence<I...>) {
    const Rows rows = in;
    uint32_t* const d = rows.d;
    uint32_t* const m = rows.mask_out;
    const uint32_t* const src[] = {rows.src[place<I>()]..., nullptr};
    (void)src;
    EMU_LANES {
      if constexpr (std::is_same_v<R, bool>) {
        m[l] = F{}(load_lane<A>(rows, src[I], l)...);
      } else if constexpr (std::is_same_v<R, Carry> || std::is_same_v<R, WideCarry>) {
        const R r = F{}(load_lane<A>(rows, src[I], l)...);
        store_lane(rows, d, l, r.value);
        m[l] = r.carry;
      } else {
        store_lane<R>(rows, d, l, F{}(load_lane<A>(rows, src[I], l)...));
      }
    }
  }
  static void run(const Rows& rows) { go(rows, std::index_sequence_for<A...>{}); }
};

// Two 16-bit elements per register: the lambda works on one element.
template <class F, class Signature = decltype(+F{})>
struct PackedLoopOf;
template <class F, class R, class... A>
struct PackedLoopOf<F, R (*)(A...)> {
  using One = LoopOf<F>;
  template <size_t... I>
  EMU_INLINE void go(const Rows& in, std::index_sequence<I...>) {
    alignas(64) uint32_t halves[2][kLanes];
    alignas(64) uint32_t source[4][kLanes];
    constexpr size_t count = (size_t{is_operand<A>} + ...);
    for (int half = 0; half < 2; ++half) {
      Rows rows = in;
      rows.d = halves[half];
      for (size_t n = 0; n < count; ++n) {
        for (int l = 0; l < kLanes; ++l) source[n][l] = in.src[n][l] >> (16 * half) & 0xffff;
        rows.src[n] = source[n];
      }
      One::run(rows);
    }
    for (int l = 0; l < kLanes; ++l) in.d[l] = halves[0][l] | halves[1][l] << 16;
  }
  static void run(const Rows& rows) { go(rows, std::index_sequence_for<A...>{}); }
};

// ---- masks --------------------------------------------------------------------------------------

EMU_INLINE void spread(uint32_t* row, uint32_t value) {
  for (int l = 0; l < kLanes; ++l) row[l] = value;
}

// row[l] = bit l.
EMU_INLINE void expand_mask(uint32_t* row, uint64_t mask) {
  for (int half = 0; half < 2; ++half) {
    const auto m = static_cast<uint32_t>(mask >> (32 * half));
    for (uint32_t l = 0; l < 32; ++l) row[32 * half + l] = (m >> l) & 1;
  }
}

// bit l = row[l] != 0.
EMU_INLINE uint64_t pack_mask(const uint32_t* row) {
  uint64_t mask = 0;
#if defined(__AVX512F__)
  for (int g = 0; g < 4; ++g) {
    const __m512i x = _mm512_loadu_si512(row + 16 * g);
    mask |= static_cast<uint64_t>(_mm512_test_epi32_mask(x, x)) << (16 * g);
  }
#else
  for (int g = 0; g < 8; ++g) {
    uint32_t byte = 0;
    for (int l = 0; l < 8; ++l) byte |= (row[8 * g + l] != 0) << l;
    mask |= static_cast<uint64_t>(byte) << (8 * g);
  }
#endif
  return mask;
}

// d[l] = from[l] where bit l is set.
EMU_INLINE void blend(uint32_t* d, const uint32_t* from, uint64_t mask) {
#if defined(__AVX512F__)
  for (int g = 0; g < 4; ++g)
    _mm512_mask_storeu_epi32(d + 16 * g, static_cast<__mmask16>(mask >> (16 * g)),
                             _mm512_loadu_si512(from + 16 * g));
#else
  for (int half = 0; half < 2; ++half) {
    const auto m = static_cast<uint32_t>(mask >> (32 * half));
    uint32_t* const to = d + 32 * half;
    const uint32_t* const source = from + 32 * half;
    for (uint32_t l = 0; l < 32; ++l) to[l] = (m >> l) & 1 ? source[l] : to[l];
  }
#endif
}

// ---- registering --------------------------------------------------------------------------------

// How an operation is lowered (lanes.cpp).
void lower_vector(Lowering&, const Decoded&, const Semantic&, Inst&);
void lower_packed(Lowering&, const Decoded&, const Semantic&, Inst&);    // two 16-bit elements
void lower_packed32(Lowering&, const Decoded&, const Semantic&, Inst&);  // two 32-bit elements
void lower_dot(Lowering&, const Decoded&, const Semantic&, Inst&);
void lower_mix(Lowering&, const Decoded&, const Semantic&, Inst&);

EMU_INLINE void set_loop(Semantics& t, Op op, LowerFunction lower, Loop loop,
                         Loop saturating = nullptr) {
  using Plain = void (*)();
  set(t, op, lower, reinterpret_cast<Handler>(reinterpret_cast<Plain>(saturating)),
      reinterpret_cast<Plain>(loop));
}

template <class F>
EMU_INLINE void vector(Semantics& t, Op op, F) {
  set_loop(t, op, lower_vector, &LoopOf<F>::run);
}
template <class F, class G>
EMU_INLINE void vector(Semantics& t, Op op, F, G) {
  set_loop(t, op, lower_vector, &LoopOf<F>::run, &LoopOf<G>::run);
}
template <class F>
EMU_INLINE void packed(Semantics& t, Op op, F) {
  set_loop(t, op, lower_packed, &PackedLoopOf<F>::run);
}
template <class F, class G>
EMU_INLINE void packed(Semantics& t, Op op, F, G) {
  set_loop(t, op, lower_packed, &PackedLoopOf<F>::run, &PackedLoopOf<G>::run);
}
template <class F>
EMU_INLINE void packed32(Semantics& t, Op op, F) {
  set_loop(t, op, lower_packed32, &LoopOf<F>::run);
}
template <class F>
EMU_INLINE void dot(Semantics& t, Op op, F) {
  set_loop(t, op, lower_dot, &LoopOf<F>::run);
}
template <class F, class G>
EMU_INLINE void dot(Semantics& t, Op op, F, G) {
  set_loop(t, op, lower_dot, &LoopOf<F>::run, &LoopOf<G>::run);
}
template <class F>
EMU_INLINE void mix(Semantics& t, Op op, F) {
  set_loop(t, op, lower_mix, &LoopOf<F>::run);
}

}  // namespace emu::EMU_NS
