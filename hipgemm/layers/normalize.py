"""RMS norm and softmax. `reference` defines their results."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from ..array.device_array import DeviceArray, asarray, new, upload_async
from ..array.rows import Rows, as_rows, contiguous_rows, round_up
from ..formats.arrays import is_array
from ..formats.elements import BF16, F16, F32, QUANTIZED, Format, default_rule, known_format
from ..formats.operand_checks import OperandChecks
from ..kernels.launch import Function, Value, function, launch, share_rows
from ..kernels.manifest import CHUNK_BYTES, code_object
from ..quantize.amax import AmaxState, check_out_amax
from ..quantize.arrays import Fp8Array
from ..quantize.plan import MxArray
from ..quantize.quantizers import on_device, quantize_fp8
from ..runtime import hip as _hip
from ..runtime.tally import Call, count_call

Input = npt.NDArray[Any] | DeviceArray


def rms_norm(
    x: Input,
    weight: Input,
    *,
    eps: float = 1e-6,
    residual: Input | None = None,
    out_format: str | None = None,
    out_amax: AmaxState | None = None,
    stream: Any = None,
) -> Any:
    """Divide rows by their root mean square, after adding a residual, and quantize the result.

    ``y = x / sqrt(mean(x**2) + eps) * weight`` along the last axis, in float32. All of it is one pass over
    memory for rows of up to 32768 elements (on AMD GPUs without matrix kernels 16384); longer rows are read
    twice.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, with one axis or more, in any layout. On a device, rows that are not
        contiguous, or axes that cannot be merged, are copied first (`usage` counts that).
    weight : array (N,)
        bfloat16, float16 or float32; may be on the host.
    eps : float
        Added to the mean.
    residual : numpy.ndarray or DeviceArray, optional
        Of the shape of `x`: the sum ``x + residual`` is normalized, before it is rounded, and returned too.
    out_format : str, optional
        Quantize y along its last axis, as the quantizer of the format does by default: ``"fp8_e4m3"``,
        ``"fp8_e5m2"``, ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"``, ``"mxfp6_e2m3"``, ``"mxfp6_e3m2"`` or
        ``"mxfp4_e2m1"`` (without a Hadamard transform).
    out_amax : AmaxState, optional
        For fp8, and required there: the amax by which to scale. It must have a value, and is updated with
        that of y for the next step.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    y : numpy.ndarray, DeviceArray or ScaledArray
        Of the dtype of `x`, rounded once, or quantized from float32. On the device of `x`.
    sum : numpy.ndarray or DeviceArray
        Only with `residual`: ``x + residual``, rounded once to their dtype, or to float32 if they differ.

    Raises
    ------
    TypeError
        For another type or dtype, or arrays on different devices.
    ValueError
        If shapes do not fit, for an unknown format, an `out_amax` that is missing, not used or without a
        value, or an eps that is negative or not finite.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or too many rows for one launch.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import numpy as np
    >>> x = np.array([[3.0, 4.0], [0.0, 0.0]], np.float32)
    >>> hg.rms_norm(x, np.array([5.0, 10.0], np.float32), eps=0.5).round(4)
    array([[ 4.1603, 11.094 ],
           [ 0.    ,  0.    ]], dtype=float32)
    >>> y, total = hg.rms_norm(x, np.ones(2, np.float32), residual=x)
    >>> total
    array([[6., 8.],
           [0., 0.]], dtype=float32)
    """
    name = "rms_norm"
    checks = OperandChecks(name)
    columns = x.shape[-1] if checks.floats("x", x) is not None else None
    checks.vector("weight", weight, (BF16, F16, F32), columns)
    device = x.device if isinstance(x, DeviceArray) else None
    if weight is None:
        checks.wrong_type("weight", "a numpy.ndarray or a hipgemm.DeviceArray", weight)
    elif isinstance(weight, DeviceArray) and is_array(x):
        checks.same_device("weight", weight.device, device, "x")
    if residual is not None:
        checks.floats("residual", residual)
        if is_array(residual) and is_array(x):
            place = residual.device if isinstance(residual, DeviceArray) else None
            checks.same_device("residual", place, device, "x")
            if residual.shape != x.shape:
                checks.add(ValueError, "shape", f"residual.shape must be {x.shape}", residual.shape)
    number = checks.magnitude("eps", eps)
    named = None if out_format is None else checks.option("out_format", out_format, tuple(QUANTIZED))
    form = None if named is None else QUANTIZED[named]
    if (named is None) == (out_format is None):
        check_out_amax(checks, out_amax, form, device, "x")
    checks.value_or(_hip.existing_stream(name, stream), 0)
    checks.raise_all()
    assert number is not None

    def work(d: DeviceArray, handle: int) -> tuple[Any, ...]:
        more = None if residual is None else asarray(residual, device=d.device, stream=stream)
        return _rms_norm(d, weight, more, number, form, out_amax, handle)

    made = on_device(name, x, stream, work, None if out_amax is None else out_amax.device)
    return made if residual is not None else made[0]


def softmax(x: Input, *, axis: int = -1, scale: float = 1.0, causal: bool = False, stream: Any = None) -> Any:
    """Compute ``exp(x * scale) / sum(exp(x * scale))`` along an axis.

    The maximum is subtracted first. All of it is in float32, and one pass over memory for up to 32768
    elements along the axis (on AMD GPUs without matrix kernels 16384); more are read twice.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, with one axis or more, in any layout. On a device, `x` is copied first
        if the axis is not contiguous, or other axes cannot be merged (`usage` counts that).
    axis : int
        The axis to sum over.
    scale : float
        The factor of `x`.
    causal : bool
        For matrices (.., M, N) and the last axis: row i has only the columns up to ``i + N - M``. The others
        become 0, whatever they are.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        Of shape and dtype of `x`, rounded once, and on its device.

    Raises
    ------
    TypeError
        If an argument has another type, or `x` another dtype.
    ValueError
        For an axis that `x` does not have, `causal` with another axis or fewer than two, or a scale that is
        not finite.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or too many rows for one launch.

    Notes
    -----
    By the formula, a NaN or +Inf makes all of its row NaN. So does a row of -Inf only, or without columns.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import numpy as np
    >>> hg.softmax(np.zeros((2, 2), np.float32), causal=True)
    array([[1. , 0. ],
           [0.5, 0.5]], dtype=float32)
    """
    name = "softmax"
    checks = OperandChecks(name)
    axes = checks.floats("x", x)
    along = checks.axis(axis, axes)
    number = checks.finite("scale", scale)
    if checks.flag("causal", causal):
        if axes is not None:
            checks.ndim("x", x.shape, 2)
        if along is not None and along != -1:
            checks.add(ValueError, "axis", "axis must be the last one with causal", axis)
    checks.value_or(_hip.existing_stream(name, stream), 0)
    checks.raise_all()
    assert along is not None
    assert number is not None
    return on_device(name, x, stream, lambda d, s: _softmax(d, along, number, bool(causal), s))


# ---- on the device ---------------------------------------------------------------------------------


def _softmax(x: DeviceArray, axis: int, scale: float, causal: bool, stream: int) -> DeviceArray:
    item, device = x.dtype.itemsize, x.device
    r = contiguous_rows(x, axis, stream, "softmax")
    dense = new((r.rows, r.length), x.dtype, device, stream)
    out = DeviceArray(dense._block, dense.ptr, *r.layout(x.dtype, r.length, r.length * item))
    kernel = _kernel_of_rows(device, "softmax", r.length)
    if out.size:
        shift, sets = share_rows(kernel, r.rows, r.length)
        times = max(1, sets // _WORKGROUPS)
        r.array._block.begin_read(stream)
        launch(
            kernel,
            -(-sets // times),
            stream,
            src=r.array.ptr,
            dst=out.ptr,
            src_pitch=r.row_stride,
            dst_pitch=r.length * item,
            rows=r.rows,
            cols=r.length,
            matrix_rows=x.shape[-2] if causal else 1,
            row_shift=shift,
            sets=times,
            scale=scale,
            causal=causal,
            type=known_format(x.dtype),
        )
    count_call(Call("softmax", "softmax", 0, x.nbytes + out.nbytes))
    return out


# A workgroup takes rows one after the other, if there are more than for so many workgroups; those of
# rms_norm share the weight, and take so many at least that reading it once more is a small part. If there are
# workgroups for a whole GPU, they take so many that their scales, which are contiguous along the rows, fill
# 32 bytes.
_WORKGROUPS, _ROWS_OF_WEIGHT = 2048, 8
_WORKGROUPS_OF_GPU, _ROWS_OF_SCALES = 512, 32


def _rms_norm(
    x: DeviceArray,
    weight: Input,
    residual: DeviceArray | None,
    eps: float,
    form: Format | None,
    state: AmaxState | None,
    stream: int,
) -> tuple[Any, ...]:
    device, own = x.device, known_format(x.dtype)
    total, sum_form = None, own
    if residual is not None:
        sum_form = own if residual.dtype == x.dtype else F32
        total = new(x.shape, sum_form.dtype, device, stream)
    added = () if total is None else (total,)
    if x.size == 0:
        if state is not None and form is not None:
            return quantize_fp8(x, state, format=form.name, stream=stream), *added
        return _output(as_rows(x, -1, stream), form, None, stream, {})[0], *added
    r = contiguous_rows(x, -1, stream, "rms_norm")
    vector = weight if isinstance(weight, DeviceArray) else upload_async(weight, device, stream)
    values: dict[str, Value] = {"src": r.array.ptr, "src_pitch": r.row_stride, "weight": vector.ptr}
    reads = [r.array, vector]
    second = r
    if residual is not None:
        second = contiguous_rows(residual, -1, stream, "rms_norm")
        reads.append(second.array)
    values |= {"residual": second.array.ptr, "residual_pitch": second.row_stride}
    values |= {"sum": 0 if total is None else total.ptr, "rows": r.rows, "cols": r.length, "eps": eps}
    y, rows = _output(r, form, state, stream, values)
    kernel = _kernel_of_rows(device, _kernel(form), r.length)
    for read in reads:
        read._block.begin_read(stream)
    shift, sets = share_rows(kernel, rows, r.length)
    at_a_time = kernel.threads >> shift
    least = max(-(-_ROWS_OF_WEIGHT // at_a_time), sets // _WORKGROUPS)
    if form is not None and form.block:
        least = max(least, min(-(-_ROWS_OF_SCALES // at_a_time), sets // _WORKGROUPS_OF_GPU))
    times = max(1, min(sets, least))
    formats = own, known_format(second.array.dtype), known_format(vector.dtype), sum_form, form or own
    values |= {"row_shift": shift, "sets": times, "formats": _packed(kernel, formats, total is not None)}
    launch(kernel, -(-sets // times), stream, **values)
    made = y if isinstance(y, DeviceArray) else y.data
    moved = [*reads, made, *added]
    count_call(Call("rms_norm", kernel.name, 0, sum(array.nbytes for array in moved)))
    if state is not None:
        state._update(y.amax.ptr, stream)
    return y, *added


def _kernel_of_rows(device: int, name: str, length: int) -> Function:
    """The kernel that has a whole row in registers, or the one that has most of it."""
    kernel, longer = function(device, name), f"{name}_long"
    if length <= kernel.tile[0] or longer not in code_object(_hip.arch(device)).kernels:
        return kernel
    return function(device, longer)


def _kernel(form: Format | None) -> str:
    """The kernel of rms_norm for an output format."""
    if form is None:
        return "rms_norm"
    if form.block == 0:
        return "rms_norm_fp8"
    return "rms_norm_mxfp8" if form.bits == 8 else "rms_norm_mx"


def _packed(kernel: Function, formats: tuple[Format, ...], has_residual: bool) -> int:
    """The argument `formats` of the kernel."""
    codes = [kernel.codes.formats[form.name] for form in formats]
    return sum(code << 5 * i for i, code in enumerate(codes)) | has_residual << 5 * len(codes)


def _output(
    r: Rows, form: Format | None, state: AmaxState | None, stream: int, values: dict[str, Value]
) -> tuple[Any, int]:
    """Allocate y, and add the arguments for it; return y, and how many rows the kernel must cover."""
    device, x = r.array.device, r.array
    if form is None:
        y = new(r.shape, x.dtype, device, stream)
        values["dst"] = y.ptr
        return y, r.rows
    if form.block:
        made, (data, scale, ordered) = MxArray.of(r, form, False, None).allocate(device, stream)
        values |= {"dst": data, "scale": scale, "gemm_scale": ordered, "rule": default_rule(form)}
        return made, round_up(r.rows, CHUNK_BYTES) if ordered else r.rows
    assert state is not None
    made, (data, scale, own) = Fp8Array.of(r, form).allocate(device, stream)
    state._values._block.begin_read(stream)
    values |= {"dst": data, "amax": state._values.ptr, "scale": scale, "next": own, "amax_eps": 1e-8}
    return made, r.rows
