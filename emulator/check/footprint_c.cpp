// Footprints as a C function of the library: for tests.
#include <cstring>

#include "check/footprint.hpp"

// What the instruction at `bytes` reads and writes, as text (cut to text_size, terminated), with
// AGPRs distinguished from VGPRs. Returns the instruction's size in bytes, 0 if it is none.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_footprint(
    const uint8_t* bytes, size_t n, char* text, size_t text_size) {
  emu::Decoded d;
  if (bytes == nullptr || !emu::decode({bytes, n}, 0, d)) return 0;
  if (text != nullptr && text_size > 0) {
    const std::string s = emu::check::describe(emu::check::footprint(d, 256), 256);
    const size_t length = s.size() < text_size ? s.size() : text_size - 1;
    std::memcpy(text, s.data(), length);
    text[length] = 0;
  }
  return d.size;
}
