// Barrier divergence, part of the race check. s_barrier counts waves and knows nothing of lanes, so
// two things that HIP leaves undefined mostly go undetected on the hardware:
//   - lanes of a wave that are switched off at a barrier, while others of the wave arrive;
//   - waves that end before they have reached as many barriers as others of their workgroup.
// Which s_barrier instruction a wave arrives at does not matter: schedules that run half of the
// waves one barrier ahead are correct as long as all count the same.
#include "check/check.hpp"

namespace emu::check {
namespace {

class Barriers final : public Check {
 public:
  void attach(Workgroup& group) override { waves_.resize(group.waves.size()); }
  void wave_started(Wave& w, uint32_t) override {
    waves_[w.index] = {w.exec(), 0, nullptr, nullptr};
  }

  Wants wants() const override { return {false, false, false}; }
  bool before(Wave& w, const Inst* i, const Side& side) override {
    if (side.decoded.op != Op::s_barrier) return true;
    auto& state = waves_[w.index];
    ++state.count;
    state.inst = i;
    state.last = &side;
    const uint64_t missing = state.live & ~w.exec();
    if (!missing) return true;
    return report(w, i, "race",
                  "barrier divergence: lane " + std::to_string(__builtin_ctzll(missing)) + " and " +
                      std::to_string(__builtin_popcountll(missing) - 1) +
                      " others of the wave do not take part in the barrier");
  }

  bool group_ended(Workgroup& group) override {
    for (const Wave* w : group.waves) {
      const auto &first = waves_[0], &other = waves_[w->index];
      if (first.count == other.count) continue;
      const bool more = other.count > first.count;
      const auto& most = more ? other : first;
      Wave& reached = *group.waves[more ? w->index : 0];
      return report(reached, most.inst, "race",
                    "barrier divergence: wave " + std::to_string(reached.index) + " passed " +
                        std::to_string(most.count) + " barriers, wave " +
                        std::to_string(more ? 0 : w->index) + " ended after " +
                        std::to_string(more ? first.count : other.count));
    }
    return true;
  }

 private:
  struct State {
    uint64_t live = 0;
    uint64_t count = 0;
    const Inst* inst = nullptr;
    const Side* last = nullptr;
  };
  std::vector<State> waves_;
};

}  // namespace

std::unique_ptr<Check> make_barrier_check() { return std::make_unique<Barriers>(); }

}  // namespace emu::check
