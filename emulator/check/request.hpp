// Which checks a launch runs under.
#pragma once

#include <cstdint>
#include <string>

namespace emu::check {

// kAdvice: hazards that hardware waits for by itself are findings too, not notes.
enum : uint32_t {
  kRace = 1,
  kUninit = 2,
  kBounds = 4,
  kHazard = 8,
  kAdvice = 16,
  kAllChecks = kRace | kUninit | kBounds | kHazard,
};

struct Request {
  uint32_t checks = 0;
  std::string error;  // an unknown name; then there are no checks
};

Request parse(const char* text);

// The last value of hipgemm_emulator_set_check, or HIPGEMM_EMULATOR_CHECK.
Request requested();

}  // namespace emu::check
