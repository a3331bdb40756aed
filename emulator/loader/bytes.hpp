// Bounds-checked reading of untrusted bytes.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

#include "runtime/report.hpp"

namespace loader {

using Bytes = std::span<const uint8_t>;

[[noreturn]] inline void bad_image(const std::string& message) {
  throw rt::Error{hipErrorInvalidImage, message};
}

inline Bytes slice(Bytes bytes, uint64_t offset, uint64_t size, const char* what) {
  if (offset > bytes.size() || size > bytes.size() - offset) {
    bad_image(rt::text(what, ": ", size, " bytes at offset ", offset, " leave the image of ",
                       bytes.size(), " bytes"));
  }
  return bytes.subspan(offset, size);
}

template <class T>
T read(Bytes bytes, uint64_t offset, const char* what) {
  T value;
  std::memcpy(&value, slice(bytes, offset, sizeof value, what).data(), sizeof value);
  return value;
}

// Zero-terminated, within `bytes`.
inline std::string read_string(Bytes bytes, uint64_t offset, const char* what) {
  if (offset < bytes.size()) {
    const auto* begin = reinterpret_cast<const char*>(bytes.data()) + offset;
    if (const void* end = std::memchr(begin, 0, bytes.size() - offset)) {
      return std::string(begin, static_cast<const char*>(end));
    }
  }
  bad_image(rt::text(what, ": no string at offset ", offset));
}

}  // namespace loader
