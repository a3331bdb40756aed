// The uninit check: vector operations, byte by byte and lane by lane. Moves, logic, shifts by a
// constant, selections and partial writes are tracked exactly; for anything else one undefined byte
// of a lane's operands makes the lane's result undefined.
#include <optional>

#include "check/uninit.hpp"

namespace emu::check {
namespace {

// The lane that `lane` reads under a DPP control; -1 if that is outside the row or wave.
int dpp_source(uint32_t ctrl, int lane) {
  const int row = lane & ~15, in_row = lane & 15;
  const auto within = [&](int x) { return x >= 0 && x < 16 ? row + x : -1; };
  if (ctrl <= 0xff) return (lane & ~3) + static_cast<int>(ctrl >> (2 * (lane & 3)) & 3);
  const int n = static_cast<int>(ctrl & 15);
  switch (ctrl >> 4) {
    case 0x10:
      return within(in_row + n);  // row_shl
    case 0x11:
      return within(in_row - n);  // row_shr
    case 0x12:
      return row + ((in_row - n) & 15);  // row_ror
    case 0x15:
      return row + n;  // row_newbcast
    default:
      break;
  }
  switch (ctrl) {
    case 0x130:
      return lane + 1 < kLanes ? lane + 1 : -1;  // wave_shl
    case 0x134:
      return (lane + 1) % kLanes;  // wave_rol
    case 0x138:
      return lane - 1;  // wave_shr
    case 0x13c:
      return (lane + kLanes - 1) % kLanes;  // wave_ror
    case 0x140:
      return row + 15 - in_row;  // row_mirror
    case 0x141:
      return (lane & ~7) + 7 - (lane & 7);  // row_half_mirror
    case 0x142:
      return lane >= 16 ? row - 1 : -1;  // row_bcast15
    case 0x143:
      return lane >= 32 ? 31 : -1;  // row_bcast31
    default:
      return -1;
  }
}

// A bit per byte of a source that the operation reads.
int used_bytes(const Decoded& d, const OpInfo& op, int n) {
  const std::string_view name = op.name;
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  const bool high = d.op_sel >> n & 1;
  if (d.op == Op::v_fma_mix_f32 || d.op == Op::v_fma_mixlo_f16 || d.op == Op::v_fma_mixhi_f16)
    return !(d.op_sel_hi >> n & 1) ? 15 : high ? 12 : 3;
  if (n == 0 && has("v_cvt_f32_ubyte")) return 1 << (name.back() - '0');
  if (n == 0 && op.src[0].kind == 'b' && !d.sdwa && (has("_fp8") || has("_bf8") || has("_fp4")) &&
      has("v_cvt")) {
    const bool from = name.ends_with("_fp8") || name.ends_with("_bf8") || name.ends_with("_fp4");
    if (!from) return 15;
    if (name.ends_with("_fp4")) return 1 << (d.op_sel & 3);
    if (has("_pk_")) return d.op_sel & 1 ? 12 : 3;
    return 1 << (d.op_sel & 3);
  }
  const OperandType& t = op.src[n];
  if (t.bits == 16 && t.elements == 1 && d.format == Family::VOP3 && op.has(kOpSel))
    return high ? 12 : 3;
  if (t.bits == 16 && t.elements == 1) return 3;
  return 15;
}

// A bit per byte of the destination that the operation writes, for those that keep the others.
int written_bytes(const Decoded& d, const OpInfo& op) {
  const std::string_view name = op.name;
  const auto has = [&](std::string_view part) { return name.find(part) != name.npos; };
  if (d.op == Op::v_fma_mixlo_f16) return 3;
  if (d.op == Op::v_fma_mixhi_f16) return 12;
  if (d.format != Family::VOP3 || !op.has(kOpSel)) return 15;
  if (op.has(kReadsDst) && has("v_cvt")) {
    if (selects_byte(d.op) || has("_fp4_") || has("_sr_fp8_") || has("_sr_bf8_"))
      return 1 << (d.op_sel >> 2 & 3);
    return d.op_sel & 8 ? 12 : 3;
  }
  if (op.dst.bits == 16 && op.dst.elements == 1) return d.op_sel & 8 ? 12 : 15;
  return 15;
}

class Vector {
 public:
  Vector(Wave& w, const Side& side, UninitWave& u, uint32_t origin)
      : w_(w), side_(side), d_(side.decoded), op_(*side.op), u_(u), origin_(origin) {
    exec_ = w.exec();
    if (d_.dpp) {
      for (int l = 0; l < kLanes; ++l) {
        const int from = dpp_source(d_.dpp_ctrl, l);
        const bool off = !(d_.row_mask >> l / 16 & 1) || !(d_.bank_mask >> l / 4 % 4 & 1);
        const bool dead = from < 0 || !(w.exec() >> from & 1);
        if (off || (dead && !d_.bound_ctrl)) exec_ &= ~(uint64_t{1} << l);
      }
    }
  }

