"""Between the host and devices through pinned buffers.

A device copies from and to pinned memory by itself, while Python goes on. So what goes up is copied into
a buffer piece by piece, each on its way while the next is copied, and down the same way back. The
caller's own memory is touched during the call only, whatever the stream does later.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import HipError
from ..formats.arrays import memory_as_array
from . import hip as _hip

PIECE = 4 << 20  # bytes that go at once
LIMIT = 64 << 20  # bytes of pinned memory for each device
_SMALLEST = 4096
_DEPTH = 2  # pieces on their way down at once

T = TypeVar("T")


class Buffer:
    """Pinned memory, and the event after which the device no longer uses it."""

    __slots__ = ("_array", "event", "lost", "ptr", "size")

    def __init__(self, ptr: int, size: int, event: Any, lost: deque[tuple[int, int]]):
        self.ptr = ptr
        self.size = size
        self.event = event
        self.lost = lost
        self._array: npt.NDArray[np.uint8] | None = None

    @property
    def array(self) -> npt.NDArray[np.uint8]:
        """Its bytes, for NumPy."""
        if self._array is None:
            self._array = memory_as_array(self.ptr, (self.size,), (1,), "|u1")
        return self._array

    def __del__(self) -> None:
        if self.ptr:  # dropped instead of given back, by Ctrl-C at the wrong moment
            self.lost.append((self.ptr, self.size))


class Staging:
    """The pinned buffers of a device: sizes are powers of two, and all of them together are bounded.

    A buffer is idle, in somebody's hands, or in flight until its event has come. Nobody waits for one
    with another in hand, so whoever waits will be served. Signal handlers may call in the midst of it
    all: what is taken from a list is taken at once.
    """

    def __init__(self, device: int):
        self.device = device
        self.bytes = 0
        self._turn = threading.Condition()
        self._idle: dict[int, list[Buffer]] = {}
        self._flying: dict[int, deque[Buffer]] = {}  # the earliest first
        self._lost: deque[tuple[int, int]] = deque()

    def take(self, nbytes: int, wait: bool = True) -> Buffer | None:
        """Return a buffer of at least `nbytes`; None if it takes waiting, and `wait` is false."""
        size = max(_SMALLEST, 1 << (nbytes - 1).bit_length())
        while True:
            with self._turn:
                found = self._find(size)
                if found is not None or not wait:
                    return found
                queues = [queue for queue in self._flying.values() if queue]
                if not queues:
                    self._turn.wait()
                    continue
                earliest = _taken((self._flying.get(size) or queues[0]).popleft)
            if earliest is None:
                continue
            try:
                _hip.block("hipEventSynchronize", earliest.event)
            finally:
                self.give_back(earliest)

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer back that the device no longer uses."""
        with self._turn:
            self._idle.setdefault(buffer.size, []).append(buffer)
            self._turn.notify_all()

    def record(self, buffer: Buffer, stream: int) -> None:
        """Note that the device uses a buffer until `stream` has done what is queued on it now."""
        with _hip.on_device(self.device):
            _hip.call("hipEventRecord", buffer.event, stream)

    def fly(self, buffer: Buffer) -> None:
        """Take a buffer back that the device uses until its event."""
        with self._turn:
            self._flying.setdefault(buffer.size, deque()).append(buffer)
            self._turn.notify_all()

    def trim(self) -> None:
        """Free the buffers that are idle."""
        with self._turn:
            self._land()
            self._free_idle(0)
            self._free_lost()

    def _find(self, size: int) -> Buffer | None:
        if self._lost:
            self._free_lost()
        found = self._idle_one(size) or self._landed_one(self._flying.get(size))
        if found is not None:
            return found
        if self.bytes + size > LIMIT:
            self._land()
            self._free_idle(LIMIT - size)
        if self.bytes and self.bytes + size > LIMIT:
            return None
        error, made = self._make(size)
        if error and self.bytes:  # the host has no more: what is idle gives way
            self._land()
            if found := self._idle_one(size):
                return found
            self._free_idle(0)
            error, made = self._make(size)
        if error and not self.bytes:
            raise _hip.failure(f"hipHostMalloc({size} bytes)", error)
        return made  # None: there are others to wait for

    def _make(self, size: int) -> tuple[int, Buffer | None]:
        with _hip.on_device(self.device):
            error, ptr = _hip.get_memory(lambda ptr: self._put_new(size, ptr), "hipHostMalloc", size, 0)
            if error:
                _hip.runtime().hip.hipGetLastError()
                return error, None
            self.bytes += size
            return 0, Buffer(ptr, size, _hip.borrow_event(self.device, False), self._lost)

    def _put_new(self, size: int, ptr: int) -> None:
        self.bytes += size
        self._lost.append((ptr, size))

    def _idle_one(self, size: int) -> Buffer | None:
        idle = self._idle.get(size)
        return _taken(idle.pop) if idle else None

    def _landed_one(self, queue: deque[Buffer] | None) -> Buffer | None:
        """The earliest buffer of those in flight, if its event has come."""
        buffer = _taken(queue.popleft) if queue else None
        if queue is None or buffer is None:
            return None
        done = False
        try:
            done = _hip.done("hipEventQuery", buffer.event)
        finally:
            if not done:
                queue.appendleft(buffer)
        return buffer if done else None

    def _land(self) -> None:
        for size, queue in list(self._flying.items()):
            while buffer := self._landed_one(queue):
                self._idle.setdefault(size, []).append(buffer)

    def _free_idle(self, keep: int) -> None:
        for size in list(self._idle):
            while self.bytes > keep and (buffer := self._idle_one(size)):
                _hip.return_event(buffer.event, self.device, False)
                ptr, buffer.ptr = buffer.ptr, 0
                self._free(ptr, buffer.size)

    def _free_lost(self) -> None:
        while lost := _taken(self._lost.popleft):
            self._free(*lost)

    def _free(self, ptr: int, size: int) -> None:
        self.bytes -= size
        with _hip.on_device(self.device):
            _hip.call("hipHostFree", ptr)  # waits for the device


