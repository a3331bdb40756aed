// The lines that recorded workgroups touch, and whether L2 has them.
#pragma once

#include <cstdint>
#include <vector>

#include "model/record.hpp"

namespace emu::model {

// Where a line is that L1 lacks: not known, on a chip that is loaded; in L2; or farther, in the
// memory-side cache or in memory.
enum class Level : uint8_t { loaded, l2, memory };

struct Line {
  uint32_t number;  // of different lines
  Level level;
};

// By workgroup, wave and Trace::line.
struct FoundLines {
  std::vector<std::vector<std::vector<Line>>> group;
  uint32_t different = 0;
};

// With `look`, lines are looked for in the L2 of an XCD that runs all recorded workgroups at once,
// in lockstep: the same memory instruction of each workgroup, then the next. It is empty before.
FoundLines find_lines(const Recording& recording, bool look);

}  // namespace emu::model
