// Kernels of a few lines, each with a known answer: hipgemm/inspect/known_answers.py has them. In
// each a thread reads words, does the one thing that is in question, and writes words.
#pragma once

#include "common/memory.hpp"
#include "common/types.hpp"

// As the macros of kernels.hip.
#define PRIMITIVE_KERNEL(name, Args, threads)                 \
  namespace hipgemm {                                         \
  HIPGEMM_KERNEL(threads, 1) name(HIPGEMM_PARAMETERS(Args)) { \
    hipgemm::name<threads>(Args{HIPGEMM_NAMES(Args)});        \
  }                                                           \
  }

namespace hipgemm {

// in, out: consecutive words of each thread of all workgroups, unless the kernel says otherwise.
#define HIPGEMM_PrimitiveArgs(X) \
  X(ptr, in)                     \
  X(ptr, out)                    \
  X(u32, n)
HIPGEMM_STRUCT(PrimitiveArgs);

template <u32 kThreads>
HIPGEMM_DEVICE u32 global_index() {
  return workgroup_index() * kThreads + thread_index();
}
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE Vector<u32, kWords> read_words(const PrimitiveArgs& args) {
  Vector<u32, kWords> x;
#pragma unroll
  for (u32 i = 0; i < kWords; i++)
    x[i] = global<u32>(address_of(args.in))[global_index<kThreads>() * kWords + i];
  return x;
}
template <u32 kThreads, u32 kWords>
HIPGEMM_DEVICE void write_words(const PrimitiveArgs& args, Vector<u32, kWords> x) {
#pragma unroll
  for (u32 i = 0; i < kWords; i++)
    global<u32>(address_of(args.out))[global_index<kThreads>() * kWords + i] = x[i];
}

HIPGEMM_DEVICE f32 as_float(u32 x) { return __builtin_bit_cast(f32, x); }
HIPGEMM_DEVICE u32 as_bits(f32 x) { return __builtin_bit_cast(u32, x); }

}  // namespace hipgemm
