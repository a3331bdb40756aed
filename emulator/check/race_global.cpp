#include "check/race_global.hpp"

#include <algorithm>
#include <mutex>

namespace emu::check {
namespace {

// The number of workgroups stored per page that made an atomic operation after accessing it.
constexpr size_t kReleases = 64;
// The number of pages that a host thread caches between launches.
constexpr size_t kSparePages = 16384;
// The number of accesses of ended workgroups that reports can name.
constexpr size_t kMostRemembered = size_t{1} << 24;

// In pages that all workgroups share, a mark is the workgroup and, below, its own mark.
using SharedPage = RacePage<uint64_t>;

// The accesses of a workgroup that has ended: instruction and wave, as far as they are stored.
struct Accesses {
  AccessId first = 0;
  std::vector<std::pair<const Side*, uint8_t>> of;
};

constexpr Touch kDone[] = {Touch::read, Touch::write, Touch::atomic};
const char* verb(Touch t) {
  return t == Touch::write    ? "writes it"
         : t == Touch::atomic ? "changes it atomically"
                              : "reads it";
}

struct Meeting {
  size_t byte;  // in the page
  Touch mine, theirs;
  uint32_t my_mark;
  uint64_t their_mark;
};

// A unit that both access, one of them with a plain write, or one plainly and one atomically.
std::optional<Meeting> meet(const GroupPage& mine, const SharedPage& theirs) {
  for (const Touch a : kDone) {
    for (const Touch b : kDone) {
      if (a == b && a != Touch::write) continue;
      if (!mine.has(a) || !theirs.has(b)) continue;
      const int shift = std::min(mine.shift, theirs.shift);
      for (size_t u = 0; u < kRacePage >> shift; ++u) {
        const uint32_t x = mine.at(a, u >> (mine.shift - shift));
        const uint64_t y = theirs.at(b, u >> (theirs.shift - shift));
        if (x && y) return Meeting{u << shift, a, b, x, y};
      }
    }
  }
  return {};
}

}  // namespace

void GroupPage::clear() {
  shift = 4;
  reader = kNobody;
  only_read = true;
  for (auto& m : mark) m.clear();
  mark[static_cast<int>(Touch::read)].assign(units(), 0);  // most pages are read
}

// ---- the launch ---------------------------------------------------------------------------------

class RaceLaunch {
 public:
  explicit RaceLaunch(const LaunchContext& context) : context_(context) {}

  // Compares a page of a workgroup with the others' accesses before, and adds it to them.
  // `released`: when the workgroup made an atomic operation after it, else 0; `acquired`: before.
  std::string add(const Order& order, uint32_t group, const GroupPage& page, uint64_t acquired,
                  uint64_t released, bool last) {
    const auto found = pages_.find(page.number);
    if (last && found == pages_.end()) return "";
    Shared& s = found == pages_.end() ? pages_[page.number] : found->second;
    if (s.all_read && page.only_read && !released && s.released.empty() &&
        !s.ended.has(Touch::write) && !s.ended.has(Touch::atomic))
      return "";
    const auto finding = [&](const Meeting& m) {
      const uint64_t address = page.number * kRacePage + m.byte;
      char text[24];
      std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(address));
      const auto other = static_cast<uint32_t>(m.their_mark >> 32);
      return std::string("memory at ") + text + " (" + context_.launch.memory->describe(address) +
             "): " + name_of(group, accesses_of(order), m.my_mark, verb(m.mine)) + "; " +
             name_of(other, accesses_[other], static_cast<uint32_t>(m.their_mark), verb(m.theirs)) +
             "; workgroups of a launch run in no order";
    };
    if (const auto m = meet(page, s.ended)) return finding(*m);
    for (const Released& r : s.released)
      if (r.group != group && r.time > acquired)
        if (const auto m = meet(page, r.page)) return finding(*m);
    if (last) return "";
    if (released) {
      if (s.released.size() == kReleases) s.released.erase(s.released.begin());
      s.released.push_back({group, released, {}});
      merge(s.released.back().page, page, group);
    } else {
      merge(s.ended, page, group);
      const auto& reads = s.ended.mark[static_cast<int>(Touch::read)];
      s.all_read = std::find(reads.begin(), reads.end(), 0u) == reads.end();
    }
    return "";
  }
  // Both return the time, which is the number of releases.
  uint64_t release() { return ++time_; }
  uint64_t now() {
    std::lock_guard lock(mutex);
    return time_;
  }
  // All pages of the workgroup have been added.
  void remember(const Order& order, uint32_t group) {
    if (remembered_ > kMostRemembered) return;
    Accesses& a = accesses_[group];
    const size_t before = a.of.size();
    add_new(order, a);
    remembered_ += a.of.size() - before;
  }
  // No other workgroup ends after this one.
  bool last_to_end() {
    const auto& grid = context_.launch.workgroups;
    return ++ended_ == uint64_t{grid[0]} * grid[1] * grid[2];
  }

