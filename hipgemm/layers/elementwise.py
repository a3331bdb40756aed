"""Elementwise work on arrays of a device: conversion, assignment, sums and products with broadcasting."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np

from ..array.device_array import DeviceArray, new, parse_dtype, upload_async
from ..errors import error_context
from ..formats.arrays import array_hint, is_array
from ..formats.checks import Checks, python_number
from ..formats.elements import BF16, FORMATS, known_format
from ..formats.operand import bytes_of, overlap
from ..formats.strides import merge
from ..kernels.launch import Value, bind_tiles, copy_strided
from ..runtime import hip as _hip
from ..runtime.tally import Call, count_call

FLOATS = tuple(FORMATS.values())
OPERATIONS = {"copy": 0, "+": 1, "*": 2, "/": 3}  # codes for the kernel
_LINE = 128  # elements of a row into which a long line is divided
_WORD = 4  # bytes of the largest element that is copied at once
_STREAM = 0  # operators have no argument for it


def elementwise(
    function: str,
    x: DeviceArray,
    out: DeviceArray,
    stream: int,
    operation: str = "copy",
    other: DeviceArray | None = None,
    scalar: float = 0.0,
) -> DeviceArray:
    """Write `x`, or its sum, product or quotient with `other` or `scalar`, rounded once.

    All arrays have the shape of `out`; strides of the others may be 0. The device of the arrays is current.
    """
    if not _has_rows(out):
        dense = new_like(out, out.dtype, stream)
        elementwise(function, x, dense, stream, operation, other, scalar)
        return copy_elements(dense, out, stream)
    second = x if other is None else other
    for read in (x, second):
        read._block.begin_read(stream)
    out._block.begin_write(stream)
    shape, strides = _merged(out, x, second)
    if not shape or strides[2][-1] != out.dtype.itemsize:
        shape, strides = (*shape, 1), [(*steps, out.dtype.itemsize) for steps in strides]
    fixed: dict[str, Value] = {
        "in_type": known_format(x.dtype),
        "other_type": known_format(second.dtype),
        "out_type": known_format(out.dtype),
        "operation": OPERATIONS[operation],
        "scalar": scalar,
    }
    at = x.ptr, second.ptr, out.ptr
    if 0 not in shape:
        for piece in _pieces(shape, strides):
            _launch(x.device, stream, fixed, at, other is not None, *piece)
    reads = [x] if other is None else [x, other]
    count_call(Call(function, "elementwise", 0, sum(y.nbytes for y in (*reads, out))))
    return out


def convert(function: str, x: DeviceArray, out: DeviceArray, stream: int) -> DeviceArray:
    """Write `x` to `out`, rounded if its type is another one; strides of `x` may be 0."""
    return (copy_elements if x.dtype == out.dtype else partial(elementwise, function))(x, out, stream)


def _memory_order(x: DeviceArray) -> list[int]:
    """The axes of an array from the largest stride to the smallest."""
    return sorted(range(x.ndim), key=lambda i: -abs(x.strides[i]))


def _merged(out: DeviceArray, *arrays: DeviceArray) -> tuple[tuple[int, ...], Steps]:
    """Shape and strides of arrays and of `out`, axes in the order of `out` in memory, and merged."""
    axes = _memory_order(out)
    strides = [[x.strides[i] for i in axes] for x in (*arrays, out)]
    return merge([out.shape[i] for i in axes], *strides)


def _has_rows(x: DeviceArray) -> bool:
    """Whether the elements of an array's smallest stride are contiguous."""
    shape, (steps,) = _merged(x)
    return not shape or steps[-1] == x.dtype.itemsize


Steps = list[tuple[int, ...]]  # strides of each array
Piece = tuple[tuple[int, ...], tuple[int, ...], Steps]


def _pieces(shape: tuple[int, ...], strides: Steps) -> list[Piece]:
    """Parts: the offset of each array in bytes, shape and strides. A line becomes a matrix, and the rest."""
    none = (0,) * len(strides)
    if len(shape) != 1 or shape[0] <= _LINE:
        return [(none, shape, strides)]
    rows, rest = divmod(shape[0], _LINE)
    found: list[Piece] = [(none, (rows, _LINE), [(step * _LINE, step) for (step,) in strides])]
    if rest:
        offsets = tuple(step * rows * _LINE for (step,) in strides)
        found.append((offsets, (rest,), strides))
    return found


