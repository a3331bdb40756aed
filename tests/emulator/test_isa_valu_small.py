"""Conversions from and to 8-, 6- and 4-bit floats, against tables of all their values."""

from __future__ import annotations

import re
from typing import NamedTuple

import asm
import ml_dtypes
import numpy as np
import pytest
from test_isa_valu import Array, f32, f64, typed, u16, u32
from valu import DEFAULT_MODE, SAMPLES, TABLE_ROWS, Case, Row, Rows, Type, assert_bits, launch, random_rows

F32 = Type("", "f", 32, 1)
B32 = Type("", "b", 32, 1)
FP16_OVERFLOW = DEFAULT_MODE | 1 << 23


class Format(NamedTuple):
    """A small float; bits from `over` on (without sign) are infinity or NaN, in FNUZ 0x80 alone is NaN."""

    bits: int
    mantissa: int
    bias: int
    largest: int
    over: int  # what overflow gives

    def values(self) -> Array:
        """All non-negative finite values."""
        code = np.arange(self.largest + 1)
        exponent, mantissa = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        unit = 2.0**-self.mantissa
        return np.where(
            exponent == 0,
            mantissa * unit * 2.0 ** (1 - self.bias),
            (1 + mantissa * unit) * 2.0 ** (exponent - self.bias),
        )


FNUZ = asm.ARCH == "gfx942"
FORMATS = {
    "fp8": Format(8, 3, 8, 0x7F, 0x80) if FNUZ else Format(8, 3, 7, 0x7E, 0x7F),
    "bf8": Format(8, 2, 16, 0x7F, 0x80) if FNUZ else Format(8, 2, 15, 0x7B, 0x7C),
    "fp6": Format(6, 3, 1, 0x1F, 0x1F),
    "bf6": Format(6, 2, 3, 0x1F, 0x1F),
    "fp4": Format(4, 1, 1, 7, 7),
}


def decode(code: Array, fmt: Format, scale: Array | None = None) -> Array:
    magnitude = code & ((1 << (fmt.bits - 1)) - 1)
    x = np.take(fmt.values(), np.minimum(magnitude, fmt.largest))
    x = np.where((code & 0xFF == 0x80) if fmt.over == 0x80 else (magnitude > fmt.largest), np.nan, x)
    if fmt.over == 0x7C:
        x = np.where(magnitude == 0x7C, np.inf, x)
    x = np.where(code >> (fmt.bits - 1) & 1, -x, x)
    return x if scale is None else x * scale


def encode(
    x: Array, fmt: Format, clamp: bool, scale: Array | None = None, seed: Array | None = None
) -> Array:
    """Nearest even; with a seed, its top bits are added to the float and the rest cut off."""
    x = x.astype(f32)
    finite = np.isfinite(x)
    y = abs(np.where(finite, x, 0).astype(f64))
    if seed is not None:
        bits = abs(np.where(finite, x, f32(0))).view(u32).astype(np.int64)
        mantissa, exponent = bits & 0x7FFFFF, bits >> 23
        # Added to the significand, denormal inputs being normalised first.
        small = exponent == 0
        leading = np.floor(np.log2(np.maximum(mantissa, 1))).astype(int)
        shift = np.where(small & (mantissa > 0), 23 - leading, 0)
        significand = np.where(small, mantissa << shift, mantissa | 0x800000)
        power = np.where(small, 1 - shift, exponent) - 150
        y = np.where(y == 0, 0, (significand + (seed >> (9 + fmt.mantissa))) * 2.0**power)
    if scale is not None:
        y = y / np.where(np.isnan(scale), 1, scale)
    values = fmt.values()
    low = np.searchsorted(values, y, side="right") - 1
    bounded = np.append(values, 2 * values[-1] - values[-2])  # one step beyond the largest
    position = (y - values[low]) / (bounded[low + 1] - values[low])
    if seed is None:
        code = low + ((position > 0.5) | ((position == 0.5) & (low % 2 == 1)))
    else:
        code = low + (position >= 1)
    over = fmt.largest if clamp else fmt.over
    code = np.where((code > fmt.largest) | np.isinf(x), over, code)
    nan = np.isnan(x) | (np.isnan(scale) if scale is not None else False)
    code = np.where(nan, (0x80 if fmt.over == 0x80 else 0x7F) if fmt.bits == 8 else fmt.largest, code)
    if fmt.over == 0x80:
        return np.where(code & 0x7F, code | np.signbit(x) << 7, code).astype(u32)
    return (code | np.signbit(x) << (fmt.bits - 1)).astype(u32)


