"""The quantizers on the device, bit for bit against the reference."""

import itertools
import time

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED, SCALE_RULES
from hipgemm.runtime import hip as _hip
from hipgemm.testing import surround

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
INPUTS = [BF16, F16, F32]
MXFP8 = ["mxfp8_e4m3", "mxfp8_e5m2"]
MXFP6 = ["mxfp6_e2m3", "mxfp6_e3m2"]
MX = [*MXFP8, *MXFP6, "mxfp4_e2m1"]
LENGTHS = [0, 1, 31, 32, 33, 96, 128, 160, 1664]


def wide(shape, rng, dtype=F32):
    """Values of all magnitudes, with zeros of both signs."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-20, 20, shape))
    if dtype != F16 and x.ndim > 1:
        x *= np.exp2(rng.integers(-110, 90, (*shape[:-1], 1)))
    x[rng.random(shape) < 0.05] = 0
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.5, x, -x).astype(dtype)


def make(x, format, **options):
    if format == "mxfp4_e2m1":
        return hg.quantize_mxfp4(x, **{"hadamard": False, **options})
    return getattr(hg, f"quantize_{format.split('_')[0]}")(x, format=format, **options)


expect = reference.quantize


def assert_bits(got, want):
    """Equal in every bit; any NaN equals any other."""
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    unsigned = f"u{got.dtype.itemsize}"
    same = got.view(unsigned) == want.view(unsigned) if got.ndim else got == want
    if got.dtype.itemsize > 1 or ml_dtypes.finfo(got.dtype).bits == 8:  # others have no NaN
        same |= np.isnan(got.astype(np.float32)) & np.isnan(want.astype(np.float32))
    bad = np.argwhere(~np.asarray(same))
    first = tuple(bad[0]) if len(bad) else None
    assert first is None, f"{len(bad)} differ, first at {first}: {got[first]}, expected {want[first]}"


def assert_same(got, want):
    assert (got.shape, got.format, got.axis, got.hadamard) == (
        want.shape, want.format, want.axis, want.hadamard,
    )  # fmt: skip
    assert_bits(got.data, want.data)
    assert_bits(got.scale, want.scale)
    assert (got.amax is None) == (want.amax is None)
    if want.amax is not None:
        assert_bits(np.atleast_1d(got.amax), np.atleast_1d(want.amax))


def check(x, format, **options):
    want = expect(x, format, **options)
    got = make(x, format, **options)
    assert isinstance(got.data, np.ndarray)
    assert_same(got, want)
    resident = make(hg.asarray(x), format, **options)
    assert resident.device == 0
    assert_same(resident.get(), want)
    assert_zero_tails(resident)


def assert_zero_tails(q):
    """Each row is padded with zeros to 16 bytes, which products read; with NaN only after NaN."""
    data = q.data if q.axis == -1 else q.data.T
    if data.ndim != 2 or data.shape[0] == 0:
        return
    pitch = data.strides[0]
    assert data.padded
    assert pitch % 16 == 0
    rows, width = data.shape
    everything = hg.DeviceArray(data._block, data.ptr, (rows, pitch), (pitch, 1), np.dtype(np.uint8)).get()
    end = max(16, -(-width // 16) * 16)
    clean = everything[:, width:end] == 0
    if width and QUANTIZED[q.format].bits == 8:
        clean |= np.isnan(everything[:, width - 1 : width].view(q.dtype).astype(F32))
    assert clean.all()


# ---- every input


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("format", MX)
def test_every_16_bit_input(format, rule, dtype):
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    # In order, blocks have one magnitude; by a stride, they mix. Alone, each is its block's maximum.
    alone = np.zeros((2**16 // 16, 32), dtype)
    alone[:, 3] = every[::16]
    for x in (every.reshape(64, 1024), every.reshape(64, 1024).T, alone):
        check(np.ascontiguousarray(x), format, scaling=rule)


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("format", QUANTIZED)
def test_all_magnitudes(format, dtype, rng):
    x = wide((37, 333), rng, dtype)
    for options in [{"scaling": r} for r in SCALE_RULES] if format in MX else [{}, {"axis": -1}]:
        check(x, format, **options)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("format", QUANTIZED)
def test_ragged_lengths(format, length, rng):
    for rows in (1, 2, 16, 37):
        check(rng.standard_normal((rows, length)).astype(BF16), format)


@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("shape", [(0, 32), (5,), (3, 4, 40), (2, 1, 3, 33), (1, 4097), (300, 1)])
def test_shapes(shape, format, rng):
    check(rng.standard_normal(shape).astype(F32), format)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("format", QUANTIZED)
def test_axes(format, axis, rng):
    check(rng.standard_normal((40, 6, 50)).astype(BF16), format, axis=axis)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("format", QUANTIZED)
def test_layouts(format, axis, rng):
    x = hg.asarray(wide((70, 99), rng, BF16))
    views = [
        x.T,
        x[::-1],
        x[:, ::-1],
        x[1::3, 2:],
        x[:, 5:70:2].T,
        x[3:, 1:][::2, ::-3],
        x[None, :, 7:].mT[0],
    ]
    for view in views:
        assert_same(make(view, format, axis=axis).get(), expect(view.get(), format, axis=axis))


@pytest.mark.parametrize("format", QUANTIZED)
def test_rows_that_are_one(format, rng):
    """A stride of 0, as broadcasting makes it."""
    row = hg.asarray(rng.standard_normal((1, 48)).astype(BF16))
    many = hg.DeviceArray(row._block, row.ptr, (5, 48), (0, 2), BF16)
    for view in (row, row[0], row[:, None], many, many.T):
        assert_same(make(view, format).get(), expect(view.get(), format))


@pytest.mark.parametrize("format", QUANTIZED)
def test_nothing_beside_the_input_matters(format, rng):
    x = rng.standard_normal((9, 50)).astype(F32)
    inner = surround(x)
    outer = hg.asarray(inner.base)
    want = expect(x, format)
    assert_same(make(outer[2:11, 8:58], format).get(), want)
    assert_same(make(inner, format), want)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", QUANTIZED)
def test_bad_numbers(format, bad, rng):
    x = rng.standard_normal((6, 200)).astype(BF16)
    x[1, 40], x[4, 199] = bad, bad
    check(x, format)
    check(x, format, axis=-1)
    check(x, format, axis=0)


@pytest.mark.parametrize("format", QUANTIZED)
def test_zeros(format):
    x = np.zeros((3, 70), F32)
    x[1] = -0.0
    check(x, format)
    if format.startswith("fp8"):
        check(x, format, eps=0.0)


@pytest.mark.parametrize("format", QUANTIZED)
def test_subnormals(format, rng):
    x = (rng.integers(-(2**23), 2**23, (4, 96)) * 2.0**-149).astype(F32)
    x[2] *= 2.0**-20
    for options in [{"scaling": r} for r in SCALE_RULES] if format in MX else [{"eps": 0.0}, {}]:
        check(x, format, **options)


# ---- fp8


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize(
    "exponent", [-149, -142, -141, -134, -130, -126, -119, -110, -101, -100, -99, 0, 100, 127]
)
def test_fp8_of_any_amax(format, exponent, rng):
    x = np.append(rng.uniform(-1, 1, 69), 1).astype(F32) * np.float32(2.0**exponent)
    check(x, format, eps=0.0)
    check(x, format)


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_given_amax(format, rng):
    x = rng.standard_normal((20, 50)).astype(F32)
    want = expect(x, format, amax=0.75)
    for amax in (0.75, np.float32(0.75), np.array(0.75, F32), hg.asarray(np.array(0.75, F32))):
        assert_same(make(x, format, amax=amax), want)
        assert_same(make(hg.asarray(x), format, amax=amax).get(), want)
    rows = rng.uniform(0.1, 2, (20, 1)).astype(F32)
    want = expect(x, format, amax=rows, axis=-1)
    assert_same(make(x, format, amax=rows, axis=-1), want)
    assert_same(make(hg.asarray(x), format, amax=hg.asarray(rows), axis=-1).get(), want)
    assert_same(make(x, format, amax=0.75, axis=-1), expect(x, format, amax=0.75, axis=-1))
    assert_same(make(x, format, amax=0.0), expect(x, format, amax=0.0))
    for bad in (np.nan, np.inf, -np.inf, -1.0, 1e39, 10**400, -(10**5000), 3.41e38):
        for amax in (bad, np.array(bad, np.float32) if abs(bad) < 1e40 else bad):
            for on in (np.asarray, hg.asarray):
                if isinstance(amax, np.ndarray) and on is hg.asarray:
                    continue  # amax with x, whose values are not known
                with pytest.raises(ValueError, match="amax must be finite and not negative; got "):
                    make(on(x), format, amax=amax)


@pytest.mark.parametrize(
    "number",
    [
        1j,
        np.complex64(1),
        "1",
        b"1",
        np.str_("1"),
        np.bytes_(b"1"),
        True,
        np.True_,
        None,
        [1.0],
        np.datetime64("2026"),
        np.datetime64(5, "ns"),
        np.timedelta64(5, "ns"),
        np.ma.masked,
    ],
    ids=repr,
)
def test_what_is_no_number(number):
    """For every argument that is a number."""
    x, codes = np.ones((4, 32), np.float32), np.ones((4, 32), ml_dtypes.float8_e4m3fn)
    a = np.ones((4, 32), ml_dtypes.bfloat16)
    calls = {
        "amax": lambda: hg.quantize_fp8(x, number),
        "eps": lambda: hg.quantize_fp8(x, eps=number),
        "scale": lambda: hg.ScaledArray(codes, number, "fp8_e4m3"),
        "value": lambda: hg.AmaxState(number),
        "alpha": lambda: hg.matmul(a, a.T, alpha=number),
        "limit": lambda: hg.limit_memory(number),
        "timeout": lambda: hg.shard(a, [0], axis=0, timeout=number),
    }
    for name, call in calls.items():
        if number is None and name in ("amax", "value", "limit"):
            continue  # their default
        if name == "alpha" and isinstance(number, (bool, np.bool_)):
            continue  # 0 and 1, as for NumPy
        with pytest.raises(TypeError, match=f"{name} must be "):
            call()


@pytest.mark.parametrize("shape", [(1,), (1000,), (64, 4096), (3, 100_003), (2000, 7)])
def test_fp8_finds_the_maximum_wherever_it_is(shape, rng):
    for _ in range(4):
        x = rng.uniform(-1, 1, shape).astype(BF16)
        x.reshape(-1)[rng.integers(x.size)] = -3
        q = hg.quantize_fp8(hg.asarray(x))
        assert q.amax.get() == 3
        assert_same(q.get(), reference.quantize_fp8(x))


# ---- delayed scaling


def test_amax_state(rng):
    state = hg.AmaxState(2.0)
    assert (state.current.get(), state.next.get()) == (2, 0)
    first, second = (rng.standard_normal((30, 40)).astype(F32) for _ in range(2))
    for x in (first, second):
        got = hg.quantize_fp8(hg.asarray(x), state)
        want = reference.quantize_fp8(x, 2.0)
        assert_same(got.get(), want)
    assert state.current.get() == 2
    assert state.next.get() == max(np.abs(first).max(), np.abs(second).max())
    state.step()
    assert state.current.get() == max(np.abs(first).max(), np.abs(second).max())
    assert state.next.get() == 0
    hg.quantize_fp8(hg.asarray(first * np.float32(0.1)), state)
    state.step()
    assert state.current.get() == np.abs(first * np.float32(0.1)).max()  # it may shrink


def test_amax_state_without_a_start(rng):
    state = hg.AmaxState()
    x = rng.standard_normal((30, 40)).astype(F32)
    assert_same(hg.quantize_fp8(x, state), reference.quantize_fp8(x))
    assert state.current.get() == state.next.get() == np.abs(x).max()
    assert_same(hg.quantize_fp8(2 * x, state), reference.quantize_fp8(2 * x, np.abs(x).max()))
    assert state.next.get() == 2 * np.abs(x).max()


def test_amax_state_shows_a_bad_number():
    state = hg.AmaxState(1.0)
    hg.quantize_fp8(np.array([1, np.nan, 3], F32), state)
    hg.quantize_fp8(np.array([5], F32), state)
    state.step()
    assert np.isnan(state.current.get())
    assert np.isnan(hg.quantize_fp8(np.ones(3, F32), state).scale)


@pytest.mark.parametrize(
    ("value", "kind"), [("1", TypeError), (True, TypeError), (-1.0, ValueError), (np.nan, ValueError)]
)
def test_amax_state_errors(value, kind):
    with pytest.raises(kind, match="AmaxState: value must be"):
        hg.AmaxState(value)


# ---- mxfp4


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("length", [0, 16, 32, 48, 160, 1664])
def test_hadamard(dtype, length, rng):
    x = wide((21, length), rng, dtype)
    check(x, "mxfp4_e2m1", hadamard=True)
    check(x.T.copy(), "mxfp4_e2m1", hadamard=True, axis=0)


def test_hadamard_of_bad_numbers(rng):
    x = rng.standard_normal((6, 96)).astype(F32)
    x[0, 3], x[1, 40], x[2, 95] = np.nan, np.inf, -np.inf
    x[3] = np.finfo(F32).max
    check(x, "mxfp4_e2m1", hadamard=True)


def test_packed_on_the_device(rng):
    q = hg.quantize_mxfp4(hg.asarray(rng.standard_normal((5, 33)).astype(F32)), hadamard=False)
    assert (q.data.dtype, q.data.shape, q.shape) == (np.uint8, (5, 17), (5, 33))
    assert (q.T.data.shape, q.T.shape) == ((17, 5), (33, 5))
    back = hg.unpack_fp4(q.data.get())[:, :33]
    np.testing.assert_array_equal(back.view("u1"), q.get().data.view("u1"))


@pytest.mark.parametrize("format", MXFP6)
@pytest.mark.parametrize("length", [1, 2, 3, 4, 33, 70])
def test_packed_6bit_on_the_device(format, length, rng):
    q = hg.quantize_mxfp6(hg.asarray(rng.standard_normal((5, length)).astype(F32)), format=format)
    width = -(-length * 6 // 8)
    assert (q.data.dtype, q.data.shape, q.shape) == (np.uint8, (5, width), (5, length))
    assert (q.T.data.shape, q.T.shape) == ((width, 5), (length, 5))
    assert q.data.strides[0] % 16 == 0
    whole = np.pad(q.data.get(), [(0, 0), (0, -width % 3)])
    back = hg.unpack_fp6(whole, format)[:, :length]
    np.testing.assert_array_equal(back.view("u1"), q.get().data.view("u1"))
    # The same bytes in rows that are not aligned.
    again = hg.ScaledArray(hg.asarray(q.data.get()), q.scale, format)
    assert_bits(hg.dequantize(again).get()[:, :length], reference.dequantize(q.get()))


# ---- several arrays


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("format", MX)
def test_both(format, dtype, rng):
    for shape in ((1, 1), (32, 32), (33, 70), (160, 96), (100, 257)):
        x = wide(shape, rng, dtype)
        options = {"hadamard": False} if format == "mxfp4_e2m1" else {}
        for got, want in zip(
            hg.quantize_both(hg.asarray(x), format, **options),
            reference.quantize_both(x, format, **options),
            strict=True,
        ):
            assert_same(got.get(), want)
            assert_zero_tails(got)
        for got, want in zip(
            hg.quantize_both(x, format, scaling="rceil", **options),
            reference.quantize_both(x, format, scaling="rceil", **options),
            strict=True,
        ):
            assert_same(got, want)


def test_both_with_hadamard(rng):
    x = wide((48, 160), rng, BF16)
    for view in (x, x.T, x[::-1]):
        for got, want in zip(
            hg.quantize_both(view, "mxfp4_e2m1"), reference.quantize_both(view, "mxfp4_e2m1"), strict=True
        ):
            assert_same(got, want)


@pytest.mark.parametrize("format", [*MXFP8, *MXFP6])
def test_transpose_quantize(format, rng):
    transpose = getattr(hg, f"transpose_quantize_{format.split('_')[0]}")
    for shape in ((1, 5), (33, 70), (256, 100)):
        x = wide(shape, rng, BF16)
        want = reference.quantize(x.T, format, scaling="floor")
        got = transpose(hg.asarray(x), format=format, scaling="floor")
        assert_same(got.get(), want)
        assert_zero_tails(got)
        assert_same(transpose(x, format=format, scaling="floor"), want)
        assert_same(transpose(x, format=format), reference.quantize(x.T, format))


# ---- dequantization


@pytest.mark.parametrize("dtype", INPUTS, ids=str)
@pytest.mark.parametrize("format", QUANTIZED)
def test_dequantize(format, dtype, rng):
    x = wide((37, 99), rng, F32)
    x[3, 5] = np.nan
    for options in ({}, {"axis": 0}, {"axis": -1}):
        q = make(hg.asarray(x), format, **options)
        for transposed in (q, q.T):
            want = reference.dequantize(transposed.get(), dtype=dtype)
            assert_bits(hg.dequantize(transposed, dtype=dtype).get(), want)
            assert_bits(hg.dequantize(transposed.get(), dtype=dtype), want)


@pytest.mark.parametrize("format", MX)
def test_every_code_and_scale_dequantizes(format):
    form = QUANTIZED[format]
    codes = np.tile(np.arange(256, dtype=np.uint8) & np.uint8(2**form.bits - 1), (256, 1)).view(form.dtype)
    scale = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 8, axis=1)
    host = hg.ScaledArray(codes, scale, format)
    pack = {4: hg.pack_fp4, 6: hg.pack_fp6, 8: lambda codes: codes}[form.bits]
    data = pack(codes)
    q = hg.ScaledArray(hg.asarray(data), hg.asarray(scale), format)
    for dtype in INPUTS:
        assert_bits(hg.dequantize(q, dtype=dtype).get(), reference.dequantize(host, dtype=dtype))


def test_dequantize_undoes_hadamard(rng):
    x = wide((12, 80), rng, F32)
    q = hg.quantize_mxfp4(hg.asarray(x))
    assert_bits(hg.dequantize(q).get(), reference.dequantize(q.get()))
    q = hg.quantize_mxfp4(hg.asarray(x.T.copy()), axis=0)
    assert_bits(hg.dequantize(q).get(), reference.dequantize(q.get()))


@pytest.mark.parametrize("shape", [(0, 4), (5, 0), (1, 1), (6, 13), (300, 52), (64, 128)])
def test_packed_scales(shape, rng):
    scale = rng.integers(0, 256, shape, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu)
    want = hg.pack_mx_scales(scale)
    got = hg.pack_mx_scales(hg.asarray(scale))
    assert isinstance(got, hg.DeviceArray)
    np.testing.assert_array_equal(got.get(), want)
    # uint8 scales work as well, on both sides.
    np.testing.assert_array_equal(hg.pack_mx_scales(scale.view(np.uint8)), want)
    np.testing.assert_array_equal(hg.pack_mx_scales(hg.asarray(scale).view(np.uint8)).get(), want)
    transposed = hg.pack_mx_scales(hg.asarray(scale).T)
    np.testing.assert_array_equal(transposed.get(), hg.pack_mx_scales(np.ascontiguousarray(scale.T)))


# ---- from public bug reports


@pytest.mark.parametrize("format", QUANTIZED)
def test_zeros_with_a_single_one(format):
    x = np.zeros((256, 256), F32)
    x[17, 100] = 1
    options = {"eps": 0.0} if format.startswith("fp8") else {}
    back = hg.dequantize(make(hg.asarray(x), format, **options)).get()
    assert back[17, 100] == 1
    assert np.count_nonzero(back) == 1


def test_amax_957():
    x = np.zeros((1, 32), F32)
    x[0, 3] = 957
    for rule, byte, value in (("floor", 128, 896), ("rceil", 129, 960)):
        q = hg.quantize_mxfp8(x, scaling=rule)
        assert q.scale.view(np.uint8) == byte
        assert hg.dequantize(q)[0, 3] == value


def test_saturating_e4m3():
    q = hg.quantize_fp8(np.array([1000, 464, 465, -1000], F32), 448.0, eps=0.0)
    np.testing.assert_array_equal(q.data.astype(F32), [448, 448, 448, -448])
    q = hg.quantize_fp8(np.array([-0.0, 2.0**-9, 2.0**-10], F32), 448.0, eps=0.0)
    np.testing.assert_array_equal(q.data.view(np.uint8), [0x80, 0x01, 0])


# ---- errors


X = np.zeros((4, 40), F32)
FNUZ = X.astype(ml_dtypes.float8_e4m3fnuz)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "text"),
    [
        ("quantize_fp8", [X], {"format": "mxfp8_e4m3"}, "format must be one of fp8_e4m3, fp8_e5m2"),
        ("quantize_mxfp8", [X], {"format": "fp8_e4m3"}, "be one of mxfp8_e4m3, mxfp8_e5m2; got"),
        (
            "quantize_both",
            [X, "fp8_e4m3"],
            {},
            "one of mxfp8_e4m3, mxfp8_e5m2, mxfp6_e2m3, mxfp6_e3m2, mxfp4_e2m1; got",
        ),
        ("quantize_both", [X, "mxfp6_e2m3"], {"hadamard": True}, "hadamard must be omitted for mxfp6_e2m3"),
        ("quantize_mxfp6", [X], {"format": "mxfp4_e2m1"}, "be one of mxfp6_e2m3, mxfp6_e3m2; got"),
    ],
)
def test_errors(function, args, kwargs, text):
    with pytest.raises(ValueError, match=f"^{function}: .*{text}"):
        getattr(hg, function)(*args, **kwargs)


def test_types_of_other_number_systems_are_refused():
    with pytest.raises(
        TypeError, match=r"x.dtype must be .*; float8_e4m3fnuz is not the OCP type float8_e4m3fn"
    ):
        hg.quantize_mxfp8(FNUZ)


@pytest.mark.parametrize(
    "to",
    ["float8_e4m3fn", "float8_e5m2", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "float8_e8m0fnu"],
    ids=lambda name: name,
)
def test_asarray_is_no_quantizer(to):
    """NumPy's conversion makes NaN of 465, and of 0 in e8m0."""
    dtype = getattr(ml_dtypes, to)
    with pytest.raises(TypeError, match=f"asarray: x.dtype must be {to}: .* quantize_mxfp8"):
        hg.asarray(X, dtype)
    codes = np.arange(16, dtype=np.uint8).view(dtype)
    np.testing.assert_array_equal(hg.asarray(codes, dtype).get().view(np.uint8), codes.view(np.uint8))


