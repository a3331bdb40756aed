"""Arithmetic of shapes and strides."""

from __future__ import annotations

from collections.abc import Sequence


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of an array whose last axis runs fastest.

    >>> contiguous_strides((2, 3, 4), 2)
    (24, 8, 2)
    """
    strides: list[int] = []
    step = itemsize
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(n, 1)
    return tuple(strides)


def restride(
    shape: tuple[int, ...], strides: tuple[int, ...], extents: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides of an array in another shape of the same size; None if it takes a copy.

    >>> restride((2, 3, 4), (48, 16, 4), (6, 2, 2)), restride((2, 3), (4, 8), (6,)), restride((), (), (1,))
    ((16, 8, 4), None, (0,))
    """
    if 0 in extents:
        return contiguous_strides(extents, strides[-1] if strides else 1)
    runs: list[list[int]] = []  # extent and stride of what lies in memory as one, from the last axis on
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n == 1:
            continue
        if runs and stride == runs[-1][0] * runs[-1][1]:
            runs[-1][0] *= n
        else:
            runs.append([n, stride])
    found: list[int] = []
    left, step = runs.pop(0) if runs else (1, 0)
    for n in reversed(extents):
        if n == 1:
            found.append(step * left)
            continue
        if left == 1 and runs:
            left, step = runs.pop(0)
        if left % n:
            return None
        found.append(step)
        left, step = left // n, step * n
    return tuple(reversed(found))


def byte_range(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, address: int
) -> tuple[int, int]:
    """Return the first byte of an array and the one behind its last.

    >>> byte_range((3, 4), (-8, 2), 2, 100)
    (84, 108)
    """
    if 0 in shape:
        return address, address
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return address + low, address + high + itemsize


def exchanged(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Exchange the last two of what belongs to the axes of an array."""
    return (*axes[:-2], *axes[:-3:-1])


def line_pitch(along: int, itemsize: int) -> int:
    """Bytes from line to line of storage made for a kernel: whole pieces of 16, at least one."""
    return max(1, -(-along * itemsize // 16)) * 16


def rows_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether a matrix is rows of adjacent elements, and the rows follow each other upwards."""
    if len(shape) != 2:
        return False
    rows, columns = shape
    return (columns <= 1 or strides[1] == itemsize) and (rows <= 1 or strides[0] >= columns * itemsize)
