"""Each vector ALU instruction against a NumPy formula. Conversions to small floats: test_isa_valu_small.py;
DPP, SDWA, op_sel, modifiers and modes: test_isa_valu_forms.py."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import asm
import numpy as np
import pytest
from numpy.typing import NDArray
from valu import (
    SAMPLES,
    TABLE_ROWS,
    Case,
    Row,
    Rows,
    Type,
    assert_bits,
    assert_floats,
    launch,
    of_f16,
    random_rows,
)

Array = NDArray[Any]
Formula = Callable[..., Any]
u16, i16, u32, i32, u64, i64 = np.uint16, np.int16, np.uint32, np.int32, np.uint64, np.int64
f32, f64 = np.float32, np.float64


def typed(t: Type, rows: Rows) -> Array:
    """Values of an operand as an array of its own type; packed ones as raw dwords."""
    if t.elements > 1:
        return rows[0] if len(rows) == 1 else rows
    if t.bits == 64:
        x = rows[0].astype(u64) | rows[1].astype(u64) << u64(32)
        return x.view({"f": f64, "i": i64}.get(t.kind, u64))
    if t.bits == 16:
        low = rows[0].astype(u16)
        if t.kind == "bf":
            return (rows[0] << 16).view(f32)
        return low.view({"f": np.float16, "i": i16}.get(t.kind, u16))
    return rows[0].view({"f": f32, "i": i32}.get(t.kind, u32)) if len(rows) == 1 else rows


def to_rows(t: Type, value: Any) -> Rows:
    """Dwords of a result; 16-bit ones in the low half."""
    if t.bits * t.elements > 64:
        return np.asarray(value, u32)
    if t.bits == 64:
        x = np.asarray(value)
        x = x.astype({"f": f64, "i": i64}.get(t.kind, u64)).view(u64)
        return np.stack([x & u64(0xFFFFFFFF), x >> u64(32)]).astype(u32)
    if t.elements > 1:
        return np.asarray(value, u32).reshape(t.dwords, -1)
    x = np.asarray(value)
    if t.bits == 16:
        if t.kind == "f":
            return of_f16(x)[np.newaxis]
        return (x.astype(i64) & 0xFFFF).astype(u32)[np.newaxis]
    if t.kind == "f":
        return x.astype(f32).view(u32)[np.newaxis]
    return (x.astype(i64) & 0xFFFFFFFF).astype(u32)[np.newaxis]


def make_case(row: Row, rng: np.random.Generator) -> Case:
    compare = row.family == "VOPC"
    carry = len(row.destinations) > 1
    sources = list(row.sources)
    select = None
    reads_mask = row.name.startswith(("v_cndmask", "v_addc", "v_subb"))
    if reads_mask:
        sources = sources[:2]
        select = rng.integers(0, 2, SAMPLES).astype(bool)
    name = row.name + (
        "_e64" if row.family in ("VOP1", "VOP2", "VOPC") and "kNoVop3" not in row.flags else ""
    )
    operands = ["{mask}"] if compare else ["{d}"]
    if carry:
        operands.append("{mask}")
    if row.name in ("v_fmaak_f32", "v_madak_f16"):
        operands += ["{a}", "{b}", "0x4200"]
    elif row.name in ("v_fmamk_f32", "v_madmk_f16"):
        operands += ["{a}", "0x4200", "{b}"]
    else:
        operands += ["{a}", "{b}", "{c}"][: len(sources)]
    if reads_mask:
        operands.append("{select}")
    width = Type("", "b", 32 * row.destinations[0].dwords, 1) if not compare else Type("", "b", 32, 1)
    return Case(
        f"{name} {', '.join(operands)}",
        [random_rows(t, rng) for t in sources],
        random_rows(width, rng),
        masks=compare,
        both=carry,
        select=select,
    )


# ---- integers -----------------------------------------------------------------------------------

FORMULAS: dict[str, Formula] = {}
ULPS: dict[str, float] = {}


def define(*names: str, ulps: float = 0) -> Callable[[Formula], Formula]:
    def add(f: Formula) -> Formula:
        for n in filter(asm.has, names):
            FORMULAS[n] = f
            ULPS[n] = ulps
        return f

    return add


def wide(*values: Array) -> list[Array]:
    """As Python integers, which do not overflow."""
    return [v.astype(object) for v in values]


def low24(x: Array) -> Array:
    shift = 8
    return (x.astype(u32) << shift).view(x.dtype) >> shift


def clz32(x: Array) -> Array:
    return np.array([32 - int(v).bit_length() for v in x])


define("v_mov_b32", "v_mov_b64", "v_accvgpr_mov_b32")(lambda a: a)
define("v_not_b32")(lambda a: ~a)
define("v_bfrev_b32")(lambda a: np.array([int(f"{int(x):032b}"[::-1], 2) for x in a]))
define("v_ffbh_u32")(lambda a: np.where(a == 0, -1, clz32(a)))
define("v_ffbl_b32")(lambda a: np.where(a == 0, -1, 31 - clz32(a & -a.astype(i64))))
define("v_ffbh_i32")(lambda a: np.where((a == 0) | (a == -1), -1, clz32(np.where(a < 0, ~a, a))))
define("v_prng_b32")(lambda a: (a << 1) ^ np.where(a >> 31, 197, 0).astype(u32))
define("v_cndmask_b32")(lambda a, b, select: np.where(select, b.view(u32), a.view(u32)))
define("v_add_u32", "v_add_co_u32")(lambda a, b: a + b)
define("v_sub_u32", "v_sub_co_u32")(lambda a, b: a - b)
define("v_subrev_u32", "v_subrev_co_u32")(lambda a, b: b - a)
define("v_addc_co_u32")(lambda a, b, select: a + b + select)
define("v_subb_co_u32")(lambda a, b, select: a - b - select)
define("v_subbrev_co_u32")(lambda a, b, select: b - a - select)
define("v_and_b32")(lambda a, b: a & b)
define("v_or_b32")(lambda a, b: a | b)
define("v_xor_b32")(lambda a, b: a ^ b)
define("v_xnor_b32")(lambda a, b: ~(a ^ b))
for bits in (16, 32, 64):
    define(f"v_lshlrev_b{bits}")(lambda a, b, m=bits - 1: b << (a & m).astype(b.dtype))
    define(f"v_lshrrev_b{bits}")(lambda a, b, m=bits - 1: b >> (a & m).astype(b.dtype))
    define(f"v_ashrrev_i{bits}")(lambda a, b, m=bits - 1: b >> (a & m).astype(b.dtype))
for suffix in ("u16", "i16", "u32", "i32"):
    define(f"v_min_{suffix}")(np.minimum)
    define(f"v_max_{suffix}")(np.maximum)
    define(f"v_min3_{suffix}")(lambda a, b, c: np.minimum(np.minimum(a, b), c))
    define(f"v_max3_{suffix}")(lambda a, b, c: np.maximum(np.maximum(a, b), c))
    define(f"v_med3_{suffix}")(lambda a, b, c: np.sort(np.stack([a, b, c]), axis=0)[1])
define("v_mul_i32_i24", "v_mul_u32_u24")(lambda a, b: low24(a).astype(i64) * low24(b).astype(i64))
define("v_mul_hi_i32_i24", "v_mul_hi_u32_u24")(lambda a, b: low24(a).astype(i64) * low24(b).astype(i64) >> 32)
define("v_mad_i32_i24", "v_mad_u32_u24")(lambda a, b, c: low24(a).astype(i64) * low24(b).astype(i64) + c)
define("v_mul_lo_u32")(lambda a, b: a * b)
define("v_mul_hi_u32")(lambda a, b: a.astype(u64) * b >> u64(32))
define("v_mul_hi_i32")(lambda a, b: a.astype(i64) * b >> 32)
define("v_add_u16", "v_add_i16")(lambda a, b: a + b)
define("v_sub_u16", "v_sub_i16")(lambda a, b: a - b)
define("v_subrev_u16")(lambda a, b: b - a)
define("v_mul_lo_u16")(lambda a, b: a * b)
define("v_mad_u16", "v_mad_i16", "v_mad_legacy_u16", "v_mad_legacy_i16")(lambda a, b, c: a * b + c)
define("v_mad_u32_u16", "v_mad_i32_i16")(lambda a, b, c: a.astype(i64) * b + c)
define("v_mad_u64_u32", "v_mad_i64_i32")(lambda a, b, c: a.astype(c.dtype) * b.astype(c.dtype) + c)
define("v_add_i32")(lambda a, b: a.astype(i64) + b)
define("v_sub_i32")(lambda a, b: a.astype(i64) - b)
define("v_add3_u32")(lambda a, b, c: a + b + c)
define("v_xad_u32")(lambda a, b, c: (a ^ b) + c)
define("v_lshl_add_u32")(lambda a, b, c: (a << (b & 31)) + c)
define("v_add_lshl_u32")(lambda a, b, c: (a + b) << (c & 31))
define("v_lshl_or_b32")(lambda a, b, c: (a << (b & 31)) | c)
define("v_lshl_add_u64")(lambda a, b, c: (a << np.where((b & 7) > 4, 0, b & 7).astype(u64)) + c)
define("v_and_or_b32")(lambda a, b, c: (a & b) | c)
define("v_or3_b32")(lambda a, b, c: a | b | c)
define("v_bfi_b32")(lambda a, b, c: (a & b) | (~a & c))
define("v_bfm_b32")(lambda a, b: ((u32(1) << (a & 31)) - u32(1)) << (b & 31))
define("v_bfe_u32")(lambda a, b, c: (a >> (b & 31)) & ((u32(1) << (c & 31)) - u32(1)))
define("v_alignbit_b32")(lambda a, b, c: (a.astype(u64) << u64(32) | b) >> (c & 31).astype(u64))
define("v_alignbyte_b32")(lambda a, b, c: (a.astype(u64) << u64(32) | b) >> (8 * (c & 3)).astype(u64))
define("v_bcnt_u32_b32")(lambda a, b: np.array([int(x).bit_count() for x in a]) + b)
LANE = np.arange(SAMPLES) % 64
define("v_mbcnt_lo_u32_b32")(
    lambda a, b: (
        np.array([(int(x) & ((1 << min(n, 32)) - 1)).bit_count() for x, n in zip(a, LANE, strict=True)]) + b
    )
)
define("v_mbcnt_hi_u32_b32")(
    lambda a, b: (
        np.array([(int(x) & ((1 << max(n - 32, 0)) - 1)).bit_count() for x, n in zip(a, LANE, strict=True)])
        + b
    )
)


@define("v_bfe_i32")
def bfe_i32(a: Array, b: Array, c: Array) -> Array:
    width = (c & 31).astype(i64)
    field = (a.astype(i64) >> (b & 31)) & ((1 << width) - 1)
    return np.where((width > 0) & (field >> np.maximum(width - 1, 0) & 1 == 1), field - (1 << width), field)


@define("v_perm_b32")
def perm(a: Array, b: Array, c: Array) -> Array:
    data = np.concatenate([(x[:, np.newaxis] >> np.arange(0, 32, 8, u32)) & 255 for x in (b, a)], axis=1)
    out = np.zeros(len(a), u32)
    for n in range(4):
        select = (c >> (8 * n)) & 255
        byte = np.take_along_axis(data, (select & 7)[:, np.newaxis].astype(i64), axis=1)[:, 0]
        sign = np.take_along_axis(data, (2 * (select & 3) + 1)[:, np.newaxis].astype(i64), axis=1)[:, 0] >> 7
        r = np.select(
            [select >= 13, select == 12, select >= 8], [255, 0, sign.astype(i64) * 255], byte.astype(i64)
        )
        out |= r.astype(u32) << (8 * n)
    return out


def byte_parts(x: Array) -> Array:
    return np.stack([x >> n & 255 for n in (0, 8, 16, 24)]).astype(i64)


define("v_lerp_u8")(
    lambda a, b, c: sum(
        ((x + y + (z & 1)) >> 1) << (8 * n)
        for n, (x, y, z) in enumerate(zip(byte_parts(a), byte_parts(b), byte_parts(c), strict=True))
    )
)


def sad(a: Array, b: Array, masked: bool = False) -> Array:
    x, y = byte_parts(a), byte_parts(b)
    difference = abs(x - y)
    return np.where(masked & (y == 0), 0, difference).sum(axis=0)


define("v_sad_u8")(lambda a, b, c: sad(a, b) + c)
define("v_sad_hi_u8")(lambda a, b, c: (sad(a, b) << 16) + c)
define("v_msad_u8")(lambda a, b, c: sad(a, b, masked=True) + c)
define("v_sad_u16")(
    lambda a, b, c: abs((a & 65535).astype(i64) - (b & 65535)) + abs((a >> 16).astype(i64) - (b >> 16)) + c
)
define("v_sad_u32")(lambda a, b, c: abs(a.astype(i64) - b) + c)


def qsad(a: Array, b: Array, c: Array, masked: bool) -> Array:
    out = np.zeros(len(a), u64)
    for n in range(4):
        s = sad((a >> u64(8 * n)) & u64(0xFFFFFFFF), b, masked).astype(u64)
        out |= ((c >> u64(16 * n)) + s & u64(0xFFFF)) << u64(16 * n)
    return out


define("v_qsad_pk_u16_u8")(lambda a, b, c: qsad(a, b, c, False))
define("v_mqsad_pk_u16_u8")(lambda a, b, c: qsad(a, b, c, True))
define("v_mqsad_u32_u8")(
    lambda a, b, c: np.stack(
        [(c[n] + sad((a >> u64(8 * n)) & u64(0xFFFFFFFF), b, True)).astype(u32) for n in range(4)]
    )
)
define("v_sat_pk_u8_i16")(
    lambda a: (
        np.clip(a.astype(u16).view(i16), 0, 255).astype(u32)
        | np.clip((a >> 16).astype(u16).view(i16), 0, 255).astype(u32) << 8
    )
)
define("v_ashr_pk_i8_i32")(
    lambda a, b, c: (
        (np.clip(a >> (c & 31).astype(i32), -128, 127) & 255)
        | (np.clip(b >> (c & 31).astype(i32), -128, 127) & 255) << 8
    )
)
define("v_ashr_pk_u8_i32")(
    lambda a, b, c: (
        np.clip(a >> (c & 31).astype(i32), 0, 255) | np.clip(b >> (c & 31).astype(i32), 0, 255) << 8
    )
)
define("v_cvt_pk_u16_u32")(lambda a, b: np.minimum(a, 65535) | np.minimum(b, 65535) << 16)
define("v_cvt_pk_i16_i32")(
    lambda a, b: (
        (np.clip(a, -32768, 32767) & 65535).astype(u32)
        | (np.clip(b, -32768, 32767) & 65535).astype(u32) << 16
    )
)
define("v_pack_b32_f16")(lambda a, b: a.view(u16).astype(u32) | b.view(u16).astype(u32) << 16)


def halves(x: Array, kind: Any) -> list[Array]:
    return [(x & 65535).astype(u16).view(kind), (x >> 16).astype(u16).view(kind)]


def pair(low: Array, high: Array) -> Array:
    return low.astype(low.dtype).view(u16).astype(u32) | high.view(u16).astype(u32) << 16


def packed(kind: Any, f: Formula) -> Formula:
    return lambda *sources: pair(*(f(*x) for x in zip(*(halves(s, kind) for s in sources), strict=True)))


for suffix, kind in (("u16", u16), ("i16", i16)):
    define(f"v_pk_add_{suffix}")(packed(kind, lambda a, b: a + b))
    define(f"v_pk_sub_{suffix}")(packed(kind, lambda a, b: a - b))
    define(f"v_pk_mad_{suffix}")(packed(kind, lambda a, b, c: a * b + c))
    define(f"v_pk_min_{suffix}")(packed(kind, np.minimum))
    define(f"v_pk_max_{suffix}")(packed(kind, np.maximum))
define("v_pk_mul_lo_u16")(packed(u16, lambda a, b: a * b))
define("v_pk_lshlrev_b16")(packed(u16, lambda a, b: b << (a & 15)))
define("v_pk_lshrrev_b16")(packed(u16, lambda a, b: b >> (a & 15)))
define("v_pk_ashrrev_i16")(packed(i16, lambda a, b: b >> (a & 15)))


def dot(bits: int, signed: bool) -> Formula:
    def f(a: Array, b: Array, c: Array) -> Array:
        total = c.astype(i64)
        for at in range(0, 32, bits):
            x, y = ((v.astype(u32) >> at & ((1 << bits) - 1)).astype(i64) for v in (a, b))
            if signed:
                x, y = (np.where(v >> (bits - 1), v - (1 << bits), v) for v in (x, y))
            total = total + x * y
        return total

    return f


define("v_dot2_i32_i16", "v_dot2c_i32_i16")(dot(16, True))
define("v_dot4_i32_i8", "v_dot4c_i32_i8")(dot(8, True))
define("v_dot8_i32_i4", "v_dot8c_i32_i4")(dot(4, True))
define("v_dot2_u32_u16")(dot(16, False))
define("v_dot4_u32_u8")(dot(8, False))
define("v_dot8_u32_u4")(dot(4, False))


# ---- floats -------------------------------------------------------------------------------------


def quiet(x: Array) -> Array:
    """The same with signalling NaNs made quiet."""
    kind, bit = {2: (u16, 9), 4: (u32, 22), 8: (u64, 51)}[x.dtype.itemsize]
    return np.where(np.isnan(x), (x.view(kind) | kind(1 << bit)).view(x.dtype), x)


def is_signalling(x: Array) -> Array:
    kind, bit = {2: (u16, 9), 4: (u32, 22), 8: (u64, 51)}[x.dtype.itemsize]
    return np.isnan(x) & (x.view(kind) >> kind(bit) & kind(1) == 0)


def order_min(a: Array, b: Array, largest: bool = False) -> Array:
    """v_min / v_max in IEEE mode."""
    less = (a < b) | ((a == b) & np.signbit(a) & ~np.signbit(b))
    r = np.where(less != largest, a, b)
    r = np.where((a == b) & (np.signbit(a) == np.signbit(b)), a, r)
    r = np.where(np.isnan(b), a, r)
    r = np.where(np.isnan(a), b, r)
    r = np.where(is_signalling(b), quiet(b), r)
    return np.where(is_signalling(a), quiet(a), r).astype(a.dtype)


def order_max(a: Array, b: Array) -> Array:
    return order_min(a, b, largest=True)


def med3(a: Array, b: Array, c: Array) -> Array:
    most = order_max(order_max(a, b), c)
    r = np.select([most == a, most == b], [order_max(b, c), order_max(a, c)], order_max(a, b))
    nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(nan, order_min(order_min(a, b), c), r).astype(a.dtype)


def minimum3(largest: bool) -> Formula:
    def f(a: Array, b: Array, c: Array) -> Array:
        r = order_min(order_min(quiet(a), quiet(b), largest), quiet(c), largest)
        return np.where(np.isnan(a) | np.isnan(b) | np.isnan(c), np.nan, r).astype(a.dtype)

    return f


def fma(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once: rounded to odd in float64 first, or f64 itself with fractions."""
    if a.dtype != f64:
        product, addend = a.astype(f64) * b, c.astype(f64)
        total = product + addend
        part = total - product
        error = (product - (total - part)) + (addend - part)
        even = total.view(u64) & u64(1) == 0
        odd = np.nextafter(total, np.copysign(np.inf, error))
        return np.where(np.isfinite(error) & (error != 0) & even, odd, total).astype(a.dtype)
    out = np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, a * b + c)
    for i, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        if np.isfinite([x, y, z]).all():
            exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
            if exact:
                try:
                    out[i] = float(exact)
                except OverflowError:
                    out[i] = np.inf if exact > 0 else -np.inf
    return out


