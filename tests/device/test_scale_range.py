"""Scales and factors whose product is outside the range of float32, on every path, element by element."""

import itertools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import LARGE_AND_SMALL, examples

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED
from hipgemm.testing import assert_gemm_close, exact_grid

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
LEAST, TOP = float(np.finfo(F32).smallest_subnormal), float(np.finfo(F32).max)

# Scales of a and b, alpha, and a factor of each column.
FACTORS = {
    "underflow, result normal": (1e-23, 1e-23, 1.0, None),
    "overflow": (1e20, 1e20, 1.0, None),
    "cancel": (1e30, 1e-30, 1.0, None),
    "subnormal": (1e-42, 1e35, 1.0, None),
    "least and greatest": (LEAST, TOP, 1.0, None),
    "result subnormal": (1e-22, 1e-22, 0.7, 1.3),
    "alpha restores": (1e-30, 1e-30, 1e30, None),
    "alpha restores from above": (1e25, 1e25, 1e-30, None),
    "col_scale restores": (1e-30, 1e-25, 1.0, 3e30),
    "all": (1e-38, 1e-38, 1e38, 1e38),
    "all the other way": (1e38, 1e38, 1e-38, 1e-38),
    "alpha and col_scale": (1.0, 1.0, 1e30, 1e-30),
    "alpha and col_scale, both small": (1.0, 1.0, 1e-30, 1e-13),
    "alpha and col_scale, from below": (1.0, 1.0, 1e-44, 1e38),
    "alpha overflows, col_scale restores": (1.0, 1.0, 2e38, 1e-30),
    "alpha underflows, col_scale restores": (1.0, 1.0, 1e-38, 1e30),
    "negative": (-1e-30, 1e-30, -1e25, -7.5),
    "zero": (0.0, 1e30, 1e30, 1e30),
    "ordinary": (0.3, 1.7e-3, 0.6, 1.1),
}
M, N, K = 40, 72, 128


def column_factors(n: int, of: float | None) -> Any:
    """Both magnitudes in one lane's columns."""
    return None if of is None else np.where(np.arange(n) % 3 == 0, 1.0, of).astype(F32)


def elements(rng: np.random.Generator, shape: tuple[int, ...], format: str = "fp8_e4m3") -> Any:
    """Exact sums, and zeros among the elements."""
    x = exact_grid(shape, rng, dtype=QUANTIZED[format].dtype, bits=2)
    x[..., ::5, :] = 0
    return x


def scaled(rng: Any, rows: int, k: int, scale: float, per_row: bool, format: str = "fp8_e4m3") -> Any:
    scales: Any = scale
    if per_row:  # ordinary ones among them
        scales = np.where(np.arange(rows) % 4 == 1, 0.5, scale).astype(F32)[:, None]
    return hg.ScaledArray(elements(rng, (rows, k), format), scales, format)


def without_limits(sums: Any, row: Any, column: Any, alpha: Any, col_scale: Any) -> Any:
    """What kernels compute from exact sums: float32 significands, unlimited exponents."""
    parts = [
        np.frexp(np.asarray(x, F32))
        for x in (sums, row, column, alpha, 1.0 if col_scale is None else col_scale)
    ]
    (s, i), (a, j), (b, k), (c, m), (d, n) = parts
    product = (s * (a * b) * c).astype(np.float64) * d  # 48 bits: exact
    with np.errstate(all="ignore"):
        return np.ldexp(product, i + j + k + m + n).astype(F32)


def check(call: Callable[..., Any], a: Any, b: Any, alpha: float, col_scale: Any) -> None:
    """Within the bound, and to float32 the same bits as the formula."""
    for dtype in (BF16, F32):
        got = call(a, b, dtype=dtype, alpha=alpha, col_scale=col_scale)
        assert_gemm_close(got, a, b, alpha=alpha, col_scale=col_scale)
    if isinstance(a, hg.ScaledArray) and not QUANTIZED[a.format].block:
        sums, scales = reference.matmul(*(x.data for x in (a, b))), (a.scale, b.scale)
    else:
        sums, scales = reference.matmul(a, b), (1.0, 1.0)
    np.testing.assert_array_equal(got, without_limits(sums, *scales, alpha, col_scale))


