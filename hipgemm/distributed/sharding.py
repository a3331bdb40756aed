"""Products of sharded arrays, on several devices or MPI ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import pairwise, product
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, new, upload_async
from ..config import config
from ..errors import Reason, UnsupportedError, error_context, fault, shown
from ..formats.arrays import array_hint, is_array, memory_as_array, on_host
from ..formats.elements import BF16, F32, QUANTIZED, Format, known_format, nearest_float
from ..formats.operand import Operand, Shaped, memory_of
from ..formats.operand_checks import INPUTS, OUTPUTS
from ..formats.scaled import ScaledArray
from ..formats.strides import contiguous_strides
from ..kernels.launch import BoundLaunch
from ..products.operation import MATMUL, Arguments
from ..products.plan import reduction, result_layout, stage_addresses
from ..products.problem import Problem, ProductChecks, describe
from ..products.run import run
from ..products.stages import Stages, scale_rule
from ..quantize.amax import AmaxState
from ..runtime import hip as _hip
from ..runtime import staging as _staging
from ..runtime.stream import Event, Stream
from . import mpi as _mpi
from .sharded_array import (
    Part,
    ShardedArray,
    array_device,
    assemble,
    block_step,
    cut,
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
    out: Any = None,
    *,
    split: Split,
    devices: Any = None,
    dtype: npt.DTypeLike | None = None,
    alpha: float = 1.0,
    col_scale: npt.NDArray[Any] | None = None,
    bias: npt.NDArray[Any] | None = None,
    accumulate: bool = False,
    residual: Any = None,
    activation: str | None = None,
    glu: str | None = None,
    aux: Any = None,
    out_format: str | None = None,
    out_scaling: str | None = None,
    out_amax: AmaxState | None = None,
    timeout: float | None = None,
) -> Any:
    """Multiply on several devices, or on all ranks of a communicator.

    Parameters
    ----------
    a, b : ShardedArray, numpy.ndarray or ScaledArray
        As for `matmul`. Operands that are not sharded are sharded as `split` requires.
    out : ShardedArray or numpy.ndarray, optional
        The destination: sharded as the result is, or on the host.
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
    accumulate, activation, glu, out_format, out_scaling
        As for `matmul`. With ``n`` a GLU must be ``"interleaved"``, and each part of `b` have an even number
        of columns; parts of a result in an MX format begin at multiples of 32 columns.
    residual, aux : ShardedArray or numpy.ndarray, optional
        As for `matmul`: sharded as the result and the product are, with contiguous parts, or on the host.
    out_amax : AmaxState, optional
        As for `matmul`, on any device; it collects the amax over all parts. With a communicator each rank
        passes its own, with the same `current`.
    timeout : float, optional
        Seconds to wait for other ranks. Default: that of the sharded operands, or 300.

    Returns
    -------
    ShardedArray, numpy.ndarray or ScaledArray
        On the host if neither operand is sharded. `out` if that is given. Parts are quantized with
        `out_format`.

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
    adds the ranges in a fixed order, applies scales, alpha, col_scale, bias and what follows, and rounds
    once, so results are reproducible. With a communicator, all of its ranks must make the call: see
    docs/use/sharding.md.

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
    more = residual, activation, glu, aux, out_format, out_scaling, out_amax
    call = Arguments(a, b, out, dtype, alpha, col_scale, bias, None, None, accumulate, *more)
    key = None
    if type(a) is type(b) is ShardedArray and devices is None and timeout is None:
        key = _key(call, split)
        known = _plans.get(key)
        if known is not None and not (a.freed or b.freed):
            return _multiply_parts(call, known, None, min(a.timeout, b.timeout))
    given = [x for x in (a, b) if isinstance(x, ShardedArray)]
    comm = _communicator(call, devices)
    wait = min((x.timeout for x in given), default=_mpi.TIMEOUT) if timeout is None else timeout

    def start() -> tuple[str, tuple[Arguments, Any]]:
        """The local part of the call; its errors are reported on all ranks."""
        plan = _planned(ProductChecks(_FUNCTION), call, split, devices, wait)
        text = "" if comm is None else _words(call, plan)
        if not (given or split == "k" or comm is not None or _resident(a, b) or plan.staged):
            return text, (call, _multiply_chunks(call, plan))
        placed = _placed(call, plan, comm, wait)
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        if key is not None:
            _plans[key] = plan
        if split == "k" and comm is not None:
            ranges = _ranges(placed)
            sums = _own_sums(ranges, plan.made_at, comm.Get_rank())
            return text, (placed, partial(_exchange_ranks, *sums, plan, ranges, comm, wait))
        return text, (placed, _multiply_parts(placed, plan, comm, wait))

    ranks = None if comm is None else _mpi.Ranks(_FUNCTION, comm, wait)
    placed, made = start()[1] if ranks is None else ranks.agree(start)
    result = made() if isinstance(made, partial) else made
    if ranks is not None and out_amax is not None:
        every = ranks.all_gather(out_amax.next.get()[None], 0, range(ranks.comm.Get_size() + 1))
        out_amax._merge(upload_async(np.max(every, axis=0), out_amax.device, 0))
    if isinstance(aux, np.ndarray):
        aux[...] = placed.aux.get()
    if isinstance(out, np.ndarray) and result is not out:
        out[...] = result.get()
    if out is not None:
        return out
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


