// The uninit check: scalar operations. Logic is tracked bit by bit, because compilers build lane
// masks from masks of which some lanes' bits mean nothing.
#include <cstring>

#include "check/uninit.hpp"

namespace emu::check {
namespace {

struct Bits {
  uint64_t value = 0, known = ~uint64_t{0};
};

Bits both(Bits a, Bits b) {  // a & b: a known zero decides
  return {a.value & b.value, (a.known & b.known) | (a.known & ~a.value) | (b.known & ~b.value)};
}
Bits either(Bits a, Bits b) {
  return {a.value | b.value, (a.known & b.known) | (a.known & a.value) | (b.known & b.value)};
}
Bits differ(Bits a, Bits b) { return {a.value ^ b.value, a.known & b.known}; }
Bits inverted(Bits a) { return {~a.value, a.known}; }

class Scalar {
 public:
  Scalar(Wave& w, const Side& side, UninitWave& u) : w_(w), side_(side), d_(side.decoded), u_(u) {}

  Bits source(int n, int dwords) const { return operand(d_.src[n], dwords); }
  Bits operand(Operand o, int dwords) const {
    Bits b;
    if (o < 128) {
      b.value = w_.s[o];
      b.known = u_.scalar[o];
      if (dwords == 2) {
        b.value |= uint64_t{w_.s[o + 1]} << 32;
        b.known |= uint64_t{u_.scalar[o + 1]} << 32;
      } else {
        b.known |= ~uint64_t{0} << 32;
      }
    } else if (o <= 192) {
      b.value = o - 128u;
    } else if (o <= 208) {
      b.value = static_cast<uint64_t>(-static_cast<int64_t>(o - 192));
    } else if (o == kLiteral) {
      b.value = d_.literal;
    } else if (o == kScc) {
      b.value = w_.scc;
      b.known = u_.scc ? ~uint64_t{0} : 0;
    } else {
      return {0, ~uint64_t{0}};
    }
    if (dwords == 1) b.value &= 0xffffffff;
    return b;
  }
  void store(Operand o, int dwords, uint64_t known, uint32_t origin) {
    for (int k = 0; k < dwords && o + k < 128; ++k) {
      u_.scalar[o + k] = static_cast<uint32_t>(known >> (32 * k));
      u_.scalar_origin[o + k] = origin;
    }
  }
  void set_scc(bool known, uint32_t origin) {
    u_.scc = known;
    u_.scc_origin = origin;
  }
  // SCC = (x != 0).
  static bool zero_known(Bits x, int dwords) {
    const uint64_t mask = dwords == 2 ? ~uint64_t{0} : 0xffffffff;
    return (x.value & x.known & mask) || (x.known & mask) == mask;
  }

  // Logic of up to two sources; false if the operation is another kind.
  bool logic(Bits a, Bits b, Bits& out) const {
    switch (d_.op) {
      case Op::s_mov_b32:
      case Op::s_mov_b64:
        out = a;
        return true;
      case Op::s_not_b32:
      case Op::s_not_b64:
        out = inverted(a);
        return true;
      case Op::s_and_b32:
      case Op::s_and_b64:
      case Op::s_and_saveexec_b64:
        out = both(a, b);
        return true;
      case Op::s_or_b32:
      case Op::s_or_b64:
      case Op::s_or_saveexec_b64:
        out = either(a, b);
        return true;
      case Op::s_xor_b32:
      case Op::s_xor_b64:
      case Op::s_xor_saveexec_b64:
        out = differ(a, b);
        return true;
      case Op::s_xnor_b32:
      case Op::s_xnor_b64:
      case Op::s_xnor_saveexec_b64:
        out = inverted(differ(a, b));
        return true;
      case Op::s_nand_b32:
      case Op::s_nand_b64:
      case Op::s_nand_saveexec_b64:
        out = inverted(both(a, b));
        return true;
      case Op::s_nor_b32:
      case Op::s_nor_b64:
      case Op::s_nor_saveexec_b64:
        out = inverted(either(a, b));
        return true;
      case Op::s_andn2_b32:
      case Op::s_andn2_b64:
      case Op::s_andn2_saveexec_b64:
      case Op::s_andn2_wrexec_b64:
        out = both(a, inverted(b));
        return true;
      case Op::s_orn2_b32:
      case Op::s_orn2_b64:
      case Op::s_orn2_saveexec_b64:
        out = either(a, inverted(b));
        return true;
      case Op::s_andn1_saveexec_b64:
      case Op::s_andn1_wrexec_b64:
        out = both(inverted(a), b);
        return true;
      case Op::s_orn1_saveexec_b64:
        out = either(inverted(a), b);
        return true;
      default:
        return false;
    }
  }