factors = pytest.mark.parametrize("of", FACTORS)


@factors
@pytest.mark.parametrize("rows", ["tensor @ tensor", "rows @ tensor", "tensor @ rows", "rows @ rows"])
@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_plain(of, rows, format, rng, use_kernel):
    use_kernel("plain")
    a, b, alpha, columns = FACTORS[of]
    one, other = (part == "rows" for part in rows.split(" @ "))
    x, w = scaled(rng, M, K, a, one, format), scaled(rng, N, K, b, other)
    check(hg.matmul, x, w.T, alpha, column_factors(N, columns))


@factors
@pytest.mark.parametrize("rows", ["tensor @ tensor", "rows @ rows"])
@pytest.mark.parametrize("kernel", examples(["fp8_e4m3"], LARGE_AND_SMALL))
def test_tiled(of, rows, kernel, rng, use_kernel):
    use_kernel(kernel)
    a, b, alpha, columns = FACTORS[of]
    one, other = (part == "rows" for part in rows.split(" @ "))
    x, w = scaled(rng, M, K, a, one), scaled(rng, N, K, b, other)
    check(hg.matmul, x, w.T, alpha, column_factors(N, columns))


@pytest.mark.matrix
@factors
@pytest.mark.parametrize("layout", ["nn", "tn", "tt"])
def test_other_layouts(of, layout, rng):
    a, b, alpha, columns = FACTORS[of]
    x, w = (
        hg.ScaledArray(elements(rng, shape), scale, "fp8_e4m3") for shape, scale in (((M, K), a), ((K, N), b))
    )
    if layout[0] == "t":
        x = hg.ScaledArray(np.ascontiguousarray(x.data.T), a, "fp8_e4m3").T
    if layout[1] == "t":
        w = hg.ScaledArray(np.ascontiguousarray(w.data.T), b, "fp8_e4m3").T
    check(hg.matmul, x, w, alpha, column_factors(N, columns))


@factors
@pytest.mark.parametrize("per_row", [False, True])
def test_split_k(of, per_row, rng):
    a, b, alpha, columns = FACTORS[of]
    x, w = scaled(rng, 16, 8192, a, per_row), scaled(rng, 64, 8192, b, per_row)
    check(hg.matmul, x, w.T, alpha, column_factors(64, columns))
    if hg.can_use("matmul", x, w.T).splits > 1:
        assert hg.usage().kernels["split_reduce"] > 0


def test_named_values():
    """0, Inf and NaN before."""
    one = hg.ScaledArray(np.full((8, 4096), 2.0**-1, QUANTIZED["fp8_e4m3"].dtype), 1e-23, "fp8_e4m3")
    got = hg.matmul(one, one.T, dtype=F32)
    np.testing.assert_allclose(got, 4096 * 0.25 * 1e-46, rtol=0, atol=LEAST / 2)
    ones = np.ones((8, 4096), F32).astype(QUANTIZED["fp8_e4m3"].dtype)
    low = hg.ScaledArray(ones * 2, 1e-23, "fp8_e4m3")
    np.testing.assert_allclose(hg.matmul(low, low.T, dtype=F32), 16384e-46, rtol=1e-6, atol=LEAST)
    ones[:, 1:] = 0
    ones[4:] = 0
    high = hg.ScaledArray(ones, 1e20, "fp8_e4m3")
    got = hg.matmul(high, high.T, dtype=F32)
    assert np.isinf(got[:4, :4]).all()
    assert not got[4:].any()


