"""The bounds check, and what is a fault without it: outside memory, in freed memory, in another device's."""

from __future__ import annotations

from collections.abc import Callable
from subprocess import CompletedProcess

import asm
import numpy as np
import pytest
from checked import Snippets, checks

SET_UP = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32 v1, 4, v0\nv_mov_b32 v2, 0\n"
WAIT = "s_waitcnt vmcnt(0) lgkmcnt(0)\n"
SET_UP += WAIT
FLAT = "s_mov_b64 s[8:9], src_shared_base\nv_mov_b32 v3, s9\n"
BUFFER = "s_mov_b32 s6, -1\ns_mov_b32 s7, 0x20000\n"
DMA = BUFFER + "s_movk_i32 m0, {m0}\ns_nop 4\nbuffer_load_dwordx4 v1, s[4:7], 0 offen lds\n"

# name: body, what the report says ("": clean). 1 KiB of LDS, a buffer of 4 KiB, 64 bytes of arguments.
CASES: dict[str, tuple[str, str]] = {
    "lds": ("ds_read_b128 v[4:7], v1\n", ""),
    "lds_beyond": (
        "ds_read_b128 v[4:7], v1 offset:16\n",
        "bounds: a load of 16 bytes by lane 63 at LDS offset 1024 of 1024 bytes; kernel lds_beyond",
    ),
    "lds_partly_beyond": (
        "ds_read_b128 v[4:7], v1 offset:8\n",
        "by lane 63 at LDS offset 1016 of 1024 bytes",
    ),
    "lds_beyond_masked": ("s_mov_b64 exec, 1\nds_read_b128 v[4:7], v1 offset:1008\n", ""),
    "lds_store_beyond": (
        "ds_write_b32 v1, v2 offset:1020\n",
        "a store of 4 bytes by lane 1 at LDS offset 1036",
    ),
    "lds_two": ("ds_read2_b32 v[4:5], v2 offset0:3 offset1:255\n", ""),
    "lds_two_beyond": ("ds_read2st64_b32 v[4:5], v2 offset0:3 offset1:4\n", "at LDS offset 1024 of 1024"),
    "lds_flat": (
        FLAT + "v_mov_b32 v2, v1\nflat_load_dword v4, v[2:3]\n",
        "",
    ),
    "lds_flat_beyond": (
        FLAT + "v_add_u32 v2, 16, v1\nflat_load_dword v4, v[2:3]\n",
        "by lane 63 at LDS offset 1024",
    ),
    "lds_append_beyond": ("s_mov_b32 m0, -1\nds_append v4 offset:1024\n", "at LDS offset 1024"),
    "dma": (DMA.format(m0=0), ""),
    "dma_beyond": (DMA.format(m0=16), "a store of 16 bytes by lane 63 at LDS offset 1024"),
    "arguments": ("s_load_dwordx16 s[8:23], s[0:1], 0x0\n", ""),
    "arguments_beyond": (
        "s_load_dwordx4 s[8:11], s[0:1], 0x24\n",
        "load of 16 bytes by lane 0 at offset 36 reaches past the end of the kernel's 40 bytes of arguments",
    ),
    "arguments_widened": ("s_load_dwordx4 s[8:11], s[0:1], 0x20\n", ""),
    "arguments_vector": ("global_load_dword v4, v2, s[0:1] offset:40\n", "at offset 40 reaches past the end"),
    "arguments_store": (
        "global_store_dword v2, v2, s[0:1]\n",
        "a store of 4 bytes by lane 0 into the kernel's 64 bytes",
    ),
    # A descriptor may reach further than its memory; what counts is where the lanes go.
    "descriptor": (BUFFER + "buffer_load_dwordx4 v[4:7], v1, s[4:7], 0 offen\n", ""),
}
SHORT = {"arguments_beyond": 40, "arguments_widened": 40, "arguments_vector": 40}
# The layout of argument blocks is the descriptor's.
KERNELS = Snippets(
    {
        name: asm.Snippet(SET_UP + body + WAIT, lds=1024, kernarg=SHORT.get(name, 64))
        for name, (body, _) in CASES.items()
    }
)


