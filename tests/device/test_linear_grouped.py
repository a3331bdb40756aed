"""Linear layers of experts: every group's products within their bounds of float64 on the same operands."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.scaled import group_blocks
from hipgemm.layers import elementwise, passes
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
pytestmark = pytest.mark.matrix
RECIPES = ("bf16", "fp8", "fp8_block", "mxfp8", "mxfp4")
LENGTHS = [[33, 95], [0, 64, 0, 32, 1], [128], [17, 0, 0, 50, 31, 3]]
TAIL = 9  # rows after the last group

every_recipe = pytest.mark.parametrize("recipe", RECIPES)


def host(x: Any) -> Any:
    return x.get() if isinstance(x, (hg.DeviceArray, hg.ScaledArray)) else x


def part(q, rows, group, count):
    """The rows of one group, or its weights."""
    if not isinstance(q, hg.ScaledArray):
        return q[group] if q.ndim == 3 else q[rows]
    scale = q.scale
    if q.ndim == 3:
        scale = scale if scale.shape in ((), (1,)) else scale[group]
        data = q.data[group]
    else:
        data = q.data[rows]
        if q.group_offsets is not None:
            blocks = group_blocks(q.group_offsets)
            scale = scale[blocks[group] : blocks[group + 1]]
        elif q.in_blocks:
            scale = scale[rows]
    if q.block is not None:
        return hg.ScaledArray(data, scale, q.format, block=q.block)
    return hg.ScaledArray(data, scale, q.format, axis=q.axis, hadamard=q.hadamard)


def check(y, grads, x, w, dy, offsets, **options):
    products = reference.grouped_linear_products(host(x), host(w), host(dy), offsets, **options)
    results = {"y": host(y), "dx": host(grads.dx), "dw": host(grads.dw)}
    for name, (a, b) in products.items():
        got = results[name]
        for g in range(len(offsets) - 1):
            rows = slice(offsets[g], offsets[g + 1])
            left, right = part(a, rows, g, got), part(b, rows, g, got)
            if name == "dw":
                if rows.start == rows.stop:
                    assert not got[g].any()
                    continue
                assert_gemm_close(got[g], left.T, right)
            else:
                assert_gemm_close(got[rows], left, right)
        if name != "dw":
            assert not got[offsets[-1] :].any(), "rows of no group are zeros"


def inputs(lengths, n, k, rng, tail=TAIL, dtype=BF16):
    offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    m = int(offsets[-1]) + tail
    x, dy = random_matrix((m, k), rng, dtype=dtype), random_matrix((m, n), rng, dtype=dtype)
    return x, random_matrix((len(lengths), n, k), rng, dtype=dtype), dy, offsets


@pytest.mark.parametrize("place", ["host", "device", "all on the device"])
@pytest.mark.parametrize("lengths", LENGTHS)
@every_recipe
def test_bounds(recipe, lengths, place, rng):
    x, w, dy, offsets = inputs(lengths, 48 if len(lengths) % 2 else 96, 64, rng)
    if recipe != "fp8":  # whose scale is one for all rows
        x[offsets[-1] :] = dy[offsets[-1] :] = np.nan
    put = hg.asarray if place != "host" else lambda x: x
    o = hg.asarray(offsets) if place == "all on the device" else offsets
    y, saved = hg.grouped_linear(put(x), put(w), o, recipe=recipe)
    grads = hg.grouped_linear_backward(put(dy), saved)
    for array in (y, grads.dx, grads.dw):
        assert isinstance(array, np.ndarray if place == "host" else hg.DeviceArray)
        assert array.dtype == BF16
    assert grads.dbias is None
    check(y, grads, x, w, dy, offsets, recipe=recipe)


@pytest.mark.parametrize("shape", [(10, 30), (33, 70), (1, 1)])
@every_recipe
def test_odd_shapes(recipe, shape, rng):
    x, w, dy, offsets = inputs([5, 40, 0, 3], *shape, rng, dtype=F32)
    y, saved = hg.grouped_linear(x, w, offsets, recipe=recipe, dtype=F32)
    grads = hg.grouped_linear_backward(dy, saved, dtype=F32, dw_dtype=F32)
    check(y, grads, x, w, dy, offsets, recipe=recipe)


@every_recipe
def test_exact_grids_are_bit_equal(recipe, rng):
    """Minus one, zero and one are exact in every format, and so are their sums."""
    offsets = np.array([0, 33, 33, 96, 100], np.int32)
    x, w, dy = (exact_grid(s, rng, dtype=F32, bits=1) for s in ((110, 64), (4, 32, 64), (110, 32)))
    if recipe == "fp8_block":
        x[:, 0] = w[:, 0, 0] = dy[:, 0] = 1.75  # 448 / 256, in each block
    amax = 448 / 256 if recipe == "fp8" else None
    options = {"hadamard": False} if recipe == "mxfp4" else {}
    y, saved = hg.grouped_linear(x, w, offsets, recipe=recipe, dtype=F32, x_amax=amax, w_amax=amax, **options)
    grads = hg.grouped_linear_backward(dy, saved, dtype=F32, dw_dtype=F32, dy_amax=amax)
    np.testing.assert_array_equal(y, reference.grouped_matmul(x, w.swapaxes(1, 2), offsets))
    np.testing.assert_array_equal(grads.dx, reference.grouped_matmul(dy, w, offsets))
    np.testing.assert_array_equal(grads.dw, reference.grouped_wgrad(dy, x, offsets))


@pytest.mark.parametrize(
    ("m", "n", "k", "offsets"),
    [
        (0, 4, 32, [0, 0, 0]),
        (3, 4, 32, [0]),
        (3, 0, 32, [0, 1, 3]),
        (3, 4, 0, [0, 1, 3]),
        (3, 32, 32, [0, 0]),
        (3, 32, 32, [0]),
    ],
)
@every_recipe
def test_nothing_to_do(recipe, m, n, k, offsets):
    x, w, dy = np.ones((m, k), F32), np.ones((len(offsets) - 1, n, k), F32), np.ones((m, n), F32)
    y, saved = hg.grouped_linear(x, w, np.array(offsets, np.int32), recipe=recipe)
    dx, dw = hg.grouped_linear_backward(dy, saved)
    assert (y.shape, dx.shape, dw.shape) == (dy.shape, x.shape, w.shape)
    assert not y.any()
    assert not dw.any()
    assert np.isfinite(dx.astype(F32)).all()


def test_delayed_scaling(rng):
    states = {name: hg.AmaxState() for name in ("x", "w", "dy")}
    used: dict[str, Any] = dict.fromkeys(states)
    for size in (1.0, 8.0):
        x, w, dy, offsets = inputs([33, 15], 32, 64, rng, dtype=F32)
        x, w, dy = size * x, size * w, size * dy
        y, saved = hg.grouped_linear(
            hg.asarray(x), hg.asarray(w), offsets, recipe="fp8", x_amax=states["x"], w_amax=states["w"]
        )
        grads = hg.grouped_linear_backward(hg.asarray(dy), saved, dy_amax=states["dy"])
        check(y, grads, x, w, dy, offsets, recipe="fp8", amax=(used["x"], used["w"], used["dy"]))
        for name, array in (("x", x), ("w", w), ("dy", dy)):
            states[name].step()
            used[name] = np.abs(array).max()


@pytest.mark.parametrize("recipe", RECIPES[1:])
def test_quantized_operands(recipe, rng):
    x, w, dy, offsets = inputs([33, 31], 32, 64, rng)
    quantize = {
        "fp8": hg.quantize_fp8,
        "fp8_block": partial(hg.quantize_fp8, block=(1, 128)),
        "mxfp8": hg.quantize_mxfp8,
        "mxfp4": hg.quantize_mxfp4,
    }[recipe]
    for names in (("w",), ("dy",), ("x", "w", "dy")):
        a, b, c = (
            quantize(hg.asarray(v)) if name in names else hg.asarray(v)
            for name, v in (("x", x), ("w", w), ("dy", dy))
        )
        y, saved = hg.grouped_linear(a, b, offsets, recipe=recipe)
        check(y, hg.grouped_linear_backward(c, saved), a, b, c, offsets, recipe=recipe)


def test_the_format_of_dy_by_name(rng):
    """Naming the only format of mxfp4 changes nothing: dw is still computed in mxfp8."""
    x, w, dy, offsets = inputs([33, 31], 32, 64, rng)
    _, saved = hg.grouped_linear(x, w, offsets, recipe="mxfp4")
    want, got = (hg.grouped_linear_backward(dy, saved, format=name) for name in (None, "mxfp4_e2m1"))
    np.testing.assert_array_equal(got.dx, want.dx)
    np.testing.assert_array_equal(got.dw, want.dw)


def test_a_gradient_blocked_both_ways(rng):
    x, w, dy, offsets = inputs([33, 31], 32, 64, rng)
    pair = hg.quantize_mxfp8(dy), hg.quantize_mxfp8(dy, axis=0, group_offsets=offsets)
    y, saved = hg.grouped_linear(x, w, offsets, recipe="mxfp8")
    check(y, hg.grouped_linear_backward(pair, saved), x, w, pair, offsets, recipe="mxfp8")
    others = hg.quantize_mxfp8(dy, axis=0, group_offsets=np.array([0, 32, 64], np.int32))
    with pytest.raises(ValueError, match=r"dy\[1\].group_offsets must be those of the forward pass"):
        hg.grouped_linear_backward((pair[0], others), saved)


@every_recipe
def test_as_a_loop_over_experts(recipe, rng):
    """Where every group consists of full blocks, each expert's gradients are those of `linear`."""
    x, w, dy, offsets = inputs([64, 32, 96], 32, 64, rng, tail=0)
    if recipe == "fp8":
        scales = {"x_amax": 4.0, "w_amax": 4.0}
        back = {"dy_amax": 4.0}
    else:
        scales, back = {}, {}
    y, saved = hg.grouped_linear(x, w, offsets, recipe=recipe, dtype=F32, **scales)
    grads = hg.grouped_linear_backward(dy, saved, dtype=F32, dw_dtype=F32, **back)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        own, kept = hg.linear(x[begin:end], w[g], recipe=recipe, dtype=F32, **scales)
        right = hg.linear_backward(dy[begin:end], kept, dtype=F32, dw_dtype=F32, **back)
        options = {"rtol": 1e-5, "atol": 1e-4}  # another order of the same float32 sums
        np.testing.assert_allclose(y[begin:end], own, **options)
        np.testing.assert_allclose(grads.dx[begin:end], right.dx, **options)
        if recipe not in ("fp8_block", "mxfp4"):  # whose dw is computed in mxfp8 here
            np.testing.assert_allclose(grads.dw[g], right.dw, **options)


