"""The public `matmul`: check, choose, lay out, launch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Real
from typing import Any, NoReturn, overload

import numpy as np
import numpy.typing as npt

from . import _hip, _launch, usage
from .array import DeviceArray, download, lend, new, operators, queue_rows, queue_upload, rows_contiguous
from .errors import UnsupportedError, raise_reasons, told_by
from .formats import QUANTIZED, Format
from .manifest import code_object
from .problem import GemmProblem, Operand, byte_range, describe_matmul
from .quantize import as_mxfp8
from .scaled import ScaledArray, packed_data
from .support import copy_reason, leading, padded_k, pitch_fits, select, tiles

Host = npt.NDArray[Any]
Vector = Host | DeviceArray
Operands = DeviceArray | ScaledArray
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
    """Multiply two matrices: ``out = (a @ b) * alpha * col_scale + bias``.

    Sums are kept in float32, and the result is rounded once. ``a @ w.T`` with C-contiguous `a` and `w`
    is read in place; other layouts are laid out anew on the device first, which `usage` counts.

    Parameters
    ----------
    a, b : numpy.ndarray, DeviceArray or ScaledArray
        Matrices (M, K) and (K, N) of bfloat16, or quantized alike, in any layout, both on the host or both
        on one device. Blocks of quantized ones lie along K, whose scales are applied before the sum is
        rounded.
    out : array, optional
        Where to put the result: (M, N), any strides, in the same place as `a`; not overlapping an input.
    dtype : dtype, optional
        bfloat16 (the default), float16 or float32.
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
        For arguments that are wrong, all faults listed.
    UnsupportedError
        For arguments that are right but have no kernel; its `reasons` say why.

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
    arguments = _Arguments(out, dtype, number, col_scale, bias)
    plan = _plans.get(_key(a, b, arguments)) or _make_plan(a, b, arguments)
    if type(number) is float and abs(number) >= _BEYOND_FLOAT32:
        _make_plan(a, b, arguments)  # raises unless it is an infinity
    if out is None:
        out = new((plan.m, plan.n), plan.out_format.dtype, x.device, handle)
    elif plan.may_overlap(x, y, out, col_scale, bias) or (x is not a and _on_scales(out, a, b)):
        _make_plan(a, b, arguments)  # raises if they do
    if _hip.runtime().devices == 1:
        _execute(plan, a, b, out, number, col_scale, bias, handle)
    else:
        with _hip.on_device(x.device):
            _execute(plan, a, b, out, number, col_scale, bias, handle)
    return out


operators["@"] = matmul


def _quantized_on_device(x: Any) -> bool:
    return type(x) is ScaledArray and type(x.data) is DeviceArray


def _alike(a: ScaledArray, b: ScaledArray, stream: int) -> tuple[ScaledArray, ScaledArray]:
    """Widen mxfp4 beside mxfp8; leave any other pair as it is."""
    forms = [QUANTIZED[q.format] for q in (a, b)]
    if {form.bits for form in forms} != {4, 8} or not all(form.block for form in forms):
        return a, b
    if a.ndim != 2 or b.ndim != 2:
        return a, b
    name, q = ("a", a) if forms[0].bits == 4 else ("b", b)
    if "mxfp8" not in q._kernel_scales:
        usage.count_copy("matmul", name, "4 bits beside 8")
    with _hip.on_device(q.data.device):
        wide = as_mxfp8(q, stream)
    return (wide, b) if q is a else (a, wide)


def _on_scales(out: DeviceArray, *operands: ScaledArray) -> bool:
    """Whether `out` may share memory with scales."""
    return any(out._block.ptr == q.scale._block.ptr for q in operands)


def _number(alpha: Any) -> Any:
    """Turn a number of any kind into a float; leave anything else to be described as a fault."""
    value = alpha.item() if isinstance(alpha, (np.generic, np.ndarray)) and alpha.shape == () else alpha
    try:
        return float(value) if isinstance(value, Real) else alpha
    except OverflowError:
        return alpha


