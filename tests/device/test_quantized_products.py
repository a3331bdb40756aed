"""From floats to quantized arrays to products, as users do it."""

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED, SCALE_RULES
from hipgemm.testing import assert_gemm_close

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
LENGTHS = [0, 1, 31, 32, 33, 96, 128, 160, 1664]


@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("k", LENGTHS)
def test_quantize_then_multiply(format, k, rng, matrix_kernels):
    """The quantizers' output is read in place, and every column of the product is correct."""
    x, w = rng.standard_normal((37, k)).astype(BF16), rng.standard_normal((70, k)).astype(F32)
    options = {"hadamard": k % 16 == 0} if format == "mxfp4_e2m1" else {"format": format}
    function = getattr(hg, f"quantize_{format.split('_')[0]}")
    a, b = function(hg.asarray(x), **options), function(hg.asarray(w), **options)
    hg.reset_usage()
    got = hg.matmul(a, b.T, dtype=F32)
    used = hg.usage()
    assert not used.copies
    main = "gemm_" if matrix_kernels else "plain_gemm"
    extra = [name for name in used.kernels if not name.startswith((main, "split_reduce"))]
    assert not extra
    assert_gemm_close(got.get(), a.get(), b.get().T)
    np.testing.assert_array_equal(hg.matmul(a.get(), b.get().T, dtype=F32), got.get())
    if format.startswith("mx"):  # the scales in GEMM order equal the logical scales
        plain = [hg.ScaledArray(q.data, q.scale, q.format, hadamard=q.hadamard) for q in (a, b) if k % 2 == 0]
        if plain:
            np.testing.assert_array_equal(hg.matmul(plain[0], plain[1].T, dtype=F32).get(), got.get())


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp4_e2m1"])
def test_both_serve_forward_and_backward(format, rng):
    """One read of x gives operands for products over either axis."""
    x, w = rng.standard_normal((64, 96)).astype(BF16), rng.standard_normal((48, 96)).astype(BF16)
    rows, columns = hg.quantize_both(hg.asarray(x), format)
    function = hg.quantize_mxfp4 if format == "mxfp4_e2m1" else hg.quantize_mxfp8
    right = function(hg.asarray(w))
    assert_gemm_close(hg.matmul(rows, right.T, dtype=F32).get(), rows.get(), right.get().T)
    dy = function(hg.asarray(rng.standard_normal((64, 48)).astype(BF16)), axis=0)
    hg.reset_usage()
    got = hg.matmul(dy.T, columns, dtype=F32)
    assert_gemm_close(got.get(), dy.get().T, columns.get())
    assert not hg.usage().copies


def test_mxfp4_with_k_1664_is_right_in_every_column(rng):
    x, w = rng.standard_normal((16, 1664)).astype(BF16), rng.standard_normal((300, 1664)).astype(BF16)
    a, b = hg.quantize_mxfp4(x), hg.quantize_mxfp4(w)
    assert_gemm_close(hg.matmul(a, b.T), a, b.T)


@pytest.mark.parametrize("format", ["fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1"])
def test_zeros_with_a_single_one(format):
    x = np.zeros((256, 256), F32)
    x[17, 100] = 1
    function = {"fp8_e4m3": hg.quantize_fp8, "mxfp8_e4m3": hg.quantize_mxfp8}.get(format)
    q = function(x, **({"eps": 0.0} if format == "fp8_e4m3" else {})) if function else hg.quantize_mxfp4(x)
    got = hg.matmul(q, q.T)  # bfloat16: 1/448 squared is a rounded number in float32
    assert got[17, 17] == 1
    assert np.count_nonzero(got) == 1


@pytest.mark.parametrize(
    ("a", "b", "kind", "text"),
    [
        ("rows", "rows.T", None, ""),
        (
            "columns",
            "rows.T",
            ValueError,
            "a must be blocked along K, its axis -1; got axis=-2; quantize with",
        ),
        (
            "rows",
            "columns.T",
            ValueError,
            "b must be blocked along K, its axis -2; got axis=-1; quantize with",
        ),
        ("hadamard", "plain.T", ValueError, "must both have the Hadamard transform, or neither"),
        ("rows", "fp8.T", TypeError, "a and b must have the same kind of format"),
        ("rows", "wide", TypeError, "a and b must have the same kind of format"),
        ("rows", "host.T", TypeError, "a, b must be on the same device; got a on device 0, b on the host"),
    ],
)
def test_faults_leak_nothing(a, b, kind, text, rng):
    x = hg.asarray(rng.standard_normal((64, 64)).astype(BF16))
    operands = {
        "rows": hg.quantize_mxfp8(x),
        "columns": hg.quantize_mxfp8(x, axis=0),
        "hadamard": hg.quantize_mxfp4(x),
        "plain": hg.quantize_mxfp4(x, hadamard=False),
        "fp8": hg.quantize_fp8(x),
        "wide": x,
        "host": hg.quantize_mxfp8(x).get(),
    }
    left, right = (
        operands[name.removesuffix(".T")].T if name.endswith(".T") else operands[name] for name in (a, b)
    )
    if kind is None:
        hg.matmul(left, right)
        return
    with pytest.raises(kind, match=f"matmul: .*{text}"):
        hg.matmul(left, right)
    answer = hg.can_use("matmul", left, right)
    assert not answer
    assert answer.reasons[0].kind is kind


