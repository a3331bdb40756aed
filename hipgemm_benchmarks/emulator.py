"""The emulator's speed: on each CPU level, with late and early memory, with checks, and a profile."""

from __future__ import annotations

import ctypes
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import ml_dtypes
import numpy as np

from hipgemm.array.device_array import DeviceArray, asarray, empty
from hipgemm.config import config, environment, variable
from hipgemm.errors import HipError
from hipgemm.formats.scaled import ScaledArray
from hipgemm.inspect.counters import emulator_counters
from hipgemm.kernels.manifest import code_object
from hipgemm.products import choose as support
from hipgemm.products.matmul import matmul
from hipgemm.reference import quantize_mxfp8
from hipgemm.runtime import hip as _hip

# The CPU features of each level of instruction semantics, and the aim of its rate on one core. The aims are
# this project's, for an idle two-core x86-64 machine with AVX-512.
LEVELS = {
    "v4": ("AVX-512 F, BW, CD, DQ, VL", 13),
    "v3": ("AVX2, FMA, F16C", 8),
    "v2": ("SSE4.2", None),
    "base": ("the compiler's default", None),
}
CLASSES = ("salu", "valu", "trans", "mfma", "lds", "vmem", "smem", "branch", "wait", "other")
CHECKS = ("race", "uninit", "bounds", "hazard", "all")
AIMS_MS = {(1024, "bf16"): 60, (4096, "bf16"): 4000, (1024, "mxfp8"): 100}  # whole calls on two cores
MIX = (256, 256, 2048)  # one tile of the large kernel: almost only its main loop
Variant = dict[str, str]


def run(sizes: Sequence[int], seconds: float = 2.0) -> None:
    """Print the section on the emulator; `seconds` go into each figure of the first two parts."""
    level = _level()
    print(f"emulator on {_cpu()}, {os.cpu_count()} cores; CPU features in use: {LEVELS[level][0]} ({level})")
    busy = os.getloadavg()[0]
    if busy > 0.5:
        print(f"  (load average {busy:.1f}: other load slows this down)")
    print("  (aims are for two idle cores with AVX-512)")
    print(f"main loop of {_kernel()}, {'x'.join(map(str, MIX))} bf16, one core:")
    for other in LEVELS:
        if other == level or "v2" <= other < level:
            _print_level(other, seconds)
    print("cost of options, on one core:")
    for name in CHECKS:
        _print_cost({"check": name}, seconds)
    _print_cost({"count": "1"}, seconds)
    print("profile, on one core:")
    _print_profile()
    print(f"whole calls, resident operands, {_threads()} threads:")
    _print_calls(sizes)


# ---- one core, in a child process ------------------------------------------------------------


@dataclass
class Figure:
    """The measurements of a variant: its best rate, its time relative to the first one, or its error."""

    rate: float = 0.0  # M wave-instructions/s
    ratio: float = 0.0  # of times
    fault: str = ""


def _figures(variants: Sequence[Variant], seconds: float) -> list[Figure]:
    """Measure variants alternately: the best rate, and the median of the ratios of all rounds.

    By CPU time. Other load on the machine then slows down both sides of a ratio.
    """
    found = [Figure() for _ in variants]
    ratios: list[list[float]] = [[] for _ in variants]
    end = time.perf_counter() + seconds
    x, w, out = _operands(*MIX)
    with whole_k(), config(kernel=_kernel()), environment(HIPGEMM_EMULATOR_THREADS="1"):
        while time.perf_counter() < end or not all(f.fault or f.rate for f in found):
            first = 0.0
            for figure, variant, seen in zip(found, variants, ratios, strict=True):
                if figure.fault:
                    continue
                try:
                    with _switched(variant):
                        emulator_counters(reset=True)
                        start = time.process_time()
                        matmul(x, w, out)
                        _hip.synchronize()
                        spent = time.process_time() - start
                        count = emulator_counters(reset=True).wave_instructions
                    first = first or spent
                    seen.append(spent / first)
                    figure.rate = max(figure.rate, count / spent / 1e6)
                except HipError as error:
                    figure.fault = error.report.split("\n")[-1] or str(error)
    for figure, seen in zip(found, ratios, strict=True):
        figure.ratio = statistics.median(seen) if seen else 0.0
    return found


def main() -> int:
    """Print the measurements of the variants on the command line, as JSON."""
    print(json.dumps([asdict(f) for f in _figures(json.loads(sys.argv[1]), float(sys.argv[2]))]))
    return 0


def _figures_apart(variants: Sequence[Variant], seconds: float, **variables: str) -> list[Figure]:
    """Measure in a child process, since a CPU level is fixed and a finding makes the device unusable."""
    command = [sys.executable, "-m", "hipgemm_benchmarks.emulator", json.dumps(variants), str(seconds)]
    with environment(HIPGEMM_RUNTIME="emulator", **variables) as env:
        child = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if child.returncode:
        return [Figure(fault=child.stderr.strip().split("\n")[-1])] * len(variants)
    return [Figure(**fields) for fields in json.loads(child.stdout)]


def _print_level(level: str, seconds: float) -> None:
    timing = [{"memory": "early"}, {"memory": "late"}]
    early, late = _figures_apart(timing, seconds, HIPGEMM_EMULATOR_CPU=level)
    if early.fault or late.fault:
        print(f"  {level:5} {early.fault or late.fault}")
        return
    features, aim = LEVELS[level]
    goal = f" (aim {aim})" if aim else ""
    line = f"  {level:5} {late.rate:6.2f} M wave-instructions/s landing late{goal}, {early.rate:6.2f} early"
    print(f"{line}; late takes {late.ratio:.2f} times the time of early (aim 1.1); {features}")


