"""Import and export of arrays of other libraries, without a copy."""

import ctypes
import gc
import weakref
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.array import dlpack as _dlpack
from hipgemm.array.interop import device_kind
from hipgemm.runtime import hip as _hip

BF16 = np.dtype(ml_dtypes.bfloat16)


class ExternalArray:
    """An array of another library, in memory that this test allocates."""

    def __init__(self, x, kind=None):
        self.x, self.kind, self.streams = x, kind or device_kind(), []

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, *, stream=None):
        self.streams.append(stream)
        x = self.x
        return _dlpack.export(x.ptr, 0, x.shape, x.strides, x.dtype, self, kind=self.kind)


class ForeignInterface:
    def __init__(self, x, **changes):
        self.x = x
        self.__cuda_array_interface__ = {**x.__cuda_array_interface__, **changes}


@pytest.mark.parametrize("dtype", [BF16, np.float16, np.float32, np.int64], ids=str)
def test_dlpack_both_ways(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    ours = hg.asarray(x)
    for view, expected in ((ours, x), (ours.T, x.T), (ours[::-1, 1:3], x[::-1, 1:3])):
        assert view.__dlpack_device__() == (device_kind(), 0)
        taken = hg.asarray(ExternalArray(view))
        assert (taken.ptr, taken.shape, taken.strides) == (view.ptr, view.shape, view.strides)
        np.testing.assert_array_equal(taken.get(), expected)


def test_dlpack_reports_the_stream(streams):
    source, stream = ExternalArray(hg.zeros(4, np.float32)), streams()
    hg.asarray(source)
    hg.asarray(source, stream=stream)
    assert source.streams == [1 if device_kind() == _dlpack.CUDA else 0, stream]


def test_the_owner_lives_while_it_is_used():
    source = ExternalArray(hg.asarray(np.arange(4, dtype=np.float32)))
    alive = weakref.ref(source)
    taken = hg.asarray(source)[1:]
    del source
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(taken.get(), [1, 2, 3])
    del taken
    gc.collect()
    hg.zeros(1, np.int8).get()  # released imports are removed at the next allocation
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
    source = ExternalArray(hg.asarray(np.arange(4, dtype=np.float32)))
    copy = hg.asarray(source, copy=True)
    assert copy.ptr != source.x.ptr
    np.testing.assert_array_equal(copy.get(), [0, 1, 2, 3])


def test_host_memory_is_refused():
    text = rf"must be on an? \w+ device \(DLPack type {device_kind()}\); got type 1; pass host memory as"
    with pytest.raises(BufferError, match=text):
        hg.asarray(ExternalArray(hg.zeros(4, np.float32), kind=1))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"dl_device": (2, 1)}, "dl_device must be"),
        ({"dl_device": (10, 1)}, "dl_device must be"),
    ],
    ids=str,
)
def test_dlpack_refuses(arguments, text):
    with pytest.raises(BufferError, match=text):
        hg.zeros(2, np.float32).__dlpack__(**arguments)


def test_dlpack_refuses_streams():
    x = hg.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"__dlpack__: stream must be the same for all threads"):
        x.__dlpack__(stream=2)
    with pytest.raises(ValueError, match="__dlpack__: stream must exist"):
        x.__dlpack__(stream=0x123456789ABCDE0)


@pytest.mark.parametrize("version", [None, (0, 8), (1, 0), (1, 1), (2, 3)], ids=str)
def test_dlpack_accepts_what_protocols_pass(version):
    x = hg.asarray(np.arange(3, dtype=np.float32))
    capsule = x.__dlpack__(stream=-1, max_version=version, dl_device=(device_kind(), 0), copy=False)
    found = _dlpack.import_capsule(capsule)
    assert (found.ptr, found.shape, found.device_type, found.readonly) == (x.ptr, (3,), device_kind(), False)
    versioned = version is not None and version >= (1, 0) and hasattr(np, "unstack")  # NumPy from 2.1 on
    if versioned:
        address = _dlpack._pointer(capsule, _dlpack._USED[_dlpack._VERSIONED_NAME])
        content = ctypes.cast(address, ctypes.POINTER(_dlpack._Versioned)).contents
        assert (content.major, content.minor) == min((1, 1), version)
        assert content.flags == 0


