"""How quantizers, and the way back, run on a device: everything is queued on the stream, in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import _hip, _launch, _notes
from ._rows import Rows, as_rows, round_up, storage_axis, type_code
from .amax import AmaxState
from .array import DeviceArray, lend, new
from .formats import BLOCK, F32, QUANTIZED, Format
from .groups import group_slots, most_blocks
from .manifest import CHUNK_BYTES
from .scaled import ScaledArray, group_blocks
from .usage import count_copy

Input = npt.NDArray[Any] | DeviceArray


def quantize_groups(x: DeviceArray, stream: int, form: Format, scaling: str, offsets: Input) -> ScaledArray:
    """Quantize down the columns of each group of rows."""
    assert form.scale_dtype is not None
    device, (rows, columns), groups = x.device, x.shape, offsets.shape[0] - 1
    if isinstance(offsets, DeviceArray):
        resident, blocks = offsets, most_blocks(rows, groups)
    else:
        offsets = offsets.astype(np.int32)
        offsets.flags.writeable = False
        resident, blocks = lend(offsets, device, stream), int(group_blocks(offsets)[-1])
    # Codes row by row, as x has them: a product reads them there, wherever groups begin.
    pitch = round_up(max(1, columns), CHUNK_BYTES)
    # One piece of memory: codes, scales in the order of products, scales.
    ordered = _launch.across_scale_bytes(rows, columns, groups)
    block = _hip.allocate(rows * pitch + ordered + blocks * columns, device, stream)
    gemm_scale = block.ptr + rows * pitch
    scale = gemm_scale + ordered
    if resident is offsets:
        _hip.clear(scale, blocks * columns, stream)
    if rows and columns:
        x._block.reading(stream)
        resident._block.reading(stream)
        kernel = _launch.function(device, "quantize_mxfp8_groups")
        tile_rows, tile_columns = kernel.tile
        _launch.launch(
            kernel,
            group_slots(rows, groups, tile_rows) * -(-columns // tile_columns),
            stream,
            x.ptr,
            block.ptr,
            scale,
            gemm_scale,
            resident.ptr,
            _notes.place("quantize_mxfp8"),
            *x.strides,
            pitch,
            columns,
            rows,
            columns,
            groups,
            type_code(x),
            _launch.ELEMENT_CODES[form.name],
            _launch.RULE_CODES[scaling],
        )
    return ScaledArray._make(
        DeviceArray(block, block.ptr, (rows, columns), (pitch, 1), form.dtype, padded=True),
        DeviceArray(block, scale, (blocks, columns), (columns, 1), form.scale_dtype),
        form,
        -2,
        x.shape,
        kernel_scales={"groups": (block, gemm_scale)},
        group_offsets=offsets,
    )


def quantize_both_ways(
    x: DeviceArray, stream: int, form: Format, scaling: str, hadamard: bool
) -> tuple[ScaledArray, ScaledArray]:
    """Quantize a matrix along its rows and down its columns."""
    along, across = as_rows(x, -1, stream), as_rows(x, -2, stream)
    rows, columns = (MxOutput(r, form, hadamard, stream) for r in (along, across))
    launch_mx(along, rows, columns, form, scaling, hadamard, stream)
    return rows.array, columns.array


class MxOutput:
    """Memory for codes and scales along one axis, and the arguments that name it."""

    def __init__(self, r: Rows, form: Format, hadamard: bool, stream: int):
        assert form.scale_dtype is not None
        device = r.array.device
        width = -(-r.length * form.bits // 8)
        blocks = -(-r.length // BLOCK)
        pitch = max(1, -(-width // CHUNK_BYTES)) * CHUNK_BYTES
        # A matrix, or several whose rows a product takes for those of one.
        for_products = len(r.lead) == 1 or (len(r.lead) > 1 and r.axis == -1)
        gemm_bytes = _launch.gemm_scale_bytes(r.rows, r.length) if for_products else 0
        # One piece of memory: codes, scales in the order of products, scales.
        codes = r.rows * pitch
        block = _hip.allocate(codes + gemm_bytes + r.rows * blocks, device, stream)
        data = block.ptr
        scale = data + codes + gemm_bytes
        if r.length == 0:
            _hip.clear(data, codes, stream)
        kept = {"gemm": (block, data + codes)} if gemm_bytes else {}
        self.pointers = (data, scale, data + codes if gemm_bytes else 0)
        self.pitches = (pitch, blocks)
        dtype = np.dtype(np.uint8) if form.bits == 4 else form.dtype
        self.array = ScaledArray._make(
            r.shaped(block, data, dtype, width, pitch, padded=True),
            r.shaped(block, scale, form.scale_dtype, blocks, blocks),
            form,
            r.axis,
            r.shape,
            hadamard=hadamard,
            kernel_scales=kept,
        )


_NOTHING = (0, 0, 0), (0, 0)
_SPAN = 256  # rows or columns that scales in the order of products cover at least


def launch_mx(
    r: Rows,
    along: MxOutput,
    across: MxOutput | None,
    form: Format,
    scaling: str,
    hadamard: bool,
    stream: int,
) -> None:
    """Quantize along the rows of `r` and, if asked for, across them."""
    ptr, row_stride, stride = r.matrix
    rows, columns = r.rows, r.length
    outputs = [
        (along.pointers, along.pitches),
        (across.pointers, across.pitches) if across else _NOTHING,
    ]
    if rows > 1 and abs(row_stride) < abs(stride):  # the kernel reads fastest along what lies together
        rows, columns, row_stride, stride = columns, rows, stride, row_stride
        outputs.reverse()
    (row_pointers, row_pitches), (column_pointers, column_pitches) = outputs
    r.array._block.reading(stream)
    device = r.array.device
    _launch.tiled(
        device,
        f"quantize_{form.name.split('_')[0]}",
        round_up(rows, _SPAN) if column_pointers[0] else rows,
        round_up(columns, _SPAN) if row_pointers[0] else columns,
        stream,
        ptr,
        *row_pointers,
        *column_pointers,
        row_stride,
        stride,
        *row_pitches,
        *column_pitches,
        rows,
        columns,
        type_code(r.array),
        _launch.ELEMENT_CODES[form.name],
        _launch.RULE_CODES[scaling],
        hadamard,
    )


def quantize_by_amax(
    x: DeviceArray, stream: int, form: Format, axis: int | None, eps: float, amax: Any
) -> ScaledArray:
    """Quantize to 8 bits by a greatest magnitude: the tensor's own, that of each row, or a given one."""
    device, item = x.device, F32.itemsize
    r = as_rows(x, storage_axis(x) if axis is None else axis, stream)
    step, count = (0, 1) if axis is None else (1, r.rows)
    pitch = round_up(max(1, r.length), CHUNK_BYTES)
    # One piece of memory: codes, greatest magnitudes, scales.
    block = _hip.allocate(r.rows * pitch + 2 * count * item, device, stream)
    data, own = block.ptr, block.ptr + r.rows * pitch
    scale = own + count * item
    _hip.clear(own, count * item, stream)
    x._block.reading(stream)
    source, rows, columns, target = r.matrix, r.rows, r.length, data
    temporaries = []
    if rows == 0 or columns == 0:  # scales are due all the same, as for a zero
        _hip.clear(data, r.rows * pitch, stream)
        rows, columns = (r.rows if axis is not None else 1), 1
        spare = _hip.allocate((1 + rows) * CHUNK_BYTES, device, stream)
        _hip.clear(spare.ptr, item, stream)
        source, target, pitch = (spare.ptr, 0, 0), spare.ptr + CHUNK_BYTES, CHUNK_BYTES
        temporaries.append(spare)
    kind = type_code(x)

    if amax is None or (isinstance(amax, AmaxState) and not amax._primed):
        _launch.tiled(
            device, "amax", rows, columns, stream, source[0], own, *source[1:], rows, columns, step, kind
        )
        used, next_ptr = own, 0
    else:
        given = amax.current if isinstance(amax, AmaxState) else amax
        lent, used = _amax_values(given, r.rows if step else 1, axis, device, stream)
        temporaries.append(lent)
        next_ptr = own
    _launch.tiled(
        device,
        "quantize_fp8",
        rows,
        columns,
        stream,
        source[0],
        target,
        used,
        scale,
        next_ptr,
        *source[1:],
        pitch,
        rows,
        columns,
        step,
        eps,
        kind,
        _launch.ELEMENT_CODES[form.name],
    )
    if isinstance(amax, AmaxState):
        amax._take(own, stream)

    def small(ptr: int) -> DeviceArray:
        if axis is None:
            return DeviceArray(block, ptr, (), (), F32.dtype)
        return r.shaped(block, ptr, F32.dtype, 1, item)

    width = round_up(max(1, r.length), CHUNK_BYTES)
    codes = r.shaped(block, data, form.dtype, r.length, width, padded=True)
    return ScaledArray._make(
        codes, small(scale), form, -1 if axis is None else axis, x.shape, amax=small(own)
    )


