"""The fp8 and MX kernels alone: every shape, format and scale, in memory that ends where the operands end."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
from cases import each
from gemm_launch import ELEMENTS, GEMMS, LARGE_AND_SMALL, examples, launch_in_order, stored
from test_kernels import EDGES, TYPES, unsigned
from test_kernels import memory as memory

from hipgemm.formats.elements import FORMATS, QUANTIZED, format_of
from hipgemm.kernels import launch as _launch

KERNELS = {
    name: k
    for name, k in GEMMS.items()
    if k.op == "scaled_gemm" and k.layout == "nt" and not k.b.endswith("_block")
}
PAIRS = dict.fromkeys((k.a, k.b) for k in KERNELS.values())
OTHERS = (  # pairs of other bits than these, which stand for all of their bits
    ("mxfp8_e4m3", "mxfp6_e2m3"),
    ("mxfp4_e2m1", "mxfp8_e5m2"),
    ("mxfp6_e3m2", "mxfp6_e2m3"),
    ("mxfp6_e2m3", "mxfp4_e2m1"),
    ("bf16", "fp8_e4m3"),
    ("bf16", "mxfp8_e5m2"),
    ("bf16", "mxfp6_e2m3"),
    ("bf16", "mxfp4_e2m1"),
)
EXAMPLES = examples(("fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1", *OTHERS), LARGE_AND_SMALL)
# The largest and the smallest tile of each pair of MX formats, and of those with bfloat16.
MX_KERNELS = [
    tile(found, key=lambda k: k.tile[:2]).name
    for tile in (max, min)
    for pair in PAIRS
    if QUANTIZED[pair[1]].block
    for found in [[k for k in KERNELS.values() if (k.a, k.b) == pair]]
]

every_kernel = pytest.mark.parametrize("kernel", KERNELS)
each_kind = pytest.mark.parametrize("kernel", EXAMPLES)
each_mx = pytest.mark.parametrize("kernel", MX_KERNELS)
each_fp8 = pytest.mark.parametrize("kernel", [name for name in EXAMPLES if name.startswith("gemm_fp8")])


def draw(form, rows, k, rng, exact):
    """Elements of a format: small integers, or any finite values of moderate size."""
    x = rng.integers(-3, 4, (rows, k)) if exact else rng.standard_normal((rows, k))
    return x.astype(np.float32).astype(ELEMENTS[form])


def storage(codes, chunk, ld):
    """Rows in device memory: zeros to 16 bytes, NaN (or 6) to ld, nothing after the last row."""
    full = stored(codes, chunk, ld)
    row = -(-codes.shape[1] // chunk) * chunk * full.shape[1] // ld
    return full.reshape(-1)[: max(1, (len(full) - 1) * full.shape[1] + row)]


def gemm_order(memory, scale, k, k_tile):
    """Scale bytes (rows, blocks) in the order that the kernels read; NaN around them in the source."""
    rows, blocks = scale.shape
    source = np.full((rows + 1, blocks + 2), 255, np.uint8)
    source[:rows, 1 : blocks + 1] = scale
    step = -(-rows // 16) * 16
    size = max(1, -(-k // 256)) * 8 * step
    target = memory.put(np.full(size, 255, np.uint8))
    function = _launch.function(0, "mx_gemm_scale")
    launch_in_order(
        function,
        -(-size // 4 // function.tile[0]),
        0,
        memory.put(source) + 1,
        target,
        *(blocks + 2, 1, rows, k, step, k_tile, 1, 1),
    )
    return target, step


def gemm(
    memory,
    kernel,
    a,
    b,
    a_scale,
    b_scale,
    *,
    out="bf16",
    gap=0,
    alpha=1.0,
    device_alpha=None,
    col_scale=None,
    bias=None,
):
    """a @ b.T of elements with their scales; memory around C must not change."""
    about = KERNELS[kernel]
    (m, k), n = a.shape, b.shape[0]
    chunks = about.chunk(0), about.chunk(1)
    lda, ldb = (max(1, -(-k // c)) * c + (i + 1) * gap * c for i, c in enumerate(chunks))
    ldc = n + gap
    start, end = 8, 8 + (m - 1) * ldc + n
    before = np.full(end + 8, np.nan, dtype=TYPES[out])
    c = memory.put(before)
    scales = []
    for s in (a_scale, b_scale):
        if s is None:
            scales.append((0, 0))
        elif s.dtype == np.uint8:
            scales.append(gemm_order(memory, s, k, about.tile[2]))
        else:
            scales.append((memory.put(s), int(s.size > 1)))
    function = _launch.function(0, kernel)
    launch_in_order(
        function,
        -(-m // function.tile[0]) * -(-n // function.tile[1]),
        0,
        memory.put(storage(a, chunks[0], lda)),
        memory.put(storage(b, chunks[1], ldb)),
        c + start * before.itemsize,
        0 if device_alpha is None else memory.put(np.array([device_alpha], np.float32)),
        0 if col_scale is None else memory.put(col_scale),
        0 if bias is None else memory.put(bias),
        *(lda, ldb, ldc),
        *(0, 0, 0, 0, 0, 0, 0),  # strides of batch and splits
        *(m, n, k, 1, 1, 0, alpha, FORMATS[out]),
        0 if bias is None else format_of(bias.dtype),
        *(scales[0][0], scales[1][0], scales[0][1], scales[1][1], 0, 0, 0, 0),
    )
    after = memory.get(c, before)
    inside = np.zeros(after.shape, bool)
    where = start + np.arange(m)[:, None] * ldc + np.arange(n)
    inside[where] = True
    assert np.array_equal(unsigned(after)[~inside], unsigned(before)[~inside]), "written outside C"
    return after[where]


def values(codes, scale):
    """The values of elements and scales, in float64."""
    if scale is None:
        return codes.astype(np.float64)
    if scale.dtype == np.uint8:
        scale = np.where(scale == 255, np.nan, np.exp2(scale.astype(np.float64) - 127))
        scale = np.repeat(scale, 32, axis=1)[:, : codes.shape[1]]
    else:
        scale = scale.reshape(-1, 1).astype(np.float64)
    return codes.astype(np.float64) * scale


def draw_scale(form, rows, k, rng, exact, per_row=False):
    if form not in QUANTIZED:
        return None
    if QUANTIZED[form].block:
        low, high = (126, 130) if exact else (100, 150)
        return rng.integers(low, high, (rows, -(-k // 32))).astype(np.uint8)
    count = rows if per_row else 1
    return np.exp2(rng.integers(-3, 4, count)).astype(np.float32) * np.float32(1 if exact else 1.1)


@functools.lru_cache(maxsize=64)  # kernels of the same formats follow each other
def example_of(forms, m, n, k, exact, rows):
    """Operands with their scales, their product in float64, and that of magnitudes."""
    rng = np.random.default_rng([m, n, k])
    operands = [draw(form, count, k, rng, exact) for form, count in zip(forms, (m, n), strict=True)]
    scales = [
        draw_scale(form, count, k, rng, exact, per_row)
        for form, count, per_row in zip(forms, (m, n), rows, strict=True)
    ]
    left, right = map(values, operands, scales)
    return *operands, *scales, left @ right.T, np.abs(left) @ np.abs(right.T)


def check(memory, kernel, m, n, k, *, exact=False, out="bf16", rows=(False, False), **options):
    about = KERNELS[kernel]
    *operands, product, magnitudes = example_of((about.a, about.b), m, n, k, exact, rows)
    got = gemm(memory, kernel, *operands, out=out, **options).astype(np.float64)
    factor = options.get("device_alpha")
    factor = np.float64(np.float32(options.get("alpha", 1.0) if factor is None else factor))
    col_scale, bias = options.get("col_scale"), options.get("bias")
    factor = factor * (1.0 if col_scale is None else col_scale.astype(np.float64))
    bias = 0.0 if bias is None else bias.astype(np.float64)
    ref = product * factor + bias
    if exact:
        assert np.array_equal(got, ref.astype(TYPES[out]).astype(np.float64))
        return
    count = k + 4
    gamma = count * 2.0**-24 / (1 - count * 2.0**-24)
    summed = gamma * (magnitudes * np.abs(factor) + np.abs(bias))
    unit, tiny = {"bf16": (2.0**-8, 2.0**-134), "f16": (2.0**-11, 2.0**-25), "f32": (2.0**-24, 2.0**-150)}[
        out
    ]
    bound = summed + unit * (np.abs(ref) + summed) + tiny
    fine = np.abs(got - ref) <= bound
    if out == "f16":
        fine |= np.isinf(got) & (np.abs(ref) + bound >= 65504)
    assert fine.all(), np.argwhere(~fine)[:5]


SHAPES = [
    (m, EDGES[(i + j) % len(EDGES)], k)
    for i, m in enumerate(EDGES)
    for j, k in enumerate((1, 31, 32, 33, 96, 128, 160, 520, 1664))
]


@each("kernel, m, n, k", [(name, *shape) for name in EXAMPLES for shape in SHAPES[::2]], by="kernel")
def test_ragged_shapes(memory, kernel, m, n, k):
    check(memory, kernel, m, n, k)


@every_kernel
def test_every_format_pair(memory, kernel):
    for m, n, k in ((70, 131, 200), (257, 17, 1032), (37, 300, 33)):
        check(memory, kernel, m, n, k)
        check(memory, kernel, m, n, k, exact=True, out="f32", gap=1)


@each("kernel, tiles", itertools.product(EXAMPLES, range(1, 10)), by="kernel")
def test_every_number_of_k_tiles(memory, kernel, tiles):
    size = KERNELS[kernel].tile[2]
    rests = (0, 32, size - 16)
    for rest in rests if tiles < 4 else rests[tiles % 3 :][:1]:
        check(memory, kernel, 70, 90, size * tiles - rest, exact=True, out="f32")


@each_kind
def test_no_k_gives_the_bias(memory, kernel):
    check(memory, kernel, 33, 300, 0, exact=True, out="f32", bias=np.arange(300, dtype=np.float32))


@each_kind
@pytest.mark.parametrize("out", TYPES)
def test_epilogue(memory, kernel, out):
    rng = np.random.default_rng(3)
    m, n, k = 70, 301, 72
    bias = rng.standard_normal(n).astype(TYPES[out])
    col_scale = np.exp2(rng.integers(-5, 6, n)).astype(np.float32)
    check(memory, kernel, m, n, k, out=out, alpha=-0.37, gap=1)
    check(memory, kernel, m, n, k, out=out, alpha=99.0, device_alpha=2.0**-60)
    check(memory, kernel, m, n, k, out=out, alpha=1.25, col_scale=col_scale, bias=bias)


@each_fp8
def test_scales_of_rows_and_columns(memory, kernel):
    for rows in ((True, False), (False, True), (True, True)):
        for m, n in ((70, 301), (257, 64), (1, 1)):
            check(memory, kernel, m, n, 136, rows=rows)
            check(memory, kernel, m, n, 136, rows=rows, exact=True, out="f32")


@each_fp8
def test_product_of_scales_is_formed_first(memory, kernel):
    """With one scale alone the sum would leave float32's range."""
    one = np.ones((4, 16), ELEMENTS["fp8_e4m3"])
    for scales in ((2.0**-140, 2.0**120), (2.0**126, 2.0**-130)):
        a_scale, b_scale = (np.array([x], np.float32) for x in scales)
        got = gemm(memory, kernel, one * 448, one * 448, a_scale, b_scale, out="f32")
        assert (got == 16 * 448.0 * 448.0 * scales[0] * scales[1]).all()
    # And so are the bits, whether the scales are in the usual range or not.
    rng = np.random.default_rng(9)
    a_scale, b_scale = (rng.uniform(1, 2, 70).astype(np.float32) for _ in "ab")
    a, b = (rng.integers(-4, 5, (70, 96)).astype(np.float32) for _ in "ab")
    wanted = (a @ b.T) * (a_scale[:, None] * b_scale)
    coded = a.astype(ELEMENTS[KERNELS[kernel].a]), b.astype(ELEMENTS[KERNELS[kernel].b])
    for exponent in (0, 60):
        unusual = a_scale * np.float32(2.0**exponent), b_scale * np.float32(2.0**-exponent)
        assert np.array_equal(gemm(memory, kernel, *coded, *unusual, out="f32"), wanted)


