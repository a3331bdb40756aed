import subprocess
import threading
import timeit
from collections.abc import Callable

from hipgemm import UnsupportedError, reset_usage, usage
from hipgemm.errors import Reason
from hipgemm.inspect.usage import Served
from hipgemm.runtime.tally import (
    _LONGEST_LOG,
    Call,
    _log,
    count_call,
    count_copy,
    count_kernel,
    count_launched,
    count_refused,
)


def test_counts_and_prints():
    reset_usage()
    for flop in (10**9, 2 * 10**9):
        count_kernel("gemm")
        count_call(Call("matmul", "gemm", flop, 2**20))
    count_kernel("split_reduce")
    count_kernel("plain")
    count_call(Call("matmul", "plain", 10**6, 2**19, "row pitch too large"))
    count_copy("matmul", "a", "K not contiguous", 2**21)
    count_copy("matmul", "a", "K not contiguous", 2**21)
    for got in ("f64", "f32"):
        reasons = [
            Reason(UnsupportedError, code, f"{code} must be right; got {got}") for code in ("format", "grid")
        ]
        count_refused("matmul", reasons)
    found = usage()
    assert found.kernels == {"gemm": 2, "split_reduce": 1, "plain": 1}
    assert found.served == {"gemm": Served(2, 3 * 10**9, 2**21), "plain": Served(1, 10**6, 2**19)}
    assert found.copies == {("matmul", "a", "K not contiguous"): 2}
    assert found.copied == {("matmul", "a", "K not contiguous"): 2**22}
    assert found.slower == {("matmul", "plain", "row pitch too large"): 1}
    assert found.refused == {("matmul", "format"): 2, ("matmul", "grid"): 2}
    assert found.refused_calls == 2
    assert str(found).splitlines() == [
        "hipgemm: 2 calls served fast, 3 served slower or refused",
        "         2x matmul: refused (format): format must be right; got f32",
        "         2x matmul: refused (grid): grid must be right; got f32",
        "         1x matmul: served by plain: row pitch too large",
        "      calls  launches        GFLOP          MiB  kernel",
        "          2         2        3.000        2.000  gemm",
        "          1         1        0.001        0.500  plain",
        "                    1                            split_reduce",
        "         2x matmul: a copied: K not contiguous (4.000 MiB)",
    ]
    reset_usage()
    assert str(usage()) == "hipgemm: nothing ran"
    assert found.kernels["gemm"] == 2, "what was returned is a copy"


def test_counts_from_many_threads():
    reset_usage()

    def work() -> None:
        for _ in range(500):
            count_kernel("k")
            count_call(Call("matmul", "k", 2, 3))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert usage().kernels == {"k": 4000}
    assert usage().served == {"k": Served(4000, 8000, 12000)}
    reset_usage()


def test_calls_of_one_launch():
    """Counted without the lock: visible at once, and reset with the others."""
    reset_usage()
    fast, slow = Call("matmul", "k", 2, 3), Call("matmul", "plain", 2, 3, "why not")

    def work() -> None:
        for _ in range(500):
            count_launched(fast)
            count_launched(slow)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(_log) < _LONGEST_LOG, "they do not pile up"
    found = usage()
    assert found.kernels == {"k": 4000, "plain": 4000}
    assert found.served == {"k": Served(4000, 8000, 12000), "plain": Served(4000, 8000, 12000)}
    assert found.slower == {("matmul", "plain", "why not"): 4000}
    count_launched(fast)
    reset_usage()
    count_launched(fast)
    assert usage().served == {"k": Served(1, 2, 3)}
    reset_usage()


def test_counting_is_cheap():
    """Below a microsecond a call on an idle machine; ten on a busy one."""
    reset_usage()
    call = Call("matmul", "k", 2, 3)
    times = timeit.repeat(lambda: count_call(call), number=1000, repeat=20)
    assert min(times) / 1000 < 10e-6
    assert usage().served["k"].calls == 20_000
    reset_usage()


def test_report_at_exit(run_python: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    code = "import hipgemm; from hipgemm.runtime.tally import count_kernel; count_kernel('some_kernel')"
    assert "1                            some_kernel" in run_python(code, HIPGEMM_REPORT="1").stderr
    assert run_python(code, HIPGEMM_REPORT="0").stderr == ""
    assert run_python(code, HIPGEMM_REPORT=None).stderr == ""
