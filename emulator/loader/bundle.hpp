// Offload bundles: one file with a code object for each of several architectures.
#pragma once

#include <string>
#include <vector>

#include "loader/bytes.hpp"

namespace loader {

struct BundleEntry {
  std::string target;  // "hipv4-amdgcn-amd-amdhsa--gfx950:xnack-"
  uint64_t offset, bytes;
  std::string processor() const;  // "gfx950:xnack-"; "" for the host's entry
};

bool is_bundle(Bytes image);
std::vector<BundleEntry> parse_bundle(Bytes image);
// As far as the readable part of the header shows.
uint64_t bundle_size(Bytes header);

}  // namespace loader
