"""Copies between host and devices, staged in pinned buffers.

A device copies from and to pinned memory asynchronously. An upload copies the caller's memory into pinned
buffers chunk by chunk; the device copies one chunk while the host copies the next. A download does the
reverse. The caller's memory is only accessed during the call, even if the stream runs later.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from ..errors import HipError
from ..formats.arrays import memory_as_array
from . import hip as _hip
from . import record
from .ownership import Allocation, Owner, Registry

CHUNK = 4 << 20  # bytes of one copy
LIMIT = 64 << 20  # bytes of pinned memory per device
_SMALLEST = 4096
_DEPTH = 2  # chunks of a download in flight
_PAUSE = 1e-4  # seconds


class Buffer(Owner):
    """Pinned memory, and an event: when it is complete, the device no longer uses the memory."""

    __slots__ = ("_array", "event", "size")

    def __init__(self, event: Owner, allocation: Allocation):
        super().__init__(allocation)
        self.size = allocation.size
        self.event = event
        self._array: npt.NDArray[np.uint8] | None = None

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """The bytes as a NumPy array."""
        if self._array is None:
            self._array = memory_as_array(self.ptr, (self.size,), (1,), "|u1")
        return self._array


class Staging:
    """The pinned buffers of a device. Sizes are powers of two, and the total is limited.

    A buffer is idle, acquired, or in flight until its event is complete. No caller waits for a buffer while
    it holds another, so there is no deadlock. One that is dropped while it is acquired, because an exception
    came between, may be used by the device still: it is idle when the device is.
    """

    def __init__(self, device: int):
        self.device = device
        self._buffers = Registry(self._new, "hipHostMalloc", "hipHostFree")
        self._idle: dict[int, list[Buffer]] = {}
        self._in_flight: dict[int, deque[Buffer]] = {}  # the earliest first

    @property
    def bytes(self) -> int:
        """Bytes that are pinned."""
        return self._buffers.bytes

    def acquire(self, nbytes: int, wait: bool = True) -> Buffer | None:
        """Return a buffer of at least `nbytes`; None if that needs a wait and `wait` is false."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        while True:
            found = self._find(size)
            if found is not None or not wait:
                return found
            earliest = self._earliest(size)
            if earliest is None:  # others have them all
                time.sleep(_PAUSE)
            else:
                _hip.block("hipEventSynchronize", earliest.event.ptr)

    def release(self, buffer: Buffer) -> None:
        """Return a buffer that the device no longer uses."""
        self._idle.setdefault(buffer.size, []).append(buffer)

    def record(self, buffer: Buffer, stream: int) -> None:
        """Record the buffer's event: the device uses it until the work now queued on `stream` is complete."""
        with _hip.on_device(self.device):
            _hip.call("hipEventRecord", buffer.event.ptr, stream)

    def release_after_event(self, buffer: Buffer) -> None:
        """Return a buffer that the device uses until its event is complete."""
        self._in_flight.setdefault(buffer.size, deque()).append(buffer)

    def trim(self) -> None:
        """Free the idle buffers."""
        self._collect_dropped()
        self._collect_finished()
        self._free_idle(0)

    def _new(self, allocation: Allocation) -> Buffer:
        return Buffer(_hip.acquire_event(self.device, False), allocation)

    def _find(self, size: int) -> Buffer | None:
        if self._buffers.released:
            self._collect_dropped()
        found = self._pop_idle(size) or self._pop_finished(self._in_flight.get(size))
        if found is not None:
            return found
        if self.bytes + size > LIMIT:
            self._collect_finished()
            self._free_idle(LIMIT - size)
        error, made = self._make(size)
        if error and self.bytes:  # the host is out of memory: free the idle buffers
            self._collect_finished()
            if found := self._pop_idle(size):
                return found
            self._free_idle(0)
            error, made = self._make(size)
        if error and not self.bytes:
            raise _hip.failure(f"hipHostMalloc({size} bytes)", error)
        return made  # None: wait for another buffer

    def _make(self, size: int) -> tuple[int, Buffer | None]:
        limit = max(LIMIT, size)  # one that is larger than all may be is alone
        with _hip.on_device(self.device):
            library = _hip.runtime().handle
            error, made = self._buffers.allocate(library, size, ctypes.c_size_t(size), 0, limit=limit)
            if error:
                _hip.runtime().hip.hipGetLastError()
            return error, made

    def _pop_idle(self, size: int) -> Buffer | None:
        try:
            return self._idle[size].pop()
        except (KeyError, IndexError):
            return None

    def _earliest(self, size: int) -> Buffer | None:
        """The earliest buffer in flight, of this size if there is one."""
        for queue in (self._in_flight.get(size), *list(self._in_flight.values())):
            if queue:
                try:
                    return queue[0]
                except IndexError:  # another thread or a signal handler took it
                    pass
        return None

    def _pop_finished(self, queue: deque[Buffer] | None) -> Buffer | None:
        """Pop the earliest buffer in flight, if its event is complete."""
        try:
            buffer = queue.popleft() if queue else None
        except IndexError:  # another thread or a signal handler took it
            buffer = None
        if buffer is None or queue is None:
            return None
        done = False
        try:
            done = _hip.done("hipEventQuery", buffer.event.ptr)
        finally:
            if not done:
                queue.appendleft(buffer)
        return buffer if done else None

    def _collect_finished(self) -> None:
        for queue in list(self._in_flight.values()):
            while buffer := self._pop_finished(queue):
                self.release(buffer)

    def _collect_dropped(self) -> None:
        """Take back the buffers that were not released."""
        while buffer := self._buffers.reclaim():
            try:
                with _hip.on_device(self.device):
                    _hip.block("hipDeviceSynchronize")
            except HipError:  # which has ended all queued work
                self.release(buffer)
                raise
            self.release(buffer)

    def _free_idle(self, keep: int) -> None:
        for size, idle in list(self._idle.items()):
            for _ in range(len(idle)):  # not those that other threads or signal handlers release meanwhile
                if self.bytes <= keep or (buffer := self._pop_idle(size)) is None:
                    break
                with _hip.on_device(self.device):
                    error = self._buffers.free(_hip.runtime().handle, buffer)  # waits for the device
                if error:
                    raise _hip.failure("hipHostFree", error)


