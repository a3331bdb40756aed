"""The public quantizers. What they compute is written in `reference`; here it runs on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import _hip, _launch, _notes, formats, reference
from ._dlpack import contiguous_strides
from .amax import AmaxState
from .array import DeviceArray, asarray, lend, new
from .errors import raise_reasons, sentence, told_by
from .formats import (
    BLOCK,
    F32,
    FORMATS,
    MXFP4_E2M1,
    QUANTIZED,
    SCALE_RULES,
    Format,
    format_of,
)
from .groups import group_slots, most_blocks, offset_reasons
from .manifest import CHUNK_BYTES
from .problem import dtype_name
from .scaled import (
    HADAMARD,
    ScaledArray,
    array_hint,
    find_axis,
    find_format,
    fnuz_hint,
    group_blocks,
    is_array,
    scale_shape,
)
from .usage import count_call, count_copy

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
    form = find_format(function, format, FP8)
    ndim = _check(function, x)
    if ndim == 0:
        raise ValueError(f"{function}: {sentence('x.ndim must be at least 1', 0)}")
    axis = None if axis is None else find_axis(function, axis, ndim)
    number = _check_eps(function, eps)
    given = _check_amax(function, amax, x, axis)
    place = amax.device if isinstance(amax, (AmaxState, DeviceArray)) else None
    return _on_device(function, x, stream, lambda d, s: _fp8(d, s, form, axis, number, given), place)


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
        On the host for NumPy input, else on the device. Offsets that are on the device are not read
        back: its `scale` then has room for the most blocks that there can be, up to ``get``.

    Raises
    ------
    TypeError
        For an `x` or `group_offsets` of another type or dtype.
    ValueError
        For an unknown format or scaling, an axis that `x` lacks, or offsets that do not begin at 0,
        decrease, or pass the last row. Those on a device are kept inside `x`; what is wrong with them is
        a HipError at the next wait.

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
    return _mx("quantize_mxfp8", x, axis, scaling, form, False, stream)


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
        On the host for NumPy input, else on the device, where two numbers share a byte.

    Raises
    ------
    TypeError
        For an `x` of another type or dtype.
    ValueError
        For an unknown scaling, an axis that `x` lacks, or one that is no multiple of 16 with `hadamard`.

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
    return _mx("quantize_mxfp4", x, axis, scaling, MXFP4_E2M1, hadamard, stream)


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
    ndim = _check(function, x)
    if ndim != 2:
        raise ValueError(f"{function}: {sentence('x.ndim must be 2', ndim, f'x.shape={x.shape}')}")
    if hadamard is not None and form is not MXFP4_E2M1:
        raise ValueError(f"{function}: {sentence('hadamard must be left out for ' + format, hadamard)}")
    transform = form is MXFP4_E2M1 and hadamard is not False
    rule = ("even" if form is MXFP4_E2M1 else "unit") if scaling is None else scaling
    _check_mx(function, x, rule, transform, (-1, -2))
    return _on_device(function, x, stream, lambda d, s: _both(d, s, form, rule, transform))


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
    _check(function, x)
    return _mx(function, x.T, -1, scaling, form, False, stream)


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

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.dequantize(hg.quantize_mxfp8(np.array([0.0, 3.0, -0.3], np.float32)))
    array([ 0.    ,  3.    , -0.3125], dtype=float32)
    """
    function = "dequantize"
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
        made = _back(q, handle, to)
        count_call(function, "dequantize", 0, q.data.nbytes + q.scale.nbytes + made.nbytes)
        return made


