// The kernels of instances.def, or of the part of it that HIPGEMM_INSTANCES names (tools/units.py).
#include "copy.hpp"
#include "dequantize.hpp"
#include "plain.hpp"
#include "quantize.hpp"
#include "rescale.hpp"
#include "scale_pack.hpp"
#include "split_reduce.hpp"
#include "sum_rows.hpp"

#if HIPGEMM_MATRIX_KERNELS
#include "gemm.hpp"
#include "group_scales.hpp"
#include "grouped.hpp"
#include "quantize_groups.hpp"
#endif

namespace hipgemm {

#if HIPGEMM_MATRIX_KERNELS
using Mfma_bf16 = Mfma16x16x32<bf16>;
using Mfma_f16 = Mfma16x16x32<f16>;

template <Narrow kNarrow_, Scaling kScaling_>
struct Format {
  static constexpr Narrow kNarrow = kNarrow_;
  static constexpr Scaling kScaling = kScaling_;
};
using Format_fp8_e4m3 = Format<Narrow::e4m3, Scaling::floats>;
using Format_fp8_e5m2 = Format<Narrow::e5m2, Scaling::floats>;
using Format_mxfp8_e4m3 = Format<Narrow::e4m3, Scaling::blocks>;
using Format_mxfp8_e5m2 = Format<Narrow::e5m2, Scaling::blocks>;
using Format_mxfp4_e2m1 = Format<Narrow::e2m1, Scaling::blocks>;
template <class A, class B>
using MfmaOf = Mfma16x16x128<A::kNarrow, B::kNarrow, A::kScaling>;
#endif

#define GEMM(format, layout, M, N, K, waves_m, waves_n, schedule, waves_per_simd, limit)          \
  HIPGEMM_KERNEL(waves_m * waves_n * kWaveLanes, waves_per_simd)                                  \
  gemm_##format##_##layout##_##M##x##N##x##K(HIPGEMM_GEMM_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) { \
    gemm<GemmTraits<Mfma_##format, schedule, M, N, K, waves_m, waves_n, Layout_##layout>>(        \
        GemmArgs{HIPGEMM_GEMM_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)});                                \
  }

#define SCALED_GEMM(name, a, b, layout, M, N, K, waves_m, waves_n, schedule, waves_per_simd,     \
                    limit)                                                                       \
  HIPGEMM_KERNEL(waves_m * waves_n * kWaveLanes, waves_per_simd)                                 \
  gemm_##name##_##layout##_##M##x##N##x##K(HIPGEMM_GEMM_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA),    \
                                           HIPGEMM_SCALE_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) { \
    gemm<GemmTraits<MfmaOf<Format_##a, Format_##b>, schedule, M, N, K, waves_m, waves_n,         \
                    Layout_##layout>>(                                                           \
        ScaledGemmArgs{HIPGEMM_GEMM_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA),                           \
                       HIPGEMM_SCALE_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)});                        \
  }

#define GROUPED(walk, format, layout, M, N, K, waves_m, waves_n, schedule, waves_per_simd, limit) \
  HIPGEMM_KERNEL(waves_m * waves_n * kWaveLanes, waves_per_simd)                                  \
  grouped_##walk##_##format##_##layout##_##M##x##N##x##K(                                         \
      HIPGEMM_GROUPED_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) {                                     \
    grouped_##walk<                                                                               \
        GemmTraits<Mfma_##format, schedule, M, N, K, waves_m, waves_n, Layout_##layout>>(         \
        GroupedArgs{{}, HIPGEMM_GROUPED_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)});                      \
  }

#define SCALED_GROUPED(walk, name, a, b, layout, M, N, K, waves_m, waves_n, schedule,              \
                       waves_per_simd, limit)                                                      \
  HIPGEMM_KERNEL(waves_m * waves_n * kWaveLanes, waves_per_simd)                                   \
  grouped_##walk##_##name##_##layout##_##M##x##N##x##K(                                            \
      HIPGEMM_GROUPED_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA),                                        \
      HIPGEMM_GROUPED_SCALE_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) {                                \
    grouped_##walk<GemmTraits<MfmaOf<Format_##a, Format_##b>, schedule, M, N, K, waves_m, waves_n, \
                              Layout_##layout>>(                                                   \
        ScaledGroupedArgs{{},                                                                      \
                          HIPGEMM_GROUPED_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA),                       \
                          HIPGEMM_GROUPED_SCALE_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)});               \
  }

#define PLAIN(M, N, K, threads, waves_per_simd)                                               \
  HIPGEMM_KERNEL(threads, waves_per_simd)                                                     \
  plain_gemm(HIPGEMM_PLAIN_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) {                            \
    static_assert(M == PlainTile::kRows && N == PlainTile::kRows && K == PlainTile::kK, "");  \
    hipgemm::plain_gemm<threads>(PlainArgs{HIPGEMM_PLAIN_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)}); \
  }

#define COPY(bytes, side, threads, waves_per_simd)                                                \
  HIPGEMM_KERNEL(threads, waves_per_simd)                                                         \
  copy_strided_b##bytes(HIPGEMM_COPY_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) {                      \
    copy_strided<bytes, side, threads>(CopyArgs{HIPGEMM_COPY_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)}); \
  }

#define PASS(name, ARGS, Args, threads, waves_per_simd, ...)                          \
  HIPGEMM_KERNEL(threads, waves_per_simd)                                             \
  name(HIPGEMM_##ARGS##_ARGS(HIPGEMM_DECLARE, HIPGEMM_COMMA)) {                       \
    hipgemm::name<threads>(Args{HIPGEMM_##ARGS##_ARGS(HIPGEMM_NAME, HIPGEMM_COMMA)}); \
  }

#if !defined(HIPGEMM_INSTANCES)
#define HIPGEMM_INSTANCES "instances.def"
#endif
#include HIPGEMM_INSTANCES

}  // namespace hipgemm