@pytest.mark.parametrize("kernel", examples(["fp8_e4m3", ("fp8_e5m2", "fp8_e4m3")], LARGE_AND_SMALL))
def test_every_pair_of_codes(memory, kernel):
    """Inf and NaN included, each alone among zeros of both signs."""
    about = KERNELS[kernel]
    codes = np.arange(256, dtype=np.uint8)
    for at, k in ((0, 16), (77, 128), (255, 256)):
        a, b = (np.full((256, k), 0x80, np.uint8) for _ in range(2))
        b[:, ::2] = 0
        a[:, at] = b[:, at] = codes
        a, b = a.view(ELEMENTS[about.a]), b.view(ELEMENTS[about.b])
        with np.errstate(invalid="ignore"):
            wanted = np.outer(*(x[:, at].astype(np.float32) for x in (a, b)))
        got = gemm(memory, kernel, a, b, None, None, out="f32")
        np.testing.assert_array_equal(got, wanted)


@each_mx
def test_every_scale_byte_serves_its_own_block(memory, kernel):
    """A row of A selects one block of B, or has another power of two in each: detects any wrong byte."""
    about = KERNELS[kernel]
    rng = np.random.default_rng(8)
    for rows, k in ((300, 1664), (70, 1280)):
        blocks = k // 32
        pick = rng.integers(0, blocks, rows)
        a = np.zeros((rows, k), np.float32)
        a[np.arange(rows), 32 * pick + rng.integers(0, 32, rows)] = 1
        b = np.ones((rows, k), np.float32)
        a_scale = rng.integers(107, 147, (rows, blocks)).astype(np.uint8)
        b_scale = rng.integers(107, 147, (rows, blocks)).astype(np.uint8)
        if about.a == "bf16":
            a_scale[:] = 127
        a, b = a.astype(ELEMENTS[about.a]), b.astype(ELEMENTS[about.b])
        got = gemm(memory, kernel, a, b, None if about.a == "bf16" else a_scale, b_scale, out="f32")
        exponent = a_scale[np.arange(rows), pick].astype(int)[:, None] + b_scale[:, pick].T - 254
        assert np.array_equal(got, np.exp2(exponent.astype(np.float64)))


