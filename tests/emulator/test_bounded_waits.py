"""Waits with a limit: a launch is suspended between workgroups, and continues at the next wait."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import asm
import numpy as np
import pytest

NOT_READY, INVALID_HANDLE = 600, 400
GROUPS = 3000
# Each workgroup counts for about a millisecond, then adds its number to its element.
BODY = """
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    v_lshlrev_b32 v1, 2, v0
    s_lshl_b32 s6, s2, 8
    v_add_u32 v1, s6, v1
    s_movk_i32 s8, 0x6000
again:
    s_sub_u32 s8, s8, 1
    s_cmp_lg_u32 s8, 0
    s_cbranch_scc1 again
    s_waitcnt lgkmcnt(0)
    global_load_dword v2, v1, s[4:5]
    s_waitcnt vmcnt(0)
    v_add_u32 v2, s2, v2
    global_store_dword v1, v2, s[4:5]
"""
WANT = np.repeat(np.arange(GROUPS, dtype=np.uint32), 64)


def call(name: str, *arguments: object) -> int:
    return int(getattr(asm.library(), name)(*arguments))


class Launches:
    """A slow kernel, its buffer and a stream."""

    def __init__(self) -> None:
        self.module = asm.Module({"long": asm.Snippet(BODY, kernarg=8)})
        self.function, self.buffer, self.stream = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        asm._call("hipModuleGetFunction", ctypes.byref(self.function), self.module._module, b"long")
        asm._call("hipMalloc", ctypes.byref(self.buffer), ctypes.c_size_t(WANT.nbytes))
        asm._call("hipMemset", self.buffer, 0, ctypes.c_size_t(WANT.nbytes))
        asm._call("hipStreamCreateWithFlags", ctypes.byref(self.stream), 1)

    def launch(self, stream: ctypes.c_void_p | None = None) -> None:
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(self.buffer))
        where = self.stream if stream is None else stream
        asm._call("hipModuleLaunchKernel", self.function, GROUPS, 1, 1, 64, 1, 1, 0, where, arguments, None)

    def wait(self, milliseconds: int) -> int:
        return call("hipgemm_emulator_wait_stream", self.stream, milliseconds)

    def result(self) -> Any:
        out = np.empty_like(WANT)
        asm._call(
            "hipMemcpy", out.ctypes.data_as(ctypes.c_void_p), self.buffer, ctypes.c_size_t(out.nbytes), 2
        )
        return out

    def close(self) -> None:
        asm._call("hipStreamDestroy", self.stream)
        asm._call("hipFree", self.buffer)
        self.module.close()


@contextmanager
def launches() -> Iterator[Launches]:
    made = Launches()
    try:
        yield made
    finally:
        made.close()


def timed(wait: Callable[[], int]) -> tuple[int, float]:
    start = time.perf_counter()
    return wait(), time.perf_counter() - start


def test_a_wait_ends_in_time_and_the_launch_goes_on() -> None:
    with launches() as it:
        it.launch()
        times = []
        while True:
            code, seconds = timed(lambda: it.wait(20))
            if code != NOT_READY:
                break
            times.append(seconds)
        assert code == 0
        assert len(times) >= 3
        assert np.median(times) < 0.1  # 20 ms, and the workgroups already started
        assert (it.result() == WANT).all()


@pytest.mark.parametrize("finish", ["hipStreamSynchronize", "hipDeviceSynchronize", "hipFree"])
def test_any_blocking_call_ends_what_was_put_off(finish: str) -> None:
    with launches() as it:
        it.launch()
        it.launch()
        assert it.wait(5) == NOT_READY
        if finish == "hipFree":
            other = ctypes.c_void_p()
            asm._call("hipMalloc", ctypes.byref(other), ctypes.c_size_t(64))
            asm._call("hipFree", other)
        elif finish == "hipStreamSynchronize":
            asm._call(finish, it.stream)
        else:
            asm._call(finish)
        assert it.wait(0) == 0
        assert (it.result() == 2 * WANT).all()


def test_a_limit_of_nothing_still_gets_there() -> None:
    with launches() as it:
        it.launch()
        rounds = 0
        while it.wait(0) == NOT_READY:
            rounds += 1
        assert 0 < rounds <= GROUPS
        assert (it.result() == WANT).all()


def test_events_devices_and_what_other_streams_do() -> None:
    """The limit holds for what the stream waits for as well."""
    with launches() as it, launches() as other:
        event = ctypes.c_void_p()
        asm._call("hipEventCreate", ctypes.byref(event))
        assert call("hipgemm_emulator_wait_event", event, 0) == 0  # never recorded
        it.launch()
        asm._call("hipEventRecord", event, it.stream)
        asm._call("hipStreamWaitEvent", other.stream, event, 0)
        other.launch()
        for wait in (
            lambda: other.wait(5),
            lambda: call("hipgemm_emulator_wait_event", event, 5),
            lambda: call("hipgemm_emulator_wait_device", 5),
        ):
            code, seconds = timed(wait)
            assert code == NOT_READY
            assert seconds < 0.1
        while call("hipgemm_emulator_wait_device", 50) == NOT_READY:
            pass
        assert (it.result() == WANT).all()
        assert (other.result() == WANT).all()
        asm._call("hipEventDestroy", event)


def test_two_threads_share_the_work() -> None:
    """One waits with a limit, the other to the end; each may continue the other's launch."""
    with launches() as it:
        for _ in range(3):
            it.launch()
        codes: list[int] = []

        def to_the_end() -> None:
            codes.append(call("hipStreamSynchronize", it.stream))

        assert it.wait(5) == NOT_READY
        thread = threading.Thread(target=to_the_end)
        thread.start()
        while (code := it.wait(3)) == NOT_READY:
            pass
        thread.join(60)
        assert (code, codes) == (0, [0])
        assert (it.result() == 3 * WANT).all()


