"""The public quantizers. What they compute is written in `reference`; here it runs on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from .. import reference
from ..array.device_array import DeviceArray, asarray, new
from ..array.rows import as_rows, storage_axis
from ..errors import error_context
from ..formats import elements as formats
from ..formats.arrays import array_hint, is_array
from ..formats.checks import Checks
from ..formats.elements import F32, FORMATS, MXFP4_E2M1, SCALE_RULES, Format, fnuz_hint
from ..formats.groups import offset_reasons
from ..formats.scaled import HADAMARD, ScaledArray, scale_shape
from ..kernels.launch import function as kernel_function
from ..kernels.launch import launch
from ..reference import FP8, MXFP8
from ..runtime import hip as _hip
from ..runtime.tally import count_call
from .amax import AmaxState
from .plan import AmaxPlan, DequantizePlan, MxPlan, amax_plan, dequantize_codes, mx_plan, quantize_groups

Input = npt.NDArray[Any] | DeviceArray
Axes = tuple[int] | tuple[int, int]
How = tuple[str, str, tuple[str, ...], bool]  # the rule of scales, the format, which it may be, Hadamard
MXFP4 = ("mxfp4_e2m1",)


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
    if plan is not None and isinstance(x, DeviceArray) and _plain_values(eps, amax, x, axis):
        return _run(x.device, plan.run, x, _hip.stream_handle(function, stream), eps, amax)
    checks = Checks(function)
    form = checks.format(format, FP8)
    ndim = _check_input(checks, x)
    along = None if axis is None else checks.axis(axis, ndim)
    number = checks.magnitude("eps", eps)
    given = _read_amax(checks, amax, x, along, axis)
    checks.value_or(_hip.existing_stream(stream), 0)
    checks.raise_all()
    assert form is not None
    assert number is not None

    def work(d: DeviceArray, handle: int) -> ScaledArray:
        if plan is not None:
            return plan.run(d, handle, number, given)
        rows = as_rows(d, storage_axis(d) if along is None else along, handle)
        made = amax_plan(d, rows, form, along)
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
        the host or the device, as for `grouped_wgrad`. Blocks begin with each group; rows behind the
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
    if group_offsets is None:
        return _mx("quantize_mxfp8", x, (axis,), (scaling, format, MXFP8, False), stream)[0]
    return _mx_groups(x, axis, scaling, format, group_offsets, stream)


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
    return _mx("quantize_mxfp4", x, (axis,), (scaling, MXFP4_E2M1.name, MXFP4, hadamard), stream)[0]


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
    fp4 = isinstance(format, str) and format in MXFP4
    rule = ("even" if fp4 else "unit") if scaling is None else scaling
    transform = hadamard if fp4 and hadamard is not None else fp4
    how = rule, format, (*MXFP8, *MXFP4), transform
    if hadamard is not None and isinstance(format, str) and format in MXFP8:
        checks, _, _ = _check_mx(function, x, (-1, -2), how, stream)
        checks.add(ValueError, "hadamard", f"hadamard must be left out for {format}", hadamard)
        checks.raise_all()
    rows, columns = _mx(function, x, (-1, -2), how, stream)
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
    transposed = x.T if is_array(x) else x
    return _mx(function, transposed, (-1,), (scaling, format, MXFP8, False), stream)[0]


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
        key = (function, q._key, dtype)
        plan: DequantizePlan | None = _kept(key)
        if plan is not None:
            return _run(q.data.device, plan.run, q, _hip.stream_handle(function, stream))
    checks = Checks(function)
    if not isinstance(q, ScaledArray):
        checks.wrong_type("q", "a ScaledArray", q)
    to = checks.dtype("dtype", dtype, tuple(FORMATS.values()))
    checks.value_or(_hip.existing_stream(stream), 0)
    checks.raise_all()
    assert to is not None
    if q.device is None:
        return reference.dequantize(q, dtype=to.dtype)
    handle = _hip.stream_handle(function, stream)
    with error_context(function), _hip.on_device(q.device):
        made, plan = dequantize_codes(q, handle, to)
        count_call(function, "dequantize", 0, q.data.nbytes + q.scale.nbytes + made.nbytes)
    _keep(key, plan)
    return made


def pack_mx_scales(scale: Input, *, stream: Any = None) -> Any:
    """Put the four scale bytes of each 128 numbers into one word, and rows side by side.

    Parameters
    ----------
    scale : numpy.ndarray or DeviceArray
        e8m0 or its bytes, (rows, K/32), with any strides; filled up to a multiple of four columns with ones
        (byte 127).
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
    function = "pack_mx_scales"
    checks = Checks(function)
    array = checks.array("scale", scale)
    if array is not None:
        if array.dtype not in (MXFP4_E2M1.scale_dtype, np.uint8):
            checks.add(TypeError, "dtype", f"scale.dtype must be {MXFP4_E2M1.scale_dtype}", array.dtype)
        if len(array.shape) != 2:
            checks.add(ValueError, "shape", "scale.ndim must be 2", f"scale.shape={array.shape}")
    checks.value_or(_hip.existing_stream(stream), 0)
    checks.raise_all()
    if not isinstance(scale, DeviceArray):
        return formats.pack_mx_scales(scale)
    handle = _hip.stream_handle(function, stream)
    rows, blocks = scale.shape
    with error_context(function), _hip.on_device(scale.device):
        packed = new((-(-blocks // 4), rows), np.dtype(np.uint32), scale.device, handle)
        scale._block.begin_read(handle)
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


def _check_input(checks: Checks, x: object) -> int | None:
    """Check what is to be quantized; return its number of axes, if it is an array that has any."""
    array = checks.array("x", x)
    if array is None:
        return None
    dtype = array.dtype
    hint = fnuz_hint(dtype) or ("convert with x.astype(numpy.float32)" if dtype.kind in "fiu" else "")
    checks.dtype("x.dtype", dtype, tuple(FORMATS.values()), hint)
    return len(array.shape) if checks.ndim("x", array.shape, 1) else None


def _check_mx(
    function: str, x: Input, axes: Axes, how: How, stream: Any
) -> tuple[Checks, Format, tuple[int, ...]]:
    """Check what is to be quantized by blocks, and how; return the format and the axes as well."""
    checks, (scaling, format, among, hadamard) = Checks(function), how
    form = checks.format(format, among)
    ndim = _check_input(checks, x)
    if len(axes) == 2 and ndim is not None and ndim != 2:
        checks.add(ValueError, "shape", "x.ndim must be 2", ndim, f"x.shape={x.shape}")
        ndim = None
    found = [axis for axis in (checks.axis(axis, ndim) for axis in axes) if axis is not None]
    checks.option("scaling", scaling, SCALE_RULES)
    if checks.flag("hadamard", hadamard):
        for axis in found:
            if x.shape[axis] % HADAMARD:
                required = f"x.shape[{axis}] must be a multiple of {HADAMARD} for the Hadamard transform"
                checks.add(ValueError, "hadamard", required, x.shape[axis], "pass hadamard=False")
    checks.value_or(_hip.existing_stream(stream), 0)
    return checks, form or MXFP4_E2M1, tuple(found)


def _plain_values(eps: object, amax: object, x: Input, axis: int | None) -> bool:
    """Whether the values of a call are right and of the kinds that most have."""
    if type(eps) is not float or not 0 <= eps <= F32.maximum:
        return False
    return amax is None or (type(amax) is AmaxState and axis is None and amax.device == x.device)


def _read_amax(checks: Checks, amax: Any, x: object, along: int | None, axis: int | None) -> Any:
    """Read a given amax: an array, or a state."""
    place = amax.device if isinstance(amax, (AmaxState, DeviceArray)) else None
    if place is not None and isinstance(x, DeviceArray):
        checks.same_device("amax", place, x.device, "x")
    if isinstance(amax, AmaxState):
        if axis is not None:
            checks.add(ValueError, "axis", "axis must be None with an AmaxState", axis)
    elif is_array(amax):
        checks.dtype("amax.dtype", amax.dtype, (F32,))
        want = () if along is None or not is_array(x) else scale_shape(x.shape, along, 0)
        if amax.shape not in ((), want) and (axis is None or along is not None):
            required = f"amax.shape must be {want}" + ("" if axis is None else " or ()")
            checks.add(ValueError, "shape", required, amax.shape)
    elif amax is not None:
        number = checks.number("amax", amax, "a number, a float32 array or an AmaxState", array_hint(amax))
        if number is not None and number < 0:
            checks.add(ValueError, "range", "amax must not be negative", number)
        return np.array(number, np.float32)
    return amax


# ---- on the device ---------------------------------------------------------------------------------


T = TypeVar("T")
Made = TypeVar("Made", ScaledArray, tuple[ScaledArray, ...])
# Of calls that need no copy to another layout, by all that they depend on but addresses.
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
    function: str, x: Input, stream: Any, work: Callable[[DeviceArray, int], Made], device: int | None = None
) -> Made:
    """Run on the device of `x`; NumPy arrays go to `device` or the current one, and results come back."""
    handle = _hip.stream_handle(function, stream)
    if isinstance(x, DeviceArray):
        with error_context(function), _hip.on_device(x.device):
            return work(x, handle)
    resident = asarray(x, device=device, stream=stream)
    with error_context(function), _hip.on_device(resident.device):
        made = work(resident, handle)
        return tuple(q.get() for q in made) if isinstance(made, tuple) else made.get()


def _mx(function: str, x: Input, axes: Axes, how: How, stream: Any) -> tuple[ScaledArray, ...]:
    """Check, and quantize along one axis, or a matrix along its last and its first."""
    key = None
    scaling, _, _, hadamard = how
    if type(x) is DeviceArray and type(axes[0]) is int and type(hadamard) is bool:  # for True == 1
        key = (function, x._key, axes, how)
        plan: MxPlan | None = _kept(key)
        if plan is not None:
            handle = 0 if stream is None else _hip.stream_handle(function, stream)
            return _run(x.device, plan.run, x, handle)
    checks, form, found = _check_mx(function, x, axes, how, stream)
    checks.raise_all()

    def work(d: DeviceArray, handle: int) -> tuple[ScaledArray, ...]:
        along, *across = (as_rows(d, axis, handle) for axis in found)
        made = mx_plan(function, along, across[0] if across else None, form, scaling, hadamard)
        if along.array is x:
            _keep(key, made)
        return made.run(along.array, handle)

    return _on_device(function, x, stream, work)


def _mx_groups(x: Input, axis: int, scaling: str, format: str, offsets: Input, stream: Any) -> ScaledArray:
    """Check, and quantize down the columns of each group of rows."""
    function = "quantize_mxfp8"
    checks, form, found = _check_mx(function, x, (axis,), (scaling, format, MXFP8, False), stream)
    if is_array(x) and found and (len(x.shape), found[0]) != (2, -2):
        required = "x must be a matrix and axis 0 with group_offsets"
        checks.add(ValueError, "axis", required, f"x.shape={x.shape}, axis={axis}")
    device = x.device if isinstance(x, DeviceArray) else None
    if isinstance(offsets, DeviceArray) and device is None:
        offsets = offsets.get()
    rows = x.shape[0] if is_array(x) and x.shape else None
    checks.found += offset_reasons(offsets, rows, device=device)
    checks.raise_all()
    return _on_device(function, x, stream, lambda d, s: quantize_groups(d, s, form, scaling, offsets))
