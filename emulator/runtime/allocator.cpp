#include "runtime/allocator.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "core/definedness.hpp"
#include "runtime/options.hpp"
#include "runtime/report.hpp"

namespace rt {
namespace {

using Kind = emu::Allocation::Kind;

constexpr uint64_t kPage = 4096, kHugePage = uint64_t{2} << 20;
constexpr uint64_t kSmall = 32 << 10;  // up to here from slabs
constexpr uint64_t kSlab = uint64_t{1} << 20;
constexpr uint64_t kAlign = 256;  // hipMalloc's alignment; also the gap between blocks
constexpr uint64_t kPoisonLimit = uint64_t{256} << 20;
constexpr uint64_t kHugePageLimit = uint64_t{1} << 30;  // larger blocks are rarely used as a whole
constexpr size_t kRest = 64;          // freed small blocks of a class before one is reused
constexpr size_t kQuarantine = 1024;  // freed large ranges before addresses are released
constexpr size_t kHistory = 4096;     // freed blocks remembered for reports
constexpr int kPoison = 0xff;

uint64_t round_up(uint64_t value, uint64_t to) { return (value + to - 1) / to * to; }

uint64_t map_pages(uint64_t bytes, int protection) {
  void* at = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) fail(hipErrorOutOfMemory, "the host has no room to map ", bytes, " bytes");
  return reinterpret_cast<uint64_t>(at);
}

const char* kind_name(const Block& block) {
  if (block.source == Block::Source::registered) return "registered host memory";
  switch (block.kind) {
    case Kind::device:
      return "device memory";
    case Kind::pinned:
      return block.managed ? "managed memory" : "pinned host memory";
    case Kind::code:
      return "code";
  }
  return "memory";
}

std::string block_text(const Block& block) {
  return text("allocation #", block.serial, " (", block.bytes, " bytes of ", kind_name(block),
              " at ", hex(block.base), ", device ", block.device, ")");
}

}  // namespace

void Allocator::map_large(Block& block) {
  const uint64_t align = block.bytes >= kHugePage ? kHugePage : kPage;
  const uint64_t body = round_up(block.bytes, kPage);
  block.map_bytes = body + align + kPage;  // a guard page after, at least one before
  block.map_base = map_pages(block.map_bytes, PROT_NONE);
  block.base = round_up(block.map_base + kPage, align);
  if (mprotect(reinterpret_cast<void*>(block.base), body, PROT_READ | PROT_WRITE) != 0) {
    munmap(reinterpret_cast<void*>(block.map_base), block.map_bytes);
    fail(hipErrorOutOfMemory, "the host has no room for ", block.bytes, " bytes");
  }
  if (align == kHugePage && block.bytes <= kHugePageLimit)
    madvise(reinterpret_cast<void*>(block.base), body, MADV_HUGEPAGE);
  try {
    ours_[block.map_base] = block.map_base + block.map_bytes;
  } catch (...) {
    munmap(reinterpret_cast<void*>(block.map_base), block.map_bytes);
    throw;
  }
}

void Allocator::map_small(Block& block) {
  const uint64_t size = round_up(block.bytes, kAlign);
  auto& rested = rested_[size];
  if (rested.size() > kRest) {
    block.base = rested.front();
    rested.pop_front();
    return;
  }
  if (slab_end_ - slab_at_ < size + 2 * kAlign) {
    const uint64_t slab = map_pages(kSlab, PROT_READ | PROT_WRITE);
    try {
      ours_[slab] = slab + kSlab;
    } catch (...) {
      munmap(reinterpret_cast<void*>(slab), kSlab);
      throw;
    }
    slab_at_ = slab;
    slab_end_ = slab + kSlab;
  }
  block.base = slab_at_ + kAlign;
  slab_at_ = block.base + size;
}

Block Allocator::allocate(const Request& request) {
  const std::lock_guard lock(mutex_);
  reclaim();
  uint64_t& used = used_[request.device];
  const uint64_t total = options().device_bytes;
  const uint64_t left = available_locked(request.device);
  if (request.kind != Kind::pinned && request.bytes > left) {
    const char* const why = options().host_bound
                                ? " free (the host's memory; HIPGEMM_EMULATOR_DEVICE_BYTES sets "
                                  "another size)"
                                : " free";
    fail(hipErrorOutOfMemory, request.bytes, " bytes asked of device ", request.device,
         ", which has ", left, " of ", total, why);
  }
  Block block;
  block.bytes = request.bytes;
  block.device = request.device;
  block.kind = request.kind;
  block.managed = request.managed;
  block.flags = request.flags;
  block.pool = request.pool;
  block.serial = next_serial_++;
  const bool small = request.kind != Kind::code && request.bytes <= kSmall;
  std::list<Dead> spare(1);
  small ? map_small(block) : map_large(block);
  try {
    // The host writes to managed memory without a call.
    if (block.kind == Kind::device && !block.managed) {
      emu::definedness::fresh(block.base, block.bytes);
    }
    live_[block.base] = block;
  } catch (...) {
    emu::definedness::gone(block.base);
    spare.front() = {block, 0};
    dead_.splice(dead_.end(), spare);
    throw;
  }
  spare_.splice(spare_.end(), spare);
  if (request.kind != Kind::code && request.bytes <= kPoisonLimit) {
    std::memset(reinterpret_cast<void*>(block.base), kPoison, block.bytes);
  }
  if (request.kind != Kind::pinned) used += block.bytes;
  changed();
  return block;
}

