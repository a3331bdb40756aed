// The uninit check: MFMA. Row m of A affects row m of the result, column n of B column n.
#include "check/uninit.hpp"

namespace emu::check {

void propagate_matrix(Wave& w, const Side& side, UninitGroup& g, UninitWave& u) {
  const Registers& result = side.foot.vector_writes.item[0];
  const uint32_t origin = first_origin(w, side, g, u);
  const auto put = [&](int k, const Planes& p) {
    u.vector[result.first + k] = p;
    u.vector_origin[result.first + k] = origin;
  };
  if (!origin) {
    for (int k = 0; k < result.count; ++k) u.vector[result.first + k] = Planes::all();
    return;
  }

  // Lanes whose A, B (with their scales) or C is not fully defined.
  uint64_t bad_a = 0, bad_b = 0;
  Planes c[32];
  for (Planes& p : c) p = Planes::all();
  bool c_scalar = false;
  int scale = 0;
  for (const Registers& r : side.foot.vector_reads) {
    uint64_t whole = ~uint64_t{0};
    for (int k = 0; k < r.count; ++k) whole &= u.vector[r.first + k].whole();
    if (r.role == Role::source0) bad_a |= ~whole;
    if (r.role == Role::source1) bad_b |= ~whole;
    if (r.role == Role::scale) (scale++ == 0 ? bad_a : bad_b) |= ~whole;
    if (r.role == Role::source2 && side.op->has(kReadsDst)) bad_a |= ~whole;  // smfmac: the index
    const bool is_c = side.op->has(kReadsDst) ? r.role == Role::old : r.role == Role::source2;
    if (is_c)
      for (int k = 0; k < r.count && k < 32; ++k)
        c[k] = Planes::lanes(u.vector[r.first + k].whole());
  }
  for (const Registers& r : side.foot.scalar_reads)
    for (int k = 0; k < r.count; ++k) c_scalar |= u.scalar[r.first + k] != ~0u;

  const std::string_view name = side.op->name;
  const bool one_block = name.find("b_") == name.npos && side.op->dst.bits == 32;
  const int size = name.find("_32x32x") != name.npos   ? 32
                   : name.find("_16x16x") != name.npos ? 16
                                                       : 0;
  if (!one_block || !size || c_scalar) {
    const uint64_t good = bad_a || bad_b || c_scalar ? 0 : ~uint64_t{0};
    for (int k = 0; k < result.count; ++k) put(k, c[k] & Planes::lanes(good));
    return;
  }
  uint64_t rows = 0, columns = 0;  // a bit per row of A, per lane of a result row
  for (int l = 0; l < kLanes; ++l) {
    if (bad_a >> l & 1) rows |= uint64_t{1} << l % size;
    if (bad_b >> l & 1) columns |= uint64_t{1} << l % size;
  }
  for (int s = size; s < kLanes; s *= 2) columns |= columns << s;
  const uint64_t group_mask = size == 16 ? 0xffff : 0xffffffff;
  for (int k = 0; k < result.count; ++k) {
    uint64_t bad = columns;
    for (int group = 0; group < kLanes / size; ++group) {
      const int row = size == 16 ? 4 * group + k : 8 * (k / 4) + 4 * group + k % 4;
      if (rows >> row & 1) bad |= group_mask << (group * size);
    }
    put(k, c[k] & Planes::lanes(~bad));
  }
}

}  // namespace emu::check