# ---- plans: everything about a call but addresses and values ---------------------------------------


@dataclass(frozen=True)
class _Side:
    """How an operand (rows, K) reaches the kernel: in place, or by a copy and for this reason."""

    name: str
    reason: str | None
    rows: int
    columns: int  # items of memory along K: numbers, or bytes of two 4-bit numbers
    strides: tuple[int, ...]
    item: int  # bytes of an item
    width: int  # bytes of a row laid out anew
    leading: int  # numbers from row to row, as the kernel sees it


@dataclass(frozen=True)
class _Plan:
    kernel: _launch.Function | None  # None where the result is empty
    workgroups: int
    m: int
    n: int
    k: int
    padded_k: int
    first: _Side
    second: _Side
    swapped: bool  # the kernel computes the transpose, from exchanged operands
    direct: bool  # the kernel writes into out itself
    leading_out: int
    out_format: Format
    out_type: int
    bias_type: int
    ranges: tuple[tuple[int, int], ...]  # bytes that a, b and out span, from their addresses

    def may_overlap(self, a: DeviceArray, b: DeviceArray, out: DeviceArray, *vectors: Any) -> bool:
        """Whether what `out` spans meets what an input spans."""
        (a_low, a_high), (b_low, b_high), (low, high) = self.ranges
        ptr = out.ptr
        low, high = ptr + low, ptr + high
        ptr = a.ptr
        if ptr + a_low < high and low < ptr + a_high:
            return True
        ptr = b.ptr
        if ptr + b_low < high and low < ptr + b_high:
            return True
        return any(type(x) is DeviceArray and low < x.ptr + x.nbytes and x.ptr < high for x in vectors)


@dataclass(frozen=True, slots=True)
class _Arguments:
    """What a call was given besides a, b and the stream."""

    out: Any
    dtype: Any
    alpha: Any
    col_scale: Any
    bias: Any


_plans: dict[Any, _Plan] = {}
_MAX_PLANS = 4096
_BEYOND_FLOAT32 = 2.0**128 - 2.0**103  # rounds to infinity


@contextmanager
def only_kernel(name: str) -> Iterator[None]:
    """Let one kernel serve whatever is multiplied meanwhile, for tests. Not for use beside other threads."""
    before = os.environ.get("HIPGEMM_KERNEL")
    os.environ["HIPGEMM_KERNEL"] = name
    _plans.clear()
    try:
        yield
    finally:
        del os.environ["HIPGEMM_KERNEL"]
        if before is not None:
            os.environ["HIPGEMM_KERNEL"] = before
        _plans.clear()


def _key(a: Operands, b: Operands, x: _Arguments) -> Any:
    """Everything that a plan and the checks behind it depend on, except where arrays lie."""
    try:
        key = (
            _operand_key(a),
            _operand_key(b),
            None if x.out is None else x.out._key,
            x.dtype,
            None if type(x.alpha) is float else x.alpha._key,
            None if x.col_scale is None else _vector_key(x.col_scale),
            None if x.bias is None else _vector_key(x.bias),
        )
        hash(key)
    except (AttributeError, TypeError):
        return None  # wrong in a way that the description will tell
    return key


def _operand_key(x: Any) -> Any:
    if type(x) is DeviceArray:
        return x._key
    return x.data._key, x.scale._key, x.shape, x.format, x.axis, x.hadamard


def _vector_key(x: Any) -> Any:
    return x._key if type(x) is DeviceArray else (x.shape, x.dtype)


