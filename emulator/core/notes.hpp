// Messages of the checks: findings, and notes, which end no launch.
#pragma once

#include <cstdint>
#include <string>

#include "core/wave.hpp"

namespace emu {

enum class NoteKind : uint32_t { advice, same_value, count };

// Adds a note about instruction `i` of the wave; the first of its kind in each launch is stored.
void note(Wave& w, const Inst* i, NoteKind kind, const std::string& what);

// Adds a finding of a check, unless it has one about `i` already; false if the launch ends with it.
bool finding(Wave& w, const Inst* i, const char* check, const std::string& what);

}  // namespace emu
