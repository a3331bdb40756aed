// The uninit check's view of device memory: a byte per byte, 0xff where it was written.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace emu::definedness {

struct Shadow {
  uint64_t base = 0, bytes = 0;
  std::shared_ptr<uint8_t> map;  // one byte for each of the allocation's
  uint64_t end() const { return base + bytes; }
};

// The tracked allocations, sorted by base.
using Shadows = std::vector<Shadow>;
std::shared_ptr<const Shadows> shadows();

}  // namespace emu::definedness
