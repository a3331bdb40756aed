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
_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_api = ctypes.PyDLL(None)  # with the GIL held, and with exceptions raised
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
# A dying capsule may not be touched as an object: these take its address.
_dying = ctypes.PyDLL(None)
_dying.PyCapsule_IsValid.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_dying.PyCapsule_GetPointer.restype = ctypes.c_void_p
_dying.PyCapsule_GetPointer.argtypes = (ctypes.c_void_p, ctypes.c_char_p)

_exported: dict[int, tuple[object, ...]] = {}  # what each capsule's tensor points to, by its address


def _delete(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


def _destroy(capsule: int) -> None:
    if _dying.PyCapsule_IsValid(capsule, _NAME):  # nobody took it
        _exported.pop(_dying.PyCapsule_GetPointer(capsule, _NAME), None)


_deleter = _Deleter(_delete)
_destructor = _Destructor(_destroy)


def export(
    ptr: int, device: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any], owner: object
) -> Any:
    """Make a capsule for device memory. `owner` lives until whoever takes it lets go."""
    code = _CODES.get(dtype)
    if code is None:
        raise InterchangeError(f"__dlpack__: {sentence('dtype must be one that DLPack has', dtype)}")
    if any(s % dtype.itemsize for s in strides):
        raise InterchangeError(f"__dlpack__: {sentence('strides must be whole elements', tuple(strides))}")
    integers = ctypes.c_int64 * max(len(shape), 1)
    extents = integers(*shape)
    steps = integers(*(s // dtype.itemsize for s in strides))
    tensor = _Tensor(ptr, ROCM, device, len(shape), code, 8 * dtype.itemsize, 1, extents, steps, 0)
    managed = _Managed(tensor, None, _deleter)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, extents, steps, owner)
    return _new(address, _NAME, _destructor)


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
