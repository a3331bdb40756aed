"""Copies of arrays of any layout between NumPy and device memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.strides import byte_range, contiguous_strides, rows_contiguous
from ..runtime import hip as _hip
from ..runtime import staging as _staging

_SPAN = 16 << 20  # a span of so many bytes is downloaded whole, including gaps


def address_of(x: npt.NDArray[Any]) -> int:
    """Address of a NumPy array's first element; also for ml_dtypes, which have no buffer protocol."""
    return int(x.__array_interface__["data"][0])


def upload(x: npt.NDArray[Any], dst: int, stream: int, pitch: int = 0) -> None:
    """Copy an array to contiguous device memory, or a matrix to rows of `pitch` bytes, and wait for it."""
    if x.size == 0:
        return
    _hip.require_no_capture_of(stream)
    try:
        enqueue_upload(x, dst, stream, pitch)
    finally:
        _hip.synchronize(stream)


def enqueue_upload(x: npt.NDArray[Any], dst: int, stream: int, pitch: int = 0) -> None:
    """Like `upload` without waiting. The array may change after the call: the stream reads a copy."""
    if x.size == 0:
        return
    item = x.dtype.itemsize
    if not x.flags.c_contiguous and not rows_contiguous(x.shape, x.strides, item):
        x = np.ascontiguousarray(x)
    rows, width = (x.shape[0], x.shape[1] * item) if x.ndim == 2 else (1, x.nbytes)
    source_pitch = x.strides[0] if x.ndim == 2 and rows > 1 else width
    _staging.upload(dst, pitch or width, address_of(x), source_pitch, width, rows, stream)


def download(
    ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], out: npt.NDArray[Any], stream: int
) -> None:
    """Copy an array of any layout into a NumPy array of any layout, and wait for it."""
    item = out.dtype.itemsize
    if strides == contiguous_strides(shape, item) and out.flags.c_contiguous:
        _staging.download(address_of(out), out.nbytes, ptr, out.nbytes, out.nbytes, 1, stream)
        return
    if rows_contiguous(shape, strides, item) and rows_contiguous(shape, out.strides, item):
        rows, columns = shape
        width = columns * item
        host, device = (s[0] if rows > 1 else width for s in (out.strides, strides))
        _staging.download(address_of(out), host, ptr, device, width, rows, stream)
        return
    low, high = byte_range(shape, strides, item, ptr)
    if high - low > max(_SPAN, 4 * out.nbytes):  # sparse: download slices along one axis
        axis = max(range(len(shape)), key=lambda i: abs(strides[i]) if shape[i] > 1 else -1)
        part = (*shape[:axis], 1, *shape[axis + 1 :])
        for i in range(shape[axis]):
            index = (*[slice(None)] * axis, slice(i, i + 1))
            download(ptr + i * strides[axis], part, strides, out[index], stream)
        return
    # Any other layout: download the whole span, and let NumPy select the elements.
    span = np.empty(high - low, np.uint8)
    _staging.download(address_of(span), span.nbytes, low, span.nbytes, span.nbytes, 1, stream)
    plain = np.dtype((np.void, item))  # as_strided does not support all ml_dtypes types
    first = span[ptr - low : ptr - low + item].view(plain)
    out.view(plain)[...] = np.lib.stride_tricks.as_strided(first, shape, strides)
