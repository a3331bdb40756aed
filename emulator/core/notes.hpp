// Messages of the checks: findings; notes, which end no launch; and conflicts, which are counted.
#pragma once

#include <cstdint>
#include <string>

#include "core/wave.hpp"

namespace emu {

struct Decoded;

enum class NoteKind : uint32_t { advice, same_value, count };

// Adds a note about instruction `i` of the wave; the first of its kind in each launch is stored.
void note(Wave& w, const Inst* i, NoteKind kind, const std::string& what);

// Adds a finding of a check, unless it has one about `i` already; false if the launch ends with it.
bool finding(Wave& w, const Inst* i, const char* check, const std::string& what);

// Adds to the file of findings what an LDS instruction took in a launch, conflicts included.
void record_conflicts(const LaunchContext& launch, const Decoded& d, uint64_t executions,
                      uint64_t clocks, uint64_t conflicts);

}  // namespace emu
