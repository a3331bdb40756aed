"""Group offsets of rows, such as the tokens of each expert, and their checks. Uses no device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import Reason, requirement
from .arrays import Resident
from .checks import Checks
from .elements import BLOCK

INT32 = np.dtype(np.int32)


def offset_reasons(
    offsets: object, rows: int | None, groups: int | None = None, device: int | None = None
) -> list[Reason]:
    """Return the faults of offsets: group g has the rows ``offsets[g]`` to ``offsets[g + 1]`` of `rows`.

    Values on a device are not checked here; `device` is where they must be.

    >>> print(*offset_reasons(np.array([0, 5, 3]), 8))
    group_offsets must not decrease; got group_offsets[2]=3 after group_offsets[1]=5
    """
    checks = Checks()
    x = checks.array("group_offsets", offsets)
    if x is None:
        return checks.found
    if isinstance(x, Resident) and device is not None:
        checks.same_device("group_offsets", x.device, device, "the rows")
    if x.dtype != INT32 if isinstance(x, Resident) else x.dtype.kind not in "iu":
        checks.add(TypeError, "dtype", "group_offsets.dtype must be int32", x.dtype)
    shape = x.shape
    if len(shape) != 1 or shape[0] < 1 or groups not in (None, shape[0] - 1):
        want = "(G+1,)" if groups is None else f"(G+1,)=({groups + 1},)"
        checks.add(ValueError, "shape", f"group_offsets.shape must be {want}", shape)
    elif isinstance(x, Resident):
        checks.contiguous("group_offsets", x)
    if not (checks.found or isinstance(x, Resident) or (rows is not None and in_order(x, rows))):
        pairs = enumerate(pairwise([0, *map(int, x)]))  # of any size and sign
        texts = (offset_fault(i, offset, before, rows) for i, (before, offset) in pairs)
        if text := next(filter(None, texts), ""):
            checks.found.append(Reason(ValueError, "offsets", text))
    return checks.found


def offset_fault(i: int, offset: int, before: int, rows: int | None) -> str:
    """The fault of an offset that follows another; empty if there is none."""
    got = f"group_offsets[{i}]={offset}"
    if i == 0 and offset != 0:
        return requirement("group_offsets[0] must be 0", offset)
    if offset < before:
        return requirement("group_offsets must not decrease", f"{got} after group_offsets[{i - 1}]={before}")
    if rows is not None and offset > rows:
        return requirement(f"group_offsets must be at most {rows}, the number of rows", got)
    return ""


def in_order(offsets: npt.NDArray[Any], rows: int) -> bool:
    """Whether offsets on the host are valid.

    >>> in_order(np.array([0, 3, 3, 8]), 8), in_order(np.array([0, 5, 3]), 8)
    (True, False)
    """
    return bool(offsets[0] == 0 and (offsets[1:] >= offsets[:-1]).all() and offsets[-1] <= rows)


def same_offsets(x: Any, y: Any) -> bool:
    """Whether two arrays are the same offsets: equal on the host, or the same device memory."""
    if isinstance(x, Resident) and isinstance(y, Resident):
        if x.freed or y.freed:
            return x is y
        return x.ptr == y.ptr and x.shape == y.shape and x.device == y.device
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return bool(np.array_equal(x, y))
    return False


def straddling(offsets: npt.NDArray[Any]) -> int | None:
    """Return the first offset that is not a multiple of the block size, or None.

    >>> straddling(np.array([0, 64, 96])), straddling(np.array([0, 33, 96]))
    (None, 1)
    """
    inside = np.flatnonzero(offsets % BLOCK)
    return int(inside[0]) if inside.size else None


def group_slots(rows: int, groups: int, slot_rows: int) -> int:
    """Return how many slots of `slot_rows` rows cover all groups and the rest, for any offsets.

    The same formula as in groups.hpp.

    >>> group_slots(128, 3, 64)
    6
    """
    return rows // slot_rows + groups + 1


def most_blocks(rows: int, groups: int) -> int:
    """Return the maximum number of blocks of `rows` rows in `groups` groups.

    >>> most_blocks(3, 8), most_blocks(128, 3)
    (3, 7)
    """
    return min(rows, rows // BLOCK + groups)
