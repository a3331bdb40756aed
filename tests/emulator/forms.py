"""Every form that the assembler accepts of every vector ALU instruction, with its expected result.

A form is an operand kind or a modifier: an SGPR or a constant as one of the sources, signs, clamp, output
scaling, op_sel, DPP, SDWA, registers indexed by M0, a partial EXEC. What the operation itself does is in the
formulas of test_isa_valu; a form changes the values that go in, the result, or the lanes that are written.

    python tests/emulator/forms.py        lists for each form how many instructions admit it, and which of
                                          these no test runs
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from asm import ARCH
from test_isa_valu import (
    FORMULAS,
    Array,
    carry_out,
    keeps_half,
    make_case,
    to_rows,
    typed,
    u32,
    u64,
)
from valu import DESTINATION, SAMPLES, SOURCES, TABLE_ROWS, Case, Row, Rows, Type, of_f16, register

LETTERS = "abc"
LANE = np.arange(SAMPLES)
EXEC = 0xF0F0_1234_8001_7FFE
ACTIVE = np.array([EXEC >> (n % 64) & 1 for n in range(SAMPLES)], bool)
SET_EXEC = f"s_mov_b32 exec_lo, {EXEC & 0xFFFFFFFF:#x}\ns_mov_b32 exec_hi, {EXEC >> 32:#x}"
ALL_LANES = "s_mov_b64 exec, -1"
# Denormals are flushed, IEEE rules off: where output scaling works.
SCALING_MODE = 0x100


def unchanged(rows: Rows) -> Rows:
    return rows


@dataclass
class Variant:
    """One form of one instruction: what runs, and how it differs from the plain operation."""

    row: Row
    form: str
    case: Case
    sources: list[Rows]  # the operation's inputs
    after: Callable[[Rows], Rows] = unchanged  # of the result
    lanes: Array = field(default_factory=lambda: np.ones(SAMPLES, bool))  # that are written
    rows: Rows | None = None  # the result, where no formula gives it
    twin: Case | None = None  # where there is no formula: the plain operation on these sources

    def wanted(self) -> tuple[Rows, list[Array]]:
        row, case = self.row, self.case
        if self.twin is not None:
            rows = self.twin.result
            if keeps_half(row) and self.form != "op_sel_dst":
                rows = (self.after(low_half(rows)) & u32(0xFFFF)) | (case.old & u32(0xFFFF0000))
            else:
                rows = self.after(rows)
            return (rows if self.form == "index" else np.where(self.lanes, rows, case.old)), []
        values = [typed(t, r) for t, r in zip(row.sources, self.sources, strict=False)]
        if self.rows is not None:
            return self.rows, values
        if case.select is not None:
            values.append(case.select)
        elif "kReadsDst" in row.flags and not keeps_half(row):
            values.append(typed(row.destinations[0], case.old))
        with np.errstate(all="ignore"):
            result = FORMULAS[row.name](*values)
        if row.family == "VOPC":
            return (np.asarray(result).astype(bool) & self.lanes).astype(u32)[np.newaxis], values
        rows = self.after(to_rows(row.destinations[0], result))
        if keeps_half(row) and self.form != "op_sel_dst":
            rows = rows | (case.old & u32(0xFFFF0000))
        return np.where(self.lanes, rows, case.old), values

    def whole(self) -> Rows:
        """The result before a part of it is taken."""
        with np.errstate(all="ignore"):
            result = FORMULAS[self.row.name](*self.wanted()[1])
        return to_rows(self.row.destinations[0], result)

    def carry(self, values: list[Array]) -> Rows:
        return (carry_out(self.row, values).astype(bool) & self.lanes).astype(u32)[np.newaxis]


# ---- changes of values ------------------------------------------------------------------------------


def with_sign(t: Type, rows: Rows, neg: bool, absolute: bool) -> Rows:
    out = rows.copy()
    bit = u32(0x8000 if t.bits == 16 else 0x80000000)
    top = -1
    if absolute:
        out[top] &= ~bit
    if neg:
        out[top] ^= bit
    return out


def clamped(t: Type, rows: Rows) -> Rows:
    x = typed(t, rows)
    with np.errstate(invalid="ignore"):
        return to_rows(t, np.where(x > 0, np.minimum(x, x.dtype.type(1)), 0).astype(x.dtype))


def low_half(rows: Rows) -> Rows:
    return rows & u32(0xFFFF)


def halves(rows: Rows, low: int, high: int, neg_low: int = 0, neg_high: int = 0) -> Rows:
    """The selected halves, with their signs changed."""
    parts = [rows >> u32(16 * n) & u32(0xFFFF) for n in (low, high)]
    return (parts[0] ^ u32(0x8000 * neg_low)) | (parts[1] ^ u32(0x8000 * neg_high)) << u32(16)


def constant_rows(t: Type, bits32: int, bits64: int, bits16: int) -> Rows:
    if t.bits == 64:
        return np.repeat(np.array([[bits64 & 0xFFFFFFFF], [bits64 >> 32 & 0xFFFFFFFF]], u32), SAMPLES, 1)
    value = bits16 if t.bits == 16 and t.elements == 1 else bits32
    return np.full((1, SAMPLES), value & 0xFFFFFFFF, u32)


def inline_float(t: Type, value: float) -> Rows:
    bits32 = int(np.float32(value).view(u32))
    half = bits32 >> 16 if t.kind == "bf" else int(of_f16(np.array([value], np.float16))[0])
    return constant_rows(t, bits32, int(np.float64(value).view(u64)), half)


SELECTS = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8), "WORD_0": (0, 16),
           "WORD_1": (16, 16), "DWORD": (0, 32)}  # fmt: skip


def part(rows: Rows, select: str, extend: bool = False) -> Rows:
    shift, width = SELECTS[select]
    value = rows >> u32(shift) & u32((1 << width) - 1)
    if extend and width < 32:
        value = np.where(value >> u32(width - 1) != 0, value | u32(0xFFFFFFFF ^ ((1 << width) - 1)), value)
    return value.astype(u32)


def inserted(rows: Rows, old: Rows, select: str) -> Rows:
    """UNUSED_PRESERVE."""
    shift, width = SELECTS[select]
    mask = ((1 << width) - 1) << shift
    return ((rows << u32(shift)) & u32(mask)) | (old & u32(0xFFFFFFFF ^ mask))


# ---- the forms ----------------------------------------------------------------------------------------

SHORT = ("VOP1", "VOP2", "VOPC")


def plain(row: Row, rng: np.random.Generator) -> Case:
    case = make_case(row, rng)
    if row.name.startswith("v_cmpx"):
        case.teardown = f"s_mov_b64 {{mask}}, exec\n{ALL_LANES}"
    return case


def replaced(case: Case, n: int, by: str) -> str:
    return case.text.replace("{" + LETTERS[n] + "}", by)


def short(row: Row, case: Case, suffix: str, *operands: str, tail: str = "") -> str:
    """The instruction in its short form, or one that comes with it: VCC is what masks there are."""
    first = ["{mask}" if suffix == "_sdwa" else "vcc"] if row.family == "VOPC" else ["{d}"]
    carries = case.both or case.select is not None
    names = (
        first + (["vcc"] if case.both else []) + list(operands) + (["vcc"] if case.select is not None else [])
    )
    text = f"{row.name}{suffix} {', '.join(names)}{tail}"
    if case.select is not None:
        text = "s_mov_b64 vcc, {select}\n" + text
    if case.both or (row.family == "VOPC" and suffix != "_sdwa" and not row.name.startswith("v_cmpx")):
        text += "\ns_mov_b64 {mask}, vcc"
    assert carries or row.family != "VOP2" or len(operands) <= 2
    return text


def of_source_kinds(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    for n, t in enumerate(row.sources[:3]):
        case = plain(row, rng)
        if n >= len(case.sources) or t.dwords > 2:
            continue
        scalar = register("s", 20, t.dwords)
        first = case.sources[n][:, :1]
        loads = [f"s_mov_b32 s{20 + k}, {int(first[k, 0]):#x}" for k in range(t.dwords)]
        case.text = "\n".join(loads) + "\n" + replaced(case, n, scalar)
        yield Variant(row, f"sgpr{n}", case, [np.repeat(first, SAMPLES, 1) if k == n else r
                                              for k, r in enumerate(case.sources)])  # fmt: skip
        if t.elements > 1:
            continue
        case = plain(row, rng)
        case.text = replaced(case, n, "-3")
        rows = constant_rows(t, -3, -3, 0xFFFD)
        yield Variant(row, f"int{n}", case, [rows if k == n else r for k, r in enumerate(case.sources)])
        if t.bits != 16 or t.kind in ("f", "bf"):
            case = plain(row, rng)
            case.text = replaced(case, n, "-2.0")
            rows = inline_float(t, -2.0)
            yield Variant(row, f"float{n}", case, [rows if k == n else r for k, r in enumerate(case.sources)])
    if row.family in SHORT and row.sources and row.sources[0].elements == 1:
        case, t = plain(row, rng), row.sources[0]
        value = 0x4123 if t.bits == 16 else 0x40912345
        rows = constant_rows(t, value, value << 32 if t.kind == "f" else value, value)
        rest = [*["{a}", "{b}", "{c}"][1 : len(case.sources)]]
        case.text = short(row, case, "_e32", f"{value:#x}", *rest)
        yield Variant(row, "literal", case, [rows, *case.sources[1:]])


def of_signs(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    if row.family == "VOP3P" or (row.sources and row.sources[0].elements > 1):
        return  # of packed sources signs are refused
    for n, t in enumerate(row.sources[:3]):
        if t.kind not in ("f", "bf") or t.elements > 1:
            continue
        for form, pattern, neg, absolute in (
            ("neg", "-{}", True, False),
            ("abs", "|{}|", False, True),
            ("neg_abs", "-|{}|", True, True),
        ):
            case = plain(row, rng)
            case.text = replaced(case, n, pattern.format("{" + LETTERS[n] + "}"))
            rows = [with_sign(t, r, neg, absolute) if k == n else r for k, r in enumerate(case.sources)]
            yield Variant(row, f"{form}{n}", case, rows)


def of_results(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    case = plain(row, rng)
    if row.family == "VOPC":
        if row.sources[0].kind == "f":  # exceptions only, and there are none
            case.text += " clamp"
            yield Variant(row, "clamp", case, case.sources)
        return
    t = row.destinations[0]
    if t.kind == "f" and t.elements == 2 and row.family == "VOP3P":
        one = Type("", "f", t.bits, 1)

        def each_clamped(rows: Rows) -> Rows:
            if t.bits == 32:
                return np.concatenate([clamped(one, rows[n : n + 1]) for n in range(2)])
            low, high = (clamped(one, rows >> u32(16 * n) & u32(0xFFFF)) for n in range(2))
            return low | high << u32(16)

        case.text += " clamp"
        yield Variant(row, "clamp", case, case.sources, each_clamped)
    if t.kind == "f" and t.elements == 1 and not row.name.startswith("v_fma_mix"):
        case.text += " clamp"
        yield Variant(row, "clamp", case, case.sources, lambda rows: clamped(t, rows))
        for text, factor in (("mul:2", 2), ("mul:4", 4), ("div:2", 0.5)):
            case = plain(row, rng)
            case.text += f" {text}"
            # Here denormals are kept, so nothing is scaled.
            yield Variant(row, f"{text}_ignored", case, case.sources)
            case = plain(row, rng)
            case.text += f" {text}"
            case.mode = SCALING_MODE

            def scaled(rows: Rows, factor: float = factor) -> Rows:
                x = typed(t, rows)
                with np.errstate(all="ignore"):
                    return to_rows(t, (x * x.dtype.type(factor)).astype(x.dtype))

            yield Variant(row, text, case, case.sources, scaled)
    elif row.sources and row.sources[0].kind in ("f", "bf") and t.kind in ("i", "u"):
        case.text += " clamp"  # conversions saturate anyway
        yield Variant(row, "clamp", case, case.sources)


def of_saturation(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    """Clamp of integers: the exact result, brought into the range of its type."""
    if not row.destinations or row.destinations[0].kind not in ("i", "u") or "kClamp" not in row.flags:
        return
    match = re.fullmatch(
        r"v_(pk_)?(add|sub|subrev|mul|mul_lo|mad|max|min)_([iu])(16|32)(_[iu](16|24))?", row.name
    )
    if match is None or len(row.destinations) > 1 or any(s.kind not in ("i", "u") for s in row.sources):
        return
    case = plain(row, rng)
    case.text += " clamp"
    bits, signed = int(match[4]), match[3] == "i"

    def numbers(rows: Rows, source: Type, shift: int) -> Array:
        width = 24 if match[6] == "24" and source is not row.sources[-1] else source.bits
        if match[6] == "24" and match[2] == "mul":
            width = 24
        x = (rows[0] >> u32(shift)).astype(np.int64) & ((1 << width) - 1)
        return np.where(x >> (width - 1) & 1, x - (1 << width), x) if source.kind == "i" else x

    parts = []
    for shift in (0, 16) if match[1] else (0,):
        a, b, *rest = (numbers(r, s, shift) for r, s in zip(case.sources, row.sources, strict=True))
        exact = {
            "add": lambda a=a, b=b: a + b,
            "sub": lambda a=a, b=b: a - b,
            "subrev": lambda a=a, b=b: b - a,
            "mul": lambda a=a, b=b: a * b,
            "mul_lo": lambda a=a, b=b: a * b,
            "mad": lambda a=a, b=b, rest=rest: a * b + rest[0],
            "max": lambda a=a, b=b: np.maximum(a, b),
            "min": lambda a=a, b=b: np.minimum(a, b),
        }[match[2]]()
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        parts.append(np.clip(exact, low, high).astype(np.int64) & ((1 << bits) - 1))
    rows = sum(p << 16 * n for n, p in enumerate(parts)).astype(u32)[np.newaxis]  # type: ignore[union-attr]
    if keeps_half(row):
        rows = rows | (case.old & u32(0xFFFF0000))
    yield Variant(row, "saturates", case, case.sources, rows=rows)


def of_lanes(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    case = plain(row, rng)
    case.setup = SET_EXEC
    case.teardown = case.teardown or ALL_LANES
    yield Variant(row, "exec", case, case.sources, lanes=ACTIVE)


def of_dpp(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    if "kDpp" not in row.flags or not row.sources:
        return
    wide = row.destinations[0].dwords > 1 or row.sources[0].dwords > 1
    if wide:
        control, source = "row_newbcast:5", (LANE & ~15) + 5
    else:
        control, source = "row_ror:3", (LANE & ~15) + (LANE - 3) % 16
    t = row.sources[0]
    for form, masks, pattern, lanes in (
        ("dpp", "row_mask:0xf bank_mask:0xf", "{}", np.ones(SAMPLES, bool)),
        (
            "dpp_mask",
            "row_mask:0xb bank_mask:0x6",
            "{}",
            (0xB >> (LANE % 64 // 16) & 0x6 >> (LANE // 4 % 4) & 1) == 1,
        ),
        ("dpp_sign", "row_mask:0xf bank_mask:0xf", "-|{}|", np.ones(SAMPLES, bool)),
    ):
        if form == "dpp_sign" and (t.kind not in ("f", "bf") or t.elements > 1):
            continue
        case = plain(row, rng)
        rest = [*["{a}", "{b}"][1 : len(case.sources)]]
        case.text = short(row, case, "_dpp", pattern.format("{a}"), *rest, tail=f" {control} {masks}")
        moved = case.sources[0][:, source]
        if form == "dpp_sign":
            moved = with_sign(t, moved, True, True)
        yield Variant(row, form, case, [moved, *case.sources[1:]], lanes=lanes)


def of_sdwa(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    if "kSdwa" not in row.flags or not row.sources:
        return
    result = "" if row.family == "VOPC" else " dst_sel:DWORD dst_unused:UNUSED_PAD"
    for form, first, second, pattern in (
        ("sdwa", "WORD_1", "BYTE_2", "{}"),
        ("sdwa_sext", "BYTE_1", "WORD_1", "sext({})"),
        ("sdwa_sign", "DWORD", "DWORD", "-|{}|"),
        ("sdwa_dst", "DWORD", "DWORD", "{}"),
    ):
        floats = [t.kind in ("f", "bf") and t.elements == 1 for t in row.sources]
        if (form == "sdwa_sext" and any(floats)) or (form == "sdwa_sign" and not all(floats[:2])):
            continue
        if row.sources[0].elements > 1 and form in ("sdwa_sext", "sdwa_sign"):
            continue  # v_pk_fmac_f16: not documented
        case = plain(row, rng)
        count = min(len(case.sources), 2)
        names = [pattern.format("{" + x + "}") for x in LETTERS[:count]]
        selects = [first, second][:count]
        tail = result + "".join(f" src{n}_sel:{s}" for n, s in enumerate(selects))
        after = unchanged
        if form == "sdwa_dst":
            if row.family == "VOPC":
                continue
            select = "WORD_1"
            tail = tail.replace(
                "dst_sel:DWORD dst_unused:UNUSED_PAD", f"dst_sel:{select} dst_unused:UNUSED_PRESERVE"
            )
            after = lambda rows, old=case.old: inserted(rows, old, "WORD_1")  # noqa: E731
        case.text = short(row, case, "_sdwa", *names, tail=tail)
        rows = [part(r, s, form == "sdwa_sext") for r, s in zip(case.sources, selects, strict=False)]
        if form == "sdwa_sign":
            rows = [with_sign(t, r, True, True) for t, r in zip(row.sources, rows, strict=False)]
        yield Variant(row, form, case, rows, after)


def of_op_sel(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    count = len(row.sources)
    if row.family == "VOP3" and "kOpSel" in row.flags:
        half = [t.bits == 16 and t.elements == 1 for t in row.sources]
        if any(half) and "_sr_" not in row.name:  # refused there
            case = plain(row, rng)
            case.text += f" op_sel:[{','.join(str(int(h)) for h in half)},0]"
            rows = [r >> u32(16) if h else r for h, r in zip(half, case.sources, strict=True)]
            yield Variant(row, "op_sel", case, rows)
        if keeps_half(row):
            case = plain(row, rng)
            case.text += f" op_sel:[{'0,' * count}1]"

            def high(rows: Rows, old: Rows = case.old) -> Rows:
                return (rows << u32(16)) | low_half(old)

            yield Variant(row, "op_sel_dst", case, case.sources, high)
    if row.family != "VOP3P" or not row.sources:
        return
    # Of two-element sources: op_sel and op_sel_hi, then signs.
    packed = [t.elements == 2 for t in row.sources]
    for form, lows, highs in (("op_sel", 1, 1), ("op_sel_hi", 0, 0), ("op_sel_both", 1, 0)):
        case = plain(row, rng)
        if not all(packed):
            continue
        case.text += f" op_sel:[{','.join([str(lows)] * count)}] op_sel_hi:[{','.join([str(highs)] * count)}]"
        if row.sources[0].bits == 16:
            rows = [halves(r, lows, highs) for r in case.sources]
        elif row.name == "v_pk_mov_b32":
            continue
        else:
            rows = [np.stack([r[lows], r[highs]]) for r in case.sources]
        yield Variant(row, form, case, rows)
    floats = [t.kind in ("f", "bf") for t in row.sources]
    for form, low, high in (("neg_lo", 1, 0), ("neg_hi", 0, 1)):
        if not all(floats) or row.sources[0].elements != 2:
            continue
        case = plain(row, rng)
        text = ",".join("1" if p else "0" for p in packed)
        case.text += f" {form}:[{text}]"
        rows = []
        for t, p, r in zip(row.sources, packed, case.sources, strict=True):
            if not p:
                rows.append(r)
            elif t.bits == 16:
                rows.append(halves(r, 0, 1, low, high))
            else:
                rows.append(np.stack([r[0] ^ u32(low << 31), r[1] ^ u32(high << 31)]))
        yield Variant(row, form, case, rows)


def of_index(row: Row, rng: np.random.Generator) -> Iterator[Variant]:
    """All operands two registers further on than the instruction says."""
    case = plain(row, rng)
    if row.name.startswith("v_cmpx"):
        return
    names = {
        x: register("v", base - 2, len(r)) for x, base, r in zip(LETTERS, SOURCES, case.sources, strict=False)
    }
    if "{d}" in case.text:
        names["d"] = register("v", DESTINATION - 2, len(case.old))
    text = case.text
    for name, where in names.items():
        text = text.replace("{" + name + "}", where)
    case.text = (
        f"s_movk_i32 s20, 2\ns_set_gpr_idx_on s20, gpr_idx(SRC0,SRC1,SRC2,DST)\n{text}\ns_set_gpr_idx_off"
    )
    yield Variant(row, "index", case, case.sources)


def without_formula(row: Row) -> bool:
    """What other tests check on plain VGPRs: forms are compared with that."""
    names = ("v_div_fixup", "v_sin_", "v_cos_", "v_trig_", "v_cvt_", "v_fma_mix")
    return row.name not in FORMULAS and row.name.startswith(names) and len(row.destinations) == 1


MAKERS = (
    of_source_kinds,
    of_signs,
    of_results,
    of_saturation,
    of_lanes,
    of_dpp,
    of_sdwa,
    of_op_sel,
    of_index,
)


def rows_of(family: str) -> list[Row]:
    known = [r for r in TABLE_ROWS.values() if r.name in FORMULAS or without_formula(r)]
    return [r for r in known if r.family == family and "accvgpr" not in r.name]


def variants(family: str, maker: Callable[[Row, np.random.Generator], Iterator[Variant]]) -> list[Variant]:
    """Those that the assembler accepts."""
    rng = np.random.default_rng(len(family) + MAKERS.index(maker))
    found = [v for row in rows_of(family) for v in maker(row, rng)]
    taken = assembles([v.case.lines() for v in found])
    found = [v for v, good in zip(found, taken, strict=True) if good]
    for v in found:
        if without_formula(v.row):
            text = plain(v.row, rng).text
            v.twin = Case(text, v.sources, v.case.old, select=v.case.select, mode=v.case.mode)
    return found


def assembles(texts: list[str]) -> list[bool]:
    lines, owner = [], []
    for n, text in enumerate(texts):
        for line in text.splitlines():
            lines.append(line)
            owner.append(n)
    good = [True] * len(texts)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "all.s"
        source.write_text("\n".join(lines) + "\n")
        clang = [sys.executable, "-m", "ziglang", "clang", "-x", "assembler"]
        clang += ["--target=amdgcn-amd-amdhsa", f"-mcpu={ARCH}", "-ferror-limit=0", "-c", str(source)]
        done = subprocess.run(
            [*clang, "-o", str(Path(folder) / "all.o")], capture_output=True, text=True, check=False
        )
    for match in re.finditer(r"all\.s:(\d+):\d+: error", done.stderr):
        good[owner[int(match[1]) - 1]] = False
    return good


# ---- which forms no test runs -------------------------------------------------------------------------

VALU = ("VOP1", "VOP2", "VOPC", "VOP3", "VOP3P")
# What the emulator does not support: typed and formatted buffers, the global wave sync unit.
UNKNOWN = r"_format_|_gws_|^v_screen_partition"
MEMORY = ("DS", "MUBUF", "MTBUF", "FLAT", "GLOBAL", "SCRATCH")


def admitted(row: Row) -> set[str]:
    """The forms that the encoding of an instruction has."""
    found: set[str] = set()
    if row.family in VALU:
        short_form = row.family in SHORT and "kNoVop3" not in row.flags
        found |= {form for flag, form in (("kClamp", "clamp"), ("kOmod", "omod"), ("kDpp", "dpp"),
                                          ("kSdwa", "sdwa"), ("kOpSel", "op_sel"))
                  if flag in row.flags}  # fmt: skip
        for n, t in enumerate(row.sources[:3]):
            if t.where == "" and t.dwords <= 2 and not (t.kind == "b" and t.bits == 64 and n == 2):
                found |= {f"sgpr{n}"} if n == 0 or short_form or row.family in ("VOP3", "VOP3P") else set()
            if t.kind in ("f", "bf") and t.elements == 1 and (short_form or row.family == "VOP3"):
                found |= {f"neg{n}", f"abs{n}"}
    elif row.family in MEMORY:
        data = [t for t in (*row.destinations, *row.sources) if t.bits >= 8]
        if data:
            found |= {"offset", "exec"}
            if row.family != "DS" or data:
                found.add("agpr")
        if row.family in ("MUBUF", "MTBUF") and data:
            found |= {"offen", "idxen", "both", "soffset"}
        if row.family == "GLOBAL" and data:
            found |= {"saddr", "off"}
        if row.family == "SCRATCH" and data:
            found |= {"saddr", "vaddr"}
    return found


def shown(line: str, exec_changed: bool) -> tuple[str, set[str]]:
    """Name and forms of one instruction in a snippet."""
    name, _, rest = line.strip().partition(" ")
    base = re.sub(r"_(e32|e64|dpp|sdwa)$", "", name)
    row = TABLE_ROWS.get(base)
    if row is None:
        return base, set()
    operands = [x.strip() for x in re.split(r",(?![^\[]*\])", rest)]
    operands[-1:] = operands[-1].split()[:1] if operands else []
    words = set(re.findall(r"[a-z_0-9]+", rest))
    found = {"exec"} if exec_changed else set()
    found |= {w for w in ("clamp", "dpp", "sdwa", "op_sel") if w in words or name.endswith("_" + w)}
    if "mul" in words or "div" in words:
        found.add("omod")
    if row.family in VALU:
        outputs = max(1, len(row.destinations))
        for n, text in enumerate(operands[outputs:]):
            found |= {f"neg{n}"} if re.match(r"-[v|]", text) else set()
            found |= {f"abs{n}"} if "|" in text else set()
            found |= {f"sgpr{n}"} if re.match(r"-?\|?s\d|-?\|?s\[", text) else set()
    elif row.family in MEMORY:
        found |= {"agpr"} if re.search(r"\ba\d|\ba\[", rest) else set()
        found |= {"offset"} if re.search(r"offset[01]?:", rest) else set()
        offen, idxen = "offen" in words, "idxen" in words
        found |= {"both"} if offen and idxen else {"offen"} if offen else {"idxen"} if idxen else set()
        found |= {"off"} if "off" in words else {"saddr"} if re.search(r"\bs\d|\bs\[", rest) else set()
        address = operands[1:2] if "load" in name else operands[:1]
        if row.family == "SCRATCH" and any(x.startswith("v") for x in address):
            found.add("vaddr")
        found |= {"soffset"} if re.search(r"s\[\d+:\d+\], s\d", rest) else set()
    return base, found


def list_forms() -> int:
    """Print what no test runs; how many forms that are."""
    seen: dict[str, set[str]] = {}
    here = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        tests = sorted(str(p) for p in here.glob("test_isa_*.py") if "garbage" not in p.name)
        command = [sys.executable, "-m", "pytest", "-q", "-x", *tests]
        variables = os.environ | {"HIPGEMM_RECORD_SNIPPETS": folder}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=variables)
        for path in Path(folder).glob("*.s"):
            partial = False
            for line in path.read_text().splitlines():
                if re.match(r"\s*s_mov_b(32|64) exec", line):
                    partial = "exec, -1" not in line
                name, found = shown(line, partial)
                seen.setdefault(name, set()).update(found)
    total = 0
    for family in (*VALU, *MEMORY):
        forms: dict[str, list[str]] = {}
        missing: dict[str, list[str]] = {}
        for row in TABLE_ROWS.values():
            if row.family != family or re.search(UNKNOWN, row.name):
                continue
            for form in admitted(row):
                forms.setdefault(form, []).append(row.name)
                if form not in seen.get(row.name, set()):
                    missing.setdefault(form, []).append(row.name)
        for form in sorted(forms):
            names = missing.get(form, [])
            total += len(names)
            tail = f", no test runs {' '.join(names)}" if names else ""
            print(f"{family} {form}: {len(forms[form])} instructions{tail}")
    return total


if __name__ == "__main__":
    print(f"{list_forms()} forms that no test runs")
