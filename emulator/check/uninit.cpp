// The uninit check: uninitialized values that reach memory, an address or control flow. An
// undefined value may be loaded, moved, computed with and stored to LDS or scratch; it is a finding
// when it is stored to global memory, used as an address, or decides a branch or EXEC.
#include "check/uninit.hpp"

#include <algorithm>
#include <cstring>

namespace emu::check {
namespace {

std::string hexadecimal(uint64_t x) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(x));
  return text;
}

class Uninit final : public Check {
 public:
  explicit Uninit(const LaunchContext& context)
      : context_(context), shadows_(definedness::shadows()) {}

  void attach(Workgroup& group) override {
    waves_.resize(group.waves.size());
    for (auto& u : waves_) u = std::make_unique<UninitWave>();
  }
  void group_started(Workgroup&) override {
    group_.origins.clear();
    group_.lds.assign(context_.lds_bytes, 0);
    group_.lds_origin.clear();
  }
  void wave_started(Wave& w, uint32_t sgprs) override {
    UninitWave& u = *waves_[w.index];
    std::fill_n(u.vector, 512, Planes{});
    std::fill_n(u.vector_origin, 512, 0);
    std::fill_n(u.scalar_origin, 128, 0);
    for (uint32_t k = 0; k < 128; ++k)
      u.scalar[k] =
          k < sgprs || (k >= kSlotFlatScratch && k < kSlotVcc) || k >= kSlotExec ? ~0u : 0;
    u.vector[0] = Planes::lanes(w.exec());
    u.scc = false;
    u.scc_origin = 0;
    u.scratch.assign(size_t{w.scratch_bytes} * kLanes, 0);
  }

  bool before(Wave& w, const Inst* i, const Side& side) override {
    UninitWave& u = *waves_[w.index];
    switch (side.op->family) {
      case Family::VOP1:
      case Family::VOP2:
      case Family::VOPC:
      case Family::VOP3:
      case Family::VOP3P:
        propagate_vector(w, side, group_, u);
        return exec_known(w, i, side, u);
      case Family::MFMA:
        propagate_matrix(w, side, group_, u);
        return true;
      case Family::SOP1:
      case Family::SOP2:
      case Family::SOPC:
      case Family::SOPK:
        if (side.op->cls == OpClass::branch && !control_known(w, i, side, u)) return false;
        propagate_scalar(w, side, group_, u);
        return exec_known(w, i, side, u);
      case Family::SOPP:
        return control_known(w, i, side, u);
      default:
        return issue(w, i, side, u);
    }
  }

  bool wants_access() const override { return true; }
  bool queued(Wave& w, const Side& side, const Pending& p) override {
    UninitWave& u = *waves_[w.index];
    UninitWave::Issue& now = u.in_flight[slot_of(w, p)];
    if (side.shape.stores || !side.shape)
      now = u.issuing;
    else
      now.origin = 0;
    return true;
  }

  bool landing(Wave& w, const Side& side, const Pending& p, const Access* access) override {
    if (!access || side.op->family == Family::SMEM) return true;
    for (const AccessPart& part : *access)
      if (part.stores && part.space == Space::global && !store_global(w, side, p, part))
        return false;
    return true;
  }
  void landed(Wave& w, const Side& side, const Pending& p, const Access* access) override {
    if (!access)
      permuted(w, side, p);
    else if (side.op->family == Family::SMEM)
      scalar_memory(w, side, *access);
    else if (side.shape.to_lds)
      copy_to_lds(w, side, *access);
    else
      vector_memory(w, side, p, *access);
  }

 private:
  // ---- findings ----

  std::string describe(uint32_t number) const {
    if (!number) return "an unknown place";
    const Origin& o = group_.origins[number - 1];
    const std::string by = "; it was read by " + text_of(*o.by);
    switch (o.kind) {
      case Origin::Kind::vector:
        return vector_name(*o.by, static_cast<uint32_t>(o.at)) + ", which nothing has written" + by;
      case Origin::Kind::scalar:
        return scalar_name(static_cast<uint32_t>(o.at)) + ", which nothing has written" + by;
      case Origin::Kind::scc:
        return "scc, which nothing has set" + by;
      case Origin::Kind::lds:
        return "LDS at " + hexadecimal(o.at) + ", which nothing has written" + by;
      case Origin::Kind::scratch:
        return "scratch at " + hexadecimal(o.at) + ", which nothing has written" + by;
      case Origin::Kind::global:
        return "memory at " + hexadecimal(o.at) + ", which nothing has written (" +
               context_.launch.memory->describe(o.at) + ")" + by;
    }
    return "";
  }
  bool finding(Wave& w, const Inst* i, const std::string& what, uint32_t origin) {
    return report(w, i, "uninit", what + ". It comes from " + describe(origin));
  }

