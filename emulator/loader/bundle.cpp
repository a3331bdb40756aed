#include "loader/bundle.hpp"

#include <algorithm>

namespace loader {
namespace {

constexpr char kMagic[] = "__CLANG_OFFLOAD_BUNDLE__";
constexpr uint64_t kMagicBytes = sizeof kMagic - 1;
constexpr uint64_t kEntries = kMagicBytes + 8;  // where they begin
constexpr uint64_t kMaxEntries = 1024, kMaxTarget = 4096;

}  // namespace

std::string BundleEntry::processor() const {
  const size_t amd = target.find("amdgcn-amd-amdhsa");
  if (amd == std::string::npos) return "";
  const size_t gfx = target.find("gfx", amd);
  return gfx == std::string::npos ? "" : target.substr(gfx);
}

bool is_bundle(Bytes image) {
  return image.size() >= kMagicBytes && std::memcmp(image.data(), kMagic, kMagicBytes) == 0;
}

std::vector<BundleEntry> parse_bundle(Bytes image) {
  const auto count = read<uint64_t>(image, kMagicBytes, "bundle");
  if (count > kMaxEntries) bad_image(rt::text("bundle of ", count, " entries"));
  std::vector<BundleEntry> entries;
  uint64_t at = kEntries;
  for (uint64_t i = 0; i < count; ++i) {
    BundleEntry entry;
    entry.offset = read<uint64_t>(image, at, "bundle entry");
    entry.bytes = read<uint64_t>(image, at + 8, "bundle entry");
    const auto length = read<uint64_t>(image, at + 16, "bundle entry");
    if (length > kMaxTarget) bad_image("bundle: overlong target name");
    const Bytes name = slice(image, at + 24, length, "bundle target");
    entry.target.assign(name.begin(), name.end());
    at += 24 + length;
    entries.push_back(std::move(entry));
  }
  return entries;
}

uint64_t bundle_size(Bytes header) {
  uint64_t size = header.size();
  for (const BundleEntry& entry : parse_bundle(header)) {
    if (entry.bytes <= UINT64_MAX - entry.offset) size = std::max(size, entry.offset + entry.bytes);
  }
  return size;
}

}  // namespace loader
