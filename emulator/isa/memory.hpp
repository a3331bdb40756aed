// Common to vector memory and LDS instructions: the addresses of each lane, and copies
// between memory and rows of 64 dwords.
#pragma once

#include "isa/exec.hpp"

namespace emu::EMU_NS {

// What one lane transfers. The d16 loads set the other half to zero, as with ECC memory.
enum class Width : uint8_t {
  u8,
  i8,
  u16,
  i16,
  b32,
  b64,
  b96,
  b128,
  u8_lo,
  u8_hi,
  i8_lo,
  i8_hi,
  b16_lo,
  b16_hi,  // d16 forms; _hi stores take the upper half
};
constexpr int bytes_of(Width k) {
  switch (k) {
    case Width::u8:
    case Width::i8:
    case Width::u8_lo:
    case Width::u8_hi:
    case Width::i8_lo:
    case Width::i8_hi:
      return 1;
    case Width::u16:
    case Width::i16:
    case Width::b16_lo:
    case Width::b16_hi:
      return 2;
    case Width::b32:
      return 4;
    case Width::b64:
      return 8;
    case Width::b96:
      return 12;
    case Width::b128:
      return 16;
  }
  return 0;
}
constexpr int dwords_of(Width k) { return (bytes_of(k) + 3) / 4; }

// Where each lane's bytes are. Lanes whose access is void (masked off, out of range) point into
// `spare`, which reads as zero and discards stores; lanes that are only partly in range do too and
// are listed, so that their valid dwords can be copied separately.
struct Reach {
  alignas(64) uint8_t* at[kLanes];
  uint8_t* base;  // or, when `uniform`, lane l is at base + offset[l]
  alignas(64) uint32_t offset[kLanes];
  bool uniform = false;
  int partial_count = 0;
  struct Partial {
    uint8_t lane, bytes;
    uint8_t* address;
  } partial[kLanes];
  alignas(64) uint8_t spare[kLanes][16];
};

// Each fills a Reach for accesses of `bytes` bytes per lane; false after a fault.
bool reach_buffer(Wave& w, const Pending& p, int bytes, bool store, Reach& r);
bool reach_global(Wave& w, const Pending& p, int bytes, bool store, Reach& r);
bool reach_flat(Wave& w, const Pending& p, int bytes, bool store, Reach& r);
bool reach_scratch(Wave& w, const Pending& p, int bytes, bool store, Reach& r);
void reach_lds(Wave& w, const uint32_t* address, uint32_t offset, uint64_t exec, int bytes,
               bool store, Reach& r);
// After a store: the valid dwords of lanes that were partly in range.
EMU_INLINE void finish_partial(const Reach& r) {
  for (int n = 0; n < r.partial_count; ++n) {
    const auto& p = r.partial[n];
    std::memcpy(p.address, r.spare[p.lane], p.bytes);
  }
}

// ---- rows ---------------------------------------------------------------------------------------

typedef uint32_t Quad __attribute__((vector_size(16)));

EMU_INLINE Quad load_quad(const uint8_t* p) {
  Quad q;
  std::memcpy(&q, p, 16);
  return q;
}

EMU_INLINE void transpose(Quad& a, Quad& b, Quad& c, Quad& d) {
  const Quad ab0 = __builtin_shufflevector(a, b, 0, 4, 1, 5);
  const Quad ab1 = __builtin_shufflevector(a, b, 2, 6, 3, 7);
  const Quad cd0 = __builtin_shufflevector(c, d, 0, 4, 1, 5);
  const Quad cd1 = __builtin_shufflevector(c, d, 2, 6, 3, 7);
  a = __builtin_shufflevector(ab0, cd0, 0, 1, 4, 5);
  b = __builtin_shufflevector(ab0, cd0, 2, 3, 6, 7);
  c = __builtin_shufflevector(ab1, cd1, 0, 1, 4, 5);
  d = __builtin_shufflevector(ab1, cd1, 2, 3, 6, 7);
}

// rows[j][l] = dword j of lane l.
template <Width kWidth, class At>
EMU_INLINE void gather_rows(uint32_t* rows, At at) {
  if constexpr (kWidth == Width::b128) {
    for (int l = 0; l < kLanes; l += 4) {
      Quad a = load_quad(at(l)), b = load_quad(at(l + 1)), c = load_quad(at(l + 2)),
           d = load_quad(at(l + 3));
      transpose(a, b, c, d);
      std::memcpy(rows + l, &a, 16);
      std::memcpy(rows + kLanes + l, &b, 16);
      std::memcpy(rows + 2 * kLanes + l, &c, 16);
      std::memcpy(rows + 3 * kLanes + l, &d, 16);
    }
  } else {
    for (int l = 0; l < kLanes; ++l) {
      const uint8_t* p = at(l);
      if constexpr (dwords_of(kWidth) > 1 || kWidth == Width::b32) {
        for (int j = 0; j < dwords_of(kWidth); ++j)
          std::memcpy(rows + j * kLanes + l, p + 4 * j, 4);
      } else if constexpr (bytes_of(kWidth) == 1) {
        const uint32_t x = *p;
        const auto s = static_cast<uint32_t>(static_cast<int8_t>(*p));
        rows[l] = kWidth == Width::i8      ? s
                  : kWidth == Width::u8_hi ? x << 16
                  : kWidth == Width::i8_lo ? s & 0xffff
                  : kWidth == Width::i8_hi ? s << 16
                                           : x;
      } else {
        uint16_t x;
        std::memcpy(&x, p, 2);
        rows[l] = kWidth == Width::i16      ? static_cast<uint32_t>(static_cast<int16_t>(x))
                  : kWidth == Width::b16_hi ? uint32_t{x} << 16
                                            : x;
      }
    }
  }
}

template <Width kWidth, class At>
EMU_INLINE void scatter_rows(const uint32_t* rows, At at) {
  if constexpr (kWidth == Width::b128) {
    for (int l = 0; l < kLanes; l += 4) {
      Quad a, b, c, d;
      std::memcpy(&a, rows + l, 16);
      std::memcpy(&b, rows + kLanes + l, 16);
      std::memcpy(&c, rows + 2 * kLanes + l, 16);
      std::memcpy(&d, rows + 3 * kLanes + l, 16);
      transpose(a, b, c, d);
      std::memcpy(at(l), &a, 16);
      std::memcpy(at(l + 1), &b, 16);
      std::memcpy(at(l + 2), &c, 16);
      std::memcpy(at(l + 3), &d, 16);
    }
  } else {
    for (int l = 0; l < kLanes; ++l) {
      uint8_t* p = at(l);
      if constexpr (dwords_of(kWidth) > 1 || kWidth == Width::b32) {
        for (int j = 0; j < dwords_of(kWidth); ++j)
          std::memcpy(p + 4 * j, rows + j * kLanes + l, 4);
      } else if constexpr (bytes_of(kWidth) == 1) {
        *p = static_cast<uint8_t>(rows[l]);
      } else {
        const auto x = static_cast<uint16_t>(rows[l]);
        std::memcpy(p, &x, 2);
      }
    }
  }
}

// d[l] = from[l] where bit l is set, for each of n rows.
void blend_rows(uint32_t* d, const uint32_t* from, uint64_t mask, int n);

// Loads into the registers at `rows`, for the active lanes.
template <Width kWidth>
EMU_INLINE void load_rows(uint32_t* rows, uint64_t exec, const Reach& r) {
  alignas(64) uint32_t temporary[dwords_of(kWidth) * kLanes];
  uint32_t* const to = exec == kAllLanes ? rows : temporary;
  if (r.uniform)
    gather_rows<kWidth>(to, [&](int l) { return r.base + r.offset[l]; });
  else
    gather_rows<kWidth>(to, [&](int l) { return r.at[l]; });
  if (to == temporary) blend_rows(rows, temporary, exec, dwords_of(kWidth));
}

template <Width kWidth>
EMU_INLINE void store_rows(const uint32_t* rows, const Reach& r) {
  if (r.uniform)
    scatter_rows<kWidth>(rows, [&](int l) { return r.base + r.offset[l]; });
  else
    scatter_rows<kWidth>(rows, [&](int l) { return r.at[l]; });
  if (r.partial_count) finish_partial(r);
}

// Copies rows of registers into a pending instruction.
template <int kRows>
EMU_INLINE void snapshot(uint32_t (*to)[kLanes], const uint32_t* rows) {
  std::memcpy(to, rows, kRows * sizeof(*to));
}
// The data of a store; the _hi forms take the upper half of the register.
template <Width kWidth>
EMU_INLINE void snapshot_data(uint32_t (*to)[kLanes], const uint32_t* rows) {
  if constexpr (kWidth == Width::u8_hi || kWidth == Width::b16_hi)
    for (int l = 0; l < kLanes; ++l) to[0][l] = rows[l] >> 16;
  else
    snapshot<dwords_of(kWidth)>(to, rows);
}

// ---- LDS DMA ------------------------------------------------------------------------------------

// A load that goes to LDS: lane l's dwords go to start + stride * l, one dword for narrow loads.
template <Width kWidth>
EMU_INLINE void load_to_lds(Wave& w, uint64_t start, uint64_t exec, const Reach& r) {
  constexpr int size = dwords_of(kWidth) * 4, stride = size > 4 ? 16 : 4;
  alignas(64) uint32_t rows[kLanes];
  constexpr bool narrow = dwords_of(kWidth) == 1 && kWidth != Width::b32;
  if constexpr (narrow) load_rows<kWidth>(rows, kAllLanes, r);
  const auto source = [&](int l) -> const uint8_t* {
    if constexpr (narrow) return reinterpret_cast<const uint8_t*>(rows + l);
    return r.uniform ? r.base + r.offset[l] : r.at[l];
  };
  if (exec == kAllLanes && start + uint64_t{stride} * kLanes <= w.lds_bytes) {
    uint8_t* const to = w.lds + start;
    if (r.uniform && !narrow)
      for (int l = 0; l < kLanes; ++l) std::memcpy(to + stride * l, r.base + r.offset[l], size);
    else
      for (int l = 0; l < kLanes; ++l) std::memcpy(to + stride * l, source(l), size);
    return;
  }
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t to = start + uint64_t{stride} * l;
    if ((exec >> l & 1) && to + size <= w.lds_bytes) std::memcpy(w.lds + to, source(l), size);
  }
}

