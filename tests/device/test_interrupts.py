"""An exception at any instruction, as of Ctrl-C: nothing is held or lost, and the next call is right.

HIPGEMM_TEST_INTERRUPTS=0 takes each instruction of each call, instead of some hundred; HIPGEMM_TEST_SIGNALS
is the number of seconds for which real signals come.
"""

import ast
import gc
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import interrupting
import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.kernels import launch as _launch
from hipgemm.products import run as _run
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import staging as _staging
from hipgemm.testing import random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
SECONDS = float(os.environ.get("HIPGEMM_TEST_SIGNALS", "3"))
rng = np.random.default_rng(3)
A, W, BIAS = random_matrix((20, 36), rng), random_matrix((24, 36), rng), np.ones(24, F32)
ROWS, EXPERTS = random_matrix((64, 64), rng), random_matrix((2, 24, 64), rng)
SMALL_TILE = "gemm_bf16_nt_32x64x64"
OFFSETS, WRONG = np.array([0, 32, 64], np.int32), np.array([0, 40, 24], np.int32)


class Foreign:
    """An array of another library."""

    def __init__(self, x: hg.DeviceArray) -> None:
        self.x = x

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.x.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)


class Arrays:
    """What the calls use."""

    def __init__(self) -> None:
        self.a, self.w, self.out = hg.asarray(A), hg.asarray(W).T, hg.empty((20, 24), BF16)
        self.rows, self.experts = hg.asarray(ROWS), hg.asarray(EXPERTS).mT
        self.offsets, self.wrong = hg.asarray(OFFSETS), hg.asarray(WRONG)
        self.p, self.q = hg.quantize_mxfp8(self.rows), hg.quantize_mxfp8(hg.asarray(EXPERTS[0]))
        self.first, self.second = hg.Stream(), hg.Stream()
        self.state = hg.AmaxState(3.0)


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Arrays()


def scaled(q: hg.ScaledArray) -> list[np.ndarray]:
    return [q.data.get(), q.scale.get()]


def on_streams(x: Arrays) -> np.ndarray:
    """Memory of one stream that others read and write."""
    y = hg.matmul(x.a, x.w, stream=x.first)
    z = hg.matmul(y, y.T, stream=x.second)
    hg.matmul(x.a, x.w, y, stream=x.second)
    return hg.matmul(z, y, dtype=F32, stream=x.first).get()


def events(x: Arrays) -> np.ndarray:
    stream, start = hg.Stream(), hg.Event()
    start.record(stream)
    y = hg.matmul(x.a, x.w, stream=stream)
    x.second.wait(stream)
    end = hg.Event().record(x.second)
    assert start.elapsed(end) >= 0
    assert end.query()
    return y.get()


def memory(x: Arrays) -> list[np.ndarray]:
    sizes = (100, 5000, 70_000)
    kept = [hg.zeros(n, np.uint8, stream=x.first) for n in sizes]
    hg.empty(9999, np.uint8).free()
    hg.trim()
    return [one.get() for one in kept]


def out_of_memory(x: Arrays) -> str:
    with pytest.raises(hg.HipError) as caught:
        hg.empty(2**50, np.uint8)
    return str(caught.value.name)


def limited(x: Arrays) -> int:
    try:
        hg.limit_memory(hg.memory_stats().used + 2**20, cache=2**19)
        for n in (2**20, 2**19, 2**18):
            hg.empty(n, np.uint8).free()
        with pytest.raises(hg.HipError):
            hg.empty(2**21, np.uint8)
    finally:
        hg.limit_memory()
    return hg.memory_stats().limit or 0


def found_wrong(x: Arrays) -> str:
    """Group offsets that a kernel finds wrong: the error of the next wait."""
    hg.grouped_matmul(x.rows, x.experts, x.wrong)
    with pytest.raises(hg.HipError) as caught:
        hg.synchronize()
    return caught.value.report


def first_call(x: Arrays) -> np.ndarray:
    """Neither plan nor kernel is known."""
    return hg.matmul(A, W.T, bias=BIAS)


def forget_plans() -> None:
    _run.plans.clear()
    _launch._functions.clear()


