// Times recorded workgroups on one CU: when each instruction of each wave issues, and what it
// waited for. Instructions of a wave issue in order.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "model/cache.hpp"
#include "model/figures.hpp"
#include "model/lds.hpp"
#include "model/record.hpp"

namespace emu::model {

// What an instruction waits for.
enum class Wait : uint8_t {
  matrix,      // the matrix pipe
  shadow,      // the registers that an MFMA reads, or another vector instruction
  dependency,  // a result
  vmcnt,
  lgkmcnt,
  memory_queue,
  l1,  // bytes in flight
  lds_queue,
  lds_banks,
  barrier,
  arbitration,  // another wave's instruction issues
  fetch,        // after a branch
  count
};
inline constexpr int kWaits = static_cast<int>(Wait::count);
extern const char kWaitNames[];  // separated by blanks

struct OpTimes {
  uint64_t issues = 0, returned = 0;      // bytes, of LDS
  std::array<uint64_t, kWaits> waited{};  // clocks
};
struct Issue {
  uint32_t wave, op;
  Clock clock;
};

struct Times {
  std::vector<OpTimes> op;   // as Recording::op
  std::vector<Issue> issue;  // in the order of time
  Clock end = 0;
  std::string error;  // why there are none; "" if there are
};

// So many workgroups share the CU: the first of those recorded, or copies if there are fewer:
// these touch other lines.
Times replay(const Recording& recording, const FoundLines& found, int resident,
             const Figures& figures);

}  // namespace emu::model