for suffix in ("f16", "f32", "f64"):
    dtype = {"f16": np.float16, "f32": f32, "f64": f64}[suffix]
    define(f"v_add_{suffix}")(lambda a, b: a + b)
    define(f"v_mul_{suffix}")(lambda a, b: a * b)
    define(f"v_min_{suffix}")(order_min)
    define(f"v_max_{suffix}")(order_max)
    define(f"v_fma_{suffix}")(fma)
    define(f"v_trunc_{suffix}")(np.trunc)
    define(f"v_ceil_{suffix}")(np.ceil)
    define(f"v_floor_{suffix}")(np.floor)
    define(f"v_rndne_{suffix}")(np.rint)
    below_one = np.nextafter(dtype(1), dtype(0))
    define(f"v_fract_{suffix}")(lambda a, top=below_one: np.minimum(a - np.floor(a), top))
    define(f"v_frexp_mant_{suffix}")(lambda a: np.frexp(a)[0])
    define(f"v_rcp_{suffix}", ulps=1)(lambda a: a.dtype.type(1) / a)
    define(f"v_sqrt_{suffix}", ulps=1)(np.sqrt)
    define(f"v_rsq_{suffix}", ulps=1)(lambda a: (1 / np.sqrt(a.astype(np.longdouble))).astype(a.dtype))
    ldexp = {"f16": np.float16, "f32": f32, "f64": f64}[suffix]
    define(f"v_ldexp_{suffix}")(
        lambda a, b: (a.astype(np.longdouble) * np.longdouble(2) ** np.clip(b, -3000, 3000)).astype(a.dtype)
    )
