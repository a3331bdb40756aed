// One decoded instruction, and the properties of each opcode in ops.def.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "core/arch.hpp"

namespace emu {

// Encoding families. A VOP1, VOP2 or VOPC opcode may also be encoded as VOP3 ("_e64"): its row
// in ops.def keeps the native family, Decoded::format is the actual encoding.
enum class Family : uint8_t {
  // clang-format off
  SOP1, SOP2, SOPC, SOPK, SOPP, SMEM,
  VOP1, VOP2, VOPC, VOP3, VOP3P, MFMA,
  DS, MUBUF, MTBUF, FLAT, GLOBAL, SCRATCH,
  // clang-format on
};

// The counter of a row of ops.def.
enum class OpClass : uint8_t { salu, valu, trans, mfma, lds, vmem, smem, branch, wait, other };

// One enumerator per row of ops.def, named as the mnemonic.
enum class Op : uint16_t {
#define EMU_OP(family, opcode, name, ...) name,
#include "isa/ops.def"
#undef EMU_OP
  count
};

// Flags of a row.
enum : uint32_t {
  kReadsScc = 1u << 0,
  kWritesScc = 1u << 1,
  kReadsVcc = 1u << 2,   // in VOP3 form an explicit operand, except v_div_fmas
  kWritesVcc = 1u << 3,  // likewise
  kReadsExec = 1u << 4,  // as data, apart from the lane mask that every vector op obeys
  kWritesExec = 1u << 5,
  kReadsM0 = 1u << 6,
  kReadsDst = 1u << 7,        // the destination is also a source, or keeps some of its bits
  kDpp = 1u << 8,             // has a DPP form
  kSdwa = 1u << 9,            // has an SDWA form
  kNoVop3 = 1u << 10,         // VOP1/VOP2 without a VOP3 form
  kClamp = 1u << 11,          // VOP3 clamp bit allowed
  kOmod = 1u << 12,           // VOP3 output modifier allowed
  kOpSel = 1u << 13,          // VOP3 op_sel allowed (VOP3P: op_sel and op_sel_hi)
  kNegHi = 1u << 14,          // VOP3P neg_lo and neg_hi allowed
  kInlineLiteral = 1u << 15,  // always followed by a 32-bit constant (fmaak, setreg_imm32)
  kAtomic = 1u << 16,
  kStore = 1u << 17,
  kLds = 1u << 18,         // buffer load that may go to LDS; FLAT family: always does
  kTwoOffsets = 1u << 19,  // DS with two 8-bit offsets
  kGws = 1u << 20,         // DS op of the global wave sync unit
  kScaled = 1u << 21,      // 16-byte MFMA with scale operands
  kGfx950 = 1u << 22,      // only this architecture has it
  kGfx942 = 1u << 23,
};

// Operand type as the signature in ops.def names it.
struct OperandType {
  enum class Where : uint8_t { any, sgpr, lane, vgpr, agpr };
  char kind = 0;  // 'b' bits, 'i', 'u', 'f', 'h' bfloat, '@' memory address; 0: no operand
  Where where = Where::any;
  uint16_t bits = 0;     // of one element
  uint8_t elements = 0;  // > 1: packed
  uint8_t dwords = 0;    // of the whole register tuple
  explicit operator bool() const { return kind != 0; }
  bool is_float() const { return kind == 'f' || kind == 'h'; }
};

struct OpInfo {
  const char* name;
  Family family;
  uint16_t opcode;
  OpClass cls;
  uint32_t flags;
  OperandType dst;                 // scalar, vector, or returned memory data
  OperandType dst2;                // SGPR pair of VOP3B (carry, div_scale)
  std::array<OperandType, 5> src;  // in text order; for memory ops without the address: the data
  bool has(uint32_t f) const { return (flags & f) != 0; }
};

const OpInfo& info(Op op);

// VOP3 conversions with two sources whose op_sel[3:2] picks a byte of the destination.
constexpr bool selects_byte(Op op) {
  return op == Op::v_cvt_sr_fp8_f32 || op == Op::v_cvt_sr_bf8_f32 ||
         op == Op::v_cvt_scalef32_pk_fp4_f16 || op == Op::v_cvt_scalef32_pk_fp4_bf16;
}

// An operand of the machine code, with VGPR and AGPR distinguished.
//   0..101 SGPR, 102/103 FLAT_SCRATCH, 104/105 XNACK_MASK, 106/107 VCC, 124 M0, 126/127 EXEC,
//   128..208 integers 0..64, -1..-16, 235..239 apertures, 240..248 floats, 251 VCCZ, 252 EXECZ,
//   253 SCC, 255 literal, 256..511 VGPR, 512..767 AGPR.
using Operand = uint16_t;
inline constexpr Operand kVgpr = 256, kAgpr = 512, kLiteral = 255, kNoOperand = 0xffff;
inline constexpr Operand kVccLo = 106, kM0 = 124, kExecLo = 126, kScc = 253;

struct Decoded {
  Op op{};
  Family format{};   // the actual encoding: VOP3 for the _e64 form of a VOP1/VOP2/VOPC row
  uint8_t size = 0;  // bytes: 4, 8 or 16
  bool dpp = false, sdwa = false;
  bool has_literal = false;
  uint32_t literal = 0;  // of a kLiteral source, or the constant of fmaak/fmamk/setreg_imm32
  uint64_t address = 0;
  std::array<uint32_t, 4> words{};  // size/4 of them

