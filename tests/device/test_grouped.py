"""Products of groups of rows: any offsets, every format, layout and kernel, against a loop over groups."""

import itertools

import gemm_launch
import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import reference
from hipgemm.formats.elements import QUANTIZED
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
KERNELS = [k for k in gemm_launch.KERNELS.values() if "grouped" in k.op]
FORWARD = [k.name for k in KERNELS if k.op.endswith("matmul")]
WGRAD = [k.name for k in KERNELS if k.op.endswith("wgrad")]
pytestmark = pytest.mark.matrix
LENGTHS = [
    [0],
    [1],
    [33, 95],
    [256, 0, 512, 0],
    [0, 0, 7, 0],
    [100, 31, 1, 0, 64, 5],
]


def offsets(lengths):
    return np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)


def sections(o):
    return [slice(int(a), int(b)) for a, b in itertools.pairwise(o)]


def parts(name):
    """Formats of a kernel's operands, layout, tile."""
    kernel = next(k for k in KERNELS if k.name == name)
    return kernel.a, kernel.b, kernel.layout, kernel.tile


def draw_values(shape, rng, exact):
    x = exact_grid(shape, rng) if exact else random_matrix(shape, rng)
    return x.astype(np.float32)


def quantized(x, format, axis, o=None, *, exact=False, each=False):
    """An operand of a format, from float32. Exact ones are not rounded, however they are scaled."""
    if format in ("bf16", "f16"):
        return x.astype(BF16 if format == "bf16" else F16)
    if format.endswith("_block"):
        format = format.removesuffix("_block")
        if not exact:
            return reference.quantize_fp8(x, format=format, block=(1, 128))
        scale = np.exp2(np.arange(x[..., ::128].size) % 5 - 2).astype(np.float32)
        codes = x.astype(QUANTIZED[format].dtype)
        return hg.ScaledArray(codes, scale.reshape(x[..., ::128].shape), format, block=(1, 128))
    if format.startswith("fp8"):
        form = hg.quantize_fp8(np.ones((1, 1), np.float32), format=format).data.dtype
        scale = np.float32(0.5)
        if each:
            scale = np.exp2(np.arange(x.shape[0]) % 3 - 1).astype(np.float32).reshape(-1, 1, 1)
        if exact:
            return hg.ScaledArray(x.astype(form), scale, format, axis=axis)
        return hg.quantize_fp8(x, format=format)
    if format == "mxfp4_e2m1":
        return hg.quantize_mxfp4(x, axis=axis, scaling="rceil", hadamard=False)
    if format.startswith("mxfp6"):
        return hg.quantize_mxfp6(x, axis=axis, scaling="rceil", format=format)
    options = {} if o is None else {"group_offsets": o}
    return hg.quantize_mxfp8(x, axis=axis, scaling="rceil", format=format, **options)


def forward(formats, layout, lengths, tail, n, k, rng, *, exact=False, each=False):
    """Operands of grouped_matmul: x, w, offsets."""
    x, w = draw_values((sum(lengths) + tail, k), rng, exact), draw_values((len(lengths), n, k), rng, exact)
    if exact and "mxfp4_e2m1" in formats:
        x, w = np.clip(x, -4, 4), np.clip(w, -4, 4)
    x, w = quantized(x, formats[0], -1, exact=exact), quantized(w, formats[1], -1, exact=exact, each=each)
    w = w.mT if isinstance(w, hg.ScaledArray) else w.swapaxes(1, 2)
    if layout == "nn":
        w = across(w)
    return x, w, offsets(lengths)


def across(w):
    """The same matrices, contiguous along their last axis."""
    if isinstance(w, hg.ScaledArray):
        return hg.ScaledArray(np.ascontiguousarray(w.data), w.scale, w.format, **sharing(w))
    return np.ascontiguousarray(w)


def assert_forward(y, x, w, o, *, exact=False):
    assert y.shape == (x.shape[0], w.shape[2])
    for g, rows in enumerate(sections(o)):
        if rows.start < rows.stop:
            assert_gemm_close(y[rows], part(x, rows), part(w, g), exact=exact)
    assert not y[int(o[-1]) :].astype(np.float32).any()


