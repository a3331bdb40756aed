"""The HIP functions that the package uses: errors, streams, devices, launches, copies, memory."""

from __future__ import annotations

import ctypes
import operator
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import filterfalse
from numbers import Integral, Number
from pathlib import Path
from typing import Any, cast

import numpy as np

from ..errors import HipError, Reason, fault, requirement, shown, value_or_raise
from . import loader as _runtime
from .loader import EMULATOR, Runtime, launch_extra, opened, runtime
from .ownership import Allocation, Owner, Registry
from .rocm import dotted

__all__ = ["EMULATOR", "Runtime", "launch_extra", "opened", "runtime"]  # re-exported

_HIP_SUCCESS = 0
_NOT_READY = 600
_NO_ERRORS = frozenset((_HIP_SUCCESS, _NOT_READY))
_SLICE_MS = 20  # the emulator returns from a wait this often, so that signal handlers run
_BOUNDED_WAITS = {
    "hipStreamSynchronize": "hipgemm_emulator_wait_stream",
    "hipEventSynchronize": "hipgemm_emulator_wait_event",
    "hipDeviceSynchronize": "hipgemm_emulator_wait_device",
}
_CAPTURE_UNSUPPORTED, _CAPTURE_INVALIDATED = 900, 901
_ATTEMPTS = 10
_PAUSE = 1e-4  # seconds
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


# ---- devices and streams ---------------------------------------------------------------------------


def current_device() -> int:
    """The calling thread's device."""
    return 0 if runtime().devices == 1 else int(call("hipGetDevice"))


def parse_device(device: Any) -> int | Reason:
    """Parse a device argument, None for the current device; return a reason if it is invalid."""
    if device is None:
        return current_device()
    try:
        number, count = -1 if isinstance(device, bool) else operator.index(device), runtime().devices
    except TypeError:
        number = None
    if number is None or isinstance(device, bool):
        return Reason(TypeError, "device", requirement("device must be an int", type(device).__qualname__))
    if not 0 <= number < count:
        return Reason(ValueError, "device", requirement(f"device must be 0 to {count - 1}", number))
    return number


def device_number(function: str, device: Any) -> int:
    """Parse a device argument; raise if it is invalid."""
    return value_or_raise(function, parse_device(device))


def on_device(device: int) -> AbstractContextManager[object]:
    """A context manager that makes a device current and then restores the previous one."""
    before = current_device()
    if before == device:
        return _SAME_DEVICE
    token = _Token()
    try:
        token.restore = _Restore(token, partial(runtime().restore_device, before))
        return _with(partial(runtime().set_device, device), token.format)
    except BaseException:
        del token  # not when the traceback is gone
        raise


class _With:
    """A context manager of two functions.

    Restoring takes no instruction of Python's, which a signal handler could come before: what a `with`
    statement holds is `__exit__`, a method of a `_Token`, and when that is gone C code calls HIP.
    """

    __slots__ = ("__enter__", "__exit__")


def _with(enter: Callable[[], object], leave: Callable[..., str]) -> AbstractContextManager[object]:
    made: Any = _With()
    made.__enter__, made.__exit__ = enter, leave
    return cast(AbstractContextManager[object], made)


class _Token(str):
    """Its method `format` takes any arguments, as `__exit__` must, and returns what is false."""

    __slots__ = ("__weakref__", "restore")

    restore: _Restore


class _Restore(weakref.ref[_Token]):
    """Calls hipSetDevice when the token is gone."""

    __slots__ = ()
    _as_parameter_ = None  # what ctypes passes for it, after the device


_SAME_DEVICE = _with("".format, "".format)


def _open_devices(rt: Runtime) -> None:
    def check(error: int, *_: object) -> None:
        if error:
            raise failure("hipSetDevice", error)

    rt.set_device, rt.restore_device = rt.handle["hipSetDevice"], rt.handle["hipSetDevice"]
    rt.set_device.errcheck, rt.restore_device.restype = check, None


_runtime.open_hooks.append(_open_devices)


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


