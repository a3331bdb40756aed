// The hazard check: wait states that the program must keep between two instructions because the
// hardware does not, and registers used while a load into them is in flight.
//
// A wait state is an instruction issued in between; s_nop n counts n + 1. The distances are those
// of AMD's CDNA3 and CDNA4 ISA documents and of LLVM's hazard recognizer. Some of them are kept by
// the compiler alone: AMD's own binaries do without, so that the hardware must wait there by
// itself. The check reports these as advice.
#include <algorithm>

#include "check/check.hpp"
#include "core/notes.hpp"

namespace emu::check {
namespace {

// When something last happened to a register, and which instruction did it.
struct Event {
  uint32_t at = 0;  // the wave's clock at issue
  const Side* by = nullptr;
};

struct VectorState {
  Event mfma;    // written by an MFMA
  Event valu;    // written by another vector operation
  Event read_c;  // read as C by an XDL MFMA
  Event stored;  // read as store data of more than 64 bits
};
struct ScalarState {
  Event valu, salu;
};

// Loads in flight to a register, by their queue.
struct Flight {
  uint8_t vm = 0, ds = 0, smem = 0;
  const Side* by = nullptr;
  explicit operator bool() const { return vm | ds | smem; }
};

constexpr uint32_t kLongest = 20;  // no rule has a larger distance
constexpr int kScalars = 128;
constexpr int kVectors = 512;

struct WaveState {
  uint32_t clock = 0;
  Event dgemm, setreg, exec_valu;
  VectorState vector[kVectors];
  ScalarState scalar[kScalars];
  Flight vector_flight[kVectors];
  Flight scalar_flight[kScalars];
  uint32_t vectors_in_flight = 0, scalars_in_flight = 0;
};

// ---- MFMA distances -----------------------------------------------------------------------------

// gfx950 needs one state more than gfx942, but for two-pass instructions.
int extra(const Traits& t) { return t.passes == 2 ? 0 : arch().after_xdl; }

// D of `a` to any use but C: another MFMA's A or B, a vector operation, a store.
int after_result(const Traits& a, const Traits& b) {
  if (a.dgemm) {
    if (a.passes == 4) return b.vector_memory || b.lds ? 9 : 6;
    return b.vector_memory || b.lds ? 18 : a.passes + 3;
  }
  return a.xdl ? a.passes + 3 + extra(a) : a.passes + 2;
}

// Whether results may be passed on from one to the other: scales make no difference, formats may.
bool same_operation(const Side& a, const Side& b) {
  return a.op->opcode == b.op->opcode && a.traits.passes == b.traits.passes;
}

// D of `a` to C of `b`.
int after_result_as_c(const Side& a, const Side& b, const Registers& c) {
  const Traits &x = a.traits, &y = b.traits;
  const Registers& d = a.foot.vector_writes.item[0];
  const bool same_registers = d.first == c.first && d.count == c.count;
  if (same_registers) {
    if (x.dgemm && x.passes == 4 && y.dgemm && y.passes == 4) return 4;
    // Results are passed on within a chain of one opcode only.
    if (!x.xdl || same_operation(a, b)) return x.passes == 2 ? 2 : 0;
  }
  if (x.dgemm) return y.xdl ? 0 : x.passes == 4 ? 4 : x.passes + 1;
  if (x.xdl) return x.passes + 1 + extra(x);
  return y.xdl ? 0 : x.passes;
}

// C of `a` to a write of the same register.
int after_c_read(const Traits& a) { return a.passes - 1; }

// ---- the check ----------------------------------------------------------------------------------

class Hazards final : public Check {
 public:
  explicit Hazards(bool advice) : advice_(advice) {}
  void attach(Workgroup& group) override { states_.resize(group.waves.size()); }
  void wave_started(Wave& w, uint32_t) override {
    auto& s = states_[w.index];
    if (!s) s = std::make_unique<WaveState>();
    s->clock += 2 * kLongest;  // the last wave's events do not count
  }

  bool before(Wave& w, const Inst* i, const Side& b) override {
    WaveState& s = *states_[w.index];
    if (!in_flight(w, i, b, s) || !vector_rules(w, i, b, s) || !scalar_rules(w, i, b, s))
      return false;
    record(b, s);
    return true;
  }

