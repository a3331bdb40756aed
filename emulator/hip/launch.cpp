// Kernel launches: checks, the argument block, and the work that executes the kernel.
#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <string_view>

#include "core/mutant.hpp"
#include "hip/event.hpp"
#include "hip/module.hpp"
#include "hip/properties.hpp"
#include "runtime/host_memory.hpp"

namespace {

using hip::api;
using hip::fail;
using hip::need;
using rt::Failure;
using rt::Function;

struct Shape {
  uint32_t grid[3];   // workgroups
  uint32_t block[3];  // lanes
  uint32_t dynamic_lds;
};

// The argument block, aligned as the hardware's.
class Kernarg {
 public:
  explicit Kernarg(size_t bytes)
      : bytes_(bytes),
        data_(static_cast<uint8_t*>(::operator new(std::max<size_t>(bytes, 64), kAlign))) {
    std::memset(data_.get(), 0, std::max<size_t>(bytes, 64));
  }
  uint8_t* data() { return data_.get(); }
  std::span<const uint8_t> span() const { return {data_.get(), bytes_}; }

 private:
  static constexpr std::align_val_t kAlign{64};
  struct Delete {
    void operator()(uint8_t* data) const { ::operator delete(data, kAlign); }
  };
  size_t bytes_;
  std::unique_ptr<uint8_t[], Delete> data_;
};

struct Dispatch {
  std::shared_ptr<Function> function;
  std::shared_ptr<rt::Module> module;  // keeps the code loaded
  Shape shape;
  Kernarg kernarg;
  emu::Launch launch;
  std::unique_ptr<emu::Execution> execution;  // since it has begun
};

std::string shape_text(const uint32_t (&size)[3]) {
  return rt::text("(", size[0], ", ", size[1], ", ", size[2], ")");
}

template <class... Parts>
[[noreturn]] void refuse(hipError_t code, const loader::KernelInfo& info, const Parts&... parts) {
  fail(code, "kernel ", info.name, ": ", parts...);
}

void check_shape(const loader::KernelInfo& info, const Shape& shape) {
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (!shape.grid[i] || !shape.block[i]) {
      refuse(hipErrorInvalidConfiguration, info, "grid and block must be positive; got grid ",
             shape_text(shape.grid), ", block ", shape_text(shape.block));
    }
    if (shape.grid[i] > hip::kMaxGrid[i] || uint64_t{shape.grid[i]} * shape.block[i] > UINT32_MAX) {
      refuse(hipErrorInvalidConfiguration, info, "grid ", shape_text(shape.grid), " of blocks ",
             shape_text(shape.block),
             " exceeds the grid limits (2147483647, 65536, 65536) or 2^32 lanes");
    }
    if (shape.block[i] > hip::kMaxThreads) threads = UINT32_MAX;
    threads = std::min<uint64_t>(threads * shape.block[i], UINT32_MAX);
  }
  if (threads > hip::kMaxThreads) {
    refuse(hipErrorInvalidConfiguration, info, "a block may have ", hip::kMaxThreads,
           " lanes; got ", shape_text(shape.block));
  }
  if (threads > info.max_workgroup_size) {
    refuse(hipErrorLaunchFailure, info, "compiled for at most ", info.max_workgroup_size,
           " lanes in a block; got ", shape_text(shape.block));
  }
  for (int i = 0; i < 3; ++i) {
    if (info.required_workgroup_size[0] && info.required_workgroup_size[i] != shape.block[i]) {
      refuse(hipErrorLaunchFailure, info, "compiled for blocks of ",
             shape_text(info.required_workgroup_size), "; got ", shape_text(shape.block));
    }
  }
  if (shape.dynamic_lds > emu::arch().lds_bytes) {
    refuse(hipErrorInvalidValue, info, "dynamic LDS must be at most ", emu::arch().lds_bytes,
           "; got ", shape.dynamic_lds);
  }
  if (uint64_t{shape.dynamic_lds} + info.descriptor.group_segment_bytes > emu::arch().lds_bytes) {
    refuse(hipErrorLaunchOutOfResources, info, info.descriptor.group_segment_bytes,
           " bytes of LDS and ", shape.dynamic_lds, " dynamic ones exceed the CU's ",
           emu::arch().lds_bytes);
  }
}

