// The counters of launches: totals, and a record of each of the latest.
#pragma once

#include <array>
#include <deque>
#include <mutex>
#include <optional>
#include <string>

#include "core/launch.hpp"

namespace rt {

struct Registers {
  uint32_t vgprs = 0, agprs = 0, sgprs = 0;
};

struct LaunchRecord {
  std::string kernel;
  std::array<uint32_t, 3> workgroups{}, workgroup_size{};
  Registers registers;           // as the compiler counts them: vgprs include agprs
  uint32_t allocated_vgprs = 0;  // of a wave
  uint32_t lds_bytes = 0;        // of a workgroup, dynamic ones included
  uint32_t private_bytes = 0;    // of a lane, as the kernel requests them
  emu::Counters counters;
};

class LaunchLog {
 public:
  void add(const emu::Launch& launch, const Registers& registers, const emu::Counters& counters);
  emu::Counters totals() const;
  // The launch of that number, counted from 0 since the last reset; null if it was not yet, or is
  // older than the kKept latest.
  std::optional<LaunchRecord> launch(uint64_t number) const;
  void reset();

  static constexpr size_t kKept = 1024;

 private:
  mutable std::mutex mutex_;
  emu::Counters totals_;
  std::deque<LaunchRecord> kept_;
  uint64_t dropped_ = 0;
};

}  // namespace rt
