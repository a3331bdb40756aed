"""Inputs of the primitive kernels (src_hip/primitives), and the words that each must write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.elements import BF16, F16, FP8_E4M3, FP8_E5M2, QUANTIZED, Format, cast, round_stochastic

Array = npt.NDArray[Any]
LANES = 64
ONES = 0xFFFFFFFF
DMA_OUT_OF_RANGE = (0x80000000, 0xC0000000)  # offsets that the kernels use for no memory
E4M3, E5M2, E2M1 = FP8_E4M3, FP8_E5M2, QUANTIZED["mxfp4_e2m1"]
E2M3, E3M2 = QUANTIZED["mxfp6_e2m3"], QUANTIZED["mxfp6_e3m2"]


@dataclass(frozen=True)
class Case:
    """One launch: its input, and what each row of the output must be, in parts of different types.

    A NaN may be any NaN. `alternatives` are other answers that are right too, by name.
    """

    words: Array
    expected: tuple[Array, ...]
    kernel: str = ""  # if it is not that of the primitive's name
    n: int = 0
    groups: int = 1
    initial: int = 0xA5A5A5A5  # words of the output before
    rows: str = "lane"  # what a row of the output is


def _rng() -> np.random.Generator:
    return np.random.default_rng(20261130)


def _words(*parts: Array) -> Array:
    """Put the words of each row side by side."""
    rows = len(parts[0])
    return np.concatenate([np.ascontiguousarray(x).reshape(rows, -1).view(np.uint32) for x in parts], axis=1)


def _floats(
    shape: tuple[int, ...], low: int, high: int, bits: int = 24, special: Sequence[float] = ()
) -> Array:
    """Random float32 with exponents from low to high and so many bits, after some special ones."""
    rng = _rng()
    m = 1 + rng.integers(0, 2 ** (bits - 1), shape) / 2.0 ** (bits - 1)
    x: Array = np.ldexp(m * rng.choice([-1, 1], shape), rng.integers(low, high + 1, shape)).astype(np.float32)
    x.reshape(-1)[: len(special)] = special
    return x


def _pack_bits(codes: Array, bits: int) -> Array:
    """Codes (rows, n) as consecutive bits of words."""
    ones = (codes[..., None].astype(np.uint32) >> np.arange(bits, dtype=np.uint32) & 1).astype(np.uint8)
    return np.packbits(ones.reshape(len(codes), -1), axis=1, bitorder="little").view(np.uint32)


# ---- arithmetic and conversions ------------------------------------------------------------------

_LEAST = 2.0**-149  # of float32
_EDGES = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, _LEAST, -_LEAST, 2.0**-126, 2.0**-127, 3.4028235e38)


def f32_arithmetic() -> list[Case]:
    """Exact in float64 before the one rounding: factors of 12 bits, near the third value."""
    special = (*_EDGES, 2.0**-126, 1.5 * 2.0**-127, 2.0**-100)
    a = _floats((16 * LANES, 1), -8, 8, 12, special)
    b = _floats((16 * LANES, 1), -7, 9, 12, special[::-1])
    c = _floats((16 * LANES, 1), -12, 12, 24)
    with np.errstate(all="ignore"):
        fma = (a.astype(np.float64) * b + c).astype(np.float32)
        parts = (a + b, a * b, fma, a / b, np.sqrt(a))
    return [Case(_words(a, b, c), parts, groups=16)]


def f32_fields() -> list[Case]:
    """By NumPy's ldexp and frexp; Inf has itself as significand."""
    edges = [x for x in _EDGES if not np.isnan(x)]
    a = _floats((4 * LANES, 1), -130, 120, 24, edges)
    n = _rng().integers(-140, 140, a.shape).astype(np.int32)
    n[n & 63 == 0] += 1  # a clamp to zero may give either zero
    limit = (n & 63).astype(np.float32)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(a, n).astype(np.float32)
    m, e = np.frexp(a)
    m, e = np.where(np.isinf(a), a, m), np.where(np.isinf(a), 0, e).astype(np.int32)
    return [
        Case(_words(a, n), (scaled, m, e, np.clip(a, -limit, limit), np.maximum(limit, np.abs(a))), groups=4)
    ]


def _narrowed(to: Format) -> list[Case]:
    ties = [1 + 2.0 ** -(to.mantissa_bits + 1), 1 + 3 * 2.0 ** -(to.mantissa_bits + 1)]
    least = to.smallest_subnormal
    special = (*_EDGES, *ties, least / 2, 1.5 * least, 0.75 * least, to.maximum, to.maximum * (1 + 2.0**-9))
    x = _floats((16 * LANES, 2), to.min_exponent - to.mantissa_bits - 2, 20, 24, special)
    with np.errstate(all="ignore"):
        return [Case(_words(x), (x.astype(to.dtype),), groups=16)]


def f32_to_bf16() -> list[Case]:
    """To nearest even, subnormals kept."""
    return _narrowed(BF16)


