// The happens-before order within a workgroup, for the race check.
//
// An access of a wave happens between its issue and its landing, the wait that forces it. Barriers
// order accesses of different waves: every wave passes the same barriers, so x of one wave comes
// before y of another if and only if x has landed before a barrier that y was issued after. Checks
// are made when y is issued. What was issued before y and has not landed by the last barrier is
// then unordered with it; what is issued later is checked at its own issue. So all that needs
// to be known is which accesses had landed at the last barrier. Each counter returns in order, so
// that is one number per wave and counter.
//
// Waits are evaluated here, not taken from the machine, since the machine may let an access land
// earlier than the wait that the program relies on.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "check/check.hpp"

namespace emu::check {

// The counters that guarantee landing: vmcnt; lgkmcnt for LDS, in order; lgkmcnt for scalar loads.
enum class Counter : uint8_t { vm, lds, scalar };
inline constexpr int kCounters = 3;

// Identifies an access and the lane, so that later ones compare greater.
using AccessId = uint32_t;
inline constexpr AccessId kMaxAccess = (1u << 25) - 1;

struct Issued {
  const Side* side = nullptr;
  uint32_t barriers = 0;  // passed when it was issued
  uint8_t wave = 0;
  bool atomic = false;
};

class Order {
 public:
  void attach(uint32_t waves) { waves_ = waves; }
  // Forgets everything. False if the numbers of accesses start again: shadows must be empty then.
  bool start_group();

  // 0 when the numbers are used up.
  AccessId issue(uint32_t wave, const Side& side, bool atomic);
  void wait(uint32_t wave, uint32_t vm, uint32_t lgkm);
  void end(uint32_t wave) { wait(wave, 0, 0); }
  void barrier();
  // Atomic operations order accesses too. Which reads from which is not tracked: each counts as
  // reading from all before it, so that ordered accesses are never reported.
  void release(uint32_t wave);
  void acquire(uint32_t wave);

  uint32_t barriers() const { return barriers_; }
  // Null for an access so old that it is ordered before everything to come.
  const Issued* find(AccessId id) const { return id > forgotten_ ? record(id) : nullptr; }
  // Null for one of a workgroup before, or far too old.
  const Issued* record(AccessId id) const {
    return id >= first_ && id < next_ ? &issued_[id & (issued_.size() - 1)] : nullptr;
  }
  AccessId first() const { return first_; }
  AccessId next() const { return next_; }
  // Up to and including this access, those of `of` that `counter` counts come before what `wave`
  // issues now.
  AccessId before(uint32_t wave, Counter counter, uint32_t of) const {
    return before_[wave][static_cast<int>(counter)][of];
  }
  // All accesses up to this one come before everything that is issued now.
  AccessId ordered() const { return ordered_; }
  // Up to and including this access, those of the wave have landed.
  AccessId landed(uint32_t wave, Counter counter) const;

 private:
  struct Fifo {
    std::array<AccessId, 64> id;
    uint8_t head = 0, count = 0;
    void push(AccessId x) { id[(head + count++) & 63] = x; }
    void pop() { head = (head + 1) & 63, --count; }
    AccessId front() const { return id[head]; }
  };
  struct InFlight {
    Fifo vm, lds;
    AccessId scalar = 0;  // the first
  };

  uint32_t waves_ = 0, barriers_ = 0;
  AccessId next_ = 1, first_ = 1;  // the oldest that is in issued_
  AccessId forgotten_ = 0, ordered_ = 0;
  std::vector<Issued> issued_{1024};  // by id; the size is a power of two
  std::array<InFlight, kMaxWaves> flight_;
  AccessId before_[kMaxWaves][kCounters][kMaxWaves] = {};
  AccessId released_[kCounters][kMaxWaves] = {};
};

}  // namespace emu::check
