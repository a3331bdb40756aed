"""Arithmetic of shapes and strides."""

from __future__ import annotations

from collections.abc import Sequence

Axes = tuple[int, ...]


def contiguous_strides(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a C-contiguous array.

    >>> contiguous_strides((2, 3, 4), 2)
    (24, 8, 2)
    """
    strides: list[int] = []
    step = itemsize
    for n in reversed(shape):
        strides.insert(0, step)
        step *= max(n, 1)
    return tuple(strides)


def merge(shape: Sequence[int], *strides: Sequence[int]) -> tuple[Axes, list[Axes]]:
    """Merge adjacent axes that one stride can traverse, in all arrays.

    >>> merge((2, 3, 1), (24, 8, 4), (0, 0, 0))
    ((6,), [(8,), (0,)])
    >>> merge((2, 3), (24, 8), (0, 8))
    ((2, 3), [(24, 8), (0, 8)])
    """
    levels: list[tuple[int, Axes]] = []
    for n, *steps in zip(shape, *strides, strict=True):
        if n == 1:
            continue
        inner = tuple(steps)
        if levels and all(before == n * step for before, step in zip(levels[-1][1], inner, strict=True)):
            levels[-1] = levels[-1][0] * n, inner
        else:
            levels.append((n, inner))
    return tuple(n for n, _ in levels), [tuple(steps[i] for _, steps in levels) for i in range(len(strides))]


def restride(
    shape: tuple[int, ...], strides: tuple[int, ...], extents: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return the strides of an array in another shape of the same size; None if that needs a copy.

    >>> restride((2, 3, 4), (48, 16, 4), (6, 2, 2)), restride((2, 3), (4, 8), (6,)), restride((), (), (1,))
    ((16, 8, 4), None, (0,))
    """
    if 0 in extents:
        return contiguous_strides(extents, strides[-1] if strides else 1)
    merged, (steps,) = merge(shape, strides)
    runs = list(zip(merged, steps, strict=True))
    found: list[int] = []
    left, step = runs.pop() if runs else (1, 0)
    for n in reversed(extents):
        if n == 1:
            found.append(step * left)
            continue
        if left == 1 and runs:
            left, step = runs.pop()
        if left % n:
            return None
        found.append(step)
        left, step = left // n, step * n
    return tuple(reversed(found))


def byte_range(
    shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int, address: int
) -> tuple[int, int]:
    """Return the addresses of an array's first byte and of the byte after its last.

    >>> byte_range((3, 4), (-8, 2), 2, 100)
    (84, 108)
    """
    if 0 in shape:
        return address, address
    low = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    high = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    return address + low, address + high + itemsize


def swap_last_axes(axes: tuple[int, ...]) -> tuple[int, ...]:
    """Swap the last two entries of a shape or of strides."""
    return (*axes[:-2], *axes[:-3:-1])


def padded_pitch(length: int, itemsize: int) -> int:
    """Pitch in bytes of rows that are padded for a kernel: a multiple of 16, at least 16."""
    return max(1, -(-length * itemsize // 16)) * 16


def rows_contiguous(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Whether the rows of a matrix are contiguous, do not overlap, and have increasing addresses."""
    if len(shape) != 2:
        return False
    rows, columns = shape
    return (columns <= 1 or strides[1] == itemsize) and (rows <= 1 or strides[0] >= columns * itemsize)
