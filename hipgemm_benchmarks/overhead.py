"""Python's overhead of a launch, compared with hip-python's own launch of the same kernel; allocations."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hipgemm.array.device_array import DeviceArray, asarray, empty
from hipgemm.config import environment
from hipgemm.distributed.sharding import shard, sharded_matmul
from hipgemm.kernels import launch as _launch
from hipgemm.kernels.manifest import code_object
from hipgemm.products.grouped import grouped_matmul
from hipgemm.products.matmul import matmul
from hipgemm.quantize.quantizers import dequantize, quantize_fp8, quantize_mxfp8
from hipgemm.runtime import hip as _hip
from hipgemm.runtime.memory import memory_stats

Call = Callable[[], object]
AIM = 2.5  # microseconds above hip-python's own launch
AIMS = {  # microseconds in all
    "quantize_mxfp8": 8.0,
    "grouped_matmul, out= given": 10.0,
    "sharded_matmul, split m": 20.0,
}
IMPORT_AIM = 0.1  # seconds


@dataclass(frozen=True)
class Launches:
    """The launches of a call, which can be repeated without hipgemm."""

    arguments: tuple[tuple[Any, ...], ...]
    blocks: tuple[_launch.ArgumentBlock, ...]

    def repeat(self) -> None:
        """Launch again, by hip-python alone."""
        launch = _hip.runtime().hip.hipModuleLaunchKernel
        for arguments in self.arguments:
            launch(*arguments)


def recorded(call: Call) -> Launches:
    """Run a call and record its launches."""
    hip, seen, blocks = _hip.runtime().hip, [], []
    inner = hip.hipModuleLaunchKernel

    def launch(*arguments: Any) -> Any:
        blocks.append(_launch.ArgumentBlock.copy_of(arguments[-1]))
        seen.append((*arguments[:-1], blocks[-1].extra))
        return inner(*arguments)

    hip.hipModuleLaunchKernel = launch
    try:
        call()
    finally:
        hip.hipModuleLaunchKernel = inner
    return Launches(tuple(seen), tuple(blocks))


def microseconds(calls: dict[str, Call], batch: int = 50, batches: int = 40) -> dict[str, float]:
    """Time calls that only queue work; medians.

    Batches of the calls alternate, so that other load disturbs all equally. What a batch has queued runs
    before the next one is timed, and some calls go first: the emulator, which shares the cores, leaves the
    caches to Python as a GPU would.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(batches):
        for name, call in calls.items():
            for _ in range(batch // 5):
                call()
            start = time.perf_counter()
            for _ in range(batch):
                call()
            times[name].append((time.perf_counter() - start) / batch)
            _hip.synchronize()
    return {name: 1e6 * statistics.median(found) for name, found in times.items()}


@dataclass(frozen=True)
class Allocations:
    """The allocations of a number of calls.

    Attributes
    ----------
    calls : int
        How many calls.
    hip : Counter
        Calls of HIP's functions by name.
    requests, mallocs : int
        Pieces of device memory asked for, and those that HIP had to allocate.
    device_bytes, pinned_bytes : int
        By how much hipgemm's memory grew.
    blocks : int
        By how many pieces Python's own memory grew.
    """

    calls: int
    hip: Counter[str]
    requests: int
    mallocs: int
    device_bytes: int
    pinned_bytes: int
    blocks: int


class _Counted:
    """hip-python, or the library by ctypes, counting calls by name."""

    def __init__(self, hip: Any, counts: Counter[str]):
        self._hip, self._counts = hip, counts

    def __getattr__(self, name: str) -> Any:
        if (
            name.startswith("hip")
            and callable(found := getattr(self._hip, name))
            and not isinstance(found, type)
        ):
            self._counts[name] += 1
        return getattr(self._hip, name)


def counted_calls(call: Call, calls: int = 1) -> Counter[str]:
    """Run calls, and count those of HIP's functions by name."""
    rt, counts = _hip.runtime(), Counter[str]()
    hip, handle = rt.hip, rt.handle
    rt.hip, rt.handle = _Counted(hip, counts), _Counted(handle, counts)
    try:
        for _ in range(calls):
            call()
    finally:
        rt.hip, rt.handle = hip, handle
    return counts


def allocations(call: Call, calls: int = 1000) -> Allocations:
    """Count what calls allocate, after enough of them to be in the steady state."""
    for _ in range(200):
        call()
    _hip.synchronize()
    counts = counted_calls(call, calls)
    _hip.synchronize()
    before = memory_stats()
    blocks = sys.getallocatedblocks()
    for _ in range(calls):
        call()
    blocks = sys.getallocatedblocks() - blocks
    after = memory_stats()
    _hip.synchronize()
    return Allocations(
        calls=calls,
        hip=counts,
        requests=after.requests - before.requests,
        mallocs=after.mallocs - before.mallocs,
        device_bytes=after.used + after.cached - before.used - before.cached,
        pinned_bytes=after.pinned - before.pinned,
        blocks=blocks,
    )


class _Timed:
    """hip-python, or the library by ctypes, adding up the time inside its functions."""

    def __init__(self, hip: Any, spent: list[float]):
        self._hip, self._spent = hip, spent

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._hip, name)
        if not name.startswith("hip") or not callable(found) or isinstance(found, type):
            return found
        spent, clock = self._spent, time.perf_counter

        def timed(*arguments: Any) -> Any:
            start = clock()
            try:
                return found(*arguments)
            finally:
                spent[0] += clock() - start

        setattr(self, name, timed)
        return timed


