"""Slices of quantized arrays: views whose values, products and blocks are those of the array."""

from __future__ import annotations

import itertools
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.testing import assert_gemm_close

F32 = np.dtype(np.float32)
SHAPE = (3, 140, 300)
ALL = slice(None)


def one_per_matrix(x):
    q = hg.quantize_fp8(x)
    scale = np.array([1, 2, 3], F32).reshape(3, 1, 1)
    return hg.ScaledArray(q.data, scale if q.device is None else hg.asarray(scale), q.format)


def columns_in_blocks(x):
    return hg.quantize_fp8(x.swapaxes(1, 2) if isinstance(x, np.ndarray) else x.mT, block=(1, 128)).mT


MX = {
    f"{function.__name__} {axis}": partial(function, axis=axis, **options)
    for function, options in (
        (hg.quantize_mxfp8, {}),
        (hg.quantize_mxfp6, {"format": "mxfp6_e3m2"}),
        (hg.quantize_mxfp4, {"hadamard": False}),
    )
    for axis in (0, -2, -1)
}
# A maker, and the elements along each axis that share a scale; 0: all.
SIDES = {
    "tensor": (hg.quantize_fp8, (0, 0, 0)),
    "matrix": (one_per_matrix, (1, 0, 0)),
    "rows": (partial(hg.quantize_fp8, axis=-1), (1, 1, 0)),
    "columns": (partial(hg.quantize_fp8, axis=-2), (1, 0, 1)),
    "(1, 128)": (partial(hg.quantize_fp8, block=(1, 128)), (1, 1, 128)),
    "(128, 128)": (partial(hg.quantize_fp8, block=(128, 128)), (1, 128, 128)),
    "(128, 1)": (columns_in_blocks, (1, 128, 1)),
    **{name: (make, tuple(32 if name.endswith(f" {i}") else 1 for i in (0, -2, -1)))
       for name, make in MX.items()},
}  # fmt: skip
INDICES = [
    *(0, -1, ALL, slice(1, 3), slice(0, 0), slice(None, None, -1), 5),
    *((ALL, slice(0, 128)), (ALL, slice(128, None)), (..., slice(128, 256)), (..., slice(256, 300))),
    *((ALL, 5), (0, 5), (..., 0), (0, slice(3, 77)), (..., slice(5, 9)), (0, slice(0, 128), slice(128, 300))),
    *((1, ALL), (ALL, slice(0, 140, 2)), (..., slice(288, 300)), (slice(0, 2), ALL, slice(0, 0))),
    *((0, 0, 0), (0, 1, slice(0, 64)), (..., slice(200, 100))),
]  # fmt: skip


def allowed(index, name, sides):
    """Whether an index leaves elements that share a scale together, and their axes."""
    index = index if isinstance(index, tuple) else (index,)
    rest = (ALL,) * (3 - len([part for part in index if part is not ...]))
    at = index.index(...) if ... in index else len(index)
    index = (*index[:at], *rest, *index[at + 1 :])
    if all(isinstance(part, int) for part in index):
        return False
    for axis, (part, n, side) in enumerate(zip(index, SHAPE, sides, strict=True)):
        if isinstance(part, int):
            shared = {"rows": (2,), "columns": (1,), "matrix": (2,)}.get(name, ())
            in_block = name.startswith("(") and axis > 0
            if axis in shared or in_block or side > 1:
                return False
        elif side > 1:
            start, stop, step = part.indices(n)
            if (start, stop, step) == (0, n, 1):
                continue
            stop = max(start, stop)
            if step != 1 or start % side or (stop % side and stop != n):
                return False
    return True


@pytest.mark.parametrize("name", SIDES)
def test_values(name, rng):
    make, sides = SIDES[name]
    x = rng.standard_normal(SHAPE).astype(F32)
    host, device = make(x), make(hg.asarray(x))
    whole = reference.dequantize(host)
    for index, q in itertools.product(INDICES, (host, device)):
        if index == 5:
            with pytest.raises(IndexError, match="index 5 is out of bounds for axis 0 of size 3"):
                q[index]
            continue
        if not allowed(index, name, sides):
            with pytest.raises(ValueError, match=r"ScaledArray: (axis|a slice of axis|at least one axis)"):
                q[index]
            continue
        part = q[index]
        want = whole[index]
        assert part.shape == want.shape
        assert len(part) == len(want)
        got = part.get() if q is device else part
        np.testing.assert_array_equal(reference.dequantize(got), want)
        back = hg.dequantize(part)
        np.testing.assert_array_equal(back if isinstance(back, np.ndarray) else back.get(), want)
        if q is host and want.size:
            assert np.shares_memory(part.data, q.data)
            own = {"block": part.block} if part.block else {"axis": part.axis}
            hg.ScaledArray(part.data, part.scale, part.format, **own)  # valid parts
        elif want.size:
            assert part.data._block is q.data._block
            assert part.scale._block is q.scale._block


