"""The contents of an AMD GPU code object: symbols, metadata, descriptors (LLVM AMDGPUUsage)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

SHT_NOTE, SHT_DYNSYM = 7, 11
NT_AMDGPU_METADATA = 32


@dataclass(frozen=True)
class Symbol:
    """One entry of the dynamic symbol table."""

    name: str
    value: int
    size: int
    section: int  # 0: not defined here
    offset: int  # in the file


@dataclass(frozen=True)
class Descriptor:
    """What the hardware reads before it starts a kernel."""

    lds: int  # bytes of a workgroup, and of scratch of a lane
    scratch: int
    rsrc1: int
    rsrc3: int

    @property
    def vgprs(self) -> int:
        """Vector registers that a wave uses, AGPRs included, before the hardware rounds up.

        In units of 8: gfx90a to gfx950, and waves of 32 lanes elsewhere.
        """
        return ((self.rsrc1 & 63) + 1) * 8

    @property
    def accum_offset(self) -> int:
        """The first AGPR among them: gfx90a, gfx942, gfx950."""
        return ((self.rsrc3 & 63) + 1) * 4


@dataclass(frozen=True)
class CodeObject:
    """The parts of an ELF file that a build has to check."""

    symbols: dict[str, Symbol]
    metadata: dict[str, Any]
    descriptors: dict[str, Descriptor]  # by kernel

    @property
    def kernels(self) -> dict[str, dict[str, Any]]:
        """Metadata of each kernel by name."""
        return {k[".name"]: k for k in self.metadata["amdhsa.kernels"]}


def read(elf: bytes) -> CodeObject:
    """Parse a 64-bit little-endian ELF file."""
    if elf[:6] != b"\x7fELF\x02\x01":
        raise ValueError("not a 64-bit little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", elf, 0x28)
    entry_size, count = struct.unpack_from("<HH", elf, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * entry_size) for i in range(count)]
    symbols: dict[str, Symbol] = {}
    metadata: dict[str, Any] = {}
    for _, kind, _, _, start, size, link, _, _, _ in sections:
        if kind == SHT_DYNSYM:
            strings = sections[link][4]
            for at in range(start, start + size, 24):
                name, _, _, section, value, length = struct.unpack_from("<IBBHQQ", elf, at)
                text = elf[strings + name : elf.index(b"\0", strings + name)].decode()
                address, begin = sections[section][3:5] if section < count else (0, 0)
                symbols[text] = Symbol(text, value, length, section, begin + value - address)
        elif kind == SHT_NOTE:
            notes = _notes(elf[start : start + size])
            if len(notes) + bool(metadata) > 1:
                raise ValueError("several metadata notes: runtimes read only one")
            metadata = notes[0] if notes else metadata
    descriptors = {}
    for symbol in symbols.values():
        if symbol.name.endswith(".kd") and symbol.section:
            lds, scratch = struct.unpack_from("<II", elf, symbol.offset)
            rsrc3, rsrc1 = struct.unpack_from("<II", elf, symbol.offset + 44)
            descriptors[symbol.name.removesuffix(".kd")] = Descriptor(lds, scratch, rsrc1, rsrc3)
    return CodeObject(symbols, metadata, descriptors)


def _notes(data: bytes) -> list[dict[str, Any]]:
    found, at = [], 0
    while at + 12 <= len(data):
        name_size, size, kind = struct.unpack_from("<III", data, at)
        name = data[at + 12 : at + 12 + name_size].rstrip(b"\0")
        body = at + 12 + (name_size + 3) // 4 * 4
        if kind == NT_AMDGPU_METADATA and name == b"AMDGPU":
            found.append(_msgpack(data, body)[0])
        at = body + (size + 3) // 4 * 4
    return found


def _msgpack(data: bytes, at: int) -> tuple[Any, int]:
    """The value at `at` and the position after it. The types that metadata uses."""
    tag = data[at]
    at += 1
    if tag < 0x80:
        return tag, at
    if tag >= 0xE0:
        return tag - 0x100, at
    if tag in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[tag], at
    sizes = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: "b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"}
    if tag in sizes:
        return struct.unpack_from(sizes[tag], data, at)[0], at + struct.calcsize(sizes[tag])
    if tag & 0xE0 == 0xA0 or tag in (0xD9, 0xDA, 0xDB):
        length, at = _length(data, at, tag & 0x1F, {0xD9: "B", 0xDA: ">H", 0xDB: ">I"}.get(tag))
        return data[at : at + length].decode(), at + length
    if tag & 0xF0 == 0x90 or tag in (0xDC, 0xDD):
        length, at = _length(data, at, tag & 0x0F, {0xDC: ">H", 0xDD: ">I"}.get(tag))
        items = []
        for _ in range(length):
            item, at = _msgpack(data, at)
            items.append(item)
        return items, at
    if tag & 0xF0 == 0x80 or tag in (0xDE, 0xDF):
        length, at = _length(data, at, tag & 0x0F, {0xDE: ">H", 0xDF: ">I"}.get(tag))
        table = {}
        for _ in range(length):
            key, at = _msgpack(data, at)
            table[key], at = _msgpack(data, at)
        return table, at
    raise ValueError(f"MessagePack type {tag:#x} is not used in kernel metadata")


def _length(data: bytes, at: int, short: int, wide: str | None) -> tuple[int, int]:
    if wide is None:
        return short, at
    return struct.unpack_from(wide, data, at)[0], at + struct.calcsize(wide)
