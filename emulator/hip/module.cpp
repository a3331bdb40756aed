#include "hip/module.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/environment.hpp"
#include "hip/properties.hpp"
#include "runtime/options.hpp"

namespace rt {

// The last launch that uses the module may end after it was unloaded, and frees its code.
Module::~Module() {
  try {
    runtime().allocator.free(image.base);
  } catch (
      ...) {  // hipDeviceReset leaves code alone, so this cannot happen, and cannot be reported
  }
}

}  // namespace rt

namespace hip {

std::shared_ptr<rt::Function> function_of(const void* handle) {
  if (auto function = rt::runtime().functions.get(handle)) return function;
  if (auto function = registered_function(handle, rt::current_device().id)) return function;
  fail(hipErrorInvalidHandle, "function ", rt::hex(handle), " does not exist");
}

}  // namespace hip

namespace {

using hip::api;
using hip::fail;
using hip::function_of;
using hip::need;
using rt::runtime;

// Writes a code object to the folder that HIPGEMM_EMULATOR_CODE names.
void save(loader::Bytes file) {
  const auto folder = emu::variable("HIPGEMM_EMULATOR_CODE");
  if (folder.empty()) return;
  uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const uint8_t byte : file) hash = (hash ^ byte) * 1099511628211u;
  const auto name = std::filesystem::path(folder) / (rt::hex(hash) + ".co");
  std::ofstream(name, std::ios::binary)
      .write(reinterpret_cast<const char*>(file.data()), static_cast<std::streamsize>(file.size()));
}

hipModule_t load(loader::Bytes image) {
  rt::Device& device = rt::current_device();
  loader::Bytes file;
  loader::CodeObject object = loader::parse_code_object(image, hip::target(), file);
  save(file);
  auto module = std::make_shared<rt::Module>();
  module->device = device.id;
  module->image = runtime().allocator.allocate(
      {object.bytes, device.id, emu::Allocation::Kind::code, false, 0, 0});
  const uint64_t base = module->image.base;
  loader::load_image(object, file, reinterpret_cast<uint8_t*>(base));
  for (loader::KernelInfo& info : object.kernels) {
    auto function = std::make_shared<rt::Function>();
    function->module = module;
    function->kernel.name = info.name;
    function->kernel.arch = object.arch;
    function->kernel.descriptor = info.descriptor;
    function->kernel.entry = base + info.entry;
    function->kernel.code = {reinterpret_cast<const uint8_t*>(base + info.code_address),
                             info.code_bytes};
    function->kernel.max_workgroup_size = info.max_workgroup_size;
    function->info = std::move(info);
    module->functions[function->kernel.name] = std::move(function);
  }
  module->variables = std::move(object.variables);
  try {
    for (const auto& [name, function] : module->functions) runtime().functions.add(function);
    return reinterpret_cast<hipModule_t>(runtime().modules.add(module));
  } catch (...) {
    for (const auto& [name, function] : module->functions)
      runtime().functions.remove(function.get());
    throw;
  }
}

std::shared_ptr<rt::Module> module_of(hipModule_t handle) {
  if (auto module = runtime().modules.get(handle)) return module;
  fail(hipErrorInvalidHandle, "module ", rt::hex(handle), " does not exist");
}

void load_data(hipModule_t* handle, const void* image) {
  need(handle, "module");
  need(image, "image");
  *handle = load(loader::read_image(image));
}

// Workgroups of `threads` lanes that fit on a CU together.
int groups_per_cu(const loader::KernelInfo& info, int threads, size_t dynamic_lds) {
  if (threads <= 0) fail(hipErrorInvalidValue, "blockSize must be positive; got ", threads);
  if (threads > static_cast<int>(info.max_workgroup_size)) return 0;
  const int waves = (threads + hip::kWaveSize - 1) / hip::kWaveSize;
  const int vgprs = static_cast<int>((info.descriptor.rsrc1 & 63) + 1) * hip::kVgprGranule;
  const int waves_per_simd = std::min(hip::kWavesPerSimd, hip::kVgprsPerSimd / vgprs);
  int groups = hip::kSimdsPerCu * waves_per_simd / waves;
  const uint64_t lds = info.descriptor.group_segment_bytes + uint64_t{dynamic_lds};
  const emu::Arch& arch = emu::arch();
  if (lds > arch.lds_bytes) return 0;
  const int granules = static_cast<int>((lds + arch.lds_granule - 1) / arch.lds_granule);
  if (granules)
    groups = std::min(groups, static_cast<int>(arch.lds_bytes / arch.lds_granule) / granules);
  return groups;
}