@dataclass(frozen=True)
class Split:
    """Microseconds of a call that waits for its result: all, and of these inside HIP's functions."""

    total: float
    inside: float

    @property
    def python(self) -> float:
        """What is left."""
        return self.total - self.inside


def split(call: Call, batch: int = 50, batches: int = 20) -> Split:
    """Time a call, and alternately its time inside HIP; medians.

    Timing each call of HIP takes time of its own, so the total comes from batches without.
    """
    rt = _hip.runtime()
    totals: list[float] = []
    insides: list[float] = []
    for _ in range(batch):
        call()
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        totals.append((time.perf_counter() - start) / batch)
        spent = [0.0]
        hip, handle = rt.hip, rt.handle
        rt.hip, rt.handle = _Timed(hip, spent), _Timed(handle, spent)
        try:
            for _ in range(batch):
                call()
        finally:
            rt.hip, rt.handle = hip, handle
        insides.append(spent[0] / batch)
    return Split(1e6 * statistics.median(totals), 1e6 * statistics.median(insides))


def groups_are_served() -> bool:
    """Whether the device has kernels for groups of rows."""
    kernels = code_object(_hip.arch(_hip.current_device())).kernels.values()
    return any(kernel.op == "grouped_matmul" for kernel in kernels)


def from_numpy() -> dict[str, tuple[Call, float]]:
    """Calls on NumPy arrays, (16, 32) @ (32, 64), and the aim for their microseconds of Python."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((16, 32), (64, 32)))
    experts, offsets = np.stack([w, w]), np.array([0, 7, 16], np.int32)
    q, p = quantize_mxfp8(x), quantize_mxfp8(w)
    f, g = quantize_fp8(x), quantize_fp8(w)
    calls: dict[str, tuple[Call, float]] = {
        "matmul, bf16": (lambda: matmul(x, w.T), 40.0),
        "matmul, fp8": (lambda: matmul(f, g.T), 60.0),
        "matmul, mxfp8": (lambda: matmul(q, p.T), 60.0),
        "grouped_matmul, bf16": (lambda: grouped_matmul(x, experts.swapaxes(1, 2), offsets), 60.0),
    }
    if not groups_are_served():
        del calls["grouped_matmul, bf16"]
    return calls


def resident() -> dict[str, Call]:
    """Calls on operands that are on the device."""
    ones = np.ones((64, 64), ml_dtypes.bfloat16)
    x, w = asarray(ones), asarray(ones).T
    out, bias = empty((64, 64), ml_dtypes.bfloat16), asarray(np.ones(64, np.float32))
    q = quantize_mxfp8(x)
    p = q.T
    one = [x.device]
    rows, whole = shard(x, one, axis=0), shard(w, one, axis=None)
    ranges = shard(x, one, axis=1), shard(w, one, axis=0)
    kept: list[DeviceArray] = []
    experts, offsets = asarray(np.stack([ones, ones])), asarray(np.array([0, 30, 64], np.int32))

    def allocating() -> None:
        kept[:] = [matmul(x, w)]

    calls: dict[str, Call] = {
        "matmul, out= given": lambda: matmul(x, w, out),
        "matmul, out= and bias": lambda: matmul(x, w, out, bias=bias),
        "matmul, out allocated": allocating,
        "matmul, mxfp8, out= given": lambda: matmul(q, p, out),
        "grouped_matmul, out= given": lambda: grouped_matmul(x, experts.mT, offsets, out),
        "quantize_mxfp8": lambda: quantize_mxfp8(x),
        "quantize_fp8": lambda: quantize_fp8(x),
        "dequantize, mxfp8": lambda: dequantize(q),
        "sharded_matmul, split m": lambda: sharded_matmul(rows, whole, split="m"),
        "sharded_matmul, split k": lambda: sharded_matmul(*ranges, split="k"),
    }
    if not groups_are_served():
        del calls["grouped_matmul, out= given"]
    return calls


def import_seconds(runs: int = 5) -> float:
    """Seconds to import hipgemm where NumPy and ml_dtypes are imported, compiled before: the least of all."""
    code = "import ml_dtypes, numpy; from time import perf_counter as now; start = now(); import hipgemm"
    command = [sys.executable, "-c", code + "; print(now() - start)"]
    with (
        tempfile.TemporaryDirectory() as folder,
        environment(PYTHONDONTWRITEBYTECODE=None, PYTHONPYCACHEPREFIX=folder) as variables,
    ):
        times = [
            float(subprocess.run(command, check=True, capture_output=True, env=variables).stdout)
            for _ in range(1 + runs)
        ]
    return min(times[1:])


def run() -> None:
    """Print the table."""
    print(f"import beyond NumPy and ml_dtypes: {import_seconds():.3f} s (aim: {IMPORT_AIM:.1f})")
    calls = resident()
    first = next(iter(calls))
    calls[first]()
    raw = recorded(calls[first])
    timed = {first: calls[first], "hip-python alone": raw.repeat}
    timed.update({name: call for name, call in calls.items() if name != first})
    found = microseconds(timed)
    above = found[first] - found["hip-python alone"]
    print("launches on resident operands, microseconds of Python until the queue has taken them in")
    for name, each in found.items():
        print(f"  {name:28}{each:7.2f}" + (f" (aim: {AIMS[name]:.0f})" if name in AIMS else ""))
    print(f"  matmul above hip-python's own launch of its kernel: {above:.2f} (aim: {AIM:g})")
    print("calls from NumPy, 16 x 64 x 32: microseconds in all, inside HIP, and of Python")
    for name, (call, aim) in from_numpy().items():
        s = split(call)
        print(f"  {name:28}{s.total:7.1f} {s.inside:7.1f} {s.python:7.1f} (aim: {aim:.0f})")
    print("allocations of 1000 calls in the steady state")
    for name, call in calls.items():
        a = allocations(call)
        launched = ", ".join(f"{n / a.calls:.3g} {hip}" for hip, n in sorted(a.hip.items()))
        print(
            f"  {name:28}{a.mallocs} by HIP, {a.device_bytes} bytes on the device, {a.pinned_bytes} pinned, "
            f"{a.blocks} objects of Python; {a.requests / a.calls:.3g} from the pool each; "
            f"HIP calls each: {launched}"
        )
