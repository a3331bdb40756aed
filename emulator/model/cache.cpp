#include "model/cache.hpp"

#include <algorithm>
#include <unordered_map>

#include "core/options.hpp"

namespace emu::model {
namespace {

// Lines in sets, the least recently used replaced. The sets of rows whose pitch is a power of two
// differ, as if addresses were hashed.
class Tags {
 public:
  Tags(size_t bytes, size_t ways) : ways_(ways), sets_(bytes / 128 / ways) {
    way_.resize(sets_ * ways_);
  }
  // Whether the line is there; it is afterwards.
  bool find(uint64_t line) {
    Way* const set = &way_[(line * 0x9e3779b97f4a7c15u >> 32) % sets_ * ways_];
    Way* oldest = set;
    ++now_;
    for (Way* w = set; w < set + ways_; ++w) {
      if (w->used && w->line == line) return w->used = now_, true;
      if (w->used < oldest->used) oldest = w;
    }
    *oldest = {line, now_};
    return false;
  }

 private:
  struct Way {
    uint64_t line = 0, used = 0;
  };
  size_t ways_, sets_;
  uint64_t now_ = 0;
  std::vector<Way> way_;
};

// The vector memory instructions of a workgroup, in the order of their steps.
struct Place {
  uint32_t step, wave, touch;
};
std::vector<Place> places(const Recording& recording, size_t group) {
  const std::vector<Trace>& waves = recording.group[group];
  std::vector<Place> all;
  for (uint32_t w = 0; w < waves.size(); ++w)
    for (uint32_t s = 0; s < waves[w].step.size(); ++s) {
      const Step& step = waves[w].step[s];
      if (recording.op[step.op].unit == Unit::memory) all.push_back({s, w, step.touch});
    }
  std::ranges::stable_sort(all, {}, &Place::step);
  return all;
}

// All lines, numbered in the order in which they are met.
FoundLines number_lines(const Recording& recording) {
  FoundLines found;
  std::unordered_map<uint64_t, uint32_t> number;
  for (const std::vector<Trace>& waves : recording.group) {
    auto& group = found.group.emplace_back();
    for (const Trace& trace : waves) {
      std::vector<Line>& lines = group.emplace_back();
      lines.reserve(trace.line.size());
      for (const uint64_t line : trace.line) {
        const auto next = static_cast<uint32_t>(number.size());
        lines.push_back({number.try_emplace(line, next).first->second, Level::loaded});
      }
    }
  }
  found.different = static_cast<uint32_t>(number.size());
  return found;
}

}  // namespace

FoundLines find_lines(const Recording& recording, bool look) {
  FoundLines found = number_lines(recording);
  if (!look) return found;
  const size_t groups = recording.group.size();
  std::vector<std::vector<Place>> order;
  size_t longest = 0;
  for (size_t g = 0; g < groups; ++g)
    longest = std::max(longest, order.emplace_back(places(recording, g)).size());
  Tags l2(4 << 20, 16);
  uint64_t random = 1;
  for (size_t i = 0; i < longest; ++i) {
    const size_t first = next_random(random) % groups;  // no workgroup always misses for the others
    for (size_t k = 0; k < groups; ++k) {
      const size_t g = (first + k) % groups;
      if (i >= order[g].size()) continue;
      const Place& p = order[g][i];
      const Trace& trace = recording.group[g][p.wave];
      const Touch& touch = trace.touch[p.touch];
      for (uint32_t n = touch.first; n < touch.first + touch.lines; ++n)
        found.group[g][p.wave][n].level = l2.find(trace.line[n]) ? Level::l2 : Level::memory;
    }
  }
  return found;
}

}  // namespace emu::model
