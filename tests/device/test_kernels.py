"""The kernels alone: every shape and argument, in memory that ends where the operands end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import LARGE_AND_SMALL, Memory, examples, launch_in_order

from hipgemm import reference, testing
from hipgemm.formats.elements import FORMATS, format_of
from hipgemm.kernels import launch as _launch

BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {"bf16": BF16, "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}
GEMMS = examples(["bf16"], LARGE_AND_SMALL)


def every_gemm(test):
    return pytest.mark.parametrize("kernel", GEMMS)(test)


@pytest.fixture
def memory():
    made = Memory()
    yield made
    made.free()


def unsigned(x: np.ndarray) -> np.ndarray:
    return x.view(f"u{x.itemsize}")


def storage(x: np.ndarray, ld: int) -> np.ndarray:
    """The elements of a row-major matrix, NaN after each row except the last."""
    rows, columns = x.shape
    full = np.full((rows, ld), np.nan, dtype=x.dtype)
    full[:, :columns] = x
    return full.reshape(-1)[: max(1, (rows - 1) * ld + columns)]


def gemm(
    memory,
    kernel,
    a,
    b,
    *,
    out="bf16",
    lda=0,
    ldb=0,
    ldc=0,
    shift=0,
    alpha=1.0,
    device_alpha=None,
    col_scale=None,
    bias=None,
):
    """a @ b.T by a kernel; C begins `shift` elements into its memory; memory around it must not change."""
    (m, k), n = a.shape, b.shape[0]
    lda, ldb, ldc = lda or max(k, 8), ldb or max(k, 8), ldc or n
    start, end = 8 + shift, 8 + shift + (m - 1) * ldc + n
    before = np.full(end + 8, np.nan, dtype=TYPES[out])
    c = memory.put(before)
    function = _launch.function(0, kernel)
    tile_m, tile_n, _ = function.tile
    launch_in_order(
        function,
        -(-m // tile_m) * -(-n // tile_n),
        0,
        memory.put(storage(a, lda)),
        memory.put(storage(b, ldb)),
        c + start * before.itemsize,
        0 if device_alpha is None else memory.put(np.array([device_alpha], np.float32)),
        0 if col_scale is None else memory.put(col_scale),
        0 if bias is None else memory.put(bias),
        *(lda, ldb, ldc),
        *(0, 0, 0, 0, 0, 0, 0),  # strides of batch and splits
        *(m, n, k),
        *(1, 1, 0),  # batch_inner, splits, split_tiles
        alpha,
        FORMATS[out],
        0 if bias is None else format_of(bias.dtype),
    )
    after = memory.get(c, before)
    inside = np.zeros(after.shape, bool)
    where = start + np.arange(m)[:, None] * ldc + np.arange(n)
    inside[where] = True
    assert np.array_equal(unsigned(after)[~inside], unsigned(before)[~inside]), "written outside C"
    return after[where]


def check(memory, kernel, m, n, k, *, exact=False, out="bf16", seed=0, **options):
    rng = np.random.default_rng([m, n, k, seed])
    make = testing.exact_grid if exact else testing.random_matrix
    a, b = make((m, k), rng), make((n, k), rng)
    got = gemm(memory, kernel, a, b, out=out, **options)
    alpha = options.get("device_alpha")
    alpha = options.get("alpha", 1.0) if alpha is None else alpha
    factors = {"alpha": alpha, "col_scale": options.get("col_scale"), "bias": options.get("bias")}
    testing.assert_gemm_close(got, a, b.T, exact=exact, **factors)


EDGES = (1, 15, 16, 17, 255, 256, 257, 300)
DEPTHS = (8, 64, 72, 128, 136, 200, 1032)
# Every edge with every depth, once as M and once as N.
SHAPES = [(m, EDGES[(i + j) % len(EDGES)], k) for i, m in enumerate(EDGES) for j, k in enumerate(DEPTHS)]


@every_gemm
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_ragged_shapes(memory, kernel, m, n, k):
    check(memory, kernel, m, n, k)
    check(memory, kernel, m, n, k, exact=True, out="f32", lda=k + 8, ldb=k + 24, ldc=n + 3)


@every_gemm
@pytest.mark.parametrize("tiles", range(1, 8))
def test_every_number_of_k_tiles(memory, kernel, tiles):
    for rest in (0, 8, 56):
        check(memory, kernel, 70, 90, 64 * tiles - rest, exact=True, out="f32")


@every_gemm
def test_no_k_gives_the_bias(memory, kernel):
    bias = np.arange(300, dtype=np.float32)
    check(memory, kernel, 33, 300, 0, exact=True, out="f32", bias=bias)


@every_gemm
@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("bias_type", TYPES)
def test_epilogue(memory, kernel, out, bias_type):
    rng = np.random.default_rng(3)
    for m, n, k in ((70, 301, 72), (257, 64, 128)):
        bias = rng.standard_normal(n).astype(TYPES[bias_type])
        col_scale = np.exp2(rng.integers(-5, 6, n)).astype(np.float32)
        check(memory, kernel, m, n, k, out=out, alpha=-0.37)
        check(memory, kernel, m, n, k, out=out, alpha=99.0, device_alpha=1.7)
        check(memory, kernel, m, n, k, out=out, bias=bias)
        check(memory, kernel, m, n, k, out=out, alpha=1.25, col_scale=col_scale, bias=bias)


@every_gemm
@pytest.mark.parametrize("out", TYPES)
def test_rows_of_c_at_any_alignment(memory, kernel, out):
    for shift, n, gap in itertools.product((0, 1, 2, 4), (1, 7, 8, 63, 72), (0, 1, 2)):
        check(memory, kernel, 20, n, 64, exact=True, out=out, shift=shift, ldc=n + gap)


@every_gemm
def test_every_element_of_k_meets_its_partner(memory, kernel):
    """Row i of A selects one k: C must be that column of B, which encodes its columns, then its rows."""
    k = 256
    pick = np.random.default_rng(5).permutation(k)
    a = np.zeros((k, k), BF16)
    a[np.arange(k), pick] = 1
    index = np.arange(k, dtype=np.float32)
    by_column, by_row = np.tile(index, (k, 1)), np.tile(index[:, None], (1, k))
    for b in (by_column, by_row):
        got = gemm(memory, kernel, a, b.astype(BF16), out="f32")
        assert np.array_equal(got, b.T[pick])


@every_gemm
def test_nan_and_infinity_stay_in_their_rows_and_columns(memory, kernel):
    rng = np.random.default_rng(6)
    a, b = testing.exact_grid((130, 136), rng), testing.exact_grid((70, 136), rng)
    a[129, 135] = np.nan
    b[3, 0] = np.inf
    a[:, 0] = 1
    clean = reference.matmul(np.where(np.isnan(a), 0, a), np.where(np.isinf(b), 0, b).T)
    got = gemm(memory, kernel, a, b, out="f32")
    assert np.isnan(got[129]).all()
    assert np.isposinf(got[:129, 3]).all()
    rest = np.delete(got[:129], 3, axis=1)
    assert np.array_equal(rest, np.delete(clean[:129], 3, axis=1))


@every_gemm
def test_overflow_becomes_infinity_and_ties_go_to_even(memory, kernel):
    zero = np.zeros((1, 8), BF16)
    for out, value, expected in (
        ("f16", 65520.0, np.inf),
        ("f16", 65519.0, 65504.0),
        ("f16", 2049.0, 2048.0),
        ("f16", 2051.0, 2052.0),
        ("bf16", 257.0, 256.0),
        ("bf16", 259.0, 260.0),
        ("bf16", 3.4e38, np.inf),
        ("f32", 1e-45, np.float32(1e-45)),
    ):
        got = gemm(memory, kernel, zero, zero, out=out, bias=np.array([value], np.float32))
        assert got.astype(np.float64)[0, 0] == expected, (out, value)


@every_gemm
def test_zero_keeps_its_sign(memory, kernel):
    zero = np.zeros((1, 8), BF16)
    assert np.signbit(gemm(memory, kernel, zero, zero, out="f32", alpha=-1.0)).all()
    assert not np.signbit(gemm(memory, kernel, zero, zero, out="f32")).any()


@pytest.mark.matrix("bf16")
def test_more_workgroups_than_a_span_of_runs(memory):
    small = GEMMS[-1]
    tile_m, tile_n, _ = _launch.function(0, small).tile
    check(memory, small, tile_m * 27 - 3, tile_n * 21 - 5, 8, exact=True, out="f32")


@pytest.mark.matrix("bf16")
@pytest.mark.emulator("memory modes")
@pytest.mark.skipif("HIPGEMM_EMULATOR_MEMORY" in os.environ, reason="runs the tests of this file itself")
def test_loads_may_land_at_once():
    """The emulator lets loads land as late as waits allow; the hardware may be as early as their issue."""
    chosen = "k_tiles or partner or (ragged_shapes and 257)"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen],
        env={**os.environ, "HIPGEMM_EMULATOR_MEMORY": "early"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


# ---- strided copies --------------------------------------------------------------------------------


def copy(memory, source, target, pad=0):
    """Launch the copy between two NumPy views; returns the memory of the target."""

    def on_device(view):
        base = view.base if view.base is not None else view
        pointer = memory.put(base)
        return base, pointer, pointer + view.ctypes.data - base.ctypes.data

    _, _, src = on_device(source)
    base, pointer, dst = on_device(target)
    rows, columns = source.shape
    _launch.copy_strided(
        0, 0, source.itemsize, (src, *source.strides), (dst, *target.strides), rows, columns, pad
    )
    return memory.get(pointer, base)


def view(rows, columns, dtype, layout, fill):
    """A (rows, columns) view into a larger array, whose memory order is the layout's."""
    if layout == "column":
        return fill((columns + 3, rows + 5), dtype)[2 : 2 + columns, 1 : 1 + rows].T
    if layout == "reversed":
        return fill((rows + 3, columns + 5), dtype)[1 : 1 + rows, 1 : 1 + columns][::-1, ::-1]
    if layout == "stepped":
        return fill((2 * rows + 3, 3 * columns + 5), dtype)[1 : 1 + 2 * rows : 2, 1 : 1 + 3 * columns : 3]
    return fill((rows + 3, columns + 5), dtype)[1 : 1 + rows, 3 : 3 + columns]


