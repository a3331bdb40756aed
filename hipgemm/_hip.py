"""HIP as the rest of the package uses it: errors, streams, devices, launches, copies, memory."""

from __future__ import annotations

import ctypes
import gc
import operator
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from . import _runtime
from ._runtime import EMULATOR, Runtime, launch_extra, opened, runtime
from .errors import HipError, sentence

__all__ = ["EMULATOR", "Runtime", "launch_extra", "opened", "runtime"]  # what is handed on

_HIP_SUCCESS = 0
_OUT_OF_MEMORY = 2
_NOT_READY = 600
_PEER_ACCESS_ALREADY_ENABLED = 704
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_LEGACY, _PER_THREAD = 1, 2  # HIP's names for the default stream, and for each thread's own


# ---- errors ----------------------------------------------------------------------------------------


def failure(call: str, error: Any) -> HipError:
    """Make the exception for an error code, and clear it so that nobody else stumbles over it."""
    rt = runtime()
    report = rt.report()
    with suppress(Exception):
        rt.hip.hipGetLastError()
    if type(error) is int:
        with suppress(ValueError):
            error = rt.hip.hipError_t(error)
    return HipError(call, int(error), getattr(error, "name", "unknown error"), report)


def call(name: str, *args: Any) -> Any:
    """Call HIP; raise on error, else return what it returned besides the code."""
    result = getattr(runtime().hip, name)(*args)
    error = result[0]
    if int(error) != _HIP_SUCCESS:
        raise failure(name, error)
    return result[1] if len(result) > 1 else None


def get_memory(lost: Callable[[int], None], name: str, nbytes: int, *flags: int) -> tuple[int, int]:
    """Call an allocating function of HIP: the error code, and the address.

    Ctrl-C during the call is raised after it, where the address would be lost; `lost` gets it then.
    hip-python runs code of Python before it returns, so it is left out.
    """
    function, pointer = getattr(runtime().handle, name), ctypes.c_void_p()
    place, size = ctypes.byref(pointer), ctypes.c_size_t(nbytes)
    try:
        error = function(place, size, *flags)
    except BaseException:
        if pointer.value:
            lost(pointer.value)
        raise
    return error, pointer.value or 0


# ---- devices and streams ---------------------------------------------------------------------------


def current_device() -> int:
    """The calling thread's device."""
    return 0 if runtime().devices == 1 else int(call("hipGetDevice"))


def device_number(function: str, device: Any) -> int:
    """Read a device argument: None for the current one, or its number."""
    if device is None:
        return current_device()
    if isinstance(device, bool) or not hasattr(device, "__index__"):
        raise TypeError(f"{function}: {sentence('device must be an int', type(device).__qualname__)}")
    number, count = operator.index(device), runtime().devices
    if not 0 <= number < count:
        raise ValueError(f"{function}: {sentence(f'device must be 0 to {count - 1}', number)}")
    return number


@contextmanager
def on_device(device: int) -> Iterator[None]:
    """Make a device current, and the former one again afterwards."""
    before = current_device()
    if before == device:
        yield
        return
    try:
        call("hipSetDevice", device)
        yield
    finally:
        call("hipSetDevice", before)


def properties(device: int) -> Any:
    """HIP's properties of a device."""
    hip = runtime().hip
    try:
        return call("hipGetDeviceProperties", device)  # hip-python 10 returns them
    except TypeError:
        found = hip.hipDeviceProp_t()  # hip-python 7 fills them in
        call("hipGetDeviceProperties", found, device)
        return found


def device_of(ptr: int) -> int:
    """The device that holds an address."""
    try:
        return int(call("hipPointerGetAttributes", ptr).device)  # hip-python 10 returns them
    except TypeError:
        found = runtime().hip.hipPointerAttribute_t()  # hip-python 7 fills them in
        call("hipPointerGetAttributes", found, ptr)
        return int(found.device)


