"""Typed buffers: every format that is emulated, loaded and stored, against NumPy; and what is refused."""

from __future__ import annotations

import asm
import numpy as np
import pytest
from numpy.typing import NDArray

# Bits of the components, by the code of the data format.
FORMATS = {
    "8": (8,),
    "16": (16,),
    "8_8": (8, 8),
    "32": (32,),
    "16_16": (16, 16),
    "2_10_10_10": (10, 10, 10, 2),
    "8_8_8_8": (8, 8, 8, 8),
    "32_32": (32, 32),
    "16_16_16_16": (16, 16, 16, 16),
    "32_32_32": (32, 32, 32),
    "32_32_32_32": (32, 32, 32, 32),
}
CODES = dict(zip(FORMATS, (1, 2, 3, 4, 5, 9, 10, 11, 12, 13, 14), strict=True))
NUMBERS = {"UNORM": 0, "SNORM": 1, "USCALED": 2, "SSCALED": 3, "UINT": 4, "SINT": 5, "FLOAT": 7}
ONES = {"UINT": 1, "SINT": 1}
SUFFIX = {1: "x", 2: "xy", 3: "xyz", 4: "xyzw"}
Bits = NDArray[np.uint32]


def exists(data: str, numbers: str) -> bool:
    widest = FORMATS[data][0]
    if numbers == "FLOAT":
        return widest >= 16
    return numbers in ("UINT", "SINT") or widest < 32


KINDS = [(data, numbers) for data in FORMATS for numbers in NUMBERS if exists(data, numbers)]


def elements(data: str, rng: np.random.Generator) -> tuple[NDArray[np.uint8], list[NDArray[np.uint64]]]:
    """Random elements of 64 lanes, [lane, byte], and their components."""
    bits = FORMATS[data]
    parts = [rng.integers(0, 2**n, 64, np.uint64) for n in bits]
    size = sum(bits) // 8
    out = np.zeros((64, size), np.uint8)
    for lane in range(64):
        whole, at = 0, 0
        for n, part in zip(bits, parts, strict=True):
            whole |= int(part[lane]) << at
            at += n
        out[lane] = np.frombuffer(whole.to_bytes(size, "little"), np.uint8)
    return out, parts


def signed(x: NDArray[np.uint64], bits: int) -> NDArray[np.int64]:
    y = x.astype(np.int64)
    return np.where(y >= 1 << bits - 1, y - (1 << bits), y)


def in_register(x: NDArray[np.uint64], bits: int, numbers: str) -> Bits:
    """What a load gives, as bits."""
    match numbers:
        case "UNORM":
            value = (x.astype(np.float32) / np.float32(2**bits - 1)).astype(np.float32)
        case "SNORM":
            value = np.maximum(signed(x, bits).astype(np.float32) / np.float32(2 ** (bits - 1) - 1), -1)
        case "USCALED":
            value = x.astype(np.float32)
        case "SSCALED":
            value = signed(x, bits).astype(np.float32)
        case "UINT":
            return x.astype(np.uint32)
        case "SINT":
            return signed(x, bits).astype(np.int32).view(np.uint32)
        case _:
            if bits == 32:
                return x.astype(np.uint32)
            value = x.astype(np.uint16).view(np.float16).astype(np.float32)
    return value.astype(np.float32).view(np.uint32)


def halves(x: Bits, numbers: str) -> Bits:
    """The 16 bits of the d16 forms."""
    if numbers in ("UINT", "SINT"):
        return x & 0xFFFF
    with np.errstate(over="ignore"):
        return x.view(np.float32).astype(np.float16).view(np.uint16).astype(np.uint32)


def same(got: Bits, want: Bits, what: object) -> None:
    """Equal bits; any NaN is like another."""
    nan = [np.isnan(x.view(np.float32)) for x in (got, want)]
    assert ((got == want) | (nan[0] & nan[1])).all(), what


BODY = """
    s_load_dwordx4 s[4:7], s[0:1], 0x0
    v_mul_u32_u24 v1, {size}, v0
    v_lshlrev_b32 v2, 4, v0
    s_waitcnt lgkmcnt(0)
    s_mov_b32 s8, s4
    s_mov_b32 s9, s5
    s_mov_b32 s10, {records}
    s_mov_b32 s11, {word}
    v_mov_b32 v8, v20
    {text}
    s_waitcnt vmcnt(0)
"""
LOADED = "global_store_dwordx4 v2, v[8:11], s[6:7]"


def descriptor(data: str, numbers: str, select: tuple[int, ...] = (4, 5, 6, 7)) -> int:
    word = CODES[data] << 15 | NUMBERS[numbers] << 12
    return word | sum(s << 3 * i for i, s in enumerate(select))


