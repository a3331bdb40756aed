"""The kernel that changes types, adds, multiplies and divides, also with broadcasting, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_launch import launch_in_order
from test_kernels import TYPES
from test_kernels import memory as memory
from test_kernels_quantize import LAYOUTS, SHAPES, filled, taken, upload, wild, workgroups

from hipgemm.formats.elements import FORMATS, format_of
from hipgemm.kernels import launch as _launch

OPERATIONS = {"copy": 0, "+": 1, "*": 2, "/": 3}


def check(memory, x, *, layout="row", out="bf16", other=None, operation="copy", pad=16):
    """One matrix; `other`: a matrix, row, column or number."""
    rows, cols = x.shape
    src, strides = upload(memory, x, layout)
    to = TYPES[out]
    used = cols * to.itemsize
    pitch = -(-used // 16) * 16 + pad
    dst = filled(memory, rows * pitch)
    second, steps, scalar = 0, (0, 0), 0.0
    if isinstance(other, np.ndarray):
        second = memory.put(other)
        steps = [0 if n == 1 else step for n, step in zip(other.shape, other.strides, strict=True)]
    elif other is not None:
        scalar = other
    launch_in_order(
        _launch.function(0, "elementwise"),
        workgroups(rows, cols, (128, 128)),
        0,
        *(src, second, dst, 0, *strides, 0, *steps, 0, pitch, rows, cols),
        *(format_of(x.dtype), format_of(getattr(other, "dtype", x.dtype)), FORMATS[out]),
        *(OPERATIONS[operation], scalar),
    )
    got = np.ascontiguousarray(taken(memory, dst, rows, pitch, used)).view(to)
    with np.errstate(all="ignore"):
        want = x.astype(np.float32)
        y = np.float32(0) if other is None else np.asarray(other, np.float32)
        want = {"copy": lambda: want, "+": lambda: want + y, "*": lambda: want * y, "/": lambda: want / y}[
            operation
        ]().astype(to)
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
        row, col = factors(shape[0], seed)[:, None], factors(shape[1], seed + 50)[None]
        for operation in "+*/":
            check(memory, x, out=out, other=col, operation=operation)
            check(memory, x, out=out, other=row, operation=operation)
            check(memory, x, out=out, other=wild(shape, TYPES[dtype], seed + 9), operation=operation)
            check(memory, x, out=out, other=0.1, operation=operation)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_layouts(memory, dtype, layout):
    for shape in SHAPES:
        x = wild(shape, TYPES[dtype], 7)
        check(memory, x, layout=layout, other=factors(shape[0], 3)[:, None], operation="/")
        check(memory, x, layout=layout, out="f32", other=factors(shape[1], 4)[None], operation="*")


@pytest.mark.parametrize("pad", [2, 4, 6])
def test_rows_of_dst_that_do_not_begin_at_16_bytes(memory, pad):
    x = wild((37, 300), TYPES["f32"], 1)
    check(memory, x, out="bf16", other=factors(300, 1)[None], operation="*", pad=pad)
