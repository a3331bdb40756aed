"""Products over the ranks of MPI: four processes, an emulated device each."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys
import ml_dtypes, numpy as np
from mpi4py import MPI
import hipgemm as hg
from hipgemm.testing import assert_gemm_close, exact_grid, random_matrix

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
rng = np.random.default_rng(1)  # the same on every rank
bf16 = ml_dtypes.bfloat16

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

batch = np.stack([a, a[::-1], a, a, a])
out = hg.sharded_matmul(batch, b, split="batch", devices=comm)
assert_gemm_close(out[1], a[::-1], b)

two = comm.Split(rank % 2, rank)
assert_gemm_close(hg.sharded_matmul(a, b, split="k", devices=two), a, b)
done()
"""


def run(code: str, *, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert mpiexec, "no mpiexec: pip install mpich, or apt-get install mpich"
    merged = {**os.environ, "HIPGEMM_RUNTIME": "emulator", "HIPGEMM_EMULATOR_DEVICES": "2", **environment}
    command = [mpiexec, "-n", "4", sys.executable, "-c", PROGRAM + code]
    return subprocess.run(command, capture_output=True, text=True, env=merged, timeout=timeout)


@pytest.mark.parametrize("direct", ["0", "1"])
def test_products(direct: str) -> None:
    done = run(PRODUCTS, HIPGEMM_MPI_GPU=direct)  # the emulator's device memory is memory that MPI can read
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")[:-1]) == [f"done {rank}" for rank in range(4)]


def test_a_lost_rank_is_an_error_in_time() -> None:
    code = """
import time
a = np.ones((8, 8), bf16)
x, y = hg.shard(a, comm, axis=1, timeout=3), hg.shard(a, comm, axis=0, timeout=3)
hg.sharded_matmul(x, y, split="k").get()
if rank == 3:
    time.sleep(100)  # as good as gone
began = time.monotonic()
try:
    hg.sharded_matmul(x, y, split="k")
except TimeoutError as error:
    print("error", rank, 2 < time.monotonic() - began < 20, error, flush=True)
    raise
"""
    began = time.monotonic()
    done = run(code, timeout=90)
    assert time.monotonic() - began < 60, "the job must end, not wait for the lost rank"
    assert done.returncode != 0
    told = [line for line in done.stdout.splitlines() if line.startswith("error")]
    assert told, done.stdout + done.stderr  # the first to give up ends the job; others may not get to tell
    want = "True hipgemm: all 4 ranks must take part within 3 s; got no end of the exchange; a rank is lost"
    assert all(line.split(" ", 2)[2] == want for line in told)


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
