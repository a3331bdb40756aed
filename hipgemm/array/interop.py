"""Import of arrays of other libraries, by DLPack or __cuda_array_interface__."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import HipError, InterchangeError, Reason, fault, requirement, shown, value_or_raise
from ..formats.checks import Checks
from ..formats.strides import byte_range, contiguous_strides
from ..runtime import hip as _hip
from . import dlpack as _dlpack


@dataclass
class ExternalArray:
    """Device memory that another library holds."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    stream: int  # of its last work
    owner: object  # keeps the memory alive
    readonly: bool


def device_kind() -> int:
    """The DLPack device type of this process's devices."""
    return _dlpack.CUDA if _hip.runtime().kind == "bridge" else _dlpack.ROCM


def is_external(x: object) -> bool:
    """Whether an object supports one of the protocols. A class does not: its instances do."""
    if isinstance(x, type):
        return False
    return hasattr(x, "__dlpack_device__") or hasattr(x, "__cuda_array_interface__")


def import_array(x: Any, stream: int) -> tuple[_hip.Block, ExternalArray]:
    """Import an array for work on `stream`, without a copy."""
    found = _by_dlpack(x, stream) if hasattr(x, "__dlpack_device__") else _by_interface(x, stream)
    _check_extents(found)
    count = _hip.runtime().devices
    if not 0 <= found.device < count:
        required = f"the array must be in the memory of device 0 to {count - 1}"
        got = f"address {found.ptr:#x}, device {found.device}"
        raise fault(InterchangeError, "asarray", required, got)
    value_or_raise(
        "asarray", misaligned(InterchangeError, found.ptr, found.shape, found.strides, found.dtype)
    )
    _hip.require_stream(found.stream, found.device)
    low, high = byte_range(found.shape, found.strides, found.dtype.itemsize, found.ptr)
    # An empty array may have a null pointer, which would mean that it is freed.
    start = low or found.dtype.itemsize
    return _hip.adopt(start, high - low, found.device, found.stream, found.owner), found


