// VOP3: vector operations with three sources.
#include "isa/atomics.hpp"
#include "isa/lanes.hpp"

namespace emu::EMU_NS {
namespace {

EMU_INLINE uint32_t round_to_bf16(float x) {
  const uint32_t u = as<uint32_t>(x);
  const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return (u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : rounded;
}

// Any function of three bits, given by its truth table.
void bitop3(const Rows& rows) {
  uint32_t* const d = rows.d;
  const uint32_t *const a = rows.src[0], *const b = rows.src[1], *const c = rows.src[2];
  uint32_t on[8];
  for (int n = 0; n < 8; ++n) on[n] = rows.table >> n & 1 ? ~0u : 0;
  EMU_LANES {
    const uint32_t x = a[l], y = b[l], z = c[l];
    d[l] = (~x & ~y & ~z & on[0]) | (~x & ~y & z & on[1]) | (~x & y & ~z & on[2]) |
           (~x & y & z & on[3]) | (x & ~y & ~z & on[4]) | (x & ~y & z & on[5]) |
           (x & y & ~z & on[6]) | (x & y & z & on[7]);
  }
}
void lower_bitop3(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_vector(l, d, s, i);
  i.y = static_cast<uint16_t>(d.imm);
}

}  // namespace

void add_vop3(Semantics& t) {
  using u32 = uint32_t;
  using u64 = uint64_t;
  vector(t, Op::v_mul_lo_u32, [](u32 a, u32 b) { return a * b; });
  vector(t, Op::v_mul_hi_u32, [](u32 a, u32 b) { return static_cast<u32>(u64{a} * b >> 32); });
  vector(t, Op::v_add_lshl_u32, [](u32 a, u32 b, u32 c) { return (a + b) << (c & 31); });
  vector(t, Op::v_lshl_add_u32, [](u32 a, u32 b, u32 c) { return (a << (b & 31)) + c; });
  vector(t, Op::v_add3_u32, [](u32 a, u32 b, u32 c) { return a + b + c; });
  vector(t, Op::v_or3_b32, [](u32 a, u32 b, u32 c) { return a | b | c; });
  vector(t, Op::v_and_or_b32, [](u32 a, u32 b, u32 c) { return (a & b) | c; });
  vector(t, Op::v_lshl_or_b32, [](u32 a, u32 b, u32 c) { return (a << (b & 31)) | c; });
  vector(t, Op::v_bfe_u32,
         [](u32 a, u32 b, u32 c) { return a >> (b & 31) & ((1u << (c & 31)) - 1); });
  vector(t, Op::v_mad_u64_u32, [](u32 a, u32 b, u64 c) {
    const u64 r = u64{a} * b + c;
    return WideCarry{r, r < c};
  });
  set(t, Op::v_bitop3_b32, lower_bitop3, nullptr, reinterpret_cast<void (*)()>(&bitop3));
  vector(t, Op::v_fma_f32, [](float a, float b, float c) { return __builtin_fmaf(a, b, c); });
  vector(t, Op::v_lshl_add_u64, [](u64 a, u32 b, u64 c) { return (a << (b & 63)) + c; });
  vector(t, Op::v_cvt_pk_f16_f32, [](float a, float b) { return to_f16(a) | to_f16(b) << 16; });
  vector(t, Op::v_cvt_pk_bf16_f32,
         [](float a, float b) { return round_to_bf16(a) | round_to_bf16(b) << 16; });
}

}  // namespace emu::EMU_NS