int attribute(const loader::KernelInfo& info, int attribute) {
  switch (attribute) {
    case 0:
      return static_cast<int>(info.max_workgroup_size);
    case 1:
      return static_cast<int>(info.descriptor.group_segment_bytes);
    case 2:
      return 0;  // constant memory
    case 3:
      return static_cast<int>(info.descriptor.private_segment_bytes);
    case 4:
      return static_cast<int>(info.vgprs);
    case 5:
    case 6:
      return emu::arch().major * 10 + emu::arch().minor;
    case 7:
      return 0;
    case 8:
      return static_cast<int>(emu::arch().lds_bytes - info.descriptor.group_segment_bytes);
    case 9:
      return 0;
  }
  fail(hipErrorInvalidValue, "attribute ", attribute, " is unknown");
}

}  // namespace

HIP_API hipError_t hipModuleLoad(hipModule_t* module, const char* path) {
  return api("hipModuleLoad", [&] {
    need(module, "module");
    need(path, "fname");
    std::error_code error;
    const auto kind = std::filesystem::status(path, error).type();
    if (kind == std::filesystem::file_type::not_found)
      fail(hipErrorFileNotFound, "no file '", path, "'");
    if (kind != std::filesystem::file_type::regular) {
      fail(hipErrorFileNotFound, "'", path, "' is not a regular file");
    }
    std::ifstream in(path, std::ios::binary);
    std::vector<uint8_t> image(std::filesystem::file_size(path));
    in.read(reinterpret_cast<char*>(image.data()), static_cast<std::streamsize>(image.size()));
    if (!in) fail(hipErrorFileNotFound, "cannot read '", path, "'");
    try {
      *module = load(image);
    } catch (rt::Error& error) {
      error.message = rt::text("'", path, "': ", error.message);
      throw;
    }
  });
}

HIP_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return api("hipModuleLoadData", [&] { load_data(module, image); });
}

// The options concern a just-in-time compiler, which code objects do not need.
HIP_API hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, void*,
                                       void**) {
  return api("hipModuleLoadDataEx", [&] { load_data(module, image); });
}

HIP_API hipError_t hipModuleUnload(hipModule_t handle) {
  return api("hipModuleUnload", [&] {
    rt::drain(*runtime().devices[module_of(handle)->device]);
    const auto module = runtime().modules.remove(handle);
    if (!module) fail(hipErrorInvalidHandle, "module ", rt::hex(handle), " does not exist");
    for (const auto& [name, function] : module->functions)
      runtime().functions.remove(function.get());
  });
}

HIP_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                        const char* name) {
  return api("hipModuleGetFunction", [&] {
    need(function, "function");
    need(name, "kname");
    const auto owner = module_of(module);
    const auto it = owner->functions.find(name);
    if (it == owner->functions.end())
      fail(hipErrorNotFound, "no kernel '", name, "' in the module");
    *function = reinterpret_cast<hipFunction_t>(it->second.get());
  });
}

HIP_API hipError_t hipModuleGetGlobal(hipDeviceptr_t* pointer, size_t* bytes, hipModule_t module,
                                      const char* name) {
  return api("hipModuleGetGlobal", [&] {
    need(name, "name");
    const auto owner = module_of(module);
    const auto it = owner->variables.find(name);
    if (it == owner->variables.end())
      fail(hipErrorNotFound, "no variable '", name, "' in the module");
    if (pointer) *pointer = reinterpret_cast<void*>(owner->image.base + it->second.address);
    if (bytes) *bytes = it->second.bytes;
  });
}

HIP_API hipError_t hipFuncGetAttribute(int* value, int attr, hipFunction_t function) {
  return api("hipFuncGetAttribute", [&] {
    need(value, "value");
    *value = attribute(function_of(function)->info, attr);
  });
}

// Every kernel may use all of LDS already; a request for more fails.
HIP_API hipError_t hipFuncSetAttribute(const void* function, int attr, int value) {
  return api("hipFuncSetAttribute", [&] {
    const auto kernel = function_of(function);
    if (attr == 8 && (value < 0 || value > attribute(kernel->info, 8))) {
      fail(hipErrorInvalidValue, "dynamic LDS must be in 0..", attribute(kernel->info, 8), "; got ",
           value);
    }
    if (attr != 8 && attr != 9) fail(hipErrorInvalidValue, "attribute ", attr, " cannot be set");
  });
}

HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* groups, hipFunction_t f,
                                                                      int block, size_t lds) {
  return api("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    need(groups, "numBlocks");
    *groups = groups_per_cu(function_of(f)->info, block, lds);
  });
}
