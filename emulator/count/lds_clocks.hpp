// How long the LDS data port is busy with one access of a wave.
#pragma once

#include <cstdint>

#include "check/access.hpp"

namespace emu::count {

struct LdsClocks {
  uint64_t data = 0;      // without conflicts
  uint64_t conflict = 0;  // on top of these
};

LdsClocks lds_clocks(const check::AccessPart& part);

}  // namespace emu::count