  std::mutex mutex;  // for all the others

 private:
  struct Released {
    uint32_t group;
    uint64_t time;
    SharedPage page;
  };
  struct Shared {
    SharedPage ended;  // accesses of ended workgroups after their last atomic operation
    std::vector<Released> released;
    bool all_read = false;
  };

  // Any one of several equal accesses of a unit is enough.
  static void merge(SharedPage& to, const GroupPage& from, uint32_t group) {
    to.refine(from.shift);
    const int down = from.shift - to.shift;
    for (const Touch t : kDone) {
      if (!from.has(t)) continue;
      to.set(t, 0);
      uint64_t* const marks = to.mark[static_cast<int>(t)].data();
      const uint32_t* const own = from.mark[static_cast<int>(t)].data();
      for (size_t u = 0; u < to.units(); ++u)
        if (!marks[u] && own[u >> down]) marks[u] = uint64_t{group} << 32 | own[u >> down];
    }
  }

  static void add_new(const Order& order, Accesses& a) {
    if (a.of.empty()) a.first = order.first();
    for (auto id = static_cast<AccessId>(a.first + a.of.size()); id < order.next(); ++id) {
      const Issued* x = order.record(id);
      a.of.emplace_back(x ? x->side : nullptr, x ? x->wave : 0);
    }
  }
  static Accesses accesses_of(const Order& order) {
    Accesses a;
    add_new(order, a);
    return a;
  }
  std::string name_of(uint32_t group, const Accesses& accesses, uint32_t mark,
                      const char* does) const {
    const auto& grid = context_.launch.workgroups;
    std::string text = "workgroup (" + std::to_string(group % grid[0]) + "," +
                       std::to_string(group / grid[0] % grid[1]) + "," +
                       std::to_string(group / grid[0] / grid[1]) + ") ";
    const AccessId index = (mark >> 6) - accesses.first;
    const bool known = index < accesses.of.size() && accesses.of[index].first;
    if (known) text += "wave " + std::to_string(accesses.of[index].second) + " ";
    text += "lane " + std::to_string(mark & 63) + " " + does;
    return known ? text + ", " + text_of(*accesses.of[index].first) : text;
  }

  const LaunchContext& context_;
  uint64_t time_ = 0, ended_ = 0;
  size_t remembered_ = 0;
  std::unordered_map<uint64_t, Shared> pages_;
  std::unordered_map<uint32_t, Accesses> accesses_;
};

std::shared_ptr<RaceLaunch> start_race_launch(const LaunchContext& context) {
  return std::make_shared<RaceLaunch>(context);
}

// ---- a workgroup --------------------------------------------------------------------------------

void GlobalShadow::detach() {
  launch_.reset();
  try {
    for (auto& [number, p] : pages_)  // after a fault
      if (p) spare_.push_back(std::move(p));
  } catch (const std::bad_alloc&) {  // then they go
  }
  pages_.clear();
  near_.fill(nullptr);
  if (spare_.size() > kSparePages) spare_.resize(kSparePages);
}

void GlobalShadow::start_group(uint32_t number) {
  group_ = number;
  acquired_ = 0;
}

GroupPage& GlobalShadow::find_page(uint64_t number) {
  auto it = pages_.find(number);
  if (it == pages_.end()) {
    std::unique_ptr<GroupPage> p;
    if (spare_.empty()) {
      p = std::make_unique<GroupPage>();
    } else {
      p = std::move(spare_.back());
      spare_.pop_back();
    }
    p->clear();
    p->number = number;
    it = pages_.emplace(number, std::move(p)).first;
  }
  return *(near_[number % near_.size()] = it->second.get());
}

