"""The quantizer kernels alone, bit for bit against the reference, and nothing written outside the results."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
from gemm_launch import launch_in_order
from test_kernels import TYPES
from test_kernels import memory as memory
from test_kernels_scaled import gemm_order

import hipgemm
from hipgemm import reference
from hipgemm.formats.elements import FORMATS, QUANTIZED, SCALE_RULES, format_of
from hipgemm.formats.philox import key_of
from hipgemm.formats.scaled import packed_data
from hipgemm.kernels import launch as _launch
from hipgemm.kernels.manifest import code_object
from hipgemm.runtime import hip as _hip

ELEMENTS = ("e4m3", "e5m2")
MX = [name for name, form in QUANTIZED.items() if form.block]
LAYOUTS = ("row", "column", "reversed", "stepped", "shifted")


# ---- inputs ----------------------------------------------------------------------------------------


def in_layout(x, layout):
    """The values of x as a view into a larger array with NaN around them."""
    rows, cols = x.shape
    if layout == "far":
        return x.base, x
    if layout == "column":
        base = np.full((cols, rows + 8), np.nan, x.dtype)
        view = base[:, :rows].T
    elif layout == "reversed":
        base = np.full((rows, cols + 3), np.nan, x.dtype)
        view = base[::-1, :cols][:, ::-1]
    elif layout == "stepped":
        base = np.full((2 * rows, 3 * cols), np.nan, x.dtype)
        view = base[::2, 1::3]
    elif layout == "shifted":
        base = np.full((rows, cols + 5), np.nan, x.dtype)
        view = base[:, 3 : cols + 3]
    else:
        base = np.full((rows, -(-cols // 8) * 8 + 8), np.nan, x.dtype)
        view = base[:, :cols]
    view[...] = x
    return base, view


@functools.cache
def wild(shape, dtype, seed=0, *, special=True):
    """Every magnitude from subnormal to near overflow, signed zeros; now and then NaN or infinity."""
    rng = np.random.default_rng([*shape, seed])
    rows, cols = shape
    top = 15.0 if dtype == np.float16 else 127.0
    # Each group of 8 columns at a magnitude of its own, within which the values are close.
    exponent = rng.uniform(-top - 20, top, (rows, -(-cols // 8))).repeat(8, axis=1)[:, :cols]
    x = rng.standard_normal(shape) * np.exp2(np.where(rng.random(shape) < 0.7, 0.0, exponent))
    block = rng.uniform(-top - 24, top - 3, (rows, -(-cols // 32))).repeat(32, axis=1)[:, :cols]
    x = np.where(rng.random((rows, 1)) < 0.5, rng.standard_normal(shape) * np.exp2(block), x)
    x[rng.random(shape) < 0.05] = 0.0
    x[rng.random(shape) < 0.02] = -0.0
    if special:
        x[rng.random(shape) < 0.0004] = np.nan
        x[rng.random(shape) < 0.0004] = -np.inf
    with np.errstate(over="ignore"):
        x = x.astype(np.float32).astype(dtype)
    x = x if special else np.where(np.isfinite(x), x, dtype.type(1))
    x.flags.writeable = False
    return x


def upload(memory, x, layout):
    base, view = in_layout(x, layout)
    return memory.put(base) + view.ctypes.data - base.ctypes.data, view.strides


def filled(memory, nbytes):
    return memory.put(np.full(nbytes, 0xA5, np.uint8))


def taken(memory, pointer, rows, pitch, used):
    """The used bytes of each row; the others are unchanged."""
    got = memory.get(pointer, np.empty((rows, pitch), np.uint8))
    assert (got[:, used:] == 0xA5).all(), "written outside the result"
    return got[:, :used]


def workgroups(rows, cols, tile=(64, 128)):
    return -(-rows // tile[0]) * -(-cols // tile[1])


def unpacked(data, bits):
    """One element per byte."""
    if bits == 8:
        return data
    if bits == 4:
        return np.stack((data & 15, data >> 4), axis=-1).reshape(len(data), -1)
    each = np.unpackbits(data, axis=1, bitorder="little")
    each = each[:, : each.shape[1] // bits * bits].reshape(len(data), -1, bits)
    return (each << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8)


def same_codes(got, expected):
    """Equal bytes, or NaN both."""
    expected = np.asarray(expected)
    nan = np.isnan(expected.astype(np.float32))
    with np.errstate(invalid="ignore"):
        got_nan = np.isnan(got.view(expected.dtype).astype(np.float32))
    return np.array_equal(nan, got_nan) and np.array_equal(got[~nan], expected.view(np.uint8)[~nan])


# ---- MX --------------------------------------------------------------------------------------------


def quantize_mx(memory, x, layout="row", form="mxfp8_e4m3", rule="unit", transform=False, sides="rc"):
    """Run the kernel; per side its elements (one per byte), logical scales, and scales in GEMM order."""
    rows, cols = x.shape
    src, strides = upload(memory, x, layout)
    bits = QUANTIZED[form].bits
    outputs, pitches, launched = [], [], []
    for side, lines, k in (("r", rows, cols), ("c", cols, rows)):
        if side not in sides:
            outputs += [0, 0, 0]
            pitches += [0, 0]
            continue
        used, blocks = -(-k * bits // 128) * 16, -(-k // 32)
        pitch, scale_pitch = used + 16, lines + 3
        step = -(-lines // 16) * 16
        size = max(1, -(-k // 256)) * 8 * step
        data, scale, order = (filled(memory, n) for n in (lines * pitch, blocks * scale_pitch, size + 16))
        outputs += [data, scale, order]
        pitches += [pitch, scale_pitch]
        launched.append((lines, k, used, pitch, blocks, scale_pitch, size, data, scale, order))
    covered = [rows, cols]
    if "c" in sides:
        covered[0] = -(-rows // 256) * 256
    if "r" in sides:
        covered[1] = -(-cols // 256) * 256
    types = {np.float32: "_f32", np.float16: "_f16" if form == "mxfp4_e2m1" else ""}
    name = f"quantize_{form.split('_')[0]}"
    special = name in code_object(_hip.arch(0)).kernels  # else one kernel reads all types
    kernel = _launch.function(0, name + (types.get(x.dtype.type, "") if special else "_f32"))
    launch_in_order(
        kernel,
        workgroups(*covered, kernel.tile),
        0,
        *(src, *outputs, *strides, *pitches, rows, cols),
        *(format_of(x.dtype), QUANTIZED[form], rule, int(transform)),
    )
    results = []
    for lines, k, used, pitch, blocks, scale_pitch, size, data, scale, order in launched:
        codes = unpacked(taken(memory, data, lines, pitch, used), bits)
        bytes_ = taken(memory, scale, blocks, scale_pitch, lines).T.copy()
        ordered = taken(memory, order, 1, size + 16, size)[0]
        pointer, _ = gemm_order(memory, bytes_, k, code_object(_hip.arch(0)).own_k_tile(form))
        # Both conversions to GEMM order agree, padding included.
        assert np.array_equal(ordered, memory.get(pointer, np.empty(size, np.uint8)))
        nan_block = np.repeat(bytes_ == 255, 32, axis=1)[:, k:]
        nan_block = np.pad(nan_block, [(0, 0), (0, max(0, codes.shape[1] - k - nan_block.shape[1]))])
        assert (codes[:, k:][~nan_block[:, : codes.shape[1] - k]] == 0).all(), "padding is zero"
        results.append((codes[:, :k], bytes_))
    return results


def check_mx(memory, x, *, form="mxfp8_e4m3", sides="rc", **options):
    results = quantize_mx(memory, x, form=form, sides=sides, **options)
    rule = options.get("rule", "unit")
    more = {"hadamard": options["transform"]} if "transform" in options else {}
    for side, (codes, scale) in zip(sides, results, strict=True):
        q = reference.quantize(x if side == "r" else x.T, form, scaling=rule, **more)
        assert np.array_equal(scale, np.asarray(q.scale).view(np.uint8)), side
        assert same_codes(codes, q.data), side


SHAPES = [(1, 1), (64, 128), (37, 33), (5, 300), (130, 31), (70, 257), (300, 160)]


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", MX)
def test_mx_rules(memory, form, dtype, rule):
    for seed, shape in enumerate(SHAPES):
        check_mx(memory, wild(shape, TYPES[dtype], seed), form=form, rule=rule)


@pytest.mark.parametrize("dtype", TYPES)
def test_mx_hadamard(memory, dtype):
    for shape in ((16, 16), (48, 144), (80, 272), (304, 64)):
        for rule in SCALE_RULES:
            check_mx(memory, wild(shape, TYPES[dtype]), form="mxfp4_e2m1", transform=True, rule=rule)


def test_mx_hadamard_of_subnormal_numbers(memory, rng):
    """The transform's factor is part of the scale, except where its product would be rounded."""
    x = rng.standard_normal((64, 64)).astype(np.float32) * np.exp2(np.arange(-149, -85.0))[:, None]
    for dtype in (np.dtype(np.float32), TYPES["bf16"]):
        for rule in SCALE_RULES:
            check_mx(memory, x.astype(dtype), form="mxfp4_e2m1", transform=True, rule=rule)