@pytest.mark.matrix
@pytest.mark.parametrize("name", [name for name in SIDES if not name.endswith(" 0")])
def test_products(name, rng):
    """Parts along the rows are read in place; parts along K where their rows are aligned to 16 bytes."""
    make, _ = SIDES[name]
    x, w = (rng.standard_normal(SHAPE).astype(F32) for _ in range(2))
    for put in (lambda x: x, hg.asarray):
        a, b = make(put(x)), make(put(w))
        if name in ("(128, 1)", "columns") or name.endswith("-2"):
            a, b = a.mT, b.mT
        hg.reset_usage()
        for one, other in (
            (a[1], b[1]),
            (a[1:], b[1:]),
            (a[0][128:], b[2][:128]),
            (a[2][:, :128], b[0][:, :128]),
        ):
            got = one @ other.mT
            one, other = (q if q.device is None else q.get() for q in (one, other))
            assert_gemm_close(got if isinstance(got, np.ndarray) else got.get(), one, other.mT)
        assert put is not hg.asarray or not hg.usage().copies


def test_operators(rng):
    x = rng.standard_normal((40, 64)).astype(ml_dtypes.bfloat16)
    w = hg.quantize_mxfp8(rng.standard_normal((30, 64)).astype(F32))
    for put in (lambda x: x, hg.asarray):
        a, b = put(x), hg.asarray(w) if put is hg.asarray else w
        products = a @ b.T, hg.quantize_mxfp8(a) @ b.T
        want = hg.matmul(a, b.T), hg.matmul(hg.quantize_mxfp8(a), b.T)
        for got, expected in zip(products, want, strict=True):
            one, other = (y if isinstance(y, np.ndarray) else y.get() for y in (got, expected))
            np.testing.assert_array_equal(one, other)
    assert [part.shape for part in w] == [(64,)] * 30
    for wrong in (None, 1.0, True, "a", np.array([0, 1])):
        with pytest.raises(TypeError, match=r"ScaledArray: an index must be an int, a slice or \.\.\."):
            w[wrong]
    with pytest.raises(IndexError, match="at most 2 indices"):
        w[0, 0, 0]
    with pytest.raises(TypeError, match="== and != are not supported"):
        w == w  # noqa: B015
    with pytest.raises(TypeError, match="truth value"):
        bool(w)


@pytest.mark.matrix
def test_groups_stay_whole(rng):
    x = rng.standard_normal((100, 96)).astype(F32)
    q = hg.quantize_mxfp8(x, axis=0, group_offsets=np.array([0, 33, 90], np.int32))
    np.testing.assert_array_equal(hg.dequantize(q[:, 5:40]), hg.dequantize(q)[:, 5:40])
    for index in (slice(0, 32), 0, (ALL, 0)):
        with pytest.raises(ValueError, match="must stay"):
            q[index]


@pytest.mark.parametrize("on_device", [False, True])
def test_slices_keep_their_random_signs(on_device, rng, tmp_path):
    host = [hg.quantize_mxfp4(rng.standard_normal((rows, 160)).astype(F32), signs=7) for rows in (20, 24)]
    q, p = map(hg.asarray, host) if on_device else host

    def values(q):
        found = hg.dequantize(q)
        return found.get() if on_device else found

    whole = reference.dequantize(host[0])
    for index in ((ALL, slice(0, 64)), slice(5, 9), (ALL, slice(32, 160)), (slice(3, 8), slice(64, 128))):
        np.testing.assert_array_equal(values(q[index]), whole[index])
        np.testing.assert_array_equal(values(q[index].T), whole[index].T)
    np.testing.assert_array_equal(values(q[:, 32:][:, 64:]), whole[:, 96:])
    one, other = (x[:, 32:96] for x in host)
    got = hg.matmul(q[:, 32:96], p[:, 32:96].T, dtype=F32)
    assert_gemm_close(got.get() if on_device else got, one, other.T)
    with pytest.raises(ValueError, match=r"must begin at the same element of the arrays .*; got 32 and 64"):
        hg.matmul(q[:, 32:96], p[:, 64:128].T)
    hg.save(tmp_path / "x", {"q": q[:, 32:]})
    np.testing.assert_array_equal(hg.dequantize(hg.load(tmp_path / "x")["q"]), whole[:, 32:])


def test_parts_keep_their_random_signs(rng):
    q, p = (hg.quantize_mxfp4(rng.standard_normal((rows, 160)).astype(F32), signs=7) for rows in (20, 24))
    parts = hg.shard(q, [0, 0], axis=1).parts
    values = [hg.dequantize(part).get() for part in parts]
    np.testing.assert_array_equal(np.hstack(values), reference.dequantize(q))
    assert_gemm_close(hg.sharded_matmul(q, p.T, split="k", devices=[0, 0], dtype=F32), q, p.T)
