"""The public products of groups of rows: one launch for all groups, whose tiles the device deals out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, download, lend, new, queue_upload
from ..errors import Reason, UnsupportedError, raise_reasons, told_by
from ..formats.elements import BLOCK, QUANTIZED, Format
from ..formats.groups import group_slots, in_order, same_offsets
from ..formats.scaled import ScaledArray
from ..formats.strides import byte_range
from ..kernels import launch as _launch
from ..kernels.manifest import code_object
from ..kernels.scale_layout import group_scale_bytes, group_scale_step
from ..quantize.quantizers import quantize_mxfp8
from ..runtime import device_errors as _notes
from ..runtime import hip as _hip
from ..runtime.tally import count_call, count_copy, count_refused
from . import plan as _plan
from .choose import leading
from .grouped_problem import (
    GroupedProblem,
    describe_grouped_matmul,
    describe_grouped_wgrad,
    direct,
    grouped_choices,
    operands,
    workgroups,
)
from .matmul import _MAX_PLANS, _bring_up_operand, _operand_key, _plans, _turn

Host = npt.NDArray[Any]
_SCALE_STEPS = ("a_scale_step", "b_scale_step", "scale_group_stride")
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
    return _run("grouped_matmul", x, w, group_offsets, out, stream, {"dtype": dtype})


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
    return _run("grouped_wgrad", dy, x, group_offsets, out, stream, options)


@dataclass(frozen=True, slots=True)
class _Call:
    """One call, as it was made."""

    function: str
    a: Any
    b: Any
    offsets: Any
    out: Any
    options: dict[str, Any]

    @property
    def resident(self) -> bool:
        """Whether its matrices are on a device."""
        return isinstance(self.a, DeviceArray) or (
            isinstance(self.a, ScaledArray) and self.a.device is not None
        )

    def describe(self) -> tuple[GroupedProblem | None, list[Reason]]:
        """Describe it, every fault included."""
        return _DESCRIBE[self.function](self.a, self.b, self.offsets, self.out, **self.options)


_DESCRIBE: dict[str, Callable[..., tuple[GroupedProblem | None, list[Reason]]]] = {
    "grouped_matmul": describe_grouped_matmul,
    "grouped_wgrad": describe_grouped_wgrad,
}


def _run(function: str, a: Any, b: Any, offsets: Any, out: Any, stream: Any, options: dict[str, Any]) -> Any:
    """Check, choose, and queue."""
    handle = 0 if stream is None else _hip.stream_handle(function, stream)
    call = _Call(function, a, b, offsets, out, options)
    if not call.resident:
        return _on_host(call, handle)
    plan = _plan_of(call)
    if out is None:
        out = new(plan.shape, plan.out_format.dtype, a.device, handle)
    if _hip.runtime().devices == 1:
        _execute(plan, *_quantized(a, b, call, handle), offsets, out, handle)
    else:
        with _hip.on_device(out.device):
            _execute(plan, *_quantized(a, b, call, handle), offsets, out, handle)
    return out


def _on_host(call: _Call, stream: int) -> Host:
    """Bring operands up and the result down; nothing is pending when this returns."""
    if isinstance(call.offsets, DeviceArray):
        call = replace(call, offsets=call.offsets.get())
    problem, reasons = call.describe()
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        raise_reasons(call.function, reasons)  # before any device is opened
    assert problem is not None
    device = _hip.current_device()
    plan = _make_plan(problem, reasons, device)
    result: Host = np.empty(plan.shape, plan.out_format.dtype) if call.out is None else call.out
    if result.size == 0:
        return result
    with _hip.on_device(device):
        try:
            a, b = _up(call.a, plan.turned[0], device, stream), _up(call.b, plan.turned[1], device, stream)
            there = new(plan.shape, plan.out_format.dtype, device, stream)
            if plan.accumulate:
                queue_upload(result.reshape(-1), there.ptr, stream)
            resident = replace(call, a=a, b=b, out=there)  # scales lie otherwise there than on the host
            _execute(_plan_of(resident), *_quantized(a, b, call, stream), call.offsets, there, stream)
            download(there.ptr, there.shape, there.strides, result, stream)
        except BaseException:
            _hip.quiesce(stream)  # or it would write into an array that is gone
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


def _quantized(a: Any, b: Any, call: _Call, stream: int) -> tuple[Any, Any]:
    """Quantize in groups first, if that is the recipe."""
    if call.options.get("recipe") != "mxfp8":
        return a, b
    one, other = (quantize_mxfp8(x, axis=0, group_offsets=call.offsets, stream=stream) for x in (a, b))
    return one, other


# ---- plans -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _GroupedPlan:
    """All about a call but addresses and offsets: what is launched, over what."""

    function: str
    shape: tuple[int, ...]  # of the result
    out_format: Format
    rows: int
    groups: int
    accumulate: bool
    whole_blocks: bool  # whether groups must begin at a block of operands that do not heed them
    kernel: _launch.Function
    workgroups: int
    note: int  # where the kernel leaves word of offsets that are wrong
    sides: tuple[_plan.Side, _plan.Side]
    turned: tuple[bool, bool]  # operands that the call names the other way round
    empty: bool  # nothing is read
    direct: bool  # the kernel stores into the output itself
    layout: dict[str, _launch.Value]  # arguments of a launch but addresses
    scales: dict[str, _launch.Value]  # and those of scales; empty without
    flop: int
    moved: int
    ranges: tuple[tuple[int, int], ...]  # bytes that a, b and out span, from their addresses

    def may_overlap(self, a: DeviceArray, b: DeviceArray, out: DeviceArray) -> bool:
        """Whether what `out` spans meets what an operand spans."""
        low, high = self.ranges[2]
        low, high = out.ptr + low, out.ptr + high
        return any(
            x.ptr + first < high and low < x.ptr + last
            for x, (first, last) in zip((a, b), self.ranges, strict=False)
        )


def _plan_of(call: _Call) -> _GroupedPlan:
    """Return the plan for a call on a device: the one kept from a call like it, or a new one."""
    out, offsets = call.out, call.offsets
    key: Any = None
    plan: _GroupedPlan | None = None
    try:
        key = (
            call.function,
            _operand_key(call.a),
            _operand_key(call.b),
            None if out is None else out._key,
            tuple(call.options.values()),
            offsets._key if type(offsets) is DeviceArray else (type(offsets), offsets.shape, offsets.dtype),
        )
        plan = _plans.get(key)
    except (AttributeError, TypeError):  # wrong in a way that the description will tell
        pass
    if plan is not None and _still_right(plan, call):
        return plan
    problem, reasons = call.describe()
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        raise_reasons(call.function, reasons)
    assert problem is not None
    plan = _make_plan(problem, reasons, call.a.device)
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    if key is not None:
        _plans[key] = plan
    return plan


def _still_right(plan: _GroupedPlan, call: _Call) -> bool:
    """Whether what no plan remembers is right as well: offsets, and where arrays lie."""
    offsets = call.offsets
    known = type(offsets) is not DeviceArray
    if known and not in_order(offsets, plan.rows):
        return False
    for q in (call.a, call.b):
        if type(q) is ScaledArray:
            if q.group_offsets is not None:
                if not same_offsets(q.group_offsets, offsets):
                    return False
            elif (
                plan.function == "grouped_wgrad"
                and known
                and q.format[:2] == "mx"
                and (offsets % BLOCK).any()
            ):
                return False
    if call.out is None:
        return True
    parts = [q.data if type(q) is ScaledArray else q for q in (call.a, call.b)]
    beside = [q.scale for q in (call.a, call.b) if type(q) is ScaledArray]
    if not known:
        beside.append(offsets)
    if any(x._block.ptr == call.out._block.ptr for x in beside):
        return False
    return not plan.may_overlap(parts[0], parts[1], call.out)


def _make_plan(p: GroupedProblem, reasons: list[Reason], device: int) -> _GroupedPlan:
    try:
        with told_by(p.op):
            kernels = code_object(_hip.arch(device)).kernels.values()
        found, unsupported = grouped_choices(p, kernels)
        raise_reasons(p.op, reasons + unsupported)
    except UnsupportedError as error:
        count_refused(p.op, error.reasons)
        raise
    kernel = found[0].kernel
    forward = p.op == "grouped_matmul"
    empty = not (p.rows and p.n and p.k and p.groups)
    sides, steps, scale_steps, leadings = [], [], [], []
    for at, (name, x) in enumerate(zip(("x", "w") if forward else ("dy", "x"), operands(p), strict=True)):
        lead = (0,) * (len(x.shape) - 2)
        move, apart, ld = (None, lead, leading(x, kernel, at)) if empty else _plan._operand(x, kernel, at)
        scales, scale_apart = None, lead
        if x.scale_strides and not empty and (forward or not x.format.block):
            scales, scale_apart = _plan._scales(x, p.k if forward else p.rows)
        sides.append(_plan.Side(name, move, scales))
        steps.append(apart)
        scale_steps.append(scale_apart)
        leadings.append(ld)
    item = p.out_format.itemsize
    # Stored rows, and bytes between the matrices of groups; of a new output, or one in the place of another.
    out = None if p.out is None or p.out.device is None or not direct(p, kernel) else p.out
    ldc = p.shape[-1] if out is None else out.pitch
    matrix = ldc * p.n * item if out is None else out.strides[0]
    scales_of_groups = scale_steps[1][0] if forward and scale_steps[1] else 0
    spans = [byte_range(x.shape, x.strides, x.format.itemsize, 0) for x in (p.a, p.b)]
    spans.append((0, 0) if p.out is None else byte_range(p.out.shape, p.out.strides, item, 0))
    return _GroupedPlan(
        function=p.op,
        shape=p.shape,
        out_format=p.out_format,
        rows=p.rows,
        groups=0 if forward and empty else p.groups,
        accumulate=p.accumulate,
        whole_blocks=not forward and p.a.format.block > 0,
        kernel=_launch.function(device, kernel.name),
        workgroups=workgroups(p, kernel),
        note=_notes.place(p.op),
        sides=(sides[0], sides[1]),
        turned=(not forward, True),
        empty=empty,
        direct=direct(p, kernel),
        layout={
            "lda": leadings[0],
            "ldb": leadings[1],
            "ldc": ldc,
            "group_stride": steps[1][0] if forward else matrix,
            **dict(zip("mnk", (p.rows, p.n, p.k) if forward else (p.n, p.k, p.rows), strict=True)),
            "groups": 0 if forward and empty else p.groups,
            "out_type": p.out_format,
            "accumulate": p.accumulate,
        },
        scales=dict(zip(_SCALE_STEPS, (*_scale_rows(p, sides), scales_of_groups), strict=True))
        if p.a.format.scale_dtype
        else {},
        flop=2 * p.rows * p.n * p.k,
        moved=sum(math.prod(x.shape) * x.format.itemsize for x in (p.a, p.b)) + math.prod(p.shape) * item,
        ranges=tuple(spans),
    )


def _scale_rows(p: GroupedProblem, sides: list[_plan.Side]) -> tuple[int, int]:
    """Return how many rows of scales lie from block to block, or for floats from row to row."""
    if p.op == "grouped_wgrad" and p.a.format.block:
        return group_scale_step(p.n), group_scale_step(p.k)
    first, second = (side.scales.step if side.scales else 0 for side in sides)
    return first, second


# ---- execution: everything is queued on the stream, in order ---------------------------------------


def _execute(plan: _GroupedPlan, a: Any, b: Any, offsets: Any, out: DeviceArray, stream: int) -> None:
    """Queue the product. The device of all arrays is current."""
    if out.size == 0:
        return
    device = out.device
    if type(offsets) is not DeviceArray:
        offsets = lend(np.asarray(offsets, np.int32), device, stream)
    offsets._block.reading(stream)
    temporaries: list[_hip.Block] = [offsets._block]
    pointers, scales = (0, 0), plan.scales
    sides = list(zip(plan.sides, (a, b), strict=True))
    if not plan.empty:
        first, second = (_plan._read(side, x, stream, temporaries, plan.function) for side, x in sides)
        pointers = first, second
    if scales:
        at = (
            (0, 0)
            if plan.empty
            else tuple(_scales_of(plan, *s, offsets.ptr, stream, temporaries) for s in sides)
        )
        scales = {**dict(zip(("a_scale", "b_scale"), at, strict=True)), **scales}
    out._block.writing(stream)
    target = out
    if not plan.direct:
        target = new(out.shape, out.dtype, device, stream)
        temporaries.append(target._block)
        if plan.accumulate:
            _copy_matrices(out, target, stream)
    addresses = dict(zip("abc", (*pointers, target.ptr), strict=True))
    addresses |= {"offsets": offsets.ptr, "status": plan.note}
    _launch.launch(plan.kernel, plan.workgroups, stream, **addresses, **plan.layout, **scales)
    count_call(plan.function, plan.kernel.name, plan.flop, plan.moved)
    if target is not out:
        count_copy(plan.function, "out", "rows not contiguous", out.nbytes)
        _copy_matrices(target, out, stream)


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
    if plan.function == "grouped_matmul" or not QUANTIZED[q.format].block:
        return _plan._read_scales(side, q, stream, temporaries, plan.function)
    kept: tuple[_hip.Block, int] | None = q._kernel_scales.get("groups")
    if kept is not None and kept[0].ptr:
        kept[0].reading(stream)
        temporaries.append(kept[0])
        return kept[1]
    rows, columns = q.shape
    scale = q.scale
    block = _hip.allocate(group_scale_bytes(rows, columns, plan.groups), scale.device, stream)
    temporaries.append(block)
    scale._block.reading(stream)
    kernel = _launch.function(scale.device, "mx_group_scale")
    words = 4 * group_scale_step(columns) // 2
    _launch.launch(
        kernel,
        group_slots(rows, plan.groups, UNIT) * -(-words // kernel.tile[0]),
        stream,
        src=scale.ptr,
        dst=block.ptr,
        offsets=offsets,
        status=plan.note,
        src_row_stride=scale.strides[0],
        src_col_stride=scale.strides[1],
        rows=rows,
        cols=columns,
        groups=plan.groups,
        by_group=q.group_offsets is not None,
    )
    if q.group_offsets is not None:  # others may come with other offsets next time
        q._kernel_scales["groups"] = block, block.ptr
    return block.ptr
