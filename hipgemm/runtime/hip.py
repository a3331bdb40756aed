"""The HIP functions that the package uses: errors, streams, devices, launches, copies, memory."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import HipError, Reason, fault, requirement, shown, value_or_raise
from . import loader as _runtime
from .loader import EMULATOR, Runtime, launch_extra, opened, runtime

__all__ = ["EMULATOR", "Runtime", "launch_extra", "opened", "runtime"]  # re-exported

_HIP_SUCCESS = 0
_NOT_READY = 600
_SLICE_MS = 50  # the emulator returns from a wait this often, so that signal handlers run
_BOUNDED_WAITS = {
    "hipStreamSynchronize": "hipgemm_emulator_wait_stream",
    "hipEventSynchronize": "hipgemm_emulator_wait_event",
    "hipDeviceSynchronize": "hipgemm_emulator_wait_device",
}
_PEER_ACCESS_ALREADY_ENABLED = 704
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_PER_THREAD = 2  # hipStreamPerThread; 0 and 1 (hipStreamLegacy) are the default stream


# ---- errors ----------------------------------------------------------------------------------------


def failure(call: str, error: Any) -> HipError:
    """Make the exception for an error code, and clear HIP's last error."""
    rt = runtime()
    report = rt.report()
    with suppress(Exception):
        rt.hip.hipGetLastError()
    if type(error) is int:
        with suppress(ValueError):
            error = rt.hip.hipError_t(error)
    return HipError(call, int(error), getattr(error, "name", "unknown error"), report)


def call(name: str, *args: Any) -> Any:
    """Call HIP and raise on error; return its results without the error code: one value or a tuple."""
    result = getattr(runtime().hip, name)(*args)
    error = result[0]
    if int(error) != _HIP_SUCCESS:
        raise failure(name, error)
    return result[1] if len(result) == 2 else result[1:]


def allocate_raw(on_interrupt: Callable[[int], None], name: str, nbytes: int, *flags: int) -> tuple[int, int]:
    """Call an allocation function of HIP; return the error code and the address.

    A signal handler that raises runs after the call, and the address would be lost: it is passed to
    `on_interrupt`. hip-python is bypassed because it runs Python code before it returns.
    """
    function, pointer = getattr(runtime().handle, name), ctypes.c_void_p()
    result, size = ctypes.byref(pointer), ctypes.c_size_t(nbytes)
    try:
        error = function(result, size, *flags)
    except BaseException:
        if pointer.value:
            on_interrupt(pointer.value)
        raise
    return error, pointer.value or 0


# ---- devices and streams ---------------------------------------------------------------------------


def current_device() -> int:
    """The calling thread's device."""
    return 0 if runtime().devices == 1 else int(call("hipGetDevice"))


def parse_device(device: Any) -> int | Reason:
    """Parse a device argument, None for the current device; return a reason if it is invalid."""
    if device is None:
        return current_device()
    if isinstance(device, bool) or not hasattr(device, "__index__"):
        return Reason(TypeError, "device", requirement("device must be an int", type(device).__qualname__))
    number, count = operator.index(device), runtime().devices
    if not 0 <= number < count:
        return Reason(ValueError, "device", requirement(f"device must be 0 to {count - 1}", number))
    return number


def device_number(function: str, device: Any) -> int:
    """Parse a device argument; raise if it is invalid."""
    return value_or_raise(function, parse_device(device))


class on_device:
    """A context manager that makes a device current and then restores the previous one."""

    __slots__ = ("_before", "_device")

    def __init__(self, device: int):
        self._device = device

    def __enter__(self) -> None:
        self._before = current_device()
        if self._before != self._device:
            call("hipSetDevice", self._device)

    def __exit__(self, *_: object) -> None:
        if self._before != self._device:
            call("hipSetDevice", self._before)


def _query_struct(name: str, kind: str, what: int) -> Any:
    """Call a HIP function that fills a struct: hip-python 10 returns it, 7 takes it as an argument."""
    try:
        return call(name, what)
    except TypeError:
        found = getattr(runtime().hip, kind)()
        call(name, found, what)
        return found


def properties(device: int) -> Any:
    """HIP's properties of a device."""
    return _query_struct("hipGetDeviceProperties", "hipDeviceProp_t", device)


def device_of(ptr: int) -> int:
    """The device that holds an address."""
    return int(_query_struct("hipPointerGetAttributes", "hipPointerAttribute_t", ptr).device)


