// HIPGEMM_EMULATOR_MUTANT: the machine differs in one property, to show that a test of it can fail.
// Instructions are changed when a kernel is lowered; without a mutant nothing is.
#pragma once

#include <string>
#include <string_view>

#include "core/inst.hpp"
#include "isa/decoded.hpp"

namespace emu {

struct Mutant {
  std::string_view name;
  bool (*applies)(const Decoded&) = nullptr;  // null: not about instructions
  void (*rewrite)(Decoded&) = nullptr;
  // Handlers of an instruction in front of it, and of one after it.
  Handler before = nullptr, after = nullptr;
};

// The one in use; null if there is none.
const Mutant* mutant();
// Whether it is this one.
bool is_mutant(std::string_view name);
// What is wrong with the variable; "" if nothing is.
std::string mutant_fault();
// Operands of the handlers: the result, sources and address of an instruction.
Inst mutant_step(Handler handler, const Decoded& d, uint32_t accum_offset);

}  // namespace emu
