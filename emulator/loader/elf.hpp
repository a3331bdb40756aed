// A shared ELF64 object for AMD GPUs, as far as a loader needs it, every offset checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "loader/bytes.hpp"

namespace loader {

struct Segment {
  uint64_t offset, address, file_bytes, bytes;
  bool executable;
};

struct Symbol {
  std::string name;
  uint64_t value, size;
  uint8_t type;  // 1: object, 2: function
  bool defined;
};

struct Relocation {
  uint64_t address;
  uint32_t type, symbol;
  int64_t addend;
};

struct Elf {
  uint32_t flags = 0;
  uint8_t abi_version = 0;
  std::vector<Segment> segments;  // PT_LOAD, by address, disjoint
  uint64_t bytes = 0;             // of the loaded image, which starts at address 0
  std::vector<Symbol> symbols;    // the dynamic ones, in the order that relocations count
  std::vector<Relocation> relocations;
  Bytes metadata;  // of the AMDGPU note; empty if there is none

  // The file's bytes of [address, address + size) of the loaded image.
  Bytes at(Bytes file, uint64_t address, uint64_t size, const char* what) const;
};

Elf parse_elf(Bytes file);

// The length in the header of an ELF file at the start of `header`; 0 if it is none.
uint64_t elf_size(Bytes header);

}  // namespace loader
