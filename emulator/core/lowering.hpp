// Lowers decoded instructions to executable ones: the interface for the semantics files.
#pragma once

#include <cstdint>

#include "core/inst.hpp"
#include "core/wave.hpp"
#include "isa/decoded.hpp"

namespace emu {

class Program;

// One instruction being lowered. Every register index, tuple and constant is resolved and checked
// here, so that handlers need no checks. After fail() the instruction is one that faults when it
// is executed, and the values returned are only safe placeholders.
class Lowering {
 public:
  Lowering(Program& program, const Decoded& d) : program_(program), decoded_(d) {}

  static bool is_vgpr(Operand o) { return o >= kVgpr && o < kNoOperand; }

  // Slot in Wave::s of a scalar source of `dwords` dwords; constants as `type` reads them.
  uint16_t scalar(Operand o, const OperandType& type);
  uint16_t scalar(Operand o, int dwords = 1);  // integers
  // Slot of a scalar destination.
  uint16_t scalar_dst(Operand o, int dwords = 1);
  // First register in Wave::v of a vector operand of `dwords` dwords.
  uint16_t vector(Operand o, int dwords = 1);
  // Slot of a constant.
  uint16_t constant(uint32_t value) { return constants(&value, 1); }
  uint16_t constant64(uint64_t value);
  // Marks an instruction that ends straight-line code, and names a static branch target, which is
  // filled into Inst::target.
  void ends_block() { ends_block_ = true; }
  void branch_to(uint64_t address) { branches_ = true, branch_ = address; }

  void fail(const char* why) {
    if (!failure_) failure_ = why;
  }

  uint64_t next_address() const { return decoded_.address + decoded_.size; }

  // For the program.
  const char* failure() const { return failure_; }
  bool needs_specials() const { return specials_; }
  bool block_ended() const { return ends_block_; }
  bool branches() const { return branches_; }
  uint64_t branch() const { return branch_; }

 private:
  uint16_t constants(const uint32_t* values, int n);

  Program& program_;
  const Decoded& decoded_;
  const char* failure_ = nullptr;
  bool specials_ = false, ends_block_ = false, branches_ = false;
  uint64_t branch_ = 0;
};

// The semantics of one opcode: how it is lowered, and the code that is lowered to. What `handler`
// and the loops mean is defined by the lowering function and the file that fills the table.
struct Semantic;
using LowerFunction = void (*)(Lowering&, const Decoded&, const Semantic&, Inst&);
struct Semantic {
  LowerFunction lower = nullptr;  // null where semantics are missing
  Handler handler = nullptr;
  void (*loop)() = nullptr;
  void (*clamped)() = nullptr;  // the loop under the clamp bit, where that is not a range of [0, 1]
};

// One table per CPU level and architecture.
struct Semantics {
  Semantic of[static_cast<int>(Op::count)];
  const char* level = nullptr;
};

// The table for this CPU and arch(); HIPGEMM_EMULATOR_CPU forces a level.
const Semantics& semantics();

}  // namespace emu
