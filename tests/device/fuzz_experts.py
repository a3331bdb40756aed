"""Random layers of experts, forward and backward, generated from a seed and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from fuzz_groups import part
from fuzz_layers import EXTENTS, TYPES, assert_activated, brought, random_rounding, some
from placed import Placed, place
from test_grouped import assert_wgrad, sections
from test_stages import WAYS

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import FORMATS, SCALE_RULES
from hipgemm.layers.passes import activation_gradient
from hipgemm.testing import assert_gemm_close, gamma, gemm_bound, random_matrix


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
    bias: np.ndarray | None = None
    stages: tuple[str | None, str | None] = (None, None)  # activation, glu

    def __str__(self) -> str:
        def text(x: Placed) -> str:
            return f"{x.dtype}{list(x.shape)} strides {list(x.strides)} at {x.offset}"

        return (
            f"case {self.seed}: grouped_linear {self.recipe} of {text(self.x)}, {text(self.w)}, "
            f"dy {text(self.dy)}; offsets {self.offsets.tolist()} {'there' if self.there else 'here'}, "
            f"{self.where}, {self.dtypes}, {self.options}, {self.format}, {self.rounding}, "
            f"bias {None if self.bias is None else self.bias.shape}, {self.stages}"
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
    case = Experts(seed, recipe, *made, offsets, there, where, dtypes, options, format, rounding)
    if rng.integers(2):
        case.bias = rng.standard_normal(some(rng, (n,), (groups, n))).astype(some(rng, *TYPES))
    if rng.integers(2):
        case.stages = some(rng, *(way for way in WAYS[1:] if n % 2 == 0 or not way[1]))
    if case.stages[1]:
        case.dy = place(rng, (m, n // 2), case.dy.dtype)
        case.dy.host[...] = random_matrix(case.dy.shape, rng, dtype=case.dy.dtype)
    return case


def run(case: Experts) -> None:
    """Run a case; y and each gradient must be inside the bounds of their products, group by group."""
    x, w, dy = (brought(v, case.where) for v in (case.x, case.w, case.dy))
    o = case.offsets
    dtype, dx_dtype, dw_dtype = case.dtypes
    offsets = hg.asarray(o) if case.there else o
    activation, glu = case.stages
    bias = hg.asarray(case.bias) if case.there and case.bias is not None else case.bias
    options = {"bias": bias, "activation": activation, "glu": glu, **case.options}
    y, saved = hg.grouped_linear(x, w, offsets, recipe=case.recipe, dtype=dtype, **options)
    of_dy = {"format": case.format, **case.rounding}
    grads = hg.grouped_linear_backward(dy, saved, dtype=dx_dtype, dw_dtype=dw_dtype, **of_dy)
    y, dx, dw = (v if isinstance(v, np.ndarray) else v.get() for v in (y, grads.dx, grads.dw))
    host = [np.ascontiguousarray(v.host) for v in (case.x, case.w, case.dy)]
    if saved.aux is not None:  # from here on the gradient before the activation
        to = FORMATS["bf16" if case.recipe == "bf16" and case.bias is None else "f32"]
        host[2] = activation_gradient("test", hg.asarray(host[2]), saved.aux, to, 0, activation, glu).get()
    options = {**case.options, **of_dy}
    products = reference.grouped_linear_products(*host, o, recipe=case.recipe, **options)
    for got, name in ((y, "y"), (dx, "dx")):
        a, b = products[name]
        for g, rows in enumerate(sections(o)):
            added = (
                None
                if case.bias is None or name != "y"
                else case.bias[g]
                if case.bias.ndim == 2
                else case.bias
            )
            left, right = part(a, rows), part(b, g)
            if name == "y" and saved.aux is not None:
                t = reference.matmul(left, right, bias=added)
                slack = gemm_bound(left, right, dtype=np.float32, bias=added)
                assert_activated(got[rows], t, slack, activation, glu)
            else:
                assert_gemm_close(got[rows], left, right, bias=added)
        assert not got[int(o[-1]) :].astype(np.float32).any()
    assert_wgrad(dw, *products["dw"], o)
    if case.bias is None:
        assert grads.dbias is None
        return
    dbias = grads.dbias if isinstance(grads.dbias, np.ndarray) else grads.dbias.get()
    dt = host[2].astype(np.float64)
    sums, sizes = (np.stack([v[rows].sum(0) for rows in sections(o)]) for v in (dt, abs(dt)))
    roundings = 18 + -(-len(dt) // 64)
    if case.bias.ndim == 1:
        sums, sizes, roundings = sums.sum(0), sizes.sum(0), roundings + 6
    assert (abs(dbias - sums) <= gamma(roundings) * sizes).all()