  void run() {
    if (exchanges() || reads_a_lane()) return;
    const int dwords = op_.dst.dwords;
    if (op_.family == Family::VOPC) {
      store_mask(d_.dst, good_lanes(), w_.exec());
      if (op_.has(kWritesExec)) store_mask(kExecLo, good_lanes(), w_.exec());
      return;
    }
    if (!is_vector(d_.dst)) return;
    const uint64_t mask = op_.dst2 ? good_lanes() : 0;  // before a source is overwritten
    std::optional<Planes> one = dwords == 1 ? exact() : std::nullopt;
    if (one) {
      store(0, *one);
    } else if (d_.op == Op::v_mov_b64) {
      for (int k = 0; k < 2; ++k) store(k, source(0, k));
    } else if (op_.family == Family::VOP3P && op_.dst.bits == 32 && op_.dst.elements == 2) {
      packed_dwords();
    } else if (dwords == 2 && wide()) {
      // done
    } else {
      const uint64_t good = good_lanes();
      for (int k = 0; k < dwords; ++k) store_part(k, Planes::lanes(good));
    }
    if (op_.dst2) store_mask(d_.dst2, mask, w_.exec());
  }

 private:
  uint16_t index(Operand o) const {
    return static_cast<uint16_t>(o < kAgpr ? o - kVgpr : side_.accum_offset + (o - kAgpr));
  }

  // ---- operands ----

  Planes raw(int n, int dword) const {
    const Operand o = d_.src[n];
    if (is_vector(o)) return u_.vector[std::min(index(o) + dword, 511)];
    if (o >= 128) return o == kScc && !u_.scc ? Planes{} : Planes::all();
    Planes p;
    for (int b = 0; b < 4; ++b)
      p.byte[b] = (u_.scalar[std::min(o + dword, 127)] >> (8 * b) & 255) == 255 ? ~uint64_t{0} : 0;
    return p;
  }
  Planes source(int n, int dword) const {
    Planes p = raw(n, dword);
    if (d_.dpp && n == 0) {
      Planes q = Planes::all();  // without a source the byte is zero, or not written
      for (int l = 0; l < kLanes; ++l) {
        const int from = dpp_source(d_.dpp_ctrl, l);
        if (from < 0 || !(w_.exec() >> from & 1)) continue;
        for (int b = 0; b < 4; ++b)
          if (!(p.byte[b] >> from & 1)) q.byte[b] &= ~(uint64_t{1} << l);
      }
      return q;
    }
    if (d_.sdwa && n < 2) {
      const int sel = d_.src_sel[n];
      if (sel < 4) {
        const uint64_t m = p.byte[sel];
        return d_.sext >> n & 1 ? Planes::lanes(m)
                                : Planes{{m, ~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0}}};
      }
      if (sel < 6) {
        const uint64_t low = p.byte[2 * (sel - 4)], high = p.byte[2 * (sel - 4) + 1];
        const uint64_t rest = d_.sext >> n & 1 ? high : ~uint64_t{0};
        return {{low, high, rest, rest}};
      }
    }
    return p;
  }
  // Where the value is the same for all lanes and known here.
  std::optional<uint32_t> constant(int n) const {
    const Operand o = d_.src[n];
    if (o >= 128 && o <= 192) return o - 128u;
    if (o > 192 && o <= 208) return static_cast<uint32_t>(192 - static_cast<int>(o));
    if (o == kLiteral) return d_.literal;
    if (o < 128 && u_.scalar[o] == ~0u) return w_.s[o];
    return std::nullopt;
  }
  uint32_t value(int n, int lane) const {
    const Operand o = d_.src[n];
    if (is_vector(o)) return w_.reg(index(o))[lane];
    return constant(n).value_or(0);
  }
  bool plain(int n) const { return !(d_.sdwa && n < 2) && !(d_.dpp && n == 0); }

