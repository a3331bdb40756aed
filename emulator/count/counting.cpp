#include "count/counting.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/notes.hpp"
#include "count/lds_clocks.hpp"
#include "count/touched.hpp"

namespace emu::count {

// Of one LDS instruction.
struct Port {
  uint64_t executions = 0, data = 0, conflict = 0;
  Port& operator+=(const Port& o) {
    executions += o.executions, data += o.data, conflict += o.conflict;
    return *this;
  }
};

struct Launch {
  std::mutex mutex;
  Touched read, written;
  std::map<uint64_t, std::pair<const Decoded*, Port>> ports;  // by address
};

namespace {

std::atomic<int> forced{-1};  // 0 and 1: override the environment

using check::Access;
using check::AccessPart;
using check::Side;
using check::Space;

class Counter final : public check::Check {
 public:
  explicit Counter(std::shared_ptr<Launch> launch) : launch_(std::move(launch)) {}

  Wants wants() const override { return {false, false, true}; }
  bool wants_access() const override { return true; }

  void landed(Wave& w, const Side& side, const Pending&, const Access* access) override {
    const Family family = side.op->family;
    if (!access) {  // a lane permutation uses the data port like a load of dwords
      if (family == Family::DS && side.op->dst) count_.lds_data_clocks += 4;
      return;
    }
    for (const AccessPart& part : *access) {
      if (part.space == Space::lds)
        local(side, part);
      else if (family == Family::SMEM)
        count_.scalar_bytes += bytes_of(part);
      else if (part.space == Space::scratch || in_scratch(w, part))
        count_.scratch_bytes += bytes_of(part);
      else
        global(part);
    }
  }

  void launch_ended(Counters& counters) override {
    const std::lock_guard lock(launch_->mutex);
    const Touched::Size read = launch_->read.merge(read_);
    const Touched::Size written = launch_->written.merge(written_);
    count_.unique_read_bytes += read.bytes;
    count_.unique_read_lines += read.lines;
    count_.unique_written_bytes += written.bytes;
    count_.unique_written_lines += written.lines;
    counters += count_;
    for (const auto& [side, port] : ports_) {
      auto& [decoded, sum] = launch_->ports[side->decoded.address];
      decoded = &side->decoded;
      sum += port;
    }
  }

 private:
  static uint64_t bytes_of(const AccessPart& part) {
    uint64_t sum = 0;
    for (int l = 0; l < kLanes; ++l)
      if (part.lanes >> l & 1) sum += part.good[l];
    return sum;
  }

  // Private memory can also be reached as plain memory. Its address depends on the host thread.
  static bool in_scratch(const Wave& w, const AccessPart& part) {
    if (!part.lanes) return false;
    const uint64_t at = part.address[std::countr_zero(part.lanes)];
    const auto begin = reinterpret_cast<uint64_t>(w.scratch);
    return at >= begin && at < begin + uint64_t{w.scratch_bytes} * kLanes;
  }

  void local(const Side& side, const AccessPart& part) {
    const uint64_t bytes = bytes_of(part);
    if (side.shape.to_lds) {
      count_.lds_dma_bytes += bytes;
      return;
    }
    if (part.loads) count_.lds_read_bytes += bytes;
    if (part.stores) count_.lds_written_bytes += bytes;
    const LdsClocks clocks = lds_clocks(part);
    count_.lds_data_clocks += clocks.data;
    count_.lds_conflict_clocks += clocks.conflict;
    ports_[&side] += {1, clocks.data, clocks.conflict};
  }

  void global(const AccessPart& part) {
    uint64_t line[2 * kLanes];
    size_t n = 0;
    const auto add = [&](uint64_t begin, uint64_t end) {
      if (part.loads) read_.add(begin, end - begin);
      if (part.stores) written_.add(begin, end - begin);
      for (uint64_t i = begin / kLine; i * kLine < end; ++i)
        if (!n || line[n - 1] != i) line[n++] = i;
    };
    uint64_t begin = 0, end = 0;  // of contiguous bytes of neighbouring lanes
    for (int l = 0; l < kLanes; ++l) {
      if (!(part.lanes >> l & 1)) continue;
      if (part.address[l] != end) {
        add(begin, end);
        begin = end = part.address[l];
      }
      end += part.good[l];
    }
    add(begin, end);
    std::sort(line, line + n);
    const auto requests = static_cast<uint64_t>(std::unique(line, line + n) - line);
    const bool atomic = part.loads && part.stores;
    (atomic        ? count_.l2_atomic_requests
     : part.stores ? count_.l2_written_requests
                   : count_.l2_read_requests) += requests;
    (atomic        ? count_.global_atomic_bytes
     : part.stores ? count_.global_written_bytes
                   : count_.global_read_bytes) += bytes_of(part);
  }

  const std::shared_ptr<Launch> launch_;
  Counters count_;
  Touched read_, written_;
  std::unordered_map<const Side*, Port> ports_;
};

}  // namespace

void report_conflicts(const Launch& launch, const LaunchContext& context) {
  for (const auto& [address, port] : launch.ports)
    if (const Port& p = port.second; p.conflict)
      record_conflicts(context, *port.first, p.executions, p.data + p.conflict, p.conflict);
}

bool requested() {
  if (const int f = forced.load(); f >= 0) return f;
  const char* text = std::getenv("HIPGEMM_EMULATOR_COUNT");
  return text && *text && std::strcmp(text, "0");
}

std::shared_ptr<Launch> start() { return std::make_shared<Launch>(); }

std::unique_ptr<check::Check> make_counter(std::shared_ptr<Launch> launch) {
  return std::make_unique<Counter>(std::move(launch));
}

}  // namespace emu::count

// Switches the counting of addresses on (1) or off (0) for the launches that follow; -1 leaves it
// to HIPGEMM_EMULATOR_COUNT.
extern "C" __attribute__((visibility("default"))) void hipgemm_emulator_set_counting(int on) {
  emu::count::forced.store(on < 0 ? -1 : on != 0);
}