@every_recipe
def test_nothing_is_copied(recipe, rng):
    """Weights of N a multiple of 32 are blocked along N as one matrix: no block straddles two experts."""
    x, w, dy, offsets = (hg.asarray(a) for a in inputs([64, 0, 33], 96, 160, rng))
    _, saved = hg.grouped_linear(x, w, offsets, recipe=recipe)
    hg.grouped_linear_backward(dy, saved)
    used = hg.usage()
    assert not used.copies
    assert sum(n for name, n in used.kernels.items() if name.startswith("grouped_")) == 3


@pytest.mark.parametrize(("n", "k"), [(32, 20), (64, 100), (33, 36)])
@every_recipe
def test_weights_are_made_in_rows_that_are_read_in_place(recipe, n, k, rng):
    """K need not be a multiple of anything: quantized operands are padded, as can_use reports."""
    x, w, _, offsets = (hg.asarray(a) for a in inputs([64, 5], n, k, rng, dtype=F32))
    assert not hg.can_use("grouped_linear", x, w, offsets, recipe=recipe).copies
    hg.grouped_linear(x, w, offsets, recipe=recipe)
    assert not [key for key in hg.usage().copies if key[0] == "grouped_matmul"]


def test_counts_name_the_function_that_was_called(rng, monkeypatch):
    counted = []
    for module in (passes, elementwise):
        monkeypatch.setattr(module, "count_call", lambda call: counted.append((call.op, call.kernel)))

    def swapped(*shape):  # axes that no view merges
        return hg.asarray(rng.standard_normal(shape).astype(F32).swapaxes(0, 1))

    x, w, ones = hg.asarray(np.ones((64, 64), F32)), hg.asarray(np.ones((32, 64), F32)), np.ones(32, F32)
    _, saved = hg.linear(swapped(4, 16, 64), w, bias=ones, w_post_scale=ones)
    hg.linear_backward(swapped(4, 16, 32), saved)
    _, saved = hg.grouped_linear(x, swapped(32, 2, 64), np.array([0, 20, 64]))
    hg.grouped_linear_backward(x[:, :32], saved)
    assert counted == [
        *(("linear", "elementwise"), ("linear", "elementwise")),
        *(("linear_backward", kernel) for kernel in ("elementwise", "elementwise", "sum_rows")),
        *(("grouped_linear", "elementwise"), ("grouped_linear", "elementwise")),
        ("grouped_linear_backward", "elementwise"),
    ]
    functions = [key[0] for key in hg.usage().copies if key[2] == "axes cannot be merged"]
    assert functions == ["linear", "linear_backward", "grouped_linear"]


