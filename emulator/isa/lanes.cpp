// Around the loops of the vector ALU: operands, modifiers, results.
#include "isa/lanes.hpp"

#include <cfenv>

namespace emu::EMU_NS {
namespace {

// Inst::x of a vector operation.
enum VectorFlags : uint16_t {
  kScalar0 = 1,     // source n is in Wave::s (bit n)
  kWide0 = 1 << 3,  // source n is 64 bits wide (bit 3+n)
  kMask2 = 1 << 6,  // the last source is a lane mask in Wave::s, at slot c
  kWideDst = 1 << 7,
  kMaskDst = 1 << 8,  // a mask goes to Wave::s, at slot y
  kValueDst = 1 << 9,
  kExecDst = 1 << 10,      // the mask goes to EXEC too (v_cmpx)
  kHalfDst = 1 << 11,      // float result: of 16 bits
  kFloatDst = 1 << 12,     // float result
  kHalfSources = 1 << 13,  // float sources are of 16 bits
  kFloatSources = 1 << 14,
  kKeepOther = 1 << 15,  // a 16-bit result leaves the other half alone
};

// Inst::imm of a vector operation.
struct Modifiers {
  static constexpr int kOmodAt = 6, kClampAt = 8, kOpSelAt = 9, kOpSelHiAt = 13, kNegHiAt = 16,
                       kExtraAt = 19;
  uint32_t bits;
  EMU_MEMBER bool abs(int n) const { return bits >> n & 1; }
  EMU_MEMBER bool neg(int n) const { return bits >> (3 + n) & 1; }
  EMU_MEMBER uint32_t omod() const { return bits >> kOmodAt & 3; }
  EMU_MEMBER bool clamp() const { return bits >> kClampAt & 1; }
  EMU_MEMBER bool op_sel(int n) const { return bits >> (kOpSelAt + n) & 1; }
  EMU_MEMBER bool op_sel_hi(int n) const { return bits >> (kOpSelHiAt + n) & 1; }
  EMU_MEMBER bool neg_hi(int n) const { return bits >> (kNegHiAt + n) & 1; }
  EMU_MEMBER uint32_t extra() const { return bits >> kExtraAt; }  // slot of the DPP or SDWA word
  // Where there is no op_sel_hi and neg_hi: sources that are no floats, and that they are bfloats.
  static constexpr int kIntegerAt = kOpSelHiAt, kBfloatAt = kNegHiAt;
  EMU_MEMBER bool integer(int n) const { return bits >> (kIntegerAt + n) & 1; }
  EMU_MEMBER bool bfloat() const { return bits >> kBfloatAt & 1; }
};

// The second dword of a DPP or SDWA form; bit 31 of the word before it distinguishes them.
struct Extra {
  uint32_t word;
  EMU_MEMBER uint32_t field(int hi, int lo) const { return word >> lo & ((2u << (hi - lo)) - 1); }
};

using Row = uint32_t[kLanes];

// Inst::y of v_div_fmas: its fourth source is VCC.
inline constexpr uint16_t kVccSource = 0xffff;

EMU_INLINE Loop loop_of(const Inst* i) { return reinterpret_cast<Loop>(i->wide); }

// Row of source n, in `buffer` unless it is a plain register.
EMU_INLINE const uint32_t* source_row(Wave& w, const Inst* i, int n, uint16_t at,
                                      Row (&buffer)[2]) {
  const bool scalar = i->x & (kScalar0 << n), wide = i->x & (kWide0 << n);
  if (!scalar) return w.reg(at);
  spread(buffer[0], w.s[at]);
  if (wide) spread(buffer[1], w.s[at + 1]);
  return buffer[0];
}

EMU_INLINE bool default_mode(const Wave& w) {
  return (w.mode & kModeFloat) == (kModeDenormF32 | kModeDenormF64);
}

// ---- unusual modes ------------------------------------------------------------------------------

// Two bits of MODE for a type: bit 0 lets denormal inputs through, bit 1 denormal results.
EMU_INLINE uint32_t denormals_of(uint32_t mode, bool single) {
  return single ? mode >> 4 & 3 : mode >> 6 & 3;
}
EMU_INLINE uint32_t rounding_of(uint32_t mode, bool single) {
  return single ? mode & 3 : mode >> 2 & 3;
}

// `exponent` is the mask of 16-bit formats.
void flush_row(uint32_t* row, bool half, bool wide, uint32_t exponent = 0x7c00) {
  if (wide) {
    for (int l = 0; l < kLanes; ++l)
      if ((row[l + kLanes] & 0x7ff00000) == 0) row[l] = 0, row[l + kLanes] &= 0x80000000;
  } else if (half) {
    for (int l = 0; l < kLanes; ++l)
      if ((row[l] & exponent) == 0) row[l] &= 0xffff8000;
  } else {
    for (int l = 0; l < kLanes; ++l)
      if ((row[l] & 0x7f800000) == 0) row[l] &= 0x80000000;
  }
}

void run_rounded(Loop loop, const Rows& rows, uint32_t rounding) {
  static constexpr int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  if (rounding) std::fesetround(modes[rounding]);
  loop(rows);
  if (rounding) std::fesetround(FE_TONEAREST);
}

// ---- sources ------------------------------------------------------------------------------------

// The lane that lane l reads under a DPP control, or -1 outside the row or wave.
int dpp_source(uint32_t control, int l) {
  const int in_row = l & 15, row = l & ~15, n = static_cast<int>(control & 15);
  switch (control >> 4) {
    case 0x10:
      return in_row + n < 16 ? l + n : -1;
    case 0x11:
      return in_row >= n ? l - n : -1;
    case 0x12:
      return row + ((in_row - n) & 15);
    case 0x13:
      switch (control) {
        case 0x130:
          return l < 63 ? l + 1 : -1;
        case 0x134:
          return (l + 1) & 63;
        case 0x138:
          return l > 0 ? l - 1 : -1;
        default:
          return (l - 1) & 63;
      }
    case 0x14:
      switch (control) {
        case 0x140:
          return row + 15 - in_row;
        case 0x141:
          return (l & ~7) + 7 - (l & 7);
        case 0x142:
          return l > 15 ? row - 1 : -1;
        default:
          return l > 31 ? (l & ~31) - 1 : -1;
      }
    case 0x15:
      return row + n;
    default:
      return (l & ~3) + static_cast<int>(control >> (2 * (l & 3)) & 3);
  }
}

// Moves lanes of the first source; returns the lanes that write their result.
uint64_t apply_dpp(const Extra e, uint64_t exec, const uint32_t*& row, bool wide,
                   Row (&buffer)[2]) {
  const uint32_t control = e.field(16, 8), banks = e.field(27, 24), rows = e.field(31, 28);
  const bool zero_outside = e.field(19, 19);
  Row moved[2];
  uint64_t writes = exec;
  for (int l = 0; l < kLanes; ++l) {
    const int from = dpp_source(control, l);
    const bool valid = from >= 0 && (exec >> from & 1);
    for (int r = 0; r < (wide ? 2 : 1); ++r) moved[r][l] = valid ? row[r * kLanes + from] : 0;
    const bool enabled = (banks >> (l >> 2 & 3) & 1) && (rows >> (l >> 4) & 1);
    if (!enabled || (!valid && !zero_outside)) writes &= ~(uint64_t{1} << l);
  }
  std::memcpy(buffer, moved, sizeof moved);
  row = buffer[0];
  return writes;
}

// A byte or word of each lane, zero- or sign-extended.
void select_part(const uint32_t* row, uint32_t* out, uint32_t select, bool extend) {
  const uint32_t shift = select < 4 ? 8 * select : select == 5 ? 16 : 0;
  const uint32_t width = select < 4 ? 8 : select < 6 ? 16 : 32;
  const uint32_t left = 32 - width;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t x = row[l] >> shift << left;
    out[l] = extend ? static_cast<uint32_t>(static_cast<int32_t>(x) >> left) : x >> left;
  }
}

EMU_INLINE void change_sign(const uint32_t* row, uint32_t* out, uint32_t sign, bool abs, bool neg) {
  const uint32_t keep = abs ? ~sign : ~0u, flip = neg ? sign : 0;
  for (int l = 0; l < kLanes; ++l) out[l] = (row[l] & keep) ^ flip;
}

// ---- results ------------------------------------------------------------------------------------

void apply_output(uint32_t* row, const Modifiers m, uint32_t mode, bool half, bool wide) {
  // Multiplying the result works only where denormals are flushed and IEEE rules are off.
  const bool single = !half && !wide;
  const bool scales = m.omod() && !(denormals_of(mode, single) & 2) && !(mode & kModeIeee);
  static constexpr float kScales[] = {1.f, 2.f, 4.f, 0.5f};
  const float scale = scales ? kScales[m.omod()] : 1.f;
  for (int l = 0; l < kLanes; ++l) {
    double x = half   ? half_to_float(row[l])
               : wide ? as<double>(row[l] | static_cast<uint64_t>(row[l + kLanes]) << 32)
                      : as<float>(row[l]);
    if (x != x && !(m.clamp() && (mode & kModeDx10Clamp))) continue;
    if (scales) x = x * scale + 0.0;  // -0 becomes +0
    if (m.clamp()) x = x > 0 ? (x < 1 ? x : 1) : 0;
    if (half) {
      row[l] = float_to_half(static_cast<float>(x), mode & kModeFp16Overflow);
    } else if (wide) {
      const uint64_t bits = as<uint64_t>(x);
      row[l] = static_cast<uint32_t>(bits);
      row[l + kLanes] = static_cast<uint32_t>(bits >> 32);
    } else {
      row[l] = as<uint32_t>(static_cast<float>(x));
    }
  }
}

// Puts a result into part of the destination, as SDWA's dst_sel and dst_unused say.
void insert_part(uint32_t* result, const uint32_t* old, uint32_t select, uint32_t unused) {
  if (select == 6) return;
  const uint32_t shift = select < 4 ? 8 * select : select == 5 ? 16 : 0;
  const uint32_t mask = select < 4 ? 0xff : 0xffff, top = select < 4 ? 0x80 : 0x8000;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t part = result[l] & mask;
    uint32_t r = part << shift;
    if (unused == 2) r |= old[l] & ~(mask << shift);
    if (unused == 1 && (part & top)) r |= ~((mask << shift) | ((1u << shift) - 1));
    result[l] = r;
  }
}

