"""LDS instructions: loads, stores, atomics, transposing loads and permutations, against models over bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

import asm
import ml_dtypes
import numpy as np
import pytest
from forms import assembles
from numpy.typing import NDArray

LDS = 4096
PARTIAL = 0xF0F0_1234_FFFF_8001
ALL = (1 << 64) - 1
MARK = 0xDEADBEEF
Rows = NDArray[np.uint32]  # [lane, dword]


@dataclass
class Machine:
    """The inputs of an LDS instruction: memory, its operands per lane, the active lanes."""

    lds: bytearray
    addr: list[int]
    data: list[list[Rows]]
    exec: int
    out: Rows

    def lanes(self) -> list[int]:
        return [lane for lane in range(64) if self.exec >> lane & 1]

    def read(self, at: int, size: int) -> bytes:
        """Dwords (or the narrow value) beyond LDS read as zero. Addresses have 32 bits."""
        at &= 0xFFFFFFFF
        step = min(size, 4)
        return b"".join(
            bytes(self.lds[a : a + step]) if a + step <= LDS else bytes(step)
            for a in range(at, at + size, step)
        )

    def write(self, at: int, value: bytes) -> None:
        at &= 0xFFFFFFFF
        step = min(len(value), 4)
        for i in range(0, len(value), step):
            if at + i + step <= LDS:
                self.lds[at + i : at + i + step] = value[i : i + step]

    def result(self, lane: int, value: bytes, first: int = 0) -> None:
        words = np.frombuffer(value, np.uint32)
        self.out[lane, first : first + len(words)] = words


Model = Callable[[Machine], None]


def extend(value: bytes, signed: bool, shift: int = 0, keep: int = 32) -> bytes:
    x = int.from_bytes(value, "little", signed=signed)
    return ((x & ((1 << keep) - 1)) << shift & 0xFFFFFFFF).to_bytes(4, "little")


def load(size: int, offset: int = 0, narrow: Callable[[bytes], bytes] = lambda b: b) -> Model:
    def model(m: Machine) -> None:
        for lane in m.lanes():
            m.result(lane, narrow(m.read(m.addr[lane] + offset, size)))

    return model


def store(size: int, offset: int = 0, skip: int = 0) -> Model:
    def model(m: Machine) -> None:
        for lane in m.lanes():
            m.write(m.addr[lane] + offset, m.data[0][lane].tobytes()[skip : skip + size])

    return model


def load2(size: int, offset0: int, offset1: int) -> Model:
    def model(m: Machine) -> None:
        for lane in m.lanes():
            m.result(lane, m.read(m.addr[lane] + offset0, size) + m.read(m.addr[lane] + offset1, size))

    return model


def store2(size: int, offset0: int, offset1: int) -> Model:
    def model(m: Machine) -> None:
        for which, offset in enumerate((offset0, offset1)):
            for lane in m.lanes():
                m.write(m.addr[lane] + offset, m.data[which][lane].tobytes()[:size])

    return model


def atomic(change: Callable[..., object], code: str, returns: bool, offset: int = 8) -> Model:
    """`change` takes the old value and the data, as `code` of struct unpacks them."""
    size = struct.calcsize(code)

    def model(m: Machine) -> None:
        for lane in m.lanes():
            old = m.read(m.addr[lane] + offset, size)
            values = [struct.unpack("<" + code, m.data[k][lane].tobytes()[:size])[0] for k in (0, 1)]
            new = change(struct.unpack("<" + code, old)[0], *values)
            if isinstance(new, int):
                new &= (1 << 8 * size) - 1
                code_ = code.upper()
            else:
                code_ = code
            m.write(m.addr[lane] + offset, struct.pack("<" + code_, new))
            if returns:
                m.result(lane, old)

    return model


def fminimum(m: float, a: float) -> float:
    return np.fmin(m, a) if m != a else (m if np.signbit(m) else a)


def fmaximum(m: float, a: float) -> float:
    return np.fmax(m, a) if m != a else (a if np.signbit(m) else m)


INTEGER: dict[str, Callable[[int, int, int], int]] = {
    "add_{}u": lambda m, a, b: m + a,
    "sub_{}u": lambda m, a, b: m - a,
    "rsub_{}u": lambda m, a, b: a - m,
    "inc_{}u": lambda m, a, b: 0 if m >= a else m + 1,
    "dec_{}u": lambda m, a, b: a if m == 0 or m > a else m - 1,
    "min_{}i": lambda m, a, b: min(m, a),
    "max_{}i": lambda m, a, b: max(m, a),
    "min_{}u": lambda m, a, b: min(m, a),
    "max_{}u": lambda m, a, b: max(m, a),
    "and_{}b": lambda m, a, b: m & a,
    "or_{}b": lambda m, a, b: m | a,
    "xor_{}b": lambda m, a, b: m ^ a,
    "mskor_{}b": lambda m, a, b: (m & ~a) | b,
    "cmpst_{}b": lambda m, a, b: b if m == a else m,
}


def half_sum(dtype: type) -> Callable[[int, int, int], int]:
    def change(m: int, a: int, _: int) -> int:
        x, y = (np.array([v], np.uint32).view(dtype).astype(np.float32) for v in (m, a))
        with np.errstate(all="ignore"):
            return int((x + y).astype(dtype).view(np.uint32)[0])

    return change


def transposed(bits: int, source: Callable[[int, int], tuple[int, int]]) -> Model:
    """Element e of lane j is element `source(e, j)[1]` of lane `source(e, j)[0]` of its sixteen."""
    size = 12 if bits == 6 else 8

    def model(m: Machine) -> None:
        raw = [int.from_bytes(m.read(m.addr[lane], size), "little") for lane in range(64)]
        for lane in range(64):
            value = 0
            for e in range(size * 8 // bits):
                from_lane, element = source(e, lane % 16)
                value |= (raw[lane // 16 * 16 + from_lane] >> element * bits & ((1 << bits) - 1)) << e * bits
            m.result(lane, value.to_bytes(size, "little"))

    return model


def permuted(source: Callable[[Machine, int], int], operand: int = 0) -> Model:
    def model(m: Machine) -> None:
        for lane in m.lanes():
            other = source(m, lane)
            value = m.data[0][other][0] if operand == 0 else m.addr[other]
            m.result(lane, int(value if m.exec >> other & 1 else 0).to_bytes(4, "little"))

    return model


def forward(m: Machine) -> None:
    row = [0] * 64
    for lane in m.lanes():
        row[(m.addr[lane] + 4) // 4 % 64] = int(m.data[0][lane][0])
    for lane in m.lanes():
        m.result(lane, row[lane].to_bytes(4, "little"))


def counted(sign: int) -> Model:
    def model(m: Machine) -> None:
        old = m.read(64, 4)
        m.write(
            64, ((int.from_bytes(old, "little") + sign * len(m.lanes())) & 0xFFFFFFFF).to_bytes(4, "little")
        )
        for lane in m.lanes():
            m.result(lane, old)

    return model


def exchanged2(size: int, unit: int, second: int = 100) -> Model:
    def model(m: Machine) -> None:
        before = bytearray(m.lds)
        load2(size, unit, second * unit)(m)
        m.lds[:] = before
        store2(size, unit, second * unit)(m)

    return model


def conditionally_exchanged(m: Machine) -> None:
    for lane in m.lanes():
        at = (m.addr[lane] + 8) & 0xFFF8
        for half in (0, 1):
            value = int(m.data[0][lane][half])
            m.result(lane, m.read(at + 4 * half, 4), half)
            if value >> 31:
                m.write(at + 4 * half, (value & 0x7FFFFFFF).to_bytes(4, "little"))


def by_lane(is_store: bool) -> Model:
    def model(m: Machine) -> None:
        for lane in m.lanes():
            at = 0x40 + 0x20 + 4 * lane
            m.write(at, m.data[0][lane].tobytes()[:4]) if is_store else m.result(lane, m.read(at, 4))

    return model


def swizzle_bits(pattern: int) -> Callable[[Machine, int], int]:
    keep, set_, flip = pattern & 31, pattern >> 5 & 31, pattern >> 10 & 31
    return lambda _, lane: (((lane & 31 & keep) | set_) ^ flip) | (lane & 32)


def rotated(by: int, mask: int) -> Callable[[Machine, int], int]:
    return lambda _, lane: (lane & mask) | ((lane + by) & 31 & ~mask) | (lane & 32)


def fft(mask: int) -> Callable[[Machine, int], int]:
    def source(_: Machine, lane: int) -> int:
        j = int(format(lane & 31, "05b")[::-1], 2) >> mask.bit_count()
        return j | (lane & mask) | (lane & 32)

    return source


def instructions() -> dict[str, Model]:
    rows: dict[str, Model] = {
        "ds_read_b32 v20, v2": load(4),
        "ds_read_b32 v20, v2 offset:4095": load(4, 4095),
        "ds_read_b64 v[20:21], v2 offset:12": load(8, 12),
        "ds_read_b96 v[20:22], v2 offset:16": load(12, 16),
        "ds_read_b128 v[20:23], v2": load(16),
        "ds_read_u8 v20, v2 offset:3": load(1, 3, lambda b: extend(b, False)),
        "ds_read_i8 v20, v2 offset:3": load(1, 3, lambda b: extend(b, True)),
        "ds_read_u16 v20, v2 offset:2": load(2, 2, lambda b: extend(b, False)),
        "ds_read_i16 v20, v2 offset:2": load(2, 2, lambda b: extend(b, True)),
        "ds_read_u8_d16 v20, v2": load(1, 0, lambda b: extend(b, False, 0, 16)),
        "ds_read_u8_d16_hi v20, v2": load(1, 0, lambda b: extend(b, False, 16, 16)),
        "ds_read_i8_d16 v20, v2": load(1, 0, lambda b: extend(b, True, 0, 16)),
        "ds_read_i8_d16_hi v20, v2": load(1, 0, lambda b: extend(b, True, 16, 16)),
        "ds_read_u16_d16 v20, v2": load(2, 0, lambda b: extend(b, False, 0, 16)),
        "ds_read_u16_d16_hi v20, v2": load(2, 0, lambda b: extend(b, False, 16, 16)),
        "ds_read2_b32 v[20:21], v2 offset0:1 offset1:200": load2(4, 4, 800),
        "ds_read2st64_b32 v[20:21], v2 offset0:1 offset1:3": load2(4, 256, 768),
        "ds_read2_b64 v[20:23], v2 offset0:1 offset1:200": load2(8, 8, 1600),
        "ds_read2st64_b64 v[20:23], v2 offset0:1 offset1:3": load2(8, 512, 1536),
        "ds_write_b8 v2, v8 offset:1": store(1, 1),
        "ds_write_b8_d16_hi v2, v8 offset:1": store(1, 1, 2),
        "ds_write_b16 v2, v8": store(2),
        "ds_write_b16_d16_hi v2, v8": store(2, 0, 2),
        "ds_write_b32 v2, v8 offset:4": store(4, 4),
        "ds_write_b64 v2, v[8:9]": store(8),
        "ds_write_b96 v2, v[8:10]": store(12),
        "ds_write_b128 v2, v[8:11] offset:32": store(16, 32),
        "ds_write2_b32 v2, v8, v12 offset0:1 offset1:200": store2(4, 4, 800),
        "ds_write2st64_b32 v2, v8, v12 offset0:1 offset1:3": store2(4, 256, 768),
        "ds_write2_b64 v2, v[8:9], v[12:13] offset0:1 offset1:200": store2(8, 8, 1600),
        "ds_write2st64_b64 v2, v[8:9], v[12:13] offset0:1 offset1:3": store2(8, 512, 1536),
        "ds_wrxchg_rtn_b32 v20, v2, v8 offset:8": atomic(lambda m, a, b: a, "I", True),
        "ds_wrxchg_rtn_b64 v[20:21], v2, v[8:9] offset:8": atomic(lambda m, a, b: a, "Q", True),
        "ds_wrxchg2_rtn_b32 v[20:21], v4, v8, v12 offset0:1 offset1:100": exchanged2(4, 4),
        "ds_wrxchg2_rtn_b64 v[20:23], v4, v[8:9], v[12:13] offset0:1 offset1:100": exchanged2(8, 8),
        "ds_wrxchg2st64_rtn_b32 v[20:21], v4, v8, v12 offset0:1 offset1:5": exchanged2(4, 256, 5),
        "ds_wrxchg2st64_rtn_b64 v[20:23], v4, v[8:9], v[12:13] offset0:1 offset1:3": exchanged2(8, 512, 3),
        "ds_condxchg32_rtn_b64 v[20:21], v4, v[8:9] offset:8": conditionally_exchanged,
        "ds_wrap_rtn_b32 v20, v2, v8, v12 offset:8": atomic(
            lambda m, a, b: m - a if m >= a else m + b, "I", True
        ),
        "ds_read_addtid_b32 v20 offset:64": by_lane(False),
        "ds_write_addtid_b32 v8 offset:64": by_lane(True),
        "ds_append v20 offset:64": counted(1),
        "ds_consume v20 offset:64": counted(-1),
        "ds_read_b64_tr_b16 v[20:21], v4": transposed(16, lambda e, j: (4 * e + j // 4, j % 4)),
        "ds_read_b64_tr_b8 v[20:21], v4": transposed(8, lambda e, j: (2 * e + j // 8, j % 8)),
        "ds_read_b64_tr_b4 v[20:21], v4": transposed(4, lambda e, j: (e, j)),
        "ds_read_b96_tr_b6 v[20:22], v4": transposed(6, lambda e, j: (e, j)),
        "ds_bpermute_b32 v20, v2, v8 offset:4": permuted(lambda m, lane: (m.addr[lane] + 4) // 4 % 64),
        "ds_permute_b32 v20, v2, v8 offset:4": forward,
        'ds_swizzle_b32 v20, v2 offset:swizzle(BITMASK_PERM, "01pip")': permuted(
            swizzle_bits(0b00100 | 0b01000 << 5 | 0b00010 << 10 | 0b00001), 1
        ),
        "ds_swizzle_b32 v20, v2 offset:swizzle(QUAD_PERM, 3, 1, 0, 2)": permuted(
            lambda _, lane: (lane & ~3) + (3, 1, 0, 2)[lane & 3], 1
        ),
        "ds_swizzle_b32 v20, v2 offset:0xc041": permuted(rotated(2, 1), 1),
        "ds_swizzle_b32 v20, v2 offset:0xc4a0": permuted(rotated(-5, 0), 1),
        "ds_swizzle_b32 v20, v2 offset:0xe000": permuted(fft(0), 1),
        "ds_swizzle_b32 v20, v2 offset:0xe010": permuted(fft(16), 1),
    }
    # swizzle "01pip": bits from the top: 0, 1, keep, invert, keep
    rows['ds_swizzle_b32 v20, v2 offset:swizzle(BITMASK_PERM, "01pip")'] = permuted(
        lambda _, lane: ((lane & 0b00111) | 0b01000) ^ 0b00010 | (lane & 32), 1
    )
    for bits, unsigned in ((32, "I"), (64, "Q")):
        registers = ["v8", "v12"] if bits == 32 else ["v[8:9]", "v[12:13]"]
        out = "v20" if bits == 32 else "v[20:21]"
        for name, change in INTEGER.items():
            code = unsigned.lower() if name.endswith("i") else unsigned
            data = ", ".join(registers[: 2 if name.startswith(("mskor", "cmpst")) else 1])
            plain, returning = name.format("") + str(bits), name.format("rtn_") + str(bits)
            rows[f"ds_{plain} v4, {data} offset:8"] = atomic(change, code, False)
            rows[f"ds_{returning} {out}, v4, {data} offset:8"] = atomic(change, code, True)
        real = "f" if bits == 32 else "d"
        wide = np.float32 if bits == 32 else np.float64
        for name, f in {
            "min": lambda m, a, b: float(fminimum(m, a)),
            "max": lambda m, a, b: float(fmaximum(m, a)),
            "add": lambda m, a, b, wide=wide: float(wide(m) + wide(a)),
            "cmpst": lambda m, a, b: b if m == a else m,  # zeros of both signs are equal
        }.items():
            data = ", ".join(registers[: 2 if name == "cmpst" else 1])
            rows[f"ds_{name}_f{bits} v4, {data} offset:8"] = atomic(f, real, False)
            rows[f"ds_{name}_rtn_f{bits} {out}, v4, {data} offset:8"] = atomic(f, real, True)
    for name, dtype in (("f16", np.float16), ("bf16", ml_dtypes.bfloat16)):
        rows[f"ds_pk_add_{name} v4, v8 offset:8"] = atomic(half_sum(dtype), "I", False)
        rows[f"ds_pk_add_rtn_{name} v20, v4, v8 offset:8"] = atomic(half_sum(dtype), "I", True)
    return rows


BODY = """
    s_load_dwordx8 s[4:11], s[0:1], 0x0
    s_load_dwordx2 s[12:13], s[0:1], 0x20
    v_lshlrev_b32 v1, 4, v0
    v_lshlrev_b32 v3, 2, v0
    s_waitcnt lgkmcnt(0)
    global_load_dwordx4 v[24:27], v1, s[4:5]
    global_load_dwordx4 v[28:31], v1, s[4:5] offset:1024
    global_load_dwordx4 v[32:35], v1, s[4:5] offset:2048
    global_load_dwordx4 v[36:39], v1, s[4:5] offset:3072
    global_load_dword v2, v3, s[6:7]
    global_load_dword v4, v3, s[6:7] offset:256
    global_load_dwordx4 v[8:11], v1, s[8:9]
    global_load_dwordx4 v[12:15], v1, s[8:9] offset:1024
    s_waitcnt vmcnt(0)
    ds_write_b128 v1, v[24:27]
    ds_write_b128 v1, v[28:31] offset:1024
    ds_write_b128 v1, v[32:35] offset:2048
    ds_write_b128 v1, v[36:39] offset:3072
    v_mov_b32 v20, 0xdeadbeef
    v_mov_b32 v21, v20
    v_mov_b32 v22, v20
    v_mov_b32 v23, v20
    s_waitcnt lgkmcnt(0)
    s_mov_b32 m0, 0x20
    s_mov_b32 exec_lo, {low}
    s_mov_b32 exec_hi, {high}
    {text}
    s_waitcnt lgkmcnt(0)
    s_mov_b64 exec, -1
    global_store_dwordx4 v1, v[20:23], s[10:11]
    ds_read_b128 v[24:27], v1
    ds_read_b128 v[28:31], v1 offset:1024
    ds_read_b128 v[32:35], v1 offset:2048
    ds_read_b128 v[36:39], v1 offset:3072
    s_waitcnt lgkmcnt(0)
    global_store_dwordx4 v1, v[24:27], s[12:13]
    global_store_dwordx4 v1, v[28:31], s[12:13] offset:1024
    global_store_dwordx4 v1, v[32:35], s[12:13] offset:2048
    global_store_dwordx4 v1, v[36:39], s[12:13] offset:3072
