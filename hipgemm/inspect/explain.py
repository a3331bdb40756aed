"""Explanations: which kernel a product would use, and the terms of each candidate's estimate."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import requirement
from ..formats.elements import FORMATS, QUANTIZED, full_name
from ..formats.scaled import ScaledArray, scale_shape
from ..formats.strides import contiguous_strides, swap_last_axes
from ..products.choose import Support
from ..products.cost import RATES, Cost
from .can_use import can_use

LAYOUTS = ("nt", "nn", "tn", "tt")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``explain``."""
    for name in "MNK":
        parser.add_argument(name, type=int, nargs="?", help=f"{name} of the product (M, K) @ (K, N)")
    parser.add_argument(
        "--format", default="bf16", type=full_name, choices=[*FORMATS, *QUANTIZED], help="of a and b"
    )
    parser.add_argument(
        "--layout",
        default="nt",
        choices=LAYOUTS,
        help="how a and b are stored: n as used, t transposed (default: nt, a @ w.T)",
    )
    parser.add_argument("--batch", type=int, default=0, help="number of products, each with its own a and b")
    parser.add_argument("--dtype", default=None, choices=[*FORMATS], help="type of the result")
    parser.add_argument("--arch", default="gfx950")
    parser.add_argument(
        "--check",
        action="store_true",
        help="no M, N, K: compare the estimates of 174 products with the emulator's counters",
    )


def run(args: argparse.Namespace) -> int:
    """Print the candidates for a product, their terms, and why one of them is chosen."""
    extents = (args.M, args.N, args.K)
    if any(n is None or n < 0 for n in extents) or args.batch < 0:
        print(
            "error: " + requirement("M, N and K must be at least 0", f"{extents}"),
            file=sys.stderr,
        )
        return 2
    answer = ask(*extents, args.format, args.layout, args.batch, args.dtype, args.arch)
    print(explanation(answer, 2.0 * args.M * args.N * args.K * max(1, args.batch)))
    return 0 if answer else 1


def ask(
    m: int,
    n: int,
    k: int,
    form: str,
    layout: str = "nt",
    batch: int = 0,
    dtype: str | None = None,
    arch: str = "gfx950",
) -> Support:
    """Call `can_use` for a product, without allocating its operands."""
    lead = (batch,) if batch else ()
    a = untouched(form, (*lead, m, k), -1, layout[0] == "t")
    b = untouched(form, (*lead, k, n), -2, layout[1] == "t")
    return can_use("matmul", a, b, dtype=None if dtype is None else FORMATS[dtype].dtype, arch=arch)


def untouched(form: str, shape: tuple[int, ...], axis: int, transposed: bool = False) -> Any:
    """Make matrices without memory, stored transposed if `transposed`; blocked along `axis` if quantized."""
    made = FORMATS.get(form) or QUANTIZED[form]
    one = np.zeros(1, f"u{made.itemsize}")
    strides = contiguous_strides(swap_last_axes(shape) if transposed else shape, made.itemsize)
    strides = swap_last_axes(strides) if transposed else strides
    x = np.lib.stride_tricks.as_strided(one, shape, strides).view(made.dtype)
    if made.scale_dtype is None:
        return x
    scales = scale_shape(shape, axis, made.block) if made.block else ()
    return ScaledArray(x, np.broadcast_to(np.ones((), made.scale_dtype), scales), form, axis=axis)


def in_place(answer: Support) -> list[Cost]:
    """Return the estimates of kernels with the operand layouts of the chosen one."""
    if not answer.costs:
        return []
    chosen = answer.costs[0]
    return [c for c in answer.costs if c.kernel.layout == chosen.kernel.layout and c.load.x == chosen.load.x]


def explanation(answer: Support, flop: float) -> str:
    """Format the explanation of a choice."""
    lines = [str(answer)]
    if not answer.costs:
        return lines[0]
    chosen, *others = costs = in_place(answer)
    lines += ["", "estimates, in clocks at the highest engine clock (by the model, not measured)"]
    lines += _table(costs, flop)
    if len(costs) < len(answer.costs):
        lines.append(
            f"  {len(answer.costs) - len(costs)} more kernels would need copies, or the transposed product"
        )
    lines += ["", *_why(chosen, others), "", f"terms of {chosen.kernel.name}"]
    lines += _terms(chosen)
    lines += ["", "parameters of the model"]
    width = max(map(len, RATES))
    lines += [f"  {name:{width}} {r.value:>12,g} {r.unit}; {r.source}" for name, r in RATES.items()]
    return "\n".join(lines)


def _table(costs: Sequence[Cost], flop: float) -> list[str]:
    """A table with one row per candidate and one column per term."""
    names = list(dict.fromkeys(term.name for cost in costs for term in cost.terms))
    rows = [["kernel", "tiles", "K parts", "rounds", *names, "clocks", "us", "TFLOP/s", "bound by"]]
    for cost in costs:
        found = {term.name: term.clocks for term in cost.terms}
        clocks = [_short(found[name]) if name in found else "-" for name in names]
        rate = flop / cost.microseconds / 1e6
        last = [_short(cost.clocks), f"{cost.microseconds:.1f}", f"{rate:.3g}", cost.bound]
        rows.append([cost.kernel.name, str(cost.tiles), str(cost.splits), str(cost.rounds), *clocks, *last])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"  {row[0]:{widths[0]}}  " + "  ".join(f"{x:>{w}}" for x, w in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def _why(chosen: Cost, others: Sequence[Cost]) -> list[str]:
    """Explain the choice by its difference from the next best candidate."""
    if not others:
        return ["no other kernel supports this product"]
    other = others[0]
    line = f"chosen: {chosen.kernel.name}: {_short(chosen.clocks)} clocks, bound by {chosen.bound}"
    line += f"; {other.kernel.name} would take {other.clocks / chosen.clocks:.3g} times as long"
    mine, theirs = ({term.name: term.clocks for term in cost.terms} for cost in (chosen, other))
    loops = [{t.name: t.clocks for t in cost.terms if t.overlaps} for cost in (chosen, other)]
    gains = {name: theirs.get(name, 0) - mine.get(name, 0) for name in {**mine, **theirs}}
    for name in loops[0]:
        del gains[name]
    loop = [max(terms.values()) for terms in loops]
    gains["loop"] = loop[1] - loop[0]
    more = sorted(((gain, name) for name, gain in gains.items() if gain > 0), reverse=True)
    less = sorted((gain, name) for name, gain in gains.items() if gain < 0)
    names = {"loop": f"the main loop (bound by {max(loops[1], key=lambda n: loops[1][n])})"}
    differences = [f"{_short(gain)} more in {names.get(name, name)}" for gain, name in more]
    differences += [f"{_short(-gain)} less in {names.get(name, name)}" for gain, name in less]
    return textwrap.wrap(f"{line}: {', '.join(differences)}" if differences else line, 118)


def _terms(cost: Cost) -> list[str]:
    lines = []
    for overlaps, label in ((True, "concurrent; the longest counts:"), (False, "added:")):
        lines.append(f"  {label}")
        for term in cost.terms:
            if term.overlaps == overlaps:
                lines.append(f"    {term.name:9} {_short(term.clocks):>9}  {term.formula}")
    return lines


def _short(clocks: float) -> str:
    return f"{clocks:,.0f}"