def test_copies_by_dlpack():
    x = hg.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    found = _dlpack.import_capsule(x.T.__dlpack__(copy=True, max_version=(1, 1)))
    assert found.ptr != x.ptr
    assert found.shape == (3, 2)
    x.free()  # the copy does not hold it

    class Again:
        def __dlpack_device__(self):
            return device_kind(), 0

        def __dlpack__(self, **kwargs):
            return hg.asarray(np.arange(6, dtype=np.float32).reshape(2, 3)).T.__dlpack__(copy=True, **kwargs)

    np.testing.assert_array_equal(hg.asarray(Again()).get(), np.arange(6).reshape(2, 3).T)


@pytest.mark.skipif(not hasattr(np, "unstack"), reason="NumPy asks for the host from 2.1 on")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8, np.bool_], ids=str)
def test_numpy_takes_a_copy(dtype):
    x = np.arange(12).reshape(3, 4).astype(dtype)
    ours = hg.asarray(x)
    for view, expected in ((ours, x), (ours.T, x.T), (ours[::-1, 1:3], x[::-1, 1:3]), (ours[:0], x[:0])):
        taken = np.from_dlpack(view, device="cpu")
        assert taken.dtype == x.dtype
        np.testing.assert_array_equal(taken, expected)
        np.testing.assert_array_equal(np.from_dlpack(view, device="cpu", copy=True), expected)
    with pytest.raises(BufferError, match="an export to the host needs a copy"):
        np.from_dlpack(ours, device="cpu", copy=False)
    ours.free()  # nothing holds it
    np.testing.assert_array_equal(np.from_dlpack(hg.asarray(x), device="cpu"), x)  # the owner was deleted


@pytest.mark.skipif(not hasattr(np, "unstack"), reason="NumPy asks for the host from 2.1 on")
def test_numpy_takes_what_it_has_no_name_for_as_bytes():
    x = np.arange(12).reshape(3, 4).astype(BF16)
    ours = hg.asarray(x)
    with pytest.raises((RuntimeError, BufferError), match="dtype"):
        np.from_dlpack(ours, device="cpu")
    np.testing.assert_array_equal(np.from_dlpack(ours.view(np.uint16), device="cpu").view(BF16), x)
    np.testing.assert_array_equal(np.from_dlpack(ours.view(np.uint8), device="cpu").view(BF16), x)
    ours.free()


def test_torch_takes_a_copy():
    torch = pytest.importorskip("torch")
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for dtype, name in ((np.float32, "float32"), (BF16, "bfloat16"), (np.float16, "float16")):
        # By the capsule: for an array torch requires a stream, and without a GPU it has none.
        taken = torch.from_dlpack(hg.asarray(x.astype(dtype)).T.__dlpack__(dl_device=(1, 0)))
        assert str(taken.dtype) == f"torch.{name}"
        np.testing.assert_array_equal(taken.float().numpy(), x.T)


def test_readonly_is_reported():
    ours = hg.asarray(np.arange(4, dtype=np.float32))
    frozen = hg.asarray(ForeignInterface(ours, data=(ours.ptr, True)))
    with pytest.raises(BufferError, match="a read-only array needs a versioned capsule"):
        frozen.__dlpack__()
    if hasattr(np, "unstack"):

        class Versioned(ExternalArray):
            def __dlpack__(self, *, stream=None, max_version=None):
                return self.x.__dlpack__(stream=stream, max_version=max_version)

        taken = hg.asarray(Versioned(frozen))
        assert taken.readonly
        assert not hg.asarray(Versioned(ours)).readonly
        with pytest.raises(ValueError, match="out must be writeable"):
            hg.matmul(hg.zeros((2, 2), BF16), hg.zeros((2, 2), BF16), hg.asarray(Versioned(frozen)))


def test_versions_to_come_are_refused():
    capsule = hg.zeros(2, np.float32).__dlpack__(max_version=(1, 1))
    if not hasattr(np, "unstack"):
        pytest.skip("NumPy makes capsules with a version from 2.1 on")
    address = _dlpack._pointer(capsule, _dlpack._VERSIONED_NAME)
    ctypes.cast(address, ctypes.POINTER(_dlpack._Versioned)).contents.major = 2
    with pytest.raises(BufferError, match="the DLPack version must be 1; got 2"):
        _dlpack.import_capsule(capsule)


