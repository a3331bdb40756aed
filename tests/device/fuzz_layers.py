"""Random calls of quantizers and linear layers, generated from a seed and checked."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import fuzz
import ml_dtypes
import numpy as np
from placed import Placed, place, snug
from test_quantize import assert_bits, assert_same, wide
from test_stages import WAYS, activated, assert_within, rounded

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import FORMATS, QUANTIZED, SCALE_RULES
from hipgemm.layers.passes import activation_gradient
from hipgemm.testing import assert_gemm_close, gamma, gemm_bound, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
TYPES = (BF16, F16, F32)
EXTENTS = (1, 1, 2, 5, 16, 17, 31, 32, 33, 63, 64, 65, 96, 100, 128, 160, 255)


def some(rng: np.random.Generator, *among: Any) -> Any:
    """Choose one of several objects."""
    return among[rng.integers(len(among))]


def brought(x: Placed, where: str) -> Any:
    """The array on the host, or on the device in the pool or in an exact allocation."""
    return x.host if where == "host" else x.device(where == "exactly")


def random_rounding(rng: np.random.Generator) -> dict[str, Any]:
    """The options of a quantizer for rounding: to nearest, or stochastic with a seed."""
    return {} if rng.random() < 0.6 else {"rounding": "stochastic", "seed": int(rng.integers(2**63))}


# ---- quantizers ------------------------------------------------------------------------------------


@dataclass
class Quantizing:
    """One call of a quantizer."""

    seed: int
    function: str
    x: Placed
    options: dict[str, Any]
    where: str
    back: np.dtype[Any]
    amax: float | None = None
    amax_as: str = "float"

    def __str__(self) -> str:
        x = self.x
        amax = "" if self.amax is None else f", amax {self.amax} as {self.amax_as}"
        return (
            f"case {self.seed}: {self.function} of {x.dtype}{list(x.shape)} strides {list(x.strides)} "
            f"at {x.offset}, {self.where}, {self.options}{amax}; back to {self.back}"
        )


def make_quantizing(seed: int) -> Quantizing:
    rng = np.random.default_rng(seed)
    several = "fp8", "mxfp8"  # more often
    function = some(
        rng, *several, *several, "blocks", "mxfp6", "mxfp4", "both", "transpose", "transpose_mxfp6"
    )
    matrix = function == "both" or "transpose" in function
    ndim = 2 if matrix else int(rng.choice([1, 2, 3, 4], p=[0.1, 0.5, 0.3, 0.1]))
    ndim = max(ndim, 2) if function == "blocks" else ndim
    while True:
        shape = tuple(int(n) for n in rng.choice((*EXTENTS, 0), ndim))
        if math.prod(shape) <= 1 << 15:
            break
    x = place(rng, shape, some(rng, *TYPES))
    x.host[...] = wide(shape, rng, x.dtype) if rng.integers(2) else rng.standard_normal(shape)
    if x.host.size and rng.random() < 0.2:
        for _ in range(3):
            x.host[tuple(int(rng.integers(n)) for n in shape)] = some(rng, np.nan, np.inf, -np.inf)
    options: dict[str, Any] = {}
    axis = int(rng.integers(-ndim, ndim))
    if function in ("fp8", "mxfp8", "mxfp6", "mxfp4"):
        options["axis"] = axis
    if function == "blocks":
        options = {"block": some(rng, (1, 128), (128, 128))}
    if function in ("fp8", "blocks"):
        options |= {"format": some(rng, "fp8_e4m3", "fp8_e5m2"), "eps": some(rng, 0.0, 1e-8, 1e-8)}
        if function == "fp8":
            options["axis"] = some(rng, None, axis)
    else:
        options["scaling"] = some(rng, *SCALE_RULES)
    if function in ("mxfp8", "transpose"):
        options["format"] = some(rng, "mxfp8_e4m3", "mxfp8_e5m2")
    if function.endswith("mxfp6"):
        options["format"] = some(rng, "mxfp6_e2m3", "mxfp6_e3m2")
    if function == "both":
        options["format"] = some(rng, *(name for name, form in QUANTIZED.items() if form.block))
    if function == "mxfp4" or options.get("format") == "mxfp4_e2m1":
        along = shape if function == "both" else (shape[axis],)
        options["hadamard"] = not any(n % 16 for n in along) and bool(rng.integers(2))
        if options["hadamard"] and rng.integers(2):
            options["signs"] = int(rng.integers(2**63))
    options |= random_rounding(rng)
    made = Quantizing(seed, function, x, options, some(rng, "host", "device", "exactly"), some(rng, *TYPES))
    if function == "fp8" and rng.integers(2):
        made.amax = float(np.float32(rng.uniform(0, 4)))
        made.amax_as = some(rng, "float", "array", "device", *(["state"] if options["axis"] is None else []))
    return made


def run_quantizing(case: Quantizing) -> None:
    """Run a case twice; the result, also dequantized, must equal the reference in every bit."""
    name = {
        "both": "quantize_both",
        "blocks": "quantize_fp8",
        "transpose": "transpose_quantize_mxfp8",
        "transpose_mxfp6": "transpose_quantize_mxfp6",
    }.get(case.function, f"quantize_{case.function}")
    x, options = brought(case.x, case.where), case.options
    expected = {} if case.amax is None else {"amax": case.amax}
    want = getattr(reference, name)(np.ascontiguousarray(case.x.host), **expected, **options)
    for _ in range(2):
        given: dict[str, Any] = {}
        if case.amax is not None:
            makers = {
                "float": float,
                "array": lambda v: np.array(v, F32),
                "device": lambda v: hg.asarray(np.array(v, F32)),
                "state": hg.AmaxState,
            }
            given["amax"] = makers[case.amax_as](case.amax)
        got = getattr(hg, name)(x, **given, **options)
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        for q, expected_q in pairs:
            assert_same(q.get(), expected_q)
            back = hg.dequantize(q, dtype=case.back)
            assert_bits(
                back if isinstance(back, np.ndarray) else back.get(),
                reference.dequantize(expected_q, dtype=case.back),
            )
        if case.amax_as == "state":
            top = np.max(np.abs(case.x.host.astype(F32)), initial=0)
            np.testing.assert_array_equal(given["amax"].next.get(), top)


# ---- dequantization --------------------------------------------------------------------------------------


def make_back(seed: int) -> fuzz.Case:
    """The first product from a seed on that has a quantized operand."""
    return next(case for case in map(fuzz.make, range(8 * seed, 8 * seed + 1000)) if case.a.scale)


def run_back(case: fuzz.Case) -> None:
    """Dequantize the operands of a product, from the host and from the device."""
    dtype = case.dtype or BF16
    for q in (case.a, case.b):
        with np.errstate(invalid="ignore", over="ignore"):
            want = reference.dequantize(q.host, dtype=dtype)
        assert_bits(hg.dequantize(q.host, dtype=dtype), want)
        assert_bits(hg.dequantize(q.device(case.exactly), dtype=dtype).get(), want)


# ---- linear layers ---------------------------------------------------------------------------------


@dataclass
class Layering:
    """One linear layer, forward and backward."""

    seed: int
    recipe: str
    x: Placed
    w: Placed
    dy: Placed
    where: str
    dtypes: tuple[Any, Any, Any]
    vectors: dict[str, np.ndarray]
    options: dict[str, Any] = field(default_factory=dict)
    format: str | None = None
    rounding: dict[str, Any] = field(default_factory=dict)  # of dy
    stages: tuple[str | None, str | None] = (None, None)  # activation, glu
    old: Placed | None = None  # what dw is added to

    def __str__(self) -> str:
        def text(x: Placed) -> str:
            return f"{x.dtype}{list(x.shape)} strides {list(x.strides)} at {x.offset}"

        return (
            f"case {self.seed}: linear {self.recipe} of {text(self.x)}, {text(self.w)}, dy {text(self.dy)}; "
            f"{self.where}, dtypes {self.dtypes}, {[*self.vectors]}, {self.options}, {self.format}, "
            f"{self.rounding}, {self.stages}, dw added to {'none' if self.old is None else text(self.old)}"
        )


def make_layering(seed: int) -> Layering:
    rng = np.random.default_rng(seed)
    recipe = some(rng, "bf16", "fp8", "fp8_block", "mxfp8", "mxfp4")
    lead = tuple(int(n) for n in rng.choice([1, 2, 3], rng.choice([0, 1, 2], p=[0.6, 0.3, 0.1])))
    while True:
        m, n, k = (int(v) for v in rng.choice((*EXTENTS, 0), 3))
        if m * n * k * math.prod(lead) <= 1 << 20:
            break
    made = []
    for shape in ((*lead, m, k), (n, k), (*lead, m, n)):
        x = place(rng, shape, some(rng, *TYPES))
        x.host[...] = random_matrix(shape, rng, dtype=x.dtype)
        made.append(x)
    vectors = {}
    if rng.integers(2):
        vectors["bias"] = rng.standard_normal(n).astype(some(rng, *TYPES))
    if rng.integers(2):
        vectors["w_post_scale"] = np.exp2(rng.uniform(-3, 3, n)).astype(F32)
    case = Layering(
        *(seed, recipe, *made, some(rng, "host", "device", "exactly")),
        (some(rng, None, *TYPES), some(rng, None, *TYPES), some(rng, None, *TYPES)),
        vectors,
    )
    if recipe.startswith("mx") and rng.integers(2):
        case.options["scaling"] = some(rng, *SCALE_RULES)
    if recipe == "mxfp4":
        case.options["hadamard"] = some(rng, None, False)
    kind = recipe.removesuffix("_block")
    if kind in ("fp8", "mxfp8"):
        case.format = some(rng, None, f"{kind}_e4m3", f"{kind}_e5m2")
    if recipe != "bf16":
        case.rounding = random_rounding(rng)
    if rng.integers(2):
        case.stages = some(rng, *(way for way in WAYS[1:] if n % 2 == 0 or not way[1]))
    if case.stages[1]:
        case.dy = place(rng, (*lead, m, n // 2), case.dy.dtype)
        case.dy.host[...] = random_matrix(case.dy.shape, rng, dtype=case.dy.dtype)
    if rng.integers(2):
        case.old = place(rng, (n, k), some(rng, *TYPES), output=True)
        case.old.host[...] = random_matrix((n, k), rng, dtype=case.old.dtype)
    return case


def assert_activated(
    out: np.ndarray, t: np.ndarray, slack: np.ndarray, activation: str | None, glu: str | None
) -> None:
    """Check the activation of t, which is known up to `slack`; a result may be out of its type's range."""
    if not out.size:
        return
    want, bound = activated(t, slack, activation, glu)
    bound, most = rounded(bound, want, out.dtype), float(ml_dtypes.finfo(out.dtype).max)
    fits = abs(want) + bound <= most
    if fits.any():
        assert_within(out[fits], want[fits], bound[fits])
    assert (abs(out[~fits]) >= most * 0.99).all()