def scale_of(rows: Rows) -> Array:
    field = (rows[0] >> 23 & 255).astype(int)
    return np.where(field == 255, np.nan, 2.0 ** (field - 127.0))


def next_seed(x: Array) -> Array:
    return (x << 1) ^ np.where(x >> 31, 197, 0).astype(u32)


def small_scale(rng: np.random.Generator) -> Rows:
    """Scales near one mostly, any exponent sometimes; mantissa and sign do not matter."""
    common, anywhere = rng.integers(120, 135, SAMPLES), rng.integers(0, 256, SAMPLES)
    field = np.where(rng.random(SAMPLES) < 0.7, common, anywhere)
    rest = rng.integers(0, 1 << 23, SAMPLES) | rng.integers(0, 2, SAMPLES) << 31
    return (field << 23 | rest).astype(u32)[np.newaxis]


def near(fmt: Format, kind: str, rng: np.random.Generator) -> Rows:
    """Values about the format's own: exact ones, ties, neighbours, too small, too large, special."""
    values = fmt.values()
    x = np.concatenate(
        [values, (values[1:] + values[:-1]) / 2, values * 1.01, [values[-1] * 1.2, 1e30, 1e-30]]
    )
    y = (rng.choice(x, SAMPLES) * rng.choice([1.0, -1.0, 1 + 2.0**-20, 0.97], SAMPLES)).astype(f32)
    other = random_rows(F32, rng)[0].view(f32)
    y = np.where(rng.random(SAMPLES) < 0.8, y, other)
    if kind == "f16":
        with np.errstate(all="ignore"):
            return y.astype(np.float16).view(u16).astype(u32)[np.newaxis]
    bits = y.view(u32)
    return (bits >> 16 if kind == "bf16" else bits)[np.newaxis]


def to_float(rows: Array, kind: str) -> Array:
    if kind == "f32":
        return rows.view(f32)
    if kind == "bf16":
        return (rows << 16).view(f32)
    return rows.astype(u16).view(np.float16).astype(f32)


