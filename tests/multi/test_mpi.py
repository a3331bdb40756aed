"""Products over the ranks of MPI: four processes, on the GPUs present or two emulated devices."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

# A job that is aborted loses what mpiexec has not read yet, so that a rank waits after its last words.
PROGRAM = """
import os, sys, time
import ml_dtypes, numpy as np
from mpi4py import MPI
import hipgemm as hg
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
rng = np.random.default_rng(1)  # the same on every rank
bf16 = ml_dtypes.bfloat16

def say(text):
    os.write(1, f"\\n{text}\\n".encode())  # in one write
    time.sleep(0.5)

def done():
    print("done", rank, flush=True)
"""

PRODUCTS = """
a, b = random_matrix((37, 200), rng, dtype=bf16), random_matrix((53, 200), rng, dtype=bf16).T
bias = rng.standard_normal(53).astype(np.float32)
for split in "mnk":
    out = hg.sharded_matmul(a, b, split=split, devices=comm, alpha=0.5, bias=bias)
    assert_gemm_close(out, a, b, alpha=0.5, bias=bias)
    assert comm.allgather(out.tobytes()) == [out.tobytes()] * 4
    assert hg.sharded_matmul(a, b, split=split, devices=comm, alpha=0.5, bias=bias).tobytes() == out.tobytes()

x, y = hg.shard(a, comm, axis=1), hg.shard(b, comm, axis=0)
assert len(x.parts) == 1 and x.parts[0].shape == (37, 50) and x.offsets == (0, 50, 100, 150, 200)
z = hg.sharded_matmul(x, y, split="k")
assert z.parts[0].shape == ((10, 53) if rank == 0 else (9, 53))
assert_gemm_close(z.get(), a, b)
assert (x.T.get() == a.T).all()

dy, u = (exact_grid((90, n), rng, dtype=bf16) for n in (16, 24))
cut = hg.shard(dy, comm, axis=0, sizes=(50, 0, 39, 1)), hg.shard(u, comm, axis=0, sizes=(50, 0, 39, 1))
assert_gemm_close(hg.sharded_matmul(cut[0].T, cut[1], split="k", dtype=np.float32).get(), dy.T, u, exact=True)

q = hg.quantize_mxfp8(a.astype(np.float32)), hg.quantize_mxfp8(b.T.astype(np.float32)).T
assert_gemm_close(hg.sharded_matmul(*q, split="k", devices=comm), *q)

mine = [slice(0, 50), slice(50, 50), slice(50, 89), slice(89, 90)][rank]
place = x.devices[0]
held = [hg.sharding.assemble(p, axis=0, comm=comm) for p in (dy[mine], hg.asarray(u[mine], device=place))]
assert held[0].offsets == (0, 50, 50, 89, 90) and (held[1].get() == u).all()
dw = hg.sharded_matmul(held[0].T, held[1], split="k", dtype=np.float32)
assert_gemm_close(dw.get(), dy.T, u, exact=True)

scales = np.array([1e20, 1e20, 1e19, 2e20], np.float32)  # products of two leave float32
ones = np.ones((8, 32), ml_dtypes.float8_e4m3fn)
x = hg.sharding.assemble(hg.ScaledArray(ones, scales[rank], "fp8_e4m3"), axis=1, comm=comm)
y = hg.sharded_matmul(x, x.T, split="k", dtype=np.float32, alpha=1e-10).get()
np.testing.assert_allclose(y, 32 * (scales.astype(float) ** 2).sum() * 1e-10, rtol=1e-5)

out, aux = (np.zeros((37, 53), np.float32) for _ in range(2))
for split in "mnk":
    state = hg.AmaxState(100.0)
    q = hg.sharded_matmul(a, b, split=split, devices=comm, aux=aux, out_format="fp8_e4m3", out_amax=state)
    assert_gemm_close(aux, a, b)
    assert state.next.get() == abs(aux).max()
    mine = q.data.tobytes(), q.scale.tobytes()
    assert comm.allgather(mine) == [mine] * 4
    assert hg.sharded_matmul(a, b, out, split=split, devices=comm, accumulate=True) is out
assert_gemm_close(out, np.hstack([a] * 3), np.vstack([b] * 3))
p = hg.sharded_matmul(a, b, split="n", devices=comm, out_format="mxfp8_e4m3")
np.testing.assert_array_equal(p.data, hg.matmul(a, b, out_format="mxfp8_e4m3").data)

