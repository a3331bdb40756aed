// A lowered instruction: a function and its operands.
#pragma once

#include <cstdint>

namespace emu {

struct Wave;
struct Inst;
struct Pending;

// Executes one instruction and returns the next; null ends its time slice (barrier, end, fault).
using Handler = const Inst* (*)(Wave&, const Inst*);
// Lets an outstanding memory operation take effect. False after a fault.
using Landing = bool (*)(Wave&, const Pending&);

// Operand fields are indices into Wave::s (scalars: SGPRs, constants) or Wave::v (registers of the
// unified vector file). Their meaning is defined by an instruction's lowering and handler.
struct Inst {
  Handler fn = nullptr;
  union {
    const Inst* target;  // branches
    Landing land;        // memory
    uint64_t wide;
  };
  uint16_t d = 0;                // destination
  uint16_t a = 0, b = 0, c = 0;  // sources
  int32_t imm = 0;               // offset, immediate
  uint16_t x = 0, y = 0;         // modifiers, second destination, flags
  Inst() : wide(0) {}
};
static_assert(sizeof(Inst) == 32);

}  // namespace emu
