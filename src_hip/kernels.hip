// The kernels of instances.def. All of them in one translation unit: each object file carries a
// metadata note of its own, a linker does not merge them, and a runtime reads one.
#include "copy.hpp"
#include "gemm.hpp"

namespace hipgemm {

using Mfma_bf16 = Mfma16x16x32Bf16;

#define GEMM(format, layout, M, N, K, waves_m, waves_n, schedule, waves_per_simd, limit)          \
  HIPGEMM_KERNEL(waves_m * waves_n * kWaveLanes, waves_per_simd)                                  \
  gemm_##format##_##layout##_##M##x##N##x##K(HIPGEMM_GEMM_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) { \
    gemm<GemmTraits<Mfma_##format, schedule, M, N, K, waves_m, waves_n>>(                         \
        GemmArgs{HIPGEMM_GEMM_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)});                                \
  }

#define COPY(bytes, side, threads)                                                                \
  HIPGEMM_KERNEL(threads, 4)                                                                      \
  copy_strided_b##bytes(HIPGEMM_COPY_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) {                      \
    copy_strided<bytes, side, threads>(CopyArgs{HIPGEMM_COPY_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)}); \
  }

#include "instances.def"

}  // namespace hipgemm