@pytest.mark.parametrize("format", QUANTIZED)
def test_scaled_arrays_go_up_and_come_back(format, rng):
    for shape, axis in (((5, 33), -1), ((33, 5), 0), ((2, 3, 40), -1), ((7,), -1)):
        host = expect(rng.standard_normal(shape).astype(F32), format, axis=axis)
        resident = hg.asarray(host)
        assert (resident.device, resident.shape) == (0, shape)
        assert_same(resident.get(), host)
        assert hg.asarray(resident).data is resident.data
        assert_same(hg.asarray(resident, copy=True).get(), host)


def test_many_calls_leak_no_memory(rng, free_bytes):
    x = hg.asarray(rng.standard_normal((33, 70)).astype(F32))

    def round_of_calls():
        for format in QUANTIZED:
            hg.dequantize(make(x, format))
            make(x, format, axis=0)
        hg.quantize_both(x, "mxfp8_e4m3")

    round_of_calls()
    before = free_bytes()
    for _ in range(30):
        round_of_calls()
    assert free_bytes() == before


def test_streams(streams, rng):
    """Another stream may use the result at once."""
    one, two = streams(), streams()
    x = rng.standard_normal((64, 96)).astype(F32)
    for format, _ in itertools.product(QUANTIZED, range(3)):
        resident = hg.asarray(x, stream=one)
        q = make(resident, format, stream=two)
        assert_bits(hg.dequantize(q, stream=one).get(), reference.dequantize(expect(x, format)))


