"""Runs snippets of assembly on the emulator: assemble, load, launch, fetch.

A snippet is the body of a kernel. It starts with the kernel arguments' address in s[0:1], the workgroup's
number in s2 and the lane's in v0; the arguments are the addresses of the buffers, 8 bytes each, in order.
`s_endpgm` is added.

    (out,) = asm.run('''
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v0, s[4:5]
    ''', np.zeros(64, np.uint32))
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from compiled_once import kept
from numpy.typing import NDArray

Array = NDArray[np.generic]
ROOT = Path(__file__).parents[2]
LIBRARY = ROOT / "hipgemm" / "_emulator" / "libamdhip64.so"
TABLE = ROOT / "emulator" / "isa" / "ops.def"

# What the emulated GPU is: test_gfx942.py runs these tests for that one too.
ARCH = os.environ.get("HIPGEMM_EMULATOR_ARCH", "gfx950").partition(":")[0]
only_gfx950 = pytest.mark.skipif(ARCH == "gfx942", reason="gfx942 does not have these instructions")
only_gfx942 = pytest.mark.skipif(ARCH != "gfx942", reason="only gfx942 has these instructions")


@functools.cache
def rows() -> tuple[tuple[str, int, str, str, frozenset[str]], ...]:
    """Family, opcode, name, signature and flags of the instructions in ops.def that ARCH has."""
    pattern = re.compile(r'EMU_OP\((\w+), (\w+), (\w+), "(.*?)", \w+, (.*)\)$', re.MULTILINE)
    absent = "kGfx950" if ARCH == "gfx942" else "kGfx942"
    found = (
        (family, int(opcode, 16), name, signature, frozenset(flags.split(" | ")))
        for family, opcode, name, signature, flags in pattern.findall(TABLE.read_text())
    )
    return tuple(row for row in found if absent not in row[-1])


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(name for _, _, name, _, _ in rows())


def has(name: str) -> bool:
    """Whether ARCH has this instruction."""
    return name in _names()


def lacks(body: str) -> str:
    """An instruction of `body` that ARCH does not have, or ""."""
    for line in body.splitlines():
        name = re.sub(r"_(e32|e64|dpp|sdwa)$", "", line.split()[0] if line.split() else "")
        if re.match(r"(s|v|ds|buffer|global|flat|scratch)_", name) and not has(name):
            return name
        if ARCH == "gfx942" and re.match(r"buffer_load_dwordx\d.* lds$", line):
            return line
    return ""


class LaunchError(Exception):
    """A HIP call failed; the message is the emulator's report."""

    def __init__(self, call: str, code: int, report: str) -> None:
        super().__init__(f"{call}: {code}: {report}")
        self.call, self.code, self.report = call, code, report