def driver_version() -> str:
    """The version of the kernel module if it has one; else the driver version that HIP reports."""
    kind = runtime().kind
    if kind == "rocm":
        try:
            return f"amdgpu {Path('/sys/module/amdgpu/version').read_text().strip()}"
        except OSError:
            pass  # the amdgpu module of the mainline kernel has no version
    number = int(call("hipDriverGetVersion"))
    if kind == "bridge":
        return f"for CUDA {number // 1000}.{number % 1000 // 10}"
    return dotted(number)


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
        number = isinstance(stream, Number) and not isinstance(stream, Integral)
        other = isinstance(stream, (bool, str, bytes, np.ndarray, np.bool_, np.timedelta64, np.datetime64))
        handle = -1 if number or other else int(stream)
    except (TypeError, ValueError, OverflowError):
        handle = -1
    if not 0 <= handle < 2**64:
        required = "stream must be None, a stream handle, or convertible to one by int()"
        return Reason(TypeError, "stream", requirement(required, shown(stream)))
    if handle == _PER_THREAD:
        required, got = "stream must be the same for all threads", f"the per-thread stream ({handle})"
        return Reason(ValueError, "stream", requirement(required, got, "create a hipgemm.Stream"))
    return handle if handle > _PER_THREAD else 0


_of_thread = threading.local()  # `function`: the last with a stream argument; `stop`, `errors`: of `block`


def existing_stream(function: str, stream: Any) -> int | Reason:
    """Parse the stream argument of a function, and check that the stream exists."""
    _of_thread.function = function
    handle = parse_stream(stream)
    if isinstance(handle, Reason) or exists(handle):
        return handle
    return Reason(ValueError, "stream", _unknown_stream(handle))


def stream_handle(function: str, stream: Any) -> int:
    """Parse a stream argument: None, an int, or an object with ``__int__``. Raise if it is invalid."""
    if stream is None:
        return 0
    return value_or_raise(function, existing_stream(function, stream))


def _unknown_stream(handle: int) -> str:
    return requirement("stream must exist", f"the unknown handle {handle:#x}", "was it destroyed?")


after_wait_hooks: list[Callable[[], None]] = []  # raise errors that kernels reported


def stop_waiting_if(stop: Callable[[], bool]) -> None:
    """Let waits of the calling thread raise KeyboardInterrupt if this is so, for threads without signals."""
    _of_thread.stop = stop


def block(name: str, *what: Any) -> None:
    """Call a blocking HIP function. On the emulator, signal handlers run during the wait."""
    if captures and _is_capturing():
        raise captured_only("calls that do not wait, on arrays and values that are on the device", name)
    while captures and name == "hipDeviceSynchronize":  # which would end the captures of other threads
        time.sleep(_PAUSE)
    rt = runtime()
    if rt.emulator is None:
        call(name, *what)
        return
    function, errors = getattr(rt.handle, _BOUNDED_WAITS[name]), _of_thread.__dict__.setdefault("errors", [])
    arguments = [(ctypes.c_void_p(int(x)),) for x in what]
    code = _NOT_READY
    while code == _NOT_READY and not errors:
        # One call of C code: the next wait raises an error that an exception keeps this one from raising.
        answer: dict[None, int] = {}
        codes = map(answer.setdefault, (None,), map(function, *arguments, (_SLICE_MS,)))
        errors.extend(filterfalse(_NO_ERRORS.__contains__, codes))
        code = answer[None]
        if code == _NOT_READY and getattr(_of_thread, "stop", bool)():  # signal handlers run here, too
            raise KeyboardInterrupt
    if errors:
        if errors[0] == _CAPTURE_UNSUPPORTED and captures:  # one has begun meanwhile
            errors.clear()
            return block(name, *what)
        try:
            raise failure(name, errors[0])
        except HipError:
            errors.clear()
            raise


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
        function = getattr(_of_thread, "function", "hipgemm")
        raise fault(ValueError, function, required, f"{stream:#x} of device {found}")


class _Handles:
    """Events or streams of a device. They are never destroyed, so that references to them stay valid."""

    def __init__(self, device: int, function: str, flags: int) -> None:
        self._device, self._function, self._flags = device, function, flags
        self._registry = Registry(Owner, function)
        self.idle: list[Owner] = []

    def acquire(self) -> Owner:
        """A free one, which is free again when it is in `idle`, or the last reference to it is gone."""
        while (found := self._registry.reclaim()) is not None:
            self.idle.append(found)
        try:
            return self.idle.pop()
        except IndexError:
            return self.make()

    def make(self) -> Owner:
        """A new one."""
        with on_device(self._device):
            error, found = self._registry.allocate(runtime().handle, 0, self._flags)
        if found is None:
            raise failure(self._function, error)
        return found


