// Messages of the checks that end no launch, stored for hipgemm_emulator_note().
#pragma once

#include <cstdint>
#include <string>

#include "core/wave.hpp"

namespace emu {

enum class NoteKind : uint32_t { advice, same_value, count };

// Adds a note about instruction `i` of the wave; the first of its kind in each launch is stored.
void note(Wave& w, const Inst* i, NoteKind kind, const std::string& what);

}  // namespace emu
