"""Explanations: which kernel a product would use, and the terms of each candidate's estimate."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import requirement
from ..formats.arrays import memory_as_array
from ..formats.elements import (
    BLOCK_FORMATS,
    BLOCK_SIDE,
    F32,
    FORMATS,
    QUANTIZED,
    Format,
    full_name,
    named_format,
)
from ..formats.scaled import ScaledArray, block_axis, block_scale_shape, group_blocks, scale_shape
from ..formats.strides import contiguous_strides, swap_last_axes
from ..products.chips import CHIPS, chip_of
from ..products.choose import Support
from ..products.cost import Cost
from ..products.operation import OPERATIONS
from ..products.stages import GLUS, OUT_FORMATS, activations
from ..quantize.amax import AmaxState
from .can_use import can_use

LAYOUTS = ("nt", "nn", "tn", "tt")
DEFAULT_GROUPS = 8


def _positive(text: str) -> int:
    if not text.strip().isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(requirement("must be a positive number", repr(text)))
    return int(text)


def add_formats(parser: argparse.ArgumentParser, *aliases: str) -> None:
    """Declare the options for formats and groups; `aliases` are other names of --format."""
    parser.add_argument(
        "--format",
        *aliases,
        default="bf16",
        type=read_formats,
        help="of both operands, or of each, such as bf16@mxfp4 (default: bf16)",
    )
    parser.add_argument("--groups", type=_positive, default=None, help="how many (default: w's, or 8)")
    parser.add_argument("--dtype", default=None, choices=[*FORMATS], help="type of the result")


def add_options(parser: argparse.ArgumentParser, *aliases: str) -> None:
    """Declare the options that ``can-use`` and ``explain`` share."""
    add_formats(parser, *aliases)
    parser.add_argument("--arch", default=None, help="such as gfx950 (default: the current device's)")
    stages = parser.add_argument_group("what follows the product, as in a call")
    stages.add_argument("--activation", choices=activations(glu=True))
    stages.add_argument("--glu", choices=GLUS)
    stages.add_argument("--aux", action="store_true", help="an array of the result's type")
    stages.add_argument("--residual", action="store_true", help="an array of the result's type")
    stages.add_argument("--accumulate", action="store_true", help="into an array with contiguous rows")
    stages.add_argument("--out-format", choices=OUT_FORMATS, type=full_name)


def stages_of(args: argparse.Namespace) -> dict[str, Any]:
    """Those that were given; raise a ValueError if the operation does not have them."""
    names = ("activation", "glu", "aux", "residual", "accumulate", "out_format")
    found = {name: value for name in names if (value := getattr(args, name))}
    unknown = [name for name in found if name != "accumulate"]
    if unknown and OPERATIONS[args.op].ragged == "k":
        raise ValueError(f"{args.op} has no {' or '.join(unknown)}")
    return found


def read_formats(text: str) -> str:
    """Complete the names of formats on the command line.

    >>> read_formats("bf16@mxfp4")
    'bf16@mxfp4_e2m1'
    """
    names = [full_name(name) for name in text.split("@")]
    known = (*FORMATS, *QUANTIZED, *BLOCK_FORMATS)
    if len(names) > 2 or any(name not in known for name in names):
        required = f"a format must be one of {', '.join(known)}"
        raise argparse.ArgumentTypeError(requirement(required, repr(text)))
    return "@".join(names)


def pair_of(form: str) -> tuple[str, str]:
    """Return the formats of both operands, given that of both, or a@b."""
    first, _, second = form.partition("@")
    return first, second or first


def add_product(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments for the shape and the layout of a product."""
    for name in "MNK":
        parser.add_argument(name, type=int, nargs="?", help=f"{name} of the product (M, K) @ (K, N)")
    parser.add_argument(
        "--op",
        default="matmul",
        choices=[*OPERATIONS],
        help="grouped_matmul divides M among the groups, grouped_wgrad K (default: matmul)",
    )
    parser.add_argument(
        "--layout",
        default="nt",
        choices=LAYOUTS,
        help="how a and b are stored: n as used, t transposed (default: nt, a @ w.T); of grouped_wgrad: tn",
    )
    parser.add_argument("--batch", type=int, default=0, help="number of products, each with its own a and b")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``explain``."""
    add_product(parser)
    add_options(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="no M, N, K: compare the estimates of 256 products with the emulator's counters",
    )


def check_product(args: argparse.Namespace) -> None:
    """Raise a ValueError for extents that no product has."""
    extents = (args.M, args.N, args.K)
    if None in extents:
        raise ValueError("M, N and K are needed, such as 4096 4096 4096")
    if min(*extents, args.batch) < 0:
        raise ValueError(requirement("M, N and K must be at least 0", f"{extents}"))
    if args.op != "matmul" and args.batch:
        raise ValueError(requirement("--batch must be left out for grouped products", args.batch))


def run(args: argparse.Namespace) -> int:
    """Print the candidates for a product, their terms, and why one of them is chosen."""
    try:
        check_product(args)
        stages = stages_of(args)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    extents = (args.M, args.N, args.K)
    options = args.format, args.layout, args.batch, args.dtype, args.arch, args.op, args.groups
    answer = ask(*extents, *options, **stages)
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
    arch: str | None = None,
    op: str = "matmul",
    groups: int | None = None,
    **stages: Any,
) -> Support:
    """Call `can_use` for a product, without allocating its operands."""
    a, b = stored(m, n, k, layout, batch, op, groups)
    return ask_shapes(op, a, b, form, groups, dtype, arch, **stages)


Stored = tuple[tuple[int, ...], bool]  # the shape of an operand, and whether it is stored transposed


def stored(
    m: int, n: int, k: int, layout: str, batch: int, op: str, groups: int | None
) -> tuple[Stored, Stored]:
    """The operands of a product as arguments of the call."""
    lead = (batch,) if batch else ()
    a, b = ((*lead, m, k), layout[0] == "t"), ((*lead, k, n), layout[1] == "t")
    if op == "grouped_matmul":
        b = (groups or DEFAULT_GROUPS, k, n), layout[1] == "t"
    elif op == "grouped_wgrad":  # of dy (K, M) and x (K, N), whose rows are summed over
        a, b = ((k, m), False), ((k, n), False)
    return a, b


def ask_shapes(
    op: str,
    a: Stored,
    b: Stored,
    form: str,
    groups: int | None,
    dtype: str | None,
    arch: str | None,
    **stages: Any,
) -> Support:
    """Call `can_use` for operands of these shapes, each stored transposed or not.

    `form` may be a pair, a@b. `stages` are other arguments of the call; True stands for an array.
    """
    given: dict[str, Any] = {"dtype": None if dtype is None else FORMATS[dtype].dtype, "arch": arch, **stages}
    operands, offsets = operands_of(op, a, b, form, groups, untouched)
    rows, columns = a[0][-3 - OPERATIONS[op].k_axes[0]], b[0][-1]
    lead: tuple[int, ...] = (len(offsets) - 1,) if OPERATIONS[op].ragged == "k" else ()
    if op == "matmul":
        with suppress(ValueError):  # which `can_use` reports
            lead = np.broadcast_shapes(a[0][:-2], b[0][:-2])
    like = dtype or ("f16" if pair_of(form)[0] == "f16" else "bf16")
    result = (*lead, rows, columns // 2 if "glu" in stages else columns)
    full = (*lead, rows, columns)
    arrays = ("aux", "aux", full), ("residual", "residual", result), ("accumulate", "out", result)
    for i, (name, argument, shape) in enumerate(arrays):
        if stages.get(name):
            given[argument] = _apart(i, FORMATS[like], shape)
    form_of_result = QUANTIZED.get(stages.get("out_format", ""))
    if form_of_result is not None and not form_of_result.block:
        given["out_amax"] = _UntouchedState()
    return can_use(op, *operands, *([] if offsets is None else [offsets]), **given)


def operands_of(
    op: str, a: Stored, b: Stored, form: str, groups: int | None, make: Callable[..., Any]
) -> tuple[list[Any], Any]:
    """Operands of these shapes by `make`, as `untouched` is; and the ends of groups of one length, if any."""
    axes = OPERATIONS[op].k_axes
    offsets = None
    if OPERATIONS[op].ragged:
        groups = groups or (b[0][0] if len(b[0]) == 3 else DEFAULT_GROUPS)
        offsets = np.linspace(0, a[0][0], groups + 1).astype(np.int32)
    by_groups = offsets if OPERATIONS[op].ragged == "k" else None
    second_rows = BLOCK_SIDE if op != "grouped_wgrad" and pair_of(form)[1] in BLOCK_FORMATS else 1
    sides = zip(pair_of(form), (a, b), axes, (1, second_rows), strict=True)
    return [make(name, *x, axis, by_groups, rows) for name, x, axis, rows in sides], offsets


def _apart(i: int, form: Format, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Make an array without memory, at addresses of no other: outputs must not overlap."""
    strides = contiguous_strides(shape, form.itemsize)
    made: npt.NDArray[Any] = memory_as_array((i + 1) << 50, shape, strides, f"<u{form.itemsize}")
    return made.view(form.dtype)


