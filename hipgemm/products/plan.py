"""How one call of `matmul` runs: everything but addresses and values is settled once, in a plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, lend
from ..formats.elements import F32, Format
from ..formats.operand import Operand
from ..formats.scaled import ScaledArray
from ..formats.strides import byte_range, contiguous_strides
from ..kernels import launch as _launch
from ..kernels.manifest import Kernel
from ..kernels.scale_layout import SCALE_ROW_BYTES, SCALE_ROWS, gemm_scale_bytes, gemm_scale_step
from ..runtime import hip as _hip
from ..runtime import tally
from .choose import (
    PLAIN,
    Choice,
    copy_pitch,
    copy_reason,
    direct,
    k_strided,
    kernel_k,
    leading,
    scales_reason,
    tiles,
)
from .layout import merge
from .problem import GemmProblem

Axes = tuple[int, ...]
Operands = DeviceArray | ScaledArray


@dataclass(frozen=True)
class Move:
    """A copy of an operand: its shape without axes that are broadcast, strides before and after."""

    reason: str
    item: int
    shape: Axes
    source: Axes
    target: Axes
    padded: int  # columns with the zeros behind them
    nbytes: int


@dataclass(frozen=True)
class Scales:
    """Where a kernel finds the scales of an operand (.., rows, K).

    Blocked ones are kept in the order of products: all rows as one matrix, or else matrix by matrix.
    """

    shape: Axes  # of the operand, in numbers, without axes that are broadcast
    strides: Axes  # of the scales, along the same axes
    bits: int
    step: int = 0  # between scales of neighbouring rows, in the kernel's terms
    blocked: bool = False
    together: bool = True
    kept_as: str = ""  # the name under which arrays keep blocked ones
    move: Move | None = None


@dataclass(frozen=True)
class Side:
    """How an operand reaches the kernel: in place or by a copy, and its scales."""

    name: str
    move: Move | None
    scales: Scales | None


@dataclass(frozen=True)
class Plan:
    """All that is settled before a call: what is launched, over what, with which fixed arguments."""

    shape: Axes  # of the result
    strides: Axes  # of one that is made for it
    nbytes: int
    out_format: Format
    ranges: tuple[tuple[int, int], ...]  # bytes that a, b and out span, from their addresses
    served: tally.Call | None = None  # as the launch: None where the result is empty
    launch: _launch.BoundLaunch | None = None
    first: Side = Side("a", None, None)
    second: Side = Side("b", None, None)
    swapped: bool = False  # the kernel computes the transpose, from exchanged operands
    in_place: bool = True  # operands are read where they lie, and have no scales
    once: bool = True  # one launch does it all
    offsets: tuple[Axes, ...] = ()  # of a, b, out and scales, for a launch each; empty for one launch
    out_move: Move | None = None
    reduce: _launch.BoundLaunch | None = None  # adds up the parts of K
    workspace: int = 0

    def may_overlap(self, a: DeviceArray, b: DeviceArray, out: DeviceArray, *vectors: Any) -> bool:
        """Whether what `out` spans meets what an input spans."""
        (a_low, a_high), (b_low, b_high), (low, high) = self.ranges
        ptr = out._address
        low, high = ptr + low, ptr + high
        ptr = a._address
        if ptr + a_low < high and low < ptr + a_high:
            return True
        ptr = b._address
        if ptr + b_low < high and low < ptr + b_high:
            return True
        for x in vectors:  # a loop: this is every call's way, and a generator costs as much as the rest
            if type(x) is DeviceArray and low < x._address + x.nbytes and x._address < high:
                return True
        return False

    def new_out(self, device: int, stream: int) -> DeviceArray:
        """Make room for the result."""
        block = _hip.allocate(self.nbytes, device, stream)
        return DeviceArray(block, block.ptr, self.shape, self.strides, self.out_format.dtype)


# ---- making one ------------------------------------------------------------------------------------


def build(p: GemmProblem, choice: Choice, device: int) -> Plan:
    """Settle how a product runs on a device."""
    spans = [byte_range(x.shape, x.strides, x.format.itemsize, 0) for x in (p.a, p.b)]
    out = p.out
    spans.append((0, 0) if out is None else byte_range(out.shape, out.strides, out.format.itemsize, 0))
    shape, item = (*p.batch, p.m, p.n), p.out_format.itemsize
    known: dict[str, Any] = {
        "shape": shape,
        "strides": contiguous_strides(shape, item),
        "nbytes": item * math.prod(shape),
        "out_format": p.out_format,
        "ranges": tuple(spans),
    }
    if 0 in shape:
        return Plan(**known)
    flop = 2 * p.batches * p.m * p.n * p.k
    moved = _own_bytes(p.a) + _own_bytes(p.b) + known["nbytes"]
    slower = "; ".join(reason.text for reason in choice.why)
    known |= {
        "served": tally.Call("matmul", choice.kernel.name, flop, moved, slower),
        "swapped": choice.swapped,
    }
    kernel = _launch.function(device, choice.kernel.name)
    return (_plain if choice.kernel.op == PLAIN else _fast)(choice, kernel, device, known)


def _own_bytes(x: Operand) -> int:
    """Bytes of an operand, whatever is broadcast counted once."""
    own = (n for n, step in zip(x.shape, x.strides, strict=True) if step)
    return x.format.itemsize * math.prod(own)


class _Levels:
    """Leading axes: the two that a launch steps through, the others a launch each."""

    def __init__(self, batch: Axes):
        longest = sorted(range(len(batch)), key=lambda axis: batch[axis])[-2:]
        self._batch = batch
        self._kept = sorted(longest)
        self._others = [axis for axis in range(len(batch)) if axis not in longest]
        extents = [batch[axis] for axis in self._kept]
        self.inner = extents[-1] if extents else 1
        self.count = math.prod(extents)

    def pair(self, steps: Sequence[int]) -> tuple[int, int]:
        """Outer and inner stride of a launch."""
        kept = [steps[axis] for axis in self._kept]
        return (kept[0] if len(kept) > 1 else 0), (kept[-1] if kept else 0)

    def offsets(self, *parts: Sequence[int]) -> tuple[Axes, ...]:
        """Where each launch begins in each operand."""
        if not self._others:
            return ()
        return tuple(
            tuple(sum(i * part[axis] for i, axis in zip(index, self._others, strict=True)) for part in parts)
            for index in np.ndindex(*(self._batch[axis] for axis in self._others))
        )


def _fast(choice: Choice, function: _launch.Function, device: int, known: dict[str, Any]) -> Plan:
    p, kernel, cost = choice.problem, choice.kernel, choice.cost
    assert p.out is not None
    levels = _Levels(p.batch)
    item = p.out_format.itemsize
    sides, steps, scale_steps, leadings = [], [], [], []
    for at, x in enumerate((p.a, p.b.transposed)):
        move, step, ld = _operand(x, kernel, at)
        scales, scale_step = _scales(x, p.k) if x.scale_strides else (None, (0,) * len(p.batch))
        sides.append(Side("ab"[at != choice.swapped], move, scales))
        steps.append(step)
        scale_steps.append(scale_step)
        leadings.append(ld)
    out_move, out_steps, ldc = None, p.out.strides[:-2], p.out.pitch
    if not direct(p, kernel):
        target = contiguous_strides(p.out.shape, item)
        nbytes = item * math.prod(p.out.shape)
        out_move = Move(choice.copies[-1][1], item, p.out.shape, target, p.out.strides, p.n, nbytes)
        out_steps, ldc = target[:-2], p.n
    scaled = sides[0].scales is not None
    layout: dict[str, _launch.Value] = {
        "lda": leadings[0],
        "ldb": leadings[1],
        **_named("a_{}", levels.pair(steps[0]), _LEVELS),
        **_named("b_{}", levels.pair(steps[1]), _LEVELS),
        "m": p.m,
        "n": p.n,
        "k": kernel_k(p.k, kernel),
        "batch_inner": levels.inner,
        "splits": cost.splits,
        "split_tiles": cost.split_tiles,
    }
    result: dict[str, _launch.Value] = {"ldc": ldc, **_named("c_{}", levels.pair(out_steps), _LEVELS)}
    varying = (*POINTERS, *(SCALES if scaled else ()), "alpha")
    types: dict[str, _launch.Value] = {"out_type": p.out_format, "bias_type": p.bias or F32}
    scale_rows = tuple(side.scales.step if side.scales else 0 for side in sides)
    scale_layout: dict[str, _launch.Value] = {
        **_named("{}_scale_step", scale_rows),
        **_named("a_scale_{}", levels.pair(scale_steps[0]), _LEVELS),
        **_named("b_scale_{}", levels.pair(scale_steps[1]), _LEVELS),
    }
    workgroups = tiles(p, kernel) * levels.count
    offsets = levels.offsets(*steps, out_steps, *scale_steps)
    known |= {
        "first": sides[0],
        "second": sides[1],
        "in_place": not (scaled or sides[0].move or sides[1].move),
        "offsets": offsets,
        "out_move": out_move,
    }
    if cost.splits == 1:
        values = {**layout, **result, **types, **(scale_layout if scaled else {}), "split_stride": 0}
        bound = _launch.BoundLaunch(function, workgroups, varying, values)
        return Plan(**known, launch=bound, once=not offsets)
    # Each part stores its sums, and a second kernel does what otherwise the first one does at its end.
    ld = -(-p.n // 4) * 4  # rows that begin at 16 bytes
    matrix = 4 * p.m * ld
    part = matrix * levels.count
    # Blocked scales go into the sums, others onto them.
    none: dict[str, _launch.Value] = dict.fromkeys(scale_layout, 0)
    inner, outer = (scale_layout, none) if _blocked(sides[0]) else (none, scale_layout)
    no_pointers: dict[str, _launch.Value] = dict.fromkeys(SCALES, 0)
    blocked = _blocked(sides[0])
    both = (*SCALES, "alpha")
    sums = {"ldc": ld, "c_outer": levels.inner * matrix, "c_inner": matrix, "split_stride": part}
    values = {**layout, **sums, "out_type": F32, "bias_type": F32, **(inner if scaled else {})}
    if scaled and not blocked:
        values |= no_pointers
    return Plan(
        **known,
        launch=_launch.BoundLaunch(
            function, workgroups * cost.splits, (*POINTERS, *(both if blocked else both[2:])), values
        ),
        once=False,
        reduce=_launch.bind_tiles(
            device,
            "split_reduce",
            p.m,
            p.n,
            ("src", "dst", "alpha_ptr", "col_scale", "bias", *(both if scaled and not blocked else both[2:])),
            matrices=levels.count,
            src_ld=ld,
            split_stride=part,
            src_batch=matrix,
            **result,
            **outer,
            **({} if scaled and not blocked else no_pointers),
            m=p.m,
            n=p.n,
            batch_inner=levels.inner,
            splits=cost.splits,
            **types,
        ),
        workspace=part * cost.splits,
    )


def _blocked(side: Side) -> bool:
    return side.scales is not None and side.scales.blocked


POINTERS = ("a", "b", "c", "alpha_ptr", "col_scale", "bias")
SCALES = ("a_scale", "b_scale")
_LEVELS = ("outer", "inner")


def _named(pattern: str, values: Sequence[int], names: Sequence[str] = "ab") -> dict[str, _launch.Value]:
    return {pattern.format(name): value for name, value in zip(names, values, strict=True)}


def _operand(x: Operand, kernel: Kernel, side: int) -> tuple[Move | None, Axes, int]:
    """Return how an operand (.., rows, K) is copied, how far apart its matrices and its lines then are."""
    reason = copy_reason(x, kernel, side)
    if reason is None:
        return None, x.strides[:-2], leading(x, kernel, side)
    pitch = copy_pitch(x, kernel, side)
    y = x.transposed if k_strided(kernel, side) else x
    move = _move(reason, x.format.itemsize, y.shape, y.strides, pitch)
    apart = _spread(move.target[:-2], _moving(x.strides), len(x.shape) - 2)
    return move, apart, pitch * 8 // x.format.bits


def _move(reason: str, item: int, shape: Axes, strides: Axes, pitch: int) -> Move:
    own = _moving(strides)
    lead = tuple(shape[axis] for axis in own)
    lines, along = shape[-2:]
    matrix = lines * pitch
    return Move(
        reason,
        item,
        (*lead, lines, along),
        (*(strides[axis] for axis in own), *strides[-2:]),
        (*contiguous_strides(lead, matrix), pitch, item),
        pitch // item,
        matrix * math.prod(lead),
    )


def _moving(strides: Axes) -> list[int]:
    """Leading axes that are not broadcast."""
    return [axis for axis, step in enumerate(strides[:-2]) if step]


def _spread(steps: Axes, own: Sequence[int], count: int) -> Axes:
    """Give the axes that are broadcast a stride of 0."""
    spread = [0] * count
    for axis, step in zip(own, steps, strict=True):
        spread[axis] = step
    return tuple(spread)


def _scales(x: Operand, k: int) -> tuple[Scales, Axes]:
    """Return where the scales of an operand (.., rows, K) will be, and how far apart those of each matrix."""
    strides = x.scale_strides
    rows, row = x.shape[-2], strides[-2]
    own = [axis for axis in range(len(x.shape) - 2) if x.strides[axis] or strides[axis]]
    lead = tuple(x.shape[axis] for axis in own)
    shape, steps = (*lead, rows, k), (*(strides[axis] for axis in own), *strides[-2:])
    if not x.format.block:
        reason = scales_reason(x)
        if reason is None:
            return Scales(shape, steps, x.format.bits, int(rows > 1 and row == 4)), strides[:-2]
        move = _move(reason, 4, (*x.shape[:-2], 1, rows), (*strides[:-2], 0, row), 4 * rows)
        apart = _spread(move.target[:-2], _moving(strides), len(x.shape) - 2)
        return Scales(shape, steps, x.format.bits, 1, move=move), apart
    merged, _ = merge((*lead, rows), steps[:-1])
    together = not lead or (len(merged) <= 1 and rows % SCALE_ROWS == 0)
    if together:
        step, matrix = gemm_scale_step(rows * math.prod(lead)), rows * SCALE_ROW_BYTES
    else:
        step, matrix = gemm_scale_step(rows), gemm_scale_bytes(rows, k)
    apart = _spread(contiguous_strides(lead, matrix), own, len(x.shape) - 2)
    kept_as = "gemm" if not lead else "gemm many" if together else "gemm each"
    return Scales(shape, steps, x.format.bits, step, True, together, kept_as), apart


def _plain(choice: Choice, function: _launch.Function, device: int, known: dict[str, Any]) -> Plan:
    p, kernel = choice.problem, choice.kernel
    assert p.out is not None
    levels = _Levels(p.batch)
    values: dict[str, _launch.Value] = {}
    sides, parts = [], []
    for name, x, row in (("a", p.a, "row"), ("b", p.b.transposed, "col")):
        scales = x.scale_strides or (0,) * len(x.shape)
        axes = (row, "k", *_LEVELS)
        values |= _named(name + "_{}", (*x.strides[-2:], *levels.pair(x.strides[:-2])), axes)
        axes = (row, "block", *_LEVELS)
        values |= _named(name + "_scale_{}", (*scales[-2:], *levels.pair(scales[:-2])), axes)
        form = x.format
        where = Scales(x.shape, scales, form.bits) if x.scale_strides else None
        sides.append(Side(name, None, where))
        parts.append((x.strides[:-2], scales[:-2]))
    strides = (*p.out.strides[-2:], *levels.pair(p.out.strides[:-2]))
    values |= _named("c_{}", strides, ("row", "col", *_LEVELS))
    values |= {"m": p.m, "n": p.n, "k": p.k, "batch_inner": levels.inner, "batches": levels.count}
    values |= {"a_format": p.a.format, "b_format": p.b.format}
    values |= {"out_type": p.out_format, "bias_type": p.bias or F32}
    scaled = bool(p.a.scale_strides)
    varying = (*POINTERS, *(SCALES if scaled else ()), "alpha")
    if not scaled:
        values |= dict.fromkeys(SCALES, 0)
    offsets = levels.offsets(parts[0][0], parts[1][0], p.out.strides[:-2], parts[0][1], parts[1][1])
    return Plan(
        **known,
        launch=_launch.BoundLaunch(function, tiles(p, kernel) * levels.count, varying, values),
        first=sides[0],
        second=sides[1],
        in_place=not p.a.scale_strides,
        once=not offsets,
        offsets=offsets,
    )


# ---- running one: everything is queued on the stream, in order -------------------------------------


def execute(
    plan: Plan,
    a: Operands,
    b: Operands,
    out: DeviceArray,
    alpha: Any,
    col_scale: Any,
    bias: Any,
    stream: int,
) -> None:
    """Queue the product. The device of all arrays is current."""
    launch, served = plan.launch, plan.served
    if launch is None or served is None:
        return
    device = out.device
    first, second = (b, a) if plan.swapped else (a, b)
    # These go back to the pool when this function ends, and serve this stream next.
    temporaries: list[_hip.Block] = []
    scales: tuple[int, ...] = ()
    if plan.in_place:
        assert type(first) is DeviceArray
        assert type(second) is DeviceArray
        first._block.reading(stream)
        second._block.reading(stream)
        first_ptr, second_ptr = first.ptr, second.ptr
    else:
        first_ptr = _read(plan.first, first, stream, temporaries)
        second_ptr = _read(plan.second, second, stream, temporaries)
        if type(first) is ScaledArray and type(second) is ScaledArray:
            scales = (
                _read_scales(plan.first, first, stream, temporaries),
                _read_scales(plan.second, second, stream, temporaries),
            )
    if type(alpha) is float:
        alpha_ptr = 0
    else:
        alpha._block.reading(stream)
        alpha_ptr, alpha = alpha.ptr, 1.0
    scale_ptr = 0 if col_scale is None else _read_vector(col_scale, device, stream, temporaries)
    bias_ptr = 0 if bias is None else _read_vector(bias, device, stream, temporaries)
    out._block.writing(stream)
    if plan.out_move is None:
        out_ptr = out.ptr
    else:
        result = _hip.allocate(plan.out_move.nbytes, device, stream)
        temporaries.append(result)
        out_ptr = result.ptr
    pointers = first_ptr, second_ptr, out_ptr, alpha_ptr, scale_ptr, bias_ptr
    if plan.once:
        launch.launch(stream, (*pointers, *scales, alpha))
        tally.count_launched(served)
    else:
        _launch_all(plan, launch, stream, pointers, alpha, scales, device)
        tally.count_call(*served)
    if plan.out_move is not None:
        tally.count_copy("matmul", "out", plan.out_move.reason, plan.out_move.nbytes)
        _copy(plan.out_move, device, stream, out_ptr, out.ptr)


def _launch_all(
    plan: Plan,
    launch: _launch.BoundLaunch,
    stream: int,
    pointers: tuple[int, ...],
    alpha: float,
    scales: tuple[int, ...],
    device: int,
) -> None:
    """Launch the kernels of plans that are more than one launch: many matrices, or parts of K."""
    reduce, first, first_scales = plan.reduce, pointers, scales
    workspace = _hip.allocate(plan.workspace, device, stream) if reduce else None
    for offsets in plan.offsets or (None,):
        if offsets is not None:
            # Lists first: a tuple cut to size leaves memory behind, at each of the first calls.
            operands = [ptr + offset for ptr, offset in zip(first[:3], offsets, strict=False)]
            pointers = (*operands, *first[3:])
            scales = tuple([ptr + offset for ptr, offset in zip(first_scales, offsets[3:], strict=False)])
        if reduce is None:
            launch.launch(stream, (*pointers, *scales, alpha))
        else:
            assert workspace is not None
            a, b, c, *vectors = pointers
            inner, outer = (scales, ()) if _blocked(plan.first) else ((), scales)
            launch.launch(stream, (a, b, workspace.ptr, 0, 0, 0, *inner, 1.0))
            reduce.launch(stream, (workspace.ptr, c, *vectors, *outer, alpha))
            reduce.count()
        launch.count()


def _read(side: Side, x: Operands, stream: int, temporaries: list[_hip.Block], op: str = "matmul") -> int:
    """Return where the kernel finds an operand, laid out anew if it must be."""
    stored: DeviceArray = x.data if isinstance(x, ScaledArray) else x
    stored._block.reading(stream)
    if side.move is None:
        return stored.ptr
    tally.count_copy(op, side.name, side.move.reason, side.move.nbytes)
    return _moved(side.move, stored, stream, temporaries)


def _moved(move: Move, x: DeviceArray, stream: int, temporaries: list[_hip.Block]) -> int:
    block = _hip.allocate(move.nbytes, x.device, stream)
    temporaries.append(block)
    _copy(move, x.device, stream, x.ptr, block.ptr)
    return block.ptr


def _copy(move: Move, device: int, stream: int, source: int, target: int) -> None:
    """Queue a copy, matrix by matrix unless all are one."""
    shape = move.shape
    lead, (from_steps, to_steps) = merge(shape[:-1], move.source[:-1], move.target[:-1])
    rows, from_row, to_row = (lead[-1], from_steps[-1], to_steps[-1]) if lead else (1, 0, 0)
    for index in np.ndindex(*lead[:-1]):
        begin = [
            sum(i * step for i, step in zip(index, steps, strict=False)) for steps in (from_steps, to_steps)
        ]
        _launch.copy_strided(
            device,
            stream,
            move.item,
            (source + begin[0], from_row, move.source[-1]),
            (target + begin[1], to_row, move.target[-1]),
            rows,
            shape[-1],
            move.padded,
        )


def _read_scales(
    side: Side, q: ScaledArray, stream: int, temporaries: list[_hip.Block], op: str = "matmul"
) -> int:
    """Return where the kernel finds the scales of an operand."""
    where, scale = side.scales, q.scale
    assert where is not None
    if where.blocked:
        block, ptr = _block_scales(where, q, stream)
        temporaries.append(block)  # another thread may put its own in the place where this one is kept
        return ptr
    scale._block.reading(stream)
    if where.move is None:
        return int(scale.ptr)
    tally.count_copy(op, f"{side.name}.scale", where.move.reason, where.move.nbytes)
    return _moved(where.move, scale, stream, temporaries)


def _block_scales(where: Scales, q: ScaledArray, stream: int) -> tuple[_hip.Block, int]:
    """Return the scales in the order that kernels read, made at the first product and kept; their address."""
    found: tuple[_hip.Block, int] | None = q._kernel_scales.get(where.kept_as)
    if found is not None and found[0].ptr:
        found[0].reading(stream)
        return found
    *lead, rows, k = where.shape
    scale = q.scale
    count = math.prod(lead)
    if where.together:
        lead, rows = [], rows * count
    each = gemm_scale_bytes(rows, k)
    size = each * (1 if where.together else count)
    # A kernel reads whole lines of scales from where its matrix begins: at the end, past the last one's.
    behind = (rows - rows // count) * SCALE_ROW_BYTES if where.together else 0
    block = _hip.allocate(size + behind, scale.device, stream)
    _hip.clear(block.ptr + size, behind, stream)
    scale._block.reading(stream)
    if rows and k:
        row, along = where.strides[-2:]
        for i, index in enumerate(np.ndindex(*lead)):
            source = scale.ptr + sum(n * step for n, step in zip(index, where.strides, strict=False))
            target = block.ptr + i * each
            _launch.order_scales(scale.device, stream, (source, row, along), target, rows, k, where.bits)
    found = q._kernel_scales[where.kept_as] = block, block.ptr
    return found


def _read_vector(x: Any, device: int, stream: int, temporaries: list[_hip.Block]) -> int:
    """Return where the kernel finds an epilogue vector or number; one on the host goes up without waiting."""
    if type(x) is DeviceArray:
        x._block.reading(stream)
        return x.ptr
    made = lend(x, device, stream)
    temporaries.append(made._block)
    return made.ptr
