// The framework of vector ALU semantics. An operation is a lambda over one lane's values; `vector`
// makes it a loop over 64 lanes, which the compiler vectorises:
//
//   vector(t, Op::v_add_u32, [](uint32_t a, uint32_t b) { return a + b; });
//
// Parameter and result types say how registers are read: uint32_t, int32_t, float (one register),
// uint64_t, int64_t, double (two). A `bool` parameter is one lane of a mask operand (carry in, the
// selector of v_cndmask). A `bool` result is a mask (comparisons); Carry is a value and a mask.
// An operation that reads its destination (v_fmac) takes it as its last parameter.
//
// Operand kinds, EXEC, source modifiers (abs, neg), omod and clamp are handled here, around the
// loop: a source that is not a plain register is first copied to a buffer.
#pragma once

#include "isa/exec.hpp"

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace emu::EMU_NS {

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
  uint32_t table;      // Inst::y, where it is not a mask's place
  Wave* w;
};
using Loop = void (*)(const Rows&);

template <class T>
EMU_INLINE T load_lane(const uint32_t* row, int l) {
  if constexpr (sizeof(T) == 8)
    return as<T>(row[l] | static_cast<uint64_t>(row[l + kLanes]) << 32);
  else if constexpr (std::is_same_v<T, bool>)
    return row[l] != 0;
  else
    return as<T>(row[l]);
}

template <class T>
EMU_INLINE void store_lane(uint32_t* row, int l, T x) {
  if constexpr (sizeof(T) == 8) {
    const auto bits = as<uint64_t>(x);
    row[l] = static_cast<uint32_t>(bits);
    row[l + kLanes] = static_cast<uint32_t>(bits >> 32);
  } else {
    row[l] = as<uint32_t>(x);
  }
}

// No lane ever touches another lane's values, so the loop may be vectorised whatever overlaps.
#if defined(__clang__)
#define EMU_LANES _Pragma("clang loop vectorize(assume_safety)") for (int l = 0; l < kLanes; ++l)
#else
#define EMU_LANES _Pragma("GCC ivdep") for (int l = 0; l < kLanes; ++l)
#endif

