// Copies and fills: checked when called, and again when they run.
#pragma once

#include "hip/api.hpp"
#include "runtime/host_memory.hpp"

namespace hip {

enum class Wait { yes, no };  // whether the call returns only when the work is done

// Where the first row begins, and how many bytes on the next one does.
struct Region {
  uint64_t address = 0;
  size_t pitch = 0;
};

struct CopyShape {
  size_t width = 0, rows = 1;
};

void copy(const std::shared_ptr<rt::Stream>& stream, Region to, Region from, CopyShape shape,
          hipMemcpyKind kind, Wait wait);

// Sets `shape.width` bytes of each row to the low `value_bytes` (1, 2 or 4) of `value`.
void fill(const std::shared_ptr<rt::Stream>& stream, Region to, CopyShape shape, uint32_t value,
          size_t value_bytes, Wait wait);

// The same, checked now, for graphs.
std::function<std::optional<rt::Failure>()> copy_work(const rt::Device& device, const Region& to,
                                                      const Region& from, const CopyShape& shape,
                                                      hipMemcpyKind kind);
std::function<std::optional<rt::Failure>()> fill_work(const rt::Device& device, const Region& to,
                                                      const CopyShape& shape, uint32_t value,
                                                      size_t value_bytes);

inline uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace hip
