"""The memory pool of each device: stream-ordered reuse, within limits."""

from __future__ import annotations

import ctypes
import gc
from dataclasses import dataclass
from functools import lru_cache, partial

from ..config import config
from ..errors import HipError
from . import hip as _hip
from .ownership import Allocation, Owner, Registry, discard

_HIP_SUCCESS, _OUT_OF_MEMORY = 0, 2


class Pool:
    """A stream-ordered pool of device memory.

    A block that was freed on a stream can be reused on that stream at once, because new work runs after
    the work that used it. HIPGEMM_POOL=off allocates and frees exact sizes, for debugging.
    """

    def __init__(self, device: int):
        self._device = device
        self.caching = config.pool
        self.blocks = Registry(partial(_hip.Block, device), "hipMalloc", "hipFree")
        self._free: dict[int, dict[int, list[_hip.Block]]] = {}  # by stream, then by size
        self._kept: list[_Kept] = []
        self._known_streams: set[int] = {0}  # known to belong to this device
        self.limit = config.memory_limit
        self.cache_limit = config.cache_limit
        self._in_use = 0  # bytes, for `peak`
        self.peak = 0  # the most bytes in use so far
        self.requests = 0  # successful calls of `allocate`
        self.mallocs = 0  # successful calls of hipMalloc

    @property
    def bytes(self) -> int:
        """Bytes that are allocated from HIP."""
        return self.blocks.bytes

    @property
    def cached(self) -> int:
        """Of these, free."""
        found = [sizes for _, sizes in list(self._free.items())]
        return sum(size * len(blocks) for sizes in found for size, blocks in list(sizes.items()))

    def recount(self) -> int:
        """Bytes in use. Corrects the running count, which an interrupted call can leave wrong."""
        self._in_use = self.bytes - self.cached
        return self._in_use

    def allocate(self, nbytes: int, stream: int) -> _hip.Block:
        """Return a block of at least `nbytes`, usable on `stream` at once."""
        size = _round_up(nbytes) if self.caching else max(nbytes, 1)
        if self.blocks.released or self._kept:
            self.reclaim()
        try:
            block = self._free[stream][size].pop()
        except (KeyError, IndexError):
            block = self._allocate(nbytes, size, stream)
        block.nbytes = nbytes
        self.requests += 1
        self._in_use += size
        if self._in_use > self.peak:
            self.peak = self._in_use
        return block

    def adopt(self, ptr: int, stream: int, owner: object) -> _hip.Block:
        """Own memory of another library, and with it what keeps it alive."""
        allocation = Allocation(0, stream, owner)
        allocation.handle.value = ptr
        return self.blocks.adopt(allocation)

    def trim(self, keep: int = 0) -> int:
        """Free cached memory, except at most `keep` bytes; return how many bytes were freed."""
        self.reclaim()
        if self._kept:
            self._wait_for_kept()
            self.reclaim()
        before = self.bytes
        self._shrink(keep)
        return before - self.bytes

    def reclaim(self) -> None:
        """Add the blocks that are no longer in use to the cache."""
        self._collect()
        if self._kept:
            self._release_kept()
            if self.blocks.released:  # what was kept kept other blocks alive
                self._collect()
        if self.cache_limit is not None:
            self._shrink(self.cache_limit)

    def _collect(self) -> None:
        """Take the blocks whose owners are gone."""
        blocks = self.blocks
        while blocks.released and (block := blocks.reclaim()) is not None:
            size, allocation = block.size, block.allocation
            if size == 0:
                self._keep(block)
                continue
            self._in_use -= size
            if not self.caching:
                self._hip_free(block)
                continue
            if allocation.users:
                self._wait_for_users(block)
            try:
                self._free[allocation.stream][size].append(block)
            except KeyError:
                self._put(block)

    def _wait_for_kept(self) -> None:
        for kept in list(self._kept):
            for event in kept.events:
                _hip.block("hipEventSynchronize", event.ptr)

    def _release_kept(self) -> None:
        """Let go of memory of other libraries that no stream uses any more."""
        for kept in list(self._kept):
            try:
                if not all(_hip.done("hipEventQuery", event.ptr) for event in kept.events):
                    continue
            except HipError:  # which has ended all queued work
                if discard(self._kept, kept):
                    self.blocks.forget(kept.block)
                raise
            if discard(self._kept, kept):
                self.blocks.forget(kept.block)

    def _allocate(self, nbytes: int, size: int, stream: int) -> _hip.Block:
        """Return memory that is not in the cache of this stream."""
        if stream not in self._known_streams:
            _hip.require_stream(stream, self._device)
            self._known_streams.add(stream)
        if self._take_over(stream):
            try:
                return self._free[stream][size].pop()
            except (KeyError, IndexError):
                pass
        cached = 0
        for prepare in (None, self._empty_cache, self._collect_garbage):
            cached += prepare() if prepare else 0
            block = self._malloc(size, stream)
            if block is not None:
                return block
        raise self._out_of_memory(nbytes, size, cached)

    def _malloc(self, size: int, stream: int) -> _hip.Block | None:
        """Return memory from HIP, or None if there is not enough."""
        library = _hip.runtime().handle
        with _hip.on_device(self._device):
            error, block = self.blocks.allocate(
                library, size, ctypes.c_size_t(size), stream=stream, limit=self.limit
            )
        if error == _OUT_OF_MEMORY:
            _hip.runtime().hip.hipGetLastError()
        elif error != _HIP_SUCCESS:
            raise _hip.failure(f"hipMalloc({size} bytes on device {self._device})", error)
        if block is not None:
            self.mallocs += 1
        return block

    def _empty_cache(self) -> int:
        cached = self.cached
        self._shrink(0)
        return cached

    def _collect_garbage(self) -> int:
        gc.collect()  # arrays in cycles of references
        self.reclaim()
        return self._empty_cache()

    def _put(self, block: _hip.Block) -> None:
        self._free.setdefault(block.allocation.stream, {}).setdefault(block.size, []).append(block)

    def _out_of_memory(self, nbytes: int, size: int, cached: int) -> HipError:
        free, total = _hip.memory_info(self._device)
        report = (
            f"requested: {nbytes} bytes" + (f", rounded up to {size}" if size != nbytes else "") + "\n"
            f"free: {free} of {total} on device {self._device}\n"
            f"cached: {cached} bytes by hipgemm, freed before the last attempt; "
            f"{self.bytes} bytes are in use by its arrays"
        )
        others = total - free - self.bytes
        if others > total // 16:
            report += f"\nother processes and the driver hold {others} bytes"
        if self.limit is not None and self.bytes + size > self.limit:
            report += f"\nlimit: {self.limit} bytes for hipgemm"
        name = f"hipMalloc({size} bytes on device {self._device})"
        return HipError(name, _OUT_OF_MEMORY, "hipErrorOutOfMemory", report)

    def _hip_free(self, block: _hip.Block) -> None:
        with _hip.on_device(self._device):
            error = self.blocks.free(_hip.runtime().handle, block)  # waits for the device
        if error:
            raise _hip.failure("hipFree", error)

    def _shrink(self, keep: int) -> None:
        """Free cached memory, the largest blocks first, until at most `keep` bytes are left."""
        cached = self.cached
        if cached <= keep:
            return
        found = [(size, stream) for stream, sizes in list(self._free.items()) for size in list(sizes)]
        for size, stream in sorted(found, reverse=True):
            blocks = self._free.get(stream, {}).get(size, [])
            while cached > keep and blocks:
                try:
                    block = blocks.pop()
                except IndexError:  # another thread or a signal handler took it
                    break
                cached -= size
                self._hip_free(block)

    def _wait_for_users(self, block: _hip.Block) -> None:
        """Make a block's stream wait for every other stream that used the block."""
        allocation = block.allocation
        try:
            with _hip.on_device(self._device):
                for user in list(allocation.users):
                    if user != allocation.stream:
                        _hip.wait_for(allocation.stream, user)
        except HipError:  # which has ended all queued work
            allocation.users.clear()
            self._put(block)
            raise
        allocation.users.clear()

    def _take_over(self, stream: int) -> bool:
        """Reuse the cached blocks of destroyed streams before more memory is allocated."""
        with _hip.on_device(self._device):
            destroyed = [other for other in list(self._free) if other != stream and not _hip.alive(other)]
            if not destroyed:
                return False
            _hip.block("hipDeviceSynchronize")
        for other in destroyed:
            for blocks in list(self._free.pop(other, {}).values()):
                for block in blocks:
                    block.allocation.stream = block.writer = stream
                    self._put(block)
        self._known_streams.difference_update(destroyed)
        return True

    def _keep(self, block: _hip.Block) -> None:
        """Keep memory of another library alive until the work now queued on it is complete."""
        allocation, kept = block.allocation, _Kept([], block)
        try:
            with _hip.on_device(self._device):
                for stream in {allocation.stream, *allocation.users}:
                    if _hip.alive(stream):
                        kept.events.append(_hip.acquire_event(self._device, False))
                        _hip.call("hipEventRecord", kept.events[-1].ptr, stream)
                    else:
                        _hip.block("hipDeviceSynchronize")
        except HipError:
            self._kept.append(kept)
            raise
        self._kept.append(kept)


@dataclass(eq=False)
class _Kept:
    """Memory of another library that is kept alive until events are complete."""

    events: list[Owner]
    block: _hip.Block


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
