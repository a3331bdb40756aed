"""Stochastic rounding and random signs on devices: the same bits as the reference."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED, SCALE_RULES

BF16 = np.dtype(ml_dtypes.bfloat16)
MX = ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1", "mxfp6_e2m3", "mxfp6_e3m2"]
SEED = 2**63 + 1234567891011
STOCHASTIC = {"rounding": "stochastic", "seed": SEED}


def quantize(module, x, format, **options):
    """Quantize by the quantizer of a format; mxfp4 without the transform unless asked for."""
    name = "quantize_" + format.split("_")[0]
    if format == "mxfp4_e2m1":
        return getattr(module, name)(x, **{"hadamard": False, **options})
    return getattr(module, name)(x, format=format, **options)


def assert_same(got, expected):
    """Codes and scales have the same bits."""
    got = got.get()
    assert got.shape == expected.shape
    assert (got.hadamard, got.signs) == (expected.hadamard, expected.signs)
    np.testing.assert_array_equal(got.data.view(np.uint8), expected.data.view(np.uint8))
    assert got.scale.tobytes() == expected.scale.tobytes()


def numbers(rng, shape, dtype):
    """Numbers of every size, with zeros."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-12, 3, shape))
    x[rng.random(shape) < 0.05] = 0
    return x.astype(dtype)


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("format", MX)
def test_blocks_along_both_axes(format, axis, dtype, rng):
    for shape in ((64, 96), (37, 133), (1, 300), (300, 1)):
        x = numbers(rng, shape, dtype)
        device = hg.asarray(x)
        for view, host in ((device, x), (device.T, x.T)):
            expected = quantize(reference, host, format, axis=axis, **STOCHASTIC)
            assert_same(quantize(hg, view, format, axis=axis, **STOCHASTIC), expected)


@pytest.mark.parametrize("options", [{}, {"axis": -1}, {"axis": 0}, {"amax": 0.25}, {"eps": 0.0}])
@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32])
@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_fp8(format, dtype, options, rng):
    for shape in ((64, 96), (37, 133), (3, 5, 7)):
        x = numbers(rng, shape, dtype)
        expected = reference.quantize(x, format, **options, **STOCHASTIC)
        assert_same(quantize(hg, hg.asarray(x), format, **options, **STOCHASTIC), expected)
        transposed = hg.asarray(np.ascontiguousarray(x.T)).T
        assert_same(quantize(hg, transposed, format, **options, **STOCHASTIC), expected)


