"""Random products of groups of rows, generated from a seed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from fuzz import FP8, Operand, operand
from fuzz_layers import EXTENTS, some
from placed import Placed, place
from test_grouped import KERNELS, assert_wgrad, sections
from test_quantize import assert_same

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED, as_unsigned
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
TYPES = (BF16, F16, F32)
FORMATS_OF = {
    op: sorted({(k.a, k.b) for k in KERNELS if k.op.removeprefix("scaled_") == op})
    for op in ("grouped_matmul", "grouped_wgrad")
}
FORMATS_OF["grouped_wgrad"] += [(f"{a}_block", f"{b}_block") for a in FP8 for b in FP8]


@dataclass
class Grouping:
    """One product of groups."""

    seed: int
    op: str
    a: Operand
    b: Operand
    offsets: np.ndarray
    there: bool  # offsets on the device
    out: Placed | None
    dtype: np.dtype[Any]
    accumulate: bool
    exact: bool
    where: str
    recipe: str | None = None  # "quantizer": quantized in groups before the call, "mxfp8": by it

    def __str__(self) -> str:
        def text(x: Operand) -> str:
            return f"{x.format} {list(x.data.shape)} strides {list(x.data.strides)} at {x.data.offset}"

        out = self.out and f"{list(self.out.shape)} strides {list(self.out.strides)} at {self.out.offset}"
        return (
            f"case {self.seed}: {self.op} of {text(self.a)}, {text(self.b)}, {self.offsets.dtype} offsets "
            f"{self.offsets.tolist()}, {'there' if self.there else 'here'}; out {out} {self.dtype}, "
            f"{self.where}, {self.recipe}"
            f"{', accumulate' if self.accumulate else ''}{', exact' if self.exact else ''}"
        )


def make(seed: int) -> Grouping:
    """Make the case of a seed."""
    rng = np.random.default_rng(seed)
    op = some(rng, *FORMATS_OF)
    forward = op == "grouped_matmul"
    formats = some(rng, *FORMATS_OF[op])
    # Of blocks of fp8; 0: none. The kernels for two such operands serve one with a scale for all, too.
    rows = [some(rng, 1, 128) if name.endswith("_block") else 0 for name in formats]
    if all(rows) and rng.random() < 0.3:
        rows[rng.integers(2)] = 0
    formats = tuple(name.removesuffix("_block") for name in formats)
    groups = some(rng, 0, 1, 2, 3, 5, 9, 70)
    m, n, k = int(rng.choice((*EXTENTS, 300, 0))), *(int(v) for v in rng.choice((*EXTENTS[:14], 0), 2))
    blocked = not forward and QUANTIZED.get(formats[0]) is not None and bool(QUANTIZED[formats[0]].block)
    cuts = rng.integers(0, m + 1, groups)
    if groups and rng.random() < 0.3:
        cuts[rng.integers(groups) :] = cuts[0]  # many empty ones
    recipe = None
    if blocked:
        recipe = some(rng, None, "quantizer", "mxfp8")
        cuts = cuts if recipe else cuts // 32 * 32
    offsets = np.concatenate(([0], np.sort(cuts))).astype(some(rng, np.int32, np.int32, np.int64, np.uint16))
    exact = bool(rng.integers(2))
    four = "mxfp4_e2m1" in formats
    k += k % 2 if four else 0
    k += k % 4 == 3 if any("mxfp6" in f for f in formats) else 0  # the length that follows from whole bytes
    hadamard = set(formats) == {"mxfp4_e2m1"} and k % 16 == 0 and bool(rng.integers(2))
    signs = int(rng.integers(100)) if hadamard and rng.integers(2) else None
    if forward:
        a = operand(rng, formats[0], (m, k), -1, exact, hadamard, rows[0], signs)
        b = operand(rng, formats[1], (groups, k, n), -2, exact, hadamard, rows[1], signs)
        shape: tuple[int, ...] = (m, n)
    else:
        if recipe:
            formats = (some(rng, "bf16", "f16"),) * 2
        a, b = (
            operand(rng, f, (m, v), -2, exact, False, side)
            for f, v, side in zip(formats, (n, k), rows, strict=True)
        )
        exact = exact and not recipe
        shape = (groups, n, k)
    dtype = some(rng, *TYPES)
    if not exact and dtype == F16 and formats[1] in QUANTIZED:
        dtype = F32  # holds any such values
    out = place(rng, shape, dtype, output=True) if rng.integers(2) else None
    accumulate = not forward and out is not None and not any(rows) and bool(rng.integers(2))
    where = some(rng, "host", "device", "device", "exactly")
    there = bool(rng.integers(2))
    return Grouping(seed, op, a, b, offsets, there, out, dtype, accumulate, exact, where, recipe)


def run(case: Grouping) -> None:
    """Run a case twice; each group must be inside the bound of its own product."""
    exactly, out = case.where == "exactly", case.out
    a, b = (x.host if case.where == "host" else x.device(exactly) for x in (case.a, case.b))
    offsets = hg.asarray(case.offsets.astype(np.int32)) if case.there else case.offsets
    if case.there and case.where == "host" and case.recipe:
        offsets = case.offsets  # the quantizer takes them from there
    host = case.a.host, case.b.host
    if case.recipe:
        host = tuple(reference.quantize_mxfp8(x, axis=0, group_offsets=case.offsets) for x in host)
    if case.recipe == "quantizer":
        a, b = (hg.quantize_mxfp8(x, axis=0, group_offsets=offsets) for x in (a, b))
        for made, want in zip((a, b), host, strict=True):
            assert_same(made.get(), want)
    onto = None
    if case.accumulate:
        onto = np.random.default_rng(case.seed).integers(-8, 9, out.shape).astype(case.dtype)
    results = []
    for _ in range(2):
        target = None
        if out is not None:
            out.memory.fill(255)
            if onto is not None:
                out.host[...] = onto
            target = out.host if case.where == "host" else out.device(exactly)
        options: dict[str, Any] = {} if case.op == "grouped_matmul" else {"accumulate": case.accumulate}
        if case.recipe == "mxfp8":
            options["recipe"] = "mxfp8"
        options["dtype"] = case.dtype
        want = None
        by_group = case.op == "grouped_wgrad" and (case.a.block or case.b.block)  # each has its own kernel
        if case.where != "host" and case.recipe != "quantizer" and not by_group:
            want = hg.can_use(case.op, a, b, offsets, target, arch=_hip.arch(0), **options)
        hg.reset_usage()
        got = getattr(hg, case.op)(a, b, offsets, target, **options)
        if want is not None and got.size:
            used = hg.usage()
            copied = {f"{operand}: {why}" for _, operand, why in used.copies}
            assert (want.kernel in used.kernels, copied) == (True, {*want.copies}), f"{want} predicted"
        if target is not None:
            memory = out.memory
            if isinstance(got, hg.DeviceArray):
                at = target.ptr - out.offset
                memory = hg.DeviceArray(target._block, at, memory.shape, (1,), np.dtype(np.uint8)).get()
            assert out.outside(memory), "bytes around the output were changed"
        results.append((got if isinstance(got, np.ndarray) else got.get()).copy())
    first, second = (as_unsigned(np.ascontiguousarray(r)) for r in results)
    np.testing.assert_array_equal(first, second)
    if case.op == "grouped_matmul":
        for g, rows in enumerate(sections(case.offsets)):
            one, other = part(case.a.host, rows), part(case.b.host, g)
            assert_gemm_close(results[0][rows], one, other, exact=case.exact)
        assert not results[0][int(case.offsets[-1]) :].astype(F32).any()
    else:
        assert_wgrad(results[0], *host, case.offsets, exact=case.exact, onto=onto)


def part(q: Any, index: Any) -> Any:
    """Rows of x, or one of the matrices of w."""
    if isinstance(q, hg.ScaledArray) and q.block == (128, 128) and q.ndim == 2:
        scale = q.scale.repeat(128, axis=0)[: len(q)]  # so that rows can begin inside a block
        q = hg.ScaledArray(q.data, scale, q.format, block=(1, 128))
    return q[index]
