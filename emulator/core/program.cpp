#include "core/program.hpp"

#include <algorithm>
#include <bit>
#include <set>
#include <utility>

#include "core/modal.hpp"
#include "core/mutant.hpp"
#include "core/observer.hpp"

namespace emu {
namespace {

const Inst* illegal(Wave& w, const Inst* i) {
  return fault(w, i, FaultKind::illegal_instruction, nullptr);
}

const Inst* outside(Wave& w, const Inst* i) {
  return fault(w, i, FaultKind::illegal_address, "instruction fetch outside the code");
}

// A jump to code that does not follow in the batch.
const Inst* go_on(Wave&, const Inst* i) { return i->target; }

// Writes SCC, VCCZ and EXECZ to the slots that scalar operands are read from.
const Inst* fill_specials(Wave& w, const Inst* i) {
  w.s[kSlotScc] = w.scc;
  w.s[kSlotVccz] = w.vcc() == 0;
  w.s[kSlotExecz] = w.exec() == 0;
  return i + 1;
}

uint64_t float_constant(Operand o, const OperandType& t) {
  static constexpr double values[] = {
      0.5, -0.5, 1.0, -1.0, 2.0, -2.0, 4.0, -4.0, 0.15915494309189532};
  static constexpr uint16_t halves[] = {0x3800, 0xb800, 0x3c00, 0xbc00, 0x4000,
                                        0xc000, 0x4400, 0xc400, 0x3118};
  const int i = o - 240;
  const uint32_t single = std::bit_cast<uint32_t>(static_cast<float>(values[i]));
  if (t.bits == 64) return std::bit_cast<uint64_t>(values[i]);
  if (t.bits == 16) return t.kind == 'h' ? single >> 16 : halves[i];
  return single;
}

}  // namespace

// ---- operands -----------------------------------------------------------------------------------

uint16_t Lowering::constants(const uint32_t* values, int n) {
  const uint16_t slot = program_.intern(values, n);
  if (slot == 0) fail("too many constants in one kernel");
  return slot ? slot : uint16_t{kSlotZero};
}

uint16_t Lowering::constant64(uint64_t value) {
  const uint32_t halves[2] = {static_cast<uint32_t>(value), static_cast<uint32_t>(value >> 32)};
  return constants(halves, 2);
}

uint16_t Lowering::scalar(Operand o, int dwords) {
  OperandType t;
  t.kind = 'b';
  t.bits = dwords == 2 ? 64 : 32;
  t.elements = 1;
  t.dwords = static_cast<uint8_t>(dwords);
  return scalar(o, t);
}

uint16_t Lowering::scalar(Operand o, const OperandType& t) {
  const int dwords = std::max<int>(t.dwords, 1);
  if (o < 128) {
    if (o + dwords > 128) return fail("scalar register tuple out of range"), kSlotZero;
    if (o >= 108 && o < 124) return fail("trap temporaries are not readable"), kSlotZero;
    return o;
  }
  const auto value = [&](uint64_t x) -> uint16_t {
    if (dwords > 2) return fail("constant where a register tuple is needed"), kSlotZero;
    return dwords == 2 ? constant64(x) : constant(static_cast<uint32_t>(x));
  };
  if (o <= 192) return value(o - 128u);
  if (o <= 208) return value(static_cast<uint64_t>(-static_cast<int64_t>(o - 192)));
  if (o >= 240 && o <= 248) return value(float_constant(o, t));
  if (o == kLiteral) {
    const uint32_t l = decoded_.literal;
    if (t.bits == 64 && t.kind == 'f') return value(uint64_t{l} << 32);
    if (t.bits == 64 && t.kind == 'i') return value(static_cast<uint64_t>(static_cast<int32_t>(l)));
    return value(l);
  }
  switch (o) {
    case 235:
      return kSlotSharedBase;
    case 236:
      return kSlotSharedLimit;
    case 237:
      return kSlotPrivateBase;
    case 238:
      return kSlotPrivateLimit;
    case 251:
      return specials_ = true, kSlotVccz;
    case 252:
      return specials_ = true, kSlotExecz;
    case 253:
      return specials_ = true, kSlotScc;
    default:
      return fail("operand is not a readable scalar"), kSlotZero;
  }
}

uint16_t Lowering::scalar_dst(Operand o, int dwords) {
  if (o + dwords > 128 || (o >= 108 && o < 124))
    return fail("scalar destination out of range"), kSlotScc;
  return o;
}

uint16_t Lowering::vector(Operand o, int dwords) {
  const uint32_t total = program_.vgprs_;
  if (!is_vgpr(o)) return fail("operand must be a vector register"), 0;
  if (o < kAgpr) {
    // One file: v[accum_offset] is a0. Public kernels use VGPRs beyond accum_offset so.
    const uint32_t first = o - kVgpr;
    if (first + dwords > total) return fail("vector register beyond the kernel's allocation"), 0;
    return static_cast<uint16_t>(first);
  }
  const uint32_t first = program_.accum_offset_ + (o - kAgpr);
  if (first + dwords > total) return fail("accumulation register beyond the allocation"), 0;
  return static_cast<uint16_t>(first);
}

// ---- program ------------------------------------------------------------------------------------

Program::Program(const Kernel& k, bool observed)
    : name_(k.name),
      code_(k.code),
      semantics_(semantics()),
      observed_(observed),
      mutant_(mutant()) {
  vgprs_ = ((k.descriptor.rsrc1 & 63) + 1) * 8;
  accum_offset_ = ((k.descriptor.rsrc3 & 63) + 1) * 4;
}

uint16_t Program::intern(const uint32_t* values, int n) {
  std::vector<uint32_t> key(values, values + n);
  if (auto it = interned_.find(key); it != interned_.end()) return it->second;
  if (n == 2 && constants_.size() % 2) constants_.push_back(0);
  if (kSlotConstants + constants_.size() + n > kSlotCount) return 0;
  const auto slot = static_cast<uint16_t>(kSlotConstants + constants_.size());
  constants_.insert(constants_.end(), values, values + n);
  interned_.emplace(std::move(key), slot);
  return slot;
}

uint32_t Program::copy_constants(uint32_t* slots, uint32_t from) const {
  std::shared_lock lock(mutex_);
  std::copy(constants_.begin() + from, constants_.end(), slots + from);
  return static_cast<uint32_t>(constants_.size());
}

const Inst* Program::at(uint64_t address) {
  {
    std::shared_lock lock(mutex_);
    if (auto it = entry_.find(address); it != entry_.end()) return it->second;
  }
  std::unique_lock lock(mutex_);
  if (auto it = entry_.find(address); it != entry_.end()) return it->second;
  lower_from(address);
  return entry_.at(address);
}

const Inst* Program::stray(uint64_t address) {
  auto& batch = *batches_.emplace_back(std::make_unique<Batch>());
  batch.code.resize(1);
  batch.code[0].fn = outside;
  batch.tally.resize(2);
  batch.source.push_back(0);
  Decoded& d = batch.decoded.emplace_back();
  d.address = address;
  return entry_[address] = &batch.code[0];
}

// Why these bytes are no instruction here, and what they are elsewhere.
const char* Program::refuse(std::span<const uint8_t> bytes, uint64_t address, Decoded& d) {
  for (const Arch& other : archs()) {
    if (!decode(bytes, address, d, other)) continue;
    const auto text = std::make_shared<std::string>(std::string("an instruction of ") + other.name +
                                                    " that " + arch().name + " does not have");
    keep(text);
    return text->c_str();
  }
  d = Decoded{};
  d.address = address;
  d.size = 4;
  std::memcpy(d.words.data(), bytes.data(), 4);
  return "not an instruction of this architecture";
}

void Program::lower_from(uint64_t start) {
  const uint64_t begin = reinterpret_cast<uint64_t>(code_.data()), end = begin + code_.size();
  const auto inside = [&](uint64_t a) { return a % 4 == 0 && a >= begin && a + 4 <= end; };
  if (!inside(start)) {
    stray(start);
    return;
  }

  struct Lowered {
    Decoded decoded;
    Inst inst;
    const char* failure = nullptr;
    bool specials = false, ends = false, branches = false, mutated = false;
    uint64_t branch = 0;
  };
  std::map<uint64_t, Lowered> reached;
  std::vector<uint64_t> work{start};
  while (!work.empty()) {
    uint64_t address = work.back();
    work.pop_back();
    while (inside(address) && !reached.contains(address) && !entry_.contains(address)) {
      Lowered& l = reached[address];
      Decoded& d = l.decoded;
      const std::span bytes(reinterpret_cast<const uint8_t*>(address), end - address);
      if (!decode(bytes, address, d)) {
        l.failure = refuse(bytes, address, d);
        l.ends = true;
        l.inst.fn = illegal;
        break;
      }
      l.mutated = mutant_ && mutant_->applies && mutant_->applies(d);
      if (l.mutated && mutant_->rewrite) mutant_->rewrite(d);
      const Semantic& semantic = semantics_.of[static_cast<int>(d.op)];
      Lowering lowering(*this, d);
      if (semantic.lower)
        semantic.lower(lowering, d, semantic, l.inst);
      else
        lowering.fail("the emulator has no semantics for this instruction");
      l.failure = lowering.failure();
      if (l.failure) {
        l.inst = Inst{};
        l.inst.fn = illegal;
      } else {
        l.specials = lowering.needs_specials();
        l.ends = lowering.block_ended();
        l.branches = lowering.branches();
        l.branch = lowering.branch();
        if (l.branches && inside(l.branch)) work.push_back(l.branch);
      }
      if (l.ends) break;
      address += d.size;
    }
  }

  for (const auto& [address, l] : reached) {
    indexes_ |= !l.failure && l.decoded.op == Op::s_set_gpr_idx_on;
    skips_ |= !l.failure && l.decoded.op == Op::s_setvskip;
  }

  // Lay out in address order.
  auto batch = std::make_unique<Batch>();
  struct Fixup {
    size_t index;
    uint64_t address;
  };
  std::vector<Fixup> fixups;
  std::vector<std::pair<uint64_t, size_t>> starts;
  const auto emit = [&](const Inst& i, const Tally& tally = {}) {
    batch->code.push_back(i);
    batch->tally.push_back(batch->tally.back());
    batch->tally.back() += tally;
    batch->source.push_back(static_cast<uint32_t>(batch->decoded.size() - 1));
  };
  for (auto it = reached.begin(); it != reached.end(); ++it) {
    const auto& [address, l] = *it;
    starts.emplace_back(address, batch->code.size());
    batch->decoded.push_back(l.decoded);
    if (l.specials) {
      Inst i;
      i.fn = fill_specials;
      emit(i);
    }
    const bool mutated = l.mutated && !l.failure;
    if (mutated && mutant_->before) emit(mutant_step(mutant_->before, l.decoded, accum_offset_));
    Inst inst = l.inst;
    Tally tally = l.failure ? Tally{} : tally_of(l.decoded);
    const bool indexed = indexes_ && !l.failure && takes_indices(l.decoded);
    const int length = 2 + (observed_ && !l.failure);
    if (skips_ && !l.failure && is_vector(l.decoded)) emit(skip_prefix(length + indexed));
    if (indexed) emit(index_prefix(*this, l.decoded, length), std::exchange(tally, {}));
    if (observed_ && !l.failure) {
      Inst before;
      observe_instruction(*this, l.decoded, before, inst);
      emit(before, std::exchange(tally, {}));
    }
    if (l.failure) batch->failures.emplace(batch->code.size(), l.failure);
    if (l.branches) fixups.push_back({batch->code.size(), l.branch});
    emit(inst, tally);
    if (mutated && mutant_->after) emit(mutant_step(mutant_->after, l.decoded, accum_offset_));
    const auto next = std::next(it);
    const uint64_t after = address + l.decoded.size;
    if (!l.ends && (next == reached.end() || next->first != after)) {
      Inst i;
      i.fn = go_on;
      fixups.push_back({batch->code.size(), after});
      emit(i);
    }
  }
  std::unordered_map<uint64_t, const Inst*> fresh;
  for (auto [address, index] : starts) fresh[address] = &batch->code[index];
  for (auto [index, address] : fixups) {
    const auto here = fresh.find(address), there = entry_.find(address);
    batch->code[index].target = here != fresh.end()     ? here->second
                                : there != entry_.end() ? there->second
                                                        : stray(address);
  }
  // From here on nothing fails: code is either complete, or not added.
  batches_.reserve(batches_.size() + 1);
  entry_.reserve(entry_.size() + fresh.size());
  batches_.push_back(std::move(batch));
  entry_.merge(fresh);
}

std::vector<Inst> Program::lower_alone(const Decoded& d) {
  const std::unique_lock lock(mutex_);
  const Semantic& semantic = semantics_.of[static_cast<int>(d.op)];
  Lowering lowering(*this, d);
  std::vector<Inst> code(1);
  semantic.lower(lowering, d, semantic, code[0]);
  if (lowering.failure()) return {};
  if (observed_) {
    Inst before;
    observe_instruction(*this, d, before, code[0]);
    code.insert(code.begin(), before);
  }
  return code;
}

const Decoded* Program::source(const Inst* i) const {
  std::shared_lock lock(mutex_);
  for (const auto& b : batches_)
    if (i >= b->code.data() && i < b->code.data() + b->code.size())
      return &b->decoded[b->source[i - b->code.data()]];
  return nullptr;
}

const char* Program::failure(const Inst* i) const {
  std::shared_lock lock(mutex_);
  for (const auto& b : batches_)
    if (i >= b->code.data() && i < b->code.data() + b->code.size()) {
      auto it = b->failures.find(i - b->code.data());
      return it == b->failures.end() ? nullptr : it->second;
    }
  return nullptr;
}

void Program::tally(const Inst* first, const Inst* last, uint64_t times, Counters& to) const {
  std::shared_lock lock(mutex_);
  for (const auto& b : batches_) {
    const Inst* const code = b->code.data();
    if (first < code || last >= code + b->code.size()) continue;
    Tally::add(b->tally[first - code], b->tally[last + 1 - code], times, to);
    return;
  }
}

std::shared_ptr<Program> program_of(const Kernel& kernel, bool observed) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  auto& program = observed ? kernel.observed_program : kernel.program;
  if (!program || program->mutated_by() != mutant())
    program = std::make_shared<Program>(kernel, observed);
  return program;
}

}  // namespace emu