def f32_to_f16() -> list[Case]:
    """To nearest even, subnormals kept; overflow gives Inf."""
    return _narrowed(F16)


def f16_to_f32() -> list[Case]:
    """All of them."""
    x = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(-1, 2)
    return [Case(_words(x), (x.astype(np.float32),), groups=len(x) // LANES)]


def _in_range(to: Format) -> list[Case]:
    least = to.smallest_subnormal
    x = _floats((64 * LANES, 4), to.min_exponent - to.mantissa_bits - 2, to.max_exponent - 1)
    codes = np.arange(256, dtype=np.uint8).view(to.dtype).astype(np.float32)
    codes = codes[np.isfinite(codes)]
    ties = codes * np.float32(1 + 2.0 ** -(to.mantissa_bits + 1))
    between = np.concatenate([codes, ties, codes + least / 2])
    between = np.clip(between, -to.maximum, to.maximum).astype(np.float32)
    x.reshape(-1)[: len(between)] = between
    x[-1] = np.nan
    q = cast(x, to)
    return [Case(_words(x), (q, q.astype(np.float32)), groups=64)]


def e4m3() -> list[Case]:
    """To nearest even and back, NaN included."""
    return _in_range(E4M3)


def e5m2() -> list[Case]:
    """To nearest even and back, NaN included."""
    return _in_range(E5M2)


def stochastic_rounding() -> list[Case]:
    """By hipgemm.reference's rule."""
    x = _floats((16 * LANES, 1), -18, 15, 24, (0.0, -0.0, 6.0, 448.0, 1e30, -1e30))
    random = _rng().integers(0, 2**32, x.shape, dtype=np.uint32)
    codes = [round_stochastic(x, to, random).view(np.uint8).astype(np.uint32) for to in (E4M3, E5M2, E2M1)]
    return [Case(_words(x, random), tuple(codes), groups=16)]


def _stochastic(to: Format) -> list[Case]:
    """The seed's highest bits are added below the last bit that is kept; the rest is cut off."""
    x = _floats((4 * LANES, 1), to.min_exponent, to.max_exponent - 1)
    seed = _rng().integers(0, 2**32, x.shape, dtype=np.uint32)
    dropped = np.uint32(23 - to.mantissa_bits)
    moved = x.view(np.uint32) + (seed >> (np.uint32(32) - dropped))
    cut = (moved >> dropped << dropped).view(np.float32)
    code = cut.astype(to.dtype).view(np.uint8).astype(np.uint32)
    shift = np.arange(4, dtype=np.uint32) * np.uint32(8)
    expected = np.uint32(ONES) & ~(np.uint32(255) << shift) | code << shift
    return [Case(_words(x, seed), (expected,), groups=4)]


def cvt_sr_fp8_f32() -> list[Case]:
    """To each byte of the result."""
    return _stochastic(E4M3)


def cvt_sr_bf8_f32() -> list[Case]:
    """To each byte of the result."""
    return _stochastic(E5M2)


def _scales(rows: int) -> Array:
    """Exponents of all sizes, one NaN; the bits below the exponent count for nothing."""
    rng = _rng()
    exponents = rng.integers(100, 150, (rows, 1)).astype(np.uint32)
    exponents[:5, 0] = (0, 1, 254, 255, 127)
    return np.asarray(exponents << np.uint32(23) | rng.integers(0, 2**23, (rows, 1), dtype=np.uint32))


def _widened(to: Format, kernel_to: npt.DTypeLike, count: int) -> list[Case]:
    """All codes, times 2^(exponent field of the scale - 127)."""
    per = count * 4 * LANES
    codes = (np.arange(per) * 7 % 2**to.bits).astype(np.uint8).reshape(-1, count)
    scales = _scales(len(codes))
    field = scales >> np.uint32(23)
    with np.errstate(all="ignore"):
        power = np.where(field == 255, np.nan, np.ldexp(1.0, field.astype(np.int32) - 127))
        values = codes.view(to.dtype).astype(np.float64) * power
        expected = values.astype(np.float32).astype(kernel_to)
    return [Case(_words(_pack_bits(codes, to.bits), scales), (expected,), groups=4)]


def _scaled_down(to: Format, count: int) -> list[Case]:
    """To nearest even, saturating, after a division by 2^(exponent field of the scale - 127)."""
    scales = _scales(4 * LANES)
    scales[:5] = np.uint32(127) << np.uint32(23)
    least = to.smallest_subnormal
    special = (0.0, -0.0, least / 2, 1.5 * least, 2.5 * least, -0.75 * least, 1e6, -1e6, to.maximum)
    x = _floats((4 * LANES, count), -6, 6, 24, special)
    exponent = (scales >> np.uint32(23)).astype(np.int32) - 127
    codes = cast(x, to).view(np.uint8)
    with np.errstate(all="ignore"):
        scaled = np.ldexp(x, exponent).astype(np.float32)
    return [Case(_words(scaled, scales), (_pack_bits(codes, to.bits),), groups=4)]


# ---- lanes, LDS and memory -------------------------------------------------------------------------


def lane_moves() -> list[Case]:
    """One lane of each few; sums of neighbours."""
    x = _rng().integers(0, 2**32, LANES, dtype=np.uint32)
    lane = np.arange(LANES)
    moved = [x[lane & ~1 | 1], x[lane & ~3 | 2], x[lane & ~15 | 5], x[lane ^ 1], x[lane ^ 2]]
    sums = [np.repeat(x.reshape(-1, n).sum(axis=1, dtype=np.uint32), n) for n in (2, 4, 8, 16)]
    return [Case(_words(x[:, None]), (np.stack([*moved, *sums], axis=1),))]


def barrier() -> list[Case]:
    """Words that travel from wave to wave."""
    x, n = _rng().integers(0, 2**31, (512, 1), dtype=np.uint32), 20
    y = x
    for _ in range(n):
        y = np.roll(y, -257, axis=0) + np.uint32(1)
    return [Case(_words(x), (y,), n=n, rows="thread")]


def s_setprio() -> list[Case]:
    """The same, while half of the waves have a higher priority."""
    x, n = _rng().integers(0, 2**31, (512, 1), dtype=np.uint32), 20
    y = x
    for _ in range(n):
        y = np.roll(y, -256, axis=0) * np.uint32(3) + np.uint32(1)
    return [Case(_words(x), (y,), n=n, rows="thread")]


def atomic_max() -> list[Case]:
    """The maximum of all threads of the grid."""
    x = _rng().integers(0, 2**31, (64 * LANES, 1), dtype=np.uint32)
    return [Case(x, (x.max(axis=0, keepdims=True),), groups=64, initial=0, rows="word")]


def buffer_loads() -> list[Case]:
    """Out of range: zero."""
    n = 64 * LANES
    offsets = (np.arange(LANES) * 16).astype(np.uint32)  # see unaligned_rows for others
    offsets[1::3] = n + 4 * offsets[1::3]
    offsets[2::7] = DMA_OUT_OF_RANGE[0]
    data = np.concatenate([offsets, _rng().integers(0, 2**32, 5 * n, dtype=np.uint32)])
    inside = offsets < n
    at = np.where(inside, offsets // 4, 0)
    wide = np.stack([data[at + i] for i in range(4)], axis=1)
    expected = np.concatenate([wide, data[at][:, None], data[at][:, None] & 0xFFFF], axis=1)
    return [Case(data, (np.where(inside[:, None], expected, 0).astype(np.uint32),), n=n)]


def buffer_stores() -> list[Case]:
    """Out of range: dropped."""
    n = 16 * LANES
    lane = np.arange(LANES, dtype=np.uint32)
    offsets = lane * 16
    offsets[1::3] = n + offsets[1::3]
    offsets[2::5] = DMA_OUT_OF_RANGE[0]
    expected = np.full((2 * LANES, 4), 0xA5A5A5A5, np.uint32)
    stored = offsets < n
    expected[:LANES][stored] = (lane * np.uint32(0x01010101) + np.uint32(1))[stored, None]
    return [Case(offsets, (expected,), n=n, rows="16 bytes")]


def unaligned_rows() -> list[Case]:
    """Rows of 20, 24 and 28 bytes, of which 16 are copied."""
    cases = []
    for n in (4, 8, 12):
        size = (LANES * (n + 16) + n) // 4 + 4
        data = _rng().integers(0, 2**32, size, dtype=np.uint32)
        expected = np.full((size, 1), 0xA5A5A5A5, np.uint32)
        for lane in range(LANES):
            at = (lane * (n + 16) + n) // 4
            expected[at : at + 4, 0] = data[at : at + 4]
        cases.append(Case(data, (expected,), n=n, rows="word"))
    return cases


def packed_f32() -> list[Case]:
    """As f32_arithmetic, of two values at a time."""
    a = _floats((16 * LANES, 2), -8, 8, 12, _EDGES)
    b = _floats((16 * LANES, 2), -7, 9, 12, _EDGES[::-1])
    c = _floats((16 * LANES, 2), -12, 12, 24)
    with np.errstate(all="ignore"):
        fma = (a.astype(np.float64) * b + c).astype(np.float32)
        parts = (a + b, a * b, fma, a * b[:, ::-1])
    return [Case(_words(a, b, c), parts, groups=16)]


def integer_division() -> list[Case]:
    """Numbers of all sizes; quotients just above and below a whole number."""
    rng, count, n = _rng(), 64 * LANES, 641
    x, y = (rng.integers(0, 2**32, count, dtype=np.uint32) >> rng.integers(0, 32, count) for _ in "ab")
    y = np.maximum(y, 1)
    near = x - x % y + rng.integers(-1, 1, count)  # a multiple, or one less
    x = np.where(rng.random(count) < 0.5, near, x).astype(np.uint32)
    x[:3], y[:3] = ONES, (1, ONES, 3)
    expected = np.stack([x // y, x % y, x // n, x % n], axis=1).astype(np.uint32)
    return [Case(_words(np.stack([x, y.astype(np.uint32)], 1)), (expected,), n=n, groups=64)]


def f32_comparisons() -> list[Case]:
    """NaN is unordered; zeros are equal."""
    edges = np.array(_EDGES, np.float32)
    a, b, c = (x.reshape(27 * LANES, 1) for x in np.meshgrid(edges, edges, edges))
    least = _floats(a.shape, -3, 3)
    with np.errstate(invalid="ignore"):
        found = [a < b, a <= b, a > b, a >= b, a == c, ~(b < c), ~(b <= c), ~(b > c), ~(b >= c)]
        found += [a != b, np.isnan(a) | np.isnan(c), ~np.isnan(b) & ~np.isnan(c)]
        flags = sum(x.astype(np.uint32) << np.uint32(i) for i, x in enumerate(found))
        return [Case(_words(a, b, c, least), (flags, np.maximum(b, least)), groups=27)]


def bits() -> list[Case]:
    """Of random words."""
    a, b, c = _rng().integers(0, 2**32, (3, 4 * LANES), dtype=np.uint32)
    both = a.astype(np.uint64) << np.uint64(32) | b
    picked = np.stack([both.view(np.uint8).reshape(-1, 8)[:, i] for i in (0, 5, 2, 7)], axis=1)
    first, count = b & 31, (c & 31).astype(np.uint64)
    ones = ((np.uint64(1) << count) - np.uint64(1)).astype(np.uint32)
    field = a >> first & ones
    with_sign = (a.view(np.int32) >> first.view(np.int32)).view(np.uint32) & ones
    negative = (with_sign & (ones ^ ones >> np.uint32(1))) != 0
    pairs = np.maximum(a.view(np.uint16), b.view(np.uint16)).view(np.uint32)
    expected = (
        *(a & b | ~a & c, a ^ b ^ c, picked.view(np.uint32)[:, 0]),
        *((both >> (c & 31).astype(np.uint64)).astype(np.uint32), field),
        *(np.where(negative, with_sign | ~ones, with_sign), _reversed(a), pairs),
        a & 0x7FFFFFFF | b & 0x80000000,
    )
    return [Case(_words(np.stack([a, b, c], 1)), (np.stack(expected, axis=1),), groups=4)]


def _reversed(x: Array) -> Array:
    ones = x[:, None] >> np.arange(32, dtype=np.uint32) & np.uint32(1)
    return np.asarray((ones << np.arange(31, -1, -1, dtype=np.uint32)).sum(axis=1, dtype=np.uint32))


def register_parts() -> list[Case]:
    """A byte shifted, a half added into the upper half, a byte with its sign."""
    x, y = _rng().integers(0, 2**32, (2, 4 * LANES), dtype=np.uint32)
    shifted = (y >> 16 & 255) << (x & 31)
    added = x & 0xFFFF | (x >> 24) + (y >> 16) << 16
    signed = (x << 16).astype(np.int32) >> 24
    expected = np.stack([shifted, added, signed.astype(np.uint32) | y & 0xFFFF], axis=1)
    return [Case(_words(np.stack([x, y], 1)), (expected,), groups=4)]


def lds_widths() -> list[Case]:
    """Words of the next lane."""
    x = _rng().integers(0, 2**32, (LANES, 8), dtype=np.uint32)
    return [Case(x, (np.roll(x, -1, axis=0),))]


def memory_widths() -> list[Case]:
    """Bytes and halves at their places; of buffers, zero out of range."""
    data = _rng().integers(0, 256, (LANES, 8), dtype=np.uint8)
    stored = np.full((LANES, 8), 0xA5, np.uint8)
    stored[:, [1, 2, 3, 4, 5, 7]] = data[:, [0, 6, 7, 2, 3, 7]]
    half = LANES // 2
    loaded = np.concatenate([_words(data), data[:, 5:6].astype(np.uint32)], axis=1)
    loaded[half:] = 0
    return [
        Case(_words(data), (_words(stored),)),
        Case(_words(data), (loaded,), "buffer_widths", n=8 * half),
    ]


def permlane16_swap() -> list[Case]:
    """Register b of the first 16 lanes of each 32 is a of the next 16, and the reverse."""
    x = _rng().integers(0, 2**32, (4, 16, 2, 4), dtype=np.uint32)
    y = x.copy()
    y[0::2, :, 1], y[1::2, :, 0] = x[1::2, :, 0], x[0::2, :, 1]
    return [Case(x.reshape(LANES, 8), (y.reshape(LANES, 8),))]


def wave_scan() -> list[Case]:
    """Of 100 groups of rows: blocks before each, and the group of each slot."""
    count, slot_rows = 100, 64
    lengths = _rng().integers(0, 200, count)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    blocks = np.concatenate([[0], np.cumsum(-(-lengths // 32))])[:count]
    first = offsets // slot_rows + np.arange(count + 1)
    slot = np.arange(count)
    group = np.searchsorted(first, slot, side="right") - 1
    expected = np.repeat(np.stack([blocks, group], axis=1).astype(np.uint32), LANES, axis=0)
    return [Case(offsets, (expected,), n=count, groups=count)]


def _by_16_lanes(x: Array, source: Callable[[int, int], tuple[int, int]], elements: int) -> Array:
    """Element e of lane j of each 16 comes from the lane and element source(j, e)."""
    y = np.empty((LANES, elements), x.dtype)
    for lane in range(LANES):
        for e in range(elements):
            j, element = source(lane % 16, e)
            y[lane, e] = x[lane // 16 * 16 + j, element]
    return y


def ds_read_b64_tr_b16() -> list[Case]:
    """Lane j of each 16 gets element j of four slices."""
    x = np.arange(LANES * 4, dtype=np.uint16).reshape(LANES, 4)
    return [Case(_words(x), (_by_16_lanes(x, lambda j, e: (4 * e + j // 4, j % 4), 4),))]


def ds_read_b64_tr_b8() -> list[Case]:
    """Lane j of each 16 gets element j of eight slices."""
    x = (np.arange(LANES * 8) ^ np.arange(LANES * 8) // 256 * 165).astype(np.uint8).reshape(LANES, 8)
    return [Case(_words(x), (_by_16_lanes(x, lambda j, e: (2 * e + j // 8, j % 8), 8),))]


def ds_read_b96_tr_b6() -> list[Case]:
    """Lane j of each 16 gets element j of sixteen lanes."""
    x = _rng().integers(0, 64, (LANES, 16), dtype=np.uint8)
    y = _by_16_lanes(x, lambda j, e: (e, j), 16)
    none = np.zeros((LANES, 1), np.uint32)
    return [Case(_words(_pack_bits(x, 6), none), (_pack_bits(y, 6), none))]


def _dma(into: int = 0, offset: int = 0, out_of_range: bool = False) -> Case:
    """16 bytes of each lane, in lane order from `into` + `offset` on; the rest of LDS is all ones."""
    rng, by_wave = _rng(), 16
    offsets = (rng.permutation(LANES) * 16).astype(np.uint32)
    data = rng.integers(0, 2**32, 1024, dtype=np.uint32)
    lanes = np.stack([data[(offsets + by_wave + offset) // 4 + i] for i in range(4)], axis=1)
    if out_of_range:
        for first, beyond in enumerate(DMA_OUT_OF_RANGE):
            offsets[first::5], lanes[first::5] = beyond, 0
    lds = np.full(1024, ONES, np.uint32)
    lds[(into + offset) // 4 :][:256] = lanes.reshape(-1)
    words = np.concatenate([offsets, data])
    return Case(words, (lds.reshape(-1, 4),), "lds_dma", 4096, rows="16 bytes of LDS")


def lds_dma() -> list[Case]:
    """From the start of LDS."""
    return [_dma()]


def lds_dma_m0() -> list[Case]:
    """From the LDS address in M0."""
    return [_named(_dma(into=2048), "lds_dma_m0")]


def lds_dma_offset() -> list[Case]:
    """The instruction's offset counts in memory and in LDS."""
    return [_named(_dma(offset=1024), "lds_dma_offset")]


def lds_dma_range() -> list[Case]:
    """Lanes out of range write zeros."""
    return [_dma(out_of_range=True)]


def _named(case: Case, kernel: str) -> Case:
    return replace(case, kernel=kernel)


def vmcnt() -> list[Case]:
    """What was issued first is complete first, DMA and loads alike."""
    dmas, stride, groups = 8, 8192, 64
    data = _rng().integers(0, 2**32, groups * dmas * stride // 4, dtype=np.uint32)
    lane = np.arange(LANES)
    each = data.reshape(groups, dmas, stride // 4)
    found = each[:, :, lane * 4].transpose(0, 2, 1)
    loaded = each[:, 0, lane * 4 + 1][:, :, None]
    return [Case(data, (np.concatenate([found, loaded], axis=2).reshape(groups * LANES, -1),), groups=groups)]


def lds_size() -> list[Case]:
    """160 KiB: none of the words read back is wrong."""
    return [Case(np.zeros(1, np.uint32), (np.zeros((512, 1), np.uint32),), n=0x5A5A5A5A, rows="thread")]


# ---- matrix instructions ---------------------------------------------------------------------------
# Those of gemm/mfma.hpp get b first: rows of their result are columns of C.


@dataclass(frozen=True)
class Matrix:
    """A matrix instruction: its rows and K, and the formats of a and b. `fnuz`: gfx942's two for e4m3."""

    a: Format
    b: Format
    rows: int = 16
    fnuz: bool = False

    @property
    def k(self) -> int:
        """Elements along K."""
        return 64 if self.fnuz else 32 if self.a in (BF16, F16) else 2048 // self.rows

    def lanes(self, x: Array, to: Format) -> Array:
        """An operand (rows, K) as lanes hold it, eight words each."""
        lane, e = np.arange(LANES)[:, None], np.arange(self.k * self.rows // LANES)
        group = lane // self.rows
        k = len(e) * group + e
        if to.bits == 8:  # two chunks
            k = 16 * group + e % 16 + e // 16 * (self.k // 2)
        codes = np.ascontiguousarray(x[lane % self.rows, k].astype(to.dtype)).view(f"u{to.itemsize}")
        words = _pack_bits(codes, to.bits)
        return np.pad(words, ((0, 0), (0, 8 - words.shape[1])))

    def result(self, x: Array) -> Array:
        """C (rows of a, rows of b) as lanes hold it."""
        lane, r = np.arange(LANES)[:, None], np.arange(self.rows * self.rows // LANES)
        group = lane // self.rows
        n = 4 * group + r if self.rows == 16 else 8 * (r // 4) + 4 * group + r % 4
        return np.ascontiguousarray(x[lane % self.rows, n].astype(np.float32))

    def scales(self, exponents: Array, byte: int = 0) -> Array:
        """Exponents (rows, K/32) as one byte of a word of each lane; the other bytes are others."""
        lane = np.arange(LANES)
        words = _rng().integers(0, 2**32, LANES, dtype=np.uint32)
        found = exponents[lane % self.rows, lane // self.rows].astype(np.uint32)
        return np.asarray(words & ~np.uint32(255 << 8 * byte) | found << np.uint32(8 * byte))

    def case(
        self,
        kernel: str,
        a: Array,
        b: Array,
        c: Array,
        expected: Array,
        scale_words: tuple[Array, Array] | None = None,
    ) -> Case:
        """A case of a kernel that multiplies (rows, K) by (rows, K)."""
        given = self.result(c)
        c_words = np.pad(given.view(np.uint32), ((0, 0), (0, 16 - given.shape[1])))
        scales = np.zeros((LANES, 4), np.uint32)
        if scale_words is not None:
            scales[:, 0], scales[:, 1] = scale_words
        words = _words(self.lanes(a, self.a), self.lanes(b, self.b), c_words, scales)
        return Case(words, (self.result(expected),), kernel)


FNUZ = Matrix(E4M3, E4M3, fnuz=True)


def _integers(m: Matrix) -> tuple[Array, Array, Array]:
    rng = _rng()
    a, b = (rng.integers(-3, 4, (m.rows, m.k)).astype(np.float64) for _ in "ab")
    return a, b, rng.integers(-100, 100, (m.rows, m.rows)).astype(np.float64)


def _product(kernel: str, m: Matrix) -> list[Case]:
    """Small integers, so the order of the sum does not matter."""
    a, b, c = _integers(m)
    return [m.case(kernel, a, b, c, c + a @ b.T)]


def _scaled_product(kernel: str, m: Matrix) -> list[Case]:
    """Each row and block of 32 has a scale of its own."""
    a, b, c = _integers(m)
    rng = _rng()
    exponents = [rng.integers(125, 131, (m.rows, m.k // 32)) for _ in "ab"]
    scaled = [
        x * np.repeat(np.ldexp(1.0, e - 127), 32, axis=1) for x, e in zip((a, b), exponents, strict=True)
    ]
    words = m.scales(exponents[0]), m.scales(exponents[1])
    return [m.case(kernel, a, b, c, c + scaled[0] @ scaled[1].T, words)]


def mfma_scale_bytes() -> list[Case]:
    """Byte i of a's word with byte i + 1 of b's, for all i."""
    m = Matrix(E4M3, E4M3)
    a, b, c = _integers(m)
    rng = _rng()
    bytes_a, bytes_b = (rng.integers(124, 131, (4, m.rows, m.k // 32)) for _ in "ab")
    total, words = c, [np.zeros(LANES, np.uint32)] * 2
    for i in range(4):
        both = bytes_a[i], bytes_b[(i + 1) % 4]
        x, y = (v * np.repeat(np.ldexp(1.0, e - 127), 32, axis=1) for v, e in zip((a, b), both, strict=True))
        total = total + x @ y.T
        words = [
            w | m.scales(e[i], i) & np.uint32(255 << 8 * i)
            for w, e in zip(words, (bytes_a, bytes_b), strict=True)
        ]
    return [m.case("mfma_scale_bytes", a, b, c, total, (words[0], words[1]))]


def mfma_scale_values() -> list[Case]:
    """2^-127 times 2^127 is 1, whatever is out of float32's range between; 255 is NaN for its row only."""
    cases = []
    for kernel, m in (("mfma_scale_e4m3", Matrix(E4M3, E4M3)), ("mfma_scale_e2m1", Matrix(E2M1, E2M1))):
        a, b, c = _integers(m)
        e = np.full((m.rows, m.k // 32), 0)
        e[3, 1] = 255
        expected = c + a @ b.T
        expected[3] = np.nan
        other = np.full_like(e, 254)
        cases.append(m.case(kernel, a, b, c, expected, (m.scales(e), m.scales(other))))
    return cases


def mfma_nan() -> list[Case]:
    """NaN and Inf in one row of a, zeros in b: NaN in that row's results and in no others."""
    cases = []
    for kernel, m in (
        ("mfma_bf16", Matrix(BF16, BF16)),
        ("mfma_f16", Matrix(F16, F16)),
        ("mfma_e5m2", Matrix(E5M2, E5M2)),
    ):
        a, b, c = _integers(m)
        a[5, 7], a[6, 3], a[9, 9] = np.nan, np.inf, -np.inf
        b[:, 3], b[:8, 9], b[8:, 9] = 2, 0, 1
        with np.errstate(invalid="ignore"):
            expected = np.einsum("mk,nk->mn", a, b) + c
        cases.append(m.case(kernel, a, b, c, expected))
    for kernel, m in (("mfma_e4m3", Matrix(E4M3, E4M3)), ("mfma_fnuz", FNUZ)):
        a, b, c = _integers(m)
        a[5, 7] = np.nan
        expected = c + a @ b.T
        expected[5] = np.nan
        cases.append(m.case(kernel, a, b, c, expected))
    return cases


def mfma_denormals() -> list[Case]:
    """Subnormal operands and sums count, and subnormal results are kept."""
    cases = []
    for kernel, m, least, factor in (
        ("mfma_bf16", Matrix(BF16, BF16), 2.0**-133, 2.0**100),
        ("mfma_bf16", Matrix(BF16, BF16), 2.0**-70, 2.0**-75),
        ("mfma_f16", Matrix(F16, F16), 2.0**-24, 1.0),
        ("mfma_e4m3", Matrix(E4M3, E4M3), 2.0**-9, 2.0**-9),
        ("mfma_e5m2", Matrix(E5M2, E5M2), 2.0**-16, 2.0**-16),
        ("mfma_fnuz", FNUZ, 2.0**-9, 2.0**-9),
    ):
        rng = _rng()
        a = rng.integers(-3, 4, (m.rows, m.k)) * least
        b = rng.choice([1.0, 2.0, -1.0], (m.rows, m.k)) * factor
        c = rng.integers(-3, 4, (m.rows, m.rows)) * least * factor
        cases.append(m.case(kernel, a, b, c, c + a @ b.T))
    return cases


def mfma_rounding() -> list[Case]:
    """The sum c + a * b to nearest even: ties, and just above and below them."""
    m, rng = Matrix(BF16, BF16), _rng()
    a, b = np.zeros((m.rows, m.k)), np.zeros((m.rows, m.k))
    factors = rng.choice([1.0, -1.0, 1 - 2.0**-8, 1 + 2.0**-7], m.rows)
    a[np.arange(m.rows), rng.integers(0, m.k, m.rows)] = factors
    b[:] = rng.choice([2.0**-24, 3 * 2.0**-24, 2.0**-25, 2.0**-30], (m.rows, 1))
    c = 1 + rng.integers(0, 8, (m.rows, m.rows)) * 2.0**-23
    c *= rng.choice([1.0, -1.0], c.shape)
    return [m.case("mfma_bf16", a, b, c, (c + a @ b.T).astype(np.float32))]


# ---- the order of sums -----------------------------------------------------------------------------

Sum = Callable[[Array, Array], Array]  # of products (.., K) to c


def _chain(products: Array, c: Array) -> Array:
    for k in range(products.shape[-1]):  # as by fma: products are exact in float64, and so is this sum
        c = (c.astype(np.float64) + products[..., k]).astype(np.float32)
    return c


def _groups(size: int) -> Sum:
    def add(products: Array, c: Array) -> Array:
        return _chain(products.reshape(*products.shape[:-1], -1, size).sum(axis=-1), c)

    return add


def _tree(products: Array, c: Array) -> Array:
    x = products.astype(np.float32)
    while x.shape[-1] > 1:
        x = x[..., 0::2] + x[..., 1::2]
    return np.asarray(c + x[..., 0])


def _two_chains(products: Array, c: Array) -> Array:
    zero = np.zeros_like(c)
    both: Array = _chain(products[..., 0::2], zero) + _chain(products[..., 1::2], zero)
    return np.asarray(c + both)


def _from_zero(products: Array, c: Array) -> Array:
    return np.asarray(c + _chain(products, np.zeros_like(c)))


@dataclass(frozen=True)
class Order:
    """An order in which an instruction may add K products to c, so many at a time.

    `roundings` is n of gamma(n), the bound of the error: the most roundings that a product goes through.
    """

    name: str
    add: Sum
    step: int
    roundings: int

    def __call__(self, products: Array, c: Array) -> Array:
        """Add all products."""
        for first in range(0, products.shape[-1], self.step):
            c = self.add(products[..., first : first + self.step], c)
        return c


def orders(k: int) -> list[Order]:
    """The plausible orders of K products, the most exact first."""
    found = []
    for step in (n for n in (k, 64, 32, 16) if n <= k):
        steps = k // step
        on_from_c: list[tuple[str, Sum, int]] = [
            ("the exact sum, rounded once", _groups(step), 1),
            *(
                (f"exact sums of {n}, one after another", _groups(n), step // n)
                for n in (16, 8, 4, 2)
                if n < step
            ),
            ("one after another", _chain, step),
        ]
        then_c: list[tuple[str, Sum, int]] = [
            ("a balanced tree, then c", _tree, step.bit_length()),
            ("even and odd k in two chains, then both, then c", _two_chains, step // 2 + 2),
            ("one after another from zero, then c", _from_zero, step + 1),
        ]
        each = "" if steps == 1 else f"of each {step} products: "
        found += [Order(each + name, add, step, n * steps) for name, add, n in on_from_c]
        found += [Order(each + name, add, step, n + steps - 1) for name, add, n in then_c]
    return found


def halves(k: int) -> Array:
    """K in the order in which two instructions take it, half of a lane's elements each (gemm/mfma.hpp)."""
    return np.asarray(np.arange(k).reshape(4, 2, k // 8).swapaxes(0, 1).reshape(-1))


def order_inputs(kernel: str) -> tuple[Case, Array, Array]:
    """Values whose sum depends on the order; the products (16, 16, K), and c."""
    rng = _rng()
    form = {"mfma_bf16": BF16, "mfma_f16": F16}.get(kernel, E4M3)
    m = FNUZ if kernel == "mfma_fnuz" else Matrix(form, form)
    a, b = (rng.standard_normal((m.rows, m.k)) * np.exp2(rng.integers(-6, 7, (m.rows, m.k))) for _ in "ab")
    a, b = (cast(x, form).astype(np.float64) for x in (a, b))
    c = rng.standard_normal((m.rows, m.rows)).astype(np.float32)
    words, scale = None, 1.0
    if kernel.startswith("mfma_scale"):
        ones = np.full((m.rows, m.k // 32), 130)
        words, scale = (m.scales(ones), m.scales(ones)), 64.0
    return m.case(kernel, a, b, c, c, words), a[:, None, :] * b[None, :, :] * scale, c


CASES: dict[str, Callable[[], list[Case]]] = {
    function.__name__: function
    for function in (
        *(f32_arithmetic, f32_fields, f32_to_bf16, f32_to_f16, f16_to_f32, e4m3, e5m2, stochastic_rounding),
        *(lane_moves, barrier, s_setprio, atomic_max, buffer_loads, buffer_stores, unaligned_rows),
        *(packed_f32, integer_division, f32_comparisons, bits, register_parts, lds_widths, memory_widths),
        *(permlane16_swap, wave_scan, ds_read_b64_tr_b16, ds_read_b64_tr_b8, ds_read_b96_tr_b6),
        *(lds_dma, lds_dma_m0, lds_dma_offset, lds_dma_range, vmcnt, lds_size),
        *(cvt_sr_fp8_f32, cvt_sr_bf8_f32, mfma_scale_bytes, mfma_scale_values),
        *(mfma_nan, mfma_denormals, mfma_rounding),
    )
}
CASES["mfma_fnuz"] = partial(_product, "mfma_fnuz", FNUZ)
_ELEMENTS = {"bf16": BF16, "f16": F16, "e4m3": E4M3, "e5m2": E5M2, "e2m3": E2M3, "e3m2": E3M2, "e2m1": E2M1}
for _name in ("bf16", "f16", "e4m3", "e5m2"):
    _same = Matrix(_ELEMENTS[_name], _ELEMENTS[_name])
    CASES[f"mfma_{_name}"] = partial(_product, f"mfma_{_name}", _same)
for _name in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "e4m3_e2m1", "e2m3_e5m2"):
    _pair = Matrix(_ELEMENTS[_name[:4]], _ELEMENTS[_name[-4:]])
    CASES[f"mfma_scale_{_name}"] = partial(_scaled_product, f"mfma_scale_{_name}", _pair)
for _name in ("e2m3", "e3m2", "e2m1"):
    _large = Matrix(_ELEMENTS[_name], _ELEMENTS[_name], 32)
    CASES[f"mfma32_scale_{_name}"] = partial(_scaled_product, f"mfma32_scale_{_name}", _large)
for _name, _to, _count in (("fp4", E2M1, 8), ("fp8", E4M3, 4), ("bf8", E5M2, 4)):
    CASES[f"cvt_scalef32_pk_bf16_{_name}"] = partial(_widened, _to, BF16.dtype, _count)
CASES["cvt_scalef32_pk_f32_fp4"] = partial(_widened, E2M1, np.float32, 8)
CASES["cvt_scalef32_pk_fp4_f32"] = partial(_scaled_down, E2M1, 8)
for _name, _to in (("fp6", E2M3), ("bf6", E3M2)):
    CASES[f"cvt_scalef32_pk32_f32_{_name}"] = partial(_widened, _to, np.float32, 32)
    CASES[f"cvt_scalef32_pk32_bf16_{_name}"] = partial(_widened, _to, BF16.dtype, 32)
    CASES[f"cvt_scalef32_2xpk16_{_name}_f32"] = partial(_scaled_down, _to, 32)
