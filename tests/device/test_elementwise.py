"""astype, assignment, sums and products of arrays on a device: the bits of NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
TYPES = (BF16, F16, F32)
OTHERS = [np.dtype(name) for name in ("u1", "i2", "i4", "i8", "f8")]
SHAPES = [(), (1,), (7,), (130,), (40_000,), (5, 33), (3, 4, 129), (2, 3, 4, 5), (0, 3), (300, 130)]


def wild(shape: tuple[int, ...], dtype: np.dtype[Any], seed: int = 0) -> Any:
    """Numbers of many magnitudes, NaN, Inf and -0.0 among them."""
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * np.exp2(rng.uniform(-30, 30, shape))).astype(F32)
    if x.size > 4:
        x.reshape(-1)[:4] = [np.nan, np.inf, -np.inf, -0.0]
    with np.errstate(all="ignore"):
        return x.astype(dtype)


def assert_same(got: hg.DeviceArray, want: Any) -> None:
    """The same type, shape and bits, but for those of NaN."""
    found = got.get()
    assert (found.dtype, found.shape) == (want.dtype, want.shape)
    nan = np.isnan(want.astype(F32))
    np.testing.assert_array_equal(np.isnan(found.astype(F32)), nan)
    bits = f"u{want.itemsize}"
    a, b = (np.ascontiguousarray(x).view(bits) for x in (found, want))
    np.testing.assert_array_equal(a[~nan], b[~nan])


@pytest.mark.parametrize("to", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_astype(dtype, to):
    """As NumPy: beyond the range it is Inf; -0.0 and subnormals are kept."""
    with np.errstate(all="ignore"):
        for shape in SHAPES:
            x = wild(shape, dtype)
            given = hg.asarray(x)
            assert_same(given.astype(to), x.astype(to))
            if len(shape) > 1:
                assert_same(given.T.astype(to), x.T.astype(to))
                assert_same(given[::2, ::-1].astype(to), x[::2, ::-1].astype(to))
    made = hg.asarray(wild((4, 8), dtype)).T.astype(to)
    assert made.strides == (to.itemsize, 8 * to.itemsize), "the axes keep their order in memory"


def test_astype_copies(rng):
    x = hg.asarray(rng.standard_normal(5).astype(F32))
    same = x.astype(F32)
    x[...] = 0
    assert same.get().all()
    codes = hg.zeros(3, np.uint8)
    np.testing.assert_array_equal(codes.astype(np.uint8).get(), [0, 0, 0])


BROADCAST = [
    ((5, 33), (5, 33)),
    ((300, 130), (130,)),
    ((300, 130), (300, 1)),
    ((4, 1, 7), (3, 1)),
    ((2, 3, 4, 5), (3, 1, 5)),
    ((1,), (40, 7)),
    ((), (3,)),
    ((257,), (257,)),
    ((8, 64, 32), (64, 32)),
    ((3, 2, 5, 7), (1, 2, 1, 7)),
    ((0, 3), (3,)),
]


@pytest.mark.parametrize("operation", "+*")
@pytest.mark.parametrize("dtype", TYPES)
def test_sums_and_products(dtype, operation):
    """In float32, rounded once."""

    def of(a: Any, b: Any) -> Any:
        return a + b if operation == "+" else a * b

    def want(a: Any, b: Any) -> Any:
        with np.errstate(all="ignore"):
            return of(a.astype(F32), np.asarray(b).astype(F32)).astype(dtype)

    for first, second in BROADCAST:
        x, y = wild(first, dtype), wild(second, dtype, 1)
        a, b = hg.asarray(x), hg.asarray(y)
        assert_same(of(a, b), want(x, y))
        assert_same(of(b, a), want(y, x))
        if len(first) == len(second) == 2:
            assert_same(of(a.T, b.T), want(x, y).T)
            assert_same(of(a[::-1, ::-1], b[:, ::-1]), want(x[::-1, ::-1], y[:, ::-1]))
    x, y = wild((33, 70), dtype), wild((70, 33), dtype, 1)
    a, b = hg.asarray(x), hg.asarray(y)
    assert_same(of(a, b.T), want(x, y.T))
    assert_same(of(a[::2, 1::3], b.T[::2, 1::3]), want(x[::2, 1::3], y.T[::2, 1::3]))
    for number in (0.1, 3, -2.5, 1e39, np.float64(0.3), dtype.type(1.5)):
        assert_same(of(a, number), want(x, number))
        assert_same(of(number, a), want(x, number))


def some_index(rng: np.random.Generator, shape: tuple[int, ...]) -> Any:
    if rng.random() < 0.2:
        return ...
    kinds = [slice(None), slice(None, None, 2), slice(None, None, -1), slice(1, None), slice(3, 0, -2)]
    return tuple(kinds[rng.integers(5)] if rng.random() < 0.8 else int(rng.integers(n)) for n in shape)


@pytest.mark.parametrize("dtype", [*TYPES, *OTHERS])
def test_assignment(dtype, rng):
    """Of numbers and arrays of any place, which broadcast and are converted, to slices of all kinds."""
    for trial in range(40):
        shape = tuple(map(int, rng.integers(1, 40, rng.integers(1, 4))))
        x = rng.integers(0, 100, shape).astype(dtype)
        d = hg.asarray(x)
        index = some_index(rng, shape)
        part = x[index].shape
        of = TYPES[trial % 3] if dtype in TYPES else dtype
        value: Any = 7
        if trial % 4:
            extents = part[-1:] if trial % 4 == 1 else tuple(1 if rng.random() < 0.3 else n for n in part)
            value = rng.integers(0, 100, extents).astype(of)
        x[index] = value
        d[index] = hg.asarray(value) if trial % 4 and rng.random() < 0.5 else value
        np.testing.assert_array_equal(d.get(), x, f"{shape} {index}")


def test_assignment_converts_as_astype():
    x = wild((300,), F32)
    with np.errstate(all="ignore"):
        for to, given in itertools.product((BF16, F16), (x, hg.asarray(x))):
            d = hg.zeros((4, 300), to)
            want = np.zeros((4, 300), to)
            d[2], want[2] = given, x
            d[:, 1::2] = given[:150]
            want[:, 1::2] = x[:150]
            assert_same(d, want)
        d = hg.zeros(2, F16)
        d[0] = 1e10
        assert d.get().tolist() == [np.inf, 0]


@pytest.mark.parametrize("dtype", [BF16, F32, np.dtype("i8")])
def test_a_source_that_overlaps_the_target(dtype, rng):
    for index, source in (
        (slice(1, None), slice(None, -1)),
        (slice(None, -1), slice(1, None)),
        (slice(None), slice(None, None, -1)),
        (slice(None, None, 2), slice(None, 20)),
        (slice(3, 30), slice(3, 30)),
    ):
        x = rng.integers(0, 100, (40, 33)).astype(dtype)
        d = hg.asarray(x)
        d[index] = d[source]
        x[index] = x[source].copy()
        np.testing.assert_array_equal(d.get(), x)
    x = rng.integers(0, 100, (33, 33)).astype(dtype)
    d = hg.asarray(x)
    d[...] = d.T
    np.testing.assert_array_equal(d.get(), x.T)


@pytest.mark.matrix("bf16")
def test_a_layer_of_them(rng):
    """A residual stream that stays on the device."""
    x = rng.standard_normal((5, 64)).astype(BF16)
    w = rng.standard_normal((64, 64)).astype(BF16)
    d = hg.asarray(x)
    d[...] = d + d @ hg.asarray(w) * 0.125
    product = hg.matmul(x, w).astype(F32) * F32.type(0.125)
    np.testing.assert_array_equal(d.get(), (x.astype(F32) + product.astype(BF16).astype(F32)).astype(BF16))
