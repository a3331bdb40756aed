"""Batches, and products whose K is split, at the level of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_launch import GEMMS, TYPES, Memory, Product


@pytest.fixture
def memory():
    made = Memory()
    yield made
    made.free()


def example(formats, tile, layout="nt"):
    return next(k for k in GEMMS if k.startswith(f"gemm_{formats}_{layout}_{tile}x"))


EXAMPLES = [
    example(formats, tile)
    for tile in ("256x256", "64x64", "32x64")
    for formats in ("bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1")
]
each_kind = pytest.mark.parametrize("kernel", EXAMPLES)


def check(memory, kernel, m, n, k, *, batches=((1, 1), (1, 1)), rows=False, out="f32", **options):
    """Exact products, bit for bit."""
    drawn = Product.draw(GEMMS[kernel], m, n, k, a_batch=batches[0], b_batch=batches[1], row_scales=rows)
    expected, _ = drawn.expected()
    expected = expected * options.get("alpha", 1.0)
    if (col_scale := options.get("col_scale")) is not None:
        expected = expected * col_scale
    if (bias := options.get("bias")) is not None:
        expected = expected + bias.astype(np.float64)
    got = drawn.run(memory, out=out, **options)
    assert np.array_equal(got, expected.astype(TYPES[out]))


@each_kind
@pytest.mark.parametrize("k_tiles", [1, 2, 3, 4, 5, 8, 9])
def test_every_split(memory, kernel, k_tiles):
    """One to five splits, an odd and an even number of tiles, the last one whole or ragged."""
    size = GEMMS[kernel].tile[2]
    for split_tiles in range(2, k_tiles + 2, 2):
        for rest in (0, size - 8, 32):
            check(memory, kernel, 37, 70, size * k_tiles - rest, split_tiles=split_tiles)
    check(memory, kernel, 300, 17, size * k_tiles, split_tiles=2)


@each_kind
def test_splits_are_finished_once(memory, kernel):
    """Scales, alpha, col_scale and bias apply to the sum, which is rounded once."""
    rng = np.random.default_rng(1)
    n, k = 70, GEMMS[kernel].tile[2] * 5
    col_scale = np.exp2(rng.integers(-5, 6, n)).astype(np.float32)
    for out in TYPES:
        for bias_type in TYPES.values():
            bias = rng.integers(-64, 65, n).astype(bias_type)
            more = {"alpha": -0.25, "col_scale": col_scale, "bias": bias}
            check(memory, kernel, 20, n, k, split_tiles=2, rows=True, out=out, **more)
        check(memory, kernel, 20, n, k, split_tiles=4, out=out)


@each_kind
def test_batches(memory, kernel):
    """Two levels, either operand shared at either level, with gaps between entries."""
    k = GEMMS[kernel].tile[2] + 32
    for a, b in (
        ((1, 5), (1, 5)),
        ((2, 3), (2, 3)),
        ((3, 1), (3, 2)),
        ((1, 2), (3, 2)),
        ((2, 3), (1, 1)),
        ((1, 3), (2, 1)),
    ):
        for split_tiles in (0, 2):
            check(memory, kernel, 37, 70, k, batches=(a, b), split_tiles=split_tiles)
    check(memory, kernel, 300, 270, 64, batches=((2, 2), (1, 2)), rows=True, out="bf16", gap=0)


@each_kind
def test_any_numbers_stay_in_the_bound(memory, kernel):
    k = GEMMS[kernel].tile[2] * 7 - 40
    drawn = Product.draw(GEMMS[kernel], 70, 65, k, a_batch=(1, 2), exact=False, row_scales=True)
    expected, magnitude = drawn.expected()
    for split_tiles in (0, 2, 4):
        error = np.abs(drawn.run(memory, split_tiles=split_tiles) - expected)
        assert (error <= (k + 6) * 2.0**-24 * magnitude + 2.0**-24 * np.abs(expected)).all()


@each_kind
def test_same_bits_in_any_order(memory, kernel, emulator, monkeypatch):
    """Whatever workgroups, waves and threads do first."""
    drawn = Product.draw(GEMMS[kernel], 70, 65, GEMMS[kernel].tile[2] * 5, b_batch=(1, 2), exact=False)
    first = drawn.run(memory, split_tiles=2)
    try:
        for threads, order in ((1, b"reverse"), (2, b"forward"), (3, b"random:1"), (2, b"random:2")):
            monkeypatch.setenv("HIPGEMM_EMULATOR_THREADS", str(threads))
            assert emulator.hipgemm_emulator_set_waves(order) == 0
            again = drawn.run(memory, split_tiles=2)
            assert again.tobytes() == first.tobytes(), (threads, order)
    finally:
        emulator.hipgemm_emulator_set_waves(None)
