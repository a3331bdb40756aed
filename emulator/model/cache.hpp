// In which cache the lines of recorded workgroups are found, if all of them run on one XCD at once,
// in lockstep: the same memory instruction of each workgroup, then the next. Caches are empty
// before.
#pragma once

#include <cstdint>
#include <vector>

#include "model/record.hpp"

namespace emu::model {

// Lines of one memory instruction.
struct Found {
  uint16_t l1 = 0, l2 = 0, memory = 0;  // memory: the memory-side cache too
};

// By workgroup, wave and Trace::touch. Each workgroup has an L1 of its own.
using FoundLines = std::vector<std::vector<std::vector<Found>>>;
FoundLines find_lines(const Recording& recording);

}  // namespace emu::model