def _of_columns(call: Arguments, low: int, high: int) -> Arguments:
    """The call for a range of columns."""
    col_scale, bias = (None if x is None else x[low:high] for x in (call.col_scale, call.bias))
    return call._replace(col_scale=col_scale, bias=bias)


@dataclass(frozen=True)
class _Plan:
    """The plan of a product, after all checks."""

    split: str
    axes: tuple[int | None, int | None]  # along which the operands are split
    offsets: tuple[tuple[int, ...], tuple[int, ...]]  # of their parts
    devices: tuple[int, ...]  # of this process's parts
    dtype: np.dtype[Any]  # of the result, unless it is quantized
    shape: tuple[int, ...]  # of the result
    product_at: tuple[int, ...]  # offsets of the parts of the product
    made_at: tuple[int, ...]  # offsets of the parts of the result: fewer columns with a GLU
    first: int  # the index of this process's first part
    staged: bool  # whether there are arrays of the result's parts, or options for them


_plans: dict[Any, _Plan] = {}  # for operands that are sharded over devices of this process
_MAX_PLANS = 1024


def _key(call: Arguments, split: Any) -> Any:
    """The cache key: everything that a plan and its checks depend on; None if values must be checked too."""
    a, b, out, dtype, alpha, col_scale, bias, *_ = call
    if out is not None or call.staged:
        return None
    try:
        vectors = tuple([None if x is None else (type(x), x.shape, x.dtype) for x in (col_scale, bias)])
        key = a.key, b.key, split, dtype, vectors
        hash(key)
    except (AttributeError, TypeError):  # invalid arguments, which the checks report
        return None
    known = type(alpha) is float and abs(alpha) < F32.maximum
    return key if known and a.comm is None and b.comm is None else None


def _communicator(call: Arguments, devices: Any) -> Any:
    """The communicator of a call; None if all devices are those of this process."""
    given = [x.comm for x in (call.a, call.b) if isinstance(x, ShardedArray) and x.comm is not None]
    return given[0] if given else devices if _mpi.is_communicator(devices) else None


