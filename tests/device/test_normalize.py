"""rms_norm and softmax against float64, and quantized outputs against the quantizers, bit for bit."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
UNITS = {BF16: 2.0**-8, F16: 2.0**-11, F32: 0.0}  # of rounding to them from float32
TINY = {BF16: 2.0**-133, F16: 2.0**-25, F32: 2.0**-149}  # half the smallest number
# A row of 16 to 1024 threads, its last step or block full or not; then rows that are read twice.
# In one pass, with the weight in LDS.
LONGEST = 32768 if os.environ.get("HIPGEMM_EMULATOR_ARCH", "gfx950") == "gfx950" else 16384
LENGTHS = [1, 2, 7, 32, 33, 100, 512, 513, 1000, 2048, 2049, 4097, 16384, 16385, 32768, 33000]


def assert_near(got, want, dtype, float32_units, scale=None):
    """Rounded once from a float32 result that is so many units of 2^-24 off, relative to `scale`."""
    assert got.dtype == dtype
    got = got.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    known = np.isfinite(want)
    error = np.abs(got - want)[known]
    inner = float32_units * 2.0**-24 * (np.abs(want) if scale is None else np.broadcast_to(scale, want.shape))
    bound = inner + UNITS[dtype] * (np.abs(want) + inner) + TINY[dtype]
    assert (error <= bound[known]).all(), (error / bound[known]).max()


# ---- softmax ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", UNITS)
def test_softmax(dtype, causal, rng):
    """Errors: of the sum, in float32, and of each exponential."""
    for n in LENGTHS:
        x = (rng.standard_normal((5, n)) * 4).astype(dtype)
        got = hg.softmax(hg.asarray(x), scale=0.7, causal=causal)
        want = reference.softmax(x.astype(F32), scale=0.7, causal=causal)
        # The exponent is rounded once to float32.
        spread = np.abs(x.astype(np.float64) * 0.7).max()
        assert_near(got.get(), want, dtype, 48 + 4 * spread)


def test_softmax_of_arrays_of_all_ranks_and_axes(rng):
    four = (2, 3, 4, 5)
    for shape, axis in (((7,), 0), ((4, 9), 0), ((4, 9), 1), ((3, 5, 7), 1), (four, -4), (four, -1)):
        x = rng.standard_normal(shape).astype(F32)
        want = reference.softmax(x, axis=axis)
        for given in (x, hg.asarray(x), hg.asarray(np.ascontiguousarray(x.T)).T):
            got = hg.softmax(given, axis=axis)
            assert type(got) is type(given)
            assert_near(np.asarray(got if given is x else got.get()), want, F32, 32)


def test_softmax_of_many_rows(rng):
    """So many that a workgroup takes rows one after the other."""
    x = rng.standard_normal((2 * 32 * 2048 + 5, 3)).astype(F32)
    assert_near(hg.softmax(hg.asarray(x)).get(), reference.softmax(x), F32, 32)


def test_softmax_of_extreme_values():
    """The maximum is subtracted. -Inf counts as nothing, a row of it is NaN; so are rows with NaN or Inf."""
    top = np.finfo(F32).max
    rows = [
        [top, top, 0, -top],
        [-top, -top, -top, -top],
        [-np.inf, 1, 2, -np.inf],
        [-np.inf] * 4,
        [np.nan, 0, 0, 0],
        [np.inf, 0, 0, 0],
        [0, -0.0, 0, 0],
        [-1000, 0, 1000, 1000],
    ]
    x = np.array(rows, F32)
    want = reference.softmax(x)
    assert np.isnan(want).all(axis=1).tolist() == [False, False, False, True, True, True, False, False]
    assert_near(hg.softmax(hg.asarray(x)).get(), want, F32, 8)
    for scale in (0.0, -1.0, 1e-30):
        with np.errstate(invalid="ignore"):
            assert_near(
                hg.softmax(hg.asarray(x), scale=scale).get(), reference.softmax(x, scale=scale), F32, 8
            )


@pytest.mark.parametrize("what", [np.nan, np.inf, -np.inf, 3e38])
def test_hidden_columns_do_not_matter(what, rng):
    for rows, columns in ((6, 6), (3, 40), (40, 3), (2, 17000)):
        x = rng.standard_normal((2, rows, columns)).astype(F32)
        want = hg.softmax(hg.asarray(x), causal=True).get()
        hidden = np.arange(columns) > np.arange(rows)[:, None] + columns - rows
        x[:, hidden] = what
        got = hg.softmax(hg.asarray(x), causal=True).get()
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        seen = ~hidden.all(axis=1)
        assert (got[:, seen][:, hidden[seen]] == 0).all()
        assert np.isnan(got[:, ~seen]).all()  # rows without columns
        np.testing.assert_allclose(got[:, seen].sum(-1), 1, rtol=1e-5)


# ---- rms_norm --------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight", UNITS)
@pytest.mark.parametrize("dtype", UNITS)
def test_rms_norm(dtype, weight, rng):
    for n in LENGTHS:
        x = rng.standard_normal((3, n)).astype(dtype)
        w = rng.standard_normal(n).astype(weight)
        got = hg.rms_norm(hg.asarray(x), w, eps=1e-5)
        assert_near(got.get(), reference.rms_norm(x, w, eps=1e-5), dtype, 24)


@pytest.mark.parametrize("other", UNITS)
@pytest.mark.parametrize("dtype", UNITS)
def test_residual(dtype, other, rng):
    """The sum is rounded for itself; what is normalized is not."""
    for shape in ((3, 100), (2, 5, 1000), (1, 17000)):
        x = rng.standard_normal(shape).astype(dtype)
        r = (rng.standard_normal(shape) * 100).astype(other)
        w = rng.standard_normal(shape[-1]).astype(F32)
        y, total = hg.rms_norm(hg.asarray(x), hg.asarray(w), residual=hg.asarray(r))
        want = x.astype(F32) + r.astype(F32)
        assert_near(y.get(), reference.rms_norm(want, w), dtype, 24)
        want = want.astype(dtype if dtype == other else F32)
        np.testing.assert_array_equal(total.get().view(f"u{want.itemsize}"), want.view(f"u{want.itemsize}"))


QUANTIZERS = {
    "fp8": hg.quantize_fp8,
    "mxfp8": hg.quantize_mxfp8,
    "mxfp6": hg.quantize_mxfp6,
    "mxfp4": lambda x, format: hg.quantize_mxfp4(x, hadamard=False),
}


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("format", QUANTIZED)
def test_quantized(format, residual, rng):
    """As the quantizer makes it of the float32 result, also amax, the state and scales for products."""
    block = QUANTIZED[format].block
    for shape in (
        (3, 8),
        (37, 100),
        (2, 3, 33),
        (70, 96),
        (17, 2880),
        (2, 16384),
        (2, 32768),
        (1, 20001),
        (1, 33001),
        (0, 5),
        (5, 0),
    ):
        x = rng.standard_normal(shape).astype(BF16)
        x.reshape(-1)[::97] *= BF16.type(64)
        if x.size > 300:
            x.reshape(-1)[-3] = np.nan
        w = rng.standard_normal(shape[-1]).astype(F32)
        wide = hg.asarray(x.astype(F32))
        states = () if block else (hg.AmaxState(40.0), hg.AmaxState(40.0))
        options = {"residual": hg.asarray(x)} if residual else {}
        out = hg.rms_norm(
            hg.asarray(x), w, out_format=format, out_amax=states[0] if states else None, **options
        )
        y = hg.rms_norm(wide, w, **({"residual": wide} if residual else {}))
        q, y = (out[0], y[0]) if residual else (out, y)
        want = QUANTIZERS[format.split("_")[0]](y, *states[1:], format=format)
        got, expected = q.get(), want.get()
        assert (got.format, got.axis, got.hadamard) == (format, expected.axis, False)
        assert got.data.tobytes() == expected.data.tobytes(), shape
        assert got.scale.tobytes() == expected.scale.tobytes(), shape
        if states:
            assert got.amax.tobytes() == expected.amax.tobytes()
            assert [s.next.get().tobytes() for s in states] == [expected.amax.tobytes()] * 2
        if len(shape) == 2 and 0 not in shape:
            same = [hg.matmul(part, want.T, dtype=F32).get() for part in (q, want)]
            assert same[0].tobytes() == same[1].tobytes()


@pytest.mark.parametrize("format", ["mxfp8_e5m2", "mxfp4_e2m1"])
@pytest.mark.parametrize("shape", [(35, 16384), (600, 96), (1030, 40)])
def test_scales_of_many_rows(shape, format, rng, monkeypatch):
    """A workgroup that takes many rows stores the scales of some of them together."""
    monkeypatch.setattr("hipgemm.layers.normalize._WORKGROUPS", 1)
    x = rng.standard_normal(shape).astype(BF16)
    w = np.ones(shape[1], F32)
    got = hg.rms_norm(hg.asarray(x), w, out_format=format).get()
    y = hg.rms_norm(hg.asarray(x.astype(F32)), w)
    want = QUANTIZERS[format.split("_")[0]](y, format=format).get()
    assert got.scale.tobytes() == want.scale.tobytes()
    assert got.data.tobytes() == want.data.tobytes()


def test_layouts_and_places(rng):
    """Rows that are not contiguous are copied, which `usage` counts; NumPy arrays give NumPy arrays."""
    x = rng.standard_normal((6, 40)).astype(F32)
    w = rng.standard_normal(40).astype(F32)
    want = reference.rms_norm(x, w)
    wide = hg.zeros((6, 50), F32)
    wide[:, 3:43] = x
    batch = hg.asarray(np.ascontiguousarray(x.reshape(2, 3, 40).swapaxes(0, 1))).reshape(3, 2, 40)
    assert_near(hg.rms_norm(x, w), want, F32, 24)
    assert_near(hg.rms_norm(wide[:, 3:43], hg.asarray(w)).get(), want, F32, 24)
    assert_near(hg.rms_norm(hg.asarray(x)[::-1], w).get(), want[::-1], F32, 24)
    hg.reset_usage()
    assert_near(hg.rms_norm(hg.asarray(np.ascontiguousarray(x.T)).T, w).get(), want, F32, 24)
    y = hg.rms_norm(hg.asarray(np.ascontiguousarray(batch.get().swapaxes(0, 1))).reshape(2, 3, 40), w)
    assert_near(y.get().reshape(6, 40), want, F32, 24)
    assert hg.usage().copies == {("rms_norm", "x", "rows not contiguous"): 1}
    assert hg.usage().served["rms_norm"].calls == 2
    q, total = hg.rms_norm(x, w, residual=x, out_format="mxfp8_e4m3")
    assert isinstance(q, hg.ScaledArray)
    assert q.device is None
    np.testing.assert_array_equal(total, x + x)


@pytest.mark.emulator("it counts bytes of memory")
@pytest.mark.parametrize("shape", [(256, 4096), (512, 2880), (64, 8192), (16, LONGEST), (1024, 128)])
def test_one_pass_over_memory(shape, rng):
    """At most 1/0.9 of the bytes that a copy of as many moves, as lanes request them and in cache lines."""
    x = hg.asarray(rng.standard_normal(shape).astype(BF16))
    w = hg.asarray(rng.standard_normal(shape[1]).astype(BF16))
    state = hg.AmaxState(4.0)
    half = x.nbytes // 2
    calls = {
        "softmax": (lambda: hg.softmax(x), 2 * x.nbytes),
        "softmax, causal": (lambda: hg.softmax(x, causal=True), 2 * x.nbytes),
        "rms_norm": (lambda: hg.rms_norm(x, w), 2 * x.nbytes),
        "residual": (lambda: hg.rms_norm(x, w, residual=x), 4 * x.nbytes),
        "fp8": (lambda: hg.rms_norm(x, w, out_format="fp8_e4m3", out_amax=state), x.nbytes + half),
        "mxfp8": (lambda: hg.rms_norm(x, w, out_format="mxfp8_e4m3"), x.nbytes + half + half // 32),
        "astype": (lambda: x.astype(F32), 3 * x.nbytes),
        "sum": (lambda: x + x, 3 * x.nbytes),
        "product with a row": (lambda: x * w, 2 * x.nbytes),
        "number": (lambda: x * 0.5, 2 * x.nbytes),
    }
    kernels = ("softmax", "rms_norm", "elementwise")
    hg.emulator_counters(reset=True, addresses=True)
    try:
        for name, (call, least) in calls.items():
            call()
            found = hg.emulator_counters(reset=True).each
            moved = sum(
                launch.counters.global_read_bytes + launch.counters.global_written_bytes
                for launch in found
                if launch.kernel.startswith(kernels)
            )
            assert 0 < moved <= least / 0.9, (name, moved / least)
    finally:
        hg.emulator_counters(reset=True, addresses=False)
