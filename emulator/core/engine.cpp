// Starts waves and runs them, barrier to barrier.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <new>
#include <thread>

#include "core/machine.hpp"
#include "core/options.hpp"
#include "core/queues.hpp"

namespace emu {
namespace {

// Instructions of a wave's time slice, so that a wave can wait for another.
constexpr uint64_t kTurn = 1'000'000;

// The contents of uninitialized registers and LDS: a signalling pattern, NaN as f32 and as
// either bf16 half, far out of range as an address or index.
constexpr uint32_t kPoison = 0xffbaffba;

template <class T>
void reserve(Buffer<T>& buffer, size_t& size, size_t needed) {
  if (needed <= size) return;
  size = 0;
  const size_t bytes = (needed * sizeof(T) + 4095) / 4096 * 4096;
  buffer.reset(static_cast<T*>(std::aligned_alloc(4096, bytes)));
  if (!buffer) throw std::bad_alloc();
  size = needed;
}

uint32_t scratch_per_lane(const KernelDescriptor& d) {
  uint32_t bytes = (d.private_segment_bytes + 3) / 4 * 4;
  if (d.properties & (1u << 11)) bytes = std::max<uint32_t>(bytes + 16384, 32768);  // dynamic stack
  return bytes;
}

}  // namespace

void Engine::prepare(LaunchContext& context) {
  const uint32_t n = context.waves_per_group;
  const KernelDescriptor& d = context.launch.kernel->descriptor;
  const size_t registers = size_t{context.program->vgprs()} * kLanes * 4;
  const size_t scratch = size_t{scratch_per_lane(d)} * kLanes;
  reserve(lds_, lds_size_, context.lds_bytes + 64);
  reserve(registers_, registers_size_, n * registers);
  reserve(pending_, pending_size_, n * kPendingSlots * sizeof(Pending));
  reserve(scratch_, scratch_size_, n * scratch + 64);
  while (waves_.size() < n) {
    void* p = std::aligned_alloc(4096, (sizeof(Wave) + 4095) / 4096 * 4096);
    if (!p) throw std::bad_alloc();
    Buffer<Wave> wave(new (p) Wave);
    waves_.push_back(std::move(wave));
  }
  group_.waves.clear();
  group_.lds = lds_.get();
  for (uint32_t i = 0; i < n; ++i) {
    Wave& w = waves_[i][0];
    group_.waves.push_back(&w);
    w.v = reinterpret_cast<uint32_t*>(registers_.get() + i * registers);
    w.vgprs = context.program->vgprs();
    w.pending = reinterpret_cast<Pending*>(pending_.get()) + size_t{i} * kPendingSlots;
    w.scratch = scratch_.get() + i * scratch;
    w.scratch_bytes = scratch_per_lane(d);
    w.lds = lds_.get();
    w.lds_bytes = context.lds_bytes;
    w.late = context.options.memory == MemoryMode::late;
    w.launch = &context;
    w.group = &group_;
    w.index = i;
    w.memory_begin = w.memory_end = 0;
    w.constants_copied = context.program->copy_constants(w.s + kSlotConstants, 0);
    w.set64(kSlotSharedBase, kSharedAperture);
    w.set64(kSlotSharedLimit, kSharedAperture | 0xffffffff);
    w.set64(kSlotPrivateBase, kPrivateAperture);
    w.set64(kSlotPrivateLimit, kPrivateAperture | 0xffffffff);
    w.set64(kSlotZero, 0);
  }
  if (context.observer) context.observer->attach(group_);
}

void Engine::start_group(LaunchContext& context, uint64_t number) {
  const auto& grid = context.launch.workgroups;
  group_.id = {static_cast<uint32_t>(number % grid[0]),
               static_cast<uint32_t>(number / grid[0] % grid[1]),
               static_cast<uint32_t>(number / grid[0] / grid[1])};
  std::fill_n(reinterpret_cast<uint32_t*>(group_.lds), context.lds_bytes / 4, kPoison);
  if (context.observer) context.observer->group_started(group_);
  for (uint32_t i = 0; i < group_.waves.size(); ++i) {
    start_wave(context, *group_.waves[i], i);
    group_.waves[i]->random = context.options.memory_seed * 0x10001 + number * kMaxWaves + i;
  }
  random_ = context.options.wave_seed * 0x10001 + number;
}

// The registers a wave starts with (LLVM AMDGPUUsage, "Initial Kernel Execution State").
void Engine::start_wave(LaunchContext& context, Wave& w, uint32_t index) {
  const Launch& launch = context.launch;
  const KernelDescriptor& d = launch.kernel->descriptor;
  std::fill_n(w.s, 128, kPoison);
  std::fill_n(w.v, size_t{w.vgprs} * kLanes, kPoison);

  const auto kernarg = reinterpret_cast<uint64_t>(context.kernarg.data());
  uint32_t next = 0;
  const auto put = [&](uint64_t value, int dwords) {
    for (int i = 0; i < dwords && next < 104; ++i)
      w.s[next++] = i < 2 ? static_cast<uint32_t>(value >> (32 * i)) : 0;
  };
  const auto scratch = reinterpret_cast<uint64_t>(w.scratch);
  if (d.properties & 1) {  // private segment buffer: a swizzled descriptor over the wave's scratch
    put(scratch, 2);
    put(uint64_t{0x00e00000} << 32 | 0xffffffff, 2);
  }
  if (d.properties & 2) put(reinterpret_cast<uint64_t>(context.dispatch_packet), 2);
  if (d.properties & 4) put(0, 2);  // queue pointer: there is no queue
  if (d.properties & 8) put(kernarg, 2);
  if (d.properties & 16) put(0, 2);
  if (d.properties & 32) put(scratch, 2);
  if (d.properties & 64) put(w.scratch_bytes, 1);
  const uint32_t preload = d.kernarg_preload & 127, preload_at = d.kernarg_preload >> 7;
  for (uint32_t i = 0; i < preload; ++i) {
    uint32_t value = 0;
    const size_t at = size_t{preload_at + i} * 4;
    if (at + 4 <= context.kernarg.size()) std::memcpy(&value, context.kernarg.data() + at, 4);
    put(value, 1);
  }
  next = std::max(next, (d.rsrc2 >> 1) & 31);
  for (int axis = 0; axis < 3; ++axis)
    if (d.rsrc2 & (1u << (7 + axis))) put(group_.id[axis], 1);
  if (d.rsrc2 & (1u << 10)) put(static_cast<uint32_t>(group_.waves.size()), 1);

  const auto& size = launch.workgroup_size;
  const uint64_t total = uint64_t{size[0]} * size[1] * size[2];
  const uint64_t first = uint64_t{index} * kLanes;
  const uint64_t live = std::min<uint64_t>(kLanes, total - first);
  for (uint32_t l = 0; l < live; ++l) {
    const auto t = static_cast<uint32_t>(first + l);
    w.v[l] = t % size[0] | (t / size[0] % size[1]) << 10 | (t / size[0] / size[1]) << 20;
  }
  w.set64(kSlotExec, live == kLanes ? kAllLanes : (uint64_t{1} << live) - 1);
  w.set64(kSlotFlatScratch, scratch);
  w.scc = 0;
  w.mode = ((d.rsrc1 >> 12) & 0xff) | ((d.rsrc1 >> 21) & 1) << 8 | ((d.rsrc1 >> 23) & 1) << 9 |
           ((d.rsrc1 >> 26) & 1) << 23;
  w.state = WaveState::running;
  w.pc = context.entry;
  w.vm = w.ds = w.smem = Queue{};
  w.smem_weight = 0;
  w.free_count = kPendingSlots;
  for (int i = 0; i < kPendingSlots; ++i) w.free_slots[i] = static_cast<uint8_t>(i);
  if (context.observer) context.observer->wave_started(w, next);
}

uint64_t Engine::run_wave(Wave& w, uint64_t fuel) {
  const Inst* i = w.pc;
  const Inst* first = i;  // of the run since the last jump
  const ptrdiff_t step = w.launch->observer ? 2 : 1;
  uint64_t left = fuel;
  w.pc = nullptr;
  do {
    const Inst* const last = i;
    i = i->fn(w, i);
    --left;
    if (i != last + step || !left) [[unlikely]] {
      runs_.add(first, last);
      first = i;
    }
  } while (i && left);
  if (i) w.pc = i;  // its time slice is over
  return fuel - left;
}

// Puts the waves in order for the next round; the instructions that each may execute in it.
uint64_t Engine::next_turn(const Options& options) {
  order_ = group_.waves;
  if (options.waves == WaveOrder::reverse) std::reverse(order_.begin(), order_.end());
  if (options.waves == WaveOrder::lockstep) return 1;
  if (options.waves != WaveOrder::random) return kTurn;
  for (size_t n = order_.size(); n > 1; --n)
    std::swap(order_[n - 1], order_[next_random(random_) % n]);
  return 1 + next_random(random_) % 256;
}

void Engine::run_group(LaunchContext& context) {
  for (;;) {
    uint32_t waiting = 0, ended = 0;
    const uint64_t turn = next_turn(context.options);
    const uint64_t rarely = context.options.waves == WaveOrder::lockstep ? 4096 : 64;
    for (Wave* w : order_) {
      if (w->state == WaveState::running) {
        const uint64_t n = run_wave(*w, turn);
        // Operations in flight complete even without a wait.
        if (w->pc && w->state == WaveState::running &&
            (turn == kTurn || next_random(random_) % rarely == 0) &&
            !(wait_vm(*w, 0) && wait_lgkm(*w, 0)))
          return;
        const uint64_t before = context.executed.fetch_add(n, std::memory_order_relaxed);
        if (context.stop.load(std::memory_order_relaxed)) return;
        if (before + n > context.options.budget) {
          fault(*w, w->pc, FaultKind::launch_failure,
                "the instruction budget (HIPGEMM_EMULATOR_BUDGET) is used up");
          return;
        }
      }
      waiting += w->state == WaveState::barrier;
      ended += w->state == WaveState::ended;
    }
    if (ended == group_.waves.size()) {
      if (context.observer) context.observer->group_ended(group_);
      return;
    }
    if (waiting + ended == group_.waves.size()) {  // ended waves count as arrived
      if (context.observer && !context.observer->barrier_passed(group_)) return;
      for (Wave* w : group_.waves)
        if (w->state == WaveState::barrier) w->state = WaveState::running;
    }
  }
}

void Engine::work(LaunchContext& context, Counters& counters) {
  try {
    run_groups(context, counters);
  } catch (...) {
    runs_.drain([](const Inst*, const Inst*, uint64_t) {});
    throw;
  }
}

void Engine::run_groups(LaunchContext& context, Counters& counters) {
  const auto& grid = context.launch.workgroups;
  const uint64_t groups = uint64_t{grid[0]} * grid[1] * grid[2];
  const bool hurries = context.until != Execution::Time::max();
  while (!context.stop.load(std::memory_order_relaxed)) {
    const uint64_t number = context.next_group.fetch_add(1, std::memory_order_relaxed);
    if (number >= groups) break;
    const uint64_t nth = nth_workgroup(context.options, number, groups);
    if (context.observer && !context.observer->runs(nth)) continue;
    start_group(context, nth);
    run_group(context);
    ++counters.workgroups;
    counters.waves += group_.waves.size();
    if (hurries && std::chrono::steady_clock::now() >= context.until) break;
  }
  runs_.drain([&](const Inst* first, const Inst* last, uint64_t times) {
    context.program->tally(first, last, times, counters);
  });
}

namespace {

// Engines are pooled and acquired by host threads, to reuse their memory.
class AcquiredEngine {
 public:
  AcquiredEngine() {
    Pool& p = pool();
    std::lock_guard lock(p.mutex);
    if (p.idle.empty()) {
      p.idle.reserve(p.engines + 1);  // so that releasing it needs no memory
      p.idle.push_back(std::make_unique<Engine>());
      ++p.engines;
    }
    engine_ = std::move(p.idle.back());
    p.idle.pop_back();
  }
  ~AcquiredEngine() {
    Pool& p = pool();
    std::lock_guard lock(p.mutex);
    p.idle.push_back(std::move(engine_));
  }
  AcquiredEngine(const AcquiredEngine&) = delete;
  Engine* operator->() const { return engine_.get(); }