def _print_cost(variant: Variant, seconds: float) -> None:
    ((kind, name),) = variant.items()
    label = f"HIPGEMM_EMULATOR_{kind.upper()}={name}"
    off, on = _figures_apart([{}, variant], seconds)
    if off.fault or on.fault:
        print(f"  {label:32} {off.fault or on.fault}")
        return
    aim = " (aim 1.6)" if name == "race" else ""
    print(f"  {label:32} {on.ratio:6.2f} times the time{aim}")


# ---- where the time goes ---------------------------------------------------------------------------


def _print_profile() -> None:
    library = _library()
    x, w, out = _operands(*MIX)
    with whole_k(), config(kernel=_kernel()), environment(HIPGEMM_EMULATOR_THREADS="1"):
        fastest = float("inf")
        for _ in range(20):
            emulator_counters(reset=True)
            matmul(x, w, out)
            plain = emulator_counters(reset=True)
            fastest = min(fastest, plain.nanoseconds)
        library.hipgemm_emulator_set_profiling(1)
        try:
            for _ in range(20):
                matmul(x, w, out)
            emulator_counters(reset=True)
        finally:
            library.hipgemm_emulator_set_profiling(0)
    ticks = (ctypes.c_uint64 * len(CLASSES))()
    library.hipgemm_emulator_profile(ticks, len(CLASSES))
    total = sum(ticks) or 1
    shares = {name: t / total for name, t in zip(CLASSES, ticks, strict=True)}
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        count = getattr(plain, name)
        if count and share > 0.001:
            line = f"  {name:7} {100 * share:5.1f} % of the time"
            line += f", {100 * count / plain.wave_instructions:5.1f} % of the instructions"
            print(f"{line}, {share * fastest / count:6.1f} ns each")


# ---- whole calls -----------------------------------------------------------------------------------


def _print_calls(sizes: Sequence[int]) -> None:
    before: tuple[int, float] | None = None
    for size in sizes:
        x, w, out = _operands(size, size, size)
        busy, line = _time_call(size, "bf16", lambda: matmul(x, w, out))  # noqa: B023
        if before is not None:
            power = math.log(busy / before[1]) / math.log(size / before[0])
            line += f"; grows as size^{power:.2f}"
        print(line)
        before = (size, busy)
    size = 1024
    if size in sizes:
        rng = np.random.default_rng(0)
        q, r = (_resident(quantize_mxfp8(rng.standard_normal((size, size), np.float32))) for _ in range(2))
        out = empty((size, size), ml_dtypes.bfloat16)
        print(_time_call(size, "mxfp8", lambda: matmul(q, r.T, out))[1])


def _time_call(size: int, form: str, call: Callable[[], object]) -> tuple[float, str]:
    """Seconds of CPU time of the fastest of some calls, and a line about it."""
    best, busy = float("inf"), float("inf")
    for _ in range(10 if size <= 1024 else 2):
        emulator_counters(reset=True)
        start, start_busy = time.perf_counter(), time.process_time()
        call()
        _hip.synchronize()
        best = min(best, time.perf_counter() - start)
        busy = min(busy, time.process_time() - start_busy)
    found = emulator_counters(reset=True)
    line = f"  {size:5}^3 {form:5} {1e3 * best:8.1f} ms, {1e3 * busy:8.1f} ms of CPU time"
    line += f", {found.wave_instructions / busy / 1e6:6.2f} M wave-instructions/s of it"
    if (size, form) in AIMS_MS:
        line += f" (aim {AIMS_MS[size, form]} ms for the call)"
    return busy, f"{line}; {found.each[-1].kernel}"


def _resident(x: ScaledArray) -> ScaledArray:
    return ScaledArray(asarray(x.data), asarray(x.scale), x.format, axis=x.axis)


# ---- helpers ---------------------------------------------------------------------------------------


def _operands(m: int, n: int, k: int) -> tuple[DeviceArray, DeviceArray, DeviceArray]:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal((rows, k), np.float32).astype(ml_dtypes.bfloat16) for rows in (m, n))
    return asarray(x), asarray(w).T, empty((m, n), ml_dtypes.bfloat16)


@contextmanager
def whole_k() -> Iterator[None]:
    """Disable split-K, which would shorten the main loop of a product with few tiles."""
    names = vars(support)
    before = names["estimate"]
    names["estimate"] = lambda product, kernel: replace(before(product, kernel), splits=1)
    try:
        yield
    finally:
        names["estimate"] = before


@contextmanager
def _switched(variant: dict[str, str]) -> Iterator[None]:
    library = _library()
    library.hipgemm_emulator_set_check(variant.get("check", "").encode())
    library.hipgemm_emulator_set_counting(int(variant.get("count", "0")))
    try:
        with environment(HIPGEMM_EMULATOR_MEMORY=variant.get("memory", "late")):
            yield
    finally:
        library.hipgemm_emulator_set_check((variable("HIPGEMM_EMULATOR_CHECK") or "").encode())
        library.hipgemm_emulator_set_counting(-1)


def _library() -> ctypes.CDLL:
    library = _hip.runtime().emulator
    assert library is not None, "only called on the emulator"
    return library


def _level() -> str:
    library = _library()
    library.hipgemm_emulator_cpu.restype = ctypes.c_char_p
    return (library.hipgemm_emulator_cpu() or b"base").decode()


def _kernel() -> str:
    """The bf16 kernel with the largest tile."""
    kernels = code_object(_hip.arch(_hip.current_device())).kernels.values()
    return max((k for k in kernels if k.op == "gemm" and k.a == "bf16"), key=lambda k: math.prod(k.tile)).name


def _threads() -> int:
    return int(variable("HIPGEMM_EMULATOR_THREADS") or os.cpu_count() or 1)


def _cpu() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return "an unknown CPU"


if __name__ == "__main__":
    sys.exit(main())
