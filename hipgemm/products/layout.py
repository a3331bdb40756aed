"""Layouts of operands, copies to layouts that a kernel can read, and merged batch axes. Uses no device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..formats.elements import Format
from ..formats.operand import Operand
from ..formats.strides import contiguous_strides, merge, padded_pitch
from .problem import Problem
from .stages import Stages

Axes = tuple[int, ...]


# ---- layouts of host operands on a device ----------------------------------------------------------


def is_column_major(x: Operand) -> bool:
    """Whether the columns of an operand, but not its rows, are contiguous."""
    return not x.rows_contiguous and x.transposed.rows_contiguous


def host_copy_reason(x: Operand, k: int) -> str | None:
    """The reason why a host operand is copied on the host before the upload; None if it is not."""
    x = _packed(x, k)
    major = x.transposed if is_column_major(x) else x
    if not major.rows_contiguous:
        return "no axis contiguous; copied on the host"
    own = [axis for axis in range(len(x.shape) - 1) if major.strides[axis] or axis == len(x.shape) - 2]
    levels, _ = merge([major.shape[axis] for axis in own], [major.strides[axis] for axis in own])
    return "matrices not contiguous; copied on the host" if len(levels) > 1 and 0 not in levels else None


def host_copies(p: Problem) -> list[tuple[str, str]]:
    """The operands that are copied on the host first, and why."""
    if p.device is not None or p.given is None:
        return []
    named = zip(p.op.operands, p.given, strict=True)
    return [(name, why) for name, x in named if (why := host_copy_reason(x, p.k))]


def uploaded(x: Operand, k: int = -1) -> Operand:
    """Describe a host operand (.., rows, K) as it will be on a device: rows or columns padded to 16 bytes.

    `k` is K in elements; it shows whether elements are not packed yet.
    """
    if x.device is not None:
        return x
    x = _packed(x, k)
    columns = is_column_major(x)
    vectors, length = x.shape[:-3:-1] if columns else x.shape[-2:]
    pitch = padded_pitch(length, x.format.itemsize)
    steps: list[int] = []
    step = vectors * pitch
    for n, stride in zip(reversed(x.shape[:-2]), reversed(x.strides[:-2]), strict=True):
        steps.insert(0, step if stride else 0)
        step *= n if stride else 1
    last = (x.format.itemsize, pitch) if columns else (pitch, x.format.itemsize)
    return replace(
        x,
        strides=(*steps, *last),
        address=0,
        device=0,
        padded=True,
        scale_strides=_uploaded_scales(x, k) if x.scale_strides else (),
    )


def _uploaded_scales(x: Operand, k: int) -> Axes:
    """Strides of uploaded scales: contiguous, with K as the last axis."""
    block = x.format.block
    extents = [n if step else 1 for n, step in zip(x.shape, x.scale_strides, strict=True)]
    extents[-1] = -(-k // block) if block else 1
    if x.block is not None:
        extents[-2:] = [-(-n // side) for n, side in zip(x.shape[-2:], x.block, strict=True)]
    strides = contiguous_strides(tuple(extents), 1 if block or x.e8m0 else 4)
    return tuple(step if n > 1 else 0 for n, step in zip(extents, strides, strict=True))


def _packed(x: Operand, k: int) -> Operand:
    """Describe elements on the host as they will be packed: in contiguous rows."""
    if not x.format.is_packed or x.shape[-1] != k:
        return x
    shape = (*x.shape[:-1], x.format.packed_bytes(k))
    own = own_axes(x.strides)
    lead = tuple(shape[axis] for axis in own)
    steps = spread(contiguous_strides(lead, shape[-2] * shape[-1]), own, len(shape) - 2)
    return replace(x, shape=shape, strides=(*steps, shape[-1], 1))


def on_device(p: Problem) -> Problem:
    """The product as it is launched: operands on a device, an output, and merged leading axes.

    If all products share `b` and the rows of `a` are equally spaced, the batch is merged into M.
    """
    a, b = (uploaded(x, p.k) for x in (p.a, p.b))
    out = p.out
    if out is None or out.device is None:
        shape, strides = p.shape, contiguous_strides(p.shape, p.out_format.itemsize)
        if p.stages and p.stages.quantized:
            shape = (*shape[:-1], p.out_format.packed_bytes(p.columns))
            strides = quantized_strides(p.shape, p.out_format)
        out = Operand(shape, strides, p.out_format, 0, p.device or 0)
    stages = _uploaded_stages(p.stages)
    if p.op.ragged:
        return replace(p, a=a, b=b, out=out, stages=stages)
    views = [stages.aux, stages.residual] if stages else [None, None]
    parts = [a.strides, b.strides, out.strides, _scale_strides(a), _scale_strides(b)]
    parts += [(0,) * len(out.strides) if x is None else x.strides for x in views]
    batch, levels = merge(p.batch, *(steps[:-2] for steps in parts))
    steps = [list(level) for level in levels]
    rows, m = [part[-2] for part in parts], p.m
    moving = [0, 2, 3]  # a, out and the scales of a; aux and residual
    moving += [i for i, x in zip((5, 6), views, strict=True) if x is not None]
    while batch and m * batch[-1] < 2**31 and not (steps[1][-1] or steps[4][-1]):
        if a.format.block and len(batch) > 1:
            break  # blocked scales are reordered for all rows at once, or for each product
        if a.block is not None and a.block[0] != 1:
            break  # blocks end with each product
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

    if stages:
        aux, residual = (
            None if x is None else part(x, i, (m, x.shape[-1])) for i, x in zip((5, 6), views, strict=True)
        )
        stages = replace(stages, aux=aux, residual=residual)
    return replace(
        p,
        m=m,
        a=part(a, 0, (m, a.shape[-1]), 3),
        b=part(b, 1, (b.shape[-2], b.shape[-1]), 4),
        out=part(out, 2, (m, out.shape[-1])),
        batch=batch,
        stages=stages,
    )


def quantized_strides(shape: Axes, form: Format) -> Axes:
    """Strides of a quantized result in bytes: rows padded to 16 bytes."""
    pitch = padded_pitch(form.packed_bytes(shape[-1]), 1)
    return (*contiguous_strides(shape[:-1], pitch), 1)


def _uploaded_stages(stages: Stages | None) -> Stages | None:
    """The stages with aux and residual as they will be on a device."""
    if stages is None:
        return None

    def view(x: Operand | None) -> Operand | None:
        if x is None or x.device is not None:
            return x
        return replace(x, strides=contiguous_strides(x.shape, x.format.itemsize), address=0, device=0)

    return replace(stages, aux=view(stages.aux), residual=view(stages.residual))


def _scale_strides(x: Operand) -> Axes:
    return x.scale_strides or (0,) * len(x.shape)


# ---- axes ------------------------------------------------------------------------------------------


class Batch:
    """Leading axes: a launch covers the two longest; each entry of the others needs its own launch."""

    def __init__(self, extents: Axes):
        longest = sorted(range(len(extents)), key=lambda axis: extents[axis])[-2:]
        self._extents = extents
        self._stepped = sorted(longest)
        self._launched = [axis for axis in range(len(extents)) if axis not in longest]
        stepped = [extents[axis] for axis in self._stepped]
        self.inner = stepped[-1] if stepped else 1
        self.count = math.prod(stepped)

    def pair(self, steps: Sequence[int]) -> tuple[int, int]:
        """Outer and inner stride of a launch."""
        own = [steps[axis] for axis in self._stepped]
        return (own[0] if len(own) > 1 else 0), (own[-1] if own else 0)

    def starts(self, *parts: Sequence[int]) -> tuple[Axes, ...]:
        """The offset of each launch in each operand, in bytes; empty for one launch."""
        if not self._launched:
            return ()
        return tuple(
            tuple(
                sum(i * part[axis] for i, axis in zip(index, self._launched, strict=True)) for part in parts
            )
            for index in np.ndindex(*(self._extents[axis] for axis in self._launched))
        )


def own_axes(strides: Axes) -> list[int]:
    """The leading axes that are not broadcast."""
    return [axis for axis, step in enumerate(strides[:-2]) if step]


def spread(steps: Axes, own: Sequence[int], count: int) -> Axes:
    """Strides of all leading axes, with 0 for broadcast ones."""
    found = [0] * count
    for axis, step in zip(own, steps, strict=True):
        found[axis] = step
    return tuple(found)


# ---- copies ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A copy of an operand: its shape without broadcast axes, and the strides of source and target."""

    reason: str
    item: int
    shape: Axes
    source: Axes
    target: Axes
    padded: int  # columns including padding
    nbytes: int

    @property
    def back(self) -> Copy:
        """The copy in the opposite direction."""
        return replace(self, source=self.target, target=self.source)


def copy_to_rows(reason: str, item: int, shape: Axes, strides: Axes, pitch: int) -> Copy:
    """Copy matrices (.., rows, columns) to contiguous rows, `pitch` bytes apart."""
    own = own_axes(strides)
    lead = tuple(shape[axis] for axis in own)
    rows, columns = shape[-2:]
    matrix = rows * pitch
    return Copy(
        reason,
        item,
        (*lead, rows, columns),
        (*(strides[axis] for axis in own), *strides[-2:]),
        (*contiguous_strides(lead, matrix), pitch, item),
        pitch // item,
        matrix * math.prod(lead),
    )
