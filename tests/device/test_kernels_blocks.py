"""The kernels of fp8 with float scales of blocks of 128 along K, alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from gemm_launch import ELEMENTS, GEMMS, Product
from test_kernels import memory as memory

KERNELS = {name: k for name, k in GEMMS.items() if k.b.endswith("_block")}
SOME = [name for name, k in KERNELS.items() if k.a == k.b == "fp8_e4m3_block"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", [(37, 70, 360), (300, 270, 520), (5, 9, 1), (5, 9, 0), (64, 64, 1024)])
def test_shapes(memory, kernel, shape):
    drawn = Product.draw(KERNELS[kernel], *shape)
    wanted = drawn.expected()[0].astype(np.float32)
    for split_tiles in (0, 2):
        np.testing.assert_array_equal(drawn.run(memory, split_tiles=split_tiles), wanted)


@pytest.mark.parametrize("kernel", SOME)
def test_bound(memory, kernel):
    """Each sum is rounded, and once more for each block: numbers of a (1, 128) block of each operand."""
    m, n, k = 130, 150, 1000
    drawn = Product.draw(KERNELS[kernel], m, n, k, exact=False)
    wanted, magnitudes = drawn.expected()
    count = k + 2 * -(-k // 128) + 2
    gamma = count * 2.0**-24 / (1 - count * 2.0**-24)
    got = drawn.run(memory).astype(np.float64)
    assert (np.abs(got - wanted) <= gamma * magnitudes + 2.0**-24 * np.abs(wanted)).all()


@pytest.mark.parametrize("kernel", SOME)
@pytest.mark.parametrize("exponent", [0, 60, 100, 126, 140])
def test_scales_of_any_size(memory, kernel, exponent):
    """Their product may leave float32's range if that with the sum does not."""
    drawn = Product.draw(KERNELS[kernel], 70, 90, 300)
    up = np.ldexp(drawn.a_scale, min(exponent, 124))
    down = np.ldexp(drawn.b_scale.astype(np.float64), -exponent).astype(np.float32)
    moved = replace(drawn, a_scale=up, b_scale=down)
    np.testing.assert_array_equal(moved.run(memory), moved.expected()[0].astype(np.float32))
    small = replace(drawn, a_scale=np.ldexp(drawn.a_scale, -100), b_scale=np.ldexp(drawn.b_scale, -20))
    np.testing.assert_array_equal(small.run(memory), small.expected()[0].astype(np.float32))


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_scale_serves_its_own_block(memory, kernel):
    """A row of A selects one block of B, and each scale is another number."""
    rows, columns, k = 300, 270, 1160
    blocks = -(-k // 128)
    rng = np.random.default_rng(5)
    pick = rng.integers(0, blocks, rows)
    a = np.zeros((1, 1, rows, k), np.float32)
    a[0, 0, np.arange(rows), np.minimum(128 * pick + rng.integers(0, 128, rows), k - 1)] = 1
    b = np.ones((1, 1, columns, k), np.float32)
    about = KERNELS[kernel]
    a_scale = (1 + rng.permutation(rows * blocks) % 4093 / 4096).reshape(1, 1, rows, blocks)
    b_scale = np.exp2(rng.integers(-20, 20, (1, 1, columns, blocks)))
    drawn = Product(
        about,
        a.astype(ELEMENTS[about.a]),
        b.astype(ELEMENTS[about.b]),
        np.ones((1, 1, 1), np.float32) if about.a == "bf16" else a_scale.astype(np.float32),
        b_scale.astype(np.float32),
    )
    np.testing.assert_array_equal(drawn.run(memory), drawn.expected()[0].astype(np.float32))


@pytest.mark.parametrize("kernel", SOME)
def test_unusual_scales_stay_in_their_rows_and_columns(memory, kernel):
    drawn = Product.draw(KERNELS[kernel], 70, 90, 300)
    clean = drawn.run(memory)[0, 0]
    drawn.a_scale[0, 0, 3, 1] = np.nan
    drawn.b_scale[0, 0, 7, 2] = np.inf
    drawn.b_scale[0, 0, 9] = 0
    drawn.b_scale[0, 0, 11] = -drawn.b_scale[0, 0, 11]
    got = drawn.run(memory)[0, 0]
    assert np.isnan(got[3]).all()
    assert not np.isfinite(got[:, 7]).any()
    rows = np.arange(70) != 3
    assert not got[rows, 9].any()
    np.testing.assert_array_equal(got[rows, 11], -clean[rows, 11])
    columns = ~np.isin(np.arange(90), (7, 9, 11))
    np.testing.assert_array_equal(got[np.ix_(rows, columns)], clean[np.ix_(rows, columns)])
