"""Products of operands that are contiguous across K, and of f16, kernel by kernel."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import pytest
from gemm_launch import ELEMENTS, GEMMS, LARGE_AND_SMALL, TYPES, Memory, Product, examples, launch

import hipgemm
from hipgemm.formats.elements import F32
from hipgemm.kernels.manifest import Kernel
from hipgemm.runtime import hip as _hip

KERNELS = [name for name, k in GEMMS.items() if k.layout != "nt" or k.a == "f16"]
every_kernel = pytest.mark.parametrize("name", KERNELS)
# One of each layout and element size.
EXAMPLES = examples(("bf16", "fp8_e4m3"), LARGE_AND_SMALL[-1:], ("nn", "nt", "tn", "tt"))
each_layout = pytest.mark.parametrize("name", EXAMPLES)


@pytest.fixture
def memory():
    made = Memory()
    yield made
    made.free()


def check(memory, name, m, n, k, *, out="f32", **options):
    """Exact products, bit for bit; NaN in the padding of rows, after the last one, and around C."""
    drawn = Product.draw(GEMMS[name], m, n, k, row_scales=True)
    got = drawn.run(memory, out=out, **options)
    assert np.array_equal(got, drawn.expected()[0].astype(TYPES[out])), (m, n, k, out)


def ragged(kernel: Kernel) -> Iterator[tuple[int, int, int]]:
    tile_m, tile_n, tile_k = kernel.tile
    yield from ((1, 1, 1), (1, tile_n + 1, 200), (tile_m + 1, 1, 65))
    yield from ((tile_m - 1, tile_n + 1, 63), (tile_m + 1, tile_n - 1, 7), (13, 101, 1))
    yield from ((tile_m, tile_n, 3 * tile_k), (tile_m + 7, 2 * tile_n + 3, 4 * tile_k + 1))


@every_kernel
def test_ragged_shapes(memory, name):
    for i, (m, n, k) in enumerate(ragged(GEMMS[name])):
        check(memory, name, m, n, k, out=list(TYPES)[i % 3], gap=i % 2)


@every_kernel
def test_every_element_of_k_meets_its_partner(memory, name):
    """Row i of A selects one k: C must be that row of B, which encodes its columns, then its rows."""
    kernel = GEMMS[name]
    k, names = 256, 8  # a format may have few values, so 0 .. 255 are encoded by their digits
    pick = np.random.default_rng(5).permutation(k)
    a = np.zeros((1, 1, k, k), np.float32)
    a[..., np.arange(k), pick] = 1
    index = np.arange(k, dtype=np.float32)
    one, blocks = np.ones((1, 1, 1), np.float32), np.ones((1, 1, k, k // 128), np.float32)
    scales = [blocks if form.endswith("_block") else one for form in (kernel.a, kernel.b)]
    for digit in (index % names, index // names % names, index // names**2):
        for b in (np.tile(digit[:, None], (1, k)), np.tile(digit, (k, 1))):  # (N, K)
            codes = (a.astype(ELEMENTS[kernel.a]), b[None, None].astype(ELEMENTS[kernel.b]))
            got = Product(kernel, *codes, *scales).run(memory)
            assert np.array_equal(got[0, 0], b.T[pick])


@every_kernel
def test_any_numbers_stay_in_the_bound(memory, name):
    k = GEMMS[name].tile[2] * 3 - 41
    drawn = Product.draw(GEMMS[name], 70, 65, k, exact=False, row_scales=True)
    expected, magnitude = drawn.expected()
    error = np.abs(drawn.run(memory) - expected)
    assert (error <= (k + 6) * 2.0**-24 * magnitude + 2.0**-24 * np.abs(expected)).all()


@each_layout
def test_batches_splits_and_what_follows_the_sum(memory, name):
    n = 101
    rng = np.random.default_rng(1)
    col_scale = np.exp2(rng.integers(-5, 6, n)).astype(np.float32)
    bias = rng.integers(-64, 65, n).astype(np.float32)
    more = {"alpha": -0.25, "col_scale": col_scale, "bias": bias}
    for k in (63, 5 * GEMMS[name].tile[2] - 1, 6 * GEMMS[name].tile[2]):
        for a_batch, b_batch in (((1, 1), (2, 2)), ((2, 2), (1, 2))):
            drawn = Product.draw(GEMMS[name], 37, n, k, a_batch=a_batch, b_batch=b_batch)
            expected = drawn.expected()[0] * -0.25 * col_scale + bias
            for out, split_tiles in zip(TYPES, (0, 2, 4), strict=True):
                got = drawn.run(memory, out=out, split_tiles=split_tiles, **more)
                assert np.array_equal(got, expected.astype(TYPES[out]))


@every_kernel
def test_c_at_any_pitch(memory, name):
    for n, gap in ((1, 1), (7, 0), (8, 1), (63, 2), (72, 0), (130, 3)):
        for out in TYPES:
            check(memory, name, 20, n, 65, out=out, gap=gap)


# ---- operands that are views -----------------------------------------------------------------------


def stored(kernel: Kernel, side: int, x: np.ndarray) -> np.ndarray:
    """An operand (rows, K) in the kernel's layout."""
    return x if kernel.layout[side] == "nt"[side] else x.T


