"""Vector instructions that need more than a formula per lane: division, sines, lanes, truth tables, mixed
precision, accumulation registers."""

from __future__ import annotations

import asm
import numpy as np
import pytest
from asm import Snippet, run
from test_isa_valu import Array, f32, f64, fma, turns, typed, u16, u32, u64
from valu import SAMPLES, Case, Rows, Type, assert_bits, assert_floats, launch, of_f16, random_rows

f16 = np.float16
F16, F32, F64 = Type("", "f", 16, 1), Type("", "f", 32, 1), Type("", "f", 64, 1)
B32 = Type("", "b", 32, 1)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


# The division that LLVM emits, with IEEE rounding of the quotient a/b.
DIVIDE_32 = """
v_div_scale_f32 v2, s[14:15], {b}, {b}, {a}
v_div_scale_f32 v3, vcc, {a}, {b}, {a}
v_rcp_f32 v4, v2
v_fma_f32 v5, -v2, v4, 1.0
v_fma_f32 v4, v5, v4, v4
v_mul_f32 v5, v3, v4
v_fma_f32 v6, -v2, v5, v3
v_fma_f32 v5, v6, v4, v5
v_fma_f32 v6, -v2, v5, v3
v_div_fmas_f32 v4, v6, v4, v5
v_div_fixup_f32 {d}, v4, {b}, {a}
"""
DIVIDE_64 = """
v_div_scale_f64 v[4:5], s[14:15], {b}, {b}, {a}
v_rcp_f64 v[6:7], v[4:5]
v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0
v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]
v_fma_f64 v[8:9], -v[4:5], v[6:7], 1.0
v_fma_f64 v[6:7], v[6:7], v[8:9], v[6:7]
v_div_scale_f64 v[8:9], vcc, {a}, {b}, {a}
v_mul_f64 v[10:11], v[8:9], v[6:7]
v_fma_f64 v[4:5], -v[4:5], v[10:11], v[8:9]
v_div_fmas_f64 v[4:5], v[4:5], v[6:7], v[10:11]
v_div_fixup_f64 {d}, v[4:5], {b}, {a}
"""
DIVIDE_16 = """
v_cvt_f32_f16 v2, {b}
v_cvt_f32_f16 v3, {a}
v_rcp_f32 v4, v2
v_mul_f32 v3, v3, v4
v_cvt_f16_f32 v3, v3
v_div_fixup_f16 {d}, v3, {b}, {a}
"""


def test_division(rng: np.random.Generator) -> None:
    cases = {}
    for text, t in ((DIVIDE_32, F32), (DIVIDE_64, F64), (DIVIDE_16, F16)):
        sources = [random_rows(t, rng) for _ in range(2)]
        old = random_rows(Type("", "b", 32 * t.dwords, 1), rng)
        cases[t] = Case(text.strip(), sources, old)
    launch(list(cases.values()))
    for t, case in cases.items():
        a, b = (typed(t, r) for r in case.sources)
        with np.errstate(all="ignore"):
            want = a / b
        if t is F64:
            rows = np.stack([want.view(u64) & u64(0xFFFFFFFF), want.view(u64) >> u64(32)]).astype(u32)
        else:
            rows = of_f16(want)[np.newaxis] if t is F16 else want.view(u32)[np.newaxis]
        got = case.result & u32(0xFFFF) if t is F16 else case.result
        assert_floats(got, rows, t, case, 1 if t is F16 else 0)


def test_sines(rng: np.random.Generator) -> None:
    cases = []
    for name, t in (("sin", F32), ("cos", F32), ("sin", F16), ("cos", F16)):
        case = Case(f"v_{name}_f{t.bits} {{d}}, {{a}}", [random_rows(t, rng)], random_rows(B32, rng))
        cases.append((name, t, case))
    launch([c for _, _, c in cases])
    for name, t, case in cases:
        a = typed(t, case.sources[0])
        with np.errstate(all="ignore"):
            want = turns(np.sin if name == "sin" else np.cos)(a).astype(f64)
        got = typed(t, case.result).astype(f64)
        nan = ~np.isfinite(a)
        assert (np.isnan(got) == nan).all(), name
        step = 2.0**-23 if t is F32 else 2.0**-11
        assert (abs(got - want)[~nan] <= step).all(), name
        exact = {0x3E800000: (1, 0), 0x80000000: (-0.0, 1), 0xFF7FFFFF: (0, 1)} if t is F32 else {}
        for bits, values in exact.items():
            at = case.sources[0][0] == bits
            assert (got[at] == values[name == "cos"]).all()


