#include "check/definedness.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "check/request.hpp"
#include "core/definedness.hpp"

namespace emu::definedness {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<uint64_t, Shadow> live;  // by base
  std::shared_ptr<const Shadows> published;
  std::atomic<bool> any{false};
};
Registry& registry() {
  static Registry& r = *new Registry;
  return r;
}

// The shadow bytes of [address, address + bytes), as far as it is tracked.
template <class F>
void each_part(Registry& r, uint64_t address, uint64_t bytes, F f) {
  auto it = r.live.upper_bound(address);
  if (it != r.live.begin()) --it;
  for (; it != r.live.end() && it->first < address + bytes; ++it) {
    const uint64_t from = std::max(address, it->second.base);
    const uint64_t to = std::min(address + bytes, it->second.end());
    if (from < to) f(it->second.map.get() + (from - it->second.base), from, to - from);
  }
}

// Zero pages until written, so that huge allocations cost nothing.
std::shared_ptr<uint8_t> zero_pages(uint64_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  return {static_cast<uint8_t*>(p), [bytes](uint8_t* q) { munmap(q, bytes); }};
}

}  // namespace

bool followed() { return registry().any.load(std::memory_order_relaxed); }

void fresh(uint64_t address, uint64_t bytes) {
  if (!bytes || !(check::requested().checks & check::kUninit)) return;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  Shadow s{address, bytes, zero_pages(bytes)};
  if (!s.map) return;  // not tracked
  r.live[address] = std::move(s);
  r.any.store(true);
  r.published = nullptr;
}

void gone(uint64_t address) {
  if (!followed()) return;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (r.live.erase(address)) r.published = nullptr;
}

void written(uint64_t address, uint64_t bytes) {
  if (!followed()) return;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  each_part(r, address, bytes, [](uint8_t* p, uint64_t, uint64_t n) { std::memset(p, 0xff, n); });
}

void copied(uint64_t to, uint64_t from, uint64_t bytes) {
  if (!followed()) return;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  std::vector<uint8_t> state(bytes, 0xff);
  each_part(r, from, bytes, [&](uint8_t* p, uint64_t at, uint64_t n) {
    std::memcpy(state.data() + (at - from), p, n);
  });
  each_part(r, to, bytes, [&](uint8_t* p, uint64_t at, uint64_t n) {
    std::memcpy(p, state.data() + (at - to), n);
  });
}

void trust_all() {
  if (!followed()) return;
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  r.live.clear();
  r.any.store(false);
  r.published = nullptr;
}

std::shared_ptr<const Shadows> shadows() {
  Registry& r = registry();
  std::lock_guard lock(r.mutex);
  if (!r.published) {
    auto list = std::make_shared<Shadows>();
    for (const auto& [base, s] : r.live) list->push_back(s);
    r.published = std::move(list);
  }
  return r.published;
}

}  // namespace emu::definedness