def _amax_values(amax: Any, count: int, axis: int | None, device: int, stream: int) -> tuple[_hip.Block, int]:
    """Return where `count` float32 lie side by side; one given number serves all."""
    x = amax if isinstance(amax, DeviceArray) else lend(amax, device, stream)
    x._block.reading(stream)
    item = F32.itemsize
    if axis is None:
        return x._block, x.ptr
    if x.shape == ():
        row_stride = 0
    else:
        r = as_rows(x, axis, stream)
        x, row_stride = r.array, r.row_stride
    if row_stride == item or count <= 1:
        return x._block, x.ptr
    block = _hip.allocate(count * item, device, stream)
    _launch.copy_strided(device, stream, item, (x.ptr, row_stride, item), (block.ptr, item, item), count, 1)
    return block, block.ptr


def dequantize_codes(q: ScaledArray, stream: int, to: Format) -> DeviceArray:
    """Dequantize on the device of `q`, the current one."""
    if q.group_offsets is not None:
        return dequantize_groups(q, stream, to)
    form, device = QUANTIZED[q.format], q.data.device
    axis = q.axis if form.block or q.scale.shape else storage_axis(q.data)
    data = as_rows(q.data, axis, stream)
    length = q.shape[axis]
    item = to.itemsize
    out = _hip.allocate(data.rows * length * item, device, stream)
    result = data.shaped(out, out.ptr, to.dtype, length, length * item)
    if result.size == 0:
        return result
    data.array._block.reading(stream)
    temporaries, ptr, pitch = _chunks("dequantize", data, stream)
    if form.block:
        scale = as_rows(q.scale, q.axis, stream)
        scale.array._block.reading(stream)
        scales = scale.matrix
    elif q.scale.shape == ():
        q.scale._block.reading(stream)
        scales = (q.scale.ptr, 0, 0)
    else:
        shape = tuple(1 if i == len(q.shape) + axis else n for i, n in enumerate(q.shape))
        own = zip(q.scale.shape, q.scale.strides, strict=True)
        strides = tuple(0 if n == 1 else step for n, step in own)  # one of a matrix serves all its rows
        each = DeviceArray(q.scale._block, q.scale.ptr, shape, strides, F32.dtype)
        block, at = _amax_values(each, data.rows, axis, device, stream)
        temporaries.append(block)
        scales = (at, F32.itemsize, 0)
    _launch.tiled(
        device,
        "dequantize",
        data.rows,
        length,
        stream,
        ptr,
        scales[0],
        out.ptr,
        pitch,
        *scales[1:],
        length * item,
        data.rows,
        length,
        _launch.FORMAT_CODES[form.name],
        _launch.TYPE_CODES[to.name],
        q.hadamard,
    )
    return result


