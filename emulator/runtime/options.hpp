// The environment variables, read once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/arch.hpp"

namespace rt {

struct Options {
  // HIPGEMM_EMULATOR_DEVICES of them, and which of these are visible, in the order of their
  // numbers.
  std::vector<int> devices{0};
  std::string hidden_by;  // why there are fewer than that: variable and value
  // HIPGEMM_EMULATOR_DEVICE_BYTES: memory of each. By default what the host can give at the start,
  // if that is less than the architecture's has.
  uint64_t device_bytes = emu::arch().memory_bytes;
  bool host_bound = false;  // device_bytes is the host's, shared by all devices
  bool late = true;         // HIPGEMM_EMULATOR_ASYNC=late|eager
  bool verbose = false;     // HIPGEMM_EMULATOR_VERBOSE
  std::string error;        // what is wrong with one of these; "" if nothing is
};

const Options& options();

// The identity of a device, as hipDeviceGetUuid gives it: 16 characters.
std::string uuid_of(int physical);

}  // namespace rt
