#include "core/arch.hpp"

#include <string_view>

#include "core/environment.hpp"
#include "isa/decoded.hpp"

namespace emu {
namespace {

constexpr Arch kArchs[] = {
    {
        .name = "gfx950",
        .device = "AMD Instinct MI355X",
        .pci_device = 0x75a3,
        .major = 9,
        .minor = 5,
        .compute_units = 256,
        .xccs = 8,
        .clock_khz = 2400000,
        .memory_clock_khz = 2000000,
        .memory_bus_bits = 8192,
        .memory_bytes = uint64_t{288} << 30,
        .lds_bytes = 160 << 10,
        .lds_granule = 1280,
        .lds_banks = 64,
        .lds_dma_bytes = 16,
        .absent = kGfx942,
        .fnuz = false,
        .f64_passes = 16,
        .after_xdl = 1,
        .xdl_advice = true,
    },
    {
        .name = "gfx942",
        .device = "AMD Instinct MI300X",
        .pci_device = 0x74a1,
        .major = 9,
        .minor = 4,
        .compute_units = 304,
        .xccs = 8,
        .clock_khz = 2100000,
        .memory_clock_khz = 1300000,
        .memory_bus_bits = 8192,
        .memory_bytes = uint64_t{192} << 30,
        .lds_bytes = 64 << 10,
        .lds_granule = 512,
        .lds_banks = 32,
        .lds_dma_bytes = 4,
        .absent = kGfx950,
        .fnuz = true,
        .f64_passes = 8,
        .after_xdl = 0,
        .xdl_advice = false,
    },
};

}  // namespace

std::span<const Arch> archs() { return kArchs; }

const std::string& arch_name() {
  static const std::string* const name = [] {  // outlives exit handlers
    const std::string_view value = variable("HIPGEMM_EMULATOR_ARCH");
    const bool usable = !value.empty() && value.size() < 200;
    return new std::string(usable ? value : std::string_view(kArchs[0].name));
  }();
  return *name;
}

const Arch& arch() {
  static const Arch& chosen = []() -> const Arch& {
    const std::string_view name = std::string_view(arch_name()).substr(0, arch_name().find(':'));
    for (const Arch& a : kArchs)
      if (name == a.name) return a;
    return kArchs[0];
  }();
  return chosen;
}

}  // namespace emu
