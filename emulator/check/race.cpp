// The race check: two accesses of the same bytes, at least one of them a write, that nothing
// orders. What orders them is in race_order.hpp (within a workgroup) and race_global.hpp.
#include "check/race.hpp"

#include <mutex>

#include "check/race_global.hpp"
#include "core/notes.hpp"

namespace emu::check {
namespace {

// What a host thread caches between launches.
struct Shadows {
  Order order;
  LdsShadow lds;
  GlobalShadow global;
};

class SparePool {
 public:
  std::unique_ptr<Shadows> take() {
    std::lock_guard lock(mutex_);
    if (spare_.empty()) return std::make_unique<Shadows>();
    auto s = std::move(spare_.back());
    spare_.pop_back();
    return s;
  }
  void give(std::unique_ptr<Shadows> s) noexcept {
    std::lock_guard lock(mutex_);
    try {
      spare_.push_back(std::move(s));
    } catch (const std::bad_alloc&) {  // then it goes
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Shadows>> spare_;
};
// Never destroyed: a launch may still run while the process exits.
SparePool& spare_pool() {
  static auto& pool = *new SparePool;
  return pool;
}

class Races final : public Check {
 public:
  Races(const LaunchContext& context, std::shared_ptr<RaceLaunch> launch)
      : context_(context), shadows_(spare_pool().take()) {
    global_.attach(std::move(launch));
  }
  ~Races() override {
    global_.detach();
    spare_pool().give(std::move(shadows_));
  }

  void attach(Workgroup& group) override {
    order_.attach(static_cast<uint32_t>(group.waves.size()));
    lds_.attach(context_.lds_bytes, static_cast<uint32_t>(group.waves.size()));
  }
  void group_started(Workgroup& group) override {
    if (!order_.start_group()) lds_.clear();
    lds_.start_group();
    atomic_.fill(0);
    atomics_ = false;
    const auto& grid = context_.launch.workgroups;
    global_.start_group((group.id[2] * grid[1] + group.id[1]) * grid[0] + group.id[0]);
  }

  Wants wants() const override { return {false, true, false}; }
  bool before(Wave& w, const Inst*, const Side& side) override {
    if (side.decoded.op == Op::s_waitcnt) {
      const auto imm = static_cast<uint32_t>(side.decoded.imm);
      order_.wait(w.index, (imm & 15) | (imm >> 14 & 3) << 4, imm >> 8 & 15);
    } else if (side.decoded.op == Op::s_endpgm) {
      order_.end(w.index);
    }
    return true;
  }
  bool barrier_passed(Workgroup&) override {
    resolve_atomics();
    order_.barrier();
    return true;
  }

  bool queued(Wave& w, const Side& side, const Pending& p) override {
    const bool atomic = synchronizes(side);
    resolve_atomics();
    if (atomic) {
      order_.acquire(w.index);
      order_.release(w.index);
      if (const auto text = global_.release(order_); !text.empty())
        return report(w, p.inst, kName, text);
    }
    const AccessId id = order_.issue(w.index, side, atomic);
    if (!side.shape || !id) return true;
    if (atomic) atomic_[w.index] = id, atomics_ = true;
    if (atomic) return look(w, side, p, id, atomic);
    const bool dma = side.shape.to_lds;
    if (side.op->family == Family::DS) {
      if (!side.shape.stores && p.exec == kAllLanes && !side.op->has(kTwoOffsets) &&
          lds_.quick_read(order_, w.index, id, p.addr[0],
                          static_cast<uint32_t>(side.decoded.offset), side.shape.bytes))
        return true;
    } else if (side.op->family == Family::MUBUF && dma && side.shape.bytes == 16) {
      const uint64_t start = uint64_t{p.m0 & 0x3ffff} + static_cast<uint32_t>(side.decoded.offset);
      if (read_buffer(w, side, p, id) && lds_.quick_dma(order_, w.index, id, start)) return true;
    } else if (side.op->family == Family::MUBUF && !side.shape.stores && !dma) {
      if (read_buffer(w, side, p, id)) return true;
    }
    return look(w, side, p, id, atomic);
  }
  bool group_ended(Workgroup& group) override {
    const auto text = global_.end_group(order_);
    return text.empty() || report(*group.waves[0], nullptr, kName, text);
  }

 private:
  static constexpr const char* kName = "race";

  // The value that an atomic operation reads is known when it lands: at the latest before the next
  // access that relies on it.
  void resolve_atomics() {
    if (!atomics_) return;
    atomics_ = false;
    global_.acquire();
    for (uint32_t v = 0; v < kMaxWaves; ++v) {
      if (!atomic_[v]) continue;
      order_.acquire(v);
      if (atomic_[v] <= order_.landed(v, Counter::vm) &&
          atomic_[v] <= order_.landed(v, Counter::lds) &&
          atomic_[v] <= order_.landed(v, Counter::scalar))
        atomic_[v] = 0;
      else
        atomics_ = true;
    }
  }
  // Atomic loads and stores are ordinary ones with a wider scope.
  static bool synchronizes(const Side& side) {
    if (side.op->has(kAtomic) || side.shape.counter) return true;
    return (side.decoded.sc0 || side.decoded.sc1) && side.op->family != Family::SMEM &&
           !side.shape.to_lds;
  }
  // The usual load by all lanes, in range and aligned. False in other cases.
  bool read_buffer(Wave& w, const Side& side, const Pending& p, AccessId id) {
    const Decoded& d = side.decoded;
    const uint32_t bytes = side.shape.bytes;
    const bool add_tid = p.rsrc[3] >> 23 & 1, format = p.rsrc[3] >> 15 & 15;
    if (d.idxen || add_tid || !format || p.exec != kAllLanes || (bytes & (bytes - 1)) || bytes < 4)
      return false;
    const uint64_t base = (p.rsrc[0] | (p.rsrc[1] & 0xffffull) << 32) & ~uint64_t{3};
    const uint64_t records = p.rsrc[2];
    alignas(64) uint32_t offset[kLanes];
    uint32_t bits = static_cast<uint32_t>(base) | bytes;
    uint32_t high = 0;
    for (int l = 0; l < kLanes; ++l) {
      offset[l] = (d.offen ? p.addr[0][l] : 0) + static_cast<uint32_t>(d.offset);
      bits |= offset[l];
      high = offset[l] > high ? offset[l] : high;
    }
    bits |= p.soffset;
    if (bits & (bytes - 1) || uint64_t{high} + p.soffset + bytes > records) return false;
    return global_.quick_read(w.index, id, bytes, base + p.soffset, offset);
  }
  bool look(Wave& w, const Side& side, const Pending& p, AccessId id, bool atomic) {
    Access access;
    find_access(w, side.decoded, side.shape, p, access);
    for (const AccessPart& part : access) {
      std::optional<Conflict> conflict, same;
      if (part.space == Space::lds)
        conflict = lds_.access(order_, w.index, id, part, side.shape.to_lds,
                               part.loads && part.stores, stored_by(side, part, p), same);
      else if (part.space == Space::global && !is_argument(part))
        conflict = global_.access(order_, w, id, part, atomic);
      if (conflict) return report(w, p.inst, kName, text_of_conflict(w, part, *conflict));
      if (same)
        note(w, p.inst, NoteKind::same_value,
             std::string(kName) + ": two waves store the same value, in no order: " +
                 text_of_conflict(w, part, *same));
    }
    return true;
  }
  // The kernel's arguments are never written.
  bool is_argument(const AccessPart& part) const {
    const auto begin = reinterpret_cast<uint64_t>(context_.kernarg.data());
    return part.lanes == 1 && part.address[0] - begin < context_.kernarg.size();
  }

  // Of plain LDS stores; the data of others is not in registers, or is not known yet.
  static StoredData stored_by(const Side& side, const AccessPart& part, const Pending& p) {
    if (side.op->family != Family::DS || !part.stores || part.loads || side.shape.counter)
      return {};
    return {&p, std::string_view(side.op->name).ends_with("_d16_hi")};
  }

  std::string text_of_conflict(const Wave& w, const AccessPart& part, const Conflict& c) {
    const auto count = [](uint32_t n) {
      return std::to_string(n) + (n == 1 ? " barrier" : " barriers");
    };
    const bool dma = c.other.side->shape.to_lds && part.space == Space::lds;
    const Counter counter = c.other.side->op->family == Family::SMEM ? Counter::scalar
                            : dma || part.space == Space::global     ? Counter::vm
                                                                     : Counter::lds;
    const bool in_flight = c.id > order_.landed(c.other.wave, counter);
    char at[24];
    std::snprintf(at, sizeof at, "0x%llx", static_cast<unsigned long long>(c.address));
    std::string text = part.space == Space::lds ? "LDS at " : "memory at ";
    text += at;
    if (part.space == Space::global)
      text += " (" + context_.launch.memory->describe(c.address) + ")";
    text += std::string(" is ") +
            (part.loads && part.stores ? "changed"
             : part.stores             ? "written"
                                       : "read") +
            " by lane " + std::to_string(c.lane) + " after " + count(order_.barriers()) +
            ", and was " + (c.other_stores ? "written" : "read") + " by ";
    text += c.other.wave == w.index ? "the same wave" : "wave " + std::to_string(c.other.wave);
    text += " lane " + std::to_string(c.other_lane) + ", issued after " + count(c.other.barriers) +
            (in_flight ? " and still in flight" : " and landed since the last") + ": " +
            text_of(*c.other.side) + ". In between there must be ";
    if (c.other.wave == w.index)
      text += "a wait for it";
    else if (in_flight)
      text += "that wave's wait for it and then a barrier";
    else
      text +=
          c.other.barriers < order_.barriers() ? "a barrier, after the wait for it" : "a barrier";
    return text;
  }

  const LaunchContext& context_;
  std::unique_ptr<Shadows> shadows_;
  Order& order_ = shadows_->order;
  LdsShadow& lds_ = shadows_->lds;
  GlobalShadow& global_ = shadows_->global;
  std::array<AccessId, kMaxWaves> atomic_{};  // of each wave the last that may be in flight
  bool atomics_ = false;                      // there is one
};

}  // namespace

std::unique_ptr<Check> make_race_check(const LaunchContext& context,
                                       std::shared_ptr<RaceLaunch> launch) {
  return std::make_unique<Races>(context, std::move(launch));
}

}  // namespace emu::check
