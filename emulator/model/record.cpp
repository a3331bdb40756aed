#include "model/record.hpp"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "count/lds_clocks.hpp"

namespace emu::model {
namespace {

using check::Access;
using check::AccessPart;
using check::Side;
using check::Space;

constexpr uint64_t kLine = 128;

struct State {
  std::mutex mutex;
  std::vector<uint64_t> groups;  // numbers of those that are recorded
  bool only = false;
  std::shared_ptr<const Recording> last;
};
State& state() {
  static State& s = *new State;
  return s;
}

bool named(const Side& side, std::string_view part) {
  return std::string_view(side.op->name).find(part) != std::string_view::npos;
}

Unit unit_of(const Side& side) {
  switch (side.op->cls) {
    case OpClass::valu:
    case OpClass::trans:
    case OpClass::mfma:
      return Unit::vector;
    case OpClass::lds:
      return Unit::lds;
    case OpClass::vmem:
      return Unit::memory;
    case OpClass::salu:
    case OpClass::smem:
      return Unit::scalar;
    case OpClass::branch:
      return Unit::branch;
    default:
      return Unit::internal;
  }
}

Op op_of(const Side& side) {
  Op op;
  op.side = side;
  op.unit = unit_of(side);
  op.packed = named(side, "v_pk_") && named(side, "_f32");
  op.swap = named(side, "permlane") && named(side, "swap");
  op.scaled = side.op->has(kScaled);
  op.straddles = side.decoded.size >= 8 && side.decoded.address % 8 == 4;
  if (side.decoded.op == emu::Op::s_waitcnt) {
    const auto imm = static_cast<uint32_t>(side.decoded.imm);
    op.wait_vm = static_cast<uint8_t>((imm & 15) | (imm >> 14 & 3) << 4);
    op.wait_lgkm = static_cast<uint8_t>(imm >> 8 & 15);
  }
  return op;
}

// An access that is not aligned to its size takes a clock for each lane (measured on MI355X with 16
// bytes: AMD's gfx950 Gluon tutorials).
uint64_t bank_clocks(const AccessPart& part) {
  uint64_t crooked = 0, lanes = 0;
  for (int l = 0; l < kLanes; ++l)
    if (part.lanes >> l & 1) {
      ++lanes;
      crooked |= part.address[l] % part.bytes;
    }
  if (crooked && (part.bytes == 8 || part.bytes == 16)) return lanes;
  const count::LdsClocks clocks = count::lds_clocks(part);
  return (clocks.data + clocks.conflict) / 2;  // those are clocks of one of two ports
}

bool multiplies(const Recording& r) {
  return std::ranges::any_of(r.op, [](const Op& op) { return op.side.traits.mfma; });
}

class Recorder final : public check::Check {
 public:
  explicit Recorder(std::shared_ptr<Recording> to) : to_(std::move(to)) {
    group_.resize(to_->chosen.size());
  }

  Wants wants() const override { return {true, true, false}; }

  void group_started(Workgroup& group) override {
    const auto& grid = group.waves[0]->launch->launch.workgroups;
    const uint64_t y = group.id[1] + uint64_t{grid[1]} * group.id[2];
    const auto found = std::ranges::find(to_->chosen, group.id[0] + grid[0] * y);
    now_ = found == to_->chosen.end() ? nullptr : &group_[found - to_->chosen.begin()];
    if (now_) now_->assign(group.waves.size(), {});
  }

  bool before(Wave& w, const Inst*, const Side& side) override {
    if (now_) (*now_)[w.index].step.push_back({&side, 0});
    return true;
  }

  bool queued(Wave& w, const Side& side, const Pending& p) override {
    if (!now_) return true;
    Raw& raw = (*now_)[w.index];
    Touch touch;
    if (side.shape) {
      find_access(w, side.decoded, side.shape, p, access_);
      for (const AccessPart& part : access_) add(raw.trace, touch, part, side.shape.to_lds);
    } else if (side.op->family == Family::DS) {  // lane permutations
      touch.banks = 2, touch.returned = 256;
    }
    raw.step.back().touch = static_cast<uint32_t>(raw.trace.touch.size());
    raw.trace.touch.push_back(touch);
    return true;
  }

