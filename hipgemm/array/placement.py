"""The layout of a host array in device memory, and copies in both directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..formats.strides import contiguous_strides, padded_pitch
from ..runtime import hip
from .device_array import DeviceArray
from .transfer import enqueue_upload

Host = npt.NDArray[Any]
Axes = tuple[int, ...]
_U8 = np.dtype(np.uint8)


@dataclass(frozen=True)
class Placement:
    """The layout of an array in device memory: rows or columns, each padded with zeros to a pitch."""

    shape: Axes  # of the array on the device, in the axis order of the host
    strides: Axes  # in bytes; 0 for a broadcast axis
    dtype: np.dtype[Any]  # of the elements on the device
    vectors: int  # the number of these rows or columns
    pitch: int  # bytes from one vector to the next
    width: int  # bytes of a vector without padding
    columns: bool = False  # whether the vectors are columns
    padded: bool = True
    offset: int = 0  # in bytes from the start of the allocation

    @classmethod
    def contiguous(
        cls, shape: Axes, dtype: np.dtype[Any], strides: Axes | None = None, columns: bool = False
    ) -> Placement:
        """Without padding. `strides` is for another order of axes, or broadcast axes."""
        strides = contiguous_strides(shape, dtype.itemsize) if strides is None else strides
        nbytes = dtype.itemsize * math.prod(n for n, step in zip(shape, strides, strict=True) if step)
        return cls(shape, strides, dtype, 1, nbytes, nbytes, columns, False)

    @classmethod
    def pitched(cls, shape: Axes, strides: Axes, dtype: np.dtype[Any], columns: bool) -> Placement:
        """With vectors that are aligned to 16 bytes."""
        length, count = (shape[-2], shape[-1]) if columns else (shape[-1], shape[-2])
        batch = math.prod(n for n, step in zip(shape[:-2], strides[:-2], strict=True) if step)
        width, pitch = length * dtype.itemsize, padded_pitch(length, dtype.itemsize)
        return cls(shape, strides, dtype, count * batch, pitch, width, columns)

    @property
    def nbytes(self) -> int:
        """Bytes of all vectors with padding."""
        return self.vectors * self.pitch

    def array(self, block: hip.Block, base: int) -> DeviceArray:
        """The array in device memory."""
        address = base + self.offset
        return DeviceArray(block, address, self.shape, self.strides, self.dtype, padded=self.padded)

    def write(self, memory: Host, x: Host) -> None:
        """Copy an array into host memory (bytes) with the device's layout."""
        if self.pitch > self.width:
            gap = (self.vectors, self.pitch - self.width)
            np.ndarray(gap, _U8, memory, self.offset + self.width, (self.pitch, 1)).fill(0)
        x = self._without_broadcast(x)
        bits = _bits(self.dtype)
        np.copyto(np.ndarray(x.shape, bits, memory, self.offset, self.strides), x.view(bits))

    def read(self, memory: Host, out: Host) -> None:
        """Copy from host memory with the device's layout to an array of any layout."""
        bits = _bits(self.dtype)
        np.copyto(out.view(bits), np.ndarray(self.shape, bits, memory, self.offset, self.strides))

    def upload(self, x: Host, start: int, stream: int) -> None:
        """Upload an array to device memory without waiting. The array may change after the call."""
        address = start + self.offset
        hip.clear_rows(address + self.width, self.pitch, self.pitch - self.width, self.vectors, stream)
        x = self._without_broadcast(x)
        x = x.swapaxes(-1, -2) if self.columns else x
        if self.width and self.vectors and x.size:
            length = self.width // self.dtype.itemsize
            enqueue_upload(x.reshape(self.vectors, length), address, stream, self.pitch)

    def _without_broadcast(self, x: Host) -> Host:
        """The array with length 1 along broadcast axes."""
        if 0 not in self.strides:
            return x
        once = [step == 0 and n > 1 for n, step in zip(self.shape, self.strides, strict=True)]
        return x[tuple(slice(0, 1) if one else slice(None) for one in once)] if any(once) else x


def _bits(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The unsigned type of the same size, since NumPy copies ml_dtypes types slowly."""
    return _BITS.get(dtype.itemsize, dtype)


_BITS = {n: np.dtype(f"u{n}") for n in (1, 2, 4)}