def test_trig_preop() -> None:
    # 2/pi to 1201 bits, by Machin's formula.
    def arctan(x: int, one: int) -> int:
        term, total, n, sign = one // x, one // x, 3, -1
        while term:
            term //= x * x
            total += sign * (term // n)
            n, sign = n + 2, -sign
        return total

    one = 1 << 1400
    pi = 4 * (4 * arctan(5, one) - arctan(239, one))
    two_over_pi = (2 * one << 1201) // pi
    x = np.array([2.0**k for k in (0, 10, 54, 55, 80, 300, 900, 946, 1000, 1023)] * 52)[:SAMPLES]
    piece = np.arange(SAMPLES, dtype=u32) // 10 % 19
    doubles = np.stack([x.view(u64) & u64(0xFFFFFFFF), x.view(u64) >> u64(32)]).astype(u32)
    case = Case("v_trig_preop_f64 {d}, {a}, {b}", [doubles, piece[np.newaxis]], np.zeros((2, SAMPLES), u32))
    launch([case])
    want = np.zeros(SAMPLES)
    for i in range(SAMPLES):
        exponent = int(x.view(u64)[i] >> u64(52)) & 0x7FF
        shift = int(piece[i]) * 53 + max(exponent - 1077, 0)
        bits = two_over_pi >> (1201 - 53 - shift) if shift <= 1148 else two_over_pi << (shift - 1148)
        scale = -53 - shift + (128 if exponent >= 1968 else 0)
        want[i] = np.ldexp(float(bits & ((1 << 53) - 1)), scale)
    rows = np.stack([want.view(u64) & u64(0xFFFFFFFF), want.view(u64) >> u64(32)]).astype(u32)
    assert_bits(case.result, rows, case)


@asm.only_gfx950
@pytest.mark.parametrize("bits", [32, 16])
def test_every_truth_table(bits: int, rng: np.random.Generator) -> None:
    cases = [
        Case(
            f"v_bitop3_b{bits} {{d}}, {{a}}, {{b}}, {{c}} bitop3:{table:#x}",
            [random_rows(B32, rng) for _ in range(3)],
            random_rows(B32, rng),
        )
        for table in range(256)
    ]
    launch(cases)
    for table, case in enumerate(cases):
        a, b, c = (r[0] for r in case.sources)
        want = np.zeros(SAMPLES, u32)
        for n in range(8):
            if table >> n & 1:
                want |= (a if n & 4 else ~a) & (b if n & 2 else ~b) & (c if n & 1 else ~c)
        if bits == 16:  # the other half of the destination stays
            want = (want & u32(0xFFFF)) | (case.old[0] & u32(0xFFFF0000))
        assert_bits(case.result, want[np.newaxis], case)


def swap_rows(d: Rows, s: Rows, row: int) -> tuple[Rows, Rows]:
    """The odd rows of d are swapped with the even rows of s."""
    d, s = d.reshape(-1, 2, row).copy(), s.reshape(-1, 2, row).copy()
    d[:, 1], s[:, 0] = s[:, 0].copy(), d[:, 1].copy()
    return d.reshape(1, -1), s.reshape(1, -1)


def test_two_registers(rng: np.random.Generator) -> None:
    names = [*filter(asm.has, ["v_swap_b32", "v_permlane16_swap_b32", "v_permlane32_swap_b32"])]
    cases = []
    for name in names:
        for result in ("{d}", "{a}"):  # both registers are results: look at one, then the other
            text = f"{name} {{d}}, {{a}}" + ("" if result == "{d}" else "\nv_mov_b32 {d}, {a}")
            cases.append(Case(text, [random_rows(B32, rng)], random_rows(B32, rng)))
    launch(cases)
    for name, first, second in zip(names, cases[::2], cases[1::2], strict=True):
        for case, which in ((first, 0), (second, 1)):
            if name == "v_swap_b32":
                want = (case.sources[0], case.old)
            else:
                want = swap_rows(case.old, case.sources[0], 16 if "16" in name else 32)
            assert_bits(case.result, want[which], case)


EXEC = 0x8001_F00F_1234_7FFE


@asm.only_gfx950
@pytest.mark.parametrize("row", [16, 32])
def test_swaps_under_a_partial_exec(row: int, rng: np.random.Generator) -> None:
    """A lane that is off keeps its value. One that is on, with a partner that is off: fi takes the partner's
    value, bound_ctrl a zero, else it keeps its own."""
    on = np.array([EXEC >> (n % 64) & 1 for n in range(SAMPLES)], bool)
    lane = np.arange(SAMPLES)
    upper = lane // row % 2 == 1
    partner = np.where(upper, lane - row, lane + row)
    setup = f"s_mov_b32 exec_lo, {EXEC & 0xFFFFFFFF:#x}\ns_mov_b32 exec_hi, {EXEC >> 32:#x}"
    forms = [(fi, bound, which) for fi in (0, 1) for bound in (0, 1) for which in (0, 1)]
    cases = []
    for fi, bound, which in forms:
        text = f"v_permlane{row}_swap_b32_e64 {{d}}, {{a}}" + " bound_ctrl:1" * bound + " fi:1" * fi
        teardown = "s_mov_b64 exec, -1" + ("\nv_mov_b32 {d}, {a}" if which else "")
        sources = [random_rows(B32, rng)]
        cases.append(Case(text, sources, random_rows(B32, rng), setup=setup, teardown=teardown))
    launch(cases)
    for (fi, bound, which), case in zip(forms, cases, strict=True):
        d, a = case.old[0], case.sources[0][0]
        mine, other, moves = (a, d, ~upper) if which else (d, a, upper)
        taken = np.where(on[partner] | bool(fi), other[partner], 0)
        writes = on & moves & (on[partner] | bool(fi) | bool(bound))
        assert_bits(case.result, np.where(writes, taken, mine)[np.newaxis], case)


def test_lanes(rng: np.random.Generator) -> None:
    value = random_rows(B32, rng)
    cases = [
        Case("v_readlane_b32 s20, {a}, 37\nv_mov_b32 {d}, s20", [value], value),
        Case("s_mov_b32 s21, 0x86\nv_readlane_b32 s20, {a}, s21\nv_mov_b32 {d}, s20", [value], value),
        Case("s_mov_b32 m0, 3\nv_writelane_b32 {d}, 42, m0", [value], random_rows(B32, rng)),
        Case("s_mov_b32 s20, 7\nv_writelane_b32 {d}, s20, 63", [value], random_rows(B32, rng)),
        Case(
            "s_mov_b64 exec, 0x30\nv_readfirstlane_b32 s20, {a}\ns_mov_b64 exec, -1\nv_mov_b32 {d}, s20",
            [value],
            value,
        ),
        Case(
            "s_mov_b64 exec, 0\nv_readfirstlane_b32 s20, {a}\ns_mov_b64 exec, -1\nv_mov_b32 {d}, s20",
            [value],
            value,
        ),
        Case("v_nop\nv_clrexcp\nv_nop_e64\nv_mov_b32 {d}, {a}", [value], value),
    ]
    launch(cases)
    groups = value.reshape(-1, 64)
    for case, lane in ((cases[0], 37), (cases[1], 6), (cases[4], 4), (cases[5], 0)):
        assert_bits(case.result, np.repeat(groups[:, lane], 64)[np.newaxis], case)
    for case, lane, number in ((cases[2], 3, 42), (cases[3], 63, 7)):
        want = case.old.reshape(-1, 64).copy()
        want[:, lane] = number
        assert_bits(case.result, want.reshape(1, -1), case)
    assert_bits(cases[6].result, value, cases[6])


def test_accumulation_registers() -> None:
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 2, v0
        v_accvgpr_write_b32 a3, v1
        v_accvgpr_mov_b32 a4, a3
        v_accvgpr_write_b32 a5, 1.0
        v_accvgpr_read_b32 v2, a4
        v_accvgpr_read_b32 v3, a5
        v_xor_b32 v2, v2, v3
        s_waitcnt lgkmcnt(0)
        global_store_dword v1, v2, s[4:5]
    """
    (out,) = run(Snippet(body, vgprs=32, accum=16), np.zeros(64, u32))
    assert (out == (np.arange(64, dtype=u32) * 4 ^ u32(0x3F800000))).all()


# Which sources are halves, and which half: op_sel_hi, op_sel.
MIXES = [(0, 0), (7, 0), (7, 7), (1, 0), (2, 2), (5, 4), (6, 6), (3, 1)]


def mix_source(rows: Rows, half: bool, high: bool) -> Array:
    if not half:
        return rows[0].view(f32)
    return (rows[0] >> (16 if high else 0)).astype(u16).view(f16).astype(f32)


def test_mixed_precision(rng: np.random.Generator) -> None:
    cases = []
    for name in ("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"):
        for hi, lo in MIXES:
            select = [",".join(str(x >> n & 1) for n in range(3)) for x in (lo, hi)]
            text = f"{name} {{d}}, -{{a}}, |{{b}}|, {{c}} op_sel:[{select[0]}] op_sel_hi:[{select[1]}]"
            sources = [random_rows(Type("", "f", 16 if hi >> n & 1 else 32, 1), rng) for n in range(3)]
            cases.append((name, hi, lo, Case(text, sources, random_rows(B32, rng))))
    launch([c[3] for c in cases])
    for name, hi, lo, case in cases:
        a, b, c = (mix_source(r, bool(hi >> n & 1), bool(lo >> n & 1)) for n, r in enumerate(case.sources))
        with np.errstate(all="ignore"):
            exact = fma(-a, abs(b), c)
            if name == "v_fma_mix_f32":
                assert_floats(case.result, exact.view(u32)[np.newaxis], F32, case)
                continue
            want = of_f16(exact.astype(f16))[np.newaxis]
        high = name.endswith("hi_f16")
        kept = u32(0xFFFF if high else 0xFFFF0000)
        assert_bits(case.result & kept, case.old & kept, case, "kept half")
        assert_floats(case.result >> u32(16 if high else 0) & u32(0xFFFF), want, F16, case)


def test_division_of_halves_legacy(rng: np.random.Generator) -> None:
    """The legacy form clears the other half."""
    sources = [random_rows(F16, rng) for _ in range(3)]
    new, old = (
        Case(f"v_div_fixup{x}_f16 {{d}}, {{a}}, {{b}}, {{c}}", sources, random_rows(B32, rng))
        for x in ("", "_legacy")
    )
    launch([new, old])
    assert_bits(old.result, new.result & u32(0xFFFF), old)
    assert_bits(new.result & u32(0xFFFF0000), new.old & u32(0xFFFF0000), new)