def _make_plan(a: Operands, b: Operands, x: _Arguments) -> _Plan:
    problem, reasons = describe_matmul(
        a, b, x.out, dtype=x.dtype, alpha=x.alpha, col_scale=x.col_scale, bias=x.bias
    )
    device = a.device
    assert device is not None
    problem = _supported(problem, reasons, _hip.arch(device))
    with told_by("matmul"):
        plan = _build(problem, device)
    key = _key(a, b, x)
    if key is not None:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def _supported(problem: GemmProblem | None, reasons: list[Any], arch: str) -> GemmProblem:
    """Raise what stands against a call; the same checks as `can_use`."""
    try:
        if problem is not None and all(r.kind is UnsupportedError for r in reasons):
            with told_by("matmul"):
                kernels = code_object(arch).kernels.values()
            reasons = reasons + select(problem, kernels)[1]
        raise_reasons("matmul", reasons)
    except UnsupportedError as error:
        usage.count_refused("matmul", error.reasons)
        raise
    assert problem is not None
    return problem


def _build(p: GemmProblem, device: int) -> _Plan:
    kernels = code_object(_hip.arch(device)).kernels
    chosen, _ = select(p, kernels.values())
    assert chosen is not None
    item = p.out_format.itemsize
    sides = [("a", p.a), ("b", p.b.transposed)]
    swapped, direct, leading_out = False, True, p.n
    if p.out is not None:
        direct = p.out.rows_contiguous and pitch_fits(p.out.pitch, item)
        columns = p.out.transposed
        if direct:
            leading_out = p.out.pitch
        elif (
            columns.rows_contiguous
            and pitch_fits(columns.pitch, item)
            and not p.col_scale
            and p.bias is None
            and p.a.format == p.b.format
        ):
            swapped, direct, leading_out = True, True, columns.pitch
            sides.reverse()

    def side(name: str, x: Operand) -> _Side:
        reason = copy_reason(x, chosen)
        step = leading(x, chosen) if reason is None else padded_k(p.k, chosen)
        width = padded_k(p.k, chosen) * x.format.bits // 8
        rows, columns = x.shape
        return _Side(name, reason, rows, columns, x.strides, x.format.itemsize, width, step)

    spans = [byte_range(x.shape, x.strides, x.format.itemsize, 0) for x in (p.a, p.b)]
    spans.append((0, 0) if p.out is None else byte_range(p.out.shape, p.out.strides, item, 0))
    return _Plan(
        kernel=_launch.function(device, chosen.name) if p.m and p.n else None,
        workgroups=tiles(p, chosen, swapped),
        m=p.m,
        n=p.n,
        k=p.k,
        padded_k=padded_k(p.k, chosen),
        first=side(*sides[0]),
        second=side(*sides[1]),
        swapped=swapped,
        direct=direct,
        leading_out=leading_out,
        out_format=p.out_format,
        out_type=_launch.TYPE_CODES[p.out_format.name],
        bias_type=_launch.TYPE_CODES[p.bias.name] if p.bias else 0,
        ranges=tuple(spans),
    )


# ---- execution: everything is queued on the stream, in order ---------------------------------------