  uint32_t vector_origin(UninitWave& u, const Side& side, uint32_t r) {
    if (u.vector_origin[r]) return u.vector_origin[r];
    return u.vector_origin[r] = group_.origin(Origin::Kind::vector, r, side);
  }
  uint32_t scalar_origin(UninitWave& u, const Side& side, uint32_t r) {
    if (u.scalar_origin[r]) return u.scalar_origin[r];
    return u.scalar_origin[r] = group_.origin(Origin::Kind::scalar, r, side);
  }

  bool exec_known(Wave& w, const Inst* i, const Side& side, UninitWave& u) {
    if (u.scalar[kSlotExec] == ~0u && u.scalar[kSlotExec + 1] == ~0u) return true;
    const uint32_t r = u.scalar[kSlotExec] != ~0u ? kSlotExec : kSlotExec + 1;
    const uint32_t bit = static_cast<uint32_t>(__builtin_ctz(~u.scalar[r])) + (r - kSlotExec) * 32;
    return finding(w, i,
                   "whether lane " + std::to_string(bit) + " runs depends on an undefined value",
                   scalar_origin(u, side, r));
  }

  bool control_known(Wave& w, const Inst* i, const Side& side, UninitWave& u) {
    if (side.op->cls != OpClass::branch) return true;
    if (side.foot.reads_scc && !u.scc) {
      if (!u.scc_origin) u.scc_origin = group_.origin(Origin::Kind::scc, 0, side);
      return finding(w, i, "a branch depends on an undefined scc", u.scc_origin);
    }
    for (const Registers& r : side.foot.scalar_reads) {
      if (r.first == kVccLo && side.op->has(kReadsVcc)) {
        const uint64_t known = u.scalar[kVccLo] | uint64_t{u.scalar[kVccLo + 1]} << 32;
        if (known == ~uint64_t{0} || (w.vcc() & known)) continue;  // a known one decides
      }
      for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
        if (u.scalar[k] != ~0u)
          return finding(w, i, "a branch depends on the undefined " + scalar_name(k),
                         scalar_origin(u, side, k));
    }
    return true;
  }

  // ---- memory instructions: issue ----

