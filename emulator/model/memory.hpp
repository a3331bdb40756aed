// Vector memory of a CU: a queue of instructions, L1 with the bytes in flight, L2 and memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <span>
#include <vector>

#include "model/cache.hpp"
#include "model/figures.hpp"
#include "model/lds.hpp"

namespace emu::model {

class Memory {
 public:
  // `lines`: how many different ones.
  Memory(const Figures& f, size_t lines) : f_(f), arrival_(lines) {}

  // When the next instruction of any SIMD can issue.
  Clock ready() const {
    const auto depth = static_cast<size_t>(f_.memory_queue);
    return entered_.size() < depth ? 0 : clock(entered_[entered_.size() - depth]);
  }
  // Whether the queue is held up by bytes in flight, not by addresses.
  bool full() const { return full_; }

  // Issues an instruction of these lines, whose numbers begin at `first`; returns when it is
  // complete. Stores need no place in L1.
  Clock issue(Clock now, std::span<const Line> lines, uint32_t first, uint32_t lane_bytes,
              bool store) {
    address_ = std::max<double>(address_, now) +
               (lane_bytes > 4 ? f_.address_clocks_wide : f_.address_clocks_dword);
    double enter = address_, done = 0, bytes[3] = {};
    missed_.clear();
    for (const Line& line : lines) {
      const uint32_t number = first + line.number;
      if (!store && held(number)) {
        done = std::max(done, arrival_[number].clock);
        continue;
      }
      bytes[static_cast<int>(line.level)] += kLine;
      missed_.push_back({number, line.level});
      if (!store) arrival_[number].fetched = ++fetched_;
    }
    const double far = bytes[static_cast<int>(Level::memory)], all = bytes[0] + bytes[1] + bytes[2];
    if (!store) {
      while (!flight_.empty() && in_flight_ + all > f_.l1_bytes) {
        enter = std::max(enter, flight_.top().done);
        in_flight_ -= flight_.top().bytes;
        flight_.pop();
      }
      in_flight_ += all;
    }
    full_ = enter > address_;
    address_ = enter;
    entered_.push_back(enter);
    const double moved = store ? std::min<double>(all, lane_bytes * kLanes) : all;
    l2_ = std::max(l2_, enter) + moved / f_.l2_bytes;
    memory_ = std::max(memory_, enter) + far / f_.memory_bytes;
    const double arrives[] = {l2_ + f_.loaded_latency, l2_ + f_.l2_latency,
                              std::max(l2_, memory_) + f_.memory_latency};
    for (const Missed& m : missed_) {
      const double then = arrives[static_cast<int>(m.level)];
      done = std::max(done, then);
      if (!store) arrival_[m.number].clock = then;
    }
    for (int level = 0; !store && level < 3; ++level)
      if (bytes[level] != 0) flight_.push({arrives[level], bytes[level]});
    return clock(std::max(done, enter + f_.l1_latency));
  }

 private:
  static constexpr double kLine = 128;
  struct Load {
    double done, bytes;
    bool operator>(const Load& o) const { return done > o.done; }
  };
  struct Missed {
    uint32_t number;
    Level level;
  };
  // Of a line: as which one of all it was fetched last, from 1 on, and when it arrives.
  struct Arrival {
    uint64_t fetched = 0;
    double clock = 0;
  };
  // Whether L1 has the line, or waits for it: it keeps those that were fetched last.
  bool held(uint32_t number) const {
    const uint64_t fetched = arrival_[number].fetched;
    return fetched && static_cast<double>(fetched_ - fetched) * kLine < f_.l1_bytes;
  }
  static Clock clock(double t) { return static_cast<Clock>(std::ceil(t)); }

  const Figures& f_;
  double address_ = 0, l2_ = 0, memory_ = 0, in_flight_ = 0;
  bool full_ = false;
  uint64_t fetched_ = 0;
  std::vector<Arrival> arrival_;  // by number
  std::vector<Missed> missed_;    // of an instruction
  std::vector<double> entered_;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> flight_;
};

}  // namespace emu::model
