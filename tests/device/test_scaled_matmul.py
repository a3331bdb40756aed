"""Products of quantized operands: every element inside its bound, exact grids bit for bit."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import KERNELS

import hipgemm as hg
from hipgemm.formats.elements import QUANTIZED
from hipgemm.formats.scaled import packed_data, scale_shape
from hipgemm.testing import assert_gemm_close, exact_scaled, poison

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
OUTPUTS = [BF16, F16, F32]
FP8 = [("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3"), ("fp8_e4m3", "fp8_e5m2")]
MXFP8 = [*itertools.product(("mxfp8_e4m3", "mxfp8_e5m2"), repeat=2)]
MX = [*MXFP8, ("mxfp4_e2m1", "mxfp4_e2m1")]
PAIRS = FP8 + MX
MAIN = [(name, name) for name in ("fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1")]
LENGTHS = [0, 1, 31, 32, 33, 96, 128, 160, 1664]


def named(pairs):
    return pytest.mark.parametrize("formats", pairs, ids=["@".join(pair) for pair in pairs])


def kernels(a, b):
    """Every kernel that reads a pair of formats along K."""
    found = [k for k in KERNELS.values() if k.op == "scaled_gemm" and (k.a, k.b, k.layout) == (a, b, "nt")]
    assert len({k.tile for k in found}) >= 2
    return found


def matrix(rows, k, format, rng, exact=False):
    """A quantized (rows, K) on the host: any elements but NaN and Inf, any scales of moderate size."""
    if exact:
        return exact_scaled((rows, k), rng, format)
    form = QUANTIZED[format]
    codes = rng.integers(0, 2**form.bits, (rows, k), dtype=np.uint8).view(form.dtype)
    codes[~np.isfinite(codes.astype(F32))] = 1
    power = rng.integers(-6, 7, scale_shape((rows, k), -1, form.block))
    if form.block:
        return hg.ScaledArray(codes, (127 + power).astype(np.uint8), format)
    return hg.ScaledArray(codes, (np.exp2(power) * rng.uniform(1, 2, power.shape)).astype(F32), format)


def by_parts(q):
    """The same on the device, uploaded in parts: rows without padding."""
    return hg.ScaledArray(hg.asarray(packed_data(q)), hg.asarray(q.scale), q.format, hadamard=q.hadamard)


def check(a, b, out_dtype=F32, exact=False, **epilogue):
    """Multiply a (M, K) by the transpose of b (N, K), from the host and on the device."""
    out = poison(np.empty((a.shape[0], b.shape[0]), out_dtype))
    assert hg.matmul(a, b.T, out, **epilogue) is out
    assert_gemm_close(out, a, b.T, exact=exact, **epilogue)
    x, y = hg.asarray(a), hg.asarray(b)
    for _ in range(2):  # the second finds the scales in GEMM order
        target = hg.asarray(poison(np.empty_like(out)))
        assert hg.matmul(x, y.T, target, **epilogue) is target
        np.testing.assert_array_equal(target.get().view("u1"), out.view("u1"))


@named(PAIRS)
@pytest.mark.parametrize("k", LENGTHS)
def test_lengths(formats, k, rng):
    for m, n in ((1, 37), (2, 16), (4, 65), (8, 1), (16, 16), (37, 70)):
        check(matrix(m, k, formats[0], rng, True), matrix(n, k, formats[1], rng, True), exact=True)
    check(matrix(37, k, formats[0], rng), matrix(70, k, formats[1], rng), BF16)


@pytest.mark.matrix
@named(PAIRS)
def test_every_kernel_at_its_edges(formats, rng, use_kernel):
    for kernel in kernels(*formats):
        use_kernel(kernel.name)
        tm, tn, tk = kernel.tile
        for m, n, k in (
            (tm, tn, tk),
            (tm + 1, tn - 1, tk + 32),
            (tm - 1, tn + 1, 2 * tk),
            (1, 1, 5 * tk + 16),
        ):
            check(matrix(m, k, formats[0], rng, True), matrix(n, k, formats[1], rng, True), exact=True)
        check(matrix(tm - 3, 3 * tk, formats[0], rng), matrix(tn + 5, 3 * tk, formats[1], rng), BF16)
        assert hg.usage().kernels[kernel.name] >= 15
    assert not hg.usage().copies


@named(MAIN)
@pytest.mark.parametrize(
    ("m", "n", "k"), [(384, 1536, 384), (128, 384, 384), (37, 1152, 384), (16, 512, 4096)]
)
def test_real_shapes(formats, m, n, k, rng):
    check(matrix(m, k, formats[0], rng), matrix(n, k, formats[1], rng), BF16)


@named(MAIN)
@pytest.mark.parametrize("out_dtype", OUTPUTS, ids=str)
def test_epilogue(formats, out_dtype, rng):
    m, n, k = 66, 70, 160
    a, b = matrix(m, k, formats[0], rng), matrix(n, k, formats[1], rng)
    scale = rng.standard_normal(n).astype(F32)
    small = 1e-3 if out_dtype == F16 else -0.3
    for bias_dtype in OUTPUTS:
        bias = rng.standard_normal(n).astype(bias_dtype)
        check(a, b, out_dtype, alpha=small, col_scale=scale, bias=bias)
    check(a, b, out_dtype, alpha=small)
    x, y = hg.asarray(a), hg.asarray(b)
    alpha = hg.asarray(np.float32(small))
    got = hg.matmul(x, y.T, dtype=out_dtype, alpha=alpha, bias=bias).get()
    assert_gemm_close(got, a, b.T, alpha=small, bias=bias)


def test_default_output_is_bfloat16(rng):
    a, b = matrix(4, 32, "mxfp8_e4m3", rng), matrix(5, 32, "mxfp8_e4m3", rng)
    assert hg.matmul(a, b.T).dtype == BF16
    assert hg.matmul(hg.asarray(a), hg.asarray(b).T).dtype == BF16


MIXED = [(a, b) for a, b in itertools.product(QUANTIZED, repeat=2) if {a[:5], b[:5]} == {"mxfp4", "mxfp8"}]


@named(MIXED)
@pytest.mark.parametrize("k", LENGTHS)
def test_4_bits_beside_8(formats, k, rng):
    for m, n in ((1, 37), (37, 70)):
        check(matrix(m, k, formats[0], rng, True), matrix(n, k, formats[1], rng, True), exact=True)
    a, b = matrix(37, k, formats[0], rng), matrix(70, k, formats[1], rng)
    check(a, b, BF16)
    if k % 2 == 0:
        got = hg.matmul(by_parts(a), by_parts(b).T, dtype=F32)
        assert_gemm_close(got.get(), a, b.T)


@pytest.mark.matrix
@named(MIXED)
def test_4_bits_beside_8_in_place(formats, rng):
    """Scales are put in order once for each length of K tiles: of products with 8 bits, and with 4 bits."""
    a, b = hg.asarray(matrix(20, 96, formats[0], rng)), hg.asarray(matrix(33, 96, formats[1], rng))
    four = a if formats[0].startswith("mxfp4") else b
    for _ in range(3):
        assert hg.can_use("matmul", a, b.T).kernel.startswith(f"gemm_{formats[0]}_{formats[1]}_nt_")
        assert_gemm_close(hg.matmul(a, b.T, dtype=F32).get(), a.get(), b.get().T)
        assert_gemm_close(hg.matmul(four, four.T, dtype=F32).get(), four.get(), four.get().T)
    used = hg.usage()
    lengths = {k.tile[2] for k in KERNELS.values() if k.op == "scaled_gemm" and k.a == k.b == four.format}
    assert used.kernels["mx_gemm_scale"] == 2 + (lengths != {128})
    assert not used.copies


SIX = [
    (a, b)
    for a, b in itertools.product(QUANTIZED, repeat=2)
    if "mxfp6" in {a[:5], b[:5]} and QUANTIZED[a].block and QUANTIZED[b].block
]


@named(SIX)
def test_6_bits(formats, rng):
    for m, n, k in ((1, 37, 1), (37, 70, 33), (16, 16, 128), (2, 5, 71), (33, 20, 160)):
        check(matrix(m, k, formats[0], rng, True), matrix(n, k, formats[1], rng, True), exact=True)
        check(matrix(m, k, formats[0], rng), matrix(n, k, formats[1], rng), BF16)
    a, b = matrix(20, 96, formats[0], rng), matrix(33, 96, formats[1], rng)
    assert_gemm_close(hg.matmul(by_parts(a), by_parts(b).T, dtype=F32).get(), a, b.T)
    columns = hg.quantize_both(
        rng.standard_normal((96, 33)).astype(F32), formats[1], **no_hadamard(formats[1])
    )[1]
    for q, p in ((a, columns), (hg.asarray(a), hg.asarray(columns))):
        got = hg.matmul(q, p, dtype=F32)
        assert_gemm_close(got if q is a else got.get(), a, columns)


def no_hadamard(format):
    return {"hadamard": False} if format == "mxfp4_e2m1" else {}


# ---- scales


@named(FP8)
def test_scalar_and_row_scales(formats, rng):
    a, b = matrix(20, 96, formats[0], rng), matrix(33, 96, formats[1], rng)
    one = [hg.ScaledArray(q.data, 0.37, q.format) for q in (a, b)]
    for x, y in itertools.product((a, one[0]), (b, one[1])):
        check(x, y)
        check(x, y, BF16, alpha=0.5)


def test_row_scales_in_any_layout(rng, matrix_kernels):
    a, b = matrix(20, 96, "fp8_e4m3", rng), matrix(33, 96, "fp8_e4m3", rng)
    want = hg.matmul(a, b.T, dtype=F32)
    spread = hg.asarray(np.repeat(a.scale, 3, axis=1))[:, 1:2]
    x = hg.ScaledArray(hg.asarray(a.data), spread, a.format)
    flat = hg.ScaledArray(hg.asarray(b.data), hg.asarray(b.scale[::-1].copy())[::-1], b.format)
    np.testing.assert_array_equal(hg.matmul(x, flat.T, dtype=F32).get(), want)
    assert (("matmul", "a.scale", "not contiguous") in hg.usage().copies) == matrix_kernels


def test_scales_are_applied_before_rounding():
    """The unscaled sum is far beyond float16."""
    a = hg.ScaledArray(np.full((4, 64), 448, F32).astype(ml_dtypes.float8_e4m3fn), 2.0**-10, "fp8_e4m3")
    np.testing.assert_array_equal(hg.matmul(a, a.T, dtype=F16), np.full((4, 4), 448**2 * 64 / 2**20, F16))


@pytest.mark.matrix
@named(MX)
def test_every_scale_reaches_its_row_and_block(formats, rng, use_kernel):
    """Against an identity, each column of the product shows one block's scale."""
    for kernel in kernels(*formats):
        use_kernel(kernel.name)
        rows, blocks = 70, 41
        k = 32 * blocks
        power = (np.arange(rows)[:, None] * 37 + np.arange(blocks) * 11) % 101 - 50
        for side in (0, 1):
            form = [QUANTIZED[name] for name in formats]
            codes = np.ones((rows, k), F32).astype(form[side].dtype)
            probe = hg.ScaledArray(codes, (127 + power).astype(np.uint8), formats[side])
            eye = hg.ScaledArray(
                np.eye(k, dtype=F32).astype(form[1 - side].dtype),
                np.full((k, blocks), 127, np.uint8),
                formats[1 - side],
            )
            x, y = (probe, eye) if side == 0 else (eye, probe)
            got = hg.matmul(hg.asarray(x), hg.asarray(y).T, dtype=F32).get()
            want = np.repeat(np.exp2(power), 32, axis=1)
            np.testing.assert_array_equal(got if side == 0 else got.T, want)


