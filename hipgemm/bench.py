"""How long calls take, and where the time goes."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

from . import _hip, emulator_bench
from .array import DeviceArray, asarray, empty
from .counters import EmulatorCounters, emulator_counters
from .gemm import matmul, only_kernel
from .info import info
from .support import code_object


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``bench``."""
    parser.add_argument("--sizes", default="256,512,1024", help="edges of square products, comma-separated")
    parser.add_argument("--emulator-sizes", default="512,1024,2048,4096", help="those of its section")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each figure of it")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each; the best counts")


def run(args: argparse.Namespace) -> int:
    """Print the tables."""
    print(info())
    print()
    kernels = [
        k.name for k in code_object(_hip.arch(_hip.current_device())).kernels.values() if k.op == "gemm"
    ]
    for size in map(int, args.sizes.split(",")):
        for name in kernels:
            with only_kernel(name):
                _products(size, args.repeat, name)
    print()
    _overhead()
    if _hip.runtime().emulator is not None:
        print()
        emulator_bench.run([int(size) for size in args.emulator_sizes.split(",")], args.seconds)
    return 0


def _products(size: int, repeat: int, kernel: str) -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal((size, size), dtype=np.float32).astype(ml_dtypes.bfloat16)
    w = rng.standard_normal((size, size), dtype=np.float32).astype(ml_dtypes.bfloat16)
    host = _best(lambda: matmul(a, w.T), repeat)
    x, y, out = asarray(a), asarray(w), empty((size, size), ml_dtypes.bfloat16)
    best, inside, instructions = float("inf"), 0.0, 0.0
    for _ in range(repeat):
        before = _counters()
        start = time.perf_counter()
        matmul(x, y.T, out)
        _hip.synchronize()
        seconds = time.perf_counter() - start
        after = _counters()
        if seconds < best:
            best, inside = seconds, (after.nanoseconds - before.nanoseconds) * 1e-9
            instructions = after.wave_instructions - before.wave_instructions
    line = f"matmul {size}^3 bf16: {1e3 * best:8.2f} ms resident, {1e3 * host:8.2f} ms from NumPy"
    if instructions:
        outside = max(0.0, 1 - inside / best)
        line += f", {instructions / best / 1e6:6.2f} M wave-instructions/s"
        line += f", {100 * outside:4.1f} % outside the emulator"
    print(f"{line}, {kernel}")


def _overhead() -> None:
    """Time Python's part of a launch: the queue takes it in, nothing waits."""
    x = asarray(np.ones((64, 64), ml_dtypes.bfloat16))
    w = asarray(np.ones((64, 64), ml_dtypes.bfloat16)).T
    out = empty((64, 64), ml_dtypes.bfloat16)
    bias = asarray(np.ones(64, np.float32))
    print(f"launch, out= given:            {_launch_time(lambda: matmul(x, w, out)):6.2f} us of Python")
    print(f"launch, out= and bias:         {_launch_time(lambda: matmul(x, w, out, bias=bias)):6.2f} us")
    kept: list[DeviceArray] = []

    def allocating() -> None:
        kept[:] = [matmul(x, w)]

    print(f"launch, out allocated:         {_launch_time(allocating):6.2f} us")
    print(f"of which HIP's launch call:    {_hip_launch_time(lambda: matmul(x, w, out)):6.2f} us")


def _launch_time(call: Callable[[], object], batch: int = 50, batches: int = 20) -> float:
    """Microseconds per call, batches of calls without a wait; the median over batches."""
    call()
    times = []
    for _ in range(batches):
        _hip.synchronize()
        start = time.perf_counter()
        for _ in range(batch):
            call()
        times.append((time.perf_counter() - start) / batch)
    _hip.synchronize()
    return 1e6 * statistics.median(times)


def _hip_launch_time(call: Callable[[], object]) -> float:
    """Microseconds of each call that are spent in hip-python and below it."""
    hip = _hip.runtime().hip
    inner = hip.hipModuleLaunchKernel
    spent: list[float] = []

    def timed(*args: object) -> object:
        start = time.perf_counter()
        result = inner(*args)
        spent.append(time.perf_counter() - start)
        return result

    hip.hipModuleLaunchKernel = timed
    try:
        _launch_time(call)
    finally:
        hip.hipModuleLaunchKernel = inner
    return 1e6 * statistics.median(spent)


def _best(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _counters() -> EmulatorCounters:
    """The emulator's totals; zeros elsewhere."""
    return emulator_counters() if _hip.runtime().emulator is not None else EmulatorCounters()
