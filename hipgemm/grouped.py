"""The public products of groups of rows: one launch for all groups, whose tiles the device deals out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import _hip, _launch, _notes, _plan
from .array import DeviceArray, download, lend, new, queue_upload
from .errors import UnsupportedError, raise_reasons, told_by
from .formats import QUANTIZED
from .gemm import _bring_up_operand, _turn
from .grouped_problem import (
    GroupedProblem,
    describe_grouped_matmul,
    describe_grouped_wgrad,
    grouped_choices,
    operands,
    workgroups,
)
from .groups import group_slots
from .manifest import code_object
from .quantize import quantize_mxfp8
from .scaled import ScaledArray
from .support import leading
from .usage import count_call, count_copy, count_refused

Host = npt.NDArray[Any]
UNIT = 256  # rows of a group whose MX scales wgrad loads at once


def grouped_matmul(
    x: Any,
    w: Any,
    group_offsets: Host | DeviceArray,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    stream: Any = None,
) -> Any:
    """Multiply each group of rows with a matrix of its own: ``out[o[g]:o[g+1]] = x[o[g]:o[g+1]] @ w[g]``.

    One launch serves all groups. Offsets on the device are not read back. Sums are kept in float32, and
    the result is rounded once.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray or ScaledArray
        Rows (M, K) of bfloat16 or float16, or quantized along K.
    w : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (G, K, N), of the type of `x` or quantized alike (fp8 with one scale, one for each matrix
        or one for each column); ``w.mT`` of (G, N, K) and, but for MX, (G, K, N) itself are read in place.
    group_offsets : int32 array (G+1,)
        Where groups begin, from 0 on, not decreasing, at most M; on the host or the device. Rows at and
        behind the last one become 0.
    out : array, optional
        Where to put the result: (M, N), in the same place as `x`; not overlapping an input.
    dtype : dtype, optional
        bfloat16 (the default; float16 for such inputs), float16 or float32.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        (M, N), like the inputs. A DeviceArray comes back at once; `get` waits for it.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed; of offsets the index.
    UnsupportedError
        For arguments that are right but have no kernel; its `reasons` say why.
    HipError
        At the next wait, for wrong offsets on the device; nothing outside the arrays is touched.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> x = np.ones((4, 2), ml_dtypes.bfloat16)
    >>> w = np.arange(12).reshape(2, 3, 2).astype(ml_dtypes.bfloat16)
    >>> hg.grouped_matmul(x, w.swapaxes(1, 2), np.array([0, 1, 3], np.int32), dtype=np.float32)
    array([[ 1.,  5.,  9.],
           [13., 17., 21.],
           [13., 17., 21.],
           [ 0.,  0.,  0.]], dtype=float32)
    """
    return _run("grouped_matmul", describe_grouped_matmul, x, w, group_offsets, out, stream, {"dtype": dtype})


def grouped_wgrad(
    dy: Any,
    x: Any,
    group_offsets: Host | DeviceArray,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    recipe: str | None = None,
    accumulate: bool = False,
    stream: Any = None,
) -> Any:
    """Sum over the rows of each group: ``out[g] = dy[o[g]:o[g+1]].T @ x[o[g]:o[g+1]]``.

    The gradient of `grouped_matmul` with respect to the (G, N, K) storage of its weights. One launch serves
    all groups. Sums are kept in float32, and the result is rounded once.

    Parameters
    ----------
    dy, x : numpy.ndarray, DeviceArray or ScaledArray
        Rows (M, N) and (M, K) of bfloat16 or float16, or quantized alike along their first axis:
        `quantize_mxfp8` with ``axis=0, group_offsets=group_offsets`` for any offsets, without
        `group_offsets` for multiples of 32.
    group_offsets : int32 array (G+1,)
        As for `grouped_matmul`.
    out : array, optional
        Where to put the result: (G, N, K), in the same place as `x`; not overlapping an input.
    dtype : dtype, optional
        bfloat16 (the default; float16 for such inputs), float16 or float32.
    recipe : str, optional
        ``"mxfp8"`` quantizes bfloat16 and float16 operands in groups first; ``"bf16"`` multiplies them as
        they are, as does the default.
    accumulate : bool
        Add to what `out` holds, in float32 before rounding.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        (G, N, K), like the inputs: zeros for an empty group, or with `accumulate` what was there.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed; of offsets the index.
    UnsupportedError
        For arguments that are right but have no kernel; its `reasons` say why.
    HipError
        At the next wait, for wrong offsets on the device; nothing outside the arrays is touched.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> dy, x = np.ones((4, 1), ml_dtypes.bfloat16), np.ones((4, 2), ml_dtypes.bfloat16)
    >>> hg.grouped_wgrad(dy, x, np.array([0, 3, 3, 4], np.int32), dtype=np.float32)[:, 0]
    array([[3., 3.],
           [0., 0.],
           [1., 1.]], dtype=float32)
    """
    options = {"dtype": dtype, "recipe": recipe, "accumulate": accumulate}
    return _run("grouped_wgrad", describe_grouped_wgrad, dy, x, group_offsets, out, stream, options)


Describe = Callable[..., tuple[GroupedProblem | None, list[Any]]]


def _run(
    function: str, describe: Describe, a: Any, b: Any, offsets: Any, out: Any, stream: Any, options: Any
) -> Any:
    """Check, choose, and queue; for arrays on the host, bring them up and the result down."""
    handle = 0 if stream is None else _hip.stream_handle(function, stream)
    resident = isinstance(a, DeviceArray) or (isinstance(a, ScaledArray) and a.device is not None)
    if not resident and isinstance(offsets, DeviceArray):
        offsets = offsets.get()
    problem, reasons = describe(a, b, offsets, out, **options)
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        raise_reasons(function, reasons)  # before any device is opened
    assert problem is not None
    device = _hip.current_device() if problem.device is None else problem.device
    plan = _make_plan(problem, reasons, device)
    with _hip.on_device(device):
        if resident:
            if out is None:
                out = new(problem.shape, problem.out_format.dtype, device, handle)
            _execute(plan, *_quantized(a, b, offsets, options, handle), offsets, out, handle)
            return out
        result = np.empty(problem.shape, problem.out_format.dtype) if out is None else out
        if result.size == 0:
            return result
        try:
            first, second = (
                _up(x, turned, device, handle) for x, turned in zip((a, b), plan.turned, strict=True)
            )
            there = new(problem.shape, problem.out_format.dtype, device, handle)
            if problem.accumulate:
                queue_upload(result.reshape(-1), there.ptr, handle)
            _execute(plan, *_quantized(first, second, offsets, options, handle), offsets, there, handle)
            download(there.ptr, there.shape, there.strides, result, handle)
        except BaseException:
            _hip.quiesce(handle)  # or it would write into an array that is gone
            raise
    return result


def _up(x: Any, turned: bool, device: int, stream: int) -> Any:
    """Bring an operand up as (.., rows, K), the way the kernel names it, or `turned`."""
    if isinstance(x, ScaledArray) and x.group_offsets is not None:  # codes lie in the rows of the groups
        data, scale = _bring_up_operand(x.data.T, device, stream).T, lend(x.scale, device, stream)
        form = QUANTIZED[x.format]
        return ScaledArray._make(data, scale, form, -2, x.shape, group_offsets=x.group_offsets)
    if not turned:
        return _bring_up_operand(x, device, stream)
    return _bring_up_operand(_turn(x), device, stream).mT


def _quantized(a: Any, b: Any, offsets: Any, options: dict[str, Any], stream: int) -> tuple[Any, Any]:
    if options.get("recipe") != "mxfp8":
        return a, b
    one, other = (quantize_mxfp8(x, axis=0, group_offsets=offsets, stream=stream) for x in (a, b))
    return one, other


# ---- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GroupedPlan:
    """What is launched, over what."""

    problem: GroupedProblem
    kernel: _launch.Function
    workgroups: int
    sides: tuple[_plan.Side, ...]
    turned: tuple[bool, bool]  # operands that the call names the other way round
    leading: tuple[int, int]
    group_stride: int  # bytes between the matrices of groups in b
    scale_steps: tuple[int, int]
    scale_group_stride: int
    scaled: bool
    flop: int
    moved: int


def _make_plan(p: GroupedProblem, reasons: list[Any], device: int) -> _GroupedPlan:
    choice = None
    try:
        with told_by(p.op):
            kernels = code_object(_hip.arch(device)).kernels.values()
        found, unsupported = grouped_choices(p, kernels)
        raise_reasons(p.op, reasons + unsupported)
        choice = found[0]
    except UnsupportedError as error:
        count_refused(p.op, error.reasons)
        raise
    kernel = choice.kernel
    forward = p.op == "grouped_matmul"
    sides, steps, scale_steps, leadings = [], [], [], []
    for at, (name, x) in enumerate(zip(("x", "w") if forward else ("dy", "x"), operands(p), strict=True)):
        move, apart, ld = None, (0,) * (len(x.shape) - 2), leading(x, kernel, at)
        if p.rows and p.n and p.k and p.groups:
            move, apart, ld = _plan._operand(x, kernel, at)
        scales, scale_apart = None, apart
        if p.groups and x.scale_strides and not (x.format.block and not forward):
            scales, scale_apart = _plan._scales(x, p.k if forward else p.rows)
        sides.append(_plan.Side(name, move, scales))
        steps.append(apart)
        scale_steps.append(scale_apart)
        leadings.append(ld)
    item = p.out_format.itemsize
    operand_bytes = sum(math.prod(x.shape) * x.format.itemsize for x in (p.a, p.b))
    return _GroupedPlan(
        problem=p,
        kernel=_launch.function(device, kernel.name),
        workgroups=workgroups(p, kernel),
        sides=tuple(sides),
        turned=(not forward, True),
        leading=(leadings[0], leadings[1]),
        group_stride=steps[1][0] if forward else 0,
        scale_steps=_scale_rows(p, sides),
        scale_group_stride=scale_steps[1][0] if forward and p.groups and p.b.scale_strides else 0,
        scaled=p.a.format.scale_dtype is not None,
        flop=2 * p.rows * p.n * p.k,
        moved=operand_bytes + math.prod(p.shape) * item,
    )


def _scale_rows(p: GroupedProblem, sides: list[_plan.Side]) -> tuple[int, int]:
    """Return how many rows of scales lie from block to block, or for floats from row to row."""
    if p.op == "grouped_wgrad" and p.a.format.block:
        return _across_rows(p.n), _across_rows(p.k)
    first, second = (side.scales.step if side.scales else 0 for side in sides)
    return first, second


def _across_rows(rows: int) -> int:
    """Rows as scales count them for operands that lie across K (src_hip/scale_layout.hpp)."""
    return -(-rows // 64) * 64


# ---- execution: everything is queued on the stream, in order ---------------------------------------


def _execute(plan: _GroupedPlan, a: Any, b: Any, offsets: Any, out: DeviceArray, stream: int) -> None:
    """Queue the product. The device of all arrays is current."""
    p = plan.problem
    if out.size == 0:
        return
    device, item = out.device, p.out_format.itemsize
    temporaries: list[_hip.Block] = []
    if isinstance(offsets, DeviceArray):
        offsets._block.reading(stream)
        offsets_ptr = offsets.ptr
    else:
        lent = lend(np.asarray(offsets, np.int32), device, stream)
        temporaries.append(lent._block)
        offsets_ptr = lent.ptr
    empty = not (p.rows and p.k and p.groups)
    pointers = [0, 0] if empty else [
        _plan._read(side, x, stream, temporaries, p.op) for side, x in zip(plan.sides, (a, b), strict=True)
    ]  # fmt: skip
    scales: tuple[int, ...] = ()
    if plan.scaled:
        scales = (0, 0) if empty else tuple(
            _scales_of(plan, side, x, offsets_ptr, stream, temporaries)
            for side, x in zip(plan.sides, (a, b), strict=True)
        )  # fmt: skip
        scales = (*scales, *plan.scale_steps, plan.scale_group_stride)
    out._block.writing(stream)
    target, whole = out, out
    if not _rows_direct(out, plan):
        whole = new(out.shape, out.dtype, device, stream)
        target = whole
        temporaries.append(whole._block)
        if p.accumulate:
            _copy_matrices(out, whole, stream)
    rows, columns = out.shape[-2:]
    ldc = target.strides[-2] // item if rows > 1 else columns
    forward = p.op == "grouped_matmul"
    groups = 0 if forward and empty else p.groups
    _launch.launch(
        plan.kernel,
        plan.workgroups,
        stream,
        *pointers,
        target.ptr,
        offsets_ptr,
        _notes.place(p.op),
        *plan.leading,
        ldc,
        plan.group_stride if forward else target.strides[0],
        *((p.rows, p.n, p.k) if forward else (p.n, p.k, p.rows)),
        groups,
        _launch.TYPE_CODES[p.out_format.name],
        p.accumulate,
        *scales,
    )
    count_call(p.op, plan.kernel.name, plan.flop, plan.moved, "")
    if target is not out:
        count_copy(p.op, "out", "rows not contiguous", out.nbytes)
        _copy_matrices(whole, out, stream)


def _rows_direct(out: DeviceArray, plan: _GroupedPlan) -> bool:
    """Whether the kernel can store into `out` itself."""
    item = out.dtype.itemsize
    rows, columns = out.shape[-2:]
    if columns > 1 and out.strides[-1] != item:
        return False
    pitch = out.strides[-2] if rows > 1 else columns * item
    return pitch >= columns * item and plan.kernel.tile[0] * pitch < 2**31


def _copy_matrices(source: DeviceArray, target: DeviceArray, stream: int) -> None:
    rows, columns = source.shape[-2:]
    item = source.dtype.itemsize
    lead = source.shape[:-2]
    for index in np.ndindex(*lead):
        one, other = (
            x.ptr + sum(i * step for i, step in zip(index, x.strides, strict=False)) for x in (source, target)
        )
        _launch.copy_strided(
            source.device,
            stream,
            item,
            (one, source.strides[-2], source.strides[-1]),
            (other, target.strides[-2], target.strides[-1]),
            rows,
            columns,
        )


def _scales_of(
    plan: _GroupedPlan,
    side: _plan.Side,
    q: ScaledArray,
    offsets: int,
    stream: int,
    temporaries: list[_hip.Block],
) -> int:
    """Return where the kernel finds the scales of an operand."""
    p = plan.problem
    if p.op == "grouped_matmul" or not QUANTIZED[q.format].block:
        return _plan._read_scales(side, q, stream, temporaries, p.op)
    kept: tuple[_hip.Block, int] | None = q._kernel_scales.get("groups")
    if kept is not None and kept[0].ptr:
        kept[0].reading(stream)
        temporaries.append(kept[0])
        return kept[1]
    rows, columns = q.shape
    scale = q.scale
    step = _across_rows(columns)
    slots = group_slots(rows, p.groups, UNIT)
    block = _hip.allocate(slots * step * 8, scale.device, stream)
    temporaries.append(block)
    scale._block.reading(stream)
    kernel = _launch.function(scale.device, "mx_group_scale")
    words = 4 * step // 2
    _launch.launch(
        kernel,
        slots * -(-words // kernel.tile[0]),
        stream,
        scale.ptr,
        block.ptr,
        offsets,
        _notes.place(p.op),
        *scale.strides,
        rows,
        columns,
        p.groups,
        q.group_offsets is not None,
    )
    if q.group_offsets is not None:  # others may come with other offsets next time
        q._kernel_scales["groups"] = block, block.ptr
    return block.ptr