Block Allocator::find_base(uint64_t base) const {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(base);
  if (it == live_.end()) {
    fail(hipErrorInvalidValue, hex(base),
         " is not the start of an allocation: ", describe_locked(base, -1));
  }
  return it->second;
}

void Allocator::free(uint64_t base) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(base);
  if (it == live_.end() || it->second.source != Block::Source::ours) {
    fail(hipErrorInvalidValue, hex(base),
         " is not the start of an allocation: ", describe_locked(base, -1));
  }
  const Block block = it->second;
  emu::definedness::gone(base);
  live_.erase(it);
  if (block.kind != Kind::pinned) used_[block.device] -= block.bytes;
  changed();
  spare_.front() = {block, snapshots_given_};
  dead_.splice(dead_.end(), spare_, spare_.begin());
  try {
    freed_.push_back({block.base, block.bytes, block.serial, block.device});
    if (freed_.size() > kHistory) freed_.pop_front();
  } catch (const std::bad_alloc&) {  // a report has less detail
  }
  reclaim();
}

// A launch that took its snapshot before the free may still read and write the block, so its pages
// are released only after those snapshots. What there is no memory for is left for the next
// time.
void Allocator::reclaim() noexcept {
  uint64_t oldest = UINT64_MAX;  // snapshot in use
  for (const Published& p : published_) {
    if (!p.list.expired()) oldest = std::min(oldest, p.number);
  }
  for (auto it = dead_.begin(); it != dead_.end();) {
    bool buried = false;
    try {
      buried = it->snapshots < oldest && bury(*it);
    } catch (const std::bad_alloc&) {
    }
    it = buried ? dead_.erase(it) : std::next(it);
  }
}

