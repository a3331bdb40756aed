"""Usage: which kernels served which calls, copies, refused calls. HIPGEMM_REPORT=1 prints it at exit."""

from __future__ import annotations

import atexit
import sys
from dataclasses import dataclass, field
from typing import NamedTuple

from ..config import config
from ..products.run import shapes
from ..runtime import tally


class Served(NamedTuple):
    """The calls that a kernel served as the main kernel.

    Attributes
    ----------
    calls : int
        The number of calls. A call may launch the kernel several times, and helper kernels too.
    flop : int
        Floating-point operations of the results: two per multiply-add.
    moved : int
        The minimum of bytes to move: each operand read once, each result written once.
    """

    calls: int = 0
    flop: int = 0
    moved: int = 0


@dataclass(frozen=True)
class Usage:
    """Counts since the start or the last `reset_usage`.

    Attributes
    ----------
    kernels : dict
        Launches by kernel, helper kernels included.
    served : dict
        `Served` by kernel.
    copies, copied : dict
        Operands that were copied or repacked, and their bytes, by ``(operation, operand, reason)``.
    slower : dict
        Calls that a slower kernel served, by ``(operation, kernel, reason)``.
    refused, latest : dict
        Reasons of unsupported calls, and the latest message, by ``(operation, code)``.
    refused_calls : int
        The number of these calls; one call may have several reasons.
    """

    kernels: dict[str, int] = field(default_factory=dict)
    served: dict[str, Served] = field(default_factory=dict)
    copies: dict[tuple[str, str, str], int] = field(default_factory=dict)
    copied: dict[tuple[str, str, str], int] = field(default_factory=dict)
    slower: dict[tuple[str, str, str], int] = field(default_factory=dict)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    latest: dict[tuple[str, str], str] = field(default_factory=dict)
    refused_calls: int = 0

    def __repr__(self) -> str:
        return f"Usage({str(self).splitlines()[0]!r})"

    def __str__(self) -> str:
        if not (self.kernels or self.served or self.refused_calls or self.copies):
            return "hipgemm: nothing ran"
        slower = sum(self.slower.values())
        fast = sum(row.calls for row in self.served.values()) - slower
        lines = [f"hipgemm: {fast} calls served fast, {slower + self.refused_calls} served slower or refused"]
        reasons = [
            (count, f"{op}: served by {name}: {why}") for (op, name, why), count in self.slower.items()
        ]
        for (op, code), count in self.refused.items():
            reasons.append((count, f"{op}: refused ({code}): {self.latest[op, code]}"))
        lines += [f"  {count:8d}x {text}" for count, text in sorted(reasons, key=lambda r: (-r[0], r[1]))]
        if self.kernels or self.served:
            lines.append("      calls  launches        GFLOP          MiB  kernel")
        for name in sorted({*self.kernels, *self.served}, key=lambda n: (-self.served.get(n, _NONE).flop, n)):
            calls, flop, moved = self.served.get(name, _NONE)
            line = f"  {calls or '':>9}{self.kernels.get(name, 0):10d}"
            line += f"{flop / 1e9:13.3f}" if flop else " " * 13
            lines.append(f"{line}{moved / 2**20:13.3f}  {name}" if moved else f"{line}{'':13}  {name}")
        for key, count in sorted(self.copies.items(), key=lambda item: (-item[1], item[0])):
            size = f" ({self.copied[key] / 2**20:.3f} MiB)" if self.copied.get(key) else ""
            lines.append(f"  {count:8d}x {key[0]}: {key[1]} copied: {key[2]}{size}")
        return "\n".join(lines)


_NONE = Served()


def usage() -> Usage:
    """Return a copy of the usage counts.

    Examples
    --------
    >>> reset_usage()
    >>> print(usage())
    hipgemm: nothing ran
    """
    counts = tally.snapshot()
    return Usage(**counts | {"served": {name: Served(*row) for name, row in counts["served"].items()}})


def reset_usage() -> None:
    """Set all usage counts to zero.

    Examples
    --------
    >>> reset_usage()
    >>> usage().kernels
    {}
    """
    tally.reset()


def _report() -> None:
    if config.report:
        print(usage(), file=sys.stderr)


def _write_shapes() -> None:
    """Add the products of this process to a file for ``tune``, but for those that it has."""
    if config.shapes is None or not (found := shapes()):
        return
    try:
        with open(config.shapes, "a+") as file:
            file.seek(0)
            known = file.read().splitlines()
            file.write("".join(f"{line}\n" for line in found if line not in known))
    except OSError as error:
        print(f"hipgemm: HIPGEMM_SHAPES: {error}", file=sys.stderr)


atexit.register(_report)
atexit.register(_write_shapes)
