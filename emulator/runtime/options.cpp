#include "runtime/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include "core/environment.hpp"

namespace rt {
namespace {

// ---- which devices are visible
// --------------------------------------------------------------------

// The rules are those of ROCm. ROCR_VISIBLE_DEVICES comes first: set but empty it hides all, an
// entry is a number (by strtol) or the beginning of a UUID in either case, and one that is
// invalid, ambiguous or repeated ends the list. Then one list of HIP's renumbers what is left:
// HIP_VISIBLE_DEVICES, else CUDA_VISIBLE_DEVICES, else GPU_DEVICE_ORDINAL, where one that is empty
// counts as unset; an entry is a plain number or part of a UUID; an invalid one ends the list, a
// repeated one is skipped.
using Choose = int (*)(const std::string& entry, const std::vector<int>& from);

std::string visible_name(int physical) { return "GPU-" + uuid_of(physical); }

std::string upper(std::string text) {
  for (char& c : text)
    if (c >= 'a' && c <= 'z') c = static_cast<char>(c - 'a' + 'A');
  return text;
}

int choose_for_rocr(const std::string& entry, const std::vector<int>& from) {
  const size_t first = entry.find_first_not_of(" \t"), last = entry.find_last_not_of(" \t");
  if (first == std::string::npos) return -1;
  const std::string token = upper(entry.substr(first, last - first + 1));
  int found = -1;
  if (token[0] == 'G') {
    if (token.size() < 5) return -1;
    for (size_t i = 0; i < from.size(); ++i)
      if (upper(visible_name(from[i])).starts_with(token)) {
        if (found >= 0) return -1;
        found = static_cast<int>(i);
      }
    return found;
  }
  char* end = nullptr;
  const long index = std::strtol(token.c_str(), &end, 0);
  return *end == 0 && index >= 0 && index < static_cast<long>(from.size()) ? static_cast<int>(index)
                                                                           : -1;
}

int choose_for_hip(const std::string& entry, const std::vector<int>& from) {
  if (entry.find("GPU-") != std::string::npos)
    for (size_t i = 0; i < from.size(); ++i)
      if (visible_name(from[i]).find(entry) != std::string::npos) return static_cast<int>(i);
  const auto index = emu::whole_number(entry);
  const bool plain = index && std::to_string(*index) == entry;
  return plain && *index < from.size() ? static_cast<int>(*index) : -1;
}

std::vector<int> chosen(std::string_view list, const std::vector<int>& from, Choose choose,
                        bool repeats_end) {
  std::vector<int> result;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const int index = choose(std::string(list.substr(0, comma)), from);
    if (index < 0) break;
    list.remove_prefix(std::min(comma + 1, list.size()));
    const int device = from[static_cast<size_t>(index)];
    if (std::find(result.begin(), result.end(), device) == result.end())
      result.push_back(device);
    else if (repeats_end)
      break;
  }
  return result;
}

void choose_devices(Options& result, int count) {
  std::vector<int>& devices = result.devices;
  devices.resize(static_cast<size_t>(count));
  std::iota(devices.begin(), devices.end(), 0);
  const auto apply = [&](const char* name, std::string_view list, Choose choose, bool repeats_end) {
    const size_t before = devices.size();
    devices = chosen(list, devices, choose, repeats_end);
    if (devices.size() < before)
      result.hidden_by +=
          std::string(result.hidden_by.empty() ? "" : ", ") + name + "='" + std::string(list) + "'";
  };
  constexpr const char* kRocr = "ROCR_VISIBLE_DEVICES";
  if (std::getenv(kRocr)) apply(kRocr, emu::variable(kRocr), choose_for_rocr, true);
  for (const char* name : {"HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}) {
    const auto list = emu::variable(name);
    if (list.empty()) continue;
    apply(name, list, choose_for_hip, false);
    return;
  }
}

// ---- resources of the host
// ----------------------------------------------------------------------------

// A number in a file, times `unit`: the first, or that after `key`. The most there is if there is
// none.
uint64_t number_in(const char* path, const char* key, uint64_t unit) {
  std::FILE* const file = std::fopen(path, "r");
  uint64_t value = UINT64_MAX;
  if (!file) return value;
  char line[256];
  while (std::fgets(line, sizeof line, file)) {
    const size_t length = std::strlen(key);
    if (std::strncmp(line, key, length)) continue;
    unsigned long long number = 0;
    if (std::sscanf(line + length, "%llu", &number) == 1 && number <= UINT64_MAX / unit)
      value = number * unit;
    break;
  }
  std::fclose(file);
  return value;
}

// Control groups, of version 2 and 1.
uint64_t group_limit() {
  return std::min(number_in("/sys/fs/cgroup/memory.max", "", 1),
                  number_in("/sys/fs/cgroup/memory/memory.limit_in_bytes", "", 1));
}

uint64_t host_available() {
  const uint64_t limit = group_limit();
  const uint64_t used = std::min(number_in("/sys/fs/cgroup/memory.current", "", 1),
                                 number_in("/sys/fs/cgroup/memory/memory.usage_in_bytes", "", 1));
  const uint64_t in_group = limit == UINT64_MAX || used == UINT64_MAX ? limit
                            : limit > used                            ? limit - used
                                                                      : 0;
  return std::min(number_in("/proc/meminfo", "MemAvailable:", 1024), in_group);
}

Options read_options() {
  Options result;
  constexpr const char *kDevices = "HIPGEMM_EMULATOR_DEVICES", *kAsync = "HIPGEMM_EMULATOR_ASYNC",
                       *kBytes = "HIPGEMM_EMULATOR_DEVICE_BYTES";
  int count = 1;
  if (const auto value = emu::variable(kDevices); !value.empty()) {
    const auto wanted = emu::whole_number(value);
    if (wanted && *wanted <= 64)
      count = static_cast<int>(*wanted);
    else
      result.error = emu::wrong_value(kDevices, value, "a number from 0 to 64");
  }
  choose_devices(result, count);
  if (const auto value = emu::variable(kBytes); !value.empty()) {
    const auto bytes = emu::whole_number(value);
    const uint64_t most = emu::arch().memory_bytes;
    if (bytes && *bytes >= 1 && *bytes <= most)
      result.device_bytes = *bytes;
    else
      result.error = emu::wrong_value(kBytes, value,
                                      "a number from 1 to " + std::to_string(most) + " (" +
                                          std::to_string(most >> 30) + " GiB)");
  } else if (const uint64_t host = host_available(); host < result.device_bytes) {
    result.device_bytes = host;
    result.host_bound = true;
  }
  const auto async = emu::variable(kAsync);
  result.late = async != "eager";
  if (!async.empty() && result.late && async != "late")
    result.error = emu::wrong_value(kAsync, async, "late or eager");
  const auto verbose = emu::variable("HIPGEMM_EMULATOR_VERBOSE");
  result.verbose = !verbose.empty() && verbose != "0";
  return result;
}

}  // namespace

std::string uuid_of(int physical) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "hipgemm-emu-%04x", static_cast<unsigned>(physical));
  return buffer;
}

const Options& options() {
  static const Options* const instance = new Options(read_options());  // outlives exit handlers
  return *instance;
}

}  // namespace rt
