"""Plans: how a product runs on a device. A plan is cached, and holds everything but addresses and values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..array.device_array import DeviceArray
from ..array.rows import round_up
from ..formats.elements import BLOCK, F32, Format
from ..formats.operand import Operand
from ..formats.strides import contiguous_strides, merge
from ..kernels.launch import (
    NO_SCALES,
    NO_STAGES,
    POINTERS,
    STAGE_POINTERS,
    BoundLaunch,
    Function,
    Value,
    bind_float_scale_order,
    bind_scale_order,
    bind_tiles,
    function,
)
from ..kernels.manifest import Kernel
from ..kernels.scale_layout import (
    SCALE_ROW_BYTES,
    SCALE_ROWS,
    float_scale_bytes,
    float_scale_rows,
    gemm_scale_bytes,
    gemm_scale_step,
    mn_scale_step,
    scale_order,
)
from ..quantize.amax import AmaxState
from ..quantize.arrays import Fp8Array
from ..quantize.plan import MxArray
from ..runtime import device_errors, hip
from ..runtime.tally import Call
from .choose import (
    PLAIN,
    Choice,
    copy_pitch,
    copy_reason,
    k_strided,
    leading_dimension,
    out_copy_reason,
    scales_reason,
    tiles,
    workgroups,
)
from .layout import Batch, Copy, copy_to_rows, own_axes, quantized_strides, spread
from .operation import Operation
from .problem import Problem
from .stages import OUT_EPS, Stages

Axes = tuple[int, ...]
Values = dict[str, Value]
SCALES = ("a_scale", "b_scale")


@dataclass(frozen=True)
class ScalePlan:
    """How a kernel reads the scales of an operand (.., rows, K).

    Block scales are reordered and cached: for all rows as one matrix, or else for each matrix.
    """

    step: int = 0  # the kernel's argument: rows between blocks, or 1 for one float per row
    copy: Copy | None = None
    blocked: bool = False
    cache_key: str = ""  # of reordered block scales in the array's cache
    starts: tuple[tuple[int, int], ...] = ()  # offsets of each matrix: in the source, and reordered
    nbytes: int = 0
    padding: int = 0  # bytes after them
    order: BoundLaunch | None = None  # reorders block scales


@dataclass(frozen=True)
class OperandPlan:
    """How a kernel reads an operand: in place or from a copy; and its scales."""

    name: str
    copy: Copy | None = None
    scales: ScalePlan | None = None
    group_scales: bool = False  # MX scales along the columns of groups of rows


@dataclass(frozen=True)
class Plan:
    """The plan of a call: the launches, their grids and their fixed arguments."""

    op: Operation
    problem: Problem
    shape: Axes  # of the result
    strides: Axes  # of a result that is allocated
    nbytes: int
    device: int
    choices: tuple[Choice, ...]  # all choices, that of this plan first
    served: Call | None = None  # None if the result is empty
    launch: BoundLaunch | None = None
    first: OperandPlan = OperandPlan("a")
    second: OperandPlan = OperandPlan("b")
    swapped: bool = False  # the kernel computes the transpose, from swapped operands
    in_place: bool = True  # operands are read in place, and have no scales
    scaled: bool = False  # the kernel takes scales, 0 for an operand that has none
    one_launch: bool = True
    direct: tuple[BoundLaunch, Call] | None = None  # the launch if there is nothing else to do
    starts: tuple[Axes, ...] = ()  # offsets of a, b, out and scales for each launch; empty for one launch
    out_copy: Copy | None = None
    reduce: BoundLaunch | None = None  # adds the parts of K, and applies stages
    workspace: int = 0
    applied: bool = False  # if there is `reduce`: the product's own kernel has applied alpha and vectors
    inner_scales: bool = False  # .. and scales
    result: MxArray | Fp8Array | None = None  # a quantized result
    staged: bool = False  # there are stages, whose addresses a launch takes
    given_vectors: bool = False  # a product of groups has more than alpha before its stages
    rows: int = 0  # that groups divide
    reads: bool = True  # for groups: whether the operands are read
    quantizes: bool = False  # quantize the operands by groups first
    error_slot: int = 0  # where kernels report invalid offsets

    def new_out(self, stream: int) -> DeviceArray:
        """Allocate the result."""
        block = hip.allocate(self.nbytes, self.device, stream)
        return DeviceArray(block, block.ptr, self.shape, self.strides, self.problem.out_format.dtype)


def build(p: Problem, choices: Sequence[Choice], device: int) -> Plan:
    """Make the plan of the first choice."""
    choice = choices[0]
    kernel = choice.kernel
    shape, item = p.shape, p.out_format.itemsize
    known: dict[str, Any] = {
        "op": p.op,
        "problem": p,
        "shape": shape,
        "strides": contiguous_strides(shape, item),
        "nbytes": item * math.prod(shape),
        "device": device,
        "choices": tuple(choices),
        "rows": p.k if p.op.ragged == "k" else p.m,
        "quantizes": p.given is not None and p.op.ragged == "k" and p.given[0].format != p.a.format,
    }
    if p.stages is not None and p.stages.quantized:
        known["result"] = result_layout(p.stages.quantized, shape)
    known["staged"] = p.stages is not None
    if 0 in shape:
        return Plan(**known)
    flop = 2 * p.batches * p.m * p.n * p.k
    min_bytes = _own_bytes(p.a) + _own_bytes(p.b) + known["nbytes"]
    fallback_reason = "; ".join(reason.text for reason in choice.why)
    known["served"] = Call(p.op.name, kernel.name, flop, min_bytes, fallback_reason)
    if choice.by_group:  # the products of the groups count their own work
        known["served"] = Call(p.op.name, kernel.name, 0, 0, fallback_reason)
        return Plan(**known)
    known["swapped"] = choice.swapped
    loaded, names = function(device, kernel.name), choice.names
    if p.op.ragged:
        return Plan(**known, **_grouped(choice, loaded, device))
    known |= _plain(choice, loaded, device) if kernel.op == PLAIN else _matrix(choice, loaded, device, names)
    vectors = p.staged or p.alpha == "device" or p.col_scale or p.bias is not None
    on_device = p.device is not None and not vectors
    if on_device and known["in_place"] and known["one_launch"] and known.get("out_copy") is None:
        known["direct"] = known["launch"], known["served"]
    return Plan(**known)


def _own_bytes(x: Operand) -> int:
    """Bytes of an operand without repetition along broadcast axes."""
    own = (n for n, step in zip(x.shape, x.strides, strict=True) if step)
    return x.format.itemsize * math.prod(own)


def _levels(name: str, pair: tuple[int, int]) -> Values:
    return {f"{name}_outer": pair[0], f"{name}_inner": pair[1]}


@dataclass(frozen=True)
class _KernelOperand:
    """An operand as a kernel reads it: the leading dimension in elements, and batch strides in bytes."""

    plan: OperandPlan
    ld: int
    steps: Axes
    scale_steps: Axes


def _plan_operand(
    p: Problem, kernel: Kernel, side: int, name: str, device: int, reads: bool = True
) -> _KernelOperand:
    """Plan how a kernel with matrix instructions reads an operand."""
    x = (p.a, p.b)[side]
    lead = (0,) * (len(x.shape) - 2)
    reason = copy_reason(x, kernel, side) if reads else None
    copy, steps, ld = None, x.strides[:-2], leading_dimension(x, kernel, side)
    if reason is not None:
        pitch = copy_pitch(x, kernel, side)
        y = x.transposed if k_strided(kernel, side) else x
        copy = copy_to_rows(reason, x.format.itemsize, y.shape, y.strides, pitch)
        steps = spread(copy.target[:-2], own_axes(x.strides), len(lead))
        ld = -(-pitch * 8 // x.format.bits)
    scales, scale_steps = None, lead
    in_groups = bool(p.op.ragged == "k" and x.format.block)
    if x.scale_strides and reads and not in_groups:
        scales, scale_steps = _scales(x, p.k, kernel, side, device)
    return _KernelOperand(OperandPlan(name, copy, scales, in_groups), ld, steps, scale_steps)


def _sides(a: _KernelOperand, b: _KernelOperand, scaled: bool, out_copy: Copy | None) -> dict[str, Any]:
    """How a kernel with matrix instructions reads both operands, and stores the result."""
    in_place = not (scaled or a.plan.copy or b.plan.copy)
    return {"first": a.plan, "second": b.plan, "in_place": in_place, "scaled": scaled, "out_copy": out_copy}


def _scales(x: Operand, k: int, kernel: Kernel, side: int, device: int) -> tuple[ScalePlan, Axes]:
    """Plan the scales of an operand (.., rows, K); return also their batch strides in bytes."""
    strides, k_tile = x.scale_strides, kernel.tile[2]
    rows, row = x.shape[-2], strides[-2]
    if (kernel.a, kernel.b)[side].endswith("_block"):
        alone = not (kernel.a, kernel.b)[1 - side].endswith("_block")
        return _float_scales(x, k, device, alone, k_strided(kernel, side))
    if not (x.format.block or x.block):
        reason = scales_reason(x, kernel, side)
        if reason is None:
            return ScalePlan(int(rows > 1 and row == 4)), strides[:-2]
        copy = copy_to_rows(reason, 4, (*x.shape[:-2], 1, rows), (*strides[:-2], 0, row), 4 * rows)
        return ScalePlan(1, copy), spread(copy.target[:-2], own_axes(strides), len(x.shape) - 2)
    own, lead, steps = _own_scales(x)
    count = math.prod(lead)
    merged, _ = merge((*lead, rows), (*steps, row))
    row_block, col_block = (x.block[0], x.block[1] // BLOCK) if x.block else (1, 1)
    together = not lead or (len(merged) <= 1 and rows % SCALE_ROWS == 0 and row_block == 1)
    ordered = rows * count if together else rows  # as one matrix
    each = gemm_scale_bytes(ordered, k)
    matrix = rows * SCALE_ROW_BYTES if together else each
    starts = _scale_starts(() if together else lead, steps, each)
    plan = ScalePlan(
        gemm_scale_step(ordered),
        blocked=True,
        cache_key=scale_order(k_tile) + _view(x) + ("" if not lead else " many" if together else " each"),
        starts=starts,
        nbytes=each * len(starts),
        # A kernel reads whole rows of scales from the start of a matrix, so it may read past the last matrix.
        padding=(ordered - rows) * SCALE_ROW_BYTES if together else 0,
        order=bind_scale_order(device, (row, strides[-1]), ordered, k, k_tile, row_block, col_block)
        if rows and k
        else None,
    )
    return plan, spread(contiguous_strides(lead, matrix), own, len(x.shape) - 2)


def _own_scales(x: Operand) -> tuple[list[int], Axes, Axes]:
    """The leading axes along which an operand or its scales differ, their extents, and strides of scales."""
    own = [axis for axis in range(len(x.shape) - 2) if x.strides[axis] or x.scale_strides[axis]]
    return own, tuple(x.shape[axis] for axis in own), tuple(x.scale_strides[axis] for axis in own)


def _scale_starts(lead: Axes, steps: Axes, each: int) -> tuple[tuple[int, int], ...]:
    """The offsets of each matrix's scales in the source, and in the order of products."""
    indices = enumerate(np.ndindex(*lead))
    return tuple(
        (sum(n * step for n, step in zip(index, steps, strict=False)), i * each) for i, index in indices
    )


