"""Streams, events and their failures: late mode exposes every missing synchronization."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hipapi import (
    D2H,
    H2D,
    ILLEGAL_ADDRESS,
    ILLEGAL_STATE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    Failed,
    Memory,
    address,
    check,
    fails,
    hip,
    kind,
    launch,
    lib,
    report,
)

Kernel = Callable[[str], Any]
i32, size_t, void_p = ctypes.c_int32, ctypes.c_size_t, ctypes.c_void_p
NON_BLOCKING = 1
late_only = pytest.mark.skipif(
    os.environ.get("HIPGEMM_EMULATOR_ASYNC") == "eager", reason="what a missing wait shows in late mode"
)
HOST_FUNCTION = ctypes.CFUNCTYPE(None, void_p)
CALLBACK = ctypes.CFUNCTYPE(None, void_p, ctypes.c_int, void_p)


@contextmanager
def streams(*flags: int) -> Iterator[list[Any]]:
    made = [check(hip.hipStreamCreateWithFlags(f)) for f in flags]
    try:
        yield made
    finally:
        for stream in made:
            check(hip.hipStreamDestroy(stream))


@contextmanager
def events(n: int) -> Iterator[list[Any]]:
    made = [check(hip.hipEventCreate()) for _ in range(n)]
    try:
        yield made
    finally:
        for event in made:
            check(hip.hipEventDestroy(event))


def run_here(run_python: Any, body: str, **environment: str) -> str:
    """Run statements that may use all of this module, in a process with these variables."""
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api_streams import *
{body}"""
    child = run_python(code, **environment)
    assert child.returncode == 0, child.stderr
    return str(child.stdout)


def pinned(size: int) -> tuple[Any, np.ndarray]:
    pointer = check(hip.hipHostMalloc(size, 0))
    view = (ctypes.c_byte * size).from_address(address(pointer))
    return pointer, np.frombuffer(view, np.int32)


def poll(stream: Any) -> None:
    deadline = time.time() + 20
    while (result := hip.hipStreamQuery(stream)) and int(result[0]) == NOT_READY and time.time() < deadline:
        time.sleep(0.001)
    check(result)


# ---- late ------------------------------------------------------------------------------------------


@late_only
def test_copies_use_a_pinned_buffer_late() -> None:
    pointer, host = pinned(16)
    with Memory(16, np.zeros(4, np.int32)) as memory, streams(0) as (stream,):
        host[:] = 1
        check(hip.hipMemcpyAsync(memory.pointer, host, 16, kind(H2D), stream))
        time.sleep(0.02)
        host[:] = 2  # too early: the copy has not been waited for
        check(hip.hipStreamSynchronize(stream))
        assert memory.get().tolist() == [2] * 4
        host[:] = 0
        check(hip.hipMemcpyAsync(host, memory.pointer, 16, kind(D2H), stream))
        time.sleep(0.02)
        assert host.tolist() == [0] * 4
        check(hip.hipStreamSynchronize(stream))
        assert host.tolist() == [2] * 4
    check(hip.hipHostFree(pointer))


@pytest.mark.parametrize("mode", ["late", "eager"])
@pytest.mark.parametrize(
    ("rows", "width"), [(1, 4), (3, 4), (65, 1 << 18)], ids=["one", "three", "too_much_to_keep"]
)
def test_copies_are_done_with_a_pageable_buffer_at_return(
    mode: str, rows: int, width: int, run_python: Any
) -> None:
    """What is read from it is read at the call; what is written to it is there at return."""
    body = f"""
rows, n = {rows}, {width}
size, pitch = 4 * n, 4 * n + 8
before = np.arange(rows * (n + 2), dtype=np.int32).reshape(rows, n + 2)
host, back = before.copy(), np.zeros((rows, n + 2), np.int32)
with Memory(rows * size, np.zeros(rows * n, np.int32)) as memory, streams(0) as (stream,):
    check(hip.hipMemcpy2DAsync(memory.pointer, size, host, pitch, size, rows, kind(H2D), stream))
    host[:] = -1
    check(hip.hipMemcpy2DAsync(back, pitch, memory.pointer, size, size, rows, kind(D2H), stream))
    assert (back[:, :n] == before[:, :n]).all() and not back[:, n:].any()
    check(hip.hipMemcpyAsync(memory.pointer, host, 16, kind(H2D), stream))
    host[:] = 7
    check(hip.hipStreamSynchronize(stream))
    assert memory.get()[:4].tolist() == [-1] * 4
    other = np.zeros(4, np.int32)
    check(hip.hipMemcpyAsync(other, host, 16, kind(0), stream))
    assert other.tolist() == [7] * 4
print("done")
"""
    assert run_here(run_python, body, HIPGEMM_EMULATOR_ASYNC=mode).strip() == "done"