for suffix in ("f16", "f32"):
    define(f"v_sub_{suffix}")(lambda a, b: a - b)
    define(f"v_subrev_{suffix}")(lambda a, b: b - a)
    define(f"v_min3_{suffix}")(lambda a, b, c: order_min(order_min(a, b), c))
    define(f"v_max3_{suffix}")(lambda a, b, c: order_max(order_max(a, b), c))
    define(f"v_med3_{suffix}")(med3)
    define(f"v_exp_{suffix}", ulps=1)(lambda a: np.exp2(a.astype(f64)).astype(a.dtype))
    define(f"v_log_{suffix}", ulps=1)(lambda a: np.log2(a.astype(np.longdouble)).astype(a.dtype))
define("v_exp_legacy_f32", ulps=1)(FORMULAS["v_exp_f32"])
define("v_log_legacy_f32", ulps=1)(FORMULAS["v_log_f32"])
define("v_rcp_iflag_f32", ulps=1)(FORMULAS["v_rcp_f32"])
# The f32 transcendentals flush denormals, in and out.
for suffix in ("exp", "log", "rcp", "rsq", "sqrt", "exp_legacy", "log_legacy", "rcp_iflag"):
    inner = FORMULAS[f"v_{suffix}_f32"]

    def flushed(a: Array, f: Formula = inner) -> Array:
        a = np.where(abs(a) < f32(2.0**-126), np.copysign(f32(0), a), a)
        r = f(a)
        return np.where(abs(r) < f32(2.0**-126), np.copysign(f32(0), r), r)

    define(f"v_{suffix}_f32", ulps=1)(flushed)
