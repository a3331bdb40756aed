"""What counts as an array, whoever holds it, and where one lies."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt


class Resident(ABC):
    """An array in the memory of a device. `DeviceArray` is the one that users meet."""

    __slots__ = ()
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    readonly: bool
    padded: bool
    tight: bool

    @property
    @abstractmethod
    def ptr(self) -> int:
        """Address of the first element."""

    @abstractmethod
    def get(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy to the host."""


Array = npt.NDArray[Any] | Resident


def is_array(x: object) -> TypeGuard[Array]:
    """Whether `x` is an array that all its numbers count of: no masked one, whose mask would be lost."""
    return isinstance(x, (np.ndarray, Resident)) and not isinstance(x, np.ma.MaskedArray)


def array_hint(x: object) -> str:
    """Say how to make an array of something that is none."""
    if isinstance(x, np.ma.MaskedArray):
        return "masks are not heeded: use .filled(value)"
    if isinstance(x, (list, tuple)):
        return "make an array of it with numpy.asarray"
    if type(x).__name__ == "ShardedArray":
        return "see hipgemm.sharded_matmul"
    return "wrap foreign device arrays with hipgemm.asarray" if hasattr(x, "__dlpack__") else ""


def place_of(x: object) -> int | None:
    """The device that holds an array; None for the host."""
    return x.device if isinstance(x, Resident) else None  # NumPy's arrays have a `device` too


def place_name(device: int | None) -> str:
    """Name a place for a message."""
    return "the host" if device is None else f"device {device}"


class _Memory:
    """Memory in the guise of an array of NumPy."""

    def __init__(self, interface: dict[str, Any], owner: object):
        self.__array_interface__ = interface
        self._owner = owner


def memory_as_array(
    ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], type: str, owner: object = None
) -> npt.NDArray[Any]:
    """Describe memory of any kind to NumPy, which keeps `owner` and does not look inside by itself."""
    interface = {"data": (ptr, False), "shape": shape, "strides": strides, "typestr": type, "version": 3}
    return np.asarray(_Memory(interface, owner))
