// Buffer accesses that convert. MTBUF instructions name the format of an element and the kind of
// its numbers; the format instructions of MUBUF take both, and the order of the components, from
// the descriptor. What the ISA text leaves open is a fault.
#include "isa/buffer.hpp"
#include "isa/data_format.hpp"
#include "isa/small_float.hpp"

namespace emu::EMU_NS {
namespace {

enum Numbers : uint8_t { kUnorm, kSnorm, kUscaled, kSscaled, kUint, kSint, kFloat = 7 };

// Inst::y. The codes are those of MTBUF.
enum : uint16_t { kHalves = 1 << 10, kHigh = 1 << 11, kOfDescriptor = 1 << 12 };
EMU_INLINE uint32_t components(const Inst* i) { return i->y >> 7 & 7; }

struct Format {
  DataFormat data;
  uint32_t numbers;
  uint32_t select[4];  // the source of each component: 0, 1, or 4 + a component of memory
};

bool no(Wave& w, const Pending& p, const char* what) {
  return fault(w, p.inst, FaultKind::illegal_instruction, what), false;
}

bool find_format(Wave& w, const Pending& p, Format& f) {
  const uint32_t y = p.inst->y, word = p.rsrc[3];
  const bool own = !(y & kOfDescriptor);
  f.data = data_format(own ? y & 15 : data_code(word));
  f.numbers = own ? y >> 4 & 7 : number_code(word);
  for (uint32_t c = 0; c < 4; ++c) {
    f.select[c] = own ? c < f.data.count ? 4 + c : 0 : word >> 3 * c & 7;
    if (f.select[c] >= 4 + uint32_t{f.data.count}) f.select[c] = 0;
  }
  const int bits = f.data.bits[0];
  const bool emulated = f.data.bytes && f.numbers != 6 && !(f.numbers < kUint && bits == 32) &&
                        !(f.numbers == kFloat && bits != 16 && bits != 32);
  return emulated || no(w, p, "this format of a typed buffer is not emulated");
}

EMU_INLINE int32_t extended(uint32_t x, int bits) {
  return static_cast<int32_t>(x << (32 - bits)) >> (32 - bits);
}

uint32_t to_register(uint32_t x, int bits, uint32_t numbers) {
  const float unsigned_top = static_cast<float>((uint64_t{1} << bits) - 1);
  const float top = static_cast<float>((uint64_t{1} << (bits - 1)) - 1);
  switch (numbers) {
    case kUnorm:
      return as<uint32_t>(static_cast<float>(x) / unsigned_top);
    case kSnorm:
      return as<uint32_t>(__builtin_fmaxf(static_cast<float>(extended(x, bits)) / top, -1.f));
    case kUscaled:
      return as<uint32_t>(static_cast<float>(x));
    case kSscaled:
      return as<uint32_t>(static_cast<float>(extended(x, bits)));
    case kSint:
      return static_cast<uint32_t>(extended(x, bits));
    case kFloat:
      return bits == 16 ? as<uint32_t>(half_to_float(x)) : x;
    default:
      return x;
  }
}

// False for integers that do not fit: whether they are cut off or clamped is not documented.
bool to_memory(uint32_t x, int bits, uint32_t numbers, uint32_t& out) {
  const uint32_t mask = bits == 32 ? ~0u : (1u << bits) - 1;
  const auto scaled = [&](float low, float top) {
    const float value = as<float>(x), kept = value > low ? __builtin_fminf(value, 1.f) : low;
    return static_cast<uint32_t>(
        static_cast<int32_t>(__builtin_rintf(is_nan(value) ? 0.f : kept * top)));
  };
  switch (numbers) {
    case kUnorm:
      out = scaled(0, static_cast<float>(mask));
      break;
    case kSnorm:
      out = scaled(-1, static_cast<float>(mask >> 1)) & mask;
      break;
    case kUint:
      out = x;
      return x <= mask;
    case kSint:
      out = x & mask;
      return static_cast<uint32_t>(extended(x, bits)) == x;
    default:
      out = bits == 16 ? float_to_half(as<float>(x), false) : x;
  }
  return true;
}

// The bits of a component of an element, at bit `at`. No component crosses a dword.
EMU_INLINE uint32_t bits_at(const uint8_t* element, int bytes, int at, int bits) {
  uint32_t word = 0;
  std::memcpy(&word, element + at / 32 * 4, bytes < 4 ? bytes : 4);
  return word >> at % 32 & (bits == 32 ? ~0u : (1u << bits) - 1);
}

bool is_integer(uint32_t numbers) { return numbers == kUint || numbers == kSint; }

bool land_load(Wave& w, const Pending& p) {
  Format f;
  Reach r;
  if (!find_format(w, p, f) || !reach_buffer(w, p, f.data.bytes, false, r)) return false;
  const Inst* const i = p.inst;
  const uint32_t one = is_integer(f.numbers) ? 1 : as<uint32_t>(1.f);
  for (int l = 0; l < kLanes; ++l) {
    if (!(p.exec >> l & 1)) continue;
    const uint8_t* const element = r.uniform ? r.base + r.offset[l] : r.at[l];
    uint32_t memory[4] = {};
    for (int c = 0, at = 0; c < f.data.count; at += f.data.bits[c++])
      memory[c] = to_register(bits_at(element, f.data.bytes, at, f.data.bits[c]), f.data.bits[c],
                              f.numbers);
    for (uint32_t c = 0; c < components(i); ++c) {
      const uint32_t from = f.select[c];
      uint32_t x = from >= 4 ? memory[from - 4] : from == 1 ? one : 0;
      uint32_t* const d = w.reg(i->d);
      if (!(i->y & kHalves)) {
        d[c * kLanes + l] = x;
        continue;
      }
      x = is_integer(f.numbers) ? x & 0xffff : float_to_half(as<float>(x), false);
      uint32_t& to = d[c / 2 * kLanes + l];
      to = i->y & kHigh ? x << 16 : c % 2 ? to | x << 16 : x;
    }
  }
  return true;
}

bool land_store(Wave& w, const Pending& p) {
  Format f;
  Reach r;
  if (!find_format(w, p, f)) return false;
  const Inst* const i = p.inst;
  if (components(i) < f.data.count)
    return no(w, p, "a store of fewer components than an element has is not emulated");
  if (f.numbers == kUscaled || f.numbers == kSscaled)
    return no(w, p, "a store of scaled integers is not emulated");
  for (uint32_t c = 0; c < f.data.count; ++c)
    if (f.select[c] != 4 + c)
      return no(w, p, "a store with components in another order is not emulated");
  if (!reach_buffer(w, p, f.data.bytes, true, r)) return false;
  for (int l = 0; l < kLanes; ++l) {
    if (!(p.exec >> l & 1)) continue;
    uint32_t words[4] = {};
    for (int c = 0, at = 0; c < f.data.count; at += f.data.bits[c++]) {
      uint32_t x = p.data[i->y & kHalves ? c / 2 : c][l], out;
      if (i->y & kHalves) {
        x = x >> (i->y & kHigh || c % 2 ? 16 : 0) & 0xffff;
        if (!is_integer(f.numbers)) x = as<uint32_t>(half_to_float(x));
        if (f.numbers == kSint) x = static_cast<uint32_t>(extended(x, 16));
      }
      if (!to_memory(x, f.data.bits[c], f.numbers, out))
        return no(w, p, "a store of an integer that does not fit its component is not emulated");
      words[at / 32] |= out << at % 32;
    }
    std::memcpy(r.uniform ? r.base + r.offset[l] : r.at[l], words, f.data.bytes);
  }
  return true;
}

const Inst* issue_load(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  return issue_buffer(w, i, slot, p) ? leave_vm(w, i, slot) : nullptr;
}
template <int kRows>
const Inst* issue_store(Wave& w, const Inst* i) {
  Pending* p;
  uint8_t slot;
  if (!issue_buffer(w, i, slot, p)) return nullptr;
  snapshot<kRows>(p->data, w.reg(i->d));
  return leave_vm(w, i, slot);
}

template <int kComponents, bool kStores, uint16_t kFlags>
void lower(Lowering& l, const Decoded& d, const Semantic& s, Inst& i) {
  constexpr int rows = kFlags & kHalves ? (kComponents + 1) / 2 : kComponents;
  lower_buffer(l, d, s, i);
  if (d.lds) l.fail("a typed load to LDS is not emulated");
  i.x |= kWhole;
  i.y = static_cast<uint16_t>(d.dfmt | d.nfmt << 4 | kComponents << 7 | kFlags |
                              (d.format == Family::MUBUF ? kOfDescriptor : 0));
  i.land = kStores ? land_store : land_load;
  i.d = d.lds ? uint16_t{0} : l.vector(kStores ? d.data0 : d.dst, rows);
}

template <int kComponents, uint16_t kFlags = 0>
void load(Semantics& t, Op of_buffer, Op of_tbuffer) {
  for (Op op : {of_buffer, of_tbuffer}) set(t, op, lower<kComponents, false, kFlags>, issue_load);
}
template <int kComponents, uint16_t kFlags = 0>
void store(Semantics& t, Op of_buffer, Op of_tbuffer) {
  constexpr int rows = kFlags & kHalves ? (kComponents + 1) / 2 : kComponents;
  for (Op op : {of_buffer, of_tbuffer})
    set(t, op, lower<kComponents, true, kFlags>, issue_store<rows>);
}

}  // namespace

void add_typed(Semantics& t) {
  load<1>(t, Op::buffer_load_format_x, Op::tbuffer_load_format_x);
  load<2>(t, Op::buffer_load_format_xy, Op::tbuffer_load_format_xy);
  load<3>(t, Op::buffer_load_format_xyz, Op::tbuffer_load_format_xyz);
  load<4>(t, Op::buffer_load_format_xyzw, Op::tbuffer_load_format_xyzw);
  load<1, kHalves>(t, Op::buffer_load_format_d16_x, Op::tbuffer_load_format_d16_x);
  load<2, kHalves>(t, Op::buffer_load_format_d16_xy, Op::tbuffer_load_format_d16_xy);
  load<3, kHalves>(t, Op::buffer_load_format_d16_xyz, Op::tbuffer_load_format_d16_xyz);
  load<4, kHalves>(t, Op::buffer_load_format_d16_xyzw, Op::tbuffer_load_format_d16_xyzw);
  store<1>(t, Op::buffer_store_format_x, Op::tbuffer_store_format_x);
  store<2>(t, Op::buffer_store_format_xy, Op::tbuffer_store_format_xy);
  store<3>(t, Op::buffer_store_format_xyz, Op::tbuffer_store_format_xyz);
  store<4>(t, Op::buffer_store_format_xyzw, Op::tbuffer_store_format_xyzw);
  store<1, kHalves>(t, Op::buffer_store_format_d16_x, Op::tbuffer_store_format_d16_x);
  store<2, kHalves>(t, Op::buffer_store_format_d16_xy, Op::tbuffer_store_format_d16_xy);
  store<3, kHalves>(t, Op::buffer_store_format_d16_xyz, Op::tbuffer_store_format_d16_xyz);
  store<4, kHalves>(t, Op::buffer_store_format_d16_xyzw, Op::tbuffer_store_format_d16_xyzw);
  constexpr uint16_t high = kHalves | kHigh;
  set(t, Op::buffer_load_format_d16_hi_x, lower<1, false, high>, issue_load);
  set(t, Op::buffer_store_format_d16_hi_x, lower<1, true, high>, issue_store<1>);
}

}  // namespace emu::EMU_NS
