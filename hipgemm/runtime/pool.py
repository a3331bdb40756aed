"""The memory pool of each device: stream-ordered reuse, within limits."""

from __future__ import annotations

import gc
import threading
from collections import deque
from functools import lru_cache
from typing import Any

from ..config import config
from ..errors import HipError
from . import hip as _hip

_HIP_SUCCESS, _OUT_OF_MEMORY = 0, 2


class Pool:
    """A stream-ordered pool of device memory.

    A block that was freed on a stream can be reused on that stream at once, because new work runs after
    the work that used it. HIPGEMM_POOL=off allocates and frees exact sizes, for debugging.
    """

    def __init__(self, device: int):
        self._device = device
        self.caching = config.pool
        self._lock = threading.RLock()  # a signal handler or a finalizer may enter again
        self._free: dict[int, dict[int, list[int]]] = {}  # by stream, then by size
        self._kept: list[tuple[list[Any], object]] = []  # events, and what is kept alive until they complete
        self._known_streams: set[int] = {0}  # known to belong to this device
        # Finalizers only append here: they may run anywhere, even while this thread holds the lock.
        self.freed: deque[tuple[int, int, int, set[int], object]] = deque()
        self.limit = config.memory_limit
        self.cache_limit = config.cache_limit
        self.bytes = 0  # allocated from HIP
        self.cached = 0  # of these, free
        self.peak = 0  # the most bytes in use so far
        self.requests = 0  # successful calls of `allocate`
        self.mallocs = 0  # successful calls of hipMalloc

    def allocate(self, nbytes: int, stream: int) -> _hip.Block:
        """Return a block of at least `nbytes`, usable on `stream` at once."""
        size = _round_up(nbytes) if self.caching else max(nbytes, 1)
        try:
            with self._lock:
                ptr = self._allocate(size, stream)
        except _OutOfMemory as first:
            gc.collect()  # arrays in cycles of references; without the lock, since finalizers run
            with self._lock:
                ptr = self._retry(nbytes, size, first.cached)
        return _hip.Block(ptr, nbytes, size, self._device, stream)

    def keep(self, owner: object, stream: int) -> None:
        """Keep an object alive until the work now queued on `stream` is complete."""
        with self._lock:
            self._keep(owner, {stream})

    def trim(self, keep: int = 0) -> int:
        """Free cached memory, except at most `keep` bytes; return how many bytes were freed."""
        with self._lock:
            before = self.bytes
            self._reclaim()
            self._shrink(keep)
            return before - self.bytes

    def reclaim(self) -> None:
        """Add the blocks that finalizers have freed to the cache."""
        with self._lock:
            self._reclaim()

    def _allocate(self, size: int, stream: int) -> int:
        if self.freed or self._kept:
            self._reclaim()
        if stream not in self._known_streams:
            _hip.require_stream(stream, self._device)
            self._known_streams.add(stream)
        sizes = self._free.get(stream)
        cached = (sizes.get(size) if sizes else None) or self._take_over(stream, size)
        try:
            ptr = cached.pop() if cached else 0
        except IndexError:  # a signal handler took it
            ptr = 0
        if ptr:
            self.cached -= size
        else:
            ptr = self._malloc(size)
            if not ptr:
                before = self.cached
                self._shrink(0)
                ptr = self._malloc(size)
                if not ptr:
                    raise _OutOfMemory(before)
        self._count()
        return ptr

    def _count(self) -> None:
        self.requests += 1
        if self.bytes - self.cached > self.peak:
            self.peak = self.bytes - self.cached

    def _retry(self, nbytes: int, size: int, cached: int) -> int:
        self._reclaim()
        cached += self.cached
        self._shrink(0)
        ptr = self._malloc(size)
        if not ptr:
            raise self._out_of_memory(nbytes, size, cached)
        self._count()
        return ptr

    def _malloc(self, size: int) -> int:
        """Return memory from HIP, or 0 if there is not enough."""
        if self.limit is not None and self.bytes + size > self.limit:
            return 0
        with _hip.on_device(self._device):
            error, pointer = _hip.allocate_raw(lambda ptr: self._add_new(size, ptr), "hipMalloc", size)
            if error == _OUT_OF_MEMORY:
                _hip.runtime().hip.hipGetLastError()
                return 0
            if error != _HIP_SUCCESS:
                raise _hip.failure(f"hipMalloc({size} bytes on device {self._device})", error)
        self.bytes += size
        self.mallocs += 1
        return pointer

    def _add_new(self, size: int, ptr: int) -> None:
        self.bytes += size
        self._put(0, size, ptr)

    def _put(self, stream: int, size: int, ptr: int) -> None:
        try:
            self._free[stream][size].append(ptr)
        except KeyError:
            self._free.setdefault(stream, {}).setdefault(size, []).append(ptr)
        self.cached += size

    def _out_of_memory(self, nbytes: int, size: int, cached: int) -> HipError:
        free, total = _hip.memory_info(self._device)
        report = (
            f"requested: {nbytes} bytes" + (f", rounded up to {size}" if size != nbytes else "") + "\n"
            f"free: {free} of {total} on device {self._device}\n"
            f"cached: {cached} bytes by hipgemm, freed before the last attempt; "
            f"{self.bytes} bytes are in use by its arrays"
        )
        if self.limit is not None and self.bytes + size > self.limit:
            report += f"\nlimit: {self.limit} bytes for hipgemm"
        name = f"hipMalloc({size} bytes on device {self._device})"
        return HipError(name, _OUT_OF_MEMORY, "hipErrorOutOfMemory", report)

    def _hip_free(self, ptr: int, size: int) -> None:
        self.bytes -= size
        with _hip.on_device(self._device):
            _hip.call("hipFree", ptr)  # waits for the device

    def _shrink(self, keep: int) -> None:
        """Free cached memory, the largest blocks first, until at most `keep` bytes are left."""
        if self.cached <= keep:
            return
        found = [(size, stream) for stream, sizes in self._free.items() for size in sizes]
        for size, stream in sorted(found, reverse=True):
            blocks = self._free.get(stream, {}).get(size, [])
            while self.cached > keep:
                try:
                    ptr = blocks.pop()
                except IndexError:
                    break
                self.cached -= size
                self._hip_free(ptr, size)
        self._free = {
            stream: {size: blocks for size, blocks in sizes.items() if blocks}
            for stream, sizes in self._free.items()
        }

    def _reclaim(self) -> None:
        while self.freed:
            try:
                ptr, size, stream, users, owner = self.freed.popleft()
            except IndexError:  # a signal handler took it
                break
            if size == 0:
                self._keep(owner, users)
            elif self.caching:
                try:
                    if len(users) > 1 or stream not in users:
                        self._wait_for_users(stream, users)
                finally:  # an error raised here has ended all queued work
                    self._put(stream, size, ptr)
            else:
                self._hip_free(ptr, size)
        if self._kept:
            kept, self._kept = self._kept, []
            while kept:
                events, owner = kept.pop()
                try:
                    if not self._all_done(events):
                        self._kept.append((events, owner))
                except BaseException:
                    self._kept += kept
                    raise
        if self.cache_limit is not None:
            self._shrink(self.cache_limit)

    def _wait_for_users(self, stream: int, users: set[int]) -> None:
        """Make a block's stream wait for every other stream that used the block."""
        for user in users:
            if user != stream:
                with _hip.on_device(self._device):
                    _hip.wait_for(stream, user)

    def _take_over(self, stream: int, size: int) -> list[int] | None:
        """Reuse the cached blocks of destroyed streams before more memory is allocated."""
        with _hip.on_device(self._device):
            destroyed = [other for other in self._free if other != stream and not _hip.alive(other)]
            if not destroyed:
                return None
            _hip.block("hipDeviceSynchronize")
        mine = self._free.setdefault(stream, {})
        for other in destroyed:
            for other_size, pointers in self._free.pop(other, {}).items():
                mine.setdefault(other_size, []).extend(pointers)
        self._known_streams.difference_update(destroyed)
        return mine.get(size)

    def _keep(self, owner: object, streams: set[int]) -> None:
        events: list[Any] = []
        try:
            with _hip.on_device(self._device):
                for stream in streams:
                    if not _hip.alive(stream):
                        _hip.block("hipDeviceSynchronize")
                        continue
                    events.append(_hip.acquire_event(self._device, False))
                    _hip.call("hipEventRecord", events[-1], stream)
        finally:
            self._kept.append((events, owner))

    def _all_done(self, events: list[Any]) -> bool:
        """Whether all events are complete. Completed events are released."""
        while events:
            if not _hip.done("hipEventQuery", events[-1]):
                return False
            _hip.release_event(events.pop(), self._device, False)
        return True


class _OutOfMemory(Exception):
    """The first attempt failed; says how much was cached then."""

    def __init__(self, cached: int):
        super().__init__()
        self.cached = cached


@lru_cache(maxsize=1024)
def _round_up(nbytes: int) -> int:
    """Round to an eighth of a power of two, at least 512 bytes: few sizes, little waste.

    >>> [_round_up(n) for n in (0, 512, 513, 9000, 2**20 + 1)]
    [512, 512, 1024, 9216, 1179648]
    """
    step = max(512, 1 << max(0, (max(nbytes, 1) - 1).bit_length() - 4))
    return max(1, -(-nbytes // step)) * step


def of(device: int) -> Pool:
    """The pool of a device."""
    found: Pool = _hip.runtime().pools[device]
    return found


_hip.on_open(lambda rt: rt.pools.extend(map(Pool, range(rt.devices))))