@each_mx
def test_nan_scales_stay_in_their_rows_and_columns(memory, kernel):
    about = KERNELS[kernel]
    rng = np.random.default_rng(9)
    a, b = draw(about.a, 130, 288, rng, True), draw(about.b, 70, 288, rng, True)
    a_scale, b_scale = np.full((130, 9), 127, np.uint8), np.full((70, 9), 127, np.uint8)
    if about.a == "bf16":
        a_scale = None
    clean = gemm(memory, kernel, a, b, a_scale, b_scale, out="f32")
    if a_scale is None:
        a[129, 287] = np.nan
    else:
        a_scale[129, 8] = 255
    b_scale[3, 0] = 255
    got = gemm(memory, kernel, a, b, a_scale, b_scale, out="f32")
    assert np.isnan(got[129]).all()
    assert np.isnan(got[:, 3]).all()
    rest = [x for x in range(70) if x != 3]
    assert np.array_equal(got[:129, rest], clean[:129, rest])


OTHER_MODES = {
    "test_kernels_scaled": "k_tiles or product_of_scales",
    "test_kernels_quantize": "any_layout and (bf16 or f32) or given",
    "test_stages": "every_tile or groups or results and not plain",
}


@pytest.mark.matrix
@pytest.mark.emulator("sanitizers, memory modes")
@pytest.mark.skipif("HIPGEMM_EMULATOR_MODES" in os.environ, reason="runs the tests of this file itself")
@pytest.mark.parametrize("setting", ["MEMORY=early", "CHECK=all"])
def test_in_other_modes_of_the_emulator(setting):
    """Loads may also complete at once; the sanitizers find nothing. One process: each collects all tests."""
    name, _, value = setting.partition("=")
    folder = os.path.dirname(__file__)
    files = [os.path.join(folder, f"{file}.py") for file in OTHER_MODES]
    chosen = " or ".join(f"{file} and ({tests})" for file, tests in OTHER_MODES.items())
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files, "-k", chosen],
        env={**os.environ, f"HIPGEMM_EMULATOR_{name}": value, "HIPGEMM_EMULATOR_MODES": "tested"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


# ---- layouts of scales -----------------------------------------------------------------------------


def test_public_packing(memory):
    rng = np.random.default_rng(4)
    for rows, blocks in ((1, 1), (37, 5), (300, 8), (5, 0)):
        scale = rng.integers(0, 256, (rows, blocks)).astype(np.uint8)
        words = np.zeros((-(-blocks // 4), rows), np.uint32)
        if not words.size:
            continue
        target = memory.put(np.full(words.size + 1, 0xDEADBEEF, np.uint32))
        function = _launch.function(0, "pack_mx_scales")
        workgroups = -(-words.size // function.tile[0])
        # From a transposed source, too.
        for source, strides in ((scale, (blocks, 1)), (np.ascontiguousarray(scale.T), (1, rows))):
            launch_in_order(function, workgroups, 0, memory.put(source), target, *strides, rows, blocks)
            full = np.full((rows, 4 * len(words)), 127, np.uint8)
            full[:, :blocks] = scale
            got = memory.get(target, np.zeros(words.size + 1, np.uint32))
            assert np.array_equal(got[:-1].reshape(words.shape), full.view("<u4").T)
            assert got[-1] == 0xDEADBEEF
