#include "core/tally.hpp"

#include "check/check.hpp"

namespace emu {

Tally& Tally::operator+=(const Tally& o) {
  for (int c = 0; c < kClasses; ++c) of_class[c] += o.of_class[c];
  barriers += o.barriers;
  matrix_clocks += o.matrix_clocks;
  return *this;
}

void Tally::add(const Tally& before, const Tally& upto, uint64_t times, Counters& to) {
  uint64_t* const classes[kClasses] = {&to.salu, &to.valu, &to.trans,  &to.mfma, &to.lds,
                                       &to.vmem, &to.smem, &to.branch, &to.wait, &to.other};
  for (int c = 0; c < kClasses; ++c) {
    const uint64_t n = times * (upto.of_class[c] - before.of_class[c]);
    *classes[c] += n;
    to.wave_instructions += n;
  }
  to.barriers += times * (upto.barriers - before.barriers);
  to.matrix_clocks += times * (upto.matrix_clocks - before.matrix_clocks);
}

Tally tally_of(const Decoded& d) {
  static_assert(static_cast<int>(OpClass::salu) == 0 && static_cast<int>(OpClass::mfma) == 3 &&
                static_cast<int>(OpClass::vmem) == 5 && static_cast<int>(OpClass::wait) == 8);
  Tally t;
  t.of_class[static_cast<int>(info(d.op).cls)] = 1;
  t.barriers = d.op == Op::s_barrier;
  t.matrix_clocks = 4u * check::traits(d).passes;  // a pass is four clocks
  return t;
}

Runs::Entry& Runs::find(const Inst* first, const Inst* last) {
  const auto slot = [&](const Inst* f, const Inst* l) -> Entry& {
    const size_t mask = entries_.size() - 1;
    const auto hash = (reinterpret_cast<uintptr_t>(f) / sizeof(Inst)) * 0x9e3779b97f4a7c15u +
                      (reinterpret_cast<uintptr_t>(l) / sizeof(Inst)) * 0xc2b2ae3d27d4eb4fu;
    size_t at = hash >> 40 & mask;
    while (entries_[at].first && (entries_[at].first != f || entries_[at].last != l))
      at = (at + 1) & mask;
    return entries_[at];
  };
  Entry* e = &slot(first, last);
  if (e->first) return *e;
  if (++used_ * 2 > entries_.size()) {
    std::vector<Entry> old(entries_.size() * 2);
    old.swap(entries_);
    for (const Entry& o : old)
      if (o.first) slot(o.first, o.last) = o;
    e = &slot(first, last);
  }
  e->first = first;
  e->last = last;
  return *e;
}

}  // namespace emu