def load_kernel(
    data: str, numbers: str, name: str, out: str, word: int = 0x20000, records: int = 1 << 20
) -> str:
    size = sum(FORMATS[data]) // 8
    of = f"format:[BUF_DATA_FORMAT_{data},BUF_NUM_FORMAT_{numbers}]" if name[0] == "t" else ""
    text = f"{name} {out}, v1, s[8:11], 0 {of} offen"
    zero = "\n".join(f"v_mov_b32 v{r}, 0" for r in range(8, 12))
    return zero + BODY.format(size=size, records=records, word=word, text=text) + LOADED


@pytest.mark.parametrize("descriptors", [False, True], ids=["tbuffer", "buffer"])
def test_loads(descriptors: bool, rng: np.random.Generator) -> None:
    """All components of each format; components that it lacks are 0."""
    kernels, cases = {}, {}
    prefix = "buffer" if descriptors else "tbuffer"
    for data, numbers in KINDS:
        memory, parts = elements(data, rng)
        word = descriptor(data, numbers) if descriptors else 0x20000
        want = np.zeros((64, 4), np.uint32)
        for c, (bits, part) in enumerate(zip(FORMATS[data], parts, strict=True)):
            want[:, c] = in_register(part, bits, numbers)
        name = f"{data}_{numbers}"
        kernels[name] = asm.Snippet(load_kernel(data, numbers, f"{prefix}_load_format_xyzw", "v[8:11]", word))
        cases[name] = (memory, want)
        packed = np.zeros((64, 4), np.uint32)
        half = [halves(want[:, c].copy(), numbers) for c in range(4)]
        packed[:, 0], packed[:, 1] = half[0] | half[1] << 16, half[2] | half[3] << 16
        kernels[name + "_d16"] = asm.Snippet(
            load_kernel(data, numbers, f"{prefix}_load_format_d16_xyzw", "v[8:9]", word)
        )
        cases[name + "_d16"] = (memory, packed)
    with asm.Module({f"k_{name}": kernel for name, kernel in kernels.items()}) as module:
        for name, (memory, want) in cases.items():
            _, got = module.run(f"k_{name}", memory, np.zeros((64, 4), np.uint32))
            if name.endswith("_d16"):
                assert (got == want).all() or name.startswith(("16", "32")), name
                finite = np.isfinite(want.view(np.float16))
                assert (got.view(np.float16)[finite] == want.view(np.float16)[finite]).all(), name
            else:
                same(got, want, name)


def test_fewer_components_constants_and_order(rng: np.random.Generator) -> None:
    memory, parts = elements("8_8_8_8", rng)
    word = descriptor("8_8_8_8", "UINT", (7, 1, 0, 4))
    body = load_kernel("8_8_8_8", "UINT", "buffer_load_format_xyzw", "v[8:11]", word)
    _, got = asm.run(body, memory, np.zeros((64, 4), np.uint32))
    np.testing.assert_array_equal(got.T, [parts[3], np.ones(64), np.zeros(64), parts[0]])
    body = load_kernel("8_8_8_8", "UINT", "tbuffer_load_format_xy", "v[8:9]")
    _, got = asm.run(body, memory, np.zeros((64, 4), np.uint32))
    np.testing.assert_array_equal(got.T, [parts[0], parts[1], np.zeros(64), np.zeros(64)])
    body = load_kernel("8_8_8_8", "UINT", "buffer_load_format_d16_hi_x", "v8", descriptor("8_8_8_8", "UINT"))
    _, got = asm.run(body, memory, np.zeros((64, 4), np.uint32))
    np.testing.assert_array_equal(got[:, 0], parts[0] << np.uint64(16))


def test_elements_beyond_the_records_are_zero(rng: np.random.Generator) -> None:
    """An element of which a part is out of range is so as a whole."""
    memory, parts = elements("32_32", rng)
    body = load_kernel("32_32", "UINT", "tbuffer_load_format_xy", "v[8:9]", records=20 * 8 + 4)
    _, got = asm.run(body, memory, np.zeros((64, 4), np.uint32))
    inside = np.arange(64) < 20
    np.testing.assert_array_equal(got.T[:2], [np.where(inside, part, 0) for part in parts])


def store_kernel(data: str, numbers: str, name: str, registers: int, word: int = 0x20000) -> str:
    of = f"format:[BUF_DATA_FORMAT_{data},BUF_NUM_FORMAT_{numbers}]" if name[0] == "t" else ""
    size = sum(FORMATS[data]) // 8
    from_ = "v8" if registers == 1 else f"v[8:{7 + registers}]"
    text = "global_load_dwordx4 v[8:11], v2, s[6:7]\ns_waitcnt vmcnt(0)\n"
    text += f"{name} {from_}, v1, s[8:11], 0 {of} offen"
    return BODY.format(size=size, records=1 << 20, word=word, text=text)


