// Included by all files of semantics.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

#include "core/lowering.hpp"
#include "core/queues.hpp"
#include "core/wave.hpp"
#include "isa/decoded.hpp"
#include "isa/level.hpp"

namespace emu::EMU_NS {

EMU_INLINE void set(Semantics& t, Op op, LowerFunction lower, Handler handler = nullptr,
                    void (*loop)() = nullptr) {
  t.of[static_cast<int>(op)] = {lower, handler, loop, nullptr};
}

template <class T>
EMU_INLINE T as(auto x) {
  return std::bit_cast<T>(x);
}

// The parameter and result types of a stateless lambda.
template <class F>
struct SignatureOf : SignatureOf<decltype(+F{})> {};
template <class R, class... A>
struct SignatureOf<R (*)(A...)> {
  using Result = R;
  static constexpr int arity = sizeof...(A);
};

// Instructions without operands: lowered so, and for those without effect.
EMU_INLINE void lower_plain(Lowering&, const Decoded&, const Semantic& s, Inst& i) {
  i.fn = s.handler;
}
EMU_INLINE const Inst* next(Wave&, const Inst* i) { return i + 1; }

// Registers each family's instructions.
void add_sop(Semantics&);
void add_branch(Semantics&);
void add_smem(Semantics&);
void add_buffer(Semantics&);
void add_typed(Semantics&);
void add_flat(Semantics&);
void add_ds(Semantics&);
void add_mfma(Semantics&, const Arch&);
void add_vop1(Semantics&);
void add_vop2(Semantics&);
void add_vop3(Semantics&);
void add_vop3p(Semantics&);
void add_vopc(Semantics&);
void add_convert(Semantics&, const Arch&);

}  // namespace emu::EMU_NS
