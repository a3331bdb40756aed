"""Memory timing and wave order: each mode, and that correct code gives the same results in all."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess

import asm
import numpy as np
import pytest
from test_check_race import BARRIER, DMA, READ_OTHER, SET_UP, WAIT, wave0

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
import selftest_modes

FOLDER = Path(__file__).parents[2] / "hipgemm" / "kernels"
MEMORY = ("late", "early", "late-vm", "late-lgkm")
OUT = "v_lshlrev_b32 v1, 2, v0\nglobal_store_dword v1, v8, s[4:5] offset:2048\n"

# Faults, and the modes that give wrong values.
FAULTS: dict[str, tuple[str, set[str]]] = {
    "right": (DMA + BARRIER + READ_OTHER + OUT, set()),
    # An LDS read does not wait for the DMA before it. Where LDS is late too, the DMA lands first.
    "dma_read_before_wait": (DMA + "ds_read_b128 v[8:11], v2\n" + WAIT + OUT, {"late-vm"}),
    "dma_wait_behind_barrier": (DMA + "s_barrier\n" + READ_OTHER + OUT, {"late", "late-vm"}),
    "dma_no_wait_at_all": (
        DMA + "s_barrier\n" + READ_OTHER.replace("vmcnt(0) ", "") + OUT,
        {"late", "late-vm"},
    ),
    # The DMA overwrites what an LDS read still has to fetch.
    "dma_over_read": (
        DMA + WAIT + "v_mov_b32 v3, 0\nds_read_b128 v[8:11], v2\ns_mov_b32 s6, 0\n" + DMA + WAIT + OUT,
        {"late", "late-lgkm"},
    ),
    "no_wait_for_read": (
        DMA + WAIT + "v_mov_b32 v8, 0\nds_read_b128 v[8:11], v2\n" + OUT,
        {"late", "late-lgkm"},
    ),
}

# Each wave, or workgroup, takes the next place in the list.
PLACE = (
    "v_mov_b32 v5, 1\ns_mov_b64 exec, 1\n{add}v_lshlrev_b32 v4, 2, v4\nv_mov_b32 v6, {what}\n{store}" + WAIT
)
ORDERS = {
    "waves": SET_UP
    + wave0("ds_write_b32 v3, v3 offset:4096\n")
    + BARRIER
    + PLACE.format(
        add="v_mov_b32 v3, 0\nds_add_rtn_u32 v4, v3, v5 offset:4096\n" + WAIT,
        what="s8",
        store="global_store_dword v4, v6, s[4:5]\n",
    ),
    "groups": SET_UP
    + PLACE.format(
        add="global_atomic_add v4, v3, v5, s[4:5] sc0\n" + WAIT,
        what="s2",
        store="global_store_dword v4, v6, s[4:5] offset:4\n",
    ),
}
# Two waves write to the same address: the result depends on the order.
RACE = SET_UP + (
    "v_mov_b32 v3, s8\n" + "ds_write_b32 v1, v3\n" * 2 + "v_mov_b32 v3, 7\n" * 40 + "ds_read_b32 v8, v1\n"
    f"{WAIT}s_lshl_b32 s10, s2, 9\ns_lshl_b32 s11, s8, 8\ns_add_u32 s10, s10, s11\nv_add_u32 v1, s10, v1\n"
    "global_store_dword v1, v8, s[4:5]\n"
)

KERNELS = {
    **{name: asm.Snippet(SET_UP + body, lds=8192) for name, (body, _) in FAULTS.items()},
    **{name: asm.Snippet(body, lds=8192) for name, body in ORDERS.items()},
    "race": asm.Snippet(RACE, lds=8192),
}


@pytest.fixture(scope="module")
def module() -> Iterator[asm.Module]:
    with asm.Module(KERNELS) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    asm.library().hipgemm_emulator_set_memory(None)
    asm.library().hipgemm_emulator_set_waves(None)


def memory(mode: str) -> None:
    assert asm.library().hipgemm_emulator_set_memory(mode.encode()) == 0


def waves(mode: str) -> None:
    assert asm.library().hipgemm_emulator_set_waves(mode.encode()) == 0


@pytest.mark.parametrize("mode", MEMORY)
@pytest.mark.parametrize("name", FAULTS)
def test_what_late_memory_shows(name: str, mode: str, module: asm.Module) -> None:
    memory(mode)
    buffer = np.arange(2048, dtype=np.uint32)
    (out,) = module.run(name, buffer, block=128)
    lane = np.arange(128)
    other = 4 * (lane if "read" in name else lane ^ 64)
    right = np.array_equal(out[512:640], other)
    assert right != (mode in FAULTS[name][1]), out[512:640]


def test_random_memory_shows_every_fault(module: asm.Module) -> None:
    buffer = np.arange(2048, dtype=np.uint32)
    lane = np.arange(128)
    for name, (_, modes) in FAULTS.items():
        other = 4 * (lane if "read" in name else lane ^ 64)
        results = []
        for seed in range(40):
            memory(f"random:{seed}")
            (out,) = module.run(name, buffer, block=128)
            results.append(np.array_equal(out[512:640], other))
        assert all(results) == (not modes), (name, results)


@pytest.mark.parametrize("what", ORDERS)
def test_orders(what: str, module: asm.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIPGEMM_EMULATOR_THREADS", "1")
    count = 13

    def order() -> list[int]:
        block, grid = (64 * count, 1) if what == "waves" else (64, count)
        (out,) = module.run(what, np.zeros(1024, np.uint32), block=block, grid=grid)
        return [int(x) for x in (out[:count] if what == "waves" else out[1 : count + 1])]

    assert order() == list(range(count))
    waves("reverse")
    assert order() == list(range(count))[::-1]
    seen = set()
    for seed in (1, 2, 3, 12345678901234567890):
        waves(f"random:{seed}")
        assert sorted(order()) == list(range(count))
        assert order() == order()
        seen.add(tuple(order()))
    assert len(seen) > 2


def test_every_workgroup_runs_once(module: asm.Module) -> None:
    for count in (1, 2, 3, 64, 65, 777):
        waves(f"random:{count}")
        (out,) = module.run("groups", np.zeros(1024, np.uint32), grid=count)
        assert sorted(out[1 : count + 1]) == list(range(count))


def test_seeds_repeat_on_any_number_of_threads(module: asm.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def results(threads: int, memory_seed: int, wave_seed: int) -> bytes:
        monkeypatch.setenv("HIPGEMM_EMULATOR_THREADS", str(threads))
        memory(f"random:{memory_seed}")
        waves(f"random:{wave_seed}")
        return module.run("race", np.zeros(4096, np.uint32), block=128, grid=32)[0].tobytes()

    first = results(1, 1, 1)
    assert all(results(threads, 1, 1) == first for threads in (1, 2, 5))
    assert len({results(2, 1, seed) for seed in range(8)}) > 4


def test_environment_and_bad_values(module: asm.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    library = asm.library()
    buffer = np.arange(2048, dtype=np.uint32)

    def wrong() -> bool:
        (out,) = module.run("no_wait_for_read", buffer, block=128)
        return not np.array_equal(out[512:640], 4 * np.arange(128))

    assert wrong()
    monkeypatch.setenv("HIPGEMM_EMULATOR_MEMORY", "late-vm")
    assert not wrong()
    memory("late")
    assert wrong()
    for bad in ("", "Late", "random:", "random:x", "random:-1", "random:1x", "random:99999999999999999999"):
        assert library.hipgemm_emulator_set_memory(bad.encode()) == 1
        assert library.hipgemm_emulator_set_waves(bad.encode()) == 1
    assert wrong()
    library.hipgemm_emulator_set_memory(None)
    assert not wrong()


# Every matrix kernel, the quantizers, and copies: the bits must not depend on the mode.
SAME_BITS = """
import ctypes
import sys
import ml_dtypes, numpy as np, hipgemm
from hipgemm.runtime import hip as _hip

