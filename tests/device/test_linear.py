"""Linear layers, forward and backward: every element of y and of each gradient within its bound."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED
from hipgemm.testing import assert_gemm_close, exact_grid, gamma, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
RECIPES = ("bf16", "fp8", "fp8_block", "mxfp8", "mxfp4")
SHAPES = [(64, 48, 96), (70, 33, 130), (1, 1, 1), (5, 300, 31), (257, 16, 64)]  # M, N, K

every_recipe = pytest.mark.parametrize("recipe", RECIPES)


def host(x: Any) -> Any:
    """The same on the host, pairs and None included."""
    if isinstance(x, tuple):
        return tuple(map(host, x))
    return x.get() if isinstance(x, (hg.DeviceArray, hg.ScaledArray)) else x


def check(y, grads, x, w, dy, *, exact=False, bias=None, **options):
    """Compare y and the gradients with `reference` on the same operands."""
    products = reference.linear_products(host(x), host(w), host(dy), bias=bias, **options)
    got = {"y": host(y), "dx": host(grads.dx), "dw.T": host(grads.dw).T}
    for name, (a, b, epilogue) in products.items():
        out = got[name].reshape(-1, got[name].shape[-1])
        assert_gemm_close(out, a, b, exact=exact, **epilogue)


def inputs(m, n, k, rng, dtype=BF16):
    return (random_matrix(shape, rng, dtype=dtype) for shape in ((m, k), (n, k), (m, n)))


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("shape", SHAPES)
@every_recipe
def test_bounds(recipe, shape, place, rng):
    m, n, k = shape
    x, w, dy = inputs(m, n, k, rng)
    bias, factors = rng.standard_normal(n).astype(F32), np.exp2(rng.integers(-3, 3, n)).astype(F32) * 1.3
    put = hg.asarray if place == "device" else lambda x: x
    for dtypes, epilogue in (
        ((None, None, None), {}),
        ((F32, F16, F32), {"bias": bias, "w_post_scale": factors}),
    ):
        y_dtype, dtype, dw_dtype = dtypes
        y, saved = hg.linear(
            put(x), put(w), recipe=recipe, dtype=y_dtype, **{name: put(v) for name, v in epilogue.items()}
        )
        grads = hg.linear_backward(put(dy), saved, dtype=dtype, dw_dtype=dw_dtype)
        arrays = [y, grads.dx, grads.dw]
        assert all(isinstance(a, hg.DeviceArray if place == "device" else np.ndarray) for a in arrays)
        assert [a.dtype for a in arrays] == [d or BF16 for d in dtypes]
        check(y, grads, x, w, dy, recipe=recipe, **epilogue)
        if epilogue:
            exact = dy.astype(np.float64)
            roundings = 6 * max(1, math.ceil(math.log(m, 64)))  # a tree for each 64 rows
            error = np.abs(host(grads.dbias) - exact.sum(0))
            assert (error <= gamma(roundings) * np.abs(exact).sum(0)).all()
            assert len([*grads]) == 3
        else:
            assert grads.dbias is None
            assert len([*grads]) == 2


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@every_recipe
def test_inputs_of_every_type(recipe, dtype, rng):
    """Operands of a wider type are rounded to the recipe's format, once."""
    x, w, dy = inputs(40, 32, 64, rng, dtype)
    y, saved = hg.linear(hg.asarray(x), hg.asarray(w), recipe=recipe)
    check(y, hg.linear_backward(hg.asarray(dy), saved), x, w, dy, recipe=recipe)