  // Lanes all of whose operands are known.
  uint64_t good_lanes() const {
    uint64_t good = ~uint64_t{0};
    for (int n = 0; n < 5; ++n) {
      const OperandType& t = op_.src[n];
      if (!t || d_.src[n] == kNoOperand) continue;
      if (mask_operand(n)) {
        good &= mask_bits(d_.src[n]);
        continue;
      }
      const int used = t.dwords == 1 && plain(n) ? used_bytes(d_, op_, n) : 15;
      for (int k = 0; k < t.dwords; ++k) {
        const Planes p = source(n, k);
        for (int b = 0; b < 4; ++b)
          if (used >> b & 1) good &= p.byte[b];
      }
    }
    if (op_.has(kReadsDst) && written_bytes(d_, op_) == 15 && !op_.has(kOpSel))  // v_fmac and such
      for (int k = 0; k < op_.dst.dwords; ++k) good &= u_.vector[index(d_.dst) + k].whole();
    if (op_.has(kReadsVcc) && !op_.src[2]) good &= mask_bits(kVccLo);
    if (d_.op == Op::v_div_fmas_f32 || d_.op == Op::v_div_fmas_f64) good &= mask_bits(kVccLo);
    return good;
  }
  bool mask_operand(int n) const {
    return op_.has(kReadsVcc) && op_.src[n].kind == 'b' && op_.src[n].bits == 64;
  }
  uint64_t mask_bits(Operand o) const {
    if (o >= 127) return ~uint64_t{0};
    return u_.scalar[o] | uint64_t{u_.scalar[o + 1]} << 32;
  }

  // ---- results ----

  void store(int dword, const Planes& p) {
    const int r = index(d_.dst) + dword;
    Planes now = p;
    if (d_.sdwa && d_.dst_sel != 6) {
      // The selected part comes from the low bytes; the rest is zero, its sign, or what it was.
      const int first = d_.dst_sel < 4 ? d_.dst_sel : 2 * (d_.dst_sel - 4);
      const int n = d_.dst_sel < 4 ? 1 : 2;
      const Planes old = u_.vector[r];
      for (int b = 0; b < 4; ++b)
        now.byte[b] = b >= first && b < first + n ? p.byte[b - first]
                      : d_.dst_unused == 2        ? old.byte[b]
                      : d_.dst_unused == 1        ? p.byte[n - 1]
                                                  : ~uint64_t{0};
    }
    u_.vector[r] = u_.vector[r].blend(now, exec_);
    u_.vector_origin[r] = origin_;
  }
  // The bytes that the operation writes.
  void store_part(int dword, Planes p) {
    const int written = d_.sdwa ? 15 : written_bytes(d_, op_);
    const bool zeroes = op_.dst.bits == 16 && op_.dst.elements == 1 && written == 15;
    for (int b = 0; b < 4; ++b) {
      if (!(written >> b & 1)) p.byte[b] = u_.vector[index(d_.dst) + dword].byte[b];
      if (zeroes && b >= 2 && !d_.sdwa) p.byte[b] = ~uint64_t{0};
    }
    store(dword, p);
  }
  // Bits of inactive lanes become zero, which is known.
  void store_mask(Operand o, uint64_t good, uint64_t exec) {
    const uint64_t known = good | ~exec;
    for (int k = 0; k < 2 && o + k < 128; ++k) {
      u_.scalar[o + k] = static_cast<uint32_t>(known >> (32 * k));
      u_.scalar_origin[o + k] = origin_;
    }
  }

  // ---- operations of one dword that are tracked exactly ----

