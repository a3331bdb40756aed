"""Copies between host and device: in chunks, in any layout, through bounded pinned memory."""

import itertools
import threading

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.array.device_array import DeviceArray, upload_padded
from hipgemm.array.transfer import enqueue_upload
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import ownership
from hipgemm.runtime import staging as _staging

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def small(monkeypatch):
    """Chunks of 4 KiB, four of them at most."""
    staging = _hip.runtime().staging[0]
    _hip.synchronize()
    staging.trim()
    monkeypatch.setattr(_staging, "CHUNK", 4096)
    monkeypatch.setattr(_staging, "LIMIT", 4 * 4096)
    yield staging
    _hip.synchronize()
    staging.trim()
    assert staging.bytes == 0


SHAPES = [(1, 1), (1, 4096), (3, 5000), (100, 7), (4097, 1), (2, 4096), (31, 333), (17, 8192)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_byte_arrives_once(shape, small, rng):
    x = rng.integers(0, 256, shape, np.uint8)
    up = hg.asarray(x)
    np.testing.assert_array_equal(up.get(), x)
    for view, expected in ((up[::-1], x[::-1]), (up.T, x.T), (up[:, ::2], x[:, ::2])):
        np.testing.assert_array_equal(view.get(), expected)
    wide = np.full((shape[0], shape[1] + 9), 7, np.uint8)
    up.get(wide[:, 4:-5])
    np.testing.assert_array_equal(wide[:, 4:-5], x)
    assert (wide[:, :4] == 7).all()
    assert (wide[:, -5:] == 7).all()
    np.testing.assert_array_equal(hg.asarray(wide[:, 4:-5]).get(), x)  # rows apart on the host
    rows = upload_padded(wide[:, 4:-5], 0, 0)  # and on the device
    np.testing.assert_array_equal(rows.get(), x)
    assert small.bytes <= _staging.LIMIT


def test_pieces_cover_all():
    for rows, width in itertools.product((0, 1, 2, 7), (0, 1, 4095, 3 << 20, 4 << 20, (9 << 20) + 1)):
        seen = list(_staging.chunks(rows, width))
        assert sum(count * each for _, _, count, each in seen) == rows * width
        assert len({(row, at) for row, at, _, _ in seen}) == len(seen)
        assert all(count * each <= _staging.CHUNK for _, _, count, each in seen)


def test_what_goes_up_may_change_at_once(small, rng):
    """The source changes before the stream has run."""
    x = rng.integers(0, 256, (9, 1000), np.uint8)
    for source in (x.copy(), np.pad(x, ((0, 0), (0, 24)))[:, :1000], x.copy().T):
        expected, made = source.copy(), hg.empty(source.shape, np.uint8)
        enqueue_upload(source, made.ptr, 0)
        source[...] = 0
        np.testing.assert_array_equal(made.get(), expected)


def test_many_small_uploads_are_in_flight_together(rng):
    """No wait for the stream while buffers are free."""
    staging = _hip.runtime().staging[0]
    made = [hg.empty((10,), np.float32) for _ in range(50)]
    values = rng.standard_normal((50, 10)).astype(np.float32)
    for target, row in zip(made, values, strict=True):
        enqueue_upload(row, target.ptr, 0)
    for target, row in zip(made, values, strict=True):
        np.testing.assert_array_equal(target.get(), row)
    assert staging.bytes <= _staging.LIMIT


def test_big_arrays_take_little_pinned_memory(rng):
    hg.trim()
    x = rng.integers(0, 256, 50_000_001, np.uint8)
    y = hg.asarray(x)
    assert hg.memory_stats().pinned <= _staging.LIMIT
    np.testing.assert_array_equal(y.get(), x)
    assert hg.memory_stats().pinned <= _staging.LIMIT
    hg.trim()
    assert hg.memory_stats().pinned == 0


def test_pieces_are_under_way_together(small, monkeypatch, rng):
    """Upload: no wait while buffers are free. Download: a chunk is queued before the wait for the last."""
    x = rng.integers(0, 256, 3 * 4096, np.uint8)
    y = hg.empty(x.shape, np.uint8)
    hg.synchronize()
    seen = []
    short = {"hipMemcpyAsync": "copy", "hipEventSynchronize": "wait", "hipStreamSynchronize": "end"}
    call, block = _hip.call, _hip.block

    def called(name, *args):
        if name == "hipMemcpyAsync":
            seen.append(short[name])
        return call(name, *args)

    def blocked(name, *args):
        seen.append(short.get(name))
        block(name, *args)

    monkeypatch.setattr(_hip, "call", called)
    monkeypatch.setattr(_hip, "block", blocked)
    enqueue_upload(x, y.ptr, 0)
    assert [name for name in seen if name] == ["copy"] * 3
    hg.synchronize()  # or buffers may still be in flight
    seen.clear()
    np.testing.assert_array_equal(y.get(), x)
    order = ["copy", "copy", "wait", "copy", "wait", "wait", "end"]
    assert [name for name in seen if name] == order


def test_steady_state_pins_nothing_new(rng):
    x = rng.integers(0, 256, (300, 301), np.uint8)
    hg.asarray(x).get()
    pinned = hg.memory_stats().pinned
    for _ in range(20):
        hg.asarray(x).get()
    assert hg.memory_stats().pinned == pinned


def test_threads_share_what_there_is(small, streams, rng):
    """More threads than buffers, each with several chunks in flight; no deadlock."""
    failures = []
    sources = [rng.integers(0, 256, (5, 9000), np.uint8) for _ in range(8)]

    def work(x, stream):
        try:
            for _ in range(6):
                up = hg.asarray(x, stream=stream)
                np.testing.assert_array_equal(up.get(), x)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(x, streams()), daemon=True) for x in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert not failures, failures[0]
    assert small.bytes <= _staging.LIMIT


