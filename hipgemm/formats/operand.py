"""The layout of an array in memory, on the host or a device; and which arrays share memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, Resident, is_array, memory_as_array
from .elements import BF16, F32, QUANTIZED, Format, format_of
from .scaled import ScaledArray
from .strides import byte_range, rows_contiguous, swap_last_axes

_BYTE = QUANTIZED["fp8_e4m3"]

Shaped = (np.ndarray, Resident, ScaledArray)


@dataclass(frozen=True)
class Operand:
    """The layout of an array in memory: matrices, batched along any leading axes.

    Strides are in bytes; `device` is None on the host. If `padded`, the bytes after each row (or each
    column, after a transposition) are zero up to a multiple of 16. Elements of fewer than 8 bits are
    described as packed: in bytes along K. A broadcast axis has a stride of 0.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    address: int
    device: int | None
    padded: bool = False
    row_scales: bool = False  # fp8 with one scale per row, or per column of the second operand
    scale_strides: tuple[int, ...] = ()  # of the scales in bytes along the same axes; 0: one scale for all
    block: tuple[int, int] | None = None  # elements of the last two axes that share a scale, for fp8
    e8m0: bool = False  # the scales of such blocks
    no_tail_padding: bool = False  # the allocation may end inside a 4-byte word

    @cached_property
    def transposed(self) -> Operand:
        """The same memory with the last two axes swapped."""
        return replace(
            self,
            shape=swap_last_axes(self.shape),
            strides=swap_last_axes(self.strides),
            scale_strides=swap_last_axes(self.scale_strides),
            block=None if self.block is None else self.block[::-1],
        )

    @property
    def kind(self) -> str:
        """The name of the format; fp8 with a scale for each block is another kind."""
        return self.format.name + ("" if self.block is None else "_block")

    @property
    def rows_contiguous(self) -> bool:
        """Whether the elements of each row are contiguous, and rows do not overlap."""
        return rows_contiguous(self.shape[-2:], self.strides[-2:], self.format.itemsize)

    @property
    def pitch(self) -> int:
        """Elements from one row to the next, for an operand whose rows are contiguous."""
        rows, columns = self.shape[-2:]
        return columns if rows <= 1 else self.strides[-2] // self.format.itemsize


def bytes_of(x: Any) -> Operand:
    """Describe the bytes of an array; elements of fewer bits on the host as they will be packed."""
    return operand_of(x, F32 if x.dtype.itemsize == 4 else _BYTE)


def operand_of(x: Array, form: Format) -> Operand:
    """Describe an array with elements of a format."""
    if isinstance(x, np.ndarray):
        return Operand(x.shape, x.strides, form, int(x.__array_interface__["data"][0]), None)
    return Operand(x.shape, x.strides, form, x.ptr, x.device, x.padded, no_tail_padding=x.no_tail_padding)


def memory_of(x: object) -> list[Operand]:
    """The memory of an array, or of elements and scales; none if it was freed, or is no array."""
    if isinstance(x, ScaledArray):
        return [] if x.freed else [bytes_of(x.data), bytes_of(x.scale)]
    if not is_array(x) or getattr(x, "freed", False):
        return []
    return [operand_of(x, format_of(x.dtype) or BF16)]


def overlap(x: Operand, y: Operand) -> bool:
    """Whether two arrays share a byte. Interleaved views may not."""
    x_low, x_high = byte_range(x.shape, x.strides, x.format.itemsize, x.address)
    y_low, y_high = byte_range(y.shape, y.strides, y.format.itemsize, y.address)
    if x_low >= y_high or y_low >= x_high:
        return False
    effort: Any = 10_000  # deciding is NP-hard in general, instant for two axes
    try:
        return bool(np.shares_memory(_as_numpy(x), _as_numpy(y), max_work=effort))
    except np.exceptions.TooHardError:  # undecided: assume that they do
        return True


def _as_numpy(x: Operand) -> npt.NDArray[Any]:
    """A NumPy array with the same address and strides, whose memory is never accessed."""
    return memory_as_array(x.address, x.shape, x.strides, f"|V{x.format.itemsize}")


def overlaps_itself(x: Operand) -> bool:
    """Whether two elements share memory, if strides are nested as in a sliced array."""
    reach = 0 if 0 in x.shape else x.format.itemsize
    for stride, n in sorted((abs(s), n) for n, s in zip(x.shape, x.strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False
