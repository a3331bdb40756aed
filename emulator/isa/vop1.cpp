// VOP1: vector operations with one source.
#include "isa/atomics.hpp"
#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

// The first active lane's value, or lane 0's if there is none.
const Inst* readfirstlane(Wave& w, const Inst* i) {
  const uint64_t exec = w.exec();
  w.s[i->d] = w.reg(i->a)[exec ? std::countr_zero(exec) : 0];
  return i + 1;
}
void lower_readfirstlane(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  i.fn = s.handler;
  i.a = l.vector(d.src[0]);
  i.d = l.scalar_dst(d.dst);
}

}  // namespace

void add_vop1(Semantics& t) {
  vector(t, Op::v_mov_b32, [](uint32_t a) { return a; });
  vector(t, Op::v_mov_b64, [](uint64_t a) { return a; });
  vector(t, Op::v_not_b32, [](uint32_t a) { return ~a; });
  vector(t, Op::v_bfrev_b32, [](uint32_t x) {
    x = (x & 0x55555555) << 1 | (x >> 1 & 0x55555555);
    x = (x & 0x33333333) << 2 | (x >> 2 & 0x33333333);
    x = (x & 0x0f0f0f0f) << 4 | (x >> 4 & 0x0f0f0f0f);
    return x << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | x >> 24;
  });
  vector(t, Op::v_cvt_f32_f16, [](uint32_t a) { return from_f16(a & 0xffff); });
  vector(t, Op::v_cvt_f32_u32, [](uint32_t a) { return static_cast<float>(a); });
  vector(t, Op::v_cvt_f32_i32, [](int32_t a) { return static_cast<float>(a); });
  vector(t, Op::v_cvt_f32_ubyte0, [](uint32_t a) { return static_cast<float>(a & 0xff); });
  // Out of range saturates; NaN gives zero.
  vector(t, Op::v_cvt_u32_f32, [](float a) {
    const float x = a > 0.f ? a : 0.f;
    return x < 4294967296.f ? static_cast<uint32_t>(x) : ~0u;
  });
  vector(t, Op::v_rcp_iflag_f32, [](float a) { return 1.f / a; });
  vector(t, Op::v_rcp_f32, [](float a) { return 1.f / a; });
  set(t, Op::v_readfirstlane_b32, lower_readfirstlane, readfirstlane);
}

}  // namespace emu::EMU_NS
