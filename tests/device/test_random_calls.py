"""Calls put together at random, from seeds: layouts, outputs, epilogues, places and streams in any mix."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.testing import assert_gemm_close, exact_grid, poison, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)


def frame(rng, rows, columns, dtype):
    """A view of a larger array that is NaN all over: any order, offset, step and direction."""
    turned = bool(rng.integers(2))
    shape = (columns, rows) if turned else (rows, columns)
    steps = [int(s) for s in rng.choice([1, 1, 1, 2, -1, -3], 2)]
    starts = [int(s) for s in rng.choice([0, 0, 1, 8], 2)]
    outer = np.full(
        [start + max(n, 1) * abs(step) + 8 for n, step, start in zip(shape, steps, starts, strict=True)],
        np.nan,
        dtype,
    )
    index = tuple(
        slice(start, start + n * abs(step), abs(step))
        for n, step, start in zip(shape, steps, starts, strict=True)
    )
    flips = tuple(slice(None, None, -1 if step < 0 else 1) for step in steps)
    return outer, index, flips, turned


def take(outer, index, flips, turned):
    view = outer[index][flips]
    return view.T if turned else view


@pytest.mark.parametrize("seed", range(60))
def test_call(seed, streams):
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.choice([1, 2, 7, 16, 33, 64, 65, 100, 130], 3))
    exact = bool(rng.integers(2))
    make = exact_grid if exact else random_matrix
    outers, views = [], []
    for rows, columns in ((m, k), (k, n)):
        where = frame(rng, rows, columns, BF16)
        take(*where)[...] = make((rows, columns), rng)
        outers.append(where)
        views.append(take(*where))
    dtype = (BF16, F16, F32)[rng.integers(3)]
    out = frame(rng, m, n, dtype) if rng.integers(2) else None
    epilogue = {}
    if rng.integers(2):
        epilogue["alpha"] = 0.5 if exact else float(rng.standard_normal())
    if rng.integers(2):
        epilogue["col_scale"] = np.exp2(rng.integers(-3, 4, n)).astype(F32)
    if rng.integers(2):
        epilogue["bias"] = rng.integers(-8, 9, n).astype((BF16, F16, F32)[rng.integers(3)])
    stream = streams() if rng.integers(2) else None

    if rng.integers(2):
        target = None if out is None else take(*out)
        if target is not None:
            poison(target)
        got = hg.matmul(*views, target, dtype=dtype, stream=stream, **epilogue)
        outside = out[0] if out is not None else None
    else:
        device = [take(hg.asarray(where[0]), *where[1:]) for where in outers]
        whole = None if out is None else hg.asarray(out[0])
        target = None if out is None else take(whole, *out[1:])
        arrays = {
            name: hg.asarray(x) if isinstance(x, np.ndarray) and rng.integers(2) else x
            for name, x in epilogue.items()
        }
        if "alpha" in arrays and rng.integers(2):
            arrays["alpha"] = hg.asarray(np.float32(arrays["alpha"]))
        got = hg.matmul(*device, target, dtype=dtype, stream=stream, **arrays).get()
        outside = None if whole is None else whole.get()

    assert_gemm_close(got, *views, exact=exact, **epilogue)
    if outside is not None:
        poison(take(outside, *out[1:]))
        assert np.isnan(outside).all(), "written outside the output"
