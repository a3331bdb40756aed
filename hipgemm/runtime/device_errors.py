"""Notes that kernels leave about offsets that the host never saw: read after each wait, and raised."""

from __future__ import annotations

import ctypes
import threading

from ..errors import HipError, message, sentence
from ..formats.elements import BLOCK
from ..formats.groups import offset_fault
from . import hip as _hip

# Who leaves notes, each in a place of its own: that of the first wrong offset counted from 1, its value, the
# one before it, and the number of rows. OffsetFault of src_hip/common/groups.hpp.
FUNCTIONS = ("grouped_matmul", "grouped_wgrad", "quantize_mxfp8")
_WORDS = 4

_notes: ctypes.Array[ctypes.c_int32] | None = None
_place = 0
_lock = threading.Lock()


def slot(function: str) -> int:
    """Return where the kernels of a function leave their note: memory of the host for all devices."""
    if _notes is None:
        _open()
    return _place + FUNCTIONS.index(function) * _WORDS * 4


def _open() -> None:
    global _notes, _place
    with _lock:
        if _notes is not None:
            return
        count = len(FUNCTIONS) * _WORDS
        portable_mapped = 1 | 2  # hipHostMalloc: for all devices
        memory = _hip.call("hipHostMalloc", count * 4, portable_mapped)
        notes = (ctypes.c_int32 * count).from_address(int(memory))
        ctypes.memset(ctypes.addressof(notes), 0, count * 4)
        _place = int(_hip.call("hipHostGetDevicePointer", memory, 0))
        _hip.after_wait.append(_look)
        _notes = notes


def _look() -> None:
    assert _notes is not None
    told = ""
    for i, function in enumerate(FUNCTIONS):
        if _notes[i * _WORDS]:
            where, offset, before, rows = _notes[i * _WORDS : (i + 1) * _WORDS]
            _notes[i * _WORDS] = 0
            # One fault may be met several times on its way.
            told = told or message(function, [_fault(where - 1, offset, before, rows)])
    if told:
        raise HipError("hipStreamSynchronize", 1, "hipErrorInvalidValue", told)


def _fault(i: int, offset: int, before: int, rows: int) -> str:
    required = f"group_offsets must be multiples of {BLOCK} where blocks do not heed them"
    return offset_fault(i, offset, before, rows) or sentence(required, f"group_offsets[{i}]={offset}")
