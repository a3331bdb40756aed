// Vector memory of a CU: a queue of instructions, L1 with the bytes in flight, L2, the memory-side
// cache and memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "core/options.hpp"
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
  // complete. A load waits for places in L1 of the lines that have none yet; stores need none.
  Clock issue(Clock now, std::span<const Line> lines, uint32_t first, uint32_t lane_bytes,
              bool store) {
    now_ = std::max<double>(now_, now) +
           (lane_bytes > 4 ? f_.address_clocks_wide : f_.address_clocks_dword);
    const double addressed = now_;
    if (!store)
      make_room(std::ranges::count_if(
          lines, [&](const Line& line) { return !held(arrival_[first + line.number]); }));
    full_ = now_ > addressed;
    entered_.push_back(now_);
    const double each = store ? static_cast<double>(lane_bytes) * kLanes / lines.size() : kLine;
    double done = now_ + f_.l1_latency;
    for (const Line& line : lines) {
      Arrival& arrival = arrival_[first + line.number];
      if (store || !held(arrival)) {
        const double then = ask(line.level, std::min(each, kLine));
        if (!store) arrival = {++fetched_, then}, leave_later(then);
        done = std::max(done, then);
      } else {
        done = std::max(done, arrival.clock);
      }
    }
    return clock(done);
  }

 private:
  static constexpr double kLine = 128;
  static constexpr size_t kStep = 4;  // clocks, of `leaving_`
  // Of a line: as which one of all it was fetched last, from 1 on, and when it arrives.
  struct Arrival {
    uint64_t fetched = 0;
    double clock = 0;
  };

  // Whether L1 has the line, or waits for it: it keeps those that were fetched last.
  bool held(const Arrival& a) const {
    return a.fetched && static_cast<double>(fetched_ - a.fetched) * kLine < f_.l1_bytes;
  }
  // Waits until so many lines more can be in flight.
  void make_room(int64_t lines) {
    const double most = f_.l1_bytes - static_cast<double>(lines) * kLine;
    for (; in_flight_ > 0 && in_flight_ > most; ++left_) {
      if (!leaving_[left_]) continue;
      in_flight_ -= leaving_[left_] * kLine;
      now_ = std::max(now_, static_cast<double>(left_ * kStep));
    }
  }
  // A line is in flight until then.
  void leave_later(double then) {
    const size_t at = std::max(left_, static_cast<size_t>(then) / kStep + 1);
    if (at >= leaving_.size()) leaving_.resize(at + 4096);
    ++leaving_[at];
    in_flight_ += kLine;
  }

  // Asks L2 for a line; returns when it arrives. On a loaded chip lines take all times from that of
  // L2 on, such that the latest of the eight of an instruction takes `loaded_latency` in the mean.
  double ask(Level level, double bytes) {
    l2_ = std::max(l2_, now_) + bytes / f_.l2_bytes;
    if (level == Level::l2) return l2_ + f_.l2_latency;
    const double share = static_cast<double>(next_random(random_) >> 11) * 0x1p-53;  // 0 to 1
    if (level == Level::loaded)
      return l2_ + f_.l2_latency + share * 9 / 8 * (f_.loaded_latency - f_.l2_latency);
    cache_ = std::max(cache_, l2_) + bytes / f_.cache_bytes;
    if (share >= f_.memory_share) return cache_ + f_.cache_latency;
    memory_ = std::max(memory_, now_) + bytes / f_.memory_bytes;
    return std::max(cache_, memory_ + others(bytes)) + f_.memory_latency;
  }
  // How long a request to memory waits for those of other CUs, which ask as often as this one: as
  // in a queue of requests at random times that take equally long.
  double others(double bytes) {
    constexpr double kWindow = 4096;  // clocks
    asked_ = asked_ * std::exp((asked_at_ - now_) / kWindow) + bytes / kWindow;
    asked_at_ = now_;
    const double load = std::min(asked_ / f_.memory_bytes, 0.97);
    return f_.memory_wait * load / (2 * (1 - load));
  }

  static Clock clock(double t) { return static_cast<Clock>(std::ceil(t)); }

  const Figures& f_;
  double now_ = 0;                          // when the last instruction was in L1
  double l2_ = 0, cache_ = 0, memory_ = 0;  // when each is through with what it was asked for
  double asked_ = 0, asked_at_ = 0;         // bytes a clock of memory, and when the last
  uint64_t random_ = 1;
  bool full_ = false;
  std::vector<double> entered_;
  uint64_t fetched_ = 0;
  std::vector<Arrival> arrival_;  // by number
  double in_flight_ = 0;
  std::vector<uint32_t> leaving_;  // lines in flight that arrive, by time
  size_t left_ = 0;                // those before this have left
};

}  // namespace emu::model
