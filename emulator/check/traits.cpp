#include <string_view>

#include "check/check.hpp"

namespace emu::check {
namespace {

bool is_f32(Op op) { return std::string_view(info(op).name).ends_with("_f32"); }

// Cycles of the matrix pipe, in passes of four clocks.
uint8_t matrix_passes(const Decoded& d) {
  const std::string_view name = info(d.op).name;
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  const bool large = has("_32x32x");
  if (has("_f64_")) return static_cast<uint8_t>(has("_4x4x4") ? 4 : arch().f64_passes);
  if (has("_4x4x")) return 2;
  if (has("f8f6f4")) {
    const int base = large ? 8 : 4;
    return static_cast<uint8_t>(d.cbsz < 2 || d.blgp < 2 ? 2 * base : base);
  }
  const bool full_rate = !has("b_") && !is_f32(d.op);  // one block
  const int passes = large ? 8 : 4;
  return static_cast<uint8_t>(full_rate ? passes : 2 * passes);
}

// Results that go through the narrow forwarding path: a half or a byte of the register.
bool writes_part(const Decoded& d) {
  if (d.sdwa) return d.dst_sel != 6 && d.dst != kNoOperand && d.dst >= kVgpr;
  if (d.format != Family::VOP3 || !info(d.op).has(kOpSel)) return false;
  const std::string_view name = info(d.op).name;
  if (name.find("_sr_pk_fp4_") != name.npos) return true;
  const bool byte = selects_byte(d.op) || name.find("scalef32_sr_fp8") != name.npos ||
                    name.find("scalef32_sr_bf8") != name.npos;
  return (d.op_sel & 8) || (byte && (d.op_sel & 4));
}

}  // namespace

Traits traits(const Decoded& d) {
  const OpInfo& op = info(d.op);
  Traits t;
  switch (op.family) {
    case Family::VOP1:
    case Family::VOP2:
    case Family::VOPC:
    case Family::VOP3:
    case Family::VOP3P:
      t.vector_alu = true;
      break;
    case Family::MFMA:
      t.vector_alu = t.mfma = true;
      t.dgemm = op.dst.bits == 64;
      t.xdl = !t.dgemm && !is_f32(d.op);
      t.passes = matrix_passes(d);
      break;
    case Family::SOP1:
    case Family::SOP2:
    case Family::SOPC:
    case Family::SOPK:
      t.scalar_alu = true;
      break;
    case Family::DS:
      t.lds = true;
      break;
    case Family::MUBUF:
    case Family::MTBUF:
    case Family::FLAT:
    case Family::GLOBAL:
    case Family::SCRATCH:
      t.vector_memory = true;
      break;
    default:
      break;
  }
  t.trans = op.cls == OpClass::trans;
  t.dot = std::string_view(op.name).starts_with("v_dot");
  t.partial = t.vector_alu && writes_part(d);
  t.dpp = d.dpp;
  if (d.op == Op::s_nop) t.states = static_cast<uint8_t>((d.imm & 15) + 1);
  return t;
}

}  // namespace emu::check
