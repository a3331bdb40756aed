"""The kernels of a layer's gradients: through an activation, and sums over the rows of each group."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gemm_launch import launch_in_order
from test_kernels import TYPES
from test_kernels import memory as memory
from test_kernels_quantize import LAYOUTS, SHAPES, filled, taken, upload, workgroups
from test_stages import SLOPE, ULP, WAYS, assert_within, halves, rounded

from hipgemm.formats.activations import ACTIVATIONS, GLU_ACTIVATIONS
from hipgemm.formats.elements import format_of
from hipgemm.kernels import launch as _launch
from hipgemm.testing import exact_grid, gamma, random_matrix


def derivatives(dy, t, activation, glu):
    """The gradient by t in float64, and a bound of a float32 computation."""
    dy, t = dy.astype(np.float64), t.astype(np.float64)
    one = ACTIVATIONS.get(activation)
    if glu is None:
        slope = one.derivative(t) if one else np.ones_like(t)
        return dy * slope, abs(dy) * 6 * ULP * np.maximum(abs(t), SLOPE[activation])
    gate, up = halves(t, glu)
    if activation in GLU_ACTIVATIONS:
        by = GLU_ACTIVATIONS[activation].derivatives(gate, up)
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7) + 1
    else:
        by = (one.derivative(gate) * up, one.function(gate)) if one else (up, gate)
    parts = [dy * x for x in by]
    bounds = [abs(dy) * 12 * ULP * x for x in (np.maximum(abs(gate), 1.2) * abs(up), abs(gate))]
    return joined(parts, glu), joined(bounds, glu)


def joined(parts, glu):
    """The inverse of `halves`."""
    return np.stack(parts, -1).reshape(len(parts[0]), -1) if glu == "interleaved" else np.hstack(parts)


def through(memory, dy, t, activation, glu, *, layout="row", out="f32", pad=16):
    (rows, cols), wide = dy.shape, t.shape[1]
    src, strides = upload(memory, dy, layout)
    aux_pitch = wide * t.itemsize + pad
    padded = np.full((rows, aux_pitch), 0xFF, np.uint8)  # NaN
    padded[:, : wide * t.itemsize] = np.ascontiguousarray(t).view(np.uint8)
    to = TYPES[out]
    used = wide * to.itemsize
    pitch = used + pad
    dst = filled(memory, rows * pitch)
    launch_in_order(
        _launch.function(0, "activation_gradient"),
        workgroups(rows, cols, (128, 128)),
        0,
        *(src, memory.put(padded), dst, *strides, aux_pitch, pitch, rows, cols),
        *(format_of(dy.dtype), format_of(t.dtype), format_of(to), activation or 0, glu or 0),
    )
    return np.ascontiguousarray(taken(memory, dst, rows, pitch, used)).view(to)


@pytest.mark.parametrize(("activation", "glu"), WAYS)
def test_through_an_activation(memory, activation, glu, rng):
    for (rows, cols), pad in itertools.product([*SHAPES, (3, 256)], (2, 16)):
        for dtype, aux_type in (("bf16", "bf16"), ("f32", "bf16"), ("f16", "f32")):
            dy = random_matrix((rows, cols), rng, dtype=TYPES[dtype])
            t = random_matrix((rows, cols * (2 if glu else 1)), rng, dtype=TYPES[aux_type])
            out = "f32" if pad == 16 else dtype
            pad = max(pad, TYPES[aux_type].itemsize, TYPES[out].itemsize)
            got = through(memory, dy, t, activation, glu, out=out, pad=pad)
            want, bound = derivatives(dy, t, activation, glu)
            assert_within(got, want, rounded(bound, want, TYPES[out]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("glu", [None, "interleaved", "halves"])
def test_gradients_in_any_layout(memory, glu, layout, rng):
    for rows, cols in SHAPES:
        dy = random_matrix((rows, cols), rng)
        t = random_matrix((rows, cols * (2 if glu else 1)), rng)
        got = through(memory, dy, t, "silu", glu, layout=layout)
        want, bound = derivatives(dy, t, "silu", glu)
        assert_within(got, want, rounded(bound, want, np.float32))


def group_sums(memory, x, offsets, layout="row"):
    (rows, cols), groups = x.shape, len(offsets) - 1
    src, strides = upload(memory, x, layout)
    dst = memory.put(np.full(groups * cols + 8, np.nan, np.float32))
    kernel = _launch.function(0, "sum_groups")
    at = memory.put(np.asarray(offsets, np.int32))
    of = format_of(x.dtype)
    launch_in_order(kernel, groups * -(-cols // 64), 0, src, dst, at, *strides, rows, cols, groups, of)
    got = memory.get(dst, np.empty(groups * cols + 8, np.float32))
    assert np.isnan(got[groups * cols :]).all(), "written after the result"
    return got[: groups * cols].reshape(groups, cols)


def sums_of(x, offsets):
    return np.stack([x[i:j].astype(np.float64).sum(0) for i, j in itertools.pairwise(offsets)])


@pytest.mark.matrix
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_sums_of_groups(memory, dtype, layout, rng):
    for rows, cols in SHAPES:
        offsets = np.r_[0, np.sort(rng.integers(0, rows + 1, 70))]
        x = exact_grid((rows, cols), rng, dtype=TYPES[dtype])
        np.testing.assert_array_equal(group_sums(memory, x, offsets, layout), sums_of(x, offsets))
        x = random_matrix((rows, cols), rng, dtype=TYPES[dtype])
        error = abs(group_sums(memory, x, offsets, layout) - sums_of(x, offsets))
        assert (error <= gamma(18 + -(-rows // 64)) * sums_of(abs(x), offsets)).all()


@pytest.mark.matrix
def test_wrong_offsets_stay_inside_the_matrix(memory):
    x = np.arange(20, dtype=np.float32).reshape(10, 2)
    got = group_sums(memory, x, [5, -3, 4, 99, 2**31 - 1])
    np.testing.assert_array_equal(got, sums_of(x, [0, 0, 4, 10, 10]))
