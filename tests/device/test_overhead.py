"""The steady state allocates nothing, and a product on resident operands is one call of HIP."""

import gc
import time

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm.runtime import hip as _hip
from hipgemm.testing import assert_gemm_close, random_matrix
from hipgemm_benchmarks import overhead

NAMES = [
    "matmul, out= given",
    "matmul, out= and bias",
    "matmul, out allocated",
    "matmul, mxfp8, out= given",
    "grouped_matmul, out= given",
    "quantize_mxfp8",
    "quantize_fp8",
    "dequantize, mxfp8",
    "sharded_matmul, split m",
    "sharded_matmul, split k",
]


@pytest.fixture
def calls():
    if not _hip.runtime().pools[0].caching:
        pytest.skip("HIPGEMM_POOL=off")
    return overhead.resident()


def test_the_table_has_these(calls, bf16_kernels):
    assert list(calls) == [name for name in NAMES if bf16_kernels or "grouped" not in name]


@pytest.mark.parametrize("name", NAMES)
def test_steady_state_allocates_nothing(name, calls):
    if name not in calls:
        pytest.skip("needs the matrix kernels")
    gc.collect()
    gc.disable()
    try:
        found = overhead.allocations(calls[name], 300)
    finally:
        gc.enable()
    assert (found.mallocs, found.device_bytes, found.pinned_bytes) == (0, 0, 0)
    assert found.blocks < 30  # of Python, in 300 calls: counters grow
    wanted = {"hipModuleLaunchKernel": 300}
    if name == "quantize_fp8":  # it computes the amax first
        wanted = {"hipModuleLaunchKernel": 600, "hipMemsetAsync": 300}
    requests = 0 if "out= " in name else 300
    if name == "sharded_matmul, split k":  # the reduction runs after the product
        wanted, requests = {"hipModuleLaunchKernel": 600}, 600
    if _hip.runtime().devices == 1:
        assert found.hip.pop("hipGetDevice", 0) == 0
    assert {**found.hip, "hipGetDevice": 0} == {**wanted, "hipGetDevice": 0}
    assert found.requests == requests


def test_allocations_are_seen():
    kept = []
    found = overhead.allocations(lambda: kept.append(hg.empty(1000, np.int8)), 100)
    assert found.mallocs == found.requests == found.hip["hipMalloc"] == 100
    assert found.device_bytes == 100 * 1024
    assert found.blocks > 100


def test_numpy_operands_allocate_nothing_either(calls, rng):
    a, w, bias = random_matrix((65, 40), rng), random_matrix((33, 40), rng), np.ones(33, np.float32)
    found = overhead.allocations(lambda: hg.matmul(a, w.T, bias=bias), 50)
    assert (found.mallocs, found.device_bytes, found.pinned_bytes) == (0, 0, 0)


def test_launches_again_are_the_same_launches(rng):
    """What is timed as hip-python's own launch computes the product."""
    a, w = random_matrix((65, 40), rng), random_matrix((33, 40), rng)
    x, y, out = hg.asarray(a), hg.asarray(w).T, hg.zeros((65, 33), ml_dtypes.bfloat16)
    raw = overhead.recorded(lambda: hg.matmul(x, y, out))
    hg.matmul(x, x.T)  # other arguments in between
    _hip.clear(out.ptr, out.nbytes, 0)
    hg.reset_usage()
    raw.repeat()
    assert_gemm_close(out.get(), a, w.T)
    assert hg.usage().kernels == {}


def test_the_import_is_timed():
    assert 0.001 < overhead.import_seconds(1) < 10


def test_times_are_of_the_calls():
    found = overhead.microseconds({"slow": lambda: time.sleep(0.002), "fast": lambda: None}, 2, 3)
    assert found["slow"] > 2000 > found["fast"] >= 0
