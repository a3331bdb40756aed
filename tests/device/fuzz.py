"""Random calls of `matmul`, generated from a seed and checked: what test_fuzz.py runs.

``python tests/device/fuzz.py 17 18`` runs those, and prints for each a digest of the result's bits and what
it was.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from placed import Placed, place, snug

import hipgemm as hg
from hipgemm.formats.elements import FORMATS, QUANTIZED, as_unsigned
from hipgemm.formats.scaled import block_scale_shape, pack_along
from hipgemm.kernels.manifest import GEMMS, code_object
from hipgemm.products import choose
from hipgemm.products.run import plans
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

BF16, F16, F32, U8 = (
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(np.float16),
    np.dtype(np.float32),
    np.dtype(np.uint8),
)
FP8 = ("fp8_e4m3", "fp8_e5m2")
BLOCK_ROWS = [[1, 128], [1, 1], [128, 1], [128, 128], [1, 0], [0, 128], [0, 1], [128, 0]]  # 0: none
MX = tuple(name for name, form in QUANTIZED.items() if form.block)
EXTENTS = (
    0,
    1,
    1,
    2,
    3,
    7,
    8,
    15,
    16,
    17,
    31,
    32,
    33,
    48,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    130,
    200,
    255,
    256,
    257,
)
DEPTHS = (0, 1, 2, 7, 8, 13, 16, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129, 200, 256, 257, 512, 521, 1040)
WORK = 1 << 21  # multiply-adds of the largest case


# ---- a case ----------------------------------------------------------------------------------------


@dataclass
class Operand:
    """A matrix operand: plain, or quantized with its scales."""

    format: str
    data: Placed
    scale: Placed | None
    axis: int
    hadamard: bool = False
    signs: int | None = None
    block: tuple[int, int] | None = None

    @property
    def host(self) -> Any:
        if self.format in FORMATS:
            return self.data.host
        assert self.scale is not None
        return self._quantized(self.data.host, self.scale.host)

    def device(self, exactly: bool = False) -> Any:
        data = self.data.device(exactly)
        return data if self.scale is None else self._quantized(data, self.scale.device(exactly))

    def _quantized(self, data: Any, scale: Any) -> hg.ScaledArray:
        if self.block is not None:
            return hg.ScaledArray(data, scale, self.format, block=self.block)
        options = {"axis": self.axis, "hadamard": self.hadamard, "signs": self.signs}
        return hg.ScaledArray(data, scale, self.format, **options)

    @property
    def kernel_format(self) -> str:
        """The kernels' name of its format."""
        return self.format + ("_block" if self.block is not None else "")