 private:
  struct Pool {
    std::mutex mutex;
    std::vector<std::unique_ptr<Engine>> idle;
    size_t engines = 0;
  };
  // Never destroyed: a launch may still run while the process exits.
  static Pool& pool() {
    static auto& p = *new Pool;
    return p;
  }
  std::unique_ptr<Engine> engine_;
};

std::optional<Fault> refuse(const Launch& launch) {
  const auto& kernel = *launch.kernel;
  const auto no = [&](std::string why) {
    return Fault{FaultKind::out_of_resources, "kernel " + kernel.name + ": " + why};
  };
  const auto& s = launch.workgroup_size;
  const uint64_t threads = uint64_t{s[0]} * s[1] * s[2];
  if (threads == 0 || threads > kMaxWaves * kLanes || threads > kernel.max_workgroup_size)
    return no("a workgroup of " + std::to_string(threads) + " work-items; the kernel takes 1 to " +
              std::to_string(std::min(kernel.max_workgroup_size, kMaxWaves * kLanes)));
  const uint64_t lds = uint64_t{kernel.descriptor.group_segment_bytes} + launch.dynamic_lds_bytes;
  if (lds > arch().lds_bytes)
    return no("needs " + std::to_string(lds) + " bytes of LDS; a workgroup has at most " +
              std::to_string(arch().lds_bytes));
  if (scratch_per_lane(kernel.descriptor) > (1u << 20))
    return no("needs " + std::to_string(kernel.descriptor.private_segment_bytes) +
              " bytes of scratch per work-item; the emulator gives at most 1048576");
  // A SIMD has 512 registers per lane and every wave of a workgroup must be resident.
  const uint64_t vgprs = ((kernel.descriptor.rsrc1 & 63) + 1) * 8;
  const uint64_t per_simd = ((threads + kLanes - 1) / kLanes + 3) / 4;
  if (vgprs * per_simd > 512)
    return no(std::to_string((threads + kLanes - 1) / kLanes) + " waves of " +
              std::to_string(vgprs) + " vector registers do not fit a compute unit");
  return std::nullopt;
}

void copy_arguments(LaunchContext& c) {
  const auto& from = c.launch.kernarg;
  const size_t bytes = (from.size() + 63) / 64 * 64;
  c.kernarg_memory = std::make_unique<uint8_t[]>(bytes + 128);
  const auto start = reinterpret_cast<uintptr_t>(c.kernarg_memory.get());
  c.kernarg = {c.kernarg_memory.get() + (128 - start % 128) % 128, bytes};
  std::fill(c.kernarg.begin(), c.kernarg.end(), uint8_t{0xba});
  std::copy(from.begin(), from.end(), c.kernarg.begin());
}

void fill_packet(LaunchContext& c) {
  const Launch& l = c.launch;
  const auto put = [&](size_t at, auto value) {
    std::memcpy(c.dispatch_packet + at, &value, sizeof value);
  };
  put(2, uint16_t{3});
  for (size_t i = 0; i < 3; ++i) {
    put(4 + 2 * i, static_cast<uint16_t>(l.workgroup_size[i]));
    put(12 + 4 * i, static_cast<uint32_t>(uint64_t{l.workgroups[i]} * l.workgroup_size[i]));
  }
  put(24, l.kernel->descriptor.private_segment_bytes);
  put(28, l.kernel->descriptor.group_segment_bytes + l.dynamic_lds_bytes);
  put(40, reinterpret_cast<uint64_t>(c.kernarg.data()));
}

}  // namespace

struct Execution::State {
  // The work of one host thread.
  struct Worker {
    std::optional<AcquiredEngine> engine;
    Counters counters;
  };