define("v_fmac_f32", "v_fmac_f64", "v_fma_legacy_f16")(fma)
define("v_fmaak_f32")(lambda a, b: fma(a, b, np.full_like(a, np.array([0x4200], u32).view(f32)[0])))
define("v_fmamk_f32")(lambda a, b: fma(a, np.full_like(a, np.array([0x4200], u32).view(f32)[0]), b))
define("v_mad_f16", "v_mad_legacy_f16", "v_mac_f16")(lambda a, b, c: a * b + c)
define("v_madak_f16")(lambda a, b: a * b + np.float16(3))
define("v_madmk_f16")(lambda a, b: a * np.float16(3) + b)
define("v_minimum3_f32")(minimum3(False))
define("v_maximum3_f32")(minimum3(True))
define("v_mul_legacy_f32")(lambda a, b: np.where((a == 0) | (b == 0), f32(0), a * b))
for name, f in {"add": lambda a, b: a + b, "mul": lambda a, b: a * b, "fma": fma}.items():
    define(f"v_pk_{name}_f16")(packed(np.float16, f))
    define(f"v_pk_{name}_f32")(
        lambda *s, f=f: np.stack([f(*(x[n].view(f32) for x in s)).view(u32) for n in range(2)])
    )
define("v_pk_min_f16")(packed(np.float16, order_min))
define("v_pk_max_f16")(packed(np.float16, order_max))
define("v_pk_minimum3_f16")(packed(np.float16, minimum3(False)))
define("v_pk_maximum3_f16")(packed(np.float16, minimum3(True)))
define("v_pk_fmac_f16")(packed(np.float16, fma))
define("v_pk_mov_b32")(lambda a, b: np.stack([a[0], b[0]]))


