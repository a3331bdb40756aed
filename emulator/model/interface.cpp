// The cycle model for C and Python: figures, and the last replay of the calling thread.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "model/replay.hpp"

namespace emu::model {

namespace {
constexpr Figure kFigures[] = {
#define EMU_FIGURE(name, value, low, high, kind, source) {#name, value, low, high, #kind, source},
#include "model/figures.def"
#undef EMU_FIGURE
};

struct Last {
  std::shared_ptr<const Recording> recording;
  FoundLines found;
  bool looked;  // for lines in L2
  Times times;
};
thread_local Last last;

}  // namespace

std::span<const Figure> figures() { return kFigures; }

}  // namespace emu::model

#define EMU_EXPORT extern "C" __attribute__((visibility("default")))

using namespace emu::model;

// The figure of that number: its name, kind and source, and value, low and high. 0 if there is
// none.
EMU_EXPORT int hipgemm_emulator_figure(int number, const char** text, double* values) {
  if (number < 0 || static_cast<size_t>(number) >= figures().size()) return 0;
  const Figure& f = figures()[number];
  text[0] = f.name, text[1] = f.kind, text[2] = f.source;
  values[0] = f.value, values[1] = f.low, values[2] = f.high;
  return 1;
}

// Times the last recorded launch, with so many workgroups on a CU (replay.hpp) and the figures of
// the table in its order, or with those of the table if null. If more workgroups were recorded,
// they run on the other CUs of the XCD, and lines are looked for in its L2. Why not, or null if
// it is done.
EMU_EXPORT const char* hipgemm_emulator_replay(int resident, const double* values) {
  if (const auto recording = last_recording(); recording != last.recording)
    last = {recording, {}, false, {}};
  if (!last.recording) return "no launch has been recorded";
  for (const auto& group : last.recording->group)
    if (group.empty()) return "the launch has not run all workgroups that were to be recorded";
  Figures f;
  if (values) {
    std::array<double, std::size(kFigures)> all;
    std::copy_n(values, all.size(), all.begin());
    f = std::bit_cast<Figures>(all);
  }
  try {
    const bool others = last.recording->group.size() > static_cast<size_t>(resident);
    if (last.found.group.empty() || last.looked != others)
      last.found = find_lines(*last.recording, others), last.looked = others;
    last.times = replay(*last.recording, last.found, resident, f);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  }
  return last.times.error.empty() ? nullptr : last.times.error.c_str();
}

// What instructions wait for, separated by blanks.
EMU_EXPORT const char* hipgemm_emulator_replay_waits() { return kWaitNames; }

// How many issues, instructions and clocks the replay has.
EMU_EXPORT void hipgemm_emulator_replay_size(uint64_t* out) {
  out[0] = last.times.issue.size(), out[1] = last.times.op.size(), out[2] = last.times.end;
}

// All issues, in the order of time: wave, instruction, clock.
EMU_EXPORT void hipgemm_emulator_replay_issues(uint32_t* out) {
  std::memcpy(out, last.times.issue.data(), last.times.issue.size() * sizeof(Issue));
}

// All lines that the workgroups' loads and stores found in L2 and in memory.
EMU_EXPORT void hipgemm_emulator_found_lines(uint64_t* out) {
  std::fill_n(out, 2, 0);
  for (const auto& group : last.found.group)
    for (const auto& wave : group)
      for (const Line& line : wave)
        if (line.level != Level::loaded) ++out[line.level == Level::memory];
}

// One instruction: its offset in the kernel, bytes, clocks of the matrix pipe, issues, bytes
// that LDS returned, and the clocks that it waited for each reason. Fills `text` with its text.
EMU_EXPORT void hipgemm_emulator_replay_instruction(int number, uint64_t* out, char* text,
                                                    size_t bytes) {
  const Op& op = last.recording->op[number];
  const OpTimes& t = last.times.op[number];
  const emu::Decoded& d = op.side.decoded;
  *out++ = d.address - last.recording->entry;
  *out++ = d.size;
  *out++ = 4u * op.side.traits.passes;
  *out++ = t.issues;
  *out++ = t.returned;
  std::ranges::copy(t.waited, out);
  const std::string shown = emu::disassemble(d);
  std::strncpy(text, shown.c_str(), bytes);
  text[bytes - 1] = 0;
}
