// LDS: a queue and a return bus for each two SIMDs, and banks that all share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "model/figures.hpp"
#include "model/record.hpp"

namespace emu::model {

using Clock = uint32_t;

// Lets SIMDs alternate at what they share: one that has just issued lets those that wait go first.
class Alternation {
 public:
  void wait(int simd) { waiting_ |= 1u << simd; }
  void take(int simd) { last_ = simd, waiting_ &= ~(1u << simd); }
  // Whether another one is to go first; it is let go once.
  bool yields(int simd) {
    const uint32_t others = waiting_ & ~(1u << simd);
    if (last_ != simd || !others) return false;
    waiting_ &= ~others;
    return true;
  }

 private:
  uint32_t waiting_ = 0;
  int last_ = -1;
};

class Lds {
 public:
  explicit Lds(const Figures& f) : f_(f) {}

  // When the next instruction of these SIMDs can issue.
  Clock ready(int pair) const {
    const Pair& p = pair_[pair];
    const auto depth = static_cast<size_t>(f_.lds_queue);
    const Clock slot = p.done.size() < depth ? 0 : p.done[p.done.size() - depth];
    return std::max(p.address, slot);
  }
  // Whether banks, not the return bus, hold the queue up.
  bool banks_bind(int pair) const { return pair_[pair].banks_bind; }

  // Issues one; returns when it is complete.
  Clock issue(int pair, Clock now, const Touch& touch, bool writes) {
    Pair& p = pair_[pair];
    p.address = now + static_cast<Clock>(f_.lds_address_clocks);
    settle_writes(now);
    Clock begin = std::max(now, banks_);
    if (writes) begin = std::max(begin, write_port_);
    banks_ = begin + touch.banks;
    const Clock bus = touch.returned / static_cast<Clock>(f_.lds_return_bytes);
    const Clock sent = std::max(begin, p.bus) + bus;
    p.banks_bind = banks_ > sent;
    if (bus) p.bus = std::max(sent, banks_);
    if (writes) write_port_ = banks_;
    Clock done = std::max(banks_, bus ? p.bus : 0) + static_cast<Clock>(f_.lds_latency);
    if (!p.done.empty()) done = std::max(done, p.done.back());
    p.done.push_back(done);
    return done;
  }

  // A load that goes to LDS will write so many bytes then. Calls are in the order of `then`.
  void write_later(Clock then, uint32_t bytes) { later_.push_back({then, bytes}); }

 private:
  struct Pair {
    Clock address = 0, bus = 0;
    bool banks_bind = false;
    std::vector<Clock> done;
  };
  struct Write {
    Clock then;
    uint32_t bytes;
  };

  void settle_writes(Clock now) {
    for (; settled_ < later_.size() && later_[settled_].then <= now; ++settled_) {
      const Write& w = later_[settled_];
      const auto clocks = static_cast<Clock>(w.bytes / f_.dma_write_bytes);
      write_port_ = std::max(write_port_, w.then) + clocks;
      if (f_.dma_blocks_reads != 0) banks_ = std::max(banks_, w.then) + clocks;
    }
  }

  const Figures& f_;
  std::array<Pair, 2> pair_;
  Clock banks_ = 0, write_port_ = 0;
  std::vector<Write> later_;
  size_t settled_ = 0;
};

}  // namespace emu::model
