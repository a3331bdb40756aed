"""What counts as an array argument, and which device holds it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from itertools import count
from typing import Any, ParamSpec, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import fault

P = ParamSpec("P")
T = TypeVar("T")


class AnyArray:
    """What hipgemm's arrays share.

    They refuse == and truth values: Python's own would compare identities, and be True for any array.
    """

    __slots__ = ()
    _plural, _instead = "device arrays", "use .get()"
    shape: tuple[int, ...]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __bool__(self) -> bool:
        kind = self._plural.removesuffix("s")
        raise TypeError(f"{type(self).__name__}: the truth value of a {kind} is not defined; {self._instead}")

    def __eq__(self, other: object) -> bool:
        text = f"== and != are not supported for {self._plural}; {self._instead}"
        raise TypeError(f"{type(self).__name__}: {text}")

    __hash__ = object.__hash__


class MatmulOperand(AnyArray):
    """An array that ``@`` multiplies by `hipgemm.matmul`."""

    __slots__ = ()
    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __matmul__(self, other: Any) -> Any:
        """Multiply by `hipgemm.matmul`."""
        return _matmul()(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return _matmul()(other, self)

    def __imatmul__(self, other: Any) -> Any:
        name = type(self).__name__
        raise TypeError(f"{name}: @= is not supported; use a = a @ b, or hipgemm.matmul with out")


def _matmul() -> Callable[[Any, Any], Any]:
    """The function that ``@`` calls. It is of a higher layer, so it is imported on use."""
    from ..products.matmul import matmul

    return matmul


class Resident(MatmulOperand, ABC):
    """The interface of an array in device memory. `DeviceArray` implements it."""

    __slots__ = ()
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: int
    readonly: bool
    padded: bool
    no_tail_padding: bool

    @property
    @abstractmethod
    def ptr(self) -> int:
        """Address of the first element."""

    @property
    def freed(self) -> bool:
        """Whether its memory was freed."""
        return False

    @abstractmethod
    def get(self, out: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
        """Copy to the host."""


Array = npt.NDArray[Any] | Resident


def is_array(x: object) -> TypeGuard[Array]:
    """Whether `x` is an array without a mask. Masked arrays are refused, since the mask would be lost."""
    return isinstance(x, (np.ndarray, Resident)) and not isinstance(x, np.ma.MaskedArray)


def as_plain(x: Any) -> Any:
    """View an instance of a subclass of NumPy's array as a plain one; return anything else unchanged.

    A subclass may define other operations: the product of two numpy.matrix is a matrix product.
    """
    return np.asarray(x) if isinstance(x, np.ndarray) and is_array(x) else x


def on_host(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse masked arrays, convert subclasses to plain arrays, and ignore NumPy's error state.

    NaN, Inf, overflow and underflow raise no warnings. For functions that compute on the host.

    >>> with np.errstate(all="raise"):
    ...     on_host(np.square)(np.float32(1e30))
    np.float32(inf)
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for x in (*args, *kwargs.values()):
            if isinstance(x, np.ndarray) and not is_array(x):
                required = "arrays must have no mask"
                raise fault(TypeError, function.__name__, required, type(x).__qualname__, array_hint(x))
        with np.errstate(all="ignore"):
            return function(*map(as_plain, args), **{name: as_plain(x) for name, x in kwargs.items()})

    return call


def array_hint(x: object) -> str:
    """A hint how to convert an object to an array."""
    if isinstance(x, np.ma.MaskedArray):
        return "masks are not supported: use .filled(value)"
    if isinstance(x, (list, tuple)):
        return "convert it with numpy.asarray"
    if type(x).__name__ == "ShardedArray":
        return "see hipgemm.sharded_matmul"
    return "import device arrays of other libraries with hipgemm.asarray" if hasattr(x, "__dlpack__") else ""


def array_device(x: object) -> int | None:
    """The device that holds an array; None for the host."""
    return x.device if isinstance(x, Resident) else None  # NumPy's arrays have a `device` too


def device_name(device: int | None) -> str:
    """Format a device for a message."""
    return "the host" if device is None else f"device {device}"


_layouts: dict[tuple[Any, ...], int] = {}
_numbers = count(1)
_MOST_LAYOUTS = 1 << 14


def layout_number(layout: tuple[Any, ...]) -> int:
    """A number for a layout, which is hashed and compared faster. Other layouts have other numbers."""
    found = _layouts.get(layout)
    if found is None:
        if len(_layouts) >= _MOST_LAYOUTS:
            _layouts.clear()  # the same layout gets another number then
        found = _layouts.setdefault(layout, next(_numbers))
    return found


class _Memory:
    """Exposes memory through NumPy's array interface."""

    def __init__(self, interface: dict[str, Any], owner: object):
        self.__array_interface__ = interface
        self._owner = owner


def memory_as_array(
    ptr: int, shape: tuple[int, ...], strides: tuple[int, ...], type: str, owner: object = None
) -> npt.NDArray[Any]:
    """Wrap an address as a NumPy array that keeps `owner` alive. The memory is not accessed here."""
    interface = {"data": (ptr, False), "shape": shape, "strides": strides, "typestr": type, "version": 3}
    return np.asarray(_Memory(interface, owner))
