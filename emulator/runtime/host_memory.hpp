// Access to memory that belongs to the caller. A bad host pointer is an error, not a crash.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rt {

// A block of `rows` rows of `width` bytes, `pitch` bytes from one row to the next.
struct Rows {
  uint64_t address = 0;
  size_t width = 0, rows = 1, pitch = 0;
};

// Copy between our memory and the caller's; rows and width are those of the first argument.
// False if the caller's side cannot be read or written.
bool read_host(const Rows& ours, uint64_t host, size_t host_pitch);
bool write_host(const Rows& ours, uint64_t host, size_t host_pitch);
// Several small reads at once.
struct Piece {
  void* ours;
  const void* host;
  size_t bytes;
};
bool read_host(std::span<const Piece> pieces);
// Host to host; both sides may be bad.
bool copy_host(const Rows& to, uint64_t from, size_t from_pitch);

bool host_mapped(uint64_t address, size_t bytes);

// As many bytes from `address` on as can be read, up to `limit`.
std::vector<uint8_t> read_prefix(const void* address, size_t limit);

}  // namespace rt
