#include "count/profile.hpp"

#include <algorithm>
#include <atomic>

#include "core/tally.hpp"

namespace emu::count {
namespace {

std::atomic<bool> on{false};
std::atomic<uint64_t> total[Tally::kClasses];

uint64_t now() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();
#else
  return read_clock();
#endif
}

// Intervals of one kind. The shortest of them is the overhead of measuring.
struct Intervals {
  uint64_t sum[Tally::kClasses] = {}, count[Tally::kClasses] = {};
  uint64_t shortest = ~uint64_t{0};

  void add(OpClass c, uint64_t ticks) {
    sum[static_cast<int>(c)] += ticks;
    ++count[static_cast<int>(c)];
    shortest = std::min(shortest, ticks);
  }
  uint64_t net(int c) const {
    return count[c] ? sum[c] - std::min(sum[c], count[c] * shortest) : 0;
  }
};

// A landing is counted for the class of the memory instruction, not of the wait that forces
// it.
class Profiler final : public check::Check {
 public:
  bool before(Wave&, const Inst*, const check::Side&) override {
    landings_ = 0;
    issued_ = now();
    return true;
  }
  void after(Wave&, const check::Side& side) override {
    issues_.add(side.op->cls, now() - issued_ - landings_);
  }
  bool landing(Wave&, const check::Side&, const Pending&, const check::Access*) override {
    landing_ = now();
    return true;
  }
  void landed(Wave&, const check::Side& side, const Pending&, const check::Access*) override {
    const uint64_t ticks = now() - landing_;
    landed_.add(side.op->cls, ticks);
    landings_ += ticks;
  }
  void launch_ended(Counters&) override {
    for (int c = 0; c < Tally::kClasses; ++c) total[c] += issues_.net(c) + landed_.net(c);
  }

 private:
  uint64_t issued_ = 0, landing_ = 0, landings_ = 0;
  Intervals issues_, landed_;
};

}  // namespace

bool profiling() { return on.load(); }

std::unique_ptr<check::Check> make_profiler() { return std::make_unique<Profiler>(); }

}  // namespace emu::count

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

// Times the instructions of the launches that follow, from zero.
EMU_EXPORT void hipgemm_emulator_set_profiling(int on) {
  if (on)
    for (auto& t : emu::count::total) t.store(0);
  emu::count::on.store(on != 0);
}

// The time spent in each class of instructions, in the order in which the classes are counted
// (salu, valu, trans, mfma, lds, vmem, smem, branch, wait, other) and in ticks of unknown length.
// Fills `n` of them and returns how many there are.
EMU_EXPORT int hipgemm_emulator_profile(uint64_t* out, int n) {
  for (int i = 0; out && i < n && i < emu::Tally::kClasses; ++i)
    out[i] = emu::count::total[i].load();
  return emu::Tally::kClasses;
}
