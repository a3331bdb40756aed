"""Scalar stores and atomics against integer formulas."""

from __future__ import annotations

from collections.abc import Callable

import asm
import numpy as np
import pytest

BEGIN = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    s_waitcnt lgkmcnt(0)
    s_mov_b32 s8, 0x11111111
    s_mov_b32 s9, 0x22222222
    s_mov_b32 s10, 0x33333333
    s_mov_b32 s11, 0x44444444
    s_mov_b32 s12, s4
    s_and_b32 s13, s5, 0xffff
    s_mov_b32 s14, 40
    s_mov_b32 s15, 0x20000
    s_mov_b32 s16, 8
"""
DATA = [0x11111111, 0x22222222, 0x33333333, 0x44444444]


@pytest.mark.parametrize(
    ("store", "at", "count"),
    [
        ("s_store_dword s8, s[4:5], 0x4", 1, 1),
        ("s_store_dwordx2 s[8:9], s[4:5], s16", 2, 2),
        ("s_store_dwordx4 s[8:11], s[4:5], 0x10", 4, 4),
        ("s_buffer_store_dword s8, s[12:15], 0xc", 3, 1),
        ("s_buffer_store_dwordx2 s[8:9], s[12:15], s16", 2, 2),
        ("s_buffer_store_dwordx4 s[8:11], s[12:15], 0x20", 8, 2),  # 40 bytes are in range
        ("s_buffer_store_dword s8, s[12:15], 0x28", 0, 0),
    ],
)
def test_store(store: str, at: int, count: int) -> None:
    before = np.arange(16, dtype=np.uint32)
    wanted = before.copy()
    wanted[at : at + count] = DATA[:count]
    # The data are taken at issue.
    (got,) = asm.run(BEGIN + store + "\ns_mov_b32 s8, 0\ns_waitcnt lgkmcnt(0)", before)
    assert got.tolist() == wanted.tolist()


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> (bits - 1) else x


ATOMICS: dict[str, Callable[[int, int, int], int]] = {  # memory, data, bits
    "swap": lambda m, a, n: a,
    "add": lambda m, a, n: m + a,
    "sub": lambda m, a, n: m - a,
    "smin": lambda m, a, n: min(m, a, key=lambda x: signed(x, n)),
    "umin": lambda m, a, n: min(m, a),
    "smax": lambda m, a, n: max(m, a, key=lambda x: signed(x, n)),
    "umax": lambda m, a, n: max(m, a),
    "and": lambda m, a, n: m & a,
    "or": lambda m, a, n: m | a,
    "xor": lambda m, a, n: m ^ a,
    "inc": lambda m, a, n: 0 if m >= a else m + 1,
    "dec": lambda m, a, n: a if m == 0 or m > a else m - 1,
}
VALUES = [0, 1, 7, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80000000_00000000, 0x1234_56789ABC]


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize("bits", [32, 64])
def test_atomics(bits: int, buffer: bool) -> None:
    """Each instruction twice: the first does not ask for the old value, the second does."""
    mask = (1 << bits) - 1
    name = ("s_buffer_atomic_{}" if buffer else "s_atomic_{}") + ("_x2" if bits == 64 else "")
    base = "s[12:15]" if buffer else "s[4:5]"
    data, size = ("s20", "") if bits == 32 else ("s[20:21]", "x2")
    body = BEGIN + "s_load_dwordx2 s[6:7], s[0:1], 0x8\ns_waitcnt lgkmcnt(0)\ns_movk_i32 s14, 0x7fff\n"
    pairs = [(m & mask, a & mask) for m in VALUES for a in VALUES]
    memory, old, new = [], [], []
    for n, (op, formula) in enumerate(ATOMICS.items()):
        for m, a in pairs[n % 3 :: 3]:
            where = hex(len(memory) * bits // 8)
            memory.append(m)
            old.append(formula(m, a, bits) & mask)
            new.append(formula(old[-1], a, bits) & mask)
            body += f"""
                s_mov_b32 s20, {hex(a & 0xFFFFFFFF)}
                s_mov_b32 s21, {hex(a >> 32)}
                {name.format(op)} {data}, {base}, {where}
                s_waitcnt lgkmcnt(0)
                {name.format(op)} {data}, {base}, {where} glc
                s_waitcnt lgkmcnt(0)
                s_store_dword{size} {data}, s[6:7], {where}
            """
    kind = np.uint32 if bits == 32 else np.uint64
    got, returned = asm.run(body, np.array(memory, kind), np.zeros(len(memory), kind))
    assert got.tolist() == new
    assert returned.tolist() == old


@pytest.mark.parametrize(("compare", "swapped"), [(7, True), (8, False)])
def test_compare_and_swap(compare: int, swapped: bool) -> None:
    body = f"""
        s_mov_b32 s20, 100
        s_mov_b32 s21, {compare}
        s_atomic_cmpswap s[20:21], s[4:5], 0x4 glc
        s_waitcnt lgkmcnt(0)
        s_store_dwordx2 s[20:21], s[4:5], 0x8
    """
    (got,) = asm.run(BEGIN + body, np.full(4, 7, np.uint32))
    assert got.tolist() == [7, 100 if swapped else 7, 7, compare]


def test_store_outside() -> None:
    with pytest.raises(asm.LaunchError, match="illegal address: store of 4 bytes"):
        asm.run(BEGIN + "s_mov_b64 s[4:5], 0\n s_store_dword s8, s[4:5], 0x40", np.zeros(4, np.uint32))