def _view(x: Operand) -> str:
    """What distinguishes an array from its transpose in a cache key: blocks of 128 x 128 serve both."""
    return f" {x.shape[-2:]} {x.scale_strides[-2:]}" if x.block else ""


def _float_scales(x: Operand, k: int, device: int, alone: bool, mn_major: bool) -> tuple[ScalePlan, Axes]:
    """Plan the float scales of an operand of a kernel for blocks of 128 along K; it may have other scales.

    `alone`: the other operand has none. `mn_major`: the kernel reads it with K as the outer axis.
    """
    strides, rows = x.scale_strides, x.shape[-2]
    own, lead, steps = _own_scales(x)
    row_block = x.block[0] if x.block else 1
    if alone:
        rows, row_block = float_scale_rows(rows, row_block)
    step = mn_scale_step(rows) if mn_major else gemm_scale_step(rows)
    each = round_up(float_scale_bytes(step, k, alone), 16)
    starts = _scale_starts(lead, steps, each)
    kind = " alone" if alone else " mn" if mn_major else ""
    plan = ScalePlan(
        step,
        blocked=True,
        cache_key=f"gemm float{kind}{_view(x)}{' each' if lead else ''}",
        starts=starts,
        nbytes=each * len(starts),
        order=bind_float_scale_order(
            device, strides[-2:], rows, k, row_block, e8m0=x.e8m0, whole=alone, mn_major=mn_major
        )
        if rows
        else None,
    )
    return plan, spread(contiguous_strides(lead, each), own, len(x.shape) - 2)


