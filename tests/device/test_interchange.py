"""Arrays of other libraries come in without a copy, and ours go out."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import _dlpack

BF16 = np.dtype(ml_dtypes.bfloat16)


class Foreign:
    """An array of another library, in memory that is ours for the test."""

    def __init__(self, x, kind=10):
        self.x, self.kind, self.streams = x, kind, []

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        return _dlpack.export(self.x.ptr, 0, self.x.shape, self.x.strides, self.x.dtype, self)


class ForeignInterface:
    def __init__(self, x, **changes):
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **changes}


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32, np.int64], ids=str)
def test_dlpack_both_ways(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    ours = hg.asarray(x)
    for view, expected in ((ours, x), (ours.T, x.T), (ours[::-1, 1:3], x[::-1, 1:3])):
        assert view.__dlpack_device__() == (10, 0)
        taken = hg.asarray(Foreign(view))
        assert (taken.ptr, taken.shape, taken.strides) == (view.ptr, view.shape, view.strides)
        np.testing.assert_array_equal(taken.get(), expected)


def test_dlpack_tells_the_stream(streams):
    source, stream = Foreign(hg.zeros(4, np.float32)), streams()
    hg.asarray(source)
    hg.asarray(source, stream=stream)
    assert source.streams == [0, stream]


def test_the_owner_lives_while_it_is_used():
    source = Foreign(hg.asarray(np.arange(4, dtype=np.float32)))
    alive = weakref.ref(source)
    taken = hg.asarray(source)[1:]
    del source
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(taken.get(), [1, 2, 3])
    del taken
    gc.collect()
    hg.zeros(1, np.int8).get()  # what was let go of is cleared at the next allocation
    hg.zeros(1, np.int8).get()
    gc.collect()
    assert alive() is None


def test_exports_protect_memory():
    x = hg.asarray(np.arange(4, dtype=np.float32))
    capsule = x.__dlpack__()
    with pytest.raises(BufferError, match="no other library may hold the array; got 1 exports"):
        x.free()
    block = weakref.ref(x._block)
    del x
    assert block() is not None
    del capsule
    assert block() is None


def test_copies_leave_the_source():
    source = Foreign(hg.asarray(np.arange(4, dtype=np.float32)))
    copy = hg.asarray(source, copy=True)
    assert copy.ptr != source.x.ptr
    np.testing.assert_array_equal(copy.get(), [0, 1, 2, 3])


def test_host_memory_is_refused():
    with pytest.raises(BufferError, match=r"must be on an AMD device \(DLPack type 10\); got type 1"):
        hg.asarray(Foreign(hg.zeros(4, np.float32), kind=1))


@pytest.mark.parametrize(
    "arguments", [{"dl_device": (1, 0)}, {"copy": True}], ids=["another device", "a copy"]
)
def test_dlpack_refuses(arguments):
    with pytest.raises(BufferError):
        hg.zeros(2, np.float32).__dlpack__(**arguments)


def test_dlpack_accepts_what_protocols_pass():
    x = hg.zeros(2, np.float32)
    assert x.__dlpack__(stream=-1, max_version=(1, 1), dl_device=(10, 0), copy=False) is not None


def test_array_interface_both_ways():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    ours = hg.asarray(x)
    assert ours.__cuda_array_interface__ == {
        "shape": (3, 4),
        "strides": None,
        "typestr": "<f4",
        "data": (ours.ptr, False),
        "stream": 1,
        "version": 3,
    }
    for view, expected in ((ours, x), (ours.T, x.T), (ours[1:, ::2], x[1:, ::2])):
        taken = hg.asarray(ForeignInterface(view))
        assert (taken.ptr, taken.strides) == (view.ptr, view.strides)
        np.testing.assert_array_equal(taken.get(), expected)


def test_bfloat16_has_no_array_interface():
    x = hg.zeros(2, BF16)
    assert not hasattr(x, "__cuda_array_interface__")
    with pytest.raises(BufferError, match="use DLPack"):
        _ = x.__cuda_array_interface__


def test_read_only_memory_is_no_output():
    x = np.ones((8, 8), np.float32)
    ours = hg.asarray(x)
    frozen = hg.asarray(ForeignInterface(ours, data=(ours.ptr, True)))
    a = hg.asarray(x.astype(BF16))
    with pytest.raises(ValueError, match="out must be writeable"):
        hg.matmul(a, a, frozen)
    with pytest.raises(BufferError, match="read-only"):
        frozen.__dlpack__()


def test_addresses_of_nobody_are_refused():
    host = np.zeros(4, np.float32)
    for address in (0x1234, host.__array_interface__["data"][0]):
        with pytest.raises((BufferError, hg.HipError), match=r"must be in the memory of|hipPointerGetAttr"):
            hg.asarray(ForeignInterface(hg.zeros(4, np.float32), data=(address, False)))


def test_taken_arrays_multiply(rng):
    a, w = (hg.asarray(rng.integers(-3, 4, (16, 32)).astype(BF16)) for _ in range(2))
    expected = hg.matmul(a, w.T).get()
    np.testing.assert_array_equal(hg.matmul(hg.asarray(Foreign(a)), hg.asarray(Foreign(w)).T).get(), expected)


def test_numpy_says_why_it_cannot_take_device_memory():
    x = hg.asarray(np.ones((2, 3), np.float32))
    with pytest.raises((RuntimeError, BufferError), match=r"[Dd]evice"):
        np.from_dlpack(x)
    x.free()  # would refuse while a capsule is out
