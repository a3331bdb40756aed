"""Which kernel served what, what was copied first, what was refused. HIPGEMM_REPORT=1 prints it at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field

from .errors import Reason


@dataclass(frozen=True)
class Usage:
    """Counts since the start or the last `reset_usage`.

    Attributes
    ----------
    kernels : dict
        Launches by kernel, helper kernels included.
    copies : dict
        Operands laid out anew by ``(operation, operand, reason)``.
    refused : dict
        Obstacles of unsupported calls by ``(operation, reason)``.
    """

    kernels: dict[str, int] = field(default_factory=dict)
    copies: dict[tuple[str, str, str], int] = field(default_factory=dict)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = ["hipgemm usage"]
        lines += [f"  {count:8d}  {name}" for name, count in sorted(self.kernels.items())]
        for (op, operand, reason), count in sorted(self.copies.items()):
            lines.append(f"  {count:8d}  {op}: {operand} copied: {reason}")
        for (op, reason), count in sorted(self.refused.items()):
            lines.append(f"  {count:8d}  {op}: refused: {reason}")
        return "\n".join(lines) if len(lines) > 1 else "hipgemm usage: nothing ran"


_lock = threading.Lock()
_counts = Usage()


def usage() -> Usage:
    """Return a copy of the counts.

    Examples
    --------
    >>> reset_usage()
    >>> print(usage())
    hipgemm usage: nothing ran
    """
    with _lock:
        return Usage(dict(_counts.kernels), dict(_counts.copies), dict(_counts.refused))


def reset_usage() -> None:
    """Set all counts to zero.

    Examples
    --------
    >>> reset_usage()
    >>> usage().kernels
    {}
    """
    with _lock:
        _counts.kernels.clear()
        _counts.copies.clear()
        _counts.refused.clear()


def count_kernel(name: str) -> None:
    """Count a launch."""
    with _lock:
        _counts.kernels[name] = _counts.kernels.get(name, 0) + 1


def count_copy(op: str, operand: str, reason: str) -> None:
    """Count an operand that was laid out anew."""
    key = (op, operand, reason)
    with _lock:
        _counts.copies[key] = _counts.copies.get(key, 0) + 1


def count_refused(op: str, reasons: Iterable[Reason]) -> None:
    """Count the obstacles of a call that no kernel serves."""
    with _lock:
        for reason in reasons:
            key = (op, reason.code)
            _counts.refused[key] = _counts.refused.get(key, 0) + 1


def _report() -> None:
    print(usage(), file=sys.stderr)


if os.environ.get("HIPGEMM_REPORT", "0") not in ("", "0"):
    atexit.register(_report)
