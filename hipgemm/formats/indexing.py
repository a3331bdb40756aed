"""Indices of arrays, as NumPy's: ints and slices, one for each axis. Uses no device."""

from __future__ import annotations

import operator
from types import EllipsisType
from typing import Any

from ..errors import fault, shown

Part = int | slice | None
Index = Part | EllipsisType | tuple[Part | EllipsisType, ...]


def parse_index(owner: str, index: Any, shape: tuple[int, ...], *, new_axes: bool = True) -> list[Part]:
    """Return an int from 0 or a slice for each axis of `shape`, and None for each new axis.

    >>> parse_index("DeviceArray", (..., None, -1), (2, 3))
    [slice(None, None, None), None, 2]
    """
    parts = index if isinstance(index, tuple) else (index,)
    given = sum(part is not None and part is not ... for part in parts)
    if given > len(shape):
        raise fault(IndexError, owner, f"at most {len(shape)} indices", given)
    ellipses = [i for i, part in enumerate(parts) if part is ...]
    if len(ellipses) > 1:
        raise IndexError(f"{owner}: an index can have only one ellipsis")
    at = ellipses[0] if ellipses else len(parts)
    rest = (slice(None),) * (len(shape) - given)
    found: list[Part] = []
    axis = 0
    for part in (*parts[:at], *rest, *parts[at + 1 :]):
        if part is None and new_axes:
            found.append(None)
            continue
        found.append(
            part if isinstance(part, slice) else _parse_int(owner, part, axis, shape[axis], new_axes)
        )
        axis += 1
    return found


def _parse_int(owner: str, i: Any, axis: int, n: int, new_axes: bool) -> int:
    """Parse an index of one element along an axis of length `n`."""
    try:
        if isinstance(i, bool):  # a mask for NumPy, not a number
            raise TypeError
        i = operator.index(i)
    except TypeError:
        required = f"an index must be an int, a slice{', None' if new_axes else ''} or ..."
        raise fault(TypeError, owner, required, type(i).__qualname__) from None
    if not -n <= i < n:
        raise IndexError(f"{owner}: index {shown(i)} is out of bounds for axis {axis} of size {n}")
    return int(i % n)
