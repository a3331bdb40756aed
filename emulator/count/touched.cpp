#include "count/touched.hpp"

#include <algorithm>
#include <bit>

namespace emu::count {

void Touched::add(uint64_t address, uint64_t bytes) {
  while (bytes) {
    const uint64_t number = address / 4096, bit = address % 64;
    if (!last_ || number != last_number_) {
      last_ = &pages_[number];  // its address is stable when others are added
      last_number_ = number;
    }
    const uint64_t n = std::min(bytes, 64 - bit);
    const uint64_t mask = n == 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
    (*last_)[address % 4096 / 64] |= mask << bit;
    address += n;
    bytes -= n;
  }
}

Touched::Size Touched::merge(const Touched& other) {
  Size added;
  for (const auto& [number, from] : other.pages_) {
    Page& to = pages_[number];
    for (size_t i = 0; i < to.size(); i += 2) {  // a line
      const bool known = to[i] | to[i + 1];
      added.lines += !known && (from[i] | from[i + 1]);
      for (size_t j = i; j < i + 2; ++j) {
        added.bytes += static_cast<uint64_t>(std::popcount(from[j] & ~to[j]));
        to[j] |= from[j];
      }
    }
  }
  return added;
}

}  // namespace emu::count
