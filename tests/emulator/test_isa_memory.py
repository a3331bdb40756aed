"""Scalar, buffer, global, flat and scratch instructions against models over bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import asm
import ml_dtypes
import numpy as np
import pytest
from forms import assembles
from numpy.typing import NDArray
from test_isa_lds import ALL, INTEGER, MARK, PARTIAL, Rows, extend, fmaximum, fminimum, half_sum

SIZE = 8192  # of the memory operand
BASE, RECORDS = 256, 4001  # buffer descriptor: first byte, bytes
Where = Callable[["Machine", int, int, int], int | None]


@dataclass
class Machine:
    """The inputs of a memory instruction. `where(machine, lane, bytes, part)` gives the place of part of an
    access, `part` bytes into it, or None if it is out of range."""

    memory: bytearray
    offset: list[int]
    index: list[int]
    data: Rows
    exec: int
    out: Rows

    def lanes(self) -> list[int]:
        return [lane for lane in range(64) if self.exec >> lane & 1]


Model = Callable[[Machine], None]


def at_offset(offset: int) -> Where:
    return lambda m, lane, _, part: m.offset[lane] + offset + part


def in_buffer(offset: int, soffset: int = 0) -> Where:
    """Byte addressed, each dword checked; the low bits of dword accesses are ignored."""

    def where(m: Machine, lane: int, size: int, part: int) -> int | None:
        begin = ((m.offset[lane] + offset) & 0xFFFFFFFF) + soffset + part
        if begin + size > RECORDS:
            return None
        return (BASE + begin) & (~3 if size == 4 else ~0)

    return where


def in_records(offset: int, soffset: int = 0, stride: int = 20, with_offset: bool = False) -> Where:
    """By index: records of `stride` bytes, and the index checked."""

    def where(m: Machine, lane: int, size: int, part: int) -> int | None:
        if m.index[lane] >= 50:
            return None
        extra = m.offset[lane] if with_offset else 0
        return (BASE + m.index[lane] * stride + extra + offset + soffset + part) & (~3 if size == 4 else ~0)

    return where


def load(size: int, where: Where, narrow: Callable[[bytes], bytes] = lambda b: b) -> Model:
    def model(m: Machine) -> None:
        step = min(size, 4)
        for lane in m.lanes():
            value = b""
            for i in range(0, size, step):
                place = where(m, lane, step, i)
                value += bytes(m.memory[place : place + step]) if place is not None else bytes(step)
            words = np.frombuffer(narrow(value), np.uint32)
            m.out[lane, : len(words)] = words

    return model


def load_record(size: int, where: Where) -> Model:
    """All of a record access is in range or none of it."""

    def model(m: Machine) -> None:
        for lane in m.lanes():
            place = where(m, lane, 4, 0)
            value = bytes(size) if place is None else bytes(m.memory[place : place + size])
            m.out[lane, : size // 4] = np.frombuffer(value, np.uint32)

    return model


def store(size: int, where: Where, skip: int = 0) -> Model:
    def model(m: Machine) -> None:
        step = min(size, 4)
        for lane in m.lanes():
            value = m.data[lane].tobytes()[skip : skip + size]
            for i in range(0, size, step):
                place = where(m, lane, step, i)
                if place is not None:
                    m.memory[place : place + step] = value[i : i + step]

    return model


def atomic(change: Callable[..., object], dtype: type, returns: bool, where: Where) -> Model:
    """`change` takes the old value and the two data values."""
    size = np.dtype(dtype).itemsize

    def model(m: Machine) -> None:
        for lane in m.lanes():
            place = where(m, lane, size, 0)
            if place is None:
                old = bytes(size)
            else:
                old = bytes(m.memory[place : place + size])
                raw = m.data[lane].tobytes()
                a, b = (np.frombuffer(raw[k * size : (k + 1) * size], dtype)[0].item() for k in (0, 1))
                new = change(np.frombuffer(old, dtype)[0].item(), a, b)
                if isinstance(new, int):
                    m.memory[place : place + size] = (new & ((1 << 8 * size) - 1)).to_bytes(size, "little")
                else:
                    m.memory[place : place + size] = np.array([new], dtype).tobytes()
            if returns:
                m.out[lane, : size // 4] = np.frombuffer(old, np.uint32)

    return model


NARROW: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "ubyte": (1, lambda b: extend(b, False)),
    "sbyte": (1, lambda b: extend(b, True)),
    "ushort": (2, lambda b: extend(b, False)),
    "sshort": (2, lambda b: extend(b, True)),
    "ubyte_d16": (1, lambda b: extend(b, False, 0, 16)),
    "ubyte_d16_hi": (1, lambda b: extend(b, False, 16, 16)),
    "sbyte_d16": (1, lambda b: extend(b, True, 0, 16)),
    "sbyte_d16_hi": (1, lambda b: extend(b, True, 16, 16)),
    "short_d16": (2, lambda b: extend(b, False, 0, 16)),
    "short_d16_hi": (2, lambda b: extend(b, False, 16, 16)),
}
WIDE = {
    "dword": (4, "v{}"),
    "dwordx2": (8, "v[{}:{}]"),
    "dwordx3": (12, "v[{}:{}]"),
    "dwordx4": (16, "v[{}:{}]"),
}
STORES = {"byte": (1, 0), "byte_d16_hi": (1, 2), "short": (2, 0), "short_d16_hi": (2, 2)}


def registers(template: str, first: int, size: int) -> str:
    return template.format(first, first + size // 4 - 1)


def atomics() -> dict[str, tuple[Callable[..., object], type, int]]:
    """Name -> change, type, data registers."""
    rows: dict[str, tuple[Callable[..., object], type, int]] = {}
    for suffix, signed, unsigned, n in (("", np.int32, np.uint32, 1), ("_x2", np.int64, np.uint64, 2)):
        for name, key in {
            "add": "add_{}u",
            "sub": "sub_{}u",
            "smin": "min_{}i",
            "umin": "min_{}u",
            "smax": "max_{}i",
            "umax": "max_{}u",
            "and": "and_{}b",
            "or": "or_{}b",
            "xor": "xor_{}b",
            "inc": "inc_{}u",
            "dec": "dec_{}u",
        }.items():
            rows[name + suffix] = (INTEGER[key], signed if key.endswith("i") else unsigned, n)
        rows["swap" + suffix] = (lambda m, a, b: a, unsigned, n)
        rows["cmpswap" + suffix] = (lambda m, a, b: a if m == b else m, unsigned, 2 * n)
    rows["add_f32"] = (lambda m, a, b: float(np.float32(m) + np.float32(a)), np.float32, 1)
    rows["add_f64"] = (lambda m, a, b: m + a, np.float64, 2)
    rows["min_f64"] = (lambda m, a, b: float(fminimum(m, a)), np.float64, 2)
    rows["max_f64"] = (lambda m, a, b: float(fmaximum(m, a)), np.float64, 2)
    rows["pk_add_f16"] = (half_sum(np.float16), np.uint32, 1)
    rows["pk_add_bf16"] = (half_sum(ml_dtypes.bfloat16), np.uint32, 1)
    return rows


def instructions() -> dict[str, Model]:
    rows: dict[str, Model] = {}
    # space -> operands, suffix, where
    forms: list[tuple[str, str, str, Where]] = [
        ("global", "v2, {}", "s[4:5] offset:16", at_offset(16)),
        ("global", "v[6:7], {}", "off offset:-16", at_offset(-16)),
        ("flat", "v[6:7], {}", "offset:12", at_offset(12)),
        ("buffer", "{}, v2", "s[16:19], 0 offen offset:8", in_buffer(8)),
        ("buffer", "{}, v2", "s[16:19], s20 offen offset:4095", in_buffer(4095, 100)),
    ]

    def access(space: str, data: str, address: str, rest: str, is_load: bool) -> str:
        if space == "buffer":
            return f"{address.format(data)}, {rest}"
        vaddr = address.split(",")[0]
        parts = [data, vaddr] if is_load else [vaddr, data]
        return ", ".join(parts) + (" " if space == "flat" else ", ") + rest

    for space, address, rest, where in forms:
        for name, (size, narrow) in NARROW.items():
            rows[f"{space}_load_{name} {access(space, 'v20', address, rest, True)}"] = load(
                size, where, narrow
            )
        for name, (size, template) in WIDE.items():
            text = access(space, registers(template, 20, size), address, rest, True)
            rows[f"{space}_load_{name} {text}"] = load(size, where)
            text = access(space, registers(template, 8, size), address, rest, False)
            rows[f"{space}_store_{name} {text}"] = store(size, where)
        for name, (size, skip) in STORES.items():
            rows[f"{space}_store_{name} {access(space, 'v8', address, rest, False)}"] = store(
                size, where, skip
            )
        if rest.endswith("4095"):
            continue
        for name, (change, dtype, n) in atomics().items():
            data = registers("v{}" if n == 1 else "v[{}:{}]", 8, 4 * n)
            size = np.dtype(dtype).itemsize
            out = registers("v{}" if size == 4 else "v[{}:{}]", 20, size)
            text = access(space, data, address, rest, False)
            rows[f"{space}_atomic_{name} {text}"] = atomic(change, dtype, False, where)
            if space == "buffer":  # the old value comes back in the data registers
                rows[
                    f"{space}_atomic_{name} {text} sc0\n"
                    + "\n".join(
                        f"s_waitcnt vmcnt(0)\nv_mov_b32 v{20 + k}, v{8 + k}" for k in range(size // 4)
                    )
                ] = atomic(change, dtype, True, where)
            else:
                rows[f"{space}_atomic_{name} {out}, {text} sc0"] = atomic(change, dtype, True, where)
    records = "s[24:27]"
    rows[f"buffer_load_dwordx4 v[20:23], v3, {records}, 0 idxen offset:4"] = load_record(16, in_records(4))
    rows[f"buffer_load_dwordx2 v[20:21], v[4:5], {records}, s20 idxen offen offset:4"] = load_record(
        8, in_records(4, 100, with_offset=True)
    )
    rows[f"buffer_load_dword v20, off, {records}, s20 offset:4"] = load(4, lambda m, lane, size, part: None)
    rows["buffer_load_dword v20, off, s[16:19], s20 offset:4"] = load(
        4, lambda m, lane, size, part: BASE + 104
    )
    return rows


BODY = """
    s_load_dwordx8 s[4:11], s[0:1], 0x0
    v_lshlrev_b32 v1, 4, v0
    v_lshlrev_b32 v5, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v5, s[6:7]
    global_load_dword v3, v5, s[6:7] offset:256
    global_load_dwordx4 v[8:11], v1, s[8:9]
    s_add_u32 s16, s4, {base}
    s_addc_u32 s17, s5, 0
    s_mov_b32 s18, {records}
    s_mov_b32 s19, 0x20000
    s_mov_b32 s20, 100
    s_mov_b32 s24, s16
    s_or_b32 s25, s17, 20 << 16
    s_mov_b32 s26, 50
    s_mov_b32 s27, 0x20000
    s_waitcnt vmcnt(0)
    v_mov_b32 v7, s5
    v_add_co_u32 v6, vcc, s4, v2
    v_mov_b32 v12, 0
    v_addc_co_u32 v7, vcc, v7, v12, vcc
    v_mov_b32 v4, v3
    v_mov_b32 v5, v2
    v_mov_b32 v20, 0xdeadbeef
    v_mov_b32 v21, v20
    v_mov_b32 v22, v20
    v_mov_b32 v23, v20
    s_mov_b32 exec_lo, {low}
    s_mov_b32 exec_hi, {high}
    {text}
    s_waitcnt vmcnt(0) lgkmcnt(0)
    s_mov_b64 exec, -1
    global_store_dwordx4 v1, v[20:23], s[10:11]