  bool issue(Wave& w, const Inst* i, const Side& side, UninitWave& u) {
    const bool swizzles = side.decoded.op == Op::ds_swizzle_b32;
    const bool permutes =
        swizzles || side.decoded.op == Op::ds_bpermute_b32 || side.decoded.op == Op::ds_permute_b32;
    const uint64_t exec = w.exec();
    u.issuing.origin = 0;
    int rows = 0;
    for (const Registers& r : side.foot.vector_reads) {
      const bool data = r.role == Role::data || (swizzles && r.role == Role::address);
      for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
        const uint64_t bad = exec & ~u.vector[k].whole();
        if (data && rows < 4) {
          u.issuing.data[rows++] = u.vector[k];
          if (bad && !u.issuing.origin) u.issuing.origin = vector_origin(u, side, k);
        } else if (r.role == Role::address && bad && !data) {
          if (permutes) {  // the result is undefined, which is no finding yet
            u.issuing.origin = vector_origin(u, side, k);
            continue;
          }
          return finding(w, i,
                         "the address of lane " + std::to_string(__builtin_ctzll(bad)) +
                             " is undefined (" + vector_name(side, k) + ")",
                         vector_origin(u, side, k));
        }
      }
    }
    if (permutes && side.foot.vector_reads.size)
      u.issuing.data[3] = u.vector[side.foot.vector_reads.item[0].first];
    if (!exec && side.op->family != Family::SMEM) return true;
    for (const Registers& r : side.foot.scalar_reads) {
      if (r.role != Role::address && !(r.first == kM0 && side.shape.to_lds)) continue;
      for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
        if (u.scalar[k] != ~0u)
          return finding(w, i, "the address is undefined (" + scalar_name(k) + ")",
                         scalar_origin(u, side, k));
    }
    return true;
  }

  // ---- where bytes are ----

  // Shadow of [address, address + bytes), null if it is not tracked.
  uint8_t* global_shadow(uint64_t address, uint64_t bytes) {
    if (seen_ && address >= seen_->base && address + bytes <= seen_->end())
      return seen_->map.get() + (address - seen_->base);
    auto it = std::upper_bound(shadows_->begin(), shadows_->end(), address,
                               [](uint64_t a, const definedness::Shadow& s) { return a < s.base; });
    if (it == shadows_->begin()) return nullptr;
    --it;
    if (address + bytes > it->end()) return nullptr;
    seen_ = &*it;
    return seen_->map.get() + (address - seen_->base);
  }
  // A part's shadow as one array: that of address a is at base[a - start]. Not `one` if lanes are
  // spread over allocations, or only partly in range; null base if no lane is tracked.
  struct View {
    bool one = false;
    uint8_t* base = nullptr;
    uint64_t start = 0;
  };
  View view(const AccessPart& part) {
    if (!part.whole || part.space == Space::scratch) return {};
    if (part.space == Space::lds) return {true, group_.lds.data(), 0};
    if (shadows_->empty()) return {true, nullptr, 0};
    uint64_t low = ~uint64_t{0}, high = 0;
    for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1) {
      const uint64_t at = part.address[__builtin_ctzll(lanes)];
      low = std::min(low, at);
      high = std::max(high, at);
    }
    if (low > high) return {true, nullptr, 0};
    if (global_shadow(low, high - low + part.bytes)) return {true, seen_->map.get(), seen_->base};
    return {};
  }
  uint8_t* shadow(Wave& w, const AccessPart& part, int lane) {
    const uint64_t at = part.address[lane];
    switch (part.space) {
      case Space::global:
        return global_shadow(at, part.good[lane]);
      case Space::lds:
        return at + part.good[lane] <= group_.lds.size() ? group_.lds.data() + at : nullptr;
      case Space::scratch: {
        auto& s = waves_[w.index]->scratch;
        return at + part.good[lane] <= w.scratch_bytes
                   ? s.data() + uint64_t{w.scratch_bytes} * lane + at
                   : nullptr;
      }
    }
    return nullptr;
  }
  uint32_t memory_origin(const Side& side, const AccessPart& part, int lane, const uint8_t* state) {
    int b = 0;
    while (b + 1 < part.good[lane] && state[b] == 255) ++b;
    const uint64_t at = part.address[lane] + b;
    if (part.space == Space::lds) {
      const auto it = group_.lds_origin.find(static_cast<uint32_t>(at / 4));
      if (it != group_.lds_origin.end()) return it->second;
      return group_.origin(Origin::Kind::lds, at, side);
    }
    return group_.origin(part.space == Space::global ? Origin::Kind::global : Origin::Kind::scratch,
                         at, side);
  }

  // ---- memory instructions: effect ----

  // Lanes whose components for a typed store are all known.
  static uint64_t typed_data(const Side& side, const Planes* rows) {
    const char* const name = side.op->name;
    uint64_t known = ~uint64_t{0};
    if (std::strstr(name, "_d16_hi_")) return rows[0].half(1);
    const size_t count = std::strlen(std::strrchr(name, '_') + 1);
    const bool halves = std::strstr(name, "_d16_");
    for (size_t c = 0; c < count; ++c) known &= halves ? rows[c / 2].half(c % 2) : rows[c].whole();
    return known;
  }

  // Of the data registers, the byte that byte `b` of a lane's transfer is.
  static uint64_t data_byte(const Side& side, const Planes* rows, const AccessPart& part, int b) {
    if (side.shape.typed) return typed_data(side, rows);
    const bool high = part.bytes < 4 && std::strstr(side.op->name, "_d16_hi");
    return rows[part.first_row + b / 4].byte[b % 4 + (high ? 2 : 0)];
  }

  bool store_global(Wave& w, const Side& side, const Pending& p, const AccessPart& part) {
    const auto& issued = waves_[w.index]->in_flight[slot_of(w, p)];
    for (int b = 0; b < part.bytes && issued.origin; ++b) {
      uint64_t bad = part.lanes & ~data_byte(side, issued.data, part, b);
      for (; bad; bad &= bad - 1) {
        const int l = __builtin_ctzll(bad);
        if (b >= part.good[l]) continue;
        return finding(w, p.inst,
                       "lane " + std::to_string(l) + " stores an undefined value to " +
                           hexadecimal(part.address[l] + b) + ", " +
                           context_.launch.memory->describe(part.address[l] + b),
                       issued.origin);
      }
    }
    return true;
  }

  void store(Wave& w, const Side& side, const UninitWave::Issue& issued, const AccessPart& part) {
    const View v = view(part);
    if (v.one && !v.base) return;
    if (v.one && !issued.origin) {
      if (!part.loads)
        for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1)
          std::memset(v.base + (part.address[__builtin_ctzll(lanes)] - v.start), 0xff, part.bytes);
      return;
    }
    for (int l = 0; l < kLanes; ++l) {
      if (!(part.lanes >> l & 1)) continue;
      uint8_t* const to = shadow(w, part, l);
      if (!to) continue;
      if (!issued.origin) {
        // An atomic's result is as undefined as what it found.
        if (!part.loads) std::memset(to, 0xff, part.good[l]);
        continue;
      }
      for (int b = 0; b < part.good[l]; ++b) {
        const bool known = data_byte(side, issued.data, part, b) >> l & 1;
        to[b] = known && (!part.loads || to[b]) ? 0xff : 0;
        if (!known && part.space == Space::lds)
          group_.lds_origin[static_cast<uint32_t>((part.address[l] + b) / 4)] = issued.origin;
      }
    }
  }

  void load(Wave& w, const Side& side, const AccessPart& part, uint64_t exec) {
    const Registers* to = side.foot.vector_writes.find(Role::result);
    if (!to) return;
    UninitWave& u = *waves_[w.index];
    const int rows = side.shape.typed ? to->count : (part.bytes + 3) / 4;
    // Lanes that load anything undefined: rare.
    uint64_t bad = unknown(w, part);
    Planes row[4];
    for (Planes& r : row) r = Planes::lanes(~bad);
    uint32_t origin = 0;
    if (bad) {
      const int l = __builtin_ctzll(bad & part.lanes);
      if (const uint8_t* from = shadow(w, part, l)) origin = memory_origin(side, part, l, from);
      if (std::strstr(side.op->name, "_tr_"))
        transpose(w, side, part, bad, row);
      else if (!side.shape.typed)  // an undefined byte of an element makes all components undefined
        spread(w, side, part, bad, row);
    }
    for (int j = 0; j < rows && part.first_row + j < to->count; ++j) {
      const uint32_t r = to->first + part.first_row + j;
      u.vector[r] = u.vector[r].blend(row[j], exec);
      u.vector_origin[r] = origin;
    }
  }
  // Lanes that have an unknown byte.
  uint64_t unknown(Wave& w, const AccessPart& part) {
    const View v = view(part);
    if (v.one && !v.base) return 0;
    uint64_t bad = 0;
    const auto each = [&](auto known) {
      for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1) {
        const int l = __builtin_ctzll(lanes);
        bad |= static_cast<uint64_t>(!known(v.base + (part.address[l] - v.start))) << l;
      }
    };
    const auto whole = [](const uint8_t* p, auto word) {
      std::memcpy(&word, p, sizeof word);
      return word == static_cast<decltype(word)>(-1);
    };
    if (v.one && part.bytes == 16) {
      each([&](const uint8_t* p) { return whole(p, uint64_t{}) && whole(p + 8, uint64_t{}); });
    } else if (v.one && part.bytes == 8) {
      each([&](const uint8_t* p) { return whole(p, uint64_t{}); });
    } else if (v.one && part.bytes == 4) {
      each([&](const uint8_t* p) { return whole(p, uint32_t{}); });
    } else {
      for (int l = 0; l < kLanes; ++l) {
        if (!(part.lanes >> l & 1)) continue;
        const uint8_t* const from = shadow(w, part, l);
        uint8_t all = 255;
        for (int b = 0; from && b < part.good[l]; ++b) all &= from[b];
        if (all != 255) bad |= uint64_t{1} << l;
      }
    }
    return bad;
  }
  // Byte by byte, for lanes `bad`. Narrow loads are extended.
  void spread(Wave& w, const Side& side, const AccessPart& part, uint64_t bad, Planes* row) {
    const char* const name = side.op->name;
    const bool high = part.bytes < 4 && std::strstr(name, "_d16_hi");
    const bool sign = part.bytes < 4 && (std::strstr(name, "_sbyte") || std::strstr(name, "_i8") ||
                                         std::strstr(name, "_sshort") || std::strstr(name, "_i16"));
    for (; bad; bad &= bad - 1) {
      const int l = __builtin_ctzll(bad);
      const uint64_t lane = uint64_t{1} << l;
      const uint8_t* const from = shadow(w, part, l);
      const int n = part.bytes < 4 ? 4 : part.bytes;
      for (int b = 0; b < n; ++b) {
        const int at = b - (high ? 2 : 0);
        bool known = true;
        if (at >= 0 && at < part.good[l]) known = !from || from[at] == 255;
        if (at >= part.bytes && sign) known = !from || from[part.bytes - 1] == 255;
        row[b / 4].byte[b % 4] = (row[b / 4].byte[b % 4] & ~lane) | (known ? lane : 0);
      }
    }
  }

  // Sixteen lanes exchange their data: with their memory side by side, element e of all of them is
  // a run of sixteen. Elements of less than a byte are not distinguished.
  void transpose(Wave& w, const Side& side, const AccessPart& part, uint64_t bad, Planes* row) {
    const char* const name = side.op->name;
    const int size = std::strstr(name, "_tr_b16") ? 2 : std::strstr(name, "_tr_b8") ? 1 : 0;
    for (int group = 0; group < kLanes; group += 16) {
      if (!(bad >> group & 0xffff)) continue;
      for (int l = group; l < group + 16; ++l)
        for (int b = 0; b < part.bytes; ++b) {
          const int at = size ? (b / size * 16 + l - group) * size + b % size : 0;
          const int from = group + at / part.bytes;
          const uint8_t* const p = shadow(w, part, from);
          const int byte = at % part.bytes;
          const bool known = size && (!p || byte >= part.good[from] || p[byte] == 255);
          const uint64_t lane = uint64_t{1} << l;
          row[b / 4].byte[b % 4] = (row[b / 4].byte[b % 4] & ~lane) | (known ? lane : 0);
        }
    }
  }

  void vector_memory(Wave& w, const Side& side, const Pending& p, const Access& access) {
    const auto& issued = waves_[w.index]->in_flight[slot_of(w, p)];
    uint64_t exec = p.exec;
    for (const AccessPart& part : access) {
      // FLAT lanes are split over spaces; lanes without any memory load zeros.
      uint64_t lanes = exec;
      if (access.count > 1 && side.op->family == Family::FLAT) lanes = part.lanes;
      if (part.loads) load(w, side, part, lanes);
      if (part.stores) store(w, side, issued, part);
    }
  }

  void copy_to_lds(Wave& w, const Side&, const Access& access) {
    const AccessPart& from = access.part[0];
    const AccessPart& to = access.part[access.count - 1];
    const View v = view(from);
    if (v.one && to.lanes == kAllLanes && from.bytes == to.bytes) {
      uint8_t* const target = group_.lds.data();
      const auto copy = [&](auto bytes) {  // a constant, so that no call is made
        for (int l = 0; l < kLanes; ++l) {
          if (v.base && (from.lanes >> l & 1))
            std::memcpy(target + to.address[l], v.base + (from.address[l] - v.start), bytes);
          else
            std::memset(target + to.address[l], 0xff, bytes);
        }
      };
      if (to.bytes == 16)
        copy(std::integral_constant<size_t, 16>{});
      else
        copy(size_t{to.bytes});
    } else {
      copy_each(w, from, to);
    }
    if (group_.lds_origin.empty()) return;
    for (int l = 0; l < kLanes; ++l)
      if (to.lanes >> l & 1)
        for (int b = 0; b < to.bytes; b += 4)
          group_.lds_origin.erase(static_cast<uint32_t>((to.address[l] + b) / 4));
  }
  void copy_each(Wave& w, const AccessPart& from, const AccessPart& to) {
    for (int l = 0; l < kLanes; ++l) {
      if (!(to.lanes >> l & 1)) continue;
      uint8_t* const target = shadow(w, to, l);
      if (!target) continue;
      const uint8_t* const source = from.lanes >> l & 1 ? shadow(w, from, l) : nullptr;
      std::memset(target, 0xff, to.bytes);
      if (source) std::memcpy(target, source, from.good[l]);
    }
  }

  // What scalar stores and atomics write counts as known.
  void scalar_memory(Wave& w, const Side& side, const Access& access) {
    if (side.shape.stores) {
      if (uint8_t* const to = access.part[0].lanes ? shadow(w, access.part[0], 0) : nullptr)
        std::memset(to, 255, access.part[0].good[0]);
    }
    const Registers* to = side.foot.scalar_writes.find(Role::result);
    if (!to) return;
    UninitWave& u = *waves_[w.index];
    const AccessPart& part = access.part[0];
    const uint8_t* const from = part.lanes ? shadow(w, part, 0) : nullptr;
    uint32_t origin = 0;
    for (int k = 0; k < to->count; ++k) {
      uint32_t known = ~0u;
      for (int b = 0; b < 4 && from && 4 * k + b < part.good[0]; ++b)
        if (from[4 * k + b] != 255) known &= ~(255u << (8 * b));
      if (known != ~0u && !origin) origin = memory_origin(side, part, 0, from);
      u.scalar[to->first + k] = known;
      u.scalar_origin[to->first + k] = origin;
    }
  }

  // The lane permutations; other results without memory access are defined.
  void permuted(Wave& w, const Side& side, const Pending& p) {
    UninitWave& u = *waves_[w.index];
    const auto& issued = u.in_flight[slot_of(w, p)];
    const bool permutes = side.decoded.op == Op::ds_swizzle_b32 ||
                          side.decoded.op == Op::ds_bpermute_b32 ||
                          side.decoded.op == Op::ds_permute_b32;
    for (const Registers& r : side.foot.scalar_writes)
      for (int k = 0; k < r.count; ++k) u.scalar[r.first + k] = ~0u;
    const Registers* to = side.foot.vector_writes.find(Role::result);
    if (!to) return;
    Planes result = Planes::all();
    if (permutes && issued.origin) {
      const Planes& data = issued.data[0];
      const uint64_t indices =
          side.decoded.op == Op::ds_swizzle_b32 ? ~uint64_t{0} : issued.data[3].whole();
      if (side.decoded.op == Op::ds_bpermute_b32) {
        for (int l = 0; l < kLanes; ++l) {
          const uint32_t from =
              (p.addr[0][l] + static_cast<uint32_t>(side.decoded.offset)) / 4 % kLanes;
          if (p.exec >> from & 1)
            for (int b = 0; b < 4; ++b)
              if (!(data.byte[b] >> from & 1)) result.byte[b] &= ~(uint64_t{1} << l);
        }
        result = result & Planes::lanes(indices | ~p.exec);
      } else {  // one undefined lane makes all undefined
        const uint64_t known = (data.whole() & indices) | ~p.exec;
        if (~known) result = Planes{};
      }
    }
    u.vector[to->first] = u.vector[to->first].blend(result, p.exec);
    u.vector_origin[to->first] = issued.origin;
  }

  const LaunchContext& context_;
  const std::shared_ptr<const definedness::Shadows> shadows_;
  const definedness::Shadow* seen_ = nullptr;
  UninitGroup group_;
  std::vector<std::unique_ptr<UninitWave>> waves_;
};

}  // namespace

