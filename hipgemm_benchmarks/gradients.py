"""Bytes of a layer's gradients through an activation: formed where dy is quantized, and by a pass before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from hipgemm.array.device_array import DeviceArray, asarray
from hipgemm.formats.elements import F32
from hipgemm.inspect.counters import emulator_counters
from hipgemm.layers.linear import linear, linear_backward
from hipgemm.layers.passes import activation_gradient
from hipgemm.layers.recipe import RECIPES
from hipgemm.runtime import hip as _hip

ROWS, COLUMNS, DEPTH = 512, 512, 32
PRODUCTS = ("gemm", "plain", "split")  # how the names of their kernels begin


def run() -> None:
    """Print a line for each recipe and layout of gates."""
    print(f"linear_backward, {ROWS} x {COLUMNS}, bias, silu: bytes per element of the gradient before it,")
    print("  requested by all kernels but products: formed as dy is read, and by a pass before")
    for recipe in RECIPES:
        for glu in (None, "interleaved", "halves"):
            formed, apart = (sum(found.values()) for found in moved(recipe, glu))
            print(f"  {recipe:9} glu={glu!s:11} {formed:6.2f} {apart:6.2f}  {formed / apart:.2f}")


def moved(recipe: str, glu: str | None) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes per element by kernel: of the layer's gradients, and of those after a pass."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> DeviceArray:
        return asarray(rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16))

    x, w, dy = random(ROWS, DEPTH), random(COLUMNS, DEPTH), random(ROWS, COLUMNS // (2 if glu else 1))
    layer: dict[str, Any] = {"recipe": recipe, "bias": np.zeros(COLUMNS, np.float32)}
    _, saved = linear(x, w, activation="silu", glu=glu, **layer)
    _, plain = linear(x, w, **layer)
    aux = saved.aux
    assert aux is not None

    def apart() -> None:
        made = activation_gradient("linear_backward", dy, aux, F32, 0, "silu", glu)
        linear_backward(made, plain)

    return _bytes(lambda: linear_backward(dy, saved)), _bytes(apart)


def _bytes(call: Callable[[], Any]) -> dict[str, float]:
    call()
    _hip.synchronize()
    emulator_counters(reset=True, addresses=True)
    call()
    _hip.synchronize()
    found: dict[str, float] = {}
    for launch in emulator_counters(reset=True, addresses=False).each:
        if not launch.kernel.startswith(PRODUCTS):
            counted = launch.counters
            size = counted.global_read_bytes + counted.global_written_bytes
            found[launch.kernel] = found.get(launch.kernel, 0) + size / (ROWS * COLUMNS)
    return found
