"""Quantizers plan a call once, and use the cached plan for equal calls."""

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.quantize import quantizers as quantize
from hipgemm.runtime import hip as _hip
from hipgemm.testing import random_matrix

F32 = np.float32
CALLS = [
    lambda x: hg.quantize_mxfp8(x),
    lambda x: hg.quantize_mxfp8(x, axis=0),
    lambda x: hg.quantize_mxfp8(x, axis=-2, scaling="floor"),
    lambda x: hg.quantize_mxfp8(x, axis=np.int64(1), format="mxfp8_e5m2"),
    lambda x: hg.quantize_mxfp6(x),
    lambda x: hg.quantize_mxfp6(x, axis=0, format="mxfp6_e3m2"),
    lambda x: hg.quantize_both(x, "mxfp6_e3m2", scaling="floor"),
    lambda x: hg.transpose_quantize_mxfp6(x),
    lambda x: hg.dequantize(hg.quantize_mxfp6(x, axis=0), dtype=ml_dtypes.bfloat16),
    lambda x: hg.quantize_mxfp4(x),
    lambda x: hg.quantize_mxfp4(x, hadamard=False),
    lambda x: hg.quantize_mxfp4(x, hadamard=np.False_, scaling="unit"),
    lambda x: hg.quantize_both(x, "mxfp8_e4m3"),
    lambda x: hg.quantize_both(x, "mxfp4_e2m1", hadamard=False),
    lambda x: hg.transpose_quantize_mxfp8(x),
    lambda x: hg.quantize_fp8(x),
    lambda x: hg.quantize_fp8(x, 3.0),
    lambda x: hg.quantize_fp8(x, 3.0, eps=0.0),
    lambda x: hg.quantize_fp8(x, hg.AmaxState(2.0)),
    lambda x: hg.quantize_fp8(x, hg.AmaxState()),
    lambda x: hg.quantize_fp8(x, axis=0),
    lambda x: hg.quantize_fp8(x, axis=-1, format="fp8_e5m2"),
    lambda x: hg.quantize_fp8(x, np.float32(2), axis=-1),
    lambda x: hg.dequantize(hg.quantize_fp8(x, axis=-1)),
    lambda x: hg.dequantize(hg.quantize_fp8(x), dtype=np.float16),
    lambda x: hg.dequantize(hg.quantize_mxfp8(x)),
    lambda x: hg.dequantize(hg.quantize_mxfp8(x, axis=0), dtype=ml_dtypes.bfloat16),
    lambda x: hg.dequantize(hg.quantize_mxfp4(x).T),
    lambda x: hg.dequantize(hg.quantize_mxfp4(x, hadamard=False).T),
]


@pytest.fixture(autouse=True)
def no_plans():
    quantize._plans.clear()


def parts(made):
    """All bits of a result."""
    if isinstance(made, tuple):
        return [part for each in made for part in parts(each)]
    if isinstance(made, hg.ScaledArray):
        host = made.get()
        arrays = [host.data, host.scale] + ([] if host.amax is None else [host.amax])
        return [(host.axis, host.hadamard), *(part for a in arrays for part in parts(a))]
    host = made if isinstance(made, np.ndarray) else made.get()
    return [(host.shape, host.dtype), host.tobytes()]


@pytest.mark.parametrize("shape", [(48, 80), (1, 32), (33, 16)])
def test_the_same_bits_as_without(shape, rng):
    """On other arrays of the same layout, whichever calls came before."""
    first, second = (hg.asarray(random_matrix(shape, rng)) for _ in range(2))
    expected = []
    for call in CALLS:
        quantize._plans.clear()
        expected.append(parts(call(second)))
    quantize._plans.clear()
    for call in CALLS:
        call(first)
    kept = dict(quantize._plans)
    assert kept
    hg.reset_usage()
    for call, bits in zip(CALLS, expected, strict=True):
        assert parts(call(second)) == bits
    assert quantize._plans == kept, "nothing was planned again"


def test_layouts_have_plans_of_their_own(rng):
    a = random_matrix((64, 64), rng)
    for host in (
        a,
        a.T,
        a[::-1],
        a[:, :32],
        a[::2],
        a.astype(F32),
        a.astype(np.float16),
        a.reshape(2, 32, 64),
    ):
        x = hg.asarray(host)
        for view in (x, x.T, x[1:], x[::-1]):
            assert parts(hg.quantize_mxfp8(view)) == parts(hg.quantize_mxfp8(view.get()))
            assert parts(hg.quantize_fp8(view)) == parts(hg.quantize_fp8(view.get()))


