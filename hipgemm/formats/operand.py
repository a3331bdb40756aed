"""Where an array lies and how, whoever holds it; and which arrays share memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from .arrays import Array, Resident, memory_as_array
from .elements import F32, QUANTIZED, Format
from .scaled import ScaledArray
from .strides import byte_range, exchanged, rows_contiguous

_BYTE = QUANTIZED["fp8_e4m3"]

Shaped = (np.ndarray, Resident, ScaledArray)


@dataclass(frozen=True)
class Operand:
    """Where an array lies and how: matrices, one behind the other along any leading axes.

    Strides count bytes; `device` is None on the host. In a `padded` one, the bytes behind each row's
    end (or each column's, after a transposition) are zero up to a multiple of 16. Numbers of 4 bits count
    as what they are packed into: one byte for two along K. A broadcast axis has a stride of 0.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    format: Format
    address: int
    device: int | None
    padded: bool = False
    row_scales: bool = False  # fp8 with a scale for each row, or for each column of the second operand
    scale_strides: tuple[int, ...] = ()  # bytes from scale to scale along the same axes, 0 where it is one
    tight: bool = False  # in memory that may end inside a word of 4 bytes
    widens: bool = False  # 4-bit numbers that are yet to become the 8-bit ones described here

    @property
    def transposed(self) -> Operand:
        """The same with the last two axes exchanged."""
        return replace(
            self,
            shape=exchanged(self.shape),
            strides=exchanged(self.strides),
            scale_strides=exchanged(self.scale_strides),
        )

    @property
    def rows_contiguous(self) -> bool:
        """Whether each row is one run of bytes, rows apart by a pitch that cannot overlap them."""
        return rows_contiguous(self.shape[-2:], self.strides[-2:], self.format.itemsize)

    @property
    def pitch(self) -> int:
        """Elements from one row to the next, for an operand whose rows are contiguous."""
        rows, columns = self.shape[-2:]
        return columns if rows <= 1 else self.strides[-2] // self.format.itemsize


def bytes_of(x: Any) -> Operand:
    """Describe an array by its bytes alone; 4-bit numbers on the host as they will be packed."""
    return operand_of(x, F32 if x.dtype.itemsize == 4 else _BYTE)


def operand_of(x: Array, form: Format) -> Operand:
    """Describe an array of a format."""
    if isinstance(x, np.ndarray):
        return Operand(x.shape, x.strides, form, int(x.__array_interface__["data"][0]), None)
    return Operand(x.shape, x.strides, form, x.ptr, x.device, x.padded, tight=x.tight)


def overlap(x: Operand, y: Operand) -> bool:
    """Whether two arrays have a byte in common. Interleaved views need not."""
    x_low, x_high = byte_range(x.shape, x.strides, x.format.itemsize, x.address)
    y_low, y_high = byte_range(y.shape, y.strides, y.format.itemsize, y.address)
    if x_low >= y_high or y_low >= x_high:
        return False
    effort: Any = 10_000  # deciding is NP-hard in general, instant for two axes
    try:
        return bool(np.shares_memory(_phantom(x), _phantom(y), max_work=effort))
    except np.exceptions.TooHardError:  # undecided: assume the worst
        return True


def _phantom(x: Operand) -> npt.NDArray[Any]:
    """An array for NumPy to reason about; its bytes are never touched."""
    return memory_as_array(x.address, x.shape, x.strides, f"|V{x.format.itemsize}")


def overlaps_itself(x: Operand) -> bool:
    """Whether two elements share memory, taking strides to nest as those of a sliced array do."""
    reach = 0 if 0 in x.shape else x.format.itemsize  # nothing to overlap
    for stride, n in sorted((abs(s), n) for n, s in zip(x.shape, x.strides, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False