def test_pinned_memory_that_runs_out(small, monkeypatch, rng):
    """Then the existing buffers are used; without any it is an error, and the next call works."""
    x = rng.integers(0, 256, (5, 9000), np.uint8)
    real, left = ownership.call_allocator, 0

    def call_allocator(library, name, *args):
        nonlocal left
        if name == "hipHostMalloc":
            if left == 0:
                return 2
            left -= 1
        return real(library, name, *args)

    monkeypatch.setattr(ownership, "call_allocator", call_allocator)
    with pytest.raises(hg.HipError, match="hipHostMalloc"):
        hg.asarray(x)
    left = 1
    y = hg.asarray(x)
    np.testing.assert_array_equal(y.get(), x)
    assert small.bytes == 4096


def test_idle_buffers_give_way(monkeypatch, rng):
    """To a buffer of another size, where the host has no more memory."""
    staging = _hip.runtime().staging[0]
    _hip.synchronize()
    staging.trim()
    real = ownership.call_allocator

    def call_allocator(library, name, handle, size=None, *flags):
        full = name == "hipHostMalloc" and staging.bytes > size.value  # which counts this one
        return 2 if full else real(library, name, handle, size, *flags)

    monkeypatch.setattr(ownership, "call_allocator", call_allocator)
    for size in (100, 10_000, 100, 50_000):
        x = rng.integers(0, 256, size, np.uint8)
        np.testing.assert_array_equal(hg.asarray(x).get(), x)
    assert staging.bytes == 2**16


@pytest.mark.emulator("the process survives a fault on the device")
def test_faults_are_reported_once_and_lose_no_buffer(small, rng):
    x = hg.asarray(np.ones((64, 64), BF16))

    class Beyond:
        def __init__(self, interface):
            self.__cuda_array_interface__ = {**interface, "shape": (4096, 64)}

    beyond = hg.asarray(Beyond(x.view(np.uint16).__cuda_array_interface__)).view(BF16)
    for _ in range(5):
        out = hg.matmul(beyond, x)  # 512 KiB: many chunks are lost with it
        with pytest.raises(hg.HipError, match="hipErrorIllegalAddress"):
            out.get()
        _hip.synchronize()
        np.testing.assert_array_equal(x.get().astype(float), np.ones((64, 64)))
        del out
    assert small.bytes <= _staging.LIMIT


def test_numbers_far_apart_come_down_alone(device_memory, rng, monkeypatch):
    """Without the gigabytes between them."""
    device_memory(13 << 30)
    real, moved = _staging.download, []

    def fetch(*args):
        moved.append(args[4] * args[5])
        real(*args)

    monkeypatch.setattr(_staging, "download", fetch)
    apart = 2**32
    memory = hg.empty(3 * apart, np.uint8)
    x = rng.integers(0, 256, (3, 4, 5), np.uint8)
    for i in range(3):
        enqueue_upload(x[i], memory.ptr + i * apart, 0)
    view = DeviceArray(memory._block, memory.ptr, (3, 4, 5), (apart, 5, 1), memory.dtype)
    for got, expected in (
        (view, x),
        (view[::-1, 1:, ::2], x[::-1, 1:, ::2]),
        (view[:, 0, 0], x[:, 0, 0]),
        (view.T, x.T),
        (memory[::apart], x[:, 0, 0]),
        (memory[apart::-apart], x[1::-1, 0, 0]),
    ):
        np.testing.assert_array_equal(got.get(), expected)
    assert sum(moved) < 500


def test_layouts_of_more_axes(small, rng):
    x = rng.standard_normal((3, 40, 50)).astype(BF16)
    for source in (x, x.transpose(2, 0, 1), x[:, ::2], x[::-1, 1:, 3:]):
        np.testing.assert_array_equal(hg.asarray(source).get(), source)
