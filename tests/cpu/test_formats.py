from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hipgemm.formats.elements import BF16, F16, F32, FORMATS, as_unsigned, format_of, round_once


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
    """The nearest number of a format by exact arithmetic, ties to the even code."""
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
