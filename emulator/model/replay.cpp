#include "model/replay.hpp"

#include <algorithm>
#include <limits>

#include "model/matrix.hpp"
#include "model/memory.hpp"

namespace emu::model {

const char kWaitNames[] =
    "matrix shadow dependency vmcnt lgkmcnt memory_queue l1 lds_queue lds_banks barrier "
    "arbitration "
    "fetch";

namespace {

constexpr Clock kNever = std::numeric_limits<Clock>::max();
constexpr int kSimds = 4, kSlot = 4, kRegisters = 512;

struct Wave {
  const Trace* trace = nullptr;
  const Line* line = nullptr;  // as Trace::line
  uint32_t first_line = 0;     // their numbers begin here
  uint32_t index = 0, group = 0;
  uint8_t simd = 0;
  int priority = 0;
  size_t at = 0;    // the step that issues next
  Clock next = 0;   // when to try
  Clock since = 0;  // from when on it waits
  Wait why = Wait::arbitration;
  uint8_t debt = 0;  // clocks of fetching that do not fill a slot yet
  bool arrived = false;
  std::vector<Clock> vm, lgkm;  // when each of its memory instructions is complete, in order
  std::array<Clock, kRegisters> ready{}, ready_as_c{};

  bool over() const { return at == trace->step.size(); }
};

struct Simd {
  Matrix matrix;
  std::vector<Wave*> waves;  // by priority, then by age
  Clock next = 0;
  uint32_t used = 0;  // units that have issued in this slot
  explicit Simd(const Figures& f) : matrix(f) {}
};

struct Blocked {
  Clock until = 0;
  Wait why{};
  void by(Clock t, Wait w) {
    if (t > until) until = t, why = w;
  }
};

class Cu {
 public:
  Cu(const Recording& recording, const FoundLines& found, int resident, const Figures& f)
      : recording_(recording),
        f_(f),
        lds_(f),
        memory_(f, found.different * (1 + (resident - 1) / recording.group.size())),
        simd_(kSimds, Simd(f)) {
    times_.op.resize(recording.op.size());
    size_t count = 0, steps = 0;
    const auto group_of = [&](int i) { return static_cast<size_t>(i) % recording.group.size(); };
    for (int i = 0; i < resident; ++i) count += recording.group[group_of(i)].size();
    wave_.resize(count);
    Wave* w = wave_.data();
    for (int i = 0; i < resident; ++i) {
      const size_t g = group_of(i);
      for (size_t n = 0; n < recording.group[g].size(); ++n, ++w) {
        w->trace = &recording.group[g][n];
        w->line = found.group[g][n].data();
        w->first_line = static_cast<uint32_t>(i / recording.group.size()) * found.different;
        w->index = static_cast<uint32_t>(w - wave_.data());
        w->group = static_cast<uint32_t>(i);
        w->simd = w->index % kSimds;
        steps += w->trace->step.size();
        simd_[w->simd].waves.push_back(w);
      }
    }
    times_.issue.reserve(steps);
    for (int s = 0; s < kSimds; ++s) simd_[s].next = s;
  }

  Times run() {
    for (;;) {
      Simd* first = &simd_[0];
      for (Simd& s : simd_)
        if (s.next < first->next) first = &s;
      if (first->next == kNever) break;
      visit(*first, first->next);
    }
    for (const Wave& w : wave_)
      if (!w.over()) times_.error = "a wave waits forever";
    return std::move(times_);
  }

 private:
  // One slot of a SIMD.
  void visit(Simd& s, Clock now) {
    s.used = 0;
    order_changed_ = false;
    for (Wave* w : s.waves)
      if (w->next <= now && try_issue(s, *w, now) && f_.scalar_beside_vector != 0)
        issue_second(s, *w, now);
    Clock earliest = kNever;
    for (const Wave* w : s.waves) earliest = std::min(earliest, w->next);
    if (order_changed_)
      std::ranges::stable_sort(s.waves, [](const Wave* a, const Wave* b) {
        return a->priority != b->priority ? a->priority > b->priority : a->index < b->index;
      });
    const auto number = static_cast<Clock>(&s - simd_.data());
    s.next = earliest == kNever ? kNever : slot(number, std::max(earliest, now + 1));
  }

  // The first slot of a SIMD from `t` on.
  static Clock slot(Clock number, Clock t) { return t + (number + kSlot - t % kSlot) % kSlot; }

  // A scalar instruction of a wave issues together with its vector one.
  void issue_second(Simd& s, Wave& w, Clock now) {
    if (w.over() || !w.at) return;
    const Unit last = op_at(w, w.at - 1).unit, next = op_at(w, w.at).unit;
    const bool scalar = (last == Unit::scalar) != (next == Unit::scalar);
    if (!scalar || w.next > now + kSlot || last >= Unit::branch || next >= Unit::branch) return;
    const Clock then = w.next;
    if (!try_issue(s, w, now)) w.next = std::max(w.next, then);
  }

