"""Times calls by the device's own time stamps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from hipgemm.array.device_array import empty
from hipgemm.products.chips import chip_of
from hipgemm.runtime import hip as _hip
from hipgemm.runtime.stream import Event, Stream

Call = Callable[[Any], object]  # of a stream
MOST_FILLS = 32
WARM_SECONDS = 0.3  # until then the engine clock may rise


class Clock(Protocol):
    """What times calls."""

    cache_bytes: int  # of the largest cache

    def warm(self, call: Call) -> None:
        """Make a call until the device has the clock that it has under load."""

    def sample(self, calls: Sequence[Call]) -> float:
        """Make calls, the first of which finds nothing in a cache; return microseconds of one."""


class DeviceClock:
    """The events of a device."""

    def __init__(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.stream = Stream()
        self.fills = 1  # before each sample
        self._evicts = empty((cache_bytes,), np.uint8)

    @classmethod
    def of(cls, device: int) -> DeviceClock:
        """For a GPU, with its caches; the emulator has none."""
        emulated = _hip.runtime().kind == "emulator"
        return cls(0 if emulated else int(chip_of(_hip.arch(device)).rates.cache.value))

    def warm(self, call: Call) -> None:
        """Make a call for some time."""
        end = time.perf_counter() + WARM_SECONDS
        while time.perf_counter() < end:
            for _ in range(8):
                call(self.stream)
            self.stream.synchronize()

    def sample(self, calls: Sequence[Call]) -> float:
        """Queue the calls after fills, which replace the cache's content.

        There are as many as it takes to queue the calls: the device must not wait for Python.
        """
        while True:
            for _ in range(self.fills if self.cache_bytes else 0):
                _hip.clear(self._evicts.ptr, self.cache_bytes, int(self.stream))
            start = Event().record(self.stream)
            for call in calls:
                call(self.stream)
            waited = self.cache_bytes and start.query()
            microseconds = 1e3 * start.elapsed(Event().record(self.stream)) / len(calls)
            if not waited or self.fills >= MOST_FILLS:
                return microseconds
            self.fills *= 2