  bool queued(Wave& w, const Side& side, const Pending&) override {
    fly(w, side, 1);
    return true;
  }
  void landed(Wave& w, const Side& side, const Pending&, const Access*) override {
    fly(w, side, -1);
  }

 private:
  // Wait states between an event and the instruction about to issue.
  static uint32_t gap(const WaveState& s, const Event& e) {
    return s.clock - e.at - e.by->traits.states;
  }
  static bool near(const WaveState& s, const Event& e) {
    return e.by && s.clock - e.at <= kLongest;
  }

  // From `enough` wait states on, hardware waits by itself, as AMD's own binaries show.
  bool too_close(Wave& w, const Inst* i, const WaveState& s, const Event& e, int needed,
                 const std::string& what, int enough = kLongest + 1) const {
    if (!e.by || needed <= 0 || gap(s, e) >= static_cast<uint32_t>(needed)) return true;
    const uint32_t kept = gap(s, e);
    const bool advice = kept >= static_cast<uint32_t>(enough);
    const std::string text =
        what + ", with " + std::to_string(kept) + " wait state" + (kept == 1 ? "" : "s") +
        " in between where " + std::to_string(needed) + (needed == 1 ? " is" : " are") +
        " needed; the other is " + text_of(*e.by) +
        (advice ? " (advice: hardware waits by itself)" : " (values may be wrong)");
    if (!advice || advice_) return report(w, i, "hazard", text);
    note(w, i, NoteKind::advice, "hazard: " + text);
    return true;
  }
  // Of the wait states after an XDL MFMA, those that AMD's binaries keep.
  static int kept_by_amd(const Traits& a) {
    return a.xdl && arch().xdl_advice ? a.passes + 2 : static_cast<int>(kLongest) + 1;
  }

  // ---- loads in flight ----

  void fly(Wave& w, const Side& side, int change) {
    WaveState& s = *states_[w.index];
    const Family family = side.op->family;
    const auto move = [&](Flight& f, uint32_t& total) {
      uint8_t& n = family == Family::SMEM ? f.smem : family == Family::DS ? f.ds : f.vm;
      n = static_cast<uint8_t>(n + change);
      total += static_cast<uint32_t>(change);
      if (change > 0) f.by = &side;
    };
    for (const Registers& r : side.foot.vector_writes)
      for (uint32_t k = 0; k < r.count; ++k)
        move(s.vector_flight[r.first + k], s.vectors_in_flight);
    for (const Registers& r : side.foot.scalar_writes)
      for (uint32_t k = 0; k < r.count; ++k)
        move(s.scalar_flight[r.first + k], s.scalars_in_flight);
  }

  static bool arriving(Wave& w, const Inst* i, const std::string& name, const Flight& f,
                       const char* verb) {
    return report(w, i, "hazard",
                  name + " is " + verb + " while a load into it is in flight: an s_waitcnt for " +
                      (f.vm ? "vmcnt" : "lgkmcnt") + " is missing; the load is " + text_of(*f.by));
  }

  bool in_flight(Wave& w, const Inst* i, const Side& b, WaveState& s) {
    if (s.vectors_in_flight) {
      for (const Registers& r : b.foot.vector_reads)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
          if (s.vector_flight[k] && r.role != Role::old)
            return arriving(w, i, vector_name(b, k), s.vector_flight[k], "read");
      for (const Registers& r : b.foot.vector_writes)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
          const Flight& f = s.vector_flight[k];
          if (!f) continue;
          // Loads of one queue return in order.
          const bool same = b.traits.vector_memory ? f.ds == 0 : b.traits.lds ? f.vm == 0 : false;
          if (!same) return arriving(w, i, vector_name(b, k), f, "overwritten");
        }
    }
    if (s.scalars_in_flight) {
      for (const Registers& r : b.foot.scalar_reads)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
          if (s.scalar_flight[k]) return arriving(w, i, scalar_name(k), s.scalar_flight[k], "read");
      for (const Registers& r : b.foot.scalar_writes)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
          if (s.scalar_flight[k])
            return arriving(w, i, scalar_name(k), s.scalar_flight[k], "overwritten");
    }
    return true;
  }

