"""Export and import of DLPack capsules, by ctypes. Uses no device."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from ..errors import InterchangeError, fault
from ..formats.arrays import memory_as_array
from ..formats.strides import contiguous_strides

CPU, CUDA, ROCM = 1, 2, 10  # kDLCPU, kDLCUDA, kDLROCM
VERSION = (1, 1)  # the first with codes for fp8

_CODES: dict[np.dtype[Any], int] = {np.dtype(ml_dtypes.bfloat16): 4, np.dtype(np.bool_): 6}
for _code, _names in ((0, "int8 int16 int32 int64"), (1, "uint8 uint16 uint32 uint64"), (2, "f2 f4 f8")):
    _CODES.update((np.dtype(_name), _code) for _name in _names.split())
# FNUZ types too, so that the message that refuses them can name them.
for _code, _name in (
    *((10, "float8_e4m3fn"), (11, "float8_e4m3fnuz"), (12, "float8_e5m2"), (13, "float8_e5m2fnuz")),
    (14, "float8_e8m0fnu"),
):
    _CODES[np.dtype(getattr(ml_dtypes, _name))] = _code
_DTYPES = {(code, 8 * dtype.itemsize): dtype for dtype, code in _CODES.items()}


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    pass


class _Versioned(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]
_Versioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", _Deleter),
    ("flags", ctypes.c_uint64),
    ("tensor", _Tensor),
]
_READ_ONLY, _COPIED = 1, 2  # flags
_MAX_AXES = 64  # NumPy's limit

_NAME, _VERSIONED_NAME = b"dltensor", b"dltensor_versioned"
_USED = {
    _NAME: b"used_dltensor",
    _VERSIONED_NAME: b"used_dltensor_versioned",
}  # static, since capsules keep the pointer
_api = ctypes.PyDLL(None)  # holds the GIL and raises exceptions
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def export(
    ptr: int,
    device: int,
    shape: Sequence[int],
    strides: Sequence[int],
    dtype: np.dtype[Any],
    owner: object,
    *,
    kind: int = ROCM,
    max_version: tuple[int, int] | None = None,
    readonly: bool = False,
    copied: bool = False,
) -> Any:
    """Make a capsule for device memory. `owner` is kept alive until the consumer deletes it.

    It is a versioned capsule if the consumer supports these and NumPy (from 2.1) does too.
    """
    code = _CODES.get(dtype)
    if code is None:
        raise fault(InterchangeError, "__dlpack__", "dtype must be one that DLPack has", dtype)
    if any(s % dtype.itemsize for s in strides):
        raise fault(InterchangeError, "__dlpack__", "strides must be whole elements", tuple(strides))
    # A capsule's destructor may run while an exception propagates; one in Python code would clear the
    # exception. NumPy's destructor is C code, so NumPy makes the capsule, and only its contents are changed.
    unsigned = np.dtype(f"u{dtype.itemsize}").str
    exported = memory_as_array(ptr, tuple(shape), tuple(strides), unsigned, owner)
    versioned = max_version is not None and max_version[0] >= 1 and _NUMPY_HAS_VERSIONS
    if versioned:
        capsule = exported.__dlpack__(max_version=(1, 0))
        address = _pointer(capsule, _VERSIONED_NAME)
        managed: Any = ctypes.cast(address, ctypes.POINTER(_Versioned)).contents
        managed.major, managed.minor = min(VERSION, tuple(max_version or VERSION))
        managed.flags = (_READ_ONLY if readonly else 0) | (_COPIED if copied else 0)
    elif readonly:
        raise InterchangeError("__dlpack__: a read-only array needs a versioned capsule (max_version)")
    else:
        capsule = exported.__dlpack__()
        managed = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents
    tensor = managed.tensor
    tensor.data, tensor.code = ptr, code
    tensor.device_type, tensor.device_id = kind, device
    return capsule


_NUMPY_HAS_VERSIONS = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class Imported:
    """The contents of a capsule, which lives as long as this."""

    def __init__(self, content: Any):
        tensor = content.tensor
        self.readonly = isinstance(content, _Versioned) and bool(content.flags & _READ_ONLY)
        self.device_type = int(tensor.device_type)
        self.device = int(tensor.device_id)
        dtype = _DTYPES.get((tensor.code, tensor.bits))
        if dtype is None or tensor.lanes != 1:
            got = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
            raise fault(InterchangeError, "asarray", "the DLPack type must be a NumPy or ml_dtypes type", got)
        self.dtype = dtype
        if not 0 <= tensor.ndim <= _MAX_AXES or (tensor.ndim and not tensor.shape):
            got = f"{tensor.ndim} axes" if tensor.shape or not tensor.ndim else "none"
            raise fault(InterchangeError, "asarray", f"the capsule must have 0 to {_MAX_AXES} extents", got)
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        if tensor.strides:
            self.strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
        else:
            self.strides = contiguous_strides(self.shape, dtype.itemsize)
        self.ptr = (tensor.data or 0) + tensor.byte_offset
        # What `_Import` refers to. It is in no cycle, whose collection would call the callback, but keep it,
        # and with it the capsule.
        self.last: npt.NDArray[Any] = np.empty(0, np.uint8)


class _Import(weakref.ref["npt.NDArray[Any]"]):
    """Keeps a capsule until what was imported from it is gone, and then marks it as unused.

    Its destructor calls the deleter. All of this is C code, which no signal handler interrupts.
    """

    _as_parameter_ = None  # beyond the arguments of PyCapsule_SetName
    __eq__, __hash__ = object.__eq__, object.__hash__  # not those of the array


_imports: set[_Import] = set()


def request_capsule(x: Any, kind: int, stream: int) -> Any:
    """Request a capsule from an array of another library, versioned if it supports that."""
    if kind == CUDA and stream == 0:
        stream = 1  # DLPack's number of the default stream for CUDA; for ROCm it is 0
    try:
        return x.__dlpack__(stream=stream, max_version=VERSION)
    except TypeError as error:
        if "max_version" not in str(error):
            raise  # the producer's own error
    return x.__dlpack__(stream=stream)


def import_capsule(capsule: Any) -> Imported:
    """Import a capsule and mark it as used."""
    for name, kind in ((_NAME, _Managed), (_VERSIONED_NAME, _Versioned)):
        if not _valid(capsule, name):
            continue
        content = ctypes.cast(_pointer(capsule, name), ctypes.POINTER(kind)).contents
        if kind is _Versioned and content.major != VERSION[0]:
            required = f"the DLPack version must be {VERSION[0]}"
            raise fault(InterchangeError, "asarray", required, content.major)
        found = Imported(content)
        _imports.difference_update([x for x in list(_imports) if x() is None])
        _imports.add(_Import(found.last, partial(_rename, capsule, name)))
        _rename(capsule, _USED[name])
        return found
    raise InterchangeError(
        "asarray: __dlpack__ must return an unused capsule named 'dltensor' or 'dltensor_versioned'"
    )