// ---- execution ----------------------------------------------------------------------------------

enum class Form { plain, dpp, sdwa };

// All but the common case: modifiers, DPP, SDWA, op_sel, unusual modes.
template <Form kForm>
const Inst* run_general(Wave& w, const Inst* i) {
  alignas(64) Row buffer[3][2];
  alignas(64) Row result[2];
  alignas(64) Row mask;
  const uint16_t flags = i->x;
  const Modifiers m{static_cast<uint32_t>(i->imm)};
  const Extra extra{kForm == Form::plain ? 0 : w.s[m.extra()]};
  const uint64_t exec = w.exec();
  uint64_t writes = exec;
  const bool half = flags & kHalfSources;
  const bool half_dst = flags & kHalfDst, wide_dst = flags & kWideDst;
  const bool float_dst = flags & kFloatDst;
  const bool usual = default_mode(w);

  Rows rows;
  rows.mode = w.mode;
  rows.control = i->y;
  rows.mask_out = mask;
  rows.d = result[0];
  Row vcc;
  if (i->y == kVccSource) expand_mask(vcc, w.vcc());
  rows.src[3] = i->y == kVccSource ? vcc : w.reg(i->d);
  const uint16_t at[3] = {i->a, i->b, i->c};
  for (int n = 0; n < 3; ++n) {
    Row(&mine)[2] = buffer[n];
    if (n == 2 && (flags & kMask2)) {
      expand_mask(mine[0], w.s64(i->c));
      rows.src[2] = mine[0];
      continue;
    }
    const bool wide = flags & (kWide0 << n);
    const uint32_t* row = source_row(w, i, n, at[n], mine);
    if constexpr (kForm == Form::dpp)
      if (n == 0) writes = apply_dpp(extra, exec, row, wide, mine);
    if constexpr (kForm == Form::sdwa)
      if (n < 2) {
        const int base = 16 + 8 * n;
        select_part(row, mine[0], extra.field(base + 2, base), extra.field(base + 3, base + 3));
        row = mine[0];
      }
    if (m.op_sel(n)) {
      select_part(row, mine[0], 5, false);
      row = mine[0];
    }
    if (m.abs(n) || m.neg(n)) {
      if (wide) {
        if (row != mine[0]) std::memcpy(mine[0], row, sizeof mine[0]);
        change_sign(row + kLanes, mine[1], 0x80000000, m.abs(n), m.neg(n));
      } else {
        change_sign(row, mine[0], half ? 0x8000 : 0x80000000, m.abs(n), m.neg(n));
      }
      row = mine[0];
    }
    if (!usual && (flags & kFloatSources) && !m.integer(n) &&
        !(denormals_of(w.mode, !half && !wide) & 1)) {
      if (row != mine[0]) std::memcpy(mine, row, wide ? sizeof mine : sizeof mine[0]);
      flush_row(mine[0], half, wide, m.bfloat() ? 0x7f80 : 0x7c00);
      row = mine[0];
    }
    rows.src[n] = row;
  }

  const bool single = !half_dst && !wide_dst;
  run_rounded(loop_of(i), rows, usual || !float_dst ? 0 : rounding_of(w.mode, single));

  if (flags & kMaskDst) {
    const uint64_t bits = pack_mask(mask) & writes;
    w.set64(i->y, bits);
    if (flags & kExecDst) w.set64(kSlotExec, bits);
  }
  if (flags & kValueDst) {
    uint32_t* const d = w.reg(i->d);
    if (float_dst) {
      if (!usual && !(denormals_of(w.mode, single) & 2)) flush_row(result[0], half_dst, wide_dst);
      if (m.omod() || m.clamp()) apply_output(result[0], m, w.mode, half_dst, wide_dst);
    }
    if constexpr (kForm == Form::sdwa)
      insert_part(result[0], d, extra.field(10, 8), extra.field(12, 11));
    if (flags & kKeepOther) insert_part(result[0], d, m.op_sel(3) ? 5 : 4, 2);
    blend(d, result[0], writes);
    if (wide_dst) blend(d + kLanes, result[1], writes);
  }
  return i + 1;
}

