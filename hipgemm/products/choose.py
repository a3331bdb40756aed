"""Kernel selection: which kernel serves a problem, and every reason why none does. Uses no device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from ..config import config
from ..errors import KernelNotFoundError, Reason, UnsupportedError, requirement
from ..formats.elements import F32
from ..formats.groups import group_slots
from ..formats.operand import Operand
from ..formats.strides import padded_pitch
from ..kernels.manifest import CHUNK_BYTES, MAKE_LINE, MATRIX_ARCHS, Kernel, LeftOut, load_manifest
from ..kernels.primitives import failed, refusal
from .cost import Cost, Product, copy_clocks, estimate
from .layout import host_copies, on_device
from .operation import MATMUL
from .problem import Problem
from .tuned import Shape, Times, recorded

K = TypeVar("K", Kernel, LeftOut)
PLAIN = "plain"  # the operation of the kernel that supports every format and layout
REACH = 2**31  # limit of the bytes that a tile spans, since offsets in a tile have 31 bits

# ---- operands: what a kernel reads in place --------------------------------------------------------


def k_strided(kernel: Kernel, side: int) -> bool:
    """Whether a kernel reads its first (side 0) or second operand with K as the outer axis."""
    return kernel.layout[side : side + 1] == "tn"[side]


def major_view(x: Operand, kernel: Kernel, side: int) -> tuple[Operand, int]:
    """View an operand (.., rows, K) along the kernel's contiguous axis; and the vectors of one tile."""
    if k_strided(kernel, side):
        return x.transposed, kernel.tile[2]
    return x, kernel.tile[side]


def copy_reason(x: Operand, kernel: Kernel, side: int = 0) -> str | None:
    """The reason why a kernel cannot read an operand (.., rows, K) in place; None if it can."""
    strided = k_strided(kernel, side)
    x, tile_vectors = major_view(x, kernel, side)
    vectors, length = x.shape[-2:]
    pitch, step = x.strides[-2:]
    item = x.format.itemsize
    if (vectors if strided else length) == 0:
        return None
    if length > 1 and step != item:
        return f"{'MN'[side] if strided else 'K'} not contiguous"
    if vectors > 1 and pitch < length * item:
        return "rows reversed or overlapping"
    if vectors > 1 and pitch % CHUNK_BYTES:
        return f"row pitch not a multiple of {CHUNK_BYTES} bytes"
    if any(step % CHUNK_BYTES for step in x.strides[:-2]):
        return f"batch stride not a multiple of {CHUNK_BYTES} bytes"
    if x.address % CHUNK_BYTES:
        return f"base not {CHUNK_BYTES}-byte aligned"
    if strided and x.no_tail_padding and length * item % 4:
        return "ends inside a word"  # the kernel reads whole 4-byte words
    if not strided and length * item % CHUNK_BYTES and not x.padded:
        return f"K not a multiple of {kernel.chunk(side)}"
    if vectors > 1 and pitch * tile_vectors >= REACH:
        return "row pitch too large"
    return None


def scales_reason(x: Operand, kernel: Kernel, side: int) -> str | None:
    """The reason why a kernel cannot read row scales in place; None if it can, or if they are blocked."""
    if (kernel.a, kernel.b)[side].endswith("_block"):
        return None  # which are reordered
    if not x.scale_strides or x.format.block or x.block or x.shape[-2] <= 1 or x.scale_strides[-2] in (0, 4):
        return None
    return "not contiguous"


