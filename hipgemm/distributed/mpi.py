"""Collectives on an mpi4py communicator: ranks first agree on the call; every wait has a timeout."""

from __future__ import annotations

import atexit
import hashlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray
from ..array.transfer import upload
from ..config import config
from ..errors import fault
from ..formats.checks import Checks
from ..runtime import hip as _hip

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
TIMEOUT = 300.0  # seconds
_SPIN = 2e-4  # seconds to wait without sleeping
_NAME_BYTES = 256
_TEXT_BYTES = 1024  # of a rank's description of its call
_DIGEST_BYTES = 16


@dataclass
class _State:
    """The attribute that is attached to a communicator."""

    local_rank: int = 0  # among the ranks of its host
    lost: bool = False  # a collective never completed


_key: int | None = None  # of the state among a communicator's attributes
_abandoned: list[Any] = []  # requests that never completed, and their buffers


def is_communicator(x: object) -> bool:
    """Whether `x` is an mpi4py communicator of any kind."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(x, mpi.Comm)


def device(comm: Any) -> int:
    """The device of this rank: local ranks are assigned to the devices of a host round-robin."""
    state = comm.Get_attr(_key)
    return int(state.local_rank % _hip.runtime().devices)


class Ranks:
    """The ranks of a communicator during a call of a public function, with a timeout."""

    def __init__(self, function: str, comm: Any, timeout: Any) -> None:
        checks = Checks(function)
        wait = checks.seconds(timeout)
        self.function, self.comm = function, comm
        self.timeout = TIMEOUT if checks.found else wait  # `agree` reports the fault on all ranks

    def agree(self, start: Callable[[], tuple[str, T]]) -> T:
        """Run the local part of a call on every rank, and check that all ranks make the same call.

        `start` raises an exception, or returns a description of the call and a result. A fault on one rank is
        an error on all ranks. Different descriptions are an error too, since message sizes would not match.
        """
        function, comm = self.function, self.comm
        self._join()
        failed: Exception | None = None
        result: Any = None
        try:
            text, result = start()
        except Exception as error:
            failed, text = error, f"{type(error).__name__}: {error}"
        text = f"{function} of {text}" if failed is None else text
        digest = hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).digest()
        try:
            states = self.all_gather_text(bytes([failed is not None]) + digest, 1 + _DIGEST_BYTES)
            if not any(one[0] for one in states) and len(set(states)) == 1:
                return result  # type: ignore[no-any-return]
            descriptions = self.all_gather_text(text.encode(), _TEXT_BYTES)
        except TimeoutError as late:
            raise failed or late from late
        if failed is not None:
            raise failed
        texts = [f"on rank {i} {one.decode(errors='replace')}" for i, one in enumerate(descriptions)]
        rank = comm.Get_rank()
        if faulty := [i for i, one in enumerate(states) if one[0]]:
            raise fault(RuntimeError, function, "the call must be valid on all ranks", texts[faulty[0]])
        other = next(i for i, one in enumerate(states) if one != states[rank])
        got = f"{texts[rank]}; {texts[other]}"
        raise fault(ValueError, function, "all ranks must make the same call", got)

    def all_gather(self, part: npt.NDArray[Any], axis: int, offsets: Sequence[int]) -> list[npt.NDArray[Any]]:
        """The parts of all ranks, in order."""
        moved = np.ascontiguousarray(np.moveaxis(part, axis, 0))
        rest, total = moved.shape[1:], offsets[-1]
        unit = int(np.prod(rest, dtype=np.int64)) * part.itemsize
        whole = np.empty((total, *rest), part.dtype)
        counts = np.diff(offsets).tolist()
        if unit and total:
            with _rows_of(_mpi().BYTE, unit) as row:
                send = [moved.view(np.uint8).reshape(-1), counts[self.comm.Get_rank()], row]
                receive = [whole.view(np.uint8).reshape(-1), counts, list(offsets[:-1]), row]
                self._run(lambda: self.comm.Iallgatherv(send, receive), (moved, whole))
        parts = np.split(whole, list(offsets[1:-1]))
        return [np.moveaxis(x, 0, axis) for x in parts]

    def exchange_rows(self, sent: DeviceArray, planes: DeviceArray, rows: Sequence[int], unit: int) -> None:
        """Send each rank its rows of `sent`, `unit` floats each; receive its own rows from each rank.

        Staged on the host, unless HIPGEMM_MPI_GPU=1 declares a GPU-aware MPI library.
        """
        counts = np.diff(rows).tolist()
        comm = self.comm
        mine, ranks = counts[comm.Get_rank()], comm.Get_size()
        if unit == 0 or rows[-1] == 0:
            return
        direct = config.mpi_gpu
        source: Any
        target: Any
        if direct:
            _hip.synchronize(0)
            source, target = _memory(sent), _memory(planes)
        else:
            source = sent.get()
            target = np.empty((ranks, mine, unit), np.float32)
        with _rows_of(_mpi().FLOAT, unit) as row:
            send = [source, counts, list(rows[:-1]), row]
            receive = [target, [mine] * ranks, [mine * i for i in range(ranks)], row]
            buffers = (source, target, sent, planes)
            self._run(lambda: comm.Ialltoallv(send, receive), buffers)
        if not direct:
            upload(target.reshape(-1), planes.ptr, 0)

    def _join(self) -> None:
        """Attach state to a communicator at its first use; later, check that it is usable."""
        global _key
        mpi, comm, function = _mpi(), self.comm, self.function
        if comm == mpi.COMM_NULL or comm.Is_inter():
            got = "MPI.COMM_NULL" if comm == mpi.COMM_NULL else "an intercommunicator"
            raise fault(ValueError, function, "the communicator must be an intracommunicator", got)
        if _key is None:
            _key = mpi.Comm.Create_keyval()
        state = comm.Get_attr(_key)
        if state is None:
            comm.Set_attr(_key, state := _State())
            name = mpi.Get_processor_name().encode()
            names = self.all_gather_text(name, _NAME_BYTES)
            state.local_rank = names[: comm.Get_rank()].count(names[comm.Get_rank()])
        elif state.lost:
            required = "the communicator must be usable"
            got = "one on which an earlier collective did not complete"
            raise fault(TimeoutError, function, required, got)

    def all_gather_text(self, text: bytes, size: int) -> list[bytes]:
        """Return the texts of all ranks, at most `size` bytes each."""
        own = np.frombuffer(text[:size].ljust(size, b"\0"), np.uint8)
        every = np.zeros((self.comm.Get_size(), size), np.uint8)
        self._run(lambda: self.comm.Iallgather(own, every), (own, every))
        return [row.tobytes().rstrip(b"\0") for row in every]

    def _run(self, start: Callable[[], Any], buffers: Any) -> None:
        """Start a collective and wait for it, with a timeout.

        A collective that never completes cannot be cancelled, so the job is aborted at the end of this
        process.
        """
        began = time.monotonic()
        pause = 0.0
        request = None
        required = f"all {self.comm.Get_size()} ranks must take part"
        try:
            request = start()
            while not request.Test():
                waited = time.monotonic() - began
                if waited > self.timeout:
                    required += f" within {self.timeout:g} s"
                    got = "no completion of the collective; a rank is missing"
                    raise fault(TimeoutError, self.function, required, got)
                if waited < _SPIN:
                    os.sched_yield()
                else:
                    time.sleep(pause := min(pause * 2 or 1e-5, 1e-3))
        except BaseException as error:  # KeyboardInterrupt too: MPI may still write to the buffers
            if not _abandoned:
                atexit.register(_mpi().COMM_WORLD.Abort, 1)  # MPI_Finalize would wait for the lost rank
            _abandoned.append((request, buffers))
            self.comm.Get_attr(_key).lost = True
            if isinstance(error, _mpi().Exception):
                raise fault(RuntimeError, self.function, required, str(error).splitlines()[0]) from error
            raise


@contextmanager
def _rows_of(number: Any, unit: int) -> Iterator[Any]:
    """The MPI datatype of a row, so that counts are numbers of rows."""
    row = number.Create_contiguous(unit).Commit()
    try:
        yield row
    finally:
        row.Free()


def _memory(x: DeviceArray) -> Any:
    """Device memory as an mpi4py buffer."""
    return _mpi().buffer.fromaddress(x.ptr, max(x.nbytes, 1))


def _mpi() -> Any:
    """The module mpi4py.MPI, which is loaded if there is a communicator."""
    return sys.modules["mpi4py.MPI"]