def _launch(
    device: int,
    stream: int,
    fixed: dict[str, Value],
    at: tuple[int, ...],
    has_other: bool,
    offsets: tuple[int, ...],
    shape: tuple[int, ...],
    strides: Steps,
) -> None:
    """Launch over all matrices of up to three axes; other axes are a loop."""
    *outer, matrices, rows, columns = (1,) * (3 - len(shape)) + shape
    steps = [(0,) * (3 - len(shape)) + found for found in strides]
    (src, other, dst) = ([*found[-3:]] for found in steps)
    bound = bind_tiles(
        device,
        "elementwise",
        rows,
        columns,
        ("src", "other", "dst"),
        matrices=matrices,
        **fixed,
        src_stride=src[0],
        src_row_stride=src[1],
        src_col_stride=src[2],
        other_stride=other[0],
        other_row_stride=other[1],
        other_col_stride=other[2],
        dst_stride=dst[0],
        dst_pitch=dst[1],
        rows=rows,
        cols=columns,
    )
    assert bound is not None
    for index in np.ndindex(*outer):
        begin = [
            address + offset + sum(i * step for i, step in zip(index, found, strict=False))
            for address, offset, found in zip(at, offsets, steps, strict=True)
        ]
        bound.launch(stream, (begin[0], begin[1] if has_other else 0, begin[2]))


