"""Quantized arrays: elements with their scales. Uses no device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import fault
from .arrays import (
    MatmulOperand,
    Resident,
    array_device,
    array_hint,
    as_plain,
    device_name,
    is_array,
    layout_number,
)
from .checks import FP8_BLOCKS, Checks, checked, python_number, read_shape, require_axes
from .elements import (
    BLOCK,
    BLOCK_SIDE,
    E8M0,
    F32,
    MXFP4_E2M1,
    QUANTIZED,
    Format,
    fnuz_hint,
    pack_fp4,
    pack_fp6,
    unpack_fp4,
    unpack_fp6,
    void_hint,
)
from .indexing import Index, parse_index
from .strides import swap_last_axes

HADAMARD = 16  # size of the transform
_U8 = np.dtype(np.uint8)


class ScaledArray(MatmulOperand):
    """A quantized array: elements of a narrow type, and their scales. The quantizers make it.

    Ints and slices select parts of it without a copy, as long as elements that share a scale stay together.
    ``@`` is `matmul`.

    Products cache copies of the scales in a kernel's layout. Make a new array instead of changing the scales
    in place.

    Parameters
    ----------
    data : array
        The elements, in the element type of `format`. For mxfp4 and mxfp6 also uint8, packed along `axis` as
        by `pack_fp4` and `pack_fp6`; on a device it must be packed so.
    scale : array or float
        The factors. For fp8 float32: one for all elements, one per row along `axis`, or one per matrix of a
        batch (length 1 along both of the last axes). With `block` one per block, float32 or
        float8_e8m0fnu (or its bytes as uint8). For MX formats float8_e8m0fnu (or its bytes as uint8): one
        per 32 elements along `axis`.
    format : str
        ``"fp8_e4m3"``, ``"fp8_e5m2"``, ``"mxfp8_e4m3"``, ``"mxfp8_e5m2"``, ``"mxfp4_e2m1"``,
        ``"mxfp6_e2m3"`` or ``"mxfp6_e3m2"``.
    axis : int
        The axis along which elements share a scale. It must be the contraction axis of a product.
    hadamard : bool
        Whether a 16-point Hadamard transform was applied along `axis` before quantization (mxfp4 only).
    signs : int, optional
        The seed of the random signs that the elements along `axis` got before the Hadamard transform.
    block : (int, int), optional
        For fp8: ``(1, 128)``, ``(128, 1)`` or ``(128, 128)`` elements of the last two axes share a scale;
        the last blocks may be smaller. `axis` must be omitted.

    Attributes
    ----------
    shape : tuple of int
        The shape in elements, even if they are packed.
    amax : array or None
        The absolute maximum before quantization, if the quantizer computed it; delayed scaling uses it next.
    group_offsets : array or None
        The offsets of groups of rows, if it was quantized by groups: a block begins at each offset.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> data = np.array([[1.0, 2.0]], np.float32).astype(ml_dtypes.float8_e4m3fn)
    >>> hg.ScaledArray(data, 0.5, "fp8_e4m3")
    ScaledArray(shape=(1, 2), format='fp8_e4m3', axis=-1, host)
    >>> hg.quantize_fp8(np.ones((8, 300, 256), np.float32), block=(128, 128))[3, :256]
    ScaledArray(shape=(256, 256), format='fp8_e4m3', block=(128, 128), host)
    """

    __slots__ = (
        "_kernel_scales", "_layout", "amax", "axis", "block", "data", "format", "group_offsets", "hadamard",
        "scale", "shape", "signs", "signs_start",
    )  # fmt: skip
    _plural, _instead = "quantized arrays", "see hipgemm.dequantize"
    data: Any
    scale: Any
    format: str
    axis: int
    hadamard: bool
    signs: int | None
    signs_start: int  # of a slice: where it begins among the elements that got signs
    block: tuple[int, int] | None
    shape: tuple[int, ...]
    amax: Any
    group_offsets: Any
    _kernel_scales: dict[str, Any]
    _layout: int  # `_key`, once that was asked for

    def __init__(
        self,
        data: Any,
        scale: Any,
        format: str,
        *,
        axis: int = -1,
        hadamard: bool = False,
        signs: int | None = None,
        block: tuple[int, int] | None = None,
    ):
        checks = Checks("ScaledArray")
        data, scale = as_plain(data), as_plain(scale)
        form = checks.format(format)
        data_shape = _check_data(checks, data, form)
        sides = None if block is None else _parse_block(checks, block, form, axis, data_shape)
        if sides is not None:
            axis = block_axis(sides)
        along = checks.axis(axis, None if data_shape is None else len(data_shape))
        shape = list(data_shape or ())
        if along is not None and form is not None and form.is_packed and data.dtype == _U8:
            shape[along] = shape[along] * 8 // form.bits
        if form is not None:
            known = None if along is None or (block is not None and sides is None) else tuple(shape)
            scale = _parse_scale(checks, scale, form, known, along, block is not None, sides)
        if is_array(data) and is_array(scale) and array_device(data) != array_device(scale):
            got = f"data on {device_name(array_device(data))}, scale on {device_name(array_device(scale))}"
            checks.add(
                TypeError,
                "residency",
                "data and scale must be on the same device",
                got,
                "see hipgemm.asarray",
            )
        hadamard = checks.flag("hadamard", hadamard)
        if hadamard and form is not None and form is not MXFP4_E2M1:
            checks.add(ValueError, "hadamard", "hadamard=True is only for mxfp4_e2m1", format)
        elif hadamard and along is not None and shape[along] % HADAMARD:
            required = f"the length along axis {along} must be a multiple of {HADAMARD} with hadamard=True"
            checks.add(ValueError, "hadamard", required, shape[along])
        signs = checks.signs(signs, hadamard)
        checks.raise_all()
        assert form is not None
        assert along is not None
        options: dict[str, Any] = {"hadamard": hadamard, "signs": signs, "block": sides}
        self._make(data, scale, form, along, tuple(shape), **options, made=self)

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
        signs: int | None = None,
        signs_start: int = 0,
        block: tuple[int, int] | None = None,
        amax: Any = None,
        kernel_scales: dict[str, Any] | None = None,
        group_offsets: Any = None,
        made: ScaledArray | None = None,
    ) -> ScaledArray:
        """Make a ScaledArray of valid parts, with `axis` counted from the end."""
        q = cls.__new__(cls) if made is None else made
        q.data, q.scale, q.format, q.axis, q.shape = data, scale, form.name, axis, shape
        q.hadamard, q.signs, q.signs_start = hadamard, signs, signs_start
        q.block, q.amax, q.group_offsets = block, amax, group_offsets
        q._layout = 0
        # The cache of scales in kernel layouts; shared by views.
        q._kernel_scales = {} if kernel_scales is None else kernel_scales
        return q

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type."""
        return QUANTIZED[self.format].dtype

    @property
    def device(self) -> int | None:
        """The device that holds it; None on the host."""
        return array_device(self.data)

    @property
    def freed(self) -> bool:
        """Whether the memory of its elements or scales was freed."""
        return any(isinstance(x, Resident) and x.freed for x in (self.data, self.scale))

    @property
    def _key(self) -> int:
        """The array in a cache key, as for a DeviceArray; only for arrays on a device."""
        if not self._layout:
            in_groups = self.group_offsets is not None  # then scales have another layout
            own = (
                self.shape,
                self.format,
                self.axis,
                self.hadamard,
                self.signs,
                self.signs_start,
                self.block,
                in_groups,
            )
            self._layout = layout_number((self.data._key, self.scale._key, *own))
        return self._layout

    @property
    def nbytes(self) -> int:
        """Bytes of the elements and scales; elements of fewer than 8 bits count as packed."""
        count = int(np.prod(self.shape, dtype=np.int64))
        scales = int(np.prod(self.scale.shape, dtype=np.int64))
        return count * QUANTIZED[self.format].bits // 8 + scales * int(self.scale.dtype.itemsize)

    @property
    def in_blocks(self) -> bool:
        """Whether scales belong to blocks along an axis, instead of rows or all elements."""
        return self.block is not None or bool(QUANTIZED[self.format].block)

    @property
    def T(self) -> ScaledArray:
        """The array with its axes reversed; no copy."""
        if self.block is not None:
            if self.ndim != 2:
                required = "ndim must be 2 with block"
                raise fault(ValueError, "ScaledArray.T", required, self.ndim, "see ScaledArray.mT")
            return self.mT
        kept = self._kernel_scales if self.ndim <= 2 else {}  # a batch has other matrices then
        axis = -1 - self.axis - self.ndim
        return self._with(self.data.T, self.scale.T, axis, self.shape[::-1], _kernel_scales=kept)

    @property
    def mT(self) -> ScaledArray:
        """The array with its last two axes swapped; no copy."""
        require_axes("ScaledArray.mT", self.ndim)
        axis = {-1: -2, -2: -1}.get(self.axis, self.axis)
        data, scale, shape = _mt(self.data), _mt(self.scale), swap_last_axes(self.shape)
        block = None if self.block is None else self.block[::-1]
        axis = axis if block is None else block_axis(block)
        return self._with(data, scale, axis, shape, block=block, _kernel_scales=self._kernel_scales)

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[ScaledArray]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Index) -> ScaledArray:
        """Select along axes, with ints and slices; no copy. Elements that share a scale stay together."""
        owner = "ScaledArray"
        parts = parse_index(owner, index, self.shape, new_axes=False)
        form, ndim, sides = QUANTIZED[self.format], self.ndim, self._sides()
        of_data: list[Any] = []
        of_scale: list[Any] = []
        shape: list[int] = []
        signs_start = self.signs_start
        after = 0  # axes that are removed after `self.axis`
        for axis, (part, n, side) in enumerate(zip(parts, self.shape, sides, strict=True)):
            if isinstance(part, slice):
                start, stop, step = part.indices(n)
                count = len(range(start, stop, step))
                whole = (count, step) == (n, 1)
                if not whole and self.group_offsets is not None and axis - ndim == self.axis:
                    required = f"axis {axis}, along which the array has groups, must stay whole"
                    raise fault(ValueError, owner, required, _text(part))
                if not whole and side > 1:
                    stop = max(start, stop)
                    if step != 1 or start % side or (stop % side and stop != n):
                        required = f"a slice of axis {axis} must consist of whole blocks of {side}"
                        raise fault(ValueError, owner, required, _text(part))
                    if self.signs is not None:
                        signs_start += start
                shape.append(count)
                blocks = slice(start // side, -(-stop // side)) if side > 1 else part
                of_scale.append(slice(None) if whole or not side else blocks)
                packed = form.is_packed and self.data.dtype == _U8 and axis - ndim == self.axis
                bits = form.bits if packed else 8
                bytes_ = slice(start * bits // 8, -(-stop * bits // 8))
                of_data.append(slice(None) if whole else bytes_ if packed else part)
                continue
            kept = (-2, -1) if self.block is not None or self.group_offsets is not None else (self.axis,)
            if axis - ndim in kept and self.scale.shape:
                required = f"axis {axis}, along which elements share a scale, must stay: pass a slice"
                if self.block is not None or self.group_offsets is not None:
                    required = f"axis {axis} must stay, since blocks have two axes: pass a slice"
                raise fault(ValueError, owner, required, part)
            of_data.append(part)
            of_scale.append(part if side else 0)
            after += axis - ndim > self.axis
        if not shape:
            raise fault(ValueError, owner, "at least one axis must stay", f"{ndim} ints: pass a slice")
        scale = self.scale[tuple(of_scale)] if self.scale.shape else self.scale
        if not self.in_blocks and math.prod(scale.shape) == 1:
            scale = scale.reshape(())  # of one matrix or row
        axis = self.axis + after if self.scale.shape else -1
        return self._with(
            self.data[tuple(of_data)], scale, axis, tuple(shape), amax=None, signs_start=signs_start
        )

    def _sides(self) -> tuple[int, ...]:
        """How many elements along each axis share a scale; 0 stands for all."""
        if self.block is not None:
            return (1,) * (self.ndim - 2) + self.block
        if not self.scale.shape:
            return (0,) * self.ndim
        along, shared = self.ndim + self.axis, QUANTIZED[self.format].block
        pairs = enumerate(zip(self.shape, self.scale.shape, strict=True))
        if self.group_offsets is not None:
            return tuple(int(i != along) for i, _ in pairs)
        return tuple(shared if i == along else int(n == scales) for i, (n, scales) in pairs)

    def reshape(self, *shape: Any) -> ScaledArray:
        """Return the same elements in another shape, for example to merge batch and rows. No copy.

        The last axis must be the one along which scales are shared, and must keep its length. With one
        scale for all elements, any shape is allowed.

        Parameters
        ----------
        *shape : int, or one sequence of int
            Extent of each axis; one may be -1 and is then computed.

        Raises
        ------
        ValueError
            If the size differs, a copy would be needed, or blocks would be split or merged.

        Examples
        --------
        >>> import ml_dtypes
        >>> data = np.zeros((2, 3, 64), ml_dtypes.float8_e4m3fn)
        >>> ScaledArray(data, 0.5, "fp8_e4m3").reshape(-1, 64).shape
        (6, 64)
        """
        function = "ScaledArray.reshape"
        checked(function, lambda checks: checks.in_memory("the array", self))
        extents = read_shape(function, shape, math.prod(self.shape))
        if not self.scale.shape:
            scale, data_shape = self.scale, extents
        else:
            rows_apart = self.axis == -1 and self.scale.shape[:-1] == self.shape[:-1]
            rows_apart &= self.block in (None, (1, BLOCK_SIDE))
            if not rows_apart or extents[-1:] != self.shape[-1:] or self.group_offsets is not None:
                required = f"the last axis must be that of the scales, and keep its length {self.shape[-1]}"
                got = f"{extents} from {self.shape}, axis={self.axis}, scale.shape={self.scale.shape}"
                raise fault(ValueError, function, required, got, "or quantize after reshaping")
            scale = self.scale.reshape(*extents[:-1], self.scale.shape[-1])
            data_shape = (*extents[:-1], self.data.shape[-1])
        return self._with(self.data.reshape(data_shape), scale, -1, extents)

    def _with(
        self,
        data: Any,
        scale: Any,
        axis: int | None = None,
        shape: tuple[int, ...] | None = None,
        **changes: Any,
    ) -> ScaledArray:
        """Return a copy with other elements and scales, and the given changes."""
        q = ScaledArray.__new__(ScaledArray)
        q.data, q.scale, q.format, q.hadamard, q.signs = data, scale, self.format, self.hadamard, self.signs
        q.axis, q.shape = self.axis if axis is None else axis, self.shape if shape is None else shape
        q.amax, q.group_offsets, q._kernel_scales, q._layout = self.amax, self.group_offsets, {}, 0
        q.block, q.signs_start = self.block, self.signs_start
        for name, value in changes.items():
            setattr(q, name, value)
        return q

    def __reduce__(self) -> Any:
        names = "hadamard", "signs", "signs_start", "block", "amax", "group_offsets"
        options = {name: getattr(self, name) for name in names}
        parts = self.data, self.scale, QUANTIZED[self.format], self.axis, self.shape
        return partial(ScaledArray._make, **options), parts

    def __deepcopy__(self, memo: Any) -> ScaledArray:
        parts = (deepcopy(x, memo) for x in (self.data, self.scale, self.amax, self.group_offsets))
        data, scale, amax, offsets = parts
        return self._with(data, scale, amax=amax, group_offsets=offsets)

    def get(self) -> ScaledArray:
        """Copy to the host, where each element of fewer than 8 bits takes one byte."""
        checked("ScaledArray.get", lambda checks: checks.in_memory("the array", self))
        form = QUANTIZED[self.format]
        data, scale, amax, offsets = map(_on_host, (self.data, self.scale, self.amax, self.group_offsets))
        if data.dtype == _U8:
            data = unpack_along(data, form, self.axis, self.shape[self.axis])
        if offsets is not None:
            # Scales of offsets on a device are allocated for the maximum number of blocks.
            used = slice(int(group_blocks(offsets)[-1]))
            scale = scale[used] if self.axis == -2 else scale[:, used]
        if scale.dtype == _U8:
            scale = scale.view(E8M0)
        return self._with(data, scale, amax=amax, group_offsets=offsets)

    def __repr__(self) -> str:
        more = ", hadamard=True" if self.hadamard else ""
        more += "" if self.signs is None else f", signs={self.signs}"
        if self.group_offsets is not None:
            more += f", {self.group_offsets.shape[0] - 1} groups"
        where = "host" if self.device is None else f"device={self.device}"
        shared = f"axis={self.axis}" if self.block is None else f"block={self.block}"
        if size := QUANTIZED[self.format].block:
            shared = f"block={size}, {shared}"
        return f"ScaledArray(shape={self.shape}, format={self.format!r}, {shared}{more}, {where})"

    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]:
        raise TypeError("ScaledArray: implicit conversion is not supported; use hipgemm.dequantize")


def _text(part: slice) -> str:
    """Format a slice as it was written."""
    begin, end, step = ("" if n is None else str(n) for n in (part.start, part.stop, part.step))
    return f"{begin}:{end}" + (f":{step}" if step else "")


def blocked_along(q: ScaledArray, axis: int) -> bool:
    """Whether whole blocks of elements along an axis, counted from the end, share a scale."""
    return q.axis == axis if q.block is None else q.block[axis] > 1


def _mt(x: Any) -> Any:
    """Swap the last two axes of an array, if it has any; ndarray.mT needs NumPy 2."""
    if not x.shape:
        return x
    return x.swapaxes(-1, -2) if isinstance(x, np.ndarray) else x.mT


def _on_host(x: Any) -> Any:
    return x if x is None or isinstance(x, np.ndarray) else x.get()


def group_blocks(offsets: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return the first block of each group of rows, followed by the number of all blocks.

    >>> group_blocks(np.array([0, 33, 33, 128]))
    array([0, 2, 2, 5])
    """
    counts = -(-np.diff(offsets.astype(np.int64)) // BLOCK)
    return np.concatenate(([0], np.cumsum(counts)))


# ---- packing along any axis ------------------------------------------------------------------------


def pack_along(x: npt.NDArray[Any], axis: int) -> npt.NDArray[np.uint8]:
    """Pack elements of fewer than 8 bits along an axis; rows are padded with zero to whole bytes."""
    four = x.dtype == MXFP4_E2M1.dtype
    together, bits, pack = (2, 4, pack_fp4) if four else (4, 6, pack_fp6)
    moved = np.ascontiguousarray(np.moveaxis(x, axis, -1))
    length = moved.shape[-1]
    if length % together:
        pad = np.zeros((*moved.shape[:-1], -length % together), moved.dtype)
        moved = np.concatenate((moved, pad), axis=-1)
    return np.moveaxis(pack(moved)[..., : -(-length * bits // 8)], -1, axis)


def packed_data(q: ScaledArray) -> npt.NDArray[Any]:
    """Return the elements of an array on the host, packed as on a device."""
    form = QUANTIZED[q.format]
    return pack_along(q.data, q.axis) if form.is_packed and q.data.dtype == form.dtype else q.data


def unpack_along(x: npt.NDArray[np.uint8], form: Format, axis: int, length: int) -> npt.NDArray[Any]:
    """The inverse of `pack_along`."""
    moved = np.moveaxis(x, axis, -1)
    if form is MXFP4_E2M1:
        elements = unpack_fp4(moved)
    else:
        pad = np.zeros((*moved.shape[:-1], -moved.shape[-1] % 3), moved.dtype)
        elements = unpack_fp6(np.concatenate((moved, pad), axis=-1), form.name)
    return np.moveaxis(elements[..., :length], -1, axis)


# ---- checks ----------------------------------------------------------------------------------------


def scale_shape(shape: tuple[int, ...], axis: int, block: int) -> tuple[int, ...]:
    """Shape of the scales: one per block along an axis, or one per row if `block` is 0.

    >>> scale_shape((4, 70), -1, 32), scale_shape((4, 70), -2, 0)
    ((4, 3), (1, 70))
    """
    found = list(shape)
    found[axis] = -(-shape[axis] // block) if block else 1
    return tuple(found)


def block_scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, ...]:
    """Shape of the scales of blocks of the last two axes.

    >>> block_scale_shape((2, 130, 256), (128, 128)), block_scale_shape((4, 70), (1, 128))
    ((2, 2, 2), (4, 1))
    """
    return *shape[:-2], *(-(-n // side) for n, side in zip(shape[-2:], block, strict=True))


def block_axis(block: tuple[int, int]) -> int:
    """The axis along which elements share a scale; the last one if along both."""
    return -2 if block[1] == 1 else -1


def _parse_block(
    checks: Checks, block: Any, form: Format | None, axis: Any, shape: tuple[int, ...] | None
) -> tuple[int, int] | None:
    """Parse the shape of blocks, for elements of a format and a shape, if these are known."""
    found = checks.block(block, (*FP8_BLOCKS, (BLOCK_SIDE, 1)))
    if form is not None and form.block:
        required = "block is only for fp8_e4m3 and fp8_e5m2"
        checks.add(ValueError, "block", required, form.name, f"{form.name} has blocks of {form.block}")
        return None
    if axis != -1:
        checks.add(ValueError, "axis", "axis must be omitted with block", axis)
    if shape is not None and not checks.ndim("data", shape, 2):
        return None
    return found


def _check_data(checks: Checks, data: Any, form: Format | None) -> tuple[int, ...] | None:
    """Check the elements; return their shape if they are an array."""
    if checks.array("data", data) is None:
        return None
    if form is not None and data.dtype != form.dtype and not (form.is_packed and data.dtype == _U8):
        wanted = f"{form.dtype} or packed uint8" if form.is_packed else str(form.dtype)
        required = f"data.dtype must be {wanted} for {form.name}"
        hint = fnuz_hint(data.dtype) or (form.bits == 8 and void_hint("data", data.dtype)) or ""
        checks.add(TypeError, "dtype", required, data.dtype, hint)
    elif form is not None and form.is_packed and isinstance(data, Resident) and data.dtype != _U8:
        required = f"data of {form.name} on a device must be packed (uint8)"
        checks.add(TypeError, "dtype", required, data.dtype, f"see hipgemm.pack_fp{form.bits}")
    return tuple(data.shape) if checks.ndim("data", data.shape, 1) else None


def _parse_scale(
    checks: Checks,
    scale: Any,
    form: Format,
    shape: tuple[int, ...] | None,
    axis: int | None,
    in_blocks: bool,
    block: tuple[int, int] | None,
) -> Any:
    """Check scales for elements of a shape, if that is known; return them as an array."""
    want = None if shape is None or axis is None else scale_shape(shape, axis, form.block)
    if block is not None and shape is not None:
        want = block_scale_shape(shape, block)
    dtypes = (F32.dtype, E8M0) if in_blocks else (form.scale_dtype,)
    names = " or ".join(map(str, dtypes))
    if scale is None:
        required = f"scale must be {names}" + ("" if want is None else f" of shape {want}")
        checks.add(TypeError, "type", required, None, f"{form.name} needs a scale")
        return None
    if not form.block and not in_blocks and not is_array(scale):
        number = checks.number("scale", scale, "a real number or a float32 array", array_hint(scale))
        if number is None:
            return None
        with np.errstate(over="ignore", under="ignore"):
            found = np.asarray(number, np.float32)
        infinite = abs(python_number(scale)) == math.inf
        if (np.isinf(found) and not infinite) or (found == 0 and number != 0):
            checks.add(ValueError, "range", "scale must fit float32", scale)
        scale = found
    if checks.array("scale", scale) is None:
        return scale
    if scale.dtype not in dtypes and not (E8M0 in dtypes and scale.dtype == _U8):
        required = f"scale.dtype must be {names} for {form.name}" + (" with block" if in_blocks else "")
        checks.add(TypeError, "dtype", required, scale.dtype)
    elif isinstance(scale, np.ndarray) and scale.dtype == _U8:
        scale = scale.view(E8M0)
    one_or_rows = not form.block and not in_blocks
    others: list[tuple[int, ...]] = [()] if one_or_rows else []
    if shape is not None and one_or_rows and len(shape) == 3:
        others.append((shape[0], 1, 1))  # one per matrix
    if want is not None and tuple(scale.shape) not in (want, *others):
        required = f"scale.shape must be {want}" + "".join(f" or {x}" for x in others)
        context = f"data has shape {shape} in elements, " + (f"block={block}" if block else f"axis={axis}")
        checks.add(ValueError, "shape", required, tuple(scale.shape), context)
    return scale
