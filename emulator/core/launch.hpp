// The interface of the HIP layer to the machine. The machine knows nothing of HIP;
// the HIP layer knows nothing of instructions.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/counters.hpp"

namespace emu {

class MemoryMap;
class Program;

// The 64-byte kernel descriptor, decoded (LLVM AMDGPUUsage, "Kernel Descriptor").
struct KernelDescriptor {
  uint32_t group_segment_bytes = 0;
  uint32_t private_segment_bytes = 0;
  uint32_t kernarg_bytes = 0;
  uint32_t rsrc1 = 0, rsrc2 = 0, rsrc3 = 0;
  uint16_t properties = 0;
  uint16_t kernarg_preload = 0;
};

// One kernel of a loaded code object. Device addresses are host addresses: the code lies where
// the loader put it, and `code` is the executable segment that holds it.
struct Kernel {
  std::string name;
  std::string arch;  // "gfx950"
  KernelDescriptor descriptor;
  uint64_t entry = 0;             // address of the first instruction
  std::span<const uint8_t> code;  // executable segment; code.data() is its address
  uint32_t max_workgroup_size = 1024;
  // The machine's own form of the code, made at the first launch. It refers to `code`.
  mutable std::shared_ptr<Program> program;
  mutable std::shared_ptr<Program> observed_program;  // the form that sanitizers run
};

struct Launch {
  const Kernel* kernel = nullptr;
  std::array<uint32_t, 3> workgroups{1, 1, 1};
  std::array<uint32_t, 3> workgroup_size{1, 1, 1};
  uint32_t dynamic_lds_bytes = 0;
  std::span<const uint8_t> kernarg;  // complete: explicit and hidden arguments; 64-byte aligned
  const MemoryMap* memory = nullptr;
  int device = 0;
};

enum class FaultKind {
  illegal_instruction,  // unknown, malformed, or not of this architecture
  illegal_address,      // access outside every live allocation, or fetch outside the code
  launch_failure,       // the wave could not continue: budget, barrier divergence, trap
  out_of_resources,     // LDS, registers or workgroup size beyond the machine
};

// Names kernel, code address, instruction bytes and text, workgroup, wave, lane, and the data
// address with the nearest allocation where there is one.
struct Fault {
  FaultKind kind;
  std::string message;
};

// A running launch: workgroups spread over host threads (HIPGEMM_EMULATOR_THREADS, default: all
// cores). `launch` must outlive it. Never lets a signal escape for bad device code.
class Execution {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit Execution(const Launch& launch);  // throws std::bad_alloc
  ~Execution();
  // Runs workgroups until there are none left, or until that time, but for those begun by then.
  // True once the launch is over; it may continue at any time, on any thread. Never throws.
  bool go_on(Time until);

  const std::optional<Fault>& fault() const;  // once it is over
  const Counters& counters() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// The CPU level whose instruction semantics are in use: v2, v3, v4, or base off x86-64.
const char* cpu_level();

}  // namespace emu
