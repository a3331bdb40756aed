// Reading environment variables. An invalid value is an error, reported by the
// first call that can: ignored, it would seem to be in effect.
#pragma once

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

namespace emu {

// Empty where it is not set.
inline std::string_view variable(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

inline std::string wrong_value(const char* name, std::string_view value, std::string_view wanted) {
  return std::string(name) + " must be " + std::string(wanted) + "; got '" + std::string(value) +
         "'";
}

// All of the text, or nothing.
inline std::optional<uint64_t> whole_number(std::string_view text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, value);
  return parsed.ptr == end && parsed.ec == std::errc() ? std::optional(value) : std::nullopt;
}

}  // namespace emu
