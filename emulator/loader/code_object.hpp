// A code object: which architecture it is for, its kernels and their arguments, its variables.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/launch.hpp"
#include "loader/elf.hpp"

namespace loader {

struct Argument {
  uint64_t offset, bytes;
  std::string kind;  // value_kind of the metadata; hidden ones begin with "hidden_"
  std::string name;
  bool hidden() const { return kind.starts_with("hidden_"); }
};

struct KernelInfo {
  std::string name;
  emu::KernelDescriptor descriptor;
  uint64_t entry = 0;                         // address in the image
  uint64_t code_address = 0, code_bytes = 0;  // the executable segment that holds it
  uint32_t max_workgroup_size = 1024;
  uint32_t required_workgroup_size[3] = {0, 0, 0};  // 0: any
  uint64_t kernarg_bytes = 0;
  uint32_t vgprs = 0, agprs = 0, sgprs = 0;  // as the compiler counts them
  std::vector<Argument> arguments;           // by offset; explicit ones in the order of the source
  uint64_t explicit_bytes = 0;               // end of the last explicit argument but padding
  bool lists_padding = false;                // as arguments, which only hand-written metadata does
};

struct Variable {
  uint64_t address, bytes;
};

struct CodeObject {
  std::string arch;      // "gfx950"
  std::string features;  // ":sramecc+:xnack-", only what the object requires
  std::vector<Segment> segments;
  uint64_t bytes = 0;
  std::vector<KernelInfo> kernels;
  std::map<std::string, Variable> variables;
  Elf elf;
};

// Checks and describes the code object for `arch` ("gfx950:sramecc+:xnack-") in `image`, an ELF
// file or a bundle of them. `file` receives the part of the image that is the ELF file.
// Throws rt::Error: hipErrorInvalidImage, or hipErrorNoBinaryForGpu for another architecture.
CodeObject parse_code_object(Bytes image, const std::string& arch, Bytes& file);

// Copies the segments to `to` (code_object.bytes long, zeroed) and relocates them.
void load_image(const CodeObject& object, Bytes file, uint8_t* to);

// Reads an image of unknown length, as hipModuleLoadData gets it.
std::vector<uint8_t> read_image(const void* image);

}  // namespace loader