def test_an_export_is_ordered_after_all_work(streams):
    """The consumer may write, so it is ordered after readers, and later work is ordered after it."""
    first, second, third = streams(), streams(), streams()
    a = hg.asarray(np.eye(64).astype(BF16), stream=first)
    read = hg.matmul(a, a, dtype=np.float32, stream=second)
    a.__dlpack__(stream=third)
    _hip.clear(a.ptr, a.nbytes, third)  # the consumer writes
    np.testing.assert_array_equal(read.get(), np.eye(64))
    np.testing.assert_array_equal(hg.matmul(a, a, stream=first).get().astype(float), np.zeros((64, 64)))
    b = hg.asarray(np.eye(64).astype(np.float32).view(np.uint8), stream=first)
    x = hg.zeros((64, 64), np.float32, stream=first)
    hg.asarray(b, copy=True, stream=second)
    # On the bridge the call synchronizes the device, not the stream.
    named = 1 if _hip.runtime().kind == "bridge" else first
    assert b.__cuda_array_interface__["stream"] == named
    assert x.__cuda_array_interface__["stream"] == named


def test_views_of_other_types():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    ours = hg.asarray(x)
    for view, expected in ((ours, x), (ours[::2], x[::2]), (ours[1], x[1]), (ours[:, 1:3], x[:, 1:3])):
        for dtype in (np.uint8, np.int16, np.int32, np.float64):
            got = view.view(dtype)
            np.testing.assert_array_equal(got.get(), np.ascontiguousarray(expected).view(dtype))
            assert got.ptr == view.ptr
    np.testing.assert_array_equal(ours.T.view(np.int32).get(), x.T.view(np.int32))
    np.testing.assert_array_equal(
        hg.asarray(np.float32(1.5)).view(np.int32).get(), np.float32(1.5).view(np.int32)
    )
    with pytest.raises(ValueError, match=r"DeviceArray\.view: the last axis must be contiguous"):
        ours[0, 0].view(np.uint8)
    with pytest.raises(TypeError, match=r"DeviceArray\.view: dtype must be"):
        ours.view("nothing")


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


def test_unknown_addresses_are_refused():
    host = np.zeros(4, np.float32)
    for address in (0x1234, host.__array_interface__["data"][0]):
        with pytest.raises((BufferError, hg.HipError), match=r"must be in the memory of|hipPointerGetAttr"):
            hg.asarray(ForeignInterface(hg.zeros(4, np.float32), data=(address, False)))


HOST = np.zeros(4, np.float32)  # host memory: not a device address
NO_ARRAYS = {  # what a producer states, and the error
    "negative": ({"shape": (-3,)}, "shape must not be negative"),
    "negative, NumPy": ({"shape": (np.int64(-3),)}, "shape must not be negative"),
    "shape of floats": ({"shape": (4.0,)}, "shape must be a tuple of ints"),
    "shape of text": ({"shape": "4"}, "shape must be a tuple of ints"),
    "no shape": ({"shape": None}, "shape must be a tuple of ints"),
    "shape an int": ({"shape": 4}, "shape must be a tuple of ints"),
    "huge": ({"shape": (2**62, 2)}, "bytes must be in 64-bit addresses"),
    "huge, in no bytes": ({"shape": (2**62, 2), "strides": (0, 0)}, "bytes must be in 64-bit addresses"),
    "before all memory": ({"shape": (4,), "strides": (-(2**62),)}, "bytes must be in 64-bit addresses"),
    "few strides": ({"shape": (2, 2), "strides": (4,)}, "strides must be as many as its axes"),
    "many strides": ({"strides": (4, 4)}, "strides must be as many as its axes"),
    "strides of floats": ({"strides": (4.0,)}, "strides must be None or a tuple of ints"),
    "strides of text": ({"strides": "4"}, "strides must be None or a tuple of ints"),
    "null": ({"data": (0, False)}, "address must not be null"),
    "none": ({"data": (None, False)}, "address must not be null"),
    "negative address": ({"data": (-4096, False)}, "bytes must be in 64-bit addresses"),
    "address beyond": ({"data": (2**64, False)}, "bytes must be in 64-bit addresses"),
    "address a float": ({"data": (4096.0, False)}, "data must be a tuple of an int and a bool"),
    "address text": ({"data": ("4096", False)}, "data must be a tuple of an int and a bool"),
    "address alone": ({"data": 4096}, "data must be a tuple of an int and a bool"),
    "no data": ({"data": None}, "data must be a tuple of an int and a bool"),
    "three data": ({"data": (4096, False, 1)}, "data must be a tuple of an int and a bool"),
    "read-only of text": ({"data": (4096, "no")}, "data must be a tuple of an int and a bool"),
    "of the host": ({"data": (HOST.ctypes.data, False)}, "must be in the memory of device"),
    "objects": ({"typestr": "|O"}, "typestr must be a native NumPy type"),
    "no bytes": ({"typestr": "|V0"}, "typestr must be a native NumPy type"),
    "big endian": ({"typestr": ">f4"}, "typestr must be a native NumPy type"),
    "no type": ({"typestr": None}, "typestr must be a native NumPy type"),
    "no typestr": ({"typestr": "zz"}, "typestr must be a native NumPy type"),
    "stream of text": ({"stream": "1"}, "stream must be an int or None"),
    "stream a float": ({"stream": 1.0}, "stream must be an int or None"),
}


