// Which bytes of a vector register hold a value: one bit per lane, a mask for each of four bytes.
#pragma once

#include <array>
#include <cstdint>

namespace emu::check {

struct Planes {
  std::array<uint64_t, 4> byte{};

  static Planes all() { return {{~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}}}; }
  static Planes lanes(uint64_t m) { return {{m, m, m, m}}; }
  // Lanes of which every byte is known.
  uint64_t whole() const { return byte[0] & byte[1] & byte[2] & byte[3]; }
  uint64_t half(int h) const { return byte[2 * h] & byte[2 * h + 1]; }

  Planes operator&(const Planes& o) const {
    Planes r;
    for (int b = 0; b < 4; ++b) r.byte[b] = byte[b] & o.byte[b];
    return r;
  }
  Planes operator|(const Planes& o) const {
    Planes r;
    for (int b = 0; b < 4; ++b) r.byte[b] = byte[b] | o.byte[b];
    return r;
  }
  // `this` outside the mask, `o` inside it.
  Planes blend(const Planes& o, uint64_t mask) const {
    Planes r;
    for (int b = 0; b < 4; ++b) r.byte[b] = (byte[b] & ~mask) | (o.byte[b] & mask);
    return r;
  }
};

// Shifts by a constant: the bits that come in are zeros, and known.
inline Planes shifted_left(const Planes& p, uint32_t n) {
  const int whole = static_cast<int>(n / 8);
  Planes r;
  for (int b = 0; b < 4; ++b) {
    r.byte[b] = b >= whole ? p.byte[b - whole] : ~uint64_t{0};
    if (n % 8 && b > whole) r.byte[b] &= p.byte[b - whole - 1];
  }
  return r;
}
inline Planes shifted_right(const Planes& p, uint32_t n, bool arithmetic) {
  const int whole = static_cast<int>(n / 8);
  Planes r;
  for (int b = 0; b < 4; ++b) {
    const int from = b + whole;
    r.byte[b] = from < 4 ? p.byte[from] : arithmetic ? p.byte[3] : ~uint64_t{0};
    if (n % 8 && from + 1 < 4) r.byte[b] &= p.byte[from + 1];
  }
  return r;
}

}  // namespace emu::check