@pytest.mark.parametrize("block", [(1, 128), (128, 128)])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
def test_fp8_blocks(block, dtype, rng):
    for shape in ((130, 200), (2, 129, 131)):
        x = numbers(rng, shape, dtype)
        expected = reference.quantize_fp8(x, block=block, **STOCHASTIC)
        assert_same(hg.quantize_fp8(hg.asarray(x), block=block, **STOCHASTIC), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("format", QUANTIZED)
def test_any_layout_of_more_axes(format, axis, rng):
    x = numbers(rng, (3, 34, 5), np.float32)
    expected = quantize(reference, x, format, axis=axis, **STOCHASTIC)
    wide = hg.asarray(np.repeat(x, 3, axis=2))
    for view in (hg.asarray(x), wide[:, :, ::3], hg.asarray(np.ascontiguousarray(x.T)).T):
        assert_same(quantize(hg, view, format, axis=axis, **STOCHASTIC), expected)


@pytest.mark.parametrize("format", MX)
def test_both_and_transposed(format, rng):
    x = numbers(rng, (80, 144), BF16)
    for view, host in ((hg.asarray(x), x), (hg.asarray(x).T, x.T)):
        pair = hg.quantize_both(view, format, **STOCHASTIC)
        for q, expected in zip(pair, reference.quantize_both(host, format, **STOCHASTIC), strict=True):
            assert_same(q, expected)
    name = "transpose_quantize_" + format.split("_")[0]
    if hasattr(hg, name):
        made = getattr(hg, name)(hg.asarray(x), format=format, **STOCHASTIC)
        assert_same(made, getattr(reference, name)(x, format=format, **STOCHASTIC))


@pytest.mark.matrix
@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp8_e5m2"])
@pytest.mark.parametrize("columns", [1, 96, 133])
def test_groups_count_in_the_whole_array(format, columns, rng):
    x = numbers(rng, (200, columns), BF16)
    offsets = np.array([0, 33, 33, 70, 190], np.int32)
    options = {"axis": 0, "group_offsets": offsets, "format": format, **STOCHASTIC}
    assert_same(hg.quantize_mxfp8(hg.asarray(x), **options), reference.quantize_mxfp8(x, **options))


@pytest.mark.parametrize("rounding", [{}, STOCHASTIC])
@pytest.mark.parametrize("dtype", [BF16, np.float32])
@pytest.mark.parametrize("axis", [0, 1])
def test_signs(axis, dtype, rounding, rng):
    x = numbers(rng, (80, 144), dtype)
    q = hg.quantize_mxfp4(hg.asarray(x), axis=axis, signs=SEED, **rounding)
    expected = reference.quantize_mxfp4(x, axis=axis, signs=SEED, **rounding)
    assert_same(q, expected)
    np.testing.assert_array_equal(hg.dequantize(q).get(), reference.dequantize(expected))
    for got, made in zip(
        hg.quantize_both(hg.asarray(x), "mxfp4_e2m1", signs=5, **rounding),
        reference.quantize_both(x, "mxfp4_e2m1", signs=5, **rounding),
        strict=True,
    ):
        assert_same(got, made)


def test_products_need_the_same_signs(rng):
    a, b = (hg.asarray(rng.standard_normal((64, 128)).astype(np.float32)) for _ in range(2))
    one, other, none = (hg.quantize_mxfp4(a, signs=signs) for signs in (1, 2, None))
    same = hg.quantize_mxfp4(b, signs=1).T
    product = hg.matmul(one, same, dtype=np.float32).get()
    exact = reference.dequantize(one.get()).astype(float) @ reference.dequantize(same.get()).astype(float)
    np.testing.assert_allclose(product, exact, atol=1e-3)
    for q in (other, none):
        with pytest.raises(ValueError, match="a and b must have the same random signs"):
            hg.matmul(q, same)
        with pytest.raises(ValueError, match="a and b must have the same random signs"):
            hg.matmul(q.get(), same.get())


@pytest.mark.parametrize("scaling", SCALE_RULES)
@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("format", MX)
def test_all_numbers_of_16_bits(format, dtype, scaling):
    x = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(512, 128)
    expected = quantize(reference, x, format, scaling=scaling, **STOCHASTIC)
    assert_same(quantize(hg, hg.asarray(x), format, scaling=scaling, **STOCHASTIC), expected)


@pytest.mark.parametrize("dtype", [BF16, np.float16])
@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2"])
def test_all_numbers_of_16_bits_in_fp8(format, dtype):
    x = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(512, 128)
    for options in ({"amax": 3.0}, {"axis": -1}, {"amax": 2.0**-110, "eps": 0.0}):
        expected = reference.quantize(x, format, **options, **STOCHASTIC)
        assert_same(quantize(hg, hg.asarray(x), format, **options, **STOCHASTIC), expected)


def test_numbers_of_the_format_stay_and_large_ones_saturate():
    x = np.array([[448, -448, 1.5, 0.0, -0.0, 2.0**-9] + [500.0] * 26], np.float32)
    for seed in range(8):
        q = hg.quantize_fp8(hg.asarray(x), amax=448.0, eps=0.0, rounding="stochastic", seed=seed)
        np.testing.assert_array_equal(q.get().data.astype(np.float32), np.minimum(x, 448))


def test_an_empty_array():
    x = hg.asarray(np.ones((0, 32), np.float32))
    for format in QUANTIZED:
        assert quantize(hg, x, format, **STOCHASTIC).shape == (0, 32)


def test_devices_make_the_same_codes(rng):
    x = numbers(rng, (64, 64), BF16)
    everywhere = [hg.asarray(x, device=device) for device in range(len(hg.info().devices))]
    made = [hg.quantize_mxfp8(placed, **STOCHASTIC) for placed in everywhere]
    for q in made:
        assert_same(q, reference.quantize_mxfp8(x, **STOCHASTIC))


def test_calls_with_cached_plans(rng):
    x = hg.asarray(numbers(rng, (64, 64), BF16))
    for seed in (1, 2, 2**64 - 1):
        for format in QUANTIZED:
            got = quantize(hg, x, format, rounding="stochastic", seed=seed)
            assert_same(got, quantize(reference, x.get(), format, rounding="stochastic", seed=seed))
    for format in QUANTIZED:
        assert_same(quantize(hg, x, format), quantize(reference, x.get(), format))
        for options in ({"rounding": "stochastic"}, {"seed": 1}, {"rounding": "stochastic", "seed": 2**64}):
            with pytest.raises(ValueError, match="seed must be"):
                quantize(hg, x, format, **options)
    with pytest.raises(ValueError, match="signs must be None without the Hadamard transform"):
        hg.quantize_mxfp4(x, hadamard=False, signs=1)
    with pytest.raises(TypeError, match="signs must be an int; got bool"):
        hg.quantize_mxfp4(x, signs=True)


# ---- layers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", ["fp8", "fp8_block", "mxfp8", "mxfp4"])
def test_layers_round_dy(recipe, rng):
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 96), (80, 96), (64, 80)))
    options = {"dtype": np.float32, "dw_dtype": np.float32}
    _, saved = hg.linear(x, w, recipe=recipe)
    got = hg.linear_backward(dy, saved, **options, **STOCHASTIC)
    products = reference.linear_products(x, w, dy, recipe=recipe, **STOCHASTIC)
    for name, value in (("dx", got.dx), ("dw.T", got.dw.T)):
        a, b, epilogue = products[name]
        np.testing.assert_allclose(value, reference.matmul(a, b, **epilogue), rtol=1e-4, atol=1e-3)
    nearest = hg.linear_backward(dy, saved, **options)
    assert (nearest.dx != got.dx).mean() > 0.9
    again = hg.linear_backward(dy, saved, **options, **STOCHASTIC)
    np.testing.assert_array_equal(again.dx, got.dx)


