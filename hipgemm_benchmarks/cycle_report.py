"""The output of ``python -m hipgemm model``: main loops of kernels, by the cycle model of one CU."""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from hipgemm.config import environment
from hipgemm.inspect.explain import ask, in_place, read_formats
from hipgemm.kernels.manifest import GEMMS, code_object
from hipgemm.products.chips import chip_of

from . import cycle_lines, cycle_picture, cycles
from .cycle_kernels import Modelled, Timed, clock, model, model_product, time_launch
from .cycle_lines import Lines
from .model_check import launch


class Published(NamedTuple):
    """A loop that others measured, and the kernel of the same tile, format and waves here."""

    kernel: str
    busy: float  # percent
    points: float  # that the model may be off
    what: str


# AMD's gfx950 Gluon tutorials, by thread traces on MI355X.
PUBLISHED = (
    Published("gemm_bf16_nt_256x256x64", 96, 5, "K 8192"),
    Published("gemm_bf16_nt_256x128x64", 83, 10, "K 8192"),
    Published("gemm_bf16_nt_128x256x64", 84, 5, "K 8192"),
    Published("gemm_bf16_nt_128x128x64", 69, 5, "K 8192"),
    Published("gemm_fp8_e4m3_nt_256x256x128", 99.8, 5, "8 waves, K 16384"),
    Published("gemm_mxfp4_e2m1_nt_256x256x256_mfma16", 79.6, 5, "8 waves, 16x16x128"),
    Published("gemm_mxfp4_e2m1_nt_256x256x256", 98.9, 5, "8 waves, 32x32x64"),
)


def undecided(found: Sequence[Modelled]) -> list[str]:
    """Pairs of kernels whose order changes when one assumed or inferred figure is at an end."""
    lines = []
    for one, other in combinations(found, 2):
        if ends := reversed_by((one.speed, one.at_ends), (other.speed, other.at_ends)):
            lines.append(f"{one.kernel.name}, {other.kernel.name}: {ends}")
    return lines


Ranked = tuple[float, Mapping[tuple[str, float], float]]  # a value, and what it is with a figure at an end