// The caller's arguments: an array of pointers, one for each, or one packed block.
void copy_arguments(const loader::KernelInfo& info, void** params, void** extra, Kernarg& kernarg) {
  if (params && extra) fail(hipErrorInvalidValue, "kernelParams and extra exclude each other");
  if (params) {
    std::vector<rt::Piece> pieces;
    for (const loader::Argument& argument : info.arguments) {
      if (argument.hidden()) continue;
      pieces.push_back({kernarg.data() + argument.offset, nullptr, argument.bytes});
    }
    std::vector<const void*> pointers(pieces.size());
    const rt::Piece list{pointers.data(), params, pointers.size() * sizeof(void*)};
    if (!rt::read_host({&list, 1})) {
      refuse(hipErrorInvalidValue, info, "kernelParams (", pointers.size(), " pointers at ",
             rt::hex(params), ") cannot be read");
    }
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i].host = pointers[i];
    if (!rt::read_host(pieces)) {
      refuse(hipErrorInvalidValue, info, "one of the ", pieces.size(),
             " arguments that kernelParams points to cannot be read");
    }
    return;
  }
  if (!extra) {
    if (info.explicit_bytes) {
      refuse(hipErrorInvalidValue, info,
             "takes arguments, but neither kernelParams nor extra is given");
    }
    return;
  }
  const void* block = nullptr;
  const size_t* bytes = nullptr;
  for (int i = 0; extra[i] != HIP_LAUNCH_PARAM_END; i += 2) {
    if (i > 2) refuse(hipErrorInvalidValue, info, "extra has no HIP_LAUNCH_PARAM_END");
    if (extra[i] == HIP_LAUNCH_PARAM_BUFFER_POINTER) {
      block = extra[i + 1];
    } else if (extra[i] == HIP_LAUNCH_PARAM_BUFFER_SIZE) {
      bytes = static_cast<const size_t*>(extra[i + 1]);
    } else {
      refuse(hipErrorInvalidValue, info, "extra has an unknown key ", rt::hex(extra[i]));
    }
  }
  if (!bytes || (!block && *bytes)) {
    refuse(hipErrorInvalidValue, info, "extra must give the argument block and its size");
  }
  // A C struct of the arguments may be padded at its end to the alignment of its widest member;
  // callers of hand-written kernels pass one struct to several of them.
  const uint64_t padded = (info.explicit_bytes + 15) / 16 * 16;
  if (*bytes < info.explicit_bytes || (*bytes > padded && !info.lists_padding)) {
    refuse(hipErrorInvalidValue, info, "the argument block must have ", info.explicit_bytes,
           " bytes; got ", *bytes);
  }
  const rt::Piece piece{kernarg.data(), block, info.explicit_bytes};
  if (!rt::read_host({&piece, 1})) {
    refuse(hipErrorInvalidValue, info, "the argument block at ", rt::hex(block), " cannot be read");
  }
  // What follows three arguments is packed without gaps.
  constexpr size_t kFirst = 24, kGap = 4;
  if (emu::is_mutant("arguments") && info.explicit_bytes > kFirst)
    std::memmove(kernarg.data() + kFirst - kGap, kernarg.data() + kFirst,
                 info.explicit_bytes - kFirst);
}

// The hidden arguments after the explicit ones. Those that need a runtime service that does
// not exist here (printf, device-side malloc, multi-grid) stay null.
void add_hidden_arguments(const loader::KernelInfo& info, const Shape& shape, Kernarg& kernarg) {
  for (const loader::Argument& argument : info.arguments) {
    if (!argument.hidden()) continue;
    const auto store = [&](uint64_t value) {
      std::memcpy(kernarg.data() + argument.offset, &value, std::min<uint64_t>(argument.bytes, 8));
    };
    const std::string_view kind = argument.kind;
    const auto axis = static_cast<unsigned>(kind.back() - 'x');
    if (axis < 3) {
      const std::string_view family = kind.substr(0, kind.size() - 1);
      if (family == "hidden_block_count_") store(shape.grid[axis]);
      if (family == "hidden_group_size_") store(shape.block[axis]);
      // hidden_remainder_ is the size of a partial last block: HIP's grids have none.
      // hidden_global_offset_ is an OpenCL notion, zero in HIP.
    }
    if (kind == "hidden_grid_dims")
      store(shape.grid[2] * shape.block[2] > 1 ? 3 : shape.grid[1] * shape.block[1] > 1 ? 2 : 1);
    if (kind == "hidden_dynamic_lds_size") store(shape.dynamic_lds);
  }
}

hipError_t fault_code(emu::FaultKind kind) {
  switch (kind) {
    case emu::FaultKind::illegal_address:
      return hipErrorIllegalAddress;
    case emu::FaultKind::out_of_resources:
      return hipErrorLaunchOutOfResources;
    case emu::FaultKind::illegal_instruction:  // HIP has no code of its own for it
    case emu::FaultKind::launch_failure:
      break;
  }
  return hipErrorLaunchFailure;
}