def result_layout(form: Format, shape: Axes) -> MxArray | Fp8Array:
    """The layout of a quantized result."""
    return MxArray.in_rows(form, shape) if form.block else Fp8Array.in_rows(form, shape)


def stage_addresses(
    aux: DeviceArray | None,
    residual: DeviceArray | None,
    state: AmaxState | None,
    scale: int,
    amax: int,
    stream: int,
) -> tuple[int, ...]:
    """The addresses for STAGE_POINTERS; `scale` and `amax` are those of a quantized result."""
    if aux is not None:
        aux._block.begin_write(stream)
    if residual is not None:
        residual._block.begin_read(stream)
    if state is not None:
        state.current._block.begin_read(stream)
    return (
        0 if aux is None else aux.ptr,
        0 if residual is None else residual.ptr,
        scale,
        0 if state is None else state.current.ptr,
        0 if state is None else amax,
    )


def _stage_values(p: Problem, batch: Batch) -> tuple[Values, tuple[Axes, ...]]:
    """The arguments of the stages, and the batch strides of aux, residual and the result's scales."""
    lead = (0,) * len(p.batch)
    steps = [lead, lead, lead]
    if not p.staged:
        return NO_STAGES, tuple(steps)
    stages = p.stages or Stages()
    values = {**NO_STAGES, "staged": 1, "accumulate": p.accumulate}
    values |= {
        name: value for name, value in (("activation", stages.activation), ("glu", stages.glu)) if value
    }
    for i, (name, x) in enumerate((("aux", stages.aux), ("residual", stages.residual))):
        if x is not None:
            steps[i] = x.strides[:-2]
            values |= {f"ld{name}": x.pitch, f"{name}_type": x.format, **_levels(name, batch.pair(steps[i]))}
    form = stages.quantized
    if form is not None:
        assert p.out is not None
        values["out_pitch"] = quantized_strides(p.shape, form)[-2]
    if form is not None and form.block:
        steps[2] = contiguous_strides(p.batch, p.m)
        values |= {"out_scale_row": 1, "out_scale_block": p.m * math.prod(p.batch)}
        values |= {"scale_rule": stages.scaling, **_levels("out_scale", batch.pair(steps[2]))}
    elif form is not None:
        values["eps"] = OUT_EPS
    return values, tuple(steps)


