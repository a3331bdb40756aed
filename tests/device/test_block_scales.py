"""fp8 with a scale for each block of the last two axes: quantizer, dequantize, and the plain kernel."""

from __future__ import annotations

import copy
import itertools
import pickle

import ml_dtypes
import numpy as np
import pytest
from test_quantize import F16, F32, INPUTS, assert_bits, wide

import hipgemm as hg
from hipgemm import reference
from hipgemm.testing import assert_gemm_close, exact_scaled

E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
ROWS, SQUARES = (1, 128), (128, 128)
FP8 = ["fp8_e4m3", "fp8_e5m2"]
SHAPES = [(1, 1), (128, 128), (130, 257), (300, 40), (2, 130, 70), (2, 3, 5, 129), (0, 5), (5, 0), (2, 0, 3)]


def assert_same(got, want):
    assert (got.shape, got.format, got.block) == (want.shape, want.format, want.block)
    for part in ("data", "scale", "amax"):
        assert_bits(getattr(got, part), getattr(want, part))


@pytest.mark.parametrize("block", [ROWS, SQUARES])
@pytest.mark.parametrize("dtype", INPUTS)
@pytest.mark.parametrize("format", FP8)
def test_any_shape_and_strides(block, dtype, format, rng):
    for shape in SHAPES:
        x = wide(shape, rng, dtype)
        resident = hg.asarray(x)
        for y, z in ((x, resident), (x.swapaxes(-1, -2), resident.mT), (x[..., ::-2], resident[..., ::-2])):
            want = reference.quantize_fp8(y, block=block, format=format, eps=0)
            for _ in range(2):  # the second call has a plan
                got = hg.quantize_fp8(z, block=block, format=format, eps=0)
                assert_same(got.get(), want)
            assert_same(hg.quantize_fp8(y, block=block, format=format, eps=0), want)
            assert_bits(hg.dequantize(got).get(), reference.dequantize(want))


@pytest.mark.parametrize("block", [ROWS, SQUARES])
@pytest.mark.parametrize("eps", [0.0, 1e-8, 1.0])
def test_numbers_that_need_care(block, eps, rng):
    x = rng.standard_normal((390, 400)).astype(F32)
    x[0, 0], x[1, 200], x[130, 399] = np.nan, np.inf, -np.nan
    x[2], x[3, :128], x[4, :128], x[140:256, 128:256], x[256:, :128] = x[2] * 1e-30, 0, 1e-42, 1e-44, -0.0
    x[256:, 128:256] *= np.float32(1e-38)
    want = reference.quantize_fp8(x, block=block, eps=eps)
    got = hg.quantize_fp8(hg.asarray(x), block=block, eps=eps)
    assert_same(got.get(), want)
    assert_bits(hg.dequantize(got).get(), reference.dequantize(want))


@pytest.mark.parametrize("block", [ROWS, SQUARES])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_every_input(block, dtype):
    x = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(512, 128)
    for eps in (0.0, 1e-8):
        got = hg.quantize_fp8(hg.asarray(x), block=block, eps=eps)
        assert_same(got.get(), reference.quantize_fp8(x, block=block, eps=eps))


def test_scales_are_those_of_rows(rng):
    """Of rows of one block; and the largest row of a square block gives its scale."""
    x = wide((200, 100), rng)
    rows, blocks = hg.quantize_fp8(x, axis=-1), hg.quantize_fp8(x, block=ROWS)
    assert_bits(blocks.data, rows.data)
    assert_bits(blocks.scale, rows.scale)
    squares = hg.quantize_fp8(x, block=SQUARES).scale
    assert_bits(squares, np.array([[rows.scale[:128].max()], [rows.scale[128:].max()]]))


