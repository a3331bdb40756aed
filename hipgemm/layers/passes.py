"""Passes over device matrices: conversion, scaling, the gradient of an activation, column sums.

`function` is the public function that was called, for the usage counts.
"""

from __future__ import annotations

from ..array.device_array import DeviceArray, new, new_padded
from ..array.rows import as_rows
from ..formats.elements import F32, Format, known_format
from ..kernels.launch import Value, launch_tiles
from ..quantize.gradient import Gradient
from ..runtime import hip as _hip
from ..runtime.tally import Call, count_call
from .elementwise import elementwise

SUM_ROWS = 64  # rows that one pass reduces to one


def source(x: DeviceArray | Gradient, stream: int) -> dict[str, Value]:
    """Return the kernel arguments that describe a source matrix, which is read on the stream."""
    rows, columns = x.shape
    if isinstance(x, Gradient):
        aux, factors = x.begin_read(stream)
        return {"src": x.dy.ptr, "aux": aux, "factors": factors, "rows": rows, "cols": columns} | x.arguments
    x._block.begin_read(stream)
    row, column = x.strides
    where: dict[str, Value] = {"src": x.ptr, "src_row_stride": row, "src_col_stride": column}
    return where | {"rows": rows, "cols": columns, "in_type": known_format(x.dtype)}


def rescale(
    function: str,
    x: DeviceArray,
    out: DeviceArray,
    stream: int,
    *,
    rows: DeviceArray | None = None,
    columns: DeviceArray | None = None,
    divide: bool = False,
) -> DeviceArray:
    """Multiply (or divide) a matrix by float32 factors of rows, or of columns.

    It is computed in float32 and rounded once. The device of both matrices is current.
    """
    factors = None
    if rows is not None:
        factors = DeviceArray(rows._block, rows.ptr, x.shape, (rows.strides[0], 0), rows.dtype)
    elif columns is not None:
        factors = DeviceArray(columns._block, columns.ptr, x.shape, (0, columns.strides[0]), columns.dtype)
    operation = "copy" if factors is None else "/" if divide else "*"
    return elementwise(function, x, out, stream, operation, factors)


def as_type(function: str, x: DeviceArray, to: Format, stream: int) -> DeviceArray:
    """Convert matrices to another type; return the array itself if it has that type."""
    if x.dtype == to.dtype:
        return x
    out = new_padded(x.shape, to.dtype, x.device, stream)
    rescale(function, flat(function, x, stream), flat(function, out, stream), stream)
    return out


def reader(kernel: str, x: DeviceArray | Gradient) -> str:
    """Name the kernel that reads a matrix, or the one that forms a gradient as it is read."""
    return f"{kernel}_gradient" if isinstance(x, Gradient) else kernel


def sum_rows(function: str, x: DeviceArray | Gradient, stream: int) -> DeviceArray:
    """Sum a matrix (M, N) over its rows to float32 (N,), in a fixed order."""
    (rows, columns), device = x.shape, x.device
    if rows == 0:
        total = new((columns,), F32.dtype, device, stream)
        _hip.clear(total.ptr, total.nbytes, stream)
        return total
    while True:
        left = -(-rows // SUM_ROWS)
        sums = new((left, columns), F32.dtype, device, stream)
        kernel = reader("sum_rows", x)
        count_call(Call(function, kernel, 0, x.nbytes + sums.nbytes))
        launch_tiles(device, kernel, rows, columns, stream, **source(x, stream), dst=sums.ptr)
        x, rows = sums, left
        if rows == 1:
            return x[0]


def sum_groups(
    function: str, x: DeviceArray | Gradient, offsets: DeviceArray, groups: int, stream: int
) -> DeviceArray:
    """Sum the rows of each group of a matrix (M, N) to float32 (groups, N), in a fixed order."""
    rows, columns = x.shape
    sums = new((groups, columns), F32.dtype, x.device, stream)
    offsets._block.begin_read(stream)
    where = source(x, stream) | {"offsets": offsets.ptr, "groups": groups, "dst": sums.ptr}
    if rows == 0:
        _hip.clear(sums.ptr, sums.nbytes, stream)
        return sums
    kernel = reader("sum_groups", x)
    launch_tiles(x.device, kernel, groups, columns, stream, **where)
    count_call(Call(function, kernel, 0, x.nbytes + sums.nbytes))
    return sums


def activation_gradient(
    function: str,
    dy: DeviceArray,
    aux: DeviceArray,
    to: Format,
    stream: int,
    activation: str | None,
    glu: str | None,
) -> DeviceArray:
    """Multiply a gradient by the activation's derivative at `aux`, in float32, and round once."""
    rows, columns = dy.shape
    out = new_padded(aux.shape, to.dtype, dy.device, stream)
    aux._block.begin_read(stream)
    count_call(Call(function, "activation_gradient", 0, dy.nbytes + aux.nbytes + out.nbytes))
    launch_tiles(
        dy.device,
        "activation_gradient",
        rows,
        columns,
        stream,
        **source(dy, stream),
        aux=aux.ptr,
        dst=out.ptr,
        aux_pitch=aux.strides[0],
        dst_pitch=out.strides[0],
        aux_type=known_format(aux.dtype),
        out_type=to,
        activation=activation or 0,
        glu=glu or 0,
    )
    return out


def flat(function: str, x: DeviceArray, stream: int) -> DeviceArray:
    """View (.., K) as a matrix (rows, K), or copy it if no view is possible."""
    if x.ndim == 2:
        return x
    r = as_rows(x, -1, stream, function)
    return DeviceArray(r.array._block, r.array.ptr, (r.rows, r.length), (r.row_stride, r.stride), x.dtype)