def flush32(x: Array) -> Array:
    return np.where(abs(x) < f32(2.0**-126), np.copysign(f32(0), x), x).astype(f32)


def dot2(kind: str, first_c: bool) -> Formula:
    def values(x: Array) -> list[Array]:
        if kind == "bf":
            parts = [(x << 16).view(f32), (x & u32(0xFFFF0000)).view(f32)]
            return [flush32(p) for p in parts]
        parts = [h.astype(f32) for h in halves(x, np.float16)]
        return [np.where(abs(p) < f32(2.0**-14), np.copysign(f32(0), p), p) for p in parts]

    def f(a: Array, b: Array, c: Array) -> Array:
        (a0, a1), (b0, b1) = values(a), values(b)
        c = flush32(c)
        if first_c:
            return flush32(fma(a1, b1, fma(a0, b0, c)))
        return flush32(fma(a1, b1, a0 * b0) + c)

    return f


define("v_dot2_f32_f16", "v_dot2c_f32_f16")(dot2("f", True))
define("v_dot2c_f32_bf16")(dot2("bf", True))
define("v_dot2_f32_bf16")(dot2("bf", False))


def turns(f: Formula) -> Formula:
    """Sine or cosine of 2πx: exact reduction, then float64."""

    def g(a: Array) -> Array:
        fraction = np.where(np.isfinite(a), np.fmod(a.astype(f64), 1.0), np.nan)
        return f(2 * np.pi * fraction).astype(a.dtype)

    return g