// Registers and scalars in, registers or a mask out.
const Inst* run_plain(Wave& w, const Inst* i) {
  if (!default_mode(w)) [[unlikely]]
    return run_general<Form::plain>(w, i);
  alignas(64) Row buffer[3][2];
  alignas(64) Row result[2];
  alignas(64) Row mask;
  const uint16_t flags = i->x;
  const uint64_t exec = w.exec();
  const bool in_place = exec == kAllLanes && (flags & kValueDst);

  Rows rows;
  rows.mode = w.mode;
  rows.control = i->y;
  rows.mask_out = mask;
  rows.d = in_place ? w.reg(i->d) : result[0];
  rows.src[3] = w.reg(i->d);
  const uint16_t at[3] = {i->a, i->b, i->c};
  for (int n = 0; n < 3; ++n) {
    if (n == 2 && (flags & kMask2)) {
      expand_mask(buffer[2][0], w.s64(i->c));
      rows.src[2] = buffer[2][0];
      continue;
    }
    rows.src[n] = source_row(w, i, n, at[n], buffer[n]);
  }
  loop_of(i)(rows);

  if (flags & kMaskDst) {
    const uint64_t bits = pack_mask(mask) & exec;
    w.set64(i->y, bits);
    if (flags & kExecDst) w.set64(kSlotExec, bits);
  }
  if ((flags & kValueDst) && !in_place) {
    blend(w.reg(i->d), result[0], exec);
    if (flags & kWideDst) blend(w.reg(i->d) + kLanes, result[1], exec);
  }
  return i + 1;
}

