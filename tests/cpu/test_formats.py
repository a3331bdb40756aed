import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hipgemm.formats.elements import (
    BF16,
    F16,
    F32,
    FORMATS,
    MXFP4_E2M1,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    as_unsigned,
    cast,
    format_of,
    nearest_float,
    round_once,
)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda f: f.name)
def test_constants_agree_with_ml_dtypes(form):
    info = ml_dtypes.finfo(form.dtype)
    assert form.unit_roundoff == float(info.eps) / 2
    assert form.smallest_subnormal == float(info.smallest_subnormal)
    assert form.itemsize * 8 == info.bits
    assert format_of(form.dtype) is form


@pytest.mark.parametrize("other", [np.int16, np.float64, ml_dtypes.float8_e4m3fn, "no such type", object])
def test_unknown_types_have_no_format(other):
    assert format_of(other) is None


def nearest_even(value: float, form) -> float:
    """The nearest value of a format by exact arithmetic, ties to even."""
    codes = np.arange(0, 2 ** (8 * form.itemsize - 1), dtype=np.uint16)
    with np.errstate(invalid="ignore"):  # some codes are signalling NaNs
        finite = codes[np.isfinite(codes.view(form.dtype))]
    below = int(np.searchsorted(finite.view(form.dtype).astype(np.float64), abs(value), side="right")) - 1
    low = Fraction(float(finite[below : below + 1].view(form.dtype)[0]))
    if below + 1 == len(finite):
        step = low - Fraction(float(finite[below - 1 : below].view(form.dtype)[0]))
        return np.copysign(float(low) if Fraction(abs(value)) < low + step / 2 else np.inf, value)
    high = Fraction(float(finite[below + 1 : below + 2].view(form.dtype)[0]))
    up, down = high - Fraction(abs(value)), Fraction(abs(value)) - low
    take_high = up < down or (up == down and below % 2 == 1)
    return np.copysign(float(high if take_high else low), value)


@pytest.mark.parametrize("form", [BF16, F16], ids=lambda f: f.name)
def test_round_once_is_exact(form, rng):
    values = np.concatenate(
        [
            rng.standard_normal(300) * np.exp2(rng.integers(-140, 128, 300)),
            np.float64(1) + np.array([1, 3, 5, 255]) * form.unit_roundoff,  # ties
            (1 + form.unit_roundoff) * (1 + np.array([2.0**-30, 2.0**-52, -(2.0**-30), -(2.0**-52)])),
            np.array([1, 0.5, 0.5000001, 1.5, 0.49]) * form.smallest_subnormal,
            np.array([0.0, 65504.0, 65519.99, 65520.0, 3.3895e38, 3.397e38, 1e300]),
        ]
    )
    values = np.concatenate([values, -values])
    expected = np.array([nearest_even(float(v), form) for v in values])
    np.testing.assert_array_equal(round_once(values, form).astype(np.float64), expected)


def rounded(value: Fraction, form, overflow: float) -> float:
    """A number rounded to a format's spacing by exact arithmetic, ties to even."""
    if value == 0:
        return 0.0
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, form.min_exponent) - form.mantissa_bits)
    found = round(value / step) * step
    return float(found) if abs(found) <= form.maximum else math.copysign(overflow, value)


def near_ties(dtype: np.dtype, form) -> np.ndarray:
    """Numbers of a type at ties of a format, and as near to these as the type allows."""
    if dtype.kind in "iu":
        most = int(np.iinfo(dtype).max)
        powers = [2**n for n in range(form.mantissa_bits + 1, dtype.itemsize * 8)]
        ties = [p + m * (p >> form.mantissa_bits) // 2 for p in powers for m in (1, 2, 3)]
        found = [t + by for t in ties for by in (-1, 0, 1)] + [most, 0]
        found = [x for x in found if x <= most]
        return np.array(found + [-x for x in found if dtype.kind == "i"], dtype)
    last = form.mantissa_bits + 1
    powers = [dtype.type(2) ** n for n in (form.min_exponent - 1, form.min_exponent, 0, 1, 10)]
    bits = np.finfo(dtype).nmant
    tiny = [dtype.type(2) ** -n for n in (*range(last, bits), bits)]
    ties = [p * (1 + m * dtype.type(2) ** -last) for p in powers for m in (1, 2, 3)]
    more = [t * (1 + s * by) for t in ties for by in tiny for s in (1, -1)]
    return np.array([*ties, *more, *(-x for x in more)], dtype)


@pytest.mark.parametrize(
    "form",
    [BF16, F16, F32, MXFP8_E4M3, MXFP8_E5M2, MXFP6_E2M3, MXFP6_E3M2, MXFP4_E2M1],
    ids=lambda f: f.name,
)
@pytest.mark.parametrize("source", ["i4", "i8", "u8", "f4", "f8", np.longdouble, "?"])
def test_every_cast_rounds_once(source, form):
    dtype = np.dtype(source)
    x = np.array([True, False]) if source == "?" else near_ties(dtype, form)
    exact = [Fraction(*v.as_integer_ratio()) if dtype.kind == "f" else Fraction(int(v)) for v in x]
    if form in FORMATS.values():
        got, overflow = round_once(x, form), np.inf
    else:
        got, overflow = cast(x, form), form.maximum
    np.testing.assert_array_equal(got.astype(np.float64), [rounded(v, form, overflow) for v in exact])


def test_named_integers_to_bfloat16():
    above_the_tie = np.array([2**60 + 2**52 + 1])
    for x in (above_the_tie, above_the_tie.astype(np.uint64), above_the_tie.astype(np.longdouble)):
        assert int(round_once(x, BF16).astype(np.float64)[0]) == 2**60 + 2**53


@pytest.mark.parametrize("kind", [int, Fraction, np.longdouble])
@pytest.mark.parametrize("power", [40, 60, 120, 1020])
def test_numbers_reach_float32_by_one_rounding(kind, power):
    for low in (-1, 0, 1):
        value = kind(2**power + 2 ** (power - 24) + low)
        exact = Fraction(*value.as_integer_ratio())
        want = rounded(exact, F32, np.inf)
        for sign in (1, -1):
            with np.errstate(over="ignore"):
                assert float(np.float32(nearest_float(sign * value))) == sign * want


def test_round_once_keeps_specials():
    x = np.array([np.nan, np.inf, -np.inf, -0.0])
    for form in FORMATS.values():
        got = round_once(x, form).astype(np.float64)
        np.testing.assert_array_equal(got, x)
        assert np.signbit(got[3])


def test_round_once_to_float32_is_numpy_s(rng):
    x = rng.standard_normal(1000)
    np.testing.assert_array_equal(round_once(x, F32), x.astype(np.float32))


def test_as_unsigned_views_strided_arrays():
    x = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(2, 3).T[::-1]
    view = as_unsigned(x)
    assert view.dtype == np.uint16
    assert view.strides == x.strides
    assert view[0, 0] == 0x4000