@named(MX)
def test_all_scale_bytes(formats):
    a = hg.ScaledArray(
        np.ones((256, 32), F32).astype(QUANTIZED[formats[0]].dtype),
        np.arange(256, dtype=np.uint8)[:, None],
        formats[0],
    )
    b = hg.ScaledArray(
        np.eye(1, 32, dtype=F32).astype(QUANTIZED[formats[1]].dtype),
        np.full((1, 1), 127, np.uint8),
        formats[1],
    )
    got = hg.matmul(a, b.T, dtype=F32)[:, 0]
    np.testing.assert_array_equal(got, [*(2.0 ** (b - 127) for b in range(255)), np.nan])


# ---- layouts, and memory around operands


@named(PAIRS)
@pytest.mark.parametrize("k", [2, 30, 64, 130])
def test_rows_without_padding(formats, k, rng, matrix_kernels):
    a, b = matrix(21, k, formats[0], rng, True), matrix(40, k, formats[1], rng, True)
    got = hg.matmul(by_parts(a), by_parts(b).T, dtype=F32)
    assert_gemm_close(got.get(), a, b.T, exact=True)
    whole = k * QUANTIZED[formats[0]].bits % 128 == 0
    assert bool(hg.usage().copies) == (matrix_kernels and not whole)


@named(PAIRS)
@pytest.mark.parametrize("k", [33, 96, 130])
def test_nan_beside_the_operands(formats, k, rng):
    a, b = matrix(21, k, formats[0], rng, True), matrix(40, k, formats[1], rng, True)
    want = hg.matmul(a, b.T, dtype=F32)
    x, y = surrounded(a), surrounded(b)
    if x is None:
        return
    np.testing.assert_array_equal(hg.matmul(x, y.T, dtype=F32).get(), want)