uint32_t first_origin(Wave& w, const Side& side, UninitGroup& g, UninitWave& u) {
  uint64_t lanes = side.foot.obeys_exec ? w.exec() : ~uint64_t{0};
  switch (side.decoded.op) {
    case Op::v_readlane_b32:
    case Op::v_permlane16_swap_b32:
    case Op::v_permlane32_swap_b32:
      lanes = ~uint64_t{0};
      break;
    default:
      break;
  }
  for (const Registers& r : side.foot.vector_reads)
    for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k)
      if (lanes & ~u.vector[k].whole()) {
        if (!u.vector_origin[k]) u.vector_origin[k] = g.origin(Origin::Kind::vector, k, side);
        return u.vector_origin[k];
      }
  for (const Registers& r : side.foot.scalar_reads)
    for (uint32_t k = r.first; k < r.first + uint32_t{r.count}; ++k) {
      uint32_t ignored = 0;
      if (r.role == Role::mask)
        ignored = static_cast<uint32_t>(~w.exec() >> (k == r.first ? 0 : 32));
      if ((u.scalar[k] | ignored) != ~0u) {
        if (!u.scalar_origin[k]) u.scalar_origin[k] = g.origin(Origin::Kind::scalar, k, side);
        return u.scalar_origin[k];
      }
    }
  if (side.foot.reads_scc && !u.scc) {
    if (!u.scc_origin) u.scc_origin = g.origin(Origin::Kind::scc, 0, side);
    return u.scc_origin;
  }
  return 0;
}

std::unique_ptr<Check> make_uninit_check(const LaunchContext& context) {
  return std::make_unique<Uninit>(context);
}

}  // namespace emu::check
