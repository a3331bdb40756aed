// Decodes instruction words. What is not exactly an instruction of the table (reserved bits,
// misaligned tuples, modifiers the opcode does not have) is refused: it would not mean the same
// thing on the GPU.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "isa/decoded.hpp"

namespace emu {
namespace {

// ---- the table ----------------------------------------------------------------------------------

OperandType parse_type(const char*& s) {
  using Where = OperandType::Where;
  OperandType t;
  const auto start = s;
  auto number = [&] {
    int n = 0;
    while (*s >= '0' && *s <= '9') n = 10 * n + (*s++ - '0');
    return n;
  };
  if (std::strncmp(s, "addr", 4) == 0) {
    s += 4;
    t.kind = '@';
    return t;
  }
  if (*s == 's' || *s == 'l' || *s == 'v' || *s == 'a') {
    t.where = *s == 's'   ? Where::sgpr
              : *s == 'l' ? Where::lane
              : *s == 'v' ? Where::vgpr
                          : Where::agpr;
    ++s;
  }
  t.kind = 'b';
  if (*s == 'b' && s[1] == 'f') {
    t.kind = 'h';
    s += 2;
  } else if (*s >= 'a' && *s <= 'z') {
    t.kind = *s++;
  }
  t.bits = number();
  t.elements = 1;
  if (*s == 'x') ++s, t.elements = number();
  t.dwords = std::max(1, t.bits * t.elements / 32);
  if (s == start) ++s;  // never reached for a well-formed signature; do not loop
  return t;
}

OpInfo make_info(Family family, uint16_t opcode, const char* name, const char* signature,
                 OpClass cls, uint32_t flags) {
  OpInfo r{name, family, opcode, cls, flags, {}, {}, {}};
  const char* s = signature;
  bool sources = std::strchr(s, '=') == nullptr;
  size_t n = 0;
  while (*s) {
    if (*s == ' ') {
      ++s;
    } else if (*s == '=') {
      ++s, sources = true;
    } else if (!sources) {
      (r.dst ? r.dst2 : r.dst) = parse_type(s);
    } else {
      const OperandType t = parse_type(s);
      if (t.kind != '@' && n < r.src.size()) r.src[n++] = t;
    }
  }
  return r;
}

constexpr int kOps = static_cast<int>(Op::count);

struct Rows {
  OpInfo ops[kOps];
  Rows() {
    int i = 0;
#define EMU_OP(family, opcode, name, signature, cls, flags) \
  ops[i++] = make_info(Family::family, opcode, #name, signature, OpClass::cls, flags);
#include "isa/ops.def"
#undef EMU_OP
  }
};
const Rows& rows() {
  static const Rows r;
  return r;
}

// Of one architecture.
struct Table {
  // Per family, opcode → Op; Op::count where there is none.
  Op by_opcode[static_cast<int>(Family::SCRATCH) + 1][1024];
  Op scaled[128];

  explicit Table(const Arch& of) {
    std::fill(&by_opcode[0][0], &by_opcode[0][0] + sizeof by_opcode / sizeof(Op), Op::count);
    std::fill(std::begin(scaled), std::end(scaled), Op::count);
    for (int i = 0; i < kOps; ++i) {
      const OpInfo& o = info(static_cast<Op>(i));
      if (o.has(of.absent)) continue;
      (o.has(kScaled) ? scaled : by_opcode[static_cast<int>(o.family)])[o.opcode] =
          static_cast<Op>(i);
    }
    // VOP3 forms of VOP1, VOP2 and VOPC.
    for (int i = 0; i < kOps; ++i) {
      const OpInfo& o = info(static_cast<Op>(i));
      if (o.has(kNoVop3 | of.absent)) continue;
      const int at = o.family == Family::VOP1   ? 0x140
                     : o.family == Family::VOP2 ? 0x100
                     : o.family == Family::VOPC ? 0
                                                : -1;
      if (at >= 0) by_opcode[static_cast<int>(Family::VOP3)][at + o.opcode] = static_cast<Op>(i);
    }
  }
};

const Table& table(const Arch& of) {
  static const std::vector<Table> tables(archs().begin(), archs().end());
  return tables[static_cast<size_t>(&of - archs().data())];
}

// ---- operands -----------------------------------------------------------------------------------

constexpr uint32_t bits(uint32_t word, int hi, int lo) {
  return (word >> lo) & ((2u << (hi - lo)) - 1);
}
constexpr bool bit(uint32_t word, int at) { return (word >> at) & 1; }

// Scalar registers an instruction may name as a tuple of `dwords`.
bool scalar_register(uint32_t e, int dwords, bool with_m0_exec = true) {
  if (dwords >= 2 && e % std::min(dwords, 4) != 0) return false;
  const uint32_t last = e + dwords - 1;
  if (last <= 101) return true;
  if (e >= 108 && last <= 123) return true;         // trap temporaries
  if (e >= 102 && last <= 107) return dwords <= 2;  // FLAT_SCRATCH, XNACK_MASK, VCC
  if (!with_m0_exec) return false;
  if (e == kM0) return dwords == 1;
  return e >= kExecLo && last <= kExecLo + 1;
}

bool inline_constant(uint32_t e) { return (e >= 128 && e <= 208) || (e >= 240 && e <= 248); }

// Any 8-bit scalar source but a literal.
bool scalar_source(uint32_t e, int dwords) {
  if (e < 128) return scalar_register(e, dwords);
  if (inline_constant(e)) return true;
  if (e >= 235 && e <= 238) return true;            // apertures
  if (e == 239) return dwords == 1 || dwords == 2;  // POPS_EXITING_WAVE_ID
  return e >= 251 && e <= 253;                      // VCCZ, EXECZ, SCC
}

bool vector_tuple(uint32_t v, int dwords) {
  return v + dwords <= 256 && (dwords < 2 || v % 2 == 0);
}

// The state of decoding one instruction.
struct Decoder {
  Decoded& d;
  const Arch& of;
  const Table& table;
  uint32_t w0 = 0, w1 = 0, w2 = 0, w3 = 0;
  size_t available = 0;  // whole dwords
  bool ok = true;

