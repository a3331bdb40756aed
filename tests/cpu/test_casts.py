"""Every value of every narrow format, and every cast, against arithmetic on the bit fields."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hipgemm.formats import elements as formats
from hipgemm.formats.elements import (
    MXFP4_E2M1,
    MXFP6_E2M3,
    MXFP6_E3M2,
    MXFP8_E4M3,
    MXFP8_E5M2,
    QUANTIZED,
    SCALE_RULES,
)

ELEMENTS = [MXFP8_E4M3, MXFP8_E5M2, MXFP4_E2M1, MXFP6_E2M3, MXFP6_E3M2]
FIELDS = {
    "mxfp8_e4m3": (4, 3, 7),
    "mxfp8_e5m2": (5, 2, 15),
    "mxfp4_e2m1": (2, 1, 1),
    "mxfp6_e2m3": (2, 3, 1),
    "mxfp6_e3m2": (3, 2, 3),
}  # exponent, mantissa, bias


def meaning(code: int, name: str) -> float:
    """The value of an element's bits, from the definition of the format."""
    exponent_bits, mantissa_bits, bias = FIELDS[name]
    mantissa = code & (2**mantissa_bits - 1)
    exponent = (code >> mantissa_bits) & (2**exponent_bits - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    last = exponent == 2**exponent_bits - 1
    if name == "mxfp8_e4m3" and last and mantissa == 7:
        return math.nan
    if name == "mxfp8_e5m2" and last:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa * 2.0**-mantissa_bits) * 2.0 ** (exponent - bias)


def table(form: formats.Format) -> np.ndarray:
    return np.array([meaning(code, form.name) for code in range(2**form.bits)])


def nearest(x: np.ndarray, form: formats.Format) -> np.ndarray:
    """The elements that `x` rounds to: by midpoints, which are exact in float64; ties to even."""
    grid = table(form)[: 2 ** (form.bits - 1)]
    grid = grid[np.isfinite(grid)]
    middle = (grid[1:] + grid[:-1]) / 2
    size = np.abs(np.where(np.isnan(x), 0, x).astype(np.float64))
    code = np.searchsorted(middle, size, side="left")  # ties round down
    tie = (code < len(middle)) & (middle[np.minimum(code, len(middle) - 1)] == size)
    code += tie & (code % 2 == 1)
    code = code.astype(np.uint8)
    if form is MXFP8_E5M2:
        code[np.isinf(x)] = 0x7C
    return np.where(np.signbit(x), code | (1 << (form.bits - 1)), code).astype(np.uint8)


def check_cast(x: np.ndarray, form: formats.Format) -> None:
    got = formats.cast(x, form)
    codes, number = got.view(np.uint8), ~np.isnan(x)
    np.testing.assert_array_equal(codes[number], nearest(x, form)[number])
    if form.is_packed:
        assert not codes[~number].any()
    else:
        assert np.isnan(got[~number].astype(np.float32)).all()


@pytest.mark.parametrize("form", ELEMENTS, ids=lambda f: f.name)
def test_all_codes_decode(form):
    codes = np.arange(2**form.bits, dtype=np.uint8).view(form.dtype)
    np.testing.assert_array_equal(codes.astype(np.float32), table(form))
    np.testing.assert_array_equal(
        np.signbit(codes.astype(np.float32)), np.arange(len(codes)) >= len(codes) / 2
    )


@pytest.mark.parametrize("form", ELEMENTS, ids=lambda f: f.name)
def test_all_codes_come_back(form):
    codes = np.arange(2**form.bits, dtype=np.uint8)
    values = table(form)
    got = formats.cast(values.astype(np.float32), form).view(np.uint8)
    real = ~np.isnan(values)
    np.testing.assert_array_equal(got[real], codes[real])


@pytest.mark.parametrize("form", ELEMENTS, ids=lambda f: f.name)
def test_every_bfloat16_casts(form):
    every = np.arange(2**16, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        check_cast(every.astype(np.float32), form)


@pytest.mark.parametrize("form", ELEMENTS, ids=lambda f: f.name)
def test_every_float16_casts(form):
    check_cast(np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32), form)


