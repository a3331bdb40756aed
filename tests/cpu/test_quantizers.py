"""The reference quantizers against scalar arithmetic, and inputs of other libraries' bug reports."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED, SCALE_RULES, cast, e8m0_value, scale_byte
from hipgemm.formats.scaled import ScaledArray

BF16 = np.dtype(ml_dtypes.bfloat16)
MX = ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1", "mxfp6_e2m3", "mxfp6_e3m2"]
quantize = reference.quantize


def codes(q):
    return q.data.view(np.uint8)


def scales(q):
    return q.scale.view(f"u{q.scale.dtype.itemsize}")


def nearest(value: Fraction, form) -> float:
    """Round an exact number to a format: ties to even, overflow to the largest."""
    size = abs(value)
    if size == 0:
        return 0.0
    exponent = max(math.frexp(float(size))[1] - 1, form.min_exponent)
    step = Fraction(2) ** (exponent - form.mantissa_bits)
    return math.copysign(min(float(round(size / step) * step), form.maximum), value)


@pytest.mark.parametrize("format", MX)
@pytest.mark.parametrize("rule", SCALE_RULES)
def test_mx_blocks_by_exact_arithmetic(format, rule, rng):
    form = QUANTIZED[format]
    x = rng.standard_normal((12, 77)) * np.exp2(rng.integers(-12, 12, (12, 77)))
    x *= np.exp2(rng.integers(-100, 100, (12, 1)))
    x[0] *= 2.0**-142  # subnormals
    x = x.astype(np.float32)
    q = quantize(x, format, scaling=rule)
    assert q.scale.shape == (12, 3)
    for row in range(12):
        for block in range(3):
            part = x[row, 32 * block : 32 * block + 32]
            byte = int(scale_byte(np.abs(part).max(), rule, form))
            assert scales(q)[row, block] == byte
            expected = [nearest(Fraction(float(v)) / Fraction(2) ** (byte - 127), form) for v in part]
            np.testing.assert_array_equal(
                q.data[row, 32 * block : 32 * block + 32].astype(np.float32), expected
            )


def by_rule(amax, rule, form):
    """Scale bytes in float64, where all of this is exact."""
    fraction, exponent = np.frexp(amax)  # in [1/2, 1)
    if rule == "even":
        rounded = np.floor(fraction * 2.0 ** (form.mantissa_bits + 1) + 0.5) / 2.0 ** (form.mantissa_bits + 1)
        exponent = exponent + (rounded == 1)
    top = {"unit": 0}.get(rule, form.max_exponent)
    e = exponent - 1 - top
    if rule == "rceil":
        e = e + (amax > form.maximum * np.exp2(e.astype(np.float64)))
    zero = 127 if form.bits < 8 else 0
    return np.where(amax == 0, zero, np.clip(e + 127, 0, 254)).astype(np.uint8)


@pytest.mark.parametrize("dtype", [BF16, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("format", MX)
def test_every_16_bit_input(format, rule, dtype):
    """By float64 and the casts of ml_dtypes: as the maximum of a block, among others, and next to 1."""
    form = QUANTIZED[format]
    every = np.arange(2**16, dtype=np.uint16).view(dtype)
    alone = np.zeros((2**16, 32), dtype)
    alone[:, 5] = every
    with_one = every.reshape(-1, 16).repeat(2, axis=1)
    with_one[:, ::2] = 1
    for x in (alone, every.reshape(-1, 32), every.reshape(32, -1).T, with_one):
        with np.errstate(invalid="ignore"):  # some are signalling NaNs
            wide = x.astype(np.float32).astype(np.float64)
        amax = np.max(np.abs(wide), axis=1)
        bad = ~np.isfinite(amax)
        byte = np.where(bad, 255, by_rule(np.where(bad, 1, amax), rule, form))
        q = quantize(np.ascontiguousarray(x), format, scaling=rule)
        np.testing.assert_array_equal(scales(q)[:, 0], byte)
        scaled = wide[~bad] / np.exp2(byte[~bad].astype(np.float64) - 127)[:, None]
        want = np.clip(scaled, -form.maximum, form.maximum).astype(form.dtype)
        np.testing.assert_array_equal(codes(q)[~bad], want.view(np.uint8))
        if form.is_packed:
            assert not codes(q)[bad].any()
        else:
            assert np.isnan(q.data[bad].astype(np.float32)).all()


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("format", QUANTIZED)
def test_narrow_inputs_count_as_their_values(format, dtype, rng):
    x = rng.standard_normal((5, 64)).astype(dtype)
    q, wide = quantize(x, format), quantize(x.astype(np.float32), format)
    np.testing.assert_array_equal(codes(q), codes(wide))
    np.testing.assert_array_equal(scales(q), scales(wide))


@pytest.mark.parametrize("format", MX)
def test_axes(format, rng):
    x = rng.standard_normal((40, 3, 50)).astype(np.float32)
    for axis in (0, 1, -1):
        q = quantize(x, format, axis=axis)
        moved = quantize(np.ascontiguousarray(np.moveaxis(x, axis, -1)), format)
        assert q.shape == q.data.shape == x.shape
        np.testing.assert_array_equal(codes(q), np.moveaxis(codes(moved), -1, axis))
        np.testing.assert_array_equal(scales(q), np.moveaxis(scales(moved), -1, axis))
        np.testing.assert_array_equal(
            reference.dequantize(q), np.moveaxis(reference.dequantize(moved), -1, axis)
        )


@pytest.mark.parametrize("format", MX)
@pytest.mark.parametrize("n", [0, 1, 31, 32, 33, 96, 128, 160])
def test_ragged_blocks(format, n, rng):
    x = rng.standard_normal((3, n)).astype(np.float32)
    q = quantize(x, format)
    assert q.scale.shape == (3, -(-n // 32))
    assert q.data.shape == (3, n)
    if n % 32:
        alone = quantize(x[:, n // 32 * 32 :], format)
        np.testing.assert_array_equal(scales(q)[:, -1:], scales(alone))
        np.testing.assert_array_equal(codes(q)[:, n // 32 * 32 :], codes(alone))


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("format", MX)
def test_zero_blocks(format, rule):
    q = quantize(np.array([[0.0, -0.0] * 16], np.float32), format, scaling=rule)
    form = QUANTIZED[format]
    assert scales(q) == (127 if form.is_packed else 0)
    minus = 1 << (form.bits - 1)
    np.testing.assert_array_equal(codes(q)[0], [0, minus] * 16)
    np.testing.assert_array_equal(reference.dequantize(q), np.zeros((1, 32)))


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("format", MX)
def test_a_bad_number_spoils_its_block_alone(format, bad, rng):
    x = rng.standard_normal((2, 96)).astype(np.float32)
    clean = quantize(x, format)
    x[1, 40] = bad
    q = quantize(x, format)
    nan_block = np.zeros((2, 96), bool)
    nan_block[1, 32:64] = True
    np.testing.assert_array_equal(scales(q) == 255, [[0, 0, 0], [0, 1, 0]])
    np.testing.assert_array_equal(codes(q)[~nan_block], codes(clean)[~nan_block])
    if QUANTIZED[format].is_packed:
        assert not codes(q)[nan_block].any()
    else:
        assert np.isnan(q.data[nan_block].astype(np.float32)).all()
    assert (np.isnan(reference.dequantize(q)) == nan_block).all()


@pytest.mark.parametrize("format", MX)
def test_ends_of_float32(format):
    tiny, huge = np.float32(2.0**-149), np.finfo(np.float32).max
    x = np.zeros((2, 32), np.float32)
    x[0, :2], x[1, :2] = (tiny, 2.0**-126), (huge, -1.0)
    q = quantize(x, format, scaling="unit")
    np.testing.assert_array_equal(scales(q)[:, 0], [1, 254])
    np.testing.assert_array_equal(q.data[:, 0].astype(np.float32), [0, 2])
    assert np.isinf(reference.dequantize(q)[1, 0])  # 2^128: documented, not altered
    assert reference.values(q)[1, 0] == 2.0**128
    all_tiny = quantize(np.full((1, 32), tiny), format, scaling="unit")
    assert scales(all_tiny) == 0
    assert np.signbit(quantize(np.full((1, 32), -tiny), format).data.astype(np.float32)).all()


# ---- Hadamard


def test_hadamard_is_sylvester_s():
    h2 = np.array([[1, 1], [1, -1]])
    h16 = np.kron(np.kron(h2, h2), np.kron(h2, h2))
    rng = np.random.default_rng(3)
    x = rng.integers(-1000, 1000, (5, 48)).astype(np.float32)
    expected = (x.reshape(5, 3, 16) @ h16 / 4).reshape(5, 48)
    np.testing.assert_array_equal(reference.hadamard(x), expected)
    np.testing.assert_array_equal(reference.hadamard(reference.hadamard(x)), x)


def test_hadamard_butterflies_round_in_order():
    x = np.array([2.0**24, 1, 1, 1] + [0] * 12, np.float32)
    # (2^24 + 1) rounds to 2^24 and (1 + 1) is added after it; left to right it would stay 2^24.
    assert reference.hadamard(x)[0] == (2**24 + 2) / 4


def test_hadamard_spreads_an_outlier_and_is_undone(rng):
    x = rng.standard_normal((4, 64)).astype(np.float32)
    x[2, 5] = 40
    plain, rotated = (reference.quantize_mxfp4(x, hadamard=h) for h in (False, True))
    assert (plain.hadamard, rotated.hadamard) == (False, True)
    error = [np.linalg.norm(reference.dequantize(q) - x) for q in (plain, rotated)]
    assert error[1] < error[0]
    np.testing.assert_array_equal(
        reference.dequantize(rotated), reference.hadamard(reference.values(rotated).astype(np.float32))
    )


def test_hadamard_cancels_in_a_product(rng):
    a, b = (rng.integers(-2, 3, (4, 32)).astype(np.float32) for _ in range(2))
    h = reference.hadamard
    np.testing.assert_array_equal(h(a) @ h(b).T, a @ b.T)


def test_hadamard_needs_groups_of_16():
    with pytest.raises(ValueError, match=r"multiple of 16 .* got 40; pass hadamard=False"):
        reference.quantize_mxfp4(np.zeros((2, 40), np.float32))


def test_overflow_inside_the_hadamard_spoils_the_block():
    x = np.full((1, 32), np.finfo(np.float32).max)
    q = reference.quantize_mxfp4(x)
    assert scales(q) == 255
    assert not codes(q).any()


# ---- one scale for a tensor or a row


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8_by_scalar_arithmetic(format, rng):
    form, f = QUANTIZED[format], np.float32
    x = rng.standard_normal((3, 50)).astype(f)
    q = reference.quantize_fp8(x, format=format)
    total = np.abs(x).max() + f(1e-8)
    assert q.scale == total / f(form.maximum)
    assert q.scale.shape == q.amax.shape == ()
    assert q.amax == np.abs(x).max()
    up = f(form.maximum) / total
    expected = [nearest(Fraction(float(v * up)), form) for v in x.ravel()]
    np.testing.assert_array_equal(q.data.ravel().astype(f), expected)


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_fp8_rows(axis, rng):
    x = (rng.standard_normal((3, 20)) * [[1], [100], [0.01]]).astype(np.float32)
    q = reference.quantize_fp8(x, axis=axis)
    assert q.scale.shape == q.amax.shape == ((1, 20) if axis == 0 else (3, 1))
    for i, row in enumerate(x.T if axis == 0 else x):
        alone = reference.quantize_fp8(row)
        np.testing.assert_array_equal(codes(q).T[i] if axis == 0 else codes(q)[i], codes(alone))
        assert q.scale.ravel()[i] == alone.scale


def test_fp8_given_amax_saturates_and_reports_its_own():
    x = np.array([1.0, -4.0, np.inf], np.float32)
    q = reference.quantize_fp8(x[:2], 2.0, eps=0.0)
    np.testing.assert_array_equal(q.data.astype(np.float32), [224, -448])
    assert q.amax == 4
    assert q.scale == np.float32(2 / 448)
    assert reference.quantize_fp8(x, 2.0).data[2].astype(np.float32) == 448


def test_fp8_of_zeros():
    x = np.array([0.0, -0.0], np.float32)
    for eps, scale in ((1e-8, np.float32(1e-8) / np.float32(448)), (0.0, 1.0)):
        q = reference.quantize_fp8(x, eps=eps)
        assert q.scale == np.float32(scale)
        np.testing.assert_array_equal(codes(q), [0, 0x80])


@pytest.mark.parametrize("exponent", [-90, -99, -100, -101, -110, -117, -120, -126, -130])
def test_fp8_of_tiny_tensors(exponent):
    """448 / amax overflows below 2^-119: the elements must not."""
    x = (np.array([1.0, -0.5, 0.25, 0.0]) * 2.0**exponent).astype(np.float32)
    q = reference.quantize_fp8(x, eps=0.0)
    np.testing.assert_array_equal(q.data.astype(np.float32), [448, -224, 112, 0])
    if exponent >= -117:
        np.testing.assert_allclose(reference.dequantize(q), x, rtol=2.0**-23, atol=0)


def test_fp8_scale_that_would_vanish():
    for amax, scale in ((448 * 2.0**-150, 1.0), (450 * 2.0**-150, 2.0**-149)):
        q = reference.quantize_fp8(np.array([amax, -amax], np.float32), eps=0.0)
        assert q.scale == np.float32(scale)
        assert (codes(q) == [0, 0x80]).all() == (scale == 1)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_fp8_shows_a_bad_number(bad):
    q = reference.quantize_fp8(np.array([[1, bad], [1, 2]], np.float32))
    assert np.isnan(q.scale)
    assert np.isnan(q.data.astype(np.float32)).all()
    rows = reference.quantize_fp8(np.array([[1, bad], [1, 2]], np.float32), axis=-1)
    np.testing.assert_array_equal(np.isnan(rows.scale[:, 0]), [True, False])
    np.testing.assert_array_equal(np.isnan(reference.dequantize(rows)), [[1, 1], [0, 0]])


def test_fp8_of_nothing():
    assert reference.quantize_fp8(np.zeros((0, 4), np.float32)).amax == 0
    assert reference.quantize_fp8(np.zeros((3, 0), np.float32), axis=-1).scale.shape == (3, 1)


# ---- from public bug reports


@pytest.mark.parametrize("format", QUANTIZED)
def test_zeros_with_a_single_one(format):
    x = np.zeros((256, 256), np.float32)
    x[17, 100] = 1
    back = reference.dequantize(quantize(x, format, **({"eps": 0.0} if format.startswith("fp8") else {})))
    assert back[17, 100] == 1
    assert np.count_nonzero(back) == 1


def test_amax_957():
    x = np.zeros((1, 32), np.float32)
    x[0, 3] = 957
    for rule, byte, value in (("floor", 128, 896), ("rceil", 129, 960)):
        q = reference.quantize_mxfp8(x, scaling=rule)
        assert scales(q) == byte
        assert reference.dequantize(q)[0, 3] == value


def test_scale_bytes_134_255_0():
    data = np.ones((1, 96), np.float32).astype(ml_dtypes.float8_e4m3fn)
    q = ScaledArray(data, np.array([[134, 255, 0]], np.uint8), "mxfp8_e4m3")
    np.testing.assert_array_equal(reference.dequantize(q)[0, ::32], [128, np.nan, 2.0**-127])


# ---- dequantize, both


@pytest.mark.parametrize("format", QUANTIZED)
def test_dequantize_is_code_times_scale(format, rng):
    x = rng.standard_normal((3, 70)).astype(np.float32)
    q = quantize(x, format)
    scale = q.scale.astype(np.float64)
    if QUANTIZED[format].block:
        scale = np.repeat(scale, 32, axis=-1)[:, :70]
    exact = q.data.astype(np.float64) * scale
    np.testing.assert_array_equal(reference.values(q), exact)
    np.testing.assert_array_equal(reference.dequantize(q), exact.astype(np.float32))
    half = reference.dequantize(q, dtype=np.float16)
    np.testing.assert_array_equal(half, exact.astype(np.float32).astype(np.float16))
    np.testing.assert_array_equal(reference.dequantize(q, dtype=BF16), exact.astype(np.float32).astype(BF16))


def test_dequantize_into_an_integer():
    with pytest.raises(TypeError, match="dtype must be bfloat16, float16 or float32"):
        reference.dequantize(reference.quantize_mxfp8(np.zeros(3, np.float32)), dtype=np.int8)


@pytest.mark.parametrize("format", MX)
def test_both(format, rng):
    x = rng.standard_normal((64, 96)).astype(np.float32)
    rows, columns = reference.quantize_both(x, format)
    assert (rows.axis, columns.axis) == (-1, -2)
    options = {"hadamard": True} if format == "mxfp4_e2m1" else {}
    np.testing.assert_array_equal(codes(rows), codes(quantize(x, format, **options)))
    np.testing.assert_array_equal(codes(columns), codes(quantize(x.T, format, **options)).T)
    if format != "mxfp4_e2m1":
        transpose = getattr(reference, f"transpose_quantize_{format.split('_')[0]}")
        transposed = transpose(x, format=format)
        np.testing.assert_array_equal(codes(transposed), codes(columns).T)
        np.testing.assert_array_equal(scales(transposed), scales(columns).T)


def test_unit_rule_at_the_block_maximum(rng):
    """The maximum lands in [1, 2): nothing saturates, and a power of two stays exact."""
    x = np.exp2(rng.integers(-100, 100, (50, 1))) * np.eye(50, 32)
    q = reference.quantize_mxfp8(x.astype(np.float32))
    np.testing.assert_array_equal(reference.dequantize(q), x)
    np.testing.assert_array_equal(e8m0_value(scales(q)[:32, 0]), x.max(axis=1)[:32].astype(np.float32))
    assert cast(1, QUANTIZED["mxfp8_e4m3"]).view(np.uint8) == codes(q)[0, 0]


def test_other_types_are_refused():
    for x in (np.zeros(4), np.zeros(4, np.int32), np.zeros(4, ml_dtypes.float8_e4m3fn)):
        with pytest.raises(TypeError, match=r"x.dtype must be bfloat16, float16 or float32; got"):
            reference.quantize_mxfp8(x)
