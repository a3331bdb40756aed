"""Arrays in parts, one on each device or MPI rank: what they are, and how an array is cut into them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _hip, _mpi
from .array import DeviceArray, asarray
from .errors import sentence
from .formats import QUANTIZED
from .scaled import ScaledArray, array_hint, find_axis, is_array

Part = DeviceArray | ScaledArray
T = TypeVar("T")


class ShardedArray:
    """An array of which each device, or each MPI rank, holds a part. Made by `shard` and `sharded_matmul`.

    Attributes
    ----------
    parts : tuple of DeviceArray or ScaledArray
        What this process holds: one part for each of `devices`, in order along `axis`. With a
        communicator one part.
    axis : int or None
        Counted from the end: the axis along which it was cut. None: each part is the whole array.
    devices : tuple of int
        The device of each part.
    comm : mpi4py communicator or None
        Whose ranks hold the parts.
    offsets : tuple of int
        Where each part begins along `axis`, and the end of the last; with a communicator those of all ranks.

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

    __slots__ = ("axis", "comm", "devices", "offsets", "parts", "shape", "timeout")

    def __init__(
        self,
        parts: Sequence[Part],
        shape: tuple[int, ...],
        axis: int | None,
        offsets: Sequence[int] = (),
        comm: Any = None,
        timeout: float = _mpi.TIMEOUT,
    ):
        self.parts, self.shape, self.axis = tuple(parts), shape, axis
        self.devices = tuple(device_of(x) for x in parts)
        self.offsets, self.comm, self.timeout = tuple(offsets), comm, timeout

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return self.parts[0].dtype

    @property
    def T(self) -> ShardedArray:
        """The array with its axes reversed; no copy."""
        axis = None if self.axis is None else -1 - self.axis - self.ndim
        return self._turned((x.T for x in self.parts), self.shape[::-1], axis)

    @property
    def mT(self) -> ShardedArray:
        """The array with its last two axes exchanged; no copy."""
        if self.ndim < 2:
            raise ValueError(f"ShardedArray.mT: {sentence('ndim must be at least 2', self.ndim)}")
        axis = {-1: -2, -2: -1}.get(self.axis or 0, self.axis)
        shape = (*self.shape[:-2], self.shape[-1], self.shape[-2])
        return self._turned((x.mT for x in self.parts), shape, axis)

    def _turned(self, parts: Iterable[Part], shape: tuple[int, ...], axis: int | None) -> ShardedArray:
        return ShardedArray(tuple(parts), shape, axis, self.offsets, self.comm, self.timeout)

    def get(self) -> npt.NDArray[Any]:
        """Copy to the host and put together; with a communicator every rank gets all of it.

        Returns
        -------
        numpy.ndarray

        Raises
        ------
        TypeError
            For quantized parts: use `dequantize` on each.
        ValueError, TimeoutError
            When other ranks ask for something else, or do not take part in time.
        """
        function = "ShardedArray.get"
        if isinstance(self.parts[0], ScaledArray):
            raise TypeError(f"{function}: parts must be plain arrays; got quantized ones; get each part")
        if self.axis is None:
            return _plain(self.parts[0]).get()
        if self.comm is not None:
            text = f"{named(self)}, axis {self.axis}, offsets {self.offsets}"
            _mpi.agree(function, self.comm, self.timeout, lambda: (text, None))
        host = on_each(self.devices, lambda i: _plain(self.parts[i]).get())
        if self.comm is not None:
            host = _mpi.all_gather(function, self.comm, host[0], self.axis, self.offsets, self.timeout)
        return np.concatenate(host, axis=self.axis)

    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]:
        raise TypeError("ShardedArray: a copy to the host must be asked for; use .get()")

    def __repr__(self) -> str:
        where = f"devices={list(self.devices)}"
        if self.comm is not None:
            where = f"rank {self.comm.Get_rank()} of {self.comm.Get_size()}"
        return f"ShardedArray(shape={self.shape}, dtype={self.dtype}, axis={self.axis}, {where})"