def test_views_and_copies(rng):
    q = reference.quantize_fp8(wide((130, 300), rng), block=ROWS)
    transposed = q.T
    assert (transposed.block, transposed.shape, transposed.scale.shape) == ((128, 1), (300, 130), (3, 130))
    assert transposed.mT.block == ROWS
    assert q.nbytes == 130 * 300 + 130 * 3 * 4
    assert repr(q) == "ScaledArray(shape=(130, 300), format='fp8_e4m3', block=(1, 128), host)"
    for made in (pickle.loads(pickle.dumps(q)), copy.deepcopy(q), copy.copy(q), hg.asarray(q).get()):
        assert_same(made, q)
    assert_same(hg.asarray(transposed).get(), transposed)
    assert q.reshape(2, 65, 300).block == ROWS


@pytest.mark.parametrize("block", [ROWS, SQUARES, (128, 1)])
def test_exponents_as_scales(block, rng):
    data = rng.standard_normal((130, 300)).astype(E4M3)
    shape = tuple(-(-n // side) for n, side in zip(data.shape, block, strict=True))
    scale = rng.integers(0, 256, shape, np.uint8)
    q = hg.ScaledArray(data, scale, "fp8_e4m3", block=block)
    assert q.scale.dtype == ml_dtypes.float8_e8m0fnu
    values = np.exp2(np.minimum(scale, 254).astype(np.float64) - 127).astype(F32)
    values[scale == 255] = np.nan
    floats = hg.ScaledArray(data, values, "fp8_e4m3", block=block)
    for dtype in INPUTS:
        want = reference.dequantize(floats, dtype=dtype)
        assert_bits(reference.dequantize(q, dtype=dtype), want)
        assert_bits(hg.dequantize(hg.asarray(q), dtype=dtype).get(), want)


# ---- products by the plain kernel ------------------------------------------------------------------


def operands(x, format, rng):
    """A matrix (.., rows, K), quantized in all ways that have a product with blocks along K."""
    made = {block: reference.quantize_fp8(x, block=block, format=format) for block in (ROWS, SQUARES)}
    powers = rng.integers(120, 134, made[SQUARES].scale.shape).astype(np.uint8)
    made["exponents"] = hg.ScaledArray(made[SQUARES].data, powers, format, block=SQUARES)
    others = {axis: reference.quantize_fp8(x, axis=axis, format=format) for axis in (None, -1)}
    return made, others | {"bf16": x.astype(BF16)}


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((5, 300), (7, 300)),
        ((130, 200), (260, 200)),
        ((2, 130, 130), (3, 130)),
        ((3, 129, 257), (3, 140, 257)),
        ((2, 1, 3, 129), (4, 129, 129)),
        ((3, 0), (2, 0)),
    ],
)
def test_plain_products(a_shape, b_shape, rng):
    a, b = (
        (rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, (*shape[:-1], 1)))).astype(F32)
        for shape in (a_shape, b_shape)
    )
    blocks_of_a, others_of_a = operands(a, "fp8_e4m3", rng)
    blocks_of_b, others_of_b = operands(b, "fp8_e5m2", rng)
    others_of_b.pop("bf16")
    pairs = [*itertools.product(blocks_of_a.values(), (blocks_of_b | others_of_b).values())]
    pairs += itertools.product(others_of_a.values(), blocks_of_b.values())
    with hg.config(kernel="plain"):
        for x, y in pairs:
            out = hg.matmul(x, y.mT, dtype=F32)
            assert_gemm_close(out, x, y.mT)
            assert_bits(hg.matmul(hg.asarray(x), hg.asarray(y).mT, dtype=F32).get(), out)


@pytest.mark.parametrize("blocks", [*itertools.product((ROWS, SQUARES), repeat=2)])
def test_plain_products_are_exact_on_grids(blocks, rng):
    """A scale of another block would change bits."""
    a, b = (
        exact_scaled((rows, 400), rng, "fp8_e4m3", block=block)
        for rows, block in zip((200, 150), blocks, strict=True)
    )
    with hg.config(kernel="plain"):
        assert_gemm_close(hg.matmul(a, b.T, dtype=F32), a, b.T, exact=True)
        assert_gemm_close(hg.matmul(b, a.T), b, a.T, exact=True)


