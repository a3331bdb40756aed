"""The decoder and the disassembler, against LLVM's assembler: bytes → text → the same bytes."""

from __future__ import annotations

import ctypes
import mmap
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from asm import ARCH, LIBRARY, only_gfx950, rows

Disassemble = Callable[[bytes], tuple[int, str]]


class Row(NamedTuple):
    family: str
    opcode: int
    name: str
    signature: str
    flags: frozenset[str]

    @property
    def destinations(self) -> int:
        return len(self.signature.split("=")[0].split()) if "=" in self.signature else 0

    @property
    def sources(self) -> int:
        return len(self.signature.split("=")[1].replace("addr", "").split()) if "=" in self.signature else 0


ROWS = [Row(*row) for row in rows()]


@pytest.fixture(scope="module")
def disassemble() -> Disassemble:
    library = ctypes.CDLL(str(LIBRARY))
    function = library.hipgemm_emulator_disassemble
    function.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(256)

    def call(code: bytes) -> tuple[int, str]:
        size = function(code, len(code), text, len(text))
        return size, text.value.decode() if size else ""

    return call


def assemble(lines: list[str], tmp_path: Path) -> list[bytes | str]:
    """Bytes of each line, or the assembler's error."""
    source = tmp_path / "lines.s"
    source.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "ziglang", "clang", "-cc1as", "-triple", "amdgcn-amd-amdhsa"]
    command += ["-target-cpu", ARCH, "-filetype", "asm", "-show-encoding", str(source), "-o", "-"]
    run = subprocess.run(command, capture_output=True, text=True)
    errors = {int(line) - 1: message for line, message in re.findall(r":(\d+):\d+: error: (.*)", run.stderr)}
    encodings = iter(re.findall(r"; encoding: \[(.*)\]", run.stdout))
    return [
        errors[i] if i in errors else bytes(int(x, 16) for x in next(encodings).split(","))
        for i in range(len(lines))
    ]


def check_round_trip(cases: list[tuple[bytes, str]], tmp_path: Path) -> None:
    again = assemble([text for _, text in cases], tmp_path)
    wrong = [
        f"{code.hex()} → {text} → {result.hex() if isinstance(result, bytes) else result}"
        for (code, text), result in zip(cases, again, strict=True)
        if result != code
    ]
    assert not wrong, f"{len(wrong)} of {len(cases)}:\n" + "\n".join(wrong[:20])


# ---- encodings to start from --------------------------------------------------------------------


class Format(NamedTuple):
    base: int  # first dword without opcode and operands
    mask: int  # its fixed bits
    at: int  # where the opcode lies
    width: int


FORMATS = {
    "SOP1": Format(0xBE800000, 0xFF800000, 8, 8),
    "SOP2": Format(0x80000000, 0xC0000000, 23, 7),
    "SOPC": Format(0xBF000000, 0xFF800000, 16, 7),
    "SOPK": Format(0xB0000000, 0xF0000000, 23, 5),
    "SOPP": Format(0xBF800000, 0xFF800000, 16, 7),
    "SMEM": Format(0xC0000000, 0xFC000000, 18, 8),
    "VOP1": Format(0x7E000000, 0xFE000000, 9, 8),
    "VOP2": Format(0x00000000, 0x80000000, 25, 6),
    "VOPC": Format(0x7C000000, 0xFE000000, 17, 8),
    "VOP3": Format(0xD0000000, 0xFC000000, 16, 10),
    "VOP3P": Format(0xD3800000, 0xFF800000, 16, 7),
    "MFMA": Format(0xD3800000, 0xFF800000, 16, 7),
    "DS": Format(0xD8000000, 0xFC000000, 17, 8),
    "MUBUF": Format(0xE0000000, 0xFC000000, 18, 7),
    "MTBUF": Format(0xE8000000, 0xFC000000, 15, 4),
    "FLAT": Format(0xDC000000, 0xFC00C000, 18, 7),
    "SCRATCH": Format(0xDC004000, 0xFC00C000, 18, 7),
    "GLOBAL": Format(0xDC008000, 0xFC00C000, 18, 7),
}
VOP3_OFFSET = {"VOP1": 0x140, "VOP2": 0x100, "VOPC": 0}


