"""One operation over many shapes, timed: ``python -m hipgemm bench --op .. --format .. --shapes ..``."""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from hipgemm import reference, testing
from hipgemm.array.device_array import asarray, empty
from hipgemm.errors import UnsupportedError, requirement
from hipgemm.formats.elements import BLOCK_FORMATS, BLOCK_SIDE, FORMATS, QUANTIZED, named_format
from hipgemm.inspect.explain import pair_of, read_formats
from hipgemm.inspect.info import info
from hipgemm.inspect.usage import reset_usage, usage
from hipgemm.kernels.manifest import BRIDGE_ARCH, code_object
from hipgemm.products.chips import CHIPS
from hipgemm.products.grouped import grouped_matmul, grouped_wgrad
from hipgemm.products.matmul import matmul
from hipgemm.quantize.quantizers import (
    dequantize,
    quantize_both,
    quantize_fp8,
    quantize_mxfp4,
    quantize_mxfp6,
    quantize_mxfp8,
)
from hipgemm.runtime import hip as _hip

from .device_clock import DeviceClock
from .hipblaslt import HipBlasLt, HipBlasLtError, check, open_library

# Name -> the source of the widths, and N x K of each product. Query, key and value are one product, and so
# are gate and up.
SHAPE_SETS: dict[str, tuple[str, tuple[tuple[str, int, int], ...]]] = {
    "llama3-8b": (
        "config.json of Llama 3 8B: 4096 wide, 8 of 32 heads for keys and values, 14336 in between",
        (("qkv", 6144, 4096), ("out", 4096, 4096), ("gate_up", 28672, 4096), ("down", 4096, 14336)),
    ),
    "llama3-70b": (
        "config.json of Llama 3 70B: 8192 wide, 8 of 64 heads for keys and values, 28672 in between",
        (("qkv", 10240, 8192), ("out", 8192, 8192), ("gate_up", 57344, 8192), ("down", 8192, 28672)),
    ),
    "mixtral-8x7b": (
        "config.json of Mixtral 8x7B: 4096 wide, 8 experts of 14336, 2 per token",
        (("qkv", 6144, 4096), ("gate_up", 28672, 4096), ("down", 4096, 14336)),
    ),
    "deepseek-v3": (
        "config.json of DeepSeek V3: 7168 wide, 256 experts of 2048, 8 per token",
        (("gate_up", 4096, 7168), ("down", 7168, 2048)),
    ),
    "cubes": ("cubes", tuple((str(n), n, n) for n in (256, 512, 1024, 2048, 4096, 8192))),
}
EXPERTS = {"mixtral-8x7b": 8, "deepseek-v3": 256}

BRIDGE_MEMORY = 4.8e12  # bytes per second of an H200, by its data sheet
QUANTIZERS: dict[str, Callable[..., Any]] = {
    "quantize_fp8": quantize_fp8,
    "quantize_mxfp8": quantize_mxfp8,
    "quantize_mxfp6": quantize_mxfp6,
    "quantize_mxfp4": quantize_mxfp4,
    "quantize_both": quantize_both,
}
_MX = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1")
_MXFP6 = ("mxfp6_e2m3", "mxfp6_e3m2")
# Formats of each operation, the first one by default.
FORMATS_OF: dict[str, tuple[str, ...]] = {
    "matmul": ("bf16", "f16", *QUANTIZED, *BLOCK_FORMATS),
    "grouped_matmul": ("bf16", "f16", *QUANTIZED, *BLOCK_FORMATS),
    "grouped_wgrad": ("bf16", "f16", "fp8_e4m3", *_MX[:2]),
    "quantize_fp8": ("fp8_e4m3", "fp8_e5m2", *BLOCK_FORMATS),
    "quantize_mxfp8": _MX[:2],
    "quantize_mxfp6": _MXFP6,
    "quantize_mxfp4": _MX[2:],
    "quantize_both": (*_MX, *_MXFP6),
    "dequantize": tuple(QUANTIZED),
}
OPS = tuple(FORMATS_OF)


@dataclass(frozen=True)
class Case:
    """One call to time."""

    op: str
    format: str
    name: str
    m: int
    n: int
    k: int
    groups: int = 1