std::optional<Failure> run(Dispatch& dispatch, const rt::Device& device) {
  emu::Launch& launch = dispatch.launch;
  launch.kernel = &dispatch.function->kernel;
  for (int i = 0; i < 3; ++i) {
    launch.workgroups[i] = dispatch.shape.grid[i];
    launch.workgroup_size[i] = dispatch.shape.block[i];
  }
  launch.dynamic_lds_bytes = dispatch.shape.dynamic_lds;
  launch.kernarg = dispatch.kernarg.span();
  launch.memory = &device.memory;
  launch.device = device.id;
  if (!dispatch.execution) dispatch.execution = std::make_unique<emu::Execution>(launch);
  if (!dispatch.execution->go_on(rt::deadline())) return Failure{{}, false, true};
  const auto execution = std::move(dispatch.execution);  // in a graph, it runs again
  const loader::KernelInfo& info = dispatch.function->info;
  rt::runtime().launches.add(launch, {info.vgprs, info.agprs, info.sgprs}, execution->counters());
  const std::optional<emu::Fault>& fault = execution->fault();
  if (!fault) return std::nullopt;
  return Failure{{fault_code(fault->kind), fault->message}, true};
}

std::function<std::optional<Failure>()> prepare(const void* handle, const Shape& shape,
                                                void** params, void** extra) {
  const auto function = hip::function_of(handle);
  const auto module = function->module.lock();
  if (!module)
    fail(hipErrorInvalidHandle, "kernel ", function->info.name, ": its module was unloaded");
  check_shape(function->info, shape);
  auto dispatch = std::make_shared<Dispatch>(
      Dispatch{function, module, shape, Kernarg(function->info.kernarg_bytes), {}, nullptr});
  copy_arguments(function->info, params, extra, dispatch->kernarg);
  add_hidden_arguments(function->info, shape, dispatch->kernarg);
  const rt::Device& device = rt::device(module->device);
  return [dispatch, &device] { return run(*dispatch, device); };
}

void launch(const void* handle, const Shape& shape, hipStream_t stream_handle, void** params,
            void** extra) {
  const auto function = hip::function_of(handle);
  const auto stream = hip::stream_of(stream_handle);
  const auto module = function->module.lock();
  if (module && module->device != stream->device.id) {
    fail(hipErrorInvalidHandle, "kernel ", function->info.name, " was loaded on device ",
         module->device, ", the stream is of device ", stream->device.id);
  }
  stream->enqueue({prepare(handle, shape, params, extra), {}});
}

Shape shape_of(const dim3& grid, const dim3& block, size_t lds) {
  const auto bytes = static_cast<uint32_t>(std::min<size_t>(lds, UINT32_MAX));
  return {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, bytes};
}

}  // namespace

std::function<std::optional<rt::Failure>()> hip::kernel_work(const hipKernelNodeParams& node) {
  return prepare(node.func, shape_of(node.gridDim, node.blockDim, node.sharedMemBytes),
                 node.kernelParams, node.extra);
}

HIP_API hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned grid_x, unsigned grid_y,
                                         unsigned grid_z, unsigned block_x, unsigned block_y,
                                         unsigned block_z, unsigned lds, hipStream_t stream,
                                         void** params, void** extra) {
  return api("hipModuleLaunchKernel", [&] {
    launch(f, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, lds}, stream, params, extra);
  });
}

// Without grid-wide barriers, which would need all workgroups to run at a time.
HIP_API hipError_t hipModuleLaunchCooperativeKernel(hipFunction_t f, unsigned grid_x,
                                                    unsigned grid_y, unsigned grid_z,
                                                    unsigned block_x, unsigned block_y,
                                                    unsigned block_z, unsigned lds,
                                                    hipStream_t stream, void** params) {
  return api("hipModuleLaunchCooperativeKernel", [&] {
    launch(f, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, lds}, stream, params,
           nullptr);
  });
}

HIP_API hipError_t hipDrvLaunchKernelEx(const HIP_LAUNCH_CONFIG* config, hipFunction_t f,
                                        void** params, void** extra) {
  return api("hipDrvLaunchKernelEx", [&] {
    need(config, "config");
    if (config->numAttrs) fail(hipErrorNotSupported, "launch attributes are not emulated");
    launch(f,
           {{config->gridDimX, config->gridDimY, config->gridDimZ},
            {config->blockDimX, config->blockDimY, config->blockDimZ},
            config->sharedMemBytes},
           config->hStream, params, extra);
  });
}

// `f` is the host function of a compiled program, or a kernel of a module.
HIP_API hipError_t hipLaunchKernel(const void* f, dim3 grid, dim3 block, void** params, size_t lds,
                                   hipStream_t stream) {
  return api("hipLaunchKernel", [&] {
    const int device = hip::stream_of(stream)->device.id;
    if (!rt::runtime().functions.get(f) && !hip::registered_function(f, device)) {
      fail(hipErrorInvalidDeviceFunction, rt::hex(f),
           " is neither a kernel of the program nor from hipModuleGetFunction");
    }
    launch(f, shape_of(grid, block, lds), stream, params, nullptr);
  });
}