def test_bands_of_tiles(memory, rng):
    """More rows than one band has, and a partial last band."""
    band = 32 * _launch.function(0, "quantize_mxfp8_f32").tile[0]
    for rows, cols in ((2 * band + 300, 40), (band + 128, 130), (band, 257)):
        x = rng.standard_normal((rows, cols)).astype(ml_dtypes.bfloat16)
        check_mx(memory, x)
        for step in (0, 1):
            own = np.abs(x.astype(np.float32))
            got = amax(memory, x, "row", step)
            np.testing.assert_array_equal(got, own.max(axis=1) if step else own.max())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
def test_mx_of_any_layout(memory, dtype, layout):
    for shape in SHAPES:
        x = wild(shape, TYPES[dtype], 3)
        for sides in ("r", "c", "rc"):
            check_mx(memory, x, layout=layout, sides=sides, rule="rceil")
        for form in ("mxfp4_e2m1", "mxfp6_e2m3"):
            check_mx(memory, x, layout=layout, form=form, rule="even")


def test_rows_too_far_apart_for_offsets_within_a_tile(memory):
    base = np.zeros((2, 2**24), ml_dtypes.bfloat16)
    base[:, :40] = wild((2, 40), base.dtype)
    (codes, scale), _ = quantize_mx(memory, base[:, :40], layout="far")
    q = reference.quantize_mxfp8(base[:, :40])
    assert np.array_equal(scale, np.asarray(q.scale).view(np.uint8))
    assert same_codes(codes, q.data)


