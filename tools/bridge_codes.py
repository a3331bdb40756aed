"""The quantizers' results for every class of input, bit by bit, to be compared between runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import hipgemm as hg
from hipgemm.formats.elements import QUANTIZED, SCALE_RULES

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
ELEMENTS = ("fp8_e4m3", "fp8_e5m2", "mxfp4_e2m1", "mxfp6_e2m3", "mxfp6_e3m2")
Array = Any


def inputs() -> dict[str, Array]:
    """Matrices of every class, always the same."""
    rng = np.random.default_rng(7)
    patterns = np.arange(2**16, dtype=np.uint16).view(BF16)
    finite = patterns[np.isfinite(patterns.astype(F32))]
    finite = finite[np.argsort(np.abs(finite.astype(F32)), kind="stable")]
    near = finite[: len(finite) // 64 * 64].reshape(-1, 64)  # next to those of its own magnitude
    wide = rng.standard_normal((96, 160)) * np.exp2(rng.integers(-40, 40, (96, 160)))
    holed = rng.standard_normal((96, 160)).astype(F32)
    holed[rng.random(holed.shape) < 0.02] = np.nan
    holed[rng.random(holed.shape) < 0.02] = np.inf
    holed[rng.random(holed.shape) < 0.02] = -np.inf
    zeros = np.where(rng.random((64, 96)) < 0.5, -0.0, 0.0).astype(F32)
    zeros[:, :32] *= rng.random((64, 1)) < 0.5
    tiny = (rng.integers(-(2**24), 2**24, (64, 96)) * 2.0**-149).astype(F32)
    return {
        "every bf16": patterns.reshape(256, 256),
        "bf16 by magnitude": rng.permuted(near, axis=1),
        "ties": ties(),
        "f32 subnormal": tiny,
        "bf16 subnormal": (np.arange(2**13) % 2**8).astype(np.uint16).view(BF16).reshape(64, 128),
        "f16 subnormal": (np.arange(2**13) % 2**11).astype(np.uint16).view(F16).reshape(64, 128),
        "every f16": np.arange(2**16, dtype=np.uint16).view(F16).reshape(512, 128),
        "wide f32": wide.astype(F32),
        "nan and inf": holed,
        "zeros": zeros,
        "ragged": rng.standard_normal((37, 70)).astype(BF16),
    }


def ties() -> Array:
    """Values at and next to the midpoint of two quantized values, in blocks whose scale is 1."""
    rows = []
    for name in ELEMENTS:
        codes = np.arange(2 ** QUANTIZED[name].bits, dtype=np.uint8).view(QUANTIZED[name].dtype).astype(F32)
        grid = np.unique(codes[np.isfinite(codes)])
        half = ((grid[1:].astype(np.float64) + grid[:-1]) / 2).astype(F32)
        found = np.concatenate([half, np.nextafter(half, F32.type(0)), np.nextafter(half, F32.type(np.inf))])
        found = np.resize(found, -(-len(found) // 31) * 31).reshape(-1, 31)
        rows.append(np.hstack([found, np.full((len(found), 1), grid[-1], F32)]))
    return np.ascontiguousarray(np.vstack(rows))


Quantizer = Callable[[Array], Any]


def quantizers() -> Iterator[tuple[str, Quantizer]]:
    """Every rule and format, along each axis."""
    for form in ("fp8_e4m3", "fp8_e5m2"):
        for axis in (None, -1, 0):
            yield f"{form} axis {axis}", partial(hg.quantize_fp8, format=form, axis=axis)
        yield f"{form} amax 1", partial(hg.quantize_fp8, amax=1.0, format=form)
    for rule in SCALE_RULES:
        for axis in (-1, 0):
            for form in ("mxfp8_e4m3", "mxfp8_e5m2"):
                made = partial(hg.quantize_mxfp8, format=form, axis=axis, scaling=rule)
                yield f"{form} {rule} axis {axis}", made
            for form in ("mxfp6_e2m3", "mxfp6_e3m2"):
                made = partial(hg.quantize_mxfp6, format=form, axis=axis, scaling=rule)
                yield f"{form} {rule} axis {axis}", made
            four = partial(hg.quantize_mxfp4, axis=axis, scaling=rule, hadamard=False)
            yield f"mxfp4 {rule} axis {axis}", four
    for axis in (-1, 0):
        yield f"mxfp4 hadamard axis {axis}", partial(hg.quantize_mxfp4, hadamard=True, axis=axis)
    for form in ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_e2m1"):
        for side, name in enumerate(("rows", "columns")):
            yield f"both {form} {name}", partial(_both, form=form, side=side)
    for form in ("mxfp8_e4m3", "mxfp8_e5m2"):
        yield f"transpose {form}", partial(hg.transpose_quantize_mxfp8, format=form)
    yield "transpose mxfp6_e2m3", partial(hg.transpose_quantize_mxfp6, format="mxfp6_e2m3")
    for form in ("fp8_e4m3", "fp8_e5m2"):
        yield f"{form} AmaxState", partial(_delayed, form=form)


def _both(x: Array, form: str, side: int) -> Any:
    return hg.quantize_both(x, form, hadamard=False if "mxfp4" in form else None)[side]


def _delayed(x: Array, form: str) -> Any:
    """The second of two steps, whose scale is the first one's amax."""
    state = hg.AmaxState(2.0)
    hg.quantize_fp8(x, state, format=form)
    state.step()
    return hg.quantize_fp8(x, state, format=form)


def results() -> Iterator[tuple[str, Array]]:
    """The bytes of data and scales of every case, and the dequantized values."""
    for kind, x in inputs().items():
        on_device = hg.asarray(x)
        for name, quantize in quantizers():
            along = 0 if "axis 0" in name or "columns" in name else -1
            if x.shape[along] % (16 if "hadamard" in name else 2 if "mxfp4" in name else 1):
                continue
            q = quantize(on_device)
            yield f"{kind}: {name}: codes", q.data.get().view(np.uint8)
            yield f"{kind}: {name}: scales", np.ascontiguousarray(q.scale.get()).view(np.uint8)
            if kind in ("every bf16", "ragged"):
                yield f"{kind}: {name}: numbers", hg.dequantize(q).get()


def record(path: Path) -> str:
    """Write this runtime's results."""
    found = dict(results())
    np.savez_compressed(path, **found)
    return f"{len(found)} arrays, {sum(x.size for x in found.values())} entries, {path.stat().st_size} bytes"


def compare(path: Path) -> dict[str, int]:
    """Compare this runtime with a recording: entries that differ, by case."""
    wanted = np.load(path)
    different = {}
    names = set(wanted.files)
    for name, got in results():
        names.remove(name)
        want = wanted[name]
        if want.dtype == F32:  # whatever the bits of a NaN
            same = (got.view(np.uint32) == want.view(np.uint32)) | (np.isnan(got) & np.isnan(want))
        else:
            same = got == want
        if not np.all(same):
            different[name] = int(np.size(same) - np.count_nonzero(same))
    if names:
        raise ValueError(f"cases that are recorded only: {sorted(names)}")
    return different
