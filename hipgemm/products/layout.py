"""How products along leading axes become as few levels as a kernel steps through. Pure: no device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..formats.operand import Operand
from ..formats.strides import line_pitch
from .problem import GemmProblem

Axes = tuple[int, ...]


def merge(shape: Sequence[int], *strides: Sequence[int]) -> tuple[Axes, list[Axes]]:
    """Join neighbouring axes wherever one stride walks through both, in every array at once.

    Examples
    --------
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


def lies_turned(x: Operand) -> bool:
    """Whether the columns of an operand are its lines in memory, because its rows are not contiguous."""
    return not x.rows_contiguous and x.transposed.rows_contiguous


def host_copy_reason(x: Operand, k: int) -> str | None:
    """Say why an operand of the host is laid out anew there, before it goes up line by line; None if not."""
    x = _packed(x, k)
    lines = x.transposed if lies_turned(x) else x
    if not lines.rows_contiguous:
        return "no axis contiguous; copied on the host"
    own = [axis for axis in range(len(x.shape) - 1) if lines.strides[axis] or axis == len(x.shape) - 2]
    levels, _ = merge([lines.shape[axis] for axis in own], [lines.strides[axis] for axis in own])
    return "matrices apart; copied on the host" if len(levels) > 1 and 0 not in levels else None


def uploaded(x: Operand, k: int = -1) -> Operand:
    """Describe an operand (.., rows, K) of the host as it will lie on a device: lines padded to 16 bytes.

    `k` is K in numbers, to tell those of 4 bits that are yet to be packed.
    """
    if x.device is not None:
        return x
    x = _packed(x, k)
    turned = lies_turned(x)
    lines, along = x.shape[:-3:-1] if turned else x.shape[-2:]
    pitch = line_pitch(along, x.format.itemsize)
    steps: list[int] = []
    step = lines * pitch
    for n, stride in zip(reversed(x.shape[:-2]), reversed(x.strides[:-2]), strict=True):
        steps.insert(0, step if stride else 0)
        step *= n if stride else 1
    last = (x.format.itemsize, pitch) if turned else (pitch, x.format.itemsize)
    return replace(x, strides=(*steps, *last), address=0, device=0, padded=True)


def _packed(x: Operand, k: int) -> Operand:
    """Describe numbers of 4 bits on the host as what they are packed into: rows one behind the other."""
    if x.format.bits != 4 or x.shape[-1] != k:
        return x
    shape = (*x.shape[:-1], -(-k // 2))
    strides = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return replace(x, shape=shape, strides=strides)


def collapsed(p: GemmProblem) -> GemmProblem:
    """Return the same product with an output, on one device, and with as few leading axes as can be.

    Axes that lie in memory as one become one. Where all products share `b`, and the rows of `a` go on
    from one to the next, so does M.
    """
    a, b = uploaded(p.a, p.k), uploaded(p.b.transposed, p.k)
    out = p.out
    if out is None or out.device is None:
        out = _new_output(p)
    parts = [a.strides, b.strides, out.strides, _scales(a), _scales(b)]
    batch, levels = merge(p.batch, *(steps[:-2] for steps in parts))
    steps = [list(level) for level in levels]
    rows, m = [part[-2] for part in parts], p.m
    moving = (0, 2, 3)  # a, out and the scales of a
    while batch and m * batch[-1] < 2**31 and not (steps[1][-1] or steps[4][-1]):
        if a.format.block and len(batch) > 1:
            break  # blocked scales are brought to the order of products for all rows, or product by product
        if steps[0][-1] == 0 or (m != 1 and any(steps[i][-1] != m * rows[i] for i in moving)):
            break
        for i in moving:
            rows[i] = steps[i][-1] if m == 1 else rows[i]
        m *= batch[-1]
        batch = batch[:-1]
        for step in steps:
            step.pop()

    def part(x: Operand, i: int, shape: tuple[int, int], scales: int | None = None) -> Operand:
        made = replace(x, shape=(*batch, *shape), strides=(*steps[i], rows[i], parts[i][-1]))
        if scales is None or not x.scale_strides:
            return made
        return replace(made, scale_strides=(*steps[scales], rows[scales], parts[scales][-1]))

    return replace(
        p,
        m=m,
        a=part(a, 0, (m, a.shape[-1]), 3),
        b=part(b, 1, (b.shape[-2], b.shape[-1]), 4).transposed,
        out=part(out, 2, (m, p.n)),
        batch=batch,
    )


def _scales(x: Operand) -> Axes:
    return x.scale_strides or (0,) * len(x.shape)


def _new_output(p: GemmProblem) -> Operand:
    shape = (*p.batch, p.m, p.n)
    strides = tuple(p.out_format.itemsize * math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return Operand(shape, strides, p.out_format, 0, p.device or 0)
