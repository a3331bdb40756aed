// The state of one wave, and what its instructions share with the launch.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/inst.hpp"
#include "core/launch.hpp"

// These helpers are compiled at several CPU levels, so they must never become a symbol.
#define EMU_INLINE [[gnu::always_inline]] static inline
#define EMU_MEMBER [[gnu::always_inline]] inline

namespace emu {

inline constexpr int kLanes = 64;
inline constexpr uint64_t kAllLanes = ~uint64_t{0};

// Slots of Wave::s. 0..127 are as encoded; then the values that the encoding names
// otherwise, then the kernel's constants.
enum Slot : uint16_t {
  kSlotFlatScratch = 102,
  kSlotXnackMask = 104,
  kSlotVcc = 106,
  kSlotM0 = 124,
  kSlotExec = 126,
  kSlotScc = 128,  // these three are filled on demand, just before an instruction that reads them
  kSlotVccz = 130,
  kSlotExecz = 132,
  kSlotSharedBase = 134,
  kSlotSharedLimit = 136,
  kSlotPrivateBase = 138,
  kSlotPrivateLimit = 140,
  kSlotZero = 142,
  kSlotConstants = 144,
  kSlotCount = 8192,
};

// Flat addresses of LDS and scratch: outside what a host address can be.
inline constexpr uint64_t kSharedAperture = uint64_t{1} << 48;
inline constexpr uint64_t kPrivateAperture = uint64_t{2} << 48;

// Bits of Wave::mode (the MODE register).
inline constexpr uint32_t kModeRoundF32 = 3u, kModeRoundF64 = 3u << 2;  // f64 also rules f16
inline constexpr uint32_t kModeDenormF32 = 3u << 4, kModeDenormF64 = 3u << 6;
inline constexpr uint32_t kModeDx10Clamp = 1u << 8, kModeIeee = 1u << 9;
inline constexpr uint32_t kModeFp16Overflow = 1u << 23;
inline constexpr uint32_t kModeGprIndex = 1u << 27, kModeVskip = 1u << 28;
inline constexpr uint32_t kModeFloat = 0xff;  // rounding and denormals

enum class WaveState : uint8_t { running, barrier, ended };

// An instruction in flight, with a copy of everything it reads.
struct alignas(64) Pending {
  const Inst* inst;
  uint64_t exec;
  uint64_t base;     // scalar base address
  uint32_t rsrc[4];  // buffer descriptor
  uint32_t soffset;
  uint32_t m0;
  uint8_t waits;  // counters that still hold it: 1, or 2 for FLAT
  alignas(64) uint32_t addr[2][kLanes];
  alignas(64) uint32_t data[4][kLanes];
};

// First in, first out, over indices of Wave::pending.
struct Queue {
  uint8_t slot[128];
  uint8_t head = 0, count = 0;
  EMU_MEMBER void push(uint8_t s) { slot[(head + count++) & 127] = s; }
  EMU_MEMBER uint8_t pop() {
    uint8_t s = slot[head];
    head = (head + 1) & 127;
    --count;
    return s;
  }
};

inline constexpr int kVmMax = 63, kLgkmMax = 15;
inline constexpr int kPendingSlots = kVmMax + kLgkmMax + 2;

struct LaunchContext;
struct Workgroup;

struct alignas(64) Wave {
  uint32_t* v = nullptr;  // register r, lane l: v[r * 64 + l]
  uint8_t* lds = nullptr;
  uint32_t lds_bytes = 0;
  uint32_t scc = 0;
  uint32_t mode = 0;
  bool late = true;  // memory takes effect when a wait forces it; else see land_some()
  WaveState state = WaveState::running;
  uint8_t free_count = 0;
  uint8_t smem_weight = 0;
  const Inst* pc = nullptr;  // where to continue; while running the pc is in the loop

  // The allocation of the last access.
  uint64_t memory_begin = 0, memory_end = 0;

  Queue vm, ds, smem;
  uint8_t free_slots[kPendingSlots];
  Pending* pending = nullptr;

  uint8_t* scratch = nullptr;  // swizzled: dword i of lane l at (i * 64 + l) * 4
  uint32_t scratch_bytes = 0;  // per lane
  uint32_t vgprs = 0;

  LaunchContext* launch = nullptr;
  Workgroup* group = nullptr;
  uint32_t index = 0;  // in its workgroup
  uint32_t constants_copied = 0;
  uint64_t random = 0;  // state of the random sequence for landing

  alignas(64) uint32_t s[kSlotCount];

  EMU_MEMBER uint64_t s64(uint32_t slot) const {
    uint64_t x;
    std::memcpy(&x, s + slot, 8);
    return x;
  }
  EMU_MEMBER void set64(uint32_t slot, uint64_t x) { std::memcpy(s + slot, &x, 8); }
  EMU_MEMBER uint64_t exec() const { return s64(kSlotExec); }
  EMU_MEMBER uint64_t vcc() const { return s64(kSlotVcc); }
  EMU_MEMBER uint32_t* reg(uint32_t r) { return v + r * kLanes; }
  EMU_MEMBER bool covers(uint64_t begin, uint64_t end) const {
    return begin >= memory_begin && end <= memory_end && begin <= end;  // else it wraps around
  }
};

// Ends the launch with a report about instruction `i`; returns null for `return fault(...)`.
const Inst* fault(Wave& w, const Inst* i, FaultKind kind, const char* what);
// A data access outside every allocation, in LDS terms or global ones.
const Inst* fault_address(Wave& w, const Inst* i, int lane, uint64_t address, uint32_t bytes,
                          bool store);
// Unless memory is late: lets all operations in flight land, or a random part. Called after
// every issue. False after a fault.
bool land_some(Wave& w);
// Finds the allocation that holds [begin, end) and remembers it in the wave. False: there is none.
bool find_memory(Wave& w, uint64_t begin, uint64_t end);
// Nanoseconds since some point in the past.
uint64_t read_clock();
// Where a computed branch leads, lowering the code there at the first visit; null after a
// fault.
const Inst* jump_to(Wave& w, const Inst* from, uint64_t address);

}  // namespace emu
