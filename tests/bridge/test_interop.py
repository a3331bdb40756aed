"""PyTorch and CuPy as partners on one GPU: memory without copies, lifetimes, streams, the current device."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.array import dlpack as _dlpack
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
DTYPES = [BF16, np.float16, np.float32, np.int64, np.uint8]


class Torch:
    def __init__(self):
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("torch has no GPU")

    def put(self, x):
        if x.dtype == BF16:
            return self.torch.from_numpy(x.view(np.int16)).view(self.torch.bfloat16).cuda()
        return self.torch.from_numpy(x).cuda()

    def get(self, x):
        if x.dtype == self.torch.bfloat16:
            return x.view(self.torch.int16).cpu().numpy().view(BF16)
        return x.cpu().numpy()

    def take(self, ours):
        return self.torch.from_dlpack(ours)

    def take_by_interface(self, ours):
        return self.torch.as_tensor(ours, device="cuda")

    def ptr(self, x):
        return x.data_ptr()

    def stream(self):
        return self.torch.cuda.Stream()

    def on(self, stream):
        return self.torch.cuda.stream(stream)

    def handle(self, stream):
        return stream.cuda_stream

    def wait_long(self):
        self.torch.cuda._sleep(200_000_000)  # clocks

    def synchronize(self):
        self.torch.cuda.synchronize()

    def used(self):
        return self.torch.cuda.memory_allocated()


class CuPy:
    def __init__(self):
        self.cupy = pytest.importorskip("cupy")

    def put(self, x):
        if x.dtype == BF16:
            pytest.skip("CuPy has no bfloat16")
        return self.cupy.asarray(x)

    def get(self, x):
        return self.cupy.asnumpy(x)

    def take(self, ours):
        if ours.dtype == BF16:
            pytest.skip("CuPy has no bfloat16")
        return self.cupy.from_dlpack(ours)

    def take_by_interface(self, ours):
        return self.cupy.asarray(ours)

    def ptr(self, x):
        return x.data.ptr

    def stream(self):
        return self.cupy.cuda.Stream(non_blocking=True)

    def on(self, stream):
        return stream

    def handle(self, stream):
        return stream.ptr

    def wait_long(self):
        body = "long long t = clock64(); while (clock64() - t < n);"
        spin = self.cupy.RawKernel(f'extern "C" __global__ void spin(long long n) {{ {body} }}', "spin")
        spin((1,), (1,), (np.int64(200_000_000),))

    def synchronize(self):
        self.cupy.cuda.Device().synchronize()

    def used(self):
        return self.cupy.get_default_memory_pool().used_bytes()


@pytest.fixture(params=[Torch, CuPy], ids=["torch", "cupy"])
def partner(request) -> Any:
    return request.param()


class Interface:
    """An array that has only __cuda_array_interface__."""

    def __init__(self, x):
        self.x = x
        self.__cuda_array_interface__ = x.__cuda_array_interface__


def values(dtype=np.float32, shape=(6, 8)):
    return (np.arange(np.prod(shape)).reshape(shape) % 100).astype(dtype)


# ---- memory


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_theirs_is_taken_without_a_copy(partner, dtype):
    x = values(dtype)
    theirs = partner.put(x)
    for view, expected in ((theirs, x), (theirs.T, x.T), (theirs[::2, 1:5], x[::2, 1:5]), (theirs[3], x[3])):
        ours = hg.asarray(view)
        assert ours.ptr == partner.ptr(view)
        assert ours.shape == expected.shape
        np.testing.assert_array_equal(ours.get(), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_ours_is_taken_without_a_copy(partner, dtype):
    x = values(dtype)
    ours = hg.asarray(x)
    assert ours.__dlpack_device__() == (_dlpack.CUDA, 0)
    for view, expected in ((ours, x), (ours.T, x.T), (ours[::2, 1:5], x[::2, 1:5]), (ours[3], x[3])):
        theirs = partner.take(view)
        assert partner.ptr(theirs) == view.ptr
        np.testing.assert_array_equal(partner.get(theirs), expected)


def test_array_interface_both_ways(partner):
    x = values()
    ours = hg.asarray(x)
    theirs = partner.take_by_interface(ours)
    assert partner.ptr(theirs) == ours.ptr
    np.testing.assert_array_equal(partner.get(theirs), x)
    back = hg.asarray(Interface(partner.put(x)))
    np.testing.assert_array_equal(back.get(), x)


def test_both_write_the_same_memory(partner):
    theirs = partner.put(np.zeros((64, 64), np.float16))
    ours = hg.asarray(theirs)
    eye = hg.asarray(np.eye(64).astype(np.float16))
    x = values(np.float16, (64, 64))
    hg.matmul(hg.asarray(x), eye, ours)
    hg.synchronize()
    np.testing.assert_array_equal(partner.get(theirs), x)
    theirs += 1
    partner.synchronize()
    np.testing.assert_array_equal(ours.get(), x + 1)


def test_a_product_of_theirs(partner, rng):
    a, w = (random_matrix((rows, 96), rng, dtype=np.float16) for rows in (70, 45))
    out = hg.matmul(hg.asarray(partner.put(a)), hg.asarray(partner.put(w)).T)
    assert_gemm_close(partner.get(partner.take(out)), a, w.T)
    q, p = hg.quantize_mxfp8(hg.asarray(partner.put(a))), hg.quantize_mxfp8(hg.asarray(partner.put(w)))
    product = hg.matmul(q, p.T, dtype=F32)
    assert_gemm_close(partner.get(partner.take(product)), q.get(), p.get().T)


def test_codes_go_out_as_bytes(partner, rng):
    q = hg.quantize_fp8(hg.asarray(random_matrix((32, 64), rng)))
    np.testing.assert_array_equal(
        partner.get(partner.take(q.data.view(np.uint8))), q.get().data.view(np.uint8)
    )


# ---- lifetimes


def test_theirs_lives_while_ours_does(partner):
    x = values(np.float32, (512, 512))
    before = partner.used()
    theirs = partner.put(x)
    at = partner.ptr(theirs)
    ours = hg.asarray(theirs)[1:]
    del theirs
    gc.collect()
    others = [partner.put(np.full((512, 512), np.nan, np.float32)) for _ in range(8)]
    assert at not in map(partner.ptr, others)
    np.testing.assert_array_equal(ours.get(), x[1:])
    del ours, others
    gc.collect()
    hg.zeros(1, np.int8).get()  # released imports are removed at the next allocation
    hg.zeros(1, np.int8).get()
    gc.collect()
    assert partner.used() == before


def test_ours_lives_while_theirs_does(partner):
    x = values(np.float32, (512, 512))
    ours = hg.asarray(x)
    block, at = weakref.ref(ours._block), ours.ptr
    theirs = partner.take(ours)
    with pytest.raises(BufferError, match="no other library may hold the array"):
        ours.free()
    del ours
    gc.collect()
    assert block() is not None
    assert at not in [hg.asarray(np.full((512, 512), np.nan, np.float32)).ptr for _ in range(8)]
    np.testing.assert_array_equal(partner.get(theirs), x)
    del theirs
    gc.collect()
    assert block() is None


# ---- streams


def test_our_work_on_their_stream(partner, rng):
    """In the order of that stream, without any wait."""
    stream = partner.stream()
    x = values(np.float16, (64, 64)) % 7
    theirs = partner.put(np.zeros((64, 64), np.float16))
    eye = hg.asarray(np.eye(64).astype(np.float16))
    source = partner.put(x)
    partner.synchronize()
    with partner.on(stream):
        partner.wait_long()
        theirs += source
        got = hg.matmul(hg.asarray(theirs, stream=partner.handle(stream)), eye, stream=partner.handle(stream))
        after = partner.take(got)
        after += 1
    np.testing.assert_array_equal(got.get(), x + 1)


def test_what_their_stream_writes_is_waited_for(partner):
    """By DLPack: their stream is the one that is current, ours the default."""
    stream, x = partner.stream(), values(np.float32, (256, 256))
    theirs, source = partner.put(np.zeros_like(x)), partner.put(x)
    partner.synchronize()
    with partner.on(stream):
        partner.wait_long()
        theirs += source
        ours = hg.asarray(theirs)
        np.testing.assert_array_equal(ours.get(), x)


def test_what_our_stream_writes_is_waited_for(partner):
    ours = hg.Stream()
    x = values(np.float32, (4096, 4096))
    on_device = hg.asarray(x, stream=ours)
    for _ in range(20):  # long enough for a race
        codes = hg.quantize_fp8(on_device, stream=ours)
    result = hg.dequantize(codes, dtype=np.float32, stream=ours)
    stream = partner.stream()
    with partner.on(stream):
        theirs = partner.take(result) + 0
    np.testing.assert_array_equal(partner.get(theirs), result.get())


def test_a_stream_that_is_gone(run_python):
    """Arrays used on it stay valid; CuPy destroys streams with their objects."""
    pytest.importorskip("cupy")
    code = (
        "import cupy, gc, numpy as np, hipgemm as hg\n"
        "stream = cupy.cuda.Stream(non_blocking=True)\n"
        "x = hg.asarray(np.arange(64, dtype=np.float32), stream=stream.ptr)\n"
        "stream.synchronize(); del stream; gc.collect()\n"
        "assert (x.get() == np.arange(64)).all()\n"
        "y = hg.asarray(x, copy=True); del x; gc.collect(); hg.zeros(64, np.float32)\n"
        "print(int(y.get().sum()))\n"
    )
    done = run_python(code)
    assert (done.returncode, done.stdout) == (0, "2016\n"), done.stderr


# ---- one process, one current device


def test_the_current_device_is_shared():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    with torch.cuda.device(1):
        assert _hip.current_device() == 1
        assert hg.zeros(4, np.float32).device == 1
        hg.zeros(4, np.float32, device=0)
        assert torch.cuda.current_device() == 1
    assert _hip.current_device() == 0
    hg.zeros(4, np.float32, device=1).get()
    assert torch.cuda.current_device() == 0
