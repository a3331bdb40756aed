// Counters that depend on addresses. They attach to the machine as a sanitizer does, so that they
// cost nothing when disabled.
#pragma once

#include <memory>

#include "check/check.hpp"

namespace emu::count {

// HIPGEMM_EMULATOR_COUNT, or the last value of hipgemm_emulator_set_counting.
bool requested();

struct Launch;  // the sums of a launch's host threads
std::shared_ptr<Launch> start();
// Once the launch has ended: adds its LDS instructions that had bank conflicts to the file of
// findings.
void report_conflicts(const Launch& launch, const LaunchContext& context);
// The counter of one host thread.
std::unique_ptr<check::Check> make_counter(std::shared_ptr<Launch> launch);

}  // namespace emu::count
