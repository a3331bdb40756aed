"""DLPack capsules, without a device: a round trip is exact, and everything is released once."""

import ctypes
import gc
import struct
import weakref

import ml_dtypes
import numpy as np
import pytest

from hipgemm.array import dlpack as _dlpack
from hipgemm.errors import InterchangeError


class Owner:
    pass


DTYPES = [np.float32, np.float16, np.int8, np.uint64, ml_dtypes.bfloat16, np.bool_]
FLOAT8 = [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu, ml_dtypes.float8_e4m3fnuz]


@pytest.mark.parametrize("dtype", DTYPES + FLOAT8)
def test_round_trip(dtype):
    dtype, owner = np.dtype(dtype), Owner()
    strides = (8 * dtype.itemsize, -dtype.itemsize)
    capsule = _dlpack.export(4096, 3, (2, 5), strides, dtype, owner)
    found = _dlpack.import_capsule(capsule)
    assert (found.ptr, found.device_type, found.device) == (4096, 10, 3)
    assert (found.shape, found.strides, found.dtype) == ((2, 5), strides, dtype)


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (np.int32, 0),
        (np.uint8, 1),
        (np.float16, 2),
        (ml_dtypes.bfloat16, 4),
        (np.bool_, 6),
        (ml_dtypes.float8_e4m3fn, 10),
        (ml_dtypes.float8_e5m2, 12),
        (ml_dtypes.float8_e8m0fnu, 14),
    ],
)
@pytest.mark.parametrize("version", [None, (1, 1)])
def test_codes_are_those_of_the_standard(dtype, code, version):
    """The numbers of dlpack.h, version 1.1, and the layout of its structs."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize
    capsule = _dlpack.export(4096, 2, (3, 5), (6 * size, size), dtype, None, max_version=version)
    versioned = version is not None and _dlpack._NUMPY_HAS_VERSIONS
    name = b"dltensor_versioned" if versioned else b"dltensor"
    address = _dlpack._pointer(capsule, name)
    if versioned:
        major, minor, _, deleter, flags = struct.unpack("=IIQQQ", ctypes.string_at(address, 32))
        assert (major, minor, flags) == (1, 1, 0)
        assert deleter
        address += 32
    tensor = ctypes.string_at(address, 48)
    data, kind, device, ndim, found, bits, lanes, shape, strides, offset = struct.unpack(
        "=QiiiBBHQQQ", tensor
    )
    assert (data + offset, kind, device, ndim) == (4096, 10, 2, 2)
    assert (found, bits, lanes) == (code, 8 * size, 1)
    assert struct.unpack("=qq", ctypes.string_at(shape, 16)) == (3, 5)
    assert struct.unpack("=qq", ctypes.string_at(strides, 16)) == (6, 1)


@pytest.mark.parametrize("taken", ["no", "yes", "in a cycle"])
def test_owner_lives_as_long_as_needed(taken):
    owner = Owner()
    alive = weakref.ref(owner)
    capsule = _dlpack.export(4096, 0, (2,), (4,), np.dtype(np.float32), owner)
    del owner
    assert alive() is not None
    if taken != "no":
        found = [_dlpack.import_capsule(capsule)]
        del capsule
        gc.collect()
        assert alive() is not None
        if taken == "in a cycle":
            found.append(found)
        del found
    else:
        del capsule
    gc.collect()
    assert alive() is None


def test_the_consumer_s_exception_survives_an_unused_capsule():
    owner = Owner()
    alive = weakref.ref(owner)

    class Source:
        def __dlpack_device__(self):
            return 10, 0

        def __dlpack__(self, **kwargs):
            return _dlpack.export(4096, 0, (2, 3), (12, 4), np.dtype(np.float32), self.owner)

    source = Source()
    source.owner = owner
    with pytest.raises((RuntimeError, BufferError), match=r"[Dd]evice"):  # NumPy reads no device memory
        np.from_dlpack(source)
    del source, owner
    gc.collect()
    assert alive() is None


def test_extreme_shapes():
    for shape, strides in (((0, 3), (12, 4)), ((), ()), ((1, 1), (400, 4)), ((3, 2), (0, 0)), ((4,), (-4,))):
        found = _dlpack.import_capsule(_dlpack.export(4096, 1, shape, strides, np.dtype(np.float32), None))
        assert (found.ptr, found.device, found.shape) == (4096, 1, shape)
        for n, got, given in zip(shape, found.strides, strides, strict=True):
            assert n <= 1 or 0 in shape or got == given


def test_a_capsule_is_taken_once():
    capsule = _dlpack.export(4096, 0, (), (), np.dtype(np.float32), None)
    found = _dlpack.import_capsule(capsule)
    assert found.shape == ()
    with pytest.raises(InterchangeError, match="unused capsule"):
        _dlpack.import_capsule(capsule)


def test_not_a_capsule():
    with pytest.raises(InterchangeError):
        _dlpack.import_capsule(object())


@pytest.mark.parametrize("dtype", [np.complex64, "S4", "M8[s]"])
def test_types_that_dlpack_lacks(dtype):
    with pytest.raises(InterchangeError, match="dtype must be one that DLPack has"):
        _dlpack.export(4096, 0, (2,), (8,), np.dtype(dtype), None)


def test_numpy_can_take_host_memory_s_layout():
    # NumPy uses the same struct: it must import a capsule made here for host memory.
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = _dlpack.import_capsule(x.__dlpack__())
    assert (found.device_type, found.shape, found.strides) == (1, (2, 3), (12, 4))
    assert found.ptr == x.__array_interface__["data"][0]


class Producer:
    """A producer that exports nothing: it records each call, and fails with `says`."""

    def __init__(self, says):
        self.says, self.calls = says, []

    def __dlpack__(self, **how):
        self.calls.append(sorted(how))
        raise TypeError(self.says)


def test_a_producer_s_own_type_error_is_reported_at_once():
    producer = Producer("this array exports nothing")
    with pytest.raises(TypeError, match=r"^this array exports nothing$") as caught:
        _dlpack.request_capsule(producer, _dlpack.ROCM, 0)
    assert producer.calls == [["max_version", "stream"]]
    assert caught.value.__context__ is None


def test_a_producer_that_knows_no_versions_is_asked_without():
    class Old:
        def __dlpack__(self, stream):
            return stream

    assert _dlpack.request_capsule(Old(), _dlpack.ROCM, 7) == 7

    class Wrapped:  # whose signature cannot be read
        def __dlpack__(self, **how):
            return Old().__dlpack__(**how)

    assert _dlpack.request_capsule(Wrapped(), _dlpack.CUDA, 0) == 1
    producer = Producer("got an unexpected keyword argument 'max_version'")
    with pytest.raises(TypeError) as caught:
        _dlpack.request_capsule(producer, _dlpack.ROCM, 0)
    assert producer.calls == [["max_version", "stream"], ["stream"]]
    assert caught.value.__context__ is None