def arch(device: int) -> str:
    """The architecture of a device, such as ``gfx950``."""
    known = runtime().archs
    if device not in known:
        name = properties(device).gcnArchName
        known[device] = (name.decode() if isinstance(name, bytes) else str(name)).split(":")[0]
    return known[device]


def stream_handle(function: str, stream: Any) -> int:
    """Read a stream argument: None, an int, or anything with int()."""
    if stream is None:
        return 0
    try:
        handle = -1 if isinstance(stream, (str, bytes, float)) else int(stream)
    except (TypeError, ValueError):
        handle = -1
    if handle < 0:
        required = "stream must be None, a stream handle, or convertible to one by int()"
        raise TypeError(f"{function}: {sentence(required, repr(stream))}")
    if handle <= _LEGACY:
        return 0
    if handle == _PER_THREAD:
        required = "stream must be one that all threads mean alike"
        raise ValueError(
            f"{function}: {sentence(required, 'the per-thread stream (2)', 'make a hipgemm.Stream')}"
        )
    if handle not in _streams and not alive(handle):
        raise ValueError(f"{function}: {_unknown_stream(handle)}")
    return handle


def _unknown_stream(handle: int) -> str:
    return sentence("stream must be one that exists", f"the unknown handle {handle:#x}", "was it destroyed?")


after_wait: list[Callable[[], None]] = []  # what looks at things that only a wait brings to light


def synchronize(stream: int = 0) -> None:
    """Wait for a stream."""
    call("hipStreamSynchronize", stream)
    for look in after_wait:
        look()


def synchronize_device() -> None:
    """Wait for everything on the current device."""
    call("hipDeviceSynchronize")
    for look in after_wait:
        look()


def wait_for_event(event: Any) -> None:
    """Wait for an event."""
    call("hipEventSynchronize", event)
    for look in after_wait:
        look()


def quiesce(stream: int) -> None:
    """Wait for a stream while another error is on its way: that one is the one to tell."""
    with suppress(HipError):
        synchronize(stream)


def alive(stream: int) -> bool:
    """Whether a stream exists (still)."""
    if stream <= _PER_THREAD or stream in runtime().streams:
        return True
    hip = runtime().hip
    if int(hip.hipStreamGetFlags(stream)[0]) == _HIP_SUCCESS:
        return True
    hip.hipGetLastError()
    return False


def stream_device(stream: int) -> int | None:
    """The device of a stream; None where there is one only, and for the default streams, which each has."""
    rt = runtime()
    if stream <= _PER_THREAD or rt.devices == 1:
        return None
    found = rt.streams.get(stream)
    return int(call("hipStreamGetDevice", stream)) if found is None else found


def require_stream(stream: int, device: int) -> None:
    """Refuse a stream of another device."""
    found = stream_device(stream)
    if found is not None and found != device:
        required = f"stream must be one of device {device}, where the arrays are"
        raise ValueError(sentence(required, f"{stream:#x}, one of device {found}"))


def wait_for(waiting: int, stream: int) -> None:
    """Order what comes next on one stream behind what is on another, both of the current device."""
    if not (alive(stream) and alive(waiting)):
        call("hipDeviceSynchronize")
        return
    event = call("hipEventCreateWithFlags", _EVENT_DISABLE_TIMING)
    try:
        call("hipEventRecord", event, stream)
        call("hipStreamWaitEvent", waiting, event, 0)
    finally:
        call("hipEventDestroy", event)


def wait_across(waiting_device: int, waiting: int, device: int, stream: int) -> None:
    """Order what comes next on a stream of one device behind what is on a stream of another."""
    with on_device(device):
        event = call("hipEventCreateWithFlags", _EVENT_DISABLE_TIMING)
        try:
            call("hipEventRecord", event, stream)
            with on_device(waiting_device):
                call("hipStreamWaitEvent", waiting, event, 0)
        finally:
            call("hipEventDestroy", event)