  std::optional<Planes> exact() const {
    switch (d_.op) {
      case Op::v_mov_b32:
      case Op::v_not_b32:
      case Op::v_accvgpr_read_b32:
      case Op::v_accvgpr_write_b32:
      case Op::v_accvgpr_mov_b32:
        return source(0, 0);
      case Op::v_xor_b32:
      case Op::v_xnor_b32:
        if (same_sources()) return Planes::all();
        return source(0, 0) & source(1, 0);
      case Op::v_sub_u32:
      case Op::v_subrev_u32:
        if (same_sources()) return Planes::all();
        return carried(source(0, 0) & source(1, 0));
      case Op::v_add_u32:
      case Op::v_mul_lo_u32:
        return carried(source(0, 0) & source(1, 0));
      case Op::v_add_u16:
      case Op::v_sub_u16:
      case Op::v_mul_lo_u16: {
        Planes p = carried(source(0, 0) & source(1, 0));
        p.byte[2] = p.byte[3] = ~uint64_t{0};  // zeros
        return p;
      }
      case Op::v_add3_u32:
      case Op::v_mad_u32_u24:
        return carried(source(0, 0) & source(1, 0) & source(2, 0));
      case Op::v_lshl_add_u32:
        return carried(shifted(1, [&](uint32_t n) { return shifted_left(source(0, 0), n & 31); }) &
                       source(2, 0));
      case Op::v_add_lshl_u32:
        return shifted(2, [&](uint32_t n) {
          return shifted_left(carried(source(0, 0) & source(1, 0)), n & 31);
        });
      case Op::v_bfi_b32:
        return bitwise(0xca);
      case Op::v_bitop3_b32:
        return bitwise(static_cast<uint32_t>(d_.imm));
      case Op::v_and_b32:
        if (!plain(0) || !plain(1)) return source(0, 0) & source(1, 0);
        return logic(
            source(0, 0), source(1, 0), 0, [&](int l) { return value(0, l); },
            [&](int l) { return value(1, l); });
      case Op::v_or_b32:
        if (!plain(0) || !plain(1)) return source(0, 0) & source(1, 0);
        return logic(
            source(0, 0), source(1, 0), 255, [&](int l) { return value(0, l); },
            [&](int l) { return value(1, l); });
      case Op::v_and_or_b32: {
        const Planes masked = logic(
            source(0, 0), source(1, 0), 0, [&](int l) { return value(0, l); },
            [&](int l) { return value(1, l); });
        return logic(
            masked, source(2, 0), 255, [&](int l) { return value(0, l) & value(1, l); },
            [&](int l) { return value(2, l); });
      }
      case Op::v_or3_b32: {
        const Planes two = logic(
            source(0, 0), source(1, 0), 255, [&](int l) { return value(0, l); },
            [&](int l) { return value(1, l); });
        return logic(
            two, source(2, 0), 255, [&](int l) { return value(0, l) | value(1, l); },
            [&](int l) { return value(2, l); });
      }
      case Op::v_lshlrev_b32:
        return shifted(0, [&](uint32_t n) { return shifted_left(source(1, 0), n & 31); });
      case Op::v_lshrrev_b32:
      case Op::v_ashrrev_i32:
        return shifted(0, [&](uint32_t n) {
          return shifted_right(source(1, 0), n & 31, d_.op == Op::v_ashrrev_i32);
        });
      case Op::v_lshl_or_b32:
        return logic(
            shifted(1, [&](uint32_t n) { return shifted_left(source(0, 0), n & 31); }),
            source(2, 0), 255, [&](int l) { return value(0, l) << (value(1, l) & 31); },
            [&](int l) { return value(2, l); });
      case Op::v_bfe_u32:
        if (const auto n = constant(1))
          if (const auto width = constant(2)) {
            Planes p = shifted_right(source(0, 0), *n & 31, false);
            for (int b = static_cast<int>((*width & 31) + 7) / 8; b < 4; ++b)
              p.byte[b] = ~uint64_t{0};
            return p;
          }
        return std::nullopt;
      case Op::v_alignbit_b32:
      case Op::v_alignbyte_b32:
        return shifted(2, [&](uint32_t n) {
          return aligned(d_.op == Op::v_alignbit_b32 ? n & 31 : (n & 3) * 8);
        });
      case Op::v_perm_b32:
        return chosen(2, [&](uint32_t n) { return permuted(n); }) & raw(2, 0);
      case Op::v_cndmask_b32:
        return selected();
      default:
        break;
    }
    if (op_.family == Family::VOP3P && op_.dst.bits == 16 && op_.dst.elements == 2 &&
        op_.has(kOpSel))
      return packed_halves();
    if (d_.op == Op::v_pack_b32_f16) {
      const Planes a = source(0, 0), b = source(1, 0);
      const int x = d_.op_sel & 1 ? 2 : 0, y = d_.op_sel & 2 ? 2 : 0;
      return Planes{{a.byte[x], a.byte[x + 1], b.byte[y], b.byte[y + 1]}};
    }
    return std::nullopt;
  }
  // Carries go upwards only: compilers leave unused bits undefined.
  static Planes carried(Planes p) {
    for (int b = 1; b < 4; ++b) p.byte[b] &= p.byte[b - 1];
    return p;
  }
  // 64-bit operations whose low dword depends on low dwords alone; false if it is another one.
  bool wide() {
    uint64_t low, high;
    switch (d_.op) {
      case Op::v_mad_u64_u32:
      case Op::v_mad_i64_i32:
        low = source(0, 0).whole() & source(1, 0).whole() & source(2, 0).whole();
        high = low & source(2, 1).whole();
        break;
      case Op::v_lshl_add_u64:
        if (!constant(1)) return false;
        low = source(0, 0).whole() & source(2, 0).whole();
        high = low & source(0, 1).whole() & source(2, 1).whole();
        break;
      case Op::v_lshlrev_b64:
      case Op::v_lshrrev_b64: {
        const auto n = constant(0);
        if (!n || *n > 63) return false;
        const uint64_t from[2] = {source(1, 0).whole(), source(1, 1).whole()};
        const bool left = d_.op == Op::v_lshlrev_b64;
        const uint64_t all = ~uint64_t{0};
        const bool mixes = *n % 32;
        if (left) {
          low = *n < 32 ? from[0] : all;
          high = *n < 32 ? from[1] & (mixes ? from[0] : all) : from[0];
        } else {
          low = *n < 32 ? from[0] & (mixes ? from[1] : all) : from[1];
          high = *n < 32 ? from[1] : all;
        }
        break;
      }
      default:
        return false;
    }
    store(0, Planes::lanes(low));
    store(1, Planes::lanes(high));
    return true;
  }
  bool same_sources() const {
    return plain(0) && plain(1) && d_.src[0] == d_.src[1] && is_vector(d_.src[0]);
  }