def surrounded(q):
    """The same on the device, with NaN and the largest scales all around."""
    form = QUANTIZED[q.format]
    data = q.data
    if form.bits == 4:
        if q.shape[1] % 2:
            return None
        data = hg.pack_fp4(data)
    outer = np.full((data.shape[0] + 4, data.shape[1] + 48), 0x7F, np.uint8).view(data.dtype)
    outer[2:-2, 16:-32] = data
    scale = np.full((q.scale.shape[0] + 4, q.scale.shape[1] + 4), np.nan, q.scale.dtype)
    scale[2:-2, 2:-2] = q.scale
    inner = hg.asarray(outer)[2:-2, 16:-32], hg.asarray(scale)[2:-2, 2:-2]
    return hg.ScaledArray(*inner, q.format)


@named([("fp8_e4m3", "fp8_e4m3"), ("mxfp8_e4m3", "mxfp8_e5m2"), ("mxfp4_e2m1", "mxfp4_e2m1")])
def test_operands_in_other_layouts(formats, rng, matrix_kernels):
    """Operands that are not K-contiguous are copied, and counted. The plain kernel reads any layout."""
    k = 96
    a, b = matrix(20, k, formats[0], rng, True), matrix(33, k, formats[1], rng, True)
    want = hg.matmul(a, b.T, dtype=F32)
    transposed = []
    for q in (a, b):
        x = hg.asarray(q)
        data = hg.asarray(np.ascontiguousarray(x.data.get().T)).T
        scale = hg.asarray(np.ascontiguousarray(x.scale.get().T)).T
        transposed.append(hg.ScaledArray(data, scale, q.format))
    hg.reset_usage()
    np.testing.assert_array_equal(hg.matmul(transposed[0], transposed[1].T, dtype=F32).get(), want)
    copied = [operand for _, operand, _ in hg.usage().copies]
    assert sorted(copied) == (["a", "b"] if matrix_kernels else [])
    host = [hg.ScaledArray(np.asfortranarray(q.data), np.asfortranarray(q.scale), q.format) for q in (a, b)]
    np.testing.assert_array_equal(hg.matmul(host[0], host[1].T, dtype=F32), want)


