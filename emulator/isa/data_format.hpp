// The formats of elements in typed buffers, by their code (DFMT). Component x is in the lowest
// bits.
#pragma once

#include <cstdint>

namespace emu {

struct DataFormat {
  uint8_t bytes = 0;  // of an element; 0: not emulated
  uint8_t count = 0;  // components
  uint8_t bits[4] = {};
};

constexpr DataFormat data_format(uint32_t code) {
  switch (code) {
    case 1:
      return {1, 1, {8}};
    case 2:
      return {2, 1, {16}};
    case 3:
      return {2, 2, {8, 8}};
    case 4:
      return {4, 1, {32}};
    case 5:
      return {4, 2, {16, 16}};
    case 9:
      return {4, 4, {10, 10, 10, 2}};
    case 10:
      return {4, 4, {8, 8, 8, 8}};
    case 11:
      return {8, 2, {32, 32}};
    case 12:
      return {8, 4, {16, 16, 16, 16}};
    case 13:
      return {12, 3, {32, 32, 32}};
    case 14:
      return {16, 4, {32, 32, 32, 32}};
    default:
      return {};
  }
}

// The codes in a buffer descriptor's last dword.
constexpr uint32_t data_code(uint32_t word) { return word >> 15 & 15; }
constexpr uint32_t number_code(uint32_t word) { return word >> 12 & 7; }

}  // namespace emu
