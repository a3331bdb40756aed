"""HIP fails during a call: it raises, no memory is leaked, then the same call is correct."""

import gc
from contextlib import suppress
from functools import partial

import fuzz
import fuzz_layers
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.runtime import hip as _hip

CALLS = ("call", "launch", "allocate", "copy", "copy_rows", "clear", "clear_rows")
KINDS = {
    "matmul": (fuzz.make, fuzz.run),
    "quantizers": (fuzz_layers.make_quantizing, fuzz_layers.run_quantizing),
    "linear": (fuzz_layers.make_layering, fuzz_layers.run_layering),
}


class FaultInjector:
    """Counts the calls of HIP, and lets one of them fail."""

    def __init__(self, monkeypatch):
        self.count, self.at, self.error = 0, 0, None
        for name in CALLS:
            monkeypatch.setattr(_hip, name, self._watched(getattr(_hip, name)))

    def _watched(self, function):
        def watched(*args):
            if args[:1] == ("hipFree",):  # in finalizers, where errors are ignored
                return function(*args)
            self.count += 1
            if self.count == self.at:
                raise self.error
            return function(*args)

        return watched

    def total(self, call):
        """The number of HIP calls in a call."""
        self.count, self.at = 0, 0
        call()
        return self.count

    def inject(self, call, at, error):
        """Let the nth call fail; False if there were fewer."""
        self.count, self.at, self.error = 0, at, error
        with suppress(type(error)):
            call()
        error.__traceback__ = None  # which refers to the arrays of the call
        self.at, self.error = 0, None
        return self.count >= at


def in_use(at_most=None):
    """Bytes in use; garbage is collected first unless they are few enough."""
    hg.synchronize()
    pool = _hip.runtime().pools[0]
    pool.reclaim()
    found = pool.bytes - pool.cached
    if at_most is not None and found > at_most:
        gc.collect()
        return in_use()
    return found


@pytest.mark.parametrize(
    "error", [hg.HipError("a call", 999, "hipErrorUnknown", ""), KeyboardInterrupt()], ids=type
)
@pytest.mark.parametrize("kind", KINDS)
def test_any_call_of_hip_may_fail(kind, error, monkeypatch):
    make, run = KINDS[kind]
    rng = np.random.default_rng(0)
    injected = 0
    for seed in range(8):
        case = make(seed)
        call = partial(run, case)
        call()
        before = in_use()
        injector = FaultInjector(monkeypatch)
        for at in rng.integers(1, 1 + max(1, injector.total(call)), 2):
            injected += injector.inject(call, int(at), error)
            assert in_use(before) <= before, f"memory lost by failure {at} in {case}"
            call()
        monkeypatch.undo()
    assert injected > 10
