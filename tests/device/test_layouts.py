"""Operands and outputs in every layout: read in place where documented, correct everywhere."""

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import KERNELS

import hipgemm as hg
from hipgemm.formats.elements import FORMATS, QUANTIZED
from hipgemm.products.choose import k_strided
from hipgemm.testing import assert_gemm_close, exact_grid, poison, random_matrix

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)


def reversed_rows(x):
    return np.ascontiguousarray(x[::-1])[::-1]


def reversed_columns(x):
    return np.ascontiguousarray(x[:, ::-1])[:, ::-1]


def every_other_row(x):
    return np.repeat(x, 2, axis=0)[::2]


def every_third_column(x):
    return np.repeat(x, 3, axis=1)[:, ::3]


def in_a_larger_one(x):
    outer = np.full((x.shape[0] + 3, x.shape[1] + 24), np.nan, x.dtype)
    outer[2:-1, 8:-16] = x
    return outer[2:-1, 8:-16]


def misaligned(x):
    outer = np.full((x.shape[0], x.shape[1] + 9), np.nan, x.dtype)
    outer[:, 1:-8] = x
    return outer[:, 1:-8]


LAYOUTS = [
    np.ascontiguousarray,
    np.asfortranarray,
    reversed_rows,
    reversed_columns,
    every_other_row,
    every_third_column,
    in_a_larger_one,
    misaligned,
    lambda x: in_a_larger_one(np.ascontiguousarray(x.T)).T,
    lambda x: reversed_rows(np.ascontiguousarray(x.T)).T,
]
IDS = [f.__name__ for f in LAYOUTS[:-2]] + ["columns_in_a_larger_one", "reversed_columns_of_fortran"]
layouts = pytest.mark.parametrize("lay_out", LAYOUTS, ids=IDS)


