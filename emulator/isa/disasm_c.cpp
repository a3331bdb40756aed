// The disassembler, and what can be executed, as C functions of the library: for tests and tools.
#include <cstring>

#include "core/lowering.hpp"
#include "isa/decoded.hpp"

// Text of the instruction at `bytes` (cut to text_size, terminated); returns its size in bytes, 0
// if it is none.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_disassemble(
    const uint8_t* bytes, size_t n, char* text, size_t text_size) {
  emu::Decoded d;
  if (bytes == nullptr || !emu::decode({bytes, n}, 0, d)) return 0;
  if (text != nullptr && text_size > 0) {
    const std::string s = emu::disassemble(d);
    const size_t length = s.size() < text_size ? s.size() : text_size - 1;
    std::memcpy(text, s.data(), length);
    text[length] = 0;
  }
  return d.size;
}

// 1 if the instruction at `bytes` can be executed, 0 if it is known but has no semantics, -1 if it
// is none.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_implemented(
    const uint8_t* bytes, size_t n) {
  emu::Decoded d;
  if (bytes == nullptr || !emu::decode({bytes, n}, 0, d)) return -1;
  return emu::semantics().of[static_cast<int>(d.op)].lower != nullptr;
}
