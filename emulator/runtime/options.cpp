#include "runtime/options.hpp"

#include "core/environment.hpp"

namespace rt {
namespace {

Options read_options() {
  Options result;
  constexpr const char *kDevices = "HIPGEMM_EMULATOR_DEVICES", *kAsync = "HIPGEMM_EMULATOR_ASYNC",
                       *kBytes = "HIPGEMM_EMULATOR_DEVICE_BYTES";
  if (const auto value = emu::variable(kDevices); !value.empty()) {
    const auto count = emu::whole_number(value);
    if (count && *count <= 64)
      result.devices = static_cast<int>(*count);
    else
      result.error = emu::wrong_value(kDevices, value, "a number from 0 to 64");
  }
  if (const auto value = emu::variable(kBytes); !value.empty()) {
    const auto bytes = emu::whole_number(value);
    if (bytes && *bytes >= 1 && *bytes <= result.device_bytes)
      result.device_bytes = *bytes;
    else
      result.error = emu::wrong_value(kBytes, value, "a number from 1 to 309237645312 (288 GiB)");
  }
  if (const auto value = emu::variable("HIPGEMM_EMULATOR_ARCH");
      !value.empty() && value.size() < 200)
    result.arch = value;
  const auto async = emu::variable(kAsync);
  result.late = async != "eager";
  if (!async.empty() && result.late && async != "late")
    result.error = emu::wrong_value(kAsync, async, "late or eager");
  const auto verbose = emu::variable("HIPGEMM_EMULATOR_VERBOSE");
  result.verbose = !verbose.empty() && verbose != "0";
  return result;
}

}  // namespace

const Options& options() {
  static const Options* const instance = new Options(read_options());  // outlives exit handlers
  return *instance;
}

}  // namespace rt
