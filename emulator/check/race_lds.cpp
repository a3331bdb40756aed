#include "check/race_lds.hpp"

#include <algorithm>
#include <limits>

namespace emu::check {
namespace {

int32_t reference(AccessId id, uint32_t lane) { return static_cast<int32_t>(id << 6 | lane); }
// Not less than any lane's reference to `id`.
int32_t upto(AccessId id) { return reference(id, 63); }

// Whether any of `count` rows exceeds the limits.
template <size_t kColumns>
bool any_above(const int32_t* rows, size_t count, const int32_t* limit) {
  int32_t above[kColumns] = {};
  for (size_t r = 0; r < count; ++r)
    for (size_t c = 0; c < kColumns; ++c) above[c] |= rows[r * kColumns + c] > limit[c] ? -1 : 0;
  int32_t any = 0;
  for (const int32_t a : above) any |= a;
  return any;
}

}  // namespace

void LdsShadow::attach(uint32_t bytes, uint32_t waves) {
  const uint32_t before = bytes_, waves_before = waves_;
  bytes_ = (bytes + 15) / 16 * 16;
  waves_ = waves <= 4 ? 4 : waves <= 8 ? 8 : 16;
  if (bytes_ != before || waves_ != waves_before || shift_ != 4) {
    clear(4);
  }
}
void LdsShadow::start_group() { atomics_ = false; }

void LdsShadow::clear() { clear(shift_); }
void LdsShadow::clear(int shift) {
  shift_ = 0;  // until all is done: none that is in use
  written_.assign(bytes_ >> shift, 0);
  value_.assign(bytes_, 0);
  read_.assign(size_t{bytes_ >> shift} * waves_, 0);
  shift_ = shift;
  atomics_ = false;
}

void LdsShadow::refine(const AccessPart& part) {
  uint64_t bits = part.bytes;
  for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1) {
    const int l = __builtin_ctzll(lanes);
    bits |= part.address[l] | part.good[l];
  }
  const int shift = __builtin_ctzll(bits | 16);
  if (shift >= shift_) return;
  const size_t times = size_t{1} << (shift_ - shift);
  std::vector<int32_t> written, read;
  written.reserve(written_.size() * times);
  read.reserve(read_.size() * times);
  for (size_t u = 0; u < written_.size(); ++u) {
    written.insert(written.end(), times, written_[u]);
    for (size_t k = 0; k < times; ++k)
      read.insert(read.end(), &read_[u * waves_], &read_[u * waves_] + waves_);
  }
  written_ = std::move(written);
  read_ = std::move(read);
  shift_ = shift;
}

// f(unit, lane) for all units that the lanes access.
template <class F>
void LdsShadow::units(const AccessPart& part, F f) const {
  const int shift = shift_;
  if (part.lanes == kAllLanes && part.whole && part.bytes >> shift == 1) {
    for (uint32_t l = 0; l < kLanes; ++l) f(static_cast<uint32_t>(part.address[l]) >> shift, l);
    return;
  }
  for (uint64_t lanes = part.lanes; lanes; lanes &= lanes - 1) {
    const auto l = static_cast<uint32_t>(__builtin_ctzll(lanes));
    const uint32_t first = static_cast<uint32_t>(part.address[l]) >> shift;
    for (uint32_t k = 0; k < uint32_t{part.good[l]} >> shift; ++k) f(first + k, l);
  }
}

// f(offset in LDS, byte) for what lane `lane` stores to a unit; false as soon as f says so.
template <class F>
bool LdsShadow::each_byte(const AccessPart& part, uint32_t unit, uint32_t lane, StoredData stored,
                          F f) const {
  const uint32_t begin = unit << shift_;
  for (uint32_t at = begin; at < begin + (1u << shift_); ++at) {
    const uint32_t n = at - static_cast<uint32_t>(part.address[lane]);
    const uint32_t dword = stored.data->data[part.first_row + n / 4][lane];
    if (!f(at, static_cast<uint8_t>(dword >> (8 * (n % 4) + (stored.high ? 16 : 0))))) return false;
  }
  return true;
}

std::optional<Conflict> LdsShadow::access(const Order& order, uint32_t wave, AccessId id,
                                          const AccessPart& part, bool dma, bool atomic,
                                          StoredData stored, std::optional<Conflict>& same) {
  refine(part);
  // A fast test that finds every conflict, with a few false positives.
  int32_t* const written = written_.data();
  int32_t* const read = read_.data();
  const size_t waves = waves_;
  const int32_t mine = reference(id, 0);
  int32_t latest = 0;
  bool suspicious;
  if (part.stores) {
    // Of each wave, the last read that this comes after.
    int32_t limit[kMaxWaves];
    for (uint32_t w = 0; w < waves; ++w) limit[w] = upto(order.before(wave, Counter::lds, w));
    // The wave's own reads: LDS instructions take effect in order, DMA is not ordered with them.
    limit[wave] =
        dma ? upto(order.landed(wave, Counter::lds)) : std::numeric_limits<int32_t>::max();
    int32_t above[4] = {};
    units(part, [&](uint32_t u, uint32_t) {
      latest = std::max(latest, written[u]);
      const int32_t* const r = read + u * waves;
      for (size_t w = 0; w < waves; w += 4)
        for (size_t k = 0; k < 4; ++k) above[k] |= r[w + k] > limit[w + k] ? -1 : 0;
    });
    suspicious = (above[0] | above[1] | above[2] | above[3]) || latest > upto(order.ordered());
    if (suspicious)
      if (auto conflict = find(order, wave, part, dma, atomic, stored, same)) return conflict;
    if (atomic)
      units(part, [&](uint32_t u, uint32_t l) { read[u * waves + wave] = mine + l; });
    else
      units(part, [&](uint32_t u, uint32_t l) { written[u] = mine + l; });
    if (stored.data)
      units(part, [&](uint32_t u, uint32_t l) {
        each_byte(part, u, l, stored, [&](uint32_t at, uint8_t x) { return value_[at] = x, true; });
      });
    atomics_ |= atomic;
    return {};
  }
  units(part, [&](uint32_t u, uint32_t l) {
    latest = std::max(latest, written[u]);
    read[u * waves + wave] = mine + static_cast<int32_t>(l);
  });
  suspicious = atomics_ || latest > upto(order.ordered());
  return suspicious ? find(order, wave, part, dma, atomic, {}, same) : std::nullopt;
}

