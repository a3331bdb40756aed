"""Arrays in device memory: made from NumPy or imported from other libraries, sliced without copies."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, overload

import numpy as np
import numpy.typing as npt

from ..errors import InterchangeError, Reason, fault, requirement, shown, value_or_raise
from ..formats.arrays import Resident, array_hint, is_array, layout_number
from ..formats.checks import Checks, checked, read_shape, require_axes
from ..formats.elements import BF16, format_of, read_dtype, round_once
from ..formats.indexing import Index, parse_index
from ..formats.scaled import ScaledArray, packed_data
from ..formats.strides import byte_range, contiguous_strides, padded_pitch, restride, swap_last_axes
from ..runtime import hip as _hip
from ..runtime import staging as _staging
from ..runtime.ownership import discard
from . import dlpack as _dlpack
from .interop import device_kind, import_array, is_external, misaligned
from .transfer import address_of, download, enqueue_upload, upload

if TYPE_CHECKING:
    from typing_extensions import Unpack


class DeviceArray(Resident):
    """An array in device memory. `asarray`, `empty` and `zeros` make it.

    hipgemm orders its work on an array across streams: a stream waits for the work that it depends on.

    Attributes
    ----------
    shape : tuple of int
        Extent of each axis.
    strides : tuple of int
        Bytes from one element to the next along each axis.
    dtype : numpy.dtype
        Type of the elements.
    device : int
        The device that holds it.

    Examples
    --------
    >>> import hipgemm as hg
    >>> x = hg.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    >>> x.T[::-1].get()
    array([[2., 5.],
           [1., 4.],
           [0., 3.]], dtype=float32)
    """

    __slots__ = (
        "__weakref__",
        "_address",
        "_block",
        "_layout",
        "device",
        "dtype",
        "no_tail_padding",
        "padded",
        "readonly",
        "shape",
        "strides",
    )

    def __init__(
        self,
        block: _hip.Block,
        address: int,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: np.dtype[Any],
        readonly: bool = False,
        padded: bool = False,
    ):
        self._block = block
        self._address = address
        self.shape = shape
        self.strides = strides
        self.dtype = dtype
        self.device = block.device
        self.readonly = readonly
        self.padded = padded
        # The allocation ends inside a 4-byte word, which some kernels must not read. Never so in the pool.
        self.no_tail_padding = (block.ptr + (block.size or block.nbytes)) & 3 != 0
        self._layout = 0  # `_key`, once that was asked for

    @property
    def _key(self) -> int:
        """The array in a cache key: the number of everything that the choice of a kernel depends on."""
        if not self._layout:
            where = self.device, self._address & 15, self.readonly, self.padded, self.no_tail_padding
            self._layout = layout_number((self.shape, self.strides, self.dtype, *where))
        return self._layout

    @property
    def ptr(self) -> int:
        """Address of the first element."""
        if not self._block.ptr:
            self._require_memory("DeviceArray")
        return self._address

    def _require_memory(self, function: str) -> None:
        """Raise if its memory was freed."""
        checked(function, lambda checks: checks.in_memory("the array", self))

    @property
    def freed(self) -> bool:
        """Whether its memory was freed."""
        return not self._block.ptr

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def T(self) -> DeviceArray:
        """The array with its axes reversed; no copy."""
        return self._view(self._address, self.shape[::-1], self.strides[::-1], self.padded)

    @property
    def mT(self) -> DeviceArray:
        """The array with its last two axes swapped; no copy."""
        require_axes("DeviceArray.mT", self.ndim)
        return self._view(
            self._address, swap_last_axes(self.shape), swap_last_axes(self.strides), self.padded
        )

    def reshape(self, *shape: Any) -> DeviceArray:
        """Return the same elements in another shape; no copy.

        Parameters
        ----------
        *shape : int, or one sequence of int
            Extent of each axis; one may be -1 and is then computed.

        Returns
        -------
        DeviceArray
            A view.

        Raises
        ------
        ValueError
            If the size differs, or a copy would be needed.

        Examples
        --------
        >>> import hipgemm as hg
        >>> x = hg.zeros((2, 3, 4), np.float32)
        >>> x.reshape(-1, 4).shape
        (6, 4)
        """
        self._require_memory("DeviceArray.reshape")
        extents = read_shape("DeviceArray.reshape", shape, self.size)
        strides = restride(self.shape, self.strides, extents)
        if strides is None:
            required = "axes can only be merged if their strides allow it without a copy"
            got = f"shape {self.shape}, strides {self.strides}"
            raise fault(ValueError, "DeviceArray.reshape", required, got)
        return self._view(self.ptr, extents, strides)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d DeviceArray")
        return self.shape[0]

    def __iter__(self) -> Iterator[DeviceArray]:
        if not self.shape:
            raise TypeError("DeviceArray: a 0-d array cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    def __add__(self, other: Any) -> Any:
        """Add an array of the same dtype, or a Python number, in float32; rounded once. Shapes broadcast."""
        return _elementwise().combine("+", self, other)

    __radd__ = __add__

    def __mul__(self, other: Any) -> Any:
        """Multiply by an array of the same dtype, or a Python number; as for `+`."""
        return _elementwise().combine("*", self, other)

    __rmul__ = __mul__

    def __iadd__(self, other: Any) -> Any:
        raise TypeError("DeviceArray: += is not supported; use a = a + b, or a[...] = a + b")

    def __imul__(self, other: Any) -> Any:
        raise TypeError("DeviceArray: *= is not supported; use a = a * b, or a[...] = a * b")

    def astype(self, dtype: npt.DTypeLike) -> DeviceArray:
        """Convert to another dtype, as NumPy does; a copy.

        Parameters
        ----------
        dtype : dtype
            bfloat16, float16 or float32, from one of these; or the array's own. Numbers are rounded to
            nearest even, and those beyond the range become Inf. For fewer bits, use a quantizer.

        Returns
        -------
        DeviceArray
            With the axes in the same order in memory.

        Raises
        ------
        TypeError
            For other dtypes.

        Examples
        --------
        >>> import hipgemm as hg
        >>> hg.asarray(np.array([1.0, 70000.0], np.float32)).astype(np.float16).get()
        array([ 1., inf], dtype=float16)
        """
        made: DeviceArray = _elementwise().as_type(self, dtype)
        return made

    def __setitem__(self, index: Index, value: Any) -> None:
        """Assign an array of a device or the host, or a number, which broadcast; converted as by `astype`.

        The result is as in NumPy if the source is a part of the array itself.
        """
        _elementwise().assign(self[index], value)

    def __copy__(self) -> DeviceArray:
        return self._view(self._address, self.shape, self.strides, self.padded)

    def __deepcopy__(self, memo: Any) -> DeviceArray:
        return asarray(self, copy=True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("DeviceArray: device memory cannot be pickled; use .get()")

    def __repr__(self) -> str:
        state = "" if self._block.ptr else ", freed"
        return f"DeviceArray(shape={self.shape}, dtype={self.dtype}, device={self.device}{state})"

    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]:
        raise TypeError("DeviceArray: implicit copies to the host are not supported; use .get()")

    def __getitem__(self, index: Index) -> DeviceArray:
        shape, strides = [], []
        address, axis, padded = self.ptr, 0, self.padded
        for part in parse_index("DeviceArray", index, self.shape):
            if part is None:
                shape.append(1)
                strides.append(0)
                continue
            n, stride = self.shape[axis], self.strides[axis]
            if isinstance(part, slice):
                start, stop, step = part.indices(n)
                count = len(range(start, stop, step))
                shape.append(count)
                strides.append(stride * step)
                address += start * stride if count else 0
                ends = (stop, step) == (n, 1)
            else:
                address += part * stride
                ends = False
            if stride == self.dtype.itemsize:  # zeros follow the end of each vector
                padded &= ends
            axis += 1
        return self._view(address, tuple(shape), tuple(strides), padded)

    def _view(
        self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], padded: bool = False
    ) -> DeviceArray:
        return DeviceArray(self._block, address, shape, strides, self.dtype, self.readonly, padded)

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        """The same memory, interpreted as another dtype; no copy.

        Libraries without bfloat16 or fp8 accept ``x.view(np.uint8)``.

        Parameters
        ----------
        dtype : dtype
            The new dtype. If its item size differs, the last axis must be contiguous, and its length changes.

        Raises
        ------
        ValueError
            If the length of the last axis does not fit, or elements would not be aligned.

        Examples
        --------
        >>> import hipgemm as hg
        >>> hg.zeros((2, 3), np.float32).view(np.uint8)
        DeviceArray(shape=(2, 12), dtype=uint8, device=0)
        """
        self._require_memory("DeviceArray.view")
        to, item = value_or_raise("DeviceArray.view", parse_dtype(dtype)), self.dtype.itemsize
        shape, strides = self.shape, self.strides
        if to.itemsize != item:
            if not shape or (shape[-1] != 1 and strides[-1] != item):
                required = f"the last axis must be contiguous to change the item size to {to.itemsize}"
                raise fault(ValueError, "DeviceArray.view", required, f"strides={strides}")
            if item % to.itemsize and to.itemsize < item:
                required = f"an element of {self.dtype} must hold whole elements of the new dtype"
                raise fault(ValueError, "DeviceArray.view", required, to)
            count, rest = divmod(shape[-1] * item, to.itemsize)
            if rest:
                required = f"the last axis must be a multiple of {to.itemsize} bytes"
                raise fault(ValueError, "DeviceArray.view", required, shape[-1] * item)
            shape, strides = (*shape[:-1], count), (*strides[:-1], to.itemsize)
        value_or_raise("DeviceArray.view", misaligned(ValueError, self.ptr, shape, strides, to))
        return DeviceArray(self._block, self.ptr, shape, strides, to, self.readonly)

    def get(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy to the host, after all work on the array.

        Parameters
        ----------
        out : numpy.ndarray, optional
            The destination, of the same shape and dtype.

        Returns
        -------
        numpy.ndarray
            `out`, or a new array.

        Examples
        --------
        >>> import hipgemm as hg
        >>> hg.zeros(2, np.float32).get()
        array([0., 0.], dtype=float32)
        """
        self._require_memory("get")
        if out is None:
            out = np.empty(self.shape, self.dtype)
        else:
            self._check_target(out)
        if self.size:
            with _hip.on_device(self.device):
                download(self._address, self.shape, self.strides, out, self._block.stream())
        return out

    def _check_target(self, out: object) -> None:
        checks = Checks("get")
        if not isinstance(out, np.ndarray) or not is_array(out):
            checks.wrong_type("out", "a numpy.ndarray", out, array_hint(out))
        else:
            if out.dtype != self.dtype:
                checks.add(TypeError, "dtype", f"out.dtype must be {self.dtype}", out.dtype)
            if out.shape != self.shape:
                checks.add(ValueError, "shape", f"out.shape must be {self.shape}", out.shape)
            checks.writeable(out)
        checks.raise_all()

    def free(self) -> None:
        """Free the memory now, not when the last view is deleted. All views become unusable.

        Examples
        --------
        >>> import hipgemm as hg
        >>> x = hg.zeros(2, np.float32)
        >>> x.free()
        >>> x.get()
        Traceback (most recent call last):
        ...
        ValueError: get: the array must be in memory; got an array that was freed
        """
        if count := sum(export() is not None for export in self._block.exports):
            raise fault(BufferError, "free", "no other library may hold the array", f"{count} exports")
        self._block.release()

    # ---- interchange ----

    def __dlpack_device__(self) -> tuple[int, int]:
        return device_kind(), self.device

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """Export the memory to another library, or a copy on the host if the consumer requests that.

        Work on the consumer's `stream` runs after all work on the array; with -1 the consumer must wait.
        For a library without bfloat16 or fp8, export bytes: ``library.from_dlpack(x.view(np.uint8))``.
        """
        self._require_memory("__dlpack__")
        if dl_device is not None and tuple(dl_device) == (_dlpack.CPU, 0):
            return self._export_host(max_version, copy)
        if dl_device is not None and tuple(dl_device) != self.__dlpack_device__():
            required = f"dl_device must be {self.__dlpack_device__()} or the host, {(_dlpack.CPU, 0)}"
            raise fault(InterchangeError, "__dlpack__", required, dl_device)
        wait = stream != -1
        handle = _hip.stream_handle("__dlpack__", stream) if wait else self._block.stream()
        exported = _copy_to(self, self.device, handle) if copy else self
        if wait:
            with _hip.on_device(self.device):
                # The consumer may write unless the array is read-only.
                (exported._block.begin_read if self.readonly else exported._block.begin_write)(handle)
        return _dlpack.export(
            exported.ptr,
            self.device,
            exported.shape,
            exported.strides,
            exported.dtype,
            _Export(exported._block),
            kind=device_kind(),
            max_version=max_version,
            readonly=exported.readonly,
            copied=bool(copy),
        )

    def _export_host(self, max_version: tuple[int, int] | None, copy: bool | None) -> Any:
        if copy is False:
            raise fault(InterchangeError, "__dlpack__", "an export to the host needs a copy", "copy=False")
        host = self.get()
        return _dlpack.export(
            address_of(host),
            0,
            host.shape,
            host.strides,
            host.dtype,
            host,
            kind=_dlpack.CPU,
            max_version=max_version,
            copied=True,
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The interface that CuPy, Numba and PyTorch use. It has no bfloat16: use DLPack for that."""
        self._require_memory("__cuda_array_interface__")
        if self.dtype.isbuiltin != 1:
            required, advice = "dtype must be a NumPy dtype", "use DLPack, or .view(np.uint8)"
            raise fault(InterchangeError, "__cuda_array_interface__", required, self.dtype, advice)
        stream = self._block.stream()
        with _hip.on_device(self.device):
            self._block.begin_write(stream)  # the consumer may write, so wait for all reads too
        return {
            "shape": self.shape,
            "strides": None
            if self.strides == contiguous_strides(self.shape, self.dtype.itemsize)
            else self.strides,
            "typestr": self.dtype.str,
            "data": (self.ptr, self.readonly),
            "stream": stream or 1,  # 1 is the default stream
            "version": 3,
        }


def _elementwise() -> ModuleType:
    """The module of the arithmetic, which is of a higher layer too."""
    from ..layers import elementwise

    return elementwise


class _Export:
    """The reference of one exported capsule to a block."""

    def __init__(self, block: _hip.Block):
        self._block = block
        for export in list(block.exports):
            if export() is None:
                discard(block.exports, export)
        block.exports.append(weakref.ref(self))


# ---- making arrays ---------------------------------------------------------------------------------


def empty(
    shape: int | Sequence[int], dtype: npt.DTypeLike, *, device: int | None = None, stream: Any = None
) -> DeviceArray:
    """Allocate an array without initializing its elements.

    Parameters
    ----------
    shape : int or sequence of int
        Extent of each axis.
    dtype : dtype
        Type of the elements.
    device : int, optional
        Default: the current device.
    stream : int or object with int(), optional
        The stream that will use it first.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.empty((2, 3), np.float32)
    DeviceArray(shape=(2, 3), dtype=float32, device=0)
    """
    return _make("empty", shape, dtype, device, stream)


def zeros(
    shape: int | Sequence[int], dtype: npt.DTypeLike, *, device: int | None = None, stream: Any = None
) -> DeviceArray:
    """Make an array of zeros. The parameters are those of `empty`.

    Examples
    --------
    >>> import hipgemm as hg
    >>> hg.zeros((1, 2), np.int32).get()
    array([[0, 0]], dtype=int32)
    """
    x = _make("zeros", shape, dtype, device, stream)
    with _hip.on_device(x.device):
        _hip.clear(x.ptr, x.nbytes, x._block.writer)
    return x


def _make(
    function: str, shape: int | Sequence[int], dtype: npt.DTypeLike, device: int | None, stream: Any
) -> DeviceArray:
    checks = Checks(function)
    extents = checks.shape(shape) or ()
    if any(n < 0 for n in extents):
        checks.add(ValueError, "shape", "shape must not be negative", extents)
    to = checks.value_or(parse_dtype(dtype), BF16.dtype)
    if math.prod(extents) * to.itemsize >= 2**63:
        checks.add(ValueError, "shape", "shape must be one of fewer than 2**63 bytes", extents)
    number = checks.value_or(_hip.parse_device(device), 0)
    handle = checks.value_or(_hip.existing_stream(function, stream), 0)
    checks.raise_all()
    return new(extents, to, number, handle)


def new(shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> DeviceArray:
    """Make a contiguous array. The arguments are not checked."""
    size = dtype.itemsize
    for n in shape:
        size *= n
    block = _hip.allocate(size, device, stream)
    return DeviceArray(block, block.ptr, shape, contiguous_strides(shape, dtype.itemsize), dtype)


class _Options(TypedDict, total=False):
    """The other arguments of `asarray`."""

    device: int | None
    copy: bool | None
    stream: Any


@overload
def asarray(x: ScaledArray, dtype: None = None, **options: Unpack[_Options]) -> ScaledArray: ...
@overload
def asarray(x: Any, dtype: npt.DTypeLike | None = None, **options: Unpack[_Options]) -> DeviceArray: ...


def asarray(
    x: Any,
    dtype: npt.DTypeLike | None = None,
    *,
    device: int | None = None,
    copy: bool | None = None,
    stream: Any = None,
) -> DeviceArray | ScaledArray:
    """Convert to a device array.

    NumPy arrays are copied to the device, and keep the order of their axes in memory. Device arrays of other
    libraries (anything with ``__dlpack__`` or ``__cuda_array_interface__`` on an AMD device) are imported
    without a copy.

    Parameters
    ----------
    x : numpy.ndarray, DeviceArray, ScaledArray, or an array of another library
        The array.
    dtype : dtype, optional
        The dtype to convert a NumPy array to, with one rounding. For 8 bits and fewer, use a quantizer.
    device : int, optional
        Default: the device of `x`, or the current device for NumPy arrays.
    copy : bool, optional
        True: always copy. False: never copy. Default: copy if needed.
    stream : int or object with int(), optional
        The stream to copy on.

    Returns
    -------
    DeviceArray or ScaledArray
        The latter for a ScaledArray, whose elements of fewer than 8 bits are packed.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import ml_dtypes
    >>> w = hg.asarray(np.ones((4, 8), np.float32), ml_dtypes.bfloat16)
    >>> w.T
    DeviceArray(shape=(8, 4), dtype=bfloat16, device=0)
    """
    checks = Checks("asarray")
    handle = checks.value_or(_hip.existing_stream("asarray", stream), 0)
    if copy is not None:
        copy = checks.flag("copy", copy)
    target = None if device is None else checks.value_or(_hip.parse_device(device), 0)
    to = None
    if isinstance(x, ScaledArray):
        if dtype is not None:
            checks.add(TypeError, "dtype", "dtype must be omitted for a ScaledArray", shown(dtype))
        if x.device is None and copy is False:
            checks.add(ValueError, "copy", "a ScaledArray on the host can only be copied", "copy=False")
    elif isinstance(x, (np.ndarray, np.generic)):
        to = checks.value_or(parse_dtype(x.dtype if dtype is None else dtype), x.dtype)
        if isinstance(x, np.ndarray):
            checks.array("x", x, "a plain numpy.ndarray")
        if copy is False:
            checks.add(ValueError, "copy", "a NumPy array can only be copied", "copy=False")
        if to.isbuiltin == 2 and to not in (BF16.dtype, x.dtype):  # of ml_dtypes, all of few bits
            required = f"x.dtype must be {to}: a conversion needs a scale"
            advice = "see hipgemm.quantize_fp8, quantize_mxfp8, quantize_mxfp6, quantize_mxfp4"
            checks.add(TypeError, "dtype", required, x.dtype, advice)
        elif to != x.dtype and _is_real(to) and not _is_real(x.dtype):
            checks.add(TypeError, "dtype", f"x.dtype must be real to convert to {to}", x.dtype)
    else:
        if isinstance(x, DeviceArray):
            checks.array("x", x)
        elif not is_external(x):
            hint = "convert it with numpy.asarray" if isinstance(x, (list, tuple, int, float)) else ""
            checks.wrong_type(
                "x", "a numpy.ndarray, a DeviceArray, or an array that supports DLPack", x, hint
            )
        to = None if dtype is None else checks.value_or(parse_dtype(dtype), BF16.dtype)
    checks.raise_all()
    if isinstance(x, ScaledArray):
        return _scaled(x, target, copy, handle)
    if isinstance(x, (np.ndarray, np.generic)):
        assert to is not None
        return _from_numpy(np.asarray(x), to, _hip.current_device() if target is None else target, handle)
    if not isinstance(x, DeviceArray):
        block, found = import_array(x, handle)
        x = DeviceArray(block, found.ptr, found.shape, found.strides, found.dtype, found.readonly)
    if to is not None and to != x.dtype:
        required = f"dtype must be {x.dtype}, the dtype of the device array"
        checks.add(TypeError, "dtype", required, to)
    elsewhere = target is not None and target != x.device
    if elsewhere and copy is False:
        required = f"an array on device {x.device} can only be copied to device {target}"
        checks.add(ValueError, "copy", required, "copy=False")
    checks.raise_all()
    return _copy_to(x, x.device if target is None else target, handle) if copy or elsewhere else x


def _scaled(x: ScaledArray, device: int | None, copy: bool | None, stream: int) -> ScaledArray:
    """Copy a ScaledArray to a device, its elements in padded rows that products read in place."""
    target = _hip.current_device() if device is None and x.device is None else device

    def part(y: Any) -> Any:
        return asarray(y, device=target, copy=copy, stream=stream)

    if x.device is not None or x.ndim < 2 or x.axis < -2 or x.group_offsets is not None:
        data = part(packed_data(x))
    else:
        along = x if x.axis == -1 else x.mT
        number = _hip.device_number("asarray", target)
        with _hip.on_device(number):
            data = upload_padded(np.ascontiguousarray(packed_data(along)), number, stream)
            _hip.synchronize(stream)
        data = data if along is x else data.mT
    amax = None if x.amax is None else part(x.amax)
    offsets = part(x.group_offsets) if isinstance(x.group_offsets, DeviceArray) else x.group_offsets
    return x._with(data, part(x.scale), amax=amax, group_offsets=offsets)


def parse_dtype(dtype: npt.DTypeLike) -> np.dtype[Any] | Reason:
    """Parse a dtype argument; return a reason if it is invalid."""
    try:
        found = read_dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        return Reason(
            TypeError, "dtype", requirement("dtype must be a dtype or the name of one", shown(dtype))
        )
    if found.hasobject or found.itemsize == 0 or not found.isnative or found.subdtype is not None:
        required = "dtype must be a plain type in native byte order"
        return Reason(TypeError, "dtype", requirement(required, found))
    return found


def _cast(x: npt.NDArray[Any], to: np.dtype[Any]) -> npt.NDArray[Any]:
    """Convert to another type; to the types of products, values are rounded once."""
    form = format_of(to)
    if form is not None:
        return round_once(x, form)
    with np.errstate(all="ignore"):
        return np.asarray(x.astype(to))


def _is_real(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biuf" or dtype.isbuiltin == 2  # 2: of ml_dtypes


def _from_numpy(x: npt.NDArray[Any], to: np.dtype[Any], device: int, stream: int) -> DeviceArray:
    if to != x.dtype:
        x = _cast(x, to)
    # Keep the layout: a transposed view is uploaded in memory order.
    axes = sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))
    ordered = x.transpose(axes)
    with _hip.on_device(device):
        dense = new(ordered.shape, x.dtype, device, stream)
        upload(ordered, dense.ptr, stream)
    strides = tuple(dense.strides[axes.index(axis)] for axis in range(x.ndim))
    return DeviceArray(dense._block, dense.ptr, x.shape, strides, x.dtype)


def _copy_to(x: DeviceArray, device: int, stream: int) -> DeviceArray:
    """Copy an array and keep its layout: every byte between its first and its last."""
    low, high = byte_range(x.shape, x.strides, x.dtype.itemsize, x.ptr)
    block = _hip.allocate(high - low, device, stream)
    if device == x.device:
        with _hip.on_device(device):
            x._block.begin_read(stream)
            _hip.copy("DeviceToDevice", block.ptr, low, high - low, stream)
    else:
        with _hip.on_device(x.device):
            writer = x._block.stream()
        _staging.copy_block(block, block.ptr, stream, x._block, low, writer, high - low)
    return DeviceArray(block, block.ptr + x.ptr - low, x.shape, x.strides, x.dtype)


def new_padded(shape: tuple[int, ...], dtype: np.dtype[Any], device: int, stream: int) -> DeviceArray:
    """Make matrices with rows aligned to 16 bytes and padded with zeros, which products read in place."""
    *lead, columns = shape
    rows, width, pitch = math.prod(lead), columns * dtype.itemsize, padded_pitch(columns, dtype.itemsize)
    block = _hip.allocate(rows * pitch, device, stream)
    _hip.clear_rows(block.ptr + width, pitch, pitch - width, rows, stream)
    strides = (*contiguous_strides(lead, pitch), dtype.itemsize)
    # Without rows there is no padding, which the transpose would need.
    return DeviceArray(block, block.ptr, shape, strides, dtype, padded=rows > 0)


def upload_padded(x: npt.NDArray[Any], device: int, stream: int) -> DeviceArray:
    """Upload matrices to padded rows without waiting. The source may change after the call."""
    made = new_padded(x.shape, x.dtype, device, stream)
    if x.size:
        pitch = padded_pitch(x.shape[-1], x.dtype.itemsize)
        enqueue_upload(x.reshape(-1, x.shape[-1]), made.ptr, stream, pitch)
    return made


def upload_async(x: npt.NDArray[Any], device: int, stream: int) -> DeviceArray:
    """Upload a small array without waiting. The source may change after the call."""
    own = np.ascontiguousarray(x)
    made = new(x.shape, own.dtype, device, stream)
    enqueue_upload(own, made.ptr, stream)
    return made
