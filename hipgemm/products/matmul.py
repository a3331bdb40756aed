"""The public `matmul`: check, choose, lay out, launch."""

from __future__ import annotations

from numbers import Real
from typing import Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, download, lend, operators, queue_rows
from ..config import config
from ..errors import Reason, UnsupportedError, raise_reasons, told_by
from ..formats.elements import QUANTIZED
from ..formats.scaled import ScaledArray, packed_data
from ..formats.strides import rows_contiguous
from ..kernels.manifest import code_object
from ..quantize.plan import as_mxfp8
from ..runtime import hip as _hip
from ..runtime import tally
from .choose import Choice, host_copies, select
from .plan import Operands, Plan, build, execute
from .problem import GemmProblem, describe_matmul

Host = npt.NDArray[Any]
Vector = Host | DeviceArray
Number = float | np.floating[Any] | DeviceArray  # alpha


@overload
def matmul(
    a: Host,
    b: Host,
    /,
    out: Host | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> Host: ...


@overload
def matmul(
    a: DeviceArray,
    b: DeviceArray,
    /,
    out: DeviceArray | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> DeviceArray: ...


# A TypeError. Yet with these, operands that may be either have a type.
@overload
def matmul(
    a: Host,
    b: DeviceArray,
    /,
    out: Vector | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> NoReturn: ...


@overload
def matmul(
    a: DeviceArray,
    b: Host,
    /,
    out: Vector | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> NoReturn: ...


@overload
def matmul(
    a: ScaledArray,
    b: ScaledArray,
    /,
    out: Host | DeviceArray | None = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> Any: ...


def matmul(
    a: Any,
    b: Any,
    /,
    out: Any = None,
    *,
    dtype: npt.DTypeLike | None = None,
    alpha: Number = 1.0,
    col_scale: Vector | None = None,
    bias: Vector | None = None,
    stream: Any = None,
) -> Any:
    """Multiply matrices: ``out = (a @ b) * alpha * col_scale + bias``.

    Sums are kept in float32, and the result is rounded once.

    Parameters
    ----------
    a, b : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (.., M, K) and (.., K, N) of bfloat16, of float16, or quantized alike, both on the host or
        both on one device. Leading axes broadcast as those of `numpy.matmul`. Blocks of quantized ones lie
        along K, whose scales are applied before the sum is rounded.
    out : array, optional
        Where to put the result: (.., M, N), any strides, in the same place as `a`; not overlapping an input.
    dtype : dtype, optional
        bfloat16, float16 or float32. Default: that of `out`, else float16 for float16 operands, else
        bfloat16.
    alpha : float or 0-d float32 DeviceArray
        A factor.
    col_scale : float32 array (N,), optional
        A factor for each column, on the host or the device.
    bias : array (N,), optional
        bfloat16, float16 or float32; added last, on the host or the device.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        Like the inputs. A DeviceArray comes back at once; `get` waits for it.

    Raises
    ------
    TypeError, ValueError
        For arguments that are wrong, all faults listed. One-dimensional operands are.
    UnsupportedError
        For arguments that are right but have no kernel: extents of 2**31 and more, and results of so many
        tiles that no grid holds them. Its `reasons` say why.

    Notes
    -----
    bfloat16, float16 and fp8 operands are read in place in all four layouts, so ``x @ w.T`` and ``a.T @ b``
    copy nothing, nor does an output whose columns are contiguous; MX operands are read along K. What a
    kernel cannot read so (a base or a pitch that is no multiple of 16 bytes, say) is laid out anew on the
    device first, which `usage` counts and `can_use` foretells.

    Leading axes take one launch as long as they come down to two strides, and one for each entry of any
    other. Where all share `b` and the rows of `a` follow each other, they are one product of more rows.
    Operands may be larger than 4 GiB, as may strides.

    A model of the device chooses the tile, and cuts K into parts where there are too few tiles; parts are
    summed in order, so the same call gives the same bits. The plain kernel serves what no other can, slowly;
    `usage` and `can_use` say why. HIPGEMM_KERNEL=plain forces it, the name of another one that one.

    To sum over a batch as well as its rows, as for gradients of weights, flatten both:
    ``dy.reshape(-1, N).T @ x.reshape(-1, K)``.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> x = np.ones((2, 3), ml_dtypes.bfloat16)
    >>> w = np.full((4, 3), 2, ml_dtypes.bfloat16)
    >>> hg.matmul(x, w.T, dtype=np.float32, bias=np.arange(4, dtype=np.float32))
    array([[6., 7., 8., 9.],
           [6., 7., 8., 9.]], dtype=float32)
    >>> hg.matmul(hg.quantize_mxfp8(x), hg.quantize_mxfp8(w).T, dtype=np.float32)
    array([[6., 6., 6., 6.],
           [6., 6., 6., 6.]], dtype=float32)
    >>> hg.matmul(hg.zeros((5, 2, 3), np.float16), hg.zeros((3, 4), np.float16))
    DeviceArray(shape=(5, 2, 4), dtype=float16, device=0)
    """
    handle = 0 if stream is None else _hip.stream_handle("matmul", stream)
    number = alpha if type(alpha) is float else _number(alpha)
    if type(a) is DeviceArray and type(b) is DeviceArray:
        x, y = a, b
    elif _quantized_on_device(a) and _quantized_on_device(b):
        if a.format != b.format:
            a, b = _alike(a, b, handle)
        x, y = a.data, b.data
    else:
        return _on_host(a, b, out, dtype, number, col_scale, bias, handle)
    plan = _plan(a, b, out, dtype, number, col_scale, bias)
    if type(number) is float and abs(number) >= _BEYOND_FLOAT32:
        _check(a, b, out, dtype, number, col_scale, bias)  # raises unless it is an infinity
    if out is None:
        out = plan.new_out(x.device, handle)
    elif plan.may_overlap(x, y, out, number, col_scale, bias) or (x is not a and _on_scales(out, a, b)):
        _check(a, b, out, dtype, number, col_scale, bias)  # raises if they do
    if _hip.current_device() == x.device:
        execute(plan, a, b, out, number, col_scale, bias, handle)
    else:
        with _hip.on_device(x.device):
            execute(plan, a, b, out, number, col_scale, bias, handle)
    return out


operators["@"] = matmul


def _quantized_on_device(x: Any) -> bool:
    return type(x) is ScaledArray and type(x.data) is DeviceArray


def _alike(a: ScaledArray, b: ScaledArray, stream: int) -> tuple[ScaledArray, ScaledArray]:
    """Widen mxfp4 beside mxfp8; leave any other pair as it is."""
    forms = [QUANTIZED[q.format] for q in (a, b)]
    if {form.bits for form in forms} != {4, 8} or not all(form.block for form in forms):
        return a, b
    name, q = ("a", a) if forms[0].bits == 4 else ("b", b)
    if "mxfp8" not in q._kernel_scales:
        tally.count_copy("matmul", name, "4 bits beside 8")
    with _hip.on_device(q.data.device):
        wide = as_mxfp8(q, stream)
    return (wide, b) if q is a else (a, wide)


def _on_scales(out: DeviceArray, a: ScaledArray, b: ScaledArray) -> bool:
    """Whether `out` may share memory with scales."""
    ptr = out._block.ptr
    return bool(ptr == a.scale._block.ptr or ptr == b.scale._block.ptr)


def _number(alpha: Any) -> Any:
    """Turn a number of any kind into a float; leave anything else to be described as a fault."""
    value = alpha.item() if isinstance(alpha, (np.generic, np.ndarray)) and alpha.shape == () else alpha
    try:
        return float(value) if isinstance(value, Real) else alpha
    except OverflowError:
        return alpha


# ---- plans -----------------------------------------------------------------------------------------


_plans: dict[Any, Any] = {}  # also of products of groups
_MAX_PLANS = 4096
_BEYOND_FLOAT32 = 2.0**128 - 2.0**103  # rounds to infinity


def _plan(a: Operands, b: Operands, out: Any, dtype: Any, alpha: Any, col_scale: Any, bias: Any) -> Plan:
    """Return the plan for a call: the one kept from a call like it, or a new one."""
    key: Any = None
    plan: Plan | None = None
    try:
        # Everything that a plan and the checks behind it depend on, except where arrays lie.
        key = (
            a._key if type(a) is DeviceArray else _operand_key(a),
            b._key if type(b) is DeviceArray else _operand_key(b),
            None if out is None else out._key,
            dtype,
            None if type(alpha) is float else alpha._key,
            None if col_scale is None else _vector_key(col_scale),
            None if bias is None else _vector_key(bias),
            config.kernel,
        )
        plan = _plans.get(key)
    except (AttributeError, TypeError):  # wrong in a way that the description will tell
        pass
    if plan is None:
        plan = _make_plan(a, b, out, dtype, alpha, col_scale, bias)
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        if key is not None:
            _plans[key] = plan
    return plan


def _operand_key(x: Any) -> Any:
    if type(x) is DeviceArray:
        return x._key
    return x.data._key, x.scale._key, x.shape, x.format, x.axis, x.hadamard, x.group_offsets is None


def _vector_key(x: Any) -> Any:
    return x._key if type(x) is DeviceArray else (type(x), x.shape, x.dtype)


def _describe(
    a: Operands, b: Operands, out: Any, dtype: Any, alpha: Any, col_scale: Any, bias: Any
) -> tuple[GemmProblem | None, list[Reason]]:
    return describe_matmul(a, b, out, dtype=dtype, alpha=alpha, col_scale=col_scale, bias=bias)


def _check(*call: Any) -> None:
    """Raise what stands against a call for which there is a plan already: where arrays lie, and values."""
    raise_reasons("matmul", _describe(*call)[1])


def _make_plan(a: Operands, b: Operands, *others: Any) -> Plan:
    problem, reasons = _describe(a, b, *others)
    device = a.device
    assert device is not None
    problem, choice = _choose(problem, reasons, _hip.arch(device))
    with told_by("matmul"):
        return build(problem, choice, device)


def _choose(problem: GemmProblem | None, reasons: list[Reason], arch: str) -> tuple[GemmProblem, Choice]:
    """Return how a product is computed, or raise what stands against it; the same checks as `can_use`."""
    choice = None
    try:
        if problem is not None and all(r.kind is UnsupportedError for r in reasons):
            with told_by("matmul"):
                kernels = code_object(arch).kernels.values()
            choice, unsupported = select(problem, kernels)
            reasons = reasons + unsupported
        raise_reasons("matmul", reasons)
    except UnsupportedError as error:
        tally.count_refused("matmul", error.reasons)
        raise
    assert problem is not None
    assert choice is not None
    return problem, choice


# ---- operands on the host --------------------------------------------------------------------------


def _on_host(
    a: Any, b: Any, out: Any, dtype: Any, alpha: Any, col_scale: Any, bias: Any, stream: int
) -> Host:
    """Bring operands up, multiply, bring the result down; nothing is pending when this returns."""
    problem, reasons = describe_matmul(a, b, out, dtype=dtype, alpha=alpha, col_scale=col_scale, bias=bias)
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        raise_reasons("matmul", reasons)  # before any device is opened
    device = _hip.current_device()
    problem, _ = _choose(problem, reasons, _hip.arch(device))
    shape = (*problem.batch, problem.m, problem.n)
    result = np.empty(shape, problem.out_format.dtype) if out is None else out
    if result.size == 0:
        return result
    for name, reason in host_copies(problem):
        tally.count_copy("matmul", name, reason)
    with _hip.on_device(device):
        try:
            a_device = _bring_up_operand(a, device, stream)
            b_device = _bring_up_operand(_turn(b), device, stream).mT
            if isinstance(a_device, ScaledArray) and a_device.format != b_device.format:
                a_device, b_device = _alike(a_device, b_device, stream)
            plan = _plan(a_device, b_device, None, problem.out_format.dtype, alpha, col_scale, bias)
            out_device = plan.new_out(device, stream)
            execute(plan, a_device, b_device, out_device, alpha, col_scale, bias, stream)
            download(out_device.ptr, out_device.shape, out_device.strides, result, stream)
        except BaseException:
            _hip.quiesce(stream)  # nothing is pending when this returns
            raise
    return result


def _turn(x: Any) -> Any:
    """Exchange the last two axes."""
    return x.mT if isinstance(x, ScaledArray) else np.asarray(x).swapaxes(-1, -2)


def _bring_up_operand(x: Any, device: int, stream: int) -> Any:
    """Queue the upload of matrices (.., rows, K), quantized or not."""
    if not isinstance(x, ScaledArray):
        return _bring_up(np.asarray(x), device, stream)
    form = QUANTIZED[x.format]
    data = _bring_up(packed_data(x), device, stream)
    scale = lend(x.scale, device, stream)
    return ScaledArray._make(data, scale, form, -1, x.shape, hadamard=x.hadamard)


def _bring_up(x: Host, device: int, stream: int) -> DeviceArray:
    """Queue the upload of an operand (.., rows, K), in the layout that `uploaded` tells."""
    item, shape = x.dtype.itemsize, x.shape
    broadcast = [n > 1 and step == 0 for n, step in zip(shape[:-2], x.strides, strict=False)]
    x = x[tuple(slice(0, 1) if once else slice(None) for once in broadcast) or ...]
    turned = False
    if not rows_contiguous(x.shape[-2:], x.strides[-2:], item):
        turned = rows_contiguous(x.shape[:-3:-1], x.strides[:-3:-1], item)
        x = x.swapaxes(-1, -2) if turned else np.ascontiguousarray(x)
    made = queue_rows(x, device, stream)
    lead = (0 if once else step for once, step in zip(broadcast, made.strides, strict=False))
    last = made.strides[:-3:-1] if turned else made.strides[-2:]
    return DeviceArray(made._block, made.ptr, shape, (*lead, *last), x.dtype, padded=True)
