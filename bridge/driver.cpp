#include "driver.hpp"

#include <dlfcn.h>

namespace cuda {
namespace {

Driver open() {
  Driver d;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    d.problem = dlerror();
    return d;
  }
#define X(name, symbol, parameters)                                    \
  d.name = reinterpret_cast<decltype(d.name)>(dlsym(library, symbol)); \
  if (!d.name) d.problem = "libcuda.so.1 lacks " symbol ": it is too old";
  CUDA_FUNCTIONS(X)
#undef X
  if (d.problem.empty()) {
    if (const Result error = d.init(0)) {
      const char* name = nullptr;
      d.error_name(error, &name);
      d.problem = std::string("cuInit: ") + (name ? name : "unknown error");
    }
  }
  return d;
}

}  // namespace

const Driver& driver() {
  static const Driver opened = open();
  return opened;
}

}  // namespace cuda
