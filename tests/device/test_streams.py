"""Order across streams and threads."""

import gc
import threading

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)


class Stream:
    """A stream as other libraries pass it: an object with int()."""

    def __init__(self, handle):
        self.handle = handle

    def __int__(self):
        return self.handle


def test_one_stream(streams, rng):
    stream = streams()
    a, w = random_matrix((65, 64), rng), random_matrix((40, 64), rng)
    x, y = hg.asarray(a, stream=stream), hg.asarray(w, stream=Stream(stream))
    out = hg.matmul(x, y.T, stream=Stream(stream), bias=np.ones(40, F32))
    assert_gemm_close(out.get(), a, w.T, bias=np.ones(40, F32))
    np.testing.assert_array_equal(hg.matmul(a, w.T, stream=stream), hg.matmul(a, w.T))


def test_results_cross_streams(streams, rng):
    # Each product depends on the one before, on another stream, without explicit waits.
    first, second = streams(), streams()
    a = hg.asarray(exact_grid((48, 48), rng, bits=1))
    expected = a.get().astype(np.float64)
    x = a
    for step in range(6):
        x = hg.matmul(x, a, dtype=BF16, alpha=2.0**-3, stream=(first, second, 0)[step % 3])
        expected = (expected @ a.get().astype(np.float64)) * 2.0**-3
        expected = expected.astype(np.float32).astype(BF16).astype(np.float64)
    np.testing.assert_array_equal(x.get().astype(np.float64), expected)


@pytest.mark.parametrize("side", [0, 1])
def test_products_wait_for_writers_of_either_operand(side, streams, rng):
    """Also if their plan is cached."""
    first, second = streams(), streams()
    wide, tall = hg.asarray(exact_grid((64, 2048), rng)), hg.asarray(exact_grid((2048, 64), rng))
    eye = hg.asarray(np.eye(64).astype(BF16))
    for alpha in (0.5, 0.25, 0.125):
        x = hg.matmul(wide, tall, alpha=alpha * 2.0**-9, stream=first)
        y = hg.matmul(*((x, eye), (eye, x))[side], stream=second).get()
        np.testing.assert_array_equal(y, x.get())


def test_overwriting_waits_for_readers(streams, rng):
    first, second, third = streams(), streams(), streams()
    a, b = (hg.asarray(exact_grid((64, 64), rng)) for _ in range(2))
    eye = hg.asarray(np.eye(64).astype(BF16))
    before = a.get()
    reads = [hg.matmul(a, eye, dtype=F32, stream=stream) for stream in (first, third)]
    hg.matmul(b, eye, a, stream=second)  # overwrites what both products still have to read
    np.testing.assert_array_equal(a.get(), b.get())  # ordered after the product
    for out in reads:
        np.testing.assert_array_equal(out.get(), before.astype(F32))


def test_overwriting_waits_for_writers(streams, rng):
    first, second = streams(), streams()
    a, b = (hg.asarray(exact_grid((64, 64), rng)) for _ in range(2))
    eye = hg.asarray(np.eye(64).astype(BF16))
    out = hg.empty((64, 64), BF16)
    hg.matmul(a, eye, out, stream=first)
    hg.matmul(b, eye, out, stream=second)
    _hip.synchronize(second)
    _hip.synchronize(first)
    np.testing.assert_array_equal(out.get(), b.get())


def test_memory_is_not_reused_too_early(streams, rng):
    first, second = streams(), streams()
    eye = hg.asarray(np.eye(96).astype(BF16))
    expected, results = [], []
    for _ in range(10):
        x = exact_grid((96, 96), rng)
        expected.append(x)
        temporary = hg.asarray(x, stream=first)
        results.append(hg.matmul(temporary, eye, stream=second))
        del temporary  # freed while the other stream still has to read it
    for got, want in zip(results, expected, strict=True):
        np.testing.assert_array_equal(got.get(), want)


def test_streams_that_are_gone(rng):
    a, w = random_matrix((33, 64), rng), random_matrix((20, 64), rng)
    free, _ = free_bytes()
    for _ in range(20):
        stream = _hip.call("hipStreamCreateWithFlags", 1)
        x = hg.asarray(a, stream=int(stream))
        y = hg.matmul(x, hg.asarray(w).T, stream=int(stream))
        _hip.synchronize(int(stream))
        _hip.call("hipStreamDestroy", stream)
        assert_gemm_close(hg.matmul(x, hg.asarray(w).T).get(), a, w.T)
        assert_gemm_close(y.get(), a, w.T)
        del x, y
    assert free - free_bytes()[0] < 2**20


def free_bytes():
    result = _hip.runtime().hip.hipMemGetInfo()
    return int(result[1]), int(result[2])


@pytest.mark.parametrize("stream", ["s", "7", b"0", -1, 1.5, 1.5j, object(), [1]])
def test_wrong_streams(stream, rng):
    a = random_matrix((4, 8), rng)
    with pytest.raises(TypeError, match="matmul: stream must be None, a stream handle, or convertible"):
        hg.matmul(a, a.T, stream=stream)
    with pytest.raises(TypeError, match="asarray: stream must be"):
        hg.asarray(a, stream=stream)


