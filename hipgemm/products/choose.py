"""Which kernel serves a problem, and every reason why none does. Pure: reads the manifest, no device."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..config import config
from ..errors import KernelNotFoundError, Reason, UnsupportedError, sentence
from ..formats.operand import Operand
from ..formats.strides import line_pitch
from ..kernels.manifest import CHUNK_BYTES, GEMMS, Kernel, code_object
from ..layers.problem import describe_forward
from ..runtime.hip import read_stream
from .cost import Cost, Product, copy_clocks, estimate
from .layout import collapsed, host_copy_reason
from .problem import GemmProblem, describe_matmul

PLAIN = "plain"  # the operation of the kernel that takes anything
REACH = 2**31  # bytes that a tile may span: offsets inside it are 31-bit

# ---- operands: what a kernel reads in place --------------------------------------------------------


def k_strided(kernel: Kernel, side: int) -> bool:
    """Whether a kernel reads its first (side 0) or second operand with K as the outer axis."""
    return kernel.layout[side : side + 1] == "tn"[side]


def _lines(x: Operand, kernel: Kernel, side: int) -> tuple[Operand, int]:
    """Turn an operand (.., rows, K) to how a kernel reads it; and how many lines one tile takes."""
    if k_strided(kernel, side):
        return x.transposed, kernel.tile[2]
    return x, kernel.tile[side]


def copy_reason(x: Operand, kernel: Kernel, side: int = 0) -> str | None:
    """Say why a kernel cannot read an operand where it lies; None if it can.

    `x` is (.., rows, K): for the second operand of a product (side 1) that is its transpose.
    """
    strided = k_strided(kernel, side)
    x, tile_lines = _lines(x, kernel, side)
    lines, along = x.shape[-2:]
    pitch, step = x.strides[-2:]
    item = x.format.itemsize
    if (lines if strided else along) == 0:
        return None if x.padded or kernel.op == "scaled_gemm" else "K=0"
    if along > 1 and step != item:
        return f"{'MN'[side] if strided else 'K'} not contiguous"
    if lines > 1 and pitch < along * item:
        return "rows reversed or overlapping"
    if lines > 1 and pitch % CHUNK_BYTES:
        return f"row pitch not a multiple of {CHUNK_BYTES} bytes"
    if any(step % CHUNK_BYTES for step in x.strides[:-2]):
        return f"batch stride not a multiple of {CHUNK_BYTES} bytes"
    if x.address % CHUNK_BYTES:
        return f"base not {CHUNK_BYTES}-byte aligned"
    if strided and x.tight and along * item % 4:
        return "ends inside a word"  # of 4 bytes, which the kernel reads whole
    if not strided and along * item % CHUNK_BYTES and not x.padded:
        return f"K not a multiple of {8 * CHUNK_BYTES // x.format.bits}"
    if lines > 1 and pitch * tile_lines >= REACH:
        return "row pitch too large"
    return None


def scales_reason(x: Operand) -> str | None:
    """Say why a kernel cannot read scales of rows where they lie; None if it can, or if they are blocked."""
    if not x.scale_strides or x.format.block or x.shape[-2] <= 1 or x.scale_strides[-2] in (0, 4):
        return None
    return "not contiguous"


def leading(x: Operand, kernel: Kernel, side: int = 0) -> int:
    """Numbers from line to line of an operand that is read in place."""
    x, _ = _lines(x, kernel, side)
    lines, along = x.shape[-2:]
    pitch = x.strides[-2] if lines > 1 else line_pitch(along, x.format.itemsize)
    return pitch * 8 // x.format.bits


def copy_pitch(x: Operand, kernel: Kernel, side: int = 0) -> int:
    """Bytes from line to line of an operand laid out anew."""
    return line_pitch(_lines(x, kernel, side)[0].shape[-1], x.format.itemsize)


def kernel_k(k: int, kernel: Kernel) -> int:
    """K as the kernel wants it: in whole chunks where both operands have it contiguous."""
    if k_strided(kernel, 0) or k_strided(kernel, 1):
        return k
    return max(kernel.op == "gemm", -(-k // kernel.chunk)) * kernel.chunk


def direct(p: GemmProblem, kernel: Kernel) -> bool:
    """Whether a kernel can store into the output itself."""
    assert p.out is not None
    return p.out.rows_contiguous and _output_fits(p.out.pitch, p, kernel)


def _output_fits(pitch: int, p: GemmProblem, kernel: Kernel) -> bool:
    return kernel.tile[0] * pitch * p.out_format.itemsize < REACH


# ---- constraints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """Something a kernel demands of a product, `collapsed` and turned its way.

    `broken` returns (required, got) where it is not met. `looser` is what one kernel allows more of than
    another: of several reasons with one code, that of the loosest is told.
    """

    code: str
    broken: Callable[[GemmProblem, Kernel], tuple[str, object] | None]
    looser: Callable[[Kernel], int] = lambda kernel: 0


def _size(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    if max(p.m, p.n, p.k, *p.batch[-2:]) < 2**31:
        return None
    return "M, N, K and the batch must be below 2**31", p


def _pitch(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    for side, (name, x) in enumerate((("a", p.a), ("b", p.b.transposed))):
        _, lines = _lines(x, k, side)
        if copy_reason(x, k, side) is not None and copy_pitch(x, k, side) * lines >= REACH:
            axis = "MN"[side] if k_strided(k, side) else "K"
            limit = REACH // lines * 8 // x.format.bits
            got = f"M={p.m}, N={p.n}, K={p.k}"
            return f"{axis} must be below {limit} for {name} to be laid out anew", got
    return None


def _output(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    if direct(p, k) or _output_fits(p.n, p, k):
        return None
    limit = REACH // (k.tile[0] * p.out_format.itemsize)
    return f"N must be below {limit} for {p.out_format.name} output", p.n


def _grid(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    threads = tiles(p, k) * p.batches * k.threads
    return None if threads < 2**32 else ("the grid must be below 2**32 threads", threads)


CONSTRAINTS = (
    Constraint("size", _size),
    Constraint("pitch", _pitch, lambda k: -max(k.tile)),
    Constraint("output", _output, lambda k: -k.tile[0]),
    Constraint("grid", _grid, lambda k: k.tile[0] * k.tile[1] // k.threads),
)
PLAIN_CONSTRAINTS = (Constraint("size", _size), Constraint("grid", _grid))


def _broken(
    p: GemmProblem, kernel: Kernel, constraints: Iterable[Constraint]
) -> list[tuple[Constraint, Reason]]:
    return [
        (c, Reason(UnsupportedError, c.code, sentence(*found)))
        for c in constraints
        if (found := c.broken(p, kernel)) is not None
    ]


# ---- the choice ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """A way to compute a product.

    Attributes
    ----------
    kernel : Kernel
        What computes it.
    problem : GemmProblem
        What it computes: the product `collapsed`, and transposed where `swapped`.
    copies : tuple of (str, str)
        Operands that it cannot take as they are, and why.
    cost : Cost
        The estimate, which says also into how many parts K is cut.
    copy_clocks : float
        The estimate for the copies.
    why : tuple of Reason
        Why no faster kernel does, where the plain one does.
    """

    kernel: Kernel
    problem: GemmProblem
    swapped: bool
    copies: tuple[tuple[str, str], ...]
    cost: Cost
    copy_clocks: float = 0.0
    why: tuple[Reason, ...] = ()


def tiles(p: GemmProblem, k: Kernel) -> int:
    """Workgroups that the kernel needs for one product."""
    return -(-p.m // k.tile[0]) * -(-p.n // k.tile[1])


def _matrices(x: Operand) -> int:
    """How many different matrices there are."""
    return math.prod(n for n, step in zip(x.shape[:-2], x.strides[:-2], strict=True) if step)


def _copies(p: GemmProblem, kernel: Kernel, swapped: bool) -> list[tuple[str, str, Operand]]:
    """Return what a kernel cannot take as it is: name, reason, operand."""
    assert p.out is not None
    copies = []
    for side, (name, x) in enumerate(zip("ba" if swapped else "ab", (p.a, p.b.transposed), strict=True)):
        if (reason := copy_reason(x, kernel, side)) is not None:
            copies.append((name, reason, x))
    if not direct(p, kernel):
        reason = "row pitch too large" if p.out.rows_contiguous else "rows not contiguous"
        copies.append(("out", reason, p.out))
    return copies


def _choice(
    p: GemmProblem, kernel: Kernel, swapped: bool = False, copies: Sequence[tuple[str, str, Operand]] = ()
) -> Choice:
    sizes = [_matrices(x) * math.prod(x.shape[-2:]) * x.format.itemsize for _, _, x in copies]
    product = Product(
        *(p.m, p.n, p.k, p.batches, _matrices(p.a), _matrices(p.b)),
        out_bytes=p.out_format.itemsize,
        a_bits=p.a.format.bits,
        b_bits=p.b.format.bits,
    )
    return Choice(
        kernel,
        p,
        swapped,
        tuple(sorted((name, reason) for name, reason, _ in copies)),
        estimate(product, kernel),
        sum(copy_clocks(size, size, kernel.arch) for size in sizes),
    )


def _orientations(p: GemmProblem) -> list[tuple[GemmProblem, bool]]:
    """The product itself, or its transpose, whichever has an output of contiguous rows."""
    if p.col_scale or p.bias is not None:
        return [(p, False)]
    ways = [(p, False), (p.transposed, True)]
    return [(q, swapped) for q, swapped in ways if q.out and q.out.rows_contiguous] or ways[:1]


def choices(p: GemmProblem, kernels: Iterable[Kernel]) -> tuple[list[Choice], list[Reason]]:
    """Return the ways to compute a product, the best first; or every reason why there is none.

    Those that copy an operand count only if all do.

    HIPGEMM_KERNEL names the only kernel to consider, ``plain`` the one that takes anything.
    """
    kernels = list(kernels)
    fast = [k for k in kernels if k.op in GEMMS]
    plain = [k for k in kernels if k.op == PLAIN]
    forced = config.kernel
    forced = PLAIN if forced in [k.name for k in plain] else forced
    why: list[Reason] = []
    if forced == PLAIN:
        fast, why = [], [Reason(UnsupportedError, "forced", "HIPGEMM_KERNEL=plain")]
    elif forced:
        fast, plain = [k for k in fast if k.name == forced], []
        if not fast:
            required = "HIPGEMM_KERNEL must be plain or the name of a gemm kernel"
            hint = "python -m hipgemm info lists them"
            return [], [Reason(ValueError, "kernel", sentence(required, forced, hint))]
    p = collapsed(p)
    empty = not (p.m and p.n and p.batches)  # nothing to compute, so nothing to demand
    fit: list[tuple[GemmProblem, Kernel, bool, list[tuple[str, str, Operand]]]] = []
    if forced != PLAIN:
        served, why = _served(p, fast, plain, f"HIPGEMM_KERNEL={forced}" if forced else "")
        reasons: dict[str, tuple[int, Reason]] = {}
        for kernel, q, swapped in served:
            broken = [] if empty else _broken(q, kernel, CONSTRAINTS)
            for c, reason in broken:
                entry = c.looser(kernel), reason
                if c.code not in reasons or entry[0] > reasons[c.code][0]:
                    reasons[c.code] = entry
            if not broken:
                fit.append((q, kernel, swapped, _copies(q, kernel, swapped)))
        why += [reason for _, reason in reasons.values()]
    if fit:
        in_place = [way for way in fit if not way[3]]  # nothing is copied that need not be
        found = [_choice(*way) for way in in_place or fit]
        return sorted(found, key=lambda c: c.cost.clocks + c.copy_clocks), []
    found = []
    for kernel in plain:
        broken = [] if empty else _broken(p, kernel, PLAIN_CONSTRAINTS)
        if not broken:
            found.append(replace(_choice(p, kernel), why=tuple(why)))
        known = {reason.code for reason in why}
        why += [reason for _, reason in broken if reason.code not in known]
    return found, [] if found else why


def _served(
    p: GemmProblem, fast: Sequence[Kernel], plain: Sequence[Kernel], forced: str
) -> tuple[list[tuple[Kernel, GemmProblem, bool]], list[Reason]]:
    """Return the kernels for a product's formats, with the product turned their way; or why there is none."""
    for ways in (_orientations(p), [(p, False)]):  # the latter where the transpose has no kernel
        served = [
            (k, q, swapped)
            for q, swapped in ways
            for k in fast
            if (k.a, k.b) == (q.a.format.name, q.b.format.name)
        ]
        if served:
            return served, []
    kind = p.a.format.name.split("_")[0]
    known = dict.fromkeys(f"{k.a} and {k.b}" for k in fast if k.a.startswith(kind)) or dict.fromkeys(
        f"{k.a} and {k.b}" for k in fast
    )
    if known:
        got = f"{p.a.format.name} and {p.b.format.name}"
        required = f"a and b must be {' or '.join(known)}"
        return [], [Reason(UnsupportedError, "format", sentence(required, got, forced))]
    required = f"a gemm kernel for {plain[0].arch} must be built" if plain else "a gemm kernel must be built"
    what = "the plain one only" if plain else "none"
    return [], [Reason(UnsupportedError, "kernel", sentence(required, what))]


