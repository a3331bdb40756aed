#include "runtime/launch_log.hpp"

namespace rt {

void LaunchLog::add(const emu::Launch& launch, const Registers& registers,
                    const emu::Counters& counters) {
  {
    const std::lock_guard lock(mutex_);
    totals_ += counters;
  }
  const emu::KernelDescriptor& d = launch.kernel->descriptor;
  LaunchRecord r;
  r.kernel = launch.kernel->name;
  r.workgroups = launch.workgroups;
  r.workgroup_size = launch.workgroup_size;
  r.registers = registers;
  r.allocated_vgprs = ((d.rsrc1 & 63) + 1) * 8;
  r.lds_bytes = d.group_segment_bytes + launch.dynamic_lds_bytes;
  r.private_bytes = d.private_segment_bytes;
  r.counters = counters;
  const std::lock_guard lock(mutex_);
  kept_.push_back(std::move(r));
  if (kept_.size() > kKept) kept_.pop_front(), ++dropped_;
}

emu::Counters LaunchLog::totals() const {
  const std::lock_guard lock(mutex_);
  return totals_;
}

std::optional<LaunchRecord> LaunchLog::launch(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  if (number < dropped_ || number - dropped_ >= kept_.size()) return std::nullopt;
  return kept_[number - dropped_];
}

void LaunchLog::reset() {
  const std::lock_guard lock(mutex_);
  totals_ = {};
  kept_.clear();
  dropped_ = 0;
}

}  // namespace rt