@late_only
def test_the_device_side_of_a_pageable_copy_is_late() -> None:
    host = np.ones(4, np.int32)
    with Memory(16, np.zeros(4, np.int32)) as memory, streams(NON_BLOCKING, NON_BLOCKING) as (a, b):
        check(hip.hipMemcpyAsync(memory.pointer, host, 16, kind(H2D), a))
        seen = np.full(4, 5, np.int32)
        check(hip.hipMemcpyAsync(seen, memory.pointer, 16, kind(D2H), b))  # nothing has waited for a
        assert seen.tolist() == [0] * 4
        check(hip.hipStreamSynchronize(a))
        assert memory.get().tolist() == [1] * 4


def test_eager_starts_at_once(run_python: Any) -> None:
    body = """
with Memory(4, np.zeros(1, np.int32)) as memory, streams(0) as (stream,):
    host = np.array([3], np.int32)
    check(hip.hipMemcpyAsync(memory.pointer, host, 4, kind(H2D), stream))
    with streams(NON_BLOCKING) as (other,):  # nothing has waited for the first stream yet
        for _ in range(1000):
            back = np.zeros(1, np.int32)
            check(hip.hipMemcpyAsync(back, memory.pointer, 4, kind(D2H), other))
            check(hip.hipStreamSynchronize(other))
            if back[0] == 3: break
            time.sleep(0.001)
    print(back[0])
"""
    assert run_here(run_python, body, HIPGEMM_EMULATOR_ASYNC="eager").strip() == "3"
    assert run_here(run_python, body.replace("1000", "20"), HIPGEMM_EMULATOR_ASYNC="late").strip() == "0"


@late_only
def test_query_starts_the_work(kernel: Kernel) -> None:
    hip.hipGetLastError()
    with Memory(4, np.ones(1, np.int32)) as memory, streams(0) as (stream,):
        launch(kernel("spin"), memory.address, i32(200000), stream=stream)
        assert int(hip.hipStreamQuery(stream)[0]) == NOT_READY
        assert int(hip.hipGetLastError()[0]) == 0  # not an error
        poll(stream)


@late_only
def test_a_long_queue_runs_by_itself(kernel: Kernel) -> None:
    add = kernel("add_one")
    with Memory(4, np.zeros(1, np.int32)) as memory, streams(NON_BLOCKING, NON_BLOCKING) as (a, b):
        for _ in range(3000):
            launch(add, memory.address, stream=a)
        time.sleep(0.5)
        seen = np.zeros(1, np.int32)
        check(hip.hipMemcpyAsync(seen, memory.pointer, 4, kind(D2H), b))
        check(hip.hipStreamSynchronize(b))
        assert 0 < seen[0] < 3000
        check(hip.hipStreamSynchronize(a))
        assert memory.get()[0] == 3000


# ---- order -----------------------------------------------------------------------------------------


@late_only
@pytest.mark.parametrize(("flags", "ordered"), [(0, True), (NON_BLOCKING, False)])
def test_null_stream_orders_blocking_streams_only(kernel: Kernel, flags: int, ordered: bool) -> None:
    with Memory(4, np.zeros(1, np.int32)) as memory, streams(flags, flags) as (a, b):
        launch(kernel("store"), memory.address, i32(1), stream=a)
        launch(kernel("add_one"), memory.address)  # null stream: after a
        launch(kernel("add_one"), memory.address, stream=b)  # after the null stream
        check(hip.hipStreamSynchronize(b))
        seen = np.zeros(1, np.int32)
        with streams(NON_BLOCKING) as (reader,):
            check(hip.hipMemcpyAsync(seen, memory.pointer, 4, kind(D2H), reader))
            check(hip.hipStreamSynchronize(reader))
        assert seen[0] == (3 if ordered else 1)
        check(hip.hipDeviceSynchronize())


