"""Which kernel serves a problem, and every reason why none does. Pure: reads the manifest, no device."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .errors import KernelNotFoundError, Reason, UnsupportedError, sentence
from .manifest import CHUNK_BYTES, GEMMS, Kernel, code_object
from .problem import GemmProblem, Operand, describe_matmul

# ---- operands: what a kernel reads in place --------------------------------------------------------


def copy_reason(x: Operand, kernel: Kernel) -> str | None:
    """Say why a kernel cannot read an operand where it lies; None if it can.

    `x` is (rows, K): for the second operand of a product that is its transpose. An operand on the host
    counts as it will lie on the device: rows go up one by one, padded.
    """
    rows, k = x.shape
    item = x.format.itemsize
    if x.device is None:
        return None if x.rows_contiguous or not x.transposed.rows_contiguous else "K not contiguous"
    if k == 0:
        return None if x.padded or kernel.op == "scaled_gemm" else "K=0"
    if k > 1 and x.strides[1] != item:
        return "K not contiguous"
    if rows > 1 and x.strides[0] < k * item:
        return "rows reversed or overlapping"
    if rows > 1 and x.strides[0] % CHUNK_BYTES:
        return f"row pitch not a multiple of {CHUNK_BYTES} bytes"
    if x.address % CHUNK_BYTES:
        return f"base not {CHUNK_BYTES}-byte aligned"
    if k * item % CHUNK_BYTES and not x.padded:
        return f"K not a multiple of {8 * CHUNK_BYTES // x.format.bits}"
    if not pitch_fits(x.pitch, item):
        return "row pitch too large"
    return None


def leading(x: Operand, kernel: Kernel) -> int:
    """Numbers from row to row of an operand that is read in place."""
    per_item = 8 * x.format.itemsize // x.format.bits
    return x.pitch * per_item if x.shape[0] > 1 else padded_k(x.shape[1] * per_item, kernel)


def padded_k(k: int, kernel: Kernel) -> int:
    """K as the kernel sees it: whole chunks; at least one for those that know no K of 0."""
    return max(kernel.op == "gemm", -(-k // kernel.chunk)) * kernel.chunk


def pitch_fits(pitch: int, itemsize: int) -> bool:
    """Whether a kernel can address rows so far apart."""
    # Offsets inside a tile of up to 256 rows are 31-bit.
    return 256 * pitch * itemsize < 2**31


# ---- constraints -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constraint:
    """Something a kernel demands. `broken` returns (required, got) where it is not met."""

    code: str
    broken: Callable[[GemmProblem, Kernel], tuple[str, object] | None]


def _extent(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    bits = max(p.a.format.bits, p.b.format.bits)
    limit = 2**31 * 8 // (256 * bits)
    if p.m < 2**31 and p.n < 2**31 and padded_k(p.k, k) < limit:
        return None
    return f"M and N must be below 2**31 and K below {limit}", f"M={p.m}, N={p.n}, K={p.k}"


def _output(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    if pitch_fits(p.n, p.out_format.itemsize):
        return None
    return f"N must be below {2**31 // (256 * p.out_format.itemsize)} for {p.out_format.name} output", p.n


def _grid(p: GemmProblem, k: Kernel) -> tuple[str, object] | None:
    threads = tiles(p, k) * k.threads
    return None if threads < 2**32 else (f"the grid of {k.name} must be below 2**32 threads", threads)


CONSTRAINTS = (
    Constraint("size", _extent),
    Constraint("output", _output),
    Constraint("grid", _grid),
)


# ---- the choice ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """A rough time for one kernel, in clocks of the engine. Only its order matters."""

    kernel: Kernel
    tiles: int
    rounds: int
    clocks: float

    def __str__(self) -> str:
        tiles = f"{self.tiles} tile{'s' if self.tiles != 1 else ''}"
        rounds = f"{self.rounds} round{'s' if self.rounds != 1 else ''}"
        return f"{self.kernel.name}: {tiles} in {rounds}, estimated at {self.clocks:.3g} clocks"


COMPUTE_UNITS = {"gfx950": 256}
MACS_PER_CLOCK = {16: 2048.0, 8: 4096.0, 4: 8192.0}  # per compute unit, by bits
LOAD_BYTES_PER_CLOCK = 64.0  # per compute unit, from L2
TILE_OVERHEAD = 2500.0  # clocks to fill the pipeline and to store the result


def tiles(p: GemmProblem, k: Kernel, swapped: bool = False) -> int:
    """Workgroups that the kernel needs, for the product or for its transpose."""
    rows, columns = (p.n, p.m) if swapped else (p.m, p.n)
    return -(-rows // k.tile[0]) * -(-columns // k.tile[1])


def cost(p: GemmProblem, k: Kernel) -> Cost:
    """Estimate a kernel's time: rounds of tiles over the compute units, each as long as its slower half.

    A big tile loads less per multiplication; a small one leaves fewer units idle and wastes less on
    ragged edges.
    """
    tm, tn, tk = k.tile
    compute = tm * tn * tk / MACS_PER_CLOCK[k.bits]
    load = (tm * p.a.format.bits + tn * p.b.format.bits) * tk / 8 / LOAD_BYTES_PER_CLOCK
    count = tiles(p, k)
    rounds = -(-count // COMPUTE_UNITS.get(k.arch, 256))
    steps = -(-padded_k(p.k, k) // tk)
    return Cost(k, count, rounds, rounds * (steps * max(compute, load) + TILE_OVERHEAD))


def select(p: GemmProblem, kernels: Iterable[Kernel]) -> tuple[Kernel | None, list[Reason]]:
    """Choose the cheapest kernel that can do it; or give every reason why there is none.

    HIPGEMM_KERNEL names one kernel to consider alone.
    """
    if p.batch:
        required = "a and b must be matrices (no batched kernel yet)"
        return None, [Reason(UnsupportedError, "batch", sentence(required, p))]
    op = "scaled_gemm" if p.a.format.scale_dtype else "gemm"
    candidates = [k for k in kernels if k.op in GEMMS]
    forced = os.environ.get("HIPGEMM_KERNEL")
    if forced:
        names = ", ".join(k.name for k in candidates)
        candidates = [k for k in candidates if k.name == forced]
        if not candidates:
            required = f"HIPGEMM_KERNEL must name a kernel ({names})"
            return None, [Reason(ValueError, "kernel", sentence(required, forced))]
    formats = (p.a.format.name, p.b.format.name)
    served = [k for k in candidates if (k.a, k.b) == formats]
    if not served:
        known = dict.fromkeys(f"{k.a} and {k.b}" for k in candidates if forced or k.op == op)
        if not known:
            return None, [Reason(UnsupportedError, "kernel", sentence("a gemm kernel must be built", "none"))]
        required = f"a and b must be {' or '.join(known)}"
        hint = "convert with .astype(ml_dtypes.bfloat16)" if "f16" in formats else ""
        return None, [Reason(UnsupportedError, "format", sentence(required, " and ".join(formats), hint))]
    fit: list[Kernel] = []
    reasons: dict[str, Reason] = {}
    for k in served:
        broken = [(c.code, found) for c in CONSTRAINTS if (found := c.broken(p, k)) is not None]
        for code, (required, got) in broken:
            reason = Reason(UnsupportedError, code, sentence(required, got))
            reasons.setdefault(reason.text, reason)
        if not broken:
            fit.append(k)
    if fit:
        return min(fit, key=lambda k: cost(p, k).clocks), []
    return None, list(reasons.values())


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
        The estimate by which the kernel was chosen, one for each that fits.
    """

    kernel: str | None
    reasons: tuple[Reason, ...] = ()
    copies: tuple[str, ...] = ()
    costs: tuple[Cost, ...] = ()

    def __bool__(self) -> bool:
        return self.kernel is not None

    def __str__(self) -> str:
        if self.kernel is None:
            return "no:" + "".join(f"\n  - {reason}" for reason in self.reasons)
        return f"yes: {self.kernel}" + "".join(f"\n  copies {text}" for text in self.copies)


