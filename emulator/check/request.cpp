#include "check/request.hpp"

#include <cstdlib>
#include <mutex>
#include <string_view>

namespace emu::check {
namespace {

constexpr struct {
  std::string_view name;
  uint32_t bits;
} kNames[] = {{"race", kRace},     {"uninit", kUninit},
              {"bounds", kBounds}, {"hazard", kHazard | kAdvice},
              {"all", kAllChecks}, {"", 0}};

struct State {
  std::mutex mutex;
  Request request;
};
State& state() {
  static State& s = *new State{{}, parse(std::getenv("HIPGEMM_EMULATOR_CHECK"))};
  return s;
}

}  // namespace

Request parse(const char* text) {
  Request r;
  std::string_view rest = text ? text : "";
  while (!rest.empty()) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view name = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    bool known = false;
    for (const auto& n : kNames)
      if (n.name == name) r.checks |= n.bits, known = true;
    if (!known)
      return {0, "HIPGEMM_EMULATOR_CHECK: no check is called \"" + std::string(name) +
                     "\"; there are race, uninit, bounds, hazard and all, separated by commas"};
  }
  return r;
}

Request requested() {
  std::lock_guard lock(state().mutex);
  return state().request;
}

}  // namespace emu::check

// Sets the checks of the launches that follow, as HIPGEMM_EMULATOR_CHECK does. Non-zero, and no
// change, if a name is unknown.
extern "C" __attribute__((visibility("default"))) int hipgemm_emulator_set_check(const char* text) {
  auto request = emu::check::parse(text);
  if (!request.error.empty()) return 1;
  std::lock_guard lock(emu::check::state().mutex);
  emu::check::state().request = std::move(request);
  return 0;
}
