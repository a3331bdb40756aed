"""An exception at any instruction of a call that uses several devices: tests/device/test_interrupts.py."""

import threading
import time
from collections.abc import Callable
from typing import Any

import interrupting
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.distributed import sharded_array, sharding
from hipgemm.runtime import hip as _hip
from hipgemm.testing import random_matrix

rng = np.random.default_rng(4)
A, B = random_matrix((2, 12, 32), rng), random_matrix((32, 8), rng)


def on_host(split: str) -> Callable[[], Any]:
    a = A if split == "batch" else A[0]
    return lambda: hg.sharded_matmul(a, B, split=split, devices=[0, 1])


def resident(split: str, cut: int, other: int | None) -> Callable[[], Any]:
    a, b = hg.shard(A[0], [0, 1], axis=cut), hg.shard(B, [0, 1], axis=other)
    return lambda: hg.sharded_matmul(a, b, split=split).get()


def across() -> Callable[[], Any]:
    """From device to device, each way, on streams of both."""
    x, stream = hg.asarray(B, device=1), hg.Stream(0)
    return lambda: hg.asarray(hg.asarray(x, device=0, stream=stream), device=1).get()


def first_streams() -> Callable[[], Any]:
    call = resident("k", -1, 0)

    def first() -> Any:
        sharding._all_copies.clear()
        return call()

    return first


CALLS: dict[str, Callable[[], Callable[[], Any]]] = {
    "shard": lambda: lambda: hg.shard(A, [0, 1], axis=1).get(),
    **{f"NumPy, {split}": lambda split=split: on_host(split) for split in ("m", "n", "k", "batch")},
    "resident, m": lambda: resident("m", 0, None),
    "resident, k": lambda: resident("k", -1, 0),
    "across": across,
    "first streams": first_streams,
}


@pytest.mark.parametrize("name", CALLS)
def test_at_each_instruction(name: str, devices: list[int]) -> None:
    assert interrupting.check(CALLS[name]()) > 100


def test_parts_end_before_the_call(devices: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C stops what other threads wait for: nothing of the call runs on after it."""
    running: list[int] = []
    interrupted: list[bool] = []

    def part(i: int) -> None:
        running.append(i)
        try:
            while not _hip._of_thread.stop():
                time.sleep(1e-4)
        finally:
            running.remove(i)

    class Clock:
        @staticmethod
        def sleep(seconds: float) -> None:
            time.sleep(seconds)
            if (
                len(running) == 3
                and not interrupted
                and threading.current_thread() is threading.main_thread()
            ):
                interrupted.append(True)
                raise KeyboardInterrupt

    monkeypatch.setattr(sharded_array, "time", Clock)
    with pytest.raises(KeyboardInterrupt):
        sharded_array.on_each([0, 1, 0], part)
    assert not running
