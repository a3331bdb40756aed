"""Quantized arrays: codes, their scales, and how the two belong together. Pure: no device."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ..errors import sentence
from .elements import F32, FNUZ, MXFP4_E2M1, QUANTIZED, Format, pack_fp4, unpack_fp4

HADAMARD = 16  # points of the transform
_U8 = np.dtype(np.uint8)


class Resident(ABC):
    """An array in the memory of a device. `DeviceArray` is the one that users meet."""

    __slots__ = ()
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    readonly: bool
    padded: bool
    tight: bool

    @property
    @abstractmethod
    def ptr(self) -> int:
        """Address of the first element."""

    @abstractmethod
    def get(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy to the host."""


Array = npt.NDArray[Any] | Resident


def is_array(x: object) -> TypeGuard[npt.NDArray[Any] | Resident]:
    """Whether `x` is an array that all its numbers count of: no masked one, whose mask would be lost."""
    return isinstance(x, (np.ndarray, Resident)) and not isinstance(x, np.ma.MaskedArray)


def array_hint(x: object) -> str:
    """Say how to make an array of something that is none."""
    if isinstance(x, np.ma.MaskedArray):
        return "masks are not heeded: use .filled(value)"
    if isinstance(x, (list, tuple)):
        return "make an array of it with numpy.asarray"
    if type(x).__name__ == "ShardedArray":
        return "see hipgemm.sharded_matmul"
    return "wrap foreign device arrays with hipgemm.asarray" if hasattr(x, "__dlpack__") else ""


