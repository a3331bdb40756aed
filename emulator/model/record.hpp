// What chosen workgroups of a launch executed: for each wave the instructions in their order, and
// the banks and lines that each memory instruction touched. Nothing here depends on time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "check/check.hpp"

namespace emu::model {

// What issues in one clock of a SIMD: at most one of each, but for `internal`.
enum class Unit : uint8_t { vector, memory, scalar, lds, branch, internal };

// An instruction of the code.
struct Op {
  check::Side side;
  Unit unit{};
  bool packed = false, swap = false, scaled = false;
  bool straddles = false;                // eight bytes across a boundary of eight
  uint8_t wait_vm = 63, wait_lgkm = 15;  // of s_waitcnt
};

// What one execution of a memory instruction touches.
struct Touch {
  uint32_t first = 0, lines = 0;  // lines of 128 bytes, in Trace::line
  uint16_t banks = 0;             // clocks of all LDS banks
  uint16_t returned = 0;          // bytes that LDS returns
};

struct Step {
  uint32_t op = 0;
  uint32_t touch = 0;  // in Trace::touch; 0 for none
};

// One wave.
struct Trace {
  std::vector<Step> step;
  std::vector<Touch> touch{1};
  std::vector<uint64_t> line;
};

struct Recording {
  std::string kernel;
  uint64_t entry = 0;
  std::vector<uint64_t> chosen;           // numbers of workgroups
  bool only = false;                      // no others are run
  std::vector<std::vector<Trace>> group;  // the waves of each of them
  std::vector<Op> op;
};

// Whether a workgroup of the launch is run.
bool runs(const Recording& recording, uint64_t number);

// Of a launch that begins; null if none are asked for.
std::shared_ptr<Recording> start_recording(const LaunchContext& context);
// Of one host thread.
std::unique_ptr<check::Check> make_recorder(std::shared_ptr<Recording> to);
// Of the last launch that was recorded, one with matrix instructions if any has them; null if none
// was.
std::shared_ptr<const Recording> last_recording();

}  // namespace emu::model