@pytest.mark.matrix
@pytest.mark.parametrize("recipe", ["fp8", "fp8_block", "mxfp8", "mxfp4"])
def test_layers_of_groups_round_dy(recipe, rng):
    x, w, dy = (rng.standard_normal(shape).astype(np.float32) for shape in ((70, 64), (2, 48, 64), (70, 48)))
    offsets = np.array([0, 33, 70], np.int32)
    options = {"dtype": np.float32, "dw_dtype": np.float32}
    _, saved = hg.grouped_linear(x, w, offsets, recipe=recipe)
    got = hg.grouped_linear_backward(dy, saved, **options, **STOCHASTIC)
    products = reference.grouped_linear_products(x, w, dy, offsets, recipe=recipe, **STOCHASTIC)
    dx = reference.grouped_matmul(*products["dx"], offsets)
    dw = reference.grouped_wgrad(*products["dw"], offsets)
    np.testing.assert_allclose(got.dx, dx, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(got.dw, dw, rtol=1e-4, atol=1e-3)


def test_layers_that_cannot_round_dy(rng):
    x, w, dy = (rng.standard_normal((32, 32)).astype(np.float32) for _ in range(3))
    _, saved = hg.linear(x, w)
    with pytest.raises(ValueError, match="rounding must be 'nearest' for recipe bf16"):
        hg.linear_backward(dy, saved, **STOCHASTIC)
    _, saved = hg.linear(x, w, recipe="mxfp8")
    with pytest.raises(ValueError, match="rounding must be 'nearest' for a quantized dy"):
        hg.linear_backward(hg.quantize_mxfp8(dy), saved, **STOCHASTIC)
    with pytest.raises(ValueError, match="seed must be given"):
        hg.linear_backward(dy, saved, rounding="stochastic")
