"""Streams and events, which order and time work."""

from __future__ import annotations

from typing import Any

from ..errors import fault
from ..formats.checks import Checks, checked
from . import hip as _hip


class Stream:
    """A stream of a device: a queue of work that runs in order.

    hipgemm orders its own work on an array across streams. A `Stream` does not wait for work that other
    libraries queue on the default stream. ``int(stream)`` is the HIP handle.

    Parameters
    ----------
    device : int, optional
        Default: the current device.

    Attributes
    ----------
    device : int
        The device that it belongs to.

    Examples
    --------
    >>> import numpy as np, hipgemm as hg
    >>> stream = hg.Stream()
    >>> x = hg.zeros(2, np.float32, stream=stream)
    >>> stream.synchronize()
    >>> stream.query()
    True
    """

    __slots__ = ("__weakref__", "_handle", "_owner", "device")

    def __init__(self, device: int | None = None):
        self.device = _hip.device_number("Stream", device)
        self._owner = _hip.acquire_stream(self.device)
        self._handle = self._owner.ptr

    def __int__(self) -> int:
        return self._handle

    def synchronize(self) -> None:
        """Wait for all work on the stream, and raise its errors.

        Raises
        ------
        HipError
            If work on the stream failed.
        """
        with _hip.on_device(self.device):
            _hip.synchronize(self._handle)

    def query(self) -> bool:
        """Whether all work on the stream is complete."""
        with _hip.on_device(self.device):
            return _hip.done("hipStreamQuery", self._handle)

    def record(self, event: Event | None = None) -> Event:
        """Record an event after the work queued so far, a new event by default; return the event."""
        if event is not None and not isinstance(event, Event):
            raise fault(
                TypeError, "Stream.record", "event must be an Event or None", type(event).__qualname__
            )
        return (Event(self.device) if event is None else event).record(self)

    def wait(self, other: Event | Stream) -> None:
        """Make later work on this stream wait for an event, or for the work queued so far on another stream.

        Examples
        --------
        >>> import hipgemm as hg
        >>> first, second = hg.Stream(), hg.Stream()
        >>> second.wait(first)
        """
        if isinstance(other, Event):
            other.wait(self)
        elif isinstance(other, Stream):
            _hip.wait_across(self.device, self._handle, other.device, other._handle)
        else:
            required = "other must be an Event or a Stream"
            raise fault(TypeError, "Stream.wait", required, type(other).__qualname__)

    def __repr__(self) -> str:
        return f"Stream({self._handle:#x}, device={self.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("Stream: a stream cannot be copied or pickled")


class Event:
    """A point in a stream, complete when all work before it is complete.

    Parameters
    ----------
    device : int, optional
        The device whose streams can record it. Default: the current device.
    timing : bool, optional
        Whether it records a time stamp. False is slightly cheaper.

    Examples
    --------
    >>> import hipgemm as hg
    >>> start, end = hg.Event().record(), hg.Event().record()
    >>> start.elapsed(end) >= 0
    True
    """

    __slots__ = ("__weakref__", "_event", "_recorded", "_timing", "device")

    def __init__(self, device: int | None = None, *, timing: bool = True):
        self._recorded = False
        self._timing = checked("Event", lambda checks: checks.flag("timing", timing))
        self.device = _hip.device_number("Event", device)
        self._event = _hip.acquire_event(self.device, self._timing)

    def record(self, stream: Any = None) -> Event:
        """Record the event after the work queued so far on a stream; return the event.

        An earlier recording is replaced.
        """
        handle = _hip.stream_handle("Event.record", stream)
        _hip.require_stream(handle, self.device)
        with _hip.on_device(self.device):
            _hip.call("hipEventRecord", self._event.ptr, handle)
        self._recorded = True
        return self

    def wait(self, stream: Any = None) -> None:
        """Make later work on a stream, of any device, wait for the event."""
        handle = _hip.stream_handle("Event.wait", stream)
        device = _hip.stream_device(handle)
        if self._recorded:
            with _hip.on_device(_hip.current_device() if device is None else device):
                _hip.call("hipStreamWaitEvent", handle, self._event.ptr, 0)

    def query(self) -> bool:
        """Whether the event is complete. An event that was never recorded is."""
        return not self._recorded or _hip.done("hipEventQuery", self._event.ptr)

    def synchronize(self) -> None:
        """Wait for the event.

        Raises
        ------
        HipError
            If work before the event failed.
        """
        if self._recorded:
            _hip.wait("hipEventSynchronize", self._event.ptr)

    def elapsed(self, end: Event) -> float:
        """Wait for this and a later event, and return the milliseconds between them.

        Raises
        ------
        ValueError
            If one was never recorded or has no time stamp, or if they belong to different devices.
        """
        checks, events = Checks("Event.elapsed"), [("the first event", self)]
        if isinstance(end, Event):
            events.append(("end event", end))
        else:
            checks.wrong_type("end", "an Event", end)
        for name, event in events:
            if not event._timing:
                checks.add(ValueError, "event", f"{name} must have timing=True", "timing=False")
            if not event._recorded:
                checks.add(ValueError, "event", f"{name} must have been recorded", "one that was not")
        if len({event.device for _, event in events}) > 1:
            got = f"{self.device} and {end.device}"
            checks.add(ValueError, "device", "both events must belong to the same device", got)
        checks.raise_all()
        self.synchronize()
        end.synchronize()
        return float(_hip.call("hipEventElapsedTime", self._event.ptr, end._event.ptr))

    def __repr__(self) -> str:
        return f"Event(device={self.device}, timing={self._timing})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("Event: an event cannot be copied or pickled")


def synchronize(device: int | None = None) -> None:
    """Wait for all work on a device, and raise its errors.

    Parameters
    ----------
    device : int, optional
        Default: the current device.

    Raises
    ------
    HipError
        If work on the device failed.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.synchronize()
    """
    with _hip.on_device(_hip.device_number("synchronize", device)):
        _hip.wait("hipDeviceSynchronize")
