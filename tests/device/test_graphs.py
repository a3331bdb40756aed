"""Graphs: the same results as the calls, at each launch, ordered with other work; nothing allocated."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg

BF16 = np.dtype(ml_dtypes.bfloat16)


def _values(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-3, 4, shape).astype(BF16)


def _mlp(x: Any, w: Any, v: Any, offsets: Any, state: Any, grouped: bool) -> Callable[[Any], tuple[Any, ...]]:
    """A sequence of all kinds: temporaries, quantized operands, groups, state on the device."""

    ones = hg.asarray(np.ones(32, np.float32))

    def calls(stream: Any) -> tuple[Any, ...]:
        h = hg.matmul(x, w.T, activation="relu", stream=stream)
        q = hg.quantize_mxfp8(h, stream=stream)
        y = hg.matmul(q, hg.quantize_mxfp8(w, stream=stream).T, dtype=np.float32, stream=stream)
        fp8 = hg.quantize_fp8(x, state, stream=stream)
        state.step(stream=stream)
        z = hg.grouped_matmul(h, v, offsets, stream=stream) if grouped else hg.matmul(h, v[0], stream=stream)
        return y, hg.dequantize(fp8, stream=stream), hg.rms_norm(z, ones, stream=stream)

    return calls


@pytest.mark.parametrize("own_stream", [False, True])
def test_launches_do_what_the_calls_do(
    rng: np.random.Generator, own_stream: bool, matrix_kernels: bool
) -> None:
    w, v = hg.asarray(_values(rng, 64, 64)), hg.asarray(_values(rng, 2, 64, 32))
    offsets = hg.asarray(np.array([0, 20, 50], np.int32))
    host = _values(rng, 50, 64)
    x, again = hg.asarray(host), hg.asarray(host)
    states = hg.AmaxState(3.0), hg.AmaxState(3.0)
    graph = hg.Graph(_mlp(x, w, v, offsets, states[0], matrix_kernels))
    calls = _mlp(again, w, v, offsets, states[1], matrix_kernels)
    calls(None)  # as the graph ran them once
    stream = hg.Stream() if own_stream else None
    for _ in range(3):
        host = _values(rng, 50, 64)
        x[...], again[...] = host, host
        found, expected = graph.launch(stream), calls(None)
        assert found is graph.result
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.get(), other.get())
        assert float(states[0].current.get()) == float(states[1].current.get())


def test_a_launch_allocates_nothing_and_is_one_call(rng: np.random.Generator) -> None:
    x, out = hg.asarray(_values(rng, 32, 64)), hg.empty((32, 32), np.float32)
    q = hg.quantize_mxfp4(x)
    graph = hg.Graph(
        lambda stream: hg.matmul(hg.quantize_mxfp4(x, stream=stream), q.T, out=out, stream=stream)
    )
    graph.launch()
    hg.synchronize()
    before = hg.memory_stats()
    for _ in range(10):
        graph.launch()
    hg.synchronize()
    after = hg.memory_stats()
    assert (after.requests, after.mallocs, after.used) == (before.requests, before.mallocs, before.used)
    np.testing.assert_array_equal(out.get(), hg.matmul(hg.quantize_mxfp4(x), q.T, dtype=np.float32).get())


def test_launches_are_ordered_with_what_other_streams_do(rng: np.random.Generator) -> None:
    a, b = hg.Stream(), hg.Stream()
    x, y = hg.zeros((16, 32), BF16), hg.empty((16, 16), np.float32)
    graph = hg.Graph(lambda stream: hg.matmul(x, x.T, out=y, stream=stream))
    for value in (1, 2, 3):
        hg.asarray(np.full((16, 32), value, BF16), stream=a)
        x.__setitem__(..., hg.asarray(np.full((16, 32), value, BF16), stream=a))
        graph.launch(b)
        assert (hg.matmul(x, x.T, dtype=np.float32, stream=a).get() == 32 * value**2).all()
        assert (y.get() == 32 * value**2).all()


def test_memory_is_given_back(rng: np.random.Generator) -> None:
    x = hg.asarray(_values(rng, 64, 64))
    gc.collect()
    used = hg.memory_stats().used
    graph = hg.Graph(lambda stream: hg.matmul(hg.matmul(x, x, stream=stream), x, stream=stream))
    assert hg.memory_stats().used > used
    graph.launch()
    del graph
    gc.collect()
    assert hg.memory_stats().used == used


def test_what_a_graph_cannot_contain(rng: np.random.Generator) -> None:
    host = _values(rng, 16, 32)
    x, stream = hg.asarray(host), hg.Stream()
    right = host.astype(np.float32) @ host.T.astype(np.float32)
    q = hg.quantize_fp8(x)

    def refused(kind: type[Exception], text: str, calls: Callable[[Any], Any]) -> None:
        with pytest.raises(kind, match=text):
            hg.Graph(calls)
        assert (hg.matmul(x, x.T, dtype=np.float32).get() == right).all()

    refused(ValueError, "Graph: function must make calls on the stream .*; got none", lambda s: None)
    refused(ValueError, "Graph: .* the stream that it is given", lambda s: hg.matmul(x, x.T))
    refused(ValueError, "Graph: .* the stream that it is given", lambda s: hg.dequantize(q, stream=stream))
    refused(ValueError, "Graph: .* on the device", lambda s: hg.asarray(host, stream=s))
    refused(ValueError, "Graph: .* on the device", lambda s: hg.matmul(x, x.T, stream=s).get())
    refused(ValueError, "Graph: .* do not wait", lambda s: (hg.matmul(x, x.T, stream=s), hg.synchronize()))
    refused(ZeroDivisionError, "division", lambda s: (hg.matmul(x, x.T, stream=s), 1 // 0))
    with pytest.raises(TypeError, match="Graph: function must be callable; got int"):
        hg.Graph(3)  # type: ignore[arg-type]
    graph = hg.Graph(lambda s: hg.matmul(x, x.T, stream=s))
    refused(ValueError, "launch no graph", lambda s: graph.launch(s))
    x.free()
    with pytest.raises(ValueError, match=r"Graph\.launch: the arrays .* must still be in memory"):
        graph.launch()
