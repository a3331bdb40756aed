#include "check/check.hpp"

#include <cstdio>
#include <map>

#include "check/race.hpp"
#include "check/request.hpp"
#include "core/definedness.hpp"
#include "core/notes.hpp"
#include "count/counting.hpp"
#include "count/profile.hpp"
#include "model/record.hpp"

namespace emu {
namespace check {
namespace {

// The checks of one workgroup on one host thread.
struct Group {
  std::vector<std::unique_ptr<Check>> checks;
  std::vector<Check*> all, queued, landing;  // those that use it
  bool wants_access = false;
  struct {
    const Side* issuing = nullptr;  // not yet seen in the queue
    std::array<bool, kPendingSlots> queued{};
  } wave[kMaxWaves];
};

Group& group_of(const Wave& w) { return *static_cast<Group*>(w.group->observed); }

const Side& side_of(const Inst* before) { return *reinterpret_cast<const Side*>(before->wide); }

const Inst* run_checked(Wave& w, const Inst* i) {
  const Side& side = side_of(i);
  Group& g = group_of(w);
  for (Check* c : g.all)
    if (!c->before(w, i + 1, side)) return nullptr;
  const Inst* next = (i + 1)->fn(w, i + 1);
  for (Check* c : g.all) c->after(w, side);
  return next;
}

// Waits, barriers, the end.
const Inst* run_waiting(Wave& w, const Inst* i) {
  const Side& side = side_of(i);
  Group& g = group_of(w);
  for (auto& c : g.checks)
    if (!c->before(w, i + 1, side)) return nullptr;
  const Inst* next = (i + 1)->fn(w, i + 1);
  for (Check* c : g.all) c->after(w, side);
  return next;
}

bool tell_queued(Group& g, Wave& w, const Side& side, const Pending& p) {
  for (Check* c : g.queued)
    if (!c->queued(w, side, p)) return false;
  return true;
}

// Memory instructions: the checks need to know in which slot the instruction went.
const Inst* run_memory(Wave& w, const Inst* i) {
  const Side& side = side_of(i);
  Group& g = group_of(w);
  auto& link = g.wave[w.index];
  for (Check* c : g.all)
    if (!c->before(w, i + 1, side)) return nullptr;
  link.issuing = &side;
  const Inst* next = (i + 1)->fn(w, i + 1);
  if (link.issuing && next) {
    link.issuing = nullptr;
    const Queue& q = side.op->family == Family::SMEM ? w.smem
                     : side.op->family == Family::DS ? w.ds
                                                     : w.vm;
    const uint8_t slot = q.slot[(q.head + q.count - 1) & 127];
    link.queued[slot] = true;
    if (!tell_queued(g, w, side, w.pending[slot])) return nullptr;
  }
  for (Check* c : g.all) c->after(w, side);
  return next;
}

bool land_checked(Wave& w, const Pending& p) {
  const Side& side = side_of(p.inst - 1);
  Group& g = group_of(w);
  auto& link = g.wave[w.index];
  bool& queued = link.queued[slot_of(w, p)];
  if (!queued) {  // it lands within its own issue
    link.issuing = nullptr;
    if (!tell_queued(g, w, side, p)) return false;
  }
  queued = false;
  Access space;
  const Access* access = nullptr;
  if (side.shape && g.wants_access) {
    find_access(w, side.decoded, side.shape, p, space);
    access = &space;
  }
  for (Check* c : g.landing)
    if (!c->landing(w, side, p, access)) return false;
  if (!side.land(w, p)) return false;
  for (Check* c : g.landing) c->landed(w, side, p, access);
  return true;
}

class Sanitizers final : public Observer {
 public:
  Sanitizers(LaunchContext& context, uint32_t checks, bool counting,
             std::shared_ptr<model::Recording> recording)
      : context_(context),
        checks_(checks),
        counting_(counting ? count::start() : nullptr),
        recording_(std::move(recording)) {
    if (checks & kRace) race_ = start_race_launch(context);
  }