@pytest.mark.parametrize(
    "of", [name for name in FACTORS if "alpha" in name or "all" in name or name == "zero"]
)
@pytest.mark.parametrize(
    ("kernel", "format"),
    [(name, form) for form in ("bf16", "f16", "mxfp8_e4m3") for name in examples([form], LARGE_AND_SMALL)]
    + [("plain", form) for form in ("bf16", "f16", "mxfp8_e4m3", "mxfp4_e2m1")],
)
def test_alpha_and_col_scale_of_other_formats(of, kernel, format, rng, use_kernel):
    use_kernel(kernel)
    _, _, alpha, columns = FACTORS[of]
    if format in QUANTIZED:
        scale = np.full((1, K // 32), 127 - 5, np.uint8)
        x, w = (
            hg.ScaledArray(elements(rng, (n, K), format), np.repeat(scale, n, axis=0), format) for n in (M, N)
        )
    else:
        dtype = {"bf16": BF16, "f16": F16}[format]
        x, w = (exact_grid((n, K), rng, dtype=dtype) * dtype.type(2.0**-5) for n in (M, N))
    check(hg.matmul, x, w.T, alpha, column_factors(N, columns))


@pytest.mark.matrix
@factors
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_grouped_matmul(of, layout, rng):
    a, b, _, _ = FACTORS[of]
    offsets = np.array([0, 7, 7, 30], np.int32)
    x = scaled(rng, M, K, a, per_row=True)
    w = elements(rng, (3, N, K) if layout == "nt" else (3, K, N))
    scales = np.array([b, 1.0, 0.25], F32).reshape(3, 1, 1)
    w = hg.ScaledArray(w, scales, "fp8_e4m3")
    w = w.mT if layout == "nt" else w
    for dtype in (F32, BF16):
        got = hg.grouped_matmul(x, w, offsets, dtype=dtype)
        for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
            rows = hg.ScaledArray(x.data[begin:end], x.scale[begin:end], "fp8_e4m3")
            matrix = hg.ScaledArray(w.data[g], float(scales[g, 0, 0]), "fp8_e4m3")
            assert_gemm_close(got[begin:end], rows, matrix)


@pytest.mark.matrix
@factors
def test_grouped_wgrad(of, rng):
    a, b, _, _ = FACTORS[of]
    offsets = np.array([0, 70, 70, 130], np.int32)
    dy, x = (hg.ScaledArray(elements(rng, (130, n)), s, "fp8_e4m3") for n, s in ((M, a), (N, b)))
    got = hg.grouped_wgrad(dy, x, offsets, dtype=F32)
    for g, (begin, end) in enumerate(itertools.pairwise(offsets)):
        parts = [hg.ScaledArray(q.data[begin:end], q.scale, "fp8_e4m3") for q in (dy, x)]
        assert_gemm_close(got[g], parts[0].T, parts[1])
    onto = np.ones_like(got)
    hg.grouped_wgrad(dy, x, offsets, onto, accumulate=True)
    np.testing.assert_array_equal(onto[[0, 2]], (got + np.float32(1))[[0, 2]])


@factors
@pytest.mark.parametrize("split", ["k", "m", "n"])
@pytest.mark.parametrize("per_row", [False, True])
def test_sharded(of, split, per_row, rng):
    a, b, alpha, columns = FACTORS[of]

    def call(x: Any, w: Any, **options: Any) -> Any:
        return hg.sharded_matmul(x, w, split=split, devices=[0, 0], **options)

    x, w = scaled(rng, M, K, a, per_row), scaled(rng, N, K, b, per_row)
    check(call, x, w.T, alpha, column_factors(N, columns))


@factors
@pytest.mark.parametrize("per_row", [False, True])
def test_sharded_k_with_scales_of_each_range(of, per_row, rng):
    """Separately quantized parts."""
    a, b, alpha, columns = FACTORS[of]
    parts = []
    for n, scale in ((M, a), (N, b)):
        halves = [scale, scale / 2 if abs(scale) > LEAST else scale]
        parts.append([scaled(rng, n, K // 2, s, per_row) for s in halves])
    x, w = (hg.sharding.assemble([hg.asarray(q) for q in each], axis=-1) for each in parts)
    col_scale = column_factors(N, columns)
    got = hg.sharded_matmul(x, w.T, split="k", dtype=F32, alpha=alpha, col_scale=col_scale).get()
    whole = [np.concatenate([reference.values(q) for q in each], axis=-1) for each in parts]
    want = reference.matmul(whole[0], whole[1].T, alpha=alpha, col_scale=col_scale, dtype=F32)
    got = np.where(np.isinf(got) & (np.abs(want) == TOP), want, got)  # within the bound of sums that round
    assert_gemm_close(got, whole[0], whole[1].T, alpha=alpha, col_scale=col_scale)


def parts_of_k(scales: tuple[float, ...], value: float, k: int, rows: int = 8) -> Any:
    elements = np.full((rows, k), value, QUANTIZED["fp8_e4m3"].dtype)
    return hg.sharding.assemble(
        [hg.asarray(hg.ScaledArray(elements, s, "fp8_e4m3")) for s in scales], axis=-1
    )


def test_parts_with_one_scale_and_with_one_for_each_row(rng):
    parts = [[scaled(rng, n, 32, s, s == 3.0) for s in (3.0, 0.7)] for n in (M, N)]
    whole = [np.concatenate([reference.values(q) for q in each], axis=-1) for each in parts]
    x, w = (hg.sharding.assemble([hg.asarray(q) for q in each], axis=-1) for each in parts)
    assert_gemm_close(hg.sharded_matmul(x, w.T, split="k", dtype=F32).get(), whole[0], whole[1].T)


def test_parts_with_scales_far_from_each_other():
    """Sums of all parts in the first test, of one part in the others; then float32 does not suffice."""
    x, w = parts_of_k((1e-23, 3e-23), 2.0, 2048), parts_of_k((2e-23, 1e-23), 2.0, 2048)
    got = hg.sharded_matmul(x, w.T, split="k", dtype=F32).get()
    np.testing.assert_allclose(got, 2048 * 4 * 5e-46, rtol=1e-6, atol=LEAST)
    high, low = (parts_of_k((1e20, -s), 1.0, 32) for s in (1e20, 1e19))
    got = hg.sharded_matmul(high, low.T, split="k", dtype=F32, alpha=1e-10).get()
    np.testing.assert_allclose(got, 32 * 1.1e40 * 1e-10, rtol=1e-5)
    x, w = parts_of_k((2.0**40, 1.0), 1.0, 32), parts_of_k((0.0, 2.0**-54), 1.0, 32)
    got = hg.sharded_matmul(x, w.T, split="k", dtype=F32).get()
    np.testing.assert_array_equal(got, np.float32(32 * 2.0**-54))
    x, w = parts_of_k((2.0**40, 1.0), 1.0, 32), parts_of_k((2.0**-55, 1.0), 1.0, 32)
    required = r"sharded_matmul: scales of parts of K must differ by a factor of at most 2\*\*94 in a and b"
    with pytest.raises(ValueError, match=required + r"; got 2\*\*95; quantize all parts with the same amax"):
        hg.sharded_matmul(x, w.T, split="k")


@factors
def test_factors_on_the_device(of, rng):
    a, b, alpha, columns = FACTORS[of]
    x, w = scaled(rng, M, K, a, True), scaled(rng, N, K, b, False)
    col_scale = column_factors(N, columns)
    got = hg.matmul(
        hg.asarray(x),
        hg.asarray(w).T,
        dtype=F32,
        alpha=hg.asarray(np.float32(alpha)),
        col_scale=None if col_scale is None else hg.asarray(col_scale),
    )
    np.testing.assert_array_equal(got.get(), hg.matmul(x, w.T, dtype=F32, alpha=alpha, col_scale=col_scale))


def test_bias_and_the_last_product_are_rounded_once(rng):
    """Their sum may be in range although the product is not."""
    ones = hg.ScaledArray(np.ones((8, 32), QUANTIZED["fp8_e4m3"].dtype), 2.0**61, "fp8_e4m3")
    bias = np.full(8, -(2.0**127), F32)
    got = hg.matmul(ones, ones.T, dtype=F32, col_scale=np.full(8, 2.0, F32), bias=bias)
    np.testing.assert_array_equal(got, np.float32(2.0**127))
