"""The public quantizers. What they compute is written in `reference`; here it runs on the device."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import reference
from ..array.device_array import DeviceArray, asarray, new
from ..array.rows import as_rows, storage_axis
from ..errors import raise_reasons, sentence, told_by
from ..formats import elements as formats
from ..formats.elements import F32, FORMATS, MXFP4_E2M1, SCALE_RULES, Format, format_of
from ..formats.faults import dtype_name
from ..formats.groups import offset_reasons
from ..formats.scaled import (
    HADAMARD,
    ScaledArray,
    array_hint,
    find_axis,
    find_format,
    fnuz_hint,
    is_array,
    scale_shape,
)
from ..kernels.launch import function as kernel_function
from ..kernels.launch import launch
from ..runtime import hip as _hip
from ..runtime.tally import count_call
from .amax import AmaxState
from .plan import AmaxPlan, BackPlan, MxPlan, amax_plan, dequantize_codes, mx_plan, quantize_groups

Input = npt.NDArray[Any] | DeviceArray
FP8 = ("fp8_e4m3", "fp8_e5m2")
MXFP8 = ("mxfp8_e4m3", "mxfp8_e5m2")


def quantize_fp8(
    x: Input,
    amax: float | Input | AmaxState | None = None,
    *,
    axis: int | None = None,
    eps: float = 1e-8,
    format: str = "fp8_e4m3",
    stream: Any = None,
) -> ScaledArray:
    """Quantize to 8 bits with one float32 scale for the tensor, or one for each row.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, of any shape and layout.
    amax : float, float32 array or AmaxState, optional
        What to take for the greatest magnitude; what exceeds it saturates. Default: the tensor's own.
        An AmaxState gives the current value and takes in the tensor's own for the next step.
    axis : int, optional
        Give each row along this axis a scale of its own.
    eps : float
        Added to amax. Pass 0 for tensors of tiny numbers.
    format : str
        ``"fp8_e4m3"`` or ``"fp8_e5m2"``.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device. Its `amax` is the tensor's own.

    Raises
    ------
    TypeError
        For an `x` or `amax` of another type or dtype.
    ValueError
        For an unknown format, an axis that `x` lacks, or a negative amax or eps.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or more tiles than one launch can count.

    Notes
    -----
    Codes are ``x * (MAX / (amax + eps))`` in float32, rounded to nearest even, saturated to MAX (448 for
    e4m3, 57344 for e5m2); the scale is ``(amax + eps) / MAX``. A NaN or Inf makes the scale NaN. Element
    formats are those of the OCP 8-bit Floating Point Specification.

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_fp8(np.array([1.0, -0.5, 0.001], np.float32), eps=0.0)
    >>> q.data.astype(float).tolist(), float(q.amax)
    ([448.0, -224.0, 0.4375], 1.0)
    """
    function = "quantize_fp8"
    key = (function, x._key, type(axis), axis, format) if type(x) is DeviceArray else None
    plan: AmaxPlan | None = _kept(key)
    if plan is None:
        form = find_format(function, format, FP8)
        ndim = _check(function, x)
        if ndim == 0:
            raise ValueError(f"{function}: {sentence('x.ndim must be at least 1', 0)}")
        axis = None if axis is None else find_axis(function, axis, ndim)
    else:
        axis = plan.axis
    number = _check_eps(function, eps)
    given = _check_amax(function, amax, x, axis)
    if plan is not None and isinstance(x, DeviceArray):
        return _run(x.device, plan.run, x, _hip.stream_handle(function, stream), number, given)

    def work(d: DeviceArray, handle: int) -> ScaledArray:
        rows = as_rows(d, storage_axis(d) if axis is None else axis, handle)
        made = amax_plan(d, rows, form, axis)
        if rows.array is x:
            _keep(key, made)
        return made.run(rows.array, handle, number, given)

    place = amax.device if isinstance(amax, (AmaxState, DeviceArray)) else None
    return _on_device(function, x, stream, work, place)


def quantize_mxfp8(
    x: Input,
    *,
    axis: int = -1,
    scaling: str = "unit",
    format: str = "mxfp8_e4m3",
    group_offsets: Input | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize to 8 bits with a power of two for each 32 numbers along an axis.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, of any shape and layout.
    axis : int
        The axis that a product will sum over.
    scaling : str
        How to choose the power: ``"unit"``, ``"floor"``, ``"rceil"`` or ``"even"``; see docs/formats.md.
    format : str
        ``"mxfp8_e4m3"`` or ``"mxfp8_e5m2"``.
    group_offsets : int32 array (G+1,), optional
        With a matrix and ``axis=0``: group g is rows ``group_offsets[g]`` to ``group_offsets[g + 1]``, on
        the host or the device, as for `grouped_wgrad`. Blocks begin anew with each group; rows behind the
        last one become zero. Only a grouped product with the same offsets takes the result.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device, where `scale` lies block by block, rows side by
        side: along the last axis of a matrix its strides are (1, rows). Offsets that are on the device are
        not read back: `scale` then has room for the most blocks that there can be, up to ``get``.

    Raises
    ------
    TypeError
        For an `x` or `group_offsets` of another type or dtype.
    ValueError
        For an unknown format or scaling, an axis that `x` lacks, or offsets that do not begin at 0,
        decrease, or pass the last row. Those on a device are kept inside `x`; what is wrong with them is
        a HipError at the next wait.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or more tiles than one launch can count.

    Notes
    -----
    ``"floor"`` is the rule of the OCP Microscaling Formats (MX) Specification 1.0, section 6.3. Elements are
    rounded to nearest even and saturated. A NaN or Inf spoils its own block only: scale byte 255.

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_mxfp8(np.array([957.0, 2.0, 0.0], np.float32), scaling="rceil")
    >>> hg.dequantize(q)
    array([960.,   2.,   0.], dtype=float32)
    """
    form = find_format("quantize_mxfp8", format, MXFP8)
    if group_offsets is not None:
        return _mx_groups(x, axis, scaling, form, group_offsets, stream)
    return _mx("quantize_mxfp8", x, (axis,), scaling, form, False, stream)[0]


