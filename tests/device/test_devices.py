"""Several devices: all give the same results, and the current device does not change."""

from collections.abc import Callable

import pytest

HEAD = """
import gc
import ml_dtypes, numpy as np
import hipgemm as hg
from hipgemm.array.interop import device_kind
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import staging as _staging
from hipgemm.testing import assert_gemm_close, random_matrix
BF16, F32 = ml_dtypes.bfloat16, np.float32
rng = np.random.default_rng(1)

def raises(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"nothing raised; expected {text}")
"""


@pytest.fixture
def two_devices(run_on_devices: Callable[..., str]) -> Callable[..., str]:
    return lambda code, **environment: run_on_devices(HEAD + code, **environment)


def test_products_of_both_devices(two_devices) -> None:
    out = two_devices("""
a, w = random_matrix((70, 64), rng), random_matrix((40, 64), rng)
for device in (1, 0):
    x, y = hg.asarray(a, device=device), hg.asarray(w, device=device)
    out = hg.matmul(x, y.T, bias=np.ones(40, np.float32))
    assert out.device == device and _hip.current_device() == 0
    assert_gemm_close(out.get(), a, w.T, bias=np.ones(40, np.float32))
x0, y1 = hg.asarray(a), hg.asarray(w, device=1)
try:
    hg.matmul(x0, y1.T)
except TypeError as error:
    print(error)
x1 = hg.asarray(x0, device=1)
assert x1.device == 1 and x0.device == 0
np.testing.assert_array_equal(hg.matmul(x1, y1.T).get(), hg.matmul(x0, hg.asarray(w).T).get())
back = hg.asarray(x1[::2, 8:].T, device=0)
np.testing.assert_array_equal(back.get(), a[::2, 8:].T)
_hip.call("hipSetDevice", 1)
assert hg.zeros(1, np.int8).device == 1
assert_gemm_close(hg.matmul(a, w.T), a, w.T)
assert _hip.current_device() == 1
""")
    assert out.strip() == (
        "matmul: a, b must be on the same device; got a on device 0, b on device 1; "
        "copy the others with hipgemm.asarray(x, device=0)"
    )


def test_every_function_on_either_device(two_devices) -> None:
    """With the other device current, errors included."""
    two_devices("""
a, w, bias = random_matrix((33, 48), rng), random_matrix((20, 48), rng), np.ones(20, F32)

def calls(device):
    stream = hg.Stream(device)
    x, y = hg.asarray(a, device=device), hg.asarray(w, device=device, stream=stream)
    yield hg.matmul(x, y.T, bias=bias, stream=stream).get()
    yield (x @ y.T).get()
    out = hg.empty((20, 33), F32, device=device)
    yield hg.matmul(x, y.T, out.T).get()
    yield hg.zeros((3, 4), BF16, device=device, stream=stream).get()
    state = hg.AmaxState(device=device)
    for q in (
        hg.quantize_fp8(x), hg.quantize_fp8(x, axis=-1), hg.quantize_fp8(x, state), hg.quantize_mxfp4(x),
        hg.quantize_mxfp6(x), hg.quantize_mxfp8(x), hg.quantize_mxfp8(x, axis=0, stream=stream),
        hg.transpose_quantize_mxfp8(x),
        *hg.quantize_both(x, "mxfp8_e4m3"),
    ):
        yield q.data.get()
        yield q.scale.get()
        assert q.device == device
        yield hg.dequantize(q).get()
    state.step()
    yield state.current.get()
    p, q = hg.quantize_mxfp8(x), hg.quantize_mxfp8(y)
    yield hg.matmul(p, q.T).get()
    yield hg.asarray(hg.quantize_mxfp4(a), device=device).data.get().view(np.uint8)
    yield hg.asarray(x, copy=True).get()
    yield x.T[::-1, 1:].get()
    if hasattr(np, "unstack"):
        yield np.from_dlpack(hg.asarray(bias, device=device), device="cpu")
    assert x.view(np.uint16).__cuda_array_interface__["stream"] == 1
    assert x.__dlpack_device__() == (device_kind(), device)
    capsule = x.__dlpack__(stream=int(stream), max_version=(1, 1), copy=True)
    stats = hg.memory_stats(device)
    assert stats.device == device and stats.used > 0
    raises(ValueError, "a.shape[1] (K) must equal", lambda: hg.matmul(x, y))
    raises(hg.HipError, f"on device {device}", lambda: hg.empty(2**50, np.int8, device=device))
    hg.synchronize(device)
    assert hg.Event(device).record(stream).elapsed(stream.record()) >= 0
    hg.trim(device)

results = {}
for current in (0, 1):
    _hip.call("hipSetDevice", current)
    for device in (0, 1):
        results[current, device] = found = []
        for step in calls(device):
            assert _hip.current_device() == current, len(found)
            found.append(step.tobytes())
        assert _hip.current_device() == current
        gc.collect()
        assert _hip.current_device() == current
assert len(results[0, 0]) > 30
assert all(found == results[0, 0] for found in results.values())
""")