def test_each_backward_pass_takes_what_its_forward_pass_left():
    x, w, dy = np.ones((4, 32), F32), np.ones((1, 8, 32), F32), np.ones((4, 8), F32)
    (_, one), (_, groups) = hg.linear(x, w[0]), hg.grouped_linear(x, w, np.array([0, 4]))
    assert (type(one), type(groups)) == (hg.LinearSaved, hg.GroupedSaved)
    for backward, saved in ((hg.linear_backward, groups), (hg.grouped_linear_backward, one)):
        function, got = backward.__name__, type(saved).__name__
        of = function.removesuffix("_backward")
        text = rf"^{function}: saved must be the result of hipgemm\.{of}; got {got}$"
        with pytest.raises(TypeError, match=text):
            backward(dy, saved)


def test_saved_reports_its_bytes(rng):
    x, w, _, offsets = inputs([32, 31], 48, 64, rng, tail=1)
    sizes = {
        "bf16": (64 * 64 * 2, 2 * 48 * 64 * 2),
        "fp8": (64 * 64 + 4, 2 * 48 * 64 + 4),
        "fp8_block": (64 * 68, 2 * (48 * 64 + 4)),
        "mxfp8": (64 * 66, 2 * 48 * 66),
        "mxfp4": (64 * 34, 2 * 64 * (24 + 2)),
    }
    for recipe, (x_bytes, w_bytes) in sizes.items():
        _, saved = hg.grouped_linear(x, w, offsets, recipe=recipe)
        assert saved.bytes == {"x": x_bytes, "w": w_bytes, "group_offsets": 12}
        assert saved.nbytes == x_bytes + w_bytes + 12


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        ({"x": np.ones((2, 3, 64), F32)}, ValueError, "x.ndim must be 2; got 3"),
        ({"w": np.ones((3, 64), F32)}, ValueError, "w.ndim must be 3; got 2"),
        (
            {"w": np.ones((2, 3, 65), F32)},
            ValueError,
            r"x.shape\[1\] \(K\) must equal w.shape\[2\] \(K\); got 64 and 65",
        ),
        (
            {"offsets": np.array([0, 5, 3], np.int32)},
            ValueError,
            r"got group_offsets\[2\]=3 after group_offsets\[1\]=5",
        ),
        ({"offsets": np.array([0, 3, 9], np.int32)}, ValueError, r"group_offsets\[2\]=9"),
        ({"offsets": np.array([1, 3, 8], np.int32)}, ValueError, r"group_offsets\[0\] must be 0; got 1"),
        (
            {"offsets": np.array([0, 3], np.int32)},
            ValueError,
            r"group_offsets.shape must be \(G\+1,\)=\(3,\)",
        ),
        ({"recipe": "fp4"}, ValueError, "recipe must be one of"),
    ],
)
def test_faults(change, kind, text):
    arguments = {"x": np.ones((8, 64), F32), "w": np.ones((2, 3, 64), F32), "recipe": "bf16"}
    offsets = change.pop("offsets", np.array([0, 3, 8], np.int32))
    arguments |= change
    with pytest.raises(kind, match=f"grouped_linear: .*{text}"):
        hg.grouped_linear(arguments["x"], arguments["w"], offsets, recipe=arguments["recipe"])


@every_recipe
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_can_use_predicts_the_kernel(recipe, dtype):
    x, w, offsets = np.ones((40, 64), dtype), np.ones((2, 48, 64), dtype), np.array([0, 33, 40], np.int32)
    for resident in (False, True):
        a, b = (hg.asarray(x), hg.asarray(w)) if resident else (x, w)
        predicted = hg.can_use("grouped_linear", a, b, offsets, recipe=recipe).kernel
        hg.reset_usage()
        hg.grouped_linear(a, b, offsets, recipe=recipe)
        assert [name for name in hg.usage().kernels if name.startswith("grouped_matmul")] == [predicted]
