"""Counters of calls, launches and copies, which `inspect.usage` shows."""

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
    """A call that is served by one launch of one kernel; the arguments of `count_call`."""

    op: str
    kernel: str
    flop: int
    min_bytes: int
    fallback_reason: str = ""


@dataclass
class Counts:
    """Counts by kernel, by operand and by reason; `inspect.usage.Usage` explains them."""

    kernels: Counter[str] = field(default_factory=Counter)
    served: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # calls, flop, minimum bytes
    copies: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    copied: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    slower: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    latest: dict[tuple[str, str], str] = field(default_factory=dict)
    refused_calls: int = 0


_lock = threading.RLock()  # a signal handler may call during a call
_counts = Counts()
_recent: deque[Call] = deque()  # not yet in the counts; appending needs no lock
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


def count_call(op: str, kernel: str, flop: int, min_bytes: int, fallback_reason: str = "") -> None:
    """Count a call that a kernel served. `fallback_reason` is why no faster kernel did.

    `flop` and `min_bytes` are those of the whole call.
    """
    with _lock:
        _add_calls(1, op, kernel, flop, min_bytes, fallback_reason)


def _add_calls(calls: int, op: str, kernel: str, flop: int, min_bytes: int, fallback_reason: str) -> None:
    before = _counts.served.get(kernel, (0, 0, 0))
    _counts.served[kernel] = before[0] + calls, before[1] + calls * flop, before[2] + calls * min_bytes
    if fallback_reason:
        _counts.slower[op, kernel, fallback_reason] += calls


def count_launched(call: Call) -> None:
    """Count a call and its launch, faster than by `count_call` and `count_kernel`."""
    _recent.append(call)
    if len(_recent) >= _MOST_RECENT:
        with _lock:
            _add_recent()


def _add_recent() -> None:
    """Add the calls that were counted without the lock."""
    calls = []
    with suppress(IndexError):  # a signal handler took some
        for _ in range(len(_recent)):
            calls.append(_recent.popleft())
    for call, times in Counter(calls).items():
        _counts.kernels[call.kernel] += times
        _add_calls(times, *call)


def count_copy(op: str, operand: str, reason: str, size: int = 0) -> None:
    """Count an operand of `size` bytes that was copied to another layout."""
    key = (op, operand, reason)
    with _lock:
        _counts.copies[key] += 1
        _counts.copied[key] += size


def count_refused(op: str, reasons: Iterable[Reason]) -> None:
    """Count the reasons of a call that no kernel supports."""
    with _lock:
        _counts.refused_calls += 1
        for reason in reasons:
            _counts.refused[op, reason.code] += 1
            _counts.latest[op, reason.code] = reason.text