def frexp_exponent(a: Array) -> Array:
    return np.where(np.isfinite(a), np.frexp(np.where(np.isfinite(a), a, 0))[1], 0)


define("v_frexp_exp_i32_f32", "v_frexp_exp_i32_f64", "v_frexp_exp_i16_f16")(frexp_exponent)


def cube(part: str) -> Formula:
    def f(x: Array, y: Array, z: Array) -> Array:
        az = (abs(z) >= abs(x)) & (abs(z) >= abs(y))
        ay = abs(y) >= abs(x)
        choices = {
            "id": (np.where(z < 0, 5, 4), np.where(y < 0, 3, 2), np.where(x < 0, 1, 0)),
            "sc": (np.where(z < 0, -x, x), x, np.where(x < 0, z, -z)),
            "tc": (-y, np.where(y < 0, -z, z), -y),
            "ma": (z * 2, y * 2, x * 2),
        }[part]
        return np.select([az, ay], choices[:2], choices[2]).astype(f32)

    return f


for part in ("id", "sc", "tc", "ma"):
    define(f"v_cube{part}_f32")(cube(part))


# ---- conversions --------------------------------------------------------------------------------


def to_integer(kind: Any) -> Formula:
    limits = np.iinfo(kind)

    def f(a: Array) -> Array:
        x = np.nan_to_num(np.trunc(a.astype(np.longdouble)), nan=0, posinf=1e30, neginf=-1e30)
        return np.clip(x, limits.min, limits.max).astype(i64)

    return f


