"""Which kernel served what, what was copied first, what was refused. HIPGEMM_REPORT=1 prints it at exit."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..errors import Reason


class Served(NamedTuple):
    """What one kernel did for calls of which it was the main one.

    Attributes
    ----------
    calls : int
        How many. A call may launch its kernel several times, and helper kernels besides.
    flop : int
        Two for each multiplication that the results need.
    moved : int
        The fewest bytes that would do: each operand read once, each result written once.
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
        Operands laid out anew, and their bytes, by ``(operation, operand, reason)``.
    slower : dict
        Calls that a slower kernel served by ``(operation, kernel, reason)``.
    refused, latest : dict
        Obstacles of unsupported calls, and the last one in full, by ``(operation, code)``.
    refused_calls : int
        Those calls; one may have met several obstacles.
    """

    kernels: dict[str, int] = field(default_factory=dict)
    served: dict[str, Served] = field(default_factory=dict)
    copies: dict[tuple[str, str, str], int] = field(default_factory=dict)
    copied: dict[tuple[str, str, str], int] = field(default_factory=dict)
    slower: dict[tuple[str, str, str], int] = field(default_factory=dict)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    latest: dict[tuple[str, str], str] = field(default_factory=dict)
    refused_calls: int = 0

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
_lock = threading.RLock()  # a signal handler may call in its midst
_counts = Usage()
_served: dict[str, list[int]] = {}  # as Served
_refused_calls = 0


class Call(NamedTuple):
    """A call that one launch of one kernel serves, as `count_call` takes it."""

    op: str
    kernel: str
    flop: int
    moved: int
    slower: str = ""


_recent: deque[Call] = deque()  # not yet in the counts: appending takes no lock
_MOST_RECENT = 256


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def usage() -> Usage:
    """Return a copy of the counts.

    Examples
    --------
    >>> reset_usage()
    >>> print(usage())
    hipgemm: nothing ran
    """
    with _lock:
        _settle()
        return replace(
            _counts,
            kernels=dict(_counts.kernels),
            served={name: Served(*row) for name, row in _served.items()},
            copies=dict(_counts.copies),
            copied=dict(_counts.copied),
            slower=dict(_counts.slower),
            refused=dict(_counts.refused),
            latest=dict(_counts.latest),
            refused_calls=_refused_calls,
        )


def reset_usage() -> None:
    """Set all counts to zero.

    Examples
    --------
    >>> reset_usage()
    >>> usage().kernels
    {}
    """
    global _refused_calls
    c = _counts
    with _lock:
        _settle()
        for counts in (c.kernels, c.copies, c.copied, c.slower, c.refused, c.latest, _served):
            counts.clear()
        _refused_calls = 0


def count_kernel(name: str) -> None:
    """Count a launch."""
    with _lock:
        _counts.kernels[name] = _counts.kernels.get(name, 0) + 1


def count_call(op: str, kernel: str, flop: int, moved: int, slower: str = "") -> None:
    """Count a call that a kernel served; `slower` says why none of the faster ones did.

    `flop` and `moved` are those of the whole call, as `Served` counts them.
    """
    with _lock:
        _add_calls(1, op, kernel, flop, moved, slower)


def _add_calls(calls: int, op: str, kernel: str, flop: int, moved: int, slower: str) -> None:
    row = _served.get(kernel)
    if row is None:
        row = _served[kernel] = [0, 0, 0]
    row[0] += calls
    row[1] += calls * flop
    row[2] += calls * moved
    if slower:
        key = (op, kernel, slower)
        _counts.slower[key] = _counts.slower.get(key, 0) + calls


def count_launched(call: Call) -> None:
    """Count a call and its launch, at a fraction of what `count_call` and `count_kernel` take."""
    _recent.append(call)
    if len(_recent) >= _MOST_RECENT:
        with _lock:
            _settle()


def _settle() -> None:
    """Take what was counted without the lock into the counts."""
    calls = []
    with suppress(IndexError):  # a signal handler was here
        for _ in range(len(_recent)):
            calls.append(_recent.popleft())
    for call, times in Counter(calls).items():
        _counts.kernels[call.kernel] = _counts.kernels.get(call.kernel, 0) + times
        _add_calls(times, *call)


def count_copy(op: str, operand: str, reason: str, size: int = 0) -> None:
    """Count an operand that was laid out anew, of so many bytes."""
    key = (op, operand, reason)
    with _lock:
        _counts.copies[key] = _counts.copies.get(key, 0) + 1
        _counts.copied[key] = _counts.copied.get(key, 0) + size


def count_refused(op: str, reasons: Iterable[Reason]) -> None:
    """Count the obstacles of a call that no kernel serves."""
    global _refused_calls
    with _lock:
        _refused_calls += 1
        for reason in reasons:
            key = (op, reason.code)
            _counts.refused[key] = _counts.refused.get(key, 0) + 1
            _counts.latest[key] = reason.text


def _report() -> None:
    print(usage(), file=sys.stderr)


if os.environ.get("HIPGEMM_REPORT", "0") not in ("", "0"):
    atexit.register(_report)
