// Every builtin that the kernels use, for a compiler that is not the pinned one (tools/probe.py):
// compiled in a second, it shows what that one lacks. It is never launched.
#include "common/memory.hpp"

namespace hipgemm {

HIPGEMM_KERNEL(64, 1) probe(u64 address, u32 count, u64 result) {
  static __shared__ __attribute__((aligned(1024))) u8 lds[4096];
  LdsByte* const stage = (LdsByte*)lds;
  const u32 thread = __builtin_amdgcn_workitem_id_x(), group = __builtin_amdgcn_workgroup_id_x();
  const u32 groups = *(Constant<u32>*)__builtin_amdgcn_implicitarg_ptr() +
                     __builtin_ctz(*(Constant<u32>*)__builtin_amdgcn_kernarg_segment_ptr());

  // Memory: raw buffers, DMA into LDS, transposing reads.
  const __amdgpu_buffer_rsrc_t from =
      __builtin_amdgcn_make_buffer_rsrc(reinterpret_cast<void*>(address), 0, count, 0x00020000);
  u32x4 x = __builtin_amdgcn_raw_buffer_load_b128(from, thread * 16, 0, 0);
  x.xy += __builtin_amdgcn_raw_buffer_load_b64(from, thread * 8, 0, 0);
  x.x += __builtin_amdgcn_raw_buffer_load_b32(from, thread * 4, 0, 0);
  x.y += __builtin_amdgcn_raw_buffer_load_b16(from, thread * 2, 0, 0);
  x.z += __builtin_amdgcn_raw_buffer_load_b8(from, thread, 0, 0);
  __builtin_amdgcn_raw_ptr_buffer_load_lds(from, stage, 16, thread * 16, group * 1024, 0, 0);
  __builtin_amdgcn_s_waitcnt(0x0f70);
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
  __builtin_amdgcn_sched_barrier(0);
  using Lds16 = __attribute__((address_space(3))) Vector<short, 4>;
  using Lds8 = __attribute__((address_space(3))) Vector<int, 2>;
  x.xy += __builtin_bit_cast(u32x2,
                             __builtin_amdgcn_ds_read_tr16_b64_v4i16((Lds16*)(stage + thread * 8)));
  x.zw += __builtin_bit_cast(u32x2,
                             __builtin_amdgcn_ds_read_tr8_b64_v2i32((Lds8*)(stage + thread * 8)));
  using Lds6 = __attribute__((address_space(3))) Vector<int, 3>;
  x.x += __builtin_amdgcn_ds_read_tr6_b96_v3i32((Lds6*)(stage + thread * 16))[2];

  // Matrix instructions.
  __builtin_amdgcn_s_setprio(1);
  f32x4 sum = f32x4(0.0f);
  const bf16x8 brain = __builtin_bit_cast(bf16x8, x);
  const f16x8 half = __builtin_bit_cast(f16x8, x);
  const Vector<int, 4> codes = __builtin_bit_cast(Vector<int, 4>, x);
  const i32x8 wide = __builtin_shufflevector(codes, codes, 0, 1, 2, 3, -1, -1, -1, -1);
  sum = __builtin_amdgcn_mfma_f32_16x16x32_bf16(brain, brain, sum, 0, 0, 0);
  sum = __builtin_amdgcn_mfma_f32_16x16x32_f16(half, half, sum, 0, 0, 0);
  sum = __builtin_amdgcn_mfma_f32_16x16x16f16(half.lo, half.hi, sum, 0, 0, 0);
  const auto shorts = __builtin_bit_cast(Vector<short, 8>, x);
  sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(shorts.lo, shorts.hi, sum, 0, 0, 0);
  const auto eight = __builtin_bit_cast(Vector<long, 2>, x);
  sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(eight.x, eight.y, sum, 0, 0, 0);
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(wide, wide, sum, 0, 1, 0, 0, 0, 0);
  sum = __builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4(wide, wide, sum, 4, 4, 1, x.z, 2, x.w);
  using F32x16 = Vector<f32, 16>;
  const F32x16 large = __builtin_amdgcn_mfma_scale_f32_32x32x64_f8f6f4(wide, wide, F32x16(sum.x), 4,
                                                                       4, 1, x.z, 2, x.w);
  sum += large.lo.lo;
  __builtin_amdgcn_s_setprio(0);

  // Lanes.
  const auto swapped = __builtin_amdgcn_permlane16_swap(x.x, x.y, false, false);
  x.x = swapped[0] + __builtin_amdgcn_readfirstlane(x.z);
  x.y = swapped[1] + __builtin_amdgcn_readlane(x.w, groups & 63);
  x.z = __builtin_amdgcn_mov_dpp(x.z, 0x140, 15, 15, true);
  x.w = __builtin_amdgcn_update_dpp(0, static_cast<int>(x.w), 0x111, 15, 15, false);
  const u64 ballot = __builtin_amdgcn_ballot_w64(x.x > count);
  x.z += __builtin_popcountll(ballot) + (ballot ? __builtin_ctzll(ballot) : 0);

  // Casts.
  u32 code = __builtin_amdgcn_cvt_pk_fp8_f32(sum.x, sum.y, 0, false);
  code = __builtin_amdgcn_cvt_pk_bf8_f32(sum.z, sum.w, code, true);
  code = __builtin_amdgcn_cvt_sr_fp8_f32(sum.x, x.z, code, 2);
  code = __builtin_amdgcn_cvt_sr_bf8_f32(sum.y, x.w, code, 3);
  sum.xy += __builtin_amdgcn_cvt_pk_f32_fp8(code, false);
  sum.zw += __builtin_amdgcn_cvt_pk_f32_bf8(code, true);
  code = __builtin_amdgcn_cvt_scalef32_pk_fp4_f32(code, sum.x, sum.y, 1.0f, 1);
  sum.xy += __builtin_amdgcn_cvt_scalef32_pk_f32_fp4(code, 1.0f, 2);
  const auto sixes =
      __builtin_amdgcn_cvt_scalef32_2xpk16_fp6_f32(F32x16(sum.x), F32x16(sum.y), 1.0f);
  const auto others =
      __builtin_amdgcn_cvt_scalef32_2xpk16_bf6_f32(F32x16(sum.z), F32x16(sum.w), 1.0f);
  sum.x += __builtin_amdgcn_cvt_scalef32_pk32_f32_fp6(sixes, 1.0f)[3];
  sum.y += __builtin_amdgcn_cvt_scalef32_pk32_f32_bf6(others, 1.0f)[3];
  bf16x2 pair = __builtin_amdgcn_cvt_scalef32_pk_bf16_fp4(code, 1.0f, 1);
  pair += __builtin_amdgcn_cvt_scalef32_pk_bf16_fp8(code, 1.0f, true);
  pair += __builtin_amdgcn_cvt_scalef32_pk_bf16_bf8(code, 1.0f, true);
  pair.x += __builtin_amdgcn_cvt_scalef32_pk32_bf16_fp6(sixes, 1.0f)[5];
  pair.y += __builtin_amdgcn_cvt_scalef32_pk32_bf16_bf6(others, 1.0f)[5];
  x.z += __builtin_bit_cast(u32, pair);
  x.x += __builtin_bit_cast(u32, __builtin_convertvector(sum.xy, bf16x2));
  x.y += __builtin_bit_cast(u32, __builtin_convertvector(sum.zw, f16x2));

  // Arithmetic.
  x.x = __builtin_amdgcn_perm(x.x, x.y, 0x05040100) + __builtin_amdgcn_alignbit(x.z, x.w, 8);
  x.y += __builtin_amdgcn_ubfe(x.x, x.z & 31, 8) + __builtin_bitreverse32(x.w);
  x.z += static_cast<u32>(__builtin_amdgcn_sbfe(static_cast<int>(x.x), x.w & 31, 8));
  x.w += __builtin_isunordered(sum.x, sum.y) != 0;
  sum = __builtin_elementwise_maximum(sum, f32x4(0.5f));
  sum = __builtin_elementwise_max(__builtin_elementwise_fma(sum, sum, f32x4(1.0f)), -sum);
  sum.x = __builtin_amdgcn_ldexpf(sum.x, static_cast<int>(thread));
  sum.x += __builtin_amdgcn_frexp_mantf(sum.w);
  x.x += __builtin_amdgcn_frexp_expf(sum.w);
  sum.y = __builtin_amdgcn_fmed3f(sum.x, sum.y, sum.z);
  sum.z = __builtin_copysignf(__builtin_nanf(""), __builtin_fmaf(sum.x, sum.y, sum.z));
  sum.x += __builtin_sqrtf(sum.w) - __builtin_inff();
  sum.w =
      __builtin_fmaxf(__builtin_fminf(__builtin_fabsf(sum.w), sum.x), __builtin_ldexpf(sum.y, 3));

  Global<u32>* const most = global<u32>(result);
  if (code > __scoped_atomic_load_n(most, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE))
    __scoped_atomic_fetch_max(most, code, __ATOMIC_RELAXED, __MEMORY_SCOPE_DEVICE);
  x += __builtin_bit_cast(u32x4, sum);
  __builtin_amdgcn_raw_buffer_store_b128(x, from, thread * 16, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b32(x.x, from, thread * 4, 0, 0);
  __builtin_amdgcn_raw_buffer_store_b16(static_cast<u16>(x.y), from, thread * 2, 0, 0);
}

}  // namespace hipgemm