def quantize_mxfp4(
    x: Input, *, axis: int = -1, scaling: str = "even", hadamard: bool = True, stream: Any = None
) -> ScaledArray:
    """Quantize to 4 bits with a power of two for each 32 numbers along an axis.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, of any shape and layout.
    axis : int
        The axis that a product will sum over.
    scaling : str
        How to choose the power: ``"unit"``, ``"floor"``, ``"rceil"`` or ``"even"``; see docs/formats.md.
    hadamard : bool
        First spread outliers by a 16-point Hadamard transform. Both operands of a product need it, or
        neither.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device, where two numbers share a byte, and `scale` lies
        as that of `quantize_mxfp8`.

    Raises
    ------
    TypeError
        For an `x` of another type or dtype.
    ValueError
        For an unknown scaling, an axis that `x` lacks, or one that is no multiple of 16 with `hadamard`.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or more tiles than one launch can count.

    Notes
    -----
    ``"floor"`` is the rule of the OCP Microscaling Formats (MX) Specification 1.0, section 6.3. Elements are
    rounded to nearest even and saturated. A NaN or Inf spoils its own block only: scale byte 255.

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_mxfp4(np.array([12.0, 5.0, -1.0], np.float32), hadamard=False)
    >>> q.data.astype(np.float32), q.scale.view(np.uint8)
    (array([ 6. ,  2. , -0.5], dtype=float32), array([128], dtype=uint8))
    """
    return _mx("quantize_mxfp4", x, (axis,), scaling, MXFP4_E2M1, hadamard, stream)[0]


def quantize_both(
    x: Input, format: str, *, scaling: str | None = None, hadamard: bool | None = None, stream: Any = None
) -> tuple[ScaledArray, ScaledArray]:
    """Quantize a matrix along its last axis and along its first, reading it once.

    Training needs both: a product of the forward pass sums over one axis, those of the backward pass over
    the other.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, with two axes, in any layout.
    format : str
        ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"`` or ``"mxfp4_e2m1"``.
    scaling, hadamard
        As for `quantize_mxfp8` and `quantize_mxfp4`, with the same defaults.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    rows, columns : ScaledArray
        ``axis=-1`` and ``axis=0``.

    Raises
    ------
    TypeError
        For an `x` of another type or dtype.
    ValueError
        For an `x` that is no matrix, and whatever the single quantizers refuse.

    Examples
    --------
    >>> import hipgemm as hg
    >>> rows, columns = hg.quantize_both(np.ones((2, 64), np.float32), "mxfp8_e4m3")
    >>> rows.scale.shape, columns.scale.shape
    ((2, 2), (1, 64))
    """
    function = "quantize_both"
    form = find_format(function, format, (*MXFP8, "mxfp4_e2m1"))
    if hadamard is not None and form is not MXFP4_E2M1:
        raise ValueError(f"{function}: {sentence('hadamard must be left out for ' + format, hadamard)}")
    transform = form is MXFP4_E2M1 and hadamard is not False
    rule = ("even" if form is MXFP4_E2M1 else "unit") if scaling is None else scaling
    rows, columns = _mx(function, x, (-1, -2), rule, form, transform, stream)
    return rows, columns