  LaunchContext context;
  Counters counters;
  std::vector<Worker> workers;
  bool begun = false, over = false;

  explicit State(const Launch& launch) : context(launch) {}

  void begin();
  void work(size_t worker) noexcept;
  void work_on_all();
  bool all_taken() const {
    const auto& grid = context.launch.workgroups;
    return context.next_group.load() >= uint64_t{grid[0]} * grid[1] * grid[2];
  }
};

void Execution::State::begin() {
  begun = true;
  const Launch& launch = context.launch;
  ++counters.launches;
  if (auto refused = refuse(launch)) {
    context.report(refused->kind, std::move(refused->message));
    return;
  }
  const Options& options = context.options = read_options();
  std::string error = options.error;
  if (error.empty()) context.observer = make_observer(context, error);
  if (!error.empty()) {
    context.report(FaultKind::launch_failure, std::move(error));
    return;
  }
  context.program = program_of(*launch.kernel, context.observer != nullptr);
  context.allocations = launch.memory->snapshot();
  // Firmware that preloads arguments skips the code that loads them otherwise.
  const bool preloads = launch.kernel->descriptor.kernarg_preload & 127;
  context.entry = context.program->at(launch.kernel->entry + (preloads ? 256 : 0));
  context.lds_bytes =
      (launch.kernel->descriptor.group_segment_bytes + launch.dynamic_lds_bytes + 3) / 4 * 4;
  const auto& s = launch.workgroup_size;
  context.waves_per_group = (s[0] * s[1] * s[2] + kLanes - 1) / kLanes;
  copy_arguments(context);
  fill_packet(context);
  const auto& grid = launch.workgroups;
  const uint64_t groups = uint64_t{grid[0]} * grid[1] * grid[2];
  workers = std::vector<Worker>(static_cast<size_t>(std::min<uint64_t>(options.threads, groups)));
}

void Execution::State::work(size_t worker) noexcept {
  Worker& w = workers[worker];
  try {
    if (all_taken()) return;
    if (!w.engine) {
      w.engine.emplace();
      (*w.engine)->prepare(context);
    }
    (*w.engine)->work(context, w.counters);
  } catch (const std::exception& error) {
    context.report_failure("host memory", error);
  }
}

void Execution::State::work_on_all() {
  // In any case, the helpers that have started end first.
  struct Helpers {
    std::vector<std::thread> threads;
    ~Helpers() {
      for (std::thread& t : threads) t.join();
    }
  } helpers;
  try {
    helpers.threads.reserve(workers.size());
    for (size_t t = 1; t < workers.size(); ++t)
      helpers.threads.emplace_back([this, t] { work(t); });
  } catch (const std::exception& error) {
    context.report_failure("host threads", error);
    return;
  }
  if (!workers.empty()) work(0);
}

Execution::Execution(const Launch& launch) : state_(std::make_unique<State>(launch)) {}
Execution::~Execution() = default;

bool Execution::go_on(Time until) {
  State& s = *state_;
  if (s.over) return true;
  const auto start = std::chrono::steady_clock::now();
  s.context.until = until;
  try {
    if (!s.begun) s.begin();
    if (!s.context.stop) s.work_on_all();
    s.over = s.context.stop || s.all_taken();
    if (s.over) {
      for (const State::Worker& w : s.workers) s.counters += w.counters;
      if (s.context.observer) s.context.observer->launch_ended(s.counters);
      s.context.conclude();
      s.workers.clear();  // engines are released
    }
  } catch (const std::exception& error) {
    s.context.report_failure("host memory", error);
    s.over = true;
  }
  s.counters.nanoseconds += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count());
  return s.over;
}

const std::optional<Fault>& Execution::fault() const { return state_->context.fault; }
const Counters& Execution::counters() const { return state_->counters; }

}  // namespace emu
