"""Deferred device errors: kernels report invalid offsets in error slots, which each wait reads and raises."""

from __future__ import annotations

import ctypes

from ..errors import HipError, message, requirement
from ..formats.elements import BLOCK
from ..formats.groups import offset_fault
from . import hip as _hip
from .ownership import call_allocator, once

# Each of these functions has one error slot of four words: the index of the first invalid offset, counted
# from 1, its value, the offset before it, and the number of rows. OffsetFault in groups.hpp.
FUNCTIONS = ("grouped_matmul", "grouped_wgrad", "quantize_mxfp8")
_WORDS = 4

_memory = ctypes.c_void_p()  # mapped host memory
_opened: dict[None, tuple[ctypes.Array[ctypes.c_int32], int]] = {}  # the slots, and their device address


def slot(function: str) -> int:
    """Return the device address of a function's error slot: mapped host memory, valid on all devices."""
    _, device_address = _opened.get(None) or once(_opened, None, _allocate)
    return device_address + FUNCTIONS.index(function) * _WORDS * 4


def _allocate() -> tuple[ctypes.Array[ctypes.c_int32], int]:
    count = len(FUNCTIONS) * _WORDS
    if not _memory.value:  # else an interrupted call has allocated it
        nbytes, portable_mapped = ctypes.c_size_t(count * 4), 1 | 2  # flags of hipHostMalloc
        error = call_allocator(_hip.runtime().handle, "hipHostMalloc", _memory, nbytes, portable_mapped)
        if error:
            raise _hip.failure("hipHostMalloc", error)
    address = _memory.value
    assert address is not None
    slots = (ctypes.c_int32 * count).from_address(address)
    ctypes.memset(address, 0, count * 4)
    device_address = int(_hip.call("hipHostGetDevicePointer", address, 0))
    if _raise_reported not in _hip.after_wait_hooks:
        _hip.after_wait_hooks.append(_raise_reported)
    return slots, device_address


def _raise_reported() -> None:
    if None not in _opened:
        return
    slots, _ = _opened[None]
    reported = [i for i in range(len(FUNCTIONS)) if slots[i * _WORDS]]
    if not reported:
        return
    # Several functions may report the same fault; the first report is enough.
    where, offset, before, rows = slots[reported[0] * _WORDS : (reported[0] + 1) * _WORDS]
    report = message(FUNCTIONS[reported[0]], [_fault(where - 1, offset, before, rows)])
    try:
        raise HipError("hipStreamSynchronize", 1, "hipErrorInvalidValue", report)
    except HipError:  # not before it is raised: an exception between would leave the report unsaid
        for i in reported:
            slots[i * _WORDS] = 0
        raise


def _fault(i: int, offset: int, before: int, rows: int) -> str:
    required = f"group_offsets must be multiples of {BLOCK} where blocks span groups"
    return offset_fault(i, offset, before, rows) or requirement(required, f"group_offsets[{i}]={offset}")
