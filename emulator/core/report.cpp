// Faults: what happened, where in the code, and in which wave.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>

#include "core/environment.hpp"
#include "core/machine.hpp"
#include "core/notes.hpp"

namespace emu {
namespace {

std::string format(const char* pattern, auto... values) {
  char text[512];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

// "kernel gemm at 0x7f.. (+0x120): bytes, text".
std::string place(const Wave& w, const Inst* i) {
  const Launch& launch = w.launch->launch;
  std::string text = "kernel " + launch.kernel->name;
  const Decoded* d = i ? w.launch->program->source(i) : nullptr;
  if (d) {
    text += format(" at 0x%llx (entry %+lld)", static_cast<unsigned long long>(d->address),
                   static_cast<long long>(d->address - launch.kernel->entry));
    if (d->size) {
      text += ": [";
      for (int k = 0; k < d->size / 4; ++k) text += format(k ? " %08x" : "%08x", d->words[k]);
      text += "]";
    }
    const std::span bytes(reinterpret_cast<const uint8_t*>(d->words.data()), d->size);
    Decoded again;
    if (std::ranges::any_of(archs(), [&](const Arch& a) { return decode(bytes, 0, again, a); }))
      text += " " + disassemble(*d);
  }
  const auto& id = w.group->id;
  text += format("; workgroup (%u,%u,%u) wave %u", id[0], id[1], id[2], w.index);
  return text;
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      (result += '\\') += c;
    else
      result +=
          c < ' ' || c > '~' ? format("\\u%04x", static_cast<unsigned char>(c)) : std::string(1, c);
  }
  return result + "\"";
}

// Findings go to a file, and end no launch.
bool reports() { return !variable("HIPGEMM_EMULATOR_REPORT").empty(); }

// Adds a line of JSON to the file that HIPGEMM_EMULATOR_REPORT names.
void write_line(const LaunchContext& launch, const Decoded* d, const char* kind,
                const std::string& what, const std::string& more) {
  const std::string path(variable("HIPGEMM_EMULATOR_REPORT"));
  if (path.empty()) return;
  const Kernel& kernel = *launch.launch.kernel;
  std::string line = "{\"kind\": " + quoted(kind) + ", \"what\": " + quoted(what) +
                     ", \"kernel\": " + quoted(kernel.name);
  if (d) {
    line += format(", \"offset\": %lld", static_cast<long long>(d->address - kernel.entry));
    line += ", \"instruction\": " + quoted(disassemble(*d));
  }
  line += more + "}\n";
  if (std::FILE* const file = std::fopen(path.c_str(), "a")) {
    std::fwrite(line.data(), 1, line.size(), file);
    std::fclose(file);
  }
}

void write_record(const Wave& w, const Inst* i, const char* kind, const std::string& what) {
  const auto& id = w.group->id;
  write_line(*w.launch, i ? w.launch->program->source(i) : nullptr, kind, what,
             format(", \"workgroup\": [%u, %u, %u], \"wave\": %u", id[0], id[1], id[2], w.index));
}

// The notes of all launches, the latest kept.
struct Notes {
  std::mutex mutex;
  std::deque<std::string> kept;
  uint64_t dropped = 0;
};
Notes& notes() {
  static Notes& n = *new Notes;
  return n;
}
constexpr size_t kKeptNotes = 1024;

}  // namespace

void note(Wave& w, const Inst* i, NoteKind kind, const std::string& what) {
  const uint32_t bit = 1u << static_cast<uint32_t>(kind);
  if (w.launch->noted.fetch_or(bit) & bit) return;
  std::string text = what + "; " + place(w, i);
  write_record(w, i, "note", what);
  static const bool verbose = [] {
    const auto value = variable("HIPGEMM_EMULATOR_VERBOSE");
    return !value.empty() && value != "0";
  }();
  if (verbose) std::fprintf(stderr, "hipgemm emulator: note: %s\n", text.c_str());
  Notes& n = notes();
  std::lock_guard lock(n.mutex);
  n.kept.push_back(std::move(text));
  if (n.kept.size() > kKeptNotes) n.kept.pop_front(), ++n.dropped;
}

void record_conflicts(const LaunchContext& launch, const Decoded& d, uint64_t executions,
                      uint64_t clocks, uint64_t conflicts) {
  using Number = unsigned long long;
  write_line(launch, &d, "conflicts", "LDS bank conflicts",
             format(", \"executions\": %llu, \"clocks\": %llu, \"conflict_clocks\": %llu",
                    Number{executions}, Number{clocks}, Number{conflicts}));
}

void LaunchContext::report(FaultKind kind, std::string message) {
  std::lock_guard lock(fault_mutex);
  if (!fault) fault = Fault{kind, std::move(message)};
  stop.store(true);
}

void LaunchContext::conclude() {
  std::lock_guard lock(fault_mutex);
  if (fault || findings.empty() || reports()) return;
  std::string text = std::move(findings[0]);
  for (size_t n = 1; n < findings.size(); ++n) text += "\n" + findings[n];
  fault = Fault{FaultKind::launch_failure, std::move(text)};
}

bool finding(Wave& w, const Inst* i, const char* check, const std::string& what) {
  LaunchContext& launch = *w.launch;
  std::lock_guard lock(launch.fault_mutex);
  if (launch.stop) return false;
  if (!launch.found.insert({check, i}).second) return true;
  write_record(w, i, check, what);
  launch.findings.push_back(std::string(check) + ": " + what + "; " + place(w, i));
  if (launch.findings.size() < launch.options.findings || reports()) return true;
  launch.stop.store(true);
  return false;
}

void LaunchContext::report_failure(const char* what, const std::exception& error) noexcept {
  try {
    report(FaultKind::out_of_resources, std::string(what) + ": " + error.what());
  } catch (...) {
    report(FaultKind::out_of_resources, {});
  }
}

const Inst* fault(Wave& w, const Inst* i, FaultKind kind, const char* what) {
  const char* why = what ? what : i ? w.launch->program->failure(i) : nullptr;
  const char* title = kind == FaultKind::illegal_instruction ? "illegal instruction: "
                      : kind == FaultKind::illegal_address   ? "illegal address: "
                                                             : "";
  const std::string text = std::string(title) + (why ? why : "unknown cause");
  write_record(w, i, "fault", text);
  w.launch->report(kind, text + "; " + place(w, i));
  return nullptr;
}

const Inst* fault_address(Wave& w, const Inst* i, int lane, uint64_t address, uint32_t bytes,
                          bool store) {
  std::string text = format("illegal address: %s of %u bytes at 0x%llx, ", store ? "store" : "load",
                            bytes, static_cast<unsigned long long>(address));
  text += w.launch->launch.memory->describe(address);
  write_record(w, i, "fault", text);
  text += "; " + place(w, i);
  if (lane >= 0) text += format(" lane %d", lane);
  w.launch->report(FaultKind::illegal_address, std::move(text));
  return nullptr;
}

bool find_memory(Wave& w, uint64_t begin, uint64_t end) {
  const auto try_range = [&](uint64_t b, uint64_t e) {
    if (begin < b || end > e || begin > end) return false;
    w.memory_begin = b;
    w.memory_end = e;
    return true;
  };
  const AllocationList& list = *w.launch->allocations;
  auto it = std::upper_bound(list.begin(), list.end(), begin,
                             [](uint64_t a, const Allocation& x) { return a < x.base; });
  if (it != list.begin() && try_range(std::prev(it)->base, std::prev(it)->end())) return true;
  const auto kernarg = reinterpret_cast<uint64_t>(w.launch->kernarg.data());
  if (try_range(kernarg, kernarg + w.launch->kernarg.size())) return true;
  const auto packet = reinterpret_cast<uint64_t>(w.launch->dispatch_packet);
  if (try_range(packet, packet + 64)) return true;
  const auto scratch = reinterpret_cast<uint64_t>(w.scratch);
  return try_range(scratch, scratch + uint64_t{w.scratch_bytes} * kLanes);
}

uint64_t read_clock() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
}

const Inst* jump_to(Wave& w, const Inst*, uint64_t address) {
  const Inst* to = w.launch->program->at(address);
  // Code reached here for the first time may have added constants.
  w.constants_copied = w.launch->program->copy_constants(w.s + kSlotConstants, w.constants_copied);
  return to;
}

}  // namespace emu

// Fills `text` with the note of that number, counted from 0 in this process. 0 if there is none, or
// it is not among the last 1024.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_note(uint64_t number,
                                                                            char* text,
                                                                            size_t bytes) {
  emu::Notes& n = emu::notes();
  std::lock_guard lock(n.mutex);
  if (number < n.dropped || number - n.dropped >= n.kept.size()) return 0;
  if (text && bytes) std::snprintf(text, bytes, "%s", n.kept[number - n.dropped].c_str());
  return 1;
}