  void run(uint32_t origin) {
    const OpInfo& op = *side_.op;
    const int dwords = op.dst ? op.dst.dwords : op.src[0] ? op.src[0].dwords : 1;
    // The saveexec and wrexec forms combine their source with EXEC.
    const bool exec_form = op.has(kReadsExec) && op.has(kWritesExec);
    const Bits a = op.src[0] ? source(0, op.src[0].dwords) : Bits{};
    const Bits b = exec_form   ? Bits{w_.exec(), ~uint64_t{0}}
                   : op.src[1] ? source(1, op.src[1].dwords)
                               : Bits{};
    Bits out;
    if (logic(a, b, out)) {
      if (op.has(kWritesScc)) set_scc(zero_known(out, dwords), origin);
      if (exec_form) {
        store(kExecLo, 2, out.known, origin);
        const bool saves = std::strstr(op.name, "saveexec");
        if (d_.dst != kExecLo) store(d_.dst, 2, saves ? ~uint64_t{0} : out.known, origin);
      } else {
        store(d_.dst, dwords, out.known, origin);
      }
      return;
    }
    switch (d_.op) {
      case Op::s_cselect_b32:
      case Op::s_cselect_b64:
        store(d_.dst, dwords, !u_.scc ? 0 : w_.scc ? a.known : b.known, origin);
        return;
      case Op::s_cmov_b32:
      case Op::s_cmov_b64:
        if (!u_.scc || w_.scc) store(d_.dst, dwords, u_.scc ? a.known : 0, origin);
        return;
      case Op::s_cmovk_i32:
        if (!u_.scc || w_.scc) store(d_.dst, 1, u_.scc ? ~uint64_t{0} : 0, origin);
        return;
      case Op::s_lshl_b32:
      case Op::s_lshl_b64:
      case Op::s_lshr_b32:
      case Op::s_lshr_b64: {
        if (static_cast<uint32_t>(b.known) != ~0u) break;
        const uint32_t n = b.value & (dwords == 2 ? 63 : 31);
        const uint64_t mask = dwords == 2 ? ~uint64_t{0} : 0xffffffff;
        const bool left = d_.op == Op::s_lshl_b32 || d_.op == Op::s_lshl_b64;
        const uint64_t unknown = ~a.known & mask;
        const uint64_t known = ~(left ? unknown << n : unknown >> n);
        const uint64_t value = left ? a.value << n : a.value >> n;
        set_scc(zero_known({value, known}, dwords), origin);
        store(d_.dst, dwords, known, origin);
        return;
      }
      case Op::s_add_u32:  // carries go upwards only
      case Op::s_add_i32:
      case Op::s_sub_u32:
      case Op::s_sub_i32:
      case Op::s_mul_i32: {
        const uint32_t unknown = ~static_cast<uint32_t>(a.known & b.known);
        store(d_.dst, 1, (unknown & -unknown) - 1, origin);
        if (op.has(kWritesScc)) set_scc(false, origin);
        return;
      }
      case Op::s_bitcmp0_b32:
      case Op::s_bitcmp1_b32:
      case Op::s_bitcmp0_b64:
      case Op::s_bitcmp1_b64: {
        const uint32_t n = b.value & (op.src[0].dwords == 2 ? 63 : 31);
        set_scc(static_cast<uint32_t>(b.known) == ~0u && (a.known >> n & 1), origin);
        return;
      }
      default:
        break;
    }
    // Anything else: one unknown bit makes the result unknown.
    for (const Registers& r : side_.foot.scalar_writes) {
      if (r.role == Role::implied) continue;
      store(r.first, r.count, 0, origin);
    }
    if (op.has(kWritesScc)) set_scc(false, origin);
  }

 private:
  Wave& w_;
  const Side& side_;
  const Decoded& d_;
  UninitWave& u_;
};

}  // namespace

void propagate_scalar(Wave& w, const Side& side, UninitGroup& g, UninitWave& u) {
  switch (side.decoded.op) {  // their source is known at run time only: not tracked
    case Op::s_movrels_b32:
    case Op::s_movrels_b64:
    case Op::s_movreld_b32:
    case Op::s_movreld_b64:
      for (const Registers& r : side.foot.scalar_writes)
        for (int k = 0; k < r.count; ++k) u.scalar[r.first + k] = ~0u;
      return;
    default:
      break;
  }
  const uint32_t origin = first_origin(w, side, g, u);
  if (origin) {
    Scalar(w, side, u).run(origin);
    return;
  }
  for (const Registers& r : side.foot.scalar_writes)
    for (int k = 0; k < r.count; ++k) u.scalar[r.first + k] = ~0u;
  if (side.foot.writes_scc) u.scc = true;
}

}  // namespace emu::check
