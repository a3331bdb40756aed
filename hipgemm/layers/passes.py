"""Passes over matrices on a device that are no product: other types, factors, sums down columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, new
from ..array.rows import as_rows, type_of
from ..formats.elements import F32, Format
from ..formats.strides import contiguous_strides
from ..kernels.launch import launch_tiles
from ..kernels.manifest import CHUNK_BYTES
from ..runtime import hip as _hip
from ..runtime.tally import count_call

SUM_ROWS = 64  # that one pass makes one of


def padded(shape: tuple[int, int], dtype: np.dtype[Any], device: int, stream: int) -> DeviceArray:
    """Make a matrix whose rows begin at 16 bytes and end in zeros: products read it in place."""
    rows, columns = shape
    width = columns * dtype.itemsize
    pitch = max(1, -(-width // CHUNK_BYTES)) * CHUNK_BYTES
    block = _hip.allocate(rows * pitch, device, stream)
    _hip.clear_rows(block.ptr + width, pitch, pitch - width, rows, stream)
    # No rows, no zeros behind them: what is transposed into rows of nothing needs some.
    return DeviceArray(block, block.ptr, shape, (pitch, dtype.itemsize), dtype, padded=rows > 0)


def rescale(
    x: DeviceArray,
    out: DeviceArray,
    stream: int,
    *,
    rows: DeviceArray | None = None,
    columns: DeviceArray | None = None,
    divide: bool = False,
) -> DeviceArray:
    """Write a matrix times (or over) float32 factors of rows or columns to `out`, whose rows are contiguous.

    Computed in float32 and rounded once. The device of both is current.
    """
    x._block.reading(stream)
    for factors in (rows, columns):
        if factors is not None:
            factors._block.reading(stream)
    out._block.writing(stream)
    m, n = x.shape
    pitch = out.strides[0] if m > 1 else n * out.dtype.itemsize
    launch_tiles(
        x.device,
        "rescale",
        m,
        n,
        stream,
        src=x.ptr,
        dst=out.ptr,
        row_factor=0 if rows is None else rows.ptr,
        col_factor=0 if columns is None else columns.ptr,
        src_row_stride=x.strides[0],
        src_col_stride=x.strides[1],
        dst_pitch=pitch,
        rows=m,
        cols=n,
        in_type=type_of(x),
        out_type=type_of(out),
        divide=divide,
    )
    count_call("linear", "rescale", 0, x.nbytes + out.nbytes)
    return out


def as_type(x: DeviceArray, to: Format, stream: int) -> DeviceArray:
    """Return a matrix in another type, itself if it has that already."""
    if x.dtype == to.dtype:
        return x
    rows, columns = x.shape
    return rescale(x, padded((rows, columns), to.dtype, x.device, stream), stream)


def sum_rows(x: DeviceArray, stream: int) -> DeviceArray:
    """Sum a matrix (M, N) down its columns to float32 (N,), always in the same order."""
    rows, columns = x.shape
    if rows == 0:
        total = new((1, columns), F32.dtype, x.device, stream)
        _hip.clear(total.ptr, total.nbytes, stream)
        return total[0]
    while True:
        left = -(-rows // SUM_ROWS)
        sums = new((left, columns), F32.dtype, x.device, stream)
        count_call("linear", "sum_rows", 0, x.nbytes + sums.nbytes)
        x._block.reading(stream)
        launch_tiles(
            x.device,
            "sum_rows",
            rows,
            columns,
            stream,
            src=x.ptr,
            dst=sums.ptr,
            src_row_stride=x.strides[0],
            src_col_stride=x.strides[1],
            rows=rows,
            cols=columns,
            in_type=type_of(x),
        )
        x, rows = sums, left
        if rows == 1:
            return x[0]


def with_lead(x: DeviceArray, lead: tuple[int, ...]) -> DeviceArray:
    """View a contiguous matrix (rows, columns) as (lead.., columns)."""
    shape = (*lead, x.shape[1])
    return x if len(lead) == 1 else x._view(x._address, shape, contiguous_strides(shape, x.dtype.itemsize))


def flat(x: DeviceArray, stream: int) -> DeviceArray:
    """View (.., K) as a matrix (rows, K); a copy where no view will do."""
    if x.ndim == 2:
        return x
    r = as_rows(x, -1, stream)
    return DeviceArray(r.array._block, r.array.ptr, (r.rows, r.length), (r.row_stride, r.stride), x.dtype)
