"""Compare the kernels of two builds: which differ in machine code, and in what figures.

Copy hipgemm/kernels/ before a change of src_hip/ or of the compiler, build, and name the copy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import code_object
from kernels import OUTPUT

FIGURES = {
    "code_bytes": "bytes",
    "vgpr": "VGPR",
    "sgpr": "SGPR",
    "lds": "LDS",
    "waves_per_simd": "waves/SIMD",
}
ENTRY = slice(16, 24)  # of a descriptor: the distance to the code


def machine_code(path: Path) -> dict[str, bytes]:
    """The code of each kernel, and its descriptor without the address of the code."""
    elf = path.read_bytes()
    built = code_object.read(elf)

    def content(name: str) -> bytearray:
        symbol = built.symbols[name]
        return bytearray(elf[symbol.offset : symbol.offset + symbol.size])

    found = {}
    for name in built.kernels:
        descriptor = content(f"{name}.kd")
        del descriptor[ENTRY]
        found[name] = bytes(content(name) + descriptor)
    return found


def compare(before: Path, after: Path) -> Iterator[str]:
    """A line for each kernel that differs, and one for each architecture."""
    old, new = (json.loads((folder / "manifest.json").read_text())["archs"] for folder in (before, after))
    for arch in (arch for arch in new if arch in old):
        codes = [machine_code(folder / m[arch]["file"]) for folder, m in ((before, old), (after, new))]
        kernels = [{k["name"]: k for k in m[arch]["kernels"]} for m in (old, new)]
        same = 0
        for name in dict.fromkeys(name for listed in kernels for name in listed):
            if name not in kernels[0] or name not in kernels[1]:
                yield f"{arch} {name}: only {'before' if name in kernels[0] else 'after'}"
            elif codes[0][name] != codes[1][name]:
                figures = (
                    f"{what} {kernels[0][name][key]} -> {kernels[1][name][key]}"
                    for key, what in FIGURES.items()
                )
                yield f"{arch} {name}: {', '.join(figures)}"
            else:
                same += 1
        yield f"{arch}: {same} of {len(kernels[1])} kernels have the machine code that they had"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, help="the copy: code objects and manifest.json")
    print(*compare(parser.parse_args().before, OUTPUT), sep="\n")


if __name__ == "__main__":
    main()
