// VOP3P: packed operations.
#include "isa/lanes.hpp"

namespace emu::EMU_NS {

void add_vop3p(Semantics&) {}

}  // namespace emu::EMU_NS