  const Op& op_at(const Wave& w, size_t at) const { return recording_.op[w.trace->step[at].op]; }

  bool try_issue(Simd& s, Wave& w, Clock now) {
    const Step& step = w.trace->step[w.at];
    const Op& op = recording_.op[step.op];
    OpTimes& times = times_.op[step.op];
    if (now > w.since) times.waited[static_cast<int>(w.why)] += now - w.since, w.since = now;
    Blocked b = blocked(s, w, op, now);
    if (!may_go(w, op, b, now)) {
      w.next = std::max(b.until, now + kSlot), w.why = b.why;
      return false;
    }
    ++times.issues;
    times_.issue.push_back({w.index, step.op, now});
    times_.end = std::max(times_.end, now + kSlot);
    if (op.unit != Unit::internal) s.used |= 1u << static_cast<int>(op.unit);
    Clock busy = kSlot;
    if (op.straddles) {
      w.debt = static_cast<uint8_t>(w.debt + f_.straddle_clocks);
      if (w.debt >= kSlot) w.debt -= kSlot, busy += kSlot;
    }
    w.why = Wait::arbitration;
    issue(s, w, op, step.touch, now, busy);
    return true;
  }

  // Whether it issues: nothing blocks it, and it is its SIMD's turn.
  bool may_go(const Wave& w, const Op& op, Blocked& b, Clock now) {
    if (op.unit != Unit::lds && op.unit != Unit::memory) return b.until <= now;
    Alternation& turns = op.unit == Unit::lds ? lds_turns_[w.simd % 2] : memory_turns_;
    if (b.until > now) {
      if (b.why >= Wait::memory_queue && b.why <= Wait::lds_banks) turns.wait(w.simd);
      return false;
    }
    if (turns.yields(w.simd)) {
      b.why = op.unit == Unit::lds ? Wait::lds_queue : Wait::memory_queue;
      return false;
    }
    turns.take(w.simd);
    return true;
  }

  Blocked blocked(const Simd& s, const Wave& w, const Op& op, Clock now) const {
    Blocked b;
    const bool taken = op.unit != Unit::internal && (s.used >> static_cast<int>(op.unit) & 1);
    if (taken) b.by(now + kSlot, Wait::arbitration);
    switch (op.unit) {
      case Unit::vector:
        results(w, op, b);
        if (op.side.traits.mfma) {
          b.by(s.matrix.ready(op), Wait::matrix);
          constexpr uint32_t readers =
              1u << static_cast<int>(Unit::lds) | 1u << static_cast<int>(Unit::memory);
          if (s.used & readers) b.by(now + kSlot, Wait::arbitration);
        } else {
          b.by(s.matrix.vector_ready(op), Wait::shadow);
        }
        break;
      case Unit::lds: {
        const int pair = w.simd % 2;
        results(w, op, b);
        b.by(s.matrix.ports(), Wait::shadow);
        b.by(lds_.ready(pair), lds_.banks_bind(pair) ? Wait::lds_banks : Wait::lds_queue);
        break;
      }
      case Unit::memory:
        results(w, op, b);
        b.by(s.matrix.ports(), Wait::shadow);
        b.by(memory_.ready(), memory_.full() ? Wait::l1 : Wait::memory_queue);
        outstanding(w.vm, static_cast<size_t>(f_.vector_counter) - 1, Wait::memory_queue, b);
        break;
      case Unit::internal:
        if (op.side.decoded.op == emu::Op::s_waitcnt) {
          if (op.wait_vm < 63) outstanding(w.vm, op.wait_vm, Wait::vmcnt, b);
          if (op.wait_lgkm < 15) outstanding(w.lgkm, op.wait_lgkm, Wait::lgkmcnt, b);
        }
        break;
      default:
        break;
    }
    return b;
  }

  // Until at most `most` are not complete.
  static void outstanding(const std::vector<Clock>& done, size_t most, Wait why, Blocked& b) {
    if (done.size() > most) b.by(done[done.size() - 1 - most], why);
  }

  void results(const Wave& w, const Op& op, Blocked& b) const {
    Clock ready = 0;
    for (const check::Registers& r : op.side.foot.vector_reads) {
      const bool as_c =
          op.side.traits.mfma && (r.role == check::Role::source2 || r.role == check::Role::old);
      const auto& table = as_c ? w.ready_as_c : w.ready;
      for (int k = r.first; k < r.first + r.count; ++k) ready = std::max(ready, table[k]);
    }
    b.by(ready, Wait::dependency);
  }

