// Modules and their kernels.
#pragma once

#include <map>
#include <string>

#include "hip/api.hpp"
#include "loader/code_object.hpp"

namespace rt {

struct Function {
  std::weak_ptr<Module> module;
  loader::KernelInfo info;
  emu::Kernel kernel;
};

struct Module {
  ~Module();

  int device = 0;
  Block image;  // the loaded code
  std::map<std::string, std::shared_ptr<Function>> functions;
  std::map<std::string, loader::Variable> variables;
};

}  // namespace rt

namespace hip {

// By a handle, or by the host function that stands for the kernel in a compiled HIP program.
std::shared_ptr<rt::Function> function_of(const void* handle);
// What a compiled program has registered, loaded on a device: null if there is no such function.
std::shared_ptr<rt::Function> registered_function(const void* host, int device);
// The launch of a kernel, checked; for graphs.
std::function<std::optional<rt::Failure>()> kernel_work(const hipKernelNodeParams& node);

}  // namespace hip