def pack_mx_scales(scale: Input, *, stream: Any = None) -> Any:
    """Put the four scale bytes of each 128 numbers into one word, and rows side by side.

    Parameters
    ----------
    scale : numpy.ndarray or DeviceArray
        e8m0 (rows, K/32); filled up to a multiple of four columns with ones (byte 127).
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
            kernel = _launch.function(scale.device, function)
            workgroups = -(-packed.size // kernel.tile[0])
            _launch.launch(kernel, workgroups, handle, scale.ptr, packed.ptr, *scale.strides, rows, blocks)
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
    if isinstance(eps, np.generic):
        eps = eps.item()
    if isinstance(eps, bool) or not isinstance(eps, Real):
        raise TypeError(f"{function}: {sentence('eps must be a real number', type(eps).__qualname__)}")
    if not 0 <= float(eps) <= F32.maximum:
        raise ValueError(f"{function}: {sentence('eps must be finite and not negative', eps)}")
    return float(eps)


def _check_amax(function: str, amax: object, x: Input, axis: int | None) -> Any:
    """Check a given amax: a float, an array, or a state."""
    place = x.device if isinstance(x, DeviceArray) else None
    if amax is None:
        return None
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


# ---- layout: any array as rows along the axis that shares scales -----------------------------------


@dataclass(frozen=True)
class _Rows:
    """A view of an array as a matrix (rows, length), and the way back."""

    array: DeviceArray
    rows: int
    length: int
    row_stride: int  # bytes
    stride: int  # bytes along the axis
    lead: tuple[int, ...]  # the other axes
    axis: int  # of the original, from the end

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the original."""
        shape = list(self.lead)
        shape.insert(len(shape) + 1 + self.axis, self.length)
        return tuple(shape)

    @property
    def matrix(self) -> tuple[int, int, int]:
        """Address and strides, as kernels take them."""
        return self.array.ptr, self.row_stride, self.stride

    def shaped(
        self,
        block: _hip.Block,
        ptr: int,
        dtype: np.dtype[Any],
        length: int,
        pitch: int,
        padded: bool = False,
    ) -> DeviceArray:
        """Return rows of results, `pitch` bytes apart, with the axes of the original."""
        shape = list(self.lead)
        strides = [n * pitch for n in contiguous_strides(self.lead, 1)]
        place = len(shape) + 1 + self.axis
        shape.insert(place, length)
        strides.insert(place, dtype.itemsize)
        return DeviceArray(block, ptr, tuple(shape), tuple(strides), dtype, padded=padded)


def _as_rows(x: DeviceArray, axis: int, stream: int) -> _Rows:
    """View an array as rows along an axis; a copy where no view will do."""
    place = len(x.shape) + axis
    length, stride = x.shape[place], x.strides[place]
    lead = x.shape[:place] + x.shape[place + 1 :]
    steps = x.strides[:place] + x.strides[place + 1 :]
    rows = math.prod(lead)
    step = _one_step(lead, steps)
    if step is None:
        count_copy("quantize", "x", "axes cannot be merged")
        x, step, stride = _gather(x, lead, steps, length, stride, stream)
    return _Rows(x, rows, length, step, stride, lead, axis)


