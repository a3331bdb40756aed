// The framework of sanitizers. In an observed program every instruction of the kernel has one
// before it that runs the checks and then the instruction. Checks are called before
// and after an instruction; for a memory instruction also when it is queued and when it lands.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "check/access.hpp"
#include "check/footprint.hpp"
#include "core/machine.hpp"

namespace emu::check {

// The properties of an instruction that hazard rules use.
struct Traits {
  bool vector_alu = false;  // MFMA included
  bool mfma = false, dgemm = false, xdl = false, dot = false, trans = false;
  bool scalar_alu = false;
  bool vector_memory = false;  // buffer, flat, global, scratch
  bool lds = false;
  bool partial = false;  // writes part of a register, through the forwarding path that needs a gap
  bool dpp = false;
  uint8_t passes = 0;  // of MFMA
  uint8_t states = 1;  // wait states that it counts as
};
Traits traits(const Decoded& d);

// One instruction, as passed to checks.
struct Side {
  Decoded decoded;
  const OpInfo* op = nullptr;
  Footprint foot;
  Traits traits;
  MemoryShape shape;
  Landing land = nullptr;  // the machine's own
  uint32_t accum_offset = 0;
};

// "0x7f..: v_add_u32 v0, v1, v2".
std::string text_of(const Side& side);
// "v12", "a3", "s[4:5]", "vcc_lo".
std::string vector_name(const Side& side, uint32_t index);
std::string scalar_name(uint32_t index);
// Adds a finding about `i`, the first of this check there; false if the launch ends with it.
bool report(Wave& w, const Inst* i, const char* check, const std::string& what);

// One sanitizer, for one workgroup at a time. Functions that return bool return report()'s false
// after a finding.
class Check {
 public:
  virtual ~Check() = default;
  virtual void attach(Workgroup&) {}
  virtual void group_started(Workgroup&) {}
  virtual void wave_started(Wave&, uint32_t /*sgprs*/) {}
  virtual bool before(Wave&, const Inst*, const Side&) { return true; }
  virtual void after(Wave&, const Side&) {}
  // Which calls a check needs, since they take time: before and after every instruction,
  // else before waits, barriers and the end only; that something is queued; that it lands.
  struct Wants {
    bool all = true, queued = true, landing = true;
  };
  virtual Wants wants() const { return {}; }
  // The instruction in flight, in the slot that is `p`'s; its operands are in `p`.
  virtual bool queued(Wave&, const Side&, const Pending& /*p*/) { return true; }
  // It takes effect: just before and just after. `access` is null if it touches no memory, or if no
  // check of the launch uses it.
  virtual bool wants_access() const { return false; }
  virtual bool landing(Wave&, const Side&, const Pending&, const Access*) { return true; }
  virtual void landed(Wave&, const Side&, const Pending&, const Access*) {}
  virtual bool barrier_passed(Workgroup&) { return true; }
  virtual bool group_ended(Workgroup&) { return true; }
  virtual void launch_ended(Counters&) {}
};

std::unique_ptr<Check> make_hazard_check(bool advice);  // of advice: findings, else notes
std::unique_ptr<Check> make_barrier_check();
std::unique_ptr<Check> make_bounds_check(const LaunchContext& context);
std::unique_ptr<Check> make_uninit_check(const LaunchContext& context);

inline uint32_t slot_of(const Wave& w, const Pending& p) {
  return static_cast<uint32_t>(&p - w.pending);
}

}  // namespace emu::check