  // Operands, in any encoding; kNoOperand where there is none. DPP and SDWA sources
  // are in src[0] (and src[1]); implicit VCC operands are filled in (v_addc, v_cndmask, VOPC).
  Operand dst = kNoOperand;
  Operand dst2 = kNoOperand;
  // MFMA: A, B, C and the two scales. smfmac: A, B, index; C is dst.
  std::array<Operand, 5> src{kNoOperand, kNoOperand, kNoOperand, kNoOperand, kNoOperand};

  int32_t imm = 0;  // SOPK/SOPP simm16 (sign-extended), hwreg word, gpr_idx mask, bitop3 table

  // VOP3, VOP3P, DPP, SDWA modifiers: bit i is source i. neg is neg_lo in VOP3P.
  uint8_t abs = 0, neg = 0, neg_hi = 0;
  uint8_t op_sel = 0;     // VOP3: bit 3 is the destination half
  uint8_t op_sel_hi = 0;  // VOP3P
  uint8_t omod = 0;       // 1: *2, 2: *4, 3: /2
  bool clamp = false;
  uint8_t cbsz = 0, abid = 0, blgp = 0;  // MFMA

  uint16_t dpp_ctrl = 0;
  uint8_t row_mask = 0xf, bank_mask = 0xf;
  bool bound_ctrl = false;

  // SDWA: selects 0-3 byte, 4-5 word, 6 dword; dst_unused 0 pad, 1 sign-extend, 2 preserve.
  uint8_t dst_sel = 6, dst_unused = 0;
  std::array<uint8_t, 2> src_sel{6, 6};
  uint8_t sext = 0;  // bit i is source i

  // Memory. DS: addr, data0, data1, offset, offset1. SMEM: sbase, soffset. Buffers: addr is vaddr,
  // sbase the resource, soffset. FLAT family: addr, sbase is saddr (kNoOperand when off).
  // Loaded or returned data goes to dst; stored data is data0.
  Operand addr = kNoOperand, data0 = kNoOperand, data1 = kNoOperand;
  Operand sbase = kNoOperand, soffset = kNoOperand;
  int32_t offset = 0;
  uint8_t offset1 = 0;  // second offset of the two-address DS forms
  bool offen = false, idxen = false, lds = false, gds = false;
  bool sc0 = false, sc1 = false,
       nt = false;             // sc0 is "glc" for SMEM and "return old value" for atomics
  uint8_t dfmt = 0, nfmt = 0;  // MTBUF
};

// Decodes the instruction at the start of `bytes` without reading past its end. False if the
// architecture does not know it or it is malformed (reserved bits set, operand out of range).
bool decode(std::span<const uint8_t> bytes, uint64_t address, Decoded& out,
            const Arch& of = arch());

// LLVM's assembler syntax; assembling it gives the same bytes again.
std::string disassemble(const Decoded& instruction);

}  // namespace emu
