"""Collectives of an mpi4py communicator, none of which waits longer than it is told to."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _hip
from .array import DeviceArray, upload
from .errors import sentence

TIMEOUT = 300.0  # seconds
_NAME_BYTES = 256
_local_devices: dict[int, int] = {}  # by communicator
_abandoned: list[Any] = []  # requests that never ended, and what they would write to


def is_communicator(x: object) -> bool:
    """Whether `x` is an mpi4py communicator (or speaks like one)."""
    return all(hasattr(x, name) for name in ("Get_rank", "Get_size", "Ialltoallv", "Iallgatherv"))


def device(comm: Any, timeout: float) -> int:
    """The device of this rank: ranks of one host take turns through its devices."""
    key = int(comm.py2f())
    if key not in _local_devices:
        own = np.zeros(_NAME_BYTES, np.uint8)
        name = _mpi(comm).Get_processor_name().encode()[:_NAME_BYTES]
        own[: len(name)] = np.frombuffer(name, np.uint8)
        names = np.zeros((comm.Get_size(), _NAME_BYTES), np.uint8)
        _wait(comm, comm.Iallgather(own, names), timeout, (own, names))
        before = (names[: comm.Get_rank()] == own).all(axis=1).sum()
        _local_devices[key] = int(before) % _hip.runtime().devices
    return _local_devices[key]


def all_gather(
    comm: Any, part: npt.NDArray[Any], axis: int, offsets: Sequence[int], timeout: float
) -> list[npt.NDArray[Any]]:
    """The parts of all ranks, in order."""
    moved = np.ascontiguousarray(np.moveaxis(part, axis, 0))
    rest, total = moved.shape[1:], offsets[-1]
    unit = int(np.prod(rest, dtype=np.int64)) * part.itemsize
    whole = np.empty((total, *rest), part.dtype)
    counts = np.diff(offsets).tolist()
    if unit and total:
        row = _mpi(comm).BYTE.Create_contiguous(unit).Commit()
        try:
            send = [moved.view(np.uint8).reshape(-1), counts[comm.Get_rank()], row]
            receive = [whole.view(np.uint8).reshape(-1), counts, list(offsets[:-1]), row]
            _wait(comm, comm.Iallgatherv(send, receive), timeout, (moved, whole))
        finally:
            row.Free()
    parts = np.split(whole, list(offsets[1:-1]))
    return [np.moveaxis(x, 0, axis) for x in parts]


def exchange_rows(
    comm: Any, sent: DeviceArray, planes: DeviceArray, rows: Sequence[int], unit: int, timeout: float
) -> None:
    """Send each rank its rows of `sent`, `unit` floats each; receive one plane of this rank's rows from each.

    Through the host, unless HIPGEMM_MPI_GPU=1 says that the MPI library reads device memory itself.
    """
    counts = np.diff(rows).tolist()
    mine, ranks = counts[comm.Get_rank()], comm.Get_size()
    if unit == 0 or rows[-1] == 0:
        return
    direct = os.environ.get("HIPGEMM_MPI_GPU", "0") not in ("", "0")
    row = _mpi(comm).FLOAT.Create_contiguous(unit).Commit()
    try:
        if direct:
            _hip.synchronize(0)
            source, target = _memory(comm, sent), _memory(comm, planes)
        else:
            source = sent.get()
            target = np.empty((ranks, mine, unit), np.float32)
        send = [source, counts, list(rows[:-1]), row]
        receive = [target, [mine] * ranks, [mine * i for i in range(ranks)], row]
        _wait(comm, comm.Ialltoallv(send, receive), timeout, (source, target, sent, planes))
    finally:
        row.Free()
    if not direct:
        upload(target.reshape(-1), planes.ptr, 0)


def _memory(comm: Any, x: DeviceArray) -> Any:
    """Device memory as mpi4py takes it: an address and a length."""
    return _mpi(comm).buffer.fromaddress(x.ptr, max(x.nbytes, 1))


def _mpi(comm: Any) -> Any:
    """The module that the communicator comes from."""
    import importlib

    return importlib.import_module(type(comm).__module__)


def _wait(comm: Any, request: Any, timeout: float, buffers: Any) -> None:
    """Wait for a collective, but not for ever: then the job is beyond saving, and ends with this process."""
    deadline = time.monotonic() + timeout
    pause = 0.0
    while not request.Test():
        if time.monotonic() > deadline:
            if not _abandoned:
                atexit.register(comm.Abort, 1)  # else MPI_Finalize would wait for the lost rank
            _abandoned.append((request, buffers))
            required = f"all {comm.Get_size()} ranks must take part within {timeout:g} s"
            raise TimeoutError(f"hipgemm: {sentence(required, 'no end of the exchange; a rank is lost')}")
        time.sleep(pause)
        pause = min(pause * 2 or 1e-5, 1e-3)