  // A byte is known if both are, or if one of them is and decides: 0 for AND, 255 for OR.
  template <class A, class B>
  Planes logic(const Planes& a, const Planes& b, uint32_t decides, A value_a, B value_b) const {
    Planes r = a & b;
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t lane = uint64_t{1} << l;
      if (!(exec_ & lane) || (r.whole() & lane)) continue;
      const uint32_t x = value_a(l), y = value_b(l);
      for (int k = 0; k < 4; ++k)
        if (((a.byte[k] & lane) && (x >> (8 * k) & 255) == decides) ||
            ((b.byte[k] & lane) && (y >> (8 * k) & 255) == decides))
          r.byte[k] |= lane;
    }
    return r;
  }
  // Any function of three bits, by its truth table: a byte is known if it is the same whatever the
  // unknown ones are.
  Planes bitwise(uint32_t table) const {
    const Planes s[3] = {source(0, 0), source(1, 0), source(2, 0)};
    Planes r = s[0] & s[1] & s[2];
    for (uint64_t lanes = exec_ & ~r.whole(); lanes; lanes &= lanes - 1) {
      const int l = __builtin_ctzll(lanes);
      for (int k = 0; k < 4; ++k) {
        uint32_t unknown = 0, low = 255, high = 0;
        for (int n = 0; n < 3; ++n) unknown |= static_cast<uint32_t>(!(s[n].byte[k] >> l & 1)) << n;
        for (uint32_t guess = 0; guess < 8; ++guess) {
          if (guess & ~unknown) continue;
          uint32_t x[3], result = 0;
          for (int n = 0; n < 3; ++n)
            x[n] = unknown >> n & 1 ? (guess >> n & 1) * 255 : value(n, l) >> (8 * k) & 255;
          for (uint32_t row = 0; row < 8; ++row)
            if (table >> row & 1)
              result |=
                  (row & 4 ? x[0] : ~x[0]) & (row & 2 ? x[1] : ~x[1]) & (row & 1 ? x[2] : ~x[2]);
          low &= result;
          high |= result & 255;
        }
        if (low == high) r.byte[k] |= uint64_t{1} << l;
      }
    }
    return r;
  }
  // What f says for the value of source n, which each lane may have its own of. Of lanes whose
  // value is not known as a whole this is a guess: the caller takes out what depends on it.
  template <class F>
  Planes chosen(int n, F f) const {
    if (const auto c = constant(n)) return f(*c);
    if (!is_vector(d_.src[n]) || !plain(n)) return Planes::lanes(good_lanes());
    Planes r, of_last;
    std::optional<uint32_t> last;
    for (uint64_t lanes = exec_; lanes; lanes &= lanes - 1) {
      const int l = __builtin_ctzll(lanes);
      const uint32_t x = value(n, l);
      if (last != x) last = x, of_last = f(x);
      r = r.blend(of_last, uint64_t{1} << l);
    }
    return r;
  }
  // The same for a number of bits, which its low byte holds.
  template <class F>
  Planes shifted(int n, F f) const {
    return chosen(n, f) & Planes::lanes(plain(n) ? raw(n, 0).byte[0] : ~uint64_t{0});
  }
  Planes aligned(uint32_t n) const {
    const Planes high = source(0, 0), low = source(1, 0);
    Planes r;
    for (int b = 0; b < 4; ++b) {
      const int from = b + static_cast<int>(n / 8);
      const auto at = [&](int k) {
        return k < 4 ? low.byte[k] : k < 8 ? high.byte[k - 4] : ~uint64_t{0};
      };
      r.byte[b] = at(from);
      if (n % 8) r.byte[b] &= at(from + 1);
    }
    return r;
  }
  Planes permuted(uint32_t selector) const {
    const Planes a = source(0, 0), b = source(1, 0);
    const auto at = [&](uint32_t k) { return k < 4 ? b.byte[k] : a.byte[k - 4]; };
    Planes r;
    for (int k = 0; k < 4; ++k) {
      const uint32_t s = selector >> (8 * k) & 255;
      r.byte[k] = s < 8 ? at(s) : s < 12 ? at(2 * (s - 8) + 1) : ~uint64_t{0};
    }
    return r;
  }
  Planes selected() const {
    const Operand o = d_.src[2] == kNoOperand ? kVccLo : d_.src[2];
    uint64_t mask = 0;
    if (o < 127) mask = w_.s64(o);
    if (o >= 193 && o <= 208) mask = static_cast<uint64_t>(-static_cast<int64_t>(o - 192));
    if (o >= 128 && o <= 192) mask = o - 128u;
    const Planes picked = source(0, 0).blend(source(1, 0), mask);
    return picked & Planes::lanes(mask_bits(o));
  }
  Planes packed_halves() const {
    Planes r = Planes::all();
    for (int n = 0; n < 3; ++n) {
      if (!op_.src[n] || d_.src[n] == kNoOperand) continue;
      const Planes p = source(n, 0);
      const uint64_t low = p.half(d_.op_sel >> n & 1), high = p.half(d_.op_sel_hi >> n & 1);
      r = r & Planes{{low, low, high, high}};
    }
    return r;
  }
  void packed_dwords() {
    const auto pick = [&](int n, bool second) {
      const uint8_t select = second ? d_.op_sel_hi : d_.op_sel;
      return source(n, is_vector(d_.src[n]) || d_.src[n] < 128 ? select >> n & 1 : 0).whole();
    };
    uint64_t good[2] = {~uint64_t{0}, ~uint64_t{0}};
    if (d_.op == Op::v_pk_mov_b32) {
      good[0] = source(0, d_.op_sel & 1).whole();
      good[1] = source(1, d_.op_sel >> 1 & 1).whole();
    } else {
      for (int n = 0; n < 3; ++n)
        if (op_.src[n] && d_.src[n] != kNoOperand)
          for (int k = 0; k < 2; ++k) good[k] &= pick(n, k == 1);
    }
    for (int k = 0; k < 2; ++k) store(k, Planes::lanes(good[k]));
  }

