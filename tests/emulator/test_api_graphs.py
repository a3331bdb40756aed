"""Graphs: capture from streams, nodes, launches; a branch that is not joined shows as a wrong value."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hipapi import (
    D2D,
    D2H,
    H2D,
    ILLEGAL_ADDRESS,
    ILLEGAL_STATE,
    INVALID_VALUE,
    Memory,
    check,
    fails,
    hip,
    kind,
    launch,
    lib,
)
from test_api_streams import NON_BLOCKING, events, streams

UNSUPPORTED, INVALIDATED, UNMATCHED, UNJOINED, ISOLATION, IMPLICIT, CAPTURED = (
    900,
    901,
    903,
    904,
    905,
    906,
    907,
)
NOT_SUPPORTED = 801
i32, void_p, size_t = ctypes.c_int32, ctypes.c_void_p, ctypes.c_size_t
Kernel = Callable[[str], Any]
GLOBAL, RELAXED = 0, 2


def begin(stream: Any, mode: int = GLOBAL) -> None:
    check(hip.hipStreamBeginCapture(stream, hip.hipStreamCaptureMode(mode)))


@contextmanager
def instantiated(graph: Any) -> Iterator[Any]:
    executable = void_p()
    check(lib.hipGraphInstantiate(ctypes.byref(executable), void_p(int(graph)), None, None, size_t(0)))
    try:
        yield executable
    finally:
        check(lib.hipGraphExecDestroy(executable))
        check(lib.hipGraphDestroy(void_p(int(graph))))


def run(executable: Any, stream: Any = None) -> None:
    check(lib.hipGraphLaunch(executable, void_p(int(stream) if stream else 0)))


def test_a_captured_sequence_runs_at_each_launch(kernel: Kernel) -> None:
    with Memory(4, np.array([5], np.int32)) as x, Memory(4) as y, streams(NON_BLOCKING) as (stream,):
        begin(stream)
        launch(kernel("add_one"), x.address, stream=stream)
        check(hip.hipMemcpyAsync(y.pointer, x.pointer, 4, kind(D2D), stream))
        launch(kernel("add_one"), y.address, stream=stream)
        graph = check(hip.hipStreamEndCapture(stream))
        assert x.get().tolist() == [5]  # nothing has run
        with instantiated(graph) as executable:
            for i in range(1, 4):
                run(executable, stream)
                run(executable)  # after the launch before it, though in another stream
                check(hip.hipDeviceSynchronize())
                assert (x.get()[0], y.get()[0]) == (5 + 2 * i, 6 + 2 * i)


def test_host_memory_is_used_at_each_launch() -> None:
    with Memory(16) as x, streams(NON_BLOCKING) as (stream,):
        source, target = np.zeros(4, np.int32), np.zeros(4, np.int32)
        begin(stream)
        check(hip.hipMemcpyAsync(x.pointer, source, 16, kind(H2D), stream))
        check(hip.hipMemcpyAsync(target, x.pointer, 16, kind(D2H), stream))
        with instantiated(check(hip.hipStreamEndCapture(stream))) as executable:
            for value in (3, 4):
                source[:] = value
                run(executable, stream)
                check(hip.hipStreamSynchronize(stream))
                assert target.tolist() == [value] * 4


@pytest.mark.parametrize("joined", [True, False])
def test_branches(kernel: Kernel, joined: bool) -> None:
    """A branch begins and ends by events; the first stream reads too early what it does not wait for."""
    with (
        Memory(4, np.array([1], np.int32)) as x,
        Memory(4, np.array([0], np.int32)) as y,
        streams(NON_BLOCKING, NON_BLOCKING) as (first, second),
        events(2) as (fork, join),
    ):
        begin(first)
        check(hip.hipEventRecord(fork, first))
        check(hip.hipStreamWaitEvent(second, fork, 0))
        launch(kernel("add_one"), x.address, stream=second)
        check(hip.hipEventRecord(join, second))
        if joined:
            check(hip.hipStreamWaitEvent(first, join, 0))
        launch(kernel("copy_one"), y.address, x.address, stream=first)
        if not joined:
            check(hip.hipStreamWaitEvent(first, join, 0))
        with instantiated(check(hip.hipStreamEndCapture(first))) as executable:
            run(executable)
            assert y.get().tolist() == [2 if joined else 1]
            assert x.get().tolist() == [2]


def test_a_fault_ends_the_launch_and_not_the_graph(kernel: Kernel) -> None:
    with Memory(4, np.array([7], np.int32)) as x, streams(NON_BLOCKING) as (stream,):
        wild = Memory(4, np.array([1], np.int32))
        begin(stream)
        launch(kernel("copy_one"), x.address, wild.address, stream=stream)
        launch(kernel("add_one"), x.address, stream=stream)
        with instantiated(check(hip.hipStreamEndCapture(stream))) as executable:
            run(executable, stream)
            check(hip.hipStreamSynchronize(stream))
            assert x.get().tolist() == [2]
            check(hip.hipFree(wild.pointer))
            run(executable, stream)
            with fails(ILLEGAL_ADDRESS, "copy_one"):
                check(hip.hipStreamSynchronize(stream))
            assert x.get().tolist() == [2]


def test_nodes(kernel: Kernel) -> None:
    """Nodes of every kind, by the functions that a client without captures uses."""

    class KernelNode(ctypes.Structure):
        _fields_ = (
            ("block", ctypes.c_uint32 * 3),
            ("extra", void_p),
            ("function", void_p),
            ("grid", ctypes.c_uint32 * 3),
            ("arguments", void_p),
            ("lds", ctypes.c_uint32),
        )

    class MemsetNode(ctypes.Structure):
        _fields_ = (
            ("dst", void_p),
            ("element", ctypes.c_uint32),
            ("height", size_t),
            ("pitch", size_t),
            ("value", ctypes.c_uint32),
            ("width", size_t),
        )

    graph, nodes = void_p(), (void_p * 6)()
    check(lib.hipGraphCreate(ctypes.byref(graph), 0))

    def node(i: int, name: str, *args: Any) -> None:
        after = (void_p * 1)(nodes[i - 1])
        at = ctypes.byref(nodes, 8 * i)
        check(getattr(lib, name)(at, graph, after if i else None, size_t(bool(i)), *args))

    with Memory(16) as x, Memory(16) as y, events(1) as (event,):
        node(0, "hipGraphAddEmptyNode")
        fill = MemsetNode(x.address, 4, 1, 16, 41, 4)
        node(1, "hipGraphAddMemsetNode", ctypes.byref(fill))
        target = void_p(x.address)
        arguments = (void_p * 1)(ctypes.addressof(target))
        one = (ctypes.c_uint32 * 3)(1, 1, 1)
        add = KernelNode(one, None, int(kernel("add_one")), one, ctypes.addressof(arguments), 0)
        node(2, "hipGraphAddKernelNode", ctypes.byref(add))
        node(3, "hipGraphAddMemcpyNode1D", void_p(y.address), void_p(x.address), size_t(8), D2D)
        copy = (ctypes.c_uint64 * 23)(0, 0, 0, 0, 2, 0, x.address, 0, 8, 1)  # of device memory, 2
        copy[10:20] = (8, 0, 0, 0, 2, 0, y.address, 0, 8, 1)
        copy[20:23] = (8, 1, 1)
        node(4, "hipDrvGraphAddMemcpyNode", copy, None)
        node(5, "hipGraphAddEventRecordNode", void_p(int(event)))
        count = size_t(0)
        check(lib.hipGraphGetNodes(graph, None, ctypes.byref(count)))
        assert count.value == 6
        with instantiated(graph.value) as executable:
            run(executable)
            check(hip.hipEventSynchronize(event))
            assert y.get().tolist() == [42, 41, 42, 41]


def test_what_captures_do_not_allow(kernel: Kernel) -> None:
    with (
        Memory(4, np.array([0], np.int32)) as x,
        streams(NON_BLOCKING, NON_BLOCKING, 0) as (stream, other, blocking),
        events(2) as (event, outside),
    ):
        with fails(UNSUPPORTED, "default stream"):
            begin(None)
        with fails(ILLEGAL_STATE, "no capture"):
            check(hip.hipStreamEndCapture(stream))
        check(hip.hipEventRecord(outside, other))

        def broken_by(code: int, call: Callable[[], Any], captured: Any = stream, mode: int = GLOBAL) -> None:
            begin(captured, mode)
            launch(kernel("add_one"), x.address, stream=captured)
            with fails(code):
                call()
            with fails(INVALIDATED):
                launch(kernel("add_one"), x.address, stream=captured)
            with fails(INVALIDATED):
                check(hip.hipStreamEndCapture(captured))

        broken_by(UNSUPPORTED, lambda: check(hip.hipStreamSynchronize(stream)), mode=RELAXED)
        broken_by(UNSUPPORTED, lambda: check(hip.hipStreamQuery(stream)), mode=RELAXED)
        broken_by(UNSUPPORTED, lambda: check(hip.hipDeviceSynchronize()), mode=RELAXED)
        broken_by(UNSUPPORTED, lambda: Memory(4))
        broken_by(UNSUPPORTED, lambda: check(hip.hipFree(x.pointer)))
        broken_by(IMPLICIT, lambda: launch(kernel("add_one"), x.address), captured=blocking, mode=RELAXED)

        begin(stream, RELAXED)
        Memory(4).__exit__()
        with fails(ISOLATION):
            check(hip.hipStreamWaitEvent(stream, outside, 0))
        check(hip.hipEventRecord(event, stream))
        for call in (hip.hipEventSynchronize, hip.hipEventQuery):
            with fails(CAPTURED):
                check(call(event))
        check(hip.hipStreamWaitEvent(other, event, 0))
        with fails(UNMATCHED):
            check(hip.hipStreamEndCapture(other))
        launch(kernel("add_one"), x.address, stream=other)
        with fails(UNJOINED):
            check(hip.hipStreamEndCapture(stream))
        with fails(CAPTURED):
            check(hip.hipStreamWaitEvent(other, event, 0))
        assert x.get().tolist() == [0]

        begin(stream)
        graph = check(hip.hipStreamEndCapture(stream))
        with instantiated(graph) as executable:
            begin(other)
            with fails(NOT_SUPPORTED):
                run(executable, other)
            check(lib.hipGraphDestroy(void_p(int(check(hip.hipStreamEndCapture(other))))))
            with fails(INVALID_VALUE, "does not exist"):
                run(void_p(16))


def test_what_a_stream_does_is_told() -> None:
    with streams(NON_BLOCKING) as (stream,):
        handle, status = void_p(int(stream)), ctypes.c_int(9)
        seen = []
        for step in (lambda: None, lambda: begin(stream), lambda: check(hip.hipStreamEndCapture(stream))):
            step()
            check(lib.hipStreamIsCapturing(handle, ctypes.byref(status)))
            seen.append(status.value)
        assert seen == [0, 1, 0]


def test_a_cooperative_launch(kernel: Kernel) -> None:
    with Memory(4, np.array([1], np.int32)) as x:
        target = void_p(x.address)
        arguments = (void_p * 1)(ctypes.addressof(target))
        one = (1,) * 6
        function = void_p(int(kernel("add_one")))
        check(lib.hipModuleLaunchCooperativeKernel(function, *one, 0, None, arguments))
        assert x.get().tolist() == [2]
