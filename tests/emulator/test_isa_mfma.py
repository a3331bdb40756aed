"""MFMA: every shape and format on exact data against the layout rules of the ISA text, and the bits of every
CPU level compared."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import asm
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

FORMATS = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float6_e2m3fn,
    ml_dtypes.float6_e3m2fn,
    ml_dtypes.float4_e2m1fn,
)
BITS = (8, 8, 6, 6, 4)
EIGHT_BITS = FORMATS[:2] if asm.ARCH != "gfx942" else (ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz)
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """Blocks of M x M outputs with K products each."""

    name: str
    m: int
    k: int
    blocks: int
    a: type | int  # an int: so many bits of f8f6f4 format
    b: type | int
    out: type = np.float32

    def lanes(self, row: int, block: int, k: int, bits: int) -> tuple[int, int]:
        """Lane and item of A[block, row, k] (and of B[block, k, row])."""
        per_lane = self.k // (64 // (self.m * self.blocks))
        if "f8f6f4" in self.name and bits == 8:  # two chunks of 16
            half = self.k // 2
            upper, rest = divmod(k, half)
            return row + self.m * (rest // 16), upper * 16 + rest % 16
        return row + self.m * (block + self.blocks * (k // per_lane)), k % per_lane

    def output(self, row: int, column: int, block: int) -> tuple[int, int]:
        """Lane and item of D[block, row, column] (ISA text, 7.1.4.2)."""
        h = 1 if self.out is np.float64 else 4
        abreast = -(-64 // (self.m * self.m // h))
        rows = 64 // abreast // self.m
        groups = self.m // (h * rows)
        item = row % h + h * (row // (h * rows) + groups * (block // abreast))
        return column + self.m * (row // h % rows + rows * (block % abreast)), item


def shapes() -> list[Shape]:
    bf16, f16, i8, f32 = ml_dtypes.bfloat16, np.float16, np.int8, np.float32
    rows = []
    for name, dtype in (("bf16", bf16), ("f16", f16)):
        for m, k, blocks in (
            (16, 32, 1), (32, 16, 1), (16, 16, 1), (32, 8, 1), (32, 4, 2), (16, 4, 4), (4, 4, 16)
        ):  # fmt: skip
            suffix = f"_{blocks}b" if blocks > 1 else ""
            rows.append(Shape(f"v_mfma_f32_{m}x{m}x{k}{suffix}_{name}", m, k, blocks, dtype, dtype))
    for m, k, blocks in ((16, 4, 1), (32, 2, 1), (32, 1, 2), (16, 1, 4), (4, 1, 16)):
        suffix = f"_{blocks}b" if blocks > 1 else ""
        rows.append(Shape(f"v_mfma_f32_{m}x{m}x{k}{suffix}_f32", m, k, blocks, f32, f32))
    for m, k, blocks in (
        (16, 64, 1),
        (32, 32, 1),
        (16, 32, 1),
        (32, 16, 1),
        (32, 4, 2),
        (16, 4, 4),
        (4, 4, 16),
    ):
        suffix = f"_{blocks}b" if blocks > 1 else ""
        rows.append(Shape(f"v_mfma_i32_{m}x{m}x{k}{suffix}_i8", m, k, blocks, i8, i8, np.int32))
    for m, k in ((16, 32), (32, 16)):
        for a, b in itertools.product(("fp8", "bf8"), repeat=2):
            types = [EIGHT_BITS[x == "bf8"] for x in (a, b)]
            rows.append(Shape(f"v_mfma_f32_{m}x{m}x{k}_{a}_{b}", m, k, 1, *types))
    for m, k in ((16, 128), (32, 64)):
        for a, b in itertools.product(range(5), repeat=2):
            rows.append(Shape(f"v_mfma_f32_{m}x{m}x{k}_f8f6f4", m, k, 1, a, b))
    rows.append(Shape("v_mfma_f64_16x16x4_f64", 16, 4, 1, np.float64, np.float64, np.float64))
    rows.append(Shape("v_mfma_f64_4x4x4_4b_f64", 4, 4, 4, np.float64, np.float64, np.float64))
    rows += [Shape(f"v_mfma_f32_{m}x{m}x{k}_xf32", m, k, 1, f32, f32) for m, k in ((16, 8), (32, 4))]
    return [shape for shape in rows if asm.has(shape.name)]


def encoding(of: type | int) -> tuple[np.dtype, int]:
    """Type of the values, and bits each takes."""
    if isinstance(of, int):
        return np.dtype(FORMATS[of]), BITS[of]
    return np.dtype(of), np.dtype(of).itemsize * 8


def registers(shape: Shape, values: Values, of: type | int) -> NDArray[np.uint32]:
    """[lane, dword] that hold A[block, row, k] = values."""
    dtype, bits = encoding(of)
    items = shape.k // (64 // (shape.m * shape.blocks))
    lanes = [0] * 64
    raw = values.astype(dtype).view(np.dtype(f"u{dtype.itemsize}"))
    for block, row, k in np.ndindex(*values.shape):
        lane, item = shape.lanes(row, block, k, bits)
        lanes[lane] |= int(raw[block, row, k]) << (item * bits)
    size = items * bits // 8
    return np.stack([np.frombuffer(x.to_bytes(size, "little"), np.uint32) for x in lanes])


def wide_registers(shape: Shape, values: NDArray[np.generic]) -> NDArray[np.uint32]:
    """[lane, dword] that hold C[block, row, column] = values."""
    per = values.itemsize // 4
    count = shape.m * shape.m * shape.blocks // 64
    out = np.zeros((64, count, per), np.uint32)
    for block, row, column in np.ndindex(*values.shape):
        lane, item = shape.output(row, column, block)
        out[lane, item] = values[block, row, column : column + 1].copy().view(np.uint32)
    return out.reshape(64, count * per)


def small_values(of: type | int, size: tuple[int, ...], rng: np.random.Generator) -> Values:
    """Values that every format holds, and whose sums are exact in f32."""
    dtype, _ = encoding(of)
    if dtype == np.int8:
        return rng.integers(-128, 128, size).astype(np.float64)
    if dtype.itemsize >= 2:
        return rng.integers(-9, 10, size).astype(np.float64)
    return rng.choice([0, 0.5, 1, 1.5, 2, 3, -0.5, -1, -1.5, -2, -3], size)


def group(first: int, count: int, letter: str = "v") -> str:
    return f"{letter}{first}" if count == 1 else f"{letter}[{first}:{first + count - 1}]"


def program(text: str, a: int, b: int, c: int, extra: str = "") -> asm.Snippet:
    """Loads A to v[8..], B to v[16..], C to v[32..] and the scales to v4, v5; stores v[32..] after `text`."""
    body = (
        "s_load_dwordx8 s[4:11], s[0:1], 0x0\ns_load_dwordx2 s[12:13], s[0:1], 0x20\ns_waitcnt lgkmcnt(0)\n"
    )
    for pointer, first, count in (("s[4:5]", 8, a), ("s[6:7]", 16, b), ("s[8:9]", 32, c), ("s[10:11]", 4, 2)):
        body += f"v_mul_u32_u24 v1, {4 * count}, v0\n"
        for k in range(count):
            body += f"global_load_dword v{first + k}, v1, {pointer} offset:{4 * k}\n"
    body += f"s_waitcnt vmcnt(0)\n{extra}\n{text}\nv_mul_u32_u24 v1, {4 * c}, v0\n"
    for k in range(c):
        body += f"global_store_dword v1, v{32 + k}, s[12:13] offset:{4 * k}\n"
    return asm.Snippet(body, vgprs=128, accum=96)


def product(a: Values, b: Values) -> Values:
    """sum_k a[block, i, k] b[block, j, k]"""
    return np.einsum("bik,bjk->bij", a, b)


def test_shapes_and_formats(rng: np.random.Generator) -> None:
    rows = shapes()
    kernels, cases = {}, []
    for i, shape in enumerate(rows):
        size = (shape.blocks, shape.m, shape.k)
        a, b = small_values(shape.a, size, rng), small_values(shape.b, size, rng)
        c = rng.integers(-100, 100, (shape.blocks, shape.m, shape.m)).astype(shape.out)
        ra, rb, rc = registers(shape, a, shape.a), registers(shape, b, shape.b), wide_registers(shape, c)
        out = group(32, rc.shape[1])  # in place of C
        text = f"{shape.name} {out}, {group(8, ra.shape[1])}, {group(16, rb.shape[1])}, {out}"
        if isinstance(shape.a, int):
            text += f" cbsz:{shape.a} blgp:{shape.b}"
        kernels[f"k{i}"] = program(text, *(r.shape[1] for r in (ra, rb, rc)))
        cases.append((shape, ra, rb, rc, (product(a, b) + c).astype(shape.out)))
    wrong = []
    with asm.Module(kernels) as module:
        for i, (shape, ra, rb, rc, want) in enumerate(cases):
            *_, got = module.run(f"k{i}", ra, rb, rc, np.zeros((64, 2), np.uint32), np.zeros_like(rc))
            if not np.array_equal(got, wide_registers(shape, want)):
                wrong.append(f"{shape.name} {shape.a} {shape.b}")
    assert not wrong, f"{len(wrong)} wrong: {wrong}"


# The 16x16 bf16 instruction with the largest K: A and B in v[8..] and v[16..].
BF16 = next(s for s in shapes() if s.name.endswith("_bf16"))
ITEMS = BF16.k // 8  # dwords of A and of B
A, B = group(8, ITEMS), group(16, ITEMS)


def test_every_code_of_the_old_8_bit_forms(rng: np.random.Generator) -> None:
    """Each of the 256 codes times one."""
    for shape in shapes():
        if shape.m != 16 or shape.name.split("_")[-1] not in ("fp8", "bf8"):
            continue
        codes = rng.permutation(512).astype(np.uint8).reshape(1, 16, 32)
        values = codes.view(shape.a).astype(np.float64)
        for k in range(0, 32, 16):
            b = np.zeros((1, 16, 32))
            b[0, np.arange(16), k + np.arange(16)] = 1
            # Zeros elsewhere: zero times NaN is NaN.
            a = np.where(b.any(axis=1)[:, None, :], values, 0)
            ra, rb = registers(shape, a, shape.a), registers(shape, b, shape.b)
            rc = np.zeros((64, 4), np.uint32)
            text = f"{shape.name} v[32:35], v[8:9], v[16:17], 0"
            *_, got = asm.run(program(text, 2, 2, 4), ra, rb, rc, np.zeros((64, 2), np.uint32), rc)
            with np.errstate(invalid="ignore"):
                want = wide_registers(shape, product(a, b).astype(np.float32))
            np.testing.assert_array_equal(got.view(np.float32), want.view(np.float32), shape.name)


@asm.only_gfx942
def test_xf32_cuts_mantissas(rng: np.random.Generator) -> None:
    """13 bits of A and of B; denormals, infinities and NaN are kept, and all of C."""
    for shape in shapes():
        if not shape.name.endswith("_xf32"):
            continue
        bits = rng.integers(0, 2**32, (64, 2), np.uint32)
        bits = np.where(bits >> 23 & 255 == 255, np.uint32(0x7F800001), bits)  # NaN in the cut bits only
        bits[:3, 0] = 0x7F800000, 0x00000001, 0x007FFFFF
        one, none = np.zeros((1, shape.m, shape.k)), np.zeros((64, 2), np.uint32)
        for k in range(shape.k):  # A's k-th column to the result's columns
            one[:] = 0
            one[0, :, k] = 1
            only = np.zeros((1, shape.m, shape.k))
            only[0, :, k] = 1
            a = np.where(registers(shape, only, np.float32), bits, 0).astype(np.uint32)
            rb = registers(shape, one, np.float32)
            count = shape.m * shape.m // 64
            rc = np.zeros((64, count), np.uint32)
            text = f"{shape.name} {group(32, count)}, v[8:9], v[16:17], 0"
            *_, got = asm.run(program(text, 2, 2, count), a, rb, rc, none, rc)
            column = np.array([a[shape.lanes(m, 0, k, 32)] for m in range(shape.m)])
            cut = (column & np.uint32(0xFFFFE000)).view(np.float32)
            cut = np.where(np.isnan(column.view(np.float32)), np.float32(np.nan), cut)
            want = np.repeat(cut[None, :, None], shape.m, axis=2).astype(np.float32)
            np.testing.assert_array_equal(got.view(np.float32), wide_registers(shape, want).view(np.float32))


@asm.only_gfx950
def test_every_code_of_the_small_formats(rng: np.random.Generator) -> None:
    """Each of the 256 (64, 16) values of a format times one."""
    for f, (dtype, bits) in enumerate(zip(FORMATS, BITS, strict=True)):
        shape = Shape("v_mfma_f32_16x16x128_f8f6f4", 16, 128, 1, f, f)
        codes = (np.arange(16 * 128) % (1 << bits)).astype(np.uint8)
        values = codes.view(dtype).astype(np.float64).reshape(1, 16, 128)
        for k in range(0, 128, 16):
            b = np.zeros((1, 16, 128))
            b[0, np.arange(16), k + np.arange(16)] = 1
            a = np.where(b.any(axis=1)[:, None, :], values, 0)
            ra, rb = registers(shape, a, f), registers(shape, b, f)
            rc = np.zeros((64, 4), np.uint32)
            n = ra.shape[1]
            text = f"{shape.name} v[32:35], {group(8, n)}, {group(16, n)}, 0 cbsz:{f} blgp:{f}"
            *_, got = asm.run(program(text, n, n, 4), ra, rb, rc, np.zeros((64, 2), np.uint32), rc)
            with np.errstate(invalid="ignore"):
                want = wide_registers(shape, product(a, b).astype(np.float32))
            same = (got == want) | (np.isnan(got.view(np.float32)) & np.isnan(want.view(np.float32)))
            # 0 times infinity is NaN in NumPy and here alike
            assert same.all(), (dtype, k)


@asm.only_gfx950
@pytest.mark.parametrize("m", [16, 32])
@pytest.mark.parametrize("select", [0, 1, 2, 3])
@pytest.mark.parametrize("far", [False, True], ids=["tame", "far"])
def test_scales(m: int, select: int, far: bool, rng: np.random.Generator) -> None:
    """One E8M0 exponent for each row and 32 values of k; with large ones intermediates leave f32's range."""
    k = 2048 // m
    for fa, fb in ((0, 1), (4, 2), (3, 0), (4, 4)):
        shape = Shape(f"v_mfma_f32_{m}x{m}x{k}_f8f6f4", m, k, 1, fa, fb)
        a, b = small_values(fa, (1, m, k), rng), small_values(fb, (1, m, k), rng)
        if far:
            ea, eb = rng.integers(200, 250, (m, k // 32)), rng.integers(9, 49, (m, k // 32))
        else:
            ea, eb = (rng.integers(122, 132, (m, k // 32)) for _ in "ab")
        c = rng.integers(-100, 100, (1, m, m)).astype(np.float32)
        scales = rng.integers(0, 2**32, (64, 2), np.uint32)
        for side, e in enumerate((ea, eb)):
            for lane in range(64):
                keep = int(scales[lane, side]) & ~(255 << 8 * select)
                scales[lane, side] = keep | int(e[lane % m, lane // m]) << 8 * select
        scaled = [
            x * np.repeat(np.ldexp(1.0, e - 127), 32, axis=1)
            for x, e in ((a, ea.astype(int)), (b, eb.astype(int)))
        ]
        want = product(*scaled) + c.astype(np.float64)
        ra, rb, rc = registers(shape, a, fa), registers(shape, b, fb), wide_registers(shape, c)
        n = rc.shape[1]
        text = (
            f"v_mfma_scale_f32_{m}x{m}x{k}_f8f6f4 {group(32, n)}, {group(8, ra.shape[1])}, "
            f"{group(16, rb.shape[1])}, {group(32, n)}, v4, v5 op_sel:[{select & 1},{select & 1}] "
            f"op_sel_hi:[{select >> 1},{select >> 1}] cbsz:{fa} blgp:{fb}"
        )
        snippet = program(text, ra.shape[1], rb.shape[1], n)
        *_, got = asm.run(snippet, ra, rb, rc, scales, np.zeros_like(rc))
        place = np.zeros((64, n), np.float64)
        for row, column in np.ndindex(m, m):
            lane, item = shape.output(row, column, 0)
            place[lane, item] = want[0, row, column]
        bound = 1e-6 * (np.einsum("bik,bjk->bij", *[abs(x) for x in scaled]).max() + 100)
        assert np.abs(got.view(np.float32) - place).max() <= (bound if far else 0)


@asm.only_gfx950
def test_nan_scale(rng: np.random.Generator) -> None:
    shape = Shape("v_mfma_f32_16x16x128_f8f6f4", 16, 128, 1, 0, 0)
    a = small_values(0, (1, 16, 128), rng)
    r = registers(shape, a, 0)
    scales = np.full((64, 2), 127, np.uint32)
    scales[16 + 3, 0] = 255  # row 3, second 32 of k
    zero = np.zeros((64, 4), np.uint32)
    text = "v_mfma_scale_f32_16x16x128_f8f6f4 v[32:35], v[8:15], v[16:23], 0, v4, v5"
    *_, got = asm.run(program(text, 8, 8, 4), r, r, zero, scales, zero)
    nan = np.isnan(got.view(np.float32))
    want = np.zeros((64, 4), bool)
    for column in range(16):
        want[shape.output(3, column, 0)] = True
    np.testing.assert_array_equal(nan, want)


def test_registers_may_be_accumulators_and_constants(rng: np.random.Generator) -> None:
    a, b = (small_values(BF16.a, (1, 16, BF16.k), rng) for _ in "ab")
    ra, rb = registers(BF16, a, BF16.a), registers(BF16, b, BF16.b)
    c = np.ones((1, 16, 16), np.float32)
    zero = np.zeros((64, 4), np.uint32)
    for text in (
        f"{BF16.name} v[32:35], {A}, {B}, 1.0",
        f"{BF16.name} a[4:7], {A}, {B}, 1.0\n"
        + "".join(f"v_accvgpr_read_b32 v{32 + k}, a{4 + k}\n" for k in range(4)),
        "".join(f"v_accvgpr_write_b32 a{8 + k}, v{8 + k}\n" for k in range(ITEMS))
        + f"{BF16.name} v[32:35], {group(8, ITEMS, 'a')}, {B}, 1.0",
    ):
        *_, got = asm.run(program(text, ITEMS, ITEMS, 4), ra, rb, zero, np.zeros((64, 2), np.uint32), zero)
        np.testing.assert_array_equal(got, wide_registers(BF16, (product(a, b) + c).astype(np.float32)))


def test_overlap_of_c_and_d(rng: np.random.Generator) -> None:
    """All of C is read before any of D is written."""
    a, b = (small_values(BF16.a, (1, 16, BF16.k), rng) for _ in "ab")
    c = rng.integers(-9, 9, (1, 16, 16)).astype(np.float32)
    ra, rb, rc = registers(BF16, a, BF16.a), registers(BF16, b, BF16.b), wide_registers(BF16, c)
    text = f"{BF16.name} v[34:37], {A}, {B}, v[32:35]\n"
    text += "".join(f"v_mov_b32 v{32 + k}, v{34 + k}\n" for k in range(4))
    none = np.zeros((64, 2), np.uint32)
    *_, got = asm.run(program(text, ITEMS, ITEMS, 4), ra, rb, rc, none, np.zeros_like(rc))
    np.testing.assert_array_equal(got, wide_registers(BF16, (product(a, b) + c).astype(np.float32)))


def test_exec_is_ignored(rng: np.random.Generator) -> None:
    a, b = (small_values(BF16.a, (1, 16, BF16.k), rng) for _ in "ab")
    ra, rb, zero = registers(BF16, a, BF16.a), registers(BF16, b, BF16.b), np.zeros((64, 4), np.uint32)
    text = f"s_mov_b64 exec, 5\n{BF16.name} v[32:35], {A}, {B}, 0\ns_mov_b64 exec, -1"
    *_, got = asm.run(program(text, ITEMS, ITEMS, 4), ra, rb, zero, np.zeros((64, 2), np.uint32), zero)
    np.testing.assert_array_equal(got, wide_registers(BF16, product(a, b).astype(np.float32)))


def broadcast_a(cbsz: int, abid: int) -> Callable[[int], int]:
    return lambda lane: lane % (64 >> cbsz) + (64 >> cbsz) * abid


BROADCASTS: list[tuple[str, Callable[[int], int], Callable[[int], int]]] = [
    ("cbsz:1 abid:1", broadcast_a(1, 1), lambda lane: lane),
    ("cbsz:2 abid:3", broadcast_a(2, 3), lambda lane: lane),
    ("blgp:1", lambda lane: lane, lambda lane: lane % 32),
    ("blgp:2", lambda lane: lane, lambda lane: lane % 32 + 32),
    ("blgp:3", lambda lane: lane, lambda lane: (lane + 16) % 64),
    ("blgp:6", lambda lane: lane, lambda lane: lane % 16 + 32),
]


@pytest.mark.parametrize(("modifiers", "from_a", "from_b"), BROADCASTS, ids=[b[0] for b in BROADCASTS])
def test_broadcasts(
    modifiers: str, from_a: Callable[[int], int], from_b: Callable[[int], int], rng: np.random.Generator
) -> None:
    """The same as lanes rearranged beforehand."""
    shape = next(s for s in shapes() if s.name == "v_mfma_f32_16x16x4_4b_f16")
    ra, rb = (registers(shape, small_values(shape.a, (4, 16, 4), rng), shape.a) for _ in "ab")
    zero, none = np.zeros((64, 16), np.uint32), np.zeros((64, 2), np.uint32)
    text = f"{shape.name} v[32:47], v[8:9], v[16:17], 0"
    *_, got = asm.run(program(f"{text} {modifiers}", 2, 2, 16), ra, rb, zero, none, zero)
    lanes = np.arange(64)
    *_, want = asm.run(program(text, 2, 2, 16), ra[from_a(lanes)], rb[from_b(lanes)], zero, none, zero)
    np.testing.assert_array_equal(got, want)


def test_f64_negation(rng: np.random.Generator) -> None:
    shape = next(s for s in shapes() if s.name == "v_mfma_f64_16x16x4_f64")
    a, b = (small_values(np.float64, (1, 16, 4), rng) for _ in "ab")
    c = rng.integers(-9, 9, (1, 16, 16)).astype(np.float64)
    ra, rb, rc = registers(shape, a, shape.a), registers(shape, b, shape.b), wide_registers(shape, c)
    for text, want in (("neg:[1,0,0]", c - product(a, b)), ("neg:[0,1,1]", -product(a, b) - c)):
        line = f"{shape.name} v[32:39], v[8:9], v[16:17], v[32:39] {text}"
        *_, got = asm.run(program(line, 2, 2, 8), ra, rb, rc, np.zeros((64, 2), np.uint32), np.zeros_like(rc))
        np.testing.assert_array_equal(got.view(np.float64), wide_registers(shape, want).view(np.float64))


def test_overflow_follows_mode(rng: np.random.Generator) -> None:
    """Infinity, or the largest number under MODE.FP16_OVFL; integers wrap or saturate."""
    a = np.full((1, 16, BF16.k), 2.0**100)
    ra = registers(BF16, a, BF16.a)
    zero, none = np.zeros((64, 4), np.uint32), np.zeros((64, 2), np.uint32)
    text = f"{BF16.name} v[32:35], {A}, {B}, 0"
    mode = "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 23, 1), 1\n"
    *_, got = asm.run(program(text, ITEMS, ITEMS, 4), ra, ra, zero, none, zero)
    assert (got == 0x7F800000).all()
    *_, got = asm.run(program(mode + text, ITEMS, ITEMS, 4), ra, ra, zero, none, zero)
    assert (got == 0x7F7FFFFF).all()
    onto = text.replace(", 0", ", v[32:35]")  # what was infinite stays so
    *_, got = asm.run(program(mode + onto, ITEMS, ITEMS, 4), ra, ra, zero + np.uint32(0x7F800000), none, zero)
    assert (got == 0x7F800000).all()


def bits_of_random_products() -> dict[str, int]:
    """A checksum of each instruction's result on data that rounds, with zeros, denormals and NaN among it."""
    rng = np.random.default_rng(11)
    sums: dict[str, int] = {}
    cases: dict[str, tuple[asm.Snippet, NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]] = {}
    for shape in shapes():
        if isinstance(shape.a, int) and (shape.a, shape.b) not in ((0, 0), (1, 3), (4, 2)):
            continue
        ra, rb = (
            rng.integers(
                0, 2**32, (64, shape.k // (64 // (shape.m * shape.blocks)) * encoding(o)[1] // 32), np.uint32
            )
            for o in (shape.a, shape.b)
        )
        if encoding(shape.a)[0].itemsize in (2, 4):  # random bits hold too many NaN
            n = ra.shape[1] * 32 // encoding(shape.a)[1]
            spread = rng.standard_normal((2, 64, n)) * 2.0 ** rng.integers(-12, 12, (2, 64, n))
            spread[:, 0, 0] = 0, np.nan
            spread[:, 1, :] *= 1e-5
            ra, rb = (x.astype(shape.a).view(np.uint32) for x in spread)
        per = np.dtype(shape.out).itemsize // 4
        count = shape.m * shape.m * shape.blocks // 64
        rc = rng.standard_normal((64, count)).astype(shape.out).view(np.uint32)
        rc[5] = 3  # denormals
        text = f"{shape.name} {group(32, count * per)}, {group(8, ra.shape[1])}, {group(16, rb.shape[1])}, "
        text += group(32, count * per) + (
            f" cbsz:{shape.a} blgp:{shape.b}" if isinstance(shape.a, int) else ""
        )
        name = f"{shape.name} {shape.a} {shape.b}"
        cases[name] = (program(text, ra.shape[1], rb.shape[1], count * per), ra, rb, rc)
    with asm.Module({f"k{i}": case[0] for i, case in enumerate(cases.values())}) as module:
        for i, (name, (_, ra, rb, rc)) in enumerate(cases.items()):
            *_, got = module.run(f"k{i}", ra, rb, rc, np.zeros((64, 2), np.uint32), np.zeros_like(rc))
            sums[name] = zlib.crc32(got.tobytes())
    return sums


@pytest.mark.packaging
def test_every_cpu_level_gives_the_same_bits(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import asm, test_isa_mfma
print(json.dumps([asm.library().hipgemm_emulator_cpu().decode(), test_isa_mfma.bits_of_random_products()]))
"""
    results = {}
    for level in ("v2", "v3", "v4"):
        done = run_python(code, HIPGEMM_EMULATOR_CPU=level)
        assert done.returncode == 0, done.stderr
        used, sums = json.loads(done.stdout)
        results[used] = sums
    assert len(results) > 1 or sys.platform != "linux" or "base" in results or "v2" in results
    first = next(iter(results.values()))
    for level, sums in results.items():
        differing = [name for name in sums if sums[name] != first[name]]
        assert not differing, f"{level}: {differing}"


def test_order_of_summation(rng: np.random.Generator) -> None:
    """Even and odd chains of fused multiply-adds, then C + (even + odd): here in exact rational steps."""
    from fractions import Fraction

    def rounded(x: Fraction) -> Fraction:
        """To f32, nearest even."""
        if x == 0:
            return x
        shift = 24 - (abs(x.numerator).bit_length() - x.denominator.bit_length())
        scaled = x * Fraction(2) ** shift
        while abs(scaled) >= 2**24:
            shift, scaled = shift - 1, scaled / 2
        return Fraction(round(scaled)) / Fraction(2) ** shift

    a, b = (rng.standard_normal((1, 16, BF16.k)).astype(ml_dtypes.bfloat16).astype(np.float64) for _ in "ab")
    c = rng.standard_normal((1, 16, 16)).astype(np.float32)
    want = np.zeros_like(c)
    for i, j in np.ndindex(16, 16):
        chain = [Fraction(0), Fraction(0)]
        for k in range(BF16.k):
            chain[k & 1] = rounded(chain[k & 1] + Fraction(a[0, i, k]) * Fraction(b[0, j, k]))
        want[0, i, j] = float(rounded(Fraction(float(c[0, i, j])) + rounded(chain[0] + chain[1])))
    ra, rb, rc = registers(BF16, a, BF16.a), registers(BF16, b, BF16.b), wide_registers(BF16, c)
    text = f"{BF16.name} v[32:35], {A}, {B}, v[32:35]"
    none = np.zeros((64, 2), np.uint32)
    *_, got = asm.run(program(text, ITEMS, ITEMS, 4), ra, rb, rc, none, np.zeros_like(rc))
    np.testing.assert_array_equal(got, wide_registers(BF16, want))