std::optional<Conflict> GlobalShadow::access(const Order& order, const Wave& w, AccessId id,
                                             const AccessPart& part, bool atomic) {
  const uint32_t wave = w.index;
  const Touch kind = atomic ? Touch::atomic : part.stores ? Touch::write : Touch::read;
  const auto private_begin = reinterpret_cast<uint64_t>(w.scratch);
  const uint64_t private_bytes = uint64_t{w.scratch_bytes} * kLanes;

  // Whether the other access is of another wave and unordered with this one.
  const auto unordered = [&](uint32_t mark) {
    const Issued* x = order.find(mark >> 6);
    if (!x || x->wave == wave) return false;
    const Counter c = x->side->op->family == Family::SMEM ? Counter::scalar : Counter::vm;
    return mark >> 6 > order.before(wave, c, x->wave);
  };
  for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1) {
    const auto l = static_cast<uint32_t>(__builtin_ctzll(lanes));
    const uint64_t address = part.address[l], end = address + part.good[l];
    if (address - private_begin < private_bytes) continue;
    for (uint64_t begin = address; begin < end;) {
      GroupPage& p = page(begin / kRacePage);
      if (kind == Touch::read)
        p.reader = p.reader == GroupPage::kNobody || p.reader == wave ? wave : GroupPage::kMany;
      else
        p.only_read = false;
      const uint64_t stop = std::min(end, (begin / kRacePage + 1) * kRacePage);
      const uint64_t bits = begin | stop;
      if (bits & ((uint64_t{1} << p.shift) - 1)) p.refine(__builtin_ctzll(bits));
      const size_t first = begin % kRacePage >> p.shift;
      const size_t last = (stop - 1) % kRacePage >> p.shift;
      for (size_t u = first; u <= last; ++u) {
        uint32_t bad = 0;
        bool stores = true;
        const auto against = [&](Touch t) {
          if (!p.has(t)) return;
          const uint32_t mark = p.at(t, u);
          if (mark && unordered(mark)) bad = mark, stores = t == Touch::write || t == Touch::atomic;
        };
        against(Touch::write);
        if (kind != Touch::atomic) against(Touch::atomic);
        if (kind != Touch::read) against(Touch::other_read), against(Touch::read);
        if (bad)
          return Conflict{*order.find(bad >> 6),
                          bad >> 6,
                          bad & 63,
                          l,
                          p.number * kRacePage + (u << p.shift),
                          stores};
        uint32_t& mark = p.set(kind, u);
        if (kind == Touch::read && mark && p.reader == GroupPage::kMany) {
          const Issued* before = order.find(mark >> 6);
          if (before && before->wave != wave) p.set(Touch::other_read, u) = mark;
        }
        mark = id << 6 | l;
      }
      begin = stop;
    }
  }
  return {};
}

bool GlobalShadow::quick_read(uint32_t wave, AccessId id, uint32_t bytes, uint64_t base,
                              const uint32_t* offset) {
  uint64_t number = ~uint64_t{0};
  uint32_t* marks = nullptr;
  int shift = 4;
  uint32_t units = 0;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint64_t at = base + offset[l];
    if (at / kRacePage != number) {
      number = at / kRacePage;
      GroupPage& p = page(number);
      if (p.reader == GroupPage::kNobody) p.reader = wave;
      if (p.reader != wave || !p.only_read || (bytes & ((1u << p.shift) - 1))) return false;
      marks = p.mark[static_cast<int>(Touch::read)].data();
      shift = p.shift;
      units = bytes >> shift;
    }
    uint32_t* const m = marks + (at % kRacePage >> shift);
    *m = id << 6 | l;
    for (uint32_t k = 1; k < units; ++k) m[k] = id << 6 | l;
  }
  return true;
}

std::string GlobalShadow::hand_over(const Order& order, bool released) {
  std::lock_guard lock(launch_->mutex);
  const uint64_t time = released ? launch_->release() : 0;
  const bool last = !released && launch_->last_to_end();
  std::string finding;
  for (auto& [number, p] : pages_) {
    if (finding.empty()) finding = launch_->add(order, group_, *p, acquired_, time, last);
    spare_.push_back(std::move(p));
  }
  if (!pages_.empty() && !last) launch_->remember(order, group_);
  pages_.clear();
  near_.fill(nullptr);
  if (released) acquired_ = time;
  return finding;
}

std::string GlobalShadow::release(const Order& order) { return hand_over(order, true); }
void GlobalShadow::acquire() { acquired_ = std::max(acquired_, launch_->now()); }
std::string GlobalShadow::end_group(const Order& order) { return hand_over(order, false); }

}  // namespace emu::check