// Two 16-bit elements per register: op_sel and op_sel_hi pick a half for each, neg and neg_hi flip
// signs. Dot products share it: both halves of two sources, the third a plain number.
template <bool kDot, Form kForm = Form::plain>
const Inst* run_packed(Wave& w, const Inst* i) {
  alignas(64) Row buffer[3][2];
  alignas(64) Row result;
  const Modifiers m{static_cast<uint32_t>(i->imm)};
  const bool is_float = i->x & kFloatSources;
  const bool usual = default_mode(w);
  const Extra extra{kForm == Form::plain ? 0 : w.s[m.extra()]};
  uint64_t writes = w.exec();
  Rows rows;
  rows.mode = w.mode;
  rows.control = i->y;
  rows.mask_out = nullptr;
  rows.d = result;
  rows.src[3] = nullptr;
  const uint16_t at[3] = {i->a, i->b, i->c};
  for (int n = 0; n < 3; ++n) {
    Row& mine = buffer[n][0];
    const uint32_t* row = source_row(w, i, n, at[n], buffer[n]);
    if constexpr (kForm == Form::dpp)
      if (n == 0) writes = apply_dpp(extra, w.exec(), row, false, buffer[0]);
    if constexpr (kForm == Form::sdwa)
      if (n < 2) {
        const int base = 16 + 8 * n;
        select_part(row, mine, extra.field(base + 2, base), extra.field(base + 3, base + 3));
        row = mine;
      }
    if (!kDot || n < 2) {
      const uint32_t low = m.op_sel(n) ? 16 : 0, high = m.op_sel_hi(n) ? 16 : 0;
      const uint32_t flip = (m.neg(n) ? 0x8000u : 0) | (m.neg_hi(n) ? 0x80000000u : 0);
      const uint32_t exponent = kDot && i->y ? 0x7f80 : 0x7c00;  // bf16 or f16
      const bool flushes = is_float && (kDot || (!usual && !(denormals_of(w.mode, false) & 1)));
      if (low || !high || flip || flushes) {
        for (int l = 0; l < kLanes; ++l)
          mine[l] = ((row[l] >> low & 0xffff) | row[l] >> high << 16) ^ flip;
        if (flushes)
          for (int l = 0; l < kLanes; ++l) {
            if ((mine[l] & exponent) == 0) mine[l] &= 0xffff8000;
            if ((mine[l] & exponent << 16) == 0) mine[l] &= 0x8000ffff;
          }
        row = mine;
      }
    }
    rows.src[n] = row;
  }
  run_rounded(loop_of(i), rows, usual || kDot || !is_float ? 0 : rounding_of(w.mode, false));
  if (!kDot && is_float) {
    if (!usual && !(denormals_of(w.mode, false) & 2))
      for (int l = 0; l < kLanes; ++l) {
        if ((result[l] & 0x7c00) == 0) result[l] &= 0xffff8000;
        if ((result[l] & 0x7c000000) == 0) result[l] &= 0x8000ffff;
      }
    if (m.clamp()) {
      alignas(64) Row halves[2];
      for (int h = 0; h < 2; ++h) {
        for (int l = 0; l < kLanes; ++l) halves[h][l] = result[l] >> (16 * h) & 0xffff;
        apply_output(halves[h], m, w.mode, true, false);
      }
      for (int l = 0; l < kLanes; ++l) result[l] = halves[0][l] | halves[1][l] << 16;
    }
  }
  if (kDot && is_float && (m.clamp() || m.omod())) apply_output(result, m, w.mode, false, false);
  if constexpr (kForm == Form::sdwa)
    insert_part(result, w.reg(i->d), extra.field(10, 8), extra.field(12, 11));
  blend(w.reg(i->d), result, writes);
  return i + 1;
}

