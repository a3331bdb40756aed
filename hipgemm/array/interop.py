"""Import of arrays of other libraries, by DLPack or __cuda_array_interface__."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InterchangeError, Reason, fault, requirement, value_or_raise
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
    """Whether an object supports one of the protocols."""
    return hasattr(x, "__dlpack_device__") or hasattr(x, "__cuda_array_interface__")


def import_array(x: Any, stream: int) -> tuple[_hip.Block, ExternalArray]:
    """Import an array for work on `stream`, without a copy."""
    found = _by_dlpack(x, stream) if hasattr(x, "__dlpack_device__") else _by_interface(x, stream)
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
    return _hip.Block(start, high - low, 0, found.device, found.stream, found.owner), found


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


def _by_dlpack(x: Any, stream: int) -> ExternalArray:
    kind, _ = x.__dlpack_device__()
    ours = device_kind()
    maker = "an AMD" if ours == _dlpack.ROCM else "a CUDA"
    if int(kind) != ours:
        required = f"the array must be on {maker} device (DLPack type {ours})"
        hint = "pass host memory as a numpy.ndarray" if int(kind) == _dlpack.CPU else ""
        raise fault(InterchangeError, "asarray", required, f"type {int(kind)}", hint)
    found = _dlpack.import_capsule(_dlpack.request_capsule(x, ours, stream))
    if found.device_type != ours:
        required = f"the capsule must hold {maker} device's memory (DLPack type {ours})"
        raise fault(InterchangeError, "asarray", required, f"type {found.device_type}")
    return ExternalArray(
        found.ptr, found.shape, found.strides, found.dtype, found.device, stream, found, found.readonly
    )


def _by_interface(x: Any, stream: int) -> ExternalArray:
    interface, checks = x.__cuda_array_interface__, Checks("asarray")
    dtype = np.dtype(interface["typestr"])
    if dtype.isbuiltin != 1 or not dtype.isnative:
        checks.add(InterchangeError, "dtype", "typestr must be a native NumPy type", interface["typestr"])
    if interface.get("mask") is not None:
        checks.add(InterchangeError, "mask", "the array must have no mask", "one")
    checks.raise_all()
    ptr, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = contiguous_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    device = _hip.device_of(ptr) if ptr else _hip.current_device()
    writer = _producer_stream(interface.get("stream"), stream)
    return ExternalArray(ptr or 0, shape, strides, dtype, device, writer, x, bool(readonly))


def _producer_stream(producer: Any, stream: int) -> int:
    """The stream of an array's producer. None: there is nothing to wait for."""
    if producer is None:
        return stream
    handle = int(producer)
    if handle == 2:  # hipStreamPerThread, which means another stream in each thread
        _hip.synchronize(2)
        return stream
    return _hip.stream_handle("asarray", handle)