// ---- atomics ------------------------------------------------------------------------------------

// The lanes' read-modify-writes, one after the other. `T` old, T data, T data2 -> T.
template <class T, class F>
EMU_INLINE void atomic_rows(uint32_t* result, const uint32_t* data, const uint32_t* data2,
                            uint64_t exec, const Reach& r, F f) {
  for (int l = 0; l < kLanes; ++l) {
    if (!(exec >> l & 1)) continue;
    T value, second, old;
    if constexpr (sizeof(T) == 8) {
      value = as<T>(data[l] | uint64_t{data[l + kLanes]} << 32);
      second = as<T>(data2[l] | uint64_t{data2[l + kLanes]} << 32);
    } else {
      value = as<T>(data[l]);
      second = as<T>(data2[l]);
    }
    using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    auto* const p = reinterpret_cast<Bits*>(r.uniform ? r.base + r.offset[l] : r.at[l]);
    Bits before = __atomic_load_n(p, __ATOMIC_RELAXED), after;
    do {
      after = as<Bits>(static_cast<T>(f(as<T>(before), value, second)));
    } while (
        !__atomic_compare_exchange_n(p, &before, after, true, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    old = as<T>(before);
    if (!result) continue;
    result[l] = static_cast<uint32_t>(as<Bits>(old));
    if constexpr (sizeof(T) == 8) result[l + kLanes] = static_cast<uint32_t>(as<Bits>(old) >> 32);
  }
}

}  // namespace emu::EMU_NS
