"""Deferred device errors: kernels report invalid offsets in error slots, which each wait reads and raises."""

from __future__ import annotations

import ctypes
import threading

from ..errors import HipError, message, requirement
from ..formats.elements import BLOCK
from ..formats.groups import offset_fault
from . import hip as _hip

# Each of these functions has one error slot of four words: the index of the first invalid offset, counted
# from 1, its value, the offset before it, and the number of rows. OffsetFault in groups.hpp.
FUNCTIONS = ("grouped_matmul", "grouped_wgrad", "quantize_mxfp8")
_WORDS = 4

_slots: ctypes.Array[ctypes.c_int32] | None = None
_device_address = 0
_lock = threading.Lock()


def slot(function: str) -> int:
    """Return the device address of a function's error slot: mapped host memory, valid on all devices."""
    if _slots is None:
        _allocate()
    return _device_address + FUNCTIONS.index(function) * _WORDS * 4


def _allocate() -> None:
    global _slots, _device_address
    with _lock:
        if _slots is not None:
            return
        count = len(FUNCTIONS) * _WORDS
        portable_mapped = 1 | 2  # flags of hipHostMalloc
        memory = _hip.call("hipHostMalloc", count * 4, portable_mapped)
        slots = (ctypes.c_int32 * count).from_address(int(memory))
        ctypes.memset(ctypes.addressof(slots), 0, count * 4)
        _device_address = int(_hip.call("hipHostGetDevicePointer", memory, 0))
        _hip.after_wait_hooks.append(_raise_reported)
        _slots = slots


def _raise_reported() -> None:
    assert _slots is not None
    report = ""
    for i, function in enumerate(FUNCTIONS):
        if _slots[i * _WORDS]:
            where, offset, before, rows = _slots[i * _WORDS : (i + 1) * _WORDS]
            _slots[i * _WORDS] = 0
            # Several functions may report the same fault; the first report is enough.
            report = report or message(function, [_fault(where - 1, offset, before, rows)])
    if report:
        raise HipError("hipStreamSynchronize", 1, "hipErrorInvalidValue", report)


def _fault(i: int, offset: int, before: int, rows: int) -> str:
    required = f"group_offsets must be multiples of {BLOCK} where blocks span groups"
    return offset_fault(i, offset, before, rows) or requirement(required, f"group_offsets[{i}]={offset}")