@late_only
def test_events_order_streams(kernel: Kernel) -> None:
    with (
        Memory(4, np.zeros(1, np.int32)) as memory,
        streams(NON_BLOCKING, NON_BLOCKING) as (a, b),
        events(1) as (event,),
    ):
        launch(kernel("store"), memory.address, i32(5), stream=a)
        check(hip.hipEventRecord(event, a))
        launch(kernel("store"), memory.address, i32(9), stream=a)  # after the event: not waited for
        check(hip.hipStreamWaitEvent(b, event, 0))
        launch(kernel("add_one"), memory.address, stream=b)
        check(hip.hipEventRecord(event, b))  # recording again does not move the wait
        check(hip.hipStreamSynchronize(b))
        seen = np.zeros(1, np.int32)
        check(hip.hipMemcpyAsync(seen, memory.pointer, 4, kind(D2H), b))
        check(hip.hipStreamSynchronize(b))
        assert seen[0] == 6
        check(hip.hipStreamSynchronize(a))


def test_long_chains_across_streams(kernel: Kernel) -> None:
    add, n = kernel("add_one"), 8
    with (
        Memory(4, np.zeros(1, np.int32)) as memory,
        streams(*[NON_BLOCKING] * n) as chain,
        events(1) as (event,),
    ):
        for i in range(20 * n):
            launch(add, memory.address, stream=chain[i % n])
            check(hip.hipEventRecord(event, chain[i % n]))
            check(hip.hipStreamWaitEvent(chain[(i + 1) % n], event, 0))
        check(hip.hipEventSynchronize(event))
        assert memory.get()[0] == 20 * n


@late_only
def test_event_times_and_states(kernel: Kernel) -> None:
    with Memory(4, np.ones(1, np.int32)) as memory, events(3) as (start, stop, never):
        check(hip.hipEventQuery(never))
        check(hip.hipEventSynchronize(never))
        check(hip.hipEventRecord(start, None))
        launch(kernel("spin"), memory.address, i32(100000))
        check(hip.hipEventRecord(stop, None))
        milliseconds = ctypes.c_float()
        arguments = ctypes.byref(milliseconds), void_p(address(start))
        assert lib.hipEventElapsedTime(*arguments, void_p(address(never))) == INVALID_HANDLE
        assert int(hip.hipEventQuery(stop)[0]) == NOT_READY
        check(hip.hipEventSynchronize(stop))
        check(hip.hipEventQuery(stop))
        elapsed = check(hip.hipEventElapsedTime(start, stop))
        assert 0.1 < elapsed < 20000
        untimed = check(hip.hipEventCreateWithFlags(2))
        check(hip.hipEventRecord(untimed, None))
        assert lib.hipEventElapsedTime(*arguments, void_p(address(untimed))) == INVALID_HANDLE
        assert "without timing" in report()
        check(hip.hipEventDestroy(untimed))


def test_an_event_may_go_before_it_is_reached(kernel: Kernel) -> None:
    with Memory(4, np.zeros(1, np.int32)) as memory, streams(NON_BLOCKING, NON_BLOCKING) as (a, b):
        with events(1) as (event,):
            launch(kernel("store"), memory.address, i32(4), stream=a)
            check(hip.hipEventRecord(event, a))
            check(hip.hipStreamWaitEvent(b, event, 0))
        launch(kernel("add_one"), memory.address, stream=b)
        check(hip.hipStreamSynchronize(b))
        assert memory.get()[0] == 5


def test_destroying_a_stream_finishes_its_work(kernel: Kernel) -> None:
    with Memory(4, np.zeros(1, np.int32)) as memory:
        with streams(NON_BLOCKING) as (stream,):
            launch(kernel("store"), memory.address, i32(3), stream=stream)
        assert memory.get()[0] == 3


