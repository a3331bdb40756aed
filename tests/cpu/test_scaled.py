"""What a ScaledArray accepts, and its views."""

import pickle
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from hipgemm import reference
from hipgemm.errors import shown
from hipgemm.formats.elements import QUANTIZED
from hipgemm.formats.scaled import ScaledArray, pack_along, unpack_along

E4M3, E5M2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
E8M0, BF16 = ml_dtypes.float8_e8m0fnu, ml_dtypes.bfloat16


def make(format="mxfp8_e4m3", shape=(4, 70), dtype=E4M3, scale=None, **options):
    data = np.zeros(shape, dtype)
    return ScaledArray(data, np.zeros((4, 3), E8M0) if scale is None else scale, format, **options)


@pytest.mark.parametrize(
    "scale", [1e39, -1e39, 10**400, 10**5000, np.float64(1e-60), Fraction(1, 10**60)], ids=shown
)
def test_scales_that_float32_cannot_hold(scale):
    with pytest.raises(ValueError, match="ScaledArray: scale must fit float32; got "):
        make("fp8_e4m3", scale=scale)


@pytest.mark.parametrize("scale", [2, 0.5, np.float64(1e-45), Fraction(1, 4), np.inf, np.nan, BF16(3)])
def test_scales_that_float32_holds(scale):
    np.testing.assert_array_equal(make("fp8_e4m3", scale=scale).scale, np.float32(float(scale)))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol, rng):
    x = rng.standard_normal((64, 32)).astype(np.float32)
    offsets = np.array([0, 3, 64], np.int32)
    made = (
        reference.quantize_fp8(x),
        reference.quantize_fp8(x, axis=0).T,
        reference.quantize_mxfp4(x),
        reference.quantize_mxfp6(x, format="mxfp6_e3m2"),
        reference.quantize_mxfp8(x, axis=0, group_offsets=offsets),
    )
    for q in made:
        again = pickle.loads(pickle.dumps(q, protocol))
        for name in ("format", "axis", "shape", "hadamard"):
            assert getattr(again, name) == getattr(q, name)
        for name in ("data", "scale", "amax", "group_offsets"):
            np.testing.assert_array_equal(getattr(again, name), getattr(q, name))
        np.testing.assert_array_equal(reference.dequantize(again), reference.dequantize(q))


def test_shapes_and_axes():
    q = make()
    assert (q.shape, q.ndim, q.dtype, q.axis, q.device, q.amax) == (
        (4, 70),
        2,
        np.dtype(E4M3),
        -1,
        None,
        None,
    )
    assert q.nbytes == 4 * 70 + 4 * 3
    assert make(axis=1).axis == -1
    transposed = make(scale=np.zeros((1, 70), E8M0), axis=0)
    assert transposed.axis == -2
    assert make(scale=np.zeros((4, 3), np.uint8)).scale.dtype == E8M0


def test_views_share_what_they_view(rng):
    q = reference.quantize_mxfp8(rng.standard_normal((2, 3, 70)).astype(np.float32))
    for view, axes in ((q.T, (2, 1, 0)), (q.mT, (0, 2, 1))):
        assert np.shares_memory(view.data, q.data)
        assert view.shape == view.data.shape
        np.testing.assert_array_equal(reference.dequantize(view), reference.dequantize(q).transpose(axes))
    assert (q.T.axis, q.mT.axis, q.mT.mT.axis, q.T.T.axis) == (-3, -2, -1, -1)
    x = np.ones((2, 3, 4), np.float32)
    scalar, rows = reference.quantize_fp8(x), reference.quantize_fp8(x, axis=-1)
    assert (scalar.mT.scale.shape, rows.mT.scale.shape, rows.T.scale.shape) == ((), (2, 1, 3), (1, 3, 2))


def test_packed_data_has_the_shape_of_its_numbers(rng):
    x = rng.standard_normal((5, 64)).astype(np.float32)
    q = reference.quantize_mxfp4(x)
    packed = ScaledArray(pack_along(q.data, -1), q.scale, "mxfp4_e2m1", hadamard=True)
    assert packed.data.shape == (5, 32)
    assert packed.shape == (5, 64)
    assert packed.nbytes == q.nbytes == 5 * 32 + 5 * 2
    np.testing.assert_array_equal(reference.dequantize(packed), reference.dequantize(q))
    np.testing.assert_array_equal(reference.dequantize(packed.T), reference.dequantize(q).T)
    np.testing.assert_array_equal(packed.get().data.view(np.uint8), q.data.view(np.uint8))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 70])
