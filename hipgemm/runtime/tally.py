"""Counts of calls, launches and copies: taken wherever they happen, shown by `inspect.usage`."""

from __future__ import annotations

import os
import threading
from collections import Counter, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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

    kernels: Counter[str] = field(default_factory=Counter)
    served: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # calls, flop, moved
    copies: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    copied: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    slower: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
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


def snapshot() -> dict[str, Any]:
    """Return a copy of the counts, by name."""
    with _lock:
        _add_recent()
        return {name: dict(x) if isinstance(x, dict) else x for name, x in vars(_counts).items()}


def reset() -> None:
    """Set all counts to zero."""
    global _counts
    with _lock:
        _recent.clear()
        _counts = Counts()


def count_kernel(name: str) -> None:
    """Count a launch."""
    with _lock:
        _counts.kernels[name] += 1


def count_call(op: str, kernel: str, flop: int, moved: int, slower: str = "") -> None:
    """Count a call that a kernel served; `slower` says why none of the faster ones did.

    `flop` and `moved` are those of the whole call.
    """
    with _lock:
        _add_calls(1, op, kernel, flop, moved, slower)


def _add_calls(calls: int, op: str, kernel: str, flop: int, moved: int, slower: str) -> None:
    before = _counts.served.get(kernel, (0, 0, 0))
    _counts.served[kernel] = before[0] + calls, before[1] + calls * flop, before[2] + calls * moved
    if slower:
        _counts.slower[op, kernel, slower] += calls


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
        _counts.kernels[call.kernel] += times
        _add_calls(times, *call)


def count_copy(op: str, operand: str, reason: str, size: int = 0) -> None:
    """Count an operand that was copied to another layout, of so many bytes."""
    key = (op, operand, reason)
    with _lock:
        _counts.copies[key] += 1
        _counts.copied[key] += size


def count_refused(op: str, reasons: Iterable[Reason]) -> None:
    """Count the obstacles of a call that no kernel serves."""
    with _lock:
        _counts.refused_calls += 1
        for reason in reasons:
            _counts.refused[op, reason.code] += 1
            _counts.latest[op, reason.code] = reason.text
