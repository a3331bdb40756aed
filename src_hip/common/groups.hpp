// Groups of rows, such as the tokens of each expert: a workgroup finds its group from offsets in
// memory, which the host need not know.
#pragma once

#include "common/memory.hpp"
#include "common/types.hpp"

namespace hipgemm {

// Rows are cut into slots of kSlotRows: group g has those from offsets[g] / kSlotRows + g on. These
// slots increase from group to group, and each group has enough of them before the next one's
// first. So the host computes the grid from the number of rows and groups alone, and a workgroup
// finds its group by counting the groups that begin at its slot or before, without a sum of
// lengths. A group may have one slot too many, whose workgroups return at once.
HIPGEMM_BOTH constexpr u32 first_slot(u32 offset, u32 group, u32 slot_rows) {
  return offset / slot_rows + group;
}
HIPGEMM_BOTH constexpr u32 count_slots(u32 rows, u32 groups, u32 slot_rows) {
  return first_slot(rows, groups, slot_rows) + 1;
}

#if defined(__clang__)
// The group that a slot belongs to, its rows, and the slot's index among the group's slots.
struct GroupSlot {
  u32 group, begin, end, index;
};

// What the kernel writes to `status` about the first wrong offset.
struct OffsetFault {
  u32 position;  // 1 for offsets[0]
  int offset, before;
  u32 rows;
};

// Group `count` is the rows after the last offset. Each offset is clamped to at least all before it
// and at most the number of rows: groups never overlap, nor leave their matrix.
class Groups {
 public:
  HIPGEMM_DEVICE Groups(const void* offsets, u32 count, u32 rows)
      : offsets_(reinterpret_cast<u64>(offsets)), count_(count), rows_(rows) {}

  // The group of a slot that is the same in all lanes. A wave compares 64 groups at a time.
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

  // The checks that the host makes of offsets in its own memory; the host reads the result when it
  // synchronizes. `block`: offsets must be multiples of it. For one wave.
  HIPGEMM_DEVICE void check(void* status, u32 block) const {
    for (u32 first = 0; first <= count_; first += kWaveLanes) {
      const u32 position = smaller(first + lane(), count_);
      const int offset = load(position), before = position == 0 ? 0 : load(position - 1);
      const bool wrong = (position == 0 && offset != 0) || offset < before ||
                         offset > static_cast<int>(rows_) || static_cast<u32>(offset) % block != 0;
      const u64 ballot = __builtin_amdgcn_ballot_w64(wrong);
      if (ballot == 0) continue;
      if (lane() == static_cast<u32>(__builtin_ctzll(ballot)))
        *(__attribute__((address_space(1))) OffsetFault*)status = {position + 1, offset, before,
                                                                   rows_};
      return;
    }
  }

 private:
  static HIPGEMM_DEVICE u32 lane() { return __builtin_amdgcn_workitem_id_x() % kWaveLanes; }

  // The clamped offset of this lane's group; `before` is that of the group before the wave's first.
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

  // An inclusive scan over the lanes; 0 is the neutral element.
  template <class Combine>
  static HIPGEMM_DEVICE u32 scan(u32 x, Combine combine) {
    constexpr int kRowShift = 0x110, kRowLast = 0x142, kHalfLast = 0x143;
    x = combine(x, moved<kRowShift + 1>(x));
    x = combine(x, moved<kRowShift + 2>(x));
    x = combine(x, moved<kRowShift + 4>(x));
    x = combine(x, moved<kRowShift + 8>(x));
    x = combine(x, moved<kRowLast, 0b1010>(x));
    return combine(x, moved<kHalfLast, 0b1100>(x));
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
