// All memory that a device may access: live blocks, their addresses, and recently freed ones.
// One address space for all devices; a device can access its own memory, pinned memory, and that of
// devices to which it has peer access.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/memory_map.hpp"

namespace rt {

constexpr int kMaxDevices = 64;

struct Block : emu::Allocation {
  enum class Source : uint8_t { ours, registered };  // registered: the caller's own memory, pinned
  Source source = Source::ours;
  bool managed = false;
  unsigned flags = 0;
  uint64_t pool = 0;                     // of hipMallocAsync: identity of the pool
  uint64_t map_base = 0, map_bytes = 0;  // the mapping of a large block; 0: from a slab
};

struct Request {
  uint64_t bytes = 0;
  int device = 0;
  emu::Allocation::Kind kind = emu::Allocation::Kind::device;
  bool managed = false;
  unsigned flags = 0;
  uint64_t pool = 0;
};

class Allocator {
 public:
  // Fresh device memory is filled with 0xff (NaN in every floating-point format) up to
  // kPoisonLimit; larger blocks are zero. Code is always zero. Throws Error.
  Block allocate(const Request& request);
  // The block that begins at `base`. Throws Error, which says what the address is instead.
  Block find_base(uint64_t base) const;
  void free(uint64_t base);

  Block register_host(uint64_t base, uint64_t bytes, int device, unsigned flags);
  void unregister_host(uint64_t base);

  // The live block that holds the address.
  std::optional<Block> find(uint64_t address) const;
  // Checks [address, address + bytes): wholly inside one live block (which is returned), or
  // wholly outside all memory of ours (the caller's pageable memory: nothing). Throws Error.
  std::optional<Block> check(uint64_t address, uint64_t bytes, const char* what) const;

  std::shared_ptr<const emu::AllocationList> snapshot(int device) const;
  std::string describe(uint64_t address, int device) const;

  uint64_t available(int device) const;
  std::vector<Block> blocks_of(int device) const;

  bool peer(int device, int owner) const;
  void set_peer(int device, int owner, bool enabled);

 private:
  struct Freed {
    uint64_t base, bytes, serial;
    int device;
  };
  struct Dead {  // waits until no launch can still access it
    Block block;
    uint64_t snapshots = 0;  // that existed by then
  };
  struct Published {
    std::weak_ptr<const emu::AllocationList> list;
    uint64_t number;
  };

  void map_large(Block& block);
  void map_small(Block& block);
  void reclaim() noexcept;
  bool bury(const Dead& dead);
  bool visible(const Block& block, int device) const;
  uint64_t available_locked(int device) const;
  const Block* find_locked(uint64_t address) const;
  std::string describe_locked(uint64_t address, int device) const;
  void changed();

  mutable std::mutex mutex_;
  std::map<uint64_t, Block> live_;
  std::map<uint64_t, uint64_t> ours_;  // every range mapped by us, guard pages included: base, end
  std::deque<Freed> freed_;            // newest last
  std::list<Dead> dead_;
  std::list<Dead> spare_;  // one for each block of ours, so that freeing it needs no memory
  std::deque<std::pair<uint64_t, uint64_t>> quarantine_;  // reserved, no access: base, bytes
  uint64_t next_serial_ = 1;
  std::array<uint64_t, kMaxDevices> used_{};
  std::array<uint64_t, kMaxDevices> peers_{};  // bit mask of owners

  // Small blocks come from slabs. A freed one stays in its class's queue before it is used again.
  uint64_t slab_at_ = 0, slab_end_ = 0;
  std::unordered_map<uint64_t, std::deque<uint64_t>> rested_;

  mutable std::array<std::shared_ptr<const emu::AllocationList>, kMaxDevices> snapshots_;
  mutable std::vector<Published> published_;
  mutable uint64_t snapshots_given_ = 0;
};

// What one device can access.
class DeviceMemory final : public emu::MemoryMap {
 public:
  DeviceMemory(const Allocator& allocator, int device) : allocator_(allocator), device_(device) {}
  std::shared_ptr<const emu::AllocationList> snapshot() const override {
    return allocator_.snapshot(device_);
  }
  std::string describe(uint64_t address) const override {
    return allocator_.describe(address, device_);
  }

 private:
  const Allocator& allocator_;
  int device_;
};

}  // namespace rt
