"""Many threads, streams and devices at once; forks; Ctrl-C. Each in its own process."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]

HEAD = """
import gc, os, signal, sys, threading, time
import ml_dtypes, numpy as np
import hipgemm as hg
from hipgemm.runtime import hip as _hip
from hipgemm.testing import random_matrix
BF16, F32 = ml_dtypes.bfloat16, np.float32
rng = np.random.default_rng(1)
"""

LOAD = """
sys.setswitchinterval(1e-5)
THREADS, CALLS = 16, 200
shapes = [(17, 33, 40), (64, 20, 64), (5, 70, 36), (33, 65, 9)]
host = [(random_matrix((m, k), rng), random_matrix((n, k), rng), rng.standard_normal(n).astype(F32))
        for m, n, k in shapes]
quantized = [(hg.quantize_mxfp8(a), hg.quantize_mxfp8(w)) for a, w, _ in host]
def resident(device):  # scales are converted to GEMM order at the first product, in any thread
    return [tuple(hg.asarray(q, device=device) for q in pair) for pair in quantized]

shared = [[(hg.asarray(a, device=d), hg.asarray(w, device=d).T, hg.asarray(b, device=d)) for a, w, b in host]
          for d in (0, 1)]
codes = [resident(0), resident(1)]
streams = [[hg.Stream(d) for _ in range(4)] for d in (0, 1)]

def call(i, device, stream):
    a, w, b = host[i % 4]
    x, y, bias = shared[device][i % 4]
    kind = i // 4 % 7
    if kind == 0:  # shared operands
        return hg.matmul(x, y, bias=bias, stream=stream).get()
    if kind == 1:  # all from NumPy
        return hg.matmul(a, w.T, bias=b, stream=stream)
    if kind == 2:  # temporaries of temporaries, an output from the pool, another stream in between
        one = hg.matmul(x, y, dtype=F32, stream=stream)
        two = hg.quantize_mxfp8(one, stream=streams[device][i % 4])
        del one
        return two.data.get()
    if kind == 3:  # quantized, uploaded each time
        p, q = quantized[i % 4]
        p, q = hg.asarray(p, device=device, stream=stream), hg.asarray(q, device=device, stream=stream)
        return hg.matmul(p, q.T, stream=stream).get()
    if kind == 5:  # quantized and shared
        p, q = codes[device][i % 4]
        return hg.matmul(p, q.T, bias=bias, stream=stream).get()
    if kind == 4:  # column-major output
        out = hg.empty((y.shape[1], x.shape[0]), BF16, device=device, stream=stream)
        hg.matmul(x, y, out.T, stream=stream)
        return out.get()
    try:
        hg.matmul(x, y.T, stream=stream)
    except ValueError as error:
        return np.frombuffer(str(error).encode(), np.uint8)

