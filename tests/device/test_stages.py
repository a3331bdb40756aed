"""What follows a product and its bias: in the product's kernel, or in a second one."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import KERNELS

import hipgemm as hg
from hipgemm.formats.activations import ACTIVATIONS, GLU_ACTIVATIONS
from hipgemm.products import host as of_host
from hipgemm.products import run
from hipgemm.testing import exact_grid, gamma, random_matrix

BF16, F32 = ml_dtypes.bfloat16, np.float32
# Lipschitz constants of the activations.
SLOPE = {None: 1.0, "relu": 1.0, "gelu": 1.13, "gelu_tanh": 1.13, "silu": 1.1, "swiglu_oss": 1.1}
ULP = 2.0**-23
FORMATS = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4_e2m1")
QUANTIZERS = {"mxfp8": hg.quantize_mxfp8, "mxfp6": hg.quantize_mxfp6, "mxfp4": hg.quantize_mxfp4}
WAYS = [(name, None) for name in (None, *ACTIVATIONS)]
WAYS += [(name, glu) for name in (None, *ACTIVATIONS, *GLU_ACTIVATIONS) for glu in ("interleaved", "halves")]
TILES = [name for name in KERNELS if name.startswith("gemm_bf16_nt_")]


def halves(t, glu):
    """Gate and up."""
    n = t.shape[-1] // 2
    return (t[..., ::2], t[..., 1::2]) if glu == "interleaved" else (t[..., :n], t[..., n:])


def activated(t, slack, activation, glu):
    """In float64, and a bound of the error if `slack` is that of t."""
    one = ACTIVATIONS[activation].function if activation in ACTIVATIONS else lambda x: x
    if glu is None:
        y = one(t)
        return y, SLOPE[activation] * slack + 4 * ULP * np.maximum(abs(t), abs(y))
    (gate, up), (gate_slack, up_slack) = halves(t, glu), halves(slack, glu)
    if activation == "swiglu_oss":
        y = GLU_ACTIVATIONS[activation].function(gate, up)
        by_up = np.minimum(gate, 7.0) if np.ndim(gate) else gate
        up = np.clip(up, -7, 7) + 1
        size = np.minimum(abs(gate), np.maximum(7, abs(by_up)))
    else:
        y, size = one(gate) * up, abs(gate)
    slope = 1.7 if activation == "swiglu_oss" else SLOPE[activation]
    return y, slope * gate_slack * abs(up) + size * up_slack + 6 * ULP * (size * abs(up) + abs(y))


class Call:
    """A product with stages, and its parts in float64."""

    def __init__(self, m, n, k, glu, *, batch=(), seed=0, exact=False):
        rng = np.random.default_rng(seed)
        draw = (lambda shape: exact_grid(shape, rng)) if exact else (lambda shape: random_matrix(shape, rng))
        self.a, self.b = draw((*batch, m, k)), draw((*batch, n, k))
        self.bias = rng.integers(-3, 4, n).astype(F32) if exact else rng.standard_normal(n).astype(F32)
        self.glu, self.out_shape = glu, (*batch, m, n // 2 if glu else n)
        self.residual = exact_grid(self.out_shape, rng)
        self.old = exact_grid(self.out_shape, rng).astype(F32)
        self.aux_shape = (*batch, m, n)

    def reference(self, activation, *, residual=False, accumulate=False):
        """The result and t, and bounds of both before the last rounding."""
        a, b = (x.astype(np.float64) for x in (self.a, self.b))
        t = a @ b.swapaxes(-1, -2) + self.bias
        slack = gamma(a.shape[-1] + 1) * (abs(a) @ abs(b).swapaxes(-1, -2) + abs(self.bias))
        y, bound = activated(t, slack, activation, self.glu)
        for x in (self.residual,) * residual + (self.old,) * accumulate:
            bound = bound + ULP * (abs(y) + abs(x.astype(np.float64)))
            y = y + x.astype(np.float64)
        return y, bound, t, slack


def assert_within(got, want, bound):
    error = abs(got.astype(np.float64) - want)
    worst = np.unravel_index(np.nanargmax(error - bound), error.shape)
    assert (error <= bound).all(), f"at {worst}: {got[worst]}, expected {want[worst]}, bound {bound[worst]}"


def rounded(bound, want, dtype):
    """A bound after rounding to a type."""
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}[np.dtype(dtype).name]
    return bound + unit * (abs(want) + bound) + 2.0**-25 * (np.dtype(dtype).name == "float16")


@pytest.mark.parametrize("kernel", [None, "plain"])
@pytest.mark.parametrize(("activation", "glu"), WAYS)
def test_activation(activation, glu, kernel):
    """All of them, ragged, with aux and a residual of other types, on the device; aux is t itself."""
    call = Call(37, 76, 72, glu)
    y, bound, t, slack = call.reference(activation, residual=True)
    aux = hg.asarray(np.full(call.aux_shape, np.nan, F32))
    a, b, residual = map(hg.asarray, (call.a, call.b, call.residual))
    with hg.config(kernel=kernel):
        got = hg.matmul(
            a, b.T, dtype=F32, bias=call.bias, activation=activation, glu=glu, aux=aux, residual=residual
        )
        plain = hg.matmul(a, b.T, dtype=F32, bias=call.bias)
    assert_within(got.get(), y, rounded(bound, y, F32))
    assert_within(aux.get(), t, rounded(slack, t, F32))
    np.testing.assert_array_equal(aux.get(), plain.get())


@pytest.mark.parametrize("kernel", TILES)
@pytest.mark.parametrize("shape", [(300, 296), (1, 8), (257, 130)])
def test_every_tile(kernel, shape):
    """With rows of 16-byte vectors, and without; several tiles."""
    call = Call(*shape, 64, "interleaved", exact=True)
    y, _, t, _ = call.reference("relu", residual=True, accumulate=True)
    out, aux = hg.asarray(call.old), hg.asarray(np.full(call.aux_shape, np.nan, BF16))
    with hg.config(kernel=kernel):
        hg.matmul(
            hg.asarray(call.a),
            hg.asarray(call.b).T,
            out,
            bias=call.bias,
            activation="relu",
            glu="interleaved",
            aux=aux,
            residual=hg.asarray(call.residual),
            accumulate=True,
        )
    np.testing.assert_array_equal(out.get(), y.astype(F32))  # all of it is exact
    np.testing.assert_array_equal(aux.get(), t.astype(F32).astype(BF16))


@pytest.mark.parametrize("dtype", [BF16, np.float16, F32])
@pytest.mark.parametrize("batch", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize("where", ["host", "device"])
def test_batches_types_and_places(dtype, batch, where):
    call = Call(20, 40, 64, None, batch=batch)
    y, bound, t, slack = call.reference("silu", residual=True)
    place = hg.asarray if where == "device" else lambda x: x
    aux = place(np.full(call.aux_shape, np.nan, F32))
    got = hg.matmul(
        place(call.a),
        place(call.b).mT if where == "device" else call.b.swapaxes(-1, -2),
        dtype=dtype,
        bias=place(call.bias),
        activation="silu",
        aux=aux,
        residual=place(call.residual),
    )
    got, aux = (x.get() if where == "device" else x for x in (got, aux))
    assert got.dtype == dtype
    assert_within(got, y, rounded(bound, y, dtype))
    assert_within(aux, t, rounded(slack, t, F32))


@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
@pytest.mark.parametrize("activation", [None, "gelu"])
def test_accumulates_onto_any_layout(layout, activation):
    call = Call(33, 48, 64, None)
    y, bound, *_ = call.reference(activation, accumulate=True)
    if layout == "rows":
        out = hg.asarray(call.old)
    elif layout == "columns":
        out = hg.asarray(np.ascontiguousarray(call.old.T)).T
    else:
        out = hg.asarray(np.repeat(call.old, 2, axis=1))[:, ::2]
    made = hg.matmul(
        hg.asarray(call.a), hg.asarray(call.b).T, out, bias=call.bias, activation=activation, accumulate=True
    )
    assert made is out
    assert_within(out.get(), y, rounded(bound, y, F32))
    host = call.old.copy()
    hg.matmul(call.a, call.b.T, host, bias=call.bias, activation=activation, accumulate=True)
    np.testing.assert_array_equal(host, out.get())


def test_the_residual_may_be_out():
    call = Call(16, 32, 64, None, exact=True)
    y, *_ = call.reference("relu", accumulate=True)
    out = hg.asarray(call.old)
    hg.matmul(hg.asarray(call.a), hg.asarray(call.b).T, out, bias=call.bias, activation="relu", residual=out)
    np.testing.assert_array_equal(out.get(), y.astype(F32))
    host = call.old.copy()
    hg.matmul(call.a, call.b.T, host, bias=call.bias, activation="relu", residual=host)
    np.testing.assert_array_equal(host, y.astype(F32))


@pytest.mark.parametrize("kernel", [None, "plain"])
@pytest.mark.parametrize("glu", [None, "interleaved", "halves"])
@pytest.mark.parametrize("format", FORMATS)
def test_quantized_results_are_those_of_the_quantizer(format, glu, kernel):
    """Of the float32 result; sums are exact, so their order does not matter."""
    call = Call(45, 148, 64, glu, batch=(2,), exact=True)
    call.a[0, 3, 5], call.a[1, 7, 2] = np.nan, np.inf
    rest = {"bias": call.bias, "activation": "relu", "glu": glu, "residual": hg.asarray(call.residual)}
    a, b = hg.asarray(call.a), hg.asarray(call.b)
    quantize = QUANTIZERS[format.split("_")[0]]
    with hg.config(kernel=kernel):
        for scaling in (None, "floor", "rceil"):
            got = hg.matmul(a, b.mT, out_format=format, out_scaling=scaling, **rest)
            options = {} if scaling is None else {"scaling": scaling}
            options |= {"hadamard": False} if "fp4" in format else {"format": format}
            want = quantize(hg.matmul(a, b.mT, dtype=F32, **rest), **options)
            assert (got.format, got.shape, got.axis) == (format, call.out_shape, -1)
            np.testing.assert_array_equal(got.get().data.view(np.uint8), want.get().data.view(np.uint8))
            np.testing.assert_array_equal(got.get().scale.view(np.uint8), want.get().scale.view(np.uint8))


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("glu", [None, "interleaved"])
def test_fp8_results_have_the_scale_of_a_state(format, glu):
    call = Call(45, 148, 64, glu, exact=True)
    states = hg.AmaxState(100.0), hg.AmaxState(100.0)
    a, b = hg.asarray(call.a), hg.asarray(call.b)
    for _ in range(2):
        got = hg.matmul(a, b.T, bias=call.bias, glu=glu, out_format=format, out_amax=states[0])
        want = hg.quantize_fp8(
            hg.matmul(a, b.T, bias=call.bias, glu=glu, dtype=F32), states[1], format=format
        )
        for name in ("data", "scale", "amax"):
            one, other = (np.asarray(getattr(q.get(), name)).tobytes() for q in (got, want))
            assert one == other
        assert states[0].next.get() == states[1].next.get() > 0
        for state in states:
            state.step()


def experts(m, n, k, groups, glu, *, seed=0):
    rng = np.random.default_rng(seed)
    offsets = np.r_[0, np.sort(rng.integers(0, m - 9, groups - 1)), m - 9].astype(np.int32)
    call = Call(m, n, k, glu, exact=True, seed=seed)
    w = exact_grid((groups, n, k), rng)
    bias = rng.integers(-3, 4, (groups, n)).astype(F32)
    t = np.zeros((m, n))
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        rows = call.a[begin:end].astype(np.float64)
        t[begin:end] = 0.5 * (rows @ w[g].T.astype(np.float64)) + bias[g]
    return call, w, bias, offsets, t


@pytest.mark.matrix("bf16")
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("glu", [None, "interleaved", "halves"])
def test_groups(glu, accumulate, where):
    """A bias for each group; rows of no group are 0, or what they were, and their aux is not touched."""
    call, w, bias, offsets, t = experts(101, 96, 64, 4, glu)
    place = hg.asarray if where == "device" else lambda x: x
    y, _ = activated(t, np.zeros_like(t), "relu", glu)
    y = y + call.residual.astype(np.float64)
    y[offsets[-1] :] = 0
    old = call.old.astype(F32)
    out = place(old.copy()) if accumulate else place(np.full(call.out_shape, np.nan, F32))
    aux = place(np.full(call.aux_shape, 7, F32))
    hg.grouped_matmul(
        place(call.a),
        place(w).mT if where == "device" else w.swapaxes(1, 2),
        place(offsets),
        out,
        alpha=0.5,
        bias=place(bias),
        activation="relu",
        glu=glu,
        residual=place(call.residual),
        aux=aux,
        accumulate=accumulate,
    )
    got, kept = (x.get() if where == "device" else x for x in (out, aux))
    np.testing.assert_array_equal(got, (y + old * accumulate).astype(F32))
    t[offsets[-1] :] = 7
    np.testing.assert_array_equal(kept, t.astype(F32))


@pytest.mark.matrix
@pytest.mark.parametrize("glu", [None, "interleaved", "halves"])
@pytest.mark.parametrize("format", FORMATS)
def test_quantized_results_of_groups(format, glu):
    call, w, bias, offsets, _ = experts(101, 96, 64, 4, glu)
    x, w = hg.asarray(call.a), hg.asarray(w).mT
    rest = {"alpha": 0.5, "bias": bias, "activation": "relu", "glu": glu}
    got = hg.grouped_matmul(x, w, offsets, out_format=format, **rest).get()
    y = hg.grouped_matmul(x, w, offsets, dtype=F32, **rest)
    options = {"hadamard": False} if "fp4" in format else {"format": format}
    want = QUANTIZERS[format.split("_")[0]](y, **options).get()
    np.testing.assert_array_equal(got.data.view(np.uint8), want.data.view(np.uint8))
    np.testing.assert_array_equal(got.scale.view(np.uint8), want.scale.view(np.uint8))


@pytest.mark.matrix("bf16")
@pytest.mark.parametrize("where", ["host", "device"])
@pytest.mark.parametrize("kind", ["no columns in K", "no groups"])
def test_groups_without_products(kind, where):
    """The bias is added to empty sums too."""
    groups = 2 if kind == "no columns in K" else 1
    new = np.zeros if where == "host" else hg.zeros
    x = new((5, 0 if groups == 2 else 64), BF16)
    w = new((groups, x.shape[1], 8), BF16)
    offsets = np.array([0, 2, 4] if groups == 2 else [0, 0], np.int32)
    bias = np.arange(groups * 8, dtype=F32).reshape(groups, 8)
    got = hg.grouped_matmul(x, w, offsets, dtype=F32, bias=bias)
    got = got if where == "host" else got.get()
    want = np.zeros((5, 8), F32)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        want[begin:end] = bias[g]
    np.testing.assert_array_equal(got, want)


@pytest.mark.matrix("bf16")
def test_can_use_says_where_stages_are_applied():
    x, w = hg.zeros((64, 64), BF16), hg.zeros((64, 64), BF16)
    assert hg.can_use("matmul", x, w, activation="gelu").apart == ""
    apart = hg.can_use("matmul", x, w, activation="gelu", glu="halves")
    assert apart.apart.startswith("glu='halves'")
    assert "split_reduce" in str(apart)
    with hg.config(kernel="plain"):
        assert hg.can_use("matmul", x, w, activation="gelu").apart == "the plain kernel has no stages"


X, W = np.zeros((4, 64), BF16), np.zeros((64, 6), BF16)


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        (
            {"activation": "tanh"},
            ValueError,
            "activation must be one of relu, gelu, gelu_tanh, silu; got 'tanh'",
        ),
        ({"activation": "swiglu_oss"}, ValueError, "activation must be one of relu"),
        ({"activation": 1}, TypeError, "activation must be one of"),
        ({"glu": "both"}, ValueError, "glu must be one of interleaved, halves; got 'both'"),
        ({"b": W[:, :5], "glu": "halves"}, ValueError, "N must be even with glu; got 5"),
        ({"out": np.zeros((4, 6), BF16), "glu": "halves"}, ValueError, r"out.shape must be (M, N/2)=(4, 3)"),
        ({"aux": np.zeros((4, 5), F32)}, ValueError, "aux.shape must be (4, 6); got (4, 5)"),
        ({"aux": np.zeros((4, 6), np.float64)}, TypeError, "aux.dtype must be bfloat16, float16 or float32"),
        ({"residual": np.zeros((4, 6), F32), "glu": "halves"}, ValueError, "residual.shape must be (4, 3)"),
        ({"accumulate": True}, ValueError, "accumulate=True needs an array out"),
        ({"accumulate": 1}, TypeError, "accumulate must be True or False"),
        ({"out_format": "int8"}, ValueError, "out_format must be one of"),
        ({"out_format": "mxfp8_e4m3", "dtype": F32}, ValueError, "dtype must be omitted with out_format"),
        ({"out_format": "fp8_e4m3"}, ValueError, "out_amax must be given for fp8"),
        ({"out_scaling": "floor"}, ValueError, "out_scaling must be omitted but for MX formats"),
        ({"out_format": "mxfp8_e4m3", "out_scaling": "up"}, ValueError, "out_scaling must be one of"),
    ],
)
def test_faults(arguments, kind, text):
    given = {"b": W, **arguments}
    b = given.pop("b")
    with pytest.raises(kind) as error:
        hg.matmul(X, b, **given)
    assert text in str(error.value)
    assert str(error.value).startswith("matmul: ")
    assert not hg.can_use("matmul", X, b, **given)


def test_faults_of_places_and_overlaps():
    x, w = hg.asarray(X), hg.asarray(W)
    out, state = hg.zeros((4, 6), F32), hg.AmaxState()
    with pytest.raises(
        TypeError, match="matmul: residual must be on device 0 like the operands; got the host"
    ):
        hg.matmul(x, w, residual=np.zeros((4, 6), F32))
    with pytest.raises(ValueError, match="matmul: aux must not overlap out"):
        hg.matmul(x, w, out, aux=out)
    big = hg.zeros((9, 6), F32)
    with pytest.raises(ValueError, match="matmul: out must not overlap residual"):
        hg.matmul(x, w, big[:4], residual=big[1:5])
    with pytest.raises(ValueError, match="out_amax must have a value"):
        hg.matmul(x, w, out_format="fp8_e4m3", out_amax=state)
    with pytest.raises(ValueError, match="aux on a device must have contiguous rows"):
        hg.matmul(x, w, aux=hg.zeros((6, 4), F32).T)


def test_a_planned_call_checks_overlaps_again():
    x, w, rows = hg.asarray(X), hg.asarray(W), hg.zeros((9, 6), F32)
    for _ in range(2):
        hg.matmul(x, w, rows[:4], residual=rows[4:8])
    with pytest.raises(ValueError, match="out must not overlap residual"):
        hg.matmul(x, w, rows[:4], residual=rows[1:5])
    freed = hg.zeros((4, 6), F32)
    hg.matmul(x, w, activation="relu", aux=freed)
    freed.free()
    with pytest.raises(ValueError, match="matmul: aux must be in memory"):
        hg.matmul(x, w, activation="relu", aux=freed)


def test_a_residual_on_the_host_with_any_strides():
    call = Call(9, 16, 32, None, batch=(3,), exact=True)
    call.residual[1:] = call.residual[0]
    y, *_ = call.reference("relu", residual=True)
    spread = np.broadcast_to(call.residual[0], call.out_shape)
    columns = np.asfortranarray(call.residual)
    for residual in (spread, columns):
        aux = np.empty(call.aux_shape[::-1], F32).T
        got = hg.matmul(
            call.a,
            call.b.swapaxes(1, 2),
            dtype=F32,
            bias=call.bias,
            activation="relu",
            residual=residual,
            aux=aux,
        )
        np.testing.assert_array_equal(got, y.astype(F32))
        np.testing.assert_array_equal(np.maximum(aux, 0), (y - call.residual.astype(F32)).astype(F32))


@pytest.mark.matrix("bf16")
def test_groups_without_columns_in_k_have_stages():
    residual, aux = np.arange(24, dtype=F32).reshape(3, 8), np.full((3, 8), 7, F32)
    x, w = np.zeros((3, 0), BF16), np.zeros((2, 0, 8), BF16)
    got = hg.grouped_matmul(x, w, np.array([0, 1, 2], np.int32), dtype=F32, residual=residual, aux=aux)
    np.testing.assert_array_equal(got, np.vstack([residual[:2], np.zeros((1, 8))]))
    np.testing.assert_array_equal(aux, np.vstack([np.zeros((2, 8)), np.full((1, 8), 7)]))


@pytest.mark.parametrize("out", [None, "accumulate", "mxfp8_e4m3"])
@pytest.mark.parametrize("largest", [0, 1 << 20])
def test_host_calls_with_stages_are_planned_once(largest, out, monkeypatch):
    """As on the device, through one buffer and in copies of each array."""
    monkeypatch.setattr(of_host, "SMALL", largest)
    run.plans.clear()
    call = Call(9, 64, 32, "interleaved", exact=True)
    stages = {"bias": call.bias, "activation": "relu", "glu": call.glu}
    stages |= {"out_format": out} if out == "mxfp8_e4m3" else {"accumulate": out is not None}
    arrays = {"residual": call.residual, "aux": np.zeros(call.aux_shape, F32)}
    arrays |= {"out": call.old} if out == "accumulate" else {}
    resident = {name: hg.asarray(x) for name, x in arrays.items()}
    want = hg.matmul(hg.asarray(call.a), hg.asarray(call.b).T, **resident, **stages).get()
    for _ in range(2):
        given = {name: x.copy() for name, x in arrays.items()}
        got = hg.matmul(call.a, call.b.T, **given, **stages)
        np.testing.assert_array_equal(given["aux"], resident["aux"].get())
        for name in ("data", "scale") if isinstance(got, hg.ScaledArray) else ("T",):
            assert getattr(got, name).tobytes() == getattr(want, name).tobytes()
        monkeypatch.setattr(run, "describe", None)  # for the second call


def test_large_results_of_blocks_without_columns_in_k(monkeypatch):
    monkeypatch.setattr(of_host, "SMALL", 0)
    q = hg.quantize_fp8(np.zeros((2, 4, 0), F32), block=(1, 128))
    np.testing.assert_array_equal(hg.matmul(q, q.mT, dtype=F32), np.zeros((2, 4, 4), F32))


@pytest.mark.parametrize("where", ["host", "device"])
def test_aux_over_out_after_a_planned_call(where):
    new = np.zeros if where == "host" else hg.zeros
    x, w = (z if where == "host" else hg.asarray(z) for z in (X, W))
    rows = new((8, 6), F32)
    hg.matmul(x, w, rows[:4], aux=new((4, 6), F32))
    hg.matmul(x, w, rows[:4], aux=rows[4:])
    with pytest.raises(ValueError, match="aux must not overlap out"):
        hg.matmul(x, w, rows[:4], aux=rows[1:5])
