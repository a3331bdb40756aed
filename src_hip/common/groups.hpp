// Groups of rows, such as the tokens of each expert: a workgroup finds its group from offsets in
// memory, which the host need not know.
#pragma once

#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// Rows are cut into slots of kSlotRows: group g has those from offsets[g] / kSlotRows + g on. These
// numbers grow from group to group, and no group needs more slots than there are up to the next
// one's. So the host sizes a grid from the number of rows and groups alone, and a workgroup counts
// in one look at all offsets how many groups begin at its slot or before, without adding up
// lengths. Each group may have one slot too many, whose workgroups leave at once.
HIPGEMM_BOTH constexpr u32 first_slot(u32 offset, u32 group, u32 slot_rows) {
  return offset / slot_rows + group;
}
HIPGEMM_BOTH constexpr u32 count_slots(u32 rows, u32 groups, u32 slot_rows) {
  return first_slot(rows, groups, slot_rows) + 1;
}

#if defined(__clang__)
// What a slot is of: the rows of a group, and the slot's place among the group's own.
struct GroupSlot {
  u32 group, begin, end, turn;
};

// What `status` is told about the first offset that is wrong.
struct OffsetFault {
  u32 place;  // 1 for offsets[0]
  int offset, before;
  u32 rows;
};

// Group `count` is the rows behind the last offset. Whatever offsets say, each counts as no less
// than any before it and no more than all rows: groups never overlap, nor leave their matrix.
class Groups {
 public:
  HIPGEMM_DEVICE Groups(const void* offsets, u32 count, u32 rows)
      : offsets_(reinterpret_cast<u64>(offsets)), count_(count), rows_(rows) {}

  // The group of a slot that is the same in all lanes. A wave looks at 64 groups at a time.
  template <u32 kSlotRows>
  HIPGEMM_DEVICE GroupSlot find(u32 slot) const {
    u32 begun = 0, begin = 0;
    for (u32 first = 0; first <= count_; first += kWaveLanes) {
      const u32 group = first + lane(), offset = counted(group, begin);
      const u64 here = __builtin_amdgcn_ballot_w64(group <= count_ &&
                                                   first_slot(offset, group, kSlotRows) <= slot);
      if (here == 0) break;
      begun = first + __builtin_popcountll(here);
      begin = __builtin_amdgcn_readlane(offset, begun - 1 - first);
    }
    const u32 group = begun - 1;
    return {group, begin, end(group, begin), slot - first_slot(begin, group, kSlotRows)};
  }

  // The rows of a group that is the same in all lanes.
  HIPGEMM_DEVICE GroupSlot rows(u32 group) const {
    u32 begin = 0;
    for (u32 first = 0; first <= group; first += kWaveLanes)
      begin = __builtin_amdgcn_readlane(counted(first + lane(), begin),
                                        smaller(group - first, kWaveLanes - 1));
    return {group, begin, end(group, begin), 0};
  }

  // Blocks in all groups before one. A wave counts them.
  template <u32 kBlockRows>
  HIPGEMM_DEVICE u32 count_blocks_before(u32 group) const {
    u32 blocks = 0, begin = 0;
    for (u32 first = 0; first < group; first += kWaveLanes) {
      const u32 from = counted(first + lane(), begin);
      const u32 to = larger(from, inside(load(smaller(first + lane() + 1, count_))));
      blocks += first + lane() < group ? (to - from + kBlockRows - 1) / kBlockRows : 0;
      begin = __builtin_amdgcn_readlane(from, kWaveLanes - 1);
    }
    return __builtin_amdgcn_readlane(scan(blocks, [](u32 a, u32 b) { return a + b; }),
                                     kWaveLanes - 1);
  }

  // What the host says of offsets that it knows, in a note for the time when it waits. `block`: of
  // what offsets must be multiples. For one wave.
  HIPGEMM_DEVICE void check(void* status, u32 block) const {
    for (u32 first = 0; first <= count_; first += kWaveLanes) {
      const u32 place = smaller(first + lane(), count_);
      const int offset = load(place), before = place == 0 ? 0 : load(place - 1);
      const bool wrong = (place == 0 && offset != 0) || offset < before ||
                         offset > static_cast<int>(rows_) || static_cast<u32>(offset) % block != 0;
      const u64 ballot = __builtin_amdgcn_ballot_w64(wrong);
      if (ballot == 0) continue;
      if (lane() == static_cast<u32>(__builtin_ctzll(ballot)))
        *(__attribute__((address_space(1))) OffsetFault*)status = {place + 1, offset, before,
                                                                   rows_};
      return;
    }
  }

 private:
  static HIPGEMM_DEVICE u32 lane() { return __builtin_amdgcn_workitem_id_x() % kWaveLanes; }

  // The offset of this lane's group as it counts; that of the group before the wave's first is no
  // more than `before`.
  HIPGEMM_DEVICE u32 counted(u32 group, u32 before) const {
    const u32 offset = group == 0 ? 0 : inside(load(smaller(group, count_)));
    return larger(before, scan(offset, larger));
  }
  HIPGEMM_DEVICE u32 end(u32 group, u32 begin) const {
    return group == count_ ? rows_
                           : larger(begin, inside(static_cast<int>(uniform(load(group + 1)))));
  }
  HIPGEMM_DEVICE u32 inside(int offset) const {
    return offset < 0 ? 0 : smaller(static_cast<u32>(offset), rows_);
  }
  HIPGEMM_DEVICE int load(u32 i) const {
    return ((const __attribute__((address_space(1))) int*)offsets_)[i];
  }

  // Each lane's value joined with those of all lanes before; 0 changes nothing.
  template <class Join>
  static HIPGEMM_DEVICE u32 scan(u32 x, Join join) {
    constexpr int kRowShift = 0x110, kRowLast = 0x142, kHalfLast = 0x143;
    x = join(x, moved<kRowShift + 1>(x));
    x = join(x, moved<kRowShift + 2>(x));
    x = join(x, moved<kRowShift + 4>(x));
    x = join(x, moved<kRowShift + 8>(x));
    x = join(x, moved<kRowLast, 0b1010>(x));
    return join(x, moved<kHalfLast, 0b1100>(x));
  }
  template <int kControl, int kRows = 0b1111>
  static HIPGEMM_DEVICE u32 moved(u32 x) {
    return __builtin_amdgcn_update_dpp(0, static_cast<int>(x), kControl, kRows, 0b1111, false);
  }

  u64 offsets_;
  u32 count_, rows_;
};
#endif

}  // namespace hipgemm
