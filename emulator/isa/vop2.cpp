// VOP2: vector operations with two sources.
#include "isa/lanes.hpp"

namespace emu::EMU_NS {

void add_vop2(Semantics& t) {
  using u32 = uint32_t;
  using i32 = int32_t;
  vector(t, Op::v_cndmask_b32, [](u32 a, u32 b, bool m) { return m ? b : a; });
  vector(t, Op::v_add_f32, [](float a, float b) { return a + b; });
  vector(t, Op::v_sub_f32, [](float a, float b) { return a - b; });
  vector(t, Op::v_mul_f32, [](float a, float b) { return a * b; });
  const auto sum = [](u32 a, u32 b) { return a + b; };
  const auto saturated_sum = [](u32 a, u32 b) { return a + b < a ? ~0u : a + b; };
  vector(t, Op::v_add_u32, sum, saturated_sum);
  const auto difference = [](u32 a, u32 b) { return a - b; };
  const auto saturated_difference = [](u32 a, u32 b) { return a < b ? 0 : a - b; };
  vector(t, Op::v_sub_u32, difference, saturated_difference);
  const auto reverse = [](u32 a, u32 b) { return b - a; };
  const auto saturated_reverse = [](u32 a, u32 b) { return b < a ? 0 : b - a; };
  vector(t, Op::v_subrev_u32, reverse, saturated_reverse);
  vector(t, Op::v_and_b32, [](u32 a, u32 b) { return a & b; });
  vector(t, Op::v_or_b32, [](u32 a, u32 b) { return a | b; });
  vector(t, Op::v_xor_b32, [](u32 a, u32 b) { return a ^ b; });
  vector(t, Op::v_lshlrev_b32, [](u32 a, u32 b) { return b << (a & 31); });
  vector(t, Op::v_lshrrev_b32, [](u32 a, u32 b) { return b >> (a & 31); });
  vector(t, Op::v_ashrrev_i32, [](u32 a, i32 b) { return b >> (a & 31); });
  vector(t, Op::v_min_u32, [](u32 a, u32 b) { return a < b ? a : b; });
  vector(t, Op::v_max_u32, [](u32 a, u32 b) { return a > b ? a : b; });
  vector(t, Op::v_min_i32, [](i32 a, i32 b) { return a < b ? a : b; });
  vector(t, Op::v_max_i32, [](i32 a, i32 b) { return a > b ? a : b; });
  vector(t, Op::v_add_co_u32, [](u32 a, u32 b) { return Carry{a + b, a + b < a}; });
  vector(t, Op::v_sub_co_u32, [](u32 a, u32 b) { return Carry{a - b, a < b}; });
  vector(t, Op::v_addc_co_u32, [](u32 a, u32 b, bool c) {
    const uint64_t r = uint64_t{a} + b + c;
    return Carry{static_cast<u32>(r), r >> 32 != 0};
  });
  vector(t, Op::v_subb_co_u32, [](u32 a, u32 b, bool c) {
    const uint64_t r = uint64_t{a} - b - c;
    return Carry{static_cast<u32>(r), r >> 32 != 0};
  });
}

}  // namespace emu::EMU_NS