// Two 32-bit elements per register pair.
const Inst* run_packed32(Wave& w, const Inst* i) {
  alignas(64) Row buffer[3][2];
  alignas(64) Row changed[3];
  alignas(64) Row result[2];
  const Modifiers m{static_cast<uint32_t>(i->imm)};
  const bool is_float = i->x & kFloatSources;
  const bool usual = default_mode(w);
  const uint16_t at[3] = {i->a, i->b, i->c};
  const uint32_t* source[3];
  for (int n = 0; n < 3; ++n) source[n] = source_row(w, i, n, at[n], buffer[n]);
  for (int h = 0; h < 2; ++h) {
    Rows rows;
    rows.mode = w.mode;
    rows.control = i->y + h;
    rows.mask_out = nullptr;
    rows.d = result[h];
    rows.src[3] = nullptr;
    for (int n = 0; n < 3; ++n) {
      const uint32_t* row = source[n] + (h ? m.op_sel_hi(n) : m.op_sel(n)) * kLanes;
      const bool flip = h ? m.neg_hi(n) : m.neg(n);
      const bool flushes = is_float && !usual && !(denormals_of(w.mode, true) & 1);
      if (flip || flushes) {
        change_sign(row, changed[n], 0x80000000, false, flip);
        if (flushes) flush_row(changed[n], false, false);
        row = changed[n];
      }
      rows.src[n] = row;
    }
    run_rounded(loop_of(i), rows, usual || !is_float ? 0 : rounding_of(w.mode, true));
    if (is_float) {
      if (!usual && !(denormals_of(w.mode, true) & 2)) flush_row(result[h], false, false);
      if (m.clamp()) apply_output(result[h], m, w.mode, false, false);
    }
  }
  for (int h = 0; h < 2; ++h) blend(w.reg(i->d) + h * kLanes, result[h], w.exec());
  return i + 1;
}