def borrow_stream(device: int) -> int:
    """Take a stream that does not wait for the default stream, made or given back before."""
    rt = runtime()
    with suppress(IndexError):
        return rt.idle_streams[device].pop()
    with on_device(device):
        handle = int(call("hipStreamCreateWithFlags", _STREAM_NON_BLOCKING))
    rt.streams[handle] = device
    return handle


def return_stream(stream: int, device: int) -> None:
    """Give a stream back. It is never destroyed, so that what refers to it stays right. For finalizers."""
    rt = opened()
    if rt is not None:
        rt.idle_streams[device].append(stream)


def borrow_event(device: int, timing: bool) -> Any:
    """Take an event, made or given back before."""
    with suppress(IndexError):
        return runtime().idle_events[device, timing].pop()
    with on_device(device):
        return call("hipEventCreateWithFlags", 0 if timing else _EVENT_DISABLE_TIMING)


def return_event(event: Any, device: int, timing: bool) -> None:
    """Give an event back. For finalizers, which may run anywhere: no HIP call is made."""
    rt = opened()
    if rt is not None:
        rt.idle_events[device, timing].append(event)


def event_done(event: Any) -> bool:
    """Whether an event has come."""
    return _done("hipEventQuery", event)


def stream_done(stream: int) -> bool:
    """Whether everything on a stream is done."""
    return _done("hipStreamQuery", stream)


def _done(name: str, what: Any) -> bool:
    hip = runtime().hip
    error = getattr(hip, name)(what)[0]
    if int(error) == _HIP_SUCCESS:
        return True
    if int(error) == _NOT_READY:
        hip.hipGetLastError()
        return False
    raise failure(name, error)


# ---- launches --------------------------------------------------------------------------------------


_streams: dict[int, Any] = {}


def launch(function: Any, workgroups: int, threads: int, stream: int, extra: Any) -> None:
    """Launch a kernel of the current device with a prepared argument block."""
    rt = runtime()
    handle = _streams.get(stream)
    if handle is None:
        handle = _streams[stream] = rt.hip.ihipStream_t.fromObj(stream)
    error = rt.hip.hipModuleLaunchKernel(function, workgroups, 1, 1, threads, 1, 1, 0, handle, None, extra)[0]
    if error:
        found = failure("hipModuleLaunchKernel", error)
        if alive(stream):
            require_stream(stream, current_device())
            raise found
        report = "\n".join(filter(None, (found.report, _unknown_stream(stream))))
        raise HipError(found.call, found.code, found.name, report)


# ---- copies ----------------------------------------------------------------------------------------


def copy(kind: str, dst: int, src: int, nbytes: int, stream: int) -> None:
    """Copy bytes in stream order. `kind` is HIP's, such as ``"HostToDevice"``."""
    if nbytes:
        enum = getattr(runtime().hip.hipMemcpyKind, "hipMemcpy" + kind)
        call("hipMemcpyAsync", dst, src, nbytes, enum, stream)


def copy_rows(
    kind: str, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, rows: int, stream: int
) -> None:
    """Copy rows of `width` bytes in stream order, each side with a pitch of its own."""
    if rows == 1 or dst_pitch == src_pitch == width:
        copy(kind, dst, src, width * rows, stream)
    elif rows and width:
        enum = getattr(runtime().hip.hipMemcpyKind, "hipMemcpy" + kind)
        call("hipMemcpy2DAsync", dst, dst_pitch, src, src_pitch, width, rows, enum, stream)


def copy_between(dst: int, dst_device: int, src: int, src_device: int, nbytes: int, stream: int) -> None:
    """Copy bytes from one device to another in stream order."""
    if nbytes:
        call("hipMemcpyPeerAsync", dst, dst_device, src, src_device, nbytes, stream)


def peer_access(device: int, peer: int) -> bool:
    """Whether a device reaches the memory of another directly; lets it, if so."""
    rt = runtime()
    known = rt.peers.get((device, peer))
    if known is None:
        known = bool(call("hipDeviceCanAccessPeer", device, peer))
        if known:
            with on_device(device):
                error = rt.hip.hipDeviceEnablePeerAccess(peer, 0)[0]
                if int(error) == _PEER_ACCESS_ALREADY_ENABLED:
                    rt.hip.hipGetLastError()
                elif int(error) != _HIP_SUCCESS:
                    raise failure("hipDeviceEnablePeerAccess", error)
        rt.peers[device, peer] = known
    return known


