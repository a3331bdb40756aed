#include "core/queues.hpp"

#include "core/machine.hpp"

namespace emu {

bool land_some(Wave& w) {
  switch (w.launch->options.memory) {
    case MemoryMode::early:
      return wait_vm(w, 0) && wait_lgkm(w, 0);
    case MemoryMode::late_vm:
      return wait_lgkm(w, 0);
    case MemoryMode::late_lgkm:
      return wait_vm(w, 0);
    default:
      break;
  }
  const uint64_t r = next_random(w.random);
  if ((r & 1) && !wait_vm(w, (r >> 8 & 0xffff) % (w.vm.count + 1u))) return false;
  if (r & 2) {
    const uint64_t keep = (r >> 24 & 0xffff) % (w.ds.count + 1u);
    while (w.ds.count > keep)
      if (!land_one(w, w.ds.pop())) return false;
  }
  if ((r & 12) == 12) {
    while (w.smem.count)
      if (!land_one(w, w.smem.pop())) return false;
    w.smem_weight = 0;
  }
  return true;
}

}  // namespace emu
