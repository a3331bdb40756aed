// What the environment says, read once.
#pragma once

#include <cstdint>
#include <string>

namespace rt {

struct Options {
  int devices = 1;                              // HIPGEMM_EMULATOR_DEVICES
  uint64_t device_bytes = uint64_t{288} << 30;  // HIPGEMM_EMULATOR_DEVICE_BYTES: HBM of each
  std::string arch = "gfx950";                  // HIPGEMM_EMULATOR_ARCH
  bool late = true;                             // HIPGEMM_EMULATOR_ASYNC=late|eager
  bool verbose = false;                         // HIPGEMM_EMULATOR_VERBOSE
  std::string error;                            // what is wrong with one of these; "" if nothing is
};

const Options& options();

}  // namespace rt
