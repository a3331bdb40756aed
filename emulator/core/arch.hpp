// What differs between the architectures that are emulated. HIPGEMM_EMULATOR_ARCH chooses one for
// the process; its tables of opcodes and of semantics are made from this, once.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace emu {

struct Arch {
  const char* name;
  const char* device;  // as HIP names it
  uint16_t pci_device;
  int major, minor;
  int compute_units, xccs;
  int clock_khz, memory_clock_khz, memory_bus_bits;
  uint64_t memory_bytes;
  uint32_t lds_bytes, lds_granule;
  uint32_t lds_banks;      // of wide loads
  uint32_t lds_dma_bytes;  // the most that one lane loads into LDS at once
  uint32_t absent;         // flags (isa/decoded.hpp) of the instructions that it does not have
  bool fnuz;               // 8-bit floats: FNUZ, else OCP
  // Wait states (check/hazard.cpp).
  int f64_passes;   // of v_mfma_f64_16x16x4
  int after_xdl;    // more than the passes imply, after a result of four passes or more
  bool xdl_advice;  // which rules the hardware keeps by itself is known
};

// All that are known.
std::span<const Arch> archs();
// The one in use. An unknown one is like gfx950.
const Arch& arch();
// Its name as the variable has it: "gfx942", "gfx950:sramecc+:xnack-".
const std::string& arch_name();

}  // namespace emu