// fma_mix: each source is a float or one half of a register.
const Inst* run_mix(Wave& w, const Inst* i) {
  alignas(64) Row buffer[3][2];
  alignas(64) Row result;
  const Modifiers m{static_cast<uint32_t>(i->imm)};
  const bool usual = default_mode(w);
  const bool half_dst = i->x & kHalfDst;
  Rows rows;
  rows.mode = w.mode;
  rows.control = 0;
  rows.mask_out = nullptr;
  rows.d = result;
  rows.src[3] = nullptr;
  const uint16_t at[3] = {i->a, i->b, i->c};
  for (int n = 0; n < 3; ++n) {
    Row& mine = buffer[n][0];
    const uint32_t* const row = source_row(w, i, n, at[n], buffer[n]);
    const bool is_half = m.op_sel_hi(n);
    if (is_half)
      select_part(row, mine, m.op_sel(n) ? 5 : 4, false);
    else if (row != mine)
      std::memcpy(mine, row, sizeof mine);
    if (!usual && !(denormals_of(w.mode, !is_half) & 1)) flush_row(mine, is_half, false);
    if (is_half)
      for (int l = 0; l < kLanes; ++l) mine[l] = as<uint32_t>(half_to_float(mine[l]));
    change_sign(mine, mine, 0x80000000, m.abs(n), m.neg(n));
    rows.src[n] = mine;
  }
  run_rounded(loop_of(i), rows, usual ? 0 : rounding_of(w.mode, !half_dst));
  uint32_t* const d = w.reg(i->d);
  if (!usual && !(denormals_of(w.mode, !half_dst) & 2)) flush_row(result, half_dst, false);
  if (m.clamp()) apply_output(result, m, w.mode, half_dst, false);
  if (half_dst) insert_part(result, d, (i->x & kKeepOther) ? 5 : 4, 2);
  blend(d, result, w.exec());
  return i + 1;
}

// ---- lowering -----------------------------------------------------------------------------------

// Operations that take op_sel as a number (Control) rather than as a choice of halves.
bool op_sel_is_control(Op op) {
  switch (op) {
    case Op::v_cvt_pk_fp8_f32:
    case Op::v_cvt_pk_bf8_f32:
    case Op::v_cvt_sr_fp8_f32:
    case Op::v_cvt_sr_bf8_f32:
    case Op::v_cvt_sr_f16_f32:
    case Op::v_cvt_sr_bf16_f32:
    case Op::v_cvt_scalef32_pk_bf16_fp8:
    case Op::v_cvt_scalef32_pk_bf16_bf8:
      return true;
    default:
      return op >= Op::v_cvt_scalef32_pk_fp8_f32 && op <= Op::v_cvt_scalef32_pk32_bf16_bf6;
  }
}

uint32_t modifier_bits(const Decoded& d) {
  return d.abs | d.neg << 3 | d.omod << Modifiers::kOmodAt | d.clamp << Modifiers::kClampAt |
         d.op_sel << Modifiers::kOpSelAt | d.op_sel_hi << Modifiers::kOpSelHiAt |
         d.neg_hi << Modifiers::kNegHiAt;
}

// Slot of the second dword of a DPP or SDWA form; 0 of another.
uint32_t extra_word(Lowering& l, const Decoded& d) {
  if (!d.dpp && !d.sdwa) return 0;
  const uint32_t slot = l.constant(d.words[1]);
  if (slot >= 1u << (32 - Modifiers::kExtraAt)) l.fail("too many constants");
  return slot;
}