def _taken(take: Callable[[], T]) -> T | None:
    """What there is to take, if anything."""
    try:
        return take()
    except IndexError:
        return None


def _copy_on_host(dst: int, dst_pitch: int, src: int, src_pitch: int, rows: int, width: int) -> None:
    if rows == 1:
        ctypes.memmove(dst, src, width)
        return
    target = memory_as_array(dst, (rows, width), (dst_pitch, 1), "|u1")
    np.copyto(target, memory_as_array(src, (rows, width), (src_pitch, 1), "|u1"))


def pieces(rows: int, width: int) -> Iterator[tuple[int, int, int, int]]:
    """Cut rows of `width` bytes into pieces: first row, first byte, rows, bytes of each.

    >>> list(pieces(3, PIECE // 2))
    [(0, 0, 2, 2097152), (2, 0, 1, 2097152)]
    """
    if width > PIECE:
        for row in range(rows):
            for at in range(0, width, PIECE):
                yield row, at, 1, min(PIECE, width - at)
    elif width:
        step = PIECE // width
        for row in range(0, rows, step):
            yield row, 0, min(step, rows - row), width


def _flat(rows: int, width: int, *pitches: int) -> tuple[int, int, tuple[int, ...]]:
    """One long row, where rows follow each other without gaps on both sides."""
    if rows == 1 or all(pitch == width for pitch in pitches):
        return 1, rows * width, (rows * width,) * len(pitches)
    return rows, width, pitches


def send(dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, stream: int) -> None:
    """Copy rows of the host to the current device, in stream order. The host's may change at once."""
    staging = _of(_hip.current_device())
    rows, width, (dst_pitch, src_pitch) = _flat(rows, width, dst_pitch, src_pitch)
    for row, at, count, each in pieces(rows, width):
        buffer = staging.take(count * each)
        assert buffer is not None
        queued = False
        try:
            _copy_on_host(buffer.ptr, each, src + row * src_pitch + at, src_pitch, count, each)
            queued = True
            target = dst + row * dst_pitch + at
            _hip.copy_rows("HostToDevice", target, dst_pitch, buffer.ptr, each, each, count, stream)
        finally:
            _leave(staging, buffer, stream, queued)


