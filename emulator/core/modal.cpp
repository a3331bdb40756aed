#include "core/modal.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "core/program.hpp"
#include "core/wave.hpp"

namespace emu {
namespace {

// An instruction, and its modified form for each value of M0 so far.
struct Indexed {
  Program& program;
  Decoded decoded;
  std::mutex mutex;
  std::map<uint32_t, std::vector<Inst>> variants;

  const std::vector<Inst>& under(uint32_t m0) {
    const std::lock_guard lock(mutex);
    auto it = variants.find(m0);
    if (it == variants.end()) {
      Decoded d = decoded;
      // VGPRs and AGPRs alike. One outside its file is invalid: lowering refuses it.
      const auto shift = [&](Operand& o, bool chosen) {
        if (!chosen || o < kVgpr || o == kNoOperand) return;
        const uint32_t moved = o + (m0 & 0xff), end = o < kAgpr ? kAgpr : kAgpr + 256;
        o = moved < end ? static_cast<Operand>(moved) : kNoOperand;
      };
      for (int n = 0; n < 3; ++n) shift(d.src[n], m0 >> (12 + n) & 1);
      shift(d.dst, m0 >> 15 & 1);
      it = variants.emplace(m0, program.lower_alone(d)).first;
    }
    return it->second;
  }
};

const Inst* skip(Wave& w, const Inst* i) { return w.mode & kModeVskip ? i + i->imm : i + 1; }

const Inst* index(Wave& w, const Inst* i) {
  if (!(w.mode & kModeGprIndex)) return i + 1;
  const auto& variant = reinterpret_cast<Indexed*>(i->wide)->under(w.s[kSlotM0] & 0xf0ff);
  if (variant.empty())
    return fault(w, i, FaultKind::launch_failure, "M0 indexes beyond the vector registers");
  const Inst* const end = variant.data() + variant.size();
  return variant[0].fn(w, variant.data()) == end ? i + i->imm : nullptr;
}

}  // namespace

bool is_vector(const Decoded& d) {
  switch (info(d.op).family) {
    case Family::SOP1:
    case Family::SOP2:
    case Family::SOPC:
    case Family::SOPK:
    case Family::SOPP:
    case Family::SMEM:
      return false;
    default:
      return true;
  }
}

bool takes_indices(const Decoded& d) {
  switch (info(d.op).family) {
    case Family::VOP1:
    case Family::VOP2:
    case Family::VOPC:
    case Family::VOP3:
    case Family::VOP3P:
      return true;
    default:
      return false;
  }
}

Inst skip_prefix(int length) {
  Inst i;
  i.fn = skip;
  i.imm = length;
  return i;
}

Inst index_prefix(Program& program, const Decoded& d, int length) {
  const auto indexed = std::make_shared<Indexed>(program, d);
  program.keep(indexed);
  Inst i;
  i.fn = index;
  i.imm = length;
  i.wide = reinterpret_cast<uint64_t>(indexed.get());
  return i;
}

}  // namespace emu