def select(p: GemmProblem, kernels: Iterable[Kernel]) -> tuple[Choice | None, list[Reason]]:
    """Return the best way to compute a product; or every reason why there is none."""
    found, reasons = choices(p, kernels)
    return (found[0] if found else None), reasons


def host_copies(p: GemmProblem) -> list[tuple[str, str]]:
    """Operands that are laid out anew on the host, and why."""
    named = (("a", p.a), ("b", p.b.transposed))
    return [(name, why) for name, x in named if x.device is None and (why := host_copy_reason(x, p.k))]


# ---- can_use ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Support:
    """The answer of `can_use`. True where the call would run.

    Attributes
    ----------
    kernel : str or None
        The kernel that would run.
    reasons : tuple of Reason
        Everything that stands in the way.
    copies : tuple of str
        Operands that would be laid out anew on the device first, and why.
    costs : tuple of Cost
        The estimate by which the kernel was chosen, one for each that fits, the chosen one's first.
    splits : int
        Into how many parts K would be cut; a second kernel adds them up.
    why : tuple of Reason
        Why no faster kernel would run, where the plain one would.
    """

    kernel: str | None
    reasons: tuple[Reason, ...] = ()
    copies: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()
    splits: int = 1
    why: tuple[Reason, ...] = ()

    def __bool__(self) -> bool:
        return self.kernel is not None

    def __str__(self) -> str:
        if self.kernel is None:
            return "no:" + "".join(f"\n  - {reason}" for reason in self.reasons)
        parts = f", K in {self.splits} parts" if self.splits > 1 else ""
        lines = [f"yes: {self.kernel}{parts}"]
        lines += [f"  copies {text}" for text in self.copies]
        lines += [f"  no faster kernel: {reason}" for reason in self.why]
        return "\n".join(lines)


