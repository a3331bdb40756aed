// The last accesses of each byte of LDS, for the race check.
#pragma once

#include <optional>

#include "check/race_order.hpp"

namespace emu::check {

// An access that is unordered with one being made.
struct Conflict {
  Issued other;
  AccessId id;
  uint32_t other_lane, lane;
  uint64_t address;
  bool other_stores;
};

// What LDS stores write, and where. Null data: a DMA or an atomic operation.
struct StoredData {
  const Pending* data = nullptr;
  bool high = false;  // of a short store: the upper half of the register
};

// LDS is tracked in units, as large as the alignment of all accesses so far allows, so that a unit
// is accessed entirely or not at all. Stored for each unit: its last write, and for each wave its
// last read. More is not needed: of two writes the second is ordered after the first, or it is a
// finding, and a wave's reads land in order.
class LdsShadow {
 public:
  // What is there from before stays: it is older than all that order.ordered() includes.
  void attach(uint32_t bytes, uint32_t waves);
  void start_group();
  void clear();

  // `dma`: the stores of a load to LDS. Two waves that store the same bytes to one
  // address are no conflict, but are returned in `same`.
  std::optional<Conflict> access(const Order& order, uint32_t wave, AccessId id,
                                 const AccessPart& part, bool dma, bool atomic, StoredData stored,
                                 std::optional<Conflict>& same);
  // The same for all lanes, reading at `address` + `offset`, or by DMA writing from `start` on, 16
  // bytes each. False in other cases: then nothing has been done.
  bool quick_read(const Order& order, uint32_t wave, AccessId id, const uint32_t* address,
                  uint32_t offset, uint32_t bytes);
  bool quick_dma(const Order& order, uint32_t wave, AccessId id, uint64_t start);

 private:
  void clear(int shift);
  void refine(const AccessPart& part);
  std::optional<Conflict> find(const Order& order, uint32_t wave, const AccessPart& part, bool dma,
                               bool atomic, StoredData stored, std::optional<Conflict>& same) const;
  template <class F>
  bool each_byte(const AccessPart& part, uint32_t unit, uint32_t lane, StoredData stored,
                 F f) const;
  template <class F>
  void units(const AccessPart& part, F f) const;

  uint32_t bytes_ = 0, waves_ = 0;
  int shift_ = 4;                 // a unit is 1 << shift_ bytes
  bool atomics_ = false;          // there were some in this workgroup
  std::vector<int32_t> written_;  // access << 6 | lane
  std::vector<uint8_t> value_;    // where that is an LDS store: the bytes it stores
  std::vector<int32_t> read_;     // the same, [unit][wave]; atomics count as reads
};

}  // namespace emu::check