@named([("fp8_e4m3", "fp8_e4m3"), ("fp8_e5m2", "fp8_e4m3"), ("mxfp8_e4m3", "mxfp8_e4m3")])
def test_outputs_of_any_layout(formats, rng):
    a, b = matrix(20, 96, formats[0], rng, True), matrix(33, 96, formats[1], rng, True)
    x, y = hg.asarray(a), hg.asarray(b)
    want = hg.matmul(a, b.T, dtype=F32)
    room = hg.asarray(np.full((80, 80), np.nan, F32))
    for out in (room[3:23, 5:38], room[3:36, 5:25].T, room[::-3][:20, 1:67:2], room[3:23, 37:4:-1]):
        assert hg.matmul(x, y.T, out) is out
        np.testing.assert_array_equal(out.get(), want)


# ---- support, errors, memory, order


@pytest.mark.matrix
def test_can_use_reports_the_kernel(rng):
    a, b = matrix(512, 96, "mxfp8_e4m3", rng), matrix(512, 96, "mxfp8_e5m2", rng)
    answer = hg.can_use("matmul", a, b.T)
    assert {cost.kernel for cost in answer.costs} == set(kernels("mxfp8_e4m3", "mxfp8_e5m2"))
    assert answer.kernel == min(answer.costs, key=lambda cost: cost.clocks).kernel.name
    hg.matmul(a, b.T)
    assert hg.usage().kernels[answer.kernel] == 1


@pytest.mark.matrix
def test_e5m2_by_e5m2(rng):
    a = matrix(4, 64, "fp8_e5m2", rng)
    assert hg.can_use("matmul", a, a.T).kernel.startswith("gemm_fp8_e5m2_nt_")
    check(a, matrix(70, 64, "fp8_e5m2", rng))
    assert not hg.usage().slower


def test_across_streams(streams, rng):
    """Scales made for products on one stream serve another."""
    one, two = streams(), streams()
    a, b = matrix(40, 96, "mxfp8_e4m3", rng), matrix(50, 96, "mxfp8_e4m3", rng)
    want = hg.matmul(a, b.T, dtype=F32)
    for _ in range(3):
        x, y = hg.asarray(a), hg.asarray(b)
        results = [hg.matmul(x, y.T, dtype=F32, stream=s) for s in (one, two, one)]
        for got in results:
            np.testing.assert_array_equal(got.get(), want)


@pytest.mark.parametrize("format", ["fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2"])
def test_every_code_is_its_ocp_value(format):
    """One code in each row, NaN, Inf and -0 among them, times ones."""
    element = QUANTIZED[format].dtype
    codes = np.arange(256, dtype=np.uint8)
    x = np.zeros((256, 128), np.uint8)
    x[codes, codes % 128] = codes
    scale = np.ones((256, 4), ml_dtypes.float8_e8m0fnu) if "mx" in format else 1.0
    a = hg.ScaledArray(x.view(element), scale, format)
    ones = hg.ScaledArray(np.ones((256, 128), element), scale, format)
    got = hg.matmul(a, ones.T, dtype=F32)
    expected = np.repeat(codes.view(element).astype(F32)[:, None], 256, axis=1)
    assert np.array_equal(got, expected, equal_nan=True)
