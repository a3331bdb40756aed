"""Operands and outputs in every layout: read in place where that is promised, right everywhere."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.testing import assert_gemm_close, exact_grid, poison, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


def reversed_rows(x):
    return np.ascontiguousarray(x[::-1])[::-1]


def reversed_columns(x):
    return np.ascontiguousarray(x[:, ::-1])[:, ::-1]


def every_other_row(x):
    return np.repeat(x, 2, axis=0)[::2]


def every_third_column(x):
    return np.repeat(x, 3, axis=1)[:, ::3]


def in_a_larger_one(x):
    outer = np.full((x.shape[0] + 3, x.shape[1] + 24), np.nan, x.dtype)
    outer[2:-1, 8:-16] = x
    return outer[2:-1, 8:-16]


def misaligned(x):
    outer = np.full((x.shape[0], x.shape[1] + 9), np.nan, x.dtype)
    outer[:, 1:-8] = x
    return outer[:, 1:-8]


LAYOUTS = [
    np.ascontiguousarray,
    np.asfortranarray,
    reversed_rows,
    reversed_columns,
    every_other_row,
    every_third_column,
    in_a_larger_one,
    misaligned,
    lambda x: in_a_larger_one(np.ascontiguousarray(x.T)).T,
    lambda x: reversed_rows(np.ascontiguousarray(x.T)).T,
]
IDS = [f.__name__ for f in LAYOUTS[:-2]] + ["columns_in_a_larger_one", "reversed_columns_of_fortran"]
layouts = pytest.mark.parametrize("lay_out", LAYOUTS, ids=IDS)


def resident(x):
    """The same layout on the device: upload what it is a view of, and take the view there."""
    base = x
    while base.base is not None:
        base = base.base
    flat = np.lib.stride_tricks.as_strided(base, (base.size,), (x.itemsize,))
    start = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // x.itemsize
    whole = hg.asarray(flat)
    view = hg.DeviceArray(whole._block, whole.ptr + start * x.itemsize, x.shape, x.strides, x.dtype)
    np.testing.assert_array_equal(view.get().view("u2"), np.ascontiguousarray(x).view("u2"))
    return view


@layouts
@pytest.mark.parametrize("k", [64, 52])
def test_operands(lay_out, k, rng):
    a, b = lay_out(random_matrix((70, k), rng)), lay_out(random_matrix((k, 40), rng))
    expected = hg.matmul(np.ascontiguousarray(a), np.ascontiguousarray(b.T).T, dtype=F32)
    assert_gemm_close(expected, a, b)
    np.testing.assert_array_equal(hg.matmul(a, b, dtype=F32), expected)
    np.testing.assert_array_equal(hg.matmul(resident(a), resident(b), dtype=F32).get(), expected)


@layouts
def test_output(lay_out, rng):
    a, w = random_matrix((70, 64), rng), random_matrix((44, 64), rng)
    x, y = hg.asarray(a), hg.asarray(w).T
    for dtype in (BF16, F32):
        for epilogue in ({}, {"bias": np.arange(44, dtype=F32)}):
            expected = hg.matmul(a, w.T, dtype=dtype, **epilogue)
            out = lay_out(np.zeros((70, 44), dtype))
            poison(out)
            hg.matmul(a, w.T, out, **epilogue)
            np.testing.assert_array_equal(out, expected)
    out = resident(poison(lay_out(np.zeros((70, 44), BF16))))
    hg.matmul(x, y, out)
    np.testing.assert_array_equal(out.get(), hg.matmul(a, w.T))


def test_nothing_else_is_written(rng):
    a, w = hg.asarray(random_matrix((70, 64), rng)), hg.asarray(random_matrix((44, 64), rng)).T
    for dtype, column in ((BF16, 8), (BF16, 3), (F32, 1)):
        outer = np.full((74, 60), np.nan, dtype)
        on_device = hg.asarray(outer)
        hg.matmul(a, w, on_device[2:72, column : column + 44])
        got = on_device.get()
        np.testing.assert_array_equal(got[2:72, column : column + 44], hg.matmul(a, w, dtype=dtype).get())
        got[2:72, column : column + 44] = np.nan
        assert np.isnan(got).all()


def test_nothing_else_is_read(rng):
    # NaN behind every row, and behind the last: NaN times zero would show.
    for k in (64, 60, 8, 1):
        a = resident(in_a_larger_one(exact_grid((65, k), rng)))
        w = resident(in_a_larger_one(exact_grid((33, k), rng)))
        out = hg.matmul(a, w.T, dtype=F32).get()
        assert_gemm_close(out, a.get(), w.get().T, exact=True)


# ---- what is copied, and what is not


def copies(*args, **kwargs):
    hg.reset_usage()
    hg.matmul(*args, **kwargs)
    return {(operand, reason) for _, operand, reason in hg.usage().copies}


def test_in_place_from_numpy(rng):
    a, w = random_matrix((20, 52), rng), random_matrix((30, 52), rng)
    assert copies(a, w.T) == set()
    assert copies(in_a_larger_one(a), misaligned(w).T) == set()
    assert copies(every_other_row(a), w.T) == set()
    assert copies(a, np.ascontiguousarray(w.T)) == {("b", "K not contiguous")}
    assert copies(np.asfortranarray(a), w.T) == {("a", "K not contiguous")}
    assert copies(every_third_column(a), w.T) == {("a", "no axis contiguous; copied on the host")}
    assert copies(a, w.T, np.zeros((30, 20), BF16).T) == set()


def test_in_place_on_the_device(rng):
    a, w = hg.asarray(random_matrix((20, 64), rng)), hg.asarray(random_matrix((30, 64), rng))
    assert copies(a, w.T) == set()
    assert copies(a[::2, 8:32], w[:, 8:32].T) == set()
    assert copies(a[:, :60], w[:, :60].T) == {
        ("a", "K not a multiple of 8"),
        ("b", "K not a multiple of 8"),
    }
    assert copies(a[:, 1:9], w[:, :8].T) == {("a", "base not 16-byte aligned")}
    assert copies(a[::-1], w.T) == {("a", "rows reversed or overlapping")}
    assert copies(a[:, ::-1], w.T) == {("a", "K not contiguous")}
    assert copies(a, hg.asarray(w.get().T.copy())) == {("b", "K not contiguous")}
    odd = hg.asarray(random_matrix((20, 68), rng))
    assert copies(odd[:, :64], w.T) == {("a", "row pitch not a multiple of 16 bytes")}


def test_outputs_in_place_on_the_device(rng):
    a, w = hg.asarray(random_matrix((20, 64), rng)), hg.asarray(random_matrix((30, 64), rng)).T
    store = hg.zeros((40, 40), BF16)
    assert copies(a, w, store[:20, 3:33]) == set()
    assert copies(a, w, store[:30, 3:23].T) == set()
    transposed = hg.empty((30, 20), BF16)
    assert copies(a, w, transposed.T) == set()
    np.testing.assert_array_equal(transposed.get().T, hg.matmul(a, w).get())
    bias = hg.zeros(30, F32)
    assert copies(a, w, hg.empty((30, 20), BF16).T, bias=bias) == {("out", "rows not contiguous")}
    assert copies(a, w, store[20::-1, :30][:20]) == {("out", "rows not contiguous")}


def test_numpy_layout_survives_the_way_up(rng):
    w = random_matrix((30, 64), rng)
    assert copies(hg.asarray(random_matrix((20, 64), rng)), hg.asarray(w.T)) == set()


def test_broadcast_operands(rng):
    row = np.broadcast_to(random_matrix((1, 64), rng), (10, 64))
    w = random_matrix((30, 64), rng)
    assert_gemm_close(hg.matmul(row, w.T), row, w.T)
    on_device = hg.asarray(np.ascontiguousarray(row[:1]))
    view = hg.DeviceArray(on_device._block, on_device.ptr, (10, 64), (0, 2), BF16)
    assert_gemm_close(hg.matmul(view, hg.asarray(w).T).get(), row, w.T)


def test_operands_beyond_4_gib(rng):
    """Rows 4 MiB apart, 1,100 of them: offsets that 32 bits do not hold, in a product and into one."""
    store = hg.empty((1100, 2**21), BF16)
    a, w = exact_grid((1100, 64), rng), exact_grid((64, 64), rng, bits=2)
    far, eye = store[:, 64:128], hg.asarray(np.eye(64).astype(BF16))
    hg.matmul(hg.asarray(a), eye, far)
    np.testing.assert_array_equal(far.get(), a)
    out = hg.matmul(far, hg.asarray(w).T, dtype=F32).get()
    assert_gemm_close(out, a, w.T, exact=True)
    flipped = hg.matmul(hg.asarray(w), far.T, dtype=F32).get()
    assert_gemm_close(flipped, w, a.T, exact=True)
    turned = hg.matmul(far[::-1], hg.asarray(w).T, dtype=F32).get()  # by way of a copy
    np.testing.assert_array_equal(turned, out[::-1])
    store.free()