@pytest.mark.matrix("bf16")
def test_streams_of_the_wrong_device(two_devices) -> None:
    two_devices("""
a = random_matrix((32, 32), rng)
x, other = hg.asarray(a, device=1), hg.Stream(0)
foreign = int(_hip.call("hipStreamCreateWithFlags", 1))  # of device 0 too, made by another library
out = hg.empty((32, 32), BF16, device=1)
hg.synchronize(1)
expected = hg.matmul(x, x).get()
y, saved = hg.linear(x, x)
g, kept = hg.grouped_linear(x, x[None], np.array([0, 32], np.int32))
offsets = np.array([0, 32], np.int32)
for stream in (other, foreign):
    for function, call in (
        ("matmul", lambda: hg.matmul(x, x, stream=stream)),
        ("matmul", lambda: hg.matmul(x, x, out, stream=stream)),
        ("asarray", lambda: hg.asarray(a, device=1, stream=stream)),
        ("zeros", lambda: hg.zeros(3, F32, device=1, stream=stream)),
        ("empty", lambda: hg.empty(3, F32, device=1, stream=stream)),
        ("asarray", lambda: hg.asarray(x, copy=True, stream=stream)),
        ("quantize_mxfp8", lambda: hg.quantize_mxfp8(x, stream=stream)),
        ("quantize_fp8", lambda: hg.quantize_fp8(x, stream=stream)),
        ("AmaxState.step", lambda: hg.AmaxState(1.0, device=1).step(stream=stream)),
        ("__dlpack__", lambda: x.__dlpack__(stream=int(stream))),
        ("Event.record", lambda: hg.Event(1).record(stream)),
        ("grouped_matmul", lambda: hg.grouped_matmul(x, x[None], offsets, stream=stream)),
        ("linear", lambda: hg.linear(x, x, stream=stream)),
        ("linear_backward", lambda: hg.linear_backward(y, saved, stream=stream)),
        ("grouped_linear", lambda: hg.grouped_linear(x, x[None], offsets, stream=stream)),
        ("grouped_linear_backward", lambda: hg.grouped_linear_backward(g, kept, stream=stream)),
    ):
        message = f"{function}: stream must be a stream of device 1, where the arrays are; got 0x"
        raises(ValueError, message, call)
hg.synchronize(0), hg.synchronize(1)
assert (hg.matmul(x, x).get() == expected).all()
_hip.call("hipSetDevice", 1)
raises(ValueError, "stream must be a stream of device 1", lambda: hg.matmul(a, a, stream=other))
assert (hg.matmul(a, a) == expected).all()
second = hg.Stream(1)
second.wait(other)  # across devices streams and events do wait
other.record().wait(second)
""")


def test_arrays_of_two_devices_do_not_mix(two_devices) -> None:
    two_devices("""
a = random_matrix((32, 32), rng)
x, y = hg.asarray(a, device=0), hg.asarray(a, device=1)
raises(TypeError, "must be on the same device", lambda: hg.matmul(x, y))
raises(ValueError, "can only be copied to device 1", lambda: hg.asarray(x, device=1, copy=False))
raises(TypeError, "quantize_fp8: amax must be on device 0 like x; got device 1",
       lambda: hg.quantize_fp8(x, hg.AmaxState(1.0, device=1)))
raises(ValueError, "Event.elapsed: both events must belong to the same device; got 0 and 1",
       lambda: hg.Event(0).record().elapsed(hg.Event(1).record()))
for stream in (None, hg.Stream(1)):
    source, side = hg.matmul(x, x, stream=hg.Stream(0)), hg.Stream(0)
    moved = hg.asarray(source, device=1, stream=stream)  # without waiting
    hg.matmul(x, x, source, alpha=0.0, stream=side)  # overwritten next
    assert (moved.get() == hg.matmul(y, y).get()).all()
    assert (hg.asarray(hg.matmul(x, x), device=1, stream=stream).get() == hg.matmul(y, y).get()).all()
assert (hg.asarray(x.T[1:], device=1).get() == a.T[1:]).all()
assert (hg.asarray(hg.quantize_mxfp8(x), device=1).data.get() == hg.quantize_mxfp8(y).data.get()).all()
""")


@pytest.mark.parametrize("peers", [True, False])
def test_copies_between_devices_in_stream_order(two_devices, peers) -> None:
    """No host wait; the streams of both devices are ordered around a copy, direct or through the host."""
    two_devices(
        f"""
if not {peers}:
    _hip.peer_access = lambda *devices: False
    _staging.CHUNK, _staging.LIMIT = 4096, 16384
"""
        + """
assert _hip.peer_access(0, 1) is _hip.peer_access(1, 0)
values = [random_matrix((96, 96), rng) for _ in range(4)]
eye = [hg.asarray(np.eye(96).astype(BF16), device=d) for d in (0, 1)]
side = hg.Stream(0)  # copies, concurrent with compute
target = hg.zeros((96, 96), BF16, device=1)
results = []
for v in values:
    source = hg.matmul(hg.asarray(v, device=0), eye[0])
    _staging.copy_block(target._block, target.ptr, 0, source._block, source.ptr, int(side), source.nbytes)
    hg.matmul(eye[0], eye[0], source)  # the source may be overwritten next
    results.append(hg.matmul(target, eye[1]))
    del source
for v, result in zip(values, results):
    assert (result.get() == v).all()
assert _hip.current_device() == 0
same = hg.zeros((96, 96), BF16, device=1)
_staging.copy_block(same._block, same.ptr, 0, target._block, target.ptr, 0, target.nbytes)
assert (same.get() == values[-1]).all()
"""
    )
