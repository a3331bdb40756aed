"""How fp8 arrays lie in one allocation: elements, amax values, scales."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..array.device_array import DeviceArray
from ..array.rows import Layout, Rows, round_up
from ..formats.elements import F32, Format
from ..formats.scaled import ScaledArray, block_scale_shape
from ..formats.strides import contiguous_strides, padded_pitch
from ..kernels.manifest import CHUNK_BYTES
from ..runtime import hip as _hip

Axes = tuple[int, ...]


@dataclass(frozen=True)
class Fp8Array:
    """The layout of an array in fp8 with one scale, one for each row along `axis`, or one for each block."""

    form: Format
    axis: int
    shape: Axes
    data: Layout
    small: Layout  # of the amax values and of the scales
    data_bytes: int
    small_bytes: int
    block: tuple[int, int] | None = None

    @classmethod
    def of(
        cls, r: Rows, form: Format, axis: int | None = None, block: tuple[int, int] | None = None
    ) -> Fp8Array:
        """The layout of the quantized `r`."""
        item, small = F32.itemsize, _ONE
        if block is not None:
            shape = block_scale_shape(r.shape, block)
            small = shape, contiguous_strides(shape, item), F32.dtype
            if block[0] == 1:  # the rows are the contiguous axis
                small = r.layout(F32.dtype, shape[-1], item, r.rows * item)
        elif axis is not None:
            small = r.layout(F32.dtype, 1, item)
        width = round_up(max(1, r.length), CHUNK_BYTES)
        data, along = r.layout(form.dtype, r.length, width), -1 if axis is None else axis
        return cls(form, along, r.shape, data, small, r.rows * width, math.prod(small[0]) * item, block)

    @classmethod
    def in_rows(cls, form: Format, shape: Axes) -> Fp8Array:
        """The layout of an array (.., rows, length) with one scale, and its rows in C order."""
        pitch = padded_pitch(shape[-1], 1)
        data = shape, (*contiguous_strides(shape[:-1], pitch), 1), form.dtype
        return cls(form, -1, shape, data, _ONE, math.prod(shape[:-1]) * pitch, F32.itemsize)

    def allocate(self, device: int, stream: int) -> tuple[ScaledArray, tuple[int, int, int]]:
        """Allocate the array; return it, and the addresses of elements, scales and amax values (0)."""
        block = _hip.allocate(self.data_bytes + 2 * self.small_bytes, device, stream)
        amax = block.ptr + self.data_bytes
        scale = amax + self.small_bytes
        if self.block is None:  # otherwise a kernel writes all of them
            _hip.clear(amax, self.small_bytes, stream)
        made = ScaledArray._make(
            DeviceArray(block, block.ptr, *self.data, padded=True),
            DeviceArray(block, scale, *self.small),
            self.form,
            self.axis,
            self.shape,
            block=self.block,
            amax=DeviceArray(block, amax, *self.small),
        )
        return made, (block.ptr, scale, amax)


_ONE: Layout = (), (), F32.dtype
