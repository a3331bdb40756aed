#include "isa/exec.hpp"

namespace emu::EMU_NS {

void install(Semantics& t, const Arch& of) {
  add_sop(t);
  add_branch(t);
  add_smem(t);
  add_buffer(t);
  add_typed(t);
  add_flat(t);
  add_ds(t);
  add_mfma(t, of);
  add_vop1(t);
  add_vop2(t);
  add_vop3(t);
  add_vop3p(t);
  add_vopc(t);
  add_convert(t, of);
}

}  // namespace emu::EMU_NS
