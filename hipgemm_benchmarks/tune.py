"""Times the kernels that could serve a product on a GPU, and keeps the times: ``python -m hipgemm tune``."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from hipgemm.array.device_array import DeviceArray, asarray
from hipgemm.array.placement import Placement
from hipgemm.config import config
from hipgemm.errors import HipError, UnsupportedError, requirement
from hipgemm.formats.elements import BLOCK_FORMATS, BLOCK_SIDE, FORMATS, named_format
from hipgemm.formats.strides import contiguous_strides, padded_pitch, swap_last_axes
from hipgemm.inspect import explain
from hipgemm.inspect.info import info
from hipgemm.kernels.manifest import MATRIX_ARCHS
from hipgemm.products import tuned
from hipgemm.products.grouped import grouped_matmul, grouped_wgrad
from hipgemm.products.layout import on_device
from hipgemm.products.matmul import matmul
from hipgemm.products.operation import OPERATIONS, Arguments
from hipgemm.products.problem import describe
from hipgemm.products.run import forget_plans
from hipgemm.quantize.quantizers import quantize_fp8, quantize_mxfp4, quantize_mxfp6, quantize_mxfp8
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import record

from .device_clock import Call, Clock, DeviceClock

SAMPLES = 20  # of each kernel
MOST_SETS = 16  # of operands


# ---- arguments ---------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    _add_shape(parser)
    parser.add_argument(
        "--shapes",
        type=Path,
        metavar="FILE",
        help="products, one a line, each as these arguments; a program writes them where HIPGEMM_SHAPES=FILE",
    )
    parser.add_argument(
        "--samples", type=int, default=SAMPLES, help=f"of each kernel, the median counts (default: {SAMPLES})"
    )
    parser.add_argument("--again", action="store_true", help="also time products that have times already")


def _add_shape(parser: argparse.ArgumentParser) -> None:
    explain.add_product(parser)
    explain.add_formats(parser)


class _Line(argparse.ArgumentParser):
    """The parser of a line, whose errors can be caught."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _products(args: argparse.Namespace) -> list[argparse.Namespace]:
    """The arguments of each product; raise a ValueError if they are wrong."""
    found = []
    if args.shapes is None or args.M is not None:
        explain.check_product(args)
        found.append(args)
    parser = _Line(add_help=False)
    _add_shape(parser)
    text = "" if args.shapes is None else args.shapes.read_text()
    for number, line in enumerate(text.splitlines(), 1):
        if words := shlex.split(line, comments=True):
            try:
                found.append(parser.parse_args(words))
                explain.check_product(found[-1])
            except ValueError as error:
                raise ValueError(f"{args.shapes}, line {number}: {error}") from None
    if args.samples < 1:
        raise ValueError(requirement("--samples must be positive", args.samples))
    return found


def run(args: argparse.Namespace, clock: Clock | None = None) -> int:
    """Time each product that has no times yet, and add them to the device's file; return the exit code.

    Without a clock of the caller it is the device's, which must be a GPU with several kernels to choose from.
    """
    try:
        products = _products(args)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    device = _hip.current_device()
    arch = _hip.arch(device)
    if clock is None:
        if refused := _refusal(arch):
            print(f"error: {refused}", file=sys.stderr)
            return 1
        clock = DeviceClock.of(device)
    if fault := record.unwritable():  # before anything is timed
        print(f"error: {fault}", file=sys.stderr)
        return 1
    print(f"on {info().summary}")
    failed = done = 0
    try:
        for number, product in enumerate(products, 1):
            failed += not _tune(product, device, clock, args, f"[{number}/{len(products)}]")
            done = number
    except KeyboardInterrupt:
        print(f"interrupted after {done} of {len(products)}; the same command does the rest", file=sys.stderr)
        return 130
    finally:
        tuned.recorded.cache_clear()
        forget_plans()
    print(f"tune: {len(products) - failed} of {len(products)} products have times, in {tuned.path(device)}")
    return 1 if failed else 0


def _refusal(arch: str) -> str:
    """Why nothing can be timed here; empty if it can."""
    if _hip.runtime().kind == "emulator":
        return (
            "tune times kernels on a GPU, and this is the emulator: how long it takes says nothing of a GPU. "
            "On a host with ROCm, HIPGEMM_RUNTIME=rocm python -m hipgemm tune"
        )
    if arch not in MATRIX_ARCHS:
        return (
            f"tune chooses among matrix kernels, and there are none for {arch}, only for "
            f"{' and '.join(MATRIX_ARCHS)}: the plain kernel serves every product"
        )
    return ""


# ---- one product -------------------------------------------------------------------------------------


def _tune(
    product: argparse.Namespace, device: int, clock: Clock, args: argparse.Namespace, progress: str
) -> bool:
    """Time the kernels for one product; return whether it has times."""
    p = product
    op = OPERATIONS[p.op]
    a, b = explain.stored(p.M, p.N, p.K, p.layout, p.batch, p.op, p.groups)
    dtype = None if p.dtype is None else FORMATS[p.dtype].dtype
    (x, y), offsets = explain.operands_of(p.op, a, b, p.format, p.groups, explain.untouched)
    problem, _ = describe(op, Arguments(x, y, dtype=dtype, offsets=offsets))
    answer = explain.ask_shapes(p.op, a, b, p.format, p.groups, p.dtype, None)
    if problem is None or not answer:
        print(f"{progress} {p.M} {p.N} {p.K} --op {p.op} --format {p.format}: {answer}", flush=True)
        return False
    shape = tuned.Shape.of(on_device(problem))
    before = tuned.on_file(device).get(str(shape))
    if before and not args.again:
        best = min(before, key=lambda name: before[name].median)
        print(f"{progress} {shape}: timed before, {best}", flush=True)
        return True
    names = list(dict.fromkeys(cost.kernel.name for cost in answer.costs))
    print(f"{progress} {shape}: {len(names)} kernels", flush=True)
    try:
        calls = _Operands(p, a, b, dtype).calls(device, clock.cache_bytes)
        times = _times(names, calls, clock, args.samples)
    except (HipError, TypeError, ValueError, UnsupportedError) as error:
        print(f"    error: {error}", flush=True)
        return False
    estimated = min(answer.costs, key=lambda cost: cost.clocks).kernel.name
    best = min(times, key=lambda name: times[name].median)
    for name in dict.fromkeys((best, estimated)):
        note = ", the cost model's choice" if name == estimated else ""
        t = times[name]
        print(f"    {t.median:.1f} us ({t.p10:.1f} to {t.p90:.1f}): {name}{note}", flush=True)
    tuned.add(device, shape, times)
    return True