"""


def operands(text: str, rng: np.random.Generator) -> tuple[NDArray[np.uint8], Rows, Rows]:
    """Memory, [offset, index] per lane, data per lane."""
    memory = rng.integers(0, 2**32, SIZE // 4, np.uint32)
    data = rng.integers(0, 2**32, (64, 4), np.uint32)
    atomic_ = "atomic" in text
    if "_f32" in text:
        memory, data = (
            rng.standard_normal(x.shape).astype(np.float32).view(np.uint32) for x in (memory, data)
        )
    if "_f64" in text:
        memory = rng.standard_normal(SIZE // 8).view(np.uint32)
        data = rng.standard_normal((64, 2)).view(np.uint32)
    if "f16" in text:
        dtype = ml_dtypes.bfloat16 if "bf16" in text else np.float16
        memory = rng.standard_normal(SIZE // 2).astype(dtype).view(np.uint32)
        data = rng.standard_normal((64, 8)).astype(dtype).view(np.uint32)
    if text.startswith("buffer"):
        limit = RECORDS + 64
        offset = rng.integers(0, limit, 64)
        offset[:6] = 0, RECORDS - 8, RECORDS - 21, RECORDS, 0xFFFFFFF0, 0x80000000
    else:
        offset = rng.integers(16, SIZE - 64, 64)
    if "store" in text:  # no two lanes at one address: their order is not defined
        spread = 32 + rng.permutation(64) * 100
        offset = np.where(offset < 2**16, spread, offset)
    if atomic_:
        offset = 16 + rng.integers(0, 40, 64) * 8 + (4 if text.startswith("flat") else 0)
        if "cmpswap" in text:
            n = 2 if "_x2" in text else 1
            shift = 16 if "s[4:5]" in text else -16 if "off " in text else 12 if "flat" in text else 8 + BASE
            for lane in range(0, 64, 2):
                place = (int(offset[lane]) + shift) // 4
                data[lane, n : 2 * n] = memory[place : place + n]
        if text.startswith("buffer"):
            offset[5] = RECORDS
    index = rng.integers(0, 60, 64)
    if "idxen offen" in text:
        offset = rng.integers(0, 20, 64)
    return memory.view(np.uint8), np.stack([offset, index]).astype(np.uint32), data


DATA = (*range(8, 12), *range(20, 24))  # the registers of stored and loaded data


@pytest.mark.parametrize("mask", [ALL, PARTIAL], ids=["all", "some"])
@pytest.mark.parametrize("agprs", [False, True], ids=["vgprs", "agprs"])
def test_instructions(agprs: bool, mask: int, rng: np.random.Generator) -> None:
    rows = instructions()
    shown = {t: asm.with_agprs(t, DATA) if agprs else t for t in rows}
    rows = {t: m for (t, m), good in zip(rows.items(), assembles(list(shown.values())), strict=True) if good}
    assert len(rows) > 100
    low, high = hex(mask & 0xFFFFFFFF), hex(mask >> 32)
    kernels = {
        f"k{i}": asm.Snippet(
            BODY.format(text=shown[t], low=low, high=high, base=BASE, records=RECORDS), accum=64
        )
        for i, t in enumerate(rows)
    }
    wrong = []
    with asm.Module(kernels) as module:
        for i, (text, model) in enumerate(rows.items()):
            memory, addr, data = operands(text, rng)
            out = np.full((64, 4), MARK, np.uint32)
            after, *_, got = module.run(f"k{i}", memory, addr, data, np.zeros_like(out))
            lanes = [int(x) for x in addr[0]], [int(x) for x in addr[1]]
            machine = Machine(bytearray(memory.tobytes()), *lanes, data, mask, out)
            model(machine)
            if not np.array_equal(got, out):
                lane, dword = np.argwhere(got != out)[0]
                wrong.append(
                    f"{text}: lane {lane} dword {dword}: {got[lane, dword]:#x}, not {out[lane, dword]:#x}"
                )
            if after.tobytes() != bytes(machine.memory):
                place = int(np.argmax(after != np.frombuffer(bytes(machine.memory), np.uint8)))
                wrong.append(f"{text}: memory differs at byte {place}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


# ---- LDS DMA -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size", "step"),
    [
        ("buffer_load_dword v2, s[16:19], s20 offen offset:8 lds", 4, 4),
        pytest.param(
            "buffer_load_dwordx3 v2, s[16:19], s20 offen offset:8 lds", 12, 16, marks=asm.only_gfx950
        ),
        pytest.param(
            "buffer_load_dwordx4 v2, s[16:19], s20 offen offset:8 lds", 16, 16, marks=asm.only_gfx950
        ),
        ("buffer_load_ubyte v2, s[16:19], s20 offen offset:8 lds", 1, 4),
        ("buffer_load_sshort v2, s[16:19], s20 offen offset:8 lds", 2, 4),
        ("global_load_lds_dword v2, s[4:5] offset:8", 4, 4),
        pytest.param("global_load_lds_dwordx3 v2, s[4:5] offset:8", 12, 16, marks=asm.only_gfx950),
        pytest.param("global_load_lds_dwordx4 v[6:7], off offset:8", 16, 16, marks=asm.only_gfx950),
        ("global_load_lds_sbyte v2, s[4:5] offset:8", 1, 4),
    ],
)
@pytest.mark.parametrize("mask", [ALL, PARTIAL], ids=["all", "some"])
def test_loads_to_lds(text: str, size: int, step: int, mask: int, rng: np.random.Generator) -> None:
    """Lane l's bytes go to M0 + offset + l * (4 or 16); lanes out of the buffer's range write zeros."""
    lds, m0 = 2048, 0x104
    memory = rng.integers(0, 256, SIZE, np.uint8)
    offset = (rng.integers(0, (SIZE - 64) // 4, 64) * 4).astype(np.uint32)
    buffer = text.startswith("buffer")
    if not buffer:
        m0 |= 2  # the low bits do not count
    body = BODY.format(
        base=BASE,
        records=RECORDS,
        low=hex(mask & 0xFFFFFFFF),
        high=hex(mask >> 32),
        text=f"s_mov_b32 m0, {m0}\ns_nop 0\n{text}",
    )
    fill = "v_mov_b32 v30, 0x55555555\nv_mov_b32 v31, v30\n" + "".join(
        f"ds_write_b64 v33, v[30:31] offset:{512 * k}\n" for k in range(4)
    )
    body = "v_lshlrev_b32 v33, 3, v0\n" + fill + body.split("global_store_dwordx4")[0]
    body += "".join(
        f"ds_read_b64 v[34:35], v33 offset:{512 * k}\ns_waitcnt lgkmcnt(0)\n"
        f"global_store_dwordx2 v33, v[34:35], s[10:11] offset:{512 * k}\n"
        for k in range(4)
    )
    *_, got = asm.run(
        asm.Snippet(body, lds=lds),
        memory,
        np.stack([offset, offset]),
        np.zeros((64, 4), np.uint32),
        np.zeros(lds, np.uint8),
    )
    want = bytearray(b"\x55" * lds)
    sign = "sb" in text or "ss" in text
    for lane in range(64):
        if not mask >> lane & 1:
            continue
        place = (m0 if buffer else m0 & ~3) + 8 + lane * step
        begin = int(offset[lane]) + 8 + (100 if buffer else 0)
        source = begin + (BASE if buffer else 0)
        value = b""
        for i in range(0, size, 4):
            part = min(size, 4)
            good = not buffer or begin + i + part <= RECORDS
            value += memory[source + i : source + i + part].tobytes() if good else bytes(part)
        if size < 4:
            value = int.from_bytes(value, "little", signed=sign).to_bytes(4, "little", signed=sign)
        want[place : place + len(value)] = value
    assert got.tobytes() == bytes(want)


# ---- scalar loads ------------------------------------------------------------------------------------


def test_scalar_loads(rng: np.random.Generator) -> None:
    memory = rng.integers(0, 2**32, 256, np.uint32)
    buffer = "s_mov_b32 s18, 300\ns_mov_b32 s19, 0x20000\ns_mov_b64 s[16:17], s[4:5]\n"
    rows: dict[str, tuple[int, list[int]]] = {
        "s_load_dword s32, s[4:5], 0x10": (1, list(memory[4:5])),
        "s_load_dwordx2 s[32:33], s[4:5], 0x14": (2, list(memory[5:7])),
        "s_load_dwordx4 s[32:35], s[4:5], 0x20": (4, list(memory[8:12])),
        "s_load_dwordx8 s[32:39], s[4:5], s20": (8, list(memory[25:33])),
        "s_load_dwordx16 s[32:47], s[4:5], s20 offset:0x10": (16, list(memory[29:45])),
        "s_load_dword s32, s[6:7], -0x10": (1, list(memory[60:61])),
        buffer + "s_buffer_load_dwordx4 s[32:35], s[16:19], 0x10": (4, list(memory[4:8])),
        buffer + "s_buffer_load_dwordx8 s[32:39], s[16:19], 0x120": (8, [*memory[72:75], 0, 0, 0, 0, 0]),
        buffer + "s_buffer_load_dword s32, s[16:19], s20": (1, list(memory[25:26])),
    }
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        s_load_dwordx2 s[10:11], s[0:1], 0x8
        s_mov_b32 s20, 100
        v_mov_b32 v8, 0
        s_waitcnt lgkmcnt(0)
        s_add_u32 s6, s4, 256
        s_addc_u32 s7, s5, 0
    """
    for text, (n, _) in rows.items():
        body += f"{text}\ns_waitcnt lgkmcnt(0)\n"
        for k in range(n):
            body += f"v_mov_b32 v1, s{32 + k}\nglobal_store_dword v8, v1, s[10:11] offset:{4 * k}\n"
        body += "v_add_u32 v8, 64, v8\n"
    _, out = asm.run(body, memory, np.zeros((len(rows), 16), np.uint32))
    for (text, (n, want)), got in zip(rows.items(), out, strict=True):
        assert list(got[:n]) == want, text


