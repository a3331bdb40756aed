"""The kernel that changes types and multiplies or divides rows and columns, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_launch import launch_in_order
from test_kernels import TYPES
from test_kernels import memory as memory
from test_kernels_quantize import LAYOUTS, SHAPES, filled, taken, upload, wild, workgroups

from hipgemm.formats.elements import FORMATS, format_of
from hipgemm.kernels import launch as _launch


def check(memory, x, *, layout="row", out="bf16", row=None, col=None, divide=False, pad=16):
    rows, cols = x.shape
    src, strides = upload(memory, x, layout)
    to = TYPES[out]
    used = cols * to.itemsize
    pitch = -(-used // 16) * 16 + pad
    dst = filled(memory, rows * pitch)
    launch_in_order(
        _launch.function(0, "rescale"),
        workgroups(rows, cols),
        0,
        *(src, dst, 0 if row is None else memory.put(row), 0 if col is None else memory.put(col)),
        *(*strides, pitch, rows, cols),
        *(format_of(x.dtype), FORMATS[out], int(divide)),
    )
    got = np.ascontiguousarray(taken(memory, dst, rows, pitch, used)).view(to)
    with np.errstate(all="ignore"):
        want = x.astype(np.float32)
        factor = np.ones((rows, 1), np.float32) if row is None else row[:, None]
        factor = factor * (np.ones(cols, np.float32) if col is None else col)
        want = (want / factor if divide else want * factor).astype(to)
    nan = np.isnan(want.astype(np.float32))
    assert np.array_equal(np.isnan(got.astype(np.float32)), nan)
    bits = f"u{to.itemsize}"
    assert np.array_equal(got.view(bits)[~nan], want.view(bits)[~nan])


def factors(count, seed):
    """Values of every magnitude and sign, with a zero and an infinity."""
    rng = np.random.default_rng(seed)
    found = (rng.standard_normal(count) * np.exp2(rng.uniform(-60, 60, count))).astype(np.float32)
    found[rng.random(count) < 0.05] = 0
    found[rng.random(count) < 0.02] = np.inf
    return found


@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_types(memory, dtype, out):
    for seed, shape in enumerate(SHAPES):
        x = wild(shape, TYPES[dtype], seed)
        check(memory, x, out=out)
        row, col = factors(shape[0], seed), factors(shape[1], seed + 50)
        for divide in (False, True):
            check(memory, x, out=out, col=col, divide=divide)
            check(memory, x, out=out, row=row, divide=divide)
        check(memory, x, out=out, row=row, col=col)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_layouts(memory, dtype, layout):
    for shape in SHAPES:
        x = wild(shape, TYPES[dtype], 7)
        check(memory, x, layout=layout, row=factors(shape[0], 3), divide=True)
        check(memory, x, layout=layout, out="f32", col=factors(shape[1], 4))


@pytest.mark.parametrize("pad", [2, 4, 6])
def test_rows_of_dst_that_do_not_begin_at_16_bytes(memory, pad):
    x = wild((37, 300), TYPES["f32"], 1)
    check(memory, x, out="bf16", col=factors(300, 1), pad=pad)