def run_layering(case: Layering) -> None:
    """Run a case; y and each gradient must be inside the bounds of their products."""
    x, w, dy = (brought(v, case.where) for v in (case.x, case.w, case.dy))
    up = {"host": np.asarray, "device": hg.asarray, "exactly": snug}[case.where]
    vectors = {n: up(v) if v.size else v for n, v in case.vectors.items()}
    dtype, dx_dtype, dw_dtype = case.dtypes
    activation, glu = case.stages
    options = {"activation": activation, "glu": glu, **case.options}
    y, saved = hg.linear(x, w, recipe=case.recipe, dtype=dtype, **vectors, **options)
    of_dy = {"format": case.format, **case.rounding}
    grads = hg.linear_backward(dy, saved, dtype=dx_dtype, dw_dtype=dw_dtype, **of_dy)
    if case.old is not None:
        dw = brought(case.old, case.where)
        dw = dw.copy() if isinstance(dw, np.ndarray) else dw
        exact = hg.linear_backward(dy, saved, dw_dtype=F32, **of_dy).dw
        hg.linear_backward(dy, saved, dw=dw, accumulate=True, **of_dy)
        dw, exact = (v if isinstance(v, np.ndarray) else v.get() for v in (dw, exact))
        with np.errstate(over="ignore"):
            want = (exact + case.old.host.astype(F32)).astype(dw.dtype)
        np.testing.assert_array_equal(dw, want)
    got = {"y": y, "dx": grads.dx, "dw.T": grads.dw}
    got = {name: v if isinstance(v, np.ndarray) else v.get() for name, v in got.items()}
    got["dw.T"] = got["dw.T"].T
    flat = [
        np.ascontiguousarray(v.host).reshape(math.prod(v.shape[:-1]), v.shape[-1])
        for v in (case.x, case.w, case.dy)
    ]
    if saved.aux is not None:  # from here on the gradient before the activation
        narrow = case.recipe == "bf16" and not case.vectors
        to = FORMATS["bf16" if narrow else "f32"]
        flat[2] = activation_gradient("test", hg.asarray(flat[2]), saved.aux, to, 0, activation, glu).get()
    options = {**case.options, **of_dy, **case.vectors}
    products = reference.linear_products(*flat, recipe=case.recipe, **options)
    if saved.aux is not None:
        a, b, epilogue = products.pop("y")
        t = reference.matmul(a, b, **epilogue)
        slack = gemm_bound(a, b, dtype=F32, **epilogue)
        assert_activated(got["y"].reshape(len(t), -1) if t.size else got["y"], t, slack, activation, glu)
    for name, (a, b, epilogue) in products.items():
        out = got[name].reshape(a.shape[0], b.shape[1])
        assert_gemm_close(out, a, b, **epilogue)
    if grads.dbias is not None:
        dbias = grads.dbias if isinstance(grads.dbias, np.ndarray) else grads.dbias.get()
        rows = flat[2].astype(np.float64)
        roundings = 6 * max(1, math.ceil(math.log(max(1, len(rows)), 64)))  # a tree for each 64 rows
        error = np.abs(dbias - rows.sum(0))
        assert (error <= gamma(roundings) * np.abs(rows).sum(0)).all()