@dataclass(frozen=True)
class Snippet:
    """One kernel: its body and what its descriptor says."""

    body: str
    lds: int = 0
    vgprs: int = 128  # of which those from `accum` on are AGPRs
    accum: int | None = None
    sgprs: int = 96
    scratch: int = 0
    block: int = 1024  # most work-items in a workgroup
    kernarg: int = 64
    directives: str = ""  # more .amdhsa_ lines

    def text(self, name: str) -> str:
        accum = self.vgprs if self.accum is None else self.accum
        return f"""
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{self.body}
s_endpgm
.L{name}_end:
.size {name}, .L{name}_end-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
.amdhsa_group_segment_fixed_size {self.lds}
.amdhsa_private_segment_fixed_size {self.scratch}
.amdhsa_kernarg_size {self.kernarg}
.amdhsa_user_sgpr_kernarg_segment_ptr 1
.amdhsa_system_sgpr_workgroup_id_x 1
.amdhsa_next_free_vgpr {self.vgprs}
.amdhsa_accum_offset {accum}
.amdhsa_next_free_sgpr {self.sgprs}
.amdhsa_float_denorm_mode_32 3
{self.directives}
.end_amdhsa_kernel
"""

    def metadata(self, name: str) -> str:
        arguments = "\n".join(
            f"      - {{.address_space: global, .offset: {8 * i}, .size: 8, .value_kind: global_buffer}}"
            for i in range(self.kernarg // 8)
        )
        return f"""
  - .name: {name}
    .symbol: {name}.kd
    .kernarg_segment_size: {self.kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {self.lds}
    .private_segment_fixed_size: {self.scratch}
    .max_flat_workgroup_size: {self.block}
    .wavefront_size: 64
    .sgpr_count: {self.sgprs}
    .vgpr_count: {self.vgprs}
    .args:
{arguments}
"""


def _zig(*arguments: str) -> None:
    command = [sys.executable, "-m", "ziglang", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}\n{done.stderr}")


@functools.lru_cache(maxsize=64)
def _assemble(text: str) -> bytes:
    target = ("-x", "assembler", "--target=amdgcn-amd-amdhsa", f"-mcpu={ARCH}")

    def make(folder: Path) -> bytes:
        source, object_, linked = (folder / f"k.{e}" for e in ("s", "o", "co"))
        source.write_text(text)
        _zig("clang", *target, "-c", str(source), "-o", str(object_))
        _zig("ld.lld", "-shared", str(object_), "-o", str(linked))
        return linked.read_bytes()

    image = kept(make, *target, text)
    if record := os.environ.get("HIPGEMM_RECORD_SNIPPETS"):  # for forms.py
        (Path(record) / f"{hash(text) & (1 << 64) - 1:016x}.s").write_text(text)
    return image


def assemble(kernels: Mapping[str, Snippet]) -> bytes:
    """A code object that holds the kernels."""
    body = "".join(k.text(name) for name, k in kernels.items())
    metadata = "".join(k.metadata(name) for name, k in kernels.items())
    return _assemble(
        f'.amdgcn_target "amdgcn-amd-amdhsa--{ARCH}"\n{body}\n.amdgpu_metadata\n---\namdhsa.version: [1, 2]\n'
        f"amdhsa.target: amdgcn-amd-amdhsa--{ARCH}\namdhsa.kernels:{metadata}...\n.end_amdgpu_metadata\n"
    )


def with_agprs(text: str, registers: Sequence[int]) -> str:
    """An instruction with these VGPRs copied from and back to AGPRs of the same numbers."""
    names = "|".join(map(str, registers))
    text = re.sub(rf"\bv({names})\b", r"a\1", text)
    text = re.sub(rf"\bv\[({names}):", r"a[\1:", text)
    before = ["s_mov_b64 s[40:41], exec", "s_mov_b64 exec, -1"]
    before += [f"v_accvgpr_write_b32 a{n}, v{n}" for n in registers]
    before.append("s_mov_b64 exec, s[40:41]")
    after = [f"v_accvgpr_read_b32 v{n}, a{n}" for n in registers]
    wait = "s_waitcnt vmcnt(0) lgkmcnt(0)\ns_mov_b64 exec, -1"
    return "\n".join([*before, text, wait, *after])


@functools.cache
def library() -> ctypes.CDLL:
    """The emulator, opened apart from hip-python."""
    if not LIBRARY.exists():
        raise AssertionError(f"{LIBRARY} is missing: run `make emulator`")
    lib = ctypes.CDLL(str(LIBRARY))
    lib.hipgemm_emulator_last_report.restype = ctypes.c_char_p
    lib.hipgemm_emulator_cpu.restype = ctypes.c_char_p
    return lib


def _call(name: str, *arguments: object) -> None:
    lib = library()
    code = getattr(lib, name)(*arguments)
    if code:
        report = (lib.hipgemm_emulator_last_report() or b"").decode()
        lib.hipGetLastError()
        raise LaunchError(name, code, report)


def _three(size: int | tuple[int, int, int]) -> tuple[int, int, int]:
    return (size, 1, 1) if isinstance(size, int) else size


class Module:
    """A loaded code object."""

    def __init__(self, kernels: Mapping[str, Snippet]) -> None:
        self.kernels = dict(kernels)
        self._image = assemble(kernels)
        self._module = ctypes.c_void_p()
        _call("hipModuleLoadData", ctypes.byref(self._module), self._image)

    def run(
        self,
        name: str,
        *buffers: Array,
        grid: int | tuple[int, int, int] = 1,
        block: int | tuple[int, int, int] = 64,
        lds: int = 0,
    ) -> tuple[Array, ...]:
        """Launch with device copies of the buffers; their contents afterwards."""
        function = ctypes.c_void_p()
        _call("hipModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        pointers: list[ctypes.c_void_p] = []
        try:
            for b in buffers:
                assert b.flags.c_contiguous
                p = ctypes.c_void_p()
                _call("hipMalloc", ctypes.byref(p), ctypes.c_size_t(max(b.nbytes, 1)))
                pointers.append(p)
                _call("hipMemcpy", p, b.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(b.nbytes), 1)
            count = self.kernels[name].kernarg // 8
            values = (ctypes.c_void_p * count)(*[p.value for p in pointers])
            arguments = (ctypes.c_void_p * count)(*[ctypes.addressof(values) + 8 * i for i in range(count)])
            _call(
                "hipModuleLaunchKernel",
                *(function, *_three(grid), *_three(block), lds, ctypes.c_void_p()),
                *(arguments, ctypes.c_void_p()),
            )
            _call("hipDeviceSynchronize")
            results = []
            for b, p in zip(buffers, pointers, strict=True):
                out = np.empty_like(b)
                _call("hipMemcpy", out.ctypes.data_as(ctypes.c_void_p), p, ctypes.c_size_t(b.nbytes), 2)
                results.append(out)
            return tuple(results)
        finally:
            for p in pointers:
                library().hipFree(p)

    def close(self) -> None:
        if self._module:
            _call("hipModuleUnload", self._module)
            self._module = ctypes.c_void_p()

    def __enter__(self) -> Module:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def run(
    body: str | Snippet, *buffers: Array, grid: int = 1, block: int = 64, **descriptor: object
) -> tuple[Array, ...]:
    """Assemble, launch and unload one snippet."""
    snippet = body if isinstance(body, Snippet) else Snippet(body, **descriptor)  # type: ignore[arg-type]
    with Module({"k": snippet}) as module:
        return module.run("k", *buffers, grid=grid, block=block)