def copy_elements(x: DeviceArray, out: DeviceArray, stream: int) -> DeviceArray:
    """Copy elements of any type between any layouts; strides of `x` may be 0. Their device is current."""
    item = out.dtype.itemsize
    x._block.begin_read(stream)
    out._block.begin_write(stream)
    shape, strides = _merged(out, x)
    if 0 in shape:
        return out
    if (shape, strides) in (((), [(), ()]), ((out.size,), [(item,), (item,)])):
        _hip.copy("DeviceToDevice", out.ptr, x.ptr, out.nbytes, stream)
        return out
    if item > _WORD:  # in words
        shape, strides = (*shape, item // _WORD), [(*steps, _WORD) for steps in strides]
        shape, strides = merge(shape, *strides)
        item = _WORD
    for offsets, extents, steps in _pieces(shape, strides):
        *outer, rows, columns = (1,) * (2 - len(extents)) + extents
        (a, b) = ((0,) * (2 - len(extents)) + found for found in steps)
        for index in np.ndindex(*outer):
            begin = [
                address + offset + sum(i * step for i, step in zip(index, found, strict=False))
                for address, offset, found in zip((x.ptr, out.ptr), offsets, (a, b), strict=True)
            ]
            source, target = (begin[0], *a[-2:]), (begin[1], *b[-2:])
            copy_strided(x.device, stream, item, source, target, rows, columns)
    return out


def new_like(x: DeviceArray, dtype: np.dtype[Any], stream: int) -> DeviceArray:
    """Make an array without gaps, with the shape of `x` and its axes in the same order in memory."""
    axes = _memory_order(x)
    dense = new(tuple(x.shape[i] for i in axes), dtype, x.device, stream)
    strides = tuple(dense.strides[axes.index(i)] for i in range(x.ndim))
    return DeviceArray(dense._block, dense.ptr, x.shape, strides, dtype)


# ---- methods of DeviceArray ------------------------------------------------------------------------


def as_type(x: DeviceArray, dtype: Any) -> DeviceArray:
    """Implement `DeviceArray.astype`."""
    checks = Checks("astype")
    checks.in_memory("the array", x)
    to = checks.value_or(parse_dtype(dtype), x.dtype)
    if to != x.dtype:
        checks.dtype("x.dtype", x.dtype, FLOATS)
        checks.dtype("dtype", to, FLOATS)
    checks.raise_all()
    with error_context("astype"), _hip.on_device(x.device):
        return convert("astype", x, new_like(x, to, _STREAM), _STREAM)


def combine(operation: str, x: DeviceArray, other: Any) -> Any:
    """Implement ``x + other`` and ``x * other``."""
    name = f"DeviceArray {operation}"
    number = python_number(other)
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if not is_number and not is_array(other) and not isinstance(other, (np.ndarray, np.generic)):
        return NotImplemented
    checks = Checks(name)
    checks.in_memory("x", x)
    checks.dtype("x.dtype", x.dtype, FLOATS)
    shape, scalar = x.shape, 0.0
    if isinstance(other, DeviceArray):
        checks.in_memory("y", other)
        checks.same_device("y", other.device, x.device, "x")
        if other.dtype != x.dtype:
            checks.add(TypeError, "dtype", f"y.dtype must be {x.dtype}, that of x", other.dtype, _CONVERT)
        try:
            shape = np.broadcast_shapes(x.shape, other.shape)
        except ValueError:
            got = f"{x.shape} and {other.shape}"
            checks.add(ValueError, "shape", "x.shape and y.shape must broadcast", got)
    elif not is_number or (isinstance(other, np.ndarray) and other.ndim):
        hint = "copy it with hipgemm.asarray" if is_array(other) else array_hint(other)
        checks.wrong_type("y", "a DeviceArray or a Python number", other, hint)
    elif not isinstance(other, (int, float)) and other.dtype != x.dtype:
        required = f"y must be a Python number or of x.dtype, {x.dtype}"
        checks.add(TypeError, "dtype", required, other.dtype)
    else:
        with np.errstate(all="ignore"):
            scalar = float(np.float32(checks.number("y", other) or 0.0))
    checks.raise_all()
    with error_context(name), _hip.on_device(x.device):
        first = broadcast(x, shape)
        second = broadcast(other, shape) if isinstance(other, DeviceArray) else None
        like = second if second is not None and x.shape != shape and other.shape == shape else first
        dense = 0 not in like.strides
        out = new_like(like, x.dtype, _STREAM) if dense else new(shape, x.dtype, x.device, _STREAM)
        return elementwise(name, first, out, _STREAM, operation, second, scalar)


_CONVERT = "convert one with .astype"


def broadcast(x: DeviceArray, shape: tuple[int, ...]) -> DeviceArray:
    """View an array in a shape that it broadcasts to."""
    added = len(shape) - x.ndim
    known = zip(x.shape, x.strides, shape[added:], strict=True)
    strides = (0,) * added + tuple(step if n == to else 0 for n, step, to in known)
    return DeviceArray(x._block, x.ptr, shape, strides, x.dtype, x.readonly)


def assign(target: DeviceArray, value: Any) -> None:
    """Implement ``x[..] = value``, where `target` is that part of x."""
    checks = Checks("DeviceArray")
    if target.readonly:
        checks.add(ValueError, "readonly", "x must be writeable to assign to it", "a read-only array")
    source: Any = value
    if isinstance(value, DeviceArray):
        if checks.in_memory("value", value):
            checks.same_device("value", value.device, target.device, "x")
            if value.dtype != target.dtype:
                checks.dtype("value.dtype", value.dtype, FLOATS)
                checks.dtype("x.dtype", target.dtype, FLOATS)
    elif isinstance(value, (int, float)):
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            source = np.array(value, target.dtype)
    elif isinstance(value, (np.ndarray, np.generic)) and not isinstance(value, np.ma.MaskedArray):
        source = np.asarray(value)
        if source.dtype != target.dtype and not (_is_number(source.dtype) and _is_number(target.dtype)):
            required = f"value.dtype must be real, to convert to {target.dtype}, or {target.dtype}"
            checks.add(TypeError, "dtype", required, source.dtype)
    else:
        what = "a DeviceArray, a numpy.ndarray or a number"
        checks.wrong_type("value", what, value, array_hint(value))
        source = None
    if source is not None:
        shape = source.shape[max(0, source.ndim - target.ndim) :]
        extra = source.shape[: source.ndim - len(shape)]
        fits = all(n == 1 for n in extra) and all(
            n in (1, to) for n, to in zip(shape, target.shape[target.ndim - len(shape) :], strict=True)
        )
        if not fits:
            required = f"value.shape must broadcast to {target.shape}"
            checks.add(ValueError, "shape", required, source.shape)
    checks.raise_all()
    if target.size == 0:
        return
    with error_context("DeviceArray"), _hip.on_device(target.device):
        if not isinstance(source, DeviceArray):
            with np.errstate(all="ignore"):
                source = upload_async(source.astype(target.dtype), target.device, _STREAM)
        while source.ndim > target.ndim:
            source = source[0]
        source = broadcast(source, target.shape)
        same = source.ptr == target.ptr and source.strides == target.strides and source.dtype == target.dtype
        if same:
            return
        if overlap(bytes_of(source), bytes_of(target)):
            source = copy_elements(source, new(source.shape, source.dtype, source.device, _STREAM), _STREAM)
        convert("DeviceArray", source, target, _STREAM)


def _is_number(dtype: np.dtype[Any]) -> bool:
    """Whether NumPy's casts between such types mean what they do for numbers: not for those with scales."""
    return dtype.kind in "biuf" or dtype == BF16.dtype
