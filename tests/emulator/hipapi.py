"""What the tests of the HIP API share: the library through hip-python and through ctypes, and kernels."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asm import ARCH
from compiled_once import kept

from hipgemm.runtime import hip as _hip

runtime = _hip.runtime()
if runtime.kind != "emulator":
    pytest.skip("needs the emulator", allow_module_level=True)
hip: Any = runtime.hip  # hip-python, 7 or 10
lib: Any = ctypes.CDLL(str(_hip.EMULATOR))  # the same library, for what hip-python hides
lib.hipgemm_emulator_last_report.restype = ctypes.c_char_p
lib.hipGetErrorName.restype = ctypes.c_char_p
lib.hipGetErrorString.restype = ctypes.c_char_p

H2D, D2H, D2D, DEFAULT = 1, 2, 3, 4
INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONFIGURATION, INVALID_PITCH, DIRECTION = 1, 2, 9, 12, 21
NO_DEVICE, INVALID_DEVICE, INVALID_IMAGE, NO_BINARY, FILE_NOT_FOUND = 100, 101, 200, 209, 301
INVALID_HANDLE, ILLEGAL_STATE, NOT_FOUND, NOT_READY = 400, 401, 500, 600
ILLEGAL_ADDRESS, OUT_OF_RESOURCES, LAUNCH_FAILURE = 700, 701, 719

SOURCE = r"""
#define KERNEL extern "C" __attribute__((global, used))
#define DEVICE __attribute__((device))
typedef unsigned u32;
typedef unsigned long long u64;
DEVICE int table[4] = {10, 20, 30, 40};
DEVICE int* third = &table[2];  // needs a relocation
DEVICE int zeroed[1000];

KERNEL void store(int* to, int value) { *to = value; }
KERNEL void add_one(int* x) { *x += 1; }
KERNEL void copy_one(int* to, const int* from) { *to = *from; }
KERNEL void nothing() {}
KERNEL void globals(int* to, int n) {
  to[0] = *third + table[n];
  to[1] = zeroed[n];
}
struct Pair { char tag; u64 value; };
KERNEL void mixed(signed char a, short b, u64* to, Pair p, u32 f, __int128 wide) {
  to[0] = (u64)a;
  to[1] = (u64)b;
  to[2] = p.tag;
  to[3] = p.value;
  to[4] = f;
  to[5] = wide >> 64;
}
KERNEL __attribute__((amdgpu_flat_work_group_size(1, 128))) void up_to_128(int* to) {
  to[__builtin_amdgcn_workitem_id_x()] = 1;
}
extern __attribute__((shared)) u32 dynamic[];
KERNEL void shape(u32* to) {  // everything the compiler takes from the hidden arguments
  typedef __attribute__((address_space(4))) const unsigned char* Hidden;
  Hidden h = (Hidden)__builtin_amdgcn_implicitarg_ptr();
  u32 x = __builtin_amdgcn_workgroup_id_x(), y = __builtin_amdgcn_workgroup_id_y();
  u32 z = __builtin_amdgcn_workgroup_id_z();
  if (x | y | z | __builtin_amdgcn_workitem_id_x()) return;
  for (int i = 0; i < 3; ++i) to[i] = *(__attribute__((address_space(4))) const u32*)(h + 4 * i);
  for (int i = 0; i < 6; ++i)
    to[3 + i] = *(__attribute__((address_space(4))) const unsigned short*)(h + 12 + 2 * i);
  to[9] = *(__attribute__((address_space(4))) const unsigned short*)(h + 64);
  dynamic[to[0]] = 1;  // else the compiler does not ask for the size
  to[10] = *(__attribute__((address_space(4))) const u32*)(h + 120);
}
KERNEL void spin(int* to, int n) {
  int x = *to;
  for (int i = 0; i < n; ++i) x = x * 1664525 + 1013904223;
  *to = x;
}
"""


def compile_hip(source: str, to: Path, arch: str = ARCH, *flags: str) -> Path:
    """Compile HIP source without headers to a code object."""
    zig = [sys.executable, "-m", "ziglang"]
    device = ["-x", "hip", f"--offload-arch={arch}", "--offload-device-only", "-nogpuinc", "-nogpulib"]
    target = ["-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={arch}"]

    def make(folder: Path) -> bytes:
        cpp, asm, obj, linked = (str(folder / f"{to.stem}.{end}") for end in ("hip", "s", "o", "co"))
        Path(cpp).write_text(source)
        for command in (
            ["clang", *device, "-O2", "-S", "-o", asm, cpp, *flags],
            ["clang", *target, "-c", *flags, "-o", obj, asm],
            ["ld.lld", "-shared", "-o", linked, obj],
        ):
            subprocess.run(zig + command, check=True, capture_output=True)
        return Path(linked).read_bytes()

    included = [Path(flag[2:]) for flag in flags if flag.startswith("-I")]
    headers = [file.read_text() for folder in included for file in sorted(folder.rglob("*.*"))]
    to.write_bytes(kept(make, *device, *flags, source, *headers))
    return to


class Failed(Exception):
    """A HIP call's error: code, and the emulator's report."""

    def __init__(self, code: int, report: str):
        super().__init__(f"{code}: {report}")
        self.code, self.report = code, report


def report() -> str:
    return lib.hipgemm_emulator_last_report().decode()


def check(result: Any) -> Any:
    """Unpack a hip-python result, or a ctypes one; raise Failed unless it is success."""
    if isinstance(result, int):
        result = (result,)
    code = int(result[0])
    if code:
        raise Failed(code, report())
    return None if len(result) == 1 else result[1] if len(result) == 2 else result[1:]


@contextmanager
def fails(code: int, *parts: str) -> Iterator[None]:
    """Expect a HIP error whose report contains all parts."""
    with pytest.raises(Failed) as caught:
        yield
    assert caught.value.code == code, caught.value
    assert all(part in caught.value.report for part in parts), caught.value


def address(pointer: Any) -> int:
    return int(pointer)


class Memory:
    """Device memory by hipMalloc, freed at the end of a with block."""

    def __init__(self, size: int, data: np.ndarray | None = None):
        self.size = size
        self.pointer = check(hip.hipMalloc(size))
        self.address = address(self.pointer)
        if data is not None:
            self.put(data)

    def put(self, data: np.ndarray) -> None:
        check(hip.hipMemcpy(self.pointer, data, data.nbytes, kind(H2D)))

    def get(self, dtype: Any = np.int32, offset: int = 0) -> np.ndarray:
        result = np.empty((self.size - offset) // np.dtype(dtype).itemsize, dtype)
        check(hip.hipMemcpy(result, self.address + offset, result.nbytes, kind(D2H)))
        return result

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        check(hip.hipFree(self.pointer))


def kind(value: int) -> Any:
    return hip.hipMemcpyKind(value)


def launch(
    function: Any, *args: Any, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), lds: int = 0, stream: Any = None
) -> None:
    """Launch with the arguments packed by hip-python: integers are pointers, others ctypes values."""
    packed = tuple(ctypes.c_void_p(a) if isinstance(a, int) else a for a in args)
    check(hip.hipModuleLaunchKernel(function, *grid, *block, lds, stream, None, packed or None))