def shard(
    x: Any,
    devices: Any = None,
    *,
    axis: int | None,
    sizes: Sequence[int] | None = None,
    timeout: float = _mpi.TIMEOUT,
) -> ShardedArray:
    """Cut an array into parts and bring each to a device.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        The whole array. With a communicator each rank passes the whole array, and keeps its part.
    devices : sequence of int, int, or mpi4py communicator, optional
        Which devices; a number stands for the first ones; default: all. A device may be named more than
        once. With a communicator, each rank uses one device: those of a host are dealt out to its ranks.
    axis : int or None
        The axis to cut. None: every device gets all of it.
    sizes : sequence of int, optional
        Length of each part. Default: as equal as can be. Parts of MX operands begin at multiples of their
        block.
    timeout : float
        Seconds to wait for other ranks, here, in `get` and in products.

    Returns
    -------
    ShardedArray

    Raises
    ------
    TypeError
        For an `x` of another type.
    ValueError
        For devices that do not exist, an axis that `x` lacks, or sizes that do not add up to its length;
        with a communicator, for ranks that ask for different things.
    RuntimeError
        When the call is at fault on another rank.
    TimeoutError
        When other ranks do not take part in time.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.shard(np.zeros((5, 4), np.float32), [0, 0], axis=0).offsets
    (0, 3, 5)
    """
    comm = devices if _mpi.is_communicator(devices) else None

    def check() -> tuple[str, tuple[int | None, tuple[int, ...], tuple[int, ...]]]:
        _check_array(x)
        _mpi.seconds("shard", timeout)
        places = places_of("shard", devices)
        along, offsets = _where(x, axis, sizes, len(places) if comm is None else comm.Get_size())
        return f"{named(x)}, axis {along}, offsets {offsets}", (along, offsets, places)

    along, offsets, places = check()[1] if comm is None else _mpi.agree("shard", comm, timeout, check)
    return bring_parts(x, along, offsets, places, comm, timeout)


def _check_array(x: Any) -> None:
    if not (is_array(x) or isinstance(x, ScaledArray)):
        required = "x must be a numpy.ndarray, a DeviceArray or a ScaledArray"
        raise TypeError(f"shard: {sentence(required, type(x).__qualname__, array_hint(x))}")
    if isinstance(x, ScaledArray) and x.group_offsets is not None:
        required, got = "x must be quantized without group_offsets", f"{x.group_offsets.shape[0] - 1} groups"
        raise ValueError(f"shard: {sentence(required, got)}")


def _where(x: Any, axis: Any, sizes: Any, count: int) -> tuple[int | None, tuple[int, ...]]:
    """The axis from the end, and where parts begin along it."""
    if axis is None:
        if sizes is not None:
            raise ValueError(
                f"shard: {sentence('sizes must be None where nothing is cut (axis=None)', sizes)}"
            )
        return None, ()
    axis = find_axis("shard", axis, len(x.shape))
    step = block_step(x, axis)
    if sizes is None:
        return axis, even_offsets(x.shape[axis], count, step)
    return axis, given_offsets(sizes, count, x, axis, step)


# ---- which part goes where -------------------------------------------------------------------------


def named(x: Any) -> str:
    """Type and shape of an array, in words."""
    return f"{x.format if isinstance(x, ScaledArray) else x.dtype} {x.shape}"


def bring_parts(
    x: Any,
    axis: int | None,
    offsets: Sequence[int],
    places: Sequence[int],
    comm: Any,
    timeout: float,
) -> ShardedArray:
    """Cut an array, and bring to each of `places` its part; with a communicator one, this rank's."""
    first = 0 if comm is None else comm.Get_rank()

    def part(i: int) -> Part:
        mine = x if axis is None else cut(x, axis, offsets[first + i], offsets[first + i + 1])
        found: Part = asarray(mine, device=places[i])
        return found

    return ShardedArray(on_each(places, part), x.shape, axis, offsets, comm, timeout)