// Sources and destination. Sources come in the order of the lambda's parameters; a mask operand
// (v_cndmask, v_addc) is the third; the destination, where it is read, the last.
void lower_operands(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  const OpInfo& op = info(d.op);
  const bool saturates = d.clamp && s.handler != nullptr;
  i.wide = saturates ? reinterpret_cast<uint64_t>(s.handler) : reinterpret_cast<uint64_t>(s.loop);
  uint16_t* const at[] = {&i.a, &i.b, &i.c};
  int n = 0;
  for (; n < 3 && op.src[n]; ++n) {
    const OperandType& type = op.src[n];
    if (type.is_float()) {
      i.x |= kFloatSources;
      if (type.bits == 16) i.x |= kHalfSources;
    }
    if (type.dwords == 2 && type.kind == 'b' && n == 2 && op.has(kReadsVcc)) {
      i.c = l.scalar(d.src[n], 2);
      i.x |= kMask2;
      continue;
    }
    if (type.dwords > 2) return l.fail("operand too wide for this form");
    if (type.dwords == 2) i.x |= kWide0 << n;
    if (Lowering::is_vgpr(d.src[n])) {
      *at[n] = l.vector(d.src[n], type.dwords);
    } else {
      *at[n] = l.scalar(d.src[n], type);
      i.x |= kScalar0 << n;
    }
  }
  const bool constant_first = d.op == Op::v_fmamk_f32 || d.op == Op::v_madmk_f16;
  if (op.has(kInlineLiteral)) {  // a·b + K, or a·K + b
    uint16_t* const place = constant_first ? at[1] : at[2];
    if (constant_first) i.c = i.b;
    *place = l.constant(d.literal);
    i.x |= constant_first ? kScalar0 << 1 : kScalar0 << 2;
    n = 3;
  }
  const bool reads = op.has(kReadsDst) && op.dst.kind != 0;
  if (reads) {
    const uint16_t dst = l.vector(d.dst, op.dst.dwords);
    if (n < 3) {  // as a fourth source it is always available
      *at[n] = dst;
      if (op.dst.dwords == 2) i.x |= kWide0 << n;
      ++n;
    }
  }
  // Unused operands read a valid register.
  for (n = n < 1 ? 1 : n; n < 3; ++n) {
    *at[n] = i.a;
    if (i.x & kScalar0) i.x |= kScalar0 << n;
  }

  if (op.family == Family::VOPC) {
    i.x |= kMaskDst;
    i.y = l.scalar_dst(d.dst, 2);
    if (op.has(kWritesExec)) i.x |= kExecDst;
    if (std::strstr(op.name, "class")) i.x &= ~kFloatSources;  // denormals are looked at
    return;
  }
  if (!op.dst) return l.fail("no destination");
  i.x |= kValueDst;
  i.d = l.vector(d.dst, op.dst.dwords);
  if (op.dst.dwords == 2) i.x |= kWideDst;
  // Conversions to packed formats round in their own ways.
  if (op.dst.is_float() && (op.dst.elements == 1 || d.format == Family::VOP3P)) {
    i.x |= kFloatDst;
    if (op.dst.bits == 16) i.x |= kHalfDst;
  } else {
    i.x &= ~kFloatSources;
  }
  if (op.dst2) {
    i.x |= kMaskDst;
    i.y = l.scalar_dst(d.dst2, 2);
  }
}

}  // namespace

void lower_vector(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  const OpInfo& op = info(d.op);
  lower_operands(l, d, s, i);
  if (l.failure()) return;
  uint32_t modifiers = modifier_bits(d);
  const bool control = op_sel_is_control(d.op);
  if (control) {
    if ((d.op_sel & 1) && op.src[0].bits == 16 && op.src[0].elements == 1)
      return l.fail("the upper half as the source of this conversion is not emulated");
    i.y = d.op_sel;
    modifiers &= ~(15u << Modifiers::kOpSelAt);
    if ((d.abs || d.neg) && op.src[0].elements > 1)
      return l.fail("sign modifiers of packed sources are not emulated");
  } else if (d.op == Op::v_bitop3_b32 || d.op == Op::v_bitop3_b16) {
    i.y = static_cast<uint16_t>(d.imm);
  }
  // 16-bit results of the instructions that have op_sel keep the other half.
  const bool half_result = op.dst.bits == 16 && op.dst.elements == 1;
  const bool bytes = d.op == Op::v_ashr_pk_i8_i32 || d.op == Op::v_ashr_pk_u8_i32;
  if (op.has(kOpSel) && !control && (half_result || bytes)) i.x |= kKeepOther;
  const bool with_vcc = d.op == Op::v_div_fmas_f32 || d.op == Op::v_div_fmas_f64;
  if (with_vcc) i.y = kVccSource;
  const bool integer = op.dst.kind == 'u' || op.dst.kind == 'i';
  if (d.clamp && integer && s.handler == nullptr && !op.src[0].is_float() &&
      op.family != Family::VOPC)
    return l.fail("integer saturation is not emulated here");
  // Saturation in the loop implements the clamp bit.
  if (d.clamp && s.handler != nullptr) modifiers &= ~(1u << Modifiers::kClampAt);
  // op_sel picks halves of 16-bit sources only; the high selects are VOP3P's.
  for (int n = 0; n < 3; ++n)
    if (op.src[n].bits != 16) modifiers &= ~(1u << (Modifiers::kOpSelAt + n));
  modifiers &= ~(63u << Modifiers::kOpSelHiAt);
  modifiers |= extra_word(l, d) << Modifiers::kExtraAt;
  const bool any = modifiers != 0;
  for (int n = 0; n < 3; ++n)
    if (op.src[n] && !op.src[n].is_float()) modifiers |= 1u << (Modifiers::kIntegerAt + n);
  if (op.src[0].kind == 'h') modifiers |= 1u << Modifiers::kBfloatAt;
  i.imm = static_cast<int32_t>(modifiers);
  i.fn = d.dpp                                   ? run_general<Form::dpp>
         : d.sdwa                                ? run_general<Form::sdwa>
         : any || with_vcc || (i.x & kKeepOther) ? run_general<Form::plain>
                                                 : run_plain;
}