def _open_handles(rt: Runtime) -> None:
    for device in range(rt.devices):
        rt.own_streams.append(_Handles(device, "hipStreamCreateWithFlags", _STREAM_NON_BLOCKING))
        for timing, flags in ((True, 0), (False, _EVENT_DISABLE_TIMING)):
            rt.events[device, timing] = _Handles(device, "hipEventCreateWithFlags", flags)


_runtime.open_hooks.append(_open_handles)


def acquire_stream(device: int, *, new: bool = False) -> Owner:
    """Return a released or new stream that does not synchronize with the default stream."""
    rt = runtime()
    streams: _Handles = rt.own_streams[device]
    stream = streams.make() if new else streams.acquire()
    rt.streams[stream.ptr] = device
    return stream


def acquire_event(device: int, timing: bool) -> Owner:
    """Return a released or new event."""
    event: Owner = runtime().events[device, timing].acquire()
    return event


def wait_for(waiting: int, stream: int) -> None:
    """Make one stream wait for the work queued on another. Both belong to the current device."""
    if not (alive(stream) and alive(waiting)):
        block("hipDeviceSynchronize")
        return
    device = current_device()
    wait_across(device, waiting, device, stream)


def wait_across(waiting_device: int, waiting: int, device: int, stream: int) -> None:
    """Make a stream of one device wait for the work queued on a stream of another."""
    if captures and (waiting in captures or stream in captures):
        raise captured_only("calls on one stream, with arrays of its device", "work on another stream")
    events = runtime().events[device, False]
    event = events.acquire()
    with on_device(device):
        call("hipEventRecord", event.ptr, stream)
    with on_device(waiting_device):
        call("hipStreamWaitEvent", waiting, event.ptr, 0)
    events.idle.append(event)


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


class Capture:
    """The capture of a graph from a stream, and the memory that its work reads and writes."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.reads: dict[Block, None] = {}
        self.writes: dict[Block, None] = {}


captures: dict[int, Capture] = {}  # those that go on, by stream


def captured_only(required: str, got: str) -> Exception:
    """The exception for what a graph cannot contain."""
    return fault(ValueError, "Graph", f"function must only make {required}", got)


_streams: dict[int, Any] = {}


def launch(function: Any, workgroups: int, threads: int, stream: int, extra: Any) -> None:
    """Launch a kernel of the current device with a prepared argument block."""
    if captures and stream not in captures:
        _require_no_capture(stream)
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


def require_no_capture_of(stream: int) -> None:
    """Raise if a graph is captured from the stream: for copies from and to the host."""
    if stream in captures:
        raise captured_only("calls on arrays and values that are on the device", "one with host memory")


def _is_capturing() -> bool:
    own = threading.get_ident()
    return any(capture.thread == own for capture in list(captures.values()))


def _require_no_capture(stream: int) -> None:
    if _is_capturing():
        raise captured_only("calls on the stream that it is given", f"a call on stream {stream:#x}")


def capture(device: int, stream: int, calls: Callable[[], object]) -> tuple[Owner, Capture]:
    """Capture the work that `calls` queues on a new stream; return the graph, ready to be launched.

    A thread that waits for the device meanwhile ends the capture: then there is another attempt.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return _capture(device, stream, calls)
        except HipError as error:
            if error.code not in (_CAPTURE_UNSUPPORTED, _CAPTURE_INVALIDATED) or attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE * 2**attempt)
    raise AssertionError


def _capture(device: int, stream: int, calls: Callable[[], object]) -> tuple[Owner, Capture]:
    rt = runtime()
    found = Capture()
    with on_device(device):
        block("hipDeviceSynchronize")
        # Relaxed: others may allocate memory meanwhile.
        call("hipStreamBeginCapture", stream, rt.hip.hipStreamCaptureMode.hipStreamCaptureModeRelaxed)
        captures[stream] = found
        try:
            calls()
        except BaseException:
            with suppress(HipError):
                call("hipGraphDestroy", call("hipStreamEndCapture", stream))
            raise
        finally:
            captures.pop(stream, None)
        graph = call("hipStreamEndCapture", stream)
        try:
            while (spare := _graphs.reclaim()) is not None:
                _graphs.free(rt.handle, spare)
            handle = ctypes.c_void_p(int(graph))
            error, made = _graphs.allocate(rt.handle, 0, handle, None, None, ctypes.c_size_t(0))
        finally:
            call("hipGraphDestroy", graph)
    if made is None:
        raise failure("hipGraphInstantiate", error)
    return made, found


