"""Row views: an array as a matrix of rows along one axis, for kernels that work on rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..formats.strides import contiguous_strides, restride
from ..kernels.launch import copy_strided
from ..runtime.tally import count_copy
from .device_array import DeviceArray, new

Layout = tuple[tuple[int, ...], tuple[int, ...], np.dtype[Any]]  # shape, strides, type


@dataclass(frozen=True)
class Rows:
    """A view of an array as a matrix (rows, length), and the layout of results with the original axes."""

    array: DeviceArray
    rows: int
    length: int
    row_stride: int  # bytes
    stride: int  # bytes along the axis
    lead: tuple[int, ...]  # extents of the other axes
    axis: int  # the axis of the rows, counted from the end

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the original."""
        return self._insert(self.lead, self.length)

    def _insert(self, others: tuple[int, ...], own: int) -> tuple[int, ...]:
        """Insert the entry of the row axis among those of the other axes."""
        at = len(others) + 1 + self.axis
        return (*others[:at], own, *others[at:])

    @property
    def inner(self) -> int:
        """Elements of a contiguous array between neighbours along the axis; at least 1."""
        return max(1, math.prod(self.lead[len(self.lead) + 1 + self.axis :]))

    @property
    def matrix(self) -> tuple[int, int, int]:
        """Address and strides, the arguments of kernels."""
        return self.array.ptr, self.row_stride, self.stride

    def layout(self, dtype: np.dtype[Any], length: int, pitch: int, stride: int | None = None) -> Layout:
        """Return the layout of results with the original axes, their rows `pitch` bytes apart.

        `stride`: bytes between the elements of a row, if they are not contiguous.
        """
        strides = contiguous_strides(self.lead, pitch)
        return self._insert(self.lead, length), self._insert(strides, stride or dtype.itemsize), dtype


def as_rows(x: DeviceArray, axis: int, stream: int, function: str = "quantize") -> Rows:
    """View an array as rows along an axis. If no view is possible, copy it and count that for `function`."""
    at = len(x.shape) + axis
    length, stride = x.shape[at], x.strides[at]
    lead = x.shape[:at] + x.shape[at + 1 :]
    steps = x.strides[:at] + x.strides[at + 1 :]
    rows = math.prod(lead)
    merged = restride(lead, steps, (rows,))
    if merged is not None:
        return Rows(x, rows, length, merged[0], stride, lead, axis)
    count_copy(function, "x", "axes cannot be merged")
    item, row, inner = x.dtype.itemsize, length * x.dtype.itemsize, lead[-1]
    dense = new((*lead, length), x.dtype, x.device, stream)
    x._block.begin_read(stream)
    for i, index in enumerate(np.ndindex(*lead[:-1])):
        source = x.ptr + sum(n * s for n, s in zip(index, steps[:-1], strict=True))
        target = dense.ptr + i * inner * row
        copy_strided(x.device, stream, item, (source, steps[-1], stride), (target, row, item), inner, length)
    return Rows(dense, rows, length, row, item, lead, axis)


def contiguous_rows(x: DeviceArray, axis: int, stream: int, function: str) -> Rows:
    """View an array as contiguous rows along an axis, or copy it."""
    r = as_rows(x, axis, stream, function)
    item = x.dtype.itemsize
    if r.stride == item or r.length <= 1 or r.rows == 0:
        return r
    count_copy(function, "x", "rows not contiguous")
    dense = new((r.rows, r.length), x.dtype, x.device, stream)
    x._block.begin_read(stream)
    pitch = r.length * item
    copy_strided(x.device, stream, item, r.matrix, (dense.ptr, pitch, item), r.rows, r.length)
    return Rows(dense, r.rows, r.length, pitch, item, r.lead, r.axis)


def storage_axis(x: DeviceArray) -> int:
    """The contiguous axis of a quantized result: as in the source if that is a matrix, else the last axis."""
    if x.ndim == 2 and abs(x.strides[0]) < abs(x.strides[1]) and x.shape[0] > 1 and x.shape[1] > 1:
        return -2
    return -1


def round_up(n: int, step: int) -> int:
    """Round up to a multiple."""
    return -(-n // step) * step
