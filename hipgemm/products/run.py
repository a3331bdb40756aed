"""Runs products: the plan cache, and the execution of plans."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, upload_async, zeros
from ..config import config
from ..errors import PlainKernelWarning, UnsupportedError, error_context, raise_reasons, warn
from ..formats.checks import Checks, python_number
from ..formats.elements import BF16, BLOCK, nearest_float
from ..formats.groups import group_slots, in_order, same_offsets
from ..formats.operand import Shaped
from ..formats.scaled import ScaledArray
from ..formats.strides import byte_range, merge
from ..kernels.launch import copy_strided, function, launch
from ..kernels.manifest import MATRIX_ARCHS, code_object
from ..kernels.scale_layout import group_scale_bytes, mn_scale_step
from ..quantize.quantizers import quantize_mxfp8
from ..runtime import hip, tally
from . import by_group, host
from .choose import PLAIN, Choice, choices, elsewhere, formats_of
from .layout import Copy, on_device
from .operation import Arguments, Operation
from .plan import OperandPlan, Plan, ScalePlan, build, stage_addresses
from .problem import Problem, describe
from .tuned import Shape

Operand = DeviceArray | ScaledArray

plans: dict[Any, tuple[Plan, host.HostPlan | None]] = {}
_MAX_PLANS = 4096  # then all are dropped
_BEYOND_FLOAT32 = 2.0**128 - 2.0**103  # rounds to infinity
_OFFSET_BYTES = 4
_GROUP_UNIT = 256  # rows of a group whose MX scales a workgroup loads


def run(
    op: Operation,
    a: Any,
    b: Any,
    out: Any = None,
    dtype: Any = None,
    alpha: Any = 1.0,
    col_scale: Any = None,
    bias: Any = None,
    stream: Any = None,
    offsets: Any = None,
    recipe: Any = None,
    accumulate: Any = False,
    stages: tuple[Any, ...] | None = None,
) -> Any:
    """Compute a product. The arguments are those of the public functions, not checked yet.

    `stages` is `Arguments.stages`, or None if all of them are.
    """
    handle = 0 if stream is None else hip.stream_handle(op.name, stream)
    if type(alpha) is not float:
        alpha = _number(alpha)
    more_than_sums = bias is not None or stages is not None
    if op.ragged == "m" and more_than_sums and isinstance(a, Shaped) and a.shape[-1:] == (0,):
        # The kernel would take all rows for those of no group.
        a, b = _zeros_of_sums(op, Arguments(a, b, out, dtype, alpha, col_scale, bias, offsets))
    call: tuple[Any, ...] = a, b, out, dtype, alpha, col_scale, bias, offsets, recipe, accumulate
    if stages is not None:
        call += stages
    key = found = None
    try:
        key = _call_key(op, call)
        found = plans.get(key)
        if found is not None and found[1] is not None and found[0].device != hip.current_device():
            key = key, hip.current_device()
            found = plans.get(key)
    except (AttributeError, TypeError):  # invalid arguments, which `describe` reports
        pass
    if found is not None and found[0].direct is not None:
        made = _run_directly(found[0], a, b, out, alpha, handle)
        if made is not None:
            return made
    more: tuple[Any, ...] = alpha, col_scale, bias, offsets
    if stages is not None:
        residual, _, _, aux, _, _, state = stages
        more += residual, aux, state
    if found is None:
        plan, host_plan = _plan(op, Arguments(*call), key)
    else:
        plan, host_plan = found
        if not _is_valid(plan, a, b, out, more):
            raise_reasons(op.name, describe(op, Arguments(*call))[1])
    try:
        if host_plan is not None:
            return host_plan.run(plan, execute, a, b, out, more, handle)
        device = plan.device
        if out is None and plan.result is None:
            out = plan.new_out(handle)
        if hip.current_device() == device:
            made = execute(plan, a, b, out, more, handle)
        else:
            with hip.on_device(device):
                made = execute(plan, a, b, out, more, handle)
    except ValueError:  # an array that was freed since the call was planned
        raise_reasons(op.name, describe(op, Arguments(*call))[1])
        raise
    return made


def _zeros_of_sums(op: Operation, call: Arguments) -> tuple[Any, Any]:
    """Operands whose products are 0, in place of those without columns in K."""
    raise_reasons(op.name, describe(op, call)[1])
    dtype = BF16.dtype if isinstance(call.a, ScaledArray) else call.a.dtype
    shapes = (*call.a.shape[:-1], BLOCK), (*call.b.shape[:-2], BLOCK, call.b.shape[-1])
    if _on_host(call.a):
        a, b = (np.zeros(shape, dtype) for shape in shapes)
        return a, b
    x, y = (zeros(shape, dtype, device=call.a.device) for shape in shapes)
    return x, y


def _run_directly(
    plan: Plan, a: DeviceArray, b: DeviceArray, out: DeviceArray | None, alpha: float, stream: int
) -> DeviceArray | None:
    """Run a plan that has nothing but one launch: `_is_valid` and `execute` in one, for most calls.

    Return None, and do nothing, if another device is current, or the arrays are not clearly valid.
    """
    one, other = a._block, b._block
    if not (one.ptr and other.ptr and -_BEYOND_FLOAT32 < alpha < _BEYOND_FLOAT32):
        return None
    if hip.current_device() != plan.device:
        return None
    if out is None:
        out = plan.new_out(stream)
        block = out._block
    else:
        block = out._block
        # Blocks of the pool do not overlap; memory of other libraries, of size 0, may be aliased.
        if block is one or block is other or not (block.ptr and block.size and one.size and other.size):
            return None
    if one.writer != stream:
        one.begin_read(stream)
    if other.writer != stream:
        other.begin_read(stream)
    if block.writer != stream or block.readers:
        block.begin_write(stream)
    first, second = (b, a) if plan.swapped else (a, b)
    assert plan.direct is not None
    bound, served = plan.direct
    bound.launch_product(stream, first._address, second._address, out._address, alpha, served)
    return out


def _call_key(op: Operation, call: tuple[Any, ...]) -> Any:
    """The cache key: everything that a plan and its checks depend on, except values and addresses."""
    a, b, out, dtype, alpha, col_scale, bias, offsets, recipe, accumulate, *stages = call
    return (
        op.name,
        a._layout or a._key if type(a) is DeviceArray else _key(a),
        b._layout or b._key if type(b) is DeviceArray else _key(b),
        None if out is None else out._layout or out._key if type(out) is DeviceArray else _key(out),
        dtype,
        None if type(alpha) is float else alpha._layout or alpha._key,
        None if col_scale is None else _key(col_scale),
        None if bias is None else _key(bias),
        None if offsets is None else _key(offsets),
        recipe,
        accumulate is False or (type(accumulate), accumulate),
        config.kernel,
        _stages_key(*stages) if stages else None,
    )


def _stages_key(residual: Any, activation: Any, glu: Any, aux: Any, *rest: Any) -> Any:
    """The part of the cache key of `Arguments.stages`."""
    out_format, out_scaling, state = rest
    return (
        None if residual is None else _key(residual),
        activation,
        glu,
        None if aux is None else _key(aux),
        out_format,
        out_scaling,
        None if state is None else (type(state), state.primed, state.device),
    )


def _key(x: Any) -> Any:
    """The part of the cache key of one operand."""
    kind = type(x)
    if kind is DeviceArray or (kind is ScaledArray and type(x.data) is type(x.scale) is DeviceArray):
        return x._layout or x._key
    if kind is ScaledArray:
        groups = x.group_offsets is None
        return (
            _key(x.data),
            _key(x.scale),
            x.shape,
            x.format,
            x.axis,
            x.hadamard,
            x.signs,
            x.signs_start,
            x.block,
            groups,
        )
    return kind, x.shape, x.strides, x.dtype, x.flags.writeable


def _number(alpha: Any) -> Any:
    """Convert any real number to float; return anything else unchanged, for the checks."""
    value = python_number(alpha)
    if not isinstance(value, Real) or isinstance(value, np.timedelta64):
        return alpha
    try:
        return nearest_float(value)
    except OverflowError:
        return alpha


def shapes() -> list[str]:
    """The arguments of ``python -m hipgemm tune`` for cached products that several kernels could serve."""
    found = {
        str(Shape.of(on_device(plan.problem)))
        for plan, _ in list(plans.values())
        if len(plan.choices) > 1 and not plan.choices[0].by_group
    }
    return sorted(found)


def forget_plans() -> None:
    """Choose again from the next calls on."""
    plans.clear()


def cached_choices(
    op: Operation, call: Arguments, arch: str | None
) -> tuple[Problem, tuple[Choice, ...]] | None:
    """The choices for a call that is valid and whose plan for this architecture is cached, if it is.

    `arch` None stands for that of the device that would serve the call.
    """
    if type(call.alpha) is not float:
        call = call._replace(alpha=_number(call.alpha))
    try:
        given = call if any(x is not None for x in call.stages) else call[:10]
        plan, host_plan = plans[_call_key(op, given)]
        stages = (call.residual, call.aux, call.out_amax) if plan.staged else ()
        valid = _is_valid(plan, call.a, call.b, call.out, (*call[4:8], *stages))
    except (AttributeError, KeyError, TypeError):
        return None
    if arch is None:
        same = host_plan is None or plan.device == hip.current_device()
    else:
        best = plan.choices[0]
        same = best.kernel.arch == arch and best.measured is None
    return (plan.problem, plan.choices) if valid and same else None


def _plan(op: Operation, call: Arguments, key: Any) -> tuple[Plan, host.HostPlan | None]:
    """Make a plan for a call, or raise its faults; the same checks as `can_use`."""
    offsets = call.offsets
    if type(offsets) is DeviceArray and not offsets.freed and _on_host(call.a):
        call = call._replace(offsets=offsets.get())  # to be checked on the host
    problem, reasons = describe(op, call)
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        raise_reasons(op.name, reasons)  # before any device is opened
    assert problem is not None
    device = hip.current_device() if problem.device is None else problem.device
    if problem.device is None and call.out_amax is not None:
        checks = Checks(op.name)
        checks.same_device("out_amax", call.out_amax.device, device, "the operands")
        checks.raise_all()
    try:
        with error_context(op.name):
            kernels = code_object(hip.arch(device)).kernels.values()
        found, unsupported = choices(problem, kernels, device)
        raise_reasons(op.name, reasons + unsupported)
    except UnsupportedError as error:
        tally.count_refused(op.name, error.reasons)
        raise
    _warn_of_plain_kernel(op, found[0])
    with error_context(op.name):
        plan = build(problem, found, device)
    host_plan = host.plan(problem, call) if problem.device is None else None
    if len(plans) >= _MAX_PLANS:
        plans.clear()
    if key is not None:
        plans[key] = plan, host_plan
    return plan, host_plan


_warned: set[str] = set()  # of what


def _warn_of_plain_kernel(op: Operation, choice: Choice) -> None:
    """Warn, once for each architecture or formats, that its GPUs have no kernels but the plain one."""
    arch = choice.kernel.arch
    if choice.kernel.op != PLAIN or config.kernel is not None:
        return
    what, able, which = arch, list(MATRIX_ARCHS), "all products"
    if arch in MATRIX_ARCHS:
        able = elsewhere(choice.problem, arch)
        what, which = f"{formats_of(choice.problem)} on {arch}", "these products"
    if able and what not in _warned:
        _warned.add(what)
        warn(
            PlainKernelWarning,
            f"{op.name}: no matrix kernels for {what}, only for {' or '.join(able)}: the plain kernel serves "
            f"{which}, correctly but slowly (HIPGEMM_KERNEL=plain hides this warning)",
        )


def _on_host(x: Any) -> bool:
    return isinstance(x, np.ndarray) or (isinstance(x, ScaledArray) and x.device is None)


# ---- checks of values and addresses ----------------------------------------------------------------


def _is_valid(plan: Plan, a: Any, b: Any, out: Any, more: tuple[Any, ...]) -> bool:
    """Whether values and addresses, which no cache key holds, are right too."""
    alpha = more[0]
    if type(alpha) is float and (alpha >= _BEYOND_FLOAT32 or alpha <= -_BEYOND_FLOAT32):
        return False
    if (out is not None or plan.staged) and not _apart(a, b, out, more):
        return False
    return not plan.op.ragged or _groups_fit(plan, a, b, more[3])


def _apart(a: Any, b: Any, out: Any, more: tuple[Any, ...]) -> bool:
    """Whether `out` and `aux` share no memory with another array, but for `out` that is `residual`."""
    inputs, aux = [*more[:4]], None
    if len(more) > 4:
        residual, aux, _ = more[4:]
        if residual is not out:
            inputs.append(residual)
    for x in (a, b):
        inputs += (x.data, x.scale) if type(x) is ScaledArray else (x,)
    if aux is not None and not all(_disjoint(aux, x) for x in (*inputs, out)):
        return False
    if type(out) is not DeviceArray:
        return out is None or all(_disjoint(out, x) for x in inputs)
    block = out._block
    for x in inputs:  # a loop: a generator costs as much as the rest
        if type(x) is DeviceArray and (x._block is block or not x._block.size or not block.size):
            return all(_disjoint(out, x) for x in inputs)
    return True


def _disjoint(x: Any, y: Any) -> bool:
    """Whether two arrays surely share no memory."""
    if type(x) is type(y) is DeviceArray:
        if x._block is not y._block and x._block.size and y._block.size:
            return True  # blocks of the pool do not overlap; memory of other libraries may be aliased
        (low, high), (other_low, other_high) = (
            byte_range(z.shape, z.strides, z.dtype.itemsize, z._address) for z in (x, y)
        )
        return low >= other_high or other_low >= high
    return not (isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y))


def _groups_fit(plan: Plan, a: Any, b: Any, offsets: Any) -> bool:
    """Whether offsets on the host are valid, and match the offsets that operands were quantized with."""
    known = type(offsets) is not DeviceArray
    if known and not in_order(offsets, plan.rows):
        return False
    for q in (a, b):
        if type(q) is ScaledArray:
            if q.group_offsets is not None:
                if not same_offsets(q.group_offsets, offsets):
                    return False
            elif plan.op.ragged == "k" and known and q.format[:2] == "mx" and (offsets % BLOCK).any():
                return False
    return True


# ---- execution: all work is queued on the stream, in order -----------------------------------------


def execute(plan: Plan, a: Any, b: Any, out: Any, more: tuple[Any, ...], stream: int) -> Any:
    """Queue a product of arrays on the current device, and return the result.

    `more` is alpha, col_scale, bias and offsets; with stages also residual, aux and out_amax. For a quantized
    result, `out` is None.
    """
    bound, served = plan.launch, plan.served
    result = out
    ends: tuple[int, ...] = ()
    out_scale = own_amax = 0
    if plan.result is not None:
        result, (data, out_scale, own_amax) = plan.result.allocate(plan.device, stream)
        out = DeviceArray(result.data._block, data, (), (), result.data.dtype)
    if served is None:
        return result
    alpha, col_scale, bias, offsets, *stages = more
    if plan.choices[0].by_group:
        by_group.wgrad(run, a, b, out, offsets, stream, plan.problem.accumulate)
        tally.count_call(served)
        return result
    if bound is None:
        return result
    state = None
    if stages:
        residual, aux, state = stages
        ends = stage_addresses(aux, residual, state, out_scale, own_amax, stream)
    # These return to the pool at the end of this function, for reuse on this stream.
    temporaries: list[hip.Block] = []
    if plan.op.ragged:
        if type(offsets) is not DeviceArray:
            offsets = upload_async(np.asarray(offsets, np.int32), plan.device, stream)
            temporaries.append(offsets._block)
        if plan.quantizes:
            with error_context(plan.op.name):
                a, b = (quantize_mxfp8(x, axis=0, group_offsets=offsets, stream=stream) for x in (a, b))
    first, second = (b, a) if plan.swapped else (a, b)
    scales: tuple[int, ...] = ()
    if plan.in_place:
        if first._block.writer != stream:
            first._block.begin_read(stream)
        if second._block.writer != stream:
            second._block.begin_read(stream)
        first_ptr, second_ptr = first.ptr, second.ptr
    else:
        first_ptr, first_scales = _read(plan, plan.first, first, offsets, stream, temporaries)
        second_ptr, second_scales = _read(plan, plan.second, second, offsets, stream, temporaries)
        scales = first_scales + second_scales
    device = plan.device
    vectors: tuple[Any, ...] = ()
    if not plan.op.ragged or plan.given_vectors:
        if type(alpha) is float:
            alpha_ptr = 0
        else:
            alpha._block.begin_read(stream)
            alpha_ptr, alpha = alpha.ptr, 1.0
        scale_ptr = 0 if col_scale is None else _read_vector(col_scale, device, stream, temporaries)
        bias_ptr = 0 if bias is None else _read_vector(bias, device, stream, temporaries)
        vectors = alpha_ptr, scale_ptr, bias_ptr
    block = out._block
    if block.writer != stream or block.readers:
        block.begin_write(stream)
    out_ptr = out.ptr
    if plan.out_copy is not None:
        copied = hip.allocate(plan.out_copy.nbytes, device, stream)
        temporaries.append(copied)
        out_ptr = copied.ptr
        if plan.problem.accumulate:
            _copy(plan.out_copy.back, device, stream, out.ptr, out_ptr)
    pointers: tuple[int, ...] = first_ptr, second_ptr, out_ptr
    if plan.op.ragged:
        offsets._block.begin_read(stream)
        pointers += (offsets.ptr,)
    if plan.one_launch:
        bound.launch(stream, (*pointers, *vectors, *scales, alpha, *ends), served)
    else:
        _launch_parts(plan, stream, pointers, vectors, scales, alpha, ends)
        tally.count_call(served)
    if state is not None:
        state._update(own_amax, stream)
    if plan.out_copy is not None:
        tally.count_copy(plan.op.name, "out", plan.out_copy.reason, plan.out_copy.nbytes)
        _copy(plan.out_copy, device, stream, out_ptr, out.ptr)
    return result


def _launch_parts(
    plan: Plan,
    stream: int,
    pointers: tuple[int, ...],
    vectors: tuple[Any, ...],
    scales: tuple[int, ...],
    alpha: float,
    ends: tuple[int, ...],
) -> None:
    """Run a plan with several launches: for axes that one launch cannot cover, parts of K, or stages."""
    bound, reduce = plan.launch, plan.reduce
    assert bound is not None
    workspace = hip.allocate(plan.workspace, plan.device, stream) if reduce else None
    offsets = pointers[3:]
    row_end = offsets[0] + plan.problem.groups * _OFFSET_BYTES if offsets else 0
    for starts in plan.starts or ((0,) * 8,):
        a, b, c = (pointer + start for pointer, start in zip(pointers[:3], starts, strict=False))
        own = tuple([pointer + start for pointer, start in zip(scales, starts[3:5], strict=False)])
        # aux, residual and the result's scales: 0 stays 0
        moved = [end and end + start for end, start in zip(ends, starts[5:], strict=False)]
        stages = (*moved, *ends[3:])
        if reduce is None:
            bound.launch(stream, (a, b, c, *vectors, *own, alpha, *stages))
            continue
        assert workspace is not None
        inner, outer = (own, ()) if plan.inner_scales else ((), own)
        before, factor, after, rest = ((0, 0, 0), 1.0, vectors, alpha)
        if plan.applied:
            before, factor, after, rest = vectors, alpha, (0, 0, 0), 1.0
        bound.launch(stream, (a, b, workspace.ptr, *offsets, *before, *inner, factor))
        reduce.launch(stream, (workspace.ptr, c, *after, *outer, rest, *stages, row_end))


def _read(
    plan: Plan, side: OperandPlan, x: Operand, offsets: Any, stream: int, temporaries: list[hip.Block]
) -> tuple[int, tuple[int, ...]]:
    """Return the addresses of an operand, copied if needed, and of its scales."""
    if plan.op.ragged and not plan.reads:
        return 0, (0,) if plan.scaled else ()
    stored: DeviceArray = x.data if isinstance(x, ScaledArray) else x
    stored._block.begin_read(stream)
    ptr = stored.ptr
    if side.copy is not None:
        tally.count_copy(plan.op.name, side.name, side.copy.reason, side.copy.nbytes)
        ptr = _copied(side.copy, stored, stream, temporaries)
    if not isinstance(x, ScaledArray):
        return ptr, (0,) if plan.scaled else ()
    if side.group_scales:
        return ptr, (_group_scales(plan, x, offsets, stream, temporaries),)
    return ptr, (_read_scales(plan, side, x, stream, temporaries),)


def _copied(copy: Copy, x: DeviceArray, stream: int, temporaries: list[hip.Block]) -> int:
    block = hip.allocate(copy.nbytes, x.device, stream)
    temporaries.append(block)
    _copy(copy, x.device, stream, x.ptr, block.ptr)
    return block.ptr


def _copy(copy: Copy, device: int, stream: int, source: int, target: int) -> None:
    """Queue a copy, with one launch for all axes that can be merged."""
    shape = copy.shape
    lead, (from_steps, to_steps) = merge(shape[:-1], copy.source[:-1], copy.target[:-1])
    rows, from_row, to_row = (lead[-1], from_steps[-1], to_steps[-1]) if lead else (1, 0, 0)
    for index in np.ndindex(*lead[:-1]):
        begin = [
            sum(i * step for i, step in zip(index, steps, strict=False)) for steps in (from_steps, to_steps)
        ]
        copy_strided(
            device,
            stream,
            copy.item,
            (source + begin[0], from_row, copy.source[-1]),
            (target + begin[1], to_row, copy.target[-1]),
            rows,
            shape[-1],
            copy.padded,
        )


def _read_scales(
    plan: Plan, side: OperandPlan, q: ScaledArray, stream: int, temporaries: list[hip.Block]
) -> int:
    """Return the address of the scales of an operand."""
    where, scale = side.scales, q.scale
    assert where is not None
    if where.blocked:
        block, ptr = _block_scales(where, q, stream)
        temporaries.append(block)  # another thread may replace it in the cache
        return ptr
    scale._block.begin_read(stream)
    if where.copy is None:
        return int(scale.ptr)
    tally.count_copy(plan.op.name, f"{side.name}.scale", where.copy.reason, where.copy.nbytes)
    return _copied(where.copy, scale, stream, temporaries)


def _block_scales(where: ScalePlan, q: ScaledArray, stream: int) -> tuple[hip.Block, int]:
    """Return the reordered block scales and their address; they are cached at the first product."""
    scale, source_ptr = q.scale, q.scale.ptr  # must not be freed, though they are not read again
    found: tuple[hip.Block, int] | None = q._kernel_scales.get(where.cache_key)
    if found is not None and found[0].ptr:
        found[0].begin_read(stream)
        return found
    block = hip.allocate(where.nbytes + where.padding, scale.device, stream)
    hip.clear(block.ptr + where.nbytes, where.padding, stream)
    scale._block.begin_read(stream)
    if where.order is not None:
        for source, target in where.starts:
            where.order.launch(stream, (source_ptr + source, block.ptr + target))
    found = q._kernel_scales[where.cache_key] = block, block.ptr
    return found


def _group_scales(
    plan: Plan, q: ScaledArray, offsets: DeviceArray, stream: int, temporaries: list[hip.Block]
) -> int:
    """Return the address of MX scales along the columns of groups of rows."""
    scale, scale_ptr = q.scale, q.scale.ptr  # as in `_block_scales`
    cached: tuple[hip.Block, int] | None = q._kernel_scales.get("groups")
    if cached is not None and cached[0].ptr:
        cached[0].begin_read(stream)
        temporaries.append(cached[0])
        return cached[1]
    rows, columns = q.shape
    block = hip.allocate(group_scale_bytes(rows, columns, plan.problem.groups), scale.device, stream)
    temporaries.append(block)
    scale._block.begin_read(stream)
    kernel = function(scale.device, "mx_group_scale")
    words = 4 * mn_scale_step(columns) // 2
    launch(
        kernel,
        group_slots(rows, plan.problem.groups, _GROUP_UNIT) * -(-words // kernel.tile[0]),
        stream,
        src=scale_ptr,
        dst=block.ptr,
        offsets=offsets.ptr,
        status=plan.error_slot,
        src_row_stride=scale.strides[0],
        src_col_stride=scale.strides[1],
        rows=rows,
        cols=columns,
        groups=plan.problem.groups,
        by_group=q.group_offsets is not None,
    )
    if q.group_offsets is not None:  # otherwise the next call may have other offsets
        q._kernel_scales["groups"] = block, block.ptr
    return block.ptr


def _read_vector(x: Any, device: int, stream: int, temporaries: list[hip.Block]) -> int:
    """Return where the kernel finds an epilogue vector; one on the host is uploaded without waiting."""
    if type(x) is DeviceArray:
        x._block.begin_read(stream)
        return x.ptr
    made = upload_async(x, device, stream)
    temporaries.append(made._block)
    return made.ptr