def misaligned(
    kind: type[Exception], ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> Reason | None:
    """Return a reason if elements are not aligned; kernels need natural alignment, at most 4 bytes."""
    word = min(dtype.alignment, 4)
    steps = [step for n, step in zip(shape, strides, strict=True) if n > 1]
    if 0 in shape or not any(at % word for at in (ptr, *steps)):
        return None
    required = f"{dtype} elements must be aligned to {word} bytes"
    return Reason(kind, "alignment", requirement(required, f"address {ptr:#x}, strides {strides}"))


def _check_extents(x: ExternalArray) -> None:
    """Check a producer's description of its array, so that invalid numbers never become addresses."""
    checks = Checks("asarray")
    if any(n < 0 for n in x.shape):
        checks.add(InterchangeError, "shape", "the array's shape must not be negative", x.shape)
    elif len(x.strides) != len(x.shape):
        required = "the array's strides must be as many as its axes"
        checks.add(InterchangeError, "stride", required, f"strides {x.strides}, shape {x.shape}")
    elif 0 not in x.shape:
        low, high = byte_range(x.shape, x.strides, x.dtype.itemsize, x.ptr)
        if x.ptr == 0:
            required = "the array's address must not be null"
            checks.add(InterchangeError, "pointer", required, f"shape {x.shape}")
        elif not 0 < low < high <= 2**64 or math.prod(x.shape) * x.dtype.itemsize >= 2**63:
            required = "the array's bytes must be in 64-bit addresses"
            got = f"address {x.ptr:#x}, shape {x.shape}, strides {x.strides}"
            checks.add(InterchangeError, "range", required, got)
    checks.raise_all()


def _holder(ptr: int) -> int:
    """The device that holds an address; -1 if none does."""
    try:
        return _hip.device_of(ptr)
    except HipError as error:
        if error.name not in ("hipErrorInvalidValue", "hipErrorInvalidDevicePointer"):
            raise
        return -1


def _by_dlpack(x: Any, stream: int) -> ExternalArray:
    answer = x.__dlpack_device__()
    try:
        kind, _ = map(operator.index, answer)
    except (TypeError, ValueError):
        required = "__dlpack_device__ must return two ints"
        raise fault(InterchangeError, "asarray", required, shown(answer)) from None
    ours = device_kind()
    maker = "an AMD" if ours == _dlpack.ROCM else "a CUDA"
    if kind != ours:
        required = f"the array must be on {maker} device (DLPack type {ours})"
        hint = "pass host memory as a numpy.ndarray" if kind == _dlpack.CPU else ""
        raise fault(InterchangeError, "asarray", required, f"type {kind}", hint)
    found = _dlpack.import_capsule(_dlpack.request_capsule(x, ours, stream))
    if found.device_type != ours:
        required = f"the capsule must hold {maker} device's memory (DLPack type {ours})"
        raise fault(InterchangeError, "asarray", required, f"type {found.device_type}")
    device = found.device if 0 in found.shape or not found.ptr else _holder(found.ptr)
    if device != found.device:
        required = f"the capsule's address must be in the memory of its device {found.device}"
        raise fault(InterchangeError, "asarray", required, f"address {found.ptr:#x}, device {device}")
    return ExternalArray(
        found.ptr, found.shape, found.strides, found.dtype, device, stream, found, found.readonly
    )


_KEYS = ("shape", "typestr", "data", "version")  # that the protocol requires


def _by_interface(x: Any, stream: int) -> ExternalArray:
    interface, checks = x.__cuda_array_interface__, Checks("asarray")
    if not isinstance(interface, Mapping):
        required = "__cuda_array_interface__ must be a dict"
        raise fault(InterchangeError, "asarray", required, type(interface).__qualname__)
    if missing := [key for key in _KEYS if key not in interface]:
        required = f"__cuda_array_interface__ must have {', '.join(_KEYS)}"
        raise fault(InterchangeError, "asarray", required, f"none of {', '.join(missing)}")
    dtype = _read_typestr(interface["typestr"])
    if dtype is None:
        required = "typestr must be a native NumPy type"
        checks.add(InterchangeError, "dtype", required, interface["typestr"])
    if interface.get("mask") is not None:
        checks.add(InterchangeError, "mask", "the array must have no mask", "one")
    shape, strides = _read_ints(interface["shape"]), interface.get("strides")
    if shape is None:
        checks.add(InterchangeError, "shape", "shape must be a tuple of ints", shown(interface["shape"]))
    if strides is not None and _read_ints(strides) is None:
        checks.add(InterchangeError, "stride", "strides must be None or a tuple of ints", shown(strides))
    data = interface["data"]
    try:
        ptr, readonly = data
        ptr = 0 if ptr is None else operator.index(ptr)
        if not isinstance(readonly, (bool, np.bool_, int)):
            raise TypeError
    except (TypeError, ValueError):
        checks.add(InterchangeError, "pointer", "data must be a tuple of an int and a bool", shown(data))
    checks.raise_all()
    assert dtype is not None
    assert shape is not None
    steps = contiguous_strides(shape, dtype.itemsize) if strides is None else _read_ints(strides)
    assert steps is not None
    device = _holder(ptr) if 0 < ptr < 2**64 else _hip.current_device()
    writer = _producer_stream(interface.get("stream"), stream)
    return ExternalArray(ptr, shape, steps, dtype, device, writer, x, bool(readonly))


def _read_typestr(typestr: Any) -> np.dtype[Any] | None:
    """Parse a typestr; None if it is not a NumPy number type."""
    try:
        dtype = np.dtype(typestr) if isinstance(typestr, str) else None
    except (TypeError, ValueError, SyntaxError):
        return None
    if dtype is None or dtype.isbuiltin != 1 or not dtype.isnative or dtype.hasobject or not dtype.itemsize:
        return None
    return dtype


def _read_ints(x: Any) -> tuple[int, ...] | None:
    """Parse a tuple of ints or NumPy integers."""
    try:
        return None if isinstance(x, (str, bytes)) else tuple(map(operator.index, x))
    except TypeError:
        return None


def _producer_stream(producer: Any, stream: int) -> int:
    """The stream of an array's producer. None: there is nothing to wait for."""
    if producer is None:
        return stream
    try:
        handle = operator.index(producer)
    except TypeError:
        required = "the array's stream must be an int or None"
        raise fault(InterchangeError, "asarray", required, shown(producer)) from None
    if handle == 2:  # hipStreamPerThread, which means another stream in each thread
        _hip.synchronize(2)
        return stream
    return _hip.stream_handle("asarray", handle)
