// Modes that change what later instructions do: s_set_gpr_idx_on adds M0 to their register numbers,
// s_setvskip skips vector instructions. Only in programs that use them does an instruction of the
// machine's precede each that they may change.
#pragma once

#include "core/inst.hpp"
#include "isa/decoded.hpp"

namespace emu {

class Program;

bool is_vector(const Decoded& d);      // what s_setvskip skips
bool takes_indices(const Decoded& d);  // what s_set_gpr_idx_on changes

// They precede an instruction, which ends `length` elements after them.
Inst skip_prefix(int length);
Inst index_prefix(Program& program, const Decoded& d, int length);

}  // namespace emu
