// The last accesses of each byte of global memory, for the race check. Within a workgroup they are
// ordered as in LDS. Workgroups of a launch run in no order, except as atomic operations order
// them: each host thread records the accesses of its workgroup by page. When the workgroup ends or
// makes an atomic operation, they are compared with those of the workgroups before.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "check/race_lds.hpp"

namespace emu::check {

inline constexpr uint64_t kRacePage = 4096;

// The kind of an access to a unit of memory. The latest of each kind is stored, and of the reads
// also the latest of another wave.
enum class Touch : uint8_t { read, other_read, write, atomic };
inline constexpr int kTouches = 4;

// Memory in units, as large as the alignment of the accesses allows.
template <class Mark>
struct RacePage {
  int shift = 4;
  std::vector<Mark> mark[kTouches];  // by Touch; empty until there is one

  size_t units() const { return kRacePage >> shift; }
  bool has(Touch t) const { return !mark[static_cast<int>(t)].empty(); }
  Mark at(Touch t, size_t unit) const { return mark[static_cast<int>(t)][unit]; }
  Mark& set(Touch t, size_t unit) {
    auto& m = mark[static_cast<int>(t)];
    if (m.empty()) m.resize(units());
    return m[unit];
  }
  void refine(int to) {
    if (to >= shift) return;
    const size_t times = size_t{1} << (shift - to);
    for (auto& m : mark) {
      std::vector<Mark> finer;
      finer.reserve(m.size() * times);
      for (const Mark x : m) finer.insert(finer.end(), times, x);
      m = std::move(finer);
    }
    shift = to;
  }
};

// A page in one workgroup. A mark is access << 6 | lane.
struct GroupPage : RacePage<uint32_t> {
  static constexpr uint32_t kNobody = 64, kMany = 65;
  uint64_t number = 0;
  uint32_t reader = kNobody;  // the only wave that reads here
  bool only_read = true;
  void clear();
};

// The accesses of all workgroups of a launch.
class RaceLaunch;
std::shared_ptr<RaceLaunch> start_race_launch(const LaunchContext& context);

class GlobalShadow {
 public:
  void attach(std::shared_ptr<RaceLaunch> launch) { launch_ = std::move(launch); }
  void detach();

  void start_group(uint32_t number);
  // The access as such, within the workgroup.
  std::optional<Conflict> access(const Order& order, const Wave& w, AccessId id,
                                 const AccessPart& part, bool atomic);
  // An atomic operation is issued, and has taken effect; the workgroup has ended. The text of a
  // finding, "" if there is none.
  std::string release(const Order& order);
  void acquire();
  std::string end_group(const Order& order);

  // A load by all lanes of `bytes` at base + offset[l], aligned to that. False in other
  // cases: then call access().
  bool quick_read(uint32_t wave, AccessId id, uint32_t bytes, uint64_t base,
                  const uint32_t* offset);

 private:
  GroupPage& page(uint64_t number) {
    GroupPage* const near = near_[number % near_.size()];
    return near && near->number == number ? *near : find_page(number);
  }
  GroupPage& find_page(uint64_t number);
  std::string hand_over(const Order& order, bool released);

  std::shared_ptr<RaceLaunch> launch_;
  uint32_t group_ = 0;
  uint64_t acquired_ = 0;
  std::unordered_map<uint64_t, std::unique_ptr<GroupPage>> pages_;
  std::array<GroupPage*, 1024> near_{};  // by the low bits of the number
  std::vector<std::unique_ptr<GroupPage>> spare_;
};

}  // namespace emu::check