def test_stream_properties() -> None:
    stream = void_p()
    flags, priority, device = ctypes.c_uint(), i32(), i32()
    assert lib.hipStreamCreateWithPriority(ctypes.byref(stream), 1, -7) == 0
    assert lib.hipStreamGetFlags(stream, ctypes.byref(flags)) == 0
    assert flags.value == 1
    assert lib.hipStreamGetPriority(stream, ctypes.byref(priority)) == 0
    assert priority.value == -1
    assert lib.hipStreamGetDevice(stream, ctypes.byref(device)) == 0
    assert device.value == 0
    assert lib.hipStreamDestroy(stream) == 0
    assert lib.hipStreamCreateWithFlags(ctypes.byref(stream), 6) == INVALID_VALUE


# ---- host functions --------------------------------------------------------------------------------


def wait_for(stream: Any) -> None:
    """By ctypes, which releases the GIL, as hip-python 7 does not."""
    check(lib.hipStreamSynchronize(void_p(address(stream))))


@late_only
def test_host_functions_run_in_their_place(kernel: Kernel) -> None:
    seen: list[int] = []
    with Memory(4, np.zeros(1, np.int32)) as memory, streams(NON_BLOCKING) as (stream,):
        host = np.zeros(1, np.int32)
        function = HOST_FUNCTION(lambda data: seen.append(int(host[0]) + int(data or 0)))
        launch(kernel("store"), memory.address, i32(6), stream=stream)
        check(hip.hipMemcpyAsync(host, memory.pointer, 4, kind(D2H), stream))
        check(lib.hipLaunchHostFunc(void_p(address(stream)), function, void_p(100)))
        assert seen == []
        wait_for(stream)
        assert seen == [106]


def test_a_host_function_must_not_wait() -> None:
    codes: list[int] = []
    with streams(0) as (stream,):
        function = HOST_FUNCTION(lambda _: codes.append(lib.hipDeviceSynchronize()))
        check(lib.hipLaunchHostFunc(void_p(address(stream)), function, None))
        wait_for(stream)
    assert codes == [ILLEGAL_STATE]


# ---- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stream", "event", "query", "device", "copy"])
def test_each_kind_of_wait_reports(kernel: Kernel, how: str) -> None:
    with Memory(4, np.zeros(1, np.int32)) as memory, streams(0) as (stream,), events(1) as (event,):
        launch(kernel("store"), memory.address + 400, i32(1), stream=stream)
        check(hip.hipEventRecord(event, stream))
        waits: dict[str, Callable[[], Any]] = {
            "stream": lambda: check(hip.hipStreamSynchronize(stream)),
            "event": lambda: check(hip.hipEventSynchronize(event)),
            "query": lambda: poll(stream),
            "device": lambda: check(hip.hipDeviceSynchronize()),
            "copy": memory.get,
        }
        with fails(ILLEGAL_ADDRESS, "kernel store"):
            waits[how]()
        check(hip.hipDeviceSynchronize())  # once
        check(hip.hipStreamSynchronize(stream))
        assert memory.get()[0] == 0


def test_lost_work_after_a_wait_is_not_reported_again(kernel: Kernel) -> None:
    """An error is reported once, even if some of the lost work is dropped later."""
    pointer, host = pinned(4)
    host[:] = 0
    with Memory(4, np.ones(1, np.int32)) as memory, streams(0) as (stream,), events(2) as (first, second):
        for _ in range(3):
            launch(kernel("store"), memory.address + 400, i32(1), stream=stream)
            check(hip.hipEventRecord(first, stream))
            check(hip.hipMemcpyAsync(pointer, memory.pointer, 4, kind(D2H), stream))
            check(hip.hipEventRecord(second, stream))
            with fails(ILLEGAL_ADDRESS, "kernel store"):
                check(hip.hipEventSynchronize(first))
            check(hip.hipEventSynchronize(second))
            check(hip.hipStreamSynchronize(stream))
            assert host[0] == 0
        check(hip.hipMemcpyAsync(pointer, memory.pointer, 4, kind(D2H), stream))
        check(hip.hipStreamSynchronize(stream))
        assert host[0] == 1
    check(hip.hipHostFree(pointer))