def _out_copy(p: Problem, kernel: Kernel) -> Copy | None:
    """Plan the copy from contiguous storage to an output that the kernel cannot store to directly."""
    assert p.out is not None
    reason = out_copy_reason(p, kernel)
    if reason is None:
        return None
    item = p.out_format.itemsize
    target = contiguous_strides(p.out.shape, item)
    nbytes = item * math.prod(p.out.shape)
    return Copy(reason, item, p.out.shape, target, p.out.strides, p.columns, nbytes)


# ---- arguments of each kind of kernel --------------------------------------------------------------


def _matrix(choice: Choice, loaded: Function, device: int, names: tuple[str, str]) -> dict[str, Any]:
    """Plan a launch of a kernel with matrix instructions; or two, if K is split."""
    p, kernel, cost = choice.problem, choice.kernel, choice.cost
    assert p.out is not None
    batch = Batch(p.batch)
    a, b = (_plan_operand(p, kernel, side, name, device) for side, name in enumerate(names))
    out_copy = _out_copy(p, kernel)
    out_steps, ldc = p.out.strides[:-2], p.out.pitch
    if out_copy is not None:
        out_steps, ldc = out_copy.source[:-2], p.columns
    scaled = b.plan.scales is not None
    blocked = b.plan.scales is not None and b.plan.scales.blocked
    layout: Values = {
        "lda": a.ld,
        "ldb": b.ld,
        **_levels("a", batch.pair(a.steps)),
        **_levels("b", batch.pair(b.steps)),
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "batch_inner": batch.inner,
        "splits": cost.splits,
        "split_tiles": cost.split_tiles,
    }
    result: Values = {"ldc": ldc, **_levels("c", batch.pair(out_steps))}
    types: Values = {"out_type": p.out_format, "bias_type": p.bias or F32}
    steps: Values = {
        "a_scale_step": a.plan.scales.step if a.plan.scales else 0,
        "b_scale_step": b.plan.scales.step if b.plan.scales else 0,
        **_levels("a_scale", batch.pair(a.scale_steps)),
        **_levels("b_scale", batch.pair(b.scale_steps)),
    }
    stages, stage_steps = _stage_values(p, batch)
    starts = batch.starts(a.steps, b.steps, out_steps, a.scale_steps, b.scale_steps, *stage_steps)
    known = _sides(a, b, scaled, out_copy) | {"starts": starts}
    grid, pointers = tiles(p, kernel) * batch.count, POINTERS
    ends = STAGE_POINTERS if p.stages else ()
    varying = (*pointers, *(SCALES if scaled else ()), "alpha", *ends)
    if not choice.apart and cost.splits == 1:
        fixed = {**layout, **result, **types, **(steps if scaled else {}), "split_stride": 0, **stages}
        return {
            **known,
            "launch": BoundLaunch(loaded, grid, varying, fixed),
            "one_launch": not starts,
        }
    # Each part stores its sums to a workspace, and a second kernel adds them and applies the epilogue.
    sums, reduce = _in_two_steps(p, batch, cost.splits, device, scaled and not blocked, steps, result, stages)
    fixed = {**layout, **sums, "out_type": F32, "bias_type": F32, **NO_STAGES}
    # Block scales are applied inside the sums, other scales after the reduction.
    inner = (*SCALES, "alpha") if blocked else ("alpha",)
    if scaled:
        fixed |= steps if blocked else NO_SCALES
    return {
        **known,
        "launch": BoundLaunch(loaded, grid * cost.splits, (*pointers, *inner), fixed),
        "one_launch": False,
        "inner_scales": blocked,
        **reduce,
    }


