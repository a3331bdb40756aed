"""Counts of calls, launches and copies: taken wherever they happen, shown by `inspect.usage`."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ..errors import Reason


class Call(NamedTuple):
    """A call that one launch of one kernel serves, as `count_call` takes it."""

    op: str
    kernel: str
    flop: int
    moved: int
    slower: str = ""


@dataclass
class Counts:
    """Counts by kernel, by operand and by reason; `inspect.usage.Usage` explains them."""

    kernels: dict[str, int] = field(default_factory=dict)
    served: dict[str, list[int]] = field(default_factory=dict)  # calls, flop, moved
    copies: dict[tuple[str, str, str], int] = field(default_factory=dict)
    copied: dict[tuple[str, str, str], int] = field(default_factory=dict)
    slower: dict[tuple[str, str, str], int] = field(default_factory=dict)
    refused: dict[tuple[str, str], int] = field(default_factory=dict)
    latest: dict[tuple[str, str], str] = field(default_factory=dict)
    refused_calls: int = 0


_lock = threading.RLock()  # a signal handler may call during a call
_counts = Counts()
_recent: deque[Call] = deque()  # not yet in the counts: appending takes no lock
_MOST_RECENT = 256


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it


os.register_at_fork(after_in_child=_after_fork)


def snapshot() -> Counts:
    """Return a copy of the counts."""
    with _lock:
        _add_recent()
        c = _counts
        return Counts(
            dict(c.kernels),
            {name: list(row) for name, row in c.served.items()},
            dict(c.copies),
            dict(c.copied),
            dict(c.slower),
            dict(c.refused),
            dict(c.latest),
            c.refused_calls,
        )


def reset() -> None:
    """Set all counts to zero."""
    global _counts
    with _lock:
        _recent.clear()
        _counts = Counts()


def count_kernel(name: str) -> None:
    """Count a launch."""
    with _lock:
        _counts.kernels[name] = _counts.kernels.get(name, 0) + 1


def count_call(op: str, kernel: str, flop: int, moved: int, slower: str = "") -> None:
    """Count a call that a kernel served; `slower` says why none of the faster ones did.

    `flop` and `moved` are those of the whole call.
    """
    with _lock:
        _add_calls(1, op, kernel, flop, moved, slower)


def _add_calls(calls: int, op: str, kernel: str, flop: int, moved: int, slower: str) -> None:
    row = _counts.served.setdefault(kernel, [0, 0, 0])
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
            _add_recent()


def _add_recent() -> None:
    """Add what was counted without the lock."""
    calls = []
    with suppress(IndexError):  # a signal handler was here
        for _ in range(len(_recent)):
            calls.append(_recent.popleft())
    for call, times in Counter(calls).items():
        _counts.kernels[call.kernel] = _counts.kernels.get(call.kernel, 0) + times
        _add_calls(times, *call)


def count_copy(op: str, operand: str, reason: str, size: int = 0) -> None:
    """Count an operand that was copied to another layout, of so many bytes."""
    key = (op, operand, reason)
    with _lock:
        _counts.copies[key] = _counts.copies.get(key, 0) + 1
        _counts.copied[key] = _counts.copied.get(key, 0) + size


def count_refused(op: str, reasons: Iterable[Reason]) -> None:
    """Count the obstacles of a call that no kernel serves."""
    with _lock:
        _counts.refused_calls += 1
        for reason in reasons:
            key = (op, reason.code)
            _counts.refused[key] = _counts.refused.get(key, 0) + 1
            _counts.latest[key] = reason.text