def _execute(
    plan: _Plan,
    a: Operands,
    b: Operands,
    out: DeviceArray,
    alpha: Any,
    col_scale: Any,
    bias: Any,
    stream: int,
) -> None:
    """Queue the product. The device of all arrays is current."""
    kernel = plan.kernel
    if kernel is None:
        return
    device = out.device
    first, second = (b, a) if plan.swapped else (a, b)
    rows, columns = (plan.n, plan.m) if plan.swapped else (plan.m, plan.n)
    # These go back to the pool when this function ends, and serve this stream next.
    temporaries: list[_hip.Block] = []
    first_ptr = _read(plan.first, first, stream, temporaries)
    second_ptr = _read(plan.second, second, stream, temporaries)
    scales: tuple[int, ...] = ()
    if type(first) is ScaledArray and type(second) is ScaledArray:
        scales = (*_read_scales(plan, first, second, stream, temporaries), 0, 0, 0, 0)
    if type(alpha) is float:
        alpha_ptr = 0
    else:
        alpha._block.reading(stream)
        alpha_ptr, alpha = alpha.ptr, 1.0
    scale_ptr = 0 if col_scale is None else _read_vector(col_scale, device, stream, temporaries)
    bias_ptr = 0 if bias is None else _read_vector(bias, device, stream, temporaries)
    out._block.writing(stream)
    if plan.direct:
        out_ptr = out.ptr
    else:
        result = _hip.allocate(plan.m * plan.n * plan.out_format.itemsize, device, stream)
        temporaries.append(result)
        out_ptr = result.ptr
    _launch.launch(
        kernel,
        plan.workgroups,
        stream,
        first_ptr,
        second_ptr,
        out_ptr,
        alpha_ptr,
        scale_ptr,
        bias_ptr,
        plan.first.leading,
        plan.second.leading,
        plan.leading_out,
        *(0, 0, 0, 0, 0, 0, 0),  # batch
        rows,
        columns,
        plan.padded_k,
        *(1, 1, 0),  # batch_inner, splits, split_tiles
        alpha,
        plan.out_type,
        plan.bias_type,
        *scales,
    )
    if not plan.direct:
        item = plan.out_format.itemsize
        usage.count_copy("matmul", "out", "rows not contiguous")
        packed = (out_ptr, plan.n * item, item)
        row, column = out.strides
        _launch.copy_strided(device, stream, item, packed, (out.ptr, row, column), plan.m, plan.n)


def _read(side: _Side, x: Operands, stream: int, temporaries: list[_hip.Block]) -> int:
    """Return where the kernel finds an operand, laid out anew if it must be."""
    stored: DeviceArray = x.data if isinstance(x, ScaledArray) else x
    stored._block.reading(stream)
    if side.reason is None:
        return stored.ptr
    block = _hip.allocate(side.rows * side.width, stored.device, stream)
    temporaries.append(block)
    usage.count_copy("matmul", side.name, side.reason)
    # The second operand is given as (K, N) and used as (N, K): its strides are turned already.
    _launch.copy_strided(
        stored.device,
        stream,
        side.item,
        (stored.ptr, side.strides[0], side.strides[1]),
        (block.ptr, side.width, side.item),
        side.rows,
        side.columns,
        side.width // side.item,
    )
    return block.ptr


def _read_scales(
    plan: _Plan, first: ScaledArray, second: ScaledArray, stream: int, temporaries: list[_hip.Block]
) -> tuple[int, ...]:
    """Return where the kernel finds the scales of both operands, and how far apart they are."""
    pointers, steps = [], []
    for side, q in ((plan.first, first), (plan.second, second)):
        if QUANTIZED[q.format].block:
            pointers.append(_gemm_scales(q, side.rows, plan.k, stream))
            steps.append(_launch.gemm_scale_step(side.rows))
        elif q.scale.shape == ():
            pointers.append(_read_vector(q.scale, q.scale.device, stream, temporaries))
            steps.append(0)
        else:
            pointers.append(_read_row_scales(side, q.scale, stream, temporaries))
            steps.append(1)
    return (*pointers, *steps)


def _gemm_scales(q: ScaledArray, rows: int, k: int, stream: int) -> int:
    """Return where the scales lie in the order that kernels read, made at the first product and kept."""
    found: tuple[_hip.Block, int] | None = q._kernel_scales.get("gemm")
    if found is not None and found[0].ptr:
        found[0].reading(stream)
        return found[1]
    scale = q.scale
    block = _hip.allocate(_launch.gemm_scale_bytes(rows, k), scale.device, stream)
    scale._block.reading(stream)
    strides = scale.strides if q.axis == -1 else scale.strides[::-1]
    if rows and k:
        bits = QUANTIZED[q.format].bits
        _launch.gemm_scales(scale.device, stream, (scale.ptr, *strides), block.ptr, rows, k, bits)
    q._kernel_scales["gemm"] = block, block.ptr
    return block.ptr