def _in_two_steps(
    p: Problem,
    batch: Batch,
    splits: int,
    device: int,
    scaled: bool,
    steps: Values,
    result: Values,
    stages: Values,
) -> tuple[Values, dict[str, Any]]:
    """Plan that a kernel stores its sums, and a second one does the rest; `scaled`: also applies scales."""
    ld = round_up(p.n, 4)  # so that rows are aligned to 16 bytes
    matrix = 4 * p.m * ld
    part = matrix * batch.count
    sums: Values = {"ldc": ld, "c_outer": batch.inner * matrix, "c_inner": matrix, "split_stride": part}
    layout = {"src_ld": ld, "split_stride": part, "src_batch": matrix}
    fixed = {**layout, **(steps if scaled else {}), **result, **stages}
    return sums, {"reduce": _reduction(p, batch, splits, device, scaled, fixed), "workspace": part * splits}


def _reduction(
    p: Problem, batch: Batch, splits: int, device: int, scaled: bool, fixed: Values
) -> BoundLaunch | None:
    """Bind a launch that adds parts of K and does what follows; `scaled`: it takes scales."""
    own = (*SCALES, "alpha") if scaled else ("alpha",)
    given = {"m": p.m, "n": p.n, "batch_inner": batch.inner, "splits": splits}
    return bind_tiles(
        device,
        "split_reduce",
        p.m,
        p.n,
        ("src", "dst", *POINTERS[3:], *own, *(STAGE_POINTERS if p.stages else ()), "row_end"),
        matrices=batch.count,
        **{**NO_SCALES, **given, "out_type": p.out_format, "bias_type": p.bias or F32, **fixed},
    )