template <class F, class Signature = decltype(+F{})>
struct LoopOf;
template <class F, class R, class... A>
struct LoopOf<F, R (*)(A...)> {
  template <size_t... I>
  EMU_INLINE void go(const Rows& rows, std::index_sequence<I...>) {
    uint32_t* const d = rows.d;
    uint32_t* const m = rows.mask_out;
    const uint32_t* const src[] = {rows.src[I]...};
    EMU_LANES {
      if constexpr (std::is_same_v<R, bool>) {
        m[l] = F{}(load_lane<A>(src[I], l)...);
      } else if constexpr (std::is_same_v<R, Carry> || std::is_same_v<R, WideCarry>) {
        const R r = F{}(load_lane<A>(src[I], l)...);
        store_lane(d, l, r.value);
        m[l] = r.carry;
      } else {
        store_lane<R>(d, l, F{}(load_lane<A>(src[I], l)...));
      }
    }
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

// ---- lowered form -------------------------------------------------------------------------------

// Inst::x of a vector operation.
enum VectorFlags : uint16_t {
  kScalar0 = 1,     // source n is in Wave::s (bit n)
  kWide0 = 1 << 3,  // source n is 64 bits wide (bit 3+n)
  kMask2 = 1 << 6,  // the last source is a lane mask in Wave::s, at slot c
  kWideDst = 1 << 7,
  kMaskDst = 1 << 8,  // a mask goes to Wave::s, at slot y
  kValueDst = 1 << 9,
  kExecDst = 1 << 10,  // the mask goes to EXEC too (v_cmpx)
};

// Inst::imm: modifiers. Bits 0-2 abs, 3-5 neg, 6-7 omod, 8 clamp.
inline constexpr int kModifierClamp = 1 << 8;

// Row of source n, in `buffer` unless it is a plain register.
EMU_INLINE const uint32_t* source_row(Wave& w, const Inst* i, int n, uint16_t at,
                                      uint32_t (&buffer)[2][kLanes]) {
  const bool scalar = i->x & (kScalar0 << n), wide = i->x & (kWide0 << n);
  if (!scalar) return w.reg(at);
  spread(buffer[0], w.s[at]);
  if (wide) spread(buffer[1], w.s[at + 1]);
  return buffer[0];
}

// abs and neg of a floating-point source (f32 or f64).
EMU_INLINE const uint32_t* modify_row(const uint32_t* row, bool wide, bool abs, bool neg,
                                      uint32_t (&buffer)[2][kLanes]) {
  if (!abs && !neg) return row;
  if (wide && row != buffer[0]) std::memcpy(buffer[0], row, sizeof buffer[0]);
  const uint32_t* const top = wide ? row + kLanes : row;
  uint32_t* const out = wide ? buffer[1] : buffer[0];
  const uint32_t keep = abs ? 0x7fffffff : 0xffffffff, flip = neg ? 0x80000000 : 0;
  for (int l = 0; l < kLanes; ++l) out[l] = (top[l] & keep) ^ flip;
  return buffer[0];
}

EMU_INLINE void output_modifiers_f32(uint32_t* row, int omod, bool clamp) {
  const float scale = omod == 1 ? 2.f : omod == 2 ? 4.f : omod == 3 ? 0.5f : 1.f;
  for (int l = 0; l < kLanes; ++l) {
    float x = as<float>(row[l]);
    if (omod) x *= scale;
    if (clamp) x = x > 0.f ? (x < 1.f ? x : 1.f) : 0.f;  // NaN becomes 0 (dx10_clamp)
    row[l] = as<uint32_t>(x);
  }
}

// Every vector operation that has no shortcut of its own.
template <bool kModifiers>
const Inst* run_vector(Wave& w, const Inst* i) {
  alignas(64) uint32_t buffer[3][2][kLanes];
  alignas(64) uint32_t result[2][kLanes];
  alignas(64) uint32_t mask[kLanes];
  const uint16_t flags = i->x;
  const uint64_t exec = w.exec();
  const bool in_place = exec == kAllLanes && !(kModifiers && (i->imm >> 6)) && (flags & kValueDst);

  Rows rows;
  rows.w = &w;
  rows.mask_out = mask;
  rows.table = i->y;
  rows.d = in_place ? w.reg(i->d) : result[0];
  const uint16_t at[3] = {i->a, i->b, i->c};
  for (int n = 0; n < 3; ++n) {
    if (n == 2 && (flags & kMask2)) {
      expand_mask(buffer[2][0], w.s64(i->c));
      rows.src[2] = buffer[2][0];
      continue;
    }
    rows.src[n] = source_row(w, i, n, at[n], buffer[n]);
    if constexpr (kModifiers)
      rows.src[n] = modify_row(rows.src[n], flags & (kWide0 << n), i->imm >> n & 1,
                               i->imm >> (3 + n) & 1, buffer[n]);
  }
  reinterpret_cast<Loop>(i->wide)(rows);

  if (flags & kMaskDst) {
    const uint64_t bits = pack_mask(mask) & exec;
    w.set64(i->y, bits);
    if (flags & kExecDst) w.set64(kSlotExec, bits);
  }
  if ((flags & kValueDst) && !in_place) {
    if constexpr (kModifiers)
      if (i->imm >> 6) output_modifiers_f32(result[0], i->imm >> 6 & 3, i->imm & kModifierClamp);
    blend(w.reg(i->d), result[0], exec);
    if (flags & kWideDst) blend(w.reg(i->d) + kLanes, result[1], exec);
  }
  return i + 1;
}

// Fills in everything but fn for an operation with `arity` sources.
void lower_vector(Lowering& l, const Decoded& d, const Semantic& s, Inst& i);

// An integer operation, with what it does under the clamp bit (it saturates).
template <class F, class G>
EMU_INLINE void vector(Semantics& t, Op op, F, G) {
  set(t, op, lower_vector, nullptr, reinterpret_cast<void (*)()>(&LoopOf<F>::run));
  t.of[static_cast<int>(op)].clamped = reinterpret_cast<void (*)()>(&LoopOf<G>::run);
}
template <class F>
EMU_INLINE void vector(Semantics& t, Op op, F) {
  set(t, op, lower_vector, nullptr, reinterpret_cast<void (*)()>(&LoopOf<F>::run));
}

}  // namespace emu::EMU_NS
