// A kernel's code, lowered as far as it has been reached.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "core/launch.hpp"
#include "core/lowering.hpp"
#include "core/tally.hpp"

namespace emu {

struct Mutant;

class Program {
 public:
  explicit Program(const Kernel& kernel, bool observed = false);

  // The instruction at an address; code there is lowered first if need be, with everything it
  // reaches by static branches. Never null: a bad address gives an instruction that faults.
  const Inst* at(uint64_t address);
  // What an instruction was lowered from; null if it is not of this program.
  const Decoded* source(const Inst* i) const;
  // Why an instruction that faults does so.
  const char* failure(const Inst* i) const;
  // Counts the instructions from `first` to `last`, executed `times` times.
  void tally(const Inst* first, const Inst* last, uint64_t times, Counters& to) const;

  // Constants, in the order of their slots from kSlotConstants on.
  uint32_t copy_constants(uint32_t* slots, uint32_t from) const;

  const Mutant* mutated_by() const { return mutant_; }
  uint32_t vgprs() const { return vgprs_; }
  uint32_t accum_offset() const { return accum_offset_; }
  const std::string& kernel_name() const { return name_; }
  // An instruction outside its position in the code: run from the first, up to the end. Empty if
  // it is none that can be run.
  std::vector<Inst> lower_alone(const Decoded& d);
  // What instructions need as long as the program lives.
  void keep(std::shared_ptr<const void> thing) { kept_.push_back(std::move(thing)); }

 private:
  friend class Lowering;
  struct Batch {
    std::vector<Inst> code;
    std::vector<uint32_t> source;  // index into decoded
    std::vector<Decoded> decoded;
    std::map<size_t, const char*> failures;
    std::vector<Tally> tally{1};  // of all instructions before each
  };

  void lower_from(uint64_t address);
  const char* refuse(std::span<const uint8_t> bytes, uint64_t address, Decoded& d);
  const Inst* stray(uint64_t address);
  uint16_t intern(const uint32_t* values, int n);

  const std::string name_;
  const std::span<const uint8_t> code_;
  const Semantics& semantics_;
  const bool observed_;
  const Mutant* const mutant_;  // when it was made
  uint32_t vgprs_ = 0, accum_offset_ = 0;
  bool indexes_ = false, skips_ = false;  // uses s_set_gpr_idx_on, s_setvskip (core/modal.hpp)

  mutable std::shared_mutex mutex_;
  std::vector<std::unique_ptr<Batch>> batches_;
  std::unordered_map<uint64_t, const Inst*> entry_;
  std::vector<uint32_t> constants_;
  std::map<std::vector<uint32_t>, uint16_t> interned_;
  std::vector<std::shared_ptr<const void>> kept_;
};

// The program of a kernel, made at its first launch and kept with it.
std::shared_ptr<Program> program_of(const Kernel& kernel, bool observed);

}  // namespace emu