  const OpInfo& info() const { return emu::info(d.op); }
  void require(bool condition) { ok = ok && condition; }
  bool find(Family family, uint32_t opcode) {
    d.op = table.by_opcode[static_cast<int>(family)][opcode];
    d.format = family;
    if (d.op == Op::count) ok = false;
    return ok;
  }
  void size(int dwords) {
    d.size = static_cast<uint8_t>(4 * dwords);
    require(available >= static_cast<size_t>(dwords));
  }

  Operand scalar_dst(uint32_t e, const OperandType& t) {
    require(scalar_register(e, t.dwords));
    return static_cast<Operand>(e);
  }
  Operand vgpr(uint32_t v, int dwords, bool acc = false) {
    require(vector_tuple(v, dwords));
    return static_cast<Operand>(v + (acc ? kAgpr : kVgpr));
  }
  // A literal follows the instruction's fixed part of `fixed` dwords.
  void literal(int fixed) {
    size(fixed + 1);
    d.has_literal = true;
    d.literal = fixed == 1 ? w1 : w2;
  }
  // 8-bit source of a scalar instruction.
  Operand scalar_src(uint32_t e, const OperandType& t) {
    if (t.where == OperandType::Where::sgpr) {
      require(scalar_register(e, t.dwords));
    } else if (t.where == OperandType::Where::lane) {
      require(e != kLiteral && scalar_source(e, t.dwords));
    } else if (e == kLiteral) {
      if (!d.has_literal) literal(1);
    } else {
      require(scalar_source(e, t.dwords));
    }
    return static_cast<Operand>(e);
  }
  // 9-bit source of a vector instruction.
  Operand vector_src(uint32_t e, const OperandType& t, bool literal_allowed) {
    using Where = OperandType::Where;
    switch (t.where) {
      case Where::agpr:
        require(e >= 256);
        return vgpr(e & 255, t.dwords, true);
      case Where::vgpr:
        require(e >= 256);
        break;
      case Where::sgpr:
        require(scalar_register(e, t.dwords));
        break;
      case Where::lane:
        require(e < 256 && e != kLiteral && scalar_source(e, t.dwords));
        break;
      case Where::any:
        break;
    }
    if (e >= 256) return vgpr(e & 255, t.dwords);
    if (e == kLiteral) {
      require(literal_allowed);
      if (!d.has_literal) literal(1);
      if (t.bits == 16 && t.elements == 1) require(d.literal >> 16 == 0);
      return kLiteral;
    }
    require(scalar_source(e, t.dwords));
    return static_cast<Operand>(e);
  }

  // At most one scalar register (or constant dword) may be read by a vector ALU instruction.
  void check_constant_bus() {
    int seen = -1;
    auto reads = [&](Operand e, int dwords) {
      if (e >= 256 || inline_constant(e)) return;
      const int id = e == kLiteral ? 0x1000 : e * 2 + (dwords > 1);
      require(seen < 0 || seen == id);
      seen = id;
    };
    const OpInfo& o = info();
    const bool lane_in_m0 = d.op == Op::v_writelane_b32 && d.src[1] == kM0;  // does not count
    for (int i = 0; i < 3; ++i)
      if (o.src[i] && !(i == 1 && lane_in_m0)) reads(d.src[i], o.src[i].dwords);
    if (o.has(kInlineLiteral)) reads(kLiteral, 1);
    if (d.op == Op::v_div_fmas_f32 || d.op == Op::v_div_fmas_f64) reads(kVccLo, 2);
  }