def test_memory_freed_before_a_copy_runs() -> None:
    pointer, _ = pinned(4)
    with streams(NON_BLOCKING) as (stream,):
        memory = check(hip.hipMallocAsync(4, stream))
        check(hip.hipFreeAsync(memory, stream))
        check(hip.hipMemcpyAsync(pointer, memory, 4, kind(D2H), stream))
        with fails(ILLEGAL_ADDRESS, "freed allocation #"):
            check(hip.hipStreamSynchronize(stream))
    check(hip.hipHostFree(pointer))


def test_a_failed_copy_leaves_the_device_alone(kernel: Kernel) -> None:
    with Memory(4, np.zeros(1, np.int32)) as memory, streams(0) as (stream,):
        launch(kernel("add_one"), memory.address, stream=stream)
        with pytest.raises(Failed, match="not accessible"):
            check(hip.hipMemcpyAsync(memory.pointer, 64, 4, kind(H2D), stream))
        with pytest.raises(Failed, match="not accessible"):
            check(hip.hipMemcpyAsync(64, memory.pointer, 4, kind(D2H), stream))
        check(hip.hipStreamSynchronize(stream))
        assert memory.get()[0] == 1


def test_every_thread_hears_of_its_own_failure(kernel: Kernel) -> None:
    """Both share the null stream; the first synchronization must not consume the other's error."""
    store, rounds = kernel("store"), 50
    outcome: dict[str, list[int]] = {"good": [], "bad": []}
    turn = threading.Barrier(2)

    def work(name: str, memory: Memory, offset: int) -> None:
        for i in range(rounds):
            turn.wait()
            try:
                launch(store, memory.address + offset, i32(i))
                got = memory.get()[0]
                outcome[name].append(0 if got == i else -1)
            except Failed as error:
                outcome[name].append(error.code)

    with Memory(4, np.zeros(1, np.int32)) as a, Memory(4, np.zeros(1, np.int32)) as b:
        threads = [threading.Thread(target=work, args=args) for args in (("good", a, 0), ("bad", b, 64))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # The other stream may lose work with the device, but then that is reported.
    assert outcome["bad"] == [ILLEGAL_ADDRESS] * rounds
    assert set(outcome["good"]) <= {0, ILLEGAL_ADDRESS}
    check(hip.hipDeviceSynchronize())


# ---- threads ---------------------------------------------------------------------------------------


def test_many_threads(kernel: Kernel) -> None:
    add, errors = kernel("add_one"), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            with streams(int(rng.integers(2))) as (stream,):
                for _ in range(25):
                    with Memory(int(rng.integers(4, 70000)), np.zeros(1, np.int32)) as memory:
                        n = int(rng.integers(1, 6))
                        for _ in range(n):
                            launch(add, memory.address, stream=stream)
                        check(hip.hipStreamSynchronize(stream))
                        assert memory.get()[0] == n
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


def test_per_thread_streams_are_apart() -> None:
    """Work is queued on this thread's own stream; another thread's wait for its own does not run it."""
    own = void_p(2)  # hipStreamPerThread
    pinned = check(hip.hipHostMalloc(4, 0))
    value = i32.from_address(address(pinned))
    value.value = 0
    codes = [lib.hipMemsetAsync(void_p(address(pinned)), 1, size_t(4), own)]
    other = threading.Thread(target=lambda: codes.append(lib.hipStreamSynchronize(own)))
    other.start()
    other.join()
    assert codes == [0, 0]
    assert value.value == 0
    check(lib.hipStreamSynchronize(own))
    assert value.value == 0x01010101
    check(hip.hipHostFree(pinned))


def test_a_process_may_end_with_work_queued(run_python: Any, code_object: Path) -> None:
    for mode in ("late", "eager"):
        body = f"""
module = check(hip.hipModuleLoad({str(code_object)!r}.encode()))
spin = check(hip.hipModuleGetFunction(module, b"spin"))
memory = Memory(4)
stream = check(hip.hipStreamCreate())
for _ in range(5): launch(spin, memory.address, i32(1000000), stream=stream)
print("end")
"""
        assert run_here(run_python, body, HIPGEMM_EMULATOR_ASYNC=mode).strip() == "end"


# ---- several devices -------------------------------------------------------------------------------


def test_several_devices(run_python: Any, code_object: Path) -> None:
    body = f"""
def module():
    return check(hip.hipModuleLoad({str(code_object)!r}.encode()))

def expect(code, *parts):
    class Context:
        def __enter__(self): pass
        def __exit__(self, t, error, tb):
            assert isinstance(error, Failed) and error.code == code, error
            assert all(p in error.report for p in parts), error
            return True
    return Context()

assert check(hip.hipGetDeviceCount()) == 3
memory, function, free = [], [], []
for d in range(3):
    check(hip.hipSetDevice(d))
    free.append(check(hip.hipMemGetInfo())[0])
    memory.append(Memory(4, np.array([10 * d], np.int32)))
    function.append(check(hip.hipModuleGetFunction(module(), b"add_one")))
check(hip.hipSetDevice(1))
assert check(hip.hipGetDevice()) == 1

launch(function[1], memory[1].address)
assert memory[1].get()[0] == 11
with expect({INVALID_HANDLE}, "loaded on device 0", "stream is of device 1"):
    launch(function[0], memory[0].address)
with expect({ILLEGAL_ADDRESS}, "no peer access"):
    launch(function[1], memory[0].address)
    check(hip.hipDeviceSynchronize())
with expect(101): check(hip.hipDeviceEnablePeerAccess(1, 0))
check(hip.hipDeviceEnablePeerAccess(0, 0))
with expect(704): check(hip.hipDeviceEnablePeerAccess(0, 0))
launch(function[1], memory[0].address)
check(hip.hipDeviceSynchronize())
assert memory[0].get()[0] == 1
check(hip.hipDeviceDisablePeerAccess(0))
with expect(705): check(hip.hipDeviceDisablePeerAccess(0))
with expect({ILLEGAL_ADDRESS}):
    launch(function[1], memory[0].address)
    check(hip.hipDeviceSynchronize())
check(hip.hipMemcpyPeer(memory[2].pointer, 2, memory[1].pointer, 1, 4))
assert memory[2].get()[0] == 11
with expect({INVALID_VALUE}, "src: ", "is memory of device 1, not of device 0"):
    check(hip.hipMemcpyPeer(memory[2].pointer, 2, memory[1].pointer, 0, 4))
with expect({INVALID_VALUE}, "dst: ", "is memory of device 2, not of device 1"):
    check(hip.hipMemcpyPeerAsync(memory[2].pointer, 1, memory[1].pointer, 1, 4, None))

# A fault on one device does not stop another.
launch(function[1], memory[0].address)
check(hip.hipSetDevice(2))
launch(function[2], memory[2].address)
assert memory[2].get()[0] == 12
check(hip.hipSetDevice(1))
with expect({ILLEGAL_ADDRESS}): check(hip.hipDeviceSynchronize())

# Events and streams belong to their device; another thread begins on device 0.
stream, event = check(hip.hipStreamCreate()), check(hip.hipEventCreate())
check(hip.hipSetDevice(2))
with expect({INVALID_HANDLE}, "device 1", "device 2"): check(hip.hipEventRecord(event, None))
check(hip.hipEventRecord(event, stream))
check(hip.hipStreamWaitEvent(None, event, 0))
seen = []
thread = threading.Thread(target=lambda: seen.append(check(hip.hipGetDevice())))
thread.start(); thread.join()
assert seen == [0]

check(hip.hipDeviceReset())
assert check(hip.hipMemGetInfo())[0] < free[2]  # the module stays
with expect({INVALID_VALUE}, "freed"): check(hip.hipFree(memory[2].pointer))
print("ok")
"""
    assert run_here(run_python, body, HIPGEMM_EMULATOR_DEVICES="3").strip() == "ok"
