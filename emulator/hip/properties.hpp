// The parameters of an MI355X, for properties, attributes and launch checks.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/options.hpp"

namespace hip {

constexpr int kVersion = 70200000;  // HIP 7.2
constexpr char kDeviceName[] = "AMD Instinct MI355X (hipgemm emulator)";
constexpr int kMajor = 9, kMinor = 5;
constexpr int kComputeUnits = 256, kXccs = 8, kSimdsPerCu = 4;
constexpr int kWaveSize = 64, kWavesPerSimd = 8, kWavesPerCu = kSimdsPerCu * kWavesPerSimd;
constexpr int kVgprsPerSimd = 512, kVgprGranule = 8;  // of 64 lanes each
constexpr int kMaxThreads = 1024;                     // of a workgroup
constexpr int kMaxThreadsPerCu = kWavesPerCu * kWaveSize;
constexpr uint64_t kMaxGrid[3] = {0x7fffffff, 65536, 65536};
constexpr int kLdsBytes = 160 << 10, kLdsGranule = 1280;
constexpr int kRegistersPerBlock = 65536;
constexpr int kClockKhz = 2400000, kWallClockKhz = 100000;
constexpr int kMemoryClockKhz = 2000000, kMemoryBusBits = 8192;
constexpr int kL2Bytes = 4 << 20;  // of one XCD
constexpr int kTextureAlign = 256, kPitchAlign = 256;
constexpr uint64_t kMaxPitch = 0x7fffffff;

// The architecture with its features, as code objects and properties name it.
inline std::string target() {
  const std::string& arch = rt::options().arch;
  return arch.find(':') == std::string::npos ? arch + ":sramecc+:xnack-" : arch;
}

}  // namespace hip
