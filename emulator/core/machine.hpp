// A launch while it runs: what all its workgroups share, and one workgroup on one host thread.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/launch.hpp"
#include "core/memory_map.hpp"
#include "core/observer.hpp"
#include "core/options.hpp"
#include "core/program.hpp"
#include "core/tally.hpp"
#include "core/wave.hpp"

namespace emu {

inline constexpr uint32_t kMaxWaves = 16;

struct LaunchContext {
  const Launch& launch;
  std::shared_ptr<Program> program;
  std::shared_ptr<const AllocationList> allocations;
  const Inst* entry = nullptr;
  Options options;
  uint32_t lds_bytes = 0;
  uint32_t waves_per_group = 0;
  alignas(64) uint8_t dispatch_packet[64] = {};
  // The arguments, in a copy that is whole cache lines: compilers load past their end.
  std::span<uint8_t> kernarg;
  std::unique_ptr<uint8_t[]> kernarg_memory;
  std::unique_ptr<Observer> observer;

  std::atomic<uint64_t> next_group{0};
  std::atomic<uint64_t> executed{0};
  std::atomic<bool> stop{false};
  std::atomic<uint32_t> noted{0};  // kinds of notes that this launch has added
  std::mutex fault_mutex;
  std::optional<Fault> fault;
  std::vector<std::string> findings;  // of checks, until there are as many as the options allow
  std::set<std::pair<std::string, const Inst*>> found;  // check and instruction of each

  std::chrono::steady_clock::time_point until;  // no workgroup begins later

  explicit LaunchContext(const Launch& l) : launch(l) {}
  void report(FaultKind kind, std::string message);
  void conclude();  // makes findings the fault of the launch, which has ended
  // The same where memory may have run out: without the text if there is none for it.
  void report_failure(const char* what, const std::exception& error) noexcept;
};

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};
template <class T>
using Buffer = std::unique_ptr<T[], AlignedFree>;

// One workgroup's waves and LDS; reused for one workgroup after the other.
struct Workgroup {
  std::array<uint32_t, 3> id{};
  std::vector<Wave*> waves;
  uint8_t* lds = nullptr;
  void* observed = nullptr;  // the observer's own
};

// What a host thread caches between workgroups and launches.
class Engine {
 public:
  // Runs workgroups of the launch until there are none left, or its time is over.
  void work(LaunchContext& context, Counters& counters);
  // Prepares for a launch.
  void prepare(LaunchContext& context);

 private:
  void run_groups(LaunchContext& context, Counters& counters);
  void start_group(LaunchContext& context, uint64_t number);
  void start_wave(LaunchContext& context, Wave& w, uint32_t index);
  void run_group(LaunchContext& context);
  uint64_t run_wave(Wave& w, uint64_t fuel);
  uint64_t next_turn(const Options& options);

  Workgroup group_;
  std::vector<Wave*> order_;
  uint64_t random_ = 0;  // state of the random sequence for wave orders
  Buffer<uint8_t> lds_, registers_, pending_, scratch_;
  size_t lds_size_ = 0, registers_size_ = 0, pending_size_ = 0, scratch_size_ = 0;
  std::vector<Buffer<Wave>> waves_;
  Runs runs_;
};

}  // namespace emu
