"""Products of bfloat16 by quantized weights: elements are widened in registers, exactly."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED
from hipgemm.testing import assert_gemm_close

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.dtype(np.float32)

pytestmark = pytest.mark.matrix
BLOCKS = {"fp8_e4m3_block": ("fp8_e4m3", (128, 128)), "fp8_e5m2_block": ("fp8_e5m2", (1, 128))}
each_format = pytest.mark.parametrize("format", [*QUANTIZED, *BLOCKS])


def weights(shape, format, rng, scale=1.0):
    w = (rng.standard_normal(shape) * scale).astype(F32)
    if format in BLOCKS:
        form, block = BLOCKS[format]
        return reference.quantize_fp8(w, format=form, block=block)
    options = {"hadamard": False} if format == "mxfp4_e2m1" else {}
    return reference.quantize(w, format, **options)


def activations(shape, rng):
    return rng.standard_normal(shape).astype(BF16)


@each_format
@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 70, 96), (16, 64, 130), (33, 300, 520), (200, 270, 136), (5, 9, 0)]
)
def test_products(format, m, n, k, rng):
    x, w = activations((m, k), rng), weights((n, k), format, rng)
    bias = np.arange(n, dtype=F32)
    assert_gemm_close(hg.matmul(x, w.T, dtype=F32), x, w.T)
    got = hg.matmul(hg.asarray(x), hg.asarray(w).T, dtype=F32, alpha=-0.7, col_scale=bias, bias=bias)
    assert_gemm_close(got.get(), x, w.T, alpha=-0.7, col_scale=bias, bias=bias)
    used = hg.usage()
    assert all(
        name.startswith(
            (f"gemm_bf16_{format}_nt_", "split_reduce", "mx_gemm_scale", "gemm_float_scale", "copy_strided")
        )
        for name in used.kernels
    )
    assert not used.copies or k % 8


@each_format
def test_batches(format, rng):
    x, w = activations((3, 20, 96), rng), weights((3, 40, 96), format, rng)
    assert_gemm_close(hg.matmul(x, w.mT, dtype=F32), x, w.mT)
    assert_gemm_close(hg.matmul(hg.asarray(x), hg.asarray(w).mT, dtype=F32).get(), x, w.mT)


@each_format
def test_experts(format, rng):
    offsets = np.array([0, 7, 7, 60], np.int32)
    x = activations((70, 96), rng)
    w = weights((3, 40, 96), format, rng)
    if format.startswith("fp8") and format not in BLOCKS:
        w = hg.ScaledArray(w.data, np.array([0.5, 2, 3], F32).reshape(3, 1, 1), format)
    got = hg.grouped_matmul(hg.asarray(x), hg.asarray(w).mT, offsets, dtype=F32).get()
    values = reference.values(w)
    for g, (first, last) in enumerate(itertools.pairwise(offsets)):
        if first < last:
            np.testing.assert_allclose(
                got[first:last], x[first:last].astype(F32) @ values[g].T, rtol=2e-5, atol=1e-4
            )
    assert not got[60:].any()


@pytest.mark.parametrize("format", ["mxfp4_e2m1", "mxfp6_e3m2", "mxfp8_e5m2"])
def test_every_scale(format, rng):
    """Values that bfloat16 has are exact; others are rounded like a cast."""
    k, n = 32, 256
    chosen = np.zeros((n, k), F32)
    chosen[:, 5] = rng.integers(-2, 3, n)
    options = {"hadamard": False} if format == "mxfp4_e2m1" else {}
    codes = reference.quantize(chosen, format, **options)
    scale = np.arange(n, dtype=np.uint8).reshape(n, 1)
    w = hg.ScaledArray(codes.data, scale, format)
    x = np.zeros((1, k), BF16)
    x[0, 5] = 1
    got = hg.matmul(x, w.T, dtype=F32)[0]
    with np.errstate(over="ignore"):
        want = reference.values(w)[:, 5].astype(BF16).astype(F32)
    want[255] = np.nan
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("exponents", [(-60, 90, -40), (100, -90, 20), (-120, 0, 110), (0, 0, 0)])
def test_factors_of_extreme_size(exponents, rng):
    """The scale of fp8 weights, alpha and col_scale, whose products leave float32's range."""
    x, w = activations((9, 64), rng), weights((33, 64), "fp8_e4m3", rng)
    scale, alpha, column = (np.float32(1.1) * np.float32(2.0) ** e for e in exponents)
    w = hg.ScaledArray(w.data, scale, w.format)
    got = hg.matmul(x, w.T, dtype=F32, alpha=float(alpha), col_scale=np.full(33, column, F32))
    values = w.data.astype(np.float64)
    with np.errstate(over="ignore"):
        want = x.astype(np.float64) @ values.T * np.float64(scale) * np.float64(alpha) * np.float64(column)
    np.testing.assert_allclose(got, want.astype(F32), rtol=1e-5, atol=float(np.abs(want).max() * 1e-6))


def test_float16_is_refused(rng):
    with pytest.raises(hg.UnsupportedError, match=r"a.dtype must be bfloat16 if b alone is quantized"):
        hg.matmul(activations((4, 32), rng).astype(np.float16), weights((8, 32), "mxfp8_e4m3", rng).T)
    answer = hg.can_use(
        "matmul", activations((4, 32), rng).astype(np.float16), weights((8, 32), "mxfp8_e4m3", rng).T
    )
    assert not answer


@pytest.mark.emulator("counters of memory traffic")
@each_format
@pytest.mark.parametrize("groups", [0, 2])
def test_few_rows_read_the_weights_own_bytes(format, groups, rng):
    """Little more than the weights, x and the result; parts of K are summed by another kernel."""
    n, k = (720, 2880) if groups == 0 else (720, 1440)
    w = hg.asarray(weights((groups, n, k) if groups else (n, k), format, rng))
    for m in (1, 16, 64):
        x = hg.asarray(activations((m, k), rng))
        product, more, read = hg.matmul, (), w.nbytes
        if groups:
            product, more = hg.grouped_matmul, (np.array([0, m // 2, m], np.int32),)
            read //= 1 + (m == 1)  # one group has no rows
        hg.emulator_counters(reset=True, addresses=True)
        try:
            product(x, w.mT, *more).get()
        finally:
            counted = hg.emulator_counters(addresses=False)
        names = ("gemm_bf16", "grouped_matmul_bf16")
        (gemm,) = [launch.counters for launch in counted.each if launch.kernel.startswith(names)]
        assert gemm.lds_conflict_clocks == 0, m
        limit = 1.03 if groups else 1.01  # the smaller matrices of groups
        assert gemm.unique_read_bytes <= limit * (read + x.nbytes + 2 * m * n), m
