"""DLPack capsules by ctypes: making them, and taking them in. No device is touched."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .errors import InterchangeError, sentence

ROCM = 10  # kDLROCM

_CODES: dict[np.dtype[Any], int] = {np.dtype(ml_dtypes.bfloat16): 4, np.dtype(np.bool_): 6}
for _code, _names in ((0, "int8 int16 int32 int64"), (1, "uint8 uint16 uint32 uint64"), (2, "f2 f4 f8")):
    _CODES.update((np.dtype(_name), _code) for _name in _names.split())
# FNUZ types too: what they are is said where they are refused.
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


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]

_NAME, _USED = b"dltensor", b"used_dltensor"
_api = ctypes.PyDLL(None)  # with the GIL held, and with exceptions raised
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _Lent:
    """Device memory in the guise of an array of NumPy, which keeps this object and never looks inside."""

    def __init__(self, interface: dict[str, Any], owner: object):
        self.__array_interface__ = interface
        self._owner = owner


def export(
    ptr: int, device: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any], owner: object
) -> Any:
    """Make a capsule for device memory. `owner` lives until whoever takes it lets go."""
    code = _CODES.get(dtype)
    if code is None:
        raise InterchangeError(f"__dlpack__: {sentence('dtype must be one that DLPack has', dtype)}")
    if any(s % dtype.itemsize for s in strides):
        raise InterchangeError(f"__dlpack__: {sentence('strides must be whole elements', tuple(strides))}")
    # A capsule's destructor runs while the consumer's exception is on its way, which one in Python would
    # destroy. NumPy's are of C and know better: so NumPy makes the capsule, and only what it says changes.
    plain = np.dtype(f"u{dtype.itemsize}").str
    interface = {
        "data": (ptr, False),
        "shape": tuple(shape),
        "strides": tuple(strides),
        "typestr": plain,
        "version": 3,
    }
    capsule = np.asarray(_Lent(interface, owner)).__dlpack__()
    tensor = ctypes.cast(_pointer(capsule, _NAME), ctypes.POINTER(_Managed)).contents.tensor
    tensor.data, tensor.device_type, tensor.device_id, tensor.code = ptr, ROCM, device, code
    return capsule


@dataclass
class Imported:
    """What a capsule holds, and the duty to let go of it."""

    ptr: int
    device_type: int
    device: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    managed: Any

    def __del__(self) -> None:
        deleter = self.managed.contents.deleter
        if deleter:
            deleter(self.managed)


def take(capsule: Any) -> Imported:
    """Take over a capsule; it cannot be taken again."""
    try:
        address = _pointer(capsule, _NAME)
    except (ValueError, TypeError, ctypes.ArgumentError) as error:
        raise InterchangeError(
            "asarray: __dlpack__ must return an unused capsule named 'dltensor'"
        ) from error
    managed = ctypes.cast(address, ctypes.POINTER(_Managed))
    tensor = managed.contents.tensor
    dtype = _DTYPES.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        got = f"code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes"
        raise InterchangeError(f"asarray: {sentence('the DLPack type must be one that NumPy has', got)}")
    _rename(capsule, _USED)
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim))
    else:
        strides = contiguous_strides(shape, dtype.itemsize)
    ptr = (tensor.data or 0) + tensor.byte_offset
    return Imported(ptr, tensor.device_type, tensor.device_id, shape, strides, dtype, managed)


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of an array whose last axis runs fastest.

    Examples
    --------
    >>> contiguous_strides((2, 3, 4), 2)
    (24, 8, 2)
    """
    strides: list[int] = []
    step = itemsize
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(n, 1)
    return tuple(strides)
