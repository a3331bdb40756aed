"""The hazard check's distances are the compiler's: its gaps are enough, and one wait state less is not.

The compiler pads dependent instructions with exactly as many wait states as it believes the hardware needs.
Each kernel holds such a dependency; each s_nop in it is shortened in turn.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import asm
import pytest
from checked import checks

SOURCE = r"""
typedef float f2 __attribute__((ext_vector_type(2)));
typedef float f4 __attribute__((ext_vector_type(4)));
typedef float f16v __attribute__((ext_vector_type(16)));
typedef float f32v __attribute__((ext_vector_type(32)));
typedef double d4 __attribute__((ext_vector_type(4)));
typedef _Float16 h4 __attribute__((ext_vector_type(4)));
typedef _Float16 h8 __attribute__((ext_vector_type(8)));
typedef __bf16 b8 __attribute__((ext_vector_type(8)));
typedef int i4 __attribute__((ext_vector_type(4)));
typedef int i8 __attribute__((ext_vector_type(8)));
#define MFMA(name) __builtin_amdgcn_mfma_##name
// A, B and C from memory, D to memory, to the vector ALU, to A, B or C of another MFMA.
#define LOAD(A, C) const char* at = in + __builtin_amdgcn_workitem_id_x() * 16; \
  A a = *(const A*)at, b = *(const A*)(at + 32); C c = *(const C*)(at + 64)
#define KERNEL(name) extern "C" __attribute__((global, used, amdgpu_flat_work_group_size(64, 64))) \
  void name(char* out, const char* in)