def few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose between two kernels, not among hundreds, for which the same instructions run."""
    built = _run.code_object(_hip.arch(0))
    few = {name: kernel for name, kernel in built.kernels.items() if name in ("plain_gemm", SMALL_TILE)}
    smaller = replace(built, kernels=few)
    monkeypatch.setattr(_run, "code_object", lambda arch: smaller)


def load_module(x: Arrays) -> str:
    """Load code objects, and unload those that another call has loaded already."""
    built, module = _launch._load_module(0)
    assert module.ptr
    del module
    return _launch._load_function(0, next(iter(built.kernels))).name


def files(x: Arrays) -> list[np.ndarray]:
    with tempfile.TemporaryDirectory() as folder:
        hg.save(f"{folder}/x", {"rows": x.rows, "q": x.q})
        loaded = hg.load(f"{folder}/x", device=0)
    return [loaded["rows"].get(), *scaled(loaded["q"])]


def usage(x: Arrays) -> int:
    hg.usage()
    hg.matmul(x.a, x.w, x.out)
    hg.usage()
    return 0


Call = Callable[[Arrays], Any]
CALLS: dict[str, Call | tuple[Call, Callable[[], object]]] = {
    "resident": lambda x: hg.matmul(x.a, x.w, x.out).get(),
    "out allocated": lambda x: hg.matmul(x.rows, x.rows.T).get(),
    "NumPy": lambda x: hg.matmul(A, W.T, bias=BIAS),
    "NumPy, large": lambda x: hg.matmul(np.ones((8, 2**16), BF16), np.ones((2**16, 8), BF16)),
    "column-major output": lambda x: hg.matmul(A, W.T, np.empty((24, 20), F32).T),
    "mxfp8": lambda x: hg.matmul(x.p, x.q.T).get(),
    "grouped": lambda x: hg.grouped_matmul(x.rows, x.experts, x.offsets).get(),
    "wgrad": lambda x: hg.grouped_wgrad(x.rows, x.rows, OFFSETS).get(),
    "groups found wrong": found_wrong,
    "quantize_mxfp8": lambda x: scaled(hg.quantize_mxfp8(x.rows)),
    "quantize_mxfp6": lambda x: scaled(hg.quantize_mxfp6(x.rows)),
    "quantize_mxfp4": lambda x: scaled(hg.quantize_mxfp4(x.rows)),
    "quantize_both": lambda x: [part for q in hg.quantize_both(x.rows, "mxfp8_e4m3") for part in scaled(q)],
    "quantize_fp8": lambda x: scaled(hg.quantize_fp8(x.rows)),
    "quantize_fp8, a state": lambda x: scaled(hg.quantize_fp8(x.rows, x.state)),
    "quantize groups": lambda x: scaled(hg.quantize_mxfp8(x.rows, axis=0, group_offsets=OFFSETS)),
    "dequantize": lambda x: hg.dequantize(x.p).get(),
    "linear": lambda x: hg.linear(x.rows, x.rows, recipe="mxfp8")[0].get(),
    "upload and download": lambda x: hg.asarray(ROWS[:, ::2]).T.get(),
    "DLPack": lambda x: hg.matmul(hg.asarray(Foreign(x.a)), x.w).get(),
    "streams": on_streams,
    "events": events,
    "memory": memory,
    "out of memory": out_of_memory,
    "limits": limited,
    "usage": usage,
    "files": files,
    "first call": (first_call, forget_plans),
    "modules": load_module,
}
GROUPED = {"grouped", "wgrad", "groups found wrong", "quantize groups"}
SLOW = {"NumPy, large", "out of memory", "limits", "files", "first call", "modules"}


def need_groups(x: Arrays) -> None:
    if not hg.can_use("grouped_matmul", x.rows, x.experts, x.offsets).kernel:
        pytest.skip("needs kernels for groups")


@pytest.mark.parametrize("name", CALLS)
def test_at_each_instruction(name: str, arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in GROUPED:
        need_groups(arrays)
    monkeypatch.setattr(_staging, "CHUNK", 1 << 18)  # so that a large array takes several
    if name == "first call":
        few_kernels(monkeypatch)
    found = CALLS[name]
    call, prepare = found if isinstance(found, tuple) else (found, lambda: None)

    def after() -> None:
        if name == "groups found wrong":
            with suppress(hg.HipError):
                hg.synchronize()
        elif name == "limits":
            hg.limit_memory()

    most = interrupting.MOST // 10 if name in SLOW else interrupting.MOST
    assert interrupting.check(partial(call, arrays), prepare, after, most) > 100
    hg.synchronize()
    hg.memory_stats()
    gc.collect()
    assert not any(export() for export in arrays.a._block.exports), "another library seems to hold the array"


def test_without_a_cache(arrays: Arrays, monkeypatch: pytest.MonkeyPatch) -> None:
    """HIPGEMM_POOL=off: memory is freed at once, and once."""
    hg.trim()
    monkeypatch.setattr(_hip.runtime().pools[0], "caching", False)
    assert interrupting.check(lambda: hg.matmul(arrays.a, arrays.w).get()) > 100


def wrong_offsets(x: Arrays) -> None:
    need_groups(x)
    hg.grouped_matmul(x.rows, x.experts, x.wrong)
    _hip.block("hipDeviceSynchronize")  # the kernel has ended


def wrong_address(x: Arrays) -> None:
    y = hg.asarray(ROWS)
    interface = {**y.view(np.uint16).__cuda_array_interface__, "shape": (2**20, 64), "strides": None}
    beyond = hg.asarray(type("Beyond", (), {"__cuda_array_interface__": interface})())
    hg.matmul(beyond.view(BF16), y.T)


@pytest.mark.parametrize(
    "queue",
    [
        wrong_offsets,
        pytest.param(wrong_address, marks=pytest.mark.emulator("the process survives a fault on the device")),
    ],
)
def test_an_error_of_a_kernel_is_reported(queue: Callable[[Arrays], None], arrays: Arrays) -> None:
    """By the wait, or, if that was interrupted, by the next one."""

    def wait() -> None:
        try:
            hg.synchronize()
        except BaseException as error:
            reported.extend(x for x in (error, error.__context__) if isinstance(x, hg.HipError))

    def waits() -> None:
        wait()
        if not reported:
            later.append(at)
            wait()

    place, at = "somewhere", 0
    later: list[int] = []
    while place:
        reported: list[hg.HipError] = []
        queue(arrays)
        at += 1
        place = interrupting.traced(waits, at).place
        # No signal handler runs where `except`, `finally` and `with` take an exception up or hand it on.
        handing_on = any(name in place for name in ("PUSH_EXC", "WITH_EXCEPT", "COPY", "RERAISE"))
        assert reported or handing_on, f"not reported when interrupted at {place}"
        with suppress(hg.HipError):  # reporting it twice is better than not at all
            hg.synchronize()
        hg.synchronize()
    assert 30 < len(later) < at


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a finalizer
def test_settings_of_a_block(arrays: Arrays) -> None:
    """They end with it, however it ends; before it begins, all are changed or none."""
    began: list[bool] = []

    def call() -> None:
        with hg.config(kernel="plain", report=False):
            began.append(True)
            assert hg.config.kernel == "plain"

    before = hg.config.kernel, hg.config.report
    for at in interrupting.instructions(interrupting.traced(call).count):
        began.clear()
        interrupting.traced(call, at)
        found = hg.config.kernel, hg.config.report
        assert found == before or (not began and found == ("plain", False))
        hg.config(kernel=before[0], report=before[1])


OPENING = """
import sys
sys.path.insert(0, {tests!r})
import interrupting, ml_dtypes, numpy as np, hipgemm as hg
from hipgemm.runtime import loader
a = np.ones((4, 4), ml_dtypes.bfloat16)
def forget():
    loader._runtime = None
    loader._opened.clear()