  void issue(Simd& s, Wave& w, const Op& op, uint32_t number, Clock now, Clock busy) {
    const Touch& touch = w.trace->touch[number];
    const check::Traits& traits = op.side.traits;
    const check::MemoryShape& shape = op.side.shape;
    ++w.at;
    switch (op.unit) {
      case Unit::vector:
        if (traits.mfma) {
          const Clock through = s.matrix.issue(now, op);
          written(w, op, through + static_cast<Clock>(f_.result_clocks),
                  through + static_cast<Clock>(f_.chain_clocks));
          if (op.scaled) busy += static_cast<Clock>(f_.scale_clocks);
        } else {
          s.matrix.issue_vector(now, op);
          const auto ready = now + static_cast<Clock>(f_.valu_latency);
          written(w, op, ready, ready);
        }
        break;
      case Unit::lds:
        times_.op[w.trace->step[w.at - 1].op].returned += touch.returned;
        w.lgkm.push_back(
            after(w.lgkm, lds_.issue(w.simd % 2, now, touch, shape.stores && !shape.loads)));
        break;
      case Unit::memory: {
        const std::span lines(w.line + touch.first, touch.lines);
        const Clock done = memory_.issue(now, lines, w.first_line, shape.bytes, shape.stores);
        w.vm.push_back(after(w.vm, done));
        if (shape.to_lds) lds_.write_later(done, shape.bytes * kLanes);
        break;
      }
      case Unit::scalar:
        if (op.side.op->cls == OpClass::smem)
          w.lgkm.push_back(after(w.lgkm, now + static_cast<Clock>(f_.scalar_load_latency)));
        break;
      case Unit::branch:
        if (!w.over() && w.at) {
          const auto& d = op.side.decoded;
          if (op_at(w, w.at).side.decoded.address != d.address + d.size) {
            w.next = now + static_cast<Clock>(f_.branch_clocks);
            w.since = now + busy, w.why = Wait::fetch;
            return;
          }
        }
        break;
      case Unit::internal:
        if (op.side.decoded.op == emu::Op::s_barrier) return arrive(w, now);
        if (op.side.decoded.op == emu::Op::s_setprio) {
          w.priority = op.side.decoded.imm & 3;
          order_changed_ = true;
        }
        if (op.side.decoded.op == emu::Op::s_nop) busy = kSlot * traits.states;
        break;
    }
    w.next = w.since = w.over() ? kNever : now + busy;
    if (w.over()) release(w.group, now);
  }

  // Memory instructions of one counter complete in order.
  static Clock after(const std::vector<Clock>& done, Clock t) {
    return done.empty() ? t : std::max(t, done.back());
  }

  static void written(Wave& w, const Op& op, Clock ready, Clock as_c) {
    for (const check::Registers& r : op.side.foot.vector_writes)
      for (int k = r.first; k < r.first + r.count; ++k) w.ready[k] = ready, w.ready_as_c[k] = as_c;
  }

  // ---- barriers ----

  void arrive(Wave& w, Clock now) {
    w.arrived = true;
    w.next = kNever, w.since = now + kSlot;
    release(w.group, now);
  }
  // Once all waves of a workgroup have arrived, or ended.
  void release(uint32_t group, Clock now) {
    for (const Wave& w : wave_)
      if (w.group == group && !w.arrived && !w.over()) return;
    const Clock then = now + kSlot + static_cast<Clock>(f_.barrier_clocks);
    for (Wave& w : wave_) {
      if (w.group != group || !w.arrived) continue;
      w.arrived = false;
      OpTimes& times = times_.op[w.trace->step[w.at - 1].op];
      times.waited[static_cast<int>(Wait::barrier)] += then - w.since;
      w.next = w.since = w.over() ? kNever : then;
      Simd& s = simd_[w.simd];
      s.next = std::min(s.next, slot(w.simd, then));
    }
  }

  const Recording& recording_;
  const Figures& f_;
  Lds lds_;
  Memory memory_;
  std::array<Alternation, 2> lds_turns_;
  Alternation memory_turns_;
  std::vector<Simd> simd_;
  std::vector<Wave> wave_;
  bool order_changed_ = false;
  Times times_;
};

}  // namespace

Times replay(const Recording& recording, const FoundLines& found, int resident,
             const Figures& figures) {
  for (const Op& op : recording.op)
    if (op.side.op->has(kAtomic) && op.side.op->dst)
      return {{}, {}, 0, "an atomic returns a value, on which waves may wait for each other"};
  return Cu(recording, found, resident, figures).run();
}

}  // namespace emu::model