def _times(names: Sequence[str], calls: Sequence[Call], clock: Clock, samples: int) -> dict[str, tuned.Times]:
    """Time kernels alternately, so that a clock that drifts is the same for all."""
    found: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        with config(kernel=name):
            for call in calls:  # loads the kernel, plans, and reorders scales
                clock.sample([call])
    with config(kernel=names[0]):
        clock.warm(calls[0])
    for _ in range(samples):
        for name in names:
            with config(kernel=name):
                found[name].append(clock.sample(calls))
    return {
        name: tuned.Times(*(round(float(np.percentile(x, q)), 4) for q in (50, 10, 90)))
        for name, x in found.items()
    }


class _Operands:
    """Makes the same call again and again, with operands in other memory each time."""

    def __init__(self, p: argparse.Namespace, a: explain.Stored, b: explain.Stored, dtype: Any) -> None:
        self._op, self._form, self._groups = p.op, p.format, p.groups
        self._stored, self._dtype = (a, b), dtype
        self._rng = np.random.default_rng(0)
        self._sources: dict[Any, Any] = {}
        self._ends: Any = None  # of groups; quantizers and products must get the same array

    def calls(self, device: int, cache_bytes: int) -> list[Call]:
        """Calls until their operands fill the cache twice, or memory half; at least one."""
        made: list[Call] = []
        total = 0
        while not made or (len(made) < MOST_SETS and total < 2 * cache_bytes):
            call, nbytes = self._call(device)
            made.append(call)
            total += nbytes
            if _hip.memory_info(device)[0] < total + nbytes:
                break
        return made

    def _call(self, device: int) -> tuple[Call, int]:
        """A call that allocates nothing, and the bytes of its operands and result."""

        def make(*what: Any) -> Any:
            return self._filled(device, *what)

        if OPERATIONS[self._op].ragged and self._ends is None:
            _, offsets = explain.operands_of(
                self._op, *self._stored, self._form, self._groups, explain.untouched
            )
            self._ends = asarray(offsets)
        (x, y), _ = explain.operands_of(self._op, *self._stored, self._form, self._groups, make)
        if self._op == "matmul":
            out = matmul(x, y, dtype=self._dtype)
            return lambda stream: matmul(x, y, out, stream=stream), x.nbytes + y.nbytes + out.nbytes
        function = grouped_matmul if self._op == "grouped_matmul" else grouped_wgrad
        ends = self._ends
        out = function(x, y, ends, dtype=self._dtype)
        return lambda stream: function(x, y, ends, out, stream=stream), x.nbytes + y.nbytes + out.nbytes

    def _filled(
        self,
        device: int,
        form: str,
        shape: tuple[int, ...],
        transposed: bool,
        axis: int,
        offsets: Any,
        block_rows: int,
    ) -> Any:
        """Random matrices on the device, as `explain.untouched` describes them."""
        stored = swap_last_axes(shape) if transposed else shape
        k_axis = -3 - axis if transposed else axis  # in memory
        known = named_format(form)
        key = (form, stored)
        if key not in self._sources:
            random = self._rng.standard_normal(stored, dtype=np.float32)
            quantized = known.scale_dtype is not None
            host = random.astype(ml_dtypes.bfloat16 if quantized else known.dtype)
            self._sources[key] = asarray(host) if quantized else host
        source = self._sources[key]
        if known.scale_dtype is None:
            x: Any = _placed(source, device)
        elif form in BLOCK_FORMATS:
            block = (block_rows, BLOCK_SIDE) if k_axis == -1 else (BLOCK_SIDE, block_rows)
            x = quantize_fp8(source, format=known.name, block=block)
        elif not known.block:
            x = quantize_fp8(source, format=form)
        elif offsets is not None:
            x = quantize_mxfp8(source, axis=0, format=form, group_offsets=self._ends)
        elif form.startswith("mxfp8"):
            x = quantize_mxfp8(source, axis=k_axis, format=form)
        elif form.startswith("mxfp6"):
            x = quantize_mxfp6(source, axis=k_axis, format=form)
        else:
            x = quantize_mxfp4(source, axis=k_axis, hadamard=False)
        return x.mT if transposed else x


def _placed(x: Any, device: int) -> DeviceArray:
    """Upload with rows that kernels read in place."""
    item = x.dtype.itemsize
    pitch = padded_pitch(x.shape[-1], item) // item
    strides = contiguous_strides((*x.shape[:-1], pitch), item)
    placement = Placement.pitched(x.shape, strides, x.dtype, columns=False)
    block = _hip.allocate(placement.nbytes, device, 0)
    placement.upload(x, block.ptr, 0)
    return placement.array(block, block.ptr)
