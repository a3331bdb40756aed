// The interface of the sanitizers (emulator/check) to the machine. An observed launch runs a
// program of its own, in which an instruction of the observer precedes each of the kernel's; one
// that is not observed has no overhead.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/counters.hpp"
#include "core/inst.hpp"
#include "isa/decoded.hpp"

namespace emu {

class Program;
struct LaunchContext;
struct Workgroup;

class Observer {
 public:
  virtual ~Observer() = default;
  // A host thread is about to run workgroups in `group`; its waves have their memory.
  virtual void attach(Workgroup& group) = 0;
  // Whether to run the workgroup of that number at all.
  virtual bool runs(uint64_t number) const = 0;
  virtual void group_started(Workgroup& group) = 0;
  // Registers are set: the first `sgprs` scalar ones, v0 of the live lanes.
  virtual void wave_started(Wave& w, uint32_t sgprs) = 0;
  // All waves have arrived and continue. False after a finding.
  virtual bool barrier_passed(Workgroup& group) = 0;
  virtual bool group_ended(Workgroup& group) = 0;
  // All host threads are done.
  virtual void launch_ended(Counters& counters) = 0;
};

// Prepares an instruction of an observed program. `before` runs instead of `inst`, which follows it
// in memory, and must run it; it may wrap inst.land.
void observe_instruction(Program& program, const Decoded& d, Inst& before, Inst& inst);

// The observer that the environment or hipgemm_emulator_set_check asks for. Null for none; an
// error text if the request is invalid.
std::unique_ptr<Observer> make_observer(LaunchContext& context, std::string& error);

}  // namespace emu