def transpose_quantize_mxfp8(
    x: Input, *, scaling: str = "unit", format: str = "mxfp8_e4m3", stream: Any = None
) -> ScaledArray:
    """Quantize the transpose of a matrix along its last axis: ``quantize_mxfp8(x.T)`` without copying it.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32.
    scaling, format, stream
        As for `quantize_mxfp8`.

    Returns
    -------
    ScaledArray
        Of the shape of ``x.T``.

    Raises
    ------
    TypeError
        For an `x` of another type or dtype.
    ValueError
        For an unknown format or scaling.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.transpose_quantize_mxfp8(np.ones((64, 3), np.float32))
    ScaledArray(shape=(3, 64), format='mxfp8_e4m3', axis=-1, host)
    """
    function = "transpose_quantize_mxfp8"
    form = find_format(function, format, MXFP8)
    if type(x) is not DeviceArray:
        _check(function, x)
    return _mx(function, x.T, (-1,), scaling, form, False, stream)[0]


def dequantize(q: ScaledArray, *, dtype: npt.DTypeLike = np.float32, stream: Any = None) -> Any:
    """Turn codes and scales back into numbers, a Hadamard transform undone.

    Code x scale is rounded once to float32, then to `dtype`.

    Parameters
    ----------
    q : ScaledArray
        On the host or a device.
    dtype : dtype
        float32, bfloat16 or float16.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        Where `q` is.

    Raises
    ------
    TypeError
        For a `q` that is no ScaledArray, or another dtype.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or more tiles than one launch can count.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.dequantize(hg.quantize_mxfp8(np.array([0.0, 3.0, -0.3], np.float32)))
    array([ 0.    ,  3.    , -0.3125], dtype=float32)
    """
    function = "dequantize"
    key = None
    if type(q) is ScaledArray and type(q.data) is DeviceArray and q.group_offsets is None:
        key = (function, q.data._key, q.scale._key, q.shape, q.format, q.axis, q.hadamard, dtype)
        plan: BackPlan | None = _kept(key)
        if plan is not None:
            return _run(q.data.device, plan.run, q, _hip.stream_handle(function, stream))
    if not isinstance(q, ScaledArray):
        raise TypeError(f"{function}: {sentence('q must be a ScaledArray', type(q).__qualname__)}")
    to = format_of(dtype)
    if to is None:
        required = "dtype must be bfloat16, float16 or float32"
        raise TypeError(f"{function}: {sentence(required, dtype_name(dtype))}")
    if q.device is None:
        return reference.dequantize(q, dtype=to.dtype)
    handle = _hip.stream_handle(function, stream)
    with told_by(function), _hip.on_device(q.device):
        made, plan = dequantize_codes(q, handle, to)
        count_call(function, "dequantize", 0, q.data.nbytes + q.scale.nbytes + made.nbytes)
    _keep(key, plan)
    return made