def reversed_by(one: Ranked, other: Ranked) -> str:
    """The figures at whose ends the order of two values is another one.

    >>> reversed_by((3, {("barrier_clocks", 20): 1}), (2, {("barrier_clocks", 20): 2}))
    'barrier_clocks 20'
    """
    ends = {
        f"{name} {end:g}"
        for (name, end), value in one[1].items()
        if (value > other[1][name, end]) != (one[0] > other[0])
    }
    return ", ".join(sorted(ends))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``model``."""
    parser.add_argument(
        "what",
        nargs="*",
        help="kernels; or M N K of a product: all that could serve it; or a Python script with arguments: its"
        " last launch with matrix instructions",
    )
    parser.add_argument("--format", default="bf16", type=read_formats, help="of the product (default: bf16)")
    parser.add_argument("--figures", action="store_true", help="print the figures of the model")
    parser.add_argument("--check", action="store_true", help="compare loops with those that others measured")
    parser.add_argument(
        "--lines",
        action="store_true",
        help="of one kernel: compile its line table, and list source lines",
    )
    parser.add_argument("--trace", type=Path, help="write what issues when: .png, or JSON for a viewer")


def run(args: argparse.Namespace) -> int:
    """Print the main loops, and of a single kernel the instructions."""
    if args.figures or args.check:
        print("\n".join([*(figure_table() if args.figures else ()), *(check() if args.check else ())]))
        return 0
    if args.what and args.what[0].endswith(".py"):
        return _run_script(args.what, args.trace)
    found: list[Modelled] = []
    product = None
    if len(args.what) == 3 and all(x.isdigit() for x in args.what):
        m, n, k = map(int, args.what)
        costs = in_place(ask(m, n, k, args.format, arch="gfx950"))
        found = [model_product(cost, ends=True) for cost in costs if cost.kernel.op in GEMMS]
        if costs:
            product = Product(2.0 * m * n * k, costs[0].load.unique_bytes + 2 * m * n)
    else:
        every = code_object("gfx950").kernels
        unknown = [name for name in args.what if name not in every or every[name].op not in GEMMS]
        if unknown:
            print(f"error: no product kernel of gfx950 is called {', '.join(unknown)}")
            return 2
        found = [model(every[name], ends=len(args.what) > 1) for name in args.what]
    if not found:
        print("error: name kernels, or M N K of a product that matrix kernels serve")
        return 2
    if args.trace:
        cycle_picture.write(found[0].replay, found[0].loop, args.trace)
    print("\n".join(table(sorted(found, key=lambda x: -x.speed), product)))
    if len(found) == 1:
        try:
            lines = cycle_lines.of_kernel(found[0].kernel, compiled=args.lines)
        except cycle_lines.NoLinesError as error:
            print(f"no source lines: {error}")
            lines = None
        print("\n".join(["", *listing(found[0], lines)]))
    elif flips := undecided(found):
        print("\nundecided, since the order depends on a figure that is not measured:")
        print("\n".join(f"  {line}" for line in flips))
    return 0


def _run_script(command: Sequence[str], file: Path | None) -> int:
    """Run a script in this process, and print the main loop of its last launch, of any code object."""
    before = sys.argv
    sys.argv = [*command]
    with TemporaryDirectory(prefix="hipgemm-model-") as codes:
        try:
            with environment(HIPGEMM_EMULATOR_CODE=codes):
                launched, x = time_launch(lambda: runpy.run_path(command[0], run_name="__main__"))
        finally:
            sys.argv = before
        lines = cycle_lines.of_script(Path(codes), launched.kernel)
    if file:
        cycle_picture.write(x.replay, x.loop, file)
    turn = f"{x.loop.clocks:.0f} clocks a turn of the main loop, {x.loop.matrix_clocks:.0f} of matrix pipes"
    print(f"{launched.kernel}: {turn}, {100 * x.loop.busy:.1f} % busy, bound by {x.bound}")
    print("\n".join(["", *listing(x, lines)]))
    return 0


def figure_table() -> list[str]:
    """All figures, and how many are of which kind."""
    found = cycles.figures()
    kinds = Counter(f.kind for f in found)
    lines = [f"{'figure':22} {'value':>6} {'low':>6} {'high':>6}  {'kind':10}  source"]
    lines += [f"{f.name:22} {f.value:6g} {f.low:6g} {f.high:6g}  {f.kind:10}  {f.source}" for f in found]
    return [*lines, f"{len(found)} figures: {', '.join(f'{n} {kind}' for kind, n in kinds.items())}"]


def check() -> list[str]:
    """The loops that others measured, and what the model says of them."""
    width = max(len(x.kernel) for x in PUBLISHED)
    lines = [f"{'busy, percent':{width}}  measured  model    off  allowed"]
    worst = 0.0
    for x in PUBLISHED:
        modelled = 100 * model(code_object("gfx950").kernels[x.kernel]).loop.busy
        off = modelled - x.busy
        worst = max(worst, abs(off))
        numbers = f"{x.busy:8.1f}  {modelled:5.1f}  {off:+5.1f}  {x.points:7.0f}"
        lines.append(f"{x.kernel:{width}}  {numbers}  {x.what}{'' if abs(off) <= x.points else '; too far'}")
    return [*lines, f"{len(PUBLISHED)} loops, off by at most {worst:.1f} points", cost()]


def cost(k: int = 8192) -> str:
    """How long it takes to model a tile."""
    kernel = code_object("gfx950").kernels["gemm_bf16_nt_256x256x64"]
    m, n, _ = kernel.tile
    begin = time.perf_counter()
    cycles.record(lambda: launch(kernel, m, n, k))
    seconds = time.perf_counter() - begin
    found = cycles.replay()
    each = 1e9 * found.seconds / len(found.issues)
    took = f"recorded in {seconds:.2f} s, replayed in {found.seconds:.3f} s"
    return f"a tile of {m}x{n}x{k}: {took}, {each:.0f} ns for each instruction of a wave"


class Product(NamedTuple):
    """What a product needs at least."""

    flop: float
    bytes: float  # of the operands and the result in bf16, each moved once


def table(found: Sequence[Modelled], product: Product | None = None) -> list[str]:
    """One line for each kernel: of its main loop, or of a whole product."""
    width = max(len(x.kernel.name) for x in found)
    what = f"TFLOP/s of {'256 CUs' if not product else 'the product'} at the clock of such a busy share"
    more = ("    clocks  of memory", "                                rate, %") if product else ("", "")
    lines = [
        f"{'main loop of one CU':{width}}  K tile  matrix    busy  bound by {more[0]} {what}",
        f"{'':{width}}  clocks  clocks       %{more[1]}",
    ]
    for x in found:
        chip, matrix = chip_of(x.kernel.arch), x.loop.busy * x.clocks
        ghz = clock(x.loop)
        each = product.flop * x.speed if product else 2 * x.speed * chip.compute_units  # FLOP per clock
        low, high = (1e-3 * each * ghz * part for part in (0.9, 1.1))
        numbers = f"{x.clocks:6.0f}  {matrix:6.0f}  {100 * x.loop.busy:6.1f}  {x.bound:9}"
        if product:
            moved = 100 * product.bytes * x.speed / chip.read_clock_bytes(chip.compute_units)
            numbers += f"{1 / x.speed:10,.0f}  {moved:9.0f}"
        band = f"{low:.0f} to {high:.0f} ({0.9 * ghz:.2f} to {1.1 * ghz:.2f} GHz)"
        lines.append(f"{x.kernel.name:{width}}  {numbers} {band}")
    return lines


def listing(x: Timed, line: Lines | None = None) -> list[str]:
    """The instructions of the main loop, with what they waited for, and their source lines."""
    lines = [f"clocks without one part: {', '.join(f'{n} {100 * v:.1f} %' for n, v in x.without.items())}"]
    lines += ["", f"{'':>8} {'issues':>7} {'mean wait':>9}  most of it for"]
    for i in sorted(x.replay.instructions, key=lambda i: i.offset):
        if not x.loop.head <= i.offset <= x.loop.tail or not i.issues:
            continue
        reason, most = max(i.waits.items(), key=lambda item: item[1])
        waited = sum(i.waits.values()) / i.issues
        why = f"{reason} {100 * most / sum(i.waits.values()):.0f} %" if most else ""
        text = f"{i.text:60} {line(i.offset)}".rstrip() if line else i.text
        lines.append(f"{i.offset:#8x} {i.issues:7} {waited:9.1f}  {why:19} {text}")
    return lines
