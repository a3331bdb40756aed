"""Batches, and products whose K is split, at the level of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_launch import GEMMS, SCHEDULES, TYPES, Memory, Product, examples, launch

from hipgemm.formats.elements import F32
from hipgemm.runtime import hip as _hip


@pytest.fixture
def memory():
    made = Memory()
    yield made
    made.free()


FORMATS = ("bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1")
LINES = examples(["mxfp6_e3m2"], ["LineRing"])
EXAMPLES = examples(FORMATS, SCHEDULES) + LINES
each_kind = pytest.mark.parametrize("kernel", EXAMPLES)
each_tile = pytest.mark.parametrize(
    "kernel", [k.name for k in GEMMS.values() if k.layout == "nt" and k.a == k.b and k.a in FORMATS] + LINES
)


def check(memory, kernel, m, n, k, *runs, batches=((1, 1), (1, 1)), rows=False):
    """Exact products, bit for bit; `runs` are the options of each launch."""
    drawn = Product.draw(GEMMS[kernel], m, n, k, a_batch=batches[0], b_batch=batches[1], row_scales=rows)
    product, _ = drawn.expected()
    for options in runs or ({},):
        factor = options.get("alpha", 1.0) * np.float64(options.get("col_scale", 1.0))
        expected = product * factor + np.asarray(options.get("bias", 0.0), np.float64)
        with np.errstate(over="ignore"):
            expected = expected.astype(TYPES[options.get("out", "f32")])
        assert np.array_equal(drawn.run(memory, **options), expected), options


@each_tile
def test_edges(memory, kernel):
    """One more and one less than a tile, along M and N."""
    tile_m, tile_n, tile_k = GEMMS[kernel].tile
    for m, n, k in (
        (1, 1, 8),
        (tile_m, tile_n, tile_k),
        (tile_m + 1, tile_n - 1, 2 * tile_k - 8),
        (tile_m - 1, tile_n + 1, 3 * tile_k),
        (7, 2 * tile_n + 3, 4 * tile_k + 40),
        (2 * tile_m + 5, 1, 32),
    ):
        check(memory, kernel, m, n, k, {}, {"out": "bf16", "gap": 0, "bias": np.arange(n, dtype=np.float32)})


@each_kind
@pytest.mark.parametrize("k_tiles", [1, 2, 3, 4, 5, 8, 9])
def test_every_split(memory, kernel, k_tiles):
    """None to five splits, an odd and an even number of tiles, the last one full or partial."""
    size = GEMMS[kernel].tile[2]
    splits = [{"split_tiles": tiles} for tiles in range(0, k_tiles + 2, 2)]
    for rest in (0, size - 8, 32):
        check(memory, kernel, 37, 70, size * k_tiles - rest, *splits)
    check(memory, kernel, 300, 17, size * k_tiles, splits[-1])


@each_kind
def test_splits_are_finished_once(memory, kernel):
    """Scales, alpha, col_scale and bias apply to the sum, which is rounded once."""
    rng = np.random.default_rng(1)
    n, k = 70, GEMMS[kernel].tile[2] * 5
    col_scale = np.exp2(rng.integers(-5, 6, n)).astype(np.float32)
    runs = []
    for out in TYPES:
        for bias_type in TYPES.values():
            bias = rng.integers(-64, 65, n).astype(bias_type)
            runs.append({"out": out, "split_tiles": 2, "alpha": -0.25, "col_scale": col_scale, "bias": bias})
        runs.append({"out": out, "split_tiles": 4})
    check(memory, kernel, 20, n, k, *runs, rows=True)
    check(memory, kernel, 20, n, k, {"split_tiles": 4})


def test_splits_are_added_in_order(memory):
    sums = np.array([2.0**24, 1, -(2.0**24)], np.float32)  # 1 is lost in the first sum only
    c = memory.put(np.full(1, np.nan, np.float32))
    launch(
        "split_reduce",
        1,
        src=memory.put(sums),
        src_ld=1,
        splits=3,
        split_stride=4,
        dst=c,
        ldc=1,
        m=1,
        n=1,
        batch_inner=1,
        alpha=1.0,
        out_type=F32,
    )
    assert memory.get(c, np.empty(1, np.float32)) == 0


@each_kind
def test_batches(memory, kernel):
    """Two levels, either operand shared at either level, with gaps between entries."""
    k = GEMMS[kernel].tile[2] + 32
    for a, b in (
        ((1, 5), (1, 5)),
        ((2, 3), (2, 3)),
        ((3, 1), (3, 2)),
        ((1, 2), (3, 2)),
        ((2, 3), (1, 1)),
        ((1, 3), (2, 1)),
    ):
        check(memory, kernel, 37, 70, k, {}, {"split_tiles": 2}, batches=(a, b))
    check(memory, kernel, 300, 270, 64, {"out": "bf16", "gap": 0}, batches=((2, 2), (1, 2)), rows=True)


@each_kind
def test_any_numbers_stay_in_the_bound(memory, kernel):
    k = GEMMS[kernel].tile[2] * 7 - 40
    drawn = Product.draw(GEMMS[kernel], 70, 65, k, a_batch=(1, 2), exact=False, row_scales=True)
    expected, magnitude = drawn.expected()
    for split_tiles in (0, 2, 4):
        error = np.abs(drawn.run(memory, split_tiles=split_tiles) - expected)
        assert (error <= (k + 6) * 2.0**-24 * magnitude + 2.0**-24 * np.abs(expected)).all()


@pytest.mark.emulator("orders of workgroups and waves")
@each_kind
def test_same_bits_in_any_order(memory, kernel, emulator, monkeypatch):
    """In every order of workgroups, waves and threads."""
    drawn = Product.draw(GEMMS[kernel], 70, 65, GEMMS[kernel].tile[2] * 5, b_batch=(1, 2), exact=False)
    first = drawn.run(memory, split_tiles=2)
    try:
        for threads, order in ((1, b"reverse"), (2, b"forward"), (3, b"random:1"), (2, b"random:2")):
            monkeypatch.setenv("HIPGEMM_EMULATOR_THREADS", str(threads))
            assert emulator.hipgemm_emulator_set_waves(order) == 0
            again = drawn.run(memory, split_tiles=2)
            assert again.tobytes() == first.tobytes(), (threads, order)
    finally:
        emulator.hipgemm_emulator_set_waves(None)


@pytest.mark.matrix("bf16")
def test_a_tile_as_large_as_offsets_reach(memory):
    """64 rows of almost 32 MiB. The end of K is masked although offsets beyond 2**31 lie in the buffer."""
    rows, k = 64, 2**24 - 8
    pitch = 2 * k
    a, b = (int(_hip.call("hipMalloc", size)) for size in (rows * pitch, pitch))
    memory.pointers += [a, b]

    def put(address, x):
        _hip.copy("HostToDevice", address, x.ctypes.data, x.nbytes, 0)
        _hip.synchronize()

    first, last = np.zeros(64, TYPES["bf16"]), np.ones(k % 64, TYPES["bf16"])
    for row in range(rows):
        put(a + row * pitch, first)
        put(a + (row + 1) * pitch - last.nbytes, last * row)
    put(b, first)
    put(b + pitch - last.nbytes, last)
    put(a + rows * pitch - 8192, np.full(4000, np.nan, TYPES["bf16"]))  # of another K tile
    c = memory.put(np.full(rows, np.nan, np.float32))
    # The first of many splits: the last K tile and the first one.
    launch(
        next(name for name in GEMMS if name.startswith("gemm_bf16_nt_64x64")),
        1,
        a=a,
        b=b,
        c=c,
        lda=k,
        ldb=k,
        ldc=1,
        m=rows,
        n=1,
        k=k,
        alpha=1.0,
        batch_inner=1,
        splits=2**17,
        split_tiles=2,
        out_type=F32,
    )
    got = memory.get(c, np.empty(rows, np.float32))
    assert np.array_equal(got, np.arange(rows) * len(last))