  void sop();
  void smem();
  void vop(Family family);
  void dpp();
  void sdwa();
  void vop3();
  void vop3p();
  void mfma(bool scaled);
  void ds();
  void buffer(Family family);
  void flat();
  bool run();
};

// ---- scalar -------------------------------------------------------------------------------------

void Decoder::sop() {
  const uint32_t op9 = w0 >> 23;
  if (op9 == 0x17d) {
    if (!find(Family::SOP1, bits(w0, 15, 8))) return;
    const OpInfo& o = info();
    if (o.dst)
      d.dst = scalar_dst(bits(w0, 22, 16), o.dst);
    else
      require(bits(w0, 22, 16) == 0);
    if (o.src[0])
      d.src[0] = scalar_src(bits(w0, 7, 0), o.src[0]);
    else
      require(bits(w0, 7, 0) == 0);
  } else if (op9 == 0x17e) {
    if (!find(Family::SOPC, bits(w0, 22, 16))) return;
    const OpInfo& o = info();
    d.src[0] = scalar_src(bits(w0, 7, 0), o.src[0]);
    if (o.src[1]) {
      d.src[1] = scalar_src(bits(w0, 15, 8), o.src[1]);
    } else {  // s_set_gpr_idx_on: four mode bits instead
      d.imm = static_cast<int32_t>(bits(w0, 15, 8));
      require(d.imm < 16);
    }
  } else if (op9 == 0x17f) {
    if (!find(Family::SOPP, bits(w0, 22, 16))) return;
    d.imm = static_cast<int16_t>(w0);
    switch (d.op) {
      case Op::s_barrier:
      case Op::s_wakeup:
      case Op::s_icache_inv:
      case Op::s_ttracedata:
      case Op::s_endpgm_saved:
      case Op::s_endpgm_ordered_ps_done:
      case Op::s_set_gpr_idx_off:
        require(d.imm == 0);
        break;
      case Op::s_set_gpr_idx_mode:
        require(d.imm >= 0 && d.imm < 16);
        break;
      default:
        break;
    }
  } else if (w0 >> 28 == 0xb) {
    if (!find(Family::SOPK, bits(w0, 27, 23))) return;
    const OpInfo& o = info();
    d.imm = static_cast<int16_t>(w0);
    if (o.dst)
      d.dst = scalar_dst(bits(w0, 22, 16), o.dst);
    else if (o.src[0])
      d.src[0] = scalar_src(bits(w0, 22, 16), o.src[0]);
    else
      require(bits(w0, 22, 16) == 0);
    if (o.has(kInlineLiteral)) literal(1);
  } else {
    if (!find(Family::SOP2, bits(w0, 29, 23))) return;
    const OpInfo& o = info();
    if (o.dst)
      d.dst = scalar_dst(bits(w0, 22, 16), o.dst);
    else
      require(bits(w0, 22, 16) == 0);
    d.src[0] = scalar_src(bits(w0, 7, 0), o.src[0]);
    d.src[1] = scalar_src(bits(w0, 15, 8), o.src[1]);
  }
}

void Decoder::smem() {
  size(2);
  if (!find(Family::SMEM, bits(w0, 25, 18))) return;
  const OpInfo& o = info();
  const bool is_buffer = std::strncmp(o.name, "s_buffer", 8) == 0 || d.op == Op::s_atc_probe_buffer;
  const bool probe = d.op == Op::s_atc_probe || d.op == Op::s_atc_probe_buffer;
  const bool discard = d.op == Op::s_dcache_discard || d.op == Op::s_dcache_discard_x2;
  const bool data = o.dst || o.src[0];
  const bool addressed =
      (data || probe || discard) && d.op != Op::s_memtime && d.op != Op::s_memrealtime;
  const bool imm = bit(w0, 17), soffset_en = bit(w0, 14);
  require(!bit(w0, 15));
  d.sc0 = bit(w0, 16);
  require(!d.sc0 || (addressed && !probe && !discard));

  const uint32_t sdata = bits(w0, 12, 6);
  require(!bit(w0, 13));
  if (probe) {
    d.imm = static_cast<int32_t>(sdata);
  } else if (data) {
    const OperandType& t = o.dst ? o.dst : o.src[0];
    require(scalar_register(sdata, t.dwords, false));
    if (o.dst) d.dst = static_cast<Operand>(sdata);
    if (o.src[0]) d.data0 = static_cast<Operand>(sdata);
    if (o.has(kAtomic) && d.sc0) d.dst = d.data0;
  } else {
    require(sdata == 0);
  }

  if (!addressed) {
    require(bits(w0, 5, 0) == 0 && w1 == 0 && !imm && !soffset_en);
    return;
  }
  d.sbase = static_cast<Operand>(2 * bits(w0, 5, 0));
  require(scalar_register(d.sbase, is_buffer ? 4 : 2));
  if (imm) {
    d.offset = static_cast<int32_t>(w1 << 11) >> 11;
    require(!is_buffer || d.offset >= 0);
    require(bits(w1, 24, 21) == 0);
    if (soffset_en) {
      d.soffset = static_cast<Operand>(bits(w1, 31, 25));
      require(scalar_register(d.soffset, 1));
    } else {
      require(bits(w1, 31, 25) == 0);
    }
  } else {
    require(!soffset_en && bits(w1, 31, 7) == 0);
    d.soffset = static_cast<Operand>(bits(w1, 6, 0));
    require(scalar_register(d.soffset, 1));
  }
}

// ---- vector ALU ---------------------------------------------------------------------------------

// VOP1, VOP2, VOPC in their short form.
void Decoder::vop(Family family) {
  const uint32_t opcode = family == Family::VOP1   ? bits(w0, 16, 9)
                          : family == Family::VOP2 ? bits(w0, 30, 25)
                                                   : bits(w0, 24, 17);
  if (!find(family, opcode)) return;
  const OpInfo& o = info();
  const uint32_t src0 = bits(w0, 8, 0), vdst = bits(w0, 24, 17);
  const bool carry = static_cast<bool>(o.dst2);

  if (family == Family::VOPC) {
    d.dst = kVccLo;
  } else if (!o.dst) {
    require(vdst == 0);
  } else if (o.dst.where == OperandType::Where::sgpr) {
    d.dst = scalar_dst(vdst, o.dst);
    require(d.dst != kM0);
  } else {
    d.dst = vgpr(vdst, o.dst.dwords, o.dst.where == OperandType::Where::agpr);
  }
  if (carry) d.dst2 = kVccLo;
  // src1 and the implicit third source.
  if (family != Family::VOP1) {
    const uint32_t vsrc1 = family == Family::VOP2 ? bits(w0, 16, 9) : bits(w0, 16, 9);
    d.src[1] = vgpr(vsrc1, o.src[1].dwords);
    if (o.src[2]) d.src[2] = kVccLo;
  }

  if (src0 == 249 && o.has(kSdwa)) return sdwa();
  if (src0 == 250 && o.has(kDpp)) return dpp();
  require(src0 != 249 && src0 != 250 && src0 != 254);
  if (!o.src[0]) {
    require(src0 == 0);
    return;
  }
  if (o.has(kInlineLiteral)) {
    literal(1);
    if (o.src[0].bits == 16) require(d.literal >> 16 == 0);
  }
  d.src[0] = vector_src(src0, o.src[0], true);
  check_constant_bus();
}

void Decoder::dpp() {
  size(2);
  const OpInfo& o = info();
  d.dpp = true;
  require(d.format != Family::VOPC);
  d.dpp_ctrl = static_cast<uint16_t>(bits(w1, 16, 8));
  d.row_mask = static_cast<uint8_t>(bits(w1, 31, 28));
  d.bank_mask = static_cast<uint8_t>(bits(w1, 27, 24));
  d.bound_ctrl = bit(w1, 19);
  d.neg = static_cast<uint8_t>(bit(w1, 20) | bit(w1, 22) << 1);
  d.abs = static_cast<uint8_t>(bit(w1, 21) | bit(w1, 23) << 1);
  require(bits(w1, 18, 17) == 0);
  for (int i = 0; i < 2; ++i)
    if (!o.src[i].is_float()) require(!bit(d.neg | d.abs, i));
  if (o.src[0])
    d.src[0] = vgpr(bits(w1, 7, 0), o.src[0].dwords);
  else
    require(bits(w1, 7, 0) == 0);
  const int c = d.dpp_ctrl;
  const bool broadcast = c >= 0x150 && c <= 0x15f;
  const bool row = c <= 0xff || (c > 0x100 && c <= 0x12f && (c & 15) != 0) || c == 0x130 ||
                   c == 0x134 || c == 0x138 || c == 0x13c || (c >= 0x140 && c <= 0x143);
  const bool wide = o.dst.dwords > 1 || o.src[0].dwords > 1;
  require(broadcast || (row && !wide));
}

void Decoder::sdwa() {
  size(2);
  const OpInfo& o = info();
  d.sdwa = true;
  const bool compare = d.format == Family::VOPC;
  // The fp8 widenings take a byte or a word and have no destination select.
  const bool fp8 = d.op == Op::v_cvt_f32_fp8 || d.op == Op::v_cvt_f32_bf8 ||
                   d.op == Op::v_cvt_pk_f32_fp8 || d.op == Op::v_cvt_pk_f32_bf8;
  if (compare) {
    if (bit(w1, 15)) {
      d.dst = scalar_dst(bits(w1, 14, 8), o.dst);
      require(d.dst != kVccLo);  // VCC is written without the bit
    } else {
      require(bits(w1, 14, 8) == 0);
    }
  } else {
    d.dst_sel = static_cast<uint8_t>(bits(w1, 10, 8));
    d.dst_unused = static_cast<uint8_t>(bits(w1, 12, 11));
    d.clamp = bit(w1, 13);
    d.omod = static_cast<uint8_t>(bits(w1, 15, 14));
    require(d.dst_sel <= 6 && d.dst_unused <= 2);
    require(d.omod == 0 || (o.has(kOmod) && o.dst.is_float()));
    if (fp8) require(d.dst_sel == 6 && d.dst_unused == 0);
  }
  d.src_sel = {static_cast<uint8_t>(bits(w1, 18, 16)), static_cast<uint8_t>(bits(w1, 26, 24))};
  d.sext = static_cast<uint8_t>(bit(w1, 19) | bit(w1, 27) << 1);
  d.neg = static_cast<uint8_t>(bit(w1, 20) | bit(w1, 28) << 1);
  d.abs = static_cast<uint8_t>(bit(w1, 21) | bit(w1, 29) << 1);
  require(!bit(w1, 22) && !bit(w1, 30));
  const bool two = d.format != Family::VOP1;
  if (!two) require(bits(w1, 31, 24) == 0);
  for (int i = 0; i < 2; ++i) {
    require(d.src_sel[i] <= 6);
    const bool is_float = o.src[i].is_float();
    require(!bit(is_float || fp8 ? d.sext : d.neg | d.abs, i));
    if (fp8) require(d.neg == 0 && d.abs == 0);
  }
  if (!o.src[0]) {
    require(bits(w1, 31, 16) == 0);
    return;
  }
  auto source = [&](uint32_t e, bool scalar, const OperandType& t) {
    if (!scalar) return vgpr(e, t.dwords);
    require(e < 128 && scalar_register(e, t.dwords));
    return static_cast<Operand>(e);
  };
  d.src[0] = source(bits(w1, 7, 0), bit(w1, 23), o.src[0]);
  if (two) d.src[1] = source(bits(w0, 16, 9), bit(w1, 31), o.src[1]);
  check_constant_bus();
}

void Decoder::vop3() {
  size(2);
  if (!find(Family::VOP3, bits(w0, 25, 16))) return;
  const OpInfo& o = info();
  using Where = OperandType::Where;
  const uint32_t vdst = bits(w0, 7, 0);
  if (o.family == Family::VOPC) {
    d.dst = scalar_dst(vdst, o.dst);
  } else if (!o.dst) {
    require(vdst == 0);
  } else if (o.dst.where == Where::sgpr) {
    d.dst = scalar_dst(vdst, o.dst);
    require(d.dst != kM0);
  } else {
    d.dst = vgpr(vdst, o.dst.dwords);
  }
  for (int i = 0; i < 3; ++i) {
    const uint32_t e = bits(w1, 9 * i + 8, 9 * i);
    if (o.src[i])
      d.src[i] = vector_src(e, o.src[i], false);
    else
      require(e == 0);
  }
  // The lane mask of v_cndmask and the carries is a scalar register.
  if (o.src[2] && o.family == Family::VOP2) require(d.src[2] < 128);
  check_constant_bus();

  d.clamp = bit(w0, 15);
  d.omod = static_cast<uint8_t>(bits(w1, 28, 27));
  d.neg = static_cast<uint8_t>(bits(w1, 31, 29));
  if (o.dst2) {  // VOP3B
    d.dst2 = scalar_dst(bits(w0, 14, 8), o.dst2);
  } else {
    d.abs = static_cast<uint8_t>(bits(w0, 10, 8));
    d.op_sel = static_cast<uint8_t>(bits(w0, 14, 11));
  }
  if (d.op == Op::v_bitop3_b32 || d.op == Op::v_bitop3_b16) {
    d.imm = d.neg | d.abs << 3 | d.omod << 6;
    d.abs = d.neg = d.omod = 0;
  }
  if (d.op == Op::v_permlane16_swap_b32 || d.op == Op::v_permlane32_swap_b32) {
    d.bound_ctrl = bit(d.op_sel, 1);
    d.imm = bit(d.op_sel, 0);  // fetch inactive lanes
    require(d.op_sel < 4);
  } else {
    require(d.op_sel == 0 || o.has(kOpSel));
    if (!o.src[2]) require(!bit(d.op_sel, 2) || selects_byte(d.op));
    if (!o.src[1]) require(!bit(d.op_sel, 1));
  }
  require(!d.clamp || o.has(kClamp));
  require(d.omod == 0 || o.has(kOmod));
  for (int i = 0; i < 3; ++i)
    if (!o.src[i].is_float() || o.src[i].dwords > 2) require(!bit(d.neg | d.abs, i));
}

void Decoder::vop3p() {
  size(2);
  const uint32_t opcode = bits(w0, 22, 16);
  // A scale prefix and the matrix instruction it belongs to form one 16-byte instruction.
  if (opcode == 0x2c && available >= 4 && (w2 >> 16 == 0xd3ad || w2 >> 16 == 0xd3ae) &&
      bits(w2, 14, 11) == 1)
    return mfma(true);
  if (table.by_opcode[static_cast<int>(Family::MFMA)][opcode] != Op::count) return mfma(false);
  if (!find(Family::VOP3P, opcode)) return;
  const OpInfo& o = info();
  using Where = OperandType::Where;
  if (o.dst)
    d.dst = vgpr(bits(w0, 7, 0), o.dst.dwords, o.dst.where == Where::agpr);
  else
    require(bits(w0, 7, 0) == 0);
  int n = 0;
  for (int i = 0; i < 3; ++i) {
    const uint32_t e = bits(w1, 9 * i + 8, 9 * i);
    if (o.src[i])
      d.src[i] = vector_src(e, o.src[i], false), ++n;
    else
      require(e == 0);
  }
  check_constant_bus();
  d.neg_hi = static_cast<uint8_t>(bits(w0, 10, 8));
  d.neg = static_cast<uint8_t>(bits(w1, 31, 29));
  d.op_sel = static_cast<uint8_t>(bits(w0, 13, 11));
  d.op_sel_hi = static_cast<uint8_t>(bits(w1, 28, 27) | bit(w0, 14) << 2);
  d.clamp = bit(w0, 15);
  require(!d.clamp || o.has(kClamp));
  const bool mix =
      d.op == Op::v_fma_mix_f32 || d.op == Op::v_fma_mixlo_f16 || d.op == Op::v_fma_mixhi_f16;
  if (mix) {
    d.abs = d.neg_hi;
    d.neg_hi = 0;
  } else if (!o.has(kNegHi)) {
    require(d.neg == 0 && d.neg_hi == 0);
  }
  // Unused high selects are encoded as ones, unused others as zeros.
  const uint8_t used = static_cast<uint8_t>((1 << n) - 1);
  require(((d.neg | d.neg_hi | d.op_sel) & ~used) == 0);
  if (!o.has(kOpSel))
    require(d.op_sel == 0 && d.op_sel_hi == 7);
  else if (!mix)
    require((d.op_sel_hi | used) == 7);
}

void Decoder::mfma(bool scaled) {
  uint32_t m0 = w0, m1 = w1;
  if (scaled) {
    size(4);
    m0 = w2, m1 = w3;
    d.op = table.scaled[bits(m0, 22, 16)];
    d.format = Family::MFMA;
    require(d.op != Op::count);
    if (!ok) return;
    // Scales; op_sel picks their bytes.
    for (int i = 0; i < 2; ++i) {
      const uint32_t e = bits(w1, 9 * i + 8, 9 * i);
      d.src[3 + i] = vector_src(e, info().src[3 + i], false);
    }
    d.op_sel = static_cast<uint8_t>(bits(w0, 12, 11));
    d.op_sel_hi = static_cast<uint8_t>(bits(w1, 28, 27));
    // Selects of a third operand, which there is none of: some assemblers set them.
    require(bits(w0, 10, 0) == 0 && !bit(w0, 15) && bits(w1, 31, 29) == 0);
    require(bits(w1, 26, 18) == 0);
  } else if (!find(Family::MFMA, bits(m0, 22, 16))) {
    return;
  }
  const OpInfo& o = info();
  const bool sparse = o.has(kReadsDst);
  const bool f8f6f4 = bits(m0, 22, 16) == 0x2d || bits(m0, 22, 16) == 0x2e;
  const bool acc_d = bit(m0, 15);
  d.cbsz = static_cast<uint8_t>(bits(m0, 10, 8));
  d.abid = static_cast<uint8_t>(bits(m0, 14, 11));
  d.blgp = static_cast<uint8_t>(bits(m1, 31, 29));
  if (f8f6f4) require(d.cbsz <= 4 && d.blgp <= 4 && d.abid == (scaled ? 1 : 0));
  if (sparse) require(d.blgp == 0);
  d.dst = vgpr(bits(m0, 7, 0), o.dst.dwords, acc_d);
  for (int i = 0; i < 2; ++i) {
    const uint32_t e = bits(m1, 9 * i + 8, 9 * i);
    int dwords = o.src[i].dwords;
    if (f8f6f4) {  // 8-bit formats 0 and 1, 6-bit 2 and 3, 4-bit 4
      const int format = i == 0 ? d.cbsz : d.blgp;
      dwords = format < 2 ? 8 : format < 4 ? 6 : 4;
    }
    require(e >= 256);
    d.src[i] = vgpr(e & 255, dwords, bit(m1, 27 + i));
  }
  const uint32_t c = bits(m1, 26, 18);
  if (c >= 256) {
    d.src[2] = vgpr(c & 255, o.src[2].dwords, acc_d && !sparse);
    // The large forms write D before they have read all of C.
    const int n = o.dst.dwords, apart = d.dst - d.src[2];
    if (!sparse && n > 4) require(apart == 0 || apart >= n || apart <= -n);
  } else {
    require(!sparse && inline_constant(c));
    d.src[2] = static_cast<Operand>(c);
  }
  if (o.dst.kind == 'f' && o.dst.bits == 64) {  // blgp negates
    d.neg = d.blgp;
    d.blgp = 0;
  }
}

// ---- memory -------------------------------------------------------------------------------------

void Decoder::ds() {
  size(2);
  if (!find(Family::DS, bits(w0, 24, 17))) return;
  const OpInfo& o = info();
  const bool acc = bit(w0, 25);
  d.gds = bit(w0, 16);
  require(d.gds == o.has(kGws));
  if (o.has(kTwoOffsets)) {
    d.offset = static_cast<int32_t>(bits(w0, 7, 0));
    d.offset1 = static_cast<uint8_t>(bits(w0, 15, 8));
  } else {
    d.offset = static_cast<int32_t>(bits(w0, 15, 0));
  }
  const bool no_addr = !o.dst && !o.src[0];
  const bool addtid = d.op == Op::ds_read_addtid_b32 || d.op == Op::ds_write_addtid_b32 ||
                      d.op == Op::ds_append || d.op == Op::ds_consume;
  const bool gws = o.has(kGws);
  if (no_addr || addtid) {
    require(bits(w1, 7, 0) == 0);
    if (d.op == Op::ds_nop) require(d.offset == 0);
  } else if (gws) {  // the value lies in the address field
    d.data0 = vgpr(bits(w1, 7, 0), 1, acc);
    require(d.data0 % 2 == 0);
  } else {
    d.addr = vgpr(bits(w1, 7, 0), 1);
  }
  if (o.src[0] && !gws)
    d.data0 = vgpr(bits(w1, 15, 8), o.src[0].dwords, acc);
  else
    require(bits(w1, 15, 8) == 0);
  if (o.src[1])
    d.data1 = vgpr(bits(w1, 23, 16), o.src[1].dwords, acc);
  else
    require(bits(w1, 23, 16) == 0);
  if (o.dst)
    d.dst = vgpr(bits(w1, 31, 24), o.dst.dwords, acc);
  else
    require(bits(w1, 31, 24) == 0);
  if (no_addr) require(!acc);
}

void Decoder::buffer(Family family) {
  size(2);
  const bool typed = family == Family::MTBUF;
  if (!find(family, typed ? bits(w0, 18, 15) : bits(w0, 24, 18))) return;
  const OpInfo& o = info();
  d.offset = static_cast<int32_t>(bits(w0, 11, 0));
  d.offen = bit(w0, 12);
  d.idxen = bit(w0, 13);
  d.sc0 = bit(w0, 14);
  if (typed) {
    d.dfmt = static_cast<uint8_t>(bits(w0, 22, 19));
    d.nfmt = static_cast<uint8_t>(bits(w0, 25, 23));
    d.sc1 = bit(w1, 21);
    d.nt = bit(w1, 22);
  } else {
    d.sc1 = bit(w0, 15);
    d.lds = bit(w0, 16);
    d.nt = bit(w0, 17);
    require(!bit(w0, 25) && bits(w1, 22, 21) == 0);
  }
  if (!o.dst && !o.src[0]) {  // cache control
    require(d.offset == 0 && !d.offen && !d.idxen && !d.lds && !d.nt && w1 == 0);
    return;
  }
  require(!d.lds || (o.has(kLds) && o.dst.dwords * 4u <= of.lds_dma_bytes));
  const bool acc = bit(w1, 23);
  const OperandType& t = o.src[0] ? o.src[0] : o.dst;
  if (d.lds) {
    require(bits(w1, 15, 8) == 0 && !acc);
  } else {
    const Operand data = vgpr(bits(w1, 15, 8), t.dwords, acc);
    if (o.src[0]) d.data0 = data;
    if (!o.src[0] || (o.has(kAtomic) && d.sc0)) d.dst = data;
  }
  if (d.offen || d.idxen)
    d.addr = vgpr(bits(w1, 7, 0), d.offen && d.idxen ? 2 : 1);
  else
    require(bits(w1, 7, 0) == 0);
  d.sbase = static_cast<Operand>(4 * bits(w1, 20, 16));
  require(scalar_register(d.sbase, 4));
  d.soffset = static_cast<Operand>(bits(w1, 31, 24));
  require(d.soffset != kLiteral && scalar_source(d.soffset, 1));
}

void Decoder::flat() {
  size(2);
  const uint32_t segment = bits(w0, 15, 14);
  const Family family = segment == 0   ? Family::FLAT
                        : segment == 1 ? Family::SCRATCH
                                       : Family::GLOBAL;
  require(segment != 3);
  if (!ok || !find(family, bits(w0, 24, 18))) return;
  const OpInfo& o = info();
  d.sc0 = bit(w0, 16);
  d.nt = bit(w0, 17);
  d.sc1 = bit(w0, 25);
  d.lds = o.has(kLds);
  const bool acc = bit(w1, 23);
  const uint32_t addr = bits(w1, 7, 0), saddr = bits(w1, 22, 16);
  if (family == Family::FLAT) {
    d.offset = static_cast<int32_t>(bits(w0, 12, 0));
    require(d.offset < 4096 && !bit(w0, 13) && saddr == 0);
    d.addr = vgpr(addr, 2);
  } else {
    d.offset = static_cast<int32_t>(w0 << 19) >> 19;
    if (saddr != 0x7f) {
      require(scalar_register(saddr, family == Family::GLOBAL ? 2 : 1, false) ||
              (family == Family::SCRATCH && saddr == kM0));
      d.sbase = static_cast<Operand>(saddr);
    }
    if (family == Family::GLOBAL) {
      require(!bit(w0, 13));
      d.addr = vgpr(addr, saddr == 0x7f ? 2 : 1);
    } else if (bit(w0, 13)) {
      d.addr = vgpr(addr, 1);
    } else {
      require(addr == 0);
    }
  }
  if (o.src[0])
    d.data0 = vgpr(bits(w1, 15, 8), o.src[0].dwords, acc);
  else
    require(bits(w1, 15, 8) == 0);
  if (o.dst && (!o.has(kAtomic) || d.sc0))
    d.dst = vgpr(bits(w1, 31, 24), o.dst.dwords, acc);
  else
    require(bits(w1, 31, 24) == 0);
  if (!o.dst && !o.src[0]) require(!acc);
  if (acc && d.sc0 && o.has(kAtomic)) {  // forms that the assembler does not accept either
    const bool f64 = std::strstr(o.name, "_f64") != nullptr;
    require(!(f64 && d.sc1) && d.op != Op::global_atomic_add_f32 &&
            d.op != Op::global_atomic_pk_add_f16);
  }
}

bool Decoder::run() {
  d.size = 4;
  if (w0 >> 31 == 0) {  // VOP2, with VOP1 and VOPC in its last two opcodes
    const uint32_t op = bits(w0, 30, 25);
    vop(op == 0x3f ? Family::VOP1 : op == 0x3e ? Family::VOPC : Family::VOP2);
  } else if (w0 >> 30 == 2) {
    sop();
  } else {
    switch (w0 >> 26) {
      case 0x30:
        smem();
        break;
      case 0x34:
        bits(w0, 25, 23) == 7 ? vop3p() : vop3();
        break;
      case 0x36:
        ds();
        break;
      case 0x37:
        flat();
        break;
      case 0x38:
        buffer(Family::MUBUF);
        break;
      case 0x3a:
        buffer(Family::MTBUF);
        break;
      default:
        ok = false;
    }
  }
  return ok;
}

}  // namespace

const OpInfo& info(Op op) { return rows().ops[static_cast<int>(op)]; }

bool decode(std::span<const uint8_t> bytes, uint64_t address, Decoded& out, const Arch& of) {
  out = Decoded{};
  uint32_t words[4] = {};
  const size_t available = std::min<size_t>(bytes.size() / 4, 4);
  std::memcpy(words, bytes.data(), 4 * available);
  if (available == 0) return false;
  Decoder decoder{out, of, table(of), words[0], words[1], words[2], words[3], available};
  out.address = address;
  if (!decoder.run()) return false;
  std::memcpy(out.words.data(), words, out.size);
  return true;
}

}  // namespace emu