def test_what_is_wrong_stays_wrong(rng):
    """True equals 1, and must not find its plan."""
    x = hg.asarray(random_matrix((32, 32), rng))
    for axis in (1, 0):
        hg.quantize_mxfp8(x, axis=axis)
        hg.quantize_fp8(x, axis=axis)
        for call in (hg.quantize_mxfp8, hg.quantize_fp8):
            with pytest.raises(TypeError, match="axis must be an int; got bool"):
                call(x, axis=bool(axis))
            with pytest.raises(TypeError, match="axis must be an int; got float"):
                call(x, axis=float(axis))
    hg.quantize_mxfp4(x, hadamard=True)
    with pytest.raises(TypeError, match="hadamard must be True or False; got 1"):
        hg.quantize_mxfp4(x, hadamard=1)
    with pytest.raises(TypeError, match="scaling must be one of"):
        hg.quantize_mxfp8(x, scaling=["unit"])
    with pytest.raises(TypeError, match="format must be one of"):
        hg.quantize_fp8(x, format=["fp8_e4m3"])
    hg.quantize_fp8(x)
    with pytest.raises(ValueError, match="axis must be None with an AmaxState; got 0"):
        hg.quantize_fp8(x, hg.AmaxState(), axis=0)
    with pytest.raises(ValueError, match="eps must be finite and not negative"):
        hg.quantize_fp8(x, eps=-1.0)
    with pytest.raises(ValueError, match="amax must be finite and not negative"):
        hg.quantize_fp8(x, -1.0)
    q = hg.quantize_fp8(x)
    hg.dequantize(q)
    with pytest.raises(TypeError, match="dtype must be bfloat16, float16 or float32"):
        hg.dequantize(q, dtype=np.int8)
    with pytest.raises(TypeError, match="stream must be"):
        hg.quantize_mxfp8(x, stream="one")


def test_freed_arrays_are_refused(rng):
    x, y = (hg.asarray(random_matrix((32, 32), rng)) for _ in range(2))
    q = hg.quantize_mxfp8(x)
    calls = [
        lambda: hg.quantize_mxfp8(y),
        lambda: hg.quantize_fp8(y),
        lambda: hg.quantize_both(y, "mxfp8_e4m3"),
    ]
    for call in calls:
        call()
    hg.dequantize(q)
    y.free()
    q.data.free()
    for call in (*calls, lambda: hg.dequantize(q)):
        with pytest.raises(ValueError, match=r"^\w+: [xq] must be in memory; got an array that was freed"):
            call()


@pytest.mark.parametrize("call", [CALLS[0], CALLS[7], CALLS[10], CALLS[13]])
def test_streams_wait_for_the_last_write(call, rng, streams, monkeypatch):
    x = hg.asarray(random_matrix((32, 32), rng))
    call(x)
    writing, reading = streams(), streams()
    waits = []
    monkeypatch.setattr(_hip, "wait_for", lambda waiting, stream: waits.append((waiting, stream)))
    x._block.begin_write(writing)
    waits.clear()
    x._block.begin_read(reading)
    assert waits == [(reading, writing)]
    waits.clear()
    call(x)
    assert (0, writing) in waits
    monkeypatch.undo()
    for stream in (writing, reading):
        _hip.synchronize(stream)


def test_plans_are_bounded(monkeypatch):
    monkeypatch.setattr(quantize, "_MAX_PLANS", 8)
    for n in range(1, 30):
        hg.quantize_mxfp8(hg.zeros((n, 32), F32))
        assert len(quantize._plans) <= 8


def test_counts_are_those_of_every_call(rng):
    x = hg.asarray(random_matrix((64, 64), rng))
    counted = []
    for _ in range(3):
        hg.reset_usage()
        q = hg.quantize_mxfp8(x)
        hg.quantize_fp8(x)
        hg.dequantize(q)
        found = hg.usage()
        counted.append((found.kernels, found.served))
    assert counted[0][0] == {"quantize_mxfp8": 1, "amax": 1, "quantize_fp8": 1, "dequantize": 1}
    assert counted[0] == counted[1] == counted[2]
    codes, scales = 64 * 64, 64 * 2
    assert counted[0][1]["quantize_mxfp8"] == (1, 0, 2 * codes + codes + scales)
    assert counted[0][1]["dequantize"] == (1, 0, codes + scales + 4 * codes)
