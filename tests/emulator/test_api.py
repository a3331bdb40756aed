"""Devices, errors and settings of the emulated HIP runtime."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
from hipapi import (
    INVALID_DEVICE,
    INVALID_VALUE,
    NOT_FOUND,
    check,
    fails,
    hip,
    lib,
    report,
)

i32, void_p = ctypes.c_int32, ctypes.c_void_p


def properties(device: int) -> Any:
    if hip.__name__.startswith("rocm."):
        return check(hip.hipGetDeviceProperties(device))
    result = hip.hipDeviceProp_t()
    check(hip.hipGetDeviceProperties(result, device))
    return result


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def test_properties() -> None:
    p = properties(0)
    assert text(p.name).startswith("AMD Instinct MI355X")
    assert text(p.gcnArchName) == "gfx950:sramecc+:xnack-"
    assert (p.multiProcessorCount, p.warpSize, p.maxThreadsPerBlock) == (256, 64, 1024)
    assert 0 < p.totalGlobalMem <= min(288 << 30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    assert p.sharedMemPerBlock == p.maxSharedMemoryPerMultiProcessor == 160 << 10
    assert (p.major, p.minor, p.isLargeBar, p.asicRevision) == (9, 5, 1, 0)
    with fails(INVALID_DEVICE, "got 1"):
        properties(1)


def test_attributes_agree_with_properties() -> None:
    p = properties(0)
    names = {
        "MultiprocessorCount": p.multiProcessorCount,
        "MaxSharedMemoryPerBlock": p.sharedMemPerBlock,
        "WarpSize": p.warpSize,
        "MaxGridDimY": p.maxGridSize[1],
        "ComputeCapabilityMinor": p.minor,
        "NumberOfXccs": 8,
    }
    for name, value in names.items():
        attribute = getattr(hip.hipDeviceAttribute_t, "hipDeviceAttribute" + name)
        assert check(hip.hipDeviceGetAttribute(attribute, 0)) == value, name
    value = i32()
    assert lib.hipDeviceGetAttribute(ctypes.byref(value), 12345, 0) == INVALID_VALUE
    assert "12345" in report()


def test_every_error_has_name_and_text() -> None:
    for name, error in hip.hipError_t.__members__.items():
        got = lib.hipGetErrorName(int(error)).decode()
        same = {n for n, e in hip.hipError_t.__members__.items() if int(e) == int(error)}
        assert got in same or name in ("hipErrorTbd", "hipErrorInvalidClusterSize"), (name, got)
        assert lib.hipGetErrorString(int(error))
    assert lib.hipGetErrorName(-5) == b"hipErrorUnknown"
    result = ctypes.c_char_p()
    assert lib.hipDrvGetErrorName(-5, ctypes.byref(result)) == INVALID_VALUE
    assert not result.value


def test_last_error_is_kept_until_read() -> None:
    check(hip.hipDeviceSynchronize())
    hip.hipGetLastError()
    assert lib.hipSetDevice(99) == INVALID_DEVICE
    check(hip.hipSetDevice(0))  # a success does not clear it
    assert int(hip.hipPeekAtLastError()[0]) == INVALID_DEVICE
    assert int(hip.hipGetLastError()[0]) == INVALID_DEVICE
    assert int(hip.hipGetLastError()[0]) == 0


def test_unknown_function_fails_in_hip_python_not_in_a_crash() -> None:
    with pytest.raises(RuntimeError, match="hipMemAddressFree"):
        hip.hipMemAddressFree(None, 0)


def test_looking_up_functions_by_name() -> None:
    function, status = void_p(), i32(-1)
    arguments = ctypes.byref(function), 0, ctypes.c_uint64(0), ctypes.byref(status)
    assert lib.hipGetProcAddress(b"hipMalloc", *arguments) == 0
    assert status.value == 0
    assert function.value == ctypes.cast(lib.hipMalloc, void_p).value
    assert lib.hipGetProcAddress(b"hipNope", *arguments) == NOT_FOUND
    assert status.value == 1


@pytest.mark.parametrize(
    ("arch", "count", "ok"),
    [("gfx942:sramecc+:xnack-", "1", True), ("gfx950", "0", False)],
)
def test_environment(run_python: Any, arch: str, count: str, ok: bool) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
print(text(properties(0).gcnArchName))
"""
    child = run_python(code, HIPGEMM_EMULATOR_ARCH=arch, HIPGEMM_EMULATOR_DEVICES=count)
    if ok:
        assert child.stdout.strip() == (arch if ":" in arch else arch + ":sramecc+:xnack-"), child.stderr
    else:
        assert "hipErrorNoDevice" in child.stderr


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("DEVICES", "x", "a number from 0 to 64"),
        ("DEVICES", "65", "a number from 0 to 64"),
        ("DEVICE_BYTES", "0", "a number from 1 to 309237645312 (288 GiB)"),
        ("DEVICE_BYTES", "309237645313", "a number from 1 to 309237645312 (288 GiB)"),
        ("DEVICE_BYTES", "1G", "a number from 1 to 309237645312 (288 GiB)"),
        ("ASYNC", "lazy", "late or eager"),
    ],
)
def test_a_wrong_variable_is_an_error_of_every_call(
    run_python: Any, name: str, value: str, wanted: str
) -> None:
    code = """
import ctypes
from hipgemm.runtime import hip as _hip
lib = ctypes.CDLL(str(_hip.EMULATOR))
lib.hipgemm_emulator_last_report.restype = ctypes.c_char_p
print(lib.hipInit(0), lib.hipGetDeviceCount(ctypes.byref(ctypes.c_int())), lib.hipDeviceSynchronize())
print(lib.hipgemm_emulator_last_report().decode())
"""
    child = run_python(code, **{f"HIPGEMM_EMULATOR_{name}": value})
    codes, report = child.stdout.splitlines()
    assert codes == "1 1 1", child.stdout
    assert report == f"hipDeviceSynchronize: HIPGEMM_EMULATOR_{name} must be {wanted}; got '{value}'"


def test_verbose_prints_reports(run_python: Any) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
lib.hipSetDevice(5)
"""
    child = run_python(code, HIPGEMM_EMULATOR_VERBOSE="1")
    assert "hipgemm emulator: hipSetDevice: device must be in 0..0; got 5" in child.stderr


def test_use_after_fork_is_an_error(run_python: Any) -> None:
    code = f"""
import os, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
check(hip.hipDeviceSynchronize())
pid = os.fork()
if pid == 0:
    code = lib.hipDeviceSynchronize()
    os._exit(10 if code == 3 and "fork" in report() else 11)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
check(hip.hipDeviceSynchronize())
"""
    child = run_python(code)
    assert child.stdout.strip() == "10", child.stderr


def test_contexts_are_devices(run_python: Any) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_api import *
first, second, got = void_p(), void_p(), void_p()
check(lib.hipCtxGetCurrent(ctypes.byref(first)))
check(lib.hipDevicePrimaryCtxRetain(ctypes.byref(second), 1))
assert first.value != second.value
check(lib.hipCtxPushCurrent(second))
assert check(hip.hipGetDevice()) == 1
check(lib.hipCtxPopCurrent(ctypes.byref(got)))
assert got.value == second.value and check(hip.hipGetDevice()) == 0
assert lib.hipCtxPopCurrent(None) == lib.hipCtxSetCurrent(void_p(8)) == 201
check(lib.hipCtxSetCurrent(second))
assert check(hip.hipGetDevice()) == 1
print("ok")
"""
    child = run_python(code, HIPGEMM_EMULATOR_DEVICES="2")
    assert child.stdout.strip() == "ok", child.stderr