@pytest.mark.parametrize("form", ELEMENTS, ids=lambda f: f.name)
def test_ties_and_their_neighbours(form):
    grid = np.unique(table(form)[np.isfinite(table(form))])
    ties = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    around = np.concatenate(
        [ties, np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, -np.float32(np.inf))]
    )
    check_cast(around, form)


@pytest.mark.parametrize("form", QUANTIZED.values(), ids=lambda f: f.name)
def test_constants_agree_with_ml_dtypes(form):
    info = ml_dtypes.finfo(form.dtype)
    assert form.maximum == float(info.max) == 2.0**form.max_exponent * (form.maximum / 2.0**form.max_exponent)
    assert 1 <= form.maximum / 2.0**form.max_exponent < 2
    assert form.smallest_subnormal == float(info.smallest_subnormal)
    assert form.unit_roundoff == float(info.eps) / 2
    assert form.bits == info.bits


def test_named_e4m3_casts():
    def cast(x):
        return formats.cast(x, MXFP8_E4M3)

    np.testing.assert_array_equal(cast([1000, 464, 465, -1000]).astype(np.float32), [448, 448, 448, -448])
    np.testing.assert_array_equal(cast([-0.0, 2.0**-9, 2.0**-10]).view(np.uint8), [0x80, 0x01, 0])
    np.testing.assert_array_equal(cast([np.inf, -np.inf]).astype(np.float32), [448, -448])


def test_named_e2m1_casts():
    x = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 7, -np.inf, -0.0]
    got = formats.cast(x, MXFP4_E2M1).astype(np.float32)
    np.testing.assert_array_equal(got, [0, 1, 1, 2, 2, 4, 4, 6, -6, 0])
    assert np.signbit(got[-1])


def test_named_6bit_casts():
    x = [0.0625, 0.1875, 7.25, 7.75, 100, -np.inf, -0.0, 0.9375]
    got = formats.cast(x, MXFP6_E2M3)
    np.testing.assert_array_equal(got.view(np.uint8), [0, 2, 0x1E, 0x1F, 0x1F, 0x3F, 0x20, 8])
    x = [0.03125, 0.09375, 26, 30, 100, -np.inf, -0.0, 0.21875]
    got = formats.cast(x, MXFP6_E3M2)
    np.testing.assert_array_equal(got.view(np.uint8), [0, 2, 0x1E, 0x1F, 0x1F, 0x3F, 0x20, 4])


def test_e5m2_saturates_but_keeps_infinity():
    got = formats.cast([61440, 1e30, -1e30, np.inf, -np.inf], MXFP8_E5M2).astype(np.float32)
    np.testing.assert_array_equal(got, [57344, 57344, -57344, np.inf, -np.inf])


# ---- e8m0


def test_every_e8m0_byte():
    got = formats.e8m0_value(np.arange(256))
    np.testing.assert_array_equal(got, [*(2.0 ** (b - 127) for b in range(255)), np.nan])
    np.testing.assert_array_equal(
        np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32), got
    )
    np.testing.assert_array_equal(formats.e8m0_value([134, 255, 0]), [128, np.nan, 2.0**-127])


def ruled(amax: float, rule: str, form: formats.Format) -> int:
    """The scale byte by exact integer arithmetic."""
    if amax == 0:
        return 127 if form.is_packed else 0
    value = Fraction(amax)
    log2 = math.frexp(amax)[1] - 1
    top = math.frexp(form.maximum)[1] - 1
    if rule == "unit":
        e = log2
    elif rule == "floor":
        e = log2 - top
    elif rule == "rceil":
        e = log2 - top - 2
        while value / Fraction(2) ** e > Fraction(form.maximum):
            e += 1
    else:
        step = Fraction(2) ** (log2 - form.mantissa_bits)
        rounded = math.floor(value / step + Fraction(1, 2)) * step
        e = log2 + (rounded >= Fraction(2) ** (log2 + 1)) - top
    return min(max(e, -127), 127) + 127


