"""The kernel that sums columns: exact where sums are exact, in a fixed order otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_launch import launch_in_order
from test_kernels import TYPES
from test_kernels import memory as memory
from test_kernels_quantize import LAYOUTS, SHAPES, upload, workgroups

from hipgemm.formats.elements import format_of
from hipgemm.kernels import launch as _launch
from hipgemm.testing import exact_grid, gamma, random_matrix


def sums(memory, x, layout="row"):
    rows, cols = x.shape
    src, strides = upload(memory, x, layout)
    lines = -(-rows // 64)
    dst = memory.put(np.full(lines * cols + 8, np.nan, np.float32))
    kind = format_of(x.dtype)
    kernel = _launch.function(0, "sum_rows")
    launch_in_order(kernel, workgroups(rows, cols), 0, src, dst, *strides, rows, cols, kind)
    got = memory.get(dst, np.empty(lines * cols + 8, np.float32))
    assert np.isnan(got[lines * cols :]).all(), "written after the result"
    return got[: lines * cols].reshape(lines, cols)


def exact_sums(x):
    x = x.astype(np.float64)
    return np.stack([x[i : i + 64].sum(0) for i in range(0, len(x), 64)])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_exact(memory, dtype, layout, rng):
    for shape in SHAPES:
        x = exact_grid(shape, rng, dtype=TYPES[dtype])
        np.testing.assert_array_equal(sums(memory, x, layout), exact_sums(x))


@pytest.mark.parametrize("dtype", TYPES)
def test_bound(memory, dtype, rng):
    for shape in SHAPES:
        x = random_matrix(shape, rng, dtype=TYPES[dtype])
        error = np.abs(sums(memory, x) - exact_sums(x))
        assert (error <= gamma(10) * exact_sums(np.abs(x))).all()
        x[0, 0] = np.nan
        got = sums(memory, x)
        assert np.isnan(got[0, 0])
        assert np.isfinite(got.ravel()[1:]).all()