def operand(
    rng: np.random.Generator,
    format: str,
    shape: tuple[int, ...],
    axis: int,
    exact: bool,
    hadamard: bool,
    block_rows: int = 0,
    signs: int | None = None,
    put: Callable[..., Placed] = place,
) -> Operand:
    """Make an operand of random values, K along `axis`; `block_rows`: of blocks of fp8, or 0.

    `put` chooses the layout of its elements.
    """
    if format in FORMATS:
        data = put(rng, shape, FORMATS[format].dtype)
        data.host[...] = (exact_grid if exact else random_matrix)(shape, rng, dtype=data.dtype)
        if not exact and rng.random() < 0.1 and data.host.size:
            at = tuple(int(rng.integers(n)) for n in shape)
            data.host[at] = rng.choice([np.nan, np.inf, -np.inf])
        return Operand(format, data, None, axis)
    form = QUANTIZED[format]
    if exact:
        codes = exact_grid(shape, rng, dtype=form.dtype, bits=min(2, form.mantissa_bits + 1))
    else:
        codes = rng.integers(0, 2**form.bits, shape, np.uint8).view(form.dtype)
        codes[~np.isfinite(codes.astype(F32))] = 0
        if form.bits == 8 and codes.size and rng.random() < 0.1:
            codes[tuple(int(rng.integers(n)) for n in shape)] = rng.choice([np.nan, np.inf, -np.inf])
    if form.is_packed:
        packed = pack_along(codes, axis)
        data = put(rng, packed.shape, U8)
        data.host[...] = packed
    else:
        data = put(rng, shape, form.dtype)
        data.host[...] = codes
    if block_rows:
        block = (block_rows, 128) if axis == -1 else (128, block_rows)
        blocks = block_scale_shape(shape, block)
        if rng.random() < 0.3:
            scale = place(rng, blocks, U8)
            scale.host[...] = rng.integers(126, 129, blocks) if exact else rng.integers(110, 140, blocks)
        else:
            scale = place(rng, blocks, F32)
            scale.host[...] = np.exp2(rng.integers(-1, 2, blocks)) if exact else rng.uniform(1e-3, 9, blocks)
        return Operand(format, data, scale, axis, block=block)
    if form.block:
        scales = list(shape)
        scales[axis] = -(-shape[axis] // form.block)
        scale = place(rng, tuple(scales), U8)
        scale.host[...] = rng.integers(126, 129, scales) if exact else rng.integers(110, 140, scales)
        if not exact and rng.random() < 0.1 and scale.host.size:
            scale.host[tuple(int(rng.integers(n)) for n in scales)] = 255  # NaN
    else:
        one = list(shape)
        one[axis] = 1
        wanted: list[tuple[int, ...]] = [(), tuple(one)]
        if len(shape) == 3:
            wanted.append((shape[0], 1, 1))
        scales_ = wanted[rng.integers(len(wanted))]
        scale = place(rng, scales_, F32)
        scale.host[...] = np.exp2(rng.integers(-1, 2, scales_)) if exact else rng.uniform(1e-3, 9, scales_)
    return Operand(format, data, scale, axis, hadamard, signs)


@dataclass
class Case:
    """One call with its arguments in memory."""

    seed: int
    a: Operand
    b: Operand
    out: Placed | None
    dtype: np.dtype[Any] | None
    epilogue: dict[str, Any]
    vectors: tuple[str, ...]  # arguments of the epilogue that are on the device
    exact: bool
    resident: bool
    exactly: bool  # in allocations without a byte to spare
    streamed: bool
    kernel: str | None
    splits: int

    def __str__(self) -> str:
        def where(x: Placed | None) -> str:
            return (
                "new"
                if x is None
                else f"{x.dtype.name}{list(x.shape)} strides {list(x.strides)} at {x.offset}"
            )

        operands = ", ".join(
            f"{x.format} {where(x.data)}" + (f" scale {where(x.scale)}" if x.scale else "")
            for x in (self.a, self.b)
        )
        extra = {name: x if np.ndim(x) == 0 else x.dtype.name for name, x in self.epilogue.items()}
        device = ("exactly " if self.exactly else "") + "on the device" if self.resident else "from the host"
        return (
            f"case {self.seed}: {operands}; out {where(self.out)}, dtype {self.dtype}; {extra}, of which "
            f"{self.vectors} on the device; {device}, {'exact, ' if self.exact else ''}"
            f"stream {self.streamed}, {self.kernel}, {self.splits} parts"
        )


def make(seed: int) -> Case:
    """Make the case of a seed."""
    rng = np.random.default_rng(seed)
    kind = rng.choice(["bf16", "f16", "fp8", "blocks", "mx", "weight"], p=[0.25, 0.1, 0.15, 0.15, 0.2, 0.15])
    among = {"fp8": FP8, "blocks": FP8, "mx": MX, "weight": (*FP8, *MX)}.get(kind, (str(kind),))
    formats = [str(rng.choice(among)) for _ in "ab"]
    rows = [0, 0]  # of blocks of fp8
    if kind == "blocks":
        rows = BLOCK_ROWS[rng.integers(len(BLOCK_ROWS))]
    if kind == "weight":
        formats[0] = "bf16"
        rows = [0, int(rng.choice([0, 1, 128])) if formats[1] in FP8 else 0]
    levels = rng.choice([0, 1, 2, 3], p=[0.55, 0.25, 0.13, 0.07])
    lead = tuple(int(n) for n in rng.choice([0, 1, 2, 2, 3, 3, 4, 4], levels))
    while True:
        m, n = (int(x) for x in rng.choice(EXTENTS, 2))
        k = int(rng.choice(DEPTHS))
        if m * n * max(16, k) * int(np.prod(lead)) <= WORK:
            break
    four = [f == "mxfp4_e2m1" for f in formats]
    if any(four):
        k += k % 2  # packed in pairs
    if any(QUANTIZED[f].bits == 6 for f in formats if f in QUANTIZED):
        k += k % 4 == 3  # the length that follows from whole bytes
    hadamard = all(four) and k % 16 == 0 and bool(rng.integers(2))
    signs = int(rng.integers(100)) if hadamard and rng.integers(2) else None
    exact = bool(rng.integers(2))
    leads = [lead, lead]
    if lead:
        for side in (0, 1):
            choice = rng.random()
            if choice < 0.3:
                leads[side] = lead[int(rng.integers(len(lead) + 1)) :]
            elif choice < 0.5:
                leads[side] = tuple(1 if rng.integers(2) else x for x in lead)
    a = operand(rng, formats[0], (*leads[0], m, k), -1, exact, hadamard, rows[0], signs)
    b = operand(rng, formats[1], (*leads[1], k, n), -2, exact, hadamard, rows[1], signs)
    batch = np.broadcast_shapes(*leads)
    dtype: np.dtype[Any] | None = (BF16, F16, F32)[rng.integers(3)]
    if not exact and dtype == F16 and formats[1] in QUANTIZED:
        dtype = F32  # holds any such values
    out = place(rng, (*batch, m, n), dtype, output=True) if rng.integers(2) else None
    if rng.random() < 0.2:
        dtype = None

    epilogue: dict[str, Any] = {}
    if rng.random() < 0.4:
        epilogue["alpha"] = 0.5 if exact else float(rng.standard_normal())
    if rng.random() < 0.4:
        epilogue["col_scale"] = (np.exp2(rng.integers(-3, 4, n)) if exact else rng.standard_normal(n)).astype(
            F32
        )
    if rng.random() < 0.4:
        epilogue["bias"] = rng.integers(-8, 9, n).astype((BF16, F16, F32)[rng.integers(3)])
    vectors = tuple(name for name in epilogue if rng.integers(2))
    kernel, splits = None, 0
    way = rng.random()
    if way < 0.12:
        kernel = "plain"
    elif way < 0.5:
        kernels = [
            x.name
            for x in code_object(_hip.arch(0)).kernels.values()
            if x.op in GEMMS and (x.a, x.b) == kernel_formats(a, b)
        ]
        if kernels:
            kernel = str(rng.choice(kernels))
            splits = int(rng.integers(2, 6)) if rng.random() < 0.4 else 0
    resident = rng.random() < 0.7
    scales = [x.scale for x in (a, b) if x.scale is not None and x.scale.dtype == F32]
    if len(scales) == 2 and not exact and rng.random() < 0.5:
        # Scales and factors of any magnitude, for a result of an ordinary one.
        up, down = (int(x) for x in rng.integers(-60, 61, 2))
        scales[0].host[...] *= F32.type(2.0**up)
        scales[1].host[...] *= F32.type(2.0 ** (down - up))
        epilogue["alpha"] = epilogue.get("alpha", 1.0) * 2.0**-down
    return Case(
        *(seed, a, b, out, dtype, epilogue, vectors, exact, resident, rng.random() < 0.3),
        *(rng.random() < 0.5, kernel, splits),
    )  # fmt: skip


def kernel_formats(a: Operand, b: Operand) -> tuple[str, str]:
    """The formats of the kernels that serve a product."""
    one, other = a.kernel_format, b.kernel_format
    blocked = [x for x in (a, b) if x.block is not None]
    if not blocked or a.format == "bf16":
        return one, other
    if len(blocked) == 2 and not any(x.scale.dtype == F32 for x in blocked if x.scale):
        return f"mx{a.format}", f"mx{b.format}"  # powers of two
    return f"{a.format}_block", f"{b.format}_block"


# ---- running one -----------------------------------------------------------------------------------


@contextmanager
def parted(splits: int) -> Iterator[None]:
    """Split K into about so many parts, where it is long enough, instead of by the cost model."""
    if not splits:
        yield
        return
    before = choose.estimate

    def estimate(x: Any, kernel: Any) -> Any:
        cost = before(x, kernel)
        tiles = max(1, -(-x.k // kernel.tile[2]))
        turns = tiles + tiles % 2
        each = -(-turns // splits)
        each += each % 2
        return replace(cost, splits=-(-turns // each), split_tiles=each)

    choose.estimate = estimate  # type: ignore[assignment]
    plans.clear()
    try:
        yield
    finally:
        choose.estimate = before
        plans.clear()


_streams: list[Any] = []


def run(case: Case) -> np.ndarray:
    """Run a case twice, check everything documented, and return its result."""
    if case.streamed and not _streams:
        _streams.append(hg.Stream())
    stream = _streams[0] if case.streamed else None
    with hg.config(kernel=case.kernel) if case.kernel else nullcontext(), parted(case.splits):
        call = (_on_device if case.resident else _on_host)(case, stream)
        first, second = call(), call()
    epilogue = case.epilogue
    assert_gemm_close(first, case.a.host, case.b.host, exact=case.exact, **epilogue)
    same = as_unsigned(np.ascontiguousarray(first)) == as_unsigned(np.ascontiguousarray(second))
    assert same.all(), f"other bits the second time, in {int((~same).sum())} of {same.size} elements"
    return first


def _on_host(case: Case, stream: Any) -> Callable[[], np.ndarray]:
    out = case.out

    def call() -> np.ndarray:
        if out is None:
            return hg.matmul(case.a.host, case.b.host, dtype=case.dtype, stream=stream, **case.epilogue)
        out.memory.fill(255)
        got = hg.matmul(case.a.host, case.b.host, out.host, dtype=case.dtype, stream=stream, **case.epilogue)
        assert out.outside(out.memory), "bytes around the output were changed"
        return got.copy()

    return call


def _on_device(case: Case, stream: Any) -> Callable[[], np.ndarray]:
    out = case.out
    a, b = case.a.device(case.exactly), case.b.device(case.exactly)
    epilogue = dict(case.epilogue)
    for name in case.vectors:
        vector = np.asarray(epilogue[name], F32 if name == "alpha" else None)
        epilogue[name] = snug(vector) if case.exactly and vector.size else hg.asarray(vector)

    def call() -> np.ndarray:
        target = None
        if out is None:  # the pool's next allocation contains NaN
            for size in (1 << i for i in range(9, 18)):
                hg.asarray(np.full(size, 255, np.uint8))
        else:
            out.memory.fill(255)
            target = out.device(case.exactly)
        want = hg.can_use("matmul", a, b, target, dtype=case.dtype, arch=_hip.arch(0), **epilogue)
        hg.reset_usage()
        got = hg.matmul(a, b, target, dtype=case.dtype, stream=stream, **epilogue)
        if got.size:
            used = hg.usage()
            assert want.kernel in used.kernels, f"{want.kernel} predicted; got {[*used.kernels]}"
            named = (
                "a",
                "b",
                "out",
                "a.scale",
                "b.scale",
            )  # others are copies inside the conversion of 4-bit elements
            copied = {f"{operand}: {why}" for _, operand, why in used.copies if operand in named}
            assert copied == {*want.copies}, f"copies {want.copies} predicted; got {copied}"
        if target is not None:
            assert got is target
            whole = hg.DeviceArray(target._block, target.ptr - out.offset, out.memory.shape, (1,), U8)
            assert out.outside(whole.get()), "bytes around the output were changed"
        return got.get()

    return call


def digest(x: np.ndarray) -> str:
    """A digest of an array's bits."""
    return hashlib.sha256(np.ascontiguousarray(as_unsigned(x)).tobytes()).hexdigest()[:16]


if __name__ == "__main__":
    for seed in map(int, sys.argv[1:]):
        case = make(seed)
        print(digest(run(case)), case, flush=True)