def reduction(p: Problem, splits: int, device: int, scale_steps: tuple[int, int]) -> BoundLaunch | None:
    """Bind a launch that adds contiguous parts of K, and does what follows a product without a batch."""
    assert p.out is not None
    batch, part = Batch(()), 4 * p.m * p.n
    stages, _ = _stage_values(p, batch)
    fixed: Values = {"src_ld": p.n, "split_stride": part, "src_batch": part, **stages}
    fixed |= {"ldc": p.columns, **_levels("c", (0, 0))}
    fixed |= dict(zip(("a_scale_step", "b_scale_step"), scale_steps, strict=True))
    return _reduction(p, batch, splits, device, True, fixed)


def _plain(choice: Choice, loaded: Function, device: int) -> dict[str, Any]:
    """Plan a launch of the plain kernel; and of a second one if there are stages."""
    p, names = choice.problem, choice.names
    assert p.out is not None
    batch = Batch(p.batch)
    fixed: Values = {}
    plans, steps, scale_steps = [], [], []
    for side, x, row, name in (("a", p.a, "row", names[0]), ("b", p.b, "col", names[1])):
        scales = x.scale_strides or (0,) * len(x.shape)
        fixed |= {f"{side}_{row}": x.strides[-2], f"{side}_k": x.strides[-1]}
        fixed |= {f"{side}_scale_{row}": scales[-2], f"{side}_scale_block": scales[-1]}
        fixed |= {f"{side}_block_rows": x.block[0] if x.block else 0, f"{side}_e8m0": x.e8m0}
        fixed |= _levels(side, batch.pair(x.strides[:-2])) | _levels(f"{side}_scale", batch.pair(scales[:-2]))
        where = ScalePlan() if x.scale_strides else None
        plans.append(OperandPlan(name, None, where))
        steps.append(x.strides[:-2])
        scale_steps.append(scales[:-2])
    out, out_copy = p.out.strides, None
    if p.staged:
        out_copy = _out_copy(p, choice.kernel)
        out = p.out.strides if out_copy is None else out_copy.source
    fixed |= {"c_row": out[-2], "c_col": out[-1], **_levels("c", batch.pair(out[:-2]))}
    fixed |= {"m": p.m, "n": p.n, "k": p.k, "batch_inner": batch.inner, "batches": batch.count}
    fixed |= {"a_format": p.a.format, "b_format": p.b.format}
    fixed |= {"out_type": p.out_format, "bias_type": p.bias or F32}
    scaled = bool(p.a.scale_strides or p.b.scale_strides)
    if not scaled:
        fixed |= dict.fromkeys(SCALES, 0)
    tile_m, tile_n = loaded.tile[:2]
    grid = -(-p.m // tile_m) * -(-p.n // tile_n) * batch.count
    stages, stage_steps = _stage_values(p, batch)
    starts = batch.starts(*steps, out[:-2], *scale_steps, *stage_steps)
    more: dict[str, Any] = {"one_launch": not starts}
    if p.staged:
        ldc = p.out.pitch if out_copy is None else p.columns
        result: Values = {"ldc": ldc, **_levels("c", batch.pair(out[:-2]))}
        sums, more = _in_two_steps(p, batch, 1, device, False, {}, result, stages)
        fixed |= {"c_row": F32.itemsize * round_up(p.n, 4), "c_col": F32.itemsize, "out_type": F32}
        fixed |= {name: sums[name] for name in ("c_outer", "c_inner")}
        more |= {"one_launch": False, "out_copy": out_copy, "applied": True, "inner_scales": True}
    return {
        **more,
        "launch": BoundLaunch(loaded, grid, (*POINTERS, *(SCALES if scaled else ()), "alpha"), fixed),
        "first": plans[0],
        "second": plans[1],
        "in_place": not scaled,
        "scaled": scaled,
        "starts": starts,
    }


def _grouped(choice: Choice, loaded: Function, device: int) -> dict[str, Any]:
    """Plan a launch of a kernel for groups of rows."""
    p, kernel = choice.problem, choice.kernel
    assert p.out is not None
    forward, reads = p.op.ragged == "m", not p.empty
    a, b = (_plan_operand(p, kernel, side, name, device, reads) for side, name in enumerate(choice.names))
    out_copy = _out_copy(p, kernel)
    out = p.out.strides if out_copy is None else out_copy.source
    ldc = p.out.pitch if out_copy is None else p.columns
    scaled = p.b.format.scale_dtype is not None
    batch = Batch(())
    stages, _ = _stage_values(p, batch)
    bias = p.bias or F32
    groups = 0 if forward and not reads else p.groups
    fixed: Values = {
        "status": device_errors.slot(p.op.name),
        "lda": a.ld,
        "ldb": b.ld,
        "ldc": ldc,
        "group_stride": b.steps[0] if forward else out[0],
        "m": p.m,
        "n": p.n,
        "k": p.k,
        "groups": groups,
        "out_type": p.out_format,
        "bias_type": bias,
        "bias_outer": p.n * bias.itemsize if p.bias_by_group else 0,
    }
    if scaled:
        scales = [x.plan.scales.step if x.plan.scales else 0 for x in (a, b)]
        if a.plan.group_scales:
            scales = [mn_scale_step(p.m), mn_scale_step(p.n)]
        fixed["a_scale_step"], fixed["b_scale_step"] = scales
        fixed["scale_group_stride"] = b.scale_steps[0] if forward and b.scale_steps else 0
    given = p.alpha == "device" or p.col_scale or p.bias is not None or p.stages is not None
    vectors = POINTERS[3:] if given else ()
    varying: tuple[str, ...] = ("a", "b", "c", "offsets", *vectors, *(SCALES if scaled else ()), "alpha")
    if not given:
        fixed |= dict.fromkeys(POINTERS[3:], 0)
    known = _sides(a, b, scaled, out_copy) | {
        "reads": reads,
        "error_slot": device_errors.slot(p.op.name),
        "given_vectors": given,
    }
    if choice.apart:
        result: Values = {"ldc": ldc, **_levels("c", (0, 0))}
        sums, more = _in_two_steps(p, batch, 1, device, False, {}, result, stages)
        known |= more | {"one_launch": False, "applied": True, "inner_scales": True}
        fixed |= {"ldc": sums["ldc"], "out_type": F32, **NO_STAGES}
    else:
        varying += STAGE_POINTERS if p.stages else ()
        fixed |= stages
    return known | {"launch": BoundLaunch(loaded, workgroups(p, kernel), varying, fixed)}
