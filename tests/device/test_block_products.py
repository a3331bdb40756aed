"""Products of fp8 with a scale for each block of the last two axes."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from test_grouped import assert_wgrad

import hipgemm as hg
from hipgemm import reference
from hipgemm.testing import assert_gemm_close, exact_scaled

F32 = np.dtype(np.float32)
ROWS, SQUARES = (1, 128), (128, 128)
PAIRS = [
    (ROWS, SQUARES),
    (ROWS, ROWS),
    (SQUARES, ROWS),
    (SQUARES, SQUARES),
    ("tensor", SQUARES),
    (ROWS, "tensor"),
    ("row", SQUARES),
    (ROWS, "row"),
]

pytestmark = pytest.mark.matrix


def operand(shape, shared, rng, format="fp8_e4m3", powers=False):
    """A quantized matrix (rows, K), with scales that differ widely from row to row."""
    x = (rng.standard_normal(shape) * np.exp2(rng.integers(-8, 8, (*shape[:-1], 1)))).astype(F32)
    if shared == "tensor":
        return reference.quantize_fp8(x, format=format)
    if shared == "row":
        return reference.quantize_fp8(x, format=format, axis=-1)
    q = reference.quantize_fp8(x, format=format, block=shared)
    if not powers:
        return q
    scale = np.exp2(np.round(np.log2(q.scale))).astype(ml_dtypes.float8_e8m0fnu)
    return hg.ScaledArray(q.data, scale, format, block=shared)


def check(a, b):
    assert_gemm_close(hg.matmul(a, b.T, dtype=F32), a, b.T)
    assert_gemm_close(hg.matmul(hg.asarray(a), hg.asarray(b).T, dtype=F32).get(), a, b.T)


@pytest.mark.parametrize("blocks", PAIRS)
@pytest.mark.parametrize(("m", "n", "k"), [(37, 70, 200), (300, 270, 520), (5, 130, 128), (3, 4, 0)])
def test_pairs(blocks, m, n, k, rng):
    for formats in itertools.product(("fp8_e4m3", "fp8_e5m2"), repeat=2):
        a, b = (operand((x, k), shared, rng, f) for x, shared, f in zip((m, n), blocks, formats, strict=True))
        check(a, b)
    kernels = [name for name in hg.usage().kernels if name.startswith("gemm_fp8")]
    assert kernels
    assert all("_block_" in name for name in kernels)
    assert not hg.usage().slower


@pytest.mark.parametrize("blocks", PAIRS[:4])
def test_powers_of_two_take_the_matrix_instruction(blocks, rng):
    a, b = (operand((x, 520), shared, rng, powers=True) for x, shared in zip((150, 270), blocks, strict=True))
    check(a, b)
    kernels = [name for name in hg.usage().kernels if name.startswith("gemm_") and "scale" not in name]
    assert kernels
    assert all(name.startswith("gemm_mxfp8_e4m3_nt_") for name in kernels)
    check(a, operand((270, 520), blocks[1], rng))


@pytest.mark.parametrize("powers", [False, True])
def test_squares_serve_both_axes(powers, rng):
    """The scales that a product keeps in the order of its kernel are of one axis."""
    w = hg.asarray(operand((150, 260), SQUARES, rng, powers=powers))
    x, dy = (operand((40, n), SQUARES, rng, powers=powers) for n in (260, 150))
    for _ in range(2):
        assert_gemm_close(hg.matmul(hg.asarray(x), w.T, dtype=F32).get(), x, w.get().T)
        assert_gemm_close(hg.matmul(hg.asarray(dy), w, dtype=F32).get(), dy, w.get())


@pytest.mark.parametrize("powers", [False, True])
def test_the_other_axis_of_squares_is_read_in_place(powers, rng, configure):
    """With the bits of the same tile for a copy whose other axis is contiguous."""
    offsets = np.array([0, 17, 40], np.int32)
    dy = operand((40, 150), ROWS, rng, powers=powers)
    for shape, name in (((150, 260), "gemm"), ((2, 150, 260), "grouped_matmul")):
        w = operand(shape, SQUARES, rng, powers=powers)
        data, scale = (x.swapaxes(-1, -2).copy() for x in (w.data, w.scale.astype(F32)))
        copied = hg.asarray(hg.ScaledArray(data, scale, w.format, block=SQUARES)).mT
        got = []
        for layout, scale, b in (("nn", dy.scale, hg.asarray(w)), ("nt", dy.scale.astype(F32), copied)):
            a = hg.asarray(hg.ScaledArray(dy.data, scale, dy.format, block=ROWS))
            configure(kernel=f"{name}_fp8_e4m3_block_{layout}_32x64x128")
            y = hg.matmul(a, b, dtype=F32) if name == "gemm" else hg.grouped_matmul(a, b, offsets, dtype=F32)
            got.append(y.get())
        assert got[0].tobytes() == got[1].tobytes()
    assert not hg.usage().copies


def test_batches(rng):
    a, b = operand((3, 40, 256), ROWS, rng), operand((3, 150, 256), SQUARES, rng)
    assert_gemm_close(hg.matmul(a, b.mT, dtype=F32), a, b.mT)
    assert_gemm_close(hg.matmul(hg.asarray(a), hg.asarray(b).mT, dtype=F32).get(), a, b.mT)
    one = operand((150, 256), SQUARES, rng)
    assert_gemm_close(hg.matmul(a, one.T, dtype=F32), a, one.T)


@pytest.mark.parametrize("blocks", PAIRS[:2])
def test_experts(blocks, rng):
    x, w = operand((70, 256), blocks[0], rng), operand((3, 150, 256), blocks[1], rng)
    offsets = np.array([0, 7, 7, 60], np.int32)
    got = hg.grouped_matmul(hg.asarray(x), hg.asarray(w).mT, offsets, dtype=F32).get()
    assert got.tobytes() == hg.grouped_matmul(x, w.mT, offsets, dtype=F32).tobytes()
    rows, experts = reference.values(x), reference.values(w)
    for g, (first, last) in enumerate(itertools.pairwise(offsets)):
        part, wanted = slice(first, last), rows[first:last] @ experts[g].T
        magnitudes = np.abs(rows[part]) @ np.abs(experts[g].T)
        assert (np.abs(got[part] - wanted) <= magnitudes * (256 + 6) * 2.0**-24).all()
    assert not got[60:].any()


@pytest.mark.parametrize("offsets", [[0, 128, 256, 300], [0, 5, 5, 140, 290], [0, 300], [0, 0, 0], [0]])
@pytest.mark.parametrize("blocks", PAIRS)
def test_weight_gradients_of_experts(blocks, offsets, rng):
    """Groups may begin and end inside a block, and what is NaN there belongs to another group."""
    offsets = np.array(offsets, np.int32)
    dy, x = (operand((n, 300), shared, rng).T for n, shared in zip((70, 130), blocks, strict=True))
    dy.data[290:] = x.data[290:] = np.nan
    got = hg.grouped_wgrad(dy, x, offsets, dtype=F32)
    assert_wgrad(got, dy, x, offsets)
    for o in (offsets, hg.asarray(offsets)):
        again = hg.grouped_wgrad(hg.asarray(dy), hg.asarray(x), o, dtype=F32).get()
        assert again.tobytes() == got.tobytes()
    old = rng.integers(-9, 10, got.shape).astype(F32)
    added = old.copy()
    hg.grouped_wgrad(dy, x, offsets, added, accumulate=True)
    np.testing.assert_array_equal(added, got + old)
    used = hg.usage()
    assert all("block" in kernel and "product for each" in why for _, kernel, why in used.slower)
    answer = hg.can_use("grouped_wgrad", dy, x, offsets)
    assert answer
    assert not got.size or "one product for each" in str(answer)


def test_weight_gradients_refuse(rng):
    dy, x = (operand((n, 300), ROWS, rng).T for n in (70, 130))
    wrong = hg.asarray(np.array([0, 5, 301], np.int32))
    with pytest.raises(ValueError, match=r"group_offsets\[2\]=301"):
        hg.grouped_wgrad(hg.asarray(dy), hg.asarray(x), wrong)
    with pytest.raises(ValueError, match=r"dy must have blocks of 128 along K, its axis -2"):
        hg.grouped_wgrad(operand((300, 70), ROWS, rng), x, np.array([0, 300]))


def test_scales_of_any_size(rng):
    a, b = (
        exact_scaled(shape, rng, "fp8_e4m3", block=of)
        for shape, of in (((20, 300), ROWS), ((30, 300), SQUARES))
    )
    large = hg.ScaledArray(a.data, np.ldexp(a.scale, 110), a.format, block=ROWS)
    small = hg.ScaledArray(b.data, np.ldexp(b.scale, -110), b.format, block=SQUARES)
    np.testing.assert_array_equal(hg.matmul(large, small.T, dtype=F32), reference.matmul(a, b.T, dtype=F32))


@pytest.mark.parametrize("kernel", ["plain", None])
@pytest.mark.parametrize(("k", "factor"), [(3, 1e30), (300, 1e30), (3, 1e-5), (100, 1e-5)])
@pytest.mark.parametrize("exponent", [-133, -126, -118])
def test_scales_are_factors_of_the_sum_of_a_block(exponent, k, factor, kernel, rng, configure):
    """Not of the weights: their products with tiny numbers would lose bits."""
    configure(kernel=kernel)
    x = np.ldexp(rng.standard_normal((20, k)), exponent).astype(ml_dtypes.bfloat16)
    w = operand((150, k), SQUARES, rng)
    check(
        x,
        hg.ScaledArray(
            w.data, (w.scale * rng.uniform(factor / 2, factor)).astype(F32), w.format, block=SQUARES
        ),
    )


@pytest.mark.parametrize("split", ["m", "n", "k"])
@pytest.mark.parametrize("blocks", PAIRS[:5])
def test_parts(split, blocks, rng):
    """Parts begin at a block, also those of K with an operand whose own blocks are smaller, or has none."""
    a, b = operand((300, 600), blocks[0], rng), operand((290, 600), blocks[1], rng)
    for devices in ([0], [0, 0], [0, 0, 0]):
        got = hg.sharded_matmul(a, b.T, split=split, devices=devices, dtype=F32)
        assert_gemm_close(got, a, b.T)
    axes = {"m": (-2, None), "n": (None, -1), "k": (-1, -2)}[split]
    parts = [
        x if axis is None else hg.shard(x, [0, 0], axis=axis) for x, axis in zip((a, b.T), axes, strict=True)
    ]
    if split == "k" and blocks[0] == "tensor":
        return  # its parts may begin anywhere
    got = hg.sharded_matmul(*parts, split=split, devices=[0, 0], dtype=F32)
    assert_gemm_close(got.get(), a, b.T)


def test_parts_of_weights(rng):
    x = rng.standard_normal((20, 420)).astype(ml_dtypes.bfloat16)
    for w in (
        operand((150, 420), SQUARES, rng),
        reference.quantize_mxfp4(rng.standard_normal((150, 420)).astype(F32), hadamard=False),
    ):
        for split in ("m", "n", "k"):
            got = hg.sharded_matmul(x, w.T, split=split, devices=[0, 0, 0], dtype=F32)
            assert_gemm_close(got, x, w.T)
