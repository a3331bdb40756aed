"""Launches whose arguments are packed once: they are those of a launch that packs all of them."""

import threading

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import _hip, _launch, _plan, gemm, overhead
from hipgemm.testing import assert_gemm_close, random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.float32


@pytest.fixture
def plain(monkeypatch):
    monkeypatch.setenv("HIPGEMM_KERNEL", "plain")


def given(call):
    """The bytes of arguments of each launch of a call."""
    return [block.buffer.raw for block in overhead.recorded(call).blocks]


def operands(kind, rng):
    a, w = random_matrix((40, 64), rng), random_matrix((33, 64), rng)
    if kind == "bf16":
        return hg.asarray(a), hg.asarray(w).T
    quantize = {"fp8": hg.quantize_fp8, "mxfp8": hg.quantize_mxfp8, "mxfp4": hg.quantize_mxfp4}[kind]
    return quantize(hg.asarray(a)), quantize(hg.asarray(w)).T


@pytest.mark.parametrize("forced", ["", "plain"])
@pytest.mark.parametrize("kind", ["bf16", "fp8", "mxfp8", "mxfp4"])
def test_arguments_are_those_that_would_be_packed(kind, forced, matrix_kernels, rng, monkeypatch):
    """With every alpha, and with vectors in between that the next call does not have."""
    monkeypatch.setenv("HIPGEMM_KERNEL", forced)
    a, b = operands(kind, rng)
    made = []
    inner = _launch.Prepared.launch

    def launch(self, stream, pointers, alpha=None, scales=()):
        made.append((pointers, alpha, scales))
        inner(self, stream, pointers, alpha, scales)

    monkeypatch.setattr(_launch.Prepared, "launch", launch)
    bias = hg.asarray(np.ones(33, F32))
    number = hg.asarray(np.array(0.5, F32))
    out = hg.empty((40, 33), BF16)
    for options in (
        {},
        {"alpha": 0.5, "bias": bias},
        {"alpha": -0.0},
        {"alpha": 0.0, "col_scale": bias},
        {"alpha": float("nan")},
        {"alpha": number},
        {},
    ):
        made.clear()
        (found,) = given(lambda options=options: hg.matmul(a, b, out, **options))
        ((pointers, alpha, scales),) = made
        plan = gemm._plan(
            a,
            b,
            out,
            None,
            options.get("alpha", 1.0),
            options.get("col_scale"),
            options.get("bias"),
        )
        assert plan.kernel is not None
        assert plan.plain == (forced == "plain" or not matrix_kernels)
        values = _plan._values(plan, pointers[:6], alpha, scales or pointers[6:])
        assert len(values) == len(plan.kernel.args)
        packed = bytearray(plan.kernel.size)
        plan.kernel.pack_into(packed, 0, *values)
        assert found == packed


def test_a_launch_within_a_launch_has_arguments_of_its_own(plain, rng, monkeypatch):
    """As of a signal handler that multiplies with the same plan."""
    a, w = random_matrix((20, 24), rng), random_matrix((9, 24), rng)
    other = random_matrix((20, 24), rng)
    x, y, z = hg.asarray(a), hg.asarray(w).T, hg.asarray(other)
    out, out_within = hg.empty((20, 9), F32), hg.empty((20, 9), F32)
    hg.matmul(x, y, out)
    inner, within = _hip.launch, []

    def launch(*arguments):
        if not within:
            within.append(True)
            hg.matmul(z, y, out_within, alpha=2.0)
        inner(*arguments)

    monkeypatch.setattr(_hip, "launch", launch)
    hg.matmul(x, y, out)
    assert within
    assert_gemm_close(out.get(), a, w.T)
    assert_gemm_close(out_within.get(), other, w.T, alpha=2.0)


def test_blocks_are_as_many_as_launches_at_once(rng):
    x, out = hg.asarray(random_matrix((16, 16), rng)), hg.empty((16, 16), BF16)
    hg.matmul(x, x, out)
    single = gemm._plan(x, x, out, None, 1.0, None, None).single
    assert single is not None
    for _ in range(5):
        hg.matmul(x, x, out)
    assert len(single._free) == 1
    threads = [threading.Thread(target=lambda: [hg.matmul(x, x) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 1 <= len(single._free) <= 5


def test_the_environment_is_read_at_each_call(rng, monkeypatch):
    x, out = hg.asarray(random_matrix((16, 16), rng)), hg.empty((16, 16), BF16)

    def served():
        hg.reset_usage()
        hg.matmul(x, x, out)
        return list(hg.usage().served)

    monkeypatch.delenv("HIPGEMM_KERNEL", raising=False)
    usual = served()
    monkeypatch.setenv("HIPGEMM_KERNEL", "plain")
    assert served() == ["plain_gemm"]
    monkeypatch.delenv("HIPGEMM_KERNEL")
    assert served() == usual


def test_a_freed_array_is_refused(rng):
    x, y = hg.asarray(random_matrix((16, 16), rng)), hg.asarray(random_matrix((16, 16), rng))
    out = hg.empty((16, 16), BF16)
    hg.matmul(x, y, out)
    launched = sum(hg.usage().kernels.values())
    y.free()
    for call in (lambda: hg.matmul(x, y, out), lambda: hg.matmul(y, x, out), lambda: hg.matmul(x, x, y)):
        with pytest.raises(ValueError, match="the array was freed"):
            call()
    assert sum(hg.usage().kernels.values()) == launched