sys.path.insert(0, DEVICE_TESTS)
from gemm_launch import GEMMS, Memory, Product

library = ctypes.CDLL(str(_hip.EMULATOR))
rng = np.random.default_rng(7)

CALLS = {}
for kernel in GEMMS.values():
    if kernel.a == kernel.b and kernel.a in ("bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1"):
        drawn = Product.draw(kernel, 70, 65, 3 * kernel.tile[2] - 24, exact=False)
        def call(drawn=drawn):
            memory = Memory()
            parts = [drawn.run(memory, split_tiles=tiles).tobytes() for tiles in (0, 2)]
            memory.free()
            return parts
        CALLS[kernel.name] = call

y = hipgemm.asarray(rng.standard_normal((96, 80), np.float32).astype(ml_dtypes.bfloat16))
CALLS["copies"] = lambda: hipgemm.matmul(y[:, ::-1].T, y).get().tobytes()
for format in ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp4_e2m1"):
    def call(format=format):
        both = hipgemm.quantize_both(y, format)
        return b"".join(np.asarray(part.get()).tobytes() for q in both for part in (q.data, q.scale))
    CALLS["quantize", format] = call

first = {name: call() for name, call in CALLS.items()}
for memory in ("early", "late-vm", "late-lgkm", "random:1", "random:2"):
    waves = {"early": "reverse", "late-vm": "random:1", "random:1": "random:2"}.get(memory, "forward")
    assert library.hipgemm_emulator_set_memory(memory.encode()) == 0
    assert library.hipgemm_emulator_set_waves(waves.encode()) == 0
    for name, call in CALLS.items():
        assert call() == first[name], (name, memory, waves)
print("same bits:", len(CALLS))
"""


def test_our_kernels_give_the_same_bits(run_python: Callable[..., CompletedProcess[str]]) -> None:
    folder = str(Path(__file__).parents[1] / "device")
    done = run_python(f"DEVICE_TESTS = {folder!r}\n{SAME_BITS}", HIPGEMM_RUNTIME="emulator")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("same bits: ")
    assert int(done.stdout.split()[-1]) > 50


@pytest.mark.packaging  # of another architecture
def test_selftests_in_each_mode(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that tries all; here one kernel and one primitive, right and of another lane map."""
    one = ["--arch", "gfx942", "--products", "gemm_fp8_e4m3_nt_32x64x128", "--primitives", "mfma_fnuz"]
    assert selftest_modes.main([*one, "--mode", "random:2"]) == 0
    mode = r"memory random:2, waves random:2 +right +\d+ s +right +\d+ s\n"
    assert re.search(mode, capsys.readouterr().out)
    monkeypatch.setenv("HIPGEMM_EMULATOR_MUTANT", "mfma_fnuz")
    assert selftest_modes.main([*one, "--mode", "async"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"async eager +2 failed +\d+ s +1 failed +\d+ s\n", printed)
    assert "\nFAIL  mfma_fnuz" in printed
    assert "\nFAIL  gemm_fp8_e4m3_nt_32x64x128" in printed
