// VOPC: comparisons. The result is a lane mask.
#include "isa/lanes.hpp"

namespace emu::EMU_NS {

#define EMU_COMPARE(type, T)                                       \
  vector(t, Op::v_cmp_lt_##type, [](T a, T b) { return a < b; });  \
  vector(t, Op::v_cmp_eq_##type, [](T a, T b) { return a == b; }); \
  vector(t, Op::v_cmp_le_##type, [](T a, T b) { return a <= b; }); \
  vector(t, Op::v_cmp_gt_##type, [](T a, T b) { return a > b; });  \
  vector(t, Op::v_cmp_ne_##type, [](T a, T b) { return a != b; }); \
  vector(t, Op::v_cmp_ge_##type, [](T a, T b) { return a >= b; });

void add_vopc(Semantics& t) {
  EMU_COMPARE(u32, uint32_t)
  EMU_COMPARE(i32, int32_t)
  EMU_COMPARE(u64, uint64_t)
  EMU_COMPARE(i64, int64_t)
}

}  // namespace emu::EMU_NS