def series(seed, check):
    device = seed % 2
    _hip.call("hipSetDevice", device)
    for i in range(CALLS):
        index = (seed * 7 + i * 11) % 28
        found = call(index, device, streams[device][i // 3 % 4] if i % 5 else None)
        check(device, index, found)
    assert _hip.current_device() == device

serial = {}
for device in (0, 1):
    _hip.call("hipSetDevice", device)
    for i in range(28):
        serial[device, i] = call(i, device, None).tobytes()
_hip.call("hipSetDevice", 0)
codes = [resident(0), resident(1)]
assert all(serial[0, i] == serial[1, i] for i in range(28))
failures = []

def work(seed):
    def check(device, index, found):
        assert found.tobytes() == serial[device, index], (seed, device, index)
    try:
        series(seed, check)
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
for thread in threads: thread.start()
for thread in threads: thread.join()
if failures: raise failures[0]
for device in (0, 1): hg.synchronize(device)
assert _hip.current_device() == 0
print("served", sum(hg.usage().kernels.values()))
"""


CHECKED = pytest.mark.emulator("the race check")


@pytest.mark.parametrize("check", [pytest.param("race", marks=CHECKED), ""], ids=["race check", "eager"])
def test_threads_streams_and_devices(run_on_devices: Callable[..., str], monkeypatch, check: str) -> None:
    """16 threads, 200 calls each, on 4 streams of each of 2 devices: the same bits as one after the other."""
    monkeypatch.setenv("HIPGEMM_EMULATOR_CHECK", check)
    monkeypatch.setenv("HIPGEMM_EMULATOR_ASYNC", "late" if check else "eager")
    out = run_on_devices(HEAD + LOAD)
    assert int(out.split()[-1]) > 16 * 200


FORK = """
x, y = hg.asarray(random_matrix((8, 8), rng)), hg.zeros(3, F32)
stream, event = hg.Stream(), hg.Event().record()
q = hg.quantize_mxfp8(x)
hg.matmul(x, x)
busy = threading.Thread(target=lambda: [hg.matmul(x, x).get() for _ in range(300)])
busy.start()
time.sleep(0.01)  # fork while another thread may hold any lock
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    reported = 0
    for call in (
        lambda: hg.zeros(3, F32), lambda: hg.asarray(np.ones(3)), x.get, lambda: hg.matmul(x, x),
        lambda: hg.matmul(np.ones((2, 2), BF16), np.ones((2, 2), BF16)), stream.synchronize, stream.query,
        event.synchronize, event.query, hg.Stream, hg.Event, hg.synchronize, hg.memory_stats, hg.trim,
        lambda: hg.matmul(x, x, stream=stream), lambda: hg.quantize_mxfp8(x), lambda: q.get(),
        lambda: x.__dlpack__(), lambda: hg.asarray(y, copy=True), lambda: hg.AmaxState(1.0),
    ):
        try:
            call()
            print("nothing raised", call)
        except hg.RuntimeNotFoundError as error:
            reported += "HIP does not survive a fork" in str(error)
    assert hg.usage().kernels
    del x, y, stream, event, q
    gc.collect()
    import hipgemm.reference  # works without a GPU
    assert hg.can_use("matmul", np.ones((2, 2), BF16), np.ones((2, 2), BF16), arch="gfx950").kernel
    os.write(write, b"%d" % reported)
    os._exit(0)
busy.join()
_, status = os.waitpid(pid, 0)
print("child", os.read(read, 9).decode(), status)
print("parent", hg.matmul(x, x).get().shape, y.get().sum())
"""


def test_a_forked_child_is_reported(run_python: Run) -> None:
    done = run_python(HEAD + FORK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["child 20 0", "parent (8, 8) 0.0"]


def test_a_child_of_a_process_without_gpu_may_use_it(run_python: Run) -> None:
    code = HEAD + (
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os._exit(0 if hg.zeros(3, F32).get().sum() == 0 else 1)\n"
        "print(os.waitpid(pid, 0)[1], hg.zeros(2, F32).get())\n"
    )
    done = run_python(code)
    assert done.stdout.split("\n")[0] == "0 [0. 0.]", done.stderr


HANDLER = """
sum_, calls = np.zeros(3, F32), 0
def handler(number, frame):
    global calls
    calls += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    sum_[:] += hg.asarray(np.ones(3, F32)).get()
    assert (hg.matmul(eye, eye).get() == eye_host).all()
    signal.setitimer(signal.ITIMER_REAL, 2e-4)
signal.signal(signal.SIGALRM, handler)
x = np.arange(1000, dtype=F32)
eye_host = np.eye(8).astype(BF16)
eye = hg.asarray(eye_host)
a, w = hg.asarray(random_matrix((40, 24), rng)), hg.asarray(random_matrix((9, 24), rng))
out, expected = hg.empty((40, 9), F32), hg.matmul(a, w.T, dtype=F32).get()
hg.matmul(eye, eye)
used = hg.memory_stats().used
hg.asarray(x).get()
signal.setitimer(signal.ITIMER_REAL, 2e-4)
end = time.monotonic() + 2
while time.monotonic() < end:
    for size in range(1000, 60000, 2000):
        hg.empty(size, np.int8).free()
    for _ in range(20):
        hg.matmul(a, w.T, out)
        assert (out.get() == expected).all()
    assert (hg.asarray(x).get() == x).all()
    hg.trim()
signal.signal(signal.SIGALRM, signal.SIG_IGN)
assert sum_.tolist() == [calls] * 3
stats = hg.memory_stats()
assert stats.used == used, stats
print("handled", calls)
"""


def test_signal_handlers_may_call(run_python: Run) -> None:
    """Python runs them anywhere in the main thread, also inside the pool."""
    done = run_python(HEAD + HANDLER)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 100


INTERRUPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
a = random_matrix((1024, 1024), rng)
x = hg.asarray(a)
small = random_matrix((65, 40), rng)
expected = hg.matmul(small, small.T)
stream = hg.Stream()
hg.matmul(x, x).get()
gc.collect(); hg.trim()
free, used = hg.memory_stats().free, hg.memory_stats().used
def chain():
    y = x
    for _ in range(6):
        y = hg.matmul(y, x, stream=stream)
    return y.get()
calls = [
    chain,
    lambda: [hg.matmul(a, a) for _ in range(9)],
    lambda: [hg.matmul(a, a, np.empty((1024, 1024), F32).T, stream=stream) for _ in range(9)],
    lambda: [hg.asarray(hg.matmul(x, x).get(), copy=True) for _ in range(9)],
    lambda: [(hg.matmul(x, x, stream=stream), hg.synchronize()) for _ in range(9)],
]
print("ready", flush=True)
interrupted = 0
for round in range(2):
    for call in calls:
        sys.stdin.readline()
        try:
            print("go", flush=True)
            call()
            time.sleep(30)
        except KeyboardInterrupt:
            interrupted += 1
        assert (hg.matmul(small, small.T) == expected).all()
        assert _hip.current_device() == 0
gc.collect(); hg.trim()
assert (hg.memory_stats().free, hg.memory_stats().used) == (free, used), (hg.memory_stats(), free, used)
print("interrupted", interrupted, flush=True)
"""


def test_interrupted_calls_leave_a_usable_process() -> None:
    """Ctrl-C at any time: the next call is correct, and no memory is leaked."""
    child = subprocess.Popen(
        [sys.executable, "-c", HEAD + INTERRUPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "ready\n"
        for turn in range(10):
            child.stdin.write("\n")
            child.stdin.flush()
            assert child.stdout.readline() == "go\n"
            time.sleep(0.003 * 1.7**turn)
            child.send_signal(signal.SIGINT)
        out, error = child.communicate(timeout=120)
    finally:
        child.kill()
    assert out.split("\n")[0] == "interrupted 10", error


@pytest.mark.emulator("a product that takes long, and says whether it is done")
def test_a_long_product_answers_ctrl_c(run_python: Run) -> None:
    """Within 100 ms, while the stream is busy. The next call is correct."""
    done = run_python(
        HEAD
        + """
a = np.ones((3072, 3072), BF16)
hg.matmul(a[:64], a[:64].T)  # everything is loaded
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
waited = []
for delay in (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5):
    sent = time.perf_counter() + delay
    signal.setitimer(signal.ITIMER_REAL, delay)
    try:
        hg.matmul(a, a)
        print("too quick")
    except KeyboardInterrupt:
        seconds = time.perf_counter() - sent
        if int(_hip.runtime().hip.hipStreamQuery(None)[0]) == 600:  # else it was not queued yet
            waited.append(seconds)
    assert (hg.matmul(a[:64, :32], a[:32]).astype(F32) == 32).all()
    if waited and min(waited) < 0.1: break  # else other processes have the cores
print(hg.memory_stats().used, min(waited))
"""
    )
    assert done.returncode == 0, done.stderr
    used, seconds = done.stdout.split()
    assert (used, float(seconds) < 0.1) == ("0", True), done.stdout