def assert_wgrad(dw, dy, x, o, *, exact=False, onto=None):
    assert dw.shape == (len(o) - 1, dy.shape[1], x.shape[1])
    for g, rows in enumerate(sections(o)):
        if rows.start == rows.stop:
            before = np.zeros_like(dw[g]) if onto is None else onto[g]
            np.testing.assert_array_equal(dw[g].view(np.uint8), before.view(np.uint8))
            continue
        if isinstance(dy, hg.ScaledArray) and (dy.block or x.block):
            a, b = (whole_blocks(q, rows) for q in (dy, x))  # their bound counts the blocks
            assert_gemm_close(dw[g], a.T, b, exact=exact)
            continue
        a, b = (values(q, rows) for q in (dy, x))
        if onto is not None:  # as one more row of the sum
            a = np.concatenate((a, np.eye(a.shape[1])))
            b = np.concatenate((b, onto[g].astype(np.float64)))
        assert_gemm_close(dw[g], a.T, b, exact=exact)


def whole_blocks(q, rows):
    """The rows of a group among zeros, in the blocks of 128 rows that have any of them."""
    first, last = rows.start // 128 * 128, min(-(-rows.stop // 128) * 128, len(q))
    q = q[first:last]
    data = np.zeros(q.shape, q.dtype)
    data[rows.start - first : rows.stop - first] = q.data[rows.start - first : rows.stop - first]
    return hg.ScaledArray(data, q.scale, q.format, **sharing(q))


def values(q, rows):
    return reference.values(q)[rows] if isinstance(q, hg.ScaledArray) else q[rows].astype(np.float64)


def part(q, index):
    """Rows of x, or one of the matrices."""
    if not isinstance(q, hg.ScaledArray):
        return q[index]
    scale = q.scale
    if scale.shape and not isinstance(index, slice):
        scale = scale[index]
        scale = scale.reshape(()) if scale.shape == (1, 1) else scale
    elif scale.shape:
        scale = scale[index]
    return hg.ScaledArray(q.data[index], scale, q.format, **sharing(q), hadamard=q.hadamard)


def sharing(q):
    """Which elements share a scale."""
    return {"axis": q.axis} if q.block is None else {"block": q.block}


def resident(x):
    """On the device; fp8 keeps its layout."""
    if isinstance(x, hg.ScaledArray) and x.format.startswith("fp8"):
        return hg.ScaledArray(hg.asarray(x.data), hg.asarray(np.asarray(x.scale)), x.format, **sharing(x))
    return hg.asarray(x)


def poisoned(shape, dtype):
    return hg.asarray(np.full(shape, np.nan, dtype))


# ---- every kernel


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bound"])
@pytest.mark.parametrize("name", FORWARD)
def test_forward_kernels(name, exact, use_kernel, rng):
    a, b, layout, (tm, tn, tk) = parts(name)
    use_kernel(name)
    lengths = [tm + 5, 0, 3, 19] if tm > 64 else [tm - 1, 0, 2 * tm + 1, 7]
    k = tk * 3 // 2 // 32 * 32
    n = tn + (16 if layout == "nn" else 11)  # read in place
    x, w, o = forward((a, b), layout, lengths, 9, n, k, rng, exact=exact)
    out = poisoned((x.shape[0], w.shape[2]), F32 if exact else BF16)
    y = hg.grouped_matmul(resident(x), resident(w), resident(o), out)
    assert y is out
    assert_forward(y.get(), x, w, o, exact=exact)
    assert hg.usage().kernels[name] == 1
    assert not hg.usage().copies


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "bound"])
@pytest.mark.parametrize("name", WGRAD)
def test_wgrad_kernels(name, exact, use_kernel, rng):
    a, b, _, (tm, tn, tk) = parts(name)
    use_kernel(name)
    o = offsets([2 * tk + 33, 0, 5, tk])
    rows, n, k = int(o[-1]) + 7, tm + 3, tn // 2 + 9
    dy, x = (quantized(draw_values((rows, m), rng, exact), f, 0, o, exact=exact) for m, f in ((n, a), (k, b)))
    out = poisoned((4, n, k), F32 if exact else BF16)
    hg.grouped_wgrad(resident(dy), resident(x), o, out)
    assert_wgrad(out.get(), dy, x, o, exact=exact)
    onto = draw_values(out.shape, rng, exact).astype(F32 if exact else BF16)
    out = hg.asarray(onto)
    hg.grouped_wgrad(resident(dy), resident(x), o, out, accumulate=True)
    assert_wgrad(out.get(), dy, x, o, exact=exact, onto=onto)