define("v_cvt_i32_f32", "v_cvt_i32_f64")(to_integer(i32))
define("v_cvt_u32_f32", "v_cvt_u32_f64")(to_integer(u32))
define("v_cvt_i16_f16")(to_integer(i16))
define("v_cvt_u16_f16")(to_integer(u16))
define("v_cvt_rpi_i32_f32")(lambda a: to_integer(i32)(np.floor(a.astype(f64) + 0.5)))
define("v_cvt_flr_i32_f32")(lambda a: to_integer(i32)(np.floor(a)))
define("v_cvt_f32_i32", "v_cvt_f32_u32")(lambda a: a.astype(f32))
define("v_cvt_f64_i32", "v_cvt_f64_u32", "v_cvt_f64_f32")(lambda a: a.astype(f64))
define("v_cvt_f32_f64", "v_cvt_f32_f16")(lambda a: a.astype(f32))
define("v_cvt_f16_f32", "v_cvt_f16_i16", "v_cvt_f16_u16")(lambda a: a.astype(np.float16))
define("v_cvt_f32_bf16")(lambda a: a)
define("v_cvt_off_f32_i4")(lambda a: ((a & 15).astype(i64) - 16 * (a >> 3 & 1)) / 16)
for n in range(4):
    define(f"v_cvt_f32_ubyte{n}")(lambda a, n=n: (a >> (8 * n) & 255).astype(f32))


def norm(low: int, high: int) -> Formula:
    return lambda a: np.where(np.isnan(a), 0, np.rint(np.clip(a.astype(f64), low, 1) * high)).astype(i64)


define("v_cvt_norm_i16_f16")(norm(-1, 32767))
define("v_cvt_norm_u16_f16")(norm(0, 65535))
for suffix in ("f32", "f16"):
    for sign, f in (("i", norm(-1, 32767)), ("u", norm(0, 65535))):
        define(f"v_cvt_pknorm_{sign}16_{suffix}")(
            lambda a, b, f=f: (f(a) & 65535).astype(u32) | (f(b) & 65535).astype(u32) << 16
        )
define("v_cvt_pk_f16_f32")(lambda a, b: pair(a.astype(np.float16), b.astype(np.float16)))


@define("v_cvt_pkrtz_f16_f32")
def pkrtz(a: Array, b: Array) -> Array:
    def toward_zero(x: Array) -> Array:
        h = x.astype(np.float16)
        over = np.isinf(h) & np.isfinite(x)
        h = np.where(over, np.copysign(np.float16(65504), x), h).astype(np.float16)
        return np.where(abs(h.astype(f64)) > abs(x.astype(f64)), (h.view(u16) - u16(1)).view(np.float16), h)

    return pair(toward_zero(a).astype(np.float16), toward_zero(b).astype(np.float16))


@define("v_cvt_pk_bf16_f32")
def pk_bf16(a: Array, b: Array) -> Array:
    import ml_dtypes

    return pair(*(x.astype(ml_dtypes.bfloat16).view(u16) for x in (a, b)))


@define("v_cvt_pk_u8_f32", "v_cvt_pkaccum_u8_f32")
def pk_u8(a: Array, b: Array, c: Array) -> Array:
    shift = 8 * (b & 3)
    return (c & ~(u32(255) << shift)) | to_integer(np.uint8)(a).astype(u32) << shift


# ---- comparisons --------------------------------------------------------------------------------

CONDITIONS: dict[str, Formula] = {
    "f": lambda a, b: np.zeros(len(a), bool),
    "lt": lambda a, b: a < b,
    "eq": lambda a, b: a == b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "ne": lambda a, b: a != b,
    "t": lambda a, b: np.ones(len(a), bool),
    "lg": lambda a, b: (a < b) | (a > b),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
    "nge": lambda a, b: ~(a >= b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b),
    "nle": lambda a, b: ~(a <= b),
    "neq": lambda a, b: ~(a == b),
    "nlt": lambda a, b: ~(a < b),
    "tru": lambda a, b: np.ones(len(a), bool),
}


def class_of(a: Array, b: Array) -> Array:
    tiny = np.finfo(a.dtype).tiny
    negative = np.signbit(a)
    subnormal = (a != 0) & (abs(a) < tiny)
    bit = np.select(
        [is_signalling(a), np.isnan(a), np.isinf(a), subnormal, a == 0],
        [0, 1, np.where(negative, 2, 9), np.where(negative, 4, 7), np.where(negative, 5, 6)],
        np.where(negative, 3, 8),
    )
    return b.astype(i64) >> bit & 1


for row in TABLE_ROWS.values():
    if row.family == "VOPC":
        condition = row.name.split("_")[2]
        define(row.name)(class_of if condition == "class" else CONDITIONS[condition])

# ---- the tests ----------------------------------------------------------------------------------

