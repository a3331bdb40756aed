"""Products: every element inside its bound, exact grids bit for bit, outputs poisoned first."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import LARGE_AND_SMALL, examples

import hipgemm as hg
from hipgemm.testing import assert_gemm_close, exact_grid, poison, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
OUTPUTS = [BF16, F16, F32]
KERNELS = examples(["bf16"], LARGE_AND_SMALL)

# Around the tile sizes, primes, single rows and columns, empty.
EDGES = [
    *itertools.product((1, 64, 65), (1, 63, 64), (1, 8, 64)),
    *((63, 65, 72), (7, 13, 31), (101, 3, 997), (1, 257, 129), (255, 1, 65)),
    *((0, 5, 8), (5, 0, 8), (0, 0, 0), (4, 6, 0), (1, 1, 0)),
]
TILE_EDGES = [(255, 257, 64), (256, 256, 128), (257, 255, 136), (1, 1, 8), (300, 511, 200)]
# The linear layers of a small transformer, and of a larger one for few tokens.
REAL = [(384, 1536, 384), (384, 384, 1536), (128, 384, 384), (37, 1152, 384), (16, 4096, 512)]


def check(m, n, k, out_dtype, rng, exact=False, **epilogue):
    make = exact_grid if exact else random_matrix
    a, w = make((m, k), rng), make((n, k), rng)
    out = poison(np.empty((m, n), out_dtype))
    assert hg.matmul(a, w.T, out, **epilogue) is out
    assert_gemm_close(out, a, w.T, exact=exact, **epilogue)

    x, y = hg.asarray(a), hg.asarray(w)
    resident = hg.asarray(poison(np.empty((m, n), out_dtype)))
    assert hg.matmul(x, y.T, resident, **epilogue) is resident
    np.testing.assert_array_equal(resident.get().view("u1"), out.view("u1"))


@pytest.mark.parametrize(("m", "n", "k"), EDGES)
def test_edges(m, n, k, rng):
    check(m, n, k, BF16, rng)
    check(m, n, k, F32, rng, exact=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("m", "n", "k"), TILE_EDGES)
def test_tile_edges(kernel, m, n, k, rng, use_kernel):
    use_kernel(kernel)
    check(m, n, k, BF16, rng, exact=True)
    check(m, n, k, F32, rng)
    assert hg.usage().kernels[kernel] == 4


@pytest.mark.parametrize("out_dtype", OUTPUTS, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), REAL)
def test_real_shapes(m, n, k, out_dtype, rng):
    check(m, n, k, out_dtype, rng)


def test_exact_grids_agree_bit_for_bit(rng):
    for out_dtype in OUTPUTS:
        check(130, 70, 520, out_dtype, rng, exact=True, alpha=0.25)


def test_identity_shows_every_element_in_its_place(rng):
    w = np.arange(300 * 64).reshape(300, 64) % 251
    w = w.astype(np.float32).astype(BF16)
    np.testing.assert_array_equal(hg.matmul(np.eye(64).astype(BF16), w.T), w.T)
    np.testing.assert_array_equal(hg.matmul(w, np.eye(64).astype(BF16)), w)


def test_default_result_is_a_new_bfloat16_array(rng):
    a, w = random_matrix((20, 32), rng), random_matrix((30, 32), rng)
    out = hg.matmul(a, w.T)
    assert (type(out), out.dtype, out.shape) == (np.ndarray, BF16, (20, 30))
    resident = hg.matmul(hg.asarray(a), hg.asarray(w).T)
    assert (type(resident), resident.dtype, resident.shape) == (hg.DeviceArray, BF16, (20, 30))
    np.testing.assert_array_equal(resident.get(), out)


# ---- the epilogue


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("out_dtype", OUTPUTS, ids=str)
def test_epilogue(kernel, out_dtype, rng, use_kernel):
    use_kernel(kernel)
    n = 70
    scale = rng.standard_normal(n).astype(F32)
    for bias_dtype in OUTPUTS:
        bias = rng.standard_normal(n).astype(bias_dtype)
        check(66, n, 128, out_dtype, rng, alpha=-0.3, col_scale=scale, bias=bias)
        check(66, n, 128, out_dtype, rng, bias=bias)
    check(66, n, 128, out_dtype, rng, col_scale=scale)
    check(66, n, 128, out_dtype, rng, alpha=1e-3)


def test_epilogue_with_k_of_zero(rng):
    bias = np.arange(6, dtype=F32)
    got = hg.matmul(np.ones((3, 0), BF16), np.ones((0, 6), BF16), bias=bias, dtype=F32)
    np.testing.assert_array_equal(got, np.tile(bias, (3, 1)))


def test_epilogue_on_the_device(rng):
    a, w = random_matrix((40, 64), rng), random_matrix((50, 64), rng)
    scale, bias = rng.standard_normal(50).astype(F32), rng.standard_normal(50).astype(F16)
    expected = hg.matmul(a, w.T, dtype=F32, alpha=0.5, col_scale=scale, bias=bias)
    on_device = {
        "alpha": hg.asarray(np.float32(0.5)),
        "col_scale": hg.asarray(scale),
        "bias": hg.asarray(bias),
    }
    x, y = hg.asarray(a), hg.asarray(w).T
    np.testing.assert_array_equal(hg.matmul(x, y, dtype=F32, **on_device).get(), expected)
    # Host matrices work too, and host vectors with device matrices.
    np.testing.assert_array_equal(hg.matmul(a, w.T, dtype=F32, **on_device), expected)
    mixed = hg.matmul(x, y, dtype=F32, alpha=0.5, col_scale=scale, bias=on_device["bias"])
    np.testing.assert_array_equal(mixed.get(), expected)


def test_host_vectors_may_change_after_the_call(rng):
    a, w = hg.asarray(exact_grid((8, 16), rng)), hg.asarray(exact_grid((8, 16), rng)).T
    bias = np.ones(8, F32)
    out = hg.matmul(a, w, dtype=F32, bias=bias)
    bias[:] = 1000
    np.testing.assert_array_equal(out.get(), hg.matmul(a, w, dtype=F32, bias=np.ones(8, F32)).get())


def test_strided_host_vectors(rng):
    a, w = random_matrix((8, 16), rng), random_matrix((8, 16), rng)
    scale = rng.standard_normal(16).astype(F32)[::-2]
    bias = np.broadcast_to(np.float32(3), 8)
    check_out = hg.matmul(a, w.T, dtype=F32, col_scale=scale, bias=bias)
    assert_gemm_close(check_out, a, w.T, col_scale=scale, bias=bias)


@pytest.mark.parametrize("alpha", [2, np.float32(2), np.asarray(2.0), np.int8(2), True])
def test_alphas_of_all_kinds(alpha, rng):
    a, w = exact_grid((4, 8), rng), exact_grid((4, 8), rng)
    expected = hg.matmul(a, w.T, dtype=F32, alpha=float(alpha))
    np.testing.assert_array_equal(hg.matmul(a, w.T, dtype=F32, alpha=alpha), expected)
    x, y = hg.asarray(a), hg.asarray(w).T
    np.testing.assert_array_equal(hg.matmul(x, y, dtype=F32, alpha=alpha).get(), expected)


# ---- special values


def test_nan_and_infinity_go_where_they_belong(rng):
    a, w = exact_grid((70, 96), rng), exact_grid((70, 96), rng)
    a[3, 5], w[64, 95] = np.nan, np.inf
    out = hg.matmul(a, w.T, dtype=F32)
    assert_gemm_close(out, a, w.T, exact=True)
    assert np.isnan(out[3]).all()
    assert np.isfinite(out[4, :64]).all()


def test_alpha_may_be_nan_or_infinite(rng):
    one = np.ones((2, 8), BF16)
    assert np.isnan(hg.matmul(one, one.T, alpha=float("nan"))).all()
    assert np.isposinf(hg.matmul(one, one.T, alpha=np.inf).astype(F32)).all()


def test_float16_result_is_scaled_before_it_is_rounded():
    a = np.full((4, 64), 256, BF16)
    out = hg.matmul(a, a.T, dtype=F16, alpha=2.0**-12)  # the sum is 2^22, far beyond float16
    np.testing.assert_array_equal(out, np.full((4, 4), 1024, F16))


def test_overflow_becomes_infinity():
    a = np.full((4, 64), 256, BF16)
    assert np.isposinf(hg.matmul(a, a.T, dtype=F16)).all()


def test_bfloat16_subnormals_survive():
    a = np.full((2, 8), 2.0**-67, BF16)
    np.testing.assert_array_equal(hg.matmul(a, a.T).astype(F32), np.full((2, 2), 2.0**-131, F32))


def test_ties_round_to_even():
    # K products sum to 256 + 1, halfway between two bfloat16 values.
    a = np.ones((1, 264), BF16)
    b = np.ones((264, 2), BF16)
    a[0, 257:] = 0
    b[0, 1] = 3
    np.testing.assert_array_equal(hg.matmul(a, b).astype(F32), [[256, 260]])