def test_default_streams(rng):
    a = random_matrix((4, 8), rng)
    for stream in (None, 0, 1, Stream(0), np.int64(1)):
        assert_gemm_close(hg.matmul(a, a.T, stream=stream), a, a.T)
    with pytest.raises(ValueError, match=r"matmul: stream must be the same for all threads; got the per-"):
        hg.matmul(a, a.T, stream=2)


def test_stream_objects(rng):
    a, w = random_matrix((65, 64), rng), random_matrix((40, 64), rng)
    first, second = hg.Stream(), hg.Stream(device=0)
    assert int(first) != int(second)
    assert repr(first) == f"Stream({int(first):#x}, device=0)"
    x = hg.asarray(a, stream=first)
    out = hg.matmul(x, hg.asarray(w, stream=second).T, stream=second)
    if _hip.runtime().kind == "emulator":  # which runs work only when something waits
        assert not second.query()
    second.synchronize()
    assert second.query()
    assert_gemm_close(out.get(), a, w.T)
    for function in (hg.empty, hg.zeros):
        assert function(3, F32, stream=first)._block.writer == int(first)
    q = hg.quantize_mxfp8(x, stream=first)
    np.testing.assert_array_equal(q.data.get(), hg.quantize_mxfp8(a).data)


def test_streams_are_used_again(rng):
    """Arrays may still refer to a destroyed stream."""
    stream = hg.Stream()
    handle = int(stream)
    x = hg.asarray(random_matrix((8, 8), rng), stream=stream)
    del stream
    gc.collect()
    made = [hg.Stream() for _ in range(3)]
    assert handle in map(int, made)
    hg.matmul(x, x, stream=made[0]).get()
    count = len(_hip.runtime().streams)
    for _ in range(50):
        hg.Stream().wait(hg.Stream())
    assert len(_hip.runtime().streams) <= count + 2


def test_streams_wait_for_each_other(streams):
    """Explicitly, for work of other libraries."""
    x = hg.zeros(4, F32)
    hg.synchronize()
    for way in ("stream", "event", "recorded event", "foreign stream"):
        first, second = hg.Stream(), hg.Stream()
        _hip.call("hipMemsetAsync", x.ptr, 0x40, 16, int(first))
        if way == "stream":
            second.wait(first)
        elif way == "event":
            second.wait(first.record())
        elif way == "recorded event":
            hg.Event(timing=False).record(first).wait(second)
        else:
            second = streams()
            first.record().wait(second)
        _hip.call("hipMemsetAsync", x.ptr, 0, 8, int(second))
        _hip.synchronize(int(second))
        assert x.get().tolist() == [0, 0, 3.0039215087890625, 3.0039215087890625]


def test_events(rng):
    stream = hg.Stream()
    event = hg.Event()
    assert event.query()  # never recorded
    event.synchronize()
    event.wait(stream)
    a = hg.asarray(random_matrix((96, 96), rng))
    start = stream.record()
    hg.matmul(a, a, stream=stream)
    assert stream.record(event) is event
    event.synchronize()
    assert event.query()
    assert start.query()
    assert 0 < start.elapsed(event) < 60_000
    event.record()  # recorded again, later
    assert event.elapsed(hg.Event().record(stream)) > -60_000
    with pytest.raises(TypeError, match=r"Event.record: stream must be None"):
        event.record("x")


def test_events_are_used_again():
    gc.collect()
    hg.Event().record()
    handles = {hg.Event()._event.ptr for _ in range(20)}
    assert len(handles) == 1


@pytest.mark.emulator("the process survives a fault on the device")
def test_faults_reach_who_waits():
    x = hg.asarray(np.ones((64, 64), BF16))

    class Beyond:
        def __init__(self, interface):
            self.__cuda_array_interface__ = {**interface, "shape": (4096, 64)}

    beyond = hg.asarray(Beyond(x.view(np.uint16).__cuda_array_interface__)).view(BF16)
    stream = hg.Stream()
    for wait in (
        stream.synchronize,
        lambda: stream.record().synchronize(),
        hg.synchronize,
        lambda: [stream.query() for _ in range(10**6)],
    ):
        hg.matmul(beyond, x, stream=stream)
        with pytest.raises(hg.HipError, match="hipErrorIllegalAddress"):
            wait()
        hg.synchronize()


def test_threads(streams):
    """Many threads, each with its own shapes and stream, alternately from NumPy and from device memory."""
    failures = []

    def work(seed, stream):
        rng = np.random.default_rng(seed)
        try:
            for i in range(8):
                m, n, k = (int(x) for x in rng.integers(1, 90, 3))
                a, w = random_matrix((m, k), rng), random_matrix((n, k), rng)
                bias = rng.standard_normal(n).astype(F32)
                if i % 2:
                    out = hg.matmul(a, w.T, bias=bias, stream=stream)
                else:
                    out = hg.matmul(
                        hg.asarray(a), hg.asarray(w, stream=stream).T, bias=bias, stream=stream
                    ).get()
                assert_gemm_close(out, a, w.T, bias=bias)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=work, args=(seed, streams() if seed % 2 else None)) for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]