def _read_row_scales(side: _Side, scale: DeviceArray, stream: int, temporaries: list[_hip.Block]) -> int:
    """Return where the kernel finds one float32 for each row, gathered if they lie apart."""
    along = scale.strides[0] if scale.shape[1] == 1 else scale.strides[1]
    scale._block.reading(stream)
    if side.rows <= 1 or along == 4:
        return scale.ptr
    block = _hip.allocate(4 * side.rows, scale.device, stream)
    temporaries.append(block)
    usage.count_copy("matmul", f"{side.name}.scale", "not contiguous")
    _launch.copy_strided(scale.device, stream, 4, (scale.ptr, along, 4), (block.ptr, 4, 4), side.rows, 1)
    return block.ptr


def _read_vector(x: Any, device: int, stream: int, temporaries: list[_hip.Block]) -> int:
    """Return where the kernel finds an epilogue vector or number; one on the host goes up without waiting."""
    if type(x) is DeviceArray:
        x._block.reading(stream)
        return x.ptr
    made = lend(x, device, stream)
    temporaries.append(made._block)
    return made.ptr


# ---- operands on the host --------------------------------------------------------------------------


def _on_host(
    a: Any, b: Any, out: Any, dtype: Any, alpha: Any, col_scale: Any, bias: Any, stream: int
) -> Host:
    """Bring operands up, multiply, bring the result down; nothing is pending when this returns."""
    problem, reasons = describe_matmul(a, b, out, dtype=dtype, alpha=alpha, col_scale=col_scale, bias=bias)
    if problem is None or any(r.kind is not UnsupportedError for r in reasons):
        raise_reasons("matmul", reasons)  # before any device is opened
    device = _hip.current_device()
    problem = _supported(problem, reasons, _hip.arch(device))
    result = np.empty((problem.m, problem.n), problem.out_format.dtype) if out is None else out
    if result.size == 0:
        return result
    with _hip.on_device(device):
        kept: list[Host] = []  # what the stream still has to read
        try:
            a_device = _bring_up_operand("a", a, device, stream, kept)
            b_device = _bring_up_operand("b", b.T, device, stream, kept).T
            if isinstance(a_device, ScaledArray) and a_device.format != b_device.format:
                a_device, b_device = _alike(a_device, b_device, stream)
            arguments = _Arguments(None, problem.out_format.dtype, alpha, col_scale, bias)
            key = _key(a_device, b_device, arguments)
            plan = _plans.get(key) or _make_plan(a_device, b_device, arguments)
            out_device = new((problem.m, problem.n), problem.out_format.dtype, device, stream)
            _execute(plan, a_device, b_device, out_device, alpha, col_scale, bias, stream)
            download(out_device.ptr, out_device.shape, out_device.strides, result, stream)
        except BaseException:
            _hip.quiesce(stream)  # or it would read arrays that are gone
            raise
        del kept
    return result


def _bring_up_operand(name: str, x: Any, device: int, stream: int, kept: list[Host]) -> Any:
    """Queue the upload of a matrix (rows, K), quantized or not."""
    if not isinstance(x, ScaledArray):
        return _bring_up(name, x, device, stream, kept)
    form = QUANTIZED[x.format]
    data = _bring_up(name, packed_data(x), device, stream, kept)
    scale = lend(x.scale, device, stream)
    return ScaledArray._make(data, scale, form, -1, x.shape, hadamard=x.hadamard)


def _bring_up(name: str, x: Host, device: int, stream: int, kept: list[Host]) -> DeviceArray:
    """Queue the upload of an operand (rows, K), in the layout that it has on the host."""
    item = x.dtype.itemsize
    if not rows_contiguous(x.shape, x.strides, item):
        if rows_contiguous(x.T.shape, x.T.strides, item):
            turned = new((x.shape[1], x.shape[0]), x.dtype, device, stream)
            kept.append(queue_upload(x.T, turned.ptr, stream))
            return turned.T
        usage.count_copy("matmul", name, "no axis contiguous; copied on the host")
        x = np.ascontiguousarray(x)
    return queue_rows(x, device, stream, kept)
