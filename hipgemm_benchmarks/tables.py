"""Timing tables: products, quantizers, overhead, the emulator."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

from hipgemm.array.device_array import asarray, empty
from hipgemm.config import config
from hipgemm.errors import requirement
from hipgemm.formats.scaled import ScaledArray
from hipgemm.inspect.counters import EmulatorCounters, emulator_counters
from hipgemm.inspect.info import info
from hipgemm.kernels.manifest import code_object
from hipgemm.products.matmul import matmul
from hipgemm.quantize.amax import AmaxState
from hipgemm.quantize.quantizers import (
    dequantize,
    quantize_both,
    quantize_fp8,
    quantize_mxfp4,
    quantize_mxfp6,
    quantize_mxfp8,
    transpose_quantize_mxfp8,
)
from hipgemm.runtime import hip as _hip

from . import emulator as emulator_bench
from . import gradients, layer, overhead, timing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``bench``."""
    for name, default, what in (
        (
            "--sizes",
            [256, 512, 1024],
            "sizes of the square products, comma-separated; quantizers use the last one",
        ),
        ("--layer-rows", [16, 64, 512, 4096], "rows of the MLP"),
        ("--emulator-sizes", [512, 1024, 2048, 4096], "the same for the emulator's section"),
    ):
        shown = ",".join(map(str, default))
        parser.add_argument(name, type=_sizes, default=default, help=f"{what} (default: {shown})")
    parser.add_argument(
        "--repeat",
        type=_count,
        default=5,
        help="repetitions of each call; the fastest counts (default: 5)",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=2.0,
        help="seconds for each rate and ratio of the emulator's section (default: 2)",
    )
    timing.add_arguments(parser)


def _sizes(text: str) -> list[int]:
    try:
        return [_count(part) for part in text.split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        fault = requirement("must be positive numbers such as 256,512", repr(text))
        raise argparse.ArgumentTypeError(fault) from None


def _count(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(requirement("must be a positive number", repr(text)))
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(requirement("must be a number of seconds", repr(text)))
    return value


def run(args: argparse.Namespace) -> int:
    """Print the tables; with ``--op``, one of that operation."""
    if not args.op and (args.format or args.refcheck or args.csv or args.json or args.plot):
        raise SystemExit("bench: --format, --refcheck, --csv, --json and --plot go with --op; got no --op")
    _hip.runtime()  # raises if the requested one is not available
    print(f"on {info().summary}")
    if args.op:
        return timing.run(args)
    print(info())
    print()
    built = code_object(_hip.arch(_hip.current_device())).kernels.values()
    kernels = [k.name for k in built if k.op == "gemm" and k.a == k.b == "bf16" and k.layout == "nt"] or [
        "plain"
    ]
    for size in args.sizes:
        for name in kernels:
            with config(kernel=name):
                _products(size, args.repeat, name)
    print()
    for size in args.sizes:
        _scaled_products(size, args.repeat)
    print()
    _quantizers(args.sizes[-1], args.repeat)
    print()
    overhead.run()
    if kernels != ["plain"] and _hip.runtime().emulator is not None:  # it is timed on a main loop
        print()
        layer.run(args.layer_rows)
        print()
        gradients.run()
        print()
        emulator_bench.run(args.emulator_sizes, args.seconds)
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
        line += f", {100 * outside:4.1f} % of it outside the emulator"
    print(f"{line}, {kernel}")


def _scaled_products(size: int, repeat: int) -> None:
    """Time quantized products by the kernel that the cost model selects."""
    x = asarray(np.random.default_rng(0).standard_normal((size, size), dtype=np.float32))
    out = empty((size, size), ml_dtypes.bfloat16)
    for name, quantize in (("fp8", quantize_fp8), ("mxfp8", quantize_mxfp8), ("mxfp4", quantize_mxfp4)):
        q = quantize(x)

        def call(q: ScaledArray = q) -> None:
            matmul(q, q.T, out)
            _hip.synchronize()

        call()  # orders the scales
        print(f"matmul {size}^3 {name}: {1e3 * _best(call, repeat):8.2f} ms resident")


def _quantizers(size: int, repeat: int) -> None:
    """Time the quantizers, and compare the bytes and cache lines that they move with the minimum."""
    x = asarray(np.random.default_rng(0).standard_normal((size, size)).astype(ml_dtypes.bfloat16))
    state, q = AmaxState(4.0), quantize_mxfp8(x)
    scale = 1 / 32
    calls: list[tuple[str, float, Callable[[], object]]] = [
        ("quantize_fp8, own amax", 2 + 2 + 1, lambda: quantize_fp8(x)),
        ("quantize_fp8, rows", 2 + 2 + 1, lambda: quantize_fp8(x, axis=-1)),
        ("quantize_fp8, AmaxState", 2 + 1, lambda: quantize_fp8(x, state)),
        ("quantize_mxfp8", 2 + 1 + scale, lambda: quantize_mxfp8(x)),
        ("quantize_mxfp8, axis=0", 2 + 1 + scale, lambda: quantize_mxfp8(x, axis=0)),
        ("quantize_both, mxfp8", 2 + 2 * (1 + scale), lambda: quantize_both(x, "mxfp8_e4m3")),
        ("transpose_quantize_mxfp8", 2 + 1 + scale, lambda: transpose_quantize_mxfp8(x)),
        ("quantize_mxfp6", 2 + 0.75 + scale, lambda: quantize_mxfp6(x)),
        ("quantize_mxfp6, axis=0", 2 + 0.75 + scale, lambda: quantize_mxfp6(x, axis=0)),
        ("quantize_mxfp4, Hadamard", 2 + 0.5 + scale, lambda: quantize_mxfp4(x)),
        ("quantize_mxfp4, axis=0", 2 + 0.5 + scale, lambda: quantize_mxfp4(x, axis=0)),
        ("dequantize, mxfp8 to bf16", 1 + scale + 2, lambda: dequantize(q, dtype=ml_dtypes.bfloat16)),
    ]
    print(f"quantizers of {size} x {size} bf16, resident")
    for name, floor, call in calls:

        def finished(call: Callable[[], object] = call) -> None:
            call()
            _hip.synchronize()

        line = f"  {name:26} {1e3 * _best(finished, repeat):8.2f} ms"
        if _hip.runtime().emulator is not None:
            emulator_counters(reset=True, addresses=True)
            call()
            moved = emulator_counters(addresses=False)
            total = moved.global_read_bytes + moved.global_written_bytes + moved.global_atomic_bytes
            each = total / x.size
            line += f", {each:6.3f} bytes per element, {each / floor:5.3f} of the minimum ({floor:.3f})"
            amplification = 128 * moved.l2_written_requests / moved.global_written_bytes
            line += f"; write amplification {amplification:.2f}"
        print(line)


def _best(call: Callable[[], object], repeat: int) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def _counters() -> EmulatorCounters:
    """The emulator's totals; zeros on other runtimes."""
    return emulator_counters() if _hip.runtime().emulator is not None else EmulatorCounters()