@pytest.mark.parametrize("form", ELEMENTS, ids=lambda f: f.name)
@pytest.mark.parametrize("rule", SCALE_RULES)
def test_scale_rules(rule, form, rng):
    bits = np.concatenate(
        [
            rng.integers(0, 0x7F800000, 1500),
            (
                np.arange(256)[:255, None] * 2**23
                + np.array([-1, 0, 1, 2**22, 2**22 + 2**21, 2**22 + 2**21 + 1])
            ).ravel(),
            # Both sides of where "even" and "rceil" step up.
            130 * 2**23 + 2**23 - np.arange(2**18, 2**22 + 1, 2**18),
            130 * 2**23 + 2**23 - np.arange(2**18, 2**22 + 1, 2**18) - 1,
            [0, 1, 2, 2**22, 2**23 - 1, 0x7F7FFFFF],
        ]
    )
    amax = bits[bits >= 0].astype(np.uint32).view(np.float32)
    got = formats.scale_byte(amax, rule, form)
    np.testing.assert_array_equal(got, [ruled(float(x), rule, form) for x in amax])


@pytest.mark.parametrize("rule", SCALE_RULES)
def test_scale_rules_for_every_bfloat16(rule):
    amax = np.arange(0x7F80, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    got = formats.scale_byte(amax, rule, MXFP8_E4M3)
    np.testing.assert_array_equal(got, [ruled(float(x), rule, MXFP8_E4M3) for x in amax])


def test_957_under_floor_and_rceil():
    for rule, byte, value in (("floor", 128, 896), ("rceil", 129, 960)):
        assert formats.scale_byte(957, rule, MXFP8_E4M3) == byte
        scale = formats.e8m0_value(byte)
        assert formats.cast(957 / scale, MXFP8_E4M3).astype(np.float32) * scale == value


# ---- packing


def test_fp4_packing():
    codes = np.arange(256, dtype=np.uint8)
    two = np.stack((codes & 15, codes >> 4), axis=-1).view(ml_dtypes.float4_e2m1fn)
    np.testing.assert_array_equal(formats.pack_fp4(two)[:, 0], codes)
    np.testing.assert_array_equal(formats.unpack_fp4(codes[:, None]).view(np.uint8), two.view(np.uint8))
    assert formats.pack_fp4(two.reshape(4, 64, 2)[:, ::-3]).shape == (4, 22, 1)


def test_fp4_packing_ignores_what_a_byte_holds_besides():
    dirty = np.array([0xF1, 0xF2], np.uint8).view(ml_dtypes.float4_e2m1fn)
    assert formats.pack_fp4(dirty) == 0x21


@pytest.mark.parametrize("form", [MXFP6_E2M3, MXFP6_E3M2], ids=lambda f: f.name)
def test_fp6_packing(form, rng):
    codes = rng.integers(0, 256, (3, 40), dtype=np.uint8)  # the upper two bits mean nothing
    for x in (codes, codes[:, ::-2], codes[:0]):
        packed = formats.pack_fp6(x.view(form.dtype))
        for row, got in zip(x, packed, strict=True):
            number = sum((int(code) & 63) << 6 * i for i, code in enumerate(row))
            assert int.from_bytes(got.tobytes(), "little") == number
        assert packed.shape == (len(x), x.shape[1] * 3 // 4)
        back = formats.unpack_fp6(packed, form.name)
        assert back.dtype == form.dtype
        np.testing.assert_array_equal(back.view(np.uint8), x & 63)


@pytest.mark.parametrize("blocks", [0, 1, 3, 4, 5, 13])
def test_packed_scales(blocks, rng):
    scale = rng.integers(0, 256, (6, blocks), dtype=np.uint8)
    packed = formats.pack_mx_scales(scale.view(ml_dtypes.float8_e8m0fnu))
    assert packed.shape == (-(-blocks // 4), 6)
    for row in range(6):
        for block in range(4 * packed.shape[0]):
            want = scale[row, block] if block < blocks else 127
            assert (packed[block // 4, row] >> 8 * (block % 4)) & 255 == want