  // ---- lanes that move ----

  bool exchanges() {
    if (d_.op != Op::v_swap_b32 && d_.op != Op::v_permlane16_swap_b32 &&
        d_.op != Op::v_permlane32_swap_b32)
      return false;
    const int x = index(d_.dst), y = index(d_.src[0]);
    const Planes a = u_.vector[x], b = u_.vector[y];
    if (d_.op == Op::v_swap_b32) {
      u_.vector[x] = a.blend(b, exec_);
      u_.vector[y] = b.blend(a, exec_);
    } else {
      // Odd rows of the first are swapped with the even rows before them of the second.
      const int row = d_.op == Op::v_permlane16_swap_b32 ? 16 : 32;
      const uint64_t even = row == 16 ? 0x0000ffff0000ffff : 0x00000000ffffffff, odd = even << row;
      // From an inactive lane comes its value with fi, a known zero with bound_ctrl, else nothing.
      const uint64_t from = d_.imm ? ~uint64_t{0} : exec_;
      const uint64_t zeros = d_.bound_ctrl ? ~from : 0;
      const uint64_t up = exec_ & odd & (from | zeros) << row;
      const uint64_t down = exec_ & even & (from | zeros) >> row;
      for (int k = 0; k < 4; ++k) {
        u_.vector[x].byte[k] = (a.byte[k] & ~up) | (up & ((b.byte[k] & from) | zeros) << row);
        u_.vector[y].byte[k] = (b.byte[k] & ~down) | (down & ((a.byte[k] & from) | zeros) >> row);
      }
    }
    u_.vector_origin[x] = u_.vector_origin[y] = origin_;
    return true;
  }