@dataclass(frozen=True)
class Row:
    """What was measured. Times are microseconds on the device's clock."""

    op: str
    format: str
    name: str
    m: int
    n: int
    k: int
    groups: int
    kernel: str
    median_us: float
    p10_us: float
    p90_us: float
    tflops: float | None = None  # these are of a GPU only
    gbytes_per_s: float | None = None
    percent_of_matrix: float | None = None  # of the peak of the kernel's matrix instruction
    percent_of_memory: float | None = None
    hipblaslt_us: float | None = None
    check: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    group = parser.add_argument_group("one operation over many shapes")
    group.add_argument("--op", choices=OPS, help="what to time; without it, the tables of the whole library")
    group.add_argument(
        "--format",
        type=read_formats,
        help="of the operands, or of each, such as bf16@mxfp4; of what a quantizer makes; default: the first "
        "that the operation takes",
    )
    sets = ", ".join(SHAPE_SETS)
    group.add_argument(
        "--shapes",
        default="1024x1024x1024",
        help=f"MxNxK, comma-separated, or names of sets ({sets}); quantizers take M x K",
    )
    group.add_argument("--tokens", default="16,4096", help="M for each product of a set (default: 16,4096)")
    group.add_argument("--groups", type=int, default=8, help="groups of grouped products (default: 8)")
    group.add_argument(
        "--calls", type=int, default=None, help="timed calls for each shape (default: 20; 3 on the emulator)"
    )
    group.add_argument("--refcheck", action="store_true", help="hold every element to its bound as well")
    group.add_argument("--csv", type=Path, metavar="FILE", help="write the rows as CSV")
    group.add_argument("--json", type=Path, metavar="FILE", help="write rows, device and versions as JSON")
    group.add_argument("--plot", type=Path, metavar="FILE", help="draw the rates (needs matplotlib)")


def run(args: argparse.Namespace) -> int:
    """Time, print, write."""
    for file in filter(None, (args.csv, args.json, args.plot)):  # before anything is measured
        if not file.parent.is_dir() or file.is_dir():
            raise SystemExit(f"bench: {requirement('files must go into a folder that exists', str(file))}")
        if not os.access(file if file.exists() else file.parent, os.W_OK):
            raise SystemExit(f"bench: {requirement('files must be writeable', str(file))}")
    if args.plot and args.plot.suffix not in (".png", ".pdf", ".svg"):
        raise SystemExit(f"bench: {requirement('--plot must end in .png, .pdf or .svg', str(args.plot))}")
    if args.plot and find_spec("matplotlib") is None:
        raise SystemExit("bench: --plot needs matplotlib; run: pip install matplotlib")
    formats = FORMATS_OF[args.op]
    args.format = args.format or formats[0]
    pair = args.op in ("matmul", "grouped_matmul") and "@" in args.format
    if args.format not in formats and not pair:
        required = f"--format of {args.op} must be {', '.join(formats)}"
        raise SystemExit(f"bench: {requirement(required, args.format)}")
    cases = list(_cases(args))
    if args.calls is None:
        args.calls = 3 if _emulated() else 20
    if args.calls < 1 or args.groups < 1:
        required = "--calls and --groups must be positive"
        raise SystemExit(f"bench: {requirement(required, f'{args.calls} and {args.groups}')}")
    about = _about()
    rows: list[Row] = []
    clock = DeviceClock.of(_hip.current_device())
    other, about["hipBLASLt"] = _hipblaslt(args.op)
    for case in _progress(cases):
        try:
            rows.append(_measure(case, args.calls, args.refcheck, clock, other))
        except HipBlasLtError as error:
            raise SystemExit(f"bench: {case.name}: hipBLASLt: {error}") from None
        except (TypeError, ValueError, UnsupportedError) as error:
            raise SystemExit(f"bench: {case.name}: {error}") from None
        print(_line(rows[-1], header=len(rows) == 1))
    for text in sorted({SHAPE_SETS[name][0] for name in args.shapes.split(",") if name in SHAPE_SETS}):
        print(f"shapes: {text}")
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    if args.csv:
        with args.csv.open("w", newline="") as f:
            table = csv.DictWriter(f, [x.name for x in fields(Row)])
            table.writeheader()
            table.writerows(map(asdict, rows))
    if args.json:
        args.json.write_text(json.dumps({"about": about, "rows": list(map(asdict, rows))}, indent=1) + "\n")
    if args.plot:
        _plot(rows, about, args.plot)
    return 1 if any(row.check.startswith("FAIL") for row in rows) else 0