def clear(dst: int, nbytes: int, stream: int) -> None:
    """Set bytes to zero in stream order."""
    if nbytes:
        call("hipMemsetAsync", dst, 0, nbytes, stream)


def clear_rows(dst: int, pitch: int, width: int, rows: int, stream: int) -> None:
    """Set `width` bytes of each row to zero in stream order."""
    if rows and width:
        call("hipMemset2DAsync", dst, pitch, 0, width, rows, stream)


# ---- memory ----------------------------------------------------------------------------------------


class Block:
    """A piece of device memory and the streams that use it.

    Work on it is ordered across streams: `reading` and `writing` make a stream wait for what it depends on.
    It goes back to its pool when the last array that uses it is gone.
    """

    __slots__ = (
        "__weakref__",
        "device",
        "exports",
        "home",
        "nbytes",
        "owner",
        "ptr",
        "readers",
        "size",
        "writer",
    )

    def __init__(self, ptr: int, nbytes: int, size: int, device: int, stream: int, owner: object = None):
        self.ptr = ptr
        self.nbytes = nbytes
        self.size = size  # of the allocation; 0 where the memory is not ours
        self.device = device
        self.home = stream  # the stream whose order allocation and reuse follow
        self.writer = stream  # the stream of the last write
        self.readers: set[int] = set()  # other streams that have read since
        self.owner = owner  # keeps foreign memory alive
        self.exports = 0  # views handed to other libraries

    def reading(self, stream: int) -> None:
        """Order a read on `stream` behind the last write."""
        if stream != self.writer and stream not in self.readers:
            require_stream(stream, self.device)
            wait_for(stream, self.writer)
            self.readers.add(stream)

    def writing(self, stream: int) -> None:
        """Order a write on `stream` behind the last write and every read since."""
        if stream != self.writer:
            require_stream(stream, self.device)
            wait_for(stream, self.writer)
        if self.readers:
            for reader in tuple(self.readers):
                if reader != stream:
                    wait_for(stream, reader)
            self.readers = set()
        self.writer = stream

    def stream(self) -> int:
        """The stream to read on without more ado: that of the last write, if it exists still."""
        if not alive(self.writer):
            call("hipDeviceSynchronize")
            self.writer = 0
        return self.writer

    def release(self) -> None:
        """Give the memory back. Ordered behind all work on it."""
        if self.ptr:
            streams = {self.writer, *self.readers}
            returned = (self.ptr, self.size, self.home, streams, self.owner)
            self.ptr, self.owner = 0, None
            if opened() is not None:
                runtime().pools[self.device].returned.append(returned)

    def __del__(self) -> None:
        self.release()