@every_recipe
def test_exact_grids_are_bit_equal(recipe, rng):
    """Small integers are exact in every format, so y and each gradient are, in every bit."""
    m, n, k = 96, 64, 128
    x, w, dy = (exact_grid(shape, rng, dtype=F32, bits=1) for shape in ((m, k), (n, k), (m, n)))
    for array in (x, w, dy):  # one element of each block is 1, and the fp8 scale 2**-8
        array[::32] = 1
        array[:, ::32] = 1
        if recipe == "fp8_block":
            np.fill_diagonal(array, 1.75)  # 448 / 256
            array[-32:, :32] = array[:32, -32:] = 1.75
    amax = 448 / 256 if recipe == "fp8" else None  # eps is negligible
    options: dict[str, Any] = {"hadamard": False} if recipe == "mxfp4" else {}
    if amax:
        options = {"x_amax": amax, "w_amax": amax}
    factors = np.exp2(rng.integers(-2, 3, n)).astype(F32)
    for post in (None, factors):
        y, saved = hg.linear(x, w, recipe=recipe, w_post_scale=post, dtype=F32, **options)
        s = np.ones(n, F32) if post is None else post
        back = {"dy_amax": amax * 4} if amax else {}
        if recipe not in ("bf16", "fp8") and post is not None:
            dy = dy / s  # g is what must be exact in blocks
        grads = hg.linear_backward(dy, saved, dtype=F32, dw_dtype=F32, **back)
        np.testing.assert_array_equal(y, (x @ w.T) * s)
        np.testing.assert_array_equal(grads.dx, (dy * s) @ w)
        np.testing.assert_array_equal(grads.dw, dy.T @ x)


@pytest.mark.parametrize(
    ("size", "factor"),
    [(1e-15, 1e-30), (1e15, 1e30), (2e-23, 1e-19), (1e-3, -3e-38), (1e-20, 1e-37), (9, 3e37)],
)
def test_scales_times_sums_may_leave_float32_before_the_division(size, factor, rng):
    """dw is in range, but not g.T @ x."""
    x, w, dy = (exact_grid(shape, rng, dtype=F32, bits=2) for shape in ((64, 96), (32, 96), (64, 32)))
    x, dy[:, 3] = x * F32.type(size), 0
    factors = np.where(np.arange(32) % 3 == 0, 1.0, rng.uniform(0.5, 1, 32)).astype(F32) * F32.type(factor)
    factors[5] = 0
    q = reference.quantize_fp8(dy * factors, eps=0.0)
    _, saved = hg.linear(reference.quantize_fp8(x, eps=0.0), w, recipe="fp8", w_post_scale=factors)
    got = hg.linear_backward(q, saved, dw_dtype=F32).dw
    raw = reference.matmul(q.T, reference.quantize_fp8(x, eps=0.0))
    with np.errstate(invalid="ignore"):
        want = raw / factors[:, None].astype(np.float64)
    assert np.isnan(got[5]).all()
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=2.0**-149)
    size = np.abs(raw[raw != 0])
    assert ((size < 2.0**-126) | (size >= 2.0**128)).any()


@every_recipe
def test_leading_axes(recipe, rng):
    """Those of x and dy are flattened for dw, whatever their strides."""
    x, w = rng.standard_normal((3, 16, 64)).astype(BF16), rng.standard_normal((48, 64)).astype(BF16)
    dy = rng.standard_normal((3, 16, 48)).astype(BF16)
    flat = [a.reshape(-1, a.shape[-1]) for a in (x, dy)]
    want, saved = hg.linear(flat[0], w, recipe=recipe)
    expected = hg.linear_backward(flat[1], saved)
    swapped = np.ascontiguousarray(dy.swapaxes(0, 1)).swapaxes(0, 1)  # axes that no view merges
    for a, b in ((x, dy), (hg.asarray(x), hg.asarray(dy)), (hg.asarray(x), hg.asarray(swapped))):
        y, saved = hg.linear(a, hg.asarray(w) if a is not x else w, recipe=recipe)
        grads = hg.linear_backward(b, saved)
        assert y.shape == (3, 16, 48)
        assert grads.dx.shape == x.shape
        np.testing.assert_array_equal(host(y).reshape(want.shape), want)
        np.testing.assert_array_equal(host(grads.dx).reshape(expected.dx.shape), expected.dx)
        np.testing.assert_array_equal(host(grads.dw), expected.dw)


@pytest.mark.parametrize("shape", [(0, 4, 32), (4, 0, 32), (4, 4, 0), (0, 0, 0)])
@every_recipe
def test_nothing_to_do(recipe, shape):
    m, n, k = shape
    x, w, dy = np.ones((m, k), F32), np.ones((n, k), F32), np.ones((m, n), F32)
    y, saved = hg.linear(x, w, recipe=recipe, bias=np.ones(n, F32), dtype=F32)
    np.testing.assert_array_equal(y, np.full((m, n), k + 1 if k == 0 else y, F32))
    dx, dw, dbias = hg.linear_backward(dy, saved)
    assert dx.shape == x.shape
    np.testing.assert_array_equal(dw, np.zeros((n, k)) if m == 0 else dw)
    np.testing.assert_array_equal(dbias, np.full(n, m))