def _cases(args: argparse.Namespace) -> Iterable[Case]:
    for text in args.shapes.split(","):
        groups = args.groups if args.op.startswith("grouped") else 1
        if text in SHAPE_SETS:
            for name, n, k in SHAPE_SETS[text][1]:
                sizes = (n,) if text == "cubes" else map(_number, args.tokens.split(","))
                for m in sizes:
                    experts = EXPERTS.get(text, groups) if groups > 1 else 1
                    yield Case(args.op, args.format, f"{text} {name}", m, n, k, experts)
            continue
        parts = text.lower().split("x")
        one = args.op in QUANTIZERS or args.op == "dequantize"  # M x K, of one array
        if one and len(parts) == 2:
            parts.insert(1, parts[1])
        if len(parts) != 3:
            required = f"--shapes must be {'MxK, ' if one else ''}MxNxK or a set ({', '.join(SHAPE_SETS)})"
            raise SystemExit(f"bench: {requirement(required, repr(text))}")
        m, n, k = map(_number, parts)
        yield Case(args.op, args.format, text, m, n, k, groups)


def _number(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise SystemExit(f"bench: {requirement('sizes must be positive numbers', repr(text))}")
    return int(text)


def _progress(cases: Sequence[Case]) -> Iterable[Case]:
    """A bar on a terminal, where tqdm is installed."""
    if not sys.stderr.isatty():
        return cases
    try:
        from tqdm import tqdm
    except ImportError:
        return cases
    bar: Iterable[Case] = tqdm(cases, unit="shape", leave=False)
    return bar


def _about() -> dict[str, str]:
    rt, device, here = _hip.runtime(), _hip.current_device(), info()
    name = _hip.properties(device).name
    found = {
        "device": name.decode() if isinstance(name, bytes) else str(name),
        "arch": _hip.arch(device),
        "runtime": rt.kind,
        "library": rt.library,
        "hip": here.version,
        "driver": here.driver,
        "python": platform.python_version(),
        "hipgemm": str(sys.modules["hipgemm"].__version__),  # installed or not
    }
    for package in ("hip-python", "numpy", "ml_dtypes"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


# ---- what is called --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Work:
    """A prepared call, what it does, and how to check it."""

    call: Callable[[Any], Any]
    flop: float
    nbytes: float
    check: Callable[[Any], None]
    operands: tuple[Any, ...] = ()  # of a product: on the device, and on the host


def _random(shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    return rng.standard_normal(shape, dtype=np.float32)


def _operand(x: Any, form: str, axis: int = -1, block_rows: int = 1) -> Any:
    """Random numbers in a format, on the host; blocks of fp8 have so many rows."""
    if form in FORMATS:
        return x.astype(FORMATS[form].dtype)
    if form in BLOCK_FORMATS:
        return reference.quantize_fp8(x, format=named_format(form).name, block=(block_rows, BLOCK_SIDE))
    return reference.quantize(x, form, **({"axis": axis} if QUANTIZED[form].block else {}))


def _nbytes(*arrays: Any) -> float:
    return float(sum(x.nbytes for x in arrays))


def _offsets(m: int, groups: int, rng: np.random.Generator) -> Any:
    """Group ends as a router might leave them: even but for chance."""
    ends = np.sort(rng.integers(0, m + 1, groups - 1))
    return np.concatenate(([0], ends, [m])).astype(np.int32)


def _prepare(case: Case) -> Work:
    rng = np.random.default_rng(0)
    m, n, k, form = case.m, case.n, case.k, case.format
    flop = 2.0 * m * n * k
    if case.op == "matmul":
        first, second = pair_of(form)
        a = _operand(_random((m, k), rng), first)
        w = _operand(_random((n, k), rng), second, block_rows=BLOCK_SIDE)
        x, y = asarray(a), asarray(w)
        out = empty((m, n), ml_dtypes.bfloat16)
        return Work(
            lambda s: matmul(x, y.T, out, stream=s),
            flop,
            _nbytes(a, w, out),
            lambda z: testing.assert_gemm_close(z.get(), a, w.T),
            (x, y, a, w),
        )
    if case.op.startswith("grouped"):
        return _prepare_grouped(case, flop, rng)
    host = _random((m, k), rng).astype(ml_dtypes.bfloat16)
    source = asarray(host)
    if case.op == "dequantize":
        q = _operand(host.astype(np.float32), form)
        there = asarray(q)
        wanted = reference.dequantize(q).astype(ml_dtypes.bfloat16)
        return Work(
            lambda s: dequantize(there, dtype=ml_dtypes.bfloat16, stream=s),
            0.0,
            _nbytes(q) + 2.0 * m * k,
            lambda z: _same(z.get(), wanted),
        )
    call = QUANTIZERS[case.op]
    options: dict[str, Any] = {} if case.op == "quantize_mxfp4" else {"format": named_format(form).name}
    in_blocks = form in BLOCK_FORMATS
    options |= {"block": (1, BLOCK_SIDE)} if in_blocks else {}
    specified = getattr(reference, case.op)
    made = 2.0 if case.op == "quantize_both" else 1.0
    reads = 2.0 if case.op == "quantize_fp8" and not in_blocks else 1.0  # its own amax comes first
    known = named_format(form)
    narrow = known.bits / 8 + (4 / BLOCK_SIDE if in_blocks else 1 / known.block if known.block else 0)
    return Work(
        lambda s: call(source, **options, stream=s),
        0.0,
        m * k * (2.0 * reads + made * narrow),
        lambda z: _same_scaled(z, specified(host, **options)),
    )


def _prepare_grouped(case: Case, flop: float, rng: np.random.Generator) -> Work:
    m, n, k, form, groups = case.m, case.n, case.k, case.format, case.groups
    offsets = _offsets(m, groups, rng)
    blocked = form in QUANTIZED and bool(QUANTIZED[form].block)
    if case.op == "grouped_matmul":
        first, second = pair_of(form)
        a = _operand(_random((m, k), rng), first)
        w = _operand(_random((groups, n, k), rng), second, block_rows=BLOCK_SIDE)
        blocks = -(-k // BLOCK_SIDE) if second in BLOCK_FORMATS else 0
        x, y = asarray(a), asarray(w)

        def check(out: Any) -> None:
            rows, weights, got = reference.values(a), reference.values(w), out.get()
            for g, (low, high) in enumerate(pairwise(offsets)):
                _near(got[low:high], rows[low:high], weights[g].T, blocks)

        return Work(
            lambda s: grouped_matmul(x, y.mT, offsets, stream=s),
            flop,
            _nbytes(a, w) + 2.0 * m * n,
            check,
        )
    pair = [_random((m, columns), rng).astype(ml_dtypes.bfloat16) for columns in (n, k)]
    sides: list[Any] = [
        reference.quantize_mxfp8(x.astype(np.float32), axis=0, format=form, group_offsets=offsets)
        if blocked
        else _operand(x.astype(np.float32), form)
        for x in pair
    ]
    left, right = map(asarray, sides)

    def check_gradient(out: Any) -> None:
        dy, x, got = reference.values(sides[0]), reference.values(sides[1]), out.get()
        for g, (low, high) in enumerate(pairwise(offsets)):
            _near(got[g], dy[low:high].T, x[low:high])

    return Work(
        lambda s: grouped_wgrad(left, right, offsets, stream=s),
        flop,
        _nbytes(*sides) + 2.0 * groups * n * k,
        check_gradient,
    )


def _near(got: Any, a: Any, b: Any, blocks: int = 0) -> None:
    """Within the bound of a product, where the float32 scale of each operand is one more rounding.

    `blocks` of K with scales of their own have two more each.
    """
    more = 2 + 2 * blocks
    testing.assert_gemm_close(got, np.pad(a, ((0, 0), (0, more))), np.pad(b, ((0, more), (0, 0))))


def _same(got: Any, wanted: Any) -> None:
    if np.ascontiguousarray(got).tobytes() != np.ascontiguousarray(wanted).tobytes():
        raise AssertionError("differs from the reference")


def _same_scaled(got: Any, wanted: Any) -> None:
    for x, y in zip(got, wanted, strict=True) if isinstance(got, tuple) else [(got, wanted)]:
        host = x.get()
        _same(host.data, y.data)
        _same(host.scale, y.scale)


# ---- timing ----------------------------------------------------------------------------------------


def _measure(
    case: Case, calls: int, refcheck: bool, clock: DeviceClock, other: HipBlasLt | None = None
) -> Row:
    work = _prepare(case)
    reset_usage()
    result = work.call(clock.stream)  # loads code objects, plans, reorders scales, fills the pool
    clock.stream.synchronize()
    check = ""
    if refcheck:
        try:
            work.check(result)
            check = "ok"
        except AssertionError as error:
            check = f"FAIL: {str(error).splitlines()[0]}"
    if not _emulated():
        clock.warm(work.call)
    reset_usage()
    times = [clock.sample([work.call]) for _ in range(calls)]
    kernel = max(usage().kernels.items(), key=lambda item: _weight(case.op, *item))[0]
    median, p10, p90 = (float(np.percentile(times, q)) for q in (50, 10, 90))
    row = Row(**asdict(case), kernel=kernel, median_us=median, p10_us=p10, p90_us=p90, check=check)
    if other:
        row = replace(row, hipblaslt_us=_theirs(other, case, work, clock, calls))
    return row if _emulated() else _rated(row, work)


def _hipblaslt(op: str) -> tuple[HipBlasLt | None, str]:
    """What to compare with, or None; and a remark."""
    if op != "matmul":
        return None, "not compared"
    if _hip.runtime().kind != "rocm":
        return None, "only on ROCm"
    try:
        library = open_library(_hip.runtime().library)
        return HipBlasLt(library), str(library._name)
    except HipBlasLtError as error:
        return None, f"none ({error})"


def _theirs(other: HipBlasLt, case: Case, work: Work, clock: DeviceClock, calls: int) -> float | None:
    """The median of hipBLASLt for the same operands; None where it is not compared, or is wrong."""
    x, y, a, w = work.operands
    try:
        call, out = other.matmul(case.format, x, y)
        call(clock.stream)
        clock.stream.synchronize()
        check(out, a, w)
    except (HipBlasLtError, AssertionError) as error:
        print(f"hipBLASLt: {case.name}: {str(error).splitlines()[0]}")
        return None
    clock.warm(call)
    return float(np.median([clock.sample([call]) for _ in range(calls)]))


def _weight(op: str, name: str, count: Any) -> tuple[bool, int]:
    """Whether a kernel does the work rather than prepares it, and how often it ran."""
    return "gemm_" in name or "grouped" in name or name.startswith(op), int(getattr(count, "calls", count))


def _emulated() -> bool:
    return _hip.runtime().kind == "emulator"


def _rated(row: Row, work: Work) -> Row:
    """With rates, and shares of the device's peaks."""
    arch, seconds = _hip.arch(_hip.current_device()), row.median_us * 1e-6
    chip = CHIPS.get(arch)
    memory = chip.memory if chip else BRIDGE_MEMORY if arch == BRIDGE_ARCH else None
    rate = work.nbytes / seconds
    row = replace(row, gbytes_per_s=rate / 1e9, percent_of_memory=100 * rate / memory if memory else None)
    if not work.flop:
        return row
    tflops, kernel = work.flop / seconds / 1e12, code_object(arch).kernels[row.kernel]
    bits = (kernel.mfma_bits or kernel.bits) if kernel.schedule else 0
    share = 100 * tflops / chip.tflops(bits) if chip and bits else None
    return replace(row, tflops=tflops, percent_of_matrix=share)


def _line(row: Row, header: bool) -> str:
    shares = (row.tflops, row.gbytes_per_s, row.percent_of_matrix, row.percent_of_memory)
    text = (
        f"{row.name:24} {row.m:>6} {row.n:>6} {row.k:>6} {row.groups:>4} "
        f"{row.median_us:>11.1f} {row.p10_us:>11.1f} {row.p90_us:>11.1f} "
        f"{' '.join(f'{_short(x):>8}' for x in shares)} {_short(row.hipblaslt_us):>12} "
        f"{row.check:4} {row.kernel}"
    )
    if not header:
        return text
    names = (
        f"{'shape':24} {'M':>6} {'N':>6} {'K':>6} {'grp':>4} {'median us':>11} {'p10 us':>11} {'p90 us':>11} "
        f"{'TFLOP/s':>8} {'GB/s':>8} {'% matrix':>8} {'% memory':>8} {'hipBLASLt us':>12} {'ref':4} kernel"
    )
    note = "(emulated: times are the emulator's, and say nothing of a GPU)\n" if _emulated() else ""
    return f"{row.op}, {row.format}\n{note}{names}\n{text}"


def _short(x: float | None) -> str:
    return "-" if x is None else f"{x:.4g}"


def _plot(rows: Sequence[Row], about: dict[str, str], file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    label, values = "microseconds", [row.median_us for row in rows]
    for name, found in (
        ("TFLOP/s", [row.tflops for row in rows]),
        ("GB/s", [row.gbytes_per_s for row in rows]),
    ):
        if all(found):
            label, values = name, [x or 0.0 for x in found]
            break
    fig, ax = plt.subplots(figsize=(8, 1.5 + 0.3 * len(rows)))
    labels = [f"{row.name} M={row.m}" for row in rows]
    ax.barh(range(len(rows)), values)
    ax.set_yticks(range(len(rows)), labels)
    ax.invert_yaxis()
    ax.set_xlabel(label)
    ax.set_title(f"{rows[0].op}, {rows[0].format}: {about['device']}", fontsize=9)
    fig.tight_layout()
    fig.savefig(file, dpi=120)
    plt.close(fig)
