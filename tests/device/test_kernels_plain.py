"""The plain kernel alone: every format and pair of them, every stride, and nothing written outside C."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gemm_launch import ELEMENTS, KERNELS, TYPES, UNWRITTEN, Memory, launch

from hipgemm import ScaledArray, reference, testing
from hipgemm.formats import elements
from hipgemm.formats.elements import format_of
from hipgemm.kernels.launch import Value
from hipgemm.runtime import hip as _hip

FORMATS = {**elements.FORMATS, **elements.QUANTIZED}
MX = [name for name, form in elements.QUANTIZED.items() if form.block]
LAYOUTS = ("row", "column", "reversed", "stepped", "no_tail_padding")
TILE = KERNELS["plain_gemm"].tile


@pytest.fixture
def memory():
    made = Memory()
    yield made
    made.free()


# ---- operands --------------------------------------------------------------------------------------


@dataclass
class Side:
    """One operand: elements (outer, inner, rows, K) of a format. Scales: floats (outer, inner, rows or 1, 1),
    bytes (outer, inner, rows, blocks), or none."""

    format: str
    codes: np.ndarray
    scale: np.ndarray | None = None

    def entry(self, outer: int, inner: int) -> np.ndarray | ScaledArray:
        """One matrix, as the reference takes it."""
        codes = self.codes[outer % self.codes.shape[0], inner % self.codes.shape[1]]
        if self.scale is None:
            return codes
        scale = self.scale[outer % self.scale.shape[0], inner % self.scale.shape[1]]
        return ScaledArray(codes, scale if len(scale) == len(codes) else scale.reshape(()), self.format)


def draw(
    form: str,
    rng: np.random.Generator,
    rows: int,
    k: int,
    batch: tuple[int, int] = (1, 1),
    *,
    exact: bool = True,
    row_scales: bool = False,
) -> Side:
    """Small integers and powers of two, whose products are exact in any order; or arbitrary values."""
    x = rng.integers(-3, 4, (*batch, rows, k)) if exact else rng.standard_normal((*batch, rows, k))
    codes = x.astype(np.float32).astype(ELEMENTS[form])
    if form.startswith("mx"):
        low, high = (126, 130) if exact else (117, 138)
        return Side(form, codes, rng.integers(low, high, (*batch, rows, -(-k // 32))).astype(np.uint8))
    if not form.startswith("fp8"):
        return Side(form, codes)
    scale = np.exp2(rng.integers(-3, 4, (*batch, rows if row_scales else 1, 1))).astype(np.float32)
    return Side(form, codes, scale * np.float32(1 if exact else 1.1))


def layouts(shape: tuple[int, ...], dtype: np.dtype, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """A view (outer, inner, rows, columns) into a larger array of NaN, and that array as bytes. Tight: the
    array ends with the last element, so that reads beyond it fault."""
    outer, inner, rows, columns = shape
    if layout == "column":
        full = (outer, inner + 1, columns + 2, rows + 3)
        place = np.s_[:, :inner, 1 : columns + 1, 2 : rows + 2]
    elif layout == "stepped":
        full, place = (inner, outer, 2 * rows, 3 * columns), np.s_[:, :, ::2, 1::3]
    elif layout == "no_tail_padding":
        full, place = shape, np.s_[...]
    else:
        full, place = (outer, inner + 1, rows + 1, columns + 3), np.s_[:, :inner, :rows, 3 : columns + 3]
    size = int(np.prod(full)) * dtype.itemsize
    base = np.full(max(1, size), UNWRITTEN, np.uint8)
    view = base[:size].view(dtype).reshape(full)[place]
    if layout == "column":
        view = view.swapaxes(-1, -2)
    elif layout == "stepped":
        view = view.swapaxes(0, 1)
    elif layout == "reversed":
        view = view[:, :, ::-1, ::-1]
    return base, view


def put(memory: Memory, x: np.ndarray, layout: str) -> tuple[int, list[int]]:
    """Address and byte strides; a batch axis of 1 is broadcast."""
    base, view = layouts(x.shape, x.dtype, layout)
    view[...] = x
    offset = view.ctypes.data - base.ctypes.data if x.size else 0
    strides = list(view.strides)
    for axis in (0, 1):
        strides[axis] *= x.shape[axis] > 1
    return memory.put(base) + offset, strides


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes of `bits` bits along the last axis, in whole bytes. The bits after the last one are set."""
    each = codes.view(np.uint8)[..., None] >> np.arange(bits, dtype=np.uint8) & 1
    each = each.reshape(*codes.shape[:-1], codes.shape[-1] * bits)
    end = [(0, 0)] * (each.ndim - 1) + [(0, -each.shape[-1] % 8)]
    return np.packbits(np.pad(each, end, constant_values=1), axis=-1, bitorder="little")


