"""Interrupts a call at each of its instructions: nothing is held or lost, and the next call is right.

`sys.settrace` raises KeyboardInterrupt before the n-th bytecode instruction of all Python code but the
tests', for every n until the call runs through. So it does wherever a signal handler can raise: CPython runs
these where a function begins, at jumps backwards, and after a call, which is before the next instruction.
"""

from __future__ import annotations

import dis
import gc
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import hipgemm as hg
from hipgemm.runtime import hip as _hip

TESTS = str(Path(__file__).parent)
MOST = int(
    os.environ.get("HIPGEMM_TEST_INTERRUPTS", "250")
)  # of one call; 0: at every instruction, of any call
CREATED = {
    "hipMalloc": "hipFree",
    "hipHostMalloc": "hipHostFree",
    "hipModuleLoadData": "hipModuleUnload",
    "hipEventCreateWithFlags": "hipEventDestroy",
    "hipStreamCreateWithFlags": "hipStreamDestroy",
}


class _Tracer:
    """Counts instructions, and raises before one of them.

    To trace an instruction takes longer than to execute it. So where an earlier tracer knows how many
    instructions precede each call of a function, those before the last call are counted by it.
    """

    def __init__(self, at: int = 0, earlier: _Tracer | None = None) -> None:
        self.count, self.at, self.place = 0, at, ""
        self.before: list[int] = []  # instructions before each call
        self._calls, self._earlier = 0, earlier.before if earlier else [0]
        self._first = max(bisect_left(self._earlier, at) - 1, 0)  # the call from which on to trace

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_filename.startswith(TESTS):
            return None
        self._calls += 1
        if self._calls <= self._first:
            return None
        if self._calls == self._first + 1:
            self.count = self._earlier[self._first]
            caller = frame.f_back
            while caller:
                if not caller.f_code.co_filename.startswith(TESTS):
                    caller.f_trace = self._trace
                    caller.f_trace_lines, caller.f_trace_opcodes = False, True
                caller = caller.f_back
        self.before.append(self.count)
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        return self._trace

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self.at:
                sys.settrace(None)
                instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
                self.place = f"{frame.f_code.co_filename}:{frame.f_lineno}, {instruction} {frame.f_lasti}"
                raise KeyboardInterrupt
        return self._trace


def traced(call: Callable[[], object], at: int = 0, earlier: _Tracer | None = None) -> _Tracer:
    """Run a call, interrupted before an instruction; its tracer.

    In a thread of its own: before an instruction that begins or ends `except`, where no signal handler runs,
    an exception makes CPython forget to end the handling of the former one, which keeps frames alive.
    """
    tracer = _Tracer(at, earlier)

    def run() -> None:
        sys.settrace(tracer)
        try:
            call()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(None)

    in_another_thread(run)
    return tracer


class _Library:
    """The library by ctypes, counting what is created and destroyed."""

    def __init__(self, library: Any, counts: Counter[str]) -> None:
        self._library, self._counts = library, counts

    def __getitem__(self, name: str) -> Any:
        return self._library[name]

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        for create, destroy in CREATED.items():
            if name in (create, destroy):
                return self._counted(function, create, 1 if name == create else -1)
        return function

    def _counted(self, function: Any, name: str, change: int) -> Any:
        def counted(*arguments: Any) -> Any:
            error = function(*arguments)
            self._counts[name] += 0 if error else change
            return error

        return counted


def bytes_used() -> list[int]:
    """In use on each device: memory in arrays, and pinned buffers that are neither idle nor in flight."""
    found = []
    for device in range(_hip.runtime().devices):
        stats = hg.memory_stats(device)
        staging = _hip.runtime().staging[device]
        staging._collect_dropped()
        lists = [*staging._idle.values(), *staging._in_flight.values()]
        free = sum(buffer.size for buffers in lists for buffer in buffers)
        assert stats.pinned >= free
        found += [stats.used, stats.pinned - free]
    return found


def bytes_free() -> list[int]:
    """What HIP has free on each device when nothing is kept for reuse."""
    for device in range(_hip.runtime().devices):
        hg.synchronize(device)
    hg.trim()
    return [hg.memory_stats(device).free for device in range(_hip.runtime().devices)]


def check(
    call: Callable[[], Any],
    prepare: Callable[[], object] = lambda: None,
    after: Callable[[], object] = lambda: None,
    most: int = MOST,
) -> int:
    """Interrupt a call at each instruction, or at `most` of them; return how many there are.

    The call returns arrays or text, which must be those of a call without interrupts. `prepare` comes before
    each interrupted call, and `after` after it.
    """
    rt = _hip.runtime()
    expected = _bits(call())
    for _ in range(2):  # Python 3.12 traces instructions of a function from the second time on
        prepare()
        whole = traced(call)
        assert not whole.place
    gc.collect()
    free, used, device = bytes_free(), bytes_used(), _hip.current_device()
    library, counts = rt.handle, Counter[str]()
    rt.handle = _Library(library, counts)
    try:
        for at in instructions(whole.count, most):
            prepare()
            place = traced(call, at, whole).place
            assert _hip.current_device() == device, f"another device is current after {place}"
            after()
            assert _comes_to(used), f"lost at {place}"
            assert _bits(call()) == expected, f"wrong after {place}"
        gc.collect()
        assert bytes_free() == free
    finally:
        rt.handle = library
    lost = {name for name in ("hipMalloc", "hipHostMalloc", "hipModuleLoadData") if counts[name] > 0}
    lost |= {name for name in ("hipEventCreateWithFlags", "hipStreamCreateWithFlags") if counts[name] > 20}
    assert not lost, counts
    return whole.count


def _comes_to(used: list[int]) -> bool:
    """Whether so many bytes are in use, once garbage is collected and threads that were not needed end."""
    for _ in range(1000):
        if bytes_used() == used:
            return True
        gc.collect()
        time.sleep(1e-3)
    return False


def instructions(total: int, most: int = MOST) -> list[int]:
    """Which of so many instructions to interrupt: all, or `most`, spread evenly."""
    count = min(total, most or total)
    return [1 + i * total // count for i in range(count)]


def _bits(found: Any) -> list[bytes]:
    if isinstance(found, str):
        return [found.encode()]
    if isinstance(found, (list, tuple)):
        return [x for each in found for x in _bits(each)]
    return [np.asarray(found).tobytes()]


def in_another_thread(call: Callable[[], object]) -> None:
    """Run a call in a thread: there it would wait for ever for what an interrupted one holds."""
    done: list[bool] = []
    thread = threading.Thread(target=lambda: (call(), done.append(True)), daemon=True)
    thread.start()
    thread.join(60)
    assert done