def noise(shape, dtype):
    return np.random.default_rng(9).integers(1, np.iinfo(dtype).max, size=shape, dtype=dtype)


def marks(shape, dtype):
    return np.full(shape, np.iinfo(dtype).max, dtype=dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
@pytest.mark.parametrize("layout", ["row", "column", "reversed", "stepped"])
@pytest.mark.parametrize("to", ["row", "column", "stepped"])
def test_copy(memory, dtype, layout, to):
    for rows, columns, pad in ((1, 1, 0), (64, 64, 0), (65, 63, 72), (130, 7, 8), (3, 200, 264)):
        source = view(rows, columns, dtype, layout, noise)
        target = view(rows, max(columns, pad), dtype, to, marks)
        after = copy(memory, source, target, pad)
        expected = target.base.copy()
        inner = np.lib.stride_tricks.as_strided(
            expected.reshape(-1)[(target.ctypes.data - target.base.ctypes.data) // target.itemsize :],
            target.shape,
            target.strides,
        )
        inner[:, :columns] = source
        inner[:, columns:] = 0
        assert np.array_equal(after, expected), (rows, columns, pad)


def test_copy_of_a_row_that_is_repeated(memory):
    source = np.broadcast_to(noise((1, 100), np.uint16), (70, 100))
    target = marks((70, 100), np.uint16)
    source_pointer = memory.put(source[:1])
    pointer = memory.put(target)
    _launch.copy_strided(0, 0, 2, (source_pointer, 0, 2), (pointer, 200, 2), 70, 100)
    assert np.array_equal(memory.get(pointer, target), source)
