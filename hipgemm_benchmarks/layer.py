"""A SwiGLU MLP with the activation and the quantization in the product, and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hipgemm.array.device_array import asarray
from hipgemm.config import config
from hipgemm.formats.scaled import ScaledArray
from hipgemm.inspect.can_use import can_use
from hipgemm.inspect.counters import emulator_counters
from hipgemm.products.matmul import matmul
from hipgemm.quantize.quantizers import quantize_mxfp8
from hipgemm.runtime import hip as _hip

from .emulator import whole_k
from .gradients import PRODUCTS
from .overhead import counted_calls

WIDTH, HIDDEN = 4096, 14336
FORMAT = "mxfp8_e4m3"
LARGE = 4096  # rows, whose bytes are calculated from those of one row of tiles
STEP = 256  # rows of these tiles
AIM = 0.75


@dataclass(frozen=True)
class Moved:
    """What a layer did: launches, HIP calls, bytes that its launches moved and requested.

    Moved: what a launch reads or writes counts once, as between memory and the GPU. Requested: as often as
    lanes ask for it, most of all products, whose tiles each read rows of both operands; caches answer that.
    """

    launches: int
    hip_calls: int
    moved: int
    requested: int
    by_products: int  # requested reads of products


@dataclass(frozen=True)
class Weights:
    """Weights of both products, blocked along K: gates and ups interleaved, gates, ups; and of the second."""

    both: ScaledArray
    gate: ScaledArray
    up: ScaledArray
    down: ScaledArray

    @property
    def nbytes(self) -> int:
        """Bytes that a layer reads; gates and ups are as many apart as interleaved."""
        return sum(q.data.nbytes + q.scale.nbytes for q in (self.both, self.down))


def run(rows: Sequence[int] = (16, 64, 512, LARGE)) -> None:
    """Print a line for each number of rows."""
    print(f"SwiGLU MLP, {WIDTH} -> {HIDDEN} -> {WIDTH}, {FORMAT}, resident")
    print("  (by the emulator's counters: bytes moved, each once by a launch; and requested by lanes, where")
    print("  each tile of a product reads its rows of both operands again, fused or not)")
    gates = HIDDEN, WIDTH
    w = Weights(*(_random(shape) for shape in ((2 * HIDDEN, WIDTH), gates, gates, gates[::-1])))
    for m in rows:
        found = [_moved(way, m, w) for way in (fused, unfused)]
        for name, x in zip(("fused", "unfused"), found, strict=True):
            line = f"  M={m:5} {name:8} {x.launches:3} launches, {x.hip_calls:3} HIP calls"
            print(f"{line}, {x.moved / 1e6:7.1f} MB moved; {x.requested / 1e6:7.1f} MB requested,", end="")
            print(f" {x.by_products / 1e6:7.1f} of them reads of products")
        one, other = found
        line = f"  M={m:5} fused / unfused: {one.moved / other.moved:.3f} of the bytes moved"
        line += f" (aim {AIM})" if m == LARGE else ""
        line += f"; {one.requested / other.requested:.3f} of those requested"
        print(line + (f"; calculated from {STEP} rows by the same kernels" if m == LARGE else ""))


def fused(x: ScaledArray, w: Weights, kernels: Kernels) -> Any:
    """Two products: the first one's kernel applies the activation, and quantizes."""
    with kernels("gate and up", x, w.both, activation="silu", glu="interleaved", out_format=FORMAT):
        h = matmul(x, w.both.T, activation="silu", glu="interleaved", out_format=FORMAT)
    with kernels("down", h, w.down):
        return matmul(h, w.down.T)


def unfused(x: ScaledArray, w: Weights, kernels: Kernels) -> Any:
    """Products with results in bfloat16, their elementwise product, and a quantizer."""
    with kernels("gate", x, w.gate, activation="silu"):
        gate = matmul(x, w.gate.T, activation="silu")
    with kernels("up", x, w.up):
        up = matmul(x, w.up.T)
    h = quantize_mxfp8(gate * up)
    with kernels("down", h, w.down):
        return matmul(h, w.down.T)


Way = Callable[[ScaledArray, Weights, "Kernels"], Any]
Kernels = Callable[..., Any]  # what selects the kernel of a product


def _any(*arguments: Any, **options: Any) -> Any:
    return nullcontext()


def _random(shape: tuple[int, int]) -> ScaledArray:
    """Random elements with scales of 1, without the time that a quantizer takes on the emulator."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 0x70, shape, np.uint8).view(ml_dtypes.float8_e4m3fn)
    return ScaledArray(asarray(codes), asarray(np.full((shape[0], shape[1] // 32), 127, np.uint8)), FORMAT)


def _moved(way: Way, m: int, w: Weights) -> Moved:
    if m != LARGE:
        return _count(way, m, w, _any)
    names: dict[str, str] = {}

    def note(name: str, x: ScaledArray, y: ScaledArray, **stages: Any) -> Any:
        wide = _random((LARGE, x.shape[1]))  # nothing runs
        answer = can_use("matmul", wide, y.T, **stages)
        assert answer.kernel is not None
        assert answer.splits == 1
        names[name] = answer.kernel
        return nullcontext()

    way(_random((1, WIDTH)), w, note)

    def select(name: str, *operands: Any, **stages: Any) -> Any:
        return config(kernel=names[name])

    with whole_k():
        one = _count(way, STEP, w, select)
    times = LARGE // STEP
    # Each row of tiles requests as much; all of them read the same weights.
    moved = times * one.moved - (times - 1) * w.nbytes
    requested, by_products = times * one.requested, times * one.by_products
    return Moved(one.launches, one.hip_calls, moved, requested, by_products)


def _count(way: Way, m: int, w: Weights, kernels: Kernels) -> Moved:
    x = _random((m, WIDTH))
    way(x, w, kernels)  # orders the scales of the weights, and makes the plans
    _hip.synchronize()
    emulator_counters(reset=True, addresses=True)
    counts: Counter[str] = counted_calls(lambda: way(x, w, kernels))
    _hip.synchronize()
    found = emulator_counters(reset=True, addresses=False)
    requested = found.global_read_bytes + found.global_written_bytes + found.global_atomic_bytes
    moved = found.unique_read_bytes + found.unique_written_bytes
    products = [each.counters for each in found.each if each.kernel.startswith(PRODUCTS)]
    by_products = sum(each.global_read_bytes for each in products)
    return Moved(found.launches, counts.total(), moved, requested, by_products)