def seeds(row: Row) -> Iterator[tuple[str, list[int], int]]:
    """Yield each form's name, a valid encoding, and the mask of fixed bits in its first dword."""
    layout = FORMATS[row.family]
    word = layout.base | row.opcode << layout.at
    fixed = layout.mask | ((1 << layout.width) - 1) << layout.at
    sources = sum(256 << 9 * i for i in range(row.sources))
    literal = 0x12345678
    match row.family:
        case "VOP1" | "VOP2" | "VOPC":
            constant = literal & 0xFFFF if "f16" in row.name else literal
            yield "e32", [word | (256 if row.sources else 0), constant], fixed
            if "kDpp" in row.flags:
                control = 0x150 if re.search(r"64|x2", row.signature.replace("f32 b64", "")) else 0xE4
                yield "dpp", [word | 250, control << 8 | 0xFF << 24], fixed | 0x1FF
            if "kSdwa" in row.flags:
                destination = 0 if row.family == "VOPC" else 6 << 8
                second = 0 if row.family == "VOP1" else 6 << 24
                yield "sdwa", [word | 249, destination | 6 << 16 | second], fixed | 0x1FF
            if "kNoVop3" not in row.flags:
                third = re.search(r"\w+ \w+ b64$", row.signature) is not None
                if third:
                    sources -= 256 << 18
                opcode = VOP3_OFFSET[row.family] + row.opcode
                yield "e64", [0xD0000000 | opcode << 16, sources], 0xFFFF0000
        case "VOP3":
            if row.name == "v_readlane_b32":
                sources = 256
            elif row.name == "v_writelane_b32":
                sources = 0
            yield "", [word, sources], fixed
        case "VOP3P":
            select = 0 if "fma_mix" in row.name else 1 << 14
            yield "", [word | select, sources | (3 << 27 if select else 0)], fixed
        case "MFMA":
            operands = 256 | 256 << 9 | (256 if "smfmac" in row.name else 128) << 18
            if "kScaled" in row.flags:
                yield "", [0xD3AC0000, 256 | 256 << 9, word | 1 << 11, operands], 0xFFFF0000
            else:
                yield "", [word, operands], fixed
        case "DS":
            yield "", [word | ("kGws" in row.flags) << 16, 0], fixed
        case "MUBUF" | "MTBUF":
            yield "", [word, 0x80000000 if row.signature else 0], fixed
        case "GLOBAL" | "SCRATCH":
            yield "", [word, 0x7F0000], fixed
        case _:
            yield "", [word, 0 if row.family in ("SMEM", "FLAT") else literal], fixed


# Values that single bit flips would rarely reach: special registers, constants, literals, format
# boundaries.
SCALARS = [100, 101, 102, 104, 106, 107, 108, 112, 124, 126, 127, 235, 236, 239, 251, 252, 253]
POKES = [*SCALARS, 128, 192, 193, 208, 240, 248, 255, 256, 356, 511]
LITERALS = [0, 5, 64, 65, 0x3F800000, 0x3C00, 0x3FF00000, 0xFFFFFFF0, 0xFFF0]

# What the walk must reach.
FEATURES = """
clamp | mul:2 | div:2 | op_sel: | op_sel_hi: | neg_lo: | neg_hi: | |v | neg( | lit( | sext( | quad_perm:
row_newbcast: | row_ror: | bound_ctrl:1 | dst_unused:UNUSED_PRESERVE | src1_sel:BYTE_3 | lds | a[ | off
idxen offen | blgp:2 | abid: | neg:[ | sc0 nt sc1 | offset0: | gds | glc | src_shared_base | vcc_hi
exec | m0 | flat_scratch | ttmp | 0.15915494309189532 | format:[ | hwreg( | vmcnt(
"""
ONLY_GFX950 = " | bitop3: | cbsz:4"


def walk(
    row: Row, start: list[int], fixed: int, rng: random.Random, disassemble: Disassemble, steps: int
) -> list[tuple[bytes, str]]:
    """Random walk over the encodings of one opcode; every accepted step is a case."""

    def pack(words: list[int]) -> bytes:
        return b"".join(w.to_bytes(4, "little") for w in words)

    size, text = disassemble(pack(start))
    assert size, f"{row.name}: seed {pack(start).hex()} is not decoded"
    assert text.startswith(row.name), f"{row.name}: decoded as {text}"
    cases = {pack(start)[:size]: text}
    words = start
    kept = {0: fixed}
    if "kScaled" in row.flags:  # 0xD3AC, two selects, VGPR scales, opcode and the ABID bit that joins both
        kept = {0: 0xFFFF6000, 1: 1 << 8 | 1 << 17, 2: 0xFFFF7800}
    for _ in range(steps):
        new = list(words)
        for _ in range(rng.choice((1, 1, 2, 3))):
            i = rng.randrange(len(new))
            kind = rng.random()
            if kind < 0.5:
                new[i] ^= 1 << rng.randrange(32)
            elif kind < 0.55:
                new[-1] = rng.choice(LITERALS)
            else:
                width = rng.choice((7, 8, 9))
                at = rng.choice((0, 8, 9, 16, 17, 18, 24)) if i or rng.random() < 0.5 else 0
                mask = ((1 << width) - 1) << at & 0xFFFFFFFF
                new[i] = new[i] & ~mask | rng.choice(POKES) << at & mask
        for i, mask in kept.items():
            new[i] = new[i] & ~mask | start[i] & mask
        size, text = disassemble(pack(new))
        if size:
            assert text.startswith(row.name), f"{pack(new).hex()}: {text} is not {row.name}"
            cases[pack(new)[:size]] = text
            words = new
    return list(cases.items())


# ---- tests --------------------------------------------------------------------------------------


