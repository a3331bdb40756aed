// The state of the uninit check: which bits of registers, LDS and memory hold a value, and where
// those without one come from.
#pragma once

#include <cstring>
#include <memory>
#include <unordered_map>
#include <vector>

#include "check/check.hpp"
#include "check/definedness.hpp"
#include "check/planes.hpp"

namespace emu::check {

// An uninitialized value, and the instruction that read it.
struct Origin {
  enum class Kind : uint8_t { vector, scalar, scc, lds, global, scratch } kind;
  uint64_t at;  // register or address
  const Side* by;
};

struct UninitGroup {
  std::vector<Origin> origins;                        // numbered from 1
  std::vector<uint8_t> lds;                           // 0xff: written
  std::unordered_map<uint32_t, uint32_t> lds_origin;  // by dword, of undefined values stored there

  uint32_t origin(Origin::Kind kind, uint64_t at, const Side& by) {
    if (origins.size() < 1'000'000) origins.push_back({kind, at, &by});
    return static_cast<uint32_t>(origins.size());
  }
};

struct UninitWave {
  Planes vector[512];
  uint32_t vector_origin[512];  // 0: the register itself, never written
  uint32_t scalar[128];         // a bit per bit
  uint32_t scalar_origin[128];
  bool scc;
  uint32_t scc_origin;
  // The operands of an instruction in flight, at issue.
  struct Issue {
    Planes data[4];
    uint32_t origin;
  };
  Issue issuing, in_flight[kPendingSlots];
  std::vector<uint8_t> scratch;  // lane after lane
};

// Definedness of an instruction's results from that of its operands, committed at once: results of
// the ALUs do not depend on when. The origin of undefined results is that of the first undefined
// operand.
void propagate_vector(Wave& w, const Side& side, UninitGroup& g, UninitWave& u);
void propagate_matrix(Wave& w, const Side& side, UninitGroup& g, UninitWave& u);
void propagate_scalar(Wave& w, const Side& side, UninitGroup& g, UninitWave& u);

// Origin of the first undefined operand; 0 if there is none.
uint32_t first_origin(Wave& w, const Side& side, UninitGroup& g, UninitWave& u);

}  // namespace emu::check