def test_out_may_not_be_an_input(rng):
    x = hg.asarray(rng.standard_normal((64, 64)).astype(F32))
    q = hg.quantize_mxfp8(x)
    low = q.data._block.ptr
    view = hg.DeviceArray(q.data._block, low, (64, 8), (64, 4), F32)
    with pytest.raises(ValueError, match="out must not overlap a"):
        hg.matmul(q, hg.quantize_mxfp8(x[:8]).T, view)
    scales = hg.DeviceArray(q.scale._block, q.scale.ptr, (64, 1), (4, 4), F32)
    with pytest.raises(ValueError, match=r"out must not overlap a.scale"):
        hg.matmul(q, hg.quantize_mxfp8(x[:1]).T, scales)


def test_many_calls_leak_no_memory(rng, free_bytes):
    x = hg.asarray(rng.standard_normal((40, 70)).astype(F32))
    bad = hg.quantize_mxfp8(x, axis=0)

    def calls():
        for q in (hg.quantize_fp8(x), hg.quantize_fp8(x, axis=-1), hg.quantize_mxfp8(x)):
            hg.matmul(q, q.T)
            hg.matmul(q.get(), q.get().T)
        with pytest.raises(ValueError, match="blocked along K"):
            hg.matmul(bad, bad.T)

    calls()
    before = free_bytes()
    for _ in range(30):
        calls()
    assert free_bytes() == before


# ---- random calls


@pytest.mark.parametrize("seed", range(30))
def test_random_calls(seed):
    """Random shapes, layouts, formats, rules and epilogues."""
    rng = np.random.default_rng(seed)
    m, n, k = (int(x) for x in rng.integers(1, (150, 150, 400)))
    kind = rng.choice(["fp8", "mxfp8", "mxfp4"])
    hadamard = bool(kind == "mxfp4" and rng.random() < 0.5)
    k = -(-k // 16) * 16 if hadamard else k
    operands = []
    for rows, axis in ((m, -1), (n, -2)):
        x = rng.standard_normal((rows, k)) * np.exp2(rng.integers(-8, 8, (rows, 1)))
        x = any_layout(hg.asarray(x.astype([BF16, F32, np.dtype(np.float16)][rng.integers(3)])), rng)
        x = x if axis == -1 else x.T
        along = {"axis": axis} if kind != "fp8" or rng.random() < 0.5 else {}
        if kind == "fp8":
            q = hg.quantize_fp8(x, **along)
            want = reference.quantize_fp8(x.get(), **along)
        elif kind == "mxfp8":
            options = {
                "scaling": rng.choice(SCALE_RULES).item(),
                "format": ["mxfp8_e4m3", "mxfp8_e5m2"][rng.integers(2)],
            }
            q = hg.quantize_mxfp8(x, **along, **options)
            want = reference.quantize_mxfp8(x.get(), **along, **options)
        else:
            q = hg.quantize_mxfp4(x, **along, hadamard=hadamard)
            want = reference.quantize_mxfp4(x.get(), **along, hadamard=hadamard)
        np.testing.assert_array_equal(q.get().data.view("u1"), want.data.view("u1"))
        np.testing.assert_array_equal(np.asarray(q.get().scale, F32), np.asarray(want.scale, F32))
        operands.append(q)
    a, b = operands
    epilogue = {"alpha": float(rng.choice([1.0, -0.25])), "bias": rng.standard_normal(n).astype(F32)}
    if rng.random() < 0.5:
        epilogue["col_scale"] = rng.standard_normal(n).astype(F32)
    out = hg.matmul(a, b, dtype=[BF16, F32][rng.integers(2)], **epilogue)
    assert_gemm_close(out.get(), a.get(), b.get(), **epilogue)


def any_layout(x, rng):
    """The same values somewhere in a larger array, in some memory order."""
    rows, columns = x.shape
    big = np.full((rows + 3, 2 * columns + 5), np.nan, np.float32).astype(x.dtype)
    way = rng.integers(5)
    if way == 0:
        return x
    if way == 1:
        return hg.asarray(np.ascontiguousarray(x.get().T)).T
    inner = [
        np.s_[2:-1, 3 : 3 + columns],
        np.s_[:-3, 1 : 1 + 2 * columns : 2],
        np.s_[-1:2:-1, 4 : 4 + columns],
    ]
    big[inner[way - 2]] = x.get()
    return hg.asarray(big)[inner[way - 2]]


def test_threads_share_an_array(rng):
    """The first product converts the scales to GEMM order; any thread may be the first."""
    x = rng.standard_normal((40, 96)).astype(F32)
    eight, four = hg.quantize_mxfp8(x), hg.quantize_mxfp4(x, hadamard=False)
    expected = hg.matmul(eight, four.T, dtype=F32)
    for _ in range(5):
        a, b = hg.asarray(eight), hg.asarray(four)
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(lambda _, a=a, b=b: hg.matmul(a, b.T, dtype=F32).get(), range(8)))
        for got in results:
            np.testing.assert_array_equal(got, expected)