  void launch_ended(Counters&) override {
    std::unordered_map<const Side*, uint32_t> index;
    for (size_t g = 0; g < group_.size(); ++g)
      for (Raw& raw : group_[g]) {
        Trace& trace = to_->group[g].emplace_back(std::move(raw.trace));
        for (const RawStep& step : raw.step)
          trace.step.push_back({number(index, step.side), step.touch});
      }
    const std::lock_guard lock(state().mutex);
    if (!state().last || multiplies(*to_) || !multiplies(*state().last)) state().last = to_;
  }

 private:
  struct RawStep {
    const Side* side;
    uint32_t touch;
  };
  struct Raw {
    std::vector<RawStep> step;
    Trace trace;
  };

  static void add(Trace& trace, Touch& touch, const AccessPart& part, bool dma) {
    if (part.space == Space::lds) {
      if (dma) return;
      touch.banks = static_cast<uint16_t>(touch.banks + bank_clocks(part));
      if (part.loads)
        touch.returned =
            static_cast<uint16_t>(touch.returned + kLanes * std::max<int>(part.bytes, 4));
      return;
    }
    const size_t first = trace.line.size();
    for (int l = 0; l < kLanes; ++l) {
      if (!(part.lanes >> l & 1) || !part.good[l]) continue;
      const uint64_t last = (part.address[l] + part.good[l] - 1) / kLine;
      for (uint64_t line = part.address[l] / kLine; line <= last; ++line)
        if (trace.line.size() == first || trace.line.back() != line) trace.line.push_back(line);
    }
    std::sort(trace.line.begin() + first, trace.line.end());
    trace.line.erase(std::unique(trace.line.begin() + first, trace.line.end()), trace.line.end());
    if (!touch.lines) touch.first = static_cast<uint32_t>(first);
    touch.lines += static_cast<uint32_t>(trace.line.size() - first);
  }

  // The index of an instruction in the recording.
  uint32_t number(std::unordered_map<const Side*, uint32_t>& known, const Side* side) {
    const auto [found, fresh] = known.try_emplace(side, 0);
    if (!fresh) return found->second;
    const auto same = std::ranges::find(to_->op, side->decoded.address,
                                        [](const Op& op) { return op.side.decoded.address; });
    found->second = static_cast<uint32_t>(same - to_->op.begin());
    if (same == to_->op.end()) to_->op.push_back(op_of(*side));
    return found->second;
  }

  const std::shared_ptr<Recording> to_;
  std::vector<std::vector<Raw>> group_;
  std::vector<Raw>* now_ = nullptr;  // the waves of the workgroup that runs
  Access access_;
};

}  // namespace

bool runs(const Recording& recording, uint64_t number) {
  return !recording.only || std::ranges::find(recording.chosen, number) != recording.chosen.end();
}

std::shared_ptr<Recording> start_recording(const LaunchContext& context) {
  const std::lock_guard lock(state().mutex);
  if (state().groups.empty()) return nullptr;
  auto made = std::make_shared<Recording>();
  made->kernel = context.launch.kernel->name;
  made->entry = context.launch.kernel->entry;
  made->chosen = state().groups;
  made->only = state().only;
  made->group.resize(made->chosen.size());
  return made;
}

std::unique_ptr<check::Check> make_recorder(std::shared_ptr<Recording> to) {
  return std::make_unique<Recorder>(std::move(to));
}

std::shared_ptr<const Recording> last_recording() {
  const std::lock_guard lock(state().mutex);
  return state().last;
}

}  // namespace emu::model

// Records the workgroups of these numbers in each launch that follows; n = 0 ends it. With `only`
// no others are run: what the launch computes is incomplete. The last launch that multiplies
// matrices is kept, or if none does the last one.
extern "C" __attribute__((visibility("default"))) void hipgemm_emulator_record(
    const uint64_t* groups, int n, int only) {
  const std::lock_guard lock(emu::model::state().mutex);
  emu::model::state().groups.assign(groups, groups + n);
  emu::model::state().only = only != 0;
  if (n) emu::model::state().last = nullptr;
}