"""


def operands(text: str, rng: np.random.Generator) -> tuple[bytes, NDArray[np.uint32], NDArray[np.uint32]]:
    """LDS contents; addresses for v2 (some unaligned, some out of range) and v4 (all valid); data."""
    memory = rng.integers(0, 2**32, LDS // 4, np.uint32)
    data = rng.integers(0, 2**32, (2, 64, 4), np.uint32)
    wild = rng.integers(0, LDS + 64, 64).astype(np.uint32)
    wild[:4] = 0, LDS - 8, LDS, 0xFFFFFFF0
    if "write" in text:
        wild = (rng.permutation(LDS // 32 + 4)[:64] * 32).astype(np.uint32)
    if "rtn" in text or "wr" in text.split("_")[1]:
        wild &= 0xFFFFFFF8
    tame = (rng.integers(0, 40, 64) * 16).astype(np.uint32)
    if "_tr_" in text:
        tame = (rng.permutation(64) * 16).astype(np.uint32)
    if "xchg2" in text:
        tame = (np.arange(64) * 32).astype(np.uint32)
    if "_f32" in text:
        memory = rng.standard_normal(LDS // 4).astype(np.float32).view(np.uint32)
        data = rng.standard_normal((2, 64, 4)).astype(np.float32).view(np.uint32)
        memory[:8] = data[0, :8, 0] = np.array([0.0, -0.0] * 4, np.float32).view(np.uint32)
    if "_f64" in text:
        memory = rng.standard_normal(LDS // 8).view(np.uint32)
        data = rng.standard_normal((2, 64, 2)).view(np.uint32)
    if "f16" in text:
        dtype = ml_dtypes.bfloat16 if "bf16" in text else np.float16
        memory = rng.standard_normal(LDS // 2).astype(dtype).view(np.uint32)
        data = rng.standard_normal((2, 64, 8)).astype(dtype).view(np.uint32)
    if "cmpst" in text:  # half of the comparisons hit
        words = 2 if "b64" in text or "f64" in text else 1
        for lane in range(0, 64, 2):
            at = tame[lane] // 4 + 2
            data[0, lane, :words] = memory[at : at + words]
    return memory.tobytes(), np.concatenate([wild, tame]), data


DATA = (*range(8, 16), *range(20, 24))  # the registers of stored and loaded data


@pytest.mark.parametrize("mask", [ALL, PARTIAL], ids=["all", "some"])
@pytest.mark.parametrize("agprs", [False, True], ids=["vgprs", "agprs"])
def test_instructions(agprs: bool, mask: int, rng: np.random.Generator) -> None:
    rows = {t: m for t, m in instructions().items() if mask == ALL or "_tr_" not in t}
    shown = {t: asm.with_agprs(t, DATA) if agprs else t for t in rows}
    rows = {t: m for (t, m), good in zip(rows.items(), assembles(list(shown.values())), strict=True) if good}
    assert len(rows) > 100
    kernels = {
        f"k{i}": asm.Snippet(
            BODY.format(text=shown[t], low=hex(mask & 0xFFFFFFFF), high=hex(mask >> 32)),
            lds=LDS,
            vgprs=96,
            accum=64,
        )
        for i, t in enumerate(rows)
    }
    wrong = []
    with asm.Module(kernels) as module:
        for i, (text, model) in enumerate(rows.items()):
            memory, addr, data = operands(text, rng)
            out = np.full((64, 4), MARK, np.uint32)
            *_, got, after = module.run(
                f"k{i}",
                np.frombuffer(memory, np.uint8),
                addr,
                data,
                np.zeros_like(out),
                np.zeros(LDS, np.uint8),
            )
            which = addr[64:] if ", v4" in text or "v4," in text else addr[:64]
            machine = Machine(bytearray(memory), [int(x) for x in which], [data[0], data[1]], mask, out)
            model(machine)
            if not np.array_equal(got, out):
                lane, dword = np.argwhere(got != out)[0]
                wrong.append(
                    f"{text}: lane {lane} dword {dword}: {got[lane, dword]:#x}, not {out[lane, dword]:#x}"
                )
            if after.tobytes() != bytes(machine.lds):
                at = int(np.argmax(after != np.frombuffer(bytes(machine.lds), np.uint8)))
                wrong.append(f"{text}: LDS differs at byte {at}")
    assert not wrong, f"{len(wrong)} wrong:\n" + "\n".join(wrong)


@asm.only_gfx950
def test_transposing_load_needs_all_lanes() -> None:
    with pytest.raises(asm.LaunchError, match="needs all lanes active"):
        asm.run("v_mov_b32 v4, 0\ns_mov_b64 exec, 1\nds_read_b64_tr_b16 v[20:21], v4", lds=LDS)


def test_misaligned_atomic_is_reported() -> None:
    with pytest.raises(asm.LaunchError, match="misaligned LDS atomic"):
        asm.run("v_mov_b32 v4, 2\nv_mov_b32 v5, 1\nds_add_u32 v4, v5", lds=LDS)
