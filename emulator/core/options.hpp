// What the environment asks of the machine, read once per process.
#pragma once

#include <cstdint>
#include <string>

namespace emu {

struct Options {
  bool late = true;      // HIPGEMM_EMULATOR_MEMORY=late|early
  unsigned threads = 1;  // HIPGEMM_EMULATOR_THREADS, default all cores
  uint64_t budget = 0;   // HIPGEMM_EMULATOR_BUDGET: wave instructions per launch
  std::string cpu;       // HIPGEMM_EMULATOR_CPU: level to force, "" for the best
};

const Options& options();

}  // namespace emu
