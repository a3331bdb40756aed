"""Each public function with each hostile argument: the correct value, or an error that names both."""

import gc
import inspect
import os
import re
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hostile import ROWS, UNSTEADY, Refusal, Row, case, hostile, public, value

import hipgemm as hg

ERRORS = (TypeError, ValueError, IndexError, hg.UnsupportedError, hg.HipError, hg.InterchangeError)


CALLS = [case(row) for row in ROWS]
CASES = [case(row, name) for row in ROWS for name in row.arguments if name != "self"]


# Of the arguments, where one process tries what another has not; of devices' numbers always all.
ONLY = os.environ.get("HIPGEMM_TEST_HOSTILE")


def run(row: Row, values: dict[str, Any]) -> Any:
    """Call a function; return its value, or the exception."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", hg.PlainKernelWarning)
            made = row.call(values)
            made = value(made) if row.name not in UNSTEADY else type(made).__name__
            hg.synchronize()
            return made
    except Exception as error:
        return error


def right(row: Row) -> dict[str, Any]:
    return {name: make() for name, make in row.arguments.items()}


def check_error(row: Row, name: str, error: Exception, what: str) -> None:
    """It is of a documented type, and its message names the function once, and the argument."""
    if isinstance(error, Refusal):
        return  # the object's own
    if isinstance(error, OSError) and name == "path":
        return  # as open() raises it
    assert isinstance(error, ERRORS), f"{what}: {error!r}"
    text = str(error)
    if isinstance(error, hg.HipError):
        return  # out of memory: no check can predict it
    assert text.startswith(f"{row.prefix}: "), f"{what}: {text}"
    assert not text.startswith(f"{row.prefix}: {row.prefix}: "), f"{what}: {text}"
    assert text != f"{row.prefix}: ", what
    named = "|".join([*row.arguments, "axis", "arrays?", "part", "dtype", "__cuda_array_interface__"])
    assert re.search(rf"\b({named})\b", text), f"{what}: {text}"


def on_host(x: Any) -> Any:
    return x.get() if isinstance(x, hg.DeviceArray) else x


def check_near(got: Any, want: Any, what: str) -> None:
    """Other accepted arguments give correct results too."""
    if isinstance(want, tuple):
        for mine, theirs in zip(got, want, strict=True):
            check_near(mine, theirs, what)
        return
    got, want = (on_host(hg.dequantize(x) if isinstance(x, hg.ScaledArray) else x) for x in (got, want))
    assert got.shape == want.shape, what
    if want.dtype.kind not in "USM" and not want.dtype.names and want.dtype.type is not np.void:
        got, want = got.astype(np.complex128), want.astype(np.complex128)
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-3, err_msg=what)
    else:
        np.testing.assert_array_equal(got, want, what)


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """An invalid number must not allocate gigabytes."""
    hg.limit_memory(2**26)
    yield
    hg.limit_memory()


TOGETHER = 32  # hostile calls between two right ones


def used() -> int:
    gc.collect()
    hg.synchronize()
    return hg.memory_stats().used


@pytest.mark.parametrize("row", CALLS)
def test_a_row_is_a_right_call(row: Row) -> None:
    assert set(row.arguments) == set(inspect.signature(row.function).parameters)
    first, second = run(row, right(row)), run(row, right(row))
    assert not isinstance(first, Exception), repr(first)
    assert first == second


def test_each_public_function_has_a_row() -> None:
    assert {row.name for row in ROWS} >= set(public()) - {"least_k", "sent_bytes", "speedup"}


@pytest.mark.parametrize(("row", "name"), CASES)
def test_hostile_arguments(row: Row, name: str) -> None:
    expected = run(row, right(row))
    before = used()
    since: list[str] = []
    others: dict[str, Any] = {}
    for kind, called, argument in hostile(row.arguments[name]):
        if ONLY not in (None, called) and name not in ("device", "devices"):
            continue
        if name == "function" and callable(argument):
            continue  # what it raises is its own
        what = f"{row.name}({name}={called})"
        others = others or right(row)
        values = others | {name: argument}
        got = run(row, values)
        row.restore()
        if isinstance(got, Exception):
            check_error(row, name, got, what)
            del got
        elif kind == "same":
            assert got == expected, what
        elif got is False and row.name == "can_use":
            pass  # False, with reasons
        else:
            assert kind != "freed", f"{what} gives {got}"
            assert row.accepted(name, argument), f"{what} gives {got}"
            if row.oracle is not None:
                check_near(row.call(values), row.oracle(**{k: on_host(x) for k, x in values.items()}), what)
            others = {}  # a call that is refused changes no argument
        del values, argument
        since.append(what)
        if len(since) == TOGETHER:
            assert run(row, right(row)) == expected, f"after one of {since}"
            since.clear()
    assert run(row, right(row)) == expected, f"after one of {since}"
    others.clear()
    assert used() == before


ON_DEVICES = "matmul or linear or quantize_fp8 or asarray or device or pack_mx_scales"


@pytest.mark.emulator("several devices")
@pytest.mark.skipif("HIPGEMM_EMULATOR_DEVICES" in os.environ, reason="chooses the number of devices itself")
@pytest.mark.parametrize(("devices", "rows"), [("2", ON_DEVICES), ("8", "devices")])
def test_with_several_devices(devices: str, rows: str) -> None:
    """Arrays on another device are hostile as well, and more numbers of devices are valid."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            __file__,
            "-k",
            f"test_hostile_arguments and ({rows})",
        ],
        env=os.environ | {"HIPGEMM_EMULATOR_DEVICES": devices, "HIPGEMM_TEST_HOSTILE": "on another device"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout


@pytest.mark.parametrize("row", CALLS)
def test_right_calls_in_other_threads(row: Row) -> None:
    expected = run(row, right(row))
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(run(row, right(row)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3
