import ml_dtypes
import numpy as np
import pytest

from hipgemm import reference


def test_against_exact_integers(rng):
    a = rng.integers(-100, 100, (5, 40))
    b = rng.integers(-100, 100, (40, 6))
    scale, bias = rng.integers(-3, 4, 6), rng.integers(-50, 50, 6)
    expected = (a @ b) * 2 * scale + bias
    got = reference.matmul(a, b, alpha=2.0, col_scale=scale, bias=bias)
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == np.float64


def test_alpha_is_a_float32():
    one = np.ones((1, 1))
    assert reference.matmul(one, one, alpha=0.1)[0, 0] == np.float32(0.1)


def test_epilogue_order():
    one = np.ones((1, 1))
    assert reference.matmul(one, one, alpha=3.0, col_scale=np.array([5.0]), bias=np.array([7.0])) == 22.0


def test_a_layer_with_an_activation(rng):
    x, w, dy = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((4, 32), (6, 32), (4, 6)))
    products = reference.linear_products(x, w, dy, recipe="bf16", activation="relu", glu="halves")
    a, b, epilogue = products["y"]
    t = x.astype(np.float64) @ w.T
    np.testing.assert_array_equal(reference.matmul(a, b, **epilogue), np.maximum(t[:, :3], 0) * t[:, 3:])
    with pytest.raises(ValueError, match="linear_products: N must be even with glu"):
        reference.linear_products(x, w[:5], dy[:, :5], recipe="bf16", glu="halves")


def test_rounds_once():
    # Through float32, bfloat16 would round this as a tie.
    a, b = np.array([[1.0, 1.0]]), np.array([[1 + 2.0**-8], [2.0**-40]])
    assert float(reference.matmul(a, b, dtype=ml_dtypes.bfloat16)[0, 0]) == 1 + 2.0**-7


def test_k_of_zero():
    got = reference.matmul(np.ones((2, 0)), np.ones((0, 3)), bias=np.arange(3.0))
    np.testing.assert_array_equal(got, [[0, 1, 2], [0, 1, 2]])


def test_unknown_type():
    with pytest.raises(TypeError, match="dtype must be"):
        reference.matmul(np.ones((1, 1)), np.ones((1, 1)), dtype=np.int8)