def launch_graph(graph: Owner, stream: int) -> None:
    """Queue all work of a graph."""
    if captures and stream in captures:
        raise captured_only("calls, and launch no graph", "a launch")
    error = runtime().handle.hipGraphLaunch(ctypes.c_void_p(graph.ptr), ctypes.c_void_p(stream))
    if error:
        raise failure("hipGraphLaunch", error)


_graphs = Registry(Owner, "hipGraphInstantiate", "hipGraphExecDestroy")


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


class Block(Owner):
    """A block of device memory, and the streams that use it.

    Work on it is ordered across streams: `begin_read` and `begin_write` make a stream wait for what it
    depends on. The block returns to its pool when the last array that uses it is deleted.
    """

    __slots__ = ("device", "exports", "nbytes", "readers", "size", "writer")

    def __init__(self, device: int, allocation: Allocation):
        self.allocation = allocation
        self.ptr = allocation.handle.value or 0
        self.size = allocation.size  # 0 for memory of another library
        self.nbytes = 0
        self.device = device
        self.writer = allocation.stream  # the stream of the last write
        self.readers: frozenset[int] = _NONE  # streams that have read since, but the writer
        self.exports: list[Callable[[], object]] = []  # weak references to what other libraries hold

    def begin_read(self, stream: int) -> None:
        """Order a read on `stream` after the last write."""
        if captures and stream in captures:
            captures[stream].reads[self] = None
            return
        if stream != self.writer and stream not in self.readers:
            require_stream(stream, self.device)
            self.allocation.users.add(stream)
            wait_for(stream, self.writer)
            self.add_reader(stream)

    def begin_write(self, stream: int) -> None:
        """Order a write on `stream` after the last write and every read since."""
        if captures and stream in captures:
            captures[stream].writes[self] = None
            return
        users = self.allocation.users
        if stream != self.writer:
            require_stream(stream, self.device)
            users.add(stream)
            wait_for(stream, self.writer)
        for reader in self.readers:
            if reader != stream:
                wait_for(stream, reader)
        self.readers, self.writer = _NONE, stream
        users.intersection_update((stream,))

    def add_reader(self, stream: int) -> None:
        """Let writes, and reuse of the memory, wait for a stream."""
        self.allocation.users.add(stream)
        self.readers |= {stream}

    def stream(self) -> int:
        """The stream that can read without waiting: that of the last write, if it still exists."""
        if not alive(self.writer):
            block("hipDeviceSynchronize")
            self.writer = 0
        return self.writer

    def release(self) -> None:
        """Return the memory to its pool, ordered after all work on it."""
        rt = opened()
        if self.ptr and rt is not None:
            self.ptr = 0
            rt.pools[self.device].blocks.released.append(self.ownership)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("device memory cannot be pickled or copied")


_NONE: frozenset[int] = frozenset()


def memory_info(device: int) -> tuple[int, int]:
    """Free and total bytes of a device."""
    with on_device(device):
        free, total = call("hipMemGetInfo")
        return int(free), int(total)


def allocate(nbytes: int, device: int, stream: int) -> Block:
    """Allocate device memory that is ready for use on `stream`."""
    if nbytes >= 2**63:  # HIP would use the low bits only
        raise HipError("hipMalloc", 2, "hipErrorOutOfMemory", f"requested: {shown(nbytes)} bytes")
    block: Block = runtime().pools[device].allocate(nbytes, stream)
    if captures and stream in captures:
        captures[stream].writes[block] = None
    return block


def adopt(ptr: int, nbytes: int, device: int, stream: int, owner: object) -> Block:
    """Use memory of another library, whose `owner` is kept alive until all work on the memory is complete."""
    block: Block = runtime().pools[device].adopt(ptr, stream, owner)
    block.nbytes = nbytes
    return block


def on_open(hook: Callable[[Runtime], None]) -> None:
    """Register a function to call with the runtime when it is opened."""
    _runtime.open_hooks.append(hook)