@pytest.mark.parametrize("format", ["mxfp6_e2m3", "mxfp6_e3m2"])
def test_packed_6bit_data(format, length, rng):
    """Rows are whole bytes, from which the length follows unless it is one less than a multiple of 4."""
    q = reference.quantize_mxfp6(rng.standard_normal((length, 3)).astype(np.float32), axis=0, format=format)
    data = pack_along(q.data, 0)
    assert data.shape == (-(-length * 6 // 8), 3)
    packed = ScaledArray(data, q.scale, format, axis=0)
    assert packed.shape == (length + (length % 4 == 3), 3)
    assert packed.T.shape == packed.shape[::-1]
    np.testing.assert_array_equal(reference.dequantize(packed)[:length], reference.dequantize(q))
    np.testing.assert_array_equal(packed.T.get().data[:, :length].view(np.uint8), q.data.T.view(np.uint8))


@pytest.mark.parametrize("format", ["mxfp4_e2m1", "mxfp6_e2m3"])
def test_lengths_pack_with_zeros(format, rng):
    form = QUANTIZED[format]
    x = rng.integers(0, 2**form.bits, (3, 7), dtype=np.uint8).view(form.dtype)
    for axis in (0, 1):
        packed = pack_along(x, axis)
        np.testing.assert_array_equal(unpack_along(packed, form, axis, x.shape[axis]), x)
        unused = packed.shape[axis] * 8 - x.shape[axis] * form.bits
        assert (np.moveaxis(packed, axis, -1)[..., -1] < 2 ** (8 - unused)).all()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"format": None}, TypeError, "format must be one of"),
        ({"dtype": E5M2}, TypeError, "data.dtype must be float8_e4m3fn for mxfp8_e4m3; got float8_e5m2"),
        ({"dtype": np.uint8}, TypeError, "data.dtype must be float8_e4m3fn for mxfp8_e4m3; got uint8"),
        ({"dtype": E5M2, "format": "mxfp4_e2m1"}, TypeError, "must be float4_e2m1fn or packed uint8"),
        ({"dtype": E5M2, "format": "mxfp6_e3m2"}, TypeError, "must be float6_e3m2fn or packed uint8"),
        ({"axis": 0}, ValueError, r"scale.shape must be \(1, 70\); got \(4, 3\); .* axis=-2"),
        ({"scale": [1]}, TypeError, "scale must be a numpy.ndarray .* got list"),
    ],
)
def test_errors(options, kind, text):
    with pytest.raises(kind, match=text):
        make(**options)


def test_missing_scale():
    data = np.zeros((4, 64), E4M3)
    with pytest.raises(
        TypeError, match=r"scale must be float32 of shape \(4, 1\); got None; fp8_e4m3 needs a"
    ):
        ScaledArray(data, None, "fp8_e4m3")
    with pytest.raises(TypeError, match=r"scale must be float8_e8m0fnu of shape \(4, 2\); got None"):
        ScaledArray(data, None, "mxfp8_e4m3")


def test_scales_of_fp8():
    data = np.zeros((4, 64), E4M3)
    for scale in (0.5, np.float32(0.5), np.array(0.5, np.float32), np.full((4, 1), 0.5, np.float32)):
        assert ScaledArray(data, scale, "fp8_e4m3").scale.dtype == np.float32
    with pytest.raises(ValueError, match=r"scale.shape must be \(4, 1\) or \(\); got \(4,\)"):
        ScaledArray(data, np.zeros(4, np.float32), "fp8_e4m3")
    with pytest.raises(TypeError, match=r"scale.dtype must be float32 for fp8_e4m3; got float64"):
        ScaledArray(data, np.zeros((4, 1)), "fp8_e4m3")


def test_numpy_asks_for_numbers_explicitly():
    with pytest.raises(TypeError, match=r"use hipgemm.dequantize"):
        np.asarray(make())


def test_repr():
    assert repr(make()) == "ScaledArray(shape=(4, 70), format='mxfp8_e4m3', block=32, axis=-1, host)"


def test_reshape(rng):
    x = rng.standard_normal((2, 3, 96)).astype(np.float32)
    for q in (
        reference.quantize_mxfp8(x),
        reference.quantize_mxfp4(x),
        reference.quantize_mxfp6(x),
        reference.quantize_fp8(x, axis=-1),
        reference.quantize_fp8(x),
    ):
        flat = q.reshape(-1, 96)
        assert (flat.shape, flat.axis, flat.hadamard) == ((6, 96), -1, q.hadamard)
        np.testing.assert_array_equal(reference.values(flat), reference.values(q).reshape(6, 96))
        again = flat.reshape((2, 1, 3, 96))
        np.testing.assert_array_equal(reference.values(again), reference.values(q)[:, None])
        with pytest.raises(
            ValueError, match=r"ScaledArray.reshape: shape must hold 576 elements; got \(5, 96\)"
        ):
            q.reshape(5, 96)
    assert reference.quantize_fp8(x).reshape(-1).shape == (576,)
    for q, shape in (
        (reference.quantize_mxfp8(x), (-1, 48)),
        (reference.quantize_mxfp8(x, axis=-2), (-1, 96)),
        (ScaledArray(np.zeros((2, 3, 96), E4M3), np.ones((2, 1, 1), np.float32), "fp8_e4m3"), (-1, 96)),
    ):
        with pytest.raises(ValueError, match=r"the last axis must be that of the scales.*quantize after"):
            q.reshape(shape)
