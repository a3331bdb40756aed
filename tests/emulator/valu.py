"""Runs many vector ALU instructions in one launch and compares them with formulas.

A case is an instruction with named registers and the values of its sources; all cases of a batch share one
kernel. Values are rows of dwords: shape (dwords of the operand, samples).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import asm
import numpy as np
from asm import Snippet, run
from numpy.typing import NDArray

GROUPS = 8
SAMPLES = 64 * GROUPS
Rows = NDArray[np.uint32]

# Where operands lie; the destination is filled too, for instructions that keep part of it.
SOURCES = (16, 80, 100)
DESTINATION = 48
MASK_OUT, MASK_IN = "s[10:11]", "s[12:13]"


class Type(NamedTuple):
    """An operand type of ops.def."""

    where: str  # "", or one of s l v a
    kind: str  # b i u f bf
    bits: int
    elements: int

    @property
    def dwords(self) -> int:
        return max(1, self.bits * self.elements // 32)


class Row(NamedTuple):
    family: str
    name: str
    destinations: tuple[Type, ...]
    sources: tuple[Type, ...]
    flags: frozenset[str]


def _types(text: str) -> tuple[Type, ...]:
    found = (re.fullmatch(r"([slva]?)(bf|[biuf]?)(\d+)(?:x(\d+))?", t) for t in text.split() if t != "addr")
    return tuple(Type(m[1], m[2] or "b", int(m[3]), int(m[4] or 1)) for m in found if m)


def table() -> dict[str, Row]:
    found = {}
    for family, _, name, signature, flags in asm.rows():
        left, _, right = signature.partition("=")
        found[name] = Row(family, name, _types(left), _types(right), flags)
    return found


TABLE_ROWS = table()


# ---- values -------------------------------------------------------------------------------------


def f16(bits: Rows) -> NDArray[np.float16]:
    return bits.astype(np.uint16).view(np.float16)


def of_f16(x: NDArray[np.float16]) -> Rows:
    return x.astype(np.float16).view(np.uint16).astype(np.uint32)


def _words(text: str) -> list[int]:
    return [int(x, 16) for x in text.split()]


# Zeros, denormals, ones, halves, largest, infinities, NaNs, limits of integers.
SPECIAL_32 = _words("""
    0 80000000 1 80000001 7fffff 807fffff 800000 80800000 3f800000 bf800000 3f000000 40000000 40490fdb
    7f7fffff ff7fffff 7f800000 ff800000 7fc00000 ffc00000 7f800001 ffa00000 4b000000 4effffff 4f000000
    4f800000 cf000000 cf000001 437f0000 3effffff 3f000001 33000000 7fffffff ffffffff 2 1f 20 ffffff
    ff000000 ffff ffff0000 7fff8000 10001
""")
SPECIAL_16 = _words("""
    0 8000 1 8001 3ff 83ff 400 8400 3c00 bc00 3800 4000 4248 7bff fbff 7c00 fc00 7e00 fe00 7c01 fd00 7fff
    ffff f 10 2 1400
""")
SPECIAL_64 = _words("""
    0 8000000000000000 1 8000000000000001 fffffffffffff 10000000000000 3ff0000000000000 bff0000000000000
    7fefffffffffffff 7ff0000000000000 fff0000000000000 7ff8000000000000 7ff0000000000001 41dfffffffc00000
    41e0000000000000 c1e0000000200000 41efffffffe00000 3fe0000000000000 4008000000000000 4330000000000001
    ffffffffffffffff 7fffffffffffffff ffffffff 3810000000000000 36a0000000000000 47efffffe0000000
    4320000000000003 c320000000000002 4328c0b8e3ac0d5e c32fffffffffffff