bool Allocator::bury(const Dead& dead) {
  const Block& block = dead.block;
  if (!block.map_bytes) {
    rested_[round_up(block.bytes, kAlign)].push_back(block.base);
    std::memset(reinterpret_cast<void*>(block.base), kPoison, block.bytes);
    return true;
  }
  quarantine_.emplace_back(block.map_base, block.map_bytes);
  // Drops the pages but keeps the addresses, so that a use after free accesses no other data.
  if (mmap(reinterpret_cast<void*>(block.map_base), block.map_bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    quarantine_.pop_back();
    return false;
  }
  if (quarantine_.size() > kQuarantine) {
    const auto [old, bytes] = quarantine_.front();
    quarantine_.pop_front();
    munmap(reinterpret_cast<void*>(old), bytes);
    ours_.erase(old);
  }
  return true;
}

Block Allocator::register_host(uint64_t base, uint64_t bytes, int device, unsigned flags) {
  const std::lock_guard lock(mutex_);
  const auto next = live_.lower_bound(base);
  const bool hits_next = next != live_.end() && next->first < base + bytes;
  if (hits_next || find_locked(base)) {
    fail(hipErrorHostMemoryAlreadyRegistered, bytes, " bytes at ", hex(base), " overlap ",
         block_text(hits_next ? next->second : *find_locked(base)));
  }
  Block block;
  block.base = base;
  block.bytes = bytes;
  block.device = device;
  block.kind = Kind::pinned;
  block.flags = flags;
  block.source = Block::Source::registered;
  block.serial = next_serial_++;
  live_[base] = block;
  changed();
  return block;
}

void Allocator::unregister_host(uint64_t base) {
  const std::lock_guard lock(mutex_);
  const auto it = live_.find(base);
  if (it == live_.end() || it->second.source != Block::Source::registered) {
    fail(hipErrorHostMemoryNotRegistered, hex(base), " is not the start of a registered range");
  }
  live_.erase(it);
  changed();
}

const Block* Allocator::find_locked(uint64_t address) const {
  auto it = live_.upper_bound(address);
  if (it == live_.begin()) return nullptr;
  --it;
  const Block& block = it->second;
  // An empty block holds its own base, so that a zero-byte allocation can be freed and described.
  return address < block.end() || address == block.base ? &block : nullptr;
}

std::optional<Block> Allocator::find(uint64_t address) const {
  const std::lock_guard lock(mutex_);
  const Block* block = find_locked(address);
  return block ? std::optional<Block>(*block) : std::nullopt;
}

std::optional<Block> Allocator::check(uint64_t address, uint64_t bytes, const char* what) const {
  const std::lock_guard lock(mutex_);
  if (bytes > UINT64_MAX - address) {
    fail(hipErrorInvalidValue, what, ": ", bytes, " bytes at ", hex(address), " wrap around");
  }
  if (const Block* block = find_locked(address)) {
    if (address + bytes > block->end()) {
      fail(hipErrorInvalidValue, what, ": ", bytes, " bytes at ", hex(address), " reach ",
           address + bytes - block->end(), " bytes past the end of ", block_text(*block));
    }
    return *block;
  }
  const uint64_t end = address + bytes;
  const auto next = live_.lower_bound(address);
  if (next != live_.end() && next->first < end) {
    fail(hipErrorInvalidValue, what, ": ", bytes, " bytes at ", hex(address),
         " begin before, and reach into, ", block_text(next->second));
  }
  auto range = ours_.lower_bound(end);
  if (bytes && range != ours_.begin() && std::prev(range)->second > address) {
    fail(hipErrorInvalidValue, what, ": ", bytes, " bytes at ", hex(address), ": ",
         describe_locked(address, -1));
  }
  return std::nullopt;
}

bool Allocator::visible(const Block& block, int device) const {
  return block.device == device || block.kind == Kind::pinned ||
         (block.kind == Kind::device && (peers_[device] >> block.device & 1));
}

std::shared_ptr<const emu::AllocationList> Allocator::snapshot(int device) const {
  const std::lock_guard lock(mutex_);
  auto& cached = snapshots_[device];
  if (!cached) {
    auto list = std::make_shared<emu::AllocationList>();
    list->reserve(live_.size());
    for (const auto& [base, block] : live_) {
      if (block.bytes && visible(block, device)) list->push_back(block);
    }
    std::erase_if(published_, [](const Published& old) { return old.list.expired(); });
    published_.push_back({list, ++snapshots_given_});
    cached = std::move(list);
  }
  return cached;
}

void Allocator::changed() {
  for (auto& cached : snapshots_) cached.reset();
}

std::string Allocator::describe(uint64_t address, int device) const {
  const std::lock_guard lock(mutex_);
  return describe_locked(address, device);
}

std::string Allocator::describe_locked(uint64_t address, int device) const {
  if (const Block* block = find_locked(address)) {
    std::string result = text(address - block->base, " bytes into ", block_text(*block));
    if (device >= 0 && !visible(*block, device)) {
      result += text(", to which device ", device, " has no peer access");
    }
    return result;
  }
  for (auto it = freed_.rbegin(); it != freed_.rend(); ++it) {
    if (address < it->base || address >= it->base + it->bytes) continue;
    // Unless the range was allocated again since.
    const auto above = live_.lower_bound(it->base + it->bytes);
    const bool reused = above != live_.begin() && std::prev(above)->second.end() > it->base;
    if (!reused) {
      return text(address - it->base, " bytes into freed allocation #", it->serial, " (", it->bytes,
                  " bytes at ", hex(it->base), ", device ", it->device, ")");
    }
  }
  constexpr uint64_t kNear = uint64_t{1} << 20;
  const auto next = live_.upper_bound(address);
  const Block* before = next == live_.begin() ? nullptr : &std::prev(next)->second;
  const Block* after = next == live_.end() ? nullptr : &next->second;
  const uint64_t past = before ? address - before->end() : UINT64_MAX;
  const uint64_t ahead = after ? after->base - address : UINT64_MAX;
  if (past <= ahead && past < kNear) {
    return text(past, " bytes past the end of ", block_text(*before));
  }
  if (ahead < kNear) return text(ahead, " bytes before ", block_text(*after));
  return "no allocation near";
}

uint64_t Allocator::available(int device) const {
  const std::lock_guard lock(mutex_);
  return available_locked(device);
}

// Where devices share the host's memory, other devices' allocations count too.
uint64_t Allocator::available_locked(int device) const {
  const uint64_t total = options().device_bytes;
  if (!options().host_bound) return total - used_[device];
  uint64_t used = 0;
  for (const uint64_t bytes : used_) used += bytes;
  return total - std::min(used, total);
}

std::vector<Block> Allocator::blocks_of(int device) const {
  const std::lock_guard lock(mutex_);
  std::vector<Block> result;
  for (const auto& [base, block] : live_) {
    if (block.device == device) result.push_back(block);
  }
  return result;
}

bool Allocator::peer(int device, int owner) const {
  const std::lock_guard lock(mutex_);
  return peers_[device] >> owner & 1;
}

void Allocator::set_peer(int device, int owner, bool enabled) {
  const std::lock_guard lock(mutex_);
  const uint64_t bit = uint64_t{1} << owner;
  peers_[device] = enabled ? peers_[device] | bit : peers_[device] & ~bit;
  changed();
}

}  // namespace rt
