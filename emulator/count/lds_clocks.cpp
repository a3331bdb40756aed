#include "count/lds_clocks.hpp"

#include <algorithm>
#include <array>
#include <vector>

namespace emu::count {
namespace {

// LDS serves the lanes of a wave in phases. Lanes of one phase that want different dwords of one
// bank are served one after the other; those that want the same dword share it.
struct Rule {
  uint32_t banks;
  uint32_t lanes;                 // of a phase
  std::array<uint8_t, 32> order;  // of lanes 0 to 31; the other half follows in the same order
};

constexpr std::array<uint8_t, 32> in_order() {
  std::array<uint8_t, 32> lanes{};
  for (uint8_t i = 0; i < 32; ++i) lanes[i] = i;
  return lanes;
}
constexpr Rule kDword{32, 32, in_order()};
constexpr Rule kRead64{64, 32, in_order()};
// Loads of 96 bits; with 32 banks those of 128 too.
constexpr Rule kReadEight{32, 8, {0, 1, 2,  3,  20, 21, 22, 23, 4,  5,  6,  7,  16, 17, 18, 19,
                                  8, 9, 10, 11, 28, 29, 30, 31, 12, 13, 14, 15, 24, 25, 26, 27}};
constexpr Rule kRead128{64, 16, {0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27,
                                 4, 5, 6, 7, 8,  9,  10, 11, 16, 17, 18, 19, 28, 29, 30, 31}};
constexpr Rule kWrite64{32, 16, in_order()};
constexpr Rule kWriteWide{32, 8, in_order()};  // of 96 and 128 bits; an assumption
constexpr uint64_t kClocksOfPhase = 2;         // on one of the two ports

const Rule& rule_of(const check::AccessPart& part) {
  if (part.bytes <= 4) return kDword;
  if (part.stores) return part.bytes == 8 ? kWrite64 : kWriteWide;
  if (part.bytes == 12 || (part.bytes == 16 && arch().lds_banks == 32)) return kReadEight;
  if (part.bytes == 8) return arch().lds_banks == 32 ? kWrite64 : kRead64;
  return kRead128;
}

// Cycles of a phase: the maximum number of different dwords in one bank.
uint64_t turns(const uint64_t* dword, size_t n, uint32_t banks) {
  std::array<uint64_t, 64> first;
  uint64_t busy = 0;  // banks of which `first` is set
  bool conflict = false;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t bank = dword[i] % banks;
    conflict |= (busy >> bank & 1) && first[bank] != dword[i];
    first[bank] = dword[i];
    busy |= uint64_t{1} << bank;
  }
  if (!conflict) return 1;
  std::vector<uint64_t> distinct(dword, dword + n);
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  std::array<uint64_t, 64> load{};
  for (uint64_t d : distinct) ++load[d % banks];
  return *std::max_element(load.begin(), load.end());
}

}  // namespace

LdsClocks lds_clocks(const check::AccessPart& part) {
  const Rule& rule = rule_of(part);
  LdsClocks clocks;
  for (uint32_t start = 0; start < 64; start += rule.lanes) {
    uint64_t dword[32 * 5];  // an unaligned access of four dwords touches five
    size_t n = 0;
    for (uint32_t i = start; i < start + rule.lanes; ++i) {
      const uint32_t lane = rule.order[i % 32] + i / 32 * 32;
      if (!(part.lanes >> lane & 1)) continue;
      const uint64_t begin = part.address[lane], end = begin + part.good[lane];
      for (uint64_t d = begin / 4; d * 4 < end; ++d) dword[n++] = d;
    }
    clocks.data += kClocksOfPhase;
    clocks.conflict += kClocksOfPhase * (turns(dword, n, rule.banks) - 1);
  }
  return clocks;
}

}  // namespace emu::count
