#include "loader/msgpack.hpp"

namespace loader {
namespace {

class Parser {
 public:
  explicit Parser(Bytes bytes) : bytes_(bytes) {}

  Value value(int depth) {
    if (depth > 16) bad_image("metadata: nested deeper than 16 levels");
    const uint8_t tag = static_cast<uint8_t>(big_endian(1));
    if (tag <= 0x7f) return {uint64_t{tag}};
    if (tag <= 0x8f) return map(tag & 0x0f, depth);
    if (tag <= 0x9f) return array(tag & 0x0f, depth);
    if (tag <= 0xbf) return {string(tag & 0x1f)};
    if (tag >= 0xe0) return {static_cast<uint64_t>(static_cast<int8_t>(tag))};
    switch (tag) {
      case 0xc0:
        return {};
      case 0xc2:
        return {false};
      case 0xc3:
        return {true};
      case 0xc4:
      case 0xd9:
        return {string(big_endian(1))};
      case 0xc5:
      case 0xda:
        return {string(big_endian(2))};
      case 0xc6:
      case 0xdb:
        return {string(big_endian(4))};
      case 0xca: {
        const uint32_t bits = static_cast<uint32_t>(big_endian(4));
        float number;
        std::memcpy(&number, &bits, sizeof number);
        return {double{number}};
      }
      case 0xcb: {
        const uint64_t bits = big_endian(8);
        double number;
        std::memcpy(&number, &bits, sizeof number);
        return {number};
      }
      case 0xcc:
        return {big_endian(1)};
      case 0xcd:
        return {big_endian(2)};
      case 0xce:
        return {big_endian(4)};
      case 0xcf:
        return {big_endian(8)};
      case 0xd0:
        return {static_cast<uint64_t>(static_cast<int8_t>(big_endian(1)))};
      case 0xd1:
        return {static_cast<uint64_t>(static_cast<int16_t>(big_endian(2)))};
      case 0xd2:
        return {static_cast<uint64_t>(static_cast<int32_t>(big_endian(4)))};
      case 0xd3:
        return {big_endian(8)};
      case 0xdc:
        return array(big_endian(2), depth);
      case 0xdd:
        return array(big_endian(4), depth);
      case 0xde:
        return map(big_endian(2), depth);
      case 0xdf:
        return map(big_endian(4), depth);
    }
    bad_image(rt::text("metadata: unknown type byte ", rt::hex(tag), " at offset ", at_ - 1));
  }

 private:
  uint64_t big_endian(int bytes) {
    uint64_t result = 0;
    for (uint8_t byte : slice(bytes_, at_, bytes, "metadata")) result = result << 8 | byte;
    at_ += bytes;
    return result;
  }

  std::string string(uint64_t size) {
    const Bytes text = slice(bytes_, at_, size, "metadata: string");
    at_ += size;
    return {text.begin(), text.end()};
  }

  // Every element takes a byte at least, so a claim of more than is left cannot be true.
  void check_count(uint64_t count) {
    if (count > bytes_.size() - at_) bad_image("metadata: more elements than bytes");
  }

  Value array(uint64_t count, int depth) {
    check_count(count);
    Value::Array result;
    while (count--) result.push_back(value(depth + 1));
    return {std::move(result)};
  }

  Value map(uint64_t count, int depth) {
    check_count(count);
    Value::Map result;
    while (count--) {
      Value key = value(depth + 1);
      std::string* name = std::get_if<std::string>(&key.data);
      if (!name) bad_image("metadata: a key is not a string");
      Value content = value(depth + 1);
      result.emplace_back(std::move(*name), std::move(content));
    }
    return {std::move(result)};
  }

  Bytes bytes_;
  uint64_t at_ = 0;
};

[[noreturn]] void wrong_type(const char* key, const char* required) {
  bad_image(rt::text("metadata: ", key, " must be ", required));
}

}  // namespace

const Value* Value::find(const char* key) const {
  if (const Map* map = std::get_if<Map>(&data)) {
    for (const auto& [name, value] : *map) {
      if (name == key) return &value;
    }
  }
  return nullptr;
}

uint64_t Value::number(const char* key, uint64_t otherwise) const {
  const Value* value = find(key);
  if (!value) return otherwise;
  if (const uint64_t* number = std::get_if<uint64_t>(&value->data)) return *number;
  wrong_type(key, "a number");
}

std::string Value::string(const char* key, const char* otherwise) const {
  const Value* value = find(key);
  if (!value) return otherwise;
  if (const std::string* text = std::get_if<std::string>(&value->data)) return *text;
  wrong_type(key, "a string");
}

const Value::Array& Value::array(const char* key) const {
  static const Array empty;
  const Value* value = find(key);
  if (!value) return empty;
  if (const Array* array = std::get_if<Array>(&value->data)) return *array;
  wrong_type(key, "an array");
}

Value parse_msgpack(Bytes bytes) { return Parser(bytes).value(0); }

}  // namespace loader