bool LdsShadow::quick_read(const Order& order, uint32_t wave, AccessId id, const uint32_t* address,
                           uint32_t offset, uint32_t bytes) {
  if (atomics_ || bytes > bytes_) return false;
  const auto limit = static_cast<int32_t>(bytes_ - bytes);
  uint32_t bits = bytes;
  int32_t beyond = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t a = address[l] + offset;
    bits |= a;
    beyond |= static_cast<int32_t>(a) > limit ? -1 : 0;
  }
  if (beyond || bits >> 31 || (bits & ((1u << shift_) - 1))) return false;
  const int32_t* const written = written_.data();
  int32_t* const read = read_.data() + wave;
  const int shift = shift_;
  const size_t waves = waves_;
  const int32_t mine = reference(id, 0), ordered = upto(order.ordered());
  bool suspicious = false;
  if (bytes >> shift == 1) {
    for (int l = 0; l < kLanes; ++l) {
      const uint32_t u = (address[l] + offset) >> shift;
      suspicious |= written[u] > ordered;
      read[u * waves] = mine + l;
    }
  } else {
    for (int l = 0; l < kLanes; ++l) {
      const uint32_t u = (address[l] + offset) >> shift;
      for (uint32_t k = 0; k < bytes >> shift; ++k) {
        suspicious |= written[u + k] > ordered;
        read[(u + k) * waves] = mine + l;
      }
    }
  }
  return !suspicious;
}

bool LdsShadow::quick_dma(const Order& order, uint32_t wave, AccessId id, uint64_t start) {
  const uint64_t end = start + 16 * kLanes;
  if (end > bytes_ || (start & ((1u << shift_) - 1))) return false;
  const size_t first = start >> shift_, count = size_t{16 * kLanes} >> shift_, waves = waves_;
  int32_t limit[kMaxWaves];
  for (uint32_t w = 0; w < waves; ++w) limit[w] = upto(order.before(wave, Counter::lds, w));
  limit[wave] = upto(order.landed(wave, Counter::lds));
  const int32_t ordered = upto(order.ordered());
  int32_t* const written = written_.data() + first;
  const int32_t* const read = read_.data() + first * waves;
  int32_t latest = 0;
  for (size_t u = 0; u < count; ++u) latest |= written[u] > ordered ? -1 : 0;
  const bool later = waves == 4   ? any_above<4>(read, count, limit)
                     : waves == 8 ? any_above<8>(read, count, limit)
                                  : any_above<16>(read, count, limit);
  if (latest || later) return false;
  const int each = 4 - shift_;
  for (size_t u = 0; u < count; ++u)
    written[u] = reference(id, 0) + static_cast<int32_t>(u >> each);
  return true;
}

std::optional<Conflict> LdsShadow::find(const Order& order, uint32_t wave, const AccessPart& part,
                                        bool dma, bool atomic, StoredData stored,
                                        std::optional<Conflict>& same) const {
  std::optional<Conflict> found;
  const auto unordered = [&](uint32_t unit, uint32_t lane, int32_t other, bool stores) {
    const AccessId id = static_cast<uint32_t>(other) >> 6;
    const Issued* x = order.find(id);
    if (!x || (atomic && x->atomic)) return;
    const bool by_dma = x->side->shape.to_lds;
    const Counter counter = by_dma ? Counter::vm : Counter::lds;
    const bool ordered = x->wave != wave ? id <= order.before(wave, counter, x->wave)
                                         : by_dma == dma || id <= order.landed(wave, counter);
    if (ordered) return;
    const Conflict conflict{
        *x, id, static_cast<uint32_t>(other) & 63, lane, uint64_t{unit} << shift_, stores};
    const bool both_store = stored.data && stores && !by_dma && !x->atomic && x->wave != wave;
    const bool equal =
        both_store && each_byte(part, unit, lane, stored,
                                [&](uint32_t at, uint8_t b) { return value_[at] == b; });
    (equal ? same : found) = conflict;
  };
  units(part, [&](uint32_t u, uint32_t l) {
    if (found) return;
    unordered(u, l, written_[u], true);
    if (!part.stores && !atomics_) return;
    for (uint32_t w = 0; w < waves_ && !found; ++w) {
      const int32_t r = read_[size_t{u} * waves_ + w];
      const Issued* x = order.find(static_cast<uint32_t>(r) >> 6);
      if (x && (part.stores || x->atomic)) unordered(u, l, r, x->atomic);
    }
  });
  return found;
}

}  // namespace emu::check
