"""The public quantizers. `reference` defines their results."""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType
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
from ..formats.elements import F32, FORMATS, MXFP4_E2M1, SCALE_RULES, Format
from ..formats.groups import offset_reasons
from ..formats.philox import MAX_SEED
from ..formats.scaled import HADAMARD, ScaledArray, scale_shape
from ..kernels.launch import function as kernel_function
from ..kernels.launch import launch
from ..reference import FP8, MXFP4, MXFP6, MXFP8
from ..runtime import hip as _hip
from ..runtime.tally import Call, count_call
from .amax import AmaxState
from .plan import (
    AmaxPlan,
    BlockPlan,
    DequantizePlan,
    MxPlan,
    amax_plan,
    block_plan,
    dequantize_array,
    mx_plan,
    quantize_groups,
)

Input = npt.NDArray[Any] | DeviceArray
Axes = tuple[int] | tuple[int, int]
# Scale rule, format, allowed formats, Hadamard, rounding, signs.
Options = tuple[str, str, tuple[str, ...], bool, str, int | None]


def quantize_fp8(
    x: Input,
    amax: float | Input | AmaxState | None = None,
    *,
    axis: int | None = None,
    block: tuple[int, int] | None = None,
    eps: float = 1e-8,
    format: str = "fp8_e4m3",
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize to fp8 with one float32 scale for the tensor, one per row, or one per block.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, of any shape and layout.
    amax : float, float32 array or AmaxState, optional
        The absolute maximum by which to scale; larger elements saturate. Default: that of `x`. An AmaxState
        gives the current value, and is updated with that of `x` for the next step.
    axis : int, optional
        Use one scale per row along this axis.
    block : (int, int), optional
        ``(1, 128)`` or ``(128, 128)``: use one scale per block of so many elements of the last two axes, by
        its own amax. The last blocks may be smaller. `axis` and `amax` must be omitted.
    eps : float
        Added to amax. Pass 0 for tensors of very small numbers.
    format : str
        ``"fp8_e4m3"`` or ``"fp8_e5m2"``.
    rounding : str
        ``"nearest"`` (to even), or ``"stochastic"``: to one of the two neighbours, with probabilities that
        make the mean exact.
    seed : int, optional
        From 0 to 2**64 - 1; required for stochastic rounding, and only allowed there. The random numbers
        depend on the seed and the position of each element in `x`, not on layout or device.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device. Its `amax` is that of `x`.

    Raises
    ------
    TypeError
        If `x` or `amax` has another type or dtype.
    ValueError
        For an unknown format, block or rounding, a seed that is missing or not used, an axis that `x` does
        not have, `block` with `axis`, `amax` or an array of one axis, or an amax or eps that is negative or
        not finite in float32. The values of an amax on a device are not checked.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or too many tiles for one launch.

    Notes
    -----
    The elements are ``x * (MAX / (amax + eps))`` in float32, rounded and saturated to MAX
    (448 for e4m3, 57344 for e5m2). The scale is ``(amax + eps) / MAX``. A NaN or Inf makes the scale NaN.
    So does an amax on a device that is NaN or Inf. By the same formulas a negative one gives a negative
    scale and elements of the other sign. The formats are those of the OCP 8-bit Floating Point Specification.

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_fp8(np.array([1.0, -0.5, 0.001], np.float32), eps=0.0)
    >>> q.data.astype(float).tolist(), float(q.amax)
    ([448.0, -224.0, 0.4375], 1.0)
    """
    function = "quantize_fp8"
    key = None
    if type(x) is DeviceArray and not x.freed:
        key = (function, x._key, type(axis), axis, format, rounding)
    if block is not None:
        return _fp8_blocks(x, amax, axis, block, eps, format, rounding, seed, stream)
    plan: AmaxPlan | None = _cached(key)
    if plan is not None and isinstance(x, DeviceArray) and _plain_values(eps, amax, x, axis, rounding, seed):
        return _run(x.device, plan.run, x, _hip.stream_handle(function, stream), eps, amax, seed)
    checks = Checks(function)
    form = checks.format(format, FP8)
    ndim = checks.floats("x", x)
    along = None if axis is None else checks.axis(axis, ndim)
    number = checks.magnitude("eps", eps)
    given = _parse_amax(checks, amax, x, along, axis)
    seed = checks.rounding(rounding, seed)
    checks.value_or(_hip.existing_stream(function, stream), 0)
    checks.raise_all()
    assert form is not None
    assert number is not None

    def work(d: DeviceArray, handle: int) -> ScaledArray:
        if plan is not None:
            return plan.run(d, handle, number, given, seed)
        rows = as_rows(d, storage_axis(d) if along is None else along, handle)
        made = amax_plan(d, rows, form, along, seed is not None)
        if rows.array is x:
            _cache(key, made)
        return made.run(rows.array, handle, number, given, seed)

    device = amax.device if isinstance(amax, (AmaxState, DeviceArray)) else None
    return on_device(function, x, stream, work, device)


def quantize_mxfp8(
    x: Input,
    *,
    axis: int = -1,
    scaling: str = "unit",
    format: str = "mxfp8_e4m3",
    group_offsets: Input | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize to mxfp8: 8-bit elements, with one power-of-two scale per 32 elements along an axis.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, of any shape and layout.
    axis : int
        The axis that the product will sum over.
    scaling : str
        The rule of the scales: ``"unit"``, ``"floor"``, ``"rceil"`` or ``"even"``; see docs/trust/formats.md.
    format : str
        ``"mxfp8_e4m3"`` or ``"mxfp8_e5m2"``.
    group_offsets : int32 array (G+1,), optional
        For a matrix and ``axis=0``: group g has the rows ``group_offsets[g]`` to ``group_offsets[g + 1]``,
        as for `grouped_wgrad`; on the host or the device. Each group begins a new block, and rows after the
        last group become zero. Only a grouped product with the same offsets accepts the result.
    rounding, seed
        As for `quantize_fp8`.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device. There the rows are the contiguous axis of `scale`:
        for a matrix and its last axis, the strides are (1, rows). Offsets on the device are not copied to
        the host, so `scale` is allocated for the maximum number of blocks; ``get`` removes the rest.

    Raises
    ------
    TypeError
        If `x` or `group_offsets` has another type or dtype.
    ValueError
        For an unknown format, scaling or rounding, a seed that is missing or not used, an axis that `x` does
        not have, or offsets that do not begin at 0, that decrease, or that exceed the number of rows. Invalid
        offsets on a device are clamped, and raise a HipError at the next wait.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or too many tiles for one launch.

    Notes
    -----
    ``"floor"`` is the rule of the OCP Microscaling Formats (MX) Specification 1.0, section 6.3. Elements are
    rounded and saturated. A NaN or Inf makes the scale of its block NaN (byte 255).

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_mxfp8(np.array([957.0, 2.0, 0.0], np.float32), scaling="rceil")
    >>> hg.dequantize(q)
    array([960.,   2.,   0.], dtype=float32)
    """
    if group_offsets is None:
        options = scaling, format, MXFP8, False, rounding, None
        return _mx("quantize_mxfp8", x, (axis,), options, seed, stream)[0]
    return _mx_groups(x, axis, scaling, format, group_offsets, rounding, seed, stream)


def quantize_mxfp6(
    x: Input,
    *,
    axis: int = -1,
    scaling: str = "even",
    format: str = "mxfp6_e2m3",
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize to mxfp6: 6-bit elements, with one power-of-two scale per 32 elements along an axis.

    Parameters
    ----------
    x, axis, scaling, rounding, seed, stream
        As for `quantize_mxfp8`, with another default of `scaling`.
    format : str
        ``"mxfp6_e2m3"`` or ``"mxfp6_e3m2"``.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device, with four elements in three bytes (`pack_fp6`), and
        `scale` with the layout of `quantize_mxfp8`.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As `quantize_mxfp8`.

    Notes
    -----
    Rules and rounding are those of `quantize_mxfp8`.

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_mxfp6(np.array([7.8, 5.2, -1.0], np.float32))
    >>> q.data.astype(np.float32), q.scale.view(np.uint8)
    (array([ 4. ,  2.5, -0.5], dtype=float32), array([128], dtype=uint8))
    """
    options = scaling, format, MXFP6, False, rounding, None
    return _mx("quantize_mxfp6", x, (axis,), options, seed, stream)[0]


def quantize_mxfp4(
    x: Input,
    *,
    axis: int = -1,
    scaling: str = "even",
    hadamard: bool = True,
    signs: int | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize to mxfp4: 4-bit elements, with one power-of-two scale per 32 elements along an axis.

    Parameters
    ----------
    x, axis, scaling, rounding, seed, stream
        As for `quantize_mxfp8`, with another default of `scaling`.
    hadamard : bool
        Apply a 16-point Hadamard transform first, which spreads outliers. In a product both operands or
        none must have it.
    signs : int, optional
        A seed from 0 to 2**64 - 1: change the signs of random elements along `axis`, the same ones in each
        row, before the Hadamard transform. In a product both operands must have the same signs; `dequantize`
        undoes them.

    Returns
    -------
    ScaledArray
        On the host for NumPy input, else on the device, with two elements per byte, and `scale` with the
        layout of `quantize_mxfp8`.

    Raises
    ------
    TypeError, ValueError, UnsupportedError
        As `quantize_mxfp8`, with `hadamard` for a length that is not a multiple of 16, and for `signs`
        without `hadamard`.

    Notes
    -----
    Rules and rounding are those of `quantize_mxfp8`.

    Examples
    --------
    >>> import hipgemm as hg
    >>> q = hg.quantize_mxfp4(np.array([12.0, 5.0, -1.0], np.float32), hadamard=False)
    >>> q.data.astype(np.float32), q.scale.view(np.uint8)
    (array([ 6. ,  2. , -0.5], dtype=float32), array([128], dtype=uint8))
    """
    options = scaling, MXFP4_E2M1.name, MXFP4, hadamard, rounding, signs
    return _mx("quantize_mxfp4", x, (axis,), options, seed, stream)[0]


def quantize_both(
    x: Input,
    format: str,
    *,
    scaling: str | None = None,
    hadamard: bool | None = None,
    signs: int | None = None,
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> tuple[ScaledArray, ScaledArray]:
    """Quantize a matrix along its last and along its first axis, in one pass.

    Training needs both, because the products of the backward pass sum over other axes than the forward pass.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32, with two axes, in any layout.
    format : str
        ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"``, ``"mxfp6_e2m3"``, ``"mxfp6_e3m2"`` or ``"mxfp4_e2m1"``.
    scaling, hadamard, signs, rounding, seed
        As for `quantize_mxfp8`, `quantize_mxfp6` and `quantize_mxfp4`, with the same defaults. An element has
        the same random number in both results.
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    rows, columns : ScaledArray
        ``axis=-1`` and ``axis=0``.

    Raises
    ------
    TypeError
        If `x` has another type or dtype.
    ValueError
        If `x` is not a matrix, and for all errors of the quantizer of the format.

    Examples
    --------
    >>> import hipgemm as hg
    >>> rows, columns = hg.quantize_both(np.ones((2, 64), np.float32), "mxfp8_e4m3")
    >>> rows.scale.shape, columns.scale.shape
    ((2, 2), (1, 64))
    """
    function = "quantize_both"
    fp8, fp6, fp4 = (isinstance(format, str) and format in known for known in (MXFP8, MXFP6, MXFP4))
    rule = ("even" if fp4 or fp6 else "unit") if scaling is None else scaling
    transform = hadamard if fp4 and hadamard is not None else fp4
    options = rule, format, (*MXFP8, *MXFP6, *MXFP4), transform, rounding, signs
    if hadamard is not None and (fp8 or fp6):
        checks, _, _, _ = _check_mx(function, x, (-1, -2), options, seed, stream)
        checks.add(ValueError, "hadamard", f"hadamard must be omitted for {format}", hadamard)
        checks.raise_all()
    rows, columns = _mx(function, x, (-1, -2), options, seed, stream)
    return rows, columns


def transpose_quantize_mxfp8(
    x: Input,
    *,
    scaling: str = "unit",
    format: str = "mxfp8_e4m3",
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize the transpose of a matrix along its last axis: ``quantize_mxfp8(x.T)``, without a copy.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32.
    scaling, format, rounding, seed, stream
        As for `quantize_mxfp8`; positions are those in ``x.T``.

    Returns
    -------
    ScaledArray
        With the shape of ``x.T``.

    Raises
    ------
    TypeError
        If `x` has another type or dtype.
    ValueError
        For an unknown format, scaling or rounding, or a seed that is missing or not used.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.transpose_quantize_mxfp8(np.ones((64, 3), np.float32))
    ScaledArray(shape=(3, 64), format='mxfp8_e4m3', block=32, axis=-1, host)
    """
    options = scaling, format, MXFP8, False, rounding, None
    return _mx("transpose_quantize_mxfp8", _transposed(x), (-1,), options, seed, stream)[0]


def transpose_quantize_mxfp6(
    x: Input,
    *,
    scaling: str = "even",
    format: str = "mxfp6_e2m3",
    rounding: str = "nearest",
    seed: int | None = None,
    stream: Any = None,
) -> ScaledArray:
    """Quantize the transpose of a matrix along its last axis: ``quantize_mxfp6(x.T)``, without a copy.

    Parameters
    ----------
    x : numpy.ndarray or DeviceArray
        bfloat16, float16 or float32.
    scaling, format, rounding, seed, stream
        As for `quantize_mxfp6`; positions are those in ``x.T``.

    Returns
    -------
    ScaledArray
        With the shape of ``x.T``.

    Raises
    ------
    TypeError
        If `x` has another type or dtype.
    ValueError
        For an unknown format, scaling or rounding, or a seed that is missing or not used.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.transpose_quantize_mxfp6(np.ones((64, 3), np.float32))
    ScaledArray(shape=(3, 64), format='mxfp6_e2m3', block=32, axis=-1, host)
    """
    options = scaling, format, MXFP6, False, rounding, None
    return _mx("transpose_quantize_mxfp6", _transposed(x), (-1,), options, seed, stream)[0]


def dequantize(q: ScaledArray, *, dtype: npt.DTypeLike = np.float32, stream: Any = None) -> Any:
    """Convert a quantized array to float32, bfloat16 or float16. Hadamard transform and signs are undone.

    Element times scale is rounded once to float32, then to `dtype`.

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
        On the device of `q`.

    Raises
    ------
    TypeError
        If `q` is not a ScaledArray, or for another dtype.
    UnsupportedError
        On a device, for more than 2**31 rows or columns, or too many tiles for one launch.

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
        plan: DequantizePlan | None = _cached(key)
        if plan is not None and not q.freed:
            return _run(q.data.device, plan.run, q, _hip.stream_handle(function, stream))
    checks = Checks(function)
    if not isinstance(q, ScaledArray):
        checks.wrong_type("q", "a ScaledArray", q)
    else:
        checks.in_memory("q", q)
    to = checks.dtype("dtype", dtype, tuple(FORMATS.values()))
    handle = checks.value_or(_hip.existing_stream(function, stream), 0)
    checks.raise_all()
    assert to is not None
    if q.device is None:
        return reference.dequantize(q, dtype=to.dtype)
    with error_context(function), _hip.on_device(q.device):
        made, plan = dequantize_array(q, handle, to)
        count_call(Call(function, "dequantize", 0, q.data.nbytes + q.scale.nbytes + made.nbytes))
    _cache(key, plan)
    return made


def pack_mx_scales(scale: Input, *, stream: Any = None) -> Any:
    """Pack the four e8m0 scales of each 128 elements into one 32-bit word, with rows as the contiguous axis.

    Parameters
    ----------
    scale : numpy.ndarray or DeviceArray
        e8m0 or its bytes, (rows, K/32), with any strides. Missing columns are padded with 1.0 (byte 127).
    stream : int or object with int(), optional
        The stream to work on.

    Returns
    -------
    numpy.ndarray or DeviceArray
        uint32 (K/128, rows); the first scale is in the lowest byte.

    Raises
    ------
    TypeError
        If `scale` has another dtype.
    ValueError
        If `scale` does not have two axes.

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
            required = f"scale.dtype must be {MXFP4_E2M1.scale_dtype} or uint8"
            checks.add(TypeError, "dtype", required, array.dtype)
        if len(array.shape) != 2:
            checks.add(ValueError, "shape", "scale.ndim must be 2", f"scale.shape={array.shape}")
    handle = checks.value_or(_hip.existing_stream(function, stream), 0)
    checks.raise_all()
    if not isinstance(scale, DeviceArray):
        return formats.pack_mx_scales(scale)
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
        count_call(Call(function, function, 0, scale.nbytes + packed.nbytes))
    return packed


# ---- checks ----------------------------------------------------------------------------------------


def _check_mx(
    function: str, x: Input, axes: Axes, options: Options, seed: int | None, stream: Any
) -> tuple[Checks, Format, tuple[int, ...], tuple[int | None, int | None]]:
    """Check the arguments of an MX quantizer; return the format, the axes, seed and signs too."""
    checks, (scaling, format, among, hadamard, rounding, signs) = Checks(function), options
    form = checks.format(format, among)
    ndim = checks.floats("x", x)
    if len(axes) == 2 and ndim is not None and ndim != 2:
        checks.add(ValueError, "shape", "x.ndim must be 2", ndim, f"x.shape={x.shape}")
        ndim = None
    found = [axis for axis in (checks.axis(axis, ndim) for axis in axes) if axis is not None]
    checks.option("scaling", scaling, SCALE_RULES)
    seeds = checks.rounding(rounding, seed), checks.signs(signs, hadamard)
    if checks.flag("hadamard", hadamard):
        for axis in found:
            if x.shape[axis] % HADAMARD:
                required = f"x.shape[{axis}] must be a multiple of {HADAMARD} for the Hadamard transform"
                checks.add(ValueError, "hadamard", required, x.shape[axis], "pass hadamard=False")
    checks.value_or(_hip.existing_stream(function, stream), 0)
    return checks, form or MXFP4_E2M1, tuple(found), seeds


def _plain_seed(rounding: object, seed: object) -> bool:
    """Whether the seed of a call is valid and of the usual type, so that no check is needed."""
    if seed is None:
        return rounding == "nearest"
    return type(seed) is int and rounding == "stochastic" and 0 <= seed <= MAX_SEED


def _plain_values(
    eps: object, amax: object, x: Input, axis: int | None, rounding: object, seed: object
) -> bool:
    """Whether the values of a call are valid and of the usual types, so that no check is needed."""
    if type(eps) is not float or not 0 <= eps <= F32.maximum or not _plain_seed(rounding, seed):
        return False
    if amax is None:
        return True
    return type(amax) is AmaxState and axis is None and amax.device == x.device and not amax.freed


def _parse_amax(checks: Checks, amax: Any, x: object, along: int | None, axis: int | None) -> Any:
    """Parse an amax: a number, an array or a state."""
    device = amax.device if isinstance(amax, (AmaxState, DeviceArray)) else None
    if device is not None and isinstance(x, DeviceArray):
        checks.same_device("amax", device, x.device, "x")
    if isinstance(amax, AmaxState):
        checks.in_memory("amax", amax)
        if axis is not None:
            checks.add(ValueError, "axis", "axis must be None with an AmaxState", axis)
    elif is_array(amax):
        checks.in_memory("amax", amax)
        checks.dtype("amax.dtype", amax.dtype, (F32,))
        want = () if along is None or not is_array(x) else scale_shape(x.shape, along, 0)
        if amax.shape not in ((), want) and (axis is None or along is not None):
            required = f"amax.shape must be {want}" + ("" if axis is None else " or ()")
            checks.add(ValueError, "shape", required, amax.shape)
        checks.magnitudes("amax", amax)
    elif amax is not None:
        what = "a number, a float32 array or an AmaxState"
        number = checks.magnitude("amax", amax, what, array_hint(amax))
        return None if number is None else np.array(number, np.float32)
    return amax


# ---- on the device ---------------------------------------------------------------------------------


T = TypeVar("T")
# The plans of calls that need no copy, by everything that they depend on except values and addresses.
_plans: dict[Any, Any] = {}
_MAX_PLANS = 1024


def _cached(key: Any) -> Any:
    """Return the cached plan of an equal call, if there is one. Its arguments were checked."""
    try:
        return _plans.get(key)
    except TypeError:  # an unhashable argument, which the checks refuse
        return None


def _cache(key: Any, plan: Any) -> None:
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


def on_device(
    function: str, x: Input, stream: Any, work: Callable[[DeviceArray, int], T], device: int | None = None
) -> T:
    """Run on the device of `x`; for NumPy arrays on `device` or the current one, with upload and download."""
    handle = _hip.stream_handle(function, stream)
    resident = x if isinstance(x, DeviceArray) else asarray(x, device=device, stream=stream)
    with error_context(function), _hip.on_device(resident.device):
        made: Any = work(resident, handle)
        if resident is not x:
            made = tuple(q.get() for q in made) if isinstance(made, tuple) else made.get()
    found: T = made
    return found


def _fp8_blocks(
    x: Input, amax: Any, axis: Any, block: Any, eps: Any, format: Any, rounding: Any, seed: Any, stream: Any
) -> ScaledArray:
    """Check the arguments, and quantize to fp8 with a scale for each block."""
    function, key = "quantize_fp8", None
    if type(x) is DeviceArray and not x.freed and axis is amax is None and type(block) is tuple:
        key = (function, x._key, block, *map(type, block), format, rounding)
        plan: BlockPlan | None = _cached(key)
        if plan is not None and _plain_values(eps, None, x, None, rounding, seed):
            return _run(x.device, plan.run, x, _hip.stream_handle(function, stream), eps, seed)
    checks = Checks(function)
    form = checks.format(format, FP8)
    checks.floats("x", x)
    sides = checks.fp8_block(block, x.shape if is_array(x) else None, axis, amax)
    seed = checks.rounding(rounding, seed)
    number = checks.magnitude("eps", eps)
    checks.value_or(_hip.existing_stream(function, stream), 0)
    checks.raise_all()
    assert form is not None
    assert sides is not None
    assert number is not None

    def work(d: DeviceArray, handle: int) -> ScaledArray:
        rows = as_rows(d, -1, handle)
        made = block_plan(rows, form, sides, seed is not None)
        if rows.array is x:
            _cache(key, made)
        return made.run(rows.array, handle, number, seed)

    return on_device(function, x, stream, work)


def _transposed(x: Input) -> Input:
    """Give `x.T`; what is no array stays, for the checks to name."""
    return x.T if is_array(x) else x


def _mx(
    function: str, x: Input, axes: Axes, options: Options, seed: int | None, stream: Any
) -> tuple[ScaledArray, ...]:
    """Check the arguments, and quantize along one axis, or a matrix along both axes."""
    key = None
    scaling, _, _, hadamard, rounding, signs = options
    plain = type(axes[0]) is int and type(hadamard) is bool and type(signs) in (int, NoneType)  # True == 1
    if type(x) is DeviceArray and not x.freed and plain:
        key = (function, x._key, axes, options)
        plan: MxPlan | None = _cached(key)
        if plan is not None and _plain_seed(rounding, seed):
            handle = 0 if stream is None else _hip.stream_handle(function, stream)
            return _run(x.device, plan.run, x, handle, seed)
    checks, form, found, (seed, signs) = _check_mx(function, x, axes, options, seed, stream)
    checks.raise_all()

    def work(d: DeviceArray, handle: int) -> tuple[ScaledArray, ...]:
        along, *across = (as_rows(d, axis, handle) for axis in found)
        made = mx_plan(
            function, along, across[0] if across else None, form, scaling, hadamard, rounding, signs
        )
        if along.array is x:
            _cache(key, made)
        return made.run(along.array, handle, seed)

    return on_device(function, x, stream, work)


def _mx_groups(
    x: Input, axis: int, scaling: str, format: str, offsets: Input, rounding: str, seed: Any, stream: Any
) -> ScaledArray:
    """Check the arguments, and quantize along the columns of each group of rows."""
    function = "quantize_mxfp8"
    options = scaling, format, MXFP8, False, rounding, None
    checks, form, found, (seed, _) = _check_mx(function, x, (axis,), options, seed, stream)
    if is_array(x) and found and (len(x.shape), found[0]) != (2, -2):
        required = "x must be a matrix and axis 0 with group_offsets"
        checks.add(ValueError, "axis", required, f"x.shape={x.shape}, axis={axis}")
    device = x.device if isinstance(x, DeviceArray) else None
    if isinstance(offsets, DeviceArray) and device is None and not offsets.freed:
        offsets = offsets.get()
    rows = x.shape[0] if is_array(x) and x.shape else None
    checks.found += offset_reasons(offsets, rows, device=device)
    checks.raise_all()
    return on_device(function, x, stream, lambda d, s: quantize_groups(d, s, form, scaling, offsets, seed))
