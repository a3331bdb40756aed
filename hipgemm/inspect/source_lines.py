"""Lines of the source that the code of kernels was compiled from, where a code object has line tables."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class SourceLines:
    """The line tables of a code object."""

    symbols: Mapping[str, tuple[int, int]]  # addresses and sizes
    rows: Sequence[tuple[int, str, int]]  # address, file and line, by address

    def at(self, kernel: str, offset: int) -> tuple[str, int] | None:
        """The file and the line of an instruction of a kernel, `offset` bytes from its entry."""
        if (symbol := self.symbols.get(kernel)) is None:
            return None
        before = bisect_right(self.rows, symbol[0] + offset, key=lambda row: row[0])
        return self.rows[before - 1][1:] if before else None

    def size(self, kernel: str) -> int:
        """Bytes of a kernel's code; 0 if it has none."""
        entry, _ = self.symbols.get(kernel, (-1, 0))
        return max((size for address, size in self.symbols.values() if address == entry), default=0)


def read(path: Path) -> SourceLines | None:
    """Those of a file; None without pyelftools, or if there are no line tables."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return None  # pip install pyelftools
    with path.open("rb") as file:
        elf = ELFFile(file)
        if not elf.has_dwarf_info():
            return None
        return SourceLines(_symbols(elf), sorted(_rows(elf.get_dwarf_info())))


def code_size(path: Path, kernel: str) -> int:
    """Bytes of a kernel's code in a file; 0 without pyelftools."""
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError:
        return 0
    with path.open("rb") as file:
        return _symbols(ELFFile(file)).get(kernel, (0, 0))[1]


def _symbols(elf: Any) -> dict[str, tuple[int, int]]:
    table = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
    return {x.name: (x.entry.st_value, x.entry.st_size) for x in table.iter_symbols()}


def _rows(dwarf: Any) -> list[tuple[int, str, int]]:
    """Address, file and line of each row of all line tables."""
    rows = []
    for unit in dwarf.iter_CUs():
        program = dwarf.line_program_for_CU(unit)
        if program is None:
            continue
        files = program.header.file_entry
        first = 0 if program.header.version >= 5 else 1
        for entry in program.get_entries():
            state = entry.state
            if state is not None and not state.end_sequence and state.line:
                rows.append((state.address, files[state.file - first].name.decode(), state.line))
    return rows