# What describes the product of an operation; for layers that of the forward pass.
DESCRIBE: dict[str, Callable[..., tuple[Any, list[Reason]]]] = {
    "matmul": describe_matmul,
    "linear": describe_forward,
}


# What finds the ways to compute one, for operations that have kernels of their own.
CHOOSE: dict[str, Callable[[Any, Iterable[Kernel]], tuple[list[Any], list[Reason]]]] = {}


def can_use(op: str, /, *args: Any, arch: str = "gfx950", **kwargs: Any) -> Support:
    """Tell whether a call would run, by the same checks as the call itself. Opens no device.

    Parameters
    ----------
    op : str
        The operation: ``"matmul"``, ``"grouped_matmul"``, ``"grouped_wgrad"``, or ``"linear"`` or
        ``"grouped_linear"`` for the forward pass.
    *args, **kwargs
        What it would be called with. Whether a stream exists, and on which device, only the call can find.
    arch : str
        The architecture to ask about.

    Returns
    -------
    Support
        True or False, with the kernel or all the reasons.

    Examples
    --------
    >>> import ml_dtypes, numpy as np
    >>> x = np.zeros((4, 64), np.float32)
    >>> answer = can_use("matmul", x, x.T)
    >>> bool(answer), answer.reasons[0].code
    (False, 'dtype')
    """
    if not isinstance(op, str) or op not in DESCRIBE:
        raise ValueError(f"can_use: {sentence('op must be ' + ' or '.join(DESCRIBE), repr(op))}")
    if not isinstance(arch, str):
        raise TypeError(f"can_use: {sentence('arch must be a name such as gfx950', repr(arch))}")
    stream = read_stream(kwargs.pop("stream", None))
    try:
        inspect.signature(DESCRIBE[op]).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"can_use: {op}: {error}") from None
    problem, reasons = DESCRIBE[op](*args, **kwargs)
    if isinstance(stream, Reason):
        reasons = [stream, *reasons]
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        return Support(None, tuple(reasons))
    try:
        kernels = code_object(arch).kernels.values()
    except KernelNotFoundError as error:
        return Support(None, (*reasons, Reason(KernelNotFoundError, "arch", str(error))))
    found, unsupported = CHOOSE.get(op, choices)(problem, kernels)
    reasons += unsupported
    if reasons:
        return Support(None, tuple(reasons))
    best = found[0]
    before: list[tuple[str, str]] = []
    if isinstance(problem, GemmProblem):
        before = host_copies(problem)
        named = (("a", problem.a), ("b", problem.b))
        before += [(name, "4 bits beside 8") for name, x in named if x.widens]
        if problem.device is not None and best.kernel.op != PLAIN:
            sides = zip(
                "ba" if best.swapped else "ab", (best.problem.a, best.problem.b.transposed), strict=True
            )
            before += [(f"{name}.scale", why) for name, x in sides if (why := scales_reason(x))]
    copies = tuple(f"{name}: {reason}" for name, reason in (*before, *best.copies))
    costs = tuple(choice.cost for choice in found)
    return Support(best.kernel.name, (), copies, costs, best.cost.splits, best.why)