def arch(device: int) -> str:
    """The architecture of a device, such as ``gfx950``."""
    known = runtime().archs
    if device not in known:
        name = properties(device).gcnArchName
        known[device] = (name.decode() if isinstance(name, bytes) else str(name)).split(":")[0]
    return known[device]


def parse_stream(stream: Any) -> int | Reason:
    """Parse a stream argument into a handle, 0 for the default stream; return a reason if it is invalid.

    >>> print(parse_stream(None), parse_stream(1), parse_stream(2))
    0 0 stream must be the same for all threads; got the per-thread stream (2); create a hipgemm.Stream
    """
    if stream is None:
        return 0
    try:
        handle = -1 if isinstance(stream, (bool, str, bytes, float)) else int(stream)
    except (TypeError, ValueError):
        handle = -1
    if handle < 0:
        required = "stream must be None, a stream handle, or convertible to one by int()"
        return Reason(TypeError, "stream", requirement(required, shown(stream)))
    if handle == _PER_THREAD:
        required, got = "stream must be the same for all threads", f"the per-thread stream ({handle})"
        return Reason(ValueError, "stream", requirement(required, got, "create a hipgemm.Stream"))
    return handle if handle > _PER_THREAD else 0


_caller = threading.local()  # the function that last got a stream argument, for messages


def existing_stream(stream: Any) -> int | Reason:
    """Parse a stream argument, and check that the stream exists."""
    handle = parse_stream(stream)
    if isinstance(handle, Reason) or exists(handle):
        return handle
    return Reason(ValueError, "stream", _unknown_stream(handle))


def stream_handle(function: str, stream: Any) -> int:
    """Parse a stream argument: None, an int, or an object with ``__int__``. Raise if it is invalid."""
    if stream is None:
        return 0
    _caller.function = function
    return value_or_raise(function, existing_stream(stream))


def _unknown_stream(handle: int) -> str:
    return requirement("stream must exist", f"the unknown handle {handle:#x}", "was it destroyed?")


after_wait_hooks: list[Callable[[], None]] = []  # raise errors that kernels reported


def block(name: str, *what: Any) -> None:
    """Call a blocking HIP function. On the emulator, signal handlers run during the wait."""
    rt = runtime()
    if rt.emulator is None:
        call(name, *what)
        return
    function = getattr(rt.handle, _BOUNDED_WAITS[name])
    handles = [ctypes.c_void_p(int(x)) for x in what]
    while (code := function(*handles, _SLICE_MS)) == _NOT_READY:
        pass  # between two bytecodes Python runs signal handlers
    if code:
        raise failure(name, code)


def wait(name: str, *what: Any) -> None:
    """Wait, and raise deferred device errors."""
    block(name, *what)
    for hook in after_wait_hooks:
        hook()


def synchronize(stream: int = 0) -> None:
    """Wait for a stream."""
    wait("hipStreamSynchronize", stream)


def quiesce(stream: int) -> None:
    """Wait for a stream while another exception is being raised, and suppress errors of the wait."""
    with suppress(HipError):
        synchronize(stream)


def alive(stream: int) -> bool:
    """Whether a stream that was used before may be used again. If not, callers synchronize the device.

    CUDA crashes on a destroyed stream, so under the bridge only hipgemm's own streams are used again.
    """
    rt = runtime()
    return stream <= _PER_THREAD or stream in rt.streams or (rt.kind != "bridge" and exists(stream))


def exists(stream: int) -> bool:
    """Whether a stream exists."""
    if stream <= _PER_THREAD or stream in runtime().streams:
        return True
    hip = runtime().hip
    if int(hip.hipStreamGetFlags(stream)[0]) == _HIP_SUCCESS:
        return True
    hip.hipGetLastError()
    return False


def stream_device(stream: int) -> int | None:
    """The device of a stream; None for the default streams, and if there is only one device."""
    rt = runtime()
    if stream <= _PER_THREAD or rt.devices == 1:
        return None
    found = rt.streams.get(stream)
    return int(call("hipStreamGetDevice", stream)) if found is None else found


def require_stream(stream: int, device: int) -> None:
    """Raise if a stream belongs to another device."""
    found = stream_device(stream)
    if found is not None and found != device:
        required = f"stream must be a stream of device {device}, where the arrays are"
        function = getattr(_caller, "function", "hipgemm")
        raise fault(ValueError, function, required, f"{stream:#x} of device {found}")