@pytest.mark.parametrize("name", CASES)
def test_bounds(name: str) -> None:
    report = KERNELS.report(name, "bounds")
    says = CASES[name][1]
    if says:
        assert "bounds: " in report, report
        assert says in report
    else:
        assert report == ""


@pytest.mark.parametrize("name", ["lds_beyond", "dma_beyond", "arguments_beyond", "arguments_store"])
def test_only_under_bounds(name: str) -> None:
    assert KERNELS.report(name, "") == ""


@pytest.mark.parametrize("check", ["", "bounds"])
def test_outside(check: str) -> None:
    """A fault with and without the check."""
    kernels = {
        "before": "global_load_dword v4, v2, s[4:5] offset:-4\n",
        "after": "global_load_dwordx4 v[4:7], v1, s[4:5] offset:3088\n",
        "scalar": "s_load_dword s8, s[4:5], 0x1000\n",
        "store": "global_store_byte v2, v2, s[4:5] offset:-1\n",
    }
    snippets = Snippets({name: asm.Snippet(SET_UP + body + WAIT) for name, body in kernels.items()})
    for name in kernels:
        report = snippets.report(name, check)
        assert "illegal address: " in report, report
        assert "of allocation #" in report or "before allocation #" in report or "bytes into" in report


FREED = """
import os, sys
sys.path[:0] = ["tests/emulator"]
import ctypes
import numpy as np
import asm
body = {body!r}
memory, other = ctypes.c_void_p(), ctypes.c_void_p()
with asm.Module({{"k": asm.Snippet(body)}}) as module:
    {prepare}
    try:
        module.run("k", np.array([memory.value] * 2, np.uint64))
        print("ran")
    except asm.LaunchError as error:
        print(error.report)
"""
INDIRECT = SET_UP + "s_load_dwordx2 s[6:7], s[4:5], 0x0\n" + WAIT
INDIRECT += "global_load_dword v4, v2, s[6:7] offset:8\n" + WAIT


@pytest.mark.parametrize("size", [256, 1 << 20])
def test_freed(size: int, run_python: Callable[..., CompletedProcess[str]]) -> None:
    take = f"asm._call('hipMalloc', ctypes.byref(memory), ctypes.c_size_t({size}))"
    ran = run_python(FREED.format(body=INDIRECT, prepare=take), HIPGEMM_EMULATOR_CHECK="bounds")
    assert ran.stdout == "ran\n", ran.stderr
    freed = run_python(
        FREED.format(body=INDIRECT, prepare=take + "; asm._call('hipFree', memory)"),
        HIPGEMM_EMULATOR_CHECK="bounds",
    )
    assert "8 bytes into freed allocation #" in freed.stdout, freed.stdout + freed.stderr
    assert f"({size} bytes at 0x" in freed.stdout


def test_other_device(run_python: Callable[..., CompletedProcess[str]]) -> None:
    take = "asm._call('hipSetDevice', 1); asm._call('hipMalloc', ctypes.byref(memory), ctypes.c_size_t(4096))"
    take += "; asm._call('hipSetDevice', 0)"
    options = {"HIPGEMM_EMULATOR_CHECK": "bounds", "HIPGEMM_EMULATOR_DEVICES": "2"}
    closed = run_python(FREED.format(body=INDIRECT, prepare=take), **options)
    assert "8 bytes into allocation #" in closed.stdout, closed.stdout + closed.stderr
    assert "to which device 0 has no peer access" in closed.stdout
    take += "; asm._call('hipDeviceEnablePeerAccess', 1, 0)"
    ran = run_python(FREED.format(body=INDIRECT, prepare=take), **options)
    assert ran.stdout == "ran\n", ran.stdout + ran.stderr


def test_found_at_landing() -> None:
    """LDS out of range is reported in late and in early mode."""
    for mode in (b"late", b"early", b"random:1"):
        assert asm.library().hipgemm_emulator_set_memory(mode) == 0
        assert "LDS offset 1024" in KERNELS.report("lds_beyond", "bounds")
    assert asm.library().hipgemm_emulator_set_memory(None) == 0
    with checks("bounds"):
        asm.run(asm.Snippet(SET_UP + "ds_read_b128 v[4:7], v1\n" + WAIT, lds=1024), np.zeros(64, np.uint32))
