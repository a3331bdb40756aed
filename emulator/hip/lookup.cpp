// Lookup of this library's functions by name, and the two that hip-python calls unchecked.
#include <dlfcn.h>

#include <cstring>

#include "hip/api.hpp"

namespace {

void* symbol(const char* name) {
  // Under its own handle: a process may have another HIP library in its global scope.
  static void* const self = [] {
    Dl_info info{};
    void* const here = reinterpret_cast<void*>(&symbol);
    return dladdr(here, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
  }();
  return self && std::strncmp(name, "hip", 3) == 0 ? dlsym(self, name) : nullptr;
}

}  // namespace

HIP_API hipError_t hipGetProcAddress(const char* name, void** result, int, uint64_t, int* status) {
  return hip::api("hipGetProcAddress", [&] {
    hip::need(name, "symbol");
    hip::need(result, "pfn");
    const bool versioned = !std::strcmp(name, "hipGetDeviceProperties");
    *result = symbol(versioned ? (std::string(name) + "R0600").c_str() : name);
    if (status) *status = *result ? 0 : 1;
    if (!*result) hip::fail(hipErrorNotFound, "no function '", name, "'");
  });
}

// hip-python does not check for these: it would call a null pointer.
HIP_API const char* hipApiName(uint32_t) { return "unknown"; }

HIP_API hipChannelFormatDesc hipCreateChannelDesc(int x, int y, int z, int w, int kind) {
  return {x, y, z, w, kind};
}
