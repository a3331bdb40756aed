"""Groups of rows, such as the tokens of each expert: offsets, and whether they are any. Pure: no device."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Reason, sentence
from .elements import BLOCK
from .scaled import Resident, array_hint, is_array, place_name

INT32 = np.dtype(np.int32)


def offset_reasons(
    offsets: object, rows: int | None, groups: int | None = None, place: int | None = None
) -> list[Reason]:
    """Say what is wrong with offsets: group g is rows ``offsets[g]`` to ``offsets[g + 1]`` of `rows`.

    The values of those on a device are not looked at; `place` is the device that they must be on.

    Examples
    --------
    >>> print(*offset_reasons(np.array([0, 5, 3]), 8))
    group_offsets must not decrease; got group_offsets[2]=3 after group_offsets[1]=5
    """
    if not is_array(offsets):
        required = "group_offsets must be a numpy.ndarray or a hipgemm.DeviceArray"
        got = type(offsets).__qualname__
        return [Reason(TypeError, "type", sentence(required, got, array_hint(offsets)))]
    found = []
    resident = isinstance(offsets, Resident)
    if isinstance(offsets, Resident) and place is not None and offsets.device != place:
        required = f"group_offsets must be on {place_name(place)} like the rows"
        found.append(Reason(TypeError, "residency", sentence(required, place_name(offsets.device))))
    if offsets.dtype != INT32 if resident else offsets.dtype.kind not in "iu":
        required = "group_offsets.dtype must be int32"
        found.append(Reason(TypeError, "dtype", sentence(required, offsets.dtype)))
    shape = offsets.shape
    if len(shape) != 1 or shape[0] < 1 or groups not in (None, shape[0] - 1):
        want = "(G+1,)" if groups is None else f"(G+1,)=({groups + 1},)"
        required = f"group_offsets.shape must be {want}"
        found.append(Reason(ValueError, "shape", sentence(required, shape)))
    elif resident and shape[0] > 1 and offsets.strides[0] != INT32.itemsize:
        required = "group_offsets on a device must be contiguous"
        found.append(Reason(ValueError, "stride", sentence(required, f"strides={offsets.strides}")))
    if found or isinstance(offsets, Resident) or (rows is not None and in_order(offsets, rows)):
        return found
    return _order_reasons(offsets, rows)


def _order_reasons(offsets: npt.NDArray[Any], rows: int | None) -> list[Reason]:
    """Say which offset is out of order."""
    values = [int(x) for x in offsets]  # of any size and sign
    if values[0] != 0:
        required = "group_offsets[0] must be 0"
        return [Reason(ValueError, "offsets", sentence(required, values[0]))]
    for i in range(1, len(values)):
        if values[i] < values[i - 1]:
            got = f"group_offsets[{i}]={values[i]} after group_offsets[{i - 1}]={values[i - 1]}"
            return [Reason(ValueError, "offsets", sentence("group_offsets must not decrease", got))]
    if rows is not None and values[-1] > rows:
        i = next(i for i, value in enumerate(values) if value > rows)
        required = f"group_offsets must be at most {rows}, the number of rows"
        return [Reason(ValueError, "offsets", sentence(required, f"group_offsets[{i}]={values[i]}"))]
    return []


def in_order(offsets: npt.NDArray[Any], rows: int) -> bool:
    """Whether offsets on the host are right, without words for what is wrong.

    Examples
    --------
    >>> in_order(np.array([0, 3, 3, 8]), 8), in_order(np.array([0, 5, 3]), 8)
    (True, False)
    """
    return bool(offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all() and offsets[-1] <= rows)


def same_offsets(x: Any, y: Any) -> bool:
    """Whether two arrays are the same offsets: equal on the host, or the same memory of a device."""
    if isinstance(x, Resident) and isinstance(y, Resident):
        return x.ptr == y.ptr and x.shape == y.shape and x.device == y.device
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return bool(np.array_equal(x, y))
    return False


def straddling(offsets: npt.NDArray[Any]) -> int | None:
    """Return the first offset that is inside a block, where blocks are counted from the first row.

    Examples
    --------
    >>> straddling(np.array([0, 64, 96])), straddling(np.array([0, 33, 96]))
    (None, 1)
    """
    inside = np.flatnonzero(offsets % BLOCK)
    return int(inside[0]) if inside.size else None


def group_slots(rows: int, groups: int, slot_rows: int) -> int:
    """Return how many slots of so many rows cover all groups and the rest, wherever these begin.

    As src_hip/groups.hpp counts them: without knowing the offsets.

    Examples
    --------
    >>> group_slots(128, 3, 64)
    6
    """
    return rows // slot_rows + groups + 1


def most_blocks(rows: int, groups: int) -> int:
    """Return the most blocks that so many rows make in so many groups.

    Examples
    --------
    >>> most_blocks(3, 8), most_blocks(128, 3)
    (3, 7)
    """
    return min(rows, rows // BLOCK + groups)
