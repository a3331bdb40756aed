// MessagePack, as far as code-object metadata uses it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "loader/bytes.hpp"

namespace loader {

struct Value {
  using Array = std::vector<Value>;
  using Map = std::vector<std::pair<std::string, Value>>;
  // Signed integers too are held as uint64_t, in two's complement: metadata has no negative ones.
  std::variant<std::monostate, bool, uint64_t, double, std::string, Array, Map> data;

  const Value* find(const char* key) const;  // null if this is no map or has no such key
  // Of a map's entry; the default if it is absent, an error if it has another type.
  uint64_t number(const char* key, uint64_t otherwise) const;
  std::string string(const char* key, const char* otherwise) const;
  const Array& array(const char* key) const;  // empty if absent
};

Value parse_msgpack(Bytes bytes);

}  // namespace loader
