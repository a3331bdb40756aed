"""Batched products, split K, and the plain kernel: correct in every format and layout."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.formats.elements import QUANTIZED
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, exact_grid, exact_scaled, poison, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
FORMATS = ["bf16", "f16", "fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp4_e2m1"]
formats = pytest.mark.parametrize("format", FORMATS)


def matrices(shape, format, rng, *, rows=False):
    """Exact values (.., rows, K), quantized along K if the format requires it."""
    if format in ("bf16", "f16"):
        return exact_grid(shape, rng, dtype=BF16 if format == "bf16" else F16)
    q = exact_scaled(shape, rng, format)
    return q if rows or q.format.startswith("mx") else hg.ScaledArray(q.data, 0.5, format)


def transposed(x):
    return x.mT if isinstance(x, hg.ScaledArray) else x.swapaxes(-1, -2)


def check(a, b, out_dtype=F32, exact=True, **epilogue):
    """Multiply a (.., M, K) by b (.., N, K) transposed, from the host and on the device."""
    bt = transposed(b)
    shape = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-2])
    out = poison(np.empty(shape, out_dtype))
    assert hg.matmul(a, bt, out, **epilogue) is out
    assert_gemm_close(out, a, bt, exact=exact, **epilogue)
    x, y = hg.asarray(a), hg.asarray(b)
    for _ in range(2):
        target = hg.asarray(poison(np.empty(shape, out_dtype)))
        assert hg.matmul(x, y.mT, target, **epilogue) is target
        np.testing.assert_array_equal(target.get().view("u1"), out.view("u1"))
    return out


BROADCASTS = [
    ((3,), (3,)),
    ((3,), ()),
    ((), (3,)),
    ((3,), (1,)),
    ((2, 3), (3,)),
    ((2, 1), (3,)),
    ((1, 3), (2, 1)),
    ((2, 3, 2), (2, 1, 2)),
    ((1,), (1,)),
    ((0,), ()),
    ((2, 0), (2, 1)),
]


@formats
@pytest.mark.parametrize(("a_lead", "b_lead"), BROADCASTS, ids=str)
def test_leading_axes_broadcast(a_lead, b_lead, format, rng):
    a, b = matrices((*a_lead, 5, 70), format, rng), matrices((*b_lead, 9, 70), format, rng)
    check(a, b)


@formats
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (16, 32, 64), (33, 65, 129), (1, 70, 96), (4, 3, 0)])
def test_shapes(m, n, k, format, rng):
    check(matrices((3, m, k), format, rng), matrices((3, n, k), format, rng), rows_epilogue(n, rng)[0])
    check(matrices((3, m, k), format, rng), matrices((n, k), format, rng))


def rows_epilogue(n, rng):
    return F32, {"bias": rng.integers(-4, 5, n).astype(F32)}


@pytest.mark.parametrize("out_dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("format", ["bf16", "f16", "fp8_e4m3", "mxfp8_e4m3"])
def test_epilogue(format, out_dtype, rng):
    n = 37
    a, b = matrices((4, 18, 96), format, rng, rows=True), matrices((4, n, 96), format, rng, rows=True)
    scale, bias = rng.standard_normal(n).astype(F32), rng.standard_normal(n).astype(F16)
    check(a, b, out_dtype, exact=False, alpha=-0.01, col_scale=scale, bias=bias)


def test_random_numbers_are_inside_their_bounds(rng):
    for dtype in (BF16, F16):
        a, b = random_matrix((3, 50, 200), rng, dtype=dtype), random_matrix((3, 60, 200), rng, dtype=dtype)
        check(a, b, dtype, exact=False)


def test_result_type_follows_the_operands(rng):
    for dtype in (BF16, F16):
        x = exact_grid((2, 3, 8), rng, dtype=dtype)
        assert hg.matmul(x, x.swapaxes(1, 2)).dtype == dtype
        assert hg.matmul(hg.asarray(x), hg.asarray(x).mT).dtype == dtype


# ---- number and shape of launches


def launches():
    return {name: n for name, n in hg.usage().kernels.items() if "gemm" in name}


def test_one_launch_for_two_levels_and_one_for_each_beyond(rng):
    a, b = hg.asarray(exact_grid((5, 3, 4, 9, 24), rng)), hg.asarray(exact_grid((3, 1, 7, 24), rng))
    hg.reset_usage()
    assert_gemm_close(hg.matmul(a[0, 0], b[0].mT, dtype=F32).get(), a[0, 0].get(), b[0].mT.get(), exact=True)
    assert sum(launches().values()) == 1
    got = hg.matmul(a, b.mT, dtype=F32)
    assert sum(launches().values()) == 2
    assert_gemm_close(got.get(), a.get(), b.mT.get(), exact=True)
    apart = a[:, :2, ::2]  # three levels that no stride merges
    hg.reset_usage()
    got = hg.matmul(apart, b[:2].mT, dtype=F32)
    assert sum(launches().values()) == 2
    assert_gemm_close(got.get(), apart.get(), b[:2].mT.get(), exact=True)
    (served,) = [row for row in hg.usage().served.values() if row.calls]
    assert (served.calls, served.flop) == (1, 2 * 5 * 2 * 2 * 9 * 7 * 24)


def test_a_shared_operand_makes_one_product(rng):
    """130 products of one row each are one of 130 rows."""
    a, w = exact_grid((130, 1, 64), rng), exact_grid((64, 64), rng)
    assert hg.can_use("matmul", a, w.T).costs[0].tiles == hg.can_use("matmul", a[:, 0], w.T).costs[0].tiles
    check(a, w)


@formats
def test_what_quantizers_write_is_read_in_place(format, rng):
    """Rows of 70 elements end inside a chunk of 16 bytes, and are padded with zeros."""
    if format in ("bf16", "f16"):
        return
    x, w = (hg.asarray(rng.standard_normal(shape).astype(BF16)) for shape in ((3, 20, 70), (3, 40, 70)))
    function = {"f": hg.quantize_fp8, "m": hg.quantize_mxfp8}[format[0]]
    options = {"format": format}
    if format == "mxfp4_e2m1":
        function, options = hg.quantize_mxfp4, {"hadamard": False}
    a, b = function(x, **options), function(w, **options)
    got = hg.matmul(a, b.mT, dtype=F32).get()
    assert_gemm_close(got, a.get(), b.mT.get())
    assert not hg.usage().copies
    np.testing.assert_array_equal(hg.matmul(a.get(), b.get().mT, dtype=F32), got)
    assert not hg.usage().copies


@pytest.mark.parametrize("format", ["bf16", "f16", "fp8_e4m3", "mxfp8_e4m3"])
def test_sum_over_batch_and_rows(format, rng):
    """The gradient of weights: a sum over the rows of the entire batch, written as a reshape."""
    dy, x = exact_grid((3, 20, 40), rng), exact_grid((3, 20, 72), rng)
    want = sum(g.T.astype(np.float64) @ h.astype(np.float64) for g, h in zip(dy, x, strict=True))
    left, right = hg.asarray(dy), hg.asarray(x)
    if format == "f16":
        left, right = hg.asarray(dy.astype(F16)), hg.asarray(x.astype(F16))
    elif format == "fp8_e4m3":
        left, right = (hg.quantize_fp8(y, eps=0.0) for y in (left, right))  # 7 becomes 448: exact
    left, right = left.reshape(-1, 40), right.reshape(-1, 72)
    if format == "mxfp8_e4m3":  # whose blocks lie along the sum, across the edges of matrices
        left, right = (hg.quantize_mxfp8(y, axis=0) for y in (left, right))
    got = hg.matmul(left.T, right, dtype=F32)
    np.testing.assert_array_equal(got.get(), want)
    assert not [operand for _, operand, _ in hg.usage().copies if operand in "ab"]
    host = [y.get() for y in (left, right)]
    np.testing.assert_array_equal(hg.matmul(host[0].T, host[1], dtype=F32), got.get())


# ---- operands and outputs in any layout


def resident(x, lay_out):
    """A view on the device of the values of x, with permuted axes and gaps."""
    axes, gaps = lay_out
    outer = np.full([n + gap for n, gap in zip(np.transpose(x, axes).shape, gaps, strict=True)], np.nan)
    outer = outer.astype(x.dtype)
    inside = tuple(slice(gap // 2, gap // 2 + x.shape[axis]) for axis, gap in zip(axes, gaps, strict=True))
    outer[inside] = np.transpose(x, axes)
    whole = hg.asarray(outer)[inside]
    back = np.argsort(axes)
    shape, strides = ([part[i] for i in back] for part in (whole.shape, whole.strides))
    return hg.DeviceArray(whole._block, whole.ptr, tuple(shape), tuple(strides), whole.dtype)


LAYOUTS = [*itertools.product(itertools.permutations(range(3)), [(0, 0, 0), (2, 4, 16), (1, 3, 5)])]


@pytest.mark.parametrize("lay_out", LAYOUTS, ids=str)
def test_any_strides(lay_out, rng):
    a, b = exact_grid((3, 17, 48), rng), exact_grid((3, 48, 24), rng)
    x, y = resident(a, lay_out), resident(b, lay_out)
    got = hg.matmul(x, y, dtype=F32).get()
    assert_gemm_close(got, a, b, exact=True)
    for dtype in (BF16, F32):
        out = resident(poison(np.zeros((3, 17, 24), dtype)), lay_out)
        hg.matmul(x, y, out)
        assert_gemm_close(out.get(), a, b, exact=True)
        out = resident(poison(np.zeros((3, 17, 24), dtype)), lay_out)
        bias = np.arange(24, dtype=F32)
        hg.matmul(x, y, out, bias=bias)
        assert_gemm_close(out.get(), a, b, exact=True, bias=bias)


def predicted(a, b, out=None, **epilogue):
    """Whether `can_use` predicts the call: the kernel, the split of K, every copy."""
    answer = hg.can_use("matmul", a, b, out, arch=_hip.arch(0), **epilogue)
    hg.reset_usage()
    hg.matmul(a, b, out, **epilogue)
    used = hg.usage()
    assert [name for name, row in used.served.items() if row.calls] == [answer.kernel]
    assert (answer.splits > 1) == ("split_reduce" in used.kernels)
    copies = {f"{operand}: {why}" for _, operand, why in used.copies if operand in ("a", "b", "out")}
    assert copies == set(answer.copies)
    return copies


@pytest.mark.parametrize("lay_out", LAYOUTS, ids=str)
def test_can_use_predicts(lay_out, rng):
    a, b = exact_grid((3, 17, 48), rng), exact_grid((3, 48, 1500), rng).swapaxes(-1, -2)[:, :24, :48]
    b = b.swapaxes(-1, -2)
    x, y = resident(a, lay_out), resident(b, lay_out)
    out = resident(np.zeros((3, 17, 24), BF16), lay_out)
    predicted(x, y)
    predicted(x, y, out)
    predicted(x, y, out, bias=np.zeros(24, F32))
    predicted(y.mT, x.mT, out.mT)
    host = [np.lib.stride_tricks.as_strided(z, w.shape, w.strides) for z, w in host_views(x, y, lay_out)]
    predicted(*host)


def host_views(x, y, lay_out):
    """Host memory for arrays of the same strides."""
    return [
        (np.zeros(sum(n * abs(s) for n, s in zip(w.shape, w.strides, strict=True)), BF16), w) for w in (x, y)
    ]


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp4_e2m1", "fp8_e4m3"])
def test_can_use_predicts_quantized(format, rng):
    a, b = matrices((3, 17, 3000), format, rng), matrices((3, 24, 3000), format, rng)
    assert not predicted(a, b.mT)
    assert not predicted(hg.asarray(a), hg.asarray(b).mT)
    for order in ((0, 2, 1), (2, 1, 0), (1, 2, 0)):
        back = np.argsort(order)
        data = np.ascontiguousarray(a.data.transpose(order)).transpose(back)
        transposed = hg.ScaledArray(data, a.scale, format)
        predicted(transposed, b.mT)
        if format != "mxfp4_e2m1":
            predicted(hg.ScaledArray(hg.asarray(data), hg.asarray(a.scale), format), hg.asarray(b).mT)


def test_host_arrays_of_any_strides(rng):
    big_a, big_b = exact_grid((7, 4, 40, 60), rng), exact_grid((7, 2, 48, 60), rng)
    for a, b in (
        (big_a[::2, 1:2, ::-1, 3:51], big_b[::-2, :, :, 4:52]),
        (big_a[:, 0, :, :48].transpose(1, 0, 2), big_b[0, 0, :, :48]),
        (np.broadcast_to(big_a[0, 0, :, :48], (3, 40, 48)), big_b[:3, 0, :, :48]),
        (np.broadcast_to(big_a[0, 0, :, :48], (3, 40, 48)), big_b[0, 0, :, :48]),
        (big_a[..., :48, :40].swapaxes(-1, -2)[..., :40], big_b[:, :1, :40, :40]),
    ):
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        out = poison(np.zeros((*lead, a.shape[-2], b.shape[-2]), F32))
        hg.matmul(a, transposed(b), out[..., ::-1])
        assert_gemm_close(out[..., ::-1], a, transposed(b), exact=True)


def test_nothing_else_is_written(rng):
    a, b = hg.asarray(exact_grid((3, 17, 48), rng)), hg.asarray(exact_grid((3, 48, 21), rng))
    for dtype in (BF16, F32):
        outer = np.full((5, 20, 30), np.nan, dtype)
        on_device = hg.asarray(outer)
        hg.matmul(a, b, on_device[1:4, 2:19, 3:24])
        got = on_device.get()
        assert_gemm_close(got[1:4, 2:19, 3:24], a.get(), b.get(), exact=True)
        got[1:4, 2:19, 3:24] = np.nan
        assert np.isnan(got).all()


def test_scales_of_each_matrix(rng):
    """fp8 with one scale for all, one for each row, or one for each matrix."""
    a, b = exact_grid((3, 17, 96), rng), exact_grid((3, 21, 96), rng)
    for kind in ((), (3, 17, 1), (3, 1, 1)):
        scale = np.exp2(rng.integers(-2, 3, kind)).astype(F32)
        x = hg.ScaledArray(a.astype(ml_dtypes.float8_e4m3fn), scale, "fp8_e4m3")
        y = hg.ScaledArray(b.astype(ml_dtypes.float8_e4m3fn), np.float32(0.25), "fp8_e4m3")
        check(x, y)
        check(x, hg.ScaledArray(y.data[0], y.scale, "fp8_e4m3"))
        spread = hg.asarray(np.repeat(scale, 3, axis=-1))[..., 1:2] if kind else hg.asarray(scale)
        got = hg.matmul(hg.ScaledArray(hg.asarray(x.data), spread, "fp8_e4m3"), hg.asarray(y).mT, dtype=F32)
        assert_gemm_close(got.get(), x, y.mT, exact=True)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp4_e2m1"])
@pytest.mark.parametrize("rows", [5, 16, 48])
def test_every_block_scale_reaches_its_matrix(format, rows, rng):
    """Matrices of ones, with a power of two for each row and block: the sums show them all."""
    k, batch = 160, (2, 3)
    ones = np.ones((*batch, rows, k), F32).astype(QUANTIZED[format].dtype)
    power = rng.integers(110, 140, (*batch, rows, k // 32)).astype(np.uint8)
    a = hg.ScaledArray(ones, power, format)
    one = hg.ScaledArray(ones[0, 0, :3], np.full((3, k // 32), 127, np.uint8), format)
    check(a, one, exact=False)
    check(one, a, exact=False)
    check(a, hg.ScaledArray(ones[:, :1], power[::-1, 1:2], format), exact=False)
    # The same array can be used in products of another kind, by the saved scales.
    x, y = hg.asarray(a), hg.asarray(one)
    for _ in range(2):
        assert_gemm_close(hg.matmul(x, y.T, dtype=F32).get(), a, one.T)
        assert_gemm_close(hg.matmul(x, x.mT, dtype=F32).get(), a, a.mT)


@pytest.mark.parametrize("format", ["mxfp8_e4m3", "mxfp4_e2m1"])
def test_quantizers_order_scales_of_activations(format, rng):
    """Rows of a batch times one matrix: only the quantizers and the product run."""
    function = hg.quantize_mxfp8 if format.startswith("mxfp8") else hg.quantize_mxfp4
    x, w = (hg.asarray(rng.standard_normal(shape).astype(BF16)) for shape in ((3, 21, 96), (40, 96)))
    hg.reset_usage()
    a, b = function(x), function(w)
    got = hg.matmul(a, b.T, dtype=F32)
    assert "mx_gemm_scale" not in hg.usage().kernels
    assert_gemm_close(got.get(), a.get(), b.get().T)
    assert_gemm_close(hg.matmul(a, a.mT, dtype=F32).get(), a.get(), a.get().mT)


def test_4_bits_beside_8_in_batches(rng):
    four, eight = matrices((3, 17, 96), "mxfp4_e2m1", rng), matrices((3, 21, 96), "mxfp8_e5m2", rng)
    assert predicted(four, eight.mT) == set()
    check(four, eight)
    check(eight, four)
    check(matrices((3, 17, 70), "mxfp8_e4m3", rng), matrices((5, 70), "mxfp4_e2m1", rng))


# ---- split K


@pytest.mark.matrix
@formats
@pytest.mark.parametrize("lead", [(), (3,), (3, 2, 2)], ids=str)
def test_parts_of_k(format, lead, rng):
    k = 3000
    a, b = matrices((*lead, 16, k), format, rng, rows=True), matrices((24, k), format, rng, rows=True)
    if format == "fp8_e5m2":
        b = matrices((24, k), "fp8_e4m3", rng, rows=True)
    answer = hg.can_use("matmul", a, transposed(b))
    assert answer.splits > 1
    check(a, b)
    assert hg.usage().kernels["split_reduce"] > 0
    both = matrices((*lead, 24, k), b.format if isinstance(b, hg.ScaledArray) else format, rng, rows=True)
    bias, scale = rng.integers(-4, 5, 24).astype(F32), np.exp2(rng.integers(-2, 3, 24)).astype(F32)
    check(a, both, F32, bias=bias, col_scale=scale, alpha=0.5)
    check(a, both, BF16, exact=False, bias=bias)


def test_parts_of_k_into_columns(rng):
    a, b = exact_grid((16, 3000), rng), exact_grid((24, 3000), rng)
    x, y = hg.asarray(a), hg.asarray(b)
    out = hg.empty((24, 16), F32).T
    hg.matmul(x, y.T, out)
    assert_gemm_close(out.get(), a, b.T, exact=True)
    assert not hg.usage().copies
    hg.matmul(x, y.T, out, bias=np.ones(24, F32))
    assert_gemm_close(out.get(), a, b.T, exact=True, bias=np.ones(24, F32))


def test_parts_of_k_are_summed_in_order(rng):
    """The same bits each time, whatever the memory contained before."""
    a, b = random_matrix((16, 5000), rng), random_matrix((24, 5000), rng)
    x, y = hg.asarray(a), hg.asarray(b)
    first = hg.matmul(x, y.T, dtype=F32).get()
    assert_gemm_close(first, a, b.T)
    for _ in range(3):
        np.testing.assert_array_equal(hg.matmul(x, y.T, dtype=F32).get(), first)
        hg.asarray(np.full(10**6, np.nan, F32))


def test_steady_state_allocates_nothing(rng):
    x, y = hg.asarray(random_matrix((16, 5000), rng)), hg.asarray(random_matrix((24, 5000), rng))
    out, odd = hg.empty((16, 24), F32), x[:, 1:4001]
    calls = [lambda: hg.matmul(x, y.T, out), lambda: hg.matmul(odd, y[:, :4000].T, out)]
    for call in calls * 2:
        call()
    held = _hip.runtime().pools[0].bytes
    for call in calls * 20:
        call()
    out.get()
    assert _hip.runtime().pools[0].bytes == held


# ---- the plain kernel


@formats
def test_plain_kernel(format, rng, use_kernel):
    use_kernel("plain")
    n = 37
    bias, scale = rng.integers(-4, 5, n).astype(F16), np.exp2(rng.integers(-2, 3, n)).astype(F32)
    for lead in ((), (3,), (2, 2, 2)):
        a, b = matrices((*lead, 18, 90), format, rng, rows=True), matrices((n, 90), format, rng, rows=True)
        check(a, b, bias=bias, col_scale=scale, alpha=0.5)
        check(a, matrices((*lead, n, 90), format, rng, rows=True))
    check(matrices((4, 0), format, rng), matrices((n, 0), format, rng), bias=bias)
    used = hg.usage()
    assert not [name for name in used.kernels if name.startswith("gemm")]
    assert {why for _, name, why in used.slower if name == "plain_gemm"} == {"HIPGEMM_KERNEL=plain"}
    assert sum(row.calls for row in used.served.values()) == sum(used.slower.values())


@pytest.mark.parametrize("lay_out", LAYOUTS, ids=str)
def test_plain_kernel_takes_any_strides(lay_out, rng, use_kernel):
    use_kernel("plain")
    a, b = exact_grid((3, 17, 48), rng), exact_grid((3, 48, 24), rng)
    x, y = resident(a, lay_out), resident(b, lay_out)
    hg.reset_usage()
    out = resident(poison(np.zeros((3, 17, 24), F32)), lay_out)
    hg.matmul(x[:, ::-1], y[..., ::-1], out[..., ::-1])
    assert set(hg.usage().kernels) == {"plain_gemm"}
    assert_gemm_close(out.get()[..., ::-1], a[:, ::-1], b[..., ::-1], exact=True)


@pytest.mark.matrix("bf16")
def test_plain_kernel_serves_what_no_other_can(rng):
    """Rows too far apart for a tile, along both axes, and too many bytes for a copy."""
    k = 2**26
    code, scale = hg.zeros(1, ml_dtypes.float8_e4m3fn), hg.zeros(1, np.uint8)
    data = hg.DeviceArray(code._block, code.ptr, (2, k), (0, 0), code.dtype)
    scales = hg.DeviceArray(scale._block, scale.ptr, (2, k // 32), (0, 0), scale.dtype)
    far = hg.ScaledArray(data, scales, "mxfp8_e4m3")
    answer = hg.can_use("matmul", far, far.T)
    assert answer.kernel == "plain_gemm"
    assert [r.code for r in answer.why] == ["pitch"]


def test_formats_are_counted_as_they_are(rng):
    hg.reset_usage()
    a = exact_grid((4, 32), rng)
    hg.matmul(a, a.T)
    ((_, row),) = hg.usage().served.items()
    assert row == (1, 2 * 4 * 4 * 32, 2 * 4 * 32 * 2 + 4 * 4 * 2)
    assert math.prod(row) > 0
