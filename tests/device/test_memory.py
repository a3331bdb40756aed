"""The pool: reuse, no leaks, and exact allocations on request."""

import gc
import re
import subprocess
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.array import dlpack as _dlpack
from hipgemm.array.interop import device_kind
from hipgemm.runtime import hip as _hip
from hipgemm.runtime import pool as _pool
from hipgemm.testing import random_matrix

BF16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


# On a GPU the driver and other processes allocate too, and memory comes in units of some MiB: more than that,
# and by how much the device's free memory may differ.
SIZE, SLACK = 2**27, 2**25


def free_bytes() -> int:
    return int(_hip.runtime().hip.hipMemGetInfo()[1])


@pytest.mark.emulator("the process survives a fault on the device")
def test_a_thousand_calls_leak_nothing(rng):
    """Half of them raise: wrong shapes, no memory, no stream, and asynchronous device errors."""
    a, w = random_matrix((20, 36), rng), random_matrix((24, 36), rng)
    x, y = hg.asarray(a), hg.asarray(w)
    bias = np.ones(24, F32)
    beyond = hg.asarray(Beyond(x))

    def good(i):
        if i % 2:
            hg.matmul(x, y.T, bias=bias)  # odd K: with temporaries
        else:
            hg.matmul(a, w.T, np.empty((24, 20), F32).T)

    wrong = [
        lambda: hg.matmul(x, y),
        lambda: hg.matmul(a.astype(np.int16), w.astype(np.int16).T),
        lambda: hg.matmul(x, y.T, alpha=1e300),
        lambda: hg.matmul(x, y.T, bias=bias[:3]),
        lambda: hg.empty(2**50, np.int8),
        lambda: hg.matmul(a, w.T, stream=0x123456789ABCDE0),
        lambda: hg.matmul(beyond, y.T).get(),
        lambda: hg.asarray(a, device=99),
    ]

    def bad(i):
        with pytest.raises((ValueError, TypeError, hg.HipError)):
            wrong[i % len(wrong)]()

    for i in range(24):
        good(i), bad(i)
    gc.collect()
    hg.trim()
    before, used = free_bytes(), hg.memory_stats().used
    for i in range(500):
        good(i), bad(i)
    gc.collect()
    cached = hg.memory_stats().cached
    assert hg.memory_stats().used == used
    assert cached < 2**20
    assert free_bytes() == before - cached
    hg.trim()
    assert free_bytes() == before


class Beyond:
    """An external array that claims to be larger than it is."""

    def __init__(self, x):
        self.__cuda_array_interface__ = {
            "shape": (2**12, 36),
            "strides": None,
            "typestr": "<u2",
            "data": (x.ptr, False),
            "stream": None,
            "version": 3,
        }
        self.x = x

    def __dlpack_device__(self):
        return device_kind(), 0

    def __dlpack__(self, *, stream):
        return _dlpack.export(self.x.ptr, 0, (2**12, 36), (72, 2), BF16, self, kind=device_kind())


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
    x = hg.empty(SIZE, np.int8)
    assert before - free_bytes() >= SIZE - SLACK
    del x
    gc.collect()
    if pool.caching:
        assert before - free_bytes() >= SIZE - SLACK
    pool.trim()
    assert abs(before - free_bytes()) <= SLACK


def test_stats():
    gc.collect()
    hg.trim()
    start = hg.memory_stats()
    assert start.cached == 0
    x = hg.empty(SIZE, np.int8)
    one = hg.memory_stats()
    assert one.used - start.used == SIZE
    assert abs(start.free - one.free - SIZE) <= SLACK
    assert (one.requests - start.requests, one.mallocs - start.mallocs) == (1, 1)
    assert one.peak >= one.used
    x.free()
    two = hg.memory_stats()
    assert two.used == start.used
    assert two.used + two.cached <= one.used + one.cached
    assert two.peak == one.peak
    assert two.total == one.total >= one.free
    assert hg.trim() == two.cached
    assert hg.memory_stats().cached == 0
    assert hg.memory_stats(0).device == 0
    with pytest.raises(ValueError, match="memory_stats: device must be 0 to"):
        hg.memory_stats(99)
    with pytest.raises(TypeError, match="trim: device must be an int; got str"):
        hg.trim("0")


@pytest.fixture
def limit():
    """Set limits above what is allocated now; no limits afterwards."""
    gc.collect()
    hg.synchronize()
    hg.trim()
    held = hg.memory_stats().used

    def above(more):
        hg.limit_memory(held + more)

    yield above
    hg.limit_memory()


