"""Scales of blocks at both ends of their range, whose product is in that of float32."""

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED
from hipgemm.testing import assert_gemm_close

pytestmark = pytest.mark.matrix
F32 = np.dtype(np.float32)
BYTES = (
    ((0, 1, 127, 254), (0, 1, 127, 254)),
    ((254, 253), (0, 1)),
    ((0, 1), (254, 253)),
    ((127,), (0, 20, 127, 230, 231, 254)),
    ((255, 254, 127), (0, 127, 127)),
)
PAIRS = (
    ("mxfp8_e4m3", "mxfp8_e4m3"),
    ("mxfp8_e5m2", "mxfp8_e4m3"),
    ("mxfp4_e2m1", "mxfp4_e2m1"),
    ("mxfp6_e2m3", "mxfp6_e3m2"),
)


def scaled(rng: Any, shape: tuple[int, ...], format: str, scales: tuple[int, ...]) -> hg.ScaledArray:
    """No negative elements: sums of products beyond float32 are Inf, and not NaN."""
    dtype = QUANTIZED[format].dtype
    most = float(ml_dtypes.finfo(dtype).max)
    x = np.minimum(np.exp2(rng.integers(-4, 4, shape)), most).astype(dtype)
    x[..., ::7, :] = 0
    of_blocks = (*shape[:-1], -(-shape[-1] // 32))
    return hg.ScaledArray(x, rng.choice(np.array(scales, np.uint8), of_blocks), format)


@pytest.mark.parametrize("formats", PAIRS)
@pytest.mark.parametrize("scales", BYTES)
@pytest.mark.parametrize(("m", "n", "k"), [(130, 150, 288), (5, 33, 1100)])
def test_products(m, n, k, scales, formats, rng):
    a, b = (
        scaled(rng, (rows, k), *of)
        for rows, of in zip((m, n), zip(formats, scales, strict=True), strict=True)
    )
    got = hg.matmul(a, b.T, dtype=F32)
    assert_gemm_close(got, a, b.T)
    factors = {"alpha": 0.5, "col_scale": np.full(n, 4, F32)}
    np.testing.assert_allclose(hg.matmul(a, b.T, dtype=F32, **factors), 2 * got, rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("scales", BYTES)
def test_splits_of_k(scales, rng):
    a, b = (scaled(rng, (rows, 8192), "mxfp8_e4m3", of) for rows, of in zip((16, 64), scales, strict=True))
    assert_gemm_close(hg.matmul(a, b.T, dtype=F32), a, b.T)
    if hg.can_use("matmul", a, b.T).splits > 1:
        assert hg.usage().kernels["split_reduce"] > 0


@pytest.mark.parametrize("formats", PAIRS[1:3])
@pytest.mark.parametrize("scales", BYTES)
def test_groups(scales, formats, rng):
    offsets = np.array([0, 7, 7, 70], np.int32)
    x = scaled(rng, (90, 288), formats[0], scales[0])
    w = scaled(rng, (3, 72, 288), formats[1], scales[1])
    got = hg.grouped_matmul(x, w.mT, offsets, dtype=F32)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        assert_gemm_close(got[begin:end], x[begin:end], w[g].T)


@pytest.mark.parametrize("scales", BYTES)
def test_gradients_of_groups(scales, rng):
    offsets = np.array([0, 96, 96, 288], np.int32)
    dy, x = (
        scaled(rng, (rows, 288), format, of)
        for rows, format, of in zip((72, 40), PAIRS[1], scales, strict=True)
    )
    got = hg.grouped_wgrad(dy.T, x.T, offsets, dtype=F32)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        assert_gemm_close(got[g], dy[:, begin:end], x[:, begin:end].T)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp6_e3m2", "mxfp4_e2m1"])
@pytest.mark.parametrize("scales", [scales for _, scales in BYTES])
def test_weights_are_rounded_as_a_cast_would(scales, format, rng):
    """To bfloat16, which has no 2^128, and below 2^-126 fewer bits."""
    w = scaled(rng, (72, 288), format, scales)
    x = np.exp2(rng.integers(-3, 3, (40, 288))).astype(ml_dtypes.bfloat16)
    with np.errstate(over="ignore"):
        rounded = reference.values(w).astype(ml_dtypes.bfloat16).astype(np.float64)
    assert_gemm_close(hg.matmul(x, w.T, dtype=F32), x, rounded.T)


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("magnitudes", [(1e38, 1e-38), (1e-44, 1e38), (1e-30, 1e-5), (2e20, 1e17)])
def test_blocks_of_fp8(magnitudes, format, rng):
    a, b = (
        hg.ScaledArray(
            scaled(rng, (rows, 300), f"mx{format}", (127,)).data,
            (magnitude * rng.uniform(0.5, 1, (rows, 3))).astype(F32),
            format,
            block=(1, 128),
        )
        for rows, magnitude in zip((40, 72), magnitudes, strict=True)
    )
    assert_gemm_close(hg.matmul(a, b.T, dtype=F32), a, b.T)
    square = hg.ScaledArray(b.data[:, :70].T, b.scale[:1, :1], format, block=(128, 128))
    across = hg.ScaledArray(a.data[:, :70], a.scale[:, :1], format, block=(1, 128))
    assert_gemm_close(hg.matmul(across, square, dtype=F32), across, square)