hg.matmul(a, a)
for _ in range(2):
    forget()
    total = interrupting.traced(hg.memory_stats).count
for at in interrupting.instructions(total, 60):
    forget()
    interrupting.traced(hg.memory_stats, at)
    assert (hg.matmul(a, a) == 4).all()
kept = hg.asarray(a), hg.Stream(), hg.Event().record(), hg.quantize_mxfp8(a)
interrupting.traced(lambda: hg.matmul(a, kept[0]), 100)
print(total)
"""


def test_the_first_use_of_a_device_and_the_end_of_the_process(run_python: Callable[..., Any]) -> None:
    done = run_python(OPENING.format(tests=interrupting.TESTS))
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    assert int(done.stdout) > 500


def test_there_are_no_locks() -> None:
    """No `with` or `try` holds one safely. Nor is there anything that has locks in Python code."""
    package = Path(hg.__file__).parent
    locks = {"Lock", "RLock", "Condition", "Event", "Semaphore", "Barrier", "Thread", "Timer"}
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert not (node.value.id in ("threading", "_thread") and node.attr in locks), path
            elif isinstance(node, ast.ImportFrom):
                assert node.module not in ("threading", "queue", "concurrent.futures"), path
            elif isinstance(node, ast.Import):
                assert not {"queue", "concurrent.futures"} & {alias.name for alias in node.names}, path


class Alarm(Exception):
    """What the signal handler raises."""


def test_real_signals(arrays: Arrays) -> None:
    """A handler that raises, at random times, while another thread calls as well."""
    calls = [
        CALLS[name] for name in ("resident", "out allocated", "NumPy", "quantize_fp8", "streams", "memory")
    ]
    expected = [interrupting._bits(call(arrays)) for call in calls]
    ended, failures, counts = threading.Event(), [], [0, 0]

    def work() -> None:
        own = Arrays()
        try:
            while not ended.is_set():
                for call, bits in zip(calls[:4], expected, strict=False):
                    assert interrupting._bits(call(own)) == bits
                    counts[0] += 1
        except BaseException as error:
            failures.append(error)

    def handler(number: int, frame: object) -> None:
        raise Alarm

    gc.collect()
    free, used = interrupting.bytes_free(), interrupting.bytes_used()
    thread = threading.Thread(target=work)
    before = signal.signal(signal.SIGALRM, handler)
    choice, until = random.Random(0), time.process_time() + SECONDS
    thread.start()
    try:
        while time.process_time() < until and not failures:
            call, bits = choice.choice(list(zip(calls, expected, strict=True)))
            try:
                signal.setitimer(signal.ITIMER_REAL, choice.uniform(1e-6, 1.5e-3))
                assert interrupting._bits(call(arrays)) == bits
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Alarm:
                counts[1] += 1
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        ended.set()
        thread.join(60)
    assert not thread.is_alive()
    assert not failures, failures[0]
    gc.collect()
    assert interrupting.bytes_used() == used
    assert interrupting.bytes_free() == free
    for call, bits in zip(calls, expected, strict=True):
        assert interrupting._bits(call(arrays)) == bits
    assert min(counts) > 100 * min(1.0, SECONDS / 6), counts
