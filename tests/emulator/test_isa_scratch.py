"""Scratch memory: every load and store, every way to give an address, VGPRs and AGPRs, against NumPy."""

from __future__ import annotations

import re

import asm
import numpy as np
import pytest
from forms import EXEC, SET_EXEC, assembles

BYTES = 64  # of each lane
MARK = 0xDEADBEEF
DATA = (*range(8, 12), *range(20, 24))
ON = np.array([EXEC >> n & 1 for n in range(64)], bool)

# Name: bytes, signed, where a half goes that leaves the other alone or clears it (0: a whole register).
LOADS = {
    "ubyte": (1, False, ""), "sbyte": (1, True, ""), "ushort": (2, False, ""), "sshort": (2, True, ""),
    "dword": (4, False, ""), "dwordx2": (8, False, ""), "dwordx3": (12, False, ""),
    "dwordx4": (16, False, ""),
    "ubyte_d16": (1, False, "low"), "ubyte_d16_hi": (1, False, "high"), "sbyte_d16": (1, True, "low"),
    "sbyte_d16_hi": (1, True, "high"), "short_d16": (2, False, "low"), "short_d16_hi": (2, False, "high"),
}  # fmt: skip
STORES = {"byte": (1, 0), "byte_d16_hi": (1, 2), "short": (2, 0), "short_d16_hi": (2, 2), "dword": (4, 0),
          "dwordx2": (8, 0), "dwordx3": (12, 0), "dwordx4": (16, 0)}  # fmt: skip

# Address, offset and place: v3 is 12, s20 is 16; v4 is 4 times the lane's number modulo 4.
WAYS = {
    "off, {d}, off": 0,
    "off, {d}, off offset:20": 20,
    "v3, {d}, off": 12,
    "v3, {d}, off offset:-8": 4,
    "off, {d}, s20": 16,
    "off, {d}, s20 offset:12": 28,
    "v3, {d}, s20 offset:4": 32,
    "v4, {d}, off offset:8": -8,  # and what the lane adds
}
BODY = """
    s_load_dwordx8 s[4:11], s[0:1], 0x0
    v_lshlrev_b32 v1, 6, v0
    v_lshlrev_b32 v2, 4, v0
    v_mov_b32 v3, 12
    v_and_b32 v4, 3, v0
    v_lshlrev_b32 v4, 2, v4
    s_mov_b32 s20, 16
    s_waitcnt lgkmcnt(0)
    global_load_dwordx4 v[8:11], v2, s[6:7]
{fill}
    v_mov_b32 v20, 0xdeadbeef
    v_mov_b32 v21, v20
    v_mov_b32 v22, v20
    v_mov_b32 v23, v20
    s_waitcnt vmcnt(0)
    {set_exec}
    {text}
    s_waitcnt vmcnt(0) lgkmcnt(0)
    s_mov_b64 exec, -1
    global_store_dwordx4 v2, v[20:23], s[8:9]
{dump}
"""
FILL = "\n".join(
    f"global_load_dwordx4 v[24:27], v1, s[4:5] offset:{n}\ns_waitcnt vmcnt(0)\n"
    f"scratch_store_dwordx4 off, v[24:27], off offset:{n}\ns_waitcnt vmcnt(0)"
    for n in range(0, BYTES, 16)
)
DUMP = "\n".join(
    f"scratch_load_dwordx4 v[24:27], off, off offset:{n}\ns_waitcnt vmcnt(0)\n"
    f"global_store_dwordx4 v1, v[24:27], s[10:11] offset:{n}"
    for n in range(0, BYTES, 16)
)


def loaded(memory: np.ndarray, at: int, size: int, signed: bool, half: str) -> list[int]:
    """The four registers after those of a load."""
    value = memory[at : at + size].tobytes()
    out = [MARK] * 4
    if size >= 4:
        out[: size // 4] = np.frombuffer(value, np.uint32).tolist()
        return out
    number = int.from_bytes(value, "little", signed=signed)
    out[0] = number & 0xFFFFFFFF if not half else (number & 0xFFFF) << (16 if half == "high" else 0)
    return out


@pytest.mark.parametrize("agprs", [False, True], ids=["vgprs", "agprs"])
@pytest.mark.parametrize("partial", [False, True], ids=["all", "some"])
def test_scratch(partial: bool, agprs: bool) -> None:
    rng = np.random.default_rng(3)
    memory = rng.integers(0, 256, (64, BYTES), np.uint8)
    data = rng.integers(0, 2**32, (64, 4), np.uint32)
    todo = [(kind, name, way) for kind, names in (("load", LOADS), ("store", STORES)) for name in names
            for way in WAYS]  # fmt: skip
    texts = []
    for kind, name, way in todo:
        first = 20 if kind == "load" else 8
        dwords = max(1, ({**LOADS} if kind == "load" else {**STORES})[name][0] // 4)
        register = f"v{first}" if dwords == 1 else f"v[{first}:{first + dwords - 1}]"
        address, rest = re.match(r"(\w+), {d}, (.*)", way).groups()  # type: ignore[union-attr]
        order = (register, address) if kind == "load" else (address, register)
        text = f"scratch_{kind}_{name} {order[0]}, {order[1]}, {rest}"
        texts.append(asm.with_agprs(text, DATA) if agprs else text)
    assert all(assembles(texts))
    kernels = {
        f"k{n}": asm.Snippet(
            BODY.format(text=t, fill=FILL, dump=DUMP, set_exec=SET_EXEC if partial else ""),
            scratch=BYTES,
            accum=64,
        )
        for n, t in enumerate(texts)
    }
    wrong = []
    with asm.Module(kernels) as module:
        for n, (kind, name, way) in enumerate(todo):
            out, dump = np.zeros((64, 4), np.uint32), np.zeros((64, BYTES), np.uint8)
            *_, got, after = module.run(f"k{n}", memory, data, out, dump)
            want, kept = np.full((64, 4), MARK, np.uint32), memory.copy()
            for lane in np.flatnonzero(ON) if partial else range(64):
                at = WAYS[way] if WAYS[way] >= 0 else 8 + 4 * (lane % 4)
                if kind == "load":
                    want[lane] = loaded(memory[lane], at, *LOADS[name])
                else:
                    size, from_ = STORES[name]
                    kept[lane, at : at + size] = np.frombuffer(data[lane].tobytes(), np.uint8)[
                        from_ : from_ + size
                    ]
            if (got != want).any() or (after != kept).any():
                wrong.append(texts[n])
    assert not wrong, wrong