""")


def random_rows(t: Type, rng: np.random.Generator, samples: int = SAMPLES) -> Rows:
    """Random values of a type, a third of them special ones, a third of moderate size."""
    choice = rng.integers(0, 3, samples)
    if t.bits == 64:
        wide = rng.integers(0, 1 << 64, samples, np.uint64)
        special = rng.choice(np.array(SPECIAL_64, np.uint64), samples)
        moderate = (rng.normal(size=samples) * 2.0 ** rng.integers(-3, 12, samples)).view(np.uint64)
        if t.kind in "iub":
            moderate = rng.integers(0, 1 << 12, samples, np.uint64)
        x = np.select([choice == 0, choice == 1], [wide, special], moderate)
        return np.stack([x & 0xFFFFFFFF, x >> np.uint64(32)]).astype(np.uint32)
    if t.dwords > 1:
        single = Type(t.where, t.kind, min(t.bits, 32), 1 if t.bits >= 32 else 2)
        return np.concatenate([random_rows(single, rng, samples) for _ in range(t.dwords)])
    if t.bits == 16:
        halves = []
        for _ in range(2):
            special = rng.choice(np.array(SPECIAL_16, np.uint32), samples)
            moderate = of_f16(
                (rng.normal(size=samples) * 2.0 ** rng.integers(-3, 6, samples)).astype(np.float16)
            )
            if t.kind == "bf":
                moderate = (rng.normal(size=samples).astype(np.float32).view(np.uint32) >> 16).astype(
                    np.uint32
                )
            wide = rng.integers(0, 1 << 16, samples, np.uint32)
            halves.append(np.select([choice == 0, choice == 1], [wide, special], moderate).astype(np.uint32))
            rng.shuffle(choice)
        return (halves[0] | halves[1] << 16)[np.newaxis]
    wide = rng.integers(0, 1 << 32, samples, np.uint32)
    special = rng.choice(np.array(SPECIAL_32, np.uint32), samples)
    moderate = (
        (rng.normal(size=samples) * 2.0 ** rng.integers(-3, 12, samples)).astype(np.float32).view(np.uint32)
    )
    if t.kind in "iub":
        moderate = rng.integers(0, 1 << 8, samples, np.uint32)
    return np.select([choice == 0, choice == 1], [wide, special], moderate).astype(np.uint32)[np.newaxis]


# ---- cases --------------------------------------------------------------------------------------


def register(letter: str, first: int, dwords: int) -> str:
    return f"{letter}{first}" if dwords == 1 else f"{letter}[{first}:{first + dwords - 1}]"


@dataclass
class Case:
    """One instruction. `text` uses {d} {a} {b} {c} for registers, {mask} and {select} for lane masks."""

    text: str
    sources: Sequence[Rows]
    old: Rows  # the destination before
    masks: bool = False  # the result is a lane mask in {mask}
    both: bool = False  # a value and a lane mask
    select: NDArray[np.bool_] | None = None  # the lanes of {select}
    mode: int | None = None  # MODE[9:0] during the instruction
    setup: str = ""  # instructions before
    teardown: str = ""
    result: Rows = field(default_factory=lambda: np.empty((0, 0), np.uint32))

    def lines(self) -> str:
        out = []

        def load(base: int, dwords: int) -> None:
            for i in range(dwords):
                out.append(f"global_load_dword v{base + i}, v1, s[4:5]")
                out.append("s_add_u32 s4, s4, s8\ns_addc_u32 s5, s5, 0")

        for base, rows in zip(SOURCES, self.sources, strict=False):
            load(base, len(rows))
        load(DESTINATION, len(self.old))
        if self.select is not None:
            load(3, 1)
        out.append("s_waitcnt vmcnt(0)")
        if self.select is not None:
            out.append(f"v_cmp_ne_u32_e64 {MASK_IN}, 0, v3")
        names = {"d": register("v", DESTINATION, len(self.old)), "mask": MASK_OUT, "select": MASK_IN}
        for letter, base, rows in zip("abc", SOURCES, self.sources, strict=False):
            names[letter] = register("v", base, len(rows))
        if self.mode is not None:
            out.append(f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 24), {self.mode:#x}")
        out.append(self.setup.format(**names))
        out.append(self.text.format(**names))
        out.append(self.teardown.format(**names))
        if self.mode is not None:
            out.append(f"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 24), {DEFAULT_MODE:#x}")

        def store(register_number: int) -> None:
            out.append(f"global_store_dword v1, v{register_number}, s[6:7]")
            out.append("s_add_u32 s6, s6, s8\ns_addc_u32 s7, s7, 0")

        if not self.masks:
            for i in range(len(self.old)):
                store(DESTINATION + i)
        if self.masks or self.both:
            out.append(f"v_cndmask_b32_e64 v3, 0, 1, {MASK_OUT}")
            store(3)
        return "\n".join(out)

    @property
    def inputs(self) -> list[Rows]:
        rows = [*self.sources, self.old]
        if self.select is not None:
            rows.append(self.select.astype(np.uint32)[np.newaxis])
        return rows

    @property
    def outputs(self) -> int:
        return (0 if self.masks else len(self.old)) + (self.masks or self.both)


# Nearest even, denormals kept, dx10_clamp and IEEE on.
DEFAULT_MODE = 0x3F0


def launch(cases: Sequence[Case]) -> None:
    """Fill in the results, all cases in one launch."""
    body = [
        "s_load_dwordx4 s[4:7], s[0:1], 0x0",
        "v_lshlrev_b32 v1, 2, v0",
        "s_lshl_b32 s9, s2, 8",
        "v_add_u32 v1, s9, v1",
        f"s_mov_b32 s8, {4 * SAMPLES}",
        "s_waitcnt lgkmcnt(0)",
    ]
    body += [c.lines() for c in cases]
    inputs = np.concatenate([r for c in cases for r in c.inputs])
    outputs = np.zeros((sum(c.outputs for c in cases), SAMPLES), np.uint32)
    _, out = run(Snippet("\n".join(body)), inputs, outputs, grid=GROUPS)
    at = 0
    for c in cases:
        c.result = out[at : at + c.outputs]
        at += c.outputs


def assert_bits(got: Rows, want: Rows, case: Case, what: str = "") -> None:
    """Compare exactly."""
    want = np.broadcast_to(np.asarray(want, np.uint32), got.shape)
    wrong = np.flatnonzero((got != want).any(axis=0))
    if len(wrong):
        report(case, wrong, got, want, what)


def report(case: Case, wrong: NDArray[np.intp], got: Rows, want: Rows, what: str = "") -> None:
    lines = [f"{case.text} {what}: {len(wrong)} of {got.shape[1]} lanes differ"]
    for i in wrong[:5]:
        sources = "; ".join(" ".join(f"{x:08x}" for x in s[:, i]) for s in case.sources)
        old = " ".join(f"{x:08x}" for x in case.old[:, i])
        lines.append(f"  ({sources}; was {old}) gave {' '.join(f'{x:08x}' for x in got[:, i])}, "
                     f"want {' '.join(f'{x:08x}' for x in want[:, i])}")  # fmt: skip
    raise AssertionError("\n".join(lines))


def assert_floats(got: Rows, want: Rows, t: Type, case: Case, ulps: float = 0, what: str = "") -> None:
    """Compare floats of a type; any NaN equals any NaN; `ulps` is the error allowed."""
    want = np.broadcast_to(np.asarray(want, np.uint32), got.shape)

    def key(rows: Rows) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
        """Is it NaN; position on the line of all values of the format."""
        if t.bits == 64:
            x = rows[0].astype(np.uint64) | rows[1].astype(np.uint64) << np.uint64(32)
            nan = np.isnan(x.view(np.float64))
            signed = x.view(np.int64)
            order = np.where(signed < 0, -(signed & ((1 << 63) - 1)), signed).astype(np.float64)
            return nan[np.newaxis], order[np.newaxis]
        if t.bits == 16:
            parts = [rows & 0xFFFF] + ([rows >> 16] if t.elements > 1 else [])
            limit = 0x7F80 if t.kind == "bf" else 0x7C00
            both = np.concatenate(parts)
            order = np.where(both & 0x8000, -(both & 0x7FFF).astype(np.int64), both.astype(np.int64))
            return (both & 0x7FFF) > limit, order.astype(np.float64)
        magnitude = (rows & 0x7FFFFFFF).astype(np.int64)
        return magnitude > 0x7F800000, np.where(rows >> 31, -magnitude, magnitude).astype(np.float64)

    got_nan, got_order = key(got)
    want_nan, want_order = key(want)
    if ulps == 0:  # zeros have signs
        exact = (got == want).all(axis=0) if t.elements == 1 or t.bits >= 32 else None
        same = got_order == want_order
        if exact is not None:
            same = same & (exact | got_nan.any(axis=0))
    else:
        same = abs(got_order - want_order) <= ulps
    good = np.where(got_nan | want_nan, got_nan & want_nan, same)
    wrong = np.flatnonzero(~good.all(axis=0))
    if len(wrong):
        report(case, wrong, got, want, what)


Formula = Callable[..., object]