def _planned(faults: ProductChecks, call: Arguments, split: Any, devices: Any, timeout: Any) -> _Plan:
    """Check a call, and plan how operands are split; raise if there are faults."""
    a, b, comm = call.a, call.b, _communicator(call, devices)
    if not isinstance(split, str) or split not in _CUTS:
        faults.add(ValueError, "option", "split must be m, n, k or batch", shown(split))
        split = ""
    faults.seconds(timeout)
    if comm is not None:
        faults.value_or(config.find("mpi_gpu"), False)  # an invalid value is an error on all ranks
    dtype, step = _check_operands(faults, call, split)
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
            least = max(block_step(x, axis), step if split == "n" else 1)
            if split == "k":
                least = max(block_step(y, along) for y, along in zip((a, b), axes, strict=True) if along)
            found.append(even_offsets(x.shape[axis], count, least))
    if split in ("k", "batch") and None not in axes and found[0] != found[1] and not faults.found:
        required = "a and b must be split at the same offsets"
        advice = "pass sizes= to hipgemm.shard"
        faults.add(ValueError, "offsets", required, f"{found[0]} and {found[1]}", advice)
    full: tuple[int, ...] = (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])
    columns = full[-1] // (1 if call.glu is None else 2)
    if split == "n" and any(at % step and at != full[-1] for at in found[1]):
        required = "each part of b must have an even number of columns with glu"
        if step > 2:
            required = f"each part of b but the last must have a multiple of {step} columns for blocks of 32"
        faults.add(ValueError, "offsets", required, found[1])
    made_at = product_at = found[split == "n"]
    if split == "k":
        one: Any = a.parts[0] if isinstance(a, ShardedArray) else a
        made_at = product_at = even_offsets(a.shape[-2], count, block_step(one, -2))
    elif split == "n" and call.glu is not None:
        made_at = tuple(at // 2 for at in product_at)
    where = _CUTS[split], numbers, comm
    for name, x in (("residual", call.residual), ("out", call.out)):
        _check_array(faults, name, x, (*full[:-1], columns), made_at, *where)
    _check_array(faults, "aux", call.aux, full, product_at, *where)
    _check_apart(faults, call)
    faults.raise_all()
    return _Plan(
        split,
        axes,
        (found[0], found[1]),
        numbers,
        dtype,
        (*full[:-1], columns),
        product_at,
        made_at,
        0 if comm is None else comm.Get_rank(),
        call.staged or isinstance(call.out, ShardedArray),
    )


def describe_part(
    call: Arguments, split: Any, devices: Any, timeout: Any
) -> tuple[Problem | None, list[Reason], tuple[str, ...]]:
    """Describe the product of this process's first part, or every fault. Runs nothing.

    Returns
    -------
    problem, reasons, later
        As `describe` does; and the arguments for what is applied where ranges of K are added.
    """
    faults = ProductChecks(_FUNCTION)
    try:
        plan = _planned(faults, call, split, devices, _mpi.TIMEOUT if timeout is None else timeout)
    except (TypeError, ValueError, UnsupportedError):
        if not faults.found:
            raise
        return None, faults.found, ()

    def first(x: Any, axis: int | None, at: Sequence[int]) -> Any:
        if isinstance(x, ShardedArray):
            return x.parts[0]
        return x if x is None or axis is None else cut(x, axis, *at[plan.first : plan.first + 2])

    a = first(call.a, plan.axes[0], plan.offsets[0])
    b = first(call.b, plan.axes[1], plan.offsets[1])
    later: tuple[str, ...] = ()
    part = Arguments(a, b, dtype=F32.dtype)
    if split == "k":
        part = part._replace(a=cut(a, -2, *plan.made_at[plan.first : plan.first + 2]))
        names = "activation", "glu", "aux", "residual", "out_format"
        later = tuple(name for name in names if getattr(call, name) is not None)
        later += ("accumulate",) if call.accumulate else ()
    else:
        part = _part_of_columns(call, plan, 0)._replace(a=a, b=b)
        for name, at in (("out", plan.made_at), ("residual", plan.made_at), ("aux", plan.product_at)):
            part = part._replace(**{name: first(getattr(call, name), _CUTS[split], at)})
    if len({array_device(x) is None for x in part if isinstance(x, Shaped)}) > 1:
        part = Arguments(*map(_as_on_host, part))
    return *describe(MATMUL, part), later


def _as_on_host(x: Any) -> Any:
    """An array on a device, described as one on the host; its memory is not read."""
    if isinstance(x, ScaledArray):
        return x._with(_as_on_host(x.data), _as_on_host(x.scale))
    if not isinstance(x, DeviceArray):
        return x
    return memory_as_array(x.ptr, x.shape, x.strides, f"|V{x.dtype.itemsize}").view(x.dtype)


def _words(call: Arguments, plan: _Plan) -> str:
    """A description of the call, which must be equal on all ranks."""
    a, b = call.a, call.b
    kinds = " and ".join(("sharded " if isinstance(x, ShardedArray) else "") + named(x) for x in (a, b))
    vectors = {"col_scale": call.col_scale, "bias": call.bias}
    types = (f"{name} {'none' if x is None else x.dtype}" for name, x in vectors.items())
    options = f"split={plan.split}, to {plan.dtype}, alpha={call.alpha}, {', '.join(types)}"
    if plan.staged or call.out is not None:
        arrays = {name: getattr(call, name) for name in ("out", "residual", "aux", "out_amax")}
        options += "".join(
            f", {name} {'none' if x is None else type(x).__name__}" for name, x in arrays.items()
        )
        names = "accumulate", "activation", "glu", "out_format", "out_scaling"
        options += "".join(f", {name}={getattr(call, name)}" for name in names)
    return f"{kinds}, {options}, split at {plan.offsets}"


def _check_operands(faults: ProductChecks, call: Arguments, split: Any) -> tuple[np.dtype[Any], int]:
    """Check operands as `matmul` does, and what follows.

    Returns
    -------
    dtype, step
        The result's type; and of how many columns parts of B must be multiples.
    """
    a, b = call.a, call.b
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
    for name, x in (("residual", call.residual), ("out", call.out), ("aux", call.aux)):
        if x is not None and not isinstance(x, (ShardedArray, np.ndarray)):
            faults.wrong_type(name, "a ShardedArray or numpy.ndarray", x, array_hint(x))
    out = call.out.parts[0] if isinstance(call.out, ShardedArray) else call.out
    target = faults.matrix("out", out, OUTPUTS) if isinstance(out, (np.ndarray, DeviceArray)) else None
    form = faults.out_format(call.dtype, target, operands[0] if operands else None) or BF16
    faults.alpha(call.alpha)
    faults.vector("col_scale", call.col_scale, (F32,), columns)
    faults.vector("bias", call.bias, OUTPUTS, columns)
    faults.accumulation(call.accumulate, call.out)
    quantized = faults.stage_options(call, None)
    if call.glu is not None and columns is not None and columns % 2:
        faults.add(ValueError, "shape", "N must be even with glu", columns)
    if split == "n" and isinstance(call.glu, str) and call.glu == "halves":
        required = "glu must be interleaved for split=n, whose parts hold gates with their ups"
        faults.add(UnsupportedError, "stages", required, "halves")
    for name, x in (("alpha", call.alpha), ("col_scale", call.col_scale), ("bias", call.bias)):
        if isinstance(x, DeviceArray):
            required = f"{name} must be on the host"
            faults.add(TypeError, "residency", required, f"an array on device {x.device}")
    step = (1 if call.glu is None else 2) * (quantized.block or 1 if quantized else 1)
    return form.dtype, step


def _check_array(
    faults: ProductChecks,
    name: str,
    x: Any,
    shape: tuple[int, ...],
    offsets: tuple[int, ...],
    axis: int,
    devices: tuple[int, ...],
    comm: Any,
) -> None:
    """Check an array of the result's shape or the product's: on the host, or sharded as that is."""
    if isinstance(x, ShardedArray):
        if not faults.in_memory(name, x):
            return
        if isinstance(x.parts[0], ScaledArray):
            faults.wrong_type(name, "not quantized", x)
            return
        if name != "out":
            faults.matrix(name, x.parts[0], OUTPUTS)
        parts: Any = x.parts
        if any(part.strides != contiguous_strides(part.shape, part.dtype.itemsize) for part in parts):
            faults.add(ValueError, "stride", f"parts of {name} must be contiguous", repr(x))
        if (x.axis, x.offsets, x.devices, x.comm) != (axis, offsets, devices, comm):
            what = "product" if name == "aux" else "result"
            required = f"{name} must be sharded as the {what}, at {offsets} of axis {axis}"
            faults.add(ValueError, "offsets", required, repr(x))
    elif isinstance(x, np.ndarray):
        if name != "out":
            faults.matrix(name, x, OUTPUTS)
        if name != "residual":
            faults.writeable(x, name)
    if x is not None:
        faults.same_shape(name, x.shape, shape)


def _check_apart(faults: ProductChecks, call: Arguments) -> None:
    """Check that what is written shares no memory with another array, but `out` with `residual`."""
    if faults.found:
        return

    def memory(x: Any) -> list[Operand]:
        return [y for part in (x.parts if isinstance(x, ShardedArray) else (x,)) for y in memory_of(part)]

    inputs = {name: getattr(call, name) for name in ("a", "b", "col_scale", "bias", "residual")}
    for name, others in (("out", inputs), ("aux", inputs | {"out": call.out})):
        written = getattr(call, name)
        for other, x in others.items() if written is not None else ():
            if not (name == "out" and other == "residual" and x is written):
                known = len(faults.found)
                for one, two in product(memory(written), memory(x)):
                    faults.disjoint(name, one, **{other: two})
                    if len(faults.found) > known:
                        break


def _check_shapes(faults: ProductChecks, a: tuple[int, ...], b: tuple[int, ...], split: Any) -> None:
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
    faults: ProductChecks, a: Any, b: Any, known: ShardedArray | None, devices: Any
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


def _multiply(x: Part, y: Part, out: DeviceArray | None, call: Arguments) -> Any:
    """Multiply two parts as `matmul` does; the rest as in `call`."""
    stages = call.stages if any(z is not None for z in call.stages) else None
    with error_context(_FUNCTION):
        return run(MATMUL, x, y, out, *call[3:7], accumulate=call.accumulate, stages=stages)


def _placed(call: Arguments, plan: _Plan, comm: Any, timeout: float) -> Arguments:
    """The call with all arrays on their devices; those of the result sharded as it is."""
    where = plan.devices, comm, timeout
    first, second = (
        x if isinstance(x, ShardedArray) else split_array(x, axis, offsets, *where)
        for x, axis, offsets in zip((call.a, call.b), plan.axes, plan.offsets, strict=True)
    )
    call = call._replace(a=first, b=second)
    if isinstance(call.out, np.ndarray) and not call.accumulate:
        call = call._replace(out=None, dtype=plan.dtype)  # nothing is read from it
    axis = _CUTS[plan.split]

    def part(x: npt.NDArray[Any], at: Sequence[int], i: int, filled: bool) -> DeviceArray:
        own = sliced(x, axis, at[plan.first + i], at[plan.first + i + 1])
        if filled:
            return asarray(np.ascontiguousarray(own), device=plan.devices[i])
        return new(own.shape, x.dtype, plan.devices[i], 0)

    for name, at in (("out", plan.made_at), ("residual", plan.made_at), ("aux", plan.product_at)):
        x = getattr(call, name)
        if isinstance(x, np.ndarray):
            parts = on_each(plan.devices, partial(part, x, at, filled=name != "aux"))
            call = call._replace(**{name: ShardedArray(parts, x.shape, axis, at, *where[1:])})
    return call


def _part_of_columns(call: Arguments, plan: _Plan, i: int) -> Arguments:
    at = plan.first + i
    return _of_columns(call, plan.product_at[at], plan.product_at[at + 1]) if plan.split == "n" else call


def _part(call: Arguments, plan: _Plan, i: int, states: dict[int, AmaxState]) -> Arguments:
    """What follows the product of part i of this process."""
    call = _part_of_columns(call, plan, i)
    if not plan.staged and call.out is None:
        return call
    out, residual, aux = (None if x is None else x.parts[i] for x in (call.out, call.residual, call.aux))
    state = None if call.out_amax is None else states[call.a.devices[i]]
    return call._replace(out=out, residual=residual, aux=aux, out_amax=state)


@contextmanager
def _states(call: Arguments, devices: Sequence[int]) -> Iterator[dict[int, AmaxState]]:
    """The state of `out_amax` on each device; it gets the amax of all of them."""
    state: AmaxState | None = call.out_amax
    if state is None:
        yield {}
        return
    states = {device: state._copy_on(device) for device in {*devices} - {state.device}}
    yield {state.device: state, **states}
    for copy in states.values():
        state._merge(copy.next)


def _sharded(parts: Sequence[Part], call: Arguments, plan: _Plan, comm: Any, timeout: float) -> ShardedArray:
    """The result, of these parts."""
    shares_scales = call.out_format is not None
    where = _CUTS[plan.split], plan.made_at, comm, timeout, plan.devices
    return ShardedArray(parts, plan.shape, *where, shares_scales)


def _multiply_parts(call: Arguments, plan: _Plan, comm: Any, timeout: float) -> ShardedArray:
    """Multiply the parts; for ``k`` between devices of one process also add the ranges of K."""
    if plan.split == "k":
        ranges = _ranges(call)
        return _reduce(_exchange_devices(ranges, plan.made_at), plan, ranges, comm, timeout)
    parts = []
    with _states(call, plan.devices) as states:
        for i, (x, y) in enumerate(zip(call.a.parts, call.b.parts, strict=True)):
            part = _part(call, plan, i, states)
            parts.append(_multiply(x, y, part.out, part))
    return _sharded(parts, call, plan, comm, timeout)


def _resident(*operands: Any) -> bool:
    return any(isinstance(x.data if isinstance(x, ScaledArray) else x, DeviceArray) for x in operands)


def _multiply_chunks(call: Arguments, plan: _Plan) -> npt.NDArray[Any]:
    """Multiply host operands in chunks; upload, product and download of different chunks overlap."""
    a, b, axis, devices, axes = call.a, call.b, _CUTS[plan.split], plan.devices, plan.axes
    out: npt.NDArray[Any] = np.empty(plan.shape, plan.dtype) if call.out is None else call.out
    call = call._replace(dtype=plan.dtype)
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
                part = _of_columns(call, low, high) if plan.split == "n" else call
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
    unit = sent.shape[-1]  # floats per row
    with _hip.on_device(sent.device):
        _mpi.Ranks(_FUNCTION, comm, timeout).exchange_rows(sent, received, plan.made_at, unit)
    return _reduce([received], plan, ranges, comm, timeout)


def _reduce(
    planes: list[DeviceArray], plan: _Plan, ranges: _Ranges, comm: Any, timeout: float
) -> ShardedArray:
    """Add the ranges of K on each device."""
    parts, call = [], ranges.after
    with _states(call, plan.devices) as states:
        for i, each in enumerate(planes):
            with _hip.on_device(each.device):
                scales = None if ranges.scales is None else ranges.scales[i]
                part = _part(call, plan, i, states)
                parts.append(_add_planes(each, plan.dtype, part, scales, plan.made_at[plan.first + i]))
    return _sharded(parts, call, plan, comm, timeout)


def _add_planes(
    planes: DeviceArray,
    dtype: np.dtype[Any],
    call: Arguments,
    scales: tuple[DeviceArray, DeviceArray] | None,
    first_row: int,
) -> Part:
    """Add the ranges of K, the first axis, in a fixed order, and do what follows."""
    device, (ranges, *lead, columns) = planes.device, planes.shape
    shape = (*lead, columns // (1 if call.glu is None else 2))
    vectors = [
        None if v is None else upload_async(np.asarray(v), device, 0) for v in (call.col_scale, call.bias)
    ]
    col_scale, bias = (0 if v is None else v.ptr for v in vectors)
    a_scale, b_scale, steps = 0, 0, (0, 0)
    if scales is not None:
        for scale in scales:
            scale._block.begin_read(0)
        steps = int(scales[0].size > 1), int(scales[1].size > 1)
        a_scale, b_scale = scales[0].ptr + first_row * steps[0] * F32.itemsize, scales[1].ptr
    types = tuple(
        [None if x is None else known_format(x.dtype) for x in (vectors[1], call.aux, call.residual)]
    )
    options = call.activation, call.glu, call.out_format, call.out_scaling, bool(call.accumulate)
    with error_context(_FUNCTION):
        shape_and_types = math.prod(lead), columns, known_format(dtype), types, options
        problem, sums = _reduction(device, ranges, steps, *shape_and_types)
    made: Part
    if problem.out_format.scale_dtype is not None:
        layout = result_layout(problem.out_format, shape)
        made, (out, out_scale, own_amax) = layout.allocate(device, 0)
    else:
        made = new(shape, dtype, device, 0) if call.out is None else call.out
        made._block.begin_write(0)
        out, out_scale, own_amax = made.ptr, 0, 0
    if sums is None:
        return made
    ends: tuple[int, ...] = ()
    if problem.stages is not None:
        ends = stage_addresses(call.aux, call.residual, call.out_amax, out_scale, own_amax, 0)
    alpha = nearest_float(call.alpha)
    sums.launch(0, (planes.ptr, out, 0, col_scale, bias, a_scale, b_scale, alpha, *ends, 0))
    if call.out_amax is not None:
        call.out_amax._update(own_amax, 0)
    return made


@lru_cache(maxsize=256)
def _reduction(
    device: int,
    ranges: int,
    steps: tuple[int, int],  # of the scales of a and b
    rows: int,
    columns: int,
    out_format: Format,
    types: tuple[Format | None, Format | None, Format | None],  # of bias, aux and residual
    options: tuple[str | None, str | None, str | None, str | None, bool],
) -> tuple[Problem, BoundLaunch | None]:
    """A product whose sums are known, and the launch of what follows; none if the result is empty."""
    activation, glu, quantized, scaling, accumulate = options

    def contiguous(form: Format, *shape: int) -> Operand:
        return Operand(shape, contiguous_strides(shape, form.itemsize), form, 0, device)

    bias, of_aux, of_residual = types
    made = rows, columns // (1 if glu is None else 2)
    aux = None if of_aux is None else contiguous(of_aux, rows, columns)
    residual = None if of_residual is None else contiguous(of_residual, *made)
    stages = None
    if any(x is not None for x in (activation, glu, quantized, aux, residual)):
        form = None if quantized is None else QUANTIZED[quantized]
        stages = Stages(activation, glu, aux, residual, form, scale_rule(form, scaling))
        out_format = form or out_format
    a, b = (contiguous(F32, n, 0) for n in (rows, columns))
    out = contiguous(out_format, *made)
    problem = Problem(MATMUL, rows, columns, 0, a, b, out, out_format, bias=bias)
    problem = replace(problem, accumulate=accumulate, stages=stages)
    return problem, reduction(problem, ranges, device, steps)


_SUMS = Arguments(None, None, dtype=F32.dtype)  # of a range of K


def _reshaped(x: DeviceArray, shape: tuple[int, ...], offset: int = 0) -> DeviceArray:
    """Contiguous memory as another shape, from an offset in bytes on."""
    return DeviceArray(x._block, x.ptr + offset, shape, contiguous_strides(shape, x.dtype.itemsize), x.dtype)


def _rows(x: Part, low: int, high: int) -> Part:
    if high - low == x.shape[-2]:
        return x
    found: Part = cut(x, -2, low, high)
    return found


class _Ranges(NamedTuple):
    """The products of the ranges of K: operands, what follows each, and what follows their sum."""

    a: Sequence[Part]
    b: Sequence[Part]
    each: Arguments
    after: Arguments  # the call
    scales: Sequence[tuple[DeviceArray, DeviceArray]] | None  # of a and b, applied to the sum; by part


def _ranges(call: Arguments) -> _Ranges:
    """Plan the ranges of K.

    With fp8 scales the sums of a range may leave float32's range although the result is in it. So scales that
    all ranges share are applied to the total, and of scales that differ the powers of two that they share.
    Where these are not known, each range is multiplied by the powers of two in alpha and col_scale, which is
    exact.
    """
    a, b = call.a, call.b
    if any(not isinstance(x, ScaledArray) or x.in_blocks for x in (a.parts[0], b.parts[0])):
        return _Ranges(a.parts, b.parts, _SUMS, call, None)
    _check_spread(a, b)
    one, other = _without_common_scales(a), _without_common_scales(b)
    if one is not None and other is not None:
        (x_parts, x_scales), (y_parts, y_scales) = one, other
        return _Ranges(x_parts, y_parts, _SUMS, call, list(zip(x_scales, y_scales, strict=True)))
    alpha, power = _significand(np.float32(nearest_float(call.alpha)))
    vectors = (None, None) if call.col_scale is None else _significand(call.col_scale)
    each = _SUMS._replace(alpha=float(power), col_scale=vectors[1])
    after = call._replace(alpha=float(alpha), col_scale=vectors[0])
    return _Ranges(a.parts, b.parts, each, after, None)


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


def _exchange_devices(ranges: _Ranges, rows: Sequence[int]) -> list[DeviceArray]:
    """For each device, the sums of all ranges for its rows. Everything is queued, without waiting."""
    a, b = ranges.after.a, ranges.after.b
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


def _own_sums(ranges: _Ranges, rows: Sequence[int], rank: int) -> tuple[DeviceArray, DeviceArray]:
    """A rank's sums of all rows, for each owner; and the buffer to receive those of its own rows."""
    a = ranges.after.a
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
