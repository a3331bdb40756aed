// Defines kernels, from rows that tools/instances.py makes of instances.def. HIPGEMM_INSTANCES
// names a file with the rows of one translation unit, after the headers that they need
// (tools/units.py).
#include "common/kargs.hpp"

// A GEMM kernel: a tile of C for each workgroup.
#define PRODUCT_KERNEL(name, operation, Args, a, b, mfma_rows, layout, M, N, K, waves_m, waves_n, \
                       schedule, waves_per_simd)                                                  \
  namespace hipgemm {                                                                             \
  HIPGEMM_PRODUCT(waves_m * waves_n * kWaveLanes, waves_per_simd)                                 \
  name(HIPGEMM_PARAMETERS(Args)) {                                                                \
    operation<GemmTraits<MfmaFor<Format::a, Format::b, mfma_rows, kIsNt<Layout_##layout>>::Type,  \
                         schedule, M, N, K, waves_m, waves_n, Layout_##layout>>(                  \
        Args{HIPGEMM_NAMES(Args)});                                                               \
  }                                                                                               \
  }

// Any other kernel. Its function gets the number of threads, the tile of a workgroup and the rest
// of the row as template arguments.
#define PASS_KERNEL(name, operation, Args, threads, waves_per_simd, ...)   \
  namespace hipgemm {                                                      \
  HIPGEMM_KERNEL(threads, waves_per_simd) name(HIPGEMM_PARAMETERS(Args)) { \
    hipgemm::operation<threads, __VA_ARGS__>(Args{HIPGEMM_NAMES(Args)});   \
  }                                                                        \
  }

#include HIPGEMM_INSTANCES
