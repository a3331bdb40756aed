"""Products of sharded arrays, on several devices or MPI ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, new, upload_async
from ..config import config
from ..errors import UnsupportedError, error_context, fault, shown
from ..formats.arrays import array_hint, is_array, on_host
from ..formats.elements import BF16, F16, F32, known_format, nearest_float
from ..formats.operand import Operand
from ..formats.operand_checks import INPUTS, OUTPUTS, OperandChecks
from ..formats.scaled import ScaledArray
from ..formats.strides import contiguous_strides
from ..kernels.launch import NO_SCALES, NO_STAGES, BoundLaunch, bind_tiles
from ..products.matmul import matmul
from ..products.stages import GLUS, activations
from ..runtime import hip as _hip
from ..runtime import staging as _staging
from ..runtime.stream import Event, Stream
from . import mpi as _mpi
from .sharded_array import (
    Part,
    ShardedArray,
    assemble,
    block_step,
    cut,
    device_of,
    even_offsets,
    given_offsets,
    named,
    on_each,
    parse_devices,
    shard,
    sliced,
    split_array,
)

__all__ = ["ShardedArray", "assemble", "least_k", "sent_bytes", "shard", "sharded_matmul", "speedup"]

Split = Literal["m", "n", "k", "batch"]
_FUNCTION = "sharded_matmul"

# The axis along which the result is split, for each `split`.
_CUTS = {"m": -2, "n": -1, "k": -2, "batch": -3}
# The axes along which the operands are split; None: whole on every device.
_OPERAND_CUTS: dict[str, dict[str, int | None]] = {
    "a": {"m": -2, "n": None, "k": -1, "batch": -3},
    "b": {"m": None, "n": -1, "k": -2, "batch": -3},
}
# The exponents of sums of products of fp8 elements are from -32 on, and those of normal numbers from -126.
_MOST_SPREAD = 94
_CHUNK_BYTES = 32 << 20  # of an operand that is uploaded while the previous chunk is multiplied


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
    residual: Any = None,
    activation: str | None = None,
    glu: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Multiply on several devices, or on all ranks of a communicator.

    Parameters
    ----------
    a, b : ShardedArray, numpy.ndarray or ScaledArray
        As for `matmul`. Operands that are not sharded are sharded as `split` requires.
    split : str
        ========= ============== ============== ================ ==============================
        split     a split along  b split along  result split on  each of D devices sends
        ========= ============== ============== ================ ==============================
        ``m``     M (axis -2)    nothing        M                nothing
        ``n``     nothing        N (axis -1)    N                nothing
        ``k``     K (axis -1)    K (axis -2)    M                4 M N (D - 1) / D bytes
        ``batch`` first of three first of three first of three   nothing
        ========= ============== ============== ================ ==============================

        AᵀB over split rows is ``k``: ``sharded_matmul(dy.T, x, split="k")`` with both split along axis 0.
        ``batch`` also accepts a `b` that is whole on every device.
    devices : as for `shard`
        The devices to use if neither operand is sharded.
    dtype, alpha, col_scale, bias
        As for `matmul`, on the host.
    activation, glu : str, optional
        As for `matmul`; with ``n`` a GLU must be ``"interleaved"``, and each part of `b`
        have an even number of columns.
    residual : ShardedArray or numpy.ndarray, optional
        As for `matmul`; sharded as the result is, or on the host.
    timeout : float, optional
        Seconds to wait for other ranks. Default: that of the sharded operands, or 300.

    Returns
    -------
    ShardedArray or numpy.ndarray
        The latter if neither operand is sharded.

    Raises
    ------
    TypeError, ValueError
        As `matmul`, and for operands that are not split as `split` requires, or are on other devices; with a
        communicator, if ranks make different calls.
    UnsupportedError
        For ``glu="halves"`` with ``n``.
    RuntimeError
        If the call is invalid on another rank.
    TimeoutError
        If other ranks do not make the call before the timeout.

    Notes
    -----
    With ``k`` each device multiplies its range of K for all rows, and sends float32 sums to the device that
    owns the rows. Between devices of one process this overlaps with the product of the next rows. The owner
    adds the ranges in a fixed order, applies scales, alpha, col_scale and bias, and rounds once, so results
    are reproducible. With a communicator, all of its ranks must make the call: see docs/use/sharding.md.

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
    epilogue = _Epilogue(dtype, alpha, col_scale, bias, residual, activation, glu)
    key = None
    if type(a) is type(b) is ShardedArray and devices is None and timeout is None:
        key = _key(a, b, split, epilogue)
        known = _plans.get(key)
        if known is not None and not (a.freed or b.freed):
            return _multiply_parts(a, b, known, epilogue, None, min(a.timeout, b.timeout))
    given = [x for x in (a, b) if isinstance(x, ShardedArray)]
    comm = next(
        (x.comm for x in given if x.comm is not None), devices if _mpi.is_communicator(devices) else None
    )
    wait = min((x.timeout for x in given), default=_mpi.TIMEOUT) if timeout is None else timeout

    def start() -> tuple[str, Any]:
        """The local part of the call; its errors are reported on all ranks."""
        plan = _planned(a, b, split, devices, epilogue, comm, wait)
        text = "" if comm is None else _words(a, b, plan, epilogue)
        if not (given or split == "k" or comm is not None or _resident(a, b) or epilogue.staged):
            return text, _multiply_chunks(a, b, plan, epilogue)
        first, second = (
            x if isinstance(x, ShardedArray) else split_array(x, axis, offsets, plan.devices, comm, wait)
            for x, axis, offsets in zip((a, b), plan.axes, plan.offsets, strict=True)
        )
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        if key is not None:
            _plans[key] = plan
        if split == "k" and comm is not None:
            ranges = _ranges(first, second, epilogue)
            sums = _own_sums(ranges, first, plan.rows, comm.Get_rank())
            return text, partial(_exchange_ranks, *sums, plan, ranges, comm, wait)
        return text, _multiply_parts(first, second, plan, epilogue, comm, wait)

    made = start()[1] if comm is None else _mpi.Ranks(_FUNCTION, comm, wait).agree(start)
    result = made() if isinstance(made, partial) else made
    return result if given or isinstance(result, np.ndarray) else result.get()


def sent_bytes(m: int, n: int, devices: int) -> int:
    """Bytes that a device sends in a product (M, N) with ``split="k"``, if M is a multiple of `devices`.

    Examples
    --------
    >>> sent_bytes(1024, 512, 4)
    1572864
    """
    return 4 * m * n // devices * (devices - 1)


def least_k(flops: float, bytes_per_second: float, devices: int) -> int:
    """The K from which communication takes no longer than compute, for ``split="k"`` (docs/use/sharding.md).

    Examples
    --------
    >>> least_k(1e15, 5e11, 2)
    4000
    """
    return math.ceil(2 * flops / bytes_per_second * (devices - 1))


def speedup(k: int, flops: float, bytes_per_second: float, devices: int, *, overlap: bool) -> float:
    """The speedup of a product with ``split="k"`` over one device; below 1 it is slower.

    Communication overlaps with compute (`overlap`) between devices of one process, not between ranks.

    Examples
    --------
    >>> [round(speedup(k, 1e15, 5e10, 8, overlap=False), 2) for k in (10000, 40000, 280000)]
    [0.28, 1.0, 4.0]
    """
    multiplying, sending = 2 * k / flops / devices, 4 / bytes_per_second * (devices - 1) / devices
    return 2 * k / flops / (max(multiplying, sending) if overlap else multiplying + sending)


# ---- checks and plans ----------------------------------------------------------------------------


class _Epilogue(NamedTuple):
    """The epilogue arguments of `matmul`."""

    dtype: Any
    alpha: float
    col_scale: Any
    bias: Any
    residual: Any = None
    activation: Any = None
    glu: Any = None

    @property
    def staged(self) -> bool:
        """Whether anything follows the bias."""
        return any(x is not None for x in self[4:])

    def of(self, low: int, high: int) -> _Epilogue:
        """The epilogue of a range of columns."""
        col_scale, bias = (None if x is None else x[low:high] for x in (self.col_scale, self.bias))
        return self._replace(col_scale=col_scale, bias=bias)


@dataclass(frozen=True)
class _Plan:
    """The plan of a product, after all checks."""

    split: str
    axes: tuple[int | None, int | None]  # along which the operands are split
    offsets: tuple[tuple[int, ...], tuple[int, ...]]  # of their parts
    devices: tuple[int, ...]  # of this process's parts
    dtype: np.dtype[Any]  # of the result
    shape: tuple[int, ...]  # of the result
    rows: tuple[int, ...]  # offsets of the rows that each device owns, for ``k``
    first: int  # the index of this process's first part


_plans: dict[Any, _Plan] = {}  # for operands that are sharded over devices of this process
_MAX_PLANS = 1024


def _key(a: ShardedArray, b: ShardedArray, split: Any, e: _Epilogue) -> Any:
    """The cache key: everything that a plan and its checks depend on; None if values must be checked too."""
    try:
        col_scale, bias = (None if x is None else (type(x), x.shape, x.dtype) for x in (e.col_scale, e.bias))
        key = a.key, b.key, split, e.dtype, col_scale, bias
        hash(key)
    except (AttributeError, TypeError):  # invalid arguments, which the checks report
        return None
    if e.staged:
        return None
    known = type(e.alpha) is float and abs(e.alpha) < F32.maximum
    return key if known and a.comm is None and b.comm is None else None


def _planned(a: Any, b: Any, split: Any, devices: Any, epilogue: _Epilogue, comm: Any, timeout: Any) -> _Plan:
    """Check a call, and plan how operands are split."""
    faults = OperandChecks(_FUNCTION)
    if not isinstance(split, str) or split not in _CUTS:
        faults.add(ValueError, "option", "split must be m, n, k or batch", shown(split))
        split = ""
    faults.seconds(timeout)
    if comm is not None:
        faults.value_or(config.find("mpi_gpu"), False)  # an invalid value is an error on all ranks
    dtype = _check_operands(faults, a, b, split, epilogue)
    known = next((x for x in (a, b) if isinstance(x, ShardedArray)), None)
    numbers = _common_devices(faults, a, b, known, devices)
    faults.raise_all()
    axes = _split_axis("a", a, split), _split_axis("b", b, split)
    count = len(numbers) if comm is None else comm.Get_size()
    found = []
    for name, x, axis in zip("ab", (a, b), axes, strict=True):
        if isinstance(x, ShardedArray):
            if x.axis != axis:
                required = f"{name} must be {_axis_name(axis)} for split={split}"
                faults.add(ValueError, "axis", required, _axis_name(x.axis))
            found.append(x.offsets)
        elif axis is None:
            found.append(())
        elif split in ("k", "batch") and known is not None and known.axis is not None:
            sizes = [high - low for low, high in pairwise(known.offsets)]
            found.append(given_offsets(faults, sizes, count, x, axis, x.shape[axis]))
        else:
            step = max(block_step(x, axis), 2 if split == "n" and epilogue.glu is not None else 1)
            if split == "k":
                step = max(block_step(y, along) for y, along in zip((a, b), axes, strict=True) if along)
            found.append(even_offsets(x.shape[axis], count, step))
    if split in ("k", "batch") and None not in axes and found[0] != found[1] and not faults.found:
        required = "a and b must be split at the same offsets"
        advice = "pass sizes= to hipgemm.shard"
        faults.add(ValueError, "offsets", required, f"{found[0]} and {found[1]}", advice)
    shape: tuple[int, ...] = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    if epilogue.glu is not None:
        shape = (*shape[:-1], shape[-1] // 2)
        if split == "n" and any(offset % 2 for offset in found[1]):
            required = "each part of b must have an even number of columns with glu"
            faults.add(ValueError, "offsets", required, found[1])
    made_at = _result_offsets(split, (found[0], found[1]), epilogue)
    if split == "k":
        made_at = even_offsets(
            a.shape[-2], count, block_step(a.parts[0] if isinstance(a, ShardedArray) else a, -2)
        )
    _check_residual(faults, epilogue.residual, shape, _CUTS[split], made_at, numbers, comm)
    faults.raise_all()
    one: Any = a.parts[0] if isinstance(a, ShardedArray) else a
    first, rows = (
        0 if comm is None else comm.Get_rank(),
        even_offsets(a.shape[-2], count, block_step(one, -2)),
    )
    return _Plan(split, axes, (found[0], found[1]), numbers, dtype, shape, rows, first)


def _words(a: Any, b: Any, plan: _Plan, epilogue: _Epilogue) -> str:
    """A description of the call, which must be equal on all ranks."""
    kinds = " and ".join(("sharded " if isinstance(x, ShardedArray) else "") + named(x) for x in (a, b))
    vectors = {"col_scale": epilogue.col_scale, "bias": epilogue.bias}
    types = (f"{name} {'none' if x is None else x.dtype}" for name, x in vectors.items())
    options = f"split={plan.split}, to {plan.dtype}, alpha={epilogue.alpha}, {', '.join(types)}"
    if epilogue.staged:
        added = "a residual" if epilogue.residual is not None else "no residual"
        options += f", activation={epilogue.activation}, glu={epilogue.glu}, {added}"
    return f"{kinds}, {options}, split at {plan.offsets}"


def _check_operands(faults: OperandChecks, a: Any, b: Any, split: Any, e: _Epilogue) -> np.dtype[Any]:
    """Check operands like `matmul`, and the epilogue; return the result's type."""
    parts = [x.parts[0] if isinstance(x, ShardedArray) else x for x in (a, b)]
    operands: list[Operand | None] = []
    for name, x, part, k_axis in (("a", a, parts[0], -1), ("b", b, parts[1], -2)):
        if isinstance(x, ShardedArray) and not faults.in_memory(name, x):
            continue
        if not (isinstance(part, ScaledArray) or is_array(part)):
            what = "a ShardedArray, numpy.ndarray, DeviceArray or ScaledArray"
            faults.wrong_type(name, what, part, array_hint(part))
        elif len(x.shape) not in (2, 3):
            faults.add(ValueError, "shape", f"{name}.ndim must be 2 or 3", len(x.shape))
        elif isinstance(part, ScaledArray):
            operands.append(faults.scaled(name, part, k_axis))
        else:
            operands.append(faults.matrix(name, part, INPUTS))
    columns = None
    if len(operands) == 2:
        columns = b.shape[-1]
        _check_shapes(faults, a.shape, b.shape, split)
        if operands[0] and operands[1]:
            faults.pair(parts[0], parts[1], operands[0], operands[1])
    dtype = None if e.dtype is None else faults.dtype("dtype", e.dtype, OUTPUTS)
    faults.alpha(e.alpha)
    faults.vector("col_scale", e.col_scale, (F32,), columns)
    faults.vector("bias", e.bias, OUTPUTS, columns)
    if e.activation is not None:
        faults.option("activation", e.activation, activations(e.glu))
    if e.glu is not None:
        faults.option("glu", e.glu, GLUS)
        if columns is not None and columns % 2:
            faults.add(ValueError, "shape", "N must be even with glu", columns)
    if split == "n" and isinstance(e.glu, str) and e.glu == "halves":
        required = "glu must be interleaved for split=n, whose parts hold gates with their ups"
        faults.add(UnsupportedError, "stages", required, "halves")
    for name, x in (("alpha", e.alpha), ("col_scale", e.col_scale), ("bias", e.bias)):
        if isinstance(x, DeviceArray):
            required = f"{name} must be on the host"
            faults.add(TypeError, "residency", required, f"an array on device {x.device}")
    return (dtype or (F16 if getattr(parts[0], "dtype", None) == F16.dtype else BF16)).dtype


