// Kernel arguments. The header of each kernel lists them once, as a macro that instances.def names:
// the kernel's parameters, a struct and the manifest all come from that list.
#pragma once

#include "common/types.hpp"

// #define HIPGEMM_SomeArgs(X) X(type, name) ..: the arguments in order; types: ptr, i64, u32, f32.
// HIPGEMM_STRUCT(SomeArgs) in namespace hipgemm defines struct SomeArgs, which the kernel's
// function takes. Strides count bytes and may be negative, but for those called ld*, which count
// elements.

namespace hipgemm {

using ptr = void*;

// A kernel's parameters, and their names.
#define HIPGEMM_PARAMETER(type, name) , type name
#define HIPGEMM_ALL_BUT_FIRST(first, ...) __VA_ARGS__
#define HIPGEMM_AFTER_COMMA(...) HIPGEMM_ALL_BUT_FIRST(__VA_ARGS__)
#define HIPGEMM_PARAMETERS(Args) HIPGEMM_AFTER_COMMA(HIPGEMM_##Args(HIPGEMM_PARAMETER))
#define HIPGEMM_NAME(type, name) name,
#define HIPGEMM_NAMES(Args) HIPGEMM_##Args(HIPGEMM_NAME)

#define HIPGEMM_MEMBER(type, name) type name;
#define HIPGEMM_MEMBERS(Args) HIPGEMM_##Args(HIPGEMM_MEMBER)
#define HIPGEMM_STRUCT(Args) \
  struct Args {              \
    HIPGEMM_MEMBERS(Args)    \
  }

}  // namespace hipgemm