def dequantize_groups(q: ScaledArray, stream: int, to: Format) -> DeviceArray:
    """Dequantize group by group; for that, offsets must come to the host."""
    if q.axis == -1:
        return dequantize_groups(q.T, stream, to).T
    form, device, item = QUANTIZED[q.format], q.data.device, to.itemsize
    offsets = q.group_offsets if isinstance(q.group_offsets, np.ndarray) else q.group_offsets.get()
    blocks = group_blocks(offsets)
    result = new(q.shape, to.dtype, device, stream)
    _hip.clear(result.ptr, result.nbytes, stream)
    for g in np.flatnonzero(np.diff(offsets)):
        begin, end = int(offsets[g]), int(offsets[g + 1])
        rows, scale = q.data[begin:end], q.scale[int(blocks[g]) : int(blocks[g + 1])]
        part = dequantize_codes(ScaledArray._make(rows, scale, form, -2, rows.shape), stream, to)
        row, column = part.strides
        into = result[begin:end].ptr, q.shape[1] * item, item
        source = part.ptr, row, column
        _launch.copy_strided(device, stream, item, source, into, end - begin, q.shape[1])
    return result


def _chunks(function: str, data: Rows, stream: int) -> tuple[list[_hip.Block], int, int]:
    """Return where codes lie in rows of whole 16 bytes, and their pitch; copied there if they must be."""
    if _chunked(data):
        return [], data.array.ptr, data.row_stride
    device = data.array.device
    pitch = round_up(data.length, CHUNK_BYTES)
    block = _hip.allocate(data.rows * pitch, device, stream)
    count_copy(function, "data", "not in rows of 16 bytes")
    target = (block.ptr, pitch, 1)
    _launch.copy_strided(device, stream, 1, data.matrix, target, data.rows, data.length, pitch)
    return [block], block.ptr, pitch


def as_mxfp8(q: ScaledArray, stream: int) -> ScaledArray:
    """Return an mxfp4 matrix as mxfp8, number for number. Made once and kept; its device is current."""
    kept: ScaledArray | None = q._kernel_scales.get("mxfp8")
    if kept is None or not kept.data._block.ptr:
        form, device = QUANTIZED["mxfp8_e4m3"], q.data.device
        source = as_rows(q.data, q.axis, stream)
        length = q.shape[q.axis]
        pitch = round_up(max(1, length), CHUNK_BYTES)
        block = _hip.allocate(source.rows * pitch, device, stream)
        if source.rows and length:
            source.array._block.reading(stream)
            temporaries, ptr, from_pitch = _chunks("matmul", source, stream)
            rows = source.rows
            _launch.tiled(
                device, "fp4_to_fp8", rows, length, stream, ptr, block.ptr, from_pitch, pitch, rows, length
            )
            del temporaries
        data = source.shaped(block, block.ptr, form.dtype, length, pitch, padded=True)
        kept = ScaledArray._make(data, q.scale, form, q.axis, q.shape, hadamard=q.hadamard)
        q._kernel_scales["mxfp8"] = kept
    return kept if kept.axis == q.axis else kept.mT


def _chunked(data: Rows) -> bool:
    """Whether a kernel can read codes where they lie: rows of whole 16 bytes."""
    if data.length > 1 and data.stride != 1:
        return False
    if data.array.ptr % CHUNK_BYTES or (data.length % CHUNK_BYTES and not data.array.padded):
        return False
    return data.rows <= 1 or (data.row_stride >= data.length and data.row_stride % CHUNK_BYTES == 0)
