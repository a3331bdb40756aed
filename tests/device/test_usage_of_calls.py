"""`usage` after known calls: launches, FLOP, bytes, copies, reasons."""

import subprocess
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

import hipgemm as hg
from hipgemm import can_use
from hipgemm.inspect.usage import Served
from hipgemm.runtime import hip as _hip
from hipgemm.testing import random_matrix

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def operands():
    rng = np.random.default_rng(0)
    return hg.asarray(random_matrix((300, 512), rng)), hg.asarray(random_matrix((200, 512), rng)).T


@pytest.mark.matrix("bf16")
def test_products(operands):
    a, b = operands
    kernel, flop = can_use("matmul", a, b).kernel, 2 * 300 * 200 * 512
    hg.reset_usage()
    for _ in range(3):
        hg.matmul(a, b)
    hg.matmul(a, b, dtype=np.float32)
    used = hg.usage()
    moved = 2 * 512 * (300 + 200)
    assert used.served == {kernel: Served(4, 4 * flop, 4 * moved + 3 * 300 * 200 * 2 + 300 * 200 * 4)}
    assert used.kernels[kernel] == 4
    assert not used.copies
    assert not used.slower
    assert not used.refused_calls


@pytest.mark.matrix("bf16")
def test_can_use_shares_the_plan_of_a_call(monkeypatch):
    """For every operation, with and without an output; what is not in the cache key is still checked."""
    x, w, at = np.ones((64, 64), BF16), np.ones((2, 64, 64), BF16), np.array([0, 32, 64], np.int32)
    calls = [
        ("matmul", (x, x, np.zeros((64, 64), BF16)), {"alpha": np.float32(0.5)}),
        ("matmul", (hg.asarray(x), hg.asarray(x)), {"bias": np.ones(64, np.float32)}),
        ("grouped_matmul", (x, w, at), {}),
        ("grouped_wgrad", (x, x, at, np.zeros((2, 64, 64), np.float32)), {"accumulate": True}),
    ]
    for op, args, options in calls:
        getattr(hg, op)(*args, **options)
    expected = [can_use(op, *args, arch=_hip.arch(0), **options) for op, args, options in calls]

    def describe(*_):
        raise AssertionError("described again")

    with monkeypatch.context() as patch:
        patch.setattr("hipgemm.inspect.can_use.describe", describe)
        assert [can_use(op, *args, **options) for op, args, options in calls] == expected
    assert not can_use("matmul", x, x, x)  # the output is an input
    assert not can_use("grouped_matmul", x, w, at[::-1].copy())


def test_operands_count_once_however_they_are_shared(operands):
    _, b = operands
    batch = hg.asarray(np.zeros((4, 300, 512), BF16))
    hg.reset_usage()
    hg.matmul(batch, b)
    (row,) = hg.usage().served.values()
    assert row == (1, 4 * 2 * 300 * 200 * 512, 2 * (4 * 300 * 512 + 512 * 200 + 4 * 300 * 200))


@pytest.mark.matrix("bf16")
def test_parts_of_k_are_one_call():
    a, b = (hg.asarray(np.zeros((16, 8192), BF16)) for _ in range(2))
    answer = can_use("matmul", a, b.T)
    assert answer.splits > 1
    hg.reset_usage()
    hg.matmul(a, b.T)
    used = hg.usage()
    assert used.kernels == {answer.kernel: 1, "split_reduce": 1}
    assert used.served == {answer.kernel: Served(1, 2 * 16 * 16 * 8192, 2 * (2 * 16 * 8192 + 16 * 16))}


@pytest.mark.matrix("bf16")
def test_copies_for_layout(operands):
    a, b = operands
    reversed_rows = a[::-1]
    hg.reset_usage()
    hg.matmul(reversed_rows, b)
    used = hg.usage()
    ((op, operand, reason), count) = next(iter(used.copies.items()))
    assert (op, operand, count) == ("matmul", "a", 1)
    assert used.copied == {(op, operand, reason): 2 * 300 * 512}
    assert used.kernels["copy_strided_b2"] == 1
    assert f"1x matmul: a copied: {reason} (0.293 MiB)" in str(used)


def test_a_slower_kernel_says_why(operands):
    a, b = operands
    with hg.config(kernel="plain"):
        hg.reset_usage()
        hg.matmul(a, b)
        used = hg.usage()
    assert used.slower == {("matmul", "plain_gemm", "HIPGEMM_KERNEL=plain"): 1}
    assert str(used).splitlines()[:2] == [
        "hipgemm: 0 calls served fast, 1 served slower or refused",
        "         1x matmul: served by plain_gemm: HIPGEMM_KERNEL=plain",
    ]


def test_quantizers():
    x = hg.asarray(np.zeros((64, 256), np.float32))
    hg.reset_usage()
    q = hg.quantize_mxfp8(x)
    hg.quantize_both(x, "mxfp8_e4m3")
    hg.dequantize(q)
    assert hg.usage().served == {
        "quantize_mxfp8_f32": Served(2, 0, 2 * x.nbytes + 3 * (64 * 256 + 64 * 8)),
        "dequantize": Served(1, 0, x.nbytes + 64 * 256 + 64 * 8),
    }


@pytest.mark.matrix("bf16")
def test_the_report_at_exit(run_python: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    code = (
        "import hipgemm as hg, numpy as np, ml_dtypes\n"
        "x = np.ones((64, 64), ml_dtypes.bfloat16)\n"
        "hg.matmul(x, x.T); hg.matmul(x, x.T)\n"
    )
    lines = run_python(code, HIPGEMM_REPORT="1").stderr.splitlines()
    assert lines[0] == "hipgemm: 2 calls served fast, 0 served slower or refused"
    assert lines[2].split()[:4] == ["2", "2", "0.001", "0.047"]
