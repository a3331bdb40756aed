// The environment variables of the machine, read at every launch.
#pragma once

#include <cstdint>
#include <string>

namespace emu {

enum class MemoryMode : uint8_t { late, early, random, late_vm, late_lgkm };
enum class WaveOrder : uint8_t { forward, reverse, random, lockstep };

struct Options {
  // HIPGEMM_EMULATOR_MEMORY=late|early|random[:seed]|late-vm|late-lgkm: when memory operations take
  // effect: as late as the waits allow, at once, or some time between; or late for one of the
  // counters and at once for the other, which produces orders that neither extreme does.
  MemoryMode memory = MemoryMode::late;
  uint64_t memory_seed = 1;
  // HIPGEMM_EMULATOR_WAVES=forward|reverse|random[:seed]|lockstep: order of the workgroups, and of
  // the waves of one between barriers; random also changes from wave to wave at random
  // instructions, lockstep after each.
  WaveOrder waves = WaveOrder::forward;
  uint64_t wave_seed = 1;
  unsigned threads = 1;  // HIPGEMM_EMULATOR_THREADS, default all cores
  uint64_t budget = 0;   // HIPGEMM_EMULATOR_BUDGET: wave instructions per launch
  size_t findings = 1;   // HIPGEMM_EMULATOR_FINDINGS: of checks, after which a launch ends
  std::string error;     // what is wrong with one of these; "" if nothing is
};

// A repeatable sequence (splitmix64).
inline uint64_t next_random(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

Options read_options();
// What is wrong with HIPGEMM_EMULATOR_CPU, which is read once; "" if nothing is.
const std::string& cpu_fault();
// The index in the launch of the workgroup that is started as the nth of `count`.
uint64_t nth_workgroup(const Options& options, uint64_t n, uint64_t count);

}  // namespace emu