# ---- offsets


@pytest.mark.parametrize("tail", [0, 1, 200])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("format", ["bf16", "f16", "fp8_e5m2", "mxfp8_e4m3", "mxfp4_e2m1"])
def test_any_offsets(format, lengths, tail, rng):
    formats = (format, "fp8_e4m3" if format == "fp8_e5m2" else format)
    x, w, o = forward(formats, "nt", lengths, tail, 40, 96, rng, exact=True)
    for there in (o, hg.asarray(o)):
        y = hg.grouped_matmul(resident(x), resident(w), there, dtype=np.float32)
        assert_forward(y.get(), x, w, o, exact=True)
    assert_forward(hg.grouped_matmul(x, w, o, dtype=np.float32), x, w, o, exact=True)


@pytest.mark.parametrize("tail", [0, 70])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("format", ["bf16", "fp8_e4m3", "mxfp8_e4m3"])
def test_any_offsets_of_gradients(format, lengths, tail, rng):
    o = offsets(lengths)
    dense = [draw_values((sum(lengths) + tail, m), rng, True) for m in (40, 24)]
    dy, x = (quantized(y, format, 0, o, exact=True) for y in dense)
    assert_wgrad(hg.grouped_wgrad(dy, x, o, dtype=np.float32), dy, x, o, exact=True)
    there = hg.asarray(o)
    if format == "mxfp8_e4m3":
        for offsets_of_both in (o, there):
            hg.reset_usage()
            q = [
                hg.quantize_mxfp8(hg.asarray(y), axis=0, scaling="rceil", group_offsets=offsets_of_both)
                for y in dense
            ]
            dw = hg.grouped_wgrad(*q, offsets_of_both, dtype=np.float32)
            assert_wgrad(dw.get(), dy, x, o, exact=True)
            assert "mx_group_scale" not in hg.usage().kernels  # the quantizer has written them in GEMM order
            moved = [hg.asarray(y.get()) for y in q]
            assert_wgrad(hg.grouped_wgrad(*moved, o, dtype=np.float32).get(), dy, x, o, exact=True)
    else:
        dw = hg.grouped_wgrad(resident(dy), resident(x), there, dtype=np.float32)
        assert_wgrad(dw.get(), dy, x, o, exact=True)