  void attach(Workgroup& group) override {
    auto state = std::make_unique<Group>();
    if (checks_ & kHazard) state->checks.push_back(make_hazard_check(checks_ & kAdvice));
    if (checks_ & kBounds) state->checks.push_back(make_bounds_check(context_));
    if (checks_ & kRace) {
      state->checks.push_back(make_barrier_check());
      state->checks.push_back(make_race_check(context_, race_));
    }
    if (checks_ & kUninit) state->checks.push_back(make_uninit_check(context_));
    if (counting_) state->checks.push_back(count::make_counter(counting_));
    if (recording_) state->checks.push_back(model::make_recorder(recording_));
    if (count::profiling()) state->checks.push_back(count::make_profiler());
    group.observed = state.get();
    for (auto& c : state->checks) {
      c->attach(group);
      state->wants_access |= c->wants_access();
      const Check::Wants wants = c->wants();
      if (wants.all) state->all.push_back(c.get());
      if (wants.queued) state->queued.push_back(c.get());
      if (wants.landing) state->landing.push_back(c.get());
    }
    std::lock_guard lock(mutex_);
    groups_.push_back(std::move(state));
  }
  bool runs(uint64_t number) const override {
    return !recording_ || model::runs(*recording_, number);
  }
  void group_started(Workgroup& group) override {
    for (auto& c : of(group).checks) c->group_started(group);
  }
  void wave_started(Wave& w, uint32_t sgprs) override {
    Group& g = of(*w.group);
    g.wave[w.index] = {};
    for (auto& c : g.checks) c->wave_started(w, sgprs);
  }
  bool barrier_passed(Workgroup& group) override {
    for (auto& c : of(group).checks)
      if (!c->barrier_passed(group)) return false;
    return true;
  }
  bool group_ended(Workgroup& group) override {
    for (auto& c : of(group).checks)
      if (!c->group_ended(group)) return false;
    return true;
  }
  void launch_ended(Counters& counters) override {
    counters.counted_launches += counting_ != nullptr;
    for (auto& g : groups_)
      for (auto& c : g->checks) c->launch_ended(counters);
    if (counting_) count::report_conflicts(*counting_, context_);
  }

 private:
  static Group& of(Workgroup& group) { return *static_cast<Group*>(group.observed); }

  LaunchContext& context_;
  const uint32_t checks_;
  const std::shared_ptr<count::Launch> counting_;
  const std::shared_ptr<model::Recording> recording_;
  std::shared_ptr<RaceLaunch> race_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Group>> groups_;
};

}  // namespace

std::string text_of(const Side& side) {
  char address[24];
  std::snprintf(address, sizeof address,
                "0x%llx: ", static_cast<unsigned long long>(side.decoded.address));
  return address + disassemble(side.decoded);
}

std::string vector_name(const Side& side, uint32_t index) {
  return index < side.accum_offset ? "v" + std::to_string(index)
                                   : "a" + std::to_string(index - side.accum_offset);
}

std::string scalar_name(uint32_t index) {
  switch (index) {
    case 102:
      return "flat_scratch_lo";
    case 103:
      return "flat_scratch_hi";
    case 106:
      return "vcc_lo";
    case 107:
      return "vcc_hi";
    case 124:
      return "m0";
    case 126:
      return "exec_lo";
    case 127:
      return "exec_hi";
    default:
      return "s" + std::to_string(index);
  }
}

bool report(Wave& w, const Inst* i, const char* check, const std::string& what) {
  return finding(w, i, check, what);
}

}  // namespace check

void observe_instruction(Program& program, const Decoded& d, Inst& before, Inst& inst) {
  auto side = std::make_shared<check::Side>();
  side->decoded = d;
  side->op = &info(d.op);
  side->foot = check::footprint(d, program.accum_offset());
  side->traits = check::traits(d);
  side->shape = check::memory_shape(d);
  side->accum_offset = program.accum_offset();
  before.fn = check::run_checked;
  before.wide = reinterpret_cast<uint64_t>(side.get());
  switch (side->op->family) {
    case Family::SMEM:
    case Family::DS:
    case Family::MUBUF:
    case Family::MTBUF:
    case Family::FLAT:
    case Family::GLOBAL:
    case Family::SCRATCH:
      if (inst.land) {
        side->land = inst.land;
        inst.land = check::land_checked;
        before.fn = check::run_memory;
      }
      break;
    case Family::SOPP:
      before.fn = check::run_waiting;
      break;
    default:
      break;
  }
  program.keep(std::move(side));
}

std::unique_ptr<Observer> make_observer(LaunchContext& context, std::string& error) {
  check::Request request = check::requested();
  error = std::move(request.error);
  if (!(request.checks & check::kUninit)) definedness::trust_all();
  const bool counting = count::requested();
  auto recording = model::start_recording(context);
  if (!request.checks && !counting && !recording && !count::profiling()) return nullptr;
  return std::make_unique<check::Sanitizers>(context, request.checks, counting,
                                             std::move(recording));
}

}  // namespace emu