@contextmanager
def borrowed(device: int, nbytes: int, stream: int) -> Iterator[Buffer]:
    """Take a buffer until the block ends, when nothing uses it; after an error, wait for `stream`."""
    staging = _of(device)
    buffer = staging.take(nbytes)
    assert buffer is not None
    try:
        yield buffer
    except BaseException:
        _hip.quiesce(stream)
        raise
    finally:
        staging.give_back(buffer)


def fetch(dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, stream: int) -> None:
    """Copy rows of the current device to the host, behind what is queued on the stream, and wait."""
    staging = _of(_hip.current_device())
    rows, width, (dst_pitch, src_pitch) = _flat(rows, width, dst_pitch, src_pitch)
    coming: deque[tuple[Buffer, int, int, int]] = deque()

    def finish() -> None:
        buffer, to, count, each = coming[0]
        _hip.block("hipEventSynchronize", buffer.event)
        _copy_on_host(to, dst_pitch, buffer.ptr, each, count, each)
        staging.give_back(coming.popleft()[0])

    try:
        for row, at, count, each in pieces(rows, width):
            if len(coming) == _DEPTH:
                finish()
            buffer = staging.take(count * each, wait=not coming)
            while buffer is None:  # the rest is in other hands, so what is in ours goes first
                finish()
                buffer = staging.take(count * each, wait=not coming)
            source = src + row * src_pitch + at
            try:
                _hip.copy_rows("DeviceToHost", buffer.ptr, each, source, src_pitch, each, count, stream)
                staging.record(buffer, stream)
            except BaseException:
                _leave(staging, buffer, stream, queued=True)
                raise
            coming.append((buffer, dst + row * dst_pitch + at, count, each))
        while coming:
            finish()
        _hip.synchronize(stream)  # nothing is left to wait for, but faults to be told
    finally:
        while coming:  # after an error; their events are on the way
            staging.fly(coming.popleft()[0])


def between(
    dst: int, dst_device: int, dst_stream: int, src: int, src_device: int, src_stream: int, nbytes: int
) -> None:
    """Copy bytes from one device to another behind what is queued on both streams, without waiting.

    What comes next on either stream finds it done. Where devices do not reach each other the bytes go
    through the host.
    """
    if not nbytes:
        return
    _hip.wait_across(src_device, src_stream, dst_device, dst_stream)
    if src_device == dst_device or _hip.peer_access(src_device, dst_device):
        with _hip.on_device(src_device):
            if src_device == dst_device:
                _hip.copy("DeviceToDevice", dst, src, nbytes, src_stream)
            else:
                _hip.copy_between(dst, dst_device, src, src_device, nbytes, src_stream)
        _hip.wait_across(dst_device, dst_stream, src_device, src_stream)
        return
    staging = _of(dst_device)
    for _, at, _, each in pieces(1, nbytes):
        buffer = staging.take(each)
        assert buffer is not None
        try:
            with _hip.on_device(src_device):
                _hip.copy("DeviceToHost", buffer.ptr, src + at, each, src_stream)
            _hip.wait_across(dst_device, dst_stream, src_device, src_stream)
            with _hip.on_device(dst_device):
                _hip.copy("HostToDevice", dst + at, buffer.ptr, each, dst_stream)
        finally:
            _leave(staging, buffer, dst_stream, queued=True)


def _leave(staging: Staging, buffer: Buffer, stream: int, queued: bool) -> None:
    """Let go of a buffer, which the stream may still use."""
    if not queued:
        staging.give_back(buffer)
        return
    try:
        staging.record(buffer, stream)
    except HipError:
        _hip.quiesce(stream)  # a stream that takes no event
        staging.give_back(buffer)
        raise
    staging.fly(buffer)


def _of(device: int) -> Staging:
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
    """Copy bytes between blocks of two devices, in order with all other work on them, without waiting.

    The source's stream does the copying, so that one beside the stream that computes lets both go on.
    """
    with _hip.on_device(src.device):
        src.reading(src_stream)
    with _hip.on_device(dst.device):
        dst.writing(dst_stream)
    between(dst_ptr, dst.device, dst_stream, src_ptr, src.device, src_stream, nbytes)


_hip.prepare(lambda rt: rt.staging.extend(map(Staging, range(rt.devices))))