@pytest.mark.parametrize("case", NO_ARRAYS)
def test_interfaces_of_no_array_are_refused(case):
    changes, text = NO_ARRAYS[case]
    with pytest.raises(hg.InterchangeError, match=f"^asarray: .*{text}"):
        hg.asarray(ForeignInterface(hg.zeros(4, np.float32), **changes))


@pytest.mark.parametrize("key", ["shape", "typestr", "data", "version"])
def test_interfaces_without_a_key_are_refused(key):
    x = ForeignInterface(hg.zeros(4, np.float32))
    del x.__cuda_array_interface__[key]
    with pytest.raises(hg.InterchangeError, match=f"typestr, data, version; got none of {key}"):
        hg.asarray(x)


@pytest.mark.parametrize("interface", [None, 4, "shape", [("shape", (4,))]], ids=str)
def test_interfaces_that_are_no_dict_are_refused(interface):
    x = ForeignInterface(hg.zeros(4, np.float32))
    x.__cuda_array_interface__ = interface
    with pytest.raises(hg.InterchangeError, match="__cuda_array_interface__ must be a dict"):
        hg.asarray(x)


def test_numbers_of_numpy_in_an_interface():
    x = hg.asarray(np.arange(12, dtype=np.float32).reshape(3, 4))
    i = np.int64
    taken = hg.asarray(
        ForeignInterface(
            x,
            shape=np.array([3, 2]),
            strides=[i(16), i(8)],
            data=(np.uint64(x.ptr), np.bool_(True)),
            stream=i(1),
        )
    )
    assert all(type(n) is int for n in (taken.ptr, *taken.shape, *taken.strides))
    assert taken.readonly
    np.testing.assert_array_equal(taken.get(), x.get()[:, ::2])
    np.testing.assert_array_equal(taken.T[::-1].get(), x.get()[:, ::2].T[::-1])
    empty = hg.asarray(ForeignInterface(x, shape=(i(0), i(4)), data=(None, False)))
    assert empty.get().shape == (0, 4)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"shape": (-4,)}, "shape must not be negative"),
        ({"shape": (2**62,)}, "bytes must be in 64-bit addresses"),
        ({"strides": (-(2**60),)}, "bytes must be in 64-bit addresses"),
        ({"data": 0}, "address must not be null"),
        pytest.param(
            {"data": HOST.ctypes.data},
            "address must be in the memory of its device 0; got address 0x",
            id="host memory",  # without the address: processes side by side must agree on names of tests
        ),
        ({"byte_offset": 2**63}, "address must be in the memory of its device 0|in 64-bit addresses"),
        ({"ndim": -1}, "the capsule must have 0 to 64 extents; got -1 axes"),
        ({"ndim": 2**30}, "the capsule must have 0 to 64 extents; got 1073741824 axes"),
        ({"shape": None}, "the capsule must have 0 to 64 extents; got none"),
        ({"lanes": 2}, "DLPack type must be a NumPy or ml_dtypes type"),
        ({"device_id": 99}, "must be in the memory of"),
    ],
    ids=str,
)
def test_capsules_of_no_array_are_refused(fields, text):
    class Producer(ExternalArray):
        def __dlpack__(self, *, stream=None):
            capsule = super().__dlpack__(stream=stream)
            pointer = _dlpack._pointer(capsule, _dlpack._NAME)
            tensor = ctypes.cast(pointer, ctypes.POINTER(_dlpack._Managed)).contents.tensor
            for name, value in fields.items():
                if isinstance(value, tuple):
                    getattr(tensor, name)[0] = value[0]
                else:
                    setattr(tensor, name, value)
            return capsule

    x = hg.zeros(4, np.float32)
    with pytest.raises(hg.InterchangeError, match=text):
        hg.asarray(Producer(x))
    x.free()  # the capsule was released


