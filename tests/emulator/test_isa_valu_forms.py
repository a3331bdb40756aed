"""Around an operation: operand kinds, EXEC, DPP, SDWA, op_sel, source and output modifiers,
saturation, rounding and denormal modes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import asm
import numpy as np
import pytest
from test_isa_valu import Array, f32, f64, i16, i32, order_max, order_min, typed, u16, u32, u64
from valu import DEFAULT_MODE, SAMPLES, Case, Rows, Type, assert_bits, assert_floats, launch, random_rows

B32, F32, F16, F64 = Type("", "b", 32, 1), Type("", "f", 32, 1), Type("", "f", 16, 1), Type("", "f", 64, 1)
f16 = np.float16


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(11)


def case(text: str, types: list[Type], rng: np.random.Generator, dst: Type = B32, **more: object) -> Case:
    return Case(text, [random_rows(t, rng) for t in types], random_rows(dst, rng), **more)  # type: ignore[arg-type]


# ---- operands and EXEC --------------------------------------------------------------------------


def test_operand_kinds(rng: np.random.Generator) -> None:
    checks = [
        ("v_add_u32_e32 {d}, 0x12345678, {a}", lambda a: a + u32(0x12345678)),
        ("s_mov_b32 s20, 77\nv_add_u32_e32 {d}, s20, {a}", lambda a: a + u32(77)),
        ("v_sub_u32_e64 {d}, {a}, -16", lambda a: a + u32(16)),
        ("s_mov_b32 m0, 9\nv_xor_b32_e32 {d}, m0, {a}", lambda a: a ^ u32(9)),
        ("s_mov_b32 vcc_lo, 5\nv_add_u32_e32 {d}, vcc_lo, {a}", lambda a: a + u32(5)),
        ("v_and_b32_e32 {d}, exec_hi, {a}", lambda a: a),
        ("s_cmp_eq_u32 s8, s8\nv_add_u32_e32 {d}, src_scc, {a}", lambda a: a + u32(1)),
        ("v_add_f32_e32 {d}, 0.5, {a}", lambda a: (a.view(f32) + f32(0.5)).view(u32)),
        ("v_mul_f32_e32 {d}, 0.15915494, {a}", lambda a: (a.view(f32) * f32(0.15915494)).view(u32)),
        ("v_add_f16_e32 {d}, -4.0, {a}", lambda a: (a.astype(u16).view(f16) - f16(4)).view(u16).astype(u32)),
        ("v_cvt_f32_bf16_e32 {d}, 0x4049\nv_add_f32_e32 {d}, {d}, {a}",
         lambda a: (a.view(f32) + np.array([0x40490000], u32).view(f32)).view(u32)),
        ("v_pk_add_f16 {d}, {a}, 2.0 op_sel_hi:[1,0]",
         lambda a: sum((h.view(f16) + f16(2)).view(u16).astype(u32) << n
                       for n, h in ((0, a.astype(u16)), (16, (a >> 16).astype(u16))))),
    ]  # fmt: skip
    if not asm.has("v_cvt_f32_bf16"):
        del checks[10]
    finite = (rng.normal(size=SAMPLES).astype(f32) * 8).view(u32)
    cases = [Case(text, [finite[np.newaxis]], random_rows(B32, rng)) for text, _ in checks]
    halves = rng.normal(size=(2, SAMPLES)).astype(f16).view(u16).astype(u32)
    cases[-1] = Case(checks[-1][0], [(halves[0] | halves[1] << 16)[np.newaxis]], random_rows(B32, rng))
    cases[9] = Case(checks[9][0], [halves[:1]], random_rows(B32, rng))
    launch(cases)
    for (_, want), c in zip(checks, cases, strict=True):
        assert_bits(c.result, want(c.sources[0][0])[np.newaxis], c)


def test_64_bit_constants(rng: np.random.Generator) -> None:
    a = rng.normal(size=SAMPLES)
    rows = np.stack([a.view(u64) & u64(0xFFFFFFFF), a.view(u64) >> u64(32)]).astype(u32)
    checks = [
        ("v_add_f64 {d}, {a}, 0.15915494309189532", a + 0.15915494309189532),
        ("v_mul_f64 {d}, -2.0, {a}", a * -2.0),
        ("v_ceil_f64_e32 {d}, 0x40091eb8", np.full(SAMPLES, 4.0)),  # a literal is the high half
        ("v_add_f64 {d}, |{a}|, -{a}", abs(a) - a),
        ("s_mov_b64 s[20:21], 0x3ff80000\ns_mov_b32 s21, s20\ns_mov_b32 s20, 0\nv_max_f64 {d}, s[20:21], {a}",
         np.maximum(a, 1.5)),
    ]  # fmt: skip
    cases = [Case(text, [rows], np.zeros((2, SAMPLES), u32)) for text, _ in checks]
    launch(cases)
    for (_, want), c in zip(checks, cases, strict=True):
        assert_floats(
            c.result,
            np.stack([want.view(u64) & u64(0xFFFFFFFF), want.view(u64) >> u64(32)]).astype(u32),
            F64,
            c,
        )


# Lanes that the tests leave on.
EXEC = 0xF0F0_1234_8001_7FFE
ACTIVE = np.array([EXEC >> (n % 64) & 1 for n in range(SAMPLES)], bool)
SET_EXEC = f"s_mov_b32 exec_lo, {EXEC & 0xFFFFFFFF:#x}\ns_mov_b32 exec_hi, {EXEC >> 32:#x}"


def test_exec(rng: np.random.Generator) -> None:
    texts = [
        "v_add_u32 {d}, {a}, {b}",
        "v_add_f16_e64 {d}, {a}, {b} clamp",
        "v_pk_add_u16 {d}, {a}, {b}",
        "v_pk_add_u16 {d}, {a}, {b} op_sel:[1,0]",
        "v_mad_i16 {d}, {a}, {b}, {b} op_sel:[0,0,0,1]",
        "v_add_u32_sdwa {d}, {a}, {b} dst_sel:BYTE_1 dst_unused:UNUSED_PRESERVE "
        "src0_sel:BYTE_2 src1_sel:DWORD",
        "v_add_u32_dpp {d}, {a}, {b} quad_perm:[0,1,2,3] row_mask:0xf bank_mask:0xf",
        "v_dot4_i32_i8 {d}, {a}, {b}, {b}",
        "v_fma_mixlo_f16 {d}, {a}, {b}, {b}",
        "v_cvt_pk_fp8_f32 {d}, {a}, {b}",
        "v_pk_mov_b32 {d}, {a}, {b}",
        "v_swap_b32 {d}, {a}",
    ]
    cases = []
    for text in texts:
        wide = "pk_mov" in text
        t = Type("", "b", 64, 1) if wide else B32
        sources = [random_rows(t, rng) for _ in range(2 if "{b}" in text else 1)]
        old = random_rows(t, rng)
        for setup in ("", SET_EXEC):
            cases.append(Case(text, sources, old, setup=setup, teardown="s_mov_b64 exec, -1"))
    cases.append(Case("v_cmp_lt_u32_e64 {mask}, {a}, {b}", cases[0].sources, cases[0].old,
                      masks=True, setup=SET_EXEC,
                      teardown="s_mov_b64 exec, -1"))  # fmt: skip
    launch(cases)
    for all_, some in zip(cases[:-1:2], cases[1:-1:2], strict=True):
        assert_bits(some.result, np.where(ACTIVE, all_.result, all_.old), some)
    a, b = (r[0] for r in cases[-1].sources)
    assert_bits(cases[-1].result, ((a < b) & ACTIVE).astype(u32)[np.newaxis], cases[-1])


# ---- DPP ----------------------------------------------------------------------------------------


def dpp_controls() -> Iterator[tuple[str, list[int]]]:
    """Each control, and the lane each lane reads; -1 for none."""
    lanes = range(64)
    for p in ((1, 0, 3, 2), (3, 3, 0, 1)):
        yield f"quad_perm:[{','.join(map(str, p))}]", [(n & ~3) + p[n & 3] for n in lanes]
    for k in (1, 7, 15):
        yield f"row_shl:{k}", [n + k if n % 16 + k < 16 else -1 for n in lanes]
        yield f"row_shr:{k}", [n - k if n % 16 >= k else -1 for n in lanes]
        yield f"row_ror:{k}", [(n & ~15) + (n % 16 - k) % 16 for n in lanes]
    yield "wave_shl:1", [n + 1 if n < 63 else -1 for n in lanes]
    yield "wave_rol:1", [(n + 1) % 64 for n in lanes]
    yield "wave_shr:1", [n - 1 for n in lanes]
    yield "wave_ror:1", [(n - 1) % 64 for n in lanes]
    yield "row_mirror", [(n & ~15) + 15 - n % 16 for n in lanes]
    yield "row_half_mirror", [(n & ~7) + 7 - n % 8 for n in lanes]
    yield "row_bcast:15", [(n & ~15) - 1 if n > 15 else -1 for n in lanes]
    yield "row_bcast:31", [(n & ~31) - 1 if n > 31 else -1 for n in lanes]
    for k in (0, 9):
        yield f"row_newbcast:{k}", [(n & ~15) + k for n in lanes]


@pytest.mark.parametrize("setup", ["", SET_EXEC], ids=["all", "some"])
@pytest.mark.parametrize("masks", ["row_mask:0xf bank_mask:0xf", "row_mask:0xb bank_mask:0x6"])
@pytest.mark.parametrize("bound", ["", " bound_ctrl:1"])
def test_dpp(setup: str, masks: str, bound: str, rng: np.random.Generator) -> None:
    controls = list(dpp_controls())
    cases = [
        Case(f"v_sub_u32_dpp {{d}}, {{a}}, {{b}} {name} {masks}{bound}",
             [random_rows(B32, rng) for _ in range(2)],
             random_rows(B32, rng), setup=setup, teardown="s_mov_b64 exec, -1")
        for name, _ in controls
    ]  # fmt: skip
    launch(cases)
    on = ACTIVE[:64] if setup else np.ones(64, bool)
    rows, banks = (int(x, 16) for x in re.findall(r"0x(.)", masks))
    lane = np.arange(64)
    enabled = on & (rows >> (lane // 16) & 1 == 1) & (banks >> (lane // 4 % 4) & 1 == 1)
    for (_, source), c in zip(controls, cases, strict=True):
        index = np.array(source)
        valid = (index >= 0) & on[index]
        a, b, old = (x.reshape(-1, 64) for x in (c.sources[0], c.sources[1], c.old))
        moved = np.where(valid, a[:, index], 0)
        writes = enabled & (valid | bool(bound))
        want = np.where(writes, moved - b, old)
        assert_bits(c.result, want.reshape(1, -1), c)


def test_dpp_of_other_kinds(rng: np.random.Generator) -> None:
    """Modifiers, 64 bits, an operation that reads its destination, a carry."""
    masks = "row_mask:0xf bank_mask:0xf"
    wide = Type("", "b", 64, 1)
    cases = [
        case(f"v_add_f32_dpp {{d}}, -{{a}}, |{{b}}| row_mirror {masks}", [F32, F32], rng),
        case(f"v_mov_b64_dpp {{d}}, {{a}} row_newbcast:3 {masks}", [wide], rng, wide),
        case(f"v_fmac_f32_dpp {{d}}, {{a}}, {{b}} row_ror:4 {masks}", [F32, F32], rng, F32),
        case(f"v_add_f16_dpp {{d}}, {{a}}, -{{b}} row_half_mirror {masks}", [F16, F16], rng),
        case(f"v_cndmask_b32_dpp {{d}}, {{a}}, {{b}}, vcc row_mirror {masks}", [B32, B32], rng,
             setup="s_mov_b32 vcc_lo, 0x12345678\ns_mov_b32 vcc_hi, 0x9abcdef0"),
    ]  # fmt: skip
    launch(cases)
    lane = np.arange(SAMPLES)
    mirror, half = (lane & ~15) + 15 - lane % 16, (lane & ~7) + 7 - lane % 8
    with np.errstate(all="ignore"):
        c = cases[0]
        a, b = (typed(F32, r) for r in c.sources)
        assert_floats(c.result, (-a[mirror] + abs(b)).view(u32)[np.newaxis], F32, c)
        assert_bits(cases[1].result, cases[1].sources[0][:, (lane & ~15) + 3], cases[1])
        c = cases[2]
        a, b = (typed(F32, r).astype(np.longdouble) for r in c.sources)
        want = (a[(lane & ~15) + (lane % 16 - 4) % 16] * b + typed(F32, c.old)).astype(f32)
        assert_floats(c.result, want.view(u32)[np.newaxis], F32, c)
        c = cases[3]
        a, b = (typed(F16, r) for r in c.sources)
        assert_floats(c.result, (a[half] - b).view(u16).astype(u32)[np.newaxis], F16, c)
    c = cases[4]
    bit = 0x9ABCDEF012345678 >> (lane % 64).astype(object) & 1
    assert_bits(c.result, np.where(bit == 1, c.sources[1][0], c.sources[0][0][mirror])[np.newaxis], c)


# ---- SDWA ---------------------------------------------------------------------------------------

SELECTS = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8), "WORD_0": (0, 16),
           "WORD_1": (16, 16), "DWORD": (0, 32)}  # fmt: skip


def part(x: Array, select: str, extend: bool = False) -> Array:
    shift, width = SELECTS[select]
    value = x >> u32(shift) & u32((1 << width) - 1)
    if extend and width < 32:
        value = np.where(value >> u32(width - 1), value | u32(0xFFFFFFFF ^ ((1 << width) - 1)), value)
    return value.astype(u32)


def insert(result: Array, old: Array, select: str, unused: str) -> Array:
    shift, width = SELECTS[select]
    if width == 32:
        return result
    mask = (1 << width) - 1
    value = (result & u32(mask)) << u32(shift)
    if unused == "UNUSED_PRESERVE":
        return value | (old & u32(0xFFFFFFFF ^ (mask << shift)))
    if unused == "UNUSED_SEXT":
        above = 0xFFFFFFFF ^ ((1 << (shift + width)) - 1)
        return np.where(result >> u32(width - 1) & u32(1), value | u32(above), value)
    return value


def test_sdwa(rng: np.random.Generator) -> None:
    names = list(SELECTS)
    unuseds = ["UNUSED_PAD", "UNUSED_SEXT", "UNUSED_PRESERVE"]
    todo = []
    for n in range(84):
        s0, s1, d, unused = names[n % 7], names[n // 7 % 7], names[rng.integers(7)], unuseds[n % 3]
        extend = (bool(n & 1), bool(n & 2))
        a, b = ("sext({})" if e else "{}" for e in extend)
        text = (f"v_add_u32_sdwa {{d}}, {a.format('{a}')}, {b.format('{b}')} dst_sel:{d} dst_unused:{unused} "
                f"src0_sel:{s0} src1_sel:{s1}")  # fmt: skip
        todo.append((s0, s1, d, unused, extend, case(text, [B32, B32], rng)))
    launch([t[-1] for t in todo])
    for s0, s1, d, unused, extend, c in todo:
        a, b = (part(r[0], s, e) for r, s, e in zip(c.sources, (s0, s1), extend, strict=True))
        assert_bits(c.result, insert(a + b, c.old[0], d, unused)[np.newaxis], c)


def test_sdwa_of_other_kinds(rng: np.random.Generator) -> None:
    cases = [
        case("v_add_f16_sdwa {d}, -{a}, |{b}| dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE "
             "src0_sel:WORD_1 src1_sel:WORD_0",
             [F16, F16], rng),
        case("v_cmp_lt_i32_sdwa {mask}, sext({a}), sext({b}) src0_sel:WORD_1 src1_sel:BYTE_0",
             [B32, B32], rng, masks=True),
        case("s_mov_b32 s20, 0x12345678\nv_lshlrev_b32_sdwa {d}, {a}, s20 dst_sel:DWORD "
             "dst_unused:UNUSED_PAD src0_sel:BYTE_3 src1_sel:WORD_1", [B32], rng),
        case("v_cvt_f32_ubyte0_sdwa {d}, {a} dst_sel:DWORD dst_unused:UNUSED_PAD "
             "src0_sel:BYTE_2", [B32], rng),
        case("v_mov_b32_sdwa {d}, {a} dst_sel:BYTE_3 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_0", [B32], rng),
        case("v_max_f32_sdwa {d}, {a}, {b} clamp dst_sel:DWORD dst_unused:UNUSED_PAD "
             "src0_sel:DWORD src1_sel:DWORD",
             [F32, F32], rng),
        case("v_add_co_u32_sdwa {d}, vcc, {a}, {b} dst_sel:DWORD dst_unused:UNUSED_PAD "
             "src0_sel:DWORD src1_sel:WORD_1\n"
             "s_mov_b64 {mask}, vcc", [B32, B32], rng, both=True),
        case("v_cvt_f32_fp8_sdwa {d}, {a} src0_sel:BYTE_3", [B32], rng),
    ]  # fmt: skip
    cases[-1].sources = [(rng.integers(0, 256, SAMPLES) & 0xF8 & 0x77 | 8).astype(u32)[np.newaxis] << u32(24)]
    launch(cases)
    with np.errstate(all="ignore"):
        c = cases[0]
        a, b = (
            part(r[0], s).astype(u16).view(f16) for r, s in zip(c.sources, ("WORD_1", "WORD_0"), strict=True)
        )
        assert_floats(c.result >> 16, (-a + abs(b)).view(u16).astype(u32)[np.newaxis], F16, c)
        assert_bits(c.result & u32(0xFFFF), c.old & u32(0xFFFF), c)
        c = cases[5]
        x = order_max(*(typed(F32, r) for r in c.sources))
        assert_floats(c.result, clamped(x).view(u32)[np.newaxis], F32, c)
    c = cases[1]
    a, b = (part(r[0], s, True).view(i32) for r, s in zip(c.sources, ("WORD_1", "BYTE_0"), strict=True))
    assert_bits(c.result, (a < b).astype(u32)[np.newaxis], c)
    c = cases[2]
    assert_bits(c.result, (u32(0x1234) << (part(c.sources[0][0], "BYTE_3") & u32(31)))[np.newaxis], c)
    c = cases[3]
    assert_bits(c.result, part(c.sources[0][0], "BYTE_2").astype(f32).view(u32)[np.newaxis], c)
    c = cases[4]
    assert_bits(c.result, insert(c.sources[0][0], c.old[0], "BYTE_3", "UNUSED_PRESERVE")[np.newaxis], c)
    c = cases[6]
    a, b = c.sources[0][0].astype(u64), part(c.sources[1][0], "WORD_1").astype(u64)
    assert_bits(c.result, np.stack([a + b & u64(0xFFFFFFFF), (a + b) >> u64(32)]).astype(u32), c)
    c = cases[7]
    code = (c.sources[0][0] >> u32(24)).astype(int)
    value = (1 + (code & 7) / 8) * 2.0 ** ((code >> 3 & 15) - 7.0)
    want = np.where(code & 0x78 == 0, (code & 7) * 2.0**-9, value) * np.where(code >> 7, -1, 1)
    if asm.ARCH == "gfx942":  # FNUZ: the bias is one more
        want = want / 2
    assert_bits(c.result, want.astype(f32).view(u32)[np.newaxis], c)


# ---- op_sel and modifiers -----------------------------------------------------------------------


def half_of(rows: Rows, high: int, kind: type = f16) -> Array:
    return (rows[0] >> u32(16 * high)).astype(u16).view(kind)


def test_op_sel(rng: np.random.Generator) -> None:
    todo = []
    for bits in range(16):
        select = ",".join(str(bits >> n & 1) for n in range(4))
        for name, kind in (
            ("v_mad_i16", i16),
            ("v_mad_u16", u16),
            ("v_fma_f16", f16),
            ("v_min3_i16", i16),
            ("v_max3_f16", f16),
        ):
            text = f"{name} {{d}}, {{a}}, {{b}}, {{c}} op_sel:[{select}]"
            todo.append((name, kind, bits, case(text, [F16 if kind is f16 else B32] * 3, rng)))
    wide = [
        case(f"v_mad_u32_u16 {{d}}, {{a}}, {{b}}, {{c}} op_sel:[{s & 1},{s >> 1},0,0]", [B32] * 3, rng)
        for s in range(4)
    ]
    launch([t[-1] for t in todo] + wide)
    for name, kind, bits, c in todo:
        a, b, x = (half_of(r, bits >> n & 1, kind) for n, r in enumerate(c.sources))
        with np.errstate(all="ignore"):
            if name == "v_fma_f16":
                want = (a.astype(np.longdouble) * b + x).astype(f16)
            elif name == "v_min3_i16":
                want = np.minimum(np.minimum(a, b), x)
            elif name == "v_max3_f16":
                want = order_max(order_max(a, b), x)
            else:
                want = a * b + x
        high = bits >> 3
        kept = u32(0xFFFF if high else 0xFFFF0000)
        assert_bits(c.result & kept, c.old & kept, c, "kept half")
        got = c.result >> u32(16 * high) & u32(0xFFFF)
        rows = want.view(u16).astype(u32)[np.newaxis]
        (assert_floats(got, rows, F16, c) if kind is f16 else assert_bits(got, rows, c))
    for s, c in enumerate(wide):
        a, b = (half_of(r, s >> n & 1, u16).astype(u32) for n, r in enumerate(c.sources[:2]))
        assert_bits(c.result, (a * b + c.sources[2][0])[np.newaxis], c)


def test_packed_selects_and_signs(rng: np.random.Generator) -> None:
    todo = []
    for n in range(16):
        lo, hi, neg, neg_hi = n & 3, n >> 2 & 3, (n * 7) & 3, (n * 5) >> 1 & 3
        lists = [f"[{x & 1},{x >> 1}]" for x in (lo, hi, neg, neg_hi)]
        text = "v_pk_add_f16 {{d}}, {{a}}, {{b}} op_sel:{} op_sel_hi:{} neg_lo:{} neg_hi:{}".format(*lists)
        pair = Type("", "f", 16, 2)
        todo.append(
            (lo, hi, neg, neg_hi, case(text.replace("{{", "{").replace("}}", "}"), [pair, pair], rng))
        )
    wide = []
    for n in range(16):
        lists = [f"[{x & 1},{x >> 1}]" for x in (n & 3, n >> 2, (n * 7) & 3, (n * 5) >> 1 & 3)]
        text = "v_pk_mul_f32 {d}, {a}, {b} " + "op_sel:{} op_sel_hi:{} neg_lo:{} neg_hi:{}".format(*lists)
        pair = Type("", "f", 32, 2)
        wide.append(
            (
                n & 3,
                n >> 2,
                (n * 7) & 3,
                (n * 5) >> 1 & 3,
                case(text, [pair, pair], rng, Type("", "b", 64, 1)),
            )
        )
    launch([t[-1] for t in todo] + [t[-1] for t in wide])
    with np.errstate(all="ignore"):
        for lo, hi, neg, neg_hi, c in todo:
            for half, select, sign in ((0, lo, neg), (1, hi, neg_hi)):
                a, b = (
                    half_of(r, select >> n & 1) * f16(-1 if sign >> n & 1 else 1)
                    for n, r in enumerate(c.sources)
                )
                want = (a + b).view(u16).astype(u32)[np.newaxis]
                assert_floats(c.result >> u32(16 * half) & u32(0xFFFF), want, F16, c)
        for lo, hi, neg, neg_hi, c in wide:
            for half, select, sign in ((0, lo, neg), (1, hi, neg_hi)):
                a, b = (
                    r[select >> n & 1].view(f32) * f32(-1 if sign >> n & 1 else 1)
                    for n, r in enumerate(c.sources)
                )
                assert_floats(c.result[half : half + 1], (a * b).view(u32)[np.newaxis], F32, c)


def clamped(x: Array) -> Array:
    """To [0, 1]; NaN becomes 0."""
    return np.where(x > 0, np.minimum(x, 1), 0).astype(x.dtype)


def test_source_modifiers_and_clamp(rng: np.random.Generator) -> None:
    kinds = (("f32", F32, f32), ("f16", F16, f16), ("f64", F64, f64))
    todo = []
    for suffix, t, kind in kinds:
        for text, f in (
            ("v_add_{} {{d}}, -{{a}}, |{{b}}|", lambda a, b: -a + abs(b)),
            ("v_mul_{} {{d}}, -|{{a}}|, -{{b}}", lambda a, b: -abs(a) * -b),
            ("v_max_{} {{d}}, -{{a}}, {{b}} clamp", lambda a, b: clamped(order_max(-a, b))),
            ("v_add_{} {{d}}, {{a}}, {{b}} clamp", lambda a, b: clamped(a + b)),
        ):
            name = text.format(suffix)
            name = name if suffix == "f64" else name.replace(f"_{suffix} ", f"_{suffix}_e64 ")
            todo.append((t, kind, f, case(name, [t, t], rng, Type("", "b", 32 * t.dwords, 1))))
    mask = case("v_cmp_gt_f32_e64 {mask}, |{a}|, -{b}", [F32, F32], rng, masks=True)
    select = case(
        "v_cndmask_b32_e64 {d}, -{a}, |{b}|, vcc",
        [F32, F32],
        rng,
        setup="s_mov_b64 vcc, exec\ns_mov_b32 vcc_lo, 0",
    )
    launch([t[-1] for t in todo] + [mask, select])
    with np.errstate(all="ignore"):
        for t, kind, f, c in todo:
            a, b = (typed(t, r) for r in c.sources)
            want = np.asarray(f(a, b), kind)
            if t is F64:
                rows = np.stack([want.view(u64) & u64(0xFFFFFFFF), want.view(u64) >> u64(32)]).astype(u32)
            else:
                rows = want.view(u16 if t is F16 else u32).astype(u32)[np.newaxis]
            assert_floats(c.result, rows, t, c)
        a, b = (typed(F32, r) for r in mask.sources)
        assert_bits(mask.result, (abs(a) > -b).astype(u32)[np.newaxis], mask)
    a, b = (r[0] for r in select.sources)
    upper = np.arange(SAMPLES) % 64 >= 32
    assert_bits(select.result, np.where(upper, b & u32(0x7FFFFFFF), a ^ u32(0x80000000))[np.newaxis], select)


def test_integer_saturation(rng: np.random.Generator) -> None:
    limits = {"u32": (0, 2**32 - 1), "i32": (-(2**31), 2**31 - 1), "u16": (0, 65535), "i16": (-32768, 32767)}
    kinds = {"u32": u32, "i32": i32, "u16": u16, "i16": i16}
    operations = [
        ("v_add_u32_e64", "u32", 2, lambda a, b: a + b), ("v_sub_u32_e64", "u32", 2, lambda a, b: a - b),
        ("v_subrev_u32_e64", "u32", 2, lambda a, b: b - a), ("v_add_i32", "i32", 2, lambda a, b: a + b),
        ("v_sub_i32", "i32", 2, lambda a, b: a - b), ("v_add_u16_e64", "u16", 2, lambda a, b: a + b),
        ("v_sub_u16_e64", "u16", 2, lambda a, b: a - b), ("v_add_i16", "i16", 2, lambda a, b: a + b),
        ("v_sub_i16", "i16", 2, lambda a, b: a - b), ("v_mad_u16", "u16", 3, lambda a, b, c: a * b + c),
        ("v_mad_i16", "i16", 3, lambda a, b, c: a * b + c), ("v_mad_i32_i24", "i32", 3, None),
        ("v_mad_u32_u24", "u32", 3, None), ("v_sad_u32", "u32", 3, lambda a, b, c: abs(a - b) + c),
        ("v_pk_add_u16", "u16", 2, lambda a, b: a + b), ("v_pk_sub_i16", "i16", 2, lambda a, b: a - b),
        ("v_pk_mad_u16", "u16", 3, lambda a, b, c: a * b + c),
        ("v_pk_mad_i16", "i16", 3, lambda a, b, c: a * b + c),
        ("v_pk_mul_lo_u16", "u16", 2, lambda a, b: a * b), ("v_dot4_i32_i8", "i32", 3, None),
        ("v_dot8_u32_u4", "u32", 3, None), ("v_dot2_i32_i16", "i32", 3, None),
    ]  # fmt: skip
    cases = [
        case(f"{name} {', '.join(['{d}', '{a}', '{b}', '{c}'][: n + 1])} clamp", [B32] * n, rng)
        for name, _, n, _ in operations
    ]
    launch(cases)
    for (name, suffix, _, f), c in zip(operations, cases, strict=True):
        low, high = limits[suffix]

        def whole(x: Array, kind: type = kinds[suffix]) -> Array:
            return (
                x.astype(u16).view(kind).astype(object) if kind in (u16, i16) else x.view(kind).astype(object)
            )

        def fields(x: Array, width: int, signed: bool) -> list[Array]:
            out = [(x >> u32(at) & u32((1 << width) - 1)).astype(object) for at in range(0, 32, width)]
            return [np.where(v >> (width - 1), v - (1 << width), v) if signed else v for v in out]

        sources = [r[0] for r in c.sources]
        if "dot" in name or "24" in name:
            width = 24 if "24" in name else 32 // int(name[5])
            signed = suffix == "i32"
            x, y = (
                fields(s & u32(0xFFFFFF) if width == 24 else s, width, signed)[: 1 if width == 24 else None]
                for s in sources[:2]
            )
            total = sum(p * q for p, q in zip(x, y, strict=True)) + whole(sources[2])
            want = np.clip(total, low, high) & 0xFFFFFFFF
        elif "pk" in name:
            parts = [
                np.clip(f(*(whole(s >> u32(16 * h)) for s in sources)), low, high) & 0xFFFF for h in range(2)
            ]
            want = parts[0] | parts[1] << 16
        else:
            want = np.clip(f(*(whole(s) for s in sources)), low, high) & (high | -low) & 0xFFFFFFFF
            if "16" in name:
                want = want & 0xFFFF
            if name in ("v_add_i16", "v_sub_i16", "v_mad_u16", "v_mad_i16"):
                want = want | (c.old[0] & u32(0xFFFF0000)).astype(object)
        assert_bits(c.result, want.astype(u32)[np.newaxis], c)


# ---- modes --------------------------------------------------------------------------------------


def rounded(exact: Array, kind: type, mode: int) -> Array:
    """A float64 (or long double) value to a narrower type: 0 nearest, 1 up, 2 down, 3 towards zero."""
    with np.errstate(all="ignore"):
        r = exact.astype(kind)
        too_big, too_small = r > exact, r < exact
        down, up = np.nextafter(r, kind(-np.inf)), np.nextafter(r, kind(np.inf))
        toward = np.where(exact > 0, np.where(too_big, down, r), np.where(too_small, up, r))
        return {0: r, 1: np.where(too_small, up, r), 2: np.where(too_big, down, r), 3: toward}[mode].astype(
            kind
        )


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_rounding_modes(mode: int, rng: np.random.Generator) -> None:
    single, double = DEFAULT_MODE | mode, DEFAULT_MODE | mode << 2
    a, b = (rng.normal(size=SAMPLES).astype(f32) * 2.0 ** rng.integers(-8, 8, SAMPLES) for _ in range(2))
    a, b = a.astype(f32), b.astype(f32)
    big = (65000 + 800 * rng.random(SAMPLES)).astype(f32) * np.where(rng.random(SAMPLES) < 0.5, 1, -1).astype(
        f32
    )
    big = np.where(rng.random(SAMPLES) < 0.5, big, a).astype(f32)
    ha, hb = a.astype(f16), b.astype(f16)
    doubles = a.astype(f64) * np.pi
    rows = {x: v.view(u32)[np.newaxis] for x, v in (("a", a), ("b", b), ("big", big))}
    halves = [v.view(u16).astype(u32)[np.newaxis] for v in (ha, hb)]
    double_rows = np.stack([doubles.view(u64) & u64(0xFFFFFFFF), doubles.view(u64) >> u64(32)]).astype(u32)
    old = np.zeros((1, SAMPLES), u32)
    cases = [
        Case("v_add_f32 {d}, {a}, {b}", [rows["a"], rows["b"]], old, mode=single),
        Case("v_mul_f32 {d}, {a}, {b}", [rows["a"], rows["b"]], old, mode=single),
        Case("v_fma_f32 {d}, {a}, {b}, {a}", [rows["a"], rows["b"]], old, mode=single),
        Case("v_cvt_f32_f64 {d}, {a}", [double_rows], old, mode=single),
        Case("v_add_f32 {d}, {a}, {b}", [rows["a"], rows["b"]], old, mode=double),  # the other field: nearest
        Case("v_cvt_f16_f32 {d}, {a}", [rows["big"]], old, mode=double),
        Case("v_mul_f16 {d}, {a}, {b}", halves, old, mode=double),
        Case("v_pk_add_f16 {d}, {a}, {b}", halves, old, mode=double),
        Case("v_cvt_pkrtz_f16_f32 {d}, {a}, {b}", [rows["a"], rows["b"]], old, mode=double),  # always to zero
    ]
    if asm.has("v_cvt_pk_bf16_f32"):  # always nearest
        cases.append(Case("v_cvt_pk_bf16_f32 {d}, {a}, {b}", [rows["a"], rows["b"]], old, mode=single))
    launch(cases)
    x, y = a.astype(np.longdouble), b.astype(np.longdouble)
    want = [x + y, x * y, x * y + x, doubles]
    for c, exact in zip(cases[:4], want, strict=True):
        assert_bits(c.result, rounded(exact, f32, mode).view(u32)[np.newaxis], c)
    assert_bits(cases[4].result, (a + b).view(u32)[np.newaxis], cases[4])
    assert_bits(
        cases[5].result, rounded(big.astype(f64), f16, mode).view(u16).astype(u32)[np.newaxis], cases[5]
    )
    exact = ha.astype(f64) * hb.astype(f64)
    assert_bits(cases[6].result, rounded(exact, f16, mode).view(u16).astype(u32)[np.newaxis], cases[6])
    exact = ha.astype(f64) + hb.astype(f64)
    low = rounded(exact, f16, mode)
    zero = exact == 0  # of unlike signs: minus zero when rounding down
    assert_bits(
        (cases[7].result & u32(0xFFFF))[:, ~zero], low.view(u16).astype(u32)[np.newaxis][:, ~zero], cases[7]
    )
    import ml_dtypes

    pairs = [rounded(v.astype(f64), f16, 3).view(u16).astype(u32) for v in (a, b)]
    assert_bits(cases[8].result, (pairs[0] | pairs[1] << 16)[np.newaxis], cases[8])
    for c in cases[9:]:
        pairs = [v.astype(ml_dtypes.bfloat16).view(u16).astype(u32) for v in (a, b)]
        assert_bits(c.result, (pairs[0] | pairs[1] << 16)[np.newaxis], c)


def test_overflow_to_f16_saturates(rng: np.random.Generator) -> None:
    mode = DEFAULT_MODE | 1 << 23
    x = np.array([65504, 65519, 65520, 1e6, -1e6, np.inf, -np.inf, 3e38], f32)
    x = np.tile(x, SAMPLES // len(x))
    c = Case("v_cvt_f16_f32 {d}, {a}", [x.view(u32)[np.newaxis]], np.zeros((1, SAMPLES), u32), mode=mode)
    launch([c])
    want = np.where(np.isinf(x), x, np.clip(x, -65504, 65504)).astype(f16)
    assert_bits(c.result, want.view(u16).astype(u32)[np.newaxis], c)


@pytest.mark.parametrize("denormals", [0, 1, 2, 3])
def test_denormal_modes(denormals: int, rng: np.random.Generator) -> None:
    """Bit 0 lets denormal inputs in, bit 1 denormal results out; one field for f32, one for f16 and f64."""
    single, double = 0x3C0 | denormals << 4, 0x330 | denormals << 6
    tiny = {f32: f32(2.0**-126), f16: f16(2.0**-14), f64: f64(2.0**-1022)}

    def flush(x: Array, on: bool) -> Array:
        kind = x.dtype.type
        return np.where((abs(x) < tiny[kind]) & on, np.copysign(kind(0), x), x) if on else x

    todo = []
    for suffix, t, kind, mode in (
        ("f32", F32, f32, single),
        ("f16", F16, f16, double),
        ("f64", F64, f64, double),
    ):
        # Small values: sums and products in the denormal range.
        bits = {4: u32, 2: u16, 8: u64}[kind().itemsize]
        exponent = 23 if kind is f32 else 10 if kind is f16 else 52
        values = []
        for _ in range(2):
            field = rng.integers(0, 3, SAMPLES).astype(u64) << u64(exponent)
            mantissa = rng.integers(0, 1 << exponent, SAMPLES).astype(u64)
            sign = rng.integers(0, 2, SAMPLES).astype(u64) << u64(8 * kind().itemsize - 1)
            values.append((field | mantissa | sign).astype(bits).view(kind))
        rows = [
            np.stack([v.view(u64) & u64(0xFFFFFFFF), v.view(u64) >> u64(32)]).astype(u32)
            if kind is f64
            else v.view(bits).astype(u32)[np.newaxis]
            for v in values
        ]
        old = np.zeros((t.dwords, SAMPLES), u32)
        e64 = "" if kind is f64 else "_e64"
        todo.append(
            (kind, t, values, "add", Case(f"v_add_{suffix}{e64} {{d}}, {{a}}, {{b}}", rows, old, mode=mode))
        )
        todo.append(
            (kind, t, values, "half", Case(f"v_mul_{suffix}{e64} {{d}}, {{a}}, 0.5", rows, old, mode=mode))
        )
        todo.append(
            (
                kind,
                t,
                values,
                "mov",
                Case("v_mov_b32 {d}, {a}" if kind is not f64 else "v_mov_b64 {d}, {a}", rows, old, mode=mode),
            )
        )
    launch([t[-1] for t in todo])
    with np.errstate(all="ignore"):
        for kind, _t, (a, b), what, c in todo:
            if what == "mov":  # bits are left alone
                want = a
            else:
                x, y = (flush(v, not denormals & 1) for v in (a, b))
                want = flush(x + y if what == "add" else x * kind(0.5), not denormals & 2)
            if kind is f64:
                rows = np.stack([want.view(u64) & u64(0xFFFFFFFF), want.view(u64) >> u64(32)]).astype(u32)
            else:
                rows = want.view(u16 if kind is f16 else u32).astype(u32)[np.newaxis]
            assert_bits(c.result, rows, c)


def test_output_multiplier(rng: np.random.Generator) -> None:
    """Works only with denormals flushed and IEEE mode off."""
    text = "v_add_f32_e64 {d}, {a}, {b} mul:4"
    on = case(text, [F32, F32], rng, mode=0x1C0)
    off = [case(text, [F32, F32], rng, mode=m) for m in (DEFAULT_MODE, 0x3C0, 0x1F0)]
    launch([on, *off])
    small = f32(2.0**-126)
    with np.errstate(all="ignore"):
        for c in (on, *off):
            a, b = (typed(F32, r) for r in c.sources)
            flushes = c.mode in (0x1C0, 0x3C0)
            if flushes:
                a, b = (np.where(abs(v) < small, np.copysign(f32(0), v), v) for v in (a, b))
            total = a + b
            if flushes:
                total = np.where(abs(total) < small, np.copysign(f32(0), total), total)
            want = total * f32(4) + f32(0) if c is on else total
            assert_floats(c.result, want.view(u32)[np.newaxis], F32, c)


def test_nan_rules_of_mode(rng: np.random.Generator) -> None:
    """Without IEEE mode a signalling NaN loses like any other; without dx10_clamp clamping keeps NaN."""
    quiet_off = 0x1F0
    cases = [
        case("v_min_f32 {d}, {a}, {b}", [F32, F32], rng, mode=quiet_off),
        case("v_add_f32_e64 {d}, {a}, {b} clamp", [F32, F32], rng, mode=0x2F0),
    ]
    launch(cases)
    with np.errstate(all="ignore"):
        c = cases[0]
        a, b = (typed(F32, r) for r in c.sources)
        r = order_min(
            np.where(np.isnan(a), np.nan, a).astype(f32), np.where(np.isnan(b), np.nan, b).astype(f32)
        )
        assert_floats(c.result, r.view(u32)[np.newaxis], F32, c)
        c = cases[1]
        a, b = (typed(F32, r) for r in c.sources)
        total = a + b
        want = np.where(np.isnan(total), total, clamped(total)).astype(f32)
        assert_floats(c.result, want.view(u32)[np.newaxis], F32, c)
