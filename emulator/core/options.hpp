// What the environment asks of the machine, read at every launch (the CPU level: once).
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

Options read_options();

}  // namespace emu
