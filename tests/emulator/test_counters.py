"""Counters against counts by hand: instructions, matrix clocks, LDS phases and conflicts, bytes and lines."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import asm
import ml_dtypes
import numpy as np
import pytest
from hipapi import runtime

import hipgemm as hg
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import loader as _runtime

CLASSES = ("salu", "valu", "trans", "mfma", "lds", "vmem", "smem", "branch", "wait", "other")


@pytest.fixture(autouse=True)
def counting() -> Iterator[None]:
    hg.emulator_counters(reset=True, addresses=True)
    yield
    hg.emulator_counters(reset=True)
    asm.library().hipgemm_emulator_set_counting(-1)


def count(body: str, *buffers: np.ndarray, grid: int = 1, block: int = 64, **snippet: Any) -> Any:
    hg.emulator_counters(reset=True)
    asm.run(body, *buffers, grid=grid, block=block, **snippet)
    return hg.emulator_counters(reset=True)


def classes(found: hg.EmulatorCounters) -> dict[str, int]:
    assert sum(getattr(found, name) for name in CLASSES) == found.wave_instructions
    return {name: getattr(found, name) for name in CLASSES if getattr(found, name)}


# ---- instructions ----------------------------------------------------------------------------------


def test_copy() -> None:
    body = """
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_lshl_b32 s8, s2, 7
        v_add_u32 v0, s8, v0
        v_lshlrev_b32 v1, 4, v0
        s_waitcnt lgkmcnt(0)
        global_load_dwordx4 v[4:7], v1, s[4:5]
        s_waitcnt vmcnt(0)
        global_store_dwordx4 v1, v[4:7], s[6:7]
    """
    lanes = 3 * 128
    data = np.arange(lanes * 4, dtype=np.uint32)
    found = count(body, data, np.zeros_like(data), grid=3, block=128)
    assert (found.launches, found.workgroups, found.waves, found.counted_launches) == (1, 3, 6, 1)
    each = {"salu": 1, "valu": 2, "vmem": 2, "smem": 1, "branch": 1, "wait": 2}
    assert classes(found) == {name: 6 * n for name, n in each.items()}
    assert found.global_read_bytes == found.global_written_bytes == data.nbytes
    assert found.unique_read_bytes == found.unique_written_bytes == data.nbytes
    assert found.l2_read_requests == found.l2_written_requests == data.nbytes // 128
    assert found.unique_read_lines == found.unique_written_lines == data.nbytes // 128
    assert found.scalar_bytes == 6 * 16
    assert found.lds_data_clocks == found.global_atomic_bytes == found.scratch_bytes == 0


def test_loops_count_each_round() -> None:
    body = """
        s_mov_b32 s4, 10
    outer:
        s_mov_b32 s5, s4
    inner:
        v_exp_f32 v1, v1
        s_sub_u32 s5, s5, 1
        s_cmp_lg_u32 s5, 0
        s_cbranch_scc1 inner
        s_barrier
        s_sub_u32 s4, s4, 1
        s_cmp_lg_u32 s4, 0
        s_cbranch_scc1 outer
    """
    found = count(body, block=192)
    inner = sum(range(1, 11))
    each = {"salu": 1 + 10 * 3 + 2 * inner, "trans": inner, "branch": inner + 10 + 1, "other": 10}
    assert classes(found) == {name: 3 * n for name, n in each.items()}
    assert found.barriers == 30


def test_values_that_need_a_step_of_their_own_count_once() -> None:
    """Reading SCC as an operand takes the machine two steps, and an untaken branch none more."""
    found = count("s_cmp_eq_u32 s2, s2\ns_add_u32 s4, src_scc, 1\ns_cbranch_scc1 on\non: s_nop 3")
    assert classes(found) == {"salu": 2, "branch": 2, "other": 1}


@pytest.mark.parametrize(
    ("instruction", "clocks"),
    [
        ("v_mfma_f32_16x16x16_bf16 v[0:3], v[8:9], v[12:13], v[0:3]", 16),
        ("v_mfma_f32_32x32x8_f16 v[0:15], v[16:17], v[20:21], v[0:15]", 32),
        ("v_mfma_f32_16x16x32_bf16 v[0:3], v[8:11], v[12:15], v[0:3]", 16),
        ("v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], v[20:23], v[0:15]", 32),
        ("v_mfma_f32_16x16x32_fp8_fp8 v[0:3], v[8:9], v[12:13], v[0:3]", 16),
        ("v_mfma_f32_32x32x16_bf8_fp8 v[0:15], v[16:17], v[20:21], v[0:15]", 32),
        ("v_mfma_f32_16x16x4_f32 v[0:3], v8, v9, v[0:3]", 32),
        ("v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[12:13], v[0:7]", 32 if asm.ARCH == "gfx942" else 64),
        ("v_mfma_f32_16x16x8_xf32 v[0:3], v[8:9], v[12:13], v[0:3]", 16),
        ("v_mfma_f32_32x32x4_xf32 v[0:15], v[16:17], v[20:21], v[0:15]", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3]", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:23], v[0:3] cbsz:4", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:19], v[0:3] cbsz:4 blgp:4", 16),
        ("v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[8:13], v[16:19], v[0:3] cbsz:2 blgp:4", 16),
        ("v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:23], v[24:31], v[0:15] cbsz:1", 64),
        ("v_mfma_f32_32x32x64_f8f6f4 v[0:15], v[16:19], v[24:27], v[0:15] cbsz:4 blgp:4", 32),
        (
            "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:19], v[0:3], v24, v25 "
            "op_sel_hi:[0,0,0] cbsz:4 blgp:4",
            16,
        ),
    ],
)
def test_matrix_clocks(instruction: str, clocks: int) -> None:
    if asm.lacks(instruction):
        pytest.skip(f"{asm.ARCH} does not have it")
    zeros = "\n".join(f"v_mov_b32 v{i}, 0" for i in range(32))
    found = count(f"{zeros}\n{instruction}\n{instruction}", block=128)
    assert found.mfma == 4
    assert found.matrix_clocks == 4 * clocks


# ---- LDS -------------------------------------------------------------------------------------------

Address = Callable[[int], int]


def stride(n: int) -> Address:
    return lambda lane: lane * n


def octets(lane: int) -> int:
    """Free of conflicts in the phases of ds_read_b128 that were measured, but not in neighbouring lanes."""
    quad = lane % 32 // 4
    return quad // 2 * 64 + lane % 4 * 16 + 256 * (quad % 2 + 2 * (lane // 32))


def lds(instruction: str, address: Address, exec_mask: int = (1 << 64) - 1) -> hg.EmulatorCounters:
    offsets = np.array([address(lane) for lane in range(64)], np.uint32)
    body = f"""
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        s_waitcnt lgkmcnt(0)
        global_load_dword v1, v1, s[4:5]
        s_waitcnt vmcnt(0)
        s_mov_b32 exec_lo, {exec_mask & 0xFFFFFFFF:#x}
        s_mov_b32 exec_hi, {exec_mask >> 32:#x}
        {instruction}
        s_waitcnt lgkmcnt(0)
    """
    return count(body, offsets, lds=65536)


@pytest.mark.parametrize(
    ("instruction", "address", "data", "conflict"),
    [
        # 2 phases of 32 lanes, 32 banks
        ("ds_read_b32 v4, v1", stride(4), 4, 0),
        ("ds_read_b32 v4, v1", stride(0), 4, 0),
        ("ds_read_b32 v4, v1", stride(8), 4, 4),
        ("ds_read_b32 v4, v1", stride(128), 4, 2 * 2 * 31),
        ("ds_read_b32 v4, v1 offset:4096", stride(132), 4, 0),
        ("ds_read_u8 v4, v1", stride(1), 4, 0),
        ("ds_read_u16 v4, v1", stride(66), 4, 0),  # even lanes: banks 0 to 15; odd ones: 16 to 31
        ("ds_read_u16 v4, v1", stride(64), 4, 2 * 2 * 15),
        ("ds_write_b32 v1, v4", stride(4), 4, 0),
        ("ds_write_b32 v1, v4", stride(16), 4, 2 * 2 * 3),
        # 2 phases of 32 lanes, 64 banks
        ("ds_read_b64 v[4:5], v1", stride(8), 4, 0),
        ("ds_read_b64 v[4:5], v1", stride(16), 4, 4),
        ("ds_read_b64 v[4:5], v1", stride(256), 4, 2 * 2 * 31),
        ("ds_read_b64_tr_b16 v[4:5], v1", stride(8), 4, 0),
        # 8 phases of 8 lanes, 32 banks
        ("ds_read_b96 v[4:6], v1", stride(16), 16, 0),
        ("ds_read_b96 v[4:6], v1", stride(12), 16, 16),  # lanes 0-3: banks 0-11; 20-23: 28-31 and 0-7
        ("ds_read_b96 v[4:6], v1", stride(128), 16, 8 * 2 * 7),
        # 4 phases of 16 lanes, 64 banks
        ("ds_read_b128 v[4:7], v1", stride(16), 8, 0),
        ("ds_read_b128 v[4:7], v1", octets, 8, 0),
        ("ds_read_b128 v[4:7], v1", stride(32), 8, 8),
        ("ds_read_b128 v[4:7], v1", stride(256), 8, 4 * 2 * 15),
        # writes: 4 phases of 16 lanes, then 8 of 8; 32 banks
        ("ds_write_b64 v1, v[4:5]", stride(8), 8, 0),
        ("ds_write_b64 v1, v[4:5]", stride(16), 8, 8),
        ("ds_write_b96 v1, v[4:6]", stride(12), 16, 0),
        ("ds_write_b96 v1, v[4:6]", stride(32), 16, 16),
        ("ds_write_b128 v1, v[4:7]", stride(16), 16, 0),
        ("ds_write_b128 v1, v[4:7]", stride(32), 16, 16),
        ("ds_write_b128 v1, v[4:7]", octets, 16, 16),
        # two addresses are two accesses
        ("ds_read2_b32 v[4:5], v1 offset1:1", stride(8), 8, 8),
        ("ds_write2_b64 v1, v[4:5], v[6:7] offset1:1", stride(16), 16, 16),
        ("ds_add_u32 v1, v4", stride(4), 4, 0),
        ("ds_bpermute_b32 v4, v1, v5", stride(4), 4, 0),
    ],
)
def test_lds_clocks(instruction: str, address: Address, data: int, conflict: int) -> None:
    if asm.ARCH == "gfx942" and instruction.startswith(("ds_read_b64", "ds_read_b128")):
        pytest.skip("gfx942 has 32 banks for these; see the random addresses")
    found = lds(instruction, address)
    assert (found.lds_data_clocks, found.lds_conflict_clocks) == (data, conflict)


def in_phases(size: int, write: bool) -> tuple[int, list[list[int]]]:
    """Banks, and the lanes that go through LDS together."""
    narrow = asm.ARCH == "gfx942"
    if (size == 12 or (size == 16 and narrow)) and not write:
        half = [[*range(a, a + 4), *range(b, b + 4)] for a, b in ((0, 20), (4, 16), (8, 28), (12, 24))]
        return 32, half + [[lane + 32 for lane in phase] for phase in half]
    if size == 16 and not write:
        half = [[*range(4), *range(12, 16), *range(20, 28)], [*range(4, 12), *range(16, 20), *range(28, 32)]]
        return 64, half + [[lane + 32 for lane in phase] for phase in half]
    wide = size == 8 and not write and not narrow
    lanes = 32 if size == 4 or wide else 16 if size == 8 else 8
    return 64 if wide else 32, np.arange(64).reshape(-1, lanes).tolist()


@pytest.mark.parametrize(
    ("instruction", "size"),
    [
        ("ds_read_b32 v4, v1", 4),
        ("ds_read_b64 v[4:5], v1", 8),
        ("ds_read_b96 v[4:6], v1", 12),
        ("ds_read_b128 v[4:7], v1", 16),
        ("ds_write_b32 v1, v4", 4),
        ("ds_write_b64 v1, v[4:5]", 8),
        ("ds_write_b96 v1, v[4:6]", 12),
        ("ds_write_b128 v1, v[4:7]", 16),
    ],
)
def test_lds_clocks_of_random_addresses(instruction: str, size: int) -> None:
    rng = np.random.default_rng(size)
    banks, phases = in_phases(size, "write" in instruction)
    for scale in (4, 4, 16):
        address = (rng.integers(0, 1024, 64) * scale).tolist()
        mask = int(rng.integers(0, 1 << 63))
        conflict = 0
        for phase in phases:
            wanted: dict[int, set[int]] = {}
            for lane in phase:
                for dword in range(address[lane] // 4, (address[lane] + size) // 4):
                    if mask >> lane & 1:
                        wanted.setdefault(dword % banks, set()).add(dword)
            conflict += 2 * max(0, max(map(len, wanted.values()), default=1) - 1)
        found = lds(instruction, address.__getitem__, mask)
        assert found.lds_data_clocks == 2 * len(phases)
        assert found.lds_conflict_clocks == conflict


def test_lds_bytes() -> None:
    found = lds("ds_read_b128 v[4:7], v1\nds_write_b96 v1, v[4:6]\nds_write_b8 v1, v4", stride(16))
    assert (found.lds_read_bytes, found.lds_written_bytes) == (64 * 16, 64 * 13)
    found = lds("ds_add_rtn_u64 v[4:5], v1, v[6:7]", stride(16))
    assert (found.lds_read_bytes, found.lds_written_bytes) == (64 * 8, 64 * 8)


def test_lds_active_lanes_only() -> None:
    found = lds("ds_read_b32 v4, v1", stride(128), exec_mask=0b111 | 1 << 40)
    assert found.lds_read_bytes == 16
    assert (found.lds_data_clocks, found.lds_conflict_clocks) == (4, 2 * 2)


def test_lds_outside_the_allocation_is_not_counted() -> None:
    found = lds("ds_read_b32 v4, v1", lambda lane: 4 * lane + (65536 if lane % 2 else 0))
    assert found.lds_read_bytes == 32 * 4


@asm.only_gfx950
def test_dma() -> None:
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_mov_b32 s6, 960
        s_mov_b32 s7, 0x00020000
        s_mov_b32 m0, 0
        v_lshlrev_b32 v1, 4, v0
        s_waitcnt lgkmcnt(0)
        buffer_load_dwordx4 v1, s[4:7], 0 offen lds
        s_waitcnt vmcnt(0)
    """
    found = count(body, np.zeros(1024, np.uint8), lds=1024)
    assert found.global_read_bytes == found.unique_read_bytes == 960  # the others are out of range
    assert found.l2_read_requests == 8
    assert found.lds_dma_bytes == 1024  # zeros are written, too
    assert found.lds_written_bytes == found.lds_data_clocks == 0


# ---- memory ----------------------------------------------------------------------------------------


def memory(instruction: str, address: Address, size: int = 65536, **more: Any) -> hg.EmulatorCounters:
    offsets = np.array([address(lane) for lane in range(64)], np.uint32)
    body = f"""
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        s_waitcnt lgkmcnt(0)
        global_load_dword v1, v1, s[4:5]
        s_waitcnt vmcnt(0)
        {instruction}
        s_waitcnt vmcnt(0)
    """
    return count(body, offsets, np.zeros(size, np.uint8), **more)


@pytest.mark.parametrize(
    ("address", "requests", "unique", "lines"),
    [
        (stride(4), 2, 256, 2),
        (stride(0), 1, 4, 1),
        (stride(256), 64, 256, 64),
        (lambda lane: 256 * lane + 126, 128, 256, 128),  # each over the end of a line
        (lambda lane: 128 * (lane % 3) + lane // 3 * 4, 3, 256, 3),  # alternating
        (stride(2), 2, 130, 2),  # overlapping; the last reaches into the second line
    ],
)
def test_requests(address: Address, requests: int, unique: int, lines: int) -> None:
    load = memory("global_load_dword v4, v1, s[6:7]", address)
    assert load.global_read_bytes == 2 * 256  # the addresses are loaded, too
    assert load.l2_read_requests == 2 + requests
    assert (load.unique_read_bytes, load.unique_read_lines) == (256 + unique, 2 + lines)
    store = memory("global_store_dword v1, v0, s[6:7]", address)
    assert store.global_written_bytes == 256
    assert store.l2_written_requests == requests
    assert (store.unique_written_bytes, store.unique_written_lines) == (unique, lines)
    atomic = memory("global_atomic_add v1, v0, s[6:7]", lambda lane: address(lane) // 4 * 4)
    assert atomic.global_atomic_bytes == 256
    assert atomic.global_written_bytes == atomic.l2_written_requests == 0
    assert atomic.unique_written_bytes == atomic.unique_read_bytes - 256
    assert atomic.l2_atomic_requests <= requests


def test_unique_is_of_the_whole_launch() -> None:
    """Five workgroups on several host threads read the same bytes twice."""
    twice = "global_load_dwordx2 v[4:5], v1, s[6:7]\n" * 2
    found = memory(twice, stride(8), grid=5)
    assert found.global_read_bytes == 5 * (256 + 2 * 512)
    assert found.l2_read_requests == 5 * (2 + 2 * 4)
    assert (found.unique_read_bytes, found.unique_read_lines) == (256 + 512, 2 + 4)


def test_scratch_is_apart() -> None:
    found = count(
        "scratch_store_dwordx2 off, v[0:1], off offset:8\nscratch_load_dword v2, off, off offset:8\n"
        "s_waitcnt vmcnt(0)",
        scratch=64,
    )
    assert found.scratch_bytes == 64 * 12
    assert found.unique_read_bytes == found.l2_read_requests == found.global_written_bytes == 0
    assert found.each[0].private_bytes == 64


# ---- kernels ---------------------------------------------------------------------------------------


def product(m: int, n: int, k: int, kernel: str) -> hg.EmulatorLaunch:
    rng = np.random.default_rng(0)
    a = hg.asarray(rng.standard_normal((m, k), np.float32).astype(ml_dtypes.bfloat16))
    b = hg.asarray(rng.standard_normal((n, k), np.float32).astype(ml_dtypes.bfloat16))
    hg.emulator_counters(reset=True)
    with hg.config(kernel=kernel):
        hg.matmul(a, b.T)
    (launch,) = [x for x in hg.emulator_counters(reset=True).each if x.kernel == kernel]  # others copy
    return launch


@pytest.mark.parametrize(("m", "n", "k"), [(256, 256, 128), (300, 200, 72), (1, 513, 192)])
def test_gemm(m: int, n: int, k: int) -> None:
    launch = product(m, n, k, "gemm_bf16_nt_256x256x64")
    tiles_m, tiles_n, steps = -(-m // 256), -(-n // 256), -(-k // 64)
    c = launch.counters
    assert c.workgroups == tiles_m * tiles_n
    assert c.waves == 8 * c.workgroups
    assert launch.workgroup_size == (512, 1, 1)
    assert c.mfma * 16 * 16 * 32 == tiles_m * 256 * tiles_n * 256 * steps * 64
    assert c.matrix_clocks == 16 * c.mfma
    assert c.lds_conflict_clocks == 0
    assert c.lds_data_clocks > 0
    assert c.lds_dma_bytes == c.workgroups * steps * 2 * 256 * 64 * 2
    assert c.unique_read_bytes == (m + n) * k * 2
    assert c.unique_written_bytes == c.global_written_bytes == m * n * 2
    assert c.global_read_bytes == (tiles_n * m + tiles_m * n) * k * 2


def test_registers_and_lds_of_a_launch() -> None:
    manifest = json.loads((_hip.EMULATOR.parents[1] / "kernels" / "manifest.json").read_text())
    for kernel in manifest["archs"]["gfx950"]["kernels"]:
        if kernel["op"] == "gemm" and kernel["a"] == "bf16":
            launch = product(64, 64, 64, kernel["name"])
            assert (launch.vgprs, launch.agprs, launch.sgprs) == (
                kernel["vgpr"],
                kernel["agpr"],
                kernel["sgpr"],
            )
            assert launch.lds_bytes == kernel["lds"]
            assert launch.allocated_vgprs == kernel["vgpr_allocated"]
            assert launch.private_bytes == 0


CHILD = """
import json, sys
import ml_dtypes, numpy as np, hipgemm as hg
from dataclasses import asdict
hg.emulator_counters(addresses=True)
rng = np.random.default_rng(0)
a = rng.standard_normal((300, 264), np.float32).astype(ml_dtypes.bfloat16)
b = rng.standard_normal((530, 264), np.float32).astype(ml_dtypes.bfloat16)
hg.matmul(a, b.T)
x = hg.asarray(a)[:, 1:]
hg.matmul(x, x.T)  # copies both
found = asdict(hg.emulator_counters())
assert found.pop("nanoseconds") > 0
for launch in found["each"]:
    assert launch["counters"].pop("nanoseconds") > 0
print(json.dumps(found))
"""


def child(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("HIPGEMM_")}
    environment = {**clean, "HIPGEMM_RUNTIME": "emulator", **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)


@pytest.mark.packaging
def test_the_same_on_any_threads_cpu_and_timing() -> None:
    variants = [
        {"HIPGEMM_EMULATOR_THREADS": "1"},
        {"HIPGEMM_EMULATOR_THREADS": "2"},
        {"HIPGEMM_EMULATOR_THREADS": "3", "HIPGEMM_EMULATOR_MEMORY": "early"},
        {"HIPGEMM_EMULATOR_MEMORY": "random:3", "HIPGEMM_EMULATOR_WAVES": "random:4"},
        {"HIPGEMM_EMULATOR_WAVES": "reverse"},
        {"HIPGEMM_EMULATOR_CPU": "v2"},
        {"HIPGEMM_EMULATOR_CPU": "v3"},
        {"HIPGEMM_EMULATOR_CHECK": "hazard"},
    ]
    outputs = []
    for variant in variants:
        done = child(CHILD, **variant)
        assert done.returncode == 0, f"{variant}: {done.stderr}"
        outputs.append(json.loads(done.stdout))
    assert outputs[0]["counted_launches"] == outputs[0]["launches"] >= 4
    for variant, output in zip(variants, outputs, strict=True):
        assert output == outputs[0], variant


# ---- the switch, the records, errors ---------------------------------------------------------------


def test_switch() -> None:
    hg.emulator_counters(reset=True, addresses=False)
    asm.run("ds_read_b32 v1, v0\ns_waitcnt lgkmcnt(0)", lds=64)
    off = hg.emulator_counters(addresses=True)
    assert (off.launches, off.lds, off.counted_launches, off.lds_data_clocks) == (1, 1, 0, 0)
    asm.run("ds_read_b32 v1, v0\ns_waitcnt lgkmcnt(0)", lds=64)
    both = hg.emulator_counters(reset=True)
    assert (both.launches, both.lds, both.counted_launches, both.lds_data_clocks) == (2, 2, 1, 4)
    assert both.each[0].counters.counted_launches == 0
    assert both.each[1].counters.lds_data_clocks == 4
    assert hg.emulator_counters() == hg.EmulatorCounters()
    assert str(hg.emulator_counters()) == "nothing ran"


def test_environment_switches_it_on() -> None:
    code = """
import numpy as np, ml_dtypes, hipgemm as hg
x = np.ones((16, 16), ml_dtypes.bfloat16)
hg.matmul(x, x.T)
print(hg.emulator_counters().counted_launches)
"""
    assert child(code).stdout.strip() == "0"
    assert child(code, HIPGEMM_EMULATOR_COUNT="0").stdout.strip() == "0"
    assert child(code, HIPGEMM_EMULATOR_COUNT="1").stdout.strip() == "1"


def test_totals_are_sums_and_the_latest_are_kept() -> None:
    asm.library().hipgemm_emulator_set_counting(0)
    with asm.Module({"one": asm.Snippet("s_nop 0"), "two": asm.Snippet("s_nop 0\ns_nop 0")}) as module:
        for _ in range(513):
            module.run("one")
            module.run("two", grid=2, block=128)
    found = hg.emulator_counters(reset=True)
    assert found.launches == 1026
    assert found.other == 513 * (1 + 2 * 4)
    assert len(found.each) == 1024
    assert [launch.kernel for launch in found.each[-3:]] == ["two", "one", "two"]
    assert found.each[-1].workgroups == (2, 1, 1)
    assert found.each[-1].workgroup_size == (128, 1, 1)
    assert sum(launch.counters.other for launch in found.each) == found.other - (1 + 2 * 4)


def test_meanings() -> None:
    lib = asm.library()
    lib.hipgemm_emulator_counter_names.restype = ctypes.c_char_p
    lib.hipgemm_emulator_counter_meaning.restype = ctypes.c_char_p
    names = lib.hipgemm_emulator_counter_names().decode().split()
    assert names[:4] == ["waves", "wave_instructions", "mfma", "nanoseconds"]
    assert set(names) == set(vars(hg.EmulatorCounters())) - {"each"}
    assert all(lib.hipgemm_emulator_counter_meaning(name.encode()) for name in names)
    assert lib.hipgemm_emulator_counter_meaning(b"cycles") is None


def test_a_fault_is_counted_up_to_where_it_is() -> None:
    with pytest.raises(asm.LaunchError):
        asm.run(
            "v_mov_b32 v2, 0\nv_mov_b32 v3, 0\nglobal_load_dword v0, v[2:3], off\ns_nop 0\n"
            "s_waitcnt vmcnt(0)\ns_nop 0"
        )
    found = hg.emulator_counters(reset=True)
    assert classes(found) == {"valu": 2, "vmem": 1, "other": 1, "wait": 1}
    assert found.global_read_bytes == 0


def test_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rocm = _hip.Runtime("rocm", runtime.hip, "/opt/rocm/lib/libamdhip64.so", 1, runtime.bindings)
    monkeypatch.setattr(_runtime, "_runtime", rocm)
    with pytest.raises(hg.RuntimeNotFoundError, match="emulator_counters: the runtime must be the emulator"):
        hg.emulator_counters()
    monkeypatch.undo()
