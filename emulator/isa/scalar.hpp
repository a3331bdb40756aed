// The framework of scalar ALU semantics: an operation is a lambda over the wave and its sources;
// the types of sources and result say how many registers they take, and SCC is the wave's.
//
//   scalar(t, Op::s_and_b32, [](Wave& w, uint32_t a, uint32_t b) { return scc(w, a & b); });
#pragma once

#include <type_traits>

#include "isa/exec.hpp"

namespace emu::EMU_NS {

template <class T>
EMU_INLINE T load_scalar(const Wave& w, uint16_t slot) {
  if constexpr (sizeof(T) == 8)
    return as<T>(w.s64(slot));
  else
    return as<T>(w.s[slot]);
}
template <class T>
EMU_INLINE void store_scalar(Wave& w, uint16_t slot, T x) {
  if constexpr (sizeof(T) == 8)
    w.set64(slot, as<uint64_t>(x));
  else
    w.s[slot] = as<uint32_t>(x);
}

template <class F, class Signature = decltype(+F{})>
struct ScalarOp;
template <class F, class R, class... A>
struct ScalarOp<F, R (*)(Wave&, A...)> {
  template <size_t... I>
  EMU_INLINE void go(Wave& w, const Inst* i, std::index_sequence<I...>) {
    const uint16_t at[] = {i->a, i->b, i->c};
    (void)at;
    if constexpr (std::is_void_v<R>)
      F{}(w, load_scalar<A>(w, at[I])...);
    else
      store_scalar<R>(w, i->d, F{}(w, load_scalar<A>(w, at[I])...));
  }
  static const Inst* run(Wave& w, const Inst* i) {
    go(w, i, std::index_sequence_for<A...>{});
    return i + 1;
  }
  static void lower(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
    constexpr int widths[] = {static_cast<int>(sizeof(A) / 4)..., 0};
    i.fn = s.handler;
    uint16_t* const at[] = {&i.a, &i.b, &i.c};
    for (size_t n = 0; n < sizeof...(A); ++n) *at[n] = l.scalar(d.src[n], widths[n]);
    if constexpr (!std::is_void_v<R>) i.d = l.scalar_dst(d.dst, sizeof(R) / 4);
  }
};

template <class F>
EMU_INLINE void scalar(Semantics& t, Op op, F) {
  using Op_ = ScalarOp<F>;
  set(t, op, Op_::lower, Op_::run);
}

// The result; SCC is whether it is non-zero.
template <class T>
EMU_INLINE T scc(Wave& w, T x) {
  w.scc = x != 0;
  return x;
}

}  // namespace emu::EMU_NS