def wait_for(waiting: int, stream: int) -> None:
    """Make one stream wait for the work queued on another. Both belong to the current device."""
    if not (alive(stream) and alive(waiting)):
        block("hipDeviceSynchronize")
        return
    event = call("hipEventCreateWithFlags", _EVENT_DISABLE_TIMING)
    try:
        call("hipEventRecord", event, stream)
        call("hipStreamWaitEvent", waiting, event, 0)
    finally:
        call("hipEventDestroy", event)


def wait_across(waiting_device: int, waiting: int, device: int, stream: int) -> None:
    """Make a stream of one device wait for the work queued on a stream of another."""
    with on_device(device):
        event = call("hipEventCreateWithFlags", _EVENT_DISABLE_TIMING)
        try:
            call("hipEventRecord", event, stream)
            with on_device(waiting_device):
                call("hipStreamWaitEvent", waiting, event, 0)
        finally:
            call("hipEventDestroy", event)


def acquire_stream(device: int) -> int:
    """Return a released or new stream that does not synchronize with the default stream."""
    rt = runtime()
    with suppress(IndexError):
        return rt.idle_streams[device].pop()
    with on_device(device):
        handle = int(call("hipStreamCreateWithFlags", _STREAM_NON_BLOCKING))
    rt.streams[handle] = device
    return handle


def release_stream(stream: int, device: int) -> None:
    """Release a stream for reuse. It is never destroyed, so references to it stay valid. For finalizers."""
    rt = opened()
    if rt is not None:
        rt.idle_streams[device].append(stream)


def acquire_event(device: int, timing: bool) -> Any:
    """Return a released or new event."""
    with suppress(IndexError):
        return runtime().idle_events[device, timing].pop()
    with on_device(device):
        return call("hipEventCreateWithFlags", 0 if timing else _EVENT_DISABLE_TIMING)


def release_event(event: Any, device: int, timing: bool) -> None:
    """Release an event for reuse. For finalizers, which may run anywhere: makes no HIP call."""
    rt = opened()
    if rt is not None:
        rt.idle_events[device, timing].append(event)


def done(name: str, what: Any) -> bool:
    """Whether a stream or event is complete, by hipStreamQuery or hipEventQuery."""
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
    """Copy rows of `width` bytes in stream order. Each side has its own pitch."""
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
    """Whether a device can access the memory of another; enables peer access if so."""
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
    """A block of device memory, and the streams that use it.

    Work on it is ordered across streams: `begin_read` and `begin_write` make a stream wait for what it
    depends on. The block returns to its pool when the last array that uses it is deleted.
    """

    __slots__ = (
        "__weakref__",
        "allocated_on",
        "device",
        "exports",
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
        self.size = size  # of the allocation; 0 for memory of another library
        self.device = device
        self.allocated_on = stream  # the stream that orders allocation and reuse
        self.writer = stream  # the stream of the last write
        self.readers: set[int] = set()  # other streams that have read since
        self.owner = owner  # keeps another library's memory alive
        self.exports = 0  # views exported to other libraries

    def begin_read(self, stream: int) -> None:
        """Order a read on `stream` after the last write."""
        if stream != self.writer and stream not in self.readers:
            require_stream(stream, self.device)
            wait_for(stream, self.writer)
            self.readers.add(stream)

    def begin_write(self, stream: int) -> None:
        """Order a write on `stream` after the last write and every read since."""
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
        """The stream that can read without waiting: that of the last write, if it still exists."""
        if not alive(self.writer):
            block("hipDeviceSynchronize")
            self.writer = 0
        return self.writer

    def release(self) -> None:
        """Return the memory to its pool, ordered after all work on it."""
        if self.ptr:
            streams = {self.writer, *self.readers}
            freed = (self.ptr, self.size, self.allocated_on, streams, self.owner)
            self.ptr, self.owner = 0, None
            rt = opened()
            if rt is not None:
                rt.pools[self.device].freed.append(freed)

    def __del__(self) -> None:
        self.release()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("device memory cannot be pickled or copied")


def memory_info(device: int) -> tuple[int, int]:
    """Free and total bytes of a device."""
    with on_device(device):
        free, total = call("hipMemGetInfo")
        return int(free), int(total)


def allocate(nbytes: int, device: int, stream: int) -> Block:
    """Allocate device memory that is ready for use on `stream`."""
    block: Block = runtime().pools[device].allocate(nbytes, stream)
    return block


def on_open(hook: Callable[[Runtime], None]) -> None:
    """Register a function to call with the runtime when it is opened."""
    _runtime.open_hooks.append(hook)