@pytest.mark.usefixtures("caching")
def test_out_of_memory_says_asked_free_and_cached(limit):
    limit(3 * 2**20)
    x, y = hg.empty(2**20, np.int8), hg.empty(2**19, np.int8)
    y.free()
    cached = hg.memory_stats().cached
    assert cached == 2**19
    with pytest.raises(hg.HipError) as caught:
        hg.empty(2**20 * 5 // 2 + 1, np.int8)
    error = caught.value
    assert (error.code, error.name) == (2, "hipErrorOutOfMemory")
    stats = hg.memory_stats()
    assert "requested: 2621441 bytes, rounded up to 2883584" in error.report
    found = re.search(rf"^free: (\d+) of {stats.total} on device 0$", error.report, re.MULTILINE)
    assert found
    assert abs(int(found[1]) - stats.free) <= SLACK
    assert f"cached: {cached} bytes by hipgemm" in error.report
    assert f"{stats.used} bytes are in use by its arrays" in error.report
    assert f"limit: {stats.limit} bytes" in error.report
    assert str(error).startswith("hipMalloc(2883584 bytes on device 0): hipErrorOutOfMemory (2)")
    assert "other processes" not in error.report
    x.free()
    hg.empty(2**20 * 5 // 2, np.int8).free()  # nothing was lost


def test_out_of_memory_of_a_device_that_others_use(limit, monkeypatch):
    limit(2**20)
    held = hg.memory_stats().used + hg.memory_stats().cached
    monkeypatch.setattr(_hip, "memory_info", lambda device: (2**30, 2**34))
    with pytest.raises(
        hg.HipError, match=f"other processes and the driver hold {2**34 - 2**30 - held} bytes"
    ):
        hg.empty(2**21, np.int8)


@pytest.mark.usefixtures("caching")
def test_what_is_cached_gives_way(limit, streams):
    limit(2**21)
    other = streams()
    for size in (2**20, 2**19):
        hg.empty(size, np.int8, stream=other).free()
    assert hg.memory_stats().cached >= 2**20
    x = hg.empty(2**21, np.int8)  # only after the other stream's memory was freed
    assert hg.memory_stats().cached == 0
    assert x.nbytes == 2**21


def test_garbage_gives_way(limit):
    limit(2**21)
    gc.disable()
    try:
        cycle = [hg.empty(2**21, np.int8)]
        cycle.append(cycle)
        del cycle
        assert hg.empty(2**21, np.int8).nbytes == 2**21
    finally:
        gc.enable()


@pytest.mark.usefixtures("caching")
def test_the_cache_is_bounded():
    gc.collect()
    hg.trim()
    try:
        hg.limit_memory(cache=2**20)
        blocks = [hg.empty(n, np.int8) for n in (2**20, 2**19, 2**18, 2**21)]
        for block in blocks:
            block.free()
        assert hg.memory_stats().cached == 2**19 + 2**18  # the largest go first
    finally:
        hg.limit_memory()


@pytest.mark.emulator("a device of little memory")
def test_a_device_that_runs_out(run_python: Run) -> None:
    """With little device memory: products fail, report why, and work again once memory is free."""
    done = run_python(
        "import gc, numpy as np, ml_dtypes, hipgemm as hg\n"
        "from hipgemm import testing\n"
        "rng = np.random.default_rng(0)\n"
        "a, w = testing.random_matrix((256, 512), rng), testing.random_matrix((256, 512), rng)\n"
        "expected = hg.matmul(a, w.T)\n"
        "total = hg.memory_stats().total\n"
        "held, failed = [], 0\n"
        "for _ in range(1000):\n"
        "    try:\n"
        "        held.append(hg.matmul(hg.asarray(a), hg.asarray(w).T, dtype=np.float32))\n"
        "    except hg.HipError as error:\n"
        "        failed += 1\n"
        "        assert error.code == 2 and 'requested: ' in error.report, error\n"
        "        assert f'of {total} on device 0' in error.report, error\n"
        "        if failed == 1:\n"
        "            assert len(held) > 40, len(held)\n"
        "            for x in held:\n"
        "                assert (x.get().astype(ml_dtypes.bfloat16) == expected).all()\n"
        "        if failed == 3: break\n"
        "used = hg.memory_stats().used\n"
        "assert used > total * 0.7, used\n"
        "held.clear()\n"
        "assert (hg.matmul(a, w.T) == expected).all()\n"
        "big = hg.empty(hg.memory_stats().total // 2, np.int8)\n"  # frees the cache of small blocks
        "del big\n"
        "assert hg.memory_stats().used < 2**19, hg.memory_stats()\n"
        "print(total, failed)\n",
        HIPGEMM_EMULATOR_DEVICE_BYTES=str(40 << 20),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(40 << 20), "3"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("1000", 1000), ("3K", 3072), ("5 m", None), ("2MiB", 2**21), ("4g", 2**32), ("x", None)],
)
def test_limits_by_the_environment(run_python: Run, text, number) -> None:
    done = run_python(
        "import hipgemm as hg\nstats = hg.memory_stats()\nprint(stats.limit, stats.cache_limit)\n",
        HIPGEMM_MEMORY_LIMIT=text,
        HIPGEMM_CACHE_LIMIT="7",
    )
    if number is None:
        assert "ValueError: HIPGEMM_MEMORY_LIMIT must be a number of bytes, such as" in done.stderr
    else:
        assert done.stdout.split() == [str(number), "7"]


def test_too_much_memory_is_an_error_and_no_more(rng):
    with pytest.raises(hg.HipError, match=r"hipMalloc\(.*\nrequested: 1125899906842624 bytes") as caught:
        hg.empty(2**50, np.int8)
    assert caught.value.name in ("hipErrorOutOfMemory", "hipErrorMemoryAllocation")
    assert caught.value.code == 2
    a = random_matrix((4, 8), rng)
    assert hg.matmul(a, a.T).shape == (4, 4)


def test_sizes_of_the_pool():
    for n in [*range(0, 3000, 7), 2**20 - 1, 2**20, 2**20 + 1, 10**9]:
        size = _pool._round_up(n)
        assert size >= max(n, 512)
        assert size - n <= max(512, n / 8)
        assert size % 512 == 0


def test_pool_off_is_exact(run_python: Run) -> None:
    done = run_python(
        "import numpy as np, ml_dtypes, hipgemm as hg\n"
        "from hipgemm import testing\n"
        "from hipgemm.runtime import hip as _hip\n"
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
