// Parameters of the devices that do not depend on the architecture, for properties, attributes and
// launch checks. The others: core/arch.hpp.
#pragma once

#include <cstdint>
#include <string>

#include "core/arch.hpp"
#include "core/mutant.hpp"

namespace hip {

constexpr int kVersion = 70200000;  // HIP 7.2
constexpr int kSimdsPerCu = 4;
constexpr int kWaveSize = 64, kWavesPerSimd = 8, kWavesPerCu = kSimdsPerCu * kWavesPerSimd;
constexpr int kVgprsPerSimd = 512, kVgprGranule = 8;  // of 64 lanes each
constexpr int kMaxThreads = 1024;                     // of a workgroup
constexpr int kMaxThreadsPerCu = kWavesPerCu * kWaveSize;
constexpr uint64_t kMaxGrid[3] = {0x7fffffff, 65536, 65536};
constexpr int kRegistersPerBlock = 65536;
constexpr int kWallClockKhz = 100000;
constexpr int kL2Bytes = 4 << 20;  // of one XCD
constexpr int kTextureAlign = 256, kPitchAlign = 256;
constexpr uint64_t kMaxPitch = 0x7fffffff;

// The architecture with its features, as code objects and properties name it.
inline std::string target() {
  const std::string& name = emu::arch_name();
  return name.find(':') == std::string::npos ? name + ":sramecc+:xnack-" : name;
}

inline std::string device_name() {
  const emu::Mutant* const mutant = emu::mutant();
  return std::string(emu::arch().device) + " (hipgemm emulator" +
         (mutant ? ", mutant " + std::string(mutant->name) : "") + ")";
}

}  // namespace hip