@pytest.mark.parametrize("rule", SCALE_RULES)
@pytest.mark.parametrize("form", MX)
def test_every_bf16_as_the_maximum_of_a_block_and_near_scale_one(memory, form, rule):
    every = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16)
    alone = np.zeros((256, 32 * 256), ml_dtypes.bfloat16)
    alone[:, ::32] = every.reshape(256, 256)
    check_mx(memory, alone, sides="r", rule=rule, form=form)
    finite = np.where(np.isfinite(every.astype(np.float32)), every, every.dtype.type(0))
    for scale in (1.0, 2.0**100, 2.0**-120):
        near_scale = np.full((2048, 33), scale, ml_dtypes.bfloat16)[:, :32]
        small = np.abs(finite.astype(np.float32)) < scale
        near_scale[...] = np.where(small, finite, near_scale.dtype.type(scale)).reshape(2048, 32)
        near_scale[:, 0] = scale
        check_mx(memory, near_scale, sides="r", rule=rule, form=form)


def test_every_tie_of_float32(memory):
    """All values of the format, the midpoints between them, and the floats next to those."""
    for form in MX:
        known = QUANTIZED[form]
        codes = np.arange(2**known.bits, dtype=np.uint8).view(known.dtype).astype(np.float64)
        grid = np.unique(codes[np.isfinite(codes)])
        points = np.concatenate((grid, (grid[1:] + grid[:-1]) / 2)).astype(np.float32)
        points = np.concatenate(
            (points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, -np.float32(np.inf)))
        )
        points = points[np.abs(points) <= grid.max()]
        lines = -(-points.size // 31)
        x = np.zeros((lines, 32), np.float32)
        x[:, 1:] = np.resize(points, (lines, 31))
        x[:, 0] = grid.max()
        check_mx(memory, x, sides="r", form=form, rule="floor")


# ---- fp8 -------------------------------------------------------------------------------------------


def amax(memory, x, layout, step):
    rows, cols = x.shape
    src, strides = upload(memory, x, layout)
    target = memory.put(np.zeros(rows if step else 1, np.float32))
    kind = format_of(x.dtype)
    launch_in_order(
        _launch.function(0, "amax"), workgroups(rows, cols), 0, src, target, *strides, rows, cols, step, kind
    )
    return memory.get(target, np.empty(rows if step else 1, np.float32))


def quantize_fp8(memory, x, used, *, layout="row", element="e4m3", eps=1e-8, delayed=None):
    rows, cols = x.shape
    src, strides = upload(memory, x, layout)
    step = int(used.size > 1)
    used_bytes = -(-cols // 16) * 16
    pitch = used_bytes + 16
    data = filled(memory, rows * pitch)
    scale = memory.put(np.full(used.size, 7, np.float32))
    following = 0 if delayed is None else memory.put(delayed)
    launch_in_order(
        _launch.function(0, "quantize_fp8"),
        workgroups(rows, cols),
        0,
        *(src, data, memory.put(used), scale, following, *strides, pitch, rows, cols, step, eps),
        *(format_of(x.dtype), QUANTIZED[f"fp8_{element}"]),
    )
    codes = taken(memory, data, rows, pitch, used_bytes)
    after = None if delayed is None else memory.get(following, delayed)
    return codes, memory.get(scale, used), after


def check_fp8(memory, x, *, axis=None, given=None, **options):
    own = amax(memory, x, options.get("layout", "row"), int(axis is not None))
    used = own if given is None else np.asarray(given, np.float32).reshape(-1)
    codes, scale, after = quantize_fp8(memory, x, used, delayed=np.zeros_like(used), **options)
    q = reference.quantize_fp8(
        x,
        given,
        axis=axis,
        eps=options.get("eps", 1e-8),
        format=f"fp8_{options.get('element', 'e4m3')}",
    )
    expected = np.asarray(q.amax, np.float32).reshape(-1)
    assert np.array_equal(own, expected, equal_nan=True)
    assert np.array_equal(after, expected, equal_nan=True)
    assert np.array_equal(scale, np.asarray(q.scale).reshape(-1), equal_nan=True)
    assert same_codes(codes[:, : x.shape[1]], q.data)
    if np.isfinite(scale).all():
        assert (codes[:, x.shape[1] :] == 0).all()


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axis", [None, -1])
def test_fp8(memory, axis, dtype, element):
    for seed, shape in enumerate(((2, 1), *SHAPES[1:])):
        for special in (False, True):
            x = wild(shape, TYPES[dtype], seed, special=special)
            check_fp8(memory, x, axis=axis, element=element)
            check_fp8(memory, x, axis=axis, element=element, eps=0.0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fp8_of_any_layout(memory, layout):
    for dtype in TYPES.values():
        for shape in SHAPES[1:]:
            check_fp8(memory, wild(shape, dtype, 4, special=False), axis=-1, layout=layout)
            check_fp8(memory, wild(shape, dtype, 4), layout=layout)


@pytest.mark.parametrize("element", ELEMENTS)
def test_fp8_with_a_given_amax(memory, element):
    x = wild((40, 140), np.dtype(np.float32), 5)
    for given in (0.0, 1e-44, 1e-38, 2.0**-100, 2.0**-99, 0.3, 448.0, 3e38, np.inf, np.nan):
        for eps in (0.0, 1e-8):
            check_fp8(memory, x, given=np.array(given, np.float32), element=element, eps=eps)


def test_tiny_tensors_without_eps(memory):
    for power in (-149, -148, -141, -140, -127, -126, -120, -101, -100, -99):
        x = (np.random.default_rng(1).standard_normal((3, 50)) * 2.0**power).astype(np.float32)
        check_fp8(memory, x, eps=0.0)
        check_fp8(memory, x, eps=0.0, axis=-1)
    check_fp8(memory, np.zeros((3, 50), np.float32), eps=0.0)


def test_the_order_of_scaling_changes_below_a_limit(memory):
    """Just below 2^-100 the division is done first, which is visible in values near ties of e4m3."""
    grid = np.arange(1, 127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    ties = (grid[1:] + grid[:-1]) / 2
    top = np.float32(448)
    reported = 0
    for given in np.float32(np.array([1.1, 1.3, 1.7, 1.9]) * 2.0**-101):
        x = (ties * (float(given) / 448)).astype(np.float32)
        x = np.stack(
            [(x.view(np.uint32) + np.uint32(step)).view(np.float32) for step in (0, 1, 2, 2**32 - 1)]
        )
        check_fp8(memory, x, given=given, eps=0.0)
        check_fp8(memory, x * np.float32(4), given=given * np.float32(4), eps=0.0)
        first = (x / given * top).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        reported += int((first != (x * (top / given)).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).sum())
    assert reported


def test_next_amax_accumulates(memory):
    x = np.full((70, 200), -3.0, np.float32)
    _, _, after = quantize_fp8(memory, x, np.array([4.0], np.float32), delayed=np.array([5.0], np.float32))
    assert after == 5
    _, _, after = quantize_fp8(memory, x, np.array([4.0], np.float32), delayed=np.array([2.0], np.float32))
    assert after == 3


# ---- bytes moved -----------------------------------------------------------------------------------


def moved(run):
    """Bytes of memory traffic of the quantizers in a function's launches."""
    hipgemm.emulator_counters(reset=True, addresses=True)
    try:
        run()
        _hip.synchronize()
    finally:
        counters = hipgemm.emulator_counters(addresses=False)
    each = [launch.counters for launch in counters.each if launch.kernel != "mx_gemm_scale"]
    return sum(x.global_read_bytes + x.global_written_bytes + x.global_atomic_bytes for x in each)


@pytest.mark.emulator("counters of memory traffic")
def test_bytes_moved_are_near_each_rule_s_floor(memory):
    x = np.random.default_rng(0).standard_normal((256, 512)).astype(ml_dtypes.bfloat16)
    used = {step: np.full(256 if step else 1, 3, np.float32) for step in (0, 1)}
    floors = {
        "mxfp8": (lambda: quantize_mx(memory, x, sides="r"), 3 + 1 / 32),
        "mxfp8 along columns": (lambda: quantize_mx(memory, x, sides="c"), 3 + 1 / 32),
        "mxfp8 both": (lambda: quantize_mx(memory, x), 4 + 2 / 32),
        "mxfp4": (lambda: quantize_mx(memory, x, sides="r", form="mxfp4_e2m1", transform=True), 2.5 + 1 / 32),
        "mxfp4 both": (lambda: quantize_mx(memory, x, form="mxfp4_e2m1", transform=True), 3 + 2 / 32),
        "mxfp6": (lambda: quantize_mx(memory, x, sides="r", form="mxfp6_e2m3"), 2.75 + 1 / 32),
        "mxfp6 both": (lambda: quantize_mx(memory, x, form="mxfp6_e2m3"), 3.5 + 2 / 32),
        "amax": (lambda: amax(memory, x, "row", 0), 2),
        "amax of rows": (lambda: amax(memory, x, "row", 1), 2),
        "fp8": (lambda: quantize_fp8(memory, x, used[0]), 3),
        "fp8 delayed": (lambda: quantize_fp8(memory, x, used[0], delayed=used[0]), 3),
        "fp8 of rows": (lambda: quantize_fp8(memory, x, used[1], delayed=used[1]), 3),
    }
    for name, (run, floor) in floors.items():
        per_value = moved(run) / x.size
        assert floor <= per_value <= 1.05 * floor, (name, per_value, floor)


# ---- dequantization --------------------------------------------------------------------------------------


def dequantize(memory, q, out, gap=0):
    """Run the kernel on an array quantized along its last axis."""
    rows, cols = q.shape
    packed = packed_data(q).view(np.uint8)
    data = np.zeros((rows, -(-packed.shape[1] // 16) * 16), np.uint8)
    data[:, : packed.shape[1]] = packed
    scale = np.ascontiguousarray(np.asarray(q.scale))
    strides = (scale.shape[1], 1) if q.format.startswith("mx") else (4 * (scale.size > 1), 0)
    item = TYPES[out].itemsize
    dst_pitch = (cols + gap) * item
    target = filled(memory, rows * dst_pitch)
    launch_in_order(
        _launch.function(0, "dequantize"),
        workgroups(rows, cols),
        0,
        *(memory.put(data), memory.put(scale.view(np.uint8)), target, data.shape[1], *strides, dst_pitch),
        *(rows, cols, QUANTIZED[q.format], FORMATS[out], int(q.hadamard), rows, 1, 0),
        *(int(q.signs is not None), *key_of(q.signs or 0), q.signs_start),
    )
    got = taken(memory, target, rows, dst_pitch, cols * item)
    return np.ascontiguousarray(got).view(TYPES[out])


@pytest.mark.parametrize("out", TYPES)
def test_dequantize(memory, out):
    for seed, shape in enumerate((*SHAPES, (48, 144))):
        x = wild(shape, np.dtype(np.float32), seed)
        x = np.full_like(x, -3.0) if shape == (1, 1) else x
        arrays = [
            reference.quantize_mxfp8(x, format=f"mxfp8_{element}", scaling=rule)
            for element in ELEMENTS
            for rule in ("unit", "rceil")
        ]
        arrays += [reference.quantize_fp8(x, np.float32(10), format=f"fp8_{element}") for element in ELEMENTS]
        arrays += [reference.quantize_fp8(x, axis=-1), reference.quantize_mxfp4(x, hadamard=False)]
        arrays += [reference.quantize_mxfp6(x, format=f"mxfp6_{element}") for element in ("e2m3", "e3m2")]
        if shape[1] % 16 == 0:
            arrays += [reference.quantize_mxfp4(x), reference.quantize_mxfp4(x, signs=3)]
            arrays += [arrays[-1][:, 32:]] * (shape[1] > 32)
        for q in arrays:
            expected = reference.dequantize(q, dtype=TYPES[out])
            for gap in (0, 1, 8):
                got = dequantize(memory, q, out, gap)
                with np.errstate(invalid="ignore"):
                    nan = np.isnan(expected.astype(np.float32))
                    assert np.array_equal(np.isnan(got.astype(np.float32)), nan)
                size = f"u{TYPES[out].itemsize}"
                assert np.array_equal(got.view(size)[~nan], expected.view(size)[~nan]), (q, gap)


def test_dequantize_every_code_and_scale(memory):
    for form in MX:
        codes = np.arange(2 ** QUANTIZED[form].bits, dtype=np.uint8).view(QUANTIZED[form].dtype)
        data = np.tile(codes, (256, 256 // len(codes)))
        scale = np.tile(np.arange(256, dtype=np.uint8)[:, None], (1, 8)).view(ml_dtypes.float8_e8m0fnu)
        q = hipgemm.ScaledArray(data, scale, form)
        expected = reference.dequantize(q)
        assert np.array_equal(dequantize(memory, q, "f32"), expected, equal_nan=True)