def operand(memory: Memory, side: Side, name: str, layout: str) -> dict[str, Value]:
    """The kernel's arguments for one side."""
    row = "row" if name == "a" else "col"
    codes, bits = side.codes, FORMATS[side.format].bits
    if bits < 8:
        codes = packed(codes, bits)
    pointer, strides = put(memory, codes, layout)
    keys = (f"{name}_outer", f"{name}_inner", f"{name}_{row}", f"{name}_k")
    found = {name: pointer, f"{name}_format": FORMATS[side.format], **dict(zip(keys, strides, strict=True))}
    if side.scale is not None:
        pointer, strides = put(memory, side.scale, layout)
        if side.scale.dtype == np.float32:
            strides = [s if n > 1 else 0 for s, n in zip(strides, side.scale.shape, strict=True)]
        keys = (f"{name}_scale_{x}" for x in ("outer", "inner", row, "block"))
        found |= {f"{name}_scale": pointer, **dict(zip(keys, strides, strict=True))}
    return found


def product(
    memory: Memory,
    a: Side,
    b: Side,
    *,
    out: str = "f32",
    layout: tuple[str, ...] = ("row", "row", "row"),
    alpha: float = 1.0,
    extra: int = 0,
    **epilogue: Any,
) -> np.ndarray:
    """A B^T for each entry of the batch; memory around C must not change."""
    (m, k), n = a.codes.shape[-2:], b.codes.shape[-2]
    outer, inner = np.broadcast_shapes(a.codes.shape[:2], b.codes.shape[:2])
    base, c = layouts((outer, inner, m, n), TYPES[out], layout[2])
    pointer = memory.put(base)
    values: dict[str, Value] = {"alpha": alpha, "out_type": FORMATS[out]}
    for name, x in epilogue.items():
        values[name] = memory.put(np.asarray(x))
    if "bias" in epilogue:
        values["bias_type"] = format_of(epilogue["bias"].dtype)
    launch(
        "plain_gemm",
        -(-m // TILE[0]) * -(-n // TILE[1]) * outer * inner + extra,
        **operand(memory, a, "a", layout[0]),
        **operand(memory, b, "b", layout[1]),
        **values,
        **dict(zip(("c_outer", "c_inner", "c_row", "c_col"), c.strides, strict=True)),
        c=pointer + c.ctypes.data - base.ctypes.data,
        m=m,
        n=n,
        k=k,
        batch_inner=inner,
        batches=outer * inner,
    )
    base[...] = memory.get(pointer, base)
    got = c.copy()
    c.view(f"u{c.itemsize}")[...] = int.from_bytes(bytes([UNWRITTEN] * c.itemsize), "little")
    assert (base == UNWRITTEN).all(), "written outside C"
    return got


def target(c: int, row: int, col: int, m: int, n: int, k: int) -> dict[str, Value]:
    """The other arguments of one float32 product."""
    shape = {"m": m, "n": n, "k": k, "batch_inner": 1, "batches": 1}
    return shape | {"c": c, "c_row": row, "c_col": col, "alpha": 1.0, "out_type": FORMATS["f32"]}


def check(memory: Memory, a: Side, b: Side, *, exact=True, device_alpha=None, **options: Any) -> None:
    """Every entry against the reference."""
    if device_alpha is not None:
        options |= {"alpha_ptr": np.float32([device_alpha])}
    got = product(memory, a, b, **options)
    alpha = options.get("alpha", 1.0) if device_alpha is None else device_alpha
    factors = {"alpha": alpha, "col_scale": options.get("col_scale"), "bias": options.get("bias")}
    for o, i in itertools.product(*map(range, got.shape[:2])):
        x, y = a.entry(o, i), b.entry(o, i).T
        testing.assert_gemm_close(got[o, i], x, y, exact=exact, **factors)


# ---- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("b", FORMATS)
@pytest.mark.parametrize("a", FORMATS)
def test_every_pair_of_formats(memory, a, b):
    rng = np.random.default_rng(1)
    m, n, k = 70, 67, 75
    check(memory, draw(a, rng, m, k), draw(b, rng, n, k, row_scales=True))
    x, y = draw(a, rng, m, k, exact=False, row_scales=True), draw(b, rng, n, k, exact=False)
    check(memory, x, y, exact=False, out="bf16")


@pytest.mark.parametrize("form", FORMATS)
def test_every_code(memory, form):
    """Every value of the format, times one."""
    bits = 16 if form == "f32" else FORMATS[form].bits
    codes = np.arange(2**bits).astype(f"u{min(ELEMENTS[form].itemsize, 2)}")
    if form == "f32":
        codes = codes.astype(np.uint32) << 16 | 1
    codes = codes.view(ELEMENTS[form])[None, None, :, None]
    scale = np.full((1, 1, 2**bits, 1), 127, np.uint8) if form.startswith("mx") else None
    one = Side("f32", np.ones((1, 1, 1, 1), np.float32))
    expected = codes[0, 0].astype(np.float32)
    for got in (
        product(memory, Side(form, codes, scale), one)[0, 0],
        product(memory, one, Side(form, codes, scale))[0, 0].T,
    ):
        assert np.array_equal(np.isnan(got), np.isnan(expected))
        assert np.array_equal(got[~np.isnan(got)], expected[~np.isnan(expected)])


@pytest.mark.parametrize("form", MX)
def test_every_scale_byte(memory, form):
    """All pairs: 2^-127 is a scale, 255 is NaN, and only the product of both must be in range."""
    every = np.arange(256, dtype=np.uint8).reshape(1, 1, 256, 1)
    largest, smallest = FORMATS[form].maximum, FORMATS[form].smallest_subnormal
    for x, y in itertools.product((largest, smallest), repeat=2):
        a, b = (Side(form, np.full((1, 1, 256, 1), v).astype(ELEMENTS[form]), every) for v in (x, y))
        got = product(memory, a, b)[0, 0]
        powers = every.reshape(-1).astype(np.float64) - 127
        with np.errstate(over="ignore"):
            expected = (x * y * np.exp2(powers[:, None] + powers)).astype(np.float32)
        expected[255] = expected[:, 255] = np.nan
        assert np.array_equal(got, expected, equal_nan=True)


def test_scales_of_their_own_blocks(memory):
    """A distinct power of two for every row and block, which B selects one by one: detects permutations."""
    rows, blocks = 40, 5
    powers = np.random.default_rng(2).permutation(rows * blocks).reshape(1, 1, rows, blocks) + 20
    ones = np.ones((1, 1, rows, 32 * blocks), ELEMENTS["mxfp8_e4m3"])
    a = Side("mxfp8_e4m3", ones, powers.astype(np.uint8))
    for form in ("f32", "mxfp8_e5m2", "mxfp4_e2m1", "mxfp6_e2m3"):
        pick = np.zeros((1, 1, blocks, 32 * blocks), np.float32)
        pick[..., np.arange(blocks), 32 * np.arange(blocks) + 7] = 1
        scale = None if form == "f32" else np.full((1, 1, blocks, blocks), 127, np.uint8)
        for layout in LAYOUTS:
            b = Side(form, pick.astype(ELEMENTS[form]), scale)
            got = product(memory, a, b, layout=(layout, layout, "row"))
            assert np.array_equal(got[0, 0], np.exp2(powers[0, 0] - 127.0))


def test_nan_and_infinity_stay_in_their_rows_and_columns(memory):
    rng = np.random.default_rng(6)
    a, b = draw("bf16", rng, 130, 100), draw("fp8_e5m2", rng, 70, 100)
    a.codes[0, 0, :, 0] = 1
    clean_a, clean_b = Side("bf16", a.codes.copy()), Side("fp8_e5m2", b.codes.copy(), b.scale)
    clean_b.codes[0, 0, 3, 0] = 0
    a.codes[0, 0, 129, 99], b.codes[0, 0, 3, 0] = np.nan, np.inf
    got, clean = product(memory, a, b)[0, 0], product(memory, clean_a, clean_b)[0, 0]
    assert np.isnan(got[129]).all()
    assert np.isposinf(got[:129, 3]).all()
    assert np.array_equal(np.delete(got[:129], 3, axis=1), np.delete(clean[:129], 3, axis=1))


def test_a_scale_that_is_nan_spoils_its_row(memory):
    rng = np.random.default_rng(7)
    a, b = draw("mxfp4_e2m1", rng, 70, 100), draw("mxfp8_e4m3", rng, 66, 100)
    clean = product(memory, a, b)[0, 0]
    a.scale[0, 0, 69, 3], b.scale[0, 0, 1, 0] = 255, 255
    got = product(memory, a, b)[0, 0]
    assert np.isnan(got[69]).all()
    assert np.isnan(got[:, 1]).all()
    assert np.array_equal(np.delete(got[:69], 1, axis=1), np.delete(clean[:69], 1, axis=1))


# ---- shapes, strides, batches ----------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 2, 31, 32, 33, 64, 100])
def test_ragged_shapes(memory, k):
    rng = np.random.default_rng(k)
    for (m, n), form in zip(
        ((1, 1), (1, 130), (65, 1), (63, 64), (64, 65), (129, 5), (66, 67), (5, 64)),
        ("bf16", "mxfp4_e2m1", "f16", "mxfp8_e4m3", "fp8_e4m3", "f32", "mxfp6_e2m3", "mxfp6_e3m2"),
        strict=True,
    ):
        bias = rng.integers(-9, 9, n).astype(np.float32)
        check(memory, draw(form, rng, m, k), draw(form, rng, n, k), bias=bias)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_strides(memory, form, layout):
    rng = np.random.default_rng(8)
    for other, to in zip(LAYOUTS, ("stepped", "reversed", "no_tail_padding", "column", "row"), strict=True):
        a, b = draw(form, rng, 67, 45, row_scales=True), draw(form, rng, 70, 45)
        check(memory, a, b, layout=(layout, other, to))
        check(memory, b, a, layout=(other, layout, layout), out="bf16")


@pytest.mark.parametrize("form", ["bf16", "f32", "mxfp8_e5m2"])
def test_rows_and_numbers_repeated_by_a_stride_of_zero(memory, form):
    rng = np.random.default_rng(9)
    a, b = draw(form, rng, 70, 64), draw(form, rng, 5, 64)
    for axis, strides in ((2, {"a_row": 0}), (3, {"a_k": 0})):
        repeated = np.repeat(a.codes.take([0], axis), a.codes.shape[axis], axis)
        values = operand(memory, a, "a", "row") | strides
        c = memory.put(np.full((70, 5), np.nan, np.float32))
        launch(
            "plain_gemm",
            2,
            **values,
            **operand(memory, b, "b", "column"),
            **target(c, 20, 4, 70, 5, 64),
        )
        got = memory.get(c, np.empty((70, 5), np.float32))
        entry = Side(form, repeated, a.scale).entry(0, 0)
        testing.assert_gemm_close(got, entry, b.entry(0, 0).T, exact=True)


@pytest.mark.parametrize("form", ["bf16", "fp8_e4m3", "mxfp8_e4m3", "mxfp4_e2m1", "mxfp6_e3m2"])
@pytest.mark.parametrize(
    ("a_batch", "b_batch"),
    [
        ((3, 1), (3, 1)),
        ((2, 3), (2, 3)),
        ((2, 3), (1, 1)),
        ((1, 1), (2, 2)),
        ((2, 1), (1, 3)),
        ((1, 4), (2, 1)),
    ],
)
def test_batches(memory, form, a_batch, b_batch):
    rng = np.random.default_rng(10)
    a, b = draw(form, rng, 66, 40, a_batch, row_scales=True), draw(form, rng, 9, 40, b_batch)
    check(memory, a, b)
    check(memory, a, b, layout=("stepped", "column", "stepped"), out="f16")


def test_workgroups_after_the_last_tile_do_nothing(memory):
    rng = np.random.default_rng(11)
    check(memory, draw("bf16", rng, 70, 40, (2, 1)), draw("bf16", rng, 70, 40), extra=3)


FAR = 5 * 2**30  # bytes


@pytest.mark.parametrize("form", ["bf16", "f32", "mxfp4_e2m1", "mxfp6_e2m3"])
@pytest.mark.parametrize("axis", ["row", "k"])
def test_operands_beyond_4_gib(memory, device_memory, form, axis):
    """Rows or elements so far apart that offsets exceed 32 bits, in bytes or in elements; also backwards."""
    rng = np.random.default_rng(12)
    rows, k = (4, 70) if axis == "row" else (70, 140)
    pitch = FAR if axis == "row" else FAR // 32  # of two steps along K
    a, b = draw(form, rng, rows, k), draw("bf16", rng, 5, k)
    units, bits = a.codes[0, 0], FORMATS[form].bits
    if bits < 8:
        units = packed(units, bits)
    lines = np.ascontiguousarray(units if axis == "row" else units.T)
    device_memory(pitch * len(lines))
    space = int(_hip.call("hipMalloc", pitch * len(lines)))  # pages are allocated when touched
    try:
        for back in (False, True):
            for i, line in enumerate(lines):
                at = len(lines) - 1 - i if back else i
                _hip.copy("HostToDevice", space + at * pitch, line.ctypes.data, line.nbytes, 0)
            _hip.synchronize()
            near, far = units.itemsize, -pitch if back else pitch
            strides = {"a_row": far, "a_k": near} if axis == "row" else {"a_row": near, "a_k": far}
            values = operand(memory, a, "a", "row") | {"a": space + back * (len(lines) - 1) * pitch} | strides
            c = memory.put(np.full((rows, 5), np.nan, np.float32))
            launch(
                "plain_gemm",
                -(-rows // TILE[0]),
                **values,
                **operand(memory, b, "b", "row"),
                **target(c, 20, 4, rows, 5, k),
            )
            got = memory.get(c, np.empty((rows, 5), np.float32))
            testing.assert_gemm_close(got, a.entry(0, 0), b.entry(0, 0).T, exact=True)
    finally:
        _hip.call("hipFree", space)


@pytest.mark.parametrize("out", TYPES)
def test_results_and_batches_beyond_4_gib(memory, device_memory, out):
    device_memory(8 * FAR)
    rng = np.random.default_rng(13)
    a, b = draw("bf16", rng, 3, 40), draw("bf16", rng, 2, 40, (2, 1))
    item = TYPES[out].itemsize
    space = int(_hip.call("hipMalloc", 8 * FAR))
    try:
        launch(
            "plain_gemm",
            2,
            **operand(memory, a, "a", "row"),
            **operand(memory, b, "b", "row"),
            **target(space + 2 * FAR, -FAR, item, 3, 2, 40)
            | {"c_outer": 4 * FAR, "batches": 2, "out_type": FORMATS[out]},
        )
        for entry in range(2):
            line = np.empty((3, 2), TYPES[out])
            for row in range(3):
                line[row] = memory.get(space + (4 * entry + 2 - row) * FAR, line[row])
            testing.assert_gemm_close(line, a.entry(0, 0), b.entry(entry, 0).T, exact=True)
    finally:
        _hip.call("hipFree", space)


# ---- epilogue --------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", TYPES)
@pytest.mark.parametrize("bias_type", TYPES)
def test_epilogue(memory, out, bias_type):
    rng = np.random.default_rng(3)
    for form in ("f16", "fp8_e5m2", "mxfp8_e4m3"):
        a, b = (draw(form, rng, rows, 72, exact=False, row_scales=True) for rows in (70, 65))
        bias = rng.standard_normal(65).astype(TYPES[bias_type])
        col_scale = np.exp2(rng.integers(-5, 6, 65)).astype(np.float32)
        check(memory, a, b, exact=False, out=out, alpha=-0.37)
        check(memory, a, b, exact=False, out=out, alpha=99.0, device_alpha=1.7)
        check(memory, a, b, exact=False, out=out, bias=bias)
        check(memory, a, b, exact=False, out=out, alpha=1.25, col_scale=col_scale, bias=bias)


def test_zero_keeps_its_sign(memory):
    zero = Side("bf16", np.zeros((1, 1, 1, 8), TYPES["bf16"]))
    assert np.signbit(product(memory, zero, zero, alpha=-1.0)).all()
    assert not np.signbit(product(memory, zero, zero)).any()


def test_float_scales_are_applied_before_rounding(memory):
    """The sum of elements is beyond float16, the product is not."""
    codes = np.full((1, 1, 3, 64), 448).astype(ELEMENTS["fp8_e4m3"])
    side = Side("fp8_e4m3", codes, np.full((1, 1, 1, 1), 2.0**-10, np.float32))
    assert (product(memory, side, side, out="f16") == np.float16(64 * 448 * 448 / 2**20)).all()


def test_overflow_becomes_infinity_and_ties_go_to_even(memory):
    zero = Side("bf16", np.zeros((1, 1, 1, 8), TYPES["bf16"]))
    for out, value, expected in (
        ("f16", 65520.0, np.inf),
        ("f16", 65519.0, 65504.0),
        ("f16", 2049.0, 2048.0),
        ("f16", 2051.0, 2052.0),
        ("bf16", 257.0, 256.0),
        ("bf16", 259.0, 260.0),
        ("bf16", 3.4e38, np.inf),
        ("f32", 1e-45, np.float32(1e-45)),
    ):
        got = product(memory, zero, zero, out=out, bias=np.array([value], np.float32))
        assert got.astype(np.float64).item() == expected, (out, value)


def test_long_sums_stay_within_the_bound(memory):
    rng = np.random.default_rng(14)
    for form in ("bf16", "mxfp8_e5m2"):
        a, b = (draw(form, rng, rows, 5000, exact=False) for rows in (5, 4))
        check(memory, a, b, exact=False)


# ---- emulator modes --------------------------------------------------------------------------------

MODES = [
    {"HIPGEMM_EMULATOR_CHECK": "all"},
    {"HIPGEMM_EMULATOR_MEMORY": "early", "HIPGEMM_EMULATOR_WAVES": "reverse"},
]


@pytest.mark.emulator("sanitizers, memory modes")
@pytest.mark.skipif("HIPGEMM_EMULATOR_CHECK" in os.environ, reason="runs the tests of this file itself")
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_clean_under_every_check(mode):
    one_of_each_size = "bf16 or f32 or fp8_e4m3 or e2m3 or e2m1"  # of elements
    chosen = f"ragged_shapes or (any_strides or batches) and ({one_of_each_size}) or own_blocks or epilogue"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__, "-k", chosen],
        env={**os.environ, "HIPGEMM_EMULATOR_CHECK": "", **mode},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


def test_reference_values_are_the_kernels(memory):
    """One product whose every term is written here, which also tests the reference."""
    codes, scale = np.array([[[[6, -0.5]]]], np.float32), np.full((1, 1, 1, 1), 129, np.uint8)
    a = Side("mxfp4_e2m1", codes.astype(ELEMENTS["mxfp4_e2m1"]), scale)
    b = Side("f32", np.array([[[[1.5, 8.0]]]], np.float32))
    expected = 4 * (6 * 1.5 - 0.5 * 8)
    assert product(memory, a, b).item() == expected
    assert reference.matmul(a.entry(0, 0), b.entry(0, 0).T) == expected