def rounded(x: NDArray[np.float64], bits: int, numbers: str) -> NDArray[np.uint64]:
    top = 2**bits - 1 if numbers == "UNORM" else 2 ** (bits - 1) - 1
    low = 0 if numbers == "UNORM" else -1
    scaled = np.rint((np.clip(x, low, 1).astype(np.float32) * np.float32(top)).astype(np.float64))
    return scaled.astype(np.int64).astype(np.uint64) & np.uint64(2**bits - 1)


@pytest.mark.parametrize("descriptors", [False, True], ids=["tbuffer", "buffer"])
def test_stores(descriptors: bool, rng: np.random.Generator) -> None:
    kernels, cases = {}, {}
    prefix = "buffer" if descriptors else "tbuffer"
    for data, numbers in KINDS:
        if "SCALED" in numbers:
            continue
        bits = FORMATS[data]
        memory, parts = elements(data, rng)
        source = rng.integers(0, 2**32, (64, 4), np.uint32)
        if numbers in ("UNORM", "SNORM"):  # any float, most of them in range; then what memory holds
            values = rng.uniform(-1.3, 1.3, (64, 4)).astype(np.float32)
            source = values.view(np.uint32)
            parts = [rounded(values[:, c].astype(np.float64), n, numbers) for c, n in enumerate(bits)]
            memory = np.zeros_like(memory)
            for lane in range(64):
                whole = sum(int(p[lane]) << sum(bits[:c]) for c, p in enumerate(parts))
                memory[lane] = np.frombuffer(whole.to_bytes(memory.shape[1], "little"), np.uint8)
        else:
            for c, n in enumerate(bits):
                source[:, c] = in_register(parts[c], n, numbers)
        name = f"{data}_{numbers}"
        word = descriptor(data, numbers) if descriptors else 0x20000
        of = f"{prefix}_store_format_{SUFFIX[len(bits)]}"
        kernels[name] = asm.Snippet(store_kernel(data, numbers, of, len(bits), word))
        cases[name] = (memory, source)
        if numbers in ("UINT", "SINT") and bits[0] == 16:
            packed = source & 0xFFFF
            source = np.zeros((64, 4), np.uint32)
            for c in range(len(bits)):
                source[:, c // 2] |= packed[:, c] << 16 * (c % 2)
            of = f"{prefix}_store_format_d16_{SUFFIX[len(bits)]}"
            kernels[name + "_d16"] = asm.Snippet(store_kernel(data, numbers, of, (len(bits) + 1) // 2, word))
            cases[name + "_d16"] = (memory, source)
    with asm.Module({f"k_{name}": kernel for name, kernel in kernels.items()}) as module:
        for name, (memory, source) in cases.items():
            got, _ = module.run(f"k_{name}", np.full_like(memory, 0xA5), source)
            if name.endswith("16_FLOAT") and (got != memory).any():  # of NaN any bits
                wrong = (got != memory).reshape(64, -1, 2).any(2)
                assert np.isnan(memory.view(np.float16)[wrong]).all(), name
            else:
                np.testing.assert_array_equal(got, memory, name)


@pytest.mark.parametrize(
    ("data", "numbers", "name", "registers", "word", "message"),
    [
        ("8_8", "UINT", "tbuffer_store_format_x", 1, 0x20000, "fewer components than an element has"),
        ("8", "USCALED", "tbuffer_store_format_x", 1, 0x20000, "scaled integers"),
        ("8", "UINT", "tbuffer_store_format_x", 1, 0x20000, "does not fit its component"),
        ("8", "UINT", "buffer_store_format_x", 1, descriptor("8", "UINT", (5, 4, 0, 0)), "another order"),
        ("32", "UINT", "buffer_store_format_x", 1, 10 << 19 | 6 << 15, "this format of a typed buffer"),
        ("32", "UNORM", "tbuffer_store_format_x", 1, 0x20000, "this format of a typed buffer"),
    ],
)
def test_what_is_refused(data: str, numbers: str, name: str, registers: int, word: int, message: str) -> None:
    """The report names the instruction and says why."""
    body = store_kernel(data, numbers, name, registers, word)
    source = np.full((64, 4), 1000, np.uint32)
    with pytest.raises(asm.LaunchError, match=f"{message}.*not emulated.*{name}"):
        asm.run(body, np.zeros((64, 16), np.uint8), source)