# ---- scaling ---------------------------------------------------------------------------------------


def test_delayed_scaling(rng):
    """Each step scales by the amax of the previous one."""
    states = {name: hg.AmaxState() for name in ("x", "w", "dy")}
    used: dict[str, Any] = dict.fromkeys(states)
    for size in (1.0, 8.0, 0.25):
        x, w, dy = (size * a.astype(F32) for a in inputs(48, 32, 64, rng))
        y, saved = hg.linear(
            hg.asarray(x), hg.asarray(w), recipe="fp8", x_amax=states["x"], w_amax=states["w"]
        )
        grads = hg.linear_backward(hg.asarray(dy), saved, dy_amax=states["dy"])
        check(y, grads, x, w, dy, recipe="fp8", amax=(used["x"], used["w"], used["dy"]))
        for name, array in (("x", x), ("w", w), ("dy", dy)):
            states[name].step()
            used[name] = np.abs(array).max()
            assert states[name].current.get() == used[name]


@pytest.mark.parametrize("scaling", ["floor", "rceil", "even"])
@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4"])
def test_rules(recipe, scaling, rng):
    x, w, dy = inputs(48, 32, 64, rng)
    y, saved = hg.linear(x, w, recipe=recipe, scaling=scaling)
    check(y, hg.linear_backward(dy, saved), x, w, dy, recipe=recipe, scaling=scaling)


@pytest.mark.parametrize(
    ("recipe", "format"),
    [("fp8", "fp8_e5m2"), ("fp8_block", "fp8_e5m2"), ("mxfp8", "mxfp8_e5m2"), ("fp8", "fp8_e4m3")],
)
def test_gradients_with_more_range(recipe, format, rng):
    x, w, dy = inputs(48, 32, 64, rng)
    y, saved = hg.linear(x, w, recipe=recipe)
    check(y, hg.linear_backward(dy, saved, format=format), x, w, dy, recipe=recipe, format=format)


@pytest.mark.parametrize("hadamard", [None, True, False])
def test_hadamard_along_the_axes_that_allow_it(hadamard, rng):
    for m, n, k in ((32, 16, 48), (32, 10, 48), (33, 10, 50)):
        x, w, dy = inputs(m, n, k, rng)
        if hadamard and (m % 16 or n % 16 or k % 16):
            with pytest.raises(ValueError, match="N must be a multiple of 16 for the Hadamard transform"):
                hg.linear(x, w, recipe="mxfp4", hadamard=hadamard)
            continue
        y, saved = hg.linear(x, w, recipe="mxfp4", hadamard=hadamard)
        assert saved.w.hadamard == (hadamard is not False and n % 16 == 0)
        assert saved.x.hadamard == (hadamard is not False and m % 16 == 0)
        check(y, hg.linear_backward(dy, saved), x, w, dy, recipe="mxfp4", hadamard=hadamard)


# ---- quantized operands ----------------------------------------------------------------------------

QUANTIZERS = {
    "fp8": hg.quantize_fp8,
    "fp8_block": partial(hg.quantize_fp8, block=(1, 128)),
    "mxfp8": hg.quantize_mxfp8,
    "mxfp4": hg.quantize_mxfp4,
}


@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_quantized_operands(recipe, place, rng):
    """Weights and gradients (from a producer) in the format already: multiplied without rounding again."""
    put = hg.asarray if place == "device" else lambda x: x
    x, w, dy = (put(a) for a in inputs(48, 32, 64, rng))
    quantize = QUANTIZERS[recipe]
    q = {"x": quantize(x), "w": quantize(w), "dy": quantize(dy)}
    for names in (("w",), ("dy",), ("x", "w", "dy")):
        a, b, c = (q[name] if name in names else v for name, v in (("x", x), ("w", w), ("dy", dy)))
        y, saved = hg.linear(a, b, recipe=recipe)
        check(y, hg.linear_backward(c, saved), a, b, c, recipe=recipe)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1"])
