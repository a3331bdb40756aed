// Counters of instructions that do not depend on addresses. Nothing is counted while they
// execute: the machine only records how often each straight run of instructions was executed; the
// sums over runs are taken at the end.
#pragma once

#include <cstdint>
#include <vector>

#include "core/counters.hpp"
#include "core/inst.hpp"
#include "isa/decoded.hpp"

namespace emu {

// The static counts of one instruction, or of all up to it.
struct Tally {
  static constexpr int kClasses = static_cast<int>(OpClass::other) + 1;
  uint32_t of_class[kClasses] = {};
  uint32_t barriers = 0;
  uint32_t matrix_clocks = 0;

  Tally& operator+=(const Tally& o);
  // Adds what lies between two sums, `times` times.
  static void add(const Tally& before, const Tally& upto, uint64_t times, Counters& to);
};
Tally tally_of(const Decoded& d);

// How often each run of instructions between two jumps was executed.
class Runs {
 public:
  Runs() : entries_(256) { hot_ = &entries_[0]; }

  [[gnu::always_inline]] void add(const Inst* first, const Inst* last) {
    if (hot_->first != first || hot_->last != last) [[unlikely]]
      hot_ = &find(first, last);
    ++hot_->times;
  }
  // Passes all to f(first, last, times), and clears them.
  template <class F>
  void drain(F f) {
    for (Entry& e : entries_) {
      if (e.times) f(e.first, e.last, e.times);
      e = {};
    }
    used_ = 0;
  }

 private:
  struct Entry {
    const Inst* first = nullptr;
    const Inst* last = nullptr;
    uint64_t times = 0;
  };
  Entry& find(const Inst* first, const Inst* last);

  std::vector<Entry> entries_;  // open addressing; the size is a power of two
  size_t used_ = 0;
  Entry* hot_;
};

}  // namespace emu
