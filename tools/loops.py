"""Main loops of matrix kernels, read from the assembly.

python tools/loops.py --tile MxNxK FILE.s ...

prints the instructions of the main loop per wave and K tile, of each kernel with matrix instructions in
what a compiler wrote for gfx942 or gfx950, ours or another.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path

from toolchain import BuildError

CLASSES = ("mfma", "ds_read", "ds_write", "dma", "vmem", "valu", "salu", "barrier", "wait", "nop", "setprio")
_EXACT = {"s_barrier": "barrier", "s_waitcnt": "wait", "s_nop": "nop", "s_setprio": "setprio"}
_INSTRUCTION = re.compile(r"\s+([a-z]\w+)")
_MFMA = re.compile(r"\s+v_s?mfma")
_BRANCH = re.compile(r"\s+s_c?branch\w*\s+(\S+)")


def classify(line: str) -> str | None:
    """The class of an assembly instruction; None for labels, directives and comments."""
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    name = found.group(1)
    if name.startswith(("v_mfma", "v_smfma")):
        return "mfma"
    if found := re.match("ds_(?:read|write)", name):  # read2st64 too
        return found[0]
    if name.startswith(("buffer_", "global_", "flat_", "scratch_")):
        return "dma" if re.search(r"\blds\b", line) else "vmem"
    return _EXACT.get(name) or {"v_": "valu", "s_": "salu"}.get(name[:2], "other")


@lru_cache(maxsize=8)
def bodies(assembly: str) -> dict[str, str]:
    """The assembly of each kernel, by name."""
    found = {}
    for before, after in pairwise(assembly.split("\n\t.size\t")):
        name = after.partition(",")[0]
        if (start := before.rfind(f"\n{name}:")) >= 0:
            found[name] = before[start:]
    return found


@lru_cache(maxsize=1)  # each kernel's is asked for twice in a row
def main_loop(assembly: str, kernel: str) -> list[str]:
    """The assembly of the loop that holds the most MFMAs."""
    body = bodies(assembly)[kernel].splitlines()
    before = [0, *accumulate(_MFMA.match(line) is not None for line in body)]  # MFMAs before each line
    labels = {line.split(":")[0]: i for i, line in enumerate(body) if line.startswith(".L")}
    loops = []
    for i, line in enumerate(body):
        branch = _BRANCH.match(line)
        start = labels.get(branch.group(1), i) if branch else i
        if (mfmas := before[i] - before[start]) > 0:
            loops.append((mfmas, start, i + 1))
    # A branch back may also come from code that was moved out of line: only the innermost are surely loops,
    # and of several with as many MFMAs the one with the fewest branches.
    inner = [x for x in loops if not any(x[1] <= y[1] and y[2] <= x[2] for y in loops if y != x)]
    branches = [0, *accumulate(_BRANCH.match(line) is not None for line in body)]
    _, start, end = max(inner, default=(0, 0, 0), key=lambda x: (x[0], branches[x[1]] - branches[x[2]]))
    return body[start:end]


def multiplied_bits(assembly: str, kernel: str) -> int | None:
    """Bits of the elements that a kernel's matrix instructions multiply; None if they are as in memory."""
    types = r"v_mfma_f32_\d+x\d+x\d+_?(?:(bf16|f16)|(fp8|bf8))"
    found = re.search(types, "\n".join(main_loop(assembly, kernel)))
    return None if found is None else 16 if found[1] else 8


def count_loop(assembly: str, kernel: str, tile: list[int], waves: int) -> dict[str, float]:
    """Instructions of the main loop per wave and K tile."""
    loop = main_loop(assembly, kernel)
    counts = Counter(filter(None, map(classify, loop)))
    if not counts["mfma"]:
        raise BuildError(f"{kernel}: no loop with MFMA in the assembly")
    shape = re.search(r"v_mfma\w*?_(\d+)x(\d+)x(\d+)", "\n".join(loop))
    assert shape
    per_mfma = int(shape[1]) * int(shape[2]) * int(shape[3])
    per_tile = tile[0] * tile[1] * tile[2] // (per_mfma * waves)
    tiles = counts["mfma"] / per_tile
    if tiles != int(tiles):
        raise BuildError(f"{kernel}: {counts['mfma']} MFMA in the loop, {per_tile} per K tile")
    per = {name: counts[name] / tiles for name in CLASSES}
    for name in ("ds_read", "ds_write"):
        widths = re.findall(rf"^\s+{name}(2?)\w*?_[bu](\d+)", "\n".join(loop), re.MULTILINE)
        per[f"{name}_bytes"] = sum((2 if two else 1) * 64 * int(bits) // 8 for two, bits in widths) / tiles
    per["tiles"] = tiles  # of the loop
    return {name: int(n) if n == int(n) else n for name, n in per.items()}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="count the instructions of main loops in assembly")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE.s")
    parser.add_argument("--tile", required=True, help="of a workgroup, such as 256x256x64")
    args = parser.parse_args()
    tile = [int(n) for n in args.tile.split("x")]
    print(f"{'kernel':40} {'waves':>5}" + "".join(f" {name:>8}" for name in CLASSES))
    for file in args.files:
        assembly = file.read_text()
        for name in bodies(assembly):
            threads = re.search(rf"max_flat_workgroup_size: (\d+)\n(?:.*\n)*?.*name: +{name}\n", assembly)
            if not any(classify(line) == "mfma" for line in main_loop(assembly, name)) or not threads:
                continue
            waves = int(threads[1]) // 64
            try:
                found = count_loop(assembly, name, tile, waves)
            except BuildError as error:
                print(error, file=sys.stderr)
                continue
            print(f"{name:40} {waves:5}" + "".join(f" {found[c]:8g}" for c in CLASSES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