def places_of(function: str, devices: Any) -> tuple[int, ...]:
    """The devices that an argument names; of a communicator this rank's."""
    if _mpi.is_communicator(devices):
        return (_mpi.device(devices),)
    count = _hip.runtime().devices
    if devices is None:
        return tuple(range(count))
    if isinstance(devices, (int, np.integer)) and not isinstance(devices, bool):
        if not 1 <= devices <= count:
            raise ValueError(f"{function}: {sentence(f'devices must be 1 to {count}', devices)}")
        return tuple(range(int(devices)))
    try:
        places = tuple(map(operator.index, devices))
    except (TypeError, ValueError):
        required = "devices must be a sequence of ints, an int, or an mpi4py communicator"
        raise TypeError(f"{function}: {sentence(required, repr(devices))}") from None
    if not places or not all(0 <= d < count for d in places):
        required = f"devices must name one or more of 0 to {count - 1}"
        raise ValueError(f"{function}: {sentence(required, list(places))}")
    return places


def block_step(x: Any, axis: int) -> int:
    """Where parts may begin: at multiples of a block that shares a scale."""
    return QUANTIZED[x.format].block or 1 if isinstance(x, ScaledArray) and x.axis == axis else 1


def even_offsets(length: int, count: int, step: int) -> tuple[int, ...]:
    """Cut a length as evenly as whole steps allow, the longer parts first.

    >>> even_offsets(10, 4, 1), even_offsets(100, 3, 32)
    ((0, 3, 6, 8, 10), (0, 64, 96, 100))
    """
    steps = -(-length // step)
    share, extra = divmod(steps, count)
    found = [min((i * share + min(i, extra)) * step, length) for i in range(count + 1)]
    return tuple(found)


def given_offsets(
    sizes: Any, count: int, x: Any, axis: int, step: int, function: str = "shard"
) -> tuple[int, ...]:
    """Where parts of given sizes begin."""
    try:
        sizes = tuple(map(operator.index, sizes))
    except TypeError:
        required = "sizes must be a sequence of ints"
        raise TypeError(f"{function}: {sentence(required, repr(sizes))}") from None
    found = np.cumsum([0, *sizes]).tolist()
    if len(sizes) != count or min(sizes) < 0 or found[-1] != x.shape[axis]:
        required = f"sizes must be {count} lengths that add up to {x.shape[axis]}"
        raise ValueError(f"{function}: {sentence(required, list(sizes))}")
    if any(at % step and at != x.shape[axis] for at in found):
        required = f"parts must begin at multiples of {step}, the block of {x.format}"
        raise ValueError(f"{function}: {sentence(required, found)}")
    return tuple(found)


def sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    """A range along an axis that is counted from the end."""
    index = (slice(None),) * (len(x.shape) + axis) + (slice(start, stop),)
    return x[index]


def cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """A part of an array of any kind, without a copy."""
    if not isinstance(x, ScaledArray):
        return sliced(x, axis, start, stop)
    form = QUANTIZED[x.format]
    shape = list(x.shape)
    shape[axis] = stop - start
    along = axis == x.axis
    halves = 2 if along and x.data.dtype == np.uint8 else 1  # two numbers in a byte
    data = sliced(x.data, axis, start // halves, -(-stop // halves))
    scale = x.scale
    if along and form.block:
        scale = sliced(scale, axis, start // form.block, -(-stop // form.block))
    elif scale.shape and not along and scale.shape[axis] == x.shape[axis]:  # else parts share it
        scale = sliced(scale, axis, start, stop)
    return ScaledArray._make(data, scale, form, x.axis, tuple(shape), hadamard=x.hadamard)


def _plain(x: Part) -> DeviceArray:
    assert isinstance(x, DeviceArray)
    return x


def device_of(x: Part) -> int:
    """The device of a part."""
    device = x.device
    assert device is not None
    return device


def on_each(devices: Sequence[int], f: Callable[[int], T]) -> list[T]:
    """f(0), f(1), .. side by side, since each may wait for copies to or from its device."""
    if len(devices) == 1:
        return [f(0)]
    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(f, range(len(devices))))