def multiply(memory, name, a, b, m, n, k, splits=1):
    """C by address and ld of the operands; of a split K, the sum of the parts."""
    tiles = max(1, -(-k // GEMMS[name].tile[2]))
    c = memory.put(np.full((splits, m, n), np.nan, np.float32))
    launch(
        name,
        -(-m // GEMMS[name].tile[0]) * -(-n // GEMMS[name].tile[1]) * splits,
        a=a[0],
        lda=a[1],
        b=b[0],
        ldb=b[1],
        c=c,
        ldc=n,
        m=m,
        n=n,
        k=k,
        batch_inner=1,
        alpha=1.0,
        out_type=F32,
        splits=splits,
        split_tiles=-(-(tiles + tiles % 2) // splits),
        split_stride=m * n * 4,
    )
    return memory.get(c, np.empty((splits, m, n), np.float32)).sum(0)


@each_layout
@pytest.mark.parametrize("k", [7, 64, 135, 200, 256])
def test_more_rows_and_columns_around_the_operands(memory, name, k):
    """NaN before and after, in every direction: in the array, but not part of the product."""
    kernel = GEMMS[name]
    m, n, more = 70, 65, 64
    # A contiguous K is padded to a multiple of 16 bytes.
    k = k if kernel.layout == "tn" else -(-k // kernel.chunk(0)) * kernel.chunk(0)
    drawn = Product.draw(kernel, m, n, k)
    placed = []
    for side, x in enumerate((drawn.a, drawn.b)):
        inside = stored(kernel, side, x[0, 0])
        rows, columns = (size + more + more for size in inside.shape)
        columns = -(-columns // kernel.chunk(0)) * kernel.chunk(0)
        full = np.full((rows, columns), np.nan, x.dtype)
        full[more : more + inside.shape[0], more : more + inside.shape[1]] = inside
        placed.append((memory.put(full) + (more * columns + more) * x.itemsize, columns))
    got = multiply(memory, name, *placed, m, n, k)
    unscaled = drawn.a[0, 0].astype(np.float64) @ drawn.b[0, 0].astype(np.float64).T
    assert np.array_equal(got, unscaled)


@each_layout
def test_no_k_gives_zeros(memory, name):
    """No memory may be read."""
    nothing = memory.put(np.full(16, 0x7F, np.uint8)), 64
    assert np.array_equal(multiply(memory, name, nothing, nothing, 70, 65, 0), np.zeros((70, 65)))


@each_layout
def test_operands_beyond_4_gib(memory, device_memory, name):
    """The largest pitch of rows: a tile spans just less than 2 GiB, an operand several."""
    kernel = GEMMS[name]
    m, n, k = kernel.tile[0] + 6, 2 * kernel.tile[1] + 2, 5 * kernel.tile[2] + 16
    drawn = Product.draw(kernel, m, n, k)
    with contextlib.ExitStack() as stack:
        placed = []
        for side, x in enumerate((drawn.a, drawn.b)):
            lines = np.ascontiguousarray(stored(kernel, side, x[0, 0]))
            in_tile = kernel.tile[side] if kernel.layout[side] == "nt"[side] else kernel.tile[2]
            pitch = (2**31 - 1) // in_tile // 16 * 16
            assert pitch * len(lines) > 2**31
            device_memory(pitch * len(lines))
            space = int(_hip.call("hipMalloc", pitch * len(lines)))
            stack.callback(_hip.call, "hipFree", space)
            for i, line in enumerate(lines):
                _hip.copy("HostToDevice", space + i * pitch, line.ctypes.data, line.nbytes, 0)
            _hip.synchronize()
            placed.append((space, pitch // x.itemsize))
        unscaled = drawn.a[0, 0].astype(np.float64) @ drawn.b[0, 0].astype(np.float64).T
        for splits in (1, 3):
            assert np.array_equal(multiply(memory, name, *placed, m, n, k, splits), unscaled)


# ---- emulator modes --------------------------------------------------------------------------------


@pytest.mark.emulator("sanitizers, memory modes")
def test_clean_under_every_check(memory, emulator):
    """Ragged tiles; in other orders: tests/emulator/test_check_kernels.py."""
    assert emulator.hipgemm_emulator_set_memory(b"random:3") == 0
    assert emulator.hipgemm_emulator_set_waves(b"random:5") == 0
    assert emulator.hipgemm_emulator_set_check(b"all") == 0
    try:
        for name in KERNELS:
            check(memory, name, 70, 65, 200)
            check(memory, name, 257, 7, 3 * GEMMS[name].tile[2] - 1, out="bf16")
            memory.free()
    finally:
        emulator.hipgemm_emulator_set_memory(None)
        emulator.hipgemm_emulator_set_waves(None)
        emulator.hipgemm_emulator_set_check(b"")


@pytest.mark.emulator("counters of LDS clocks")
@every_kernel
def test_lds_accesses_meet_no_bank_twice(memory, name):
    kernel = GEMMS[name]
    drawn = Product.draw(kernel, *kernel.tile[:2], 4 * kernel.tile[2])
    hipgemm.emulator_counters(reset=True, addresses=True)
    try:
        drawn.run(memory)
    finally:
        counted = hipgemm.emulator_counters(addresses=False)
    assert counted.lds_conflict_clocks == 0
    assert counted.lds_read_bytes > 0
    width = 64 if kernel.schedule == "SingleBuffer" else 128  # bytes per clock of a port
    assert counted.lds_data_clocks * width == counted.lds_read_bytes + counted.lds_written_bytes


@pytest.mark.emulator("counters of memory traffic")
@pytest.mark.parametrize("name", [name for name in EXAMPLES if GEMMS[name].op == "gemm"])  # without scales
def test_nothing_past_the_edges_is_fetched(memory, name):
    """Reads are chunks of 16 bytes; in the last line of a K-strided operand they end with its last dword.

    Through registers, a K-strided operand is read by the elements of two or four rows.
    """
    kernel = GEMMS[name]
    m, n, k = 13, 33, 2 * kernel.tile[2] + 3
    drawn = Product.draw(kernel, m, n, k)
    hipgemm.emulator_counters(reset=True, addresses=True)
    try:
        drawn.run(memory)
    finally:
        counted = hipgemm.emulator_counters(addresses=False)
    expected = 0
    for side, rows in enumerate((m, n)):
        if kernel.layout[side] == "nt"[side]:
            expected += rows * (-(-k // kernel.chunk(side)) * 16)
        else:
            staged = kernel.schedule == "SingleBuffer"
            read = kernel.tile[side] * 8 // kernel.threads if staged else kernel.chunk(side)
            expected += (k - 1) * (-(-rows // read) * read * 2) + -(-rows // 2) * 4
    assert counted.global_read_bytes == expected