def _copy_on_host(dst: int, dst_pitch: int, src: int, src_pitch: int, rows: int, width: int) -> None:
    if rows == 1:
        ctypes.memmove(dst, src, width)
        return
    target = memory_as_array(dst, (rows, width), (dst_pitch, 1), "|u1")
    np.copyto(target, memory_as_array(src, (rows, width), (src_pitch, 1), "|u1"))


def chunks(rows: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Split rows of `width` bytes into chunks: first row, first byte, number of rows, bytes of each row.

    >>> list(chunks(3, CHUNK // 2))
    [(0, 0, 2, 2097152), (2, 0, 1, 2097152)]
    """
    if width > CHUNK:
        for row in range(rows):
            for at in range(0, width, CHUNK):
                yield row, at, 1, min(CHUNK, width - at)
    elif width:
        step = CHUNK // width
        for row in range(0, rows, step):
            yield row, 0, min(step, rows - row), width


def _merge_rows(rows: int, width: int, *pitches: int) -> tuple[int, int, tuple[int, ...]]:
    """Treat contiguous rows as one long row."""
    if rows == 1 or all(pitch == width for pitch in pitches):
        return 1, rows * width, (rows * width,) * len(pitches)
    return rows, width, pitches


def upload(dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, stream: int) -> None:
    """Copy rows of the host to the current device, in stream order. The source may change after the call."""
    _hip.require_no_capture_of(stream)
    staging = _staging_of(_hip.current_device())
    rows, width, (dst_pitch, src_pitch) = _merge_rows(rows, width, dst_pitch, src_pitch)
    for row, at, count, each in chunks(rows, width):
        buffer = staging.acquire(count * each)
        assert buffer is not None
        queued = False
        try:
            _copy_on_host(buffer.ptr, each, src + row * src_pitch + at, src_pitch, count, each)
            queued = True
            target = dst + row * dst_pitch + at
            _hip.copy_rows("HostToDevice", target, dst_pitch, buffer.ptr, each, each, count, stream)
        finally:
            _release_buffer(staging, buffer, stream, queued)


@contextmanager
def acquired(device: int, nbytes: int, stream: int) -> Iterator[Buffer]:
    """Acquire a buffer for a `with` block, which waits for its use unless there is an error."""
    _hip.require_no_capture_of(stream)
    staging = _staging_of(device)
    buffer = staging.acquire(nbytes)
    assert buffer is not None
    try:
        yield buffer
    except BaseException:
        _release_buffer(staging, buffer, stream, queued=True)
        raise
    staging.release(buffer)


def download(dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, stream: int) -> None:
    """Copy rows from the current device to the host, after the work queued on the stream, and wait."""
    _hip.require_no_capture_of(stream)
    staging = _staging_of(_hip.current_device())
    rows, width, (dst_pitch, src_pitch) = _merge_rows(rows, width, dst_pitch, src_pitch)
    pending: deque[tuple[Buffer, int, int, int]] = deque()

    def finish() -> None:
        buffer, to, count, each = pending[0]
        _hip.block("hipEventSynchronize", buffer.event.ptr)
        _copy_on_host(to, dst_pitch, buffer.ptr, each, count, each)
        staging.release(pending.popleft()[0])

    try:
        for row, at, count, each in chunks(rows, width):
            if len(pending) == _DEPTH:
                finish()
            buffer = staging.acquire(count * each, wait=not pending)
            while buffer is None:  # other callers hold the rest: finish a copy of our own first
                finish()
                buffer = staging.acquire(count * each, wait=not pending)
            source = src + row * src_pitch + at
            try:
                _hip.copy_rows("DeviceToHost", buffer.ptr, each, source, src_pitch, each, count, stream)
                staging.record(buffer, stream)
            except BaseException:
                _release_buffer(staging, buffer, stream, queued=True)
                raise
            pending.append((buffer, dst + row * dst_pitch + at, count, each))
        while pending:
            finish()
        _hip.synchronize(stream)  # raises deferred device errors
    finally:
        while pending:  # after an error: their events are recorded
            staging.release_after_event(pending.popleft()[0])


def copy_between_devices(
    dst: int, dst_device: int, dst_stream: int, src: int, src_device: int, src_stream: int, nbytes: int
) -> None:
    """Copy bytes from one device to another after the work queued on both streams, without waiting.

    Later work on either stream waits for the copy. Without peer access, the bytes are staged on the host.
    """
    if not nbytes:
        return
    _hip.wait_across(src_device, src_stream, dst_device, dst_stream)
    if src_device == dst_device or (
        _hip.peer_access(src_device, dst_device) and not record.has_failed("peer_access", src_device)
    ):
        with _hip.on_device(src_device):
            if src_device == dst_device:
                _hip.copy("DeviceToDevice", dst, src, nbytes, src_stream)
            else:
                _hip.copy_between(dst, dst_device, src, src_device, nbytes, src_stream)
        _hip.wait_across(dst_device, dst_stream, src_device, src_stream)
        return
    staging = _staging_of(dst_device)
    for _, at, _, each in chunks(1, nbytes):
        buffer = staging.acquire(each)
        assert buffer is not None
        try:
            with _hip.on_device(src_device):
                _hip.copy("DeviceToHost", buffer.ptr, src + at, each, src_stream)
            _hip.wait_across(dst_device, dst_stream, src_device, src_stream)
            with _hip.on_device(dst_device):
                _hip.copy("HostToDevice", dst + at, buffer.ptr, each, dst_stream)
        finally:
            _release_buffer(staging, buffer, dst_stream, queued=True)


def _release_buffer(staging: Staging, buffer: Buffer, stream: int, queued: bool) -> None:
    """Release a buffer that the stream may still use."""
    if not queued:
        staging.release(buffer)
        return
    try:
        staging.record(buffer, stream)
    except HipError:
        _hip.quiesce(stream)  # no event could be recorded
        staging.release(buffer)
        raise
    staging.release_after_event(buffer)


def _staging_of(device: int) -> Staging:
    found: Staging = _hip.runtime().staging[device]
    return found


def copy_block(
    dst: _hip.Block,
    dst_ptr: int,
    dst_stream: int,
    src: _hip.Block,
    src_ptr: int,
    src_stream: int,
    nbytes: int,
) -> None:
    """Copy bytes between blocks of two devices, ordered with all other work on them, without waiting.

    The copy runs on the source's stream. If that is not the compute stream, copy and compute overlap.
    """
    with _hip.on_device(src.device):
        src.begin_read(src_stream)
    with _hip.on_device(dst.device):
        dst.begin_write(dst_stream)
    copy_between_devices(dst_ptr, dst.device, dst_stream, src_ptr, src.device, src_stream, nbytes)


_hip.on_open(lambda rt: rt.staging.extend(map(Staging, range(rt.devices))))