  bool reads_a_lane() {
    const bool first = d_.op == Op::v_readfirstlane_b32;
    if (first || d_.op == Op::v_readlane_b32) {
      std::optional<uint32_t> lane =
          first ? std::optional<uint32_t>(w_.exec() ? __builtin_ctzll(w_.exec()) : 0) : constant(1);
      const Planes p = raw(0, 0);
      uint32_t known = 0;
      if (lane)
        for (int b = 0; b < 4; ++b)
          if (p.byte[b] >> (*lane & 63) & 1) known |= 255u << (8 * b);
      if (d_.dst < 128) {
        u_.scalar[d_.dst] = known;
        u_.scalar_origin[d_.dst] = origin_;
      }
      return true;
    }
    if (d_.op != Op::v_writelane_b32) return false;
    const auto lane = constant(1);
    const int r = index(d_.dst);
    const uint64_t mask = lane ? uint64_t{1} << (*lane & 63) : ~uint64_t{0};
    // A spilled lane mask is often unknown in the bits of inactive lanes; registers are tracked by
    // bytes, and one that is defined in part counts as defined.
    Planes value = raw(0, 0);
    for (int b = 0; b < 4 && d_.src[0] < 128; ++b)
      if (u_.scalar[d_.src[0]] >> (8 * b) & 255) value.byte[b] = ~uint64_t{0};
    u_.vector[r] = u_.vector[r].blend(lane ? value : Planes{}, mask);
    u_.vector_origin[r] = origin_;
    return true;
  }

  Wave& w_;
  const Side& side_;
  const Decoded& d_;
  const OpInfo& op_;
  UninitWave& u_;
  const uint32_t origin_;
  uint64_t exec_;  // lanes that are written
};

}  // namespace

void propagate_vector(Wave& w, const Side& side, UninitGroup& g, UninitWave& u) {
  const Footprint& f = side.foot;
  const uint32_t origin = first_origin(w, side, g, u);
  // DPP, v_writelane and the swaps do not write just the active lanes.
  const bool moves = side.decoded.dpp || side.decoded.op == Op::v_writelane_b32;
  if (origin || moves || !f.vector_writes.size) {
    if (origin || moves) return Vector(w, side, u, origin).run();
  } else {
    const uint64_t exec = w.exec();
    for (const Registers& r : f.vector_writes)
      for (int k = 0; k < r.count; ++k)
        u.vector[r.first + k] = u.vector[r.first + k] | Planes::lanes(exec);
  }
  for (const Registers& r : f.scalar_writes)
    for (int k = 0; k < r.count; ++k) u.scalar[r.first + k] = ~0u;
}

}  // namespace emu::check
