// vmcnt and lgkmcnt. An instruction in flight takes effect when a wait, or a full counter, forces
// it: as late as the program allows. LDS operations return in order, and so do vector memory
// operations; scalar loads in any order, only a wait for zero guarantees them; FLAT ones are done
// when both counters say so.
#pragma once

#include "core/wave.hpp"

namespace emu {

EMU_INLINE bool land_one(Wave& w, uint8_t slot) {
  Pending& p = w.pending[slot];
  if (--p.waits) return true;
  w.free_slots[w.free_count++] = slot;
  return p.inst->land(w, p);
}

EMU_INLINE bool wait_vm(Wave& w, uint32_t allowed) {
  while (w.vm.count > allowed)
    if (!land_one(w, w.vm.pop())) return false;
  return true;
}

EMU_INLINE bool wait_lgkm(Wave& w, uint32_t allowed) {
  while (w.ds.count > allowed)
    if (!land_one(w, w.ds.pop())) return false;
  if (allowed == 0) {
    while (w.smem.count)
      if (!land_one(w, w.smem.pop())) return false;
    w.smem_weight = 0;
  }
  return true;
}

// A full counter stalls the issue until an operation completes.
EMU_INLINE bool make_room_lgkm(Wave& w, uint32_t weight) {
  if (w.ds.count + w.smem_weight + weight <= kLgkmMax) return true;
  while (w.ds.count && w.ds.count + w.smem_weight + weight > kLgkmMax)
    if (!land_one(w, w.ds.pop())) return false;
  if (w.smem_weight + weight > kLgkmMax) return wait_lgkm(w, 0);
  return true;
}

EMU_INLINE Pending& new_pending(Wave& w, const Inst* i, uint8_t& slot) {
  slot = w.free_slots[--w.free_count];
  Pending& p = w.pending[slot];
  p.inst = i;
  p.exec = w.exec();
  p.waits = 1;
  return p;
}

// The four ways to enter the queues. Each makes room first; false after a fault.
EMU_INLINE bool enter_vm(Wave& w, const Inst* i, Pending*& p, uint8_t& slot) {
  if (w.vm.count >= kVmMax && !wait_vm(w, kVmMax - 1)) return false;
  p = &new_pending(w, i, slot);
  return true;
}
EMU_INLINE const Inst* leave_vm(Wave& w, const Inst* i, uint8_t slot) {
  w.vm.push(slot);
  if (!w.late && !land_some(w)) return nullptr;
  return i + 1;
}
EMU_INLINE bool enter_ds(Wave& w, const Inst* i, Pending*& p, uint8_t& slot) {
  if (!make_room_lgkm(w, 1)) return false;
  p = &new_pending(w, i, slot);
  return true;
}
EMU_INLINE const Inst* leave_ds(Wave& w, const Inst* i, uint8_t slot) {
  w.ds.push(slot);
  if (!w.late && !land_some(w)) return nullptr;
  return i + 1;
}
EMU_INLINE bool enter_flat(Wave& w, const Inst* i, Pending*& p, uint8_t& slot) {
  if (!make_room_lgkm(w, 1)) return false;
  if (!enter_vm(w, i, p, slot)) return false;
  p->waits = 2;
  return true;
}
EMU_INLINE const Inst* leave_flat(Wave& w, const Inst* i, uint8_t slot) {
  w.vm.push(slot);
  w.ds.push(slot);
  if (!w.late && !land_some(w)) return nullptr;
  return i + 1;
}
EMU_INLINE bool enter_smem(Wave& w, const Inst* i, uint32_t weight, Pending*& p, uint8_t& slot) {
  if (!make_room_lgkm(w, weight)) return false;
  w.smem_weight += weight;
  p = &new_pending(w, i, slot);
  return true;
}
EMU_INLINE const Inst* leave_smem(Wave& w, const Inst* i, uint8_t slot) {
  w.smem.push(slot);
  if (!w.late && !land_some(w)) return nullptr;
  return i + 1;
}

}  // namespace emu
