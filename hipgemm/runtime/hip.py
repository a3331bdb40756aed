"""HIP as the rest of the package uses it: errors, streams, devices, launches, copies, memory."""

from __future__ import annotations

import ctypes
import operator
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..errors import HipError, Reason, fault, read, sentence
from . import loader as _runtime
from .loader import EMULATOR, Runtime, launch_extra, opened, runtime

__all__ = ["EMULATOR", "Runtime", "launch_extra", "opened", "runtime"]  # what is handed on

_HIP_SUCCESS = 0
_NOT_READY = 600
_SLICE = 50  # milliseconds that the emulator works before signal handlers may run
_BOUNDED_WAITS = {
    "hipStreamSynchronize": "hipgemm_emulator_wait_stream",
    "hipEventSynchronize": "hipgemm_emulator_wait_event",
    "hipDeviceSynchronize": "hipgemm_emulator_wait_device",
}
_PEER_ACCESS_ALREADY_ENABLED = 704
_EVENT_DISABLE_TIMING = 2
_STREAM_NON_BLOCKING = 1
_PER_THREAD = 2  # HIP's name for each thread's own stream; 0 and 1 are the default one


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
    """Call HIP; raise on error, else return what it returned besides the code: one thing, or a tuple."""
    result = getattr(runtime().hip, name)(*args)
    error = result[0]
    if int(error) != _HIP_SUCCESS:
        raise failure(name, error)
    return result[1] if len(result) == 2 else result[1:]


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


def read_device(device: Any) -> int | Reason:
    """The number of a device argument, None for the current one; or what is wrong with it."""
    if device is None:
        return current_device()
    if isinstance(device, bool) or not hasattr(device, "__index__"):
        return Reason(TypeError, "device", sentence("device must be an int", type(device).__qualname__))
    number, count = operator.index(device), runtime().devices
    if not 0 <= number < count:
        return Reason(ValueError, "device", sentence(f"device must be 0 to {count - 1}", number))
    return number


def device_number(function: str, device: Any) -> int:
    """Read a device argument."""
    return read(function, read_device(device))


class on_device:
    """Make a device current, and the former one again afterwards: a context manager."""

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


def _described(name: str, kind: str, what: int) -> Any:
    """Have HIP describe something: hip-python 10 returns the description, 7 fills it in."""
    try:
        return call(name, what)
    except TypeError:
        found = getattr(runtime().hip, kind)()
        call(name, found, what)
        return found


def properties(device: int) -> Any:
    """HIP's properties of a device."""
    return _described("hipGetDeviceProperties", "hipDeviceProp_t", device)


def device_of(ptr: int) -> int:
    """The device that holds an address."""
    return int(_described("hipPointerGetAttributes", "hipPointerAttribute_t", ptr).device)


def arch(device: int) -> str:
    """The architecture of a device, such as ``gfx950``."""
    known = runtime().archs
    if device not in known:
        name = properties(device).gcnArchName
        known[device] = (name.decode() if isinstance(name, bytes) else str(name)).split(":")[0]
    return known[device]


def read_stream(stream: Any) -> int | Reason:
    """The handle that a stream argument means, 0 for the default stream; or what is wrong with it.

    >>> print(read_stream(None), read_stream(1), read_stream(2))
    0 0 stream must be one that all threads mean alike; got the per-thread stream (2); make a hipgemm.Stream
    """
    if stream is None:
        return 0
    try:
        handle = -1 if isinstance(stream, (str, bytes, float)) else int(stream)
    except (TypeError, ValueError):
        handle = -1
    if handle < 0:
        required = "stream must be None, a stream handle, or convertible to one by int()"
        return Reason(TypeError, "stream", sentence(required, repr(stream)))
    if handle == _PER_THREAD:
        required, got = "stream must be one that all threads mean alike", f"the per-thread stream ({handle})"
        return Reason(ValueError, "stream", sentence(required, got, "make a hipgemm.Stream"))
    return handle if handle > _PER_THREAD else 0


_asking = threading.local()  # which function was given a stream last, by thread


def known_stream(stream: Any) -> int | Reason:
    """Do so, and see that HIP knows the stream."""
    handle = read_stream(stream)
    if isinstance(handle, Reason) or handle in _streams or exists(handle):
        return handle
    return Reason(ValueError, "stream", _unknown_stream(handle))


def stream_handle(function: str, stream: Any) -> int:
    """Read a stream argument: None, an int, or anything with int()."""
    if stream is None:
        return 0
    _asking.function = function
    return read(function, known_stream(stream))


def _unknown_stream(handle: int) -> str:
    return sentence("stream must be one that exists", f"the unknown handle {handle:#x}", "was it destroyed?")


after_wait: list[Callable[[], None]] = []  # what looks at things that only a wait brings to light


def block(name: str, *what: Any) -> None:
    """Call a function of HIP that waits. On the emulator, which works meanwhile, signals are handled soon."""
    rt = runtime()
    if rt.emulator is None:
        call(name, *what)
        return
    function = getattr(rt.handle, _BOUNDED_WAITS[name])
    handles = [ctypes.c_void_p(int(x)) for x in what]
    while (code := function(*handles, _SLICE)) == _NOT_READY:
        pass  # between two bytecodes Python runs signal handlers
    if code:
        raise failure(name, code)


def wait(name: str, *what: Any) -> None:
    """Wait, and raise what only a wait brings to light."""
    block(name, *what)
    for look in after_wait:
        look()


def synchronize(stream: int = 0) -> None:
    """Wait for a stream."""
    wait("hipStreamSynchronize", stream)


def quiesce(stream: int) -> None:
    """Wait for a stream while another error is on its way: that one is the one to tell."""
    with suppress(HipError):
        synchronize(stream)


def alive(stream: int) -> bool:
    """Whether a stream that was used may be used again; else the device is waited for in its stead.

    CUDA crashes on a stream that is gone, so under the bridge no other library's is touched again.
    """
    rt = runtime()
    return stream <= _PER_THREAD or stream in rt.streams or (rt.kind != "bridge" and exists(stream))


def exists(stream: int) -> bool:
    """Whether HIP knows a stream (still)."""
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
        function = getattr(_asking, "function", "hipgemm")
        raise fault(ValueError, function, required, f"{stream:#x}, one of device {found}")


def wait_for(waiting: int, stream: int) -> None:
    """Order what comes next on one stream behind what is on another, both of the current device."""
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


def done(name: str, what: Any) -> bool:
    """Whether all is done that a function of HIP is asked about: hipEventQuery or hipStreamQuery."""
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
            block("hipDeviceSynchronize")
            self.writer = 0
        return self.writer

    def release(self) -> None:
        """Give the memory back. Ordered behind all work on it."""
        if self.ptr:
            streams = {self.writer, *self.readers}
            returned = (self.ptr, self.size, self.home, streams, self.owner)
            self.ptr, self.owner = 0, None
            rt = opened()
            if rt is not None:
                rt.pools[self.device].returned.append(returned)

    def __del__(self) -> None:
        self.release()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("memory of a device cannot be pickled, nor have two owners")


def memory_info(device: int) -> tuple[int, int]:
    """Free bytes and all bytes of a device."""
    with on_device(device):
        free, total = call("hipMemGetInfo")
        return int(free), int(total)


def allocate(nbytes: int, device: int, stream: int) -> Block:
    """Return device memory that is ready for use on `stream`."""
    block: Block = runtime().pools[device].allocate(nbytes, stream)
    return block


def prepare(what: Callable[[Runtime], None]) -> None:
    """Have something done to the runtime as soon as it is opened."""
    _runtime.at_open.append(what)
