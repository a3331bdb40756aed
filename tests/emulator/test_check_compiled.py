"""Compiled kernels under all checks: correct code has no findings, at every optimization level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

# Each kernel takes (u32* out, const u32* in, u32 n) and is launched with 2 workgroups of 256.
SOURCE = r"""
typedef unsigned u32;
typedef unsigned long long u64;
#define KERNEL extern "C" __attribute__((global, used, amdgpu_flat_work_group_size(256, 256))) void
#define SHARED static __attribute__((shared))
#define DEVICE static inline __attribute__((device, always_inline))
#define LANE __builtin_amdgcn_workitem_id_x()
#define ME (__builtin_amdgcn_workgroup_id_x() * 256 + LANE)
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

KERNEL arithmetic(u32* out, const u32* in, u32 n) {
  u32 x = in[ME];
  float f = (float)x / (float)(n + 3);
  double d = __builtin_sqrt((double)x + 1.0) / ((double)n + 0.5);
  u64 q = ((u64)x << 32 | n) / (x | 1);
  out[ME] = (u32)(f * 16.f) + (u32)d + (u32)q + x % (n + 7);
}
KERNEL divergent(u32* out, const u32* in, u32 n) {
  u32 x = in[ME], sum = 0;
  for (u32 i = 0; i < (x & 15); ++i) {
    if ((x ^ i) & 1) sum += i * x;
    else if (sum > n) break;
    else sum ^= i;
  }
  switch (x & 3) {
    case 0: sum += 17; break;
    case 1: sum *= 3; break;
    case 2: if (sum & 1) sum = ~sum; break;
    default: sum -= x;
  }
  out[ME] = sum;
}
KERNEL reduction(u32* out, const u32* in, u32 n) {
  SHARED u32 part[256];
  u32 l = LANE;
  part[l] = in[ME];
  for (u32 s = 128; s; s >>= 1) {
    barrier();
    if (l < s) part[l] += part[l + s];
  }
  barrier();
  u32 wave = in[ME];
  for (int s = 32; s; s >>= 1) wave += __builtin_amdgcn_ds_bpermute(((l & 63) ^ s) * 4, wave);
  wave += __builtin_amdgcn_mov_dpp(wave, 0xb1, 0xf, 0xf, true);
  wave += __builtin_amdgcn_ds_swizzle(wave, 0x041f);
  out[ME] = part[0] + wave;
}
KERNEL private_array(u32* out, const u32* in, u32 n) {
  u32 a[100];
  for (u32 i = 0; i < 100; ++i) a[i] = in[(ME + i) % 512];
  for (u32 i = 0; i < n % 100; ++i) a[a[i] % 100] += i;
  out[ME] = a[in[ME] % 100];
}
KERNEL narrow(u32* out, const u32* in, u32 n) {
  const unsigned char* b = (const unsigned char*)in;
  const short* h = (const short*)in;
  __bf16 x = ((const __bf16*)in)[ME];
  _Float16 y = ((const _Float16*)in)[ME];
  SHARED unsigned char bytes[256];
  SHARED short halves[256];
  bytes[LANE] = b[ME];
  halves[LANE] = h[ME];
  barrier();
  u32 sum = bytes[LANE ^ 1] + (u32)halves[LANE ^ 3] + b[ME + 1];
  sum += __builtin_bit_cast(unsigned short, (__bf16)((float)x * 2.f));
  sum += __builtin_bit_cast(unsigned short, (_Float16)(y + (_Float16)1.f));
  ((short*)out)[2 * ME] = (short)sum;
  ((unsigned char*)out)[4 * ME + 2] = (unsigned char)(sum >> 16);
  ((unsigned char*)out)[4 * ME + 3] = (unsigned char)(sum >> 24);
}
DEVICE float from_lane(u32 lane, float x) {
  int bits = __builtin_amdgcn_ds_bpermute((lane & 63) * 4, __builtin_bit_cast(int, x));
  return __builtin_bit_cast(float, bits);
}
KERNEL softmax(u32* out, const u32* in, u32 n) {
  SHARED float most[4], total[4];
  float x = (float)(in[ME] & 1023) * 0.01f, m = x;
  u32 l = LANE;
  for (int s = 32; s; s >>= 1) {
    float o = from_lane(l ^ s, m);
    m = o > m ? o : m;
  }
  if ((l & 63) == 0) most[l / 64] = m;
  barrier();
  for (int i = 0; i < 4; ++i) m = most[i] > m ? most[i] : m;
  float e = __builtin_amdgcn_exp2f((x - m) * 1.442695f), t = e;
  for (int s = 32; s; s >>= 1) t += from_lane(l ^ s, t);
  if ((l & 63) == 0) total[l / 64] = t;
  barrier();
  t = total[0] + total[1] + total[2] + total[3];
  out[ME] = __builtin_bit_cast(u32, e * __builtin_amdgcn_rcpf(t));
}
KERNEL atomics(u32* out, const u32* in, u32 n) {
  SHARED u32 count[16];
  if (LANE < 16) count[LANE] = 0;
  barrier();
  __hip_atomic_fetch_add(&count[in[ME] & 15], 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
  barrier();
  out[ME] = count[LANE & 15];
}
KERNEL quantize(u32* out, const u32* in, u32 n) {
  float x = (float)(in[ME] & 255) - 128.f, y = (float)(in[ME] >> 8 & 255) - 128.f;
  int r = 0;
  r = __builtin_amdgcn_cvt_pk_fp8_f32(x, y, r, false);
  r = __builtin_amdgcn_cvt_pk_fp8_f32(y, x, r, true);
  out[ME] = (u32)r;
}
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));
typedef __bf16 bf16x8 __attribute__((ext_vector_type(8)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef u32 u32x4 __attribute__((ext_vector_type(4)));
KERNEL matrix(u32* out, const u32* in, u32 n) {
  u32x4 v = *(const u32x4*)(in + 4 * (ME & 63));
  bf16x8 a = __builtin_bit_cast(bf16x8, v), b = __builtin_bit_cast(bf16x8, v.yxwz);
  f32x4 c = {};
  f32x16 d = {};
  for (u32 i = 0; i < (n & 3) + 1; ++i) {
    c = __builtin_amdgcn_mfma_f32_16x16x32_bf16(a, b, c, 0, 0, 0);
    d = __builtin_amdgcn_mfma_f32_32x32x16_bf16(b, a, d, 0, 0, 0);
    c = __builtin_amdgcn_mfma_f32_16x16x32_bf16(__builtin_bit_cast(bf16x8, c), b, c, 0, 0, 0);
  }
  f16x4 e = __builtin_bit_cast(f16x4, v.xy), f = __builtin_bit_cast(f16x4, v.zw);
  f32x4 g = __builtin_amdgcn_mfma_f32_4x4x4f16(e, f, f32x4{}, 0, 0, 0);
  out[ME] = __builtin_bit_cast(u32, c.x + c.w + d.s0 + d.sf + g.x);
}
// Two opcodes on one accumulator: compilers up to clang 22 leave out the wait states in between.
KERNEL two_opcodes(u32* out, const u32* in, u32 n) {
  typedef _Float16 f16x8 __attribute__((ext_vector_type(8)));
  f16x8 a = __builtin_bit_cast(f16x8, *(const u32x4*)(in + 4 * (ME & 63)));
  f16x4 b = __builtin_bit_cast(f16x4, *(const unsigned long long*)(in + 2 * (ME & 63)));
  f32x4 c = {};
  c = __builtin_amdgcn_mfma_f32_16x16x32_f16(a, a, c, 0, 0, 0);
  c = __builtin_amdgcn_mfma_f32_16x16x16f16(b, b, c, 0, 0, 0);
  out[ME] = __builtin_bit_cast(u32, c.x + c.w);
}
// Faults that the checks must find in compiled code.
KERNEL bad_uninit(u32* out, const u32* in, u32 n) {
  SHARED u32 part[256];
  if (LANE < 255) part[LANE] = in[ME];
  barrier();
  out[ME] = part[LANE ^ 1] + 1;
}
KERNEL bad_barrier(u32* out, const u32* in, u32 n) {
  if (in[ME] & 1) barrier();
  out[ME] = n;
}
"""
CLEAN = ["arithmetic", "divergent", "reduction", "private_array", "narrow", "softmax", "atomics", "quantize"]
CLEAN += ["matrix"]

SCRIPT = r"""
import sys
sys.path[:0] = ["tests/emulator"]
import ctypes
import numpy as np
import asm
from pathlib import Path

image = Path("{path}").read_bytes()
size = ctypes.c_size_t(1 << 14)
host = np.random.default_rng(1).integers(0, 2**32, 1 << 12, dtype=np.uint32)
module = ctypes.c_void_p()
asm._call("hipModuleLoadData", ctypes.byref(module), image)
for name in {names!r}:
    out, source, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    for p in (out, source):
        asm._call("hipMalloc", ctypes.byref(p), size)
    asm._call("hipMemcpy", source, host.ctypes.data_as(ctypes.c_void_p), size, 1)
    asm._call("hipModuleGetFunction", ctypes.byref(function), module, name.encode())
    n = ctypes.c_uint(77)
    arguments = (ctypes.c_void_p * 3)(ctypes.addressof(out), ctypes.addressof(source), ctypes.addressof(n))
    try:
        asm._call("hipModuleLaunchKernel", function, 2, 1, 1, 256, 1, 1, 0, ctypes.c_void_p(), arguments,
                  ctypes.c_void_p())
        asm._call("hipDeviceSynchronize")
        print(name, "clean")
    except asm.LaunchError as error:
        print(name, error.report)
"""

RunPython = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module", params=["-O1", "-O2", "-O3"])
def compiled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import hipapi

    path = tmp_path_factory.mktemp("compiled") / f"kernels{request.param}.co"
    return hipapi.compile_hip(
        SOURCE.replace(
            "static __attribute__((device))", "static inline __attribute__((device, always_inline))"
        ),
        path,
        "gfx950",
        request.param,
    )


def run(
    run_python: RunPython, path: Path, names: list[str], check: str, **environment: str
) -> dict[str, str]:
    script = SCRIPT.replace("{names!r}", repr(names)).replace("{path}", str(path))
    done = run_python(script, HIPGEMM_EMULATOR_CHECK=check, **environment)
    assert done.returncode == 0, done.stderr
    return {line.split(" ", 1)[0]: line.split(" ", 1)[1] for line in done.stdout.splitlines()}


@pytest.mark.parametrize("memory", ["late", "early", "random:3"])
def test_clean(compiled: Path, memory: str, run_python: RunPython) -> None:
    waves = "random:3" if memory.startswith("random") else "forward"
    found = run(
        run_python, compiled, CLEAN, "all", HIPGEMM_EMULATOR_MEMORY=memory, HIPGEMM_EMULATOR_WAVES=waves
    )
    assert found == dict.fromkeys(CLEAN, "clean")


def test_planted(compiled: Path, run_python: RunPython) -> None:
    found = run(run_python, compiled, ["bad_uninit"], "uninit")
    assert "uninit: lane 62 stores an undefined value" in found["bad_uninit"], found
    assert "LDS at 0x3fc, which nothing has written" in found["bad_uninit"]
    found = run(run_python, compiled, ["two_opcodes"], "all")
    assert "read after an MFMA has written it" in found["two_opcodes"], found
    assert "v_mfma_f32_16x16x32_f16" in found["two_opcodes"]
    found = run(run_python, compiled, ["bad_barrier"], "race")
    assert "race: barrier divergence: lane " in found["bad_barrier"], found