def resident(x):
    """The same layout on the device: upload the base array, then take the view."""
    base = x
    while base.base is not None:
        base = base.base
    flat = np.lib.stride_tricks.as_strided(base, (base.size,), (x.itemsize,))
    start = (x.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // x.itemsize
    whole = hg.asarray(flat)
    view = hg.DeviceArray(whole._block, whole.ptr + start * x.itemsize, x.shape, x.strides, x.dtype)
    np.testing.assert_array_equal(view.get().view("u2"), np.ascontiguousarray(x).view("u2"))
    return view


@layouts
@pytest.mark.parametrize("k", [64, 52])
def test_operands(lay_out, k, rng):
    a, b = lay_out(random_matrix((70, k), rng)), lay_out(random_matrix((k, 40), rng))
    assert_gemm_close(hg.matmul(a, b, dtype=F32), a, b)
    assert_gemm_close(hg.matmul(resident(a), resident(b), dtype=F32).get(), a, b)
    a, b = lay_out(exact_grid((70, k), rng)), lay_out(exact_grid((k, 40), rng))
    assert_gemm_close(hg.matmul(a, b, dtype=F32), a, b, exact=True)
    assert_gemm_close(hg.matmul(resident(a), resident(b), dtype=F32).get(), a, b, exact=True)


@layouts
def test_output(lay_out, rng):
    a, w = random_matrix((70, 64), rng), random_matrix((44, 64), rng)
    x, y = hg.asarray(a), hg.asarray(w).T
    for dtype in (BF16, F32):
        for epilogue in ({}, {"bias": np.arange(44, dtype=F32)}):
            expected = hg.matmul(a, w.T, dtype=dtype, **epilogue)
            out = lay_out(np.zeros((70, 44), dtype))
            poison(out)
            hg.matmul(a, w.T, out, **epilogue)
            np.testing.assert_array_equal(out, expected)
    out = resident(poison(lay_out(np.zeros((70, 44), BF16))))
    hg.matmul(x, y, out)
    np.testing.assert_array_equal(out.get(), hg.matmul(a, w.T))


def test_nothing_else_is_written(rng):
    a, w = hg.asarray(random_matrix((70, 64), rng)), hg.asarray(random_matrix((44, 64), rng)).T
    for dtype, column in ((BF16, 8), (BF16, 3), (F32, 1)):
        outer = np.full((74, 60), np.nan, dtype)
        on_device = hg.asarray(outer)
        hg.matmul(a, w, on_device[2:72, column : column + 44])
        got = on_device.get()
        np.testing.assert_array_equal(got[2:72, column : column + 44], hg.matmul(a, w, dtype=dtype).get())
        got[2:72, column : column + 44] = np.nan
        assert np.isnan(got).all()


def test_nothing_else_is_read(rng):
    # NaN after every row, including the last: NaN times zero would show.
    for k in (64, 60, 8, 1):
        a = resident(in_a_larger_one(exact_grid((65, k), rng)))
        w = resident(in_a_larger_one(exact_grid((33, k), rng)))
        out = hg.matmul(a, w.T, dtype=F32).get()
        assert_gemm_close(out, a.get(), w.get().T, exact=True)


# ---- what is copied, and what is not


def copies(*args, **kwargs):
    hg.reset_usage()
    hg.matmul(*args, **kwargs)
    return {(operand, reason) for _, operand, reason in hg.usage().copies}


def test_in_place_from_numpy(rng):
    a, w = random_matrix((20, 52), rng), random_matrix((30, 52), rng)
    assert copies(a, w.T) == set()
    assert copies(in_a_larger_one(a), misaligned(w).T) == set()
    assert copies(every_other_row(a), w.T) == set()
    assert copies(a, np.ascontiguousarray(w.T)) == set()
    assert copies(np.asfortranarray(a), w.T) == set()
    assert copies(misaligned(np.ascontiguousarray(a.T)).T, misaligned(np.ascontiguousarray(w.T))) == set()
    assert copies(every_third_column(a), w.T) == {("a", "no axis contiguous; copied on the host")}
    assert copies(a, w.T, np.zeros((30, 20), BF16).T) == set()


@pytest.mark.matrix("bf16")
def test_in_place_on_the_device(rng):
    a, w = hg.asarray(random_matrix((20, 64), rng)), hg.asarray(random_matrix((30, 64), rng))
    assert copies(a, w.T) == set()
    assert copies(a[::2, 8:32], w[:, 8:32].T) == set()
    assert copies(a[:, :60], w[:, :60].T) == {
        ("a", "K not a multiple of 8"),
        ("b", "K not a multiple of 8"),
    }
    assert copies(a[:, 1:9], w[:, :8].T) == {("a", "base not 16-byte aligned")}
    assert {operand for operand, _ in copies(a[::-1], w.T)} == {"a"}
    assert {operand for operand, _ in copies(a[:, ::-1], w.T)} == {"a"}
    across = hg.asarray(random_matrix((64, 32), rng))
    assert copies(a, across) == set()
    assert copies(a[:, :61], across[:61, :29]) == {("a", "K not a multiple of 8")}
    assert copies(across[:61, :29].T, across[:61]) == set()
    odd = hg.asarray(random_matrix((20, 68), rng))
    assert copies(odd[:, :64], w.T) == {("a", "row pitch not a multiple of 16 bytes")}
    odd = hg.asarray(random_matrix((64, 20), rng))
    assert {operand for operand, _ in copies(a, odd)} == {"b"}  # its pitch is not a multiple of 16 bytes


@pytest.mark.matrix("bf16")
def test_outputs_in_place_on_the_device(rng):
    a, w = hg.asarray(random_matrix((20, 64), rng)), hg.asarray(random_matrix((30, 64), rng)).T
    store = hg.zeros((40, 40), BF16)
    assert copies(a, w, store[:20, 3:33]) == set()
    assert copies(a, w, store[:30, 3:23].T) == set()
    transposed = hg.empty((30, 20), BF16)
    assert copies(a, w, transposed.T) == set()
    np.testing.assert_array_equal(transposed.get().T, hg.matmul(a, w).get())
    bias = hg.zeros(30, F32)
    assert copies(a, w, hg.empty((30, 20), BF16).T, bias=bias) == {("out", "rows not contiguous")}
    assert copies(a, w, store[20::-1, :30][:20]) == {("out", "rows not contiguous")}


def test_numpy_layout_survives_the_way_up(rng):
    w = random_matrix((30, 64), rng)
    assert copies(hg.asarray(random_matrix((20, 64), rng)), hg.asarray(w.T)) == set()


def test_broadcast_operands(rng):
    row = np.broadcast_to(random_matrix((1, 64), rng), (10, 64))
    w = random_matrix((30, 64), rng)
    assert_gemm_close(hg.matmul(row, w.T), row, w.T)
    on_device = hg.asarray(np.ascontiguousarray(row[:1]))
    view = hg.DeviceArray(on_device._block, on_device.ptr, (10, 64), (0, 2), BF16)
    assert_gemm_close(hg.matmul(view, hg.asarray(w).T).get(), row, w.T)


FP8 = ["fp8_e4m3", "fp8_e5m2"]
PAIRS = [("bf16", "bf16"), ("f16", "f16"), *((a, b) for a in FP8 for b in FP8 if (a, b) != (FP8[1],) * 2)]


def exact(rows, columns, format, transposed, rng):
    """A matrix on the device, its lines 16 bytes apart; columns are the lines if `transposed`."""
    form = FORMATS.get(format) or QUANTIZED[format]
    x = exact_grid((columns, rows) if transposed else (rows, columns), rng, dtype=form.dtype, bits=2)
    outer = np.full((x.shape[0], -(-x.shape[1] // 16) * 16 + 16), np.nan, x.dtype)
    outer[:, : x.shape[1]] = x
    data = hg.asarray(outer)[:, : x.shape[1]]
    data = data.T if transposed else data
    return data if format in FORMATS else hg.ScaledArray(data, hg.asarray(np.float32(0.5)), format)


SHAPES = [(64, 64, 64), (1, 1, 16), (65, 33, 80), (16, 300, 208), (257, 130, 96), (130, 257, 1040)]


@pytest.mark.matrix
@pytest.mark.parametrize("formats", PAIRS, ids="@".join)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_layout_is_read_in_place(shape, layout, formats, rng):
    m, n, k = shape
    if layout == "tn":
        k += 7  # where no operand is contiguous along K, K need not be a multiple of 16 bytes
    a = exact(m, k, formats[0], layout[0] == "t", rng)
    b = exact(k, n, formats[1], layout[1] == "t", rng)
    answer = hg.can_use("matmul", a, b)
    hg.reset_usage()
    for out in (None, hg.asarray(poison(np.zeros((m, n), F32))), hg.asarray(poison(np.zeros((n, m), F32))).T):
        got = hg.matmul(a, b, out, dtype=F32).get()
        assert_gemm_close(got, a.get(), b.get(), exact=True)
    used = hg.usage()
    assert not used.copies
    if min(shape) > 1:
        assert f"_{layout}_" in answer.kernel
    assert answer.kernel in used.kernels
    assert set(used.kernels) <= {name for name in used.kernels if name.startswith("gemm")} | {"split_reduce"}


@pytest.mark.parametrize("dtype", [BF16, F16], ids=str)
def test_k_of_zero_in_every_layout(dtype, rng):
    bias = np.arange(5, dtype=F32)
    for a in (hg.zeros((3, 0), dtype), hg.zeros((0, 3), dtype).T):
        for b in (hg.zeros((0, 5), dtype), hg.zeros((5, 0), dtype).T):
            np.testing.assert_array_equal(hg.matmul(a, b, dtype=F32, bias=bias).get(), np.tile(bias, (3, 1)))


# ---- beyond 4 GiB, and 2**31 elements


@pytest.fixture(scope="module")
def far_apart():
    """320 rows 16 MiB apart: offsets beyond 32 bits, in memory that is mostly not touched."""
    store = hg.empty((320, 2**23), BF16)
    yield store
    store.free()


@pytest.mark.parametrize("layout", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_operands_beyond_4_gib(side, layout, far_apart, rng, use_kernel):
    far = far_apart[:, 64:128]
    values = exact_grid((320, 64), rng)
    eye = hg.asarray(np.eye(64).astype(BF16))
    hg.matmul(hg.asarray(values), eye, far)  # writes the values
    np.testing.assert_array_equal(far.get(), values)
    strided = layout["ab".index(side)] == "tn"["ab".index(side)]
    x, want = (far.T, values.T) if strided else (far, values)  # (rows, K)
    k = x.shape[1]
    other_strided = layout["ba".index(side)] == "tn"["ba".index(side)]
    y = exact_grid((k, 40), rng, bits=2) if other_strided else exact_grid((40, k), rng, bits=2).T
    if not other_strided and k % 8:
        y = np.asfortranarray(y)
    z = hg.asarray(y)
    for force in (None, "plain"):
        if force:
            use_kernel(force)
        hg.reset_usage()
        if side == "a":
            assert_gemm_close(hg.matmul(x, z, dtype=F32).get(), want, y, exact=True)
        else:
            assert_gemm_close(hg.matmul(z.T, x.T, dtype=F32).get(), y.T, want.T, exact=True)
        assert all(operand != side for _, operand, _ in hg.usage().copies)


def test_output_beyond_4_gib(far_apart, rng, use_kernel):
    a, w = exact_grid((320, 72), rng), exact_grid((64, 72), rng)
    x, y = hg.asarray(a), hg.asarray(w)
    for force in (None, "plain"):
        if force:
            use_kernel(force)
        for out in (far_apart[:, 64:128], far_apart[:, 256:320]):
            hg.matmul(x, y.T, out)
            assert_gemm_close(out.get(), a, w.T)
        hg.matmul(y, x.T, far_apart[:, 512:576].T)
        assert_gemm_close(far_apart[:, 512:576].get().T, w, a.T)
        assert not hg.usage().copies


def test_batches_beyond_4_gib(far_apart, rng):
    values = exact_grid((10, 32, 64), rng)
    far = far_apart.reshape(10, 32, -1)[..., 64:128]
    hg.matmul(hg.asarray(values), hg.asarray(np.eye(64).astype(BF16)), far)
    w = exact_grid((10, 64, 24), rng, bits=2)
    assert_gemm_close(hg.matmul(far, hg.asarray(w), dtype=F32).get(), values, w, exact=True)
    w = exact_grid((10, 32, 24), rng, bits=2)
    assert_gemm_close(hg.matmul(far.mT, hg.asarray(w), dtype=F32).get(), values.swapaxes(1, 2), w, exact=True)
    assert not hg.usage().copies


def test_rows_reversed_beyond_4_gib(far_apart, rng):
    values, w = exact_grid((320, 64), rng), exact_grid((64, 64), rng, bits=2)
    far = far_apart[:, 64:128]
    hg.matmul(hg.asarray(values), hg.asarray(np.eye(64).astype(BF16)), far)
    transposed = hg.matmul(far[::-1], hg.asarray(w).T, dtype=F32).get()  # through a copy
    assert_gemm_close(transposed, values[::-1], w.T, exact=True)


@pytest.mark.matrix("bf16")
def test_pitches_that_no_tile_spans(rng):
    """A pitch of 64 MiB: copied, or read by the plain kernel if that is requested."""
    store = hg.empty((70, 2**25), BF16)
    values, w = exact_grid((70, 64), rng), exact_grid((24, 64), rng, bits=2)
    far = store[:, 64:128]
    hg.matmul(hg.asarray(values), hg.asarray(np.eye(64).astype(BF16)), far)
    assert ("matmul", "out", "row pitch too large") in hg.usage().copies
    got = hg.matmul(far, hg.asarray(w).T, dtype=F32).get()
    assert_gemm_close(got, values, w.T, exact=True)
    assert ("matmul", "a", "row pitch too large") in hg.usage().copies
    store.free()


def kernels_at_their_limits():
    """One kernel for each tile of bf16, alternating the layouts."""
    gemms = [k for k in KERNELS.values() if k.op == "gemm" and k.a == "bf16"]
    tiles = {tile: [k for k in gemms if k.tile == tile] for tile in sorted({k.tile for k in gemms})}
    return [found[i % len(found)] for i, found in enumerate(tiles.values())]


@pytest.mark.parametrize("kernel", kernels_at_their_limits(), ids=lambda k: k.name)
def test_the_farthest_lines_that_a_tile_spans(kernel, rng, use_kernel):
    store = hg.empty(5 * 2**30, np.uint8)  # mostly not touched

    def far(lines, along, tile_vectors):
        """Lines at the largest pitch that the kernel reads in place, on both sides of the edge of a tile."""
        pitch = (2**31 - 1) // tile_vectors // 16 * 16
        return hg.DeviceArray(store._block, store.ptr, (lines, along), (pitch, 2), BF16)

    for side in (0, 1):
        strided = k_strided(kernel, side)
        lines, along = (kernel.tile[2], 40) if strided else (kernel.tile[side], 64)
        values, x = exact_grid((lines + 3, along), rng, bits=2), far(lines + 3, along, lines)
        use_kernel("plain")
        hg.matmul(hg.asarray(values), hg.asarray(np.eye(along).astype(BF16)), x)  # writes the values
        x, want = (x.T, values.T) if strided else (x, values)
        other = exact_grid((24, x.shape[1]), rng, bits=2)
        y = hg.asarray(np.asfortranarray(other) if k_strided(kernel, 1 - side) else other)
        use_kernel(kernel.name)
        hg.reset_usage()
        if side == 0:
            assert_gemm_close(hg.matmul(x, y.T, dtype=F32).get(), want, other.T, exact=True)
        else:
            assert_gemm_close(hg.matmul(y, x.T, dtype=F32).get(), other, want.T, exact=True)
        assert all(operand != "ab"[side] for _, operand, _ in hg.usage().copies)
    rows = kernel.tile[0]
    a, b = exact_grid((rows + 3, 64), rng, bits=2), exact_grid((64, 24), rng, bits=2)
    out = far(rows + 3, 24, rows)
    hg.matmul(hg.asarray(a), hg.asarray(b), out)
    assert_gemm_close(out.get(), a, b, exact=True)
    assert all(operand != "out" for _, operand, _ in hg.usage().copies)
    assert hg.usage().kernels[kernel.name] == 2
    store.free()