class _UntouchedState(AmaxState):
    """The state of delayed scaling of a call that is not made; without memory."""

    primed, freed, device = True, False, 0

    def __init__(self) -> None:
        pass


def untouched(
    form: str,
    shape: tuple[int, ...],
    transposed: bool,
    axis: int,
    offsets: npt.NDArray[np.int32] | None = None,
    block_rows: int = 1,
) -> Any:
    """Make matrices without memory, stored transposed if `transposed`.

    Quantized ones are blocked along `axis`, and in groups of rows with `offsets`; blocks of fp8 have so many
    rows.
    """
    made = named_format(form)
    one = np.zeros(1, f"u{made.itemsize}")
    strides = contiguous_strides(swap_last_axes(shape) if transposed else shape, made.itemsize)
    strides = swap_last_axes(strides) if transposed else strides
    x = np.lib.stride_tricks.as_strided(one, shape, strides).view(made.dtype)
    if made.scale_dtype is None:
        return x
    if form in BLOCK_FORMATS:
        block = (block_rows, BLOCK_SIDE) if axis == -1 else (BLOCK_SIDE, block_rows)
        scale = np.broadcast_to(np.ones((), F32.dtype), block_scale_shape(shape, block))
        return ScaledArray._make(x, scale, made, block_axis(block), shape, block=block)
    if not made.block:
        return ScaledArray(x, 1.0, form, axis=axis)
    scales = list(scale_shape(shape, axis, made.block))
    if offsets is not None:
        scales[axis] = int(group_blocks(offsets)[-1])
    q = np.broadcast_to(np.ones((), made.scale_dtype), scales)
    return ScaledArray._make(x, q, made, axis, shape, group_offsets=offsets)


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
    if answer.measured:
        width = max(len(name) for name, _ in answer.measured)
        lines += ["", "measured by python -m hipgemm tune, medians"]
        lines += [f"  {name:{width}}  {us:10.1f} us" for name, us in answer.measured]
    lines += ["", "estimates, in clocks at the highest engine clock (by the model, not measured)"]
    lines += _table(costs, flop)
    if len(costs) < len(answer.costs):
        lines.append(
            f"  {len(answer.costs) - len(costs)} more kernels would need copies, or the transposed product"
        )
    lines += ["", *_why(chosen, others, bool(answer.measured)), "", f"terms of {chosen.kernel.name}"]
    lines += _terms(chosen)
    arch = chosen.kernel.arch
    rates = chip_of(arch).rates.named()
    unknown = "" if arch in CHIPS else f" (gfx950's; those of {arch} are not known)"
    assumed = sum(r.assumed for r in rates.values())
    lines += ["", f"parameters of the model{unknown}, {chip_of(arch)}; {assumed} of {len(rates)} are assumed"]
    width = max(map(len, rates))
    lines += [f"  {name:{width}} {r.value:>12,g} {r.unit}; {r.source}" for name, r in rates.items()]
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


def _why(chosen: Cost, others: Sequence[Cost], measured: bool) -> list[str]:
    """Explain the choice by its difference from the next best candidate."""
    if not others:
        return ["no other kernel supports this product"]
    if measured:
        return [f"chosen: {chosen.kernel.name}, the fastest measured; the estimates did not count"]
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
