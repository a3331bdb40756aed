// A set of bytes of memory.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

namespace emu::count {

inline constexpr uint64_t kLine = 128;  // of the L2 cache

class Touched {
 public:
  void add(uint64_t address, uint64_t bytes);

  struct Size {
    uint64_t bytes = 0, lines = 0;
  };
  // Adds all of another set; returns how much of it was new.
  Size merge(const Touched& other);

 private:
  using Page = std::array<uint64_t, 64>;  // a bit for each of 4096 bytes

  std::unordered_map<uint64_t, Page> pages_;
  Page* last_ = nullptr;
  uint64_t last_number_ = 0;
};

}  // namespace emu::count
