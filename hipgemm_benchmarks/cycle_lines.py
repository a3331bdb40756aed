"""Source lines of the instructions that the cycle model lists."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hipgemm.inspect import source_lines
from hipgemm.kernels.manifest import Kernel, code_object

ROOT = Path(__file__).resolve().parent.parent
COMPILE, FOLDER = ROOT / "tools" / "source_lines.py", ROOT / "build" / "lines"
Lines = Callable[[int], str]  # of the instruction so many bytes from the entry; empty if unknown


class NoLinesError(RuntimeError):
    """Why there are none."""


def of_kernel(kernel: Kernel, *, compiled: bool) -> Lines | None:
    """Those of a kernel of this package, from a file with its line table, which is `compiled` if missing."""
    file, built = FOLDER / f"{kernel.name}.co", code_object(kernel.arch).path
    if not file.exists() or file.stat().st_mtime < built.stat().st_mtime:
        if not compiled:
            return None
        if not COMPILE.exists():
            raise NoLinesError("they need a source tree, with its compiler")
        FOLDER.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(COMPILE), kernel.name, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoLinesError(done.stderr.strip())
    found = source_lines.read(file)
    if found is None:
        raise NoLinesError("they need pyelftools: pip install pyelftools")
    if found.size(kernel.name) != source_lines.code_size(built, kernel.name):
        raise NoLinesError("the code differs from what is built; run: make kernels")
    return _named(found, kernel.name)


def of_script(codes: Path, kernel: str) -> Lines | None:
    """Those of a kernel in one of these code objects."""
    for path in sorted(codes.glob("*.co")):
        found = source_lines.read(path)
        if found is not None and found.at(kernel, 0):
            return _named(found, kernel)
    return None


def _named(found: source_lines.SourceLines, kernel: str) -> Lines:
    def line(offset: int) -> str:
        at = found.at(kernel, offset)
        return f"{at[0]}:{at[1]}" if at else ""

    return line
