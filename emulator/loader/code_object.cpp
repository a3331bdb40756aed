#include "loader/code_object.hpp"

#include <algorithm>

#include "loader/bundle.hpp"
#include "loader/msgpack.hpp"
#include "runtime/host_memory.hpp"

namespace loader {
namespace {

constexpr uint64_t kMaxImageFile = uint64_t{4} << 30;

// EF_AMDGPU_MACH of the ELF flags.
const char* machine_name(uint32_t flags) {
  switch (flags & 0xff) {
    case 0x2c:
      return "gfx900";
    case 0x2f:
      return "gfx906";
    case 0x30:
      return "gfx908";
    case 0x33:
      return "gfx1010";
    case 0x36:
      return "gfx1030";
    case 0x3f:
      return "gfx90a";
    case 0x40:
      return "gfx940";
    case 0x41:
      return "gfx1100";
    case 0x46:
      return "gfx1101";
    case 0x47:
      return "gfx1102";
    case 0x48:
      return "gfx1200";
    case 0x49:
      return "gfx1250";
    case 0x4b:
      return "gfx941";
    case 0x4c:
      return "gfx942";
    case 0x4e:
      return "gfx1201";
    case 0x4f:
      return "gfx950";
    case 0x51:
      return "gfx9-generic";
    case 0x5f:
      return "gfx9-4-generic";
  }
  return nullptr;
}

// From code object version 4 on, each of the two features takes two bits: unsupported, any, off,
// on.
std::string feature_text(uint32_t flags) {
  std::string result;
  const auto add = [&](const char* name, uint32_t state) {
    if (state >= 2) result += rt::text(':', name, state == 3 ? '+' : '-');
  };
  add("sramecc", flags >> 10 & 3);
  add("xnack", flags >> 8 & 3);
  return result;
}

// The device must have the features that the code requires; others may be on or off.
bool features_fit(const std::string& wanted, const std::string& device) {
  size_t at = 0;
  while (at < wanted.size()) {
    const size_t end = std::min(wanted.find(':', at + 1), wanted.size());
    const std::string feature = wanted.substr(at, end - at);
    if ((device + ":").find(feature + ":") == std::string::npos) return false;
    at = end;
  }
  return true;
}

bool target_fits(const std::string& target, const std::string& device) {
  const size_t colon = std::min(target.find(':'), target.size());
  const size_t device_colon = std::min(device.find(':'), device.size());
  return target.substr(0, colon) == device.substr(0, device_colon) &&
         features_fit(target.substr(colon), device.substr(device_colon));
}

Bytes choose_entry(Bytes image, const std::string& arch) {
  std::string seen;
  for (const BundleEntry& entry : parse_bundle(image)) {
    const std::string processor = entry.processor();
    if (processor.empty()) continue;
    if (target_fits(processor, arch))
      return slice(image, entry.offset, entry.bytes, "bundle entry");
    seen += (seen.empty() ? "" : ", ") + processor;
  }
  rt::fail(hipErrorNoBinaryForGpu, "the bundle holds code for ", seen.empty() ? "no GPU" : seen,
           "; the device is ", arch);
}

KernelInfo read_kernel(const CodeObject& object, Bytes file, const Value& metadata) {
  KernelInfo kernel;
  kernel.name = metadata.string(".name", "");
  const std::string symbol_name = metadata.string(".symbol", "");
  const auto symbol =
      std::find_if(object.elf.symbols.begin(), object.elf.symbols.end(),
                   [&](const Symbol& s) { return s.defined && s.name == symbol_name; });
  if (kernel.name.empty() || symbol == object.elf.symbols.end()) {
    bad_image(rt::text("kernel '", kernel.name, "': no symbol '", symbol_name, "'"));
  }
  const Bytes descriptor = object.elf.at(file, symbol->value, 64, "kernel descriptor");
  const auto field = [&](uint64_t offset, auto type) {
    return read<decltype(type)>(descriptor, offset, "kernel descriptor");
  };
  emu::KernelDescriptor& d = kernel.descriptor;
  d.group_segment_bytes = field(0, uint32_t{});
  d.private_segment_bytes = field(4, uint32_t{});
  d.kernarg_bytes = field(8, uint32_t{});
  d.rsrc3 = field(44, uint32_t{});
  d.rsrc1 = field(48, uint32_t{});
  d.rsrc2 = field(52, uint32_t{});
  d.properties = field(56, uint16_t{});
  d.kernarg_preload = field(58, uint16_t{});
  kernel.entry = symbol->value + field(16, uint64_t{});
  for (const Segment& segment : object.segments) {
    if (segment.executable && kernel.entry >= segment.address &&
        kernel.entry - segment.address < segment.bytes) {
      kernel.code_address = segment.address;
      kernel.code_bytes = segment.bytes;
    }
  }
  if (!kernel.code_bytes || kernel.entry % 4) {
    bad_image(rt::text("kernel ", kernel.name, ": entry ", rt::hex(kernel.entry),
                       " is not an instruction's place in executable code"));
  }
  kernel.max_workgroup_size = static_cast<uint32_t>(
      std::min<uint64_t>(metadata.number(".max_flat_workgroup_size", 1024), 1024));
  const Value::Array& required = metadata.array(".reqd_workgroup_size");
  for (size_t i = 0; i < required.size() && i < 3; ++i) {
    if (const uint64_t* size = std::get_if<uint64_t>(&required[i].data)) {
      kernel.required_workgroup_size[i] = static_cast<uint32_t>(*size);
    }
  }
  kernel.vgprs = static_cast<uint32_t>(metadata.number(".vgpr_count", 0));
  kernel.agprs = static_cast<uint32_t>(metadata.number(".agpr_count", 0));
  kernel.sgprs = static_cast<uint32_t>(metadata.number(".sgpr_count", 0));
  kernel.kernarg_bytes =
      std::max<uint64_t>(metadata.number(".kernarg_segment_size", 0), d.kernarg_bytes);
  constexpr uint64_t kMaxKernarg = uint64_t{1} << 20;
  for (const Value& entry : metadata.array(".args")) {
    Argument argument{entry.number(".offset", 0), entry.number(".size", 0),
                      entry.string(".value_kind", ""), entry.string(".name", "")};
    if (argument.offset > kMaxKernarg || argument.bytes > kMaxKernarg) {
      bad_image(rt::text("kernel ", kernel.name, ": argument ", argument.name, " (", argument.bytes,
                         " bytes at ", argument.offset, ") lies beyond ", kMaxKernarg, " bytes"));
    }
    // Padding may be listed after the stated size.
    kernel.kernarg_bytes = std::max(kernel.kernarg_bytes, argument.offset + argument.bytes);
    if (argument.name == "pad") {
      kernel.lists_padding = true;
    } else if (!argument.hidden()) {
      kernel.explicit_bytes = std::max(kernel.explicit_bytes, argument.offset + argument.bytes);
    }
    kernel.arguments.push_back(std::move(argument));
  }
  if (kernel.kernarg_bytes > kMaxKernarg) {
    bad_image(rt::text("kernel ", kernel.name, ": ", kernel.kernarg_bytes, " bytes of arguments"));
  }
  return kernel;
}

}  // namespace

CodeObject parse_code_object(Bytes image, const std::string& arch, Bytes& file) {
  if (image.size() >= 4 && std::memcmp(image.data(), "CCOB", 4) == 0) {
    bad_image("a compressed offload bundle: build it with --no-offload-compress");
  }
  file = is_bundle(image) ? choose_entry(image, arch) : image;
  CodeObject object;
  object.elf = parse_elf(file);
  const Elf& elf = object.elf;
  if (elf.abi_version < 2 || elf.abi_version > 4) {
    bad_image(rt::text("code object version ", elf.abi_version + 2, ", required 4, 5 or 6"));
  }
  const char* machine = machine_name(elf.flags);
  object.arch = machine ? machine : rt::text("an unknown GPU (ELF flags ", rt::hex(elf.flags), ")");
  object.features = feature_text(elf.flags);
  if (!target_fits(object.arch + object.features, arch)) {
    rt::fail(hipErrorNoBinaryForGpu, "the code object is for ", object.arch, object.features,
             "; the device is ", arch);
  }
  object.segments = elf.segments;
  object.bytes = elf.bytes;
  if (elf.metadata.empty()) bad_image("no AMDGPU metadata note");
  const Value metadata = parse_msgpack(elf.metadata);
  for (const Value& kernel : metadata.array("amdhsa.kernels")) {
    object.kernels.push_back(read_kernel(object, file, kernel));
  }
  for (const Symbol& symbol : elf.symbols) {
    if (symbol.type != 1 || !symbol.defined || symbol.name.ends_with(".kd")) continue;
    if (symbol.value > object.bytes || symbol.size > object.bytes - symbol.value) {
      bad_image(rt::text("variable ", symbol.name, " lies outside the image"));
    }
    object.variables[symbol.name] = {symbol.value, symbol.size};
  }
  return object;
}

void load_image(const CodeObject& object, Bytes file, uint8_t* to) {
  for (const Segment& segment : object.segments) {
    const Bytes content = slice(file, segment.offset, segment.file_bytes, "segment");
    std::memcpy(to + segment.address, content.data(), content.size());
  }
  const uint64_t base = reinterpret_cast<uint64_t>(to);
  for (const Relocation& relocation : object.elf.relocations) {
    uint64_t symbol = 0;
    if (relocation.symbol) {
      if (relocation.symbol >= object.elf.symbols.size())
        bad_image("relocation of an unknown symbol");
      const Symbol& target = object.elf.symbols[relocation.symbol];
      if (!target.defined) {
        rt::fail(hipErrorSharedObjectSymbolNotFound, "undefined symbol '", target.name, "'");
      }
      symbol = base + target.value;
    }
    const uint64_t value = symbol + static_cast<uint64_t>(relocation.addend);
    const uint64_t place = base + relocation.address;
    const auto store = [&](auto number) {
      if (relocation.address > object.bytes || sizeof number > object.bytes - relocation.address) {
        bad_image(rt::text("relocation at ", rt::hex(relocation.address), " outside the image"));
      }
      std::memcpy(to + relocation.address, &number, sizeof number);
    };
    switch (relocation.type) {
      case 0:
        break;  // NONE
      case 1:
        store(static_cast<uint32_t>(value));
        break;  // ABS32_LO
      case 2:
        store(static_cast<uint32_t>(value >> 32));
        break;  // ABS32_HI
      case 3:
        store(value);
        break;  // ABS64
      case 4:
        store(static_cast<uint32_t>(value - place));
        break;  // REL32
      case 5:
        store(value - place);
        break;  // REL64
      case 6:
        store(static_cast<uint32_t>(value));
        break;  // ABS32
      case 10:
        store(static_cast<uint32_t>(value - place));
        break;  // REL32_LO
      case 11:
        store(static_cast<uint32_t>((value - place) >> 32));
        break;  // REL32_HI
      case 13:
        store(base + static_cast<uint64_t>(relocation.addend));
        break;  // RELATIVE64
      default:
        bad_image(rt::text("unknown relocation type ", relocation.type));
    }
  }
}

std::vector<uint8_t> read_image(const void* image) {
  std::vector<uint8_t> header = rt::read_prefix(image, 64 << 10);
  uint64_t size = header.size();
  if (is_bundle(header)) {
    size = bundle_size(header);
  } else {
    size = elf_size(header);
    if (!size) bad_image("neither an ELF file nor an offload bundle");
  }
  return rt::read_prefix(image, std::min(size, kMaxImageFile));
}

}  // namespace loader
