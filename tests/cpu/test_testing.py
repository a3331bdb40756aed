"""The comparison detects wrong results."""

import re

import ml_dtypes
import numpy as np
import pytest

from hipgemm import reference
from hipgemm.formats.elements import BF16, F16, F32, round_once
from hipgemm.testing import assert_gemm_close, exact_grid, gamma, gemm_bound, poison, random_matrix, surround

BFLOAT16 = ml_dtypes.bfloat16


def float32_matmul(a, b, *, alpha=1.0, col_scale=None, bias=None, order=None):
    """Sum one product at a time in float32, in any order of k."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in order if order is not None else range(a.shape[1]):
        total += a[:, k : k + 1].astype(np.float32) * b[k : k + 1].astype(np.float32)
    total = total * np.float32(alpha)
    if col_scale is not None:
        total = total * col_scale
    return total if bias is None else total + bias.astype(np.float32)


@pytest.mark.parametrize("form", [BF16, F16, F32], ids=lambda f: f.name)
def test_float32_sums_in_any_order_are_inside(form, rng):
    a, b = random_matrix((20, 300), rng), random_matrix((300, 30), rng)
    epilogue = {
        "alpha": 0.3,
        "col_scale": rng.standard_normal(30).astype(np.float32),
        "bias": rng.standard_normal(30).astype(np.float32),
    }
    for order in (range(300), range(299, -1, -1), rng.permutation(300)):
        out = round_once(float32_matmul(a, b, order=order, **epilogue).astype(np.float64), form)
        assert_gemm_close(out, a, b, **epilogue)


def test_bound_is_the_formula():
    a, b = np.array([[3.0, -2.0]]), np.array([[1.0], [4.0]])
    summed = gamma(2 + 2) * (11.0 * 0.5 * 2.0 + 1.5)
    expected = summed + 2.0**-8 * (abs(-5.0 * 0.5 * 2.0 + 1.5) + summed) + 2.0**-134
    got = gemm_bound(a, b, dtype=BFLOAT16, alpha=0.5, col_scale=np.array([2.0]), bias=np.array([1.5]))
    assert got[0, 0] == pytest.approx(expected, rel=1e-15)


def test_gamma_counts_only_given_factors():
    one = np.ones((1, 1))
    plain = gemm_bound(one, one, dtype=np.float32)[0, 0]
    scaled = gemm_bound(one, one, dtype=np.float32, col_scale=np.ones(1))[0, 0]
    assert scaled - plain == pytest.approx(2.0**-24, rel=1e-3)


@pytest.fixture
def product(rng):
    a, b = random_matrix((24, 64), rng), random_matrix((64, 40), rng)
    return a, b, reference.matmul(a, b, dtype=BFLOAT16)


def corrupt_one(out):
    out[3, 7] = out[3, 7].astype(np.float32) * 1.05


def corrupt_row(out):
    out[5] = 0


def corrupt_nan(out):
    out[0, 0] = np.nan


def corrupt_swap(out):
    out[[1, 2]] = out[[2, 1]]


def corrupt_sign(out):
    out[23, 39] = -out[23, 39]


@pytest.mark.parametrize("corrupt", [corrupt_one, corrupt_row, corrupt_nan, corrupt_swap, corrupt_sign])
def test_faults_are_caught(product, corrupt):
    a, b, out = product
    assert_gemm_close(out, a, b)
    corrupt(out)
    with pytest.raises(AssertionError, match="elements are wrong"):
        assert_gemm_close(out, a, b)


def test_report_names_the_worst(product):
    a, b, out = product
    out[3, 7] = out[3, 7].astype(np.float32) * 1.05
    out[9, 11] = np.nan
    with pytest.raises(AssertionError) as caught:
        assert_gemm_close(out, a, b)
    text = str(caught.value)
    assert text.startswith("2 of 960 elements are wrong (bfloat16, K=64, bound)")
    assert "worst out[9, 11] = nan" in text
    assert re.search(r"rows 3\.\.9, columns 7\.\.11; wrong by row: \{3: 1, 9: 1\}", text)


def test_cosine_would_have_passed(product):
    a, b, out = product
    out[:, 3] = 0
    flat, ref = out.astype(np.float64).ravel(), reference.matmul(a, b).ravel()
    assert flat @ ref / np.linalg.norm(flat) / np.linalg.norm(ref) > 0.95
    with pytest.raises(AssertionError):
        assert_gemm_close(out, a, b)


def test_exact_demands_every_bit(rng):
    a, b = exact_grid((8, 32), rng), exact_grid((32, 8), rng)
    out = reference.matmul(a, b, dtype=np.float32)
    assert_gemm_close(out, a, b, exact=True)
    out[2, 2] = np.nextafter(out[2, 2], np.float32(np.inf))
    assert_gemm_close(out, a, b)
    with pytest.raises(AssertionError, match="exact"):
        assert_gemm_close(out, a, b, exact=True)


def test_special_values_must_match():
    a = np.array([[np.inf, 1.0]], np.float32)
    b = np.array([[1.0], [1.0]], np.float32)
    assert_gemm_close(np.array([[np.inf]], np.float32), a, b)
    for wrong in (-np.inf, np.nan, 0.0, 1e30):
        with pytest.raises(AssertionError):
            assert_gemm_close(np.array([[wrong]], np.float32), a, b)
    a[0, 1] = np.nan
    assert_gemm_close(np.array([[np.nan]], np.float32), a, b)
    with pytest.raises(AssertionError):
        assert_gemm_close(np.array([[np.inf]], np.float32), a, b)


def test_subnormal_results_have_room():
    tiny = np.full((1, 1), 2.0**-70, np.float32)
    assert_gemm_close(reference.matmul(tiny, tiny, dtype=BFLOAT16), tiny, tiny)


def test_wrong_shape_is_caught():
    x = np.ones((2, 2), np.float32)
    with pytest.raises(AssertionError, match=r"out.shape must be \(2, 2\)"):
        assert_gemm_close(np.ones((2, 1), np.float32), x, x)


def test_exact_grid_is_exact_in_any_order(rng):
    a, b = exact_grid((6, 512), rng), exact_grid((512, 6), rng)
    forward = float32_matmul(a, b)
    assert np.array_equal(forward, float32_matmul(a, b, order=rng.permutation(512)))
    assert np.array_equal(forward, reference.matmul(a, b))
    assert (a == 0).any()


def test_poison_and_surround():
    x = poison(np.zeros((2, 3), BFLOAT16))
    assert np.isnan(x).all()
    inner = surround(np.ones((3, 5), BFLOAT16))
    assert np.isnan(inner.base).sum() == inner.base.size - 15
    assert (inner == 1).all()


def test_batches_are_held_to_their_bounds(rng):
    a, b = random_matrix((3, 4, 40), rng), random_matrix((3, 40, 5), rng)
    out = reference.matmul(a, b, dtype=np.float32)
    assert out.shape == (3, 4, 5)
    assert_gemm_close(out, a, b)
    shared = reference.matmul(a, b[0], dtype=np.float16)
    assert_gemm_close(shared, a, b[0])
    wrong = out.copy()
    wrong[1, 2:, 3] += 1
    with pytest.raises(AssertionError) as caught:
        assert_gemm_close(wrong, a, b)
    assert re.search(
        r"2 of 60 elements are wrong .*K=40.*\n  worst out\[1, [23], 3\].*\n"
        r"  products 1, rows 2\.\.3, columns 3\.\.3; wrong by row: \{2: 1, 3: 1\}",
        str(caught.value),
    )


def test_float16_has_its_own_bound(rng):
    """Half a unit in the last place, of 11 bits, and half a subnormal."""
    a = np.full((1, 1), 1, np.float16)
    for x, off in ((1.0, 2.0**-11), (2.0**-24, 2.0**-25)):
        b = np.full((1, 1), x, np.float16)
        bound = float(gemm_bound(a, b, dtype=np.float16)[0, 0])
        assert off <= bound < 1.01 * off + 2.0**-25
    q = exact_grid((3, 4, 8), rng, dtype=np.float16)
    wide, transposed = q.astype(np.float32), q.swapaxes(1, 2)
    assert_gemm_close((wide @ wide.swapaxes(1, 2)).astype(np.float16), q, transposed, exact=True)