void lower_packed(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_operands(l, d, s, i);
  if (d.format != Family::VOP3P) {  // v_pk_fmac_f16: no selects
    if (d.abs || d.neg || d.omod) return l.fail("this form of v_pk_fmac_f16 is not emulated");
    i.imm = static_cast<int32_t>(modifier_bits(d) | 7u << Modifiers::kOpSelHiAt |
                                 extra_word(l, d) << Modifiers::kExtraAt);
    i.x |= kFloatSources;
    if (d.dpp || d.sdwa) {
      i.fn = d.dpp ? run_packed<false, Form::dpp> : run_packed<false, Form::sdwa>;
      return;
    }
  } else {
    i.imm = static_cast<int32_t>(modifier_bits(d));
    if (info(d.op).src[0].is_float())
      i.x |= kFloatSources;
    else if (d.neg || d.neg_hi)
      return l.fail("sign modifiers of integers");
  }
  i.fn = run_packed<false>;
}

void lower_packed32(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_operands(l, d, s, i);
  i.y = 0;
  i.imm = static_cast<int32_t>(modifier_bits(d));
  if (!info(d.op).src[0].is_float() && (d.neg || d.neg_hi || d.clamp))
    return l.fail("modifiers of bits");
  i.fn = run_packed32;
}

void lower_dot(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  lower_operands(l, d, s, i);
  const bool is_float = info(d.op).src[0].is_float();
  if (d.sdwa || (!is_float && (d.neg || d.neg_hi || d.abs)))
    return l.fail("modifiers of a dot product");
  uint32_t modifiers = modifier_bits(d);
  if (d.format != Family::VOP3P) {  // v_dot2c: abs is neg_hi
    modifiers = (modifiers & ~7u) | 7u << Modifiers::kOpSelHiAt |
                static_cast<uint32_t>(d.abs) << Modifiers::kNegHiAt |
                extra_word(l, d) << Modifiers::kExtraAt;
  }
  i.x &= ~kFloatSources;
  if (is_float) i.x |= kFloatSources;
  i.y = info(d.op).src[0].kind == 'h';
  if (d.clamp && s.handler != nullptr) modifiers &= ~(1u << Modifiers::kClampAt);
  i.imm = static_cast<int32_t>(modifiers);
  i.fn = d.dpp ? run_packed<true, Form::dpp> : run_packed<true>;
}

void lower_mix(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  // The destination is read when the result is inserted.
  const OpInfo& op = info(d.op);
  i.wide = reinterpret_cast<uint64_t>(s.loop);
  uint16_t* const at[] = {&i.a, &i.b, &i.c};
  for (int n = 0; n < 3; ++n) {
    if (Lowering::is_vgpr(d.src[n])) {
      *at[n] = l.vector(d.src[n]);
    } else {
      *at[n] = l.scalar(d.src[n], op.src[n]);
      i.x |= kScalar0 << n;
    }
  }
  i.d = l.vector(d.dst);
  if (op.dst.bits == 16) i.x |= kHalfDst;
  if (d.op == Op::v_fma_mixhi_f16) i.x |= kKeepOther;
  i.imm = static_cast<int32_t>(modifier_bits(d));
  i.fn = run_mix;
}

}  // namespace emu::EMU_NS