# Run by tests of their own, here or in the other files.
ELSEWHERE = """
    v_nop v_clrexcp v_readfirstlane_b32 v_readlane_b32 v_writelane_b32 v_swap_b32 v_permlane16_swap_b32
    v_permlane32_swap_b32 v_accvgpr_read_b32 v_accvgpr_write_b32 v_accvgpr_mov_b32 v_bitop3_b32 v_bitop3_b16
    v_div_scale_f32 v_div_scale_f64 v_div_fmas_f32 v_div_fmas_f64 v_div_fixup_f32 v_div_fixup_f64
    v_div_fixup_f16 v_div_fixup_legacy_f16 v_trig_preop_f64 v_sin_f32 v_cos_f32 v_sin_f16 v_cos_f16
    v_fma_mix_f32 v_fma_mixlo_f16 v_fma_mixhi_f16 v_mfma_ld_scale_b32 v_screen_partition_4se_b32
    v_cvt_f32_fp8 v_cvt_f32_bf8 v_cvt_pk_f32_fp8 v_cvt_pk_f32_bf8 v_cvt_pk_fp8_f32 v_cvt_pk_bf8_f32
    v_cvt_sr_fp8_f32 v_cvt_sr_bf8_f32 v_cvt_sr_f16_f32 v_cvt_sr_bf16_f32
"""


def test_every_instruction_has_a_formula() -> None:
    vector = [r.name for r in TABLE_ROWS.values() if r.family in ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P")]
    missing = [n for n in vector if n not in FORMULAS and n not in ELSEWHERE.split() and "scalef32" not in n]
    assert not missing


def keeps_half(row: Row) -> bool:
    """16-bit results of instructions with op_sel leave the other half alone; the others clear it."""
    d = row.destinations[0]
    return (
        "kOpSel" in row.flags
        and row.family == "VOP3"
        and ((d.bits == 16 and d.elements == 1) or "ashr_pk" in row.name)
    )


def check(case: Case, row: Row) -> None:
    sources = list(row.sources)
    values = [typed(t, r) for t, r in zip(sources, case.sources, strict=False)]
    if case.select is not None:
        values.append(case.select)
    elif "kReadsDst" in row.flags and not keeps_half(row):
        values.append(typed(row.destinations[0], case.old))
    with np.errstate(all="ignore"):
        want = FORMULAS[row.name](*values)
    if row.family == "VOPC":
        assert_bits(case.result, np.asarray(want).astype(u32)[np.newaxis], case)
        return
    t = row.destinations[0]
    rows = to_rows(t, want)
    if keeps_half(row):
        rows = rows | (case.old & u32(0xFFFF0000))
    value = case.result[: t.dwords]
    if t.kind in ("f", "bf"):
        if t.bits == 16 and t.elements == 1:
            assert_bits(value & u32(0xFFFF0000), rows & u32(0xFFFF0000), case, "high half")
        parts = t.dwords if t.bits == 32 else 1
        for n in range(parts):
            part = slice(n, n + 1) if t.bits == 32 else slice(None)
            assert_floats(value[part], rows[part], t, case, ULPS[row.name])
    else:
        assert_bits(value, rows, case)
    if case.both:
        assert_bits(case.result[t.dwords :], carry_out(row, values)[np.newaxis], case, "carry")


def carry_out(row: Row, values: list[Array]) -> Rows:
    a, b, *rest = wide(*values)
    c = rest[0] if rest else 0
    if row.name.startswith("v_add"):
        r = a + b + c > 0xFFFFFFFF
    elif "rev" in row.name:
        r = b - a - c < 0
    elif row.name.startswith("v_sub"):
        r = a - b - c < 0
    elif row.name == "v_mad_u64_u32":
        r = a * b + c >= 1 << 64
    else:
        r = a * b + c < 0  # the sign of the 65-bit sum
    return np.asarray(r).astype(u32)


FAMILIES = ["VOP1", "VOP2", "VOPC", "VOP3", "VOP3P"]


@pytest.mark.parametrize("family", FAMILIES)
def test_family(family: str) -> None:
    rng = np.random.default_rng(FAMILIES.index(family))
    rows = [
        r
        for r in TABLE_ROWS.values()
        if r.family == family and r.name in FORMULAS and "accvgpr" not in r.name
    ]
    cases = [make_case(r, rng) for r in rows]
    for row, case in zip(rows, cases, strict=True):
        if row.name.startswith("v_cmpx"):  # writes EXEC too: check that, and put it back
            case.teardown = "s_mov_b64 {mask}, exec\ns_mov_b64 exec, -1"
    launch(cases)
    problems = []
    for row, case in zip(rows, cases, strict=True):
        try:
            check(case, row)
        except AssertionError as e:
            problems.append(str(e))
    assert not problems, "\n".join(problems)
