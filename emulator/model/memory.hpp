// Vector memory of a CU: a queue of instructions, L1 with the bytes in flight, and L2.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

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

  // Issues one; returns when it is complete. Stores need no place in L1.
  Clock issue(Clock now, uint32_t lines, uint32_t lane_bytes, bool store) {
    const double bytes = 128.0 * lines;
    address_ = std::max<double>(address_, now) +
               (lane_bytes > 4 ? f_.address_clocks_wide : f_.address_clocks_dword);
    double enter = address_;
    if (!store) {
      while (in_flight_ > 0 && in_flight_ + bytes > f_.l1_bytes) {
        const Load& oldest = load_[returned_++];
        in_flight_ -= oldest.bytes;
        enter = std::max(enter, oldest.done);
      }
      in_flight_ += bytes;
    }
    full_ = enter > address_;
    address_ = enter;
    entered_.push_back(enter);
    l2_ = std::max(l2_, enter) + bytes / f_.l2_bytes;
    done_ = std::max(done_, l2_ + f_.l2_latency);
    if (!store) load_.push_back({done_, bytes});
    return clock(done_);
  }

 private:
  struct Load {
    double done, bytes;
  };
  static Clock clock(double t) { return static_cast<Clock>(std::ceil(t)); }

  const Figures& f_;
  double address_ = 0, l2_ = 0, done_ = 0, in_flight_ = 0;
  bool full_ = false;
  std::vector<double> entered_;
  std::vector<Load> load_;
  size_t returned_ = 0;
};

}  // namespace emu::model