def test_a_row_of_more_codes_than_29_bits_count():
    """Offsets of its elements exceed 2^32 bits."""
    length, tail = 2**29, 128
    part = hg.zeros((1, length >> 11), F32)
    hg.quantize_fp8(part).data.get()
    began = time.perf_counter()
    hg.quantize_fp8(part).data.get()
    if (time.perf_counter() - began) * 2**11 > 60:
        pytest.skip("needs a device that is not emulated: it would take minutes")
    codes = hg.zeros((1, length + tail), ml_dtypes.float8_e4m3fn)
    last = hg.asarray(np.full((1, tail), 2, codes.dtype))
    _hip.copy("DeviceToDevice", codes.ptr + length, last.ptr, tail, 0)
    x = hg.dequantize(hg.ScaledArray(codes, hg.asarray(np.array(0.5, F32)), "fp8_e4m3"), dtype=BF16)
    both = (hg.dequantize(make(x, format), dtype=BF16) for format in ("fp8_e4m3", "mxfp8_e4m3"))
    for got in (x, *both):
        assert (got[:, length:].get() == 1).all()
        assert (got[:, :tail].get() == 0).all()


@pytest.mark.emulator("counters of memory traffic")
def test_whole_lines_are_written():
    """The write amplification: cache lines that store instructions touch, over the minimum.

    What is more are scales in the order of products, and codes: of 4 bits a row of a tile is half a line,
    a column a quarter; of 6 bits both are three quarters, which two stores touch.
    """
    x = hg.asarray(np.random.default_rng(0).standard_normal((512, 1024)).astype(BF16))
    eight, four = hg.quantize_mxfp8(x), hg.quantize_mxfp4(x)
    scales = 2 / 32  # logical and in GEMM order
    most = {
        "mxfp8": (lambda: hg.quantize_mxfp8(x), 1 + scales, 1.42),
        "mxfp8, axis 0": (lambda: hg.quantize_mxfp8(x, axis=0), 1 + scales, 1.42),
        "mxfp8, both": (lambda: hg.quantize_both(x, "mxfp8_e4m3"), 2 + 2 * scales, 1.42),
        "mxfp6": (lambda: hg.quantize_mxfp6(x), 0.75 + scales, 4.4),
        "mxfp6, axis 0": (lambda: hg.quantize_mxfp6(x, axis=0), 0.75 + scales, 4.4),
        "mxfp4": (lambda: hg.quantize_mxfp4(x), 0.5 + scales, 2.7),
        "mxfp4, axis 0": (lambda: hg.quantize_mxfp4(x, axis=0), 0.5 + scales, 4),
        "fp8": (lambda: hg.quantize_fp8(x), 1, 1.01),  # and the scale
        "mxfp8 to bf16": (lambda: hg.dequantize(eight, dtype=BF16), 2, 1),
        "mxfp4 to bf16": (lambda: hg.dequantize(four, dtype=BF16), 2, 2),
        "mxfp8 to f32": (lambda: hg.dequantize(eight), 4, 2),
    }
    for name, (run, floor, limit) in most.items():
        hg.synchronize()
        hg.emulator_counters(reset=True, addresses=True)
        run()
        hg.synchronize()
        lines = hg.emulator_counters(addresses=False).l2_written_requests / (floor * x.size / 128)
        assert 1 <= lines <= limit, (name, lines, limit)


