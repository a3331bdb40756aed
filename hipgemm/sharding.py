"""Arrays in parts, one on each device or MPI rank, and products of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from . import _hip, _launch, _mpi, _staging
from ._dlpack import contiguous_strides
from .array import DeviceArray, asarray, lend, new
from .errors import raise_reasons, sentence
from .formats import QUANTIZED, format_of
from .gemm import matmul
from .problem import describe_matmul
from .scaled import ScaledArray, array_hint, find_axis, is_array
from .stream import Event, Stream

Part = DeviceArray | ScaledArray
Split = Literal["m", "n", "k", "batch"]
T = TypeVar("T")
_F32 = np.dtype(np.float32)

# Along which axis each split cuts the result.
_CUTS = {"m": -2, "n": -1, "k": -2, "batch": -3}
# And the operands; None: whole everywhere.
_OPERAND_CUTS: dict[str, dict[str, int | None]] = {
    "a": {"m": -2, "n": None, "k": -1, "batch": -3},
    "b": {"m": None, "n": -1, "k": -2, "batch": -3},
}
_PIECE_BYTES = 32 << 20  # of an operand that goes up while the piece before it is multiplied


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
        self.devices = tuple(_device(x) for x in parts)
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
        TimeoutError
            When other ranks do not take part in time.
        """
        if isinstance(self.parts[0], ScaledArray):
            raise TypeError("ShardedArray.get: parts must be plain arrays; got quantized ones; get each part")
        if self.axis is None:
            return _plain(self.parts[0]).get()
        host = _on_each(self.devices, lambda i: _plain(self.parts[i]).get())
        if self.comm is not None:
            host = _mpi.all_gather(self.comm, host[0], self.axis, self.offsets, self.timeout)
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
        Seconds to wait for other ranks, in `get` and in products.

    Returns
    -------
    ShardedArray

    Raises
    ------
    TypeError
        For an `x` of another type.
    ValueError
        For devices that do not exist, an axis that `x` lacks, or sizes that do not add up to its length.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.shard(np.zeros((5, 4), np.float32), [0, 0], axis=0).offsets
    (0, 3, 5)
    """
    if not (is_array(x) or isinstance(x, ScaledArray)):
        required = "x must be a numpy.ndarray, a DeviceArray or a ScaledArray"
        raise TypeError(f"shard: {sentence(required, type(x).__qualname__, array_hint(x))}")
    if isinstance(x, ScaledArray) and x.group_offsets is not None:
        required, got = "x must be quantized without group_offsets", f"{x.group_offsets.shape[0] - 1} groups"
        raise ValueError(f"shard: {sentence(required, got)}")
    comm = devices if _mpi.is_communicator(devices) else None
    places = (_mpi.device(comm, timeout),) if comm is not None else _places("shard", devices)
    count = len(places) if comm is None else comm.Get_size()
    if axis is None:
        return ShardedArray(
            _on_each(places, lambda i: _bring(x, places[i])), x.shape, None, (), comm, timeout
        )
    axis = find_axis("shard", axis, len(x.shape))
    step = _step(x, axis)
    offsets = _offsets(x.shape[axis], count, step) if sizes is None else _given(sizes, count, x, axis, step)
    mine = range(count) if comm is None else (comm.Get_rank(),)
    cuts = [_cut(x, axis, offsets[i], offsets[i + 1]) for i in mine]
    parts = _on_each(places, lambda i: _bring(cuts[i], places[i]))
    return ShardedArray(parts, x.shape, axis, offsets, comm, timeout)


def sharded_matmul(
    a: Any,
    b: Any,
    /,
    *,
    split: Split,
    devices: Any = None,
    dtype: npt.DTypeLike | None = None,
    alpha: float = 1.0,
    col_scale: npt.NDArray[Any] | None = None,
    bias: npt.NDArray[Any] | None = None,
) -> Any:
    """Multiply on several devices, or on all ranks of a communicator: `matmul` of parts.

    Parameters
    ----------
    a, b : ShardedArray, numpy.ndarray or ScaledArray
        As for `matmul`. What is not sharded yet is sharded as the split wants it.
    split : str
        ========= ============== ============== ================ ==============================
        split     a cut along    b cut along    result cut along each of D devices sends
        ========= ============== ============== ================ ==============================
        ``m``     M (axis -2)    nothing        M                nothing
        ``n``     nothing        N (axis -1)    N                nothing
        ``k``     K (axis -1)    K (axis -2)    M                4 M N (D - 1) / D bytes
        ``batch`` first of three first of three first of three   nothing
        ========= ============== ============== ================ ==============================

        AᵀB over split rows is ``k``: ``sharded_matmul(dy.T, x, split="k")`` with both cut along axis 0.
        ``batch`` also takes a `b` that is whole everywhere.
    devices : as for `shard`
        Where to work if neither operand is sharded.
    dtype, alpha, col_scale, bias
        As for `matmul`; on the host.

    Returns
    -------
    ShardedArray or numpy.ndarray
        The latter if neither operand was sharded.

    Raises
    ------
    TypeError, ValueError
        As `matmul`, and for operands that are cut otherwise than the split wants, or lie on other devices.
    TimeoutError
        When other ranks do not take part in time.

    Notes
    -----
    With ``k`` each device multiplies its range of K for all rows and sends float32 sums to the device that
    owns them, while it multiplies the next rows. The owner adds the ranges in their order, applies alpha,
    col_scale and bias, and rounds once: the same bits on every run.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> x = np.ones((3, 8), ml_dtypes.bfloat16)
    >>> hg.sharded_matmul(x, x.T, split="k", devices=[0, 0], dtype=np.float32)
    array([[8., 8., 8.],
           [8., 8., 8.],
           [8., 8., 8.]], dtype=float32)
    """
    function = "sharded_matmul"
    if not isinstance(split, str) or split not in _CUTS:
        raise ValueError(f"{function}: {sentence('split must be m, n, k or batch', repr(split))}")
    for name, x in (("a", a), ("b", b)):
        if not (isinstance(x, (ShardedArray, ScaledArray)) or is_array(x)):
            required = f"{name} must be a ShardedArray, numpy.ndarray, DeviceArray or ScaledArray"
            raise TypeError(f"{function}: {sentence(required, type(x).__qualname__, array_hint(x))}")
        if len(x.shape) not in (2, 3):
            raise ValueError(f"{function}: {sentence(f'{name}.ndim must be 2 or 3', len(x.shape))}")
    if a.shape[-1] != b.shape[-2]:
        got = f"{a.shape[-1]} and {b.shape[-2]}; a.shape={a.shape}, b.shape={b.shape}"
        raise ValueError(f"{function}: {sentence('a.shape[-1] (K) must equal b.shape[-2] (K)', got)}")
    for name, x in (("alpha", alpha), ("col_scale", col_scale), ("bias", bias)):
        if isinstance(x, DeviceArray):
            required = f"{name} must be on the host, from where each device gets it"
            raise TypeError(f"{function}: {sentence(required, f'an array on device {x.device}')}")
    plain = not (isinstance(a, ShardedArray) or isinstance(b, ShardedArray))
    epilogue = _Epilogue(dtype, alpha, col_scale, bias)
    if plain and split != "k" and not _mpi.is_communicator(devices) and not _resident(a, b):
        return _through(function, a, b, split, _places(function, devices), epilogue)
    first, second = _sharded(function, a, b, split, devices)
    result = _split_k(first, second, epilogue) if split == "k" else _local(first, second, split, epilogue)
    return result.get() if plain else result


def sent_bytes(m: int, n: int, devices: int) -> int:
    """Bytes that a device sends in a product (M, N) split along K, where M is a multiple of `devices`.

    Examples
    --------
    >>> sent_bytes(1024, 512, 4)
    1572864
    """
    return 4 * m * n // devices * (devices - 1)


def least_k(flops: float, bytes_per_second: float, devices: int) -> int:
    """K from which sending hides behind multiplying, in a product split along K; see docs/sharding.md.

    Examples
    --------
    >>> least_k(1e15, 5e11, 2)
    4000
    """
    return math.ceil(2 * flops / bytes_per_second * (devices - 1))


# ---- which part goes where -------------------------------------------------------------------------


def _wanted(name: str, x: Any, split: str) -> int | None:
    """The axis along which a split wants an operand cut."""
    cut = _OPERAND_CUTS[name][split]
    return None if split == "batch" and len(x.shape) == 2 else cut  # one matrix for the whole batch


def _sharded(function: str, a: Any, b: Any, split: str, devices: Any) -> tuple[ShardedArray, ShardedArray]:
    """Both operands, sharded as the split wants them."""
    known = next((x for x in (a, b) if isinstance(x, ShardedArray)), None)
    if split == "batch" and len(a.shape) != 3:
        raise ValueError(f"{function}: {sentence('a.ndim must be 3 for split=batch', len(a.shape))}")
    if split == "k" and len(b.shape) != 2:
        raise ValueError(f"{function}: {sentence('b.ndim must be 2 for split=k', len(b.shape))}")
    if known is not None:
        devices = known.devices if known.comm is None else known.comm
    sizes = None
    if known is not None and known.axis is not None and split in ("k", "batch"):
        sizes = [high - low for low, high in pairwise(known.offsets)]
    made = []
    for name, x in (("a", a), ("b", b)):
        axis = _wanted(name, x, split)
        if isinstance(x, ShardedArray):
            if x.axis != axis:
                required = f"{name} must be {_cut_name(axis)} for split={split}"
                raise ValueError(f"{function}: {sentence(required, _cut_name(x.axis))}")
            made.append(x)
        elif sizes is not None and axis is not None and sum(sizes) == x.shape[axis]:
            made.append(shard(x, devices, axis=axis, sizes=sizes))
        else:
            made.append(shard(x, devices, axis=axis))
    first, second = made
    if first.devices != second.devices or first.comm is not second.comm:
        required = "a and b must be on the same devices in the same order, or of one communicator"
        raise ValueError(f"{function}: {sentence(required, f'{first!r} and {second!r}')}")
    if first.axis is not None and second.axis is not None and first.offsets != second.offsets:
        required = "a and b must be cut at the same places"
        raise ValueError(f"{function}: {sentence(required, f'{first.offsets} and {second.offsets}')}")
    return first, second


def _cut_name(axis: int | None) -> str:
    return "whole on every device (axis=None)" if axis is None else f"cut along axis {axis}"


def _places(function: str, devices: Any) -> tuple[int, ...]:
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


def _step(x: Any, axis: int) -> int:
    """Where parts may begin: at multiples of a block that shares a scale."""
    return QUANTIZED[x.format].block or 1 if isinstance(x, ScaledArray) and x.axis == axis else 1


def _offsets(length: int, count: int, step: int) -> tuple[int, ...]:
    """Cut a length as evenly as whole steps allow, the longer parts first.

    >>> _offsets(10, 4, 1), _offsets(100, 3, 32)
    ((0, 3, 6, 8, 10), (0, 64, 96, 100))
    """
    steps = -(-length // step)
    share, extra = divmod(steps, count)
    found = [min((i * share + min(i, extra)) * step, length) for i in range(count + 1)]
    return tuple(found)


def _given(sizes: Sequence[int], count: int, x: Any, axis: int, step: int) -> tuple[int, ...]:
    try:
        sizes = tuple(map(operator.index, sizes))
    except TypeError:
        required = "sizes must be a sequence of ints"
        raise TypeError(f"shard: {sentence(required, repr(sizes))}") from None
    found = np.cumsum([0, *sizes]).tolist()
    if len(sizes) != count or min(sizes) < 0 or found[-1] != x.shape[axis]:
        required = f"sizes must be {count} lengths that add up to {x.shape[axis]}"
        raise ValueError(f"shard: {sentence(required, list(sizes))}")
    if any(at % step and at != x.shape[axis] for at in found):
        required = f"parts must begin at multiples of {step}, the block of {x.format}"
        raise ValueError(f"shard: {sentence(required, found)}")
    return tuple(found)


def _sliced(x: Any, axis: int, start: int, stop: int) -> Any:
    index = (slice(None),) * (len(x.shape) + axis) + (slice(start, stop),)
    return x[index]


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """A part of an array of any kind, without a copy."""
    if not isinstance(x, ScaledArray):
        return _sliced(x, axis, start, stop)
    form = QUANTIZED[x.format]
    shape = list(x.shape)
    shape[axis] = stop - start
    along = axis == x.axis
    halves = 2 if along and x.data.dtype == np.uint8 else 1  # two numbers in a byte
    data = _sliced(x.data, axis, start // halves, -(-stop // halves))
    scale = x.scale
    if along and form.block:
        scale = _sliced(scale, axis, start // form.block, -(-stop // form.block))
    elif scale.shape and not along and scale.shape[axis] == x.shape[axis]:  # else parts share it
        scale = _sliced(scale, axis, start, stop)
    return ScaledArray._make(data, scale, form, x.axis, tuple(shape), hadamard=x.hadamard)


def _bring(x: Any, device: int) -> Part:
    """Bring a part to its device; what is there stays."""
    found: Part = asarray(x, device=device)
    return found


def _reshaped(x: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
    """Contiguous memory as another shape."""
    return DeviceArray(x._block, x.ptr, shape, contiguous_strides(shape, x.dtype.itemsize), x.dtype)


def _plain(x: Part) -> DeviceArray:
    assert isinstance(x, DeviceArray)
    return x


def _device(x: Part) -> int:
    device = x.device
    assert device is not None
    return device


def _on_each(devices: Sequence[int], f: Callable[[int], T]) -> list[T]:
    """f(0), f(1), .. side by side, since each may wait for copies to or from its device."""
    if len(devices) == 1:
        return [f(0)]
    with ThreadPoolExecutor(len(devices)) as pool:
        return list(pool.map(f, range(len(devices))))


# ---- products --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Epilogue:
    dtype: Any
    alpha: float
    col_scale: Any
    bias: Any

    def columns(self, low: int, high: int) -> dict[str, Any]:
        """Arguments of `matmul` for a range of columns."""
        cut = {
            name: None if x is None else x[low:high]
            for name, x in (("col_scale", self.col_scale), ("bias", self.bias))
        }
        return {"dtype": self.dtype, "alpha": self.alpha, **cut}


def _multiply(x: Part, y: Part, out: DeviceArray | None = None, **arguments: Any) -> DeviceArray:
    """`matmul` of parts, quantized or not."""
    multiply: Callable[..., DeviceArray] = matmul
    return multiply(x, y, out, **arguments)


def _local(a: ShardedArray, b: ShardedArray, split: str, epilogue: _Epilogue) -> ShardedArray:
    """Each part for itself."""
    columns = b.shape[-1]
    first = a.comm.Get_rank() if a.comm is not None else 0
    parts = []
    for i, (x, y) in enumerate(zip(a.parts, b.parts, strict=True), first):
        low, high = (b.offsets[i], b.offsets[i + 1]) if split == "n" else (0, columns)
        with _hip.on_device(_device(x)):
            parts.append(_multiply(x, y, **epilogue.columns(low, high)))
    lead = a.shape[:-2] if len(a.shape) >= len(b.shape) else b.shape[:-2]
    offsets = b.offsets if split == "n" else a.offsets
    shape = (*lead, a.shape[-2], columns)
    return ShardedArray(parts, shape, _CUTS[split], offsets, a.comm, a.timeout)


def _resident(*operands: Any) -> bool:
    return any(isinstance(x.data if isinstance(x, ScaledArray) else x, DeviceArray) for x in operands)


def _through(
    function: str, a: Any, b: Any, split: str, devices: Sequence[int], epilogue: _Epilogue
) -> npt.NDArray[Any]:
    """Multiply host operands piece by piece: one goes up and one comes down while another is multiplied."""
    problem, reasons = describe_matmul(a, b, **epilogue.columns(0, b.shape[-1]))
    raise_reasons(function, reasons)
    assert problem is not None
    cuts = [_wanted(name, x, split) for name, x in (("a", a), ("b", b))]
    axis = _CUTS[split]
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.empty((*lead, a.shape[-2], b.shape[-1]), problem.out_format.dtype)
    offsets = _offsets(out.shape[axis], len(devices), 1)

    def work(i: int) -> None:
        device, first, last = devices[i], offsets[i], offsets[i + 1]
        copies = Stream(device)
        whole: list[Any] = [
            asarray(x, device=device) if cut is None else None for x, cut in zip((a, b), cuts, strict=True)
        ]
        nbytes = sum(x.nbytes for x, cut in zip((a, b), cuts, strict=True) if cut is not None)
        step = max(1, _PIECE_BYTES * out.shape[axis] // max(nbytes, 1))
        before: tuple[DeviceArray, npt.NDArray[Any]] | None = None
        with _hip.on_device(device):
            for low in range(first, last, step):
                high = min(low + step, last)
                x, y = (
                    there if cut is None else asarray(_cut(x, cut, low, high), device=device, stream=copies)
                    for x, cut, there in zip((a, b), cuts, whole, strict=True)
                )
                columns = (low, high) if split == "n" else (0, b.shape[-1])
                made = _multiply(x, y, **epilogue.columns(*columns)), _sliced(out, axis, low, high)
                if before is not None:
                    before[0].get(before[1])
                before = made
            if before is not None:
                before[0].get(before[1])

    _on_each(devices, work)
    return out


def _split_k(a: ShardedArray, b: ShardedArray, epilogue: _Epilogue) -> ShardedArray:
    """Sums over a range of K each, sent to the owners of their rows and added there in order."""
    x, y = a.parts[0], b.parts[0]
    problem, reasons = describe_matmul(x, y, **epilogue.columns(0, b.shape[-1]))
    raise_reasons("sharded_matmul", reasons)
    assert problem is not None
    count = len(a.offsets) - 1
    rows = _offsets(a.shape[-2], count, 1)
    run = _exchange_devices if a.comm is None else _exchange_ranks
    sums = run(a, b, rows)
    first = a.comm.Get_rank() if a.comm is not None else 0
    lead, columns = a.shape[:-2], b.shape[-1]
    parts = []
    for i, planes in enumerate(sums, first):
        shape = (*lead, rows[i + 1] - rows[i], columns)
        with _hip.on_device(planes.device):
            parts.append(_add_up(planes, shape, problem.out_format.dtype, epilogue))
    return ShardedArray(parts, (*lead, a.shape[-2], columns), -2, rows, a.comm, a.timeout)


def _add_up(planes: DeviceArray, shape: tuple[int, ...], dtype: np.dtype[Any], e: _Epilogue) -> DeviceArray:
    """Add the ranges of K, (ranges, *shape), in their order; then what `matmul` does to a sum."""
    device = planes.device
    out = new(shape, dtype, device, 0)
    if out.size == 0:
        return out
    vectors = [None if v is None else lend(np.asarray(v), device, 0) for v in (e.col_scale, e.bias)]
    col_scale, bias = (0 if v is None else v.ptr for v in vectors)
    bias_type = 0 if vectors[1] is None else _type_code(vectors[1].dtype)
    kernel = _launch.function(device, "split_reduce")
    rows, columns = math.prod(shape[:-1]), shape[-1]
    plane = 4 * rows * columns
    _launch.launch(
        kernel,
        -(-rows // kernel.tile[0]) * -(-columns // kernel.tile[1]),
        0,
        *(planes.ptr, out.ptr, 0, col_scale, bias, 0, 0),
        *(columns, plane, plane, columns, 0, 0, 0, 0, 0, 0),
        *(rows, columns, 1, planes.shape[0], 0, 0, float(e.alpha), _type_code(dtype), bias_type),
    )
    return out


def _type_code(dtype: np.dtype[Any]) -> int:
    form = format_of(dtype)
    assert form is not None
    return _launch.TYPE_CODES[form.name]


def _rows(x: Part, low: int, high: int) -> Part:
    found: Part = _cut(x, -2, low, high)
    return found


def _exchange_devices(a: ShardedArray, b: ShardedArray, rows: Sequence[int]) -> list[DeviceArray]:
    """For each device the sums of all ranges for its rows. Queued; nothing is waited for."""
    count, columns, lead = len(a.parts), b.shape[-1], a.shape[:-2]
    planes = []
    for i, device in enumerate(a.devices):
        with _hip.on_device(device):
            planes.append(new((count, *lead, rows[i + 1] - rows[i], columns), _F32, device, 0))
            _copies(device).arriving.wait(Event(device, timing=False).record())
    for i, (x, y) in enumerate(zip(a.parts, b.parts, strict=True)):
        with _hip.on_device(a.devices[i]):
            # Its own rows last: what others wait for goes first.
            for owner in (*range(i + 1, count), *range(i + 1)):
                if rows[owner] == rows[owner + 1] or columns == 0:
                    continue
                slot, part = planes[owner][i], _rows(x, rows[owner], rows[owner + 1])
                if a.devices[owner] == a.devices[i]:
                    _multiply(part, y, slot)
                else:
                    _send(_multiply(part, y, dtype=_F32), slot)
    for device in set(a.devices):
        with _hip.on_device(device):
            Event(device, timing=False).record(_copies(device).arriving).wait()
    return planes


@dataclass(frozen=True)
class _Copies:
    """Streams of a device for copies to and from others, beside the products."""

    leaving: Stream
    arriving: Stream


_all_copies: dict[int, _Copies] = {}


def _copies(device: int) -> _Copies:
    found = _all_copies.get(device)
    if found is None:
        found = _all_copies.setdefault(device, _Copies(Stream(device), Stream(device)))
    return found


def _send(source: DeviceArray, target: DeviceArray) -> None:
    """Queue a copy to another device, behind the product that makes the source."""
    leaving, arriving = _copies(source.device).leaving, _copies(target.device).arriving
    source._block.reading(int(leaving))
    target._block.readers.add(int(arriving))  # should it be dropped before all have arrived
    ends = (target.ptr, target.device, int(arriving)), (source.ptr, source.device, int(leaving))
    _staging.between(*ends[0], *ends[1], source.nbytes)


def _exchange_ranks(a: ShardedArray, b: ShardedArray, rows: Sequence[int]) -> list[DeviceArray]:
    """The sums of all ranks for this one's rows, by one collective."""
    comm, x, y = a.comm, a.parts[0], b.parts[0]
    device, columns, lead = a.devices[0], b.shape[-1], a.shape[:-2]
    unit = math.prod(lead) * columns  # floats that belong to one row
    mine = rows[comm.Get_rank() + 1] - rows[comm.Get_rank()]
    with _hip.on_device(device):
        sent = new((rows[-1], unit), _F32, device, 0)
        for low, high in pairwise(rows):
            if low < high and unit:
                shape = (*lead, high - low, columns)
                _multiply(_rows(x, low, high), y, _reshaped(sent[low:high], shape))
        planes = new((len(rows) - 1, *lead, mine, columns), _F32, device, 0)
        _mpi.exchange_rows(comm, sent, planes, rows, unit, a.timeout)
    return [planes]
