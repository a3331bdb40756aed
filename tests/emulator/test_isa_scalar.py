"""The scalar ALU: every SOP1, SOP2, SOPC and SOPK instruction against a formula over Python integers."""

from __future__ import annotations

from collections.abc import Callable

import asm
import numpy as np
import pytest

M32, M64 = (1 << 32) - 1, (1 << 64) - 1


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def overflow(x: int) -> int:
    return int(not -(1 << 31) <= x < 1 << 31)


def bits_of(x: int, width: int) -> str:
    return format(x, f"0{width}b")


def first(text: str, digit: str) -> int:
    """Position of a digit, -1 if there is none."""
    return text.find(digit) & M32


def field(x: int, control: int, width: int, is_signed: bool) -> int:
    offset, length = control & (width - 1), control >> 16 & 127
    x = signed(x, width) if is_signed else x
    length = min(length, width)
    value = x >> offset
    return (signed(value, length) if is_signed else value & ((1 << length) - 1)) if length else 0


def sign_run(x: int, width: int) -> int:
    text = bits_of(x, width)
    return first(text, "1" if text[0] == "0" else "0")


def quads(x: int, width: int, to: int) -> int:
    groups = [x >> i & 15 for i in range(0, width, 4)]
    return sum(((15 if to == 4 else 1) if g else 0) << (to * i) for i, g in enumerate(groups))


# Each formula takes a, b (as wide as the operand), scc and exec, and gives the result, or the result and SCC;
# `None` where SCC is kept. The third entry of a row: result bits, operand bits.
Formula = Callable[[int, int, int, int], object]
nonzero = ...  # SCC = result != 0

LOGIC: dict[str, Callable[[int, int], int]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
    "andn1": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b,
}

ONE: dict[str, tuple[int, int, Formula]] = {
    "s_wqm_b32": (32, 32, lambda a, b, s, e: (quads(a, 32, 4), nonzero)),
    "s_wqm_b64": (64, 64, lambda a, b, s, e: (quads(a, 64, 4), nonzero)),
    "s_quadmask_b32": (32, 32, lambda a, b, s, e: (quads(a, 32, 1), nonzero)),
    "s_quadmask_b64": (64, 64, lambda a, b, s, e: (quads(a, 64, 1), nonzero)),
    "s_sext_i32_i8": (32, 32, lambda a, b, s, e: (signed(a, 8), None)),
    "s_sext_i32_i16": (32, 32, lambda a, b, s, e: (signed(a, 16), None)),
    "s_abs_i32": (32, 32, lambda a, b, s, e: (abs(signed(a, 32)), nonzero)),
    "s_flbit_i32": (32, 32, lambda a, b, s, e: (sign_run(a, 32), None)),
    "s_flbit_i32_i64": (32, 64, lambda a, b, s, e: (sign_run(a, 64), None)),
    "s_bitreplicate_b64_b32": (
        64,
        32,
        lambda a, b, s, e: (sum((a >> i & 1) * 3 << 2 * i for i in range(32)), None),
    ),
    "s_bitset0_b32": (32, 32, lambda a, b, s, e: (b & ~(1 << (a & 31)), None)),
    "s_bitset1_b32": (32, 32, lambda a, b, s, e: (b | 1 << (a & 31), None)),
    "s_bitset0_b64": (64, 32, lambda a, b, s, e: (b & ~(1 << (a & 63)), None)),
    "s_bitset1_b64": (64, 32, lambda a, b, s, e: (b | 1 << (a & 63), None)),
}
for w in (32, 64):
    ONE |= {
        f"s_mov_b{w}": (w, w, lambda a, b, s, e: (a, None)),
        f"s_cmov_b{w}": (w, w, lambda a, b, s, e: (a if s else b, None)),
        f"s_not_b{w}": (w, w, lambda a, b, s, e: (~a, nonzero)),
        f"s_brev_b{w}": (w, w, lambda a, b, s, e, w=w: (int(bits_of(a, w)[::-1], 2), None)),
        f"s_bcnt0_i32_b{w}": (32, w, lambda a, b, s, e, w=w: (bits_of(a, w).count("0"), nonzero)),
        f"s_bcnt1_i32_b{w}": (32, w, lambda a, b, s, e, w=w: (bits_of(a, w).count("1"), nonzero)),
        f"s_ff0_i32_b{w}": (32, w, lambda a, b, s, e, w=w: (first(bits_of(a, w)[::-1], "0"), None)),
        f"s_ff1_i32_b{w}": (32, w, lambda a, b, s, e, w=w: (first(bits_of(a, w)[::-1], "1"), None)),
        f"s_flbit_i32_b{w}": (32, w, lambda a, b, s, e, w=w: (first(bits_of(a, w), "1"), None)),
    }
