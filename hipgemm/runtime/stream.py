"""Streams and events to order and time work by."""

from __future__ import annotations

from typing import Any

from ..errors import fault
from ..formats.checks import Checks
from . import hip as _hip


class Stream:
    """A queue of work on a device, beside the default one.

    What hipgemm does with arrays is ordered across streams by itself. Work that others put on the default
    stream is not waited for. Anything that takes a stream takes this one, by ``int()``.

    Parameters
    ----------
    device : int, optional
        Default: the current device.

    Attributes
    ----------
    device : int
        The device that it works on.

    Examples
    --------
    >>> import numpy as np, hipgemm as hg
    >>> stream = hg.Stream()
    >>> x = hg.zeros(2, np.float32, stream=stream)
    >>> stream.synchronize()
    >>> stream.query()
    True
    """

    __slots__ = ("__weakref__", "_handle", "device")

    def __init__(self, device: int | None = None):
        self._handle = 0  # for the finalizer, should the next line raise
        self.device = _hip.device_number("Stream", device)
        self._handle = _hip.borrow_stream(self.device)

    def __int__(self) -> int:
        return self._handle

    def synchronize(self) -> None:
        """Wait until everything on it is done. What failed there is raised here.

        Raises
        ------
        HipError
            For work on the device that failed.
        """
        with _hip.on_device(self.device):
            _hip.synchronize(self._handle)

    def query(self) -> bool:
        """Whether everything on it is done."""
        with _hip.on_device(self.device):
            return _hip.done("hipStreamQuery", self._handle)

    def record(self, event: Event | None = None) -> Event:
        """Put an event behind what is on the stream by now, a new one by default."""
        return (Event(self.device) if event is None else event).record(self)

    def wait(self, other: Event | Stream) -> None:
        """Let what comes next wait for an event, or for what is on another stream by now.

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
        raise TypeError("Stream: streams of a device cannot be copied")

    def __del__(self) -> None:
        if self._handle:
            _hip.return_stream(self._handle, self.device)


class Event:
    """A place in a stream, reached when everything before it is done.

    Parameters
    ----------
    device : int, optional
        Whose streams it may be put into. Default: the current device.
    timing : bool, optional
        Whether it takes the time. False is a little cheaper.

    Examples
    --------
    >>> import hipgemm as hg
    >>> start, end = hg.Event().record(), hg.Event().record()
    >>> start.elapsed(end) >= 0
    True
    """

    __slots__ = ("__weakref__", "_event", "_recorded", "_timing", "device")

    def __init__(self, device: int | None = None, *, timing: bool = True):
        self._event = None
        self._recorded = False
        self._timing = bool(timing)
        self.device = _hip.device_number("Event", device)
        self._event = _hip.borrow_event(self.device, self._timing)

    def record(self, stream: Any = None) -> Event:
        """Put it behind what is on a stream by now; it leaves the place where it was. Returns itself."""
        handle = _hip.stream_handle("Event.record", stream)
        _hip.require_stream(handle, self.device)
        with _hip.on_device(self.device):
            _hip.call("hipEventRecord", self._event, handle)
        self._recorded = True
        return self

    def wait(self, stream: Any = None) -> None:
        """Let what comes next on a stream, of any device, wait until it is reached."""
        handle = _hip.stream_handle("Event.wait", stream)
        device = _hip.stream_device(handle)
        if self._recorded:
            with _hip.on_device(_hip.current_device() if device is None else device):
                _hip.call("hipStreamWaitEvent", handle, self._event, 0)

    def query(self) -> bool:
        """Whether it is reached; so is one that was never recorded."""
        return not self._recorded or _hip.done("hipEventQuery", self._event)

    def synchronize(self) -> None:
        """Wait until it is reached.

        Raises
        ------
        HipError
            For work on the device that failed.
        """
        if self._recorded:
            _hip.wait("hipEventSynchronize", self._event)

    def elapsed(self, end: Event) -> float:
        """Milliseconds from this event to a later one; waits for both.

        Raises
        ------
        ValueError
            If one was never recorded or takes no time, or they are of two devices.
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
            checks.add(ValueError, "device", "both events must be of one device", got)
        checks.raise_all()
        self.synchronize()
        end.synchronize()
        return float(_hip.call("hipEventElapsedTime", self._event, end._event))

    def __repr__(self) -> str:
        return f"Event(device={self.device}, timing={self._timing})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("Event: events of a device cannot be copied")

    def __del__(self) -> None:
        if self._event is not None:
            _hip.return_event(self._event, self.device, self._timing)


def synchronize(device: int | None = None) -> None:
    """Wait until everything on a device is done. What failed there is raised here.

    Parameters
    ----------
    device : int, optional
        Default: the current device.

    Raises
    ------
    HipError
        For work on the device that failed.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.synchronize()
    """
    with _hip.on_device(_hip.device_number("synchronize", device)):
        _hip.wait("hipDeviceSynchronize")
