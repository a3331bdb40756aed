"""The progress of a file's transfer, on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from ..config import config

_PATIENCE = 1.0  # seconds without a report
_EACH_TERMINAL, _EACH_LINE = 0.1, 10.0  # seconds from one report to the next


class Progress:
    """Reports how much is done, from one second after the start; HIPGEMM_PROGRESS=off keeps it quiet.

    Parameters
    ----------
    what : str
        What begins each report.
    total : int
        Bytes of the whole transfer.
    """

    def __init__(self, what: str, total: int):
        self._what, self._total, self._done = what, total, 0
        self._start = time.monotonic()
        self._next = self._start + _PATIENCE
        self._shown = False
        self._terminal = sys.stderr is not None and sys.stderr.isatty()

    def add(self, nbytes: int) -> None:
        """Add bytes that were transferred."""
        self._done += nbytes
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (_EACH_TERMINAL if self._terminal else _EACH_LINE)
            self._report(now)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = time.monotonic()
        if self._shown or now >= self._start + _PATIENCE:
            self._report(now, "\n")

    def _report(self, now: float, end: str = "") -> None:
        if not config.progress or sys.stderr is None:
            return
        self._shown = True
        done, total = self._done / 1e9, self._total / 1e9
        rate = done / max(now - self._start, 1e-9)
        begin, end = ("\r", end) if self._terminal else ("", "\n")
        text = f"{begin}{self._what}: {done:.2f} of {total:.2f} GB, {rate:.2f} GB/s"
        sys.stderr.write(text + end)
        sys.stderr.flush()