# exec changes, and the old exec is the result.
SAVE = {f"s_{n}_saveexec_b64": LOGIC[n] for n in LOGIC}
WRITE = {f"s_{n}_wrexec_b64": LOGIC[n] for n in ("andn1", "andn2")}

TWO: dict[str, tuple[int, int, int, Formula]] = {
    "s_add_u32": (32, 32, 32, lambda a, b, s, e: (a + b, a + b > M32)),
    "s_sub_u32": (32, 32, 32, lambda a, b, s, e: (a - b, a < b)),
    "s_add_i32": (32, 32, 32, lambda a, b, s, e: (a + b, overflow(signed(a, 32) + signed(b, 32)))),
    "s_sub_i32": (32, 32, 32, lambda a, b, s, e: (a - b, overflow(signed(a, 32) - signed(b, 32)))),
    "s_addc_u32": (32, 32, 32, lambda a, b, s, e: (a + b + s, a + b + s > M32)),
    "s_subb_u32": (32, 32, 32, lambda a, b, s, e: (a - b - s, a < b + s)),
    "s_min_i32": (
        32,
        32,
        32,
        lambda a, b, s, e: (min(signed(a, 32), signed(b, 32)), signed(a, 32) < signed(b, 32)),
    ),
    "s_max_i32": (
        32,
        32,
        32,
        lambda a, b, s, e: (max(signed(a, 32), signed(b, 32)), signed(a, 32) > signed(b, 32)),
    ),
    "s_min_u32": (32, 32, 32, lambda a, b, s, e: (min(a, b), a < b)),
    "s_max_u32": (32, 32, 32, lambda a, b, s, e: (max(a, b), a > b)),
    "s_bfm_b32": (32, 32, 32, lambda a, b, s, e: (((1 << (a & 31)) - 1) << (b & 31), None)),
    "s_bfm_b64": (64, 32, 32, lambda a, b, s, e: (((1 << (a & 63)) - 1) << (b & 63), None)),
    "s_mul_i32": (32, 32, 32, lambda a, b, s, e: (a * b, None)),
    "s_mul_hi_u32": (32, 32, 32, lambda a, b, s, e: (a * b >> 32, None)),
    "s_mul_hi_i32": (32, 32, 32, lambda a, b, s, e: (signed(a, 32) * signed(b, 32) >> 32, None)),
    "s_bfe_u32": (32, 32, 32, lambda a, b, s, e: (field(a, b, 32, False), nonzero)),
    "s_bfe_i32": (32, 32, 32, lambda a, b, s, e: (field(a, b, 32, True), nonzero)),
    "s_bfe_u64": (64, 64, 32, lambda a, b, s, e: (field(a, b, 64, False), nonzero)),
    "s_bfe_i64": (64, 64, 32, lambda a, b, s, e: (field(a, b, 64, True), nonzero)),
    "s_absdiff_i32": (32, 32, 32, lambda a, b, s, e: (abs(signed(a, 32) - signed(b, 32)), nonzero)),
    "s_pack_ll_b32_b16": (32, 32, 32, lambda a, b, s, e: ((a & 0xFFFF) | (b & 0xFFFF) << 16, None)),
    "s_pack_lh_b32_b16": (32, 32, 32, lambda a, b, s, e: ((a & 0xFFFF) | (b >> 16) << 16, None)),
    "s_pack_hh_b32_b16": (32, 32, 32, lambda a, b, s, e: (a >> 16 | (b >> 16) << 16, None)),
    "s_ashr_i32": (32, 32, 32, lambda a, b, s, e: (signed(a, 32) >> (b & 31), nonzero)),
    "s_ashr_i64": (64, 64, 32, lambda a, b, s, e: (signed(a, 64) >> (b & 63), nonzero)),
}
for w in (32, 64):
    TWO |= {
        f"s_cselect_b{w}": (w, w, w, lambda a, b, s, e: (a if s else b, None)),
        f"s_lshl_b{w}": (w, w, 32, lambda a, b, s, e, w=w: (a << (b & (w - 1)), nonzero)),
        f"s_lshr_b{w}": (w, w, 32, lambda a, b, s, e, w=w: (a >> (b & (w - 1)), nonzero)),
    }
    for n in ("and", "or", "xor", "andn2", "orn2", "nand", "nor", "xnor"):
        TWO[f"s_{n}_b{w}"] = (w, w, w, lambda a, b, s, e, n=n: (LOGIC[n](a, b), nonzero))
for k in (1, 2, 3, 4):
    TWO[f"s_lshl{k}_add_u32"] = (
        *(32, 32, 32),
        lambda a, b, s, e, k=k: ((a << k) + b, (a << k) + b > M32),
    )

RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
COMPARE: dict[str, tuple[int, int, Callable[[int, int], bool]]] = {
    "s_cmp_eq_u64": (64, 64, RELATIONS["eq"]),
    "s_cmp_lg_u64": (64, 64, RELATIONS["lg"]),
    "s_bitcmp0_b32": (32, 32, lambda a, b: not a >> (b & 31) & 1),
    "s_bitcmp1_b32": (32, 32, lambda a, b: bool(a >> (b & 31) & 1)),
    "s_bitcmp0_b64": (64, 32, lambda a, b: not a >> (b & 63) & 1),
    "s_bitcmp1_b64": (64, 32, lambda a, b: bool(a >> (b & 63) & 1)),
}
for name, relation in RELATIONS.items():
    COMPARE[f"s_cmp_{name}_u32"] = (32, 32, relation)
    COMPARE[f"s_cmp_{name}_i32"] = (32, 32, lambda a, b, r=relation: r(signed(a, 32), signed(b, 32)))

CONSTANTS = (0, 1, -1, 0x7FFF, -0x8000, 100)
# name -> (immediate may be unsigned, formula over the old register and the constant)
IMMEDIATE: dict[str, tuple[bool, Formula]] = {
    "s_movk_i32": (False, lambda a, k, s, e: (k, None)),
    "s_cmovk_i32": (False, lambda a, k, s, e: (k if s else a, None)),
    "s_addk_i32": (False, lambda a, k, s, e: (a + k, overflow(signed(a, 32) + k))),
    "s_mulk_i32": (False, lambda a, k, s, e: (a * k, None)),
}
for name, relation in RELATIONS.items():
    IMMEDIATE[f"s_cmpk_{name}_i32"] = (False, lambda a, k, s, e, r=relation: (a, r(signed(a, 32), k)))
    IMMEDIATE[f"s_cmpk_{name}_u32"] = (True, lambda a, k, s, e, r=relation: (a, r(a, k & 0xFFFF)))


def register(first_: int, bits: int) -> str:
    return f"s{first_}" if bits == 32 else f"s[{first_}:{first_ + 1}]"


def cases() -> list[tuple[str, Callable[[int, int, int], tuple[int, int, int]]]]:
    """Instruction text and its model: (a, b, scc) -> s[12:13], exec, scc afterwards.

    a is in s[8:9], b in s[10:11] and, before the instruction, in s[12:13] too; exec is all ones.
    """
    rows: list[tuple[str, Callable[[int, int, int], tuple[int, int, int]]]] = []

    def model(
        formula: Formula, out: int, wa: int, wb: int
    ) -> Callable[[int, int, int], tuple[int, int, int]]:
        def run(a: int, b: int, s: int) -> tuple[int, int, int]:
            value, flag = formula(a & ((1 << wa) - 1), b & ((1 << wb) - 1), s, M64)  # type: ignore[misc]
            value &= (1 << out) - 1
            flag = s if flag is None else int(value != 0) if flag is nonzero else int(flag)
            return (value | (b >> 32 << 32) if out == 32 else value), M64, flag

        return run

    for name, (out, width, f) in ONE.items():
        rows.append((f"{name} {register(12, out)}, {register(8, width)}", model(f, out, width, out)))
    for name, (out, wa, wb, f) in TWO.items():
        rows.append(
            (f"{name} {register(12, out)}, {register(8, wa)}, {register(10, wb)}", model(f, out, wa, wb))
        )
    for name, logic in SAVE.items():
        rows.append(
            (
                f"{name} s[12:13], s[8:9]",
                lambda a, b, s, f=logic: (M64, f(a, M64) & M64, f(a, M64) & M64 != 0),
            )
        )
    for name, logic in WRITE.items():
        text = f"{name} s[12:13], s[8:9]"
        rows.append((text, lambda a, b, s, f=logic: (f(a, M64) & M64, f(a, M64) & M64, f(a, M64) & M64 != 0)))
    for name, (wa, wb, relation) in COMPARE.items():
        text = f"{name} {register(8, wa)}, {register(10, wb)}"
        rows.append(
            (
                text,
                lambda a, b, s, r=relation, wa=wa, wb=wb: (b, M64, r(a & (1 << wa) - 1, b & (1 << wb) - 1)),
            )
        )
    for name, (is_unsigned, f) in IMMEDIATE.items():
        for k in CONSTANTS:
            text = f"{name} s12, {k & 0xFFFF if is_unsigned else k}"

            def run(a: int, b: int, s: int, f: Formula = f, k: int = k) -> tuple[int, int, int]:
                value, flag = f(b & M32, k, s, M64)  # type: ignore[misc]
                return (value & M32) | b >> 32 << 32, M64, s if flag is None else int(flag)

            rows.append((text, run))
    return rows


