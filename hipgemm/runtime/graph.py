"""Graphs: a sequence of calls that is launched as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import fault, requirement
from . import hip as _hip


class Graph:
    """A sequence of calls on device arrays, captured once, and launched as one whenever it is needed.

    A launch is one call of HIP, however many kernels the calls have, and allocates nothing. It reads and
    writes the same memory each time: change an operand with ``x[...] = value`` before it. It is ordered as
    other calls are: it waits for what writes its operands, on any stream, and what reads its results waits
    for it.

    Parameters
    ----------
    function : callable
        It gets a stream, makes calls with ``stream=`` on it, and returns anything. It is called twice. The
        first time the calls run, so that kernels are loaded, plans are made and scales have the order of
        products. The second time they are captured, and nothing runs. All operands must be on the device, and
        it must not read results back or wait.
    device : int, optional
        Default: the current device.

    Attributes
    ----------
    result
        What `function` returned for the captured calls: arrays that each launch writes.
    device : int
        The device that it runs on.

    Raises
    ------
    ValueError
        If a call needs host memory or another stream, or if there are no calls.
    HipError
        If `function` does what HIP does not allow in a capture, such as waiting.

    Examples
    --------
    >>> import ml_dtypes, numpy as np, hipgemm as hg
    >>> x = hg.asarray(np.eye(2, dtype=ml_dtypes.bfloat16))
    >>> graph = hg.Graph(lambda stream: hg.matmul(x, x.T, dtype=np.float32, stream=stream))
    >>> x[...] = 2
    >>> graph.launch().get()
    array([[8., 8.],
           [8., 8.]], dtype=float32)
    """

    __slots__ = ("__weakref__", "_graph", "_reads", "_stream", "_writes", "device", "result")

    def __init__(self, function: Callable[[Any], Any], /, *, device: int | None = None):
        if not callable(function):
            raise fault(TypeError, "Graph", "function must be callable", type(function).__qualname__)
        self.device = _hip.device_number("Graph", device)
        stream = _hip.acquire_stream(self.device)
        with _hip.on_device(self.device):
            function(stream.ptr)
        # A new stream: no memory is known to be in use on it.
        self._stream = _hip.acquire_stream(self.device, new=True)

        def calls() -> None:
            self.result = function(self._stream.ptr)

        self._graph, found = _hip.capture(self.device, self._stream.ptr, calls)
        if not (found.reads or found.writes):
            raise fault(
                ValueError, "Graph", "function must make calls on the stream that it is given", "none"
            )
        self._writes = tuple(found.writes)
        self._reads = tuple(block for block in found.reads if block not in found.writes)

    def launch(self, stream: Any = None) -> Any:
        """Queue all calls on a stream.

        Parameters
        ----------
        stream : optional
            A stream of the device. Default: the default stream.

        Returns
        -------
        result
            The same object each time.

        Raises
        ------
        ValueError
            If an array that the calls use was freed.
        """
        handle = _hip.stream_handle("Graph.launch", stream)
        _hip.require_stream(handle, self.device)
        if not all(block.ptr for block in (*self._reads, *self._writes)):
            required = requirement(
                "the arrays of the captured calls must still be in memory", "one that was freed"
            )
            raise ValueError(f"Graph.launch: {required}")
        with _hip.on_device(self.device):
            for block in self._reads:
                block.begin_read(handle)
            for block in self._writes:
                block.begin_write(handle)
            _hip.launch_graph(self._graph, handle)
        return self.result

    def __repr__(self) -> str:
        return f"Graph(device={self.device})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("Graph: a graph cannot be copied or pickled")
