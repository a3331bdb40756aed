// What this library has beyond HIP.
#include "hip/api.hpp"

// Why the calling thread's last failed call failed; "" if none did. Valid until its next failure.
HIP_API const char* hipgemm_emulator_last_report() { return rt::last_report(); }

// Totals of all launches that have run since the last reset: waves, wave instructions, MFMAs among
// them, nanoseconds. Fills `n` of them and returns how many there are.
HIP_API int hipgemm_emulator_counters(uint64_t* out, int n) {
  rt::Runtime& runtime = rt::runtime();
  const std::lock_guard lock(runtime.counters_mutex);
  const emu::Counters& c = runtime.counters;
  const uint64_t values[] = {c.waves, c.wave_instructions, c.mfma, c.nanoseconds};
  constexpr int kCount = sizeof values / sizeof *values;
  for (int i = 0; i < n && i < kCount && out; ++i) out[i] = values[i];
  return kCount;
}

HIP_API void hipgemm_emulator_reset_counters() {
  rt::Runtime& runtime = rt::runtime();
  const std::lock_guard lock(runtime.counters_mutex);
  runtime.counters = {};
}

HIP_API const char* hipgemm_emulator_cpu() { return emu::cpu_level(); }
