// The live allocations: the one authority on which addresses exist.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace emu {

struct Allocation {
  enum class Kind : uint8_t { device, pinned, code };
  uint64_t base = 0;
  uint64_t bytes = 0;
  int device = 0;
  Kind kind = Kind::device;
  uint64_t serial = 0;  // order of creation, for reports
  uint64_t end() const { return base + bytes; }
};

// Sorted by base, immutable once published.
using AllocationList = std::vector<Allocation>;

class MemoryMap {
 public:
  // A launch takes one snapshot and searches it without locks.
  virtual std::shared_ptr<const AllocationList> snapshot() const = 0;
  // For reports: "64 bytes past the end of allocation #12 (1048576 bytes at 0x...)", or the
  // freed allocation that used to hold the address, or "no allocation near".
  virtual std::string describe(uint64_t address) const = 0;

 protected:
  ~MemoryMap() = default;
};

}  // namespace emu