def _one_step(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return the one stride that walks through several axes; None if there is none.

    Examples
    --------
    >>> _one_step((2, 3), (24, 8)), _one_step((2, 3), (32, 8)), _one_step((1, 3), (0, -8)), _one_step((), ())
    (8, None, -8, 0)
    """
    step: int | None = None
    extent = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if step is None:
            step = stride
        elif stride != step * extent:
            return None
        extent *= n
    return step or 0


def _gather(
    x: DeviceArray, lead: tuple[int, ...], steps: tuple[int, ...], length: int, stride: int, stream: int
) -> tuple[DeviceArray, int, int]:
    """Copy to contiguous rows."""
    item = x.dtype.itemsize
    dense = new((*lead, length), x.dtype, x.device, stream)
    x._block.reading(stream)
    row = length * item
    inner = lead[-1]
    for i, index in enumerate(np.ndindex(*lead[:-1])):
        source = x.ptr + sum(n * s for n, s in zip(index, steps[:-1], strict=True))
        target = dense.ptr + i * inner * row
        _launch.copy_strided(
            x.device, stream, item, (source, steps[-1], stride), (target, row, item), inner, length
        )
    return dense, row, item


T = TypeVar("T", ScaledArray, tuple[ScaledArray, ScaledArray])


def _on_device(
    function: str, x: Input, stream: Any, work: Callable[[DeviceArray, int], T], device: int | None = None
) -> T:
    """Run on the device of `x`; NumPy arrays go to `device` or the current one, and results come back."""
    handle = _hip.stream_handle(function, stream)
    if isinstance(x, DeviceArray):
        with told_by(function), _hip.on_device(x.device):
            made = work(x, handle)
            _count(function, x, *(made if isinstance(made, tuple) else (made,)))
            return made
    resident = asarray(x, device=device, stream=stream)
    with told_by(function), _hip.on_device(resident.device):
        made = work(resident, handle)
        _count(function, resident, *(made if isinstance(made, tuple) else (made,)))
        return (made[0].get(), made[1].get()) if isinstance(made, tuple) else made.get()


def _count(function: str, x: DeviceArray, *made: ScaledArray) -> None:
    kernel = f"quantize_{made[0].format.split('_')[0]}"
    kernel += "_groups" if made[0].group_offsets is not None else ""
    count_call(function, kernel, 0, x.nbytes + sum(q.data.nbytes + q.scale.nbytes for q in made))


# ---- execution: everything is queued on the stream, in order ---------------------------------------


def _mx(
    function: str, x: Input, axis: int, scaling: str, form: Format, hadamard: bool, stream: Any
) -> ScaledArray:
    """Check, and quantize along one axis."""
    ndim = _check(function, x)
    if ndim == 0:
        raise ValueError(f"{function}: {sentence('x.ndim must be at least 1', 0)}")
    axis = find_axis(function, axis, ndim)
    _check_mx(function, x, scaling, hadamard, (axis,))

    def work(d: DeviceArray, handle: int) -> ScaledArray:
        along = _as_rows(d, axis, handle)
        made = _MxOutput(along, form, hadamard, handle)
        _launch_mx(along, made, None, form, scaling, hadamard, handle)
        return made.array

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
    return _on_device(function, x, stream, lambda d, s: _groups(d, s, form, scaling, offsets))


def _groups(x: DeviceArray, stream: int, form: Format, scaling: str, offsets: Input) -> ScaledArray:
    assert form.scale_dtype is not None
    device, (rows, columns), groups = x.device, x.shape, offsets.shape[0] - 1
    if isinstance(offsets, DeviceArray):
        resident, blocks = offsets, most_blocks(rows, groups)
    else:
        offsets = offsets.astype(np.int32)
        offsets.flags.writeable = False
        resident, blocks = lend(offsets, device, stream), int(group_blocks(offsets)[-1])
    # Codes row by row, as x has them: a product reads them there, wherever groups begin.
    pitch = _round_up(max(1, columns), CHUNK_BYTES)
    block = _hip.allocate(rows * pitch + blocks * columns, device, stream)
    scale = block.ptr + rows * pitch
    if resident is offsets:
        _hip.clear(scale, blocks * columns, stream)
    if rows and columns:
        x._block.reading(stream)
        resident._block.reading(stream)
        kernel = _launch.function(device, "quantize_mxfp8_groups")
        tile_rows, tile_columns = kernel.tile
        _launch.launch(
            kernel,
            group_slots(rows, groups, tile_rows) * -(-columns // tile_columns),
            stream,
            x.ptr,
            block.ptr,
            scale,
            resident.ptr,
            _notes.place("quantize_mxfp8"),
            *x.strides,
            pitch,
            columns,
            rows,
            columns,
            groups,
            _type_code(x),
            _launch.ELEMENT_CODES[form.name],
            _launch.RULE_CODES[scaling],
        )
    return ScaledArray._make(
        DeviceArray(block, block.ptr, (rows, columns), (pitch, 1), form.dtype, padded=True),
        DeviceArray(block, scale, (blocks, columns), (columns, 1), form.scale_dtype),
        form,
        -2,
        x.shape,
        group_offsets=offsets,
    )


def _both(
    x: DeviceArray, stream: int, form: Format, scaling: str, hadamard: bool
) -> tuple[ScaledArray, ScaledArray]:
    along, across = _as_rows(x, -1, stream), _as_rows(x, -2, stream)
    rows, columns = (_MxOutput(r, form, hadamard, stream) for r in (along, across))
    _launch_mx(along, rows, columns, form, scaling, hadamard, stream)
    return rows.array, columns.array


class _MxOutput:
    """Memory for codes and scales along one axis, and the arguments that name it."""

    def __init__(self, r: _Rows, form: Format, hadamard: bool, stream: int):
        assert form.scale_dtype is not None
        device = r.array.device
        width = -(-r.length * form.bits // 8)
        blocks = -(-r.length // BLOCK)
        pitch = max(1, -(-width // CHUNK_BYTES)) * CHUNK_BYTES
        # A matrix, or several whose rows a product takes for those of one.
        for_products = len(r.lead) == 1 or (len(r.lead) > 1 and r.axis == -1)
        gemm_bytes = _launch.gemm_scale_bytes(r.rows, r.length) if for_products else 0
        # One piece of memory: codes, scales in the order of products, scales.
        codes = r.rows * pitch
        block = _hip.allocate(codes + gemm_bytes + r.rows * blocks, device, stream)
        data = block.ptr
        scale = data + codes + gemm_bytes
        if r.length == 0:
            _hip.clear(data, codes, stream)
        kept = {"gemm": (block, data + codes)} if gemm_bytes else {}
        self.pointers = (data, scale, data + codes if gemm_bytes else 0)
        self.pitches = (pitch, blocks)
        dtype = np.dtype(np.uint8) if form.bits == 4 else form.dtype
        self.array = ScaledArray._make(
            r.shaped(block, data, dtype, width, pitch, padded=True),
            r.shaped(block, scale, form.scale_dtype, blocks, blocks),
            form,
            r.axis,
            r.shape,
            hadamard=hadamard,
            kernel_scales=kept,
        )


_NOTHING = (0, 0, 0), (0, 0)
_SPAN = 256  # rows or columns that scales in the order of products cover at least


def _launch_mx(
    r: _Rows,
    along: _MxOutput,
    across: _MxOutput | None,
    form: Format,
    scaling: str,
    hadamard: bool,
    stream: int,
) -> None:
    """Quantize along the rows of `r` and, if asked for, across them."""
    ptr, row_stride, stride = r.matrix
    rows, columns = r.rows, r.length
    outputs = [
        (along.pointers, along.pitches),
        (across.pointers, across.pitches) if across else _NOTHING,
    ]
    if rows > 1 and abs(row_stride) < abs(stride):  # the kernel reads fastest along what lies together
        rows, columns, row_stride, stride = columns, rows, stride, row_stride
        outputs.reverse()
    (row_pointers, row_pitches), (column_pointers, column_pitches) = outputs
    r.array._block.reading(stream)
    device = r.array.device
    _launch.tiled(
        device,
        f"quantize_{form.name.split('_')[0]}",
        _round_up(rows, _SPAN) if column_pointers[0] else rows,
        _round_up(columns, _SPAN) if row_pointers[0] else columns,
        stream,
        ptr,
        *row_pointers,
        *column_pointers,
        row_stride,
        stride,
        *row_pitches,
        *column_pitches,
        rows,
        columns,
        _type_code(r.array),
        _launch.ELEMENT_CODES[form.name],
        _launch.RULE_CODES[scaling],
        hadamard,
    )


def _type_code(x: DeviceArray) -> int:
    form = format_of(x.dtype)
    assert form is not None
    return _launch.TYPE_CODES[form.name]


def _round_up(n: int, step: int) -> int:
    return -(-n // step) * step


def _fp8(x: DeviceArray, stream: int, form: Format, axis: int | None, eps: float, amax: Any) -> ScaledArray:
    device, item = x.device, F32.itemsize
    r = _as_rows(x, _storage_axis(x) if axis is None else axis, stream)
    step, count = (0, 1) if axis is None else (1, r.rows)
    pitch = _round_up(max(1, r.length), CHUNK_BYTES)
    # One piece of memory: codes, greatest magnitudes, scales.
    block = _hip.allocate(r.rows * pitch + 2 * count * item, device, stream)
    data, own = block.ptr, block.ptr + r.rows * pitch
    scale = own + count * item
    _hip.clear(own, count * item, stream)
    x._block.reading(stream)
    source, rows, columns, target = r.matrix, r.rows, r.length, data
    temporaries = []
    if rows == 0 or columns == 0:  # scales are due all the same, as for a zero
        _hip.clear(data, r.rows * pitch, stream)
        rows, columns = (r.rows if axis is not None else 1), 1
        spare = _hip.allocate((1 + rows) * CHUNK_BYTES, device, stream)
        _hip.clear(spare.ptr, item, stream)
        source, target, pitch = (spare.ptr, 0, 0), spare.ptr + CHUNK_BYTES, CHUNK_BYTES
        temporaries.append(spare)
    kind = _type_code(x)

    if amax is None or (isinstance(amax, AmaxState) and not amax._primed):
        _launch.tiled(
            device, "amax", rows, columns, stream, source[0], own, *source[1:], rows, columns, step, kind
        )
        used, next_ptr = own, 0
    else:
        given = amax.current if isinstance(amax, AmaxState) else amax
        lent, used = _amax_values(given, r.rows if step else 1, axis, device, stream)
        temporaries.append(lent)
        next_ptr = own
    _launch.tiled(
        device,
        "quantize_fp8",
        rows,
        columns,
        stream,
        source[0],
        target,
        used,
        scale,
        next_ptr,
        *source[1:],
        pitch,
        rows,
        columns,
        step,
        eps,
        kind,
        _launch.ELEMENT_CODES[form.name],
    )
    if isinstance(amax, AmaxState):
        amax._take(own, stream)

    def small(ptr: int) -> DeviceArray:
        if axis is None:
            return DeviceArray(block, ptr, (), (), F32.dtype)
        return r.shaped(block, ptr, F32.dtype, 1, item)

    width = _round_up(max(1, r.length), CHUNK_BYTES)
    codes = r.shaped(block, data, form.dtype, r.length, width, padded=True)
    return ScaledArray._make(
        codes, small(scale), form, -1 if axis is None else axis, x.shape, amax=small(own)
    )


def _storage_axis(x: DeviceArray) -> int:
    """The axis along which codes of one scale lie together: as in the source, where that is a matrix."""
    if x.ndim == 2 and abs(x.strides[0]) < abs(x.strides[1]) and x.shape[0] > 1 and x.shape[1] > 1:
        return -2
    return -1


def _amax_values(amax: Any, count: int, axis: int | None, device: int, stream: int) -> tuple[_hip.Block, int]:
    """Return where `count` float32 lie side by side; one given number serves all."""
    x = amax if isinstance(amax, DeviceArray) else lend(amax, device, stream)
    x._block.reading(stream)
    item = F32.itemsize
    if axis is None:
        return x._block, x.ptr
    if x.shape == ():
        row_stride = 0
    else:
        r = _as_rows(x, axis, stream)
        x, row_stride = r.array, r.row_stride
    if row_stride == item or count <= 1:
        return x._block, x.ptr
    block = _hip.allocate(count * item, device, stream)
    _launch.copy_strided(device, stream, item, (x.ptr, row_stride, item), (block.ptr, item, item), count, 1)
    return block, block.ptr


def _back(q: ScaledArray, stream: int, to: Format) -> DeviceArray:
    """Dequantize on the device of `q`, the current one."""
    if q.group_offsets is not None:
        return _groups_back(q, stream, to)
    form, device = QUANTIZED[q.format], q.data.device
    axis = q.axis if form.block or q.scale.shape else _storage_axis(q.data)
    data = _as_rows(q.data, axis, stream)
    length = q.shape[axis]
    item = to.itemsize
    out = _hip.allocate(data.rows * length * item, device, stream)
    result = data.shaped(out, out.ptr, to.dtype, length, length * item)
    if result.size == 0:
        return result
    data.array._block.reading(stream)
    temporaries, ptr, pitch = _chunks("dequantize", data, stream)
    if form.block:
        scale = _as_rows(q.scale, q.axis, stream)
        scale.array._block.reading(stream)
        scales = scale.matrix
    elif q.scale.shape == ():
        q.scale._block.reading(stream)
        scales = (q.scale.ptr, 0, 0)
    else:
        block, at = _amax_values(q.scale, data.rows, q.axis, device, stream)
        temporaries.append(block)
        scales = (at, F32.itemsize, 0)
    _launch.tiled(
        device,
        "dequantize",
        data.rows,
        length,
        stream,
        ptr,
        scales[0],
        out.ptr,
        pitch,
        *scales[1:],
        length * item,
        data.rows,
        length,
        _launch.FORMAT_CODES[form.name],
        _launch.TYPE_CODES[to.name],
        q.hadamard,
    )
    return result


def _groups_back(q: ScaledArray, stream: int, to: Format) -> DeviceArray:
    """Dequantize group by group; for that, offsets must come to the host."""
    if q.axis == -1:
        return _groups_back(q.T, stream, to).T
    form, device, item = QUANTIZED[q.format], q.data.device, to.itemsize
    offsets = q.group_offsets if isinstance(q.group_offsets, np.ndarray) else q.group_offsets.get()
    blocks = group_blocks(offsets)
    result = new(q.shape, to.dtype, device, stream)
    _hip.clear(result.ptr, result.nbytes, stream)
    for g in np.flatnonzero(np.diff(offsets)):
        begin, end = int(offsets[g]), int(offsets[g + 1])
        rows, scale = q.data[begin:end], q.scale[int(blocks[g]) : int(blocks[g + 1])]
        part = _back(ScaledArray._make(rows, scale, form, -2, rows.shape), stream, to)
        row, column = part.strides
        into = result[begin:end].ptr, q.shape[1] * item, item
        source = part.ptr, row, column
        _launch.copy_strided(device, stream, item, source, into, end - begin, q.shape[1])
    return result


def _chunks(function: str, data: _Rows, stream: int) -> tuple[list[_hip.Block], int, int]:
    """Return where codes lie in rows of whole 16 bytes, and their pitch; copied there if they must be."""
    if _chunked(data):
        return [], data.array.ptr, data.row_stride
    device = data.array.device
    pitch = _round_up(data.length, CHUNK_BYTES)
    block = _hip.allocate(data.rows * pitch, device, stream)
    count_copy(function, "data", "not in rows of 16 bytes")
    target = (block.ptr, pitch, 1)
    _launch.copy_strided(device, stream, 1, data.matrix, target, data.rows, data.length, pitch)
    return [block], block.ptr, pitch


def as_mxfp8(q: ScaledArray, stream: int) -> ScaledArray:
    """Return an mxfp4 matrix as mxfp8, number for number. Made once and kept; its device is current."""
    kept: ScaledArray | None = q._kernel_scales.get("mxfp8")
    if kept is None or not kept.data._block.ptr:
        form, device = QUANTIZED["mxfp8_e4m3"], q.data.device
        source = _as_rows(q.data, q.axis, stream)
        length = q.shape[q.axis]
        pitch = _round_up(max(1, length), CHUNK_BYTES)
        block = _hip.allocate(source.rows * pitch, device, stream)
        if source.rows and length:
            source.array._block.reading(stream)
            temporaries, ptr, from_pitch = _chunks("matmul", source, stream)
            rows = source.rows
            _launch.tiled(
                device, "fp4_to_fp8", rows, length, stream, ptr, block.ptr, from_pitch, pitch, rows, length
            )
            del temporaries
        data = source.shaped(block, block.ptr, form.dtype, length, pitch, padded=True)
        kept = ScaledArray._make(data, q.scale, form, q.axis, q.shape, hadamard=q.hadamard)
        q._kernel_scales["mxfp8"] = kept
    return kept if kept.axis == q.axis else kept.mT


def _chunked(data: _Rows) -> bool:
    """Whether a kernel can read codes where they lie: rows of whole 16 bytes."""
    if data.length > 1 and data.stride != 1:
        return False
    if data.array.ptr % CHUNK_BYTES or (data.length % CHUNK_BYTES and not data.array.padded):
        return False
    return data.rows <= 1 or (data.row_stride >= data.length and data.row_stride % CHUNK_BYTES == 0)
