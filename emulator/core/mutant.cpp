#include "core/mutant.hpp"

#include <algorithm>
#include <atomic>

#include "core/environment.hpp"
#include "core/wave.hpp"

namespace emu {
namespace {

constexpr const char* kMutantVariable = "HIPGEMM_EMULATOR_MUTANT";

// ---- which instructions -------------------------------------------------------------------------

template <Op... kOps>
bool is(const Decoded& d) {
  return ((d.op == kOps) || ...);
}
template <Op kOp>
void becomes(Decoded& d) {
  d.op = kOp;
}
bool is_dma(const Decoded& d) { return d.lds && info(d.op).family == Family::MUBUF; }
bool is_buffer_load(const Decoded& d) {
  return info(d.op).family == Family::MUBUF && !d.lds && !info(d.op).has(kStore);
}
bool is_buffer_store(const Decoded& d) {
  return info(d.op).family == Family::MUBUF && info(d.op).has(kStore);
}
// Matrix instructions of two formats, by their codes.
template <Op kOp, int kA, int kB>
bool multiplies(const Decoded& d) {
  return d.op == kOp && d.cbsz == kA && d.blgp == kB;
}
constexpr Op kOfTwo = Op::v_mfma_f32_16x16x128_f8f6f4;
constexpr Op kScaledOfTwo = Op::v_mfma_scale_f32_16x16x128_f8f6f4;
constexpr Op kScaledOfTwo32 = Op::v_mfma_scale_f32_32x32x64_f8f6f4;
// Those without scales.
bool is_float_product(const Decoded& d) {
  return is<Op::v_mfma_f32_16x16x32_bf16, Op::v_mfma_f32_16x16x16_bf16, Op::v_mfma_f32_16x16x32_f16,
            Op::v_mfma_f32_16x16x16_f16, Op::v_mfma_f32_16x16x32_fp8_fp8, kOfTwo>(d);
}
void swap_operands(Decoded& d) { std::swap(d.src[0], d.src[1]); }
void first_byte(Decoded& d) { d.op_sel = d.op_sel_hi = 0; }
// Each lane's own value.
void no_move(Decoded& d) {
  d.dpp_ctrl = 0xe4;
  d.words[1] = (d.words[1] & ~0x1ff00u) | uint32_t{d.dpp_ctrl} << 8;
}

// Parts of registers are extended by zeros.
void without_signs(Decoded& d) {
  d.sext = 0;
  d.words[1] &= ~0x08080000u;
}

// ---- handlers -----------------------------------------------------------------------------------
// Inst: d result of `y` registers, a, b, c sources, imm the scalar at the buffer's descriptor.

// f of each register and lane of the result, or of a source.
template <class F>
const Inst* change(Wave& w, const Inst* i, uint16_t first, int count, F f) {
  for (int r = 0; r < count; ++r)
    for (int l = 0; l < kLanes; ++l) {
      uint32_t& x = w.reg(first + r)[l];
      x = f(x);
    }
  return i + 1;
}
template <uint32_t (*kChange)(uint32_t)>
const Inst* change_result(Wave& w, const Inst* i) {
  return change(w, i, i->d, i->y, kChange);
}
template <uint32_t (*kChange)(uint32_t)>
const Inst* change_sources(Wave& w, const Inst* i) {
  for (const uint16_t source : {i->a, i->b})
    if (source) change(w, i, source, 1, kChange);
  return i + 1;
}
uint32_t without_subnormals(uint32_t x) { return x & 0x7f800000 ? x : x & 0x80000000; }
uint32_t without_f16_subnormals(uint32_t x) {
  return (x & 0x7fffffff) < (113u << 23) ? x & 0x80000000 : x;
}
uint32_t without_nan(uint32_t x) { return (x & 0x7fffffff) > 0x7f800000 ? 0 : x; }
uint32_t even(uint32_t x) { return x & ~1u; }
uint32_t coarse(uint32_t x) { return x & 0x7f800000 ? x & ~0xffu : x; }
uint32_t cut_to_bf16(uint32_t x) { return x & ~0xffffu; }
uint32_t cut_to_f16(uint32_t x) { return x & ~0x1fffu; }
uint32_t aligned(uint32_t x) { return x & ~15u; }

const Inst* zero_m0(Wave& w, const Inst* i) {
  w.s[kSlotM0] = 0;
  return i + 1;
}
const Inst* any_size(Wave& w, const Inst* i) {
  w.s[i->imm + 2] = ~0u;
  return i + 1;
}
const Inst* align_address(Wave& w, const Inst* i) { return change(w, i, i->c, 1, aligned); }

// Scales of NaN, in the lowest byte, become 2^127.
const Inst* finite_scales(Wave& w, const Inst* i) {
  for (const uint16_t source : {i->a, i->b})
    change(w, i, source, 1, [](uint32_t x) { return (x & 255) == 255 ? x - 1 : x; });
  return i + 1;
}

// Lanes off for one instruction.
thread_local uint64_t saved_exec;
template <class F>
const Inst* keep_lanes(Wave& w, const Inst* i, F keeps) {
  saved_exec = w.exec();
  uint64_t kept = 0;
  for (int l = 0; l < kLanes; ++l) kept |= uint64_t{keeps(w.reg(i->c)[l])} << l;
  w.set64(kSlotExec, saved_exec & kept);
  return i + 1;
}
const Inst* lanes_in_range(Wave& w, const Inst* i) {
  return keep_lanes(w, i, [&](uint32_t offset) { return offset < w.s[i->imm + 2]; });
}
const Inst* lanes_in_32_kib(Wave& w, const Inst* i) {
  return keep_lanes(w, i, [&](uint32_t address) { return address < 32768; });
}
const Inst* all_lanes_again(Wave& w, const Inst* i) {
  w.set64(kSlotExec, saved_exec);
  return i + 1;
}

// ---- the table ----------------------------------------------------------------------------------
// Named after the primitive that must find it (hipgemm/kernels/primitives.py).

// A conversion takes the other format's place; one that has none ignores which byte it is about.
#define EMU_OTHER_FORMAT(name, op, other) {name, is<Op::op>, becomes<Op::other>}
#define EMU_FIRST_BYTE(name, op) {name, is<Op::op>, first_byte}

constexpr Mutant kMutants[] = {
    {"ds_read_b64_tr_b16", is<Op::ds_read_b64_tr_b16>, becomes<Op::ds_read_b64_tr_b8>},
    {"ds_read_b64_tr_b8", is<Op::ds_read_b64_tr_b8>, becomes<Op::ds_read_b64_tr_b16>},
    {"ds_read_b96_tr_b6", is<Op::ds_read_b96_tr_b6>, becomes<Op::ds_read_b96>},
    {"lds_dma", is_dma, becomes<Op::buffer_load_dwordx3>},
    {"lds_dma_m0", is_dma, nullptr, zero_m0},
    {"lds_dma_offset", is_dma, [](Decoded& d) { d.offset = 0; }},
    {"lds_dma_range", is_dma, nullptr, lanes_in_range, all_lanes_again},
    // Waits for all but seven operations or more do not wait.
    {"vmcnt",
     [](const Decoded& d) {
       const int vm = (d.imm & 15) | (d.imm >> 10 & 48);
       return d.op == Op::s_waitcnt && vm >= 7;
     },
     [](Decoded& d) { d.imm |= 0xc00f; }},
    {"lds_size",
     [](const Decoded& d) {
       return info(d.op).family == Family::DS && d.addr >= kVgpr && d.addr != kNoOperand;
     },
     nullptr, lanes_in_32_kib, all_lanes_again},
    {"barrier", is<Op::s_barrier>, becomes<Op::s_nop>},
    {"s_setprio", is<Op::s_setprio>, becomes<Op::s_endpgm>},
    {"lane_moves",
     [](const Decoded& d) {
       return d.dpp && (d.dpp_ctrl <= 0xff || d.dpp_ctrl == 0x140 || d.dpp_ctrl == 0x141 ||
                        d.dpp_ctrl >= 0x150);
     },
     no_move},
    {"permlane16_swap", is<Op::v_permlane16_swap_b32>, becomes<Op::v_permlane32_swap_b32>},
    {"wave_scan", [](const Decoded& d) { return d.dpp && d.dpp_ctrl == 0x142; }, no_move},
    {"mfma_bf16", is<Op::v_mfma_f32_16x16x32_bf16, Op::v_mfma_f32_16x16x16_bf16>, swap_operands},
    {"mfma_f16", is<Op::v_mfma_f32_16x16x32_f16, Op::v_mfma_f32_16x16x16_f16>, swap_operands},
    {"mfma_fnuz", is<Op::v_mfma_f32_16x16x32_fp8_fp8>, swap_operands},
    {"mfma_e4m3", multiplies<kOfTwo, 0, 0>, swap_operands},
    {"mfma_e5m2", multiplies<kOfTwo, 1, 1>, swap_operands},
    {"mfma_scale_e4m3", multiplies<kScaledOfTwo, 0, 0>, swap_operands},
    {"mfma_scale_e5m2", multiplies<kScaledOfTwo, 1, 1>, swap_operands},
    {"mfma_scale_e2m3", multiplies<kScaledOfTwo, 2, 2>, swap_operands},
    {"mfma_scale_e3m2", multiplies<kScaledOfTwo, 3, 3>, swap_operands},
    {"mfma_scale_e2m1", multiplies<kScaledOfTwo, 4, 4>, swap_operands},
    {"mfma_scale_e4m3_e2m1", multiplies<kScaledOfTwo, 4, 0>, [](Decoded& d) { d.blgp = 1; }},
    {"mfma_scale_e2m3_e5m2", multiplies<kScaledOfTwo, 1, 2>, [](Decoded& d) { d.cbsz = 0; }},
    {"mfma32_scale_e2m3", multiplies<kScaledOfTwo32, 2, 2>, swap_operands},
    {"mfma32_scale_e3m2", multiplies<kScaledOfTwo32, 3, 3>, swap_operands},
    {"mfma32_scale_e2m1", multiplies<kScaledOfTwo32, 4, 4>, swap_operands},
    {"mfma_scale_bytes", is<kScaledOfTwo, kScaledOfTwo32>, first_byte},
    {"mfma_scale_values", is<kScaledOfTwo>, nullptr, finite_scales},
    {"mfma_nan", is_float_product, nullptr, nullptr, change_result<without_nan>},
    {"mfma_denormals", is_float_product, nullptr, nullptr, change_result<without_subnormals>},
    {"mfma_rounding", is<Op::v_mfma_f32_16x16x32_bf16, Op::v_mfma_f32_16x16x16_bf16>, nullptr,
     nullptr, change_result<even>},
    {"mfma_sum_order", is<Op::v_mfma_f32_16x16x32_bf16, Op::v_mfma_f32_16x16x16_bf16>, nullptr,
     nullptr, change_result<coarse>},
    {"f32_arithmetic", is<Op::v_add_f32, Op::v_mul_f32, Op::v_fma_f32, Op::v_fmac_f32>, nullptr,
     nullptr, change_result<without_subnormals>},
    {"f32_fields", is<Op::v_ldexp_f32>, nullptr, nullptr, change_result<without_subnormals>},
    {"packed_f32", is<Op::v_pk_add_f32, Op::v_pk_mul_f32, Op::v_pk_fma_f32>, nullptr, nullptr,
     change_result<without_subnormals>},
    {"f32_comparisons", is<Op::v_cmp_nlt_f32>, becomes<Op::v_cmp_ge_f32>},
    {"integer_division", is<Op::v_rcp_iflag_f32>, nullptr, nullptr, change_result<cut_to_bf16>},
    {"bits", is<Op::v_alignbit_b32>, becomes<Op::v_alignbyte_b32>},
    {"register_parts", [](const Decoded& d) { return d.sdwa && d.sext; }, without_signs},
    {"f32_to_bf16", is<Op::v_cvt_pk_bf16_f32>, nullptr, change_sources<cut_to_bf16>},
    {"f32_to_f16", is<Op::v_cvt_pk_f16_f32, Op::v_cvt_f16_f32>, nullptr,
     change_sources<cut_to_f16>},
    {"f16_to_f32", is<Op::v_cvt_f32_f16>, nullptr, nullptr, change_result<without_f16_subnormals>},
    EMU_OTHER_FORMAT("e4m3", v_cvt_pk_fp8_f32, v_cvt_pk_bf8_f32),
    EMU_OTHER_FORMAT("e5m2", v_cvt_pk_bf8_f32, v_cvt_pk_fp8_f32),
    EMU_OTHER_FORMAT("cvt_sr_fp8_f32", v_cvt_sr_fp8_f32, v_cvt_sr_bf8_f32),
    EMU_OTHER_FORMAT("cvt_sr_bf8_f32", v_cvt_sr_bf8_f32, v_cvt_sr_fp8_f32),
    EMU_FIRST_BYTE("cvt_scalef32_pk_fp4_f32", v_cvt_scalef32_pk_fp4_f32),
    EMU_FIRST_BYTE("cvt_scalef32_pk_f32_fp4", v_cvt_scalef32_pk_f32_fp4),
    EMU_FIRST_BYTE("cvt_scalef32_pk_bf16_fp4", v_cvt_scalef32_pk_bf16_fp4),
    EMU_OTHER_FORMAT("cvt_scalef32_pk_bf16_fp8", v_cvt_scalef32_pk_bf16_fp8,
                     v_cvt_scalef32_pk_bf16_bf8),
    EMU_OTHER_FORMAT("cvt_scalef32_pk_bf16_bf8", v_cvt_scalef32_pk_bf16_bf8,
                     v_cvt_scalef32_pk_bf16_fp8),
    EMU_OTHER_FORMAT("cvt_scalef32_2xpk16_fp6_f32", v_cvt_scalef32_2xpk16_fp6_f32,
                     v_cvt_scalef32_2xpk16_bf6_f32),
    EMU_OTHER_FORMAT("cvt_scalef32_2xpk16_bf6_f32", v_cvt_scalef32_2xpk16_bf6_f32,
                     v_cvt_scalef32_2xpk16_fp6_f32),
    EMU_OTHER_FORMAT("cvt_scalef32_pk32_f32_fp6", v_cvt_scalef32_pk32_f32_fp6,
                     v_cvt_scalef32_pk32_f32_bf6),
    EMU_OTHER_FORMAT("cvt_scalef32_pk32_f32_bf6", v_cvt_scalef32_pk32_f32_bf6,
                     v_cvt_scalef32_pk32_f32_fp6),
    EMU_OTHER_FORMAT("cvt_scalef32_pk32_bf16_fp6", v_cvt_scalef32_pk32_bf16_fp6,
                     v_cvt_scalef32_pk32_bf16_bf6),
    EMU_OTHER_FORMAT("cvt_scalef32_pk32_bf16_bf6", v_cvt_scalef32_pk32_bf16_bf6,
                     v_cvt_scalef32_pk32_bf16_fp6),
    {"stochastic_rounding", is<Op::v_add3_u32>, becomes<Op::v_xad_u32>},
    {"atomic_max", is<Op::global_atomic_umax>, becomes<Op::global_atomic_umin>},
    {"buffer_loads", is_buffer_load, nullptr, any_size},
    {"buffer_stores", is_buffer_store, nullptr, any_size},
    {"lds_widths", is<Op::ds_write_b8_d16_hi>, becomes<Op::ds_write_b8>},
    {"memory_widths", is<Op::buffer_load_dwordx2>, becomes<Op::buffer_load_dword>},
    {"unaligned_rows", [](const Decoded& d) { return d.op == Op::global_store_dwordx4; }, nullptr,
     align_address},
    // Not about instructions: where emulator/hip asks for them.
    {"arguments"},
    {"pinned_flags"},
    {"stream_order"},
    {"peer_access"},
};

const Mutant* find_mutant(std::string_view name) {
  const auto found = std::find_if(std::begin(kMutants), std::end(kMutants),
                                  [&](const Mutant& m) { return m.name == name; });
  return found == std::end(kMutants) ? nullptr : found;
}

std::atomic<const Mutant*>& current() {
  static std::atomic<const Mutant*> instance{find_mutant(variable(kMutantVariable))};
  return instance;
}

}  // namespace

const Mutant* mutant() { return current().load(std::memory_order_relaxed); }

bool is_mutant(std::string_view name) {
  const Mutant* const m = mutant();
  return m && m->name == name;
}

std::string mutant_fault() {
  const std::string_view name = variable(kMutantVariable);
  if (name.empty() || find_mutant(name)) return "";
  std::string known;
  for (const Mutant& m : kMutants) known += (known.empty() ? "" : ", ") + std::string(m.name);
  return wrong_value(kMutantVariable, name, "one of " + known);
}

Inst mutant_step(Handler handler, const Decoded& d, uint32_t accum_offset) {
  const auto reg = [&](Operand o) -> uint16_t {
    if (o < kVgpr || o == kNoOperand) return 0;
    return static_cast<uint16_t>(o < kAgpr ? o - kVgpr : accum_offset + (o - kAgpr));
  };
  const bool scaled = info(d.op).has(kScaled);
  Inst i;
  i.fn = handler;
  i.d = reg(d.dst);
  i.y = std::max<uint16_t>(info(d.op).dst.dwords, 1);
  i.a = reg(d.src[scaled ? 3 : 0]);
  i.b = reg(d.src[scaled ? 4 : 1]);
  i.c = reg(d.addr);
  i.imm = d.sbase;
  return i;
}

}  // namespace emu

// As HIPGEMM_EMULATOR_MUTANT, for kernels that are launched from now on; null or "": none.
// Non-zero, and no change, if there is no such mutant.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_set_mutant(
    const char* name) {
  const bool none = !name || !*name;
  const emu::Mutant* const found = none ? nullptr : emu::find_mutant(name);
  if (!none && !found) return 1;
  emu::current() = found;
  return 0;
}