class ScaledArray:
    """An array of narrow numbers that mean something only times their scale. Made by the quantizers.

    Products keep copies of scales in an order of their own: make a new array rather than change one in place.

    Parameters
    ----------
    data : array
        The codes, in the element type of `format`. For mxfp4 also uint8 with two codes per byte along
        `axis`, low half first: what a device holds.
    scale : array or float
        What to multiply with. For fp8 float32: one element, one for each row along `axis`, or one for each
        matrix of a stack (length 1 along both of its last axes); for MX formats float8_e8m0fnu (or its
        bytes as uint8), one for each 32 elements along `axis`.
    format : str
        ``"fp8_e4m3"``, ``"fp8_e5m2"``, ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"`` or ``"mxfp4_e2m1"``.
    axis : int
        The axis along which elements share a scale; a product must sum over it.
    hadamard : bool
        Whether a 16-point Hadamard transform along `axis` came before (mxfp4 only).

    Attributes
    ----------
    shape : tuple of int
        Shape of the numbers, however they are packed.
    amax : array or None
        Greatest magnitude before quantizing, where the quantizer took it: what delayed scaling uses next.
    group_offsets : array or None
        Where the groups of rows begin that a quantizer kept apart: their blocks begin anew.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> codes = np.array([[1.0, 2.0]], np.float32).astype(ml_dtypes.float8_e4m3fn)
    >>> hg.ScaledArray(codes, 0.5, "fp8_e4m3")
    ScaledArray(shape=(1, 2), format='fp8_e4m3', axis=-1, host)
    """

    __slots__ = (
        "_kernel_scales", "amax", "axis", "data", "format", "group_offsets", "hadamard", "scale", "shape",
    )  # fmt: skip
    data: Any
    scale: Any
    format: str
    axis: int
    hadamard: bool
    shape: tuple[int, ...]
    amax: Any
    group_offsets: Any

    def __init__(self, data: Any, scale: Any, format: str, *, axis: int = -1, hadamard: bool = False):
        form = find_format("ScaledArray", format)
        ndim = _check_data(data, form)
        axis = find_axis("ScaledArray", axis, ndim)
        shape = list(data.shape)
        if data.dtype == _U8:
            shape[axis] *= 2
        scale = _check_scale(scale, form, tuple(shape), axis)
        place, other = _place(data), _place(scale)
        if place != other:
            got = f"data on {place_name(place)}, scale on {place_name(other)}"
            fault = sentence("data and scale must live in one place", got, "see hipgemm.asarray")
            raise TypeError(f"ScaledArray: {fault}")
        if hadamard and form is not MXFP4_E2M1:
            fault = sentence("hadamard=True must go with mxfp4_e2m1", format)
            raise ValueError(f"ScaledArray: {fault}")
        if hadamard and shape[axis] % HADAMARD:
            required = f"the length along axis {axis} must be a multiple of {HADAMARD} with hadamard=True"
            raise ValueError(f"ScaledArray: {sentence(required, shape[axis])}")
        self._set(data, scale, form.name, axis, bool(hadamard), tuple(shape), None, {})

    def _set(
        self,
        data: Any,
        scale: Any,
        format: str,
        axis: int,
        hadamard: bool,
        shape: tuple[int, ...],
        amax: Any,
        kernel_scales: dict[str, Any],
        group_offsets: Any = None,
    ) -> None:
        self.group_offsets = group_offsets
        self.data, self.scale, self.format, self.axis = data, scale, format, axis
        self.hadamard, self.shape, self.amax = hadamard, shape, amax
        self._kernel_scales = kernel_scales  # scales in the layout of a kernel, once made; shared by views

    @classmethod
    def _make(
        cls,
        data: Any,
        scale: Any,
        form: Format,
        axis: int,
        shape: tuple[int, ...],
        *,
        hadamard: bool = False,
        amax: Any = None,
        kernel_scales: dict[str, Any] | None = None,
        group_offsets: Any = None,
    ) -> ScaledArray:
        """Make one of parts that are known to fit, `axis` counted from the end."""
        made = cls.__new__(cls)
        kept = {} if kernel_scales is None else kernel_scales
        made._set(data, scale, form.name, axis, hadamard, shape, amax, kept, group_offsets)
        return made

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return QUANTIZED[self.format].dtype

    @property
    def device(self) -> int | None:
        """The device that holds it; None on the host."""
        return _place(self.data)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers and their scales, two 4-bit numbers counted as one byte."""
        count = int(np.prod(self.shape, dtype=np.int64))
        scales = int(np.prod(self.scale.shape, dtype=np.int64))
        return count * QUANTIZED[self.format].bits // 8 + scales * int(self.scale.dtype.itemsize)

    @property
    def T(self) -> ScaledArray:
        """The array with its axes reversed; no copy."""
        made = self._turned(self.data.T, self.scale.T, -1 - self.axis - self.ndim, self.shape[::-1])
        if self.ndim > 2:
            made._kernel_scales = {}  # of other matrices than before
        return made

    @property
    def mT(self) -> ScaledArray:
        """The array with its last two axes exchanged; no copy."""
        if self.ndim < 2:
            raise ValueError(f"ScaledArray.mT: {sentence('ndim must be at least 2', self.ndim)}")
        axis = {-1: -2, -2: -1}.get(self.axis, self.axis)
        *lead, m, n = self.shape
        data, scale = self.data, self.scale
        if isinstance(data, np.ndarray):  # ndarray.mT needs NumPy 2
            turned = data.swapaxes(-1, -2), scale.swapaxes(-1, -2) if scale.ndim else scale
        else:
            turned = data.mT, scale.mT if scale.shape else scale
        return self._turned(*turned, axis, (*lead, n, m))

    def reshape(self, *shape: Any) -> ScaledArray:
        """Return the same numbers in another shape, to sum over a batch and its rows, say. No copy.

        The axis that shares scales keeps its length and stays the last one; with one scale for all, any
        shape will do.

        Parameters
        ----------
        *shape : int, or one sequence of int
            Extent of each axis; one may be -1, for what is left.

        Raises
        ------
        ValueError
            For a shape of another size, one that would take a copy, or one that cuts or joins blocks.

        Examples
        --------
        >>> import ml_dtypes
        >>> codes = np.zeros((2, 3, 64), ml_dtypes.float8_e4m3fn)
        >>> ScaledArray(codes, 0.5, "fp8_e4m3").reshape(-1, 64).shape
        (6, 64)
        """
        function = "ScaledArray.reshape"
        extents = find_shape(function, shape[0] if len(shape) == 1 else shape, math.prod(self.shape))
        if not self.scale.shape:
            scale, data_shape = self.scale, extents
        else:
            rows_apart = self.axis == -1 and self.scale.shape[:-1] == self.shape[:-1]
            if not rows_apart or extents[-1:] != self.shape[-1:] or self.group_offsets is not None:
                required = f"the last axis must be that of the scales, and stay {self.shape[-1]} long"
                got = f"{extents} from {self.shape}, axis={self.axis}, scale.shape={self.scale.shape}"
                raise ValueError(f"{function}: {sentence(required, got, 'or quantize after reshaping')}")
            scale = self.scale.reshape(*extents[:-1], self.scale.shape[-1])
            data_shape = (*extents[:-1], self.data.shape[-1])
        made = self._turned(self.data.reshape(data_shape), scale, -1, extents)
        made._kernel_scales = {}  # of other matrices than before
        return made

    def _turned(self, data: Any, scale: Any, axis: int, shape: tuple[int, ...]) -> ScaledArray:
        return self._make(
            data,
            scale,
            QUANTIZED[self.format],
            axis,
            shape,
            hadamard=self.hadamard,
            amax=self.amax,
            kernel_scales=self._kernel_scales,
            group_offsets=self.group_offsets,
        )

    def __deepcopy__(self, memo: Any) -> ScaledArray:
        parts = (deepcopy(x, memo) for x in (self.data, self.scale, self.amax, self.group_offsets))
        data, scale, amax, offsets = parts
        made = self._turned(data, scale, self.axis, self.shape)
        made._kernel_scales, made.amax, made.group_offsets = {}, amax, offsets
        return made

    def get(self) -> ScaledArray:
        """Copy to the host, where each 4-bit number has a byte of its own."""
        form = QUANTIZED[self.format]
        data = self.data if isinstance(self.data, np.ndarray) else self.data.get()
        scale = self.scale if isinstance(self.scale, np.ndarray) else self.scale.get()
        amax = self.amax if self.amax is None or isinstance(self.amax, np.ndarray) else self.amax.get()
        if data.dtype == _U8:
            data = unpack_along(data, self.axis, self.shape[self.axis])
        offsets = self.group_offsets
        if offsets is not None:
            offsets = offsets if isinstance(offsets, np.ndarray) else offsets.get()
            # Scales made without knowing the offsets have room for more.
            used = slice(int(group_blocks(offsets)[-1]))
            scale = scale[used] if self.axis == -2 else scale[:, used]
        if form.block:
            scale = scale.view(form.scale_dtype)
        return self._make(
            data,
            scale,
            form,
            self.axis,
            self.shape,
            hadamard=self.hadamard,
            amax=amax,
            group_offsets=offsets,
        )

    def __repr__(self) -> str:
        more = ", hadamard=True" if self.hadamard else ""
        if self.group_offsets is not None:
            more += f", {self.group_offsets.shape[0] - 1} groups"
        where = "host" if self.device is None else f"device={self.device}"
        return f"ScaledArray(shape={self.shape}, format={self.format!r}, axis={self.axis}{more}, {where})"

    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]:
        raise TypeError("ScaledArray: the numbers must be asked for; use hipgemm.dequantize")


def group_blocks(offsets: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first block of each group of rows, and behind them the number of all blocks.

    Examples
    --------
    >>> group_blocks(np.array([0, 33, 33, 128]))
    array([0, 2, 2, 5])
    """
    counts = -(-np.diff(offsets.astype(np.int64)) // MXFP4_E2M1.block)
    return np.concatenate(([0], np.cumsum(counts)))


# ---- packing along any axis ------------------------------------------------------------------------


def pack_along(x: npt.NDArray[Any], axis: int) -> npt.NDArray[np.uint8]:
    """Pack 4-bit numbers along an axis, an odd length filled up with zero."""
    moved = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    if moved.shape[-1] % 2:
        pad = np.zeros((*moved.shape[:-1], 1), moved.dtype)
        moved = np.concatenate((moved, pad), axis=-1)
    return np.moveaxis(pack_fp4(moved), -1, axis)


def packed_data(q: ScaledArray) -> npt.NDArray[Any]:
    """Return the codes of an array on the host as a device holds them."""
    form = QUANTIZED[q.format]
    return pack_along(q.data, q.axis) if form.bits == 4 and q.data.dtype == form.dtype else q.data


def unpack_along(x: npt.NDArray[np.uint8], axis: int, length: int) -> npt.NDArray[Any]:
    """Undo `pack_along`."""
    return np.moveaxis(unpack_fp4(np.moveaxis(x, axis, -1))[..., :length], -1, axis)


# ---- checks ----------------------------------------------------------------------------------------


def _place(x: Any) -> int | None:
    return x.device if isinstance(x, Resident) else None  # NumPy's arrays have a `device` too


def place_name(device: int | None) -> str:
    """Name a place for a message."""
    return "the host" if device is None else f"device {device}"


def find_format(function: str, format: object, among: tuple[str, ...] = tuple(QUANTIZED)) -> Format:
    """Look up a format by its name."""
    if isinstance(format, str) and format in among:
        return QUANTIZED[format]
    fault = sentence(f"format must be one of {', '.join(among)}", repr(format))
    raise (ValueError if isinstance(format, str) else TypeError)(f"{function}: {fault}")


def find_axis(function: str, axis: object, ndim: int) -> int:
    """Check an axis and count it from the end."""
    if isinstance(axis, bool) or not isinstance(axis, (int, np.integer)):
        raise TypeError(f"{function}: {sentence('axis must be an int', type(axis).__qualname__)}")
    if not -ndim <= axis < ndim:
        raise ValueError(f"{function}: {sentence(f'axis must be from {-ndim} to {ndim - 1}', axis)}")
    return int(axis) - ndim if axis >= 0 else int(axis)


def find_ints(function: str, shape: Any) -> tuple[int, ...]:
    """Read a shape."""
    try:
        return tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        required = "shape must be an int or a sequence of ints"
        raise TypeError(f"{function}: {sentence(required, repr(shape))}") from None


def find_shape(function: str, shape: Any, size: int) -> tuple[int, ...]:
    """Read a shape of a known size, in which one extent may be -1."""
    extents = find_ints(function, shape)
    if extents.count(-1) == 1:
        known = -math.prod(extents)
        left = size // known if known else 0
        extents = tuple(left if n == -1 else n for n in extents)
    if any(n < 0 for n in extents) or math.prod(extents) != size:
        raise ValueError(f"{function}: {sentence(f'shape must hold {size} elements', shape)}")
    return extents


def scale_shape(shape: tuple[int, ...], axis: int, block: int) -> tuple[int, ...]:
    """Shape of the scales: one for each block along an axis, or with `block` 0 one for all of it.

    Examples
    --------
    >>> scale_shape((4, 70), -1, 32), scale_shape((4, 70), -2, 0)
    ((4, 3), (1, 70))
    """
    found = list(shape)
    found[axis] = -(-shape[axis] // block) if block else 1
    return tuple(found)


def _check_data(data: Any, form: Format) -> int:
    if not is_array(data):
        required = "data must be a numpy.ndarray or a hipgemm.DeviceArray"
        raise TypeError(f"ScaledArray: {sentence(required, type(data).__qualname__, array_hint(data))}")
    if data.dtype != form.dtype and not (form is MXFP4_E2M1 and data.dtype == _U8):
        wanted = f"{form.dtype} or packed uint8" if form is MXFP4_E2M1 else str(form.dtype)
        required = f"data.dtype must be {wanted} for {form.name}"
        raise TypeError(f"ScaledArray: {sentence(required, data.dtype, fnuz_hint(data.dtype))}")
    if isinstance(data, Resident) and form is MXFP4_E2M1 and data.dtype != _U8:
        required = "data of mxfp4_e2m1 on a device must be packed (uint8)"
        raise TypeError(f"ScaledArray: {sentence(required, data.dtype, 'see hipgemm.pack_fp4')}")
    if not data.shape:
        raise ValueError("ScaledArray: data.ndim must be at least 1; got 0")
    return len(data.shape)


def fnuz_hint(dtype: np.dtype[Any]) -> str:
    """Say what to do about a type whose bytes mean something else here; empty for others."""
    ocp = FNUZ.get(dtype)
    return f"{dtype} is not the OCP type {ocp}: convert the values, never the bytes" if ocp else ""


def _check_scale(scale: Any, form: Format, shape: tuple[int, ...], axis: int) -> Any:
    assert form.scale_dtype is not None
    want = scale_shape(shape, axis, form.block)
    if scale is None:
        required = f"scale must be {form.scale_dtype} of shape {want}"
        raise TypeError(f"ScaledArray: {sentence(required, None, f'{form.name} means nothing without it')}")
    if isinstance(scale, (Real, np.generic)) and not form.block:
        number: Any = scale
        with np.errstate(over="ignore"):
            scale = np.asarray(number, np.float32)
        if np.isinf(scale) and not np.isinf(number):
            raise ValueError(f"ScaledArray: {sentence('scale must fit float32', number)}")
    if not is_array(scale):
        required = "scale must be a numpy.ndarray or a hipgemm.DeviceArray"
        raise TypeError(f"ScaledArray: {sentence(required, type(scale).__qualname__, array_hint(scale))}")
    if scale.dtype != form.scale_dtype and not (form.block and scale.dtype == _U8):
        required = f"scale.dtype must be {form.scale_dtype} for {form.name}"
        raise TypeError(f"ScaledArray: {sentence(required, scale.dtype)}")
    others: list[tuple[int, ...]] = [] if form.block else [()]
    if not form.block and len(shape) == 3:
        others.append((shape[0], 1, 1))  # one for each matrix
    if tuple(scale.shape) not in (want, *others):
        required = f"scale.shape must be {want}" + "".join(f" or {x}" for x in others)
        context = f"data holds {shape} numbers, axis={axis}"
        raise ValueError(f"ScaledArray: {sentence(required, tuple(scale.shape), context)}")
    if isinstance(scale, np.ndarray) and form.scale_dtype != F32.dtype:
        scale = scale.view(form.scale_dtype)
    return scale
