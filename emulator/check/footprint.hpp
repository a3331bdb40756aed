// Which registers an instruction reads and writes.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "isa/decoded.hpp"

namespace emu::check {

inline bool is_vector(Operand o) { return o >= kVgpr && o < kNoOperand; }

// The role of an operand, as far as rules differ.
enum class Role : uint8_t {
  source0,  // src0..src2 of an ALU operation, A, B, C of MFMA
  source1,
  source2,
  scale,    // of MFMA
  old,      // the destination, where some of it is kept or it is also a source
  mask,     // SGPR pair of lane bits: carry in, the selector of v_cndmask
  lane,     // lane number of v_readlane and v_writelane
  address,  // VGPRs of a memory instruction; its scalar base, offset and descriptor
  data,     // stored
  implied,  // VCC, EXEC, M0, not named in the text
  result,
  result2,
};

// Consecutive registers. Vector ones are numbered in the wave's unified file, scalar ones as in
// Wave::s (VCC 106, M0 124, EXEC 126).
struct Registers {
  uint16_t first = 0;
  uint8_t count = 0;
  Role role{};
};

template <int kMost>
struct RegisterList {
  std::array<Registers, kMost> item;
  uint8_t size = 0;
  const Registers* begin() const { return item.data(); }
  const Registers* end() const { return item.data() + size; }
  void add(uint16_t first, int count, Role role) {
    if (size < kMost) item[size++] = {first, static_cast<uint8_t>(count), role};
  }
  const Registers* find(Role role) const {
    for (const Registers& r : *this)
      if (r.role == role) return &r;
    return nullptr;
  }
};

struct Footprint {
  RegisterList<6> vector_reads, scalar_reads;
  RegisterList<2> vector_writes;
  RegisterList<4> scalar_writes;
  bool reads_scc = false, writes_scc = false;
  bool obeys_exec = false;  // only active lanes read or write
};

// `accum_offset` is where AGPRs begin in the unified file.
Footprint footprint(const Decoded& d, uint32_t accum_offset);

// Registers of operand A (0) or B (1) of an MFMA: those of f8f6f4 depend on the element format.
int matrix_registers(const Decoded& d, int operand);

// "reads v[0:3] s4 scc writes v8": for tests and reports. AGPRs are those from accum_offset on.
std::string describe(const Footprint& f, uint32_t accum_offset);

}  // namespace emu::check
