// Modules (PTX text or machine code), their kernels, and launches.
#include <array>

#include "api.hpp"

namespace {

using bridge::api;
using bridge::check;
using bridge::fail;
using bridge::need;
using cuda::driver;

constexpr int kErrorLog = 5, kErrorLogBytes = 6;  // CUjit_option

cuda::Function function_of(hipFunction_t handle) {
  need(handle, "function");
  return reinterpret_cast<cuda::Function>(handle);
}

}  // namespace

HIP_API hipError_t hipModuleLoadData(hipModule_t* module, const void* image) {
  return api("hipModuleLoadData", [&] {
    need(module, "module");
    need(image, "image");
    std::array<char, 8192> log{};
    int options[] = {kErrorLog, kErrorLogBytes};
    void* values[] = {log.data(), reinterpret_cast<void*>(log.size())};
    cuda::Module made = nullptr;
    if (const cuda::Result error = driver().module_load(&made, image, 2, options, values)) {
      const char* name = nullptr;
      driver().error_name(error, &name);
      fail(static_cast<hipError_t>(error), std::string(name ? name : "") + " " + log.data());
    }
    *module = reinterpret_cast<hipModule_t>(made);
  });
}
HIP_API hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned, int*,
                                       void**) {
  return hipModuleLoadData(module, image);
}
HIP_API hipError_t hipModuleUnload(hipModule_t module) {
  return api("hipModuleUnload",
             [&] { check(driver().module_unload(reinterpret_cast<cuda::Module>(module))); });
}
HIP_API hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module,
                                        const char* name) {
  return api("hipModuleGetFunction", [&] {
    need(function, "function");
    need(name, "kname");
    cuda::Function found = nullptr;
    check(driver().module_function(&found, reinterpret_cast<cuda::Module>(module), name));
    *function = reinterpret_cast<hipFunction_t>(found);
  });
}
HIP_API hipError_t hipModuleGetGlobal(hipDeviceptr_t* pointer, size_t* bytes, hipModule_t module,
                                      const char* name) {
  return api("hipModuleGetGlobal", [&] {
    cuda::Pointer found = 0;
    check(driver().module_global(&found, bytes, reinterpret_cast<cuda::Module>(module), name));
    if (pointer) *pointer = reinterpret_cast<void*>(found);
  });
}
HIP_API hipError_t hipFuncGetAttribute(int* value, int attribute, hipFunction_t function) {
  // Both use the same numbers: threads, LDS, constants, scratch, registers, ...
  return api("hipFuncGetAttribute", [&] {
    need(value, "value");
    check(driver().function_attribute(value, attribute, function_of(function)));
  });
}
HIP_API hipError_t hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                                      hipFunction_t function,
                                                                      int threads, size_t shared) {
  return api("hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    need(blocks, "numBlocks");
    check(driver().occupancy(blocks, function_of(function), threads, shared));
  });
}

// Arguments by pointers, or as one block in `extra`, whose list ends with 3 here and with 0 in
// CUDA.
HIP_API hipError_t hipModuleLaunchKernel(hipFunction_t function, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned shared, hipStream_t stream,
                                         void** parameters, void** extra) {
  return api("hipModuleLaunchKernel", [&] {
    void* block = nullptr;
    size_t* size = nullptr;
    if (extra) {
      for (void** entry = extra; *entry != HIP_LAUNCH_PARAM_END; entry += 2) {
        if (entry[0] == HIP_LAUNCH_PARAM_BUFFER_POINTER)
          block = entry[1];
        else if (entry[0] == HIP_LAUNCH_PARAM_BUFFER_SIZE)
          size = static_cast<size_t*>(entry[1]);
        else
          fail(hipErrorInvalidValue, "an unknown entry in extra");
      }
      if (!block || !size) fail(hipErrorInvalidValue, "extra names no argument block, or no size");
    }
    void* list[] = {HIP_LAUNCH_PARAM_BUFFER_POINTER, block, HIP_LAUNCH_PARAM_BUFFER_SIZE, size,
                    nullptr};
    check(driver().launch(function_of(function), grid_x, grid_y, grid_z, block_x, block_y, block_z,
                          shared, bridge::stream_of(stream), parameters, extra ? list : nullptr));
  });
}