def test_faults_are_reported_once() -> None:
    with launches() as it:
        held, it.buffer = it.buffer, ctypes.c_void_p(64)
        it.launch()
        it.buffer = held
        codes = [it.wait(1000) for _ in range(2)]
        assert codes == [700, 0]
        assert call("hipgemm_emulator_wait_stream", ctypes.c_void_p(12345), 1) == INVALID_HANDLE


def test_counters_are_those_of_one_launch() -> None:
    lib = asm.library()
    lib.hipgemm_emulator_counter_names.restype = ctypes.c_char_p
    names = lib.hipgemm_emulator_counter_names().decode().split()
    found = []
    for limit in (1, 600_000):
        with launches() as it:
            lib.hipgemm_emulator_reset_counters()
            it.launch()
            while it.wait(limit) == NOT_READY:
                pass
            values = (ctypes.c_uint64 * len(names))()
            lib.hipgemm_emulator_counters(values, len(names))
            found.append({n: v for n, v in zip(names, values, strict=True) if n != "nanoseconds"})
    assert found[0] == found[1]
    assert (found[0]["launches"], found[0]["workgroups"]) == (1, GROUPS)


def test_ctrl_c_is_answered_in_a_tenth_of_a_second(run_python: Callable[..., Any]) -> None:
    code = """
import os, signal, sys, threading, time
sys.path.insert(0, "tests/emulator")
from test_bounded_waits import *
it = Launches()
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
for _ in range(400): it.launch()  # seconds of work
sent = []
def send():
    sent.append(time.perf_counter())
    os.kill(os.getpid(), signal.SIGINT)
threading.Timer(0.3, send).start()
try:
    while it.wait(50) == NOT_READY: pass
except KeyboardInterrupt:
    print(time.perf_counter() - sent[0])
    os._exit(0)
"""
    done = run_python(code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1


def test_checks_see_one_launch(run_python: Callable[..., Any]) -> None:
    """The checks keep their state when a launch is suspended: two workgroups, one address."""
    code = """
import sys
sys.path.insert(0, "tests/emulator")
from test_bounded_waits import *
import test_bounded_waits as t
it = Launches()
race = asm.Module({"long": asm.Snippet(BODY.replace("s_lshl_b32 s6, s2, 8", "s_mov_b32 s6, 0"), kernarg=8)})
asm._call("hipModuleGetFunction", ctypes.byref(it.function), race._module, b"long")
it.launch()
codes = []
while (code := it.wait(0)) == NOT_READY: codes.append(code)
lib = asm.library()
print(len(codes), code, lib.hipgemm_emulator_last_report().decode())
"""
    done = run_python(code, HIPGEMM_EMULATOR_CHECK="race", HIPGEMM_EMULATOR_THREADS="1")
    assert done.returncode == 0, done.stderr
    parts, code_, report = done.stdout.split(maxsplit=2)
    assert (int(parts), int(code_)) == (1, 719), done.stdout
    assert "workgroups of a launch run in no order" in report