class Pool:
    """Device memory, kept for reuse in stream order.

    A block freed on a stream serves that stream again at once: whatever comes next there comes behind
    the work that used it. HIPGEMM_POOL=off allocates and frees exactly, for checking.
    """

    def __init__(self, device: int):
        self._device = device
        self.caching = os.environ.get("HIPGEMM_POOL", "on").lower() not in ("off", "0")
        self._lock = threading.Lock()
        self._free: dict[int, dict[int, list[int]]] = {}  # by stream, then by size
        self._kept: list[tuple[list[Any], object]] = []
        self._met: set[int] = {0}  # streams that are known to be of this device
        # Finalizers only append here: they may run anywhere, even while this thread holds the lock.
        self.returned: deque[tuple[int, int, int, set[int], object]] = deque()
        self.limit = _bytes_of("HIPGEMM_MEMORY_LIMIT")
        self.cache_limit = _bytes_of("HIPGEMM_CACHE_LIMIT")
        self.bytes = 0  # allocated from HIP
        self.cached = 0  # of these, not in use
        self.peak = 0  # most bytes in use
        self.requests = 0  # blocks given out
        self.mallocs = 0  # calls of hipMalloc that gave memory

    def allocate(self, nbytes: int, stream: int) -> Block:
        """Return a block of at least `nbytes`, usable on `stream` at once."""
        size = _round_up(nbytes) if self.caching else max(nbytes, 1)
        try:
            with self._lock:
                ptr = self._obtain(size, stream)
        except _OutOfMemory as first:
            gc.collect()  # arrays in cycles of references; without the lock, since finalizers run
            with self._lock:
                ptr = self._last_resort(nbytes, size, first.cached)
        return Block(ptr, nbytes, size, self._device, stream)

    def keep(self, owner: object, stream: int) -> None:
        """Keep an object alive until the work queued on `stream` so far is done."""
        with self._lock:
            self._keep(owner, {stream})

    def trim(self, keep: int = 0) -> int:
        """Return cached memory to HIP, all but at most `keep` bytes. How many went."""
        with self._lock:
            before = self.bytes
            self._drain()
            self._shrink(keep)
            return before - self.bytes

    def settle(self) -> None:
        """Take in what finalizers have returned."""
        with self._lock:
            self._drain()

    def _obtain(self, size: int, stream: int) -> int:
        if self.returned or self._kept:
            self._drain()
        if stream not in self._met:
            require_stream(stream, self._device)
            self._met.add(stream)
        sizes = self._free.get(stream)
        cached = (sizes.get(size) if sizes else None) or self._inherit(stream, size)
        if cached:
            ptr = cached.pop()
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

    def _last_resort(self, nbytes: int, size: int, cached: int) -> int:
        self._drain()
        cached += self.cached
        self._shrink(0)
        ptr = self._malloc(size)
        if not ptr:
            raise self._out_of_memory(nbytes, size, cached)
        self._count()
        return ptr

    def _malloc(self, size: int) -> int:
        """Return memory from HIP, or 0 where there is too little."""
        if self.limit is not None and self.bytes + size > self.limit:
            return 0
        with on_device(self._device):
            error, pointer = get_memory(lambda ptr: self._put_new(size, ptr), "hipMalloc", size)
            if error == _OUT_OF_MEMORY:
                runtime().hip.hipGetLastError()
                return 0
            if error != _HIP_SUCCESS:
                raise failure(f"hipMalloc({size} bytes on device {self._device})", error)
        self.bytes += size
        self.mallocs += 1
        return pointer

    def _put_new(self, size: int, ptr: int) -> None:
        self.bytes += size
        self._put(0, size, ptr)

    def _put(self, stream: int, size: int, ptr: int) -> None:
        self._free.setdefault(stream, {}).setdefault(size, []).append(ptr)
        self.cached += size

    def _out_of_memory(self, nbytes: int, size: int, cached: int) -> HipError:
        free, total = memory_info(self._device)
        report = (
            f"asked: {nbytes} bytes" + (f", rounded up to {size}" if size != nbytes else "") + "\n"
            f"free: {free} of {total} on device {self._device}\n"
            f"cached: {cached} by hipgemm, which went back before the last try; "
            f"{self.bytes} bytes are in its arrays"
        )
        if self.limit is not None and self.bytes + size > self.limit:
            report += f"\nlimit: {self.limit} bytes for hipgemm"
        name = f"hipMalloc({size} bytes on device {self._device})"
        return HipError(name, _OUT_OF_MEMORY, "hipErrorOutOfMemory", report)

    def _hip_free(self, ptr: int, size: int) -> None:
        self.bytes -= size
        with on_device(self._device):
            call("hipFree", ptr)  # waits for the device

    def _shrink(self, keep: int) -> None:
        """Give cached memory back, the largest first, until at most `keep` bytes are left."""
        if self.cached <= keep:
            return
        found = [(size, stream) for stream, sizes in self._free.items() for size in sizes]
        for size, stream in sorted(found, reverse=True):
            blocks = self._free[stream][size]
            while blocks and self.cached > keep:
                ptr = blocks.pop()
                self.cached -= size
                self._hip_free(ptr, size)
        self._free = {
            stream: {size: blocks for size, blocks in sizes.items() if blocks}
            for stream, sizes in self._free.items()
        }

    def _drain(self) -> None:
        while self.returned:
            ptr, size, home, streams, owner = self.returned.popleft()
            if size == 0:
                self._keep(owner, streams)
            elif self.caching:
                try:
                    self._gather(home, streams)
                finally:  # a fault that surfaces here ended all work there was
                    self._put(home, size, ptr)
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

    def _gather(self, home: int, streams: set[int]) -> None:
        """Put the home stream behind every other stream that used a block."""
        for stream in streams:
            if stream != home:
                with on_device(self._device):
                    wait_for(home, stream)

    def _inherit(self, stream: int, size: int) -> list[int] | None:
        """Take over what streams that are gone have left, before more is allocated."""
        with on_device(self._device):
            gone = [other for other in self._free if other != stream and not alive(other)]
            if not gone:
                return None
            call("hipDeviceSynchronize")
        mine = self._free.setdefault(stream, {})
        for other in gone:
            for other_size, pointers in self._free.pop(other).items():
                mine.setdefault(other_size, []).extend(pointers)
        self._met.difference_update(gone)
        return mine.get(size)

    def _keep(self, owner: object, streams: set[int]) -> None:
        events: list[Any] = []
        try:
            with on_device(self._device):
                for stream in streams:
                    if not alive(stream):
                        call("hipDeviceSynchronize")
                        continue
                    events.append(borrow_event(self._device, False))
                    call("hipEventRecord", events[-1], stream)
        finally:
            self._kept.append((events, owner))

    def _all_done(self, events: list[Any]) -> bool:
        """Whether all events have come; those that have are given back."""
        while events:
            if not event_done(events[-1]):
                return False
            return_event(events.pop(), self._device, False)
        return True


