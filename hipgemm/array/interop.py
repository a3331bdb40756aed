"""Arrays of other libraries: what they tell by DLPack and __cuda_array_interface__."""

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
class Foreign:
    """Device memory that another library holds."""

    ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    stream: int  # on which its last work is
    owner: object  # holds the memory
    readonly: bool


def device_kind() -> int:
    """What DLPack calls the devices of this process."""
    return _dlpack.CUDA if _hip.runtime().kind == "bridge" else _dlpack.ROCM


def is_foreign(x: object) -> bool:
    """Whether an object has one of the protocols."""
    return hasattr(x, "__dlpack_device__") or hasattr(x, "__cuda_array_interface__")


def take_over(x: Any, stream: int) -> tuple[_hip.Block, Foreign]:
    """Take over an array for work on `stream`."""
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
    # An array without elements may have no address, which would read as freed.
    start = low or found.dtype.itemsize
    return _hip.Block(start, high - low, 0, found.device, found.stream, found.owner), found


def misaligned(
    kind: type[Exception], ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> Reason | None:
    """Say what is wrong with where numbers lie; kernels read words, and halves, only in their places."""
    word = min(dtype.alignment, 4)
    steps = [step for n, step in zip(shape, strides, strict=True) if n > 1]
    if 0 in shape or not any(at % word for at in (ptr, *steps)):
        return None
    required = f"numbers of {dtype} must lie at multiples of {word} bytes"
    return Reason(kind, "alignment", requirement(required, f"address {ptr:#x}, strides {strides}"))


def _by_dlpack(x: Any, stream: int) -> Foreign:
    kind, _ = x.__dlpack_device__()
    ours = device_kind()
    maker = "an AMD" if ours == _dlpack.ROCM else "a CUDA"
    if int(kind) != ours:
        required = f"the array must be on {maker} device (DLPack type {ours})"
        hint = "memory of the host comes as a numpy.ndarray" if int(kind) == _dlpack.CPU else ""
        raise fault(InterchangeError, "asarray", required, f"type {int(kind)}", hint)
    found = _dlpack.take(_dlpack.ask(x, ours, stream))
    if found.device_type != ours:
        required = f"the capsule must hold {maker} device's memory (DLPack type {ours})"
        raise fault(InterchangeError, "asarray", required, f"type {found.device_type}")
    return Foreign(
        found.ptr, found.shape, found.strides, found.dtype, found.device, stream, found, found.readonly
    )


def _by_interface(x: Any, stream: int) -> Foreign:
    interface, checks = x.__cuda_array_interface__, Checks("asarray")
    dtype = np.dtype(interface["typestr"])
    if dtype.isbuiltin != 1 or not dtype.isnative:
        checks.add(InterchangeError, "dtype", "typestr must name a type of NumPy", interface["typestr"])
    if interface.get("mask") is not None:
        checks.add(
            InterchangeError, "mask", "the array must have no mask, which DeviceArray does not know", "one"
        )
    checks.raise_all()
    ptr, readonly = interface["data"]
    shape = tuple(interface["shape"])
    strides = interface.get("strides")
    strides = contiguous_strides(shape, dtype.itemsize) if strides is None else tuple(strides)
    device = _hip.device_of(ptr) if ptr else _hip.current_device()
    writer = _producer_stream(interface.get("stream"), stream)
    return Foreign(ptr or 0, shape, strides, dtype, device, writer, x, bool(readonly))


def _producer_stream(producer: Any, stream: int) -> int:
    """The stream that an array's producer works on: None says that there is nothing to wait for."""
    if producer is None:
        return stream
    handle = int(producer)
    if handle == 2:  # this thread's own, which no other can name
        _hip.synchronize(2)
        return stream
    return _hip.stream_handle("asarray", handle)
