"""Arrays of random layouts in poisoned memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import hipgemm as hg
from hipgemm.runtime import hip as _hip


@dataclass
class Placed:
    """An array inside memory of 0xff, which is NaN in every type that has one."""

    memory: np.ndarray
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def host(self) -> np.ndarray:
        return np.ndarray(self.shape, self.dtype, self.memory.data, self.offset, self.strides)

    def device(self, exactly: bool = False) -> hg.DeviceArray:
        """The same on the device; `exactly`: in an allocation of exactly these bytes, by another library."""
        if exactly:
            whole = hg.asarray(ExternalArray(self.memory))
        else:
            whole = hg.asarray(np.pad(self.memory, (0, -self.memory.size % 4), constant_values=255))
        return hg.DeviceArray(whole._block, whole.ptr + self.offset, self.shape, self.strides, self.dtype)

    def outside(self, memory: np.ndarray) -> bool:
        """Whether all bytes around the array are unchanged."""
        memory = memory.copy()
        np.ndarray(self.shape, (np.void, self.dtype.itemsize), memory.data, self.offset, self.strides)[
            ...
        ] = b"\xff" * self.dtype.itemsize
        return bool((memory == 255).all())


class ExternalArray:
    """Memory of hipMalloc, of exactly this size."""

    def __init__(self, data: np.ndarray):
        self.ptr = None
        self.ptr = _hip.call("hipMalloc", max(1, data.size))
        if data.size:
            _hip.copy("HostToDevice", int(self.ptr), data.ctypes.data, data.size, 0)
            _hip.synchronize()
        self.__cuda_array_interface__ = {
            "shape": data.shape, "typestr": "|u1", "data": (int(self.ptr), False), "version": 3
        }  # fmt: skip

    def __del__(self) -> None:
        if self.ptr is not None:
            _hip.call("hipFree", self.ptr)


def snug(x: np.ndarray) -> hg.DeviceArray:
    """An array on the device, in an allocation of exactly its bytes."""
    memory = hg.asarray(ExternalArray(np.ascontiguousarray(x).reshape(-1).view(np.uint8)))
    return memory.view(x.dtype).reshape(x.shape)


def place(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    *,
    output: bool = False,
    tame: float = 0.6,
) -> Placed:
    """Choose a layout for an array: order of axes, gaps, steps, directions and offsets."""
    tame_ = rng.random() < tame
    axes = list(range(len(shape)))
    lead, last = axes[:-2], axes[-2:]
    rng.shuffle(lead)
    order = lead + last[:: rng.choice([1, -1])]  # from the outermost to the innermost
    if not tame_ and rng.random() < 0.3:
        rng.shuffle(order)
    item = dtype.itemsize
    strides, low, extent = [0] * len(shape), 0, item
    for axis in reversed(order):
        n = max(1, shape[axis])
        if not output and n > 1 and (axis in lead or not tame_) and rng.random() < 0.12:
            continue  # broadcast
        step = extent
        if extent == item:
            step *= 1 if tame_ else int(rng.choice([1, 1, 1, 1, 2, 3]))
        elif tame_:
            step = -(-step // 16) * 16 + int(rng.choice([0, 0, 16, 112]))
        else:
            step += item * int(rng.choice([0, 0, 1, 5, 8]))
        extent = step * (n - 1) + extent
        if not tame_ and rng.random() < 0.12:
            low += step * (n - 1)
            step = -step
        strides[axis] = step
    offset = 64 + (0 if tame_ else item * int(rng.choice([0, 1, 3, 8]))) + low
    tail = int(rng.choice([0, 0, 1, 64]))
    memory = np.full(offset - low + extent + tail, 255, np.uint8)
    return Placed(memory, offset, shape, tuple(strides), dtype)