# ---- scratch and flat apertures ----------------------------------------------------------------------


def test_scratch_is_private_to_the_lane() -> None:
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 4, v0
        v_add_u32 v2, 100, v0
        v_add_u32 v3, 200, v0
        v_mov_b32 v4, 0x01020304
        s_mov_b32 s8, 32
        v_mov_b32 v10, 6
        scratch_store_dwordx2 off, v[2:3], s8
        scratch_store_dword off, v4, off offset:8
        scratch_store_byte v10, v2, off offset:3
        scratch_load_dwordx2 v[12:13], off, s8
        scratch_load_dword v14, off, off offset:8
        scratch_load_ushort v15, v10, off offset:3
        s_waitcnt vmcnt(0) lgkmcnt(0)
        global_store_dwordx4 v1, v[12:15], s[4:5]
    """
    (out,) = asm.run(asm.Snippet(body, scratch=64), np.zeros((64, 4), np.uint32))
    lane = np.arange(64)
    np.testing.assert_array_equal(out[:, 0], lane + 100)
    np.testing.assert_array_equal(out[:, 1], lane + 200)
    np.testing.assert_array_equal(out[:, 2], 0x01020004 & 0xFFFF00FF | (lane + 100) << 8 & 0xFF00 | 0)
    np.testing.assert_array_equal(out[:, 3], (lane + 100) & 0xFF | 0x0200)


def test_flat_reaches_lds_and_scratch() -> None:
    body = """
        s_load_dwordx2 s[4:5], s[0:1], 0x0
        v_lshlrev_b32 v1, 3, v0
        s_mov_b64 s[8:9], src_shared_base
        s_mov_b64 s[10:11], src_private_base
        v_lshlrev_b32 v2, 2, v0
        v_mov_b32 v3, s9
        v_mov_b32 v4, 16
        v_mov_b32 v5, s11
        v_add_u32 v6, 7, v0
        v_add_u32 v7, 9, v0
        flat_store_dword v[2:3], v6
        flat_store_dword v[4:5], v7
        s_waitcnt vmcnt(0) lgkmcnt(0)
        ds_read_b32 v10, v2
        scratch_load_dword v11, off, off offset:16
        s_waitcnt vmcnt(0) lgkmcnt(0)
        global_store_dwordx2 v1, v[10:11], s[4:5]
    """
    (out,) = asm.run(asm.Snippet(body, scratch=64, lds=256), np.zeros((64, 2), np.uint32))
    np.testing.assert_array_equal(out, np.stack([np.arange(64) + 7, np.arange(64) + 9], 1))


# ---- faults ------------------------------------------------------------------------------------------

PRELUDE = "s_load_dwordx2 s[4:5], s[0:1], 0x0\nv_lshlrev_b32 v2, 2, v0\ns_waitcnt lgkmcnt(0)\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("global_load_dword v1, v2, s[4:5] offset:4", r"load of 4 bytes .*past the end.*lane 63"),
        ("global_store_dwordx2 v2, v[4:5], s[4:5]", r"store of 8 bytes .*lane 63"),
        ("s_load_dwordx4 s[8:11], s[4:5], 0xf8", r"load of 16 bytes"),
        ("v_mov_b32 v3, s5\nv_mov_b32 v2, s4\nflat_load_dword v1, v[2:3] offset:256", r"lane 0"),
        ("scratch_store_dword off, v2, off offset:64", r"beyond the private segment"),
        ("v_mov_b32 v4, 2\nglobal_atomic_add v4, v2, s[4:5]", r"misaligned atomic"),
        (
            "s_mov_b64 s[8:9], s[4:5]\ns_mov_b32 s10, 4096\ns_mov_b32 s11, 0x20000\n"
            "buffer_load_dword v1, v2, s[8:11], 0 offen offset:8",
            r"load of 4 bytes .*lane 62",
        ),
    ],
)
def test_stray_access_is_reported(text: str, message: str) -> None:
    with pytest.raises(asm.LaunchError, match=f"(?s){message}") as caught:
        asm.run(asm.Snippet(PRELUDE + text + "\ns_waitcnt 0", scratch=64), np.zeros(64, np.uint32))
    assert caught.value.code == 700
    assert "kernel k at 0x" in caught.value.report
    (out,) = asm.run(PRELUDE + "global_store_dword v2, v0, s[4:5]", np.zeros(64, np.uint32))
    np.testing.assert_array_equal(out, np.arange(64))


def test_zero_descriptor_reads_zero() -> None:
    text = "s_mov_b64 s[8:9], 0\ns_mov_b64 s[10:11], 0\nbuffer_load_dword v1, v2, s[8:11], 0 offen\n"
    text += "s_waitcnt 0\nglobal_store_dword v2, v1, s[4:5]"
    (out,) = asm.run(PRELUDE + text, np.ones(64, np.uint32))
    assert not out.any()
