"""Other users of the driver in this process: their streams, memory and device work."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.array import dlpack as _dlpack
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, exact_grid


class Driver:
    """The functions that these tests need, by ctypes."""

    def __init__(self):
        self.library = ctypes.CDLL("libcuda.so.1")
        assert self.library.cuInit(0) == 0

    def call(self, name, *arguments):
        assert getattr(self.library, name)(*arguments) == 0, name

    def context(self, device):
        found = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(found), device)
        return found

    def current(self):
        found = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(found))
        return found.value

    def stream(self):
        made = ctypes.c_void_p()
        self.call("cuStreamCreateWithPriority", ctypes.byref(made), 1, 0)
        return made.value

    def memory(self, nbytes):
        made = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(made), ctypes.c_size_t(nbytes))
        return made.value


@pytest.fixture
def driver():
    hg.zeros(1, np.int8)  # hipgemm is there already, with a context
    return Driver()


class Theirs:
    """Memory of the driver, as an array interface."""

    def __init__(self, ptr, x, stream):
        self.__cuda_array_interface__ = {
            "data": (ptr, False),
            "shape": x.shape,
            "typestr": x.dtype.str,
            "stream": stream,
            "version": 3,
        }


def test_a_stream_of_the_driver(driver, rng):
    stream = driver.stream()
    a, w = exact_grid((70, 96), rng), exact_grid((45, 96), rng)
    x, y = hg.asarray(a, stream=stream), hg.asarray(w, stream=stream)
    out = hg.matmul(x, y.T, dtype=np.float32, stream=stream)
    assert_gemm_close(out.get(), a, w.T, exact=True)
    assert _hip.call("hipStreamGetFlags", stream) == 1
    assert int(_hip.call("hipStreamGetDevice", stream)) == 0
    assert int(_hip.call("hipStreamGetPriority", stream)) == 0
    ours = hg.Stream()
    ours.wait(hg.Event().record(stream))
    assert int(ours) != stream


def test_memory_of_the_driver(driver, rng):
    x, stream = exact_grid((32, 64), rng, dtype=np.dtype(np.float16)), driver.stream()
    ptr = driver.memory(x.nbytes)
    driver.call("cuMemcpy", ctypes.c_uint64(ptr), ctypes.c_uint64(x.ctypes.data), ctypes.c_size_t(x.nbytes))
    taken = hg.asarray(Theirs(ptr, x, stream))
    assert (taken.ptr, taken.device) == (ptr, 0)
    np.testing.assert_array_equal(taken.get(), x)
    assert_gemm_close(hg.matmul(taken, taken.T).get(), x, x.T)


class Producer:
    """An array of another library, by DLPack."""

    def __init__(self, x, kind):
        self.x, self.kind = x, kind

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream=None, max_version=None):
        x = self.x
        return _dlpack.export(x.ptr, 0, x.shape, x.strides, x.dtype, self, kind=self.kind)


def test_dlpack_calls_the_device_one_of_cuda():
    cuda, rocm = 2, 10  # kDLCUDA, kDLROCM
    x = hg.asarray(np.arange(6, dtype=np.float32))
    assert x.__dlpack_device__() == (cuda, 0)
    for arguments in ({}, {"max_version": (1, 0)}, {"dl_device": (cuda, 0)}):
        assert _dlpack.import_capsule(x.__dlpack__(**arguments)).device_type == cuda
    with pytest.raises(BufferError, match=r"dl_device must be \(2, 0\) or the host"):
        x.__dlpack__(dl_device=(rocm, 0))
    taken = hg.asarray(Producer(x, cuda))
    assert taken.ptr == x.ptr
    np.testing.assert_array_equal(taken.get(), x.get())
    with pytest.raises(BufferError, match=r"on a CUDA device \(DLPack type 2\); got type 10"):
        hg.asarray(Producer(x, rocm))


def test_destroyed_streams_are_reported_and_their_handles_return():
    first = int(_hip.call("hipStreamCreateWithFlags", 1))
    _hip.call("hipStreamDestroy", first)
    with pytest.raises(ValueError, match="stream must exist"):
        hg.zeros(4, np.float32, stream=first)
    with pytest.raises(hg.HipError):
        _hip.call("hipStreamDestroy", first)
    again = [int(_hip.call("hipStreamCreateWithFlags", 1)) for _ in range(3)]
    assert len(set(again)) == 3
    hg.zeros(4, np.float32, stream=again[0]).get()
    for stream in again:
        _hip.synchronize(stream)
        _hip.call("hipStreamDestroy", stream)


def test_streams_of_others_are_not_ours_to_destroy(driver):
    stream = driver.stream()
    with pytest.raises(hg.HipError, match="no such stream"):
        _hip.call("hipStreamDestroy", stream)
    _hip.synchronize(stream)


def test_the_current_device_is_the_driver_s(driver):
    if hg.info().devices[1:] == ():
        pytest.skip("needs two devices")
    contexts = [driver.context(device) for device in (0, 1)]
    try:
        driver.call("cuCtxSetCurrent", contexts[1])
        assert _hip.current_device() == 1
        assert hg.zeros(4, np.float32).device == 1
        hg.zeros(4, np.float32, device=0).get()
        assert driver.current() == contexts[1].value
    finally:
        driver.call("cuCtxSetCurrent", contexts[0])
    hg.asarray(np.ones(4, ml_dtypes.bfloat16), device=1).get()
    assert driver.current() == contexts[0].value


FAULT = """
import numpy as np, hipgemm as hg
small = hg.zeros((64, 64), np.float16)
class Liar:
    __cuda_array_interface__ = {
        "data": (small.ptr, False), "shape": (64, 64), "strides": (2**36, 2), "typestr": "<f2", "version": 3
    }
far = hg.asarray(Liar())
for _ in range(3):
    try:
        hg.matmul(far, small.T).get()
    except hg.HipError as error:
        print(error.name, bool(error.report))
"""


def test_a_fault_ends_no_process(run_python):
    """CUDA errors are sticky: every later call reports them, and the process ends normally."""
    done = run_python(FAULT)
    assert (done.returncode, done.stdout) == (0, "hipErrorIllegalAddress True\n" * 3), done.stderr