  // ---- vector registers ----

  bool vector_rules(Wave& w, const Inst* i, const Side& b, WaveState& s) {
    const Traits& t = b.traits;
    if (!t.vector_alu && !t.vector_memory && !t.lds) return true;
    const bool reads_lane =
        b.decoded.op == Op::v_readlane_b32 || b.decoded.op == Op::v_readfirstlane_b32;
    const bool swaps =
        b.decoded.op == Op::v_permlane16_swap_b32 || b.decoded.op == Op::v_permlane32_swap_b32;
    for (const Registers& r : b.foot.vector_reads) {
      const bool as_c = t.mfma && (r.role == Role::source2 || r.role == Role::old) &&
                        !(b.op->has(kReadsDst) && r.role == Role::source2);  // smfmac: the index
      for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
        const VectorState& v = s.vector[k];
        if (near(s, v.mfma)) {
          const int need =
              as_c ? after_result_as_c(*v.mfma.by, b, r) : after_result(v.mfma.by->traits, t);
          if (!too_close(w, i, s, v.mfma, need,
                         vector_name(b, k) + " is read after an MFMA has written it",
                         t.mfma ? static_cast<int>(kLongest) + 1 : kept_by_amd(v.mfma.by->traits)))
            return false;
        }
        if (!near(s, v.valu) || s.clock - v.valu.at > 4) continue;
        const Side& a = *v.valu.by;
        int need = 0;
        if (t.mfma) {
          if (!a.traits.dot) need = 2;
        } else if (a.traits.dot) {
          if (a.op != b.op || (r.role != Role::source2 && r.role != Role::old)) need = 3;
        } else if (t.vector_alu) {
          if (t.dpp && r.role == Role::source0) need = 2;
          if (swaps) need = 2;
          if (reads_lane) need = 1;
          if (a.traits.trans && !t.trans) need = std::max(need, 1);
          if (a.traits.partial) need = std::max(need, 1);
        }
        if (need &&
            !too_close(w, i, s, v.valu, need,
                       vector_name(b, k) + " is read after a vector operation has written it"))
          return false;
      }
    }
    if (t.mfma) return true;  // in order among themselves
    for (const Registers& r : b.foot.vector_writes)
      for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
        const VectorState& v = s.vector[k];
        if (near(s, v.mfma)) {
          const Traits& a = v.mfma.by->traits;
          const int need = a.dgemm ? (a.passes == 4 ? 6 : 11) : after_result(a, t);
          if (!too_close(w, i, s, v.mfma, need,
                         vector_name(b, k) + " is overwritten after an MFMA has written it",
                         kept_by_amd(a)))
            return false;
        }
        if (near(s, v.read_c) &&
            !too_close(w, i, s, v.read_c, after_c_read(v.read_c.by->traits),
                       vector_name(b, k) + " is overwritten while an MFMA reads it as C"))
          return false;
        if (!t.vector_alu) continue;
        if (near(s, v.stored) &&
            !too_close(w, i, s, v.stored, 2,
                       vector_name(b, k) + " is overwritten while a store reads its data"))
          return false;
        if (near(s, v.valu) && v.valu.by->traits.dot && v.valu.by->op != b.op &&
            !too_close(w, i, s, v.valu, 3,
                       vector_name(b, k) + " is overwritten after a dot product has written it"))
          return false;
        if (near(s, v.valu) && v.valu.by->traits.partial &&
            !too_close(w, i, s, v.valu, 1,
                       vector_name(b, k) + " is written right after a part of it was"))
          return false;
      }
    return true;
  }

  // ---- scalar registers and modes ----

  bool scalar_rules(Wave& w, const Inst* i, const Side& b, WaveState& s) {
    const Traits& t = b.traits;
    const Op op = b.decoded.op;
    for (const Registers& r : b.foot.scalar_reads)
      for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
        const ScalarState& x = s.scalar[k];
        if (near(s, x.valu)) {
          int need = 0;
          if (t.vector_memory) need = 5;
          if (t.vector_alu) need = r.role == Role::lane ? 4 : 2;
          if (t.vector_alu && r.role == Role::mask && is_fmas(op)) need = 4;
          if (k >= kExecLo) need = 0;
          if (need &&
              !too_close(w, i, s, x.valu, need,
                         scalar_name(k) + " is read after a vector operation has written it"))
            return false;
        }
        if (k == kM0 && near(s, x.salu) && needs_ready_m0(b) &&
            !too_close(w, i, s, x.salu, 1, "m0 is read after a scalar operation has written it",
                       b.shape.to_lds ? 0 : kLongest + 1))
          return false;
      }
    if (near(s, s.exec_valu) && t.vector_alu) {
      const bool lane =
          op == Op::v_readlane_b32 || op == Op::v_readfirstlane_b32 || op == Op::v_writelane_b32;
      const bool swaps = op == Op::v_permlane16_swap_b32 || op == Op::v_permlane32_swap_b32;
      const int need = t.dpp ? 5 : t.mfma || lane || swaps ? 4 : 0;
      if (!too_close(w, i, s, s.exec_valu, need,
                     "EXEC matters here after a vector operation has written it"))
        return false;
    }
    if (near(s, s.dgemm) && (op == Op::v_fma_f64 || op == Op::v_fmac_f64) &&
        !too_close(w, i, s, s.dgemm, 2, "an f64 multiply-add follows an f64 MFMA"))
      return false;
    const bool sets = op == Op::s_setreg_b32 || op == Op::s_setreg_imm32_b32;
    if ((sets || op == Op::s_getreg_b32) && near(s, s.setreg) &&
        ((s.setreg.by->decoded.imm ^ b.decoded.imm) & 63) == 0 &&
        !too_close(w, i, s, s.setreg, 2, "a hardware register is used after s_setreg"))
      return false;
    return true;
  }

  static bool is_fmas(Op op) { return op == Op::v_div_fmas_f32 || op == Op::v_div_fmas_f64; }
  static bool needs_ready_m0(const Side& b) {
    switch (b.decoded.op) {
      case Op::s_movrels_b32:
      case Op::s_movrels_b64:
      case Op::s_movreld_b32:
      case Op::s_movreld_b64:
      case Op::s_sendmsg:
      case Op::s_sendmsghalt:
        return true;
      default:
        return b.shape.to_lds;
    }
  }

  // ---- what happened ----

  static void record(const Side& b, WaveState& s) {
    const Traits& t = b.traits;
    const Event now{s.clock, &b};
    if (t.vector_alu) {
      for (const Registers& r : b.foot.vector_writes)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
          (t.mfma ? s.vector[k].mfma : s.vector[k].valu) = now;
      for (const Registers& r : b.foot.scalar_writes)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
          s.scalar[k].valu = now;
          if (k == kExecLo) s.exec_valu = now;
        }
      if (t.xdl)
        for (const Registers& r : b.foot.vector_reads)
          if (r.role == (b.op->has(kReadsDst) ? Role::old : Role::source2))
            for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
              s.vector[k].read_c = now;
      if (t.dgemm) s.dgemm = now;
    } else if (t.scalar_alu) {
      for (const Registers& r : b.foot.scalar_writes)
        for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
          s.scalar[k].salu = now;
          s.scalar[k].valu.by = nullptr;
        }
      if (b.decoded.op == Op::s_setreg_b32 || b.decoded.op == Op::s_setreg_imm32_b32)
        s.setreg = now;
    } else if (t.vector_memory) {
      const bool scalar_offset = b.decoded.soffset < 128;
      const Registers* data = b.foot.vector_reads.find(Role::data);
      if (data && data->count > 2 && !scalar_offset)
        for (uint32_t k = data->first; k < data->first + uint32_t{data->count}; ++k)
          s.vector[k].stored = now;
    }
    s.clock += t.states;
  }

  const bool advice_;
  std::vector<std::unique_ptr<WaveState>> states_;
};

}  // namespace

std::unique_ptr<Check> make_hazard_check(bool advice) { return std::make_unique<Hazards>(advice); }

}  // namespace emu::check