def can_use(op: str, /, *args: Any, arch: str = "gfx950", **kwargs: Any) -> Support:
    """Tell whether a call would run, by the same checks as the call itself. Opens no device.

    Parameters
    ----------
    op : str
        The operation: ``"matmul"``.
    *args, **kwargs
        What it would be called with.
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
    if op != "matmul":
        raise ValueError(f"can_use: {sentence('op must be matmul', repr(op))}")
    kwargs.pop("stream", None)
    try:
        inspect.signature(describe_matmul).bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"can_use: matmul: {error}") from None
    problem, reasons = describe_matmul(*args, **kwargs)
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        return Support(None, tuple(reasons))
    try:
        kernels = code_object(arch).kernels.values()
    except KernelNotFoundError as error:
        return Support(None, (*reasons, Reason(KernelNotFoundError, "arch", str(error))))
    kernel, unsupported = select(problem, kernels)
    reasons += unsupported
    if kernel is None or reasons:
        return Support(None, tuple(reasons))
    named = (("a", problem.a), ("b", problem.b.transposed))
    copies = tuple(f"{name}: {why}" for name, x in named if (why := copy_reason(x, kernel)) is not None)
    fit = [
        k
        for k in kernels
        if k.op in GEMMS
        and (k.a, k.b) == (kernel.a, kernel.b)
        and all(c.broken(problem, k) is None for c in CONSTRAINTS)
    ]
    return Support(
        kernel.name, (), copies, tuple(sorted((cost(problem, k) for k in fit), key=lambda c: c.clocks))
    )