def leading_dimension(x: Operand, kernel: Kernel, side: int = 0) -> int:
    """The leading dimension, in elements, of an operand that is read in place."""
    x, _ = major_view(x, kernel, side)
    vectors, length = x.shape[-2:]
    # Without elements the stride may be any number, and negative ones are huge to a kernel.
    pitch = x.strides[-2] if vectors > 1 and length else padded_pitch(length, x.format.itemsize)
    return -(-pitch * 8 // x.format.bits)


def copy_pitch(x: Operand, kernel: Kernel, side: int = 0) -> int:
    """The pitch, in bytes, of an operand that is copied."""
    return padded_pitch(major_view(x, kernel, side)[0].shape[-1], x.format.itemsize)


def direct(p: Problem, kernel: Kernel) -> bool:
    """Whether a kernel can store to the output directly."""
    assert p.out is not None
    return p.out.rows_contiguous and _output_fits(p.out.pitch, p, kernel)


def _output_fits(pitch: int, p: Problem, kernel: Kernel) -> bool:
    return kernel.tile[0] * pitch * p.out_format.itemsize < REACH


def tiles(p: Problem, k: Kernel) -> int:
    """The number of output tiles of one product."""
    return -(-p.m // k.tile[0]) * -(-p.n // k.tile[1])


def workgroups(p: Problem, kernel: Kernel) -> int:
    """The workgroups of a launch; with groups, enough for any offsets."""
    if p.op.ragged == "m":
        groups = p.groups if p.k else 0  # with K=0 all rows are zero, like rows outside of all groups
        return group_slots(p.m, groups, kernel.tile[0]) * -(-p.n // kernel.tile[1])
    return tiles(p, kernel) * (p.groups if p.op.ragged else p.batches)


# ---- constraints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """A requirement of a kernel.

    `broken` returns (required, got) if it is not met. `looser` ranks kernels: of several reasons with
    the same code, that of the least strict kernel is reported.
    """

    code: str
    broken: Callable[[Problem, Kernel], tuple[str, object] | None]
    looser: Callable[[Kernel], int] = lambda kernel: 0


def _size(p: Problem, k: Kernel) -> tuple[str, object] | None:
    if max(p.m, p.n, p.k, p.groups, *p.batch[-2:]) < 2**31:
        return None
    last = "number of groups" if p.op.ragged else "batch"
    return f"M, N, K and the {last} must be below 2**31", p


def _pitch(p: Problem, k: Kernel) -> tuple[str, object] | None:
    for side, (name, x) in enumerate(p.named()):
        _, vectors = major_view(x, k, side)
        if copy_reason(x, k, side) is not None and copy_pitch(x, k, side) * vectors >= REACH:
            axis = "MN"[side] if k_strided(k, side) else "K"
            limit = REACH // vectors * 8 // x.format.bits
            got = f"M={p.m}, N={p.n}, K={p.k}"
            return f"{axis} must be below {limit} for a copy of {name}", got
    return None


def _output(p: Problem, k: Kernel) -> tuple[str, object] | None:
    if direct(p, k) or _output_fits(p.n, p, k):
        return None
    limit = REACH // (k.tile[0] * p.out_format.itemsize)
    return f"N must be below {limit} for {p.out_format.name} output", p.n


def _grid(p: Problem, k: Kernel) -> tuple[str, object] | None:
    threads = workgroups(p, k) * k.threads
    return None if threads < 2**32 else ("the grid must be below 2**32 threads", threads)


CONSTRAINTS = (
    Constraint("size", _size),
    Constraint("pitch", _pitch, lambda k: -max(k.tile)),
    Constraint("output", _output, lambda k: -k.tile[0]),
    Constraint("grid", _grid, lambda k: k.tile[0] * k.tile[1] // k.threads),
)
PLAIN_CONSTRAINTS = (Constraint("size", _size), Constraint("grid", _grid))


def _broken(p: Problem, kernel: Kernel, constraints: Iterable[Constraint]) -> list[tuple[Constraint, Reason]]:
    if p.empty and not p.op.ragged:
        return []  # nothing to compute, so no requirements
    return [
        (c, Reason(UnsupportedError, c.code, requirement(*found)))
        for c in constraints
        if (found := c.broken(p, kernel)) is not None
    ]


# ---- the selection ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A way to compute a product."""

    kernel: Kernel
    problem: Problem  # the product as it is launched; transposed if `swapped`
    swapped: bool
    copies: tuple[tuple[str, str], ...]  # operands and scales that must be copied, and why
    cost: Cost  # the estimate, including into how many parts K is split
    copy_clocks: float = 0.0  # the estimate for the copies
    why: tuple[Reason, ...] = ()  # why no faster kernel is used
    by_group: bool = False  # one product for each group
    measured: Times | None = None  # by `python -m hipgemm tune`

    @property
    def apart(self) -> str:
        """Why a second kernel applies the stages; empty if the product's kernel does, or there are none."""
        stages = self.problem.stages
        if not self.problem.staged:
            return ""
        if self.kernel.op == PLAIN:
            return "the plain kernel has no stages"
        if self.cost.splits > 1:
            return f"K is split into {self.cost.splits} parts"
        return "glu='halves' takes columns of two tiles" if stages and stages.glu == "halves" else ""

    @property
    def names(self) -> tuple[str, str]:
        """The names of the kernel's first and second operand in messages."""
        first, second = self.problem.op.operands
        return (second, first) if self.swapped else (first, second)


def _matrices(x: Operand) -> int:
    """The number of distinct matrices."""
    return math.prod(n for n, step in zip(x.shape[:-2], x.strides[:-2], strict=True) if step)


def out_copy_reason(p: Problem, kernel: Kernel) -> str | None:
    """The reason why a kernel cannot store to the output directly; None if it can."""
    assert p.out is not None
    if direct(p, kernel):
        return None
    return "row pitch too large" if p.out.rows_contiguous else "rows not contiguous"


def _choice(p: Problem, kernel: Kernel, swapped: bool = False) -> Choice:
    """Estimate a way to compute a product."""
    assert p.out is not None
    found: list[tuple[str, str]] = []
    clocks, scales = 0.0, []
    out_reason = None
    if kernel.op != PLAIN:
        sides = list(p.named()) if not (p.op.ragged and p.empty) else []
        for side, (name, x) in enumerate(sides):
            name = p.op.operands[side ^ swapped]
            if (reason := copy_reason(x, kernel, side)) is not None:
                found.append((name, reason))
                size = _matrices(x) * math.prod(x.shape[-2:]) * x.format.itemsize
                clocks += copy_clocks(size, size, kernel.arch)
            if (reason := scales_reason(x, kernel, side)) is not None:
                scales.append((f"{name}.scale", reason))
    if kernel.op != PLAIN or p.staged:
        out_reason = out_copy_reason(p, kernel)
    if out_reason is not None:
        found.append(("out", out_reason))
        size = math.prod(p.out.shape) * p.out.format.itemsize
        clocks += copy_clocks(size, size, kernel.arch)
    cost = estimate(_product(p), kernel)
    choice = Choice(kernel, p, swapped, (*scales, *sorted(found)), cost, clocks)
    if not choice.apart or cost.splits > 1:
        return choice
    sums = p.batches * p.m * p.n * F32.itemsize  # that one kernel writes, and another reads
    return replace(choice, copy_clocks=clocks + copy_clocks(sums, sums, kernel.arch))


def _product(p: Problem) -> Product:
    """The parameters of the estimate; groups of rows count as products of the average number of rows."""
    item, a_bits, b_bits = p.out_format.itemsize, p.a.format.bits, p.b.format.bits
    if not p.op.ragged:
        return Product(p.m, p.n, p.k, p.batches, _matrices(p.a), _matrices(p.b), item, a_bits, b_bits)
    groups = max(1, min(p.groups, p.m) if p.op.ragged == "m" else p.groups)  # at most so many have rows
    m, k = (-(-p.m // groups), p.k) if p.op.ragged == "m" else (p.m, -(-p.k // groups))
    return Product(m, p.n, k, groups, groups, groups, item, a_bits, b_bits, splittable=False)


def _needs_copy(choice: Choice) -> bool:
    return any(not name.endswith(".scale") for name, _ in choice.copies)


def _orientations(p: Problem) -> list[tuple[Problem, bool]]:
    """The product, its transpose, or both: those whose output has contiguous rows."""
    if p.op.ragged or p.col_scale or p.bias is not None or p.staged:
        return [(p, False)]
    ways = [(p, False), (p.transposed, True)]
    return [(q, swapped) for q, swapped in ways if q.out and q.out.rows_contiguous] or ways[:1]


def serving(kernels: Iterable[K], p: Problem) -> list[K]:
    """The kernels that use matrix instructions and implement this operation."""
    operations = p.op.kernels, f"scaled_{p.op.kernels}"
    return [kernel for kernel in kernels if kernel.op in operations]


def choices(
    p: Problem, kernels: Iterable[Kernel], device: int | None = None
) -> tuple[list[Choice], list[Reason]]:
    """Return the choices for a product, the best first; or every reason why there is none.

    On a device, kernels that rest on a failed primitive are no choices. If only the plain kernel remains,
    there is none, unless `config.kernel` asks for it. Kernels that were timed for the product come first.
    """
    found, reasons = _usable(p, kernels, device)
    timed = recorded(device) if device is not None and config.kernel is None else {}
    if timed and found and not _needs_copy(found[0]):
        known = timed.get(str(Shape.of(on_device(p))), {})
        found = [replace(c, measured=known[name]) if (name := c.kernel.name) in known else c for c in found]
        found.sort(key=lambda c: c.measured.median if c.measured else math.inf)
    return found, reasons


def _usable(p: Problem, kernels: Iterable[Kernel], device: int | None) -> tuple[list[Choice], list[Reason]]:
    """The choices that rest on no failed primitive, the best by the cost model first."""
    if device is None or not failed(device):
        return _choices(p, kernels)
    kernels = list(kernels)
    quantized = p.stages.quantized.name if p.stages and p.stages.quantized else ""
    refused = {k.name: text for k in kernels if (text := refusal(device, k, quantized))}
    found, reasons = _choices(p, [k for k in kernels if k.name not in refused])
    if not found or (found[0].kernel.op == PLAIN and config.kernel is None):
        best, _ = _choices(p, kernels)
        if best and (text := refused.get(best[0].kernel.name)):
            return [], [Reason(UnsupportedError, "primitive", text)]
    return found, reasons


def _choices(p: Problem, kernels: Iterable[Kernel]) -> tuple[list[Choice], list[Reason]]:
    """The choices among these kernels.

    Choices that copy an operand are only used if all do. `config.kernel` restricts them to one kernel;
    ``plain`` is the kernel that supports every format and layout.
    """
    kernels = list(kernels)
    if p.op.ragged == "k" and (p.a.block or p.b.block):
        return _by_group(p, kernels)
    fast = serving(kernels, p)
    plain = [k for k in kernels if k.op == PLAIN and p.op.plain]
    forced = config.kernel
    forced = PLAIN if forced in [k.name for k in plain] else forced
    why: list[Reason] = []
    if forced == PLAIN:
        if not p.op.plain:
            text = "HIPGEMM_KERNEL=plain: no plain kernel for groups of rows exists"
            return [], [Reason(UnsupportedError, "forced", text)]
        fast, why = [], [Reason(UnsupportedError, "forced", "HIPGEMM_KERNEL=plain")]
    elif forced:
        if forced not in [k.name for k in fast]:
            return [], [_wrong_name(p, forced, fast)]
        fast, plain = [k for k in fast if k.name == forced], []
    else:
        fast = [k for k in fast if not k.by_name]
    p = on_device(p)
    found: list[Choice] = []
    if forced != PLAIN:
        served, why = _served(p, fast, kernels, f"HIPGEMM_KERNEL={forced}" if forced else "")
        if not served and (missing := _left_out(p, kernels)):
            return [], missing
        reasons: dict[str, tuple[int, Reason]] = {}
        for kernel, q, swapped in served:
            broken = _broken(q, kernel, CONSTRAINTS)
            for c, reason in broken:
                entry = c.looser(kernel), reason
                if c.code not in reasons or entry[0] > reasons[c.code][0]:
                    reasons[c.code] = entry
            if not broken:
                found.append(_choice(q, kernel, swapped))
        why += [reason for _, reason in reasons.values()]
    if found:
        in_place = [choice for choice in found if not _needs_copy(choice)]
        return sorted(in_place or found, key=lambda c: c.cost.clocks + c.copy_clocks), []
    for kernel in plain:
        broken = _broken(p, kernel, PLAIN_CONSTRAINTS)
        if not broken:
            found.append(replace(_choice(p, kernel), why=tuple(why)))
        known = {reason.code for reason in why}
        why += [reason for _, reason in broken if reason.code not in known]
    return found, [] if found else why


def _by_group(p: Problem, kernels: Sequence[Kernel]) -> tuple[list[Choice], list[Reason]]:
    """The choices for groups whose products are computed one by one: those for a group of average length."""
    k = -(-p.k // max(1, p.groups))
    a, b = (_one_group(x, k) for x in (p.a, p.b))
    one = Problem(MATMUL, p.m, p.n, k, a, b, None, p.out_format, accumulate=p.accumulate)
    found, reasons = _choices(one, kernels)
    text = (
        "fp8 with blocks has no kernel for all groups at once: one product for each, by offsets on the host"
    )
    why = (Reason(UnsupportedError, "groups", text),)
    names = dict(zip(MATMUL.operands, p.op.operands, strict=True))
    made = [
        replace(
            c, problem=p, why=why, by_group=True, copies=tuple((names[x[0]] + x[1:], w) for x, w in c.copies)
        )
        for c in found
    ]
    return made, reasons


def _one_group(x: Operand, k: int) -> Operand:
    """Describe a group of so many rows of an operand."""
    return replace(x, shape=(x.shape[-2], k))


def _wrong_name(p: Problem, forced: str, fast: Sequence[Kernel]) -> Reason:
    fitting = [k.name for k in fast if (k.a, k.b) == p.kernel_formats] or [k.name for k in fast]
    required = f"HIPGEMM_KERNEL must be {'plain or ' if p.op.plain else ''}a kernel for {p.op.name}"
    known = f"those for {' and '.join(p.kernel_formats)}: {', '.join(fitting) or 'none'}"
    return Reason(ValueError, "kernel", requirement(required, forced, known))


def _left_out(p: Problem, kernels: Sequence[Kernel]) -> list[Reason]:
    """The message that a partial build has no kernels for a product's formats."""
    built = load_manifest().get(kernels[0].arch) if kernels else None
    for x in serving(built.left_out, p) if built else ():
        if (x.a, x.b) == p.kernel_formats:
            required = f"kernels for {x.a} and {x.b} must be built"
            context = f"run: {MAKE_LINE}"
            text = requirement(required, "a build for the examples only", context)
            return [Reason(KernelNotFoundError, "kernel", text)]
    return []


def _taking(kernels: Iterable[Kernel], p: Problem) -> list[Kernel]:
    """The kernels for a product's formats. MX kernels read rows along K, those for blocks others."""
    formats = p.kernel_formats
    blocks = (f"{p.a.format.name}_block", f"{p.b.format.name}_block") if p.powers_of_two else None
    return [
        kernel
        for kernel in kernels
        if (pair := (kernel.a, kernel.b)) == formats or (pair == blocks and kernel.layout != "nt")
    ]


def formats_of(p: Problem) -> str:
    """The formats of a product in a message."""
    return " and ".join(p.kernel_formats)


def elsewhere(p: Problem, arch: str) -> list[str]:
    """Architectures with kernels for a product's formats, if this one has matrix kernels, but not these."""
    if arch not in MATRIX_ARCHS:
        return []
    pairs = [q.kernel_formats for q, _ in _orientations(p)]
    able = [
        built.arch
        for built in load_manifest().values()
        if any((k.a, k.b) in pairs for k in serving(built.kernels.values(), p))
    ]
    return [] if arch in able else able


def _served(
    p: Problem, fast: Sequence[Kernel], kernels: Sequence[Kernel], forced: str
) -> tuple[list[tuple[Kernel, Problem, bool]], list[Reason]]:
    """Return the kernels for a product's formats, which may be transposed; or why there is none."""
    for ways in (_orientations(p), [(p, False)]):  # the latter if there is no kernel for the transpose
        served = [(k, q, swapped) for q, swapped in ways for k in _taking(fast, q)]
        if served:
            return served, []
    arch = kernels[0].arch if kernels else MATRIX_ARCHS[0]
    if able := elsewhere(p, arch):
        required = f"the GPU must have kernels for {formats_of(p)}: {' or '.join(able)}"
        return [], [Reason(UnsupportedError, "kernel", requirement(required, arch))]
    name = p.a.format.name
    for alike in (name, name.split("_")[0], name[:2], ""):  # not all: an operation may have 40 pairs
        known = dict.fromkeys(f"{k.a} and {k.b}" for k in fast if k.a.startswith(alike))
        if known:
            break
    if known:
        required = f"{' and '.join(p.op.operands)} must be {' or '.join(known)}"
        got = formats_of(p)
        return [], [Reason(UnsupportedError, "format", requirement(required, got, forced))]
    if p.op.ragged:
        required = f"the GPU must have kernels for groups of rows: {' or '.join(MATRIX_ARCHS)}"
        got = kernels[0].arch if kernels else "none"
        return [], [Reason(UnsupportedError, "kernel", requirement(required, got))]
    if arch not in MATRIX_ARCHS:
        required = f"the GPU must have matrix kernels: {' or '.join(MATRIX_ARCHS)}"
        return [], [Reason(UnsupportedError, "kernel", requirement(required, arch))]
    what = "the plain one only" if any(k.op == PLAIN for k in kernels) else "none"
    required = f"a gemm kernel for {arch} must be built"
    return [], [Reason(UnsupportedError, "kernel", requirement(required, what))]


# ---- the answer of can_use -------------------------------------------------------------------------


@dataclass(frozen=True)
class Support:
    """The answer of `can_use`. Its truth value is whether the call would run.

    Attributes
    ----------
    kernel : str or None
        The kernel that would run.
    reasons : tuple of Reason
        Every reason why it would not run.
    copies : tuple of str
        Operands that would be copied first, and why.
    costs : tuple of Cost
        The estimates of all kernels that support the call. The first one is that of the chosen kernel.
    splits : int
        The number of parts that K would be split into (split-K); a second kernel adds them.
    why : tuple of Reason
        Why no faster kernel would run, if the plain kernel would.
    stages : tuple of str
        The arguments of the call for what follows the bias, such as ``"activation"``.
    measured : tuple of (str, float)
        The kernels that ``python -m hipgemm tune`` timed for this product on this device, the fastest first,
        with their median in microseconds. Empty if the cost model chose.
    apart : str
        Why a second kernel, split_reduce, would apply these. Empty if the kernel itself would.
    not_built : tuple of str
        Tiles whose kernels, which may be faster, were left out by ``make demo``.
    """

    kernel: str | None
    reasons: tuple[Reason, ...] = ()
    copies: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()
    splits: int = 1
    why: tuple[Reason, ...] = ()
    not_built: tuple[str, ...] = ()
    apart: str = ""
    stages: tuple[str, ...] = ()
    measured: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, p: Problem, found: Sequence[Choice]) -> Support:
        """The answer for the choices of a call."""
        best = found[0]
        copies = tuple(f"{name}: {reason}" for name, reason in (*host_copies(p), *best.copies))
        costs = tuple(choice.cost for choice in found)
        built = None if config.kernel else load_manifest().get(best.kernel.arch)
        tiles = built.left_out_tiles if built else ()
        name, splits, stages = best.kernel.name, best.cost.splits, p.stage_names
        timed = tuple((c.kernel.name, c.measured.median) for c in found if c.measured)
        return cls(name, (), copies, costs, splits, best.why, tiles, best.apart, stages, timed)

    def __bool__(self) -> bool:
        return self.kernel is not None

    def __repr__(self) -> str:
        if self.kernel is None:
            return f"Support(no: {', '.join(reason.code for reason in self.reasons)})"
        return f"Support(yes: {self.kernel}, one of {len(self.costs)} kernels)"

    def __str__(self) -> str:
        if self.kernel is None:
            return "no:" + "".join(f"\n  - {reason}" for reason in self.reasons)
        parts = f", K in {self.splits} parts" if self.splits > 1 else ""
        lines = [f"yes: {self.kernel}{parts}"]
        lines += [f"  copies {text}" for text in self.copies]
        if self.stages:
            applies = f"split_reduce, a second kernel, applies {', '.join(self.stages)}: {self.apart}"
            lines.append(f"  {applies}" if self.apart else f"  the kernel applies {', '.join(self.stages)}")
        if self.measured:
            lines.append(f"  tuned: {self._tuned}")
        lines += [f"  no faster kernel: {reason}" for reason in self.why]
        if self.not_built:
            lines.append(f"  not built, may be faster: tiles {', '.join(self.not_built)}; run: {MAKE_LINE}")
        return "\n".join(lines)

    @property
    def _tuned(self) -> str:
        """The measured times of the chosen kernel, and of the one that the model would choose."""
        (name, fastest), *others = self.measured
        text = f"{fastest:.1f} us, measured on this device; the fastest of {len(self.measured)} kernels"
        estimated = min(self.costs, key=lambda cost: cost.clocks).kernel.name
        if estimated == name:
            return f"{text}, and the model's choice"
        slower = dict(others).get(estimated)
        took = "was not timed" if slower is None else f"took {slower:.1f} us"
        return f"{text}; the model's choice, {estimated}, {took}"