batch = np.stack([a, a[::-1], a, a, a])
out = hg.sharded_matmul(batch, b, split="batch", devices=comm)
assert_gemm_close(out[1], a[::-1], b)

two = comm.Split(rank % 2, rank)
assert_gemm_close(hg.sharded_matmul(a, b, split="k", devices=two), a, b)
done()
"""


# Ranks without rows or blocks, sums over nothing, views, ragged parts.
EDGES = """
def product(a, b, split, **arguments):
    out = hg.sharded_matmul(a, b, split=split, devices=comm, **arguments)
    assert out.shape == (*a.shape[:-1], b.shape[-1])
    if out.size:
        assert_gemm_close(out, a, b)
    assert comm.allgather(out.tobytes()) == [out.tobytes()] * comm.Get_size()

def mxfp4(x):
    return hg.quantize_mxfp4(x, hadamard=False)

for split in "mnk":
    for m, n, k in ((2, 3, 5), (0, 3, 5), (2, 0, 5), (2, 3, 0), (1, 1, 1), (17, 33, 257)):
        a, b = random_matrix((m, k), rng, dtype=bf16), random_matrix((n, k), rng, dtype=bf16).T
        product(a, b, split)
    a, b = random_matrix((40, 90), rng, dtype=bf16), random_matrix((44, 30), rng, dtype=bf16).T
    product(a[::2, ::3], b[:, ::-2], split)
    for quantize in (hg.quantize_mxfp8, hg.quantize_mxfp6, mxfp4, hg.quantize_fp8):
        for k in (32, 70):  # fewer blocks than ranks
            x, y = (quantize(random_matrix((n, k), rng, dtype=np.float32)) for n in (9, 7))
            product(x, y.T, split)
for axis in (0, 1, -1, None):
    for shape in ((5, 3, 2), (2, 0, 3), (0, 1, 1)):
        x = rng.standard_normal(shape).astype(np.float32)
        assert (hg.shard(x, comm, axis=axis).get() == x).all()
        assert (hg.shard(x.T, comm, axis=axis).T.get() == x).all()
done()
"""

SENT = """
class Counting(MPI.Intracomm):
    nbytes = 0

    def Ialltoallv(self, send, receive):
        numbers = sum(count for i, count in enumerate(send[1]) if i != rank) * send[3].Get_extent()[1]
        self.nbytes += numbers
        return super().Ialltoallv(send, receive)

comm = Counting(comm.Dup())
a, b = random_matrix((64, 96), rng, dtype=bf16), random_matrix((48, 96), rng, dtype=bf16).T
x, y = hg.shard(a, comm, axis=1), hg.shard(b, comm, axis=0)
z = hg.sharded_matmul(x, y, split="k")
assert comm.nbytes == hg.sharding.sent_bytes(64, 48, 4), comm.nbytes
assert_gemm_close(z.get(), a, b)
done()
"""

# If calls differ, all ranks raise an error, and continue.
DIFFER = """
import contextlib, time

@contextlib.contextmanager
def refused(kind, *words):
    began = time.monotonic()
    try:
        yield
    except kind as error:
        assert type(error) is kind, error
        assert all(word in str(error) for word in words), error
        assert time.monotonic() - began < 20
    else:
        raise AssertionError("accepted")

a, b = random_matrix((8, 16), rng, dtype=bf16), random_matrix((6, 16), rng, dtype=bf16).T
same = "all ranks must make the same call"
with refused(ValueError, "shard: all ranks", same, "(12, 16)" if rank == 2 else "(8, 16)"):
    hg.shard(np.ones((12, 16), bf16) if rank == 2 else a, comm, axis=1)
with refused(ValueError, "shard", same, "float16"):
    hg.shard(a.astype(np.float16) if rank == 0 else a, comm, axis=1)