def of_float(x: Array, kind: str, clamp: bool) -> Array:
    """Bits of a widened value, float64 so far; NaN is the quiet one."""
    with np.errstate(all="ignore"):
        if kind == "f32":
            return x.astype(f32).view(u32)
        if kind == "f16":
            h = x.astype(np.float16)
            if clamp:
                h = np.where(np.isinf(h) & np.isfinite(x), np.copysign(np.float16(65504), h), h)
            return h.view(u16).astype(u32)
        bits = x.astype(f32).view(u32)
        return np.where(np.isnan(x), 0x7FC0, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(u32)


def same_floats(got: Array, want: Array, kind: str) -> Array:
    """Which lanes agree, NaNs being one value."""
    limit = {"f32": 0x7F800000, "f16": 0x7C00, "bf16": 0x7F80}[kind]
    top = limit | (limit & -limit) - 1
    return (got == want) | (((got & top) > limit) & ((want & top) > limit))


# v_cvt_[scalef32_][sr_][count_]to_from
NAME = re.compile(r"v_cvt_(scalef32_)?(sr_)?(pk_|pk32_|2xpk16_)?(\w+?)_(\w+)$")


def is_small(row: Row) -> bool:
    match = NAME.match(row.name)
    return match is not None and (match[4] in FORMATS or match[5] in FORMATS)


CONVERSIONS = [r for r in TABLE_ROWS.values() if is_small(r) and r.family in ("VOP1", "VOP3")]


def selects(row: Row) -> list[tuple[int, ...]]:
    """op_sel bits in use: of the source (bits 0, 1) or destination (2, 3)."""
    match = NAME.match(row.name)
    assert match
    _, stochastic, count, to, source = match.groups()
    if row.family == "VOP1" or count in ("pk32_", "2xpk16_"):
        return [()]
    if to in FORMATS:
        if to == "fp4" or stochastic:
            return [(0, 0, b & 1, b >> 1) for b in range(4)]
        return [(0, 0, 0, 0), (0, 0, 0, 1)]
    if count == "pk_" and source != "fp4":
        return [(0, 0, 0, 0), (1, 0, 0, 0)]
    byte = [(b & 1, b >> 1, 0, 0) for b in range(4)]
    return byte + [(b & 1, b >> 1, 0, 1) for b in range(4)] if to == "f16" and not count else byte


def op_sel_text(row: Row, bits: tuple[int, ...]) -> str:
    if not any(bits):
        return ""
    n = len(row.sources)
    four = re.fullmatch(r"v_cvt_sr_(fp8|bf8)_f32|v_cvt_scalef32_pk_fp4_(f16|bf16)", row.name)
    listed = bits if four or n == 3 else (*bits[:n], bits[3])
    return f" op_sel:[{','.join(map(str, listed))}]"


def build(row: Row, bits: tuple[int, ...], rng: np.random.Generator, mode: int | None) -> Case:
    match = NAME.match(row.name)
    assert match
    scaled, _, _, to, source = match.groups()
    sources: list[Rows] = []
    for n, t in enumerate(row.sources):
        if scaled and n == len(row.sources) - 1:
            sources.append(small_scale(rng))
        elif t.kind in ("f", "bf"):  # values to narrow
            parts = [near(FORMATS[to], source, rng) for _ in range(t.elements)]
            if t.bits == 16 and t.elements > 1:
                parts = [low | high << 16 for low, high in zip(parts[::2], parts[1::2], strict=True)]
            sources.append(np.concatenate(parts))
        else:  # codes to widen, seeds
            sources.append(rng.integers(0, 1 << 32, (t.dwords, SAMPLES), np.uint32))
    old = rng.integers(0, 1 << 32, (row.destinations[0].dwords, SAMPLES), np.uint32)
    name = row.name + ("_e64" if row.family == "VOP1" else "")
    operands = ", ".join(["{d}", "{a}", "{b}", "{c}"][: 1 + len(sources)])
    return Case(f"{name} {operands}{op_sel_text(row, bits)}", sources, old, mode=mode)


def check(case: Case, row: Row, bits: tuple[int, ...], clamp: bool) -> None:
    match = NAME.match(row.name)
    assert match
    scaled, stochastic, count, to, source = match.groups()
    a = case.sources[0]
    scale = scale_of(case.sources[-1]) if scaled else None
    if to in FORMATS:
        fmt = FORMATS[to]
        # Elements in order, as floats.
        if source == "f32":
            elements = [to_float(r, "f32") for r in a]
            if count == "pk_" and len(a) == 1:
                elements.append(to_float(case.sources[1][0], "f32"))
            if count == "2xpk16_":
                second = [to_float(r, "f32") for r in case.sources[1]]
                elements = [x for both in zip(elements, second, strict=True) for x in both]
        else:
            shifts = (0, 16) if count else (0,)
            elements = [to_float(r >> n & u32(0xFFFF), source) for r in a for n in shifts]
        seed = case.sources[1][0] if stochastic else None
        out = np.zeros((max(1, len(elements) * fmt.bits // 32), SAMPLES), np.uint64)
        for i, x in enumerate(elements):
            code = encode(x, fmt, clamp, scale, seed).astype(np.uint64)
            at = i * fmt.bits
            out[at // 32] |= code << np.uint64(at % 32) & np.uint64(0xFFFFFFFF)
            if at % 32 + fmt.bits > 32:
                out[at // 32 + 1] |= code >> np.uint64(32 - at % 32)
            seed = None if seed is None else next_seed(seed)
        width = len(elements) * fmt.bits
        want = out.astype(u32)
        if width < 32:
            place = 8 * (bits[2] + 2 * bits[3]) if width == 8 else 16 * bits[3]
            kept = u32(0xFFFFFFFF) ^ u32(((1 << width) - 1) << place)
            want = (case.old & kept) | want << u32(place)
        assert_bits(case.result, want, case)
        return
    fmt = FORMATS[source]
    if count == "pk32_":
        wide = [r.astype(np.uint64) for r in a] + [np.zeros(SAMPLES, np.uint64)]
        codes = []
        for i in range(32):
            word, shift = divmod(6 * i, 32)
            codes.append((wide[word] | wide[word + 1] << np.uint64(32)) >> np.uint64(shift) & np.uint64(63))
        codes = [c.astype(np.int64) for c in codes]
    else:
        low = bits or (0, 0)
        shift = 16 * low[0] if count and fmt.bits == 8 else 8 * (low[0] + 2 * low[1])
        word = (a[0] >> u32(shift)).astype(np.int64)
        mask = (1 << fmt.bits) - 1
        codes = [word & mask] + ([word >> fmt.bits & mask] if count else [])
    values = [of_float(decode(c, fmt, scale), to, clamp) for c in codes]
    if to == "f32":
        got = list(case.result)
    elif count:
        got = [r >> u32(n) & u32(0xFFFF) for r in case.result for n in (0, 16)]
    else:
        high = bits[3]
        kept = u32(0xFFFF if high else 0xFFFF0000)
        assert_bits(case.result & kept, case.old & kept, case, "kept half")
        got = [case.result[0] >> u32(16 * high) & u32(0xFFFF)]
    for i, (g, w) in enumerate(zip(got, values, strict=True)):
        good = same_floats(g, w, to)
        wrong = [(hex(codes[i][j]), hex(g[j]), hex(w[j])) for j in np.flatnonzero(~good)[:4]]
        assert not wrong, f"{case.text} element {i}: {wrong}"


@pytest.mark.parametrize("mode", [None, FP16_OVERFLOW], ids=["overflows", "saturates"])
def test_conversions(mode: int | None) -> None:
    rng = np.random.default_rng(3)
    todo = [(row, bits) for row in CONVERSIONS for bits in selects(row)]
    cases = [build(row, bits, rng, mode) for row, bits in todo]
    for start in range(0, len(cases), 60):
        launch(cases[start : start + 60])
    problems = []
    for (row, bits), case in zip(todo, cases, strict=True):
        try:
            check(case, row, bits, mode is not None)
        except AssertionError as e:
            problems.append(str(e))
    assert not problems, "\n".join(problems)


def test_all_conversions_are_here() -> None:
    names = {r.name for r in CONVERSIONS}
    wanted = {n for n in TABLE_ROWS if "scalef32" in n or re.search(r"cvt.*(fp8|bf8)", n)}
    assert names == wanted
    assert len(names) == (8 if asm.ARCH == "gfx942" else 57)


@asm.only_gfx942
def test_fnuz_is_that_of_ml_dtypes() -> None:
    """The tables above, against another implementation: all codes, and every value near them."""
    rng = np.random.default_rng(5)
    for name, dtype in (("fp8", ml_dtypes.float8_e4m3fnuz), ("bf8", ml_dtypes.float8_e5m2fnuz)):
        codes = np.arange(256)
        np.testing.assert_array_equal(
            decode(codes, FORMATS[name]), codes.astype(np.uint8).view(dtype).astype(f64)
        )
        x = near(FORMATS[name], "f32", rng)[0].view(f32)
        with np.errstate(invalid="ignore"):
            want = x.astype(dtype).view(np.uint8)
        np.testing.assert_array_equal(encode(x, FORMATS[name], False), want)


@asm.only_gfx950
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_stochastic_to_16_bits(kind: str) -> None:
    rng = np.random.default_rng(4)
    dropped = 13 if kind == "f16" else 16
    cases = []
    for high in (0, 1):
        text = f"v_cvt_sr_{kind}_f32 {{d}}, {{a}}, {{b}}" + (" op_sel:[0,0,1]" if high else "")
        seed = rng.integers(0, 1 << 32, (1, SAMPLES), np.uint32)
        cases.append(Case(text, [random_rows(F32, rng), seed], random_rows(B32, rng)))
    launch(cases)
    for high, case in enumerate(cases):
        x, seed = typed(F32, case.sources[0]), case.sources[1][0]
        kept = u32(0xFFFF if high else 0xFFFF0000)
        assert_bits(case.result & kept, case.old & kept, case)
        got = case.result[0] >> u32(16 * high) & u32(0xFFFF)
        magnitude = (x.view(u32) & u32(0x7FFFFFFF)) + (seed >> u32(32 - dropped))
        moved = np.copysign(np.minimum(magnitude, 0x7F800000).astype(u32).view(f32), x)
        finite = np.isfinite(x)
        if kind == "bf16":
            want = moved.view(u32) >> 16
        else:
            with np.errstate(all="ignore"):
                h = moved.astype(np.float16)
                top = np.copysign(np.float16(65504), h)
                h = np.where(np.isinf(h) & (abs(moved) < 65536), top, h).astype(np.float16)
                beyond = abs(h.astype(f64)) > abs(moved.astype(f64))
            want = np.where(beyond & np.isfinite(h), h.view(u16) - 1, h.view(u16)).astype(u32)
        assert_bits(got[np.newaxis], np.where(finite, want, got)[np.newaxis], case)
        back = to_float(got, kind)
        assert (np.isnan(back) == np.isnan(x))[~finite].all()
        assert (back[np.isinf(x)] == x[np.isinf(x)]).all()
