"""Counters of calls, launches and copies, which `inspect.usage` shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from ..errors import Reason


@dataclass(frozen=True, eq=False)  # compared by identity: hashing the names would cost as much as the rest
class Call:
    """A call that a kernel serves.

    `flop` and `min_bytes` are those of the whole call. `fallback_reason` is why no faster kernel serves it.
    """

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

    def add_kernel(self, times: int, name: str) -> None:
        """Add launches."""
        self.kernels[name] += times

    def add_calls(self, times: int, call: Call) -> None:
        """Add calls."""
        calls, flop, min_bytes = self.served.get(call.kernel, (0, 0, 0))
        served = calls + times, flop + times * call.flop, min_bytes + times * call.min_bytes
        self.served[call.kernel] = served
        if call.fallback_reason:
            self.slower[call.op, call.kernel, call.fallback_reason] += times

    def add_copies(self, times: int, key: tuple[str, str, str], size: int) -> None:
        """Add operands that were copied."""
        self.copies[key] += times
        self.copied[key] += times * size

    def add_refused(self, calls: int, op: str, reasons: tuple[Reason, ...], number: int) -> None:
        """Add a call that no kernel supports; the numbers of calls differ, so that the order is kept."""
        self.refused_calls += calls
        for reason in reasons:
            self.refused[op, reason.code] += calls
            self.latest[op, reason.code] = reason.text

    def copy(self) -> Counts:
        """Return a copy."""
        copies: dict[str, Any] = {name: x.copy() for name, x in vars(self).items() if isinstance(x, dict)}
        return replace(self, **copies)


# The counts, then what was counted since: calls, and methods of `Counts` with their arguments. There is no
# lock, which an exception could leave locked: to append is atomic, and so is to replace all by the sum.
_log: list[Any] = [Counts()]
_LONGEST_LOG = 256
_refusals = count()


def snapshot() -> dict[str, Any]:
    """Return a copy of the counts, by name."""
    return {name: dict(x) if isinstance(x, dict) else x for name, x in vars(_sum_up()).items()}


def reset() -> None:
    """Set all counts to zero."""
    _log[:] = [Counts()]


def count_kernel(name: str) -> None:
    """Count a launch."""
    _add((Counts.add_kernel, name))


def count_call(call: Call) -> None:
    """Count a call."""
    _add((Counts.add_calls, call))


def count_launched(call: Call) -> None:
    """Count a call and its launch, faster than by `count_call` and `count_kernel`."""
    _log.append(call)
    if len(_log) >= _LONGEST_LOG:
        _shorten()


def count_copy(op: str, operand: str, reason: str, size: int = 0) -> None:
    """Count an operand of `size` bytes that was copied to another layout."""
    _add((Counts.add_copies, (op, operand, reason), size))


def count_refused(op: str, reasons: Iterable[Reason]) -> None:
    """Count the reasons of a call that no kernel supports."""
    _add((Counts.add_refused, op, tuple(reasons), next(_refusals)))


def _add(entry: tuple[Any, ...]) -> None:
    _log.append(entry)
    if len(_log) >= _LONGEST_LOG:
        _shorten()


def _shorten() -> None:
    while len(_log) >= _LONGEST_LOG:
        _sum_up()


def _sum_up() -> Counts:
    """Add up the log, and put the sum in its place, unless another thread or a signal handler has done so."""
    before, *entries = _log[:]
    counts: Counts = before.copy()
    for entry, times in Counter(entries).items():
        if type(entry) is Call:
            counts.add_kernel(times, entry.kernel)
            counts.add_calls(times, entry)
        else:
            add, *arguments = entry
            add(counts, times, *arguments)
    summed = slice(1 + len(entries))
    if _log[0] is before:  # no call from here on, at which another thread could come between
        _log[summed] = [counts]
    return counts