#define FAMILY(name, A, C, E) \
  KERNEL(store_##name) { LOAD(A, C); *(C*)out = MFMA(name)(a, b, c, 0, 0, 0); } \
  KERNEL(valu_##name) { LOAD(A, C); c = MFMA(name)(a, b, c, 0, 0, 0); *(E*)out = c[0] + c[1]; } \
  KERNEL(accumulate_##name) { LOAD(A, C); c = MFMA(name)(a, b, c, 0, 0, 0); \
    *(C*)out = MFMA(name)(b, a, c, 0, 0, 0); } \
  KERNEL(chain_##name) { LOAD(A, C); c = MFMA(name)(a, b, c, 0, 0, 0); A d; \
    __builtin_memcpy(&d, &c, sizeof d); *(C*)out = MFMA(name)(d, b, c, 0, 0, 0); }
FAMILY(f32_4x4x4f16, h4, f4, float)
FAMILY(f32_4x4x1f32, float, f4, float)
FAMILY(f32_16x16x4f32, float, f4, float)
FAMILY(f32_32x32x2f32, float, f16v, float)
FAMILY(f32_16x16x4f16, h4, f16v, float)
FAMILY(f32_32x32x4f16, h4, f32v, float)
FAMILY(f32_16x16x16f16, h4, f4, float)
FAMILY(f32_32x32x8f16, h4, f16v, float)
FAMILY(f64_16x16x4f64, double, d4, double)
#ifdef __gfx942__
FAMILY(f32_16x16x8_xf32, f2, f4, float)
FAMILY(f32_32x32x4_xf32, f2, f16v, float)
FAMILY(f32_16x16x32_fp8_fp8, long, f4, float)
FAMILY(f32_32x32x16_bf8_fp8, long, f16v, float)
FAMILY(i32_16x16x32_i8, long, i4, int)
#else
FAMILY(f32_16x16x32_f16, h8, f4, float)
FAMILY(f32_32x32x16_bf16, b8, f16v, float)
FAMILY(i32_16x16x64_i8, i4, i4, int)
#endif
KERNEL(valu_f64_4x4x4) { LOAD(double, double); *(double*)out = MFMA(f64_4x4x4f64)(a, b, c, 0, 0, 0) + 1.0; }
KERNEL(store_f64_4x4x4) { LOAD(double, double); *(double*)out = MFMA(f64_4x4x4f64)(a, b, c, 0, 0, 0); }
KERNEL(same_f64_4x4x4) { LOAD(double, double); c = MFMA(f64_4x4x4f64)(a, b, c, 0, 0, 0);
  *(double*)out = MFMA(f64_4x4x4f64)(b, a, c, 0, 0, 0); }
#ifndef __gfx942__
#define SCALED(n, format) \
  KERNEL(scaled_##n##_##format) { LOAD(i8, f4); \
    c = MFMA(scale_f32_16x16x128_f8f6f4)(a, b, c, format, format, 0, a[0], 0, b[0]); \
    *(float*)out = c[0] + c[1]; } \
  KERNEL(scaled32_##n##_##format) { LOAD(i8, f16v); \
    c = MFMA(scale_f32_32x32x64_f8f6f4)(a, b, c, format, format, 0, a[0], 0, b[0]); \
    *(float*)out = c[0] + c[1]; }
SCALED(valu, 0)
SCALED(valu, 2)
SCALED(valu, 4)
KERNEL(swap) { unsigned x = *(const unsigned*)(in + __builtin_amdgcn_workitem_id_x() * 4) * 3;
  auto r = __builtin_amdgcn_permlane32_swap(x, x * 5, false, false); *(unsigned*)out = r[0] ^ r[1]; }
#endif
// Other rules.
KERNEL(lane_to_scalar) { int x = *(const int*)(in + __builtin_amdgcn_workitem_id_x() * 4) * 3;
  int l = __builtin_amdgcn_readfirstlane(x) & 63;
  *(int*)out = __builtin_amdgcn_readlane(x, l) + __builtin_amdgcn_readlane(x, 7); }
KERNEL(rows) { int x = *(const int*)(in + __builtin_amdgcn_workitem_id_x() * 4) * 3;
  x += __builtin_amdgcn_mov_dpp(x, 0xb1, 0xf, 0xf, true);
  *(int*)out = x + __builtin_amdgcn_mov_dpp(x, 0x4e, 0xf, 0xf, true); }
KERNEL(divide) { float x = *(const float*)(in + __builtin_amdgcn_workitem_id_x() * 4);
  *(float*)out = 1.f / x + x / 3.f; }
KERNEL(narrow) { float x = *(const float*)(in + __builtin_amdgcn_workitem_id_x() * 4);
  int r = __builtin_amdgcn_cvt_pk_fp8_f32(x, x, 0, false);
  r = __builtin_amdgcn_cvt_pk_fp8_f32(x, -x, r, true);
  *(int*)out = r * 3; }
"""


class Image:
    """The compiled kernels: code, and where each kernel's instructions and s_nops lie."""

    def __init__(self, path: Path) -> None:
        self.bytes = path.read_bytes()
        elf = self.bytes

        def word(at: int, n: int) -> int:
            return int.from_bytes(elf[at : at + n], "little")

        headers = [word(40, 8) + i * word(58, 2) for i in range(word(60, 2))]
        sections = [
            (word(h + 4, 4), word(h + 16, 8), word(h + 24, 8), word(h + 32, 8), word(h + 40, 4))
            for h in headers
        ]
        dynsym = next(s for s in sections if s[0] == 11)
        strings = sections[dynsym[4]][2]
        self.nops: dict[str, list[int]] = {}
        for at in range(dynsym[2], dynsym[2] + dynsym[3], 24):
            if word(at + 4, 1) & 15 != 2:  # functions only
                continue
            begin = strings + word(at, 4)
            name = elf[begin : elf.index(b"\0", begin)].decode()
            address, size = word(at + 8, 8), word(at + 16, 8)
            offset = next(o + address - a for _, a, o, n, _ in sections if a <= address < a + n)
            words = range(offset, offset + size, 4)
            self.nops[name] = [w for w in words if word(w, 4) & 0xFFFFFFF0 == 0xBF800000 and word(w, 4) & 15]

    def run(self, name: str, shorten: int | None = None) -> str:
        """Run a kernel under the hazard check, perhaps with one s_nop a wait state shorter."""
        image = bytearray(self.bytes)
        if shorten is not None:
            image[shorten] -= 1
        lib, module, function = asm.library(), ctypes.c_void_p(), ctypes.c_void_p()
        with checks("hazard"):
            asm._call("hipModuleLoadData", ctypes.byref(module), bytes(image))
            asm._call("hipModuleGetFunction", ctypes.byref(function), module, name.encode())
            memory = (ctypes.c_void_p(), ctypes.c_void_p())
            for p in memory:
                asm._call("hipMalloc", ctypes.byref(p), ctypes.c_size_t(4096))
                asm._call("hipMemset", p, 0, ctypes.c_size_t(4096))
            arguments = (ctypes.c_void_p * 2)(*map(ctypes.addressof, memory))
            try:
                asm._call(
                    "hipModuleLaunchKernel",
                    *(function, 1, 1, 1, 64, 1, 1, 0, ctypes.c_void_p(), arguments, ctypes.c_void_p()),
                )
                asm._call("hipDeviceSynchronize")
            except asm.LaunchError as error:
                return error.report
            finally:
                for p in memory:
                    lib.hipFree(p)
                lib.hipModuleUnload(module)
        return ""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    import hipapi

    folder = tmp_path_factory.mktemp("distances")
    return Image(hipapi.compile_hip(SOURCE, folder / "distances.co"))


def test_enough(image: Image) -> None:
    reports = {name: image.run(name) for name in image.nops}
    assert len(reports) > 55
    assert not {name: report for name, report in reports.items() if report}


def test_one_less(image: Image) -> None:
    missed, tried = [], 0
    for name, nops in image.nops.items():
        for at in nops:
            tried += 1
            if "hazard: " not in image.run(name, at):
                missed.append((name, at))
    assert tried > 80
    assert not missed