def test_table_is_whole() -> None:
    counts: dict[str, int] = defaultdict(int)
    for row in ROWS:
        counts[row.family] += 1
    whole, matrix = (1151, 46) if ARCH == "gfx942" else (1248, 68)
    assert len({row.name for row in ROWS}) == len(ROWS) == whole
    assert counts["VOPC"] == 198
    assert counts["MFMA"] == matrix
    keys = [(row.family, row.opcode, "kScaled" in row.flags) for row in ROWS]
    assert len(set(keys)) == len(keys)


def test_round_trip_of_every_opcode(disassemble: Disassemble, tmp_path: Path) -> None:
    rng = random.Random(1)
    cases = []
    for row in ROWS:
        for _, words, fixed in seeds(row):
            cases += walk(row, words, fixed, rng, disassemble, 120)
    text = "\n".join(t for _, t in cases)
    features = re.split(r" \| |\n", FEATURES.strip() + (ONLY_GFX950 if ARCH != "gfx942" else ""))
    assert not [f for f in features if f not in text]
    assert len(cases) > 30 * len(ROWS)
    check_round_trip(cases, tmp_path)


def test_random_bytes_are_refused_or_round_trip(disassemble: Disassemble, tmp_path: Path) -> None:
    rng = random.Random(2)
    prefixes = [layout.base >> 24 for layout in FORMATS.values()] + [0x40, 0xC8, 0xFC]
    cases = []
    for _ in range(150_000):
        sparse = rng.getrandbits(128) & (rng.getrandbits(128) if rng.random() < 0.7 else -1)
        code = bytearray(sparse.to_bytes(16, "little"))
        code[3] = rng.choice(prefixes) | rng.getrandbits(2)
        size, text = disassemble(bytes(code))
        assert size in (0, 4, 8, 16)
        if size:
            cases.append((bytes(code[:size]), text))
    assert len(cases) > 5_000
    check_round_trip(cases, tmp_path)


@only_gfx950
def test_scales_outside_vgprs_are_still_decoded(disassemble: Disassemble) -> None:
    # Older compilers put scales into SGPRs and constants, which today's assembler refuses.
    code = bytes.fromhex("0000acd3040a02004008add328659205")
    size, text = disassemble(code)
    assert size == 16
    assert text.endswith("v[64:67], v[40:47], v[50:57], v[100:103], s4, v5 op_sel_hi:[0,0,0]")


@pytest.mark.parametrize(
    ("text", "answer"),
    [("v_add_u32 v0, v1, v2", 1), ("v_cmp_eq_f64 vcc, v[0:1], v[2:3]", 1), ("ds_gws_sema_v gds", 0)],
)
def test_what_can_be_executed(text: str, answer: int, tmp_path: Path) -> None:
    implemented = ctypes.CDLL(str(LIBRARY)).hipgemm_emulator_implemented
    implemented.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    (code,) = assemble([text], tmp_path)
    assert isinstance(code, bytes)
    assert implemented(code, len(code)) == answer
    assert implemented(code, len(code) - 1) == -1


@only_gfx950
def test_unused_selects_of_a_scale_prefix_are_ignored(disassemble: Disassemble) -> None:
    # Other assemblers set the bits of a third operand, which the prefix has not.
    plain, other = (disassemble(bytes.fromhex(f"00{b}acd304010200000cadd328659284")) for b in ("08", "68"))
    assert plain == other
    assert plain[0] == 16


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("020720d3", None),  # VOP3 without its second dword
        ("03000202", "v_add_f32_e32 v1, s3, v0"),
        ("ff000202", None),  # the literal is missing
        ("0301fe7e", None),  # no such VOP1 opcode
        ("0104feff", None),  # no such family
        ("010180d206070200", None),  # f64 in an odd register
        ("08008ad206f80000", "v_writelane_b32 v8, s6, m0"),  # two scalars: m0 does not count here
        ("08008ad2060e0000", None),  # s6 and s7
        ("000101be", None),  # SOP1 prefix without its top bit is SOPC/SOP2: opcode 0x7c does not exist
    ],
)
def test_malformed(code: str, text: str | None, disassemble: Disassemble) -> None:
    size, got = disassemble(bytes.fromhex(code))
    assert (got or None) == text
    assert (size == 0) == (text is None)


def test_never_reads_past_the_end(disassemble: Disassemble) -> None:
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + page), ctypes.c_size_t(page), 0) == 0
    function = ctypes.CDLL(str(LIBRARY)).hipgemm_emulator_disassemble
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t]
    text = ctypes.create_string_buffer(8)
    for row in ROWS:
        for _, words, _ in seeds(row):
            code = b"".join(w.to_bytes(4, "little") for w in words)
            size, full = disassemble(code)
            for n in range(len(code) + 1):
                memory[page - n : page] = code[:n]
                got = function(address + page - n, n, text, len(text))
                if n >= size and n % 4 == 0:
                    assert got == size, (row.name, n)
                    assert text.value.decode() == full[:7]  # cut to the buffer
                elif "kScaled" not in row.flags:  # its first half is an instruction of its own
                    assert got == (size if n >= size else 0), (row.name, n)