def pack_mx_scales(scale: Input, *, stream: Any = None) -> Any:
    """Put the four scale bytes of each 128 numbers into one word, and rows side by side.

    Parameters
    ----------
    scale : numpy.ndarray or DeviceArray
        e8m0 (rows, K/32), with any strides; filled up to a multiple of four columns with ones (byte 127).
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        uint32 (K/128, rows); the first scale lies in the lowest byte.

    Raises
    ------
    TypeError
        For a `scale` of another dtype.
    ValueError
        For a `scale` that has not two axes.

    Examples
    --------
    >>> import ml_dtypes
    >>> scale = np.array([[1, 2, 3, 4, 5]], np.uint8).view(ml_dtypes.float8_e8m0fnu)
    >>> [[hex(word) for word in row] for row in pack_mx_scales(scale)]
    [['0x4030201'], ['0x7f7f7f05']]
    """
    if not isinstance(scale, DeviceArray):
        return formats.pack_mx_scales(scale)
    function = "pack_mx_scales"
    if scale.dtype not in (MXFP4_E2M1.scale_dtype, np.uint8):
        required = f"scale.dtype must be {MXFP4_E2M1.scale_dtype}"
        raise TypeError(f"{function}: {sentence(required, scale.dtype)}")
    if scale.ndim != 2:
        raise ValueError(f"{function}: {sentence('scale.ndim must be 2', f'scale.shape={scale.shape}')}")
    handle = _hip.stream_handle(function, stream)
    rows, blocks = scale.shape
    with told_by(function), _hip.on_device(scale.device):
        packed = new((-(-blocks // 4), rows), np.dtype(np.uint32), scale.device, handle)
        scale._block.reading(handle)
        if packed.size:
            kernel = kernel_function(scale.device, function)
            workgroups = -(-packed.size // kernel.tile[0])
            launch(
                kernel,
                workgroups,
                handle,
                src=scale.ptr,
                dst=packed.ptr,
                src_row_stride=scale.strides[0],
                src_col_stride=scale.strides[1],
                rows=rows,
                blocks=blocks,
            )
        count_call(function, function, 0, scale.nbytes + packed.nbytes)
    return packed


# ---- checks ----------------------------------------------------------------------------------------


def _check(function: str, x: object) -> int:
    """Check what is to be quantized; return its number of axes."""
    if not is_array(x):
        required = "x must be a numpy.ndarray or a hipgemm.DeviceArray"
        raise TypeError(f"{function}: {sentence(required, type(x).__qualname__, array_hint(x))}")
    if format_of(x.dtype) is None:
        required = f"x.dtype must be {', '.join(str(f.dtype) for f in FORMATS.values())}"
        hint = fnuz_hint(x.dtype) or ("convert with x.astype(numpy.float32)" if x.dtype.kind in "fiu" else "")
        raise TypeError(f"{function}: {sentence(required, x.dtype, hint)}")
    return len(x.shape)


def _check_mx(function: str, x: Input, scaling: str, hadamard: bool, axes: tuple[int, ...]) -> None:
    if scaling not in SCALE_RULES:
        fault = sentence(f"scaling must be one of {', '.join(SCALE_RULES)}", repr(scaling))
        raise (ValueError if isinstance(scaling, str) else TypeError)(f"{function}: {fault}")
    if not isinstance(hadamard, (bool, np.bool_)):
        raise TypeError(f"{function}: {sentence('hadamard must be True or False', repr(hadamard))}")
    for axis in axes:
        if hadamard and x.shape[axis] % HADAMARD:
            required = f"x.shape[{axis}] must be a multiple of {HADAMARD} for the Hadamard transform"
            raise ValueError(f"{function}: {sentence(required, x.shape[axis], 'pass hadamard=False')}")


def _check_eps(function: str, eps: object) -> float:
    if type(eps) is float and 0 <= eps <= F32.maximum:
        return eps
    if isinstance(eps, np.generic):
        eps = eps.item()
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(f"{function}: {sentence('eps must be a real number', type(eps).__qualname__)}")
    if not 0 <= float(eps) <= F32.maximum:
        raise ValueError(f"{function}: {sentence('eps must be finite and not negative', eps)}")
    return float(eps)


def _check_amax(function: str, amax: object, x: Input, axis: int | None) -> Any:
    """Check a given amax: a float, an array, or a state."""
    if amax is None:
        return None
    place = x.device if isinstance(x, DeviceArray) else None
    if isinstance(amax, AmaxState):
        if axis is not None:
            raise ValueError(f"{function}: {sentence('axis must be None with an AmaxState', axis)}")
        if place is not None and amax.device != place:
            required = f"amax must be on device {place} like x"
            raise TypeError(f"{function}: {sentence(required, f'device {amax.device}')}")
        return amax
    if isinstance(amax, np.generic):
        amax = amax.item()
    if isinstance(amax, Real) and not isinstance(amax, bool):
        number = float(amax)
        if number < 0:
            raise ValueError(f"{function}: {sentence('amax must not be negative', number)}")
        return np.array(number, np.float32)
    if not is_array(amax):
        required = "amax must be a number, a float32 array or an AmaxState"
        raise TypeError(f"{function}: {sentence(required, type(amax).__qualname__, array_hint(amax))}")
    if amax.dtype != F32.dtype:
        raise TypeError(f"{function}: {sentence('amax.dtype must be float32', amax.dtype)}")
    if isinstance(amax, DeviceArray) and place is not None and amax.device != place:
        required = f"amax must be on device {place} like x"
        raise TypeError(f"{function}: {sentence(required, f'device {amax.device}')}")
    want = () if axis is None else scale_shape(x.shape, axis, 0)
    if amax.shape not in ((), want):
        required = f"amax.shape must be {want}" + ("" if axis is None else " or ()")
        raise ValueError(f"{function}: {sentence(required, amax.shape)}")
    return amax


# ---- on the device ----------------------------------------------------------------------------------


T = TypeVar("T")
Made = TypeVar("Made", ScaledArray, tuple[ScaledArray, ...])
# Of calls that need nothing laid out anew, by all that they depend on but addresses.
_plans: dict[Any, Any] = {}
_MAX_PLANS = 1024


def _kept(key: Any) -> Any:
    """Return the plan of an earlier call like this one, which was found to be right, if there is one."""
    try:
        return _plans.get(key)
    except TypeError:  # something that cannot be right either
        return None


def _keep(key: Any, plan: Any) -> None:
    if key is None or plan is None:
        return
    if len(_plans) >= _MAX_PLANS:
        _plans.clear()
    _plans[key] = plan


def _run(device: int, work: Callable[..., T], *args: Any) -> T:
    """Run with a device current."""
    if _hip.current_device() == device:
        return work(*args)
    with _hip.on_device(device):
        return work(*args)


def _on_device(
    function: str,
    x: Input,
    stream: Any,
    work: Callable[[DeviceArray, int], Made],
    device: int | None = None,
) -> Made:
    """Run on the device of `x`; NumPy arrays go to `device` or the current one, and results come back."""
    handle = _hip.stream_handle(function, stream)
    if isinstance(x, DeviceArray):
        with told_by(function), _hip.on_device(x.device):
            return work(x, handle)
    resident = asarray(x, device=device, stream=stream)
    with told_by(function), _hip.on_device(resident.device):
        made = work(resident, handle)
        return tuple(q.get() for q in made) if isinstance(made, tuple) else made.get()


def _mx(
    function: str,
    x: Input,
    axes: tuple[int] | tuple[int, int],
    scaling: str,
    form: Format,
    hadamard: bool,
    stream: Any,
) -> tuple[ScaledArray, ...]:
    """Check, and quantize along one axis, or a matrix along its last and its first."""
    key = None
    if type(x) is DeviceArray and type(axes[0]) is int and type(hadamard) is bool:  # for True == 1
        key = (function, x._key, axes, scaling, form.name, hadamard)
        plan: MxPlan | None = _kept(key)
        if plan is not None:
            return _run(x.device, plan.run, x, _hip.stream_handle(function, stream))
    ndim = _check(function, x)
    if len(axes) == 2 and ndim != 2:
        raise ValueError(f"{function}: {sentence('x.ndim must be 2', ndim, f'x.shape={x.shape}')}")
    if ndim == 0:
        raise ValueError(f"{function}: {sentence('x.ndim must be at least 1', 0)}")
    found = tuple(find_axis(function, axis, ndim) for axis in axes)
    _check_mx(function, x, scaling, hadamard, found)

    def work(d: DeviceArray, handle: int) -> tuple[ScaledArray, ...]:
        along, *across = (as_rows(d, axis, handle) for axis in found)
        made = mx_plan(function, along, across[0] if across else None, form, scaling, hadamard)
        if along.array is x:
            _keep(key, made)
        return made.run(along.array, handle)

    return _on_device(function, x, stream, work)


def _mx_groups(x: Input, axis: int, scaling: str, form: Format, offsets: Input, stream: Any) -> ScaledArray:
    """Check, and quantize down the columns of each group of rows."""
    function = "quantize_mxfp8"
    ndim = _check(function, x)
    if ndim != 2 or find_axis(function, axis, ndim) != -2:
        required = "x must be a matrix and axis 0 with group_offsets"
        raise ValueError(f"{function}: {sentence(required, f'x.shape={x.shape}, axis={axis}')}")
    _check_mx(function, x, scaling, False, ())
    if isinstance(offsets, DeviceArray) and not isinstance(x, DeviceArray):
        offsets = offsets.get()
    place = x.device if isinstance(x, DeviceArray) else None
    raise_reasons(function, offset_reasons(offsets, x.shape[0], place=place))
    return _on_device(function, x, stream, lambda d, s: quantize_groups(d, s, form, scaling, offsets))