def _result_offsets(split: str, offsets: tuple[tuple[int, ...], ...], e: _Epilogue) -> tuple[int, ...]:
    """The offsets of the parts of a result, if it is split as an operand is."""
    found = offsets[split == "n"]
    return tuple(x // 2 for x in found) if split == "n" and e.glu is not None else found


def _check_residual(
    faults: OperandChecks,
    x: Any,
    shape: tuple[int, ...],
    axis: int,
    offsets: tuple[int, ...],
    devices: tuple[int, ...],
    comm: Any,
) -> None:
    """Check what is added to the result: on the host, or sharded as the result is."""
    if x is None:
        return
    if isinstance(x, ShardedArray):
        if not faults.in_memory("residual", x):
            return
        if isinstance(x.parts[0], ScaledArray):
            faults.wrong_type("residual", "not quantized", x)
            return
        faults.matrix("residual", x.parts[0], OUTPUTS)
        parts: Any = x.parts
        if any(part.strides != contiguous_strides(part.shape, part.dtype.itemsize) for part in parts):
            faults.add(ValueError, "stride", "parts of residual must be contiguous", repr(x))
        if (x.axis, x.offsets, x.devices, x.comm) != (axis, offsets, devices, comm):
            required = f"residual must be sharded as the result, at {offsets} of axis {axis}"
            faults.add(ValueError, "offsets", required, repr(x))
    elif isinstance(x, np.ndarray):
        faults.matrix("residual", x, OUTPUTS)
    else:
        faults.wrong_type("residual", "a ShardedArray or numpy.ndarray", x, array_hint(x))
        return
    if x.shape != shape:
        faults.add(ValueError, "shape", f"residual.shape must be {shape}", x.shape)


def _check_shapes(faults: OperandChecks, a: tuple[int, ...], b: tuple[int, ...], split: Any) -> None:
    """Check that the shapes match, and are valid for the split."""
    faults.contraction(a, b)
    if split != "batch":
        faults.batch(a, b)
    elif len(a) != 3:
        faults.add(ValueError, "shape", "a.ndim must be 3 for split=batch", len(a))
    elif len(b) == 3 and a[0] != b[0]:
        required = "a.shape[0] must equal b.shape[0] for split=batch"
        faults.add(ValueError, "shape", required, f"{a[0]} and {b[0]}")
    if split == "k" and len(b) != 2:
        faults.add(ValueError, "shape", "b.ndim must be 2 for split=k", len(b))


def _common_devices(
    faults: OperandChecks, a: Any, b: Any, known: ShardedArray | None, devices: Any
) -> tuple[int, ...]:
    """The devices of a product, which must be the same for all arguments."""
    if known is None:
        return parse_devices(faults, devices)
    both = isinstance(a, ShardedArray) and isinstance(b, ShardedArray)
    if both and (a.devices != b.devices or a.comm != b.comm):
        required = "a and b must have the same devices in the same order, or the same communicator"
        faults.add(ValueError, "device", required, f"{a!r} and {b!r}")
    if devices is not None:
        same = devices == known.comm if _mpi.is_communicator(devices) else known.comm is None
        if not same or parse_devices(faults, devices) != known.devices:
            required = "devices must be those of the sharded operand, or None"
            faults.add(ValueError, "device", required, f"{shown(devices, str)} and {known!r}")
    return known.devices


def _split_axis(name: str, x: Any, split: str) -> int | None:
    """The axis along which an operand must be split."""
    found = _OPERAND_CUTS[name][split]
    return None if split == "batch" and len(x.shape) == 2 else found  # one matrix for the whole batch


def _axis_name(axis: int | None) -> str:
    return "whole on every device (axis=None)" if axis is None else f"split along axis {axis}"


# ---- products --------------------------------------------------------------------------------------


def _multiply(x: Part, y: Part, out: DeviceArray | None, e: _Epilogue) -> DeviceArray:
    """Call `matmul` for parts, quantized or not."""
    multiply: Callable[..., DeviceArray] = matmul
    stages = {"residual": e.residual, "activation": e.activation, "glu": e.glu} if e.staged else {}
    with error_context(_FUNCTION):
        return multiply(x, y, out, dtype=e.dtype, alpha=e.alpha, col_scale=e.col_scale, bias=e.bias, **stages)


def _multiply_parts(
    a: ShardedArray, b: ShardedArray, plan: _Plan, epilogue: _Epilogue, comm: Any, timeout: float
) -> ShardedArray:
    """Multiply the parts; for ``k`` between devices of one process also add the ranges of K."""
    if plan.split == "k":
        ranges = _ranges(a, b, epilogue)
        return _reduce(_exchange_devices(a, b, plan.rows, ranges), plan, ranges, comm, timeout)
    parts, offsets = [], plan.offsets[plan.split == "n"]
    made_at = _result_offsets(plan.split, plan.offsets, epilogue)
    for i, x in enumerate(a.parts):
        at = plan.first + i
        part = epilogue.of(offsets[at], offsets[at + 1]) if plan.split == "n" else epilogue
        part = _own_residual(part, made_at, plan.first, i, _CUTS[plan.split], device_of(x))
        parts.append(_multiply(x, b.parts[i], None, part))
    return ShardedArray(parts, plan.shape, _CUTS[plan.split], made_at, comm, timeout, plan.devices)


def _own_residual(
    e: _Epilogue, offsets: Sequence[int], first: int, i: int, axis: int, device: int
) -> _Epilogue:
    """The epilogue of part i of this process, with its own part of what is added."""
    if e.residual is None:
        return e
    if isinstance(e.residual, ShardedArray):
        return e._replace(residual=e.residual.parts[i])
    own = sliced(e.residual, axis, offsets[first + i], offsets[first + i + 1])
    return e._replace(residual=asarray(np.ascontiguousarray(own), device=device))


def _resident(*operands: Any) -> bool:
    return any(isinstance(x.data if isinstance(x, ScaledArray) else x, DeviceArray) for x in operands)


def _multiply_chunks(a: Any, b: Any, plan: _Plan, epilogue: _Epilogue) -> npt.NDArray[Any]:
    """Multiply host operands in chunks; upload, product and download of different chunks overlap."""
    axis, devices, axes = _CUTS[plan.split], plan.devices, plan.axes
    out = np.empty(plan.shape, plan.dtype)
    least = max(block_step(x, along) for x, along in zip((a, b), axes, strict=True) if along)
    offsets = even_offsets(out.shape[axis], len(devices), least)

    def work(i: int) -> None:
        device, first, last = devices[i], offsets[i], offsets[i + 1]
        copies = Stream(device)
        whole: list[Any] = [
            asarray(x, device=device) if along is None else None
            for x, along in zip((a, b), axes, strict=True)
        ]
        nbytes = sum(x.nbytes for x, along in zip((a, b), axes, strict=True) if along is not None)
        step = max(1, _CHUNK_BYTES * out.shape[axis] // max(nbytes, 1))
        step = -(-step // least) * least
        made: list[tuple[DeviceArray, npt.NDArray[Any]]] = []
        with _hip.on_device(device):
            for low in range(first, last, step):
                high = min(low + step, last)
                x, y = (
                    full if along is None else asarray(cut(x, along, low, high), device=device, stream=copies)
                    for x, along, full in zip((a, b), axes, whole, strict=True)
                )
                part = epilogue.of(low, high) if plan.split == "n" else epilogue
                made.append((_multiply(x, y, None, part), sliced(out, axis, low, high)))
                if len(made) > 1:
                    product, target = made.pop(0)
                    product.get(target)
            for product, target in made:
                product.get(target)

    on_each(devices, work)
    return out


def _exchange_ranks(
    sent: DeviceArray, received: DeviceArray, plan: _Plan, ranges: _Ranges, comm: Any, timeout: float
) -> ShardedArray:
    """Send each rank this rank's sums of its rows, and add the sums of all ranks for our rows."""
    unit = math.prod(plan.shape) // max(plan.shape[-2], 1)  # floats per row
    with _hip.on_device(sent.device):
        _mpi.Ranks(_FUNCTION, comm, timeout).exchange_rows(sent, received, plan.rows, unit)
    return _reduce([received], plan, ranges, comm, timeout)


def _reduce(
    planes: list[DeviceArray], plan: _Plan, ranges: _Ranges, comm: Any, timeout: float
) -> ShardedArray:
    """Add the ranges of K on each device."""
    parts = []
    for i, each in enumerate(planes):
        with _hip.on_device(each.device):
            scales = None if ranges.scales is None else ranges.scales[i]
            after = _own_residual(ranges.after, plan.rows, plan.first, i, -2, each.device)
            parts.append(_add_planes(each, plan.dtype, after, scales, plan.rows[plan.first + i]))
    return ShardedArray(parts, plan.shape, -2, plan.rows, comm, timeout, plan.devices)


def _add_planes(
    planes: DeviceArray,
    dtype: np.dtype[Any],
    e: _Epilogue,
    scales: tuple[DeviceArray, DeviceArray] | None,
    first_row: int,
) -> DeviceArray:
    """Add the ranges of K, the first axis, in a fixed order, and apply the epilogue."""
    device, (ranges, *shape) = planes.device, planes.shape
    out = new((*shape[:-1], shape[-1] // (1 if e.glu is None else 2)), dtype, device, 0)
    if out.size == 0:
        return out
    vectors = [None if v is None else upload_async(np.asarray(v), device, 0) for v in (e.col_scale, e.bias)]
    col_scale, bias = (0 if v is None else v.ptr for v in vectors)
    bias_type = F32.dtype if vectors[1] is None else vectors[1].dtype
    a_scale, b_scale, per_row = 0, 0, (False, False)
    if scales is not None:
        for scale in scales:
            scale._block.begin_read(0)
        per_row = scales[0].size > 1, scales[1].size > 1
        a_scale, b_scale = scales[0].ptr + first_row * per_row[0] * F32.itemsize, scales[1].ptr
    with error_context(_FUNCTION):
        residual = 0 if e.residual is None else e.residual.ptr
        if residual:
            e.residual._block.begin_read(0)
        after = e.activation, e.glu, None if e.residual is None else e.residual.dtype
        sums = _reduction(device, ranges, math.prod(shape[:-1]), shape[-1], dtype, bias_type, per_row, after)
    sums.launch(0, (planes.ptr, out.ptr, a_scale, b_scale, col_scale, bias, nearest_float(e.alpha), residual))
    return out


@lru_cache(maxsize=256)
def _reduction(
    device: int,
    ranges: int,
    rows: int,
    columns: int,
    dtype: np.dtype[Any],
    bias: np.dtype[Any],
    per_row: tuple[bool, bool],  # whether a and b have a scale per row, and per column
    after: tuple[str | None, str | None, np.dtype[Any] | None],  # activation, glu, residual's type
) -> BoundLaunch:
    plane = 4 * rows * columns
    activation, glu, residual = after
    ldc = columns // 2 if glu else columns
    unused: dict[str, Any] = {
        **NO_SCALES,
        **NO_STAGES,
        "alpha_ptr": 0,
        "row_end": 0,
        "c_outer": 0,
        "c_inner": 0,
    }
    if any(after):
        unused |= {"staged": 1, "ldresidual": ldc, "activation": activation or 0, "glu": glu or 0}
        unused |= {"residual_type": 0 if residual is None else known_format(residual)}
    del unused["residual"]
    steps = {"a_scale_step": int(per_row[0]), "b_scale_step": int(per_row[1])}
    found = bind_tiles(
        device,
        "split_reduce",
        rows,
        columns,
        ("src", "dst", "a_scale", "b_scale", "col_scale", "bias", "alpha", "residual"),
        **{**unused, **steps},
        src_ld=columns,
        split_stride=plane,
        src_batch=plane,
        ldc=ldc,
        m=rows,
        n=columns,
        batch_inner=1,
        splits=ranges,
        out_type=known_format(dtype),
        bias_type=known_format(bias),
    )
    assert found is not None
    return found


_SUMS = _Epilogue(F32.dtype, 1.0, None, None)  # of a range of K


def _reshaped(x: DeviceArray, shape: tuple[int, ...], offset: int = 0) -> DeviceArray:
    """Contiguous memory as another shape, from an offset in bytes on."""
    return DeviceArray(x._block, x.ptr + offset, shape, contiguous_strides(shape, x.dtype.itemsize), x.dtype)


def _rows(x: Part, low: int, high: int) -> Part:
    if high - low == x.shape[-2]:
        return x
    found: Part = cut(x, -2, low, high)
    return found


class _Ranges(NamedTuple):
    """The products of the ranges of K: operands and epilogue of each, and of their sum."""

    a: Sequence[Part]
    b: Sequence[Part]
    each: _Epilogue
    after: _Epilogue
    scales: Sequence[tuple[DeviceArray, DeviceArray]] | None  # of a and b, applied to the sum; by part


def _ranges(a: ShardedArray, b: ShardedArray, e: _Epilogue) -> _Ranges:
    """Plan the ranges of K.

    With fp8 scales the sums of a range may leave float32's range although the result is in it. So scales that
    all ranges share are applied to the total, and of scales that differ the powers of two that they share.
    Where these are not known, each range is multiplied by the powers of two in alpha and col_scale, which is
    exact.
    """
    if any(not isinstance(x, ScaledArray) or x.in_blocks for x in (a.parts[0], b.parts[0])):
        return _Ranges(a.parts, b.parts, _SUMS, e, None)
    _check_spread(a, b)
    one, other = _without_common_scales(a), _without_common_scales(b)
    if one is not None and other is not None:
        (x_parts, x_scales), (y_parts, y_scales) = one, other
        return _Ranges(x_parts, y_parts, _SUMS, e, list(zip(x_scales, y_scales, strict=True)))
    alpha, power = _significand(np.float32(nearest_float(e.alpha)))
    vectors = (None, None) if e.col_scale is None else _significand(e.col_scale)
    each = _SUMS._replace(alpha=float(power), col_scale=vectors[1])
    return _Ranges(a.parts, b.parts, each, e._replace(alpha=float(alpha), col_scale=vectors[0]), None)


def _check_spread(a: ShardedArray, b: ShardedArray) -> None:
    """Refuse scales of parts that differ so much that float32 sums cannot hold the products of all parts."""
    spread = sum(0 if x.part_scales is None else x.part_scales.spread for x in (a, b))
    if spread > _MOST_SPREAD:
        required = f"scales of parts of K must differ by a factor of at most 2**{_MOST_SPREAD} in a and b"
        raise fault(ValueError, _FUNCTION, required, f"2**{spread}", "quantize all parts with the same amax")


def _without_common_scales(x: ShardedArray) -> tuple[list[Part], list[DeviceArray]] | None:
    """Parts without the scales, or powers of two in them, that all have; and these, for each part."""
    parts: list[Part] = []
    scales = []
    known, own = x.part_scales, []
    if known is None:
        whole: Any = x.parts
        if not (x.shares_scales and (x.ndim == 2 or not whole[0].scale.shape)):
            return None
        if not all(_is_dense(q.scale) for q in whole):
            return None
        own, scales = [np.ones((), F32.dtype)] * len(whole), [q.scale for q in whole]
    else:
        own = list(known.own)
    for q, scale in zip(x.parts, own, strict=True):
        assert isinstance(q, ScaledArray)
        assert q.device is not None
        with _hip.on_device(q.device):
            axis = x.axis if scale.ndim else None
            parts.append(q._with(q.data, upload_async(scale, q.device, 0), axis))
            if known is not None:
                scales.append(upload_async(known.powers, q.device, 0))
    return parts, scales


def _is_dense(scale: DeviceArray) -> bool:
    """Whether a kernel can read scales as one, or one per row."""
    return scale.size == 1 or scale.strides[scale.shape.index(scale.size)] == scale.dtype.itemsize


@on_host
def _significand(x: Any) -> tuple[Any, Any]:
    """Split float32 numbers: significands with magnitudes in [1, 2), and powers of two."""
    half, exponent = np.frexp(x)
    return half * np.float32(2), np.ldexp(np.float32(1), exponent - 1)


def _exchange_devices(
    a: ShardedArray, b: ShardedArray, rows: Sequence[int], ranges: _Ranges
) -> list[DeviceArray]:
    """For each device, the sums of all ranges for its rows. Everything is queued, without waiting."""
    count, columns, lead = len(a.parts), b.shape[-1], a.shape[:-2]
    planes = []
    several = set(a.devices) if len(set(a.devices)) > 1 else ()
    for i, device in enumerate(a.devices):
        planes.append(new((count, *lead, rows[i + 1] - rows[i], columns), F32.dtype, device, 0))
        if several:
            with _hip.on_device(device):
                _copies(device).arriving.wait(Event(device, timing=False).record())
    for i, (x, y) in enumerate(zip(ranges.a, ranges.b, strict=True)):
        # Its own rows last, since other devices wait for theirs.
        for owner in (*range(i + 1, count), *range(i + 1)):
            if rows[owner] == rows[owner + 1] or columns == 0:
                continue
            sums, part = planes[owner], _rows(x, rows[owner], rows[owner + 1])
            slot = _reshaped(sums, sums.shape[1:], i * sums.strides[0])
            if a.devices[owner] == a.devices[i]:
                _multiply(part, y, slot, ranges.each)
            else:
                with _hip.on_device(a.devices[i]):
                    _send(_multiply(part, y, None, ranges.each), slot)
    for device in several:
        with _hip.on_device(device):
            Event(device, timing=False).record(_copies(device).arriving).wait()
    return planes


@dataclass(frozen=True)
class _Copies:
    """Streams of a device for copies to and from other devices, concurrent with products."""

    leaving: Stream
    arriving: Stream


_all_copies: dict[int, _Copies] = {}


def _copies(device: int) -> _Copies:
    found = _all_copies.get(device)
    if found is None:
        found = _all_copies.setdefault(device, _Copies(Stream(device), Stream(device)))
    return found


def _send(source: DeviceArray, target: DeviceArray) -> None:
    """Queue a copy to another device, after the product that makes the source."""
    leaving, arriving = _copies(source.device).leaving, _copies(target.device).arriving
    source._block.begin_read(int(leaving))
    target._block.add_reader(int(arriving))  # in case it is deleted before all copies are complete
    ends = (target.ptr, target.device, int(arriving)), (source.ptr, source.device, int(leaving))
    _staging.copy_between_devices(*ends[0], *ends[1], source.nbytes)


def _own_sums(
    ranges: _Ranges, a: ShardedArray, rows: Sequence[int], rank: int
) -> tuple[DeviceArray, DeviceArray]:
    """A rank's sums of all rows, for each owner; and the buffer to receive those of its own rows."""
    x, y, device, lead = ranges.a[0], ranges.b[0], a.devices[0], a.shape[:-2]
    columns = y.shape[-1]
    unit = math.prod(lead) * columns
    with _hip.on_device(device):
        sent = new((rows[-1], unit), F32.dtype, device, 0)
        for low, high in pairwise(rows) if lead else [(0, rows[-1])]:
            if low < high and unit:
                shape = (*lead, high - low, columns)
                _multiply(_rows(x, low, high), y, _reshaped(sent[low:high], shape), ranges.each)
        received = new((len(rows) - 1, *lead, rows[rank + 1] - rows[rank], columns), F32.dtype, device, 0)
    return sent, received