@pytest.mark.parametrize("groups", [1, 8, 64, 65, 128, 300])
def test_many_groups(groups, rng):
    lengths = rng.integers(0, 9, groups)
    lengths[groups // 2] = 70
    x, w, o = forward(("bf16", "bf16"), "nt", list(lengths), 3, 24, 32, rng, exact=True)
    y = hg.grouped_matmul(resident(x), resident(w), hg.asarray(o), dtype=np.float32).get()
    assert_forward(y, x, w, o, exact=True)
    dy = exact_grid((x.shape[0], 8), rng)
    dw = hg.grouped_wgrad(resident(dy), resident(x), hg.asarray(o), dtype=np.float32).get()
    assert_wgrad(dw, dy, x, o, exact=True)
    dw = hg.grouped_wgrad(dy, x, o, dtype=np.float32, recipe="mxfp8")
    q = [reference.quantize_mxfp8(y, axis=0, group_offsets=o) for y in (dy, x)]
    assert_wgrad(dw, *q, o, exact=True)


def test_the_issues_example(rng):
    """Group lens [256, 0, 512, 0] in 1024 rows: empty groups and tail rows are exactly zero."""
    x, w, o = forward(("bf16", "bf16"), "nt", [256, 0, 512, 0], 256, 64, 64, rng)
    out = poisoned((1024, 64), BF16)
    hg.grouped_matmul(resident(x), resident(w), hg.asarray(o), out)
    assert_forward(out.get(), x, w, o)
    dy = random_matrix((1024, 48), rng)
    for recipe in (None, "mxfp8"):
        dw = poisoned((4, 48, 64), BF16)
        hg.grouped_wgrad(resident(dy), resident(x), hg.asarray(o), dw, recipe=recipe)
        bits = dw.get().view(np.uint16)
        assert not bits[1].any()
        assert not bits[3].any()
        q = [reference.quantize_mxfp8(y, axis=0, group_offsets=o) for y in (dy, x)] if recipe else (dy, x)
        assert_wgrad(dw.get(), *q, o)


# ---- scales, layouts, outputs


@pytest.mark.parametrize("each", [False, True], ids=["one", "each"])
@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_fp8_scales_of_weights(each, layout, rng):
    x, w, o = forward(("fp8_e4m3",) * 2, layout, [33, 0, 70], 5, 48, 64, rng, exact=True, each=each)
    y = hg.grouped_matmul(resident(x), resident(w), hg.asarray(o), dtype=np.float32).get()
    assert_forward(y, x, w, o, exact=True)
    assert not hg.usage().copies


def test_fp8_scales_of_rows_and_columns(rng):
    o = offsets([33, 70])
    x, w = random_matrix((110, 64), rng), random_matrix((2, 40, 64), rng)
    x, w = hg.quantize_fp8(x, axis=-1), hg.quantize_fp8(w, axis=-1)
    y = hg.grouped_matmul(resident(x), resident(w).mT, hg.asarray(o)).get()
    for g, rows in enumerate(sections(o)):
        wg = hg.ScaledArray(w.data[g], w.scale[g], w.format)
        assert_gemm_close(y[rows], part(x, rows), wg.T)
    dy, x = (hg.quantize_fp8(random_matrix((110, m), rng), axis=0) for m in (40, 24))
    assert_wgrad(hg.grouped_wgrad(resident(dy), resident(x), hg.asarray(o)).get(), dy, x, o)


def test_nan_scale_leaves_rows_of_no_group_zero(rng):
    x, w, o = forward(("fp8_e4m3",) * 2, "nt", [33, 0], 5, 40, 64, rng)
    x = hg.ScaledArray(x.data, np.float32(np.nan), x.format)
    y = hg.grouped_matmul(resident(x), resident(w), hg.asarray(o)).get().astype(np.float32)
    assert np.isnan(y[:33]).all()
    assert not y[33:].any()
    dw = hg.grouped_wgrad(resident(x), resident(x), hg.asarray(o)).get().astype(np.float32)
    assert np.isnan(dw[0]).all()
    assert not dw[1].any()


def test_mx_gradients_of_whole_blocks_without_offsets(rng):
    o = offsets([64, 0, 32])
    dense = [random_matrix((100, m), rng) for m in (40, 24)]
    host = [reference.quantize_mxfp8(y, axis=0) for y in dense]
    there = [hg.quantize_mxfp8(hg.asarray(y), axis=0) for y in dense]
    for given in (o, hg.asarray(o)):
        assert_wgrad(hg.grouped_wgrad(*there, given).get(), *host, o)
    assert_wgrad(hg.grouped_wgrad(*host, o), *host, o)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("columns", [1, 7, 8, 63, 130])
def test_types_and_widths_of_results(dtype, columns, rng):
    x, w, o = forward(("bf16", "bf16"), "nt", [33, 5, 0, 70], 5, columns, 40, rng)
    y = hg.grouped_matmul(resident(x), resident(w), hg.asarray(o), dtype=dtype).get()
    assert y.dtype == dtype
    assert_forward(y, x, w, o)
    dy = random_matrix((x.shape[0], 5), rng)
    wide = random_matrix((x.shape[0], columns), rng)
    onto = random_matrix((4, 5, columns), rng, dtype=dtype)
    out = hg.asarray(onto)
    hg.grouped_wgrad(resident(dy), resident(wide), hg.asarray(o), out, accumulate=True)
    assert_wgrad(out.get(), dy, wide, o, onto=onto)


def test_outputs_of_any_layout(rng):
    x, w, o = forward(("bf16", "bf16"), "nt", [33, 5], 5, 24, 40, rng, exact=True)
    outs = [poisoned((24, 43), F32).T, poisoned((43, 40), F32)[:, 3:27], poisoned((86, 24), F32)[::2]]
    for out in outs:
        hg.grouped_matmul(resident(x), resident(w), hg.asarray(o), out)
        assert_forward(out.get(), x, w, o, exact=True)
    dy = exact_grid((43, 8), rng)
    onto = exact_grid((2, 8, 40), rng, dtype=np.float32)
    for make in (
        lambda y: hg.asarray(y.swapaxes(1, 2).copy()).mT,
        lambda y: hg.asarray(y[::-1].copy())[::-1],
    ):
        out = make(onto)
        hg.grouped_wgrad(resident(dy), resident(x), hg.asarray(o), out, accumulate=True)
        assert_wgrad(out.get(), dy, x, o, exact=True, onto=onto)
    host = onto.swapaxes(1, 2).copy().swapaxes(1, 2)
    assert hg.grouped_wgrad(dy, x, o, host, accumulate=True) is host
    assert_wgrad(host, dy, x, o, exact=True, onto=onto)


def test_operands_of_any_layout(rng):
    x, w, o = forward(("bf16", "bf16"), "nt", [33, 5], 5, 24, 41, rng, exact=True)
    for view in (hg.asarray(x.T.copy()).T, hg.asarray(x)[:, :], x):
        y = hg.grouped_matmul(view, w if view is x else hg.asarray(w.copy()), o, dtype=np.float32)
        assert_forward(y if view is x else y.get(), x, w, o, exact=True)
    dy = exact_grid((43, 9), rng)
    dw = hg.grouped_wgrad(hg.asarray(dy.T.copy()).T, hg.asarray(x), o, dtype=np.float32).get()
    assert_wgrad(dw, dy, x, o, exact=True)


@pytest.mark.parametrize(
    ("rows", "groups", "n", "k"), [(0, 3, 8, 16), (5, 0, 8, 16), (5, 2, 0, 16), (5, 2, 8, 0), (0, 0, 8, 16)]
)
def test_nothing_to_do(rows, groups, n, k, rng):
    o = offsets([rows // max(1, groups)] * groups)
    x, w = exact_grid((rows, k), rng), exact_grid((groups, n, k), rng)
    for place in (np.asarray, hg.asarray):
        y = hg.grouped_matmul(place(x), place(w).swapaxes(1, 2) if place is np.asarray else place(w).mT, o)
        y = y if place is np.asarray else y.get()
        assert_forward(y, x, w.swapaxes(1, 2), o)
        dy = exact_grid((rows, n), rng)
        dw = hg.grouped_wgrad(place(dy), place(x), o)
        assert_wgrad(dw if place is np.asarray else dw.get(), dy, x, o)


def test_streams(streams, rng):
    x, w, o = forward(("bf16", "bf16"), "nt", [33, 5], 5, 24, 40, rng, exact=True)
    stream = streams()
    there = [hg.asarray(y, stream=stream) for y in (x, w, o)]
    assert_forward(hg.grouped_matmul(*there, stream=streams()).get(), x, w, o)


# ---- faults


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([3, 64, 64], r"group_offsets\[0\] must be 0; got 3"),
        ([0, 40, 20], r"must not decrease; got group_offsets\[2\]=20 after group_offsets\[1\]=40"),
        ([0, 64, 65], r"must be at most 64, the number of rows; got group_offsets\[2\]=65"),
        ([0, -5, 64], r"must not decrease; got group_offsets\[1\]=-5 after group_offsets\[0\]=0"),
    ],
)
def test_wrong_offsets(given, text, rng):
    x, w, o = forward(("bf16", "bf16"), "nt", [64, 0], 0, 24, 40, rng)
    wrong = np.array(given, np.int32)
    for call in (
        lambda o, place: hg.grouped_matmul(place(x), place(w), o),
        lambda o, place: hg.grouped_wgrad(place(x), place(x), o),
        lambda o, place: hg.grouped_wgrad(place(x), place(x), o, recipe="mxfp8"),
    ):
        for place in (lambda y: y, hg.asarray):
            with pytest.raises(ValueError, match=text):
                call(wrong, place)
        made = call(hg.asarray(wrong), hg.asarray)
        with pytest.raises(hg.HipError, match=text):
            made.get()
        made.get()  # reported once
        call(hg.asarray(o), hg.asarray).get()


def test_offsets_inside_blocks_on_the_device(rng):
    q = [hg.quantize_mxfp8(hg.asarray(random_matrix((64, m), rng)), axis=0) for m in (40, 24)]
    dw = hg.grouped_wgrad(*q, hg.asarray(offsets([33, 31])))
    with pytest.raises(hg.HipError, match=r"must be multiples of 32 .*; got group_offsets\[1\]=33"):
        dw.get()
