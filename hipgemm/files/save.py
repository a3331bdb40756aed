"""Writing arrays to a file."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray
from ..errors import fault, shown
from ..formats.arrays import array_hint, as_plain
from ..formats.checks import ARRAYS, Checks
from ..formats.elements import BLOCK, F32, MXFP4_E2M1, QUANTIZED, fnuz_hint
from ..formats.scaled import ScaledArray, packed_data
from .header import DTYPES, HEADER_LIMIT, LENGTH, size_of, write_header
from .layouts import RECORD, Stored, write_record
from .progress import Progress

Host = npt.NDArray[Any]
_SPAN = 32 << 20  # bytes that are written at once
_U8 = np.dtype(np.uint8)
_UNSUITED = ("F4", "F6_E2M3", "F6_E3M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
_UNSCALED = [DTYPES[name] for name in _UNSUITED if "FNUZ" not in name]
_NAMES = {dtype: name for name, dtype in DTYPES.items() if name not in _UNSUITED}
_numbers = count()


@dataclass(frozen=True)
class _Tensor:
    """A tensor to write: what makes an array, whose bytes are stored with another dtype and shape."""

    make: Callable[[], Any]
    dtype: str
    shape: tuple[int, ...]


def save(path: Any, arrays: Mapping[str, Any]) -> None:
    """Write arrays to a safetensors file, which `load` and other programs read.

    A quantized array becomes tensors of a published layout; those with an e8m0 scale per 32 elements have
    them as uint8:

    ============================ ===================================== ================================
    format                       elements                              scales
    ============================ ===================================== ================================
    fp8                          ``name``                              ``name_scale`` (compressed-tensors)
    fp8, blocks of 128 x 128     ``name``                              ``name_scale_inv`` (DeepSeek-V3)
    mxfp8                        ``name``                              ``name_scale`` (compressed-tensors)
    mxfp6                        ``name``, packed in uint8             ``name_scale`` (Quark)
    mxfp4                        ``name_packed``, uint8                ``name_scale`` (compressed-tensors)
    mxfp4 (experts, N, K)        ``name_blocks`` (.., K/32, 16) uint8  ``name_scales`` (gpt-oss)
    ============================ ===================================== ================================

    The axis of the scales is stored as the last one, as weights (N, K) are published. What these layouts do
    not have is in ``name_amax`` and in the metadata ``hipgemm``, which other programs ignore: the axis, a
    Hadamard transform and its signs, and a length that is no multiple of a block.

    The file is complete or unchanged: it is written under another name in the same folder, and renamed.
    Arrays on a device are downloaded in parts. What takes longer than a second reports its progress on
    standard error, unless ``HIPGEMM_PROGRESS=off``.

    Parameters
    ----------
    path : str or path-like
        The file.
    arrays : mapping of str to numpy.ndarray, DeviceArray or ScaledArray
        The arrays by name: bfloat16, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, bool, integers, floats of
        16 to 64 bits, complex64, or quantized, without groups.

    Raises
    ------
    OSError
        If the file cannot be written.
    TypeError, ValueError
        If an array cannot be stored, or two tensors would have the same name. The message names the array.

    Examples
    --------
    >>> import hipgemm as hg
    >>> import os, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> hg.save(path, {"scale": np.float32([2, 3])})
    >>> hg.load(path)
    {'scale': array([2., 3.], dtype=float32)}
    """
    checks = Checks("save")
    file = checks.path(path)
    tensors: dict[str, _Tensor] = {}
    records: dict[str, Stored] = {}
    for name, array in _items(checks, arrays):
        for tensor, part in _parts(checks, name, as_plain(array), records).items():
            if tensor in tensors:
                required = f"the tensors of arrays[{shown(name)}] must have names of their own"
                checks.add(ValueError, "name", required, f"{shown(tensor)} twice")
            tensors[tensor] = part
    checks.raise_all()
    assert file is not None
    metadata = {RECORD: write_record(records)}
    header, order = write_header({name: (x.dtype, x.shape) for name, x in tensors.items()}, metadata)
    if len(header) > LENGTH + HEADER_LIMIT:
        required = f"arrays must have names that fit a header of {HEADER_LIMIT} bytes"
        raise fault(ValueError, "save", required, f"{len(header)} bytes")
    total = sum(size_of(x.dtype, x.shape) for x in tensors.values())
    with _Replacement(file) as write, Progress(f"save: {file}", total) as progress:
        write(header)
        for name in order:
            for span in _spans(tensors[name].make()):
                write(span)
                progress.add(span.nbytes)


def _items(checks: Checks, arrays: Any) -> Iterator[tuple[str, Any]]:
    """The arrays by name; adds a fault for each name that is not valid."""
    if not isinstance(arrays, Mapping):
        checks.wrong_type("arrays", "a mapping of names to arrays", arrays, array_hint(arrays))
        return
    for name, array in arrays.items():
        if not isinstance(name, str):
            checks.add(TypeError, "name", "names of arrays must be str", shown(name))
        elif name == "__metadata__" or not _is_unicode(name):
            required = "names of arrays must be Unicode, and not __metadata__"
            checks.add(ValueError, "name", required, shown(name))
        else:
            yield name, array


def _is_unicode(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _parts(checks: Checks, name: str, x: Any, records: dict[str, Stored]) -> dict[str, _Tensor]:
    """The tensors that an array is stored as, by name; enters it in the record if it is quantized."""
    what = f"arrays[{shown(name)}]"
    if not isinstance(x, ScaledArray):
        x = np.asarray(x) if isinstance(x, np.generic) else x
        if checks.array(what, x, f"{ARRAYS}, or a ScaledArray") is None:
            return {}
        dtype = x.dtype.newbyteorder("<") if isinstance(x, np.ndarray) else x.dtype
        if dtype not in _NAMES:
            packed = x.dtype in _UNSCALED and "elements of fewer than 8 bits need scales: see ScaledArray"
            hint = fnuz_hint(x.dtype) or packed or ""
            checks.add(TypeError, "dtype", f"{what}.dtype must be a dtype of the format", x.dtype, hint)
            return {}
        return {name: _Tensor(lambda: x, _NAMES[dtype], tuple(x.shape))}
    if not checks.in_memory(what, x):
        return {}
    if x.group_offsets is not None:
        checks.no_groups(what, x)
        return {}
    form, axis = QUANTIZED[x.format], x.axis
    shape, scales = _moved(x.shape, x.axis), _moved(tuple(x.scale.shape), x.axis)
    data, scale, stored_shape = name, f"{name}_scale", shape
    if form.is_packed:
        stored_shape = *shape[:-1], form.packed_bytes(shape[-1])
    if form is MXFP4_E2M1 and len(shape) == 3 and shape[-1] % BLOCK == 0:
        data, scale = f"{name}_blocks", f"{name}_scales"
        stored_shape = *shape[:-1], shape[-1] // BLOCK, BLOCK // 2
    elif form is MXFP4_E2M1:
        data = f"{name}_packed"
    block = x.block[::-1] if x.block is not None and x.axis == -2 else x.block
    if block is not None and block[0] == block[1]:
        scale = f"{name}_scale_inv"
    dtype = "U8" if form.is_packed else _NAMES[form.dtype]
    scale_dtype = "U8" if form.block else "F32" if x.scale.dtype == F32.dtype else "F8_E8M0"
    found = {
        data: _Tensor(lambda: _last(packed_data(x), axis), dtype, stored_shape),
        scale: _Tensor(lambda: _last(x.scale, axis), scale_dtype, scales),
    }
    amax = None if x.amax is None else f"{name}_amax"
    if amax is not None:
        found[amax] = _Tensor(lambda: x.amax, "F32", tuple(x.amax.shape))
    records[name] = Stored(
        data, shape, form, scale, scales, block, x.axis, x.hadamard, x.signs, amax,
        unpacked=form.is_packed and x.data.dtype != _U8, signs_start=x.signs_start,
    )  # fmt: skip
    return found


def _moved(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    """The shape with an axis as the last one; shapes of one scale stay."""
    if not shape:
        return shape
    found = list(shape)
    found.append(found.pop(axis))
    return tuple(found)


def _last(x: Any, axis: int) -> Any:
    """The array with an axis as the last one, without a copy of memory that is in order then."""
    if axis == -1 or not np.shape(x):
        return x
    if isinstance(x, DeviceArray) and axis == -2:
        return x.mT
    return np.moveaxis(x.get() if isinstance(x, DeviceArray) else x, axis, -1)


def _spans(x: Any) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of an array in C order, in parts."""
    if isinstance(x, np.ndarray) and x.flags.c_contiguous:
        yield from _split(x)
    elif x.ndim == 0 or x.nbytes <= _SPAN:
        yield from _split(x.get() if isinstance(x, DeviceArray) else np.ascontiguousarray(x))
    else:
        step = max(1, _SPAN * x.shape[0] // x.nbytes)
        for i in range(0, x.shape[0], step):
            part = x[i : i + step]
            if step == 1 and part.nbytes > _SPAN:
                yield from _spans(x[i])
            else:
                yield from _split(part.get() if isinstance(part, DeviceArray) else np.ascontiguousarray(part))


def _split(x: Host) -> Iterator[npt.NDArray[np.uint8]]:
    """The bytes of a contiguous array in parts."""
    if not x.dtype.isnative:
        x = x.astype(x.dtype.newbyteorder("<"))
    flat = x.reshape(-1).view(_U8)
    for at in range(0, flat.size, _SPAN):
        yield flat[at : at + _SPAN]


class _Replacement:
    """A context manager whose value writes bytes to a new file, which replaces another at the end."""

    def __init__(self, path: str):
        self._path = os.path.realpath(path)
        if os.path.lexists(self._path):
            mode = os.stat(self._path).st_mode
            if stat.S_ISDIR(mode):
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if not stat.S_ISREG(mode):
                raise fault(ValueError, "save", "path must be that of a file", f"the device or pipe {path}")
        folder, name = os.path.split(self._path)
        self._other = os.path.join(folder, f".{name[:100]}.{os.getpid()}.{next(_numbers)}.tmp")

    def __enter__(self) -> Any:
        self._file = open(self._other, "xb")
        return self._file.write

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            with self._file:
                if kind is None:
                    self._file.flush()
                    os.fsync(self._file.fileno())
            if kind is None:
                os.replace(self._other, self._path)
        finally:
            if os.path.exists(self._other):
                os.unlink(self._other)