@pytest.mark.parametrize("amax", [np.nan, np.inf, -np.inf, -3.0, -0.0, -1e-9, -1e-44, -3e38])
@pytest.mark.parametrize("eps", [1e-8, 0.0])
@pytest.mark.parametrize("axis", [None, -1])
def test_an_amax_on_a_device_that_the_host_refuses(amax, eps, axis):
    """NaN for what is not finite, and the formulas for what is negative."""
    x = np.array([[1, -0.5, 0.001, 7, -9, 0]], np.float32).repeat(3, 0)
    given = np.full(() if axis is None else (3, 1), amax, np.float32)
    got = hg.quantize_fp8(hg.asarray(x), hg.asarray(given), axis=axis, eps=eps).get()
    want = reference.quantize_fp8(x, given, axis=axis, eps=eps)
    np.testing.assert_array_equal(got.scale, want.scale)
    np.testing.assert_array_equal(got.data.view(np.uint8), want.data.view(np.uint8))
    if not np.isfinite(amax):
        assert np.isnan(got.scale).all()
        assert np.isnan(got.data.astype(np.float32)).all()
    elif amax == -3:
        np.testing.assert_array_equal(np.sign(got.scale), -1)
        np.testing.assert_allclose(hg.dequantize(got), np.clip(x, -3, 3), rtol=0.1, atol=1e-4)
    if axis is None:
        state = hg.AmaxState(1.0)
        state._values = hg.asarray(np.array([amax, 0], np.float32))
        again = hg.quantize_fp8(hg.asarray(x), state, eps=eps).get()
        np.testing.assert_array_equal(again.data.view(np.uint8), want.data.view(np.uint8))
        _, saved = hg.linear(hg.asarray(x), hg.asarray(x), recipe="fp8", x_amax=hg.asarray(given))
        assert np.isnan(saved.x.scale.get()) == (not np.isfinite(amax))