def test_plain_products_of_extreme_scales(rng):
    def quantized(rows, *powers):
        codes = rng.integers(1, 5, (rows, 128 * len(powers))).astype(F32)
        scale = np.repeat(np.exp2([powers]).astype(F32), rows, 0)
        return hg.ScaledArray(codes.astype(E4M3), scale, "fp8_e4m3", block=ROWS)

    a, b = quantized(4, 100, -100), quantized(5, -90, 100)
    large, small = quantized(5, 100, 100), quantized(5, -70, -75)
    codes = np.where(np.arange(256) < 128, 0, a.data.astype(F32)).astype(E4M3)
    zeros = hg.ScaledArray(codes, a.scale, a.format, block=ROWS)
    one = hg.ScaledArray(large.data, np.float32(2.0**100), "fp8_e4m3")
    with hg.config(kernel="plain"):
        for x, y, alpha in (
            (a, b, 1.0),
            (zeros, large, 1.0),  # the product of the scales of the zeros overflows
            (a, large, 2.0**-120),  # so do sums, before alpha is applied
            (small, small, 2.0**120),
            (small, one, 2.0**-30),
        ):
            assert_gemm_close(hg.matmul(x, y.T, dtype=F32, alpha=alpha), x, y.T, alpha=alpha)


# ---- faults ----------------------------------------------------------------------------------------


def test_faults_of_the_quantizer():
    x = np.ones((4, 300), F32)
    for options, text in (
        ({"block": (128, 1)}, r"block must be \(1, 128\) or \(128, 128\); got \(128, 1\)"),
        ({"block": ROWS, "axis": -1}, "axis must be omitted with block; got -1"),
        ({"block": ROWS, "amax": 2.0}, r"amax must be omitted with block; got 2\.0"),
        ({"block": ROWS, "amax": hg.AmaxState()}, "amax must be omitted with block; got AmaxState"),
    ):
        for y in (x, hg.asarray(x)):
            with pytest.raises(ValueError, match=text):
                hg.quantize_fp8(y, **options)
    with pytest.raises(ValueError, match=r"x\.ndim must be at least 2; got 1"):
        hg.quantize_fp8(x[0], block=ROWS)
    with pytest.raises(TypeError, match=r"block must be .*; got 128"):
        hg.quantize_fp8(x, block=128)


def test_faults_of_arrays():
    data, scale = np.zeros((4, 300), E4M3), np.ones((4, 3), F32)
    for error, text, make in (
        (ValueError, r"scale.shape must be \(1, 3\); got \(4, 3\)", lambda: (scale, "fp8_e4m3", SQUARES)),
        (TypeError, "scale.dtype must be float32 or float8_e8m0fnu for fp8_e4m3 with block; got float64",
         lambda: (scale.astype(float), "fp8_e4m3", ROWS)),
        (TypeError, "scale must be a numpy.ndarray or a hipgemm.DeviceArray; got float",
         lambda: (1.0, "fp8_e4m3", ROWS)),
        (ValueError, "block is only for fp8_e4m3 and fp8_e5m2; got mxfp8_e4m3",
         lambda: (scale, "mxfp8_e4m3", ROWS)),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            hg.ScaledArray(data, *make()[:2], block=make()[2])
    with pytest.raises(ValueError, match="axis must be omitted with block; got 0"):
        hg.ScaledArray(data, scale, "fp8_e4m3", axis=0, block=ROWS)
    q = hg.ScaledArray(data[None], scale[None], "fp8_e4m3", block=ROWS)
    with pytest.raises(ValueError, match=r"ndim must be 2 with block; got 3; see ScaledArray\.mT"):
        _ = q.T


def test_blocks_must_be_along_k():
    q = reference.quantize_fp8(np.ones((200, 200), F32), block=ROWS)
    with pytest.raises(ValueError, match=r"b must have blocks of 128 along K, .*x\.T, block=\(1, 128\)\)\.T"):
        hg.matmul(q, q)
