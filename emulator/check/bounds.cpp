// The bounds check: accesses that hardware permits although they are out of bounds.
// That an access outside every allocation of device memory is a fault needs no check.
#include "check/check.hpp"

namespace emu::check {
namespace {

class Bounds final : public Check {
 public:
  explicit Bounds(const LaunchContext& context) : context_(context) {}

  Wants wants() const override { return {false, true, false}; }
  bool queued(Wave& w, const Side& side, const Pending& p) override {
    if (!side.shape || harmless(w, side, p)) return true;
    Access access;
    find_access(w, side.decoded, side.shape, p, access);
    for (const AccessPart& part : access) {
      if (part.space == Space::lds && !in_lds(w, side, p, part)) return false;
      if (part.space == Space::global && !in_arguments(w, p, part)) return false;
    }
    return true;
  }

 private:
  // A fast test that most accesses pass.
  bool harmless(const Wave& w, const Side& side, const Pending& p) const {
    const Decoded& d = side.decoded;
    if (side.op->family == Family::DS) {
      if (side.op->has(kTwoOffsets) || side.shape.counter) return false;
      uint32_t high = 0;
      for (int l = 0; l < kLanes; ++l) high = p.addr[0][l] > high ? p.addr[0][l] : high;
      return uint64_t{high} + static_cast<uint32_t>(d.offset) + side.shape.bytes <= w.lds_bytes;
    }
    if (side.op->family != Family::MUBUF || p.rsrc[1] >> 16) return false;
    if (side.shape.to_lds &&
        uint64_t{p.m0 & 0x3ffff} + static_cast<uint32_t>(d.offset) + 16 * kLanes > w.lds_bytes)
      return false;
    const uint64_t base = p.rsrc[0] | (p.rsrc[1] & 0xffffull) << 32;
    const auto arguments = reinterpret_cast<uint64_t>(context_.kernarg.data());
    return arguments + context_.kernarg.size() <= base || arguments >= base + p.rsrc[2] + 16;
  }

  bool finding(Wave& w, const Inst* i, const AccessPart& part, uint32_t lane,
               const std::string& where) {
    return report(w, i, "bounds",
                  std::string(part.stores ? "a store" : "a load") + " of " +
                      std::to_string(part.bytes) + " bytes by lane " + std::to_string(lane) + " " +
                      where);
  }

  // Beyond a workgroup's LDS, hardware reads zeros and drops stores.
  bool in_lds(Wave& w, const Side& side, const Pending& p, const AccessPart& part) {
    uint64_t lanes = side.op->family == Family::FLAT ? part.lanes : p.exec;
    if (side.shape.counter) lanes &= -lanes;
    for (; lanes; lanes &= lanes - 1) {
      const auto l = static_cast<uint32_t>(__builtin_ctzll(lanes));
      if (part.address[l] + part.bytes <= w.lds_bytes) continue;
      return finding(w, p.inst, part, l,
                     "at LDS offset " + std::to_string(part.address[l]) + " of " +
                         std::to_string(w.lds_bytes) + " bytes");
    }
    return true;
  }

  // Compilers widen loads within the alignment of 16 bytes, which is always mapped.
  bool in_arguments(Wave& w, const Pending& p, const AccessPart& part) {
    const auto begin = reinterpret_cast<uint64_t>(context_.kernarg.data());
    const uint64_t bytes = context_.launch.kernarg.size(), most = (bytes + 15) / 16 * 16;
    for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1) {
      const auto l = static_cast<uint32_t>(__builtin_ctzll(lanes));
      const uint64_t at = part.address[l] - begin;
      if (at >= context_.kernarg.size()) continue;
      const std::string block = "the kernel's " + std::to_string(bytes) + " bytes of arguments";
      if (part.stores) return finding(w, p.inst, part, l, "into " + block);
      if (at >= bytes || at + part.good[l] > most)
        return finding(w, p.inst, part, l,
                       "at offset " + std::to_string(at) + " reaches past the end of " + block);
    }
    return true;
  }

  const LaunchContext& context_;
};

}  // namespace

std::unique_ptr<Check> make_bounds_check(const LaunchContext& context) {
  return std::make_unique<Bounds>(context);
}

}  // namespace emu::check
