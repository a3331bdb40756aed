"""Sharded arrays: one part on each device or MPI rank, and how an array is split into parts."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, parse_dtype
from ..formats.arrays import AnyArray, on_host
from ..formats.checks import Checks, is_int, require_axes
from ..formats.elements import F32, QUANTIZED
from ..formats.scaled import ScaledArray
from ..formats.strides import swap_last_axes
from ..runtime import hip as _hip
from . import mpi as _mpi

Part = DeviceArray | ScaledArray
T = TypeVar("T")


@dataclass(frozen=True)
class PartScales:
    """fp8 scales of parts that were quantized separately, copied to the host; one, or one for each row.

    Divided by powers of two that the parts share, they are 1 to 2 in one of the parts.
    """

    own: tuple[npt.NDArray[np.float32], ...]  # of this process's parts, divided by `powers`
    powers: npt.NDArray[np.float32]
    spread: int  # a scale is at least 2**-spread of the greatest one of its row

    @property
    def mT(self) -> PartScales:
        """Those of the transposed parts."""
        own = tuple(np.swapaxes(x, -1, -2) if x.ndim else x for x in self.own)
        return PartScales(
            own, np.swapaxes(self.powers, -1, -2) if self.powers.ndim else self.powers, self.spread
        )


class ShardedArray(AnyArray):
    """An array with one part on each device or MPI rank. `shard` and `sharded_matmul` make it.

    Attributes
    ----------
    parts : tuple of DeviceArray or ScaledArray
        The parts of this process: one for each of `devices`, in order along `axis`. With a communicator one
        part.
    axis : int or None
        The axis along which it is split, counted from the end. None: each part is the whole array.
    devices : tuple of int
        The device of each part.
    comm : mpi4py communicator or None
        The communicator whose ranks hold the parts.
    offsets : tuple of int
        The start of each part along `axis`, and the end of the last one; with a communicator of all ranks.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x = hg.shard(np.arange(6, dtype=np.float32).reshape(3, 2), [0, 0], axis=0)
    >>> x.offsets, x.parts[1].shape
    ((0, 2, 3), (1, 2))
    >>> x.T.get()
    array([[0., 2., 4.],
           [1., 3., 5.]], dtype=float32)
    """

    __slots__ = (
        "_key",
        "axis",
        "comm",
        "devices",
        "offsets",
        "part_scales",
        "parts",
        "shape",
        "shares_scales",
        "timeout",
    )
    _plural = "sharded arrays"

    def __init__(
        self,
        parts: Sequence[Part],
        shape: tuple[int, ...],
        axis: int | None,
        offsets: Sequence[int] = (),
        comm: Any = None,
        timeout: float = _mpi.TIMEOUT,
        devices: tuple[int, ...] | None = None,
        shares_scales: bool = False,
    ):
        self.parts, self.shape, self.axis = tuple(parts), shape, axis
        self.devices = tuple(map(device_of, parts)) if devices is None else devices
        self.offsets, self.comm, self.timeout = tuple(offsets), comm, timeout
        # Whether parts along K have the same fp8 scales: not if each part was quantized by itself.
        self.shares_scales = shares_scales
        self.part_scales: PartScales | None = None  # if not, but known
        self._key: tuple[Any, ...] | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The cache key: everything that a plan depends on, except addresses."""
        if self._key is None:
            self._key = tuple([x._key for x in self.parts]), self.shape, self.axis, self.offsets
        return self._key

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.parts[0].dtype

    @property
    def freed(self) -> bool:
        """Whether the memory of a part was freed."""
        return any(x.freed for x in self.parts)

    @property
    def T(self) -> ShardedArray:
        """The array with its axes reversed; no copy."""
        axis = None if self.axis is None else -1 - self.axis - self.ndim
        return self._transposed((x.T for x in self.parts), self.shape[::-1], axis)

    @property
    def mT(self) -> ShardedArray:
        """The array with its last two axes swapped; no copy."""
        require_axes("ShardedArray.mT", self.ndim)
        axis = {-1: -2, -2: -1}.get(self.axis or 0, self.axis)
        return self._transposed((x.mT for x in self.parts), swap_last_axes(self.shape), axis)

    def _transposed(self, parts: Iterable[Part], shape: tuple[int, ...], axis: int | None) -> ShardedArray:
        made = ShardedArray(tuple(parts), shape, axis, self.offsets, self.comm, self.timeout)
        made.shares_scales = self.shares_scales
        made.part_scales = None if self.part_scales is None else self.part_scales.mT
        return made

    def get(self) -> Any:
        """Copy to the host and concatenate; with a communicator every rank gets the whole array.

        Returns
        -------
        numpy.ndarray or ScaledArray
            The latter for quantized parts.

        Raises
        ------
        ValueError, TimeoutError
            For quantized parts with different scales of the same row; or if other ranks make another call, or
            none before the timeout.
        """
        function = "ShardedArray.get"
        checks = Checks(function)
        checks.in_memory("parts", self)
        axis, offsets, comm = self.axis, self.offsets, self.comm
        if axis is None:
            checks.raise_all()
            return self.parts[0].get()

        def copy() -> tuple[str, list[Any]]:
            checks.raise_all()
            host: list[Any] = on_each(self.devices, lambda i: self.parts[i].get())
            scales = f", scales {host[0].scale.ndim}" if isinstance(host[0], ScaledArray) else ""
            return f"{named(self)}, axis {axis}, offsets {offsets}{scales}", host

        ranks = None if comm is None else _mpi.Ranks(function, comm, self.timeout)
        host = copy()[1] if ranks is None else ranks.agree(copy)

        def joined(own: list[npt.NDArray[Any]], along: int, at: Sequence[int]) -> npt.NDArray[Any]:
            parts = own if ranks is None else ranks.all_gather(own[0], along, at)
            return np.concatenate(parts, axis=along)

        if not isinstance(self.parts[0], ScaledArray):
            return joined(host, axis, offsets)
        one: ScaledArray = host[0]
        data = joined([q.data for q in host], axis, offsets)
        step = block_step(one, axis)
        if one.scale.ndim and (one.in_blocks or axis != one.axis):
            scales = [q.scale if one.in_blocks else _for_each(q, axis) for q in host]
            scale = joined(scales, axis, [-(-at // step) for at in offsets])
        else:
            every = joined([q.scale[None] for q in host], 0, range(len(offsets)))
            filled = [i for i, (low, high) in enumerate(pairwise(offsets)) if low < high] or [0]
            scale = every[filled[0]]
            if any(every[i].tobytes() != scale.tobytes() for i in filled):
                checks.add(
                    ValueError, "scale", "parts must have the same scales", repr(self), "get each part"
                )
        checks.raise_all()
        return one._with(data, scale, shape=self.shape, amax=None)

    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]:
        raise TypeError("ShardedArray: implicit copies to the host are not supported; use .get()")

    def __repr__(self) -> str:
        where = f"devices={list(self.devices)}"
        if self.comm is not None:
            where = f"rank {self.comm.Get_rank()} of {self.comm.Get_size()}, device={self.devices[0]}"
        return f"ShardedArray(shape={self.shape}, dtype={self.dtype}, axis={self.axis}, {where})"


def shard(
    x: Any,
    devices: Any = None,
    *,
    axis: int | None,
    sizes: Sequence[int] | None = None,
    timeout: float = _mpi.TIMEOUT,
) -> ShardedArray:
    """Split an array into parts, and copy each part to a device.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        The whole array. With a communicator each rank passes the whole array and gets its part.
    devices : sequence of int, int, or mpi4py communicator, optional
        The devices. A number n stands for the first n devices. Default: all. A device may be listed more
        than once. With a communicator each rank uses one device; ranks are assigned to the devices of
        their host round-robin.
    axis : int or None
        The axis to split. None: every device gets the whole array.
    sizes : sequence of int, optional
        The length of each part. Default: as equal as possible. Parts of MX operands begin at multiples of the
        block size.
    timeout : float
        Seconds to wait for other ranks, here, in `get` and in products.

    Returns
    -------
    ShardedArray

    Raises
    ------
    TypeError
        If `x` has another type.
    ValueError
        For devices that do not exist, an axis that `x` does not have, or sizes that do not add up to its
        length; with a communicator, if ranks make different calls.
    RuntimeError
        If the call is invalid on another rank.
    TimeoutError
        If other ranks do not make the call before the timeout.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.shard(np.zeros((5, 4), np.float32), [0, 0], axis=0).offsets
    (0, 3, 5)
    """
    comm = devices if _mpi.is_communicator(devices) else None

    def start() -> tuple[str, ShardedArray]:
        checks = Checks("shard")
        known = check_part(checks, "x", x)
        checks.seconds(timeout)
        numbers = parse_devices(checks, devices)
        count = len(numbers) if comm is None else comm.Get_size()
        along, offsets = _where(checks, x if known else None, axis, sizes, count)
        checks.raise_all()
        made = split_array(x, along, offsets, numbers, comm, timeout)
        return f"{named(x)}, axis {along}, offsets {offsets}", made

    return start()[1] if comm is None else _mpi.Ranks("shard", comm, timeout).agree(start)


def assemble(
    parts: Any, *, axis: int | None, comm: Any = None, timeout: float = _mpi.TIMEOUT
) -> ShardedArray:
    """Make a `ShardedArray` from parts that are already on their devices, without copies between devices.

    Parameters
    ----------
    parts : sequence of DeviceArray or ScaledArray on devices, or one array
        One for each device, in order along `axis`. With a communicator only the part of this rank, which may
        be on the host. Parts may only differ in their length along `axis`. Quantized parts may have
        different scales.
    axis : int or None
        The axis along which they are split. None: each part is the whole array.
    comm : mpi4py communicator, optional
        The communicator whose ranks hold one part each.
    timeout : float
        As for `shard`.

    Returns
    -------
    ShardedArray

    Raises
    ------
    TypeError, ValueError, RuntimeError, TimeoutError
        As `shard`, and for parts that do not match.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x = hg.sharding.assemble([hg.zeros((2, 4), np.float32), hg.zeros((3, 4), np.float32)], axis=0)
    >>> x.shape, x.offsets
    ((5, 4), (0, 2, 5))
    """
    function = "assemble"
    ranks = _mpi.Ranks(function, comm, timeout) if _mpi.is_communicator(comm) else None
    listed = [parts] if ranks is not None else list(parts) if isinstance(parts, (list, tuple)) else []

    def check() -> tuple[str, int | None]:
        checks = Checks(function)
        checks.seconds(timeout)
        if ranks is None and comm is not None:
            checks.wrong_type("comm", "an mpi4py communicator or None", comm)
        elif not listed:
            checks.wrong_type("parts", "a list or tuple of one or more arrays", parts)
        names = ["parts"] if ranks else [f"parts[{i}]" for i in range(len(listed))]
        known = [x for name, x in zip(names, listed, strict=True) if check_part(checks, name, x)]
        if ranks is None and any(array_device(x) is None for x in known):
            checks.add(TypeError, "residency", "each part must be on a device", "one on the host")
        along = None if axis is None else checks.axis(axis, len(known[0].shape) if known else None)
        kinds = dict.fromkeys(_kind(x, along) for x in known)
        if len(kinds) > 1:
            required = "all parts must be equal in format and shape, except their length along axis"
            checks.add(ValueError, "parts", required, " and ".join(kinds))
        checks.raise_all()
        return f"{next(iter(kinds))}, axis {along}", along

    along = check()[1] if ranks is None else ranks.agree(check)
    shape = list(listed[0].shape)
    offsets: tuple[int, ...] = ()
    if along is not None:
        lengths = [int(x.shape[along]) for x in listed]
        if ranks is not None:
            lengths = [int(text) for text in ranks.all_gather_text(str(lengths[0]).encode(), 20)]
        shape[along] = sum(lengths)
        checks = Checks(function)
        offsets = given_offsets(checks, lengths, len(lengths), listed[0], along, shape[along])
        checks.raise_all()
    if comm is not None and array_device(listed[0]) is None:
        listed = [asarray(listed[0], device=_mpi.device(comm))]
    made = ShardedArray(listed, tuple(shape), along, offsets, comm, timeout)
    made.part_scales = _part_scales(listed, along, ranks)
    return made


def _part_scales(parts: Sequence[Any], axis: int | None, ranks: _mpi.Ranks | None) -> PartScales | None:
    """The scales of parts of K, or None if there are none."""
    first = parts[0]
    if not isinstance(first, ScaledArray) or first.in_blocks or axis not in (-1, -2):
        return None
    shape = [1 if n == axis + 2 else length for n, length in enumerate(first.shape[-2:])]
    own: list[npt.NDArray[Any]] = []
    for part in parts:
        scale = part.scale if isinstance(part.scale, np.ndarray) else part.scale.get()
        if part.ndim != 2 or (scale.ndim and scale.shape[axis] != 1):
            own = []
            break
        own.append(np.broadcast_to(scale, shape))
    if ranks is not None:
        sizes = ranks.all_gather_text(str(len(own)).encode(), 20)
        own = own if all(int(text) for text in sizes) else []
    if not own:
        return None
    every = own if ranks is None else ranks.all_gather(np.stack(own), 0, range(len(sizes) + 1))
    return _normalised(own, np.stack([np.reshape(x, shape) for x in every]))


@on_host
def _normalised(own: Sequence[npt.NDArray[np.float32]], every: npt.NDArray[np.float32]) -> PartScales:
    """The scales of this process's parts, given those of all parts."""
    counts = np.isfinite(every) & (every != 0)
    exponents = np.frexp(every)[1]
    top = np.max(exponents, axis=0, where=counts, initial=-148)
    spread = np.max(top - exponents, where=counts, initial=0)
    powers = np.ldexp(np.float32(1), top - 1)
    if (powers == powers.flat[:1]).all() and all((x == x.flat[:1]).all() for x in own):
        own, powers = [x.reshape(-1)[0] for x in own], powers.reshape(-1)[0]
    return PartScales(tuple(np.asarray(x / powers, F32.dtype) for x in own), np.asarray(powers), int(spread))


def array_device(x: Any) -> int | None:
    """The device that holds an array; None for the host."""
    return None if isinstance(x, np.ndarray) else x.device


def _kind(x: Any, axis: int | None) -> str:
    """What all parts must have in common, as text."""
    shape = [str(n) for n in x.shape]
    if axis is not None and -axis <= len(shape):
        shape[axis] = "any"
    words = f"{x.format if isinstance(x, ScaledArray) else x.dtype} ({', '.join(shape)})"
    if isinstance(x, ScaledArray):
        words += f" blocked along {x.axis}" + (" with Hadamard transform" if x.hadamard else "")
        words += "" if x.signs is None else f" and signs {x.signs}"
    return words


def check_part(checks: Checks, name: str, x: Any) -> bool:
    """Check a part, or an array to split; return whether it is an array."""
    if isinstance(x, ScaledArray):
        checks.no_groups(name, x)
        return checks.in_memory(name, x)
    found = checks.array(name, x, "a numpy.ndarray, a DeviceArray or a ScaledArray")
    if isinstance(found, np.ndarray):
        checks.value_or(parse_dtype(found.dtype), found.dtype)
    return found is not None


def _where(checks: Checks, x: Any, axis: Any, sizes: Any, count: int) -> tuple[int | None, tuple[int, ...]]:
    """The axis counted from the end, and the offsets of parts; `x` is None if it is not an array."""
    if axis is None:
        if sizes is not None:
            checks.add(ValueError, "sizes", "sizes must be None for axis=None", sizes)
        return None, ()
    along = checks.axis(axis, None if x is None else len(x.shape))
    if along is None or count == 0:
        return None, ()
    if sizes is None:
        return along, even_offsets(x.shape[along], count, block_step(x, along))
    return along, given_offsets(checks, sizes, count, x, along, x.shape[along])


# ---- parts and devices ------------------------------------------------------------------------


def named(x: Any) -> str:
    """Type and shape of an array, as text."""
    return f"{x.format if isinstance(x, ScaledArray) else x.dtype} {x.shape}"


def split_array(
    x: Any,
    axis: int | None,
    offsets: Sequence[int],
    devices: Sequence[int],
    comm: Any,
    timeout: float,
) -> ShardedArray:
    """Split an array, and copy each part to its device; with a communicator only the part of this rank."""
    first = 0 if comm is None else comm.Get_rank()

    def part(i: int) -> Part:
        mine = x if axis is None else cut(x, axis, offsets[first + i], offsets[first + i + 1])
        found: Part = asarray(mine, device=devices[i])
        return found

    return ShardedArray(on_each(devices, part), x.shape, axis, offsets, comm, timeout, shares_scales=True)


def parse_devices(checks: Checks, devices: Any) -> tuple[int, ...]:
    """Parse a devices argument; for a communicator, the device of this rank."""
    if _mpi.is_communicator(devices):
        return (_mpi.device(devices),)
    count = _hip.runtime().devices
    if devices is None:
        return tuple(range(count))
    if is_int(devices):
        if not 1 <= devices <= count:
            checks.add(ValueError, "device", f"devices must be 1 to {count}", devices)
            return ()
        return tuple(range(int(devices)))
    numbers = checks.ints("devices", devices, "a sequence of ints, an int, or an mpi4py communicator")
    if numbers is not None and not (numbers and all(0 <= d < count for d in numbers)):
        required = f"devices must be one or more of 0 to {count - 1}"
        checks.add(ValueError, "device", required, list(numbers))
    return numbers or ()


def block_step(x: Any, axis: int) -> int:
    """The alignment of parts: the size of the blocks of scales along an axis counted from the end, else 1."""
    if not isinstance(x, ScaledArray):
        return 1
    if x.block is not None:
        return x.block[axis] if axis >= -2 else 1
    return QUANTIZED[x.format].block or 1 if x.axis == axis else 1


def even_offsets(length: int, count: int, step: int) -> tuple[int, ...]:
    """Split a length as evenly as whole steps allow, the longer parts first.

    >>> even_offsets(10, 4, 1), even_offsets(100, 3, 32)
    ((0, 3, 6, 8, 10), (0, 64, 96, 100))
    """
    steps = -(-length // step)
    share, extra = divmod(steps, count)
    found = [min((i * share + min(i, extra)) * step, length) for i in range(count + 1)]
    return tuple(found)


def given_offsets(checks: Checks, sizes: Any, count: int, x: Any, axis: int, total: int) -> tuple[int, ...]:
    """The offsets of parts with given sizes; `x` is one of them, or the whole array."""
    lengths = checks.ints("sizes", sizes)
    if lengths is None:
        return ()
    found = np.cumsum([0, *lengths]).tolist()
    if len(lengths) != count or min(lengths) < 0 or found[-1] != total:
        required = f"sizes must be {count} lengths that add up to {total}"
        checks.add(ValueError, "sizes", required, list(lengths))
    elif any(at % (step := block_step(x, axis)) and at != total for at in found):
        required = f"parts must begin at multiples of {step}, the block of {x.format}"
        checks.add(ValueError, "sizes", required, found)
    return tuple(found)


def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    """Slice along an axis that is counted from the end."""
    index = (slice(None),) * (len(x.shape) + axis) + (slice(start, stop),)
    return x[index]


def cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """A part of an array or ScaledArray, without a copy."""
    if not isinstance(x, ScaledArray):
        return sliced(x, axis, start, stop)
    form = QUANTIZED[x.format]
    shape = list(x.shape)
    shape[axis] = stop - start
    along = axis == x.axis
    bits = form.bits if along and x.data.dtype == np.uint8 else 8  # packed, or one element per byte
    data = sliced(x.data, axis, start * bits // 8, -(-stop * bits // 8))
    scale = x.scale
    step = block_step(x, axis)
    if step > 1:
        scale = sliced(scale, axis, start // step, -(-stop // step))
    elif (
        scale.shape and not along and scale.shape[axis] == x.shape[axis]
    ):  # otherwise all parts share the scale
        scale = sliced(scale, axis, start, stop)
    signs_start = x.signs_start + start if along and x.signs is not None else x.signs_start
    return x._with(data, scale, shape=tuple(shape), amax=None, signs_start=signs_start)


def _for_each(q: ScaledArray, axis: int) -> npt.NDArray[Any]:
    """The scales of a part on the host, one for each element along an axis."""
    shape = list(q.scale.shape)
    shape[axis] = q.shape[axis]
    return np.broadcast_to(q.scale, shape)


def device_of(x: Part) -> int:
    """The device of a part."""
    device = x.device
    assert device is not None
    return device


def on_each(devices: Sequence[int], f: Callable[[int], T]) -> list[T]:
    """Call f(0), f(1), .. in parallel, since each may wait for copies to or from its device."""
    return [f(0)] if len(devices) == 1 else _Parallel(len(devices), f).results()


class _Parallel(Generic[T]):
    """Threads that call f(0), f(1), ...

    An exception in the calling thread, such as Ctrl-C, stops their waits for devices, and is raised when they
    have ended: none of them touches an array after the call. `threading` and `concurrent.futures` are not
    used, since they take locks in Python code, which an exception can leave locked.
    """

    def __init__(self, count: int, f: Callable[[int], T]) -> None:
        self._count, self._f = count, f
        self._started = self._stopped = False  # all of them
        self._ended: list[tuple[int, Any, BaseException | None]] = []

    def results(self) -> list[T]:
        """Run, and return what was returned; raise what the first of them raised."""
        try:
            for i in range(self._count):
                _thread.start_new_thread(self._run, (i,))
            self._started = True
            self._wait()
        finally:
            self._stopped = True
            if self._started:
                self._wait()
            ended = sorted(self._ended, key=itemgetter(0))
            self._ended.clear()  # exceptions refer to frames, and these to this list
        failed = [error for _, _, error in ended if error is not None]
        results = [result for _, result, _ in ended]
        ended.clear()
        if failed:
            raise failed.pop(0)
        return results

    def _wait(self) -> None:
        pause = 1e-5
        while len(self._ended) < self._count:
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)

    def _run(self, i: int) -> None:
        while not self._started:
            if self._stopped:
                return
            time.sleep(1e-5)
        _hip.stop_waiting_if(lambda: self._stopped)
        try:
            self._ended.append((i, self._f(i), None))
        except BaseException as error:
            self._ended.append((i, None, error))