def test_pairs(format, rng):
    """The output of `quantize_both` is used unchanged: no second rounding."""
    recipe = format.split("_")[0]
    x, w, dy = (hg.quantize_both(hg.asarray(a), format) for a in inputs(48, 32, 64, rng))
    hg.reset_usage()
    y, saved = hg.linear(x, w, recipe=recipe)
    grads = hg.linear_backward(dy, saved)
    assert not [name for name in hg.usage().kernels if "quantize" in name]
    assert saved.x is x[1]
    check(y, grads, x, w, dy, recipe=recipe)


def test_weights_and_pairs_in_blocks_of_fp8(rng):
    """Blocks that serve both axes are used for both; others are made from bfloat16."""
    x, w, dy = inputs(150, 140, 260, rng)
    rows, squares = (partial(hg.quantize_fp8, block=block) for block in ((1, 128), (128, 128)))
    pair = rows(dy), rows(dy.T).T
    for a, b, c in (
        (rows(x), squares(w), dy),
        (squares(x), rows(w), pair),
        ((rows(x), rows(x.T).T), squares(w), rows(dy.T).T),
        ((rows(x), rows(x.T).T), (rows(w), rows(w.T).T), squares(dy)),
    ):
        y, saved = hg.linear(a, b, recipe="fp8_block")
        check(y, hg.linear_backward(c, saved), a, b, c, recipe="fp8_block")


def test_columns_alone(rng):
    """A gradient blocked for dw only: it is dequantized and quantized again along its rows."""
    x, w, dy = inputs(48, 32, 64, rng)
    c = hg.quantize_mxfp8(dy, axis=0)
    y, saved = hg.linear(x, w, recipe="mxfp8")
    check(y, hg.linear_backward(c, saved), x, w, c, recipe="mxfp8")


@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_a_quantized_gradient_has_the_factors_in_it(recipe, rng):
    x, w, dy = inputs(48, 32, 64, rng)
    factors = np.linspace(0.5, 3, 32, dtype=F32)
    g = QUANTIZERS[recipe](dy)
    y, saved = hg.linear(x, w, recipe=recipe, w_post_scale=factors, bias=np.zeros(32, F32))
    grads = hg.linear_backward(g, saved, dw_dtype=F32)
    check(y, grads, x, w, g, recipe=recipe, w_post_scale=factors, bias=np.zeros(32, F32))
    want = reference.dequantize(g).astype(np.float64).sum(0) / factors
    np.testing.assert_allclose(grads.dbias, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_quantized_operands_of_three_axes(recipe, rng):
    x, w = rng.standard_normal((2, 24, 64)).astype(F32), rng.standard_normal((32, 64)).astype(F32)
    dy = rng.standard_normal((2, 24, 32)).astype(F32)
    quantize = QUANTIZERS[recipe]
    y, saved = hg.linear(quantize(hg.asarray(x)), w_q := quantize(hg.asarray(w)), recipe=recipe)
    grads = hg.linear_backward(quantize(hg.asarray(dy)), saved)
    assert y.shape == (2, 24, 32)
    flat = [quantize(a.reshape(48, -1)) for a in (x, dy)]
    check(y, grads, flat[0], w_q, flat[1], recipe=recipe)


# ---- work and memory -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recipe", "passes"),
    [
        ("bf16", {}),
        ("fp8", {"quantize_fp8": 1}),
        ("fp8_block", {"quantize_fp8_blocks": 3}),  # no kernel for both axes at once; w serves both
        ("mxfp8", {"quantize_mxfp8": 3}),
        ("mxfp4", {"quantize_mxfp4": 1}),
    ],
)
def test_dy_is_quantized_once_for_both_products(recipe, passes, rng):
    """mxfp8 requantizes x and w too; mxfp4 did that in the forward pass."""
    x, w, dy = (hg.asarray(a) for a in inputs(64, 64, 64, rng))
    _, saved = hg.linear(x, w, recipe=recipe)
    hg.reset_usage()
    hg.linear_backward(dy, saved)
    kernels = hg.usage().kernels
    assert {name: n for name, n in kernels.items() if name.startswith("quantize")} == passes
    assert sum(n for name, n in kernels.items() if "gemm" in name and not name.endswith("_scale")) == 2