with refused(ValueError, "shard", same, "axis -1", "axis -2"):
    hg.shard(a, comm, axis=rank // 3)
with refused(ValueError, "shard", same, "(0, 5, 8, 8, 8)"):
    hg.shard(a, comm, axis=0, sizes=(5, 3, 0, 0) if rank == 1 else None)
with refused(ValueError, "sharded_matmul", same, "split=m", "split=k"):
    hg.sharded_matmul(a, b, split="k" if rank == 1 else "m", devices=comm)
x, y = hg.shard(a, comm, axis=0), hg.shard(b, comm, axis=None)
with refused(ValueError, "sharded_matmul", same, "to float32", "to bfloat16"):
    hg.sharded_matmul(x, y, split="m", dtype=np.float32 if rank == 1 else bf16)
with refused(ValueError, "assemble", same, "float16 (any, 16)"):
    hg.sharding.assemble(a[rank:].astype(np.float16) if rank == 0 else a[rank:], axis=0, comm=comm)
with refused(TypeError if rank == 1 else RuntimeError, "parts must be a numpy.ndarray", "got list"):
    hg.sharding.assemble([a] if rank == 1 else a, axis=0, comm=comm)
with refused(ValueError, "ShardedArray.get", same):
    (x if rank else x.T).get()

# An invalid call on one rank is reported on the others, with the rank.
reported = "the call must be valid on all ranks; got on rank 3 TypeError" * (rank < 3)
with refused(TypeError if rank == 3 else RuntimeError, reported, "got list"):
    hg.shard([1] if rank == 3 else a, comm, axis=0)
with refused(ValueError if rank == 0 else RuntimeError, "bias.shape must be (N,)=(6,); got (7,)"):
    hg.sharded_matmul(x, y, split="m", bias=np.ones(6 + (rank == 0), np.float32))
with refused(TypeError if rank == 0 else RuntimeError, "timeout must be a number of seconds"):
    hg.shard(a, comm, axis=0, timeout="long" if rank == 0 else 10)
if rank == 1:
    hg.limit_memory(1, device=x.devices[0])
with refused(hg.HipError if rank == 1 else RuntimeError, "hipErrorOutOfMemory"):  # during the product
    hg.sharded_matmul(np.ones((900, 64), bf16), np.ones((64, 900), bf16), split="k", devices=comm)
if rank == 1:
    hg.limit_memory(device=x.devices[0])
with refused(ValueError, "timeout must be above 0 s; got 0"):
    hg.shard(a, comm, axis=0, timeout=0)

with refused(ValueError, "an intracommunicator; got MPI.COMM_NULL"):
    hg.shard(a, MPI.COMM_NULL, axis=0)
half = comm.Split(rank // 2, rank)
between = half.Create_intercomm(0, comm, 2 - rank // 2 * 2)
with refused(ValueError, "an intracommunicator; got an intercommunicator"):
    hg.shard(a, between, axis=0)
with refused(TypeError, "or an mpi4py communicator"):
    hg.shard(a, MPI, axis=0)
with refused(ValueError, "devices must be those of the sharded operand"):
    hg.sharded_matmul(x, y, split="m", devices=half)
with refused(ValueError, "or the same communicator"):
    hg.sharded_matmul(x, hg.shard(b, half, axis=None), split="m")

# A new communicator that reuses the handle of a freed one is not mistaken for it.
if rank < 2:
    pair = comm.Create_group(comm.group.Incl([0, 1]))
    hg.shard(a, pair, axis=0)
    pair.Free()
every = comm.Dup()
assert (hg.shard(a, every, axis=0).get() == a).all()
if rank == 2:
    time.sleep(1.5)  # a slow rank is not missing
assert (x.get() == a).all()
assert_gemm_close(hg.sharded_matmul(x, y, split="m").get(), a, b)
done()
"""


def run(code: str, *, timeout: float = 120, ranks: int = 4, **environment: str) -> Any:
    sibling = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(sibling) if sibling.exists() else shutil.which("mpiexec")
    assert mpiexec, "no mpiexec: pip install mpich, or apt-get install mpich"
    merged = {**os.environ, "HIPGEMM_EMULATOR_DEVICES": "2", **environment}
    command = [mpiexec, "-n", str(ranks), sys.executable, "-c", PROGRAM + code]
    return subprocess.run(command, capture_output=True, text=True, env=merged, timeout=timeout)


def require_done(done: Any, ranks: int = 4) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == ranks, done.stdout + done.stderr


# MPI can read the emulator's device memory as host memory; a GPU's only if built for it.
DIRECT = pytest.param("1", marks=pytest.mark.emulator("device memory that the host can read"))


@pytest.mark.parametrize("direct", ["0", DIRECT])
def test_products(direct: str) -> None:
    require_done(run(PRODUCTS, HIPGEMM_MPI_GPU=direct))


@pytest.mark.parametrize("ranks", [1, 4])
def test_edges(ranks: int) -> None:
    require_done(run(EDGES, ranks=ranks), ranks)


def test_sends_what_the_documents_say() -> None:
    require_done(run(SENT))


def test_ranks_that_differ_are_reported() -> None:
    require_done(run(DIFFER))


def test_setting_is_on_or_off() -> None:
    code = """
try:
    hg.sharded_matmul(np.ones((4, 4), bf16), np.ones((4, 4), bf16), split="k", devices=comm)
except ValueError as error:
    assert str(error) == "sharded_matmul: HIPGEMM_MPI_GPU must be 0 or 1; got 'maybe'", error
    done()
"""
    require_done(run(code, ranks=2, HIPGEMM_MPI_GPU="maybe"), 2)


# How the last rank fails, and what the others then wait in.
LOST = {
    "in a product": (
        """
x, y = hg.shard(a, comm, axis=1, timeout=3), hg.shard(a, comm, axis=0, timeout=3)
hg.sharded_matmul(x, y, split="k").get()
""",
        'hg.sharded_matmul(x, y, split="k")',
        "sharded_matmul",
    ),
    "before all": ("", "hg.shard(a, comm, axis=1, timeout=3)", "shard"),
    "with an operand to shard": (  # which takes its timeout from the other
        "x = hg.shard(a, comm, axis=1, timeout=3); hg.shard(a, comm, axis=0, timeout=3)",
        'hg.sharded_matmul(x, a, split="k")',
        "sharded_matmul",
    ),
    "by timeout=": ("", 'hg.sharded_matmul(a, a, split="n", devices=comm, timeout=3)', "sharded_matmul"),
    "by an error of its own": (
        "x = hg.shard(a, comm, axis=1, timeout=3)\nif rank == last: raise SystemError",
        "x.get()",
        "ShardedArray.get",
    ),
    "during an exchange": (
        """
import os, signal, threading
x = hg.shard(a, comm, axis=1, timeout=3)
if rank == last:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
    x.get()
time.sleep(1)
""",
        "x.get()",
        "ShardedArray.get",
    ),
}


@pytest.mark.parametrize("when", LOST)
def test_a_lost_rank_is_an_error_in_time(when: str) -> None:
    """Of four ranks, or of two, which take half the time."""
    prepare, call, function = LOST[when]
    ranks = 4 if when == "in a product" else 2
    code = f"""
import os, time
a = np.ones((8, 8), bf16)
last = {ranks - 1}
{prepare}
if rank == last:
    time.sleep(100)  # never returns in time
began = time.monotonic()
try:
    {call}
except TimeoutError as error:
    in_time = 2 < time.monotonic() - began < 20
    say(f"error {{rank}} {{in_time}} {{error}}")
    try:
        hg.shard(a, comm, axis=0)
    except TimeoutError as error:
        assert "the communicator must be usable; got one on which an earlier collective did" in str(error)
        say("again")
    raise
"""
    began = time.monotonic()
    done = run(code, timeout=90, ranks=ranks)
    assert time.monotonic() - began < 60, "the job must end, not wait for the lost rank"
    assert done.returncode != 0
    reported = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert reported, done.stdout + done.stderr  # the first timeout ends the job, maybe before others report
    assert "again" in done.stdout, done.stdout + done.stderr
    want = (
        f"True {function}: all {ranks} ranks must take part within 3 s; got no completion of the collective; "
        f"a rank is missing"
    )
    assert all(line.split(" ", 2)[2] == want for line in reported), reported


def test_interrupted_in_an_exchange() -> None:
    """Memory that MPI may still write to is kept, and the communicator cannot be used again."""
    code = """
import os, signal, threading, time
from hipgemm.distributed import mpi as _mpi
x = hg.shard(np.ones((8, 8), bf16), comm, axis=0, timeout=30)
if rank == 1:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        x.get()
    except KeyboardInterrupt:
        assert len(_mpi._abandoned) == 1
        try:
            x.get()
        except TimeoutError:
            say(f"done {rank}")
else:
    time.sleep(3)
"""
    done = run(code, timeout=60)
    assert "done 1" in done.stdout, done.stdout + done.stderr


def test_a_killed_rank_ends_the_job() -> None:
    code = """
import os
x = hg.shard(np.ones((8, 8), bf16), comm, axis=0, timeout=5)
if rank == 2:
    os._exit(9)
x.get()
done()
"""
    began = time.monotonic()
    done = run(code, timeout=90)
    assert time.monotonic() - began < 60
    assert done.returncode != 0
    assert "done" not in done.stdout
