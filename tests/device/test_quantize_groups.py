"""Quantizing in groups of rows, bit for bit against the reference."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import SCALE_RULES
from hipgemm.testing import surround

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
pytestmark = pytest.mark.matrix
LENGTHS = [
    [0],
    [1],
    [31, 0, 33, 64, 65],
    [256, 0, 512, 0],
    [33, 95],
    [0, 0, 0],
    [1] * 70,
    [(7 * i) % 41 for i in range(150)],
]


def offsets(lengths):
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def wide(shape, rng, dtype=F32):
    """Values of many magnitudes, with zeros."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-10, 10, shape))
    x *= np.exp2(rng.integers(-4 if dtype == F16 else -100, 4, (1, shape[1])))
    x[rng.random(shape) < 0.05] = 0
    return x.astype(dtype)


def assert_same(got, want):
    assert (got.shape, got.format, got.axis) == (want.shape, want.format, want.axis)
    np.testing.assert_array_equal(got.group_offsets, want.group_offsets)
    for one, other in ((got.data, want.data), (got.scale, want.scale)):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_array_equal(one.view(np.uint8), other.view(np.uint8))


def check(x, o, **options):
    want = reference.quantize_mxfp8(x, axis=0, group_offsets=o, **options)
    assert_same(hg.quantize_mxfp8(x, axis=0, group_offsets=o, **options), want)
    for on_device in (o, hg.asarray(o)):
        q = hg.quantize_mxfp8(hg.asarray(x), axis=0, group_offsets=on_device, **options)
        assert q.group_offsets is on_device or on_device is o
        assert_same(q.get(), want)
        np.testing.assert_array_equal(hg.dequantize(q).get(), reference.dequantize(want))


@pytest.mark.parametrize("tail", [0, 1, 100])
@pytest.mark.parametrize("lengths", LENGTHS, ids=lambda x: f"{len(x)}-groups-{sum(x)}")
def test_any_lengths(lengths, tail, rng):
    check(wide((sum(lengths) + tail, 40), rng), offsets(lengths))


@pytest.mark.parametrize("columns", [1, 15, 16, 127, 128, 129, 300])
def test_any_width(columns, rng):
    check(wide((150, columns), rng, BF16), offsets([33, 64, 20]))


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp8_e5m2"])
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_every_rule_and_type(dtype, format, rule, rng):
    check(wide((100, 130), rng, dtype), offsets([41, 7, 40]), scaling=rule, format=format)


def test_any_layout(rng):
    o = offsets([20, 50, 10])
    x = wide((90, 70), rng)
    want = reference.quantize_mxfp8(x, axis=0, group_offsets=o)
    for view in (hg.asarray(x.T.copy()).T, hg.asarray(x[::-1].copy())[::-1], hg.asarray(surround(x))):
        assert_same(hg.quantize_mxfp8(view, axis=0, group_offsets=o).get(), want)
    assert_same(hg.quantize_mxfp8(surround(x), axis=0, group_offsets=o), want)


def test_nan_and_infinity_spoil_their_block_only(rng):
    x = wide((120, 33), rng)
    x[5, 0], x[40, 1], x[70, 2], x[119, 3] = (
        np.nan,
        np.inf,
        -np.inf,
        np.nan,
    )  # the last one after the last group
    check(x, offsets([33, 64, 20]))


def test_padding_is_zero(rng):
    q = hg.quantize_mxfp8(hg.asarray(wide((64, 17), rng)), axis=0, group_offsets=offsets([64]))
    assert q.data.padded
    assert q.data.strides == (32, 1)
    whole = hg.DeviceArray(q.data._block, q.data.ptr, (64, 32), (32, 1), np.dtype(np.uint8)).get()
    assert not whole[:, 17:].any()


def test_transpose_and_columns_of_codes(rng):
    x, o = wide((64, 24), rng), offsets([10, 54])
    q = hg.quantize_mxfp8(hg.asarray(x), axis=0, group_offsets=o)
    want = reference.quantize_mxfp8(x, axis=0, group_offsets=o)
    np.testing.assert_array_equal(hg.dequantize(q.T).get(), reference.dequantize(want).T)
    assert_same(q.T.get().T, want)


def test_offsets_that_are_wrong(rng):
    x = wide((64, 8), rng)
    for given in (x, hg.asarray(x)):
        with pytest.raises(
            ValueError, match=r"quantize_mxfp8: group_offsets must not decrease; got group_off"
        ):
            hg.quantize_mxfp8(given, axis=0, group_offsets=np.array([0, 9, 3], np.int32))
        with pytest.raises(ValueError, match="x must be a matrix and axis 0 with group_offsets"):
            hg.quantize_mxfp8(given, group_offsets=offsets([64]))
        with pytest.raises(TypeError, match="got list"):
            hg.quantize_mxfp8(given, axis=0, group_offsets=[0, 64])


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([3, 64], r"group_offsets\[0\] must be 0; got 3"),
        ([0, 40, 20, 64], r"must not decrease; got group_offsets\[2\]=20 after group_offsets\[1\]=40"),
        ([0, 64, 0, 64, 0, 64], r"must not decrease; got group_offsets\[2\]=0 after group_offsets\[1\]=64"),
        ([0, 65], r"must be at most 64, the number of rows; got group_offsets\[1\]=65"),
        ([0, -5], r"must not decrease; got group_offsets\[1\]=-5 after group_offsets\[0\]=0"),
        ([0, 2**31 - 1], r"must be at most 64, the number of rows; got group_offsets\[1\]=2147483647"),
    ],
)
def test_offsets_that_are_wrong_on_the_device(given, text, rng):
    x = hg.asarray(wide((64, 8), rng))
    q = hg.quantize_mxfp8(x, axis=0, group_offsets=hg.asarray(np.array(given, np.int32)))
    with pytest.raises(hg.HipError, match=text):
        q.data.get()
    q.data.get()  # reported once
    check(x.get(), offsets([33, 31]))