class _OutOfMemory(Exception):
    """Before the last resort, with what was cached then."""

    def __init__(self, cached: int):
        super().__init__()
        self.cached = cached


def memory_info(device: int) -> tuple[int, int]:
    """Free bytes and all bytes of a device."""
    with on_device(device):
        error, free, total = runtime().hip.hipMemGetInfo()
        if int(error) != _HIP_SUCCESS:
            raise failure("hipMemGetInfo", error)
        return int(free), int(total)


def _bytes_of(variable: str) -> int | None:
    """Read a number of bytes, with K, M or G behind it or not, from the environment."""
    text = os.environ.get(variable, "").strip().upper().removesuffix("B").removesuffix("I")
    if not text:
        return None
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1], 0)
    digits = text[:-1] if unit else text
    if not (digits.isascii() and digits.isdigit()):
        required = f"{variable} must be a number of bytes, such as 500000000, 512M or 16G"
        raise ValueError(sentence(required, repr(os.environ[variable])))
    return int(digits) << unit


def _round_up(nbytes: int) -> int:
    """Round to an eighth of a power of two, at least 512 bytes: few sizes, little waste.

    >>> [_round_up(n) for n in (0, 512, 513, 9000, 2**20 + 1)]
    [512, 512, 1024, 9216, 1179648]
    """
    step = max(512, 1 << max(0, (max(nbytes, 1) - 1).bit_length() - 4))
    return max(1, -(-nbytes // step)) * step


def pool(device: int) -> Pool:
    """The pool of a device."""
    found: Pool = runtime().pools[device]
    return found


def allocate(nbytes: int, device: int, stream: int) -> Block:
    """Return device memory that is ready for use on `stream`."""
    return pool(device).allocate(nbytes, stream)


def prepare(what: Callable[[Runtime], None]) -> None:
    """Have something done to the runtime as soon as it is opened."""
    _runtime.at_open.append(what)


prepare(lambda rt: rt.pools.extend(map(Pool, range(rt.devices))))
