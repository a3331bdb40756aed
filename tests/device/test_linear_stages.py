"""Linear layers with an activation, biases of experts, and gradients of weights that are added in place."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from test_kernels_gradients import derivatives
from test_stages import WAYS, activated, assert_within, rounded

import hipgemm as hg
from hipgemm.formats.elements import BF16 as BF16_FORMAT
from hipgemm.formats.elements import F32 as F32_FORMAT
from hipgemm.kernels.manifest import code_object
from hipgemm.layers import passes
from hipgemm.runtime import hip as _hip
from hipgemm.testing import gamma, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
RECIPES = ("bf16", "fp8", "fp8_block", "mxfp8", "mxfp4")
OFFSETS = np.array([0, 33, 33, 70, 100], np.int32)

every_recipe = pytest.mark.parametrize("recipe", RECIPES)
in_groups = pytest.mark.parametrize("grouped", [False, pytest.param(True, marks=pytest.mark.matrix)])


class Call:
    """A layer, or one for each group, and the same one without an activation."""

    def __init__(
        self, rng, grouped, recipe, activation, glu, *, n=64, bias=True, factors=False, where=OFFSETS
    ):
        self.grouped, self.activation, self.glu = grouped, activation, glu
        groups = (len(where) - 1,) if grouped else ()
        self.x = hg.asarray(random_matrix((107, 96), rng))
        self.w = hg.asarray(random_matrix((*groups, n, 96), rng))
        self.bias = rng.standard_normal((*groups, n)).astype(F32) if bias else None
        self.rest = {"recipe": recipe, "bias": self.bias}
        if factors:
            self.rest["w_post_scale"] = rng.uniform(0.5, 2, n).astype(F32)
        self.offsets = (where,) if grouped else ()
        self.dy = random_matrix((107, n // 2 if glu else n), rng, dtype=F32)

    def forward(self, **stages):
        function = hg.grouped_linear if self.grouped else hg.linear
        return function(self.x, self.w, *self.offsets, dtype=F32, **self.rest, **stages)

    def backward(self, dy, saved, **options):
        function = hg.grouped_linear_backward if self.grouped else hg.linear_backward
        return function(dy, saved, **options)


@in_groups
@pytest.mark.parametrize(("activation", "glu"), WAYS[1:])
@every_recipe
def test_forward(recipe, activation, glu, grouped, rng):
    """The activation of what the layer without one has, which is saved in bfloat16."""
    call = Call(rng, grouped, recipe, activation, glu)
    y, saved = call.forward(activation=activation, glu=glu)
    t = call.forward()[0].get()
    want, bound = activated(t.astype(np.float64), np.zeros(t.shape), activation, glu)
    inside = OFFSETS[-1] if grouped else len(t)
    got = y.get()
    assert_within(got[:inside], want[:inside], rounded(bound, want, F32)[:inside])
    assert not got[inside:].any()
    if activation is None and glu is None:
        assert saved.aux is None
        return
    np.testing.assert_array_equal(saved.aux.get()[:inside], t[:inside].astype(BF16))
    assert not saved.aux.get()[inside:].any()
    assert saved.bytes["aux"] == saved.aux.nbytes == 107 * 64 * 2


@in_groups
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("activation", "glu"), [("gelu", None), ("silu", "halves"), ("swiglu_oss", "interleaved")]
)
@every_recipe
def test_backward(recipe, activation, glu, bias, grouped, rng):
    """That of the layer without an activation, from the gradient before it: float32, where that is quantized
    or summed, and bfloat16 where it is multiplied only."""
    for factors in (False, True)[: 1 if grouped else 2]:
        call = Call(rng, grouped, recipe, activation, glu, bias=bias, factors=factors)
        _, saved = call.forward(activation=activation, glu=glu)
        _, plain = call.forward()
        got = call.backward(hg.asarray(call.dy), saved, dtype=F32, dw_dtype=F32)
        to = BF16_FORMAT if recipe == "bf16" and not bias and not factors else F32_FORMAT
        dt = passes.activation_gradient("test", hg.asarray(call.dy), saved.aux, to, 0, activation, glu)
        exact, bound = derivatives(call.dy, saved.aux.get(), activation, glu)
        assert_within(dt.get(), exact, rounded(bound, exact, to.dtype))
        want = call.backward(dt, plain, dtype=F32, dw_dtype=F32)
        for one, other in zip(got, want, strict=True):
            np.testing.assert_array_equal(one.get(), other.get())
        assert (got.dbias is not None) == bias


LAYOUTS = {
    "rows": lambda x: x,
    "columns": lambda x: hg.asarray(np.ascontiguousarray(x.get().T)).T,
    "every other": lambda x: hg.asarray(np.repeat(np.repeat(x.get(), 2, 0), 2, 1))[::2, ::2],
    "float32": lambda x: x.astype(F32),
}


@in_groups
@pytest.mark.parametrize("glu", [None, "interleaved", "halves"])
@every_recipe
def test_the_derivative_is_formed_where_dy_is_quantized(recipe, glu, grouped, rng):
    """Of dy in any layout, by any rounding, with the bits of a pass before; no such pass runs."""
    columns = 144
    x, w = hg.asarray(random_matrix((130, 32), rng)), hg.asarray(random_matrix((2, columns, 32), rng))
    dense = hg.asarray(random_matrix((130, columns // (2 if glu else 1)), rng))
    offsets = np.array([0, 37, 130], np.int32)

    def forward(**stages):
        if grouped:
            return hg.grouped_linear(x, w, offsets, recipe=recipe, bias=np.zeros((2, columns), F32), **stages)
        return hg.linear(x, w[0], recipe=recipe, bias=np.zeros(columns, F32), **stages)

    backward = hg.grouped_linear_backward if grouped else hg.linear_backward
    _, saved = forward(activation="silu", glu=glu)
    _, plain = forward()
    to = BF16_FORMAT if recipe == "bf16" else F32_FORMAT
    dt = passes.activation_gradient("test", dense, saved.aux, to, 0, "silu", glu)
    exact = passes.activation_gradient("test", dense, saved.aux, F32_FORMAT, 0, "silu", glu)
    dbias = backward(exact, plain).dbias.get()
    random = {"rounding": "stochastic", "seed": 3}
    rounds_at_random = "quantize_fp8_random_gradient" in code_object(_hip.arch(0)).kernels
    ways = [(name, layout, {}) for name, layout in LAYOUTS.items()]
    ways += [(name, LAYOUTS[name], random) for name in ("rows", "columns") if recipe != "bf16"]
    wanted = {len(options): backward(dt, plain, **options) for _, _, options in ways}
    for name, layout, options in ways:
        dy, want = layout(dense), wanted[len(options)]
        hg.reset_usage()
        got = backward(dy, saved, **options)
        kernels = set(hg.usage().kernels)
        apart = recipe == "bf16" or (bool(options) and not rounds_at_random)
        assert ("activation_gradient" in kernels) == apart
        assert apart or sum(kernel.endswith("_gradient") for kernel in kernels) > 1
        for one, other in ((got.dx, want.dx), (got.dw, want.dw)):
            np.testing.assert_array_equal(one.get(), other.get(), err_msg=name)
        np.testing.assert_array_equal(got.dbias.get(), dbias, err_msg=name)


@pytest.mark.parametrize("n", [60, 64])
def test_a_pass_applies_the_derivative_where_no_quantizer_can(n, rng):
    """Where rows are not aligned; not for w_post_scale."""
    x, w, dy = (hg.asarray(random_matrix(shape, rng)) for shape in ((40, 32), (n, 32), (40, n // 2)))
    factors = np.ones(n, F32)
    _, saved = hg.linear(x, w, recipe="mxfp8", w_post_scale=factors, activation="silu", glu="halves")
    hg.reset_usage()
    hg.linear_backward(dy, saved)
    apart = {"activation_gradient"} if n == 60 else {"quantize_mxfp8_gradient"}
    assert {k for k in hg.usage().kernels if k.endswith("_gradient")} == apart


@in_groups
@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("place", ["host", "device"])
@every_recipe
def test_dw_in_place(recipe, place, dtype, grouped, rng):
    """Written, or added in float32 and rounded once; whatever the strides."""
    for factors in (False, True)[: 1 if grouped else 2]:
        call = Call(rng, grouped, recipe, None, None, factors=factors)
        if place == "host":
            call.x, call.w = call.x.get(), call.w.get()
        put = hg.asarray if place == "device" else lambda x: x
        host = (lambda x: x.get()) if place == "device" else (lambda x: x)
        dy = put(call.dy)
        _, saved = call.forward()
        want = host(call.backward(dy, saved, dw_dtype=F32).dw)
        old = random_matrix(want.shape, rng, dtype=dtype)
        for strided, accumulate in itertools.product((False, True), repeat=2):
            base = put(np.repeat(old, 2, axis=-1) if strided else old.copy())
            dw = base[..., ::2] if strided else base
            got = call.backward(dy, saved, dw=dw, accumulate=accumulate).dw
            assert got is dw
            if accumulate:
                np.testing.assert_array_equal(host(dw), (want + old.astype(F32)).astype(dtype))
            else:
                np.testing.assert_array_equal(host(dw), want.astype(dtype))
            if strided:
                np.testing.assert_array_equal(host(base)[..., 1::2], old)


@every_recipe
def test_adding_to_exact_dw(recipe, rng):
    """Small integers: every bit, of float32 sums that are rounded once."""
    x, w, dy = (rng.integers(-1, 2, shape).astype(F32) for shape in ((64, 64), (32, 64), (64, 32)))
    x[::32] = dy[::32] = w[::32] = 1
    x[:, ::32] = dy[:, ::32] = w[:, ::32] = 1
    options = {"hadamard": False} if recipe == "mxfp4" else {}
    if recipe.startswith("fp8"):
        x[:, 0] = w[:, 0] = dy[:, 0] = 1.75  # 448 / 256
        x[0], dy[0], w[0] = 1.75, 1.75, 1.75
        options |= {"x_amax": 1.75, "w_amax": 1.75} if recipe == "fp8" else {}
    _, saved = hg.linear(x, w, recipe=recipe, **options)
    dw = np.full((32, 64), 256.5, F32)
    more = {"dy_amax": 1.75} if recipe == "fp8" else {}
    hg.linear_backward(dy, saved, dw=dw, accumulate=True, **more)
    hg.linear_backward(dy, saved, dw=dw, accumulate=True, **more)
    np.testing.assert_array_equal(dw, 2 * (dy.T @ x) + 256.5)


@pytest.mark.matrix
@pytest.mark.parametrize("place", ["host", "device"])
@pytest.mark.parametrize("shared", [False, True])
@every_recipe
def test_biases_of_experts(recipe, shared, place, rng):
    """One for each, or one for all; rows of no group belong to no sum."""
    offsets = hg.asarray(OFFSETS) if place == "device" else OFFSETS
    call = Call(rng, True, recipe, None, None, where=offsets if place == "host" else OFFSETS)
    if shared:
        call.rest["bias"] = call.bias = call.bias[0]
    call.offsets = (offsets,)
    y, saved = call.forward()
    bare, _ = hg.grouped_linear(call.x, call.w, offsets, recipe=recipe, dtype=F32)
    bias = np.broadcast_to(call.bias, (len(OFFSETS) - 1, 64))
    dy = call.dy.astype(np.float64)
    sums, sizes = [], []
    for g, (begin, end) in enumerate(itertools.pairwise(OFFSETS)):
        np.testing.assert_array_equal(y.get()[begin:end], bare.get()[begin:end] + bias[g])
        sums.append(dy[begin:end].sum(0))
        sizes.append(abs(dy[begin:end]).sum(0))
    assert not y.get()[OFFSETS[-1] :].any()
    got = hg.grouped_linear_backward(hg.asarray(call.dy), saved).dbias
    want, size = (sum(x) if shared else np.array(x) for x in (sums, sizes))
    assert got.dtype == F32
    assert got.shape == want.shape == call.bias.shape
    assert_within(got.get(), want, gamma(18 + 1 + 6 * shared) * size)


X, W = np.ones((4, 64), F32), np.ones((6, 64), F32)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"activation": "tanh"}, ValueError, "activation must be one of relu, gelu, gelu_tanh, silu; got"),
        ({"activation": "swiglu_oss"}, ValueError, "activation must be one of relu"),
        ({"glu": "both"}, ValueError, "glu must be one of interleaved, halves; got 'both'"),
        ({"w": W[:5], "glu": "halves"}, ValueError, "N must be even with glu; got 5"),
    ],
)
def test_forward_faults(arguments, kind, text):
    arguments = {"w": W} | arguments
    with pytest.raises(kind, match=text):
        hg.linear(X, **arguments)
    assert text in str(hg.can_use("linear", X, **arguments))


@pytest.mark.matrix("bf16")
def test_can_use_knows_the_stages():
    assert hg.can_use("linear", X, W, activation="gelu").apart == ""
    assert "glu='halves'" in hg.can_use("linear", X, W, activation="gelu", glu="halves").apart


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({"accumulate": True}, ValueError, "accumulate=True needs an array dw; got dw=None"),
        ({"accumulate": 1}, TypeError, "accumulate must be True or False; got 1"),
        ({"dw": np.zeros((6, 60), F32)}, ValueError, r"dw.shape must be \(6, 64\), the shape of w"),
        ({"dw": np.zeros((6, 64))}, TypeError, "dw.dtype must be bfloat16, float16 or float32"),
        (
            {"dw": np.zeros((6, 64), F32), "dw_dtype": BF16},
            TypeError,
            "dw.dtype must be dw_dtype; got float32",
        ),
        ({"dw": [1.0]}, TypeError, "dw must be a numpy.ndarray"),
        ({"dw": np.broadcast_to(np.zeros(64, F32), (6, 64))}, ValueError, "dw must be writeable"),
        ({"dw": hg.zeros((6, 64), F32)}, TypeError, "dw must be on the host like x and w; got device 0"),
        ({"dy": np.ones((4, 6), F32)}, ValueError, r"dy.shape must be \(4, 3\), the shape of y"),
        (
            {"dy": hg.quantize_fp8(np.ones((4, 3), F32))},
            TypeError,
            "dy must not be quantized for a layer with",
        ),
    ],
)
def test_backward_faults(arguments, kind, text):
    _, saved = hg.linear(X, W, activation="silu", glu="halves", recipe="fp8")
    with pytest.raises(kind, match=text):
        hg.linear_backward(**{"dy": np.ones((4, 3), F32), "saved": saved} | arguments)


def test_dw_overlaps_nothing():
    dy, x = hg.zeros((64, 64), BF16), hg.zeros((64, 64), BF16)
    _, saved = hg.linear(x, x)
    for dw, name in ((dy, "dy"), (x, "saved.x")):
        with pytest.raises(ValueError, match=f"dw must not overlap {name}"):
            hg.linear_backward(dy, saved, dw=dw)


@pytest.mark.emulator("it counts bytes of memory")
@pytest.mark.parametrize("glu", [None, "interleaved", "halves"])
@pytest.mark.parametrize("shape", [(256, 4096), (512, 2880)])
def test_the_gradient_of_an_activation_is_one_pass_over_memory(shape, glu, rng):
    """At most 1/0.9 of the bytes that a copy of as many moves, as lanes request them and in cache lines."""
    t = hg.asarray(random_matrix(shape, rng))
    dy = hg.asarray(random_matrix((shape[0], shape[1] // (2 if glu else 1)), rng))
    for to in (BF16_FORMAT, F32_FORMAT):
        hg.emulator_counters(reset=True, addresses=True)
        try:
            passes.activation_gradient("test", dy, t, to, 0, "silu", glu)
            (launch,) = hg.emulator_counters(reset=True).each
        finally:
            hg.emulator_counters(reset=True, addresses=False)
        moved = launch.counters.global_read_bytes + launch.counters.global_written_bytes
        least = dy.nbytes + t.nbytes + t.size * to.itemsize
        assert 0 < moved <= least / 0.9
