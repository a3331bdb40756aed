"""Random layers of experts, forward and backward, generated from a seed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz_groups import part
from fuzz_layers import EXTENTS, TYPES, brought, random_rounding, some
from placed import Placed, place
from test_grouped import assert_wgrad, sections

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import SCALE_RULES
from hipgemm.testing import assert_gemm_close, random_matrix


@dataclass
class Experts:
    """A linear layer for each group of rows."""

    seed: int
    recipe: str
    x: Placed
    w: Placed
    dy: Placed
    offsets: np.ndarray
    there: bool  # offsets on the device
    where: str
    dtypes: tuple[Any, Any, Any]
    options: dict[str, Any]
    format: str | None
    rounding: dict[str, Any]  # of dy

    def __str__(self) -> str:
        def text(x: Placed) -> str:
            return f"{x.dtype}{list(x.shape)} strides {list(x.strides)} at {x.offset}"

        return (
            f"case {self.seed}: grouped_linear {self.recipe} of {text(self.x)}, {text(self.w)}, "
            f"dy {text(self.dy)}; offsets {self.offsets.tolist()} {'there' if self.there else 'here'}, "
            f"{self.where}, {self.dtypes}, {self.options}, {self.format}, {self.rounding}"
        )


def make(seed: int) -> Experts:
    """Make the case of a seed."""
    rng = np.random.default_rng(seed)
    recipe = some(rng, "bf16", "fp8", "fp8_block", "mxfp8", "mxfp4")
    groups = some(rng, 1, 2, 3, 5, 20)
    m = int(rng.choice((*EXTENTS, 300)))
    n, k = (int(v) for v in rng.choice(EXTENTS[:14], 2))
    made = []
    for shape in ((m, k), (groups, n, k), (m, n)):
        x = place(rng, shape, some(rng, *TYPES))
        x.host[...] = random_matrix(shape, rng, dtype=x.dtype)
        made.append(x)
    offsets = np.concatenate(([0], np.sort(rng.integers(0, m + 1, groups)))).astype(np.int32)
    options: dict[str, Any] = {}
    if recipe.startswith("mx") and rng.integers(2):
        options["scaling"] = some(rng, *SCALE_RULES)
    if recipe == "mxfp4":
        options["hadamard"] = some(rng, None, False)
    kind = recipe.removesuffix("_block")
    format = some(rng, None, f"{kind}_e4m3", f"{kind}_e5m2") if kind in ("fp8", "mxfp8") else None
    dtypes = (some(rng, None, *TYPES), some(rng, None, *TYPES), some(rng, None, *TYPES))
    where = some(rng, "host", "device", "exactly")
    there = where != "host" and bool(rng.integers(2))
    rounding = random_rounding(rng) if recipe != "bf16" else {}
    return Experts(seed, recipe, *made, offsets, there, where, dtypes, options, format, rounding)


def run(case: Experts) -> None:
    """Run a case; y and each gradient must be inside the bounds of their products, group by group."""
    x, w, dy = (brought(v, case.where) for v in (case.x, case.w, case.dy))
    o = case.offsets
    dtype, dx_dtype, dw_dtype = case.dtypes
    offsets = hg.asarray(o) if case.there else o
    y, saved = hg.grouped_linear(x, w, offsets, recipe=case.recipe, dtype=dtype, **case.options)
    of_dy = {"format": case.format, **case.rounding}
    grads = hg.grouped_linear_backward(dy, saved, dtype=dx_dtype, dw_dtype=dw_dtype, **of_dy)
    y, dx, dw = (v if isinstance(v, np.ndarray) else v.get() for v in (y, grads.dx, grads.dw))
    host = [np.ascontiguousarray(v.host) for v in (case.x, case.w, case.dy)]
    options = {**case.options, **of_dy}
    products = reference.grouped_linear_products(*host, o, recipe=case.recipe, **options)
    for got, name in ((y, "y"), (dx, "dx")):
        a, b = products[name]
        for g, rows in enumerate(sections(o)):
            assert_gemm_close(got[rows], part(a, rows), part(b, g))
        assert not got[int(o[-1]) :].astype(np.float32).any()
    assert_wgrad(dw, *products["dw"], o)
