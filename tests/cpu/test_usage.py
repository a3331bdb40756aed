import subprocess
import threading
from collections.abc import Callable

from hipgemm import UnsupportedError, reset_usage, usage
from hipgemm.errors import Reason
from hipgemm.usage import count_copy, count_kernel, count_refused


def test_counts_and_prints():
    reset_usage()
    count_kernel("k")
    count_kernel("k")
    count_copy("matmul", "a", "K not contiguous")
    count_refused("matmul", [Reason(UnsupportedError, "batch", "text")])
    found = usage()
    assert found.kernels == {"k": 2}
    assert found.copies == {("matmul", "a", "K not contiguous"): 1}
    assert found.refused == {("matmul", "batch"): 1}
    assert str(found).splitlines() == [
        "hipgemm usage",
        "         2  k",
        "         1  matmul: a copied: K not contiguous",
        "         1  matmul: refused: batch",
    ]
    reset_usage()
    assert not usage().kernels
    assert found.kernels == {"k": 2}, "what was returned is a copy"


def test_counts_from_many_threads():
    reset_usage()
    threads = [threading.Thread(target=lambda: [count_kernel("k") for _ in range(500)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert usage().kernels == {"k": 4000}
    reset_usage()


def test_report_at_exit(run_python: Callable[..., "subprocess.CompletedProcess[str]"]) -> None:
    code = "from hipgemm.usage import count_kernel; count_kernel('some_kernel')"
    assert "1  some_kernel" in run_python(code, HIPGEMM_REPORT="1").stderr
    assert run_python(code, HIPGEMM_REPORT="0").stderr == ""
    assert run_python(code, HIPGEMM_REPORT=None).stderr == ""
