"""From numbers to codes to products, as users go."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.formats import QUANTIZED
from hipgemm.testing import assert_gemm_close

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
LENGTHS = [0, 1, 31, 32, 33, 96, 128, 160, 1664]


@pytest.mark.parametrize("format", QUANTIZED)
@pytest.mark.parametrize("k", LENGTHS)
def test_quantize_then_multiply(format, k, rng):
    """What the quantizers write is read in place, by a product that is right in every column."""
    x, w = rng.standard_normal((37, k)).astype(BF16), rng.standard_normal((70, k)).astype(F32)
    options = {"hadamard": k % 16 == 0} if format == "mxfp4_e2m1" else {"format": format}
    function = {"f": hg.quantize_fp8, "m": hg.quantize_mxfp8}[format[0]]
    if format == "mxfp4_e2m1":
        function = hg.quantize_mxfp4
    a, b = function(hg.asarray(x), **options), function(hg.asarray(w), **options)
    hg.reset_usage()
    if format == "fp8_e5m2":
        assert not hg.can_use("matmul", a, b.T)
        return
    got = hg.matmul(a, b.T, dtype=F32)
    used = hg.usage()
    assert not used.copies
    assert [name for name in used.kernels if not name.startswith("gemm")] == []
    assert_gemm_close(got.get(), a.get(), b.get().T)
    np.testing.assert_array_equal(hg.matmul(a.get(), b.get().T, dtype=F32), got.get())
    if format.startswith(
        "mx"
    ):  # the scales that a quantizer writes for products are those of the logical ones
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
        ("hadamard", "plain.T", ValueError, "must both carry the Hadamard transform, or neither"),
        ("rows", "fp8.T", TypeError, "a and b must be quantized alike"),
        ("rows", "wide", TypeError, "a and b must be quantized alike"),
        ("rows", "host.T", TypeError, "a, b must live in one place; got a on device 0, b on the host"),
    ],
)
def test_faults_leave_nothing_behind(a, b, kind, text, rng):
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


def test_many_calls_leave_no_memory_behind(rng, free_bytes):
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
