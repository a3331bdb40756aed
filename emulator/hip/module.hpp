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

std::shared_ptr<rt::Function> function_of(const void* handle);
// The launch of a kernel, checked; for graphs.
std::function<std::optional<rt::Failure>()> kernel_work(const hipKernelNodeParams& node);

}  // namespace hip
