// Counts what depends on addresses. It attaches to the machine as a sanitizer does, so that it
// costs nothing while it is off.
#pragma once

#include <memory>

#include "check/check.hpp"

namespace emu::count {

// HIPGEMM_EMULATOR_COUNT, or the last value of hipgemm_emulator_set_counting.
bool requested();

struct Launch;  // what the host threads of a launch gather
std::shared_ptr<Launch> start();
// The counter of one host thread.
std::unique_ptr<check::Check> make_counter(std::shared_ptr<Launch> launch);

}  // namespace emu::count
