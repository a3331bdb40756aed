#include "check/footprint.hpp"

#include <algorithm>
#include <string_view>

namespace emu::check {
namespace {

class Builder {
 public:
  Builder(const Decoded& d, uint32_t accum_offset)
      : d_(d), op_(info(d.op)), accum_(static_cast<uint16_t>(accum_offset)) {}

  Footprint build() {
    f_.reads_scc = op_.has(kReadsScc);
    f_.writes_scc = op_.has(kWritesScc);
    switch (op_.family) {
      case Family::SMEM:
        scalar_memory();
        break;
      case Family::DS:
      case Family::MUBUF:
      case Family::MTBUF:
      case Family::FLAT:
      case Family::GLOBAL:
      case Family::SCRATCH:
        vector_memory();
        break;
      default:
        alu();
    }
    if (op_.has(kReadsM0)) f_.scalar_reads.add(kM0, 1, Role::implied);
    return f_;
  }

 private:
  void read(Operand o, int dwords, Role role) {
    if (is_vector(o))
      f_.vector_reads.add(index(o), std::min(dwords, 512 - index(o)), role);
    else if (o < 128)
      f_.scalar_reads.add(o, std::min(dwords, 128 - o), role);
    else if (o == 251)
      f_.scalar_reads.add(kVccLo, 2, role);
    else if (o == 252)
      f_.scalar_reads.add(kExecLo, 2, role);
    else if (o == kScc)
      f_.reads_scc = true;
  }
  void write(Operand o, int dwords, Role role) {
    if (is_vector(o))
      f_.vector_writes.add(index(o), std::min(dwords, 512 - index(o)), role);
    else if (o < 128)
      f_.scalar_writes.add(o, std::min(dwords, 128 - o), role);
  }
  uint16_t index(Operand o) const {
    return static_cast<uint16_t>(o < kAgpr ? o - kVgpr : accum_ + (o - kAgpr));
  }
  bool vector_alu() const {
    switch (op_.family) {
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

  void scalar_memory() {
    if (d_.sbase != kNoOperand) {
      const bool descriptor = std::string_view(op_.name).find("buffer") != std::string_view::npos;
      read(d_.sbase, descriptor ? 4 : 2, Role::address);
    }
    if (d_.soffset != kNoOperand) read(d_.soffset, 1, Role::address);
    if (op_.has(kStore) || op_.has(kAtomic)) read(d_.data0, op_.src[0].dwords, Role::data);
    if (!op_.has(kAtomic) || d_.sc0) write(d_.dst, op_.dst.dwords, Role::result);
  }

  void vector_memory() {
    f_.obeys_exec = true;
    const bool buffer = op_.family == Family::MUBUF || op_.family == Family::MTBUF;
    if (d_.addr != kNoOperand) {
      int registers = 1;
      if (buffer) registers = (d_.idxen ? 1 : 0) + (d_.offen ? 1 : 0);
      if (op_.family == Family::FLAT || op_.family == Family::GLOBAL)
        registers = d_.sbase == kNoOperand ? 2 : 1;
      read(d_.addr, registers, Role::address);
    }
    if (d_.sbase != kNoOperand)
      read(d_.sbase, buffer ? 4 : op_.family == Family::SCRATCH ? 1 : 2, Role::address);
    if (d_.soffset != kNoOperand) read(d_.soffset, 1, Role::address);
    if (d_.data0 != kNoOperand) read(d_.data0, op_.src[0].dwords, Role::data);
    if (d_.data1 != kNoOperand) read(d_.data1, op_.src[1].dwords, Role::data);
    if (d_.dst != kNoOperand) write(d_.dst, op_.dst.dwords, Role::result);
    if (d_.lds && (buffer || op_.family == Family::GLOBAL || op_.family == Family::SCRATCH))
      f_.scalar_reads.add(kM0, 1, Role::implied);
  }

  void alu() {
    const bool matrix = op_.family == Family::MFMA;
    f_.obeys_exec = vector_alu();
    for (int n = 0; n < 5; ++n) {
      const OperandType& type = op_.src[n];
      if (d_.src[n] == kNoOperand || !type) continue;
      int dwords = type.dwords;
      Role role = static_cast<Role>(n < 3 ? n : 2);
      if (matrix && n < 2) dwords = matrix_registers(d_, n);
      if (n > 2 || d_.op == Op::v_mfma_ld_scale_b32) role = Role::scale;
      // A mask of lanes; other 64-bit operands of vector operations are values.
      if (vector_alu() && op_.has(kReadsVcc) && type.kind == 'b' && type.bits == 64)
        role = Role::mask;
      if (type.where == OperandType::Where::lane && n == 1) role = Role::lane;
      read(d_.src[n], dwords, role);
    }
    if (d_.dst != kNoOperand) {
      const bool keeps = op_.has(kReadsDst) || (d_.sdwa && d_.dst_unused == 2 && d_.dst_sel != 6);
      if (keeps) read(d_.dst, op_.dst.dwords, Role::old);
      write(d_.dst, op_.dst.dwords, Role::result);
    }
    if (d_.dst2 != kNoOperand) write(d_.dst2, op_.dst2.dwords, Role::result2);
    if (d_.op == Op::v_swap_b32 || d_.op == Op::v_permlane16_swap_b32 ||
        d_.op == Op::v_permlane32_swap_b32)
      write(d_.src[0], 1, Role::result2);

    if (op_.has(kReadsVcc) && (op_.family == Family::SOPP || is_fmas()))
      f_.scalar_reads.add(kVccLo, 2, is_fmas() ? Role::mask : Role::implied);
    if (d_.op == Op::s_set_gpr_idx_on || d_.op == Op::s_set_gpr_idx_idx)
      f_.scalar_writes.add(kM0, 1, Role::result);
    if (op_.has(kReadsExec)) f_.scalar_reads.add(kExecLo, 2, Role::implied);
    if (op_.has(kWritesExec)) f_.scalar_writes.add(kExecLo, 2, Role::implied);
  }

  bool is_fmas() const { return d_.op == Op::v_div_fmas_f32 || d_.op == Op::v_div_fmas_f64; }

  const Decoded& d_;
  const OpInfo& op_;
  const uint16_t accum_;
  Footprint f_;
};

template <class List>
void append(std::string& text, const List& vectors, const auto& scalars, bool scc,
            uint32_t accum_offset) {
  const auto range = [&](const char* letter, uint32_t first, uint32_t count) {
    text += std::string(" ") + letter;
    text += count == 1
                ? std::to_string(first)
                : "[" + std::to_string(first) + ":" + std::to_string(first + count - 1) + "]";
  };
  for (const Registers& r : vectors) {
    const bool acc = r.first >= accum_offset;
    range(acc ? "a" : "v", r.first - (acc ? accum_offset : 0), r.count);
  }
  for (const Registers& r : scalars) {
    if (r.first == kVccLo && r.count == 2)
      text += " vcc";
    else if (r.first == kExecLo && r.count == 2)
      text += " exec";
    else if (r.first == kM0)
      text += " m0";
    else if (r.first >= 102)
      text += r.first == 106   ? " vcc_lo"
              : r.first == 107 ? " vcc_hi"
              : r.first == 126 ? " exec_lo"
              : r.first == 127 ? " exec_hi"
                               : " special";
    else
      range("s", r.first, r.count);
  }
  if (scc) text += " scc";
}

}  // namespace

int matrix_registers(const Decoded& d, int operand) {
  switch (d.op) {
    case Op::v_mfma_f32_16x16x128_f8f6f4:
    case Op::v_mfma_f32_32x32x64_f8f6f4:
    case Op::v_mfma_scale_f32_16x16x128_f8f6f4:
    case Op::v_mfma_scale_f32_32x32x64_f8f6f4: {
      const int format = operand == 0 ? d.cbsz : d.blgp;
      return format < 2 ? 8 : format < 4 ? 6 : 4;
    }
    default:
      return info(d.op).src[operand].dwords;
  }
}

Footprint footprint(const Decoded& d, uint32_t accum_offset) {
  return Builder(d, accum_offset).build();
}

std::string describe(const Footprint& f, uint32_t accum_offset) {
  std::string text = "reads";
  append(text, f.vector_reads, f.scalar_reads, f.reads_scc, accum_offset);
  text += " writes";
  append(text, f.vector_writes, f.scalar_writes, f.writes_scc, accum_offset);
  return text;
}

}  // namespace emu::check