def test_every_instruction() -> None:
    rng = np.random.default_rng(7)
    special = [
        0,
        1,
        M64,
        1 << 63,
        1 << 31,
        M32,
        0x7FFFFFFF,
        0x7FFFFFFFFFFFFFFF,
        0x0020_0004,
        0xFFFF_8000,
        0x50000,
    ]
    pairs = [(a, b) for a in special for b in special[::2]]
    pairs += [tuple(int(x) for x in rng.integers(0, M64, 2, np.uint64, endpoint=True)) for _ in range(40)]
    pairs += [(a, int(rng.integers(0, 64)) | int(rng.integers(0, 70)) << 16) for a, _ in pairs[-20:]]
    inputs = np.array(pairs, np.uint64)
    rows = cases()
    body = """
        s_load_dwordx4 s[4:7], s[0:1], 0x0
        s_lshl_b32 s3, s2, 4
        v_mov_b32 v8, 0
        s_waitcnt lgkmcnt(0)
        s_load_dwordx4 s[8:11], s[4:5], s3
        s_mul_i32 s3, s2, 24
        v_mov_b32 v8, s3
        s_and_b32 s14, s2, 1
        s_waitcnt lgkmcnt(0)
    """
    for text, _ in rows:
        body += f"""
            s_mov_b64 s[12:13], s[10:11]
            s_cmp_lg_u32 s14, 0
            {text}
            s_cselect_b32 s15, 1, 0
            s_mov_b64 s[16:17], exec
            s_mov_b64 exec, -1
            v_mov_b32 v2, s12
            v_mov_b32 v3, s13
            v_mov_b32 v4, s16
            v_mov_b32 v5, s17
            v_mov_b32 v6, s15
            global_store_dwordx4 v8, v[2:5], s[6:7]
            global_store_dword v8, v6, s[6:7] offset:16
            v_add_u32 v8, {24 * len(pairs)}, v8
        """
    out = np.zeros((len(rows), len(pairs), 3), np.uint64)
    _, out = asm.run(body, inputs, out, grid=len(pairs))
    wrong = [
        f"{text} with a={a:#x} b={b:#x} scc={i & 1}: got {[hex(int(x)) for x in got]}, expected {want}"
        for (text, formula), results in zip(rows, out, strict=True)
        for i, ((a, b), got) in enumerate(zip(pairs, results, strict=True))
        if tuple(int(x) for x in got) != (want := tuple(int(x) & M64 for x in formula(a, b, i & 1)))
    ]
    assert not wrong, f"{len(wrong)} wrong, such as\n" + "\n".join(wrong[:20])


def test_special_operands() -> None:
    """Inline constants, literals and SCC, VCCZ, EXECZ as sources."""
    rows = {
        "s_mov_b32 s8, 64": 64,
        "s_mov_b32 s8, -16": -16,
        "s_mov_b32 s8, 0x12345678": 0x12345678,
        "s_mov_b32 s8, 1.0": 0x3F800000,
        "s_mov_b32 s8, 0.15915494": 0x3E22F983,
        "s_cmp_eq_u32 s2, s2\ns_mov_b32 s8, src_scc": 1,
        "s_cmp_lg_u32 s2, s2\ns_mov_b32 s8, src_scc": 0,
        "s_mov_b64 vcc, 0\ns_mov_b32 s8, src_vccz": 1,
        "s_mov_b64 vcc, 2\ns_mov_b32 s8, src_vccz": 0,
        "s_mov_b32 s8, src_execz": 0,
        "s_mov_b64 s[8:9], -3\ns_mov_b32 s8, s9": -1,
        "s_mov_b64 s[8:9], src_shared_base\ns_mov_b32 s8, s9": 0x10000,
        "s_mov_b32 m0, 5\ns_mov_b32 s9, 77\ns_mov_b32 s13, 3\ns_movrels_b32 s8, s8": 3,
        "s_mov_b32 m0, 2\ns_mov_b32 s9, 77\ns_movreld_b32 s6, s9": 77,
        "s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 5\ns_getreg_b32 s8, hwreg(HW_REG_MODE, 0, 8)": 0xF5,
    }
    body = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_mov_b32 v8, 0\ns_waitcnt lgkmcnt(0)\n"
    for text in rows:
        body += f"{text}\nv_mov_b32 v1, s8\nglobal_store_dword v8, v1, s[4:5]\nv_add_u32 v8, 4, v8\n"
    (out,) = asm.run(body, np.zeros(len(rows), np.uint32))
    assert {t: int(x) for t, x in zip(rows, out, strict=True)} == {t: x & M32 for t, x in rows.items()}


def test_indexed_registers_stay_in_range() -> None:
    with pytest.raises(asm.LaunchError, match="M0 indexes beyond the scalar registers"):
        asm.run("s_mov_b32 m0, 0x10000\ns_movrels_b32 s8, s8\n", np.zeros(1, np.uint32))
