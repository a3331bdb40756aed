"""Where an array of the host goes in device memory, and its way there and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.strides import contiguous_strides, line_pitch
from ..runtime import hip
from .device_array import DeviceArray
from .transfer import queue_upload

Host = npt.NDArray[Any]
Axes = tuple[int, ...]
_U8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class Placement:
    """Where an array goes: contiguous lines, each padded with zeros to a pitch."""

    shape: Axes  # of the array on the device, along the axes that it has on the host
    strides: Axes  # 0 for an axis that is broadcast
    dtype: np.dtype[Any]  # of the elements on the device
    lines: int
    pitch: int  # bytes from line to line
    width: int  # bytes of one line without padding
    columns: bool = False  # whether lines run along the last axis but one
    padded: bool = True
    offset: int = 0  # bytes from the start of the memory

    @classmethod
    def contiguous(
        cls, shape: Axes, dtype: np.dtype[Any], strides: Axes | None = None, columns: bool = False
    ) -> Placement:
        """Without padding; `strides`, if the axes are in another order or one entry of them serves all."""
        strides = contiguous_strides(shape, dtype.itemsize) if strides is None else strides
        nbytes = dtype.itemsize * math.prod(n for n, step in zip(shape, strides, strict=True) if step)
        return cls(shape, strides, dtype, 1, nbytes, nbytes, columns, False)

    @classmethod
    def in_lines(cls, shape: Axes, strides: Axes, dtype: np.dtype[Any], columns: bool) -> Placement:
        """In lines that begin at multiples of 16 bytes."""
        along, count = (shape[-2], shape[-1]) if columns else (shape[-1], shape[-2])
        own = (n for n, step in zip(shape[:-2], strides[:-2], strict=True) if step)
        lines = count * math.prod(own)
        width = along * dtype.itemsize
        return cls(shape, strides, dtype, lines, line_pitch(along, dtype.itemsize), width, columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all lines."""
        return self.lines * self.pitch

    def array(self, block: hip.Block, base: int) -> DeviceArray:
        """The array in device memory."""
        place = base + self.offset
        return DeviceArray(block, place, self.shape, self.strides, self.dtype, padded=self.padded)

    def write(self, memory: Host, x: Host) -> None:
        """Copy an array into host memory (bytes) that is laid out as the device's."""
        if self.pitch > self.width:
            gap = (self.lines, self.pitch - self.width)
            np.ndarray(gap, _U8, memory, self.offset + self.width, (self.pitch, 1)).fill(0)
        x = self._own(x)
        if x.dtype == self.dtype:
            bits = _bits(self.dtype)
            np.copyto(np.ndarray(x.shape, bits, memory, self.offset, self.strides), x.view(bits))
        else:  # offsets, which are known to fit
            np.copyto(np.ndarray(x.shape, self.dtype, memory, self.offset, self.strides), x, casting="unsafe")

    def read(self, memory: Host, out: Host) -> None:
        """Copy it from such memory to an array of any layout."""
        bits = _bits(self.dtype)
        np.copyto(out.view(bits), np.ndarray(self.shape, bits, memory, self.offset, self.strides))

    def queue(self, x: Host, start: int, stream: int) -> None:
        """Upload an array to device memory without waiting. It may change at once."""
        place = start + self.offset
        hip.clear_rows(place + self.width, self.pitch, self.pitch - self.width, self.lines, stream)
        x = self._own(x)
        x = x.swapaxes(-1, -2) if self.columns else x
        if self.width and self.lines:
            length = self.width // self.dtype.itemsize
            queue_upload(x.reshape(self.lines, length), place, stream, self.pitch)

    def _own(self, x: Host) -> Host:
        """The array with one entry of each axis that is broadcast."""
        if 0 not in self.strides:
            return x
        once = [step == 0 and n > 1 for n, step in zip(self.shape, self.strides, strict=True)]
        return x[tuple(slice(0, 1) if one else slice(None) for one in once)] if any(once) else x


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned type of the same size: NumPy copies the types of ml_dtypes slowly."""
    return _BITS.get(dtype.itemsize, dtype)


_BITS = {n: np.dtype(f"u{n}") for n in (1, 2, 4)}