@pytest.mark.parametrize("answer", [None, 10, (10,), (10, 0, 0), ("10", 0), (10.0, 0)], ids=str)
def test_producers_of_no_device_are_refused(answer):
    x = ExternalArray(hg.zeros(4, np.float32))
    x.__class__ = type("Other", (ExternalArray,), {"__dlpack_device__": lambda self: answer})
    with pytest.raises(hg.InterchangeError, match="__dlpack_device__ must return two ints; got"):
        hg.asarray(x)


def test_classes_are_no_arrays():
    for kind in (hg.DeviceArray, ExternalArray, np.ndarray):
        with pytest.raises(TypeError, match="asarray: x must be a numpy"):
            hg.asarray(kind)


def test_taken_arrays_multiply(rng):
    a, w = (hg.asarray(rng.integers(-3, 4, (16, 32)).astype(BF16)) for _ in range(2))
    expected = hg.matmul(a, w.T).get()
    np.testing.assert_array_equal(
        hg.matmul(hg.asarray(ExternalArray(a)), hg.asarray(ExternalArray(w)).T).get(), expected
    )


def test_hip_python_s_arrays_come_in():
    hip = _hip.runtime().hip
    memory = _hip.call("hipMalloc", 48)  # hip-python's DeviceArray
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    _hip.copy("HostToDevice", int(memory), values.ctypes.data, 48, 0)
    _hip.synchronize()
    memory.configure(typestr="float32", shape=(3, 4))
    taken = hg.asarray(memory)
    assert (taken.ptr, taken.shape, taken.dtype) == (int(memory), (3, 4), np.dtype(np.float32))
    np.testing.assert_array_equal(taken.T.get(), values.T)
    out = hg.matmul(hg.asarray(np.eye(3).astype(BF16)), hg.asarray(values.astype(BF16)), taken)
    del taken, out
    np.testing.assert_array_equal(hg.asarray(memory).get(), values)
    hip.hipFree(memory)
    # hip-python's functions accept ours.
    ours, back = hg.asarray(values), np.zeros_like(values)
    kind = hip.hipMemcpyKind.hipMemcpyDeviceToHost
    assert int(hip.hipMemcpy(back, ours, 48, kind)[0]) == 0
    np.testing.assert_array_equal(back, values)


@pytest.mark.parametrize("stream", [None, 1, 2, "own"], ids=str)
def test_the_producer_s_stream_is_waited_for(stream, streams):
    own = streams()
    x = hg.asarray(np.arange(4, dtype=np.float32), stream=own if stream == "own" else 0)
    given = own if stream == "own" else stream
    handle = given or 0
    _hip.call("hipMemsetAsync", x.ptr, 0, 16, handle)  # the producer's last work
    taken = hg.asarray(ForeignInterface(x, stream=given))
    copied = hg.asarray(taken, copy=True, stream=streams())
    np.testing.assert_array_equal(copied.get(), np.zeros(4))


def test_numpy_says_why_it_cannot_take_device_memory():
    x = hg.asarray(np.ones((2, 3), np.float32))
    with pytest.raises((RuntimeError, BufferError), match=r"[Dd]evice"):
        np.from_dlpack(x)
    x.free()  # would raise while a capsule exists


def test_a_failing_query_is_no_wrong_address(monkeypatch):
    """An error of the device is raised as such."""

    def fail(ptr):
        raise hg.HipError("hipPointerGetAttributes", 999, "hipErrorUnknown")

    x = hg.zeros(4, np.float32)

    monkeypatch.setattr(_hip, "device_of", fail)
    with pytest.raises(hg.HipError, match="hipErrorUnknown"):
        hg.asarray(SimpleNamespace(__cuda_array_interface__=x.__cuda_array_interface__))
