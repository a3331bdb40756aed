#include "check/race_order.hpp"

#include <algorithm>
#include <cstring>

namespace emu::check {
namespace {

// The number of accesses stored per workgroup.
constexpr size_t kMemory = size_t{1} << 22;

}  // namespace

bool Order::start_group() {
  const bool goes_on = next_ < kMaxAccess / 2;
  if (!goes_on) next_ = 1;
  barriers_ = 0;
  first_ = next_;
  forgotten_ = ordered_ = next_ - 1;
  flight_.fill({});
  for (auto& counters : before_)
    for (auto& of : counters) std::fill_n(of, kMaxWaves, next_ - 1);
  for (auto& of : released_) std::fill_n(of, kMaxWaves, next_ - 1);
  return goes_on;
}

AccessId Order::issue(uint32_t wave, const Side& side, bool atomic) {
  if (next_ >= kMaxAccess) return 0;
  if (next_ - first_ >= issued_.size()) {
    const size_t size = issued_.size();
    if (size < kMemory) {
      std::vector<Issued> larger(2 * size);
      for (AccessId id = first_; id < next_; ++id)
        larger[id & (2 * size - 1)] = issued_[id & (size - 1)];
      issued_ = std::move(larger);
    } else {
      forgotten_ = std::max(forgotten_, first_++);
    }
  }
  const AccessId id = next_++;
  issued_[id & (issued_.size() - 1)] = {&side, barriers_, static_cast<uint8_t>(wave), atomic};
  InFlight& f = flight_[wave];
  const auto vm = [&] {
    if (f.vm.count == kVmMax) f.vm.pop();  // a full counter stalls the issue
    f.vm.push(id);
  };
  const auto lds = [&] {
    if (f.lds.count == kLgkmMax) f.lds.pop();
    f.lds.push(id);
  };
  switch (side.op->family) {
    case Family::SMEM:
      if (!f.scalar) f.scalar = id;
      break;
    case Family::DS:
      lds();
      break;
    case Family::FLAT:
      lds();
      [[fallthrough]];
    default:
      vm();
  }
  return id;
}

void Order::wait(uint32_t wave, uint32_t vm, uint32_t lgkm) {
  InFlight& f = flight_[wave];
  while (f.vm.count > vm) f.vm.pop();
  while (f.lds.count > lgkm) f.lds.pop();
  if (lgkm == 0) f.scalar = 0;
}

AccessId Order::landed(uint32_t wave, Counter counter) const {
  const InFlight& f = flight_[wave];
  switch (counter) {
    case Counter::vm:
      return f.vm.count ? f.vm.front() - 1 : next_ - 1;
    case Counter::lds:
      return f.lds.count ? f.lds.front() - 1 : next_ - 1;
    case Counter::scalar:
      return f.scalar ? f.scalar - 1 : next_ - 1;
  }
  return 0;
}

void Order::barrier() {
  ++barriers_;
  AccessId now[kCounters][kMaxWaves];
  ordered_ = next_ - 1;
  for (int c = 0; c < kCounters; ++c)
    for (uint32_t w = 0; w < waves_; ++w) {
      now[c][w] = landed(w, static_cast<Counter>(c));
      ordered_ = std::min(ordered_, now[c][w]);
    }
  forgotten_ = std::max(forgotten_, ordered_);
  for (uint32_t v = 0; v < waves_; ++v)
    for (int c = 0; c < kCounters; ++c) std::copy_n(now[c], waves_, before_[v][c]);
}

void Order::release(uint32_t wave) {
  for (int c = 0; c < kCounters; ++c) released_[c][wave] = landed(wave, static_cast<Counter>(c));
}

void Order::acquire(uint32_t wave) {
  for (int c = 0; c < kCounters; ++c)
    for (uint32_t w = 0; w < waves_; ++w)
      before_[wave][c][w] = std::max(before_[wave][c][w], released_[c][w]);
}

}  // namespace emu::check
