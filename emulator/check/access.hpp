// The bytes that a memory instruction accesses, computed from its operands at issue. Addresses
// outside all allocations are reported by the machine: here they are just addresses.
#pragma once

#include <cstdint>

#include "core/wave.hpp"
#include "isa/decoded.hpp"

namespace emu::check {

enum class Space : uint8_t { global, lds, scratch };

// The access of a range of the instruction's lanes to one address space.
struct AccessPart {
  Space space;
  bool loads, stores;    // both: an atomic
  uint8_t bytes;         // per lane
  bool whole;            // every one of `lanes` has all its bytes in range
  uint8_t first_row;     // of the destination or the data registers
  uint64_t lanes;        // that access memory at all
  uint64_t address[64];  // global: of the host; LDS: offset; scratch: offset of the lane
  uint8_t good[64];      // bytes in range; the others load as zero and are not stored
};

struct Access {
  int count = 0;
  AccessPart part[3];
  const AccessPart* begin() const { return part; }
  const AccessPart* end() const { return part + count; }
};

// The properties of an access that depend on the opcode alone.
struct MemoryShape {
  uint8_t bytes = 0;  // per lane; of one address for the two-address LDS forms
  bool loads = false, stores = false;
  bool descriptor = false;  // scalar load through a buffer descriptor
  bool to_lds = false;      // LDS DMA
  bool typed = false;       // buffer elements are converted; `bytes` is of a register tuple
  bool counter = false;     // ds_append, ds_consume: one address for all lanes
  uint16_t unit = 1;        // of the offsets of LDS instructions
  explicit operator bool() const { return bytes != 0; }  // accesses memory at all
};
MemoryShape memory_shape(const Decoded& d);

void find_access(const Wave& w, const Decoded& d, const MemoryShape& shape, const Pending& p,
                 Access& out);

}  // namespace emu::check
