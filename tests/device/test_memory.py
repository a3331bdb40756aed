"""The pool: reuse, no leaks, and exact allocations when asked for."""

import gc
import subprocess
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import _hip
from hipgemm.testing import random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def free_bytes() -> int:
    return int(_hip.runtime().hip.hipMemGetInfo()[1])


def test_a_thousand_calls_leak_nothing(rng):
    """Half of them raise: wrong shapes, no kernel, and faults found late."""
    a, w = random_matrix((20, 36), rng), random_matrix((24, 36), rng)
    x, y = hg.asarray(a), hg.asarray(w)
    bias = np.ones(24, F32)

    def good(i):
        if i % 2:
            hg.matmul(x, y.T, bias=bias)  # odd K: with temporaries
        else:
            hg.matmul(a, w.T, np.empty((24, 20), F32).T)

    wrong = [
        lambda: hg.matmul(x, y),
        lambda: hg.matmul(a.astype(np.float16), w.astype(np.float16).T),
        lambda: hg.matmul(x, y.T, alpha=1e300),
        lambda: hg.matmul(x, y.T, bias=bias[:3]),
    ]

    def bad(i):
        with pytest.raises((ValueError, TypeError, hg.UnsupportedError)):
            wrong[i % 4]()

    for i in range(20):
        good(i), bad(i)
    gc.collect()
    before = free_bytes()
    for i in range(500):
        good(i), bad(i)
    gc.collect()
    assert free_bytes() == before


def test_steady_state_allocates_nothing(rng):
    x, y = hg.asarray(random_matrix((20, 64), rng)), hg.asarray(random_matrix((24, 64), rng)).T
    out = hg.empty((20, 24), BF16)
    hg.matmul(x, y, out)
    pool = _hip.runtime().pools[0]
    allocated = pool.bytes
    calls = []
    real = pool.allocate
    pool.allocate = lambda *args: calls.append(args) or real(*args)
    try:
        for _ in range(50):
            hg.matmul(x, y, out)
    finally:
        del pool.allocate
    assert not calls
    assert pool.bytes == allocated


@pytest.fixture
def caching():
    if not _hip.runtime().pools[0].caching:
        pytest.skip("HIPGEMM_POOL=off")


@pytest.mark.usefixtures("caching")
def test_blocks_are_reused():
    x = hg.empty((100, 100), F32)
    ptr = x.ptr
    del x
    gc.collect()
    assert hg.empty((100, 100), F32).ptr == ptr


@pytest.mark.usefixtures("caching")
def test_free_gives_back_at_once():
    x = hg.empty((100, 100), F32)
    ptr = x.ptr
    view = x[1:]
    x.free()
    assert hg.empty((100, 100), F32).ptr == ptr
    del view


def test_trim_returns_memory_to_hip():
    pool = _hip.runtime().pools[0]
    gc.collect()
    pool.trim()
    before = free_bytes()
    x = hg.empty(2**20, np.int8)
    assert before - free_bytes() >= 2**20
    del x
    gc.collect()
    assert free_bytes() < before
    pool.trim()
    assert free_bytes() == before


def test_too_much_memory_is_an_error_and_no_more(rng):
    with pytest.raises(hg.HipError, match="hipMalloc") as caught:
        hg.empty(2**50, np.int8)
    assert caught.value.name in ("hipErrorOutOfMemory", "hipErrorMemoryAllocation")
    assert caught.value.code == 2
    a = random_matrix((4, 8), rng)
    assert hg.matmul(a, a.T).shape == (4, 4)


def test_sizes_of_the_pool():
    for n in [*range(0, 3000, 7), 2**20 - 1, 2**20, 2**20 + 1, 10**9]:
        size = _hip._round_up(n)
        assert size >= max(n, 512)
        assert size - n <= max(512, n / 8)
        assert size % 512 == 0


def test_pool_off_is_exact(run_python: Run) -> None:
    done = run_python(
        "import numpy as np, ml_dtypes, hipgemm as hg\n"
        "from hipgemm import _hip, testing\n"
        "rng = np.random.default_rng(0)\n"
        "free = lambda: int(_hip.runtime().hip.hipMemGetInfo()[1])\n"
        "for m, n, k in ((1, 1, 1), (65, 33, 40), (70, 130, 72), (257, 64, 8)):\n"
        "    a, w = testing.random_matrix((m, k), rng), testing.random_matrix((n, k), rng)\n"
        "    out = hg.matmul(hg.asarray(a), hg.asarray(w).T, bias=np.ones(n, np.float32))\n"
        "    testing.assert_gemm_close(out.get(), a, w.T, bias=np.ones(n, np.float32))\n"
        "    testing.assert_gemm_close(hg.matmul(a, w.T), a, w.T)\n"
        "del out\n"
        "hg.empty(1, np.int8)\n"
        "print(_hip.runtime().pools[0].bytes)\n",
        HIPGEMM_POOL="off",
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) <= 1
