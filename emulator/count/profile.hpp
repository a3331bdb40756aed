// A profile of the emulator by instruction class. Like the counting of addresses it attaches as a
// sanitizer does. Times are not repeatable, so this is no counter.
#pragma once

#include <memory>

#include "check/check.hpp"

namespace emu::count {

// The last value of hipgemm_emulator_set_profiling.
bool profiling();

// Of one host thread.
std::unique_ptr<check::Check> make_profiler();

}  // namespace emu::count