@every_recipe
def test_nothing_is_copied(recipe, rng):
    """Every product reads its operands in place, transposed ones too."""
    x, w, dy = (hg.asarray(a) for a in inputs(72, 48, 96, rng))
    factors = np.linspace(1, 2, 48, dtype=F32)
    _, saved = hg.linear(x, w, recipe=recipe, w_post_scale=factors, bias=factors)
    hg.linear_backward(dy, saved)
    assert not hg.usage().copies


@pytest.mark.parametrize(
    ("recipe", "x_bytes", "w_bytes"),
    [
        ("bf16", 64 * 96 * 2, 48 * 96 * 2),
        ("fp8", 64 * 96 + 4, 48 * 96 + 4),
        ("fp8_block", 64 * 96 + 64 * 4, 48 * 96 + 4),
        ("mxfp8", 64 * 96 + 64 * 3, 48 * 96 + 48 * 3),
        ("mxfp4", 64 * 96 // 2 + 2 * 96, 48 * 96 // 2 + 2 * 96),
    ],
)
def test_saved_reports_its_bytes(recipe, x_bytes, w_bytes, rng):
    x, w, _ = inputs(64, 48, 96, rng)
    _, saved = hg.linear(x, w, recipe=recipe)
    assert saved.bytes == {"x": x_bytes, "w": w_bytes, "w_post_scale": 0}
    assert saved.nbytes == x_bytes + w_bytes
    _, saved = hg.linear(x, w, recipe=recipe, w_post_scale=np.ones(48, F32))
    assert saved.nbytes == x_bytes + w_bytes + 4 * 48


@every_recipe
def test_saved_serves_again_and_memory_comes_back(recipe, rng, free_bytes):
    x, w, dy = (hg.asarray(a) for a in inputs(64, 48, 96, rng))

    def step():
        y, saved = hg.linear(x, w, recipe=recipe, bias=np.ones(48, F32), w_post_scale=np.ones(48, F32))
        one, two = (hg.linear_backward(dy, saved) for _ in range(2))
        np.testing.assert_array_equal(one.dw.get(), two.dw.get())
        with pytest.raises(ValueError, match=r"dy\.shape must be"):
            hg.linear_backward(dy.T, saved)
        return y

    step().get()
    before = free_bytes()
    for _ in range(20):
        step()
    assert free_bytes() == before


@every_recipe
def test_on_a_stream(recipe, rng, streams):
    x, w, dy = (hg.asarray(a) for a in inputs(64, 48, 96, rng))
    want, saved = hg.linear(x, w, recipe=recipe)
    expected = hg.linear_backward(dy, saved)
    stream = streams()
    y, saved = hg.linear(x, w, recipe=recipe, stream=stream)
    grads = hg.linear_backward(dy, saved, stream=stream)
    for got, right in ((y, want), (grads.dx, expected.dx), (grads.dw, expected.dw)):
        np.testing.assert_array_equal(got.get(), right.get())


def test_a_nan_stays_where_the_recipe_keeps_it(rng):
    x, w, dy = inputs(64, 48, 96, rng)
    dy[5, 7] = np.nan
    for recipe in RECIPES:
        _, saved = hg.linear(x, w, recipe=recipe)
        dx, dw = hg.linear_backward(dy, saved)
        assert np.isnan(dx[5]).all()
        assert np.isnan(dw[7]).all()
        rows = np.isnan(dx.astype(F32)).all(1).sum()
        assert rows == (64 if recipe == "fp8" else 1)  # one scale for all mixes the rows


# ---- against finite differences --------------------------------------------------------------------


def real(q):
    """An operand's values in float64, after the inverse Hadamard transform."""
    x = reference.values(q)
    if isinstance(q, hg.ScaledArray) and q.hadamard:
        x = np.moveaxis(reference.hadamard(np.moveaxis(x, q.axis, -1)), -1, q.axis)
    return x


def differences(loss, x):
    """Central differences in float64; exact for a loss that is quadratic, but for rounding."""
    grad = np.empty_like(x)
    for i in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[i] = 2.0**-8
        grad[i] = (loss(x + step) - loss(x - step)) / 2.0**-7
    return grad


@pytest.mark.parametrize("scaled", [False, True])
@every_recipe
def test_finite_differences(recipe, scaled, rng):
    """The gradients of a loss, with quantizers that change nothing (straight-through).

    How far they may lie apart follows from what was quantized: ``|dg| |w| + |g| |dw| + |dg| |dw|`` for dx,
    where d is the error of quantizing once more or at all, and from rounding.
    """
    m, n, k = 16, 16, 32
    x, w, target = (rng.standard_normal(shape).astype(F32) for shape in ((m, k), (n, k), (m, n)))
    factors = np.exp2(rng.uniform(-1, 1, n)).astype(F32) if scaled else np.ones(n, F32)
    options = {"w_post_scale": factors, "bias": np.full(n, 0.5, F32)}
    y, saved = hg.linear(x, w, recipe=recipe, dtype=F32, **options)
    forward = reference.linear_products(x, w, np.zeros((m, n), F32), recipe=recipe, **options)["y"]
    point = {"x": real(forward[0]), "w": real(forward[1]).T * factors[:, None], "b": np.full(n, 0.5)}

    def loss(**moved):
        at = {**point, **moved}
        return 0.5 * np.sum((at["x"] @ at["w"].T + at["b"] - target) ** 2)

    dy = (y.astype(np.float64) - target).astype(F32)
    grads = hg.linear_backward(dy, saved, dtype=F32, dw_dtype=F32)
    products = reference.linear_products(x, w, dy, recipe=recipe, **options)
    g = dy.astype(np.float64) * factors
    rounding = 2.0**-18 * (1 + np.abs(g))  # of y and dy, before they are quantized
    (dx_g, dx_w, _), (dw_x, dw_g, _) = products["dx"], products["dw.T"]

    def bound(a, near_a, b, near_b):
        da, db = np.abs(near_a - a), np.abs(near_b - b)
        return (np.abs(a) @ db + da @ np.abs(b) + da @ db) + 2.0**-18 * (np.abs(a) @ np.abs(b))

    w_codes = point["w"] / factors[:, None]
    want = differences(lambda v: loss(x=v), point["x"])
    limit = bound(g, real(dx_g), w_codes, real(dx_w)) + rounding @ np.abs(w_codes)
    assert (np.abs(grads.dx - want) <= limit).all()
    share = {"bf16": 0.01, "mxfp4": 1}.get(recipe, 0.1)
    assert np.median(limit) < share * np.sqrt(np.mean(want**2)), "a bound that says something"

    want = differences(lambda v: loss(w=v), point["w"])
    limit = (bound(point["x"].T, real(dw_x), g, real(dw_g)) + np.abs(point["x"].T) @ rounding).T
    assert (np.abs(grads.dw - want) <= limit / factors[:, None]).all()

    want = differences(lambda v: loss(b=v), point["b"])
    np.testing.assert_allclose(grads.dbias, want, rtol=1e-5, atol=1e-4)


# By the type of the elements: times an element, and times its scale.
MOST_CHANGED = {
    "e4m3": (2.0**-4, 2.0**-10),
    "e5m2": (2.0**-3, 2.0**-17),
    "e2m3": (2.0**-4, 2.0**-4),
    "e3m2": (2.0**-3, 2.0**-5),
    "e2m1": (2.0**-2, 2.0**-2),
}


@pytest.mark.parametrize("format", QUANTIZED)
def test_what_quantizing_may_change(format, rng):
    """The bounds of docs/trust/bounds.md on each element, in units of its block's scale."""
    x = (rng.standard_normal((256, 64)) * np.exp2(rng.integers(-20, 20, (256, 64)))).astype(F32)
    quantize = getattr(reference, f"quantize_{format.split('_')[0]}")
    q = quantize(x, **({"hadamard": False} if format == "mxfp4_e2m1" else {"format": format}))
    scale = np.repeat(np.asarray(q.scale, np.float64), 32, axis=1) if q.scale.ndim else float(q.scale)
    error = np.abs(reference.values(q) - x)
    relative, least = MOST_CHANGED[format.split("_")[1]]
    limit = np.maximum(np.abs(x) * relative, scale * least)
    if format.startswith("fp8"):
        limit *= 1 + 2.0**-20  # its scale is no power of two, and rounded
    assert (error <= limit).all()
    assert (error > limit / 2).any()
