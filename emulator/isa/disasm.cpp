// Decoded to LLVM's assembler syntax.
#include <cstdio>

#include "isa/decoded.hpp"

namespace emu {
namespace {

template <class... A>
std::string format(const char* f, A... a) {
  char buffer[128];
  std::snprintf(buffer, sizeof buffer, f, a...);
  return buffer;
}

std::string tuple(const char* letter, int first, int dwords) {
  return dwords <= 1 ? format("%s%d", letter, first)
                     : format("%s[%d:%d]", letter, first, first + dwords - 1);
}

std::string pair(const char* name, bool high, int dwords) {
  return dwords >= 2 ? name : std::string(name) + (high ? "_hi" : "_lo");
}

bool inlinable(uint32_t x, bool wide) {
  const auto i = static_cast<int32_t>(x);
  if (i >= -16 && i <= 64) return true;
  switch (x) {  // 0.5, 1, 2, 4 and 1/2π, with both signs but the last; f32, f16, bf16, high f64
    case 0x3f000000:
    case 0xbf000000:
    case 0x3f800000:
    case 0xbf800000:
    case 0x40000000:
    case 0xc0000000:
    case 0x40800000:
    case 0xc0800000:
    case 0x3e22f983:
    case 0x3800:
    case 0xb800:
    case 0x3c00:
    case 0xbc00:
    case 0x4000:
    case 0xc000:
    case 0x4400:
    case 0xc400:
    case 0x3118:
    case 0x3f00:
    case 0xbf00:
    case 0x3f80:
    case 0xbf80:
    case 0x4080:
    case 0xc080:
    case 0x3e22:
      return true;
    case 0x3fe00000:
    case 0xbfe00000:
    case 0x3ff00000:
    case 0xbff00000:
    case 0x40100000:
    case 0xc0100000:
    case 0x3fc45f30:
      return wide;
  }
  return x >= 0xfff0 && x <= 0xffff;  // 16-bit -16..-1
}

std::string literal(uint32_t x, bool wide) {
  return format(inlinable(x, wide) ? "lit(0x%x)" : "0x%x", x);
}

std::string operand(const Decoded& d, Operand o, int dwords) {
  static const char* const floats[] = {"0.5", "-0.5", "1.0", "-1.0", "2.0", "-2.0", "4.0", "-4.0"};
  static const char* const apertures[] = {"src_shared_base", "src_shared_limit", "src_private_base",
                                          "src_private_limit", "src_pops_exiting_wave_id"};
  if (o >= kAgpr) return tuple("a", o - kAgpr, dwords);
  if (o >= kVgpr) return tuple("v", o - kVgpr, dwords);
  if (o <= 101) return tuple("s", o, dwords);
  if (o <= 103) return pair("flat_scratch", o & 1, dwords);
  if (o <= 105) return pair("xnack_mask", o & 1, dwords);
  if (o <= 107) return pair("vcc", o & 1, dwords);
  if (o <= 123) return tuple("ttmp", o - 108, dwords);
  if (o == kM0) return "m0";
  if (o == 126 || o == 127) return pair("exec", o & 1, dwords);
  if (o >= 128 && o <= 192) return format("%d", o - 128);
  if (o >= 193 && o <= 208) return format("%d", 192 - o);
  if (o >= 235 && o <= 239) return apertures[o - 235];
  if (o >= 240 && o <= 247) return floats[o - 240];
  if (o == 248) return dwords == 2 ? "0.15915494309189532" : "0.15915494";
  if (o == 251) return "src_vccz";
  if (o == 252) return "src_execz";
  if (o == kScc) return "src_scc";
  if (o == kLiteral) return literal(d.literal, dwords == 2);
  return format("?%d", o);
}

std::string join(const std::string& list, const std::string& more) {
  return list.empty() ? more : list + ", " + more;
}

// A modifier's bit list, as in op_sel:[1,0,1].
std::string bit_list(const char* name, unsigned bits, int n) {
  std::string r = format(" %s:[", name);
  for (int i = 0; i < n; ++i) r += format(i ? ",%u" : "%u", bits >> i & 1);
  return r + "]";
}

std::string hwreg(int imm) {
  static const char* const names[] = {nullptr,
                                      "MODE",
                                      "STATUS",
                                      "TRAPSTS",
                                      "HW_ID",
                                      "GPR_ALLOC",
                                      "LDS_ALLOC",
                                      "IB_STS",
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      nullptr,
                                      "SH_MEM_BASES",
                                      "TBA_LO",
                                      "TBA_HI",
                                      "TMA_LO",
                                      "TMA_HI",
                                      "XCC_ID",
                                      "SQ_PERF_SNAPSHOT_DATA",
                                      "SQ_PERF_SNAPSHOT_DATA1",
                                      "SQ_PERF_SNAPSHOT_PC_LO",
                                      "SQ_PERF_SNAPSHOT_PC_HI"};
  const unsigned id = imm & 63, offset = imm >> 6 & 31, size = (imm >> 11 & 31) + 1;
  const char* const name = id < std::size(names) ? names[id] : nullptr;
  std::string r = name ? format("hwreg(HW_REG_%s", name) : format("hwreg(%u", id);
  if (offset != 0 || size != 32) r += format(", %u, %u", offset, size);
  return r + ")";
}

std::string waitcnt(unsigned imm) {
  const unsigned vm = (imm & 15) | (imm >> 14 & 3) << 4, exp = imm >> 4 & 7, lgkm = imm >> 8 & 15;
  if (imm & 0x3080 & ~0xf00u) return format(" 0x%x", imm);  // unused bits set
  std::string r;
  const bool all = vm == 63 && exp == 7 && lgkm == 15;
  if (vm != 63 || all) r += format(" vmcnt(%u)", vm);
  if (exp != 7 || all) r += format(" expcnt(%u)", exp);
  if (lgkm != 15 || all) r += format(" lgkmcnt(%u)", lgkm);
  return r;
}

std::string gpr_idx(int imm) {
  static const char* const names[] = {"SRC0", "SRC1", "SRC2", "DST"};
  std::string r;
  for (int i = 0; i < 4; ++i)
    if (imm >> i & 1) r += (r.empty() ? "" : ",") + std::string(names[i]);
  return "gpr_idx(" + r + ")";
}

std::string sopp(const Decoded& d) {
  const unsigned imm = static_cast<uint16_t>(d.imm);
  switch (d.op) {
    case Op::s_barrier:
    case Op::s_wakeup:
    case Op::s_icache_inv:
    case Op::s_ttracedata:
    case Op::s_endpgm_saved:
    case Op::s_endpgm_ordered_ps_done:
    case Op::s_set_gpr_idx_off:
      return "";
    case Op::s_endpgm:
      return imm ? format(" %u", imm) : "";
    case Op::s_waitcnt:
      return waitcnt(imm);
    case Op::s_set_gpr_idx_mode:
      return " " + gpr_idx(d.imm);
    case Op::s_sendmsg:
    case Op::s_sendmsghalt:
      return imm == 1 ? " sendmsg(MSG_INTERRUPT)" : format(" %u", imm);
    default:
      return format(" %u", imm);
  }
}

std::string scalar(const Decoded& d, const OpInfo& o) {
  std::string list;
  if (o.family == Family::SOPP) return sopp(d);
  if (o.dst) list = operand(d, d.dst, o.dst.dwords);
  for (int i = 0; i < 2 && o.src[i]; ++i) list = join(list, operand(d, d.src[i], o.src[i].dwords));
  switch (d.op) {
    case Op::s_setreg_b32:
      list = hwreg(d.imm) + ", " + list;
      break;
    case Op::s_setreg_imm32_b32:
      list = hwreg(d.imm) + format(", 0x%x", d.literal);
      break;
    case Op::s_getreg_b32:
      list = join(list, hwreg(d.imm));
      break;
    case Op::s_set_gpr_idx_on:
      list = join(list, gpr_idx(d.imm));
      break;
    case Op::s_call_b64:
    case Op::s_cbranch_i_fork:
      list = join(list, format("%u", d.imm & 0xffff));
      break;
    default:
      if (o.family == Family::SOPK) list = join(list, format("0x%x", d.imm & 0xffff));
  }
  return list.empty() ? "" : " " + list;
}

std::string smem(const Decoded& d, const OpInfo& o) {
  std::string list;
  const bool is_probe = d.op == Op::s_atc_probe || d.op == Op::s_atc_probe_buffer;
  if (is_probe) list = format("%d", d.imm);
  if (o.dst) list = operand(d, d.dst, o.dst.dwords);
  if (o.src[0]) list = operand(d, d.data0, o.src[0].dwords);
  if (d.sbase == kNoOperand) return list.empty() ? "" : " " + list;
  const bool buffer =
      std::string_view(o.name).starts_with("s_buffer") || d.op == Op::s_atc_probe_buffer;
  list = join(list, operand(d, d.sbase, buffer ? 4 : 2));
  const std::string offset = d.offset < 0 ? format("-0x%x", -d.offset) : format("0x%x", d.offset);
  if (d.soffset == kNoOperand) {
    list = join(list, offset);
  } else {
    list = join(list, operand(d, d.soffset, 1));
    if ((d.words[0] >> 17 & 1)) list += " offset:" + offset;
  }
  return " " + list + (d.sc0 ? " glc" : "");
}

// Source i of a vector ALU instruction with its modifiers.
std::string source(const Decoded& d, const OpInfo& o, int i) {
  std::string s = operand(d, d.src[i], o.src[i].dwords);
  const bool packed = d.format == Family::VOP3P && o.has(kNegHi);
  if (packed || d.format == Family::MFMA) return s;
  const bool abs = d.abs >> i & 1, neg = d.neg >> i & 1;
  if (d.sdwa && (d.sext >> i & 1)) s = "sext(" + s + ")";
  if (abs) s = "|" + s + "|";
  if (neg) {
    // A minus before a constant would be a different constant.
    const bool constant = !abs && d.src[i] >= 128 && d.src[i] < 256;
    s = constant ? "neg(" + s + ")" : "-" + s;
  }
  return s;
}

std::string dpp(const Decoded& d) {
  const int c = d.dpp_ctrl;
  std::string r;
  if (c <= 0xff)
    r = format(" quad_perm:[%d,%d,%d,%d]", c & 3, c >> 2 & 3, c >> 4 & 3, c >> 6 & 3);
  else if (c <= 0x10f)
    r = format(" row_shl:%d", c & 15);
  else if (c <= 0x11f)
    r = format(" row_shr:%d", c & 15);
  else if (c <= 0x12f)
    r = format(" row_ror:%d", c & 15);
  else if (c == 0x130)
    r = " wave_shl:1";
  else if (c == 0x134)
    r = " wave_rol:1";
  else if (c == 0x138)
    r = " wave_shr:1";
  else if (c == 0x13c)
    r = " wave_ror:1";
  else if (c == 0x140)
    r = " row_mirror";
  else if (c == 0x141)
    r = " row_half_mirror";
  else if (c == 0x142)
    r = " row_bcast:15";
  else if (c == 0x143)
    r = " row_bcast:31";
  else
    r = format(" row_newbcast:%d", c & 15);
  return r + format(" row_mask:0x%x bank_mask:0x%x", d.row_mask, d.bank_mask) +
         (d.bound_ctrl ? " bound_ctrl:1" : "");
}

std::string sdwa(const Decoded& d, const OpInfo& o) {
  static const char* const sel[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3",
                                    "WORD_0", "WORD_1", "DWORD"};
  static const char* const unused[] = {"UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"};
  std::string r;
  // The fp8 widenings always write a whole register.
  const bool has_dst_sel = o.family != Family::VOPC && d.op != Op::v_cvt_f32_fp8 &&
                           d.op != Op::v_cvt_f32_bf8 && d.op != Op::v_cvt_pk_f32_fp8 &&
                           d.op != Op::v_cvt_pk_f32_bf8;
  if (has_dst_sel) r += format(" dst_sel:%s dst_unused:%s", sel[d.dst_sel], unused[d.dst_unused]);
  r += format(" src0_sel:%s", sel[d.src_sel[0]]);
  if (o.family != Family::VOP1) r += format(" src1_sel:%s", sel[d.src_sel[1]]);
  return r;
}

std::string valu(const Decoded& d, const OpInfo& o) {
  std::string list;
  if (o.dst) list = operand(d, d.dst, o.dst.dwords);
  if (o.dst2) list = join(list, operand(d, d.dst2, 2));
  int n = 0;
  for (; n < 3 && o.src[n]; ++n) list = join(list, source(d, o, n));
  if (o.has(kInlineLiteral)) {
    const std::string k = format("0x%x", d.literal);
    const bool middle = d.op == Op::v_fmamk_f32 || d.op == Op::v_madmk_f16;
    list = operand(d, d.dst, 1) + ", " + source(d, o, 0) + ", " +
           (middle ? k + ", " + source(d, o, 1) : source(d, o, 1) + ", " + k);
  }
  if (!list.empty()) list = " " + list;

  const bool bitop3 = d.op == Op::v_bitop3_b32 || d.op == Op::v_bitop3_b16;
  if (bitop3 && d.imm) list += format(" bitop3:0x%x", d.imm);
  if (d.op == Op::v_permlane16_swap_b32 || d.op == Op::v_permlane32_swap_b32) {
    if (d.bound_ctrl) list += " bound_ctrl:1";
    if (d.imm) list += " fi:1";
  } else if (d.format == Family::VOP3P) {
    const bool mix = o.has(kOpSel) && !o.has(kNegHi);  // fma_mix; also ld_scale
    const unsigned all = mix && d.op != Op::v_mfma_ld_scale_b32 ? 0 : (1u << n) - 1;
    if (o.has(kOpSel)) {
      const unsigned hi = d.op_sel_hi & ((1u << n) - 1);
      if (d.op_sel) list += bit_list("op_sel", d.op_sel, n);
      if (hi != all) list += bit_list("op_sel_hi", hi, n);
    }
    if (o.has(kNegHi)) {
      if (d.neg) list += bit_list("neg_lo", d.neg, n);
      if (d.neg_hi) list += bit_list("neg_hi", d.neg_hi, n);
    }
  } else if (d.op_sel && selects_byte(d.op)) {
    list += bit_list("op_sel", d.op_sel, 4);
  } else if (d.op_sel) {  // one bit per source, then the destination's
    const unsigned sources = (1u << n) - 1;
    list += bit_list("op_sel", (d.op_sel & sources) | (d.op_sel >> 3) << n, n + 1);
  }
  if (d.clamp) list += " clamp";
  static const char* const omod[] = {"", " mul:2", " mul:4", " div:2"};
  list += omod[d.omod];
  if (d.dpp) list += dpp(d);
  if (d.sdwa) list += sdwa(d, o);
  return list;
}

std::string mfma(const Decoded& d, const OpInfo& o) {
  std::string list = operand(d, d.dst, o.dst.dwords);
  const bool f8f6f4 = o.opcode == 0x2d || o.opcode == 0x2e;
  for (int i = 0; i < 5 && o.src[i]; ++i) {
    int dwords = o.src[i].dwords;
    if (f8f6f4 && i < 2) {
      const int format = i == 0 ? d.cbsz : d.blgp;
      dwords = format < 2 ? 8 : format < 4 ? 6 : 4;
    }
    if (d.src[i] < kVgpr) dwords = o.src[i].bits / 32;  // a constant
    list = join(list, operand(d, d.src[i], dwords));
  }
  list = " " + list;
  if (o.has(kScaled)) {
    if (d.op_sel) list += bit_list("op_sel", d.op_sel, 3);
    list += bit_list("op_sel_hi", d.op_sel_hi, 3);
  }
  if (d.cbsz) list += format(" cbsz:%d", d.cbsz);
  if (d.abid && !o.has(kScaled)) list += format(" abid:%d", d.abid);
  if (d.blgp) list += format(" blgp:%d", d.blgp);
  if (d.neg) list += bit_list("neg", d.neg, 3);
  return list;
}

std::string cache_bits(const Decoded& d) {
  return std::string(d.sc0 ? " sc0" : "") + (d.nt ? " nt" : "") + (d.sc1 ? " sc1" : "");
}

std::string ds(const Decoded& d, const OpInfo& o) {
  std::string list;
  if (d.dst != kNoOperand) list = operand(d, d.dst, o.dst.dwords);
  if (d.addr != kNoOperand) list = join(list, operand(d, d.addr, 1));
  if (d.data0 != kNoOperand) list = join(list, operand(d, d.data0, o.src[0].dwords));
  if (d.data1 != kNoOperand) list = join(list, operand(d, d.data1, o.src[1].dwords));
  if (!list.empty()) list = " " + list;
  if (o.has(kTwoOffsets)) {
    if (d.offset) list += format(" offset0:%d", d.offset);
    if (d.offset1) list += format(" offset1:%d", d.offset1);
  } else if (d.offset) {
    list += format(" offset:%d", d.offset);
  }
  return list + (d.gds ? " gds" : "");
}

std::string buffer_format(const Decoded& d) {
  static const char* const dfmt[] = {"INVALID",     "8",          "16",          "8_8",
                                     "32",          "16_16",      "10_11_11",    "11_11_10",
                                     "10_10_10_2",  "2_10_10_10", "8_8_8_8",     "32_32",
                                     "16_16_16_16", "32_32_32",   "32_32_32_32", "RESERVED_15"};
  static const char* const nfmt[] = {"UNORM", "SNORM", "USCALED",    "SSCALED",
                                     "UINT",  "SINT",  "RESERVED_6", "FLOAT"};
  std::string list;
  if (d.dfmt != 1) list = format("BUF_DATA_FORMAT_%s", dfmt[d.dfmt]);
  if (d.nfmt != 0)
    list += format(list.empty() ? "BUF_NUM_FORMAT_%s" : ",BUF_NUM_FORMAT_%s", nfmt[d.nfmt]);
  return list.empty() ? "" : " format:[" + list + "]";
}

std::string buffer(const Decoded& d, const OpInfo& o) {
  if (d.sbase == kNoOperand) return cache_bits(d);
  std::string list;
  const OperandType& t = o.src[0] ? o.src[0] : o.dst;
  if (!d.lds) list = operand(d, o.src[0] ? d.data0 : d.dst, t.dwords);
  list = join(list, d.addr == kNoOperand ? "off" : operand(d, d.addr, d.offen && d.idxen ? 2 : 1));
  list = " " + join(list, operand(d, d.sbase, 4)) + ", " + operand(d, d.soffset, 1);
  if (o.family == Family::MTBUF) list += buffer_format(d);
  if (d.idxen) list += " idxen";
  if (d.offen) list += " offen";
  if (d.offset) list += format(" offset:%d", d.offset);
  return list + cache_bits(d) + (d.lds ? " lds" : "");
}

std::string flat(const Decoded& d, const OpInfo& o) {
  std::string list;
  const bool global = o.family == Family::GLOBAL, scratch = o.family == Family::SCRATCH;
  const bool saddr = d.sbase != kNoOperand;
  if (d.dst != kNoOperand) list = operand(d, d.dst, o.dst.dwords);
  const int address = scratch || (global && saddr) ? 1 : 2;
  list = join(list, d.addr == kNoOperand ? "off" : operand(d, d.addr, address));
  if (d.data0 != kNoOperand) list = join(list, operand(d, d.data0, o.src[0].dwords));
  if (global || scratch) list = join(list, saddr ? operand(d, d.sbase, global ? 2 : 1) : "off");
  list = " " + list;
  if (d.offset) list += format(" offset:%d", d.offset);
  return list + cache_bits(d);
}

}  // namespace

std::string disassemble(const Decoded& d) {
  const OpInfo& o = info(d.op);
  std::string name = o.name;
  switch (o.family) {
    case Family::VOP1:
    case Family::VOP2:
    case Family::VOPC:
      if (d.sdwa)
        name += "_sdwa";
      else if (d.dpp)
        name += "_dpp";
      else if (d.format == Family::VOP3)
        name += "_e64";
      else if (!o.has(kNoVop3))
        name += "_e32";
      return name + valu(d, o);
    case Family::VOP3:
    case Family::VOP3P:
      return name + valu(d, o);
    case Family::MFMA:
      return name + mfma(d, o);
    case Family::SMEM:
      return name + smem(d, o);
    case Family::DS:
      return name + ds(d, o);
    case Family::MUBUF:
    case Family::MTBUF:
      return name + buffer(d, o);
    case Family::FLAT:
    case Family::GLOBAL:
    case Family::SCRATCH:
      return name + flat(d, o);
    default:
      return name + scalar(d, o);
  }
}

}  // namespace emu
