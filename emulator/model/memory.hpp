// Vector memory of a CU: a queue of instructions, L1 with the bytes in flight, L2 and memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <vector>

#include "model/cache.hpp"
#include "model/figures.hpp"
#include "model/lds.hpp"

namespace emu::model {

class Memory {
 public:
  explicit Memory(const Figures& f) : f_(f) {}

  // When the next instruction of any SIMD can issue.
  Clock ready() const {
    const auto depth = static_cast<size_t>(f_.memory_queue);
    return entered_.size() < depth ? 0 : clock(entered_[entered_.size() - depth]);
  }
  // Whether the queue is held up by bytes in flight, not by addresses.
  bool full() const { return full_; }

  // Issues one of so many lines; returns when it is complete. Without `found` all lines take as
  // long as on a chip that is loaded. Stores need no place in L1.
  Clock issue(Clock now, uint32_t lines, const Found* found, uint32_t lane_bytes, bool store) {
    const double l2 = kLine * (found ? found->l2 : lines),
                 far = kLine * (found ? found->memory : 0);
    address_ = std::max<double>(address_, now) +
               (lane_bytes > 4 ? f_.address_clocks_wide : f_.address_clocks_dword);
    double enter = address_;
    if (!store) {
      while (!flight_.empty() && in_flight_ + l2 + far > f_.l1_bytes) {
        enter = std::max(enter, flight_.top().done);
        in_flight_ -= flight_.top().bytes;
        flight_.pop();
      }
      in_flight_ += l2 + far;
    }
    full_ = enter > address_;
    address_ = enter;
    entered_.push_back(enter);
    l2_ = std::max(l2_, enter) + (l2 + far) / f_.l2_bytes;
    memory_ = std::max(memory_, enter) + far / f_.memory_bytes;
    double done = enter + f_.l1_latency;
    const auto fetch = [&](double bytes, double then) {
      if (bytes == 0) return;
      done = std::max(done, then);
      if (!store) flight_.push({then, bytes});
    };
    fetch(l2, l2_ + (found ? f_.l2_latency : f_.loaded_latency));
    fetch(far, std::max(l2_, memory_) + f_.memory_latency);
    return clock(done);
  }

 private:
  static constexpr double kLine = 128;
  struct Load {
    double done, bytes;
    bool operator>(const Load& o) const { return done > o.done; }
  };
  static Clock clock(double t) { return static_cast<Clock>(std::ceil(t)); }

  const Figures& f_;
  double address_ = 0, l2_ = 0, memory_ = 0, in_flight_ = 0;
  bool full_ = false;
  std::vector<double> entered_;
  std::priority_queue<Load, std::vector<Load>, std::greater<>> flight_;
};

}  // namespace emu::model
