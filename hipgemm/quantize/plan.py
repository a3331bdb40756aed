"""Plans of quantizers and of dequantize on a device. All work is queued on the stream, in order."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..array.device_array import DeviceArray, new, upload_async
from ..array.rows import Layout, Rows, as_rows, round_up, storage_axis
from ..formats.elements import BLOCK, F16, F32, QUANTIZED, Format, known_format
from ..formats.groups import group_slots, most_blocks
from ..formats.philox import key_of
from ..formats.scaled import ScaledArray, group_blocks
from ..formats.strides import contiguous_strides, padded_pitch
from ..kernels.launch import BoundLaunch, bind_tiles, copy_strided, function, launch
from ..kernels.manifest import CHUNK_BYTES, code_object
from ..kernels.scale_layout import gemm_scale_bytes, group_scale_bytes, scale_order
from ..runtime import device_errors
from ..runtime import hip as _hip
from ..runtime.tally import Call, count_call, count_copy
from .amax import AmaxState
from .arrays import Fp8Array
from .gradient import Gradient

Input = npt.NDArray[Any] | DeviceArray


_SEED = "seed_low", "seed_high"


def _reads(
    kernel: str, x: DeviceArray, strides: tuple[int, int], gradient: Gradient | None
) -> tuple[str, tuple[str, ...], dict[str, Any], int]:
    """The name of the kernel that reads `x`, or the gradient that `x` describes.

    Also the arguments for that, addresses and others, besides `src`; and the bytes that are read.
    """
    if gradient is None:
        where = {"src_row_stride": strides[0], "src_col_stride": strides[1], "in_type": known_format(x.dtype)}
        return kernel, (), where, x.nbytes
    return f"{kernel}_gradient", ("aux", "factors"), gradient.arguments, gradient.nbytes


def quantize_groups(
    x: DeviceArray,
    stream: int,
    form: Format,
    scaling: str,
    offsets: Input,
    seed: int | None,
    gradient: Gradient | None = None,
) -> ScaledArray:
    """Quantize along the columns of each group of rows."""
    assert form.scale_dtype is not None
    device, (rows, columns), groups = x.device, x.shape, offsets.shape[0] - 1
    if isinstance(offsets, DeviceArray):
        resident, blocks = offsets, most_blocks(rows, groups)
    else:
        offsets = offsets.astype(np.int32)
        offsets.flags.writeable = False
        resident, blocks = upload_async(offsets, device, stream), int(group_blocks(offsets)[-1])
    # The elements are stored in rows like x: a product can read them in place for any offsets.
    pitch = round_up(max(1, columns), CHUNK_BYTES)
    # One allocation: elements, scales in the order of products, scales.
    ordered = group_scale_bytes(rows, columns, groups)
    block = _hip.allocate(rows * pitch + ordered + blocks * columns, device, stream)
    gemm_scale = block.ptr + rows * pitch
    scale = gemm_scale + ordered
    name = _kernel("quantize_mxfp8_groups", seed is not None)
    name, others, where, read_bytes = _reads(name, x, (x.strides[0], x.strides[1]), gradient)
    if resident is offsets:
        _hip.clear(scale, blocks * columns, stream)
    if rows and columns:
        x._block.begin_read(stream)
        resident._block.begin_read(stream)
        kernel = function(device, name)
        where |= dict(zip(others, gradient.begin_read(stream) if gradient else (), strict=True))
        where |= {} if seed is None else dict(zip(_SEED, key_of(seed), strict=True))
        tile_rows, tile_columns = kernel.tile
        launch(
            kernel,
            group_slots(rows, groups, tile_rows) * -(-columns // tile_columns),
            stream,
            src=x.ptr,
            data=block.ptr,
            scale=scale,
            gemm_scale=gemm_scale,
            offsets=resident.ptr,
            status=device_errors.slot("quantize_mxfp8"),
            data_pitch=pitch,
            scale_pitch=columns,
            rows=rows,
            cols=columns,
            groups=groups,
            element=form,
            rule=scaling,
            **where,
        )
    made = ScaledArray._make(
        DeviceArray(block, block.ptr, (rows, columns), (pitch, 1), form.dtype, padded=True),
        DeviceArray(block, scale, (blocks, columns), (columns, 1), form.scale_dtype),
        form,
        -2,
        x.shape,
        kernel_scales={"groups": (block, gemm_scale)},
        group_offsets=offsets,
    )
    min_bytes = read_bytes + made.data.nbytes + made.scale.nbytes
    count_call(Call("quantize_mxfp8", name, 0, min_bytes))
    return made


def _kernel(name: str, random: bool) -> str:
    """The name of the kernel that does the same with random numbers, if they are needed."""
    return f"{name}_random" if random else name


Axes = tuple[int, ...]


@dataclass(frozen=True)
class MxArray:
    """The layout of an array that is quantized along one axis, in one allocation.

    The elements come first, then scales in the order of products, if needed, then scales.
    """

    form: Format
    axis: int
    shape: Axes
    hadamard: bool
    signs: int | None
    data: Layout
    scale: Layout
    pitches: tuple[int, int]
    data_bytes: int
    ordered: int
    nbytes: int
    order: str = ""  # of the products' scales

    @classmethod
    def of(cls, r: Rows, form: Format, hadamard: bool, signs: int | None) -> MxArray:
        """The layout of the quantized `r`."""
        assert form.scale_dtype is not None
        width = form.packed_bytes(r.length)
        blocks = -(-r.length // BLOCK)
        pitch = max(1, -(-width // CHUNK_BYTES)) * CHUNK_BYTES
        # For a matrix, or for a batch that a product treats as one matrix.
        for_products = len(r.lead) == 1 or (len(r.lead) > 1 and r.axis == -1)
        kernels = code_object(_hip.arch(r.array.device))
        for_products &= kernels.orders_scales
        data_bytes, ordered = r.rows * pitch, gemm_scale_bytes(r.rows, r.length) if for_products else 0
        return cls(
            form,
            r.axis,
            r.shape,
            hadamard,
            signs,
            r.layout(np.dtype(np.uint8) if form.is_packed else form.dtype, width, pitch),
            r.layout(form.scale_dtype, blocks, 1, r.rows),  # the rows are the contiguous axis
            (pitch, r.rows),
            data_bytes,
            ordered,
            data_bytes + ordered + r.rows * blocks,
            scale_order(kernels.own_k_tile(form.name)),
        )

    @classmethod
    def in_rows(cls, form: Format, shape: Axes) -> MxArray:
        """The layout of an array (.., rows, length) with its rows in C order."""
        assert form.scale_dtype is not None
        rows, width, blocks = math.prod(shape[:-1]), form.packed_bytes(shape[-1]), -(-shape[-1] // BLOCK)
        pitch = padded_pitch(width, 1)
        dtype = np.dtype(np.uint8) if form.is_packed else form.dtype
        data = (*shape[:-1], width), (*contiguous_strides(shape[:-1], pitch), 1), dtype
        scale = (*shape[:-1], blocks), (*contiguous_strides(shape[:-1], 1), rows), form.scale_dtype
        size = rows * pitch
        return cls(form, -1, shape, False, None, data, scale, (pitch, rows), size, 0, size + rows * blocks)

    def allocate(self, device: int, stream: int) -> tuple[ScaledArray, tuple[int, int, int]]:
        """Allocate the array; return it, and the addresses for the kernel."""
        block = _hip.allocate(self.nbytes, device, stream)
        data = block.ptr
        if self.shape[self.axis] == 0:
            _hip.clear(data, self.data_bytes, stream)
        ordered = data + self.data_bytes if self.ordered else 0
        scale = data + self.data_bytes + self.ordered
        made = ScaledArray._make(
            DeviceArray(block, data, *self.data, padded=True),
            DeviceArray(block, scale, *self.scale),
            self.form,
            self.axis,
            self.shape,
            hadamard=self.hadamard,
            signs=self.signs,
            kernel_scales={self.order: (block, ordered)} if ordered else {},
        )
        return made, (data, scale, ordered)


@dataclass(frozen=True)
class MxPlan:
    """The plan to quantize an array along one axis, or a matrix along both axes."""

    outputs: tuple[MxArray, ...]
    transposed: bool  # the kernel's rows are the array's columns
    launch: BoundLaunch | None  # None if the array is empty
    served: Call
    random: bool  # the kernel takes a seed

    def run(
        self, x: DeviceArray, stream: int, seed: int | None, more: tuple[int, ...] = ()
    ) -> tuple[ScaledArray, ...]:
        """Quantize an array on the current device. `more`: addresses that are read besides."""
        device = x.device
        along, pointers = self.outputs[0].allocate(device, stream)
        made: tuple[ScaledArray, ...] = (along,)
        across = _NO_OUTPUT
        if len(self.outputs) == 2:
            other, across = self.outputs[1].allocate(device, stream)
            made = along, other
        x._block.begin_read(stream)
        if self.launch is None:
            count_call(self.served)
        else:
            first, second = (across, pointers) if self.transposed else (pointers, across)
            keys = key_of(seed or 0) if self.random else ()
            self.launch.launch(stream, (x.ptr, *first, *second, *keys, *more), self.served)
        return made


_NO_OUTPUT = 0, 0, 0
_MX_POINTERS = (
    "src",
    *("row_data", "row_scale", "row_gemm_scale"),
    *("col_data", "col_scale", "col_gemm_scale"),
)
_SPAN = 256  # elements along K per unit of ordered scales; the kernel pads to whole units


def mx_plan(
    function: str,
    along: Rows,
    across: Rows | None,
    form: Format,
    scaling: str,
    hadamard: bool,
    rounding: str,
    signs: int | None,
    gradient: Gradient | None = None,
) -> MxPlan:
    """Plan the quantization of an array along its rows and, if `across` is given, along its columns.

    With a `gradient` that the array describes: of that.
    """
    x, rows, columns = along.array, along.rows, along.length
    row_stride, stride = along.row_stride, along.stride
    outputs = tuple(MxArray.of(r, form, bool(hadamard), signs) for r in (along, across) if r is not None)
    sides = [(True, outputs[0].pitches, along.inner)]
    sides.append((True, outputs[1].pitches, across.inner) if across else (False, (0, 0), 1))
    # The kernel is fastest if its rows are the contiguous axis.
    transposed = rows > 1 and abs(row_stride) < abs(stride)
    if transposed:
        rows, columns, row_stride, stride = columns, rows, stride, row_stride
        sides.reverse()
    (by_row, row_pitches, row_inner), (by_column, column_pitches, column_inner) = sides
    kernel, random = f"quantize_{form.name.split('_')[0]}", rounding != "nearest" or signs is not None
    numbers: dict[str, Any] = {}
    if random:
        numbers = {"row_inner": row_inner, "col_inner": column_inner, "stochastic": rounding != "nearest"}
        numbers |= signs_arguments(signs)
    if random:
        kernel += "_random"
    elif gradient is None:
        kernel += _type_suffix(kernel, form, x)
    kernel, others, where, read_bytes = _reads(kernel, x, (row_stride, stride), gradient)
    bound = bind_tiles(
        x.device,
        kernel,
        round_up(rows, _SPAN) if by_column else rows,
        round_up(columns, _SPAN) if by_row else columns,
        _MX_POINTERS + (_SEED if random else ()) + others,
        row_pitch=row_pitches[0],
        row_scale_pitch=row_pitches[1],
        col_pitch=column_pitches[0],
        col_scale_pitch=column_pitches[1],
        rows=rows,
        cols=columns,
        element=form,
        rule=scaling,
        hadamard=bool(hadamard),
        **where,
        **numbers,
    )
    min_bytes = read_bytes + sum(_bytes(part) for made in outputs for part in (made.data, made.scale))
    return MxPlan(outputs, transposed, bound, Call(function, kernel, 0, min_bytes), random)


def _type_suffix(kernel: str, form: Format, x: DeviceArray) -> str:
    """How the kernels' names end for an array's type. That of mxfp4 for bfloat16 is for no other one.

    On some architectures that for float32 reads any type.
    """
    if x.dtype == F32.dtype or kernel not in code_object(_hip.arch(x.device)).kernels:
        return "_f32"
    return "_f16" if form.bits == 4 and x.dtype == F16.dtype else ""


def signs_arguments(signs: int | None) -> dict[str, Any]:
    """The arguments of a kernel for random signs."""
    low, high = key_of(signs or 0)
    return {"has_signs": signs is not None, "signs_low": low, "signs_high": high}


def _bytes(part: Layout) -> int:
    return math.prod(part[0]) * part[2].itemsize


@dataclass(frozen=True)
class AmaxPlan:
    """The plan to quantize an array to fp8 by an amax: of the array, of each row, or a given one."""

    made: Fp8Array
    axis: int | None
    count: int  # of the amax values and of the scales
    spare: int  # bytes of a zero that is quantized if the array is empty, to compute the scales
    amax: BoundLaunch | None  # None if there are no scales
    quantize: BoundLaunch | None
    served: Call

    def run(
        self,
        x: DeviceArray,
        stream: int,
        eps: float,
        amax: Any,
        seed: int | None,
        more: tuple[int, ...] = (),
    ) -> ScaledArray:
        """Quantize an array on the current device. `more`: addresses that are read besides."""
        device, item = x.device, F32.itemsize
        made, (data, scale, own) = self.made.allocate(device, stream)
        x._block.begin_read(stream)
        source, target = x.ptr, data
        temporaries = []
        if self.spare:
            _hip.clear(data, self.made.data_bytes, stream)
            spare = _hip.allocate(self.spare, device, stream)
            _hip.clear(spare.ptr, item, stream)
            source, target = spare.ptr, spare.ptr + CHUNK_BYTES
            temporaries.append(spare)
        state = amax if isinstance(amax, AmaxState) else None
        if self.amax is None or self.quantize is None:
            count_call(self.served)
        else:
            if amax is None or (state is not None and not state.primed):
                self.amax.launch(stream, (source, own, *more))
                used, next_ptr = own, 0
            else:
                given = amax if state is None else state._values  # `current` comes first
                block_of_amax, used = _amax_values(given, self.count, self.axis, device, stream)
                temporaries.append(block_of_amax)
                next_ptr = own
            keys = () if seed is None else key_of(seed)
            values = source, target, used, scale, next_ptr, eps, *keys, *more
            self.quantize.launch(stream, values, self.served)
        if state is not None:
            state._update(own, stream)
        return made


def amax_plan(
    x: DeviceArray,
    r: Rows,
    form: Format,
    axis: int | None,
    random: bool,
    gradient: Gradient | None = None,
) -> AmaxPlan:
    """Plan the quantization of `x`, whose rows are `r`, or of the gradient that it describes."""
    device = x.device
    step, count = (0, 1) if axis is None else (1, r.rows)
    pitch = round_up(max(1, r.length), CHUNK_BYTES)
    rows, columns, strides, spare = r.rows, r.length, (r.row_stride, r.stride), 0
    if rows == 0 or columns == 0:
        rows, columns = (r.rows if axis is not None else 1), 1
        strides, pitch, spare = (0, 0), CHUNK_BYTES, (1 + rows) * CHUNK_BYTES
    made = Fp8Array.of(r, form, axis)
    shared: dict[str, Any] = {"rows": rows, "cols": columns, "amax_step": step}
    name, others, where, read_bytes = _reads("amax", x, strides, gradient)
    shared |= where
    amax = bind_tiles(device, name, rows, columns, ("src", "amax", *others), **shared)
    kernel, *_ = _reads(_kernel("quantize_fp8", random), x, strides, gradient)
    varying: tuple[str, ...] = ("src", "dst", "amax", "scale", "next", "eps")
    shared |= {"dst_pitch": pitch, "element": form}
    if random:
        varying += _SEED
        shared["inner"] = r.inner
    quantize = bind_tiles(device, kernel, rows, columns, varying + others, **shared)
    served = Call("quantize_fp8", kernel, 0, read_bytes + _bytes(made.data) + made.small_bytes)
    return AmaxPlan(made, axis, count, spare, amax, quantize, served)


@dataclass(frozen=True)
class BlockPlan:
    """The plan to quantize an array to fp8 with a scale for each block of its last two axes."""

    made: Fp8Array
    launch: BoundLaunch | None  # None if the array is empty
    served: Call

    def run(
        self, x: DeviceArray, stream: int, eps: float, seed: int | None, more: tuple[int, ...] = ()
    ) -> ScaledArray:
        """Quantize an array on the current device. `more`: addresses that are read besides."""
        made, (data, scale, own) = self.made.allocate(x.device, stream)
        x._block.begin_read(stream)
        if self.launch is None:
            count_call(self.served)
        else:
            keys = () if seed is None else key_of(seed)
            self.launch.launch(stream, (x.ptr, data, own, scale, eps, *keys, *more), self.served)
        return made


def block_plan(
    r: Rows, form: Format, block: tuple[int, int], random: bool, gradient: Gradient | None = None
) -> BlockPlan:
    """Plan the quantization of an array whose rows are `r`, or of the gradient that it describes.

    The array may describe the gradient's transpose.
    """
    x, block_rows, made = r.array, block[0], Fp8Array.of(r, form, block=block)
    matrix_rows = r.rows if block_rows == 1 else max(1, r.lead[-1])
    kernel = _kernel("quantize_fp8_blocks", random)
    kernel, others, where, read_bytes = _reads(kernel, x, (r.row_stride, r.stride), gradient)
    if gradient is not None:
        # A dimension of length 1 may have any stride.
        by_strides = len({*gradient.shape}) == 1
        where["transposed"] = r.row_stride < r.stride if by_strides else (r.rows, r.length) != gradient.shape
    launch = bind_tiles(
        x.device,
        kernel,
        matrix_rows if r.rows else 0,
        r.length,
        ("src", "dst", "amax", "scale", "eps", *(_SEED if random else ()), *others),
        matrices=r.rows // max(1, matrix_rows),
        dst_pitch=round_up(max(1, r.length), CHUNK_BYTES),
        scale_row_stride=made.small[1][-2],
        scale_col_stride=made.small[1][-1],
        rows=r.rows,
        cols=r.length,
        matrix_rows=matrix_rows,
        block_rows=block_rows,
        element=form,
        **where,
    )
    served = Call("quantize_fp8", kernel, 0, read_bytes + _bytes(made.data) + made.small_bytes)
    return BlockPlan(made, launch, served)


def _amax_values(amax: Any, count: int, axis: int | None, device: int, stream: int) -> tuple[_hip.Block, int]:
    """Return the address of `count` contiguous float32 values; a 0-d array is repeated."""
    x = amax if isinstance(amax, DeviceArray) else upload_async(amax, device, stream)
    x._block.begin_read(stream)
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
    copy_strided(device, stream, item, (x.ptr, row_stride, item), (block.ptr, item, item), count, 1)
    return block, block.ptr


@dataclass(frozen=True)
class DequantizePlan:
    """The plan to dequantize an array whose elements and scales are read in place."""

    result: Layout
    nbytes: int
    launch: BoundLaunch
    served: Call

    def run(self, q: ScaledArray, stream: int) -> DeviceArray:
        """Dequantize on the current device."""
        data, scale = q.data, q.scale
        out = _hip.allocate(self.nbytes, data.device, stream)
        data._block.begin_read(stream)
        scale._block.begin_read(stream)
        self.launch.launch(stream, (data.ptr, scale.ptr, out.ptr), self.served)
        return DeviceArray(out, out.ptr, *self.result)


def dequantize_array(q: ScaledArray, stream: int, to: Format) -> tuple[DeviceArray, DequantizePlan | None]:
    """Dequantize on the device of `q`, which is current; return also the plan for equal layouts."""
    if q.group_offsets is not None:
        return dequantize_groups(q, stream, to), None
    form, device = QUANTIZED[q.format], q.data.device
    square = q.block is not None and 1 not in q.block
    axis = storage_axis(q.data) if square or not q.scale.shape else q.axis
    data = as_rows(q.data, axis, stream)
    length = q.shape[axis]
    item = to.itemsize
    layout = data.layout(to.dtype, length, length * item)
    nbytes = data.rows * length * item
    out = _hip.allocate(nbytes, device, stream)
    result = DeviceArray(out, out.ptr, *layout)
    if nbytes == 0:
        return result, None
    data.array._block.begin_read(stream)
    temporaries, ptr, pitch = _aligned_rows("dequantize", data, stream)
    block_rows = 1 if q.block is None else q.block[-3 - axis]
    if form.block or q.block is not None:
        scale = as_rows(q.scale, axis, stream)
        scale.array._block.begin_read(stream)
        scales = scale.matrix
    elif q.scale.shape == ():
        q.scale._block.begin_read(stream)
        scales = (q.scale.ptr, 0, 0)
    else:
        shape = tuple(1 if i == len(q.shape) + axis else n for i, n in enumerate(q.shape))
        own = zip(q.scale.shape, q.scale.strides, strict=True)
        strides = tuple(0 if n == 1 else step for n, step in own)  # one scale per matrix applies to all rows
        each = DeviceArray(q.scale._block, q.scale.ptr, shape, strides, F32.dtype)
        block, at = _amax_values(each, data.rows, axis, device, stream)
        temporaries.append(block)
        scales = (at, F32.itemsize, 0)
    bound = bind_tiles(
        device,
        "dequantize",
        data.rows,
        length,
        ("data", "scale", "dst"),
        data_pitch=pitch,
        scale_row_stride=scales[1],
        scale_col_stride=scales[2],
        dst_pitch=length * item,
        rows=data.rows,
        cols=length,
        format=form,
        out_type=to,
        hadamard=q.hadamard,
        **signs_arguments(q.signs),
        signs_start=q.signs_start,
        matrix_rows=data.lead[-1] if block_rows > 1 else data.rows,
        block_rows=block_rows,
        e8m0=q.scale.dtype != F32.dtype,
    )
    assert bound is not None
    bound.launch(stream, (ptr, scales[0], out.ptr))
    if (ptr, scales[0]) != (q.data.ptr, q.scale.ptr):
        return result, None
    min_bytes = q.data.nbytes + q.scale.nbytes + nbytes
    return result, DequantizePlan(layout, nbytes, bound, Call("dequantize", "dequantize", 0, min_bytes))


def dequantize_groups(q: ScaledArray, stream: int, to: Format) -> DeviceArray:
    """Dequantize each group; this copies offsets to the host."""
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
        part, _ = dequantize_array(ScaledArray._make(rows, scale, form, -2, rows.shape), stream, to)
        row, column = part.strides
        into = result[begin:end].ptr, q.shape[1] * item, item
        source = part.ptr, row, column
        copy_strided(device, stream, item, source, into, end - begin, q.shape[1])
    return result


def _aligned_rows(function: str, data: Rows, stream: int) -> tuple[list[_hip.Block], int, int]:
    """Return the address and pitch of elements in rows aligned to 16 bytes, copied if needed."""
    if _has_aligned_rows(data):
        return [], data.array.ptr, data.row_stride
    device = data.array.device
    pitch = round_up(data.length, CHUNK_BYTES)
    block = _hip.allocate(data.rows * pitch, device, stream)
    count_copy(function, "data", "rows not aligned to 16 bytes")
    target = (block.ptr, pitch, 1)
    copy_strided(device, stream, 1, data.matrix, target, data.rows, data.length, pitch)
    return [block], block.ptr, pitch


def _has_aligned_rows(data: Rows) -> bool:
    """Whether a kernel can read elements in place: rows aligned and padded to 16 bytes."""
    if data.length > 1 and data.stride != 1:
        return False
    if data.array.ptr % CHUNK_BYTES or (data.length % CHUNK_BYTES and not data.array.padded):
        return False
    return data.rows <= 1 or (data.row_stride >= data.length and data.row_stride % CHUNK_BYTES == 0)
