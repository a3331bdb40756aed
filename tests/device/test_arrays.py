"""DeviceArray against NumPy."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg

BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = [BF16, np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_]


def values(shape, dtype):
    return np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4), (0,), (3, 0, 2), (1, 1)])
def test_round_trip(dtype, shape):
    x = values(shape, dtype)
    y = hg.asarray(x)
    assert (y.shape, y.dtype, y.ndim, y.size, y.nbytes) == (x.shape, x.dtype, x.ndim, x.size, x.nbytes)
    got = y.get()
    np.testing.assert_array_equal(got, x)
    assert got.dtype == x.dtype


INDICES = [
    np.s_[1:],
    np.s_[::-1],
    np.s_[:, ::-2],
    np.s_[3:0:-1, 1:6:3],
    np.s_[-2],
    np.s_[..., 2],
    np.s_[2, ...],
    np.s_[:, None, 1],
    np.s_[None],
    np.s_[5:2],
    np.s_[:, 100:],
    np.s_[1, -1],
    np.s_[...],
    np.s_[np.int64(1)],
    np.s_[()],
]


@pytest.mark.parametrize("index", INDICES, ids=str)
@pytest.mark.parametrize("transposed", [False, True])
def test_slices(index, transposed):
    x = values((5, 7), np.int32)
    y = hg.asarray(x)
    if transposed:
        x, y = x.T, y.T
    got = y[index]
    assert (got.shape, got.strides) == (x[index].shape, x[index].strides) or 0 in got.shape
    np.testing.assert_array_equal(got.get(), x[index])


def test_slices_of_slices():
    x = values((8, 9, 10), BF16)
    y = hg.asarray(x)
    np.testing.assert_array_equal(
        y[::-1, 2:8:2].mT[..., 1][3:][:, ::-1].get(), x[::-1, 2:8:2].swapaxes(-1, -2)[..., 1][3:][:, ::-1]
    )


@pytest.mark.parametrize(
    ("index", "error", "text"),
    [
        (5, IndexError, "index 5 is out of bounds for axis 0 of size 5"),
        (-6, IndexError, "index -6 is out of bounds"),
        ((..., 0, ...), IndexError, "only one ellipsis"),
        ([0, 1], TypeError, "got list"),
        (1.5, TypeError, "got float"),
    ],
)
def test_wrong_indices(index, error, text):
    with pytest.raises(error, match=text):
        hg.zeros((5, 7), np.int8)[index]


def test_transposes():
    x = values((2, 3, 4), np.int16)
    y = hg.asarray(x)
    np.testing.assert_array_equal(y.T.get(), x.T)
    np.testing.assert_array_equal(y.mT.get(), x.swapaxes(-1, -2))


@pytest.mark.parametrize("order", ["C", "F"])
def test_layout_is_kept(order):
    x = np.asarray(values((6, 4), BF16), order=order)
    assert hg.asarray(x).strides == x.strides


def test_get_into_any_layout():
    x = values((6, 8), np.float32)
    y = hg.asarray(x)
    for out in (np.empty_like(x), np.empty((8, 6), x.dtype).T, np.empty((6, 20), x.dtype)[:, 3:11]):
        assert y.get(out) is out
        np.testing.assert_array_equal(out, x)
        flipped = y[::-1]
        flipped.get(out=out)
        np.testing.assert_array_equal(out, x[::-1])


def test_get_leaves_the_rest_alone():
    outer = np.full((6, 20), -1, np.float32)
    hg.zeros((6, 8), np.float32).get(outer[:, 3:11])
    assert (outer == 0).sum() == 48
    assert (outer == -1).sum() == 72


def test_get_refuses_what_is_read_only():
    with pytest.raises(ValueError, match="out must be writeable"):
        hg.zeros(3, np.float32).get(np.broadcast_to(np.float32(0), 3))


def test_zeros_and_empty():
    np.testing.assert_array_equal(hg.zeros((3, 5), BF16).get(), np.zeros((3, 5), BF16))
    assert hg.empty(7, np.int8).shape == (7,)
    assert hg.empty((), np.float32).get().shape == ()


@pytest.mark.parametrize(("shape", "dtype"), [((2, 1.5), np.int8), (2, object), (2, "V0")])
def test_making_refuses(shape, dtype):
    with pytest.raises(TypeError, match=r"empty: (shape must be an int|dtype must be a plain type)"):
        hg.empty(shape, dtype)


@pytest.mark.parametrize(
    ("device", "error"), [(99, ValueError), (-1, ValueError), ("0", TypeError), (True, TypeError)]
)
def test_wrong_device(device, error):
    with pytest.raises(error, match="device must be"):
        hg.zeros(2, np.int8, device=device)


def test_asarray_converts_numpy_and_rounds_once():
    x = np.array([1 + 2.0**-8 + 2.0**-40, 3.0])
    np.testing.assert_array_equal(hg.asarray(x, BF16).get().astype(float), [1 + 2.0**-7, 3])
    assert hg.asarray(x, np.float32).dtype == np.float32


NARROW = sorted(
    {name for name in dir(ml_dtypes) if name.startswith(("float8_", "float6_", "float4_", "int", "uint"))}
)


@pytest.mark.parametrize("name", NARROW)
def test_asarray_makes_no_narrow_numbers_without_a_scale(name):
    dtype = np.dtype(getattr(ml_dtypes, name))
    for x in (np.array([300.0, -20.0]), np.array([1], np.int8), np.array([1], BF16)):
        with pytest.raises(TypeError, match=f"x.dtype must be {dtype}: a conversion needs a scale"):
            hg.asarray(x, dtype)
    x = np.arange(8, dtype=np.uint8).view(dtype)
    assert hg.asarray(x, dtype).get().tobytes() == hg.asarray(x).get().tobytes() == x.tobytes()
    np.testing.assert_array_equal(hg.asarray(x, np.float32).get(), x.astype(np.float32))


@pytest.mark.parametrize("dtype", [BF16, np.dtype(ml_dtypes.float8_e4m3fn)], ids=str)
def test_arrays_whose_type_numpy_lost(dtype, tmp_path):
    """numpy.save writes the types of ml_dtypes as bytes without a type: the documented way works."""
    np.save(tmp_path / "x.npy", np.ones((4, 32), dtype))
    x = np.load(tmp_path / "x.npy")
    advice = rf"; if its bytes are {dtype}, pass \w+\.view\(ml_dtypes\.{dtype}\)"
    with pytest.raises(TypeError, match=advice) as caught:
        hg.matmul(x, x.T)
    assert "astype" not in str(caught.value)
    for call in (lambda: hg.quantize_mxfp8(x), lambda: hg.linear(x, x, recipe="mxfp8")):
        with pytest.raises(TypeError, match=advice):
            call()
    if dtype.itemsize == 1:
        with pytest.raises(TypeError, match=advice):
            hg.ScaledArray(x, 1.0, "fp8_e4m3")
    assert x.view(dtype).astype(np.float32).sum() == 128


def test_asarray_of_a_device_array():
    x = hg.asarray(values((4, 6), np.float32))
    assert hg.asarray(x) is x
    assert hg.asarray(x, np.float32, copy=False) is x
    for view in (x, x.T, x[::-2, 1:5], x[0]):
        copy = hg.asarray(view, copy=True)
        assert copy.ptr != view.ptr
        np.testing.assert_array_equal(copy.get(), view.get())


@pytest.mark.parametrize("x", [[1.0], 2.0, (1, 2), "text", None, object()])
def test_asarray_refuses(x):
    with pytest.raises(TypeError, match=r"x must be a numpy\.ndarray, a DeviceArray, or an array"):
        hg.asarray(x)


def test_asarray_copies_what_numpy_may_change():
    x = np.arange(5, dtype=np.float32)
    y = hg.asarray(x)
    x[:] = -1
    np.testing.assert_array_equal(y.get(), [0, 1, 2, 3, 4])


def test_no_silent_way_to_the_host():
    with pytest.raises(TypeError, match=r"use \.get\(\)"):
        np.asarray(hg.zeros(3, np.float32))


def test_freed_arrays_say_so():
    x = hg.zeros((4, 8), BF16)
    view = x[1:]
    x.free()
    x.free()
    assert repr(x) == "DeviceArray(shape=(4, 8), dtype=bfloat16, device=0, freed)"
    for use in (lambda: x.ptr, view.get, lambda: x[0], lambda: hg.matmul(x, x.T)):
        with pytest.raises(ValueError, match="was freed"):
            use()


def test_len_and_repr():
    x = hg.zeros((4, 8), BF16)
    assert len(x) == 4
    assert repr(x) == "DeviceArray(shape=(4, 8), dtype=bfloat16, device=0)"
    with pytest.raises(TypeError, match="0-d"):
        len(hg.zeros((), BF16))


def test_operators(rng):
    x, w = rng.integers(-3, 4, (4, 16)).astype(BF16), rng.integers(-3, 4, (8, 16)).astype(BF16)
    a, b = hg.asarray(x), hg.asarray(w).T
    np.testing.assert_array_equal((a @ b).get(), hg.matmul(a, b).get())
    for call in (lambda: x @ b, lambda: a @ w.T):
        with pytest.raises(TypeError, match=r"^matmul: a, b must be on the same device; got a on "):
            call()
    with pytest.raises(
        TypeError, match=r"^matmul: b must be a numpy.ndarray or a hipgemm.DeviceArray; got int"
    ):
        a @ 3


def test_comparisons_are_refused():
    x = hg.zeros(3, np.float32)
    for call in (lambda: x == x[:], lambda: x != 0, lambda: x.get() == x):
        with pytest.raises(TypeError, match=r"== and != are not supported for device arrays; use .get"):
            call()
    with pytest.raises(TypeError, match="the truth value of a device array is not defined"):
        bool(x)
    with pytest.raises(TypeError, match="does not support ufuncs"):
        np.add(x.get(), x)
    assert len({x, x, x[:]}) == 2
    assert len(x) == 3
    assert [float(row.get()) for row in x] == [0, 0, 0]


@pytest.mark.matrix
def test_asarray_keeps_groups(rng):
    x = rng.standard_normal((70, 48)).astype(np.float32)
    q = hg.quantize_mxfp8(x, axis=0, group_offsets=np.array([0, 33, 64]))
    got = hg.asarray(q)
    np.testing.assert_array_equal(got.group_offsets, [0, 33, 64])
    np.testing.assert_array_equal(hg.dequantize(got).get(), hg.dequantize(q))


def test_reshape():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    y = hg.asarray(x)
    for shape in ((6, 4), (-1, 4), (24,), (2, -1), (2, 1, 3, 2, 2), -1):
        np.testing.assert_array_equal(y.reshape(shape).get(), x.reshape(shape))
    assert y.reshape(6, 4).ptr == y.ptr
    np.testing.assert_array_equal(y[:, :2].reshape(2, 8).get(), x[:, :2].reshape(2, 8))
    np.testing.assert_array_equal(
        y[:, ::-1].T[:, 1:].reshape(2, 2, 2, 2).get()[1, 1], x[:, 1::-1].T[3].reshape(2, 2)
    )
    assert hg.zeros((0, 3), np.float32).reshape(3, -1).shape == (3, 0)
    for shape in ((5, 5), (-1, 5), (-1, -1), (-2, 12)):
        with pytest.raises(ValueError, match="reshape: shape must hold 24 elements; got"):
            y.reshape(shape)
