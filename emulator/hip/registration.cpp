// What programs compiled by hipcc call: their kernels and variables are registered before main, and
// a kernel is launched by the address of its host function.
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "hip/copy.hpp"
#include "hip/module.hpp"

HIP_API hipError_t hipModuleLoadData(hipModule_t*, const void*);
HIP_API hipError_t hipModuleGetFunction(hipFunction_t*, hipModule_t, const char*);
HIP_API hipError_t hipModuleGetGlobal(hipDeviceptr_t*, size_t*, hipModule_t, const char*);

namespace {

using hip::api;
using hip::fail;
using hip::need;

// A fat binary of the program: a code object, or a bundle of them. It is loaded on a device when
// the device first uses it.
struct Binary {
  const void* image = nullptr;
  std::map<int, hipModule_t> loaded;
};
struct Symbol {
  Binary* binary;
  std::string name;
};
struct Registered {
  std::mutex mutex;
  std::map<const void*, Symbol> functions, variables;
};
Registered& registered() {
  static auto* const all = new Registered;  // outlives the program's own destructors
  return *all;
}

// The wrapper that the compiler makes, in section .hipFatBinSegment.
struct Wrapper {
  uint32_t magic, version;
  const void* binary;
  void* unused;
};
constexpr uint32_t kMagic = 0x48495046;  // "HIPF"

hipModule_t module_on(Binary& binary, int device) {
  hipModule_t& module = binary.loaded[device];
  if (!module) {
    const int before = rt::current_device().id;
    rt::set_current_device(device);
    const hipError_t error = hipModuleLoadData(&module, binary.image);
    rt::set_current_device(before);
    if (error) fail(error, "the program's code objects: ", rt::last_report());
  }
  return module;
}

std::optional<Symbol> find(const std::map<const void*, Symbol>& symbols, const void* host) {
  const auto found = symbols.find(host);
  return found == symbols.end() ? std::nullopt : std::optional(found->second);
}

struct Variable {
  uint64_t address;
  size_t bytes;
};
Variable variable(const void* host) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  const auto symbol = find(all.variables, host);
  if (!symbol) fail(hipErrorInvalidSymbol, rt::hex(host), " is no variable of a kernel");
  void* address = nullptr;
  size_t bytes = 0;
  if (const hipError_t error =
          hipModuleGetGlobal(&address, &bytes, module_on(*symbol->binary, rt::current_device().id),
                             symbol->name.c_str()))
    fail(error, rt::last_report());
  return {hip::address_of(address), bytes};
}

struct Configuration {
  dim3 grid, block;
  size_t lds;
  hipStream_t stream;
};
thread_local std::vector<Configuration> configurations;  // of <<<>>>, until the kernel is called

}  // namespace

namespace hip {

std::shared_ptr<rt::Function> registered_function(const void* host, int device) {
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  const auto symbol = find(all.functions, host);
  if (!symbol) return nullptr;
  hipFunction_t function = nullptr;
  if (const hipError_t error =
          hipModuleGetFunction(&function, module_on(*symbol->binary, device), symbol->name.c_str()))
    fail(error, rt::last_report());
  return rt::runtime().functions.get(function);
}

}  // namespace hip

HIP_API void** __hipRegisterFatBinary(const void* data) {
  const auto* const wrapper = static_cast<const Wrapper*>(data);
  if (!wrapper || wrapper->magic != kMagic || wrapper->version != 1) return nullptr;
  return reinterpret_cast<void**>(new Binary{wrapper->binary, {}});
}
HIP_API void __hipUnregisterFatBinary(void** handle) {
  auto* const binary = reinterpret_cast<Binary*>(handle);
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.functions, [&](const auto& entry) { return entry.second.binary == binary; });
  std::erase_if(all.variables, [&](const auto& entry) { return entry.second.binary == binary; });
  delete binary;  // its modules stay: work that uses them may be queued
}
HIP_API void __hipRegisterFunction(void** handle, const void* host, char*, const char* name,
                                   unsigned, void*, void*, void*, void*, int*) {
  if (!handle) return;
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.functions[host] = {reinterpret_cast<Binary*>(handle), name};
}
HIP_API void __hipRegisterVar(void** handle, void* host, char*, const char* name, int, size_t, int,
                              int) {
  if (!handle) return;
  Registered& all = registered();
  const std::lock_guard lock(all.mutex);
  all.variables[host] = {reinterpret_cast<Binary*>(handle), name};
}

HIP_API hipError_t __hipPushCallConfiguration(dim3 grid, dim3 block, size_t lds,
                                              hipStream_t stream) {
  return api("__hipPushCallConfiguration",
             [&] { configurations.push_back({grid, block, lds, stream}); });
}
HIP_API hipError_t __hipPopCallConfiguration(dim3* grid, dim3* block, size_t* lds,
                                             hipStream_t* stream) {
  return api("__hipPopCallConfiguration", [&] {
    if (configurations.empty()) fail(hipErrorInvalidValue, "no launch has begun");
    const Configuration last = configurations.back();
    configurations.pop_back();
    *grid = last.grid;
    *block = last.block;
    *lds = last.lds;
    *stream = last.stream;
  });
}

HIP_API hipError_t hipGetSymbolAddress(void** address, const void* symbol) {
  return api("hipGetSymbolAddress", [&] {
    need(address, "devPtr");
    *address = reinterpret_cast<void*>(variable(symbol).address);
  });
}
HIP_API hipError_t hipGetSymbolSize(size_t* bytes, const void* symbol) {
  return api("hipGetSymbolSize", [&] {
    need(bytes, "size");
    *bytes = variable(symbol).bytes;
  });
}
HIP_API hipError_t hipMemcpyToSymbol(const void* symbol, const void* from, size_t bytes,
                                     size_t offset, hipMemcpyKind kind) {
  return api("hipMemcpyToSymbol", [&] {
    hip::copy(hip::stream_of(nullptr), {variable(symbol).address + offset}, {hip::address_of(from)},
              {bytes}, kind, hip::Wait::yes);
  });
}
HIP_API hipError_t hipMemcpyFromSymbol(void* to, const void* symbol, size_t bytes, size_t offset,
                                       hipMemcpyKind kind) {
  return api("hipMemcpyFromSymbol", [&] {
    hip::copy(hip::stream_of(nullptr), {hip::address_of(to)}, {variable(symbol).address + offset},
              {bytes}, kind, hip::Wait::yes);
  });
}
